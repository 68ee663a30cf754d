//! `zfs wait`.

use std::time::Duration;

use engine::property::DatasetKind;
use engine::{DatasetInfo, FsError, PoolHandle, PropertyQuery};

use super::{open, shown};
use crate::cli::command::{Command, Word, options};
use crate::cli::{Exit, Outcome, Session};

options! {
    WaitOption {
        Activities(String) = valued('t', "activity", "this one: deleteq, which is the only one there is"),
    }
}

/// The declaration of `zfs wait`.
pub(super) const WAIT: Command = Command {
    name: "wait",
    summary: "wait until an activity has ended",
    usage: "\twait [-t <activity>] <filesystem>\n",
    flags: WaitOption::FLAGS,
    says_missing: false,
    words: &[Word::Dataset],
    text: &[
        "deleteq: files without a name that are not freed yet. They are freed in the background, those that are open when they are closed.",
    ],
    examples: &[(
        "zfs wait tank/home",
        "wait until the space of files that were removed is free",
    )],
    ..Command::NEW
};

/// How often it looks.
const LOOK_EVERY: Duration = Duration::from_millis(200);

// OpenZFS: cmd/zfs/zfs_main.c, zfs_do_wait; module/zfs/dsl_dir.c, dsl_dir_activity_in_progress
pub(super) async fn run(session: &Session, arguments: &[String]) -> Outcome {
    let operands =
        session.read_options(
            arguments,
            |session, WaitOption::Activities(list)| match list
                .split(',')
                .find(|word| *word != "deleteq")
            {
                Some(unknown) => Err(session.misuse(format!("invalid activity '{unknown}'"))),
                None => Ok(()),
            },
        )?;
    let name = match operands.as_slice() {
        [] => return Err(session.misuse("missing 'filesystem' argument")),
        [name] => name,
        _ => return Err(session.misuse("too many arguments")),
    };
    let query = PropertyQuery::Named(vec!["readonly".to_owned()]);
    let (pool, info) = open(session, name, &query).await?;
    if info.kind != DatasetKind::Filesystem {
        return Err(session.fail(format!(
            "cannot open '{name}': operation not applicable to datasets of this type"
        )));
    }
    // Nothing is freed in what cannot be written.
    if pool.readonly() || shown(&info, "readonly", true).is_some_and(|(value, _)| value == "on") {
        return Ok(());
    }
    while is_freeing(session, &pool, &info).await? {
        tokio::time::sleep(LOOK_EVERY).await;
    }
    Ok(())
}

async fn is_freeing(
    session: &Session,
    pool: &PoolHandle,
    info: &DatasetInfo,
) -> Result<bool, Exit> {
    let fs = pool.fs_by_number(info.object, info.guid);
    match fs.unlinked_count().await {
        Ok(count) => Ok(count > 0),
        // It was destroyed, or its pool exported, meanwhile.
        Err(FsError::Stale) => Ok(false),
        Err(error) => Err(session.fail(format!("failed to wait for '{}': {error}", info.name))),
    }
}
