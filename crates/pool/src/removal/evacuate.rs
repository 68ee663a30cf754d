//! Copying what is allocated on a vdev to others, in the order of its offsets.
//!
//! A batch is chosen, given places in the open txg and copied while it is held open; that txg then writes the entries of
//! the table. What is freed before that is freed at its new place, too, with the entries; what is freed later goes through
//! the table. So at the end of each txg exactly that is allocated elsewhere which the table has for what is still
//! allocated here.
// OpenZFS: module/zfs/vdev_removal.c, spa_vdev_copy_impl, spa_vdev_copy_segment, vdev_mapping_sync

use std::ops::Range;
use std::rc::{Rc, Weak};
use std::time::Duration;

use dmu::Tx;
use ondisk::{NvList, Txg};
use range_tree::RangeTree;
use vdev::{CopyFailure, Location, MappingEntry, VdevError, labels};

use super::state::CopiedInTxg;
use super::table::CopiedRun;
use super::{Evacuation, none_active};
use crate::PoolError;
use crate::pool::ImportedPool;

/// Runs of a batch: a txg is held open while it is copied.
const BATCH_RUNS: usize = 256;
/// Bytes of the vdev examined for a batch.
const WINDOW_BYTES: u64 = 64 << 20;
/// Runs copied by a txg before it is asked to be written.
const PENDING_RUNS: usize = 16_384;
const _: () = assert!(BATCH_RUNS <= PENDING_RUNS && WINDOW_BYTES > 0);
/// How often a paused evacuation looks whether it may go on.
const PAUSE: Duration = Duration::from_millis(10);

/// Allocated ranges close to each other: they are copied together if there is room.
type Segment = Vec<Range<u64>>;

enum EvacuationStep {
    More,
    Done,
    Stopped,
}

impl ImportedPool {
    /// Goes on with an evacuation that is under way.
    pub(crate) fn evacuate_in_background(self: &Rc<Self>) {
        let Some(evacuation) = self.activities.removal.evacuation() else {
            return;
        };
        if self.session.readonly {
            return;
        }
        evacuation.stopped.set(false);
        let weak = Rc::downgrade(self);
        let task = self.handle().spawn("an evacuation", run(weak, evacuation));
        self.activities.removal.task.replace(Some(task));
    }

    /// Ends the work on an evacuation before the pool is left; the next import goes on with it.
    pub(crate) async fn stop_removal(&self) {
        self.activities.removal.closing.set(true);
        self.stop_evacuation().await;
    }

    /// Stops the worker, and waits until it has.
    pub(super) async fn stop_evacuation(&self) {
        if let Some(evacuation) = self.activities.removal.evacuation() {
            evacuation.stopped.set(true);
        }
        let task = self.activities.removal.task.borrow_mut().take();
        if let Some(task) = task {
            task.await;
        }
    }

    /// Gives an evacuation up whose worker has stopped.
    pub(super) async fn cancel_stopped_evacuation(self: &Rc<Self>) -> Result<(), PoolError> {
        let Some(evacuation) = self.activities.removal.evacuation() else {
            return Err(none_active());
        };
        // What was copied is part of the table first.
        while !evacuation.pending.borrow().is_empty() {
            self.clock().sync_all().await?;
        }
        self.run_in_sync(async move |imported: Rc<Self>, tx: Rc<Tx>| {
            imported.cancel_evacuation(&tx).await
        })
        .await?;
        self.continue_leaf_activities_below(evacuation.vdev);
        self.resilver_if_needed().await
    }

    /// The part of an evacuation in the sync of `txg`, before anything of the txg is freed: writes the entries of what it
    /// copied.
    pub(crate) async fn sync_removal(&self, txg: Txg, tx: &Tx) -> Result<(), PoolError> {
        assert!(tx.is_syncing(), "sync removal happens in syncing context");
        let Some(evacuation) = self.activities.removal.evacuation() else {
            return Ok(());
        };
        let pending = evacuation.pending.borrow_mut().remove(&txg);
        let Some(CopiedInTxg { copied, unused }) = pending else {
            return Ok(());
        };
        let id = evacuation.vdev;
        for (vdev, range) in unused {
            self.store().free_range(txg, vdev, &range)?;
        }
        let mut entries = Vec::new();
        let mut live_bytes = 0;
        for moved in copied {
            let source = moved.from..moved.from + moved.len;
            let metaslab = evacuation.metaslab_of(moved.from)?;
            let live = self.store().allocated_in(id, metaslab, &source).await?;
            let live: RangeTree = live.into_iter().collect();
            let mut obsolete = 0;
            for dead in live.gaps(&source) {
                let from = moved.offset + (dead.start - moved.from);
                let place = from..from + (dead.end - dead.start);
                self.store().free_range(txg, moved.vdev, &place)?;
                obsolete += dead.end - dead.start;
            }
            assert!(
                obsolete <= moved.len,
                "no more of a copy is obsolete than was copied"
            );
            live_bytes += moved.len - obsolete;
            if obsolete < moved.len {
                entries.push(CopiedRun { moved, obsolete });
            }
        }
        if entries.is_empty() {
            return Ok(());
        }
        let mut table = evacuation.table.get();
        table.append(self.mos(), &entries, tx).await?;
        evacuation.table.set(table);
        let runs: Vec<MappingEntry> = entries.iter().map(|entry| entry.moved).collect();
        self.tree().extend_mapping(id, &runs, txg)?;
        self.note_copied(live_bytes, tx).await
    }

