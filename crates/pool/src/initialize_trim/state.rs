//! The trims and initializations of all leaves, in memory.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use ondisk::Guid;
use runtime::JoinHandle;
use runtime::sync::Mutex;

use crate::PoolError;
use crate::status::{LeafActivityState, LeafActivityStatus};

/// Background activity on the free space of a leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LeafActivity {
    /// It is discarded.
    Trim,
    /// It is written once.
    Initialize,
}

/// A request about an activity of a leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeafActivityRequest {
    /// Begin, or go on where it was suspended. `rate` is the most bytes a second, 0 for no bound; `None` leaves it as it was.
    Start {
        /// See above.
        rate: Option<u64>,
    },
    /// Stop until further notice.
    Suspend,
    /// Stop.
    Cancel,
    /// Drop the record that it was ever done.
    Uninit,
}

impl LeafActivity {
    /// Returns the keys of state, time and offset in a device's ZAP.
    pub(super) fn keys(self) -> [&'static str; 3] {
        match self {
            Self::Trim => [
                "org.zfsonlinux:vdev_trim_state",
                "org.zfsonlinux:vdev_trim_action_time",
                "org.zfsonlinux:next_offset_to_trim",
            ],
            Self::Initialize => [
                "com.delphix:vdev_initialize_state",
                "com.delphix:vdev_initialize_action_time",
                "com.delphix:next_offset_to_initialize",
            ],
        }
    }

    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Trim => "trim",
            Self::Initialize => "initialize",
        }
    }

    pub(super) fn busy(self) -> PoolError {
        PoolError::InUse(match self {
            Self::Trim => "currently trimming",
            Self::Initialize => "currently initializing",
        })
    }

    pub(super) fn idle(self) -> PoolError {
        PoolError::InUse(match self {
            Self::Trim => "there is no active trim",
            Self::Initialize => "there is no active initialization",
        })
    }
}

/// Free bytes of a leaf that an activity is about, and those of them that are done.
#[derive(Clone, Copy, Default)]
pub(super) struct ActivityProgress {
    pub(super) done_bytes: u64,
    pub(super) all_bytes: u64,
}

/// One activity on one device.
#[derive(Default)]
pub(super) struct ActivityJob {
    pub(super) state: Cell<LeafActivityState>,
    pub(super) time: Cell<u64>,
    /// Bytes of the device up to which it is done.
    pub(super) offset: Cell<u64>,
    pub(super) rate: Cell<u64>,
    pub(super) unsupported: Cell<bool>,
    /// The worker is to stop.
    pub(super) stopped: Cell<bool>,
    pub(super) task: RefCell<Option<JoinHandle<()>>>,
}

/// The trims and initializations of all devices.
#[derive(Default)]
pub(crate) struct LeafActivities {
    pub(super) jobs: RefCell<BTreeMap<(LeafActivity, Guid), Rc<ActivityJob>>>,
    /// One worker at a time on each top-level vdev: leaves of a mirror have the same free space.
    pub(super) turns: RefCell<BTreeMap<u32, Mutex<()>>>,
    /// The pool is being closed.
    pub(super) closing: Cell<bool>,
}

impl LeafActivities {
    pub(super) fn job(&self, what: LeafActivity, leaf: Guid) -> Rc<ActivityJob> {
        let mut jobs = self.jobs.borrow_mut();
        Rc::clone(jobs.entry((what, leaf)).or_default())
    }

    /// Whether the pool is being closed.
    pub(crate) fn is_closing(&self) -> bool {
        self.closing.get()
    }

    pub(crate) fn turn(&self, top: u32) -> Mutex<()> {
        let mut turns = self.turns.borrow_mut();
        let new = || Mutex::new("another worker on the free space of the vdev", ());
        turns.entry(top).or_insert_with(new).clone()
    }
}

impl ActivityJob {
    /// Stops the worker, and waits until it has.
    pub(super) async fn stop(&self) {
        self.stopped.set(true);
        let task = self.task.borrow_mut().take();
        if let Some(task) = task {
            task.await;
        }
        self.stopped.set(false);
    }

    pub(super) fn status(&self, progress: ActivityProgress) -> LeafActivityStatus {
        let state = self.state.get();
        let active = state == LeafActivityState::Active;
        LeafActivityStatus {
            state,
            time: self.time.get(),
            percent: match state {
                LeafActivityState::Complete => 100,
                _ => progress.done_bytes * 100 / (progress.all_bytes + 1),
            },
            remaining_bytes: match active {
                true => progress.all_bytes - progress.done_bytes,
                false => 0,
            },
            unsupported: self.unsupported.get(),
        }
    }
}
