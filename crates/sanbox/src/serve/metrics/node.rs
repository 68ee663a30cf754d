//! What node_exporter's zfs collector shows of the kernel module's statistics, under its names.
// node_exporter: collector/zfs_linux.go; OpenZFS: include/sys/arc_impl.h, zil.h, dataset_kstats.h (names)

use engine::{Health, IoClass, Traffic, ZilStats};

use super::Page;
use crate::cli::sanbox::sample::{PoolSample, Sample};

/// All of them.
pub(super) fn all(page: &mut Page, sample: &Sample) {
    cache(page, sample);
    let mut logs = ZilStats::default();
    let (mut begun, mut delayed, mut throttled) = (0, 0, 0);
    for pool in &sample.pools {
        for dataset in &pool.seen.datasets {
            logs.add(&dataset.log);
        }
        begun += pool.seen.transactions.begun;
        delayed += pool.seen.transactions.delayed;
        throttled += pool.seen.transactions.throttled;
    }
    for (name, value) in log(&logs) {
        page.untyped(&format!("node_zfs_zil_{name}"), &[], value);
    }
    for (name, value) in [
        ("dmu_tx_assigned", begun),
        ("dmu_tx_dirty_delay", delayed),
        ("dmu_tx_dirty_over_max", throttled),
    ] {
        page.untyped(&format!("node_zfs_dmu_tx_{name}"), &[], value);
    }
    for one in &sample.pools {
        pool(page, one);
    }
}

/// The cache.
fn cache(page: &mut Page, sample: &Sample) {
    let (cache, l2) = sample.cache();
    let size = |bytes: usize| bytes as u64;
    let metadata = |counts: &engine::ByPurpose| counts.demand_metadata + counts.prefetch_metadata;
    let prefetch = |counts: &engine::ByPurpose| counts.prefetch_data + counts.prefetch_metadata;
    let [data_recent, data_frequent, meta_recent, meta_frequent] = cache.list_bytes;
    let [
        data_recent_ghost,
        data_frequent_ghost,
        meta_recent_ghost,
        meta_frequent_ghost,
    ] = cache.ghost_bytes;
    let machine = crate::memory::available().unwrap_or(0);
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
        ("prefetch_data_iohits", cache.joined.prefetch_data),
        ("prefetch_data_misses", cache.misses.prefetch_data),
        ("prefetch_metadata_hits", cache.hits.prefetch_metadata),
        ("prefetch_metadata_iohits", cache.joined.prefetch_metadata),
        ("prefetch_metadata_misses", cache.misses.prefetch_metadata),
        (
            "predictive_prefetch",
            prefetch(&cache.hits) + prefetch(&cache.joined) + prefetch(&cache.misses),
        ),
        ("demand_hit_predictive_prefetch", cache.prefetch_useful),
        ("metadata_hits", metadata(&cache.hits)),
        ("metadata_misses", metadata(&cache.misses)),
        ("mru_hits", cache.recent_hits),
        ("mru_ghost_hits", cache.recent_ghost_hits),
        ("mfu_hits", cache.frequent_hits),
        ("mfu_ghost_hits", cache.frequent_ghost_hits),
        ("deleted", cache.evictions),
        // What does not happen here, in panels that divide by it or watch for it.
        ("mutex_miss", 0),
        ("evict_skip", 0),
        ("memory_throttle_count", 0),
        ("hash_elements", cache.blocks as u64 + cache.ghosts),
        ("p", cache.recent_data_target + cache.recent_metadata_target),
        ("meta", cache.metadata_target),
        ("pd", cache.recent_data_target),
        ("pm", cache.recent_metadata_target),
        ("c", size(cache.limit_bytes)),
        ("c_min", 0),
        ("c_max", size(cache.limit_set_bytes)),
        ("arc_meta_used", size(cache.metadata_bytes)),
        ("arc_meta_limit", size(cache.limit_set_bytes)),
        (
            "arc_no_grow",
            u64::from(cache.limit_bytes < cache.limit_set_bytes),
        ),
        ("size", size(cache.bytes)),
        ("compressed_size", size(cache.compressed_bytes)),
        ("uncompressed_size", cache.uncompressed_bytes),
        ("overhead_size", size(cache.open_bytes)),
        ("hdr_size", size(cache.overhead_bytes)),
        ("other_size", 0),
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
        ("memory_all_bytes", machine),
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
}

/// The counters of intent logs.
fn log(log: &ZilStats) -> [(&'static str, u64); 18] {
    [
        ("zil_commit_count", log.commits),
        ("zil_commit_writer_count", log.batches),
        ("zil_commit_error_count", log.fallbacks),
        ("zil_commit_stall_count", log.stalls),
        ("zil_itx_count", log.records),
        ("zil_itx_indirect_count", log.indirect),
        ("zil_itx_indirect_bytes", log.indirect_bytes),
        ("zil_itx_copied_count", log.copied),
        ("zil_itx_copied_bytes", log.copied_bytes),
        // Records always hold their data here.
        ("zil_itx_needcopy_count", 0),
        ("zil_itx_metaslab_normal_count", log.normal.count),
        ("zil_itx_metaslab_normal_bytes", log.normal.used_bytes),
        ("zil_itx_metaslab_normal_write", log.normal.written_bytes),
        ("zil_itx_metaslab_normal_alloc", log.normal.allocated_bytes),
        ("zil_itx_metaslab_slog_count", log.separate.count),
        ("zil_itx_metaslab_slog_bytes", log.separate.used_bytes),
        ("zil_itx_metaslab_slog_write", log.separate.written_bytes),
        ("zil_itx_metaslab_slog_alloc", log.separate.allocated_bytes),
    ]
}

/// A pool: its state, what its devices did, and what was read and written of its datasets.
fn pool(page: &mut Page, pool: &PoolSample) {
    let status = &pool.status;
    let name = status.name.as_str();
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
    let root = &status.root;
    let classes = IoClass::ALL.map(|class| &root.detail.classes[class.index()]);
    for (field, value) in [
        ("nread", root.io.read_bytes),
        ("nwritten", root.io.write_bytes),
        ("reads", root.io.read_ops),
        ("writes", root.io.write_ops),
        // The sums over all operations of what they waited and took, in nanoseconds.
        (
            "wlentime",
            classes.iter().map(|c| c.queue_wait.sum_ns).sum(),
        ),
        ("rlentime", classes.iter().map(|c| c.disk_wait.sum_ns).sum()),
        ("wcnt", classes.iter().map(|c| u64::from(c.pending)).sum()),
        ("rcnt", classes.iter().map(|c| u64::from(c.active)).sum()),
    ] {
        page.untyped(
            &format!("node_zfs_zpool_{field}"),
            &[("zpool", name)],
            value,
        );
    }
    for dataset in &pool.seen.datasets {
        let labels = [("zpool", name), ("dataset", dataset.name.as_str())];
        let Traffic {
            reads,
            read_bytes,
            writes,
            written_bytes,
        } = dataset.traffic;
        let moved = [
            ("nread", read_bytes),
            ("nwritten", written_bytes),
            ("reads", reads),
            ("writes", writes),
        ];
        for (field, value) in moved.into_iter().chain(log(&dataset.log)) {
            page.untyped(&format!("node_zfs_zpool_dataset_{field}"), &labels, value);
        }
    }
}
