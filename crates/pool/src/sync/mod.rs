//! The sync loop: carries one transaction group after another to the disks.
//!
//! ```text
//! before anything is freed:        references of clones, a checkpoint's tasks, what an evacuation copied
//! passes until nothing changes:   own tasks (pass 1) -> config object -> datasets and meta-objset, frees
//!                                 -> tables of shared blocks -> missed writes into dirty-time logs -> space maps
//! commit:  flush -> labels 0 and 2 -> flush -> uberblock -> flush -> labels 1 and 3 -> flush
//! ```
//! Labels are written only when the configuration changed.  Invariant: when the uberblock is
//! written, every block reachable from it is on stable storage, and the space maps reachable from
//! it describe exactly those blocks.  A failure anywhere suspends the pool before the uberblock,
//! so the disks stay at the last complete txg.

mod queue;

use std::rc::Rc;

use dmu::Tx;
use ondisk::bytes::{index, len64};
use ondisk::{Guid, NvList, Txg, Uberblock};
use runtime::sync::oneshot;
use vdev::VdevConfig;

pub(crate) use self::queue::SyncLoop;
use self::queue::{SyncTask, TaskQueue};
use crate::PoolError;
use crate::config;
use crate::hotplug::poll_devices;
use crate::lifecycle::{FAILMODE_CONTINUE, FAILMODE_PANIC, FAILMODE_WAIT, SUSPENDED};
use crate::pool::{ImportedPool, Pool};
use crate::space::SpaceFeatures;

/// More passes than this mean that the txg does not converge: our own mistake.
/// OpenZFS stops compressing after 8 passes so that sizes cannot change any more.
const PASSES_MAX: u32 = 100;
/// Top-level vdevs that get the uberblock when the configuration is unchanged.
// OpenZFS: module/zfs/spa.c, SPA_SYNC_MIN_VDEVS
const UBERBLOCK_VDEVS: usize = 3;
const _: () = assert!(UBERBLOCK_VDEVS > 0 && PASSES_MAX > 8);

/// Starts the loop of a pool.
pub(crate) fn start(pool: &Pool) {
    let imported = pool.0.clone();
    let weak = Rc::downgrade(&imported);
    imported.store().set_failure_gate(Rc::new(move |error| {
        let weak = weak.clone();
        Box::pin(async move {
            match weak.upgrade() {
                Some(imported) => imported.wait_resumed(&error.to_string()).await,
                None => false,
            }
        })
    }));
    crate::hotplug::begin(pool);
    pool.0.start_heartbeats();
    let task = pool.0.handle().spawn("txg sync", run(Pool(imported)));
    pool.0.sync.task.replace(Some(task));
}

async fn run(pool: Pool) {
    let imported = pool.0.clone();
    let timeout = imported.clock().options().timeout;
    loop {
        let asked = imported.clock().wait_for_work(timeout).await;
        if imported.clock().stopped().is_some() {
            break;
        }
        poll_devices(&pool);
        let open = imported.clock().open_txg();
        let wanted = asked
            || imported.has_own_work()
            || imported.clock().dirty_bytes(open) > 0
            || imported.hierarchy().is_dirty(open)
            || imported.hierarchy().has_background_work();
        if !wanted {
            continue;
        }
        let txg = imported.clock().quiesce_next().await;
        let outcome = imported.sync_txg(txg).await;
        if outcome.is_err() {
            // Nothing may still be writing when the failure is reported; there is nothing to add to it.
            drop(imported.store().wait_writes().await);
        }
        match outcome {
            Ok(()) => {
                imported.store().txg_synced(txg);
                imported.hierarchy().synced(txg);
                imported.clock().synced(txg);
            }
            Err(error) => {
                let out_of_space = matches!(error, PoolError::NoSpace);
                imported.fail(&format!("transaction group {txg}: {error}"), out_of_space);
                break;
            }
        }
    }
    // Queued tasks will not run any more; dropping their senders wakes the waiters.
    imported.sync.tasks.borrow_mut().clear();
    imported.sync.early_tasks.borrow_mut().clear();
}

