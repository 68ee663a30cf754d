//! Expansions of raidz vdevs in memory.

use std::cell::{Cell, RefCell};

use runtime::JoinHandle;

use crate::spec::ReflowTuning;
use crate::status::ExpansionStatus;

/// Expansions in memory: the one under way, or the newest.
pub(crate) struct Reflows {
    pub(super) tuning: ReflowTuning,
    pub(super) newest: Cell<Option<ExpansionStatus>>,
    /// The pool is being closed.
    pub(super) closing: Cell<bool>,
    /// Nothing moves, for tests.
    pub(super) paused: Cell<bool>,
    pub(super) task: RefCell<Option<JoinHandle<()>>>,
}

impl Reflows {
    pub(crate) fn new(tuning: ReflowTuning) -> Self {
        let paused = Cell::new(tuning.paused);
        Self {
            tuning,
            newest: Cell::new(None),
            closing: Cell::new(false),
            paused,
            task: RefCell::new(None),
        }
    }
}
