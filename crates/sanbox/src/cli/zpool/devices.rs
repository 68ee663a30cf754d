//! `zpool offline`, `online`, `attach`, `detach`, `replace` and `reopen`: changes to a pool in use.

use std::time::Duration;

use engine::{EngineError, PoolError, PoolHandle, VdevStatus};

use super::activity::{finish_here, is_expanding, is_joining, vdev_guid, wait_for};
use super::draid::is_spare_name;
use super::layout::{device, in_use, not_in_other_pools};
use super::{bad_name, open_pool, subjects};
use crate::cli::command::{Command, Word, options};
use crate::cli::{Exit, Outcome, Session, setting};

options! {
    OnlineOption {
        Expand = short('e', "use all of a device that has become larger"),
        Power = long("power", None, "refused: sanbox cannot switch the power of disk slots"),
    }
}

/// The declaration of `zpool online`.
pub(super) const ONLINE: Command = Command {
    name: "online",
    summary: "take devices back into service",
    usage: "\tonline [--power][-e] <pool> <device> ...\n",
    flags: OnlineOption::FLAGS,
    says_missing: false,
    words: &[Word::Pool, Word::Device],
    examples: &[(
        "zpool online tank sdb",
        "put it back and give it what it missed; with -e use all of it, if it has become larger",
    )],
    ..Command::NEW
};

options! {
    OfflineOption {
        Fault = short('f', "mark the device as faulted instead, until zpool clear"),
        Temporary = short('t', "until the next import"),
        Power = long("power", None, "refused: sanbox cannot switch the power of disk slots"),
    }
}

/// The declaration of `zpool offline`.
pub(super) const OFFLINE: Command = Command {
    name: "offline",
    summary: "take devices out of service",
    usage: "\toffline [--power]|[[-f][-t]] <pool> <device> ...\n",
    flags: OfflineOption::FLAGS,
    says_missing: false,
    words: &[Word::Pool, Word::Device],
    examples: &[(
        "zpool offline tank sdb",
        "take a disk out of service; with -t until the next import",
    )],
    ..Command::NEW
};

options! {
    ReopenOption {
        NoRestart = short('n', "let a resilver that runs go on where it is, and resilver what came back after it"),
    }
}

/// The declaration of `zpool reopen`.
pub(super) const REOPEN: Command = Command {
    name: "reopen",
    summary: "open the devices of pools again",
    usage: "\treopen [-n] <pool>\n",
    flags: ReopenOption::FLAGS,
    says_missing: false,
    words: &[Word::Pool],
    ..Command::NEW
};

options! {
    AttachOption {
        Force = short('f', "also a device that seems to be in use"),
        Property(String) = valued('o', "property=value", "ashift=N: sector size, as a power of two"),
        Sequential = short('s', "rebuild in the order of the disk, then scrub"),
        Wait = short('w', "wait until the new device has everything"),
    }
}

/// The declaration of `zpool attach`.
pub(super) const ATTACH: Command = Command {
    name: "attach",
    summary: "add a device to a mirror, or make one",
    usage: "\tattach [-fsw] [-o property=value] <pool> <device> <new-device>\n",
    flags: AttachOption::FLAGS,
    says_missing: false,
    words: &[Word::Pool, Word::Device],
    examples: &[(
        "zpool attach tank sda sdi",
        "one more copy of what sda holds: a single disk becomes a mirror",
    )],
    ..Command::NEW
};

/// The declaration of `zpool detach`.
pub(super) const DETACH: Command = Command {
    name: "detach",
    summary: "take a device out of a mirror",
    usage: "\tdetach <pool> <device>\n",
    says_missing: false,
    words: &[Word::Pool, Word::Device],
    ..Command::NEW
};

