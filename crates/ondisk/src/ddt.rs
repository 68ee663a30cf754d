//! Deduplication tables: keys, entries, the histograms that sum entries up, and the logs of the fast form.
//!
//! ```text
//! value of an entry   a byte: compression | 0x80 for little-endian; then, compressed with zle or not,
//!                     old: 4 x { 3 addresses, references, birth }    fast: { 3 addresses, references, birth, since }
//! log record          word: type 8 | length 16 | - 24 | storage 8 | class 8; key of five words; entry of the fast form
//! ```
//! Does not decompress: the caller does.
// OpenZFS: include/sys/ddt.h, ddt_key_t, ddt_univ_phys_t; include/sys/ddt_impl.h, ddt_log_header_t, ddt_log_record_t

use crate::bytes::{index, need, put_u64, u64_at};
use crate::{BlockPointer, Compression, DecodeError, Result};

const LITTLE_ENDIAN: u8 = 0x80;
/// Compressions of a stored entry: none, and zle.
const STORED_PLAIN: u8 = 2;
const STORED_ZLE: u8 = 14;
/// Bytes of a block's form in an entry of the old and of the fast form.
const OLD_PHYS_BYTES: usize = 64;
const FLAT_PHYS_BYTES: usize = 72;
/// Forms in an entry of the old form: one per number of copies.
const OLD_PHYS_COUNT: usize = 4;

/// Checksum, then sizes, compression and encryption of a block. Keys are ordered by their words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct DdtKey(pub [u64; 5]);

impl DdtKey {
    /// Encoded bytes.
    pub const SIZE: usize = 40;

    /// Makes the key of a block.
    #[must_use]
    pub fn of(bp: &BlockPointer) -> Self {
        let [a, b, c, d] = bp.checksum();
        let sectors = |bytes: u64| (bytes >> 9).wrapping_sub(1) & 0xffff;
        let properties = sectors(bp.lsize())
            | sectors(bp.psize()) << 16
            | u64::from(bp.compression().0 & 0x7f) << 32
            | u64::from(bp.uses_crypt()) << 39;
        Self([a, b, c, d, properties])
    }

    fn at(buf: &[u8], at: usize) -> Self {
        Self(std::array::from_fn(|i| u64_at(buf, at + 8 * i)))
    }

    /// Decodes a key of a ZAP, whose words are big-endian; `None` for one of another length.
    #[must_use]
    pub fn from_be_bytes(name: &[u8]) -> Option<Self> {
        (name.len() == Self::SIZE).then(|| Self(Self::at(name, 0).0.map(u64::swap_bytes)))
    }

    /// The block's checksum.
    #[must_use]
    pub fn checksum(&self) -> [u64; 4] {
        let [a, b, c, d, _] = self.0;
        [a, b, c, d]
    }

    fn properties(&self) -> u64 {
        let [.., properties] = self.0;
        properties
    }

    /// The block's logical and physical size in bytes.
    #[must_use]
    pub fn sizes(&self) -> (u64, u64) {
        let bytes = |sectors: u64| ((sectors & 0xffff) + 1) << 9;
        (bytes(self.properties()), bytes(self.properties() >> 16))
    }

    /// The block's compression.
    #[must_use]
    pub fn compression(&self) -> Compression {
        Compression(u8::try_from(self.properties() >> 32 & 0x7f).unwrap_or(0))
    }

    /// Whether the block is encrypted.
    #[must_use]
    pub fn is_encrypted(&self) -> bool {
        self.properties() >> 39 & 1 != 0
    }
}

/// One stored form of a block: in the old form there may be one per number of copies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DdtPhys {
    /// The two words of each address.
    pub dvas: [(u64, u64); 3],
    /// Block pointers that refer to it.
    pub references: u64,
    /// Txg it was written in; 0 for a variant that is not there.
    pub birth: u64,
    /// Seconds since 1970 when the entry came to its class; 0 in the old form.
    pub since: u64,
}

/// One entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DdtEntry {
    /// One in the fast form, four in the old one.
    pub variants: Vec<DdtPhys>,
}

impl DdtEntry {
    /// Encoded bytes; `flat` is the fast form.
    #[must_use]
    pub const fn bytes(flat: bool) -> usize {
        if flat {
            FLAT_PHYS_BYTES
        } else {
            OLD_PHYS_COUNT * OLD_PHYS_BYTES
        }
    }

    /// An entry without references.
    #[must_use]
    pub fn empty(flat: bool) -> Self {
        let count = if flat { 1 } else { OLD_PHYS_COUNT };
        Self {
            variants: vec![DdtPhys::default(); count],
        }
    }

