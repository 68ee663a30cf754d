//! Status codes (RFC 7530, section 13; RFC 8881, section 15; RFC 7862, section 11) and what each file error becomes.

use crate::handle::HandleRefusal;
use crate::xdr::Malformed;
use engine::FsError;

/// nfsstat4, as far as this server answers it.
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
    BadCookie = 10003,
    NotSupported = 10004,
    TooSmall = 10005,
    ServerFault = 10006,
    BadType = 10007,
    Delay = 10008,
    Same = 10009,
    Denied = 10010,
    Expired = 10011,
    Locked = 10012,
    Grace = 10013,
    ShareDenied = 10015,
    WrongSecurity = 10016,
    ClientIdInUse = 10017,
    Resource = 10018,
    NoFileHandle = 10020,
    MinorVersionMismatch = 10021,
    StaleClientId = 10022,
    StaleStateId = 10023,
    OldStateId = 10024,
    BadStateId = 10025,
    BadSequenceId = 10026,
    NotSame = 10027,
    Symlink = 10029,
    RestoreHandle = 10030,
    AttributeNotSupported = 10032,
    NoGrace = 10033,
    ReclaimBad = 10034,
    ReclaimConflict = 10035,
    BadXdr = 10036,
    LocksHeld = 10037,
    DelegationRevoked = 10087,
    OpenMode = 10038,
    BadOwner = 10039,
    BadName = 10041,
    IllegalOperation = 10044,
    BadSession = 10052,
    BadSlot = 10053,
    CompleteAlready = 10054,
    SequenceMisordered = 10063,
    SequencePosition = 10064,
    RequestTooBig = 10065,
    ReplyTooBig = 10066,
    ReplyTooBigToCache = 10067,
    RetryUncachedReply = 10068,
    TooManyOperations = 10070,
    OperationNotInSession = 10071,
    ClientIdBusy = 10074,
    NotOnlyOperation = 10081,
    WrongType = 10083,
    UnionNotSupported = 10094,
    NoXattr = 10095,
    XattrTooBig = 10096,
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
            FsError::Invalid | FsError::Range | FsError::IllegalName => Self::Invalid,
            FsError::NoAttribute => Self::NoXattr,
            FsError::AttributeTooLarge => Self::XattrTooBig,
            FsError::TooLarge => Self::TooLarge,
            FsError::NoSpace => Self::NoSpace,
            FsError::ReadOnly => Self::ReadOnly,
            FsError::TooManyLinks => Self::TooManyLinks,
            FsError::NameTooLong => Self::NameTooLong,
            FsError::NotEmpty => Self::NotEmpty,
            FsError::Quota => Self::Quota,
            FsError::Stale => Self::Stale,
            FsError::NotSync | FsError::Busy | FsError::Delegated => Self::Delay,
            FsError::NotSupported => Self::NotSupported,
        }
    }
}

impl From<Malformed> for Status {
    fn from(_: Malformed) -> Self {
        Self::BadXdr
    }
}

impl From<HandleRefusal> for Status {
    fn from(refusal: HandleRefusal) -> Self {
        match refusal {
            HandleRefusal::BadHandle => Self::BadHandle,
            HandleRefusal::Stale => Self::Stale,
            HandleRefusal::NotYet => Self::Delay,
            HandleRefusal::Forbidden => Self::Access,
        }
    }
}
