//! Space maps: logs of allocations and frees in a metaslab, and the bonus that sums them up.
//!
//! ```text
//! debug   10 | action 2 | sync pass 10 | txg 50
//! 1 word   0 | offset 47 | type 1 | run - 1 15
//! 2 words 11 | 00 | run - 1 36 | vdev 24      type 1 | offset 63
//! ```
//! Offsets and runs are in units of `1 << shift`. OpenZFS: include/sys/space_map.h.

use crate::bytes::{need, put_u64, u64_at};
use crate::{DecodeError, Result};

/// Longest run of a one-word entry, in units.
const RUN_MAX: u64 = 1 << 15;
/// First offset a one-word entry cannot hold, in units.
const OFFSET_END: u64 = 1 << 47;
/// Longest run of a two-word entry, in units.
const RUN2_MAX: u64 = 1 << 36;
/// First offset a two-word entry cannot hold, in units.
const OFFSET2_END: u64 = 1 << 63;
/// A debug word that says nothing: fills the end of a block before a two-word entry.
const PAD: u64 = 0x8000_0000_0000_0000;

/// Whether an entry allocates or frees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpaceOp {
    Alloc,
    Free,
}

/// One entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpaceMapEntry {
    /// Informational: entries that follow were written in this pass of this txg.
    Debug { op: SpaceOp, pass: u64, txg: u64 },
    /// Bytes `start .. start + len` changed.
    Range {
        op: SpaceOp,
        /// Bytes, with the map's start added.
        start: u64,
        /// Bytes.
        len: u64,
        /// Id of the top-level vdev; only logs for the whole pool carry one.
        vdev: Option<u32>,
    },
}

/// Bonus of a space map object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SpaceMapHeader {
    /// The map's own object number (OpenZFS does not need it).
    pub object: u64,
    /// Bytes of entries.
    pub length: u64,
    /// Allocated bytes.
    pub allocated: i64,
    /// Counts of free segments: entry i for sizes from `2^(i + shift)`; `None` in the short form.
    pub histogram: Option<[u64; 32]>,
}

impl SpaceMapHeader {
    /// Bytes without and with histogram.
    pub const SIZES: (usize, usize) = (24, 320);

    /// Decodes a bonus of 24 or at least 320 bytes.
    ///
    /// # Errors
    /// Only when `buf` is too short.
    pub fn decode(buf: &[u8]) -> Result<Self> {
        need(buf, Self::SIZES.0, "space map header")?;
        let histogram = (buf.len() >= Self::SIZES.1).then(|| {
            let mut h = [0; 32];
            for (i, n) in h.iter_mut().enumerate() {
                *n = u64_at(buf, 64 + 8 * i);
            }
            h
        });
        Ok(Self {
            object: u64_at(buf, 0),
            length: u64_at(buf, 8),
            allocated: u64_at(buf, 16).cast_signed(),
            histogram,
        })
    }

    /// Encodes to 24 bytes, or 320 with a histogram.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![
            0;
            if self.histogram.is_some() {
                Self::SIZES.1
            } else {
                Self::SIZES.0
            }
        ];
        put_u64(&mut out, 0, self.object);
        put_u64(&mut out, 8, self.length);
        put_u64(&mut out, 16, self.allocated.cast_unsigned());
        for (i, n) in self.histogram.iter().flatten().enumerate() {
            put_u64(&mut out, 64 + 8 * i, *n);
        }
        out
    }
}

/// Counts a free segment of `len` bytes into a histogram of a map with this shift. Longer segments than the last bucket
/// holds are counted there in its multiples, as OpenZFS does.
pub fn histogram_add(histogram: &mut [u64; 32], shift: u32, len: u64) {
    let Some(log) = len.checked_ilog2() else {
        return;
    };
    let bucket = log.saturating_sub(shift);
    if log < shift {
        return;
    }
    let (i, count) = if bucket < 32 {
        (bucket, 1)
    } else {
        (31, 1u64 << (bucket - 31).min(63))
    };
    if let Some(n) = histogram.get_mut(i as usize) {
        *n = n.saturating_add(count);
    }
}

