//! `sanbox checks`: what looks for trouble, how its runs went; one is run at once, or turned on and off.

use std::time::Duration;

use manage::alerts::{AlertState, CheckView};
use manage::api::Api;

use super::{Arguments, print_table};
use crate::cli::format::date;
use crate::cli::{Outcome, Session};
use crate::serve::management;

/// How long a run is waited for: checks run one after the other, and one that asks a pool which hangs takes 15 s.
const RUN_TIMEOUT: Duration = Duration::from_secs(60);

pub(super) async fn run(session: &Session, args: &Arguments) -> Outcome {
    let words: Vec<&str> = args.operands.iter().map(String::as_str).collect();
    let api = management::open(&session.appliance).await;
    let api = api.map_err(|error| session.fail(format!("{error:#}")))?;
    let none = |name: &str| {
        session.fail(format!(
            "there is no check '{name}': 'sanbox checks list' names them"
        ))
    };
    match words[..] {
        [] | ["list"] => list(session, args, api.alerts.checks()),
        ["history", name] => {
            let runs = api.alerts.check_runs(name).ok_or_else(|| none(name))?;
            let row = |run: manage::alerts::CheckRuns| {
                vec![
                    date(run.from),
                    date(run.to),
                    run.runs.to_string(),
                    run.found.to_string(),
                    run.error.unwrap_or_else(|| "-".to_owned()),
                ]
            };
            let rows: Vec<_> = runs.into_iter().map(row).collect();
            print_table(
                session,
                args,
                &["FROM", "TO", "RUNS", "FOUND", "ERROR"],
                &rows,
            );
        }
        ["run", name] => {
            let before = api.alerts.check(name).ok_or_else(|| none(name))?;
            run_now(session, &api, &before).await?;
        }
        ["on" | "off", name] => {
            if !api.alerts.turn_check(name, words[0] == "on") {
                return Err(none(name));
            }
            // A process that ends now would leave the change unwritten.
            let written = api.accounts.database().call(|_| Ok(())).await;
            written.map_err(|error| session.fail(error.to_string()))?;
        }
        _ => return Err(session.misuse("list, run NAME, history NAME, on NAME or off NAME")),
    }
    Ok(())
}

fn list(session: &Session, args: &Arguments, checks: Vec<CheckView>) {
    let row = |check: CheckView| {
        vec![
            check.name,
            if check.on { "on" } else { "off" }.to_owned(),
            format!("{}s", check.interval),
            check.ran.map_or_else(|| "-".to_owned(), date),
            check.found.to_string(),
            check.error.unwrap_or_else(|| "-".to_owned()),
            check.about,
        ]
    };
    let rows: Vec<_> = checks.into_iter().map(row).collect();
    let titles = [
        "CHECK", "STATE", "EVERY", "LAST", "FOUND", "ERROR", "LOOKS AT",
    ];
    print_table(session, args, &titles, &rows);
}

/// Has a check run, waits for its end, and says what it found.
async fn run_now(session: &Session, api: &Api, before: &CheckView) -> Outcome {
    if !session.appliance.is_daemon() {
        return Err(session.fail("no daemon runs, so nothing is checked: 'sanbox serve' does"));
    }
    let name = &before.name;
    let runs = |api: &Api| -> u64 {
        let all = api.alerts.check_runs(name).unwrap_or_default();
        all.iter().map(|run| run.runs).sum()
    };
    let earlier = runs(api);
    let _ = api.alerts.want_check(name);
    let began = tokio::time::Instant::now();
    // The list is bounded: its sum grows with every run but for one that pushes an old entry out.
    while runs(api) == earlier {
        if began.elapsed() > RUN_TIMEOUT {
            return Err(session.fail(format!(
                "'{name}' has not run within {} s",
                RUN_TIMEOUT.as_secs()
            )));
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let Some(after) = api.alerts.check(name) else {
        return Ok(());
    };
    if let Some(error) = after.error {
        return Err(session.fail(error));
    }
    session.out.line(format!(
        "{name}: found {}, in {} ms",
        after.found, after.took_ms
    ));
    if after.found > 0 && after.on {
        let open = api.alerts.list(false).into_iter();
        let seen = open
            .filter(|alert| alert.state != AlertState::Cleared && Some(alert.seen) >= after.ran);
        for alert in seen {
            session.out.line(format!("    {}", alert.fact));
        }
    }
    Ok(())
}
