//! Writes whose bytes the devices have not taken yet: by place, how many, and the first failure among them.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use ondisk::MAX_BLOCK_SIZE;
use runtime::sync::{Event, Semaphore};

use crate::ZioError;
use crate::checks::to_usize;

/// Unit of the semaphore that bounds bytes being written.
pub(crate) const THROTTLE_UNIT: u64 = 4096;
const _: () = assert!(MAX_BLOCK_SIZE.is_multiple_of(THROTTLE_UNIT));

/// The first DVA of a block, vdev and offset: the DVAs of two blocks are all the same, or all different.
type PlaceKey = (u32, u64);

/// The pending writes of a store.
pub(crate) struct PendingWrites {
    /// The newest one by place.
    places: RefCell<BTreeMap<PlaceKey, Rc<PendingWrite>>>,
    under_way: Cell<usize>,
    failure: RefCell<Option<ZioError>>,
    idle: Event,
}

/// One of them.
pub(crate) struct PendingWrite {
    over: Cell<bool>,
    event: Event,
}

impl PendingWrite {
    /// Waits until it has ended.
    pub(crate) async fn wait(&self) {
        while !self.over.get() {
            self.event.wait().await;
        }
    }
}

impl Default for PendingWrites {
    fn default() -> Self {
        Self {
            places: RefCell::default(),
            under_way: Cell::new(0),
            failure: RefCell::new(None),
            idle: Event::new("writes of the txg to be taken by the devices"),
        }
    }
}

impl PendingWrites {
    /// Begins a write at a place. Returns it, and the one there before that has to end first.
    pub(crate) fn begin(&self, key: PlaceKey) -> (Rc<PendingWrite>, Option<Rc<PendingWrite>>) {
        let pending = Rc::new(PendingWrite {
            over: Cell::new(false),
            event: Event::new("bytes on their way to a device"),
        });
        let before = self.places.borrow_mut().insert(key, pending.clone());
        self.under_way.set(self.under_way.get() + 1);
        (pending, before)
    }

    /// Ends a write; a failure stays until [`PendingWrites::wait_all`] returns it.
    pub(crate) fn end(
        &self,
        key: PlaceKey,
        pending: &Rc<PendingWrite>,
        written: Result<(), ZioError>,
    ) {
        if let Err(error) = written {
            self.failure.borrow_mut().get_or_insert(error);
        }
        assert!(!pending.over.replace(true), "a write ends once");
        let mut places = self.places.borrow_mut();
        if places.get(&key).is_some_and(|now| Rc::ptr_eq(now, pending)) {
            places.remove(&key);
        }
        drop(places);
        pending.event.notify_all();
        let left = self.under_way.get().checked_sub(1);
        let left = left.expect("a write that ends is under way");
        self.under_way.set(left);
        if left == 0 {
            assert!(
                self.places.borrow().is_empty(),
                "no write is left at a place"
            );
            self.idle.notify_all();
        }
    }

    /// Waits until none is left. Returns, once, the first failure since the last call.
    pub(crate) async fn wait_all(&self) -> Result<(), ZioError> {
        while self.under_way.get() > 0 {
            self.idle.wait().await;
        }
        self.failure.borrow_mut().take().map_or(Ok(()), Err)
    }

    /// Returns the first failure, if there is one already.
    pub(crate) fn check(&self) -> Result<(), ZioError> {
        self.failure.borrow().clone().map_or(Ok(()), Err)
    }

    /// Waits until no write is pending at a place.
    pub(crate) async fn wait_for(&self, key: PlaceKey) {
        while self.under_way.get() > 0 {
            let found = self.places.borrow().get(&key).cloned();
            let Some(pending) = found else { return };
            pending.wait().await;
        }
    }
}

/// Makes the semaphore that bounds the bytes being written at once.
pub(crate) fn throttle(bytes: u64) -> Rc<Semaphore> {
    let units = to_usize(bytes.max(2 * MAX_BLOCK_SIZE) / THROTTLE_UNIT);
    Rc::new(Semaphore::new("room among the writes under way", units))
}
