//! Counts of equal blocks in bounded memory: of all contents, those whose hash is below a threshold that is halved whenever the table is
//! full. A content is in the table with all its references or not at all, so that each share of all contents stands for the rest.

use std::collections::BTreeMap;

use ondisk::ddt::DdtHistogram;

use super::{Z95, real};

/// What a block takes, and where it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct BlockSize {
    /// Bytes before compression.
    pub(super) lsize: u64,
    /// Bytes stored.
    pub(super) psize: u64,
    /// Bytes of space, with copies, deflated.
    pub(super) dsize: u64,
    /// Vdev and offset of its first copy.
    pub(super) place: (u32, u64),
}

/// One content.
#[derive(Clone, Copy, Debug)]
struct Row {
    size: BlockSize,
    references: u64,
    /// Of these, further ones to the place of the first: a cloned or deduplicated block.
    shared: u64,
}

/// The table.
#[derive(Clone, Debug)]
pub(super) struct Sketch {
    rows: BTreeMap<u128, Row>,
    rows_max: usize,
    halvings: u32,
    /// Sums of all blocks noted: how many, bytes before compression, stored, of space.
    pub(super) totals: [u64; 4],
}

/// What the table says of everything.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SketchFigures {
    /// Contents in the table, and the share of all contents it holds.
    pub(super) rows: u64,
    pub(super) share: f64,
    /// Contents in all, and the space they take once.
    pub(super) distinct: f64,
    pub(super) distinct_dsize: f64,
    /// How many times the blocks take that, and how far that may be off on each side (in 95 of 100 estimates).
    pub(super) ratio: f64,
    pub(super) ratio_error: f64,
    /// Space that further references to the same places would take.
    pub(super) shared_dsize: f64,
}

impl Sketch {
    /// A table of so many rows, at least 1.
    pub(super) fn new(rows_max: usize) -> Self {
        Self {
            rows: BTreeMap::new(),
            rows_max: rows_max.max(1),
            halvings: 0,
            totals: [0; 4],
        }
    }

    /// Counts a block whose content has this hash.
    pub(super) fn note(&mut self, hash: u128, size: BlockSize) {
        let parts = [1, size.lsize, size.psize, size.dsize];
        for (sum, part) in self.totals.iter_mut().zip(parts) {
            *sum = sum.saturating_add(part);
        }
        if !self.keeps(hash) {
            return;
        }
        let row = self.rows.entry(hash).or_insert(Row {
            size,
            references: 0,
            shared: 0,
        });
        row.shared += u64::from(row.references > 0 && row.size.place == size.place);
        row.references += 1;
        assert!(
            row.shared < row.references,
            "the first reference to a place shares nothing"
        );
        while self.rows.len() > self.rows_max && self.halvings < 64 {
            self.halvings += 1;
            let first_out = 1_u128 << (128 - self.halvings);
            drop(self.rows.split_off(&first_out));
        }
    }

    fn keeps(&self, hash: u128) -> bool {
        self.halvings == 0 || hash >> (128 - self.halvings) == 0
    }

    /// Returns what the table says.
    pub(super) fn figures(&self) -> SketchFigures {
        let share = 0.5_f64.powi(i32::try_from(self.halvings).unwrap_or(64));
        let (mut dsize, mut squares, mut shared) = (0.0, 0.0, 0.0);
        for row in self.rows.values() {
            let own = real(row.size.dsize);
            dsize += own;
            squares += own * own;
            shared += own * real(row.shared);
        }
        let rows = ondisk::bytes::len64(self.rows.len());
        assert!(
            share > 0.0 && share <= 1.0 && rows <= self.totals[0],
            "a table holds a part of what it was told"
        );
        // The space of all blocks is known; that of the contents is estimated from a share of them, which was chosen by hash
        // (Horvitz and Thompson 1952), so that content with very many references makes the error no larger.
        let distinct_dsize = dsize / share;
        let error = (squares * (1.0 - share)).sqrt() / share;
        let total = real(self.totals[3]);
        let (ratio, ratio_error) = if dsize > 0.0 {
            let ratio = total / distinct_dsize;
            (ratio, Z95 * ratio * error / distinct_dsize)
        } else {
            (1.0, 0.0)
        };
        SketchFigures {
            rows,
            share,
            distinct: real(rows) / share,
            distinct_dsize,
            ratio,
            ratio_error,
            shared_dsize: shared / share,
        }
    }

