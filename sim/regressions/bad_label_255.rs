//! Seed 255 of the fault campaign: after any failed read a device had to give its front label or was taken out. One with a bad
//! sector there, which nothing wrote again, was taken out for every bad sector elsewhere, whatever brought it back.

use sim::campaign::faults::{self, FaultPlan};
use sim::world::World;

#[test]
fn a_bad_sector_in_a_label_does_not_condemn_a_disk() {
    let plan = FaultPlan::of_seed(255);
    let outcome = faults::run(&plan, &World::new(255), None);
    outcome.unwrap_or_else(|failure| panic!("{failure}"));
}
