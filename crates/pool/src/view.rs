//! The pool as commands see it: status tree, properties, statistics.  Reads only what is in memory.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ondisk::feature::{self, Feature};
use vdev::VdevKind;

use crate::PoolError;
use crate::auxiliary::Kind;
use crate::config::pool_state;
use crate::features::{Support, support};
use crate::leaf_work::LeafWork;
use crate::pool::{Inner, Pool, Stored};
use crate::properties::{
    PROPERTIES, PoolProperty, PropertyEntry, PropertyKind, PropertySource, PropertyValue,
};
use crate::status::{
    Health, IoTotals, PoolState, PoolStatus, RebuildState, StatusReason, VdevStatus,
};

impl Pool {
    /// Returns everything `zpool status`, `zpool list -v` and `zpool iostat` show.
    #[must_use]
    pub fn status(&self) -> PoolStatus {
        self.0.status()
    }

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
        let features = self.0.hierarchy.features();
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
        let user = self.0.properties.borrow();
        for (name, stored) in user.iter().filter(|(name, _)| name.contains(':')) {
            if let Stored::Text(text) = stored {
                entries.push(text_entry(name.clone(), text));
            }
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

    /// Returns why the pool is suspended, if it is.
    #[must_use]
    pub fn suspended(&self) -> Option<String> {
        self.0.suspended.borrow().clone()
    }

    /// Returns where the pool is to be remembered: `None` is the default place, `none` nowhere.
    #[must_use]
    pub fn cachefile(&self) -> Option<String> {
        self.0.cachefile.borrow().clone()
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
fn listed_features() -> impl Iterator<Item = &'static Feature> {
    let named = LISTED.iter().filter_map(|name| Feature::by_name(name));
    named.chain(
        feature::ALL
            .iter()
            .filter(|feature| !LISTED.contains(&feature.name)),
    )
}

fn text_entry(name: String, text: &str) -> PropertyEntry {
    PropertyEntry {
        name,
        kind: PropertyKind::Text,
        value: PropertyValue::Text(text.to_owned()),
        source: PropertySource::Local,
    }
}

impl Inner {
    fn status(&self) -> PoolStatus {
        self.collect_damage();
        let outdated: BTreeSet<u64> = self.dtls.outdated().into_keys().collect();
        let tree = self.tree.status();
        let mut root = self.convert(&tree, true, &outdated);
        root.name = self.name.borrow().clone();
        let space = self.store().space();
        root.size_bytes = space.size;
        // What cannot be reused yet is not free.
        // OpenZFS: module/zfs/metaslab.c, metaslab_sync_done (deferred frees go on counting as allocated)
        root.allocated_bytes = space.allocated + space.deferred;
        let kept = self.space.kept_bytes();
        let mut weighted = Some(0u128);
        for top in &mut root.children {
            let Ok(id) = u32::try_from(top.id) else {
                continue;
            };
            let space = self.store().vdev_space(id);
            top.size_bytes = space.size;
            top.allocated_bytes = space.allocated + space.deferred;
            let kept = kept.iter().find(|(vdev, _)| *vdev == id);
            top.checkpoint_bytes = kept.map_or(0, |(_, bytes)| *bytes);
            top.fragmentation_percent = self.space.fragmentation(id);
            top.expandable_bytes = self.expandable_bytes(id);
            top.removing = self.removal.vdev() == Some(id);
            top.rebuild = self.rebuild_status(id);
            if self.store().is_idle(id) && !top.is_log {
                mark_idle(top);
            }
            root.expandable_bytes += top.expandable_bytes;
            weighted = match (weighted, top.fragmentation_percent) {
                (Some(sum), Some(percent)) => {
                    Some(sum + u128::from(percent) * u128::from(space.size))
                }
                _ => None,
            };
        }
        root.fragmentation_percent = weighted
            .map(|sum| sum.checked_div(u128::from(root.size_bytes)).unwrap_or(0))
            .and_then(|percent| u64::try_from(percent).ok());
        let suspended = self.suspended.borrow().is_some();
        let health = if suspended {
            Health::Suspended
        } else {
            root.health
        };
        let caches = self.auxiliary_status(Kind::Cache);
        let (reason, details) = self.reason(&root, &caches, suspended, !outdated.is_empty());
        PoolStatus {
            name: root.name.clone(),
            guid: self.identity.borrow().guid,
            health,
            state: pool_state(self.label_state.get()).unwrap_or(PoolState::Active),
            reason,
            details,
            scan: self.scan.status(),
            checkpoint: self.checkpoint_status(),
            removal: self.removal_status(),
            freeing_rests: self
                .hierarchy
                .background_error()
                .map(|error| error.to_string()),
            root,
            caches,
            spares: self.auxiliary_status(Kind::Spare),
            data_errors: self.damage.count(),
            readonly: self.readonly,
            txg: self.last_uberblock.get().txg.0,
            open_nanoseconds: self
                .handle
                .now()
                .as_nanos()
                .saturating_sub(self.opened.as_nanos()),
        }
    }

    fn convert(
        &self,
        vdev: &vdev::VdevStatus,
        is_root: bool,
        outdated: &BTreeSet<u64>,
    ) -> VdevStatus {
        let mut children: Vec<VdevStatus> = vdev
            .children
            .iter()
            .filter(|child| !matches!(child.kind, VdevKind::Hole | VdevKind::Indirect))
            .map(|child| self.convert(child, false, outdated))
            .collect();
        if !is_root {
            for child in &mut children {
                child.bias = vdev.bias;
            }
        }
        let path = vdev.path.as_ref().map(PathBuf::from);
        let name = match (&path, &vdev.kind) {
            (Some(path), kind) => shown_path(path, kind),
            (None, kind) if kind.is_leaf() => vdev.guid.to_string(),
            (None, _) => format!("{}-{}", vdev.type_name, vdev.id),
        };
        let is_log = vdev.is_log;
        let mut health = convert_health(vdev.health);
        let stale = outdated.contains(&vdev.guid.0);
        // An outdated half counts as less redundancy until it has been brought up to date.
        if !vdev.kind.is_leaf()
            && health == Health::Online
            && children
                .iter()
                .any(|child| child.resilvering || child.health != Health::Online)
        {
            health = Health::Degraded;
        }
        let note = match (&vdev.reason, stale) {
            (Some(reason), _) => Some(reason.clone()),
            (None, true) => Some("outdated: waits to be resilvered".to_owned()),
            (None, false) => None,
        };
        let stats = &vdev.stats;
        VdevStatus {
            name,
            kind: if is_root {
                "root".into()
            } else {
                vdev.kind.as_str().to_owned()
            },
            guid: vdev.guid.0,
            id: vdev.id,
            path,
            health,
            note,
            read_errors: stats.read_errors,
            write_errors: stats.write_errors,
            checksum_errors: stats.checksum_errors,
            slow_ios: stats.slow_ios,
            size_bytes: vdev.asize,
            allocated_bytes: 0,
            checkpoint_bytes: 0,
            trim: self.leaf_work_status(LeafWork::Trim, vdev.guid),
            initialize: self.leaf_work_status(LeafWork::Initialize, vdev.guid),
            expandable_bytes: 0,
            fragmentation_percent: None,
            ashift: u64::from(vdev.ashift),
            is_log,
            bias: vdev.bias,
            removing: false,
            non_allocating: false,
            resilvering: stale,
            rebuild: None,
            io: IoTotals {
                read_ops: stats.read_ops,
                write_ops: stats.write_ops,
                read_bytes: stats.read_bytes,
                write_bytes: stats.write_bytes,
                read_nanoseconds: stats.read_total.sum_ns,
                write_nanoseconds: stats.write_total.sum_ns,
            },
            detail: Arc::new(stats.clone()),
            children,
        }
    }

    /// Chooses the one thing to say, the most damaging first.
    // OpenZFS: lib/libzfs/libzfs_status.c, check_status (order)
    fn reason(
        &self,
        root: &VdevStatus,
        caches: &[VdevStatus],
        suspended: bool,
        outdated: bool,
    ) -> (StatusReason, Vec<String>) {
        if suspended {
            let details = self.suspended.borrow().iter().cloned().collect();
            if self.lack_of_space.get() {
                return (StatusReason::OutOfSpace, details);
            }
            if self.multihost.is_lost() {
                return (StatusReason::IoFailureMultihost, details);
            }
            let reason = match self.properties.borrow().get("failmode") {
                Some(Stored::Number(1)) => StatusReason::IoFailureContinue,
                _ => StatusReason::IoFailureWait,
            };
            return (reason, details);
        }
        // OpenZFS: find_vdev_problem looks at cache devices, too.
        let mut leaves = leaves(root);
        leaves.extend(caches);
        let named = |health: Health| -> Vec<String> {
            leaves
                .iter()
                .filter(|l| l.health == health)
                .map(|l| l.name.clone())
                .collect()
        };
        for (health, replicated, alone) in [
            (
                Health::Faulted,
                StatusReason::FaultedDeviceReplicated,
                StatusReason::FaultedDevice,
            ),
            (
                Health::Unavail,
                StatusReason::MissingDeviceReplicated,
                StatusReason::MissingDevice,
            ),
        ] {
            let names = named(health);
            if !names.is_empty() {
                let covered = root.health <= Health::Degraded;
                return (if covered { replicated } else { alone }, names);
            }
        }
        if self.damage.count() > 0 {
            return (StatusReason::CorruptData, Vec::new());
        }
        let failing =
            |leaf: &&VdevStatus| leaf.read_errors + leaf.write_errors + leaf.checksum_errors > 0;
        let failing: Vec<String> = leaves
            .iter()
            .copied()
            .filter(failing)
            .map(|leaf| leaf.name.clone())
            .collect();
        if !failing.is_empty() {
            return (StatusReason::FailingDevice, failing);
        }
        let offline = named(Health::Offline);
        if !offline.is_empty() {
            return (StatusReason::OfflineDevice, offline);
        }
        let removed = named(Health::Removed);
        if !removed.is_empty() {
            return (StatusReason::RemovedDevice, removed);
        }
        if outdated {
            let stale = leaves
                .iter()
                .filter(|l| l.resilvering)
                .map(|l| l.name.clone())
                .collect();
            return (StatusReason::Resilvering, stale);
        }
        if self.wants_scrub(root) {
            return (StatusReason::RebuildScrub, Vec::new());
        }
        (StatusReason::Ok, Vec::new())
    }

    /// Whether a vdev was resilvered sequentially, and no scrub since has looked at what it got.
    // OpenZFS: lib/libzfs/libzfs_status.c, check_status (ZPOOL_STATUS_REBUILD_SCRUB)
    fn wants_scrub(&self, root: &VdevStatus) -> bool {
        let rebuilds = root.children.iter().filter_map(|top| top.rebuild);
        let complete = rebuilds.filter(|rebuild| rebuild.state == RebuildState::Complete);
        let Some(end) = complete.map(|rebuild| rebuild.end_time).max() else {
            return false;
        };
        self.scan.status().is_none_or(|scan| {
            let is_over = !scan.running && !scan.cancelled && !scan.resilver;
            is_over && end > scan.end_time
        })
    }

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
        let stored = self.properties.borrow().get(info.name).cloned();
        let (value, source) = match property {
            PoolProperty::Size => (Number(root.size_bytes), None),
            PoolProperty::Capacity => {
                let percent = (root.allocated_bytes * 100)
                    .checked_div(root.size_bytes)
                    .unwrap_or(0);
                (Number(percent), None)
            }
            PoolProperty::Altroot => match &self.altroot {
                Some(path) => (Text(path.display().to_string()), Local),
                Option::None => (Absent, Default),
            },
            PoolProperty::Health => (words(status.health.as_str()), None),
            PoolProperty::Guid => (Number(status.guid), None),
            PoolProperty::LoadGuid => (Number(self.load_guid), None),
            PoolProperty::Version => (Absent, Default),
            PoolProperty::Bootfs => match stored {
                Some(Stored::Number(object)) if object != 0 => {
                    (self.dataset_name(object).await, Local)
                }
                _ => (Absent, Default),
            },
            PoolProperty::Cachefile => match &*self.cachefile.borrow() {
                Some(path) => (Text(path.clone()), Local),
                Option::None => (Absent, Default),
            },
            PoolProperty::Dedupratio => {
                let tables = self.space.dedup();
                (Number(tables.map_or(100, |t| t.ratio_percent())), None)
            }
            PoolProperty::DedupTableSize => match self.space.dedup() {
                Some(tables) => (Number(tables.table_bytes().await?), None),
                Option::None => (Number(0), None),
            },
            // OpenZFS: module/zfs/brt.c, brt_get_ratio
            PoolProperty::Bcloneused | PoolProperty::Bclonesaved | PoolProperty::Bcloneratio => {
                let tables = self.space.clones();
                let (used, saved) = tables.map_or((0, 0), |t| (t.used_bytes(), t.saved_bytes()));
                let both = used.saturating_add(saved);
                let number = match property {
                    PoolProperty::Bcloneused => used,
                    PoolProperty::Bclonesaved => saved,
                    _ => both.saturating_mul(100).checked_div(used).unwrap_or(100),
                };
                (Number(number), None)
            }
            PoolProperty::Free => (
                Number(root.size_bytes.saturating_sub(root.allocated_bytes)),
                None,
            ),
            PoolProperty::Allocated => (Number(root.allocated_bytes), None),
            PoolProperty::Readonly => (words(if self.readonly { "on" } else { "off" }), None),
            PoolProperty::Comment => match &self.identity.borrow().comment {
                Some(text) => (Text(text.clone()), Local),
                Option::None => (Absent, Default),
            },
            PoolProperty::Compatibility => match &self.identity.borrow().compatibility {
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
            PoolProperty::Freeing => (Number(self.hierarchy.freeing_bytes()), None),
            PoolProperty::Fragmentation => {
                (root.fragmentation_percent.map_or(Absent, Number), None)
            }
            PoolProperty::Leaked => (Number(0), None),
            PoolProperty::LastScrubbedTxg => (Number(self.scan.last_scrubbed_txg()), None),
            PoolProperty::DedupTableQuota => match stored {
                Some(Stored::Number(0)) => (words("none"), Local),
                Some(Stored::Number(quota)) if quota != u64::MAX => (Number(quota), Local),
                _ => (words("auto"), Default),
            },
            PoolProperty::Ashift => match stored {
                Some(Stored::Number(ashift)) if ashift != 0 => (Number(ashift), Local),
                _ => (Number(0), Default),
            },
            PoolProperty::Delegation
            | PoolProperty::Autoreplace
            | PoolProperty::Failmode
            | PoolProperty::Listsnapshots
            | PoolProperty::Autoexpand
            | PoolProperty::Multihost
            | PoolProperty::Autotrim => {
                let default = u64::from(property == PoolProperty::Delegation);
                let number = match stored {
                    Some(Stored::Number(number)) => number,
                    _ => default,
                };
                let PropertyKind::Index(names) = info.kind else {
                    unreachable!("these properties are word lists")
                };
                let at = usize::try_from(number).unwrap_or(usize::MAX);
                let text = names.get(at).copied().unwrap_or("-");
                (words(text), if number == default { Default } else { Local })
            }
        };
        Ok(PropertyEntry {
            name: info.name.to_owned(),
            kind: info.kind,
            value,
            source,
        })
    }

    async fn dataset_name(&self, object: u64) -> PropertyValue {
        let spec = dsl::ListSpec {
            depth: None,
            kinds: dsl::property::Kinds::FILESYSTEM,
        };
        let pool = self.name.borrow().clone();
        let found = self.hierarchy.list(&pool, spec).await.unwrap_or_default();
        found
            .into_iter()
            .find(|info| info.object.0 == object)
            .map_or(PropertyValue::Absent, |info| PropertyValue::Text(info.name))
    }
}

fn mark_idle(vdev: &mut VdevStatus) {
    vdev.non_allocating = true;
    vdev.children.iter_mut().for_each(mark_idle);
}

/// Shows a device that is not in the tree.
pub(crate) fn shown(path: Option<&Path>, config: &vdev::VdevConfig) -> String {
    path.map_or_else(
        || config.guid.to_string(),
        |path| shown_path(path, &config.kind),
    )
}

/// Shows a device as `zpool status` does: disks by their last name, files by their path.
fn shown_path(path: &Path, kind: &VdevKind) -> String {
    if *kind == VdevKind::Disk
        && path.starts_with("/dev")
        && let Some(name) = path.file_name()
    {
        return name.to_string_lossy().into_owned();
    }
    path.display().to_string()
}

fn leaves(vdev: &VdevStatus) -> Vec<&VdevStatus> {
    if vdev.children.is_empty() {
        return vec![vdev];
    }
    vdev.children.iter().flat_map(leaves).collect()
}

fn convert_health(health: vdev::Health) -> Health {
    match health {
        vdev::Health::Online => Health::Online,
        vdev::Health::Degraded => Health::Degraded,
        vdev::Health::Faulted => Health::Faulted,
        vdev::Health::Offline => Health::Offline,
        vdev::Health::Unavailable => Health::Unavail,
        vdev::Health::Removed => Health::Removed,
    }
}
