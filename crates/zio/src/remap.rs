//! Remapping: blocks of removed vdevs are allocated elsewhere, while their pointers stay. Allocating for the copy, and freeing.
//!
//! ```text
//! free of a range of an ordinary vdev         its own metaslab
//!                    a removed vdev           noted as obsolete, and freed where the table says
//!                    a vdev being evacuated   its own metaslab; and what was copied already, as of a removed one
//! ```
//! Guarantees: a range freed on a vdev that is being evacuated is counted once: as obsolete if it was copied, else as one
//! that need not be copied any more.
//! Does not know how tables are stored.
// OpenZFS: module/zfs/vdev_removal.c, free_from_removing_vdev; module/zfs/metaslab.c, metaslab_free_impl

use std::ops::Range;

use ondisk::Txg;
use range_tree::Mismatch;
use vdev::AllocationBias;

use crate::alloc::{AllocCursor, Request};
use crate::metaslab::Metaslab;
use crate::removal_frees::VdevRanges;
use crate::{BlockStore, ZioError};

/// Deepest chain of removed vdevs.
const DEPTH_MAX: u32 = 64;

impl BlockStore {
    /// Finds a place in `txg` for `size` bytes that are to be copied off a vdev of a class: in that class if there is room,
    /// else on an ordinary vdev. Returns vdev and offset, `None` when there is no free range of that size. The vdevs must
    /// hold single devices or mirrors, with the sectors of the one that is left.
    ///
    /// # Errors
    /// [`ZioError::ReadOnly`].
    pub async fn allocate_for_removal(
        &self,
        txg: Txg,
        size: u64,
        class: AllocationBias,
    ) -> Result<Option<(u32, u64)>, ZioError> {
        let request = Request {
            txg,
            psize: size,
            copies: 1,
            cursor: AllocCursor::Data,
            class,
            only_class: false,
            dvas: Vec::new(),
        };
        let dvas = self.allocate(request).await?;
        let place = dvas.and_then(|dvas| dvas.first().copied());
        debug_assert!(place.is_none_or(|dva| dva.asize == size), "no padding");
        Ok(place.map(|dva| (dva.vdev, dva.offset)))
    }

    /// Returns what is allocated within a range of a metaslab (bytes of its top-level vdev), in order, with every free
    /// that was made so far.
    ///
    /// # Errors
    /// [`ZioError::SpaceMap`], [`ZioError::ReadOnly`].
    pub async fn allocated_in(
        &self,
        vdev: u32,
        metaslab: u32,
        within: &Range<u64>,
    ) -> Result<Vec<Range<u64>>, ZioError> {
        let ask = |metaslab: &Metaslab| metaslab.allocated_in(within);
        self.ranges_of(vdev, metaslab, ask).await
    }

    /// As [`BlockStore::allocated_in`], with what was freed and may not be used yet: the newest state on stable storage may
    /// refer to it.
    ///
    /// # Errors
    /// As [`BlockStore::allocated_in`].
    pub async fn occupied_in(
        &self,
        vdev: u32,
        metaslab: u32,
        within: &Range<u64>,
    ) -> Result<Vec<Range<u64>>, ZioError> {
        let ask = |metaslab: &Metaslab| metaslab.occupied_in(within);
        self.ranges_of(vdev, metaslab, ask).await
    }

    /// Frees in `txg` a range that no block pointer names: of a place found with [`BlockStore::allocate_for_removal`], or all that a
    /// table refers to.
    ///
    /// # Errors
    /// [`ZioError::SpaceMap`] when it is not allocated, or nowhere; [`ZioError::ReadOnly`].
    pub fn free_range(&self, txg: Txg, vdev: u32, range: &Range<u64>) -> Result<(), ZioError> {
        let freed = self.free_copy_range(txg, vdev, range, false)?;
        freed.map_err(|Mismatch| not_allocated(vdev, range))
    }

    /// Frees in `txg` what a range of a vdev was copied to, but not the range itself.
    ///
    /// # Errors
    /// As [`BlockStore::free_range`].
    pub fn free_remapped(&self, txg: Txg, vdev: u32, range: &Range<u64>) -> Result<(), ZioError> {
        let freed = self.free_remapped_at(txg, vdev, range, false, 0)?;
        freed.map_err(|Mismatch| not_allocated(vdev, range))
    }

