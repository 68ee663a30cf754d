//! Writes whose pointers are there before the devices have taken the bytes: a transaction group need not wait for a level of its
//! trees before it writes the next.
//!
//! Guarantees: two writes of one place reach it in their order; a read of a place waits for what is on its way there;
//! [`BlockStore::settle`] tells of every write that failed.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use ondisk::{BlockPointer, Dva, Txg};
use runtime::IoBuf;
use runtime::sync::{Event, Permit};
use vdev::IoClass;

use crate::{BlockStore, Bookmark, ZioError};

/// Writes under way.
pub(crate) struct Later {
    /// The newest write of each place, by the first of its places: all are the same in two blocks, or none is.
    places: RefCell<BTreeMap<(u32, u64), Rc<Arrival>>>,
    under_way: Cell<usize>,
    failure: RefCell<Option<ZioError>>,
    settled: Event,
}

struct Arrival {
    over: Cell<bool>,
    event: Event,
}

impl Arrival {
    async fn wait(&self) {
        while !self.over.get() {
            self.event.wait().await;
        }
    }
}

impl Default for Later {
    fn default() -> Self {
        Self {
            places: RefCell::default(),
            under_way: Cell::new(0),
            failure: RefCell::new(None),
            settled: Event::new("writes of the group to be taken by the devices"),
        }
    }
}

/// What the write of a block to its places needs.
pub(crate) struct Placed {
    pub(crate) txg: Txg,
    pub(crate) dvas: Vec<Dva>,
    pub(crate) bytes: IoBuf,
    pub(crate) class: IoClass,
    pub(crate) bookmark: Bookmark,
    /// Room among the bytes being written, given back at the end.
    pub(crate) room: Permit,
}

impl BlockStore {
    /// Begins to write a block to places that are its own.
    pub(crate) fn begin_later(&self, block: Placed) {
        let Some(first) = block.dvas.first() else {
            return;
        };
        let key = (first.vdev, first.offset);
        let arrival = Rc::new(Arrival {
            over: Cell::new(false),
            event: Event::new("bytes on their way to a device"),
        });
        let later = self.later();
        let before = later.places.borrow_mut().insert(key, arrival.clone());
        later.under_way.set(later.under_way.get() + 1);
        let store = self.clone();
        let write = async move {
            if let Some(before) = before {
                before.wait().await;
            }
            let written = store
                .write_copies(
                    block.txg,
                    &block.dvas,
                    &block.bytes,
                    block.class,
                    block.bookmark,
                )
                .await;
            drop(block.room);
            let later = store.later();
            if let Err(error) = written {
                later.failure.borrow_mut().get_or_insert(error);
            }
            arrival.over.set(true);
            let mut places = later.places.borrow_mut();
            if places
                .get(&key)
                .is_some_and(|now| Rc::ptr_eq(now, &arrival))
            {
                places.remove(&key);
            }
            drop(places);
            arrival.event.notify_all();
            later.under_way.set(later.under_way.get() - 1);
            if later.under_way.get() == 0 {
                later.settled.notify_all();
            }
        };
        drop(self.handle().spawn("a write of a group", write));
    }

    /// Waits until the devices have taken everything that [`BlockStore::write_later`] began.
    ///
    /// # Errors
    /// The first failure since the last call: the group must not commit.
    pub async fn settle(&self) -> Result<(), ZioError> {
        let later = self.later();
        while later.under_way.get() > 0 {
            later.settled.wait().await;
        }
        later.failure.borrow_mut().take().map_or(Ok(()), Err)
    }

    /// Why the group cannot commit, if a write has failed already.
    pub(crate) fn check_later(&self) -> Result<(), ZioError> {
        self.later().failure.borrow().clone().map_or(Ok(()), Err)
    }

    /// Waits until the bytes of a block are at its places, if they are on their way.
    pub(crate) async fn arrived(&self, bp: &BlockPointer) {
        loop {
            let later = self.later();
            if later.under_way.get() == 0 {
                return;
            }
            let Some(first) = bp.copies().next() else {
                return;
            };
            let found = later
                .places
                .borrow()
                .get(&(first.vdev, first.offset))
                .cloned();
            let Some(arrival) = found else { return };
            arrival.wait().await;
        }
    }
}
