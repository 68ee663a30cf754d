//! Metrics for Prometheus at `/metrics` of a loopback port: under the names that dashboards for ZFS use (those of zfs_exporter and of
//! node_exporter's zfs collector), and ours, which begin with `sanbox_`.
//!
//! Guarantees: a scrape looks only at what is in memory and at the datasets' properties; slow or silent clients are let go.

use std::fmt::Write as _;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use engine::property::{DatasetKind, Value};
use engine::{DatasetFilter, Health, IoClass, PHASES, PoolHandle, PropertyQuery, VdevStatus};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::appliance::Appliance;
use crate::cli::own::sample::{PoolSample, Sample};

/// Scrapes at once; more wait.
const AT_ONCE: usize = 4;
/// How long a client may take to ask or to take the answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// Longest request looked at.
const REQUEST_MAX: usize = 8 << 10;
/// Datasets told of, at most.
const DATASETS_MAX: usize = 10_000;

/// Answers scrapes until it is aborted.
pub(crate) async fn serve(listener: TcpListener, appliance: Arc<Appliance>) {
    let places = Arc::new(Semaphore::new(AT_ONCE));
    loop {
        let Ok(place) = places.clone().acquire_owned().await else {
            return;
        };
        match listener.accept().await {
            Ok((stream, _)) => {
                let appliance = appliance.clone();
                tokio::spawn(async move {
                    let _place = place;
                    // Whoever hangs up has had enough.
                    let _ = timeout(3 * PATIENCE, answer(stream, &appliance)).await;
                });
            }
            Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    }
}

/// Listens at a port of this machine only.
pub(crate) async fn listen(port: u16) -> std::io::Result<TcpListener> {
    TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, port))).await
}

