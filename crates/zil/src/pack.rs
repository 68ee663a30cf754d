//! Packing records into log blocks.

use std::collections::VecDeque;

use ondisk::bytes::put_bytes;
use ondisk::zil::{LogRecord, SLIM_HEADER};
use ondisk::zil_record::{WriteRecord, record_kind};
use ondisk::{BlockPointer, Txg};
use runtime::IoBufMut;

use crate::itx::{Intent, Itx};

/// Largest log block. OpenZFS: module/zfs/zil.c, `zil_maxblocksize`.
pub(crate) const BLOCK_MAX: usize = 128 << 10;
/// Smallest log block; also the unit in which they are written. OpenZFS: include/sys/zil.h, ZIL_MIN_BLKSZ.
pub(crate) const BLOCK_MIN: usize = 4 << 10;
/// Sizes in which blocks are allocated: room for one, two, four, eight and sixteen pages of data with their headers, and the
/// largest. Only what is used is written, so a block too large costs space for some seconds, one too small a second write.
const BLOCK_SIZES: [usize; 7] = [
    BLOCK_MIN,
    8 << 10,
    12 << 10,
    20 << 10,
    36 << 10,
    68 << 10,
    BLOCK_MAX,
];
/// A write too long for any block is not split for less than this much room. One that fits a block is not split at all:
/// after a power cut all of it is found, or nothing.
const SPLIT_MIN: usize = 4 << 10;
/// Commits from which the size of the next block is guessed.
const HISTORY: usize = 8;

const _: () = assert!(BLOCK_SIZES[0] == BLOCK_MIN && BLOCK_SIZES[6] == BLOCK_MAX);

/// Greatest record that is not split.
pub(crate) const RECORD_MAX: usize = BLOCK_MAX - SLIM_HEADER;

/// Bytes that a commit will put into its first block, guessed from the last ones.
#[derive(Debug, Default)]
pub(crate) struct Sizes {
    recent: VecDeque<usize>,
}

impl Sizes {
    /// Records the record bytes of a commit.
    pub(crate) fn note(&mut self, bytes: usize) {
        if self.recent.len() == HISTORY {
            self.recent.pop_front();
        }
        self.recent.push_back(bytes);
    }

    /// Returns the size of a block for the next commit.
    pub(crate) fn next(&self) -> u64 {
        block_size(self.recent.iter().copied().max().unwrap_or(0))
    }
}

/// Returns the size of a block for so many bytes of records, or the largest.
pub(crate) fn block_size(records: usize) -> u64 {
    let wanted = records.saturating_add(SLIM_HEADER);
    let size = BLOCK_SIZES.into_iter().find(|&size| size >= wanted);
    size.unwrap_or(BLOCK_MAX) as u64
}

/// A block being filled.
pub(crate) struct FilledBlock {
    /// Zeros in front for the header, records, zeros up to the next 4 KiB.
    pub(crate) bytes: IoBufMut,
    /// Bytes used, with the header.
    pub(crate) used: usize,
    /// Newest txg of its records; 0 without any.
    pub(crate) newest: Txg,
    /// Writes among its records that hold their data.
    pub(crate) copied: u64,
    /// Bytes of that data.
    pub(crate) copied_bytes: u64,
}

/// Moves records from the front of `itxs` into a block of `size` bytes, splitting the last write if need be. Gives
/// each record the number after `seq`.
pub(crate) fn fill(itxs: &mut VecDeque<Itx>, size: usize, seq: &mut u64) -> FilledBlock {
    // First what goes in, so that the buffer is as large as needed and no larger.
    let mut used = SLIM_HEADER;
    let mut pieces: Vec<Itx> = Vec::new();
    while let Some(itx) = itxs.front_mut() {
        let room = size - used;
        let whole = itx.intent.size();
        if whole <= room {
            used += whole;
            pieces.extend(itxs.pop_front());
            continue;
        }
        if let Intent::Write {
            object,
            offset,
            data,
            ..
        } = &mut itx.intent
            && whole > RECORD_MAX
            && room >= LogRecord::WRITE_HEADER + SPLIT_MIN
        {
            let len = (room - LogRecord::WRITE_HEADER) & !7;
            let piece = Intent::Write {
                object: *object,
                offset: *offset,
                data: data.slice(0..len),
                block: 0,
            };
            *offset += len as u64;
            *data = data.slice(len..data.len());
            used += piece.size();
            pieces.push(Itx {
                order: itx.order,
                txg: itx.txg,
                intent: piece,
            });
        }
        break;
    }
    let mut bytes = IoBufMut::zeroed(used.next_multiple_of(BLOCK_MIN));
    let mut at = SLIM_HEADER;
    let mut newest = Txg(0);
    let (mut copied, mut copied_bytes) = (0, 0);
    for piece in pieces {
        newest = newest.max(piece.txg);
        let (writes, data) = piece.intent.copied();
        copied += writes;
        copied_bytes += data;
        put(&mut bytes, &mut at, &piece.intent, piece.txg, seq);
    }
    FilledBlock {
        bytes,
        used,
        newest,
        copied,
        copied_bytes,
    }
}

