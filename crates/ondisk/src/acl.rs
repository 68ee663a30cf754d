//! Access control entries as stored in the `DACL_ACES` attribute, and the trivial list of a mode.
//!
//! OpenZFS: include/sys/zfs_acl.h, zfs_ace_hdr_t and its longer forms.

use crate::bytes::{bytes_at, put_u16, put_u32, slice_at, u16_at, u32_at, u64_at};
use crate::{DecodeError, Result};

/// Kinds of entries.
pub mod ace_type {
    pub const ALLOW: u16 = 0;
    pub const DENY: u16 = 1;
    pub const AUDIT: u16 = 2;
    pub const ALARM: u16 = 3;
    pub const ALLOW_OBJECT: u16 = 5;
    pub const DENY_OBJECT: u16 = 6;
    pub const AUDIT_OBJECT: u16 = 7;
    pub const ALARM_OBJECT: u16 = 8;
}

/// Flags of entries.
pub mod ace_flags {
    pub const FILE_INHERIT: u16 = 0x1;
    pub const DIRECTORY_INHERIT: u16 = 0x2;
    pub const NO_PROPAGATE: u16 = 0x4;
    pub const INHERIT_ONLY: u16 = 0x8;
    pub const IDENTIFIER_GROUP: u16 = 0x40;
    pub const INHERITED: u16 = 0x80;
    pub const OWNER: u16 = 0x1000;
    pub const GROUP: u16 = 0x2000;
    pub const EVERYONE: u16 = 0x4000;
    /// The user or group that an entry is about.
    pub const WHO: u16 = OWNER | GROUP | EVERYONE | IDENTIFIER_GROUP;
    /// The owning group as entries name it.
    pub const OWNING_GROUP: u16 = GROUP | IDENTIFIER_GROUP;
}

/// Rights of entries.
pub mod ace_mask {
    pub const READ_DATA: u32 = 0x1;
    pub const WRITE_DATA: u32 = 0x2;
    pub const APPEND_DATA: u32 = 0x4;
    pub const READ_NAMED_ATTRS: u32 = 0x8;
    pub const WRITE_NAMED_ATTRS: u32 = 0x10;
    pub const EXECUTE: u32 = 0x20;
    pub const DELETE_CHILD: u32 = 0x40;
    pub const READ_ATTRIBUTES: u32 = 0x80;
    pub const WRITE_ATTRIBUTES: u32 = 0x100;
    pub const DELETE: u32 = 0x1_0000;
    pub const READ_ACL: u32 = 0x2_0000;
    pub const WRITE_ACL: u32 = 0x4_0000;
    pub const WRITE_OWNER: u32 = 0x8_0000;
    pub const SYNCHRONIZE: u32 = 0x10_0000;
}

/// One entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ace {
    /// One of [`ace_type`].
    pub kind: u16,
    /// Bits of [`ace_flags`].
    pub flags: u16,
    /// Bits of [`ace_mask`].
    pub mask: u32,
    /// The user or group, for entries about neither owner, owning group nor everyone.
    pub fuid: u64,
    /// Object guids, for the object kinds.
    pub object: [u8; 32],
}

impl Ace {
    /// An entry about the owner, the owning group or everyone.
    #[must_use]
    pub const fn about(kind: u16, flags: u16, mask: u32) -> Self {
        Self {
            kind,
            flags,
            mask,
            fuid: 0,
            object: [0; 32],
        }
    }

    const fn is_object(kind: u16) -> bool {
        matches!(
            kind,
            ace_type::ALLOW_OBJECT
                | ace_type::DENY_OBJECT
                | ace_type::AUDIT_OBJECT
                | ace_type::ALARM_OBJECT
        )
    }

    /// Encoded bytes, by kind and flags.
    pub(crate) const fn size_of(kind: u16, flags: u16) -> usize {
        if Self::is_object(kind) {
            return 48;
        }
        let who = flags & ace_flags::WHO;
        // The owning group is written with both bits, so neither alone is tested.
        let abstract_who =
            who == ace_flags::OWNER || who == ace_flags::EVERYONE || who == ace_flags::OWNING_GROUP;
        if abstract_who && kind <= ace_type::DENY {
            8
        } else {
            16
        }
    }
}

