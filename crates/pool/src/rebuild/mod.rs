//! Sequential resilver: devices that have just joined a mirror or draid get everything that is allocated, in the order of the
//! vdev's offsets, without a look at block pointers or checksums. A scrub follows.
//!
//! ```text
//! none --attach -s--> active --end reached--> complete: a scrub
//!                        |--one more joins--> active, from the start
//!                        \--no target left, or no source left--> canceled: a healing resilver
//! ```
//! The state of each top-level vdev lies in its ZAP; an active one goes on after an import. Only what a flush has made
//! durable counts as done.
//!
//! A device is brought up to date as a whole or not at all: one that was away for a moment, and every device if some range could
//! not be brought, keeps its dirty-time log, and the healing resilver sees to it.
// OpenZFS: module/zfs/vdev_rebuild.c (states, what is recorded when)

mod state;

use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::{Rc, Weak};
use std::time::Duration;

use dmu::{Tx, zap};
use ondisk::rebuild::{REBUILD_KEY, RebuildPhys, rebuild_state};
use ondisk::{Guid, NvList, ObjectId};
use vdev::{Rebuilt, TopInfo, VdevConfig, VdevError};

pub(crate) use self::state::Rebuilds;
use self::state::{Pass, Rebuild};
use crate::PoolError;
use crate::error::ScanRefusal;
use crate::pool::{ImportedPool, Pool};
use crate::status::{RebuildState, RebuildStatus};

const FEATURE: &str = "device_rebuild";
/// In the configuration of a leaf: the txg in which it joined to be brought up to date so.
// OpenZFS: include/sys/fs/zfs.h, ZPOOL_CONFIG_REBUILD_TXG
const REBUILD_TXG: &str = "rebuild_txg";
/// Bytes of the vdev examined for a batch.
const WINDOW_BYTES: u64 = 64 << 20;
/// Pieces brought at the same time.
const BATCH_PIECES: usize = 64;
const _: () = assert!(BATCH_PIECES > 0 && WINDOW_BYTES.is_power_of_two());
/// How often a paused rebuild looks whether it may go on.
const PAUSE: Duration = Duration::from_millis(10);

// OpenZFS: lib/libzfs/libzfs_pool.c, zpool_vdev_attach (words)
const NOT_THIS_VDEV: &str = "only mirror and dRAID vdevs support sequential reconstruction";
const NO_FEATURE: &str =
    "device_rebuild feature must be enabled in order to use sequential reconstruction";
const NOT_HERE: &str = "can only attach to mirrors and top-level disks";

/// How often each leaf of a vdev had been away.
type Absences = BTreeMap<Guid, u64>;

/// How a worker ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RebuildEnd {
    Done,
    Stopped,
    /// There is nothing it could do any more.
    Pointless,
}

/// What became of making progress durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SavedProgress {
    Stored,
    /// A device that is written to for others may have lost some of it: back to what was durable before.
    RolledBack,
}

impl Pool {
    /// As [`Pool::attach`], with a sequential resilver (`zpool attach -s`, `zpool replace -s`).
    ///
    /// # Errors
    /// As [`Pool::attach`]; `Invalid` for vdevs that cannot be rebuilt so; `Scan` while an ordinary resilver runs.
    pub async fn attach_and_rebuild(
        &self,
        leaf: u64,
        path: &std::path::Path,
        replace: bool,
        force: bool,
    ) -> Result<u64, PoolError> {
        self.join(leaf, path, replace, force, true).await
    }

    /// Pauses or resumes all rebuilds, for tests that inspect one under way.
    pub fn pause_rebuilds(&self, paused: bool) {
        self.0.activities.rebuild.paused.set(paused);
    }
}

impl ImportedPool {
    /// Whether a rebuild could begin now, as far as the pool is concerned.
    pub(crate) fn may_rebuild(&self) -> bool {
        self.hierarchy().features().is_enabled(FEATURE) && !self.activities.scan.is_resilvering()
    }

