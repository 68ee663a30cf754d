//! Properties of vdevs (`zpool get` and `zpool set` with a vdev): read from status and configuration, or stored in the vdev's ZAP.
//!
//! What is stored: whether the vdev takes new blocks, how many errors take a device out, whether slow devices sit out, a comment, and what
//! users note; a device that is told to sit out does so in memory alone. Values of a leaf are lost with it when it
//! is replaced; those of the top-level vdev stand behind them.
// OpenZFS: module/zfs/vdev.c, vdev_prop_get, vdev_prop_set, vdev_props_set_sync

mod table;

use std::collections::BTreeMap;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use dmu::{Tx, zap};
use ondisk::{Guid, ObjectId};
use vdev::{ErrorBurst, ErrorLimits, TreeConfig, VdevConfig, VdevError, VdevKind};

pub use self::table::{VDEV_PROPERTIES, VdevPropertyInfo};
use crate::PoolError;
use crate::create::ROOT_ZAP;
use crate::discover;
use crate::pool::{ImportedPool, Pool};
use crate::properties::get::text_entry;
use crate::properties::stored::{StoredValue, of_users};
use crate::properties::{PropertyEntry, PropertyKind, PropertySource, PropertyValue};
use crate::status::{PoolStatus, VdevStatus};

/// Said of a vdev that has no such property, or no place for it.
// OpenZFS: lib/libzfs/libzfs_pool.c, zpool_set_vdev_prop
const NOT_SUPPORTED: &str = "property not supported for this vdev";

/// Bytes of a device that labels and boot area take.
const LABELS_BYTES: u64 = ondisk::label::DATA_START + ondisk::label::END_RESERVED;

/// Properties that devices obey: how many errors are too many, and whether slow ones sit out.
const OBEYED: &[&str] = &[
    "autosit",
    "checksum_n",
    "checksum_t",
    "io_n",
    "io_t",
    "slow_io_n",
    "slow_io_t",
];

