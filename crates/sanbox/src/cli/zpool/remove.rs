//! `zpool remove`.

use engine::{AllocationBias, EngineError, VdevStatus};

use super::scan::{finish_here, vdev_guid};
use super::{bad_name, open_pool};
use crate::cli::format::nice_number;
use crate::cli::getopt::Opt;
use crate::cli::{Exit, Outcome, Session};

// OpenZFS: cmd/zpool/zpool_main.c, zpool_do_remove; lib/libzfs/libzfs_pool.c, zpool_vdev_remove (words)
pub(super) async fn run(session: &Session, arguments: &[String]) -> Outcome {
    let (mut estimate, mut exact, mut stop) = (false, false, false);
    let operands = session.options(arguments, "npsw", &[], |_, option| {
        match option {
            Opt::Short('n', _) => estimate = true,
            Opt::Short('p', _) => exact = true,
            Opt::Short('s', _) => stop = true,
            // What can be removed is gone when the command ends.
            _ => {}
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
        return Err(session.fail("cannot cancel removal: there is no active removal"));
    }
    if devices.is_empty() {
        return Err(session.misuse("missing device"));
    }
    let mut failed = false;
    for word in devices {
        let Some(guid) = vdev_guid(&pool, word).await? else {
            session
                .out
                .error(format!("cannot remove {word}: no such device in pool"));
            failed = true;
            continue;
        };
        if estimate {
            let status = pool.status().await.map_err(|_| Exit(1))?;
            let data = |top: &&VdevStatus| top.guid == guid && top.bias != AllocationBias::Log;
            if status.root.children.iter().any(|top| data(&top)) {
                session.out.error(format!(
                    "cannot remove {word}: only spares, cache devices and log vdevs can be removed by this version of sanbox"
                ));
                failed = true;
                continue;
            }
            // Spares, cache devices and logs leave nothing behind that would have to be remembered.
            session.out.line(if exact {
                format!("{word} 0")
            } else {
                format!(
                    "Memory that will be used after removing {word}: {}",
                    nice_number(0)
                )
            });
            continue;
        }
        if let Err(error) = pool.remove(guid).await {
            let closed = matches!(error, EngineError::PoolClosed);
            session.out.error(format!("cannot remove {word}: {error}"));
            failed = true;
            if closed {
                break;
            }
        }
    }
    session.appliance.devices_changed(&pool).await;
    finish_here(session, &pool).await?;
    if failed { Err(Exit(1)) } else { Ok(()) }
}
