//! `sanbox alert`: what is wrong, what it means, what to do; who is told.

use std::time::Duration;

use manage::alerts::{Alert, AlertState};
use manage::api::Api;
use manage::database::seconds_since_epoch;

use super::Arguments;
use crate::cli::format::{Column, date, table};
use crate::cli::{Outcome, Session, user_name};
use crate::serve::management;

/// How long a test of the channels is waited for.
const TEST_TIMEOUT: Duration = Duration::from_secs(35);

pub(super) async fn run(session: &Session, args: &Arguments) -> Outcome {
    let words: Vec<&str> = args.operands.iter().map(String::as_str).collect();
    if let ["channel", rest @ ..] = &words[..] {
        return super::alert_channel::run(session, args, rest).await;
    }
    let api = management::open(&session.appliance).await;
    let api = api.map_err(|error| session.fail(format!("{error:#}")))?;
    let number = |id: &str| {
        id.parse::<u64>()
            .map_err(|_| session.misuse(format!("'{id}' is no alert's number")))
    };
    let uid = u64::from(session.caller.uid);
    let user = user_name(uid).unwrap_or_else(|| uid.to_string());
    let none = |id: u64| session.fail(format!("there is no alert {id}, or it is over"));
    match words[..] {
        ["list"] => {
            list(session, args, &api);
            Ok(())
        }
        ["mute", id] => {
            let id = number(id)?;
            let until = match args.long("for") {
                None => None,
                Some(text) => {
                    let seconds = super::user::duration(text);
                    let seconds = seconds.ok_or_else(|| {
                        session.misuse(format!("--for {text}: a time such as 8h or 2d"))
                    })?;
                    Some(seconds_since_epoch().saturating_add(seconds))
                }
            };
            api.alerts.mute(id, &user, until).ok_or_else(|| none(id))?;
            flush(&api).await;
            Ok(())
        }
        ["acknowledge", id] => {
            let id = number(id)?;
            api.alerts.acknowledge(id, &user).ok_or_else(|| none(id))?;
            flush(&api).await;
            Ok(())
        }
        ["reopen", id] => {
            let id = number(id)?;
            api.alerts.reopen(id).ok_or_else(|| none(id))?;
            flush(&api).await;
            Ok(())
        }
        ["test"] => test(session, &api, None).await,
        ["test", channel] => test(session, &api, Some(channel)).await,
        ["checks"] => {
            checks(session, args, &api);
            Ok(())
        }
        _ => Err(session.misuse(
            "list, mute ID, acknowledge ID, reopen ID, test [CHANNEL], checks or channel ...",
        )),
    }
}

/// A process that ends now would leave the change unwritten.
async fn flush(api: &Api) {
    let _ = api.accounts.database().call(|_| Ok(())).await;
}

fn list(session: &Session, args: &Arguments, api: &Api) {
    let alerts = api.alerts.list(args.has('a'));
    if args.has('H') {
        let columns = ["ID", "SEVERITY", "STATE", "OPENED", "SUBJECT", "FACT"].map(Column::left);
        let row = |alert: Alert| {
            vec![
                alert.id.to_string(),
                alert.severity.as_str().to_owned(),
                alert.state.as_str().to_owned(),
                alert.opened.to_string(),
                alert.subject,
                alert.fact,
            ]
        };
        let rows: Vec<_> = alerts.into_iter().map(row).collect();
        session.out.text(table(&columns, &rows, true));
        return;
    }
    if alerts.is_empty() {
        session.out.line("No alerts.");
    }
    if !session.appliance.is_daemon() {
        session.out.error(
            "note: no daemon runs, so nothing is checked: these are the alerts of its last run",
        );
    }
    for (index, alert) in alerts.iter().enumerate() {
        if index > 0 {
            session.out.line("");
        }
        let by = alert
            .by
            .as_ref()
            .map(|by| format!(" by {by}"))
            .unwrap_or_default();
        let until = match (alert.state, alert.muted_until, alert.cleared) {
            (AlertState::Muted, Some(until), _) => format!(" until {}", date(until)),
            (AlertState::Cleared, _, Some(cleared)) => format!(" {}", date(cleared)),
            _ => String::new(),
        };
        session.out.line(format!(
            "{}  {}  {}{by}{until}  since {}",
            alert.id,
            alert.severity.as_str(),
            alert.state.as_str(),
            date(alert.opened)
        ));
        session.out.line(format!("    {}", alert.fact));
        session.out.line(format!("    means: {}", alert.effect));
        session.out.line(format!("    do:    {}", alert.next_step));
    }
}

fn checks(session: &Session, args: &Arguments, api: &Api) {
    let columns = ["CHECK", "EVERY", "LAST", "FOUND", "ERROR"].map(Column::left);
    let rows: Vec<Vec<String>> = api
        .alerts
        .checks()
        .into_iter()
        .map(|check| {
            vec![
                check.name,
                format!("{}s", check.interval),
                check.ran.map_or_else(|| "-".to_owned(), date),
                check.found.to_string(),
                check.error.unwrap_or_else(|| "-".to_owned()),
            ]
        })
        .collect();
    session.out.text(table(&columns, &rows, args.has('H')));
    for channel in api.alerts.channels() {
        let error = channel.error.map(|error| format!(", last error: {error}"));
        session.out.line(format!(
            "{}: {} sent, {} waiting, {} dropped{}",
            channel.name,
            channel.sent,
            channel.waiting,
            channel.dropped,
            error.unwrap_or_default()
        ));
    }
}

/// Sends a test, and waits for what becomes of it.
async fn test(session: &Session, api: &Api, channel: Option<&str>) -> Outcome {
    let before = api.alerts.channels();
    if !api.alerts.test(channel) {
        let known: Vec<&str> = before.iter().map(|view| view.name.as_str()).collect();
        return Err(session.fail(match known.is_empty() {
            true if !session.appliance.is_daemon() => {
                "no daemon runs: 'sanbox serve' tells people".to_owned()
            }
            true => "nobody is told: 'sanbox alert channel add' adds a channel".to_owned(),
            false => format!("there is no such channel: there are {}", known.join("; ")),
        }));
    }
    let tested = before
        .iter()
        .filter(|view| channel.is_none_or(|name| view.name == name));
    let began = tokio::time::Instant::now();
    let mut failed = false;
    for view in tested {
        let ended = loop {
            let now = api
                .alerts
                .channels()
                .into_iter()
                .find(|now| now.name == view.name);
            match now {
                Some(now) if now.sent > view.sent => break Ok(()),
                Some(now) if now.waiting > 0 && now.error.is_some() => break Err(now.error),
                _ if began.elapsed() > TEST_TIMEOUT => break Err(None),
                _ => tokio::time::sleep(Duration::from_millis(100)).await,
            }
        };
        match ended {
            Ok(()) => session.out.line(format!("{}: sent", view.name)),
            Err(error) => {
                failed = true;
                let error = error.unwrap_or_else(|| "no answer yet".to_owned());
                session
                    .out
                    .error(format!("{}: {error}; it is tried again", view.name));
            }
        }
    }
    match failed {
        true => Err(session.fail("not every channel took the test")),
        false => Ok(()),
    }
}