    /// Refuses a device that is to be rebuilt (or not, while others are).
    // OpenZFS: module/zfs/spa.c, spa_vdev_attach
    pub(crate) fn check_rebuild(
        &self,
        target: Guid,
        replace: bool,
        sequential: bool,
    ) -> Result<(), PoolError> {
        let refuse = |why: &str| Err(PoolError::Invalid(why.to_owned()));
        if !sequential {
            return match self.activities.rebuild.is_active() {
                true => Err(ScanRefusal::Rebuilding.into()),
                false => Ok(()),
            };
        }
        if !self.hierarchy().features().is_enabled(FEATURE) {
            return refuse(if replace { NOT_THIS_VDEV } else { NO_FEATURE });
        }
        if self.activities.scan.is_resilvering() {
            return Err(ScanRefusal::Resilvering.into());
        }
        let vdev = self.top_of_leaf(target).ok_or(PoolError::NoSuchDevice)?;
        if !self.tree().can_rebuild(vdev) {
            return refuse(if replace { NOT_THIS_VDEV } else { NOT_HERE });
        }
        Ok(())
    }

    fn top_of_leaf(&self, leaf: Guid) -> Option<u32> {
        let leaves = self.tree().leaves();
        let found = leaves.iter().find(|known| known.guid == leaf);
        found.map(|found| found.top)
    }

    fn top_config_of(&self, vdev: u32) -> Option<VdevConfig> {
        self.tree().config().tops.get(vdev as usize).cloned()
    }

    /// Returns the devices of a vdev that a rebuild works for: they joined for one, and lack something.
    fn rebuild_targets(&self, vdev: u32) -> Vec<Guid> {
        let config = self.tree().config();
        let Some(top) = config.tops.get(vdev as usize) else {
            return Vec::new();
        };
        let outdated = self.leaves_to_resilver();
        // Distributed spares are among the leaves.
        let leaves = config.leaves().into_iter();
        leaves
            .filter(|leaf| top.holds(leaf.guid) && outdated.contains_key(&leaf.guid.0))
            .filter(|leaf| leaf.extra.u64(REBUILD_TXG).is_some_and(|txg| txg != 0))
            .map(|leaf| leaf.guid)
            .collect()
    }

    fn absences_below(&self, vdev: u32) -> Absences {
        let leaves = self.tree().leaves();
        let mine = leaves.iter().filter(|leaf| leaf.top == vdev);
        mine.filter_map(|leaf| Some((leaf.guid, self.tree().absences(leaf.guid)?)))
            .collect()
    }

    /// Reads at import what is known of rebuilds. Nothing is started yet.
    pub(crate) async fn load_rebuilds(&self) -> Result<(), PoolError> {
        if !self.hierarchy().features().is_enabled(FEATURE) {
            return Ok(());
        }
        for top in self.tree().config().tops {
            let (Some(vdev_zap), Ok(vdev)) = (top.zap_top, u32::try_from(top.id)) else {
                continue;
            };
            if vdev_zap == 0 || !self.tree().can_rebuild(vdev) {
                continue;
            }
            let found = zap::lookup(self.mos(), ObjectId(vdev_zap), REBUILD_KEY).await?;
            let Some(zap::ZapValue::U64(words)) = found else {
                continue;
            };
            if let Some(phys) = RebuildPhys::from_words(&words) {
                let job = Rebuild::new(vdev, phys);
                job.pass.set(self.new_pass(&phys));
                self.activities.rebuild.jobs.borrow_mut().insert(vdev, job);
            }
        }
        Ok(())
    }

    fn new_pass(&self, phys: &RebuildPhys) -> Pass {
        Pass {
            began_nanoseconds: self.handle().now().as_nanos(),
            earlier_ms: phys.scan_time_ms,
            ..Pass::default()
        }
    }

    /// Goes on with the rebuilds that are under way and have no worker; gives those up that have nothing to do.
    pub(crate) async fn continue_rebuilds(self: &Rc<Self>) -> Result<(), PoolError> {
        for job in self.activities.rebuild.all() {
            if !job.is_active() || job.task.borrow().is_some() || self.lifecycle.is_closed() {
                continue;
            }
            let targets = self.rebuild_targets(job.vdev);
            if targets.is_empty() {
                self.end_rebuild(&job, rebuild_state::CANCELED).await?;
                continue;
            }
            job.targets.replace(targets);
            let (weak, worker) = (Rc::downgrade(self), Rc::clone(&job));
            let task = self.handle().spawn("a rebuild", run(weak, worker));
            job.task.replace(Some(task));
        }
        Ok(())
    }

    /// Stops the worker on the vdev of a leaf; [`ImportedPool::continue_rebuilds`] has it go on.
    pub(crate) async fn stop_rebuild_of(&self, leaf: Guid) {
        if let Some(job) = self
            .top_of_leaf(leaf)
            .and_then(|vdev| self.activities.rebuild.job(vdev))
        {
            job.stop().await;
        }
    }

