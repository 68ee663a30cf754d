//! Which hot spares did not fit, and whether some are being activated.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;

use ondisk::Guid;

/// The activation of hot spares.
#[derive(Default)]
pub(crate) struct HotSpares {
    /// Spares that did not fit: failed device, spare.
    pub(super) rejected: RefCell<BTreeSet<(Guid, Guid)>>,
    /// A task activates spares.
    pub(super) activating: Cell<bool>,
}

impl HotSpares {
    /// Has spares that did not fit tried again: devices have changed.
    pub(crate) fn clear_rejected(&self) {
        self.rejected.borrow_mut().clear();
    }
}
