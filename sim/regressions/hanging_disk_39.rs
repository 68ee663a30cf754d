//! Seed 39 of the fault campaign hung one disk of a mirror of four, and everything stopped for ever: writes of data gave up
//! on the disk after a minute, but those of labels and uberblocks, repairs, and the probe after an error waited without
//! end. All of them now leave a disk behind that does not answer, as long as others hold its data.

use sim::campaign::faults::{self, FaultPlan};
use sim::world::World;

#[test]
fn a_disk_that_hangs_is_left_behind() {
    let plan = FaultPlan::of_seed(39);
    let outcome = faults::run(&plan, &World::new(39), None);
    outcome.unwrap_or_else(|failure| panic!("{failure}"));
}
