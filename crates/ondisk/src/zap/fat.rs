//! The header block of a fat ZAP, and the pointer table embedded in its second half.

use super::FAT_HEADER;
use crate::bytes::{index, put_u64, slice_at, u64_at};
use crate::{DecodeError, Result};

const MAGIC: u64 = 0x0002_f52a_b2ab;

/// Bits of [`FatHeader::flags`].
pub mod zap_flags {
    /// 48 bits of hash instead of 28.
    pub const HASH64: u64 = 1;
    /// Keys are arrays of 64-bit integers.
    pub const UINT64_KEY: u64 = 2;
    /// The first integer of a key is its hash.
    pub const PRE_HASHED_KEY: u64 = 4;
}

/// Where the table of leaf numbers is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PointerTable {
    /// First block, when external.
    pub block: u64,
    /// Blocks; 0 while the table is embedded in the header.
    pub blocks: u64,
    /// log2 of the number of entries.
    pub shift: u64,
    /// First block of the copy being grown into, or 0.
    pub next_block: u64,
    /// Source blocks already copied.
    pub blocks_copied: u64,
}

/// The header of a fat ZAP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FatHeader {
    pub pointer_table: PointerTable,
    /// Next block number never used.
    pub free_block: u64,
    pub leaf_count: u64,
    pub entry_count: u64,
    /// Not 0.
    pub salt: u64,
    /// Bits of [`super::norm`].
    pub norm_flags: u64,
    /// Bits of [`zap_flags`].
    pub flags: u64,
}

impl FatHeader {
    /// The header of a new fat ZAP with one leaf, in block 1.
    #[must_use]
    pub const fn new(block_shift: u32, salt: u64, norm_flags: u64, flags: u64) -> Self {
        Self {
            pointer_table: PointerTable {
                block: 0,
                blocks: 0,
                shift: Self::embedded_shift(block_shift) as u64,
                next_block: 0,
                blocks_copied: 0,
            },
            free_block: 2,
            leaf_count: 1,
            entry_count: 0,
            salt,
            norm_flags,
            flags,
        }
    }

    /// Decodes a header block.
    ///
    /// # Errors
    /// [`DecodeError`] when the block is not a fat ZAP header, or its table cannot be.
    pub fn decode(block: &[u8]) -> Result<Self> {
        if block.len() < 512 || u64_at(block, 0) != FAT_HEADER {
            return Err(DecodeError::new("fat zap header", 0));
        }
        if u64_at(block, 8) != MAGIC {
            return Err(DecodeError::new("fat zap magic", 8));
        }
        let w = |i: usize| u64_at(block, 8 * i);
        let header = Self {
            pointer_table: PointerTable {
                block: w(2),
                blocks: w(3),
                shift: w(4),
                next_block: w(5),
                blocks_copied: w(6),
            },
            free_block: w(7),
            leaf_count: w(8),
            entry_count: w(9),
            salt: w(10),
            norm_flags: w(11),
            flags: w(12),
        };
        let table = &header.pointer_table;
        // 46 = 48 hash bits less the two OpenZFS never uses for the table.
        let entries_fit = table.shift <= 46
            && if table.blocks == 0 {
                8u64 << table.shift <= block.len() as u64 / 2
            } else {
                table
                    .blocks
                    .checked_mul(block.len() as u64)
                    .is_some_and(|bytes| 8u64 << table.shift <= bytes)
            };
        if !entries_fit {
            return Err(DecodeError::new("fat zap pointer table", 32));
        }
        Ok(header)
    }

    /// Writes the header words; the embedded table is left alone.
    pub fn encode_into(&self, block: &mut [u8]) {
        let t = &self.pointer_table;
        let words = [
            FAT_HEADER,
            MAGIC,
            t.block,
            t.blocks,
            t.shift,
            t.next_block,
            t.blocks_copied,
            self.free_block,
            self.leaf_count,
            self.entry_count,
            self.salt,
            self.norm_flags,
            self.flags,
        ];
        for (i, w) in words.iter().enumerate() {
            put_u64(block, 8 * i, *w);
        }
    }

    /// log2 of the entries the embedded table has in a block of this size.
    #[must_use]
    pub const fn embedded_shift(block_shift: u32) -> u32 {
        block_shift.saturating_sub(4)
    }

    /// Which table entry a hash selects.
    #[must_use]
    pub const fn table_index(&self, hash: u64) -> u64 {
        match self.pointer_table.shift {
            0 => 0,
            s if s >= 64 => hash,
            s => hash >> (64 - s),
        }
    }

    /// Entry `i` of the table embedded in a header block.
    #[must_use]
    pub fn embedded_entry(block: &[u8], i: u64) -> u64 {
        u64_at(
            slice_at(block, block.len() / 2, block.len() / 2),
            index(i).saturating_mul(8),
        )
    }

    /// Sets entry `i` of the table embedded in a header block.
    pub fn set_embedded_entry(block: &mut [u8], i: u64, leaf: u64) {
        let half = block.len() / 2;
        put_u64(block, half.saturating_add(index(i).saturating_mul(8)), leaf);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_and_embedded_table() {
        let mut b = vec![0; 16384];
        let h = FatHeader::new(14, 5, 2, 0);
        h.encode_into(&mut b);
        assert_eq!(h.pointer_table.shift, 10);
        for i in 0..1024 {
            FatHeader::set_embedded_entry(&mut b, i, 1);
        }
        assert_eq!(FatHeader::decode(&b).unwrap(), h);
        assert_eq!(FatHeader::embedded_entry(&b, h.table_index(u64::MAX)), 1);
        assert!(b[8192..].iter().step_by(8).all(|x| *x == 1));
        put_u64(&mut b, 32, 60);
        assert!(FatHeader::decode(&b).is_err());
    }
}
