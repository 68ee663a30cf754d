//! From an object to its path: for reports that know only numbers.

use dmu::zap;
use ondisk::ObjectId;

use crate::fs::Fs;
use crate::{FsError, FsResult};

/// Deepest path believed.
const DEPTH_MAX: usize = 4096;
/// Bits of a directory entry's value that name the object.
const OBJECT_MASK: u64 = (1 << 48) - 1;
/// Entries of a directory read at a time.
const BATCH: usize = 512;

impl Fs {
    /// Returns the path of a file below the root of its file system, beginning with `/`; of a file with several names,
    /// one of them.
    ///
    /// # Errors
    /// [`FsError::Stale`] for objects that are no files, [`FsError::NotFound`] for files without a name, errors of
    /// reading.
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
            let parent = znode.attrs.borrow().parent;
            parts.push(self.name_in(parent, at).await?);
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

    /// Returns a name of `object` in the directory `parent`.
    async fn name_in(&self, parent: u64, object: u64) -> FsResult<Vec<u8>> {
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
