//! What a file id stands for: a file of the dataset, or a directory of `.zfs`, which is not stored. Every operation resolves its
//! ids here once, and what control directories refuse is said here for all operations.
//!
//! OpenZFS: include/os/linux/zfs/sys/zfs_ctldir.h (numbers).

use zpl::{FileId, Fs, FsError, FsResult};

/// The name of the control directory in the root directory of a file system.
pub const CONTROL_NAME: &[u8] = b".zfs";
/// `.zfs` itself.
pub const CONTROL_ROOT: FileId = control_id(0x0000_ffff_ffff_ffff);
/// `.zfs/shares`.
pub const CONTROL_SHARES: FileId = control_id(0x0000_ffff_ffff_fffe);
/// `.zfs/snapshot`.
pub const CONTROL_SNAPSHOTS: FileId = control_id(0x0000_ffff_ffff_fffd);
/// `.zfs/shadow`, which OpenZFS does not have.
pub const CONTROL_SHADOW: FileId = control_id(0x0000_ffff_ffff_fffc);
/// Snapshots in listings have numbers from here down (below `shares` by their objects); objects of file systems are far
/// below them.
const SNAPSHOT_TOP: u64 = 0x0000_ffff_ffff_fffb;
const CONTROL_FIRST: u64 = 0x0000_ffff_0000_0000;

const _: () = assert!(CONTROL_FIRST < SNAPSHOT_TOP);
const _: () = assert!(SNAPSHOT_TOP < CONTROL_SHADOW.object);

const fn control_id(object: u64) -> FileId {
    FileId {
        object,
        generation: 0,
    }
}

/// Whether a file is one of the directories that are not stored.
#[must_use]
pub fn is_control(id: FileId) -> bool {
    ControlDir::of(id).is_some()
}

/// Whether a file is a snapshot as listings have it, before it was looked up: of no use as a handle.
#[must_use]
pub fn is_unopened(id: FileId) -> bool {
    (CONTROL_FIRST..=SNAPSHOT_TOP).contains(&id.object)
}

/// What a file id stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FileTarget {
    /// A file of the dataset.
    Stored(FileId),
    /// A directory of `.zfs`.
    Control(ControlDir),
}

impl FileTarget {
    pub(crate) fn of(id: FileId) -> Self {
        match ControlDir::of(id) {
            Some(dir) => Self::Control(dir),
            None => Self::Stored(id),
        }
    }
}

/// A directory of `.zfs`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ControlDir {
    /// `.zfs`.
    Root,
    /// `.zfs/snapshot`.
    Snapshots,
    /// `.zfs/shares`.
    Shares,
    /// `.zfs/shadow`.
    Shadow,
    /// An id of their range that is none of these: a snapshot in a listing, or a forged handle.
    Unopened(FileId),
}

impl ControlDir {
    fn of(id: FileId) -> Option<Self> {
        if !(CONTROL_FIRST..=CONTROL_ROOT.object).contains(&id.object) {
            return None;
        }
        Some(match id {
            CONTROL_ROOT => Self::Root,
            CONTROL_SNAPSHOTS => Self::Snapshots,
            CONTROL_SHARES => Self::Shares,
            CONTROL_SHADOW => Self::Shadow,
            other => Self::Unopened(other),
        })
    }

    /// The directory in which a listing of `.zfs/snapshot` has a snapshot of this object.
    pub(crate) fn of_snapshot(object: u64) -> Self {
        Self::Unopened(control_id(CONTROL_SHARES.object.saturating_sub(object)))
    }

    /// The directory that stands for a snapshot just made, whose object is not known.
    pub(crate) fn of_new_snapshot() -> Self {
        Self::Unopened(control_id(SNAPSHOT_TOP))
    }

    pub(crate) fn id(self) -> FileId {
        match self {
            Self::Root => CONTROL_ROOT,
            Self::Snapshots => CONTROL_SNAPSHOTS,
            Self::Shares => CONTROL_SHARES,
            Self::Shadow => CONTROL_SHADOW,
            Self::Unopened(id) => id,
        }
    }

