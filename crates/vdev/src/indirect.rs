//! Removed top-level vdevs: their blocks were copied elsewhere, and a table says where. A vdev that is being evacuated has a
//! table, too, of what was copied so far; its blocks are still read where they were.
//!
//! Guarantees: a table is checked when it is made; a range that it does not cover is an error, never other bytes.
//! A block that was copied in one piece is read, verified and healed as any other. One that was split is verified as a
//! whole: when the first copies of its pieces do not make it up, other copies are tried against each other.
//! What it does not know: where tables are stored (the pool reads them).

use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use ondisk::Txg;
use runtime::{IoBuf, IoBufMut};

use crate::mapping::{Mapping, MappingEntry};
use crate::tree::out_of_range;
use crate::{Check, IoClass, LEAF_DATA_START, Location, Scrubbed, Tree, VdevError, Verify};

/// Deepest chain of removed vdevs whose blocks were copied to vdevs that were removed in turn.
const DEPTH_MAX: usize = 64;
/// Combinations of different copies of the pieces of one block that are tried.
// OpenZFS: module/zfs/vdev_indirect.c, zfs_reconstruct_indirect_combinations_max
const COMBINATIONS_MAX: usize = 4096;
const _: () = assert!(COMBINATIONS_MAX > 0 && DEPTH_MAX > 0);

impl Tree {
    /// Says where the bytes of a removed vdev are now, or those of one that is being evacuated as far as they were copied;
    /// `copied` says when: ends of stretches, and the txg each was copied in. Without this the blocks of a removed vdev
    /// cannot be read.
    ///
    /// # Errors
    /// [`VdevError::BadConfig`] for runs that overlap, are empty or lead round in a circle.
    pub fn set_mapping(
        &self,
        vdev: u32,
        runs: Vec<MappingEntry>,
        copied: Vec<(u64, Txg)>,
    ) -> Result<(), VdevError> {
        let bad = VdevError::BadConfig {
            what: "the table of a removed vdev",
        };
        if runs.iter().any(|run| self.leads_on(vdev, run)) {
            return Err(bad);
        }
        let mapping = Mapping::new(runs, copied).ok_or(bad)?;
        self.0.mappings.borrow_mut().insert(vdev, Rc::new(mapping));
        Ok(())
    }

    /// Whether a run leads to itself or to what is not known. Tables are set newest first, and can only lead to vdevs that
    /// were there later.
    fn leads_on(&self, vdev: u32, run: &MappingEntry) -> bool {
        run.vdev == vdev
            || self.top(run.vdev).is_none_or(|top| {
                top.is_removed() && !self.0.mappings.borrow().contains_key(&run.vdev)
            })
    }

    /// Adds what was copied in `txg` to the table of a vdev that is being evacuated: runs behind all that it has.
    ///
    /// # Errors
    /// [`VdevError::BadConfig`] for runs that do not follow; no table was set.
    pub fn extend_mapping(
        &self,
        vdev: u32,
        runs: &[MappingEntry],
        txg: Txg,
    ) -> Result<(), VdevError> {
        let bad = VdevError::BadConfig {
            what: "the table of a vdev that is being evacuated",
        };
        if runs.iter().any(|run| self.leads_on(vdev, run)) {
            return Err(bad);
        }
        let added = Mapping::new(runs.to_vec(), Vec::new()).ok_or(bad.clone())?;
        let mut mappings = self.0.mappings.borrow_mut();
        let mapping = mappings.get_mut(&vdev).ok_or(bad.clone())?;
        let extended = Rc::make_mut(mapping).extend(added, txg);
        extended.ok_or(bad)
    }

    /// Forgets the table of a vdev whose evacuation was given up.
    pub fn forget_mapping(&self, vdev: u32) {
        self.0.mappings.borrow_mut().remove(&vdev);
    }

    /// Whether the vdev was removed: its blocks are where its table says.
    #[must_use]
    pub fn is_removed(&self, vdev: u32) -> bool {
        self.top(vdev).is_some_and(|top| top.is_removed())
    }

    /// Returns up to which offset the blocks of a vdev that is being evacuated have been copied; `None` when it is not.
    #[must_use]
    pub fn evacuated_until(&self, vdev: u32) -> Option<u64> {
        let mappings = self.0.mappings.borrow();
        let mapping = mappings.get(&vdev)?;
        (!self.is_removed(vdev)).then(|| mapping.end())
    }

    /// Returns where a range of a vdev was copied to, in pieces; `None` when some of it was not. The pieces may lie on a
    /// removed vdev in turn.
    #[must_use]
    pub fn remap(&self, vdev: u32, range: &Range<u64>) -> Option<Vec<Location>> {
        let mapping = self.0.mappings.borrow().get(&vdev).cloned()?;
        mapping.pieces(Location {
            vdev,
            offset: range.start,
            size: range.end.checked_sub(range.start)?,
            born: Txg(0),
        })
    }

    /// Returns the number of runs in the table of a vdev.
    #[must_use]
    pub fn mapping_runs(&self, vdev: u32) -> u64 {
        let mappings = self.0.mappings.borrow();
        mappings
            .get(&vdev)
            .map_or(0, |mapping| mapping.len() as u64)
    }

    /// Whether blocks of removed vdevs were copied in one of these txgs.
    #[must_use]
    pub fn was_copied_in(&self, txgs: &Range<u64>) -> bool {
        let mappings = self.0.mappings.borrow();
        let mut copied = mappings.values().flat_map(|mapping| mapping.copied_in());
        copied.any(|txg| txgs.contains(&txg.0))
    }

