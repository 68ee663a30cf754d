//! What `zpool status` shows of a pool: of an open one what it reports, of one that cannot be opened its cached configuration with
//! what was found of each device, and why it cannot be opened.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use engine::{
    AllocationBias, EngineError, Health, PoolError, PoolStatus, RemovalStatus, StatusReason,
    VdevStatus, vdev_note as note,
};
use manage::state::CachedVdev;

use super::super::{NameStyle, Subject};
use crate::appliance::CachedPool;
use crate::cli::Session;

/// Why a pool is not as it should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    /// What the engine reports of a pool, or a search of its devices.
    Reported(StatusReason),
    /// Only log devices are missing.
    MissingLogs,
    /// An intent log holds records that this software does not know.
    UnreplayedLog,
    /// Another host used it last.
    ForeignHost,
    /// Another host may use it (multihost), and this one has no identifier.
    NoHostId,
    /// Its labels say that it was exported or destroyed, which this host did not do.
    EndedElsewhere,
    /// None of these; the details say what.
    Unknown,
}

impl Cause {
    /// Returns the cause of an error that a pool was opened with.
    pub(super) fn of(error: &EngineError) -> Self {
        let EngineError::Pool(error) = error else {
            return match error {
                EngineError::Dataset(_) => Self::EndedElsewhere,
                _ => Self::Unknown,
            };
        };
        match error {
            PoolError::MissingDevices { .. } | PoolError::Vdev(_) | PoolError::Disk(_) => {
                Self::Reported(StatusReason::MissingDevice)
            }
            PoolError::MissingLogs { .. } => Self::MissingLogs,
            PoolError::DirtyIntentLog { .. } => Self::UnreplayedLog,
            PoolError::ForeignHost { .. } => Self::ForeignHost,
            PoolError::ActiveElsewhere { .. } => Self::Reported(StatusReason::HostidActive),
            PoolError::NoHostId => Self::NoHostId,
            PoolError::UnsupportedForRead { .. } => {
                Self::Reported(StatusReason::UnsupportedFeatureRead)
            }
            PoolError::UnsupportedForWrite { .. } => {
                Self::Reported(StatusReason::UnsupportedFeatureWrite)
            }
            PoolError::UnsupportedVersion(_) => Self::Reported(StatusReason::VersionNewer),
            damage if damage.is_damage() => Self::Reported(StatusReason::CorruptPool),
            _ => Self::Unknown,
        }
    }
}

/// The state of a pool that is known and cannot be opened, whatever state its top-level vdevs have.
// OpenZFS: lib/libzfs/libzfs_pool.c, zpool_get_state_str
pub(in crate::cli::zpool) const STATE_CLOSED: &str = "FAULTED";

impl Cause {
    /// What the line of the pool says at its end, of a pool that cannot be opened.
    // OpenZFS: cmd/zpool/zpool_main.c, print_status_config
    fn note(self) -> Option<&'static str> {
        Some(match self {
            Self::Reported(StatusReason::MissingDevice) => "insufficient replicas",
            Self::Reported(StatusReason::CorruptPool) => note::CORRUPTED_DATA,
            Self::Reported(StatusReason::HostidActive) | Self::NoHostId => "currently in use",
            Self::Reported(StatusReason::VersionNewer) => "newer version",
            Self::Reported(StatusReason::VersionOlder) => "older version",
            Self::Reported(
                StatusReason::UnsupportedFeatureRead | StatusReason::UnsupportedFeatureWrite,
            ) => "unsupported feature(s)",
            Self::MissingLogs => note::BAD_LOG,
            _ => return None,
        })
    }
}

/// A pool as it is shown.
pub(super) struct PoolModel {
    pub(super) status: PoolStatus,
    pub(super) cause: Cause,
    /// The state of the whole.
    pub(super) state: &'static str,
}

impl Default for PoolModel {
    fn default() -> Self {
        Self {
            status: PoolStatus::default(),
            cause: Cause::Reported(StatusReason::Ok),
            state: Health::Online.as_str(),
        }
    }
}

