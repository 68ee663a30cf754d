//! `arc`: the cache of blocks by identity.
//!
//! Guarantees: at most one read of a block is in flight; the bytes held stay below the limit (plus what readers still
//! hold); a cached block equals what its pointer says.
//!
//! What it does not know: objects and datasets.

#![forbid(unsafe_code)]

use std::rc::Rc;

use ondisk::BlockPointer;
use runtime::{Handle, IoBuf};
use zio::{BlockStore, ReadProps, ZioError};

/// Limits of a cache.
#[derive(Debug, Clone)]
pub struct CacheTuning {
    /// Most bytes held.
    pub limit_bytes: usize,
    /// Data blocks may push metadata below this many bytes only when metadata is not used any more.
    pub metadata_floor_bytes: usize,
}

impl Default for CacheTuning {
    fn default() -> Self {
        Self { limit_bytes: 256 << 20, metadata_floor_bytes: 64 << 20 }
    }
}

/// Counters of a cache.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CacheStats {
    /// Bytes held.
    pub bytes: usize,
    /// Of those, metadata.
    pub metadata_bytes: usize,
    /// Blocks held.
    pub blocks: usize,
    /// Reads answered from memory.
    pub hits: u64,
    /// Reads that went to the store.
    pub misses: u64,
    /// Reads that joined one already in flight.
    pub joined: u64,
    /// Blocks dropped for room.
    pub evictions: u64,
}

/// The cache of one pool. Clones share it.
#[derive(Clone)]
pub struct Cache(Rc<Inner>);

struct Inner {}

impl Cache {
    /// Makes an empty cache over a store.
    pub fn new(handle: &Handle, store: BlockStore, tuning: CacheTuning) -> Self {
        let _ = (handle, store, tuning);
        unimplemented!()
    }

    /// Returns the store below.
    pub fn store(&self) -> &BlockStore {
        unimplemented!()
    }

    /// Returns a block's logical bytes, from memory or from the store.
    pub async fn read(&self, bp: &BlockPointer, props: ReadProps) -> Result<IoBuf, ZioError> {
        let _ = (bp, props);
        unimplemented!()
    }

    /// Returns a block only if it is in memory now.
    pub fn peek(&self, bp: &BlockPointer) -> Option<IoBuf> {
        let _ = bp;
        unimplemented!()
    }

    /// Puts the bytes of a block that was just written.
    pub fn insert(&self, bp: &BlockPointer, data: IoBuf) {
        let _ = (bp, data);
    }

    /// Drops a block that was freed.
    pub fn forget(&self, bp: &BlockPointer) {
        let _ = bp;
    }

    /// Changes the limit and evicts down to it.
    pub fn set_limit(&self, limit_bytes: usize) {
        let _ = limit_bytes;
    }

    /// Returns the counters.
    pub fn stats(&self) -> CacheStats {
        unimplemented!()
    }
}
