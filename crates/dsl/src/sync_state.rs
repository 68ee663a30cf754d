//! The state of the sync loop: queued sync tasks, the pass that runs, the meta-objset's own space, the first failure.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;

use dmu::Tx;
use ondisk::Txg;

use crate::bpobj::Bpobj;
use crate::error::DslError;
use crate::space::Delta;
use crate::types::HistoryEvent;

/// A change to be made in syncing context, given the pool it is made in.
pub(crate) type QueuedTask<P> = Box<dyn FnOnce(Rc<P>, Rc<Tx>) -> Pin<Box<dyn Future<Output = ()>>>>;

/// The first pass whose frees are deferred to the next txg. OpenZFS: `zfs_sync_pass_deferred_free`.
const PASS_DEFERRED_FREE: u32 = 2;
/// A pass count that means the txg does not converge: a broken invariant of ours.
const PASS_MAX: u32 = 64;

const _: () = assert!(1 < PASS_DEFERRED_FREE && PASS_DEFERRED_FREE < PASS_MAX);

/// The state of the sync loop of a pool `P`.
pub(crate) struct SyncState<P> {
    tasks: RefCell<VecDeque<(Txg, QueuedTask<P>)>>,
    /// The pass running now.
    pass: Cell<Option<u32>>,
    /// Space of the meta-objset that is not accounted to `$MOS` yet.
    mos_delta: Cell<Delta>,
    /// Blocks whose freeing is deferred to the next txg.
    pub(crate) sync_bplist: Bpobj,
    /// The error of a task that failed after it changed something: no txg may be committed any more.
    poison: RefCell<Option<DslError>>,
    events: RefCell<Vec<HistoryEvent>>,
}

impl<P> SyncState<P> {
    pub(crate) fn new(sync_bplist: Bpobj) -> Self {
        Self {
            tasks: RefCell::default(),
            pass: Cell::new(None),
            mos_delta: Cell::default(),
            sync_bplist,
            poison: RefCell::default(),
            events: RefCell::default(),
        }
    }

    /// Queues a task for a txg that is open.
    pub(crate) fn queue(&self, txg: Txg, task: QueuedTask<P>) {
        self.tasks.borrow_mut().push_back((txg, task));
    }

    /// Whether tasks of `txg` or before are queued.
    pub(crate) fn has_tasks(&self, txg: Txg) -> bool {
        self.tasks.borrow().iter().any(|(t, _)| *t <= txg)
    }

    /// Takes the next task of `txg` or before.
    pub(crate) fn next_task(&self, txg: Txg) -> Option<QueuedTask<P>> {
        let mut tasks = self.tasks.borrow_mut();
        match tasks.front() {
            Some((t, _)) if *t <= txg => tasks.pop_front().map(|(_, task)| task),
            _ => None,
        }
    }

    pub(crate) fn begin_pass(&self, pass: u32) {
        assert!(pass > 0 && pass < PASS_MAX, "the sync of a txg converges");
        assert!(self.pass.get().is_none(), "one pass runs at a time");
        self.pass.set(Some(pass));
    }

    pub(crate) fn end_pass(&self) {
        assert!(self.pass.get().is_some(), "a pass ends after it began");
        self.pass.set(None);
    }

    /// Whether blocks freed now are freed with the next txg.
    pub(crate) fn defers_frees(&self) -> bool {
        self.pass
            .get()
            .is_some_and(|pass| pass >= PASS_DEFERRED_FREE)
    }

    pub(crate) fn take_mos_delta(&self) -> Delta {
        self.mos_delta.take()
    }

    pub(crate) fn set_mos_delta(&self, delta: Delta) {
        self.mos_delta.set(delta);
    }

    pub(crate) fn has_mos_delta(&self) -> bool {
        !self.mos_delta.get().is_zero()
    }

    /// Records that a change failed half-way.
    pub(crate) fn poison(&self, error: DslError) {
        *self.poison.borrow_mut() = Some(error);
    }

    /// The error of a change that failed half-way.
    pub(crate) fn poisoned(&self) -> Option<DslError> {
        self.poison.borrow().clone()
    }

    pub(crate) fn add_event(&self, event: HistoryEvent) {
        self.events.borrow_mut().push(event);
    }

    pub(crate) fn take_events(&self) -> Vec<HistoryEvent> {
        std::mem::take(&mut *self.events.borrow_mut())
    }
}
