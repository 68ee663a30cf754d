//! The operations of FUSE on one file system.
//!
//! Threads that read requests only decode them; each request becomes a task of the tokio runtime,
//! which asks the engine and answers the kernel, so that many are under way at once.
//!
//! Permissions are checked by the kernel (`default_permissions`), which knows all groups of the
//! caller, by modes and POSIX lists; operations then run as root, and new files get the caller as
//! owner. What is done to snapshots in `.zfs/snapshot` is done as the caller, and where NFSv4 lists are
//! in force everything is: then both the kernel and the list have to allow it, as on OpenZFS. What the kernel caches and was changed from
//! elsewhere (NFS, a rollback) it is told to forget, see [`super::nodes`].

use std::cell::RefCell;
use std::ffi::OsStr;
use std::future::Future;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Waker};
use std::time::{Duration, SystemTime};

use engine::{
    Access, Attr, CloneOf, CreateMode, Cred, FileId, FileType, FsError, IoBuf, LockedFile,
    SeekTarget, SetAttr, SetTime, SpinPolicy, Stability, XattrMode, flags, is_control, is_unopened,
    spin_thread_on,
};
use fuser::{
    BsdFileFlags, CopyFileRangeFlags, Errno, FileHandle, Filesystem, FopenFlags, Generation,
    INodeNo, InitFlags, IoctlFlags, KernelConfig, LockOwner, OpenFlags, RenameFlags, ReplyAttr,
    ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyIoctl,
    ReplyLock, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow,
    WriteFlags,
};

use super::Lists;
use super::convert::{caller, device_in, errno, kind, root, timestamp};
use super::ioctl::AskedOfFile;
use super::locks::{KernelLock, Locker};
use super::nodes::{MountedView, Shared};
use crate::undelegated::retried;

/// How long names and attributes are trusted.
const TTL: Duration = Duration::from_secs(1);
/// Largest write the kernel is to send.
const WRITE_BYTES_MAX: u32 = 1 << 20;

/// Most bytes cloned for one request: the answer counts them in 32 bits. A whole number of blocks of any size.
const CLONE_BYTES_MAX: u64 = 1 << 30;

/// See the module.
pub(super) struct Adapter {
    shared: Arc<Shared>,
    runtime: tokio::runtime::Handle,
}

impl Adapter {
    pub(super) fn new(shared: Arc<Shared>, runtime: tokio::runtime::Handle) -> Self {
        Self { shared, runtime }
    }

    /// On whose behalf an operation runs, see the module.
    fn acting(&self, req: &Request) -> Cred {
        match self.shared.lists {
            Lists::Nfsv4 => caller(req),
            Lists::Off | Lists::Posix => root(),
        }
    }

    /// On whose behalf a name in a directory is changed, see the module.
    fn acting_in(&self, req: &Request, dir: INodeNo) -> Cred {
        match self.shared.at(dir.0) {
            Ok((_, dir)) if is_control(dir) => caller(req),
            _ => self.acting(req),
        }
    }

    /// Runs `work` as a task and hands what it comes to to `answer`. While clients of NFSv4 give back a file that it changes, it
    /// is tried again.
    fn run<T, F, Work, Answer>(&self, work: F, answer: Answer)
    where
        F: FnOnce(Arc<Shared>) -> Work + Clone + Send + 'static,
        Work: Future<Output = Result<T, FsError>> + Send + 'static,
        Answer: FnOnce(Result<T, FsError>) + Send + 'static,
        T: Send + 'static,
    {
        let shared = self.shared.clone();
        self.begin(async move {
            let outcome = retried(move || work.clone()(shared.clone())).await;
            answer(outcome);
        });
    }

    /// Begins a task on this thread: what needs no wait, or a short one, is answered here, and what waits for the pool has been sent to it
    /// when another thread takes over. One thread spins at a time: the others leave their processors to who answers.
    fn begin(&self, task: impl Future<Output = ()> + Send + 'static) {
        thread_local! {
            static POLICY: RefCell<SpinPolicy> = RefCell::default();
        }
        static SPINS: AtomicBool = AtomicBool::new(false);
        let mut task = Box::pin(task);
        let _within = self.runtime.enter();
        let ended = if SPINS.swap(true, Ordering::Acquire) {
            let mut context = Context::from_waker(Waker::noop());
            task.as_mut().poll(&mut context).is_ready()
        } else {
            let ended = POLICY.with_borrow_mut(|policy| spin_thread_on(policy, &mut task));
            SPINS.store(false, Ordering::Release);
            ended.is_some()
        };
        if !ended {
            drop(self.runtime.spawn(task));
        }
    }

