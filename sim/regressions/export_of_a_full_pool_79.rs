//! Seed 79 filled a mirror of 64 MiB with atime=on, and the export failed with "no space left on device": closing a
//! file system stores access times kept in memory, which takes a transaction, which a full pool refused. A pool could
//! then not be exported until something was removed. Access times are now dropped when there is no room for them.

use sim::campaign::model::Style;
use sim::campaign::scenario::{Layout, Plan};

#[test]
fn a_full_pool_can_be_exported() {
    let plan = Plan {
        layout: Layout::Mirror,
        clients: 3,
        operations: 300,
        sector_bytes: 4096,
        settings: vec![
            ("compression".to_owned(), "off".to_owned()),
            ("recordsize".to_owned(), "512".to_owned()),
        ],
        styles: vec![Style::Fill; 3],
        with_datasets: true,
        cut_at_create: true,
        ..Plan::plain(79)
    };
    crate::run_judged(&plan).unwrap_or_else(|failure| panic!("{failure}"));
}
