//! What a cache device holds: a header, and a chain of log blocks that say which block lies where.
//!
//! ```text
//!   | labels 0, 1, boot: 4 MiB | header | blocks .. log block | blocks .. log block | ... | labels 2, 3 |
//!                                        ^ start                                          ^ end
//! ```
//!
//! The device is written round and round. The header points to the newest two log blocks; each log block points to the one
//! two before it. Nothing here is trusted: blocks read from a cache device are checked like any other.

// OpenZFS: include/sys/arc_impl.h, l2arc_dev_hdr_phys_t, l2arc_log_blk_phys_t, l2arc_log_ent_phys_t, l2arc_log_blkptr_t

use crate::bytes::{need, put_u64, u64_at};
use crate::{DecodeError, Result, label};

/// Offset of the header on the device, in bytes.
pub const HEADER_AT: u64 = 4 << 20;
/// Bytes of the header's fields; on the device it fills a sector if that is larger.
pub const HEADER_BYTES: usize = 512;
/// Bytes of a log block before compression.
pub const LOG_BLOCK_BYTES: usize = 64 << 10;
/// Entries a log block has room for.
pub const LOG_ENTRIES_MAX: usize = 1022;
/// The header's version.
pub const VERSION: u64 = 1;

const HEADER_MAGIC: u64 = 0x5a46_5343_4143_4845;
const LOG_MAGIC: u64 = 0x4c4f_4742_4c4b_4844;
const POINTER_BYTES: usize = 64;
const ENTRY_BYTES: usize = 64;
const ENTRIES_AT: usize = 128;
/// Header flag: the device has not been filled once yet, so nothing was overwritten.
const FLAG_FIRST: u64 = 1;
/// Compression and checksum numbers of log blocks.
const LZ4: u64 = 15;
const OFF: u64 = 2;
const FLETCHER4: u64 = 7;

/// Where a log block is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LogPointer {
    /// Its offset on the device, 0 for none.
    pub offset: u64,
    /// Bytes of the blocks it lists, as they lie on the device.
    pub payload_asize: u64,
    /// Offset of the first of those blocks.
    pub payload_start: u64,
    /// Bytes it takes on the device.
    pub asize: u64,
    /// It is compressed (LZ4).
    pub compressed: bool,
    /// fletcher4 of its bytes on the device.
    pub checksum: [u64; 4],
}

impl LogPointer {
    fn decode(buf: &[u8], at: usize) -> Self {
        let word = |index: usize| u64_at(buf, at + index * 8);
        let prop = word(3);
        Self {
            offset: word(0),
            payload_asize: word(1),
            payload_start: word(2),
            asize: biased(prop >> 16),
            compressed: prop >> 32 & 0x7f == LZ4,
            checksum: [word(4), word(5), word(6), word(7)],
        }
    }

    fn encode(&self, out: &mut [u8], at: usize) {
        if self.offset == 0 {
            return;
        }
        let kind = if self.compressed { LZ4 } else { OFF };
        let prop =
            bias(LOG_BLOCK_BYTES as u64) | bias(self.asize) << 16 | kind << 32 | FLETCHER4 << 40;
        let words = [self.offset, self.payload_asize, self.payload_start, prop];
        for (index, word) in words.into_iter().chain(self.checksum).enumerate() {
            put_u64(out, at + index * 8, word);
        }
    }

    /// Whether the log block and all it lists are on the device as it stands.
    // OpenZFS: module/zfs/arc.c, l2arc_log_blkptr_valid
    #[must_use]
    pub fn is_valid(&self, header: &Header, hand: u64) -> bool {
        let after = self.offset.checked_add(self.asize);
        let Some(end) = after.and_then(|after| after.checked_sub(1)) else {
            return false;
        };
        let (start, evict) = (self.payload_start, header.evict);
        let overwritten = in_ring(start, end, hand)
            || in_ring(start, end, evict)
            || in_ring(hand, evict, start)
            || in_ring(hand, evict, end);
        self.offset != 0
            && start >= header.start
            && end <= header.end
            && self.asize > 0
            && self.asize <= LOG_BLOCK_BYTES as u64
            && (!overwritten || header.first)
    }
}

/// Whether an address lies in the part of the ring written from `bottom` up to `top`, both included.
#[must_use]
pub fn in_ring(bottom: u64, top: u64, address: u64) -> bool {
    use std::cmp::Ordering::{Equal, Greater, Less};
    match bottom.cmp(&top) {
        Less => bottom <= address && address <= top,
        Greater => address <= top || bottom <= address,
        Equal => address == top,
    }
}

