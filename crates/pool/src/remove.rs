//! Devices that leave a pool for good: spares, cache devices, log vdevs (`zpool remove`).
//!
//! A log vdev takes no new blocks from the moment it is to go; the intent logs on it end by themselves when the txgs
//! they hold records of have synced. Then it holds nothing, and its place becomes a hole.
// OpenZFS: module/zfs/vdev_removal.c, spa_vdev_remove and spa_vdev_remove_log

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use dmu::{Tx, zap};
use ondisk::{Guid, NvList, ObjectId, pool_version};
use vdev::{VdevConfig, labels};

use crate::auxiliary::AuxiliaryKind;
use crate::pool::{ImportedPool, Pool};
use crate::{PoolError, log_space_map, sync};

/// How often the intent logs are asked to leave a vdev, each time a txg apart: a log that is written all the time moves
/// on with its next blocks.
const RETIRE_TRIES: u32 = 64;
/// What is waited between two tries, once the first ones did not suffice.
const RETIRE_PAUSE: Duration = Duration::from_millis(50);

impl Pool {
    /// Takes a device out of the pool for good (`zpool remove`). A spare that is not in use, a cache device, or a log vdev is
    /// no part of the pool any more on return, also after a crash, and may be used for something else. A vdev that holds data
    /// takes no more blocks on return, and is being evacuated in the background ([`PoolStatus`](crate::PoolStatus) tells how
    /// far), also after another import.
    ///
    /// # Errors
    /// `NoSuchDevice`; `InUse` for a spare that stands in for a device, or a log vdev with an intent log that has not been
    /// replayed yet, or while another vdev is being evacuated; `Invalid` for devices that are not a vdev, and where sectors or
    /// layouts differ; `NoSpace` when the others have no room for what it has; `ReadOnly`, `Suspended`.
    pub async fn remove(&self, guid: u64) -> Result<(), PoolError> {
        let imported = &self.0;
        imported.writable()?;
        imported.refuse_with_checkpoint()?;
        let guid = Guid(guid);
        for kind in [AuxiliaryKind::Spare, AuxiliaryKind::Cache] {
            if imported.auxiliary_devices(kind).find(guid).is_some() {
                return imported.remove_auxiliary(kind, guid).await;
            }
        }
        let tops = imported.tree().config().tops;
        let Some(top) = tops.iter().find(|top| top.guid == guid) else {
            let known = imported.leaves_below(guid.0).is_ok();
            return Err(if known {
                PoolError::Invalid("operation not supported on this type of vdev".into())
            } else {
                PoolError::NoSuchDevice
            });
        };
        let id = u32::try_from(top.id).map_err(|_| PoolError::NoSuchDevice)?;
        match top.is_log {
            true => imported.remove_log(id).await,
            false => imported.remove_data(id).await,
        }
    }
}

impl ImportedPool {
    async fn remove_auxiliary(
        self: &Rc<Self>,
        kind: AuxiliaryKind,
        guid: Guid,
    ) -> Result<(), PoolError> {
        if kind == AuxiliaryKind::Spare && self.is_in_tree(guid) {
            return Err(PoolError::InUse(
                "Pool busy; removal may already be in progress",
            ));
        }
        let device = self
            .auxiliary_devices(kind)
            .find(guid)
            .ok_or(PoolError::NoSuchDevice)?;
        if device.is_distributed() {
            // It is removed with its draid only.
            return Err(PoolError::Invalid(
                "operation not supported on this type of pool".into(),
            ));
        }
        let path = device.config.path.clone().unwrap_or_default();
        self.run_in_sync(async move |imported: Rc<Self>, tx: Rc<Tx>| {
            imported.auxiliary_devices(kind).remove(guid);
            imported.write_auxiliaries(&tx).await?;
            // OpenZFS: module/zfs/vdev_removal.c, spa_vdev_remove
            let word = match kind {
                AuxiliaryKind::Spare => "spare",
                AuxiliaryKind::Cache => "l2cache",
            };
            let name = imported.config.name();
            let text = format!("{name} vdev ({word}) {path}");
            imported.log_internal("vdev remove", &text, &tx).await
        })
        .await?;
        let gone = NvList::new().with("vdev_guid", guid.0);
        self.notify("vdev_remove_aux", None, gone);
        self.cache().remove_device(guid.0).await;
        self.unlabel_auxiliary(&device).await;
        Ok(())
    }

