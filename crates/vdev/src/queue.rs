//! The queue of one leaf: classes of I/O, priorities and bounded concurrency.
//!
//! Guarantees: never more at the device than the tuning allows; within a class first come, first served; every class
//! gets its minimum before any class gets more. Does not know devices or buffers.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

/// Why an I/O is done; decides its priority.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum IoClass {
    /// A reader waits for the bytes.
    SyncRead,
    /// A writer waits for durability (intent log, labels).
    SyncWrite,
    /// Prefetch.
    AsyncRead,
    /// Transaction-group writes.
    AsyncWrite,
    /// Scrub and resilver, and repairs.
    Scrub,
    /// Discards.
    Trim,
    /// Sequential resilver.
    Rebuild,
}

impl IoClass {
    /// All classes, highest priority first.
    pub const ALL: [Self; 7] = [
        Self::SyncRead,
        Self::SyncWrite,
        Self::AsyncRead,
        Self::AsyncWrite,
        Self::Scrub,
        Self::Trim,
        Self::Rebuild,
    ];

    /// Returns the place in [`IoClass::ALL`].
    #[must_use]
    pub const fn index(self) -> usize {
        self as usize
    }
}

// Classes are counted by their index, and those before scrubs are the clients'.
const _: () = assert!(IoClass::Rebuild.index() + 1 == IoClass::ALL.len());
const _: () = assert!(IoClass::AsyncWrite.index() < IoClass::Scrub.index());

/// How many operations of a class may be at one device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClassLimits {
    /// Always allowed (while the total permits), whatever else is queued.
    pub min: u32,
    /// Not exceeded while a client's reads or writes are at the device or wait for it.
    pub beside_clients: u32,
    /// Never exceeded.
    pub max: u32,
}

/// Limits of one leaf's queue. The minima follow OpenZFS's `zfs_vdev_*_min_active`; the maxima are higher, for flash. What is done in
/// the background has the device for itself only while no client uses it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueueTuning {
    /// Most operations at the device.
    pub total: u32,
    /// By class, in the order of [`IoClass::ALL`].
    pub classes: [ClassLimits; 7],
}

impl Default for QueueTuning {
    fn default() -> Self {
        let limits = |min, beside_clients, max| ClassLimits {
            min,
            beside_clients,
            max,
        };
        Self {
            total: 64,
            classes: [
                limits(10, 32, 32),
                limits(10, 32, 32),
                limits(2, 32, 32),
                limits(4, 24, 24),
                limits(1, 4, 16),
                limits(1, 2, 2),
                limits(1, 4, 16),
            ],
        }
    }
}

/// The queue of one leaf.
pub(crate) struct Queue {
    tuning: QueueTuning,
    state: RefCell<QueueState>,
}

#[derive(Default)]
struct QueueState {
    active: [u32; 7],
    total: u32,
    waiting: [VecDeque<Rc<RefCell<Ticket>>>; 7],
}

#[derive(Default)]
struct Ticket {
    granted: bool,
    waker: Option<Waker>,
}

/// Permission to have one operation at the device; given back on drop.
pub(crate) struct Permit<'a> {
    queue: &'a Queue,
    class: IoClass,
}

struct QueueWait(Rc<RefCell<Ticket>>);

impl Future for QueueWait {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let mut ticket = self.0.borrow_mut();
        if ticket.granted {
            return Poll::Ready(());
        }
        ticket.waker = Some(cx.waker().clone());
        runtime::note_wait("a place in a device queue");
        Poll::Pending
    }
}

impl Queue {
    pub(crate) fn new(tuning: QueueTuning) -> Self {
        assert!(tuning.total > 0, "a device queue lets requests through");
        Self {
            tuning,
            state: RefCell::default(),
        }
    }

