//! The task that completes what is counted by owner.

use std::cell::{Cell, RefCell};

use runtime::JoinHandle;

/// The task that completes the counts.
#[derive(Default)]
pub(crate) struct Counting {
    pub(crate) task: RefCell<Option<JoinHandle<()>>>,
    /// The counts it was last started for. One that failed is not started again for the same ones.
    pub(crate) tried: Cell<u64>,
}
