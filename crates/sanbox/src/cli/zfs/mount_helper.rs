//! `mount.zfs`, by which `mount -t zfs` and the lines of `/etc/fstab` mount file systems with `mountpoint=legacy`, and snapshots.
// OpenZFS: cmd/mount_zfs.c; lib/libzfs/os/linux/libzfs_mount_os.c (options that are known, words)

use std::path::{Path, PathBuf};

use engine::property::DatasetKind;
use engine::{DatasetInfo, PoolHandle, PropertyQuery, VdevStatus};

use super::mount::{INCOMPLETE, overridden_by, remount};
use super::{open, shown};
use crate::cli::{Exit, Outcome, Session};
use crate::paths;
use crate::redacted::is_redacted;

/// Exit codes of mount(8).
const WRONG_CALL: u8 = 1;
const SYSTEM_FAULT: u8 = 2;
const NOT_MOUNTED: u8 = 32;

/// Options that mean something to others than the file system, or are as it is anyway.
const PASSED_OVER: &[&str] = &[
    "_netdev",
    "acl",
    "auto",
    "casesensitivity=insensitive",
    "casesensitivity=mixed",
    "casesensitivity=sensitive",
    "defaults",
    "diratime",
    "dirxattr",
    "group",
    "iversion",
    "lazytime",
    "noacl",
    "noauto",
    "nodiratime",
    "nofail",
    "nonbmand",
    "nostrictatime",
    "noxattr",
    "owner",
    "posixacl",
    "quiet",
    "saxattr",
    "strictatime",
    "user",
    "users",
    "xattr",
];

/// What the helper is called with.
pub(in crate::cli) struct HelperCall<'a> {
    pub(in crate::cli) operands: &'a [String],
    /// The values of `-o`.
    pub(in crate::cli) options: Vec<&'a str>,
    /// Options that are not known are left out.
    pub(in crate::cli) sloppy: bool,
    /// Nothing is mounted.
    pub(in crate::cli) fake: bool,
    pub(in crate::cli) verbose: bool,
}

/// A call that was read.
struct Call {
    dataset: String,
    point: PathBuf,
    /// Options that change the mount.
    words: Vec<String>,
    remount: bool,
    /// `zfs mount` makes the call, which mounts what is not legacy.
    by_zfs: bool,
    sloppy: bool,
    fake: bool,
    verbose: bool,
}

impl Call {
    fn read(session: &Session, given: HelperCall<'_>) -> Result<Self, Exit> {
        let wrong = |why: &str| {
            session.out.error(why);
            session.out.error("usage: mount <dataset> <mountpoint>");
            Exit(WRONG_CALL)
        };
        let (dataset, point) = match given.operands {
            [dataset, point] => (dataset, point),
            [] => return Err(wrong("missing dataset argument")),
            [_] => return Err(wrong("missing mountpoint argument")),
            _ => return Err(wrong("too many arguments")),
        };
        let mut call = Self {
            dataset: dataset.clone(),
            point: session.path(point),
            words: Vec::new(),
            remount: false,
            by_zfs: false,
            sloppy: given.sloppy,
            fake: given.fake,
            verbose: given.verbose,
        };
        let lists = given.options.into_iter();
        for word in lists.flat_map(|list| list.split(',')) {
            match word {
                "" => {}
                "remount" => call.remount = true,
                "zfsutil" => call.by_zfs = true,
                _ if overridden_by(word).is_some() => call.words.push(word.to_owned()),
                _ if PASSED_OVER.contains(&word) || is_comment(word) || call.sloppy => {}
                _ => {
                    session.out.error(format!(
                        "filesystem '{dataset}' cannot be mounted due to invalid option '{word}'."
                    ));
                    session
                        .out
                        .error("Use the '-s' option to ignore the bad mount option.");
                    return Err(Exit(WRONG_CALL));
                }
            }
        }
        Ok(call)
    }

    /// The dataset; in place of a device the pool that it belongs to.
    async fn named(&self, session: &Session) -> String {
        let device = PathBuf::from(&self.dataset);
        if device.is_absolute() {
            for pool in session.appliance.open_pools() {
                let status = pool.status().await;
                if status.is_ok_and(|status| has_device(&status.root, &device)) {
                    return pool.name().to_owned();
                }
            }
        }
        self.dataset.clone()
    }

