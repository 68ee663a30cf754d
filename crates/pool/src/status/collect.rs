//! Collecting the status of a pool in use.  Reads only what is in memory.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use vdev::{AllocationBias, VdevKind};

use super::{
    Health, IoTotals, LeafActivityState, PoolState, PoolStatus, RebuildState, StatusReason,
    VdevStatus,
};
use crate::auxiliary::AuxiliaryKind;
use crate::config::pool_state;
use crate::initialize_trim::LeafActivity;
use crate::lifecycle;
use crate::pool::{ImportedPool, Pool};

impl Pool {
    /// Returns everything `zpool status`, `zpool list -v` and `zpool iostat` show.
    #[must_use]
    pub fn status(&self) -> PoolStatus {
        self.0.status()
    }

    /// Returns why the pool is suspended, if it is.
    #[must_use]
    pub fn suspended(&self) -> Option<String> {
        self.0.lifecycle.reason()
    }
}

impl ImportedPool {
    pub(crate) fn status(&self) -> PoolStatus {
        self.collect_damaged_blocks();
        let outdated: BTreeSet<u64> = self.devices.dtls.outdated().into_keys().collect();
        let tree = self.tree().status();
        let mut root = self.convert(&tree, true, &outdated);
        root.name = self.config.name().to_owned();
        let space = self.store().space();
        root.size_bytes = space.size;
        // What cannot be reused yet is not free.
        // OpenZFS: module/zfs/metaslab.c, metaslab_sync_done (deferred frees go on counting as allocated)
        root.allocated_bytes = space.allocated + space.deferred;
        self.fill_tops(&mut root);
        let suspended = self.lifecycle.is_suspended();
        let health = if suspended {
            Health::Suspended
        } else {
            root.health
        };
        let caches = self.auxiliary_status(AuxiliaryKind::Cache);
        let (reason, details) = self.reason(&root, &caches, suspended, !outdated.is_empty());
        PoolStatus {
            name: root.name.clone(),
            guid: self.config.guid(),
            health,
            state: pool_state(self.config.label_state()).unwrap_or(PoolState::Active),
            reason,
            details,
            scan: self.activities.scan.status(),
            checkpoint: self.checkpoint_status(),
            removal: self.removal_status(),
            expansion: self.expansion_status(),
            freeing_stopped: self
                .hierarchy()
                .background_error()
                .map(|error| error.to_string()),
            root,
            caches,
            spares: self.auxiliary_status(AuxiliaryKind::Spare),
            data_errors: self.error_logs.count(),
            readonly: self.session.readonly,
            txg: self.sync.last_uberblock().txg.0,
            open_nanoseconds: self
                .handle()
                .now()
                .as_nanos()
                .saturating_sub(self.session.opened.as_nanos()),
        }
    }

