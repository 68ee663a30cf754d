//! Why a file operation failed, in POSIX's words.
//!
//! Each variant means one errno, so that protocol crates can translate without knowing the engine.

/// Why a file operation failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum FsError {
    /// `EPERM`: not the owner, or the file is immutable or append-only.
    #[error("operation not permitted")]
    NotPermitted,
    /// `ENOENT`.
    #[error("no such file or directory")]
    NotFound,
    /// `EIO`: a device failed, or all copies of a block are damaged.
    #[error("input/output error")]
    Io,
    /// `EBADE`/`EIO`: bytes of the file system make no sense.
    #[error("the file system is damaged: {0}")]
    Corrupt(&'static str),
    /// `EACCES`.
    #[error("permission denied")]
    Access,
    /// `EAGAIN`: other clients have the file delegated; they are giving it back, or lose it after their lease.
    #[error("clients of NFSv4 are giving the file back")]
    Delegated,
    /// `EACCES`: the file system is encrypted.
    #[error("encryption key not loaded")]
    KeyNotLoaded,
    /// `EEXIST`.
    #[error("file exists")]
    Exists,
    /// `EXDEV`.
    #[error("invalid cross-device link")]
    CrossDevice,
    /// `ENOTDIR`.
    #[error("not a directory")]
    NotDirectory,
    /// `EISDIR`.
    #[error("is a directory")]
    IsDirectory,
    /// `EINVAL`.
    #[error("invalid argument")]
    Invalid,
    /// `EFBIG`.
    #[error("file too large")]
    TooLarge,
    /// `ENOSPC`.
    #[error("no space left on device")]
    NoSpace,
    /// `EDQUOT`.
    #[error("disk quota exceeded")]
    Quota,
    /// `EROFS`.
    #[error("read-only file system")]
    ReadOnly,
    /// `EMLINK`.
    #[error("too many links")]
    TooManyLinks,
    /// `ENAMETOOLONG`.
    #[error("file name too long")]
    NameTooLong,
    /// `ENOTEMPTY`.
    #[error("directory not empty")]
    NotEmpty,
    /// `ESTALE`: the file of this id is gone.
    #[error("stale file handle")]
    Stale,
    /// `ENODATA`: no such extended attribute.
    #[error("no such attribute")]
    NoAttribute,
    /// `ENXIO`: no data or hole at or after the offset.
    #[error("no such device or address")]
    NoSuchOffset,
    /// `EILSEQ`: the name is not UTF-8 where it must be.
    #[error("the name is not valid UTF-8")]
    IllegalName,
    /// `ENOTSUP`.
    #[error("operation not supported")]
    NotSupported,
    /// `ERANGE`: a value is outside of what can be stored.
    #[error("value out of range")]
    Range,
    /// `E2BIG`: an extended attribute is too large.
    #[error("attribute too large")]
    AttributeTooLarge,
    /// `EBUSY`: the file system is going away.
    #[error("device or resource busy")]
    Busy,
    /// `NFS3ERR_NOT_SYNC`: the guard time of a setattr does not match.
    #[error("the file changed since")]
    NotSync,
}

impl FsError {
    /// Returns the errno of Linux that means the same.
    #[must_use]
    pub fn errno(self) -> i32 {
        match self {
            Self::NotPermitted => 1,
            Self::NotFound => 2,
            Self::Io | Self::Corrupt(_) => 5,
            Self::NoSuchOffset => 6,
            Self::AttributeTooLarge => 7,
            Self::NotSync | Self::Delegated => 11,
            Self::Access | Self::KeyNotLoaded => 13,
            Self::Busy => 16,
            Self::Exists => 17,
            Self::CrossDevice => 18,
            Self::NotDirectory => 20,
            Self::IsDirectory => 21,
            Self::Invalid => 22,
            Self::TooLarge => 27,
            Self::NoSpace => 28,
            Self::ReadOnly => 30,
            Self::TooManyLinks => 31,
            Self::Range => 34,
            Self::NameTooLong => 36,
            Self::NotEmpty => 39,
            Self::NoAttribute => 61,
            Self::IllegalName => 84,
            Self::NotSupported => 95,
            Self::Stale => 116,
            Self::Quota => 122,
        }
    }
}

/// Result of a file operation.
pub type FsResult<T> = Result<T, FsError>;

impl From<dmu::DmuError> for FsError {
    fn from(error: dmu::DmuError) -> Self {
        use dmu::DmuError as E;
        match error {
            E::NoSuchObject { .. } => Self::Stale,
            E::ZapNoEntry { .. } => Self::NotFound,
            E::ZapEntryExists { .. } | E::ObjectExists { .. } => Self::Exists,
            E::ZapLimit { .. } => Self::NoSpace,
            E::ZapShape { .. } => Self::Corrupt("a ZAP value has an unexpected shape"),
            E::Corrupt { what, .. } => Self::Corrupt(what),
            E::Decode { what, .. } => Self::Corrupt(what),
            E::Invalid { .. } => Self::Invalid,
            E::TooLarge { .. } => Self::TooLarge,
            E::ReadOnly => Self::ReadOnly,
            E::NoSpace => Self::NoSpace,
            E::Stopped { .. } => Self::Busy,
            E::Read { .. } | E::Write { .. } | E::WrongTxg { .. } | E::Suspended => Self::Io,
        }
    }
}

impl From<zil::ZilError> for FsError {
    fn from(error: zil::ZilError) -> Self {
        match error {
            zil::ZilError::Dmu(error) => error.into(),
            zil::ZilError::Damaged { .. } => Self::Corrupt("record of the intent log"),
            zil::ZilError::Unsupported { .. } => Self::NotSupported,
            _ => Self::Io,
        }
    }
}

impl From<dsl::DslError> for FsError {
    fn from(error: dsl::DslError) -> Self {
        use dsl::DslError as E;
        match error {
            E::Dmu(error) => error.into(),
            E::Quota { .. } => Self::Quota,
            E::NoSpace => Self::NoSpace,
            E::ReadOnly => Self::ReadOnly,
            E::Corrupt { what, .. } => Self::Corrupt(what),
            E::KeyNotLoaded { .. } => Self::KeyNotLoaded,
            E::Unsupported { .. } => Self::NotSupported,
            _ => Self::Io,
        }
    }
}
