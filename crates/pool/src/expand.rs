//! Top-level vdevs that grow when all their devices have become larger (`zpool online -e`, `autoexpand=on`).
//!
//! The labels at the end move with the end of the device, so they are made anew in the txg that stores the new size;
//! the store uses the new room only when that txg is on stable storage.
// OpenZFS: module/zfs/vdev.c, vdev_expand

use std::cell::RefCell;
use std::rc::Rc;

use dmu::Tx;
use vdev::AllocationBias;

use crate::PoolError;
use crate::pool::{ImportedPool, Pool};
use crate::sync;

impl Pool {
    /// Lets every vdev have all that its devices offer now. Returns how many have grown; their room is there on return.
    ///
    /// # Errors
    /// `ReadOnly`, `Suspended`; device errors.
    pub async fn expand(&self) -> Result<usize, PoolError> {
        self.0.writable()?;
        self.0.tree().measure().await;
        self.0.grow().await
    }
}

impl ImportedPool {
    /// As [`Pool::expand`], if the pool's property asks for it.
    pub(crate) async fn autoexpand(self: &Rc<Self>) -> Result<(), PoolError> {
        if self.has_autoexpand() {
            self.tree().measure().await;
            self.grow().await?;
        }
        Ok(())
    }

    /// As [`ImportedPool::autoexpand`], for devices that have just been measured or opened.
    pub(crate) async fn expand_measured_if_auto(self: &Rc<Self>) -> Result<(), PoolError> {
        if self.has_autoexpand() {
            self.grow().await?;
        }
        Ok(())
    }

    /// Lets vdevs have what their devices offer, once a raidz has another: its room is wanted, whatever `autoexpand` says.
    pub(crate) async fn grow_after_expansion(self: &Rc<Self>) -> Result<(), PoolError> {
        self.grow().await.map(drop)
    }

    fn has_autoexpand(&self) -> bool {
        let wanted = self.properties.is_on("autoexpand");
        wanted && self.writable().is_ok()
    }

    /// Lets every vdev have all that its devices are known to offer.
    async fn grow(self: &Rc<Self>) -> Result<usize, PoolError> {
        if !self.tree().tops().iter().any(|top| self.may_grow(top)) {
            return Ok(0);
        }
        let grown = Rc::new(RefCell::new(Vec::new()));
        let from_task = grown.clone();
        self.run_in_sync(async move |imported: Rc<Self>, tx: Rc<Tx>| {
            let mut growth_bytes = 0;
            for top in imported.tree().tops() {
                if !imported.may_grow(&top) {
                    continue;
                }
                let config = imported.tree().config();
                if let Some(vdev) = config.tops.get(top.id as usize) {
                    for leaf in sync::leaves_of(vdev) {
                        imported.tree().init_end_labels(leaf.guid).await?;
                    }
                }
                if top.bias != AllocationBias::Log {
                    growth_bytes += imported.growth(&top) << top.metaslab_shift;
                }
                let asize = imported.tree().expand(top.id)?;
                imported
                    .space()
                    .grow_vdev(top.id, asize >> top.metaslab_shift);
                from_task.borrow_mut().push(top.id);
            }
            imported.dirty_config();
            if growth_bytes > 0 {
                // OpenZFS: module/zfs/spa.c, spa_async_thread
                let size = imported.store().space().size + growth_bytes;
                let name = imported.config.name();
                let text = format!("pool '{name}' size: {size}(+{growth_bytes})");
                imported.log_internal("vdev online", &text, &tx).await?;
            }
            Ok(())
        })
        .await?;
        let grown = grown.take();
        for id in &grown {
            self.store().grow_vdev(*id);
        }
        Ok(grown.len())
    }

    /// Whether the devices of a vdev offer at least one metaslab more than it has.
    fn may_grow(&self, top: &vdev::TopInfo) -> bool {
        self.growth(top) > 0
    }

    /// Returns how many metaslabs the devices of a vdev offer beyond those it has.
    fn growth(&self, top: &vdev::TopInfo) -> u64 {
        if self.activities.removal.vdev() == Some(top.id) {
            return 0;
        }
        let possible = self.tree().asize_possible(top.id) >> top.metaslab_shift;
        possible.saturating_sub(top.metaslab_count)
    }

    /// Returns the bytes by which a top-level vdev could grow, whole metaslabs.
    pub(crate) fn expandable_bytes(&self, id: u32) -> u64 {
        let tops = self.tree().tops();
        let top = tops.iter().find(|top| top.id == id);
        top.map_or(0, |top| self.growth(top) << top.metaslab_shift)
    }
}