    /// Copies one batch.
    async fn evacuate_batch(&self, evacuation: &Evacuation) -> Result<EvacuationStep, PoolError> {
        let stopped = || {
            evacuation.stopped.get()
                || self.activities.removal.closing.get()
                || self.lifecycle.is_closed()
        };
        while self.activities.removal.paused.get() && !stopped() {
            self.handle().sleep(PAUSE).await;
        }
        if stopped() || self.lifecycle.is_failed() {
            return Ok(EvacuationStep::Stopped);
        }
        let (segments, next) = self.choose(evacuation).await?;
        if segments.is_empty() {
            evacuation.next.set(next);
            let end = evacuation.metaslabs << evacuation.metaslab_shift;
            return Ok(if next >= end {
                EvacuationStep::Done
            } else {
                EvacuationStep::More
            });
        }
        // The txg stays open until the copies are there.
        let tx = self.clock().begin_now()?;
        let txg = tx.txg();
        let mut places = Vec::new();
        let mut outcome = Ok(());
        for segment in segments {
            outcome = self
                .allocate_segment(evacuation, txg, segment, &mut places)
                .await;
            if outcome.is_err() {
                break;
            }
        }
        if outcome.is_ok() {
            let copies = places.iter().map(|moved| self.copy(evacuation, txg, moved));
            outcome = runtime::join_all(copies).await.into_iter().collect();
        }
        let many = {
            let mut pending = evacuation.pending.borrow_mut();
            let pending = pending.entry(txg).or_default();
            if outcome.is_ok() {
                pending.copied.extend(places);
            } else {
                let unused = places.into_iter();
                let range = |moved: &MappingEntry| moved.offset..moved.offset + moved.len;
                pending
                    .unused
                    .extend(unused.map(|moved| (moved.vdev, range(&moved))));
            }
            pending.copied.len() > PENDING_RUNS
        };
        drop(tx);
        outcome?;
        evacuation.next.set(next);
        if many {
            self.clock().kick();
        }
        Ok(EvacuationStep::More)
    }

    /// Chooses what to copy next. Returns it, and the offset reached.
    async fn choose(&self, evacuation: &Evacuation) -> Result<(Vec<Segment>, u64), PoolError> {
        let tuning = &self.activities.removal.tuning;
        let shift = evacuation.metaslab_shift;
        let end = evacuation.metaslabs << shift;
        let mut at = evacuation.next.get();
        let mut segments: Vec<Segment> = Vec::new();
        let mut bytes = 0;
        while at < end && bytes == 0 {
            let metaslab = evacuation.metaslab_of(at)?;
            let edge = (u64::from(metaslab) + 1) << shift;
            let window = at..edge.min(at.saturating_add(WINDOW_BYTES));
            let vdev = evacuation.vdev;
            let mut live = self.store().allocated_in(vdev, metaslab, &window).await?;
            let mut looked = window.end;
            // The last range may go on behind the window.
            if live.len() > 1
                && window.end < edge
                && let Some(last) = live.pop_if(|last| last.end == window.end)
            {
                looked = last.start;
            }
            at = looked;
            for range in live {
                let mut start = range.start;
                while start < range.end {
                    if bytes >= tuning.batch_bytes || segments.len() >= BATCH_RUNS {
                        return Ok((segments, start));
                    }
                    let joined = segments.last_mut().filter(|segment| {
                        let (first, last) = (segment.first(), segment.last());
                        first.zip(last).is_some_and(|(first, last)| {
                            start - last.end <= tuning.span_bytes
                                && range.end - first.start <= tuning.segment_bytes
                        })
                    });
                    let stop = range.end.min(start + tuning.segment_bytes);
                    bytes += stop - start;
                    match joined {
                        Some(segment) => segment.push(start..stop),
                        None => segments.push(std::iter::once(start..stop).collect()),
                    }
                    start = stop;
                }
            }
        }
        Ok((segments, at))
    }

