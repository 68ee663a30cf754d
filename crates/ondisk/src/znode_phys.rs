//! The record of a file before system attributes, with its ACL.
//!
//! OpenZFS: include/sys/zfs_znode.h, include/sys/zfs_acl.h.

use crate::Result;
use crate::acl::{self, Ace, ace_flags};
use crate::bytes::{
    index, need, put_bytes, put_u16, put_u32, put_u64, slice_at, u16_at, u32_at, u64_at,
};

/// The fixed record that a file of a file system before version 5 has in its bonus; after an upgrade of the file system until
/// the file is changed.
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
    /// Bits of `znode::znode_flags`.
    pub flags: u64,
    pub uid: u64,
    pub gid: u64,
    pub acl: ZnodeAcl<'a>,
    /// What lies behind the record: the target of a short symbolic link, `size` bytes.
    pub rest: &'a [u8],
}

/// The ACL in a [`ZnodePhys`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ZnodeAcl<'a> {
    /// The object that holds the entries, or 0 when they are in the record.
    pub external: u64,
    /// 0: entries of the form before file system version 3; 1: of the form of today.
    pub version: u16,
    pub count: u32,
    /// Bytes of all entries.
    pub len: u32,
    /// The entries, when they are in the record; no more than [`ZnodePhys::ACL_ROOM`] bytes.
    pub bytes: &'a [u8],
}

impl<'a> ZnodePhys<'a> {
    /// Bytes of the record.
    pub const SIZE: usize = 264;
    /// Bytes of the longest bonus with a record: what lies behind it ends here.
    pub const BONUS_MAX: usize = 320;
    /// Bytes of entries that fit in the record.
    pub const ACL_ROOM: usize = 6 * OLD_ACE;
    /// First byte of the ACL: external object, size, version, count, then the room for entries.
    const ACL_AT: usize = 176;

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
            acl: ZnodeAcl::decode(slice_at(bonus, Self::ACL_AT, Self::SIZE - Self::ACL_AT)),
            rest: bonus.get(Self::SIZE..).unwrap_or(&[]),
        })
    }

    /// Encodes to a bonus, with what lies behind the record.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let [atime, mtime, ctime, crtime] = [self.atime, self.mtime, self.ctime, self.crtime];
        let words = [
            atime[0],
            atime[1],
            mtime[0],
            mtime[1],
            ctime[0],
            ctime[1],
            crtime[0],
            crtime[1],
            self.generation,
            self.mode,
            self.size,
            self.parent,
            self.links,
            self.xattr,
            self.rdev,
            self.flags,
            self.uid,
            self.gid,
        ];
        let mut out = vec![0; Self::SIZE];
        for (i, word) in words.into_iter().enumerate() {
            put_u64(&mut out, 8 * i, word);
        }
        self.acl.encode(&mut out);
        out.extend_from_slice(self.rest);
        out
    }
}

/// Bytes of an entry of an ACL of version 0: id, access mask, flags, type. OpenZFS: include/sys/zfs_acl.h, zfs_oldace_t
const OLD_ACE: usize = 12;
/// The id in an entry of version 0 that is about no particular user or group.
const OLD_NOBODY: u32 = u32::MAX;

impl<'a> ZnodeAcl<'a> {
    /// The version of ACLs whose entries are those of today.
    pub const CURRENT: u16 = 1;

    /// Decodes the last bytes of a record. Before version 1 the two lengths had each other's place, and the second may be 0.
    fn decode(acl: &'a [u8]) -> Self {
        let external = u64_at(acl, 0);
        let (wide, version, narrow) = (u32_at(acl, 8), u16_at(acl, 12), u16_at(acl, 14));
        let (count, len) = if version == Self::CURRENT {
            (u32::from(narrow), wide)
        } else {
            (wide, wide.saturating_mul(12))
        };
        let bytes = match external {
            0 => acl
                .get(16..)
                .and_then(|room| room.get(..index(u64::from(len)))),
            _ => None,
        };
        Self {
            external,
            version,
            count,
            len,
            bytes: bytes.unwrap_or(&[]),
        }
    }

