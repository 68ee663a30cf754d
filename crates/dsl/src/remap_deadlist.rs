//! Pointers to removed vdevs that OpenZFS has replaced in a dataset by those to the new places, while an older snapshot still
//! has the old ones.
//!
//! ```text
//!  dataset    com.delphix:remap_deadlist -> deadlist of the old pointers (vdev, offset, size and birth only)
//!  directory  com.delphix:obsolete_bpobj -> the same of those no snapshot has any more: they are to be noted for their vdev
//! ```
//! A list moves with the dataset's deadlist: to the snapshot when one is taken, to the next dataset when that is
//! destroyed. Pointers are not remapped here, so that only OpenZFS creates lists, except that the destruction of a snapshot
//! may create one for the next dataset. The feature `obsolete_counts` counts each list.
//! Guarantees: what is noted as obsolete is what no dataset has in its old place.
//! Does not know tables of removed vdevs.
// OpenZFS: module/zfs/dsl_dataset.c, dsl_dataset_create_remap_deadlist; dsl_destroy.c,
// dsl_destroy_snapshot_handle_remaps; dsl_scan.c, dsl_process_async_destroys

use dmu::{Tx, zap};
use ondisk::dsl::zapified_keys::REMAP_DEADLIST;
use ondisk::{ObjectId, ObjectType};

use crate::bpobj::Bpobj;
use crate::dataset_state::DatasetState;
use crate::deadlist::Deadlist;
use crate::dsl_pool::DslPool;
use crate::error::{DslError, Result};
use crate::object_directory::{LIST_BLOCK, OBJECT_DIRECTORY, OBSOLETE_BPOBJ};

const FEATURE: &str = "obsolete_counts";

impl DslPool {
    /// The list of a dataset, if it has one.
    async fn remap_deadlist_of(&self, dataset: ObjectId) -> Result<Option<ObjectId>> {
        if !self.features.is_active(FEATURE)
            || self.mos.object_info(dataset).await?.object_type != ObjectType::ZAP_METADATA
        {
            return Ok(None);
        }
        let found = zap::lookup_u64(&self.mos, dataset, REMAP_DEADLIST).await?;
        Ok(found.map(ObjectId))
    }

    /// Removes the list from a dataset; the list itself is the caller's. Syncing context.
    async fn unset_remap_deadlist(&self, dataset: ObjectId, tx: &Tx) -> Result<Option<ObjectId>> {
        assert!(
            tx.is_syncing(),
            "unset remap deadlist happens in syncing context"
        );
        let found = self.remap_deadlist_of(dataset).await?;
        if found.is_some() {
            zap::remove(&self.mos, dataset, REMAP_DEADLIST, tx).await?;
        }
        Ok(found)
    }

    async fn set_remap_deadlist(&self, dataset: ObjectId, list: ObjectId, tx: &Tx) -> Result<()> {
        self.zapify(dataset, tx).await?;
        Ok(zap::add_u64(&self.mos, dataset, REMAP_DEADLIST, list.0, tx).await?)
    }

    /// Exchanges the lists of two heads. Syncing context.
    pub(crate) async fn swap_remap_deadlists(
        &self,
        head: ObjectId,
        clone: ObjectId,
        tx: &Tx,
    ) -> Result<()> {
        let of_head = self.unset_remap_deadlist(head, tx).await?;
        let of_clone = self.unset_remap_deadlist(clone, tx).await?;
        if let Some(list) = of_clone {
            self.set_remap_deadlist(head, list, tx).await?;
        }
        if let Some(list) = of_head {
            self.set_remap_deadlist(clone, list, tx).await?;
        }
        Ok(())
    }

    /// Gives a head's list to the snapshot just taken of it. Syncing context.
    pub(crate) async fn move_remap_deadlist(
        &self,
        head: ObjectId,
        snapshot: ObjectId,
        tx: &Tx,
    ) -> Result<()> {
        assert!(
            tx.is_syncing(),
            "move remap deadlist happens in syncing context"
        );
        match self.unset_remap_deadlist(head, tx).await? {
            Some(list) => self.set_remap_deadlist(snapshot, list, tx).await,
            None => Ok(()),
        }
    }

    /// Destroys the list of a head that is destroyed or rolled back: the snapshot has the old pointers, too. Syncing context.
    pub(crate) async fn destroy_remap_deadlist(&self, head: ObjectId, tx: &Tx) -> Result<()> {
        assert!(
            tx.is_syncing(),
            "destroy remap deadlist happens in syncing context"
        );
        let Some(list) = self.unset_remap_deadlist(head, tx).await? else {
            return Ok(());
        };
        Deadlist::destroy(&self.mos, list, &self.empty_bpobj, tx).await?;
        self.features.decr(FEATURE, tx).await
    }

