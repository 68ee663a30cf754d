//! The sequential resilvers of a pool, in memory.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use ondisk::Guid;
use ondisk::rebuild::{RebuildPhys, rebuild_state};
use runtime::JoinHandle;

use crate::spec::RebuildTuning;

/// All rebuilds of a pool.
pub(crate) struct Rebuilds {
    pub(super) tuning: RebuildTuning,
    /// By top-level vdev: under way, or the last one.
    pub(super) jobs: RefCell<BTreeMap<u32, Rc<Rebuild>>>,
    /// Rebuilds stand still, for tests.
    pub(super) paused: Cell<bool>,
}

/// The rebuild of one top-level vdev.
pub(super) struct Rebuild {
    pub(super) vdev: u32,
    pub(super) phys: Cell<RebuildPhys>,
    /// The devices it works for.
    pub(super) targets: RefCell<Vec<Guid>>,
    pub(super) pass: Cell<Pass>,
    /// Told to stop.
    pub(super) stopped: Cell<bool>,
    pub(super) task: RefCell<Option<JoinHandle<()>>>,
}

/// Counts of this session, which are not kept on disk.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pass {
    pub(super) began_nanoseconds: u64,
    /// What earlier sessions took.
    pub(super) earlier_ms: u64,
    pub(super) scanned: u64,
    pub(super) issued: u64,
    pub(super) skipped: u64,
}

impl Rebuilds {
    pub(crate) fn new(tuning: RebuildTuning) -> Self {
        Self {
            paused: Cell::new(tuning.paused),
            tuning,
            jobs: RefCell::default(),
        }
    }

    /// Whether a rebuild is under way anywhere.
    pub(crate) fn is_active(&self) -> bool {
        self.jobs.borrow().values().any(|job| job.is_active())
    }

    pub(super) fn job(&self, vdev: u32) -> Option<Rc<Rebuild>> {
        self.jobs.borrow().get(&vdev).cloned()
    }

    pub(super) fn all(&self) -> Vec<Rc<Rebuild>> {
        self.jobs.borrow().values().cloned().collect()
    }
}

impl Rebuild {
    pub(super) fn new(vdev: u32, phys: RebuildPhys) -> Rc<Self> {
        Rc::new(Self {
            vdev,
            phys: Cell::new(phys),
            targets: RefCell::default(),
            pass: Cell::default(),
            stopped: Cell::new(false),
            task: RefCell::default(),
        })
    }

    pub(super) fn is_active(&self) -> bool {
        self.phys.get().state == rebuild_state::ACTIVE
    }

    pub(super) fn change(&self, change: impl FnOnce(&mut RebuildPhys)) {
        let mut phys = self.phys.get();
        change(&mut phys);
        self.phys.set(phys);
    }

    /// Stops the worker, and waits until it has.
    pub(super) async fn stop(&self) {
        self.stopped.set(true);
        let task = self.task.borrow_mut().take();
        if let Some(task) = task {
            task.await;
        }
        self.stopped.set(false);
    }
}
