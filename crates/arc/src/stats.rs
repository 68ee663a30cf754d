//! What a cache counts.

use crate::whatif::WhatIf;

/// Counts of one event by purpose: demand or prefetch, data or metadata.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ByPurpose {
    /// Data that a reader waits for.
    pub demand_data: u64,
    /// Metadata that a reader waits for.
    pub demand_metadata: u64,
    /// Data read ahead.
    pub prefetch_data: u64,
    /// Metadata read ahead.
    pub prefetch_metadata: u64,
}

impl ByPurpose {
    /// Returns the sum.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.demand_data + self.demand_metadata + self.prefetch_data + self.prefetch_metadata
    }

    pub(crate) fn count(&mut self, prefetch: bool, metadata: bool) {
        *match (prefetch, metadata) {
            (false, false) => &mut self.demand_data,
            (false, true) => &mut self.demand_metadata,
            (true, false) => &mut self.prefetch_data,
            (true, true) => &mut self.prefetch_metadata,
        } += 1;
    }
}

/// Counters of a cache since it was made.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CacheStats {
    /// Bytes held, with the cache's own bookkeeping.
    pub bytes: usize,
    /// Of those, metadata.
    pub metadata_bytes: usize,
    /// Of those, bookkeeping: entries, ghosts, models of other sizes, the index of cache devices.
    pub overhead_bytes: usize,
    /// Bytes of blocks as they are stored (the logical size of what is held in that form).
    pub compressed_bytes: usize,
    /// Logical bytes of the blocks held.
    pub uncompressed_bytes: u64,
    /// Bytes of blocks that are held in both forms, decompressed.
    pub open_bytes: usize,
    /// Blocks held.
    pub blocks: usize,
    /// Ghosts held.
    pub ghosts: u64,
    /// The limit now, in bytes.
    pub limit_bytes: usize,
    /// The limit that was set, in bytes: `limit_bytes` is lower while memory is short.
    pub limit_set_bytes: usize,
    /// Reads answered from memory.
    pub hits: ByPurpose,
    /// Reads that joined one already under way.
    pub joined: ByPurpose,
    /// Reads that went to a device.
    pub misses: ByPurpose,
    /// Hits in the list of blocks used once.
    pub recent_hits: u64,
    /// Hits in the list of blocks used often.
    pub frequent_hits: u64,
    /// Misses of blocks evicted from the first list not long ago.
    pub recent_ghost_hits: u64,
    /// Misses of blocks evicted from the second list not long ago.
    pub frequent_ghost_hits: u64,
    /// Blocks dropped for room.
    pub evictions: u64,
    /// Bytes of those.
    pub evicted_bytes: u64,
    /// Hits that had to be decompressed.
    pub decompressions: u64,
    /// Blocks read ahead that were asked for later.
    pub prefetch_useful: u64,
    /// Blocks read ahead that left without having been asked for.
    pub prefetch_wasted: u64,
    /// Bytes read ahead and not asked for yet.
    pub prefetch_unused_bytes: usize,
    /// Resident bytes by list: data recent, data frequent, metadata recent, metadata frequent.
    pub list_bytes: [u64; 4],
    /// Bytes that the ghosts of those lists had.
    pub ghost_bytes: [u64; 4],
    /// Target of the recent data, the recent metadata, and of all metadata, in bytes.
    pub recent_data_target: u64,
    /// See `recent_data_target`.
    pub recent_metadata_target: u64,
    /// See `recent_data_target`.
    pub metadata_target: u64,
    /// What caches of other sizes would have done.
    pub what_if: Vec<WhatIf>,
}

impl CacheStats {
    /// Returns the share of demanded reads answered from memory, 0 to 1; `None` without reads.
    #[must_use]
    #[allow(clippy::cast_precision_loss, reason = "a share of counts")]
    pub fn demand_hit_rate(&self) -> Option<f64> {
        let demand = |counts: &ByPurpose| counts.demand_data + counts.demand_metadata;
        let hits = demand(&self.hits);
        let all = hits + demand(&self.misses) + demand(&self.joined);
        (all > 0).then(|| hits as f64 / all as f64)
    }
}
