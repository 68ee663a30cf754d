//! How a pool looks from outside: the data behind `zpool status`, `list`, `iostat` and `import`.
//! Plain data.  The numbers are a moment's view; nothing here is kept on disk.

pub(crate) mod collect;

use std::path::PathBuf;
use std::sync::Arc;

use vdev::{AllocationBias, VdevStats, note};

/// Health of a pool or a vdev, in OpenZFS's words.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Health {
    /// Working normally.
    #[default]
    Online,
    /// Working with reduced redundancy.
    Degraded,
    /// Taken out of service because of errors or damaged content.
    Faulted,
    /// Taken offline by the administrator.
    Offline,
    /// Cannot be opened.
    Unavail,
    /// Was removed while in use.
    Removed,
    /// The pool is suspended (pools only).
    Suspended,
    /// Waits to stand in for a device (spares only).
    Available,
    /// Stands in for a device (spares only).
    InUse,
}

impl Health {
    /// Returns the word `zpool status` prints.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Online => "ONLINE",
            Self::Degraded => "DEGRADED",
            Self::Faulted => "FAULTED",
            Self::Offline => "OFFLINE",
            Self::Unavail => "UNAVAIL",
            Self::Removed => "REMOVED",
            Self::Suspended => "SUSPENDED",
            Self::Available => "AVAIL",
            Self::InUse => "INUSE",
        }
    }
}

/// What the pool's label says about its use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PoolState {
    /// In use, or not cleanly exported (label state 0).
    #[default]
    Active,
    /// Exported (1).
    Exported,
    /// Destroyed (2).
    Destroyed,
}

/// The single most important thing to say about a pool, as `zpool status` chooses it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StatusReason {
    /// Nothing to say.
    #[default]
    Ok,
    /// A device is missing; redundancy covers it.
    MissingDeviceReplicated,
    /// A device is missing and no redundancy covers it.
    MissingDevice,
    /// A device's label is unusable; redundancy covers it.
    CorruptLabelReplicated,
    /// A device's label is unusable and no redundancy covers it.
    CorruptLabel,
    /// The devices do not add up to the pool.
    BadGuidSum,
    /// The pool's metadata is damaged.
    CorruptPool,
    /// Files are damaged.
    CorruptData,
    /// A device has shown errors.
    FailingDevice,
    /// Written by newer software.
    VersionNewer,
    /// Of a version from before features.
    VersionOlder,
    /// Last used by another host.
    HostidMismatch,
    /// Possibly in use by another host now.
    HostidActive,
    /// Suspended after I/O failure, failmode=wait.
    IoFailureWait,
    /// Suspended after I/O failure, failmode=continue.
    IoFailureContinue,
    /// Suspended because no heartbeat of a pool with multihost=on reached its devices.
    IoFailureMultihost,
    /// Suspended because a txg did not fit into the space that is left.
    OutOfSpace,
    /// A feature is needed even for reading.
    UnsupportedFeatureRead,
    /// A feature is needed for writing.
    UnsupportedFeatureWrite,
    /// A device was faulted; redundancy covers it.
    FaultedDeviceReplicated,
    /// A device was faulted and no redundancy covers it.
    FaultedDevice,
    /// Some supported features are not enabled.
    FeaturesDisabled,
    /// A device is being brought up to date.
    Resilvering,
    /// A device was resilvered sequentially: its checksums have not been verified since.
    RebuildScrub,
    /// A device was taken offline.
    OfflineDevice,
    /// A device was removed.
    RemovedDevice,
}

impl VdevStatus {
    /// Whether it was opened, and what is on it is not what the pool wrote there.
    #[must_use]
    pub fn has_other_content(&self) -> bool {
        let others = [note::INVALID_LABEL, note::CORRUPTED_DATA, note::SPLIT];
        self.note
            .as_deref()
            .is_some_and(|note| others.contains(&note))
    }

    /// Returns the word for its state that `zpool status` and `zpool list -v` print.
    // OpenZFS: lib/libzfs/libzfs_pool.c, zpool_state_to_name
    #[must_use]
    pub fn state_word(&self) -> &'static str {
        match (self.health, self.note.as_deref()) {
            (Health::Unavail, Some(note::CORRUPTED_DATA | note::BAD_LOG)) => {
                Health::Faulted.as_str()
            }
            (Health::Unavail, Some(note::SPLIT)) => "SPLIT",
            (health, _) => health.as_str(),
        }
    }
}

/// A scrub or resilver, as far as it has come.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScanStatus {
    /// Resilver rather than scrub.
    pub resilver: bool,
    /// Running (else finished, or cancelled).
    pub running: bool,
    /// Cancelled before its end.
    pub cancelled: bool,
    /// Start, seconds since 1970.
    pub start_time: u64,
    /// End, seconds since 1970; 0 while running.
    pub end_time: u64,
    /// Bytes to look at in total.
    pub to_examine_bytes: u64,
    /// Bytes looked at.
    pub examined_bytes: u64,
    /// Of those, bytes that were read from the disks.
    pub issued_bytes: u64,
    /// Of those, bytes that needed no reading.
    pub skipped_bytes: u64,
    /// When this session went on with it, seconds since 1970.
    pub pass_start_time: u64,
    /// Bytes looked at since then.
    pub pass_examined_bytes: u64,
    /// Bytes read since then.
    pub pass_issued_bytes: u64,
    /// Seconds since then in which it was paused.
    pub pass_spent_paused: u64,
    /// Since when it is paused, seconds since 1970; 0 when it is not.
    pub paused_since: u64,
    /// Bytes repaired or resilvered.
    pub processed_bytes: u64,
    /// Unrepairable blocks.
    pub errors: u64,
}

