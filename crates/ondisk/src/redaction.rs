//! Redaction lists: the blocks that a redacted stream leaves out, in an object that a bookmark names.
//!
//! ```text
//!   bonus, or the spill block where the guids do not fit:   header | guids of the redaction snapshots
//!   data:                                                   entries, by object and block
//! ```
//!
//! OpenZFS: include/sys/dsl_bookmark.h, `redaction_list_phys_t` and `redact_block_phys_t`.

use crate::bytes::{need, put_u64, u64_at};
use crate::words::word_struct;
use crate::{DecodeError, Result};

/// Bytes of the header, without the guids.
pub const HEADER_BYTES: usize = 32;
/// Most blocks of one entry.
pub const ENTRY_BLOCKS_MAX: u64 = 1 << COUNT_BITS;
/// Bits of the number of blocks in [`RedactedBlocks::size_and_count`]; above it stands the size of a block in sectors.
const COUNT_BITS: u32 = 48;

/// How far a list has come, and the snapshots that it was made from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RedactionHeader {
    /// All blocks before this block of this object are in the list; both are [`u64::MAX`] once it is complete.
    pub last_object: u64,
    pub last_block: u64,
    /// Number of entries.
    pub entries: u64,
    /// Guids of the redaction snapshots.
    pub snapshots: Vec<u64>,
}

impl RedactionHeader {
    /// Decodes a bonus or spill block, which may be longer.
    ///
    /// # Errors
    /// When it is too short for the guids it tells of.
    pub fn decode(buf: &[u8]) -> Result<Self> {
        const WHAT: &str = "redaction list header";
        need(buf, HEADER_BYTES, WHAT)?;
        let count = u64_at(buf, 24);
        let room = (buf.len() - HEADER_BYTES) / 8;
        let count = usize::try_from(count)
            .ok()
            .filter(|count| *count <= room)
            .ok_or(DecodeError::new(WHAT, 24))?;
        Ok(Self {
            last_object: u64_at(buf, 0),
            last_block: u64_at(buf, 8),
            entries: u64_at(buf, 16),
            snapshots: (0..count)
                .map(|at| u64_at(buf, HEADER_BYTES + 8 * at))
                .collect(),
        })
    }

    /// Encodes header and guids.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![0; HEADER_BYTES + 8 * self.snapshots.len()];
        put_u64(&mut out, 0, self.last_object);
        put_u64(&mut out, 8, self.last_block);
        put_u64(&mut out, 16, self.entries);
        put_u64(&mut out, 24, self.snapshots.len() as u64);
        for (at, guid) in self.snapshots.iter().enumerate() {
            put_u64(&mut out, HEADER_BYTES + 8 * at, *guid);
        }
        out
    }

    /// Whether every block has been looked at: a list that is not complete must not be used.
    #[must_use]
    pub const fn is_complete(&self) -> bool {
        self.last_object == u64::MAX && self.last_block == u64::MAX
    }
}

word_struct! {
    /// Blocks of one object that follow each other.
    pub struct RedactedBlocks[32] as "redacted blocks" {
        object @ 0,
        /// The first one.
        block @ 8,
        /// Sectors of a block in the upper 16 bits, the number of blocks less one below.
        size_and_count @ 16,
    }
}

impl RedactedBlocks {
    /// `count` blocks (1 to [`ENTRY_BLOCKS_MAX`]) of `block_bytes` each (a multiple of 512, at most 16 MiB).
    ///
    /// # Panics
    /// For other counts and sizes.
    #[must_use]
    pub fn new(object: u64, block: u64, count: u64, block_bytes: u32) -> Self {
        assert!(
            (1..=ENTRY_BLOCKS_MAX).contains(&count),
            "an entry has {count} blocks"
        );
        assert!(
            block_bytes.is_multiple_of(512) && u64::from(block_bytes) <= crate::MAX_BLOCK_SIZE,
            "a block has {block_bytes} bytes"
        );
        let sectors = u64::from(block_bytes / 512);
        Self {
            object,
            block,
            size_and_count: sectors << COUNT_BITS | (count - 1),
        }
    }

    /// Number of blocks.
    #[must_use]
    pub const fn count(&self) -> u64 {
        (self.size_and_count & (ENTRY_BLOCKS_MAX - 1)) + 1
    }

    /// Bytes of a block.
    #[must_use]
    pub const fn block_bytes(&self) -> u64 {
        (self.size_and_count >> COUNT_BITS) * crate::SECTOR
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_round_trips_and_believes_no_count() {
        let header = RedactionHeader {
            last_object: 7,
            last_block: 9,
            entries: 3,
            snapshots: vec![1, u64::MAX],
        };
        let mut bytes = header.encode();
        assert_eq!(bytes.len(), 48);
        assert_eq!(RedactionHeader::decode(&bytes), Ok(header.clone()));
        assert!(!header.is_complete());
        // A spill block is padded.
        bytes.resize(512, 0);
        assert_eq!(RedactionHeader::decode(&bytes), Ok(header));
        for count in [61, u64::MAX, 1 << 61] {
            put_u64(&mut bytes, 24, count);
            assert!(RedactionHeader::decode(&bytes).is_err(), "{count}");
        }
        assert!(RedactionHeader::decode(&bytes[..31]).is_err());
    }

    #[test]
    fn an_entry_has_size_and_count_in_one_word() {
        let blocks = RedactedBlocks::new(130, 5, 3, 128 << 10);
        let bytes = blocks.encode();
        assert_eq!(u64_at(&bytes, 16), 0x0100_0000_0000_0002);
        assert_eq!(RedactedBlocks::decode(&bytes), Ok(blocks));
        assert_eq!((blocks.count(), blocks.block_bytes()), (3, 128 << 10));
        let most = RedactedBlocks::new(1, 0, ENTRY_BLOCKS_MAX, 16 << 20);
        assert_eq!(
            (most.count(), most.block_bytes()),
            (ENTRY_BLOCKS_MAX, 16 << 20)
        );
    }
}