async fn answer(mut stream: TcpStream, appliance: &Appliance) -> std::io::Result<()> {
    let mut request = Vec::new();
    while !request.windows(4).any(|end| end == b"\r\n\r\n") && request.len() < REQUEST_MAX {
        let mut piece = [0; 1024];
        let read = timeout(PATIENCE, stream.read(&mut piece)).await??;
        if read == 0 {
            break;
        }
        request.extend_from_slice(&piece[..read]);
    }
    let line = request
        .split(|byte| *byte == b'\r')
        .next()
        .unwrap_or_default();
    let line = String::from_utf8_lossy(line);
    let mut words = line.split_whitespace();
    let (method, path) = (words.next(), words.next().unwrap_or_default());
    let path = path.split('?').next().unwrap_or_default();
    let (status, kind, body) = match (method, path) {
        (Some("GET" | "HEAD"), "/metrics") => {
            let kind = "text/plain; version=0.0.4; charset=utf-8";
            ("200 OK", kind, scrape(appliance).await)
        }
        (Some("GET" | "HEAD"), "/") => (
            "200 OK",
            "text/plain",
            "sanbox: metrics are at /metrics\n".to_owned(),
        ),
        (Some("GET" | "HEAD"), _) => ("404 Not Found", "text/plain", "not found\n".to_owned()),
        _ => (
            "405 Method Not Allowed",
            "text/plain",
            "only GET\n".to_owned(),
        ),
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    let body = if method == Some("HEAD") { "" } else { &body };
    let whole = format!("{head}{body}");
    timeout(PATIENCE, stream.write_all(whole.as_bytes())).await??;
    stream.shutdown().await
}

/// The text of a scrape.
pub(crate) async fn scrape(appliance: &Appliance) -> String {
    let sample = Sample::take(appliance.open_pools()).await;
    let mut page = Page::default();
    cache(&mut page, &sample);
    for pool in &sample.pools {
        pool_metrics(&mut page, pool);
    }
    for handle in appliance.open_pools() {
        datasets(&mut page, &handle).await;
    }
    if let Some(bytes) = crate::memory::process_bytes() {
        page.gauge(
            "process_resident_memory_bytes",
            "Resident memory",
            &[],
            bytes,
        );
    }
    let ceiling = appliance.memory_plan().ceiling;
    page.gauge(
        "sanbox_memory_ceiling_bytes",
        "What the process stays below",
        &[],
        ceiling,
    );
    page.text()
}

/// A page of metrics: families in the order of their first line.
#[derive(Default)]
struct Page {
    families: Vec<(String, String)>,
}

impl Page {
    fn gauge(&mut self, name: &str, help: &str, labels: &[(&str, &str)], value: u64) {
        self.line(name, help, "gauge", labels, &value.to_string());
    }

    fn counter(&mut self, name: &str, help: &str, labels: &[(&str, &str)], value: u64) {
        self.line(name, help, "counter", labels, &value.to_string());
    }

    /// As node_exporter shows what it reads from the kernel.
    fn untyped(&mut self, name: &str, labels: &[(&str, &str)], value: u64) {
        let help = format!("kstat {name}");
        self.line(name, &help, "untyped", labels, &value.to_string());
    }

    fn seconds(&mut self, name: &str, help: &str, labels: &[(&str, &str)], nanoseconds: u64) {
        let value = format!(
            "{}.{:09}",
            nanoseconds / 1_000_000_000,
            nanoseconds % 1_000_000_000
        );
        self.line(name, help, "counter", labels, &value);
    }

    fn line(&mut self, name: &str, help: &str, kind: &str, labels: &[(&str, &str)], value: &str) {
        let at = match self.families.iter().position(|(known, _)| known == name) {
            Some(at) => at,
            None => {
                let head = format!("# HELP {name} {help}\n# TYPE {name} {kind}\n");
                self.families.push((name.to_owned(), head));
                self.families.len() - 1
            }
        };
        let text = &mut self.families[at].1;
        text.push_str(name);
        for (index, (label, value)) in labels.iter().enumerate() {
            let before = if index == 0 { '{' } else { ',' };
            let value = value
                .replace('\\', "\\\\")
                .replace('"', "\\\"")
                .replace('\n', "\\n");
            let _ = write!(text, "{before}{label}=\"{value}\"");
        }
        if !labels.is_empty() {
            text.push('}');
        }
        let _ = writeln!(text, " {value}");
    }

    fn text(self) -> String {
        self.families.into_iter().map(|(_, text)| text).collect()
    }
}

/// The cache, as node_exporter's `node_zfs_arc_*` and ours.
fn cache(page: &mut Page, sample: &Sample) {
    let (cache, l2) = sample.cache();
    let size = |bytes: usize| bytes as u64;
    let metadata = |counts: &engine::ByPurpose| counts.demand_metadata + counts.prefetch_metadata;
    let [data_recent, data_frequent, meta_recent, meta_frequent] = cache.list_bytes;
    let [
        data_recent_ghost,
        data_frequent_ghost,
        meta_recent_ghost,
        meta_frequent_ghost,
    ] = cache.ghost_bytes;
    for (name, value) in [
        ("hits", cache.hits.total()),
        ("iohits", cache.joined.total()),
        ("misses", cache.misses.total()),
        ("demand_data_hits", cache.hits.demand_data),
        ("demand_data_iohits", cache.joined.demand_data),
        ("demand_data_misses", cache.misses.demand_data),
        ("demand_metadata_hits", cache.hits.demand_metadata),
        ("demand_metadata_iohits", cache.joined.demand_metadata),
        ("demand_metadata_misses", cache.misses.demand_metadata),
        ("prefetch_data_hits", cache.hits.prefetch_data),
        ("prefetch_data_misses", cache.misses.prefetch_data),
        ("prefetch_metadata_hits", cache.hits.prefetch_metadata),
        ("prefetch_metadata_misses", cache.misses.prefetch_metadata),
        ("metadata_hits", metadata(&cache.hits)),
        ("mru_hits", cache.recent_hits),
        ("mru_ghost_hits", cache.recent_ghost_hits),
        ("mfu_hits", cache.frequent_hits),
        ("mfu_ghost_hits", cache.frequent_ghost_hits),
        ("deleted", cache.evictions),
        ("hash_elements", cache.blocks as u64 + cache.ghosts),
        ("p", cache.recent_data_target + cache.recent_metadata_target),
        ("meta", cache.metadata_target),
        ("c", size(cache.limit_bytes)),
        ("c_min", 0),
        ("c_max", size(cache.limit_set_bytes)),
        ("size", size(cache.bytes)),
        ("compressed_size", size(cache.compressed_bytes)),
        ("uncompressed_size", cache.uncompressed_bytes),
        ("overhead_size", size(cache.open_bytes)),
        ("hdr_size", size(cache.overhead_bytes)),
        ("data_size", data_recent + data_frequent),
        ("metadata_size", size(cache.metadata_bytes)),
        ("mru_size", data_recent + meta_recent),
        ("mru_evictable_data", data_recent),
        ("mru_evictable_metadata", meta_recent),
        ("mru_ghost_size", data_recent_ghost + meta_recent_ghost),
        ("mru_ghost_evictable_data", data_recent_ghost),
        ("mru_ghost_evictable_metadata", meta_recent_ghost),
        ("mfu_size", data_frequent + meta_frequent),
        ("mfu_evictable_data", data_frequent),
        ("mfu_evictable_metadata", meta_frequent),
        ("mfu_ghost_size", data_frequent_ghost + meta_frequent_ghost),
        ("mfu_ghost_evictable_data", data_frequent_ghost),
        ("mfu_ghost_evictable_metadata", meta_frequent_ghost),
        ("l2_hits", l2.hits),
        ("l2_misses", l2.misses),
        ("l2_feeds", l2.feeds),
        ("l2_read_bytes", l2.read_bytes),
        ("l2_write_bytes", l2.write_bytes),
        ("l2_asize", l2.allocated_bytes),
        ("l2_hdr_size", size(l2.index_bytes)),
        ("l2_io_error", l2.io_errors),
        ("l2_cksum_bad", l2.checksum_errors),
        ("l2_rebuild_bufs", l2.rebuilt_blocks),
        ("l2_log_blk_writes", l2.log_blocks_written),
    ] {
        page.untyped(&format!("node_zfs_arc_{name}"), &[], value);
    }
    page.counter(
        "sanbox_prefetch_useful_total",
        "Blocks read ahead and then asked for",
        &[],
        cache.prefetch_useful,
    );
    page.counter(
        "sanbox_prefetch_wasted_total",
        "Blocks read ahead in vain",
        &[],
        cache.prefetch_wasted,
    );
    for model in &cache.what_if {
        let size = match model.halves {
            1 => "0.5",
            2 => "1",
            4 => "2",
            _ => "4",
        };
        let labels = [("size", size)];
        let help = "Sampled reads that a cache of so many times the size would have seen";
        page.counter("sanbox_arc_whatif_reads_total", help, &labels, model.reads);
        let help = "Sampled reads that a cache of so many times the size would have answered";
        page.counter("sanbox_arc_whatif_hits_total", help, &labels, model.hits);
    }
}

fn pool_metrics(page: &mut Page, pool: &PoolSample) {
    let status = &pool.status;
    let name = status.name.as_str();
    let labels = [("pool", name)];
    let root = &status.root;
    // zfs_exporter: collector/pool.go, names and the numbers of health
    let health = match status.health {
        // A pool is neither of the two words of spares.
        Health::Online | Health::Available | Health::InUse => 0,
        Health::Degraded => 1,
        Health::Faulted => 2,
        Health::Offline => 3,
        Health::Unavail => 4,
        Health::Removed => 5,
        Health::Suspended => 6,
    };
    let free = root.size_bytes.saturating_sub(root.allocated_bytes);
    page.gauge(
        "zfs_pool_health",
        "Health status code for the pool [0: ONLINE, 1: DEGRADED, 2: FAULTED, 3: OFFLINE, 4: UNAVAIL, 5: REMOVED, 6: SUSPENDED].",
        &labels,
        health,
    );
    for (metric, help, value) in [
        (
            "zfs_pool_allocated_bytes",
            "Amount of storage in bytes used within the pool.",
            root.allocated_bytes,
        ),
        (
            "zfs_pool_free_bytes",
            "The amount of free space in bytes available in the pool.",
            free,
        ),
        (
            "zfs_pool_size_bytes",
            "Total size in bytes of the storage pool.",
            root.size_bytes,
        ),
        (
            "zfs_pool_readonly",
            "Read-only status of the pool [0: read-write, 1: read-only].",
            u64::from(status.readonly),
        ),
    ] {
        page.gauge(metric, help, &labels, value);
    }
    if let Some(percent) = root.fragmentation_percent {
        let help = "The fragmentation ratio of the pool.";
        let ratio = format!("{}.{:02}", percent / 100, percent % 100);
        page.line(
            "zfs_pool_fragmentation_ratio",
            help,
            "gauge",
            &labels,
            &ratio,
        );
    }
    for state in [
        Health::Online,
        Health::Degraded,
        Health::Faulted,
        Health::Offline,
        Health::Removed,
        Health::Unavail,
        Health::Suspended,
    ] {
        let word = state.as_str().to_lowercase();
        let labels = [("zpool", name), ("state", word.as_str())];
        let is = u64::from(state == status.health);
        page.gauge("node_zfs_zpool_state", "kstat.zfs.misc.state", &labels, is);
    }
    page.gauge(
        "sanbox_pool_dirty_bytes",
        "Changed and not on the devices yet",
        &labels,
        pool.seen.dirty_bytes,
    );
    page.gauge(
        "sanbox_pool_dirty_bytes_max",
        "Dirty bytes at which writers wait",
        &labels,
        pool.seen.dirty_bytes_max,
    );
    page.counter(
        "sanbox_pool_txg",
        "Last transaction group on the devices",
        &labels,
        pool.seen.synced_txg,
    );
    page.gauge(
        "sanbox_pool_data_errors",
        "Damaged files or objects known",
        &labels,
        status.data_errors,
    );
    vdev(page, name, root);
    let mut logs = [0; 5];
    for dataset in &pool.seen.datasets {
        let log = &dataset.log;
        let counts = [
            log.commits,
            log.batches,
            log.records,
            log.bytes,
            log.fallbacks,
        ];
        for (sum, count) in logs.iter_mut().zip(counts) {
            *sum += count;
        }
        for (client, times) in &dataset.requests {
            let client = client.to_string();
            let labels = [
                ("dataset", dataset.name.as_str()),
                ("client", client.as_str()),
            ];
            let help = "Requests answered";
            page.counter("sanbox_requests_total", help, &labels, times.requests);
            for (phase, waited) in PHASES.iter().zip(&times.waited_ns) {
                let labels = [
                    ("dataset", dataset.name.as_str()),
                    ("client", client.as_str()),
                    ("phase", phase.as_str()),
                ];
                let help = "Where the time of requests went";
                page.seconds("sanbox_request_wait_seconds_total", help, &labels, *waited);
            }
        }
    }
    let names = [
        "commit_count",
        "commit_writer_count",
        "itx_count",
        "itx_copied_bytes",
    ];
    for (name, value) in names.iter().zip(logs) {
        page.untyped(&format!("node_zfs_zil_zil_{name}"), &labels, value);
    }
    let help = "Commits that waited for their group since the log could not be written";
    page.counter("sanbox_log_fallbacks_total", help, &labels, logs[4]);
}

fn vdev(page: &mut Page, pool: &str, status: &VdevStatus) {
    if status.kind != "root" {
        let labels = [("pool", pool), ("vdev", status.name.as_str())];
        for (name, help, value) in [
            ("sanbox_vdev_reads_total", "Reads", status.io.read_ops),
            ("sanbox_vdev_writes_total", "Writes", status.io.write_ops),
            (
                "sanbox_vdev_read_bytes_total",
                "Bytes read",
                status.io.read_bytes,
            ),
            (
                "sanbox_vdev_written_bytes_total",
                "Bytes written",
                status.io.write_bytes,
            ),
            (
                "sanbox_vdev_read_errors_total",
                "Reads that failed",
                status.read_errors,
            ),
            (
                "sanbox_vdev_write_errors_total",
                "Writes that failed",
                status.write_errors,
            ),
            (
                "sanbox_vdev_checksum_errors_total",
                "Blocks with wrong bytes",
                status.checksum_errors,
            ),
            (
                "sanbox_vdev_slow_ios_total",
                "Operations longer than 30 s",
                status.slow_ios,
            ),
        ] {
            page.counter(name, help, &labels, value);
        }
        for class in IoClass::ALL {
            let word = match class {
                IoClass::SyncRead => "sync_read",
                IoClass::SyncWrite => "sync_write",
                IoClass::AsyncRead => "async_read",
                IoClass::AsyncWrite => "async_write",
                IoClass::Scrub => "scrub",
                IoClass::Trim => "trim",
            };
            let labels = [
                ("pool", pool),
                ("vdev", status.name.as_str()),
                ("class", word),
            ];
            let class = &status.detail.classes[class.index()];
            let help = "Time in the queue of the device";
            let waited = class.queue_wait.sum_ns;
            page.seconds("sanbox_vdev_queue_seconds_total", help, &labels, waited);
            let help = "Time at the device";
            let taken = class.disk_wait.sum_ns;
            page.seconds("sanbox_vdev_device_seconds_total", help, &labels, taken);
        }
    }
    for child in &status.children {
        vdev(page, pool, child);
    }
}

/// Properties of datasets, as zfs_exporter shows them.
async fn datasets(page: &mut Page, pool: &PoolHandle) {
    // zfs_exporter: collector/dataset.go
    const PROPERTIES: &[(&str, &str, &str)] = &[
        (
            "available",
            "zfs_dataset_available_bytes",
            "The amount of space in bytes available to the dataset and all its children.",
        ),
        (
            "logicalreferenced",
            "zfs_dataset_logical_referenced_bytes",
            "The amount of space in bytes that is \"logically\" accessible by this dataset.",
        ),
        (
            "logicalused",
            "zfs_dataset_logical_used_bytes",
            "The amount of space in bytes that is \"logically\" consumed by this dataset and all its descendents.",
        ),
        (
            "quota",
            "zfs_dataset_quota_bytes",
            "The maximum amount of space in bytes this dataset and its descendents can consume.",
        ),
        (
            "referenced",
            "zfs_dataset_referenced_bytes",
            "The amount of data in bytes that is accessible by this dataset, which may or may not be shared with other datasets in the pool.",
        ),
        (
            "used",
            "zfs_dataset_used_bytes",
            "The amount of space in bytes consumed by this dataset and all its descendents.",
        ),
        (
            "usedbydataset",
            "zfs_dataset_used_by_dataset_bytes",
            "The amount of space in bytes used by this dataset itself, which would be freed if the dataset were destroyed.",
        ),
        (
            "volsize",
            "zfs_dataset_volume_size_bytes",
            "The logical size in bytes of this volume.",
        ),
        (
            "written",
            "zfs_dataset_written_bytes",
            "The amount of referenced space in bytes written to this dataset since the previous snapshot.",
        ),
    ];
    let name = pool.name();
    let filter = DatasetFilter {
        root: name.to_owned(),
        depth: None,
        kinds: vec![DatasetKind::Filesystem, DatasetKind::Volume],
    };
    let names = PROPERTIES.iter().map(|(name, ..)| (*name).to_owned());
    let Ok(list) = pool
        .datasets(&filter, &PropertyQuery::Named(names.collect()))
        .await
    else {
        return;
    };
    for dataset in list.iter().take(DATASETS_MAX) {
        let kind = if dataset.kind == DatasetKind::Volume {
            "volume"
        } else {
            "filesystem"
        };
        let labels = [
            ("name", dataset.name.as_str()),
            ("pool", name),
            ("type", kind),
        ];
        for (property, metric, help) in PROPERTIES {
            if let Some(Value::Number(number)) =
                dataset.property(property).map(|property| &property.value)
            {
                page.gauge(metric, help, &labels, *number);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_stay_together_and_labels_are_escaped() {
        let mut page = Page::default();
        page.gauge("a", "first", &[("pool", "ta\"nk")], 1);
        page.counter("b", "second", &[], 2);
        page.gauge("a", "first", &[("pool", "x"), ("vdev", "y")], 3);
        page.seconds("c", "third", &[], 1_500_000_000);
        assert_eq!(
            page.text(),
            "# HELP a first\n# TYPE a gauge\na{pool=\"ta\\\"nk\"} 1\na{pool=\"x\",vdev=\"y\"} 3\n\
             # HELP b second\n# TYPE b counter\nb 2\n\
             # HELP c third\n# TYPE c counter\nc 1.500000000\n"
        );
    }
}
