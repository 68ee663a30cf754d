//! Livelists: the blocks that a clone wrote itself, listed so that destroying the clone need not traverse it.
//!
//! A livelist has the form of a deadlist, but its entries (sublists) are keyed by the txg they were begun in: a block and its
//! `freed` mark are in the entry of the block's birth. Blocks written and not freed in an entry are the clone's own.
//!
//! ```text
//!  clone made            written to              drifted, promoted or rolled back     destroyed
//!  empty list  ------->  entries, condensed  ->  dropped (destroyed by reading)       queue of the pool -> freed in the background
//! ```
//! Memory is bounded by the size of an entry. Facts: OpenZFS module/zfs/dsl_deadlist.c ("Livelist Overview"),
//! dsl_dataset.c (dsl_flush_pending_livelist, dsl_livelist_should_disable), dsl_destroy.c (dsl_async_clone_destroy), spa.c
//! (spa_livelist_delete_cb, spa_livelist_condense_cb).

use std::collections::BTreeMap;
use std::rc::Rc;

use dmu::zap::{self, ZapSpec, ZapValue};
use dmu::{Objset, Tx};
use ondisk::dsl::{UsedBy, zapified_keys};
use ondisk::{BlockPointer, ObjectId, ObjectType};

use crate::async_destroy::SublistFrees;
use crate::bpobj::Bpobj;
use crate::dataset_state::DatasetState;
use crate::deadlist::Deadlist;
use crate::dsl_dir::DslDir;
use crate::dsl_pool::DslPool;
use crate::error::{DslError, Result};
use crate::object_directory::{DELETED_CLONES, OBJECT_DIRECTORY};
use crate::space::{Delta, Sizes, sizes_of};

const FEATURE: &str = "livelist";
/// A clone that shares no more than so many percent with its origin is quicker to read than to keep lists of.
const SHARED_PERCENT_MIN: u64 = 75;

/// Whether a livelist would have a block: the clone wrote it, and it takes space.
pub(crate) fn is_tracked(bp: &BlockPointer, origin_txg: u64) -> bool {
    bp.birth().0 > origin_txg && !bp.is_embedded() && !bp.is_hole()
}

/// Returns what of an entry was written and not freed, the newest first.
async fn live_blocks(mos: &Objset, list: ObjectId) -> Result<Vec<BlockPointer>> {
    let list = Bpobj::open(mos, list).await?;
    let mut ends: BTreeMap<(u32, u64), u64> = BTreeMap::new();
    let mut live = Vec::new();
    list.each_backwards(|bp, freed| {
        let Some(dva) = bp.dvas().first().copied() else {
            return;
        };
        let place = (dva.vdev, dva.offset);
        if freed {
            *ends.entry(place).or_insert(0) += 1;
            return;
        }
        match ends.get_mut(&place) {
            None => live.push(bp),
            Some(1) => {
                ends.remove(&place);
            }
            Some(more) => *more -= 1,
        }
    })
    .await?;
    if ends.is_empty() {
        Ok(live)
    } else {
        Err(DslError::corrupt("list of a clone's blocks", list.object()))
    }
}

impl DslPool {
    /// The livelist of a directory, open, if it has one.
    pub(crate) async fn livelist_of(&self, dir: &DslDir) -> Result<Option<Rc<Deadlist>>> {
        if dir.origin_txg.get() == 0 || !self.features.is_active(FEATURE) {
            return Ok(None);
        }
        if let Some(known) = dir.livelist.borrow().clone() {
            return Ok(known);
        }
        let found = match self.dir_count(dir, zapified_keys::LIVELIST).await? {
            Some(object) => Some(Rc::new(Deadlist::open(&self.mos, ObjectId(object)).await?)),
            None => None,
        };
        *dir.livelist.borrow_mut() = Some(found.clone());
        Ok(found)
    }

    /// Gives a new clone an empty livelist, where the feature is enabled. Syncing context.
    pub(crate) async fn create_livelist(&self, dir: &DslDir, tx: &Tx) -> Result<()> {
        assert!(
            tx.is_syncing(),
            "create livelist happens in syncing context"
        );
        if dir.origin_txg.get() == 0 || !self.features.is_enabled(FEATURE) {
            return Ok(());
        }
        self.zapify(dir.object, tx).await?;
        let object = Deadlist::create(&self.mos, tx).await?;
        let key = zapified_keys::LIVELIST;
        zap::add_u64(&self.mos, dir.object, key, object.0, tx).await?;
        self.features.incr(FEATURE, tx).await?;
        let list = Deadlist::open(&self.mos, object).await?;
        *dir.livelist.borrow_mut() = Some(Some(Rc::new(list)));
        Ok(())
    }

