//! The lists of spares and cache devices in memory, and their form on disk.

use std::cell::{Cell, RefCell};
use std::path::{Path, PathBuf};

use ondisk::{Guid, NvList, ObjectId};
use vdev::{VdevConfig, VdevKind};

use crate::PoolError;
use crate::config::{STATE_CACHE, STATE_SPARE};

/// What an auxiliary device is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AuxiliaryKind {
    Spare,
    Cache,
}

impl AuxiliaryKind {
    /// Key of the list's object in the directory, and of the list itself.
    pub(super) fn key(self) -> &'static str {
        match self {
            Self::Spare => "spares",
            Self::Cache => "l2cache",
        }
    }

    pub(super) fn label_state(self) -> u64 {
        match self {
            Self::Spare => STATE_SPARE,
            Self::Cache => STATE_CACHE,
        }
    }
}

/// One device of a list.
#[derive(Clone, Debug)]
pub(crate) struct AuxiliaryDevice {
    pub(crate) config: VdevConfig,
    /// Whether it was there when it was last checked.
    pub(crate) found: bool,
}

impl AuxiliaryDevice {
    pub(crate) fn path(&self) -> Option<PathBuf> {
        self.config.device_path()
    }

    /// Whether it is a distributed spare of this top-level vdev.
    pub(crate) fn is_for(&self, top: &VdevConfig) -> bool {
        self.is_distributed() && self.config.extra.u64("top_guid") == Some(top.guid.0)
    }

    /// Whether it is space of a draid, not a device.
    pub(crate) fn is_distributed(&self) -> bool {
        self.config.kind == VdevKind::DistributedSpare
    }
}

/// The devices of one kind.
pub(crate) struct AuxiliaryDevices {
    pub(super) kind: AuxiliaryKind,
    pub(super) object: Cell<ObjectId>,
    pub(super) devices: RefCell<Vec<AuxiliaryDevice>>,
    pub(super) dirty: Cell<bool>,
}

impl AuxiliaryDevices {
    pub(super) fn new(kind: AuxiliaryKind) -> Self {
        Self {
            kind,
            object: Cell::new(ObjectId(0)),
            devices: RefCell::default(),
            dirty: Cell::new(false),
        }
    }

    /// Whether the list must be stored with the next txg.
    pub(super) fn is_dirty(&self) -> bool {
        self.dirty.get()
    }

    /// Returns the devices in order.
    pub(crate) fn devices(&self) -> Vec<AuxiliaryDevice> {
        self.devices.borrow().clone()
    }

    /// Returns the device with this guid.
    pub(crate) fn find(&self, guid: Guid) -> Option<AuxiliaryDevice> {
        let devices = self.devices.borrow();
        devices.iter().find(|d| d.config.guid == guid).cloned()
    }

    /// Returns the device at this path.
    pub(crate) fn at(&self, path: &Path) -> Option<AuxiliaryDevice> {
        let devices = self.devices.borrow();
        let mut devices = devices.iter();
        devices.find(|d| d.path().as_deref() == Some(path)).cloned()
    }

    pub(crate) fn push(&self, config: VdevConfig) {
        let found = true;
        self.devices
            .borrow_mut()
            .push(AuxiliaryDevice { config, found });
        self.dirty.set(true);
    }

    /// Takes a device off the list; false when it is not on it.
    pub(crate) fn remove(&self, guid: Guid) -> bool {
        let mut devices = self.devices.borrow_mut();
        let before = devices.len();
        devices.retain(|device| device.config.guid != guid);
        let removed = devices.len() != before;
        if removed {
            self.dirty.set(true);
        }
        removed
    }

    pub(crate) fn set_found(&self, guid: Guid, found: bool) {
        for device in &mut *self.devices.borrow_mut() {
            if device.config.guid == guid {
                device.found = found;
            }
        }
    }

    pub(super) fn to_nvlist(&self) -> NvList {
        let devices = self.devices.borrow();
        let lists: Vec<NvList> = devices
            .iter()
            .map(|device| {
                let config = &device.config;
                let mut list = NvList::new();
                list.insert("type", config.kind.as_str());
                list.insert("guid", config.guid.0);
                if let Some(path) = &config.path {
                    list.insert("path", path.as_str());
                }
                for (name, value) in config.extra.iter() {
                    list.insert(name, value.clone());
                }
                if self.kind == AuxiliaryKind::Spare {
                    list.insert("is_spare", 1_u64);
                }
                list.insert("ashift", u64::from(config.ashift));
                if config.create_txg != 0 {
                    list.insert("create_txg", config.create_txg);
                }
                list
            })
            .collect();
        NvList::new().with(self.kind.key(), lists)
    }

    pub(super) fn fill(&self, list: &NvList) -> Result<(), PoolError> {
        let mut devices = self.devices.borrow_mut();
        for (index, entry) in list
            .lists(self.kind.key())
            .unwrap_or(&[])
            .iter()
            .enumerate()
        {
            let mut entry = entry.clone();
            // These lists have no order of their own on disk.
            entry.insert("id", index as u64);
            let config = VdevConfig::from_nvlist(&entry)?;
            let found = false;
            devices.push(AuxiliaryDevice { config, found });
        }
        Ok(())
    }
}

/// The spares and cache devices of a pool.
pub(crate) struct Auxiliaries {
    pub(crate) spares: AuxiliaryDevices,
    pub(crate) caches: AuxiliaryDevices,
}

impl Default for Auxiliaries {
    fn default() -> Self {
        Self {
            spares: AuxiliaryDevices::new(AuxiliaryKind::Spare),
            caches: AuxiliaryDevices::new(AuxiliaryKind::Cache),
        }
    }
}

impl Auxiliaries {
    /// Whether a list must be stored with the next txg.
    pub(crate) fn is_dirty(&self) -> bool {
        self.spares.is_dirty() || self.caches.is_dirty()
    }
}
