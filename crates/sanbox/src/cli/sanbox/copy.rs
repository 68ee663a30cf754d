//! `sanbox get` and `sanbox put`: files and whole trees out of a dataset and into one, with types,
//! modes, owners, times, hard links, symbolic links, holes, device nodes and extended attributes.
//!
//! Trees are walked with a list of work, not by recursion, and hard links are found by file number.
//! Directories get their times and modes last, when nothing is put into them any more.

use std::collections::{BTreeMap, VecDeque};
use std::ffi::{OsStr, OsString};
use std::fs::{self, File, Metadata};
use std::io;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::{DirBuilderExt as _, FileExt as _, FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use engine::{
    Attr, CreateMode, Cred, DeviceNumber, FileId, FileType, FsError, FsHandle, IoBuf, SeekTarget,
    SetAttr, SetTime, Stability, Timestamp, XattrMode,
};
use rustix::fs::{AtFlags, CWD, Mode, SeekFrom, Timespec, Timestamps, XattrFlags};

use super::Arguments;
use super::directory::entries;
use super::remote_path::{RemotePath, walk};
use crate::cli::{Exit, Outcome, Session, out::Stream};
use crate::undelegated::retried;

/// Bytes moved at once.
const CHUNK_BYTES: u64 = 1 << 20;
/// Chunks under way at once, so that disks and checksums work while others are copied.
const CHUNKS_AHEAD: usize = 8;

/// What went wrong with one file.
#[derive(Debug, thiserror::Error)]
pub(super) enum CopyError {
    #[error("{0}")]
    Stored(#[from] FsError),
    #[error("{0}")]
    Local(#[from] io::Error),
    #[error("the extended attribute '{name}' cannot be kept here: {source}")]
    Attribute { name: String, source: io::Error },
    #[error("a socket cannot be kept in an archive")]
    Socket,
    #[error("the file became shorter while it was read; the rest is zeros")]
    Shrank,
}

impl From<rustix::io::Errno> for CopyError {
    fn from(errno: rustix::io::Errno) -> Self {
        Self::Local(errno.into())
    }
}

/// A copy under way.
pub(super) struct CopyJob<'a> {
    pub(super) session: &'a Session,
    pub(super) fs: FsHandle,
    pub(super) cred: Cred,
    pub(super) verbose: bool,
    /// Only root may give files away or make device nodes.
    is_root: bool,
    /// Whether an object was not copied, or not all of it.
    pub(super) failed: bool,
}

impl CopyJob<'_> {
    pub(super) fn report_error(&mut self, path: &Path, error: &CopyError) {
        let mut line = path.as_os_str().as_bytes().to_vec();
        line.extend_from_slice(format!(": {error}\n").as_bytes());
        self.session.out.push(Stream::Err, &line);
        self.failed = true;
    }

    /// Returns what a directory holds; what cannot be read is reported under its name below `path`.
    pub(super) async fn children(&mut self, dir: &Attr, path: &Path) -> Vec<(Vec<u8>, Attr)> {
        let list = match entries(&self.fs, dir.id, &self.cred).await {
            Ok(list) => list,
            Err(error) => {
                self.report_error(path, &error.into());
                return Vec::new();
            }
        };
        let mut children = Vec::with_capacity(list.len());
        for entry in list {
            let found = match entry.attr {
                Some(attr) => Ok(attr),
                None => self.fs.lookup(dir.id, &entry.name, &self.cred).await,
            };
            match found {
                Ok(found) => children.push((entry.name, found)),
                Err(error) => {
                    let below = path.join(OsStr::from_bytes(&entry.name));
                    self.report_error(&below, &error.into());
                }
            }
        }
        children
    }

    /// Returns the extended attributes of a file.
    pub(super) async fn xattrs(&self, id: FileId) -> Result<Vec<(Vec<u8>, Vec<u8>)>, FsError> {
        let mut xattrs = Vec::new();
        for stored in self.fs.xattrs(id, &self.cred).await? {
            let value = self.fs.xattr(id, &stored.name, &self.cred).await?;
            xattrs.push((stored.name.clone(), value.to_vec()));
        }
        Ok(xattrs)
    }

    pub(super) fn list_name(&self, path: &Path) {
        if self.verbose {
            let mut line = path.as_os_str().as_bytes().to_vec();
            line.push(b'\n');
            self.session.out.push(Stream::Out, &line);
        }
    }
}

/// Finds what is to be copied out of a dataset.
pub(super) async fn open<'a>(
    session: &'a Session,
    args: &Arguments,
    from: &str,
) -> Result<(CopyJob<'a>, RemotePath, Attr), Exit> {
    let remote = RemotePath::of(session, from)?;
    let job = job(session, args, &remote).await?;
    let attr = walk(&job.fs, &remote.path, &job.cred)
        .await
        .map_err(|error| session.fail(format!("{remote}: {error}")))?;
    Ok((job, remote, attr))
}

