//! Seed 51 lost a change in the middle. On a pool without the feature zilsaxattr an extended attribute has no record in
//! the intent log, so a commit that covers one waits for its transaction group. It had written the records around it
//! first; power went before the txg had synced, and after the replay the file had what was written after the
//! attribute, but not the attribute. Nothing of it had been acknowledged, but a file's changes came out of order. Such
//! a commit now leaves all of it to the txg.

use sim::campaign::scenario::Plan;

#[test]
fn an_attribute_without_a_record_keeps_its_place() {
    let plan = Plan::of_seed(51);
    crate::run_judged(&plan).unwrap_or_else(|failure| panic!("{failure}"));
}
