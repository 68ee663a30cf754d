//! What the pools do now: a sample a second, taken once however many clients look, and only while any does.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use engine::{
    CacheStats, Client, DatasetStatistics, L2Stats, LatencyHistogram, LogBlocks, PHASES,
    PoolStatistics, PoolStatus, RequestTimes, VdevStats, VdevStatus, ZilStats,
};
use futures_util::future::join_all;
use serde::Serialize;
use tokio::sync::broadcast::{self, Receiver};

use super::Api;
use crate::database::seconds_since_epoch;
use crate::jobs::Notice;

/// Time between samples.
const EVERY: Duration = Duration::from_secs(1);
/// Samples on their way to a client that is slow to take them.
const SAMPLES_MAX: usize = 4;
/// Datasets and clients of a sample, the busiest.
const ROWS_MAX: usize = 100;
/// Percentile that is shown beside the mean, in thousandths.
const PERCENTILE: u64 = 990;

/// Takes the samples.
pub(super) struct Sampler {
    samples: broadcast::Sender<Notice>,
    runs: AtomicBool,
}

impl Default for Sampler {
    fn default() -> Self {
        Self {
            samples: broadcast::channel(SAMPLES_MAX).0,
            runs: AtomicBool::new(false),
        }
    }
}

impl Sampler {
    /// Follows the samples; begins to take them if no task does.
    pub(super) fn follow(api: &Arc<Api>) -> Receiver<Notice> {
        let receiver = api.sampler.samples.subscribe();
        if !api.sampler.runs.swap(true, Ordering::AcqRel) {
            tokio::spawn(run(Arc::downgrade(api)));
        }
        receiver
    }
}

/// Samples until the last follower is gone.
async fn run(api: Weak<Api>) {
    let mut before = Moment::default();
    let mut each = tokio::time::interval(EVERY);
    each.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        each.tick().await;
        let Some(api) = api.upgrade() else {
            return;
        };
        if api.sampler.samples.receiver_count() == 0 {
            api.sampler.runs.store(false, Ordering::Release);
            // One that came between the count and the mark saw the mark of this task.
            if api.sampler.samples.receiver_count() == 0
                || api.sampler.runs.swap(true, Ordering::AcqRel)
            {
                return;
            }
        }
        let now = Moment::take(&api).await;
        if let Some(sample) = now.since(&before)
            && let Ok(data) = serde_json::to_string(&sample)
        {
            // All may have left meanwhile.
            let _ = api.sampler.samples.send(Notice {
                event: "sample",
                data,
            });
        }
        before = now;
    }
}

/// All counters at a moment.
#[derive(Default)]
struct Moment {
    at: Option<Instant>,
    pools: Vec<PoolMoment>,
}

struct PoolMoment {
    name: String,
    guid: u64,
    /// None when the pool did not answer.
    seen: Option<(PoolStatus, PoolStatistics)>,
}

impl Moment {
    async fn take(api: &Api) -> Self {
        let pools = api.backend.open_pools();
        let take = async |pool: &engine::PoolHandle| PoolMoment {
            name: pool.name().to_owned(),
            guid: pool.guid(),
            seen: api
                .asking
                .glance(pool, |pool| async move {
                    Ok((pool.status().await?, pool.statistics().await?))
                })
                .await,
        };
        let pools = join_all(pools.iter().map(take)).await;
        Self {
            at: Some(Instant::now()),
            pools,
        }
    }

    fn since(&self, before: &Self) -> Option<Sample> {
        let interval = self.at?.duration_since(before.at?);
        let rate = Rate::over(interval);
        let pool = |now: &PoolMoment| {
            let mut earlier = before.pools.iter();
            let earlier = earlier.find(|earlier| earlier.guid == now.guid);
            PoolSample::of(now, earlier.and_then(|earlier| earlier.seen.as_ref()), rate)
        };
        Some(Sample {
            time: seconds_since_epoch(),
            milliseconds: u64::try_from(interval.as_millis()).unwrap_or(u64::MAX),
            pools: self.pools.iter().map(pool).collect(),
        })
    }
}

/// Turns what was counted between two moments into what a second has.
#[derive(Clone, Copy)]
struct Rate {
    nanoseconds: u128,
}

impl Rate {
    fn over(interval: Duration) -> Self {
        Self {
            nanoseconds: interval.as_nanos().max(1),
        }
    }

