//! The fixed record (`znode_phys_t`) that objects of upgraded file systems keep in their bonus until they are changed.

use std::rc::Rc;

use ondisk::acl::Trivial;
use ondisk::znode::{ZnodePhys, mode};

use super::Attrs;
use crate::{FsError, FsResult};

/// Decodes a record. The next change of the object stores its attributes in the newer form; a list that is not within the
/// record is then replaced by what the mode says.
pub(crate) fn decode(bonus: &[u8]) -> FsResult<Attrs> {
    let record = ZnodePhys::decode(bonus).map_err(|error| FsError::Corrupt(error.what))?;
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
    match record.aces {
        Some(aces) => {
            attrs.acl = Some(Rc::from(aces.bytes));
            attrs.acl_count = Some(u64::from(aces.count));
        }
        None => {
            let list = Trivial::of_mode(attrs.mode);
            attrs.acl = Some(Rc::from(list.bytes()));
            attrs.acl_count = Some(list.count());
            attrs.flags |= crate::znode::ACL_TRIVIAL;
        }
    }
    // A short target lies right behind the record; a longer one is the object's data.
    if kind == mode::SYMLINK
        && let Ok(len) = usize::try_from(attrs.size)
        && let Some(target) = record.rest.get(..len)
    {
        attrs.symlink = Some(Rc::from(target));
    }
    Ok(attrs)
}
