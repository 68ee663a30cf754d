//! Setting pool properties: checking a value, and storing it in syncing context.
// OpenZFS: lib/libzfs/libzfs_pool.c, zpool_valid_proplist (texts); module/zfs/spa.c, spa_sync_props

use std::collections::BTreeMap;
use std::rc::Rc;

use dmu::{Tx, zap};
use dsl::property::is_user_property;
use ondisk::feature::Feature;
use ondisk::{ObjectType, pool_version};
use vdev::{VdevConfig, VdevKind};

use crate::PoolError;
use crate::features::{Support, support};
use crate::objects::DIRECTORY;
use crate::pool::{ImportedPool, Pool};
use crate::properties::stored::StoredValue;
use crate::properties::{PoolProperty, PropertyKind, parse_index};

const COMMENT_MAX: usize = 32;

/// Most bytes of a text, with the byte that ends it.
// OpenZFS: ZAP_MAXVALUELEN
pub(crate) const TEXT_MAX: usize = 8192;

/// A checked setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PropertyChange {
    /// Goes to the `pool_props` ZAP.
    Store(String, StoredValue),
    /// Leaves it.
    Remove(String),
    /// Sector shift for new vdevs; 0 lets the devices decide.
    Ashift(u8),
    /// Goes to the labels.
    Comment(Option<String>),
    /// Goes to the labels.
    Compatibility(Option<String>),
    /// Kept in memory: where the pool is remembered.
    Cachefile(Option<String>),
    /// Name of a dataset, looked up when set.
    Bootfs(Option<String>),
    /// Upgrades the pool to this version.
    Version(u64),
    /// Enables a feature.
    Feature { name: String, enabled: bool },
}

fn bad(text: impl Into<String>) -> PoolError {
    PoolError::Invalid(text.into())
}

/// Checks one `NAME=VALUE`.
pub(crate) fn parse(name: &str, value: &str) -> Result<PropertyChange, PoolError> {
    if let Some(feature) = name.strip_prefix("feature@") {
        return parse_feature(feature, name, value);
    }
    if name.contains(':') {
        return Ok(match parse_user(name, value)? {
            Some(stored) => PropertyChange::Store(name.to_owned(), stored),
            None => PropertyChange::Remove(name.to_owned()),
        });
    }
    let property = PoolProperty::parse(name)
        .filter(|p| p.info().name == name || p.info().column.to_lowercase() == name)
        .ok_or_else(|| bad(format!("invalid property '{name}'")))?;
    if !property.info().settable {
        return Err(bad(format!("'{name}' is readonly")));
    }
    parse_native(property, name, value)
}

fn parse_feature(feature: &str, name: &str, value: &str) -> Result<PropertyChange, PoolError> {
    if Feature::by_name(feature).is_none() {
        return Err(bad(format!("feature '{feature}' unsupported by kernel")));
    }
    let enabled = match value {
        "enabled" => true,
        "disabled" => false,
        _ => {
            return Err(bad(format!(
                "property '{name}' can only be set to 'enabled' or 'disabled'"
            )));
        }
    };
    Ok(PropertyChange::Feature {
        name: feature.to_owned(),
        enabled,
    })
}

/// Reads a property of users, of a pool or a vdev. `None` takes it away.
pub(crate) fn parse_user(name: &str, value: &str) -> Result<Option<StoredValue>, PoolError> {
    // OpenZFS: module/zcommon/zprop_common.c, zprop_valid_char (no `+`); man/man7/zpoolprops.7
    if !is_user_property(name) || name.contains('+') || name.starts_with('-') {
        return Err(bad(format!("invalid property '{name}'")));
    }
    if name.len() >= 256 {
        return Err(bad(format!("property name '{name}' is too long")));
    }
    if value.len() >= TEXT_MAX {
        return Err(bad(format!("property value '{value}' is too long")));
    }
    Ok((!value.is_empty()).then(|| StoredValue::Text(value.to_owned())))
}

