//! Properties of vdevs (`zpool get` and `zpool set` with a vdev): read from status and configuration, or stored in the vdev's ZAP.
//!
//! What is stored: whether the vdev takes new blocks, how many errors take a device out, a comment, and what users note. Values of
//! a leaf are lost with it when it is replaced; those of the top-level vdev stand behind them.
// OpenZFS: module/zfs/vdev.c, vdev_prop_get, vdev_prop_set, vdev_props_set_sync

mod table;

use std::rc::Rc;
use std::time::Duration;

use dmu::{Tx, zap};
use ondisk::{Guid, ObjectId};
use vdev::{ErrorBurst, ErrorLimits, VdevConfig, VdevKind};

pub use self::table::{VDEV_PROPERTIES, VdevPropertyInfo};
use crate::PoolError;
use crate::create::ROOT_ZAP;
use crate::pool::{ImportedPool, Pool};
use crate::properties::stored::StoredValue;
use crate::properties::{PropertyEntry, PropertyKind, PropertySource, PropertyValue};
use crate::status::VdevStatus;

/// Bytes of a device that labels and boot area take.
const LABELS_BYTES: u64 = ondisk::label::DATA_START + ondisk::label::END_RESERVED;

impl Pool {
    /// Returns the properties of a vdev (the root's guid is the pool's) in the order of `zpool get all`, then those of users.
    ///
    /// # Errors
    /// `NoSuchDevice`.
    pub fn vdev_properties(&self, vdev: u64) -> Result<Vec<PropertyEntry>, PoolError> {
        let status = self.0.status();
        let (found, parent) = find(&status.root, None, vdev).ok_or(PoolError::NoSuchDevice)?;
        let own = VDEV_PROPERTIES.iter().map(|info| {
            let (value, source) = self.0.vdev_property(info, found, parent);
            PropertyEntry {
                name: info.name.to_owned(),
                kind: match info.name {
                    "removing" | "trim_support" => PropertyKind::Text,
                    _ => info.kind,
                },
                value,
                source,
            }
        });
        let mut entries: Vec<PropertyEntry> = own.collect();
        if let Some(of) = self.0.vdev_properties.of(Guid(vdev)) {
            let users = of.iter().filter(|(name, _)| name.contains(':'));
            entries.extend(users.filter_map(|(name, value)| match value {
                StoredValue::Text(text) => Some(PropertyEntry {
                    name: name.clone(),
                    kind: PropertyKind::Text,
                    value: PropertyValue::Text(text.clone()),
                    source: PropertySource::Local,
                }),
                StoredValue::Number(_) => None,
            }));
        }
        Ok(entries)
    }

    /// Sets a property of a vdev and waits until it is on stable storage.
    ///
    /// # Errors
    /// `Invalid` with OpenZFS's words for what is not accepted; `NoSuchDevice`, `ReadOnly`, `Suspended`.
    pub async fn set_vdev_property(
        &self,
        vdev: u64,
        name: &str,
        value: &str,
    ) -> Result<(), PoolError> {
        let stored = table::parse(name, value)?;
        self.0.writable()?;
        let guid = Guid(vdev);
        let is_known = find(&self.0.status().root, None, vdev).is_some();
        if !is_known {
            return Err(PoolError::NoSuchDevice);
        }
        if name == "allocating" {
            self.0
                .check_allocating(guid, stored == Some(StoredValue::Number(1)))?;
        }
        let (name, value) = (name.to_owned(), value.to_owned());
        self.0
            .run_in_sync(async move |imported: Rc<ImportedPool>, tx: Rc<Tx>| {
                imported
                    .store_vdev_property(guid, &name, stored, &tx)
                    .await?;
                let text = format!("vdev_guid={}: {name}={value}", guid.0);
                imported.log_internal("vdev set", &text, &tx).await
            })
            .await
    }
}

impl ImportedPool {
    /// Reads the stored properties of all vdevs.
    pub(crate) async fn load_vdev_properties(&self) -> Result<(), PoolError> {
        let tree = self.tree().config();
        let mut vdevs = vec![tree.guid];
        vdevs.extend(tree.tops.iter().map(|top| top.guid));
        vdevs.extend(tree.leaves().iter().map(|leaf| leaf.guid));
        for guid in vdevs {
            let Some(object) = self.vdev_zap(guid) else {
                continue;
            };
            for entry in zap::entries(self.mos(), object).await? {
                let Ok(name) = String::from_utf8(entry.name) else {
                    continue;
                };
                let is_property = table::info(&name).is_some_and(|info| info.settable);
                let is_of_users = name.contains(':') && !table::is_reserved(&name);
                if is_property || is_of_users {
                    let value = StoredValue::from_zap(entry.value);
                    self.vdev_properties.note(guid, &name, value);
                }
            }
        }
        self.limit_errors();
        Ok(())
    }