    /// Stops the worker on a vdev.
    pub(crate) async fn stop_rebuild(&self, vdev: u32) {
        if let Some(job) = self.activities.rebuild.job(vdev) {
            job.stop().await;
        }
    }

    /// Stops all workers before the pool is left. They go on after the next import.
    pub(crate) async fn stop_rebuilds(&self) {
        for job in self.activities.rebuild.all() {
            job.stop().await;
        }
    }

    /// Records that a leaf which has just joined is to be rebuilt, with all others of its vdev that are. Syncing context.
    pub(crate) async fn initiate_rebuild(&self, leaf: Guid, tx: &Tx) -> Result<(), PoolError> {
        assert!(
            tx.is_syncing(),
            "initiate rebuild happens in syncing context"
        );
        let vdev = self.top_of_leaf(leaf).ok_or(PoolError::NoSuchDevice)?;
        let txg = tx.txg().0;
        self.tree().update_config(leaf, |vdev| {
            vdev.extra.insert(REBUILD_TXG, txg);
        });
        self.dirty_config();
        let targets = self.rebuild_targets(vdev);
        let missing = targets
            .iter()
            .flat_map(|guid| self.devices.dtls.missing(guid.0));
        let missing: Vec<Range<u64>> = missing.collect();
        let first = missing.iter().map(|range| range.start).min().unwrap_or(txg);
        let known = self.activities.rebuild.job(vdev);
        let was_active = known.as_ref().is_some_and(|job| job.is_active());
        let start_time = match known.filter(|_| was_active) {
            Some(job) => job.phys.get().start_time,
            None => self.unix_time(),
        };
        let phys = RebuildPhys {
            state: rebuild_state::ACTIVE,
            min_txg: first.saturating_sub(1),
            max_txg: missing.iter().map(|range| range.end).max().unwrap_or(txg),
            start_time,
            ..RebuildPhys::default()
        };
        let job = Rebuild::new(vdev, phys);
        job.pass.set(self.new_pass(&phys));
        self.activities.rebuild.jobs.borrow_mut().insert(vdev, job);
        if !was_active {
            self.hierarchy().features().incr(FEATURE, tx).await?;
        }
        self.store_rebuild(vdev, tx).await?;
        let word = if was_active { "reset" } else { "started" };
        self.log_rebuild(vdev, word, tx).await?;
        self.notify_rebuild(vdev, "resilver_start");
        Ok(())
    }

    /// Forgets the rebuilds that have ended: an ordinary resilver begins. Syncing context.
    // OpenZFS: module/zfs/dsl_scan.c, dsl_scan_setup_sync
    pub(crate) async fn forget_rebuilds(&self, tx: &Tx) -> Result<(), PoolError> {
        assert!(
            tx.is_syncing(),
            "forget rebuilds happens in syncing context"
        );
        for job in self.activities.rebuild.all() {
            if !job.is_active() && job.phys.get().state != rebuild_state::NONE {
                job.phys.set(RebuildPhys::default());
                self.store_rebuild(job.vdev, tx).await?;
            }
        }
        Ok(())
    }

    /// Forgets the rebuild of a vdev that has gone, with its ZAP. Syncing context.
    pub(crate) async fn forget_rebuild_of(&self, vdev: u64, tx: &Tx) -> Result<(), PoolError> {
        assert!(
            tx.is_syncing(),
            "forget rebuild of happens in syncing context"
        );
        let Ok(vdev) = u32::try_from(vdev) else {
            return Ok(());
        };
        let job = self.activities.rebuild.jobs.borrow_mut().remove(&vdev);
        if job.is_some_and(|job| job.is_active()) {
            self.hierarchy().features().decr(FEATURE, tx).await?;
        }
        Ok(())
    }

    async fn store_rebuild(&self, vdev: u32, tx: &Tx) -> Result<(), PoolError> {
        assert!(tx.is_syncing(), "store rebuild happens in syncing context");
        let vdev_zap = self.top_config_of(vdev).and_then(|top| top.zap_top);
        if let (Some(vdev_zap), Some(job)) = (vdev_zap, self.activities.rebuild.job(vdev)) {
            let value = zap::ZapValue::U64(job.phys.get().to_words());
            zap::update(self.mos(), ObjectId(vdev_zap), REBUILD_KEY, &value, tx).await?;
        }
        Ok(())
    }

