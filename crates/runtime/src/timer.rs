//! Timers: a queue ordered by deadline, then by the order in which the sleeps began.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use crate::executor::{Handle, note_wait};
use crate::time::Instant;

#[derive(Default)]
pub(crate) struct Timers {
    queue: BTreeMap<(Instant, u64), Waker>,
    next_ticket: u64,
}

impl Timers {
    fn add(&mut self, deadline: Instant, waker: Waker) -> u64 {
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        self.queue.insert((deadline, ticket), waker);
        ticket
    }

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

    pub(crate) fn clear(&mut self) -> Vec<Waker> {
        std::mem::take(&mut self.queue).into_values().collect()
    }
}

/// Future of [`Handle::sleep_until`].
pub struct Sleep {
    handle: Handle,
    deadline: Instant,
    ticket: Option<u64>,
}

impl Sleep {
    pub(crate) fn new(handle: Handle, deadline: Instant) -> Self {
        Self {
            handle,
            deadline,
            ticket: None,
        }
    }

    fn cancel(&mut self) {
        if let Some(ticket) = self.ticket.take() {
            self.handle
                .timers()
                .borrow_mut()
                .queue
                .remove(&(self.deadline, ticket));
        }
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.handle.now() >= self.deadline {
            self.cancel();
            return Poll::Ready(());
        }
        note_wait("sleep");
        let this = &mut *self;
        let mut timers = this.handle.timers().borrow_mut();
        let waker = cx.waker().clone();
        match this.ticket {
            Some(ticket) if timers.queue.contains_key(&(this.deadline, ticket)) => {
                timers.queue.insert((this.deadline, ticket), waker);
            }
            _ => this.ticket = Some(timers.add(this.deadline, waker)),
        }
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        self.cancel();
    }
}
