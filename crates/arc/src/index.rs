//! The index of the cache: from a hash to an index into a slab. Open addressing, one word a slot.
//!
//! Guarantees: no allocation but when it grows. Does not know keys: the caller says whether a node is the right one.

/// A free slot.
const EMPTY: u64 = u64::MAX;
/// Slots of the smallest index.
const SLOTS_MIN: usize = 64;

/// Node indices by hash.
pub(crate) struct Index {
    /// The upper half of the hash above the node index.
    slots: Vec<u64>,
    used: usize,
}

impl Default for Index {
    fn default() -> Self {
        Self {
            slots: vec![EMPTY; SLOTS_MIN],
            used: 0,
        }
    }
}

impl Index {
    /// Returns the node index under this hash that `is_it`.
    pub(crate) fn find(&self, hash: u64, is_it: impl Fn(u32) -> bool) -> Option<u32> {
        self.slot(hash, is_it)
            .map(|slot| node_index(self.slots[slot]))
    }

    /// Adds a node index that is not in the index.
    pub(crate) fn insert(&mut self, hash: u64, at: u32) {
        if (self.used + 1) * 4 > self.slots.len() * 3 {
            self.grow();
        }
        self.put((hash & UPPER) | u64::from(at));
        self.used += 1;
    }

    /// Removes a node index.
    pub(crate) fn remove(&mut self, hash: u64, at: u32) {
        let Some(mut hole) = self.slot(hash, |found| found == at) else {
            return;
        };
        self.used -= 1;
        let mask = self.slots.len() - 1;
        // What follows moves up, so that no search ends too early.
        let mut next = (hole + 1) & mask;
        while self.slots[next] != EMPTY {
            let home = self.home(self.slots[next]);
            if (next.wrapping_sub(home) & mask) >= (next.wrapping_sub(hole) & mask) {
                self.slots[hole] = self.slots[next];
                hole = next;
            }
            next = (next + 1) & mask;
        }
        self.slots[hole] = EMPTY;
    }

    fn slot(&self, hash: u64, is_it: impl Fn(u32) -> bool) -> Option<usize> {
        let mask = self.slots.len() - 1;
        let mut slot = self.home(hash);
        loop {
            let word = self.slots[slot];
            if word == EMPTY {
                return None;
            }
            if (word ^ hash) & UPPER == 0 && is_it(node_index(word)) {
                return Some(slot);
            }
            slot = (slot + 1) & mask;
        }
    }

    fn put(&mut self, word: u64) {
        let mask = self.slots.len() - 1;
        let mut slot = self.home(word);
        while self.slots[slot] != EMPTY {
            slot = (slot + 1) & mask;
        }
        self.slots[slot] = word;
    }

    /// The slot a hash (or a word with its upper half) would like to be in.
    fn home(&self, hash: u64) -> usize {
        let upper = usize::try_from(hash >> 32).unwrap_or(0);
        upper & (self.slots.len() - 1)
    }

    fn grow(&mut self) {
        let doubled = vec![EMPTY; self.slots.len() * 2];
        let old = std::mem::replace(&mut self.slots, doubled);
        for word in old.into_iter().filter(|&word| word != EMPTY) {
            self.put(word);
        }
    }
}

const UPPER: u64 = 0xffff_ffff_0000_0000;

fn node_index(word: u64) -> u32 {
    u32::try_from(word & !UPPER).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn it_equals_a_map_also_with_few_different_hashes() {
        let mut index = Index::default();
        let mut model: BTreeMap<u32, u64> = BTreeMap::new();
        let mut random = 7_u64;
        for step in 0..20_000_u32 {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            let hash = (random >> 58).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            if step % 3 == 0
                && let Some((&at, &hash)) = model.iter().nth(step as usize % (model.len().max(1)))
            {
                model.remove(&at);
                index.remove(hash, at);
                assert_eq!(index.find(hash, |found| found == at), None);
            } else if model.len() < 300 {
                model.insert(step, hash);
                index.insert(hash, step);
            }
        }
        for (&at, &hash) in &model {
            assert_eq!(index.find(hash, |found| found == at), Some(at));
        }
        assert_eq!(index.used, model.len());
    }
}
