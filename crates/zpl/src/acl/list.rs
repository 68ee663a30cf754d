//! The ACLs that files store (NFSv4's), as rules on whole ACLs: what a change of mode makes of one, what a new file
//! inherits, which mode shows one, and the form they have in an extended attribute.
//!
//! Pure functions. Facts: OpenZFS module/os/linux/zfs/zfs_acl.c (zfs_acl_chmod, zfs_acl_inherit, zfs_mode_compute,
//! ace_trivial_common), docs/format/09-zpl-sa-zvol.md section 5; the attribute's layout is that of `system.nfs4_acl_xdr`
//! of TrueNAS, whose tools (nfs4xdr_getfacl, nfs4xdr_setfacl) read and write it: struct nfsacl41i and nfsace4i of their nfs41acl.h.

use ondisk::acl::{Ace, ace_flags, ace_mask, ace_type, trivial};

use crate::backing::{AclInherit, AclMode};
use crate::sa::Attrs;
use crate::znode::{ACL_AUTO_INHERIT, ACL_TRIVIAL, NO_EXECS_DENIED};
use crate::{FsError, FsResult};

/// The attribute under which an ACL is read and set.
pub(crate) const XDR: &[u8] = b"system.nfs4_acl_xdr";

/// Flag of a file: its ACL has entries for new files. OpenZFS: include/sys/zfs_znode.h, ZFS_INHERIT_ACE.
pub(crate) const INHERITABLE: u64 = 0x2;
const OBJECT_ENTRIES: u64 = 0x8;
const PROTECTED: u64 = 0x10;
const DEFAULTED: u64 = 0x20;
/// What an ACL as a whole may say about itself, OpenZFS: V4_ACL_WIDE_FLAGS.
pub(crate) const WIDE: u64 = ACL_AUTO_INHERIT | DEFAULTED | PROTECTED;
/// All flags that say something of the ACL. OpenZFS: ZFS_ACL_WIDE_FLAGS.
const ABOUT_LIST: u64 = WIDE | ACL_TRIVIAL | INHERITABLE | OBJECT_ENTRIES;

const INHERIT: u16 = ace_flags::FILE_INHERIT | ace_flags::DIRECTORY_INHERIT;
const ALL_INHERIT: u16 = INHERIT | ace_flags::NO_PROPAGATE | ace_flags::INHERIT_ONLY;
/// Rights that a restricted inheritance takes away. OpenZFS: RESTRICTED_CLEAR.
const RESTRICTED: u32 = ace_mask::WRITE_ACL | ace_mask::WRITE_OWNER;
/// Most entries of an ACL. OpenZFS: MAX_ACL_ENTRIES.
const ENTRIES_MAX: usize = 1024;

const DIRECTORY: u64 = 0o4;
const SYMLINK: u64 = 0o12;

fn is_directory(mode: u64) -> bool {
    mode >> 12 == DIRECTORY
}

fn is_object(kind: u16) -> bool {
    (ace_type::ALLOW_OBJECT..=ace_type::ALARM_OBJECT).contains(&kind)
}

/// Whether an entry is about the owner, the owning group or everyone.
fn is_of_mode(ace: &Ace) -> bool {
    matches!(
        ace.flags & ace_flags::WHO,
        ace_flags::OWNER | ace_flags::OWNING_GROUP | ace_flags::EVERYONE
    )
}

fn is_valid(ace: &Ace) -> bool {
    is_object(ace.kind)
        || (ace.kind <= ace_type::ALARM
            && (is_of_mode(ace)
                || matches!(ace.flags & ace_flags::WHO, 0 | ace_flags::IDENTIFIER_GROUP)))
}

/// Returns the ACL of attributes; one that was never written is its mode's.
///
/// # Errors
/// [`FsError::Corrupt`].
pub(crate) fn of_attrs(attrs: &Attrs) -> FsResult<Vec<Ace>> {
    let (Some(bytes), Some(count)) = (attrs.acl.as_deref(), attrs.acl_count) else {
        return Ok(trivial(attrs.mode));
    };
    let count = usize::try_from(count).unwrap_or(usize::MAX);
    ondisk::acl::decode(bytes, count).map_err(|_| FsError::Corrupt("access control list"))
}

