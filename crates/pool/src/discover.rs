//! Finding pools: reads the labels of every device in the places named, groups them by pool, and
//! says of each pool what was found and what is missing.  Nothing is written.
//!
//! Labels are hints: what a candidate says is checked against the pool's own configuration when
//! it is imported.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use ondisk::feature::Feature;
use ondisk::{Guid, NvList, Txg, Uberblock};
use runtime::{DiskError, DiskMode, Handle};
use vdev::labels::{LabelSet, LabelState};
use vdev::{TreeConfig, VdevConfig, VdevKind};

use crate::config::{Identity, label_features, pool_state};
use crate::features::{Support, support};
use crate::status::{Health, PoolState, StatusReason, VdevStatus};

/// Devices read at the same time.
const CONCURRENT: usize = 16;

/// A pool that was found.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// Name in the newest label.
    pub name: String,
    /// Guid of the pool.
    pub guid: u64,
    /// What the label says of its use.
    pub state: PoolState,
    /// Newest txg of any uberblock found.
    pub txg: u64,
    /// Time of that uberblock, seconds since 1970.
    pub timestamp: u64,
    /// On-disk version.
    pub version: u64,
    /// Host that used it last; hostid 0 when none was recorded.
    pub hostid: u64,
    /// Name of that host.
    pub hostname: String,
    /// `comment` property.
    pub comment: Option<String>,
    /// Health as far as labels tell.
    pub health: Health,
    /// The one thing to say.
    pub reason: StatusReason,
    /// What goes with the reason: missing devices, unsupported features.
    pub details: Vec<String>,
    /// The tree with what was found for each device.
    pub root: VdevStatus,
    /// Where each leaf was found, by guid.
    pub devices: BTreeMap<u64, PathBuf>,
    /// Where spares and cache devices were found, of whatever pool, by guid.
    pub auxiliaries: BTreeMap<u64, PathBuf>,
    /// The tree as the labels give it, top-level vdevs that were not found left out.
    pub(crate) tree: TreeConfig,
    /// Multihost was on when the pool was last written.
    pub(crate) multihost: bool,
}

/// What a search found.
#[derive(Clone, Debug, Default)]
pub struct Discovery {
    /// Pools, sorted by name and guid.
    pub pools: Vec<Candidate>,
    /// Devices that look like part of a pool but cannot be used, and why.
    pub rejected: Vec<(PathBuf, String)>,
}

/// Searches for pools.  Each place is a directory, whose devices and files are all looked at, or
/// a single device or file.  A place that cannot be read is reported among the rejected.
pub async fn discover(handle: &Handle, places: &[PathBuf]) -> Discovery {
    let mut discovery = Discovery::default();
    let mut paths: Vec<PathBuf> = Vec::new();
    for place in places {
        match handle.open_disk(place, DiskMode::ReadOnly).await {
            Ok(_) => paths.push(place.clone()),
            Err(open_error) => match handle.list_disks(place).await {
                Ok(found)
                    if !found.is_empty() || !matches!(open_error, DiskError::NotFound { .. }) =>
                {
                    paths.extend(found);
                }
                Ok(_) | Err(_) => discovery
                    .rejected
                    .push((place.clone(), open_error.to_string())),
            },
        }
    }
    paths.sort();
    paths.dedup();
    let devices = read_all(handle, paths).await;
    group_by_pool(devices, &mut discovery);
    discovery
}

/// The labels of one device.
struct DeviceLabels {
    path: PathBuf,
    result: Result<LabelSet, String>,
}