/// The declaration of `zpool replace`.
pub(super) const REPLACE: Command = Command {
    name: "replace",
    summary: "put a device in the place of another",
    usage: "\treplace [-fsw] [-o property=value] <pool> <device> [new-device]\n",
    flags: AttachOption::FLAGS,
    says_missing: false,
    words: &[Word::Pool, Word::Device],
    examples: &[
        (
            "zpool replace tank sdb sdh",
            "a new disk in place of an old or missing one",
        ),
        (
            "zpool replace -w tank sdb sdh",
            "and wait until it has everything",
        ),
        (
            "zpool replace tank sdb spare1",
            "a hot spare of the pool stands in for sdb; zpool detach ends it",
        ),
    ],
    ..Command::NEW
};

// OpenZFS: cmd/zpool/zpool_main.c, zpool_do_offline; lib/libzfs/libzfs_pool.c, zpool_vdev_offline (words)
pub(super) async fn offline(session: &Session, arguments: &[String]) -> Outcome {
    let (mut temporary, mut fault) = (false, false);
    let operands = session.read_options(arguments, |session, option| {
        match option {
            OfflineOption::Temporary => temporary = true,
            OfflineOption::Fault => fault = true,
            OfflineOption::Power => {
                return Err(session.fail("zpool offline --power: disk slots cannot be powered"));
            }
        }
        Ok(())
    })?;
    let (pool, devices) = pool_and_devices(session, &operands).await?;
    let (mut failed, mut changed) = (false, false);
    for word in devices {
        let outcome = match leaf(session, &pool, word, "offline").await {
            Ok(guid) if fault => pool.fault(guid, temporary).await,
            Ok(guid) => pool.offline(guid, temporary).await,
            Err(_) => {
                failed = true;
                continue;
            }
        };
        match outcome {
            Ok(()) => changed = true,
            Err(error) => {
                let what = if fault { "fault" } else { "offline" };
                session.out.error(format!("cannot {what} {word}: {error}"));
                failed = true;
            }
        }
    }
    if changed {
        session.record(&pool).await;
    }
    if failed { Err(Exit(1)) } else { Ok(()) }
}

// OpenZFS: cmd/zpool/zpool_main.c, zpool_do_online
pub(super) async fn online(session: &Session, arguments: &[String]) -> Outcome {
    let mut expand = false;
    let operands = session.read_options(arguments, |session, option| match option {
        OnlineOption::Expand => {
            expand = true;
            Ok(())
        }
        OnlineOption::Power => {
            Err(session.fail("zpool online --power: disk slots cannot be powered"))
        }
    })?;
    let (pool, devices) = pool_and_devices(session, &operands).await?;
    let (mut failed, mut changed) = (false, false);
    for word in devices {
        let Ok(guid) = leaf(session, &pool, word, "online").await else {
            failed = true;
            continue;
        };
        match pool.online(guid).await {
            Ok(true) => changed = true,
            Ok(false) => {
                changed = true;
                session.out.line(format!(
                    "warning: device '{word}' onlined, but remains in faulted state"
                ));
                session
                    .out
                    .line("use 'zpool replace' to replace devices that are no longer present");
                failed = true;
            }
            Err(error) => {
                session.out.error(format!("cannot online {word}: {error}"));
                failed = true;
            }
        }
    }
    if expand && let Err(error) = pool.expand().await {
        session
            .out
            .error(format!("cannot expand {}: {error}", devices.join(" ")));
        failed = true;
    }
    if changed {
        session.record(&pool).await;
    }
    finish_here(session, &pool).await?;
    if failed { Err(Exit(1)) } else { Ok(()) }
}

/// A replaced device leaves in one of the txgs after the resilver, and without a daemon only this process can wait for that. One that
/// stays, because not all of it could be read, is not waited for.
const DETACH_TIMEOUT: Duration = Duration::from_secs(10);

pub(super) async fn attach(session: &Session, arguments: &[String]) -> Outcome {
    join(session, arguments, false).await
}

pub(super) async fn replace(session: &Session, arguments: &[String]) -> Outcome {
    join(session, arguments, true).await
}

