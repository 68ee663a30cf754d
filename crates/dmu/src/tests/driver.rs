//! A driver without disks: virtual time, and the next task picked by a seed, so that each seed is another interleaving.

use std::sync::Arc;

use runtime::{
    Completion, ComputeJob, DiskId, DiskOp, Driver, Instant, Outcome, Timestamp, Token, Unpark,
    Waited,
};

pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        // SplitMix64.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }
}

pub(crate) struct SeedDriver {
    random: Random,
    now: u64,
    done: Vec<Completion>,
}

impl SeedDriver {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            random: Random(seed),
            now: 0,
            done: Vec::new(),
        }
    }
}

struct Nobody;

impl Unpark for Nobody {
    fn unpark(&self) {}
}

impl Driver for SeedDriver {
    fn now(&self) -> Instant {
        Instant::from_nanos(self.now)
    }

    fn wall_clock(&self) -> Timestamp {
        Timestamp {
            seconds: 0,
            nanoseconds: 0,
        }
    }

    fn fill_random(&mut self, bytes: &mut [u8]) {
        for b in bytes {
            *b = self.random.next().to_le_bytes()[0];
        }
    }

    fn submit(&mut self, _op: DiskOp, _token: Token) {
        panic!("there are no disks here");
    }

    fn offload(&mut self, job: ComputeJob, token: Token) {
        job();
        self.done.push(Completion {
            token,
            outcome: Outcome::Computed,
        });
    }

    fn wait(&mut self, until: Option<Instant>, done: &mut Vec<Completion>) -> Waited {
        if !self.done.is_empty() {
            done.append(&mut self.done);
            return Waited::Progress;
        }
        match until {
            Some(until) => {
                self.now = self.now.max(until.as_nanos());
                Waited::Progress
            }
            None => Waited::Stalled,
        }
    }

    fn pick(&mut self, runnable: usize) -> usize {
        usize::try_from(self.random.below(runnable as u64)).expect("small")
    }

    fn close(&mut self, _disk: DiskId) {}

    fn unparker(&self) -> Arc<dyn Unpark> {
        Arc::new(Nobody)
    }

    fn name(&self) -> &'static str {
        "seed"
    }
}
