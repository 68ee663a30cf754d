//! Expansion of a raidz by one child: sectors move from where they are with one child less to where they are with all.
//!
//! ```text
//! sectors     0 .......... synced ............ ahead ..................... end
//! are at      new place    old place, and      old place
//!                          new place as well
//! ```
//! `synced` is what the newest uberblock says, `ahead` what the next one will. Rows that are not wholly before `synced` are
//! read where they were. What is written below `ahead` is written at both places, so that either uberblock finds it.
//! Nothing that `synced` still needs is overwritten; of the first rows, whose places overlap, a copy is kept in the boot
//! areas while that happens.
//!
//! Guarantees: a step that returns no error has everything below the new `ahead` on stable storage of all children.
//! Does not know what is allocated: the pool says which sectors matter, after it has published `ahead`.
// OpenZFS: module/zfs/vdev_raidz.c (format, and how far a step may go)

use std::ops::Range;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use ondisk::{Guid, RaidzReflow, ReflowState, Txg};
use runtime::IoBuf;
use runtime::sync::RwLockWriteGuard;

use super::map::{Column, Map};
use super::read::Index;
use super::shape::Raidz;
use crate::create::fresh_guid;
use crate::leaf::Leaf;
use crate::tree::{Top, out_of_range};
use crate::{
    BOOT_AREA_START, IoClass, LEAF_DATA_START, Layout, Location, OpenMode, Tree, VdevConfig,
    VdevError,
};

/// Most bytes moved while users of the vdev wait.
const CHUNK_BYTES: u64 = 4 << 20;
/// Bytes of a boot area.
const BOOT_AREA_BYTES: u64 = LEAF_DATA_START - BOOT_AREA_START;
const _: () = assert!(BOOT_AREA_BYTES == 7 << 19 && CHUNK_BYTES > 0);

/// Key of the txgs in which expansions ended.
const EXPAND_TXGS: &str = "raidz_expand_txgs";

/// A second place of a column.
pub(super) struct Shadow {
    pub(super) index: Index,
    pub(super) slot: usize,
    /// Bytes from the start of the device.
    pub(super) start: u64,
}

/// How far the expansion of a vdev is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReflowProgress {
    /// Top-level vdev.
    pub vdev: u32,
    /// What the newest uberblock says.
    pub synced: RaidzReflow,
    /// Bytes of the vdev at which it is done.
    pub end: u64,
    /// Bytes that move through the boot areas.
    pub scratch_bytes: u64,
    /// Bytes up to which the next step may go.
    pub limit: u64,
}

/// Returns the sector up to which sectors may move, when all before `synced` have: nothing that is read where it was is
/// overwritten.
// OpenZFS: module/zfs/vdev_raidz.c, raidz_reflow_impl
fn next_overwrite(synced: u64, old_children: u64) -> u64 {
    (synced + synced / old_children).saturating_sub(old_children)
}

/// Returns the second places of what is written below `ahead`.
pub(super) fn shadows(raidz: &Raidz, ahead: RaidzReflow, ashift: u8, map: &Map) -> Vec<Shadow> {
    if !raidz.expanding {
        return Vec::new();
    }
    let children = u64::from(raidz.width);
    let (until, scratch) = (ahead.offset() >> ashift, ahead.is_in_scratch());
    let area = if scratch {
        BOOT_AREA_START
    } else {
        LEAF_DATA_START
    };
    let moved = |column: &Column| column.len > 0 && column.sector < until;
    let columns = map.columns().filter(|(_, column)| moved(column));
    let shadows = columns.map(|(index, column)| Shadow {
        index,
        slot: usize::try_from(column.sector % children).expect("at most 255 children"),
        start: area + ((column.sector / children) << ashift),
    });
    shadows
        .filter(|shadow| {
            let first = &map.stripes[shadow.index.0].columns[shadow.index.1];
            (shadow.slot, shadow.start) != (first.slot, first.start())
        })
        .collect()
}

impl Top {
    /// The shape, if the vdev is being expanded.
    pub(crate) fn expanding(&self) -> Option<&Raidz> {
        match &self.layout {
            Layout::Raidz(raidz) if raidz.expanding => Some(raidz),
            _ => None,
        }
    }

    /// Returns the second places of the columns of a block that is written.
    pub(super) fn shadows(&self, map: &Map) -> Vec<Shadow> {
        match self.expanding() {
            Some(raidz) => shadows(raidz, self.ahead.get(), self.ashift, map),
            None => Vec::new(),
        }
    }

