//! The owner an object is charged to: uid, gid and project id, decoded from its bonus buffer.
//!
//! System attributes of a file start with a header, then the attributes in an order that keeps the
//! owner at fixed offsets for exactly this purpose. OpenZFS: module/zfs/zfs_quota.c.

use dmu::Owner;
use ondisk::ObjectType;
use ondisk::bytes::{u16_at, u32_at, u64_at};

const SA_MAGIC: u32 = 0x002F_505A;
const SA_UID: usize = 24;
const SA_GID: usize = 32;
const SA_FLAGS: usize = 48;
const SA_PROJECT: usize = 128;
/// The file has a project id attribute. OpenZFS: include/sys/zfs_znode.h, `ZFS_PROJID`.
const FLAG_PROJECT: u64 = 0x0000_8000_0000_0000;
const ZNODE_UID: usize = 128;
const ZNODE_GID: usize = 136;

/// Finds the owner in a bonus buffer; `None` for objects that are not charged to an owner.
#[must_use]
pub fn owner_of(bonus_type: ObjectType, bonus: &[u8]) -> Option<Owner> {
    match bonus_type {
        ObjectType::SA => {
            if bonus.len() < 8 || u32_at(bonus, 0) != SA_MAGIC {
                return None;
            }
            let header = usize::from(u16_at(bonus, 4) >> 10) * 8;
            let attributes = bonus.get(header..)?;
            if attributes.len() < SA_FLAGS + 8 {
                return None;
            }
            let flags = u64_at(attributes, SA_FLAGS);
            let project = if flags & FLAG_PROJECT != 0 && attributes.len() >= SA_PROJECT + 8 {
                u64_at(attributes, SA_PROJECT)
            } else {
                0
            };
            Some(Owner {
                uid: u64_at(attributes, SA_UID),
                gid: u64_at(attributes, SA_GID),
                project,
            })
        }
        ObjectType::ZNODE if bonus.len() >= ZNODE_GID + 8 => Some(Owner {
            uid: u64_at(bonus, ZNODE_UID),
            gid: u64_at(bonus, ZNODE_GID),
            project: 0,
        }),
        _ => None,
    }
}
