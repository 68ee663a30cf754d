//! The batches in which commits reach the disk: the state of each, their order, and when one is worth its write.
//!
//! ```text
//!            elect            issue           placed            finish
//!  Gathering ----> Gathering ------> Placing -------> Writing ---------> Done
//!                  with a leader     (one at a time)  (up to three)      (in order)
//! ```
//! A batch gathers the commits whose records were chosen since the last one was issued; one of these commits, its leader,
//! writes it for all. Batches end in the order in which they were issued, whichever reaches its devices first.
//!
//! Clients that were answered by the same batch come back at the same time with their next write: the first finds the log
//! idle, the others are too late for its batch. So a batch is issued beside others only when it has a fair part of the
//! commits seen lately, and two halves take turns without waiting for each other.
//!
//! Does not know records, blocks or devices: see `batch`.
// OpenZFS: module/zfs/zil.c, zil_commit_writer and the states of an lwb (include/sys/zil_impl.h, lwb_state_t)

use std::collections::VecDeque;

use ondisk::Txg;

/// Batches under way at once that the commits divide into.
const PARTS: u64 = 2;
/// Batches from which the number of commits to expect is guessed.
const HISTORY: usize = 8;
/// Batches that are on their way to the disk at once.
const UNDER_WAY_MAX: usize = 3;

const _: () = assert!(PARTS <= UNDER_WAY_MAX as u64 && HISTORY > 0);

/// Where a batch is on its way to the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BatchState {
    /// Commits join it. `has_leader`: one of them is about to issue it.
    Gathering { has_leader: bool },
    /// Its records are given their places in the log blocks.
    Placing,
    /// Its log blocks, or the txgs of its records, are being written.
    Writing,
    /// Its commits have their answer.
    Done,
}

/// One batch.
#[derive(Debug)]
struct Batch {
    state: BatchState,
    /// Commits that wait for it.
    commits: u64,
    /// Records ever chosen when it was issued: those up to this number are in it, or in one before.
    end: u64,
    /// The chain is broken before its blocks: a reader of the log would not find them.
    is_unreachable: bool,
}

impl Batch {
    fn new() -> Self {
        Self {
            state: BatchState::Gathering { has_leader: false },
            commits: 0,
            end: 0,
            is_unreachable: false,
        }
    }

    fn transition(&mut self, to: BatchState) {
        let is_next = matches!(
            (self.state, to),
            (
                BatchState::Gathering { has_leader: false },
                BatchState::Gathering { has_leader: true }
            ) | (
                BatchState::Gathering { has_leader: true },
                BatchState::Placing
            ) | (BatchState::Placing, BatchState::Writing)
                | (BatchState::Writing, BatchState::Done)
        );
        assert!(
            is_next,
            "a batch of log records cannot go from {:?} to {to:?}",
            self.state
        );
        self.state = to;
    }
}

/// The batches of one log.
#[derive(Debug)]
pub(crate) struct GroupCommit {
    /// Batches that were issued and are not done, oldest first.
    issued: VecDeque<Batch>,
    gathering: Batch,
    /// Batches that are done; the oldest one issued has the number after this.
    done: u64,
    /// Records ever chosen by commits that are durable.
    durable: u64,
    /// Records ever chosen by commits whose batch was issued.
    taken: u64,
    /// The txg in which the log blocks of the newest batch are allocated.
    txg: Txg,
    /// Commits there were altogether when each of the last batches was issued.
    recent: VecDeque<u64>,
}

impl Default for GroupCommit {
    fn default() -> Self {
        Self {
            issued: VecDeque::new(),
            gathering: Batch::new(),
            done: 0,
            durable: 0,
            taken: 0,
            txg: Txg(0),
            recent: VecDeque::new(),
        }
    }
}

impl GroupCommit {
    /// Adds a commit that waits for the first `target` records ever chosen, unless an issued batch has them.
    pub(crate) fn join(&mut self, target: u64) {
        if !self.is_issued(target) {
            self.gathering.commits += 1;
        }
    }

