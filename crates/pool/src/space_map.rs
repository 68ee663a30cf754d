//! One space map object: its header, its entries, appending and loading.
//!
//! A map starts as "all free"; entries are applied in order.  It knows offsets relative to its own
//! start and nothing of metaslabs or of when it is written.
// OpenZFS: include/sys/space_map.h (layout), module/zfs/space_map.c (when two-word entries are used)

use std::ops::Range;

use dmu::{AllocSpec, Objset, Tx};
use ondisk::space_map::SpaceMapHeader;
use ondisk::{ObjectId, ObjectType};
use range_tree::RangeTree;

use crate::PoolError;

/// Data block size in bytes of new maps in a pool without log space maps.
pub(crate) const BLOCK_SIZE: u32 = 16 << 10;
const INDIRECT_SHIFT: u8 = 14;
/// Bonus length with and without the histogram.
pub(crate) const BONUS_HISTOGRAM: u16 = 320;
const BONUS_PLAIN: u16 = 24;
const BUCKETS: usize = 32;
/// Longest run of a one-word entry, and first offset too large for one, in units.
const RUN_ONE_WORD: u64 = 1 << 15;
const OFFSET_ONE_WORD: u64 = 1 << 47;
const RUN_TWO_WORDS: u64 = 1 << 36;
const PAD: u64 = 2 << 62;
const _: () = assert!(BLOCK_SIZE == 1 << INDIRECT_SHIFT);
const _: () = assert!(OFFSET_ONE_WORD < 1 << 63);
const _: () = assert!(
    SpaceMapHeader::SIZES.0 == BONUS_PLAIN as usize
        && SpaceMapHeader::SIZES.1 == BONUS_HISTOGRAM as usize
);
/// Entries are read in pieces of this many bytes, so that a huge map does not need huge memory.
const READ_PIECE: u64 = 1 << 20;
const _: () = assert!(READ_PIECE.is_multiple_of(8) && RUN_ONE_WORD < RUN_TWO_WORDS);

/// Whether a range becomes allocated or free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MapType {
    /// Becomes allocated (in a dirty-time log: becomes missing).
    Alloc,
    /// Becomes free.
    Free,
}

/// The bonus of a space map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    /// Bytes of entries.
    pub(crate) length: u64,
    /// Bytes allocated after all entries.
    pub(crate) allocated: i64,
    /// Free segments by size; `None` in the short header.
    pub(crate) histogram: Option<[u64; BUCKETS]>,
}

impl Header {
    /// Returns the header of an empty map.
    pub(crate) fn empty(histogram: bool) -> Self {
        Self {
            length: 0,
            allocated: 0,
            histogram: histogram.then_some([0; BUCKETS]),
        }
    }

    /// Decodes a bonus of 24 or 320 bytes.
    pub(crate) fn decode(bonus: &[u8]) -> Option<Self> {
        let phys = SpaceMapHeader::decode(bonus).ok()?;
        Some(Self {
            length: phys.length,
            allocated: phys.allocated,
            histogram: phys.histogram,
        })
    }

    /// Encodes, naming the map's own object number.
    pub(crate) fn encode(&self, object: ObjectId) -> Vec<u8> {
        let phys = SpaceMapHeader {
            object: object.0,
            length: self.length,
            allocated: self.allocated,
            histogram: self.histogram,
        };
        phys.encode()
    }
}

/// Where a map's offsets are: `start` is subtracted, `shift` is the log2 of its unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Scale {
    /// First byte (or txg) of the map.
    pub(crate) start: u64,
    /// Bytes (or txgs) covered.
    pub(crate) size: u64,
    /// log2 of the unit.
    pub(crate) shift: u8,
}

/// Sorts free segments into the buckets of a header: bucket i holds sizes from `2^(i+shift)`,
/// the last one counts larger segments as several of its own size.
pub(crate) fn histogram_of(log2_counts: &[u64; 64], shift: u8) -> [u64; BUCKETS] {
    let mut buckets = [0u64; BUCKETS];
    for (log2, &count) in log2_counts.iter().enumerate().skip(usize::from(shift)) {
        let index = log2 - usize::from(shift);
        if index < BUCKETS {
            buckets[index] += count;
        } else {
            let extra = u32::try_from(index - (BUCKETS - 1)).expect("below 64");
            buckets[BUCKETS - 1] = buckets[BUCKETS - 1].saturating_add(count << extra.min(32));
        }
    }
    buckets
}