    /// Removes the livelist from a directory; the list itself is the caller's to destroy. Syncing context.
    async fn unset_livelist(&self, dir: &DslDir, tx: &Tx) -> Result<Option<ObjectId>> {
        assert!(tx.is_syncing(), "unset livelist happens in syncing context");
        let Some(list) = self.livelist_of(dir).await? else {
            return Ok(None);
        };
        zap::remove(&self.mos, dir.object, zapified_keys::LIVELIST, tx).await?;
        *dir.livelist.borrow_mut() = Some(None);
        Ok(Some(list.object()))
    }

    /// Destroys a directory's livelist, if it has one: it no longer equals the blocks that only the head has. Syncing context.
    pub(crate) async fn remove_livelist(&self, dir: &DslDir, tx: &Tx) -> Result<()> {
        assert!(
            tx.is_syncing(),
            "remove livelist happens in syncing context"
        );
        if let Some(object) = self.unset_livelist(dir, tx).await? {
            Deadlist::destroy(&self.mos, object, &self.empty_bpobj, tx).await?;
            self.features.decr(FEATURE, tx).await?;
        }
        Ok(())
    }

    /// Adds to a clone's livelist the blocks a pass wrote and freed. Syncing context.
    pub(crate) async fn update_livelist(
        &self,
        state: &DatasetState,
        list: &Deadlist,
        born: &[BlockPointer],
        freed: &[BlockPointer],
        tx: &Tx,
    ) -> Result<()> {
        assert!(
            tx.is_syncing(),
            "update livelist happens in syncing context"
        );
        let key = tx.txg().0 - 1;
        match list.newest().await? {
            None => list.add_key(key, &self.empty_bpobj, tx).await?,
            // Once in a txg: blocks born in one txg belong to one entry.
            Some((newest, Some(blocks))) if list.kept.get() != tx.txg() => {
                let written = blocks.blocks().saturating_sub(blocks.freed());
                if written > self.livelist_blocks_max() && newest < key {
                    list.add_key(key, &self.empty_bpobj, tx).await?;
                }
            }
            Some(_) => {}
        }
        let first = list.kept.replace(tx.txg()) != tx.txg();
        list.insert(born, &self.empty_bpobj, tx).await?;
        list.insert_freed(freed, &self.empty_bpobj, tx).await?;
        if first {
            self.condense(list, tx).await?;
        }
        let dir = state.dir();
        let (used, referenced) = (
            dir.phys().used_breakdown[UsedBy::Head as usize],
            state.phys().referenced_bytes,
        );
        if referenced != 0
            && referenced.saturating_sub(used).saturating_mul(100) / referenced
                <= SHARED_PERCENT_MIN
        {
            self.remove_livelist(&dir, tx).await?;
        }
        Ok(())
    }

    /// Merges two adjacent entries whose live blocks fit into one; the newest entry is left alone.
    async fn condense(&self, list: &Deadlist, tx: &Tx) -> Result<()> {
        let keys = list.keys();
        let settled = keys.len().saturating_sub(1);
        for pair in keys[..settled].windows(2) {
            let (first, next) = (list.list_at(pair[0]).await?, list.list_at(pair[1]).await?);
            let count = |list: &Option<Bpobj>| {
                let (blocks, freed) = list
                    .as_ref()
                    .map_or((0, 0), |list| (list.blocks(), list.freed()));
                blocks.saturating_sub(2 * freed)
            };
            if count(&first) + count(&next) >= self.livelist_blocks_max() {
                continue;
            }
            let mut live = Vec::new();
            for list in [first, next].into_iter().flatten() {
                live.extend(live_blocks(&self.mos, list.object()).await?);
            }
            list.clear_key(pair[0], &self.empty_bpobj, tx).await?;
            list.destroy_key(pair[1], &self.empty_bpobj, tx).await?;
            return list.insert(&live, &self.empty_bpobj, tx).await;
        }
        Ok(())
    }