impl Pool {
    /// Clears error counters and tries devices again that were taken out; a suspended pool goes on
    /// with the writes that waited (`zpool clear`).
    ///
    /// # Errors
    /// `Suspended` when the txg under way could not be completed: then the pool must be closed and
    /// imported again, which brings back everything that was acknowledged.
    pub async fn resume(&self) -> Result<(), PoolError> {
        self.clear(None).await
    }

    /// As [`Pool::resume`], for one vdev (a leaf, or all below) or the whole pool.
    ///
    /// # Errors
    /// As [`Pool::resume`]; `NoSuchDevice`.
    pub async fn clear(&self, vdev: Option<u64>) -> Result<(), PoolError> {
        let lifted = match vdev {
            None => self.0.tree().clear_errors(None).await,
            Some(guid) => {
                let mut lifted = false;
                for leaf in self.0.leaves_below(guid)? {
                    lifted |= self.0.tree().clear_errors(Some(leaf)).await;
                }
                lifted
            }
        };
        self.0.tree().reopen().await;
        self.0.check_spares().await;
        self.0.reopen_cache_devices().await;
        if self.0.lifecycle.is_failed() {
            return Err(PoolError::Suspended);
        }
        self.0.notify("vdev_clear", vdev.map(Guid), NvList::new());
        self.0.lifecycle.resume();
        self.0.clock().refuse(false);
        self.0.lifecycle.notify();
        if lifted {
            self.0.dirty_config();
        }
        crate::scan::resilver_in_background(self);
        Ok(())
    }
}

impl ImportedPool {
    /// Returns the leaves of a vdev, itself included.
    pub(crate) fn leaves_below(&self, guid: u64) -> Result<Vec<Guid>, PoolError> {
        fn find(vdev: &VdevConfig, guid: u64) -> Option<&VdevConfig> {
            if vdev.guid.0 == guid {
                return Some(vdev);
            }
            vdev.children.iter().find_map(|child| find(child, guid))
        }
        let tree = self.tree().config();
        let found = tree.tops.iter().find_map(|top| find(top, guid));
        let found = found.ok_or(PoolError::NoSuchDevice)?;
        Ok(leaves_of(found).iter().map(|leaf| leaf.guid).collect())
    }

    /// Stops all writing for good.  The disks hold the last complete txg.
    pub(crate) fn fail(&self, reason: &str, out_of_space: bool) {
        self.record_suspension(reason);
        self.lifecycle.fail(out_of_space);
        self.clock().stop(SUSPENDED);
    }

    fn record_suspension(&self, reason: &str) {
        if !self.lifecycle.is_suspended() {
            self.report("io_failure", None, NvList::new());
        }
        self.lifecycle.suspend(reason);
        match self.properties.number("failmode").unwrap_or(FAILMODE_WAIT) {
            FAILMODE_CONTINUE => self.clock().refuse(true),
            FAILMODE_PANIC => self.handle().abort(&format!(
                "Pool '{}' has encountered an uncorrectable I/O failure and the failure mode property for this pool \
                 is set to panic.",
                self.config.name()
            )),
            _ => {}
        }
    }

    /// Suspends the pool because no device took a write, and waits until it is resumed (true: the
    /// write is tried again) or closed (false).
    pub(crate) async fn wait_resumed(&self, reason: &str) -> bool {
        self.record_suspension(reason);
        loop {
            if self.lifecycle.is_stopped() {
                return false;
            }
            if !self.lifecycle.is_suspended() {
                return true;
            }
            self.lifecycle.wait_changed().await;
        }
    }

    /// Runs `work` at the start of the next sync and waits until that txg is durable.
    pub(crate) async fn run_in_sync(
        &self,
        work: impl AsyncFnOnce(Rc<Self>, Rc<Tx>) -> Result<(), PoolError> + 'static,
    ) -> Result<(), PoolError> {
        self.run_in(&self.sync.tasks, work).await
    }

    /// As [`ImportedPool::run_in_sync`], before anything is freed in that txg.
    pub(crate) async fn run_early(
        &self,
        work: impl AsyncFnOnce(Rc<Self>, Rc<Tx>) -> Result<(), PoolError> + 'static,
    ) -> Result<(), PoolError> {
        self.run_in(&self.sync.early_tasks, work).await
    }

