//! Removed top-level vdevs: their blocks were copied elsewhere, and a table says where.
//!
//! Guarantees: a table is checked when it is made; a range that it does not cover is an error, never other bytes.
//! A block that was copied in one piece is read, verified and healed as any other; one that was split is verified as a
//! whole, without trying the copies of its pieces against each other.
//! What it does not know: where tables are stored (the pool reads them).

use std::rc::Rc;

use runtime::{IoBuf, IoBufMut};

use crate::tree::out_of_range;
use crate::{Check, IoClass, Location, Scrubbed, Tree, VdevError, Verify};

/// Deepest chain of removed vdevs whose blocks were copied to vdevs that were removed in turn.
const DEPTH_MAX: usize = 64;

/// A run of bytes of a removed vdev and where it is now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moved {
    /// Offset on the removed vdev in bytes.
    pub from: u64,
    /// Length in bytes.
    pub len: u64,
    /// Top-level vdev it was copied to.
    pub vdev: u32,
    /// Offset there.
    pub offset: u64,
}

/// The table of one removed vdev, by offset.
#[derive(Debug)]
pub(crate) struct Mapping(Vec<Moved>);

impl Mapping {
    fn new(mut runs: Vec<Moved>) -> Option<Self> {
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
        (sound && disjoint()).then_some(Self(runs))
    }

    /// Returns where the pieces of a range are, in order; `None` when some of it is nowhere.
    fn pieces(&self, at: Location) -> Option<Vec<Location>> {
        let mut pieces = Vec::new();
        let (mut from, end) = (at.offset, at.offset.checked_add(at.size)?);
        while from < end {
            let index = self
                .0
                .partition_point(|run| run.from <= from)
                .checked_sub(1)?;
            let run = self.0.get(index)?;
            let skip = from - run.from;
            let len = run
                .len
                .checked_sub(skip)
                .filter(|&left| left > 0)?
                .min(end - from);
            pieces.push(Location {
                vdev: run.vdev,
                offset: run.offset + skip,
                size: len,
                born: at.born,
            });
            from += len;
        }
        Some(pieces)
    }
}

impl Tree {
    /// Says where the bytes of a removed vdev are now. Without this its blocks cannot be read.
    ///
    /// # Errors
    /// [`VdevError::BadConfig`] for runs that overlap, are empty or lead round in a circle.
    pub fn set_mapping(&self, vdev: u32, runs: Vec<Moved>) -> Result<(), VdevError> {
        let bad = VdevError::BadConfig {
            what: "the table of a removed vdev",
        };
        // Tables are set newest first, and can only lead to vdevs that were there later.
        let leads_on = |run: &Moved| {
            run.vdev == vdev
                || self.top(run.vdev).is_none_or(|top| {
                    top.is_removed() && !self.0.mappings.borrow().contains_key(&run.vdev)
                })
        };
        if runs.iter().any(leads_on) {
            return Err(bad);
        }
        let mapping = Mapping::new(runs).ok_or(bad)?;
        self.0.mappings.borrow_mut().insert(vdev, Rc::new(mapping));
        Ok(())
    }

    /// Returns where the pieces of a range of a removed vdev are, on vdevs that are not removed.
    fn resolve(&self, at: Location) -> Result<Vec<Location>, VdevError> {
        let mut pieces = vec![at];
        for _ in 0..DEPTH_MAX {
            let mut next = Vec::new();
            let mut done = true;
            for piece in pieces {
                if !self.top(piece.vdev).is_some_and(|top| top.is_removed()) {
                    next.push(piece);
                    continue;
                }
                done = false;
                let mapping = self.0.mappings.borrow().get(&piece.vdev).cloned();
                let found = mapping.and_then(|mapping| mapping.pieces(piece));
                next.extend(found.ok_or(out_of_range(at))?);
            }
            pieces = next;
            if done {
                return Ok(pieces);
            }
        }
        Err(out_of_range(at))
    }

    /// [`Tree::read_with`] for a removed vdev.
    pub(crate) async fn read_moved<T: Send + 'static>(
        &self,
        at: Location,
        class: IoClass,
        check: Check<T>,
    ) -> Result<T, VdevError> {
        let pieces = self.resolve(at)?;
        if let [only] = pieces.as_slice() {
            return Box::pin(self.read_with(*only, class, check)).await;
        }
        let block = self.gather(at, &pieces, class).await?;
        let len = block.len();
        let job = move || check(&block);
        self.run_job(len, job).await.ok_or(VdevError::Rejected {
            vdev: at.vdev,
            offset: at.offset,
            size: at.size,
        })
    }

    /// [`Tree::scrub`] for a removed vdev.
    pub(crate) async fn scrub_moved(
        &self,
        at: Location,
        class: IoClass,
        check: Check<()>,
    ) -> Result<Scrubbed, VdevError> {
        let pieces = self.resolve(at)?;
        if let [only] = pieces.as_slice() {
            return Box::pin(self.scrub(*only, class, check)).await;
        }
        let good = self.gather(at, &pieces, class).await.ok();
        let good = good.filter(|block| check(block).is_some());
        Ok(Scrubbed {
            bad_copies: u32::from(good.is_none()),
            good,
            ..Scrubbed::default()
        })
    }

    async fn gather(
        &self,
        at: Location,
        pieces: &[Location],
        class: IoClass,
    ) -> Result<IoBuf, VdevError> {
        let len = usize::try_from(at.size).map_err(|_| out_of_range(at))?;
        let mut block = IoBufMut::zeroed(len);
        let mut filled = 0;
        for piece in pieces {
            let bytes = Box::pin(self.read(*piece, class, Verify::None)).await?;
            block[filled..filled + bytes.len()].copy_from_slice(&bytes);
            filled += bytes.len();
        }
        Ok(block.freeze())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ondisk::Txg;

    fn run(from: u64, len: u64, vdev: u32, offset: u64) -> Moved {
        Moved {
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
        let mapping = Mapping::new(runs).expect("a sound table");
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
    }

    #[test]
    fn tables_that_contradict_themselves_are_refused() {
        assert!(Mapping::new(vec![run(0, 8, 1, 0), run(7, 8, 1, 8)]).is_none());
        assert!(Mapping::new(vec![run(0, 0, 1, 0)]).is_none());
        assert!(Mapping::new(vec![run(u64::MAX, 2, 1, 0)]).is_none());
    }
}
