//! `zfs mount`, `unmount`, `share` and `unshare`.
//!
//! Mounting is by FUSE and needs a daemon that lives on after the command; NFS and SMB need no such mount, the
//! daemon serves shared datasets from the engine itself, and Samba by mounts of its own.

use std::collections::BTreeSet;

use engine::property::{DatasetKind, Property};
use engine::{DatasetFilter, DatasetInfo, PoolHandle, PropertyQuery};
use serde_json::{Map, json};

use super::keys::{self, KeyInput};
use super::{open, shown};
use crate::appliance::{KnownPool, ShareProtocol};
use crate::cli::command::{Command, Word, options};
use crate::cli::{Exit, Outcome, Session, json as forms};
use crate::follow::{Affected, Change};
use crate::redacted::is_redacted;

options! {
    MountOption {
        All = short('a', "all file systems"),
        Json = both('j', "json", None, "print JSON"),
        Recursive = short('R', "what lies below, too"),
        LoadKeys = short('l', "ask for the keys of encrypted file systems"),
        Verbose = short('v', "say how far it is"),
        Options(String) = valued('o', "opts", "mount options, for this mount only"),
        Overlay = short('O', "over a directory that is not empty, though overlay=off"),
        Force = short('f', "datasets that were received redacted, too"),
    }
}

/// The declaration of `zfs mount`.
pub(super) const MOUNT: Command = Command {
    name: "mount",
    summary: "show mounts, or mount file systems",
    usage: "\tmount [-j]\n\
         \tmount [-flvO] [-o opts] <-a|-R filesystem|filesystem>\n",
    flags: MountOption::FLAGS,
    words: &[Word::Dataset],
    examples: &[
        ("zfs mount", "what is mounted"),
        (
            "zfs mount tank/home",
            "at its mount point on this machine, by FUSE",
        ),
    ],
    ..Command::NEW
};

options! {
    UnmountOption {
        All = short('a', "all file systems"),
        Force = short('f', "though they are in use"),
        UnloadKeys = short('u', "and unload the keys of those that are encryption roots"),
    }
}

/// The declaration of `zfs unmount`.
pub(super) const UNMOUNT: Command = Command {
    name: "unmount",
    aliases: &["umount"],
    summary: "unmount file systems",
    usage: "\tunmount [-fu] <-a | filesystem|mountpoint>\n",
    flags: UnmountOption::FLAGS,
    says_missing: false,
    words: &[Word::Dataset],
    ..Command::NEW
};

options! {
    ShareOption {
        All = short('a', "all file systems whose sharenfs or sharesmb property says so"),
        LoadKeys = short('l', "ask for the keys of encrypted file systems"),
    }
}

/// The declaration of `zfs share`.
pub(super) const SHARE: Command = Command {
    name: "share",
    summary: "share file systems",
    usage: "\tshare [-l] <-a [nfs|smb] | filesystem>\n",
    flags: ShareOption::FLAGS,
    says_missing: false,
    words: &[Word::Dataset],
    examples: &[(
        "zfs share -a",
        "share everything whose sharenfs property says so",
    )],
    ..Command::NEW
};

options! {
    UnshareOption {
        All = short('a', "all file systems"),
    }
}

/// The declaration of `zfs unshare`.
pub(super) const UNSHARE: Command = Command {
    name: "unshare",
    summary: "end the sharing of file systems",
    usage: "\tunshare <-a [nfs|smb] | filesystem|mountpoint>\n",
    flags: UnshareOption::FLAGS,
    words: &[Word::Dataset],
    ..Command::NEW
};

fn query() -> PropertyQuery {
    let names = [
        "mountpoint",
        "canmount",
        "sharenfs",
        "sharesmb",
        "readonly",
        "redacted",
    ];
    PropertyQuery::Named(names.iter().map(|name| (*name).to_owned()).collect())
}

/// All file systems of all pools.
async fn all(session: &Session) -> Vec<(PoolHandle, DatasetInfo)> {
    let mut found = Vec::new();
    for known in session.appliance.pools().await {
        let KnownPool::Open(pool) = known else {
            continue;
        };
        found.extend(below(&pool, pool.name()).await);
    }
    found
}

