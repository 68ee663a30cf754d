//! Scrub and resilver: reads every copy of every block that could be wrong, and repairs.
//!
//! A scan runs in the background while the pool is used. Its state lies in the meta-objset as OpenZFS keeps it (function,
//! place, counts, datasets still to be visited), so that it goes on after an export, a crash, or on another system.
//! Repairs never overwrite what was written after the scan looked (the device tree watches the range).
// OpenZFS: module/zfs/dsl_scan.c (states, what is recorded when)

mod date_range;
mod deferred;
mod order;
mod state;
mod walk;

use std::collections::BTreeMap;
use std::rc::Rc;

use dmu::{Tx, zap};
use ondisk::scan::{DESTROYED_OBJSET, SCRUB_PAUSED, ScanPhys, scan_func, scan_state};
use ondisk::{Guid, ObjectId, ObjectType};

use self::order::DatasetOrder;
pub(crate) use self::order::{all_datasets, datasets_below};
use self::state::ScanPass;
pub(crate) use self::state::ScanState;
use self::walk::WalkEnd;
pub(crate) use self::walk::is_unreadable_by_design;
use crate::PoolError;
use crate::error::ScanRefusal;
use crate::objects::DIRECTORY;
use crate::pool::{ImportedPool, Pool};
use crate::status::ScanStatus;

/// Where the pool keeps up to which txg it was scrubbed.
// OpenZFS: include/sys/dmu.h, DMU_POOL_LAST_SCRUBBED_TXG
const LAST_SCRUBBED: &str = "last_scrubbed_txg";

impl Pool {
    /// Reads every copy of every block and repairs the bad ones; waits until the end. A read-only pool is only read.
    ///
    /// # Errors
    /// `Scan` while another scan runs; errors of reading the pool's own metadata.
    pub async fn scrub(&self) -> Result<ScanStatus, PoolError> {
        self.start_scrub().await?;
        self.wait_scan().await
    }

    /// Starts a scrub in the background, or goes on with one that was paused. What it has done so far is durable every few
    /// seconds; it goes on by itself after another import.
    ///
    /// # Errors
    /// `Scan` while a scan runs; `Suspended`, `Closed`.
    pub async fn start_scrub(&self) -> Result<(), PoolError> {
        self.start_scrub_between(0, None).await
    }

    /// Starts a scrub of what was written since the last one that came to its end, or goes on with one that was paused,
    /// whatever it looks at.
    ///
    /// # Errors
    /// As [`Pool::start_scrub`].
    // OpenZFS: module/zfs/zfs_ioctl.c, zfs_ioc_pool_scrub
    pub async fn start_scrub_of_new(&self) -> Result<(), PoolError> {
        self.start_scrub_between(self.0.activities.scan.last_scrubbed_txg(), None)
            .await
    }

    /// Starts a scrub of what was written from `since` to `until` (seconds since 1970), as far as the pool knows when its txgs
    /// were: rather of more than of less. Goes on with one that was paused, whatever it looks at.
    ///
    /// # Errors
    /// As [`Pool::start_scrub`].
    pub async fn start_scrub_of_time(
        &self,
        since: Option<u64>,
        until: Option<u64>,
    ) -> Result<(), PoolError> {
        let min_txg = since.map_or(0, |time| self.0.txg_before(time));
        let max_txg = until.and_then(|time| self.0.txg_after(time));
        self.start_scrub_between(min_txg, max_txg).await
    }

    /// Starts a scrub of what was born after `min_txg`, up to `max_txg`, or to now.
    async fn start_scrub_between(
        &self,
        min_txg: u64,
        max_txg: Option<u64>,
    ) -> Result<(), PoolError> {
        let imported = &self.0;
        let scan = &imported.activities.scan;
        let _deciding = scan.deciding.lock().await;
        if scan.is_scanning() {
            if scan.is_resilver() {
                return Err(ScanRefusal::Resilvering.into());
            }
            if !scan.is_paused() {
                return Err(ScanRefusal::Scrubbing.into());
            }
            imported.set_paused(false).await?;
            imported.start_walk();
            return Ok(());
        }
        imported
            .begin_scan(scan_func::SCRUB, min_txg, max_txg)
            .await?;
        imported.start_walk();
        Ok(())
    }