async fn job<'a>(
    session: &'a Session,
    args: &Arguments,
    remote: &RemotePath,
) -> Result<CopyJob<'a>, Exit> {
    Ok(CopyJob {
        session,
        fs: remote.open(session).await?,
        cred: Cred {
            opened: true,
            ..Cred::root()
        },
        verbose: args.has('v'),
        is_root: rustix::process::geteuid().is_root(),
        failed: false,
    })
}

// ---- out of a dataset ----

pub(super) async fn get(session: &Session, args: &Arguments) -> Outcome {
    let [from, to] = args.operands.as_slice() else {
        return Err(session.misuse("expected a place and a destination"));
    };
    if RemotePath::parse(from).is_none() && !from.contains(':') {
        return super::volume::get(session, from, to).await;
    }
    let (mut job, remote, attr) = open(session, args, from).await?;
    let mut target = session.path(to);
    if attr.file_type == FileType::Directory {
        if !args.has('r') {
            return Err(session.fail(format!("{remote} is a directory: use -r to copy it")));
        }
    } else if target.is_dir()
        && let Some(name) = remote.path.last()
    {
        target.push(name);
    }
    let mut linked: BTreeMap<FileId, PathBuf> = BTreeMap::new();
    let mut directories: Vec<(PathBuf, Attr)> = Vec::new();
    let top = target.clone();
    let mut work = vec![(attr, target)];
    while let Some((attr, target)) = work.pop() {
        job.list_name(&target);
        let is_linked = attr.links > 1 && attr.file_type != FileType::Directory;
        if let Some(first) = linked.get(&attr.id) {
            let _ = fs::remove_file(&target);
            if let Err(error) = fs::hard_link(first, &target) {
                job.report_error(&target, &error.into());
            }
            continue;
        }
        let copied = get_one(&job, &attr, &target).await;
        // A name whose copy failed is none to link to: the next one is tried for itself.
        if is_linked && matches!(copied, Ok(()) | Err(CopyError::Attribute { .. })) {
            linked.insert(attr.id, target.clone());
        }
        if let Err(error) = copied {
            let path = match error {
                CopyError::Stored(_) => source_of(&remote, &top, &target),
                _ => target,
            };
            job.report_error(&path, &error);
            continue;
        }
        if attr.file_type == FileType::Directory {
            for (name, found) in job.children(&attr, &target).await {
                work.push((found, target.join(OsStr::from_bytes(&name))));
            }
            directories.push((target, attr));
        }
        session.out.flush().await?;
    }
    for (path, attr) in directories.into_iter().rev() {
        if let Err(error) = set_attributes(&job, &attr, &path).await {
            job.report_error(&path, &error);
        }
    }
    if job.failed { Err(Exit(1)) } else { Ok(()) }
}

/// Names what is copied to `target`, where `remote` is copied to `top`.
fn source_of(remote: &RemotePath, top: &Path, target: &Path) -> PathBuf {
    let source = PathBuf::from(remote.to_string());
    match target.strip_prefix(top) {
        Ok(below) if below.as_os_str().is_empty() => source,
        Ok(below) => source.join(below),
        Err(_) => target.to_owned(),
    }
}

