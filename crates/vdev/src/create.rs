//! Making a new device tree: checks of the devices a user named, sizes, sector shift, guids.

use std::path::{Path, PathBuf};

use runtime::Handle;

use crate::{TreeConfig, VdevError};

/// A device named for a new vdev.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeafSpec {
    /// Path of the device or file (absolute, as it will be stored).
    pub path: PathBuf,
}

/// A new top-level vdev: a single leaf, or a mirror of two or more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopSpec {
    /// One leaf: a plain vdev. Several: a mirror.
    pub leaves: Vec<LeafSpec>,
    /// Holds intent-log blocks only.
    pub is_log: bool,
    /// Sector shift asked for; `None` lets the devices decide.
    pub ashift: Option<u8>,
}

/// A new tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TreeSpec {
    /// Top-level vdevs in order.
    pub tops: Vec<TopSpec>,
}

/// What a device already holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DiskUse {
    /// Nothing recognised.
    Free,
    /// A label of a pool.
    Pool {
        /// Its name.
        name: String,
        /// `state` of the label: 0 active, 1 exported, 2 destroyed, 3 spare, 4 cache.
        state: u64,
        /// Its guid.
        pool_guid: u64,
    },
    /// Something else with a known signature, e.g. `ext4`, `xfs`, `a GPT partition table`.
    Foreign {
        /// What it is, as a noun phrase.
        what: &'static str,
    },
}

/// A device that was refused because of what it holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conflict {
    /// The device.
    pub path: PathBuf,
    /// What was found on it.
    pub found: DiskUse,
}

/// Opens and measures every device of `spec` and returns the configuration of a new tree with fresh guids. Nothing is
/// written. The second value lists devices that hold somebody's data; the caller refuses those unless forced
/// (exported and destroyed pools are listed too, so that the caller can tell).
pub async fn plan(
    handle: &Handle,
    spec: &TreeSpec,
) -> Result<(TreeConfig, Vec<Conflict>), VdevError> {
    let _ = (handle, spec);
    unimplemented!()
}

/// Returns what the device at `path` holds.
pub async fn disk_use(handle: &Handle, path: &Path) -> Result<DiskUse, VdevError> {
    let _ = (handle, path);
    unimplemented!()
}

/// Returns the metaslab shift of a new top-level vdev of `asize` allocatable bytes.
/// Source of the rule: OpenZFS `vdev_metaslab_set_size`.
pub fn metaslab_shift_for(asize: u64) -> u8 {
    // highbit is one-based: the position of the top bit counted from 1.
    let highbit = |x: u64| 64 - x.leading_zeros();
    let count = asize >> 29;
    let mut shift = if count < 16 {
        highbit(asize / 16)
    } else if count > 200 {
        highbit(asize / 200)
    } else {
        29
    };
    shift = shift.max(24);
    if shift > 34 {
        shift = 34;
        if asize >> shift > 131_072 {
            shift = highbit(asize / 131_072);
        }
    }
    u8::try_from(shift).expect("a bit position fits")
}
