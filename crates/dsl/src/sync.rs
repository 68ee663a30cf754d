//! The sync of a txg: datasets, sync tasks, frees, the meta-objset's own space.
//!
//! ```text
//!  pass 1:  dirty datasets -> sync tasks -> datasets dirtied by tasks -> deferred frees -> asynchronous frees
//!           -> $MOS takes the meta-objset's space -> fields written back -> meta-objset
//!  pass 2+: the same without tasks and asynchronous frees; frees go to the list of deferred frees
//! ```
//! The meta-objset holds the space records of itself: what a pass writes changes `$MOS` in the next
//! pass, until a pass rewrites everything in place and nothing changes any more.

use std::rc::Rc;

use dmu::{Ledger, Tx, zap};
use ondisk::dsl::UsedBy;
use ondisk::feature::Feature;
use ondisk::{BlockPointer, ObjectId, ObjectType, ObjsetType, Txg};
use zio::BlockStore;

use crate::bptree::{self, Progress};
use crate::dataset_state::DatasetState;
use crate::dsl_pool::DslPool;
use crate::error::{DslError, Result};
use crate::livelist::is_tracked;
use crate::object_directory;
use crate::space::{Delta, Sizes, Transfer, sizes_of};
use crate::write_policy::features_of_block;

/// Collects the blocks born and freed while an objset is written.
struct Collector {
    store: BlockStore,
    born: Sizes,
    /// Blocks that are no longer referenced.
    freed: Vec<BlockPointer>,
    /// For a clone with a livelist: the creation txg of its origin, and the blocks written.
    livelist: Option<(u64, Vec<BlockPointer>)>,
    wanted: Vec<&'static str>,
}

impl Collector {
    fn new(store: BlockStore) -> Self {
        Self {
            store,
            born: Sizes::default(),
            freed: Vec::new(),
            livelist: None,
            wanted: Vec::new(),
        }
    }
}

impl Ledger for Collector {
    fn block_born(&mut self, bp: &BlockPointer) {
        if bp.is_hole() {
            return;
        }
        self.born.add(sizes_of(bp, self.store.dsize(bp)));
        if let Some((origin_txg, blocks)) = &mut self.livelist
            && is_tracked(bp, *origin_txg)
        {
            blocks.push(*bp);
        }
        for feature in features_of_block(bp) {
            if !self.wanted.contains(&feature) {
                self.wanted.push(feature);
            }
        }
    }

    fn block_freed(&mut self, bp: &BlockPointer) {
        if !bp.is_hole() {
            self.freed.push(*bp);
        }
    }
}

/// The blocks that a pass freed in a head dataset, by what becomes of them.
#[derive(Default)]
struct FreedBlocks {
    /// Younger than the newest snapshot: freed at once.
    now: Vec<BlockPointer>,
    now_sizes: Sizes,
    /// A snapshot still has them: they go to the deadlist.
    dead: Vec<BlockPointer>,
    dead_sizes: Sizes,
    /// Bytes of dead blocks unique to the previous snapshot now.
    unique_to_prev: u64,
    /// Bytes of dead blocks born after the origin.
    moved_to_snapshots: u64,
    /// Birth and sizes of each, where bookmarks count them.
    births: Vec<(u64, Sizes)>,
    /// Those that the clone's livelist tracks.
    in_livelist: Vec<BlockPointer>,
}

impl FreedBlocks {
    /// Sorts what a pass freed in a dataset whose previous snapshot is `prev`.
    fn sort(
        ledger: &Collector,
        state: &DatasetState,
        prev: Option<&DatasetState>,
        bookmarks: bool,
    ) -> Self {
        let prev_snap_txg = state.phys().prev_snap_txg;
        let origin_txg = state.dir().origin_txg.get();
        let prev_holds = prev
            .filter(|p| p.phys().next_snap_obj == state.object.0)
            .map(|p| p.phys().prev_snap_txg);
        let mut sorted = Self::default();
        for &bp in &ledger.freed {
            if ledger.livelist.is_some() && is_tracked(&bp, origin_txg) {
                sorted.in_livelist.push(bp);
            }
            let sizes = sizes_of(&bp, ledger.store.dsize(&bp));
            if bookmarks {
                sorted.births.push((bp.birth().0, sizes));
            }
            if bp.birth().0 > prev_snap_txg {
                sorted.now_sizes.add(sizes);
                sorted.now.push(bp);
                continue;
            }
            sorted.dead_sizes.add(sizes);
            if prev_holds.is_some_and(|older| bp.birth().0 > older) {
                sorted.unique_to_prev += sizes.used;
            }
            if bp.birth().0 > origin_txg {
                sorted.moved_to_snapshots += sizes.used;
            }
            sorted.dead.push(bp);
        }
        assert!(
            sorted.now.len() + sorted.dead.len() == ledger.freed.len(),
            "every freed block is freed now or dead"
        );
        sorted
    }
}