    /// Runs what makes or finds a file under a name, and answers with its entry.
    fn entry<F, Work>(&self, parent: INodeNo, name: &OsStr, reply: ReplyEntry, work: F)
    where
        F: FnOnce(Arc<Shared>) -> Work + Clone + Send + 'static,
        Work: Future<Output = Result<(MountedView, Attr), FsError>> + Send + 'static,
    {
        let shared = self.shared.clone();
        let name = name.as_bytes().to_vec();
        self.run(work, move |outcome| {
            let known = outcome.and_then(|(mounted, attr)| {
                let ino = shared.remember(&mounted, attr.id, parent.0, &name)?;
                Ok((mounted, ino, attr))
            });
            match known {
                Ok((mounted, ino, attr)) => {
                    let generation = Generation(attr.id.generation);
                    let ttl = trust(&mounted, &attr);
                    reply.entry(&ttl, &shared.attr(ino, &attr), generation);
                }
                Err(error) => reply.error(errno(error)),
            }
        });
    }

    /// Returns what the table of locks calls a file.
    fn locked(&self, ino: INodeNo) -> Result<LockedFile, Errno> {
        let (mounted, file) = self.shared.at(ino.0).map_err(errno)?;
        let fs = mounted.fs.guid();
        Ok(LockedFile { fs, file })
    }

    fn locker(
        &self,
        req: &Request,
        ino: INodeNo,
        handle: FileHandle,
        owner: LockOwner,
    ) -> Result<Locker, Errno> {
        Ok(Locker {
            file: self.locked(ino)?,
            owner: owner.0,
            handle: handle.0,
            thread: req.pid(),
        })
    }

    fn empty<F, Work>(&self, reply: ReplyEmpty, work: F)
    where
        F: FnOnce(Arc<Shared>) -> Work + Clone + Send + 'static,
        Work: Future<Output = Result<(), FsError>> + Send + 'static,
    {
        self.run(work, move |outcome| match outcome {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(errno(error)),
        });
    }
}

/// Waits until no client of NFSv4 has a file delegated: those that do lock what they read in their own caches.
async fn undelegated(shared: &Shared, ino: INodeNo) -> Result<(), FsError> {
    let (mounted, id) = shared.at(ino.0)?;
    retried(|| std::future::ready(mounted.fs.check_delegations(id, 0))).await
}

/// How long a file's attributes are trusted: not at all while a client of NFSv4 writes it, who knows them alone.
fn trust(mounted: &MountedView, attr: &Attr) -> Duration {
    match mounted.fs.writer(attr.id) {
        Some(_) => Duration::ZERO,
        None => TTL,
    }
}

impl Filesystem for Adapter {
    fn init(&mut self, _req: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        // Each is a wish; older kernels have fewer.
        for wish in [
            InitFlags::FUSE_ASYNC_READ,
            InitFlags::FUSE_BIG_WRITES,
            InitFlags::FUSE_MAX_PAGES,
            InitFlags::FUSE_PARALLEL_DIROPS,
            InitFlags::FUSE_DO_READDIRPLUS,
            InitFlags::FUSE_READDIRPLUS_AUTO,
            // It is told of each change by another way, so that it need not drop a file's pages for a time that is new.
            InitFlags::FUSE_EXPLICIT_INVAL_DATA,
            InitFlags::FUSE_ATOMIC_O_TRUNC,
            InitFlags::FUSE_POSIX_LOCKS,
            // Set-id bits and capabilities go here, when content or owner change: else Linux asks for the latter before each write.
            InitFlags::FUSE_HANDLE_KILLPRIV_V2,
        ] {
            let _ = config.add_capabilities(wish);
        }
        if self.shared.lists == Lists::Posix {
            // The kernel then checks lists, and leaves umasks to us: lists for new files replace them.
            let wishes = InitFlags::FUSE_POSIX_ACL | InitFlags::FUSE_DONT_MASK;
            if config.add_capabilities(wishes).is_err() {
                return Err(std::io::Error::new(
                    std::io::ErrorKind::Unsupported,
                    "this kernel's FUSE has no access control lists (acltype=posix)",
                ));
            }
        }
        let _ = config.set_max_write(WRITE_BYTES_MAX);
        let _ = config.set_max_readahead(WRITE_BYTES_MAX);
        let _ = config.set_time_granularity(Duration::from_nanos(1));
        Ok(())
    }

