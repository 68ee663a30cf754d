//! The waiting primitives of this layer: a broadcast and a fair reader/writer lock, both for one thread.
//!
//! They are here and not in `runtime` because they are polled by owner-side state that is checked in a loop: a wait ends at the
//! next notification whatever its reason, the caller looks again.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::task::{Poll, Waker};

/// A broadcast: every waiting task wakes at the next `notify_all`.
#[derive(Default)]
pub(crate) struct Notify {
    epoch: Cell<u64>,
    waiters: RefCell<Vec<Waker>>,
}

impl Notify {
    /// Wakes every task that waits now.
    pub(crate) fn notify_all(&self) {
        self.epoch.set(self.epoch.get() + 1);
        for waker in self.waiters.take() {
            waker.wake();
        }
    }

    /// Waits for the next `notify_all` after the call. `what` names the wait for people reading a stall report.
    pub(crate) fn wait(&self, what: &'static str) -> impl Future<Output = ()> + '_ {
        let epoch = self.epoch.get();
        poll_fn(move |cx| {
            if self.epoch.get() != epoch {
                return Poll::Ready(());
            }
            let mut waiters = self.waiters.borrow_mut();
            if !waiters.iter().any(|w| w.will_wake(cx.waker())) {
                waiters.push(cx.waker().clone());
            }
            runtime::note_wait(what);
            Poll::Pending
        })
    }
}

/// A fair reader/writer lock without data: many readers or one writer, in order of arrival.
#[derive(Default)]
pub(crate) struct Gate {
    state: RefCell<GateState>,
}

#[derive(Default)]
struct GateState {
    readers: usize,
    writer: bool,
    next_ticket: u64,
    queue: VecDeque<Waiter>,
}

struct Waiter {
    ticket: u64,
    write: bool,
    waker: Option<Waker>,
}

/// Proof of a held `Gate`; dropping it lets the next in.
pub(crate) struct Pass<'a> {
    gate: &'a Gate,
    write: bool,
}

impl Gate {
    /// Enters together with other readers.
    pub(crate) async fn read(&self) -> Pass<'_> {
        self.enter(false).await
    }

    /// Enters alone.
    pub(crate) async fn write(&self) -> Pass<'_> {
        self.enter(true).await
    }

    async fn enter(&self, write: bool) -> Pass<'_> {
        if !self.try_enter(write) {
            let ticket = {
                let mut state = self.state.borrow_mut();
                let ticket = state.next_ticket;
                state.next_ticket += 1;
                state.queue.push_back(Waiter {
                    ticket,
                    write,
                    waker: None,
                });
                ticket
            };
            poll_fn(|cx| {
                let mut state = self.state.borrow_mut();
                // Admission is done by the one who leaves; a waiter that is no longer queued has been admitted.
                match state.queue.iter_mut().find(|w| w.ticket == ticket) {
                    Some(waiter) => {
                        waiter.waker = Some(cx.waker().clone());
                        runtime::note_wait("another operation on the same object");
                        Poll::Pending
                    }
                    None => Poll::Ready(()),
                }
            })
            .await;
        }
        Pass { gate: self, write }
    }

    fn try_enter(&self, write: bool) -> bool {
        let mut state = self.state.borrow_mut();
        if !state.queue.is_empty() || state.writer || (write && state.readers > 0) {
            return false;
        }
        if write {
            state.writer = true;
        } else {
            state.readers += 1;
        }
        true
    }

    fn leave(&self, write: bool) {
        let mut state = self.state.borrow_mut();
        if write {
            state.writer = false;
        } else {
            state.readers -= 1;
        }
        let mut woken = Vec::new();
        while let Some(first) = state.queue.front() {
            if state.writer || (first.write && state.readers > 0) {
                break;
            }
            let first = state.queue.pop_front().expect("the front was just seen");
            if first.write {
                state.writer = true;
            } else {
                state.readers += 1;
            }
            woken.extend(first.waker);
        }
        drop(state);
        for waker in woken {
            waker.wake();
        }
    }
}

impl Drop for Pass<'_> {
    fn drop(&mut self) {
        self.gate.leave(self.write);
    }
}

/// A counting semaphore for at most `limit` things under way at once; first come, first served.
pub(crate) struct Limit {
    state: RefCell<LimitState>,
}

struct LimitState {
    free: usize,
    next_ticket: u64,
    queue: VecDeque<(u64, Option<Waker>)>,
}

/// One of the things under way.
pub(crate) struct Permit<'a>(&'a Limit);

impl Limit {
    pub(crate) fn new(limit: usize) -> Self {
        Self {
            state: RefCell::new(LimitState {
                free: limit,
                next_ticket: 0,
                queue: VecDeque::new(),
            }),
        }
    }

    pub(crate) async fn acquire(&self, what: &'static str) -> Permit<'_> {
        let ticket = {
            let mut state = self.state.borrow_mut();
            if state.free > 0 {
                state.free -= 1;
                return Permit(self);
            }
            let ticket = state.next_ticket;
            state.next_ticket += 1;
            state.queue.push_back((ticket, None));
            ticket
        };
        poll_fn(|cx| {
            let mut state = self.state.borrow_mut();
            // A released place goes straight to the first in the queue, who then no longer is in it.
            match state.queue.iter_mut().find(|w| w.0 == ticket) {
                Some(waiter) => {
                    waiter.1 = Some(cx.waker().clone());
                    runtime::note_wait(what);
                    Poll::Pending
                }
                None => Poll::Ready(()),
            }
        })
        .await;
        Permit(self)
    }
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state.borrow_mut();
        match state.queue.pop_front() {
            Some((_, waker)) => {
                drop(state);
                if let Some(waker) = waker {
                    waker.wake();
                }
            }
            None => state.free += 1,
        }
    }
}