    /// By the second. A counter that is lower than before began anew.
    fn of(self, now: u64, before: u64) -> u64 {
        let counted = u128::from(now.checked_sub(before).unwrap_or(now));
        u64::try_from(counted * 1_000_000_000 / self.nanoseconds).unwrap_or(u64::MAX)
    }
}

/// A sample: everything by the second, unless it says otherwise.
#[derive(Serialize)]
struct Sample {
    /// Seconds since 1970.
    time: u64,
    /// The time it covers.
    milliseconds: u64,
    pools: Vec<PoolSample>,
}

#[derive(Serialize)]
struct PoolSample {
    name: String,
    /// False: the pool did not answer, and there is nothing else.
    answers: bool,
    devices: Vec<DeviceSample>,
    datasets: Vec<DatasetSample>,
    clients: Vec<ClientSample>,
    cache: Option<CacheSample>,
    log: Option<LogSample>,
    txg: Option<TxgSample>,
}

/// A vdev, interior ones and the pool itself too.
#[derive(Serialize)]
struct DeviceSample {
    name: String,
    guid: String,
    depth: u8,
    /// `data`, `special`, `dedup`, `log`, `cache` or `spare`.
    role: &'static str,
    leaf: bool,
    health: &'static str,
    read_ops: u64,
    write_ops: u64,
    read_bytes: u64,
    write_bytes: u64,
    /// Microseconds, whole requests: mean and 99th percentile.
    read_mean_us: u64,
    read_99_us: u64,
    write_mean_us: u64,
    write_99_us: u64,
    /// Requests in the queue and at the device at the moment of the sample.
    pending: u32,
    active: u32,
    /// Percent of the time in which a request was at the device, at most 100.
    busy: u64,
}

#[derive(Serialize)]
struct DatasetSample {
    name: String,
    reads: u64,
    writes: u64,
    read_bytes: u64,
    write_bytes: u64,
    commits: u64,
}

/// A client at a dataset.
#[derive(Serialize)]
struct ClientSample {
    client: String,
    dataset: String,
    requests: u64,
    /// Percent of its requests that waited for anything.
    waited: u64,
    /// Microseconds that a request waited, on the average.
    wait_mean_us: u64,
    /// What most of that time was waited for.
    phase: Option<&'static str>,
}

#[derive(Serialize)]
struct CacheSample {
    bytes: u64,
    limit_bytes: u64,
    limit_set_bytes: u64,
    overhead_bytes: u64,
    uncompressed_bytes: u64,
    compressed_bytes: u64,
    /// Data used once, data used often, metadata used once, metadata used often.
    list_bytes: [u64; 4],
    /// What was evicted of those not long ago, and is remembered without its content.
    ghost_bytes: [u64; 4],
    /// Reads by the second.
    hits: u64,
    misses: u64,
    ghost_hits: u64,
    evicted_bytes: u64,
    /// Percent of the reads answered from memory; since the pool was opened when there were none.
    data_percent: Option<u64>,
    metadata_percent: Option<u64>,
    prefetch_percent: Option<u64>,
    /// Caches of other sizes: halves of this one, and percent of the reads they would have answered since the pool was opened.
    what_if: Vec<(u64, u64)>,
    l2: Option<L2Sample>,
}

#[derive(Serialize)]
struct L2Sample {
    allocated_bytes: u64,
    index_bytes: u64,
    hits: u64,
    misses: u64,
    read_bytes: u64,
    write_bytes: u64,
    errors: u64,
}

#[derive(Serialize)]
struct LogSample {
    commits: u64,
    batches: u64,
    normal_bytes: u64,
    separate_bytes: u64,
    /// Since the pool was opened: commits that waited for a transaction group.
    fallbacks: u64,
}

#[derive(Serialize)]
struct TxgSample {
    open: u64,
    synced: u64,
    dirty_bytes: u64,
    dirty_bytes_max: u64,
    transactions: u64,
    delayed: u64,
    throttled: u64,
}

