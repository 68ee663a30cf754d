//! Top-level vdevs that grow when all their devices have become larger (`zpool online -e`, `autoexpand=on`).
//!
//! The labels at the end move with the end of the device, so they are made anew in the group that stores the new size;
//! the store uses the new room only when that group is on stable storage.
// OpenZFS: module/zfs/vdev.c, vdev_expand

use std::cell::RefCell;
use std::rc::Rc;

use dmu::Tx;

use crate::PoolError;
use crate::pool::{Inner, Pool, Stored};
use crate::sync;

impl Pool {
    /// Lets every vdev have all that its devices offer now. Returns how many have grown; their room is there on return.
    ///
    /// # Errors
    /// `ReadOnly`, `Suspended`; device errors.
    pub async fn expand(&self) -> Result<usize, PoolError> {
        self.0.writable()?;
        self.0.tree.measure().await;
        self.0.grow().await
    }
}

impl Inner {
    /// As [`Pool::expand`], if the pool's property asks for it.
    pub(crate) async fn expand_by_itself(self: &Rc<Self>) -> Result<(), PoolError> {
        if self.grows_by_itself() {
            self.tree.measure().await;
            self.grow().await?;
        }
        Ok(())
    }

    /// As [`Inner::expand_by_itself`], for devices that have just been measured or opened.
    pub(crate) async fn grow_by_itself(self: &Rc<Self>) -> Result<(), PoolError> {
        if self.grows_by_itself() {
            self.grow().await?;
        }
        Ok(())
    }

    fn grows_by_itself(&self) -> bool {
        let wanted = matches!(
            self.properties.borrow().get("autoexpand"),
            Some(Stored::Number(1))
        );
        wanted && self.writable().is_ok()
    }

    /// Lets every vdev have all that its devices are known to offer.
    async fn grow(self: &Rc<Self>) -> Result<usize, PoolError> {
        if !self.tree.tops().iter().any(|top| self.may_grow(top)) {
            return Ok(0);
        }
        let grown = Rc::new(RefCell::new(Vec::new()));
        let told = grown.clone();
        self.run_in_sync(async move |inner: Rc<Self>, tx: Rc<Tx>| {
            for top in inner.tree.tops() {
                if !inner.may_grow(&top) {
                    continue;
                }
                let config = inner.tree.config();
                if let Some(vdev) = config.tops.get(top.id as usize) {
                    for leaf in sync::leaves_of(vdev) {
                        inner.tree.init_end_labels(leaf.guid).await?;
                    }
                }
                let asize = inner.tree.expand(top.id)?;
                inner.space.grow_vdev(top.id, asize >> top.metaslab_shift);
                let text = format!("vdev {} has {asize} bytes", top.id);
                inner.log_internal("vdev expand", &text, &tx).await?;
                told.borrow_mut().push(top.id);
            }
            inner.dirty_config();
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
        if self.removal.vdev() == Some(top.id) {
            return 0;
        }
        let possible = self.tree.asize_possible(top.id) >> top.metaslab_shift;
        possible.saturating_sub(top.metaslab_count)
    }

    /// Returns the bytes by which a top-level vdev could grow, whole metaslabs.
    pub(crate) fn expandable_bytes(&self, id: u32) -> u64 {
        let tops = self.tree.tops();
        let top = tops.iter().find(|top| top.id == id);
        top.map_or(0, |top| self.growth(top) << top.metaslab_shift)
    }
}