    /// Pauses a scrub; it stays paused over exports and crashes.
    ///
    /// # Errors
    /// `Scan` when none runs, or it is paused already.
    pub async fn pause_scrub(&self) -> Result<(), PoolError> {
        let scan = &self.0.activities.scan;
        if !scan.is_scanning() {
            return Err(ScanRefusal::NoScrub.into());
        }
        if scan.is_resilver() {
            return Err(ScanRefusal::Resilvering.into());
        }
        if scan.is_paused() {
            return Err(ScanRefusal::Paused.into());
        }
        self.0.stop_walk().await;
        if !scan.is_scanning() {
            return Err(ScanRefusal::NoScrub.into());
        }
        self.0.set_paused(true).await
    }

    /// Ends a scrub for good.
    ///
    /// # Errors
    /// `Scan` when none runs, or a resilver does: what it brings is needed.
    pub async fn cancel_scrub(&self) -> Result<(), PoolError> {
        let scan = &self.0.activities.scan;
        if !scan.is_scanning() {
            return Err(ScanRefusal::NoScrub.into());
        }
        if scan.is_resilver() {
            return Err(ScanRefusal::Resilvering.into());
        }
        self.0.stop_walk().await;
        if !scan.is_scanning() {
            return Err(ScanRefusal::NoScrub.into());
        }
        self.0.end_scan(false).await
    }

    /// Starts the resilver anew, so that devices that came back since are part of it (`zpool resilver`). Without outdated
    /// devices nothing happens.
    ///
    /// # Errors
    /// `Suspended`, `Closed`, `ReadOnly`.
    pub async fn restart_resilver(&self) -> Result<(), PoolError> {
        if self.0.session.readonly {
            return Err(PoolError::ReadOnly);
        }
        if self.0.activities.scan.is_resilvering() {
            self.0.stop_walk().await;
            if self.0.activities.scan.is_resilvering() {
                self.0.end_scan(false).await?;
            }
        }
        self.0.resilver_if_needed().await
    }

    /// Waits until no scan runs (a paused one counts as running, as `zpool wait` sees it) and returns how the last ended.
    ///
    /// # Errors
    /// `Closed` when the pool is closed first; `Corrupt` when the scan could not go on.
    pub async fn wait_scan(&self) -> Result<ScanStatus, PoolError> {
        let imported = &self.0;
        while imported.activities.scan.is_scanning() {
            if imported.lifecycle.is_closed() {
                return Err(PoolError::Closed);
            }
            if let Some(reason) = imported.activities.scan.failure.borrow().clone() {
                return Err(PoolError::Corrupt(reason));
            }
            imported.activities.scan.changed.wait().await;
        }
        Ok(imported.activities.scan.status().unwrap_or_default())
    }
}

/// Starts bringing outdated leaves up to date, if there are any that can be written.
pub(crate) fn resilver_in_background(pool: &Pool) {
    let imported = pool.0.clone();
    if imported.session.readonly {
        return;
    }
    drop(pool.0.handle().spawn("resilver", async move {
        // What fails stays in the dirty-time logs and is tried again at the next occasion.
        drop(imported.resilver_if_needed().await);
    }));
}

