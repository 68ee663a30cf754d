//! `sanbox zilstat`: the intent logs, together or by dataset, in the columns and with the options of OpenZFS's zilstat; and why a
//! log device has nothing to do.

use std::collections::BTreeMap;
use std::time::Duration;

use engine::{
    AllocationBias, DatasetFilter, DatasetKind, Health, LogBlocks, PropertyQuery, VdevStatus,
    ZilStats, property::Value,
};

use super::Arguments;
use super::arcstat::rate;
use super::sample::{PoolSample, Sample, log_since};
use crate::appliance::KnownPool;
use crate::cli::format::{clock, decimal_number, nice_bytes, nice_time};
use crate::cli::zpool::Repeat;
use crate::cli::{Exit, Outcome, Session};

/// Lines between two headings.
const HEADING_EVERY: u64 = 20;

/// What a column shows.
enum Show {
    Time,
    Pool,
    Dataset,
    Object,
    Count(fn(&ZilStats) -> u64),
    Bytes(fn(&ZilStats) -> u64),
    /// Percent of the first that the second is.
    Percent(fn(&ZilStats) -> (u64, u64)),
}

/// Name, width, content, description.
type Column = (&'static str, usize, Show, &'static str);

// OpenZFS: cmd/zilstat.in, cols
const COLUMNS: &[Column] = &[
    ("time", 8, Show::Time, "time"),
    ("pool", 12, Show::Pool, "pool"),
    ("ds", 12, Show::Dataset, "dataset_name"),
    ("obj", 12, Show::Object, "objset"),
    ("cc", 5, Show::Count(|l| l.commits), "zil_commit_count"),
    (
        "cwc",
        5,
        Show::Count(|l| l.batches),
        "zil_commit_writer_count",
    ),
    (
        "cec",
        5,
        Show::Count(|l| l.fallbacks),
        "zil_commit_error_count",
    ),
    (
        "csc",
        5,
        Show::Count(|l| l.stalls),
        "zil_commit_stall_count",
    ),
    ("cSc", 5, Show::Count(|_| 0), "zil_commit_suspend_count"),
    ("ic", 5, Show::Count(|l| l.records), "zil_itx_count"),
    (
        "iic",
        5,
        Show::Count(|l| l.indirect),
        "zil_itx_indirect_count",
    ),
    (
        "iib",
        5,
        Show::Bytes(|l| l.indirect_bytes),
        "zil_itx_indirect_bytes",
    ),
    ("icc", 5, Show::Count(|l| l.copied), "zil_itx_copied_count"),
    (
        "icb",
        5,
        Show::Bytes(|l| l.copied_bytes),
        "zil_itx_copied_bytes",
    ),
    // Records hold their data from the start here.
    ("inc", 5, Show::Count(|_| 0), "zil_itx_needcopy_count"),
    ("inb", 5, Show::Bytes(|_| 0), "zil_itx_needcopy_bytes"),
    ("idc", 5, Show::Count(|l| l.copied), "icc+inc"),
    ("idb", 5, Show::Bytes(|l| l.copied_bytes), "icb+inb"),
    ("iwc", 5, Show::Count(|l| l.indirect + l.copied), "iic+idc"),
    (
        "iwb",
        5,
        Show::Bytes(|l| l.indirect_bytes + l.copied_bytes),
        "iib+idb",
    ),
    (
        "imnc",
        6,
        Show::Count(|l| l.normal.count),
        "zil_itx_metaslab_normal_count",
    ),
    (
        "imnb",
        6,
        Show::Bytes(|l| l.normal.used_bytes),
        "zil_itx_metaslab_normal_bytes",
    ),
    (
        "imnw",
        6,
        Show::Bytes(|l| l.normal.written_bytes),
        "zil_itx_metaslab_normal_write",
    ),
    (
        "imna",
        6,
        Show::Bytes(|l| l.normal.allocated_bytes),
        "zil_itx_metaslab_normal_alloc",
    ),
    (
        "imsc",
        6,
        Show::Count(|l| l.separate.count),
        "zil_itx_metaslab_slog_count",
    ),
    (
        "imsb",
        6,
        Show::Bytes(|l| l.separate.used_bytes),
        "zil_itx_metaslab_slog_bytes",
    ),
    (
        "imsw",
        6,
        Show::Bytes(|l| l.separate.written_bytes),
        "zil_itx_metaslab_slog_write",
    ),
    (
        "imsa",
        6,
        Show::Bytes(|l| l.separate.allocated_bytes),
        "zil_itx_metaslab_slog_alloc",
    ),
    ("imc", 5, Show::Count(|l| l.blocks().count), "imnc+imsc"),
    (
        "imb",
        5,
        Show::Bytes(|l| l.blocks().used_bytes),
        "imnb+imsb",
    ),
    (
        "imw",
        5,
        Show::Bytes(|l| l.blocks().written_bytes),
        "imnw+imsw",
    ),
    (
        "ima",
        5,
        Show::Bytes(|l| l.blocks().allocated_bytes),
        "imna+imsa",
    ),
    ("se%", 3, Show::Percent(|l| filled(&l.blocks())), "imb/ima"),
    ("sen%", 4, Show::Percent(|l| filled(&l.normal)), "imnb/imna"),
    (
        "ses%",
        4,
        Show::Percent(|l| filled(&l.separate)),
        "imsb/imsa",
    ),
    ("te%", 3, Show::Percent(|l| useful(&l.blocks())), "imb/imw"),
    ("ten%", 4, Show::Percent(|l| useful(&l.normal)), "imnb/imnw"),
    (
        "tes%",
        4,
        Show::Percent(|l| useful(&l.separate)),
        "imsb/imsw",
    ),
];