    /// Returns where the bytes of a range are, on vdevs that are not removed, with the txgs they were written in.
    ///
    /// # Errors
    /// [`VdevError::OutOfRange`] when the tables do not say.
    pub fn resolve(&self, at: Location) -> Result<Vec<Location>, VdevError> {
        let mut pieces = vec![at];
        for _ in 0..DEPTH_MAX {
            let mut next = Vec::new();
            let mut done = true;
            for piece in pieces {
                if !self.is_removed(piece.vdev) {
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
    pub(crate) async fn read_indirect<T: Send + 'static>(
        &self,
        at: Location,
        class: IoClass,
        check: Check<T>,
        expected: bool,
    ) -> Result<T, VdevError> {
        let pieces = self.resolve(at)?;
        if let [only] = pieces.as_slice() {
            return Box::pin(self.read_checked(*only, class, check, expected)).await;
        }
        let found = self.assemble(at, &pieces, class, &check).await?;
        found.map(|(value, _)| value).ok_or(VdevError::Rejected {
            vdev: at.vdev,
            offset: at.offset,
            size: at.size,
        })
    }

    /// [`Tree::scrub`] for a removed vdev.
    pub(crate) async fn scrub_indirect(
        &self,
        at: Location,
        class: IoClass,
        check: Check<()>,
        expected: bool,
    ) -> Result<Scrubbed, VdevError> {
        let pieces = self.resolve(at)?;
        if let [only] = pieces.as_slice() {
            return Box::pin(self.scrub_checked(*only, class, check, expected)).await;
        }
        let found = self.assemble(at, &pieces, class, &check).await;
        let Some((_, good)) = found.ok().flatten() else {
            return Ok(Scrubbed {
                bad_copies: 1,
                ..Scrubbed::default()
            });
        };
        // Now that the right bytes are known, each piece has a check of its own.
        let mut result = Scrubbed::default();
        let mut from = 0;
        for piece in pieces {
            let size = usize::try_from(piece.size).map_err(|_| out_of_range(at))?;
            let right = good.slice(from..from + size);
            let same: Check<()> = Arc::new(move |bytes: &IoBuf| (*bytes == right).then_some(()));
            let scrubbed = Box::pin(self.scrub_checked(piece, class, same, expected)).await?;
            result.bad_copies += scrubbed.bad_copies;
            result.repaired_copies += scrubbed.repaired_copies;
            result.repaired_bytes += scrubbed.repaired_bytes;
            from += size;
        }
        result.good = Some(good);
        Ok(result)
    }

    /// Reads a block that was split, of copies of its pieces that pass the check together. `None` when there are none.
    async fn assemble<T>(
        &self,
        at: Location,
        pieces: &[Location],
        class: IoClass,
        check: &Check<T>,
    ) -> Result<Option<(T, IoBuf)>, VdevError> {
        let mut parts = Vec::new();
        for piece in pieces {
            parts.push(Box::pin(self.read(*piece, class, Verify::None)).await?);
        }
        let chosen: Vec<&IoBuf> = parts.iter().collect();
        let block = join(&chosen);
        if let Some(value) = check.judge(&block) {
            return Ok(Some((value, block)));
        }
        let mut versions = Vec::new();
        for piece in pieces {
            let mut all = self.versions(*piece, class).await;
            if all.is_empty() {
                return Err(VdevError::Unavailable { vdev: at.vdev });
            }
            all.dedup();
            versions.push(all);
        }
        let mut turn = vec![0; versions.len()];
        for _ in 0..COMBINATIONS_MAX {
            let chosen: Vec<&IoBuf> = versions
                .iter()
                .zip(&turn)
                .map(|(all, &which): (_, &usize)| &all[which])
                .collect();
            let block = join(&chosen);
            if let Some(value) = check.judge(&block) {
                return Ok(Some((value, block)));
            }
            // The next combination, as an odometer counts.
            let mut wheels = turn.iter_mut().zip(&versions);
            let moved = wheels.any(|(which, all)| {
                *which = (*which + 1) % all.len();
                *which != 0
            });
            if !moved {
                break;
            }
        }
        Ok(None)
    }

    /// Returns the bytes of a range as every device of its vdev has them.
    async fn versions(&self, at: Location, class: IoClass) -> Vec<IoBuf> {
        let Ok(top) = self.top_for(at) else {
            return Vec::new();
        };
        let Ok(len) = usize::try_from(at.size) else {
            return Vec::new();
        };
        if top.is_striped() {
            let read = Box::pin(self.read(at, class, Verify::None)).await;
            return read.into_iter().collect();
        }
        let mut found = Vec::new();
        for leaf in top.leaves().into_iter().filter(|leaf| leaf.is_readable()) {
            let offset = LEAF_DATA_START + at.offset;
            let timeout = self.timeout(&top);
            found.extend(leaf.read(offset, len, class, timeout).await);
        }
        found
    }
}

fn join(parts: &[&IoBuf]) -> IoBuf {
    let len = parts.iter().map(|part| part.len()).sum();
    let mut block = IoBufMut::zeroed(len);
    let mut filled = 0;
    for part in parts {
        block[filled..filled + part.len()].copy_from_slice(part);
        filled += part.len();
    }
    block.freeze()
}
