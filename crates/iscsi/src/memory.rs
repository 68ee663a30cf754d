//! Admission of commands by the memory for their data, over all sessions.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::pdu::Held;

/// The bytes that commands' data may take at once.
#[derive(Debug)]
pub(crate) struct MemoryBudget {
    used_bytes: AtomicUsize,
    bytes_max: usize,
}

impl MemoryBudget {
    pub(crate) fn new(bytes_max: usize) -> Arc<Self> {
        Arc::new(Self {
            used_bytes: AtomicUsize::new(0),
            bytes_max,
        })
    }

    /// Reserves memory, unless too much is in use.
    pub(crate) fn reserve(self: &Arc<Self>, bytes: usize) -> Option<Arc<MemoryReservation>> {
        let before = self.used_bytes.fetch_add(bytes, Ordering::AcqRel);
        // Made in any case: its drop takes back what was added.
        let reservation = MemoryReservation {
            budget: self.clone(),
            bytes,
        };
        (before.saturating_add(bytes) <= self.bytes_max).then(|| Arc::new(reservation))
    }
}

/// Reserved memory; dropping it gives the bytes back.
#[derive(Debug)]
pub(crate) struct MemoryReservation {
    budget: Arc<MemoryBudget>,
    bytes: usize,
}

impl Held for MemoryReservation {}

impl Drop for MemoryReservation {
    fn drop(&mut self) {
        let before = self
            .budget
            .used_bytes
            .fetch_sub(self.bytes, Ordering::AcqRel);
        assert!(before >= self.bytes, "more memory given back than reserved");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reservations_end_at_the_limit_and_return_their_bytes() {
        let budget = MemoryBudget::new(10);
        let first = budget.reserve(6).expect("fits");
        assert!(budget.reserve(5).is_none());
        let second = budget.reserve(4).expect("the refused one took nothing");
        drop((first, second));
        assert!(budget.reserve(10).is_some());
    }
}
