//! Seed 171 of the campaign with encryption: a raw stream of our own was refused. A file that is one hole had a block size above 128 KiB,
//! in a dataset without any large block, so that the stream was none of large blocks; the size was cut in the record of the
//! object, though the MAC of its dnode covers it.

use sim::campaign::scenario::Plan;

#[test]
fn a_large_hole_is_sent_raw() {
    crate::run_judged(&Plan::encryption(171)).unwrap_or_else(|failure| panic!("{failure}"));
}
