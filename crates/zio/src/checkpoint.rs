//! Frees of checkpointed blocks: ranges freed although the checkpointed state of the pool refers to them.
//!
//! They stay allocated in their metaslabs; the pool records them in space maps of their own until the checkpoint is discarded.
//! Does not know which blocks belong to a checkpoint.

use std::collections::BTreeMap;
use std::ops::Range;

use ondisk::Txg;
use range_tree::{Mismatch, RangeTree};

/// Ranges of one metaslab that were freed in one txg, and stay allocated for the checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckpointFrees {
    /// Top-level vdev.
    pub vdev: u32,
    /// Ranges, bytes of the top-level vdev, sorted, merged; none crosses the end of a metaslab.
    pub ranges: Vec<Range<u64>>,
}

/// Frees of checkpointed blocks not yet taken by the pool, by txg, vdev and metaslab.
#[derive(Debug, Default)]
pub(crate) struct PendingCheckpointFrees(BTreeMap<Txg, BTreeMap<(u32, u32), RangeTree>>);

impl PendingCheckpointFrees {
    /// Adds a range; fails when it was added before.
    pub(crate) fn add(
        &mut self,
        txg: Txg,
        key: (u32, u32),
        range: Range<u64>,
    ) -> Result<(), Mismatch> {
        assert!(!range.is_empty(), "a free has bytes");
        let places = self.0.entry(txg).or_default();
        places.entry(key).or_default().add(range)
    }

    pub(crate) fn has(&self, txg: Txg) -> bool {
        self.0.contains_key(&txg)
    }

    /// Takes the ranges of a txg, in order of vdev and metaslab.
    pub(crate) fn take(&mut self, txg: Txg) -> Vec<CheckpointFrees> {
        let places = self.0.remove(&txg).unwrap_or_default();
        places
            .into_iter()
            .map(|((vdev, _), mut ranges)| CheckpointFrees {
                vdev,
                ranges: ranges.drain(),
            })
            .collect()
    }
}