/// Decodes the entries in `data` (whole words of the map, from its beginning or from a block boundary). `start` is the
/// byte the map's offsets count from. After an error the iterator ends.
pub fn entries(
    data: &[u8],
    shift: u32,
    start: u64,
) -> impl Iterator<Item = Result<SpaceMapEntry>> + '_ {
    let mut pos = 0;
    let mut failed = false;
    std::iter::from_fn(move || {
        if failed || pos + 8 > data.len() {
            return None;
        }
        let entry = one(data, &mut pos, shift, start);
        failed = entry.is_err();
        Some(entry)
    })
}

fn one(data: &[u8], pos: &mut usize, shift: u32, start: u64) -> Result<SpaceMapEntry> {
    let at = *pos;
    let bad = |what| Err(DecodeError::new(what, at));
    let w = u64_at(data, at);
    *pos += 8;
    let (op, offset, run, vdev) = if w >> 63 == 0 {
        (w >> 15 & 1, w >> 16, (w & 0x7fff) + 1, None)
    } else if w >> 62 == 2 {
        let op = if w >> 60 & 3 == 0 {
            SpaceOp::Alloc
        } else {
            SpaceOp::Free
        };
        return Ok(SpaceMapEntry::Debug {
            op,
            pass: w >> 50 & 0x3ff,
            txg: w & ((1 << 50) - 1),
        });
    } else {
        if at + 16 > data.len() {
            return bad("space map entry, ends early");
        }
        let w1 = u64_at(data, at + 8);
        *pos += 8;
        (
            w1 >> 63,
            w1 & !(1 << 63),
            (w >> 24 & (RUN2_MAX - 1)) + 1,
            Some(crate::bytes::low32(w & 0xff_ffff)),
        )
    };
    let scaled = |units: u64| {
        (shift < 64)
            .then(|| units << shift)
            .filter(|b| b >> shift == units)
    };
    let (Some(offset), Some(len)) = (scaled(offset), scaled(run)) else {
        return bad("space map entry range");
    };
    let Some(begin) = start
        .checked_add(offset)
        .filter(|b| b.checked_add(len).is_some())
    else {
        return bad("space map entry range");
    };
    let op = if op == 0 {
        SpaceOp::Alloc
    } else {
        SpaceOp::Free
    };
    Ok(SpaceMapEntry::Range {
        op,
        start: begin,
        len,
        vdev,
    })
}

/// Appends entries to a map, keeping two-word entries inside blocks.
#[derive(Debug)]
pub struct SpaceMapWriter {
    out: Vec<u8>,
    /// Bytes of the map before `out`.
    position: u64,
    block_size: u64,
    shift: u32,
    start: u64,
    two_words: bool,
}

impl SpaceMapWriter {
    /// A writer that continues a map of `length` bytes. `shift` and `start` as for [`entries`]; `block_size` of the
    /// map's object; `two_words` when the `spacemap_v2` feature is active.
    #[must_use]
    pub const fn new(
        length: u64,
        block_size: u64,
        shift: u32,
        start: u64,
        two_words: bool,
    ) -> Self {
        Self {
            out: Vec::new(),
            position: length,
            block_size,
            shift,
            start,
            two_words,
        }
    }

    /// Appends the note that opens a batch.
    pub fn debug(&mut self, op: SpaceOp, pass: u64, txg: u64) {
        let action = u64::from(op == SpaceOp::Free);
        self.word(2 << 62 | action << 60 | (pass & 0x3ff) << 50 | txg & ((1 << 50) - 1));
    }