    const fn phys_bytes(flat: bool) -> usize {
        if flat {
            FLAT_PHYS_BYTES
        } else {
            OLD_PHYS_BYTES
        }
    }

    /// Decodes an entry of the fast (`flat`) or old form.
    ///
    /// # Errors
    /// Only when `buf` is too short.
    pub fn decode(buf: &[u8], flat: bool) -> Result<Self> {
        need(buf, Self::bytes(flat), "dedup entry")?;
        let count = if flat { 1 } else { OLD_PHYS_COUNT };
        let parts = buf.chunks_exact(Self::phys_bytes(flat)).take(count);
        let variants = parts.map(|part| DdtPhys {
            dvas: std::array::from_fn(|i| (u64_at(part, 16 * i), u64_at(part, 16 * i + 8))),
            references: u64_at(part, 48),
            birth: u64_at(part, 56),
            since: if flat { u64_at(part, 64) } else { 0 },
        });
        Ok(Self {
            variants: variants.collect(),
        })
    }

    /// Encodes an entry.
    #[must_use]
    pub fn encode(&self, flat: bool) -> Vec<u8> {
        let mut bytes = vec![0; Self::bytes(flat)];
        let parts = bytes.chunks_exact_mut(Self::phys_bytes(flat));
        for (variant, part) in self.variants.iter().zip(parts) {
            for (i, (first, second)) in variant.dvas.iter().enumerate() {
                put_u64(part, 16 * i, *first);
                put_u64(part, 16 * i + 8, *second);
            }
            put_u64(part, 48, variant.references);
            put_u64(part, 56, variant.birth);
            if flat {
                put_u64(part, 64, variant.since);
            }
        }
        bytes
    }

    /// Decodes a stored value; `unzle` decompresses zle to so many bytes.
    ///
    /// # Errors
    /// [`DecodeError`] for an unknown compression, one that `unzle` refuses, and a value that is too short.
    pub fn unpack(
        value: &[u8],
        flat: bool,
        unzle: impl FnOnce(&[u8], usize) -> Option<Vec<u8>>,
    ) -> Result<Self> {
        let bad = || DecodeError::new("dedup entry compression", 0);
        let (&head, rest) = value.split_first().ok_or_else(bad)?;
        let mut bytes = match head & !LITTLE_ENDIAN {
            STORED_ZLE => unzle(rest, Self::bytes(flat)).ok_or_else(bad)?,
            STORED_PLAIN => rest.to_vec(),
            _ => return Err(bad()),
        };
        if head & LITTLE_ENDIAN == 0 {
            for word in bytes.chunks_exact_mut(8) {
                word.reverse();
            }
        }
        Self::decode(&bytes, flat)
    }

    /// Encodes a value to be stored; `zle` compresses to at most so many bytes, or says that it cannot.
    #[must_use]
    pub fn pack(&self, flat: bool, zle: impl FnOnce(&[u8], usize) -> Option<Vec<u8>>) -> Vec<u8> {
        let bytes = self.encode(flat);
        let (head, rest) = match zle(&bytes, bytes.len() - 1) {
            Some(packed) => (STORED_ZLE, packed),
            None => (STORED_PLAIN, bytes),
        };
        let mut value = vec![head | LITTLE_ENDIAN];
        value.extend_from_slice(&rest);
        value
    }

    /// References of all variants but the obsolete first one of the old form.
    #[must_use]
    pub fn references(&self, flat: bool) -> u64 {
        let counted = self.variants.iter().skip(usize::from(!flat));
        counted.fold(0, |sum, v| sum.saturating_add(v.references))
    }
}

/// Counts of entries by how often they are referenced: 64 buckets of 8 sums.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DdtHistogram([[u64; 8]; 64]);

impl Default for DdtHistogram {
    fn default() -> Self {
        Self([[0; 8]; 64])
    }
}

impl DdtHistogram {
    /// Decodes a stored histogram; `None` when it is of another length.
    #[must_use]
    pub fn from_words(words: &[u64]) -> Option<Self> {
        let mut histogram = Self::default();
        if words.len() != histogram.0.as_flattened().len() {
            return None;
        }
        for (sum, word) in histogram.0.as_flattened_mut().iter_mut().zip(words) {
            *sum = *word;
        }
        Some(histogram)
    }

    /// Encodes the histogram.
    #[must_use]
    pub fn to_words(&self) -> Vec<u64> {
        self.0.as_flattened().to_vec()
    }

    /// Adds or takes away the sums of an entry: blocks, logical, physical and deflated bytes, and the same times the
    /// references. One without references is in no bucket.
    pub fn change(&mut self, sums: &[u64; 8], add: bool) {
        let [_, _, _, _, references, ..] = *sums;
        let bucket = references.checked_ilog2();
        let bucket = bucket.and_then(|bucket| self.0.get_mut(bucket as usize));
        for (total, sum) in bucket.into_iter().flatten().zip(sums) {
            *total = if add {
                total.wrapping_add(*sum)
            } else {
                total.wrapping_sub(*sum)
            };
        }
    }

