//! Seed 189 of the fault campaign: after a power cut an import decided on a healing resilver and waited for the txgs it
//! was to cover; meanwhile a distributed spare began a sequential one, the healing one was refused, and the import failed
//! with it. What the sequential one leaves is seen to at its end.

use sim::campaign::faults::{self, FaultPlan};
use sim::world::World;

#[test]
fn a_sequential_resilver_that_begins_during_an_import_is_no_reason_to_refuse_it() {
    let plan = FaultPlan::of_seed(189);
    let outcome = faults::run(&plan, &World::new(189), None);
    outcome.unwrap_or_else(|failure| panic!("{failure}"));
}
