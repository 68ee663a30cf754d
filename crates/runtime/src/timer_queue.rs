//! Timers, ordered by deadline, then by the order in which the sleeps began.

use std::collections::BTreeMap;
use std::task::Waker;

use crate::time::Instant;

/// The timers of one executor.
#[derive(Default)]
pub(crate) struct TimerQueue {
    queue: BTreeMap<(Instant, u64), Waker>,
    next_ticket: u64,
}

impl TimerQueue {
    /// Has `waker` called at `deadline`. Returns the ticket under which the timer is found.
    pub(crate) fn add(&mut self, deadline: Instant, waker: Waker) -> u64 {
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        self.queue.insert((deadline, ticket), waker);
        ticket
    }

    /// Returns when the first timer is due.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.queue
            .first_key_value()
            .map(|((deadline, _), _)| *deadline)
    }

    /// Removes and returns one timer that is due.
    pub(crate) fn pop_due(&mut self, now: Instant) -> Option<Waker> {
        let entry = self.queue.first_entry()?;
        (entry.key().0 <= now).then(|| entry.remove())
    }

    /// Empties the queue.
    pub(crate) fn clear(&mut self) -> Vec<Waker> {
        std::mem::take(&mut self.queue).into_values().collect()
    }

    /// Replaces the waker of a timer; false when it is not there any more.
    pub(crate) fn replace(&mut self, deadline: Instant, ticket: u64, waker: &Waker) -> bool {
        let found = self.queue.get_mut(&(deadline, ticket));
        found.map(|old| old.clone_from(waker)).is_some()
    }

    /// Takes a timer back.
    pub(crate) fn cancel(&mut self, deadline: Instant, ticket: u64) {
        self.queue.remove(&(deadline, ticket));
    }
}
