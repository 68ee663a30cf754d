//! File systems: files, directories, attributes and names kept in a dataset of type ZFS.
//!
//! [`Fs`] offers the operations of POSIX and of file protocols on [`FileId`]s. It guarantees that each operation is
//! atomic on stable storage (it lies in one transaction group, long writes and removals excepted, which keep their
//! order), that permissions are checked as POSIX wants, and that what it writes mounts in OpenZFS. It knows nothing of
//! protocols, of path names (it sees one name at a time), and of how objects are laid out.

#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]

mod access_reason;
mod acl;
mod atime;
mod attr_cache;
mod backing;
mod clone_range;
mod count_task;
mod counting;
mod data;
mod delegations;
mod error;
mod explain;
mod file_delegations;
mod file_locks;
mod folded_names;
mod fs;
mod locks;
mod log;
mod make;
mod names;
mod path;
mod permission;
mod real_names;
mod reaper;
mod remove;
mod replay;
mod rewrite;
mod root;
mod sa;
mod setattr;
mod stored_attrs;
mod types;
mod unlinked;
mod xattr;
mod xattr_names;
mod znode;

pub use access_reason::{AccessReason, AccessVerdict, Holder, Right};
pub use attr_cache::AttrCache;
pub use clone_range::CloneSource;
pub use error::{FsError, FsResult};
pub use file_delegations::{
    DelegatedAccess, Delegation, DelegationRecall, FileDelegations, Recalled, ReclaimGrace,
};
pub use file_locks::{FileLocks, LockOutcome, LockOwner, LockRefusal, LockWait, LockedFile};
pub use fs::{Fs, FsOptions, SnapDir};
pub use locks::{ByteRange, HeldLock, LockMode, LockTable};
pub use root::create_root;
pub use types::{
    Access, Attr, CaseSensitivity, Change, CreateMode, Cred, DeviceNumber, DirEntry, FileId,
    FileType, FlagsChange, FsStat, ListLimit, Listing, Made, ReadData, Renamed, RootProps,
    SeekTarget, SetAttr, SetTime, Stability, StoredXattr, Timestamp, WccAttr, Written, XattrMode,
    flags,
};
