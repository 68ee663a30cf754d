//! Labels and the uberblock ring of one device.
//!
//! Layout and rules: `docs/format`, vdev labels. Each leaf holds four copies; all copies of the configuration are
//! equal but for their embedded checksum, which is seeded with the absolute device offset.

use ondisk::nvlist::NvList;
use ondisk::{Txg, Uberblock};
use runtime::Disk;

use crate::VdevError;

/// One label's configuration as read.
#[derive(Debug, Clone)]
pub enum LabelState {
    /// Checksum and nvlist are good.
    Valid(Box<NvList>),
    /// The label could not be read.
    Unreadable,
    /// Never written or zeroed.
    Empty,
    /// Checksum or nvlist is bad.
    Bad,
}

/// An uberblock found in a ring.
#[derive(Debug, Clone)]
pub struct FoundUberblock {
    /// Which label (0-3).
    pub label: u8,
    /// Slot in the ring.
    pub slot: u32,
    /// The uberblock, its checksum verified.
    pub uberblock: Uberblock,
}

/// All four labels of a device.
#[derive(Debug, Clone)]
pub struct LabelSet {
    /// Device bytes rounded down to 256 KiB.
    pub psize: u64,
    /// The four configurations.
    pub labels: [LabelState; 4],
    /// Every valid uberblock of the four rings (for the ashift found in the configuration).
    pub uberblocks: Vec<FoundUberblock>,
}

impl LabelSet {
    /// Reads and verifies all four labels. Bad labels are states of the answer, not errors.
    pub async fn read(disk: &Disk) -> Result<Self, VdevError> {
        let _ = disk;
        unimplemented!()
    }

    /// Returns the configuration with the highest txg among the valid labels.
    pub fn best_config(&self) -> Option<&NvList> {
        unimplemented!()
    }

    /// Returns the newest uberblock with txg at most `max` (by txg, timestamp, multihost sequence).
    pub fn best_uberblock(&self, max: Option<Txg>) -> Option<&Uberblock> {
        let _ = max;
        unimplemented!()
    }
}

/// Zeroes the four labels of a device so that no tool finds a pool on it. Durable on return.
pub async fn clear(disk: &Disk) -> Result<(), VdevError> {
    let _ = disk;
    unimplemented!()
}
