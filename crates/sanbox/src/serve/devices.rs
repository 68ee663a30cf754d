//! Volumes as block devices of this machine, at `/dev/zvol/POOL/VOLUME`.
//!
//! Each volume is a file of a small FUSE file system in the state directory, and a loop device stands on the file; the
//! kernel needs neither ublk nor NBD for it. The names below `/dev/zvol` are links to the loop devices, as OpenZFS's are
//! to its own. Only a daemon that mounts (`--mount`), as root, does this, and only for volumes whose property `volmode`
//! asks for devices. Their snapshots have devices, too, which are read-only, where the property `snapdev` says so.
//!
//! The kernel caches what goes through a device. It is told to drop that when a rollback or a receive takes the place of a
//! volume's contents; what is written to a volume by NBD or iSCSI at the same time is not seen there. Does not know what is
//! on a volume.

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, UNIX_EPOCH};

use engine::property::{DatasetKind, Value};
use engine::{
    DatasetFilter, DatasetInfo, Invalidation, IoBuf, PoolHandle, PropertyQuery, Stability,
    VolumeError, VolumeHandle, Watch,
};
use fuser::{
    Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo,
    LockOwner, MountOption, Notifier, OpenFlags, ReplyAttr, ReplyData, ReplyDirectory, ReplyEmpty,
    ReplyEntry, ReplyOpen, ReplyWrite, Request, Session, SessionUnmounter, WriteFlags,
};

use crate::appliance::context::Context;
use crate::appliance::followed::{FollowedDatasets, ServedPool};
use crate::logging::DEVICES;
use crate::paths;
use crate::redacted::is_redacted;
use crate::serve::fuse::Mounts;

/// Where the links are.
const LINKS: &str = "/dev/zvol";
/// The kernel's number for the root directory.
const ROOT: u64 = 1;
/// Sizes change, so nothing about a file is trusted for long.
const TTL: Duration = Duration::ZERO;
/// How often the thread that watches a volume looks whether the device is still there.
const WATCH_INTERVAL: Duration = Duration::from_secs(1);

/// See the module.
pub(crate) struct Devices {
    context: Weak<Context>,
    mounts: Weak<Mounts>,
    /// Where the files are mounted.
    directory: PathBuf,
    files: Arc<Files>,
    volumes: FollowedDatasets,
    /// Snapshots of some volume are to have devices.
    shows_snapshots: AtomicBool,
    state: tokio::sync::Mutex<AttachedDevices>,
}

#[derive(Default)]
struct AttachedDevices {
    attached: BTreeMap<u64, Attached>,
    mount: Option<FilesMount>,
    /// Devices cannot be made here; this was said.
    given_up: bool,
}

/// The mount of the files.
struct FilesMount {
    unmounter: SessionUnmounter,
    kernel: Arc<Notifier>,
}

/// A volume that has a device.
#[derive(Clone, Debug)]
struct Attached {
    dataset: String,
    device: PathBuf,
    size: u64,
    file: u64,
    /// Set when the device goes: its watch ends.
    detached: Arc<AtomicBool>,
}

/// The files, by number.
#[derive(Default)]
struct Files(Mutex<HashMap<u64, File>>);

#[derive(Clone)]
struct File {
    volume: VolumeHandle,
    name: String,
    size: u64,
}

impl Files {
    fn locked(&self) -> MutexGuard<'_, HashMap<u64, File>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn file(&self, number: INodeNo) -> Option<File> {
        self.locked().get(&number.0).cloned()
    }
}

/// A volume that wants a device.
struct Wanted {
    pool: PoolHandle,
    dataset: String,
    object: u64,
    size: u64,
    read_only: bool,
}

impl Wanted {
    fn new(pool: &PoolHandle, info: &DatasetInfo, read_only: bool) -> Self {
        let size = info.property("volsize");
        Self {
            pool: pool.clone(),
            dataset: info.name.clone(),
            object: info.object,
            size: size.and_then(|size| size.value.number()).unwrap_or(0),
            read_only,
        }
    }
}

/// The snapshots of a volume; none where they cannot be listed, since the pool says why elsewhere.
async fn snapshots(pool: &PoolHandle, volume: &str) -> Vec<DatasetInfo> {
    let filter = DatasetFilter {
        root: volume.to_owned(),
        depth: Some(1),
        kinds: vec![DatasetKind::Snapshot],
    };
    let query = PropertyQuery::Named(vec!["volsize".to_owned()]);
    let mut found = pool.datasets(&filter, &query).await.unwrap_or_default();
    let own = format!("{volume}@");
    found.retain(|info| info.name.starts_with(&own));
    found
}

