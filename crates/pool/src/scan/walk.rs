//! The walk of a scan: dataset after dataset, window after window of blocks, each window in the order of the disks.
//!
//! A walk sees the trees as they were when it took their root, while the pool goes on. A block freed since then may have
//! been overwritten, but not within two txgs of the root's (space is kept that long): damage found later than that is
//! looked at again from a newer root before it counts.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use dmu::{DmuError, Traversal, TraverseItem, TraverseOptions};
use ondisk::scan::{DESTROYED_OBJSET, DamagedBlock};
use ondisk::{BlockPointer, ObjectId, Txg};
use runtime::sync::Semaphore;
use zio::{Bookmark, IoClass, ReadProps, ZioError};

use super::order;
use crate::PoolError;
use crate::pool::ImportedPool;

/// Blocks checked at the same time.
const CONCURRENT: usize = 64;
/// Blocks, and bytes on all copies, of one window: it is sorted by place, and it is the unit of progress.
const WINDOW_BLOCKS: usize = 2048;
/// See [`WINDOW_BLOCKS`].
const WINDOW_BYTES: u64 = 128 << 20;
/// Block pointers examined for one window: a resilver skips most of them.
const WINDOW_VISITS: usize = 65_536;
const _: () = assert!(CONCURRENT <= WINDOW_BLOCKS && WINDOW_BLOCKS <= WINDOW_VISITS);
const _: () = assert!(WINDOW_BYTES >= ondisk::MAX_BLOCK_SIZE);
/// How often a window is walked again from a newer root.
const ATTEMPTS: u32 = 4;
/// Progress is made durable this often.
const PROGRESS_EVERY: Duration = Duration::from_secs(5);

/// How long a scan waits before it asks again for devices that no redundancy covers.
const AWAY_WAIT: Duration = Duration::from_secs(1);

/// Why a walk ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WalkEnd {
    /// Everything was visited.
    Complete,
    /// It was asked to stop; its place is kept.
    Stopped,
}

/// What checking a window came to.
#[derive(Clone, Debug, Default)]
struct WindowOutcome {
    examined_bytes: u64,
    skipped_bytes: u64,
    repaired_bytes: u64,
    unrepaired_copies: u64,
    damaged: BTreeSet<DamagedBlock>,
}

/// Outdated leaves by top-level vdev, with the txgs they miss.
type Outdated = BTreeMap<u32, Vec<Vec<Range<u64>>>>;

impl ImportedPool {
    /// Goes on with the scan from where it is.
    pub(super) async fn walk(self: &Rc<Self>) -> Result<WalkEnd, PoolError> {
        let mut saved = self.handle().now();
        loop {
            let place = self.activities.scan.phys.borrow().bookmark;
            let [objset, ..] = place;
            if objset == DESTROYED_OBJSET {
                if !self.next_dataset().await? {
                    return Ok(WalkEnd::Complete);
                }
                continue;
            }
            if self.walk_objset(objset, &mut saved).await? == WalkEnd::Stopped {
                return Ok(WalkEnd::Stopped);
            }
            let min_txg = self.activities.scan.phys.borrow().cur_min_txg;
            let mut order = self.activities.scan.order.borrow().clone();
            if objset != 0 {
                order.visited(self.mos(), objset, min_txg).await?;
            } else {
                let max_txg = self.activities.scan.phys.borrow().max_txg;
                order.refill(self.mos(), max_txg).await?;
            }
            *self.activities.scan.order.borrow_mut() = order;
            self.activities.scan.phys.borrow_mut().bookmark = [DESTROYED_OBJSET, 0, 0, 0];
        }
    }

    /// Chooses the next dataset; false when none is left.
    async fn next_dataset(&self) -> Result<bool, PoolError> {
        let mut next = self.activities.scan.order.borrow_mut().pop();
        if next.is_none() {
            let max_txg = self.activities.scan.phys.borrow().max_txg;
            let mut order = self.activities.scan.order.borrow().clone();
            order.refill(self.mos(), max_txg).await?;
            next = order.pop();
            *self.activities.scan.order.borrow_mut() = order;
        }
        let Some((object, min_txg)) = next else {
            return Ok(false);
        };
        let mut phys = self.activities.scan.phys.borrow_mut();
        phys.bookmark = [object, 0, 0, 0];
        phys.cur_min_txg = min_txg.max(phys.min_txg);
        phys.cur_max_txg = phys.max_txg;
        Ok(true)
    }

    /// Returns the root of an objset as of a complete txg; `None` when the dataset is gone.
    pub(crate) async fn settled_root(
        &self,
        objset: u64,
    ) -> Result<Option<BlockPointer>, PoolError> {
        loop {
            let root = if objset == 0 {
                self.mos().root()
            } else {
                match order::dataset(self.mos(), objset).await? {
                    Some(phys) => phys.bp,
                    None => return Ok(None),
                }
            };
            if self.session.readonly || root.is_hole() || root.birth() <= self.clock().last_synced()
            {
                return Ok(Some(root));
            }
            self.clock().wait_synced(root.birth()).await?;
        }
    }

