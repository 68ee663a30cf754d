//! An event without memory: a notification reaches only the waits under way when it happens.
//!
//! Because tasks are atomic between awaits, "look at the state; if not as wanted, wait" has no lost wake-up, provided
//! there is no await between the look and the call of [`Event::wait`].

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use super::wait_queue::{WaitQueue, Waiter};

/// Something that happens now and then. Clones are the same event.
#[derive(Clone)]
pub struct Event {
    shared: Rc<Shared>,
}

struct Shared {
    name: &'static str,
    queue: WaitQueue,
}

/// Future of [`Event::wait`].
pub struct EventWait {
    shared: Rc<Shared>,
    waiter: Rc<Waiter>,
    seen: bool,
}

impl Event {
    /// Makes an event; `name` reads well after "waits for".
    #[must_use]
    pub fn new(name: &'static str) -> Self {
        Self {
            shared: Rc::new(Shared {
                name,
                queue: WaitQueue::default(),
            }),
        }
    }

    /// Waits for the next notification, counted from this call (not from the first poll).
    #[must_use]
    pub fn wait(&self) -> EventWait {
        EventWait {
            shared: self.shared.clone(),
            waiter: self.shared.queue.join(1),
            seen: false,
        }
    }

    /// Ends all waits under way.
    pub fn notify_all(&self) {
        self.shared.queue.grant_all();
    }

    /// Ends the oldest wait; returns false when there is none. If that future is dropped before it ran, the
    /// notification passes to the next.
    pub fn notify_one(&self) -> bool {
        self.shared.queue.grant_first()
    }

    /// Returns how many wait.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.shared.queue.len()
    }
}

impl Future for EventWait {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let poll = self.waiter.poll(self.shared.name, cx);
        if poll.is_ready() {
            self.seen = true;
        }
        poll
    }
}

impl Drop for EventWait {
    fn drop(&mut self) {
        if !self.seen && self.shared.queue.leave(&self.waiter) {
            self.shared.queue.grant_first();
        }
    }
}
