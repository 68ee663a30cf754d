//! `sanbox top`: what the devices, the cache and the requests do now, drawn anew each interval.
//!
//! The table of devices is laid out as FreeBSD's gstat lays out its own. Below it: where the time of requests went, by dataset and
//! client, busiest first.

use std::time::Duration;

use engine::{Client, PHASES, RequestTimes, VdevStatus};

use super::Arguments;
use super::arcstat::rate;
use super::sample::{PoolSample, Sample};
use crate::cli::format::{clock, nice_bytes, nice_number, nice_time};
use crate::cli::{Outcome, Session};

/// Clears the terminal and goes to its upper left.
const CLEAR: &str = "\u{1b}[H\u{1b}[2J";
/// Rows of requests shown.
const ROWS: usize = 12;

pub(super) async fn run(session: &Session, args: &Arguments) -> Outcome {
    let number = |letter: char, default: f64| match args.value(letter) {
        None => Ok(default),
        Some(text) => text
            .parse::<f64>()
            .ok()
            .filter(|value| *value > 0.0)
            .ok_or_else(|| session.misuse(format!("-{letter}: not a number above zero"))),
    };
    let interval = Duration::try_from_secs_f64(number('I', 1.0)?).unwrap_or(Duration::MAX);
    let batch = args.has('b');
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a count of screens"
    )]
    let count = match args.value('n') {
        Some(_) => Some(number('n', 1.0)? as u64),
        None => batch.then_some(1),
    };
    if let Some(extra) = args.operands.first() {
        return Err(session.misuse(format!("unexpected argument '{extra}'")));
    }
    let mut before = Sample::of(session, None).await;
    let mut shown = 0;
    loop {
        session.out.flush().await?;
        tokio::time::sleep(interval).await;
        let now = Sample::of(session, None).await;
        let seconds = now.at.duration_since(before.at).as_secs_f64().max(0.001);
        let mut screen = String::new();
        if !batch {
            screen.push_str(CLEAR);
        }
        draw(&mut screen, &before, &now, seconds);
        session.out.line(screen.trim_end_matches('\n'));
        before = now;
        shown += 1;
        if count.is_some_and(|count| shown >= count) {
            return Ok(());
        }
    }
}

fn draw(screen: &mut String, before: &Sample, now: &Sample, seconds: f64) {
    let mut line = |text: String| {
        screen.push_str(text.trim_end());
        screen.push('\n');
    };
    let (cache, l2) = now.cache();
    let (then, _) = before.cache();
    let hits = rate(cache.hits.total(), then.hits.total(), seconds);
    let misses = rate(cache.misses.total(), then.misses.total(), seconds)
        + rate(cache.joined.total(), then.joined.total(), seconds);
    let share = (hits * 100).checked_div(hits + misses).unwrap_or(0);
    let mut words = format!(
        "{}  cache {} of {}, {share}% of {} reads/s hit",
        clock(),
        nice_bytes(cache.bytes as u64),
        nice_bytes(cache.limit_bytes as u64),
        nice_number(hits + misses),
    );
    if l2.blocks > 0 {
        words.push_str(&format!(
            "; cache devices {} in {} blocks",
            nice_bytes(l2.allocated_bytes),
            nice_number(l2.blocks as u64)
        ));
    }
    line(words);
    for pool in &now.pools {
        let Some(then) = before.pool(pool.status.guid) else {
            continue;
        };
        line(String::new());
        line(format!(
            "{}: txg {}, {} dirty of {}",
            pool.status.name,
            pool.seen.open_txg,
            nice_bytes(pool.seen.dirty_bytes),
            nice_bytes(pool.seen.dirty_bytes_max)
        ));
        line(format!(
            "{:>5} {:>7} {:>7} {:>7} {:>7} {:>7} {:>7} {:>7} {:>7} {:>7} {:>6}  Name",
            "L(q)", "ops/s", "r/s", "kBps", "ms/r", "w/s", "kBps", "ms/w", "o/s", "ms/o", "%busy"
        ));
        device(
            &mut line,
            &pool.status.root,
            Some(&then.status.root),
            0,
            seconds,
        );
    }
    requests(&mut line, before, now, seconds);
}