async fn get_one(job: &CopyJob<'_>, attr: &Attr, target: &Path) -> Result<(), CopyError> {
    if !matches!(attr.file_type, FileType::Directory | FileType::Regular) {
        match fs::remove_file(target) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
            _ => {}
        }
    }
    match attr.file_type {
        FileType::Directory => {
            match fs::DirBuilder::new().mode(0o700).create(target) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists && target.is_dir() => {}
                other => other?,
            }
            // Its attributes come last.
            return Ok(());
        }
        FileType::Regular => get_data(job, attr, target).await?,
        FileType::Symlink => {
            let text = job.fs.readlink(attr.id).await?;
            std::os::unix::fs::symlink(OsStr::from_bytes(&text), target)?;
        }
        FileType::Fifo | FileType::Socket | FileType::Character | FileType::Block => {
            let kind = match attr.file_type {
                FileType::Fifo => rustix::fs::FileType::Fifo,
                FileType::Socket => rustix::fs::FileType::Socket,
                FileType::Character => rustix::fs::FileType::CharacterDevice,
                _ => rustix::fs::FileType::BlockDevice,
            };
            let number = rustix::fs::makedev(attr.rdev.major, attr.rdev.minor);
            rustix::fs::mknodat(CWD, target, kind, Mode::from_raw_mode(0o600), number)?;
        }
    }
    set_attributes(job, attr, target).await
}

/// Copies data under a name of its own first: a file that cannot be read whole neither takes the place of an older copy nor looks like one.
async fn get_data(job: &CopyJob<'_>, attr: &Attr, target: &Path) -> Result<(), CopyError> {
    let beside = target.parent().unwrap_or(Path::new("/"));
    let partial = tempfile::Builder::new()
        .prefix(".sanbox-get-")
        .tempfile_in(beside)?;
    copy_data(job, attr, partial.as_file()).await?;
    partial.persist(target).map_err(|failed| failed.error)?;
    Ok(())
}

async fn copy_data(job: &CopyJob<'_>, attr: &Attr, file: &File) -> Result<(), CopyError> {
    // What a client of NFSv4 writes in its own cache comes here first.
    let attr = &retried(|| async {
        job.fs.check_written_elsewhere(attr.id, 0)?;
        job.fs.getattr(attr.id).await
    })
    .await?;
    file.set_len(attr.size)?;
    let mut reader = DataReader::new(job, attr);
    while let Some((offset, pieces)) = reader.next().await? {
        let mut at = offset;
        for piece in &pieces {
            file.write_all_at(piece, at)?;
            at += piece.len() as u64;
        }
    }
    Ok(())
}

/// The data of a file in order, without its holes. The part being read lies ahead of the part that was returned.
pub(super) struct DataReader<'a> {
    job: &'a CopyJob<'a>,
    id: FileId,
    size: u64,
    /// Where the next read begins, and where the data that it lies in ends.
    next: u64,
    data_end: u64,
    ahead: VecDeque<(
        u64,
        tokio::task::JoinHandle<Result<engine::ReadData, FsError>>,
    )>,
}

impl<'a> DataReader<'a> {
    pub(super) fn new(job: &'a CopyJob<'_>, attr: &Attr) -> Self {
        Self {
            job,
            id: attr.id,
            size: attr.size,
            next: 0,
            data_end: 0,
            ahead: VecDeque::new(),
        }
    }

    /// Returns the next chunk and where it lies; `None` at the end. A chunk of a file that became shorter meanwhile is shorter.
    pub(super) async fn next(&mut self) -> Result<Option<(u64, Vec<IoBuf>)>, CopyError> {
        while self.ahead.len() < CHUNKS_AHEAD && self.next < self.size {
            if self.next >= self.data_end {
                let Some((start, end)) =
                    data_after(self.job, self.id, self.next, self.size).await?
                else {
                    self.next = self.size;
                    break;
                };
                (self.next, self.data_end) = (start, end);
            }
            let (offset, end) = (self.next, (self.next + CHUNK_BYTES).min(self.data_end));
            let (fs, cred, id) = (self.job.fs.clone(), self.job.cred.clone(), self.id);
            let len = usize::try_from(end - offset).unwrap_or(0);
            let read = tokio::spawn(async move { fs.read(id, offset, len, &cred).await });
            self.ahead.push_back((offset, read));
            self.next = end;
        }
        let Some((offset, read)) = self.ahead.pop_front() else {
            return Ok(None);
        };
        let data = read.await.map_err(io::Error::other)??;
        Ok(Some((offset, data.pieces)))
    }
}

