//! The plain types of the tree: checks, modes, health, and the status of vdevs.

use std::sync::Arc;
use std::time::Duration;

use ondisk::Guid;
use runtime::IoBuf;

use crate::{AllocationBias, Layout, QueueTuning, VdevKind, VdevStats};

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

/// Notes of leaves that were opened, and whose content is not what it should be.
// OpenZFS: cmd/zpool/zpool_main.c, print_status_config; module/zfs/vdev.c, vdev_validate
pub mod note {
    /// There is no label that can be read.
    pub const INVALID_LABEL: &str = "invalid label";
    /// The label is another vdev's, or the device is too small, or has larger sectors.
    pub const CORRUPTED_DATA: &str = "corrupted data";
    /// It was made a pool of its own.
    pub const SPLIT: &str = "split into new pool";
    /// The administrator declared it faulted.
    pub const EXTERNAL_FAULT: &str = "external device fault";
    /// Of a pool: its intent log cannot be read.
    pub const BAD_LOG: &str = "bad intent log";
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
    /// Checks of buffers above this many bytes run on the compute pool.
    pub offload_above_bytes: u64,
    /// The same for checks that only add words up. 128 KiB: that takes 12 microseconds, a hop to the compute pool and back 5 to 10
    /// of the pool's thread and two changes of threads (docs/measurements/2026-11-29-rates.md).
    pub offload_sums_above_bytes: u64,
    /// A leaf of a mirror that does not answer for this long is left behind.
    pub stuck_after: Duration,
    /// Log vdevs may lack all of their devices: nothing is read from or written to them then.
    pub missing_logs: bool,
}

impl Default for TreeTuning {
    fn default() -> Self {
        Self {
            queue: QueueTuning::default(),
            offload_above_bytes: runtime::COMPUTE_WORTHWHILE_BYTES as u64,
            offload_sums_above_bytes: 128 << 10,
            stuck_after: Duration::from_secs(60),
            missing_logs: false,
        }
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
    /// Which blocks it is for; [`AllocationBias::Log`] exactly when `is_log`.
    pub bias: AllocationBias,
    /// May take new blocks.
    pub allocating: bool,
    /// How blocks are laid out.
    pub layout: Layout,
}

impl TopInfo {
    /// Returns the bytes that a block of `psize` bytes takes.
    #[must_use]
    pub fn asize_of(&self, psize: u64) -> u64 {
        self.layout.asize_of(self.ashift, psize)
    }

    /// Returns the part of the vdev that a metaslab is.
    #[must_use]
    pub fn metaslab_span(&self, index: u64) -> std::ops::Range<u64> {
        let (ashift, shift) = (self.ashift, self.metaslab_shift);
        self.layout.metaslab_span(ashift, shift, index)
    }
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
    /// Which blocks it is for (top-level).
    pub bias: AllocationBias,
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
    /// Rows of parity (raidz, draid), else 0.
    pub nparity: u8,
    /// The type as vdevs are named by it: `mirror`, `raidz2`, `draid1:4d:11c:1s`.
    pub type_name: String,
    /// Children.
    pub children: Vec<Self>,
}

/// What a scrub of one range found.
#[derive(Debug, Default)]
pub struct Scrubbed {
    /// The right bytes, if any leaf had them.
    pub good: Option<IoBuf>,
    /// Leaves that could not be read or held something else.
    pub bad_copies: u32,
    /// Of those, rewritten.
    pub repaired_copies: u32,
    /// Bytes of those.
    pub repaired_bytes: u64,
}

/// A check of bytes that produces a value. Functions are checks.
pub trait BlockCheck<T>: Send + Sync {
    /// Returns the value, `None` for wrong bytes.
    fn judge(&self, bytes: &IoBuf) -> Option<T>;

    /// Whether it only adds words up (Fletcher), which is many times quicker than what else a check may do.
    fn is_quick(&self) -> bool {
        false
    }
}

impl<T, F: Fn(&IoBuf) -> Option<T> + Send + Sync> BlockCheck<T> for F {
    fn judge(&self, bytes: &IoBuf) -> Option<T> {
        self(bytes)
    }
}

/// A function as a check that is quick.
pub struct QuickCheck<F>(pub F);

impl<T, F: Fn(&IoBuf) -> Option<T> + Send + Sync> BlockCheck<T> for QuickCheck<F> {
    fn judge(&self, bytes: &IoBuf) -> Option<T> {
        (self.0)(bytes)
    }

    fn is_quick(&self) -> bool {
        true
    }
}

/// A check that several reads share.
pub type Check<T> = Arc<dyn BlockCheck<T>>;