    /// Returns the sums of [`DdtHistogram::change`] of the blocks with 1 reference, with 2 and 3, with 4 to 7 and so on.
    #[must_use]
    pub fn rows(&self) -> &[[u64; 8]; 64] {
        &self.0
    }

    /// Adds the sums of another histogram.
    pub fn merge(&mut self, other: &Self) {
        let theirs = other.0.as_flattened();
        for (total, sum) in self.0.as_flattened_mut().iter_mut().zip(theirs) {
            *total = total.wrapping_add(*sum);
        }
    }

    /// Deflated bytes: as referenced, as stored.
    #[must_use]
    pub fn bytes(&self) -> (u64, u64) {
        let mut sums = (0_u64, 0_u64);
        for [_, _, _, stored, _, _, _, referenced] in self.0 {
            sums = (sums.0.wrapping_add(referenced), sums.1.wrapping_add(stored));
        }
        sums
    }
}

/// The bonus of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct DdtLogHeader {
    /// It is the log that is being merged into the table.
    pub is_flushing: bool,
    /// Bytes of records.
    pub length: u64,
    /// Txg of the first record.
    pub first_txg: u64,
    /// Records up to this key are in the table already.
    pub checkpoint: Option<DdtKey>,
}

impl DdtLogHeader {
    /// Encoded bytes.
    pub const SIZE: usize = 64;
    const VERSION: u64 = 1;
    const FLUSHING: u64 = 1 << 8;
    const CHECKPOINT: u64 = 1 << 9;

    /// Decodes a log's bonus.
    ///
    /// # Errors
    /// [`DecodeError`] when it is too short or of another version.
    pub fn decode(buf: &[u8]) -> Result<Self> {
        need(buf, Self::SIZE, "dedup log header")?;
        let word = u64_at(buf, 0);
        if word & 0xff != Self::VERSION {
            return Err(DecodeError::new("dedup log version", 0));
        }
        Ok(Self {
            is_flushing: word & Self::FLUSHING != 0,
            length: u64_at(buf, 8),
            first_txg: u64_at(buf, 16),
            checkpoint: (word & Self::CHECKPOINT != 0).then(|| DdtKey::at(buf, 24)),
        })
    }

    /// Encodes a log's bonus.
    #[must_use]
    pub fn encode(&self) -> [u8; Self::SIZE] {
        let mut bonus = [0; Self::SIZE];
        let flushing = if self.is_flushing { Self::FLUSHING } else { 0 };
        let checkpoint = match self.checkpoint {
            Some(_) => Self::CHECKPOINT,
            None => 0,
        };
        put_u64(&mut bonus, 0, Self::VERSION | flushing | checkpoint);
        put_u64(&mut bonus, 8, self.length);
        put_u64(&mut bonus, 16, self.first_txg);
        for (n, word) in self
            .checkpoint
            .unwrap_or_default()
            .0
            .into_iter()
            .enumerate()
        {
            put_u64(&mut bonus, 24 + 8 * n, word);
        }
        bonus
    }
}

/// A record of a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DdtLogRecord {
    pub key: DdtKey,
    /// Number of the class whose object has the entry; `None` for one that no object has yet.
    pub class: Option<u64>,
    pub entry: DdtEntry,
}

impl DdtLogRecord {
    const ENTRY_AT: usize = 8 + DdtKey::SIZE;
    /// Type of a record that holds an entry; 0 ends a block.
    const ENTRY: u64 = 1;
    /// Storage of an entry that no object has yet, and all above.
    const NOT_STORED: u64 = 1;
    /// The class of such an entry.
    const NO_CLASS: u64 = 3;
    /// Bytes of a record of a table of the fast form.
    pub const FLAT_SIZE: usize = Self::ENTRY_AT + FLAT_PHYS_BYTES;

    /// Encodes a record of a table of the fast form.
    #[must_use]
    pub fn encode_flat(&self) -> [u8; Self::FLAT_SIZE] {
        let mut record = [0; Self::FLAT_SIZE];
        let (storage, class) = match self.class {
            Some(class) => (0, class),
            None => (Self::NOT_STORED, Self::NO_CLASS),
        };
        let word = Self::ENTRY | (Self::FLAT_SIZE as u64) << 8 | storage << 48 | class << 56;
        put_u64(&mut record, 0, word);
        for (n, part) in self.key.0.into_iter().enumerate() {
            put_u64(&mut record, 8 + 8 * n, part);
        }
        let entry = self.entry.encode(true);
        for (to, from) in record.iter_mut().skip(Self::ENTRY_AT).zip(entry) {
            *to = from;
        }
        record
    }

