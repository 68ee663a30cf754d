//! Flags of a file, file types, the value of a directory entry, and the record of a file before system attributes.
//!
//! OpenZFS: include/sys/zfs_znode.h.

use crate::Result;
use crate::bytes::{index, need, slice_at, u16_at, u32_at, u64_at};

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

/// The fixed record that a file of a file system before version 5 has in its bonus, until it is changed.
///
/// OpenZFS: include/sys/zfs_znode.h, znode_phys_t; include/sys/zfs_acl.h, zfs_acl_phys_t.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ZnodePhys<'a> {
    /// Seconds and nanoseconds.
    pub atime: [u64; 2],
    pub mtime: [u64; 2],
    pub ctime: [u64; 2],
    pub crtime: [u64; 2],
    pub generation: u64,
    pub mode: u64,
    pub size: u64,
    pub parent: u64,
    pub links: u64,
    /// Object of the attribute directory, or 0.
    pub xattr: u64,
    pub rdev: u64,
    /// Bits of [`znode_flags`].
    pub flags: u64,
    pub uid: u64,
    pub gid: u64,
    /// The entries of its ACL, when all of them are in the record.
    pub aces: Option<ZnodeAces<'a>>,
    /// What lies behind the record: the target of a short symbolic link, `size` bytes.
    pub rest: &'a [u8],
}

/// The ACL in a [`ZnodePhys`], in the form of today.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ZnodeAces<'a> {
    pub count: u16,
    /// As [`crate::acl`] decodes them.
    pub bytes: &'a [u8],
}

impl<'a> ZnodePhys<'a> {
    /// Bytes of the record.
    pub const SIZE: usize = 264;
    /// First byte of the ACL: external object, size, version, count, then room for six entries.
    const ACL_AT: usize = 176;
    /// The version of ACLs whose entries are those of today.
    const ACL_VERSION: u16 = 1;

    /// Decodes a bonus.
    ///
    /// # Errors
    /// [`crate::DecodeError`] when it is too short.
    pub fn decode(bonus: &'a [u8]) -> Result<Self> {
        need(bonus, Self::SIZE, "znode record")?;
        let word = |at: usize| u64_at(bonus, 8 * at);
        let time = |at: usize| [word(at), word(at + 1)];
        Ok(Self {
            atime: time(0),
            mtime: time(2),
            ctime: time(4),
            crtime: time(6),
            generation: word(8),
            mode: word(9),
            size: word(10),
            parent: word(11),
            links: word(12),
            xattr: word(13),
            rdev: word(14),
            flags: word(15),
            uid: word(16),
            gid: word(17),
            aces: Self::aces(slice_at(bonus, Self::ACL_AT, Self::SIZE - Self::ACL_AT)),
            rest: bonus.get(Self::SIZE..).unwrap_or(&[]),
        })
    }

    fn aces(acl: &'a [u8]) -> Option<ZnodeAces<'a>> {
        const HEADER: usize = 16;
        let (external, size) = (u64_at(acl, 0), index(u64::from(u32_at(acl, 8))));
        let (version, count) = (u16_at(acl, 12), u16_at(acl, 14));
        let bytes = acl.get(HEADER..HEADER.checked_add(size)?)?;
        let is_here = external == 0 && version == Self::ACL_VERSION && count > 0;
        is_here.then_some(ZnodeAces { count, bytes })
    }
}

const _: () = assert!(ZnodePhys::ACL_AT + 16 + 6 * 12 == ZnodePhys::SIZE);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bytes::{put_u16, put_u32, put_u64};

    #[test]
    fn a_record_has_its_fields_at_openzfs_places() {
        let mut bonus = vec![0; ZnodePhys::SIZE + 5];
        (0..18).for_each(|word| put_u64(&mut bonus, 8 * word, 100 + word as u64));
        put_u32(&mut bonus, 184, 24);
        put_u16(&mut bonus, 188, 1);
        put_u16(&mut bonus, 190, 2);
        bonus[ZnodePhys::SIZE..].copy_from_slice(b"there");
        let record = ZnodePhys::decode(&bonus).unwrap();
        assert_eq!((record.atime, record.crtime), ([100, 101], [106, 107]));
        assert_eq!(
            (record.generation, record.mode, record.gid),
            (108, 109, 117)
        );
        let aces = record.aces.unwrap();
        assert_eq!((aces.count, aces.bytes), (2, &[0; 24][..]));
        assert_eq!(record.rest, b"there");
        // Longer than the room in the record; then of an older version.
        put_u32(&mut bonus, 184, 73);
        assert_eq!(ZnodePhys::decode(&bonus).unwrap().aces, None);
        put_u32(&mut bonus, 184, 24);
        put_u16(&mut bonus, 188, 0);
        assert_eq!(ZnodePhys::decode(&bonus).unwrap().aces, None);
        assert!(ZnodePhys::decode(&bonus[..ZnodePhys::SIZE - 1]).is_err());
    }
}
