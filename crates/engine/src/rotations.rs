//! The rotations of keys of one pool that are worked on, how far they are, and why others failed.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use runtime::sync::Event;

/// The rotations of one pool, by the guids of their datasets.
#[derive(Default)]
pub(crate) struct Rotations {
    running: RefCell<BTreeMap<u64, Rc<Progress>>>,
    failed: RefCell<BTreeMap<u64, String>>,
    /// The pool is about to end.
    ending: Cell<bool>,
}

/// How far a rotation is that is worked on.
pub(crate) struct Progress {
    copied: Cell<u64>,
    total: Cell<u64>,
    stop: Cell<bool>,
    over: Event,
}

impl Progress {
    /// Bytes copied.
    pub(crate) fn copied(&self) -> u64 {
        self.copied.get()
    }

    /// Bytes to be copied, about.
    pub(crate) fn total(&self) -> u64 {
        self.total.get()
    }

    pub(crate) fn set_total(&self, bytes: u64) {
        self.total.set(bytes);
    }

    /// Counts bytes that were copied; returns whether it is to go on.
    pub(crate) fn goes_on(&self, bytes: u64) -> bool {
        self.copied.set(self.copied.get().saturating_add(bytes));
        !self.stop.get()
    }

    /// Has the work end at a place where it can be gone on with, and waits for that.
    pub(crate) async fn stop(&self) {
        self.stop.set(true);
        self.over.wait().await;
    }
}

impl Rotations {
    /// Notes that a rotation is worked on; none when it is already, or the pool is about to end.
    pub(crate) fn begin(&self, guid: u64, total: u64) -> Option<Rc<Progress>> {
        let mut running = self.running.borrow_mut();
        if self.ending.get() || running.contains_key(&guid) {
            return None;
        }
        let progress = Rc::new(Progress {
            copied: Cell::new(0),
            total: Cell::new(total),
            stop: Cell::new(false),
            over: Event::new("the end of a key rotation"),
        });
        self.failed.borrow_mut().remove(&guid);
        running.insert(guid, Rc::clone(&progress));
        Some(progress)
    }

    /// Notes that a rotation is not worked on any more, and why if it failed.
    pub(crate) fn end(&self, guid: u64, failed: Option<String>) {
        if let Some(why) = failed {
            self.failed.borrow_mut().insert(guid, why);
        }
        if let Some(progress) = self.running.borrow_mut().remove(&guid) {
            progress.over.notify_all();
        }
    }

    pub(crate) fn of(&self, guid: u64) -> Option<Rc<Progress>> {
        self.running.borrow().get(&guid).cloned()
    }

    /// Why a rotation failed since the pool was imported, unless it was begun again.
    pub(crate) fn failure(&self, guid: u64) -> Option<String> {
        self.failed.borrow().get(&guid).cloned()
    }

    pub(crate) fn forget(&self, guid: u64) {
        self.failed.borrow_mut().remove(&guid);
    }

    /// Has all work end where it can be gone on with, and no other begin.
    pub(crate) fn stop(&self) {
        self.ending.set(true);
        for progress in self.running.borrow().values() {
            progress.stop.set(true);
        }
    }

    /// Lets work begin again after [`Rotations::stop`]: the pool stays.
    pub(crate) fn resume(&self) {
        self.ending.set(false);
    }

    /// Waits until none is worked on.
    pub(crate) async fn stopped(&self) {
        loop {
            let first = self.running.borrow().values().next().cloned();
            let Some(progress) = first else { return };
            progress.over.wait().await;
        }
    }
}
