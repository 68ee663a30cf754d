//! Reading pool properties: native ones, features, those of the user.

use super::stored::StoredValue;
use super::{
    PROPERTIES, PoolProperty, PropertyEntry, PropertyInfo, PropertyKind, PropertySource,
    PropertyValue,
};
use crate::PoolError;
use crate::features::listed_features;
use crate::pool::{ImportedPool, Pool};
use crate::status::PoolStatus;

impl Pool {
    /// Returns all properties in the order of `zpool get all`: native ones, features, those of the
    /// user.
    ///
    /// # Errors
    /// When the boot file system's name cannot be found.
    pub async fn properties(&self) -> Result<Vec<PropertyEntry>, PoolError> {
        let status = self.0.status();
        let mut entries = Vec::new();
        for info in PROPERTIES {
            entries.push(self.0.property(info.property, &status).await?);
        }
        let features = self.0.hierarchy().features();
        for feature in listed_features() {
            let value = match features.refcount(feature.name) {
                None => "disabled",
                Some(0) => "enabled",
                Some(_) => "active",
            };
            entries.push(text_entry(format!("feature@{}", feature.name), value));
        }
        let (read, write) = features.unknown();
        for (guid, count) in read {
            let word = if count == 0 { "inactive" } else { "active" };
            entries.push(text_entry(format!("unsupported@{guid}"), word));
        }
        for (guid, count) in write {
            let word = if count == 0 { "inactive" } else { "readonly" };
            entries.push(text_entry(format!("unsupported@{guid}"), word));
        }
        for (name, text) in self.0.properties.user() {
            entries.push(text_entry(name, &text));
        }
        Ok(entries)
    }

    /// Returns one property: native, `feature@x`, `unsupported@guid` or a user property.
    ///
    /// # Errors
    /// `NoSuchProperty`.
    pub async fn property(&self, name: &str) -> Result<PropertyEntry, PoolError> {
        if let Some(property) = PoolProperty::parse(name) {
            return self.0.property(property, &self.0.status()).await;
        }
        let all = self.properties().await?;
        if let Some(entry) = all.into_iter().find(|entry| entry.name == name) {
            return Ok(entry);
        }
        if name.contains(':') {
            return Ok(PropertyEntry {
                name: name.to_owned(),
                kind: PropertyKind::Text,
                value: PropertyValue::Absent,
                source: PropertySource::None,
            });
        }
        Err(PoolError::NoSuchProperty(name.to_owned()))
    }

    /// Returns where the pool is to be remembered: `None` is the default place, `none` nowhere.
    #[must_use]
    pub fn cachefile(&self) -> Option<String> {
        self.0.session.cachefile.borrow().clone()
    }
}

pub(crate) fn text_entry(name: String, text: &str) -> PropertyEntry {
    PropertyEntry {
        name,
        kind: PropertyKind::Text,
        value: PropertyValue::Text(text.to_owned()),
        source: PropertySource::Local,
    }
}

/// The word of a property that is one of several.
fn index_word(
    info: &PropertyInfo,
    default: bool,
    stored: Option<StoredValue>,
) -> (PropertyValue, PropertySource) {
    let default = u64::from(default);
    let number = match stored {
        Some(StoredValue::Number(number)) => number,
        _ => default,
    };
    let PropertyKind::Index(names) = info.kind else {
        unreachable!("these properties are word lists")
    };
    let at = usize::try_from(number).unwrap_or(usize::MAX);
    let text = names.get(at).copied().unwrap_or("-");
    let source = match number == default {
        true => PropertySource::Default,
        false => PropertySource::Local,
    };
    (PropertyValue::Text(text.to_owned()), source)
}

