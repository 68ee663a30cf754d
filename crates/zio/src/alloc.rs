//! The allocator of the pool: classes, metaslabs, deferred frees, accounting.

use std::future::Future;
use std::ops::Range;
use std::pin::Pin;

use crate::ZioError;

/// Where the allocator learns the free space of a metaslab. Implemented by the pool, which keeps space maps in its
/// meta-objset.
pub trait MetaSource {
    /// Returns the free ranges of a metaslab (bytes of the top-level vdev, sorted, not touching) as of the last synced
    /// txg or later. Must not allocate and must not wait for a txg sync.
    fn load_space_map(
        &self,
        vdev: u32,
        metaslab: u32,
    ) -> Pin<Box<dyn Future<Output = Result<Vec<Range<u64>>, ZioError>> + '_>>;
}

/// What the pool knows of a metaslab before its space map is loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MetaslabSummary {
    /// Top-level vdev.
    pub vdev: u32,
    /// Index.
    pub metaslab: u32,
    /// Bytes allocated (`smp_alloc`, with unflushed log entries applied).
    pub allocated: u64,
    /// True if the metaslab has no space map yet: it is free as a whole and needs no load.
    pub untouched: bool,
}

/// Changes of one metaslab in one txg, to be appended to its space map: all `allocs`, then all `frees`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MetaslabChange {
    /// Top-level vdev.
    pub vdev: u32,
    /// Index.
    pub metaslab: u32,
    /// Ranges allocated, bytes of the top-level vdev, sorted, merged.
    pub allocs: Vec<Range<u64>>,
    /// Ranges freed, bytes of the top-level vdev, sorted, merged.
    pub frees: Vec<Range<u64>>,
}

/// Space of the pool in bytes (raw, as the devices see it).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Space {
    /// Sum of all whole metaslabs of vdevs that hold data.
    pub size: u64,
    /// Allocated, as the space maps count: freed space is subtracted at once.
    pub allocated: u64,
    /// Free and usable now: `size - allocated - deferred`.
    pub free: u64,
    /// Freed, waiting for two further txgs before it can be used.
    pub deferred: u64,
    /// `size` times the deflate ratio: what datasets see as pool size.
    pub deflated_size: u64,
    /// Space kept back so that a full pool can still be worked on: dataset writes stop at `deflated_size - slop`.
    pub slop: u64,
}
