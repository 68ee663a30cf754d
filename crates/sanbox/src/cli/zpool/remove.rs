//! `zpool remove`.

use engine::EngineError;

use super::activity::{finish_here, is_removing, vdev_guid, wait_for};
use super::{bad_name, open_pool};
use crate::cli::command::{Command, Word, options};
use crate::cli::format::nice_number;
use crate::cli::{Exit, Outcome, Session};

options! {
    RemoveOption {
        Estimate = short('n', "say how much memory the removal would take, and remove nothing"),
        Exact = short('p', "with -n, exact bytes"),
        Stop = short('s', "stop a removal under way"),
        Wait = short('w', "wait until the device is free"),
    }
}

/// The declaration of `zpool remove`.
pub(super) const REMOVE: Command = Command {
    name: "remove",
    summary: "take devices out of a pool",
    usage: "\tremove [-npsw] <pool> <device> ...\n",
    flags: RemoveOption::FLAGS,
    says_missing: false,
    words: &[Word::Pool, Word::Device],
    examples: &[
        (
            "zpool remove tank nvme0n1",
            "take a log vdev, a cache device or a spare that is not in use out of the pool",
        ),
        (
            "zpool remove -n tank mirror-1",
            "say how much memory it would take for good to remember where the blocks of a vdev went",
        ),
        (
            "zpool remove -w tank mirror-1",
            "copy all that a vdev holds to the others, and wait until its disks are free",
        ),
        (
            "zpool remove -s tank",
            "leave the vdev in the pool that is being evacuated",
        ),
        (
            "zpool remove tank mirror-3",
            "a log of two disks, by its name in zpool status",
        ),
    ],
    ..Command::NEW
};

/// Prefix of the reasons for which a removal cannot be estimated.
const UNKNOWN: &str = "cannot determine indirect size of";

// OpenZFS: cmd/zpool/zpool_main.c, zpool_do_remove; lib/libzfs/libzfs_pool.c, zpool_vdev_remove (words)
pub(super) async fn run(session: &Session, arguments: &[String]) -> Outcome {
    let (mut estimate, mut exact, mut stop, mut wait) = (false, false, false, false);
    let operands = session.read_options(arguments, |_, option| {
        match option {
            RemoveOption::Estimate => estimate = true,
            RemoveOption::Exact => exact = true,
            RemoveOption::Stop => stop = true,
            RemoveOption::Wait => wait = true,
        }
        Ok(())
    })?;
    let Some((name, devices)) = operands.split_first() else {
        return Err(session.misuse("missing pool name argument"));
    };
    if let Some(why) = bad_name(name) {
        return Err(session.fail(format!("cannot open '{name}': {why}")));
    }
    let pool = open_pool(session, name).await?;
    if stop && estimate {
        session.out.error("stop request ignored");
        return Ok(());
    }
    if stop {
        if !devices.is_empty() {
            return Err(session.misuse("too many arguments"));
        }
        let canceled = pool.cancel_removal().await;
        if wait {
            return Err(session.misuse("invalid option combination: -w cannot be used with -s"));
        }
        canceled.map_err(|error| session.fail(format!("cannot cancel removal: {error}")))?;
        session.record(&pool).await;
        return Ok(());
    }
    if devices.is_empty() {
        return Err(session.misuse("missing device"));
    }
    let (mut failed, mut changed) = (false, false);
    for word in devices {
        let Some(guid) = vdev_guid(&pool, word).await? else {
            let what = if estimate { UNKNOWN } else { "cannot remove" };
            session
                .out
                .error(format!("{what} {word}: no such device in pool"));
            failed = true;
            if estimate {
                break;
            }
            continue;
        };
        if estimate {
            let Ok(Some(bytes)) = pool.removal_memory(guid).await else {
                session
                    .out
                    .error(format!("{UNKNOWN} {word}: indirect size not available"));
                failed = true;
                break;
            };
            session.out.line(if exact {
                format!("{word} {bytes}")
            } else {
                format!(
                    "Memory that will be used after removing {word}: {}",
                    nice_number(bytes)
                )
            });
            continue;
        }
        match pool.remove(guid).await {
            Ok(()) => changed = true,
            Err(error) => {
                session.out.error(format!("cannot remove {word}: {error}"));
                failed = true;
                if matches!(error, EngineError::PoolClosed) {
                    break;
                }
            }
        }
    }
    if changed {
        session.record(&pool).await;
    }
    session.appliance.devices_changed(&pool).await;
    if wait && !failed || !session.appliance.is_daemon() {
        // Without a daemon the removal stops with this process.
        wait_for(session, &pool, is_removing).await?;
        session.appliance.devices_changed(&pool).await;
    }
    finish_here(session, &pool).await?;
    if failed { Err(Exit(1)) } else { Ok(()) }
}