/// Gives attributes an ACL. Their mode becomes the one that shows it; of the flags that an ACL as a whole has they keep
/// `wide`.
pub(crate) fn give(attrs: &mut Attrs, aces: &[Ace], wide: u64) {
    attrs.mode = mode_of(attrs.mode, aces, attrs.uid, attrs.gid);
    attrs.flags &= !(ABOUT_LIST | NO_EXECS_DENIED);
    attrs.flags |= wide & WIDE;
    if is_directory(attrs.mode) && aces.iter().any(|ace| ace.flags & INHERIT != 0) {
        attrs.flags |= INHERITABLE;
    }
    if aces.iter().any(|ace| is_object(ace.kind)) {
        attrs.flags |= OBJECT_ENTRIES;
    }
    if is_trivial(aces) {
        attrs.flags |= ACL_TRIVIAL;
    }
    let denies = |ace: &Ace| {
        ace.kind == ace_type::DENY
            && ace.mask & ace_mask::EXECUTE != 0
            && ace.flags & ace_flags::INHERIT_ONLY == 0
            && !is_of_mode(ace)
            && !(ace.flags & ace_flags::WHO == 0 && ace.fuid == attrs.uid)
            && !(ace.flags & ace_flags::WHO == ace_flags::IDENTIFIER_GROUP && ace.fuid == attrs.gid)
    };
    if attrs.mode & 0o111 == 0o111 && !aces.iter().any(denies) {
        attrs.flags |= NO_EXECS_DENIED;
    }
    attrs.acl_count = Some(aces.len() as u64);
    attrs.acl = Some(ondisk::acl::encode(aces).into());
}

/// Returns the mode that shows an ACL; type, set-id and sticky bits are those of `mode`.
pub(crate) fn mode_of(mode: u64, aces: &[Ace], uid: u64, gid: u64) -> u64 {
    let mut seen = 0;
    let mut bits = 0;
    for ace in aces {
        if !is_valid(ace) || ace.flags & ace_flags::INHERIT_ONLY != 0 {
            continue;
        }
        let classes: &[u32] = match ace.flags & ace_flags::WHO {
            ace_flags::OWNER => &[6],
            0 if ace.fuid == uid => &[6],
            ace_flags::OWNING_GROUP => &[3],
            ace_flags::IDENTIFIER_GROUP if ace.fuid == gid => &[3],
            ace_flags::EVERYONE => &[6, 3, 0],
            _ => continue,
        };
        for (right, bit) in [
            (ace_mask::READ_DATA, 4),
            (ace_mask::WRITE_DATA, 2),
            (ace_mask::EXECUTE, 1),
        ] {
            if ace.mask & right == 0 {
                continue;
            }
            for shift in classes {
                let bit: u64 = bit << shift;
                // The first entry that speaks of a right decides it.
                if seen & bit == 0 && ace.kind == ace_type::ALLOW {
                    bits |= bit;
                }
                seen |= bit;
            }
        }
    }
    (mode & !0o777) | bits
}

/// Returns whether an ACL says no more than a mode could.
pub(crate) fn is_trivial(aces: &[Ace]) -> bool {
    let owners = ace_mask::WRITE_OWNER
        | ace_mask::WRITE_ACL
        | ace_mask::WRITE_ATTRIBUTES
        | ace_mask::WRITE_NAMED_ATTRS;
    let basic = ace_mask::READ_ACL | ace_mask::READ_ATTRIBUTES;
    aces.iter().all(|ace| {
        is_of_mode(ace)
            && ace.flags & ALL_INHERIT == 0
            && !(ace.kind == ace_type::DENY && ace.mask & basic != 0)
            && ace.mask & ace_mask::DELETE == 0
            && (ace.mask & ace_mask::DELETE_CHILD == 0 || ace.mask & ace_mask::WRITE_DATA != 0)
            && (ace.kind != ace_type::ALLOW
                || ace.flags & ace_flags::OWNER != 0
                || ace.mask & owners == 0)
    })
}

