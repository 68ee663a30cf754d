//! `zio`: turns a logical block into a block pointer and back.
//!
//! What it is: read (copies, checksum, decompression, embedded, gang), write (holes, compression, embedding, checksum,
//! allocation, ditto copies, gang), free, and the allocator of the whole pool with its deferred frees.
//!
//! Guarantees: bytes returned passed their checksum; a block pointer is returned only after its bytes were handed to
//! enough devices, or, where the caller asks for that, before, and then [`BlockStore::settle`] answers for them; space freed in a txg is not handed out before two further txgs have synced; hostile block pointers
//! give typed errors.
//!
//! What it does not know: objects, datasets (a [`Bookmark`] is carried only for error reports), the cache.

#![forbid(unsafe_code)]

mod alloc;
mod checks;
mod embedded;
mod error;
mod kept;
mod later;
mod log;
mod metaslab;
mod moved;
mod ranges;
mod read;
mod scrub;
mod store;
mod write;

pub use alloc::{LoadSpaceMap, MetaSource, MetaslabChange, MetaslabSummary, Release, Space};
pub use error::{Bookmark, CorruptReason, ZioError};
pub use kept::KeptRanges;
pub use moved::VdevRanges;
pub use read::Forms;
pub use store::{
    BlockStore, FailureGate, ReadProps, ScrubOutcome, StoreOptions, StoreStats, StoreTuning,
    WriteProps,
};
pub use vdev::IoClass;