    /// Whether the first `target` records ever chosen are durable.
    pub(crate) fn is_durable(&self, target: u64) -> bool {
        self.durable >= target
    }

    /// Whether all of the first `target` records ever chosen are in issued batches.
    pub(crate) fn is_issued(&self, target: u64) -> bool {
        self.taken >= target
    }

    /// Whether a commit may lead the gathering batch now. Beside other batches only one that is worth it is issued: a log
    /// that many use would else be written for each of them alone. `exclusive`: none is issued beside another.
    pub(crate) fn may_issue(&self, exclusive: bool) -> bool {
        let under_way_max = if exclusive { 1 } else { UNDER_WAY_MAX };
        !self.is_claimed()
            && self.issued.len() < under_way_max
            && (self.issued.is_empty() || self.is_worth_a_batch())
    }

    /// Whether a batch is being issued or under way.
    pub(crate) fn is_busy(&self) -> bool {
        self.is_claimed() || !self.issued.is_empty()
    }

    /// Whether a commit is about to issue the gathering batch, or one is being placed.
    fn is_claimed(&self) -> bool {
        let has_leader = self.gathering.state == BatchState::Gathering { has_leader: true };
        let newest = self.issued.back();
        has_leader || newest.is_some_and(|batch| batch.state == BatchState::Placing)
    }

    /// Whether commits are missing that were seen lately.
    pub(crate) fn expects_more(&self) -> bool {
        self.gathering.commits + self.commits_under_way() < self.commits_lately()
    }

    fn is_worth_a_batch(&self) -> bool {
        let commits = self.gathering.commits;
        commits > 0 && commits * PARTS >= self.commits_lately()
    }

    fn commits_under_way(&self) -> u64 {
        self.issued.iter().map(|batch| batch.commits).sum()
    }

    fn commits_lately(&self) -> u64 {
        self.recent.iter().copied().max().unwrap_or(0)
    }

    /// Makes the caller the leader of the gathering batch: it must issue it.
    pub(crate) fn elect(&mut self) {
        assert!(
            !self.is_claimed(),
            "two batches of one log would be placed at once"
        );
        self.gathering
            .transition(BatchState::Gathering { has_leader: true });
    }

    /// Issues the gathering batch, which has the records up to `end`; another one gathers from now on. Returns its number,
    /// and whether others are under way.
    pub(crate) fn issue(&mut self, end: u64) -> (u64, bool) {
        assert!(end >= self.taken, "records are issued in the order chosen");
        let is_beside = !self.issued.is_empty();
        let mut batch = std::mem::replace(&mut self.gathering, Batch::new());
        batch.transition(BatchState::Placing);
        batch.end = end;
        self.taken = end;
        self.issued.push_back(batch);
        assert!(
            self.issued.len() <= UNDER_WAY_MAX,
            "more batches of log records are under way than allowed"
        );
        if self.recent.len() == HISTORY {
            self.recent.pop_front();
        }
        self.recent.push_back(self.commits_under_way());
        (self.done + self.issued.len() as u64, is_beside)
    }

    /// The records of a batch have their places, or need none: the next batch may be placed.
    pub(crate) fn placed(&mut self, number: u64) {
        self.batch(number).transition(BatchState::Writing);
    }

    /// Whether all batches before this one are done.
    pub(crate) fn is_oldest(&self, number: u64) -> bool {
        assert!(number > self.done, "a batch ends once");
        self.done + 1 == number
    }

    /// Allocates the log blocks of a batch in `txg`: always for the oldest, else only if the one before used the same txg.
    /// Returns whether it may.
    pub(crate) fn use_txg(&mut self, number: u64, txg: Txg) -> bool {
        assert!(
            txg >= self.txg,
            "log blocks are allocated in the order of txgs"
        );
        let is_same = self.txg == txg;
        self.txg = txg;
        is_same || self.is_oldest(number)
    }

    /// The chain is broken from this batch on: neither its blocks nor those of the batches after it would be found.
    pub(crate) fn lose_from(&mut self, number: u64) {
        for number in number..=self.done + self.issued.len() as u64 {
            self.batch(number).is_unreachable = true;
        }
    }

