//! Pools and datasets under the names of zfs_exporter: properties, as `zpool get` and `zfs get` have them.
// zfs_exporter: collector/pool.go, dataset.go, transform.go (names, help, the numbers of health)

use std::time::Instant;

use engine::pool_property::{PropertyKind, PropertyValue};
use engine::property::{DatasetKind, Value};
use engine::{DatasetFilter, Health, PoolHandle, PoolStatus, PropertyQuery};

use super::Page;

/// Datasets that are listed, at most.
const DATASETS_MAX: usize = 10_000;

/// What a property's number means.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Unit {
    /// As it is.
    Plain,
    /// How many times what is stored is larger than the space that it takes, in hundredths; the metric is the inverse.
    Multiplier,
}

/// Property, rest of the metric's name, help, unit.
type Row = (&'static str, &'static str, &'static str, Unit);

const DATASET: &[Row] = &[
    (
        "available",
        "available_bytes",
        "The amount of space in bytes available to the dataset and all its children.",
        Unit::Plain,
    ),
    (
        "compressratio",
        "compression_ratio",
        "The ratio of compressed size vs uncompressed size for this dataset.",
        Unit::Multiplier,
    ),
    (
        "logicalreferenced",
        "logical_referenced_bytes",
        "The amount of space that is \"logically\" accessible by this dataset. See the \"referenced_bytes\" property.",
        Unit::Plain,
    ),
    (
        "logicalused",
        "logical_used_bytes",
        "The amount of space in bytes that is \"logically\" consumed by this dataset and all its descendents. See the \"used_bytes\" property.",
        Unit::Plain,
    ),
    (
        "quota",
        "quota_bytes",
        "The maximum amount of space in bytes this dataset and its descendents can consume.",
        Unit::Plain,
    ),
    (
        "refcompressratio",
        "referenced_compression_ratio",
        "The ratio of compressed size vs uncompressed size for the referenced space of this dataset. See also the \"compression_ratio\" property.",
        Unit::Multiplier,
    ),
    (
        "referenced",
        "referenced_bytes",
        "The amount of data in bytes that is accessible by this dataset, which may or may not be shared with other datasets in the pool.",
        Unit::Plain,
    ),
    (
        "refquota",
        "referenced_quota_bytes",
        "The maximum amount of space in bytes this dataset can consume.",
        Unit::Plain,
    ),
    (
        "refreservation",
        "referenced_reservation_bytes",
        "The minimum amount of space in bytes guaranteed to this dataset.",
        Unit::Plain,
    ),
    (
        "reservation",
        "reservation_bytes",
        "The minimum amount of space in bytes guaranteed to a dataset and its descendants.",
        Unit::Plain,
    ),
    (
        "used",
        "used_bytes",
        "The amount of space in bytes consumed by this dataset and all its descendents.",
        Unit::Plain,
    ),
    (
        "usedbychildren",
        "used_by_children_bytes",
        "The amount of space in bytes used by children of this dataset, which would be freed if all the dataset's children were destroyed.",
        Unit::Plain,
    ),
    (
        "usedbydataset",
        "used_by_dataset_bytes",
        "The amount of space in bytes used by this dataset itself, which would be freed if the dataset were destroyed.",
        Unit::Plain,
    ),
    (
        "usedbyrefreservation",
        "used_by_reference_reservation_bytes",
        "The amount of space in bytes used by a refreservation set on this dataset, which would be freed if the refreservation was removed.",
        Unit::Plain,
    ),
    (
        "usedbysnapshots",
        "used_by_snapshot_bytes",
        "The amount of space in bytes consumed by snapshots of this dataset.",
        Unit::Plain,
    ),
    (
        "volsize",
        "volume_size_bytes",
        "The logical size in bytes of this volume.",
        Unit::Plain,
    ),
    (
        "written",
        "written_bytes",
        "The amount of referenced space in bytes written to this dataset since the previous snapshot.",
        Unit::Plain,
    ),
];

/// Property, rest of the metric's name, help.
const POOL: &[(&str, &str, &str)] = &[
    ("capacity", "capacity_ratio", "Ratio of pool space used."),
    (
        "dedupratio",
        "deduplication_ratio",
        "The ratio of deduplicated size vs undeduplicated size for data in this pool.",
    ),
    (
        "expandsize",
        "expand_size_bytes",
        "Amount of uninitialized space within the pool or device that can be used to increase the total capacity of the pool.",
    ),
    (
        "freeing",
        "freeing_bytes",
        "The amount of space in bytes remaining to be freed following the destruction of a file system or snapshot.",
    ),
    (
        "leaked",
        "leaked_bytes",
        "Number of leaked bytes in the pool.",
    ),
];

/// What a pool's status says.
pub(super) fn pool(page: &mut Page, status: &PoolStatus) {
    let labels = [("pool", status.name.as_str())];
    let root = &status.root;
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
            root.size_bytes.saturating_sub(root.allocated_bytes),
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
        page.hundredths("zfs_pool_fragmentation_ratio", help, &labels, percent);
    }
}