/// Returns what a new mode makes of an ACL: the entries of the mode come first and last, what names others stays
/// between. With `split`, old entries of the mode go, but for their part that only new files inherit; with `trim`,
/// no entry keeps more than the owning group has.
fn with_mode(aces: &[Ace], mode: u64, split: bool, trim: bool) -> Vec<Ace> {
    let plain = trivial(mode);
    let (first, last) = plain.split_at(plain.len() - 3);
    let group = last[1].mask;
    let mut out = first.to_vec();
    for ace in aces {
        let mut ace = *ace;
        if split && is_of_mode(&ace) {
            if !is_directory(mode) || ace.flags & INHERIT == 0 {
                continue;
            }
            ace.flags |= ace_flags::INHERIT_ONLY;
        }
        if trim && ace.kind == ace_type::ALLOW && ace.flags & ace_flags::INHERIT_ONLY == 0 {
            ace.mask &= group;
        }
        out.push(ace);
    }
    out.extend_from_slice(last);
    out
}

/// Follows a change of mode, as the property `aclmode` says.
///
/// # Errors
/// [`FsError::NotPermitted`] when the ACL says more than a mode and the property keeps such; [`FsError::Corrupt`].
pub(crate) fn chmod(attrs: &mut Attrs, mode: u64, how: AclMode) -> FsResult<()> {
    if how == AclMode::Restricted && attrs.flags & ACL_TRIVIAL == 0 && attrs.acl.is_some() {
        return Err(FsError::NotPermitted);
    }
    let old = match how {
        AclMode::Discard => Vec::new(),
        _ => of_attrs(attrs)?,
    };
    let wide = attrs.flags;
    let aces = with_mode(&old, mode, true, how == AclMode::GroupMask);
    attrs.mode = mode;
    give(attrs, &aces, wide);
    Ok(())
}

/// Follows a change of owner or group: the mode shows what the ACL gives them.
///
/// # Errors
/// [`FsError::Corrupt`].
pub(crate) fn chown(attrs: &mut Attrs) -> FsResult<()> {
    if attrs.flags & ACL_TRIVIAL == 0 && attrs.acl.is_some() {
        let aces = of_attrs(attrs)?;
        attrs.mode = mode_of(attrs.mode, &aces, attrs.uid, attrs.gid);
    }
    Ok(())
}

/// Whether a new file of this mode takes an entry over.
fn passes(mode: u64, flags: u16) -> bool {
    if is_directory(mode) && flags & ace_flags::DIRECTORY_INHERIT != 0 {
        return true;
    }
    flags & ace_flags::FILE_INHERIT != 0
        && !(is_directory(mode) && flags & ace_flags::NO_PROPAGATE != 0)
}

/// Gives a new file, whose mode and owners are set, the ACL it inherits from a directory's.
pub(crate) fn inherit(parent: &[Ace], attrs: &mut Attrs, inherit: AclInherit, how: AclMode) {
    let mode = attrs.mode;
    let directory = is_directory(mode);
    let regular = mode >> 12 == 0o10;
    let through = matches!(inherit, AclInherit::Passthrough | AclInherit::PassthroughX);
    let mut of_mode_given = false;
    let mut aces = Vec::new();
    let takes_none = inherit == AclInherit::Discard || mode >> 12 == SYMLINK;
    for ace in parent.iter().filter(|_| !takes_none) {
        let mut ace = *ace;
        if !is_valid(&ace)
            || (inherit == AclInherit::NoAllow && ace.kind == ace_type::ALLOW)
            || !passes(mode, ace.flags)
        {
            continue;
        }
        let flags = ace.flags;
        if through
            && is_of_mode(&ace)
            && (regular || (directory && flags & ace_flags::DIRECTORY_INHERIT != 0))
        {
            of_mode_given = true;
        }
        if ace.kind == ace_type::ALLOW {
            match inherit {
                AclInherit::PassthroughX if !directory && mode & 0o111 == 0 => {
                    ace.mask &= !ace_mask::EXECUTE;
                }
                AclInherit::Restricted => ace.mask &= !RESTRICTED,
                _ => {}
            }
        }
        ace.flags |= ace_flags::INHERITED;
        if !directory || flags & ace_flags::NO_PROPAGATE != 0 {
            ace.flags &= !ALL_INHERIT;
        } else if flags & INHERIT == ace_flags::FILE_INHERIT {
            ace.flags |= ace_flags::INHERIT_ONLY;
        } else {
            ace.flags &= !ace_flags::INHERIT_ONLY;
        }
        aces.push(ace);
    }
    let keeps = of_mode_given || (how == AclMode::Restricted && !aces.is_empty());
    let mut wide = 0;
    if !keeps {
        if directory {
            wide = ACL_AUTO_INHERIT;
        }
        let trim = how == AclMode::GroupMask && !through;
        aces = with_mode(&aces, mode, false, trim);
    }
    give(attrs, &aces, wide);
}

