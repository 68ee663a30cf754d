//! Errors of the object layer: one variant per cause, carrying the place.

use ondisk::{ObjectId, Txg};

/// Why an operation on objects failed.
///
/// The caller's mistakes (`NoSuchObject`, `ObjectExists`, `Invalid`, `TooLarge`, the `Zap*` family) are kept apart from
/// broken disks (`Read`, `Write`) and broken bytes (`Corrupt`, `Decode`).
#[derive(Debug, Clone, thiserror::Error)]
pub enum DmuError {
    /// The object number is free, out of range, or inside another (large) dnode.
    #[error("object {object} does not exist")]
    NoSuchObject {
        /// The object asked for.
        object: ObjectId,
    },
    /// `allocate_at` found the slot taken.
    #[error("object {object} already exists")]
    ObjectExists {
        /// The object asked for.
        object: ObjectId,
    },
    /// An argument breaks a documented precondition.
    #[error("invalid argument: {what}")]
    Invalid {
        /// Which rule was broken.
        what: &'static str,
    },
    /// An offset, a bonus or a value is beyond what the format can hold.
    #[error("too large: {what}")]
    TooLarge {
        /// Which limit was passed.
        what: &'static str,
    },
    /// The objset was opened read-only.
    #[error("the object set is read-only")]
    ReadOnly,
    /// The pool has no space left for the transaction.
    #[error("out of space")]
    NoSpace,
    /// A ZAP has no such key.
    #[error("no such entry in ZAP object {object}")]
    ZapNoEntry {
        /// The ZAP.
        object: ObjectId,
    },
    /// A ZAP already has the key.
    #[error("entry already exists in ZAP object {object}")]
    ZapEntryExists {
        /// The ZAP.
        object: ObjectId,
    },
    /// A key or a value is too long for a ZAP, or the ZAP cannot grow any more.
    #[error("ZAP object {object}: {what}")]
    ZapLimit {
        /// The ZAP.
        object: ObjectId,
        /// Which limit.
        what: &'static str,
    },
    /// The stored value has another integer width or count than was asked for.
    #[error("ZAP object {object} holds a value of another shape")]
    ZapShape {
        /// The ZAP.
        object: ObjectId,
    },
    /// Bytes read from the pool break a rule of the format.
    #[error("corrupt {what} (objset {objset}, object {object}, level {level}, block {block})")]
    Corrupt {
        /// The object set (dataset object number, 0 for the meta-objset).
        objset: u64,
        /// The object; negative numbers are the accounting objects.
        object: ObjectId,
        /// Level of the block.
        level: u8,
        /// Number of the block in its level.
        block: u64,
        /// What was found wrong.
        what: &'static str,
    },
    /// A decoder refused bytes read from the pool.
    #[error("cannot decode {what}: {source}")]
    Decode {
        /// The structure.
        what: &'static str,
        /// The decoder's error.
        source: ondisk::DecodeError,
    },
    /// A block could not be read.
    #[error("cannot read objset {objset} object {object} level {level} block {block}: {source}")]
    Read {
        /// The object set.
        objset: u64,
        /// The object.
        object: ObjectId,
        /// Level of the block.
        level: u8,
        /// Number of the block in its level.
        block: u64,
        /// Why.
        source: std::sync::Arc<zio::ZioError>,
    },
    /// A block could not be written.
    #[error("cannot write a block of objset {objset}: {source}")]
    Write {
        /// The object set.
        objset: u64,
        /// Why.
        source: std::sync::Arc<zio::ZioError>,
    },
    /// The transaction clock was stopped (export, or the pool is suspended).
    #[error("the pool no longer takes transactions: {reason}")]
    Stopped {
        /// Why it was stopped.
        reason: &'static str,
    },
    /// The pool is suspended and set to refuse changes meanwhile.
    #[error("pool I/O is currently suspended")]
    Suspended,
    /// A transaction group older than the one asked for was named.
    #[error("transaction group {txg} is not one that can be changed now")]
    WrongTxg {
        /// The txg.
        txg: Txg,
    },
}

impl DmuError {
    /// Whether the error is "no such object" or "no such entry".
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::NoSuchObject { .. } | Self::ZapNoEntry { .. })
    }

    /// Whether the error stands for missing space.
    #[must_use]
    pub fn is_no_space(&self) -> bool {
        matches!(self, Self::NoSpace)
    }
}

/// Result of the object layer.
pub type Result<T, E = DmuError> = std::result::Result<T, E>;
