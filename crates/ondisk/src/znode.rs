//! Flags of a file, file types, keys of the master node and the value of a directory entry.
//!
//! OpenZFS: include/sys/zfs_znode.h.

/// Bits of the `FLAGS` attribute.
pub mod znode_flags {
    /// An attribute directory, or a file in one.
    pub const XATTR: u64 = 0x1;
    pub const INHERIT_ACE: u64 = 0x2;
    pub const ACL_TRIVIAL: u64 = 0x4;
    pub const ACL_OBJ_ACE: u64 = 0x8;
    pub const ACL_PROTECTED: u64 = 0x10;
    pub const ACL_DEFAULTED: u64 = 0x20;
    pub const ACL_AUTO_INHERIT: u64 = 0x40;
    pub const BONUS_SCANSTAMP: u64 = 0x80;
    /// Everybody may execute or search.
    pub const NO_EXECS_DENIED: u64 = 0x100;

    pub const READONLY: u64 = 0x1_0000_0000;
    pub const HIDDEN: u64 = 0x2_0000_0000;
    pub const SYSTEM: u64 = 0x4_0000_0000;
    pub const ARCHIVE: u64 = 0x8_0000_0000;
    pub const IMMUTABLE: u64 = 0x10_0000_0000;
    pub const NOUNLINK: u64 = 0x20_0000_0000;
    pub const APPENDONLY: u64 = 0x40_0000_0000;
    pub const NODUMP: u64 = 0x80_0000_0000;
    pub const OPAQUE: u64 = 0x100_0000_0000;
    pub const AV_QUARANTINED: u64 = 0x200_0000_0000;
    pub const AV_MODIFIED: u64 = 0x400_0000_0000;
    pub const REPARSE: u64 = 0x800_0000_0000;
    pub const OFFLINE: u64 = 0x1000_0000_0000;
    pub const SPARSE: u64 = 0x2000_0000_0000;
    /// New entries of this directory take its project.
    pub const PROJINHERIT: u64 = 0x4000_0000_0000;
    /// The object has a `PROJID` attribute.
    pub const PROJID: u64 = 0x8000_0000_0000;

    /// What every new object has.
    pub const NEW: u64 = ARCHIVE | AV_MODIFIED;
}

/// File type bits of a mode.
pub mod mode {
    pub const TYPE_MASK: u64 = 0o17_0000;
    pub const FIFO: u64 = 0o01_0000;
    pub const CHAR: u64 = 0o02_0000;
    pub const DIRECTORY: u64 = 0o04_0000;
    pub const BLOCK: u64 = 0o06_0000;
    pub const REGULAR: u64 = 0o10_0000;
    pub const SYMLINK: u64 = 0o12_0000;
    pub const SOCKET: u64 = 0o14_0000;
}

/// Keys of the master node (object 1).
pub mod master_keys {
    pub const VERSION: &str = "VERSION";
    pub const ROOT: &str = "ROOT";
    pub const DELETE_QUEUE: &str = "DELETE_QUEUE";
    pub const SA_ATTRS: &str = "SA_ATTRS";
    pub const NORMALIZATION: &str = "normalization";
    pub const UTF8ONLY: &str = "utf8only";
    pub const CASESENSITIVITY: &str = "casesensitivity";
    pub const FUID: &str = "FUID";
    pub const SHARES: &str = "SHARES";
}

/// Object number of the master node.
pub const MASTER_NODE_OBJ: u64 = 1;
/// Version of the file system layer we write.
pub const ZPL_VERSION: u64 = 5;

/// The value of a directory entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct DirEntryValue {
    /// The file type: the top bits of the mode, `mode >> 12`. 0 when not recorded.
    pub file_type: u8,
    /// Object number, 48 bits.
    pub object: u64,
}

impl DirEntryValue {
    /// Takes a directory value apart.
    #[must_use]
    pub const fn decode(value: u64) -> Self {
        Self {
            file_type: (value >> 60) as u8,
            object: value & ((1 << 48) - 1),
        }
    }

    /// Builds the value.
    #[must_use]
    pub const fn encode(self) -> u64 {
        (self.file_type as u64) << 60 | self.object & ((1 << 48) - 1)
    }
}