/// Returns a file's ACL in the form of the extended attribute: flags of the ACL, number of entries, and of each entry
/// kind, flags, whether it is about no one in particular, rights and who; all big-endian words.
///
/// # Errors
/// [`FsError::Corrupt`]; [`FsError::NotSupported`] for entries about kinds of objects, which the form has no room for.
pub(crate) fn to_xdr(attrs: &Attrs) -> FsResult<Vec<u8>> {
    let aces = of_attrs(attrs)?;
    let wide = (attrs.flags & ACL_AUTO_INHERIT) >> 6
        | (attrs.flags & PROTECTED) >> 3
        | (attrs.flags & DEFAULTED) >> 3;
    let wide = u32::try_from(wide).expect("three bits");
    let count = u32::try_from(aces.len()).map_err(|_| FsError::Corrupt("access control list"))?;
    let mut out = Vec::with_capacity(8 + aces.len() * 20);
    let mut push = |word: u32| out.extend_from_slice(&word.to_be_bytes());
    push(wide);
    push(count);
    for ace in &aces {
        if is_object(ace.kind) {
            return Err(FsError::NotSupported);
        }
        let (special, who) = match ace.flags & ace_flags::WHO {
            ace_flags::OWNER => (1, 1),
            ace_flags::OWNING_GROUP => (1, 2),
            ace_flags::EVERYONE => (1, 3),
            _ => (0, crate::znode::posix_id(ace.fuid)),
        };
        let mut flags = ace.flags & !(ace_flags::WHO & !ace_flags::IDENTIFIER_GROUP);
        if special == 1 && who != 2 {
            flags &= !ace_flags::IDENTIFIER_GROUP;
        }
        for word in [
            u32::from(ace.kind),
            u32::from(flags),
            special,
            ace.mask,
            who,
        ] {
            push(word);
        }
    }
    Ok(out)
}

