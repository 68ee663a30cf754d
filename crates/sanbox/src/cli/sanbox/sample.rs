//! What the commands that watch pools look at: all pools at a moment, and the sums over them.

use std::time::Instant;

use engine::{CacheStats, L2Stats, LogBlocks, PoolHandle, PoolStatistics, PoolStatus, ZilStats};

use crate::appliance::KnownPool;
use crate::cli::Session;

/// One pool at a moment.
#[derive(Clone)]
pub(crate) struct PoolSample {
    pub(crate) status: PoolStatus,
    pub(crate) seen: PoolStatistics,
}

/// All pools at a moment.
#[derive(Clone)]
pub(crate) struct Sample {
    pub(crate) at: Instant,
    pub(crate) pools: Vec<PoolSample>,
}

impl Sample {
    /// Takes a sample of some pools.
    pub(crate) async fn take(handles: Vec<PoolHandle>) -> Self {
        let mut pools = Vec::new();
        for pool in handles {
            if let (Ok(status), Ok(seen)) = (pool.status().await, pool.statistics().await) {
                pools.push(PoolSample { status, seen });
            }
        }
        Self {
            at: Instant::now(),
            pools,
        }
    }

    /// Takes a sample of all pools the appliance knows, opening them, or of one.
    pub(crate) async fn of(session: &Session, only: Option<&str>) -> Self {
        let known = session.appliance.pools().await.into_iter();
        let handles = known.filter_map(|known| match known {
            KnownPool::Open(pool) => Some(pool),
            KnownPool::Closed(..) => None,
        });
        let handles = handles.filter(|pool| only.is_none_or(|only| only == pool.name()));
        Self::take(handles.collect()).await
    }

    /// The pool's earlier sample.
    pub(crate) fn pool(&self, guid: u64) -> Option<&PoolSample> {
        self.pools.iter().find(|pool| pool.status.guid == guid)
    }

    /// The caches of all pools together.
    pub(crate) fn cache(&self) -> (CacheStats, L2Stats) {
        let mut sum = CacheStats::default();
        let mut l2 = L2Stats::default();
        for pool in &self.pools {
            add_cache(&mut sum, &pool.seen.cache);
            add_l2(&mut l2, &pool.seen.l2);
        }
        (sum, l2)
    }
}

fn add_cache(sum: &mut CacheStats, one: &CacheStats) {
    for (sum, one) in [
        (&mut sum.hits, &one.hits),
        (&mut sum.joined, &one.joined),
        (&mut sum.misses, &one.misses),
    ] {
        sum.demand_data += one.demand_data;
        sum.demand_metadata += one.demand_metadata;
        sum.prefetch_data += one.prefetch_data;
        sum.prefetch_metadata += one.prefetch_metadata;
    }
    sum.bytes += one.bytes;
    sum.metadata_bytes += one.metadata_bytes;
    sum.overhead_bytes += one.overhead_bytes;
    sum.compressed_bytes += one.compressed_bytes;
    sum.uncompressed_bytes += one.uncompressed_bytes;
    sum.open_bytes += one.open_bytes;
    sum.blocks += one.blocks;
    sum.ghosts += one.ghosts;
    sum.limit_bytes += one.limit_bytes;
    sum.limit_set_bytes += one.limit_set_bytes;
    sum.recent_hits += one.recent_hits;
    sum.frequent_hits += one.frequent_hits;
    sum.recent_ghost_hits += one.recent_ghost_hits;
    sum.frequent_ghost_hits += one.frequent_ghost_hits;
    sum.evictions += one.evictions;
    sum.evicted_bytes += one.evicted_bytes;
    sum.prefetch_useful += one.prefetch_useful;
    sum.prefetch_wasted += one.prefetch_wasted;
    sum.recent_data_target += one.recent_data_target;
    sum.recent_metadata_target += one.recent_metadata_target;
    sum.metadata_target += one.metadata_target;
    for (sum, one) in sum.list_bytes.iter_mut().zip(&one.list_bytes) {
        *sum += one;
    }
    for (sum, one) in sum.ghost_bytes.iter_mut().zip(&one.ghost_bytes) {
        *sum += one;
    }
    if sum.what_if.is_empty() {
        sum.what_if.clone_from(&one.what_if);
    } else {
        for (sum, one) in sum.what_if.iter_mut().zip(&one.what_if) {
            sum.hits += one.hits;
            sum.reads += one.reads;
        }
    }
}

fn add_l2(sum: &mut L2Stats, one: &L2Stats) {
    sum.hits += one.hits;
    sum.misses += one.misses;
    sum.read_bytes += one.read_bytes;
    sum.write_bytes += one.write_bytes;
    sum.feeds += one.feeds;
    sum.feeds_spared += one.feeds_spared;
    sum.blocks += one.blocks;
    sum.allocated_bytes += one.allocated_bytes;
    sum.index_bytes += one.index_bytes;
    sum.io_errors += one.io_errors;
    sum.checksum_errors += one.checksum_errors;
    sum.rebuilt_blocks += one.rebuilt_blocks;
    sum.log_blocks_written += one.log_blocks_written;
}

/// What two states of a log differ in.
pub(crate) fn log_since(now: &ZilStats, then: &ZilStats) -> ZilStats {
    let blocks = |now: &LogBlocks, then: &LogBlocks| LogBlocks {
        count: now.count.saturating_sub(then.count),
        used_bytes: now.used_bytes.saturating_sub(then.used_bytes),
        written_bytes: now.written_bytes.saturating_sub(then.written_bytes),
        allocated_bytes: now.allocated_bytes.saturating_sub(then.allocated_bytes),
    };
    ZilStats {
        commits: now.commits.saturating_sub(then.commits),
        batches: now.batches.saturating_sub(then.batches),
        overlapped: now.overlapped.saturating_sub(then.overlapped),
        fallbacks: now.fallbacks.saturating_sub(then.fallbacks),
        stalls: now.stalls.saturating_sub(then.stalls),
        records: now.records.saturating_sub(then.records),
        copied: now.copied.saturating_sub(then.copied),
        copied_bytes: now.copied_bytes.saturating_sub(then.copied_bytes),
        indirect: now.indirect.saturating_sub(then.indirect),
        indirect_bytes: now.indirect_bytes.saturating_sub(then.indirect_bytes),
        replayed: now.replayed.saturating_sub(then.replayed),
        replay_ns: now.replay_ns.saturating_sub(then.replay_ns),
        normal: blocks(&now.normal, &then.normal),
        separate: blocks(&now.separate, &then.separate),
    }
}
