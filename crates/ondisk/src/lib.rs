//! Every byte layout of the ZFS on-disk format, as plain structs with `decode` and `encode`.
//!
//! Guarantees: no I/O, no clocks, no panics on any input, and no allocation larger than the input justifies. What was
//! decoded encodes back to the same bytes wherever the format defines those bytes.
//!
//! What it does not know: checksums and compression of blocks (`codec`), where blocks live on devices (`vdev`, `zio`),
//! and what objects mean together (`dmu` and above). Multi-byte integers are little-endian unless a module says
//! otherwise; blocks of big-endian writers are the caller's to swap.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]
#![deny(clippy::unwrap_used, clippy::indexing_slicing)]
#![cfg_attr(
    test,
    allow(
        clippy::unwrap_used,
        clippy::indexing_slicing,
        reason = "tests may panic"
    )
)]

pub mod acl;
mod block_pointer;
pub mod bookmark;
pub mod bptree;
pub mod brt;
pub mod bytes;
pub mod byteswap;
pub mod crypt;
pub mod ddt;
pub mod deleg;
mod dnode;
pub mod dsl;
mod error;
pub mod feature;
pub mod file_owner;
pub mod history;
mod kinds;
pub mod l2arc;
pub mod label;
pub mod nvlist;
mod object_type;
mod objset;
pub mod pool_version;
pub mod posix_acl;
pub mod rebuild;
pub mod redaction;
pub mod removal;
pub mod sa;
pub mod scan;
pub mod space_map;
pub mod stream;
pub mod txg_times;
mod uberblock;
mod units;
mod words;
pub mod zap;
pub mod zil;
pub mod zil_record;
pub mod znode;
pub mod znode_phys;

pub use block_pointer::{BlockPointer, CryptParams, Dva, EmbeddedKind, NewBlock};
pub use dnode::{
    BONUS_MAX_SMALL, DNODE_MIN_SIZE, DNODE_SHIFT, DnodePhys, block_pointers_for_bonus, dnode_flags,
    dnode_slots, dnode_starts,
};
pub use error::{DecodeError, Result};
pub use kinds::{ChecksumKind, Compression};
pub use nvlist::{NvList, NvValue};
pub use object_type::{ByteswapClass, ObjectType};
pub use objset::{
    OBJSET_SIZE, OBJSET_SIZE_WITHOUT_ACCOUNTING, ObjsetPhys, ObjsetType, objset_flags,
};
pub use uberblock::{Heartbeat, RaidzReflow, ReflowState, Uberblock};
pub use units::{Guid, ObjectId, Txg};

/// Smallest unit of block sizes and DVA offsets, in bytes.
pub const SECTOR: u64 = 512;
/// Largest block the format can describe, in bytes.
pub const MAX_BLOCK_SIZE: u64 = 16 << 20;
/// Largest block without the `large_blocks` feature, in bytes.
pub const OLD_MAX_BLOCK_SIZE: u64 = 128 << 10;
/// The pool and software version of every feature-flag pool.
pub const SPA_VERSION_FEATURES: u64 = pool_version::FEATURES;
/// First transaction group of a new pool.
pub const TXG_INITIAL: Txg = Txg(4);
