//! `sanbox ls`, `cat`, `rm`, `mkdir` and `mount`.

use std::path::Path;

use engine::{Attr, Cred, FileType, FsError, FsHandle, PropertyQuery, SetAttr, Timestamp};

use super::Arguments;
use super::directory::entries;
use super::remote_path::{RemotePath, walk};
use crate::cli::zfs::{HelperCall, mount_helper};
use crate::cli::{Exit, Outcome, Session, dataset_clause, format, out::Stream};
use crate::undelegated::retried;

/// Bytes read at once.
const CHUNK_BYTES: usize = 1 << 20;

fn complain(session: &Session, remote: &RemotePath, error: FsError) -> Exit {
    session.fail(format!("{remote}: {error}"))
}

pub(super) async fn ls(session: &Session, args: &Arguments) -> Outcome {
    if args.operands.is_empty() {
        return Err(session.misuse("missing place argument"));
    }
    let cred = Cred::root();
    let mut failed = false;
    for (index, text) in args.operands.iter().enumerate() {
        let remote = RemotePath::of(session, text)?;
        let Ok(fs) = remote.open(session).await else {
            failed = true;
            continue;
        };
        let attr = match walk(&fs, &remote.path, &cred).await {
            Ok(attr) => attr,
            Err(error) => {
                complain(session, &remote, error);
                failed = true;
                continue;
            }
        };
        if args.operands.len() > 1 && attr.file_type == FileType::Directory && !args.has('d') {
            if index > 0 {
                session.out.line("");
            }
            session.out.line(format!("{remote}:"));
        }
        if attr.file_type != FileType::Directory || args.has('d') {
            let name = remote.path.last().map_or("/", String::as_str);
            print_entry(session, &fs, name.as_bytes(), &attr, args).await;
            continue;
        }
        let mut list = match entries(&fs, attr.id, &cred).await {
            Ok(list) => list,
            Err(error) => {
                complain(session, &remote, error);
                failed = true;
                continue;
            }
        };
        list.sort_by(|left, right| left.name.cmp(&right.name));
        for entry in list {
            let hidden = entry.name.starts_with(b".");
            if hidden && !args.has('a') {
                continue;
            }
            let attr = match entry.attr {
                Some(attr) => attr,
                None => match fs.lookup(attr.id, &entry.name, &cred).await {
                    Ok(attr) => attr,
                    // Removed since.
                    Err(_) => continue,
                },
            };
            print_entry(session, &fs, &entry.name, &attr, args).await;
        }
        session.out.flush().await?;
    }
    if failed { Err(Exit(1)) } else { Ok(()) }
}

async fn print_entry(session: &Session, fs: &FsHandle, name: &[u8], attr: &Attr, args: &Arguments) {
    let mut line = Vec::new();
    if args.has('i') {
        line.extend_from_slice(format!("{:>8} ", attr.id.object).as_bytes());
    }
    if args.has('l') {
        let size = match attr.file_type {
            FileType::Character | FileType::Block => {
                format!("{}, {}", attr.rdev.major, attr.rdev.minor)
            }
            _ => attr.size.to_string(),
        };
        let text = format!(
            "{} {:>3} {:>5} {:>5} {:>12} {} ",
            mode_text(attr),
            attr.links,
            attr.uid,
            attr.gid,
            size,
            time_text(attr.mtime),
        );
        line.extend_from_slice(text.as_bytes());
    }
    line.extend_from_slice(name);
    if args.has('l')
        && attr.file_type == FileType::Symlink
        && let Ok(target) = fs.readlink(attr.id).await
    {
        line.extend_from_slice(b" -> ");
        line.extend_from_slice(&target);
    }
    line.push(b'\n');
    session.out.push(Stream::Out, &line);
}

fn time_text(time: Timestamp) -> String {
    u64::try_from(time.seconds).map_or_else(|_| time.seconds.to_string(), format::history_date)
}