    /// Notes in `txg` that no pointer names a range of a removed vdev any more. What it was copied to stays allocated: pointers
    /// name it there.
    ///
    /// # Errors
    /// [`ZioError::SpaceMap`] when it was not copied, or is noted already; [`ZioError::ReadOnly`].
    pub fn note_obsolete(&self, txg: Txg, vdev: u32, range: &Range<u64>) -> Result<(), ZioError> {
        let is_remapped = !range.is_empty()
            && self.tree().is_removed(vdev)
            && self.tree().remap(vdev, range).is_some();
        let noted = if is_remapped {
            self.with_allocator(|allocator| allocator.removal_frees.note(txg, vdev, range.clone()))?
        } else {
            Err(Mismatch)
        };
        noted.map_err(|Mismatch| not_allocated(vdev, range))
    }

    /// Returns and forgets what was freed in `txg` of removed vdevs, and of one that is being evacuated where it was copied
    /// already.
    #[must_use]
    pub fn take_obsolete(&self, txg: Txg) -> Vec<VdevRanges> {
        self.with_allocator(|allocator| allocator.removal_frees.take_obsolete(txg))
            .unwrap_or_default()
    }

    /// Returns and forgets how many bytes freed in `txg` need not be copied off their vdev any more.
    #[must_use]
    pub fn take_uncopied(&self, txg: Txg) -> u64 {
        self.with_allocator(|allocator| allocator.removal_frees.take_uncopied(txg))
            .unwrap_or(0)
    }

    /// Forgets what was freed of a vdev whose table goes, too.
    pub fn forget_obsolete(&self, vdev: u32) {
        drop(self.with_allocator(|allocator| allocator.removal_frees.forget(vdev)));
    }

    /// Frees a range wherever its bytes are; with `keep` they stay allocated for a checkpoint.
    pub(crate) fn free_copy_range(
        &self,
        txg: Txg,
        vdev: u32,
        range: &Range<u64>,
        keep: bool,
    ) -> Result<Result<(), Mismatch>, ZioError> {
        self.free_range_at(txg, vdev, range, keep, 0)
    }

    fn free_range_at(
        &self,
        txg: Txg,
        vdev: u32,
        range: &Range<u64>,
        keep: bool,
        depth: u32,
    ) -> Result<Result<(), Mismatch>, ZioError> {
        if self.tree().is_removed(vdev) {
            return self.free_remapped_at(txg, vdev, range, keep, depth);
        }
        let freed = self.with_allocator(|allocator| match keep {
            true => allocator.free_for_checkpoint(txg, vdev, range),
            false => allocator.free(txg, vdev, range),
        })?;
        if freed.is_err() {
            return Ok(freed);
        }
        let Some(until) = self.tree().evacuated_until(vdev) else {
            return Ok(Ok(()));
        };
        let uncopied = range.end - range.start.max(until).min(range.end);
        if uncopied > 0 {
            self.with_allocator(|allocator| allocator.removal_frees.note_uncopied(txg, uncopied))?;
        }
        let copied = range.start..range.end.min(until);
        if copied.start >= copied.end {
            return Ok(Ok(()));
        }
        self.free_remapped_at(txg, vdev, &copied, keep, depth)
    }

    fn free_remapped_at(
        &self,
        txg: Txg,
        vdev: u32,
        range: &Range<u64>,
        keep: bool,
        depth: u32,
    ) -> Result<Result<(), Mismatch>, ZioError> {
        let pieces = self.tree().remap(vdev, range);
        let Some(pieces) = pieces.filter(|_| depth < DEPTH_MAX) else {
            return Ok(Err(Mismatch));
        };
        let noted = self
            .with_allocator(|allocator| allocator.removal_frees.note(txg, vdev, range.clone()))?;
        if noted.is_err() {
            return Ok(noted);
        }
        for piece in pieces {
            let place = piece.offset..piece.offset + piece.size;
            let freed = self.free_range_at(txg, piece.vdev, &place, keep, depth + 1)?;
            if freed.is_err() {
                return Ok(freed);
            }
        }
        Ok(Ok(()))
    }
}

fn not_allocated(vdev: u32, range: &Range<u64>) -> ZioError {
    ZioError::SpaceMap {
        vdev,
        metaslab: 0,
        reason: format!("what was moved at {:#x} is free already", range.start),
    }
}
