//! `sanbox zilstat`: the intent logs, by dataset or together, in the columns of OpenZFS's zilstat; and why a log device has
//! nothing to do.

use std::collections::BTreeMap;
use std::time::Duration;

use engine::{
    AllocationBias, DatasetFilter, DatasetKind, Health, PropertyQuery, VdevStatus, ZilStats,
    property::Value,
};

use super::Given;
use super::arcstat::{clock, rate, thousands};
use super::sample::{PoolSample, Sample, log_since};
use crate::appliance::KnownPool;
use crate::cli::format::{nice_bytes, nice_time};
use crate::cli::zpool::Repeat;
use crate::cli::{Outcome, Session};

/// Lines between two headings.
const HEADING_EVERY: u64 = 20;

pub(super) async fn run(session: &Session, given: &Given) -> Outcome {
    let interval = match given.value('i').map(str::parse::<f64>) {
        None => None,
        Some(Ok(seconds)) if seconds > 0.0 => Duration::try_from_secs_f64(seconds).ok(),
        Some(_) => return Err(session.misuse("-i: not a number of seconds")),
    };
    let count = match given.operands.first().map(|text| text.parse::<u64>()) {
        None => None,
        Some(Ok(count)) => Some(count),
        Some(Err(_)) => return Err(session.misuse("the count is not a number")),
    };
    let again = Repeat { interval, count };
    if given.has('w') {
        return why(session, given.value('p')).await;
    }
    let together = given.has('g');
    let mut before: BTreeMap<(u64, u64), ZilStats> = BTreeMap::new();
    let mut before_at = None;
    let mut rounds = 0;
    loop {
        let sample = Sample::of(session, given.value('p')).await;
        let seconds = before_at.map_or(1.0, |then| {
            let elapsed: Duration = sample.at.duration_since(then);
            elapsed.as_secs_f64().max(0.001)
        });
        before_at = Some(sample.at);
        if rounds % HEADING_EVERY == 0 {
            let name = if together {
                String::new()
            } else {
                format!("  {:<24}", "ds")
            };
            session.out.line(format!(
                "{:<8}{name}  {:>5}  {:>5}  {:>5}  {:>5}  {:>5}  {:>6}  {:>5}",
                "time", "cc", "ic", "idb", "lwb", "bat", "ic/cc", "cec"
            ));
        }
        let mut sum = ZilStats::default();
        let time = clock();
        for pool in &sample.pools {
            for dataset in &pool.seen.datasets {
                let key = (pool.status.guid, dataset.id);
                let then = before.insert(key, dataset.log).unwrap_or_default();
                let since = log_since(&dataset.log, &then);
                if given.value('d').is_some_and(|only| only != dataset.name) {
                    continue;
                }
                if together {
                    sum.commits += since.commits;
                    sum.records += since.records;
                    sum.bytes += since.bytes;
                    sum.blocks += since.blocks;
                    sum.batches += since.batches;
                    sum.fallbacks += since.fallbacks;
                } else if dataset.log.commits > 0 || given.has('a') {
                    session
                        .out
                        .line(line(&time, Some(&dataset.name), &since, seconds));
                }
            }
        }
        if together {
            session.out.line(line(&time, None, &sum, seconds));
        }
        rounds += 1;
        if !again.goes_on(session, rounds).await? {
            return Ok(());
        }
    }
}

fn line(time: &str, name: Option<&str>, log: &ZilStats, seconds: f64) -> String {
    let per_second = |count: u64| thousands(rate(count, 0, seconds));
    let name = name.map_or_else(String::new, |name| format!("  {name:<24}"));
    #[allow(clippy::cast_precision_loss, reason = "a mean for people")]
    let shared = log.records as f64 / log.commits.max(1) as f64;
    format!(
        "{time:<8}{name}  {:>5}  {:>5}  {:>5}  {:>5}  {:>5}  {shared:>6.1}  {:>5}",
        per_second(log.commits),
        per_second(log.records),
        nice_bytes(rate(log.bytes, 0, seconds)),
        per_second(log.blocks),
        per_second(log.batches),
        per_second(log.fallbacks),
    )
}

