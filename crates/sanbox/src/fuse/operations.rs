//! The kernel's requests, each one call on the engine's door.

use super::Adapter;
use super::convert::{attributes, credentials, decode_device, errno, kind, set_time, timestamp};
use engine::{
    Attr, CreateMode, Cred, FileId, FileType, FsError, FsHandle, FsResult, IoBuf, ListLimit,
    Listing, Made, SeekTarget, SetAttr, Stability, XattrMode,
};
use fuser::{
    BsdFileFlags, Errno, FileHandle, FopenFlags, Generation, INodeNo, LockOwner, OpenFlags,
    RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty,
    ReplyEntry, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow,
    WriteFlags,
};
use std::ffi::OsStr;
use std::future::Future;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

/// How long the kernel may keep names and attributes: not at all, since other protocols change the same files.
const KEEP: Duration = Duration::ZERO;
/// Entries listed at a time; the kernel's buffer holds fewer.
const LIST_ENTRIES: usize = 256;
/// `lseek(2)`.
const SEEK_DATA: i32 = 3;
/// `lseek(2)`.
const SEEK_HOLE: i32 = 4;
/// `fallocate(2)`.
const FALLOC_KEEP_SIZE: i32 = 1;
/// `fallocate(2)`.
const FALLOC_PUNCH_HOLE: i32 = 2;
/// `setxattr(2)`.
const XATTR_CREATE: i32 = 1;
/// `setxattr(2)`.
const XATTR_REPLACE: i32 = 2;
/// `open(2)`.
const O_EXCL: i32 = 0o200;

impl Adapter {
    fn nodes(&self) -> MutexGuard<'_, super::Nodes> {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn id(&self, number: INodeNo) -> FsResult<FileId> {
        self.nodes().id(number.0).ok_or(FsError::Stale)
    }

    /// Runs `work` with the file system, then `answer` with its outcome.
    fn run<T, W>(
        &self,
        work: impl FnOnce(FsHandle) -> W + Send + 'static,
        answer: impl FnOnce(FsResult<T>) + Send + 'static,
    ) where
        W: Future<Output = FsResult<T>> + Send + 'static,
        T: Send + 'static,
    {
        let fs = self.fs.clone();
        self.tasks.spawn(async move { answer(work(fs).await) });
    }

    /// Runs work that names a file the kernel now learns of.
    fn entry<W>(
        self: &Arc<Self>,
        reply: ReplyEntry,
        work: impl FnOnce(FsHandle) -> W + Send + 'static,
    ) where
        W: Future<Output = FsResult<Attr>> + Send + 'static,
    {
        let adapter = Arc::clone(self);
        self.run(work, move |outcome| match outcome {
            Ok(attr) => {
                let number = adapter.nodes().learn(attr.id);
                reply.entry(
                    &KEEP,
                    &attributes(number, &attr),
                    Generation(attr.id.generation),
                );
            }
            Err(error) => reply.error(errno(error)),
        });
    }
}

/// Returns the file that was made.
fn file(made: FsResult<Made>) -> FsResult<Attr> {
    made.map(|made| made.file)
}

fn finish<T>(reply: ReplyEmpty) -> impl FnOnce(FsResult<T>) + Send + 'static {
    move |outcome| match outcome {
        Ok(_) => reply.ok(),
        Err(error) => reply.error(errno(error)),
    }
}

fn new_attributes(mode: u32, umask: u32) -> SetAttr {
    SetAttr {
        mode: Some(mode & !umask & 0o7777),
        ..SetAttr::default()
    }
}

/// Answers a question about extended attributes: their size first, then their bytes.
fn xattr_answer(reply: ReplyXattr, size: u32) -> impl FnOnce(FsResult<Vec<u8>>) + Send + 'static {
    move |outcome| match outcome {
        Ok(value) => {
            let length = u32::try_from(value.len()).unwrap_or(u32::MAX);
            if size == 0 {
                reply.size(length);
            } else if length > size {
                reply.error(Errno::ERANGE);
            } else {
                reply.data(&value);
            }
        }
        Err(error) => reply.error(errno(error)),
    }
}