/// Type and permissions as `ls -l` shows them.
fn mode_text(attr: &Attr) -> String {
    let kind = match attr.file_type {
        FileType::Directory => 'd',
        FileType::Symlink => 'l',
        FileType::Block => 'b',
        FileType::Character => 'c',
        FileType::Fifo => 'p',
        FileType::Socket => 's',
        FileType::Regular => '-',
    };
    let mut text = String::from(kind);
    for (shift, special, letter) in [(6, 0o4000, 's'), (3, 0o2000, 's'), (0, 0o1000, 't')] {
        let bits = attr.mode >> shift;
        text.push(if bits & 4 != 0 { 'r' } else { '-' });
        text.push(if bits & 2 != 0 { 'w' } else { '-' });
        text.push(match (bits & 1 != 0, attr.mode & special != 0) {
            (true, true) => letter,
            (false, true) => letter.to_ascii_uppercase(),
            (true, false) => 'x',
            (false, false) => '-',
        });
    }
    text
}

pub(super) async fn cat(session: &Session, args: &Arguments) -> Outcome {
    if args.operands.is_empty() {
        return Err(session.misuse("missing place argument"));
    }
    let cred = Cred::root();
    let mut failed = false;
    for text in &args.operands {
        let remote = RemotePath::of(session, text)?;
        let Ok(fs) = remote.open(session).await else {
            failed = true;
            continue;
        };
        let outcome = async {
            let attr = walk(&fs, &remote.path, &cred).await?;
            if attr.file_type == FileType::Directory {
                return Err(FsError::IsDirectory);
            }
            let mut offset = 0;
            loop {
                let data = retried(|| fs.read(attr.id, offset, CHUNK_BYTES, &cred)).await?;
                for piece in &data.pieces {
                    session.out.push(Stream::Out, &**piece);
                }
                if session.out.flush().await.is_err() {
                    return Ok(true);
                }
                offset += data.len() as u64;
                if data.eof || data.is_empty() {
                    return Ok(false);
                }
            }
        };
        match outcome.await {
            Ok(false) => {}
            Ok(true) => return Err(crate::cli::out::OutputClosed.into()),
            Err(error) => {
                complain(session, &remote, error);
                failed = true;
            }
        }
    }
    if failed { Err(Exit(1)) } else { Ok(()) }
}

pub(super) async fn mkdir(session: &Session, args: &Arguments) -> Outcome {
    if args.operands.is_empty() {
        return Err(session.misuse("missing place argument"));
    }
    let mode = match args.value('m').map(|text| u32::from_str_radix(text, 8)) {
        None => 0o755,
        Some(Ok(mode)) if mode <= 0o7777 => mode,
        Some(_) => return Err(session.misuse("the mode must be octal")),
    };
    let cred = Cred::root();
    let mut failed = false;
    for text in &args.operands {
        let remote = RemotePath::of(session, text)?;
        let Ok(fs) = remote.open(session).await else {
            failed = true;
            continue;
        };
        let outcome = async {
            let set = SetAttr {
                mode: Some(mode),
                ..SetAttr::default()
            };
            let Some((last, parents)) = remote.path.split_last() else {
                return if args.has('p') {
                    Ok(())
                } else {
                    Err(FsError::Exists)
                };
            };
            let parent = if args.has('p') {
                let mut at = fs.root().await?;
                for name in parents {
                    at = match fs.lookup(at.id, name.as_bytes(), &cred).await {
                        Ok(found) => found,
                        Err(FsError::NotFound) => {
                            fs.mkdir(at.id, name.as_bytes(), &set, &cred).await?.file
                        }
                        Err(error) => return Err(error),
                    };
                }
                at
            } else {
                walk(&fs, parents, &cred).await?
            };
            match fs.mkdir(parent.id, last.as_bytes(), &set, &cred).await {
                Ok(_) => fs.sync().await,
                Err(FsError::Exists) if args.has('p') => Ok(()),
                Err(error) => Err(error),
            }
        };
        if let Err(error) = outcome.await {
            complain(session, &remote, error);
            failed = true;
        }
    }
    if failed { Err(Exit(1)) } else { Ok(()) }
}

