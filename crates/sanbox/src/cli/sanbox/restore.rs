//! `sanbox restore`: files and whole trees out of a snapshot, back into the file system.
//!
//! A file that is there is replaced as a whole: the copy gets the name when it is complete. Directories that are there keep what the
//! snapshot does not have.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use engine::{
    Attr, CreateMode, Cred, FileId, FileType, FsError, FsHandle, SetAttr, SetTime, Stability,
    XattrMode,
};

use super::Arguments;
use super::copy::{self, CopyError, CopyJob, DataReader};
use super::remote_path::{RemotePath, walk};
use crate::cli::{Exit, Outcome, Session};

/// What the name of a copy ends in until it is complete.
const INCOMPLETE: &[u8] = b".sanbox-restore";

/// Where a copy goes.
struct Destination<'a> {
    fs: FsHandle,
    cred: &'a Cred,
    /// Files with several names: which file of the snapshot became which.
    linked: BTreeMap<FileId, FileId>,
}

/// A file to be copied: its attributes in the snapshot, and its name to be.
struct Item {
    attr: Attr,
    dir: FileId,
    name: Vec<u8>,
    /// For messages.
    path: PathBuf,
}

pub(super) async fn run(session: &Session, args: &Arguments) -> Outcome {
    let (from, to) = match args.operands.as_slice() {
        [from] => (from, None),
        [from, to] => (from, Some(to)),
        _ => return Err(session.misuse("expected a place in a snapshot")),
    };
    let (mut job, source, attr) = copy::open(session, args, from).await?;
    let target = target_of(session, &source, to)?;
    let cred = job.cred.clone();
    let mut destination = Destination {
        fs: target.open(session).await?,
        cred: &cred,
        linked: BTreeMap::new(),
    };
    let failed = |error: FsError| session.fail(format!("{target}: {error}"));
    let mut directories: Vec<(PathBuf, Attr, FileId)> = Vec::new();
    let mut work = Vec::new();
    match target.path.split_last() {
        Some((name, parents)) => {
            let parent = walk(&destination.fs, parents, &cred)
                .await
                .map_err(failed)?;
            let there = destination
                .fs
                .lookup(parent.id, name.as_bytes(), &cred)
                .await;
            if there.is_ok() && !args.has('f') {
                return Err(session.fail(format!(
                    "{target}: it exists; -f replaces it, or name another place"
                )));
            }
            work.push(Item {
                attr,
                dir: parent.id,
                name: name.as_bytes().to_vec(),
                path: Path::new("/").join(target.path.join("/")),
            });
        }
        None if args.has('f') => {
            let root = destination.fs.root().await.map_err(failed)?;
            let path = PathBuf::from("/");
            push_children(&mut job, &attr, root.id, &path, &mut work).await;
            directories.push((path, attr, root.id));
        }
        None => {
            return Err(session.fail(format!(
                "{target}: it exists; -f replaces what the snapshot has, or name another place"
            )));
        }
    }
    restore_all(
        session,
        &mut job,
        &mut destination,
        &mut work,
        &mut directories,
    )
    .await?;
    if let Err(error) = destination.fs.sync().await {
        return Err(session.fail(format!(
            "{target}: {error}; what was copied may not be stored"
        )));
    }
    if job.failed { Err(Exit(1)) } else { Ok(()) }
}

/// Where the copy goes: to the place that was named, or to where the files were.
fn target_of(
    session: &Session,
    source: &RemotePath,
    to: Option<&String>,
) -> Result<RemotePath, Exit> {
    let Some((dataset, _)) = source.dataset.split_once('@') else {
        return Err(session.fail(format!("{source}: it is in no snapshot")));
    };
    match to {
        Some(to) => RemotePath::of(session, to),
        None => Ok(RemotePath {
            dataset: dataset.to_owned(),
            path: source.path.clone(),
        }),
    }
}

/// Copies what is listed and everything below it. What cannot be copied is named, and the rest goes on.
async fn restore_all(
    session: &Session,
    job: &mut CopyJob<'_>,
    destination: &mut Destination<'_>,
    work: &mut Vec<Item>,
    directories: &mut Vec<(PathBuf, Attr, FileId)>,
) -> Outcome {
    while let Some(item) = work.pop() {
        job.list_name(&item.path);
        match restore_one(job, destination, &item).await {
            Ok(Some(id)) => {
                push_children(job, &item.attr, id, &item.path, work).await;
                directories.push((item.path, item.attr, id));
            }
            Ok(None) => {}
            Err(error) => job.report_error(&item.path, &error),
        }
        session.out.flush().await?;
    }
    // Their times last, when nothing is put into them any more.
    for (path, attr, id) in directories.iter().rev() {
        if let Err(error) = set_attributes(job, destination, attr, *id).await {
            job.report_error(path, &error);
        }
    }
    Ok(())
}

