//! How many commits wait for the log, and how many of them make a batch worth its while.
//!
//! Whoever is told that a write is safe soon comes with the next one. If all wait for the same batch, they come back at the
//! same time: the first alone, the others too late for its batch. Halves that take turns wait for nobody but themselves.

use std::collections::VecDeque;

/// Into how many batches that are under way at once the commits divide.
const PARTS: u64 = 2;
/// From how many batches the size of the crowd is guessed.
const HISTORY: usize = 8;

/// The commits that wait for a log.
#[derive(Debug, Default)]
pub(crate) struct Crowd {
    /// Those whose records are in no batch yet.
    pub(crate) waiting: u64,
    /// Those of the batches under way.
    under_way: u64,
    /// How many there were altogether when the last batches began.
    recent: VecDeque<u64>,
}

impl Crowd {
    /// Whether those who wait are enough for a batch beside those under way.
    pub(crate) fn is_worth_a_batch(&self) -> bool {
        self.waiting > 0 && self.waiting * PARTS >= self.most()
    }

    /// Whether some of those are missing who came lately.
    pub(crate) fn expects_more(&self) -> bool {
        self.waiting + self.under_way < self.most()
    }

    /// How many there were lately.
    fn most(&self) -> u64 {
        self.recent.iter().copied().max().unwrap_or(0)
    }

    /// Takes all who wait into a batch; returns how many they are.
    pub(crate) fn begin(&mut self) -> u64 {
        let waiting = std::mem::take(&mut self.waiting);
        self.under_way += waiting;
        if self.recent.len() == HISTORY {
            self.recent.pop_front();
        }
        self.recent.push_back(self.under_way);
        waiting
    }

    /// Takes note of the end of a batch of so many.
    pub(crate) fn end(&mut self, commits: u64) {
        self.under_way -= commits;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(waiting: u64, batches: &[u64]) -> Crowd {
        let mut crowd = Crowd::default();
        for &commits in batches {
            crowd.waiting = commits;
            crowd.begin();
        }
        crowd.waiting = waiting;
        crowd
    }

    #[test]
    fn halves_take_turns() {
        assert!(!of(0, &[]).is_worth_a_batch());
        // Whoever comes second does not wait for a third that may not be there.
        assert!(of(1, &[1]).is_worth_a_batch());
        assert!(!of(15, &[1, 31]).is_worth_a_batch());
        assert!(of(16, &[1, 31]).is_worth_a_batch());
    }

    #[test]
    fn those_are_expected_who_came_lately() {
        assert!(!of(1, &[]).expects_more());
        let mut crowd = of(1, &[3, 5]);
        assert!(!crowd.expects_more(), "they are under way");
        crowd.end(3);
        assert!(crowd.expects_more());
        crowd.waiting = 3;
        assert!(!crowd.expects_more());
    }

    #[test]
    fn a_crowd_that_has_gone_is_forgotten() {
        let mut crowd = of(0, &[32]);
        crowd.end(32);
        for _ in 0..HISTORY {
            crowd.waiting = 1;
            let commits = crowd.begin();
            crowd.end(commits);
        }
        crowd.waiting = 1;
        assert!(crowd.is_worth_a_batch());
    }
}
