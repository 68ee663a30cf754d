//! Deadlists of datasets made before version 26: one list of all blocks, in the order in which they died.
//!
//! Destroying a snapshot looks at every block on the list of the next dataset, and frees the blocks at once. The first snapshot
//! taken after an upgrade of the pool gives a dataset a deadlist with entries.
//!
//! OpenZFS: module/zfs/dsl_destroy.c, process_old_deadlist; module/zfs/dsl_deadlist.c, dsl_deadlist_regenerate.

use std::rc::Rc;

use dmu::Tx;
use ondisk::dsl::UsedBy;
use ondisk::{BlockPointer, ObjectId, pool_version};

use crate::bpobj::Bpobj;
use crate::dataset_state::DatasetState;
use crate::deadlist::Deadlist;
use crate::dsl_pool::DslPool;
use crate::error::{DslError, Result};
use crate::object_directory::LIST_BLOCK;
use crate::space::{Delta, Sizes, sizes_of};

impl DslPool {
    /// Makes an empty deadlist for a dataset, of the form of the pool's version. Syncing context.
    pub(crate) async fn create_deadlist(&self, tx: &Tx) -> Result<ObjectId> {
        assert!(tx.is_syncing(), "a deadlist is made in syncing context");
        let version = self.features.pool_version();
        if version >= pool_version::DEADLISTS {
            Deadlist::create(&self.mos, tx).await
        } else {
            Bpobj::create_of_version(&self.mos, LIST_BLOCK, version, tx).await
        }
    }

    /// Makes an empty deadlist with the entries of another one that are older than `before`, and one for `added`. Where that one is
    /// flat the older ones follow from the snapshots from `newest` back. Syncing context.
    pub(crate) async fn clone_deadlist(
        &self,
        of: &Deadlist,
        before: u64,
        newest: ObjectId,
        added: Option<u64>,
        tx: &Tx,
    ) -> Result<Deadlist> {
        assert!(tx.is_syncing(), "a deadlist is made in syncing context");
        if of.flat().is_none() {
            return of.clone_keys(before, added, &self.empty_bpobj, tx).await;
        }
        let object = self.create_deadlist(tx).await?;
        let list = Deadlist::open(&self.mos, object).await?;
        if list.flat().is_some() {
            return Ok(list);
        }
        let mut at = newest;
        let mut seen = u64::MAX;
        while at.0 != 0 {
            let phys = self.dataset_phys(at).await?;
            // Snapshots are listed from the youngest on.
            if phys.creation_txg >= seen {
                return Err(DslError::corrupt("chain of snapshots", at));
            }
            seen = phys.creation_txg;
            list.add_key(phys.prev_snap_txg, &self.empty_bpobj, tx)
                .await?;
            at = ObjectId(phys.prev_snap_obj);
        }
        if let Some(key) = added {
            list.add_key(key, &self.empty_bpobj, tx).await?;
        }
        Ok(list)
    }

    /// Frees the blocks that only a destroyed snapshot referred to: they are on the flat deadlist `list` of the next dataset. What
    /// is left of that and the snapshot's own deadlist becomes that of the next dataset. `prev` is the previous snapshot
    /// when this one is its next. Syncing context.
    pub(crate) async fn free_from_flat_deadlist(
        self: &Rc<Self>,
        state: &Rc<DatasetState>,
        next: &Rc<DatasetState>,
        list: &Deadlist,
        prev: Option<&Rc<DatasetState>>,
        tx: &Tx,
    ) -> Result<()> {
        let s = state.phys();
        let own = self.deadlist_of(state).await?;
        let dead = list.flat().expect("the caller looked");
        let store = self.services.store().clone();
        let older = prev.map(|prev| prev.phys().prev_snap_txg);
        let (mut freed, mut unique_to_prev) = (Sizes::default(), 0);
        dead.each_chunk(async |blocks| {
            let (kept, gone): (Vec<BlockPointer>, Vec<BlockPointer>) = blocks
                .iter()
                .partition(|bp| bp.birth().0 <= s.prev_snap_txg);
            for bp in &kept {
                if older.is_some_and(|older| bp.birth().0 > older) {
                    unique_to_prev += store.dsize(bp);
                }
            }
            own.insert(&kept, &self.empty_bpobj, tx).await?;
            for bp in &gone {
                freed.add(sizes_of(bp, store.dsize(bp)));
            }
            self.free_blocks(&gone, tx).await
        })
        .await?;
        if let Some(prev) = prev {
            prev.change(|p| p.unique_bytes += unique_to_prev);
        }
        state.dir().did_use(UsedBy::Snapshots, -Delta::from(freed));
        Bpobj::destroy(&self.mos, list.object(), tx).await?;
        next.change(|n| n.deadlist_obj = own.object().0);
        *state.deadlist.borrow_mut() = None;
        *next.deadlist.borrow_mut() = Some(own);
        Ok(())
    }
}
