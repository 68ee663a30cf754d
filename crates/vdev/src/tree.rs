//! The open tree: top-level vdevs, mirrors, reads with repair, writes, flush.

use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use ondisk::{Guid, Txg, Uberblock};
use runtime::{Handle, IoBuf};

use crate::{IoClass, QueueTuning, TreeConfig, VdevError, VdevKind, VdevStats};

/// A byte range of one top-level vdev. Offset 0 is the first allocatable byte. Offset and size are multiples of the
/// vdev's sector.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Location {
    /// Top-level vdev id.
    pub vdev: u32,
    /// Bytes from the start of the allocatable area.
    pub offset: u64,
    /// Length in bytes.
    pub size: u64,
}

/// The question "are these the right bytes?", answered by the caller. Runs on the compute pool for large buffers.
#[derive(Clone)]
pub enum Verify {
    /// Any bytes will do.
    None,
    /// Returns true for good bytes.
    With(Arc<dyn Fn(&IoBuf) -> bool + Send + Sync>),
}

/// How a tree is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpenMode {
    /// No byte is ever written, not even a repair.
    ReadOnly,
    /// Reads and writes.
    ReadWrite,
}

/// Health of a vdev, as `zpool status` words it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Health {
    /// All well.
    Online,
    /// Works with less redundancy than configured.
    Degraded,
    /// Taken out after too many errors.
    Faulted,
    /// Taken out by the administrator.
    Offline,
    /// Could not be opened.
    Unavailable,
    /// Was there and vanished.
    Removed,
}

/// Limits and thresholds of a tree.
#[derive(Debug, Clone)]
pub struct TreeTuning {
    /// Queue of each leaf.
    pub queue: QueueTuning,
    /// Checks of buffers above this many bytes run on the compute pool. 8 KiB: crucible's measurement.
    pub offload_above_bytes: u64,
}

impl Default for TreeTuning {
    fn default() -> Self {
        Self { queue: QueueTuning::default(), offload_above_bytes: 8192 }
    }
}

/// One leaf, for the caller that writes labels and records missed txgs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeafInfo {
    /// Identity.
    pub guid: Guid,
    /// Top-level vdev it belongs to.
    pub top: u32,
    /// Path it was opened at (or should be).
    pub path: String,
    /// Health now.
    pub health: Health,
    /// Device bytes rounded down to 256 KiB, 0 if not open.
    pub psize: u64,
}

/// One top-level vdev.
#[derive(Debug, Clone, PartialEq)]
pub struct TopInfo {
    /// Index.
    pub id: u32,
    /// Identity.
    pub guid: Guid,
    /// Kind.
    pub kind: VdevKind,
    /// Sector shift.
    pub ashift: u8,
    /// Allocatable bytes.
    pub asize: u64,
    /// log2 of the metaslab size.
    pub metaslab_shift: u8,
    /// Number of whole metaslabs.
    pub metaslab_count: u64,
    /// Metaslab array object in the meta-objset, 0 if none.
    pub metaslab_array: u64,
    /// Intent log only.
    pub is_log: bool,
    /// May take new blocks.
    pub allocating: bool,
}

/// One node of the status tree.
#[derive(Debug, Clone, PartialEq)]
pub struct VdevStatus {
    /// `root`, `mirror`, `file`, ...
    pub kind: VdevKind,
    /// Index in the parent.
    pub id: u64,
    /// Identity.
    pub guid: Guid,
    /// Path of a leaf.
    pub path: Option<String>,
    /// Intent log only (top-level).
    pub is_log: bool,
    /// Health now.
    pub health: Health,
    /// Why it is not online, as `zpool status` says it ("cannot open", "was /dev/x", "too many errors").
    pub reason: Option<String>,
    /// Counters.
    pub stats: VdevStats,
    /// Allocatable bytes (top-level) or device bytes (leaf).
    pub asize: u64,
    /// Sector shift (top-level).
    pub ashift: u8,
    /// Children.
    pub children: Vec<VdevStatus>,
}

/// The open device tree of one pool. Clones share it.
#[derive(Clone)]
pub struct Tree(Rc<Inner>);

struct Inner {}

impl Tree {
    /// Opens every leaf of `config`. Missing or unfit leaves leave their mirror degraded; a top-level vdev without any
    /// usable leaf is an error (`Unavailable`), an unknown kind is [`VdevError::Unsupported`]. Nothing is written.
    /// A leaf is used only if a label on it carries its guid; a leaf without any valid label is accepted only when
    /// `fresh` is true (pool creation).
    pub async fn open(
        handle: &Handle,
        config: &TreeConfig,
        mode: OpenMode,
        tuning: TreeTuning,
        fresh: bool,
    ) -> Result<Self, VdevError> {
        let _ = (handle, config, mode, tuning, fresh);
        unimplemented!()
    }

    /// Returns the configuration as it is now (paths and sizes updated by the open).
    pub fn config(&self) -> TreeConfig {
        unimplemented!()
    }