/// Writes records at `at` and moves it behind them.
fn put(bytes: &mut [u8], at: &mut usize, intent: &Intent, txg: Txg, seq: &mut u64) {
    let len = intent.size();
    match intent {
        Intent::Group(parts) => {
            for part in parts {
                put(bytes, at, part, txg, seq);
            }
            return;
        }
        Intent::Unlogged => return,
        Intent::Record { kind, body } => {
            *seq += 1;
            let out = &mut bytes[*at..*at + len];
            LogRecord::put_header(out, *kind, len, txg.0, *seq);
            put_bytes(out, LogRecord::HEADER, body);
        }
        Intent::Write {
            object,
            offset,
            data,
            ..
        } => {
            *seq += 1;
            let out = &mut bytes[*at..*at + len];
            LogRecord::put_header(out, record_kind::WRITE, len, txg.0, *seq);
            let write = WriteRecord {
                object: object.0,
                offset: *offset,
                length: data.len() as u64,
                block: BlockPointer::default(),
            };
            write.put(&mut out[LogRecord::HEADER..]);
            put_bytes(out, LogRecord::WRITE_HEADER, data);
        }
        Intent::Indirect { object, offset, bp } => {
            *seq += 1;
            let out = &mut bytes[*at..*at + len];
            LogRecord::put_header(out, record_kind::WRITE, len, txg.0, *seq);
            let write = WriteRecord {
                object: object.0,
                offset: *offset,
                length: bp.lsize(),
                block: *bp,
            };
            write.put(&mut out[LogRecord::HEADER..]);
        }
    }
    *at += len;
}

#[cfg(test)]
mod tests {
    use super::*;
    use ondisk::ObjectId;
    use ondisk::bytes::u64_at;
    use runtime::IoBuf;

    fn write(len: usize) -> Itx {
        Itx {
            order: 0,
            txg: Txg(7),
            intent: Intent::Write {
                object: ObjectId(3),
                offset: 100,
                data: IoBuf::copy_from(&vec![5; len]),
                block: 0,
            },
        }
    }

    #[test]
    fn sizes_fit_whole_pages_of_data() {
        assert_eq!(block_size(0), 4096);
        assert_eq!(block_size(write(4096).intent.size()), 8192);
        assert_eq!(block_size(write(8192).intent.size()), 12288);
        assert_eq!(block_size(1 << 20), 131_072);
    }

    #[test]
    fn a_long_write_is_split_and_loses_nothing() {
        let mut itxs = VecDeque::from([write(300_001)]);
        let (mut seq, mut total, mut next) = (0, 0, 100);
        let mut blocks = 0;
        while !itxs.is_empty() {
            let filled = fill(&mut itxs, BLOCK_MAX, &mut seq);
            assert!(filled.used <= BLOCK_MAX && filled.newest == Txg(7));
            let record = &filled.bytes[SLIM_HEADER..];
            assert_eq!(u64_at(record, 24), blocks + 1);
            assert_eq!(u64_at(record, 40), next);
            next += u64_at(record, 48);
            total += u64_at(record, 48);
            blocks += 1;
            assert_eq!(filled.copied, 1);
            assert_eq!(filled.copied_bytes, u64_at(record, 48));
        }
        assert_eq!((total, blocks), (300_001, 3));
    }

    #[test]
    fn what_does_not_fit_waits_for_the_next_block() {
        let record = |len| Itx {
            order: 0,
            txg: Txg(4),
            intent: Intent::Record {
                kind: record_kind::CREATE,
                body: vec![1; len],
            },
        };
        let mut itxs = VecDeque::from([record(100), record(5000), record(7)]);
        let mut seq = 9;
        let filled = fill(&mut itxs, BLOCK_MIN, &mut seq);
        assert_eq!((filled.copied, filled.copied_bytes), (0, 0));
        assert_eq!((filled.used, itxs.len(), seq), (SLIM_HEADER + 136, 2, 10));
        assert_eq!(filled.bytes.len(), BLOCK_MIN);
    }
}
