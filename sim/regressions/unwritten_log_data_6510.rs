//! Seed 6510 of the fault campaign: after a power cut `zpool status -v` told of damage in the pool's metadata
//! (`<metadata>:<0x0>`). The last record of an intent log had reached the disk before the block it points to: that is how
//! logs end, and importing the pool found it out by reading the block. It is no damage. Seed 6869 was another.

use sim::campaign::faults::{self, FaultPlan};
use sim::world::World;

#[test]
fn the_end_of_a_log_is_not_taken_for_damage() {
    let plan = FaultPlan::of_seed(6510);
    let outcome = faults::run(&plan, &World::new(6510), None);
    outcome.unwrap_or_else(|failure| panic!("{failure}"));
}