/// A vdev and those below it.
fn device(
    line: &mut impl FnMut(String),
    now: &VdevStatus,
    then: Option<&VdevStatus>,
    depth: usize,
    seconds: f64,
) {
    let nothing = VdevStatus::default();
    let old = then.unwrap_or(&nothing);
    let reads = rate(now.io.read_ops, old.io.read_ops, seconds);
    let writes = rate(now.io.write_ops, old.io.write_ops, seconds);
    let kib = |now: u64, then: u64| rate(now, then, seconds) >> 10;
    let mean = |time: u64, then: u64, ops: u64, ops_then: u64| {
        let mean = time
            .saturating_sub(then)
            .checked_div(ops.saturating_sub(ops_then))
            .unwrap_or(0);
        format!("{}.{}", mean / 1_000_000, mean / 100_000 % 10)
    };
    let queue: u32 = now
        .detail
        .classes
        .iter()
        .map(|c| c.pending + c.active)
        .sum();
    let at_device = |vdev: &VdevStatus| -> u64 {
        let classes = vdev.detail.classes.iter();
        let transfers: u64 = classes.map(|class| class.disk_wait.sum_ns).sum();
        transfers + vdev.detail.flushes.sum_ns
    };
    // gstat's other operations: here flushes.
    let (flushes, flushes_then) = (&now.detail.flushes, &old.detail.flushes);
    let others = rate(flushes.count, flushes_then.count, seconds);
    // Time at the device, all operations together: more than the time that passed when several were there at once.
    let leaves = leaf_count(now).max(1);
    let busy = rate(at_device(now), at_device(old), seconds) / 10_000_000 / leaves;
    line(format!(
        "{queue:>5} {:>7} {reads:>7} {:>7} {:>7} {writes:>7} {:>7} {:>7} {others:>7} {:>7} {:>6}  {:depth$}{}",
        reads + writes + others,
        kib(now.io.read_bytes, old.io.read_bytes),
        mean(
            now.io.read_nanoseconds,
            old.io.read_nanoseconds,
            now.io.read_ops,
            old.io.read_ops
        ),
        kib(now.io.write_bytes, old.io.write_bytes),
        mean(
            now.io.write_nanoseconds,
            old.io.write_nanoseconds,
            now.io.write_ops,
            old.io.write_ops
        ),
        mean(
            flushes.sum_ns,
            flushes_then.sum_ns,
            flushes.count,
            flushes_then.count
        ),
        busy.min(100),
        "",
        now.name,
    ));
    for child in &now.children {
        let then = old.children.iter().find(|old| old.guid == child.guid);
        device(line, child, then, depth + 2, seconds);
    }
}

fn leaf_count(vdev: &VdevStatus) -> u64 {
    if vdev.children.is_empty() {
        return 1;
    }
    vdev.children.iter().map(leaf_count).sum()
}

/// Requests of one client at one dataset since the last screen.
struct Row {
    dataset: String,
    client: Client,
    times: RequestTimes,
}

fn rows(before: Option<&PoolSample>, now: &PoolSample) -> Vec<Row> {
    let mut rows = Vec::new();
    for dataset in &now.seen.datasets {
        let old = before.and_then(|before| {
            let mut datasets = before.seen.datasets.iter();
            datasets.find(|old| old.id == dataset.id)
        });
        for (client, times) in &dataset.requests {
            let then = old
                .and_then(|old| old.requests.iter().find(|(known, _)| known == client))
                .map(|(_, times)| *times)
                .unwrap_or_default();
            let mut since = RequestTimes {
                requests: times.requests.saturating_sub(then.requests),
                waited: times.waited.saturating_sub(then.waited),
                ..RequestTimes::default()
            };
            let pairs = times.waited_ns.iter().zip(&then.waited_ns);
            for (sum, (now, then)) in since.waited_ns.iter_mut().zip(pairs) {
                *sum = now.saturating_sub(*then);
            }
            if since.requests > 0 {
                rows.push(Row {
                    dataset: dataset.name.clone(),
                    client: *client,
                    times: since,
                });
            }
        }
    }
    rows
}

/// Where the time of requests went.
fn requests(line: &mut impl FnMut(String), before: &Sample, now: &Sample, seconds: f64) {
    let mut all = Vec::new();
    for pool in &now.pools {
        all.extend(rows(before.pool(pool.status.guid), pool));
    }
    all.sort_by_key(|row| std::cmp::Reverse((row.times.total_ns(), row.times.requests)));
    line(String::new());
    line(format!(
        "{:>7} {:>6} {:>7}  {:<24} {:<16} where the waiting went",
        "req/s", "waited", "a time", "dataset", "client"
    ));
    for row in all.iter().take(ROWS) {
        let times = &row.times;
        let mut parts: Vec<(u64, &str)> = PHASES
            .iter()
            .zip(&times.waited_ns)
            .map(|(phase, ns)| (ns * 100 / times.total_ns().max(1), phase.as_str()))
            .filter(|(share, _)| *share > 0)
            .collect();
        parts.sort_unstable_by(|a, b| b.cmp(a));
        let words: Vec<_> = parts
            .iter()
            .map(|(share, name)| format!("{name} {share}%"))
            .collect();
        let mean = times.total_ns().checked_div(times.waited).unwrap_or(0);
        line(format!(
            "{:>7} {:>5}% {:>7}  {:<24} {:<16} {}",
            rate(times.requests, 0, seconds),
            times.waited * 100 / times.requests.max(1),
            nice_time(mean),
            row.dataset,
            row.client.to_string(),
            words.join(", ")
        ));
    }
}