    fn encode(&self, record: &mut [u8]) {
        let (wide, narrow) = if self.version == Self::CURRENT {
            (self.len, u16::try_from(self.count).unwrap_or(u16::MAX))
        } else {
            (self.count, u16::try_from(self.len).unwrap_or(u16::MAX))
        };
        put_u64(record, ZnodePhys::ACL_AT, self.external);
        put_u32(record, ZnodePhys::ACL_AT + 8, wide);
        put_u16(record, ZnodePhys::ACL_AT + 12, self.version);
        put_u16(record, ZnodePhys::ACL_AT + 14, narrow);
        put_bytes(record, ZnodePhys::ACL_AT + 16, self.bytes);
    }

    /// The entries in the form of today, given the bytes that hold them: those of the record or of the external object. `None`
    /// when there are none, or they are cut short.
    #[must_use]
    pub fn entries(&self, bytes: &[u8]) -> Option<Vec<Ace>> {
        if self.count == 0 {
            return None;
        }
        let bytes = bytes.get(..index(u64::from(self.len)))?;
        if self.version == Self::CURRENT {
            return acl::decode(bytes, index(u64::from(self.count))).ok();
        }
        let entry = |old: &[u8]| {
            let (id, flags) = (u32_at(old, 0), u16_at(old, 8));
            let who = flags & ace_flags::WHO;
            let is_named = who == 0 || who == ace_flags::IDENTIFIER_GROUP;
            Ace {
                kind: u16_at(old, 10),
                flags,
                mask: u32_at(old, 4),
                fuid: if is_named { u64::from(id) } else { 0 },
                object: [0; 32],
            }
        };
        Some(bytes.chunks_exact(OLD_ACE).map(entry).collect())
    }
}

/// Encodes the entries of an ACL in the form before file system version 3.
#[must_use]
pub fn encode_old_aces(aces: &[Ace]) -> Vec<u8> {
    let mut out = Vec::with_capacity(aces.len() * OLD_ACE);
    for ace in aces {
        let who = ace.flags & ace_flags::WHO;
        let is_named = who == 0 || who == ace_flags::IDENTIFIER_GROUP;
        let id = u32::try_from(ace.fuid).ok().filter(|_| is_named);
        out.extend_from_slice(&id.unwrap_or(OLD_NOBODY).to_le_bytes());
        out.extend_from_slice(&ace.mask.to_le_bytes());
        out.extend_from_slice(&ace.flags.to_le_bytes());
        out.extend_from_slice(&ace.kind.to_le_bytes());
    }
    out
}

const _: () = assert!(ZnodePhys::ACL_AT + 16 + ZnodePhys::ACL_ROOM == ZnodePhys::SIZE);

#[cfg(test)]
mod tests {
    use super::*;

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
        assert_eq!((record.acl.count, record.acl.bytes), (2, &[0; 24][..]));
        assert_eq!(record.rest, b"there");
        assert_eq!(record.encode(), bonus);
        // Longer than the room in the record.
        put_u32(&mut bonus, 184, 73);
        let acl = ZnodePhys::decode(&bonus).unwrap().acl;
        assert_eq!(acl.entries(acl.bytes), None);
        assert!(ZnodePhys::decode(&bonus[..ZnodePhys::SIZE - 1]).is_err());
    }

    #[test]
    fn entries_of_old_lists_round_trip() {
        let aces = [
            Ace::about(0, ace_flags::OWNER, 0x1f),
            Ace {
                fuid: 1234,
                ..Ace::about(1, 0, 0x2)
            },
            Ace {
                fuid: 99,
                ..Ace::about(0, ace_flags::IDENTIFIER_GROUP, 0x4)
            },
        ];
        let bytes = encode_old_aces(&aces);
        assert_eq!(bytes.len(), 36);
        assert_eq!(bytes[..4], [0xff; 4]);
        let mut bonus = vec![0; ZnodePhys::SIZE];
        let mut record = ZnodePhys::decode(&bonus).unwrap();
        record.acl = ZnodeAcl {
            external: 0,
            version: 0,
            count: 3,
            len: 36,
            bytes: &bytes,
        };
        bonus = record.encode();
        assert_eq!((u32_at(&bonus, 184), u16_at(&bonus, 190)), (3, 36));
        let acl = ZnodePhys::decode(&bonus).unwrap().acl;
        assert_eq!(acl.entries(acl.bytes).unwrap(), aces);
        // In another object, which is too short.
        assert_eq!(acl.entries(&bytes[..35]), None);
    }
}
