//! The bptree: destroyed datasets whose blocks are still to be freed, in the order of their destruction.
//!
//! OpenZFS: include/sys/bptree.h, `bptree_phys_t` and `bptree_entry_phys_t`; include/sys/zio.h, `zbookmark_phys_t`.

use crate::bytes::{need, put_bytes, put_u64, slice_at, u64_at};
use crate::words::word_struct;
use crate::{BlockPointer, Result};

word_struct! {
    /// Bonus of the bptree object.
    pub struct BptreePhys[40] as "bptree header" {
        /// First entry that is not finished.
        begin @ 0,
        /// One past the last entry.
        end @ 8,
        /// Deflated bytes still to be freed.
        bytes @ 16,
        /// Stored bytes still to be freed.
        comp @ 24,
        /// Logical bytes still to be freed.
        uncomp @ 32,
    }
}

word_struct! {
    /// A block's position in a traversal.
    pub struct ZbookmarkPhys[32] as "block bookmark" {
        objset @ 0,
        object @ 8,
        /// A signed number: -1 is the root of an object set.
        level @ 16,
        blkid @ 24,
    }
}

/// One destroyed dataset.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct BptreeEntryPhys {
    /// Root of the object set.
    pub bp: BlockPointer,
    /// Blocks born in this txg or before belong to the origin.
    pub birth_txg: u64,
    /// The first block that is not freed; all zero when nothing is.
    pub bookmark: ZbookmarkPhys,
}

impl BptreeEntryPhys {
    /// Encoded bytes.
    pub const SIZE: usize = 168;

    /// Decodes an entry.
    ///
    /// # Errors
    /// Only when `buf` is too short.
    pub fn decode(buf: &[u8]) -> Result<Self> {
        need(buf, Self::SIZE, "bptree entry")?;
        Ok(Self {
            bp: BlockPointer::decode(slice_at(buf, 0, BlockPointer::SIZE))?,
            birth_txg: u64_at(buf, 128),
            bookmark: ZbookmarkPhys::decode(slice_at(buf, 136, ZbookmarkPhys::SIZE))?,
        })
    }

    /// Encodes an entry.
    #[must_use]
    pub fn encode(&self) -> [u8; Self::SIZE] {
        let mut out = [0; Self::SIZE];
        put_bytes(&mut out, 0, &self.bp.encode());
        put_u64(&mut out, 128, self.birth_txg);
        put_bytes(&mut out, 136, &self.bookmark.encode());
        out
    }
}

const _: () = assert!(BptreeEntryPhys::SIZE == BlockPointer::SIZE + 8 + ZbookmarkPhys::SIZE);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_round_trip() {
        let bytes: Vec<u8> = (0..=167).collect();
        let entry = BptreeEntryPhys::decode(&bytes).unwrap();
        assert_eq!(entry.encode().as_slice(), bytes);
        assert_eq!(
            entry.birth_txg,
            u64::from_le_bytes([128, 129, 130, 131, 132, 133, 134, 135])
        );
        assert!(BptreeEntryPhys::decode(&bytes[..167]).is_err());
        assert_eq!(BptreePhys::decode(&bytes).unwrap().encode(), bytes[..40]);
    }
}
