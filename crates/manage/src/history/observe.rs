//! What pools tell of themselves, as spans of the history: the difference of two observations.

use engine::{
    AllocationBias, Client, Health, IoClass, PoolStatistics, PoolStatus, RequestTimes, VdevStatus,
};

use super::sample::{
    DEDUP, DiskSpan, HAS_LOG, LATENCY_BUCKETS, LOG_GONE, PoolSpan, RequestSpan, SCANNING,
};

/// A pool at a moment.
#[derive(Clone)]
pub struct Observation {
    /// Its vdevs.
    pub status: PoolStatus,
    /// Its cache, logs and requests.
    pub seen: PoolStatistics,
    /// Some of its data is deduplicated.
    pub dedup: bool,
}

/// Returns what was in a pool between two observations.
#[must_use]
pub fn pool_span(before: &Observation, now: &Observation) -> PoolSpan {
    let mut span = PoolSpan {
        name: now.status.name.clone(),
        flags: flags(now),
        used: now.status.root.allocated_bytes,
        size: now.status.root.size_bytes,
        dirty: now.seen.dirty_bytes,
        dirty_max: now.seen.dirty_bytes_max,
        ..PoolSpan::default()
    };
    cache(&mut span, &before.seen, &now.seen);
    let then = &before.status;
    for top in &now.status.root.children {
        let old = then.root.children.iter().find(|old| old.guid == top.guid);
        disks(&mut span.disks, top, old, role(top), &top.name);
    }
    for device in &now.status.caches {
        let old = then.caches.iter().find(|old| old.guid == device.guid);
        disks(&mut span.disks, device, old, "cache", &device.name);
    }
    for dataset in &now.seen.datasets {
        let mut datasets = before.seen.datasets.iter();
        let old = datasets.find(|old| old.id == dataset.id);
        for (client, times) in &dataset.requests {
            let same = |old: &&(Client, RequestTimes)| old.0 == *client;
            let old = old.and_then(|old| old.requests.iter().find(same));
            let since = since(times, old.map(|(_, times)| times));
            if since.requests > 0 {
                span.requests.push(RequestSpan {
                    dataset: dataset.name.clone(),
                    client: client.to_string(),
                    protocol: client.protocol().to_owned(),
                    ..since
                });
            }
        }
    }
    span.bound();
    span
}

fn flags(now: &Observation) -> u64 {
    let mut flags = 0;
    if now.status.scan.as_ref().is_some_and(|scan| scan.running) {
        flags |= SCANNING;
    }
    for top in &now.status.root.children {
        if top.is_log || top.bias == AllocationBias::Log {
            flags |= match top.health {
                Health::Online | Health::Degraded => HAS_LOG,
                _ => LOG_GONE,
            };
        }
    }
    if now.dedup {
        flags |= DEDUP;
    }
    flags
}

fn cache(span: &mut PoolSpan, before: &PoolStatistics, now: &PoolStatistics) {
    let (old, new) = (&before.cache, &now.cache);
    let data = |counts: &engine::ByPurpose| counts.demand_data + counts.prefetch_data;
    let metadata = |counts: &engine::ByPurpose| counts.demand_metadata + counts.prefetch_metadata;
    span.cache = new.bytes as u64;
    span.cache_limit = new.limit_bytes as u64;
    span.cache_set = new.limit_set_bytes as u64;
    span.hits = data(&new.hits).saturating_sub(data(&old.hits));
    span.data_misses = data(&new.misses).saturating_sub(data(&old.misses));
    span.metadata_misses = metadata(&new.misses).saturating_sub(metadata(&old.misses));
    let ghosts = |cache: &engine::CacheStats| cache.recent_ghost_hits + cache.frequent_ghost_hits;
    span.ghost_hits = ghosts(new).saturating_sub(ghosts(old));
    let (old, new) = (&before.transactions, &now.transactions);
    let held = |counts: &engine::TxgCounters| counts.throttled + counts.delayed;
    span.throttled = held(new).saturating_sub(held(old));
    span.synced = new.synced.saturating_sub(old.synced);
}

fn role(top: &VdevStatus) -> &'static str {
    match top.bias {
        _ if top.is_log => "log",
        AllocationBias::Log => "log",
        AllocationBias::Special => "special",
        AllocationBias::Dedup => "dedup",
        _ => "data",
    }
}

/// Adds the leaves of a vdev that did something.
fn disks(
    spans: &mut Vec<DiskSpan>,
    now: &VdevStatus,
    before: Option<&VdevStatus>,
    role: &str,
    top: &str,
) {
    for child in &now.children {
        let children = before.map_or(&[][..], |before| &before.children);
        let old = children.iter().find(|old| old.guid == child.guid);
        disks(spans, child, old, role, top);
    }
    if !now.children.is_empty() {
        return;
    }
    let nothing = VdevStatus::default();
    let old = before.unwrap_or(&nothing);
    let mut span = DiskSpan {
        name: now.name.clone(),
        top: top.to_owned(),
        role: role.to_owned(),
        reads: now.io.read_ops.saturating_sub(old.io.read_ops),
        writes: now.io.write_ops.saturating_sub(old.io.write_ops),
        read_bytes: now.io.read_bytes.saturating_sub(old.io.read_bytes),
        written_bytes: now.io.write_bytes.saturating_sub(old.io.write_bytes),
        flushes: now
            .detail
            .flushes
            .count
            .saturating_sub(old.detail.flushes.count),
        flush_ns: now
            .detail
            .flushes
            .sum_ns
            .saturating_sub(old.detail.flushes.sum_ns),
        slow: now.slow_ios.saturating_sub(old.slow_ios),
        errors: errors(now).saturating_sub(errors(old)),
        ..DiskSpan::default()
    };
    for class in IoClass::ALL {
        let (new, old) = (
            &now.detail.classes[class.index()],
            &old.detail.classes[class.index()],
        );
        let device = new.disk_wait.sum_ns.saturating_sub(old.disk_wait.sum_ns);
        span.device_ns += device;
        if matches!(class, IoClass::Scrub | IoClass::Rebuild) {
            span.scan_ns += device;
        }
        span.queue_ns += new.queue_wait.sum_ns.saturating_sub(old.queue_wait.sum_ns);
        let counts = new.disk_wait.buckets.iter().zip(&old.disk_wait.buckets);
        for (bucket, (new, old)) in counts.enumerate() {
            // From powers of two of nanoseconds to those of 1024 ns, which are about microseconds.
            let at = bucket.saturating_sub(10).min(LATENCY_BUCKETS - 1);
            span.latency[at] += new.saturating_sub(*old);
        }
    }
    if span.reads + span.writes + span.flushes + span.errors + span.slow > 0 {
        spans.push(span);
    }
}

fn errors(vdev: &VdevStatus) -> u64 {
    vdev.read_errors + vdev.write_errors + vdev.checksum_errors
}

fn since(now: &RequestTimes, before: Option<&RequestTimes>) -> RequestSpan {
    let before = before.copied().unwrap_or_default();
    let mut span = RequestSpan {
        requests: now.requests.saturating_sub(before.requests),
        waited: now.waited.saturating_sub(before.waited),
        ..RequestSpan::default()
    };
    let pairs = now.waited_ns.iter().zip(&before.waited_ns);
    for (sum, (now, before)) in span.waited_ns.iter_mut().zip(pairs) {
        *sum = now.saturating_sub(*before);
    }
    let pairs = now.latency.iter().zip(&before.latency);
    for (sum, (now, before)) in span.latency.iter_mut().zip(pairs) {
        *sum = now.saturating_sub(*before);
    }
    span
}