    fn lookup(&self, req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let (wanted, cred, process) = (name.as_bytes().to_vec(), self.acting(req), req.pid());
        self.entry(parent, name, reply, move |shared| async move {
            let found = shared.find(parent.0, &wanted, &cred).await;
            if matches!(found, Err(FsError::NotFound)) && shared.real_names.is_too_long(&wanted) {
                shared.real_names.missed(process, parent.0);
            }
            found
        });
    }

    fn opendir(&self, req: &Request, ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        if self.shared.real_names.opens_in_vain(req.pid(), ino.0) {
            return reply.error(Errno::EOPNOTSUPP);
        }
        reply.opened(FileHandle(0), FopenFlags::empty());
    }

    fn forget(&self, _req: &Request, ino: INodeNo, nlookup: u64) {
        self.shared.forget(ino.0, nlookup);
    }

    fn getattr(&self, _req: &Request, ino: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        self.run(
            move |shared| async move {
                let (mounted, id) = shared.at(ino.0)?;
                mounted.fs.check_written_elsewhere(id, 0)?;
                let attr = mounted.fs.getattr(id).await?;
                Ok(shared.attr(ino.0, &attr))
            },
            move |outcome| match outcome {
                Ok(attr) => reply.attr(&TTL, &attr),
                Err(error) => reply.error(errno(error)),
            },
        );
    }

    fn setattr(
        &self,
        req: &Request,
        ino: INodeNo,
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
        let time = |time: TimeOrNow| match time {
            TimeOrNow::Now => SetTime::Server,
            TimeOrNow::SpecificTime(time) => SetTime::Client(timestamp(time)),
        };
        let set = SetAttr {
            mode: mode.map(|mode| mode & 0o7777),
            uid,
            gid,
            size,
            atime: atime.map(time),
            mtime: mtime.map(time),
            crtime: crtime.map(timestamp),
            ..SetAttr::default()
        };
        let mut cred = self.acting(req);
        cred.opened |= fh.is_some();
        let by_root = req.uid() == 0;
        self.run(
            move |shared| async move {
                let (mounted, id) = shared.at(ino.0)?;
                if set.size.is_some() && !by_root {
                    take_set_id(&shared, &mounted, ino, id).await?;
                }
                let change = mounted.fs.setattr(id, &set, None, &cred).await?;
                Ok(shared.attr(ino.0, &change.after))
            },
            move |outcome| match outcome {
                Ok(attr) => reply.attr(&TTL, &attr),
                Err(error) => reply.error(errno(error)),
            },
        );
    }

    fn readlink(&self, _req: &Request, ino: INodeNo, reply: ReplyData) {
        self.run(
            move |shared| async move {
                let (mounted, id) = shared.at(ino.0)?;
                mounted.fs.readlink(id).await
            },
            move |outcome| match outcome {
                Ok(target) => reply.data(&target),
                Err(error) => reply.error(errno(error)),
            },
        );
    }

    fn mknod(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        rdev: u32,
        reply: ReplyEntry,
    ) {
        let (new, uid, gid) = (name.as_bytes().to_vec(), req.uid(), req.gid());
        let cred = self.acting(req);
        self.entry(parent, name, reply, move |shared| async move {
            let (mounted, dir) = shared.at(parent.0)?;
            let file_type = FileType::of_mode(u64::from(mode)).unwrap_or(FileType::Regular);
            let mut set = owner(&mounted, dir, uid, gid).await?;
            (set.mode, set.umask) = (Some(mode & 0o7777), umask);
            let fs = &mounted.fs;
            let made = if file_type == FileType::Regular {
                fs.create(dir, &new, CreateMode::Guarded, &set, &cred)
                    .await?
            } else {
                fs.mknod(dir, &new, file_type, device_in(rdev), &set, &cred)
                    .await?
            };
            Ok((mounted, made.file))
        });
    }

    fn mkdir(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        reply: ReplyEntry,
    ) {
        let new = name.as_bytes().to_vec();
        let (uid, gid, cred) = (req.uid(), req.gid(), self.acting_in(req, parent));
        self.entry(parent, name, reply, move |shared| async move {
            let (mounted, dir) = shared.at(parent.0)?;
            if is_control(dir) {
                let set = SetAttr::default();
                mounted.fs.mkdir(dir, &new, &set, &cred).await?;
                return shared.find(parent.0, &new, &cred).await;
            }
            let mut set = owner(&mounted, dir, uid, gid).await?;
            (set.mode, set.umask) = (Some(mode & 0o7777), umask);
            let made = mounted.fs.mkdir(dir, &new, &set, &cred).await?;
            Ok((mounted, made.file))
        });
    }