/// Reads the form of the extended attribute. Returns the entries and the flags of the ACL as a whole.
///
/// # Errors
/// [`FsError::Invalid`] when it breaks a rule.
pub(crate) fn from_xdr(bytes: &[u8]) -> FsResult<(Vec<Ace>, u64)> {
    if !bytes.len().is_multiple_of(4) || bytes.len() < 8 {
        return Err(FsError::Invalid);
    }
    let words: Vec<u32> = bytes
        .chunks_exact(4)
        .map(|word| u32::from_be_bytes([word[0], word[1], word[2], word[3]]))
        .collect();
    let (wide, count) = (words[0], words[1] as usize);
    if !(1..=ENTRIES_MAX).contains(&count) || words.len() != 2 + count * 5 || wide > 7 {
        return Err(FsError::Invalid);
    }
    let narrow = |word: u32| u16::try_from(word).map_err(|_| FsError::Invalid);
    let mut aces = Vec::with_capacity(count);
    for entry in words[2..].chunks_exact(5) {
        let (kind, flags) = (narrow(entry[0])?, narrow(entry[1])?);
        let plain = flags & !ace_flags::WHO;
        let (who, fuid) = match (entry[2], entry[4]) {
            (1, 1) => (ace_flags::OWNER, 0),
            (1, 2) => (ace_flags::OWNING_GROUP, 0),
            (1, 3) => (ace_flags::EVERYONE, 0),
            (0, id) => (flags & ace_flags::IDENTIFIER_GROUP, u64::from(id)),
            _ => return Err(FsError::Invalid),
        };
        let ace = Ace {
            fuid,
            ..Ace::about(kind, plain | who, entry[3])
        };
        // Of what is only for new files there have to be new files that get it.
        let idle = ace.flags & (ace_flags::INHERIT_ONLY | ace_flags::NO_PROPAGATE) != 0
            && ace.flags & INHERIT == 0;
        if kind > ace_type::ALARM || !is_valid(&ace) || idle || flags > 0xff {
            return Err(FsError::Invalid);
        }
        aces.push(ace);
    }
    let wide = u64::from(wide);
    Ok((aces, (wide & 1) << 6 | (wide & 2) << 3 | (wide & 4) << 3))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(kind: u16, flags: u16, mask: u32, uid: u64) -> Ace {
        Ace {
            fuid: uid,
            ..Ace::about(kind, flags, mask)
        }
    }

    fn attrs(mode: u64, aces: &[Ace]) -> Attrs {
        let mut attrs = Attrs::new();
        attrs.mode = mode;
        (attrs.uid, attrs.gid) = (10, 20);
        give(&mut attrs, aces, 0);
        attrs
    }

    /// An ACL that lets user 100 read and write, beside a mode.
    fn with_reader(mode: u64) -> Vec<Ace> {
        let rights = ace_mask::READ_DATA | ace_mask::WRITE_DATA | ace_mask::APPEND_DATA;
        let mut aces = vec![named(ace_type::ALLOW, 0, rights, 100)];
        aces.extend(trivial(mode));
        aces
    }

    #[test]
    fn every_mode_is_shown_by_its_own_list() {
        for mode in 0..0o1000 {
            for kind in [0o100_000, 0o040_000] {
                let aces = trivial(kind | mode);
                assert_eq!(mode_of(kind, &aces, 1, 2), kind | mode, "{mode:o}");
                assert!(is_trivial(&aces), "{mode:o}");
                assert_eq!(with_mode(&[], kind | mode, true, true), aces);
            }
        }
        assert!(!is_trivial(&with_reader(0o100_644)));
    }

    #[test]
    fn a_new_mode_does_what_aclmode_says() {
        let list = with_reader(0o100_644);
        let changed = |how| {
            let mut attrs = attrs(0o100_644, &list);
            chmod(&mut attrs, 0o100_600, how).map(|()| attrs)
        };
        let trivial_after = changed(AclMode::Discard).expect("changes");
        assert_eq!(trivial_after.flags & ACL_TRIVIAL, ACL_TRIVIAL);
        assert_eq!(
            of_attrs(&trivial_after).expect("decodes"),
            trivial(0o100_600)
        );
        let kept = changed(AclMode::Passthrough).expect("changes");
        assert_eq!(kept.mode, 0o100_600);
        assert_eq!(
            of_attrs(&kept).expect("decodes"),
            with_reader(0o100_600),
            "the entry of user 100 is as it was"
        );
        let trimmed = changed(AclMode::GroupMask).expect("changes");
        assert_eq!(
            of_attrs(&trimmed).expect("decodes")[0].mask,
            0,
            "the group has nothing"
        );
        assert_eq!(
            changed(AclMode::Restricted).err(),
            Some(FsError::NotPermitted)
        );
    }

    #[test]
    fn inheritable_entries_of_the_mode_stay_for_new_files() {
        let mut list = trivial(0o040_755);
        for ace in &mut list {
            ace.flags |= INHERIT;
        }
        let mut dir = attrs(0o040_755, &list);
        assert_eq!(dir.flags & INHERITABLE, INHERITABLE);
        chmod(&mut dir, 0o040_700, AclMode::Passthrough).expect("changes");
        let after = of_attrs(&dir).expect("decodes");
        assert_eq!(dir.mode, 0o040_700);
        assert_eq!(after.len(), 6);
        assert!(
            after[..3]
                .iter()
                .all(|ace| ace.flags & ace_flags::INHERIT_ONLY != 0)
        );
    }

    #[test]
    fn new_files_inherit_as_aclinherit_says() {
        let rights = ace_mask::READ_DATA | ace_mask::EXECUTE | ace_mask::WRITE_ACL;
        let mut parent = vec![
            named(ace_type::ALLOW, INHERIT, rights, 100),
            named(
                ace_type::DENY,
                ace_flags::FILE_INHERIT,
                ace_mask::WRITE_DATA,
                101,
            ),
        ];
        parent.extend(trivial(0o040_755));
        let made = |mode: u64, how: AclInherit| {
            let mut attrs = Attrs::new();
            attrs.mode = mode;
            inherit(&parent, &mut attrs, how, AclMode::Discard);
            let aces = of_attrs(&attrs).expect("decodes");
            let named: Vec<(u16, u16, u32)> = aces
                .iter()
                .filter(|ace| !is_of_mode(ace))
                .map(|ace| (ace.kind, ace.flags, ace.mask))
                .collect();
            (attrs, named)
        };
        let was = ace_flags::INHERITED;
        let (file, got) = made(0o100_644, AclInherit::Restricted);
        assert_eq!(
            got,
            [
                (0, was, rights & !RESTRICTED),
                (1, was, ace_mask::WRITE_DATA)
            ]
        );
        assert_eq!(file.mode, 0o100_644);
        assert_eq!(file.flags & ACL_TRIVIAL, 0);
        assert_eq!(made(0o100_644, AclInherit::Discard).1, []);
        assert_eq!(
            made(0o100_644, AclInherit::Discard).0.flags & ACL_TRIVIAL,
            ACL_TRIVIAL
        );
        assert_eq!(
            made(0o100_644, AclInherit::NoAllow).1,
            [(1, was, ace_mask::WRITE_DATA)]
        );
        assert_eq!(made(0o100_644, AclInherit::Passthrough).1[0].2, rights);
        assert_eq!(
            made(0o100_644, AclInherit::PassthroughX).1[0].2,
            rights & !ace_mask::EXECUTE,
            "nobody may execute"
        );
        let (dir, got) = made(0o040_755, AclInherit::Restricted);
        assert_eq!(dir.flags & INHERITABLE, INHERITABLE);
        assert_eq!(
            got,
            [
                (0, was | INHERIT, rights & !RESTRICTED),
                (
                    1,
                    was | ace_flags::FILE_INHERIT | ace_flags::INHERIT_ONLY,
                    ace_mask::WRITE_DATA
                ),
            ]
        );
    }

    #[test]
    fn lists_go_through_the_attribute_unchanged() {
        let mut list = with_reader(0o040_755);
        list[0].flags = INHERIT;
        list.push(named(
            ace_type::DENY,
            ace_flags::IDENTIFIER_GROUP,
            ace_mask::EXECUTE,
            200,
        ));
        let dir = attrs(0o040_755, &list);
        let (back, wide) = from_xdr(&to_xdr(&dir).expect("encodes")).expect("decodes");
        assert_eq!((back, wide), (list, 0));
        // By the header's definitions: flags of the ACL, count; type, flag, iflag (special who), access mask, who.
        let owner = [0, 0x3, 1, 0x0016_019f, 1];
        let group = [0, 0x40, 1, 0x0012_0088, 2];
        let everyone = [1, 0, 1, 0x2, 3];
        let of_group = [0, 0x4b, 0, 0x1, 1234];
        let words: Vec<u32> =
            [[2_u32, 4].as_slice(), &owner, &group, &everyone, &of_group].concat();
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_be_bytes()).collect();
        let (aces, wide) = from_xdr(&bytes).expect("as the tools write it");
        assert_eq!(wide, PROTECTED);
        let whos: Vec<u16> = aces.iter().map(|ace| ace.flags & ace_flags::WHO).collect();
        let named_group = ace_flags::IDENTIFIER_GROUP;
        assert_eq!(
            whos,
            [
                ace_flags::OWNER,
                ace_flags::OWNING_GROUP,
                ace_flags::EVERYONE,
                named_group
            ]
        );
        assert_eq!(
            (aces[3].fuid, aces[3].mask, aces[2].kind),
            (1234, 1, ace_type::DENY)
        );
        let mut file = attrs(0o040_755, &aces);
        file.flags |= wide;
        assert_eq!(to_xdr(&file).expect("encodes"), bytes);
        for bad in [&[0u8; 8][..], &[0; 7], b""] {
            assert_eq!(from_xdr(bad), Err(FsError::Invalid));
        }
    }
}
