//! Expansion of a raidz by one device (`zpool attach POOL raidzN-M DEVICE`): what is allocated moves, in the order of its
//! offsets, from where it is with one device less to where it is with all.
//!
//! ```text
//! attach --> scratch filled --> first rows copied --> batch --> ... --> all moved --> stripes are wider
//!        one txg            one txg               one txg each              the txg after
//! ```
//! Each step is a task of a txg, whose uberblock says how far it came; what is written meanwhile is written for both
//! states. While a device is missing or lacks something nothing moves. An import goes on where the uberblock says.
// OpenZFS: module/zfs/vdev_raidz.c (format, names of entries and events)

mod state;

use std::cell::Cell;
use std::ops::Range;
use std::path::Path;
use std::rc::{Rc, Weak};
use std::time::Duration;

use dmu::{Tx, zap};
use ondisk::{Guid, NvList, ObjectId, RaidzReflow, ReflowState, Txg};
use vdev::{ReflowProgress, VdevConfig};

use crate::PoolError;
use crate::pool::{ImportedPool, Pool};
use crate::status::ExpansionStatus;

pub(crate) use self::state::Reflows;

const FEATURE: &str = "raidz_expansion";
/// Txgs that may have placed blocks in the old width when an expansion ends.
// OpenZFS: include/sys/txg.h, TXG_CONCURRENT_STATES
const TXGS_UNDER_WAY: u64 = 3;
/// How often a paused expansion looks whether it may go on.
const PAUSE: Duration = Duration::from_millis(500);
/// What lies between allocated ranges so close to each other is moved with them.
const GAP_BYTES: u64 = 256 << 10;
const _: () = assert!(TXGS_UNDER_WAY > 2 && GAP_BYTES > 0);

// OpenZFS: include/sys/fs/zfs.h, VDEV_TOP_ZAP_RAIDZ_EXPAND_*
const STATE: &str = "org.openzfs:raidz_expand_state";
const START_TIME: &str = "org.openzfs:raidz_expand_start_time";
const END_TIME: &str = "org.openzfs:raidz_expand_end_time";
const BYTES_COPIED: &str = "org.openzfs:raidz_expand_bytes_copied";
/// `DSS_SCANNING`.
const SCANNING: u64 = 1;
/// `DSS_FINISHED`.
const FINISHED: u64 = 2;

const IN_PROGRESS: &str = "a raidz_expand is already in progress";

#[derive(Clone, Copy, PartialEq, Eq)]
enum ReflowStep {
    More,
    Paused,
    Done,
}

impl Pool {
    /// Pauses or resumes expansions, for tests that inspect one under way.
    pub fn pause_expansion(&self, paused: bool) {
        self.0.activities.reflow.paused.set(paused);
    }

    /// Makes `path` one more device of a raidz (by guid). On return it is one, durably; what the others hold is moved in the
    /// background, also after another import. Returns the guid of the device.
    // OpenZFS: module/zfs/spa.c, spa_vdev_attach
    pub(crate) async fn expand_raidz(
        &self,
        raidz: Guid,
        path: &Path,
        force: bool,
    ) -> Result<u64, PoolError> {
        let imported = &self.0;
        let vdev = imported.check_expansion(raidz)?;
        imported.check_free(path, force).await?;
        imported.stop_leaf_activities_below(vdev).await;
        let joined = Rc::new(Cell::new(Guid(0)));
        let (from_task, path) = (joined.clone(), path.to_owned());
        let begun = imported
            .run_in_sync(async move |imported: Rc<ImportedPool>, tx: Rc<Tx>| {
                let vdev = imported.check_expansion(raidz)?;
                let guid = imported.tree().begin_expansion(vdev, &path).await?;
                from_task.set(guid);
                imported.initiate_expansion(vdev, guid, &path, &tx).await
            })
            .await;
        if begun.is_err() && imported.tree().reflow_progress().is_none() {
            imported.continue_leaf_activities_below(vdev);
        }
        begun?;
        imported.notify("vdev_attach", Some(joined.get()), NvList::new());
        imported.reflow_in_background();
        Ok(joined.get().0)
    }
}

impl ImportedPool {
    /// Refuses what must wait for the end of an expansion.
    pub(crate) fn refuse_with_expansion(&self) -> Result<(), PoolError> {
        match self.tree().reflow_progress() {
            Some(_) => Err(PoolError::InUse("raidz expansion in progress")),
            None => Ok(()),
        }
    }

