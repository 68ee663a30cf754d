//! Access control lists: the trivial ACL that a mode stands for, and what a stored ACL allows.
//!
//! Every file has an ACL (DACL_ACES); nearly all are *trivial*: they say what the permission bits say and are rewritten
//! with each change of mode. Lists that say more are asked here and changed in [`list`]. Beside it a file may have POSIX
//! ACLs, in extended attributes ([`posix`]). Facts from OpenZFS: include/sys/zfs_acl.h (ace types, flags, masks) and
//! format/09 section 5.

mod files;
pub(crate) mod list;
pub(crate) mod posix;

/// Masks of rights in an entry.
pub(crate) mod mask {
    pub(crate) const READ_DATA: u32 = 0x1;
    pub(crate) const WRITE_DATA: u32 = 0x2;
    pub(crate) const APPEND_DATA: u32 = 0x4;
    pub(crate) const EXECUTE: u32 = 0x20;
    pub(crate) const DELETE_CHILD: u32 = 0x40;
    pub(crate) const WRITE_ATTRIBUTES: u32 = 0x100;
    pub(crate) const DELETE: u32 = 0x1_0000;
    pub(crate) const WRITE_ACL: u32 = 0x4_0000;
    /// What the owner always has: named attributes, attributes, ACL and owner, read and write, and synchronize.
    pub(crate) const OWNER_ALWAYS: u32 = 0x1e_0198;
    /// What group and everyone always have: named attributes, attributes, ACL, reading, and synchronize.
    pub(crate) const OTHER_ALWAYS: u32 = 0x12_0088;
}

const ALLOW: u16 = 0;
const DENY: u16 = 1;

const FLAG_INHERIT_ONLY: u16 = 0x8;
const FLAG_IDENTIFIER_GROUP: u16 = 0x40;
const FLAG_OWNER: u16 = 0x1000;
const FLAG_GROUP: u16 = 0x2000;
const FLAG_EVERYONE: u16 = 0x4000;
const TYPE_FLAGS: u16 = FLAG_OWNER | FLAG_GROUP | FLAG_EVERYONE | FLAG_IDENTIFIER_GROUP;

/// A trivial ACL: its entries as stored, and how many.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Trivial {
    bytes: [u8; 48],
    len: usize,
}

impl Trivial {
    /// Returns the ACL that permission bits stand for.
    pub(crate) fn of_mode(mode: u64, directory: bool) -> Self {
        let rights = |bits: u64| -> u32 {
            let mut m = 0;
            if bits & 4 != 0 {
                m |= mask::READ_DATA;
            }
            if bits & 2 != 0 {
                m |= mask::WRITE_DATA | mask::APPEND_DATA;
                if directory {
                    m |= mask::DELETE_CHILD;
                }
            }
            if bits & 1 != 0 {
                m |= mask::EXECUTE;
            }
            m
        };
        let (owner, group, other) = ((mode >> 6) & 7, (mode >> 3) & 7, mode & 7);
        // What group or others may do but the owner may not has to be denied first, as entries are read in order and
        // the owner is also a member of "everyone".
        let deny_owner = (group | other) & !owner;
        let deny_group = other & !group;
        let allow_owner = owner & !group & other;
        let mut list = Self {
            bytes: [0; 48],
            len: 0,
        };
        if allow_owner != 0 {
            list.push(ALLOW, FLAG_OWNER, rights(allow_owner));
        }
        if deny_owner != 0 {
            list.push(DENY, FLAG_OWNER, rights(deny_owner));
        }
        if deny_group != 0 {
            list.push(DENY, FLAG_GROUP | FLAG_IDENTIFIER_GROUP, rights(deny_group));
        }
        list.push(ALLOW, FLAG_OWNER, mask::OWNER_ALWAYS | rights(owner));
        list.push(
            ALLOW,
            FLAG_GROUP | FLAG_IDENTIFIER_GROUP,
            mask::OTHER_ALWAYS | rights(group),
        );
        list.push(ALLOW, FLAG_EVERYONE, mask::OTHER_ALWAYS | rights(other));
        list
    }

    fn push(&mut self, kind: u16, flags: u16, rights: u32) {
        let at = self.len;
        self.bytes[at..at + 2].copy_from_slice(&kind.to_le_bytes());
        self.bytes[at + 2..at + 4].copy_from_slice(&flags.to_le_bytes());
        self.bytes[at + 4..at + 8].copy_from_slice(&rights.to_le_bytes());
        self.len += 8;
    }

    /// Returns the entries as stored.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// Returns the number of entries.
    pub(crate) fn count(&self) -> u64 {
        self.len as u64 / 8
    }
}

