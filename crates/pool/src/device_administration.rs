//! Device administration of a pool in use: offline, online, attach, detach, replace, reopen, reguid.
//!
//! A change of the tree is made at the start of a txg's sync, so that configuration, labels and uberblock of that txg
//! agree; it is durable when the call returns. A device that joins starts with a dirty-time log of everything ever
//! written, and is resilvered at once.

use std::path::{Path, PathBuf};
use std::rc::Rc;

use dmu::{Tx, zap};
use ondisk::{Guid, NvList, ObjectId, TXG_INITIAL};
use vdev::{Health, Join, VdevConfig};

use crate::PoolError;
use crate::auxiliary::AuxiliaryDevice;
use crate::pool::{ImportedPool, Pool};

/// Txgs that may be on their way to the disks when a device joins: writes of theirs may have passed it by.
// OpenZFS: include/sys/txg.h, TXG_CONCURRENT_STATES
const TXGS_UNDER_WAY: u64 = 3;

/// The configuration of a spare that is spread over a draid; it can only stand in for a device.
fn distributed_spare(
    spare: Option<&AuxiliaryDevice>,
    how: Join,
) -> Result<Option<VdevConfig>, PoolError> {
    let distributed = spare.filter(|spare| spare.is_distributed());
    if distributed.is_some() && how != Join::Spare {
        return Err(PoolError::Invalid(
            "dRAID spares can only be used to replace primary vdevs".into(),
        ));
    }
    Ok(distributed.map(|spare| spare.config.clone()))
}

/// What the history says of a device that joins a vdev.
fn join_text(how: Join, path: &Path, replace: bool, old: &str) -> String {
    let word = match how {
        Join::Mirror => "attach",
        Join::Replace => "replace",
        Join::Spare => "spare in",
    };
    let link = if replace { "for" } else { "to" };
    format!("{word} vdev={} {link} vdev={old}", path.display())
}

impl Pool {
    /// Takes a leaf out of service (`zpool offline`); `temporary` lasts until the next import.
    ///
    /// # Errors
    /// `NoSuchDevice`; `NoReplicas` when data would be out of reach; `ReadOnly`, `Suspended`.
    pub async fn offline(&self, leaf: u64, temporary: bool) -> Result<(), PoolError> {
        self.take_out(leaf, temporary, false).await
    }

    /// Declares a leaf faulted (`zpool offline -f`); `temporary` lasts until the next import, and both until it is cleared.
    ///
    /// # Errors
    /// As [`Pool::offline`].
    pub async fn fault(&self, leaf: u64, temporary: bool) -> Result<(), PoolError> {
        self.take_out(leaf, temporary, true).await
    }

    async fn take_out(&self, leaf: u64, temporary: bool, fault: bool) -> Result<(), PoolError> {
        let imported = &self.0;
        imported.writable()?;
        let guid = Guid(leaf);
        // A log vdev is dispensable: when it holds nothing, it can go as a whole, and intent logs do without.
        // OpenZFS: module/zfs/vdev.c, vdev_offline_locked
        let log = imported.tree().log_that_requires(guid);
        if let Some(id) = log {
            imported.empty_log_vdev(id).await?;
        }
        let taken = if fault {
            imported.tree().take_faulted(guid).await
        } else {
            imported.tree().take_offline(guid).await
        };
        if let Some(id) = log {
            // Nothing is allocated on a vdev that takes no writes; it is used again as soon as its device is back.
            imported.store().set_allocating(id, true);
        }
        taken?;
        if temporary {
            return Ok(());
        }
        imported
            .run_in_sync(async move |imported: Rc<ImportedPool>, _tx: Rc<Tx>| {
                imported.tree().update_config(guid, |vdev| {
                    let lasting = if fault {
                        &mut vdev.faulted
                    } else {
                        &mut vdev.offline
                    };
                    *lasting = true;
                });
                imported.dirty_config();
                Ok(())
            })
            .await
    }

