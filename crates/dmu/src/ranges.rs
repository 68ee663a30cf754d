//! Sets of block numbers, as ranges: what a transaction group freed in an object.
//!
//! Ranges are half-open, disjoint and not adjacent. A million punched holes cost a million ranges; adjacent ones merge.

use std::collections::BTreeMap;
use std::ops::Range;

/// A set of `u64`, stored as start -> end.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Ranges(BTreeMap<u64, u64>);

impl Ranges {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds a range, merging with what it touches.
    pub(crate) fn insert(&mut self, range: Range<u64>) {
        if range.start >= range.end {
            return;
        }
        let (mut start, mut end) = (range.start, range.end);
        if let Some((&s, &e)) = self.0.range(..=start).next_back()
            && e >= start
        {
            start = s;
            end = end.max(e);
        }
        while let Some((&s, &e)) = self.0.range(start..=end).next() {
            self.0.remove(&s);
            end = end.max(e);
        }
        assert!(start < end, "a range has blocks");
        self.0.insert(start, end);
    }

    /// Whether `at` is in the set.
    pub(crate) fn contains(&self, at: u64) -> bool {
        self.range_at(at).is_some()
    }

    /// The range that holds `at`.
    pub(crate) fn range_at(&self, at: u64) -> Option<Range<u64>> {
        let (&start, &end) = self.0.range(..=at).next_back()?;
        (end > at).then_some(start..end)
    }

    /// Whether all of `range` is in the set.
    pub(crate) fn covers(&self, range: &Range<u64>) -> bool {
        range.start >= range.end
            || self
                .range_at(range.start)
                .is_some_and(|r| r.end >= range.end)
    }

    /// The first part of the set inside `range`.
    pub(crate) fn first_in(&self, range: &Range<u64>) -> Option<Range<u64>> {
        if range.start >= range.end {
            return None;
        }
        if let Some(r) = self.range_at(range.start) {
            return Some(range.start..r.end.min(range.end));
        }
        let (&start, &end) = self.0.range(range.clone()).next()?;
        Some(start..end.min(range.end))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn behaves_like_a_set() {
        let mut ranges = Ranges::default();
        let mut model = vec![false; 64];
        let mut seed = 7_u64;
        for _ in 0..500 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let start = (seed >> 33) % 64;
            let len = (seed >> 50) % 6;
            let end = (start + len).min(64);
            ranges.insert(start..end);
            model[usize::try_from(start).expect("small")..usize::try_from(end).expect("small")]
                .fill(true);
            for (at, &want) in (0_u64..).zip(&model) {
                assert_eq!(ranges.contains(at), want);
            }
            let keys: Vec<_> = ranges.0.iter().map(|(&s, &e)| (s, e)).collect();
            assert!(
                keys.windows(2).all(|w| w[0].1 < w[1].0),
                "disjoint and not adjacent"
            );
            if model.iter().all(|&b| b) {
                ranges = Ranges::default();
                model.fill(false);
            }
        }
        ranges = Ranges::default();
        ranges.insert(4..8);
        ranges.insert(10..u64::MAX);
        assert_eq!(ranges.first_in(&(0..6)), Some(4..6));
        assert_eq!(ranges.first_in(&(8..10)), None);
        assert_eq!(ranges.first_in(&(5..20)), Some(5..8));
        assert!(ranges.covers(&(11..1000)) && !ranges.covers(&(7..11)));
    }
}
