//! The pool checker: reads whole disk images and judges everything on them, without the engine.
//!
//! It shares only `ondisk` and `codec` with the engine, so a mistake in how the engine allocates, accounts or links
//! cannot hide itself here. It knows single disks, mirrors, raidz (also one that is being expanded, or was) and draid (also several
//! top-level vdevs), and vdevs that were removed or are being emptied, follows every block pointer through every copy, every mirror half
//! and every column of parity, and compares what it reached with the space maps, with the accounting of datasets, with feature counts,
//! and the directories of file systems with their files.
//!
//! What it does not judge: the contents of encrypted blocks (only their checksums), deduplication tables.

#![forbid(unsafe_code)]

mod blocks;
mod claims;
mod devices;
mod dsl;
mod expansion;
mod features;
mod files;
mod image;
mod livelists;
mod moved;
mod objset;
mod pool;
mod report;
mod space;
pub mod spread;
mod stripes;
mod usage;
mod zap;

pub use devices::is_in_a_tree;
pub use image::{FileImage, Image};
pub use report::{Finding, Kind, Report, Severity};

/// What to be lenient about.
#[derive(Debug, Clone, Copy, Default)]
pub struct Options {
    /// The pool was cut off in the middle of its work: labels may disagree and the intent log may be unclaimed. Without
    /// this, such things are errors.
    pub crashed: bool,
}

/// Checks the pool whose disks these images are, in any order. Images without a label are reported and ignored.
///
/// Never fails: what cannot be read is a finding.
#[must_use]
pub fn check(images: &[&dyn Image], options: Options) -> Report {
    let mut checker = blocks::Checker::new(images, options);
    checker.run();
    checker.report
}
