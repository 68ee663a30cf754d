//! Seed 247 of the campaign of changing devices: "label 1 is not valid" of a disk that is not in the pool. It was the checker:
//! the power had gone after two labels of a disk that was being added, so it never joined, but it was judged as a member.

use sim::campaign::scenario::Plan;

#[test]
fn two_labels_of_a_disk_that_did_not_join_are_no_error() {
    crate::run_judged(&Plan::devices(247)).unwrap_or_else(|failure| panic!("{failure}"));
}
