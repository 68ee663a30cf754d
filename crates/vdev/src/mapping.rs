//! The table of a removed vdev: where its bytes are now.

use ondisk::Txg;

use crate::Location;

/// An entry of an indirect vdev's mapping: a run of its bytes and where they are now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MappingEntry {
    /// Offset on the removed vdev in bytes.
    pub from: u64,
    /// Length in bytes.
    pub len: u64,
    /// Top-level vdev it was copied to.
    pub vdev: u32,
    /// Offset there.
    pub offset: u64,
}

/// The table of one vdev, by offset.
#[derive(Debug, Clone, Default)]
pub(crate) struct Mapping {
    runs: Vec<MappingEntry>,
    /// What lies before an offset, and not before that of the entry before, was copied in this txg.
    copied: Vec<(u64, Txg)>,
}

impl Mapping {
    /// Makes a table; `None` when its runs are empty or overlap.
    pub(crate) fn new(mut runs: Vec<MappingEntry>, copied: Vec<(u64, Txg)>) -> Option<Self> {
        runs.sort_unstable_by_key(|run| run.from);
        let sound = runs.iter().all(|run| {
            run.len > 0
                && run.from.checked_add(run.len).is_some()
                && run.offset.checked_add(run.len).is_some()
        });
        let disjoint = || {
            runs.windows(2)
                .all(|two| two[0].from + two[0].len <= two[1].from)
        };
        let ordered = || copied.windows(2).all(|two| two[0].0 <= two[1].0);
        (sound && disjoint() && ordered()).then_some(Self { runs, copied })
    }

    /// Returns where the pieces of a range are, in order; `None` when some of it is nowhere.
    pub(crate) fn pieces(&self, at: Location) -> Option<Vec<Location>> {
        let mut pieces = Vec::new();
        let (mut from, end) = (at.offset, at.offset.checked_add(at.size)?);
        while from < end {
            let index = self
                .runs
                .partition_point(|run| run.from <= from)
                .checked_sub(1)?;
            let run = self.runs.get(index)?;
            let skip = from - run.from;
            let len = run
                .len
                .checked_sub(skip)
                .filter(|&left| left > 0)?
                .min(end - from);
            let copied = self.copied.partition_point(|(end, _)| *end <= from);
            pieces.push(Location {
                vdev: run.vdev,
                offset: run.offset + skip,
                size: len,
                born: self.copied.get(copied).map_or(at.born, |(_, txg)| *txg),
            });
            from += len;
        }
        assert!(from == end, "the pieces make up the range");
        Some(pieces)
    }

    /// Adds the runs of another table, copied in `txg`; `None` when they are not behind all that this one has.
    pub(crate) fn extend(&mut self, added: Self, txg: Txg) -> Option<()> {
        if added.runs.first().is_some_and(|run| run.from < self.end()) {
            return None;
        }
        self.copied.push((added.end(), txg));
        self.runs.extend(added.runs);
        Some(())
    }

    /// Returns the number of runs.
    pub(crate) fn len(&self) -> usize {
        self.runs.len()
    }

    /// Returns the txgs in which its runs were copied.
    pub(crate) fn copied_in(&self) -> impl Iterator<Item = Txg> + '_ {
        self.copied.iter().map(|(_, txg)| *txg)
    }

    /// Returns the end of the last run.
    pub(crate) fn end(&self) -> u64 {
        self.runs.last().map_or(0, |run| run.from + run.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(from: u64, len: u64, vdev: u32, offset: u64) -> MappingEntry {
        MappingEntry {
            from,
            len,
            vdev,
            offset,
        }
    }

    fn at(offset: u64, size: u64) -> Location {
        Location {
            vdev: 0,
            offset,
            size,
            born: Txg(1),
        }
    }

    #[test]
    fn ranges_are_split_where_they_were_split_by_the_copy() {
        let runs = vec![run(16, 8, 2, 100), run(0, 8, 1, 40), run(8, 4, 1, 0)];
        let mapping = Mapping::new(runs, vec![(16, Txg(5)), (24, Txg(6))]).expect("a sound table");
        let pieces = |offset, size| {
            let pieces = mapping.pieces(at(offset, size))?;
            Some(
                pieces
                    .iter()
                    .map(|p| (p.vdev, p.offset, p.size))
                    .collect::<Vec<_>>(),
            )
        };
        assert_eq!(pieces(2, 4), Some(vec![(1, 42, 4)]));
        assert_eq!(pieces(4, 8), Some(vec![(1, 44, 4), (1, 0, 4)]));
        assert_eq!(pieces(16, 8), Some(vec![(2, 100, 8)]));
        assert_eq!(pieces(10, 4), None, "a gap");
        assert_eq!(pieces(20, 8), None, "beyond the end");
        assert_eq!(pieces(u64::MAX, 8), None);
        let born = |offset| mapping.pieces(at(offset, 4)).expect("there")[0].born;
        assert_eq!((born(4), born(16)), (Txg(5), Txg(6)));
    }

    #[test]
    fn tables_that_contradict_themselves_are_refused() {
        assert!(Mapping::new(vec![run(0, 8, 1, 0), run(7, 8, 1, 8)], vec![]).is_none());
        assert!(Mapping::new(vec![run(0, 0, 1, 0)], vec![]).is_none());
        assert!(Mapping::new(vec![run(u64::MAX, 2, 1, 0)], vec![]).is_none());
    }
}