    /// Returns the contents by number of references, as a deduplication table would count them; of a sample, scaled up.
    pub(super) fn histogram(&self) -> Vec<[u64; 8]> {
        let mut histogram = DdtHistogram::default();
        for row in self.rows.values() {
            let BlockSize {
                lsize,
                psize,
                dsize,
                ..
            } = row.size;
            let n = row.references;
            let once = [1, lsize, psize, dsize];
            let mut sums = [0; 8];
            for (index, part) in once.into_iter().enumerate() {
                sums[index] = part;
                sums[index + 4] = part.wrapping_mul(n);
            }
            histogram.change(&sums, true);
        }
        let scale = |sum: u64| sum.checked_shl(self.halvings).unwrap_or(u64::MAX);
        let rows = histogram.rows().iter();
        rows.map(|row| row.map(scale)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A number that looks like a hash of `n`.
    fn hash(n: u64) -> u128 {
        let words = codec::checksum::sha256(&n.to_le_bytes());
        u128::from(words[0]) << 64 | u128::from(words[1])
    }

    fn size(place: u64) -> BlockSize {
        BlockSize {
            lsize: 131_072,
            psize: 65_536,
            dsize: 69_632,
            place: (0, place),
        }
    }

    #[test]
    fn what_fits_is_counted_exactly() {
        let mut sketch = Sketch::new(1000);
        for n in 0..900 {
            sketch.note(hash(n % 300), size(n));
        }
        // One more reference to a place that is known.
        sketch.note(hash(7), size(7));
        let found = sketch.figures();
        assert_eq!(
            sketch.totals,
            [901, 901 * 131_072, 901 * 65_536, 901 * 69_632]
        );
        assert!((found.distinct - 300.0).abs() < 1e-9 && found.ratio_error == 0.0);
        assert!((found.ratio - 901.0 / 300.0).abs() < 1e-9);
        assert!((found.shared_dsize - 69_632.0).abs() < 1e-9);
        let rows = sketch.histogram();
        assert_eq!((rows[1][0], rows[2][0]), (299, 1), "{rows:?}");
        assert_eq!(rows[1][4], 299 * 3);
    }

    #[test]
    fn a_sample_tells_of_everything_within_its_error() {
        // One content has half of all references; sizes differ; each error is looked at against the truth.
        let mut off = 0;
        for seed in 0..20_u64 {
            let mut sketch = Sketch::new(500);
            let (mut distinct_dsize, mut dsize) = (0, 0);
            for n in 0..20_000_u64 {
                let own = 4096 * (1 + n % 32);
                distinct_dsize += own;
                let references = if n == 5 { 30_000 } else { 1 + n % 2 };
                for reference in 0..references {
                    let place = (n << 20) + reference;
                    let size = BlockSize {
                        lsize: own,
                        psize: own,
                        dsize: own,
                        place: (0, place),
                    };
                    sketch.note(hash(n + (seed << 40)), size);
                    dsize += own;
                }
            }
            let found = sketch.figures();
            assert!(found.rows <= 500 && found.share < 0.05, "{found:?}");
            let truth = real(dsize) / real(distinct_dsize);
            assert!(found.ratio_error < truth * 0.2, "{found:?}");
            off += u32::from((found.ratio - truth).abs() > found.ratio_error);
            assert!((found.ratio - truth).abs() < 2.0 * found.ratio_error);
        }
        assert!(
            off <= 4,
            "{off} of 20 estimates lie outside of an error for 95 %"
        );
    }
}
