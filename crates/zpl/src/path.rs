//! From an object to its path: for reports that know only numbers.

use dmu::zap;
use ondisk::ObjectId;

use crate::fs::Fs;
use crate::znode::XATTR;
use crate::{FileType, FsError, FsResult};

/// Deepest path believed.
const DEPTH_MAX: usize = 4096;
/// Bits of a directory entry's value that name the object.
const OBJECT_MASK: u64 = (1 << 48) - 1;
/// What stands in a path for the hidden directory of a file's attributes.
// OpenZFS: module/zfs/zfs_znode.c, zfs_obj_to_path_impl
const ATTRIBUTES: &[u8] = b"<xattrdir>";
/// Entries of a directory read at a time.
const BATCH: usize = 512;

impl Fs {
    /// Returns the path of a file below the root of its file system, beginning with `/`; of a file with several names,
    /// one of those it got last. The value of an attribute with an object of its own is found behind `<xattrdir>`.
    ///
    /// # Errors
    /// [`FsError::Stale`] for objects that are no files, [`FsError::NotFound`] for files without a name where the newest
    /// one was (a file does not know its other names), errors of reading.
    pub async fn path_of(&self, object: u64) -> FsResult<Vec<u8>> {
        let root = self.root().object;
        let mut parts: Vec<Vec<u8>> = Vec::new();
        let mut at = object;
        while at != root {
            if parts.len() == DEPTH_MAX {
                return Err(FsError::NotFound);
            }
            let znode = match self.0.znodes.find(at) {
                Some(znode) => znode,
                None => self.load(at, false).await?,
            };
            let (parent, flags) = {
                let attrs = znode.attrs.borrow();
                (attrs.parent, attrs.flags)
            };
            parts.push(
                if flags & XATTR != 0 && znode.file_type() == FileType::Directory {
                    ATTRIBUTES.to_vec()
                } else {
                    self.name_in(parent, at).await?
                },
            );
            at = parent;
        }
        let mut path = Vec::new();
        for part in parts.iter().rev() {
            path.push(b'/');
            path.extend_from_slice(part);
        }
        if path.is_empty() {
            path.push(b'/');
        }
        Ok(path)
    }

    /// Returns a name of `object` in the directory `parent`, which may have become something else meanwhile.
    async fn name_in(&self, parent: u64, object: u64) -> FsResult<Vec<u8>> {
        let found = match self.0.znodes.find(parent) {
            Some(znode) => Ok(znode),
            None => self.load(parent, false).await,
        };
        match found {
            Ok(znode) if znode.file_type() == FileType::Directory => {}
            Ok(_) | Err(FsError::Stale) => return Err(FsError::NotFound),
            Err(error) => return Err(error),
        }
        let mut cookie = 0;
        loop {
            let entries = zap::cursor(self.objset(), ObjectId(parent), cookie, BATCH).await?;
            let Some(last) = entries.last() else {
                return Err(FsError::NotFound);
            };
            cookie = last.next_cookie;
            for entry in entries {
                if let zap::ZapValue::U64(value) = &entry.value
                    && value.first().is_some_and(|v| v & OBJECT_MASK == object)
                {
                    return Ok(entry.name);
                }
            }
        }
    }
}
