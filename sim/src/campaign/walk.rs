//! Reads everything below a directory at the engine's boundary.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use engine::{Attr, Cred, FileId, FileType, FsHandle, FsResult, ListLimit};

use super::model::{File, Node, Visible};

/// Returns the tree below `dir`, which itself has the empty path.
///
/// # Errors
/// Those of the engine.
pub async fn walk(fs: &FsHandle, dir: FileId) -> FsResult<Visible> {
    let cred = Cred::root();
    let mut visible = Visible::new();
    let mut names: BTreeMap<FileId, BTreeSet<String>> = BTreeMap::new();
    let mut files: BTreeMap<FileId, File> = BTreeMap::new();
    let mut dirs = vec![(String::new(), fs.getattr(dir).await?)];
    while let Some((path, attr)) = dirs.pop() {
        let (mode, uid, gid, links) = (attr.mode, attr.uid, attr.gid, attr.links);
        visible.insert(
            path.clone(),
            Node::Dir {
                mode,
                uid,
                gid,
                links,
            },
        );
        for (name, attr) in list(fs, attr.id, &cred).await? {
            let path = if path.is_empty() {
                name
            } else {
                format!("{path}/{name}")
            };
            match attr.file_type {
                FileType::Directory => dirs.push((path, attr)),
                FileType::Symlink => {
                    visible.insert(
                        path,
                        Node::Symlink {
                            target: fs.readlink(attr.id).await?,
                        },
                    );
                }
                _ => {
                    if !names.contains_key(&attr.id) {
                        files.insert(attr.id, file(fs, &attr, &cred).await?);
                    }
                    names.entry(attr.id).or_default().insert(path);
                }
            }
        }
    }
    for (id, names) in names {
        let mut file = files.remove(&id).expect("read when first seen");
        file.names.clone_from(&names);
        for name in names {
            visible.insert(name, Node::File(file.clone()));
        }
    }
    Ok(visible)
}

/// Lists a directory in small parts, so that cookies are used.
///
/// # Errors
/// Those of the engine.
pub async fn list(fs: &FsHandle, dir: FileId, cred: &Cred) -> FsResult<Vec<(String, Attr)>> {
    let limit = ListLimit {
        entries: 7,
        bytes: 4096,
        entry_overhead_bytes: 24,
        attrs: true,
    };
    let (mut cookie, mut entries) = (0, Vec::new());
    loop {
        let part = fs.readdir(dir, cookie, limit, cred).await?;
        for entry in part.entries {
            cookie = entry.cookie;
            if entry.name == b"." || entry.name == b".." {
                continue;
            }
            let name = String::from_utf8_lossy(&entry.name).into_owned();
            let attr = match entry.attr {
                Some(attr) => attr,
                None => fs.lookup(dir, name.as_bytes(), cred).await?,
            };
            entries.push((name, attr));
        }
        if part.eof {
            return Ok(entries);
        }
    }
}

/// Reads a whole file.
///
/// # Errors
/// Those of the engine.
pub async fn read(fs: &FsHandle, id: FileId, cred: &Cred) -> FsResult<Vec<u8>> {
    let mut content = Vec::new();
    loop {
        let part = fs.read(id, content.len() as u64, 256 * 1024, cred).await?;
        for piece in &part.pieces {
            content.extend_from_slice(piece);
        }
        if part.eof {
            return Ok(content);
        }
    }
}

async fn file(fs: &FsHandle, attr: &Attr, cred: &Cred) -> FsResult<File> {
    let content = read(fs, attr.id, cred).await?;
    let mut xattrs = BTreeMap::new();
    for stored in fs.xattrs(attr.id, cred).await? {
        let value = fs.xattr(attr.id, &stored.name, cred).await?;
        xattrs.insert(
            String::from_utf8_lossy(&stored.name).into_owned(),
            Rc::new(value),
        );
    }
    Ok(File {
        mode: attr.mode,
        uid: attr.uid,
        gid: attr.gid,
        mtime_seconds: Some(attr.mtime.seconds),
        content: Rc::new(content),
        xattrs,
        names: BTreeSet::new(),
    })
}