/// Returns where the first data at or after `offset` begins and ends, of a file with `size` bytes.
pub(super) async fn data_after(
    job: &CopyJob<'_>,
    id: FileId,
    offset: u64,
    size: u64,
) -> Result<Option<(u64, u64)>, CopyError> {
    let start = match job.fs.seek(id, offset, SeekTarget::Data).await {
        Ok(start) => start,
        Err(FsError::NoSuchOffset) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let end = job.fs.seek(id, start, SeekTarget::Hole).await;
    let end = end.unwrap_or(size).min(size);
    Ok((start < end).then_some((start, end)))
}

/// Gives a file its owner, extended attributes, mode and times, in the order in which one does not
/// undo the other.
async fn set_attributes(job: &CopyJob<'_>, attr: &Attr, target: &Path) -> Result<(), CopyError> {
    if job.is_root {
        std::os::unix::fs::lchown(target, Some(attr.uid), Some(attr.gid))?;
    }
    // What this machine's file system cannot keep does not cost the file its mode and times.
    let mut lost = None;
    for (name, value) in job.xattrs(attr.id).await? {
        let name = OsStr::from_bytes(&name);
        match rustix::fs::lsetxattr(target, name, &value, XattrFlags::empty()) {
            Ok(()) => {}
            // Namespaces that need more rights than we have are left out for those who have none.
            Err(rustix::io::Errno::PERM) if !job.is_root => {}
            Err(errno) => {
                let name = name.to_string_lossy().into_owned();
                lost = Some(CopyError::Attribute {
                    name,
                    source: errno.into(),
                });
            }
        }
    }
    if attr.file_type != FileType::Symlink {
        let mode = Mode::from_raw_mode(attr.mode);
        rustix::fs::chmodat(CWD, target, mode, AtFlags::empty())?;
    }
    let spec = |time: Timestamp| Timespec {
        tv_sec: time.seconds,
        tv_nsec: time.nanoseconds.into(),
    };
    let times = Timestamps {
        last_access: spec(attr.atime),
        last_modification: spec(attr.mtime),
    };
    rustix::fs::utimensat(CWD, target, &times, AtFlags::SYMLINK_NOFOLLOW)?;
    lost.map_or(Ok(()), Err)
}

// ---- into a dataset ----

pub(super) async fn put(session: &Session, args: &Arguments) -> Outcome {
    let [from, to] = args.operands.as_slice() else {
        return Err(session.misuse("expected a source and a place"));
    };
    let remote = RemotePath::of(session, to)?;
    let source = session.path(from);
    let mut job = job(session, args, &remote).await?;
    let metadata = fs::symlink_metadata(&source)
        .map_err(|error| session.fail(format!("{}: {error}", source.display())))?;
    if metadata.is_dir() && !args.has('r') {
        return Err(session.fail(format!(
            "{} is a directory: use -r to copy it",
            source.display()
        )));
    }
    // Where the copy goes: a directory and a name in it, or the root itself.
    let mut path = remote.path.clone();
    if !metadata.is_dir() {
        let into = walk(&job.fs, &path, &job.cred).await;
        if into.is_ok_and(|attr| attr.file_type == FileType::Directory) {
            match source.file_name() {
                Some(name) => path.push(name.to_string_lossy().into_owned()),
                None => return Err(session.fail(format!("{}: has no name", source.display()))),
            }
        }
    }
    let mut linked: BTreeMap<(u64, u64), FileId> = BTreeMap::new();
    let mut directories: Vec<(PathBuf, Metadata, FileId)> = Vec::new();
    let mut work: Vec<(PathBuf, FileId, Vec<u8>)> = Vec::new();
    match path.split_last() {
        Some((name, parents)) => {
            let parent = walk(&job.fs, parents, &job.cred)
                .await
                .map_err(|error| session.fail(format!("{remote}: {error}")))?;
            work.push((source, parent.id, name.as_bytes().to_vec()));
        }
        None => {
            let root = job
                .fs
                .root()
                .await
                .map_err(|e| session.fail(format!("{remote}: {e}")))?;
            put_children(&mut job, &source, root.id, &mut work);
            directories.push((source, metadata, root.id));
        }
    }
    while let Some((source, dir, name)) = work.pop() {
        job.list_name(&source);
        match put_one(&job, &source, dir, &name, &mut linked).await {
            Ok(Some((metadata, id))) => {
                put_children(&mut job, &source, id, &mut work);
                directories.push((source, metadata, id));
            }
            Ok(None) => {}
            Err(error) => job.report_error(&source, &error),
        }
        session.out.flush().await?;
    }
    for (path, metadata, id) in directories.into_iter().rev() {
        if let Err(error) = set_stored_attributes(&job, &path, &metadata, id, true).await {
            job.report_error(&path, &error);
        }
    }
    if let Err(error) = job.fs.sync().await {
        return Err(session.fail(format!(
            "{remote}: {error}; what was copied may not be stored"
        )));
    }
    if job.failed { Err(Exit(1)) } else { Ok(()) }
}

fn put_children(
    job: &mut CopyJob<'_>,
    source: &Path,
    dir: FileId,
    work: &mut Vec<(PathBuf, FileId, Vec<u8>)>,
) {
    let list = match fs::read_dir(source) {
        Ok(list) => list,
        Err(error) => return job.report_error(source, &error.into()),
    };
    for entry in list {
        match entry {
            Ok(entry) => work.push((entry.path(), dir, entry.file_name().into_vec())),
            Err(error) => job.report_error(source, &error.into()),
        }
    }
}

/// Copies one file; of a directory, returns what its content goes into.
async fn put_one(
    job: &CopyJob<'_>,
    source: &Path,
    dir: FileId,
    name: &[u8],
    linked: &mut BTreeMap<(u64, u64), FileId>,
) -> Result<Option<(Metadata, FileId)>, CopyError> {
    let metadata = fs::symlink_metadata(source)?;
    let kind = metadata.file_type();
    let existing = match job.fs.lookup(dir, name, &job.cred).await {
        Ok(attr) => Some(attr),
        Err(FsError::NotFound) => None,
        Err(error) => return Err(error.into()),
    };
    if let Some(existing) = &existing {
        match (existing.file_type == FileType::Directory, kind.is_dir()) {
            (true, true) => return Ok(Some((metadata, existing.id))),
            (true, false) => return Err(FsError::IsDirectory.into()),
            (false, true) => return Err(FsError::Exists.into()),
            (false, false) => {
                job.fs.remove(dir, name, &job.cred).await?;
            }
        }
    }
    let set = SetAttr {
        mode: Some(metadata.mode() & 0o7777),
        uid: Some(metadata.uid()),
        gid: Some(metadata.gid()),
        ..SetAttr::default()
    };
    if metadata.nlink() > 1
        && !kind.is_dir()
        && let Some(first) = linked.get(&(metadata.dev(), metadata.ino()))
    {
        job.fs.link(*first, dir, name, &job.cred).await?;
        return Ok(None);
    }
    let made = if kind.is_dir() {
        job.fs.mkdir(dir, name, &set, &job.cred).await?
    } else if kind.is_symlink() {
        let target: OsString = fs::read_link(source)?.into_os_string();
        job.fs
            .symlink(dir, name, target.as_bytes(), &set, &job.cred)
            .await?
    } else if kind.is_file() {
        job.fs
            .create(dir, name, CreateMode::Guarded, &set, &job.cred)
            .await?
    } else {
        let file_type = if kind.is_fifo() {
            FileType::Fifo
        } else if kind.is_socket() {
            FileType::Socket
        } else if kind.is_char_device() {
            FileType::Character
        } else {
            FileType::Block
        };
        let number = metadata.rdev();
        let rdev = DeviceNumber {
            major: rustix::fs::major(number),
            minor: rustix::fs::minor(number),
        };
        job.fs
            .mknod(dir, name, file_type, rdev, &set, &job.cred)
            .await?
    };
    let id = made.file.id;
    if metadata.nlink() > 1 && !kind.is_dir() {
        linked.insert((metadata.dev(), metadata.ino()), id);
    }
    if kind.is_dir() {
        return Ok(Some((metadata, id)));
    }
    if kind.is_file() {
        put_data(job, source, &metadata, id).await?;
    }
    set_stored_attributes(job, source, &metadata, id, false).await?;
    Ok(None)
}

async fn put_data(
    job: &CopyJob<'_>,
    source: &Path,
    metadata: &Metadata,
    id: FileId,
) -> Result<(), CopyError> {
    let file = File::open(source)?;
    let size = metadata.len();
    let mut under_way = std::collections::VecDeque::new();
    let (mut at, mut data_end) = (0, 0);
    let mut written_end = 0;
    while at < size {
        if at >= data_end {
            at = match rustix::fs::seek(&file, SeekFrom::Data(at)) {
                Ok(start) => start,
                Err(rustix::io::Errno::NXIO) => break,
                // A file system that knows no holes.
                Err(_) => at,
            };
            data_end = rustix::fs::seek(&file, SeekFrom::Hole(at))
                .unwrap_or(size)
                .min(size);
            if at >= data_end {
                break;
            }
        }
        let len = usize::try_from((data_end - at).min(CHUNK_BYTES)).unwrap_or(0);
        let mut buffer = vec![0; len];
        let mut filled = 0;
        while filled < len {
            let count = file.read_at(&mut buffer[filled..], at + filled as u64)?;
            if count == 0 {
                break;
            }
            filled += count;
        }
        buffer.truncate(filled);
        if buffer.is_empty() {
            break;
        }
        if under_way.len() >= CHUNKS_AHEAD
            && let Some(write) = under_way.pop_front()
        {
            finish(write).await?;
        }
        let (handle, cred, offset) = (job.fs.clone(), job.cred.clone(), at);
        at += filled as u64;
        written_end = at;
        under_way.push_back(tokio::spawn(async move {
            let data = IoBuf::from(buffer);
            handle
                .write(id, offset, data, Stability::Unstable, &cred)
                .await
        }));
    }
    for write in under_way {
        finish(write).await?;
    }
    if written_end < size {
        let set = SetAttr {
            size: Some(size),
            ..SetAttr::default()
        };
        job.fs.setattr(id, &set, None, &job.cred).await?;
    }
    Ok(())
}

async fn finish(
    write: tokio::task::JoinHandle<Result<engine::Written, FsError>>,
) -> Result<(), CopyError> {
    write.await.map_err(io::Error::other)??;
    Ok(())
}

/// Gives a file in the dataset the source's extended attributes and times, and a directory that was
/// there before also its owner and mode.
async fn set_stored_attributes(
    job: &CopyJob<'_>,
    source: &Path,
    metadata: &Metadata,
    id: FileId,
    is_directory: bool,
) -> Result<(), CopyError> {
    for name in xattr_names(source)? {
        let mut value = vec![0; 65536];
        let len = rustix::fs::lgetxattr(source, OsStr::from_bytes(&name), &mut value[..])?;
        value.truncate(len);
        match job
            .fs
            .set_xattr(id, &name, &value, XattrMode::Any, &job.cred)
            .await
        {
            // Kept by this machine for its own use (such as SELinux labels); not part of the file.
            Err(FsError::NotSupported) if !name.starts_with(b"user.") => {}
            other => {
                other?;
            }
        }
    }
    let time = |seconds: i64, nanoseconds: i64| {
        let nanoseconds = u32::try_from(nanoseconds).unwrap_or(0);
        Some(SetTime::Client(Timestamp {
            seconds,
            nanoseconds,
        }))
    };
    let set = SetAttr {
        mode: is_directory.then(|| metadata.mode() & 0o7777),
        uid: is_directory.then(|| metadata.uid()),
        gid: is_directory.then(|| metadata.gid()),
        atime: time(metadata.atime(), metadata.atime_nsec()),
        mtime: time(metadata.mtime(), metadata.mtime_nsec()),
        ..SetAttr::default()
    };
    job.fs.setattr(id, &set, None, &job.cred).await?;
    Ok(())
}

fn xattr_names(source: &Path) -> Result<Vec<Vec<u8>>, CopyError> {
    let mut buffer = vec![0; 65536];
    let len = match rustix::fs::llistxattr(source, &mut buffer[..]) {
        Ok(len) => len,
        Err(rustix::io::Errno::NOTSUP) => 0,
        Err(errno) => return Err(errno.into()),
    };
    let names = buffer[..len]
        .split(|byte| *byte == 0)
        .filter(|name| !name.is_empty());
    Ok(names.map(<[u8]>::to_vec).collect())
}
