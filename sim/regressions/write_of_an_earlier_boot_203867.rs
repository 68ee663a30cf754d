//! Seed 203867 of the fault campaign: after a power cut a disk of a raidz held old bytes in place of blocks it had written
//! and flushed. The world had forgotten what a write comes to that a stuck disk has not answered when the pool is exported
//! and the boot ends: it stayed in the disk's cache, and was laid over what a later boot had written there. It is decided
//! with its boot now.

use sim::campaign::faults::{self, FaultPlan};
use sim::world::World;

#[test]
fn a_write_of_an_earlier_boot_does_not_come_later() {
    let plan = FaultPlan::of_seed(203_867);
    let outcome = faults::run(&plan, &World::new(203_867), None);
    outcome.unwrap_or_else(|failure| panic!("{failure}"));
}