    fn check_expansion(&self, raidz: Guid) -> Result<u32, PoolError> {
        self.refuse_with_checkpoint()?;
        self.refuse_with_removal()?;
        if !self.hierarchy().features().is_enabled(FEATURE) {
            return Err(PoolError::Invalid(
                "raidz_expansion feature must be enabled in order to attach a device to raidz"
                    .to_owned(),
            ));
        }
        if self.tree().reflow_progress().is_some() {
            return Err(PoolError::InUse(IN_PROGRESS));
        }
        let vdev = self.tree().expandable(raidz);
        let vdev = vdev.ok_or(PoolError::NoSuchDevice)?;
        if !self.tree().is_whole(vdev) {
            return Err(PoolError::Invalid(
                "the raidz is not healthy: all its devices must be online and lack nothing"
                    .to_owned(),
            ));
        }
        Ok(vdev)
    }

    fn top_of_expansion(&self, vdev: u32) -> Result<VdevConfig, PoolError> {
        let config = self.tree().config();
        let top = config.tops.get(vdev as usize).cloned();
        top.ok_or(PoolError::NoSuchDevice)
    }

    /// The first txg of an expansion: nothing has moved yet. Syncing context.
    async fn initiate_expansion(
        &self,
        vdev: u32,
        child: Guid,
        path: &Path,
        tx: &Tx,
    ) -> Result<(), PoolError> {
        assert!(tx.is_syncing(), "an expansion begins in syncing context");
        let txg = tx.txg().0;
        self.tree()
            .update_config(child, |vdev| vdev.create_txg = txg);
        self.create_vdev_objects(tx).await?;
        self.hierarchy().features().incr(FEATURE, tx).await?;
        let top = self.top_of_expansion(vdev)?;
        let vdev_zap = ObjectId(top.zap_top.unwrap_or(0));
        let status = ExpansionStatus {
            running: true,
            vdev: u64::from(vdev),
            start_time: self.unix_time(),
            ..ExpansionStatus::default()
        };
        self.store_number(vdev_zap, STATE, SCANNING, tx).await?;
        self.store_number(vdev_zap, START_TIME, status.start_time, tx)
            .await?;
        for key in [END_TIME, BYTES_COPIED] {
            if zap::lookup_u64(self.mos(), vdev_zap, key).await?.is_some() {
                zap::remove(self.mos(), vdev_zap, key, tx).await?;
            }
        }
        self.activities.reflow.newest.set(Some(status));
        self.dirty_config();
        let name = format!("raidz{}-{vdev}", top.nparity().unwrap_or(1));
        let text = format!("attach vdev={} to vdev={name}", path.display());
        self.log_internal("vdev attach", &text, tx).await?;
        self.log_expansion("started", &top, tx).await
    }

    async fn log_expansion(&self, word: &str, top: &VdevConfig, tx: &Tx) -> Result<(), PoolError> {
        let name = self.config.name();
        let text = format!("{name} vdev {} new width {}", top.id, top.children.len());
        self.log_internal(&format!("raidz vdev expansion {word}"), &text, tx)
            .await
    }

    async fn store_number(
        &self,
        vdev_zap: ObjectId,
        key: &str,
        value: u64,
        tx: &Tx,
    ) -> Result<(), PoolError> {
        let value = zap::ZapValue::U64(Vec::from([value]));
        zap::update(self.mos(), vdev_zap, key, &value, tx).await?;
        Ok(())
    }

    /// Reads at import what is known of expansions.
    pub(crate) async fn load_expansions(&self) -> Result<(), PoolError> {
        let mut newest: Option<ExpansionStatus> = None;
        for top in self.tree().config().tops {
            let Some(vdev_zap) = top.zap_top.filter(|&object| object != 0) else {
                continue;
            };
            let number = async |key| -> Result<u64, PoolError> {
                let found = zap::lookup_u64(self.mos(), ObjectId(vdev_zap), key).await?;
                Ok(found.unwrap_or(0))
            };
            let status = ExpansionStatus {
                running: top.is_expanding(),
                vdev: top.id,
                start_time: number(START_TIME).await?,
                end_time: number(END_TIME).await?,
                copied_bytes: number(BYTES_COPIED).await?,
                ..ExpansionStatus::default()
            };
            let later = |other: &ExpansionStatus| {
                (other.running, other.end_time) >= (status.running, status.end_time)
            };
            let known = status.running || number(STATE).await? == FINISHED;
            if known && !newest.as_ref().is_some_and(later) {
                newest = Some(status);
            }
        }
        self.activities.reflow.newest.set(newest);
        Ok(())
    }

