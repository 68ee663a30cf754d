//! Seed 250348 of the fault campaign: two at once brought a disk of a mirror back. For the second it was in use, by the first,
//! so after two seconds it was taken for unavailable again; when the other half of the mirror went away, the pool stopped.

use sim::campaign::faults::{self, FaultPlan};
use sim::world::World;

#[test]
fn a_disk_that_two_bring_back_at_once_stays() {
    let plan = FaultPlan::of_seed(250_348);
    let outcome = faults::run(&plan, &World::new(250_348), None);
    outcome.unwrap_or_else(|failure| panic!("{failure}"));
}
