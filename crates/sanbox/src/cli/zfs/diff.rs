//! `zfs diff`: what changed between a snapshot and a later one, or now.
//!
//! Both trees are walked, and files compared by object number, generation and time of change, so
//! nothing needs to be mounted. OpenZFS: lib/libzfs/libzfs_diff.c (forms of the output).

use std::collections::BTreeMap;

use engine::property::DatasetKind;
use engine::{Cred, FileId, FileType, FsHandle, FsResult, PoolHandle, PropertyQuery, Timestamp};

use super::open;
use crate::cli::command::{Command, Word, options};
use crate::cli::out::Stream;
use crate::cli::sanbox::directory::entries;
use crate::cli::{Outcome, Session};

options! {
    DiffOption {
        Classify = short('F', "with the types of files"),
        Scripted = short('H', "tabs between the columns, no arrows"),
        Times = short('t', "with the times of the changes"),
        Plain = short('h', "do not escape names that are not ASCII"),
    }
}

/// The declaration of `zfs diff`.
pub(super) const DIFF: Command = Command {
    name: "diff",
    summary: "show what changed between snapshots",
    usage: "\tdiff [-FHth] <snapshot> [snapshot|filesystem]\n",
    flags: DiffOption::FLAGS,
    says_missing: false,
    words: &[Word::Snapshot],
    ..Command::NEW
};

/// How lines look.
#[derive(Clone, Copy, Default)]
struct LineFormat {
    classify: bool,
    scripted: bool,
    times: bool,
    plain: bool,
}

/// A file of one of the trees.
struct FileEntry {
    path: Vec<u8>,
    generation: u64,
    kind: FileType,
    links: u64,
    changed: Timestamp,
}

pub(super) async fn run(session: &Session, arguments: &[String]) -> Outcome {
    let mut form = LineFormat::default();
    let operands = session.read_options(arguments, |_, option| {
        match option {
            DiffOption::Classify => form.classify = true,
            DiffOption::Scripted => form.scripted = true,
            DiffOption::Times => form.times = true,
            DiffOption::Plain => form.plain = true,
        }
        Ok(())
    })?;
    let (from, to) = match operands.as_slice() {
        [] => return Err(session.misuse("must provide at least one snapshot name")),
        [from] => (from.clone(), None),
        [from, to] => (from.clone(), Some(to.clone())),
        _ => return Err(session.misuse("too many arguments")),
    };
    let dataset = |name: &str| name.split('@').next().unwrap_or("").to_owned();
    let head = match (dataset(&from).as_str(), &to) {
        ("", None) => return Err(session.usage_only()),
        ("", Some(to)) => dataset(to),
        (head, _) => head.to_owned(),
    };
    if to.is_none() && !from.contains('@') {
        return Err(session.fail(format!(
            "Badly formed snapshot name {from}: missing '@' delimiter in snapshot name"
        )));
    }
    let undetermined =
        || session.fail("Unable to determine which snapshots to compare: invalid name");
    if !from.contains('@') {
        return Err(undetermined());
    }
    // A short name is of the other one's dataset.
    let full = |name: &str| {
        if name.starts_with('@') {
            format!("{head}{name}")
        } else {
            name.to_owned()
        }
    };
    let from = full(&from);
    let to = to.map_or_else(|| head.clone(), |to| full(&to));
    let (pool, info) = open(session, &dataset(&to), &PropertyQuery::None).await?;
    if info.kind != DatasetKind::Filesystem {
        return Err(session.fail(format!(
            "cannot open '{}': operation not applicable to datasets of this type",
            info.name
        )));
    }
    for name in [&from, &to] {
        open(session, name, &PropertyQuery::None).await?;
    }
    let fail = |error: String| session.fail(format!("unable to compare {from} and {to}: {error}"));
    // What was written since is only known of an earlier point of the same line.
    let earlier = pool.property(&to, &format!("written@{from}")).await;
    if earlier.map_err(|e| fail(e.to_string()))?.is_none() {
        return Err(session.fail("Not an earlier snapshot from the same fs: invalid name"));
    }
    let before = tree(&pool, &from).await.map_err(fail)?;
    let after = tree(&pool, &to).await.map_err(fail)?;
    let root = mount_point(&pool, &dataset(&to)).await;
    for (count, line) in compare(&before, &after, &root, form).iter().enumerate() {
        session.out.push(Stream::Out, line);
        if count % 1000 == 999 {
            session.out.flush().await?;
        }
    }
    Ok(())
}