    async fn remove_log(self: &Rc<Self>, id: u32) -> Result<(), PoolError> {
        if !self.hierarchy().features().has_version(pool_version::HOLES) {
            return Err(PoolError::Invalid(
                "pool must be upgraded to support log removal".into(),
            ));
        }
        self.empty_log_vdev(id).await?;
        self.stop_rebuild(id).await;
        let disks = Rc::new(RefCell::new(Vec::new()));
        let kept = disks.clone();
        self.run_in_sync(async move |imported: Rc<Self>, tx: Rc<Tx>| {
            let (top, disks) = imported.tree().remove_top(id)?;
            kept.replace(disks);
            imported.store().remove_vdev(id);
            let long_headers = imported.space().remove_vdev(id, &tx).await?;
            imported.free_top_objects(long_headers, &top, &tx).await?;
            imported.dirty_config();
            let text = format!(
                "{} vdev (log) {}",
                imported.config.name(),
                top.path.as_deref().unwrap_or("-")
            );
            imported.log_internal("vdev remove", &text, &tx).await
        })
        .await?;
        self.notify("vdev_remove_dev", None, NvList::new());
        // Only now: until the txg was durable they were the pool's.
        for disk in disks.take() {
            drop(labels::clear(&disk).await);
        }
        Ok(())
    }

    /// Allocates nothing more on a log vdev and waits until nothing is left there. It takes blocks again when that fails.
    pub(crate) async fn empty_log_vdev(&self, id: u32) -> Result<(), PoolError> {
        self.store().set_allocating(id, false);
        let emptied = self.wait_until_empty(id).await;
        if emptied.is_err() {
            self.store().set_allocating(id, true);
        }
        emptied
    }

    /// Waits until nothing is allocated on a log vdev that takes no new blocks.
    async fn wait_until_empty(&self, id: u32) -> Result<(), PoolError> {
        self.retire_logs_until(async || {
            let space = self.store().vdev_space(id);
            Ok(space.allocated == 0 && space.deferred == 0)
        })
        .await
    }

    /// Asks the intent logs to leave their blocks, txg by txg, until that was enough.
    pub(crate) async fn retire_logs_until(
        &self,
        is_enough: impl AsyncFn() -> Result<bool, PoolError>,
    ) -> Result<(), PoolError> {
        for attempt in 0..RETIRE_TRIES {
            if is_enough().await? {
                return Ok(());
            }
            self.hierarchy().retire_logs();
            if attempt > 4 {
                self.handle().sleep(RETIRE_PAUSE).await;
            }
            let txg = self.clock().open_txg();
            self.clock().kick();
            self.clock().wait_synced(txg).await?;
        }
        Err(PoolError::InUse("Mount encrypted datasets to replay logs."))
    }

    /// Frees the objects of a top-level vdev that has gone, and of its leaves; its space maps are freed already,
    /// `long_headers` of them with a long header. Syncing context.
    pub(crate) async fn free_top_objects(
        &self,
        long_headers: u64,
        top: &VdevConfig,
        tx: &Tx,
    ) -> Result<(), PoolError> {
        assert!(
            tx.is_syncing(),
            "free top objects happens in syncing context"
        );
        for _ in 0..long_headers {
            self.hierarchy()
                .features()
                .decr("spacemap_histogram", tx)
                .await?;
        }
        self.forget_rebuild_of(top.id, tx).await?;
        for leaf in sync::leaves_of(top) {
            self.free_leaf_objects(leaf, tx).await?;
        }
        if let Some(object) = top.zap_top {
            let map = self.objects.get().vdev_zap_map;
            log_space_map::free_list(self.mos(), ObjectId(object), tx).await?;
            zap::remove_int(self.mos(), map, object, tx).await?;
            self.mos().free_object(ObjectId(object), tx).await?;
        }
        Ok(())
    }
}