impl PoolModel {
    /// Makes the model of a pool; `None` when it was exported meanwhile.
    pub(super) async fn of(session: &Session, subject: &Subject) -> Option<Self> {
        match subject {
            Subject::Open(pool) => {
                let status = pool.status().await.ok()?;
                let cause = Cause::Reported(status.reason);
                let state = status.health.as_str();
                Some(Self {
                    status,
                    cause,
                    state,
                })
            }
            Subject::Closed(cached, error) => {
                Some(closed(cached, error, &found(session, cached).await))
            }
        }
    }

    /// Whether `zpool status -x` has nothing to say of it.
    pub(super) fn is_healthy(&self) -> bool {
        matches!(
            self.cause,
            Cause::Reported(
                StatusReason::Ok | StatusReason::FeaturesDisabled | StatusReason::VersionOlder
            )
        )
    }
}

/// What is where the devices of a pool were.
#[derive(Default)]
struct FoundDevices {
    /// Devices of the pool, by guid.
    own: BTreeMap<u64, PathBuf>,
    /// Devices of other pools, with the names of these.
    foreign: BTreeMap<PathBuf, String>,
}

/// Looks where the devices of a pool were. A delegated user learns nothing of devices.
async fn found(session: &Session, cached: &CachedPool) -> FoundDevices {
    let mut found = FoundDevices::default();
    if crate::appliance::is_delegated() {
        return found;
    }
    let engine = session.appliance.engine();
    let Ok(discovery) = engine.discover(cached.devices.clone()).await else {
        return found;
    };
    for candidate in discovery.pools {
        if candidate.guid == cached.guid {
            found.own = candidate.devices;
            continue;
        }
        for path in candidate.devices.into_values() {
            found.foreign.insert(path, candidate.name.clone());
        }
    }
    found
}

fn closed(cached: &CachedPool, error: &EngineError, found: &FoundDevices) -> PoolModel {
    let mut cause = Cause::of(error);
    let tops: Vec<VdevStatus> = if cached.vdevs.is_empty() {
        // Remembered by a version that kept the paths alone.
        let leaf = |path: &PathBuf| leaf(&CachedVdev::leaf(path), found);
        cached.devices.iter().map(leaf).collect()
    } else {
        let vdevs = cached.vdevs.iter();
        vdevs.map(|vdev| vdev_status(vdev, found)).collect()
    };
    let root_note = cause.note();
    if cause == Cause::Reported(StatusReason::MissingDevice) && has_only_bad_labels(&tops) {
        cause = Cause::Reported(StatusReason::CorruptLabel);
    }
    let auxiliary = |vdev: &CachedVdev, health: Health| {
        let path = vdev.path.clone().unwrap_or_default();
        VdevStatus {
            health: if path.exists() {
                health
            } else {
                Health::Unavail
            },
            note: (!path.exists()).then(|| CANNOT_OPEN.to_owned()),
            ..plain(vdev)
        }
    };
    let spares = cached.spares.iter();
    let caches = cached.caches.iter();
    let status = PoolStatus {
        name: cached.name.clone(),
        guid: cached.guid,
        health: Health::Unavail,
        details: details(error),
        root: VdevStatus {
            name: cached.name.clone(),
            kind: "root".to_owned(),
            health: Health::Unavail,
            note: root_note.map(str::to_owned),
            children: tops,
            ..VdevStatus::default()
        },
        spares: spares
            .map(|vdev| auxiliary(vdev, Health::Available))
            .collect(),
        caches: caches.map(|vdev| auxiliary(vdev, Health::Online)).collect(),
        ..PoolStatus::default()
    };
    PoolModel {
        status,
        cause,
        state: STATE_CLOSED,
    }
}

/// What goes with the words for an error: features by name, else the error itself.
fn details(error: &EngineError) -> Vec<String> {
    match error {
        EngineError::Pool(
            PoolError::UnsupportedForRead { features }
            | PoolError::UnsupportedForWrite { features },
        ) => features.clone(),
        error => vec![error.to_string()],
    }
}

