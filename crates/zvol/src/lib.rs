//! A block volume in a dataset: a flat array of bytes that is read, written, flushed and given back.
//!
//! On disk a volume is two objects: object 1 holds the bytes in blocks of `volblocksize`, object 2 is a ZAP whose entry
//! `size` is the size in bytes (docs/format/09-zpl-sa-zvol.md, section 9). Blocks never written, or discarded, are holes and
//! read as zeros.
//!
//! Guarantees: a read sees all of an earlier write or none of it, whichever ranges overlap (up to [`CHUNK_BYTES`] at a time);
//! what was written with [`Stability::Stable`], or before a [`Volume::flush`], survives a power cut; a volume of a snapshot
//! refuses changes. It does not know SCSI, NBD or sockets.

#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]

mod copy;
mod create;
mod error;
mod reservation;
mod rewrite;
mod volume;

pub use create::{check_size, create};
pub use error::{VolumeError, VolumeResult};
pub use reservation::{Redundancy, block_size_for, reservation_for};
pub use volume::{Allocation, CHUNK_BYTES, Stability, Volume, VolumeOptions};

use ondisk::ObjectId;

/// The object that holds the bytes.
pub(crate) const DATA: ObjectId = ObjectId(1);
/// The ZAP that holds the size.
pub(crate) const PROPERTIES: ObjectId = ObjectId(2);
/// The only entry of the ZAP: the size in bytes.
pub(crate) const SIZE_KEY: &str = "size";
/// Block size of a volume when none is asked for, in bytes. OpenZFS: include/sys/zvol.h, `ZVOL_DEFAULT_BLOCKSIZE`.
pub const BLOCK_SIZE_DEFAULT: u64 = 16 << 10;