    /// Where a walk of an objset goes on: behind the stored bookmark.
    fn resumed_walk(&self, objset: u64) -> TraverseOptions {
        let (place, min_birth) = {
            let phys = self.activities.scan.phys.borrow();
            (phys.bookmark, Txg(phys.cur_min_txg))
        };
        let [_, object, level, block] = place;
        TraverseOptions {
            objset_id: objset,
            min_birth,
            skip_errors: true,
            background: true,
            resume: Some((ObjectId(object), if level == 0 { block } else { 0 })),
            ..TraverseOptions::default()
        }
    }

    async fn walk_objset(
        self: &Rc<Self>,
        objset: u64,
        saved: &mut runtime::Instant,
    ) -> Result<WalkEnd, PoolError> {
        let mut attempt = 0;
        loop {
            let Some(root) = self.settled_root(objset).await? else {
                return Ok(WalkEnd::Complete);
            };
            if root.is_hole() {
                return Ok(WalkEnd::Complete);
            }
            let taken = self.clock().last_synced();
            let mut traversal = Traversal::new(self.services(), root, self.resumed_walk(objset));
            let mut ahead = Some(self.gather(&mut traversal, objset).await?);
            while let Some((window, last)) = ahead.take() {
                // The next window is gathered meanwhile, so that the devices need not wait for it.
                let (found, next) = runtime::join(self.check(objset, &window), async {
                    match window.ended {
                        true => None,
                        false => Some(self.gather(&mut traversal, objset).await),
                    }
                })
                .await;
                let stale = !self.session.readonly && self.clock().last_synced().0 > taken.0 + 1;
                if !found.damaged.is_empty() && stale && attempt < ATTEMPTS {
                    attempt += 1;
                    break;
                }
                if !found.damaged.is_empty() && self.has_unreadable_top() {
                    // A device that is away has not lost its bytes.
                    if self.activities.scan.stopping.get() || self.lifecycle.is_closed() {
                        return Ok(WalkEnd::Stopped);
                    }
                    self.handle().sleep(AWAY_WAIT).await;
                    break;
                }
                attempt = 0;
                let ended = window.ended;
                self.note(found, objset, last);
                // Without another holder the pool was dropped: what is done stays as a crash would leave it.
                let dropped = Rc::strong_count(self) == 1;
                if self.activities.scan.stopping.get() || self.lifecycle.is_closed() || dropped {
                    return Ok(WalkEnd::Stopped);
                }
                if ended {
                    return Ok(WalkEnd::Complete);
                }
                ahead = next.transpose()?;
                if self.handle().now() >= *saved + PROGRESS_EVERY {
                    *saved = self.handle().now();
                    self.activities.scan.dirty.set(true);
                    if !self.session.readonly {
                        self.clock().kick();
                    }
                }
            }
        }
    }

    /// Whether some top-level vdev cannot be read at all.
    fn has_unreadable_top(&self) -> bool {
        self.tree().status().health == vdev::Health::Unavailable
    }

    /// Collects the next window, and the place it reaches to.
    async fn gather(
        &self,
        traversal: &mut Traversal,
        objset: u64,
    ) -> Result<(ScanWindow, Option<(u64, u64)>), PoolError> {
        let max_txg = self.activities.scan.phys.borrow().max_txg;
        let outdated = self.outdated_by_top();
        let resilver = self.activities.scan.is_resilver();
        let mut window = ScanWindow::default();
        let mut last = None;
        let mut visits = 0;
        while window.blocks.len() < WINDOW_BLOCKS
            && window.bytes < WINDOW_BYTES
            && visits < WINDOW_VISITS
        {
            visits += 1;
            let Some(item) = traversal.next().await? else {
                window.ended = true;
                break;
            };
            if item.level == 0 && item.object.0 != 0 {
                last = Some((item.object.0, item.block));
            }
            if let Some(error) = &item.error {
                if !is_unreadable_by_design(error) {
                    window.damaged.insert(damaged(objset, &item));
                }
                continue;
            }
            let bp = &item.bp;
            if bp.is_hole() || bp.is_embedded() || bp.birth().0 > max_txg {
                continue;
            }
            let bytes: u64 = bp.copies().map(|dva| dva.asize).sum();
            window.bytes += bytes;
            if resilver && !lacks(&outdated, bp) && !self.lacks_moved(&outdated, bp) {
                window.skipped += bytes;
                continue;
            }
            window.blocks.push(item);
        }
        window
            .blocks
            .sort_by_key(|item| item.bp.copies().next().map(|dva| (dva.vdev, dva.offset)));
        Ok((window, last))
    }

    async fn check(self: &Rc<Self>, objset: u64, window: &ScanWindow) -> WindowOutcome {
        let found = Rc::new(RefCell::new(WindowOutcome {
            examined_bytes: window.bytes,
            skipped_bytes: window.skipped,
            damaged: window.damaged.clone(),
            ..WindowOutcome::default()
        }));
        let room = Rc::new(Semaphore::new(
            "room among the blocks being scanned",
            CONCURRENT,
        ));
        for item in &window.blocks {
            let permit = room.acquire(1).await;
            let (imported, found, item) = (self.clone(), found.clone(), item.clone());
            drop(self.handle().spawn("scan of a block", async move {
                imported.check_block(objset, &item, &found).await;
                drop(permit);
            }));
        }
        // All permits back: every block has been checked.
        drop(room.acquire(CONCURRENT).await);
        found.take()
    }