    /// Refuses what is mounted by its property, as `zfs mount` does it, and the other way round.
    fn check_property(&self, session: &Session, info: &DatasetInfo) -> Outcome {
        let dataset = &self.dataset;
        let (by, other) = match is_legacy(info) {
            true if self.by_zfs => (
                "'zfs mount'",
                format!(
                    "Use 'zfs set mountpoint={0}' or 'mount -t zfs {dataset} {0}'.",
                    self.point.display()
                ),
            ),
            false if !self.by_zfs && !self.remount && !self.fake => (
                "'mount'",
                format!("Use 'zfs set mountpoint=legacy' or 'zfs mount {dataset}'."),
            ),
            _ => return Ok(()),
        };
        session.out.error(format!(
            "filesystem '{dataset}' cannot be mounted using {by}."
        ));
        session.out.error(other);
        session.out.error("See zfs(8) for more information.");
        Err(Exit(WRONG_CALL))
    }
}

fn has_device(vdev: &VdevStatus, device: &Path) -> bool {
    let mut below = vdev.children.iter();
    vdev.path.as_deref() == Some(device) || below.any(|child| has_device(child, device))
}

/// Options of fstab(5) that are for programs beside mount(8).
fn is_comment(word: &str) -> bool {
    word.starts_with("x-") || word.starts_with("comment=")
}

/// Snapshots are mounted as legacy file systems are.
fn is_legacy(info: &DatasetInfo) -> bool {
    info.kind == DatasetKind::Snapshot
        || shown(info, "mountpoint", true).is_some_and(|(value, _)| value == "legacy")
}

/// Mounts as mount(8) asks for it.
pub(in crate::cli) async fn run(session: &Session, given: HelperCall<'_>) -> Outcome {
    let call = Call::read(session, given)?;
    let dataset = &call.dataset;
    let at = call.point.clone();
    let found = paths::call(&call.point, move || std::fs::canonicalize(at)).await;
    let found = found.and_then(|found| found.map_err(|error| error.to_string()));
    let point = found.map_err(|why| {
        session.out.error(format!(
            "filesystem '{dataset}' cannot be mounted at '{}' due to canonicalization error: {why}",
            call.point.display()
        ));
        Exit(SYSTEM_FAULT)
    })?;
    let query = PropertyQuery::Named(vec!["mountpoint".to_owned(), "redacted".to_owned()]);
    let Ok((pool, info)) = open(session, &call.named(session).await, &query).await else {
        session.out.error(format!(
            "filesystem '{dataset}' cannot be mounted, unable to open the dataset"
        ));
        return Err(Exit(WRONG_CALL));
    };
    if info.kind == DatasetKind::Volume {
        session.out.error(format!(
            "filesystem '{dataset}' cannot be mounted: it is a volume"
        ));
        return Err(Exit(WRONG_CALL));
    }
    call.check_property(session, &info)?;
    if call.verbose {
        session.out.line(format!(
            "mount.zfs:\n  dataset:    \"{dataset}\"\n  mountpoint: \"{}\"\n  mountopts:  \"{}\"",
            point.display(),
            call.words.join(",")
        ));
    }
    if call.fake {
        return Ok(());
    }
    session.appliance.mounts().settle().await;
    if !call.remount {
        mount(session, &pool, &info, &point).await?;
    }
    if call.remount || !call.words.is_empty() {
        let remounted = remount(session, &pool, &info, &call.words).await;
        remounted.map_err(|_| Exit(NOT_MOUNTED))?;
    }
    Ok(())
}

async fn mount(session: &Session, pool: &PoolHandle, info: &DatasetInfo, point: &Path) -> Outcome {
    let name = &info.name;
    let refuse = |why: &str| {
        session.out.error(why);
        Err(Exit(NOT_MOUNTED))
    };
    match session.appliance.mounts().mounted(info.guid) {
        Some(first) if first != point => {
            let (from, to) = (first.clone(), point.to_owned());
            let bound = paths::call(point, move || rustix::mount::mount_bind(from, to)).await;
            let bound = bound.and_then(|bound| bound.map_err(|error| error.to_string()));
            return bound
                .or_else(|why| refuse(&format!("filesystem '{name}' can not be mounted: {why}")));
        }
        Some(_) => return refuse(&format!("filesystem '{name}' is already mounted")),
        None => {}
    }
    if !session.appliance.is_daemon() {
        return refuse(&format!(
            "filesystem '{name}' can not be mounted: no daemon is running that could hold the mount; start 'sanbox serve'"
        ));
    }
    if is_redacted(info) {
        return refuse(&format!(
            "filesystem '{name}' can not be mounted: {INCOMPLETE}"
        ));
    }
    let mounted = session.appliance.mount(pool, info, point, true).await;
    mounted.or_else(|why| refuse(&format!("filesystem '{name}' can not be mounted: {why}")))
}
