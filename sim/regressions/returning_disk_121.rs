//! Seed 121 of the fault campaign: as seed 100, with a disk that comes back while the flush of its mirror is under way.

use sim::campaign::faults::{self, FaultPlan};
use sim::world::World;

#[test]
fn a_disk_that_returns_during_a_flush_does_not_suspend_the_pool() {
    let plan = FaultPlan::of_seed(121);
    let outcome = faults::run(&plan, &World::new(121), None);
    outcome.unwrap_or_else(|failure| panic!("{failure}"));
}
