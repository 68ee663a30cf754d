//! The checkpoint of an imported pool, in memory.

use std::cell::{Cell, RefCell};

use ondisk::Uberblock;
use runtime::JoinHandle;

/// The checkpoint of a pool, and its discarding.
#[derive(Default)]
pub(crate) struct CheckpointState {
    pub(super) uberblock: Cell<Option<Uberblock>>,
    /// The space it kept is being freed.
    pub(super) discarding: Cell<bool>,
    /// The pool is being closed.
    pub(super) stopped: Cell<bool>,
    pub(super) task: RefCell<Option<JoinHandle<()>>>,
}