    /// Finds places for a segment: one if there is room, else several, split where allocated ranges end if that is possible.
    async fn allocate_segment(
        &self,
        evacuation: &Evacuation,
        txg: Txg,
        mut segment: Segment,
        places: &mut Vec<MappingEntry>,
    ) -> Result<(), PoolError> {
        let unit = 1_u64 << evacuation.ashift;
        let mut most = self.activities.removal.tuning.segment_bytes;
        while let (Some(first), Some(last)) = (segment.first(), segment.last()) {
            let start = first.start;
            let span = last.end - start;
            let size = if span <= most {
                span
            } else {
                let ends = segment.iter().map(|range| range.end - start);
                ends.take_while(|&end| end <= most).last().unwrap_or(most)
            };
            let class = evacuation.class;
            let Some((vdev, offset)) = self.store().allocate_for_removal(txg, size, class).await?
            else {
                let tried = span.min(most);
                if tried <= unit {
                    return Err(PoolError::NoSpace);
                }
                most = (tried / 2).next_multiple_of(unit);
                continue;
            };
            assert!(
                size > 0 && size <= span,
                "a segment of {span} bytes is copied in parts, not in {size}"
            );
            places.push(MappingEntry {
                from: start,
                len: size,
                vdev,
                offset,
            });
            let end = start + size;
            segment.retain(|range| range.end > end);
            if let Some(first) = segment.first_mut() {
                first.start = first.start.max(end);
            }
        }
        Ok(())
    }

    async fn copy(
        &self,
        evacuation: &Evacuation,
        txg: Txg,
        moved: &MappingEntry,
    ) -> Result<(), PoolError> {
        let from = Location {
            vdev: evacuation.vdev,
            offset: moved.from,
            size: moved.len,
            born: Txg(0),
        };
        let to = Location {
            vdev: moved.vdev,
            offset: moved.offset,
            size: moved.len,
            born: txg,
        };
        loop {
            let error = match self.tree().copy(from, to).await {
                Ok(()) => return Ok(()),
                Err(CopyFailure::Source(error)) => return Err(error.into()),
                Err(CopyFailure::Target(error)) => error,
            };
            // As for other writes: the pool waits for its devices.
            let device = matches!(
                error,
                VdevError::Device { .. } | VdevError::Unavailable { .. }
            );
            if !(device && self.wait_resumed(&error.to_string()).await) {
                return Err(error.into());
            }
        }
    }

    /// Makes an evacuated vdev a removed one.
    async fn finish_evacuation(self: &Rc<Self>, evacuation: &Evacuation) -> Result<(), PoolError> {
        while !evacuation.pending.borrow().is_empty() {
            self.clock().sync_all().await?;
        }
        let disks = Rc::new(std::cell::RefCell::new(Vec::new()));
        let kept = disks.clone();
        self.run_in_sync(async move |imported: Rc<Self>, tx: Rc<Tx>| {
            kept.replace(imported.complete_removal(&tx).await?);
            Ok(())
        })
        .await?;
        self.forget_detached_leaf_activities();
        self.notify("vdev_remove_dev", Some(evacuation.guid), NvList::new());
        // Only now: until the txg was durable they were the pool's.
        for disk in disks.take() {
            drop(labels::clear(&disk).await);
        }
        self.resilver_if_needed().await
    }
}

impl Evacuation {
    pub(super) fn metaslab_of(&self, offset: u64) -> Result<u32, PoolError> {
        let metaslab = offset >> self.metaslab_shift;
        u32::try_from(metaslab).map_err(|_| PoolError::NoSuchDevice)
    }
}

async fn run(weak: Weak<ImportedPool>, evacuation: Rc<Evacuation>) {
    loop {
        let Some(imported) = weak.upgrade() else {
            return;
        };
        let failure = match imported.evacuate_batch(&evacuation).await {
            Ok(EvacuationStep::More) => continue,
            Ok(EvacuationStep::Stopped) => return,
            Ok(EvacuationStep::Done) => match imported.finish_evacuation(&evacuation).await {
                Ok(()) => return,
                Err(error) => error,
            },
            Err(error) => error,
        };
        if imported.lifecycle.is_stopped() {
            return;
        }
        // Continuing would make damage permanent that may still be repaired.
        let text = format!("vdev {}: {failure}", evacuation.vdev);
        imported.queue_internal("vdev remove failed", text);
        drop(imported.cancel_stopped_evacuation().await);
        return;
    }
}
