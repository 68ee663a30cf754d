//! The owner an object is charged to, and its generation: at fixed offsets of its bonus buffer.
//!
//! System attributes of a file start with a header, then the attributes in an order that keeps the owner at fixed offsets
//! for exactly this purpose. OpenZFS: module/zfs/zfs_quota.c, `zpl_get_file_info`.

use crate::ObjectType;
use crate::bytes::{u16_at, u64_at};
use crate::sa::{SaHeader, fixed_offset, is_swapped};
use crate::znode::znode_flags;

const ZNODE_GENERATION: usize = 64;
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
            let attributes = Attributes::of(bonus)?;
            let flags = attributes.word(fixed_offset::FLAGS)?;
            let project = attributes.word(fixed_offset::PROJID);
            Some(FileOwner {
                uid: attributes.word(fixed_offset::UID)?,
                gid: attributes.word(fixed_offset::GID)?,
                project: project
                    .filter(|_| flags & znode_flags::PROJID != 0)
                    .unwrap_or(0),
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

/// Decodes the generation of a file from a bonus buffer: another file of the same object number has another one.
///
/// OpenZFS: include/sys/zfs_sa.h, SA_GEN_OFFSET; include/sys/zfs_znode.h, znode_phys_t.
#[must_use]
pub fn generation(bonus_type: ObjectType, bonus: &[u8]) -> Option<u64> {
    match bonus_type {
        ObjectType::SA => Attributes::of(bonus)?.word(fixed_offset::GEN),
        ObjectType::ZNODE if bonus.len() >= ZNODE_GENERATION + 8 => {
            Some(u64_at(bonus, ZNODE_GENERATION))
        }
        _ => None,
    }
}

/// What lies behind the header of system attributes, in either byte order.
struct Attributes<'a> {
    bytes: &'a [u8],
    is_swapped: bool,
}

impl<'a> Attributes<'a> {
    fn of(bonus: &'a [u8]) -> Option<Self> {
        let is_swapped = is_swapped(bonus);
        let size = match is_swapped {
            true => usize::from(u16_at(bonus, 4).swap_bytes() >> 10) * 8,
            false => SaHeader::decode(bonus).ok()?.size,
        };
        let bytes = bonus.get(size..)?;
        Some(Self { bytes, is_swapped })
    }

    fn word(&self, at: usize) -> Option<u64> {
        let word = (self.bytes.len() >= at + 8).then(|| u64_at(self.bytes, at))?;
        Some(match self.is_swapped {
            true => word.swap_bytes(),
            false => word,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bytes::put_u64;

    /// A buffer of system attributes with a header of 8 bytes.
    fn attributes(len: usize, flags: u64) -> Vec<u8> {
        let mut bonus = Vec::new();
        crate::sa::put_header(&mut bonus, 2, std::iter::empty()).unwrap();
        bonus.resize(8 + len, 0);
        let values = [
            (fixed_offset::GEN, 4),
            (fixed_offset::UID, 5),
            (fixed_offset::GID, 6),
            (fixed_offset::FLAGS, flags),
            (fixed_offset::PROJID, 7),
        ];
        for (offset, value) in values {
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

    #[test]
    fn generations_by_bonus_type() {
        assert_eq!(generation(ObjectType::SA, &attributes(24, 0)), Some(4));
        assert_eq!(generation(ObjectType::SA, &attributes(23, 0)), None);
        assert_eq!(generation(ObjectType::SA, &[0; 200]), None);
        let ones = 0x0101_0101_0101_0101;
        assert_eq!(generation(ObjectType::ZNODE, &[1; 72]), Some(ones));
        assert_eq!(generation(ObjectType::ZNODE, &[1; 71]), None);
        assert_eq!(generation(ObjectType::DSL_DIR, &attributes(24, 0)), None);
    }
}
