//! Why requests were slow: from where their time went, and what the disks, the cache and the pools did meanwhile, to a sentence that
//! names the cause and the next step.
//!
//! Each rule gives its cause a weight: the share of the waiting that it explains, less where other causes show the same signs. The
//! heaviest is named first; others that explain half as much are named behind it.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use engine::{PHASES, Phase};
use serde::Serialize;
use utoipa::ToSchema;

use super::sample::{
    DEDUP, DiskSpan, HAS_LOG, LOG_GONE, PoolSpan, RequestSpan, SCANNING, Span, percentile_us,
};

/// Seconds in which a pool does not answer that mean a disk that hangs.
const HUNG_SECONDS: u64 = 3;
/// How many times slower than the others a disk is that is named.
const SLOW_FACTOR: u64 = 4;
/// Mean time of a disk that is slow beside others, and by itself, in nanoseconds.
const SLOW_BESIDE_NS: u64 = 5_000_000;
const SLOW_ALONE_NS: u64 = 200_000_000;
/// What a disk that is slow by itself has for an operation, in nanoseconds: healthy ones seek in 20 ms at most.
const SLOW_SERVICE_NS: u64 = 50_000_000;
/// Operations in which a disk's mean time means something.
const OPERATIONS_MIN: u64 = 8;
/// Percent of a pool that is full for the allocator.
const FULL_PERCENT: u64 = 90;
/// Percent of what the network carries at which it is at its limit.
const NETWORK_PERCENT: u64 = 85;
/// Percent of a second's waiting below which nothing was slow.
const QUIET_PERCENT: u64 = 2;

/// A cause of slowness.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Cause {
    /// A pool did not answer: a disk of it hangs.
    HungPool,
    /// A disk takes longer than the others.
    SlowDisk,
    /// The pool is almost full.
    FullPool,
    /// A log device is not there.
    LogGone,
    /// Writers are faster than the disks.
    TxgThrottle,
    /// The cache is too small for what is read.
    SmallMemory,
    /// One client has most of what the disks do.
    GreedyClient,
    /// Synchronous writes wait for the disks of the pool.
    SyncWithoutLog,
    /// Synchronous writes wait for the log device.
    SlowLog,
    /// The table of deduplicated blocks is read from the disks.
    DedupTable,
    /// A scrub or resilver.
    Scrub,
    /// The network is at its limit.
    Network,
    /// The disks have enough to do.
    BusyDisks,
    /// Requests for the same thing wait for each other.
    Contention,
    /// Compression, checksums and the like.
    Compute,
}

/// A cause that was found.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct Finding {
    /// Which.
    pub cause: Cause,
    /// The disk, pool, client or dataset.
    pub subject: String,
    /// How much of the waiting it explains, in percent, as far as the signs tell.
    pub weight: u64,
    /// What was seen, and what to do.
    pub sentence: String,
}

/// Where the time of requests went, and why.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct Explanation {
    /// All of it in one or two sentences.
    pub sentence: String,
    /// Causes, the likeliest first; empty when nothing was slow.
    pub findings: Vec<Finding>,
    /// Seconds that were looked at.
    pub seconds: u64,
    /// Requests answered.
    pub requests: u64,
    /// Of those, such as waited.
    pub waited: u64,
    /// Nanoseconds that requests waited, all together.
    pub wait_ns: u64,
    /// Half of those that waited did so for less, in microseconds.
    pub p50_us: u64,
    /// All but one in a hundred of those that waited did so for less, in microseconds.
    pub p99_us: u64,
    /// Nanoseconds waited, by phase.
    pub phases: BTreeMap<String, u64>,
}

/// The requests that are asked about, and those of everybody.
struct Question<'a> {
    pools: Vec<&'a PoolSpan>,
    chosen: RequestSpan,
    client: Option<&'a str>,
    seconds: u64,
}

