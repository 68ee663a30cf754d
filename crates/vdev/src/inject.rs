//! Injecting faults into the devices of a tree, and what can be made of a device at once.

use std::rc::Rc;

use ondisk::Guid;
use runtime::DiskAction;

use crate::faults::{EIO, Injection};
use crate::leaf::Leaf;
use crate::{DeviceFault, InjectedDeviceFault, LEAF_DATA_START, Location, Tree, VdevError};

impl Tree {
    /// Injects a fault into the I/O of a leaf from now on, under a number that no other fault has. It lasts until
    /// [`Tree::clear_fault`], or until the tree is closed.
    ///
    /// # Errors
    /// [`VdevError::TooManyFaults`]: there are [`FAULTS_MAX`] faults, or [`LANES_MAX`] lanes. A delay without lanes or latency is
    /// none of ours: [`VdevError::BadConfig`].
    pub fn inject_fault(&self, id: u64, fault: DeviceFault) -> Result<(), VdevError> {
        self.0.faults.add(id, fault)
    }

    /// Ends a fault; returns whether there was one of that number. A delay under way goes on to its end.
    pub fn clear_fault(&self, id: u64) -> bool {
        self.0.faults.remove(id)
    }

    /// Returns the faults that are injected into I/O of leaves, oldest first.
    #[must_use]
    pub fn injected_faults(&self) -> Vec<InjectedDeviceFault> {
        self.0.faults.list()
    }

    /// Has the leaves that would be read for a range count a failed read each, as if they had been asked, and returns the
    /// failure of the read.
    #[must_use]
    pub fn fail_read(&self, at: Location) -> VdevError {
        let mut asked: Vec<(Rc<Leaf>, u64)> = Vec::new();
        let Some(top) = self.top(at.vdev) else {
            return VdevError::Unavailable { vdev: at.vdev };
        };
        if top.is_striped() {
            let map = top.map(at);
            for (_, column) in map.columns() {
                let first = top.replicas(column.slot, column.offset).into_iter().next();
                asked.extend(first.map(|replica| (replica.leaf, column.start())));
            }
        } else {
            let offset = LEAF_DATA_START + at.offset;
            asked.extend(top.leaves().into_iter().map(|leaf| (leaf, offset)));
        }
        assert!(!asked.is_empty(), "a range lies on some leaf");
        for (leaf, offset) in asked.iter().filter(|(leaf, _)| leaf.is_readable()) {
            leaf.count_failed_read(*offset, at.size, EIO);
        }
        match asked.first().and_then(|(leaf, _)| leaf.disk()) {
            Some(disk) => VdevError::Device {
                vdev: at.vdev,
                offset: at.offset,
                size: at.size,
                source: Injection::failure(
                    &disk,
                    DiskAction::Read,
                    &(at.offset..at.offset + at.size),
                ),
            },
            None => VdevError::Unavailable { vdev: at.vdev },
        }
    }

    /// Takes a leaf out of service, or only marks it when some data is nowhere else, as if it had failed too often
    /// (`zinject -A fault`). `zpool clear` ends that.
    ///
    /// # Errors
    /// [`VdevError::NoSuchLeaf`].
    pub fn fault_leaf(&self, guid: Guid) -> Result<(), VdevError> {
        let leaf = self.leaf(guid)?;
        if self.is_required(guid) {
            return self.degrade_leaf(guid);
        }
        leaf.fault("too many errors");
        Ok(())
    }

    /// Marks a leaf as one that gave wrong bytes too often (`zinject -A degrade`). `zpool clear` ends that.
    ///
    /// # Errors
    /// [`VdevError::NoSuchLeaf`].
    pub fn degrade_leaf(&self, guid: Guid) -> Result<(), VdevError> {
        let leaf = self.leaf(guid)?;
        if leaf.is_usable() {
            leaf.degrade("too many errors");
        }
        Ok(())
    }
}
