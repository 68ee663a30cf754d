//! `zpool history` and `zpool sync`.

use engine::HistoryEvent;

use super::subjects;
use crate::cli::format::history_date;
use crate::cli::getopt::Opt;
use crate::cli::{Exit, Outcome, Session};

pub(super) async fn history(session: &Session, arguments: &[String]) -> Outcome {
    let (mut long, mut internal) = (false, false);
    let names = session.options(arguments, "li", &[], |_, option| {
        match option {
            Opt::Short('l', _) => long = true,
            _ => internal = true,
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
    let names = session.options(arguments, "", &[], |_, _| Ok(()))?;
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