    /// The only device of a child, if it has everything.
    fn whole_child(&self, slot: usize) -> Result<Rc<Leaf>, VdevError> {
        let gone = VdevError::Unavailable { vdev: self.id };
        let leaves = self.slots.get(slot).map(|slot| slot.leaves());
        match leaves.unwrap_or_default().as_slice() {
            [leaf] if leaf.is_usable() && !leaf.writes.is_stale() => Ok(Rc::clone(leaf)),
            _ => Err(gone),
        }
    }

    fn whole_children(&self) -> Result<Vec<Rc<Leaf>>, VdevError> {
        (0..self.slots.len())
            .map(|slot| self.whole_child(slot))
            .collect()
    }

    fn scratch_bytes(&self, children: u64) -> u64 {
        (BOOT_AREA_BYTES >> self.ashift << self.ashift) * children
    }
}

impl Tree {
    /// Returns the vdev with the guid, if it is a raidz that is not being expanded: another child can be attached to it.
    #[must_use]
    pub fn expandable(&self, guid: Guid) -> Option<u32> {
        let tops = self.tops();
        let found = tops.iter().find(|top| top.guid == guid)?;
        matches!(&found.layout, Layout::Raidz(raidz) if !raidz.expanding).then_some(found.id)
    }

    /// Whether each child of a vdev is one device that is in service and lacks nothing.
    #[must_use]
    pub fn is_whole(&self, vdev: u32) -> bool {
        self.top(vdev)
            .is_some_and(|top| top.whole_children().is_ok())
    }

    /// Returns how far the expansion is that is under way.
    #[must_use]
    pub fn reflow_progress(&self) -> Option<ReflowProgress> {
        let config = self.0.config.borrow();
        let tops = self.0.tops.borrow();
        let top = tops.iter().flatten().find(|top| top.is_expanding())?;
        let shift = config.tops.get(top.id as usize)?.metaslab_shift;
        let children = u64::from(top.expanding()?.width);
        let end = top.asize.get() >> shift << shift;
        let synced = top.reflow.get();
        let limit = next_overwrite(synced.offset() >> top.ashift, children - 1) << top.ashift;
        Some(ReflowProgress {
            vdev: top.id,
            synced,
            end,
            scratch_bytes: top.scratch_bytes(children),
            limit: limit.min(end),
        })
    }

    /// Returns what the next uberblock is to say of the expansion under way.
    #[must_use]
    pub fn reflow_ahead(&self) -> RaidzReflow {
        let tops = self.0.tops.borrow();
        let expanding = tops.iter().flatten().find(|top| top.is_expanding());
        expanding.map_or(RaidzReflow(0), |top| top.ahead.get())
    }

    /// Says that the uberblock with these words is on stable storage.
    pub fn note_reflow_synced(&self, reflow: RaidzReflow) {
        for top in self.0.tops.borrow().iter().flatten() {
            if top.is_expanding() {
                top.reflow.set(reflow);
            }
        }
    }

    /// Opens the device at `path` and makes it one more child of a raidz. Its labels are prepared, and no sector
    /// has moved when this returns. Returns the guid.
    ///
    /// # Errors
    /// [`VdevError::Join`] where the shape forbids it; the device cannot be opened, is too small, or needs larger sectors.
    pub async fn begin_expansion(&self, vdev: u32, path: &Path) -> Result<Guid, VdevError> {
        if self.0.mode == OpenMode::ReadOnly {
            return Err(VdevError::ReadOnly);
        }
        let gone = VdevError::Unavailable { vdev };
        let top = self.top(vdev).ok_or(gone.clone())?;
        let (mut child, least) = self.measure_joining(&top, path).await?;
        let place = match &top.layout {
            Layout::Raidz(raidz) if !raidz.expanding => u64::from(raidz.width),
            _ => return Err(gone),
        };
        (child.id, child.guid) = (place, fresh_guid(&self.0.handle));
        // Each sector of the first rows must be out of the way of itself.
        // OpenZFS: module/zfs/vdev_raidz.c, vdev_raidz_attach_check
        let scratch = top.scratch_bytes(place + 1);
        if (place + 1) << top.ashift > BOOT_AREA_BYTES || scratch > top.asize.get() / 2 {
            return Err(VdevError::Join {
                what: "the vdev is too wide for its sectors",
            });
        }
        let leaf = self.open_joining(&top, &child, least).await?;
        let guid = leaf.guid;
        let add = |wider: &mut VdevConfig| {
            wider.set_expanding(true);
            wider.children.push(child);
        };
        self.0.leaves.borrow_mut().insert(guid, Rc::clone(&leaf));
        let mut joined = self.init_labels(guid).await;
        if joined.is_ok() {
            joined = self.reshape(&top, Some(Rc::clone(&leaf)), add).await;
        }
        if joined.is_err() {
            self.0.leaves.borrow_mut().remove(&guid);
            leaf.close();
        }
        joined.map(|()| guid)
    }