fn parse_native(
    property: PoolProperty,
    name: &str,
    value: &str,
) -> Result<PropertyChange, PoolError> {
    let info = property.info();
    let given = || (!value.is_empty()).then(|| value.to_owned());
    let store = |number| PropertyChange::Store(info.name.to_owned(), StoredValue::Number(number));
    match property {
        PoolProperty::Ashift => parse_ashift(name, value),
        PoolProperty::Comment => {
            if value.len() > COMMENT_MAX {
                return Err(bad(format!(
                    "comment must not exceed {COMMENT_MAX} characters"
                )));
            }
            if !value.chars().all(|c| c == ' ' || c.is_ascii_graphic()) {
                return Err(bad("comment may only have printable characters".to_owned()));
            }
            Ok(PropertyChange::Comment(given()))
        }
        PoolProperty::Compatibility => Ok(PropertyChange::Compatibility(
            given().filter(|value| value != "off"),
        )),
        PoolProperty::Cachefile => {
            if !value.is_empty() && value != "none" && !value.starts_with('/') {
                return Err(bad(format!(
                    "property '{name}' must be empty, an absolute path, or 'none'"
                )));
            }
            Ok(PropertyChange::Cachefile(given()))
        }
        PoolProperty::Bootfs => Ok(PropertyChange::Bootfs(given())),
        PoolProperty::Altroot => Err(bad(format!(
            "property '{name}' can only be set during pool creation or import"
        ))),
        PoolProperty::Readonly => Err(bad(format!(
            "property '{name}' can only be set at import time"
        ))),
        PoolProperty::Version => match parse_number(value)? {
            version if pool_version::is_known(version) => Ok(PropertyChange::Version(version)),
            _ => Err(bad(format!("property '{name}' number {value} is invalid."))),
        },
        PoolProperty::DedupTableQuota => match value {
            "auto" => Ok(store(u64::MAX)),
            "none" => Ok(store(0)),
            _ => {
                let bytes = dsl::property::parse_number(value);
                let bytes = bytes.map_err(|_| bad(format!("bad numeric value '{value}'")))?;
                Ok(store(bytes))
            }
        },
        _ => match info.kind {
            PropertyKind::Index(_) => {
                let number = parse_index(info, value)
                    .map_err(|_| bad(format!("'{name}' must be one of '{}'", info.values)))?;
                Ok(store(number))
            }
            _ => Err(bad(format!("property '{name}' cannot be set"))),
        },
    }
}

fn parse_number(value: &str) -> Result<u64, PoolError> {
    let number = value.parse();
    number.map_err(|_| bad(format!("bad numeric value '{value}'")))
}

fn parse_ashift(name: &str, value: &str) -> Result<PropertyChange, PoolError> {
    let number = parse_number(value)?;
    match u8::try_from(number) {
        Ok(ashift @ (0 | 9..=16)) => Ok(PropertyChange::Ashift(ashift)),
        _ => Err(bad(format!(
            "property '{name}' number {number} is invalid, only values between 9 and 16 \
                 are allowed."
        ))),
    }
}

impl Pool {
    /// Takes note that a dataset was destroyed: the property `bootfs` was cleared with it if it named it.
    pub fn dataset_destroyed(&self, object: u64) {
        let mut properties = self.0.properties.0.borrow_mut();
        if matches!(properties.get("bootfs"), Some(StoredValue::Number(booted)) if *booted == object)
        {
            properties.remove("bootfs");
        }
    }