/// State of a sequential resilver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RebuildState {
    /// Under way.
    Active,
    /// Ended early.
    Canceled,
    /// Came to its end.
    Complete,
}

/// The sequential resilver of a top-level vdev, as far as it has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RebuildStatus {
    /// State.
    pub state: RebuildState,
    /// Start, seconds since 1970.
    pub start_time: u64,
    /// End, seconds since 1970; 0 while it runs.
    pub end_time: u64,
    /// Milliseconds it took, without those in which the pool was not imported.
    pub scan_time_ms: u64,
    /// Allocated bytes passed.
    pub scanned_bytes: u64,
    /// Of those, bytes that were read.
    pub issued_bytes: u64,
    /// Bytes written to devices.
    pub rebuilt_bytes: u64,
    /// Allocated bytes in all.
    pub estimated_bytes: u64,
    /// Ranges that could not be brought.
    pub errors: u64,
    /// Milliseconds of this session.
    pub pass_time_ms: u64,
    /// Bytes passed in this session.
    pub pass_scanned_bytes: u64,
    /// Bytes read in this session.
    pub pass_issued_bytes: u64,
    /// Bytes passed in this session that no device needed.
    pub pass_skipped_bytes: u64,
}

/// One vdev of the tree.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VdevStatus {
    /// As printed: a path for leaves, `mirror-0` for interior vdevs, the pool's name at the root.
    pub name: String,
    /// `root`, `disk`, `file`, `mirror`, ...
    pub kind: String,
    /// Unique number of the vdev.
    pub guid: u64,
    /// Index within its parent.
    pub id: u64,
    /// Where a leaf was found, or was last seen.
    pub path: Option<PathBuf>,
    /// State.
    pub health: Health,
    /// Explanation at the end of the line, for instance `cannot open` or `was /dev/sdb1`.
    pub note: Option<String>,
    /// Failed reads.
    pub read_errors: u64,
    /// Failed writes.
    pub write_errors: u64,
    /// Blocks with wrong bytes.
    pub checksum_errors: u64,
    /// Operations that took longer than 30 seconds.
    pub slow_ios: u64,
    /// Usable bytes (top-level and root).
    pub size_bytes: u64,
    /// Allocated bytes (top-level and root).
    pub allocated_bytes: u64,
    /// Bytes that a checkpoint alone keeps allocated (top-level).
    pub checkpoint_bytes: u64,
    /// Bytes by which it could grow with its devices (top-level and root).
    pub expandable_bytes: u64,
    /// Fragmentation of free space in percent, when known (top-level and root).
    pub fragmentation_percent: Option<u64>,
    /// log2 of the sector size (top-level).
    pub ashift: u64,
    /// Holds intent-log blocks only (top-level).
    pub is_log: bool,
    /// Which blocks it is for (top-level).
    pub bias: AllocationBias,
    /// Being evacuated, to be removed (top-level).
    pub removing: bool,
    /// Takes no new blocks (with those below).
    pub non_allocating: bool,
    /// Being resilvered.
    pub resilvering: bool,
    /// It waits for the end of the resilver under way, to be resilvered then (leaves).
    pub awaiting_resilver: bool,
    /// The scrub under way has rewritten some of it (leaves).
    pub repairing: bool,
    /// The last sequential resilver of a top-level vdev.
    pub rebuild: Option<RebuildStatus>,
    /// Trimming (leaves).
    pub trim: LeafActivityStatus,
    /// Writing of free space (leaves).
    pub initialize: LeafActivityStatus,
    /// Statistics since import.
    pub io: IoTotals,
    /// All counters since import: by class, with histograms.
    pub detail: Arc<VdevStats>,
    /// Children in order.
    pub children: Vec<Self>,
}

/// Operations and bytes since the pool was imported.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IoTotals {
    /// Completed reads.
    pub read_ops: u64,
    /// Completed writes.
    pub write_ops: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub write_bytes: u64,
    /// Summed time of reads, nanoseconds.
    pub read_nanoseconds: u64,
    /// Summed time of writes, nanoseconds.
    pub write_nanoseconds: u64,
}

/// How far the newest removal of a vdev that held data is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemovalStage {
    /// Its blocks are being copied.
    Evacuating,
    /// It is gone.
    Finished,
    /// It was canceled.
    Canceled,
}