impl PoolSample {
    fn of(now: &PoolMoment, before: Option<&(PoolStatus, PoolStatistics)>, rate: Rate) -> Self {
        let mut sample = Self {
            name: now.name.clone(),
            answers: now.seen.is_some(),
            devices: Vec::new(),
            datasets: Vec::new(),
            clients: Vec::new(),
            cache: None,
            log: None,
            txg: None,
        };
        // Without an earlier moment everything is as it was: nothing happened.
        let Some((status, seen)) = &now.seen else {
            return sample;
        };
        let (earlier_status, earlier) = match before {
            Some((status, seen)) => (status, seen),
            None => (status, seen),
        };
        sample.devices = devices(status, earlier_status, rate);
        sample.datasets = datasets(seen, earlier, rate);
        sample.clients = clients(seen, earlier, rate);
        sample.cache = Some(CacheSample::of(seen, earlier, rate));
        sample.log = Some(log_of(&logs(seen), &logs(earlier), rate));
        sample.txg = Some(TxgSample {
            open: seen.open_txg,
            synced: seen.synced_txg,
            dirty_bytes: seen.dirty_bytes,
            dirty_bytes_max: seen.dirty_bytes_max,
            transactions: rate.of(seen.transactions.begun, earlier.transactions.begun),
            delayed: rate.of(seen.transactions.delayed, earlier.transactions.delayed),
            throttled: rate.of(seen.transactions.throttled, earlier.transactions.throttled),
        });
        sample
    }
}

fn devices(status: &PoolStatus, before: &PoolStatus, rate: Rate) -> Vec<DeviceSample> {
    fn note<'a>(vdev: &'a VdevStatus, known: &mut BTreeMap<u64, &'a VdevStats>) {
        known.insert(vdev.guid, &vdev.detail);
        vdev.children.iter().for_each(|child| note(child, known));
    }
    fn add(
        vdev: &VdevStatus,
        place: (u8, &'static str),
        known: &BTreeMap<u64, &VdevStats>,
        rate: Rate,
        found: &mut Vec<DeviceSample>,
    ) {
        let (depth, role) = place;
        let own = if vdev.is_log {
            "log"
        } else {
            vdev.bias.as_str().unwrap_or(role)
        };
        let before = known.get(&vdev.guid).copied().unwrap_or(&vdev.detail);
        found.push(device(vdev, before, (depth, own), rate));
        for child in &vdev.children {
            add(child, (depth.saturating_add(1), own), known, rate, found);
        }
    }
    let mut known = BTreeMap::new();
    let all = [&before.root].into_iter();
    all.chain(&before.caches)
        .chain(&before.spares)
        .for_each(|vdev| note(vdev, &mut known));
    let mut found = Vec::new();
    add(&status.root, (0, "data"), &known, rate, &mut found);
    for cache in &status.caches {
        add(cache, (1, "cache"), &known, rate, &mut found);
    }
    found
}

