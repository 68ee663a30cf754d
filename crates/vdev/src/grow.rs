//! Top-level vdevs that join a tree in use, that grow with their devices, and that leave it.
//!
//! Guarantees: either all of the new vdevs are part of the tree when the call returns, or none; ids that are in use do not
//! change. Nothing is written here.
//! Does not know when blocks may be placed on them: the pool informs the store once the tree is durable.

use std::rc::Rc;

use ondisk::{Guid, label};
use runtime::Disk;

use crate::create::fresh_guid;
use crate::tree::{check_shape, leaf_configs, least_asize_of};
use crate::{Layout, OpenMode, Tree, VdevConfig, VdevError, VdevKind};

impl Tree {
    /// Opens the devices of planned top-level vdevs (see [`crate::plan_tops`]) and appends them to the tree, holes left as
    /// they are. Returns their ids.
    ///
    /// # Errors
    /// [`VdevError::ReadOnly`]; [`VdevError::BadConfig`]; [`VdevError::Join`] when some device cannot be opened.
    pub async fn add_tops(&self, mut planned: Vec<VdevConfig>) -> Result<Vec<u32>, VdevError> {
        if self.0.mode == OpenMode::ReadOnly {
            return Err(VdevError::ReadOnly);
        }
        let first = self.0.tops.borrow().len();
        let pool = self.0.config.borrow().guid;
        let mut tops = Vec::new();
        for (index, vdev) in planned.iter_mut().enumerate() {
            let id = u32::try_from(first + index).map_err(|_| VdevError::BadConfig {
                what: "too many vdevs",
            })?;
            vdev.id = u64::from(id);
            check_shape(vdev)?;
            tops.push(Rc::new(self.top_of(id, vdev)?));
        }
        let mut opens = Vec::new();
        for (top, vdev) in tops.iter().zip(&planned) {
            let least = least_asize_of(&top.layout, top.asize.get());
            for (leaf, config) in top.leaves().into_iter().zip(leaf_configs(vdev)) {
                let mode = self.0.mode;
                opens.push(async move {
                    leaf.open(config, mode, pool, vdev.ashift, least, true)
                        .await;
                    leaf
                });
            }
        }
        let leaves = runtime::join_all(opens).await;
        let changed = self.0.tops.borrow().len() != first;
        if changed || leaves.iter().any(|leaf| !leaf.is_usable()) {
            for leaf in leaves {
                leaf.close();
            }
            return Err(VdevError::Join {
                what: "one or more devices could not be opened",
            });
        }
        let ids = tops.iter().map(|top| top.id).collect();
        self.0.tops.borrow_mut().extend(tops.into_iter().map(Some));
        self.0.config.borrow_mut().tops.extend(planned);
        let known = leaves.into_iter().map(|leaf| (leaf.guid, leaf));
        self.0.leaves.borrow_mut().extend(known);
        Ok(ids)
    }

    /// Looks how large all devices are now.
    pub async fn measure(&self) {
        for leaf in self.all_leaves() {
            if let Some(disk) = leaf.disk() {
                // A device that cannot be found has the size it had.
                drop(disk.measure().await);
            }
        }
    }

    /// Returns the allocatable bytes a top-level vdev could have with the devices as large as they are known to be; what it
    /// has when one of them is away.
    // OpenZFS: module/zfs/vdev.c, vdev_open and vdev_expand; include/sys/vdev.h (sizes of mirror and raidz)
    #[must_use]
    pub fn asize_possible(&self, vdev: u32) -> u64 {
        let Some(top) = self.top(vdev) else { return 0 };
        let now = top.asize.get();
        let mut leaves = top.leaves();
        leaves.retain(|leaf| leaf.spare.is_none());
        if top.is_removed() || leaves.iter().any(|leaf| !leaf.is_usable()) {
            return now;
        }
        let sizes = leaves.iter().map(|leaf| label::leaf_asize(leaf.psize()));
        let each = sizes.min().unwrap_or(0) & !(label::LABEL_SIZE - 1);
        let whole = match &top.layout {
            Layout::Raidz(raidz) if raidz.expanding => now,
            layout => layout.asize_from(each),
        };
        whole.max(now)
    }