impl Devices {
    /// The devices of no volume yet; the guard of `mounts` sees to their mount, too.
    pub(crate) fn new(context: &Arc<Context>, mounts: &Arc<Mounts>) -> Self {
        let properties = ["volsize", "readonly", "volmode", "snapdev", "redacted"];
        Self {
            volumes: FollowedDatasets::new(&[DatasetKind::Volume], &properties, |_| true),
            mounts: Arc::downgrade(mounts),
            context: Arc::downgrade(context),
            directory: context.state().path().join("volumes"),
            files: Arc::default(),
            shows_snapshots: AtomicBool::new(false),
            state: tokio::sync::Mutex::default(),
        }
    }

    /// Makes the devices those of the volumes there are, by name and size.
    pub(crate) async fn follow(&self) {
        let wanted = self.wanted().await;
        let mut state = self.state.lock().await;
        if state.given_up || wanted.is_empty() && state.attached.is_empty() {
            return;
        }
        let gone: Vec<u64> = state
            .attached
            .keys()
            .filter(|guid| !wanted.contains_key(guid))
            .copied()
            .collect();
        for guid in gone {
            self.detach(&mut state, guid).await;
        }
        for (guid, volume) in wanted {
            if let Some(attached) = state.attached.get_mut(&guid) {
                if attached.dataset != volume.dataset {
                    unlink(&attached.dataset).await;
                    link(&volume.dataset, &attached.device).await;
                    attached.dataset = volume.dataset;
                }
                if attached.size != volume.size {
                    attached.size = volume.size;
                    if let Some(file) = self.files.locked().get_mut(&attached.file) {
                        file.size = volume.size;
                    }
                    let device = attached.device.clone();
                    let _ = losetup(vec!["-c".into(), device.into()]).await;
                }
                continue;
            }
            if let Err(why) = self.attach(&mut state, guid, &volume).await {
                tracing::warn!(target: DEVICES, "volumes get no devices here: {why}");
                state.given_up = true;
                return;
            }
        }
    }

    /// As [`Self::follow`], after snapshots may have come or gone.
    pub(crate) async fn follow_snapshots(&self) {
        if self.shows_snapshots.load(Ordering::Relaxed) {
            self.follow().await;
        }
    }

    /// The volumes of all open pools that are to have devices.
    async fn wanted(&self) -> BTreeMap<u64, Wanted> {
        let mut wanted = BTreeMap::new();
        let Some(context) = self.context.upgrade() else {
            return wanted;
        };
        let mut shows_snapshots = false;
        let redacted_too = context.tunables().redacted_devices;
        for ServedPool { pool, datasets } in self.volumes.read(&context).await {
            for info in datasets {
                let is = |name: &str, number| {
                    let property = info.property(name);
                    property.is_some_and(|property| property.value == Value::Number(number))
                };
                // volmode: 0 default, 1 full, 2 dev, 3 none. What was received redacted has no device, as it is not mounted, unless that is
                // allowed for all.
                // OpenZFS: module/os/linux/zfs/zvol_os.c, zvol_os_create_minor
                if is("volmode", 3) || is_redacted(&info) && !redacted_too {
                    continue;
                }
                let read_only = pool.readonly() || is("readonly", 1);
                wanted.insert(info.guid, Wanted::new(&pool, &info, read_only));
                // snapdev: 0 hidden, 1 visible.
                if is("snapdev", 1) {
                    shows_snapshots = true;
                    for snapshot in snapshots(&pool, &info.name).await {
                        wanted.insert(snapshot.guid, Wanted::new(&pool, &snapshot, true));
                    }
                }
            }
        }
        self.shows_snapshots
            .store(shows_snapshots, Ordering::Relaxed);
        wanted
    }

