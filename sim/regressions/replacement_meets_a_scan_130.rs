//! Seed 130 of the fault campaign: `zpool replace` was refused because "a scrub is running", though no command had asked for
//! one that could not give way. A scan that ended began what comes next while the replacement began its resilver, and
//! each saw the other's. Who decides which scan runs next now does so alone.

use sim::campaign::faults::{self, FaultPlan};
use sim::world::World;

#[test]
#[ignore = "long: a seed that failed once, and takes long"]
fn a_replacement_is_not_refused_while_a_scan_starts() {
    let plan = FaultPlan::of_seed(130);
    let outcome = faults::run(&plan, &World::new(130), None);
    outcome.unwrap_or_else(|failure| panic!("{failure}"));
}
