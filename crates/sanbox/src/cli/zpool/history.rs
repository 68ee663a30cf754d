//! `zpool history` and `zpool sync`.

use engine::{HistoryEvent, HistoryRecord};

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
        Force = short('f', "labels, too, though nothing has changed"),
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
        for record in &records {
            if internal || matches!(record.event, HistoryEvent::Command(_)) {
                session.out.line(record_text(record, long));
            }
        }
        session.out.line("");
        session.out.flush().await?;
    }
    if failed { Err(Exit(1)) } else { Ok(()) }
}

/// A record as a line, or as lines when it holds a list; with user and host if `long`.
// OpenZFS: cmd/zpool/zpool_main.c, print_history_records
fn record_text(record: &HistoryRecord, long: bool) -> String {
    let mut time = history_date(record.time);
    if let Some(elapsed) = record.elapsed_ms {
        time.push_str(&format!(" ({elapsed}ms)"));
    }
    let txg = record.txg.unwrap_or(0);
    let mut text = match &record.event {
        HistoryEvent::Command(command) => format!("{time} {command}"),
        HistoryEvent::Internal {
            name,
            dataset,
            text,
        } => {
            let dataset = match dataset {
                Some((dataset, object)) => format!(" {dataset} ({object})"),
                None => String::new(),
            };
            format!("{time} [txg:{txg}] {name}{dataset} {text}")
        }
        HistoryEvent::OldInternal { event, text } => {
            format!("{time} [internal event {event} txg:{txg}] {text}")
        }
        HistoryEvent::Request { name, details } => format!("{time} ioctl {name}\n{details}"),
        HistoryEvent::Unknown(list) => format!("{time} unrecognized record:\n{list}"),
    };
    if long {
        text.push_str(" [");
        if let Some(user) = record.user {
            text.push_str(&format!("user {user} "));
            if let Some(name) = crate::cli::user_name(user) {
                text.push_str(&format!("({name}) "));
            }
        }
        text.push_str(&format!("on {}", record.hostname));
        if let Some(zone) = &record.zone {
            text.push_str(&format!(":{zone}"));
        }
        text.push(']');
    }
    text
}

pub(super) async fn sync(session: &Session, arguments: &[String]) -> Outcome {
    let mut force = false;
    let names = session.read_options(arguments, |_, SyncOption::Force| {
        force = true;
        Ok(())
    })?;
    let (pools, mut failed) = subjects(session, &names).await;
    for pool in &pools {
        let Some(pool) = pool.open(session) else {
            failed = true;
            continue;
        };
        let synced = match force {
            true => pool.sync_labels().await,
            false => pool.sync().await,
        };
        if let Err(error) = synced {
            session
                .out
                .error(format!("sync '{}' failed: {error}", pool.name()));
            failed = true;
        }
    }
    if failed { Err(Exit(1)) } else { Ok(()) }
}