    async fn log_rebuild(&self, vdev: u32, word: &str, tx: &Tx) -> Result<(), PoolError> {
        assert!(tx.is_syncing(), "log rebuild happens in syncing context");
        let guid = self.top_config_of(vdev).map_or(0, |top| top.guid.0);
        let text = format!("vdev_id={vdev} vdev_guid={guid} {word}");
        self.log_internal("rebuild", &text, tx).await
    }

    fn notify_rebuild(&self, vdev: u32, name: &str) {
        let guid = self.top_config_of(vdev).map(|top| top.guid);
        let more = NvList::new().with("resilver_type", "sequential");
        self.notify(name, guid, more);
    }

    /// Records the end of a rebuild, and makes it durable.
    async fn end_rebuild(self: &Rc<Self>, job: &Rc<Rebuild>, state: u64) -> Result<(), PoolError> {
        let worker = Rc::clone(job);
        self.run_in_sync(async move |imported: Rc<Self>, tx: Rc<Tx>| {
            let job = worker;
            if !job.is_active() {
                return Ok(());
            }
            job.change(|phys| {
                phys.state = state;
                phys.end_time = imported.unix_time();
            });
            let phys = job.phys.get();
            if state == rebuild_state::COMPLETE && phys.errors == 0 {
                let done = 0..phys.max_txg;
                for target in job.targets.take() {
                    imported
                        .devices
                        .dtls
                        .subtract(imported.mos(), target.0, std::slice::from_ref(&done), &tx)
                        .await?;
                    imported.tree().note_resilvered(target, &done);
                }
            }
            for leaf in imported.tree().leaves() {
                if leaf.top == job.vdev {
                    imported.clear_rebuild_txg(leaf.guid);
                }
            }
            imported.store_rebuild(job.vdev, &tx).await?;
            imported.hierarchy().features().decr(FEATURE, &tx).await?;
            let word = match state {
                rebuild_state::COMPLETE => "complete",
                _ => "canceled",
            };
            imported.log_rebuild(job.vdev, word, &tx).await?;
            imported.notify_rebuild(job.vdev, "resilver_finish");
            if state == rebuild_state::COMPLETE && imported.activities.rebuild.tuning.scrub {
                imported.setup_scrub(&tx).await?;
            }
            Ok(())
        })
        .await
    }

    /// A leaf is no longer rebuilt.
    fn clear_rebuild_txg(&self, leaf: Guid) {
        self.tree().update_config(leaf, |vdev| {
            vdev.extra.remove(REBUILD_TXG);
        });
        self.dirty_config();
    }

    /// What the end of a rebuild makes possible.
    async fn after_rebuild(self: &Rc<Self>) -> Result<(), PoolError> {
        self.start_scrub_after_rebuild().await;
        self.finish_replacements().await?;
        self.resilver_if_needed().await
    }

    /// Drops the targets that were away since `seen`, or are not there any more: what they have is not known. Returns whether
    /// there were any.
    fn drop_targets(&self, job: &Rebuild, seen: &Absences) -> bool {
        let usable = self.leaves_to_resilver();
        let mut dropped = Vec::new();
        job.targets.borrow_mut().retain(|target| {
            let absences = self.tree().absences(*target);
            let stays = absences.is_some()
                && absences == seen.get(target).copied()
                && usable.contains_key(&target.0);
            if !stays {
                dropped.push(*target);
            }
            stays
        });
        for target in &dropped {
            self.clear_rebuild_txg(*target);
        }
        !dropped.is_empty()
    }

    /// Makes what was done up to `at` durable, and then the record of it.
    async fn save_rebuild(
        &self,
        job: &Rc<Rebuild>,
        at: u64,
        kept: &mut RebuildPhys,
        seen: &mut Absences,
    ) -> Result<SavedProgress, PoolError> {
        self.tree().flush_vdev(job.vdev).await?;
        self.drop_targets(job, seen);
        let now = self.absences_below(job.vdev);
        let distributed = job.targets.borrow().iter().any(|&target| {
            let spare = self.devices.auxiliaries.spares.find(target);
            spare.is_some_and(|spare| spare.is_distributed())
        });
        if *seen != now {
            *seen = now;
            if distributed {
                job.phys.set(*kept);
                return Ok(SavedProgress::RolledBack);
            }
        }
        let pass = job.pass.get();
        job.change(|phys| {
            phys.last_offset = at;
            phys.scan_time_ms = pass.earlier_ms + self.pass_ms(&pass);
        });
        *kept = job.phys.get();
        let vdev = job.vdev;
        self.run_in_sync(async move |imported: Rc<Self>, tx: Rc<Tx>| {
            imported.store_rebuild(vdev, &tx).await
        })
        .await?;
        Ok(SavedProgress::Stored)
    }

