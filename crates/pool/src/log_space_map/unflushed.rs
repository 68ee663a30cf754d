//! What logs say of one metaslab beyond its own map.

use std::ops::Range;

use range_tree::{Mismatch, RangeTree};

use crate::space_map::MapType;

/// What logs say of one metaslab beyond its own map. The two sets are disjoint.
#[derive(Clone, Debug, Default)]
pub(crate) struct Unflushed {
    /// Allocated since; free in the map.
    pub(crate) allocs: RangeTree,
    /// Freed since; allocated in the map.
    pub(crate) frees: RangeTree,
}

impl Unflushed {
    /// Applies one entry: what undoes an earlier one cancels it.
    pub(crate) fn apply(&mut self, kind: MapType, range: &Range<u64>) -> Result<(), Mismatch> {
        let (undone, into) = match kind {
            MapType::Alloc => (&mut self.frees, &mut self.allocs),
            MapType::Free => (&mut self.allocs, &mut self.frees),
        };
        let mut at = range.start;
        for part in undone.within(range) {
            into.add(at..part.start)?;
            at = part.end;
            undone.remove(&part)?;
        }
        into.add(at..range.end)
    }

    /// Returns how many ranges both sets have.
    pub(crate) fn len(&self) -> usize {
        self.allocs.len() + self.frees.len()
    }

    /// Returns allocated minus freed bytes.
    pub(crate) fn balance(&self) -> i64 {
        let signed = |total: u64| i64::try_from(total).unwrap_or(i64::MAX);
        signed(self.allocs.space()) - signed(self.frees.space())
    }
}

#[cfg(test)]
mod tests {
    use ondisk::bytes::index;

    use super::*;

    #[test]
    fn entries_cancel_what_they_undo() {
        // A naive model over 64 units: what the map says, and what is true.
        let mut seed = 11_u64;
        for _ in 0..200 {
            let mut map = [false; 64];
            let mut truth = [false; 64];
            let mut unflushed = Unflushed::default();
            for step in 0..200 {
                seed = seed
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1_442_695_040_888_963_407);
                let start = (seed >> 33) % 60;
                let end = start + 1 + (seed >> 40) % 4;
                let units = index(start)..index(end);
                let (kind, from) = if seed >> 60 & 1 == 0 {
                    (MapType::Alloc, false)
                } else {
                    (MapType::Free, true)
                };
                if truth[units.clone()].iter().any(|&used| used != from) {
                    continue;
                }
                truth[units.clone()].fill(!from);
                if step < 50 {
                    map[units].fill(!from);
                } else {
                    unflushed.apply(kind, &(start..end)).unwrap();
                }
            }
            for range in unflushed.allocs.iter() {
                let units = index(range.start)..index(range.end);
                assert!(map[units.clone()].iter().all(|used| !used));
                map[units].fill(true);
            }
            for range in unflushed.frees.iter() {
                let units = index(range.start)..index(range.end);
                assert!(map[units.clone()].iter().all(|used| *used));
                map[units].fill(false);
            }
            assert_eq!(map, truth);
        }
    }

    #[test]
    fn contradictions_are_noticed() {
        let mut unflushed = Unflushed::default();
        unflushed.apply(MapType::Alloc, &(10..20)).unwrap();
        assert!(unflushed.apply(MapType::Alloc, &(15..16)).is_err());
        unflushed.apply(MapType::Free, &(10..20)).unwrap();
        assert_eq!(unflushed.balance(), 0);
        unflushed.apply(MapType::Free, &(10..20)).unwrap();
        assert_eq!(unflushed.balance(), -10);
        assert!(unflushed.apply(MapType::Free, &(0..30)).is_err());
    }
}