    fn unlink(&self, req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let (name, cred) = (name.as_bytes().to_vec(), self.acting(req));
        self.empty(reply, move |shared| async move {
            let (mounted, dir) = shared.at(parent.0)?;
            mounted.fs.remove(dir, &name, &cred).await.map(drop)
        });
    }

    fn rmdir(&self, req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let (name, cred) = (name.as_bytes().to_vec(), self.acting_in(req, parent));
        self.empty(reply, move |shared| async move {
            let (mounted, dir) = shared.at(parent.0)?;
            mounted.fs.rmdir(dir, &name, &cred).await.map(drop)
        });
    }

    fn symlink(
        &self,
        req: &Request,
        parent: INodeNo,
        link_name: &OsStr,
        target: &Path,
        reply: ReplyEntry,
    ) {
        let (new, uid, gid) = (link_name.as_bytes().to_vec(), req.uid(), req.gid());
        let target = target.as_os_str().as_bytes().to_vec();
        let cred = self.acting(req);
        self.entry(parent, link_name, reply, move |shared| async move {
            let (mounted, dir) = shared.at(parent.0)?;
            let set = owner(&mounted, dir, uid, gid).await?;
            let made = mounted.fs.symlink(dir, &new, &target, &set, &cred).await?;
            Ok((mounted, made.file))
        });
    }

    fn rename(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        newparent: INodeNo,
        newname: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let exchange = flags == RenameFlags::RENAME_EXCHANGE;
        if !exchange && flags.intersects(!RenameFlags::RENAME_NOREPLACE) {
            return reply.error(Errno::EINVAL);
        }
        let no_replace = !exchange && !flags.is_empty();
        let (from, to) = (name.as_bytes().to_vec(), newname.as_bytes().to_vec());
        let cred = self.acting_in(req, parent);
        self.empty(reply, move |shared| async move {
            let ((mounted, from_dir), (there, to_dir)) =
                (shared.at(parent.0)?, shared.at(newparent.0)?);
            if mounted.view != there.view {
                return Err(FsError::CrossDevice);
            }
            let fs = &mounted.fs;
            if no_replace && fs.find(to_dir, &to, &root()).await.is_ok() {
                return Err(FsError::Exists);
            }
            if exchange {
                fs.exchange(from_dir, &from, to_dir, &to, &cred).await?;
                shared.renamed(parent.0, &from).await;
                shared.renamed(newparent.0, &to).await;
                return Ok(());
            }
            fs.rename(from_dir, &from, to_dir, &to, &cred).await?;
            shared.renamed(newparent.0, &to).await;
            Ok(())
        });
    }

    fn link(
        &self,
        req: &Request,
        ino: INodeNo,
        newparent: INodeNo,
        newname: &OsStr,
        reply: ReplyEntry,
    ) {
        let (new, cred) = (newname.as_bytes().to_vec(), self.acting(req));
        self.entry(newparent, newname, reply, move |shared| async move {
            let ((mounted, id), (there, dir)) = (shared.at(ino.0)?, shared.at(newparent.0)?);
            if mounted.view != there.view {
                return Err(FsError::CrossDevice);
            }
            let made = mounted.fs.link(id, dir, &new, &cred).await?;
            Ok((mounted, made.file))
        });
    }

    fn open(&self, req: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        /// `O_TRUNC` of Linux on every architecture we build for.
        const TRUNCATE: i32 = 0o1000;
        /// `O_APPEND`, likewise.
        const APPEND: i32 = 0o2000;
        // open(2): O_RDONLY is 0, O_WRONLY 1, O_RDWR 2.
        let wanted = match flags.0 & 3 {
            0 => Access::READ,
            1 => Access::MODIFY,
            _ => Access::READ | Access::MODIFY,
        };
        let (cred, handle) = (self.acting(req), self.shared.locks.new_handle());
        let by_root = req.uid() == 0;
        self.run(
            move |shared| async move {
                let (mounted, id) = shared.at(ino.0)?;
                let fs = &mounted.fs;
                if !cred.opened {
                    let got = fs.access(id, wanted, &cred).await?;
                    // Who may execute a program may have it read.
                    let runs = wanted == Access::READ
                        && fs.access(id, Access::EXECUTE, &cred).await? == Access::EXECUTE;
                    if got != wanted && !runs {
                        return Err(FsError::Access);
                    }
                }
                // The file stays until it is closed, even without a name; nor is it delegated to be written meanwhile.
                let attr = fs.hold(id).await?;
                let may = match wanted.contains(Access::MODIFY) {
                    true => check_flags(&attr, flags.0 & APPEND != 0)
                        .and_then(|()| fs.check_delegations(id, 0)),
                    false => fs.check_written_elsewhere(id, 0),
                };
                if let Err(error) = may {
                    let _ = fs.release(id).await;
                    return Err(error);
                }
                if flags.0 & TRUNCATE != 0
                    && let Err(error) = truncate(&shared, &mounted, ino, id, by_root).await
                {
                    let _ = fs.release(id).await;
                    return Err(error);
                }
                Ok(())
            },
            move |outcome| match outcome {
                Ok(()) => reply.opened(FileHandle(handle), FopenFlags::FOPEN_KEEP_CACHE),
                Err(error) => reply.error(errno(error)),
            },
        );
    }