    /// Decodes the record at the start of `buf`, the rest of a block of a log; returns it with its length in bytes, or `None`
    /// where the records of the block end.
    ///
    /// # Errors
    /// [`DecodeError`] for an unknown type or an impossible length.
    pub fn decode(buf: &[u8], flat: bool) -> Result<Option<(Self, usize)>> {
        if buf.len() < 8 {
            return Ok(None);
        }
        let word = u64_at(buf, 0);
        let len = index(word >> 8 & 0xffff);
        let body = match word & 0xff {
            0 => return Ok(None),
            Self::ENTRY => buf.get(Self::ENTRY_AT..len),
            _ => None,
        };
        let body = body.ok_or(DecodeError::new("dedup log record", 0))?;
        let record = Self {
            key: DdtKey::at(buf, 8),
            class: ((word >> 48 & 0xff) < Self::NOT_STORED).then_some(word >> 56),
            entry: DdtEntry::decode(body, flat)?,
        };
        Ok(Some((record, len)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn variant() -> DdtPhys {
        DdtPhys {
            dvas: [(8, 77), (0, 0), (0, 0)],
            references: 3,
            birth: 12,
            since: 9,
        }
    }

    #[test]
    fn entries_round_trip() {
        let fast = DdtEntry {
            variants: vec![variant()],
        };
        let value = fast.pack(true, |_, _| None);
        assert_eq!((value.len(), value[0]), (73, 0x82));
        assert_eq!(DdtEntry::unpack(&value, true, |_, _| None), Ok(fast));
        let old = DdtEntry {
            variants: vec![
                DdtPhys {
                    since: 0,
                    ..variant()
                };
                4
            ],
        };
        let bytes = old.encode(false);
        assert_eq!((bytes.len(), old.references(false)), (256, 9));
        assert_eq!(DdtEntry::decode(&bytes, false), Ok(old));
        assert!(DdtEntry::decode(&bytes[..255], false).is_err());
        assert!(DdtEntry::unpack(&[], true, |_, _| None).is_err());
        assert!(DdtEntry::unpack(&[0x83, 1, 2], true, |_, _| None).is_err());
    }

    #[test]
    fn a_histogram_counts_by_powers_of_two() {
        let mut histogram = DdtHistogram::default();
        let sums = [1, 2, 3, 4, 5, 10, 15, 20];
        histogram.change(&sums, true);
        assert_eq!(histogram.0[2], sums);
        assert_eq!(histogram.bytes(), (20, 4));
        let again = DdtHistogram::from_words(&histogram.to_words());
        assert_eq!(again.as_ref(), Some(&histogram));
        histogram.change(&sums, false);
        histogram.change(&[0; 8], true);
        assert_eq!(histogram, DdtHistogram::default());
        assert_eq!(DdtHistogram::from_words(&[0; 511]), None);
    }

    #[test]
    fn logs_end_and_begin_again() {
        let mut bonus = vec![0; 64];
        put_u64(&mut bonus, 0, 1 | 3 << 8);
        put_u64(&mut bonus, 8, 4096);
        put_u64(&mut bonus, 24, 5);
        let header = DdtLogHeader::decode(&bonus).unwrap();
        assert_eq!(header.checkpoint, Some(DdtKey([5, 0, 0, 0, 0])));
        assert!(header.is_flushing && header.length == 4096);
        assert_eq!(header.encode()[..], bonus[..]);
        let empty = DdtLogHeader {
            length: 0,
            checkpoint: None,
            ..header
        };
        assert_eq!(DdtLogHeader::decode(&empty.encode()), Ok(empty));
        let mut record = vec![0; 128];
        put_u64(&mut record, 0, 1 | 120 << 8 | 2 << 56);
        let (decoded, len) = DdtLogRecord::decode(&record, true).unwrap().unwrap();
        assert_eq!((decoded.class, len), (Some(2), 120));
        assert_eq!(DdtLogRecord::decode(&record[len..], true), Ok(None));
        let unstored = DdtLogRecord {
            class: None,
            ..decoded
        };
        let again = DdtLogRecord::decode(&unstored.encode_flat(), true);
        assert_eq!(again, Ok(Some((unstored, 120))));
        put_u64(&mut record, 0, 1 | 119 << 8);
        assert!(DdtLogRecord::decode(&record, true).is_err());
        put_u64(&mut record, 0, 2 | 120 << 8);
        assert!(DdtLogRecord::decode(&record, true).is_err());
    }
}