impl DslPool {
    pub(crate) async fn sync_pass(self: &Rc<Self>, txg: Txg, pass: u32) -> Result<BlockPointer> {
        if self.read_only {
            return Err(DslError::ReadOnly);
        }
        self.sync.begin_pass(pass);
        let result = self.sync_pass_steps(txg, pass).await;
        self.sync.end_pass();
        result
    }

    async fn sync_pass_steps(self: &Rc<Self>, txg: Txg, pass: u32) -> Result<BlockPointer> {
        let tx = Rc::new(self.services.clock.syncing_tx(txg));
        if pass == 1 {
            self.sync_logs(txg, &tx).await?;
        }
        let mut changed = self.sync_datasets(txg, pass, &tx).await?;
        if pass == 1 {
            // Before the tasks, which would find it counted twice.
            self.loaded.end_inflight(txg);
            changed |= self.run_tasks(txg, &tx).await?;
            if let Some(error) = self.sync.poisoned() {
                return Err(error);
            }
            changed |= self.sync_datasets(txg, pass, &tx).await?;
            changed |= self.mos.is_dirty(txg);
            changed |= self.async_destroy_step(&tx).await?;
            // A txg without changes must stay one: deferred frees wait for the next with changes.
            if changed {
                self.free_deferred(&tx).await?;
            }
        }
        let mos_dir = self.dir(self.special().mos_dir).await?;
        let delta = self.sync.take_mos_delta();
        if !delta.is_zero() {
            mos_dir.did_use(UsedBy::Head, delta);
        }
        self.write_back(&tx).await?;
        if self.mos.is_dirty(txg) {
            let mut ledger = Collector::new(self.services.store().clone());
            self.mos.sync(txg, pass, &mut ledger).await?;
            let mut delta = Delta::from(ledger.born);
            for bp in &ledger.freed {
                delta += -Delta::from(sizes_of(bp, ledger.store.dsize(bp)));
            }
            self.sync.set_mos_delta(delta);
            self.free_blocks(&ledger.freed, &tx).await?;
        }
        Ok(self.mos.root())
    }

    /// Whether a further pass has something to do.
    pub(crate) fn needs_pass(&self, txg: Txg) -> bool {
        self.mos.is_dirty(txg)
            || self.sync.has_mos_delta()
            || self.loaded.is_dirty()
            || self.sync.has_tasks(txg)
            || self
                .loaded
                .open_objsets()
                .iter()
                .any(|(_, objset)| objset.is_dirty(txg))
    }

    pub(crate) fn retire_logs(&self) {
        for (state, _) in self.loaded.open_objsets() {
            if let Some(log) = state.log() {
                log.retire();
            }
        }
    }

    /// Puts the headers of running intent logs into their objsets, and frees log blocks whose changes are in this txg.
    async fn sync_logs(&self, txg: Txg, tx: &Tx) -> Result<()> {
        for (state, objset) in self.loaded.open_objsets() {
            let Some(log) = state.log() else { continue };
            let outcome = log.sync(txg, tx);
            self.free_blocks(&outcome.freed, tx).await?;
            if outcome.started && objset.kind() == ObjsetType::ZFS {
                // The records of extended attributes need it, and may come at once.
                state.wanted.borrow_mut().insert("zilsaxattr");
            }
        }
        Ok(())
    }

    async fn sync_datasets(self: &Rc<Self>, txg: Txg, pass: u32, tx: &Tx) -> Result<bool> {
        let mut any = false;
        for (state, objset) in self.loaded.open_objsets() {
            if !objset.is_dirty(txg) {
                continue;
            }
            any = true;
            let mut ledger = Collector::new(self.services.store().clone());
            let dir = state.dir();
            let livelist = self.livelist_of(&dir).await?;
            ledger.livelist = livelist
                .is_some()
                .then(|| (dir.origin_txg.get(), Vec::new()));
            let root = objset.sync(txg, pass, &mut ledger).await?;
            self.account(&state, root, ledger, tx).await?;
            self.store_resume_point(&state, tx).await?;
        }
        Ok(any)
    }