    fn read(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        self.run(
            move |shared| async move {
                let (mounted, id) = shared.at(ino.0)?;
                mounted.fs.read(id, offset, size as usize, &root()).await
            },
            move |outcome| match outcome {
                Ok(data) => match data.pieces.as_slice() {
                    [] => reply.data(&[]),
                    [piece] => reply.data(piece),
                    _ => reply.data(&data.to_vec()),
                },
                Err(error) => reply.error(errno(error)),
            },
        );
    }

    fn write(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        /// `O_DSYNC` and `O_SYNC` of Linux share this bit.
        const SYNCHRONOUS: i32 = 0o10000;
        let stability = if flags.0 & SYNCHRONOUS != 0 {
            Stability::FileSync
        } else {
            Stability::Unstable
        };
        let data = IoBuf::copy_from(data);
        let takes_set_id = write_flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID);
        self.run(
            move |shared| async move {
                let (mounted, id) = shared.at(ino.0)?;
                if takes_set_id {
                    take_set_id(&shared, &mounted, ino, id).await?;
                }
                mounted.fs.write(id, offset, data, stability, &root()).await
            },
            move |outcome| match outcome {
                Ok(written) => reply.written(u32::try_from(written.count).unwrap_or(u32::MAX)),
                Err(error) => reply.error(errno(error)),
            },
        );
    }

    fn flush(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        lock_owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        // Samba locks nothing by the kernel (`posix locking`): the kernel does not tell of its closes any more.
        if self.shared.for_samba {
            return reply.error(Errno::ENOSYS);
        }
        if let Ok(file) = self.locked(ino) {
            self.shared.locks.closed(file, lock_owner.0);
        }
        reply.ok();
    }

    fn getlk(
        &self,
        req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        lock_owner: LockOwner,
        start: u64,
        end: u64,
        typ: i32,
        pid: u32,
        reply: ReplyLock,
    ) {
        let lock = KernelLock {
            first: start,
            last: end,
            kind: typ,
            process: pid,
        };
        let locker = self.locker(req, ino, fh, lock_owner);
        match locker.and_then(|locker| self.shared.locks.test(&locker, lock)) {
            Ok(held) => reply.locked(held.first, held.last, held.kind, held.process),
            Err(error) => reply.error(error),
        }
    }

    fn setlk(
        &self,
        req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        lock_owner: LockOwner,
        start: u64,
        end: u64,
        typ: i32,
        pid: u32,
        sleep: bool,
        reply: ReplyEmpty,
    ) {
        let lock = KernelLock {
            first: start,
            last: end,
            kind: typ,
            process: pid,
        };
        let locker = match self.locker(req, ino, fh, lock_owner) {
            Ok(locker) => locker,
            Err(error) => return reply.error(error),
        };
        let shared = self.shared.clone();
        self.runtime.spawn(async move {
            let mut set = shared.locks.set(locker, lock, sleep).await;
            if set.is_ok() && lock.is_exclusive() {
                set = undelegated(&shared, ino).await.map_err(errno);
            }
            match set {
                Ok(()) => reply.ok(),
                Err(error) => reply.error(error),
            }
        });
    }

    fn release(
        &self,
        _req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        self.shared.locks.closed_last(fh.0);
        self.empty(reply, move |shared| async move {
            let (mounted, id) = shared.at(ino.0)?;
            mounted.fs.release(id).await
        });
    }

    fn fsync(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        _datasync: bool,
        reply: ReplyEmpty,
    ) {
        self.empty(reply, move |shared| async move {
            let (mounted, id) = shared.at(ino.0)?;
            mounted.fs.commit(id, 0, 0).await.map(drop)
        });
    }

    fn fsyncdir(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        _datasync: bool,
        reply: ReplyEmpty,
    ) {
        self.empty(reply, move |shared| async move {
            let (mounted, id) = shared.at(ino.0)?;
            mounted.fs.commit(id, 0, 0).await.map(drop)
        });
    }

    fn readdir(
        &self,
        req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let cred = self.acting(req);
        let shared = self.shared.clone();
        self.begin(async move {
            match shared.list(ino.0, offset, false, &cred).await {
                Ok((mounted, listing)) => {
                    let mut fitted = 0;
                    for entry in &listing.entries {
                        let number = shared.object_number(mounted.view, entry.object);
                        let kind = kind(entry.file_type.unwrap_or(FileType::Regular));
                        let name = OsStr::from_bytes(&entry.name);
                        if reply.add(INodeNo(number), entry.cookie, kind, name) {
                            break;
                        }
                        fitted += 1;
                    }
                    shared.fitted(false, fitted, listing.entries.len());
                    reply.ok();
                }
                Err(error) => reply.error(errno(error)),
            }
        });
    }

    fn readdirplus(
        &self,
        req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        let cred = self.acting(req);
        let shared = self.shared.clone();
        self.begin(async move {
            let (mounted, listing) = match shared.list(ino.0, offset, true, &cred).await {
                Ok(listed) => listed,
                Err(error) => return reply.error(errno(error)),
            };
            let mut fitted = 0;
            for entry in &listing.entries {
                fitted += 1;
                // A file that went while we listed is left out.
                let Some(found) = &entry.attr else { continue };
                let number = shared.object_number(mounted.view, found.id.object);
                let attr = shared.attr(number, found);
                let name = OsStr::from_bytes(&entry.name);
                let generation = Generation(found.id.generation);
                // What a snapshot's directory is shows when it is looked up.
                let ttl = if is_unopened(found.id) {
                    Duration::ZERO
                } else {
                    trust(&mounted, found)
                };
                if reply.add(attr.ino, entry.cookie, name, &ttl, &attr, generation) {
                    fitted -= 1;
                    break;
                }
                // The kernel counts a lookup for each but these two.
                if !matches!(entry.name.as_slice(), b"." | b"..") {
                    let _ = shared.remember(&mounted, found.id, ino.0, &entry.name);
                }
            }
            shared.fitted(true, fitted, listing.entries.len());
            reply.ok();
        });
    }

    fn statfs(&self, _req: &Request, ino: INodeNo, reply: ReplyStatfs) {
        const UNIT: u32 = 4096;
        self.run(
            move |shared| async move { shared.at(ino.0)?.0.fs.statfs().await },
            move |outcome| match outcome {
                Ok(stat) => {
                    let blocks = |bytes: u64| bytes / u64::from(UNIT);
                    reply.statfs(
                        blocks(stat.total_bytes),
                        blocks(stat.free_bytes),
                        blocks(stat.available_bytes),
                        stat.total_files,
                        stat.free_files,
                        stat.block_size,
                        stat.name_max,
                        UNIT,
                    );
                }
                Err(error) => reply.error(errno(error)),
            },
        );
    }

    fn setxattr(
        &self,
        req: &Request,
        ino: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        let (name, value) = (name.as_bytes().to_vec(), value.to_vec());
        // setxattr(2): XATTR_CREATE is 1, XATTR_REPLACE 2.
        let mode = match flags {
            1 => XattrMode::Create,
            2 => XattrMode::Replace,
            _ => XattrMode::Any,
        };
        let cred = self.acting(req);
        self.empty(reply, move |shared| async move {
            let (mounted, id) = shared.at(ino.0)?;
            let set = mounted.fs.set_xattr(id, &name, &value, mode, &cred);
            set.await?;
            // A list changes the mode. Of POSIX lists the kernel knows that.
            if name.starts_with(b"system.") {
                shared.changed(ino.0);
            }
            Ok(())
        });
    }

    fn getxattr(&self, req: &Request, ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        let (name, cred) = (name.as_bytes().to_vec(), self.acting(req));
        self.run(
            move |shared| async move {
                let (mounted, id) = shared.at(ino.0)?;
                if let Some(wanted) = shared.real_names.wanted(&name) {
                    let mut found = mounted.fs.real_name(id, wanted, &cred).await?;
                    // Samba takes it as a string of C.
                    found.push(0);
                    return Ok(found);
                }
                mounted.fs.xattr(id, &name, &root()).await
            },
            move |outcome| answer_xattr(outcome, size, reply),
        );
    }

    fn listxattr(&self, _req: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        self.run(
            move |shared| async move {
                let mut names = Vec::new();
                let (mounted, id) = shared.at(ino.0)?;
                for stored in mounted.fs.xattrs(id, &root()).await? {
                    names.extend_from_slice(&stored.name);
                    names.push(0);
                }
                Ok(names)
            },
            move |outcome| answer_xattr(outcome, size, reply),
        );
    }

    fn removexattr(&self, req: &Request, ino: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let (name, cred) = (name.as_bytes().to_vec(), self.acting(req));
        self.empty(reply, move |shared| async move {
            let (mounted, id) = shared.at(ino.0)?;
            mounted.fs.remove_xattr(id, &name, &cred).await?;
            if name.starts_with(b"system.") {
                shared.changed(ino.0);
            }
            Ok(())
        });
    }

    fn create(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        /// `O_EXCL` of Linux.
        const EXCLUSIVE: i32 = 0o200;
        let (name, uid, gid) = (name.as_bytes().to_vec(), req.uid(), req.gid());
        let shared = self.shared.clone();
        let (named, cred) = (name.clone(), self.acting(req));
        let handle = FileHandle(self.shared.locks.new_handle());
        self.run(
            move |shared| async move {
                let (mounted, dir) = shared.at(parent.0)?;
                let mut set = owner(&mounted, dir, uid, gid).await?;
                (set.mode, set.umask) = (Some(mode & 0o7777), umask);
                let how = if flags & EXCLUSIVE != 0 {
                    CreateMode::Guarded
                } else {
                    CreateMode::Unchecked
                };
                let fs = &mounted.fs;
                let attr = fs.create_held(dir, &name, how, &set, &cred).await?.file;
                // It was opened here: who has opened it meanwhile is called at once, and reads and writes wait for that.
                let _ = mounted.fs.check_delegations(attr.id, 0);
                let ino = shared.remember(&mounted, attr.id, parent.0, &named)?;
                Ok((ino, attr))
            },
            move |outcome| match outcome {
                Ok((ino, attr)) => {
                    let generation = Generation(attr.id.generation);
                    let attr = shared.attr(ino, &attr);
                    reply.created(
                        &TTL,
                        &attr,
                        generation,
                        handle,
                        FopenFlags::FOPEN_KEEP_CACHE,
                    );
                }
                Err(error) => reply.error(errno(error)),
            },
        );
    }

    fn fallocate(
        &self,
        req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        // fallocate(2): KEEP_SIZE is 1, PUNCH_HOLE 2, ZERO_RANGE 16.
        let (keep_size, punch, zero) = (mode & 1 != 0, mode & 2 != 0, mode & 16 != 0);
        if mode & !(1 | 2 | 16) != 0 {
            return reply.error(Errno::EOPNOTSUPP);
        }
        let by_root = req.uid() == 0;
        self.empty(reply, move |shared| async move {
            let (mounted, id) = shared.at(ino.0)?;
            let fs = &mounted.fs;
            if !by_root {
                take_set_id(&shared, &mounted, ino, id).await?;
            }
            let end = offset.checked_add(length).ok_or(FsError::TooLarge)?;
            if punch || zero {
                fs.punch(id, offset, length, &root()).await?;
            }
            // Space is not set aside: every write finds new space in a copy-on-write pool.
            if !keep_size && !punch && fs.getattr(id).await?.size < end {
                let set = SetAttr {
                    size: Some(end),
                    ..SetAttr::default()
                };
                fs.setattr(id, &set, None, &root()).await?;
            }
            Ok(())
        });
    }

    fn copy_file_range(
        &self,
        req: &Request,
        ino_in: INodeNo,
        _fh_in: FileHandle,
        offset_in: u64,
        ino_out: INodeNo,
        _fh_out: FileHandle,
        offset_out: u64,
        len: u64,
        _flags: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        let by_root = req.uid() == 0;
        self.run(
            move |shared| async move {
                let (from, file) = shared.at(ino_in.0)?;
                let (to, id) = shared.at(ino_out.0)?;
                if !by_root {
                    take_set_id(&shared, &to, ino_out, id).await?;
                }
                let source = CloneOf {
                    fs: &from.fs,
                    file,
                    offset: offset_in,
                    len: len.min(CLONE_BYTES_MAX),
                    may_be_shorter: true,
                };
                let (cred, stability) = (root(), Stability::Unstable);
                let cloned = to.fs.clone_range(id, offset_out, source, stability, &cred);
                cloned.await
            },
            move |outcome| match outcome {
                Ok(cloned) => reply.written(u32::try_from(cloned.count).unwrap_or(u32::MAX)),
                // What cannot be cloned the kernel copies, where it gets this answer.
                // Linux: fs/fuse/file.c, fuse_copy_file_range
                Err(FsError::CrossDevice | FsError::Invalid | FsError::NotSupported) => {
                    reply.error(Errno::EXDEV);
                }
                Err(error) => reply.error(errno(error)),
            },
        );
    }

    fn ioctl(
        &self,
        req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        _flags: IoctlFlags,
        command: u32,
        in_data: &[u8],
        _out_size: u32,
        reply: ReplyIoctl,
    ) {
        let asked = match AskedOfFile::decode(command, in_data) {
            Ok(Some(asked)) => asked,
            Ok(None) => return reply.error(Errno::ENOTTY),
            Err(error) => return reply.error(errno(error)),
        };
        let cred = self.acting(req);
        self.run(
            move |shared| async move {
                let (mounted, id) = shared.at(ino.0)?;
                if let AskedOfFile::Change(set) = asked {
                    mounted.fs.setattr(id, &set, None, &cred).await?;
                    shared.changed(ino.0);
                    return Ok(Vec::new());
                }
                Ok(asked.answer(&mounted.fs.getattr(id).await?))
            },
            move |outcome| match outcome {
                Ok(answer) => reply.ioctl(0, &answer),
                Err(error) => reply.error(errno(error)),
            },
        );
    }

    fn lseek(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        // lseek(2): SEEK_DATA is 3, SEEK_HOLE 4; the kernel handles the others.
        let target = match whence {
            3 => SeekTarget::Data,
            4 => SeekTarget::Hole,
            _ => return reply.error(Errno::EINVAL),
        };
        let Ok(offset) = u64::try_from(offset) else {
            return reply.error(Errno::ENXIO);
        };
        self.run(
            move |shared| async move {
                let (mounted, id) = shared.at(ino.0)?;
                mounted.fs.seek(id, offset, target).await
            },
            move |outcome| match outcome.map(i64::try_from) {
                Ok(Ok(offset)) => reply.offset(offset),
                Ok(Err(_)) => reply.error(Errno::EOVERFLOW),
                Err(error) => reply.error(errno(error)),
            },
        );
    }
}