/// A file system and all below it.
async fn below(pool: &PoolHandle, root: &str) -> Vec<(PoolHandle, DatasetInfo)> {
    let filter = DatasetFilter {
        root: root.to_owned(),
        depth: None,
        kinds: vec![DatasetKind::Filesystem],
    };
    let datasets = pool.datasets(&filter, &query()).await.unwrap_or_default();
    datasets
        .into_iter()
        .map(|info| (pool.clone(), info))
        .collect()
}

/// Why a dataset that was received redacted is neither mounted nor shared.
pub(super) const INCOMPLETE: &str =
    "Dataset is not complete, was created by receiving a redacted zfs send stream.";

/// What is done at a mount beside it.
#[derive(Clone, Copy, Default)]
struct MountHow {
    /// Keys that are missing are asked for.
    load_keys: bool,
    /// The directory need not be empty, whatever the property `overlay` says.
    overlay: bool,
    /// Datasets that were received redacted are mounted, too.
    redacted: bool,
}

/// Mounts those file systems that are to be mounted and are not. Those whose key is not loaded are left out, or their keys
/// loaded.
async fn mount_each(
    session: &Session,
    datasets: Vec<(PoolHandle, DatasetInfo)>,
    how: MountHow,
) -> Outcome {
    let mut failed = false;
    let mut input = KeyInput::new(session);
    for (pool, info) in datasets {
        let value = |name| shown(&info, name, true).map_or_else(String::new, |shown| shown.0);
        let skip = value("canmount") != "on"
            || (is_redacted(&info) && !how.redacted)
            || matches!(value("mountpoint").as_str(), "none" | "legacy");
        if !skip && session.appliance.mounts().mounted(info.guid).is_none() {
            if how.load_keys {
                failed |= keys::load_for(session, &mut input, &pool, &info.name)
                    .await
                    .is_err();
            }
            if keys::lacks_key(&pool, &info.name).await {
                continue;
            }
            failed |= mount_one(session, &pool, &info, how).await.is_err();
        }
    }
    if failed { Err(Exit(1)) } else { Ok(()) }
}

pub(super) async fn mount(session: &Session, arguments: &[String]) -> Outcome {
    let (mut every, mut as_json, mut verbose) = (false, false, false);
    let (mut recursive, mut how) = (false, MountHow::default());
    let mut words: Vec<String> = Vec::new();
    let operands = session.read_options(arguments, |_, option| {
        match option {
            MountOption::All => every = true,
            MountOption::Json => as_json = true,
            MountOption::Recursive => recursive = true,
            MountOption::Verbose => verbose = true,
            MountOption::Options(list) => words.extend(list.split(',').map(str::to_owned)),
            MountOption::LoadKeys => how.load_keys = true,
            MountOption::Overlay => how.overlay = true,
            MountOption::Force => how.redacted = true,
        }
        Ok(())
    })?;
    session.appliance.mounts().settle().await;
    if every {
        if !operands.is_empty() {
            return Err(session.misuse("too many arguments"));
        }
        return mount_each(session, all(session).await, how).await;
    }
    if recursive {
        if operands.is_empty() {
            return Err(session.misuse("no dataset is given"));
        }
        let mut datasets = Vec::new();
        for name in &operands {
            let (pool, info) = open(session, name, &query()).await?;
            datasets.extend(below(&pool, &info.name).await);
        }
        return mount_each(session, datasets, how).await;
    }
    match operands.as_slice() {
        [] => {
            let mounted = session.appliance.mounts().attached();
            if as_json {
                let objects: Map<_, _> = mounted
                    .iter()
                    .map(|(name, point)| {
                        let point = point.to_string_lossy();
                        (
                            name.clone(),
                            json!({ "filesystem": name, "mountpoint": point }),
                        )
                    })
                    .collect();
                session
                    .out
                    .line(forms::envelope("zfs mount", "datasets", objects));
            } else {
                for (name, point) in mounted {
                    session.out.line(format!("{name:<30}  {}", point.display()));
                }
            }
            Ok(())
        }
        [name] => {
            let (pool, info) = open(session, name, &query()).await?;
            if words.iter().any(|word| word == "remount") {
                return remount(session, &pool, &info, &words).await;
            }
            if how.load_keys {
                let mut input = KeyInput::new(session);
                keys::load_for(session, &mut input, &pool, name).await?;
            }
            mount_one(session, &pool, &info, how).await?;
            if words.is_empty() {
                return Ok(());
            }
            remount(session, &pool, &info, &words).await
        }
        _ => Err(session.misuse("too many arguments")),
    }
}