async fn read_all(handle: &Handle, paths: Vec<PathBuf>) -> Vec<DeviceLabels> {
    let workers = CONCURRENT.min(paths.len());
    let queue = Rc::new(RefCell::new(VecDeque::from(paths)));
    let devices = Rc::new(RefCell::new(Vec::new()));
    let mut tasks = Vec::new();
    for _ in 0..workers {
        let (handle, queue, devices) = (handle.clone(), queue.clone(), devices.clone());
        let worker_handle = handle.clone();
        tasks.push(handle.spawn("label reader", async move {
            loop {
                let Some(path) = queue.borrow_mut().pop_front() else {
                    return;
                };
                let result = read_one(&worker_handle, &path).await;
                devices.borrow_mut().push(DeviceLabels { path, result });
            }
        }));
    }
    for task in tasks {
        task.await;
    }
    let mut devices = devices.take();
    devices.sort_by(|a: &DeviceLabels, b: &DeviceLabels| a.path.cmp(&b.path));
    devices
}

/// Returns the guid of the device at a path, by its labels; `None` where they name none.
pub(crate) async fn guid_at(handle: &Handle, path: &Path) -> Result<Option<u64>, String> {
    let labels = read_one(handle, path).await?;
    Ok(labels
        .current_config()
        .and_then(|config| config.u64("guid")))
}

async fn read_one(handle: &Handle, path: &Path) -> Result<LabelSet, String> {
    let disk = handle
        .open_disk(path, DiskMode::ReadOnly)
        .await
        .map_err(|e| e.to_string())?;
    let set = LabelSet::read(&disk).await.map_err(|e| e.to_string())?;
    let mut labels = set.labels.iter();
    if set.psize > 0 && labels.all(|label| matches!(label, LabelState::Unreadable)) {
        return Err("none of its labels can be read".into());
    }
    Ok(set)
}

/// A label of one device that is worth considering.
struct LabeledDevice {
    path: PathBuf,
    labels: Vec<NvList>,
    uberblock: Option<Uberblock>,
}

/// Returns the newest label whose txg was completed on some device that names the same pool, else the newest: when a
/// pool gets another guid or is split, a power cut may leave labels of both.
fn newest_complete_label<'a>(labels: &'a [NvList], reached: &BTreeMap<u64, u64>) -> &'a NvList {
    let txg = |list: &&NvList| list.u64("txg").unwrap_or(0);
    let complete = |list: &&NvList| {
        let pool = list.u64("pool_guid").unwrap_or(0);
        reached
            .get(&pool)
            .is_some_and(|&reached| txg(list) <= reached)
    };
    let complete = labels.iter().filter(complete).max_by_key(txg);
    let newest = labels.iter().max_by_key(txg);
    complete.or(newest).expect("a valid label was found")
}

/// Returns the newest txg of any device that names a pool, by the pool's guid.
fn txgs_reached(devices: &[DeviceLabels]) -> BTreeMap<u64, u64> {
    let mut reached = BTreeMap::new();
    for set in devices
        .iter()
        .filter_map(|device| device.result.as_ref().ok())
    {
        let Some(last) = set.best_uberblock(None).map(|uberblock| uberblock.txg.0) else {
            continue;
        };
        for label in &set.labels {
            if let LabelState::Valid(list) = label
                && let Some(pool) = list.u64("pool_guid")
            {
                let known = reached.entry(pool).or_insert(last);
                *known = last.max(*known);
            }
        }
    }
    reached
}

fn valid_labels(set: &LabelSet) -> Vec<NvList> {
    let labels = set.labels.iter().filter_map(|label| match label {
        LabelState::Valid(list) => Some((**list).clone()),
        _ => None,
    });
    labels.collect()
}