    /// Returns what `zpool status` says of the newest expansion.
    pub(crate) fn expansion_status(&self) -> Option<ExpansionStatus> {
        let mut status = self.activities.reflow.newest.get()?;
        let vdev = u32::try_from(status.vdev).ok()?;
        status.to_copy_bytes = self.store().vdev_space(vdev).allocated;
        Some(status)
    }

    /// Goes on with an expansion that is under way.
    pub(crate) fn reflow_in_background(self: &Rc<Self>) {
        if self.session.readonly || self.tree().reflow_progress().is_none() {
            return;
        }
        let task = self
            .handle()
            .spawn("a raidz expansion", run(Rc::downgrade(self)));
        self.activities.reflow.task.replace(Some(task));
    }

    /// Ends the work on an expansion before the pool is left; the next import goes on with it.
    pub(crate) async fn stop_reflow(&self) {
        self.activities.reflow.closing.set(true);
        let task = self.activities.reflow.task.borrow_mut().take();
        if let Some(task) = task {
            task.await;
        }
    }

    /// Takes one step, and waits until it is on stable storage.
    async fn reflow_step(self: &Rc<Self>) -> Result<ReflowStep, PoolError> {
        let reflow = &self.activities.reflow;
        if reflow.closing.get() || self.lifecycle.is_stopped() {
            return Ok(ReflowStep::Done);
        }
        let progress = self.tree().reflow_progress();
        let whole = progress.is_none_or(|now| self.tree().is_whole(now.vdev));
        if reflow.paused.get() || self.lifecycle.is_suspended() || !whole {
            self.note_waiting(!whole);
            return Ok(ReflowStep::Paused);
        }
        let outcome = Rc::new(Cell::new(ReflowStep::Paused));
        let from_task = outcome.clone();
        self.run_in_sync(async move |imported: Rc<Self>, tx: Rc<Tx>| {
            from_task.set(imported.reflow_in_txg(&tx).await?);
            Ok(())
        })
        .await?;
        let step = outcome.get();
        self.note_waiting(step == ReflowStep::Paused);
        Ok(step)
    }

    fn note_waiting(&self, waits: bool) {
        let newest = &self.activities.reflow.newest;
        if let Some(mut status) = newest.get() {
            status.waiting_for_resilver = waits;
            newest.set(Some(status));
        }
    }

    /// A step in the sync of a txg, before it writes anything.
    async fn reflow_in_txg(self: &Rc<Self>, tx: &Tx) -> Result<ReflowStep, PoolError> {
        assert!(tx.is_syncing(), "sectors move in syncing context");
        let Some(progress) = self.tree().reflow_progress() else {
            return Ok(ReflowStep::Done);
        };
        let vdev = progress.vdev;
        if !self.tree().is_whole(vdev) {
            return Ok(ReflowStep::Paused);
        }
        let synced = progress.synced;
        if synced.offset() >= progress.end {
            self.complete_expansion(vdev, tx).await?;
            return Ok(ReflowStep::Done);
        }
        match self.move_next(&progress).await {
            Ok(bytes) => {
                self.note_moved(vdev, bytes, tx).await?;
                Ok(ReflowStep::More)
            }
            // It is tried again when the devices are whole.
            Err(error) => {
                self.tree().retract_reflow(vdev).await;
                let offset = synced.offset();
                let newest = self.activities.reflow.newest.get();
                if newest.is_some_and(|status| !status.waiting_for_resilver) {
                    let text = format!("offset={offset} failed_offset={offset}: {error}");
                    self.log_internal("reflow pause", &text, tx).await?;
                }
                Ok(ReflowStep::Paused)
            }
        }
    }

    /// Does what comes next. Returns how many bytes are at their new places then.
    async fn move_next(&self, progress: &ReflowProgress) -> Result<u64, PoolError> {
        let (vdev, synced) = (progress.vdev, progress.synced);
        if synced.is_in_scratch() {
            self.tree().copy_scratch(vdev).await?;
            return Ok(synced.offset());
        }
        if synced.offset() == 0 {
            self.tree().fill_scratch(vdev).await?;
            return Ok(0);
        }
        self.move_batch(progress).await
    }

    /// Moves what is allocated in the next part of the vdev. Returns how many bytes.
    async fn move_batch(&self, progress: &ReflowProgress) -> Result<u64, PoolError> {
        let vdev = progress.vdev;
        let from = progress.synced.offset();
        let most = self.activities.reflow.tuning.batch_bytes;
        let (_, to) = self
            .occupied(vdev, &(from..progress.limit), Some(most))
            .await?;
        assert!(
            from < to && to <= progress.limit,
            "a step moves something: {from:x} to {to:x}"
        );
        let absences = self.tree().reflow_absences(vdev);
        let ahead = RaidzReflow::new(ReflowState::ReflowSynced, to);
        self.tree().publish_reflow(vdev, ahead).await;
        // What is placed there from now on is written at both places; all that was placed before is found here.
        let (ranges, _) = self.occupied(vdev, &(from..to), None).await?;
        let mut bytes = 0;
        for range in &ranges {
            self.tree().copy_reflow(vdev, range).await?;
            bytes += range.end - range.start;
        }
        self.tree().flush_reflow(vdev, absences).await?;
        Ok(bytes)
    }

