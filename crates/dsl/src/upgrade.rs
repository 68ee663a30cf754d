//! The upgrade of a pool to a newer version: what the hierarchy of datasets lacks for it is made in one txg.
//!
//! ```text
//!  to 11   $ORIGIN, which all datasets descend from; snapshots list their clones
//!  to 26   $FREE and the list of blocks to be freed; directories list their clones
//!  to 5000 the objects that count features
//! ```
//! Deadlists change with the next snapshot of each dataset, see `flat_deadlist`.
//!
//! OpenZFS: module/zfs/spa.c, spa_sync_upgrades; module/zfs/dsl_pool.c, dsl_pool_upgrade_clones and dsl_pool_upgrade_dir_clones.

use std::rc::Rc;

use dmu::Tx;
use dmu::zap::{self, ZapSpec};
use ondisk::{ObjectId, ObjectType, pool_version};

use crate::bpobj::Bpobj;
use crate::dataset_state::DatasetState;
use crate::dsl_pool::DslPool;
use crate::error::{DslError, Result};
use crate::object_directory::{FREE_BPOBJ, LIST_BLOCK, OBJECT_DIRECTORY};

impl DslPool {
    /// Makes the pool one of version `to`, which is newer. Syncing context.
    pub(crate) async fn upgrade(self: &Rc<Self>, to: u64, tx: &Tx) -> Result<()> {
        assert!(tx.is_syncing(), "a pool is upgraded in syncing context");
        let from = self.features.pool_version();
        assert!(
            pool_version::is_known(to) && to > from,
            "a pool is upgraded to a newer version"
        );
        let passes = |version: u64| from < version && to >= version;
        let root = self.dir(self.root_dir()).await?;
        if passes(pool_version::ORIGIN) {
            self.create_origin(&root, tx).await?;
            self.list_clones_of_snapshots(tx).await?;
        }
        if passes(pool_version::DEADLISTS) {
            self.create_free_dir(&root, tx).await?;
            let list = Bpobj::create(&self.mos, LIST_BLOCK, tx).await?;
            zap::add_u64(&self.mos, OBJECT_DIRECTORY, FREE_BPOBJ, list.0, tx).await?;
            let list = Bpobj::open(&self.mos, list).await?;
            self.async_destroy.set_free_bpobj(list);
            self.list_clones_of_dirs(tx).await?;
        }
        self.features.set_pool_version(to, tx).await?;
        self.apply_mos_policy();
        self.refresh_properties(&root).await
    }

    /// Lists in each snapshot its clones, and makes the oldest snapshot, or head, of each dataset that is no clone one of the
    /// empty snapshot.
    async fn list_clones_of_snapshots(self: &Rc<Self>, tx: &Tx) -> Result<()> {
        for dir in self.all_dirs().await? {
            let head = self.head_of(&dir).await?;
            let (first, origin) = self.first_of_line(head).await?;
            let origin = match origin {
                Some(origin) => origin,
                None => self.descend_from_origin(&first, tx).await?,
            };
            let mut clones = ObjectId(origin.phys().next_clones_obj);
            if clones.0 == 0 {
                let spec = ZapSpec::new(ObjectType::NEXT_CLONES);
                clones = zap::create(&self.mos, &spec, tx).await?;
                origin.change(|o| o.next_clones_obj = clones.0);
            }
            zap::add_int(&self.mos, clones, first.object.0, tx).await?;
        }
        Ok(())
    }

    /// The oldest dataset in the line of a head: a snapshot or the head itself; and the snapshot it is a clone of.
    async fn first_of_line(
        self: &Rc<Self>,
        head: Rc<DatasetState>,
    ) -> Result<(Rc<DatasetState>, Option<Rc<DatasetState>>)> {
        let mut at = head;
        loop {
            let phys = at.phys();
            if phys.prev_snap_obj == 0 {
                return Ok((at, None));
            }
            let prev = self
                .load_dataset(ObjectId(phys.prev_snap_obj), None)
                .await?;
            if prev.phys().next_snap_obj != at.object.0 {
                return Ok((at, Some(prev)));
            }
            if prev.phys().prev_snap_txg >= prev.phys().creation_txg {
                return Err(DslError::corrupt("chain of snapshots", prev.object));
            }
            at = prev;
        }
    }

    /// Makes the empty snapshot the previous one of a dataset that has none. Returns it.
    async fn descend_from_origin(
        self: &Rc<Self>,
        first: &Rc<DatasetState>,
        tx: &Tx,
    ) -> Result<Rc<DatasetState>> {
        assert!(tx.is_syncing(), "a pool is upgraded in syncing context");
        let object = self.special().origin_snap;
        let object = object.ok_or_else(|| DslError::corrupt("$ORIGIN", OBJECT_DIRECTORY))?;
        let origin = self.load_dataset(object, None).await?;
        let txg = origin.phys().creation_txg;
        first.change(|f| {
            f.prev_snap_obj = object.0;
            f.prev_snap_txg = txg;
        });
        if !first.phys().is_snapshot() {
            *first.prev.borrow_mut() = Some(origin.clone());
        }
        first.dir().change(|d| d.origin_obj = object.0);
        origin.change(|o| o.num_children += 1);
        Ok(origin)
    }

    /// Lists in each directory the heads that are clones of its snapshots.
    async fn list_clones_of_dirs(self: &Rc<Self>, tx: &Tx) -> Result<()> {
        for dir in self.all_dirs().await? {
            let d = dir.phys();
            if d.origin_obj == 0 {
                continue;
            }
            let origin = self.dataset_phys(ObjectId(d.origin_obj)).await?;
            let above = self.dir(ObjectId(origin.dir_obj)).await?;
            let clones = self.clones_of(&above, tx).await?;
            zap::add_int(&self.mos, clones, d.head_dataset_obj, tx).await?;
        }
        Ok(())
    }
}
