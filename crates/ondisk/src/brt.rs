//! Block reference tables: the bonus of a top-level vdev's table, its counts by region, and its entries.
//!
//! The table is an object of one `u16` per region; the entries are a ZAP from the offset of a block's first address to the
//! number of references beyond the first.
// OpenZFS: include/sys/brt_impl.h, brt_vdev_phys_t; module/zfs/brt.c (the entry's eight bytes)

use crate::bytes::{u16_at, u64_at};
use crate::words::word_struct;

word_struct! {
    /// Bonus of the table of one top-level vdev.
    pub struct BrtVdevPhys[56] as "block reference table header" {
        /// Object of the entries.
        entries_object @ 0,
        /// Regions that are counted.
        regions @ 8,
        /// 0 when the counts are little-endian.
        byte_order @ 16,
        /// Entries in all.
        total @ 24,
        /// Bytes of the vdev that one region has.
        region_bytes @ 32,
        /// Deflated bytes of the blocks that have extra references.
        used @ 40,
        /// Deflated bytes that the extra references would take.
        saved @ 48,
    }
}

/// Decodes the counts of entries by region.
#[must_use]
pub fn decode_counts(buf: &[u8]) -> Vec<u16> {
    buf.chunks_exact(2).map(|count| u16_at(count, 0)).collect()
}

/// Encodes the counts of entries by region.
#[must_use]
pub fn encode_counts(counts: &[u16]) -> Vec<u8> {
    counts
        .iter()
        .flat_map(|count| count.to_le_bytes())
        .collect()
}

/// Decodes the value of an entry, the extra references; `None` when it is of another length.
#[must_use]
pub fn decode_entry(value: &[u8]) -> Option<u64> {
    (value.len() == 8).then(|| u64_at(value, 0))
}

/// Encodes the value of an entry.
#[must_use]
pub fn encode_entry(references: u64) -> Vec<u8> {
    references.to_le_bytes().to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_round_trip() {
        let bytes: Vec<u8> = (0..56).collect();
        let header = BrtVdevPhys::decode(&bytes).unwrap();
        assert_eq!(header.encode(), bytes);
        assert!(BrtVdevPhys::decode(&bytes[..55]).is_err());
        let counts = [0, 1, 0xfffe];
        assert_eq!(decode_counts(&encode_counts(&counts)), counts);
        assert_eq!(decode_entry(&encode_entry(77)), Some(77));
        assert_eq!(decode_entry(&[0; 7]), None);
    }
}
