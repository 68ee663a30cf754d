//! Sequential reconstruction: what a range of a top-level vdev holds is put on devices that lack it, without knowing blocks.
//!
//! Guarantees: the bytes come from devices that lack nothing, and go to the given devices and to no others; whatever is written
//! to the range meanwhile stays. The bytes are not checked: damage of a source is copied, for a scrub to find.
//! Does not know what is allocated, nor how far a rebuild has come.
// OpenZFS: module/zfs/vdev_rebuild.c; vdev_mirror.c, vdev_draid.c (vdev_op_rebuild_asize: how much at a time)

use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use ondisk::{Guid, Txg};
use runtime::IoBuf;

use crate::io::Suspect;
use crate::layout::Layout;
use crate::leaf::{Leaf, LeafError};
use crate::tree::{Top, out_of_range};
use crate::{IoClass, LEAF_DATA_START, Location, OpenMode, Tree, VdevError};

/// How long to wait when the range is being written.
const BUSY_PAUSE: Duration = Duration::from_millis(1);

/// What became of a range.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Rebuilt {
    /// Bytes written to devices.
    pub bytes: u64,
    /// Some device has something of the range to get.
    pub was_needed: bool,
    /// Every given device has all of the range now.
    pub is_whole: bool,
}

/// Bytes for offsets in the data areas of leaves.
pub(crate) type Writes = Vec<(Rc<Leaf>, u64, IoBuf)>;

/// What is to be done about a range.
#[derive(Default)]
pub(crate) struct Plan {
    pub(crate) writes: Writes,
    /// Some given device cannot be given what it should have.
    pub(crate) is_short: bool,
}

impl Tree {
    /// Whether what a vdev holds can be put together without knowing blocks: not with raidz, whose stripes are the blocks'.
    #[must_use]
    pub fn can_rebuild(&self, vdev: u32) -> bool {
        self.top(vdev)
            .is_some_and(|top| !top.is_removed() && !matches!(top.layout, Layout::Raidz(_)))
    }

    /// Returns how much of an allocated range, from its start, is rebuilt at once: about `most` bytes on each device.
    ///
    /// # Errors
    /// [`VdevError::OutOfRange`] when there is no such vdev, or it cannot be rebuilt.
    pub fn rebuild_len(&self, vdev: u32, range: &Range<u64>, most: u64) -> Result<u64, VdevError> {
        let len = range.end.saturating_sub(range.start);
        let out = VdevError::OutOfRange {
            vdev,
            offset: range.start,
            size: len,
        };
        let top = self.top(vdev).ok_or(out.clone())?;
        match &top.layout {
            Layout::Copies => Ok(len.min(most.next_multiple_of(1 << top.ashift))),
            Layout::Draid(draid) => Ok(len.min(draid.rebuild_len(top.ashift, range.start, most))),
            Layout::Raidz(_) => Err(out),
        }
    }

    /// Puts what a range of a vdev (as [`Tree::rebuild_len`] cuts it) holds on those of the devices `targets` that have part
    /// of it. Not durable before [`Tree::flush_vdev`].
    ///
    /// # Errors
    /// [`VdevError::Unavailable`] when too few devices that lack nothing are in service; [`VdevError::OutOfRange`];
    /// [`VdevError::ReadOnly`]. Devices that fail are told by the answer.
    pub async fn rebuild(
        &self,
        vdev: u32,
        range: &Range<u64>,
        targets: &[Guid],
    ) -> Result<Rebuilt, VdevError> {
        if self.0.mode == OpenMode::ReadOnly {
            return Err(VdevError::ReadOnly);
        }
        let len = range.end.saturating_sub(range.start);
        let whole = Location {
            vdev,
            offset: range.start,
            size: len,
            born: Txg(0),
        };
        loop {
            let top = self.top(vdev).ok_or(out_of_range(whole))?;
            let size = match &top.layout {
                Layout::Copies => len,
                Layout::Draid(draid) => draid.data_in(top.ashift, len),
                Layout::Raidz(_) => return Err(out_of_range(whole)),
            };
            let at = Location { size, ..whole };
            self.top_for(at)?;
            let suspect = self.suspect(at);
            let plan = if top.is_striped() {
                self.plan_striped(&top, at, targets).await?
            } else {
                self.plan_copies(&top, at, targets).await?
            };
            if suspect.is_overwritten() {
                // What was read may be older than what is there now. The range gets full, or quiet.
                drop(suspect);
                self.0.handle.sleep(BUSY_PAUSE).await;
                continue;
            }
            return Ok(carry_out(&suspect, plan).await);
        }
    }

    async fn plan_copies(
        &self,
        top: &Top,
        at: Location,
        targets: &[Guid],
    ) -> Result<Plan, VdevError> {
        let mut plan = Plan::default();
        let leaves = top.leaves();
        let is_target = |leaf: &&Rc<Leaf>| targets.contains(&leaf.guid);
        let wanting: Vec<&Rc<Leaf>> = leaves.iter().filter(is_target).collect();
        plan.is_short = wanting.iter().any(|leaf| !leaf.is_usable());
        if wanting.is_empty() {
            return Ok(plan);
        }
        let sound = |leaf: &&Rc<Leaf>| leaf.is_usable() && !leaf.writes.is_stale();
        let mut sources: Vec<&Rc<Leaf>> = leaves.iter().filter(sound).collect();
        if sources.is_empty() {
            return Err(VdevError::Unavailable { vdev: at.vdev });
        }
        // Neighbours from the same device, all devices in turn.
        let first = usize::try_from((at.offset >> 20) % sources.len() as u64).unwrap_or(0);
        sources.rotate_left(first);
        let len = usize::try_from(at.size).map_err(|_| out_of_range(at))?;
        let offset = LEAF_DATA_START + at.offset;
        for source in sources {
            let timeout = self.timeout(top);
            match source.read(offset, len, IoClass::Rebuild, timeout).await {
                Ok(bytes) => {
                    let write = |leaf: &Rc<Leaf>| (Rc::clone(leaf), offset, bytes.clone());
                    plan.writes = wanting.into_iter().map(write).collect();
                    return Ok(plan);
                }
                Err(LeafError::Device(_) | LeafError::Stuck | LeafError::Closed) => {}
            }
        }
        plan.is_short = true;
        Ok(plan)
    }
}

async fn carry_out(suspect: &Suspect, plan: Plan) -> Rebuilt {
    let wanted = plan.writes.len();
    let (count, bytes) = suspect
        .write_repairs_as(plan.writes, IoClass::Rebuild, None)
        .await;
    assert!(count as usize <= wanted, "what is written was wanted");
    Rebuilt {
        bytes,
        was_needed: wanted > 0 || plan.is_short,
        is_whole: count as usize == wanted && !plan.is_short,
    }
}
