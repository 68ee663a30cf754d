//! Seed 10162 of the fault campaign: a raidz3 had a checksum error after everything had been resilvered and scrubbed. What
//! follows the data in its last sector had rotted, which no checksum covers; a scrub made the parity fit it while one disk was
//! away, and that disk was not resilvered when it came back. It is told to lack the block now, as OpenZFS does.

use sim::campaign::faults::{self, FaultPlan};
use sim::world::World;

#[test]
fn a_disk_is_resilvered_that_was_away_when_parity_changed() {
    let plan = FaultPlan::of_seed(10162);
    let outcome = faults::run(&plan, &World::new(10162), None);
    outcome.unwrap_or_else(|failure| panic!("{failure}"));
}
