//! The owner an object is charged to: uid, gid and project id at fixed offsets of its bonus buffer.
//!
//! System attributes of a file start with a header, then the attributes in an order that keeps the owner at fixed offsets
//! for exactly this purpose. OpenZFS: module/zfs/zfs_quota.c, `zpl_get_file_info`.

use crate::ObjectType;
use crate::bytes::{u16_at, u32_at, u64_at};
use crate::znode::znode_flags;

const SA_MAGIC: u32 = 0x002F_505A;
const SA_UID: usize = 24;
const SA_GID: usize = 32;
const SA_FLAGS: usize = 48;
const SA_PROJECT: usize = 128;
const ZNODE_UID: usize = 128;
const ZNODE_GID: usize = 136;

/// The owner of a file, as stored: the upper half of an id names a domain of Windows identities.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FileOwner {
    pub uid: u64,
    pub gid: u64,
    /// 0 for files without a project.
    pub project: u64,
}

/// Decodes the owner from a bonus buffer; `None` for objects that are not charged to an owner.
#[must_use]
pub fn decode(bonus_type: ObjectType, bonus: &[u8]) -> Option<FileOwner> {
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
            let has_project =
                flags & znode_flags::PROJID != 0 && attributes.len() >= SA_PROJECT + 8;
            Some(FileOwner {
                uid: u64_at(attributes, SA_UID),
                gid: u64_at(attributes, SA_GID),
                project: if has_project {
                    u64_at(attributes, SA_PROJECT)
                } else {
                    0
                },
            })
        }
        ObjectType::ZNODE if bonus.len() >= ZNODE_GID + 8 => Some(FileOwner {
            uid: u64_at(bonus, ZNODE_UID),
            gid: u64_at(bonus, ZNODE_GID),
            project: 0,
        }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bytes::put_u64;

    /// A buffer of system attributes with a header of 8 bytes.
    fn attributes(len: usize, flags: u64) -> Vec<u8> {
        let mut bonus = vec![0; 8 + len];
        bonus[..4].copy_from_slice(&SA_MAGIC.to_le_bytes());
        bonus[4..6].copy_from_slice(&(1u16 << 10).to_le_bytes());
        for (offset, value) in [(SA_UID, 5), (SA_GID, 6), (SA_FLAGS, flags), (SA_PROJECT, 7)] {
            if offset + 8 <= len {
                put_u64(&mut bonus, 8 + offset, value);
            }
        }
        bonus
    }

    #[test]
    fn owners_by_bonus_type() {
        let owner = |uid, gid, project| Some(FileOwner { uid, gid, project });
        let check = |kind: ObjectType, bonus: &[u8], expect| {
            assert_eq!(
                decode(kind, bonus),
                expect,
                "{kind:?}, {} bytes",
                bonus.len()
            );
        };
        check(ObjectType::SA, &attributes(136, 0), owner(5, 6, 0));
        check(
            ObjectType::SA,
            &attributes(136, znode_flags::PROJID),
            owner(5, 6, 7),
        );
        // The flag without the attribute.
        check(
            ObjectType::SA,
            &attributes(56, znode_flags::PROJID),
            owner(5, 6, 0),
        );
        check(ObjectType::SA, &attributes(55, 0), None);
        check(ObjectType::SA, &[0; 200], None);
        check(
            ObjectType::ZNODE,
            &[1; 144],
            owner(0x0101_0101_0101_0101, 0x0101_0101_0101_0101, 0),
        );
        check(ObjectType::ZNODE, &[1; 143], None);
        check(ObjectType::DSL_DIR, &attributes(136, 0), None);
    }
}