    fn pass_ms(&self, pass: &Pass) -> u64 {
        let now = self.handle().now().as_nanos();
        now.saturating_sub(pass.began_nanoseconds) / 1_000_000
    }

    fn top_now(&self, vdev: u32) -> Result<TopInfo, PoolError> {
        let tops = self.tree().tops();
        let found = tops.into_iter().find(|top| top.id == vdev);
        found.ok_or(PoolError::NoSuchDevice)
    }

    /// Brings the devices of a vdev up to date, from where it was interrupted to the end.
    async fn rebuild_vdev(&self, job: &Rc<Rebuild>) -> Result<RebuildEnd, PoolError> {
        // Blocks of txgs that are still on their way must be there.
        while self.clock().last_synced().0 < job.phys.get().max_txg {
            self.clock().sync_all().await?;
        }
        let mut seen = self.absences_below(job.vdev);
        let mut kept = job.phys.get();
        job.pass.set(self.new_pass(&kept));
        let mut at = kept.last_offset;
        self.estimate(job, at)?;
        let mut stored = self.handle().now();
        loop {
            let stopped = || job.stopped.get() || self.lifecycle.is_stopped();
            while self.activities.rebuild.paused.get() && !stopped() {
                self.handle().sleep(PAUSE).await;
            }
            if self.lifecycle.is_stopped() {
                return Ok(RebuildEnd::Stopped);
            }
            self.drop_targets(job, &seen);
            if job.targets.borrow().is_empty() {
                return Ok(RebuildEnd::Pointless);
            }
            let top = self.top_now(job.vdev)?;
            let is_done = at >> top.metaslab_shift >= top.metaslab_count;
            let due = self.handle().now() >= stored + self.activities.rebuild.tuning.store_every;
            if is_done || due || stopped() {
                let saved = self.save_rebuild(job, at, &mut kept, &mut seen).await?;
                stored = self.handle().now();
                if saved == SavedProgress::RolledBack {
                    at = kept.last_offset;
                    continue;
                }
                if job.targets.borrow().is_empty() {
                    return Ok(RebuildEnd::Pointless);
                }
                if stopped() {
                    return Ok(RebuildEnd::Stopped);
                }
                if is_done {
                    return Ok(RebuildEnd::Done);
                }
            }
            let (pieces, next) = self.choose_pieces(&top, at).await?;
            match self.rebuild_pieces(job, &pieces, &seen).await? {
                Some(true) => at = next,
                Some(false) => {}
                None => return Ok(RebuildEnd::Pointless),
            }
        }
    }

    /// Estimates what there is to do from `at` on.
    fn estimate(&self, job: &Rebuild, at: u64) -> Result<(), PoolError> {
        let top = self.top_now(job.vdev)?;
        let numbers = (at >> top.metaslab_shift)..top.metaslab_count;
        let left: u64 = numbers
            .filter_map(|number| u32::try_from(number).ok())
            .map(|number| self.store().metaslab_allocated(top.id, number))
            .sum();
        job.change(|phys| phys.bytes_est = phys.bytes_scanned + left);
        Ok(())
    }

    /// Chooses what to rebuild next from `at` on. Returns it, and the offset reached.
    async fn choose_pieces(
        &self,
        top: &TopInfo,
        at: u64,
    ) -> Result<(Vec<Range<u64>>, u64), PoolError> {
        let number = at >> top.metaslab_shift;
        let behind = (number + 1) << top.metaslab_shift;
        let span = top.metaslab_span(number);
        let unit = top.layout.unit(top.ashift);
        let start = at.max(span.start);
        if start >= span.end {
            return Ok((Vec::new(), behind));
        }
        let window = start..span.end.min(start + WINDOW_BYTES / unit * unit);
        let metaslab = u32::try_from(number).map_err(|_| PoolError::NoSuchDevice)?;
        let live = self.store().allocated_in(top.id, metaslab, &window).await?;
        let (mut pieces, mut bytes) = (Vec::new(), 0);
        let most = self.activities.rebuild.tuning.segment_bytes;
        for range in live {
            let mut from = range.start;
            while from < range.end {
                if bytes >= self.activities.rebuild.tuning.batch_bytes
                    || pieces.len() >= BATCH_PIECES
                {
                    return Ok((pieces, from));
                }
                let len = self.tree().rebuild_len(top.id, &(from..range.end), most)?;
                assert!(
                    len > 0 && len <= range.end - from,
                    "a piece of {len} bytes lies in {from:x}..{:x} and moves on",
                    range.end
                );
                pieces.push(from..from + len);
                bytes += len;
                from += len;
            }
        }
        let next = if window.end < span.end {
            window.end
        } else {
            behind
        };
        Ok((pieces, next))
    }