    /// The directory above, in a file system with this root directory.
    pub(crate) fn parent(self, root: FileId) -> FileId {
        match self {
            Self::Root => root,
            Self::Snapshots | Self::Shares | Self::Shadow => CONTROL_ROOT,
            Self::Unopened(_) => CONTROL_SNAPSHOTS,
        }
    }
}

/// Operations that no control directory carries out. The others (attributes, access, lookup, listing, hold, commit, and the
/// making, removal and renaming of snapshots) have their own answers there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StoredOperation {
    Append,
    Create,
    Exchange,
    Link,
    Mknod,
    Punch,
    Read,
    ReadLink,
    Remove,
    RemoveXattr,
    Seek,
    SetAttr,
    SetXattr,
    Symlink,
    Write,
    Xattr,
}

impl StoredOperation {
    /// Returns the error of the operation on a control directory.
    pub(crate) fn control_refusal(self) -> FsError {
        match self {
            Self::Read | Self::Seek => FsError::IsDirectory,
            Self::ReadLink | Self::Exchange => FsError::Invalid,
            Self::Xattr => FsError::NotSupported,
            Self::Append
            | Self::Create
            | Self::Link
            | Self::Mknod
            | Self::Punch
            | Self::Remove
            | Self::RemoveXattr
            | Self::SetAttr
            | Self::SetXattr
            | Self::Symlink
            | Self::Write => FsError::ReadOnly,
        }
    }
}

/// Resolves an id for an operation on stored files.
///
/// # Errors
/// What the operation answers for a control directory.
pub(crate) fn stored(id: FileId, operation: StoredOperation) -> FsResult<FileId> {
    match FileTarget::of(id) {
        FileTarget::Stored(id) => Ok(id),
        FileTarget::Control(_) => Err(operation.control_refusal()),
    }
}

/// Refuses to make, remove or rename `.zfs` in the root directory.
pub(crate) fn check_not_control_name(fs: &Fs, dir: FileId, name: &[u8]) -> FsResult<()> {
    if name == CONTROL_NAME && dir == fs.root() && !fs.is_snapshot() {
        Err(FsError::Exists)
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_resolve_to_stored_files_or_control_directories() {
        let check = |object, generation, expected| {
            let id = FileId { object, generation };
            let found = match FileTarget::of(id) {
                FileTarget::Stored(stored) => {
                    assert_eq!(stored, id);
                    None
                }
                FileTarget::Control(dir) => {
                    assert_eq!(dir.id(), id);
                    Some(dir)
                }
            };
            assert_eq!(found, expected, "{object:#x}");
            assert_eq!(is_control(id), expected.is_some());
        };
        let forged = FileId {
            generation: 5,
            ..CONTROL_ROOT
        };
        check(34, 7, None);
        check(CONTROL_FIRST - 1, 0, None);
        check(CONTROL_ROOT.object + 1, 0, None);
        check(CONTROL_ROOT.object, 0, Some(ControlDir::Root));
        check(CONTROL_SHARES.object, 0, Some(ControlDir::Shares));
        check(CONTROL_SNAPSHOTS.object, 0, Some(ControlDir::Snapshots));
        check(CONTROL_SHADOW.object, 0, Some(ControlDir::Shadow));
        check(CONTROL_ROOT.object, 5, Some(ControlDir::Unopened(forged)));
        let listed = ControlDir::of_snapshot(70);
        check(listed.id().object, 0, Some(listed));
        assert!(is_unopened(listed.id()) && is_unopened(ControlDir::of_new_snapshot().id()));
        assert!(!is_unopened(CONTROL_SNAPSHOTS) && !is_unopened(CONTROL_SHADOW));
        assert_eq!(listed.parent(forged), CONTROL_SNAPSHOTS);
        assert_eq!(ControlDir::Root.parent(forged), forged);
    }
}
