//! Events of leaves, queued for the pool's ereports: errors, wrong bytes, slowness, changes of health.
//!
//! Guarantees: bounded; posting never waits for the reader. Does not know what blocks hold.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

use ondisk::Guid;
use runtime::sync::Event;

use crate::Health;

/// Most events kept until they are taken; further ones are dropped.
const EVENTS_MAX: usize = 512;

/// An event of a leaf.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeafEvent {
    /// The leaf.
    pub leaf: Guid,
    /// What.
    pub what: LeafEventKind,
}

/// What happened. Offsets and sizes are bytes of the device, for vdevs with parity of the vdev.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LeafEventKind {
    /// Wrong bytes were read.
    ChecksumError {
        /// See above.
        offset: u64,
        /// See above.
        size: u64,
    },
    /// An operation failed.
    IoError {
        /// See above.
        offset: u64,
        /// See above.
        size: u64,
        /// The system's number of the error.
        errno: i32,
    },
    /// An operation took too long.
    Slow {
        /// See above.
        offset: u64,
        /// See above.
        size: u64,
        /// How long.
        nanoseconds: u64,
    },
    /// It is so much slower than the others of its vdev that it is left out of reads for a time.
    SitOut,
    /// It did not answer a probe after an error.
    ProbeFailed,
    /// Its health changed.
    Health {
        /// What it was.
        from: Health,
        /// What it is.
        to: Health,
    },
}

/// The events of a tree. Clones are the same queue.
#[derive(Clone)]
pub struct LeafEvents(Rc<Queue>);

struct Queue {
    waiting: RefCell<VecDeque<LeafEvent>>,
    dropped: Cell<u64>,
    changed: Event,
}

impl Default for LeafEvents {
    fn default() -> Self {
        Self(Rc::new(Queue {
            waiting: RefCell::default(),
            dropped: Cell::new(0),
            changed: Event::new("news of a device"),
        }))
    }
}

impl LeafEvents {
    pub(crate) fn post(&self, leaf: Guid, what: LeafEventKind) {
        let mut waiting = self.0.waiting.borrow_mut();
        if waiting.len() < EVENTS_MAX {
            waiting.push_back(LeafEvent { leaf, what });
        } else {
            self.0.dropped.set(self.0.dropped.get() + 1);
        }
        assert!(waiting.len() <= EVENTS_MAX, "events do not pile up");
        drop(waiting);
        self.0.changed.notify_all();
    }

    /// Takes what happened since the last call.
    #[must_use]
    pub fn take(&self) -> Vec<LeafEvent> {
        self.0.waiting.borrow_mut().drain(..).collect()
    }

    /// Waits until something happens, or [`LeafEvents::wake`] is called.
    pub async fn wait(&self) {
        if self.0.waiting.borrow().is_empty() {
            self.0.changed.wait().await;
        }
    }

    /// Ends a wait although nothing happened.
    pub fn wake(&self) {
        self.0.changed.notify_all();
    }
}
