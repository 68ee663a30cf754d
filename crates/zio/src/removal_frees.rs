//! What was freed on vdevs that were, or are being, removed.

use std::collections::BTreeMap;
use std::ops::Range;

use ondisk::Txg;
use range_tree::{Mismatch, RangeTree};

/// Ranges of one vdev.
pub type VdevRanges = (u32, Vec<Range<u64>>);

/// What was freed on vdevs that were, or are being, removed, by txg, until the pool takes it.
#[derive(Debug, Default)]
pub(crate) struct RemovalFrees {
    /// Copied, and no longer in use.
    obsolete: BTreeMap<Txg, BTreeMap<u32, RangeTree>>,
    /// Bytes that need not be copied any more.
    uncopied: BTreeMap<Txg, u64>,
}

impl RemovalFrees {
    /// Whether anything was freed in a txg.
    pub(crate) fn has(&self, txg: Txg) -> bool {
        self.obsolete.contains_key(&txg) || self.uncopied.contains_key(&txg)
    }

    /// Notes that a range which was copied is no longer in use.
    pub(crate) fn note(&mut self, txg: Txg, vdev: u32, range: Range<u64>) -> Result<(), Mismatch> {
        let vdevs = self.obsolete.entry(txg).or_default();
        vdevs.entry(vdev).or_default().add(range)
    }

    /// Notes bytes that need not be copied any more.
    pub(crate) fn note_uncopied(&mut self, txg: Txg, bytes: u64) {
        assert!(bytes > 0, "a range has bytes");
        *self.uncopied.entry(txg).or_insert(0) += bytes;
    }

    /// Returns and forgets the ranges of a txg that are no longer in use.
    pub(crate) fn take_obsolete(&mut self, txg: Txg) -> Vec<VdevRanges> {
        let vdevs = self.obsolete.remove(&txg).unwrap_or_default().into_iter();
        vdevs
            .map(|(vdev, mut ranges)| (vdev, ranges.drain()))
            .collect()
    }

    /// Returns and forgets how many bytes need not be copied any more.
    pub(crate) fn take_uncopied(&mut self, txg: Txg) -> u64 {
        self.uncopied.remove(&txg).unwrap_or(0)
    }

    /// Forgets the ranges of a vdev whose table goes.
    pub(crate) fn forget(&mut self, vdev: u32) {
        for vdevs in self.obsolete.values_mut() {
            vdevs.remove(&vdev);
        }
        self.obsolete.retain(|_, vdevs| !vdevs.is_empty());
    }
}
