//! The plain data of file operations: what a caller sends and what it gets back.
//!
//! Everything here is owned, `Send`, and free of engine state, so the same types cross the engine's boundary and reach
//! the protocol crates unchanged. Nothing here knows how a file system is stored.

pub use runtime::Timestamp;

/// Names one file for ever: the object number, and the generation that tells a reused number from the old file.
///
/// A protocol's file handle is made of this and the dataset's identity. An id whose file is gone gives
/// [`FsError::Stale`](crate::FsError::Stale).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileId {
    /// The object number in the dataset; also the inode number.
    pub object: u64,
    /// The transaction group in which the file was made.
    pub generation: u64,
}

/// What a file is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FileType {
    /// A named pipe.
    Fifo,
    /// A character device.
    Character,
    /// A directory.
    Directory,
    /// A block device.
    Block,
    /// A regular file.
    Regular,
    /// A symbolic link.
    Symlink,
    /// A UNIX-domain socket.
    Socket,
}

impl FileType {
    /// Returns the type held in the upper bits of a `st_mode`, if it is one of the seven.
    #[must_use]
    pub fn of_mode(mode: u64) -> Option<Self> {
        Self::of_dirent((mode >> 12) & 0xf)
    }

    /// Returns the type of a directory entry's type number (`st_mode >> 12`, also `d_type`).
    #[must_use]
    pub fn of_dirent(value: u64) -> Option<Self> {
        Some(match value {
            1 => Self::Fifo,
            2 => Self::Character,
            4 => Self::Directory,
            6 => Self::Block,
            8 => Self::Regular,
            10 => Self::Symlink,
            12 => Self::Socket,
            _ => return None,
        })
    }

    /// Returns the number a directory entry carries for this type (`st_mode >> 12`, also `d_type`).
    #[must_use]
    pub fn dirent(self) -> u64 {
        match self {
            Self::Fifo => 1,
            Self::Character => 2,
            Self::Directory => 4,
            Self::Block => 6,
            Self::Regular => 8,
            Self::Symlink => 10,
            Self::Socket => 12,
        }
    }

    /// Returns the `S_IFMT` bits of this type.
    #[must_use]
    pub fn mode_bits(self) -> u64 {
        self.dirent() << 12
    }
}

/// The numbers of a device node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DeviceNumber {
    /// The driver.
    pub major: u32,
    /// The device of that driver.
    pub minor: u32,
}

/// The attributes of one file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attr {
    /// Which file.
    pub id: FileId,
    /// What it is.
    pub file_type: FileType,
    /// Permission bits with set-id and sticky bits: the low 12 bits of `st_mode`.
    pub mode: u32,
    /// Number of names; for a directory 2 and one for each subdirectory.
    pub links: u64,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Bytes in a file, entries + 2 of a directory, length of a symlink's target.
    pub size: u64,
    /// Bytes of pool space the object takes (after compression, with its metadata).
    pub used: u64,
    /// Device numbers; zero unless a device node.
    pub rdev: DeviceNumber,
    /// Bytes of one data block of this file (a good size for I/O).
    pub block_size: u32,
    /// Identity of the file system, the same for all its files.
    pub fsid: u64,
    /// Last read.
    pub atime: Timestamp,
    /// Last change of content.
    pub mtime: Timestamp,
    /// Last change of content or attributes.
    pub ctime: Timestamp,
    /// Creation.
    pub crtime: Timestamp,
    /// Grows with every change of content or attributes; for NFSv4's `change`.
    pub change: u64,
    /// ZPL flags as stored (immutable, append-only, hidden, ...), see [`flags`].
    pub flags: u64,
    /// Project id; 0 when none.
    pub project: u32,
    /// Object of the parent directory; the root directory names itself.
    pub parent: u64,
}

