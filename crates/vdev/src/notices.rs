//! What happens to devices, told to whoever reports it: errors, wrong bytes, slowness, changes of health.
//!
//! Guarantees: bounded; nobody waits for it to be read. Does not know what blocks hold.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

use ondisk::Guid;
use runtime::sync::Event;

use crate::Health;

/// Most notices kept until somebody reads them; further ones are dropped.
const KEPT: usize = 512;

/// Something that happened to a leaf.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Notice {
    /// The leaf.
    pub leaf: Guid,
    /// What.
    pub what: Happening,
}

/// What happened. Offsets and sizes are bytes of the device, for vdevs with parity of the vdev.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Happening {
    /// Wrong bytes were read.
    WrongBytes {
        /// See above.
        offset: u64,
        /// See above.
        size: u64,
    },
    /// An operation failed.
    Failed {
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

/// The notices of a tree. Clones are the same queue.
#[derive(Clone)]
pub struct Notices(Rc<Queue>);

struct Queue {
    waiting: RefCell<VecDeque<Notice>>,
    dropped: Cell<u64>,
    changed: Event,
}

impl Default for Notices {
    fn default() -> Self {
        Self(Rc::new(Queue {
            waiting: RefCell::default(),
            dropped: Cell::new(0),
            changed: Event::new("news of a device"),
        }))
    }
}

impl Notices {
    pub(crate) fn tell(&self, leaf: Guid, what: Happening) {
        let mut waiting = self.0.waiting.borrow_mut();
        if waiting.len() < KEPT {
            waiting.push_back(Notice { leaf, what });
        } else {
            self.0.dropped.set(self.0.dropped.get() + 1);
        }
        drop(waiting);
        self.0.changed.notify_all();
    }

    /// Takes what happened since the last call.
    #[must_use]
    pub fn take(&self) -> Vec<Notice> {
        self.0.waiting.borrow_mut().drain(..).collect()
    }

    /// Waits until something happens, or [`Notices::wake`] is called.
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