    /// Returns what is allocated in a part of the vdev, near ranges joined, and where it ends: after `most` bytes.
    async fn occupied(
        &self,
        vdev: u32,
        within: &Range<u64>,
        most: Option<u64>,
    ) -> Result<(Vec<Range<u64>>, u64), PoolError> {
        let shift = self.top_of_expansion(vdev)?.metaslab_shift;
        let mut found: Vec<Range<u64>> = Vec::new();
        let mut at = within.start;
        let mut left = most.unwrap_or(u64::MAX);
        while at < within.end {
            let index = u32::try_from(at >> shift).map_err(|_| PoolError::NoSuchDevice)?;
            let end = within.end.min((u64::from(index) + 1) << shift);
            for range in self.store().occupied_in(vdev, index, &(at..end)).await? {
                let len = range.end - range.start;
                if len >= left {
                    return Ok((found, range.start + left));
                }
                left -= len;
                match found.last_mut() {
                    Some(last) if range.start - last.end <= GAP_BYTES => last.end = range.end,
                    _ => found.push(range),
                }
            }
            at = end;
        }
        Ok((found, within.end))
    }

    /// Counts what has moved. Syncing context.
    async fn note_moved(&self, vdev: u32, bytes: u64, tx: &Tx) -> Result<(), PoolError> {
        let Some(mut status) = self.activities.reflow.newest.get() else {
            return Ok(());
        };
        status.copied_bytes += bytes;
        self.activities.reflow.newest.set(Some(status));
        let vdev_zap = self.top_of_expansion(vdev)?.zap_top.unwrap_or(0);
        self.store_number(ObjectId(vdev_zap), BYTES_COPIED, status.copied_bytes, tx)
            .await
    }

    /// Everything has moved, and the newest uberblock says so: stripes become wider. Syncing context.
    // OpenZFS: module/zfs/vdev_raidz.c, raidz_reflow_complete_sync
    async fn complete_expansion(&self, vdev: u32, tx: &Tx) -> Result<(), PoolError> {
        assert!(tx.is_syncing(), "an expansion ends in syncing context");
        let wider = Txg(tx.txg().0 + TXGS_UNDER_WAY);
        self.tree().end_expansion(vdev, wider).await?;
        self.store().adopt_layout(vdev);
        let top = self.top_of_expansion(vdev)?;
        let vdev_zap = ObjectId(top.zap_top.unwrap_or(0));
        let end_time = self.unix_time();
        self.store_number(vdev_zap, STATE, FINISHED, tx).await?;
        self.store_number(vdev_zap, END_TIME, end_time, tx).await?;
        // It counts as running until its room is there, too.
        if let Some(mut status) = self.activities.reflow.newest.get() {
            status.end_time = end_time;
            self.activities.reflow.newest.set(Some(status));
        }
        self.dirty_config();
        self.log_expansion("completed", &top, tx).await?;
        self.setup_scrub(tx).await
    }

    /// What the end of an expansion makes possible.
    async fn after_expansion(self: &Rc<Self>) -> Result<(), PoolError> {
        let grown = self.grow_after_expansion().await;
        if let Some(mut status) = self.activities.reflow.newest.get() {
            status.running = false;
            self.activities.reflow.newest.set(Some(status));
        }
        grown?;
        self.start_scrub_after_rebuild().await;
        self.continue_leaf_activities();
        Ok(())
    }
}

async fn run(weak: Weak<ImportedPool>) {
    loop {
        let Some(imported) = weak.upgrade() else {
            return;
        };
        match imported.reflow_step().await {
            Ok(ReflowStep::More) => continue,
            Ok(ReflowStep::Done) => {
                let closing = imported.activities.reflow.closing.get();
                if !closing && imported.tree().reflow_progress().is_none() {
                    // What could not be done is done by the next import.
                    drop(imported.after_expansion().await);
                }
                return;
            }
            Ok(ReflowStep::Paused) | Err(_) => {}
        }
        let handle = imported.handle().clone();
        drop(imported);
        handle.sleep(PAUSE).await;
    }
}
