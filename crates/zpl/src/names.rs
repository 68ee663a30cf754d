//! Names in directories: looking them up and listing them.

use std::rc::Rc;

use dmu::zap::{self, ZapValue};
use ondisk::ObjectId;

use crate::fs::Fs;
use crate::permission::{self, EXECUTE, READ};
use crate::znode::Znode;
use crate::{Attr, Cred, DirEntry, FileId, FileType, FsError, FsResult, ListLimit, Listing};

/// The part of a directory entry's value that names the object; the type is in the upper four bits.
pub(crate) const OBJECT_MASK: u64 = (1 << 48) - 1;
/// Longest name, without the feature `longname`.
const NAME_MAX: usize = 255;
/// Longest name with it.
const LONG_NAME_MAX: usize = 1023;
/// Cookies of `.` and `..`; those of stored names follow from the ZAP's, moved by the same number.
const COOKIE_SELF: u64 = 1;
const COOKIE_PARENT: u64 = 2;
/// Entries read from a directory at a time.
const BATCH: usize = 256;

/// The version of file systems whose directory entries have types. OpenZFS: include/sys/zfs_znode.h
const VERSION_ENTRY_TYPES: u64 = 2;

/// A name found in a directory.
pub(crate) struct Found {
    pub(crate) object: u64,
    /// The name as stored; differs from the one asked for where case or form do not count.
    pub(crate) stored: Vec<u8>,
}

impl Fs {
    /// The value of a directory entry; file systems of version 1 have no types in them.
    // OpenZFS: module/os/linux/zfs/zfs_dir.c, zfs_dirent (ZPL_VERSION_DIRENT_TYPE)
    pub(crate) fn entry_value(&self, file_type: FileType, object: u64) -> u64 {
        if self.0.master.version < VERSION_ENTRY_TYPES {
            object
        } else {
            file_type.dirent() << 60 | object
        }
    }
}

impl Fs {
    /// Checks a name that is to be looked up or made.
    pub(crate) fn check_name(&self, name: &[u8]) -> FsResult<()> {
        if name.is_empty() {
            return Err(FsError::NotFound);
        }
        if name.contains(&0) || name.contains(&b'/') {
            return Err(FsError::Invalid);
        }
        // Longer names than can be made now may exist; `find` tells.
        if name.len() > LONG_NAME_MAX {
            return Err(FsError::NameTooLong);
        }
        if self.0.master.utf8_only && std::str::from_utf8(name).is_err() {
            return Err(FsError::IllegalName);
        }
        Ok(())
    }

    /// Returns the length of the longest name that can be made.
    pub(crate) fn name_max(&self) -> usize {
        if self.settings().long_names {
            LONG_NAME_MAX
        } else {
            NAME_MAX
        }
    }

    /// Says that a name is about to be stored in a directory.
    pub(crate) fn note_name(&self, name: &[u8]) {
        if name.len() > NAME_MAX {
            self.0.backing.needs_long_names();
        }
    }

    /// Finds a name in a directory whose lock the caller holds. A name that is not there and is longer than any that can
    /// be made is an error.
    pub(crate) async fn find(&self, dir: &Znode, name: &[u8]) -> FsResult<Option<Found>> {
        let id = dir.object_id();
        let found = if self.0.master.matches_normalized() && !Self::is_in_xattr_tree(dir) {
            zap::lookup_normalized(self.os(), id, name)
                .await?
                .map(|(value, stored, _)| (value, stored))
        } else {
            zap::lookup(self.os(), id, name)
                .await?
                .map(|value| (value, Vec::new()))
        };
        let Some((value, stored)) = found else {
            return if name.len() > self.name_max() {
                Err(FsError::NameTooLong)
            } else {
                Ok(None)
            };
        };
        let ZapValue::U64(words) = value else {
            return Err(FsError::Corrupt("directory entry"));
        };
        let object = words.first().copied().unwrap_or(0) & OBJECT_MASK;
        if object == 0 {
            return Err(FsError::Corrupt("directory entry"));
        }
        Ok(Some(Found {
            object,
            stored: if stored.is_empty() {
                name.to_vec()
            } else {
                stored
            },
        }))
    }

    /// Returns the attributes of a file.
    ///
    /// # Errors
    /// [`FsError::Stale`].
    pub async fn getattr(&self, id: FileId) -> FsResult<Attr> {
        let znode = self.znode(id).await?;
        self.attr_of(&znode).await
    }

    /// Finds the file with an object number (for handles without generation, and rescue).
    ///
    /// # Errors
    /// [`FsError::Stale`].
    pub async fn by_object(&self, object: u64) -> FsResult<Attr> {
        let znode = match self.0.znodes.find(object) {
            Some(znode) => znode,
            None => self.load(object, false).await?,
        };
        if znode.dead.get() || (znode.unlinked.get() && znode.holds.get() == 0) {
            return Err(FsError::Stale);
        }
        self.attr_of(&znode).await
    }

