//! What a caller asks for: a new pool, or the import of one found.  Plain data, no disks.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use vdev::AllocationBias;

use crate::events::EventLog;
use crate::rewind::Rewind;

/// Identity of the machine, written into labels and compared at import.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostIdentity {
    /// `gethostid()`; 0 means unset (then the label carries none and no check is made).
    pub hostid: u64,
    /// `uname -n`.
    pub hostname: String,
    /// `uname -r -v -m`: what runs on the machine, for the history alone; may be empty.
    pub kernel: String,
}

/// One top-level vdev of a new pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VdevSpec {
    /// A single file or block device.
    Single(PathBuf),
    /// Two or more devices holding the same bytes.
    Mirror(Vec<PathBuf>),
    /// Devices that blocks are spread over, of which any `parity` (1 to 3) may be lost.
    Raidz {
        /// Rows of parity.
        parity: u8,
        /// More than `parity` devices, at most 255.
        paths: Vec<PathBuf>,
    },
    /// Devices that groups of columns rotate over, with spare space among them.
    Draid {
        /// Rows of parity, 1 to 3.
        parity: u8,
        /// Columns of data in each group.
        data: u32,
        /// Distributed spares, at most 100.
        spares: u32,
        /// At least as many devices as a group and the spares need, at most 255.
        paths: Vec<PathBuf>,
    },
}

impl VdevSpec {
    /// Returns the devices in order.
    #[must_use]
    pub fn paths(&self) -> &[PathBuf] {
        match self {
            Self::Single(path) => std::slice::from_ref(path),
            Self::Mirror(paths) | Self::Raidz { paths, .. } | Self::Draid { paths, .. } => paths,
        }
    }

    /// Returns the rows of parity, 0 for single devices and mirrors.
    #[must_use]
    pub fn parity(&self) -> u8 {
        match self {
            Self::Single(_) | Self::Mirror(_) => 0,
            Self::Raidz { parity, .. } | Self::Draid { parity, .. } => *parity,
        }
    }

    /// Returns what makes it a draid.
    pub(crate) fn draid(&self) -> Option<vdev::DraidSpec> {
        match self {
            Self::Draid { data, spares, .. } => Some(vdev::DraidSpec {
                data: *data,
                spares: *spares,
            }),
            _ => None,
        }
    }
}

/// Which features a new pool enables before `feature@x=` settings are applied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FeatureBase {
    /// Everything this software implements fully.
    #[default]
    Implemented,
    /// None (`-d`).
    None,
}

/// A pool to be created.
#[derive(Clone, Debug, Default)]
pub struct PoolSpec {
    /// Name of the pool and of its root dataset, as it is stored.
    pub name: String,
    /// Name in use until the pool is exported (`-t`), where that is another; not stored.
    pub temporary_name: Option<String>,
    /// Top-level vdevs for ordinary blocks, in order.
    pub vdevs: Vec<VdevSpec>,
    /// Top-level vdevs for deduplication tables, metadata and intent logs, in order; they follow the ordinary ones.
    pub dedup: Vec<VdevSpec>,
    /// See `dedup`.
    pub special: Vec<VdevSpec>,
    /// See `dedup`.
    pub logs: Vec<VdevSpec>,
    /// Hot spares.
    pub spares: Vec<PathBuf>,
    /// Cache devices.
    pub caches: Vec<PathBuf>,
    /// `-o NAME=VALUE`, in order: pool properties, `ashift`, `feature@x`, `compatibility`.
    pub properties: Vec<(String, String)>,
    /// Starting set of features.
    pub features: FeatureBase,
    /// Use devices that hold something else (`-f`).
    pub force: bool,
    /// Alternate root (`-R`); not stored.
    pub altroot: Option<PathBuf>,
    /// Properties of the root dataset (`-O`), checked.
    pub settings: Vec<dsl::property::Setting>,
    /// Key of the root dataset, if that is to be encrypted ([`crate::plan_root_key`]).
    pub key: Option<dsl::NewKey>,
    /// Limits; defaults suit most machines.
    pub tuning: Tuning,
    /// Command line for the history, when a command made this request.
    pub command: Option<String>,
    /// This machine.
    pub host: HostIdentity,
    /// Log of the pool's events.
    pub events: EventLog,
}