/// The caller, against the file's owner and group.
pub(crate) struct Asker<'a> {
    pub(crate) uid: u64,
    pub(crate) is_owner: bool,
    pub(crate) in_owning_group: bool,
    pub(crate) in_group: &'a dyn Fn(u64) -> bool,
}

/// Returns the rights among `wanted` that a stored ACL allows. Entries are read in order; the first that speaks of a
/// right decides it, and what no entry allows is denied. An ACL that does not parse allows nothing further.
pub(crate) fn evaluate(aces: &[u8], wanted: u32, asker: &Asker<'_>) -> u32 {
    let mut undecided = wanted;
    let mut allowed = 0;
    let mut rest = aces;
    while undecided != 0 && rest.len() >= 8 {
        let kind = u16::from_le_bytes([rest[0], rest[1]]);
        let flags = u16::from_le_bytes([rest[2], rest[3]]);
        let rights = u32::from_le_bytes([rest[4], rest[5], rest[6], rest[7]]);
        // Abstract entries (owner@, group@, everyone@) have no id; object entries carry 32 more bytes.
        let abstract_entry = matches!(flags & TYPE_FLAGS, FLAG_OWNER | FLAG_EVERYONE)
            || flags & TYPE_FLAGS == FLAG_GROUP | FLAG_IDENTIFIER_GROUP;
        let size = match kind {
            ALLOW | DENY if abstract_entry => 8,
            5 | 6 => 48,
            _ => 16,
        };
        if rest.len() < size {
            break;
        }
        let matches = match flags & TYPE_FLAGS {
            FLAG_OWNER => asker.is_owner,
            FLAG_EVERYONE => true,
            f if f == FLAG_GROUP | FLAG_IDENTIFIER_GROUP => asker.in_owning_group,
            f => {
                let id = u64::from_le_bytes([
                    rest[8], rest[9], rest[10], rest[11], rest[12], rest[13], rest[14], rest[15],
                ]);
                if f == FLAG_IDENTIFIER_GROUP {
                    (asker.in_group)(id)
                } else {
                    f == 0 && asker.uid == id
                }
            }
        };
        if matches && flags & FLAG_INHERIT_ONLY == 0 {
            match kind {
                ALLOW | 5 => allowed |= undecided & rights,
                DENY | 6 => {}
                _ => {
                    rest = &rest[size..];
                    continue;
                }
            }
            undecided &= !rights;
        }
        rest = &rest[size..];
    }
    allowed
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(list: &Trivial) -> String {
        list.bytes().iter().map(|b| format!("{b:02x}")).collect()
    }

    #[test]
    fn usual_modes_have_three_entries() {
        for mode in [0o755, 0o644, 0o700, 0o777, 0o600] {
            assert_eq!(Trivial::of_mode(mode, true).count(), 3, "{mode:o}");
        }
        assert_eq!(
            hex(&Trivial::of_mode(0o644, false)),
            "000000109f011e0000004020890012000000004089001200"
        );
    }

    #[test]
    fn a_right_of_others_that_the_owner_lacks_is_denied_first() {
        let list = Trivial::of_mode(0o077, false);
        assert_eq!(list.count(), 4);
        let asker = |is_owner, in_owning_group| Asker {
            uid: 1,
            is_owner,
            in_owning_group,
            in_group: &|_| false,
        };
        let want = mask::READ_DATA | mask::EXECUTE;
        assert_eq!(evaluate(list.bytes(), want, &asker(true, true)), 0);
        assert_eq!(evaluate(list.bytes(), want, &asker(false, false)), want);
    }

    #[test]
    fn trivial_lists_say_what_the_mode_says() {
        for mode in 0..0o1000u64 {
            let list = Trivial::of_mode(mode, false);
            for (owner, group, shift) in [
                (true, true, 6),
                (true, false, 6),
                (false, true, 3),
                (false, false, 0),
            ] {
                let asker = Asker {
                    uid: 1,
                    is_owner: owner,
                    in_owning_group: group,
                    in_group: &|_| false,
                };
                let bits = (mode >> shift) & 7;
                let got = evaluate(
                    list.bytes(),
                    mask::READ_DATA | mask::WRITE_DATA | mask::EXECUTE,
                    &asker,
                );
                let want = if bits & 4 != 0 { 1 } else { 0 }
                    | if bits & 2 != 0 { 2 } else { 0 }
                    | if bits & 1 != 0 { 0x20 } else { 0 };
                assert_eq!(got, want, "mode {mode:o} owner {owner} group {group}");
            }
        }
    }
}
