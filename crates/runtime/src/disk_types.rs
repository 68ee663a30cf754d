//! What is known of disks: modes, kinds, errors.

use std::path::PathBuf;
use std::time::Duration;

use thiserror::Error;

/// How a disk is opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DiskMode {
    /// Shared; writes are refused.
    ReadOnly,
    /// Exclusive among all users of this runtime on the machine; a second read-write open is refused as busy.
    ReadWrite,
}

/// Whether a disk is a file or a block device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DiskKind {
    File,
    Block,
}

/// What is known of an open disk.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DiskInfo {
    pub path: PathBuf,
    pub size_bytes: u64,
    /// Unit of addressing: offsets and lengths should be multiples of it. Other requests on files are served more
    /// slowly, on block devices they are refused.
    pub logical_sector_bytes: u32,
    /// Unit the device works in: at least the logical sector.
    pub physical_sector_bytes: u32,
    pub kind: DiskKind,
}

/// Which operation failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DiskAction {
    Open,
    List,
    Read,
    Write,
    Flush,
    Discard,
}

impl std::fmt::Display for DiskAction {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Open => "open",
            Self::List => "list",
            Self::Read => "read",
            Self::Write => "write",
            Self::Flush => "flush",
            Self::Discard => "discard",
        })
    }
}

/// Why a disk operation failed.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum DiskError {
    #[error("{}: no such file or device", path.display())]
    NotFound { path: PathBuf },
    #[error("{}: permission denied", path.display())]
    Permission { path: PathBuf },
    #[error("{}: in use", path.display())]
    Busy { path: PathBuf },
    #[error("{}: neither a plain file nor a block device", path.display())]
    NotADisk { path: PathBuf },
    /// The device has vanished; it may come back, but this open disk stays dead.
    #[error("{}: device is gone", path.display())]
    Gone { path: PathBuf },
    /// It may still answer: that is not waited for any more.
    #[error("{}: no answer within {limit:?}", path.display())]
    NoAnswer { path: PathBuf, limit: Duration },
    #[error("{}: opened read-only", path.display())]
    ReadOnly { path: PathBuf },
    #[error("{}: {action} of {len} bytes at {offset} is outside the device of {size} bytes", path.display())]
    OutOfRange {
        path: PathBuf,
        action: DiskAction,
        offset: u64,
        len: u64,
        size: u64,
    },
    #[error("{}: {action} of {len} bytes at {offset} is not aligned to {alignment}-byte sectors", path.display())]
    Misaligned {
        path: PathBuf,
        action: DiskAction,
        offset: u64,
        len: u64,
        alignment: u32,
    },
    /// The device reported an error for this range.
    #[error("{}: {action} of {len} bytes at {offset}: {}", path.display(), std::io::Error::from_raw_os_error(*errno))]
    Io {
        path: PathBuf,
        action: DiskAction,
        offset: u64,
        len: u64,
        errno: i32,
    },
}