    async fn run_in(
        &self,
        queue: &TaskQueue<Self>,
        work: impl AsyncFnOnce(Rc<Self>, Rc<Tx>) -> Result<(), PoolError> + 'static,
    ) -> Result<(), PoolError> {
        if self.session.readonly {
            return Err(PoolError::ReadOnly);
        }
        // The sync loop has ended: the task would never run.
        if self.lifecycle.is_closed() {
            return Err(PoolError::Closed);
        }
        if self.lifecycle.is_failed() {
            return Err(PoolError::Suspended);
        }
        let (done, result) = oneshot("pool task");
        queue.borrow_mut().push_back(SyncTask::new(work, done));
        self.clock().kick();
        let txg = match result.await {
            Ok(result) => result?,
            Err(_) if self.lifecycle.is_suspended() => return Err(PoolError::Suspended),
            Err(_) => return Err(PoolError::Closed),
        };
        Ok(self.clock().wait_synced(txg).await?)
    }

    /// Queues a history record for the next txg.
    pub(crate) fn queue_history(&self, record: NvList) {
        let (done, _) = oneshot("history record");
        let task = SyncTask::new(
            async move |imported: Rc<Self>, tx: Rc<Tx>| imported.append_history(&record, &tx).await,
            done,
        );
        self.sync.tasks.borrow_mut().push_back(task);
    }

    /// Writes everything of `txg` and makes it durable.
    pub(crate) async fn sync_txg(self: &Rc<Self>, txg: Txg) -> Result<(), PoolError> {
        assert!(
            !self.session.readonly,
            "nothing is synced to a pool imported read-only"
        );
        assert!(
            txg >= self.sync.last_uberblock().txg,
            "txg {txg} is not older than the newest uberblock"
        );
        let tx = Rc::new(self.clock().syncing_tx(txg));
        self.count_references(txg).await?;
        self.sync_own_state(txg, &tx).await?;
        let mut pass = 0;
        loop {
            pass += 1;
            assert!(
                pass <= PASSES_MAX,
                "transaction group {txg} does not converge"
            );
            if self.config.is_older_than(self.hierarchy().features()) {
                self.features_changed();
            }
            if self.config.is_object_dirty() {
                self.write_config_object(&tx).await?;
            }
            self.hierarchy().sync(txg, pass).await?;
            for event in self.hierarchy().take_events() {
                self.append_event(&event, &tx).await?;
                self.error_logs_follow(&event, &tx).await?;
            }
            // After the frees of this pass, which give up references.
            let features = self.hierarchy().features();
            for last in self.space().write_tables(features, &tx).await? {
                self.store().free(txg, &last).await?;
            }
            self.record_missed_writes(&tx).await?;
            self.write_checkpoint_frees(txg, pass, &tx).await?;
            self.write_obsolete(txg, pass, &tx).await?;
            let changes = self.store().take_changes(txg);
            self.space()
                .write(self.store(), features, (txg, pass), changes, &tx)
                .await?;
            let more = self.hierarchy().is_dirty(txg)
                || self.store().has_changes(txg)
                || self.config.is_object_dirty();
            if more {
                continue;
            }
            self.store().wait_writes().await?;
            // Failures of the last writes are recorded with this txg, too.
            let missed = self.tree().take_missed_writes();
            if missed.is_empty() {
                break;
            }
            self.devices.dtls.defer(missed);
        }
        self.commit(txg).await
    }

    /// Counts the references that clones of this txg have to blocks: before anything is freed, or a block that is cloned and
    /// loses its first owner in one txg would be free.
    // OpenZFS: module/zfs/spa.c, spa_sync (brt_pending_apply)
    async fn count_references(&self, txg: Txg) -> Result<(), PoolError> {
        for (bp, more) in self.store().pending_references().take(txg) {
            let dsize = self.store().dsize(&bp);
            self.space().refer(&bp, dsize, more).await?;
        }
        Ok(())
    }