/// Checks that the flags of a file let it be opened to be written, or to be appended to.
///
/// OpenZFS: module/os/linux/zfs/zfs_vnops_os.c, zfs_open; Linux: fs/namei.c, inode_permission (immutable files)
fn check_flags(attr: &Attr, append: bool) -> Result<(), FsError> {
    let set = attr.flags;
    if set & flags::IMMUTABLE != 0 || (set & flags::APPENDONLY != 0 && !append) {
        return Err(FsError::NotPermitted);
    }
    Ok(())
}

/// Takes a file's set-id bits, before a user other than root changes its content.
async fn take_set_id(
    shared: &Shared,
    mounted: &MountedView,
    ino: INodeNo,
    id: FileId,
) -> Result<(), FsError> {
    let mode = mounted.fs.getattr(id).await?.mode;
    let is_set_gid = mode & 0o2010 == 0o2010;
    let taken = mode & 0o4000 | if is_set_gid { 0o2000 } else { 0 };
    if taken != 0 {
        let set = SetAttr {
            mode: Some(mode & 0o7777 & !taken),
            ..SetAttr::default()
        };
        mounted.fs.setattr(id, &set, None, &root()).await?;
        // The kernel takes the mode for unchanged.
        shared.changed(ino.0);
    }
    Ok(())
}