    /// Accounts the blocks born and freed in a head dataset. OpenZFS: module/zfs/dsl_dataset.c,
    /// `dsl_dataset_block_born` and `dsl_dataset_block_kill`.
    async fn account(
        self: &Rc<Self>,
        state: &Rc<DatasetState>,
        root: BlockPointer,
        ledger: Collector,
        tx: &Tx,
    ) -> Result<()> {
        let phys = state.phys();
        assert!(
            !phys.is_snapshot(),
            "snapshot {} does not change",
            state.object
        );
        let prev = state.prev.borrow().clone();
        let bookmarks = self.features.is_active("bookmark_written");
        let freed = FreedBlocks::sort(&ledger, state, prev.as_deref(), bookmarks);
        let mut delta = Delta::from(ledger.born);
        delta += -Delta::from(freed.now_sizes);
        let charge = state.charged(delta.used);
        state.dir().transfer(Transfer {
            charge,
            compressed: delta.compressed,
            uncompressed: delta.uncompressed,
            into: delta.used,
            from: UsedBy::Refreservation,
            to: UsedBy::Head,
        });
        if freed.moved_to_snapshots > 0 {
            let bytes = crate::space::signed(freed.moved_to_snapshots);
            state
                .dir()
                .move_part(bytes, UsedBy::Head, UsedBy::Snapshots);
        }
        if let Some(prev) = prev.filter(|_| freed.unique_to_prev > 0) {
            prev.change(|p| p.unique_bytes += freed.unique_to_prev);
        }
        let mut total = delta;
        total += -Delta::from(freed.dead_sizes);
        state.change(|p| {
            crate::space::apply(&mut p.unique_bytes, delta.used);
            crate::space::apply(&mut p.referenced_bytes, total.used);
            crate::space::apply(&mut p.compressed_bytes, total.compressed);
            crate::space::apply(&mut p.uncompressed_bytes, total.uncompressed);
            p.bp = root;
        });
        if !freed.dead.is_empty() {
            let deadlist = self.deadlist_of(state).await?;
            for bp in &freed.dead {
                self.services.cache().forget(bp);
            }
            deadlist.insert(&freed.dead, &self.empty_bpobj, tx).await?;
        }
        self.bookmarks_blocks_freed(state, &freed.births, tx)
            .await?;
        if let Some((_, born)) = &ledger.livelist
            && let Some(list) = self.livelist_of(&state.dir()).await?
        {
            self.update_livelist(state, &list, born, &freed.in_livelist, tx)
                .await?;
        }
        self.free_blocks(&freed.now, tx).await?;
        let mut wanted = ledger.wanted;
        wanted.extend(std::mem::take(&mut *state.wanted.borrow_mut()));
        for feature in wanted {
            self.activate(state, feature, tx).await?;
        }
        Ok(())
    }

    /// Counts a per-dataset feature for a dataset. Syncing context.
    pub(crate) async fn activate(
        &self,
        state: &DatasetState,
        feature: &'static str,
        tx: &Tx,
    ) -> Result<()> {
        assert!(tx.is_syncing(), "activate happens in syncing context");
        if state.features.borrow().contains(feature) || !self.features.is_enabled(feature) {
            return Ok(());
        }
        let known = Feature::by_name(feature).expect("named by this crate");
        self.features.incr(feature, tx).await?;
        self.zapify(state.object, tx).await?;
        zap::add_u64(&self.mos, state.object, known.guid, 0, tx).await?;
        state.features.borrow_mut().insert(feature);
        Ok(())
    }

    /// Counts a per-dataset feature for a dataset no longer that has it. Syncing context.
    pub(crate) async fn deactivate(
        &self,
        state: &DatasetState,
        feature: &'static str,
        tx: &Tx,
    ) -> Result<()> {
        assert!(tx.is_syncing(), "deactivate happens in syncing context");
        let known = Feature::by_name(feature).expect("named by this crate");
        self.features.decr(feature, tx).await?;
        zap::remove(&self.mos, state.object, known.guid, tx).await?;
        state.features.borrow_mut().remove(feature);
        Ok(())
    }

    /// Zapifies a dataset or directory object: makes it a ZAP and keeps its bonus. Syncing context.
    pub(crate) async fn zapify(&self, object: ObjectId, tx: &Tx) -> Result<()> {
        assert!(tx.is_syncing(), "zapify happens in syncing context");
        if self.mos.object_info(object).await?.object_type == ObjectType::ZAP_METADATA {
            return Ok(());
        }
        self.features.incr("extensible_dataset", tx).await?;
        self.mos
            .set_object_type(object, ObjectType::ZAP_METADATA, tx)
            .await?;
        zap::format(&self.mos, object, 0, tx).await?;
        Ok(())
    }

    /// Frees an object that may have been zapified. Syncing context.
    pub(crate) async fn free_zapified(&self, object: ObjectId, tx: &Tx) -> Result<()> {
        assert!(tx.is_syncing(), "free zapified happens in syncing context");
        if self.mos.object_info(object).await?.object_type == ObjectType::ZAP_METADATA {
            self.features.decr("extensible_dataset", tx).await?;
        }
        self.mos.free_object(object, tx).await?;
        Ok(())
    }

