//! Counted permits, first come, first served: a large request at the front is not overtaken by small ones.

use std::cell::Cell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use super::wait_queue::{WaitQueue, Waiter};

/// A number of permits. Clones share them.
#[derive(Clone)]
pub struct Semaphore {
    shared: Rc<Shared>,
}

struct Shared {
    name: &'static str,
    available: Cell<usize>,
    queue: WaitQueue,
}

/// Permits held; given back when dropped.
pub struct Permit {
    shared: Rc<Shared>,
    count: usize,
}

/// Future of [`Semaphore::acquire`].
pub struct Acquire {
    shared: Rc<Shared>,
    waiter: Option<Rc<Waiter>>,
    count: usize,
}

impl Semaphore {
    /// Makes a semaphore of `permits`; `name` reads well after "waits for".
    #[must_use]
    pub fn new(name: &'static str, permits: usize) -> Self {
        Self {
            shared: Rc::new(Shared {
                name,
                available: Cell::new(permits),
                queue: WaitQueue::default(),
            }),
        }
    }

    /// Waits for `count` permits. A count that exceeds everything there ever is waits for ever.
    pub fn acquire(&self, count: usize) -> Acquire {
        Acquire {
            shared: self.shared.clone(),
            waiter: None,
            count,
        }
    }

    /// Takes `count` permits if they are free and the queue is empty.
    #[must_use]
    pub fn try_acquire(&self, count: usize) -> Option<Permit> {
        self.shared.take(count).then(|| Permit {
            shared: self.shared.clone(),
            count,
        })
    }

    /// Adds permits.
    pub fn add(&self, count: usize) {
        self.shared.give(count);
    }

    /// Returns the number of free permits.
    #[must_use]
    pub fn available(&self) -> usize {
        self.shared.available.get()
    }

    /// Returns how many wait.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.shared.queue.len()
    }
}

impl Shared {
    fn take(&self, count: usize) -> bool {
        let available = self.available.get();
        let free = self.queue.is_empty() && available >= count;
        if free {
            self.available.set(available - count);
        }
        free
    }

    fn give(&self, count: usize) {
        self.available.set(self.available.get() + count);
        self.grant();
    }

    fn grant(&self) {
        while let Some(wants) = self.queue.first_wants()
            && self.available.get() >= wants
        {
            self.available.set(self.available.get() - wants);
            self.queue.grant_first();
        }
    }
}

impl Permit {
    /// Returns the number of permits held.
    #[must_use]
    pub fn count(&self) -> usize {
        self.count
    }

    /// Gives back `count` of the permits now.
    ///
    /// # Panics
    /// When fewer are held.
    pub fn give_back(&mut self, count: usize) {
        self.count = self.count.checked_sub(count).expect("not more than held");
        self.shared.give(count);
    }

    /// Keeps the permits for ever.
    pub fn forget(mut self) {
        self.count = 0;
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if self.count > 0 {
            self.shared.give(self.count);
        }
    }
}

impl Future for Acquire {
    type Output = Permit;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Permit> {
        let this = &mut *self;
        if this.waiter.is_none() {
            if this.shared.take(this.count) {
                return Poll::Ready(Permit {
                    shared: this.shared.clone(),
                    count: this.count,
                });
            }
            this.waiter = Some(this.shared.queue.join(this.count));
        }
        let waiter = this.waiter.as_ref().expect("joined above");
        match waiter.poll(this.shared.name, cx) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(()) => {
                this.waiter = None;
                Poll::Ready(Permit {
                    shared: this.shared.clone(),
                    count: this.count,
                })
            }
        }
    }
}

impl Drop for Acquire {
    fn drop(&mut self) {
        if let Some(waiter) = self.waiter.take() {
            if self.shared.queue.leave(&waiter) {
                self.shared.give(self.count);
            } else {
                // A large request that leaves the front may free the way for those behind it.
                self.shared.grant();
            }
        }
    }
}