// OpenZFS: cmd/zpool/zpool_main.c, zpool_do_attach_or_replace; lib/libzfs, zpool_vdev_attach (words)
async fn join(session: &Session, arguments: &[String], replace: bool) -> Outcome {
    let (mut force, mut wait, mut sequential) = (false, false, false);
    let mut ashift: Option<u64> = None;
    let operands = session.read_options(arguments, |session, option| {
        match option {
            AttachOption::Force => force = true,
            AttachOption::Wait => wait = true,
            AttachOption::Sequential => sequential = true,
            AttachOption::Property(text) => match setting(&text) {
                None => return Err(session.misuse("missing '=' for -o option")),
                Some((name, value)) if name == "ashift" => {
                    ashift = super::add::ashift(session, &value)?.map(u64::from);
                }
                Some((name, _)) => {
                    return Err(session.fail(format!("property '{name}' cannot be set here")));
                }
            },
        }
        Ok(())
    })?;
    let Some((name, devices)) = operands.split_first() else {
        return Err(session.misuse("missing pool name argument"));
    };
    let (old, new) = match devices {
        [] => return Err(session.misuse("missing <device> specification")),
        [old] if replace => (old, old),
        [_] => return Err(session.misuse("missing <new_device> specification")),
        [old, new] => (old, new),
        _ => return Err(session.misuse("too many arguments")),
    };
    let pool = open_pool(session, name).await?;
    let subject = if replace {
        format!("cannot replace {old} with {new}")
    } else {
        format!("cannot attach {new} to {old}")
    };
    let Some(guid) = vdev_guid(&pool, old).await? else {
        return Err(session.fail(format!("{subject}: no such device in pool")));
    };
    let raidz = match replace {
        true => None,
        false => raidz_of(&pool, guid).await,
    };
    let why = match &raidz {
        Some((_, top)) if *top != guid => "can only attach to mirrors and top-level disks",
        Some(_) if sequential => "only mirror and dRAID vdevs support sequential reconstruction",
        _ => "",
    };
    if !why.is_empty() {
        return Err(session.fail(format!("{subject}: {why}")));
    }
    let path = if is_spare_name(new) && new != old {
        if !replace {
            return Err(session.fail(format!(
                "cannot open '{new}': dRAID spares can only be used to replace primary vdevs"
            )));
        }
        std::path::PathBuf::from(new)
    } else if old == new {
        match path_of(&pool, guid).await {
            Some(path) => path,
            None => device(session, new)?,
        }
    } else {
        device(session, new)?
    };
    not_in_other_pools(session, &pool, &path, force).await?;
    // The sector size of a vdev never changes: a device may only have a smaller one.
    // OpenZFS: module/zfs/spa.c, spa_vdev_attach; lib/libzfs/libzfs_pool.c, zpool_vdev_attach (words)
    if let (Some(wanted), Some(own)) = (ashift, ashift_of(&pool, guid).await)
        && wanted > own
    {
        return Err(session.fail(format!(
            "{subject}: new device has a different optimal sector size; use the option '-o ashift=N' to override the \
             optimal size"
        )));
    }
    let joined = match sequential {
        true => pool.attach_and_rebuild(guid, &path, replace, force).await,
        false => pool.attach(guid, &path, replace, force).await,
    };
    if let Err(error) = joined {
        return Err(refuse(session, &subject, error));
    }
    session.record(&pool).await;
    session.appliance.devices_changed(&pool).await;
    if wait {
        let expands = raidz.is_some();
        return wait_for(session, &pool, |status| match expands {
            true => is_expanding(status),
            false => is_joining(status, replace),
        })
        .await;
    }
    finish_here(session, &pool).await?;
    if replace && !session.appliance.is_daemon() {
        let gone = wait_for(session, &pool, |status| is_joining(status, true));
        return tokio::time::timeout(DETACH_TIMEOUT, gone)
            .await
            .unwrap_or(Ok(()));
    }
    Ok(())
}

/// The log2 of the sector size of the top-level vdev that a vdev belongs to.
async fn ashift_of(pool: &PoolHandle, guid: u64) -> Option<u64> {
    fn holds(vdev: &VdevStatus, guid: u64) -> bool {
        vdev.guid == guid || vdev.children.iter().any(|child| holds(child, guid))
    }
    let status = pool.status().await.ok()?;
    let mut tops = status.root.children.iter();
    tops.find(|top| holds(top, guid)).map(|top| top.ashift)
}

