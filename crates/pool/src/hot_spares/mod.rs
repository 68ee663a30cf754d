//! Hot spares in use: activated for devices that failed, returned to the list when they are no longer needed.
//!
//! A spare keeps its guid while it is part of the tree, and its place in the pool's list. When the device it stands in for
//! is detached, it takes that place for good and leaves the list.
// OpenZFS: module/zfs/spa.c, spa_vdev_attach, spa_vdev_detach; cmd/zed/agents/zfs_retire.c, replace_with_spare

mod state;

use std::rc::Rc;

use ondisk::Guid;
use vdev::{DiskUse, VdevConfig, VdevKind};

pub(crate) use self::state::HotSpares;
use crate::PoolError;
use crate::auxiliary::{AuxiliaryDevice, AuxiliaryKind};
use crate::config::STATE_SPARE;
use crate::pool::{ImportedPool, Pool};

impl ImportedPool {
    /// Refuses a spare that another pool uses at present, and one for a vdev that takes none.
    pub(crate) async fn check_spare(
        &self,
        spare: &AuxiliaryDevice,
        target: Guid,
    ) -> Result<(), PoolError> {
        if self.is_in_tree(spare.config.guid) {
            return Err(PoolError::Invalid(
                "device is already in use as a spare".into(),
            ));
        }
        let config = self.tree().config();
        let top = config.tops.iter().find(|top| top.holds(target));
        let Some(top) = top else {
            return Err(PoolError::NoSuchDevice);
        };
        if top.allocation_bias() != vdev::AllocationBias::None {
            // OpenZFS: lib/libzfs/libzfs_pool.c, zpool_vdev_attach
            let what = if top.is_log {
                "a log"
            } else {
                "a special or dedup vdev"
            };
            return Err(PoolError::Invalid(format!(
                "cannot replace {what} with a spare"
            )));
        }
        if spare.is_distributed() {
            return if spare.is_for(top) {
                Ok(())
            } else {
                Err(PoolError::Invalid(
                    "dRAID spares can only replace child devices in their parent's dRAID vdev"
                        .into(),
                ))
            };
        }
        let path = spare.path().ok_or(PoolError::NoSuchDevice)?;
        match vdev::disk_use(self.handle(), &path).await? {
            DiskUse::Pool { state, .. } if state == STATE_SPARE => Ok(()),
            // It was ours, and the power went before its label said that it waits again.
            DiskUse::Pool { pool_guid, .. } if pool_guid == self.config.guid() => Ok(()),
            DiskUse::Pool { name, .. } => Err(PoolError::DeviceInUse {
                path,
                reason: format!("is in use by pool '{name}'"),
                forceable: false,
            }),
            _ => Err(PoolError::DeviceInUse {
                path,
                reason: "is no longer labelled as a spare".into(),
                forceable: false,
            }),
        }
    }

    /// Whether a leaf of the tree is a spare that stands in for another.
    pub(crate) fn is_active_spare(&self, guid: Guid) -> bool {
        let config = self.tree().config();
        let leaves = config.leaves();
        leaves
            .iter()
            .any(|leaf| leaf.guid == guid && leaf.is_spare())
    }

    /// Returns the spare that takes a leaf's place for good when that leaf is detached.
    pub(crate) fn spare_to_promote(&self, guid: Guid) -> Option<Guid> {
        fn find(vdev: &VdevConfig, guid: Guid) -> Option<Guid> {
            if vdev.kind == VdevKind::Spare
                && vdev
                    .children
                    .first()
                    .is_some_and(|first| first.guid == guid)
            {
                let last = vdev.children.last()?;
                return last.is_spare().then_some(last.guid);
            }
            vdev.children.iter().find_map(|child| find(child, guid))
        }
        let config = self.tree().config();
        config.tops.iter().find_map(|top| find(top, guid))
    }

    /// Makes a spare an ordinary leaf: it leaves the list. Syncing context.
    pub(crate) fn promote_spare(&self, guid: Guid) {
        // Those of a draid are always listed, and go back when a device takes their place.
        let distributed = self
            .devices
            .auxiliaries
            .spares
            .find(guid)
            .is_some_and(|spare| spare.is_distributed());
        if distributed {
            return;
        }
        self.devices.auxiliaries.spares.remove(guid);
        self.tree().update_config(guid, |vdev| {
            vdev.extra.remove("is_spare");
        });
    }

    /// Labels a spare that has left the tree as one that waits.
    pub(crate) async fn relabel_returned_spare(&self, guid: Guid) {
        if let Some(spare) = self.devices.auxiliaries.spares.find(guid) {
            // A spare that cannot be labelled is shown as unavailable by the next check.
            drop(
                self.label_auxiliary(AuxiliaryKind::Spare, &spare.config)
                    .await,
            );
        }
        self.check_spares().await;
    }

    /// Returns the spares that are no longer needed.
    pub(crate) async fn return_spares(self: &Rc<Self>) -> Result<(), PoolError> {
        for spare in self.tree().spares_to_return() {
            self.detach_leaf(spare).await?;
        }
        Ok(())
    }

    /// Returns the devices that have failed with the spares that may stand in for them, without spare_candidates that did not fit.
    fn spare_candidates(&self) -> Vec<(Guid, AuxiliaryDevice)> {
        if self.refuse_with_checkpoint().is_err() {
            return Vec::new();
        }
        let rejected = self.devices.hot_spares.rejected.borrow();
        let spares = self.devices.auxiliaries.spares.devices();
        let config = self.tree().config();
        let mut spare_candidates = Vec::new();
        for target in self.tree().in_need_of_spares() {
            for spare in &spares {
                let mut tops = config.tops.iter();
                let fits = !spare.is_distributed()
                    || tops.any(|top| top.holds(target) && spare.is_for(top));
                let idle = spare.found && fits && !self.is_in_tree(spare.config.guid);
                if idle && !rejected.contains(&(target, spare.config.guid)) {
                    spare_candidates.push((target, spare.clone()));
                }
            }
        }
        spare_candidates
    }
}

/// Activates spares for devices that failed, in the background. Nothing happens where there are none.
pub(crate) fn activate_in_background(pool: &Pool) {
    let imported = pool.0.clone();
    if imported.session.readonly
        || imported.devices.hot_spares.activating.get()
        || imported.writable().is_err()
        || imported.spare_candidates().is_empty()
    {
        return;
    }
    imported.devices.hot_spares.activating.set(true);
    let pool = pool.clone();
    drop(pool.0.handle().clone().spawn("hot spare", async move {
        while let Some((target, spare)) = imported.spare_candidates().into_iter().next() {
            let Some(path) = spare.path() else { break };
            // OpenZFS: cmd/zed/agents/zfs_retire.c, replace_with_spare
            let joined = match spare.is_distributed() && imported.may_rebuild() {
                true => pool.attach_and_rebuild(target.0, &path, true, false).await,
                false => pool.attach(target.0, &path, true, false).await,
            };
            match joined {
                Ok(_) => {}
                // A resilver in the way has an end: tried again at the next look.
                Err(PoolError::Suspended | PoolError::Closed | PoolError::Scan(_)) => break,
                Err(_) => {
                    // Too small, or gone. Not tried again before the spares change.
                    let pair = (target, spare.config.guid);
                    imported
                        .devices
                        .hot_spares
                        .rejected
                        .borrow_mut()
                        .insert(pair);
                }
            }
        }
        imported.devices.hot_spares.activating.set(false);
    }));
}
