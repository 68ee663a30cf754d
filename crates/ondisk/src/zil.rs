//! The intent log: its header in the objset, its blocks and its records.
//!
//! OpenZFS: include/sys/zil.h.

use crate::bytes::{need, put_bytes, put_u64, slice_at, u64_at};
use crate::zil_record::{WriteRecord, record_kind};
use crate::{BlockPointer, Result};

/// Bits of [`ZilHeader::flags`].
pub mod zil_flags {
    pub const REPLAY_NEEDED: u64 = 1;
    pub const CLAIM_LR_SEQ_VALID: u64 = 2;
}

/// The intent log header inside an objset block; all zero when there is no log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ZilHeader {
    /// Txg in which the log was claimed; 0 when it was not.
    pub claim_txg: u64,
    /// Highest record sequence number already replayed.
    pub replay_seq: u64,
    /// First block of the chain; a hole when there is no log.
    pub log: BlockPointer,
    /// Last claimed block's sequence number.
    pub claim_blk_seq: u64,
    /// Bits of [`zil_flags`].
    pub flags: u64,
    /// Last claimed record's sequence number.
    pub claim_lr_seq: u64,
}

impl ZilHeader {
    /// Encoded bytes.
    pub const SIZE: usize = 192;

    /// Decodes the header.
    ///
    /// # Errors
    /// Only when `buf` is too short.
    pub fn decode(buf: &[u8]) -> Result<Self> {
        need(buf, Self::SIZE, "intent log header")?;
        Ok(Self {
            claim_txg: u64_at(buf, 0),
            replay_seq: u64_at(buf, 8),
            log: BlockPointer::decode(slice_at(buf, 16, BlockPointer::SIZE))?,
            claim_blk_seq: u64_at(buf, 144),
            flags: u64_at(buf, 152),
            claim_lr_seq: u64_at(buf, 160),
        })
    }

    /// Encodes the header.
    #[must_use]
    pub fn encode(&self) -> [u8; Self::SIZE] {
        let mut out = [0; Self::SIZE];
        put_u64(&mut out, 0, self.claim_txg);
        put_u64(&mut out, 8, self.replay_seq);
        put_bytes(&mut out, 16, &self.log.encode());
        put_u64(&mut out, 144, self.claim_blk_seq);
        put_u64(&mut out, 152, self.flags);
        put_u64(&mut out, 160, self.claim_lr_seq);
        out
    }

    /// True when no log exists.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.log.is_hole()
    }
}

/// Checksum words of a log block's pointer: identity of the chain, the dataset, and the block's place in the chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChainId {
    pub guid: [u64; 2],
    /// Dataset object.
    pub objset: u64,
    /// 1 for the first block.
    pub seq: u64,
}

impl ChainId {
    /// The identity carried by a log block pointer.
    #[must_use]
    pub const fn of(bp: &BlockPointer) -> Self {
        let [a, b, objset, seq] = bp.checksum();
        Self {
            guid: [a, b],
            objset,
            seq,
        }
    }

    /// As the checksum words of a pointer, which are also the verifier of the block's checksum.
    #[must_use]
    pub const fn words(self) -> [u64; 4] {
        [self.guid[0], self.guid[1], self.objset, self.seq]
    }

    /// The identity of the next block in the chain.
    #[must_use]
    pub const fn next(self) -> Self {
        Self {
            seq: self.seq.wrapping_add(1),
            ..self
        }
    }
}

/// Bytes of the header in front of a slim log block.
pub const SLIM_HEADER: usize = 184;
/// Bytes of the trailer behind an old log block.
const OLD_TRAILER: usize = 184;
/// Where the header (or trailer) says how many bytes are used.
pub(crate) const LOG_USED: usize = 136;
/// Where the embedded checksum starts in the header (or trailer).
pub(crate) const LOG_ECK: usize = 144;
/// Where the MAC of an encrypted block lies in the header: in half of the checksum's words.
const MAC_AT: usize = LOG_ECK + 8 + 16;

/// A verified log block.
#[derive(Debug, Clone, Copy)]
pub struct LogBlock<'a> {
    pub next: BlockPointer,
    /// Bytes of records.
    pub records: &'a [u8],
}

impl<'a> LogBlock<'a> {
    /// Verifies and takes apart a log block read through `bp`. `None` is the normal end of a chain: the block was never
    /// written, or belongs to an older one. Of an encrypted block headers of records and pointers in them are in the clear.
    ///
    /// `fletcher4` and `fletcher2` return the checksum words of the bytes they are given.
    pub fn open(
        block: &'a [u8],
        bp: &BlockPointer,
        fletcher4: impl Fn(&[u8]) -> [u64; 4],
        fletcher2: impl Fn(&[u8]) -> [u64; 4],
    ) -> Option<Self> {
        let id = ChainId::of(bp);
        let slim = bp.checksum_kind() == crate::ChecksumKind::ZILOG2;
        let header_at = if slim {
            0
        } else {
            block.len().checked_sub(OLD_TRAILER)?
        };
        let header = slice_at(block, header_at, SLIM_HEADER);
        if header.len() < SLIM_HEADER || u64_at(header, LOG_ECK) != crate::label::ECK_MAGIC {
            return None;
        }
        let used = crate::bytes::index(u64_at(header, LOG_USED));
        let (covered, records) = if slim {
            if used < SLIM_HEADER || used > block.len() {
                return None;
            }
            (
                used.next_multiple_of(4096).min(block.len()),
                slice_at(block, SLIM_HEADER, used - SLIM_HEADER),
            )
        } else {
            if used > header_at {
                return None;
            }
            (block.len(), slice_at(block, 0, used))
        };
        let mut copy = slice_at(block, 0, covered).to_vec();
        let stored: Vec<u64> = crate::bytes::u64s(slice_at(header, LOG_ECK + 8, 32)).collect();
        for (i, w) in id.words().iter().enumerate() {
            put_u64(&mut copy, header_at + LOG_ECK + 8 + 8 * i, *w);
        }
        let mut sum = if slim {
            fletcher4(&copy)
        } else {
            fletcher2(&copy)
        };
        if bp.uses_crypt() {
            let [_, _, low, high] = <[u64; 4]>::try_from(stored.as_slice()).ok()?;
            sum = beside_mac(sum, low, high);
        }
        let next = BlockPointer::decode(slice_at(header, 8, BlockPointer::SIZE)).ok()?;
        (stored == sum && ChainId::of(&next) == id.next()).then_some(Self { next, records })
    }