impl ImportedPool {
    /// Reads what the pool remembers of scans. Nothing is started yet.
    pub(crate) async fn load_scan(&self) -> Result<(), PoolError> {
        if let Some(zap::ZapValue::U64(words)) =
            zap::lookup(self.mos(), DIRECTORY, LAST_SCRUBBED).await?
        {
            let txg = words.first().copied().unwrap_or(0);
            self.activities.scan.last_scrubbed_txg.set(txg);
        }
        self.load_txg_times().await?;
        let Some(zap::ZapValue::U64(words)) = zap::lookup(self.mos(), DIRECTORY, "scan").await?
        else {
            return Ok(());
        };
        let Some(mut phys) = ScanPhys::from_words(&words) else {
            return Ok(());
        };
        let mut waiting = BTreeMap::new();
        if phys.state == scan_state::SCANNING && phys.queue_obj != 0 {
            for entry in zap::entries(self.mos(), ObjectId(phys.queue_obj)).await? {
                let key = std::str::from_utf8(&entry.name)
                    .ok()
                    .and_then(|key| u64::from_str_radix(key, 16).ok());
                if let (Some(key), zap::ZapValue::U64(value)) = (key, entry.value) {
                    waiting.insert(key, value.first().copied().unwrap_or(0));
                }
            }
        }
        if phys.state == scan_state::SCANNING && !self.session.readonly {
            let [objset, ..] = phys.bookmark;
            let current = (objset != 0 && objset != DESTROYED_OBJSET).then_some(objset);
            if objset == 0 && phys.cur_max_txg == 0 {
                phys.cur_min_txg = phys.min_txg;
                phys.cur_max_txg = phys.max_txg;
            }
            *self.activities.scan.order.borrow_mut() = if objset == 0 && waiting.is_empty() {
                DatasetOrder::from(phys.min_txg)
            } else {
                DatasetOrder::resume(self.mos(), phys.min_txg, current, waiting).await?
            };
        }
        let mut pass = ScanPass {
            start_time: self.unix_time(),
            ..ScanPass::default()
        };
        if phys.flags & SCRUB_PAUSED != 0 {
            pass.paused_since = pass.start_time;
        }
        self.activities.scan.pass.set(pass);
        *self.activities.scan.phys.borrow_mut() = phys;
        Ok(())
    }

    /// Goes on with the scan that was under way when the pool was last closed, or resilvers what must be.
    pub(crate) async fn continue_scans(self: &Rc<Self>) -> Result<(), PoolError> {
        if self.session.readonly {
            return Ok(());
        }
        self.continue_rebuilds().await?;
        self.finish_replacements().await?;
        if self.activities.rebuild.is_active() {
            return self.cancel_scrub_for_rebuild().await;
        }
        if self.activities.scan.is_scanning() && self.activities.scan.is_resilver() {
            if self.resilver_can_go_on() {
                self.note_resilvering();
                self.start_walk();
                return Ok(());
            }
            self.end_scan(false).await?;
        }
        let outdated = !self.leaves_to_resilver().is_empty();
        if self.activities.scan.is_scanning() && !outdated {
            if !self.activities.scan.is_paused() {
                self.start_walk();
            }
            return Ok(());
        }
        self.resilver_if_needed().await
    }

