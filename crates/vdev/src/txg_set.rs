//! Sets of txgs, such as a leaf's DTL: the txgs of which it may not hold every write.

use std::ops::Range;

use ondisk::Txg;
use range_tree::RangeTree;

/// Most ranges kept: beyond, all are merged into one, which only means that more is resilvered.
const RANGES_MAX: usize = 1024;
const _: () = assert!(RANGES_MAX > 1, "the first and the last range become one");

/// A set of txgs, of at most [`RANGES_MAX`] ranges.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct TxgSet(RangeTree);

impl TxgSet {
    /// Returns the set of all txgs.
    pub(crate) fn everything() -> Self {
        Self(std::iter::once(0..u64::MAX).collect())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn contains(&self, txg: Txg) -> bool {
        self.0.contains(txg.0)
    }

    pub(crate) fn add(&mut self, range: Range<u64>) {
        self.0.union(range);
        if self.0.len() > RANGES_MAX {
            let first = self.0.iter().next().map_or(0, |first| first.start);
            let last = self.0.iter().next_back().map_or(0, |last| last.end);
            self.0.union(first..last);
        }
    }

    pub(crate) fn subtract(&mut self, done: &Range<u64>) {
        self.0.subtract(done);
    }

    /// Returns the ranges and empties the set.
    pub(crate) fn take(&mut self) -> Vec<Range<u64>> {
        self.0.drain()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranges(txgs: &TxgSet) -> Vec<Range<u64>> {
        txgs.0.iter().collect()
    }

    #[test]
    fn ranges_are_merged_and_cut() {
        let mut txgs = TxgSet::default();
        for range in [10..12, 20..21, 12..13, 5..6, 7..7] {
            txgs.add(range);
        }
        assert_eq!(ranges(&txgs), [5..6, 10..13, 20..21]);
        assert!(txgs.contains(Txg(12)) && !txgs.contains(Txg(13)));
        txgs.subtract(&(11..20));
        assert_eq!(ranges(&txgs), [5..6, 10..11, 20..21]);
        txgs.subtract(&(0..u64::MAX));
        assert!(txgs.is_empty());
        assert!(TxgSet::everything().contains(Txg(0)));
    }

    #[test]
    fn too_many_ranges_become_one() {
        let mut txgs = TxgSet::default();
        let most = RANGES_MAX as u64;
        (0..most).for_each(|n| txgs.add(10 * n..10 * n + 1));
        assert_eq!(ranges(&txgs).len(), RANGES_MAX);
        txgs.add(10 * most..10 * most + 1);
        assert_eq!(ranges(&txgs), std::slice::from_ref(&(0..10 * most + 1)));
    }
}