    /// Finds a name; `.` is the directory and `..` its parent (the root's is itself).
    ///
    /// # Errors
    /// [`FsError::NotFound`], [`FsError::NotDirectory`], [`FsError::Access`], [`FsError::NameTooLong`],
    /// [`FsError::IllegalName`].
    pub async fn lookup(&self, dir: FileId, name: &[u8], cred: &Cred) -> FsResult<Attr> {
        let dir = self.directory(dir).await?;
        let seen = dir.cache_version();
        permission::check(&dir.attrs.borrow(), cred, EXECUTE)?;
        let found = self.lookup_znode(&dir, name).await;
        let file = match &found {
            Ok(znode) => Some(znode.id()),
            Err(FsError::NotFound) => None,
            Err(error) => return Err(*error),
        };
        if let Some(seen) = seen
            && name != b".."
        {
            dir.cache_name(seen, name, cred, file);
        }
        let znode = found?;
        self.attr_of(&znode).await
    }

    async fn lookup_znode(&self, dir: &Rc<Znode>, name: &[u8]) -> FsResult<Rc<Znode>> {
        match name {
            b"." => return Ok(Rc::clone(dir)),
            b".." => {
                let parent = dir.attrs.borrow().parent;
                return self.entry_znode(parent).await;
            }
            _ => self.check_name(name)?,
        }
        let _lock = dir.shared().await?;
        let found = self.find(dir, name).await?.ok_or(FsError::NotFound)?;
        self.entry_znode(found.object).await
    }

    /// Lists a directory after `cookie` (0 = from its start).
    ///
    /// # Errors
    /// [`FsError::NotDirectory`], [`FsError::Access`].
    pub async fn readdir(
        &self,
        dir: FileId,
        cookie: u64,
        limit: ListLimit,
        cred: &Cred,
    ) -> FsResult<Listing> {
        let dir = self.directory(dir).await?;
        if !cred.opened {
            permission::check(&dir.attrs.borrow(), cred, READ)?;
        }
        let mut builder = Builder {
            limit,
            bytes: 0,
            entries: Vec::new(),
        };
        let _lock = dir.shared().await?;
        let gone = dir.unlinked.get();
        if !gone {
            let parent = dir.attrs.borrow().parent;
            for (name, object, at) in [
                (b".".as_slice(), dir.object, COOKIE_SELF),
                (b"..", parent, COOKIE_PARENT),
            ] {
                if cookie >= at {
                    continue;
                }
                if !builder.fits(name) {
                    return self.listing(builder, false, &dir).await;
                }
                builder.push(name.to_vec(), object, Some(FileType::Directory), at);
            }
        }
        let mut at = cookie.saturating_sub(COOKIE_PARENT);
        let mut eof = gone;
        'batches: while !eof {
            let want = limit
                .entries
                .saturating_sub(builder.entries.len())
                .clamp(1, BATCH);
            let batch = zap::cursor(self.os(), ObjectId(dir.object), at, want).await?;
            if batch.is_empty() {
                eof = true;
                break;
            }
            for entry in batch {
                if !builder.fits(&entry.name) {
                    break 'batches;
                }
                let ZapValue::U64(words) = &entry.value else {
                    return Err(FsError::Corrupt("directory entry"));
                };
                let value = words.first().copied().unwrap_or(0);
                at = entry.next_cookie;
                let file_type = FileType::of_dirent(value >> 60);
                builder.push(
                    entry.name,
                    value & OBJECT_MASK,
                    file_type,
                    at + COOKIE_PARENT,
                );
            }
        }
        self.accessed(&dir);
        self.listing(builder, eof, &dir).await
    }

    async fn listing(&self, builder: Builder, eof: bool, dir: &Rc<Znode>) -> FsResult<Listing> {
        if builder.entries.is_empty() && !eof {
            // Not even one entry fits what the caller has room for.
            return Err(FsError::Invalid);
        }
        let mut entries = builder.entries;
        if builder.limit.attrs {
            for entry in &mut entries {
                let znode = if entry.object == dir.object {
                    Ok(Rc::clone(dir))
                } else {
                    self.entry_znode(entry.object).await
                };
                if let Ok(znode) = znode {
                    entry.attr = self.attr_of(&znode).await.ok();
                }
            }
        }
        Ok(Listing {
            entries,
            eof,
            dir: self.attr_of(dir).await?,
        })
    }
}

/// Gathers entries up to a limit.
struct Builder {
    limit: ListLimit,
    bytes: usize,
    entries: Vec<DirEntry>,
}

impl Builder {
    fn fits(&self, name: &[u8]) -> bool {
        self.entries.len() < self.limit.entries
            && self
                .bytes
                .saturating_add(name.len())
                .saturating_add(self.limit.entry_overhead_bytes)
                <= self.limit.bytes
    }

    fn push(&mut self, name: Vec<u8>, object: u64, file_type: Option<FileType>, cookie: u64) {
        self.bytes += name.len() + self.limit.entry_overhead_bytes;
        self.entries.push(DirEntry {
            name,
            object,
            file_type,
            cookie,
            attr: None,
        });
    }
}