pub(super) async fn rm(session: &Session, args: &Arguments) -> Outcome {
    if args.operands.is_empty() {
        return Err(session.misuse("missing place argument"));
    }
    let cred = Cred::root();
    let mut failed = false;
    for text in &args.operands {
        let remote = RemotePath::of(session, text)?;
        let Ok(fs) = remote.open(session).await else {
            failed = true;
            continue;
        };
        let Some((last, parents)) = remote.path.split_last() else {
            session.out.error(format!(
                "{remote}: the root of a file system cannot be removed"
            ));
            failed = true;
            continue;
        };
        let outcome = async {
            let parent = walk(&fs, parents, &cred).await?;
            let victim = fs.lookup(parent.id, last.as_bytes(), &cred).await?;
            if victim.file_type != FileType::Directory {
                fs.remove(parent.id, last.as_bytes(), &cred).await?;
            } else if args.has('r') {
                remove_tree(&fs, victim.id, &cred).await?;
                fs.rmdir(parent.id, last.as_bytes(), &cred).await?;
            } else {
                return Err(FsError::IsDirectory);
            }
            fs.sync().await
        };
        match outcome.await {
            Ok(()) => {}
            Err(FsError::NotFound) if args.has('f') => {}
            Err(error) => {
                complain(session, &remote, error);
                failed = true;
            }
        }
    }
    if failed { Err(Exit(1)) } else { Ok(()) }
}

/// Empties a directory. Walks with a list of its own, so that depth costs memory and not stack.
async fn remove_tree(fs: &FsHandle, top: engine::FileId, cred: &Cred) -> Result<(), FsError> {
    let mut open = vec![(top, None::<(engine::FileId, Vec<u8>)>)];
    while let Some((dir, from)) = open.pop() {
        let mut below = Vec::new();
        for entry in entries(fs, dir, cred).await? {
            let attr = fs.lookup(dir, &entry.name, cred).await?;
            if attr.file_type == FileType::Directory {
                below.push((attr.id, Some((dir, entry.name))));
            } else {
                fs.remove(dir, &entry.name, cred).await?;
            }
        }
        if below.is_empty() {
            if let Some((parent, name)) = from {
                fs.rmdir(parent, &name, cred).await?;
            }
        } else {
            // Again, once what is below has gone.
            open.push((dir, from));
            open.extend(below);
        }
    }
    Ok(())
}

pub(super) async fn mount(session: &Session, args: &Arguments) -> Outcome {
    let [dataset, point] = args.operands.as_slice() else {
        return Err(session.misuse("expected a dataset and a directory"));
    };
    let point = session.path(point);
    let found = async {
        let pool = session.appliance.pool_of(dataset).await?;
        let info = pool.dataset(dataset, &PropertyQuery::None).await?;
        let fs = pool.open_fs(dataset).await?;
        let flags = crate::appliance::mount_flags(&pool, dataset).await?;
        Ok::<_, engine::EngineError>((info, fs, flags))
    };
    let (info, fs, mut flags) = found.await.map_err(|error| {
        session.fail(format!(
            "cannot mount '{dataset}': {}",
            dataset_clause(&error)
        ))
    })?;
    flags.readonly |= args.has('r');
    let mounts = session.appliance.mounts();
    mounts
        .mount(fs, &info.name, &point, flags)
        .await
        .map_err(|why| {
            session.fail(format!(
                "cannot mount '{dataset}' at {}: {why}",
                point.display()
            ))
        })?;
    if !session.appliance.is_daemon() {
        hold(session, info.guid, &point).await;
    }
    Ok(())
}

/// `mount.zfs`.
pub(super) async fn mount_zfs(session: &Session, args: &Arguments) -> Outcome {
    let call = HelperCall {
        operands: &args.operands,
        options: args.all('o'),
        sloppy: args.has('s'),
        fake: args.has('f'),
        verbose: args.has('v'),
    };
    mount_helper(session, call).await
}

/// Stays until a mount has gone.
async fn hold(session: &Session, guid: u64, point: &Path) {
    session.out.line(format!(
        "mounted at {}; unmount it or interrupt to end",
        point.display()
    ));
    let _ = session.out.flush().await;
    session.appliance.mounts().ended(guid).await;
}