impl PoolSpec {
    /// Returns the name that the pool goes by once it is created.
    pub fn name_in_use(&self) -> &str {
        self.temporary_name.as_deref().unwrap_or(&self.name)
    }

    /// Returns all top-level vdevs with what they are for, in the order of their ids.
    pub fn tops(&self) -> impl Iterator<Item = (&VdevSpec, AllocationBias)> {
        by_bias([&self.vdevs, &self.dedup, &self.special, &self.logs])
    }
}

/// Devices to be added to a pool.
#[derive(Clone, Debug, Default)]
pub struct AddSpec {
    /// Top-level vdevs for ordinary blocks, in order.
    pub vdevs: Vec<VdevSpec>,
    /// Top-level vdevs for deduplication tables, metadata and intent logs, in order; they follow the ordinary ones.
    pub dedup: Vec<VdevSpec>,
    /// See `dedup`.
    pub special: Vec<VdevSpec>,
    /// See `dedup`.
    pub logs: Vec<VdevSpec>,
    /// Hot spares.
    pub spares: Vec<PathBuf>,
    /// Cache devices.
    pub caches: Vec<PathBuf>,
    /// log2 of the sector size (`-o ashift`); `None` leaves it to the pool's property, then to the devices.
    pub ashift: Option<u8>,
    /// Use devices that hold something else (`-f`, `--allow-in-use`).
    pub force: bool,
    /// Add vdevs with other sectors than the pool has so far (`-f`, `--allow-ashift-mismatch`).
    pub any_sector_size: bool,
}

impl AddSpec {
    /// Returns all top-level vdevs with what they are for, in the order of their ids.
    pub fn tops(&self) -> impl Iterator<Item = (&VdevSpec, AllocationBias)> {
        by_bias([&self.vdevs, &self.dedup, &self.special, &self.logs])
    }
}

/// A pool to be made of one half of every mirror of another.
#[derive(Clone, Debug, Default)]
pub struct SplitSpec {
    /// Its name.
    pub name: String,
    /// Halves to take; of mirrors of which none is named, the last one.
    pub devices: Vec<u64>,
    /// `-o NAME=VALUE`: properties to set in it.
    pub properties: Vec<(String, String)>,
}

fn by_bias(parts: [&[VdevSpec]; 4]) -> impl Iterator<Item = (&VdevSpec, AllocationBias)> {
    let biases = [
        AllocationBias::None,
        AllocationBias::Dedup,
        AllocationBias::Special,
        AllocationBias::Log,
    ];
    let parts = parts.into_iter().zip(biases);
    parts.flat_map(|(vdevs, bias)| vdevs.iter().zip(std::iter::repeat(bias)))
}

/// Limits of one pool's engine.
#[derive(Clone, Debug, Default)]
pub struct Tuning {
    /// Cache size.
    pub cache: arc::CacheTuning,
    /// Transaction groups and dirty data.
    pub txg: dmu::TxgOptions,
    /// Device queues.
    pub devices: vdev::TreeTuning,
    /// Block I/O and allocation.
    pub blocks: zio::StoreTuning,
    /// Heartbeats of pools with `multihost=on`.
    pub multihost: MultihostTuning,
    /// Evacuation of vdevs that are removed.
    pub removal: RemovalTuning,
    /// Expansions of raidz vdevs.
    pub reflow: ReflowTuning,
    /// See [`RebuildTuning`].
    pub rebuild: RebuildTuning,
    /// Deduplication tables.
    pub dedup: DedupTuning,
}

/// How deduplication tables are written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DedupTuning {
    /// A table of the fast form with so many entries is written through logs. The blocks of a smaller one are so few that most
    /// of them change in each txg, whatever waits.
    pub log_from_entries: u64,
    /// Entries of a log that are brought to the table in a txg at least.
    pub flush_entries_min: usize,
}

impl Default for DedupTuning {
    fn default() -> Self {
        Self {
            log_from_entries: 100_000,
            flush_entries_min: 1000,
        }
    }
}