    /// Returns the version of the pool: 1 to 28, or 5000 when features say what it knows.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.0.hierarchy().features().pool_version()
    }

    /// Upgrades the pool to a newer version and waits until that is on stable storage. Nothing happens when it is of that or a newer
    /// version.
    ///
    /// # Errors
    /// `Invalid` for a version that is not known; `ReadOnly`, `Suspended`.
    pub async fn upgrade(&self, version: u64) -> Result<(), PoolError> {
        if self.version() >= version {
            return Ok(());
        }
        self.set_property("version", &version.to_string()).await
    }

    /// Sets a pool property (`zpool set NAME=VALUE`) and waits until it is on stable storage.
    ///
    /// # Errors
    /// `Invalid` with OpenZFS's words for values that are not accepted.
    pub async fn set_property(&self, name: &str, value: &str) -> Result<(), PoolError> {
        let change = parse(name, value)?;
        self.check_change(name, &change)?;
        if let PropertyChange::Cachefile(path) = &change {
            self.0.session.cachefile.replace(path.clone());
            return Ok(());
        }
        let name = name.to_owned();
        let value = value.to_owned();
        self.0
            .run_in_sync(async move |imported: Rc<ImportedPool>, tx: Rc<Tx>| {
                imported.apply(change, &tx).await?;
                if name == "multihost" {
                    imported.start_heartbeats();
                }
                imported
                    .log_internal("set", &format!("{name}={value}"), &tx)
                    .await
            })
            .await
    }

    /// Refuses properties that a pool which is split off cannot get.
    pub(crate) fn check_split_properties(
        &self,
        properties: &[(String, String)],
    ) -> Result<(), PoolError> {
        for (name, value) in properties {
            let change = parse(name, value)?;
            if matches!(change, PropertyChange::Bootfs(_)) {
                return Err(bad(format!(
                    "property '{name}' cannot be set at creation or import time"
                )));
            }
            self.check_change(name, &change)?;
        }
        Ok(())
    }

    /// Refuses what this pool cannot be set to.
    fn check_change(&self, name: &str, change: &PropertyChange) -> Result<(), PoolError> {
        match change {
            PropertyChange::Feature { enabled: false, .. } => {
                return Err(PoolError::Invalid(format!(
                    "property '{name}' can only be set to 'disabled' at creation time"
                )));
            }
            PropertyChange::Feature {
                name: feature,
                enabled: true,
            } => {
                let known = Feature::by_name(feature).expect("parse looked it up");
                if support(known) != Support::Full
                    && !self.0.hierarchy().features().is_enabled(feature)
                {
                    return Err(PoolError::Invalid(format!(
                        "feature '{feature}' is not supported by this software yet"
                    )));
                }
            }
            PropertyChange::Version(version)
                if *version < self.0.hierarchy().features().pool_version() =>
            {
                return Err(bad(format!(
                    "property '{name}' number {version} is invalid."
                )));
            }
            PropertyChange::Bootfs(_)
                if !self
                    .0
                    .hierarchy()
                    .features()
                    .has_version(pool_version::BOOTFS) =>
            {
                return Err(PoolError::Invalid(format!(
                    "pool must be upgraded to support '{name}' property"
                )));
            }
            PropertyChange::Store(key, StoredValue::Number(1))
                if key == "multihost" && self.0.session.host.hostid == 0 =>
            {
                return Err(PoolError::Invalid(
                    "property 'multihost' requires a non-zero system hostid".into(),
                ));
            }
            _ => {}
        }
        Ok(())
    }
}

impl ImportedPool {
    /// Applies a checked setting in syncing context.
    async fn apply(&self, change: PropertyChange, tx: &Tx) -> Result<(), PoolError> {
        assert!(tx.is_syncing(), "apply happens in syncing context");
        match change {
            PropertyChange::Store(key, value) => {
                store_all(self, &BTreeMap::from([(key, value)]), tx).await
            }
            PropertyChange::Ashift(ashift) => {
                let stored = StoredValue::Number(u64::from(ashift));
                store_all(self, &BTreeMap::from([("ashift".into(), stored)]), tx).await
            }
            PropertyChange::Remove(key) => {
                let object = self.objects.get().properties;
                if object.0 != 0 && self.properties.0.borrow().contains_key(&key) {
                    zap::remove(self.mos(), object, &key, tx).await?;
                    self.properties.0.borrow_mut().remove(&key);
                }
                Ok(())
            }
            PropertyChange::Comment(text) => {
                self.config
                    .change_identity(|identity| identity.comment = text);
                self.dirty_config();
                Ok(())
            }
            PropertyChange::Compatibility(text) => {
                self.config
                    .change_identity(|identity| identity.compatibility = text);
                self.dirty_config();
                Ok(())
            }
            PropertyChange::Cachefile(path) => {
                self.session.cachefile.replace(path);
                Ok(())
            }
            PropertyChange::Bootfs(None) => {
                let stored = StoredValue::Number(0);
                store_all(self, &BTreeMap::from([("bootfs".into(), stored)]), tx).await
            }
            PropertyChange::Bootfs(Some(dataset)) => {
                let object = self.hierarchy().info(&dataset).await?.object;
                let stored = StoredValue::Number(object.0);
                store_all(self, &BTreeMap::from([("bootfs".into(), stored)]), tx).await
            }
            PropertyChange::Version(version) => self.upgrade(version, tx).await,
            PropertyChange::Feature { name, .. } => {
                self.upgrade(pool_version::FEATURES, tx).await?;
                self.hierarchy().enable_feature(&name, tx).await?;
                if self.lacks_root_zap() {
                    self.create_vdev_objects(tx).await?;
                }
                Ok(())
            }
        }
    }

