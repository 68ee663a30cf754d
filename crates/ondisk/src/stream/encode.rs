//! Records to bytes, always little-endian.

use super::{
    Begin, CryptParams, MAGIC, NAME_SIZE, Object, ObjectExtent, ObjectRange, RECORD_SIZE, Spill,
    StreamKind, StreamRecord, Write, WriteByRef, WriteEmbedded,
};
use crate::bytes::{put_bytes, put_u8, put_u32, put_u64};

impl StreamRecord {
    /// Encodes the record with a checksum of zero; see [`super::put_record_checksum`].
    ///
    /// # Panics
    /// When a name has more than 255 bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; RECORD_SIZE] {
        let mut out = [0; RECORD_SIZE];
        put_u32(&mut out, 0, self.type_number());
        match self {
            Self::Begin(begin) => put_begin(&mut out, begin),
            Self::Object(object) => put_object(&mut out, object),
            Self::FreeObjects {
                first_object,
                count,
                to_guid,
            } => put_words(&mut out, 8, &[*first_object, *count, *to_guid]),
            Self::Write(write) => put_write(&mut out, write),
            Self::Free(extent) | Self::Redact(extent) => put_extent(&mut out, extent),
            Self::End { checksum, to_guid } => {
                put_words(&mut out, 8, checksum);
                put_u64(&mut out, 40, *to_guid);
            }
            Self::WriteByRef(write) => put_write_by_ref(&mut out, write),
            Self::Spill(spill) => put_spill(&mut out, spill),
            Self::WriteEmbedded(write) => put_write_embedded(&mut out, write),
            Self::ObjectRange(range) => put_object_range(&mut out, range),
        }
        out
    }
}

fn put_words(out: &mut [u8], at: usize, words: &[u64]) {
    for (i, word) in words.iter().enumerate() {
        put_u64(out, at + 8 * i, *word);
    }
}

fn put_crypt(out: &mut [u8], at: usize, crypt: &CryptParams) {
    put_bytes(out, at, &crypt.salt);
    put_bytes(out, at + 8, &crypt.iv);
    put_bytes(out, at + 20, &crypt.mac);
}

fn put_extent(out: &mut [u8], extent: &ObjectExtent) {
    let ObjectExtent {
        object,
        offset,
        length,
        to_guid,
    } = *extent;
    put_words(out, 8, &[object, offset, length, to_guid]);
}

fn put_begin(out: &mut [u8], begin: &Begin) {
    assert!(
        begin.to_name.len() < NAME_SIZE,
        "the name of a stream has {} bytes",
        begin.to_name.len()
    );
    let kind = match begin.kind {
        StreamKind::Substream => 1,
        StreamKind::Compound => 2,
    };
    put_u32(out, 4, begin.payload_len);
    put_words(
        out,
        8,
        &[MAGIC, begin.features << 2 | kind, begin.creation_time],
    );
    put_u32(out, 32, begin.objset_type);
    put_u32(out, 36, begin.flags);
    put_words(out, 40, &[begin.to_guid, begin.from_guid]);
    put_bytes(out, 56, &begin.to_name);
}

fn put_object(out: &mut [u8], object: &Object) {
    put_u64(out, 8, object.object);
    put_u32(out, 16, object.object_type);
    put_u32(out, 20, object.bonus_type);
    put_u32(out, 24, object.block_size);
    put_u32(out, 28, object.bonus_len);
    put_u8(out, 32, object.checksum);
    put_u8(out, 33, object.compression);
    put_u8(out, 34, object.dnode_slots);
    put_u8(out, 35, object.flags);
    put_u32(out, 36, object.raw_bonus_len);
    put_u64(out, 40, object.to_guid);
    put_u8(out, 48, object.indirect_shift);
    put_u8(out, 49, object.levels);
    put_u8(out, 50, object.block_pointers);
    put_u64(out, 56, object.max_block_id);
}

fn put_write(out: &mut [u8], write: &Write) {
    put_u64(out, 8, write.object);
    put_u32(out, 16, write.object_type);
    put_words(out, 24, &[write.offset, write.logical_size, write.to_guid]);
    put_u8(out, 48, write.checksum);
    put_u8(out, 49, write.flags);
    put_u8(out, 50, write.compression);
    put_words(out, 56, &write.key_checksum);
    put_words(out, 88, &[write.key_prop, write.compressed_size]);
    put_crypt(out, 104, &write.crypt);
}

fn put_write_by_ref(out: &mut [u8], write: &WriteByRef) {
    put_words(
        out,
        8,
        &[
            write.object,
            write.offset,
            write.length,
            write.to_guid,
            write.ref_guid,
            write.ref_object,
            write.ref_offset,
        ],
    );
    put_u8(out, 64, write.checksum);
    put_u8(out, 65, write.flags);
    put_words(out, 72, &write.key_checksum);
    put_u64(out, 104, write.key_prop);
}

fn put_spill(out: &mut [u8], spill: &Spill) {
    put_words(out, 8, &[spill.object, spill.length, spill.to_guid]);
    put_u8(out, 32, spill.flags);
    put_u8(out, 33, spill.compression);
    put_u64(out, 40, spill.compressed_size);
    put_crypt(out, 48, &spill.crypt);
    put_u32(out, 84, spill.object_type);
}

fn put_write_embedded(out: &mut [u8], write: &WriteEmbedded) {
    put_words(
        out,
        8,
        &[write.object, write.offset, write.length, write.to_guid],
    );
    put_u8(out, 40, write.compression);
    put_u8(out, 41, write.embedded_kind);
    put_u32(out, 48, write.logical_size);
    put_u32(out, 52, write.physical_size);
}

fn put_object_range(out: &mut [u8], range: &ObjectRange) {
    put_words(out, 8, &[range.first_object, range.slots, range.to_guid]);
    put_crypt(out, 32, &range.crypt);
    put_u8(out, 68, range.flags);
}
