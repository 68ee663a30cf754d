//! `sanbox policy` and `sanbox snapshots`: which snapshots are taken and kept, set, shown, foreseen and explained; `sanbox immutable`.

use std::io::IsTerminal as _;

use engine::{EngineError, IMMUTABLE_PROPERTY, PoolHandle, time_text};
use jiff::{Timestamp, ToSpan as _, Zoned};
use manage::policy::{
    self, DatasetState, NextSnapshot, PROPERTY, Policy, PolicyOverview, PolicySource, SnapshotWhy,
    WhyError,
};
use serde_json::json;

use super::Arguments;
use crate::cli::format::{Column, table};
use crate::cli::{Exit, Outcome, Session, dataset_clause};

/// Days ahead that `policy preview` looks where no date is given.
const PREVIEW_DAYS: i64 = 30;

pub(super) async fn run(session: &Session, args: &Arguments) -> Outcome {
    let operands: Vec<&str> = args.operands.iter().map(String::as_str).collect();
    match operands.as_slice() {
        ["set", dataset, line] => set(session, dataset, line).await,
        ["clear", dataset] => clear(session, dataset).await,
        ["show"] => show(session, args, None).await,
        ["show", dataset] => show(session, args, Some(dataset)).await,
        ["preview", dataset] => preview(session, args, dataset, None).await,
        ["preview", dataset, line] => preview(session, args, dataset, Some(line)).await,
        _ => Err(session.usage_only()),
    }
}

/// `sanbox snapshots why`.
pub(super) async fn snapshots(session: &Session, args: &Arguments) -> Outcome {
    let ["why", name] = args.operands.iter().map(String::as_str).collect::<Vec<_>>()[..] else {
        return Err(session.usage_only());
    };
    let (dataset, wanted) = match name.split_once('@') {
        Some((dataset, snapshot)) => (dataset, Some(snapshot)),
        None => (name, None),
    };
    let pool = open(session, dataset).await?;
    let found = policy::why(&pool, dataset, wanted, Timestamp::now()).await;
    let found = found.map_err(|error| match error {
        WhyError::Engine(error) => session.fail(format!(
            "cannot open '{dataset}': {}",
            dataset_clause(&error)
        )),
        WhyError::Policy(_) => session.fail(error.to_string()),
    })?;
    if found.is_empty() && wanted.is_some() {
        return Err(session.fail(format!("cannot open '{name}': dataset does not exist")));
    }
    if args.has('j') {
        session.out.line(json(dataset, &found));
        return Ok(());
    }
    let row = |why: &SnapshotWhy| vec![format!("{dataset}@{}", why.decision.snapshot), why.text()];
    let rows: Vec<Vec<String>> = found.iter().map(row).collect();
    print(session, args, &["SNAPSHOT", "WHY"], &rows);
    Ok(())
}

/// What keeps snapshots, as JSON: times are seconds since 1970.
fn json(dataset: &str, found: &[SnapshotWhy]) -> String {
    let view = |why: &SnapshotWhy| {
        json!({
            "snapshot": format!("{dataset}@{}", why.decision.snapshot),
            "kept": why.decision.is_kept(),
            "why": why.decision.reason.to_string(),
            "leaves": why.leaves.map(Timestamp::as_second),
            "immutable_until": why.immutable_until.map(Timestamp::as_second),
            "holds": why.holds,
            "clones": why.clones,
            "bookmarks": why.bookmarks,
        })
    };
    let snapshots: Vec<serde_json::Value> = found.iter().map(view).collect();
    json!({ "snapshots": snapshots }).to_string()
}