impl ImportedPool {
    async fn property(
        &self,
        property: PoolProperty,
        status: &PoolStatus,
    ) -> Result<PropertyEntry, PoolError> {
        use PropertySource::{Default, Local, None};
        use PropertyValue::{Absent, Number, Text};
        let info = property.info();
        let root = &status.root;
        let words = |text: &str| Text(text.to_owned());
        let stored = self.properties.get(info.name);
        let given =
            |text: Option<String>| text.map_or((Absent, Default), |text| (Text(text), Local));
        let (value, source) = match property {
            PoolProperty::Size => (Number(root.size_bytes), None),
            PoolProperty::Capacity => {
                let percent = (root.allocated_bytes * 100)
                    .checked_div(root.size_bytes)
                    .unwrap_or(0);
                (Number(percent), None)
            }
            PoolProperty::Altroot => {
                let path = self.session.altroot.as_ref();
                given(path.map(|path| path.display().to_string()))
            }
            PoolProperty::Health => (words(status.health.as_str()), None),
            PoolProperty::Guid => (Number(status.guid), None),
            PoolProperty::LoadGuid => (Number(self.session.load_guid), None),
            // Pools with features have no version to speak of.
            PoolProperty::Version => match self.hierarchy().features().pool_version() {
                ondisk::SPA_VERSION_FEATURES => (Absent, Default),
                version => (Number(version), Local),
            },
            PoolProperty::Bootfs => match stored {
                Some(StoredValue::Number(object)) if object != 0 => {
                    (self.dataset_name(object).await, Local)
                }
                _ => (Absent, Default),
            },
            PoolProperty::Cachefile => given(self.session.cachefile.borrow().clone()),
            PoolProperty::Dedupratio => {
                let tables = self.space().dedup();
                (Number(tables.map_or(100, |t| t.ratio_percent())), None)
            }
            PoolProperty::DedupTableSize => match self.space().dedup() {
                Some(tables) => (Number(tables.table_bytes().await?), None),
                Option::None => (Number(0), None),
            },
            PoolProperty::Bcloneused | PoolProperty::Bclonesaved | PoolProperty::Bcloneratio => {
                (Number(self.clone_number(property)), None)
            }
            PoolProperty::Free => (
                Number(root.size_bytes.saturating_sub(root.allocated_bytes)),
                None,
            ),
            PoolProperty::Allocated => (Number(root.allocated_bytes), None),
            PoolProperty::Readonly => (
                words(if self.session.readonly { "on" } else { "off" }),
                None,
            ),
            PoolProperty::Comment => given(self.config.identity().comment.clone()),
            PoolProperty::Compatibility => match &self.config.identity().compatibility {
                Some(text) => (Text(text.clone()), Local),
                Option::None => (words("off"), Default),
            },
            PoolProperty::Expandsize => match root.expandable_bytes {
                0 => (Absent, None),
                bytes => (Number(bytes), None),
            },
            PoolProperty::Checkpoint => match self.checkpoint_status() {
                Some(kept) if kept.bytes > 0 => (Number(kept.bytes), None),
                _ => (Absent, None),
            },
            PoolProperty::Freeing => (Number(self.hierarchy().freeing_bytes()), None),
            PoolProperty::Fragmentation => {
                (root.fragmentation_percent.map_or(Absent, Number), None)
            }
            PoolProperty::Leaked => (Number(0), None),
            PoolProperty::LastScrubbedTxg => {
                (Number(self.activities.scan.last_scrubbed_txg()), None)
            }
            PoolProperty::DedupTableQuota => match stored {
                Some(StoredValue::Number(0)) => (words("none"), Local),
                Some(StoredValue::Number(quota)) if quota != u64::MAX => (Number(quota), Local),
                _ => (words("auto"), Default),
            },
            PoolProperty::Ashift => match stored {
                Some(StoredValue::Number(ashift)) if ashift != 0 => (Number(ashift), Local),
                _ => (Number(0), Default),
            },
            PoolProperty::Delegation
            | PoolProperty::Autoreplace
            | PoolProperty::Failmode
            | PoolProperty::Listsnapshots
            | PoolProperty::Autoexpand
            | PoolProperty::Multihost
            | PoolProperty::Autotrim => {
                index_word(info, property == PoolProperty::Delegation, stored)
            }
        };
        Ok(PropertyEntry {
            name: info.name.to_owned(),
            kind: info.kind,
            value,
            source,
        })
    }

    /// What cloned blocks use and save, and the ratio of both.
    // OpenZFS: module/zfs/brt.c, brt_get_ratio
    fn clone_number(&self, property: PoolProperty) -> u64 {
        let tables = self.space().clones();
        let (used, saved) = tables.map_or((0, 0), |t| (t.used_bytes(), t.saved_bytes()));
        let both = used.saturating_add(saved);
        match property {
            PoolProperty::Bcloneused => used,
            PoolProperty::Bclonesaved => saved,
            _ => both.saturating_mul(100).checked_div(used).unwrap_or(100),
        }
    }

    async fn dataset_name(&self, object: u64) -> PropertyValue {
        let spec = dsl::ListSpec {
            depth: None,
            kinds: dsl::property::Kinds::FILESYSTEM,
        };
        let pool = self.config.name().to_owned();
        let found = self.hierarchy().list(&pool, spec).await.unwrap_or_default();
        found
            .into_iter()
            .find(|info| info.object.0 == object)
            .map_or(PropertyValue::Absent, |info| PropertyValue::Text(info.name))
    }
}
