//! Write-behind: writes whose pointers are returned before the devices have taken the bytes, so that a txg need not wait for a
//! level of its trees before it writes the next.
//!
//! Guarantees: two writes of one place reach it in their order; a read of a place waits for what is on its way there;
//! [`BlockStore::wait_writes`] reports every write that failed.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use ondisk::{BlockPointer, Dva, Txg};
use runtime::IoBuf;
use runtime::sync::{Event, Permit};
use vdev::IoClass;

use crate::{BlockStore, Bookmark, ZioError};

/// Writes whose bytes the devices have not taken yet.
pub(crate) struct WriteBehind {
    /// The newest pending write by first DVA (vdev and offset): the DVAs of two blocks are all the same, or all different.
    places: RefCell<BTreeMap<(u32, u64), Rc<PendingWrite>>>,
    under_way: Cell<usize>,
    failure: RefCell<Option<ZioError>>,
    idle: Event,
}

struct PendingWrite {
    over: Cell<bool>,
    event: Event,
}

impl PendingWrite {
    async fn wait(&self) {
        while !self.over.get() {
            self.event.wait().await;
        }
    }
}

impl Default for WriteBehind {
    fn default() -> Self {
        Self {
            places: RefCell::default(),
            under_way: Cell::new(0),
            failure: RefCell::new(None),
            idle: Event::new("writes of the txg to be taken by the devices"),
        }
    }
}

/// A block with its DVAs, ready to be written.
pub(crate) struct PlacedBlock {
    pub(crate) txg: Txg,
    pub(crate) dvas: Vec<Dva>,
    pub(crate) bytes: IoBuf,
    pub(crate) class: IoClass,
    pub(crate) bookmark: Bookmark,
    /// Its share of [`StoreTuning::writing_bytes_max`](crate::StoreTuning::writing_bytes_max), released at the end.
    pub(crate) room: Permit,
}

impl BlockStore {
    /// Begins to write a block to DVAs that are allocated for it.
    pub(crate) fn begin_write_behind(&self, block: PlacedBlock) {
        let Some(first) = block.dvas.first() else {
            return;
        };
        let key = (first.vdev, first.offset);
        let pending = Rc::new(PendingWrite {
            over: Cell::new(false),
            event: Event::new("bytes on their way to a device"),
        });
        let writes = self.pending_writes();
        let before = writes.places.borrow_mut().insert(key, pending.clone());
        writes.under_way.set(writes.under_way.get() + 1);
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
            let writes = store.pending_writes();
            if let Err(error) = written {
                writes.failure.borrow_mut().get_or_insert(error);
            }
            pending.over.set(true);
            let mut places = writes.places.borrow_mut();
            if places
                .get(&key)
                .is_some_and(|now| Rc::ptr_eq(now, &pending))
            {
                places.remove(&key);
            }
            drop(places);
            pending.event.notify_all();
            assert!(writes.under_way.get() > 0, "a write ends once");
            writes.under_way.set(writes.under_way.get() - 1);
            if writes.under_way.get() == 0 {
                writes.idle.notify_all();
            }
        };
        drop(self.handle().spawn("a write of a txg", write));
    }

    /// Waits until the devices have taken everything that [`BlockStore::write_behind`] began.
    ///
    /// # Errors
    /// The first failure since the last call: the txg must not commit.
    pub async fn wait_writes(&self) -> Result<(), ZioError> {
        let writes = self.pending_writes();
        while writes.under_way.get() > 0 {
            writes.idle.wait().await;
        }
        writes.failure.borrow_mut().take().map_or(Ok(()), Err)
    }

    /// Returns the first failure of a pending write, if one has failed already: the txg cannot commit.
    pub(crate) fn check_write_behind(&self) -> Result<(), ZioError> {
        self.pending_writes()
            .failure
            .borrow()
            .clone()
            .map_or(Ok(()), Err)
    }

    /// Waits for the pending write of a block, if there is one.
    pub(crate) async fn wait_pending_write(&self, bp: &BlockPointer) {
        loop {
            let writes = self.pending_writes();
            if writes.under_way.get() == 0 {
                return;
            }
            let Some(first) = bp.copies().next() else {
                return;
            };
            let found = writes
                .places
                .borrow()
                .get(&(first.vdev, first.offset))
                .cloned();
            let Some(pending) = found else { return };
            pending.wait().await;
        }
    }
}