/// `sanbox immutable`: snapshots that are not destroyed before a time.
pub(super) async fn immutable(session: &Session, args: &Arguments) -> Outcome {
    if args.operands.is_empty() {
        return Err(session.usage_only());
    }
    if let Some(name) = args.operands.iter().find(|name| !name.contains('@')) {
        return Err(session.fail(format!(
            "cannot make '{name}' immutable: only snapshots are"
        )));
    }
    for name in &args.operands {
        let pool = open(session, name).await?;
        let failed = |error: &EngineError| {
            session.fail(format!(
                "cannot make '{name}' immutable: {}",
                dataset_clause(error)
            ))
        };
        let until = match (args.long("until"), args.long("for")) {
            (Some(date), None) => moment(session, date)?,
            (None, Some(time)) => {
                let hours = policy::hours(time).ok_or_else(|| {
                    session.misuse(format!("--for {time}: not 12h, 30d or 4w, at most 3650d"))
                })?;
                let until = policy::immutable_until(&pool, hours).await;
                until.map_err(|error| failed(&error))?
            }
            _ => return Err(session.misuse("one of --for and --until is needed")),
        };
        let settings = [(IMMUTABLE_PROPERTY.to_owned(), until.clone())];
        let done = pool.set_dataset_properties(name, &settings).await;
        done.map_err(|error| failed(&error))?;
        session
            .out
            .line(format!("{name}: nobody destroys it before {until}"));
        session.record(&pool).await;
    }
    Ok(())
}

/// Reads a date to come, in the machine's zone, as the property has it. More than ten years ahead is taken for a slip.
fn moment(session: &Session, date: &str) -> Result<String, Exit> {
    let parsed = date.parse::<jiff::civil::DateTime>().ok();
    let zoned = parsed.and_then(|local| local.to_zoned(jiff::tz::TimeZone::system()).ok());
    let now = Zoned::now();
    let last = now.saturating_add(10.years());
    let then = zoned.filter(|then| *then > now && *then <= last);
    let then = then.ok_or_else(|| {
        session.misuse(format!(
            "--until {date}: not a date to come within ten years, YYYY-MM-DD or YYYY-MM-DDTHH:MM"
        ))
    })?;
    let seconds = u64::try_from(then.timestamp().as_second()).unwrap_or(0);
    Ok(time_text(seconds))
}

async fn set(session: &Session, dataset: &str, line: &str) -> Outcome {
    let policy = parse(session, line)?;
    let pool = open(session, dataset).await?;
    let settings = [(PROPERTY.to_owned(), policy.to_string())];
    let done = pool.set_dataset_properties(dataset, &settings).await;
    done.map_err(|error| {
        session.fail(format!(
            "cannot set the policy of '{dataset}': {}",
            dataset_clause(&error)
        ))
    })?;
    session.record(&pool).await;
    if !session.appliance.is_daemon() && std::io::stderr().is_terminal() {
        session
            .out
            .error("no daemon runs: snapshots are taken as soon as 'sanbox serve' does");
    }
    Ok(())
}

async fn clear(session: &Session, dataset: &str) -> Outcome {
    let pool = open(session, dataset).await?;
    let done = pool.inherit(dataset, PROPERTY, false).await;
    done.map_err(|error| {
        session.fail(format!(
            "cannot clear the policy of '{dataset}': {}",
            dataset_clause(&error)
        ))
    })?;
    session.record(&pool).await;
    Ok(())
}

async fn show(session: &Session, args: &Arguments, root: Option<&str>) -> Outcome {
    let pools = match root {
        Some(root) => vec![open(session, root).await?],
        None => {
            session.appliance.pools().await;
            session.appliance.open_pools()
        }
    };
    let now = Timestamp::now();
    let mut rows = Vec::new();
    for pool in pools {
        let read = async {
            let found = policy::policies(&pool, root.unwrap_or(pool.name())).await?;
            policy::states(&pool, &found).await
        };
        let states = read.await.map_err(|error| {
            session.fail(format!(
                "cannot open '{}': {}",
                pool.name(),
                dataset_clause(&error)
            ))
        })?;
        rows.extend(states.iter().map(|state| row(state, now)));
    }
    if rows.is_empty() && !args.has('H') {
        session.out.line("no dataset has a policy ('sanbox policy set DATASET \"hourly=24 daily=7\"' gives it one)");
        return Ok(());
    }
    print(
        session,
        args,
        &["NAME", "SNAPSHOTS", "NEWEST", "NEXT", "SOURCE", "POLICY"],
        &rows,
    );
    Ok(())
}