/// Options of `mount` with the properties they override until the file system is unmounted.
// OpenZFS: man/man8/zfs-mount.8; lib/libzfs/libzfs_mount.c; module/os/linux/zfs/zfs_vfsops.c (names)
const OVERRIDES: [(&str, Property, bool); 16] = [
    ("ro", Property::ReadOnly, true),
    ("rw", Property::ReadOnly, false),
    ("atime", Property::Atime, true),
    ("noatime", Property::Atime, false),
    ("relatime", Property::Relatime, true),
    ("norelatime", Property::Relatime, false),
    ("exec", Property::Exec, true),
    ("noexec", Property::Exec, false),
    ("devices", Property::Devices, true),
    ("dev", Property::Devices, true),
    ("nodevices", Property::Devices, false),
    ("nodev", Property::Devices, false),
    ("setuid", Property::Setuid, true),
    ("suid", Property::Setuid, true),
    ("nosetuid", Property::Setuid, false),
    ("nosuid", Property::Setuid, false),
];

/// Returns what a mount option overrides, and whether it turns that on.
pub(super) fn overridden_by(word: &str) -> Option<(Property, bool)> {
    let found = OVERRIDES.iter().find(|(known, ..)| *known == word);
    found.map(|(_, property, on)| (*property, *on))
}

/// Applies `-o` to a file system that is mounted.
pub(super) async fn remount(
    session: &Session,
    pool: &PoolHandle,
    info: &DatasetInfo,
    words: &[String],
) -> Outcome {
    let name = &info.name;
    let refuse = |why: &str| Err(session.fail(format!("cannot mount '{name}': {why}")));
    if session.appliance.mounts().mounted(info.guid).is_none() {
        return refuse("not currently mounted");
    }
    let Ok(mut flags) = crate::appliance::mount_flags(pool, name).await else {
        return refuse("the dataset cannot be read");
    };
    let mut chosen = session.appliance.mounts().overridden(info.guid);
    for word in words.iter().filter(|word| *word != "remount") {
        let Some((property, on)) = overridden_by(word) else {
            return refuse(&format!("invalid mount option '{word}'"));
        };
        chosen.retain(|(known, _)| *known != property);
        chosen.push((property, on));
    }
    for (property, on) in &chosen {
        match property {
            Property::ReadOnly => flags.readonly = *on || pool.readonly(),
            Property::Exec => flags.no_exec = !on,
            Property::Devices => flags.no_devices = !on,
            Property::Setuid => flags.no_setuid = !on,
            _ => {}
        }
    }
    let mounts = session.appliance.mounts();
    if let Err(why) = mounts.remount(info.guid, flags).await {
        return refuse(&why);
    }
    mounts.override_properties(info.guid, &chosen);
    Ok(())
}

async fn mount_one(
    session: &Session,
    pool: &PoolHandle,
    info: &DatasetInfo,
    how: MountHow,
) -> Outcome {
    let name = &info.name;
    let value = |name| shown(info, name, true).map_or_else(String::new, |shown| shown.0);
    let refuse = |why: String| Err(session.fail(format!("cannot mount '{name}': {why}")));
    if info.kind != DatasetKind::Filesystem {
        return refuse("operation not applicable to datasets of this type".to_owned());
    }
    let point = value("mountpoint");
    if point == "legacy" {
        session
            .out
            .error(format!("cannot mount '{name}': legacy mountpoint"));
        return Err(session.fail("use mount(8) to mount this filesystem"));
    }
    if point == "none" {
        return refuse("no mountpoint set".to_owned());
    }
    if value("canmount") == "off" {
        return refuse("'canmount' property is set to 'off'".to_owned());
    }
    if is_redacted(info) && !how.redacted {
        return refuse(INCOMPLETE.to_owned());
    }
    if session.appliance.mounts().mounted(info.guid).is_some() {
        return refuse("filesystem already mounted".to_owned());
    }
    if !session.appliance.is_daemon() {
        return refuse(format!(
            "no daemon is running that could hold the mount; start 'sanbox serve', or use 'sanbox mount {name} {point}'"
        ));
    }
    let mounted = session
        .appliance
        .mount(pool, info, point.as_ref(), how.overlay);
    match mounted.await {
        Ok(()) if is_redacted(info) => {
            // It is shared from now on.
            session.appliance.datasets_changed().await;
            Ok(())
        }
        Ok(()) => Ok(()),
        Err(why) => refuse(why),
    }
}

