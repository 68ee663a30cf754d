//! The common part: a first-in-first-out queue of waiting futures, each asking for an amount.
//!
//! A waiter is *granted* by the side that releases; the grant is made (the permits are taken) before the waiter runs,
//! so no other waiter can overtake it. A future dropped while waiting leaves the queue; dropped after its grant but before it
//! saw it, it reports the grant as lost so that the owner can pass it on.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use crate::executor::note_wait;

pub(crate) struct Waiter {
    pub(crate) wants: usize,
    granted: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

#[derive(Default)]
pub(crate) struct WaitQueue {
    waiting: RefCell<VecDeque<Rc<Waiter>>>,
}

impl WaitQueue {
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.borrow().is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.waiting.borrow().len()
    }

    pub(crate) fn join(&self, wants: usize) -> Rc<Waiter> {
        let waiter = Rc::new(Waiter {
            wants,
            granted: Cell::new(false),
            waker: RefCell::new(None),
        });
        self.waiting.borrow_mut().push_back(waiter.clone());
        waiter
    }

    /// What the first waiter wants.
    pub(crate) fn first_wants(&self) -> Option<usize> {
        self.waiting.borrow().front().map(|waiter| waiter.wants)
    }

    /// Grants the first waiter and wakes it. Returns false when there is none.
    pub(crate) fn grant_first(&self) -> bool {
        let first = self.waiting.borrow_mut().pop_front();
        let Some(waiter) = first else { return false };
        waiter.granted.set(true);
        let waker = waiter.waker.borrow_mut().take();
        if let Some(waker) = waker {
            waker.wake();
        }
        true
    }

    pub(crate) fn grant_all(&self) {
        // Only those waiting now: a woken task may wait again.
        for _ in 0..self.len() {
            self.grant_first();
        }
    }

    /// Leaves the queue. Returns true when the waiter had already been granted.
    pub(crate) fn leave(&self, waiter: &Rc<Waiter>) -> bool {
        if waiter.granted.get() {
            return true;
        }
        self.waiting
            .borrow_mut()
            .retain(|other| !Rc::ptr_eq(other, waiter));
        false
    }
}

impl Waiter {
    pub(crate) fn poll(&self, name: &'static str, cx: &mut Context<'_>) -> Poll<()> {
        if self.granted.get() {
            return Poll::Ready(());
        }
        note_wait(name);
        *self.waker.borrow_mut() = Some(cx.waker().clone());
        Poll::Pending
    }
}
