//! The open file system and its operations.

use std::rc::Rc;

use crate::{
    Access, Attr, Change, CreateMode, Cred, DeviceNumber, FileId, FileType, FsResult, FsStat, ListLimit, Listing,
    Made, ReadData, Renamed, SeekTarget, SetAttr, Stability, StoredXattr, Timestamp, Written, XattrMode,
};

/// How to open a file system.
#[derive(Debug, Clone, Copy, Default)]
pub struct FsOptions {
    /// Refuse every change (besides what the dataset itself says: a snapshot is always read-only).
    pub read_only: bool,
    /// Do not drain the unlinked set (it is drained in the background otherwise).
    pub keep_unlinked: bool,
}

/// An open file system. Clones share it.
#[derive(Clone)]
pub struct Fs(Rc<()>);

#[allow(unused_variables, clippy::unused_async, reason = "surface only")]
impl Fs {
    /// Ends all background work, writes deferred access times; the file system must not be used afterwards.
    ///
    /// # Errors
    /// Those of writing; the file system is closed all the same.
    pub async fn close(&self) -> FsResult<()> {
        unimplemented!()
    }

    /// Reads the dataset's properties again (atime, relatime, readonly, recordsize, xattr, ...).
    pub async fn reload_properties(&self) -> FsResult<()> {
        unimplemented!()
    }

    /// Returns the id of the root directory.
    pub fn root(&self) -> FileId {
        unimplemented!()
    }

    /// Returns the attributes of a file.
    pub async fn getattr(&self, id: FileId) -> FsResult<Attr> {
        unimplemented!()
    }

    /// Finds a name; `.` is the directory and `..` its parent.
    pub async fn lookup(&self, dir: FileId, name: &[u8], cred: &Cred) -> FsResult<Attr> {
        unimplemented!()
    }

    /// Finds the file with an object number (for handles without generation, and rescue).
    pub async fn by_object(&self, object: u64) -> FsResult<Attr> {
        unimplemented!()
    }

    /// Returns which of the asked permissions the caller has.
    pub async fn access(&self, id: FileId, wanted: Access, cred: &Cred) -> FsResult<Access> {
        unimplemented!()
    }

    /// Sets attributes. With `guard`, only if the file's ctime still is that.
    pub async fn setattr(
        &self,
        id: FileId,
        set: &SetAttr,
        guard: Option<Timestamp>,
        cred: &Cred,
    ) -> FsResult<Change> {
        unimplemented!()
    }

    /// Returns the target of a symbolic link.
    pub async fn readlink(&self, id: FileId) -> FsResult<Vec<u8>> {
        unimplemented!()
    }

    /// Reads bytes of a regular file.
    pub async fn read(&self, id: FileId, offset: u64, len: usize, cred: &Cred) -> FsResult<ReadData> {
        unimplemented!()
    }

    /// Writes bytes to a regular file.
    pub async fn write(
        &self,
        id: FileId,
        offset: u64,
        data: runtime::IoBuf,
        stability: Stability,
        cred: &Cred,
    ) -> FsResult<Written> {
        unimplemented!()
    }

    /// Appends bytes to a regular file; [`Written::change`] tells where they went.
    pub async fn append(
        &self,
        id: FileId,
        data: runtime::IoBuf,
        stability: Stability,
        cred: &Cred,
    ) -> FsResult<Written> {
        unimplemented!()
    }

    /// Makes a range of a regular file a hole; bytes past the end of file are not touched, the size stays.
    pub async fn punch(&self, id: FileId, offset: u64, len: u64, cred: &Cred) -> FsResult<Change> {
        unimplemented!()
    }

    /// Finds the next data or hole at or after `offset`.
    pub async fn seek(&self, id: FileId, offset: u64, target: SeekTarget) -> FsResult<u64> {
        unimplemented!()
    }

    /// Brings everything written to the file onto stable storage. The range is a hint.
    pub async fn commit(&self, id: FileId, offset: u64, len: u64) -> FsResult<Attr> {
        unimplemented!()
    }

    /// Brings the whole file system onto stable storage.
    pub async fn sync(&self) -> FsResult<()> {
        unimplemented!()
    }

    /// Creates a regular file.
    pub async fn create(
        &self,
        dir: FileId,
        name: &[u8],
        mode: CreateMode,
        set: &SetAttr,
        cred: &Cred,
    ) -> FsResult<Made> {
        unimplemented!()
    }

    /// Makes a directory.
    pub async fn mkdir(&self, dir: FileId, name: &[u8], set: &SetAttr, cred: &Cred) -> FsResult<Made> {
        unimplemented!()
    }

    /// Makes a symbolic link.
    pub async fn symlink(
        &self,
        dir: FileId,
        name: &[u8],
        target: &[u8],
        set: &SetAttr,
        cred: &Cred,
    ) -> FsResult<Made> {
        unimplemented!()
    }

    /// Makes a pipe, socket or device node (or an empty regular file).
    pub async fn mknod(
        &self,
        dir: FileId,
        name: &[u8],
        file_type: FileType,
        rdev: DeviceNumber,
        set: &SetAttr,
        cred: &Cred,
    ) -> FsResult<Made> {
        unimplemented!()
    }

    /// Gives a file one more name.
    pub async fn link(&self, id: FileId, dir: FileId, name: &[u8], cred: &Cred) -> FsResult<Made> {
        unimplemented!()
    }

    /// Removes a name of anything but a directory.
    pub async fn remove(&self, dir: FileId, name: &[u8], cred: &Cred) -> FsResult<Change> {
        unimplemented!()
    }

    /// Removes an empty directory.
    pub async fn rmdir(&self, dir: FileId, name: &[u8], cred: &Cred) -> FsResult<Change> {
        unimplemented!()
    }

    /// Renames, replacing an existing file or empty directory.
    pub async fn rename(
        &self,
        from: FileId,
        from_name: &[u8],
        to: FileId,
        to_name: &[u8],
        cred: &Cred,
    ) -> FsResult<Renamed> {
        unimplemented!()
    }

    /// Lists a directory after `cookie` (0 = from its start).
    pub async fn readdir(&self, dir: FileId, cookie: u64, limit: ListLimit, cred: &Cred) -> FsResult<Listing> {
        unimplemented!()
    }

    /// Returns space and objects.
    pub async fn statfs(&self) -> FsResult<FsStat> {
        unimplemented!()
    }

    /// Keeps a file alive although its last name goes, until as many releases.
    pub async fn hold(&self, id: FileId) -> FsResult<Attr> {
        unimplemented!()
    }

    /// Ends a hold; frees the file in the background if it has no name left.
    pub fn release(&self, id: FileId) {
        unimplemented!()
    }

    /// Returns the value of an extended attribute.
    pub async fn xattr(&self, id: FileId, name: &[u8], cred: &Cred) -> FsResult<Vec<u8>> {
        unimplemented!()
    }

    /// Sets an extended attribute.
    pub async fn set_xattr(
        &self,
        id: FileId,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
        cred: &Cred,
    ) -> FsResult<Change> {
        unimplemented!()
    }

    /// Removes an extended attribute.
    pub async fn remove_xattr(&self, id: FileId, name: &[u8], cred: &Cred) -> FsResult<Change> {
        unimplemented!()
    }

    /// Lists the extended attributes.
    pub async fn xattrs(&self, id: FileId, cred: &Cred) -> FsResult<Vec<StoredXattr>> {
        unimplemented!()
    }
}
