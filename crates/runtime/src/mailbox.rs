//! The way into the engine thread: a bounded queue from any thread to one receiver.
//!
//! [`Sender::send`] is a future for any executor (the engine's own, tokio), [`Sender::blocking_send`] for plain
//! threads. Fairness: senders that wait are woken in the order they came, one per freed place; a sender that does
//! not wait may overtake them. The receiver gets `None` once all senders are gone and the queue is empty.
//!
//! Send futures that are dropped before they end have not sent.

use std::collections::{BTreeMap, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use thiserror::Error;

use crate::executor::note_wait;
use crate::host::block_thread_on;

/// The receiver is gone; the message comes back.
#[derive(Clone, Copy, PartialEq, Eq, Error)]
#[error("the receiver is gone")]
pub struct SendError<T>(pub T);

impl<T> std::fmt::Debug for SendError<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SendError(..)")
    }
}

/// Why [`Sender::try_send`] did not send; the message comes back.
#[derive(Clone, Copy, PartialEq, Eq, Error)]
pub enum TrySendError<T> {
    #[error("the mailbox is full")]
    Full(T),
    #[error("the receiver is gone")]
    Closed(T),
}

impl<T> std::fmt::Debug for TrySendError<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Full(_) => "Full(..)",
            Self::Closed(_) => "Closed(..)",
        })
    }
}

struct MailboxState<T> {
    queue: VecDeque<T>,
    receiver_waker: Option<Waker>,
    /// Waiting senders by ticket.
    waiting: BTreeMap<u64, Waker>,
    next_ticket: u64,
    senders: usize,
    receiver_gone: bool,
}

struct Shared<T> {
    bound: usize,
    state: Mutex<MailboxState<T>>,
}

impl<T> Shared<T> {
    fn lock(&self) -> MutexGuard<'_, MailboxState<T>> {
        // No user code runs under this lock, so a poisoned state is still consistent.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Puts messages in. Clone it for every thread.
pub struct Sender<T> {
    shared: Arc<Shared<T>>,
}

/// Takes messages out, on the engine thread.
pub struct Receiver<T> {
    shared: Arc<Shared<T>>,
}

/// Makes a mailbox for at most `bound` (at least 1) undelivered messages.
#[must_use]
pub fn mailbox<T: Send>(bound: usize) -> (Sender<T>, Receiver<T>) {
    let state = MailboxState {
        queue: VecDeque::new(),
        receiver_waker: None,
        waiting: BTreeMap::new(),
        next_ticket: 0,
        senders: 1,
        receiver_gone: false,
    };
    let shared = Arc::new(Shared {
        bound: bound.max(1),
        state: Mutex::new(state),
    });
    (
        Sender {
            shared: shared.clone(),
        },
        Receiver { shared },
    )
}

impl<T> Sender<T> {
    /// Sends without waiting.
    ///
    /// # Errors
    /// `Full`, or `Closed` when the receiver is gone.
    pub fn try_send(&self, message: T) -> Result<(), TrySendError<T>> {
        let mut state = self.shared.lock();
        if state.receiver_gone {
            return Err(TrySendError::Closed(message));
        }
        if state.queue.len() >= self.shared.bound {
            return Err(TrySendError::Full(message));
        }
        state.queue.push_back(message);
        let waker = state.receiver_waker.take();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
        Ok(())
    }

    /// Sends, waiting for a place. Dropping the future before it ends takes the message back.
    pub fn send(&self, message: T) -> Sending<'_, T> {
        Sending {
            sender: self,
            message: Some(message),
            ticket: None,
        }
    }

    /// Sends from a plain thread, blocking it while the mailbox is full. Never call it on the receiver's thread.
    ///
    /// # Errors
    /// When the receiver is gone.
    pub fn blocking_send(&self, message: T) -> Result<(), SendError<T>> {
        block_thread_on(self.send(message))
    }

    /// Returns true when the receiver is gone.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.shared.lock().receiver_gone
    }

    /// Returns the number of undelivered messages.
    #[must_use]
    pub fn len(&self) -> usize {
        self.shared.lock().queue.len()
    }

    /// Returns true when there are no undelivered messages.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        self.shared.lock().senders += 1;
        Self {
            shared: self.shared.clone(),
        }
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        let waker = {
            let mut state = self.shared.lock();
            state.senders -= 1;
            if state.senders == 0 {
                state.receiver_waker.take()
            } else {
                None
            }
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// Future of [`Sender::send`].
pub struct Sending<'a, T> {
    sender: &'a Sender<T>,
    message: Option<T>,
    ticket: Option<u64>,
}

