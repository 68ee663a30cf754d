//! Work on one leaf where nothing is allocated: discarding, and writing for the first time.
//!
//! Guarantees: what is asked for is done to that leaf alone. Does not know what is free: the caller keeps others away.

use std::ops::Range;

use ondisk::Guid;
use runtime::{DiskError, IoBuf};

use crate::LEAF_DATA_START;
use crate::error::VdevError;
use crate::layout::Layout;
use crate::leaf::LeafError;
use crate::queue::IoClass;
use crate::raidz::slot_ranges;
use crate::tree::Tree;

/// The device cannot discard.
const EOPNOTSUPP: i32 = 95;

impl Tree {
    /// Returns the parts of a leaf that a range of its top-level vdev covers, as bytes from the start of the device,
    /// ascending; `None` when there is no such leaf, or its layout is not written here.
    #[must_use]
    pub fn leaf_ranges(&self, leaf: Guid, range: &Range<u64>) -> Option<Vec<Range<u64>>> {
        let found = self.0.leaves.borrow().get(&leaf).cloned();
        // What a distributed spare does not use is free space of others.
        let found = found.filter(|found| found.spare.is_none())?;
        let top = self.top(found.top)?;
        let mut slots = top.slots.iter();
        let slot = slots.position(|slot| slot.any(|own| own.guid == leaf))?;
        let mut inner = match &top.layout {
            Layout::Copies => vec![range.clone()],
            Layout::Raidz(raidz) if raidz.is_reshaped() => return None,
            Layout::Raidz(raidz) => vec![slot_ranges(raidz, top.ashift, range).get(slot)?.clone()],
            Layout::Draid(draid) => {
                let ranges = draid.slot_ranges(top.ashift, range).into_iter();
                let own = ranges.filter(|(child, _)| *child == slot);
                own.map(|(_, range)| range).collect()
            }
        };
        for part in &mut inner {
            *part = LEAF_DATA_START + part.start..LEAF_DATA_START + part.end;
        }
        Some(inner)
    }

    /// Tells a leaf that a range of its bytes holds nothing. Returns false when it cannot discard.
    ///
    /// # Errors
    /// [`VdevError::NoSuchLeaf`], [`VdevError::Unavailable`], [`VdevError::Device`].
    pub async fn trim_leaf(&self, leaf: Guid, range: &Range<u64>) -> Result<bool, VdevError> {
        let (found, _) = self.leaf_for_label(leaf)?;
        let len = range.end - range.start;
        match found.trim(range.start, len).await {
            Ok(()) => Ok(true),
            Err(LeafError::Device(DiskError::Io { errno, .. })) if errno == EOPNOTSUPP => Ok(false),
            Err(error) => Err(failed(found.top, range.start, len, error)),
        }
    }

    /// Writes bytes to one leaf, at `offset` from its start.
    ///
    /// # Errors
    /// As [`Tree::trim_leaf`].
    pub async fn fill_leaf(&self, leaf: Guid, offset: u64, data: IoBuf) -> Result<(), VdevError> {
        let (found, _) = self.leaf_for_label(leaf)?;
        let len = data.len() as u64;
        let written = found.write(offset, data, IoClass::Scrub, None, None).await;
        written.map_err(|error| failed(found.top, offset, len, error))
    }
}

fn failed(vdev: u32, offset: u64, size: u64, error: LeafError) -> VdevError {
    match error {
        LeafError::Device(source) => VdevError::Device {
            vdev,
            offset,
            size,
            source,
        },
        LeafError::Closed | LeafError::Stuck => VdevError::Unavailable { vdev },
    }
}
