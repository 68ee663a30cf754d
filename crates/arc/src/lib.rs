//! `arc`: the cache of blocks by identity.
//!
//! Guarantees: at most one read of a block is in flight; the bytes held stay below the limit (readers may hold more);
//! a cached block equals what its pointer says, also when its place was overwritten within one txg. A hit allocates nothing.
//!
//! `l2` is the second level, on cache devices.
//!
//! What stays is decided by `policy` (adaptive replacement with ghost lists, over data and metadata), in which form by `entries`
//! (compressed as stored, and decompressed while there is room). `whatif` says what caches of other sizes would do.
//!
//! What it does not know: objects and datasets, holes and embedded blocks (those are never cached).

#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]

mod cache_use;
mod entries;
mod identity;
mod index;
mod l2;
mod policy;
mod stats;
#[doc(hidden)]
pub mod trace;
mod whatif;

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use ondisk::BlockPointer;
use runtime::sync::Event;
use runtime::{Handle, IoBuf};
use zio::{BlockKeys, BlockStore, Forms, IoClass, ReadProps, ZioError};

pub use cache_use::{BlockKinds, CacheUse};
use entries::{BlockFacts, Entries, EntryOrigin, Hit};
use identity::Identity;
use l2::L2;
pub use l2::{CacheDevice, CacheDeviceStats, L2Stats, L2Tuning};
use policy::{Found, List, Policy};
pub use stats::{ByPurpose, CacheStats};
pub use whatif::WhatIf;

/// Limits of a cache.
#[derive(Debug, Clone)]
pub struct CacheTuning {
    /// Most bytes held, with the cache's own bookkeeping.
    pub limit_bytes: usize,
    /// Uses of a block within so many milliseconds of its arrival are one use: the parts of a block that a
    /// sequential reader asks for one after the other do not make it a frequent one.
    // OpenZFS: module/zfs/arc.c, ARC_MINTIME (62 ms)
    pub correlated_ms: u32,
    /// Most bytes being read ahead at once, in bytes; a sixteenth of the limit if that is less.
    pub prefetch_bytes_max: usize,
    /// How cache devices are fed, if there are any.
    pub devices: L2Tuning,
}

impl Default for CacheTuning {
    fn default() -> Self {
        Self {
            limit_bytes: 256 << 20,
            correlated_ms: 62,
            prefetch_bytes_max: 64 << 20,
            devices: L2Tuning::default(),
        }
    }
}

/// The cache of one pool. Clones share it.
#[derive(Clone)]
pub struct Cache(Rc<CacheShared>);

struct CacheShared {
    handle: Handle,
    store: BlockStore,
    state: RefCell<Entries>,
    l2: RefCell<L2>,
}

/// A read in flight.
pub(crate) struct InFlightRead {
    done: Event,
    result: RefCell<Option<Result<IoBuf, ZioError>>>,
    /// The block was freed meanwhile: the readers get it, but it does not stay in the cache.
    freed: Cell<bool>,
    /// A demand read waits for it.
    demanded: Cell<bool>,
}

/// What a read has to do.
enum ReadPlan {
    Join(Rc<InFlightRead>),
    /// The block is held compressed.
    Decompress(IoBuf),
    Fetch(Rc<InFlightRead>),
}

impl Cache {
    /// Makes an empty cache over a store.
    #[must_use]
    pub fn new(handle: &Handle, store: BlockStore, tuning: CacheTuning) -> Self {
        runtime::keep_free(tuning.limit_bytes / 8);
        let l2 = RefCell::new(L2::new(tuning.devices.clone()));
        Self(Rc::new(CacheShared {
            handle: handle.clone(),
            store,
            state: RefCell::new(Entries::new(tuning)),
            l2,
        }))
    }

    /// Returns the store below.
    #[must_use]
    pub fn store(&self) -> &BlockStore {
        &self.0.store
    }

    /// Returns a block's logical bytes, from memory or from a device. Reads of [`IoClass::AsyncRead`] are read-ahead: they
    /// count as no use of the block.
    ///
    /// # Errors
    /// As [`BlockStore::read`]. Errors are not cached; all readers that joined the same read get it.
    pub async fn read(&self, bp: &BlockPointer, props: ReadProps) -> Result<IoBuf, ZioError> {
        self.read_for(bp, props, CacheUse::default(), None).await
    }