    /// Has blocks born in `txg` and later use all children: every sector has moved, and the uberblock says so.
    ///
    /// # Errors
    /// [`VdevError::Unavailable`] when there is no such vdev.
    pub async fn end_expansion(&self, vdev: u32, txg: Txg) -> Result<(), VdevError> {
        let top = self.top(vdev).ok_or(VdevError::Unavailable { vdev })?;
        let end = |wider: &mut VdevConfig| {
            let mut txgs = wider.extra.u64s(EXPAND_TXGS).unwrap_or(&[]).to_vec();
            txgs.push(txg.0);
            wider.set_expanding(false);
            wider.extra.insert(EXPAND_TXGS, txgs);
        };
        self.reshape(&top, None, end).await
    }

    /// Puts a vdev in its new shape in the place of the old, with the same devices and one more. No I/O is under way then.
    async fn reshape(
        &self,
        old: &Rc<Top>,
        leaf: Option<Rc<Leaf>>,
        change: impl FnOnce(&mut VdevConfig),
    ) -> Result<(), VdevError> {
        let _flush = old.flushing.lock().await;
        let _all = old.gate.write().await;
        let changed = VdevError::Unavailable { vdev: old.id };
        let at = old.id as usize;
        let current = self.top(old.id).ok_or(changed.clone())?;
        let config = self.config().tops.get(at).cloned();
        let mut wider = config.ok_or(changed.clone())?;
        if !Rc::ptr_eq(&current, old) || wider.children.len() != old.slots.len() {
            return Err(changed);
        }
        change(&mut wider);
        let new = old.reshaped(&wider, leaf)?;
        self.0.tops.borrow_mut()[at] = Some(Rc::new(new));
        self.0.config.borrow_mut().tops[at] = wider;
        Ok(())
    }

    /// From now on what is written below `ahead` is written at both places. What was under way before has ended on return.
    pub async fn publish_reflow(&self, vdev: u32, ahead: RaidzReflow) {
        if let Some(top) = self.top(vdev) {
            let _all = top.gate.write().await;
            top.ahead.set(ahead);
        }
    }

    /// Gives up what was published beyond the newest uberblock: it is copied again later.
    pub async fn retract_reflow(&self, vdev: u32) {
        if let Some(top) = self.top(vdev) {
            let _all = top.gate.write().await;
            top.ahead.set(top.reflow.get());
        }
    }

    /// The first step: puts the first rows into the boot areas as they will be, durably.
    ///
    /// # Errors
    /// [`VdevError::Unavailable`] when a child is missing or lacks something, device errors. Then nothing has changed.
    pub async fn fill_scratch(&self, vdev: u32) -> Result<(), VdevError> {
        let (top, _all) = self.reflowing(vdev).await?;
        let leaves = top.whole_children()?;
        let absences = absences_of(&leaves);
        let count = leaves.len() as u64;
        let logical = top.scratch_bytes(count);
        top.ahead
            .set(RaidzReflow::new(ReflowState::ScratchValid, logical));
        let sectors = 0..logical >> top.ashift;
        let area = BOOT_AREA_START;
        let mut from = 0;
        let step = rows_of_chunk(top.ashift, count) * count;
        while from < sectors.end {
            let part = from..sectors.end.min(from + step);
            self.move_sectors(&top, &leaves, &part, area).await?;
            from = part.end;
        }
        self.flush_children(&top, &leaves, absences).await
    }