    async fn check_block(&self, objset: u64, item: &TraverseItem, found: &RefCell<WindowOutcome>) {
        let props = ReadProps {
            class: IoClass::Scrub,
            bookmark: Bookmark {
                objset,
                object: item.object.0,
                level: i64::from(item.level),
                block: item.block,
            },
        };
        let outcome = self.store().scrub(&item.bp, props).await;
        let mut found = found.borrow_mut();
        match outcome {
            Ok(outcome) => {
                found.repaired_bytes += outcome.repaired_bytes;
                found.unrepaired_copies += u64::from(outcome.unrepaired_copies);
                if outcome.lost {
                    found.damaged.insert(damaged(objset, item));
                }
            }
            Err(_) => {
                found.damaged.insert(damaged(objset, item));
            }
        }
    }

    /// Counts a window and moves the place behind it.
    fn note(&self, found: WindowOutcome, objset: u64, last: Option<(u64, u64)>) {
        let scan = &self.activities.scan;
        let mut phys = scan.phys.borrow_mut();
        phys.examined += found.examined_bytes;
        phys.skipped += found.skipped_bytes;
        phys.processed += found.repaired_bytes;
        phys.errors += ondisk::bytes::len64(found.damaged.len());
        if let Some((object, block)) = last {
            phys.bookmark = [objset, object, 0, block];
        }
        let mut pass = scan.pass.get();
        pass.examined += found.examined_bytes;
        pass.issued += found.examined_bytes - found.skipped_bytes;
        pass.unrepaired_copies += found.unrepaired_copies;
        scan.pass.set(pass);
        for block in found.damaged {
            if self.error_logs.note_in_scan(block) {
                self.report_damage(&block);
            }
        }
        scan.changed.notify_all();
    }

    /// Whether some outdated leaf lacks a copy of a block that lies on a removed vdev.
    fn lacks_moved(&self, outdated: &Outdated, bp: &BlockPointer) -> bool {
        if bp.is_gang() {
            // Its pieces may lie anywhere.
            let mut ranges = outdated.values().flatten().flatten();
            return ranges.any(|range| self.tree().was_copied_in(range));
        }
        bp.copies().any(|dva| {
            if !self.tree().is_removed(dva.vdev) {
                return false;
            }
            let at = vdev::Location {
                vdev: dva.vdev,
                offset: dva.offset,
                size: dva.asize,
                born: bp.physical_birth(),
            };
            // A block that cannot be resolved is read, and reported then.
            let Ok(pieces) = self.tree().resolve(at) else {
                return true;
            };
            pieces.iter().any(|piece| {
                let leaves = outdated.get(&piece.vdev).into_iter().flatten();
                leaves.flatten().any(|range| range.contains(&piece.born.0))
            })
        })
    }

    fn outdated_by_top(&self) -> Outdated {
        let mut outdated = self.devices.dtls.outdated();
        let mut by_top = Outdated::new();
        for leaf in self.tree().leaves() {
            if let Some(ranges) = outdated.remove(&leaf.guid.0) {
                by_top.entry(leaf.top).or_default().push(ranges);
            }
        }
        by_top
    }
}

/// Blocks to be checked together.
#[derive(Clone, Debug, Default)]
struct ScanWindow {
    blocks: Vec<TraverseItem>,
    /// All copies of all blocks, with those passed over.
    bytes: u64,
    skipped: u64,
    damaged: BTreeSet<DamagedBlock>,
    /// The traversal came to its end.
    ended: bool,
}

/// Whether some outdated leaf lacks a copy of the block.
fn lacks(outdated: &Outdated, bp: &BlockPointer) -> bool {
    let birth = bp.physical_birth().0;
    let missing = |ranges: &Vec<Range<u64>>| ranges.iter().any(|range| range.contains(&birth));
    if bp.is_gang() {
        // Its pieces may lie anywhere.
        return outdated.values().flatten().any(missing);
    }
    bp.copies().any(|dva| {
        outdated
            .get(&dva.vdev)
            .is_some_and(|leaves| leaves.iter().any(missing))
    })
}

fn damaged(objset: u64, item: &TraverseItem) -> DamagedBlock {
    DamagedBlock {
        objset,
        object: item.object.0,
        level: i64::from(item.level),
        block: item.block,
        birth: item.bp.birth().0,
    }
}

/// Encrypted or foreign metadata cannot be walked, but is not damaged.
pub(crate) fn is_unreadable_by_design(error: &DmuError) -> bool {
    match error {
        DmuError::Read { source, .. } => matches!(
            &**source,
            ZioError::Encrypted { .. }
                | ZioError::Redacted { .. }
                | ZioError::ForeignByteOrder { .. }
        ),
        _ => false,
    }
}
