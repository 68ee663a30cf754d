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

use dmu::{Ledger, Objset, Tx, zap};
use ondisk::dsl::UsedBy;
use ondisk::feature::Feature;
use ondisk::{BlockPointer, ObjectId, ObjectType, ObjsetType, Txg};
use zio::BlockStore;

use crate::bptree::{self, Progress};
use crate::dataset::DatasetState;
use crate::dsl_pool::DslPool;
use crate::error::{DslError, Result};
use crate::hierarchy::Hierarchy;
use crate::livelist::is_tracked;
use crate::object_directory;
use crate::space::{Delta, Sizes, Transfer, sizes_of};
use crate::write_policy::features_of_block;

/// The first pass whose frees are deferred to the next txg. OpenZFS: `zfs_sync_pass_deferred_free`.
const PASS_DEFERRED_FREE: u32 = 2;
/// A pass count that means the txg does not converge: a broken invariant of ours.
const PASS_MAX: u32 = 64;

/// Collects the blocks born and freed while an objset is written.
struct Collector {
    store: BlockStore,
    born: Sizes,
    /// Blocks that are no longer referenced.
    killed: Vec<BlockPointer>,
    /// For a clone with a livelist: the creation txg of its origin, and the blocks written.
    livelist: Option<(u64, Vec<BlockPointer>)>,
    wanted: Vec<&'static str>,
}

impl Collector {
    fn new(store: BlockStore) -> Self {
        Self {
            store,
            born: Sizes::default(),
            killed: Vec::new(),
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
            self.killed.push(*bp);
        }
    }
}

impl DslPool {
    pub(crate) async fn sync_pass(self: &Rc<Self>, txg: Txg, pass: u32) -> Result<BlockPointer> {
        assert!(pass > 0 && pass < PASS_MAX, "the sync of a group converges");
        if self.read_only {
            return Err(DslError::ReadOnly);
        }
        self.pass.set(pass);
        let result = self.sync_pass_steps(txg, pass).await;
        self.pass.set(0);
        result
    }

    async fn sync_pass_steps(self: &Rc<Self>, txg: Txg, pass: u32) -> Result<BlockPointer> {
        let tx = Rc::new(self.services.clock.syncing_tx(txg));
        if pass == 1 {
            self.sync_logs(txg, &tx).await?;
        }
        let mut changed = self.sync_datasets(txg, pass, &tx).await?;
        if pass == 1 {
            changed |= self.run_tasks(txg, &tx).await?;
            if let Some(error) = self.poison.borrow().clone() {
                return Err(error);
            }
            changed |= self.sync_datasets(txg, pass, &tx).await?;
            changed |= self.mos.is_dirty(txg);
            changed |= self.background_step(&tx).await?;
            // A txg without changes must stay one: deferred frees wait for the next with changes.
            if changed {
                self.free_deferred(&tx).await?;
            }
        }
        let mos_dir = self.dir(self.special.get().mos_dir).await?;
        let delta = self.mos_delta.take();
        if !delta.is_zero() {
            mos_dir.did_use(UsedBy::Head, delta);
        }
        self.write_back(&tx).await?;
        if self.mos.is_dirty(txg) {
            let mut ledger = Collector::new(self.services.store().clone());
            self.mos.sync(txg, pass, &mut ledger).await?;
            let mut delta = Delta::from(ledger.born);
            for bp in &ledger.killed {
                delta += -Delta::from(sizes_of(bp, ledger.store.dsize(bp)));
            }
            self.mos_delta.set(delta);
            self.free_blocks(&ledger.killed, &tx).await?;
        }
        Ok(self.mos.root())
    }

    /// Whether a further pass has something to do.
    pub(crate) fn needs_pass(&self, txg: Txg) -> bool {
        self.mos.is_dirty(txg)
            || !self.mos_delta.get().is_zero()
            || !self.dirty_dirs.borrow().is_empty()
            || !self.dirty_datasets.borrow().is_empty()
            || self.tasks.borrow().iter().any(|(t, _)| *t <= txg)
            || self
                .open_objsets()
                .iter()
                .any(|(_, objset)| objset.is_dirty(txg))
    }

    fn open_objsets(&self) -> Vec<(Rc<DatasetState>, Objset)> {
        let datasets = self.datasets.borrow();
        datasets
            .values()
            .filter_map(|s| Some((s.clone(), s.objset()?)))
            .collect()
    }

    pub(crate) fn retire_logs(&self) {
        for (state, _) in self.open_objsets() {
            if let Some(log) = state.log() {
                log.retire();
            }
        }
    }