// The message is moved in and out whole, never pinned.
impl<T> Unpin for Sending<'_, T> {}

impl<T> Future for Sending<'_, T> {
    type Output = Result<(), SendError<T>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let shared = &this.sender.shared;
        let mut state = shared.lock();
        let message = this.message.take().expect("not polled after it ended");
        if state.receiver_gone {
            return Poll::Ready(Err(SendError(message)));
        }
        if state.queue.len() < shared.bound {
            if let Some(ticket) = this.ticket.take() {
                state.waiting.remove(&ticket);
            }
            state.queue.push_back(message);
            let waker = state.receiver_waker.take();
            drop(state);
            if let Some(waker) = waker {
                waker.wake();
            }
            return Poll::Ready(Ok(()));
        }
        this.message = Some(message);
        let ticket = *this.ticket.get_or_insert_with(|| {
            state.next_ticket += 1;
            state.next_ticket
        });
        state.waiting.insert(ticket, cx.waker().clone());
        note_wait("a place in a mailbox");
        Poll::Pending
    }
}

impl<T> Drop for Sending<'_, T> {
    fn drop(&mut self) {
        let Some(ticket) = self.ticket.take() else {
            return;
        };
        let next = {
            let mut state = self.sender.shared.lock();
            let was_woken = state.waiting.remove(&ticket).is_none();
            // It was woken for a free place and did not take it: wake the next.
            if was_woken && state.queue.len() < self.sender.shared.bound {
                state.waiting.pop_first().map(|(_, waker)| waker)
            } else {
                None
            }
        };
        if let Some(waker) = next {
            waker.wake();
        }
    }
}

impl<T> Receiver<T> {
    /// Waits for a message; `None` when all senders are gone and everything was delivered.
    pub fn receive(&mut self) -> impl Future<Output = Option<T>> + '_ {
        std::future::poll_fn(|cx| self.poll_receive(cx))
    }

    /// Takes a message if there is one.
    pub fn try_receive(&mut self) -> Option<T> {
        let mut state = self.shared.lock();
        let message = state.queue.pop_front()?;
        let waker = state.waiting.pop_first();
        drop(state);
        if let Some((_, waker)) = waker {
            waker.wake();
        }
        Some(message)
    }

    /// Waits until there is a message, then moves all there are (at most `limit`) to `messages`: one lock for
    /// many. Returns false when all senders are gone and everything was delivered.
    pub fn receive_many<'a>(
        &'a mut self,
        messages: &'a mut Vec<T>,
        limit: usize,
    ) -> impl Future<Output = bool> + 'a {
        std::future::poll_fn(move |cx| {
            let mut state = self.shared.lock();
            if state.queue.is_empty() {
                if state.senders == 0 {
                    return Poll::Ready(false);
                }
                state.receiver_waker = Some(cx.waker().clone());
                note_wait("a message");
                return Poll::Pending;
            }
            let count = state.queue.len().min(limit.max(1));
            messages.extend(state.queue.drain(..count));
            let mut wakers = Vec::new();
            while wakers.len() < count
                && let Some((_, waker)) = state.waiting.pop_first()
            {
                wakers.push(waker);
            }
            drop(state);
            for waker in wakers {
                waker.wake();
            }
            Poll::Ready(true)
        })
    }

    fn poll_receive(&mut self, cx: &mut Context<'_>) -> Poll<Option<T>> {
        let mut state = self.shared.lock();
        if let Some(message) = state.queue.pop_front() {
            let waker = state.waiting.pop_first();
            drop(state);
            if let Some((_, waker)) = waker {
                waker.wake();
            }
            return Poll::Ready(Some(message));
        }
        if state.senders == 0 {
            return Poll::Ready(None);
        }
        state.receiver_waker = Some(cx.waker().clone());
        note_wait("a message");
        Poll::Pending
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        let (messages, wakers) = {
            let mut state = self.shared.lock();
            state.receiver_gone = true;
            (
                std::mem::take(&mut state.queue),
                std::mem::take(&mut state.waiting),
            )
        };
        for waker in wakers.into_values() {
            waker.wake();
        }
        // Outside the lock: dropping a message may drop reply senders and wake their clients.
        drop(messages);
    }
}

