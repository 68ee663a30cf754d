//! The answer to a request: one value from the engine thread to the requesting thread.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

use thiserror::Error;

use crate::executor::note_wait;
use crate::host::block_thread_on;

/// The engine went away (or dropped the request) without replying.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error("the request was dropped without a reply")]
pub struct NoReply;

enum ReplyState<T> {
    Empty(Option<Waker>),
    Sent(T),
    Taken,
    SenderGone,
    ReplyGone,
}

/// Sends the reply.
pub struct ReplySender<T> {
    state: Arc<Mutex<ReplyState<T>>>,
}

/// Future of the reply.
pub struct Reply<T> {
    state: Arc<Mutex<ReplyState<T>>>,
}

/// Makes both ends.
#[must_use]
pub fn reply<T: Send>() -> (ReplySender<T>, Reply<T>) {
    let state = Arc::new(Mutex::new(ReplyState::Empty(None)));
    (
        ReplySender {
            state: state.clone(),
        },
        Reply { state },
    )
}

fn replace<T>(state: &Mutex<ReplyState<T>>, change: impl FnOnce(&mut ReplyState<T>)) {
    change(&mut state.lock().unwrap_or_else(PoisonError::into_inner));
}

impl<T> ReplySender<T> {
    /// Sends. The value is dropped when the reply future is gone.
    pub fn send(self, value: T) {
        let mut waker = None;
        let mut unwanted = None;
        replace(&self.state, |state| {
            match std::mem::replace(state, ReplyState::Taken) {
                ReplyState::Empty(waiting) => {
                    waker = waiting;
                    *state = ReplyState::Sent(value);
                }
                other => {
                    *state = other;
                    unwanted = Some(value);
                }
            }
        });
        if let Some(waker) = waker {
            waker.wake();
        }
        drop(unwanted);
    }

    /// Returns true when the reply future is gone.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        let mut closed = false;
        replace(&self.state, |state| {
            closed = matches!(state, ReplyState::ReplyGone);
        });
        closed
    }
}

impl<T> Drop for ReplySender<T> {
    fn drop(&mut self) {
        let mut waker = None;
        replace(&self.state, |state| {
            if let ReplyState::Empty(waiting) = state {
                waker = waiting.take();
                *state = ReplyState::SenderGone;
            }
        });
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl<T> Reply<T> {
    /// Blocks this (plain) thread until the reply is there.
    ///
    /// # Errors
    /// When the other end dropped the request.
    pub fn wait(self) -> Result<T, NoReply> {
        block_thread_on(self)
    }
}

impl<T> Future for Reply<T> {
    type Output = Result<T, NoReply>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut *state {
            ReplyState::Empty(waker) => {
                *waker = Some(cx.waker().clone());
                note_wait("a reply");
                Poll::Pending
            }
            ReplyState::SenderGone => Poll::Ready(Err(NoReply)),
            _ => match std::mem::replace(&mut *state, ReplyState::Taken) {
                ReplyState::Sent(value) => Poll::Ready(Ok(value)),
                _ => panic!("a reply is taken once"),
            },
        }
    }
}

impl<T> Drop for Reply<T> {
    fn drop(&mut self) {
        let mut unwanted = None;
        replace(&self.state, |state| {
            unwanted = Some(std::mem::replace(state, ReplyState::ReplyGone));
        });
        drop(unwanted);
    }
}