/// Creates an empty map.
pub(crate) async fn create(
    mos: &Objset,
    histogram: bool,
    tx: &Tx,
) -> Result<(ObjectId, Header), PoolError> {
    create_with(mos, histogram, BLOCK_SIZE, tx).await
}

/// As [`create`], with data blocks of `block_size` bytes.
pub(crate) async fn create_with(
    mos: &Objset,
    histogram: bool,
    block_size: u32,
    tx: &Tx,
) -> Result<(ObjectId, Header), PoolError> {
    assert!(tx.is_syncing(), "create happens in syncing context");
    let bonus_len = if histogram {
        BONUS_HISTOGRAM
    } else {
        BONUS_PLAIN
    };
    let spec = AllocSpec::new(ObjectType::SPACE_MAP)
        .block_size(block_size)
        .indirect_shift(INDIRECT_SHIFT)
        .bonus(ObjectType::SPACE_MAP_HEADER, bonus_len);
    let object = mos.allocate(spec, tx).await?;
    let header = Header::empty(histogram);
    set_header(mos, object, &header, tx).await?;
    Ok((object, header))
}

/// Reads a map's header.
pub(crate) async fn header(mos: &Objset, object: ObjectId) -> Result<Header, PoolError> {
    let bonus = mos.bonus(object).await?;
    Header::decode(&bonus.bytes)
        .ok_or_else(|| PoolError::Corrupt(format!("space map {object} has a bad header")))
}

/// Writes a map's header.
pub(crate) async fn set_header(
    mos: &Objset,
    object: ObjectId,
    header: &Header,
    tx: &Tx,
) -> Result<(), PoolError> {
    assert!(tx.is_syncing(), "set header happens in syncing context");
    let kind = ObjectType::SPACE_MAP_HEADER;
    mos.set_bonus(object, kind, &header.encode(object), tx)
        .await?;
    Ok(())
}

/// Empties a map, keeping its object.
pub(crate) async fn truncate(
    mos: &Objset,
    object: ObjectId,
    header: &mut Header,
    tx: &Tx,
) -> Result<(), PoolError> {
    assert!(tx.is_syncing(), "truncate happens in syncing context");
    mos.free_range(object, 0, u64::MAX, tx).await?;
    *header = Header::empty(header.histogram.is_some());
    Ok(())
}

/// Turns ranges into entries that follow `at_byte` bytes of earlier ones.
pub(crate) struct Encoder {
    scale: Scale,
    two_words: bool,
    /// What two-word entries say of it; only logs of many vdevs do.
    vdev: Option<u32>,
    block_size: u64,
    at: u64,
    words: Vec<u64>,
    allocated: i64,
}

impl Encoder {
    /// Begins after `header.length` bytes in blocks of `block_size` bytes.  `two_words` allows
    /// entries of the `spacemap_v2` feature.
    pub(crate) fn new(scale: Scale, header: &Header, block_size: u32, two_words: bool) -> Self {
        Self {
            scale,
            two_words,
            vdev: None,
            block_size: u64::from(block_size),
            at: header.length,
            words: Vec::new(),
            allocated: 0,
        }
    }

    /// The entries that follow are of this vdev, in two words each.
    pub(crate) fn of_vdev(&mut self, id: u32) {
        assert!(id < 1 << 24, "an entry has 24 bits for its vdev");
        self.vdev = Some(id);
    }

    /// Appends the informational entry that precedes a batch.
    pub(crate) fn batch(&mut self, kind: MapType, txg: u64, pass: u32) {
        let action = u64::from(kind == MapType::Free);
        let pass = u64::from(pass) & 0x3ff;
        self.push(2 << 62 | action << 60 | pass << 50 | (txg & ((1 << 50) - 1)));
    }

