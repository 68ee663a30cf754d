//! Which features of the format this software enables, writes and reads, and the checks at import.
//!
//! The counts themselves live in the meta-objset and are kept by `dsl`; this is the policy.

use std::collections::BTreeMap;

use ondisk::feature::{self, Feature};

use crate::PoolError;
use crate::spec::FeatureBase;

/// How far a feature is implemented once it is active in a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Support {
    /// The pool can be read and written.
    Full,
    /// The pool can be read; writing it would break what the feature keeps.
    ReadOnly,
    /// The pool cannot be opened.
    None,
}

/// Features a new pool gets by default: all of OpenZFS 2.3, which are all implemented here.  `head_errlog` and `vdev_zaps_v2` of 2.2 are in use at
/// once: 2.1 and older cannot import such a pool, but for one made with `compatibility=openzfs-2.1-linux` or the like.  2.2 imports it, also
/// for writing until `raidz_expansion`, `fast_dedup`, `longname` or `large_microzap` is in use.  An enabled feature may be activated by
/// any OpenZFS that imports the pool, so nothing is enabled that cannot be read back.
const DEFAULT: &[&str] = &[
    "multi_vdev_crash_dump",
    "resilver_defer",
    "bookmark_written",
    "zilsaxattr",
    "head_errlog",
    "vdev_zaps_v2",
    "large_microzap",
    "async_destroy",
    "empty_bpobj",
    "lz4_compress",
    "spacemap_histogram",
    "enabled_txg",
    "hole_birth",
    "spacemap_v2",
    "extensible_dataset",
    "bookmarks",
    "filesystem_limits",
    "embedded_data",
    "large_blocks",
    "large_dnode",
    "sha512",
    "skein",
    "edonr",
    "userobj_accounting",
    "project_quota",
    "zstd_compress",
    "allocation_classes",
    "zpool_checkpoint",
    "log_spacemap",
    "livelist",
    "draid",
    "device_removal",
    "obsolete_counts",
    "device_rebuild",
    "bookmark_v2",
    "encryption",
    "redaction_bookmarks",
    "redacted_datasets",
    "redaction_list_spill",
    "block_cloning",
    "blake3",
    "fast_dedup",
    "longname",
    "raidz_expansion",
];

/// Features whose use changes nothing for us, or is handled everywhere.
const FULL: &[&str] = &[
    "async_destroy",
    "empty_bpobj",
    "lz4_compress",
    "multi_vdev_crash_dump",
    "spacemap_histogram",
    "enabled_txg",
    "hole_birth",
    "spacemap_v2",
    "extensible_dataset",
    "bookmarks",
    "filesystem_limits",
    "embedded_data",
    "large_blocks",
    "large_dnode",
    "sha512",
    "skein",
    "edonr",
    "userobj_accounting",
    "bookmark_v2",
    "bookmark_written",
    "project_quota",
    "resilver_defer",
    "device_rebuild",
    "zstd_compress",
    "zilsaxattr",
    "head_errlog",
    "blake3",
    "vdev_zaps_v2",
    "log_spacemap",
    "allocation_classes",
    "fast_dedup",
    "block_cloning",
    "longname",
    "large_microzap",
    "livelist",
    "zpool_checkpoint",
    "draid",
    "device_removal",
    "obsolete_counts",
    "encryption",
    "redaction_bookmarks",
    "redacted_datasets",
    "redaction_list_spill",
    "raidz_expansion",
];

/// Features without which not even the meta-objset can be read here: none at present.
const NONE: &[&str] = &[];

/// Returns how far `feature` is implemented.
#[must_use]
pub fn support(feature: &Feature) -> Support {
    if FULL.contains(&feature.name) {
        Support::Full
    } else if NONE.contains(&feature.name) {
        Support::None
    } else {
        Support::ReadOnly
    }
}

/// Order in which `zpool get all` lists features (that of their numbers, not of enabling).
// OpenZFS: include/zfeature_common.h, spa_feature
const LISTED: &[&str] = &[
    "async_destroy",
    "empty_bpobj",
    "lz4_compress",
    "multi_vdev_crash_dump",
    "spacemap_histogram",
    "enabled_txg",
    "hole_birth",
    "extensible_dataset",
    "embedded_data",
    "bookmarks",
    "filesystem_limits",
    "large_blocks",
    "large_dnode",
    "sha512",
    "skein",
    "edonr",
    "userobj_accounting",
    "encryption",
    "project_quota",
    "device_removal",
    "obsolete_counts",
    "zpool_checkpoint",
    "spacemap_v2",
    "allocation_classes",
    "resilver_defer",
    "bookmark_v2",
    "redaction_bookmarks",
    "redacted_datasets",
    "bookmark_written",
    "log_spacemap",
    "livelist",
    "device_rebuild",
    "zstd_compress",
    "draid",
    "zilsaxattr",
    "head_errlog",
    "blake3",
    "block_cloning",
    "vdev_zaps_v2",
    "redaction_list_spill",
    "raidz_expansion",
    "fast_dedup",
    "longname",
    "large_microzap",
];

