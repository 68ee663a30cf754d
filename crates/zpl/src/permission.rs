//! Permission checks: POSIX permission bits, non-trivial ACLs, sticky directories, and the flags that forbid changes.

use ondisk::acl::ace_mask as mask;

use crate::acl::{self, Asker};
use crate::sa::Attrs;
use crate::znode::{ACL_TRIVIAL, XATTR};
use crate::{Access, Cred, FsError, FsResult, flags};

pub(crate) const READ: u32 = 4;
pub(crate) const WRITE: u32 = 2;
pub(crate) const EXECUTE: u32 = 1;

/// Returns whether the caller owns the file or is root.
pub(crate) fn owns(attrs: &Attrs, cred: &Cred) -> bool {
    cred.uid == 0 || u64::from(cred.uid) == attrs.uid
}

fn in_owning_group(attrs: &Attrs, cred: &Cred) -> bool {
    u32::try_from(attrs.gid).is_ok_and(|gid| cred.in_group(gid))
}

/// Returns which of the wanted permission bits ([`READ`], [`WRITE`], [`EXECUTE`]) the caller has.
pub(crate) fn allowed(attrs: &Attrs, cred: &Cred, wanted: u32) -> u32 {
    let is_dir = attrs.mode >> 12 == 4;
    if cred.uid == 0 {
        // Root may do everything, but a file without any execute bit is not a program.
        let executable = is_dir || attrs.mode & 0o111 != 0;
        return if executable {
            wanted
        } else {
            wanted & !EXECUTE
        };
    }
    let owner = u64::from(cred.uid) == attrs.uid;
    let group = in_owning_group(attrs, cred);
    if attrs.flags & ACL_TRIVIAL != 0 || attrs.acl.is_none() {
        if let Some(acl) = &attrs.posix {
            return acl.allowed(cred, attrs.uid, attrs.gid, wanted);
        }
        let shift = if owner {
            6
        } else if group {
            3
        } else {
            0
        };
        return u32::try_from((attrs.mode >> shift) & 7).expect("three bits") & wanted;
    }
    let rights = (if wanted & READ != 0 {
        mask::READ_DATA
    } else {
        0
    }) | (if wanted & WRITE != 0 {
        mask::WRITE_DATA
    } else {
        0
    }) | (if wanted & EXECUTE != 0 {
        mask::EXECUTE
    } else {
        0
    });
    let got = evaluate(attrs, cred, rights);
    (if got & mask::READ_DATA != 0 { READ } else { 0 })
        | (if got & mask::WRITE_DATA != 0 {
            WRITE
        } else {
            0
        })
        | (if got & mask::EXECUTE != 0 { EXECUTE } else { 0 })
}

/// Returns which rights of entries the stored ACL gives the caller.
fn evaluate(attrs: &Attrs, cred: &Cred, rights: u32) -> u32 {
    let in_group = |gid: u64| u32::try_from(gid).is_ok_and(|gid| cred.in_group(gid));
    let asker = Asker {
        uid: u64::from(cred.uid),
        is_owner: u64::from(cred.uid) == attrs.uid,
        in_owning_group: in_owning_group(attrs, cred),
        in_group: &in_group,
    };
    acl::evaluate(attrs.acl.as_deref().unwrap_or(&[]), rights, &asker)
}

/// Returns whether a stored ACL that says more than the mode gives the caller rights that the mode has no bits for.
pub(crate) fn grants(attrs: &Attrs, cred: &Cred, rights: u32) -> bool {
    attrs.flags & ACL_TRIVIAL == 0 && attrs.acl.is_some() && evaluate(attrs, cred, rights) == rights
}

/// Checks that the caller has all of the wanted permission bits.
///
/// # Errors
/// [`FsError::Access`].
pub(crate) fn check(attrs: &Attrs, cred: &Cred, wanted: u32) -> FsResult<()> {
    // Of several groups in a POSIX ACL, one has to grant all that is wanted together.
    let together = match &attrs.posix {
        Some(acl) if cred.uid != 0 => acl.permits(cred, attrs.uid, attrs.gid, wanted),
        _ => true,
    };
    if together && allowed(attrs, cred, wanted) == wanted {
        Ok(())
    } else {
        Err(FsError::Access)
    }
}

/// Checks the permission to read or write content. The owner always has it, and reading is allowed with the right to execute:
/// the check was done at open, which stateless protocols do not see (RFC 1813, section 4.4). So has a caller that holds the
/// file open ([`Cred::opened`]). Decided here alone, from the credential; an ACL that denies both rights is not overridden.
///
/// # Errors
/// [`FsError::Access`].
pub(crate) fn check_content(attrs: &Attrs, cred: &Cred, wanted: u32) -> FsResult<()> {
    if cred.opened || u64::from(cred.uid) == attrs.uid {
        return Ok(());
    }
    let got = allowed(attrs, cred, wanted | EXECUTE);
    // A client executes a program by reading it: its protocol has no "execute" operation.
    if got & wanted == wanted || (wanted == READ && got & EXECUTE != 0) {
        Ok(())
    } else {
        Err(FsError::Access)
    }
}

