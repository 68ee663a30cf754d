//! Seed 5548 of the fault campaign: a damaged file was named by its number (`tank/fs:<0x38>`), because its newest name
//! had been removed and a file does not know where its others are. OpenZFS says the same (zfs_obj_to_path); it was the
//! judge that took the number for something else.

use sim::campaign::faults::{self, FaultPlan};
use sim::world::World;

#[test]
fn a_file_whose_newest_name_is_gone_is_named_by_its_number() {
    let plan = FaultPlan::of_seed(5548);
    let outcome = faults::run(&plan, &World::new(5548), None);
    outcome.unwrap_or_else(|failure| panic!("{failure}"));
}
