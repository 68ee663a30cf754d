//! Top-level vdevs that join a tree in use.
//!
//! Guarantees: either all of the new vdevs are part of the tree when the call returns, or none; ids that are in use do not
//! change. Nothing is written here.
//! Does not know when blocks may be placed on them: the store is told by the pool once the tree is durable.

use std::rc::Rc;

use crate::tree::{check_shape, leaf_configs, least_asize_of};
use crate::{OpenMode, Tree, VdevConfig, VdevError};

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
            let least = least_asize_of(&top.layout, top.asize);
            for (leaf, config) in top.leaves().into_iter().zip(leaf_configs(vdev)) {
                let mode = self.0.mode;
                opens.push(async move {
                    leaf.open(config, mode, vdev.ashift, least, true).await;
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