    /// Appends one range.  It must lie within the map and on whole units.
    pub(crate) fn range(&mut self, kind: MapType, range: &Range<u64>) {
        let end = self.scale.start + self.scale.size;
        assert!(
            range.start >= self.scale.start && range.end <= end && range.start < range.end,
            "range {range:x?} lies within its space map"
        );
        let unit = (1u64 << self.scale.shift) - 1;
        assert!(
            (range.start | range.end) & unit == 0,
            "range {range:x?} is on whole units"
        );
        let length = range.end - range.start;
        let signed = i64::try_from(length).expect("a metaslab is smaller than 2^63");
        self.allocated += if kind == MapType::Alloc {
            signed
        } else {
            -signed
        };
        let bit = u64::from(kind == MapType::Free);
        let mut offset = (range.start - self.scale.start) >> self.scale.shift;
        let mut left = length >> self.scale.shift;
        while left > 0 {
            let long = left > RUN_ONE_WORD || offset + left > OFFSET_ONE_WORD;
            if self.vdev.is_some() || (self.two_words && long) {
                let run = left.min(RUN_TWO_WORDS);
                // A two-word entry never straddles a block; the rest of the block is padding.
                if (self.at + 8).is_multiple_of(self.block_size) {
                    self.push(PAD);
                }
                self.push(3 << 62 | (run - 1) << 24 | u64::from(self.vdev.unwrap_or(0)));
                self.push(bit << 63 | offset);
                offset += run;
                left -= run;
            } else {
                let run = left.min(RUN_ONE_WORD);
                self.push(offset << 16 | bit << 15 | (run - 1));
                offset += run;
                left -= run;
            }
        }
    }

    fn push(&mut self, word: u64) {
        self.words.push(word);
        self.at += 8;
    }

    /// Writes the entries behind the earlier ones and updates `header` (not yet stored).
    pub(crate) async fn append(
        self,
        mos: &Objset,
        object: ObjectId,
        header: &mut Header,
        tx: &Tx,
    ) -> Result<(), PoolError> {
        assert!(tx.is_syncing(), "append happens in syncing context");
        let bytes = ondisk::bytes::of_u64s(&self.words);
        if !bytes.is_empty() {
            mos.write(object, header.length, &bytes, tx).await?;
        }
        header.length = self.at;
        header.allocated += self.allocated;
        Ok(())
    }
}

/// One run of a map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    /// What becomes of it.
    pub(crate) kind: MapType,
    /// First unit.
    pub(crate) offset: u64,
    /// Units.
    pub(crate) run: u64,
    /// Top-level vdev; only logs of many vdevs say it.
    pub(crate) vdev: Option<u32>,
}

/// What one word (or two) says.
#[derive(Debug, PartialEq, Eq)]
enum DecodedWord {
    Nothing,
    Run {
        kind: MapType,
        offset: u64,
        run: u64,
    },
    /// The first half of a two-word entry: its run and its vdev.
    First(u64, u32),
}

fn decode_word(word: u64) -> DecodedWord {
    if word >> 63 == 0 {
        let kind = if word >> 15 & 1 == 0 {
            MapType::Alloc
        } else {
            MapType::Free
        };
        return DecodedWord::Run {
            kind,
            offset: word >> 16 & (OFFSET_ONE_WORD - 1),
            run: (word & 0x7fff) + 1,
        };
    }
    if word >> 62 == 2 {
        return DecodedWord::Nothing;
    }
    let vdev = u32::try_from(word & 0xff_ffff).expect("24 bits");
    DecodedWord::First((word >> 24 & (RUN_TWO_WORDS - 1)) + 1, vdev)
}

/// Calls `visit` for every run of a map, in order.
///
/// # Errors
/// `Corrupt` when the map is not one; what `visit` returns; errors of reading.
pub(crate) async fn for_each(
    mos: &Objset,
    object: ObjectId,
    header: &Header,
    visit: impl FnMut(Run) -> Result<(), PoolError>,
) -> Result<(), PoolError> {
    for_each_from(mos, object, header, 0, visit).await
}

/// As [`for_each`], for the entries from a byte on, with which an entry must begin.
pub(crate) async fn for_each_from(
    mos: &Objset,
    object: ObjectId,
    header: &Header,
    from: u64,
    mut visit: impl FnMut(Run) -> Result<(), PoolError>,
) -> Result<(), PoolError> {
    let bad = |what: &str| PoolError::Corrupt(format!("space map {object}: {what}"));
    let info = mos.object_info(object).await?;
    let room = u64::from(info.block_size).saturating_mul(info.max_block_id.saturating_add(1));
    if !header.length.is_multiple_of(8) || header.length > room {
        return Err(bad("the length in its header is impossible"));
    }
    let mut first = None;
    let mut at = from;
    while at < header.length {
        let len = (header.length - at).min(READ_PIECE);
        let piece = mos.read(object, at, ondisk::bytes::index(len)).await?;
        for word in ondisk::bytes::u64s(&piece) {
            let run = match (first.take(), decode_word(word)) {
                (Some((run, vdev)), _) => {
                    let kind = if word >> 63 == 0 {
                        MapType::Alloc
                    } else {
                        MapType::Free
                    };
                    Run {
                        kind,
                        offset: word & !(1 << 63),
                        run,
                        vdev: Some(vdev),
                    }
                }
                (None, DecodedWord::Nothing) => continue,
                (None, DecodedWord::First(run, vdev)) => {
                    first = Some((run, vdev));
                    continue;
                }
                (None, DecodedWord::Run { kind, offset, run }) => Run {
                    kind,
                    offset,
                    run,
                    vdev: None,
                },
            };
            visit(run)?;
        }
        at += len;
    }
    if first.is_some() {
        return Err(bad("its last entry is incomplete"));
    }
    Ok(())
}

