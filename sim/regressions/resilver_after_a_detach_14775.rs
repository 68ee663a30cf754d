//! Seed 14775 of the fault campaign: the scrub that is to show a draid whole again was refused with "currently resilvering".
//! It was the judge: it had just detached a distributed spare that was not needed any more, after which the pool looks
//! whether devices lack anything; that took no time, but the scrub came before its end. It is asked for again now.

use sim::campaign::faults::{self, FaultPlan};
use sim::world::World;

#[test]
fn a_scrub_waits_for_what_a_detach_leads_to() {
    let plan = FaultPlan::of_seed(14775);
    let outcome = faults::run(&plan, &World::new(14775), None);
    outcome.unwrap_or_else(|failure| panic!("{failure}"));
}
