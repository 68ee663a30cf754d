//! One value from one task to another on the same thread.

use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use thiserror::Error;

use crate::executor::note_wait;

/// The sender was dropped without sending.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error("the sending side is gone")]
pub struct Closed;

struct OneshotState<T> {
    name: &'static str,
    value: Option<T>,
    waker: Option<Waker>,
    sender_gone: bool,
    receiver_gone: bool,
}

/// Sends the value.
pub struct OneshotSender<T> {
    state: Rc<RefCell<OneshotState<T>>>,
}

/// Future of the value.
pub struct OneshotReceiver<T> {
    state: Rc<RefCell<OneshotState<T>>>,
}

/// Makes both ends; `name` reads well after "waits for".
#[must_use]
pub fn oneshot<T>(name: &'static str) -> (OneshotSender<T>, OneshotReceiver<T>) {
    let state = OneshotState {
        name,
        value: None,
        waker: None,
        sender_gone: false,
        receiver_gone: false,
    };
    let state = Rc::new(RefCell::new(state));
    (
        OneshotSender {
            state: state.clone(),
        },
        OneshotReceiver { state },
    )
}

impl<T> OneshotSender<T> {
    /// Sends.
    ///
    /// # Errors
    /// Gives the value back when the receiver is gone.
    pub fn send(self, value: T) -> Result<(), T> {
        let mut state = self.state.borrow_mut();
        if state.receiver_gone {
            return Err(value);
        }
        state.value = Some(value);
        Ok(())
    }

    /// Returns true when the receiver is gone.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.state.borrow().receiver_gone
    }
}

impl<T> Drop for OneshotSender<T> {
    fn drop(&mut self) {
        let waker = {
            let mut state = self.state.borrow_mut();
            state.sender_gone = true;
            state.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl<T> Future for OneshotReceiver<T> {
    type Output = Result<T, Closed>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.state.borrow_mut();
        if let Some(value) = state.value.take() {
            return Poll::Ready(Ok(value));
        }
        if state.sender_gone {
            return Poll::Ready(Err(Closed));
        }
        note_wait(state.name);
        state.waker = Some(cx.waker().clone());
        Poll::Pending
    }
}

impl<T> Drop for OneshotReceiver<T> {
    fn drop(&mut self) {
        let value = {
            let mut state = self.state.borrow_mut();
            state.receiver_gone = true;
            state.value.take()
        };
        drop(value);
    }
}