/// Shown by default, of all datasets together and of each.
const TOGETHER: &str = "time,cc,ic,idc,idb,iic,iib,imnc,imnw,imsc,imsw";
const EACH: &str = "time,ds,cc,ic,idc,idb,iic,iib,imnc,imnw,imsc,imsw";

fn filled(blocks: &LogBlocks) -> (u64, u64) {
    (blocks.allocated_bytes, blocks.used_bytes)
}

fn useful(blocks: &LogBlocks) -> (u64, u64) {
    (blocks.written_bytes, blocks.used_bytes)
}

/// The log of a dataset, or the sum of several, as a line shows it.
#[derive(Default)]
struct DatasetLog<'a> {
    pool: &'a str,
    dataset: &'a str,
    object: u64,
    log: ZilStats,
}

pub(super) async fn run(session: &Session, args: &Arguments) -> Outcome {
    if args.has('v') {
        for (name, _, _, text) in COLUMNS {
            session.out.line(format!("{name:>11} : {text}"));
        }
        return Ok(());
    }
    let interval = match args.value('i').map(str::parse::<f64>) {
        None => None,
        Some(Ok(seconds)) if seconds > 0.0 => Duration::try_from_secs_f64(seconds).ok(),
        Some(_) => return Err(session.misuse("-i: not a number of seconds")),
    };
    let count = match args.operands.first().map(|text| text.parse::<u64>()) {
        None => None,
        Some(Ok(count)) => Some(count),
        Some(Err(_)) => return Err(session.misuse("the count is not a number")),
    };
    if args.has('w') {
        return why(session, args.value('p')).await;
    }
    let datasets: Option<Vec<&str>> = args.value('d').map(|list| list.split(',').collect());
    let each = args.has('a') || args.value('p').is_some() || datasets.is_some();
    let each = each && !args.has('g');
    let columns = chosen(
        session,
        args.value('f')
            .unwrap_or(if each { EACH } else { TOGETHER }),
    )?;
    let separator = args.value('s').unwrap_or("  ");
    let heading: Vec<String> = columns
        .iter()
        .map(|(name, width, show, _)| match show {
            Show::Count(_) | Show::Bytes(_) if interval.is_some() => {
                format!("{:>width$}", format!("{name}/s"))
            }
            _ => format!("{name:>width$}"),
        })
        .collect();
    let again = Repeat { interval, count };
    let mut before: BTreeMap<(u64, u64), ZilStats> = BTreeMap::new();
    let mut before_at = None;
    if let Some(interval) = interval {
        // Rates from the first line on.
        let sample = Sample::of(session, args.value('p')).await;
        for pool in &sample.pools {
            for dataset in &pool.seen.datasets {
                before.insert((pool.status.guid, dataset.id), dataset.log);
            }
        }
        before_at = Some(sample.at);
        tokio::time::sleep(interval).await;
    }
    let mut rounds = 0;
    loop {
        let sample = Sample::of(session, args.value('p')).await;
        let seconds = before_at.map_or(1.0, |then| {
            let elapsed: Duration = sample.at.duration_since(then);
            elapsed.as_secs_f64().max(0.001)
        });
        if interval.is_some() {
            before_at = Some(sample.at);
        }
        if rounds % HEADING_EVERY == 0 {
            session.out.line(heading.join(separator));
        }
        let mut sum = DatasetLog::default();
        for pool in &sample.pools {
            for dataset in &pool.seen.datasets {
                let only = datasets.as_ref();
                if only.is_some_and(|only| !only.contains(&dataset.name.as_str())) {
                    continue;
                }
                let key = (pool.status.guid, dataset.id);
                let then = before.get(&key).copied().unwrap_or_default();
                if interval.is_some() {
                    before.insert(key, dataset.log);
                }
                let log = log_since(&dataset.log, &then);
                if each {
                    let one = DatasetLog {
                        pool: &pool.status.name,
                        dataset: &dataset.name,
                        object: dataset.id,
                        log,
                    };
                    session.out.line(line(&columns, &one, seconds, separator));
                } else {
                    sum.log.add(&log);
                }
            }
        }
        if !each {
            session.out.line(line(&columns, &sum, seconds, separator));
        }
        rounds += 1;
        if !again.goes_on(session, rounds).await? {
            return Ok(());
        }
    }
}

/// The columns of a list of names.
fn chosen(session: &Session, names: &str) -> Result<Vec<&'static Column>, Exit> {
    let find = |name: &str| {
        let found = COLUMNS.iter().find(|column| column.0 == name);
        found.ok_or_else(|| session.fail(format!("Invalid column definition! -- {name}")))
    };
    names.split(',').map(find).collect()
}

fn line(columns: &[&Column], line: &DatasetLog<'_>, seconds: f64, separator: &str) -> String {
    let cells = columns.iter().map(|(_, width, show, _)| {
        let text = match show {
            Show::Time => clock(),
            Show::Pool => line.pool.to_owned(),
            Show::Dataset => line.dataset.to_owned(),
            Show::Object => line.object.to_string(),
            Show::Count(of) => decimal_number(rate(of(&line.log), 0, seconds)),
            Show::Bytes(of) => nice_bytes(rate(of(&line.log), 0, seconds)),
            Show::Percent(of) => {
                let (all, part) = of(&line.log);
                (part * 100).checked_div(all).unwrap_or(0).to_string()
            }
        };
        format!("{text:>width$}")
    });
    cells.collect::<Vec<_>>().join(separator)
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