    /// Rebuilds some ranges. False when they must be rebuilt again, as a target was dropped; `None` when no source is left.
    async fn rebuild_pieces(
        &self,
        job: &Rebuild,
        pieces: &[Range<u64>],
        seen: &Absences,
    ) -> Result<Option<bool>, PoolError> {
        let targets = job.targets.borrow().clone();
        let works = pieces
            .iter()
            .map(|piece| self.tree().rebuild(job.vdev, piece, &targets));
        let results: Vec<Result<Rebuilt, VdevError>> = runtime::join_all(works).await;
        if self.drop_targets(job, seen) {
            return Ok(Some(false));
        }
        let (mut phys, mut pass) = (job.phys.get(), job.pass.get());
        for (piece, result) in pieces.iter().zip(results) {
            let rebuilt = match result {
                Ok(rebuilt) => rebuilt,
                Err(VdevError::Unavailable { .. }) => return Ok(None),
                Err(error) => return Err(error.into()),
            };
            let len = piece.end - piece.start;
            phys.bytes_scanned += len;
            pass.scanned += len;
            if rebuilt.was_needed {
                phys.bytes_issued += len;
                pass.issued += len;
            } else {
                pass.skipped += len;
            }
            phys.bytes_rebuilt += rebuilt.bytes;
            phys.errors += u64::from(!rebuilt.is_whole);
        }
        job.phys.set(phys);
        job.pass.set(pass);
        Ok(Some(true))
    }

    /// Returns what is said of the rebuild of a vdev; `None` when there never was one.
    pub(crate) fn rebuild_status(&self, vdev: u32) -> Option<RebuildStatus> {
        let job = self.activities.rebuild.job(vdev)?;
        let (phys, pass) = (job.phys.get(), job.pass.get());
        let state = match phys.state {
            rebuild_state::ACTIVE => RebuildState::Active,
            rebuild_state::CANCELED => RebuildState::Canceled,
            rebuild_state::COMPLETE => RebuildState::Complete,
            _ => return None,
        };
        Some(RebuildStatus {
            state,
            start_time: phys.start_time,
            end_time: phys.end_time,
            scan_time_ms: phys.scan_time_ms,
            scanned_bytes: phys.bytes_scanned,
            issued_bytes: phys.bytes_issued,
            rebuilt_bytes: phys.bytes_rebuilt,
            estimated_bytes: phys.bytes_est,
            errors: phys.errors,
            pass_time_ms: self.pass_ms(&pass),
            pass_scanned_bytes: pass.scanned,
            pass_issued_bytes: pass.issued,
            pass_skipped_bytes: pass.skipped,
        })
    }
}

async fn run(weak: Weak<ImportedPool>, job: Rc<Rebuild>) {
    let Some(imported) = weak.upgrade() else {
        return;
    };
    let outcome = imported.rebuild_vdev(&job).await;
    let state = match outcome {
        Ok(RebuildEnd::Stopped) => {
            job.task.borrow_mut().take();
            return;
        }
        Ok(RebuildEnd::Done) => rebuild_state::COMPLETE,
        Ok(RebuildEnd::Pointless) => rebuild_state::CANCELED,
        Err(error) => {
            let text = format!("vdev {}: {error}", job.vdev);
            imported.queue_internal("rebuild failed", text);
            rebuild_state::CANCELED
        }
    };
    let ended = imported.end_rebuild(&job, state).await;
    job.task.borrow_mut().take();
    if ended.is_ok() && !imported.lifecycle.is_closed() {
        // A task of its own: a caller that waits for this one may be about to begin another.
        let after = Rc::clone(&imported);
        drop(imported.handle().spawn("after a rebuild", async move {
            // What fails stays in the dirty-time logs and is tried again at the next occasion.
            drop(after.after_rebuild().await);
        }));
    }
}
