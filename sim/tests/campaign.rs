//! A few seeds of the campaign with every `cargo test`, each twice; the canary; and the regressions.
//!
//! The campaign itself is `cargo run -p sim -- campaign`.

use sim::campaign::devices::Removals;
use sim::campaign::faults::{self, FaultPlan};
use sim::campaign::scenario::{Plan, run};
use sim::campaign::{Failure, Outcome, judge};
use sim::world::World;

/// Regressions found by campaigns: `sim/regressions/<topic>_<seed>.rs`, each opening with its story.
#[path = "../regressions/mod.rs"]
mod regressions;

/// Runs a plan in a world of its seed, judged by the checker.
pub fn run_judged(plan: &Plan) -> Result<(Outcome, World), Failure> {
    let world = World::new(plan.seed);
    let outcome = run(plan, &world, &|world, crashed| {
        judge::by_checker(plan, world, crashed)
    })?;
    Ok((outcome, world))
}

/// Runs a seed twice: it passes, and nothing happens otherwise the second time. Returns what came of it.
fn pass_and_repeat<T>(seed: u64, run: impl Fn() -> Result<(T, World), Failure>) -> T {
    let [(outcome, first), (_, second)] =
        [(); 2].map(|()| run().unwrap_or_else(|failure| panic!("{failure}")));
    assert_eq!(
        first.event_hash(),
        second.event_hash(),
        "seed {seed} is not deterministic"
    );
    outcome
}

#[test]
fn seeds_pass_and_repeat() {
    for seed in 0..12 {
        let plan = Plan::of_seed(seed);
        pass_and_repeat(seed, || run_judged(&plan));
    }
}

/// One seed of the fault campaign for each layout, twice. The campaign itself is `sanbox-sim faults`.
#[test]
fn fault_seeds_pass_and_repeat() {
    for seed in 0..12 {
        let plan = FaultPlan::of_seed(seed);
        pass_and_repeat(seed, || {
            let world = World::new(seed);
            let outcome = faults::run(&plan, &world, None)?;
            Ok((outcome, world))
        });
    }
}

/// Vdevs with data leave pools, are cut off at it, or cannot be read. The campaign itself is `sanbox-sim campaign --removals`.
#[test]
fn seeds_of_removals_pass_and_repeat() {
    let mut removals = Removals::default();
    for seed in [3, 4, 5] {
        let plan = Plan::removals(seed);
        let outcome = pass_and_repeat(seed, || run_judged(&plan));
        removals = removals.and(outcome.removals);
    }
    let Removals {
        begun,
        given_up,
        ended,
        failed,
    } = removals;
    assert!(
        begun > 0 && given_up > 0 && ended > 0 && failed > 0,
        "{removals:?}"
    );
}

/// Pools learn to count more of what owners use, and are cut off at it. The campaign itself is `sanbox-sim campaign --upgrades`.
#[test]
fn seeds_of_upgrades_pass_and_repeat() {
    for seed in 0..4 {
        let plan = Plan::upgrades(seed);
        pass_and_repeat(seed, || run_judged(&plan));
    }
}

/// Keys of datasets change, and damaged blocks come back from streams. The campaign itself is `sanbox-sim campaign --encryption`. In 6001187
/// the block that is to be damaged lies in its pointer, and another dataset has its bytes on a disk.
#[test]
fn seeds_with_keys_pass_and_repeat() {
    for seed in [0, 6_001_187] {
        let plan = Plan::encryption(seed);
        pass_and_repeat(seed, || run_judged(&plan));
    }
}

/// Worlds in which flushes lie must be found out, or the judges are blind.
#[test]
fn the_canary_dies() {
    // What the loss of flushed writes looks like: to the checker, to the histories of what was acknowledged, and to an import.
    let signs = ["the checker has", "acknowledged", "import after the cut"];
    for seed in 0..8 {
        match run_judged(&Plan::canary(seed)) {
            Ok(_) => panic!("the lying flushes of world {seed} were not noticed"),
            Err(failure) => {
                let said = failure.to_string();
                assert!(
                    signs.iter().any(|sign| said.contains(sign)),
                    "{seed}: {said}"
                );
            }
        }
    }
}
