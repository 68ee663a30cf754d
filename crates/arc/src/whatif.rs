//! What a cache of another size would do: models of half, the same, twice and four times the size, run on a sample.
//!
//! A model is the cache's own policy without bytes. It sees only blocks whose hash falls into the sample and has the
//! sample's share of the size, which keeps the hit rate (Waldspurger and others, "Efficient MRC construction with SHARDS", FAST 2015;
//! "Cache modeling and optimization using miniature simulations", ATC 2017).
//!
//! Guarantees: bounded memory, whatever the size of the cache: when the models hold too many entries, the sample is halved.

use crate::identity::Identity;
use crate::policy::{Found, NewEntry, Policy};

/// Sizes modelled, in halves of the cache's.
const HALVES: [u64; 4] = [1, 2, 4, 8];
/// One block in 2^5 is looked at first.
const SHIFT_FIRST: u32 = 5;
/// Entries and ghosts of the largest model, at most.
const ENTRIES_MAX: usize = 16 << 10;
/// Bytes of an entry of a model with its share of the index.
const ENTRY_BYTES: usize = 80;

/// What a cache of another size would have answered, of a sample of the reads.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WhatIf {
    /// Size of the model in halves of the cache: 1 is half, 2 the same, 4 twice, 8 four times.
    pub halves: u64,
    /// Reads it would have answered.
    pub hits: u64,
    /// Reads it saw.
    pub reads: u64,
}

impl WhatIf {
    /// Returns the share of reads answered, 0 to 1; `None` when it has seen none.
    #[must_use]
    #[allow(clippy::cast_precision_loss, reason = "a share of counts")]
    pub fn rate(&self) -> Option<f64> {
        (self.reads > 0).then(|| self.hits as f64 / self.reads as f64)
    }
}

struct Model {
    policy: Policy<()>,
    limit: usize,
    counts: WhatIf,
}

/// The models of one cache.
pub(crate) struct Models {
    models: Vec<Model>,
    shift: u32,
    limit: usize,
}

impl Models {
    pub(crate) fn new(limit: usize, correlated_ms: u32) -> Self {
        let models = HALVES.map(|halves| {
            let bytes = scaled(limit, halves, SHIFT_FIRST);
            Model {
                policy: Policy::new(bytes, correlated_ms),
                limit: bytes,
                counts: WhatIf {
                    halves,
                    ..WhatIf::default()
                },
            }
        });
        Self {
            models: models.into(),
            shift: SHIFT_FIRST,
            limit,
        }
    }

    /// Whether a block with this hash is in the sample. Cheap, since it is asked for every hit.
    pub(crate) fn is_sampled(&self, hash: u64) -> bool {
        hash & ((1 << self.shift) - 1) == 0
    }

    /// Notes a read of a block of the sample that takes `size` bytes.
    pub(crate) fn read(&mut self, identity: &Identity, size: usize, metadata: bool, now_ms: u32) {
        for model in &mut self.models {
            model.counts.reads += 1;
            if let Found::Resident(at) = model.policy.find(identity) {
                model.policy.touch(at, || now_ms);
                model.counts.hits += 1;
            } else {
                model.admit(identity, size, metadata, now_ms, true);
            }
        }
        self.bound();
    }

    /// Notes that a block of the sample was written.
    pub(crate) fn written(
        &mut self,
        identity: &Identity,
        size: usize,
        metadata: bool,
        now_ms: u32,
    ) {
        for model in &mut self.models {
            model.admit(identity, size, metadata, now_ms, false);
        }
        self.bound();
    }

    pub(crate) fn forget(&mut self, identity: &Identity) {
        for model in &mut self.models {
            model.policy.remove(identity);
        }
    }

    pub(crate) fn set_limit(&mut self, limit: usize) {
        self.limit = limit;
        for model in &mut self.models {
            model.resize(scaled(limit, model.counts.halves, self.shift));
        }
    }

    pub(crate) fn counts(&self) -> Vec<WhatIf> {
        self.models.iter().map(|model| model.counts).collect()
    }

    /// Bytes the models take.
    pub(crate) fn bytes(&self) -> usize {
        self.models
            .iter()
            .map(|model| model.entries() * ENTRY_BYTES)
            .sum()
    }

    fn bound(&mut self) {
        let largest = self.models.last().map_or(0, Model::entries);
        if largest <= ENTRIES_MAX {
            return;
        }
        self.shift += 1;
        let mask = (1_u64 << self.shift) - 1;
        for model in &mut self.models {
            model.policy.retain(|identity| identity.hash() & mask == 0);
            model.resize(scaled(self.limit, model.counts.halves, self.shift));
        }
    }
}

impl Model {
    fn entries(&self) -> usize {
        self.policy.len() + usize::try_from(self.policy.ghosts()).unwrap_or(usize::MAX)
    }

    fn admit(
        &mut self,
        identity: &Identity,
        size: usize,
        metadata: bool,
        now_ms: u32,
        demanded: bool,
    ) {
        if size > self.limit {
            return;
        }
        self.policy.note_ghost(identity);
        while self.policy.bytes() + size > self.limit && self.policy.evict().is_some() {}
        self.policy.admit(NewEntry {
            identity: *identity,
            payload: (),
            size,
            metadata,
            flags: 0,
            now_ms,
            demanded,
        });
    }

    fn resize(&mut self, limit: usize) {
        self.limit = limit;
        self.policy.set_limit(limit);
        while self.policy.bytes() > limit && self.policy.evict().is_some() {}
    }
}

fn scaled(limit: usize, halves: u64, shift: u32) -> usize {
    let bytes = (u128::from(limit as u64) * u128::from(halves)) >> (shift + 1);
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(number: u64) -> Identity {
        Identity {
            offset: number << 13,
            checksum: number,
            birth: 1,
            vdev: 0,
            keyed: false,
        }
    }

    #[test]
    fn larger_models_answer_more_of_a_uniform_load_in_proportion() {
        // 200,000 blocks of 8 KiB, read evenly, beside a cache of 400 MB: a quarter of them fit.
        let mut models = Models::new(50_000 * 8192, 0);
        let mut random = 1_u64;
        let mut now = 0_u32;
        for _ in 0..2_000_000_u32 {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            let block = identity((random >> 33) % 200_000);
            now = now.wrapping_add(1);
            if models.is_sampled(block.hash()) {
                models.read(&block, 8192, false, now);
            }
        }
        let rates: Vec<f64> = models.counts().iter().filter_map(WhatIf::rate).collect();
        // The first read of each block, a tenth of all, is a miss in any cache.
        let expect = [0.125, 0.25, 0.49, 0.9];
        for (rate, expect) in rates.iter().zip(expect) {
            assert!((rate - expect).abs() < 0.05, "{rates:?}");
        }
        assert!(models.bytes() < 4 << 20, "{}", models.bytes());
    }

    #[test]
    fn memory_is_bounded_when_the_cache_is_huge() {
        let mut models = Models::new(1 << 42, 0);
        for number in 0..3_000_000 {
            let block = identity(number);
            if models.is_sampled(block.hash()) {
                models.read(&block, 4096, false, 0);
            }
        }
        assert!(models.bytes() < 6 << 20, "{}", models.bytes());
    }
}
