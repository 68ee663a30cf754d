//! Send streams: what `zfs send` writes and `zfs receive` reads.
//!
//! A stream is a sequence of records of 312 bytes, each with its payload behind it. It is written in its sender's byte order, which
//! the magic number of its first record tells.
//!
//! ```text
//!   0 type (u32) | 4 payload length (u32; BEGIN only) | 8 body ... | 280 checksum (4 x u64; all but BEGIN) | 312 payload
//! ```
//!
//! The checksum of a record is the fletcher4 sum of everything since its BEGIN, up to the checksum itself; computing it is the
//! caller's, as is what the records mean together. OpenZFS: include/sys/zfs_ioctl.h, dmu_replay_record_t.

mod decode;
mod encode;
#[cfg(test)]
mod tests;

use crate::{ObjectType, bytes};

pub use decode::byte_order;

/// Bytes of a record, without its payload.
pub const RECORD_SIZE: usize = 312;
/// Where the running checksum stands in every record but BEGIN: four words.
pub const CHECKSUM_OFFSET: usize = 280;
/// Identifies a stream, and its byte order.
pub const MAGIC: u64 = 0x0002_f5ba_cbac;
/// Bytes of the name in a BEGIN record, with its NUL.
pub const NAME_SIZE: usize = 256;
/// The most bytes a payload other than that of BEGIN may have: the largest block.
pub const PAYLOAD_MAX: u64 = crate::MAX_BLOCK_SIZE;
/// The length of a FREE that frees everything from its offset on, and the count of such a FREEOBJECTS.
pub const TO_THE_END: u64 = u64::MAX;

/// Byte order of a stream.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ByteOrder {
    #[default]
    Little,
    Big,
}

/// Bits of [`Begin::features`].
// OpenZFS: include/sys/zfs_ioctl.h, DMU_BACKUP_FEATURE_*
pub mod stream_feature {
    /// Blocks refer to earlier ones of the stream; no longer sent or received.
    pub const DEDUP: u64 = 1 << 0;
    /// The dedup property goes along.
    pub const DEDUP_PROPS: u64 = 1 << 1;
    /// Spill blocks of system attributes.
    pub const SA_SPILL: u64 = 1 << 2;
    /// Records of data embedded in block pointers.
    pub const EMBED_DATA: u64 = 1 << 16;
    /// Compressed or embedded data may be lz4.
    pub const LZ4: u64 = 1 << 17;
    /// Blocks above 128 KiB.
    pub const LARGE_BLOCKS: u64 = 1 << 19;
    /// Goes on where an earlier stream ended.
    pub const RESUMING: u64 = 1 << 20;
    /// Parts were left out on purpose.
    pub const REDACTED: u64 = 1 << 21;
    /// Blocks are compressed as on disk.
    pub const COMPRESSED: u64 = 1 << 22;
    /// Dnodes of several slots.
    pub const LARGE_DNODE: u64 = 1 << 23;
    /// Blocks are as on disk, encrypted ones too.
    pub const RAW: u64 = 1 << 24;
    /// Compressed or embedded data may be zstd.
    pub const ZSTD: u64 = 1 << 25;
    /// Holds of the snapshots go along.
    pub const HOLDS: u64 = 1 << 26;
    /// An incremental stream may replace 128 KiB blocks by large ones.
    pub const SWITCH_TO_LARGE_BLOCKS: u64 = 1 << 27;
    /// File names above 255 bytes.
    pub const LONG_NAMES: u64 = 1 << 28;
    /// Micro ZAPs above 128 KiB.
    pub const LARGE_MICROZAP: u64 = 1 << 29;

    /// All of the above.
    pub const KNOWN: u64 = DEDUP
        | DEDUP_PROPS
        | SA_SPILL
        | EMBED_DATA
        | LZ4
        | LARGE_BLOCKS
        | RESUMING
        | REDACTED
        | COMPRESSED
        | LARGE_DNODE
        | RAW
        | ZSTD
        | HOLDS
        | SWITCH_TO_LARGE_BLOCKS
        | LONG_NAMES
        | LARGE_MICROZAP;
}

/// Bits of [`Begin::flags`].
pub mod begin_flags {
    /// From a clone's origin: the snapshot stands in another dataset.
    pub const CLONE: u32 = 1;
    /// File names were looked up without regard to case.
    pub const CASE_INSENSITIVE: u32 = 2;
    /// The stream frees what the snapshot does not have, exactly.
    pub const FREE_RECORDS: u32 = 4;
    /// Objects say whether they have a spill block.
    pub const SPILL_BLOCK: u32 = 8;
}

/// Bits of the flags of records.
pub mod record_flags {
    /// The block's checksum is one that deduplication may trust.
    pub const CHECKSUM_CAN_DEDUP: u8 = 1;
    /// The raw block was written in the other byte order.
    pub const RAW_BYTESWAP: u8 = 2;
    /// Of an OBJECT: it has a spill block. Of a SPILL: it did not change.
    pub const SPILL: u8 = 4;
}