fn device(
    vdev: &VdevStatus,
    before: &VdevStats,
    place: (u8, &'static str),
    rate: Rate,
) -> DeviceSample {
    let now = &*vdev.detail;
    let (read_mean_us, read_99_us) = latency(&now.read_total, &before.read_total);
    let (write_mean_us, write_99_us) = latency(&now.write_total, &before.write_total);
    let at_device = |stats: &VdevStats| -> u64 {
        let waits = stats.classes.iter().map(|class| class.disk_wait.sum_ns);
        waits.fold(stats.flushes.sum_ns, u64::saturating_add)
    };
    // A billion nanoseconds a second are all of it.
    let busy = rate.of(at_device(now), at_device(before)) / 10_000_000;
    DeviceSample {
        name: vdev.name.clone(),
        guid: vdev.guid.to_string(),
        depth: place.0,
        role: place.1,
        leaf: vdev.children.is_empty(),
        health: vdev.health.as_str(),
        read_ops: rate.of(now.read_ops, before.read_ops),
        write_ops: rate.of(now.write_ops, before.write_ops),
        read_bytes: rate.of(now.read_bytes, before.read_bytes),
        write_bytes: rate.of(now.write_bytes, before.write_bytes),
        read_mean_us,
        read_99_us,
        write_mean_us,
        write_99_us,
        pending: now.classes.iter().map(|class| class.pending).sum(),
        active: now.classes.iter().map(|class| class.active).sum(),
        busy: busy.min(100),
    }
}

/// Mean and 99th percentile of what was counted between two moments, in microseconds.
fn latency(now: &LatencyHistogram, before: &LatencyHistogram) -> (u64, u64) {
    let count = now.count.saturating_sub(before.count);
    if count == 0 {
        return (0, 0);
    }
    let mean = now.sum_ns.saturating_sub(before.sum_ns) / count;
    let wanted = (count * PERCENTILE).div_ceil(1000);
    let mut passed = 0;
    let pairs = now.buckets.iter().zip(&before.buckets).enumerate();
    for (bucket, (now, before)) in pairs {
        passed += now.saturating_sub(*before);
        if passed >= wanted {
            // The middle of the bucket.
            return (mean / 1000, ((3_u64 << bucket) / 2) / 1000);
        }
    }
    (mean / 1000, 0)
}

fn datasets(now: &PoolStatistics, before: &PoolStatistics, rate: Rate) -> Vec<DatasetSample> {
    let sample = |dataset: &DatasetStatistics| {
        let mut earlier = before.datasets.iter();
        let earlier = earlier.find(|earlier| earlier.id == dataset.id);
        let earlier = earlier.unwrap_or(dataset);
        let (traffic, then) = (&dataset.traffic, &earlier.traffic);
        DatasetSample {
            name: dataset.name.clone(),
            reads: rate.of(traffic.reads, then.reads),
            writes: rate.of(traffic.writes, then.writes),
            read_bytes: rate.of(traffic.read_bytes, then.read_bytes),
            write_bytes: rate.of(traffic.written_bytes, then.written_bytes),
            commits: rate.of(dataset.log.commits, earlier.log.commits),
        }
    };
    let mut all: Vec<_> = now.datasets.iter().map(sample).collect();
    all.sort_by(|one, other| {
        let load = |row: &DatasetSample| row.read_bytes + row.write_bytes + row.reads + row.writes;
        load(other)
            .cmp(&load(one))
            .then_with(|| one.name.cmp(&other.name))
    });
    all.truncate(ROWS_MAX);
    all
}

fn clients(now: &PoolStatistics, before: &PoolStatistics, rate: Rate) -> Vec<ClientSample> {
    let mut known: BTreeMap<(u64, Client), RequestTimes> = BTreeMap::new();
    for dataset in &before.datasets {
        for (client, times) in &dataset.requests {
            known.insert((dataset.id, *client), *times);
        }
    }
    let mut all = Vec::new();
    for dataset in &now.datasets {
        for (client, times) in &dataset.requests {
            let earlier = known.get(&(dataset.id, *client));
            let earlier = earlier.copied().unwrap_or_default();
            all.push(client_of(&dataset.name, *client, times, &earlier, rate));
        }
    }
    all.retain(|row| row.requests > 0);
    all.sort_by_key(|row| std::cmp::Reverse(row.requests));
    all.truncate(ROWS_MAX);
    all
}

fn client_of(
    dataset: &str,
    client: Client,
    now: &RequestTimes,
    before: &RequestTimes,
    rate: Rate,
) -> ClientSample {
    let made = now.requests.saturating_sub(before.requests);
    let waited = now.waited.saturating_sub(before.waited);
    let waits: Vec<u64> = now
        .waited_ns
        .iter()
        .zip(&before.waited_ns)
        .map(|(now, before)| now.saturating_sub(*before))
        .collect();
    let all: u64 = waits.iter().sum();
    let longest = waits.iter().zip(PHASES).max_by_key(|(wait, _)| **wait);
    ClientSample {
        client: client.to_string(),
        dataset: dataset.to_owned(),
        requests: rate.of(now.requests, before.requests),
        waited: (waited * 100).checked_div(made).unwrap_or(0),
        wait_mean_us: all.checked_div(made).unwrap_or(0) / 1000,
        phase: longest
            .filter(|(wait, _)| **wait > 0)
            .map(|(_, phase)| phase.as_str()),
    }
}

impl CacheSample {
    fn of(now: &PoolStatistics, before: &PoolStatistics, rate: Rate) -> Self {
        let (cache, then) = (&now.cache, &before.cache);
        let answered = |stats: &CacheStats| stats.hits.total() + stats.joined.total();
        let ghosts = |stats: &CacheStats| stats.recent_ghost_hits + stats.frequent_ghost_hits;
        Self {
            bytes: cache.bytes as u64,
            limit_bytes: cache.limit_bytes as u64,
            limit_set_bytes: cache.limit_set_bytes as u64,
            overhead_bytes: cache.overhead_bytes as u64,
            uncompressed_bytes: cache.uncompressed_bytes,
            compressed_bytes: cache.compressed_bytes as u64,
            list_bytes: cache.list_bytes,
            ghost_bytes: cache.ghost_bytes,
            hits: rate.of(answered(cache), answered(then)),
            misses: rate.of(cache.misses.total(), then.misses.total()),
            ghost_hits: rate.of(ghosts(cache), ghosts(then)),
            evicted_bytes: rate.of(cache.evicted_bytes, then.evicted_bytes),
            data_percent: share(cache, then, |counts| counts.demand_data),
            metadata_percent: share(cache, then, |counts| counts.demand_metadata),
            prefetch_percent: share(cache, then, |counts| {
                counts.prefetch_data + counts.prefetch_metadata
            }),
            what_if: cache
                .what_if
                .iter()
                .filter(|model| model.reads > 0)
                .map(|model| (model.halves, model.hits * 100 / model.reads))
                .collect(),
            l2: (!now.devices.is_empty()).then(|| l2_of(&now.l2, &before.l2, rate)),
        }
    }
}

/// Percent of the reads of a purpose that were answered from memory: between two moments, or ever when there were none between them.
fn share(
    now: &CacheStats,
    before: &CacheStats,
    purpose: fn(&engine::ByPurpose) -> u64,
) -> Option<u64> {
    let answered = |stats: &CacheStats| purpose(&stats.hits) + purpose(&stats.joined);
    let percent = |hits: u64, misses: u64| (hits * 100).checked_div(hits + misses);
    let lately = percent(
        answered(now).saturating_sub(answered(before)),
        purpose(&now.misses).saturating_sub(purpose(&before.misses)),
    );
    lately.or_else(|| percent(answered(now), purpose(&now.misses)))
}

fn l2_of(now: &L2Stats, before: &L2Stats, rate: Rate) -> L2Sample {
    L2Sample {
        allocated_bytes: now.allocated_bytes,
        index_bytes: now.index_bytes as u64,
        hits: rate.of(now.hits, before.hits),
        misses: rate.of(now.misses, before.misses),
        read_bytes: rate.of(now.read_bytes, before.read_bytes),
        write_bytes: rate.of(now.write_bytes, before.write_bytes),
        errors: now.io_errors + now.checksum_errors,
    }
}

/// The logs of all datasets of a pool together.
fn logs(seen: &PoolStatistics) -> ZilStats {
    let mut sum = ZilStats::default();
    for dataset in &seen.datasets {
        sum.add(&dataset.log);
    }
    sum
}

fn log_of(now: &ZilStats, before: &ZilStats, rate: Rate) -> LogSample {
    let written =
        |now: &LogBlocks, before: &LogBlocks| rate.of(now.written_bytes, before.written_bytes);
    LogSample {
        commits: rate.of(now.commits, before.commits),
        batches: rate.of(now.batches, before.batches),
        normal_bytes: written(&now.normal, &before.normal),
        separate_bytes: written(&now.separate, &before.separate),
        fallbacks: now.fallbacks + now.stalls,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_by_the_second_and_counters_may_begin_anew() {
        let rate = Rate::over(Duration::from_millis(500));
        assert_eq!(rate.of(110, 100), 20);
        assert_eq!(rate.of(3, 100), 6);
        assert_eq!(rate.of(7, 7), 0);
    }

    #[test]
    fn latencies_are_those_between_the_moments() {
        let mut before = LatencyHistogram::default();
        before.record(1_000_000_000);
        let mut now = before.clone();
        for _ in 0..100 {
            now.record(100_000);
        }
        let (mean, percentile) = latency(&now, &before);
        assert_eq!(mean, 100);
        // 100 us are in the bucket of 65,536 to 131,071 ns.
        assert_eq!(percentile, 98);
        assert_eq!(latency(&before, &before), (0, 0));
    }

    #[test]
    fn a_client_is_shown_with_what_it_waited_for_most() {
        let mut now = RequestTimes {
            requests: 20,
            waited: 10,
            ..RequestTimes::default()
        };
        now.waited_ns[engine::Phase::Log as usize] = 15_000_000;
        now.waited_ns[engine::Phase::Queue as usize] = 5_000_000;
        let rate = Rate::over(Duration::from_secs(1));
        let client = Client::Address("nfs", [10, 0, 0, 7].into());
        let row = client_of("tank/fs", client, &now, &RequestTimes::default(), rate);
        assert_eq!((row.requests, row.waited, row.wait_mean_us), (20, 50, 1000));
        assert_eq!((row.phase, row.client.as_str()), (Some("log"), "10.0.0.7"));
    }
}
