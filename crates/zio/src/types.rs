//! The plain types of the store: options, how to read and write a block, what came of it.

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;

use ondisk::{BlockPointer, ChecksumKind, Compression, ObjectType};
use runtime::IoBuf;
use vdev::{IoClass, VdevError};

use crate::crypt::StoredCrypt;
use crate::error::Bookmark;

/// Facts of the pool that block I/O depends on.
#[derive(Debug, Clone, Default)]
pub struct StoreOptions {
    /// The pool's checksum salt (`org.illumos:checksum_salt`), zeros if it has none yet.
    pub salt: [u8; 32],
    /// Limits.
    pub tuning: StoreTuning,
}

/// Limits and thresholds of a store.
#[derive(Debug, Clone)]
pub struct StoreTuning {
    /// Checksums and compression of more than this many bytes run on the compute pool.
    pub offload_above_bytes: usize,
    /// Most logical bytes between the start of a write and its end at the devices; later writes wait.
    pub writing_bytes_max: u64,
    /// Free ranges kept in memory before metaslabs that were not used lately are unloaded. A range takes about 100 bytes.
    pub free_ranges_max: usize,
    /// Blocks stored in more bytes are written as gangs although there is room, so that gangs can be tested.
    // OpenZFS: module/zfs/metaslab.c, metaslab_force_ganging
    pub gang_above_bytes: u64,
}

impl Default for StoreTuning {
    fn default() -> Self {
        Self {
            offload_above_bytes: runtime::COMPUTE_WORTHWHILE_BYTES,
            writing_bytes_max: 64 << 20,
            free_ranges_max: 2 << 20,
            gang_above_bytes: u64::MAX,
        }
    }
}

/// How to read a block.
#[derive(Debug, Clone, Copy)]
pub struct ReadProps {
    /// Priority.
    pub class: IoClass,
    /// The block's position, for errors.
    pub bookmark: Bookmark,
}

/// A block as it is to be stored, compressed elsewhere, and perhaps encrypted.
#[derive(Debug, Clone)]
pub struct StoredForm {
    /// The compressed bytes.
    pub bytes: IoBuf,
    /// With what they were compressed.
    pub compression: Compression,
    /// Of bytes that are encrypted, or authenticated, already: what the pointer carries for them. Their length is a multiple of
    /// 512 then.
    pub crypt: Option<StoredCrypt>,
}

/// How to write a block. Numbers are the on-disk enumerations.
#[derive(Debug, Clone, Copy)]
pub struct WriteProps {
    /// Object type.
    pub object_type: ObjectType,
    /// Level, 0 = data.
    pub level: u8,
    /// Compression, already resolved (never inherit or on).
    pub compression: Compression,
    /// Compressing is not tried: the bytes are stored as they are, unless all are zeros.
    pub skips_compression: bool,
    /// zstd level code or 0 for the default; ignored for other algorithms.
    pub zstd_level: u8,
    /// Checksum, already resolved (never inherit or on).
    pub checksum: ChecksumKind,
    /// Number of copies, 1 to 3.
    pub copies: u8,
    /// Data of a file of at most this many stored bytes may go to special vdevs; 0 keeps it off them.
    pub special_small_bytes: u64,
    /// Whether an embedded block pointer may be made (feature active and the caller stores the pointer in a dnode or
    /// an indirect block; never for objsets and dnodes).
    pub allow_embedded: bool,
    /// Fill count to store.
    pub fill: u64,
    /// The pointer being replaced. If it was born in the same txg with the same psize and copies, it is overwritten in
    /// place; otherwise it is left alone (the caller frees it).
    pub rewrite: Option<BlockPointer>,
    /// The pointer being replaced, where nothing is written if it is of the same bytes in the same form: then it is what is returned. Not
    /// together with `rewrite` and `dedup`.
    pub unless_equal: Option<BlockPointer>,
    /// Whether an equal block that is stored already is referred to instead, while a txg syncs. The checksum is then a
    /// cryptographic one, or the bytes are compared.
    pub dedup: Option<Dedup>,
    /// Logical birth of a hole is recorded (hole_birth active and the block had a birth before).
    pub hole_birth: bool,
    /// Priority.
    pub class: IoClass,
    /// The block's position, for errors.
    pub bookmark: Bookmark,
}

/// What makes two blocks equal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dedup {
    /// Their checksums, sizes and compressions.
    Trust,
    /// These, and their bytes, which are read and compared.
    Verify,
}

/// Counters of the store.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StoreStats {
    /// Blocks read from devices.
    pub reads: u64,
    /// Blocks written to devices.
    pub writes: u64,
    /// Logical bytes of those writes.
    pub written_logical_bytes: u64,
    /// Physical bytes of those writes (one copy).
    pub written_physical_bytes: u64,
    /// Blocks that became holes, embedded, were rewritten in place, were split into gangs.
    pub holes: u64,
    /// See `holes`.
    pub embedded: u64,
    /// See `holes`.
    pub rewrites: u64,
    /// Blocks that were not written because the bytes that they replace are the same.
    pub unchanged: u64,
    /// See `holes`.
    pub gangs: u64,
    /// Blocks that were not written because equal ones were stored already.
    pub deduplicated: u64,
    /// Blocks no copy of which was good.
    pub corrupt: u64,
}

/// What a scrub of one block found, all copies together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ScrubOutcome {
    /// Bytes of bad copies that were rewritten.
    pub repaired_bytes: u64,
    /// Bad copies (unreadable or wrong).
    pub bad_copies: u32,
    /// Bad copies that could not be rewritten.
    pub unrepaired_copies: u32,
    /// No good copy of some part of the block was found: its data is lost.
    pub lost: bool,
}

/// Asked when no device of a top-level vdev takes a write: true means try again, false means give up.
pub type FailureGate = Rc<dyn Fn(VdevError) -> Pin<Box<dyn Future<Output = bool>>>>;

/// What a pointer inside a gang tree stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum GangPart {
    /// A further gang header.
    Header,
    /// A piece of the data.
    Piece,
}

/// What is known of a block that is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Expect {
    /// It was written.
    Written,
    /// It may have been: other bytes at its place are no damage.
    MaybeWritten,
}

/// A block as it is used and, if that is another, as it is stored.
#[derive(Debug, Clone)]
pub struct Forms {
    /// The logical bytes.
    pub logical: IoBuf,
    /// The stored bytes, exactly psize, of a block that is stored compressed or encrypted.
    pub stored: Option<IoBuf>,
}

impl Forms {
    /// A block with no other form.
    pub(crate) fn plain(logical: IoBuf) -> Self {
        Self {
            logical,
            stored: None,
        }
    }

    /// A block with its stored bytes, which are kept when they are others.
    pub(crate) fn of(bp: &BlockPointer, stored: IoBuf, logical: IoBuf) -> Self {
        let is_other = bp.compression() != Compression::OFF || !stored.is_same(&logical);
        Self {
            logical,
            stored: is_other.then_some(stored),
        }
    }
}