    /// Replaces the stored-only fields (object numbers of metaslab arrays, DTLs and per-vdev ZAPs, extra keys) of the
    /// vdev with this guid.
    pub fn update_config(&self, guid: Guid, change: impl FnOnce(&mut crate::VdevConfig)) {
        let _ = (guid, change);
    }

    /// Returns the top-level vdevs that can hold blocks, by id.
    pub fn tops(&self) -> Vec<TopInfo> {
        unimplemented!()
    }

    /// Returns all leaves in tree order.
    pub fn leaves(&self) -> Vec<LeafInfo> {
        unimplemented!()
    }

    /// Reads a range, trying copies until `verify` accepts one; bad copies are rewritten.
    pub async fn read(
        &self,
        at: Location,
        class: IoClass,
        verify: Verify,
    ) -> Result<IoBuf, VdevError> {
        let _ = (at, class, verify);
        unimplemented!()
    }

    /// Like [`Tree::read`], with a check that also produces a value (so that verification and decompression are one
    /// compute job). `check` returns `None` for wrong bytes.
    pub async fn read_with<T: Send + 'static>(
        &self,
        at: Location,
        class: IoClass,
        check: Arc<dyn Fn(&IoBuf) -> Option<T> + Send + Sync>,
    ) -> Result<T, VdevError> {
        let _ = (at, class, check);
        unimplemented!()
    }

    /// Writes a range to every leaf that can take it. Succeeds when at least one leaf holds it; leaves that missed it
    /// are remembered for [`Tree::take_missed_writes`]. Not durable before [`Tree::flush`].
    pub async fn write(&self, at: Location, data: IoBuf, class: IoClass) -> Result<(), VdevError> {
        let _ = (at, data, class);
        unimplemented!()
    }

    /// Makes every write that was reported done durable, on all leaves written since the last flush.
    pub async fn flush(&self) -> Result<(), VdevError> {
        unimplemented!()
    }

    /// Tells the devices that the ranges (bytes of the top-level vdev) hold nothing.
    pub async fn trim(&self, vdev: u32, ranges: &[Range<u64>]) -> Result<(), VdevError> {
        let _ = (vdev, ranges);
        unimplemented!()
    }

    /// Returns the leaves that missed a write since the last call. The pool adds the current txg to their DTLs.
    pub fn take_missed_writes(&self) -> Vec<Guid> {
        unimplemented!()
    }

    /// Returns the bytes a block of `psize` bytes takes on the vdev.
    pub fn asize_of(&self, vdev: u32, psize: u64) -> Result<u64, VdevError> {
        let _ = (vdev, psize);
        unimplemented!()
    }

    /// Returns the sector shift of the vdev.
    pub fn ashift(&self, vdev: u32) -> Result<u8, VdevError> {
        let _ = vdev;
        unimplemented!()
    }

    /// Returns the deflate ratio of the vdev (format/01 section 6): 512 for disks and mirrors.
    pub fn deflate_ratio(&self, vdev: u32) -> Result<u64, VdevError> {
        let _ = vdev;
        unimplemented!()
    }

    /// Returns the sum of all guids of the tree including the root, modulo 2^64 (for the uberblock).
    pub fn guid_sum(&self) -> u64 {
        unimplemented!()
    }

    /// Returns the status tree; the root node carries the pool's sums.
    pub fn status(&self) -> VdevStatus {
        unimplemented!()
    }

    /// Sets all error counters to zero and lets faulted leaves be tried again.
    pub fn clear_errors(&self, guid: Option<Guid>) {
        let _ = guid;
    }

    /// Writes the configuration nvlist (packed, with its 4-byte header) into label `which` (0-3) of a leaf.
    pub async fn write_label(&self, leaf: Guid, which: u8, packed: &[u8]) -> Result<(), VdevError> {
        let _ = (leaf, which, packed);
        unimplemented!()
    }

    /// Prepares all four labels of a new leaf: zero pad, empty boot environment, empty ring.
    pub async fn init_labels(&self, leaf: Guid) -> Result<(), VdevError> {
        let _ = leaf;
        unimplemented!()
    }

    /// Writes an uberblock into its slot (`txg % slots`) of all four labels of a leaf. At least one must succeed.
    pub async fn write_uberblock(&self, leaf: Guid, uberblock: &Uberblock) -> Result<(), VdevError> {
        let _ = (leaf, uberblock);
        unimplemented!()
    }

    /// Flushes one leaf.
    pub async fn flush_leaf(&self, leaf: Guid) -> Result<(), VdevError> {
        let _ = leaf;
        unimplemented!()
    }

    /// Returns the newest valid uberblock of any leaf with txg at most `max`.
    pub async fn best_uberblock(&self, max: Option<Txg>) -> Result<Option<Uberblock>, VdevError> {
        let _ = max;
        unimplemented!()
    }

    /// Closes all devices. Later calls fail with `Unavailable`.
    pub fn close(&self) {}
}