/// Where paths begin: the mount point, or the dataset's name when it has none.
async fn mount_point(pool: &PoolHandle, dataset: &str) -> Vec<u8> {
    let found = pool.property(dataset, "mountpoint").await.ok().flatten();
    let path = found.and_then(|property| property.value.text().map(str::to_owned));
    match path.as_deref() {
        Some("/") => Vec::new(),
        Some(path) if path.starts_with('/') => path.as_bytes().to_vec(),
        _ => format!("/{dataset}").into_bytes(),
    }
}

async fn tree(pool: &PoolHandle, name: &str) -> Result<BTreeMap<u64, FileEntry>, String> {
    let fs = pool
        .open_fs(name)
        .await
        .map_err(|error| error.to_string())?;
    walk(&fs).await.map_err(|error| error.to_string())
}

async fn walk(fs: &FsHandle) -> FsResult<BTreeMap<u64, FileEntry>> {
    let cred = Cred::root();
    let mut found = BTreeMap::new();
    let root = fs.root().await?;
    let seen = |attr: &engine::Attr, path: Vec<u8>| FileEntry {
        path,
        generation: attr.id.generation,
        kind: attr.file_type,
        links: attr.links,
        changed: attr.ctime,
    };
    let mut work: Vec<(FileId, Vec<u8>)> = vec![(root.id, Vec::new())];
    found.insert(root.id.object, seen(&root, b"/".to_vec()));
    while let Some((dir, path)) = work.pop() {
        for entry in entries(fs, dir, &cred).await? {
            let Some(attr) = entry.attr else { continue };
            let mut path = path.clone();
            path.push(b'/');
            path.extend_from_slice(&entry.name);
            if attr.file_type == FileType::Directory {
                work.push((attr.id, path.clone()));
            }
            found
                .entry(attr.id.object)
                .or_insert_with(|| seen(&attr, path));
        }
    }
    Ok(found)
}

fn compare(
    before: &BTreeMap<u64, FileEntry>,
    after: &BTreeMap<u64, FileEntry>,
    root: &[u8],
    form: LineFormat,
) -> Vec<Vec<u8>> {
    let mut objects: Vec<u64> = before.keys().chain(after.keys()).copied().collect();
    objects.sort_unstable();
    objects.dedup();
    let mut lines = Vec::new();
    for object in objects {
        let one = |sign: u8, seen: &FileEntry| line(sign, seen, &[&seen.path], root, form, None);
        match (before.get(&object), after.get(&object)) {
            (Some(old), None) => lines.push(one(b'-', old)),
            (None, Some(new)) => lines.push(one(b'+', new)),
            (Some(old), Some(new)) if old.generation != new.generation || old.kind != new.kind => {
                lines.push(one(b'-', old));
                lines.push(one(b'+', new));
            }
            (Some(old), Some(new)) if old.changed != new.changed => {
                let links = i128::from(new.links) - i128::from(old.links);
                lines.push(if links != 0 && new.kind != FileType::Directory {
                    let shown = if links > 0 { old } else { new };
                    line(b'M', new, &[&shown.path], root, form, Some(links))
                } else if old.path == new.path {
                    one(b'M', new)
                } else {
                    line(b'R', new, &[&old.path, &new.path], root, form, None)
                });
            }
            _ => {}
        }
    }
    lines
}

fn line(
    sign: u8,
    seen: &FileEntry,
    paths: &[&[u8]],
    root: &[u8],
    form: LineFormat,
    links: Option<i128>,
) -> Vec<u8> {
    let mut text = Vec::new();
    if form.times {
        let Timestamp {
            seconds,
            nanoseconds,
        } = seen.changed;
        text.extend(format!("{seconds:>10}.{nanoseconds:09}\t").into_bytes());
    }
    text.extend([sign, b'\t']);
    if form.classify {
        text.extend([class(seen.kind), b'\t']);
    }
    for (index, path) in paths.iter().enumerate() {
        if index > 0 {
            text.extend(if form.scripted {
                b"\t".as_slice()
            } else {
                b" -> "
            });
        }
        for byte in root.iter().chain(*path) {
            if form.plain || (*byte > b' ' && *byte != b'\\' && *byte < 0x7f) {
                text.push(*byte);
            } else {
                text.extend(format!("\\{byte:04o}").into_bytes());
            }
        }
    }
    if let Some(links) = links {
        text.extend(format!("\t({links:+})").into_bytes());
    }
    text.push(b'\n');
    text
}

fn class(kind: FileType) -> u8 {
    match kind {
        FileType::Block => b'B',
        FileType::Character => b'C',
        FileType::Directory => b'/',
        FileType::Fifo => b'|',
        FileType::Symlink => b'@',
        FileType::Socket => b'=',
        FileType::Regular => b'F',
    }
}
