//! `sanbox get` and `sanbox put`: files and whole trees out of a dataset and into one, with types,
//! modes, owners, times, hard links, symbolic links, holes, device nodes and extended attributes.
//!
//! Trees are walked with a list of work, not by recursion, and hard links are found by file number.
//! Directories get their times and modes last, when nothing is put into them any more.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File, Metadata};
use std::io;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::{
    DirBuilderExt as _, FileExt as _, FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _,
};
use std::path::{Path, PathBuf};

use engine::{
    Attr, CreateMode, Cred, DeviceNumber, FileId, FileType, FsError, FsHandle, IoBuf, SeekTarget,
    SetAttr, SetTime, Stability, Timestamp, XattrMode,
};
use rustix::fs::{AtFlags, CWD, Mode, SeekFrom, Timespec, Timestamps, XattrFlags};

use super::Given;
use super::place::{Place, walk};
use super::walk::entries;
use crate::cli::{Exit, Outcome, Session, out::Stream};

/// Bytes moved at once.
const CHUNK_BYTES: u64 = 1 << 20;
/// Chunks under way at once, so that disks and checksums work while others are copied.
const CHUNKS_AHEAD: usize = 8;

/// What went wrong with one file.
#[derive(Debug, thiserror::Error)]
enum CopyError {
    #[error("{0}")]
    Inside(#[from] FsError),
    #[error("{0}")]
    Outside(#[from] io::Error),
    #[error("the extended attribute '{name}' cannot be kept here: {source}")]
    Attribute { name: String, source: io::Error },
}

impl From<rustix::io::Errno> for CopyError {
    fn from(errno: rustix::io::Errno) -> Self {
        Self::Outside(errno.into())
    }
}

/// A copy under way.
struct Job<'a> {
    session: &'a Session,
    fs: FsHandle,
    cred: Cred,
    verbose: bool,
    /// Only root may give files away or make device nodes.
    is_root: bool,
    failed: bool,
}

impl Job<'_> {
    fn complain(&mut self, path: &Path, error: &CopyError) {
        let mut line = path.as_os_str().as_bytes().to_vec();
        line.extend_from_slice(format!(": {error}\n").as_bytes());
        self.session.out.push(Stream::Err, &line);
        self.failed = true;
    }

    fn tell(&self, path: &Path) {
        if self.verbose {
            let mut line = path.as_os_str().as_bytes().to_vec();
            line.push(b'\n');
            self.session.out.push(Stream::Out, &line);
        }
    }
}

async fn job<'a>(session: &'a Session, given: &Given, place: &Place) -> Result<Job<'a>, Exit> {
    Ok(Job {
        session,
        fs: place.open(session).await?,
        cred: Cred {
            opened: true,
            ..Cred::root()
        },
        verbose: given.has('v'),
        is_root: rustix::process::geteuid().is_root(),
        failed: false,
    })
}

// ---- out of a dataset ----

pub(super) async fn get(session: &Session, given: &Given) -> Outcome {
    let [from, to] = given.operands.as_slice() else {
        return Err(session.misuse("expected a place and a destination"));
    };
    if Place::parse(from).is_none() && !from.contains(':') {
        return super::volume::get(session, from, to).await;
    }
    let place = Place::of(session, from)?;
    let mut job = job(session, given, &place).await?;
    let attr = walk(&job.fs, &place.path, &job.cred)
        .await
        .map_err(|error| session.fail(format!("{place}: {error}")))?;
    let mut target = session.path(to);
    if attr.file_type == FileType::Directory {
        if !given.has('r') {
            return Err(session.fail(format!("{place} is a directory: use -r to copy it")));
        }
    } else if target.is_dir()
        && let Some(name) = place.path.last()
    {
        target.push(name);
    }
    let mut linked: BTreeMap<FileId, PathBuf> = BTreeMap::new();
    let mut directories: Vec<(PathBuf, Attr)> = Vec::new();
    let mut work = vec![(attr, target)];
    while let Some((attr, target)) = work.pop() {
        job.tell(&target);
        if attr.links > 1 && attr.file_type != FileType::Directory {
            if let Some(first) = linked.get(&attr.id) {
                let _ = fs::remove_file(&target);
                if let Err(error) = fs::hard_link(first, &target) {
                    job.complain(&target, &error.into());
                }
                continue;
            }
            linked.insert(attr.id, target.clone());
        }
        if let Err(error) = get_one(&job, &attr, &target).await {
            job.complain(&target, &error);
            continue;
        }
        if attr.file_type == FileType::Directory {
            match entries(&job.fs, attr.id, &job.cred).await {
                Ok(list) => {
                    for entry in list {
                        let below = target.join(OsStr::from_bytes(&entry.name));
                        let found = match entry.attr {
                            Some(attr) => Ok(attr),
                            None => job.fs.lookup(attr.id, &entry.name, &job.cred).await,
                        };
                        match found {
                            Ok(found) => work.push((found, below)),
                            Err(error) => job.complain(&below, &error.into()),
                        }
                    }
                }
                Err(error) => job.complain(&target, &error.into()),
            }
            directories.push((target, attr));
        }
        session.out.flush().await?;
    }
    for (path, attr) in directories.into_iter().rev() {
        if let Err(error) = dress(&job, &attr, &path).await {
            job.complain(&path, &error);
        }
    }
    if job.failed { Err(Exit(1)) } else { Ok(()) }
}

