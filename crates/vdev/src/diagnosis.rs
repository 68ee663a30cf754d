//! When a leaf fails too often.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::time::Duration;

use runtime::Instant;

/// So many errors within [`BURST_WITHIN`] take a leaf out or mark it.
// OpenZFS: cmd/zed/agents/zfs_diagnosis.c (io and checksum, N = 10, T = 10 minutes)
const BURST: usize = 10;
/// See [`BURST`].
const BURST_WITHIN: Duration = Duration::from_secs(600);
const _: () = assert!(BURST > 1);

/// The times of the last errors of one kind.
#[derive(Debug, Default)]
pub(crate) struct ErrorTimes(RefCell<VecDeque<Instant>>);

impl ErrorTimes {
    pub(crate) fn note(&self, now: Instant) {
        let mut times = self.0.borrow_mut();
        assert!(times.len() <= BURST, "no more times than a burst has");
        if times.len() == BURST {
            times.pop_front();
        }
        times.push_back(now);
    }

    pub(crate) fn clear(&self) {
        self.0.borrow_mut().clear();
    }

    /// Whether there were too many; they are forgotten then.
    pub(crate) fn take_burst(&self, now: Instant) -> bool {
        let mut times = self.0.borrow_mut();
        let first = times.front().filter(|_| times.len() == BURST);
        let burst = first.is_some_and(|first| now <= *first + BURST_WITHIN);
        if burst {
            times.clear();
        }
        burst
    }
}
