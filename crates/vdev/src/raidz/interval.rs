//! What the stripes written between two flushes of a vdev with parity lack.

/// Most different sets of places remembered of one flush interval; beyond, they are thrown together, which only makes the
/// flush more careful.
const SETS_MAX: usize = 64;
const _: () = assert!(SETS_MAX > 0);

/// Places of a vdev, at most 255.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct SlotSet([u64; 4]);

/// What the stripes written since the last flush lack: the sets of places that missed a column of one stripe.
#[derive(Debug, Default)]
pub(crate) struct Interval {
    missed: Vec<SlotSet>,
}

impl SlotSet {
    pub(super) fn insert(&mut self, slot: usize) {
        assert!(slot < 256, "a vdev has at most 255 slots");
        self.0[slot / 64 % 4] |= 1 << (slot % 64);
    }

    pub(super) fn has(self, slot: usize) -> bool {
        self.0[slot / 64 % 4] >> (slot % 64) & 1 == 1
    }

    pub(super) fn len(self) -> usize {
        self.0.iter().map(|word| word.count_ones() as usize).sum()
    }

    fn with(self, other: Self) -> Self {
        Self(std::array::from_fn(|i| self.0[i] | other.0[i]))
    }
}

impl Interval {
    /// Notes the places that the stripes of one write missed.
    pub(super) fn add(&mut self, sets: &[SlotSet]) {
        for set in sets {
            if set.len() != 0 && !self.missed.contains(set) {
                self.missed.push(*set);
            }
        }
        if self.missed.len() > SETS_MAX {
            let all = self
                .missed
                .drain(..)
                .fold(SlotSet::default(), SlotSet::with);
            self.missed.push(all);
        }
        assert!(self.missed.len() <= SETS_MAX, "sets are merged in time");
    }

    /// Whether no stripe lacks anything.
    pub(super) fn is_empty(&self) -> bool {
        self.missed.is_empty()
    }

    /// Returns the most places that any stripe lacks when all lack `lost` as well.
    pub(super) fn worst_with(&self, lost: SlotSet) -> usize {
        let worst = self.missed.iter().map(|set| set.with(lost).len()).max();
        worst.unwrap_or(0).max(lost.len())
    }
}