const CANNOT_OPEN: &str = "cannot open";

fn plain(vdev: &CachedVdev) -> VdevStatus {
    VdevStatus {
        name: vdev.name.clone(),
        kind: vdev.kind.clone(),
        guid: vdev.guid,
        path: vdev.path.clone(),
        bias: match vdev.class.as_deref() {
            Some("log") => AllocationBias::Log,
            Some("special") => AllocationBias::Special,
            Some("dedup") => AllocationBias::Dedup,
            _ => AllocationBias::None,
        },
        ..VdevStatus::default()
    }
}

fn vdev_status(vdev: &CachedVdev, found: &FoundDevices) -> VdevStatus {
    if vdev.children.is_empty() {
        return leaf(vdev, found);
    }
    let children = vdev.children.iter();
    let children: Vec<_> = children.map(|child| vdev_status(child, found)).collect();
    let is_lost = |child: &&VdevStatus| child.health == Health::Unavail;
    let lost = children.iter().filter(is_lost).count();
    let health = match lost {
        0 => Health::Online,
        lost if lost <= redundancy(vdev) => Health::Degraded,
        _ => Health::Unavail,
    };
    VdevStatus {
        health,
        note: (health == Health::Unavail).then(|| "insufficient replicas".to_owned()),
        children,
        ..plain(vdev)
    }
}

/// How many children of a vdev may be lost.
fn redundancy(vdev: &CachedVdev) -> usize {
    let parity = |rest: &str| {
        let digit = rest.chars().next().and_then(|digit| digit.to_digit(10));
        digit.map_or(1, |digit| digit as usize)
    };
    match (
        vdev.name.strip_prefix("raidz"),
        vdev.name.strip_prefix("draid"),
    ) {
        (Some(rest), _) | (_, Some(rest)) => parity(rest),
        // Mirrors, and what stands in for a disk: a spare, a replacement.
        _ => vdev.children.len() - 1,
    }
}

fn leaf(vdev: &CachedVdev, found: &FoundDevices) -> VdevStatus {
    let mut status = plain(vdev);
    let path = vdev.path.as_deref();
    if found.own.contains_key(&vdev.guid)
        || found
            .own
            .values()
            .any(|known| Some(known.as_path()) == path)
    {
        status.health = Health::Online;
        return status;
    }
    status.health = Health::Unavail;
    let foreign = path.and_then(|path| found.foreign.get(path));
    status.note = Some(match foreign {
        Some(pool) => format!("part of pool '{pool}'"),
        None if path.is_some_and(Path::exists) => note::INVALID_LABEL.to_owned(),
        None => CANNOT_OPEN.to_owned(),
    });
    status
}

/// Whether devices are lost, and all those that are have another content where they were.
fn has_only_bad_labels(tops: &[VdevStatus]) -> bool {
    fn lost<'a>(vdev: &'a VdevStatus, into: &mut Vec<&'a VdevStatus>) {
        if vdev.children.is_empty() && vdev.health != Health::Online {
            into.push(vdev);
        }
        vdev.children.iter().for_each(|child| lost(child, into));
    }
    let mut leaves = Vec::new();
    for top in tops {
        lost(top, &mut leaves);
    }
    let is_bad = |leaf: &&VdevStatus| leaf.note.as_deref() == Some(note::INVALID_LABEL);
    !leaves.is_empty() && leaves.iter().all(is_bad)
}

/// Whether a vdev and all below it have neither failed nor counted errors.
pub(super) fn healthy(vdev: &VdevStatus) -> bool {
    if !vdev.children.is_empty() {
        return vdev.children.iter().all(healthy);
    }
    matches!(
        vdev.health,
        Health::Online | Health::Available | Health::InUse
    ) && vdev.read_errors + vdev.write_errors + vdev.checksum_errors == 0
}

/// The name of the vdev of the newest removal; of one that has gone, the name of the indirect vdev that took its number.
pub(super) fn removed_name(
    status: &PoolStatus,
    removal: &RemovalStatus,
    style: NameStyle,
) -> String {
    top_name(status, removal.vdev, style)
}