/// What kind of stream a BEGIN opens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamKind {
    /// One snapshot.
    Substream,
    /// A package: a list of datasets and snapshots as payload, then a substream for each, then an END.
    Compound,
}

/// The first record of a stream, and of each substream of a package.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Begin {
    pub kind: StreamKind,
    /// Bits of [`stream_feature`].
    pub features: u64,
    /// Of the snapshot, in seconds since 1970.
    pub creation_time: u64,
    /// An [`crate::ObjsetType`].
    pub objset_type: u32,
    /// Bits of [`begin_flags`].
    pub flags: u32,
    pub to_guid: u64,
    /// Guid of the snapshot or bookmark the stream counts from; 0 for a full stream.
    pub from_guid: u64,
    /// Name of the snapshot at the sender, at most 255 bytes without NUL.
    pub to_name: Vec<u8>,
    /// Bytes of the list of names and values that follows; 0 without one.
    pub payload_len: u32,
}

/// An object: its shape, with its bonus buffer as payload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Object {
    pub object: u64,
    pub object_type: u32,
    pub bonus_type: u32,
    /// Bytes of a data block.
    pub block_size: u32,
    /// Bytes of the bonus buffer in use.
    pub bonus_len: u32,
    pub checksum: u8,
    pub compression: u8,
    /// 512-byte slots of the dnode; 0 from senders that knew only one.
    pub dnode_slots: u8,
    /// Bits of [`record_flags`].
    pub flags: u8,
    /// Of a raw stream: bytes of the whole bonus area, encrypted.
    pub raw_bonus_len: u32,
    pub to_guid: u64,
    /// Of a raw stream: log2 of the size of indirect blocks.
    pub indirect_shift: u8,
    /// Of a raw stream.
    pub levels: u8,
    /// Of a raw stream: number of block pointers of the dnode.
    pub block_pointers: u8,
    /// Of a raw stream: the largest block number in use.
    pub max_block_id: u64,
}

/// The numbers by which an encrypted block is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CryptParams {
    pub salt: [u8; 8],
    pub iv: [u8; 12],
    pub mac: [u8; 16],
}

/// A data block, with its bytes as payload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Write {
    pub object: u64,
    pub object_type: u32,
    pub offset: u64,
    /// Bytes of the block, uncompressed.
    pub logical_size: u64,
    pub to_guid: u64,
    /// Function of [`Self::key_checksum`].
    pub checksum: u8,
    /// Bits of [`record_flags`].
    pub flags: u8,
    /// 0 where the payload is not compressed.
    pub compression: u8,
    /// The block's checksum at the sender.
    pub key_checksum: [u64; 4],
    /// Sizes and compression of the block at the sender, as deduplication tables store them.
    pub key_prop: u64,
    /// Bytes of the payload where it is compressed, else 0.
    pub compressed_size: u64,
    /// Of a raw stream.
    pub crypt: CryptParams,
}

/// A data block that equals one sent before it; dedup streams only.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WriteByRef {
    pub object: u64,
    pub offset: u64,
    /// Bytes.
    pub length: u64,
    pub to_guid: u64,
    /// Snapshot, object and offset of the earlier block.
    pub ref_guid: u64,
    pub ref_object: u64,
    pub ref_offset: u64,
    pub checksum: u8,
    pub flags: u8,
    pub key_checksum: [u64; 4],
    pub key_prop: u64,
}

/// A block whose data stood inside its block pointer, with these bytes as payload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WriteEmbedded {
    pub object: u64,
    pub offset: u64,
    /// Bytes of the block.
    pub length: u64,
    pub to_guid: u64,
    pub compression: u8,
    /// An [`crate::EmbeddedKind`].
    pub embedded_kind: u8,
    /// Bytes uncompressed.
    pub logical_size: u32,
    /// Bytes as embedded, before rounding up to eight.
    pub physical_size: u32,
}

/// The spill block of an object's system attributes, with its bytes as payload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Spill {
    pub object: u64,
    /// Bytes, uncompressed.
    pub length: u64,
    pub to_guid: u64,
    /// Bits of [`record_flags`].
    pub flags: u8,
    pub compression: u8,
    /// Bytes of the payload where it is compressed, else 0.
    pub compressed_size: u64,
    /// Of a raw stream.
    pub crypt: CryptParams,
    pub object_type: u32,
}

/// Of a raw stream: what opens the block of dnodes that the following objects stand in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectRange {
    pub first_object: u64,
    pub slots: u64,
    pub to_guid: u64,
    pub crypt: CryptParams,
    /// Bits of [`record_flags`].
    pub flags: u8,
}

