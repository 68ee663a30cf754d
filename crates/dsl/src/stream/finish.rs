//! The end of a receive: what was filled becomes the dataset's contents and a snapshot of it.
//!
//! OpenZFS: module/zfs/dmu_recv.c, dmu_recv_end_sync.

use std::rc::Rc;

use dmu::Tx;
use ondisk::ObjectId;
use ondisk::dsl::dataset_flags;

use super::incoming::Incoming;
use super::target::ReceiveTarget;
use crate::change_log::Concerned;
use crate::dataset_state::DatasetState;
use crate::dsl_pool::DslPool;
use crate::error::{DslError, Result};
use crate::hierarchy::Hierarchy;
use crate::namecheck;

/// How far a received file system may exceed its reference quota: the sender let one transaction exceed it, which takes at most so much.
// OpenZFS: module/zfs/dsl_dataset.c, dsl_dataset_clone_swap_check_impl; DMU_MAX_ACCESS times spa_asize_inflation
const QUOTA_SLACK_BYTES: u64 = 24 * (64 << 20);

impl Hierarchy {
    /// Makes the snapshot of a new dataset that was filled.
    pub(super) async fn finish_new(
        &self,
        name: &str,
        snapshot: &str,
        incoming: &Incoming,
    ) -> Result<()> {
        self.pool().services.clock.sync_all().await?;
        let request = Rc::new((format!("{name}@{snapshot}"), incoming.clone()));
        let concerned = Concerned::subtree(name);
        self.until_done(&concerned, || {
            let request = Rc::clone(&request);
            async move |this: &Self, tx: &Tx| {
                let (name, incoming) = &*request;
                let pool = this.pool();
                let found = pool.find(namecheck::split(name).head).await?;
                let head = pool.load_dataset(found.dataset, None).await?;
                pool.check_settled(&head, tx)?;
                this.apply(async {
                    pool.clear_resume_state(head.object, tx).await?;
                    pool.finish_snapshot(&head, name, incoming, tx).await
                })
                .await
            }
        })
        .await
    }

    /// Puts the contents of the hidden clone in the place of the dataset's, makes the snapshot, and destroys the clone. With `force`,
    /// snapshots that are younger than the one it is a clone of are destroyed.
    pub(super) async fn finish_clone(
        &self,
        target: &ReceiveTarget,
        clone: &str,
        incoming: &Incoming,
    ) -> Result<()> {
        self.pool().services.clock.sync_all().await?;
        let request = Rc::new((target.clone(), clone.to_owned(), incoming.clone()));
        let concerned = Concerned::subtree(&target.dataset);
        self.until_done(&concerned, || {
            let request = Rc::clone(&request);
            async move |this: &Self, tx: &Tx| {
                let (target, clone, incoming) = &*request;
                let name = &target.dataset;
                let pool = this.pool();
                let head = pool.find(name).await?;
                let head = pool.load_dataset(head.dataset, None).await?;
                let clone = pool.find(clone).await?;
                let clone = pool.load_dataset(clone.dataset, None).await?;
                pool.check_settled(&head, tx)?;
                pool.check_settled(&clone, tx)?;
                let younger = pool.younger_snapshots(&head, &clone, target).await?;
                let quota = head.ref_quota.get();
                if quota != 0
                    && clone.phys().referenced_bytes > quota.saturating_add(QUOTA_SLACK_BYTES)
                {
                    return Err(DslError::Quota { name: name.clone() });
                }
                let snapshot = format!("{name}@{}", target.snapshot);
                this.apply(async {
                    for old in &younger {
                        pool.destroy_snapshot(old, false, tx).await?;
                    }
                    pool.swap_heads(&head, &clone, tx).await?;
                    head.dir().kind.set(Some(incoming.kind()?));
                    pool.finish_snapshot(&head, &snapshot, incoming, tx).await?;
                    pool.destroy_head(&clone, tx).await
                })
                .await
            }
        })
        .await
    }
}

impl DslPool {
    /// The snapshots between a head and the snapshot that its hidden clone was made of: they go.
    async fn younger_snapshots(
        self: &Rc<Self>,
        head: &DatasetState,
        clone: &DatasetState,
        target: &ReceiveTarget,
    ) -> Result<Vec<Rc<DatasetState>>> {
        let name = &target.dataset;
        let base = clone.phys().prev_snap_obj;
        let mut at = head.phys().prev_snap_obj;
        let mut younger = Vec::new();
        while at != base {
            let snapshot = self.load_dataset(ObjectId(at), None).await?;
            let phys = snapshot.phys();
            // Without -F, one was taken meanwhile.
            if !target.force || phys.dir_obj != head.phys().dir_obj {
                return Err(DslError::NoSource { name: name.clone() });
            }
            self.check_not_immutable(&phys).await?;
            if snapshot.handles() != 0 || self.keeping_refs(&phys).await? > 0 {
                return Err(DslError::Busy { name: name.clone() });
            }
            if phys.num_children > 1 {
                return Err(DslError::HasClones { name: name.clone() });
            }
            at = phys.prev_snap_obj;
            younger.push(snapshot);
        }
        Ok(younger)
    }

    /// Waits for handles and for what is on its way to the disks.
    fn check_settled(&self, state: &DatasetState, tx: &Tx) -> Result<()> {
        let name = || self.name_of(&state.dir());
        if state.handles() != 0 {
            return Err(DslError::Busy { name: name() });
        }
        let dirty = state.objset().is_some_and(|os| os.is_dirty(tx.txg()));
        if dirty || state.is_dirty_later(tx.txg()) || state.phys().prev_snap_txg >= tx.txg().0 {
            return Err(DslError::Again);
        }
        Ok(())
    }

    /// Takes the snapshot that was received: with the guid and time of the sender's. Syncing context.
    async fn finish_snapshot(
        self: &Rc<Self>,
        head: &Rc<DatasetState>,
        name: &str,
        incoming: &Incoming,
        tx: &Tx,
    ) -> Result<()> {
        assert!(tx.is_syncing(), "a receive ends in syncing context");
        head.change(|head| head.flags &= !dataset_flags::INCONSISTENT);
        let snapshot = self.create_snapshot(name, tx).await?;
        snapshot.change(|snapshot| {
            snapshot.guid = incoming.begin.to_guid;
            snapshot.creation_time = incoming.begin.creation_time;
        });
        if let Some(raw) = &incoming.raw {
            self.rewrap_received(&head.dir(), raw, tx).await?;
            self.take_ivset(snapshot.object, raw, tx).await?;
        }
        Ok(())
    }
}
