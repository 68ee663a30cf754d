//! `zpool checkpoint`.

use super::open_pool;
use super::scan::wait_for;
use crate::cli::getopt::{Long, Opt};
use crate::cli::{Outcome, Session};

// OpenZFS: cmd/zpool/zpool_main.c, zpool_do_checkpoint; lib/libzfs/libzfs_pool.c, zpool_checkpoint (words)
pub(super) async fn run(session: &Session, arguments: &[String]) -> Outcome {
    const LONGS: &[Long] = &[
        Long {
            name: "discard",
            value: false,
        },
        Long {
            name: "wait",
            value: false,
        },
    ];
    let (mut discard, mut wait) = (false, false);
    let operands = session.options(arguments, ":dw", LONGS, |_, option| {
        match option {
            Opt::Short('d', _) | Opt::Long("discard", _) => discard = true,
            Opt::Short('w', _) | Opt::Long("wait", _) => wait = true,
            _ => {}
        }
        Ok(())
    })?;
    if wait && !discard {
        return Err(session.misuse("--wait only valid when --discard also specified"));
    }
    let [name] = operands.as_slice() else {
        return Err(session.misuse(if operands.is_empty() {
            "missing pool argument"
        } else {
            "too many arguments"
        }));
    };
    let pool = match open_pool(session, name).await {
        Ok(pool) => pool,
        Err(exit) => {
            if name.contains('/') {
                session.out.error(
                    "'zpool checkpoint' doesn't work on datasets. To save the state of a dataset from a specific point \
                     in time please use 'zfs snapshot'",
                );
            }
            return Err(exit);
        }
    };
    let (outcome, what) = if discard {
        (pool.discard_checkpoint().await, "discard checkpoint in")
    } else {
        (pool.checkpoint().await, "checkpoint")
    };
    if let Err(error) = outcome {
        return Err(session.fail(format!("cannot {what} '{name}': {error}")));
    }
    session.record(&pool).await;
    if wait {
        wait_for(session, &pool, super::scan::is_discarding).await?;
    }
    Ok(())
}