/// The adapter behind the counter that tasks share.
pub(super) struct Shared(pub(super) Arc<Adapter>);

impl std::ops::Deref for Shared {
    type Target = Arc<Adapter>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

/// Takes the file of an inode number, or answers that there is none.
macro_rules! known {
    ($adapter:expr, $number:expr, $reply:expr) => {
        match $adapter.id($number) {
            Ok(id) => id,
            Err(error) => return $reply.error(errno(error)),
        }
    };
}

impl fuser::Filesystem for Shared {
    fn lookup(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let dir = known!(self, parent, reply);
        let (name, cred) = (name.as_bytes().to_vec(), credentials(request));
        self.entry(reply, move |fs| async move {
            fs.lookup(dir, &name, &cred).await
        });
    }

    fn forget(&self, _request: &Request, number: INodeNo, count: u64) {
        self.nodes().forget(number.0, count);
    }

    fn getattr(&self, _: &Request, number: INodeNo, fh: Option<FileHandle>, reply: ReplyAttr) {
        let id = match fh {
            Some(fh) if number.0 != super::nodes::ROOT => opened(number, fh),
            _ => known!(self, number, reply),
        };
        self.run(
            move |fs| async move { fs.getattr(id).await },
            move |outcome| match outcome {
                Ok(attr) => reply.attr(&KEEP, &attributes(number.0, &attr)),
                Err(error) => reply.error(errno(error)),
            },
        );
    }

    fn setattr(
        &self,
        request: &Request,
        number: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        fh: Option<FileHandle>,
        crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let id = known!(self, number, reply);
        let set = SetAttr {
            mode: mode.map(|mode| mode & 0o7777),
            uid,
            gid,
            size,
            atime: atime.map(set_time),
            mtime: mtime.map(set_time),
            crtime: crtime.map(timestamp),
            ..SetAttr::default()
        };
        let cred = Cred {
            opened: fh.is_some(),
            ..credentials(request)
        };
        self.run(
            move |fs| async move { fs.setattr(id, &set, None, &cred).await },
            move |outcome| match outcome {
                Ok(change) => reply.attr(&KEEP, &attributes(number.0, &change.after)),
                Err(error) => reply.error(errno(error)),
            },
        );
    }

    fn readlink(&self, _: &Request, number: INodeNo, reply: ReplyData) {
        let id = known!(self, number, reply);
        self.run(
            move |fs| async move { fs.readlink(id).await },
            move |outcome| match outcome {
                Ok(target) => reply.data(&target),
                Err(error) => reply.error(errno(error)),
            },
        );
    }

    fn mknod(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        rdev: u32,
        reply: ReplyEntry,
    ) {
        let dir = known!(self, parent, reply);
        let Some(file_type) = FileType::of_mode(u64::from(mode)) else {
            return reply.error(Errno::EINVAL);
        };
        let (name, cred) = (name.as_bytes().to_vec(), credentials(request));
        let set = new_attributes(mode, umask);
        self.entry(reply, move |fs| async move {
            file(if file_type == FileType::Regular {
                fs.create(dir, &name, CreateMode::Guarded, &set, &cred)
                    .await
            } else {
                fs.mknod(dir, &name, file_type, decode_device(rdev), &set, &cred)
                    .await
            })
        });
    }

    fn mkdir(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        reply: ReplyEntry,
    ) {
        let dir = known!(self, parent, reply);
        let (name, cred) = (name.as_bytes().to_vec(), credentials(request));
        let set = new_attributes(mode, umask);
        self.entry(reply, move |fs| async move {
            file(fs.mkdir(dir, &name, &set, &cred).await)
        });
    }

    fn unlink(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let dir = known!(self, parent, reply);
        let (name, cred) = (name.as_bytes().to_vec(), credentials(request));
        self.run(
            move |fs| async move { fs.remove(dir, &name, &cred).await },
            finish(reply),
        );
    }