/// The bits of [`Attr::flags`] that callers may see and set.
pub mod flags {
    /// The file may not be written (a DOS attribute, for SMB).
    pub const READONLY: u64 = 0x1_0000_0000;
    /// DOS hidden.
    pub const HIDDEN: u64 = 0x2_0000_0000;
    /// DOS system.
    pub const SYSTEM: u64 = 0x4_0000_0000;
    /// DOS archive.
    pub const ARCHIVE: u64 = 0x8_0000_0000;
    /// Nothing about the file may change.
    pub const IMMUTABLE: u64 = 0x10_0000_0000;
    /// The file may not be removed or renamed.
    pub const NOUNLINK: u64 = 0x20_0000_0000;
    /// The file may only grow at its end.
    pub const APPENDONLY: u64 = 0x40_0000_0000;
    /// Not for backup by `dump`.
    pub const NODUMP: u64 = 0x80_0000_0000;
    /// Directory is opaque in a union mount.
    pub const OPAQUE: u64 = 0x100_0000_0000;
    /// Quarantined by a virus scanner.
    pub const AV_QUARANTINED: u64 = 0x200_0000_0000;
    /// Changed since the last virus scan.
    pub const AV_MODIFIED: u64 = 0x400_0000_0000;
    /// DOS reparse point.
    pub const REPARSE: u64 = 0x800_0000_0000;
    /// DOS offline.
    pub const OFFLINE: u64 = 0x1000_0000_0000;
    /// DOS sparse.
    pub const SPARSE: u64 = 0x2000_0000_0000;
    /// New files in this directory take its project id.
    pub const PROJINHERIT: u64 = 0x4000_0000_0000;
    /// All bits a caller may set through [`SetAttr::flags`](super::SetAttr::flags).
    pub const SETTABLE: u64 = READONLY
        | HIDDEN
        | SYSTEM
        | ARCHIVE
        | IMMUTABLE
        | NOUNLINK
        | APPENDONLY
        | NODUMP
        | OPAQUE
        | AV_QUARANTINED
        | AV_MODIFIED
        | REPARSE
        | OFFLINE
        | SPARSE
        | PROJINHERIT;
}

/// The three attributes by which a client with a cache sees whether another client changed a file (RFC 1813, `wcc_attr`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WccAttr {
    /// Bytes.
    pub size: u64,
    /// Last change of content.
    pub mtime: Timestamp,
    /// Last change of content or attributes.
    pub ctime: Timestamp,
}

impl Attr {
    /// Returns the part of the attributes used for weak cache consistency.
    #[must_use]
    pub fn wcc(&self) -> WccAttr {
        WccAttr {
            size: self.size,
            mtime: self.mtime,
            ctime: self.ctime,
        }
    }
}

/// A file before and after an operation; nothing else changed it in between.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// Before.
    pub before: WccAttr,
    /// After.
    pub after: Attr,
}

/// What an operation that makes or names a file in a directory returns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Made {
    /// The file.
    pub file: Attr,
    /// The directory that has the name.
    pub dir: Change,
    /// False when an unchecked or repeated exclusive create found the file already there.
    pub created: bool,
}

/// What a rename did to the two directories; `to` equals `from` when they are one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Renamed {
    /// The directory that lost the name.
    pub from: Change,
    /// The directory that has the new name.
    pub to: Change,
}

/// A new time for a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetTime {
    /// The time at the server; needs only write permission.
    Server,
    /// A time given by the caller; needs ownership.
    Client(Timestamp),
}

/// Which of the bits of [`flags`] to change. Others stay, and so do those not in [`flags::SETTABLE`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FlagsChange {
    /// Bits to set.
    pub set: u64,
    /// Bits to clear; those that are in `set`, too, are set.
    pub clear: u64,
}

impl FlagsChange {
    /// Returns the change after which `bits` alone are set of those that `among` has.
    #[must_use]
    pub fn among(among: u64, bits: u64) -> Self {
        Self {
            set: bits & among,
            clear: among,
        }
    }
}