    async fn attach(
        &self,
        state: &mut AttachedDevices,
        guid: u64,
        volume: &Wanted,
    ) -> Result<(), String> {
        let kernel = match &state.mount {
            Some(mount) => mount.kernel.clone(),
            None => state.mount.insert(self.mount().await?).kernel.clone(),
        };
        let name = format!("{guid:016x}");
        let handle = volume.pool.volume_by_number(volume.object, guid);
        // Begun before the kernel reads anything.
        let watch = handle.watch();
        let file = {
            let mut files = self.files.locked();
            let number = files.keys().max().copied().unwrap_or(ROOT) + 1;
            files.insert(
                number,
                File {
                    volume: handle,
                    name: name.clone(),
                    size: volume.size,
                },
            );
            number
        };
        let mut arguments: Vec<std::ffi::OsString> = vec!["--show".into(), "-f".into()];
        if volume.read_only {
            arguments.push("-r".into());
        }
        arguments.push(self.directory.join(name).into());
        let device = match losetup(arguments).await {
            Ok(device) => PathBuf::from(device.trim()),
            Err(why) => {
                self.files.locked().remove(&file);
                return Err(why);
            }
        };
        link(&volume.dataset, &device).await;
        let attached = Attached {
            dataset: volume.dataset.clone(),
            device,
            size: volume.size,
            file,
            detached: Arc::default(),
        };
        let watched = attached.follow_contents(watch, kernel);
        state.attached.insert(guid, attached);
        watched
    }

    /// Takes a volume's device away, also one in use.
    async fn detach(&self, state: &mut AttachedDevices, guid: u64) {
        let Some(attached) = state.attached.remove(&guid) else {
            return;
        };
        attached.detached.store(true, Ordering::Relaxed);
        unlink(&attached.dataset).await;
        if let Err(why) = losetup(vec!["-d".into(), attached.device.into()]).await {
            tracing::warn!(target: DEVICES, "{}: {why}", attached.dataset);
        }
        self.files.locked().remove(&attached.file);
    }

    /// Whether the device of a volume is in use.
    pub(crate) async fn in_use(&self, guid: u64) -> bool {
        let attached = self.state.lock().await.attached.get(&guid).cloned();
        match attached {
            Some(attached) => in_use(&attached.device).await,
            None => false,
        }
    }

    /// Takes away the devices of the volumes and snapshots that `which` says, by name, unless one is in use.
    ///
    /// # Errors
    /// The dataset in use. Then nothing was changed.
    pub(crate) async fn release(&self, which: impl Fn(&str) -> bool) -> Result<(), String> {
        let mut state = self.state.lock().await;
        let concerned: Vec<(u64, Attached)> = state
            .attached
            .iter()
            .filter(|(_, attached)| which(&attached.dataset))
            .map(|(guid, attached)| (*guid, attached.clone()))
            .collect();
        for (_, attached) in &concerned {
            if in_use(&attached.device).await {
                return Err(attached.dataset.clone());
            }
        }
        for (guid, _) in concerned {
            self.detach(&mut state, guid).await;
        }
        Ok(())
    }

    /// Takes everything away, at the end of the process.
    pub(crate) async fn close(&self) {
        let mut state = self.state.lock().await;
        let all: Vec<u64> = state.attached.keys().copied().collect();
        for guid in all {
            self.detach(&mut state, guid).await;
        }
        if let Some(mut mount) = state.mount.take() {
            let _ = paths::call(&self.directory, move || mount.unmounter.unmount()).await;
        }
    }

    async fn mount(&self) -> Result<FilesMount, String> {
        let directory = self.directory.clone();
        let guard = self.mounts.upgrade().and_then(|mounts| mounts.guard());
        let service = Service {
            files: self.files.clone(),
            runtime: tokio::runtime::Handle::current(),
        };
        let start = move || -> Result<FilesMount, String> {
            let text = |error: std::io::Error| error.to_string();
            paths::clear_dead(&directory);
            std::fs::create_dir_all(&directory).map_err(text)?;
            let mut config = Config::default();
            config.mount_options = vec![
                MountOption::FSName("sanbox-volumes".to_owned()),
                MountOption::NoDev,
                MountOption::NoSuid,
                MountOption::NoExec,
            ];
            let mut session = Session::new(service, &directory, &config).map_err(text)?;
            let guarded = guard.zip(paths::connection_at(&directory));
            if let Some((guard, connection)) = &guarded {
                guard.add(*connection);
            }
            let unmounter = session.unmount_callable();
            let kernel = Arc::new(session.notifier());
            std::thread::Builder::new()
                .name("fuse volumes".to_owned())
                .spawn(move || {
                    if let Err(error) = session.run() {
                        tracing::warn!(target: DEVICES, "the files of volumes are gone: {error}");
                    }
                    if let Some((guard, connection)) = guarded {
                        guard.ended(connection);
                    }
                })
                .map_err(text)?;
            Ok(FilesMount { unmounter, kernel })
        };
        paths::call(&self.directory, start).await?
    }
}

