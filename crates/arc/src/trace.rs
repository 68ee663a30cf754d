//! Traces, and the policies they are run through: ours, ARC as its paper states it, and LRU. For measurements and tests only.
//!
//! All blocks of a trace have one size, so that policies that count blocks and ours, which counts bytes, can be compared.

use std::collections::BTreeMap;

use crate::identity::Identity;
use crate::policy::{Found, NewEntry, Policy};

/// Bytes of every block of a trace.
const BLOCK_BYTES: usize = 8192;

/// A replacement policy that is told of one read after the other.
pub trait Replacement {
    /// Reads a block; returns whether it was in memory.
    fn read(&mut self, block: u64) -> bool;
}

/// Returns the share of a trace's reads that the policy answers, 0 to 1.
#[allow(clippy::cast_precision_loss, reason = "a share of counts")]
pub fn hit_rate(policy: &mut dyn Replacement, trace: &[u64]) -> f64 {
    let hits = trace.iter().filter(|&&block| policy.read(block)).count();
    hits as f64 / trace.len().max(1) as f64
}

/// The policy of this cache.
pub struct Ours {
    policy: Policy<()>,
    limit: usize,
    now_ms: u32,
}

impl Ours {
    /// Room for so many blocks.
    #[must_use]
    pub fn new(blocks: usize) -> Self {
        let limit = blocks * BLOCK_BYTES;
        Self {
            policy: Policy::new(limit, 0),
            limit,
            now_ms: 0,
        }
    }
}

impl Replacement for Ours {
    fn read(&mut self, block: u64) -> bool {
        let identity = Identity {
            offset: block << 13,
            checksum: block,
            birth: 1,
            vdev: 0,
            keyed: false,
        };
        self.now_ms = self.now_ms.wrapping_add(1);
        let now_ms = self.now_ms;
        if let Found::Resident(at) = self.policy.find(&identity) {
            self.policy.touch(at, || now_ms);
            return true;
        }
        self.policy.note_ghost(&identity);
        while self.policy.bytes() + BLOCK_BYTES > self.limit {
            self.policy.evict();
        }
        self.policy.admit(NewEntry {
            identity,
            payload: (),
            size: BLOCK_BYTES,
            metadata: false,
            flags: 0,
            now_ms,
            demanded: true,
        });
        false
    }
}

/// A list in order of use.
#[derive(Default)]
struct Order {
    by_age: BTreeMap<u64, u64>,
    age_of: BTreeMap<u64, u64>,
}

impl Order {
    fn len(&self) -> usize {
        self.by_age.len()
    }

    fn has(&self, block: u64) -> bool {
        self.age_of.contains_key(&block)
    }

    fn push(&mut self, block: u64, clock: u64) {
        self.remove(block);
        self.by_age.insert(clock, block);
        self.age_of.insert(block, clock);
    }

    fn remove(&mut self, block: u64) -> bool {
        let age = self.age_of.remove(&block);
        age.is_some_and(|age| self.by_age.remove(&age).is_some())
    }

    fn pop_oldest(&mut self) -> Option<u64> {
        let (_, block) = self.by_age.pop_first()?;
        self.age_of.remove(&block);
        Some(block)
    }
}

/// Least recently used.
pub struct Lru {
    order: Order,
    blocks: usize,
    clock: u64,
}

impl Lru {
    /// Room for so many blocks.
    #[must_use]
    pub fn new(blocks: usize) -> Self {
        Self {
            order: Order::default(),
            blocks,
            clock: 0,
        }
    }
}

impl Replacement for Lru {
    fn read(&mut self, block: u64) -> bool {
        self.clock += 1;
        let hit = self.order.has(block);
        self.order.push(block, self.clock);
        if self.order.len() > self.blocks {
            self.order.pop_oldest();
        }
        hit
    }
}

/// ARC as in figure 4 of the paper (Megiddo and Modha, FAST 2003).
pub struct Paper {
    recent: Order,
    frequent: Order,
    recent_ghosts: Order,
    frequent_ghosts: Order,
    target: usize,
    blocks: usize,
    clock: u64,
}

impl Paper {
    /// Room for so many blocks.
    #[must_use]
    pub fn new(blocks: usize) -> Self {
        Self {
            recent: Order::default(),
            frequent: Order::default(),
            recent_ghosts: Order::default(),
            frequent_ghosts: Order::default(),
            target: 0,
            blocks,
            clock: 0,
        }
    }

    fn replace(&mut self, in_frequent_ghosts: bool) {
        let recent = self.recent.len();
        let from_recent =
            recent > 0 && (recent > self.target || (in_frequent_ghosts && recent == self.target));
        let (from, to) = if from_recent {
            (&mut self.recent, &mut self.recent_ghosts)
        } else {
            (&mut self.frequent, &mut self.frequent_ghosts)
        };
        if let Some(block) = from.pop_oldest() {
            to.push(block, self.clock);
        }
    }
}