    /// Puts a leaf back into service (`zpool online`) and starts to resilver what it missed. Returns whether the device
    /// could be opened.
    ///
    /// # Errors
    /// `NoSuchDevice`, `ReadOnly`, `Suspended`.
    pub async fn online(&self, leaf: u64) -> Result<bool, PoolError> {
        let imported = &self.0;
        imported.writable()?;
        let health = imported.tree().bring_online(Guid(leaf)).await?;
        let opened = matches!(health, Health::Online | Health::Degraded);
        imported
            .run_in_sync(async move |imported: Rc<ImportedPool>, _tx: Rc<Tx>| {
                imported.dirty_config();
                Ok(())
            })
            .await?;
        if opened {
            imported.notify("vdev_online", Some(Guid(leaf)), NvList::new());
        }
        imported.autoexpand().await?;
        imported.resilver_if_needed().await?;
        Ok(opened)
    }

    /// Makes `path` one more copy of a leaf (`zpool attach`), or its replacement (`zpool replace`), and starts to resilver
    /// it. Returns its guid.
    ///
    /// # Errors
    /// `DeviceInUse` (without `force`, or in any active pool), `DeviceTooSmall`, `Invalid` where the layout forbids it.
    pub async fn attach(
        &self,
        leaf: u64,
        path: &Path,
        replace: bool,
        force: bool,
    ) -> Result<u64, PoolError> {
        self.join(leaf, path, replace, force, false).await
    }

    /// [`Pool::attach`], or [`Pool::attach_and_rebuild`] if it is `sequential`.
    pub(crate) async fn join(
        &self,
        leaf: u64,
        path: &Path,
        replace: bool,
        force: bool,
        sequential: bool,
    ) -> Result<u64, PoolError> {
        let imported = &self.0;
        imported.writable()?;
        imported.refuse_with_checkpoint()?;
        if !replace && !sequential && imported.is_raidz(Guid(leaf)) {
            return self.expand_raidz(Guid(leaf), path, force).await;
        }
        imported.check_rebuild(Guid(leaf), replace, sequential)?;
        imported.refuse_with_removal()?;
        let (path, target): (PathBuf, Guid) = (path.to_owned(), Guid(leaf));
        let spare = imported.devices.auxiliaries.spares.at(&path);
        let how = match &spare {
            Some(spare) if replace => {
                imported.check_spare(spare, target).await?;
                Join::Spare
            }
            _ if replace => Join::Replace,
            _ => Join::Mirror,
        };
        if how != Join::Spare {
            imported.check_free(&path, force).await?;
        }
        let distributed = distributed_spare(spare.as_ref(), how)?;
        let known = spare.map(|spare| spare.config.guid);
        let known = known.filter(|_| how == Join::Spare);
        let joined = Rc::new(std::cell::Cell::new(0));
        let from_task = joined.clone();
        if sequential {
            imported.stop_rebuild_of(target).await;
        }
        let result = imported
            .run_in_sync(async move |imported: Rc<ImportedPool>, tx: Rc<Tx>| {
                imported.check_rebuild(target, replace, sequential)?;
                let old = imported.leaf_path(target);
                let guid = match &distributed {
                    Some(spare) => imported.tree().join_distributed(target, spare)?,
                    None => imported.tree().join(target, &path, how, known).await?,
                };
                from_task.set(guid.0);
                imported.initialize_joined_leaf(guid, &tx).await?;
                let text = join_text(how, &path, replace, &old);
                imported.log_internal("vdev attach", &text, &tx).await?;
                if sequential {
                    imported.initiate_rebuild(guid, &tx).await?;
                }
                Ok(())
            })
            .await;
        if sequential {
            let continued = imported.continue_scans().await;
            result?;
            continued?;
        } else {
            result?;
        }
        let guid = Some(Guid(joined.get()));
        if how == Join::Spare {
            imported.notify("vdev_spare", guid, NvList::new());
        }
        imported.notify("vdev_attach", guid, NvList::new());
        imported.resilver_if_needed().await?;
        Ok(joined.get())
    }

