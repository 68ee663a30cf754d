//! Seed 11271 of the fault campaign: a disk of a draid3 ended faulted. It was the judge: sectors at the begin of all four labels
//! could not be read, nothing writes them in a pool, and a device that gives none of them after an error is taken out of service,
//! by OpenZFS as well. Such a disk is replaced now. And the judge had taken it for scrubbed by a scrub at whose start it was taken
//! out of service. Since seed 10162 was mended this one takes another course, on which no disk is replaced.

use sim::campaign::faults::{self, FaultPlan};
use sim::world::World;

#[test]
fn a_disk_that_lost_the_heads_of_its_labels_is_replaced() {
    let plan = FaultPlan::of_seed(11271);
    let outcome = faults::run(&plan, &World::new(11271), None);
    outcome.unwrap_or_else(|failure| panic!("{failure}"));
}