fn group_by_pool(devices: Vec<DeviceLabels>, discovery: &mut Discovery) {
    let reached = txgs_reached(&devices);
    let mut pools: BTreeMap<u64, Vec<LabeledDevice>> = BTreeMap::new();
    let mut auxiliaries = BTreeMap::new();
    for device in devices {
        let set = match device.result {
            Ok(set) => set,
            Err(reason) => {
                discovery.rejected.push((device.path, reason));
                continue;
            }
        };
        let labels = valid_labels(&set);
        if labels.is_empty() {
            if set
                .labels
                .iter()
                .any(|label| matches!(label, LabelState::Bad))
            {
                discovery
                    .rejected
                    .push((device.path, "all labels are damaged".into()));
            }
            // Nothing that looks like a label: an ordinary foreign file or disk, not worth a word.
            continue;
        }
        let newest = newest_complete_label(&labels, &reached);
        if newest.u64("state").and_then(pool_state).is_none() {
            // A spare or cache device: it says nothing of its pool.
            if let Some(guid) = newest.u64("guid") {
                auxiliaries.insert(guid, device.path);
            }
            continue;
        }
        let Some(guid) = newest.u64("pool_guid") else {
            discovery
                .rejected
                .push((device.path, "its label names no pool".into()));
            continue;
        };
        let uberblock = set.best_uberblock(None).copied();
        let labels = labels
            .into_iter()
            .filter(|l| l.u64("pool_guid") == Some(guid))
            .collect();
        pools.entry(guid).or_default().push(LabeledDevice {
            path: device.path,
            labels,
            uberblock,
        });
    }
    for (guid, found) in pools {
        match assemble(guid, &found) {
            Ok(mut candidate) => {
                candidate.auxiliaries.clone_from(&auxiliaries);
                discovery.pools.push(candidate);
            }
            Err(reason) => discovery.rejected.extend(
                found
                    .into_iter()
                    .map(|device| (device.path, reason.clone())),
            ),
        }
    }
    discovery
        .pools
        .sort_by(|a, b| (&a.name, a.guid).cmp(&(&b.name, b.guid)));
}

/// The newest label of a device that belongs to a complete txg.
fn complete_label(device: &LabeledDevice, newest: Txg) -> Option<NvList> {
    // A label newer than the newest uberblock was written by a sync that did not complete.
    let usable = |list: &&NvList| {
        list.u64("txg")
            .is_some_and(|txg| txg != 0 && Txg(txg) <= newest)
    };
    let labels = device.labels.iter().filter(usable);
    labels
        .max_by_key(|list| list.u64("txg").unwrap_or(0))
        .cloned()
}

/// The tops that labels describe, by number, each with the txg of its label.
type LabeledTops = BTreeMap<u64, (u64, VdevConfig)>;

/// Where each leaf is, and what the labels say of top-level vdevs: of two that name the same one, the newer.
fn devices_and_tops(labels: &[(&LabeledDevice, NvList)]) -> (BTreeMap<u64, PathBuf>, LabeledTops) {
    let mut devices: BTreeMap<u64, PathBuf> = BTreeMap::new();
    let mut device_txg: BTreeMap<u64, u64> = BTreeMap::new();
    let mut tops = BTreeMap::new();
    for (device, list) in labels {
        let (Some(leaf), Some(tree)) = (list.u64("guid"), list.list("vdev_tree")) else {
            continue;
        };
        let Ok(top) = VdevConfig::from_nvlist(tree) else {
            continue;
        };
        let txg = list.u64("txg").unwrap_or(0);
        // Two devices with the same identity: a copy of a disk.  The newer label wins.
        if device_txg.get(&leaf).is_none_or(|known| *known < txg) {
            device_txg.insert(leaf, txg);
            devices.insert(leaf, device.path.clone());
        }
        if tops.get(&top.id).is_none_or(|(known, _)| *known < txg) {
            tops.insert(top.id, (txg, top));
        }
    }
    (devices, tops)
}