    fn rmdir(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let dir = known!(self, parent, reply);
        let (name, cred) = (name.as_bytes().to_vec(), credentials(request));
        self.run(
            move |fs| async move { fs.rmdir(dir, &name, &cred).await },
            finish(reply),
        );
    }

    fn symlink(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        target: &Path,
        reply: ReplyEntry,
    ) {
        let dir = known!(self, parent, reply);
        let (name, cred) = (name.as_bytes().to_vec(), credentials(request));
        let target = target.as_os_str().as_bytes().to_vec();
        let set = new_attributes(0o777, 0);
        self.entry(reply, move |fs| async move {
            file(fs.symlink(dir, &name, &target, &set, &cred).await)
        });
    }

    fn rename(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        // renameat2(2): EINVAL says that the file system does not know the flag; callers then do without.
        if !flags.is_empty() {
            return reply.error(Errno::EINVAL);
        }
        let (from, to) = (known!(self, parent, reply), known!(self, new_parent, reply));
        let (name, new_name) = (name.as_bytes().to_vec(), new_name.as_bytes().to_vec());
        let cred = credentials(request);
        self.run(
            move |fs| async move { fs.rename(from, &name, to, &new_name, &cred).await },
            finish(reply),
        );
    }

    fn link(
        &self,
        request: &Request,
        number: INodeNo,
        new_parent: INodeNo,
        new_name: &OsStr,
        reply: ReplyEntry,
    ) {
        let (id, dir) = (known!(self, number, reply), known!(self, new_parent, reply));
        let (name, cred) = (new_name.as_bytes().to_vec(), credentials(request));
        self.entry(reply, move |fs| async move {
            file(fs.link(id, dir, &name, &cred).await)
        });
    }

    fn open(&self, _: &Request, number: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        let id = known!(self, number, reply);
        self.run(
            move |fs| async move { fs.hold(id).await },
            move |outcome| match outcome {
                Ok(_) => reply.opened(FileHandle(id.generation), FopenFlags::empty()),
                Err(error) => reply.error(errno(error)),
            },
        );
    }

    fn read(
        &self,
        request: &Request,
        number: INodeNo,
        fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let id = opened(number, fh);
        let cred = Cred {
            uid: request.uid(),
            gid: request.gid(),
            groups: Vec::new(),
            opened: true,
        };
        let size = usize::try_from(size).expect("32 bits fit");
        self.run(
            move |fs| async move { fs.read(id, offset, size, &cred).await },
            move |outcome| match outcome {
                Ok(data) => match data.pieces.as_slice() {
                    [piece] => reply.data(piece),
                    _ => reply.data(&data.to_vec()),
                },
                Err(error) => reply.error(errno(error)),
            },
        );
    }

    fn write(
        &self,
        request: &Request,
        number: INodeNo,
        fh: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let id = opened(number, fh);
        let cred = Cred {
            uid: request.uid(),
            gid: request.gid(),
            groups: Vec::new(),
            opened: true,
        };
        let data = IoBuf::copy_from(data);
        self.run(
            move |fs| async move { fs.write(id, offset, data, Stability::Unstable, &cred).await },
            move |outcome| match outcome {
                Ok(written) => reply.written(u32::try_from(written.count).unwrap_or(u32::MAX)),
                Err(error) => reply.error(errno(error)),
            },
        );
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        // Closing a file makes nothing durable (close(2)); there is nothing of ours to hand over.
        reply.ok();
    }

    fn release(
        &self,
        _: &Request,
        number: INodeNo,
        fh: FileHandle,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        let id = opened(number, fh);
        self.run(move |fs| async move { fs.release(id).await }, finish(reply));
    }

    fn fsync(&self, _: &Request, number: INodeNo, fh: FileHandle, _: bool, reply: ReplyEmpty) {
        let id = opened(number, fh);
        self.run(
            move |fs| async move { fs.commit(id, 0, 0).await },
            finish(reply),
        );
    }