    /// Puts the headers of running intent logs into their objsets, and frees log blocks whose changes are in this txg.
    async fn sync_logs(&self, txg: Txg, tx: &Tx) -> Result<()> {
        for (state, objset) in self.open_objsets() {
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
        for (state, objset) in self.open_objsets() {
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
        let mut freed = Vec::new();
        let mut freed_sizes = Sizes::default();
        let mut dead = Vec::new();
        let mut dead_sizes = Sizes::default();
        // Dead blocks unique to the previous snapshot now, and those born after the origin.
        let mut unique_to_prev = 0;
        let mut moved_to_snapshots = 0;
        let origin_txg = state.dir().origin_txg.get();
        let prev = state.prev.borrow().clone();
        let prev_holds = prev
            .as_ref()
            .filter(|p| p.phys().next_snap_obj == state.object.0)
            .map(|p| p.phys().prev_snap_txg);
        let bookmarks = self.features.is_active("bookmark_written");
        let mut killed = Vec::new();
        let mut ended = Vec::new();
        for bp in ledger.killed {
            if ledger.livelist.is_some() && is_tracked(&bp, origin_txg) {
                ended.push(bp);
            }
            let sizes = sizes_of(&bp, ledger.store.dsize(&bp));
            if bookmarks {
                killed.push((bp.birth().0, sizes));
            }
            if bp.birth().0 > phys.prev_snap_txg {
                freed_sizes.add(sizes);
                freed.push(bp);
            } else {
                dead_sizes.add(sizes);
                if prev_holds.is_some_and(|older| bp.birth().0 > older) {
                    unique_to_prev += sizes.used;
                }
                if bp.birth().0 > origin_txg {
                    moved_to_snapshots += sizes.used;
                }
                dead.push(bp);
            }
        }
        let mut delta = Delta::from(ledger.born);
        delta += -Delta::from(freed_sizes);
        let charge = state.charged(delta.used);
        state.dir().transfer(Transfer {
            charge,
            compressed: delta.compressed,
            uncompressed: delta.uncompressed,
            into: delta.used,
            from: UsedBy::Refreservation,
            to: UsedBy::Head,
        });
        if moved_to_snapshots > 0 {
            let bytes = crate::space::signed(moved_to_snapshots);
            state
                .dir()
                .move_part(bytes, UsedBy::Head, UsedBy::Snapshots);
        }
        if let Some(prev) = prev.filter(|_| unique_to_prev > 0) {
            prev.change(|p| p.unique_bytes += unique_to_prev);
        }
        let mut total = delta;
        total += -Delta::from(dead_sizes);
        state.change(|p| {
            crate::space::apply(&mut p.unique_bytes, delta.used);
            crate::space::apply(&mut p.referenced_bytes, total.used);
            crate::space::apply(&mut p.compressed_bytes, total.compressed);
            crate::space::apply(&mut p.uncompressed_bytes, total.uncompressed);
            p.bp = root;
        });
        if !dead.is_empty() {
            let deadlist = self.deadlist_of(state).await?;
            for bp in &dead {
                self.services.cache().forget(bp);
            }
            deadlist.insert(&dead, &self.empty, tx).await?;
        }
        self.bookmarks_blocks_freed(state, &killed, tx).await?;
        if let Some((_, born)) = &ledger.livelist
            && let Some(list) = self.livelist_of(&state.dir()).await?
        {
            self.update_livelist(state, &list, born, &ended, tx).await?;
        }
        self.free_blocks(&freed, tx).await?;
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

    /// Zapifies a dataset or directory object: makes it a ZAP and keeps its bonus. Syncing context.
    pub(crate) async fn zapify(&self, object: ObjectId, tx: &Tx) -> Result<()> {
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
        if self.pass.get() < PASS_DEFERRED_FREE {
            for bp in blocks {
                self.services.store().free(tx.txg(), bp).await?;
            }
        } else {
            let real: Vec<_> = blocks
                .iter()
                .filter(|bp| !bp.is_embedded())
                .copied()
                .collect();
            self.sync_bplist.append(&real, tx).await?;
        }
        Ok(())
    }

    async fn free_deferred(&self, tx: &Tx) -> Result<()> {
        let store = self.services.store();
        self.sync_bplist
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
    async fn background_step(self: &Rc<Self>, tx: &Tx) -> Result<bool> {
        if !self.has_background_work() {
            return Ok(false);
        }
        let free_dir = self.dir(self.special.get().free_dir).await?;
        let store = self.services.store().clone();
        let mut left = self.background_blocks_max.get();
        let drained = self
            .free_bpobj
            .drain(left, tx, async |blocks, sizes| {
                for bp in blocks {
                    self.services.cache().forget(bp);
                    store.free(tx.txg(), bp).await?;
                }
                free_dir.did_use(UsedBy::Head, -Delta::from(sizes));
                Ok(())
            })
            .await?;
        left = left.saturating_sub(drained);
        left = left.saturating_sub(self.free_deleted_clones(left, tx).await?);
        left = left.saturating_sub(self.note_obsolete(left, tx).await?);
        let object = self.bptree.get();
        if object.0 == 0 || left == 0 {
            return Ok(true);
        }
        let result = bptree::step(&self.mos, object, left, tx, async |bp: &BlockPointer| {
            let sizes = sizes_of(bp, store.dsize(bp));
            self.services.cache().forget(bp);
            store.free(tx.txg(), bp).await?;
            free_dir.did_use(UsedBy::Head, -Delta::from(sizes));
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
                self.bptree.set(ObjectId(0));
            }
            // Blocks below the unreadable one stay allocated; the next import tries again.
            Progress::Failed(error) => *self.background_error.borrow_mut() = Some(error),
        }
        Ok(true)
    }

    pub(crate) fn has_background_work(&self) -> bool {
        !self.read_only
            && self.background_error.borrow().is_none()
            && (self.bptree.get().0 != 0
                || self.deleted_clones.get().0 != 0
                || self.obsolete_bpobj.get().0 != 0
                || !self.free_bpobj.is_empty())
    }

    async fn run_tasks(self: &Rc<Self>, txg: Txg, tx: &Rc<Tx>) -> Result<bool> {
        let mut any = false;
        loop {
            let next = {
                let mut tasks = self.tasks.borrow_mut();
                match tasks.front() {
                    Some((t, _)) if *t <= txg => tasks.pop_front(),
                    _ => None,
                }
            };
            let Some((_, task)) = next else {
                return Ok(any);
            };
            any = true;
            let guard = self.config.write().await;
            task(Hierarchy::from_pool(self.clone()), tx.clone()).await;
            drop(guard);
        }
    }

    /// Writes changed fields of directories and datasets into their objects.
    pub(crate) async fn write_back(&self, tx: &Tx) -> Result<()> {
        let dirs = std::mem::take(&mut *self.dirty_dirs.borrow_mut());
        for object in dirs {
            let Some(dir) = self.dirs.borrow().get(&object).cloned() else {
                continue;
            };
            let bytes = dir.phys().encode();
            self.mos
                .set_bonus(object, ObjectType::DSL_DIR, &bytes, tx)
                .await?;
        }
        let datasets = std::mem::take(&mut *self.dirty_datasets.borrow_mut());
        for object in datasets {
            let Some(state) = self.datasets.borrow().get(&object).cloned() else {
                continue;
            };
            let bytes = state.phys().encode();
            self.mos
                .set_bonus(object, ObjectType::DSL_DATASET, &bytes, tx)
                .await?;
        }
        Ok(())
    }

    /// A txg is on disk: the space of its transactions is no longer in flight, and closed datasets are evicted.
    pub(crate) fn synced(&self, txg: Txg) {
        for dir in self.dirs.borrow().values() {
            dir.end_inflight(txg);
        }
        for state in self.datasets.borrow().values() {
            let Some(log) = state.log() else { continue };
            log.synced(txg);
            if state.handles() == 0 {
                log.retire();
            }
        }
        let idle: Vec<ObjectId> = {
            let datasets = self.datasets.borrow();
            let later = [Txg(txg.0 + 1), Txg(txg.0 + 2)];
            let is_idle = |s: &DatasetState| {
                s.handles() == 0
                    && s.log().is_none_or(|log| !log.has_chain())
                    && s.objset()
                        .is_none_or(|os| later.iter().all(|t| !os.is_dirty(*t)))
            };
            datasets
                .values()
                .filter(|s| is_idle(s))
                .map(|s| s.object)
                .collect()
        };
        let dirty = self.dirty_datasets.borrow();
        for object in idle.into_iter().filter(|object| !dirty.contains(object)) {
            let mut datasets = self.datasets.borrow_mut();
            // Still reachable as the previous snapshot of an open head: there must be one of each.
            if datasets
                .get(&object)
                .is_some_and(|state| Rc::strong_count(state) == 1)
            {
                datasets.remove(&object);
            }
        }
    }
}