impl Question<'_> {
    /// The percentage of the waiting that was in these phases.
    fn share(&self, phases: &[Phase]) -> u64 {
        let waited: u64 = phases
            .iter()
            .map(|phase| self.chosen.waited_ns[*phase as usize])
            .sum();
        waited * 100 / self.chosen.wait_ns().max(1)
    }

    /// Waits for devices, of requests and of the tasks that they wait for.
    fn storage(&self) -> u64 {
        self.share(&[Phase::Queue, Phase::Device, Phase::Cache, Phase::Flush])
    }

    fn log(&self) -> u64 {
        self.share(&[Phase::Log])
    }

    fn throttle(&self) -> u64 {
        self.share(&[Phase::Throttle, Phase::Txg])
    }
}

/// Says where the time of requests in `window` went, and why: of one client or dataset (and those below it), or of all. `before` is what
/// disks are compared with.
#[must_use]
pub fn explain(
    window: &Span,
    before: &Span,
    client: Option<&str>,
    dataset: Option<&str>,
) -> Explanation {
    let is_chosen = |row: &&RequestSpan| {
        client.is_none_or(|client| row.client == client)
            && dataset.is_none_or(|dataset| {
                let rest = row.dataset.strip_prefix(dataset);
                rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
            })
    };
    let mut chosen = RequestSpan::default();
    let mut pools = Vec::new();
    for pool in &window.pools {
        let rows: Vec<_> = pool.requests.iter().filter(is_chosen).collect();
        for row in &rows {
            chosen.merge(row);
        }
        // A pool that does not answer has no requests either.
        if !rows.is_empty() || pool.unanswered > 0 {
            pools.push(pool);
        }
    }
    let question = Question {
        pools,
        chosen,
        client,
        seconds: window.seconds,
    };
    let mut findings = Vec::new();
    for pool in &question.pools {
        if pool.unanswered >= HUNG_SECONDS {
            findings.push(hung(pool));
        }
    }
    let quiet = question.chosen.wait_ns() / 10_000_000 < question.seconds.max(1) * QUIET_PERCENT;
    if !quiet {
        for pool in &question.pools {
            findings.extend(rules(&question, pool, before, window));
        }
    }
    findings.extend(network(window));
    findings.retain(|finding| finding.weight >= 10);
    findings.sort_by_key(|finding| Reverse(finding.weight));
    let likeliest = findings.first().map_or(0, |finding| finding.weight);
    findings.retain(|finding| finding.weight * 2 >= likeliest);
    summary(&question, findings, client.or(dataset))
}

fn summary(question: &Question<'_>, findings: Vec<Finding>, whose: Option<&str>) -> Explanation {
    let chosen = &question.chosen;
    let of = whose.map_or_else(String::new, |whose| format!(" of {whose}"));
    let mut sentence = match (chosen.requests, findings.is_empty()) {
        (0, true) => format!("There were no requests{of}."),
        (0, false) => String::new(),
        (requests, quiet) => {
            let mean_us = chosen.wait_ns() / chosen.waited.max(1) / 1000;
            let slow = if quiet { "Nothing was slow: " } else { "" };
            format!(
                "{slow}{} of {requests} requests{of} waited, {} each, 1 in 100 longer than {}.",
                chosen.waited,
                words_of_us(mean_us),
                words_of_us(percentile_us(&chosen.latency, 99)),
            )
        }
    };
    for finding in &findings {
        if !sentence.is_empty() {
            sentence.push(' ');
        }
        sentence.push_str(&finding.sentence);
    }
    let phases = PHASES.iter().zip(&chosen.waited_ns);
    Explanation {
        sentence,
        findings,
        seconds: question.seconds,
        requests: chosen.requests,
        waited: chosen.waited,
        wait_ns: chosen.wait_ns(),
        p50_us: percentile_us(&chosen.latency, 50),
        p99_us: percentile_us(&chosen.latency, 99),
        phases: phases
            .filter(|(_, ns)| **ns > 0)
            .map(|(phase, ns)| (phase.as_str().to_owned(), *ns))
            .collect(),
    }
}