    /// As [`Cache::read`]; `keep` says what becomes of the block if it comes into memory now, `keys`
    /// open the blocks of an encrypted dataset. Such blocks are held apart from what is read without keys.
    ///
    /// # Errors
    /// As [`Cache::read`].
    pub async fn read_for(
        &self,
        bp: &BlockPointer,
        props: ReadProps,
        keep: CacheUse,
        keys: Option<&BlockKeys>,
    ) -> Result<IoBuf, ZioError> {
        // What waits for devices is apart: the state of every request that reads has room for it otherwise, and is moved
        // with it into its task, though nearly all find their blocks here.
        let Some(identity) = Identity::of(bp, keys.is_some()) else {
            return Box::pin(self.0.store.read(bp, props)).await;
        };
        let prefetch = props.class == IoClass::AsyncRead;
        let plan = {
            let mut state = self.0.state.borrow_mut();
            let state = &mut *state;
            let hit = if prefetch {
                state.look_at(&identity)
            } else {
                state.look_up(&identity, false, || self.now_ms())
            };
            match hit {
                Some(Hit::Decompressed(data)) => return Ok(data),
                Some(Hit::Stored(stored)) => ReadPlan::Decompress(stored),
                None => match state.reads.get(&identity).cloned() {
                    Some(read) => {
                        state
                            .stats
                            .joined
                            .count(prefetch, identity::is_metadata(bp));
                        if !prefetch && !read.demanded.replace(true) {
                            // Read ahead, but too late: a demand read waits for it already.
                            state.note_late_prefetch();
                        }
                        ReadPlan::Join(read)
                    }
                    None => {
                        state.note_miss(&identity, bp, prefetch, self.now_ms());
                        let read = Rc::new(InFlightRead {
                            done: Event::new("a block another task is reading"),
                            result: RefCell::new(None),
                            freed: Cell::new(false),
                            demanded: Cell::new(!prefetch),
                        });
                        state.reads.insert(identity, Rc::clone(&read));
                        ReadPlan::Fetch(read)
                    }
                },
            }
        };
        match plan {
            ReadPlan::Decompress(stored) => {
                match Box::pin(self.0.store.open_stored(bp, stored, keys)).await {
                    Some(open) => {
                        self.0.state.borrow_mut().opened(&identity, &open);
                        Ok(open)
                    }
                    // The bytes in memory are damaged; the devices have them right.
                    None => {
                        self.0.state.borrow_mut().remove(&identity);
                        let read = self.0.store.read_forms(bp, props, keys);
                        Ok(Box::pin(read).await?.logical)
                    }
                }
            }
            ReadPlan::Join(read) => {
                read.done.wait().await;
                let result = read.result.borrow().clone();
                result.expect("a read ends with a result")
            }
            ReadPlan::Fetch(read) => {
                Box::pin(self.fetch(identity, bp, props, keep, keys, &read)).await
            }
        }
    }

    /// Reads a block that is not in memory, for all readers that joined.
    async fn fetch(
        &self,
        identity: Identity,
        bp: &BlockPointer,
        props: ReadProps,
        keep: CacheUse,
        keys: Option<&BlockKeys>,
        read: &InFlightRead,
    ) -> Result<IoBuf, ZioError> {
        let size = usize::try_from(bp.lsize()).unwrap_or(usize::MAX);
        let prefetch = props.class == IoClass::AsyncRead;
        if prefetch {
            self.0.state.borrow_mut().prefetching += size;
        }
        let result = match self.read_device(&identity, bp, keys).await {
            Some(forms) => Ok(forms),
            None => self.0.store.read_forms(bp, props, keys).await,
        };
        let mut state = self.0.state.borrow_mut();
        if prefetch {
            state.prefetching -= size;
        }
        state.reads.remove(&identity);
        let result = match result {
            Ok(Forms { logical, stored }) => {
                if !read.freed.get() && keep.memory.has(bp) {
                    let arriving = if read.demanded.get() {
                        EntryOrigin::Demanded
                    } else {
                        EntryOrigin::ReadAhead
                    };
                    let facts = BlockFacts::of(bp, keep.devices);
                    let now_ms = self.now_ms();
                    let open = logical.clone();
                    state.insert(identity, bp, facts, (open, stored), arriving, now_ms);
                }
                Ok(logical)
            }
            Err(error) => Err(error),
        };
        drop(state);
        *read.result.borrow_mut() = Some(result.clone());
        read.done.notify_all();
        result
    }

    /// Returns a block's logical bytes only if they are in memory now; of an encrypted dataset, what was read with its keys if
    /// the caller is `keyed`. A hit counts, a miss does not: a caller that gets nothing calls [`Cache::read_for`].
    #[must_use]
    pub fn peek(&self, bp: &BlockPointer, keyed: bool) -> Option<IoBuf> {
        let identity = Identity::of(bp, keyed)?;
        let mut state = self.0.state.borrow_mut();
        match state.look_up(&identity, true, || self.now_ms()) {
            Some(Hit::Decompressed(data)) => Some(data),
            _ => None,
        }
    }

    /// Returns whether a block is in memory in some form, or on its way there. Counts nothing.
    #[must_use]
    pub fn has(&self, bp: &BlockPointer, keyed: bool) -> bool {
        let Some(identity) = Identity::of(bp, keyed) else {
            return false;
        };
        let state = self.0.state.borrow();
        matches!(state.policy.find(&identity), Found::Resident(_))
            || state.reads.contains_key(&identity)
    }

