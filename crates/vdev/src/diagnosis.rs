//! When a leaf fails too often.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::time::Duration;

use runtime::Instant;

/// Most errors of a kind whose times are kept, for each device: what a limit may count to.
const TIMES_MAX: u64 = 10_000;

/// So many errors within a time are too many.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ErrorBurst {
    /// Errors; 0, and more than 10,000, is never reached.
    pub count: u64,
    /// The time.
    pub within: Duration,
}

impl ErrorBurst {
    /// Without a setting.
    // OpenZFS: cmd/zed/agents/zfs_diagnosis.c (io and checksum, N = 10, T = 10 minutes)
    const DEFAULT: Self = Self {
        count: 10,
        within: Duration::from_secs(600),
    };
    /// Whatever happens.
    const NEVER: Self = Self {
        count: 0,
        within: Duration::ZERO,
    };

    /// The errors it counts to; `None` if it is never reached.
    fn reached_at(self) -> Option<usize> {
        let count = Some(self.count).filter(|count| (1..=TIMES_MAX).contains(count))?;
        usize::try_from(count).ok()
    }
}

const _: () = assert!(ErrorBurst::DEFAULT.count > 1 && ErrorBurst::DEFAULT.count <= TIMES_MAX);

/// How many errors take a device out of service, or mark it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ErrorLimits {
    /// Failed reads and writes: it is taken out if the others make up for it.
    pub io: ErrorBurst,
    /// Wrong bytes: it is degraded.
    pub checksum: ErrorBurst,
    /// Operations of more than 30 seconds: it is degraded.
    pub slow: ErrorBurst,
}

impl Default for ErrorLimits {
    fn default() -> Self {
        Self {
            io: ErrorBurst::DEFAULT,
            checksum: ErrorBurst::DEFAULT,
            slow: ErrorBurst::NEVER,
        }
    }
}

/// The times of the last errors of one kind.
#[derive(Debug, Default)]
pub(crate) struct ErrorTimes(RefCell<VecDeque<Instant>>);

impl ErrorTimes {
    pub(crate) fn note(&self, now: Instant, limit: ErrorBurst) {
        let Some(count) = limit.reached_at() else {
            return self.clear();
        };
        let mut times = self.0.borrow_mut();
        while times.len() >= count {
            times.pop_front();
        }
        assert!(times.len() < count, "no more times than a limit counts to");
        times.push_back(now);
    }

    pub(crate) fn clear(&self) {
        self.0.borrow_mut().clear();
    }

    /// Whether there were too many; they are forgotten then.
    pub(crate) fn take_burst(&self, now: Instant, limit: ErrorBurst) -> bool {
        let Some(count) = limit.reached_at() else {
            return false;
        };
        assert!(count > 0, "a limit of no errors is never reached");
        let mut times = self.0.borrow_mut();
        let oldest = times.len().checked_sub(count);
        let first = oldest.and_then(|at| times.get(at));
        let burst = first.is_some_and(|first| now - *first <= limit.within);
        if burst {
            times.clear();
        }
        burst
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_too_many_when_a_limit_says_so() {
        let at = |seconds| Instant::ORIGIN + Duration::from_secs(seconds);
        let burst = |count, seconds| ErrorBurst {
            count,
            within: Duration::from_secs(seconds),
        };
        let reached = |limit, errors: &[u64]| {
            let times = ErrorTimes::default();
            for &second in errors {
                times.note(at(second), limit);
            }
            times.take_burst(at(*errors.last().expect("one")), limit)
        };
        assert!(reached(burst(3, 10), &[0, 20, 25, 30]));
        assert!(!reached(burst(3, 10), &[0, 20, 25, 31]));
        assert!(reached(burst(1, 0), &[7]));
        assert!(!reached(burst(0, 10), &[1, 2, 3]));
        assert!(!reached(burst(TIMES_MAX + 1, u64::MAX), &[1, 2, 3]));
        assert!(!reached(ErrorBurst::NEVER, &[1, 2, 3]));

        // A limit that is lowered counts what was noted before.
        let times = ErrorTimes::default();
        (0..5).for_each(|second| times.note(at(second), burst(10, 100)));
        assert!(!times.take_burst(at(5), burst(10, 100)));
        assert!(times.take_burst(at(5), burst(4, 100)));
    }
}