/// Sequential resilvers.
// OpenZFS: module/zfs/vdev_rebuild.c, zfs_rebuild_max_segment, zfs_rebuild_scrub_enabled
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RebuildTuning {
    /// Bytes of each device brought at once.
    pub segment_bytes: u64,
    /// Bytes of the vdev brought at the same time.
    pub batch_bytes: u64,
    /// How often progress is made durable.
    pub store_every: Duration,
    /// A scrub follows: a rebuild verifies no checksums.
    pub scrub: bool,
    /// Nothing is brought until [`Pool::pause_rebuilds`](crate::Pool::pause_rebuilds) says so.
    pub paused: bool,
}

impl Default for RebuildTuning {
    fn default() -> Self {
        Self {
            segment_bytes: 1 << 20,
            batch_bytes: 32 << 20,
            store_every: Duration::from_secs(5),
            scrub: true,
            paused: false,
        }
    }
}

/// How raidz vdevs are expanded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReflowTuning {
    /// Allocated bytes moved by one transaction group, which is held up meanwhile.
    pub batch_bytes: u64,
    /// Nothing moves until [`Pool::pause_expansion`](crate::Pool::pause_expansion) says so.
    pub paused: bool,
}

impl Default for ReflowTuning {
    fn default() -> Self {
        Self {
            batch_bytes: 64 << 20,
            paused: false,
        }
    }
}

/// How vdevs are evacuated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemovalTuning {
    /// Bytes copied while one transaction group is held open.
    pub batch_bytes: u64,
    /// Longest run of a table: a multiple of the sectors.
    // OpenZFS: module/zfs/vdev_removal.c, zfs_remove_max_segment
    pub segment_bytes: u64,
    /// Free space shorter than this is copied with what lies around it, so that the table stays short.
    // OpenZFS: vdev_removal_max_span
    pub span_bytes: u64,
    /// Nothing is copied until [`Pool::pause_removal`](crate::Pool::pause_removal) says so.
    // OpenZFS: zfs_removal_suspend_progress
    pub paused: bool,
}

impl Default for RemovalTuning {
    fn default() -> Self {
        Self {
            batch_bytes: 16 << 20,
            segment_bytes: 16 << 20,
            span_bytes: 32 << 10,
            paused: false,
        }
    }
}

/// Heartbeats of pools with `multihost=on`.
// OpenZFS: module/zfs/mmp.c, zfs_multihost_interval and its like (names, defaults)
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MultihostTuning {
    /// Time in which every leaf gets a heartbeat; at least 100 ms.
    pub interval: Duration,
    /// After so many intervals without a heartbeat that landed nothing is written any more; 0: never.
    pub fail_intervals: u16,
    /// For so many intervals an import looks at a pool whose user did not say how long it goes without a heartbeat.
    pub import_intervals: u16,
}

impl Default for MultihostTuning {
    fn default() -> Self {
        Self {
            interval: Duration::from_secs(1),
            fail_intervals: 10,
            import_intervals: 20,
        }
    }
}

impl MultihostTuning {
    pub(crate) fn interval(&self) -> Duration {
        self.interval.max(Duration::from_millis(100))
    }
}

/// How a pool is to be imported.
#[derive(Clone, Debug, Default)]
pub struct ImportPolicy {
    /// Import although another host may have it (`-f`).
    pub force: bool,
    /// Never write (`-o readonly=on`).
    pub readonly: bool,
    /// Allow a destroyed pool (`-D`).
    pub destroyed: bool,
    /// Do without log devices that are missing, and without what their logs hold (`-m`).
    pub missing_logs: bool,
    /// How far to go back when the newest state is damaged (`-F`, `-X`, `-T`); `None`: not at all.
    pub rewind: Option<Rewind>,
    /// Go back to the checkpoint (`--rewind-to-checkpoint`), for good unless read-only.
    pub rewind_to_checkpoint: bool,
    /// Alternate root (`-R`); not stored.
    pub altroot: Option<PathBuf>,
    /// New name, stored in the pool unless `temporary_name`.
    pub new_name: Option<String>,
    /// Keep the stored name (`-t`).
    pub temporary_name: bool,
    /// `-o NAME=VALUE` pool properties to set.
    pub properties: BTreeMap<String, String>,
    /// Limits; defaults suit most machines.
    pub tuning: Tuning,
    /// Command line for the history, when a command made this request.
    pub command: Option<String>,
    /// This machine.
    pub host: HostIdentity,
    /// Log of the pool's events.
    pub events: EventLog,
}