/// Attributes to set; `None` leaves one as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SetAttr {
    /// Permission bits with set-id and sticky bits.
    pub mode: Option<u32>,
    /// At creation, permission bits not to be given, unless the directory has a list for new files. 0 where the caller
    /// has applied its umask.
    pub umask: u32,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Bytes; truncates or extends with a hole.
    pub size: Option<u64>,
    /// Last read.
    pub atime: Option<SetTime>,
    /// Last change of content.
    pub mtime: Option<SetTime>,
    /// Creation.
    pub crtime: Option<Timestamp>,
    /// Flags.
    pub flags: Option<FlagsChange>,
    /// Project id.
    pub project: Option<u32>,
}

/// On whose behalf an operation runs.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Cred {
    /// User; 0 is root and overrides permissions.
    pub uid: u32,
    /// Primary group.
    pub gid: u32,
    /// Supplementary groups.
    pub groups: Vec<u32>,
    /// True when the permission to read or write the content was checked as the file was opened (a local file
    /// descriptor): reading, writing and setting the size then skip the check, as POSIX wants.
    pub opened: bool,
    /// The client's number as a holder of delegations, 0 of one that holds none: what it has delegated itself it may change.
    pub holder: u64,
}

impl Cred {
    /// Returns the credentials of root.
    #[must_use]
    pub fn root() -> Self {
        Self::default()
    }

    /// Returns whether `gid` is the primary or a supplementary group.
    #[must_use]
    pub fn in_group(&self, gid: u32) -> bool {
        self.gid == gid || self.groups.contains(&gid)
    }
}

/// A set of permissions to ask [`Fs::access`](crate::Fs::access) for; bits may be joined with `|`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Access(pub u32);

impl Access {
    /// Read a file's content, list a directory.
    pub const READ: Self = Self(1);
    /// Look up a name in a directory.
    pub const LOOKUP: Self = Self(2);
    /// Rewrite existing content; change a directory's existing names.
    pub const MODIFY: Self = Self(4);
    /// Write new content, add names.
    pub const EXTEND: Self = Self(8);
    /// Remove names from a directory.
    pub const DELETE: Self = Self(16);
    /// Execute a file.
    pub const EXECUTE: Self = Self(32);
    /// All of them.
    pub(crate) const ALL: Self = Self(63);

    /// Returns whether all bits of `other` are in this set.
    #[must_use]
    pub fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

impl std::ops::BitOr for Access {
    type Output = Self;
    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// How a file is created when the name may exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CreateMode {
    /// Take an existing file (setting only the size, when given).
    Unchecked,
    /// Fail with [`FsError::Exists`](crate::FsError::Exists).
    Guarded,
    /// Fail unless the existing file was made with the same verifier: a repeated request succeeds.
    Exclusive(u64),
}

/// When the result of a write must be on stable storage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stability {
    /// Later, by a commit or the next transaction group.
    Unstable,
    /// Content and what is needed to read it, before the answer.
    DataSync,
    /// Content and all attributes, before the answer.
    FileSync,
}

/// The result of a write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Written {
    /// Bytes taken.
    pub count: u64,
    /// What was reached; never weaker than asked for.
    pub stability: Stability,
    /// The file.
    pub change: Change,
}

/// The result of a read.
#[derive(Debug, Clone)]
pub struct ReadData {
    /// The bytes in order, in as many pieces as they lie in blocks; shorter than asked for only at the end of file.
    pub pieces: Vec<runtime::IoBuf>,
    /// Whether the last byte of the file is among them (or the offset was at or past the end).
    pub eof: bool,
    /// The file after reading.
    pub attr: Attr,
}

impl ReadData {
    /// Returns the number of bytes read.
    #[must_use]
    pub fn len(&self) -> usize {
        self.pieces.iter().map(|p| p.len()).sum()
    }

    /// Returns whether nothing was read.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the bytes in one vector (a copy).
    #[must_use]
    pub fn to_vec(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.len());
        for piece in &self.pieces {
            out.extend_from_slice(piece);
        }
        out
    }
}