    /// Whether the log blocks of a batch would not be found by a reader of the chain.
    pub(crate) fn is_unreachable(&mut self, number: u64) -> bool {
        self.batch(number).is_unreachable
    }

    /// Ends the oldest batch. `is_durable`: its records are on stable storage, in the log or in their txgs.
    pub(crate) fn finish(&mut self, number: u64, is_durable: bool) {
        assert!(
            self.is_oldest(number),
            "batches of log records end in the order issued"
        );
        let mut batch = self.issued.pop_front().expect("the oldest batch is issued");
        batch.transition(BatchState::Done);
        self.done = number;
        if is_durable {
            assert!(
                batch.end >= self.durable,
                "records become durable in the order chosen"
            );
            self.durable = batch.end;
        }
    }

    fn batch(&mut self, number: u64) -> &mut Batch {
        let at = number.checked_sub(self.done + 1);
        let at = at.and_then(|at| usize::try_from(at).ok());
        at.and_then(|at| self.issued.get_mut(at))
            .expect("a batch under way has its state until it is done")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl GroupCommit {
        /// Issues a batch of so many commits.
        fn issued(&mut self, commits: u64) -> u64 {
            self.gathering.commits = commits;
            self.elect();
            let (number, _) = self.issue(self.taken + commits);
            self.placed(number);
            number
        }

        /// Issues one and ends it.
        fn done(&mut self, commits: u64) {
            let number = self.issued(commits);
            self.finish(number, true);
        }
    }

    fn after(batches: &[u64], gathering: u64) -> GroupCommit {
        let mut commits = GroupCommit::default();
        for &batch in batches {
            commits.issued(batch);
        }
        commits.gathering.commits = gathering;
        commits
    }

    #[test]
    fn halves_take_turns() {
        assert!(!after(&[], 0).is_worth_a_batch());
        // The second commit does not wait for a third that may never come.
        assert!(after(&[1], 1).is_worth_a_batch());
        assert!(!after(&[1, 31], 15).is_worth_a_batch());
        assert!(after(&[1, 31], 16).is_worth_a_batch());
    }

    #[test]
    fn commits_seen_lately_are_expected() {
        assert!(!after(&[], 1).expects_more());
        let mut commits = after(&[3, 5], 1);
        assert!(!commits.expects_more(), "they are under way");
        commits.finish(1, true);
        assert!(commits.expects_more());
        commits.gathering.commits = 3;
        assert!(!commits.expects_more());
    }

    #[test]
    fn a_number_of_commits_is_forgotten_after_eight_batches() {
        let mut commits = GroupCommit::default();
        commits.done(32);
        for _ in 0..HISTORY {
            commits.done(1);
        }
        commits.gathering.commits = 1;
        assert!(commits.is_worth_a_batch());
    }

    #[test]
    fn what_follows_a_broken_batch_is_unreachable() {
        let mut commits = after(&[1, 1, 1], 0);
        assert!(!commits.may_issue(false), "three are under way");
        commits.lose_from(2);
        let lost: Vec<bool> = (1..=3).map(|n| commits.is_unreachable(n)).collect();
        assert_eq!(lost, [false, true, true]);
        for number in 1..=3 {
            assert!(commits.is_oldest(number));
            commits.finish(number, number == 1);
        }
        assert!(commits.is_durable(1) && !commits.is_durable(2));
        commits.issued(1);
        assert!(!commits.is_unreachable(4), "the next chain is whole");
    }

    #[test]
    fn blocks_of_batches_side_by_side_are_allocated_in_one_txg() {
        let mut commits = after(&[1, 1], 0);
        assert!(commits.use_txg(1, Txg(7)));
        assert!(commits.use_txg(2, Txg(7)));
        assert!(!commits.use_txg(2, Txg(8)), "the first is not done");
        commits.finish(1, true);
        assert!(commits.use_txg(2, Txg(9)));
    }
}
