//! What a test of a restore reads: a tree of files, or a volume, as it lies in a pool.

use engine::{
    Attr, Cred, DirEntry, FileId, FsError, FsHandle, IoBuf, ListLimit, SeekTarget, VolumeHandle,
};
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;

/// An answer; an error is a sentence.
pub(super) type Answer<'a, T> = BoxFuture<'a, Result<T, String>>;

/// A name in a directory, and what it names or why that cannot be read.
pub(super) type Child = (Vec<u8>, Result<Attr, String>);

/// Entries of a directory in one request.
const ENTRIES_AT_ONCE: usize = 4096;
/// Stretches of data and holes of a volume in one request.
const STRETCHES: usize = 256;

/// Bytes that lie somewhere.
pub(super) trait Content: Send + Sync {
    /// Returns where the first data at or after `offset` begins, of something with `size` bytes.
    fn data_from(&self, id: FileId, offset: u64, size: u64) -> Answer<'_, Option<u64>>;

    /// Reads `len` bytes.
    fn read(&self, id: FileId, offset: u64, len: usize) -> Answer<'_, Vec<IoBuf>>;
}

/// A tree of files.
pub(super) trait Files: Content {
    /// Returns the root directory.
    fn root(&self) -> Answer<'_, Attr>;

    /// Returns what a directory holds, by name.
    fn children(&self, directory: FileId) -> Answer<'_, Vec<Child>>;

    /// Returns the target of a symbolic link.
    fn link(&self, id: FileId) -> Answer<'_, Vec<u8>>;

    /// Returns the extended attributes of a file, by name.
    fn attributes(&self, id: FileId) -> Answer<'_, Vec<(Vec<u8>, Vec<u8>)>>;
}

/// Who reads: root, whatever modes and access control lists say.
fn cred() -> Cred {
    Cred {
        opened: true,
        ..Cred::root()
    }
}

fn told(error: &FsError) -> String {
    error.to_string()
}

impl Content for FsHandle {
    fn data_from(&self, id: FileId, offset: u64, size: u64) -> Answer<'_, Option<u64>> {
        async move {
            match self.seek(id, offset, SeekTarget::Data).await {
                Ok(start) => Ok((start < size).then_some(start)),
                Err(FsError::NoSuchOffset) => Ok(None),
                Err(error) => Err(told(&error)),
            }
        }
        .boxed()
    }

    fn read(&self, id: FileId, offset: u64, len: usize) -> Answer<'_, Vec<IoBuf>> {
        async move {
            let read = Self::read(self, id, offset, len, &cred()).await;
            read.map(|data| data.pieces).map_err(|error| told(&error))
        }
        .boxed()
    }
}

impl Files for FsHandle {
    fn root(&self) -> Answer<'_, Attr> {
        async move { Self::root(self).await.map_err(|error| told(&error)) }.boxed()
    }

    fn children(&self, directory: FileId) -> Answer<'_, Vec<Child>> {
        async move {
            let limit = ListLimit {
                entries: ENTRIES_AT_ONCE,
                bytes: usize::MAX,
                entry_overhead_bytes: 0,
                attrs: true,
            };
            let cred = cred();
            let (mut found, mut cookie) = (Vec::new(), 0);
            loop {
                let listing = self.readdir(directory, cookie, limit, &cred).await;
                let listing = listing.map_err(|error| told(&error))?;
                let last = listing.entries.last().map(|entry| entry.cookie);
                for DirEntry { name, attr, .. } in listing.entries {
                    if matches!(name.as_slice(), b"." | b"..") {
                        continue;
                    }
                    let attr = match attr {
                        Some(attr) => Ok(attr),
                        None => self.lookup(directory, &name, &cred).await,
                    };
                    found.push((name, attr.map_err(|error| told(&error))));
                }
                match last {
                    Some(last) if !listing.eof => cookie = last,
                    _ => break,
                }
            }
            found.sort_by(|(a, _), (b, _)| a.cmp(b));
            Ok(found)
        }
        .boxed()
    }

    fn link(&self, id: FileId) -> Answer<'_, Vec<u8>> {
        async move { self.readlink(id).await.map_err(|error| told(&error)) }.boxed()
    }

    fn attributes(&self, id: FileId) -> Answer<'_, Vec<(Vec<u8>, Vec<u8>)>> {
        async move {
            let cred = cred();
            let stored = self.xattrs(id, &cred).await;
            let mut found = Vec::new();
            for attribute in stored.map_err(|error| told(&error))? {
                let value = self.xattr(id, &attribute.name, &cred).await;
                let value = value.map_err(|error| told(&error))?.to_vec();
                found.push((attribute.name.clone(), value));
            }
            found.sort();
            Ok(found)
        }
        .boxed()
    }
}

impl Content for VolumeHandle {
    fn data_from(&self, _id: FileId, offset: u64, size: u64) -> Answer<'_, Option<u64>> {
        async move {
            let mut at = offset;
            while at < size {
                let parts = self.allocation(at, size - at, STRETCHES).await;
                let parts = parts.map_err(|error| error.to_string())?;
                if let Some(part) = parts.iter().find(|part| part.data) {
                    return Ok(Some(part.offset.max(at)));
                }
                let end = parts.last().map_or(size, |part| part.offset + part.len);
                at = end.max(at + 1);
            }
            Ok(None)
        }
        .boxed()
    }

    fn read(&self, _id: FileId, offset: u64, len: usize) -> Answer<'_, Vec<IoBuf>> {
        async move {
            let read = Self::read(self, offset, len).await;
            read.map_err(|error| error.to_string())
        }
        .boxed()
    }
}