    /// Waits for a place at the device.
    pub(crate) async fn enter(&self, class: IoClass) -> Permit<'_> {
        let ticket = {
            let mut state = self.state.borrow_mut();
            if state.waiting[class.index()].is_empty() && self.may_start(&state, class) {
                state.active[class.index()] += 1;
                state.total += 1;
                None
            } else {
                let ticket = Rc::new(RefCell::new(Ticket::default()));
                state.waiting[class.index()].push_back(Rc::clone(&ticket));
                Some(ticket)
            }
        };
        if let Some(ticket) = ticket {
            QueueWait(ticket).await;
        }
        Permit { queue: self, class }
    }

    /// Returns (waiting, at the device) of a class.
    pub(crate) fn depth(&self, class: IoClass) -> (u32, u32) {
        let state = self.state.borrow();
        let waiting = u32::try_from(state.waiting[class.index()].len()).unwrap_or(u32::MAX);
        (waiting, state.active[class.index()])
    }

    /// Returns all operations waiting or at the device.
    pub(crate) fn load(&self) -> usize {
        let state = self.state.borrow();
        state.total as usize + state.waiting.iter().map(VecDeque::len).sum::<usize>()
    }

    fn may_start(&self, state: &QueueState, class: IoClass) -> bool {
        let active = state.active[class.index()];
        if state.total >= self.tuning.total || active >= self.bound(state, class.index()) {
            return false;
        }
        // Above its minimum a class must not pass waiting ones that are below theirs or of higher priority.
        active < self.tuning.classes[class.index()].min
            || !IoClass::ALL.iter().any(|other| {
                let other = other.index();
                !state.waiting[other].is_empty()
                    && (other < class.index()
                        || state.active[other] < self.tuning.classes[other].min)
                    && state.active[other] < self.bound(state, other)
            })
    }

    /// How many of a class may be at the device now.
    fn bound(&self, state: &QueueState, class: usize) -> u32 {
        let limits = &self.tuning.classes[class];
        let clients = ..IoClass::Scrub.index();
        let is_wanted = state.active[clients].iter().any(|&active| active > 0)
            || state.waiting[clients].iter().any(|queue| !queue.is_empty());
        match is_wanted {
            true => limits.beside_clients,
            false => limits.max,
        }
    }

    fn leave(&self, class: IoClass) {
        let mut state = self.state.borrow_mut();
        assert!(
            state.active[class.index()] > 0 && state.total > 0,
            "a permit of {class:?} is given back once"
        );
        state.active[class.index()] -= 1;
        state.total -= 1;
        while let Some(next) = self.next(&state) {
            let ticket = state.waiting[next]
                .pop_front()
                .expect("the class has a waiter");
            state.active[next] += 1;
            state.total += 1;
            let mut ticket = ticket.borrow_mut();
            assert!(!ticket.granted, "a ticket is granted once");
            ticket.granted = true;
            if let Some(waker) = ticket.waker.take() {
                waker.wake();
            }
        }
    }

    /// Returns the class whose first waiter starts next, if any may.
    fn next(&self, state: &QueueState) -> Option<usize> {
        if state.total >= self.tuning.total {
            return None;
        }
        let open = |bound: &dyn Fn(usize) -> u32| {
            (0..state.waiting.len()).find(|&class| {
                !state.waiting[class].is_empty() && state.active[class] < bound(class)
            })
        };
        open(&|class| self.tuning.classes[class].min)
            .or_else(|| open(&|class| self.bound(state, class)))
    }
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        self.queue.leave(self.class);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn enter_at_once(queue: &Queue, class: IoClass) -> Option<Permit<'_>> {
        let mut entering = std::pin::pin!(queue.enter(class));
        match entering
            .as_mut()
            .poll(&mut Context::from_waker(Waker::noop()))
        {
            Poll::Ready(permit) => Some(permit),
            Poll::Pending => None,
        }
    }

    #[test]
    fn a_scrub_has_more_at_a_device_without_clients() {
        let queue = Queue::new(QueueTuning::default());
        let alone: Vec<_> = std::iter::from_fn(|| enter_at_once(&queue, IoClass::Scrub)).collect();
        assert_eq!(alone.len(), 16);
        let queue = Queue::new(QueueTuning::default());
        let client = enter_at_once(&queue, IoClass::SyncRead);
        assert!(client.is_some());
        let beside: Vec<_> = std::iter::from_fn(|| enter_at_once(&queue, IoClass::Scrub)).collect();
        assert_eq!(beside.len(), 4);
    }
}
