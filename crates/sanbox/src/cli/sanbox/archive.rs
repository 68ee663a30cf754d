//! `sanbox get --tar`: a tree of a dataset as a pax archive, which holds everything that a file system may not: long links, large
//! attributes, owners, device nodes.
//!
//! A file is in the archive as it was when its entry began: what it has lost by the time it is read becomes zeros, and is reported.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;

use engine::{Attr, FileId, FileType, IoBuf};

use super::Arguments;
use super::copy::{CopyError, CopyJob, DataReader, data_after, open};
use super::tar::{BLOCK_BYTES, Entry, EntryType, end, padding};
use crate::cli::{Exit, Outcome, Session, out::Stream};

/// The archive as it is written: bytes go to a file, or to standard output.
struct Archive<'a> {
    session: &'a Session,
    file: Option<File>,
    bytes: u64,
}

/// Why an archive ends before its end: its destination is gone, or full.
enum WriteError {
    File(std::io::Error),
    Output(Exit),
}

impl Archive<'_> {
    async fn write(&mut self, bytes: &[u8]) -> Result<(), WriteError> {
        self.bytes += bytes.len() as u64;
        if let Some(file) = &mut self.file {
            return file.write_all(bytes).map_err(WriteError::File);
        }
        self.session.out.push(Stream::Out, bytes);
        let flushed = self.session.out.flush().await;
        flushed.map_err(|closed| WriteError::Output(closed.into()))
    }

    async fn zeros(&mut self, mut count: u64) -> Result<(), WriteError> {
        const ZEROS: [u8; 16 * BLOCK_BYTES] = [0; 16 * BLOCK_BYTES];
        while count > 0 {
            let some = count.min(ZEROS.len() as u64);
            let len = usize::try_from(some).unwrap_or(ZEROS.len());
            self.write(&ZEROS[..len]).await?;
            count -= some;
        }
        Ok(())
    }

    /// Pads the last entry to a whole block.
    async fn pad(&mut self) -> Result<(), WriteError> {
        self.zeros(padding(self.bytes) as u64).await
    }
}

pub(super) async fn get(session: &Session, args: &Arguments) -> Outcome {
    let (from, to) = match args.operands.as_slice() {
        [from] => (from, None),
        [from, to] if to == "-" => (from, None),
        [from, to] => (from, Some(session.path(to))),
        _ => return Err(session.misuse("expected a place and a destination")),
    };
    let (mut job, remote, attr) = open(session, args, from).await?;
    if attr.file_type == FileType::Directory && !args.has('r') {
        return Err(session.fail(format!("{remote} is a directory: use -r to copy it")));
    }
    let name = remote.path.last().map_or(".", String::as_str);
    let failed = |error| match (error, &to) {
        (WriteError::Output(exit), _) => exit,
        (WriteError::File(error), Some(to)) => session.fail(format!("{}: {error}", to.display())),
        (WriteError::File(error), None) => session.fail(error.to_string()),
    };
    let file = to.as_ref().map(File::create).transpose();
    let mut archive = Archive {
        session,
        file: file.map_err(|error| failed(WriteError::File(error)))?,
        bytes: 0,
    };
    let written = write_tree(&mut job, &mut archive, name.as_bytes().to_vec(), attr).await;
    written.map_err(failed)?;
    if let Some(file) = &archive.file {
        let synced = file.sync_all();
        synced.map_err(|error| failed(WriteError::File(error)))?;
    }
    if job.failed { Err(Exit(1)) } else { Ok(()) }
}

async fn write_tree(
    job: &mut CopyJob<'_>,
    archive: &mut Archive<'_>,
    name: Vec<u8>,
    attr: Attr,
) -> Result<(), WriteError> {
    let mut linked: BTreeMap<FileId, Vec<u8>> = BTreeMap::new();
    let mut work = vec![(name, attr)];
    while let Some((name, attr)) = work.pop() {
        let path = PathBuf::from(OsStr::from_bytes(&name));
        if job.verbose {
            // Standard output may be the archive.
            job.session.out.push(Stream::Err, &name);
            job.session.out.push(Stream::Err, b"\n");
        }
        let entry = match read_entry(job, name.clone(), &attr, &linked).await {
            Ok(entry) => entry,
            Err(error) => {
                job.report_error(&path, &error);
                continue;
            }
        };
        archive.write(&entry.head()).await?;
        if let EntryType::Regular { data, .. } = &entry.entry_type {
            if let Err(error) = write_data(job, archive, &attr, data).await? {
                job.report_error(&path, &error);
            }
            archive.pad().await?;
        }
        if attr.file_type == FileType::Directory {
            let children = job.children(&attr, &path).await;
            for (child, attr) in children {
                work.push(([&name[..], b"/", &child].concat(), attr));
            }
        } else if attr.links > 1 {
            linked.entry(attr.id).or_insert(name);
        }
    }
    archive.zeros(end(archive.bytes) as u64).await
}

