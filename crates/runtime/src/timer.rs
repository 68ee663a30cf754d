//! Waiting for a time.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use crate::executor::{Handle, note_wait};
use crate::time::Instant;

impl Handle {
    /// Waits for `duration`.
    pub fn sleep(&self, duration: Duration) -> Sleep {
        self.sleep_until(self.now() + duration)
    }

    /// Waits until `deadline`; returns at once when it has passed.
    pub fn sleep_until(&self, deadline: Instant) -> Sleep {
        Sleep::new(self.clone(), deadline)
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
            let mut timers = self.handle.timers().borrow_mut();
            timers.cancel(self.deadline, ticket);
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
        let waker = cx.waker();
        match this.ticket {
            Some(ticket) if timers.replace(this.deadline, ticket, waker) => {}
            _ => this.ticket = Some(timers.add(this.deadline, waker.clone())),
        }
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        self.cancel();
    }
}