impl Pool {
    /// Returns the properties of a vdev (the root's guid is the pool's) in the order of `zpool get all`, then those of users.
    ///
    /// # Errors
    /// `NoSuchDevice`.
    pub fn vdev_properties(&self, vdev: u64) -> Result<Vec<PropertyEntry>, PoolError> {
        let status = self.0.status();
        let (found, parent) = find_anywhere(&status, vdev).ok_or(PoolError::NoSuchDevice)?;
        let seen = self.0.see(found, parent);
        let own = VDEV_PROPERTIES.iter().map(|info| {
            let (value, source) = match info.settable {
                true => seen.settable(info),
                false => seen.shown(info),
            };
            PropertyEntry {
                name: info.name.to_owned(),
                kind: info.kind,
                value,
                source,
            }
        });
        let of_users = of_users(&seen.stored).into_iter();
        let of_users = of_users.map(|(name, text)| text_entry(name, &text));
        Ok(own.chain(of_users).collect())
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
        find_anywhere(&self.0.status(), vdev).ok_or(PoolError::NoSuchDevice)?;
        let on = stored == Some(StoredValue::Number(1));
        match name {
            "allocating" => self.0.check_allocating(guid, on)?,
            "sit_out" => return self.0.sit_out(guid, on),
            "path" => return self.0.set_path(guid, value).await,
            "autosit" => self.0.check_has_parity(guid)?,
            _ => {}
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
        let tops = tree.tops.iter().filter_map(|top| top.zap_top);
        let leaves = tree.leaves().into_iter().filter_map(|leaf| leaf.zap_leaf);
        let zaps = tree
            .extra
            .u64(ROOT_ZAP)
            .into_iter()
            .chain(tops)
            .chain(leaves);
        for vdev_zap in zaps.filter(|&object| object != 0).map(ObjectId) {
            for entry in zap::entries(self.mos(), vdev_zap).await? {
                let Ok(name) = String::from_utf8(entry.name) else {
                    continue;
                };
                let is_property = table::info(&name).is_some_and(|info| info.settable);
                let is_of_users = name.contains(':') && !table::is_reserved(&name);
                if is_property || is_of_users {
                    let value = StoredValue::from_zap(entry.value);
                    self.vdev_properties.note(vdev_zap, &name, value);
                }
            }
        }
        self.apply_vdev_properties();
        Ok(())
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
        let Some(vdev_zap) = zap_of(&self.tree().config(), guid) else {
            return Err(PoolError::Invalid(NOT_SUPPORTED.to_owned()));
        };
        match &value {
            Some(value) => zap::update(self.mos(), vdev_zap, name, &value.to_zap(), tx).await?,
            None if self.vdev_properties.of(vdev_zap).contains_key(name) => {
                zap::remove(self.mos(), vdev_zap, name, tx).await?;
            }
            None => {}
        }
        if name == "allocating" {
            self.allocate(guid, value != Some(StoredValue::Number(0)));
        }
        self.vdev_properties.note(vdev_zap, name, value);
        self.apply_vdev_properties();
        Ok(())
    }

    /// Refuses to have no vdev left that takes new blocks of its kind.
    fn check_allocating(&self, guid: Guid, allocating: bool) -> Result<(), PoolError> {
        let tops = self.tree().tops();
        let Some(top) = tops.iter().find(|top| top.guid == guid) else {
            return Err(PoolError::Invalid(NOT_SUPPORTED.to_owned()));
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

    /// Has a device sit out, or be read again, until it is opened again.
    // OpenZFS: module/zfs/vdev.c, vdev_prop_set (VDEV_PROP_SIT_OUT); lib/libzfs/libzfs_util.c (words)
    fn sit_out(&self, guid: Guid, on: bool) -> Result<(), PoolError> {
        let outcome = self.tree().set_sit_out(guid, on);
        outcome.map_err(|error| {
            let why = match error {
                VdevError::Required => "too many disks already sitting out",
                _ => NOT_SUPPORTED,
            };
            PoolError::Invalid(why.to_owned())
        })
    }

    /// Has a device go by another path, at which it is.
    // OpenZFS: module/zfs/vdev.c, vdev_prop_set (VDEV_PROP_PATH)
    async fn set_path(self: &Rc<Self>, guid: Guid, value: &str) -> Result<(), PoolError> {
        let refuse = |why: &str| Err(PoolError::Invalid(why.to_owned()));
        let tree = self.tree().config();
        let is_device = tree
            .leaves()
            .iter()
            .any(|leaf| leaf.guid == guid && leaf.path.is_some());
        if !is_device {
            return refuse(NOT_SUPPORTED);
        }
        let path = Path::new(value);
        if !path.is_absolute() {
            return refuse(&format!("'{value}' must be an absolute path"));
        }
        match discover::guid_at(self.handle(), path).await {
            Ok(Some(found)) if found == guid.0 => {}
            Ok(_) => return refuse(&format!("the device at '{value}' is another one")),
            Err(why) => return refuse(&format!("'{value}': {why}")),
        }
        let path = value.to_owned();
        self.run_in_sync(async move |imported: Rc<Self>, tx: Rc<Tx>| {
            let text = format!("vdev_guid={}: path={path}", guid.0);
            imported.tree().update_config(guid, |vdev| {
                vdev.path = Some(path);
                vdev.open_path = None;
            });
            imported.dirty_config();
            imported.log_internal("vdev set", &text, &tx).await
        })
        .await
    }

    /// Refuses what is for top-level vdevs with parity.
    fn check_has_parity(&self, guid: Guid) -> Result<(), PoolError> {
        let tree = self.tree().config();
        let top = tree.tops.iter().find(|top| top.guid == guid);
        match top.is_some_and(|top| parity(top) > 0) {
            true => Ok(()),
            false => Err(PoolError::Invalid(NOT_SUPPORTED.to_owned())),
        }
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

    /// Says to each device how many errors take it out, as its own properties, those of its top-level vdev, or those of the root say; and to
    /// the vdevs with parity whether slow devices sit out.
    pub(crate) fn apply_vdev_properties(&self) {
        if !self.vdev_properties.has_any(OBEYED) {
            return;
        }
        let tree = self.tree().config();
        for top in tree.tops.iter().filter(|top| parity(top) > 0) {
            let vdev_zap = zap_of(&tree, top.guid);
            let set = vdev_zap.and_then(|object| self.vdev_properties.number(object, "autosit"));
            self.tree().set_autosit(top.guid, set == Some(1));
        }
        for leaf in tree.leaves() {
            let top = tree.tops.iter().find(|top| top.holds(leaf.guid));
            let from = [Some(leaf.guid), top.map(|top| top.guid), Some(tree.guid)];
            let zaps = from.map(|guid| zap_of(&tree, guid?));
            let inherited = |name: &str| {
                let mut zaps = zaps.iter().flatten();
                zaps.find_map(|&vdev_zap| self.vdev_properties.number(vdev_zap, name))
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
                slow: slow.map_or(default.slow, |(count, seconds)| ErrorBurst {
                    count,
                    within: Duration::from_secs(seconds),
                }),
            };
            self.tree().limit_errors(leaf.guid, limits);
        }
    }

    /// What there is to know of a vdev beside its status.
    fn see<'a>(&self, status: &'a VdevStatus, parent: Option<&'a VdevStatus>) -> Seen<'a> {
        let tree = self.tree().config();
        let guid = Guid(status.guid);
        let leaves = self.tree().leaves();
        let psize = leaves
            .iter()
            .find(|leaf| leaf.guid == guid)
            .map(|leaf| leaf.psize);
        let top = tree.tops.iter().find(|top| top.guid == guid);
        let asize = match (top, psize) {
            (Some(top), _) => top.asize,
            (None, psize) => psize.unwrap_or(0).saturating_sub(LABELS_BYTES),
        };
        Seen {
            status,
            parent,
            is_root: guid == tree.guid,
            is_top: top.is_some(),
            is_device: psize.is_some(),
            asize,
            psize: psize.unwrap_or(asize),
            parity: top.map_or(0, parity),
            sits_out: self.tree().sits_out(guid),
            stored: zap_of(&tree, guid)
                .map(|vdev_zap| self.vdev_properties.of(vdev_zap))
                .unwrap_or_default(),
        }
    }
}

/// The ZAP of a vdev, where it has one.
fn zap_of(tree: &TreeConfig, guid: Guid) -> Option<ObjectId> {
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

/// A vdev whose properties are asked for.
struct Seen<'a> {
    status: &'a VdevStatus,
    parent: Option<&'a VdevStatus>,
    is_root: bool,
    is_top: bool,
    is_device: bool,
    asize: u64,
    psize: u64,
    parity: u64,
    /// `None` where no device can.
    sits_out: Option<bool>,
    stored: BTreeMap<String, StoredValue>,
}

impl Seen<'_> {
    /// The value of a property that cannot be set, and where it comes from.
    fn shown(&self, info: &VdevPropertyInfo) -> (PropertyValue, PropertySource) {
        use PropertySource::{Default, None};
        use PropertyValue::{Absent, Number, Text};
        let switch = |on: bool| (Text(if on { "on" } else { "off" }.to_owned()), None);
        let text = |text: Option<String>| text.map_or((Absent, Default), |text| (Text(text), None));
        let vdev = self.status;
        let number = match info.name {
            "capacity" => (vdev.allocated_bytes * 100)
                .checked_div(vdev.size_bytes)
                .unwrap_or(0),
            "guid" => vdev.guid,
            "asize" => self.asize,
            "psize" => self.psize,
            "ashift" => vdev.ashift,
            "size" => vdev.size_bytes,
            "free" => vdev.size_bytes.saturating_sub(vdev.allocated_bytes),
            "allocated" => vdev.allocated_bytes,
            "parity" => self.parity,
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
            "trim_support" if self.is_device => {
                return switch(!vdev.trim.unsupported);
            }
            "path" => return text(vdev.path.as_ref().map(|path| path.display().to_string())),
            "devid" | "physpath" | "encpath" | "fru" | "trim_support" => return (Absent, Default),
            "parent" => return text(self.parent.map(|parent| parent.name.clone())),
            "children" => {
                let names: Vec<&str> = vdev.children.iter().map(|c| c.name.as_str()).collect();
                return text((!names.is_empty()).then(|| names.join(",")));
            }
            // Of I/O that is none here, or that is not counted: initializing, claims, frees.
            _ => 0,
        };
        (Number(number), None)
    }

    /// The value of a property that is stored, and where it comes from.
    fn settable(&self, info: &VdevPropertyInfo) -> (PropertyValue, PropertySource) {
        use PropertyValue::{Absent, Number, Text};
        if info.name == "allocating" && !self.is_root && !self.is_top {
            return (Absent, PropertySource::None);
        }
        if info.name == "path" {
            return self.shown(info);
        }
        if info.name == "sit_out" {
            let word = self.sits_out.map(|out| if out { "on" } else { "off" });
            let value = word.map_or(Absent, |word| Text(word.to_owned()));
            return (value, PropertySource::None);
        }
        if info.name == "autosit" && self.parity == 0 {
            return (Absent, PropertySource::None);
        }
        let default = match info.name {
            "allocating" => 1,
            "autosit" => 0,
            "failfast" if self.is_root => 1,
            "failfast" => 2,
            _ => u64::MAX,
        };
        let number = match self.stored.get(info.name) {
            Some(StoredValue::Text(text)) => return (Text(text.clone()), PropertySource::Local),
            Some(StoredValue::Number(number)) => *number,
            None => default,
        };
        let source = match number == default {
            true => PropertySource::Default,
            false => PropertySource::Local,
        };
        let value = match info.kind {
            PropertyKind::Index(words) => {
                let word = usize::try_from(number).ok().and_then(|at| words.get(at));
                word.map_or(Absent, |word| Text((*word).to_owned()))
            }
            _ if number == u64::MAX => Absent,
            _ => Number(number),
        };
        (value, source)
    }
}

fn parity(top: &VdevConfig) -> u64 {
    match top.kind {
        VdevKind::Raidz | VdevKind::Draid => u64::from(top.nparity().unwrap_or(1)),
        _ => 0,
    }
}

/// Finds a vdev and its parent in a pool, also among its cache devices and spares.
fn find_anywhere(status: &PoolStatus, guid: u64) -> Option<(&VdevStatus, Option<&VdevStatus>)> {
    let others = status.caches.iter().chain(&status.spares);
    let mut all = std::iter::once(&status.root).chain(others);
    all.find_map(|vdev| find(vdev, None, guid))
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
