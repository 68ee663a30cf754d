//! Goal: no pool, whoever made it, brings the program down. Method: a few of the seeds of `sanbox-sim hostile`, and pools that nobody
//! has harmed, which prove that the examination would notice.

use sim::hostile::{Reached, run, run_unharmed};

#[test]
fn harmed_pools_are_refused_or_read_as_far_as_they_go() {
    let mut refused = 0;
    for seed in 0..40 {
        let outcome = run(seed).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        refused += u32::from(outcome.reached == Reached::Refused);
    }
    assert!((1..40).contains(&refused), "{refused} of 40 were refused");
}

#[test]
fn pools_without_harm_are_whole() {
    for seed in [0, 1, 2, 3] {
        let outcome = run_unharmed(seed).expect("it ends");
        assert_eq!(outcome.reached, Reached::Whole, "seed {seed}: {outcome:?}");
    }
}