    /// Old locations that only the destroyed snapshot referred to become obsolete; the rest of its list moves to the next dataset.
    /// Syncing context, when the deadlist of the next dataset has the keys it is to keep.
    pub(crate) async fn merge_remap_deadlist_into_next(
        &self,
        snapshot: &DatasetState,
        next: &DatasetState,
        tx: &Tx,
    ) -> Result<()> {
        assert!(
            tx.is_syncing(),
            "merge remap deadlist into next happens in syncing context"
        );
        let mut of_next = match self.remap_deadlist_of(next.object).await? {
            Some(object) => Some(Deadlist::open(&self.mos, object).await?),
            None => None,
        };
        if let Some(list) = &of_next {
            let obsolete = self.open_obsolete_bpobj(tx).await?;
            let since = snapshot.phys().prev_snap_txg;
            list.move_to(&obsolete, since, &self.empty_bpobj, tx)
                .await?;
        }
        let Some(object) = self.unset_remap_deadlist(snapshot.object, tx).await? else {
            return Ok(());
        };
        let own = Deadlist::open(&self.mos, object).await?;
        if of_next.is_none() {
            let keys = self.deadlist_of(next).await?;
            let newest = ObjectId(next.phys().prev_snap_obj);
            let list = self
                .clone_deadlist(&keys, u64::MAX, newest, None, tx)
                .await?;
            self.set_remap_deadlist(next.object, list.object(), tx)
                .await?;
            self.features.incr(FEATURE, tx).await?;
            of_next = Some(list);
        }
        if let Some(list) = &of_next {
            list.merge(&own, &self.empty_bpobj, tx).await?;
        }
        self.features.decr(FEATURE, tx).await
    }

    /// Drops a key from a head's list, as from its deadlist. Syncing context.
    pub(crate) async fn remove_remap_key(&self, head: ObjectId, key: u64, tx: &Tx) -> Result<()> {
        assert!(
            tx.is_syncing(),
            "remove remap key happens in syncing context"
        );
        let Some(object) = self.remap_deadlist_of(head).await? else {
            return Ok(());
        };
        let list = Deadlist::open(&self.mos, object).await?;
        list.remove_key(key, &self.empty_bpobj, tx).await
    }

    /// Looks for the pool's list.
    pub(crate) async fn load_obsolete_bpobj(&self) -> Result<()> {
        if self.features.is_active(FEATURE) {
            let found = zap::lookup_u64(&self.mos, OBJECT_DIRECTORY, OBSOLETE_BPOBJ).await?;
            let object = found.filter(|object| *object != 0).map(ObjectId);
            if let Some(object) = object.filter(|_| !self.read_only) {
                Bpobj::open(&self.mos, object).await?;
            }
            self.async_destroy.set_obsolete_bpobj(object);
        }
        Ok(())
    }

    /// The pool's list, made when there is none. Syncing context.
    async fn open_obsolete_bpobj(&self, tx: &Tx) -> Result<Bpobj> {
        assert!(
            tx.is_syncing(),
            "open obsolete bpobj happens in syncing context"
        );
        let object = match self.async_destroy.obsolete_bpobj() {
            Some(object) => object,
            None => {
                let object = Bpobj::create(&self.mos, LIST_BLOCK, tx).await?;
                zap::add_u64(&self.mos, OBJECT_DIRECTORY, OBSOLETE_BPOBJ, object.0, tx).await?;
                self.features.incr(FEATURE, tx).await?;
                self.async_destroy.set_obsolete_bpobj(Some(object));
                object
            }
        };
        Bpobj::open(&self.mos, object).await
    }

    /// Marks up to `max` pointers of the pool's list obsolete at their vdevs; the emptied list is destroyed. Returns how many.
    /// After an error the rest is kept for the next import: indirect mappings longer than needed do no harm. Syncing context.
    pub(crate) async fn drain_obsolete_bpobj(&self, max: u64, tx: &Tx) -> Result<u64> {
        assert!(
            tx.is_syncing(),
            "drain obsolete bpobj happens in syncing context"
        );
        let Some(object) = self.async_destroy.obsolete_bpobj() else {
            return Ok(0);
        };
        let list = Bpobj::open(&self.mos, object).await?;
        let store = self.services.store();
        let mut wrong = false;
        let noted = list
            .drain(max, tx, async |blocks, _| {
                for bp in blocks {
                    let [place, ..] = bp.dvas();
                    let range = place.offset..place.offset.saturating_add(place.asize);
                    let noted = store.note_obsolete(tx.txg(), place.vdev, &range);
                    wrong |= noted.is_err();
                }
                Ok(())
            })
            .await;
        if wrong {
            let error = DslError::corrupt("list of obsolete pointers", object);
            self.async_destroy.suspend(error);
        }
        let noted = match noted {
            Ok(noted) => noted,
            Err(error) => {
                self.async_destroy.suspend(error);
                return Ok(0);
            }
        };
        if list.is_empty() {
            zap::remove(&self.mos, OBJECT_DIRECTORY, OBSOLETE_BPOBJ, tx).await?;
            Bpobj::destroy(&self.mos, object, tx).await?;
            self.features.decr(FEATURE, tx).await?;
            self.async_destroy.set_obsolete_bpobj(None);
        }
        Ok(noted)
    }
}
