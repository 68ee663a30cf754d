//! Sets of byte ranges: sorted, merged, optionally indexed by length.
//!
//! Guarantees: ranges never overlap and never touch (touching ranges are merged); `space` is the sum of all lengths;
//! every operation costs O(log n) for each range it creates or destroys.
//! Does not know what the ranges mean.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// The range given does not agree with the set (adding what is there, removing what is not).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Mismatch;

/// A set of byte ranges.
#[derive(Debug, Clone, Default)]
pub(crate) struct RangeTree {
    /// start -> end
    by_start: BTreeMap<u64, u64>,
    /// (length, start); only kept when the set is searched for room.
    by_length: Option<BTreeSet<(u64, u64)>>,
    space: u64,
}

impl RangeTree {
    /// Makes an empty set that can be searched by length.
    pub(crate) fn searchable() -> Self {
        Self {
            by_length: Some(BTreeSet::new()),
            ..Self::default()
        }
    }

    /// Returns the sum of all lengths in bytes.
    pub(crate) fn space(&self) -> u64 {
        self.space
    }

    /// Returns the number of ranges.
    pub(crate) fn len(&self) -> usize {
        self.by_start.len()
    }

    /// Returns the ranges in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        self.by_start.iter().map(|(&start, &end)| start..end)
    }

    /// Returns the parts of a range that are not in the set, in order.
    pub(crate) fn gaps(&self, range: &Range<u64>) -> Vec<Range<u64>> {
        let mut inside: Vec<(u64, u64)> = self
            .by_start
            .range(..range.end)
            .rev()
            .take_while(|&(_, &end)| end > range.start)
            .map(|(&start, &end)| (start, end))
            .collect();
        inside.reverse();
        let mut gaps = Vec::new();
        let mut at = range.start;
        for (start, end) in inside {
            if at < start {
                gaps.push(at..start);
            }
            at = at.max(end);
        }
        if at < range.end {
            gaps.push(at..range.end);
        }
        gaps
    }

    /// Returns true if any byte of the range is in the set.
    pub(crate) fn overlaps(&self, range: &Range<u64>) -> bool {
        self.by_start
            .range(..range.end)
            .next_back()
            .is_some_and(|(_, &end)| end > range.start)
    }

    /// Returns true if every byte of the range is in the set.
    pub(crate) fn contains(&self, range: &Range<u64>) -> bool {
        self.by_start
            .range(..=range.start)
            .next_back()
            .is_some_and(|(_, &end)| end >= range.end)
    }

    /// Adds a range none of whose bytes may be in the set yet.
    pub(crate) fn add(&mut self, range: Range<u64>) -> Result<(), Mismatch> {
        if range.is_empty() {
            return Ok(());
        }
        if self.overlaps(&range) {
            return Err(Mismatch);
        }
        let (mut start, mut end) = (range.start, range.end);
        if let Some((&before, &before_end)) = self.by_start.range(..start).next_back()
            && before_end == start
        {
            self.take(before, before_end);
            start = before;
        }
        if let Some(&after_end) = self.by_start.get(&end) {
            self.take(end, after_end);
            end = after_end;
        }
        self.put(start, end);
        Ok(())
    }

    /// Removes a range all of whose bytes must be in the set.
    pub(crate) fn remove(&mut self, range: &Range<u64>) -> Result<(), Mismatch> {
        if range.is_empty() {
            return Ok(());
        }
        let Some((&start, &end)) = self.by_start.range(..=range.start).next_back() else {
            return Err(Mismatch);
        };
        if end < range.end {
            return Err(Mismatch);
        }
        self.take(start, end);
        if start < range.start {
            self.put(start, range.start);
        }
        if range.end < end {
            self.put(range.end, end);
        }
        Ok(())
    }

    /// Adds whatever part of the range is not in the set yet.
    pub(crate) fn union(&mut self, range: Range<u64>) {
        self.subtract(&range);
        let added = self.add(range);
        assert!(added.is_ok(), "the range was just cleared");
    }

    /// Removes whatever part of the range is in the set.
    pub(crate) fn subtract(&mut self, range: &Range<u64>) {
        if range.is_empty() {
            return;
        }
        while let Some((&start, &end)) = self.by_start.range(..range.end).next_back() {
            if end <= range.start {
                break;
            }
            self.take(start, end);
            if range.end < end {
                self.put(range.end, end);
            }
            if start < range.start {
                self.put(start, range.start);
                break;
            }
        }
    }

    /// Returns the length of the longest range, 0 if empty. Only for searchable sets.
    pub(crate) fn longest(&self) -> u64 {
        self.lengths().last().map_or(0, |&(length, _)| length)
    }

    /// Returns the shortest range of at least `length` bytes. Only for searchable sets.
    pub(crate) fn best_fit(&self, length: u64) -> Option<Range<u64>> {
        self.lengths()
            .range((length, 0)..)
            .next()
            .map(|&(found, start)| start..start + found)
    }

    /// Returns the longest range. Only for searchable sets.
    pub(crate) fn longest_range(&self) -> Option<Range<u64>> {
        self.lengths()
            .last()
            .map(|&(length, start)| start..start + length)
    }

    /// Returns the first range at or behind `from` of at least `length` bytes, looking at no more than `tries` ranges.
    pub(crate) fn first_fit(&self, from: u64, length: u64, tries: usize) -> Option<Range<u64>> {
        self.by_start
            .range(from..)
            .take(tries)
            .find(|&(&start, &end)| end - start >= length)
            .map(|(&start, &end)| start..end)
    }

    /// Empties the set and returns its ranges in order.
    pub(crate) fn drain(&mut self) -> Vec<Range<u64>> {
        if let Some(lengths) = &mut self.by_length {
            lengths.clear();
        }
        self.space = 0;
        std::mem::take(&mut self.by_start)
            .into_iter()
            .map(|(start, end)| start..end)
            .collect()
    }

    fn lengths(&self) -> &BTreeSet<(u64, u64)> {
        self.by_length
            .as_ref()
            .expect("only searchable sets are searched")
    }

    fn put(&mut self, start: u64, end: u64) {
        assert!(start < end, "a range has bytes");
        self.by_start.insert(start, end);
        if let Some(lengths) = &mut self.by_length {
            lengths.insert((end - start, start));
        }
        self.space += end - start;
    }

    fn take(&mut self, start: u64, end: u64) {
        let known = self.by_start.remove(&start);
        assert!(known == Some(end), "a range that is taken is known");
        if let Some(lengths) = &mut self.by_length {
            lengths.remove(&(end - start, start));
        }
        self.space -= end - start;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const UNIVERSE: usize = 96;

    /// The naive model: one flag per byte.
    #[derive(Default)]
    struct Model {
        bytes: Vec<bool>,
    }

    impl Model {
        fn ranges(&self) -> Vec<Range<u64>> {
            let mut found = Vec::new();
            let mut start = None;
            for (at, &set) in self.bytes.iter().chain([&false]).enumerate() {
                match (start, set) {
                    (None, true) => start = Some(at as u64),
                    (Some(begin), false) => {
                        found.push(begin..at as u64);
                        start = None;
                    }
                    _ => {}
                }
            }
            found
        }
    }

    #[derive(Debug, Clone)]
    enum Op {
        Add(usize, usize),
        Remove(usize, usize),
        Union(usize, usize),
        Subtract(usize, usize),
    }

    fn ops() -> impl Strategy<Value = Vec<Op>> {
        let span = (0..UNIVERSE - 20, 1..20_usize);
        prop::collection::vec(
            prop_oneof![
                span.clone().prop_map(|(at, len)| Op::Add(at, at + len)),
                span.clone().prop_map(|(at, len)| Op::Remove(at, at + len)),
                span.clone().prop_map(|(at, len)| Op::Union(at, at + len)),
                span.prop_map(|(at, len)| Op::Subtract(at, at + len)),
            ],
            1..60,
        )
    }

    proptest! {
        #[test]
        fn agrees_with_one_flag_per_byte(ops in ops()) {
            let mut tree = RangeTree::searchable();
            let mut model = Model { bytes: vec![false; UNIVERSE] };
            for op in ops {
                match op {
                    Op::Add(start, end) => {
                        let fits = model.bytes[start..end].iter().all(|set| !set);
                        prop_assert_eq!(tree.add(start as u64..end as u64).is_ok(), fits);
                        if fits {
                            model.bytes[start..end].fill(true);
                        }
                    }
                    Op::Remove(start, end) => {
                        let fits = model.bytes[start..end].iter().all(|set| *set);
                        prop_assert_eq!(tree.remove(&(start as u64..end as u64)).is_ok(), fits);
                        if fits {
                            model.bytes[start..end].fill(false);
                        }
                    }
                    Op::Union(start, end) => {
                        tree.union(start as u64..end as u64);
                        model.bytes[start..end].fill(true);
                    }
                    Op::Subtract(start, end) => {
                        tree.subtract(&(start as u64..end as u64));
                        model.bytes[start..end].fill(false);
                    }
                }
                let expect = model.ranges();
                prop_assert_eq!(tree.iter().collect::<Vec<_>>(), expect.clone());
                prop_assert_eq!(tree.len(), expect.len());
                prop_assert_eq!(tree.space(), expect.iter().map(|r| r.end - r.start).sum::<u64>());
                prop_assert_eq!(tree.longest(), expect.iter().map(|r| r.end - r.start).max().unwrap_or(0));
                for want in [1_u64, 5, 17] {
                    let best = expect.iter().map(|r| r.end - r.start).filter(|&l| l >= want).min();
                    prop_assert_eq!(tree.best_fit(want).map(|r| r.end - r.start), best);
                    let first = expect.iter().find(|r| r.start >= 10 && r.end - r.start >= want).cloned();
                    prop_assert_eq!(tree.first_fit(10, want, UNIVERSE), first);
                }
            }
        }
    }
}