    /// The second step: copies the first rows from the boot areas to their new places, durably.
    ///
    /// # Errors
    /// As [`Tree::fill_scratch`]; the rows are still in the boot areas.
    pub async fn copy_scratch(&self, vdev: u32) -> Result<(), VdevError> {
        let (top, _all) = self.reflowing(vdev).await?;
        let leaves = top.whole_children()?;
        let absences = absences_of(&leaves);
        let logical = top.reflow.get().offset();
        let each = logical / leaves.len() as u64;
        if each > BOOT_AREA_BYTES || each * leaves.len() as u64 != logical {
            return Err(VdevError::BadConfig {
                what: "the uberblock names more than a boot area holds",
            });
        }
        top.ahead
            .set(RaidzReflow::new(ReflowState::ReflowSynced, logical));
        let timeout = self.timeout(&top);
        let mut from = 0;
        while from < each {
            let len = (each - from).min(CHUNK_BYTES);
            let copies = leaves.iter().map(|leaf| async {
                let bytes = read_leaf(&top, leaf, BOOT_AREA_START + from, len, timeout).await?;
                write_leaf(&top, leaf, LEAF_DATA_START + from, bytes, timeout).await
            });
            for result in runtime::join_all(copies).await {
                result?;
            }
            from += len;
        }
        self.flush_children(&top, &leaves, absences).await
    }

    /// Copies a range (bytes of the vdev, whole sectors) to where it is with all children. `ahead` must have been published.
    /// Not durable before [`Tree::flush_reflow`].
    ///
    /// # Errors
    /// [`VdevError::Unavailable`] when a child is missing or lacks something; device errors.
    pub async fn copy_reflow(&self, vdev: u32, range: &Range<u64>) -> Result<(), VdevError> {
        let mut from = range.start;
        while from < range.end {
            let (top, _all) = self.reflowing(vdev).await?;
            let leaves = top.whole_children()?;
            let to = range.end.min(from + CHUNK_BYTES);
            let (synced, ahead) = (top.reflow.get().offset(), top.ahead.get().offset());
            let limit = next_overwrite(synced >> top.ashift, leaves.len() as u64 - 1);
            assert!(
                synced <= from && to <= ahead && to >> top.ashift <= limit,
                "only what was published moves, and overwrites nothing: {from:x} to {to:x}"
            );
            let part = from >> top.ashift..to >> top.ashift;
            self.move_sectors(&top, &leaves, &part, LEAF_DATA_START)
                .await?;
            from = to;
        }
        Ok(())
    }

    /// Makes all that was copied durable. `absences` is what [`Tree::reflow_absences`] said before the first copy.
    ///
    /// # Errors
    /// As [`Tree::fill_scratch`]; [`VdevError::Unavailable`] when a device was away meanwhile: what it had taken may be gone.
    pub async fn flush_reflow(&self, vdev: u32, absences: u64) -> Result<(), VdevError> {
        let (top, _all) = self.reflowing(vdev).await?;
        let leaves = top.whole_children()?;
        self.flush_children(&top, &leaves, absences).await
    }

    /// Returns how often devices of a vdev stopped being online since the tree was opened.
    #[must_use]
    pub fn reflow_absences(&self, vdev: u32) -> u64 {
        self.top(vdev).map_or(0, |top| absences_of(&top.leaves()))
    }

    /// The vdev with nothing else under way.
    async fn reflowing(&self, vdev: u32) -> Result<(Rc<Top>, RwLockWriteGuard<()>), VdevError> {
        let gone = VdevError::Unavailable { vdev };
        let top = self.top(vdev).ok_or(gone.clone())?;
        let all = top.gate.write().await;
        let current = self.top(vdev).filter(|top| top.is_expanding());
        Ok((current.ok_or(gone)?, all))
    }

    /// Every child must have taken what was copied and have it on stable storage: no dirty-time log would tell otherwise.
    async fn flush_children(
        &self,
        top: &Top,
        leaves: &[Rc<Leaf>],
        absences: u64,
    ) -> Result<(), VdevError> {
        let gone = VdevError::Unavailable { vdev: top.id };
        let timeout = self.timeout(top);
        for result in runtime::join_all(leaves.iter().map(|leaf| leaf.flush(timeout))).await {
            result.map_err(|_| gone.clone())?;
        }
        let now = top.whole_children()?;
        let lost = now.iter().any(|leaf| leaf.writes.has_lost());
        let same = std::iter::zip(&now, leaves).all(|(a, b)| Rc::ptr_eq(a, b));
        if lost || !same || absences_of(&now) != absences {
            return Err(gone);
        }
        Ok(())
    }

