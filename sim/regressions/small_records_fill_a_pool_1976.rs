//! Seed 1976 filled a disk of 64 MiB with recordsize=512, and the pool suspended: "out of space" in the middle of a
//! transaction group. A transaction reserved its bytes and an eighth for metadata, but every 512 bytes of data bring 256
//! bytes of block pointers, so a txg of several megabytes took half as much again as was reserved, and half of the
//! slop with it. Nothing was lost, but nothing could be written, not even a removal, before another import. Estimates
//! now count blocks: what each takes on its vdev, and its pointer in each copy.

use sim::campaign::model::Style;
use sim::campaign::scenario::Plan;

#[test]
fn small_records_fill_a_pool_and_it_goes_on() {
    let plan = Plan {
        rounds: 3,
        operations: 300,
        settings: vec![
            ("recordsize".to_owned(), "512".to_owned()),
            ("atime".to_owned(), "off".to_owned()),
        ],
        styles: vec![Style::Fill],
        ..Plan::plain(1976)
    };
    crate::run_judged(&plan).unwrap_or_else(|failure| panic!("{failure}"));
}