/// Returns the features that pools may have enabled here, in the order of `zpool upgrade -v`.
pub fn supported_features() -> impl Iterator<Item = &'static Feature> {
    listed_features().filter(|feature| support(feature) == Support::Full)
}

/// Returns every feature in listing order; ones the order does not name come last.
pub(crate) fn listed_features() -> impl Iterator<Item = &'static Feature> {
    let named = LISTED.iter().filter_map(|name| Feature::by_name(name));
    named.chain(
        feature::ALL
            .iter()
            .filter(|feature| !LISTED.contains(&feature.name)),
    )
}

/// Returns the features of a new pool in the order in which they are enabled, dependencies first.
///
/// `settings` are the `feature@x=enabled|disabled` the user gave.
///
/// # Errors
/// `Invalid` for unknown features, unknown words, and features that are not implemented fully.
pub(crate) fn of_new_pool(
    base: FeatureBase,
    settings: &[(String, bool)],
) -> Result<Vec<&'static Feature>, PoolError> {
    let mut wanted: BTreeMap<&'static str, bool> = BTreeMap::new();
    if base == FeatureBase::Implemented {
        wanted.extend(DEFAULT.iter().map(|name| (*name, true)));
    }
    for (name, enabled) in settings {
        let feature = Feature::by_name(name).ok_or_else(|| {
            PoolError::Invalid(format!(
                "property 'feature@{name}': feature '{name}' is invalid"
            ))
        })?;
        if *enabled && support(feature) != Support::Full && !DEFAULT.contains(&feature.name) {
            return Err(PoolError::Invalid(format!(
                "feature '{name}' is not supported by this software yet"
            )));
        }
        wanted.insert(feature.name, *enabled);
    }
    let mut order = Vec::new();
    for feature in feature::ALL
        .iter()
        .filter(|f| wanted.get(f.name) == Some(&true))
    {
        add_with_dependencies(feature, &mut order);
    }
    Ok(order)
}

fn add_with_dependencies(feature: &'static Feature, order: &mut Vec<&'static Feature>) {
    if order.iter().any(|f| f.guid == feature.guid) {
        return;
    }
    for name in feature.depends_on {
        if let Some(dependency) = Feature::by_name(name) {
            add_with_dependencies(dependency, order);
        }
    }
    order.push(feature);
}

/// What the active features of a pool allow.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct UnsupportedFeatures {
    /// Forbid opening at all.
    pub(crate) unreadable: Vec<String>,
    /// Forbid writing.
    pub(crate) unwritable: Vec<String>,
}

impl UnsupportedFeatures {
    /// Adds an active feature.  `for_read` says which of the pool's two tables it is counted in.
    pub(crate) fn add(&mut self, guid: &str, for_read: bool, description: Option<&str>) {
        let Some(feature) = Feature::by_guid(guid) else {
            let text = named(guid, description.filter(|text| !text.is_empty()));
            if for_read {
                self.unreadable.push(text);
            } else {
                self.unwritable.push(text);
            }
            return;
        };
        let text = named(guid, Some(feature.description));
        match support(feature) {
            Support::Full => {}
            Support::ReadOnly => self.unwritable.push(text),
            Support::None => self.unreadable.push(text),
        }
    }
}

fn named(guid: &str, description: Option<&str>) -> String {
    match description {
        Some(description) => format!("{guid} ({description})"),
        None => guid.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dependencies_come_first_and_once() {
        let features = of_new_pool(FeatureBase::Implemented, &[]).unwrap();
        let position = |name: &str| features.iter().position(|f| f.name == name).unwrap();
        for feature in &features {
            assert_eq!(
                features.iter().filter(|f| f.guid == feature.guid).count(),
                1
            );
            for dependency in feature.depends_on {
                assert!(
                    position(dependency) < position(feature.name),
                    "{}",
                    feature.name
                );
            }
        }
        assert!(position("enabled_txg") < position("hole_birth"));
    }

    #[test]
    fn settings_are_obeyed_and_checked() {
        let on = |name: &str| vec![(name.to_owned(), true)];
        let only = of_new_pool(FeatureBase::None, &on("hole_birth")).unwrap();
        assert_eq!(
            only.iter().map(|f| f.name).collect::<Vec<_>>(),
            ["enabled_txg", "hole_birth"]
        );
        assert!(of_new_pool(FeatureBase::None, &on("nonsense")).is_err());
        let off = of_new_pool(FeatureBase::Implemented, &[("edonr".into(), false)]).unwrap();
        assert!(off.iter().all(|f| f.name != "edonr"));
    }

    #[test]
    fn unknown_features_forbid_by_their_table() {
        let mut unsupported = UnsupportedFeatures::default();
        unsupported.add("org.example:new", true, Some("a thing"));
        unsupported.add("org.example:other", false, None);
        unsupported.add("com.delphix:log_spacemap", false, None);
        unsupported.add("org.illumos:lz4_compress", true, None);
        assert_eq!(unsupported.unreadable, ["org.example:new (a thing)"]);
        assert_eq!(unsupported.unwritable.len(), 1);
    }
}
