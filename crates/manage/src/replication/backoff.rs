//! When a job that failed is tried again: at distances that double, with jitter, up to an hour. Jobs that lost the same peer do not come
//! back at one moment.

use std::time::Duration;

/// Distance after the first failure.
const FIRST: Duration = Duration::from_secs(15);
/// Greatest distance, before jitter.
const MOST: Duration = Duration::from_secs(3600);

/// Failures in a row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Backoff {
    failures: u32,
}

impl Backoff {
    /// Returns how many failures there were in a row.
    #[must_use]
    pub fn failures(self) -> u32 {
        self.failures
    }

    /// Notes a success.
    pub fn succeed(&mut self) {
        self.failures = 0;
    }

    /// Notes a failure, and returns after what time the next attempt is due: the distance of its number, less up to a quarter by `random`.
    pub fn fail(&mut self, random: u32) -> Duration {
        let doublings = self.failures.min(16);
        self.failures = self.failures.saturating_add(1);
        let distance = FIRST.saturating_mul(1 << doublings).min(MOST);
        let jitter = f64::from(random) / f64::from(u32::MAX) / 4.0;
        distance.mul_f64(1.0 - jitter)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_double_up_to_an_hour_and_are_not_all_the_same() {
        let mut backoff = Backoff::default();
        let exact: Vec<u64> = (0..10).map(|_| backoff.fail(0).as_secs()).collect();
        assert_eq!(exact, [15, 30, 60, 120, 240, 480, 960, 1920, 3600, 3600]);
        assert_eq!(backoff.failures(), 10);
        assert_eq!(backoff.fail(u32::MAX).as_secs(), 2700);
        backoff.succeed();
        assert_eq!(backoff.fail(0).as_secs(), 15);
        let mut never = Backoff { failures: u32::MAX };
        assert_eq!(never.fail(0).as_secs(), 3600);
    }
}
