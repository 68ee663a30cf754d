//! System attributes: how a file's attributes lie in its bonus buffer and spill block.
//!
//! [`attrs::Attrs`] is a file's attributes decoded once; [`layout::SaTables`] knows the file system's registry and
//! layouts and finds or makes the layout a set of attributes needs. What lies where in a buffer, and the usual numbers of
//! attributes: `ondisk::sa`. Facts: format/09 sections 2 to 4; OpenZFS: include/sys/zfs_sa.h (order).

pub(crate) mod attrs;
pub(crate) mod layout;
pub(crate) mod legacy;
mod registry;

pub(crate) use attrs::Attrs;
pub(crate) use layout::SaTables;
pub(crate) use registry::Plan;

use ondisk::ObjectType;
use ondisk::sa::{ATTRIBUTES, attr};

/// The bytes of attributes.
pub(crate) struct StoredAttrs {
    pub(crate) bonus_type: ObjectType,
    pub(crate) bonus: Vec<u8>,
    /// Empty when there is no spill block.
    pub(crate) spill: Vec<u8>,
}

/// Bonus type of system attributes.
pub(crate) const BONUS_SA: ObjectType = ObjectType::SA;
/// Bonus type of the fixed record of old versions.
pub(crate) const BONUS_ZNODE: ObjectType = ObjectType::ZNODE;
/// Longest value of a variable attribute (its length is a u16).
pub(crate) const VALUE_MAX_BYTES: usize = 65535;

/// Order of attributes in a new object's buffer; accounting finds ids at fixed offsets, so the first twelve, and the
/// project id after them, may not move.
pub(crate) const ORDER: [u16; ATTRIBUTES.len()] = [
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
    attr::PAD,
    attr::ZNODE_ACL,
];
