//! The tasks that wait for the next round of the sync loop, its newest uberblock, and the loop's own task.
//!
//! `P` is the pool that a task works on, which is declared above.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;

use dmu::Tx;
use ondisk::{Txg, Uberblock};
use runtime::JoinHandle;
use runtime::sync::OneshotSender;

use crate::PoolError;

/// Work of the pool's own that runs at the start of a sync.
pub(super) type SyncWork<P> =
    Box<dyn FnOnce(Rc<P>, Rc<Tx>) -> Pin<Box<dyn Future<Output = Result<(), PoolError>>>>>;

pub(super) struct SyncTask<P> {
    pub(super) work: SyncWork<P>,
    /// Gets the txg, once the work was done in it.
    pub(super) done: OneshotSender<Result<Txg, PoolError>>,
}

impl<P: 'static> SyncTask<P> {
    pub(super) fn new(
        work: impl AsyncFnOnce(Rc<P>, Rc<Tx>) -> Result<(), PoolError> + 'static,
        done: OneshotSender<Result<Txg, PoolError>>,
    ) -> Self {
        let work: SyncWork<P> = Box::new(move |imported, tx| Box::pin(work(imported, tx)));
        Self { work, done }
    }
}

pub(super) type TaskQueue<P> = RefCell<VecDeque<SyncTask<P>>>;

/// The loop that syncs one txg after another, and what waits for its next round.
pub(crate) struct SyncLoop<P> {
    pub(super) tasks: TaskQueue<P>,
    /// Those that run before anything of their txg is freed.
    pub(super) early_tasks: TaskQueue<P>,
    /// The newest uberblock.
    pub(super) last_uberblock: Cell<Uberblock>,
    pub(super) task: RefCell<Option<JoinHandle<()>>>,
}

impl<P: 'static> SyncLoop<P> {
    /// Makes the loop of a pool whose newest uberblock is this; it does not run yet.
    pub(crate) fn new(uberblock: Uberblock) -> Self {
        Self {
            tasks: RefCell::default(),
            early_tasks: RefCell::default(),
            last_uberblock: Cell::new(uberblock),
            task: RefCell::default(),
        }
    }

    /// Whether tasks wait for the next txg.
    pub(crate) fn has_tasks(&self) -> bool {
        !self.tasks.borrow().is_empty() || !self.early_tasks.borrow().is_empty()
    }

    /// Returns the newest uberblock.
    pub(crate) fn last_uberblock(&self) -> Uberblock {
        self.last_uberblock.get()
    }

    /// Takes the task of the loop, to wait for its end.
    pub(crate) fn take_loop(&self) -> Option<JoinHandle<()>> {
        self.task.borrow_mut().take()
    }
}