    /// Queues the livelist of a clone that is being destroyed, if it has one: the clone itself need not be traversed.
    /// Returns whether it has. Syncing context.
    pub(crate) async fn queue_livelist(self: &Rc<Self>, dir: &Rc<DslDir>, tx: &Tx) -> Result<bool> {
        assert!(tx.is_syncing(), "queue livelist happens in syncing context");
        let Some(list) = self.livelist_of(dir).await? else {
            return Ok(false);
        };
        let sizes = list.totals();
        let d = dir.phys();
        if d.used_bytes != sizes.used || d.compressed_bytes != sizes.compressed {
            // It does not list all blocks of the clone.
            self.remove_livelist(dir, tx).await?;
            return Ok(false);
        }
        let Some(object) = self.unset_livelist(dir, tx).await? else {
            return Ok(false);
        };
        let mos = &self.mos;
        let mut queue = zap::lookup_u64(mos, OBJECT_DIRECTORY, DELETED_CLONES).await?;
        if queue.is_none() {
            let made = zap::create(mos, &ZapSpec::new(ObjectType::ZAP_METADATA), tx).await?;
            zap::add_u64(mos, OBJECT_DIRECTORY, DELETED_CLONES, made.0, tx).await?;
            queue = Some(made.0);
        }
        let queue = ObjectId(queue.unwrap_or_default());
        zap::add_int(mos, queue, object.0, tx).await?;
        self.async_destroy.set_deleted_clones(Some(queue));
        // Embedded blocks are in the clone's sums and in no list.
        let gone = Sizes {
            uncompressed: d.uncompressed_bytes,
            ..sizes
        };
        dir.did_use(UsedBy::Head, -Delta::from(gone));
        self.free_dir_did_use(Delta::from(sizes)).await?;
        Ok(true)
    }

    /// Frees up to `max` blocks of destroyed clones. Returns how many. Syncing context.
    pub(crate) async fn free_deleted_clones(self: &Rc<Self>, max: u64, tx: &Tx) -> Result<u64> {
        assert!(
            tx.is_syncing(),
            "free deleted clones happens in syncing context"
        );
        let Some(queue) = self.async_destroy.deleted_clones() else {
            return Ok(0);
        };
        let mut freed = 0;
        while self.async_destroy.deleted_clones() == Some(queue) && freed < max {
            freed += self.free_sublist(queue, max - freed, tx).await?;
        }
        Ok(freed)
    }

    async fn free_sublist(self: &Rc<Self>, queue: ObjectId, max: u64, tx: &Tx) -> Result<u64> {
        let mos = &self.mos;
        let first = zap::cursor(mos, queue, 0, 1).await?;
        let object = match first.first().map(|entry| &entry.value) {
            Some(ZapValue::U64(value)) if value.len() == 1 => ObjectId(value[0]),
            Some(_) => return Err(DslError::corrupt("list of deleted clones", queue)),
            None => {
                self.destroy_deleted_clones(queue, tx).await?;
                return Ok(0);
            }
        };
        let list = Deadlist::open(mos, object).await?;
        let Some(key) = list.keys().first().copied() else {
            zap::remove_int(mos, queue, object.0, tx).await?;
            Deadlist::destroy(mos, object, &self.empty_bpobj, tx).await?;
            self.features.decr(FEATURE, tx).await?;
            if zap::count(mos, queue).await? == 0 {
                self.destroy_deleted_clones(queue, tx).await?;
            }
            return Ok(0);
        };
        let mut left = match self.async_destroy.take_sublist(object, key) {
            Some(left) => left,
            None => SublistFrees {
                livelist: object,
                key,
                blocks: match list.list_at(key).await? {
                    Some(entry) => live_blocks(mos, entry.object()).await?,
                    None => Vec::new(),
                },
            },
        };
        let now = left
            .blocks
            .len()
            .min(usize::try_from(max).unwrap_or(usize::MAX));
        let blocks = left.blocks.split_off(left.blocks.len() - now);
        let store = self.services.store().clone();
        let mut sizes = Sizes::default();
        for bp in &blocks {
            sizes.add(sizes_of(bp, store.dsize(bp)));
            self.services.cache().forget(bp);
            store.free(tx.txg(), bp).await?;
        }
        self.free_dir_did_use(-Delta::from(sizes)).await?;
        if left.blocks.is_empty() {
            list.clear_key(key, &self.empty_bpobj, tx).await?;
            list.destroy_key(key, &self.empty_bpobj, tx).await?;
        } else {
            // Freed blocks are marked in the entry, so that an import after a crash continues behind them.
            list.insert_freed(&blocks, &self.empty_bpobj, tx).await?;
            self.async_destroy.keep_sublist(left);
        }
        Ok(blocks.len() as u64)
    }

    async fn destroy_deleted_clones(&self, queue: ObjectId, tx: &Tx) -> Result<()> {
        zap::remove(&self.mos, OBJECT_DIRECTORY, DELETED_CLONES, tx).await?;
        self.mos.free_object(queue, tx).await?;
        self.async_destroy.set_deleted_clones(None);
        Ok(())
    }
}