    fn opendir(&self, _: &Request, number: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        let id = known!(self, number, reply);
        reply.opened(FileHandle(id.generation), FopenFlags::empty());
    }

    fn readdir(
        &self,
        _: &Request,
        number: INodeNo,
        _fh: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let dir = known!(self, number, reply);
        let adapter = Arc::clone(self);
        self.run(
            move |fs| async move { list(&fs, dir, offset, false).await },
            move |outcome| match outcome {
                Ok(listing) => {
                    for entry in &listing.entries {
                        let number = if entry.object == dir.object {
                            adapter.nodes().number(dir)
                        } else {
                            entry.object
                        };
                        let kind = kind(entry.file_type.unwrap_or(FileType::Regular));
                        let name = OsStr::from_bytes(&entry.name);
                        if reply.add(INodeNo(number), entry.cookie, kind, name) {
                            break;
                        }
                    }
                    reply.ok();
                }
                Err(error) => reply.error(errno(error)),
            },
        );
    }

    fn readdirplus(
        &self,
        _: &Request,
        number: INodeNo,
        _fh: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        let dir = known!(self, number, reply);
        let adapter = Arc::clone(self);
        self.run(
            move |fs| async move { list(&fs, dir, offset, true).await },
            move |outcome| match outcome {
                Ok(listing) => {
                    for entry in &listing.entries {
                        // A file that went while it was listed has no attributes; it is left out.
                        let Some(attr) = &entry.attr else { continue };
                        let dots = entry.name == b"." || entry.name == b"..";
                        let number = adapter.nodes().number(attr.id);
                        let full = reply.add(
                            INodeNo(number),
                            entry.cookie,
                            OsStr::from_bytes(&entry.name),
                            &KEEP,
                            &attributes(number, attr),
                            Generation(attr.id.generation),
                        );
                        if full {
                            break;
                        }
                        // The kernel counts a lookup for each entry it is given but these two.
                        if !dots {
                            adapter.nodes().learn(attr.id);
                        }
                    }
                    reply.ok();
                }
                Err(error) => reply.error(errno(error)),
            },
        );
    }

    fn fsyncdir(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        self.run(|fs| async move { fs.sync().await }, finish(reply));
    }

    fn statfs(&self, _: &Request, _number: INodeNo, reply: ReplyStatfs) {
        self.run(
            |fs| async move { fs.statfs().await },
            move |outcome| match outcome {
                // Counted in sectors, as OpenZFS does, so that small file systems show exact sizes.
                Ok(stat) => reply.statfs(
                    stat.total_bytes / 512,
                    stat.free_bytes / 512,
                    stat.available_bytes / 512,
                    stat.total_files,
                    stat.free_files,
                    stat.block_size,
                    stat.name_max,
                    512,
                ),
                Err(error) => reply.error(errno(error)),
            },
        );
    }

    fn setxattr(
        &self,
        request: &Request,
        number: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        let id = known!(self, number, reply);
        let mode = match flags {
            0 => XattrMode::Any,
            XATTR_CREATE => XattrMode::Create,
            XATTR_REPLACE => XattrMode::Replace,
            _ => return reply.error(Errno::EINVAL),
        };
        let (name, value) = (name.as_bytes().to_vec(), value.to_vec());
        let cred = credentials(request);
        self.run(
            move |fs| async move { fs.set_xattr(id, &name, &value, mode, &cred).await },
            finish(reply),
        );
    }

    fn getxattr(
        &self,
        request: &Request,
        number: INodeNo,
        name: &OsStr,
        size: u32,
        reply: ReplyXattr,
    ) {
        let id = known!(self, number, reply);
        let (name, cred) = (name.as_bytes().to_vec(), credentials(request));
        self.run(
            move |fs| async move { fs.xattr(id, &name, &cred).await },
            xattr_answer(reply, size),
        );
    }

