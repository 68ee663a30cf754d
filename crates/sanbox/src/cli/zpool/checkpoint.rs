//! `zpool checkpoint`.

use super::activity::wait_for;
use super::open_pool;
use crate::cli::command::{Command, Word, options};
use crate::cli::{Outcome, Session};

options! {
    CheckpointOption {
        Discard = both('d', "discard", None, "give the checkpoint up"),
        Wait = both('w', "wait", None, "with -d, wait until its space is free"),
    }
}

/// The declaration of `zpool checkpoint`.
pub(super) const CHECKPOINT: Command = Command {
    name: "checkpoint",
    summary: "keep a state of a whole pool to go back to",
    usage: "\tcheckpoint [-d [-w]] <pool> ...\n",
    flags: CheckpointOption::FLAGS,
    words: &[Word::Pool],
    examples: &[
        (
            "zpool checkpoint tank",
            "keep the state of the whole pool, for an import to go back to",
        ),
        (
            "zpool import --rewind-to-checkpoint tank",
            "go back to it; everything since is gone",
        ),
        (
            "zpool checkpoint -d -w tank",
            "give it up, and wait until its space is free",
        ),
    ],
    ..Command::NEW
};

// OpenZFS: cmd/zpool/zpool_main.c, zpool_do_checkpoint; lib/libzfs/libzfs_pool.c, zpool_checkpoint (words)
pub(super) async fn run(session: &Session, arguments: &[String]) -> Outcome {
    let (mut discard, mut wait) = (false, false);
    let operands = session.read_options(arguments, |_, option| {
        match option {
            CheckpointOption::Discard => discard = true,
            CheckpointOption::Wait => wait = true,
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
        wait_for(session, &pool, super::activity::is_discarding).await?;
    }
    Ok(())
}