fn words_of_us(us: u64) -> String {
    match us {
        0..1000 => format!("{us} us"),
        1000..10_000 => format!("{}.{} ms", us / 1000, us / 100 % 10),
        10_000..1_000_000 => format!("{} ms", us / 1000),
        _ => format!("{}.{} s", us / 1_000_000, us / 100_000 % 10),
    }
}

fn finding(cause: Cause, subject: &str, weight: u64, sentence: String) -> Finding {
    Finding {
        cause,
        subject: subject.to_owned(),
        weight: weight.min(100),
        sentence,
    }
}

fn hung(pool: &PoolSpan) -> Finding {
    let sentence = format!(
        "Pool '{}' did not answer for {} s: one of its disks hangs. 'zpool status {}' and the machine's log say which; 'zpool offline' \
        takes it out of a \
         pool with redundancy.",
        pool.name, pool.unanswered, pool.name
    );
    finding(Cause::HungPool, &pool.name, 100, sentence)
}

fn network(window: &Span) -> Option<Finding> {
    let percent = (window.network * 100).checked_div(window.network_max)?;
    if percent < NETWORK_PERCENT {
        return None;
    }
    let sentence = format!(
        "The network is at its limit: {} of {} MB/s in one direction. A faster or a second link helps; nothing in the pools does.",
        window.network / 1_000_000,
        window.network_max / 1_000_000
    );
    Some(finding(
        Cause::Network,
        "network",
        percent.min(100) * 3 / 5,
        sentence,
    ))
}

