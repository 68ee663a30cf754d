//! Sets of txgs, such as a leaf's DTL: the txgs of which it may not hold every write.

use std::ops::Range;

use ondisk::Txg;

/// Most ranges kept: beyond, all are merged into one, which only means that more is resilvered.
const RANGES_MAX: usize = 1024;
const _: () = assert!(RANGES_MAX > 1, "the first and the last range become one");

/// A set of txgs as sorted ranges that do not touch.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct TxgSet(Vec<Range<u64>>);

impl TxgSet {
    /// Returns the set of all txgs.
    pub(crate) fn everything() -> Self {
        Self(std::iter::once(0..u64::MAX).collect())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn contains(&self, txg: Txg) -> bool {
        self.0.iter().any(|range| range.contains(&txg.0))
    }

    pub(crate) fn add(&mut self, mut range: Range<u64>) {
        let known = |other: &Range<u64>| other.start <= range.start && range.end <= other.end;
        if range.is_empty() || self.0.iter().any(known) {
            return;
        }
        self.0.retain(|other| {
            let apart = other.end < range.start || range.end < other.start;
            if !apart {
                range = range.start.min(other.start)..range.end.max(other.end);
            }
            apart
        });
        let at = self.0.partition_point(|other| other.start < range.start);
        assert!(
            at == 0 || self.0[at - 1].end < range.start,
            "ranges of txgs are apart and in order"
        );
        assert!(
            self.0.get(at).is_none_or(|next| range.end < next.start),
            "ranges of txgs are apart and in order"
        );
        self.0.insert(at, range);
        if self.0.len() > RANGES_MAX
            && let (Some(first), Some(last)) = (self.0.first(), self.0.last())
        {
            self.0 = std::iter::once(first.start..last.end).collect();
        }
    }

    pub(crate) fn subtract(&mut self, done: &Range<u64>) {
        let mut left = Vec::new();
        for range in self.0.drain(..) {
            for part in [
                range.start..range.end.min(done.start),
                range.start.max(done.end)..range.end,
            ] {
                if !part.is_empty() {
                    left.push(part);
                }
            }
        }
        self.0 = left;
    }

    /// Returns the ranges and empties the set.
    pub(crate) fn take(&mut self) -> Vec<Range<u64>> {
        std::mem::take(&mut self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_merged_and_cut() {
        let mut txgs = TxgSet::default();
        for range in [10..12, 20..21, 12..13, 5..6, 7..7] {
            txgs.add(range);
        }
        assert_eq!(txgs.0, [5..6, 10..13, 20..21]);
        assert!(txgs.contains(Txg(12)) && !txgs.contains(Txg(13)));
        txgs.subtract(&(11..20));
        assert_eq!(txgs.0, [5..6, 10..11, 20..21]);
        txgs.subtract(&(0..u64::MAX));
        assert!(txgs.is_empty());
        assert!(TxgSet::everything().contains(Txg(0)));
    }
}