    /// The ZAP of a vdev, where it has one.
    fn vdev_zap(&self, guid: Guid) -> Option<ObjectId> {
        let tree = self.tree().config();
        let object = if guid == tree.guid {
            tree.extra.u64(ROOT_ZAP)
        } else if let Some(top) = tree.tops.iter().find(|top| top.guid == guid) {
            top.zap_top
        } else {
            let leaves = tree.leaves();
            leaves.iter().find(|leaf| leaf.guid == guid)?.zap_leaf
        };
        object.filter(|&object| object != 0).map(ObjectId)
    }

    async fn store_vdev_property(
        &self,
        guid: Guid,
        name: &str,
        value: Option<StoredValue>,
        tx: &Tx,
    ) -> Result<(), PoolError> {
        assert!(tx.is_syncing(), "a property is stored in syncing context");
        self.create_vdev_objects(tx).await?;
        let Some(object) = self.vdev_zap(guid) else {
            return Err(PoolError::Invalid(
                "property not supported for this vdev".to_owned(),
            ));
        };
        let is_there = self.vdev_properties.get(guid, name).is_some();
        match &value {
            Some(value) => zap::update(self.mos(), object, name, &value.to_zap(), tx).await?,
            None if is_there => zap::remove(self.mos(), object, name, tx).await?,
            None => {}
        }
        if name == "allocating" {
            self.allocate(guid, value != Some(StoredValue::Number(0)));
        }
        self.vdev_properties.note(guid, name, value);
        self.limit_errors();
        Ok(())
    }

    /// Refuses to have no vdev left that takes new blocks of its kind.
    fn check_allocating(&self, guid: Guid, allocating: bool) -> Result<(), PoolError> {
        let tops = self.tree().tops();
        let Some(top) = tops.iter().find(|top| top.guid == guid) else {
            return Err(PoolError::Invalid(
                "property not supported for this vdev".to_owned(),
            ));
        };
        if self.activities.removal.vdev() == Some(top.id) {
            return Err(PoolError::Invalid("the vdev is being removed".to_owned()));
        }
        let mut others = tops.iter().filter(|other| other.id != top.id);
        if !allocating && !others.any(|other| other.bias == top.bias && other.allocating) {
            return Err(PoolError::Invalid(
                "out of space: no other vdev of its kind takes new blocks".to_owned(),
            ));
        }
        Ok(())
    }

    /// Starts or ends placing new blocks on a top-level vdev.
    fn allocate(&self, guid: Guid, allocating: bool) {
        if let Some(top) = self.tree().tops().iter().find(|top| top.guid == guid) {
            self.store().set_allocating(top.id, allocating);
            self.tree()
                .update_config(guid, |vdev| vdev.non_allocating = !allocating);
            self.dirty_config();
        }
    }

    /// Says to each device how many errors take it out: as its own properties, those of its top-level vdev, or those of the root say.
    pub(crate) fn limit_errors(&self) {
        if self.vdev_properties.is_empty() {
            return;
        }
        let tree = self.tree().config();
        for top in &tree.tops {
            for leaf in tree
                .leaves()
                .into_iter()
                .filter(|leaf| top.holds(leaf.guid))
            {
                let inherited = |name: &str| {
                    let from = [leaf.guid, top.guid, tree.guid];
                    from.into_iter()
                        .find_map(|guid| self.vdev_properties.number(guid, name))
                };
                let burst = |count: &str, seconds: &str, default: ErrorBurst| ErrorBurst {
                    count: inherited(count).unwrap_or(default.count),
                    within: inherited(seconds).map_or(default.within, Duration::from_secs),
                };
                let default = ErrorLimits::default();
                let slow = inherited("slow_io_n").zip(inherited("slow_io_t"));
                let limits = ErrorLimits {
                    io: burst("io_n", "io_t", default.io),
                    checksum: burst("checksum_n", "checksum_t", default.checksum),
                    slow: slow.map(|(count, seconds)| ErrorBurst {
                        count,
                        within: Duration::from_secs(seconds),
                    }),
                };
                self.tree().limit_errors(leaf.guid, limits);
            }
        }
    }

