//! Copies of ranges between volumes of one pool: whole blocks that are on disk are cloned, the rest is copied.
//!
//! ```text
//!   |--copied--|------- cloned, step by step; where a block is not on disk yet or cannot be shared: copied ------|--copied--|
//!              first whole block                                                             last whole block
//! ```
//! Blocks that are not on disk yet are in memory: to copy them is quicker than to wait for the disk.
// OpenZFS: module/zfs/zvol.c, zvol_clone_range (which ranges can be cloned) and zvol_log_clone_range

use std::ops::Range;
use std::rc::Rc;

use dmu::{CLONED_BLOCK_BYTES, Cloneable};
use dsl::Estimate;
use ondisk::zil_record::{CloneRange, record_kind};
use runtime::IoBuf;
use zil::Intent;

use crate::volume::{META_BYTES, index};
use crate::{DATA, Stability, Volume, VolumeResult};

/// Blocks looked at together where some of them cannot be cloned.
const STEP_BLOCKS_MIN: u64 = 64;
/// Blocks cloned in one transaction, at most: what one record of the log holds.
const STEP_BLOCKS_MAX: u64 = CloneRange::BLOCKS_MAX as u64;

impl Volume {
    /// Copies a range of another volume of the same pool, or of this one; holes stay holes. Whole blocks are cloned where both
    /// volumes have the same block size and key, and the feature `block_cloning` is enabled.
    ///
    /// # Errors
    /// Those of [`Volume::read`] and [`Volume::write`]; part may have been copied then.
    pub async fn copy_from(
        &self,
        source: &Self,
        from: u64,
        to: u64,
        len: u64,
        stability: Stability,
    ) -> VolumeResult<()> {
        source.range(from, len)?;
        let target = self.range(to, len)?;
        let blocks = self.cloneable_part(source, from, &target);
        self.copy_part(source, from, target.start..blocks.start)
            .await?;
        let mut step = STEP_BLOCKS_MAX;
        let mut at = blocks.start;
        while at < blocks.end {
            let end = blocks.end.min(at + step * self.0.block_size);
            let origin = from + (at - to);
            if self.clone_part(source, origin, at..end).await? {
                step = STEP_BLOCKS_MAX.min(step * 2);
            } else if step > STEP_BLOCKS_MIN {
                step = STEP_BLOCKS_MIN;
                continue;
            } else {
                self.copy_part(source, origin, at..end).await?;
            }
            at = end;
        }
        self.copy_part(source, from + (blocks.end - to), blocks.end..target.end)
            .await?;
        self.stabilize(stability).await
    }

    /// The part of a target range whose blocks may become clones of the source's, perhaps empty.
    fn cloneable_part(&self, source: &Self, from: u64, target: &Range<u64>) -> Range<u64> {
        let block = self.0.block_size;
        let none = target.start..target.start;
        let same_place = from % block == target.start % block;
        let is_same = Rc::ptr_eq(&source.0, &self.0);
        let len = target.end - target.start;
        let apart = !is_same || from.abs_diff(target.start) >= len;
        let allowed = self.0.dataset.allows_cloning() && self.0.os.can_share_with(&source.0.os);
        if !allowed || !apart || !same_place || source.0.block_size != block {
            return none;
        }
        let blocks = target.start.next_multiple_of(block)..target.end - target.end % block;
        if blocks.start < blocks.end {
            blocks
        } else {
            none
        }
    }

    /// Makes whole blocks clones of the source's, in one transaction. Returns false, and nothing has changed, where one of them is
    /// not on disk yet or cannot be shared.
    async fn clone_part(&self, source: &Self, from: u64, target: Range<u64>) -> VolumeResult<bool> {
        let block = self.0.block_size;
        let len = target.end - target.start;
        let shared = || source.0.ranges.shared(from..from + len);
        let exclusive = || self.0.ranges.exclusive(target.clone());
        // Locks of all volumes are taken in one order, so that no two copies wait for each other.
        let source_first = (source.0.os.id(), from) < (self.0.os.id(), target.start);
        let _locks = if source_first {
            let first = shared().await;
            [first, exclusive().await]
        } else {
            let first = exclusive().await;
            [shared().await, first]
        };
        self.check_writable()?;
        source.check_end(from + len)?;
        self.check_end(target.end)?;
        let found = source.0.os.cloneable(DATA, from / block, len / block);
        let Cloneable::Blocks(blocks) = found.await? else {
            return Ok(false);
        };
        let range = CloneRange {
            object: DATA.0,
            offset: target.start,
            length: len,
            block_size: block,
            blocks,
        };
        self.put_clones(range).await?;
        Ok(true)
    }

    /// Puts clones in place and logs that, in one transaction. The caller holds the range.
    pub(crate) async fn put_clones(&self, range: CloneRange) -> VolumeResult<()> {
        let count = range.blocks.len() as u64;
        let store = self.0.os.services().store();
        let shared = range.blocks.iter().map(|bp| store.dsize(bp)).sum();
        let estimate = Estimate::clones(shared, META_BYTES + count * CLONED_BLOCK_BYTES);
        let tx = self.begin(estimate).await?;
        let first = range.offset / range.block_size;
        let cloned = self.0.os.clone_blocks(DATA, first, &range.blocks, &tx);
        cloned.await?;
        self.dirtied(&tx);
        let record = || Intent::Record {
            kind: record_kind::CLONE_RANGE,
            body: range.encode(),
        };
        self.log_content(record, &tx);
        Ok(())
    }

    /// Copies a range piece by piece.
    async fn copy_part(&self, source: &Self, from: u64, target: Range<u64>) -> VolumeResult<()> {
        let to = target.start;
        let len = target.end - to;
        // The next piece is read while this one is written, unless it may be this one.
        let is_same = Rc::ptr_eq(&source.0, &self.0);
        let apart = !is_same || from.abs_diff(to) >= len;
        let mut at = target.start;
        let mut ahead = None;
        while at < target.end {
            let end = self.chunk_end(at).min(target.end);
            let piece = match ahead.take() {
                Some(piece) => piece?,
                None => source.read_stretch(from + (at - to), end - at).await?,
            };
            let next = async {
                let len = self.chunk_end(end).min(target.end) - end;
                match apart && len > 0 {
                    true => Some(source.read_stretch(from + (end - to), len).await),
                    false => None,
                }
            };
            let (written, read) = runtime::join(self.write_stretch(at..end, piece), next).await;
            written?;
            ahead = read;
            at = end;
        }
        Ok(())
    }

    /// Reads a range; `None` when all of it is a hole.
    async fn read_stretch(&self, offset: u64, len: u64) -> VolumeResult<Option<Vec<IoBuf>>> {
        let pieces = self.read(offset, index(len)).await?;
        let next = self.0.os.next_data(DATA, offset).await?;
        Ok(next
            .is_some_and(|data| data < offset + len)
            .then_some(pieces))
    }

    /// Writes what [`Volume::read_stretch`] found.
    async fn write_stretch(
        &self,
        range: Range<u64>,
        pieces: Option<Vec<IoBuf>>,
    ) -> VolumeResult<()> {
        let Some(pieces) = pieces else {
            return self.free(range).await;
        };
        let _lock = self.0.ranges.exclusive(range.clone()).await;
        self.write_locked(range.start, pieces).await
    }
}