    /// Whether a top-level vdev stores parity, so that blocks take more space than they count.
    fn has_parity(&self) -> bool {
        let tree = self.tree().config();
        let stores_parity =
            |top: &VdevConfig| matches!(top.kind, VdevKind::Raidz | VdevKind::Draid);
        tree.tops.iter().any(stores_parity)
    }

    /// Makes the pool one of version `to`, where it is of an older one. Labels and uberblock of this txg say so.
    async fn upgrade(&self, to: u64, tx: &Tx) -> Result<(), PoolError> {
        assert!(tx.is_syncing(), "a pool is upgraded in syncing context");
        let features = self.hierarchy().features();
        if features.has_version(to) {
            return Ok(());
        }
        let counts_raw = !features.has_version(pool_version::RAIDZ_DEFLATE);
        if counts_raw && to >= pool_version::RAIDZ_DEFLATE && !self.has_parity() {
            // Without raidz both ways of counting space give the same numbers; with it, the old way stays.
            // OpenZFS: module/zfs/spa.c, spa_sync
            zap::add_u64(self.mos(), DIRECTORY, "deflate", 1, tx).await?;
        }
        self.hierarchy().upgrade(to, tx).await?;
        self.config
            .change_identity(|identity| identity.version = to);
        self.dirty_config();
        Ok(())
    }

    /// Reads the stored properties of an existing pool.
    pub(crate) async fn load_properties(&self) -> Result<(), PoolError> {
        let object = self.objects.get().properties;
        if object.0 == 0 {
            return Ok(());
        }
        let mut properties = BTreeMap::new();
        for entry in zap::entries(self.mos(), object).await? {
            let Ok(name) = String::from_utf8(entry.name) else {
                continue;
            };
            if let Some(stored) = StoredValue::from_zap(entry.value) {
                properties.insert(name, stored);
            }
        }
        self.properties.0.replace(properties);
        Ok(())
    }
}

/// Stores properties in the `pool_props` ZAP, creating it when it is first needed.
pub(crate) async fn store_all(
    imported: &ImportedPool,
    stored: &BTreeMap<String, StoredValue>,
    tx: &Tx,
) -> Result<(), PoolError> {
    assert!(tx.is_syncing(), "store all happens in syncing context");
    if stored.is_empty() {
        return Ok(());
    }
    let mut object = imported.objects.get().properties;
    if object.0 == 0 {
        let spec = zap::ZapSpec::new(ObjectType::POOL_PROPS);
        object = zap::create(imported.mos(), &spec, tx).await?;
        zap::add_u64(imported.mos(), DIRECTORY, "pool_props", object.0, tx).await?;
        imported.set_objects(|objects| objects.properties = object);
    }
    for (key, value) in stored {
        zap::update(imported.mos(), object, key, &value.to_zap(), tx).await?;
        imported
            .properties
            .0
            .borrow_mut()
            .insert(key.clone(), value.clone());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_checked_with_the_known_words() {
        let fails = |name: &str, value: &str, text: &str| {
            assert_eq!(parse(name, value).unwrap_err().to_string(), text);
        };
        fails("size", "1G", "'size' is readonly");
        fails("nonsense", "1", "invalid property 'nonsense'");
        fails("org:Big", "1", "invalid property 'org:Big'");
        fails("org:a[", "", "invalid property 'org:a['");
        fails("org:a+b", "1", "invalid property 'org:a+b'");
        fails(
            "failmode",
            "never",
            "'failmode' must be one of 'wait | continue | panic'",
        );
        fails(
            "ashift",
            "17",
            "property 'ashift' number 17 is invalid, only values between 9 and 16 are allowed.",
        );
        fails(
            "feature@lz4_compress",
            "on",
            "property 'feature@lz4_compress' can only be set to 'enabled' or 'disabled'",
        );
        fails(
            "cachefile",
            "here",
            "property 'cachefile' must be empty, an absolute path, or 'none'",
        );
        let stored = PropertyChange::Store("failmode".into(), StoredValue::Number(1));
        assert_eq!(parse("failmode", "continue").unwrap(), stored);
        assert_eq!(parse("ashift", "12").unwrap(), PropertyChange::Ashift(12));
        assert_eq!(parse("comment", "").unwrap(), PropertyChange::Comment(None));
    }
}
