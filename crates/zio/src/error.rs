//! Errors of reading, writing and allocating blocks.

use std::fmt;

use ondisk::BlockPointer;
use vdev::VdevError;

/// The position of a block in the pool. Only for error reports.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Bookmark {
    /// Objset (dataset object number), 0 = meta-objset.
    pub objset: u64,
    /// Object.
    pub object: u64,
    /// Level, -1 = objset block, -2 = intent log.
    pub level: i64,
    /// Block number at that level.
    pub block: u64,
}

impl fmt::Display for Bookmark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "<{}:{}:{}:{}>",
            self.objset, self.object, self.level, self.block
        )
    }
}

/// Why a block is corrupt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CorruptReason {
    /// No copy matches the checksum.
    Checksum,
    /// The checksum matches but the bytes do not decompress to the logical size.
    Decompress,
    /// The checksum matches but the MAC does not: the bytes were changed by one who could change the checksum too, or they
    /// belong to another place or key.
    Authentication,
    /// The block pointer itself is impossible.
    Pointer(&'static str),
    /// A gang header is damaged or its tree does not add up.
    Gang(&'static str),
}

/// What can go wrong with a block.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ZioError {
    /// The block's bytes cannot be had from any copy.
    #[error("block {bookmark} is corrupt: {reason:?}")]
    Corrupt {
        /// The block's position.
        bookmark: Bookmark,
        /// Its pointer.
        pointer: Box<BlockPointer>,
        /// Why.
        reason: CorruptReason,
    },
    /// The devices failed.
    #[error("block {bookmark}: {source}")]
    Device {
        /// The block's position.
        bookmark: Bookmark,
        /// What the device tree said.
        source: VdevError,
    },
    /// The block is encrypted and no key is at hand.
    #[error("block {bookmark} is encrypted")]
    Encrypted {
        /// The block's position.
        bookmark: Bookmark,
    },
    /// The block was encrypted by a big-endian machine.
    #[error("block {bookmark} was encrypted in big-endian byte order, which is not supported")]
    ForeignByteOrder {
        /// The block's position.
        bookmark: Bookmark,
    },
    /// A redacted block: its content was left out on purpose when it was received.
    #[error("block {bookmark} is redacted")]
    Redacted {
        /// The block's position.
        bookmark: Bookmark,
    },
    /// The pool has no room.
    #[error("no space left in the pool for {asize} bytes")]
    NoSpace {
        /// Bytes asked for.
        asize: u64,
    },
    /// A size above 16 MiB, zero, or not a multiple of 512.
    #[error("block size {size} is not valid")]
    BadSize {
        /// The size in bytes.
        size: u64,
    },
    /// The store was opened without an allocator.
    #[error("the pool is read-only")]
    ReadOnly,
    /// A compression or checksum number that this version cannot write.
    #[error("{what} {number} cannot be written")]
    Unsupported {
        /// "compression" or "checksum".
        what: &'static str,
        /// The number.
        number: u8,
    },
    /// A table of references to shared blocks could not be read (reason from above, already reported there).
    #[error("references to a shared block cannot be counted: {reason}")]
    References {
        /// What the table said.
        reason: String,
    },
    /// A space map could not be loaded (reason from above, already reported there).
    #[error("space map of vdev {vdev} metaslab {metaslab} cannot be loaded: {reason}")]
    SpaceMap {
        /// Top-level vdev.
        vdev: u32,
        /// Metaslab index.
        metaslab: u32,
        /// What the loader said.
        reason: String,
    },
}

impl ZioError {
    /// Returns true if the error is about bytes that were read (checksum, pointer), not about the device.
    pub fn is_corruption(&self) -> bool {
        matches!(self, Self::Corrupt { .. })
    }
}

/// Returns the error of a block that is not what its pointer says.
pub(crate) fn corrupt(bp: &BlockPointer, bookmark: Bookmark, reason: CorruptReason) -> ZioError {
    ZioError::Corrupt {
        bookmark,
        pointer: Box::new(*bp),
        reason,
    }
}
