//! `vdev`: the device tree of one pool.
//!
//! What it is: opens the leaves (disks and files) that a configuration names, joins them to top-level vdevs (single
//! leaves, mirrors, raidz, draid), and reads and writes byte ranges of a top-level vdev with redundancy, queues, counters
//! and self-heal. It also reads and writes labels and the uberblock ring.
//!
//! Guarantees: a read that was given a check returns only bytes that passed it; a copy that failed the check is
//! rewritten from a good one; a write is reported as done only when the leaves that hold it suffice to read it, and the
//! leaves that missed it are remembered for the caller (see [`Tree::take_missed_writes`]).
//!
//! What it does not know: block pointers, the meaning of transaction groups, checksum algorithms of blocks.

#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]

mod config;
mod copy;
mod create;
mod diagnosis;
mod error;
mod events;
mod faults;
mod free_space;
mod grow;
mod indirect;
mod inject;
mod io;
mod label_io;
pub mod labels;
mod layout;
mod leaf;
mod leaf_state;
mod leaf_writes;
mod location;
mod mapping;
mod queue;
mod raidz;
mod rebuild;
mod reconfigure;
mod stats;
mod tree;
mod txg_set;
mod types;

pub use config::{AllocationBias, ConfigTarget, TreeConfig, VdevConfig, VdevKind};
pub use copy::CopyFailure;
pub use create::{
    Conflict, DiskUse, DraidSpec, LeafSpec, NewSpace, TopShape, TopSpec, TreeSpec, ashift_for,
    disk_use, metaslab_shift_for, plan, plan_tops,
};
pub use diagnosis::{ErrorBurst, ErrorLimits};
pub use error::VdevError;
pub use events::{LeafEvent, LeafEventKind, LeafEvents};
pub use faults::{
    DeviceEffect, DeviceFault, FAULTS_MAX, Frequency, InjectedDeviceFault, InjectedError,
    InjectedIo, LANES_MAX, LabelArea,
};
pub use io::Suspect;
pub use layout::Layout;
pub use leaf::open_disk;
pub use location::Location;
pub use mapping::MappingEntry;
pub use queue::{ClassLimits, IoClass, QueueTuning};
pub use raidz::ReflowProgress;
pub use raidz::draid::Draid;
pub use raidz::shape::Raidz;
pub use rebuild::Rebuilt;
pub use reconfigure::Join;
pub use stats::{ClassStats, LATENCY_BUCKETS, LatencyHistogram, SIZE_BUCKETS, VdevStats};
pub use tree::Tree;
pub use types::{
    BlockCheck, Check, Health, LeafInfo, OpenMode, QuickCheck, Scrubbed, TopInfo, TreeTuning,
    VdevStatus, Verify, note,
};

/// Bytes at the front of every leaf that no block may use: two labels and the boot area.
/// Offset 0 of a top-level vdev is this byte of its leaves.
pub const LEAF_DATA_START: u64 = 4 << 20;
/// Start of the boot area of a leaf, in bytes. It goes up to [`LEAF_DATA_START`].
pub(crate) const BOOT_AREA_START: u64 = 2 * ondisk::label::LABEL_SIZE;
/// Smallest device that can be a leaf, in bytes (`SPA_MINDEVSIZE`).
pub const MIN_DEVICE_BYTES: u64 = 64 << 20;
/// Smallest and largest allowed sector shift of a top-level vdev.
pub const ASHIFT_MIN: u8 = 9;
/// See [`ASHIFT_MIN`].
pub const ASHIFT_MAX: u8 = 16;
const _: () = assert!(LEAF_DATA_START == ondisk::label::DATA_START);
const _: () = assert!(BOOT_AREA_START < LEAF_DATA_START);
const _: () = assert!(MIN_DEVICE_BYTES == ondisk::label::MIN_DEVICE_SIZE);
const _: () = assert!(MIN_DEVICE_BYTES > LEAF_DATA_START + ondisk::label::END_RESERVED);
const _: () = assert!(ASHIFT_MIN < ASHIFT_MAX && 1 << ASHIFT_MAX <= LEAF_DATA_START);
