//! Sleep and wake-up of an engine thread, and the list on which other threads leave completions.
//!
//! An eventfd ends the sleep; it is written only when the engine sleeps (or is about to), so that a busy engine costs
//! its callers no system call.
//!
//! ```text
//!            prepare           unpark: write eventfd
//!   AWAKE ----------> SLEEPING ----------------------> NOTIFIED
//!     ^ \                 | finish                       |
//!     |  \ unpark         v                              |
//!     |   `-----------> NOTIFIED ---- prepare: do not sleep / finish
//!     `---------------------------------------------------
//! ```

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use crate::driver::Unpark;

const AWAKE: u8 = 0;
const SLEEPING: u8 = 1;
const NOTIFIED: u8 = 2;

pub(crate) struct Parker {
    state: AtomicU8,
    event: OwnedFd,
}

impl Parker {
    pub(crate) fn new() -> Self {
        let flags = EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC;
        Self {
            state: AtomicU8::new(AWAKE),
            event: eventfd(0, flags).expect("a file descriptor is left for the engine's wake-up"),
        }
    }

    /// Announces a sleep. Returns false when it was notified since the last [`Parker::finish`]: then do not sleep.
    pub(crate) fn prepare(&self) -> bool {
        self.state
            .compare_exchange(AWAKE, SLEEPING, Ordering::SeqCst, Ordering::SeqCst)
            .is_ok()
    }

    /// Returns true when it was notified since the last [`Parker::finish`].
    pub(crate) fn is_notified(&self) -> bool {
        self.state.load(Ordering::Acquire) == NOTIFIED
    }

    /// Ends a sleep or a refused one. After it, look at everything that other threads may have left.
    pub(crate) fn finish(&self) {
        self.state.store(AWAKE, Ordering::SeqCst);
    }

    /// Sleeps until the eventfd is written or the time is over. Only between `prepare` and `finish`.
    pub(crate) fn sleep(&self, limit: Option<Duration>) {
        let limit = limit.and_then(|limit| Timespec::try_from(limit).ok());
        let mut fds = [PollFd::new(&self.event, PollFlags::IN)];
        // Interrupted or not: the caller looks and comes back.
        if poll(&mut fds, limit.as_ref()).is_ok_and(|ready| ready > 0) {
            self.clear();
        }
    }

    /// Takes the eventfd's count.
    pub(crate) fn clear(&self) {
        let mut count = [0; 8];
        let _ = rustix::io::read(&self.event, &mut count);
    }

    pub(crate) fn event(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}

impl Unpark for Parker {
    #[allow(
        clippy::host_endian_bytes,
        reason = "an eventfd takes the machine's own order"
    )]
    fn unpark(&self) {
        if self.state.swap(NOTIFIED, Ordering::SeqCst) == SLEEPING {
            // Can only fail when the counter is full, and then the engine will wake anyway.
            let _ = rustix::io::write(&self.event, &1_u64.to_ne_bytes());
        }
    }
}

/// What other threads hand to the engine thread.
pub(crate) struct Inbox<T> {
    list: Mutex<Vec<T>>,
    pub(crate) parker: std::sync::Arc<Parker>,
}

impl<T> Inbox<T> {
    pub(crate) fn new() -> Self {
        Self {
            list: Mutex::new(Vec::new()),
            parker: std::sync::Arc::new(Parker::new()),
        }
    }

    pub(crate) fn push(&self, item: T) {
        self.list
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(item);
        self.parker.unpark();
    }

    pub(crate) fn take(&self) -> Vec<T> {
        std::mem::take(&mut *self.list.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