    /// Runs the tasks of the pool's own and stores the state of its parts, before the passes.
    async fn sync_own_state(self: &Rc<Self>, txg: Txg, tx: &Rc<Tx>) -> Result<(), PoolError> {
        assert!(tx.txg() == txg, "the pool's own state is synced in its txg");
        self.run_tasks(&self.sync.early_tasks, tx).await?;
        self.judge_devices();
        let features = self.hierarchy().features();
        self.space()
            .flush_logs(self.store(), features, txg, tx)
            .await?;
        self.sync_removal(txg, tx).await?;
        self.check_dedup_quota().await?;
        self.run_tasks(&self.sync.tasks, tx).await?;
        self.write_auxiliaries(tx).await?;
        self.write_scan(tx).await?;
        self.note_txg_time(tx).await?;
        self.write_error_logs(tx).await?;
        Ok(())
    }

    async fn run_tasks(
        self: &Rc<Self>,
        queue: &TaskQueue<Self>,
        tx: &Rc<Tx>,
    ) -> Result<(), PoolError> {
        let tasks = std::mem::take(&mut *queue.borrow_mut());
        for task in tasks {
            let result = (task.work)(self.clone(), tx.clone()).await;
            // Some tasks have no waiter; their failure is then not reported.
            drop(task.done.send(result.map(|()| tx.txg())));
        }
        Ok(())
    }

    /// The set of enabled or active features changed: the labels may have to say so.
    fn features_changed(&self) {
        let features = self.hierarchy().features();
        self.space().set_features(
            SpaceFeatures::of(|name| features.is_enabled(name)),
            features.is_enabled("fast_dedup"),
        );
        self.config.set_features(features);
    }

    /// Adds to the dirty-time logs of leaves the txgs of which they did not take every write.
    async fn record_missed_writes(&self, tx: &Tx) -> Result<(), PoolError> {
        assert!(
            tx.is_syncing(),
            "record missed writes happens in syncing context"
        );
        let mut missed = self.devices.dtls.take_unrecorded();
        missed.extend(self.tree().take_missed_writes());
        let histogram = self.hierarchy().features().is_enabled("spacemap_histogram");
        for (leaf, ranges) in missed {
            if self.tree().absences(leaf).is_none() {
                // Detached meanwhile.
                continue;
            }
            for range in ranges {
                let created = self
                    .devices
                    .dtls
                    .record(self.mos(), leaf.0, range, histogram, tx)
                    .await?;
                self.note_dtl(leaf, created, histogram, tx).await?;
            }
        }
        Ok(())
    }

    /// Enters a new dirty-time log into the configuration.
    pub(crate) async fn note_dtl(
        &self,
        leaf: Guid,
        created: Option<ondisk::ObjectId>,
        histogram: bool,
        tx: &Tx,
    ) -> Result<(), PoolError> {
        assert!(tx.is_syncing(), "note dtl happens in syncing context");
        let Some(object) = created else {
            return Ok(());
        };
        if histogram {
            self.hierarchy()
                .features()
                .incr("spacemap_histogram", tx)
                .await?;
        }
        self.tree()
            .update_config(leaf, |vdev| vdev.dtl = Some(object.0));
        self.dirty_config();
        Ok(())
    }

    /// Makes the txg durable: everything before the uberblock, then the uberblock.
    async fn commit(&self, txg: Txg) -> Result<(), PoolError> {
        // Flush before the uberblock: it must never point at unwritten blocks.
        self.tree().flush().await?;
        self.check_lease()?;
        let labels = self.config.take_labels_dirty();
        if labels {
            self.write_labels(txg, [0, 2]).await?;
            self.tree().flush().await?;
        }
        let now = self.unix_time();
        let mut uberblock = Uberblock::new(txg, self.tree().guid_sum(), now, self.mos().root());
        uberblock.version = self.hierarchy().features().pool_version();
        self.mark_multihost(&mut uberblock);
        let reflow = self.tree().reflow_ahead();
        uberblock.raidz_reflow = reflow;
        let began = self.handle().now();
        assert!(
            uberblock.txg == txg && !self.session.readonly,
            "a commit writes the uberblock of its txg, to a pool that is writable"
        );
        self.write_uberblocks(&uberblock, labels).await?;
        self.note_heartbeat(began);
        self.tree().flush().await?;
        self.tree().note_reflow_synced(reflow);
        if labels {
            self.write_labels(txg, [1, 3]).await?;
            self.tree().flush().await?;
            self.notify("config_sync", None, NvList::new());
        }
        assert!(
            uberblock.txg >= self.sync.last_uberblock().txg,
            "uberblocks follow in the order of their txgs"
        );
        self.sync.last_uberblock.set(uberblock);
        // A leaf that failed only now has missed this txg; the next one records it.
        let late = self.tree().take_missed_writes();
        self.devices.dtls.defer(late);
        Ok(())
    }

