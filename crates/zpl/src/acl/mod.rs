//! Access control lists: the trivial ACL that a mode stands for, and what a stored ACL allows.
//!
//! Every file has an ACL (DACL_ACES); nearly all are *trivial*: they say what the permission bits say and are rewritten
//! with each change of mode. Lists that say more are asked here and changed in [`list`]. Beside it a file may have POSIX
//! ACLs, in extended attributes ([`posix`]). Facts from OpenZFS: include/sys/zfs_acl.h (ace types, flags, masks) and
//! format/09 section 5.

mod files;
pub(crate) mod list;
pub(crate) mod posix;

use ondisk::acl::{ace_flags, ace_type};

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
    for ace in ondisk::acl::entries(aces) {
        if undecided == 0 {
            break;
        }
        let matches = match ace.flags & ace_flags::WHO {
            ace_flags::OWNER => asker.is_owner,
            ace_flags::EVERYONE => true,
            ace_flags::OWNING_GROUP => asker.in_owning_group,
            ace_flags::IDENTIFIER_GROUP => (asker.in_group)(ace.fuid),
            0 => asker.uid == ace.fuid,
            _ => false,
        };
        if !matches || ace.flags & ace_flags::INHERIT_ONLY != 0 {
            continue;
        }
        match ace.kind {
            ace_type::ALLOW | ace_type::ALLOW_OBJECT => allowed |= undecided & ace.mask,
            ace_type::DENY | ace_type::DENY_OBJECT => {}
            _ => continue,
        }
        undecided &= !ace.mask;
    }
    allowed
}

#[cfg(test)]
mod tests {
    use super::*;
    use ondisk::acl::{Ace, Trivial, ace_mask as mask};

    #[test]
    fn a_right_of_others_that_the_owner_lacks_is_denied_first() {
        let list = Trivial::of_mode(0o077);
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
            let list = Trivial::of_mode(mode);
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

    #[test]
    fn an_entry_that_decides_nothing_is_passed_over_with_all_its_bytes() {
        let audit = Ace {
            object: [1; 32],
            ..Ace::about(ace_type::AUDIT_OBJECT, ace_flags::EVERYONE, mask::READ_DATA)
        };
        let allow = Ace::about(ace_type::ALLOW, ace_flags::EVERYONE, mask::READ_DATA);
        let asker = Asker {
            uid: 1,
            is_owner: false,
            in_owning_group: false,
            in_group: &|_| false,
        };
        let stored = ondisk::acl::encode(&[audit, allow]);
        assert_eq!(evaluate(&stored, mask::READ_DATA, &asker), mask::READ_DATA);
    }
}
