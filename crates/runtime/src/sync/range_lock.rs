//! Locks on ranges of bytes (of a file, a volume), shared or exclusive, in order of arrival.
//!
//! A range that conflicts with one held, or with one that waits since longer, waits; so no request starves. Single-threaded;
//! a lock is held until its guard is dropped.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

/// All bytes.
pub const WHOLE_RANGE: Range<u64> = 0..u64::MAX;

/// The held and the awaited ranges of one file or volume.
#[derive(Debug, Default)]
pub struct RangeLock {
    state: RefCell<RangeLockState>,
}

#[derive(Debug, Default)]
struct RangeLockState {
    next_ticket: u64,
    held: Vec<LockRequest>,
    waiting: VecDeque<(LockRequest, Option<Waker>)>,
}

#[derive(Debug, Clone)]
struct LockRequest {
    ticket: u64,
    range: Range<u64>,
    exclusive: bool,
}

impl LockRequest {
    fn conflicts(&self, other: &Self) -> bool {
        (self.exclusive || other.exclusive)
            && self.range.start < other.range.end
            && other.range.start < self.range.end
    }
}

/// A held range.
#[derive(Debug)]
pub struct RangeGuard<'a> {
    lock: &'a RangeLock,
    ticket: u64,
}

impl RangeLock {
    /// Waits for a range others may hold at the same time.
    #[must_use]
    pub fn shared(&self, range: Range<u64>) -> Acquire<'_> {
        Acquire {
            lock: self,
            range,
            exclusive: false,
            ticket: None,
        }
    }

    /// Waits for a range without another holder.
    #[must_use]
    pub fn exclusive(&self, range: Range<u64>) -> Acquire<'_> {
        Acquire {
            lock: self,
            range,
            exclusive: true,
            ticket: None,
        }
    }

    fn release(&self, ticket: u64) {
        let mut state = self.state.borrow_mut();
        state.held.retain(|e| e.ticket != ticket);
        // Wakes the requests that can be granted now, in order; each takes its range when it is polled.
        let RangeLockState { held, waiting, .. } = &mut *state;
        for i in 0..waiting.len() {
            let free = {
                let entry = &waiting[i].0;
                held.iter().all(|h| !h.conflicts(entry))
                    && waiting.iter().take(i).all(|(w, _)| !w.conflicts(entry))
            };
            if free && let Some(waker) = waiting[i].1.take() {
                waker.wake();
            }
        }
    }
}

impl Drop for RangeGuard<'_> {
    fn drop(&mut self) {
        self.lock.release(self.ticket);
    }
}

/// The wait for a range.
#[derive(Debug)]
pub struct Acquire<'a> {
    lock: &'a RangeLock,
    range: Range<u64>,
    exclusive: bool,
    ticket: Option<u64>,
}

impl<'a> Future for Acquire<'a> {
    type Output = RangeGuard<'a>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let lock = self.lock;
        let mut state = lock.state.borrow_mut();
        let ticket = self.ticket.unwrap_or(state.next_ticket);
        let entry = LockRequest {
            ticket,
            range: self.range.clone(),
            exclusive: self.exclusive,
        };
        let free = state.held.iter().all(|h| !h.conflicts(&entry))
            && state
                .waiting
                .iter()
                .take_while(|(w, _)| w.ticket != ticket)
                .all(|(w, _)| !w.conflicts(&entry));
        if free {
            if self.ticket.take().is_some() {
                state.waiting.retain(|(w, _)| w.ticket != ticket);
            } else {
                state.next_ticket += 1;
            }
            state.held.push(entry);
            return Poll::Ready(RangeGuard { lock, ticket });
        }
        crate::note_wait("a range of bytes");
        let waker = Some(cx.waker().clone());
        if self.ticket.is_some() {
            if let Some(slot) = state.waiting.iter_mut().find(|(w, _)| w.ticket == ticket) {
                slot.1 = waker;
            }
        } else {
            state.next_ticket += 1;
            state.waiting.push_back((entry, waker));
            drop(state);
            self.ticket = Some(ticket);
        }
        Poll::Pending
    }
}

impl Drop for Acquire<'_> {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket {
            self.lock
                .state
                .borrow_mut()
                .waiting
                .retain(|(w, _)| w.ticket != ticket);
            // Later requests may have waited for this one only.
            self.lock.release(ticket);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn poll<'a>(wait: &mut Pin<Box<Acquire<'a>>>) -> Option<RangeGuard<'a>> {
        match wait.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(guard) => Some(guard),
            Poll::Pending => None,
        }
    }

    #[test]
    fn shared_ranges_overlap_and_exclusive_ones_wait_in_order() {
        let lock = RangeLock::default();
        let first = poll(&mut Box::pin(lock.shared(0..10))).expect("free");
        let second = poll(&mut Box::pin(lock.shared(5..15))).expect("shared");
        let mut writer = Box::pin(lock.exclusive(8..9));
        assert!(poll(&mut writer).is_none());
        let mut late_reader = Box::pin(lock.shared(0..20));
        assert!(poll(&mut late_reader).is_none(), "behind the writer");
        let elsewhere = poll(&mut Box::pin(lock.exclusive(20..30)));
        assert!(elsewhere.is_some(), "no conflict");
        drop(elsewhere);
        drop(first);
        assert!(poll(&mut writer).is_none());
        drop(second);
        let guard = poll(&mut writer).expect("free now");
        assert!(poll(&mut late_reader).is_none());
        drop(guard);
        assert!(poll(&mut late_reader).is_some());
    }

    #[test]
    fn a_wait_given_up_frees_those_behind_it() {
        let lock = RangeLock::default();
        let reader = poll(&mut Box::pin(lock.shared(0..10))).expect("free");
        let mut writer = Box::pin(lock.exclusive(0..10));
        assert!(poll(&mut writer).is_none());
        let mut behind = Box::pin(lock.shared(0..10));
        assert!(poll(&mut behind).is_none());
        drop(writer);
        assert!(poll(&mut behind).is_some());
        drop(reader);
    }
}