/// Says of each pool what its logs do and, if a log device has nothing to do, why.
async fn why(session: &Session, only: Option<&str>) -> Outcome {
    let sample = Sample::of(session, only).await;
    for pool in &sample.pools {
        for sentence in reasons(session, pool).await {
            session
                .out
                .line(format!("{}: {sentence}", pool.status.name));
        }
    }
    Ok(())
}

/// What there is to say about the log devices of a pool, in sentences.
pub(super) async fn reasons(session: &Session, pool: &PoolSample) -> Vec<String> {
    let logs: Vec<&VdevStatus> = pool
        .status
        .root
        .children
        .iter()
        .filter(|top| top.bias == AllocationBias::Log)
        .collect();
    let commits: u64 = pool.seen.datasets.iter().map(|d| d.log.commits).sum();
    let batches: u64 = pool.seen.datasets.iter().map(|d| d.log.batches).sum();
    if logs.is_empty() {
        return vec![if commits == 0 {
            "there is no log device, and since the pool was opened nobody asked for durability: one would have nothing to do".to_owned()
        } else {
            format!(
                "there is no log device: {commits} commits were written to the pool's own devices, in {batches} batches"
            )
        }];
    }
    let mut said = Vec::new();
    for log in &logs {
        if !matches!(log.health, Health::Online | Health::Degraded) {
            said.push(format!(
                "log device {} is {}: the logs are on the pool's own devices until it is back",
                log.name,
                log.health.as_str()
            ));
        }
    }
    let written: u64 = logs.iter().map(|log| log.io.write_bytes).sum();
    let mean = logs
        .iter()
        .map(|log| log.io.write_nanoseconds)
        .sum::<u64>()
        .checked_div(logs.iter().map(|log| log.io.write_ops).sum())
        .unwrap_or(0);
    if batches > 0 && said.is_empty() {
        said.push(format!(
            "the log devices are in use: {commits} commits in {batches} batches, {} written, {} a write",
            nice_bytes(written),
            nice_time(mean)
        ));
    }
    let (disabled, throughput, asked) = settings(session, pool).await;
    if commits == 0 {
        said.push("no program asked for durability since the pool was opened (no fsync, no synchronous write, no COMMIT): without that nothing goes to a log".to_owned());
    }
    if !disabled.is_empty() {
        said.push(format!(
            "sync=disabled keeps {} from ever using a log: what is acknowledged there is lost in a crash",
            listed(&disabled)
        ));
    }
    if !throughput.is_empty() {
        said.push(format!(
            "logbias=throughput sends the writes of {} to the pool's own devices, past the log devices",
            listed(&throughput)
        ));
    }
    if commits == 0 && asked == 0 {
        said.push("sync=always on a dataset makes every write durable before it is answered, and the log device useful for it".to_owned());
    }
    said
}

/// Datasets with `sync=disabled`, those with `logbias=throughput`, and how many have `sync=always`.
async fn settings(session: &Session, pool: &PoolSample) -> (Vec<String>, Vec<String>, usize) {
    let mut disabled = Vec::new();
    let mut throughput = Vec::new();
    let mut always = 0;
    for known in session.appliance.pools().await {
        let KnownPool::Open(handle) = known else {
            continue;
        };
        if handle.guid() != pool.status.guid {
            continue;
        }
        let query = PropertyQuery::Named(vec!["sync".to_owned(), "logbias".to_owned()]);
        let filter = DatasetFilter {
            root: handle.name().to_owned(),
            depth: None,
            kinds: vec![DatasetKind::Filesystem, DatasetKind::Volume],
        };
        let Ok(datasets) = handle.datasets(&filter, &query).await else {
            continue;
        };
        for dataset in datasets {
            let number = |name: &str| match dataset.property(name).map(|p| &p.value) {
                Some(Value::Number(number)) => *number,
                _ => 0,
            };
            // sync: 0 standard, 1 always, 2 disabled; logbias: 0 latency, 1 throughput.
            match number("sync") {
                1 => always += 1,
                2 => disabled.push(dataset.name.clone()),
                _ => {}
            }
            if number("logbias") == 1 {
                throughput.push(dataset.name.clone());
            }
        }
    }
    (disabled, throughput, always)
}

fn listed(names: &[String]) -> String {
    match names {
        [one] => one.clone(),
        [one, other] => format!("{one} and {other}"),
        [first, rest @ ..] => format!("{first} and {} more", rest.len()),
        [] => String::new(),
    }
}