/// Makes a file empty that is being opened.
async fn truncate(
    shared: &Shared,
    mounted: &MountedView,
    ino: INodeNo,
    id: FileId,
    by_root: bool,
) -> Result<(), FsError> {
    if !by_root {
        take_set_id(shared, mounted, ino, id).await?;
    }
    let set = SetAttr {
        size: Some(0),
        ..SetAttr::default()
    };
    mounted.fs.setattr(id, &set, None, &root()).await.map(drop)
}

/// The owner of a new file: the caller, but the directory's group where it says so.
async fn owner(mounted: &MountedView, dir: FileId, uid: u32, gid: u32) -> Result<SetAttr, FsError> {
    let parent = mounted.fs.getattr(dir).await?;
    let gid = if parent.mode & 0o2000 != 0 {
        parent.gid
    } else {
        gid
    };
    Ok(SetAttr {
        uid: Some(uid),
        gid: Some(gid),
        ..SetAttr::default()
    })
}

/// Answers with a value, or its size when that was asked for.
fn answer_xattr(outcome: Result<Vec<u8>, FsError>, size: u32, reply: ReplyXattr) {
    match outcome {
        Ok(value) => match (size, u32::try_from(value.len())) {
            (0, Ok(len)) => reply.size(len),
            (size, Ok(len)) if len <= size => reply.data(&value),
            _ => reply.error(Errno::ERANGE),
        },
        Err(error) => reply.error(errno(error)),
    }
}
