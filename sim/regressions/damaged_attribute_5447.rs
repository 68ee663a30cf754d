//! Seed 5447 of the fault campaign: the value of an attribute that lies in a directory of its own was damaged, and
//! `zpool status -v` named it by its number (`tank:<0x2d>`): the way from an object to its path took the file for a
//! directory. It is `/file/<xattrdir>/name`, as OpenZFS says it; and the campaign reads attributes now, too.

use sim::campaign::faults::{self, FaultPlan};
use sim::world::World;

#[test]
fn the_value_of_an_attribute_is_named_behind_its_file() {
    let plan = FaultPlan::of_seed(5447);
    let outcome = faults::run(&plan, &World::new(5447), None);
    outcome.unwrap_or_else(|failure| panic!("{failure}"));
}