pub(super) async fn unmount(session: &Session, arguments: &[String]) -> Outcome {
    let (mut every, mut force, mut unload) = (false, false, false);
    let operands = session.read_options(arguments, |_, option| {
        match option {
            UnmountOption::All => every = true,
            UnmountOption::Force => force = true,
            UnmountOption::UnloadKeys => unload = true,
        }
        Ok(())
    })?;
    session.appliance.mounts().settle().await;
    if every {
        if !operands.is_empty() {
            return Err(session.misuse("too many arguments"));
        }
        let mut failed = false;
        let mut pools = BTreeSet::new();
        for (name, _) in session.appliance.mounts().attached().into_iter().rev() {
            if !is_unmounted_with_all(session, &name).await {
                continue;
            }
            match session.appliance.mounts().unmount_name(&name, force).await {
                Ok(()) => {
                    failed |= unload && keys::unload_root(session, &name).await.is_err();
                    pools.extend(name.split('/').next().map(str::to_owned));
                }
                Err(why) => {
                    session.out.error(format!("cannot unmount '{name}': {why}"));
                    failed = true;
                }
            }
        }
        for pool in pools {
            if let Ok((pool, _)) = open(session, &pool, &PropertyQuery::None).await {
                write_out(&pool).await;
            }
        }
        session.appliance.datasets_changed().await;
        return if failed { Err(Exit(1)) } else { Ok(()) };
    }
    let [name] = operands.as_slice() else {
        return Err(session.misuse(if operands.is_empty() {
            "missing filesystem argument"
        } else {
            "too many arguments"
        }));
    };
    let mounted = session.appliance.mounts().attached();
    let target = if name.starts_with('/') {
        let path = session.path(name);
        match mounted.into_iter().find(|(_, point)| *point == path) {
            Some((dataset, _)) => dataset,
            None => {
                return Err(session.fail(format!("cannot unmount '{name}': not a mountpoint")));
            }
        }
    } else {
        open(session, name, &PropertyQuery::None).await?;
        if !mounted.iter().any(|(dataset, _)| dataset == name) {
            return Err(session.fail(format!("cannot unmount '{name}': not currently mounted")));
        }
        name.clone()
    };
    let (_, info) = open(session, &target, &query()).await?;
    if shown(&info, "mountpoint", true).is_some_and(|(value, _)| value == "legacy") {
        session
            .out
            .error(format!("cannot unmount '{target}': legacy mountpoint"));
        return Err(session.fail("use umount(8) to unmount this filesystem"));
    }
    let unmounted = unmount_with_below(session, &target, force, unload).await;
    // What was received redacted is shared as long as it is mounted.
    session.appliance.datasets_changed().await;
    unmounted
}

/// Whether `zfs unmount -a` is about a dataset: not about snapshots, nor what is mounted by mount(8) or by name alone.
// OpenZFS: cmd/zfs/zfs_main.c, unshare_unmount
async fn is_unmounted_with_all(session: &Session, name: &str) -> bool {
    let Ok((_, info)) = open(session, name, &query()).await else {
        return true;
    };
    let is =
        |property, wanted| shown(&info, property, true).is_some_and(|(value, _)| value == wanted);
    info.kind != DatasetKind::Snapshot && !is("mountpoint", "legacy") && !is("canmount", "noauto")
}

/// Unmounts a file system and what is mounted below it because it inherits the mount point; with `unload`, unloads their keys.
// OpenZFS: lib/libzfs/libzfs_mount.c, zfs_unmountall
async fn unmount_with_below(session: &Session, target: &str, force: bool, unload: bool) -> Outcome {
    let (pool, _) = open(session, target, &PropertyQuery::None).await?;
    let before = session.appliance.mounts().list();
    let point = Some(Change::Point);
    let affected = Affected::unmount(&session.appliance, &pool, target, point, force)
        .await
        .map_err(|why| session.fail(why))?;
    if unload {
        let left = session.appliance.mounts().list();
        for (name, _) in before.iter().rev().filter(|one| !left.contains(one)) {
            if let Err(exit) = keys::unload_root(session, name).await {
                // A clone elsewhere needs the key: all is as it was, but for keys that were unloaded.
                let mounted = affected.mount_again(&session.appliance, &pool, target);
                mounted.await.map_err(|why| session.fail(why))?;
                return Err(exit);
            }
        }
    }
    write_out(&pool).await;
    Ok(())
}