    /// Writes two of the four labels of every leaf.  Leaves that fail are passed over as long as
    /// one leaf of the pool takes both: a label is found on any of them.
    async fn write_labels(&self, txg: Txg, which: [u8; 2]) -> Result<(), PoolError> {
        assert!(
            matches!(which, [0, 2] | [1, 3]),
            "labels are written in two halves: one set stays whole if the power is cut"
        );
        let tree = self.tree().config();
        let features = self.label_features();
        let mut writes = Vec::new();
        for top in &tree.tops {
            for leaf in leaves_of(top) {
                let list = config::for_label(
                    &self.config.identity(),
                    self.config.label_state(),
                    txg.0,
                    &tree,
                    top,
                    leaf.guid.0,
                    &features,
                );
                let packed = list.encode_xdr();
                let guid = leaf.guid;
                writes.push(async move {
                    for label in which {
                        self.tree().write_label(guid, label, &packed).await?;
                    }
                    Ok::<(), vdev::VdevError>(())
                });
            }
        }
        one_must_succeed(runtime::join_all(writes).await)
    }

    /// Writes the uberblock to the rings of all leaves of the chosen top-level vdevs.
    async fn write_uberblocks(
        &self,
        uberblock: &Uberblock,
        everywhere: bool,
    ) -> Result<(), PoolError> {
        let tree = self.tree().config();
        let tops: Vec<u32> = self.tree().tops().iter().map(|top| top.id).collect();
        let mut chosen: Vec<u32> = tops
            .iter()
            .copied()
            .filter(|&id| !is_log(&tree.tops, id))
            .collect();
        if everywhere {
            chosen = tops;
        } else if chosen.len() > UBERBLOCK_VDEVS {
            let count = chosen.len();
            let start = index(self.handle().random_u64() % len64(count));
            chosen = (0..UBERBLOCK_VDEVS)
                .map(|i| chosen[(start + i) % count])
                .collect();
        }
        assert!(
            everywhere || chosen.len() <= UBERBLOCK_VDEVS,
            "few vdevs take an uberblock while the configuration stays"
        );
        let mut writes = Vec::new();
        for top in tree
            .tops
            .iter()
            .filter(|top| chosen.iter().any(|&id| u64::from(id) == top.id))
        {
            for leaf in leaves_of(top) {
                let guid = leaf.guid;
                writes.push(async move { self.tree().write_uberblock(guid, uberblock).await });
            }
        }
        one_must_succeed(runtime::join_all(writes).await)
    }
}

/// Makes an uberblock the newest of a pool that is not open. Durable on return.
pub(crate) async fn write_uberblock_everywhere(
    tree: &vdev::Tree,
    uberblock: &Uberblock,
) -> Result<(), PoolError> {
    let config = tree.config();
    let tops = config.tops.iter();
    let leaves = tops.filter(|top| !top.is_log).flat_map(leaves_of);
    let writes = leaves.map(|leaf| tree.write_uberblock(leaf.guid, uberblock));
    one_must_succeed(runtime::join_all(writes).await)?;
    Ok(tree.flush().await?)
}

fn is_log(tops: &[VdevConfig], id: u32) -> bool {
    tops.iter().any(|top| top.id == u64::from(id) && top.is_log)
}

/// Returns the leaves below a vdev, or the vdev itself when it is one.
pub(crate) fn leaves_of(vdev: &VdevConfig) -> Vec<&VdevConfig> {
    if vdev.kind.is_device() {
        return vec![vdev];
    }
    vdev.children.iter().flat_map(leaves_of).collect()
}

fn one_must_succeed(results: Vec<Result<(), vdev::VdevError>>) -> Result<(), PoolError> {
    let mut failure = None;
    let mut succeeded = false;
    for result in results {
        match result {
            Ok(()) => succeeded = true,
            Err(error) => failure = Some(error),
        }
    }
    match failure {
        Some(error) if !succeeded => Err(error.into()),
        _ => Ok(()),
    }
}
