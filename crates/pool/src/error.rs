//! What can go wrong with a whole pool, named by cause.
//!
//! The texts are the clauses OpenZFS prints after `cannot import 'NAME': ` or `cannot create
//! 'NAME': `, so that the command layer adds only the verb and the pool.  A cause that OpenZFS has
//! no words for says what it means for the data and what to do next.

use std::path::PathBuf;

use dmu::DmuError;
use dsl::DslError;
use runtime::DiskError;
use vdev::VdevError;
use zio::ZioError;

/// Why a scan cannot be started, paused or cancelled.
// OpenZFS: lib/libzfs/libzfs_util.c, libzfs_error_description (words)
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ScanRefusal {
    /// A scrub runs.
    #[error("currently scrubbing; use 'zpool scrub -s' to cancel scrub")]
    Scrubbing,
    /// A resilver runs.
    #[error("currently resilvering")]
    Resilvering,
    /// A sequential resilver runs.
    #[error("currently sequentially resilvering")]
    Rebuilding,
    /// No scrub runs.
    #[error("there is no active scrub")]
    NoScrub,
    /// The scrub is paused already.
    #[error("scrub is paused; use 'zpool scrub' to resume scrub")]
    Paused,
    /// An error scrub is asked for while a scrub is paused.
    #[error("scrub is paused; use 'zpool scrub' to resume or 'zpool scrub -s' to cancel scrub")]
    PausedToCancel,
}