impl Attached {
    /// Has the kernel drop what it holds of the volume whenever something else takes the place of its contents, on a thread of its own: the
    /// kernel may hold locks that requests under way release.
    fn follow_contents(&self, watch: Watch, kernel: Arc<Notifier>) -> Result<(), String> {
        let (device, file) = (self.device.clone(), INodeNo(self.file));
        let detached = self.detached.clone();
        let follow = move || {
            while !detached.load(Ordering::Relaxed) {
                match watch.next(WATCH_INTERVAL) {
                    Ok(Some(event)) if event.invalidation == Invalidation::Everything => {
                        // The file's pages first: those of the device would be filled from them again. The kernel may have dropped them by
                        // itself, which is no failure.
                        let _ = kernel.inval_inode(file, 0, 0);
                        drop_pages(&device);
                    }
                    Ok(_) => {}
                    Err(()) => return,
                }
            }
        };
        std::thread::Builder::new()
            .name("volume contents".to_owned())
            .spawn(follow)
            .map(drop)
            .map_err(|error| error.to_string())
    }
}

/// Drops the pages that the kernel holds of a device. It holds some only while the device is open; those that were written and not yet
/// handed on stay.
fn drop_pages(device: &Path) {
    use rustix::fs::{Advice, Mode, OFlags, fadvise, open};
    let opened = open(device, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
    let dropped = opened.and_then(|device| fadvise(device, 0, None, Advice::DontNeed));
    if let Err(error) = dropped {
        tracing::warn!(target: DEVICES, "{} may show what was there before: {error}", device.display());
    }
}

/// Runs losetup(8) and returns what it prints.
async fn losetup(arguments: Vec<std::ffi::OsString>) -> Result<String, String> {
    let run = move || Command::new("losetup").args(arguments).output();
    let output = paths::call(Path::new("losetup"), run)
        .await?
        .map_err(|error| format!("losetup: {error}"))?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    } else {
        Err(String::from_utf8_lossy(&output.stderr).trim().to_owned())
    }
}

/// Whether a device is held exclusively: by a mounted file system, a volume group, a swap area.
async fn in_use(device: &Path) -> bool {
    let opened_device = device.to_owned();
    let open = move || {
        use rustix::fs::{Mode, OFlags};
        let flags = OFlags::RDONLY | OFlags::EXCL | OFlags::CLOEXEC;
        rustix::fs::open(&opened_device, flags, Mode::empty())
    };
    let opened = paths::call(device, open).await;
    matches!(opened, Ok(Err(rustix::io::Errno::BUSY)))
}

async fn link(dataset: &str, device: &Path) {
    let path = Path::new(LINKS).join(dataset);
    let (link, device) = (path.clone(), device.to_owned());
    let make = move || {
        link.parent()
            .map_or(Ok(()), std::fs::create_dir_all)
            .and_then(|()| {
                if link.is_symlink() {
                    std::fs::remove_file(&link)?;
                }
                std::os::unix::fs::symlink(device, &link)
            })
            .map_err(|error| error.to_string())
    };
    if let Err(error) = paths::call(&path, make).await.flatten() {
        tracing::warn!(target: DEVICES, "{}: {error}", path.display());
    }
}

async fn unlink(dataset: &str) {
    let path = Path::new(LINKS).join(dataset);
    let link = path.clone();
    let remove = move || {
        if link.is_symlink() {
            let _ = std::fs::remove_file(&link);
        }
        // Directories that are empty now go, up to the links' own.
        let above = link.ancestors().skip(1);
        for directory in above.take_while(|directory| directory.starts_with(LINKS)) {
            if directory == Path::new(LINKS) || std::fs::remove_dir(directory).is_err() {
                break;
            }
        }
    };
    if let Err(error) = paths::call(&path, remove).await {
        tracing::warn!(target: DEVICES, "{error}");
    }
}

/// The file system of the files.
struct Service {
    files: Arc<Files>,
    runtime: tokio::runtime::Handle,
}

fn attr(number: u64, kind: FileType, size: u64) -> FileAttr {
    FileAttr {
        ino: INodeNo(number),
        size,
        blocks: size.div_ceil(512),
        atime: UNIX_EPOCH,
        mtime: UNIX_EPOCH,
        ctime: UNIX_EPOCH,
        crtime: UNIX_EPOCH,
        kind,
        perm: if number == ROOT { 0o700 } else { 0o600 },
        nlink: 1,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 4096,
        flags: 0,
    }
}