/// The header of a cache device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Header {
    /// Guid of the pool.
    pub pool_guid: u64,
    /// Guid of the device.
    pub vdev_guid: u64,
    /// Entries in each log block.
    pub log_entries: u64,
    /// Up to here the device may be overwritten.
    pub evict: u64,
    /// The device was not filled once yet.
    pub first: bool,
    /// Where blocks begin.
    pub start: u64,
    /// Where they end.
    pub end: u64,
    /// The newest log block, and the one before it.
    pub newest: [LogPointer; 2],
    /// Bytes of all log blocks.
    pub log_asize: u64,
    /// Number of log blocks.
    pub log_count: u64,
    /// When the device was last trimmed as a whole, and how far that went.
    pub trim: [u64; 2],
}

impl Header {
    /// Decodes a header from the first bytes of what lies at [`HEADER_AT`]; its checksum is the caller's.
    ///
    /// # Errors
    /// When there is no header of this version in this byte order.
    pub fn decode(buf: &[u8]) -> Result<Self> {
        need(buf, HEADER_BYTES, "header of a cache device")?;
        let word = |index: usize| u64_at(buf, index * 8);
        if word(0) != HEADER_MAGIC {
            return Err(DecodeError::new("magic of a cache device", 0));
        }
        if word(1) != VERSION {
            return Err(DecodeError::new("version of a cache device", 8));
        }
        Ok(Self {
            pool_guid: word(2),
            vdev_guid: word(3),
            log_entries: word(4),
            evict: word(5),
            first: word(6) & FLAG_FIRST != 0,
            start: word(7),
            end: word(8),
            newest: [
                LogPointer::decode(buf, 72),
                LogPointer::decode(buf, 72 + POINTER_BYTES),
            ],
            log_asize: word(25),
            log_count: word(26),
            trim: [word(27), word(28)],
        })
    }

    /// Encodes the header for a device with sectors of `sector` bytes, checksummed for its place.
    #[must_use]
    pub fn encode(&self, sector: usize, sha256: impl Fn(&[u8]) -> [u64; 4]) -> Vec<u8> {
        let mut out = vec![0; sector.max(HEADER_BYTES)];
        let words = [
            HEADER_MAGIC,
            VERSION,
            self.pool_guid,
            self.vdev_guid,
            self.log_entries,
            self.evict,
            u64::from(self.first),
            self.start,
            self.end,
        ];
        for (index, word) in words.into_iter().enumerate() {
            put_u64(&mut out, index * 8, word);
        }
        for (index, pointer) in self.newest.iter().enumerate() {
            pointer.encode(&mut out, 72 + index * POINTER_BYTES);
        }
        let rest = [self.log_asize, self.log_count, self.trim[0], self.trim[1]];
        for (index, word) in rest.into_iter().enumerate() {
            put_u64(&mut out, 200 + index * 8, word);
        }
        label::set_checksum(&mut out, label::label_verifier(HEADER_AT), sha256);
        out
    }
}

/// One block on a cache device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LogEntry {
    /// Top-level vdev of the block's first copy.
    pub vdev: u32,
    /// Its offset there.
    pub offset: u64,
    /// Its allocated bytes there.
    pub asize: u64,
    /// It is a gang.
    pub gang: bool,
    /// Physical birth.
    pub birth: u64,
    /// Logical bytes.
    pub lsize: u64,
    /// Stored bytes.
    pub psize: u64,
    /// Compression, as in block pointers.
    pub compression: u8,
    /// Metadata.
    pub metadata: bool,
    /// It was used often (else once) when it was written to the device.
    pub frequent: bool,
    /// Offset on the cache device.
    pub daddr: u64,
}

impl LogEntry {
    fn decode(buf: &[u8], at: usize) -> Self {
        let word = |index: usize| u64_at(buf, at + index * 8);
        let prop = word(3);
        Self {
            vdev: u32::try_from(word(0) >> 32 & 0x00ff_ffff).unwrap_or(0),
            asize: (word(0) & 0x00ff_ffff) << 9,
            gang: word(1) >> 63 != 0,
            offset: (word(1) & !(1 << 63)) << 9,
            birth: word(2),
            lsize: biased(prop),
            psize: biased(prop >> 16),
            compression: u8::try_from(prop >> 32 & 0x7f).unwrap_or(0),
            metadata: prop >> 48 & 0xff == 2,
            frequent: prop >> 57 & 0xf == 3,
            daddr: word(4),
        }
    }

    fn encode(&self, out: &mut [u8], at: usize) {
        // ARC states: 1 is recently used, 3 is frequently used; types: 1 is data, 2 is metadata.
        let state = if self.frequent { 3 } else { 1 };
        let prop = bias(self.lsize)
            | bias(self.psize) << 16
            | u64::from(self.compression) << 32
            | (1 + u64::from(self.metadata)) << 48
            | state << 57;
        let words = [
            u64::from(self.vdev) << 32 | self.asize >> 9,
            u64::from(self.gang) << 63 | self.offset >> 9,
            self.birth,
            prop,
            self.daddr,
        ];
        for (index, word) in words.into_iter().enumerate() {
            put_u64(out, at + index * 8, word);
        }
    }
}