/// Why an operation on a pool failed.
#[derive(Debug, thiserror::Error)]
pub enum PoolError {
    /// The request itself is wrong: a bad name, layout or value.  The text is the whole reason.
    #[error("{0}")]
    Invalid(String),
    /// A property name that no pool has.
    #[error("invalid property '{0}'")]
    NoSuchProperty(String),
    /// A property that cannot be set, or not at this moment.
    #[error("property '{name}' {reason}")]
    BadProperty {
        /// Property, as the user wrote it.
        name: String,
        /// The rest of the sentence.
        reason: String,
    },
    /// No pool of that name or guid among the candidates.
    #[error("no such pool available")]
    NoSuchPool,
    /// A pool of this name is already imported.
    #[error("a pool with that name already exists")]
    Exists,
    /// The device cannot be used for a new pool without force (or at all).
    #[error("{path} {reason}", path = path.display())]
    DeviceInUse {
        /// The device.
        path: PathBuf,
        /// For instance `is part of exported pool 'tank'`.
        reason: String,
        /// Whether `-f` overrides the refusal.
        forceable: bool,
    },
    /// The device is smaller than 64 MiB.
    #[error("one or more devices is less than the minimum size (64M)")]
    DeviceTooSmall {
        /// The device.
        path: PathBuf,
    },
    /// New devices would mix sector sizes in a pool that has one.
    // OpenZFS: lib/libzfs/libzfs_util.c, EZFS_ASHIFT_MISMATCH
    #[error("adding devices with different physical sector sizes is not allowed")]
    SectorSizes,
    /// The pool was last used by another host and not exported.
    #[error(
        "pool was previously in use from another system.\n\
         Last accessed by {hostname} (hostid={hostid:x}) at {last_access}\n\
         The pool can be imported, use 'zpool import -f' to import the pool."
    )]
    ForeignHost {
        /// Host name in the label.
        hostname: String,
        /// Host identifier in the label.
        hostid: u64,
        /// Time of the newest uberblock, as `date` writes it in UTC.
        last_access: String,
    },
    /// The pool is in use by another host right now (multihost): `-f` does not help.
    // OpenZFS: cmd/zpool/zpool_main.c, do_import; lib/libzfs/libzfs_pool.c, zpool_import_props (words without and with -f)
    #[error(
        "{}\nExport the pool on the other system, then run 'zpool import'.",
        elsewhere(.hostname, *.hostid, *.forced)
    )]
    ActiveElsewhere {
        /// Host name in the label.
        hostname: String,
        /// Host identifier in the label.
        hostid: u64,
        /// `-f` was given.
        forced: bool,
    },
    /// Another host may have the pool (multihost), and this one has no identifier to tell it apart.
    #[error(
        "pool has the multihost property on and the\nsystem's hostid is not set. Set a unique hostid with the \
         zgenhostid(8) command."
    )]
    NoHostId,
    /// Features needed to read the pool are unknown or not implemented here.
    #[error("unsupported version or feature:{}", list(.features))]
    UnsupportedForRead {
        /// `guid (description)` of each.
        features: Vec<String>,
    },
    /// Features needed to write the pool are unknown or not implemented; it may be read.
    #[error(
        "unsupported feature(s) for read-write import:{}\n\
         The pool can only be accessed in read-only mode on this system. It cannot be\n\
         accessed in read-write mode because it uses the feature(s) listed above.\n\
         The pool can be imported in read-only mode with 'zpool import -o readonly=on'.",
        list(.features)
    )]
    UnsupportedForWrite {
        /// `guid (description)` of each.
        features: Vec<String>,
    },
    /// The on-disk version is not one this software reads.
    #[error("pool is formatted using an unsupported ZFS version ({0})")]
    UnsupportedVersion(u64),
    /// A device layout (vdev type) that is not implemented.
    #[error("vdev type '{0}' is not supported by this software yet")]
    UnsupportedVdev(String),
    /// Devices that are needed are missing or cannot be opened.
    #[error("one or more devices is currently unavailable{}", list(.missing))]
    MissingDevices {
        /// What is missing, by path or guid.
        missing: Vec<String>,
    },
    /// Log devices are missing, and nothing else; importing without them, and what their logs hold, needs `-m`.
    #[error("one or more devices is currently unavailable{}", list(.missing))]
    MissingLogs {
        /// What is missing, by path or guid.
        missing: Vec<String>,
    },
    /// The pool was destroyed; importing it needs `-D`.
    #[error("pool was destroyed, use 'zpool import -D' to recover it")]
    Destroyed,
    /// An intent log with records that cannot be replayed here; writing would lose them.
    #[error(
        "the intent log of dataset '{dataset}' cannot be replayed: {reason}.\nImporting read-write would lose \
         acknowledged writes. Import with '-o readonly=on', or import the pool once with OpenZFS."
    )]
    DirtyIntentLog {
        /// The dataset.
        dataset: String,
        /// What stands in the way.
        reason: String,
    },
    /// What the disks say contradicts itself or fails verification.
    #[error("I/O error: {0}")]
    Corrupt(String),
    /// The operation needs a writable pool.
    #[error("pool is read-only")]
    ReadOnly,
    /// The pool is suspended after failed writes; nothing more is written until it is resumed.
    #[error("pool I/O is currently suspended")]
    Suspended,
    /// The pool was closed while the operation waited.
    #[error("pool is no longer imported")]
    Closed,
    /// Without the device some data would be out of reach.
    #[error("no valid replicas")]
    NoReplicas,
    // OpenZFS: lib/libzfs/libzfs_util.c, EZFS_CHECKPOINT_EXISTS and the next two
    /// The pool has a checkpoint, which is in the way.
    #[error("checkpoint exists")]
    CheckpointExists,
    /// The checkpoint is being discarded.
    #[error("currently discarding checkpoint")]
    DiscardingCheckpoint,
    /// There is none.
    #[error("checkpoint does not exist")]
    NoCheckpoint,
    /// Something still needs the device.
    #[error("{0}")]
    InUse(&'static str),
    /// The pool has no such device.
    #[error("no such device in pool")]
    NoSuchDevice,
    /// A scan is in the way, or there is none.
    #[error(transparent)]
    Scan(#[from] ScanRefusal),
    /// Something still uses the pool.
    #[error("pool is busy")]
    Busy,
    /// Not enough space.
    #[error("out of space")]
    NoSpace,
    /// A device could not be used.
    #[error(transparent)]
    Vdev(VdevError),
    /// A disk could not be opened or listed.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// A block could not be read or written.
    #[error(transparent)]
    Block(ZioError),
    /// An object of the pool's own could not be read or changed.
    #[error(transparent)]
    Object(DmuError),
    /// The datasets could not be read or changed.
    #[error(transparent)]
    Dataset(DslError),
}

impl PoolError {
    /// Returns whether an older state of the pool may be whole where the newest fails like this.
    #[must_use]
    pub fn is_damage(&self) -> bool {
        matches!(
            self,
            Self::Corrupt(_)
                | Self::Block(_)
                | Self::Object(_)
                | Self::Dataset(_)
                | Self::DirtyIntentLog { .. }
        )
    }
}

impl From<VdevError> for PoolError {
    fn from(error: VdevError) -> Self {
        match error {
            VdevError::Unsupported { kind } => Self::UnsupportedVdev(kind),
            VdevError::Unavailable { vdev } => Self::MissingDevices {
                missing: vec![format!("too many devices of top-level vdev {vdev}")],
            },
            VdevError::ReadOnly => Self::ReadOnly,
            VdevError::Required => Self::NoReplicas,
            VdevError::NoSuchLeaf { .. } => Self::NoSuchDevice,
            VdevError::Join { what } => Self::Invalid(what.to_owned()),
            VdevError::TooSmall { path, .. } => Self::DeviceTooSmall { path },
            other => Self::Vdev(other),
        }
    }
}

impl From<ZioError> for PoolError {
    fn from(error: ZioError) -> Self {
        match error {
            ZioError::NoSpace { .. } => Self::NoSpace,
            ZioError::ReadOnly => Self::ReadOnly,
            other => Self::Block(other),
        }
    }
}

impl From<DmuError> for PoolError {
    fn from(error: DmuError) -> Self {
        match error {
            DmuError::NoSpace => Self::NoSpace,
            DmuError::Suspended => Self::Suspended,
            DmuError::ReadOnly => Self::ReadOnly,
            DmuError::Stopped {
                reason: crate::lifecycle::SUSPENDED,
            } => Self::Suspended,
            DmuError::Stopped { .. } => Self::Closed,
            other => Self::Object(other),
        }
    }
}

impl From<DslError> for PoolError {
    fn from(error: DslError) -> Self {
        match error {
            DslError::Dmu(error) => error.into(),
            DslError::NoSpace => Self::NoSpace,
            DslError::ReadOnly => Self::ReadOnly,
            other => Self::Dataset(other),
        }
    }
}

fn elsewhere(hostname: &str, hostid: u64, forced: bool) -> String {
    let hostname = match hostname {
        "" => "<unknown>",
        known => known,
    };
    match forced {
        false => format!("pool is imported on {hostname} (hostid: 0x{hostid:x})"),
        true => format!("pool is imported on host '{hostname}' (hostid={hostid:x})."),
    }
}

fn list(items: &[String]) -> String {
    items.iter().map(|item| format!("\n\t{item}")).collect()
}