fn errno(error: &VolumeError) -> Errno {
    match error {
        VolumeError::NoSpace => Errno::ENOSPC,
        VolumeError::ReadOnly => Errno::EROFS,
        VolumeError::OutOfRange => Errno::EINVAL,
        VolumeError::NotSupported => Errno::EOPNOTSUPP,
        VolumeError::KeyNotLoaded => Errno::EACCES,
        _ => Errno::EIO,
    }
}

impl Service {
    fn attr_of(&self, number: INodeNo) -> Option<FileAttr> {
        if number.0 == ROOT {
            return Some(attr(ROOT, FileType::Directory, 0));
        }
        let file = self.files.file(number)?;
        Some(attr(number.0, FileType::RegularFile, file.size))
    }

    /// Runs a change of a file as a task, and answers.
    fn change<F, Work>(&self, number: INodeNo, reply: ReplyEmpty, work: F)
    where
        F: FnOnce(VolumeHandle) -> Work,
        Work: Future<Output = Result<(), VolumeError>> + Send + 'static,
    {
        let Some(file) = self.files.file(number) else {
            return reply.error(Errno::ENOENT);
        };
        let work = work(file.volume);
        self.runtime.spawn(async move {
            match work.await {
                Ok(()) => reply.ok(),
                Err(error) => reply.error(errno(&error)),
            }
        });
    }
}

impl Filesystem for Service {
    fn lookup(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let found = self
            .files
            .locked()
            .iter()
            .find(|(_, file)| parent.0 == ROOT && OsStr::new(&file.name) == name)
            .map(|(number, file)| attr(*number, FileType::RegularFile, file.size));
        match found {
            Some(attr) => reply.entry(&TTL, &attr, Generation(0)),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _req: &Request, ino: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        match self.attr_of(ino) {
            Some(attr) => reply.attr(&TTL, &attr),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn open(&self, _req: &Request, _ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        reply.opened(FileHandle(0), FopenFlags::empty());
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
        let Some(file) = self.files.file(ino) else {
            return reply.error(Errno::ENOENT);
        };
        let len = u64::from(size).min(file.size.saturating_sub(offset));
        let len = usize::try_from(len).unwrap_or(0);
        if len == 0 {
            return reply.data(&[]);
        }
        self.runtime.spawn(async move {
            match file.volume.read(offset, len).await {
                Ok(pieces) => match pieces.as_slice() {
                    [piece] => reply.data(piece),
                    _ => {
                        let parts: Vec<&[u8]> = pieces.iter().map(|piece| &**piece).collect();
                        reply.data(&parts.concat());
                    }
                },
                Err(error) => reply.error(errno(&error)),
            }
        });
    }

    fn write(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let Some(file) = self.files.file(ino) else {
            return reply.error(Errno::ENOENT);
        };
        let len = u32::try_from(data.len()).unwrap_or(u32::MAX);
        let data = IoBuf::copy_from(data);
        self.runtime.spawn(async move {
            let written = file.volume.write(offset, data, Stability::Unstable);
            match written.await {
                Ok(()) => reply.written(len),
                Err(error) => reply.error(errno(&error)),
            }
        });
    }

    fn flush(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _lock_owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        reply.ok();
    }

    fn fsync(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        _datasync: bool,
        reply: ReplyEmpty,
    ) {
        self.change(ino, reply, |volume| async move { volume.flush().await });
    }

    fn fallocate(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        // fallocate(2): PUNCH_HOLE is 2, ZERO_RANGE 16; a volume has its size.
        if mode & (2 | 16) == 0 {
            return reply.ok();
        }
        self.change(ino, reply, move |volume| async move {
            volume.zero(offset, length, Stability::Unstable).await
        });
    }

    fn readdir(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let mut entries: Vec<(u64, FileType, String)> = vec![
            (ROOT, FileType::Directory, ".".to_owned()),
            (ROOT, FileType::Directory, "..".to_owned()),
        ];
        if ino.0 == ROOT {
            let files = self.files.locked();
            let mut named: Vec<_> = files
                .iter()
                .map(|(number, file)| (*number, FileType::RegularFile, file.name.clone()))
                .collect();
            named.sort_by_key(|(number, ..)| *number);
            entries.extend(named);
        }
        let from = usize::try_from(offset).unwrap_or(usize::MAX);
        for (index, (number, kind, name)) in entries.into_iter().enumerate().skip(from) {
            if reply.add(INodeNo(number), index as u64 + 1, kind, &name) {
                break;
            }
        }
        reply.ok();
    }
}