/// Says why a device could not join.
fn refuse(session: &Session, subject: &str, error: EngineError) -> Exit {
    match error {
        EngineError::Pool(error @ PoolError::DeviceInUse { .. }) => in_use(session, &error),
        EngineError::Pool(PoolError::DeviceTooSmall { .. }) => {
            session.fail(format!("{subject}: device is too small"))
        }
        other => session.fail(format!("{subject}: {other}")),
    }
}

// OpenZFS: cmd/zpool/zpool_main.c, zpool_do_detach; lib/libzfs, zpool_vdev_detach
pub(super) async fn detach(session: &Session, arguments: &[String]) -> Outcome {
    let operands = session.operands(arguments)?;
    let (pool, devices) = pool_and_devices(session, &operands).await?;
    let [word] = devices else {
        return Err(session.misuse("too many arguments"));
    };
    let guid = leaf(session, &pool, word, "detach").await?;
    match pool.detach(guid).await {
        Ok(()) => {
            session.record(&pool).await;
            session.appliance.devices_changed(&pool).await;
            finish_here(session, &pool).await
        }
        Err(error) => Err(session.fail(format!("cannot detach {word}: {error}"))),
    }
}

// OpenZFS: cmd/zpool/zpool_main.c, zpool_do_reopen
pub(super) async fn reopen(session: &Session, arguments: &[String]) -> Outcome {
    let mut restart = true;
    let names = session.read_options(arguments, |_, ReopenOption::NoRestart| {
        restart = false;
        Ok(())
    })?;
    let (pools, mut failed) = subjects(session, &names).await;
    for subject in &pools {
        let Some(pool) = subject.open(session) else {
            failed = true;
            continue;
        };
        match pool.reopen(restart).await {
            Ok(_) => {
                session.record(pool).await;
                finish_here(session, pool).await?;
            }
            Err(error) => {
                session
                    .out
                    .error(format!("cannot reopen '{}': {error}", pool.name()));
                failed = true;
            }
        }
    }
    if failed { Err(Exit(1)) } else { Ok(()) }
}

async fn pool_and_devices<'a>(
    session: &Session,
    operands: &'a [String],
) -> Result<(PoolHandle, &'a [String]), Exit> {
    let Some((name, devices)) = operands.split_first() else {
        return Err(session.misuse("missing pool name"));
    };
    if devices.is_empty() {
        return Err(session.misuse("missing device name"));
    }
    if let Some(why) = bad_name(name) {
        return Err(session.fail(format!("cannot open '{name}': {why}")));
    }
    Ok((open_pool(session, name).await?, devices))
}

/// Finds a leaf of the pool; says so when there is none.
async fn leaf(session: &Session, pool: &PoolHandle, word: &str, verb: &str) -> Result<u64, Exit> {
    match vdev_guid(pool, word).await? {
        Some(guid) => Ok(guid),
        None => Err(session.fail(format!("cannot {verb} {word}: no such device in pool"))),
    }
}

/// The name of the raidz that a vdev is, or is part of, whatever its health.
async fn raidz_of(pool: &PoolHandle, guid: u64) -> Option<(String, u64)> {
    fn holds(vdev: &VdevStatus, guid: u64) -> bool {
        vdev.guid == guid || vdev.children.iter().any(|child| holds(child, guid))
    }
    let status = pool.status().await.ok()?;
    let mut tops = status.root.children.into_iter();
    let raidz = tops.find(|top| top.name.starts_with("raidz") && holds(top, guid))?;
    Some((raidz.name, raidz.guid))
}

async fn path_of(pool: &PoolHandle, guid: u64) -> Option<std::path::PathBuf> {
    fn find(vdev: &VdevStatus, guid: u64) -> Option<std::path::PathBuf> {
        if vdev.guid == guid {
            return vdev.path.clone();
        }
        vdev.children.iter().find_map(|child| find(child, guid))
    }
    find(&pool.status().await.ok()?.root, guid)
}