/// A line of `policy show`.
fn row(state: &DatasetState, now: Timestamp) -> Vec<String> {
    let overview = PolicyOverview::of(state, now);
    let source = match &state.source {
        PolicySource::Local => "local".to_owned(),
        PolicySource::Inherited(from) => format!("inherited from {from}"),
        PolicySource::Received => "received (not in force)".to_owned(),
    };
    let next = match overview.next {
        NextSnapshot::Unreadable(error) => format!("never: {error}"),
        NextSnapshot::NotHere => "-".to_owned(),
        NextSnapshot::Now => "now".to_owned(),
        NextSnapshot::At(next) => minute(next),
        NextSnapshot::Never => "never".to_owned(),
    };
    let newest = overview.newest.map_or_else(|| "-".to_owned(), minute);
    vec![
        state.name.clone(),
        overview.taken.to_string(),
        newest,
        next,
        source,
        state.policy.clone(),
    ]
}

async fn preview(
    session: &Session,
    args: &Arguments,
    dataset: &str,
    line: Option<&str>,
) -> Outcome {
    let now = Timestamp::now();
    let then = match args.long("on") {
        None => Zoned::now().saturating_add(PREVIEW_DAYS.days()).timestamp(),
        Some(date) => {
            let parsed = date.parse::<jiff::civil::DateTime>().ok();
            let zoned = parsed.and_then(|local| local.to_zoned(jiff::tz::TimeZone::system()).ok());
            let then = zoned
                .map(|zoned| zoned.timestamp())
                .filter(|then| *then > now);
            then.ok_or_else(|| {
                session.misuse(format!(
                    "--on {date}: not a date to come, YYYY-MM-DD or YYYY-MM-DDTHH:MM"
                ))
            })?
        }
    };
    let state = state(session, dataset).await?;
    let policy = match line {
        Some(line) => parse(session, line)?,
        None => in_force(session, &state)?,
    };
    session.out.line(format!("policy of {dataset}: {policy}"));
    let decisions = policy::decide(&policy, &state.snapshots, now);
    let going: Vec<_> = decisions
        .iter()
        .filter(|decision| !decision.is_kept())
        .collect();
    session.out.line(format!(
        "now: {} snapshots, {} of them would be destroyed",
        decisions.len(),
        going.len()
    ));
    for decision in &going {
        session
            .out
            .line(format!("  {dataset}@{}", decision.snapshot));
    }
    let found = policy::forecast(&policy, &state.snapshots, now, then);
    session.out.line(format!(
        "{}: {} snapshots of the policy, if the appliance runs all the time",
        minute(then),
        found.len()
    ));
    for class in &policy.classes {
        let name = class.period.name();
        let times: Vec<_> = found
            .iter()
            .filter(|(_, classes)| classes.contains(&name))
            .map(|(at, _)| *at)
            .collect();
        if let (Some(first), Some(last)) = (times.first(), times.last()) {
            session.out.line(format!(
                "  {name:<8} {:>6}  {} to {}",
                times.len(),
                minute(*first),
                minute(*last)
            ));
        }
    }
    Ok(())
}

/// The moment in the machine's zone, to the minute.
fn minute(at: Timestamp) -> String {
    let local = at.to_zoned(jiff::tz::TimeZone::system());
    local.strftime("%Y-%m-%d %H:%M").to_string()
}

fn print(session: &Session, args: &Arguments, titles: &[&str], rows: &[Vec<String>]) {
    let columns: Vec<Column> = titles.iter().map(|title| Column::left(title)).collect();
    session.out.text(table(&columns, rows, args.has('H')));
}

fn parse(session: &Session, line: &str) -> Result<Policy, Exit> {
    line.parse()
        .map_err(|error| session.fail(format!("bad policy: {error}")))
}

async fn open(session: &Session, dataset: &str) -> Result<PoolHandle, Exit> {
    let pool = session.appliance.pool_of(dataset).await;
    pool.map_err(|error| {
        session.fail(format!(
            "cannot open '{dataset}': {}",
            dataset_clause(&error)
        ))
    })
}

/// Returns a dataset with its policy (`off` where it has none) and its snapshots.
async fn state(session: &Session, dataset: &str) -> Result<DatasetState, Exit> {
    let pool = open(session, dataset).await?;
    let read = policy::state(&pool, dataset);
    read.await.map_err(|error| {
        session.fail(format!(
            "cannot open '{dataset}': {}",
            dataset_clause(&error)
        ))
    })
}

/// The policy that a dataset's snapshots are kept by.
fn in_force(session: &Session, state: &DatasetState) -> Result<Policy, Exit> {
    match state.source {
        PolicySource::Received => parse(session, "off"),
        _ => parse(session, &state.policy),
    }
}