/// One name in a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirEntry {
    /// The name: any bytes but `/` and NUL.
    pub name: Vec<u8>,
    /// The object it names.
    pub object: u64,
    /// Its type as the directory has it; `None` in file systems of very old versions.
    pub file_type: Option<FileType>,
    /// Where a later listing goes on after this entry. Stays valid while entries come and go, and over restarts.
    pub cookie: u64,
    /// The attributes, when asked for and the file still exists.
    pub attr: Option<Attr>,
}

/// A part of a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listing {
    /// Entries in cookie order, `.` and `..` first.
    pub entries: Vec<DirEntry>,
    /// Whether nothing follows.
    pub eof: bool,
    /// The directory.
    pub dir: Attr,
}

/// How much of a directory to list at most, and with what.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ListLimit {
    /// Entries.
    pub entries: usize,
    /// Sum over entries of name length and `entry_overhead_bytes`.
    pub bytes: usize,
    /// What one entry costs the caller besides its name.
    pub entry_overhead_bytes: usize,
    /// Whether to fill [`DirEntry::attr`].
    pub attrs: bool,
}

/// Space and objects of a file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FsStat {
    /// Bytes this file system could hold in all: used and available.
    pub total_bytes: u64,
    /// Bytes free.
    pub free_bytes: u64,
    /// Bytes free for callers other than root.
    pub available_bytes: u64,
    /// Objects there could be.
    pub total_files: u64,
    /// Objects that can still be made.
    pub free_files: u64,
    /// Bytes of a large block (the record size).
    pub block_size: u32,
    /// Longest name in bytes.
    pub name_max: u32,
    /// Identity of the file system.
    pub fsid: u64,
    /// Whether nothing can be written.
    pub read_only: bool,
    /// Whether names differing in case only are one.
    pub case_insensitive: bool,
}

/// What to seek for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SeekTarget {
    /// The next byte that is stored.
    Data,
    /// The next byte that is not stored; the end of file counts as one.
    Hole,
}

/// What setting an extended attribute expects to find.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum XattrMode {
    /// Nothing in particular.
    Any,
    /// No such attribute, else [`FsError::Exists`](crate::FsError::Exists).
    Create,
    /// The attribute, else [`FsError::NoAttribute`](crate::FsError::NoAttribute).
    Replace,
}

/// One extended attribute as stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredXattr {
    /// Name with its namespace: `user.x`, `security.y`, `trusted.z`, `system.posix_acl_access`.
    pub name: Vec<u8>,
    /// Bytes of the value.
    pub size: u64,
}

/// How the file system compares names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CaseSensitivity {
    /// Names differ by case.
    #[default]
    Sensitive,
    /// Names differing by case only are the same.
    Insensitive,
    /// Stored for both; POSIX callers see names that differ by case.
    Mixed,
}

/// How a new file system is made; all but the owner and mode can never change afterwards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RootProps {
    /// Version of the file system, 1 to 5.
    pub version: u64,
    /// Owner of the root directory.
    pub uid: u32,
    /// Group of the root directory.
    pub gid: u32,
    /// Permission bits of the root directory.
    pub mode: u32,
    /// `casesensitivity`.
    pub case: CaseSensitivity,
    /// `normalization` as its stored number: none 0, formC 0x50, formD 0x10, formKC 0x60, formKD 0x20.
    pub normalization: u64,
    /// `utf8only`; implied by a normalization.
    pub utf8_only: bool,
    /// Whether objects carry a project id (the pool feature `project_quota` is enabled).
    pub project_quota: bool,
    /// Time of creation.
    pub now: Timestamp,
}

impl Default for RootProps {
    fn default() -> Self {
        Self {
            version: ondisk::znode::ZPL_VERSION,
            uid: 0,
            gid: 0,
            mode: 0o755,
            case: CaseSensitivity::Sensitive,
            normalization: 0,
            utf8_only: false,
            project_quota: true,
            now: Timestamp::default(),
        }
    }
}