impl Replacement for Paper {
    fn read(&mut self, block: u64) -> bool {
        self.clock += 1;
        if self.recent.remove(block) || self.frequent.has(block) {
            self.frequent.push(block, self.clock);
            return true;
        }
        let (b1, b2) = (self.recent_ghosts.len(), self.frequent_ghosts.len());
        if self.recent_ghosts.has(block) {
            self.target = (self.target + (b2 / b1.max(1)).max(1)).min(self.blocks);
            self.replace(false);
            self.recent_ghosts.remove(block);
            self.frequent.push(block, self.clock);
            return false;
        }
        if self.frequent_ghosts.has(block) {
            self.target = self.target.saturating_sub((b1 / b2.max(1)).max(1));
            self.replace(true);
            self.frequent_ghosts.remove(block);
            self.frequent.push(block, self.clock);
            return false;
        }
        let all = self.recent.len() + self.frequent.len() + b1 + b2;
        if self.recent.len() + b1 == self.blocks {
            if self.recent.len() < self.blocks {
                self.recent_ghosts.pop_oldest();
                self.replace(false);
            } else {
                self.recent.pop_oldest();
            }
        } else if all >= self.blocks {
            if all == 2 * self.blocks {
                self.frequent_ghosts.pop_oldest();
            }
            self.replace(false);
        }
        self.recent.push(block, self.clock);
        false
    }
}

/// Random numbers from a seed (SplitMix64).
pub struct Random(u64);

impl Random {
    /// Numbers of this seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end.max(1)
    }
}

/// Blocks drawn by Zipf's law.
struct Zipf(Vec<f64>);

impl Zipf {
    #[allow(clippy::cast_precision_loss, reason = "ranks are small")]
    fn new(blocks: usize, exponent: f64) -> Self {
        let mut sum = 0.0;
        let sums = (1..=blocks).map(|rank| {
            sum += (rank as f64).powf(-exponent);
            sum
        });
        Self(sums.collect())
    }

    #[allow(clippy::cast_precision_loss, reason = "a draw of 53 bits")]
    fn draw(&self, random: &mut Random) -> u64 {
        let all = self.0.last().copied().unwrap_or(1.0);
        let at = (random.next() >> 11) as f64 / (1_u64 << 53) as f64 * all;
        self.0.partition_point(|&sum| sum < at) as u64
    }
}

/// The traces measured: their names and reads, for a cache of `blocks`.
#[must_use]
pub fn traces(blocks: usize, reads: usize) -> Vec<(&'static str, Vec<u64>)> {
    let size = blocks as u64;
    let mut random = Random::new(4);
    let zipf = |exponent: f64, times: usize| Zipf::new(blocks * times, exponent);
    let (flat, steep) = (zipf(0.8, 20), zipf(1.0, 20));
    let mut list: Vec<(&'static str, Vec<u64>)> = Vec::new();
    let draw = |zipf: &Zipf, random: &mut Random| -> Vec<u64> {
        (0..reads).map(|_| zipf.draw(random)).collect()
    };
    list.push(("zipf 0.8", draw(&flat, &mut random)));
    list.push(("zipf 1.0", draw(&steep, &mut random)));
    // A backup reads everything once, now and then, while the usual work goes on.
    let mut cold = 1 << 40;
    let scans = (0..reads).map(|at| {
        if at / blocks % 4 == 3 && at % 4 != 0 {
            cold += 1;
            cold
        } else {
            steep.draw(&mut random)
        }
    });
    list.push(("zipf 1.0 with scans", scans.collect()));
    let mut cold = 1 << 41;
    let stream = (0..reads).map(|at| {
        if at % 2 == 0 {
            cold += 1;
            cold
        } else {
            flat.draw(&mut random)
        }
    });
    list.push(("zipf 0.8 beside a stream", stream.collect()));
    let loops = |length: u64| -> Vec<u64> { (0..reads as u64).map(|at| at % length).collect() };
    list.push(("loop of 0.9 sizes", loops(size * 9 / 10)));
    list.push(("loop of 1.5 sizes", loops(size * 3 / 2)));
    let mixed = (0..reads as u64).map(|at| {
        if at % 3 == 0 {
            (1 << 42) + at / 3 % (size * 2)
        } else {
            steep.draw(&mut random)
        }
    });
    list.push(("zipf 1.0 beside a loop of 2 sizes", mixed.collect()));
    // The set of what is popular moves on.
    let shifting = (0..reads).map(|at| {
        let phase = (at / (blocks * 8)) as u64;
        (phase << 32) + flat.draw(&mut random)
    });
    list.push(("zipf 0.8, popular blocks change", shifting.collect()));
    let recent = (0..reads as u64).map(|at| {
        // Each block is read a few times soon after it came, and hardly ever again.
        (at / 4).saturating_sub(random.below(size / 2))
    });
    list.push(("recent blocks only", recent.collect()));
    list
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ours_is_better_than_lru_and_as_good_as_the_paper() {
        let blocks = 1000;
        let (mut ours_sum, mut paper_sum) = (0.0, 0.0);
        for (name, trace) in traces(blocks, 200_000) {
            let ours = hit_rate(&mut Ours::new(blocks), &trace);
            let paper = hit_rate(&mut Paper::new(blocks), &trace);
            let lru = hit_rate(&mut Lru::new(blocks), &trace);
            assert!(ours + 0.004 > paper, "{name}: {ours} and {paper}");
            assert!(ours + 0.004 > lru, "{name}: {ours} and {lru}");
            ours_sum += ours;
            paper_sum += paper;
        }
        assert!(ours_sum + 1e-3 > paper_sum);
    }
}