#[cfg(test)]
mod tests {
    //! These run under miri too, with many schedules:
    //! `MIRIFLAGS=-Zmiri-many-seeds=0..64 cargo +nightly miri test -p runtime --lib mailbox`.

    use std::thread;

    use super::*;
    use crate::reply::{NoReply, reply};

    /// More senders than places: every message arrives once, those of one sender in order.
    #[test]
    fn nothing_is_lost_or_doubled_when_senders_wait() {
        const SENDERS: u32 = 3;
        const EACH: u32 = if cfg!(miri) { 4 } else { 2000 };
        let (sender, mut receiver) = mailbox::<(u32, u32)>(1);
        let threads: Vec<_> = (0..SENDERS)
            .map(|number| {
                let sender = sender.clone();
                thread::spawn(move || {
                    for message in 0..EACH {
                        sender
                            .blocking_send((number, message))
                            .expect("the receiver lives");
                    }
                })
            })
            .collect();
        drop(sender);
        let mut next = [0; SENDERS as usize];
        while let Some((number, message)) = block_thread_on(receiver.receive()) {
            assert_eq!(next[number as usize], message);
            next[number as usize] += 1;
        }
        assert_eq!(next, [EACH; SENDERS as usize]);
        for thread in threads {
            thread.join().expect("no panic");
        }
    }

    /// A waiting sender that gives up passes its turn on.
    #[test]
    fn a_dropped_send_does_not_swallow_the_wake_up() {
        let (sender, mut receiver) = mailbox::<u32>(1);
        sender.try_send(1).expect("fits");
        let mut cx = Context::from_waker(Waker::noop());
        let mut first = sender.send(2);
        assert!(Pin::new(&mut first).poll(&mut cx).is_pending());
        let other = sender.clone();
        let second = thread::spawn(move || other.blocking_send(3));
        while sender.shared.lock().waiting.len() < 2 {
            thread::yield_now();
        }
        assert_eq!(receiver.try_receive(), Some(1));
        // The first was woken for the free place; it leaves without taking it.
        drop(first);
        second
            .join()
            .expect("no panic")
            .expect("the receiver lives");
        assert_eq!(block_thread_on(receiver.receive()), Some(3));
        drop(sender);
        assert_eq!(block_thread_on(receiver.receive()), None);
    }

    #[test]
    fn many_are_received_at_once_and_all_waiters_wake() {
        let (sender, mut receiver) = mailbox::<u32>(2);
        let threads: Vec<_> = (0..4)
            .map(|number| {
                let sender = sender.clone();
                thread::spawn(move || sender.blocking_send(number))
            })
            .collect();
        drop(sender);
        let mut all = Vec::new();
        while block_thread_on(receiver.receive_many(&mut all, 10)) {}
        all.sort_unstable();
        assert_eq!(all, [0, 1, 2, 3]);
        for thread in threads {
            thread
                .join()
                .expect("no panic")
                .expect("the receiver lived");
        }
    }

    #[test]
    fn the_receivers_end_reaches_waiting_senders_and_repliers() {
        let (sender, receiver) = mailbox::<crate::reply::ReplySender<u32>>(1);
        let (first, answer) = reply();
        assert!(sender.try_send(first).is_ok());
        let waiting = thread::spawn(move || {
            let (second, _answer) = reply();
            sender.blocking_send(second).is_err()
        });
        let client = thread::spawn(move || answer.wait());
        drop(receiver);
        assert!(waiting.join().expect("no panic"));
        assert_eq!(client.join().expect("no panic"), Err(NoReply));
    }

    #[test]
    fn a_reply_crosses_once() {
        for _ in 0..if cfg!(miri) { 2 } else { 500 } {
            let (sender, answer) = reply();
            let server = thread::spawn(move || sender.send(7));
            assert_eq!(answer.wait(), Ok(7));
            server.join().expect("no panic");
            let (sender, answer) = reply();
            let client = thread::spawn(move || drop(answer));
            sender.send(7);
            client.join().expect("no panic");
        }
    }
}
