//! What no other exporter has a name for: where the time of requests went, what other sizes of the cache would do, each device.

use engine::{IoClass, PHASES, VdevStatus};

use super::Page;
use crate::cli::sanbox::sample::{PoolSample, Sample};
use crate::memory::Plan;

/// All of them but memory.
pub(super) fn all(page: &mut Page, sample: &Sample) {
    let (cache, _) = sample.cache();
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
    for one in &sample.pools {
        pool(page, one);
    }
}

/// What the process takes, and what it may.
pub(super) fn memory(page: &mut Page, plan: &Plan) {
    if let Some(bytes) = crate::memory::process_bytes() {
        let help = "Resident memory";
        page.gauge("process_resident_memory_bytes", help, &[], bytes);
    }
    let help = "What the process stays below";
    page.gauge("sanbox_memory_ceiling_bytes", help, &[], plan.ceiling);
}

fn pool(page: &mut Page, pool: &PoolSample) {
    let status = &pool.status;
    let name = status.name.as_str();
    let labels = [("pool", name)];
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
    for top in std::iter::once(&status.root).chain(&status.caches) {
        vdev(page, name, top);
    }
    let mut fallbacks = 0;
    for dataset in &pool.seen.datasets {
        fallbacks += dataset.log.fallbacks + dataset.log.stalls;
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
    let help = "Commits that waited for their txg since the log could not be written";
    page.counter("sanbox_log_fallbacks_total", help, &labels, fallbacks);
}

fn vdev(page: &mut Page, pool: &str, status: &VdevStatus) {
    if status.kind != "root" {
        let labels = [("pool", pool), ("vdev", status.name.as_str())];
        let flushes = &status.detail.flushes;
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
                "sanbox_vdev_flushes_total",
                "Times it made durable what it had",
                flushes.count,
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
        let help = "Time of flushes";
        page.seconds(
            "sanbox_vdev_flush_seconds_total",
            help,
            &labels,
            flushes.sum_ns,
        );
        for class in IoClass::ALL {
            let word = match class {
                IoClass::SyncRead => "sync_read",
                IoClass::SyncWrite => "sync_write",
                IoClass::AsyncRead => "async_read",
                IoClass::AsyncWrite => "async_write",
                IoClass::Scrub => "scrub",
                IoClass::Trim => "trim",
                IoClass::Rebuild => "rebuild",
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