/// A range of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ObjectExtent {
    pub object: u64,
    pub offset: u64,
    /// Bytes, or [`TO_THE_END`].
    pub length: u64,
    pub to_guid: u64,
}

/// A record of a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StreamRecord {
    Begin(Begin),
    Object(Object),
    /// Objects that do not exist in the snapshot.
    FreeObjects {
        first_object: u64,
        /// Their number, or [`TO_THE_END`].
        count: u64,
        to_guid: u64,
    },
    Write(Write),
    /// A hole.
    Free(ObjectExtent),
    /// The last record of a substream: its running checksum, once more.
    End {
        checksum: [u64; 4],
        to_guid: u64,
    },
    WriteByRef(WriteByRef),
    Spill(Spill),
    WriteEmbedded(WriteEmbedded),
    ObjectRange(ObjectRange),
    /// A range that was left out on purpose.
    Redact(ObjectExtent),
}

impl StreamRecord {
    /// The number of the record's type.
    #[must_use]
    pub const fn type_number(&self) -> u32 {
        match self {
            Self::Begin(_) => 0,
            Self::Object(_) => 1,
            Self::FreeObjects { .. } => 2,
            Self::Write(_) => 3,
            Self::Free(_) => 4,
            Self::End { .. } => 5,
            Self::WriteByRef(_) => 6,
            Self::Spill(_) => 7,
            Self::WriteEmbedded(_) => 8,
            Self::ObjectRange(_) => 9,
            Self::Redact(_) => 10,
        }
    }

    /// Bytes of the payload that follows the record.
    #[must_use]
    pub fn payload_len(&self) -> u64 {
        match self {
            Self::Begin(begin) => u64::from(begin.payload_len),
            Self::Object(object) if object.raw_bonus_len != 0 => u64::from(object.raw_bonus_len),
            Self::Object(object) => u64::from(object.bonus_len).next_multiple_of(8),
            Self::Write(write) if write.compression != 0 => write.compressed_size,
            Self::Write(write) => write.logical_size,
            Self::Spill(spill) if spill.compressed_size != 0 => spill.compressed_size,
            Self::Spill(spill) => spill.length,
            Self::WriteEmbedded(embedded) => u64::from(embedded.physical_size).next_multiple_of(8),
            Self::FreeObjects { .. }
            | Self::Free(_)
            | Self::End { .. }
            | Self::WriteByRef(_)
            | Self::ObjectRange(_)
            | Self::Redact(_) => 0,
        }
    }

    /// What the payload is swapped as, in a stream of the other byte order; `None` when its bytes stay as they are: compressed blocks
    /// are never of metadata there, encrypted ones lie in their writer's order, and embedded ones are swapped once they are expanded.
    // OpenZFS: module/zfs/dmu_recv.c, receive_object, flush_write_batch_impl, receive_spill
    #[must_use]
    pub fn payload_type(&self) -> Option<ObjectType> {
        let number = match self {
            Self::Object(object) if object.raw_bonus_len == 0 => object.bonus_type,
            Self::Write(write) if write.compression == 0 => write.object_type,
            Self::Spill(spill) if spill.compressed_size == 0 => spill.object_type,
            _ => return None,
        };
        u8::try_from(number).ok().map(ObjectType)
    }

    /// The guid of the snapshot the record belongs to.
    #[must_use]
    pub const fn to_guid(&self) -> u64 {
        match self {
            Self::Begin(begin) => begin.to_guid,
            Self::Object(object) => object.to_guid,
            Self::FreeObjects { to_guid, .. } | Self::End { to_guid, .. } => *to_guid,
            Self::Write(write) => write.to_guid,
            Self::Free(extent) | Self::Redact(extent) => extent.to_guid,
            Self::WriteByRef(write) => write.to_guid,
            Self::Spill(spill) => spill.to_guid,
            Self::WriteEmbedded(write) => write.to_guid,
            Self::ObjectRange(range) => range.to_guid,
        }
    }
}

/// Reads the running checksum of a record of [`RECORD_SIZE`] bytes.
#[must_use]
pub fn record_checksum(record: &[u8; RECORD_SIZE], order: ByteOrder) -> [u64; 4] {
    std::array::from_fn(|word| {
        let raw: [u8; 8] = bytes::bytes_at(record, CHECKSUM_OFFSET + 8 * word);
        match order {
            ByteOrder::Little => u64::from_le_bytes(raw),
            ByteOrder::Big => u64::from_be_bytes(raw),
        }
    })
}

/// Stores the running checksum in a little-endian record.
pub fn put_record_checksum(record: &mut [u8; RECORD_SIZE], checksum: [u64; 4]) {
    for (word, value) in checksum.into_iter().enumerate() {
        bytes::put_u64(record, CHECKSUM_OFFSET + 8 * word, value);
    }
}
