//! Seed 123 of the fault campaign: as seed 39, another layout and another moment for the disk to hang.

use sim::campaign::faults::{self, FaultPlan};
use sim::world::World;

#[test]
fn work_goes_on_beside_a_disk_that_hangs() {
    let plan = FaultPlan::of_seed(123);
    let outcome = faults::run(&plan, &World::new(123), None);
    outcome.unwrap_or_else(|failure| panic!("{failure}"));
}