    /// Takes a leaf out of its mirror for good, or ends a replacement (`zpool detach`).
    ///
    /// # Errors
    /// `NoSuchDevice`; `NoReplicas` when it alone has some data; `Invalid` outside mirrors and replacements.
    pub async fn detach(&self, leaf: u64) -> Result<(), PoolError> {
        self.0.writable()?;
        self.0.refuse_with_checkpoint()?;
        // A resilver of the leaf that is detached would be in vain.
        if self.0.activities.scan.is_resilvering() {
            self.0.stop_walk().await;
        }
        self.0.stop_rebuild_of(Guid(leaf)).await;
        let result = self.0.detach_leaf(Guid(leaf)).await;
        self.0.continue_scans().await?;
        result
    }
}

impl Pool {
    /// Tries again to open every device that is away (`zpool reopen`); what comes back is resilvered. Returns how many
    /// came back.
    ///
    /// # Errors
    /// `ReadOnly`, `Suspended`.
    pub async fn reopen(&self) -> Result<usize, PoolError> {
        self.reopen_devices(true).await
    }

    /// As [`Pool::reopen`], but a resilver that runs goes on where it is (`zpool reopen -n`): what came back is resilvered when
    /// it has ended.
    ///
    /// # Errors
    /// As [`Pool::reopen`].
    // OpenZFS: module/zfs/zfs_ioctl.c, zfs_ioc_pool_reopen
    pub async fn reopen_beside_resilver(&self) -> Result<usize, PoolError> {
        self.reopen_devices(false).await
    }

    async fn reopen_devices(&self, restart: bool) -> Result<usize, PoolError> {
        self.0.writable()?;
        let back = self.0.tree().reopen().await;
        // How large the devices are now, as `expandsize` says.
        self.0.tree().measure().await;
        self.0.check_spares().await;
        self.0.reopen_cache_devices().await;
        if back > 0 {
            // What they missed in txgs under way is recorded first.
            self.sync().await?;
            // A resilver that goes on is followed by one for what came back meanwhile.
            if restart || !self.0.activities.scan.is_resilvering() {
                self.0.resilver_if_needed().await?;
            }
        }
        self.0.expand_measured_if_auto().await?;
        Ok(back)
    }
}

impl Pool {
    /// Gives the pool another guid (`zpool reguid`), a random one unless given; devices and datasets keep theirs. Returns it.
    ///
    /// # Errors
    /// `Invalid` for 0; `MissingDevices` while a device is not online: it would keep the old guid.
    // OpenZFS: module/zfs/spa.c, spa_change_guid
    pub async fn reguid(&self, guid: Option<u64>) -> Result<u64, PoolError> {
        let imported = &self.0;
        imported.writable()?;
        imported.refuse_with_checkpoint()?;
        let guid = guid.unwrap_or_else(|| imported.handle().random_u64().max(1));
        if guid == 0 {
            return Err(PoolError::Invalid("Invalid argument".into()));
        }
        if self.status().root.health != crate::Health::Online {
            return Err(PoolError::MissingDevices {
                missing: Vec::new(),
            });
        }
        imported
            .run_in_sync(async move |imported: Rc<ImportedPool>, tx: Rc<Tx>| {
                let old = imported.config.guid();
                imported
                    .config
                    .change_identity(|identity| identity.guid = guid);
                imported.tree().update_root(|root| root.guid = Guid(guid));
                imported.dirty_config();
                let text = format!("old={old} new={guid}");
                imported.log_internal("guid change", &text, &tx).await
            })
            .await?;
        imported.notify("pool_reguid", None, NvList::new());
        Ok(guid)
    }
}

impl ImportedPool {
    pub(crate) fn writable(&self) -> Result<(), PoolError> {
        if self.session.readonly {
            return Err(PoolError::ReadOnly);
        }
        if self.lifecycle.is_suspended() {
            return Err(PoolError::Suspended);
        }
        Ok(())
    }

    fn is_raidz(&self, guid: Guid) -> bool {
        let tops = self.tree().tops();
        let found = tops.iter().find(|top| top.guid == guid);
        found.is_some_and(|top| matches!(top.layout, vdev::Layout::Raidz(_)))
    }

    pub(crate) fn leaf_path(&self, guid: Guid) -> String {
        let leaves = self.tree().leaves();
        leaves
            .into_iter()
            .find(|leaf| leaf.guid == guid)
            .map_or_else(|| guid.to_string(), |leaf| leaf.path)
    }