/// The name of a top-level vdev by its number.
pub(super) fn top_name(status: &PoolStatus, vdev: u64, style: NameStyle) -> String {
    let mut tops = status.root.children.iter();
    let found = tops.find(|top| top.id == vdev);
    found.map_or_else(|| format!("indirect-{vdev}"), |top| style.name(top))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disk(guid: u64, path: &str) -> CachedVdev {
        CachedVdev {
            guid,
            ..CachedVdev::leaf(Path::new(path))
        }
    }

    fn top(name: &str, children: Vec<CachedVdev>) -> CachedVdev {
        CachedVdev {
            name: name.to_owned(),
            kind: name.split('-').next().unwrap_or(name).to_owned(),
            children,
            ..CachedVdev::default()
        }
    }

    /// Lines of `NAME HEALTH NOTE`, each level indented.
    fn tree(vdev: &VdevStatus, depth: usize, into: &mut String) {
        let note = vdev.note.as_deref().unwrap_or("-");
        let name = &vdev.name;
        let health = vdev.health.as_str();
        into.push_str(&format!("{:depth$}{name} {health} {note}\n", ""));
        for child in &vdev.children {
            tree(child, depth + 1, into);
        }
    }

    #[test]
    fn each_missing_disk_is_shown_in_its_place() {
        let check = |vdevs: Vec<CachedVdev>, present: &[u64], expect: &str| {
            let cached = CachedPool {
                name: "tank".to_owned(),
                vdevs,
                ..CachedPool::default()
            };
            let found = FoundDevices {
                own: present.iter().map(|guid| (*guid, PathBuf::new())).collect(),
                foreign: [("/gone/x".into(), "lake".to_owned())].into(),
            };
            let missing = Vec::new();
            let error = EngineError::Pool(PoolError::MissingDevices { missing });
            let model = closed(&cached, &error, &found);
            let mut text = String::new();
            tree(&model.status.root, 0, &mut text);
            assert_eq!(text, expect);
        };
        check(
            vec![top(
                "mirror-0",
                vec![disk(1, "/gone/a"), disk(2, "/gone/b")],
            )],
            &[],
            "tank UNAVAIL insufficient replicas\n mirror-0 UNAVAIL insufficient replicas\n  \
             /gone/a UNAVAIL cannot open\n  /gone/b UNAVAIL cannot open\n",
        );
        check(
            vec![
                top("mirror-0", vec![disk(1, "/gone/a"), disk(2, "/gone/x")]),
                disk(3, "/"),
            ],
            &[1],
            "tank UNAVAIL insufficient replicas\n mirror-0 DEGRADED -\n  /gone/a ONLINE -\n  \
             /gone/x UNAVAIL part of pool 'lake'\n / UNAVAIL invalid label\n",
        );
        check(
            vec![top(
                "raidz2-0",
                vec![disk(1, "/gone/a"), disk(2, "/gone/b"), disk(3, "/gone/c")],
            )],
            &[2],
            "tank UNAVAIL insufficient replicas\n raidz2-0 DEGRADED -\n  /gone/a UNAVAIL cannot open\n  \
             /gone/b ONLINE -\n  /gone/c UNAVAIL cannot open\n",
        );
    }

    #[test]
    fn labels_are_blamed_only_when_every_disk_is_there() {
        let check = |paths: &[&str], expect: StatusReason| {
            let cached = CachedPool {
                vdevs: paths.iter().map(|path| disk(1, path)).collect(),
                ..CachedPool::default()
            };
            let missing = Vec::new();
            let error = EngineError::Pool(PoolError::MissingDevices { missing });
            let model = closed(&cached, &error, &FoundDevices::default());
            assert_eq!(model.cause, Cause::Reported(expect), "{paths:?}");
        };
        check(&["/"], StatusReason::CorruptLabel);
        check(&["/", "/gone/a"], StatusReason::MissingDevice);
        check(&["/gone/a"], StatusReason::MissingDevice);
    }
}