    fn listxattr(&self, request: &Request, number: INodeNo, size: u32, reply: ReplyXattr) {
        let id = known!(self, number, reply);
        let cred = credentials(request);
        self.run(
            move |fs| async move {
                let mut names = Vec::new();
                for xattr in fs.xattrs(id, &cred).await? {
                    names.extend_from_slice(&xattr.name);
                    names.push(0);
                }
                Ok(names)
            },
            xattr_answer(reply, size),
        );
    }

    fn removexattr(&self, request: &Request, number: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let id = known!(self, number, reply);
        let (name, cred) = (name.as_bytes().to_vec(), credentials(request));
        self.run(
            move |fs| async move { fs.remove_xattr(id, &name, &cred).await },
            finish(reply),
        );
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let dir = known!(self, parent, reply);
        let (name, cred) = (name.as_bytes().to_vec(), credentials(request));
        let set = new_attributes(mode, umask);
        let how = if flags & O_EXCL != 0 {
            CreateMode::Guarded
        } else {
            CreateMode::Unchecked
        };
        let adapter = Arc::clone(self);
        self.run(
            move |fs| async move {
                let made = fs.create(dir, &name, how, &set, &cred).await?;
                fs.hold(made.file.id).await
            },
            move |outcome| match outcome {
                Ok(attr) => {
                    let number = adapter.nodes().learn(attr.id);
                    reply.created(
                        &KEEP,
                        &attributes(number, &attr),
                        Generation(attr.id.generation),
                        FileHandle(attr.id.generation),
                        FopenFlags::empty(),
                    );
                }
                Err(error) => reply.error(errno(error)),
            },
        );
    }

    fn fallocate(
        &self,
        request: &Request,
        number: INodeNo,
        fh: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let id = opened(number, fh);
        let cred = Cred {
            uid: request.uid(),
            gid: request.gid(),
            groups: Vec::new(),
            opened: true,
        };
        match mode {
            m if m == FALLOC_PUNCH_HOLE | FALLOC_KEEP_SIZE => self.run(
                move |fs| async move { fs.punch(id, offset, length, &cred).await },
                finish(reply),
            ),
            // Space cannot be set aside in a copy-on-write pool; the size can.
            0 => self.run(
                move |fs| async move {
                    let end = offset.checked_add(length).ok_or(FsError::TooLarge)?;
                    if fs.getattr(id).await?.size < end {
                        let set = SetAttr {
                            size: Some(end),
                            ..SetAttr::default()
                        };
                        fs.setattr(id, &set, None, &cred).await?;
                    }
                    Ok(())
                },
                finish(reply),
            ),
            _ => reply.error(Errno::EOPNOTSUPP),
        }
    }

    fn lseek(
        &self,
        _: &Request,
        number: INodeNo,
        fh: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        let id = opened(number, fh);
        let target = match whence {
            SEEK_DATA => SeekTarget::Data,
            SEEK_HOLE => SeekTarget::Hole,
            _ => return reply.error(Errno::EINVAL),
        };
        let Ok(offset) = u64::try_from(offset) else {
            return reply.error(Errno::ENXIO);
        };
        self.run(
            move |fs| async move { fs.seek(id, offset, target).await },
            move |outcome| match outcome.map(i64::try_from) {
                Ok(Ok(found)) => reply.offset(found),
                Ok(Err(_)) => reply.error(Errno::EOVERFLOW),
                Err(error) => reply.error(errno(error)),
            },
        );
    }
}

/// Returns the file of an open file: its handle is the generation, so that it outlives its name and its inode number.
fn opened(number: INodeNo, fh: FileHandle) -> FileId {
    FileId {
        object: number.0,
        generation: fh.0,
    }
}

/// Lists a part of a directory. The kernel has checked that the caller may.
async fn list(fs: &FsHandle, dir: FileId, offset: u64, attrs: bool) -> FsResult<Listing> {
    let limit = ListLimit {
        entries: LIST_ENTRIES,
        bytes: 1 << 16,
        entry_overhead_bytes: 24,
        attrs,
    };
    fs.readdir(dir, offset, limit, &Cred::root()).await
}