    /// Frees blocks: at once in the first pass, deferred to the next txg in later ones, because the
    /// space maps written in a later pass must not change what they describe.
    pub(crate) async fn free_blocks(&self, blocks: &[BlockPointer], tx: &Tx) -> Result<()> {
        for bp in blocks {
            self.services.cache().forget(bp);
        }
        assert!(
            tx.is_syncing(),
            "blocks are freed while their txg is synced"
        );
        if !self.sync.defers_frees() {
            for bp in blocks {
                self.services.store().free(tx.txg(), bp).await?;
            }
        } else {
            let real: Vec<_> = blocks
                .iter()
                .filter(|bp| !bp.is_embedded())
                .copied()
                .collect();
            self.sync.sync_bplist.append(&real, tx).await?;
        }
        Ok(())
    }

    async fn free_deferred(&self, tx: &Tx) -> Result<()> {
        let store = self.services.store();
        self.sync
            .sync_bplist
            .drain(u64::MAX, tx, async |blocks, _| {
                for bp in blocks {
                    store.free(tx.txg(), bp).await?;
                }
                Ok(())
            })
            .await?;
        Ok(())
    }

    /// Frees some blocks of destroyed snapshots and datasets. Returns whether anything changed.
    async fn async_destroy_step(self: &Rc<Self>, tx: &Tx) -> Result<bool> {
        if !self.has_background_work() {
            return Ok(false);
        }
        let store = self.services.store().clone();
        let mut left = self.async_destroy.blocks_max();
        if self.async_destroy.has_blocks_of_snapshots() {
            let queue = self.async_destroy.free_bpobj()?;
            let drained = queue.drain(left, tx, async |blocks, sizes| {
                for bp in blocks {
                    self.services.cache().forget(bp);
                    store.free(tx.txg(), bp).await?;
                }
                self.free_dir_did_use(-Delta::from(sizes)).await
            });
            left = left.saturating_sub(drained.await?);
        }
        left = left.saturating_sub(self.free_deleted_clones(left, tx).await?);
        left = left.saturating_sub(self.drain_obsolete_bpobj(left, tx).await?);
        let Some(object) = self.async_destroy.bptree().filter(|_| left > 0) else {
            return Ok(true);
        };
        let result = bptree::step(&self.mos, object, left, tx, async |bp: &BlockPointer| {
            let sizes = sizes_of(bp, store.dsize(bp));
            self.services.cache().forget(bp);
            store.free(tx.txg(), bp).await?;
            self.free_dir_did_use(-Delta::from(sizes)).await?;
            Ok(sizes)
        })
        .await;
        match result? {
            Progress::More => {}
            Progress::Finished => {
                self.features.decr("async_destroy", tx).await?;
                zap::remove(
                    &self.mos,
                    object_directory::OBJECT_DIRECTORY,
                    object_directory::BPTREE_OBJ,
                    tx,
                )
                .await?;
                self.mos.free_object(object, tx).await?;
                self.async_destroy.set_bptree(None);
            }
            // Blocks below the unreadable one stay allocated; the next import tries again.
            Progress::Failed(error) => self.async_destroy.suspend(error),
        }
        Ok(true)
    }

    pub(crate) fn has_background_work(&self) -> bool {
        !self.read_only && self.async_destroy.has_work()
    }

    async fn run_tasks(self: &Rc<Self>, txg: Txg, tx: &Rc<Tx>) -> Result<bool> {
        let mut any = false;
        while let Some(task) = self.sync.next_task(txg) {
            any = true;
            let guard = self.config.write().await;
            task(self.clone(), tx.clone()).await;
            drop(guard);
        }
        Ok(any)
    }

    /// Writes changed fields of directories and datasets into their objects.
    pub(crate) async fn write_back(&self, tx: &Tx) -> Result<()> {
        let dirs = self.loaded.take_dirty_dirs();
        for object in dirs {
            let Some(dir) = self.loaded.dir(object) else {
                continue;
            };
            let bytes = dir.phys().encode();
            self.mos
                .set_bonus(object, ObjectType::DSL_DIR, &bytes, tx)
                .await?;
        }
        let datasets = self.loaded.take_dirty_datasets();
        for object in datasets {
            let Some(state) = self.loaded.dataset(object) else {
                continue;
            };
            let bytes = state.phys().encode();
            self.mos
                .set_bonus(object, ObjectType::DSL_DATASET, &bytes, tx)
                .await?;
        }
        Ok(())
    }
}