/// The tree of a pool as far as labels know it, the status of its top-level vdevs, and what is missing.
fn known_tree(
    guid: u64,
    newest: &NvList,
    mut tops: LabeledTops,
    devices: &BTreeMap<u64, PathBuf>,
) -> (TreeConfig, Vec<VdevStatus>, Vec<String>) {
    // Labels of old pools do not count the vdevs: there are at least those of which labels were found.
    let labeled = tops
        .keys()
        .next_back()
        .map_or(1, |last| last.saturating_add(1));
    let children = newest.u64("vdev_children").unwrap_or(labeled).min(4096);
    let holes = newest.u64s("hole_array").unwrap_or(&[]).to_vec();
    let removals = label_features(newest)
        .unwrap_or_default()
        .iter()
        .any(|guid| guid == "com.delphix:device_removal");
    let mut tree = TreeConfig {
        guid: Guid(guid),
        create_txg: 0,
        extra: NvList::new(),
        tops: Vec::new(),
    };
    let mut details = Vec::new();
    let mut statuses = Vec::new();
    for id in 0..children {
        // A hole first: a device that was removed may still carry its old label.
        if holes.contains(&id) {
            tree.tops.push(VdevConfig::new(VdevKind::Hole, id, Guid(0)));
        } else if let Some((_, mut top)) = tops.remove(&id) {
            set_open_paths(&mut top, devices);
            statuses.push(status_of(&top, devices, &mut details));
            tree.tops.push(top);
        } else if removals {
            // No label tells a removed vdev from one whose devices are missing; the pool's own configuration does.
            tree.tops
                .push(VdevConfig::new(VdevKind::Indirect, id, Guid(0)));
        } else {
            details.push(format!(
                "top-level vdev {id}: none of its devices was found"
            ));
            statuses.push(VdevStatus {
                name: format!("missing-{id}"),
                kind: "missing".into(),
                id,
                health: Health::Unavail,
                ..VdevStatus::default()
            });
            tree.tops
                .push(VdevConfig::new(VdevKind::Missing, id, Guid(0)));
        }
    }
    (tree, statuses, details)
}

/// Puts one pool together from the labels that name it.
fn assemble(guid: u64, found: &[LabeledDevice]) -> Result<Candidate, String> {
    let best = found
        .iter()
        .filter_map(|device| device.uberblock.as_ref())
        .max_by(|a, b| a.cmp_currency(b))
        .copied()
        .ok_or("no valid uberblock on any of its devices")?;
    let labels: Vec<(&LabeledDevice, NvList)> = found
        .iter()
        .filter_map(|device| Some((device, complete_label(device, best.txg)?)))
        .collect();
    let newest = labels
        .iter()
        .max_by_key(|(_, list)| list.u64("txg").unwrap_or(0))
        .map(|(_, list)| list.clone())
        .ok_or("no label belongs to a completed transaction group")?;
    let identity = Identity::from_list(&newest).ok_or("its label is incomplete")?;
    let state = newest
        .u64("state")
        .and_then(pool_state)
        .ok_or("its label has no usable state")?;

    let (devices, tops) = devices_and_tops(&labels);
    let (tree, statuses, mut details) = known_tree(guid, &newest, tops, &devices);
    let health = worst_of_root(&statuses);
    let (reason, features) = status_reason(&newest, &statuses, health, best.version);
    if !features.is_empty() {
        details = features;
    }
    let health = match reason {
        StatusReason::VersionNewer | StatusReason::UnsupportedFeatureRead => Health::Unavail,
        _ => health,
    };
    Ok(Candidate {
        guid,
        state,
        txg: best.txg.0,
        timestamp: best.timestamp,
        version: newest.u64("version").unwrap_or(0),
        hostid: identity.host.hostid,
        hostname: identity.host.hostname,
        comment: identity.comment,
        health,
        reason,
        details,
        root: VdevStatus {
            name: identity.name.clone(),
            kind: "root".into(),
            guid,
            health,
            children: statuses,
            ..VdevStatus::default()
        },
        name: identity.name,
        devices,
        auxiliaries: BTreeMap::new(),
        tree,
        multihost: best.mmp_valid && best.mmp_delay != 0,
    })
}

/// Tells a tree where its leaves were found; from then on that is where they are.
pub(crate) fn set_open_paths(vdev: &mut VdevConfig, devices: &BTreeMap<u64, PathBuf>) {
    if vdev.kind.is_device() {
        vdev.open_path = devices.get(&vdev.guid.0).cloned();
        if let Some(found) = &vdev.open_path {
            vdev.path = Some(found.display().to_string());
        }
    }
    for child in &mut vdev.children {
        set_open_paths(child, devices);
    }
}