/// Waits until what was written to a file system that is unmounted now is on disk, as that of any other would be.
// OpenZFS: module/os/linux/zfs/zfs_vfsops.c, zfsvfs_teardown
async fn write_out(pool: &PoolHandle) {
    // A pool that is suspended, or read-only, says so elsewhere.
    drop(pool.sync().await);
}

/// Reads the protocol that may stand behind `-a`: one of them, or both.
fn protocols(session: &Session, operands: &[String]) -> Result<Vec<ShareProtocol>, Exit> {
    match operands {
        [] => Ok(ShareProtocol::ALL.to_vec()),
        [word] if word == "nfs" => Ok(vec![ShareProtocol::Nfs]),
        [word] if word == "smb" => Ok(vec![ShareProtocol::Smb]),
        [word] => Err(session.misuse(format!(
            "share type must be one of: nfs, smb (not '{word}')"
        ))),
        _ => Err(session.misuse("too many arguments")),
    }
}

/// Whether the properties of a file system say that it is shared.
fn is_shared(info: &DatasetInfo) -> bool {
    let names = ["sharenfs", "sharesmb"];
    names
        .iter()
        .any(|name| shown(info, name, true).is_some_and(|(value, _)| value != "off"))
}

/// Loads the keys of all file systems that are to be shared.
async fn load_shared(session: &Session) -> Outcome {
    let mut input = KeyInput::new(session);
    let mut outcome = Ok(());
    for (pool, info) in all(session).await {
        if is_shared(&info) {
            let loaded = keys::load_for(session, &mut input, &pool, &info.name).await;
            outcome = outcome.and(loaded);
        }
    }
    session.appliance.datasets_changed().await;
    outcome
}

pub(super) async fn share(session: &Session, arguments: &[String]) -> Outcome {
    let (mut every, mut load_keys) = (false, false);
    let operands = session.read_options(arguments, |_, option| {
        match option {
            ShareOption::All => every = true,
            ShareOption::LoadKeys => load_keys = true,
        }
        Ok(())
    })?;
    if every {
        let protocols = protocols(session, &operands)?;
        let mut loaded = Ok(());
        if load_keys {
            loaded = load_shared(session).await;
        }
        session.appliance.share_again(None, &protocols).await;
        return loaded;
    }
    let [name] = operands.as_slice() else {
        return Err(session.misuse(if operands.is_empty() {
            "missing filesystem argument"
        } else {
            "too many arguments"
        }));
    };
    let (pool, info) = open(session, name, &query()).await?;
    if !is_shared(&info) {
        session
            .out
            .error(format!("cannot share '{name}': legacy share"));
        return Err(session.fail(
            "use exports(5) or smb.conf(5) to share this filesystem, or set the sharenfs or sharesmb property",
        ));
    }
    if is_redacted(&info) && session.appliance.mounts().mounted(info.guid).is_none() {
        return Err(session.fail(format!("cannot share '{name}': {INCOMPLETE}")));
    }
    if !session.appliance.is_daemon() {
        return Err(session.fail(format!(
            "cannot share '{name}': no daemon is running that would serve it; start 'sanbox serve'"
        )));
    }
    if load_keys {
        let mut input = KeyInput::new(session);
        keys::load_for(session, &mut input, &pool, name).await?;
        session.appliance.datasets_changed().await;
    }
    let again = session
        .appliance
        .share_again(Some(info.guid), &ShareProtocol::ALL);
    again.await;
    Ok(())
}

pub(super) async fn unshare(session: &Session, arguments: &[String]) -> Outcome {
    let mut every = false;
    let operands = session.read_options(arguments, |_, UnshareOption::All| {
        every = true;
        Ok(())
    })?;
    if every {
        let protocols = protocols(session, &operands)?;
        for (_, info) in all(session).await {
            session.appliance.unshare(info.guid, &protocols).await;
        }
        return Ok(());
    }
    let [name] = operands.as_slice() else {
        return Err(session.misuse(if operands.is_empty() {
            "missing filesystem argument"
        } else {
            "too many arguments"
        }));
    };
    let (_, info) = open(session, name, &query()).await?;
    if !is_shared(&info) || !session.appliance.is_daemon() {
        return Err(session.fail(format!("cannot unshare '{name}': not currently shared")));
    }
    let ended = session.appliance.unshare(info.guid, &ShareProtocol::ALL);
    ended.await;
    Ok(())
}
