//! `arc`: the cache of blocks by identity.
//!
//! Guarantees: at most one read of a block is in flight; the bytes held stay below the limit (readers may hold more);
//! a cached block equals what its pointer says, also when its place was overwritten within one txg.
//!
//! Four lists decide what goes when room is needed: data and metadata, each as *recent* (seen once) and *frequent*
//! (seen again). One long read of cold data therefore pushes out neither what is used often nor the metadata.
//!
//! What it does not know: objects and datasets, holes and embedded blocks (those are never cached).

#![forbid(unsafe_code)]

mod lists;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use ondisk::BlockPointer;
use runtime::sync::Event;
use runtime::{Handle, IoBuf};
use zio::{BlockStore, ReadProps, ZioError};

use lists::{Entry, Lists};

/// Limits of a cache.
#[derive(Debug, Clone)]
pub struct CacheTuning {
    /// Most bytes held.
    pub limit_bytes: usize,
    /// Data is dropped first as long as metadata takes no more than this.
    pub metadata_floor_bytes: usize,
}

impl Default for CacheTuning {
    fn default() -> Self {
        Self {
            limit_bytes: 256 << 20,
            metadata_floor_bytes: 64 << 20,
        }
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
    /// The limit.
    pub limit_bytes: usize,
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

struct Inner {
    store: BlockStore,
    state: RefCell<State>,
}

struct State {
    tuning: CacheTuning,
    index: BTreeMap<Identity, u32>,
    lists: Lists,
    flights: BTreeMap<Identity, Rc<Flight>>,
    stats: CacheStats,
}

/// What makes a block itself: place and birth, and a word of its checksum, because within one txg a place can be
/// overwritten without another birth.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Identity {
    offset: u64,
    checksum: u64,
    birth: u64,
    vdev: u32,
}

/// A read under way.
struct Flight {
    landed: Event,
    result: RefCell<Option<Result<IoBuf, ZioError>>>,
    /// The block was freed meanwhile: hand it out, but do not keep it.
    forgotten: std::cell::Cell<bool>,
}

impl Identity {
    /// Returns the identity of a block, `None` for holes and embedded blocks.
    fn of(bp: &BlockPointer) -> Option<Self> {
        if bp.is_hole() || bp.is_embedded() {
            return None;
        }
        let dva = bp.dvas()[0];
        Some(Self {
            offset: dva.offset,
            checksum: bp.checksum()[0],
            birth: bp.physical_birth().0,
            vdev: dva.vdev,
        })
    }
}

impl Cache {
    /// Makes an empty cache over a store.
    #[must_use]
    pub fn new(_handle: &Handle, store: BlockStore, tuning: CacheTuning) -> Self {
        let state = State {
            tuning,
            index: BTreeMap::new(),
            lists: Lists::default(),
            flights: BTreeMap::new(),
            stats: CacheStats::default(),
        };
        Self(Rc::new(Inner {
            store,
            state: RefCell::new(state),
        }))
    }

    /// Returns the store below.
    #[must_use]
    pub fn store(&self) -> &BlockStore {
        &self.0.store
    }

    /// Returns a block's logical bytes, from memory or from the store.
    ///
    /// # Errors
    /// As [`BlockStore::read`]. Errors are not cached; all who wait for the same read get it.
    pub async fn read(&self, bp: &BlockPointer, props: ReadProps) -> Result<IoBuf, ZioError> {
        let Some(identity) = Identity::of(bp) else {
            return self.0.store.read(bp, props).await;
        };
        let flight = {
            let mut state = self.0.state.borrow_mut();
            if let Some(data) = state.look_up(&identity) {
                state.stats.hits += 1;
                return Ok(data);
            }
            match state.flights.get(&identity).cloned() {
                Some(flight) => {
                    state.stats.joined += 1;
                    Some(flight)
                }
                None => {
                    state.stats.misses += 1;
                    let flight = Rc::new(Flight {
                        landed: Event::new("a block another task is reading"),
                        result: RefCell::new(None),
                        forgotten: std::cell::Cell::new(false),
                    });
                    state.flights.insert(identity, flight);
                    None
                }
            }
        };
        if let Some(flight) = flight {
            flight.landed.wait().await;
            let result = flight.result.borrow().clone();
            return result.expect("a flight lands with a result");
        }
        let result = self.0.store.read(bp, props).await;
        let mut state = self.0.state.borrow_mut();
        if let Some(flight) = state.flights.remove(&identity) {
            if let (Ok(data), false) = (&result, flight.forgotten.get()) {
                state.insert(identity, data.clone(), is_metadata(bp));
            }
            *flight.result.borrow_mut() = Some(result.clone());
            flight.landed.notify_all();
        }
        result
    }