/// The health of a vdev that is no leaf, from that of its children; and what is said of it.
fn inner_health(vdev: &VdevConfig, children: &[VdevStatus]) -> (Health, Option<String>) {
    let usable = children
        .iter()
        .filter(|c| c.health <= Health::Degraded)
        .count();
    let parity = match vdev.kind {
        VdevKind::Raidz | VdevKind::Draid => usize::from(vdev.nparity().unwrap_or(1)),
        _ => 0,
    };
    let needed = match parity {
        0 => 1,
        parity => children.len().saturating_sub(parity),
    };
    let health = if usable < needed {
        Health::Unavail
    } else if children.iter().all(|child| child.health == Health::Online) {
        Health::Online
    } else {
        Health::Degraded
    };
    let note = (usable < needed).then(|| "insufficient replicas".to_owned());
    (health, note)
}

fn status_of(
    vdev: &VdevConfig,
    devices: &BTreeMap<u64, PathBuf>,
    details: &mut Vec<String>,
) -> VdevStatus {
    let children: Vec<VdevStatus> = vdev
        .children
        .iter()
        .map(|child| status_of(child, devices, details))
        .collect();
    let (name, health, path, note) = if vdev.kind == VdevKind::DistributedSpare {
        let name = vdev.path.clone().unwrap_or_default();
        (name, Health::Online, None, None)
    } else if vdev.kind.is_leaf() {
        let found = devices.get(&vdev.guid.0);
        let stored = vdev.path.as_ref().map(PathBuf::from);
        let path = found.cloned().or(stored);
        let name = path
            .as_ref()
            .map_or_else(|| vdev.guid.to_string(), |p| p.display().to_string());
        if found.is_none() {
            details.push(name.clone());
        }
        let health = match found {
            Some(_) if vdev.offline => Health::Offline,
            Some(_) => Health::Online,
            None => Health::Unavail,
        };
        let note = found.is_none().then(|| "cannot open".to_owned());
        (name, health, path, note)
    } else {
        let (health, note) = inner_health(vdev, &children);
        (
            format!("{}-{}", vdev.type_name(), vdev.id),
            health,
            None,
            note,
        )
    };
    VdevStatus {
        name,
        kind: vdev.kind.as_str().to_owned(),
        guid: vdev.guid.0,
        id: vdev.id,
        path,
        health,
        note,
        ashift: u64::from(vdev.ashift),
        is_log: vdev.is_log,
        bias: vdev.allocation_bias(),
        size_bytes: vdev.asize,
        children,
        ..VdevStatus::default()
    }
}

fn worst_of_root(tops: &[VdevStatus]) -> Health {
    if tops.iter().any(|top| top.health > Health::Degraded) {
        Health::Unavail
    } else if tops.iter().any(|top| top.health == Health::Degraded) {
        Health::Degraded
    } else {
        Health::Online
    }
}

/// Chooses what to say of a pool, with the features that stand in the way.
fn status_reason(
    label: &NvList,
    tops: &[VdevStatus],
    health: Health,
    version: u64,
) -> (StatusReason, Vec<String>) {
    if !ondisk::pool_version::is_known(version) {
        return (StatusReason::VersionNewer, Vec::new());
    }
    let unsupported: Vec<String> = label_features(label)
        .unwrap_or_default()
        .into_iter()
        .filter(|guid| Feature::by_guid(guid).is_none_or(|f| support(f) == Support::None))
        .collect();
    if !unsupported.is_empty() {
        return (StatusReason::UnsupportedFeatureRead, unsupported);
    }
    let reason = match health {
        Health::Online if version < ondisk::SPA_VERSION_FEATURES => StatusReason::VersionOlder,
        Health::Online => StatusReason::Ok,
        Health::Degraded => {
            let offline_only = tops
                .iter()
                .flat_map(|top| &top.children)
                .all(|leaf| matches!(leaf.health, Health::Online | Health::Offline));
            if offline_only {
                StatusReason::OfflineDevice
            } else {
                StatusReason::MissingDeviceReplicated
            }
        }
        _ => StatusReason::MissingDevice,
    };
    (reason, Vec::new())
}
