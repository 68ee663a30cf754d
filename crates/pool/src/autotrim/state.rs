//! What automatic trimming remembers between two rounds of the sync loop.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;

use ondisk::Guid;
use runtime::JoinHandle;

/// State of automatic trimming.
#[derive(Default)]
pub(crate) struct AutotrimState {
    /// Whether freed space is being collected.
    pub(super) on: Cell<bool>,
    pub(super) rounds: Cell<u32>,
    /// Devices that cannot discard.
    pub(super) unable: RefCell<BTreeSet<Guid>>,
    pub(super) task: RefCell<Option<JoinHandle<()>>>,
}