async fn get_one(job: &Job<'_>, attr: &Attr, target: &Path) -> Result<(), CopyError> {
    if attr.file_type != FileType::Directory {
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
    dress(job, attr, target).await
}

async fn get_data(job: &Job<'_>, attr: &Attr, target: &Path) -> Result<(), CopyError> {
    let file = fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(target)?;
    file.set_len(attr.size)?;
    // The part being read lies ahead of the part being written; holes are skipped.
    let mut ahead = std::collections::VecDeque::new();
    let (mut next, mut data_end) = (0, 0);
    loop {
        while ahead.len() < CHUNKS_AHEAD && next < attr.size {
            if next >= data_end {
                next = match job.fs.seek(attr.id, next, SeekTarget::Data).await {
                    Ok(start) => start,
                    Err(FsError::NoSuchOffset) => attr.size,
                    Err(error) => return Err(error.into()),
                };
                if next >= attr.size {
                    break;
                }
                data_end = job
                    .fs
                    .seek(attr.id, next, SeekTarget::Hole)
                    .await
                    .unwrap_or(attr.size);
            }
            let end = (next + CHUNK_BYTES).min(data_end).min(attr.size);
            let (handle, cred, id, offset) = (job.fs.clone(), job.cred.clone(), attr.id, next);
            let len = usize::try_from(end - next).unwrap_or(0);
            let read = tokio::spawn(async move { handle.read(id, offset, len, &cred).await });
            ahead.push_back((offset, read));
            next = end.max(next + 1);
        }
        let Some((offset, read)) = ahead.pop_front() else {
            break;
        };
        let data = read.await.map_err(io::Error::other)??;
        let mut at = offset;
        for piece in &data.pieces {
            file.write_all_at(piece, at)?;
            at += piece.len() as u64;
        }
    }
    Ok(())
}

/// Gives a file its owner, extended attributes, mode and times, in the order in which one does not
/// undo the other.
async fn dress(job: &Job<'_>, attr: &Attr, target: &Path) -> Result<(), CopyError> {
    if job.is_root {
        std::os::unix::fs::lchown(target, Some(attr.uid), Some(attr.gid))?;
    }
    // What this machine's file system cannot keep does not cost the file its mode and times.
    let mut lost = None;
    for stored in job.fs.xattrs(attr.id, &job.cred).await? {
        let value = job.fs.xattr(attr.id, &stored.name, &job.cred).await?;
        let name = OsStr::from_bytes(&stored.name);
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

pub(super) async fn put(session: &Session, given: &Given) -> Outcome {
    let [from, to] = given.operands.as_slice() else {
        return Err(session.misuse("expected a source and a place"));
    };
    let place = Place::of(session, to)?;
    let source = session.path(from);
    let mut job = job(session, given, &place).await?;
    let metadata = fs::symlink_metadata(&source)
        .map_err(|error| session.fail(format!("{}: {error}", source.display())))?;
    if metadata.is_dir() && !given.has('r') {
        return Err(session.fail(format!(
            "{} is a directory: use -r to copy it",
            source.display()
        )));
    }
    // Where the copy goes: a directory and a name in it, or the root itself.
    let mut path = place.path.clone();
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
                .map_err(|error| session.fail(format!("{place}: {error}")))?;
            work.push((source, parent.id, name.as_bytes().to_vec()));
        }
        None => {
            let root = job
                .fs
                .root()
                .await
                .map_err(|e| session.fail(format!("{place}: {e}")))?;
            put_children(&mut job, &source, root.id, &mut work);
            directories.push((source, metadata, root.id));
        }
    }
    while let Some((source, dir, name)) = work.pop() {
        job.tell(&source);
        match put_one(&job, &source, dir, &name, &mut linked).await {
            Ok(Some((metadata, id))) => {
                put_children(&mut job, &source, id, &mut work);
                directories.push((source, metadata, id));
            }
            Ok(None) => {}
            Err(error) => job.complain(&source, &error),
        }
        session.out.flush().await?;
    }
    for (path, metadata, id) in directories.into_iter().rev() {
        if let Err(error) = dress_inside(&job, &path, &metadata, id, true).await {
            job.complain(&path, &error);
        }
    }
    if let Err(error) = job.fs.sync().await {
        return Err(session.fail(format!(
            "{place}: {error}; what was copied may not be stored"
        )));
    }
    if job.failed { Err(Exit(1)) } else { Ok(()) }
}

fn put_children(
    job: &mut Job<'_>,
    source: &Path,
    dir: FileId,
    work: &mut Vec<(PathBuf, FileId, Vec<u8>)>,
) {
    let list = match fs::read_dir(source) {
        Ok(list) => list,
        Err(error) => return job.complain(source, &error.into()),
    };
    for entry in list {
        match entry {
            Ok(entry) => work.push((entry.path(), dir, entry.file_name().into_vec())),
            Err(error) => job.complain(source, &error.into()),
        }
    }
}

/// Copies one file; of a directory, returns what its content goes into.
async fn put_one(
    job: &Job<'_>,
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
    dress_inside(job, source, &metadata, id, false).await?;
    Ok(None)
}

async fn put_data(
    job: &Job<'_>,
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
async fn dress_inside(
    job: &Job<'_>,
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
