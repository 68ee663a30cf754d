//! `zio`: turns a logical block into a block pointer and back.
//!
//! What it is: read (copies, checksum, decompression, embedded, gang), write (holes, compression, embedding, checksum,
//! allocation, ditto copies, gang), free, and the allocator of the whole pool with its deferred frees.
//!
//! Guarantees: bytes returned passed their checksum, and of an encrypted dataset their MAC; a block pointer is returned only after
//! its bytes were handed to enough devices, or, where the caller asks for that, before, and then [`BlockStore::wait_writes`]
//! reports their failures; space freed in a txg is not handed out before two further txgs have synced; hostile block pointers
//! give typed errors.
//!
//! What it does not know: objects, datasets (a [`Bookmark`] is carried only for error reports), the cache.

#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]

mod alloc;
mod checkpoint;
mod checks;
mod crypt;
mod dedup;
mod dedup_turns;
mod embedded;
mod error;
mod faults;
mod heal;
mod inject;
mod log;
mod metaslab;
mod packing;
mod pending_references;
mod pending_writes;
mod read;
mod references;
mod remap;
mod removal_frees;
mod scrub;
mod store;
mod types;
mod write;
mod write_behind;

pub use alloc::{
    CheckReference, LoadSpaceMap, MetaSource, MetaslabChange, MetaslabSummary, Release, Share,
    Sharing, Space, slop,
};
pub use checkpoint::CheckpointFrees;
pub use crypt::{BlockKeys, Protection, StoredCrypt};
pub use error::{Bookmark, CorruptReason, ZioError};
pub use faults::{DataFault, FaultyBlocks, InjectedDataFault};
pub use heal::{Healing, Replacement};
pub use packing::{Packed, Packing};
pub use pending_references::{PendingReference, PendingReferences};
pub use removal_frees::VdevRanges;
pub use store::BlockStore;
pub use types::{
    Dedup, FailureGate, Forms, ReadProps, ScrubOutcome, StoreOptions, StoreStats, StoreTuning,
    StoredForm, WriteProps,
};
pub use vdev::IoClass;