/// Decodes `count` entries.
///
/// # Errors
/// [`DecodeError`] when the bytes end before the last entry.
pub fn decode(buf: &[u8], count: usize) -> Result<Vec<Ace>> {
    if count > buf.len() / 8 {
        return Err(DecodeError::new("acl entry count", buf.len()));
    }
    let mut out = Vec::with_capacity(count);
    let mut at = 0;
    for _ in 0..count {
        let rest = buf.get(at..).unwrap_or_default();
        let (ace, size) = entry(rest).ok_or(DecodeError::new("acl entry", buf.len()))?;
        out.push(ace);
        at += size;
    }
    Ok(out)
}

/// The entries of `buf` in order; one that is not whole ends them.
pub fn entries(buf: &[u8]) -> impl Iterator<Item = Ace> + '_ {
    let mut rest = buf;
    std::iter::from_fn(move || {
        let (ace, size) = entry(rest)?;
        rest = rest.get(size..).unwrap_or_default();
        Some(ace)
    })
}

/// The entry at the start of `rest`, and its bytes.
#[inline]
fn entry(rest: &[u8]) -> Option<(Ace, usize)> {
    let (kind, flags) = (u16_at(rest, 0), u16_at(rest, 2));
    let size = Ace::size_of(kind, flags);
    (rest.len() >= size).then(|| {
        let ace = Ace {
            kind,
            flags,
            mask: u32_at(rest, 4),
            fuid: if size >= 16 { u64_at(rest, 8) } else { 0 },
            object: if size == 48 {
                bytes_at(rest, 16)
            } else {
                [0; 32]
            },
        };
        (ace, size)
    })
}

/// Encodes entries back to back.
#[must_use]
pub fn encode(aces: &[Ace]) -> Vec<u8> {
    let mut out = Vec::with_capacity(aces.len() * 8);
    for a in aces {
        out.extend_from_slice(&a.kind.to_le_bytes());
        out.extend_from_slice(&a.flags.to_le_bytes());
        out.extend_from_slice(&a.mask.to_le_bytes());
        let size = Ace::size_of(a.kind, a.flags);
        if size >= 16 {
            out.extend_from_slice(&a.fuid.to_le_bytes());
        }
        if size == 48 {
            out.extend_from_slice(&a.object);
        }
    }
    out
}

/// The list that says the same as the permission bits of a mode, as it is stored. It needs no memory of its own: every change
/// of a mode writes it again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Trivial {
    bytes: [u8; 48],
    len: usize,
}

impl Trivial {
    /// Bytes of an entry about the owner, the owning group or everyone.
    const ENTRY: usize = 8;
    /// What the owner always has: named attributes, attributes, ACL and owner, read and write, and synchronize.
    const OWNER_ALWAYS: u32 = Self::OTHER_ALWAYS
        | ace_mask::WRITE_ATTRIBUTES
        | ace_mask::WRITE_OWNER
        | ace_mask::WRITE_ACL
        | ace_mask::WRITE_NAMED_ATTRS;
    /// What group and everyone always have: named attributes, attributes, ACL, reading, and synchronize.
    const OTHER_ALWAYS: u32 = ace_mask::READ_ACL
        | ace_mask::READ_ATTRIBUTES
        | ace_mask::READ_NAMED_ATTRS
        | ace_mask::SYNCHRONIZE;

    /// The list of a mode, whose file type tells directories.
    #[must_use]
    pub fn of_mode(mode: u64) -> Self {
        use ace_mask as m;
        let is_dir = mode & crate::znode::mode::TYPE_MASK == crate::znode::mode::DIRECTORY;
        let bits = |shift: u32| mode >> shift & 7;
        let (owner, group, other) = (bits(6), bits(3), bits(0));
        let rights = |b: u64| {
            let mut mask = 0;
            if b & 4 != 0 {
                mask |= m::READ_DATA;
            }
            if b & 2 != 0 {
                mask |= m::WRITE_DATA | m::APPEND_DATA | if is_dir { m::DELETE_CHILD } else { 0 };
            }
            if b & 1 != 0 {
                mask |= m::EXECUTE;
            }
            mask
        };
        // Entries are read in order, and the owner is also a member of "everyone": the three plain ones alone would give the
        // owner what only others have.
        let allow_owner = owner & !group & other;
        let deny_owner = !owner & (group | other);
        let deny_group = !group & other;
        let mut list = Self {
            bytes: [0; 48],
            len: 0,
        };
        if allow_owner != 0 {
            list.push(ace_type::ALLOW, ace_flags::OWNER, rights(allow_owner));
        }
        if deny_owner != 0 {
            list.push(ace_type::DENY, ace_flags::OWNER, rights(deny_owner));
        }
        if deny_group != 0 {
            list.push(ace_type::DENY, ace_flags::OWNING_GROUP, rights(deny_group));
        }
        for (flags, always, bits) in [
            (ace_flags::OWNER, Self::OWNER_ALWAYS, owner),
            (ace_flags::OWNING_GROUP, Self::OTHER_ALWAYS, group),
            (ace_flags::EVERYONE, Self::OTHER_ALWAYS, other),
        ] {
            list.push(ace_type::ALLOW, flags, always | rights(bits));
        }
        list
    }

