//! Sets of numbers (bytes of a device, blocks of an object, txgs) as ranges: sorted, merged, optionally indexed by length.
//!
//! Guarantees: ranges are half-open, never overlap and never touch (touching ranges are merged); `space` is the sum of all
//! lengths; every operation costs O(log n) for each range it creates, destroys or returns. An empty range is part of every set.
//! Does not know what the numbers mean.

#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// The range given does not agree with the set: added although some of it is there, or removed although some is not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mismatch;

/// A set of `u64` as ranges.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RangeTree {
    /// start -> end
    by_start: BTreeMap<u64, u64>,
    /// (length, start); only kept when the set is searched for room.
    by_length: Option<BTreeSet<(u64, u64)>>,
    space: u64,
}

impl RangeTree {
    /// Makes an empty set that can be searched by length.
    #[must_use]
    pub fn searchable() -> Self {
        Self {
            by_length: Some(BTreeSet::new()),
            ..Self::default()
        }
    }

    /// Returns the sum of all lengths.
    #[must_use]
    pub fn space(&self) -> u64 {
        self.space
    }

    /// Returns the number of ranges.
    #[must_use]
    pub fn len(&self) -> usize {
        self.by_start.len()
    }

    /// Whether nothing is in the set.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.by_start.is_empty()
    }

    /// Returns the ranges in order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = Range<u64>> + '_ {
        self.by_start.iter().map(|(&start, &end)| start..end)
    }

    /// Returns the range that holds `at`.
    #[must_use]
    pub fn range_at(&self, at: u64) -> Option<Range<u64>> {
        let (&start, &end) = self.by_start.range(..=at).next_back()?;
        (at < end).then_some(start..end)
    }

    /// Whether `at` is in the set.
    #[must_use]
    pub fn contains(&self, at: u64) -> bool {
        self.range_at(at).is_some()
    }

    /// Whether all of a range is in the set.
    #[must_use]
    pub fn covers(&self, range: &Range<u64>) -> bool {
        let holder = || self.range_at(range.start);
        range.is_empty() || holder().is_some_and(|holder| range.end <= holder.end)
    }

    /// Whether any of a range is in the set.
    #[must_use]
    pub fn overlaps(&self, range: &Range<u64>) -> bool {
        let before_end = self.by_start.range(..range.end).next_back();
        !range.is_empty() && before_end.is_some_and(|(_, &end)| range.start < end)
    }

    /// Returns the first part of a range that is in the set.
    #[must_use]
    pub fn first_in(&self, range: &Range<u64>) -> Option<Range<u64>> {
        if range.is_empty() {
            return None;
        }
        if let Some(holder) = self.range_at(range.start) {
            return Some(range.start..holder.end.min(range.end));
        }
        let (&start, &end) = self.by_start.range(range.clone()).next()?;
        Some(start..end.min(range.end))
    }

    /// Returns the parts of a range that are in the set, in order.
    #[must_use]
    pub fn within(&self, range: &Range<u64>) -> Vec<Range<u64>> {
        let Some(first) = self.first_in(range) else {
            return Vec::new();
        };
        let others = self.by_start.range(first.end..range.end);
        let others = others.map(|(&start, &end)| start..end.min(range.end));
        std::iter::once(first.clone()).chain(others).collect()
    }

    /// Returns the parts of a range that are not in the set, in order.
    #[must_use]
    pub fn gaps(&self, range: &Range<u64>) -> Vec<Range<u64>> {
        let mut gaps = Vec::new();
        let mut at = range.start;
        for part in self.within(range) {
            if at < part.start {
                gaps.push(at..part.start);
            }
            at = part.end;
        }
        if at < range.end {
            gaps.push(at..range.end);
        }
        gaps
    }

    /// Adds a range none of which may be in the set yet.
    ///
    /// # Errors
    /// [`Mismatch`] when some of it is; the set is as it was.
    pub fn add(&mut self, range: Range<u64>) -> Result<(), Mismatch> {
        if range.is_empty() {
            return Ok(());
        }
        if self.overlaps(&range) {
            return Err(Mismatch);
        }
        self.merge(range);
        Ok(())
    }

    /// Adds whatever part of a range is not in the set yet.
    pub fn union(&mut self, range: Range<u64>) {
        if !self.covers(&range) {
            self.merge(range);
        }
    }

    /// Removes a range all of which must be in the set.
    ///
    /// # Errors
    /// [`Mismatch`] when some of it is not; the set is as it was.
    pub fn remove(&mut self, range: &Range<u64>) -> Result<(), Mismatch> {
        if range.is_empty() {
            return Ok(());
        }
        match self.range_at(range.start) {
            Some(holder) if range.end <= holder.end => {
                self.cut(holder, range);
                Ok(())
            }
            _ => Err(Mismatch),
        }
    }

    /// Removes whatever part of a range is in the set.
    pub fn subtract(&mut self, range: &Range<u64>) {
        if range.is_empty() {
            return;
        }
        while let Some((&start, &end)) = self.by_start.range(..range.end).next_back() {
            if end <= range.start {
                break;
            }
            self.cut(start..end, range);
        }
    }

    /// Returns the length of the longest range, 0 if empty. Only for searchable sets.
    #[must_use]
    pub fn longest(&self) -> u64 {
        self.lengths().last().map_or(0, |&(length, _)| length)
    }

    /// Returns the shortest range of at least `length`. Only for searchable sets.
    #[must_use]
    pub fn best_fit(&self, length: u64) -> Option<Range<u64>> {
        self.lengths()
            .range((length, 0)..)
            .next()
            .map(|&(found, start)| start..start + found)
    }

    /// Returns the longest range. Only for searchable sets.
    #[must_use]
    pub fn longest_range(&self) -> Option<Range<u64>> {
        self.lengths()
            .last()
            .map(|&(length, start)| start..start + length)
    }

    /// Returns the first range at or behind `from` of at least `length`, looking at no more than `tries` ranges.
    #[must_use]
    pub fn first_fit(&self, from: u64, length: u64, tries: usize) -> Option<Range<u64>> {
        self.by_start
            .range(from..)
            .take(tries)
            .find(|&(&start, &end)| end - start >= length)
            .map(|(&start, &end)| start..end)
    }

    /// Empties the set and returns its ranges in order.
    pub fn drain(&mut self) -> Vec<Range<u64>> {
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

    /// Puts a range in the place of all that it overlaps or touches.
    fn merge(&mut self, range: Range<u64>) {
        let mut merged = range.clone();
        while let Some((&start, &end)) = self.by_start.range(..=range.end).next_back() {
            if end < range.start {
                break;
            }
            self.take(start, end);
            merged = merged.start.min(start)..merged.end.max(end);
        }
        self.put(merged.start, merged.end);
    }

    /// Takes a range out of one of the set's own that overlaps it.
    fn cut(&mut self, holder: Range<u64>, range: &Range<u64>) {
        self.take(holder.start, holder.end);
        if holder.start < range.start {
            self.put(holder.start, range.start);
        }
        if range.end < holder.end {
            self.put(range.end, holder.end);
        }
    }

    fn put(&mut self, start: u64, end: u64) {
        assert!(start < end, "a range of the set is not empty");
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

impl FromIterator<Range<u64>> for RangeTree {
    /// The union of the ranges.
    fn from_iter<I: IntoIterator<Item = Range<u64>>>(ranges: I) -> Self {
        let mut tree = Self::default();
        for range in ranges {
            tree.union(range);
        }
        tree
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const UNIVERSE: usize = 96;

    /// The naive model: whether each number is in the set.
    #[derive(Clone)]
    struct Model(Vec<bool>);

    impl Model {
        /// The runs of numbers in `within` that are in the set (or not in it).
        fn runs(&self, within: Range<usize>, is_in: bool) -> Vec<Range<u64>> {
            let mut found: Vec<Range<u64>> = Vec::new();
            for at in within.filter(|&at| self.0[at] == is_in) {
                let at = at as u64;
                match found.last_mut() {
                    Some(last) if last.end == at => last.end = at + 1,
                    _ => found.push(at..at + 1),
                }
            }
            found
        }
    }

    #[derive(Debug, Clone, Copy)]
    enum Change {
        Add,
        Remove,
        Union,
        Subtract,
    }

    /// Changes with their ranges, some of them empty.
    fn changes() -> impl Strategy<Value = Vec<(Change, usize, usize)>> {
        let change = prop_oneof![
            Just(Change::Add),
            Just(Change::Remove),
            Just(Change::Union),
            Just(Change::Subtract),
        ];
        let one = (change, 0..UNIVERSE - 20, 0..20_usize);
        prop::collection::vec(
            one.prop_map(|(change, at, len)| (change, at, at + len)),
            1..60,
        )
    }

    /// Applies a change to both; they agree on whether it fits.
    fn apply(
        (change, start, end): (Change, usize, usize),
        tree: &mut RangeTree,
        model: &mut Model,
    ) -> Result<(), TestCaseError> {
        let range = start as u64..end as u64;
        let present = &mut model.0[start..end];
        match change {
            Change::Add => {
                let fits = present.iter().all(|is_in| !is_in);
                prop_assert_eq!(tree.add(range).is_ok(), fits);
                if fits {
                    present.fill(true);
                }
            }
            Change::Remove => {
                let fits = present.iter().all(|is_in| *is_in);
                prop_assert_eq!(tree.remove(&range).is_ok(), fits);
                if fits {
                    present.fill(false);
                }
            }
            Change::Union => {
                tree.union(range);
                present.fill(true);
            }
            Change::Subtract => {
                tree.subtract(&range);
                present.fill(false);
            }
        }
        Ok(())
    }

    fn agrees(tree: &RangeTree, model: &Model) -> Result<(), TestCaseError> {
        let expect = model.runs(0..UNIVERSE, true);
        let lengths = || expect.iter().map(|range| range.end - range.start);
        prop_assert_eq!(tree.iter().collect::<Vec<_>>(), expect.clone());
        prop_assert_eq!(tree.len(), expect.len());
        prop_assert_eq!(tree.is_empty(), expect.is_empty());
        prop_assert_eq!(tree.space(), lengths().sum::<u64>());
        prop_assert_eq!(tree.longest(), lengths().max().unwrap_or(0));
        for want in [1_u64, 5, 17] {
            let best = lengths().filter(|&length| length >= want).min();
            prop_assert_eq!(tree.best_fit(want).map(|r| r.end - r.start), best);
            let mut behind = expect.iter().filter(|range| range.start >= 10);
            let first = behind.find(|range| range.end - range.start >= want);
            prop_assert_eq!(tree.first_fit(10, want, UNIVERSE), first.cloned());
        }
        for at in 0..UNIVERSE {
            let holder = expect.iter().find(|range| range.contains(&(at as u64)));
            prop_assert_eq!(tree.range_at(at as u64), holder.cloned());
            prop_assert_eq!(tree.contains(at as u64), model.0[at]);
        }
        for (start, end) in [
            (0, UNIVERSE),
            (7, 7),
            (20, 21),
            (30, 60),
            (UNIVERSE - 3, UNIVERSE),
        ] {
            let range = start as u64..end as u64;
            let inside = model.runs(start..end, true);
            let outside = model.runs(start..end, false);
            prop_assert_eq!(tree.covers(&range), outside.is_empty());
            prop_assert_eq!(tree.overlaps(&range), !inside.is_empty());
            prop_assert_eq!(tree.first_in(&range), inside.first().cloned());
            prop_assert_eq!(tree.within(&range), inside);
            prop_assert_eq!(tree.gaps(&range), outside);
        }
        Ok(())
    }

    proptest! {
        #[test]
        fn agrees_with_one_flag_per_number(changes in changes()) {
            let mut tree = RangeTree::searchable();
            let mut model = Model(vec![false; UNIVERSE]);
            for change in changes {
                apply(change, &mut tree, &mut model)?;
                agrees(&tree, &model)?;
            }
            let collected: RangeTree = tree.iter().rev().collect();
            let ranges = model.runs(0..UNIVERSE, true);
            prop_assert_eq!(collected.iter().collect::<Vec<_>>(), ranges.clone());
            prop_assert_eq!(tree.drain(), ranges);
            prop_assert_eq!(tree, RangeTree::searchable());
        }
    }

    #[test]
    fn ranges_reach_the_last_number() {
        let mut tree = RangeTree::default();
        tree.union(4..8);
        tree.union(10..u64::MAX);
        assert_eq!(tree.first_in(&(0..6)), Some(4..6));
        assert_eq!(tree.first_in(&(8..10)), None);
        assert!(tree.covers(&(11..1000)) && !tree.covers(&(7..11)));
        assert_eq!(tree.gaps(&(0..u64::MAX)), [0..4, 8..10]);
        tree.union(0..u64::MAX);
        assert_eq!((tree.len(), tree.space()), (1, u64::MAX));
        tree.subtract(&(0..u64::MAX));
        assert!(tree.is_empty());
    }
}