    /// Returns how many bytes may be read ahead now: little when what was read ahead is not used, nothing when too much is
    /// under way.
    #[must_use]
    pub fn prefetch_room(&self) -> usize {
        self.0.state.borrow().prefetch_room()
    }

    /// Puts the logical bytes of a block that was just written, and its stored bytes if it was compressed or encrypted.
    /// Not if `keep` says that it is not kept.
    pub fn insert(&self, bp: &BlockPointer, data: IoBuf, stored: Option<IoBuf>, keep: CacheUse) {
        if let Some(identity) = Identity::of(bp, true).filter(|_| keep.memory.has(bp)) {
            let now_ms = self.now_ms();
            let mut state = self.0.state.borrow_mut();
            let facts = BlockFacts::of(bp, keep.devices);
            state.insert(
                identity,
                bp,
                facts,
                (data, stored),
                EntryOrigin::Written,
                now_ms,
            );
        }
    }

    /// Drops a block that was freed.
    pub fn forget(&self, bp: &BlockPointer) {
        let ways = [false, true]
            .into_iter()
            .take(1 + usize::from(bp.uses_crypt()));
        for identity in ways.filter_map(|keyed| Identity::of(bp, keyed)) {
            let mut state = self.0.state.borrow_mut();
            state.remove(&identity);
            if state.models.is_sampled(identity.hash()) {
                state.models.forget(&identity);
            }
            if let Some(read) = state.reads.get(&identity) {
                read.freed.set(true);
            }
            drop(state);
            self.0.l2.borrow_mut().forget(&identity);
        }
    }

    /// Drops what was opened with the keys of encrypted datasets: a key is unloaded. What other keys open is read again.
    pub fn forget_keyed(&self) {
        self.0.state.borrow_mut().remove_keyed();
    }

    /// Drops everything, and what was learned.
    pub fn clear(&self) {
        let mut state = self.0.state.borrow_mut();
        let (limit, correlated_ms) = (state.limit, state.tuning.correlated_ms);
        state.policy = Policy::new(limit, correlated_ms);
        state.spare_bytes = 0;
        state.stats.uncompressed_bytes = 0;
        state.stats.prefetch_unused_bytes = 0;
    }

    /// Changes the limit and evicts down to it.
    pub fn set_limit(&self, limit_bytes: usize) {
        runtime::keep_free(limit_bytes / 8);
        let mut state = self.0.state.borrow_mut();
        state.tuning.limit_bytes = limit_bytes;
        state.set_limit(limit_bytes);
    }

    /// Lowers the limit for a while, in bytes, below the one that was set, or lets it rise again up to that.
    pub fn press(&self, limit_bytes: usize) {
        let mut state = self.0.state.borrow_mut();
        let limit = limit_bytes.min(state.tuning.limit_bytes);
        if limit != state.limit {
            state.set_limit(limit);
        }
    }

    /// Returns the bytes held, and the limit now.
    #[must_use]
    pub fn size(&self) -> (usize, usize) {
        let state = self.0.state.borrow();
        (state.bytes(), state.limit)
    }

    /// Returns the counters.
    #[must_use]
    pub fn stats(&self) -> CacheStats {
        let state = self.0.state.borrow();
        let policy = &state.policy;
        let bytes = state.bytes();
        let overhead = bytes - policy.bytes() + policy.len() * entries::OVERHEAD_BYTES;
        let lists = |recent, frequent| {
            [
                policy.list_bytes(recent, false),
                policy.list_bytes(frequent, false),
                policy.list_bytes(recent, true),
                policy.list_bytes(frequent, true),
            ]
        };
        let (recent, metadata_target) = policy.targets();
        CacheStats {
            bytes,
            metadata_bytes: policy.metadata_bytes(),
            overhead_bytes: overhead,
            compressed_bytes: bytes.saturating_sub(overhead + state.spare_bytes),
            open_bytes: state.spare_bytes,
            blocks: policy.len(),
            ghosts: policy.ghosts(),
            limit_bytes: state.limit,
            limit_set_bytes: state.tuning.limit_bytes,
            list_bytes: lists(List::Recent, List::Frequent),
            ghost_bytes: lists(List::RecentGhost, List::FrequentGhost),
            recent_data_target: recent[0],
            recent_metadata_target: recent[1],
            metadata_target,
            what_if: state.models.counts(),
            ..state.stats.clone()
        }
    }

    /// Milliseconds since some moment, wrapping.
    fn now_ms(&self) -> u32 {
        let ms = self.0.handle.now().as_nanos() / 1_000_000;
        u32::try_from(ms & u64::from(u32::MAX)).unwrap_or(0)
    }
}
