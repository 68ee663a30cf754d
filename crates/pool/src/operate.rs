//! What an administrator does to the devices of a pool in use: out of service and back, attached, detached, replaced.
//!
//! A change of the tree is made at the start of a group's sync, so that configuration, labels and uberblock of that group
//! agree; it is durable when the call returns. A device that joins starts with a dirty-time log of everything ever
//! written, and is resilvered at once.

use std::path::{Path, PathBuf};
use std::rc::Rc;

use dmu::{Tx, zap};
use ondisk::{Guid, ObjectId, TXG_INITIAL};
use vdev::{Health, Join, VdevConfig};

use crate::PoolError;
use crate::pool::{Inner, Pool};

/// Groups that may be on their way to the disks when a device joins: writes of theirs may have passed it by.
// OpenZFS: include/sys/txg.h, TXG_CONCURRENT_STATES
const TXGS_UNDER_WAY: u64 = 3;

impl Pool {
    /// Takes a leaf out of service (`zpool offline`); `temporary` lasts until the next import.
    ///
    /// # Errors
    /// `NoSuchDevice`; `NoReplicas` when data would be out of reach; `ReadOnly`, `Suspended`.
    pub async fn offline(&self, leaf: u64, temporary: bool) -> Result<(), PoolError> {
        let inner = &self.0;
        inner.writable()?;
        let guid = Guid(leaf);
        inner.tree.take_offline(guid).await?;
        if temporary {
            return Ok(());
        }
        inner
            .run_in_sync(async move |inner: Rc<Inner>, _tx: Rc<Tx>| {
                inner.tree.update_config(guid, |vdev| vdev.offline = true);
                inner.dirty_config();
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
        let inner = &self.0;
        inner.writable()?;
        let health = inner.tree.bring_online(Guid(leaf)).await?;
        let opened = matches!(health, Health::Online | Health::Degraded);
        inner
            .run_in_sync(async move |inner: Rc<Inner>, _tx: Rc<Tx>| {
                inner.dirty_config();
                Ok(())
            })
            .await?;
        inner.resilver_if_needed().await?;
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
        let inner = &self.0;
        inner.writable()?;
        inner.check_free(path, force).await?;
        let (path, target): (PathBuf, Guid) = (path.to_owned(), Guid(leaf));
        let how = if replace { Join::Replace } else { Join::Mirror };
        let joined = Rc::new(std::cell::Cell::new(0));
        let told = joined.clone();
        inner
            .run_in_sync(async move |inner: Rc<Inner>, tx: Rc<Tx>| {
                let old = inner.leaf_path(target);
                let guid = inner.tree.join(target, &path, how).await?;
                told.set(guid.0);
                inner.welcome(guid, &tx).await?;
                let text = format!(
                    "{} vdev={} {} vdev={old}",
                    if replace { "replace" } else { "attach" },
                    path.display(),
                    if replace { "for" } else { "to" },
                );
                inner.log_internal("vdev attach", &text, &tx).await
            })
            .await?;
        inner.resilver_if_needed().await?;
        Ok(joined.get())
    }

    /// Takes a leaf out of its mirror for good, or ends a replacement (`zpool detach`).
    ///
    /// # Errors
    /// `NoSuchDevice`; `NoReplicas` when it alone has some data; `Invalid` outside mirrors and replacements.
    pub async fn detach(&self, leaf: u64) -> Result<(), PoolError> {
        self.0.writable()?;
        // A resilver for a leaf that goes has nothing to work for.
        if self.0.scan.is_resilvering() {
            self.0.stop_walk().await;
        }
        let result = self.0.take_away(Guid(leaf)).await;
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
        self.0.writable()?;
        let back = self.0.tree.reopen().await;
        if back > 0 {
            // What they missed in groups under way is recorded first.
            self.sync().await?;
            self.0.resilver_if_needed().await?;
        }
        Ok(back)
    }
}

impl Inner {
    pub(crate) fn writable(&self) -> Result<(), PoolError> {
        if self.readonly {
            return Err(PoolError::ReadOnly);
        }
        if self.suspended.borrow().is_some() {
            return Err(PoolError::Suspended);
        }
        Ok(())
    }

    fn leaf_path(&self, guid: Guid) -> String {
        let leaves = self.tree.leaves();
        leaves
            .into_iter()
            .find(|leaf| leaf.guid == guid)
            .map_or_else(|| guid.to_string(), |leaf| leaf.path)
    }

    /// Gives a leaf that has just joined its labels, dictionary and dirty-time log. Syncing context.
    pub(crate) async fn welcome(&self, guid: Guid, tx: &Tx) -> Result<(), PoolError> {
        self.tree.init_labels(guid).await?;
        let txg = tx.txg().0;
        self.tree.update_config(guid, |vdev| vdev.create_txg = txg);
        let histogram = self.hierarchy.features().is_enabled("spacemap_histogram");
        let missing = TXG_INITIAL.0..txg + TXGS_UNDER_WAY;
        let created = self
            .dtls
            .record_range(&self.mos, guid.0, missing, histogram, tx)
            .await?;
        self.note_dtl(guid, created, histogram, tx).await?;
        let missing = self.dtls.missing(guid.0);
        self.tree.set_lacking(guid, &missing);
        self.create_vdev_objects(tx).await?;
        self.dirty_config();
        Ok(())
    }

    /// Takes a leaf away and gives back what the pool kept of it.
    async fn take_away(self: &Rc<Self>, guid: Guid) -> Result<(), PoolError> {
        self.run_in_sync(async move |inner: Rc<Self>, tx: Rc<Tx>| {
            let path = inner.leaf_path(guid);
            let removed = inner.tree.detach(guid)?;
            inner.forget_leaf(&removed, &tx).await?;
            inner.dirty_config();
            inner
                .log_internal("detach", &format!("vdev={path}"), &tx)
                .await
        })
        .await
    }

    /// Frees the objects of a leaf that has gone. Syncing context.
    async fn forget_leaf(&self, leaf: &VdevConfig, tx: &Tx) -> Result<(), PoolError> {
        self.dtls.forget(leaf.guid.0);
        if let Some(object) = leaf.dtl.filter(|&object| object != 0) {
            let bonus = self.mos.object_info(ObjectId(object)).await?.bonus_len;
            self.mos.free_object(ObjectId(object), tx).await?;
            // The long header is what the feature counts.
            if bonus > 64 {
                self.hierarchy
                    .features()
                    .decr("spacemap_histogram", tx)
                    .await?;
            }
        }
        if let Some(zap_object) = leaf.zap_leaf {
            let map = self.objects.get().vdev_zap_map;
            zap::remove_int(&self.mos, map, zap_object, tx).await?;
            self.mos.free_object(ObjectId(zap_object), tx).await?;
        }
        Ok(())
    }

    /// Ends the replacements whose new device has everything.
    pub(crate) async fn finish_replacements(self: &Rc<Self>) -> Result<(), PoolError> {
        for (old, _) in self.tree.replaced() {
            self.take_away(old).await?;
        }
        Ok(())
    }

    /// Takes note of health that error counts changed. Syncing context.
    pub(crate) fn judge_devices(&self) {
        // Health of this kind lasts until the next import; nothing to store.
        drop(self.tree.judge());
    }
}
