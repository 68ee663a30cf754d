//! Status codes (RFC 1813, section 2.6) and what each file error becomes.

use engine::FsError;

/// RFC 1813, section 2.6: nfsstat3.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Status {
    Ok = 0,
    NotPermitted = 1,
    NoEntry = 2,
    Io = 5,
    NoDevice = 6,
    Access = 13,
    Exists = 17,
    CrossDevice = 18,
    NotDirectory = 20,
    IsDirectory = 21,
    Invalid = 22,
    TooLarge = 27,
    NoSpace = 28,
    ReadOnly = 30,
    TooManyLinks = 31,
    NameTooLong = 63,
    NotEmpty = 66,
    Quota = 69,
    Stale = 70,
    BadHandle = 10001,
    NotSync = 10002,
    NotSupported = 10004,
    TooSmall = 10005,
    BadType = 10007,
    /// "Try again later": the client keeps the call and repeats it.
    Jukebox = 10008,
}

impl From<FsError> for Status {
    fn from(error: FsError) -> Self {
        match error {
            FsError::NotPermitted => Self::NotPermitted,
            FsError::NotFound => Self::NoEntry,
            FsError::Io | FsError::Corrupt(_) => Self::Io,
            FsError::NoSuchOffset => Self::NoDevice,
            FsError::Access | FsError::KeyNotLoaded => Self::Access,
            FsError::Exists => Self::Exists,
            FsError::CrossDevice => Self::CrossDevice,
            FsError::NotDirectory => Self::NotDirectory,
            FsError::IsDirectory => Self::IsDirectory,
            FsError::Invalid | FsError::Range | FsError::IllegalName | FsError::NoAttribute => {
                Self::Invalid
            }
            FsError::TooLarge | FsError::AttributeTooLarge => Self::TooLarge,
            FsError::NoSpace => Self::NoSpace,
            FsError::ReadOnly => Self::ReadOnly,
            FsError::TooManyLinks => Self::TooManyLinks,
            FsError::NameTooLong => Self::NameTooLong,
            FsError::NotEmpty => Self::NotEmpty,
            FsError::Quota => Self::Quota,
            FsError::Stale => Self::Stale,
            FsError::NotSync => Self::NotSync,
            FsError::NotSupported => Self::NotSupported,
            FsError::Busy | FsError::Delegated => Self::Jukebox,
        }
    }
}