    fn push(&mut self, kind: u16, flags: u16, mask: u32) {
        put_u16(&mut self.bytes, self.len, kind);
        put_u16(&mut self.bytes, self.len + 2, flags);
        put_u32(&mut self.bytes, self.len + 4, mask);
        self.len += Self::ENTRY;
    }

    /// The entries as stored.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        slice_at(&self.bytes, 0, self.len)
    }

    /// How many entries there are.
    #[must_use]
    pub fn count(&self) -> u64 {
        crate::bytes::len64(self.len / Self::ENTRY)
    }
}

/// The list that says the same as the permission bits of `mode` (its file type tells directories).
#[must_use]
pub fn trivial(mode: u64) -> Vec<Ace> {
    entries(Trivial::of_mode(mode).bytes()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ordinary_modes_need_three_entries() {
        let dir = trivial(0o4_0755);
        assert_eq!(dir.len(), 3);
        assert_eq!(dir[0].mask, 0x1e_0198 | 0x67);
        assert_eq!((dir[1].flags, dir[1].mask), (0x2040, 0x12_00a9));
        let file = trivial(0o10_0644);
        assert_eq!(file[0].mask, 0x1e_0198 | 7);
        assert_eq!((file[2].flags, file[2].mask), (0x4000, 0x12_0089));
        assert_eq!(encode(&file).len(), 24);
    }

    #[test]
    fn the_stored_list_of_a_mode() {
        for mode in [0o755, 0o644, 0o700, 0o777, 0o600] {
            assert_eq!(Trivial::of_mode(0o4_0000 | mode).count(), 3, "{mode:o}");
        }
        assert_eq!(Trivial::of_mode(0o10_0077).count(), 4);
        let list = Trivial::of_mode(0o10_0644);
        let hex: String = list.bytes().iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(hex, "000000109f011e0000004020890012000000004089001200");
    }

    #[test]
    fn unusual_modes_deny_first() {
        // Others may more than group, group more than owner.
        let aces = trivial(0o10_0027);
        assert_eq!(
            aces.iter()
                .map(|a| (a.kind, a.flags))
                .take(2)
                .collect::<Vec<_>>(),
            [(1, ace_flags::OWNER), (1, ace_flags::OWNING_GROUP)]
        );
        let aces = trivial(0o10_0707);
        assert_eq!(
            aces.iter().map(|a| a.kind).collect::<Vec<_>>(),
            [0, 1, 0, 0, 0]
        );
    }

    #[test]
    fn entries_of_all_sizes_round_trip() {
        let aces = [
            Ace::about(0, ace_flags::OWNER, 7),
            Ace {
                kind: 1,
                flags: ace_flags::IDENTIFIER_GROUP,
                mask: 9,
                fuid: 77,
                object: [0; 32],
            },
            Ace {
                kind: 0,
                flags: 0,
                mask: 9,
                fuid: 1000,
                object: [0; 32],
            },
            Ace {
                kind: 5,
                flags: 0,
                mask: 1,
                fuid: 5,
                object: [8; 32],
            },
        ];
        let bytes = encode(&aces);
        assert_eq!(bytes.len(), 8 + 16 + 16 + 48);
        assert_eq!(decode(&bytes, 4).unwrap(), aces);
        assert!(decode(&bytes, 5).is_err() && decode(&bytes[..87], 4).is_err());
        assert!(entries(&bytes).eq(aces));
        assert_eq!(entries(&bytes[..87]).count(), 3);
    }
}