    /// Lets a top-level vdev have all that its devices offer. The caller stores the configuration, and has the store use
    /// the new room only when that is durable. Returns the new size in allocatable bytes.
    ///
    /// # Errors
    /// [`VdevError::OutOfRange`] when there is no such vdev.
    pub fn expand(&self, vdev: u32) -> Result<u64, VdevError> {
        let asize = self.asize_possible(vdev);
        let top = self.top(vdev).ok_or(VdevError::OutOfRange {
            vdev,
            offset: 0,
            size: 0,
        })?;
        top.asize.set(asize);
        if let Some(config) = self.0.config.borrow_mut().tops.get_mut(vdev as usize) {
            config.asize = asize;
        }
        Ok(asize)
    }

    /// Takes a top-level vdev that holds nothing any more out of the tree; its place becomes a hole. Returns what its
    /// configuration was, and its devices as far as they are open, for their labels.
    ///
    /// # Errors
    /// [`VdevError::OutOfRange`] when there is no such vdev.
    // OpenZFS: module/zfs/vdev_removal.c, vdev_remove_make_hole_and_free
    pub fn remove_top(&self, vdev: u32) -> Result<(VdevConfig, Vec<Disk>), VdevError> {
        let at = vdev as usize;
        let removed = {
            let mut tops = self.0.tops.borrow_mut();
            tops.get_mut(at).and_then(Option::take)
        };
        let top = removed.ok_or(VdevError::OutOfRange {
            vdev,
            offset: 0,
            size: 0,
        })?;
        let mut hole = VdevConfig::new(VdevKind::Hole, u64::from(vdev), Guid(0));
        hole.extra.insert("is_hole", 1_u64);
        let config = std::mem::replace(&mut self.0.config.borrow_mut().tops[at], hole);
        let mut disks = Vec::new();
        for leaf in top.leaves() {
            self.0.leaves.borrow_mut().remove(&leaf.guid);
            disks.extend(leaf.disk());
            leaf.close();
        }
        Ok((config, disks))
    }

    /// Makes an evacuated top-level vdev a removed one, of which only the table is left: its blocks are read elsewhere from
    /// now on. Returns what its configuration was, and its devices as far as they are open, for their labels.
    ///
    /// # Errors
    /// [`VdevError::OutOfRange`] when there is no such vdev; [`VdevError::BadConfig`] when it has no table.
    // OpenZFS: module/zfs/vdev_removal.c, vdev_remove_replace_with_indirect
    pub fn make_indirect(&self, vdev: u32) -> Result<(VdevConfig, Vec<Disk>), VdevError> {
        let gone = VdevError::OutOfRange {
            vdev,
            offset: 0,
            size: 0,
        };
        let at = vdev as usize;
        if self.evacuated_until(vdev).is_none() {
            return Err(VdevError::BadConfig {
                what: "a vdev that was not evacuated",
            });
        }
        let old = self.config().tops.get(at).cloned().ok_or(gone.clone())?;
        let mut indirect = VdevConfig::new(
            VdevKind::Indirect,
            u64::from(vdev),
            fresh_guid(&self.0.handle),
        );
        indirect.create_txg = old.create_txg;
        indirect.ashift = old.ashift;
        indirect.asize = old.asize;
        indirect.metaslab_shift = old.metaslab_shift;
        indirect.non_allocating = true;
        indirect.bias = old.bias;
        indirect.zap_top = old.zap_top;
        indirect.extra.insert("whole_disk", 0_u64);
        for key in ["com.delphix:indirect_object", "com.delphix:indirect_births"] {
            if let Some(object) = old.extra.u64(key) {
                indirect.extra.insert(key, object);
            }
        }
        let new = Rc::new(self.top_of(vdev, &indirect)?);
        let top = self.top(vdev).ok_or(gone)?;
        self.0.tops.borrow_mut()[at] = Some(new);
        self.0.config.borrow_mut().tops[at] = indirect;
        let mut disks = Vec::new();
        for leaf in top.leaves() {
            self.0.leaves.borrow_mut().remove(&leaf.guid);
            disks.extend(leaf.disk());
            leaf.close();
        }
        Ok((old, disks))
    }

    /// Takes the last top-level vdevs away again, to which nothing was written yet but labels: `keep` remain.
    pub fn drop_tops(&self, keep: usize) {
        let dropped = self.0.tops.borrow_mut().split_off(keep);
        self.0.config.borrow_mut().tops.truncate(keep);
        for leaf in dropped.iter().flatten().flat_map(|top| top.leaves()) {
            self.0.leaves.borrow_mut().remove(&leaf.guid);
            leaf.close();
        }
    }
}