async fn push_children(
    job: &mut CopyJob<'_>,
    attr: &Attr,
    dir: FileId,
    path: &Path,
    work: &mut Vec<Item>,
) {
    use std::os::unix::ffi::OsStrExt as _;
    for (name, attr) in job.children(attr, path).await {
        work.push(Item {
            attr,
            dir,
            path: path.join(std::ffi::OsStr::from_bytes(&name)),
            name,
        });
    }
}

/// Copies one file; of a directory, returns what its content goes into.
async fn restore_one(
    job: &CopyJob<'_>,
    destination: &mut Destination<'_>,
    item: &Item,
) -> Result<Option<FileId>, CopyError> {
    let (fs, cred) = (destination.fs.clone(), destination.cred);
    let is_directory = item.attr.file_type == FileType::Directory;
    let existing = match fs.lookup(item.dir, &item.name, cred).await {
        Ok(attr) => Some(attr),
        Err(FsError::NotFound) => None,
        Err(error) => return Err(error.into()),
    };
    match existing.map(|found| (found.file_type == FileType::Directory, found.id)) {
        Some((true, id)) if is_directory => return Ok(Some(id)),
        Some((true, _)) => return Err(FsError::IsDirectory.into()),
        Some((false, _)) if is_directory => return Err(FsError::Exists.into()),
        _ => {}
    }
    let set = SetAttr {
        mode: Some(item.attr.mode),
        uid: Some(item.attr.uid),
        gid: Some(item.attr.gid),
        ..SetAttr::default()
    };
    if is_directory {
        let made = fs.mkdir(item.dir, &item.name, &set, cred).await?;
        return Ok(Some(made.file.id));
    }
    let mut name = item.name.clone();
    name.extend_from_slice(INCOMPLETE);
    match fs.remove(item.dir, &name, cred).await {
        Ok(_) | Err(FsError::NotFound) => {}
        Err(error) => return Err(error.into()),
    }
    let copied = copy_file(job, destination, item, &name, &set).await;
    let named = match copied {
        Ok(()) => fs
            .rename(item.dir, &name, item.dir, &item.name, cred)
            .await
            .map(|_| ())
            .map_err(CopyError::from),
        Err(error) => Err(error),
    };
    if named.is_err() {
        // What is left of the copy has no use.
        let _ = fs.remove(item.dir, &name, cred).await;
    }
    named.map(|()| None)
}

/// Makes the copy of a file that is no directory, under a name of its own.
async fn copy_file(
    job: &CopyJob<'_>,
    destination: &mut Destination<'_>,
    item: &Item,
    name: &[u8],
    set: &SetAttr,
) -> Result<(), CopyError> {
    let (fs, cred) = (destination.fs.clone(), destination.cred);
    let attr = &item.attr;
    if let Some(first) = destination.linked.get(&attr.id) {
        fs.link(*first, item.dir, name, cred).await?;
        return Ok(());
    }
    let made = match attr.file_type {
        FileType::Regular => {
            let mode = CreateMode::Guarded;
            fs.create(item.dir, name, mode, set, cred).await?
        }
        FileType::Symlink => {
            let text = job.fs.readlink(attr.id).await?;
            fs.symlink(item.dir, name, &text, set, cred).await?
        }
        kind => fs.mknod(item.dir, name, kind, attr.rdev, set, cred).await?,
    };
    let id = made.file.id;
    if attr.file_type == FileType::Regular {
        let mut reader = DataReader::new(job, attr);
        while let Some((offset, pieces)) = reader.next().await? {
            let mut at = offset;
            for piece in pieces {
                let len = piece.len() as u64;
                fs.write(id, at, piece, Stability::Unstable, cred).await?;
                at += len;
            }
        }
        // A hole at the end.
        let size = SetAttr {
            size: Some(attr.size),
            ..SetAttr::default()
        };
        fs.setattr(id, &size, None, cred).await?;
    }
    set_attributes(job, destination, attr, id).await?;
    if attr.links > 1 {
        destination.linked.insert(attr.id, id);
    }
    Ok(())
}

/// Gives a copy the extended attributes and times of the file in the snapshot, and a directory its owner and mode.
async fn set_attributes(
    job: &CopyJob<'_>,
    destination: &Destination<'_>,
    attr: &Attr,
    id: FileId,
) -> Result<(), CopyError> {
    let (fs, cred) = (&destination.fs, destination.cred);
    for (name, value) in job.xattrs(attr.id).await? {
        fs.set_xattr(id, &name, &value, XattrMode::Any, cred)
            .await?;
    }
    let is_directory = attr.file_type == FileType::Directory;
    let set = SetAttr {
        mode: is_directory.then_some(attr.mode),
        uid: is_directory.then_some(attr.uid),
        gid: is_directory.then_some(attr.gid),
        atime: Some(SetTime::Client(attr.atime)),
        mtime: Some(SetTime::Client(attr.mtime)),
        ..SetAttr::default()
    };
    fs.setattr(id, &set, None, cred).await?;
    Ok(())
}