    /// Gives a leaf that has just joined its labels, ZAP and dirty-time log. Syncing context.
    pub(crate) async fn initialize_joined_leaf(
        &self,
        guid: Guid,
        tx: &Tx,
    ) -> Result<(), PoolError> {
        assert!(
            tx.is_syncing(),
            "initialize joined leaf happens in syncing context"
        );
        // The labels of a spare are those of one that waits until this txg writes its own: it must not be lost sight of.
        if !self.is_active_spare(guid) {
            self.tree().init_labels(guid).await?;
        }
        let txg = tx.txg().0;
        self.tree()
            .update_config(guid, |vdev| vdev.create_txg = txg);
        let histogram = self.hierarchy().features().is_enabled("spacemap_histogram");
        let missing = TXG_INITIAL.0..txg + TXGS_UNDER_WAY;
        let created = self
            .devices
            .dtls
            .record_range(self.mos(), guid.0, missing, histogram, tx)
            .await?;
        self.note_dtl(guid, created, histogram, tx).await?;
        let missing = self.devices.dtls.missing(guid.0);
        self.tree().set_dtl(guid, &missing);
        self.create_vdev_objects(tx).await?;
        self.dirty_config();
        Ok(())
    }

    /// Detaches a leaf and frees its objects.
    pub(crate) async fn detach_leaf(self: &Rc<Self>, guid: Guid) -> Result<(), PoolError> {
        let is_spare = self.is_active_spare(guid);
        self.run_in_sync(async move |imported: Rc<Self>, tx: Rc<Tx>| {
            let path = imported.leaf_path(guid);
            let promoted = imported.spare_to_promote(guid);
            let removed = imported.tree().detach(guid)?;
            let gone = NvList::new()
                .with("vdev_guid", guid.0)
                .with("vdev_state", 7_u64)
                .with("vdev_path", path.as_str());
            imported.notify("vdev_remove", None, gone);
            if let Some(spare) = promoted {
                imported.promote_spare(spare);
                imported.write_auxiliaries(&tx).await?;
            }
            imported.free_leaf_objects(&removed, &tx).await?;
            imported.dirty_config();
            imported
                .log_internal("detach", &format!("vdev={path}"), &tx)
                .await
        })
        .await?;
        if is_spare {
            self.relabel_returned_spare(guid).await;
        }
        // The smallest device of its vdev may just have gone.
        self.autoexpand().await
    }

    /// Frees the objects of a leaf that has gone. Syncing context.
    pub(crate) async fn free_leaf_objects(
        &self,
        leaf: &VdevConfig,
        tx: &Tx,
    ) -> Result<(), PoolError> {
        assert!(
            tx.is_syncing(),
            "free leaf objects happens in syncing context"
        );
        self.devices.dtls.forget(leaf.guid.0);
        if let Some(object) = leaf.dtl.filter(|&object| object != 0) {
            let bonus = self.mos().object_info(ObjectId(object)).await?.bonus_len;
            self.mos().free_object(ObjectId(object), tx).await?;
            // The long header is what the feature counts.
            if bonus > 64 {
                self.hierarchy()
                    .features()
                    .decr("spacemap_histogram", tx)
                    .await?;
            }
        }
        if let Some(zap_object) = leaf.zap_leaf {
            let map = self.objects.get().vdev_zap_map;
            zap::remove_int(self.mos(), map, zap_object, tx).await?;
            self.mos().free_object(ObjectId(zap_object), tx).await?;
        }
        Ok(())
    }

    /// Ends the replacements whose new device has everything.
    pub(crate) async fn finish_replacements(self: &Rc<Self>) -> Result<(), PoolError> {
        if self.refuse_with_checkpoint().is_err() {
            // A checkpoint knows the devices as they are; they go when it has gone.
            return Ok(());
        }
        for (old, _) in self.tree().replaced() {
            self.detach_leaf(old).await?;
        }
        self.return_spares().await
    }

    /// Takes note of health that error counts changed. Syncing context.
    pub(crate) fn judge_devices(&self) {
        // Devices that joined have limits from their vdev.
        self.apply_vdev_properties();
        // Health of this kind lasts until the next import; nothing to store.
        drop(self.tree().diagnose());
    }
}