    /// Appends a range in bytes, whole units; `vdev` only in logs for the whole pool. Long ranges take several entries.
    ///
    /// # Panics
    /// When the range is not made of whole units, lies before the map's start, or needs two-word entries that are not
    /// active: a range like that is the caller's broken invariant.
    pub fn range(&mut self, op: SpaceOp, start: u64, len: u64, vdev: Option<u32>) {
        let unit = 1u64 << self.shift;
        assert!(
            start >= self.start
                && (start - self.start).is_multiple_of(unit)
                && len.is_multiple_of(unit)
        );
        let mut offset = (start - self.start) >> self.shift;
        let mut left = len >> self.shift;
        let kind = u64::from(op == SpaceOp::Free);
        while left > 0 {
            let wide = vdev.is_some() || offset >= OFFSET_END || (left > RUN_MAX && self.two_words);
            let run = left.min(if wide { RUN2_MAX } else { RUN_MAX });
            if wide {
                assert!(
                    self.two_words && offset < OFFSET2_END,
                    "two-word space map entries are not active"
                );
                let end = self.position + self.out.len() as u64 + 8;
                if end.is_multiple_of(self.block_size) {
                    self.word(PAD);
                }
                self.word(3 << 62 | (run - 1) << 24 | u64::from(vdev.unwrap_or(0)) & 0xff_ffff);
                self.word(kind << 63 | offset);
            } else {
                self.word(offset << 16 | kind << 15 | (run - 1));
            }
            offset += run;
            left -= run;
        }
    }

    fn word(&mut self, w: u64) {
        self.out.extend_from_slice(&w.to_le_bytes());
    }

    /// Length of the whole map with what was appended.
    #[must_use]
    pub const fn length(&self) -> u64 {
        self.position + self.out.len() as u64
    }

    /// The appended bytes.
    #[must_use]
    pub fn into_bytes(self) -> Vec<u8> {
        self.out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_what_it_reads() {
        let ranges = [
            (SpaceOp::Alloc, 1 << 20, 4096),
            (SpaceOp::Free, (1 << 20) + 8192, 4096 << 16),
            (SpaceOp::Alloc, 1 << 20, 4096 << 14),
        ];
        for two_words in [false, true] {
            let mut w = SpaceMapWriter::new(8, 32, 12, 1 << 20, two_words);
            w.debug(SpaceOp::Free, 3, 77);
            for (op, start, len) in ranges {
                w.range(op, start, len, None);
            }
            let bytes = w.into_bytes();
            let mut got = Vec::new();
            for e in entries(&bytes, 12, 1 << 20) {
                match e.unwrap() {
                    SpaceMapEntry::Debug { op, pass, txg } => {
                        assert!((op, pass, txg) == (SpaceOp::Free, 3, 77) || (pass, txg) == (0, 0));
                    }
                    SpaceMapEntry::Range { op, start, len, .. } => match got.last_mut() {
                        Some((o, s, l)) if *o == op && *s + *l == start => *l += len,
                        _ => got.push((op, start, len)),
                    },
                }
            }
            assert_eq!(got, ranges, "two words: {two_words}");
        }
    }

    #[test]
    fn two_word_entries_do_not_straddle_blocks() {
        let mut w = SpaceMapWriter::new(0, 16384, 9, 0, true);
        for i in 0..5000u64 {
            w.range(
                SpaceOp::Alloc,
                i * 1024,
                512,
                if i % 3 == 0 { Some(7) } else { None },
            );
        }
        let bytes = w.into_bytes();
        let mut seen = 0;
        for block in bytes.chunks(16384) {
            for e in entries(block, 9, 0) {
                if let SpaceMapEntry::Range { vdev, start, .. } = e.unwrap() {
                    assert_eq!(vdev, (start / 1024 % 3 == 0).then_some(7));
                    seen += 1;
                }
            }
        }
        assert_eq!(seen, 5000);
    }

    #[test]
    fn hostile_words_never_overflow() {
        for w in [!0u64, 3 << 62, (1 << 63) - 1] {
            let mut b = w.to_le_bytes().to_vec();
            b.extend_from_slice(&[0xff; 8]);
            assert_eq!(
                entries(&b, 60, u64::MAX - 5).filter(Result::is_ok).count(),
                0
            );
        }
    }

    #[test]
    fn header_lengths() {
        let h = SpaceMapHeader {
            object: 5,
            length: 88,
            allocated: -4,
            histogram: Some([3; 32]),
        };
        assert_eq!(h.encode().len(), 320);
        assert_eq!(SpaceMapHeader::decode(&h.encode()).unwrap(), h);
        let short = SpaceMapHeader {
            histogram: None,
            ..h
        };
        assert_eq!(SpaceMapHeader::decode(&short.encode()).unwrap(), short);
    }
}
