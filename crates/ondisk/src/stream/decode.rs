//! Bytes to records, in both byte orders.

use super::{
    Begin, ByteOrder, CryptParams, MAGIC, NAME_SIZE, Object, ObjectExtent, ObjectRange,
    PAYLOAD_MAX, RECORD_SIZE, Spill, StreamKind, StreamRecord, Write, WriteByRef, WriteEmbedded,
};
use crate::bytes::{bytes_at, slice_at, u8_at};
use crate::{DecodeError, Result};

/// Bits of the version word that say what kind of stream it is; the features stand above them.
const KIND_BITS: u32 = 2;
/// Bits of the features in the version word.
const FEATURE_MASK: u64 = (1 << 56) - 1;

/// Returns the byte order of a stream that begins with this record; `None` when it does not begin a stream.
#[must_use]
pub fn byte_order(record: &[u8; RECORD_SIZE]) -> Option<ByteOrder> {
    [ByteOrder::Little, ByteOrder::Big]
        .into_iter()
        .find(|&order| {
            let fields = Fields { record, order };
            fields.word32(0) == 0 && fields.word(8) == MAGIC
        })
}

struct Fields<'a> {
    record: &'a [u8; RECORD_SIZE],
    order: ByteOrder,
}

impl Fields<'_> {
    fn word(&self, at: usize) -> u64 {
        let raw: [u8; 8] = bytes_at(self.record, at);
        match self.order {
            ByteOrder::Little => u64::from_le_bytes(raw),
            ByteOrder::Big => u64::from_be_bytes(raw),
        }
    }

    fn word32(&self, at: usize) -> u32 {
        let raw: [u8; 4] = bytes_at(self.record, at);
        match self.order {
            ByteOrder::Little => u32::from_le_bytes(raw),
            ByteOrder::Big => u32::from_be_bytes(raw),
        }
    }

    fn byte(&self, at: usize) -> u8 {
        u8_at(self.record, at)
    }

    fn words(&self, at: usize) -> [u64; 4] {
        std::array::from_fn(|i| self.word(at + 8 * i))
    }

    /// Salt, IV and MAC are bytes, never swapped, and stand one behind the other.
    fn crypt(&self, at: usize) -> CryptParams {
        CryptParams {
            salt: bytes_at(self.record, at),
            iv: bytes_at(self.record, at + 8),
            mac: bytes_at(self.record, at + 20),
        }
    }

    fn extent(&self) -> ObjectExtent {
        ObjectExtent {
            object: self.word(8),
            offset: self.word(16),
            length: self.word(24),
            to_guid: self.word(32),
        }
    }
}

impl StreamRecord {
    /// Decodes a record of a stream in byte order `order`.
    ///
    /// # Errors
    /// [`DecodeError`] for an unknown type, a BEGIN without magic number or with a name that does not end, and a payload that would be
    /// larger than any block.
    pub fn decode(record: &[u8; RECORD_SIZE], order: ByteOrder) -> Result<Self> {
        let fields = Fields { record, order };
        let decoded = match fields.word32(0) {
            0 => Self::Begin(begin(&fields)?),
            1 => Self::Object(object(&fields)),
            2 => Self::FreeObjects {
                first_object: fields.word(8),
                count: fields.word(16),
                to_guid: fields.word(24),
            },
            3 => Self::Write(write(&fields)),
            4 => Self::Free(fields.extent()),
            5 => Self::End {
                checksum: fields.words(8),
                to_guid: fields.word(40),
            },
            6 => Self::WriteByRef(write_by_ref(&fields)),
            7 => Self::Spill(spill(&fields)),
            8 => Self::WriteEmbedded(write_embedded(&fields)),
            9 => Self::ObjectRange(ObjectRange {
                first_object: fields.word(8),
                slots: fields.word(16),
                to_guid: fields.word(24),
                crypt: fields.crypt(32),
                flags: fields.byte(68),
            }),
            10 => Self::Redact(fields.extent()),
            _ => return Err(DecodeError::new("stream record type", 0)),
        };
        let is_begin = matches!(decoded, Self::Begin(_));
        if !is_begin && decoded.payload_len() > PAYLOAD_MAX {
            return Err(DecodeError::new("stream record payload length", 4));
        }
        Ok(decoded)
    }
}

fn begin(fields: &Fields<'_>) -> Result<Begin> {
    if fields.word(8) != MAGIC {
        return Err(DecodeError::new("stream magic", 8));
    }
    let version = fields.word(16);
    let kind = match version & ((1 << KIND_BITS) - 1) {
        1 => StreamKind::Substream,
        2 => StreamKind::Compound,
        _ => return Err(DecodeError::new("stream header type", 16)),
    };
    let name = slice_at(fields.record, 56, NAME_SIZE);
    let Some(end) = name.iter().position(|b| *b == 0) else {
        return Err(DecodeError::new("stream name", 56));
    };
    Ok(Begin {
        kind,
        features: (version >> KIND_BITS) & FEATURE_MASK,
        creation_time: fields.word(24),
        objset_type: fields.word32(32),
        flags: fields.word32(36),
        to_guid: fields.word(40),
        from_guid: fields.word(48),
        to_name: slice_at(name, 0, end).to_vec(),
        payload_len: fields.word32(4),
    })
}

fn object(fields: &Fields<'_>) -> Object {
    Object {
        object: fields.word(8),
        object_type: fields.word32(16),
        bonus_type: fields.word32(20),
        block_size: fields.word32(24),
        bonus_len: fields.word32(28),
        checksum: fields.byte(32),
        compression: fields.byte(33),
        dnode_slots: fields.byte(34),
        flags: fields.byte(35),
        raw_bonus_len: fields.word32(36),
        to_guid: fields.word(40),
        indirect_shift: fields.byte(48),
        levels: fields.byte(49),
        block_pointers: fields.byte(50),
        max_block_id: fields.word(56),
    }
}

fn write(fields: &Fields<'_>) -> Write {
    Write {
        object: fields.word(8),
        object_type: fields.word32(16),
        offset: fields.word(24),
        logical_size: fields.word(32),
        to_guid: fields.word(40),
        checksum: fields.byte(48),
        flags: fields.byte(49),
        compression: fields.byte(50),
        key_checksum: fields.words(56),
        key_prop: fields.word(88),
        compressed_size: fields.word(96),
        crypt: fields.crypt(104),
    }
}

fn write_by_ref(fields: &Fields<'_>) -> WriteByRef {
    WriteByRef {
        object: fields.word(8),
        offset: fields.word(16),
        length: fields.word(24),
        to_guid: fields.word(32),
        ref_guid: fields.word(40),
        ref_object: fields.word(48),
        ref_offset: fields.word(56),
        checksum: fields.byte(64),
        flags: fields.byte(65),
        key_checksum: fields.words(72),
        key_prop: fields.word(104),
    }
}

fn write_embedded(fields: &Fields<'_>) -> WriteEmbedded {
    WriteEmbedded {
        object: fields.word(8),
        offset: fields.word(16),
        length: fields.word(24),
        to_guid: fields.word(32),
        compression: fields.byte(40),
        embedded_kind: fields.byte(41),
        logical_size: fields.word32(48),
        physical_size: fields.word32(52),
    }
}

fn spill(fields: &Fields<'_>) -> Spill {
    Spill {
        object: fields.word(8),
        length: fields.word(16),
        to_guid: fields.word(24),
        flags: fields.byte(32),
        compression: fields.byte(33),
        compressed_size: fields.word(40),
        crypt: fields.crypt(48),
        object_type: fields.word32(84),
    }
}
