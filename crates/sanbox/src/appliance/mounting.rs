//! Mounting the file systems of open pools, as their properties say.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use engine::property::{DatasetKind, Property, Source, Value};
use engine::{DatasetInfo, EngineError, PoolHandle, PropertyQuery};

use super::Appliance;
use super::subject::is_delegated;
use crate::logging::SANBOX;
use crate::paths;
use crate::redacted::is_redacted;
use crate::serve::fuse::flags::mount_flags;

impl Appliance {
    /// Fills in what the engine does not know of a dataset.
    pub(crate) fn fill_in(&self, info: &mut DatasetInfo) {
        if info.kind != DatasetKind::Filesystem {
            return;
        }
        let mounted = self.mounts.mounted(info.guid).is_some();
        let overridden = self.mounts.overridden(info.guid);
        for property in &mut info.properties {
            if property.native == Some(Property::Mounted) {
                property.value = Value::Number(u64::from(mounted));
            }
            let temporary = overridden.iter().find(|(p, _)| property.native == Some(*p));
            if let Some((_, on)) = temporary
                && property.value != Value::Number(u64::from(*on))
            {
                property.value = Value::Number(u64::from(*on));
                property.source = Source::Temporary;
            }
        }
    }

    /// Mounts a file system, with `overlay` whatever its property says of directories that are not empty.
    pub(crate) async fn mount(
        &self,
        pool: &PoolHandle,
        info: &DatasetInfo,
        point: &Path,
        overlay: bool,
    ) -> Result<(), String> {
        if is_delegated() {
            return Err("permission denied".to_owned());
        }
        let failed = |error: EngineError| error.to_string();
        let fs = pool.open_fs(&info.name).await.map_err(failed)?;
        // Its objects may be open since before an upgrade of the pool.
        let counted = fs.start_counting().await;
        counted.map_err(|error| error.to_string())?;
        let mut flags = mount_flags(pool, &info.name).await.map_err(failed)?;
        flags.needs_empty &= !overlay;
        self.mounts.mount(fs, &info.name, point, flags).await
    }

    pub(super) async fn mount_all(&self, pool: &PoolHandle) {
        let filter = engine::DatasetFilter {
            root: pool.name().to_owned(),
            depth: None,
            kinds: vec![DatasetKind::Filesystem],
        };
        let Ok(mut datasets) = pool.datasets(&filter, &mount_query()).await else {
            return;
        };
        // A mount would hide those below its mount point that came before it, whatever the names of the datasets.
        // OpenZFS: lib/libzfs/libzfs_mount.c, mountpoint_cmp
        datasets.sort_by_cached_key(|info| {
            let point = info.property("mountpoint");
            let point = point.and_then(|property| property.value.text());
            PathBuf::from(point.unwrap_or_default())
        });
        for info in datasets {
            self.mount_if_wanted(pool, &info).await;
        }
    }

    /// Mounts a dataset that was just created, where mounting is automatic.
    pub(crate) async fn mount_created(&self, pool: &PoolHandle, name: &str) {
        if !self.mounts_by_itself() {
            return;
        }
        if let Ok(info) = pool.dataset(name, &mount_query()).await {
            self.mount_if_wanted(pool, &info).await;
        }
    }

    /// As [`Self::mount_created`], for each of these, in their order.
    pub(crate) async fn mount_all_created(&self, pool: &PoolHandle, names: &[String]) {
        for name in names {
            self.mount_created(pool, name).await;
        }
    }

    async fn mount_if_wanted(&self, pool: &PoolHandle, info: &DatasetInfo) {
        let text = |name: &str| match info.property(name).map(|property| &property.value) {
            Some(Value::Text(text)) => text.clone(),
            Some(Value::Number(number)) => number.to_string(),
            None => String::new(),
        };
        let point = text("mountpoint");
        // canmount: 1 is on.
        if text("canmount") != "1"
            || is_redacted(info)
            || !point.starts_with('/')
            || self.mounts.mounted(info.guid).is_some()
        {
            return;
        }
        if let Err(why) = self.mount(pool, info, Path::new(&point), false).await {
            tracing::warn!(target: SANBOX, "cannot mount '{}' at {point}: {why}", info.name);
        }
    }
}

/// Returns the names above that of a dataset which no dataset has, the highest first: what a command makes that is `asked` to make
/// parents; none for one that is not.
pub(crate) async fn missing_parents(pool: &PoolHandle, name: &str, asked: bool) -> Vec<String> {
    let mut missing = Vec::new();
    for (end, _) in name.match_indices('/').filter(|_| asked) {
        let parent = name.get(..end).unwrap_or(name);
        if pool.dataset(parent, &PropertyQuery::None).await.is_err() {
            missing.push(parent.to_owned());
        }
    }
    missing
}

/// The properties that say where and whether a file system is mounted.
pub(crate) fn mount_query() -> PropertyQuery {
    let names = ["mountpoint", "canmount", "acltype", "redacted"];
    PropertyQuery::Named(names.map(str::to_owned).to_vec())
}

/// Returns the file systems of a pool whose mount point follows from their name: its directory was made for them.
// OpenZFS: lib/libzfs/libzfs_mount.c, remove_mountpoint
pub(super) async fn derived_mountpoints(pool: &PoolHandle) -> BTreeSet<String> {
    let filter = engine::DatasetFilter {
        root: pool.name().to_owned(),
        depth: None,
        kinds: vec![DatasetKind::Filesystem],
    };
    let datasets = pool.datasets(&filter, &mount_query()).await;
    let is_derived = |info: &DatasetInfo| {
        let property = info.property("mountpoint");
        property.is_some_and(|property| {
            matches!(property.source, Source::Default | Source::Inherited(_))
        })
    };
    let derived = datasets.unwrap_or_default().into_iter().filter(is_derived);
    derived.map(|info| info.name).collect()
}

/// Removes directories that are empty, in this order.
pub(crate) async fn remove_directories(directories: Vec<PathBuf>) {
    let Some(first) = directories.first().cloned() else {
        return;
    };
    let remove = move || {
        for directory in directories {
            // One that is not empty stays.
            let _ = std::fs::remove_dir(directory);
        }
    };
    if let Err(why) = paths::call(&first, remove).await {
        tracing::warn!(target: SANBOX, "{why}");
    }
}