/// A log block.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LogBlock {
    /// The log block two before it.
    pub previous: LogPointer,
    /// Its entries, oldest first.
    pub entries: Vec<LogEntry>,
}

impl LogBlock {
    /// Decodes a log block (decompressed) that holds `entries` entries.
    ///
    /// # Errors
    /// When it is short or no log block.
    pub fn decode(buf: &[u8], entries: usize) -> Result<Self> {
        need(buf, LOG_BLOCK_BYTES, "log block of a cache device")?;
        if u64_at(buf, 0) != LOG_MAGIC {
            return Err(DecodeError::new(
                "magic of a log block of a cache device",
                0,
            ));
        }
        let count = entries.min(LOG_ENTRIES_MAX);
        Ok(Self {
            previous: LogPointer::decode(buf, 8),
            entries: (0..count)
                .map(|index| LogEntry::decode(buf, ENTRIES_AT + index * ENTRY_BYTES))
                .collect(),
        })
    }

    /// Encodes the log block, not compressed. Entries beyond [`LOG_ENTRIES_MAX`] are left out.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![0; LOG_BLOCK_BYTES];
        put_u64(&mut out, 0, LOG_MAGIC);
        self.previous.encode(&mut out, 8);
        for (index, entry) in self.entries.iter().take(LOG_ENTRIES_MAX).enumerate() {
            entry.encode(&mut out, ENTRIES_AT + index * ENTRY_BYTES);
        }
        out
    }
}

/// A size in 512-byte sectors, less one, in 16 bits.
fn bias(bytes: u64) -> u64 {
    (bytes >> 9).saturating_sub(1) & 0xffff
}

fn biased(field: u64) -> u64 {
    ((field & 0xffff) + 1) << 9
}

#[cfg(test)]
mod tests {
    use super::*;

    fn toy_hash(bytes: &[u8]) -> [u64; 4] {
        let sum = bytes.iter().map(|&byte| u64::from(byte)).sum();
        [sum, !sum, 7, bytes.len() as u64]
    }

    #[test]
    fn headers_and_log_blocks_come_back() {
        let pointer = LogPointer {
            offset: 0x50_0000,
            payload_asize: 9 << 20,
            payload_start: 0x40_2000,
            asize: 4096,
            compressed: true,
            checksum: [1, 2, 3, 4],
        };
        let header = Header {
            pool_guid: 5,
            vdev_guid: 6,
            log_entries: 63,
            evict: 0x70_0000,
            first: true,
            start: 0x40_1000,
            end: 1 << 30,
            newest: [pointer, LogPointer::default()],
            log_asize: 4096,
            log_count: 1,
            trim: [0, 0],
        };
        let bytes = header.encode(4096, toy_hash);
        assert_eq!(bytes.len(), 4096);
        assert!(label::verify(
            &bytes,
            label::label_verifier(HEADER_AT),
            toy_hash
        ));
        let mut again = Header::decode(&bytes).expect("decodes");
        // The size of a pointer that points nowhere is not kept.
        again.newest[1] = LogPointer::default();
        assert_eq!(again, header);
        let entry = LogEntry {
            vdev: 3,
            offset: 0x1234_5600,
            asize: 8192,
            gang: false,
            birth: 77,
            lsize: 131_072,
            psize: 5120,
            compression: 15,
            metadata: true,
            frequent: true,
            daddr: 0x40_1000,
        };
        let block = LogBlock {
            previous: pointer,
            entries: vec![entry; 63],
        };
        assert_eq!(LogBlock::decode(&block.encode(), 63), Ok(block));
        assert!(LogBlock::decode(&[0; LOG_BLOCK_BYTES], 1).is_err());
        assert!(Header::decode(&[0; HEADER_BYTES]).is_err());
        assert!(Header::decode(&[0; 7]).is_err());
    }

    #[test]
    fn log_blocks_that_were_overwritten_are_not_valid() {
        let header = Header {
            start: 1 << 20,
            end: 10 << 20,
            evict: 5 << 20,
            ..Header::default()
        };
        let at = |mib: u64| LogPointer {
            offset: mib << 20,
            asize: 4096,
            payload_start: (mib << 20) - 4096,
            ..LogPointer::default()
        };
        let hand = 4 << 20;
        assert!(at(3).is_valid(&header, hand));
        assert!(at(7).is_valid(&header, hand));
        assert!(!at(5).is_valid(&header, hand));
        let fresh = Header {
            first: true,
            ..header
        };
        assert!(at(5).is_valid(&fresh, hand));
        assert!(!at(11).is_valid(&fresh, hand));
        assert!(!LogPointer::default().is_valid(&fresh, hand));
        let huge = LogPointer {
            offset: u64::MAX,
            asize: 4096,
            ..LogPointer::default()
        };
        assert!(!huge.is_valid(&fresh, hand));
    }
}
