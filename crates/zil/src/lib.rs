//! The intent log of one objset: changes that must be durable before their txg is.
//!
//! ```text
//!  append --> records in memory (itxs), dropped when their txg has synced
//!  commit --> block --> block --> block (allocated, not written) : a chain on disk, one flush for all commits of a batch
//!  sync of a txg: header points at the oldest block still needed, older ones are freed
//!  import: claim --> replay (pulled by the file system or volume) --> the chain is freed
//! ```
//! Guarantees: when [`Zilog::commit`] returns, its records are in a chain on stable storage that a later import finds, or
//! their txg has synced. A log that cannot be written is replaced by syncing the txg.
//! Does not know what records mean, except how a write is split over blocks, nor how they are replayed.
//! Facts: docs/format/10-zil-arc.md; OpenZFS: include/sys/zil.h, module/zfs/zil.c.

#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]

mod batch;
mod chain;
mod claim;
mod error;
mod group_commit;
mod itx;
mod log;
mod pack;
mod replay;
mod stats;
mod walk;

pub use claim::{Claimed, LoggedReference, blocks_to_free, blocks_until, claim};
pub use error::{Result, ZilError};
pub use itx::{Intent, ItxKind};
pub use log::{LogWriting, SyncOutcome, Zilog};
pub use replay::{Record, ReplayStream, WriteBody};
pub use stats::{LogBlocks, ZilStats};

use ondisk::zil::ZilHeader;

/// Whether the objset with this intent log header has a chain of log blocks, empty or not.
///
/// OpenZFS: module/zfs/zil.c.
#[must_use]
pub fn has_log(header: &ZilHeader) -> bool {
    !header.is_empty()
}

/// Whether the log waits to be replayed before the objset is changed.
#[must_use]
pub fn needs_replay(header: &ZilHeader) -> bool {
    has_log(header) && header.flags & ondisk::zil::zil_flags::REPLAY_NEEDED != 0
}

/// Whether a header belongs to the dataset with this object number. A clone's first objset block is its origin's, with
/// the origin's header in it; that log is the origin's.
#[must_use]
pub fn is_own(header: &ZilHeader, dataset: u64) -> bool {
    header.is_empty() || ondisk::zil::ChainId::of(&header.log).objset == dataset
}