    /// Starts a resilver if devices miss something that can be given to them; a scrub gives way.
    pub(crate) async fn resilver_if_needed(self: &Rc<Self>) -> Result<(), PoolError> {
        let _deciding = self.activities.scan.deciding.lock().await;
        if self.activities.removal.vdev().is_some() {
            // No block pointer refers to the copies of an evacuation yet: they would be passed over. The evacuation calls again at its end.
            return Ok(());
        }
        if self.activities.rebuild.is_active() {
            // The rebuild calls again at its end, too.
            return Ok(());
        }
        let leaves = self.leaves_to_resilver();
        let ranges = leaves.values().flatten();
        let (Some(first), Some(last)) = (
            ranges.clone().map(|range| range.start).min(),
            ranges.map(|range| range.end).max(),
        ) else {
            return Ok(());
        };
        if self.activities.scan.is_resilvering() {
            // It goes on; what is outdated beyond it is seen to at its end.
            if leaves
                .keys()
                .all(|leaf| self.activities.scan.resilvering.borrow().contains_key(leaf))
            {
                return Ok(());
            }
            if self.defer_resilver(&leaves).await? {
                return Ok(());
            }
            self.stop_walk().await;
            if self.activities.scan.is_resilvering() {
                self.end_scan(false).await?;
            }
        } else if self.activities.scan.is_scanning() {
            self.stop_walk().await;
            if self.activities.scan.is_scanning() {
                self.end_scan(false).await?;
            }
        }
        // Blocks of txgs that are still on their way must be there to be walked.
        while self.clock().last_synced().0 < last {
            self.clock().sync_all().await?;
        }
        // Blocks of removed vdevs may have been copied in a txg that a device lacks, and be of any age.
        let moved = leaves.values().flatten();
        let first = match moved.clone().any(|range| self.tree().was_copied_in(range)) {
            true => 0,
            false => first,
        };
        let begun = self
            .begin_scan(scan_func::RESILVER, first.saturating_sub(1), Some(last))
            .await;
        match begun {
            Ok(()) => self.start_walk(),
            // A sequential resilver began while the txgs were waited for: it calls again at its end.
            Err(PoolError::Scan(ScanRefusal::Resilvering))
                if self.activities.rebuild.is_active() => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Cancels a scrub for a sequential resilver.
    // OpenZFS: module/zfs/vdev_rebuild.c, vdev_rebuild_thread
    pub(crate) async fn cancel_scrub_for_rebuild(self: &Rc<Self>) -> Result<(), PoolError> {
        let _deciding = self.activities.scan.deciding.lock().await;
        if self.activities.scan.is_scanning() && !self.activities.scan.is_resilver() {
            self.stop_walk().await;
            if self.activities.scan.is_scanning() {
                self.end_scan(false).await?;
            }
        }
        Ok(())
    }

    /// Records the start of a scrub with the end of a sequential resilver: none of what it brought was looked at. Not while
    /// something else runs, or devices are outdated that can be resilvered. Syncing context.
    pub(crate) async fn setup_scrub(&self, tx: &Tx) -> Result<(), PoolError> {
        assert!(tx.is_syncing(), "setup scrub happens in syncing context");
        let busy = self.activities.scan.is_scanning() || self.activities.rebuild.is_active();
        if busy || !self.leaves_to_resilver().is_empty() {
            return Ok(());
        }
        self.setup_scan(scan_func::SCRUB, 0, tx.txg().0, tx).await
    }

    /// Goes on with the scrub that [`ImportedPool::setup_scrub`] recorded.
    pub(crate) async fn start_scrub_after_rebuild(self: &Rc<Self>) {
        let _deciding = self.activities.scan.deciding.lock().await;
        if !self.activities.scan.is_paused() {
            self.start_walk();
        }
    }

    /// Records the start of a scan and makes it durable.
    async fn begin_scan(
        self: &Rc<Self>,
        func: u64,
        min_txg: u64,
        max_txg: Option<u64>,
    ) -> Result<(), PoolError> {
        if self.session.readonly {
            let max_txg = max_txg.unwrap_or_else(|| self.clock().last_synced().0);
            let phys = self.new_scan(func, min_txg, max_txg);
            *self.activities.scan.order.borrow_mut() = DatasetOrder::from(min_txg);
            *self.activities.scan.phys.borrow_mut() = phys;
            return Ok(());
        }
        self.run_in_sync(async move |imported: Rc<Self>, tx: Rc<Tx>| {
            if imported.activities.scan.is_scanning() {
                return Err(ScanRefusal::Scrubbing.into());
            }
            if imported.activities.rebuild.is_active() {
                return Err(ScanRefusal::Resilvering.into());
            }
            let max_txg = max_txg.unwrap_or(tx.txg().0);
            imported.setup_scan(func, min_txg, max_txg, &tx).await
        })
        .await
    }

    fn new_scan(&self, func: u64, min_txg: u64, max_txg: u64) -> ScanPhys {
        let start_time = self.unix_time();
        self.activities.scan.pass.set(ScanPass {
            start_time,
            ..ScanPass::default()
        });
        self.activities.scan.failure.borrow_mut().take();
        let leaves = self.tree().leaves().into_iter();
        let healed = leaves.filter_map(|leaf| {
            let stats = self.tree().leaf_stats(leaf.guid)?;
            Some((leaf.guid.0, stats.self_healed_bytes))
        });
        *self.activities.scan.healed_before.borrow_mut() = healed.collect();
        ScanPhys {
            func,
            state: scan_state::SCANNING,
            min_txg,
            max_txg,
            cur_min_txg: min_txg,
            cur_max_txg: max_txg,
            start_time,
            to_examine: self.store().space().allocated,
            ..ScanPhys::default()
        }
    }

    /// Records the start of a scan. Syncing context.
    async fn setup_scan(
        &self,
        func: u64,
        min_txg: u64,
        max_txg: u64,
        tx: &Tx,
    ) -> Result<(), PoolError> {
        assert!(tx.is_syncing(), "setup scan happens in syncing context");
        let mut phys = self.new_scan(func, min_txg, max_txg);
        let spec = zap::ZapSpec::new(ObjectType::SCAN_QUEUE);
        phys.queue_obj = zap::create(self.mos(), &spec, tx).await?.0;
        *self.activities.scan.order.borrow_mut() = DatasetOrder::from(min_txg);
        *self.activities.scan.phys.borrow_mut() = phys;
        if func == scan_func::RESILVER {
            self.forget_rebuilds(tx).await?;
            self.end_deferral(tx).await?;
            self.note_resilvering();
        }
        self.store_scan(tx).await?;
        self.notify_scan("start");
        let text = format!("func={func} mintxg={min_txg} maxtxg={max_txg}");
        self.log_internal("scan setup", &text, tx).await
    }

    /// Records the end of a scan, complete or not, and makes it durable.
    async fn end_scan(self: &Rc<Self>, complete: bool) -> Result<(), PoolError> {
        if self.session.readonly {
            let mut phys = self.activities.scan.phys.borrow_mut();
            phys.state = scan_state::FINISHED;
            phys.end_time = self.unix_time();
            return Ok(());
        }
        let result = self
            .run_in_sync(async move |imported: Rc<Self>, tx: Rc<Tx>| {
                if imported.activities.scan.is_scanning() {
                    imported.finish_scan(complete, &tx).await
                } else {
                    Ok(())
                }
            })
            .await;
        self.activities.scan.changed.notify_all();
        result
    }

    async fn finish_scan(self: &Rc<Self>, complete: bool, tx: &Tx) -> Result<(), PoolError> {
        let mut phys = *self.activities.scan.phys.borrow();
        if phys.queue_obj != 0 {
            self.mos().free_object(ObjectId(phys.queue_obj), tx).await?;
            phys.queue_obj = 0;
        }
        *self.activities.scan.order.borrow_mut() = DatasetOrder::default();
        phys.flags &= !SCRUB_PAUSED;
        phys.state = if complete {
            scan_state::FINISHED
        } else {
            scan_state::CANCELED
        };
        phys.end_time = self.unix_time();
        phys.bookmark = [DESTROYED_OBJSET, 0, 0, 0];
        *self.activities.scan.phys.borrow_mut() = phys;
        let scrubbed = self.activities.scan.last_scrubbed_txg();
        // One that left a gap has not looked at all up to its end.
        if complete && phys.func == scan_func::SCRUB && phys.min_txg <= scrubbed {
            let scrubbed = scrubbed.max(phys.max_txg);
            zap::update_u64(self.mos(), DIRECTORY, LAST_SCRUBBED, scrubbed, tx).await?;
            self.activities.scan.last_scrubbed_txg.set(scrubbed);
        }
        if complete {
            self.subtract_resilvered_txgs(phys.max_txg, tx).await?;
        }
        self.activities.scan.resilvering.borrow_mut().clear();
        self.end_deferral(tx).await?;
        self.error_logs.rotate();
        match (complete, phys.func) {
            (true, _) => self.notify_scan("finish"),
            (false, scan_func::SCRUB) => self.notify_scan("abort"),
            (false, _) => {}
        }
        self.store_scan(tx).await?;
        let name = if complete {
            "scan done"
        } else {
            "scan cancelled"
        };
        let text = format!("errors={}", self.error_logs.count());
        self.log_internal(name, &text, tx).await
    }

    /// Takes off the dirty-time logs what the scan has brought to the leaves that were there all the time.
    async fn subtract_resilvered_txgs(
        self: &Rc<Self>,
        max_txg: u64,
        tx: &Tx,
    ) -> Result<(), PoolError> {
        assert!(
            tx.is_syncing(),
            "subtract resilvered txgs happens in syncing context"
        );
        let clean = self.activities.scan.phys.borrow().errors == 0
            && self.activities.scan.pass.get().unrepaired_copies == 0
            && self.activities.scan.is_resilver();
        if !clean {
            return Ok(());
        }
        let whole_time = std::mem::take(&mut *self.activities.scan.resilvering.borrow_mut());
        for (leaf, absences) in whole_time {
            if self.absences(leaf) != Some(absences) {
                continue;
            }
            let done = 0..max_txg;
            self.devices
                .dtls
                .subtract(self.mos(), leaf, std::slice::from_ref(&done), tx)
                .await?;
            self.tree().note_resilvered(Guid(leaf), &done);
        }
        Ok(())
    }

    /// Posts a step of a scan.
    fn notify_scan(&self, step: &str) {
        if self.activities.scan.is_resilver() {
            let more = ondisk::NvList::new().with("resilver_type", "healing");
            self.notify(&format!("resilver_{step}"), None, more);
        } else {
            self.notify(&format!("scrub_{step}"), None, ondisk::NvList::new());
        }
    }

    async fn set_paused(self: &Rc<Self>, paused: bool) -> Result<(), PoolError> {
        self.notify_scan(if paused { "paused" } else { "resume" });
        let now = self.unix_time();
        let mut pass = self.activities.scan.pass.get();
        if paused {
            pass.paused_since = now;
        } else {
            pass.spent_paused += now.saturating_sub(pass.paused_since);
            pass.paused_since = 0;
        }
        self.activities.scan.pass.set(pass);
        {
            let mut phys = self.activities.scan.phys.borrow_mut();
            phys.flags &= !SCRUB_PAUSED;
            if paused {
                phys.flags |= SCRUB_PAUSED;
            }
        }
        self.activities.scan.dirty.set(true);
        if self.session.readonly {
            return Ok(());
        }
        self.run_in_sync(async move |imported: Rc<Self>, tx: Rc<Tx>| imported.store_scan(&tx).await)
            .await
    }

    /// Sees to it that the next txg stores how far the scan has come.
    pub(crate) fn scan_dirty(&self) {
        if self.activities.scan.is_scanning() && !self.session.readonly {
            self.activities.scan.dirty.set(true);
        }
    }

    /// Stores progress, if there is any. Syncing context.
    pub(crate) async fn write_scan(&self, tx: &Tx) -> Result<(), PoolError> {
        assert!(tx.is_syncing(), "write scan happens in syncing context");
        if self.activities.scan.dirty.replace(false) && self.activities.scan.is_scanning() {
            self.store_scan(tx).await?;
        }
        Ok(())
    }

    async fn store_scan(&self, tx: &Tx) -> Result<(), PoolError> {
        assert!(tx.is_syncing(), "store scan happens in syncing context");
        let phys = *self.activities.scan.phys.borrow();
        let changes = self.activities.scan.order.borrow_mut().take_changes();
        if phys.queue_obj != 0 {
            let queue = ObjectId(phys.queue_obj);
            for (object, min_txg) in changes {
                match min_txg {
                    Some(txg) => zap::update_int_key(self.mos(), queue, object, txg, tx).await?,
                    None => {
                        if zap::lookup_int_key(self.mos(), queue, object)
                            .await?
                            .is_some()
                        {
                            zap::remove_int(self.mos(), queue, object, tx).await?;
                        }
                    }
                }
            }
        }
        let value = zap::ZapValue::U64(phys.to_words());
        zap::update(self.mos(), DIRECTORY, "scan", &value, tx).await?;
        self.activities.scan.dirty.set(false);
        Ok(())
    }

    /// Starts the background task of the scan recorded.
    fn start_walk(self: &Rc<Self>) {
        let scan = &self.activities.scan;
        if scan.task.borrow().is_some() || !scan.is_scanning() || self.lifecycle.is_closed() {
            return;
        }
        scan.stopping.set(false);
        let imported = self.clone();
        let task = self.handle().spawn("scan", async move {
            let outcome = imported.walk().await;
            imported.activities.scan.task.borrow_mut().take();
            match outcome {
                Ok(WalkEnd::Complete) => {
                    if imported.end_scan(true).await.is_ok() && !imported.lifecycle.is_closed() {
                        // Devices that came back too late for this one. A task of its own: the waiter of this one may hold
                        // `deciding`.
                        let after = imported.clone();
                        drop(imported.handle().spawn("after a scan", async move {
                            drop(after.after_scan().await);
                        }));
                    }
                }
                Ok(WalkEnd::Stopped) => {}
                Err(error) => {
                    *imported.activities.scan.failure.borrow_mut() =
                        Some(format!("the scan stopped: {error}"));
                }
            }
            imported.activities.scan.changed.notify_all();
        });
        *scan.task.borrow_mut() = Some(task);
    }

    /// What a scan's end makes possible.
    async fn after_scan(self: &Rc<Self>) -> Result<(), PoolError> {
        self.finish_replacements().await?;
        Box::pin(self.resilver_if_needed()).await
    }

    /// Stops the background task at the next step and waits for it. The scan stays recorded.
    pub(crate) async fn stop_walk(&self) {
        self.activities.scan.stopping.set(true);
        let task = self.activities.scan.task.borrow_mut().take();
        if let Some(task) = task {
            task.await;
        }
        self.activities.scan.stopping.set(false);
    }

    /// Returns the outdated leaves that are open, with what they miss.
    pub(crate) fn leaves_to_resilver(&self) -> BTreeMap<u64, Vec<std::ops::Range<u64>>> {
        let mut outdated = self.devices.dtls.outdated();
        let open: Vec<u64> = self
            .tree()
            .leaves()
            .into_iter()
            .filter(|leaf| matches!(leaf.health, vdev::Health::Online | vdev::Health::Degraded))
            .map(|leaf| leaf.guid.0)
            .collect();
        outdated.retain(|leaf, _| open.contains(leaf));
        outdated
    }

    /// Records which leaves the resilver works for, in memory and in the configuration.
    fn note_resilvering(&self) {
        let leaves = self.leaves_to_resilver();
        let max_txg = self.activities.scan.phys.borrow().max_txg;
        let mut noted = BTreeMap::new();
        for leaf in self.tree().leaves() {
            let guid = leaf.guid;
            if leaves.contains_key(&guid.0) {
                noted.insert(guid.0, self.absences(guid.0).unwrap_or(0));
                self.tree().update_config(guid, |vdev| {
                    vdev.extra.insert("resilver_txg", max_txg);
                });
            } else {
                self.tree().update_config(guid, |vdev| {
                    vdev.extra.remove("resilver_txg");
                });
            }
        }
        *self.activities.scan.resilvering.borrow_mut() = noted;
        self.dirty_config();
    }

    /// Whether the recorded resilver has worked for exactly the leaves that are outdated and there now.
    fn resilver_can_go_on(&self) -> bool {
        let max_txg = self.activities.scan.phys.borrow().max_txg;
        let outdated = self.devices.dtls.outdated();
        let open = self.leaves_to_resilver();
        let config = self.tree().config();
        !open.is_empty()
            && outdated.len() == open.len()
            && config
                .leaves()
                .into_iter()
                .filter(|leaf| open.contains_key(&leaf.guid.0))
                .all(|leaf| leaf.extra.u64("resilver_txg") == Some(max_txg))
            && open.values().flatten().all(|range| range.end <= max_txg)
    }

    /// How often a leaf has been away in this session.
    fn absences(&self, leaf: u64) -> Option<u64> {
        self.tree().absences(Guid(leaf))
    }
}