/// The newest removal of a vdev that held data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemovalStatus {
    /// How far.
    pub stage: RemovalStage,
    /// Id of the vdev.
    pub vdev: u64,
    /// Start, seconds since 1970.
    pub start_time: u64,
    /// End, seconds since 1970; 0 while it is being evacuated.
    pub end_time: u64,
    /// Bytes that were to be copied at its start.
    pub to_copy_bytes: u64,
    /// Bytes that need not be copied any more: they were, or were freed.
    pub copied_bytes: u64,
    /// Memory that the tables of all removed vdevs take.
    pub mapping_bytes: u64,
}

/// The newest expansion of a raidz.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExpansionStatus {
    /// Its sectors are moving.
    pub running: bool,
    /// Nothing moves: a device is missing, or lacks something.
    pub waiting_for_resilver: bool,
    /// Id of the vdev.
    pub vdev: u64,
    /// Start, seconds since 1970.
    pub start_time: u64,
    /// End, seconds since 1970; 0 while it runs.
    pub end_time: u64,
    /// Bytes allocated on the vdev.
    pub to_copy_bytes: u64,
    /// Bytes moved.
    pub copied_bytes: u64,
}

/// A whole pool, for `zpool status`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PoolStatus {
    /// Name.
    pub name: String,
    /// Unique number.
    pub guid: u64,
    /// Health of the whole.
    pub health: Health,
    /// What the label says.
    pub state: PoolState,
    /// The one thing to say.
    pub reason: StatusReason,
    /// Names that go with the reason (features, devices).
    pub details: Vec<String>,
    /// Last or running scan.
    pub scan: Option<ScanStatus>,
    /// The checkpoint, or what is left of one that is being discarded.
    pub checkpoint: Option<CheckpointStatus>,
    /// The newest removal of a vdev that held data.
    pub removal: Option<RemovalStatus>,
    /// The newest expansion of a raidz.
    pub expansion: Option<ExpansionStatus>,
    /// Why the space of what was destroyed is not freed any further before the next import.
    pub freeing_stopped: Option<String>,
    /// Root of the vdev tree.
    pub root: VdevStatus,
    /// Cache devices.
    pub caches: Vec<VdevStatus>,
    /// Hot spares.
    pub spares: Vec<VdevStatus>,
    /// Number of known damaged files or objects.
    pub data_errors: u64,
    /// Opened read-only.
    pub readonly: bool,
    /// Last synced txg.
    pub txg: u64,
    /// Nanoseconds since the pool was opened: what the I/O totals cover.
    pub open_nanoseconds: u64,
}

/// How far some work on the free space of a device has come. The numbers are the on-disk ones.
// OpenZFS: include/sys/fs/zfs.h, vdev_trim_state_t, vdev_initializing_state_t
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LeafActivityState {
    /// Never begun.
    #[default]
    None,
    /// Under way.
    Active,
    /// Given up.
    Canceled,
    /// Interrupted, to go on.
    Suspended,
    /// Done.
    Complete,
}

impl LeafActivityState {
    pub(crate) fn number(self) -> u64 {
        self as u64
    }

    pub(crate) fn from_number(number: u64) -> Self {
        let all = [
            Self::Active,
            Self::Canceled,
            Self::Suspended,
            Self::Complete,
        ];
        let found = all.into_iter().find(|state| state.number() == number);
        found.unwrap_or_default()
    }
}

/// Work on the free space of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeafActivityStatus {
    /// State.
    pub state: LeafActivityState,
    /// When it began, or was completed, seconds since 1970.
    pub time: u64,
    /// How much of the free space is done.
    pub percent: u64,
    /// Free bytes of the device that are not done, while it is under way.
    pub remaining_bytes: u64,
    /// The device cannot.
    pub unsupported: bool,
}

/// The checkpoint of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckpointStatus {
    /// When its state was written, seconds since 1970; `None` while it is being discarded.
    pub time: Option<u64>,
    /// Bytes allocated for it alone.
    pub bytes: u64,
}

/// A record of the pool's history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HistoryRecord {
    /// Seconds since 1970.
    pub time: u64,
    /// Host that did it.
    pub hostname: String,
    /// Zone (`linux`), when recorded.
    pub zone: Option<String>,
    /// User who did it, when recorded.
    pub user: Option<u64>,
    /// Transaction group, for internal events.
    pub txg: Option<u64>,
    /// How long it took in milliseconds, when recorded.
    pub elapsed_ms: Option<u64>,
    /// What was recorded.
    pub event: HistoryEvent,
}

/// What a history record says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HistoryEvent {
    /// A command line.
    Command(String),
    /// An event inside the pool (`zpool history -i`).
    Internal {
        /// Event, such as `create` or `set`.
        name: String,
        /// Dataset and its object number, when it concerns one.
        dataset: Option<(String, u64)>,
        /// Details.
        text: String,
    },
    /// An event of a pool that is older than feature flags, by its number.
    OldInternal {
        /// The number.
        event: u64,
        /// Details.
        text: String,
    },
    /// What OpenZFS was asked for by a program.
    Request {
        /// What, such as `snapshot`.
        name: String,
        /// With which arguments and result: lines, each with its end.
        details: String,
    },
    /// None of these: its pairs, a line each.
    Unknown(String),
}