    /// Completes a slim log block: `block` holds the records from [`SLIM_HEADER`] to `used` and zeros behind them, and is
    /// `used` rounded up to 4 KiB: only so much has to reach the disk, whatever size its pointer states. `next` is the
    /// pointer of the following block, whose place is already set aside. `encrypt` encrypts the block's records, when all of
    /// its header but the checksum is there, and returns the MAC; `None` of a dataset that is not encrypted.
    ///
    /// # Panics
    /// When `block` is not that long.
    pub fn complete(
        block: &mut [u8],
        id: ChainId,
        next: &BlockPointer,
        used: usize,
        encrypt: impl FnOnce(&mut [u8]) -> Option<[u8; 16]>,
        fletcher4: impl Fn(&[u8]) -> [u64; 4],
    ) {
        assert!(
            used >= SLIM_HEADER && used.next_multiple_of(4096) == block.len(),
            "a log block is as long as its records"
        );
        put_u64(block, 0, 0);
        put_bytes(block, 8, &next.encode());
        put_u64(block, LOG_USED, crate::bytes::len64(used));
        let mac = encrypt(block);
        put_u64(block, LOG_ECK, crate::label::ECK_MAGIC);
        for (i, word) in id.words().into_iter().enumerate() {
            put_u64(block, LOG_ECK + 8 + 8 * i, word);
        }
        let mut sum = fletcher4(block);
        if let Some(mac) = mac {
            sum = beside_mac(sum, u64_at(&mac, 0), u64_at(&mac, 8));
        }
        for (i, word) in sum.into_iter().enumerate() {
            put_u64(block, LOG_ECK + 8 + 8 * i, word);
        }
    }

    /// The MAC in the header of an encrypted slim block.
    #[must_use]
    pub fn mac(block: &[u8]) -> [u8; 16] {
        let mut mac = [0; 16];
        put_bytes(&mut mac, 0, slice_at(block, MAC_AT, 16));
        mac
    }

    /// The records in order; an impossible length ends them.
    pub fn iter(&self) -> impl Iterator<Item = LogRecord<'a>> + use<'a> {
        let mut rest = self.records;
        std::iter::from_fn(move || {
            let len = crate::bytes::index(u64_at(rest, 8));
            if rest.len() < LogRecord::HEADER || len < LogRecord::HEADER || len > rest.len() {
                return None;
            }
            let (record, after) = rest.split_at_checked(len)?;
            rest = after;
            Some(LogRecord {
                kind: u64_at(record, 0),
                txg: u64_at(record, 16),
                seq: u64_at(record, 24),
                body: slice_at(record, LogRecord::HEADER, len - LogRecord::HEADER),
            })
        })
    }
}

/// The checksum of an encrypted block: half of it is folded into the other, and gives its words to the MAC.
// OpenZFS: module/zfs/zio_checksum.c, zio_checksum_handle_crypt
fn beside_mac(sum: [u64; 4], low: u64, high: u64) -> [u64; 4] {
    [sum[0] ^ sum[2], sum[1] ^ sum[3], low, high]
}

/// One record, its body not yet interpreted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogRecord<'a> {
    /// One of [`record_kind`], with bit 63 set for case-insensitive names.
    pub kind: u64,
    pub txg: u64,
    pub seq: u64,
    /// What follows the common header.
    pub body: &'a [u8],
}

impl LogRecord<'_> {
    /// Bytes of the common header.
    pub const HEADER: usize = 32;
    /// Bytes of a write record before its data, with the common header.
    pub const WRITE_HEADER: usize = Self::HEADER + WriteRecord::SIZE;
    /// Bit of the stored kind that says names were looked up without regard to case.
    pub const CASE_INSENSITIVE: u64 = 1 << 63;

    /// Writes the common header of a record of `len` bytes (a multiple of 8) to the front of `out`.
    pub fn put_header(out: &mut [u8], kind: u64, len: usize, txg: u64, seq: u64) {
        put_u64(out, 0, kind);
        put_u64(out, 8, crate::bytes::len64(len));
        put_u64(out, 16, txg);
        put_u64(out, 24, seq);
    }

    /// Whether it is a record of cloned blocks, whose body [`CloneRange::decode`](crate::zil_record::CloneRange::decode) takes apart.
    #[must_use]
    pub fn is_clone_range(&self) -> bool {
        self.kind & !(1 << 63) == record_kind::CLONE_RANGE
    }

    /// The block an indirect write record points to.
    #[must_use]
    pub fn indirect_write(&self) -> Option<BlockPointer> {
        let is_indirect = self.kind & !Self::CASE_INSENSITIVE == record_kind::WRITE
            && self.body.len() == WriteRecord::SIZE;
        if !is_indirect {
            return None;
        }
        let write = WriteRecord::decode(self.body)?;
        (!write.block.is_hole()).then_some(write.block)
    }
}