/// Reads a whole map and returns what it says is allocated, in absolute offsets.
///
/// # Errors
/// `Corrupt` when an entry lies outside the map, allocates twice or frees what is free, or the sum
/// differs from the header.
pub(crate) async fn load(
    mos: &Objset,
    object: ObjectId,
    header: &Header,
    scale: Scale,
) -> Result<RangeTree, PoolError> {
    let bad = |what: &str| PoolError::Corrupt(format!("space map {object}: {what}"));
    let mut allocated = RangeTree::default();
    let units = scale.size >> scale.shift;
    for_each(mos, object, header, |entry| {
        if entry.offset > units || entry.run > units - entry.offset {
            return Err(bad("an entry lies outside the metaslab"));
        }
        let start = scale.start + (entry.offset << scale.shift);
        let range = start..start + (entry.run << scale.shift);
        match entry.kind {
            MapType::Alloc => allocated
                .add(range)
                .map_err(|_| bad("a range is allocated twice")),
            MapType::Free => allocated
                .remove(&range)
                .map_err(|_| bad("a range is freed that is not allocated")),
        }
    })
    .await?;
    if i64::try_from(allocated.space()).ok() != Some(header.allocated) {
        return Err(bad("its entries do not add up to the sum in its header"));
    }
    Ok(allocated)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encode(
        scale: Scale,
        at: u64,
        two_words: bool,
        ranges: &[(MapType, Range<u64>)],
    ) -> Vec<u64> {
        let header = Header {
            length: at,
            ..Header::empty(true)
        };
        let mut encoder = Encoder::new(scale, &header, BLOCK_SIZE, two_words);
        for (kind, range) in ranges {
            encoder.range(*kind, range);
        }
        encoder.words
    }

    const SCALE: Scale = Scale {
        start: 1 << 24,
        size: 1 << 30,
        shift: 9,
    };

    #[test]
    fn one_word_entries_have_the_documented_bits() {
        let start = SCALE.start;
        assert_eq!(
            encode(SCALE, 0, true, &[(MapType::Alloc, start..start + 512)]),
            [0]
        );
        assert_eq!(
            encode(
                SCALE,
                0,
                true,
                &[(MapType::Free, start + 1024..start + 2048)]
            ),
            [2 << 16 | 1 << 15 | 1]
        );
    }

    #[test]
    fn long_runs_are_split_or_take_two_words() {
        let whole = SCALE.start..SCALE.start + (40_000 << 9);
        let words = encode(SCALE, 0, false, &[(MapType::Alloc, whole.clone())]);
        assert_eq!(words, [32_767, 32_768 << 16 | (40_000 - 32_768 - 1)]);
        let words = encode(SCALE, 0, true, &[(MapType::Alloc, whole.clone())]);
        assert_eq!(words, [3 << 62 | 39_999 << 24, 0]);
        // The last word of a block is padding rather than half an entry.
        let words = encode(SCALE, 16_384 - 8, true, &[(MapType::Free, whole)]);
        assert_eq!(words, [PAD, 3 << 62 | 39_999 << 24, 1 << 63]);
    }

    #[test]
    fn entries_decode_to_what_was_encoded() {
        assert_eq!(decode_word(PAD), DecodedWord::Nothing);
        assert_eq!(
            decode_word(5 << 16 | 1 << 15 | 7),
            DecodedWord::Run {
                kind: MapType::Free,
                offset: 5,
                run: 8
            }
        );
        assert_eq!(
            decode_word(3 << 62 | 39_999 << 24),
            DecodedWord::First(40_000, 0)
        );
    }

    #[test]
    fn headers_survive_a_round_trip() {
        let mut header = Header::empty(true);
        header.length = 48;
        header.allocated = -5;
        header.histogram = Some([3; BUCKETS]);
        assert_eq!(Header::decode(&header.encode(ObjectId(9))), Some(header));
        assert_eq!(Header::decode(&[0; 8]), None);
    }
}
