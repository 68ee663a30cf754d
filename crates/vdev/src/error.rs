//! Errors of the device tree. Each names the device and keeps its cause.

use std::path::PathBuf;

use ondisk::Guid;
use runtime::DiskError;

/// What can go wrong below a block pointer.
#[derive(Debug, Clone, thiserror::Error)]
pub enum VdevError {
    /// The configuration is not a device tree (a missing or impossible field).
    #[error("device tree is not valid: {what}")]
    BadConfig {
        /// The field or rule that was broken.
        what: &'static str,
    },
    /// A kind of vdev that this version cannot open.
    #[error("vdev type '{kind}' is not supported yet")]
    Unsupported {
        /// The type string of the configuration.
        kind: String,
    },
    /// As many faults are injected as there may be.
    #[error("too many faults are injected; end some with 'zinject -c'")]
    TooManyFaults,
    /// A range outside the top-level vdev, or a vdev id the pool does not have.
    #[error("vdev {vdev}: no bytes at offset {offset:#x} size {size:#x}")]
    OutOfRange {
        /// Top-level id asked for.
        vdev: u32,
        /// Offset in bytes.
        offset: u64,
        /// Length in bytes.
        size: u64,
    },
    /// No leaf of the top-level vdev can be reached.
    #[error("vdev {vdev}: no device is available")]
    Unavailable {
        /// Top-level id.
        vdev: u32,
    },
    /// Every copy that could be read failed the caller's check.
    #[error("vdev {vdev}: every copy at offset {offset:#x} size {size:#x} fails its checksum")]
    Rejected {
        /// Top-level id.
        vdev: u32,
        /// Offset in bytes.
        offset: u64,
        /// Length in bytes.
        size: u64,
    },
    /// A device failed and no other copy could stand in.
    #[error("vdev {vdev}: device failed at offset {offset:#x} size {size:#x}: {source}")]
    Device {
        /// Top-level id.
        vdev: u32,
        /// Offset in bytes.
        offset: u64,
        /// Length in bytes.
        size: u64,
        /// What the device said.
        source: DiskError,
    },
    /// A device could not be opened or asked for its size.
    #[error("cannot open '{}': {source}", path.display())]
    Open {
        /// Path tried.
        path: PathBuf,
        /// What the system said.
        source: DiskError,
    },
    /// Less than [`crate::MIN_DEVICE_BYTES`], or smaller than the configuration says.
    #[error("'{}': device is too small ({size_bytes} bytes, needs {needed_bytes})", path.display())]
    TooSmall {
        /// Path of the device.
        path: PathBuf,
        /// Its size.
        size_bytes: u64,
        /// Smallest size that would do.
        needed_bytes: u64,
    },
    /// The device needs larger sectors than the top-level vdev was made with.
    #[error("'{}': device needs ashift {needed}, the pool has {have}", path.display())]
    SectorSize {
        /// Path of the device.
        path: PathBuf,
        /// Smallest ashift it accepts.
        needed: u8,
        /// ashift of the vdev.
        have: u8,
    },
    /// The tree was opened read-only.
    #[error("the pool's devices are open read-only")]
    ReadOnly,
    /// No leaf with that guid.
    #[error("no leaf vdev with guid {guid}")]
    NoSuchLeaf {
        /// The guid asked for.
        guid: Guid,
    },
    /// Without the leaf some data would be out of reach.
    #[error("no valid replicas")]
    Required,
    /// The shape of the tree forbids it.
    #[error("{what}")]
    Join {
        /// Which rule.
        what: &'static str,
    },
    /// Bytes given for a label do not fit its place.
    #[error("label content of {len} bytes does not fit")]
    LabelTooLarge {
        /// Length given.
        len: usize,
    },
}
