//! Why an operation on a volume failed. Each variant means one thing to a block protocol, so that none needs to know the engine.

/// Result of an operation on a volume.
pub type VolumeResult<T> = Result<T, VolumeError>;

/// Why an operation on a volume failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum VolumeError {
    /// The range is not inside the volume.
    #[error("the range lies outside of the volume")]
    OutOfRange,
    /// A size that is zero or no multiple of the block size.
    #[error("volume size must be a multiple of volume block size")]
    BadSize,
    /// A device failed, or all copies of a block are damaged.
    #[error("input/output error")]
    Io,
    /// Bytes of the volume's structures make no sense.
    #[error("the volume is damaged: {0}")]
    Corrupt(&'static str),
    /// The pool or a quota has no room.
    #[error("no space left")]
    NoSpace,
    /// The volume is a snapshot, has `readonly=on`, or its pool was imported read-only.
    #[error("the volume is read-only")]
    ReadOnly,
    /// The volume was destroyed, or its pool is no longer imported.
    #[error("the volume is gone")]
    Gone,
    /// The volume or its pool is going away; try again later.
    #[error("the volume is busy")]
    Busy,
    /// The volume is encrypted and its key is not loaded.
    #[error("encryption key not loaded")]
    KeyNotLoaded,
    /// The dataset is no volume, or of a form not handled here.
    #[error("operation not supported")]
    NotSupported,
    /// The bytes compared differ, first at this offset in the comparison.
    #[error("the bytes differ at {0}")]
    Miscompare(u64),
}

impl From<dmu::DmuError> for VolumeError {
    fn from(error: dmu::DmuError) -> Self {
        use dmu::DmuError as E;
        match error {
            E::NoSuchObject { .. } | E::ZapNoEntry { .. } => Self::Corrupt("an object is missing"),
            E::Corrupt { what, .. } | E::Decode { what, .. } => Self::Corrupt(what),
            E::ReadOnly => Self::ReadOnly,
            E::NoSpace => Self::NoSpace,
            E::Stopped { .. } => Self::Busy,
            _ => Self::Io,
        }
    }
}

impl From<zil::ZilError> for VolumeError {
    fn from(error: zil::ZilError) -> Self {
        match error {
            zil::ZilError::Dmu(error) => error.into(),
            zil::ZilError::Damaged { .. } => Self::Corrupt("record of the intent log"),
            zil::ZilError::Unsupported { .. } => Self::NotSupported,
            _ => Self::Io,
        }
    }
}

impl From<dsl::DslError> for VolumeError {
    fn from(error: dsl::DslError) -> Self {
        use dsl::DslError as E;
        match error {
            E::Dmu(error) => error.into(),
            E::Quota { .. } | E::NoSpace => Self::NoSpace,
            E::ReadOnly => Self::ReadOnly,
            E::NotFound { .. } => Self::Gone,
            E::Busy { .. } => Self::Busy,
            E::Corrupt { what, .. } => Self::Corrupt(what),
            E::KeyNotLoaded { .. } => Self::KeyNotLoaded,
            E::Unsupported { .. } => Self::NotSupported,
            _ => Self::Io,
        }
    }
}
