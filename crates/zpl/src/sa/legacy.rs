//! The fixed record (`znode_phys_t`) that objects of file systems before version 5 keep in their bonus; after an upgrade of the
//! file system until they are changed.

use std::rc::Rc;

use ondisk::acl::Trivial;
use ondisk::znode::{mode, znode_flags};
use ondisk::znode_phys::{ZnodeAcl, ZnodePhys, encode_old_aces};

use super::Attrs;
use crate::acl::list;
use crate::znode::ACL_TRIVIAL;
use crate::{FsError, FsResult};

/// The version of file systems whose ACLs have the form of today, and whose files have flags.
// OpenZFS: include/sys/zfs_znode.h, ZPL_VERSION_FUID
pub(crate) const VERSION_FUID: u64 = 3;
/// Longest ACL believed, in bytes.
const ACL_MAX: usize = super::VALUE_MAX_BYTES;
/// The number under which what lies behind a record is carried along.
const BEHIND: u16 = u16::MAX;

/// The object that holds the ACL of a record that has no room for it, and its bytes; `None` when the record has it.
///
/// # Errors
/// [`FsError::Corrupt`].
pub(crate) fn external_acl(bonus: &[u8]) -> FsResult<Option<(u64, usize)>> {
    let acl = record(bonus)?.acl;
    if acl.external == 0 {
        return Ok(None);
    }
    let len = usize::try_from(acl.len).unwrap_or(usize::MAX);
    if len > ACL_MAX {
        return Err(FsError::Corrupt("length of an access control list"));
    }
    Ok(Some((acl.external, len)))
}

fn record(bonus: &[u8]) -> FsResult<ZnodePhys<'_>> {
    ZnodePhys::decode(bonus).map_err(|error| FsError::Corrupt(error.what))
}

/// Decodes a record; `external` is what the object has that holds its ACL. With `stays` the file keeps its record when it is
/// changed: else the next change stores its attributes in the newer form.
///
/// # Errors
/// [`FsError::Corrupt`].
pub(crate) fn decode(bonus: &[u8], external: Option<&[u8]>, stays: bool) -> FsResult<Attrs> {
    let record = record(bonus)?;
    let mut attrs = Attrs::new();
    attrs.atime = record.atime;
    attrs.mtime = record.mtime;
    attrs.ctime = record.ctime;
    attrs.crtime = record.crtime;
    attrs.generation = record.generation;
    attrs.mode = record.mode;
    attrs.size = record.size;
    attrs.parent = record.parent;
    attrs.links = record.links;
    attrs.xattr = Some(record.xattr).filter(|&object| object != 0);
    let kind = attrs.mode & mode::TYPE_MASK;
    attrs.rdev = matches!(kind, mode::CHAR | mode::BLOCK).then_some(record.rdev);
    attrs.flags = record.flags;
    attrs.uid = record.uid;
    attrs.gid = record.gid;
    match record.acl.entries(external.unwrap_or(record.acl.bytes)) {
        Some(aces) => {
            attrs.acl_count = Some(aces.len() as u64);
            attrs.acl = Some(ondisk::acl::encode(&aces).into());
            // Old versions do not note it.
            if record.acl.version != ZnodeAcl::CURRENT && list::is_trivial(&aces) {
                attrs.flags |= ACL_TRIVIAL;
            }
        }
        None => {
            let list = Trivial::of_mode(attrs.mode);
            attrs.acl = Some(Rc::from(list.bytes()));
            attrs.acl_count = Some(list.count());
            attrs.flags |= ACL_TRIVIAL;
        }
    }
    // A short target lies right behind the record; a longer one is the object's data.
    if kind == mode::SYMLINK {
        if let Ok(len) = usize::try_from(attrs.size)
            && let Some(target) = record.rest.get(..len)
        {
            attrs.symlink = Some(Rc::from(target));
        }
    } else if stays && !record.rest.is_empty() {
        attrs.other.push((BEHIND, Rc::from(record.rest)));
    }
    Ok(attrs)
}

/// The bytes of an ACL that do not fit a record, in a file system of a version.
///
/// # Errors
/// [`FsError::Corrupt`].
pub(crate) fn long_acl(attrs: &Attrs, version: u64) -> FsResult<Option<Vec<u8>>> {
    let (bytes, _) = stored_acl(attrs, version)?;
    Ok((bytes.len() > ZnodePhys::ACL_ROOM).then_some(bytes))
}

/// The bytes of an ACL as a file system of a version stores it, and the number of entries.
fn stored_acl(attrs: &Attrs, version: u64) -> FsResult<(Vec<u8>, u32)> {
    let aces = list::of_attrs(attrs)?;
    let bytes = if version < VERSION_FUID {
        encode_old_aces(&aces)
    } else {
        ondisk::acl::encode(&aces)
    };
    let count = u32::try_from(aces.len()).map_err(|_| FsError::AttributeTooLarge)?;
    Ok((bytes, count))
}

/// Whether the target of a symbolic link lies behind the record.
pub(crate) fn is_short_target(target: &[u8]) -> bool {
    ZnodePhys::SIZE + target.len() <= ZnodePhys::BONUS_MAX
}

/// Encodes attributes as the record of a file system of a version; `external` is the object that holds an ACL for which the
/// record has no room, or 0.
///
/// # Errors
/// [`FsError::Corrupt`].
pub(crate) fn encode(attrs: &Attrs, version: u64, external: u64) -> FsResult<Vec<u8>> {
    let (bytes, count) = stored_acl(attrs, version)?;
    let target = attrs
        .symlink
        .as_deref()
        .filter(|target| is_short_target(target));
    let behind = attrs.other.iter().find(|(number, _)| *number == BEHIND);
    let record = ZnodePhys {
        atime: attrs.atime,
        mtime: attrs.mtime,
        ctime: attrs.ctime,
        crtime: attrs.crtime,
        generation: attrs.generation,
        mode: attrs.mode,
        size: attrs.size,
        parent: attrs.parent,
        links: attrs.links,
        xattr: attrs.xattr.unwrap_or(0),
        rdev: attrs.rdev.unwrap_or(0),
        flags: attrs.flags & flags_known(version),
        uid: attrs.uid,
        gid: attrs.gid,
        acl: ZnodeAcl {
            external,
            version: if version < VERSION_FUID {
                0
            } else {
                ZnodeAcl::CURRENT
            },
            count,
            len: u32::try_from(bytes.len()).map_err(|_| FsError::AttributeTooLarge)?,
            bytes: if external == 0 { &bytes } else { &[] },
        },
        rest: target.or(behind.map(|(_, bytes)| &**bytes)).unwrap_or(&[]),
    };
    Ok(record.encode())
}

/// The flags that files of a file system of a version have.
pub(crate) fn flags_known(version: u64) -> u64 {
    if version < VERSION_FUID {
        znode_flags::XATTR | znode_flags::INHERIT_ACE
    } else {
        !(znode_flags::PROJID | znode_flags::PROJINHERIT)
    }
}
