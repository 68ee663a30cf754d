//! How far a target was behind its source, as runs found it: the recovery point that a job keeps.

use std::collections::VecDeque;
use std::time::Duration;

/// Runs that are remembered: an hour of those of a job that is never idle.
const RUNS_MAX: usize = 2000;

/// What would have been lost at the worst moment before each of the last runs that sent something: the time from the state that the target
/// had until it had the next one.
#[derive(Clone, Debug, Default)]
pub(super) struct Behind {
    runs: VecDeque<Duration>,
}

/// The recovery point of the last runs of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecoveryPoint {
    /// Runs that it is made of.
    pub runs: usize,
    /// Half of the runs were not further behind.
    pub median: Duration,
    /// 99 of a hundred were not.
    pub p99: Duration,
    /// None was.
    pub max: Duration,
}

impl Behind {
    pub(super) fn add(&mut self, behind: Duration) {
        if self.runs.len() >= RUNS_MAX {
            self.runs.pop_front();
        }
        self.runs.push_back(behind);
    }

    /// `None` before the first run that sent something beyond an initial copy.
    pub(super) fn recovery_point(&self) -> Option<RecoveryPoint> {
        let mut sorted: Vec<Duration> = self.runs.iter().copied().collect();
        sorted.sort_unstable();
        let max = *sorted.last()?;
        let share = |percent: usize| sorted[(sorted.len() * percent).div_ceil(100).max(1) - 1];
        Some(RecoveryPoint {
            runs: sorted.len(),
            median: share(50),
            p99: share(99),
            max,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_those_of_the_last_runs() {
        let mut behind = Behind::default();
        assert_eq!(behind.recovery_point(), None);
        behind.add(Duration::from_secs(9));
        let point = behind.recovery_point().expect("one");
        assert_eq!(
            (point.median, point.p99, point.max),
            (
                Duration::from_secs(9),
                Duration::from_secs(9),
                Duration::from_secs(9)
            )
        );
        for second in 1..=100 {
            behind.add(Duration::from_secs(second));
        }
        let point = behind.recovery_point().expect("many");
        assert_eq!(
            (
                point.runs,
                point.median.as_secs(),
                point.p99.as_secs(),
                point.max.as_secs()
            ),
            (101, 50, 99, 100)
        );
        for _ in 0..2 * RUNS_MAX {
            behind.add(Duration::ZERO);
        }
        let point = behind.recovery_point().expect("many");
        assert_eq!((point.runs, point.max), (RUNS_MAX, Duration::ZERO));
    }
}
