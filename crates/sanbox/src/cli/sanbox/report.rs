//! `sanbox report`: how the week was, in words and as a picture.

use std::time::Duration;

use manage::config::Config;
use manage::report::{self, Every};

use super::Arguments;
use crate::cli::{Exit, Outcome, Session};
use crate::paths;
use crate::serve::{management, notify, reports};

/// How long the disk that the report is written to may take.
const DISK_ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

pub(super) async fn run(session: &Session, args: &Arguments) -> Outcome {
    let words: Vec<&str> = args.operands.iter().map(String::as_str).collect();
    match words[..] {
        [] => show(session, args).await,
        ["schedule"] => {
            let every = session.appliance.alert_settings().borrow().report.every;
            session.out.line(every.as_str());
            Ok(())
        }
        ["schedule", every] => schedule(session, every),
        _ => Err(session.misuse("nothing, or schedule [off|daily|weekly|monthly]")),
    }
}

/// The length that is asked for; a week where none is.
fn length(session: &Session, args: &Arguments) -> Result<Every, Exit> {
    let all = [Every::Daily, Every::Weekly, Every::Monthly];
    let mut given = all
        .into_iter()
        .filter(|every| args.has_long(every.as_str()));
    match (given.next(), given.next()) {
        (every, None) => Ok(every.unwrap_or(Every::Weekly)),
        _ => Err(session.misuse("one of --daily, --weekly and --monthly")),
    }
}

async fn show(session: &Session, args: &Arguments) -> Outcome {
    let every = length(session, args)?;
    let api = management::open(&session.appliance).await;
    let api = api.map_err(|error| session.fail(format!("{error:#}")))?;
    let host = session.appliance.host_name().unwrap_or_default();
    let made = reports::report(&api, &host, every);
    if args.has_long("mail") {
        let settings = session.appliance.alert_settings().borrow().clone();
        let sent = notify::send_report(&settings, &made).await;
        let failed =
            |error: anyhow::Error| session.fail(format!("cannot send the report: {error:#}"));
        let (to, error) = sent.map_err(failed)?;
        if !to.is_empty() {
            session.out.line(format!("sent to {}", to.join(", ")));
        }
        error.map_or(Ok(()), |error| Err(failed(error)))?;
    }
    match args.long("to") {
        Some(path) => {
            let content = match path.rsplit_once('.') {
                Some((_, "svg")) => report::picture(&made),
                Some((_, "html")) => report::page(&made),
                _ => report::text(&made),
            };
            let file = session.path(path);
            let to = file.clone();
            let written = paths::call_within(DISK_ANSWER_TIMEOUT, &file, move || {
                std::fs::write(to, content)
            });
            let written = written.await.map_err(|error| session.fail(error))?;
            written.map_err(|error| session.fail(format!("{path}: {error}")))?;
        }
        None if args.has_long("mail") => {}
        None => session.out.text(report::text(&made)),
    }
    Ok(())
}

fn schedule(session: &Session, every: &str) -> Outcome {
    let wanted = Every::from_name(every).ok_or_else(|| {
        session.misuse(format!(
            "'{every}' is none of off, daily, weekly and monthly"
        ))
    })?;
    let changed = super::alert_channel::change(session, |text| {
        let mails = Config::parse(text)?.alerts.mail;
        match wanted != Every::Off && mails.is_empty() {
            true => Err("no mail is set up: 'sanbox alert channel add mail' does".to_owned()),
            false => report::set_every(text, wanted),
        }
    });
    changed.map_err(|why| session.fail(format!("cannot set the schedule: {why}")))
}