/// Answers an access request.
pub(crate) fn access(attrs: &Attrs, cred: &Cred, wanted: Access) -> Access {
    let is_dir = attrs.mode >> 12 == 4;
    let got = allowed(attrs, cred, READ | WRITE | EXECUTE);
    let mut access = Access::default();
    if got & READ != 0 {
        access = access | Access::READ;
    }
    if got & WRITE != 0 && attrs.flags & flags::IMMUTABLE == 0 {
        access = access | Access::MODIFY | Access::EXTEND;
        if is_dir {
            access = access | Access::DELETE;
        }
    }
    if got & EXECUTE != 0 {
        access = access
            | if is_dir {
                Access::LOOKUP
            } else {
                Access::EXECUTE
            };
    }
    Access(access.0 & wanted.0)
}

/// Checks that names may be added to a directory.
///
/// # Errors
/// [`FsError::Access`], [`FsError::NotPermitted`] for an immutable directory.
pub(crate) fn check_add(dir: &Attrs, directory: bool, cred: &Cred) -> FsResult<()> {
    // A stored ACL tells files from directories. OpenZFS: ACE_ADD_FILE, ACE_ADD_SUBDIRECTORY.
    if directory && grants(dir, cred, mask::APPEND_DATA) {
        check(dir, cred, EXECUTE)?;
    } else {
        check(dir, cred, WRITE | EXECUTE)?;
    }
    if dir.flags & flags::IMMUTABLE != 0 {
        return Err(FsError::NotPermitted);
    }
    if dir.flags & XATTR != 0 {
        return Err(FsError::Invalid);
    }
    Ok(())
}

/// Checks that a name of a file may be taken out of a directory.
///
/// # Errors
/// [`FsError::Access`]; [`FsError::NotPermitted`] in a sticky directory, or by flags of either.
pub(crate) fn check_remove(dir: &Attrs, file: &Attrs, cred: &Cred) -> FsResult<()> {
    // The right to delete a file is the file's or the directory's to give. OpenZFS: zfs_zaccess_delete.
    if grants(file, cred, mask::DELETE) || grants(dir, cred, mask::DELETE_CHILD) {
        check(dir, cred, EXECUTE)?;
    } else {
        check(dir, cred, WRITE | EXECUTE)?;
    }
    let own = u64::from(cred.uid);
    if dir.mode & 0o1000 != 0 && cred.uid != 0 && dir.uid != own && file.uid != own {
        return Err(FsError::NotPermitted);
    }
    if dir.flags & (flags::IMMUTABLE | flags::APPENDONLY) != 0
        || file.flags & (flags::IMMUTABLE | flags::APPENDONLY | flags::NOUNLINK) != 0
    {
        return Err(FsError::NotPermitted);
    }
    Ok(())
}

/// Returns the mode after content or ownership was changed by a caller that may not grant set-id bits.
pub(crate) fn without_set_id(mode: u64) -> u64 {
    if mode >> 12 == 4 {
        return mode;
    }
    // Set-gid without group execution means mandatory locking, not another identity.
    let group = if mode & 0o010 != 0 { 0o2000 } else { 0 };
    mode & !(0o4000 | group)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(mode: u64, uid: u64, gid: u64) -> Attrs {
        let mut attrs = Attrs::new();
        attrs.mode = mode;
        attrs.uid = uid;
        attrs.gid = gid;
        attrs.flags = ACL_TRIVIAL;
        attrs
    }

    fn user(uid: u32, gid: u32) -> Cred {
        Cred {
            uid,
            gid,
            groups: vec![77],
            opened: false,
            holder: 0,
        }
    }

    #[test]
    fn the_closest_class_decides() {
        let attrs = file(0o100_047, 10, 20);
        assert_eq!(allowed(&attrs, &user(10, 20), 7), 0);
        assert_eq!(allowed(&attrs, &user(11, 20), 7), 4);
        assert_eq!(allowed(&attrs, &user(11, 21), 7), 7);
        let attrs = file(0o100_070, 10, 77);
        assert_eq!(allowed(&attrs, &user(11, 21), 7), 7);
    }

    #[test]
    fn root_executes_only_programs() {
        assert_eq!(allowed(&file(0o100_600, 1, 1), &Cred::root(), 7), 6);
        assert_eq!(allowed(&file(0o100_100, 1, 1), &Cred::root(), 7), 7);
        assert_eq!(allowed(&file(0o040_000, 1, 1), &Cred::root(), 7), 7);
    }

    #[test]
    fn sticky_directories_protect_the_files_of_others() {
        let dir = file(0o041_777, 1, 1);
        let victim = file(0o100_666, 2, 2);
        assert_eq!(
            check_remove(&dir, &victim, &user(3, 3)),
            Err(FsError::NotPermitted)
        );
        assert_eq!(check_remove(&dir, &victim, &user(2, 3)), Ok(()));
        assert_eq!(check_remove(&dir, &victim, &user(1, 3)), Ok(()));
        assert_eq!(check_remove(&dir, &victim, &Cred::root()), Ok(()));
    }

    #[test]
    fn set_id_bits_go_but_mandatory_locking_stays() {
        assert_eq!(without_set_id(0o106_755), 0o100_755);
        assert_eq!(without_set_id(0o106_745), 0o102_745);
        assert_eq!(without_set_id(0o042_755), 0o042_755);
    }
}
