//! When the devices of a pool are polled next.

use std::cell::Cell;

use runtime::Instant;

/// When devices are polled.
pub(crate) struct Hotplug {
    pub(super) next_poll: Cell<Instant>,
}

impl Hotplug {
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            next_poll: Cell::new(now),
        }
    }
}