    /// Fills in what each top-level vdev has and does, and what of it is the pool's.
    fn fill_tops(&self, root: &mut VdevStatus) {
        let kept = self.space().checkpoint_bytes_by_vdev();
        let (mut weighted, mut normal_bytes) = (Some(0u128), 0u128);
        for top in &mut root.children {
            let Ok(id) = u32::try_from(top.id) else {
                continue;
            };
            let space = self.store().vdev_space(id);
            top.size_bytes = space.size;
            top.allocated_bytes = space.allocated + space.deferred;
            let kept = kept.iter().find(|(vdev, _)| *vdev == id);
            top.checkpoint_bytes = kept.map_or(0, |(_, bytes)| *bytes);
            top.fragmentation_percent = self.space().fragmentation(id);
            top.expandable_bytes = self.expandable_bytes(id);
            top.removing = self.activities.removal.vdev() == Some(id);
            if top.removing {
                rest_leaf_work(top);
            }
            top.rebuild = self.rebuild_status(id);
            if self.store().is_idle(id) && !top.is_log {
                mark_idle(top);
            }
            root.expandable_bytes += top.expandable_bytes;
            // The pool's fragmentation is that of its normal class.
            // OpenZFS: module/zfs/metaslab.c, metaslab_class_fragmentation
            if top.bias == AllocationBias::None && !top.is_log {
                let size = u128::from(space.size);
                let percent = top.fragmentation_percent.map(u128::from);
                weighted = weighted.zip(percent).map(|(sum, p)| sum + p * size);
                normal_bytes += size;
            }
        }
        root.fragmentation_percent = weighted
            .map(|sum| sum.checked_div(normal_bytes).unwrap_or(0))
            .and_then(|percent| u64::try_from(percent).ok());
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
        let name = shown_name(vdev, path.as_deref());
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
            trim: self.leaf_activity_status(LeafActivity::Trim, vdev.guid),
            initialize: self.leaf_activity_status(LeafActivity::Initialize, vdev.guid),
            ashift: u64::from(vdev.ashift),
            is_log,
            bias: vdev.bias,
            resilvering: stale,
            awaiting_resilver: vdev.kind.is_leaf() && self.is_deferred(vdev.guid),
            repairing: vdev.kind.is_leaf() && self.activities.scan.is_repairing(vdev),
            io: totals(stats),
            detail: Arc::new(stats.clone()),
            children,
            // What a top-level vdev has beyond that is filled in later.
            ..VdevStatus::default()
        }
    }

    /// Why the pool is suspended.
    fn suspension(&self) -> (StatusReason, Vec<String>) {
        let details = self.lifecycle.reason().into_iter().collect();
        if self.lifecycle.is_out_of_space() {
            return (StatusReason::OutOfSpace, details);
        }
        if self.multihost.is_lost() {
            return (StatusReason::IoFailureMultihost, details);
        }
        let reason = match self.properties.number("failmode") {
            Some(lifecycle::FAILMODE_CONTINUE) => StatusReason::IoFailureContinue,
            _ => StatusReason::IoFailureWait,
        };
        (reason, details)
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
            return self.suspension();
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
        if self.is_resilvering(root) {
            let resilvering = leaves.iter().filter(|leaf| leaf.resilvering);
            let names = resilvering.map(|leaf| leaf.name.clone()).collect();
            return (StatusReason::Resilvering, names);
        }
        if self.wants_scrub(root) {
            return (StatusReason::RebuildScrub, Vec::new());
        }
        // Data that is lost is worse than a device that others make up for.
        let is_covered = root.health <= Health::Degraded;
        let problem = device_problem(is_covered, &leaves);
        if let Some(problem) = problem.clone().filter(|_| !is_covered) {
            return problem;
        }
        if self.error_logs.count() > 0 {
            return (StatusReason::CorruptData, Vec::new());
        }
        if let Some(problem) = problem {
            return problem;
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
        (self.reason_of_version(), Vec::new())
    }

    /// What is to be said of a pool without a fault.
    fn reason_of_version(&self) -> StatusReason {
        if self.hierarchy().features().pool_version() < ondisk::SPA_VERSION_FEATURES {
            StatusReason::VersionOlder
        } else {
            StatusReason::Ok
        }
    }

    /// Whether a resilver of either kind runs.
    fn is_resilvering(&self, root: &VdevStatus) -> bool {
        let scan = self.activities.scan.status();
        let mut rebuilds = root.children.iter().filter_map(|top| top.rebuild);
        scan.is_some_and(|scan| scan.resilver && scan.running)
            || rebuilds.any(|rebuild| rebuild.state == RebuildState::Active)
    }

    /// Whether a vdev was resilvered sequentially, and no scrub since has looked at what it got.
    // OpenZFS: lib/libzfs/libzfs_status.c, check_status (ZPOOL_STATUS_REBUILD_SCRUB)
    fn wants_scrub(&self, root: &VdevStatus) -> bool {
        let rebuilds = root.children.iter().filter_map(|top| top.rebuild);
        let complete = rebuilds.filter(|rebuild| rebuild.state == RebuildState::Complete);
        let Some(end) = complete.map(|rebuild| rebuild.end_time).max() else {
            return false;
        };
        self.activities.scan.status().is_none_or(|scan| {
            let is_over = !scan.running && !scan.cancelled && !scan.resilver;
            is_over && end > scan.end_time
        })
    }
}

/// Trims and initializations of a vdev that leaves stand still, and go on where its removal is given up.
// OpenZFS: cmd/zpool/zpool_main.c, print_status_trim (vs_scan_removing)
fn rest_leaf_work(vdev: &mut VdevStatus) {
    for work in [&mut vdev.trim, &mut vdev.initialize] {
        if work.state == LeafActivityState::Active {
            work.state = LeafActivityState::None;
        }
    }
    vdev.children.iter_mut().for_each(rest_leaf_work);
}

fn mark_idle(vdev: &mut VdevStatus) {
    vdev.non_allocating = true;
    vdev.children.iter_mut().for_each(mark_idle);
}

/// Devices that faulted, cannot be opened, or have another content; the words depend on whether the others make up for them.
// OpenZFS: lib/libzfs/libzfs_status.c, check_status
fn device_problem(is_covered: bool, leaves: &[&VdevStatus]) -> Option<(StatusReason, Vec<String>)> {
    type Problem = (fn(&VdevStatus) -> bool, [StatusReason; 2]);
    let problems: [Problem; 3] = [
        (
            |leaf| leaf.health == Health::Faulted,
            [
                StatusReason::FaultedDevice,
                StatusReason::FaultedDeviceReplicated,
            ],
        ),
        (
            |leaf| leaf.health == Health::Unavail && !leaf.has_other_content(),
            [
                StatusReason::MissingDevice,
                StatusReason::MissingDeviceReplicated,
            ],
        ),
        (
            |leaf| leaf.health == Health::Unavail,
            [
                StatusReason::CorruptLabel,
                StatusReason::CorruptLabelReplicated,
            ],
        ),
    ];
    problems.into_iter().find_map(|(is_affected, words)| {
        let affected = leaves.iter().filter(|leaf| is_affected(leaf));
        let names: Vec<String> = affected.map(|leaf| leaf.name.clone()).collect();
        (!names.is_empty()).then(|| (words[usize::from(is_covered)], names))
    })
}

fn shown_name(vdev: &vdev::VdevStatus, path: Option<&Path>) -> String {
    match path {
        Some(path) => shown_path(path, &vdev.kind),
        None if vdev.kind.is_leaf() => vdev.guid.to_string(),
        None => format!("{}-{}", vdev.type_name, vdev.id),
    }
}

fn totals(stats: &vdev::VdevStats) -> IoTotals {
    IoTotals {
        read_ops: stats.read_ops,
        write_ops: stats.write_ops,
        read_bytes: stats.read_bytes,
        write_bytes: stats.write_bytes,
        read_nanoseconds: stats.read_total.sum_ns,
        write_nanoseconds: stats.write_total.sum_ns,
    }
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
