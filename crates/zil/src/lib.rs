//! The intent log of one objset: what was promised to be durable before its transaction group is.
//!
//! ```text
//!  append --> records in memory, dropped when their group has synced
//!  commit --> block --> block --> block (set aside, not written) : a chain on disk, one flush for all who wait
//!  sync of a group: header points at the oldest block still needed, older ones are freed
//!  import: claim --> replay (pulled by the file system or volume) --> the chain is freed
//! ```
//! Guarantees: when [`Zilog::commit`] returns, the records it speaks for are in a chain on stable storage that a later
//! import finds, or their group has synced. A log that cannot be written is replaced by syncing the group.
//! Does not know what records mean, except how a write is split over blocks, nor who stores them again.
//! Facts: docs/format/10-zil-arc.md; OpenZFS: include/sys/zil.h, module/zfs/zil.c.

#![forbid(unsafe_code)]

mod chain;
mod claim;
mod crowd;
mod error;
mod log;
mod pack;
mod pending;
mod replay;
mod walk;

pub use claim::{Claimed, blocks_to_free, blocks_until, claim};
pub use error::{Result, ZilError};
pub use log::{LogBlocks, SyncOutcome, ZilStats, Zilog};
pub use pending::{Intent, ItxKind};
pub use replay::{Record, ReplayStream, WriteBody};

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
/// the origin's header in it; that log is none of the clone's business.
#[must_use]
pub fn is_own(header: &ZilHeader, dataset: u64) -> bool {
    header.is_empty() || ondisk::zil::ChainId::of(&header.log).objset == dataset
}
