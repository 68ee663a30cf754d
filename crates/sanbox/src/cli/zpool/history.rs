//! `zpool history` and `zpool sync`.

use engine::HistoryEvent;

use super::subjects;
use crate::cli::command::{Command, Word, options};
use crate::cli::format::history_date;
use crate::cli::{Exit, Outcome, Session};

options! {
    HistoryOption {
        Long = short('l', "with user and host"),
        Internal = short('i', "with internal events"),
    }
}

/// The declaration of `zpool history`.
pub(super) const HISTORY: Command = Command {
    name: "history",
    summary: "show the commands that changed pools",
    usage: "\thistory [-il] [<pool>] ...\n",
    flags: HistoryOption::FLAGS,
    says_missing: false,
    words: &[Word::Pool],
    examples: &[("zpool history -il tank", "every change, with who made it")],
    ..Command::NEW
};

options! {
    SyncOption {
        Force = short('f', "also when nothing has changed"),
    }
}

/// The declaration of `zpool sync`.
pub(super) const SYNC: Command = Command {
    name: "sync",
    summary: "write out everything now",
    usage: "\tsync [pool] ...\n",
    flags: SyncOption::FLAGS,
    says_missing: false,
    words: &[Word::Pool],
    ..Command::NEW
};

pub(super) async fn history(session: &Session, arguments: &[String]) -> Outcome {
    let (mut long, mut internal) = (false, false);
    let names = session.read_options(arguments, |_, option| {
        match option {
            HistoryOption::Long => long = true,
            HistoryOption::Internal => internal = true,
        }
        Ok(())
    })?;
    let (pools, mut failed) = subjects(session, &names).await;
    if names.is_empty() && pools.is_empty() {
        session.out.error("no pools available");
    }
    for pool in &pools {
        let Some(pool) = pool.open(session) else {
            failed = true;
            continue;
        };
        session.out.line(format!("History for '{}':", pool.name()));
        let records = match pool.history().await {
            Ok(records) => records,
            Err(error) => {
                session.out.error(format!(
                    "cannot show history for '{}': {error}",
                    pool.name()
                ));
                failed = true;
                continue;
            }
        };
        for record in records {
            let time = history_date(record.time);
            let mut line = match &record.event {
                HistoryEvent::Command(command) => format!("{time} {command}"),
                _ if !internal => continue,
                HistoryEvent::Internal {
                    name,
                    dataset,
                    text,
                } => {
                    let txg = record.txg.unwrap_or(0);
                    let mut line = format!("{time} [txg:{txg}] {name}");
                    if let Some((dataset, object)) = dataset {
                        line.push_str(&format!(" {dataset} ({object})"));
                    }
                    format!("{line} {text}")
                }
                HistoryEvent::Other(text) => format!("{time} {text}"),
            };
            if long {
                line.push_str(" [");
                if let Some(user) = record.user {
                    line.push_str(&format!("user {user} "));
                    if let Some(name) = crate::cli::user_name(user) {
                        line.push_str(&format!("({name}) "));
                    }
                }
                line.push_str(&format!("on {}", record.hostname));
                if let Some(zone) = &record.zone {
                    line.push_str(&format!(":{zone}"));
                }
                line.push(']');
            }
            session.out.line(line);
        }
        session.out.line("");
        session.out.flush().await?;
    }
    if failed { Err(Exit(1)) } else { Ok(()) }
}

pub(super) async fn sync(session: &Session, arguments: &[String]) -> Outcome {
    // What is open is written out whether it has changed or not, so that -f asks for nothing more.
    let names = session.read_options(arguments, |_, SyncOption::Force| Ok(()))?;
    let (pools, mut failed) = subjects(session, &names).await;
    for pool in &pools {
        let Some(pool) = pool.open(session) else {
            failed = true;
            continue;
        };
        if let Err(error) = pool.sync().await {
            session
                .out
                .error(format!("sync '{}' failed: {error}", pool.name()));
            failed = true;
        }
    }
    if failed { Err(Exit(1)) } else { Ok(()) }
}
