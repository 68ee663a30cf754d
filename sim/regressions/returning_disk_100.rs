//! Seed 100 of the fault campaign suspended a mirror although one of its disks had been well all along: the other was
//! back, its writes of before were lost with its cache, and the flush that ended the txg counted the sound disk as
//! one that had nothing to flush. A disk that took everything and was flushed since now counts as durable.

use sim::campaign::faults::{self, FaultPlan};
use sim::world::World;

#[test]
fn a_disk_that_returns_does_not_fail_the_flush_of_its_mirror() {
    let plan = FaultPlan::of_seed(100);
    let outcome = faults::run(&plan, &World::new(100), None);
    outcome.unwrap_or_else(|failure| panic!("{failure}"));
}