    /// Copies sectors from where they are with one child less to where they are with all, from the start of `area` on.
    async fn move_sectors(
        &self,
        top: &Top,
        leaves: &[Rc<Leaf>],
        sectors: &Range<u64>,
        area: u64,
    ) -> Result<(), VdevError> {
        let (ashift, timeout) = (top.ashift, self.timeout(top));
        let (old, new) = (leaves.len() as u64 - 1, leaves.len() as u64);
        let rows = |child: u64, children: u64| {
            let before = |sector: u64| sector.saturating_sub(child).div_ceil(children);
            before(sectors.start)..before(sectors.end)
        };
        let sources = (0_u64..).zip(leaves).take(leaves.len() - 1);
        let reads = sources.map(|(child, leaf)| async move {
            let rows = rows(child, old);
            let len = (rows.end - rows.start) << ashift;
            let start = LEAF_DATA_START + (rows.start << ashift);
            let bytes = read_leaf(top, leaf, start, len, timeout).await?;
            Ok::<_, VdevError>((rows.start, bytes))
        });
        let mut columns = Vec::new();
        for read in runtime::join_all(reads).await {
            columns.push(read?);
        }
        let size = 1_usize << ashift;
        let mut writes = Vec::new();
        for (child, leaf) in (0_u64..).zip(leaves) {
            let rows = rows(child, new);
            let mut bytes = Vec::new();
            for row in rows.clone() {
                let sector = row * new + child;
                let place = usize::try_from(sector % old).ok();
                let (first, column) = place
                    .and_then(|place| columns.get(place))
                    .ok_or(VdevError::Unavailable { vdev: top.id })?;
                let at = super::map::to_usize((sector / old - first) << ashift);
                bytes.extend_from_slice(&column[at..at + size]);
            }
            if !bytes.is_empty() {
                let start = area + (rows.start << ashift);
                let bytes = IoBuf::copy_from(&bytes);
                writes.push(write_leaf(top, leaf, start, bytes, timeout));
            }
        }
        for result in runtime::join_all(writes).await {
            result?;
        }
        Ok(())
    }
}

fn absences_of(leaves: &[Rc<Leaf>]) -> u64 {
    leaves.iter().map(|leaf| leaf.absences()).sum()
}

/// Sectors of each child that are moved at once.
fn rows_of_chunk(ashift: u8, children: u64) -> u64 {
    ((CHUNK_BYTES >> ashift) / children).max(1)
}

fn range_error(top: &Top, offset: u64, size: u64) -> VdevError {
    out_of_range(Location {
        vdev: top.id,
        offset,
        size,
        born: Txg(0),
    })
}

async fn read_leaf(
    top: &Top,
    leaf: &Leaf,
    start: u64,
    len: u64,
    timeout: Option<Duration>,
) -> Result<IoBuf, VdevError> {
    if len == 0 {
        return Ok(IoBuf::copy_from(&[]));
    }
    let size = usize::try_from(len).map_err(|_| range_error(top, start, len))?;
    let read = leaf.read(start, size, IoClass::Rebuild, timeout).await;
    read.map_err(|error| crate::tree::leaf_failure(leaf, start, len, error))
}

async fn write_leaf(
    top: &Top,
    leaf: &Leaf,
    start: u64,
    bytes: IoBuf,
    timeout: Option<Duration>,
) -> Result<(), VdevError> {
    let len = bytes.len() as u64;
    assert!(
        start >= BOOT_AREA_START,
        "vdev {}: labels stay as they are",
        top.id
    );
    let written = leaf
        .write(start, bytes, IoClass::Rebuild, timeout, None)
        .await;
    written.map_err(|error| crate::tree::leaf_failure(leaf, start, len, error))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Nothing that is read where it was may be overwritten: rows of any width that end behind `synced`.
    #[test]
    fn a_step_overwrites_nothing_that_is_read_where_it_was() {
        for old in 2..12_u64 {
            let new = old + 1;
            for synced in new * new..new * new * 8 {
                for sector in synced..next_overwrite(synced, old) {
                    let (child, row) = (sector % new, sector / new);
                    if child == old {
                        continue;
                    }
                    let overwritten = row * old + child;
                    // A row of `old` sectors with this one in it ends at least here.
                    for first in overwritten.saturating_sub(old - 1)..=overwritten {
                        assert!(first + old <= synced, "{old} {synced} {sector}");
                    }
                }
            }
        }
    }
}