/// Properties of pools and datasets, and how long it took to look them up.
pub(super) async fn datasets(page: &mut Page, pools: &[PoolHandle]) {
    let mut looked = |collector: &str, since: Instant, found: bool| {
        let labels = [("collector", collector)];
        let help = "zfs_exporter: Duration of a collector scrape.";
        let taken = u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let taken = format!("{}.{:09}", taken / 1_000_000_000, taken % 1_000_000_000);
        page.line(
            "zfs_scrape_collector_duration_seconds",
            help,
            "gauge",
            &labels,
            taken,
        );
        let help = "zfs_exporter: Whether a collector succeeded.";
        page.gauge(
            "zfs_scrape_collector_success",
            help,
            &labels,
            u64::from(found),
        );
    };
    let start = Instant::now();
    let mut properties = Vec::new();
    for pool in pools {
        properties.push((pool.name(), pool.properties().await));
    }
    looked(
        "pool",
        start,
        properties.iter().all(|(_, found)| found.is_ok()),
    );
    let mut lists = Vec::new();
    for (collector, kind) in [
        ("dataset-filesystem", DatasetKind::Filesystem),
        ("dataset-volume", DatasetKind::Volume),
    ] {
        let start = Instant::now();
        let first = lists.len();
        for pool in pools {
            let filter = DatasetFilter {
                root: pool.name().to_owned(),
                depth: None,
                kinds: vec![kind],
            };
            let names = DATASET.iter().map(|(name, ..)| (*name).to_owned());
            let query = PropertyQuery::Named(names.collect());
            lists.push((pool.name(), kind, pool.datasets(&filter, &query).await));
        }
        looked(
            collector,
            start,
            lists[first..].iter().all(|(.., found)| found.is_ok()),
        );
    }
    for (name, found) in properties {
        let found = found.unwrap_or_default();
        for &(property, metric, help) in POOL {
            let Some(entry) = found.iter().find(|entry| entry.name == property) else {
                continue;
            };
            let labels = [("pool", name)];
            let number = match entry.value {
                PropertyValue::Number(number) => number,
                PropertyValue::Absent => 0,
                PropertyValue::Text(_) => continue,
            };
            let metric = format!("zfs_pool_{metric}");
            match entry.kind {
                PropertyKind::Percent => page.hundredths(&metric, help, &labels, number),
                PropertyKind::Ratio => multiplier(page, &metric, help, &labels, number),
                _ => page.gauge(&metric, help, &labels, number),
            }
        }
    }
    for (pool, kind, found) in lists {
        let kind = match kind {
            DatasetKind::Volume => "volume",
            _ => "filesystem",
        };
        for dataset in found.unwrap_or_default().iter().take(DATASETS_MAX) {
            let labels = [
                ("name", dataset.name.as_str()),
                ("pool", pool),
                ("type", kind),
            ];
            for &(property, metric, help, unit) in DATASET {
                let value = dataset.property(property).map(|property| &property.value);
                let Some(Value::Number(number)) = value else {
                    continue;
                };
                let metric = format!("zfs_dataset_{metric}");
                if unit == Unit::Multiplier {
                    multiplier(page, &metric, help, &labels, *number);
                } else {
                    page.gauge(&metric, help, &labels, *number);
                }
            }
        }
    }
}

/// A factor given in hundredths, as the part of one that it leaves.
fn multiplier(page: &mut Page, metric: &str, help: &str, labels: &[(&str, &str)], number: u64) {
    let millionths = 100_000_000_u64.checked_div(number).unwrap_or(1_000_000);
    let value = format!("{}.{:06}", millionths / 1_000_000, millionths % 1_000_000);
    page.line(metric, help, "gauge", labels, value);
}
