//! A set of byte (or txg) ranges, kept sorted and merged.  Pure bookkeeping for space maps.

use std::collections::BTreeMap;
use std::ops::Range;

/// Disjoint, non-touching ranges.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RangeSet {
    /// start -> end, exclusive.
    ranges: BTreeMap<u64, u64>,
}

/// The ranges do not fit what the set holds: added twice, or removed without being there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Overlap;

impl RangeSet {
    /// Adds a range; fails when any part of it is there already.
    pub(crate) fn add(&mut self, range: Range<u64>) -> Result<(), Overlap> {
        if range.is_empty() {
            return Ok(());
        }
        let before = self
            .ranges
            .range(..range.start)
            .next_back()
            .map(|(&s, &e)| (s, e));
        let after = self
            .ranges
            .range(range.start..)
            .next()
            .map(|(&s, &e)| (s, e));
        if before.is_some_and(|(_, end)| end > range.start)
            || after.is_some_and(|(start, _)| start < range.end)
        {
            return Err(Overlap);
        }
        let mut merged = range;
        if let Some((start, end)) = before
            && end == merged.start
        {
            self.ranges.remove(&start);
            merged.start = start;
        }
        if let Some((start, end)) = after
            && start == merged.end
        {
            self.ranges.remove(&start);
            merged.end = end;
        }
        self.ranges.insert(merged.start, merged.end);
        Ok(())
    }

    /// Adds a range, whatever is there already.
    pub(crate) fn union(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        let mut merged = range;
        while let Some((&start, &end)) = self.ranges.range(..=merged.end).next_back() {
            if end < merged.start {
                break;
            }
            merged.start = merged.start.min(start);
            merged.end = merged.end.max(end);
            self.ranges.remove(&start);
        }
        self.ranges.insert(merged.start, merged.end);
    }

    /// Removes a range; fails when not all of it is there.
    pub(crate) fn remove(&mut self, range: Range<u64>) -> Result<(), Overlap> {
        if range.is_empty() {
            return Ok(());
        }
        let Some((&start, &end)) = self.ranges.range(..=range.start).next_back() else {
            return Err(Overlap);
        };
        if end < range.end {
            return Err(Overlap);
        }
        self.ranges.remove(&start);
        if start < range.start {
            self.ranges.insert(start, range.start);
        }
        if range.end < end {
            self.ranges.insert(range.end, end);
        }
        Ok(())
    }

    /// Returns the parts of `whole` that are in the set, in order.
    pub(crate) fn within(&self, whole: &Range<u64>) -> Vec<Range<u64>> {
        let mut parts: Vec<Range<u64>> = self
            .ranges
            .range(..whole.end)
            .rev()
            .take_while(|&(_, &end)| end > whole.start)
            .map(|(&start, &end)| start.max(whole.start)..end.min(whole.end))
            .collect();
        parts.reverse();
        parts
    }

    /// Returns the ranges in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        self.ranges.iter().map(|(&start, &end)| start..end)
    }

    /// Returns the sum of the lengths.
    pub(crate) fn total(&self) -> u64 {
        self.iter().map(|range| range.end - range.start).sum()
    }

    /// Whether nothing is in the set.
    pub(crate) fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Returns the parts of `whole` that are not in the set.
    pub(crate) fn complement(&self, whole: Range<u64>) -> Vec<Range<u64>> {
        let mut out = Vec::new();
        let mut at = whole.start;
        for range in self.iter() {
            let start = range.start.clamp(whole.start, whole.end);
            if at < start {
                out.push(at..start);
            }
            at = at.max(range.end.min(whole.end));
        }
        if at < whole.end {
            out.push(at..whole.end);
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn behaves_like_a_set_of_units() {
        // A naive model over 64 units and a small linear generator.
        let mut set = RangeSet::default();
        let mut model = [false; 64];
        let mut seed = 7u64;
        for _ in 0..20_000 {
            seed = seed
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            let start = (seed >> 33) % 64;
            let len = (seed >> 40) % 9;
            let end = (start + len).min(64);
            let units = usize::try_from(start).unwrap()..usize::try_from(end).unwrap();
            match (seed >> 60) % 3 {
                0 => {
                    let fits = model[units.clone()].iter().all(|used| !used);
                    assert_eq!(set.add(start..end).is_ok(), fits);
                    if fits {
                        model[units].fill(true);
                    }
                }
                1 => {
                    let fits = model[units.clone()].iter().all(|used| *used);
                    assert_eq!(set.remove(start..end).is_ok(), fits);
                    if fits {
                        model[units].fill(false);
                    }
                }
                _ => {
                    set.union(start..end);
                    model[units].fill(true);
                }
            }
            let used = u64::try_from(model.iter().filter(|used| **used).count()).unwrap();
            assert_eq!(set.total(), used);
            let free: u64 = set.complement(0..64).iter().map(|r| r.end - r.start).sum();
            assert_eq!(free, 64 - used);
            let mut last = None;
            for range in set.iter() {
                assert!(
                    last.is_none_or(|end| end < range.start),
                    "touching ranges are merged"
                );
                last = Some(range.end);
            }
        }
    }
}