    /// A property's value and where it comes from.
    fn vdev_property(
        &self,
        info: &VdevPropertyInfo,
        vdev: &VdevStatus,
        parent: Option<&VdevStatus>,
    ) -> (PropertyValue, PropertySource) {
        use PropertySource::{Default, None};
        use PropertyValue::{Absent, Number, Text};
        let switch = |on: bool| (Text(if on { "on" } else { "off" }.to_owned()), None);
        let text = |text: Option<String>| text.map_or((Absent, Default), |text| (Text(text), None));
        if info.settable {
            return self.settable_vdev_property(info, vdev);
        }
        let device = self.device_of(vdev.guid);
        let number = match info.name {
            "capacity" => (vdev.allocated_bytes * 100)
                .checked_div(vdev.size_bytes)
                .unwrap_or(0),
            "guid" => vdev.guid,
            "asize" => device.asize,
            "psize" => device.psize,
            "ashift" => vdev.ashift,
            "size" => vdev.size_bytes,
            "free" => vdev.size_bytes.saturating_sub(vdev.allocated_bytes),
            "allocated" => vdev.allocated_bytes,
            "parity" => device.parity,
            "numchildren" => vdev.children.len() as u64,
            "read_errors" => vdev.read_errors,
            "write_errors" => vdev.write_errors,
            "checksum_errors" => vdev.checksum_errors,
            "slow_ios" => vdev.slow_ios,
            "read_ops" => vdev.io.read_ops,
            "write_ops" => vdev.io.write_ops,
            "read_bytes" => vdev.io.read_bytes,
            "write_bytes" => vdev.io.write_bytes,
            "trim_ops" => vdev.detail.trim_ops,
            "trim_bytes" => vdev.detail.trim_bytes,
            "state" => return (Text(vdev.health.as_str().to_owned()), None),
            "removing" => return switch(vdev.removing),
            "expandsize" if vdev.expandable_bytes == 0 => return (Absent, None),
            "expandsize" => vdev.expandable_bytes,
            "fragmentation" => {
                return (vdev.fragmentation_percent.map_or(Absent, Number), None);
            }
            "trim_support" if device.is_device => {
                return switch(!vdev.trim.unsupported);
            }
            "path" => return text(vdev.path.as_ref().map(|path| path.display().to_string())),
            "devid" | "physpath" | "encpath" | "fru" | "trim_support" => return (Absent, Default),
            "parent" => return text(parent.map(|parent| parent.name.clone())),
            "children" => {
                let names: Vec<&str> = vdev.children.iter().map(|c| c.name.as_str()).collect();
                return text((!names.is_empty()).then(|| names.join(",")));
            }
            // Of I/O that is none here, or that is not counted: initializing, claims, frees.
            _ => 0,
        };
        (Number(number), None)
    }

    /// The value of a property that is stored.
    fn settable_vdev_property(
        &self,
        info: &VdevPropertyInfo,
        vdev: &VdevStatus,
    ) -> (PropertyValue, PropertySource) {
        use PropertyValue::{Absent, Number, Text};
        let guid = Guid(vdev.guid);
        let tree = self.tree().config();
        let is_leaf = guid != tree.guid && !tree.tops.iter().any(|top| top.guid == guid);
        if info.name == "allocating" && is_leaf {
            return (Absent, PropertySource::None);
        }
        let default = match info.name {
            "allocating" => 1,
            "failfast" if guid == tree.guid => 1,
            "failfast" => 2,
            _ => u64::MAX,
        };
        let stored = self.vdev_properties.get(guid, info.name);
        let source = match &stored {
            Some(StoredValue::Number(number)) if *number == default => PropertySource::Default,
            Some(_) => PropertySource::Local,
            None => PropertySource::Default,
        };
        let value = match (stored, info.kind) {
            (Some(StoredValue::Text(text)), _) => Text(text),
            (Some(StoredValue::Number(u64::MAX)), _) => Absent,
            (stored, PropertyKind::Index(words)) => {
                let number = match stored {
                    Some(StoredValue::Number(number)) => number,
                    _ => default,
                };
                let at = usize::try_from(number).unwrap_or(usize::MAX);
                words
                    .get(at)
                    .map_or(Absent, |word| Text((*word).to_owned()))
            }
            (Some(StoredValue::Number(number)), _) => Number(number),
            (None, _) => Absent,
        };
        (value, source)
    }

    /// What configuration and devices say of a vdev.
    fn device_of(&self, guid: u64) -> Device {
        let tree = self.tree().config();
        let guid = Guid(guid);
        let mut device = Device::default();
        if let Some(leaf) = self.tree().leaves().iter().find(|leaf| leaf.guid == guid) {
            device.is_device = true;
            device.psize = leaf.psize;
            device.asize = leaf.psize.saturating_sub(LABELS_BYTES);
        }
        if let Some(top) = tree.tops.iter().find(|top| top.guid == guid) {
            device.asize = top.asize;
            if !device.is_device {
                device.psize = top.asize;
            }
            device.parity = parity(top);
        }
        device
    }
}

/// What is to be known of a vdev beside its status.
#[derive(Default)]
struct Device {
    is_device: bool,
    asize: u64,
    psize: u64,
    parity: u64,
}

fn parity(top: &VdevConfig) -> u64 {
    match top.kind {
        VdevKind::Raidz | VdevKind::Draid => u64::from(top.nparity().unwrap_or(1)),
        _ => 0,
    }
}

/// Finds a vdev and its parent below another one.
fn find<'a>(
    at: &'a VdevStatus,
    parent: Option<&'a VdevStatus>,
    guid: u64,
) -> Option<(&'a VdevStatus, Option<&'a VdevStatus>)> {
    if at.guid == guid {
        return Some((at, parent));
    }
    at.children
        .iter()
        .find_map(|child| find(child, Some(at), guid))
}