/// Finds out what the entry of an object holds.
async fn read_entry(
    job: &CopyJob<'_>,
    name: Vec<u8>,
    attr: &Attr,
    linked: &BTreeMap<FileId, Vec<u8>>,
) -> Result<Entry, CopyError> {
    let first = linked.get(&attr.id).cloned();
    let (major, minor) = (attr.rdev.major, attr.rdev.minor);
    let xattrs = match &first {
        Some(_) => Vec::new(),
        None => job.xattrs(attr.id).await?,
    };
    let entry_type = match (first, attr.file_type) {
        (Some(first), _) => EntryType::HardLink(first),
        (None, FileType::Directory) => EntryType::Directory,
        (None, FileType::Regular) => EntryType::Regular {
            size: attr.size,
            data: extents(job, attr).await?,
        },
        (None, FileType::Symlink) => EntryType::Symlink(job.fs.readlink(attr.id).await?.to_vec()),
        (None, FileType::Fifo) => EntryType::Fifo,
        (None, FileType::Character) => EntryType::Character { major, minor },
        (None, FileType::Block) => EntryType::Block { major, minor },
        (None, FileType::Socket) => return Err(CopyError::Socket),
    };
    Ok(Entry {
        name,
        entry_type,
        mode: attr.mode,
        uid: attr.uid,
        gid: attr.gid,
        atime: attr.atime,
        mtime: attr.mtime,
        ctime: attr.ctime,
        xattrs,
    })
}

/// Where the data of a file lies: offsets and lengths, in order.
async fn extents(job: &CopyJob<'_>, attr: &Attr) -> Result<Vec<(u64, u64)>, CopyError> {
    let mut extents = Vec::new();
    let mut at = 0;
    while at < attr.size {
        let Some((start, end)) = data_after(job, attr.id, at, attr.size).await? else {
            break;
        };
        extents.push((start, end - start));
        at = end;
    }
    Ok(extents)
}

/// Writes the data of a file, exactly as much as its entry says: what cannot be read becomes zeros. The inner result says whether
/// all of it could be read.
async fn write_data(
    job: &CopyJob<'_>,
    archive: &mut Archive<'_>,
    attr: &Attr,
    extents: &[(u64, u64)],
) -> Result<Result<(), CopyError>, WriteError> {
    let mut reader = DataReader::new(job, attr);
    let mut outcome = Ok(());
    let mut chunk: Option<(u64, Vec<u8>)> = None;
    for (offset, len) in extents {
        let (mut at, last) = (*offset, offset + len);
        while at < last {
            if chunk.is_none() && outcome.is_ok() {
                match reader.next().await {
                    Ok(next) => chunk = next.map(|(offset, pieces)| (offset, joined(&pieces))),
                    Err(error) => outcome = Err(error),
                }
            }
            let Some((start, bytes)) = chunk.take() else {
                // The file ends before its entry does, or cannot be read.
                if outcome.is_ok() {
                    outcome = Err(CopyError::Shrank);
                }
                archive.zeros(last - at).await?;
                break;
            };
            let end = start + bytes.len() as u64;
            if end <= at {
                continue;
            }
            if start >= last {
                archive.zeros(last - at).await?;
                chunk = Some((start, bytes));
                break;
            }
            archive.zeros(start.saturating_sub(at)).await?;
            let from = usize::try_from(at.saturating_sub(start)).unwrap_or(0);
            let to = usize::try_from(end.min(last) - start).unwrap_or(bytes.len());
            archive.write(&bytes[from..to]).await?;
            at = end.min(last);
            if end > last {
                chunk = Some((start, bytes));
            }
        }
    }
    Ok(outcome)
}

fn joined(pieces: &[IoBuf]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(pieces.iter().map(|piece| piece.len()).sum());
    for piece in pieces {
        bytes.extend_from_slice(piece);
    }
    bytes
}
