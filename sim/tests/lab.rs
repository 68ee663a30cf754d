//! A seed of the crash lab with every `cargo test`, twice; and a canary: where flushes lie, cuts must be found out.
//!
//! The lab itself is `sanbox lab crash`; what it has run is in `sim/ledger.toml`.

use sim::campaign::scenario::{Plan, Trouble};
use sim::lab::{Options, plan_of_seed, run};

#[test]
fn a_seed_passes_and_repeats() {
    let plan = plan_of_seed(4);
    let first = run(&plan, &Options::default()).unwrap_or_else(|violation| panic!("{violation}"));
    let second = run(&plan, &Options::default()).unwrap_or_else(|violation| panic!("{violation}"));
    assert_eq!(first, second, "the seed is not deterministic");
    assert!(first.cuts > 20 && first.nested > 0, "{first:?}");
}

/// The only log device had failed a write, so that it lacked something of its txg, and the import after the cut took the
/// unwritten end of the log for a device that did not answer: it was refused.
#[test]
fn a_log_ends_on_a_device_that_failed_a_write() {
    let only = Options {
        only: Some(67),
        ..Options::default()
    };
    run(&plan_of_seed(5902), &only).unwrap_or_else(|violation| panic!("{violation}"));
}

/// A record of the log and the data it points to were on the disks after the cut, but not the parity of that data: it was
/// replayed as it was, and lost with the next disk that failed.
#[test]
fn what_a_log_points_to_gets_its_parity() {
    let only = Options {
        only: Some(73),
        ..Options::default()
    };
    run(&plan_of_seed(7140), &only).unwrap_or_else(|violation| panic!("{violation}"));
}

#[test]
fn the_canary_dies() {
    for seed in 0..4 {
        let plan = Plan {
            trouble: Trouble::LyingFlush,
            ..plan_of_seed(seed)
        };
        match run(&plan, &Options::default()) {
            Ok(_) => panic!("the lying flushes of world {seed} were not noticed"),
            Err(violation) => {
                let said = violation.to_string();
                // The pool is damaged, or sound and without what was acknowledged.
                let words = ["after the cut: ", "acknowledged as stable, but only"];
                let is_noticed = words.iter().any(|words| said.contains(words));
                assert!(is_noticed, "{seed}: {said}");
            }
        }
    }
}