    /// Returns a block only if it is in memory now.
    #[must_use]
    pub fn peek(&self, bp: &BlockPointer) -> Option<IoBuf> {
        let identity = Identity::of(bp)?;
        let mut state = self.0.state.borrow_mut();
        let found = state.look_up(&identity);
        if found.is_some() {
            state.stats.hits += 1;
        }
        found
    }

    /// Puts the logical bytes of a block that was just written.
    pub fn insert(&self, bp: &BlockPointer, data: IoBuf) {
        if let Some(identity) = Identity::of(bp) {
            self.0
                .state
                .borrow_mut()
                .insert(identity, data, is_metadata(bp));
        }
    }

    /// Drops a block that was freed.
    pub fn forget(&self, bp: &BlockPointer) {
        if let Some(identity) = Identity::of(bp) {
            let mut state = self.0.state.borrow_mut();
            state.remove(&identity);
            if let Some(flight) = state.flights.get(&identity) {
                flight.forgotten.set(true);
            }
        }
    }

    /// Drops everything.
    pub fn clear(&self) {
        let mut state = self.0.state.borrow_mut();
        state.index.clear();
        state.lists = Lists::default();
    }

    /// Changes the limit and evicts down to it.
    pub fn set_limit(&self, limit_bytes: usize) {
        let mut state = self.0.state.borrow_mut();
        state.tuning.limit_bytes = limit_bytes;
        state.make_room(0);
    }

    /// Returns the counters.
    #[must_use]
    pub fn stats(&self) -> CacheStats {
        let state = self.0.state.borrow();
        CacheStats {
            bytes: state.lists.bytes(),
            metadata_bytes: state.lists.metadata_bytes(),
            blocks: state.index.len(),
            limit_bytes: state.tuning.limit_bytes,
            ..state.stats.clone()
        }
    }
}

impl State {
    fn look_up(&mut self, identity: &Identity) -> Option<IoBuf> {
        let &at = self.index.get(identity)?;
        self.lists.touch(at, self.tuning.limit_bytes);
        Some(self.lists.data(at))
    }

    fn insert(&mut self, identity: Identity, data: IoBuf, metadata: bool) {
        self.remove(&identity);
        // A block larger than a quarter of the cache would only flush it.
        if data.len() > self.tuning.limit_bytes / 4 {
            return;
        }
        self.make_room(data.len());
        let at = self.lists.push(Entry {
            identity,
            data,
            metadata,
        });
        self.index.insert(identity, at);
    }

    fn remove(&mut self, identity: &Identity) {
        if let Some(at) = self.index.remove(identity) {
            self.lists.remove(at);
        }
    }

    fn make_room(&mut self, bytes: usize) {
        while self.lists.bytes() + bytes > self.tuning.limit_bytes {
            let spare_metadata = self.lists.metadata_bytes() > self.tuning.metadata_floor_bytes
                && self.lists.metadata_bytes() > self.tuning.limit_bytes / 4 * 3;
            let Some(identity) = self.lists.evict(spare_metadata) else {
                break;
            };
            self.index.remove(&identity);
            self.stats.evictions += 1;
        }
    }
}

fn is_metadata(bp: &BlockPointer) -> bool {
    bp.level() > 0 || bp.object_type().is_metadata()
}
