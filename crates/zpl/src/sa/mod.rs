//! System attributes: how a file's attributes lie in its bonus buffer and spill block.
//!
//! [`attrs::Attrs`] is a file's attributes decoded once; [`layout::SaTables`] knows the file system's registry and
//! layouts and finds or makes the layout a set of attributes needs. Facts: format/09 sections 2 to 4 and OpenZFS:
//! include/sys/sa_impl.h (header), include/sys/zfs_sa.h (names and order).

pub(crate) mod attrs;
pub(crate) mod layout;
pub(crate) mod legacy;
mod registry;

pub(crate) use attrs::Attrs;
pub(crate) use layout::SaTables;
pub(crate) use registry::Plan;

use ondisk::ObjectType;

/// Bonus type of system attributes.
pub(crate) const BONUS_SA: ObjectType = ObjectType::SA;
/// Bonus type of the fixed record of old versions.
pub(crate) const BONUS_ZNODE: ObjectType = ObjectType::ZNODE;
/// Longest value of a variable attribute (its length is a u16).
pub(crate) const VALUE_MAX_BYTES: usize = 65535;

/// The attributes by their usual numbers. A file system may number those from 16 on differently; its registry tells.
pub(crate) mod attr {
    pub(crate) const ATIME: u16 = 0;
    pub(crate) const MTIME: u16 = 1;
    pub(crate) const CTIME: u16 = 2;
    pub(crate) const CRTIME: u16 = 3;
    pub(crate) const GEN: u16 = 4;
    pub(crate) const MODE: u16 = 5;
    pub(crate) const SIZE: u16 = 6;
    pub(crate) const PARENT: u16 = 7;
    pub(crate) const LINKS: u16 = 8;
    pub(crate) const XATTR: u16 = 9;
    pub(crate) const RDEV: u16 = 10;
    pub(crate) const FLAGS: u16 = 11;
    pub(crate) const UID: u16 = 12;
    pub(crate) const GID: u16 = 13;
    pub(crate) const DACL_COUNT: u16 = 16;
    pub(crate) const SYMLINK: u16 = 17;
    pub(crate) const SCANSTAMP: u16 = 18;
    pub(crate) const DACL_ACES: u16 = 19;
    pub(crate) const DXATTR: u16 = 20;
    pub(crate) const PROJID: u16 = 21;
}

/// Name, length in bytes (0 = variable) and byte-swap class of the usual attributes, by number.
pub(crate) const STANDARD: [(&str, u16, u8); 22] = [
    ("ZPL_ATIME", 16, 0),
    ("ZPL_MTIME", 16, 0),
    ("ZPL_CTIME", 16, 0),
    ("ZPL_CRTIME", 16, 0),
    ("ZPL_GEN", 8, 0),
    ("ZPL_MODE", 8, 0),
    ("ZPL_SIZE", 8, 0),
    ("ZPL_PARENT", 8, 0),
    ("ZPL_LINKS", 8, 0),
    ("ZPL_XATTR", 8, 0),
    ("ZPL_RDEV", 8, 0),
    ("ZPL_FLAGS", 8, 0),
    ("ZPL_UID", 8, 0),
    ("ZPL_GID", 8, 0),
    ("ZPL_PAD", 32, 0),
    ("ZPL_ZNODE_ACL", 88, 3),
    ("ZPL_DACL_COUNT", 8, 0),
    ("ZPL_SYMLINK", 0, 3),
    ("ZPL_SCANSTAMP", 32, 3),
    ("ZPL_DACL_ACES", 0, 4),
    ("ZPL_DXATTR", 0, 3),
    ("ZPL_PROJID", 8, 0),
];

/// Order of attributes in a new object's buffer; accounting finds ids at fixed offsets, so the first twelve, and the
/// project id after them, may not move.
pub(crate) const ORDER: [u16; 22] = [
    attr::MODE,
    attr::SIZE,
    attr::GEN,
    attr::UID,
    attr::GID,
    attr::PARENT,
    attr::FLAGS,
    attr::ATIME,
    attr::MTIME,
    attr::CTIME,
    attr::CRTIME,
    attr::LINKS,
    attr::PROJID,
    attr::RDEV,
    attr::DACL_COUNT,
    attr::DACL_ACES,
    attr::SYMLINK,
    attr::XATTR,
    attr::DXATTR,
    attr::SCANSTAMP,
    14,
    15,
];

/// The value a registry entry has for an attribute.
pub(crate) fn registry_value(number: u16, length: u16, byteswap: u8) -> u64 {
    u64::from(length) << 24 | u64::from(byteswap) << 16 | u64::from(number)
}
