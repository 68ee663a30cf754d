//! The device tree as configuration: from and to the `vdev_tree` nvlists of labels and the pool's config object.

use std::path::PathBuf;

use ondisk::Guid;
use ondisk::nvlist::{NvList, NvValue};

use crate::VdevError;

/// Deepest nesting accepted (root, top-level, spare, replacing, leaf are 5).
const DEPTH_MAX: usize = 8;
/// Most vdevs accepted in one tree.
const VDEVS_MAX: usize = 4096;

/// Kind of a vdev, by its type string.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum VdevKind {
    /// A block device.
    Disk,
    /// A plain file.
    File,
    /// Copies on all children.
    Mirror,
    /// A place in the root's list left by a removed log device.
    Hole,
    /// A top-level vdev whose configuration was not found.
    Missing,
    /// A removed top-level vdev whose blocks live elsewhere.
    Indirect,
    /// Anything else, by its type string (`raidz`, `draid`, `spare`, `replacing`, ...).
    Other(String),
}

impl VdevKind {
    /// Returns the kind for a type string.
    pub fn parse(text: &str) -> Self {
        match text {
            "disk" => Self::Disk,
            "file" => Self::File,
            "mirror" => Self::Mirror,
            "hole" => Self::Hole,
            "missing" => Self::Missing,
            "indirect" => Self::Indirect,
            other => Self::Other(other.to_owned()),
        }
    }

    /// Returns the type string.
    pub fn as_str(&self) -> &str {
        match self {
            Self::Disk => "disk",
            Self::File => "file",
            Self::Mirror => "mirror",
            Self::Hole => "hole",
            Self::Missing => "missing",
            Self::Indirect => "indirect",
            Self::Other(text) => text,
        }
    }

    /// Returns true for vdevs that are a device themselves.
    pub fn is_leaf(&self) -> bool {
        matches!(self, Self::Disk | Self::File)
    }
}

/// One vdev of the configuration. Fields that do not apply are `None`, 0 or empty.
///
/// Source of the keys: OpenZFS `module/zfs/vdev_label.c`, `vdev_config_generate`.
#[derive(Debug, Clone, PartialEq)]
pub struct VdevConfig {
    /// What it is.
    pub kind: VdevKind,
    /// Index in the parent.
    pub id: u64,
    /// Identity, never 0 for a real vdev.
    pub guid: Guid,
    /// Path as stored (a hint).
    pub path: Option<String>,
    /// Where the device was found this time; [`VdevConfig::path`] when `None`. Never stored.
    pub open_path: Option<PathBuf>,
    /// Txg in which the vdev was added, 0 if unknown.
    pub create_txg: u64,
    /// Sector shift (top-level).
    pub ashift: u8,
    /// Allocatable bytes (top-level).
    pub asize: u64,
    /// Object number of the metaslab array (top-level), 0 = not created yet.
    pub metaslab_array: u64,
    /// log2 of the metaslab size (top-level).
    pub metaslab_shift: u8,
    /// Holds intent-log blocks only (top-level).
    pub is_log: bool,
    /// No new blocks may be placed here (top-level).
    pub non_allocating: bool,
    /// Object number of the dirty-time-log space map (leaf).
    pub dtl: Option<u64>,
    /// Administratively offline (leaf).
    pub offline: bool,
    /// Faulted in the configuration (leaf).
    pub faulted: bool,
    /// Removed (leaf).
    pub removed: bool,
    /// Per-vdev ZAP of a leaf (config object only).
    pub zap_leaf: Option<u64>,
    /// Per-vdev ZAP of a top-level vdev (config object only).
    pub zap_top: Option<u64>,
    /// Every other key, kept so that it is written back unchanged.
    pub extra: NvList,
    /// Children (mirror).
    pub children: Vec<VdevConfig>,
}

/// The whole tree: the root vdev.
#[derive(Debug, Clone, PartialEq)]
pub struct TreeConfig {
    /// Guid of the root vdev = the pool's guid.
    pub guid: Guid,
    /// `create_txg` of the root.
    pub create_txg: u64,
    /// Other keys of the root (kept unchanged).
    pub extra: NvList,
    /// Top-level vdevs by id.
    pub tops: Vec<VdevConfig>,
}

/// Where a configuration is going to be stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConfigPlace {
    /// A device label: without the per-vdev ZAP object numbers.
    Label,
    /// The pool's config object.
    PoolConfig,
}