/// What the signs of one pool say.
fn rules(question: &Question<'_>, pool: &PoolSpan, before: &Span, window: &Span) -> Vec<Finding> {
    let (storage, log, throttle) = (question.storage(), question.log(), question.throttle());
    let all = storage + log + throttle;
    [
        slow_disk(question, pool, before),
        log_gone(question, pool),
        full(pool, all),
        scrub(pool, all),
        dedup(pool, all),
        small_memory(pool, window, storage + of_reads(pool, question)),
        sync_writes(pool, log),
        greedy(question, pool, all),
        writers(pool, throttle),
        busy(question, pool, storage),
        contention(question, pool),
        compute(question, pool),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// How long a disk has for an operation, in nanoseconds: the mean time of one, less where several are under way at once. A disk that has
/// much to do takes long for each, and ends as many as before; it is not slow.
fn service_ns(disk: &DiskSpan, seconds: u64) -> u64 {
    let each = (seconds * 1_000_000_000).checked_div(disk.reads + disk.writes);
    disk.mean_ns().min(each.unwrap_or(u64::MAX))
}

/// A disk that is slower than those beside it, than it was, or than any disk should be.
fn slow_disk(question: &Question<'_>, pool: &PoolSpan, before: &Span) -> Option<Finding> {
    let worked = |disk: &&DiskSpan| disk.reads + disk.writes >= OPERATIONS_MIN;
    let slowest = pool
        .disks
        .iter()
        .filter(worked)
        .max_by_key(|disk| disk.mean_ns())?;
    let mean = slowest.mean_ns();
    let beside = pool.disks.iter().filter(worked);
    let beside = beside.filter(|disk| disk.name != slowest.name && disk.role == slowest.role);
    let mut others: Vec<u64> = beside.map(DiskSpan::mean_ns).collect();
    others.sort_unstable();
    let median = others.get(others.len() / 2).copied();
    let earlier = before.pools.iter().find(|other| other.name == pool.name);
    let earlier = earlier
        .and_then(|pool| pool.disks.iter().find(|disk| disk.name == slowest.name))
        .filter(worked)
        .map(|disk| service_ns(disk, before.seconds));
    let service = service_ns(slowest, question.seconds);
    let than = |what: &str, own: u64, other: u64| {
        (mean >= SLOW_BESIDE_NS && own >= SLOW_FACTOR * other.max(1))
            .then(|| format!("{} {what}", words_of_us(other / 1000)))
    };
    let alone = || {
        let is_slow = mean >= SLOW_ALONE_NS && service >= SLOW_SERVICE_NS;
        is_slow.then(|| "tens at most on healthy disks".to_owned())
    };
    let compared = median
        .and_then(|median| than("on the others", mean, median))
        .or_else(|| earlier.and_then(|earlier| than("before", service, earlier)))
        .or_else(alone)?;
    let has_log = pool.flags & HAS_LOG != 0;
    let weight = match slowest.role.as_str() {
        "log" => question.log() + question.share(&[Phase::Flush]),
        "cache" => question.share(&[Phase::Device, Phase::Cache]),
        _ if has_log => question.storage() + question.throttle(),
        _ => question.storage() + question.throttle() + question.log(),
    };
    let sentence = format!(
        "Disk {} of pool '{}' is slow: an operation takes {} ({compared}). Look at its SMART values and cables; 'zpool replace {} {} NEW' \
        replaces it.",
        slowest.name,
        pool.name,
        words_of_us(mean / 1000),
        pool.name,
        slowest.name
    );
    Some(finding(
        Cause::SlowDisk,
        &slowest.name,
        weight * 95 / 100,
        sentence,
    ))
}

fn log_gone(question: &Question<'_>, pool: &PoolSpan) -> Option<Finding> {
    let weight = question.log() + question.throttle() + question.share(&[Phase::Flush]);
    if pool.flags & LOG_GONE == 0 || weight < 20 {
        return None;
    }
    let sentence = format!(
        "The log device of pool '{}' is gone: synchronous writes wait for the disks of the pool. Nothing acknowledged is lost while the \
        appliance runs; bring \
         the device back ('zpool online') or replace it ('zpool replace'); 'zpool status {}' names it.",
        pool.name, pool.name
    );
    Some(finding(Cause::LogGone, &pool.name, weight + 20, sentence))
}

/// What writers do not get of a pool.
// OpenZFS: module/zfs/spa_misc.c, spa_get_slop_space: a 32nd, at least 128 MiB, at most half of a small pool.
fn reserve(size: u64) -> u64 {
    (size / 32).max((128 << 20).min(size / 2))
}

fn full(pool: &PoolSpan, weight: u64) -> Option<Finding> {
    let percent = (pool.used * 100).checked_div(pool.size - reserve(pool.size))?;
    if percent < FULL_PERCENT {
        return None;
    }
    let sentence = format!(
        "Pool '{}' is {percent}% full: free space is in small pieces, and finding some takes writes long. Remove snapshots or files that \
        are not needed, or add \
         devices; below 80% it is fast again.",
        pool.name
    );
    Some(finding(
        Cause::FullPool,
        &pool.name,
        weight * 84 / 100,
        sentence,
    ))
}

fn scrub(pool: &PoolSpan, weight: u64) -> Option<Finding> {
    let device: u64 = pool.disks.iter().map(|disk| disk.device_ns).sum();
    let scan: u64 = pool.disks.iter().map(|disk| disk.scan_ns).sum();
    let share = (scan * 100).checked_div(device)?;
    if pool.flags & SCANNING == 0 || share < 30 {
        return None;
    }
    let sentence = format!(
        "A scrub or resilver of pool '{}' takes {share}% of its disks' time. A scrub can wait: 'zpool scrub -p {}' pauses it; a resilver should not.",
        pool.name, pool.name
    );
    Some(finding(
        Cause::Scrub,
        &pool.name,
        weight * 88 / 100,
        sentence,
    ))
}

fn dedup(pool: &PoolSpan, weight: u64) -> Option<Finding> {
    let misses = pool.data_misses + pool.metadata_misses;
    let of_metadata = (pool.metadata_misses * 100).checked_div(misses)?;
    let on_dedup: u64 = pool
        .disks
        .iter()
        .filter(|disk| disk.role == "dedup")
        .map(|disk| disk.reads)
        .sum();
    if pool.flags & DEDUP == 0 || of_metadata < 60 && on_dedup < misses / 3 {
        return None;
    }
    let sentence = format!(
        "The table of deduplicated blocks of pool '{}' does not fit into the cache: {of_metadata}% of the blocks read from the disks were \
        metadata. More \
         memory ('--memory'), or a dedup vdev ('zpool add {} dedup mirror ...') helps; 'zfs set dedup=off' ends it for new data.",
        pool.name, pool.name
    );
    Some(finding(
        Cause::DedupTable,
        &pool.name,
        weight * 86 / 100,
        sentence,
    ))
}

/// The percentage of the waiting that checksums and decompression of what was read from the disks took: what is in the cache needs none.
fn of_reads(pool: &PoolSpan, question: &Question<'_>) -> u64 {
    let read: u64 = pool.disks.iter().map(|disk| disk.read_bytes).sum();
    let written: u64 = pool.disks.iter().map(|disk| disk.written_bytes).sum();
    let compute = question.share(&[Phase::Compute]);
    (compute * read).checked_div(read + written).unwrap_or(0)
}

fn small_memory(pool: &PoolSpan, window: &Span, weight: u64) -> Option<Finding> {
    let misses = pool.data_misses + pool.metadata_misses;
    // Of metadata, which each read needs several times, most is in any cache.
    let miss_percent = (pool.data_misses * 100).checked_div(pool.data_misses + pool.hits)?;
    let again = (pool.ghost_hits * 100).checked_div(misses)?;
    let pressed = pool.cache_limit * 10 < pool.cache_set * 7;
    if miss_percent < 20 || again < 25 && !pressed {
        return None;
    }
    let sentence = format!(
        "The cache is too small: of pool '{}', {miss_percent}% of what was read came from the disks, {again}% of that had been in the \
        cache not long before. It \
         has {} MiB, the whole process {} MiB of memory; '--memory' gives it more, 'sanbox arcstat' says how much would help.",
        pool.name,
        pool.cache_limit >> 20,
        window.memory_max >> 20
    );
    Some(finding(
        Cause::SmallMemory,
        &pool.name,
        weight * 80 / 100,
        sentence,
    ))
}

fn sync_writes(pool: &PoolSpan, log: u64) -> Option<Finding> {
    if log < 30 {
        return None;
    }
    if pool.flags & (HAS_LOG | LOG_GONE) == 0 {
        let sentence = format!(
            "Synchronous writes wait for the disks: pool '{}' has no log device. A fast one with power-loss protection takes them: 'zpool \
            add {} log DEVICE'.",
            pool.name, pool.name
        );
        return Some(finding(
            Cause::SyncWithoutLog,
            &pool.name,
            log * 75 / 100,
            sentence,
        ));
    }
    let log_disks = pool.disks.iter().filter(|disk| disk.role == "log");
    let slowest =
        log_disks.max_by_key(|disk| disk.mean_ns() + disk.flush_ns / disk.flushes.max(1))?;
    let mean_us = (slowest.mean_ns() + slowest.flush_ns / slowest.flushes.max(1)) / 1000;
    let sentence = format!(
        "Synchronous writes wait for the log device {} of pool '{}': a block and its flush take {}. A device with power-loss protection is faster.",
        slowest.name,
        pool.name,
        words_of_us(mean_us)
    );
    Some(finding(
        Cause::SlowLog,
        &slowest.name,
        log * 65 / 100,
        sentence,
    ))
}

/// One client that has most of the waiting, where there are others.
fn greedy(question: &Question<'_>, pool: &PoolSpan, weight: u64) -> Option<Finding> {
    let mut clients: BTreeMap<&str, RequestSpan> = BTreeMap::new();
    for row in &pool.requests {
        clients.entry(row.client.as_str()).or_default().merge(row);
    }
    if clients.len() < 2 {
        return None;
    }
    let all: u64 = clients.values().map(|sum| sum.requests).sum();
    let waits: u64 = clients.values().map(RequestSpan::wait_ns).sum();
    let (name, most) = clients.iter().max_by_key(|(_, sum)| sum.wait_ns())?;
    let share = most.wait_ns() * 100 / waits.max(1);
    let of_requests = most.requests * 100 / all.max(1);
    if share < 60 || of_requests < 60 || question.client == Some(*name) {
        return None;
    }
    let sentence = format!(
        "Client {name} has {of_requests}% of the requests to pool '{}' and {share}% of the waiting: it has most of what the disks do. \
        What it does then is in \
         'sanbox why --client {name}'.",
        pool.name
    );
    Some(finding(
        Cause::GreedyClient,
        name,
        weight * 78 / 100,
        sentence,
    ))
}

fn writers(pool: &PoolSpan, throttle: u64) -> Option<Finding> {
    if throttle < 30 {
        return None;
    }
    let written: u64 = pool.disks.iter().map(|disk| disk.written_bytes).sum();
    let sentence = format!(
        "Writers are faster than the disks of pool '{}': {} MiB wait in memory of {} that may, and writers are held up. The disks took {} \
        MiB. More or faster \
         disks help; a burst that is over helps itself.",
        pool.name,
        pool.dirty >> 20,
        pool.dirty_max >> 20,
        written >> 20
    );
    Some(finding(
        Cause::TxgThrottle,
        &pool.name,
        throttle * 60 / 100,
        sentence,
    ))
}

fn busy(question: &Question<'_>, pool: &PoolSpan, storage: u64) -> Option<Finding> {
    if storage < 30 {
        return None;
    }
    let busiest = pool
        .disks
        .iter()
        .max_by_key(|disk| disk.device_ns + disk.queue_ns)?;
    let sentence = format!(
        "The disks of pool '{}' have enough to do: {} reads and {} writes in {} s at {}, {} each. More disks, or more cache for reads, help.",
        pool.name,
        busiest.reads,
        busiest.writes,
        question.seconds,
        busiest.name,
        words_of_us(busiest.mean_ns() / 1000)
    );
    Some(finding(
        Cause::BusyDisks,
        &pool.name,
        storage * 45 / 100,
        sentence,
    ))
}

fn contention(question: &Question<'_>, pool: &PoolSpan) -> Option<Finding> {
    let weight = question.share(&[Phase::Lock]);
    let dataset = pool
        .requests
        .iter()
        .max_by_key(|row| row.waited_ns[Phase::Lock as usize])?;
    if weight < 30 {
        return None;
    }
    let sentence = format!(
        "Requests to '{}' wait for each other: they change the same file, directory or range of a volume.",
        dataset.dataset
    );
    Some(finding(
        Cause::Contention,
        &dataset.dataset,
        weight * 70 / 100,
        sentence,
    ))
}

fn compute(question: &Question<'_>, pool: &PoolSpan) -> Option<Finding> {
    let weight = question.share(&[Phase::Compute]);
    if weight < 30 {
        return None;
    }
    let sentence = format!(
        "Compression and checksums of pool '{}' take the time: the processors are busy. 'zfs set compression=lz4' is lighter than zstd and gzip.",
        pool.name
    );
    Some(finding(
        Cause::Compute,
        &pool.name,
        weight * 70 / 100,
        sentence,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// A minute of a mirror of two disks with 1000 requests of one client that waited in these phases, in percent.
    fn minute(phases: &[(Phase, u64)]) -> Span {
        let disk = |name: &str| DiskSpan {
            name: name.to_owned(),
            top: "mirror-0".to_owned(),
            role: "data".to_owned(),
            reads: 1000,
            writes: 1000,
            device_ns: 2000 * 4 * MS,
            ..DiskSpan::default()
        };
        let mut row = RequestSpan {
            dataset: "tank/vm".to_owned(),
            client: "192.0.2.1".to_owned(),
            protocol: "nfs".to_owned(),
            requests: 1000,
            waited: 900,
            ..RequestSpan::default()
        };
        for (phase, percent) in phases {
            row.waited_ns[*phase as usize] = percent * 900 * MS;
        }
        row.latency[16] = 900;
        Span {
            seconds: 60,
            memory: 500 << 20,
            memory_max: 1 << 30,
            network: 1_000_000,
            network_max: 125_000_000,
            pools: vec![PoolSpan {
                name: "tank".to_owned(),
                used: 50 << 30,
                size: 100 << 30,
                cache_limit: 256 << 20,
                cache_set: 256 << 20,
                hits: 100_000,
                disks: vec![disk("/dev/sda"), disk("/dev/sdb")],
                requests: vec![row],
                ..PoolSpan::default()
            }],
        }
    }

    fn first(window: &Span, client: Option<&str>) -> (Option<Cause>, String) {
        let explained = explain(window, &Span::default(), client, None);
        let cause = explained.findings.first().map(|finding| finding.cause);
        (cause, explained.sentence)
    }

    /// The causes with their signs, as samples have them: the right one comes first.
    #[test]
    fn each_cause_is_named() {
        let device = [(Phase::Device, 60), (Phase::Queue, 30), (Phase::Lock, 10)];
        let logs = [(Phase::Log, 80), (Phase::Flush, 15), (Phase::Device, 5)];
        let throttled = [(Phase::Throttle, 90), (Phase::Device, 10)];
        let check = |name: &str, span: Span, client: Option<&str>, cause: Cause, word: &str| {
            let (found, sentence) = first(&span, client);
            assert_eq!(found, Some(cause), "{name}: {sentence}");
            assert!(sentence.contains(word), "{name}: {sentence}");
        };
        for phases in [&device, &logs] {
            let mut slow = minute(phases);
            slow.pools[0].disks[1].device_ns *= 20;
            check("slow disk", slow, None, Cause::SlowDisk, "/dev/sdb");
        }
        let mut full = minute(&throttled);
        full.pools[0].used = 97 << 30;
        check("full pool", full, None, Cause::FullPool, "100% full");
        let mut gone = minute(&logs);
        gone.pools[0].flags = LOG_GONE;
        check("log gone", gone, None, Cause::LogGone, "zpool online");
        check(
            "throttle",
            minute(&throttled),
            None,
            Cause::TxgThrottle,
            "held up",
        );
        let mut small = minute(&device);
        small.pools[0].data_misses = 80_000;
        small.pools[0].ghost_hits = 60_000;
        check(
            "small memory",
            small.clone(),
            None,
            Cause::SmallMemory,
            "--memory",
        );
        // Processors that have much else to do: checksums of what is read again and again take longer than the disks.
        let checked = [(Phase::Compute, 62), (Phase::Device, 38)];
        for (read_bytes, cause) in [(1 << 30, Cause::SmallMemory), (0, Cause::Compute)] {
            let mut small = minute(&checked);
            small.pools[0].data_misses = 80_000;
            small.pools[0].ghost_hits = 60_000;
            for disk in &mut small.pools[0].disks {
                (disk.read_bytes, disk.written_bytes) = (read_bytes, 1 << 20);
            }
            check("computed", small, None, cause, "");
        }
        let mut greedy = minute(&device);
        let row = greedy.pools[0].requests[0].clone();
        greedy.pools[0].requests.push(RequestSpan {
            client: "192.0.2.66".to_owned(),
            requests: 50_000,
            waited_ns: [0, 0, 0, 0, 0, 0, 9_000_000 * MS, 0, 0, 0],
            ..row
        });
        check(
            "greedy",
            greedy,
            Some("192.0.2.1"),
            Cause::GreedyClient,
            "192.0.2.66",
        );
        check(
            "sync",
            minute(&logs),
            None,
            Cause::SyncWithoutLog,
            "zpool add tank log",
        );
        let mut dedup = small;
        dedup.pools[0].flags = DEDUP;
        dedup.pools[0].data_misses = 1000;
        dedup.pools[0].metadata_misses = 80_000;
        check("dedup", dedup, None, Cause::DedupTable, "dedup vdev");
        let mut scrub = minute(&device);
        scrub.pools[0].flags = SCANNING;
        for disk in &mut scrub.pools[0].disks {
            disk.scan_ns = disk.device_ns * 7 / 10;
        }
        check("scrub", scrub, None, Cause::Scrub, "zpool scrub -p tank");
        let mut network = minute(&[(Phase::Device, 0)]);
        network.network = 120_000_000;
        check("network", network, None, Cause::Network, "at its limit");
        let mut hung = minute(&device);
        hung.pools[0].unanswered = 20;
        check(
            "hung",
            hung,
            None,
            Cause::HungPool,
            "did not answer for 20 s",
        );
        check(
            "busy",
            minute(&device),
            None,
            Cause::BusyDisks,
            "enough to do",
        );
        check(
            "lock",
            minute(&[(Phase::Lock, 90)]),
            None,
            Cause::Contention,
            "tank/vm",
        );
        check(
            "compute",
            minute(&[(Phase::Compute, 90)]),
            None,
            Cause::Compute,
            "lz4",
        );
        let mut log = minute(&logs);
        log.pools[0].flags = HAS_LOG;
        log.pools[0].disks.push(DiskSpan {
            name: "/dev/nvme0".to_owned(),
            role: "log".to_owned(),
            writes: 900,
            device_ns: 900 * 3 * MS,
            flushes: 900,
            flush_ns: 900 * 10 * MS,
            ..DiskSpan::default()
        });
        check("slow log", log, None, Cause::SlowLog, "13 ms");
    }

    #[test]
    fn a_disk_that_was_faster_before_is_slow_without_others_beside_it() {
        let mut before = minute(&[]);
        let mut slow = minute(&[(Phase::Device, 90)]);
        for span in [&mut before, &mut slow] {
            span.pools[0].disks.pop();
        }
        let alone = explain(&slow, &before, None, None);
        assert_eq!(alone.findings[0].cause, Cause::BusyDisks);
        slow.pools[0].disks[0].device_ns *= 10;
        let compared = explain(&slow, &before, None, None);
        assert_eq!(compared.findings[0].cause, Cause::SlowDisk);
        assert!(
            compared.sentence.contains("4.0 ms before"),
            "{}",
            compared.sentence
        );
    }

    #[test]
    fn a_disk_with_much_to_do_is_not_slow() {
        let mut before = minute(&[]);
        let mut loaded = minute(&[(Phase::Throttle, 90)]);
        for span in [&mut before, &mut loaded] {
            span.pools[0].disks.pop();
        }
        let before_disk = &mut before.pools[0].disks[0];
        before_disk.device_ns = 2000 * 12 * MS;
        // Twenty at once: each takes 240 ms, and one ends every 12 ms.
        let disk = &mut loaded.pools[0].disks[0];
        (disk.reads, disk.writes, disk.device_ns) = (0, 5000, 5000 * 240 * MS);
        for before in [&before, &Span::default()] {
            let explained = explain(&loaded, before, None, None);
            let first = &explained.findings[0];
            assert_eq!(first.cause, Cause::TxgThrottle, "{}", explained.sentence);
        }
        // One ends every 120 ms.
        let disk = &mut loaded.pools[0].disks[0];
        (disk.writes, disk.device_ns) = (500, 500 * 2400 * MS);
        for before in [&before, &Span::default()] {
            let explained = explain(&loaded, before, None, None);
            let first = &explained.findings[0];
            assert_eq!(first.cause, Cause::SlowDisk, "{}", explained.sentence);
        }
    }

    #[test]
    fn quiet_times_are_said_to_be() {
        let mut quiet = minute(&[(Phase::Device, 1)]);
        quiet.pools[0].requests[0].waited = 2;
        let explained = explain(&quiet, &Span::default(), None, Some("tank"));
        assert!(explained.findings.is_empty());
        assert!(
            explained
                .sentence
                .starts_with("Nothing was slow: 2 of 1000"),
            "{}",
            explained.sentence
        );
        let nothing = explain(&quiet, &Span::default(), Some("192.0.2.9"), None);
        assert_eq!(nothing.sentence, "There were no requests of 192.0.2.9.");
        let below = explain(&quiet, &Span::default(), None, Some("tank/v"));
        assert_eq!(below.requests, 0);
    }
}
