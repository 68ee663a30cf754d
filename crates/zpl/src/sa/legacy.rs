//! The fixed record (`znode_phys_t`) that objects of upgraded file systems keep in their bonus until they are changed.

use std::rc::Rc;

use super::Attrs;
use crate::acl::Trivial;
use crate::{FsError, FsResult};

/// Bytes of the record. OpenZFS: include/sys/zfs_znode.h, znode_phys_t.
pub(crate) const LEN: usize = 264;

const ACL_AT: usize = 176;

/// Decodes a record. The next change of the object stores its attributes in the newer form; a list that is not within the
/// record is then replaced by what the mode says.
pub(crate) fn decode(bonus: &[u8]) -> FsResult<Attrs> {
    let Some(bytes) = bonus.get(..LEN) else {
        return Err(FsError::Corrupt("znode record is too short"));
    };
    let word = |i: usize| {
        let mut w = [0; 8];
        w.copy_from_slice(&bytes[i * 8..i * 8 + 8]);
        u64::from_le_bytes(w)
    };
    let mut attrs = Attrs::new();
    attrs.atime = [word(0), word(1)];
    attrs.mtime = [word(2), word(3)];
    attrs.ctime = [word(4), word(5)];
    attrs.crtime = [word(6), word(7)];
    attrs.generation = word(8);
    attrs.mode = word(9);
    attrs.size = word(10);
    attrs.parent = word(11);
    attrs.links = word(12);
    attrs.xattr = Some(word(13)).filter(|&x| x != 0);
    let file_type = attrs.mode >> 12;
    attrs.rdev = (file_type == 2 || file_type == 6).then(|| word(14));
    attrs.flags = word(15);
    attrs.uid = word(16);
    attrs.gid = word(17);
    // zfs_acl_phys: external object, size, version, count, then room for six entries.
    let extern_object = word(ACL_AT / 8);
    let version = u16::from_le_bytes([bytes[ACL_AT + 12], bytes[ACL_AT + 13]]);
    let count = u16::from_le_bytes([bytes[ACL_AT + 14], bytes[ACL_AT + 15]]);
    let size = u32::from_le_bytes([
        bytes[ACL_AT + 8],
        bytes[ACL_AT + 9],
        bytes[ACL_AT + 10],
        bytes[ACL_AT + 11],
    ]);
    let inline = usize::try_from(size)
        .ok()
        .and_then(|size| bytes.get(ACL_AT + 16..ACL_AT + 16 + size));
    match inline {
        Some(aces) if extern_object == 0 && version == 1 && count > 0 => {
            attrs.acl = Some(Rc::from(aces));
            attrs.acl_count = Some(u64::from(count));
        }
        _ => {
            let list = Trivial::of_mode(attrs.mode, file_type == 4);
            attrs.acl = Some(Rc::from(list.bytes()));
            attrs.acl_count = Some(list.count());
            attrs.flags |= crate::znode::ACL_TRIVIAL;
        }
    }
    // A short target lies right behind the record; a longer one is the object's data.
    if file_type == 10
        && let Ok(len) = usize::try_from(attrs.size)
        && let Some(target) = bonus.get(LEN..LEN.saturating_add(len))
    {
        attrs.symlink = Some(Rc::from(target));
    }
    Ok(attrs)
}
