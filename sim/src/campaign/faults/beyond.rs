//! Damage that no redundancy covers: every copy of some stretch of a vdev is overwritten.
//!
//! What cannot be read must be an error and never wrong bytes; `zpool status -v` must name exactly the files and attributes it
//! happened to; everything else must read. When the damaged files are removed, two scrubs later the pool is healthy.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use engine::{Cred, FileId, FileType, FsError, FsHandle, Health, PoolHandle, ScanStatus};
use ondisk::bytes;
use ondisk::label::DATA_START;
use runtime::Handle;
use world::{Rng, World};

use super::admin::{self, Ward};
use super::in_pool;
use crate::campaign::model::{File, Node, Visible};
use crate::campaign::scenario::{self, Layout, Plan};
use crate::campaign::walk;
use checker::spread::{HEIGHT, Spread};

/// Bytes of a stretch on each disk: small, so that the copies of a block of metadata are not all hit.
const STRETCH: u64 = 64 << 10;
/// Files are looked at in pieces of this size.
const PIECE: usize = 4096;

/// Damages, looks, scrubs, removes, and looks again.
///
/// # Errors
/// A sentence about what is named wrongly, or wrong.
pub(super) fn run(
    plan: &Plan,
    world: &World,
    rng: &mut Rng,
    ward: &Rc<RefCell<Ward>>,
    trees: &[Visible],
) -> Result<(), String> {
    let Layout::Grid {
        tops,
        parity,
        data,
        spares,
        ..
    } = plan.layout
    else {
        return Ok(());
    };
    let top = rng.index(usize::from(tops));
    let mut disks = ward.borrow().disks_of(top);
    let end = plan.disk_bytes - (1 << 20);
    let mut written = world.written(&disks[0]);
    written.retain(|&offset| offset >= 4 << 20 && offset + STRETCH < end);
    if written.is_empty() {
        return Ok(());
    }
    let mut place = *rng.choose(&written);
    if let Some(data) = data {
        // A row of a draid's disks has parts of two groups, and both copies of a block of metadata may lie in it, a group
        // apart: one of them is spared.
        let shape = [
            disks.len() as u64,
            parity.into(),
            data.into(),
            spares.into(),
        ];
        let spread = Spread::of_shape(shape).ok_or("no such draid")?;
        let end_of_row = (place - DATA_START + 1).next_multiple_of(HEIGHT) + DATA_START;
        place = place.min(end_of_row - STRETCH);
        let mut groups = spread.groups_in_row(place - DATA_START);
        groups.retain(|group| group.len() > usize::from(parity));
        let group = rng.choose(&groups);
        disks = group
            .iter()
            .map(|&child| disks[bytes::index(child)].clone())
            .collect();
    }
    for disk in &disks {
        let mut bytes = vec![0; usize::try_from(STRETCH).expect("small")];
        rng.fill(&mut bytes);
        world.damage(disk, place, &bytes);
    }
    in_pool(plan, world, |pool, handle, _| async move {
        let unreadable = look(plan, &pool, trees).await?;
        let scan = scrub(&pool, &handle).await?;
        compare(&unreadable, named(&pool).await?)?;
        if unreadable.is_empty() != (scan.errors == 0) {
            return Err(format!(
                "{} errors in the scrub, cannot be read: {unreadable:?}",
                scan.errors
            ));
        }
        let files: BTreeSet<(usize, &String)> = unreadable
            .iter()
            .flat_map(|(part, paths)| paths.iter().map(|path| (part.client, path)))
            .collect();
        for (client, path) in files {
            remove(&pool, client, path).await?;
        }
        pool.sync().await.map_err(|error| error.to_string())?;
        // The first forgets what is gone, the second would see what was overlooked.
        scrub(&pool, &handle).await?;
        let scan = scrub(&pool, &handle).await?;
        let status = pool.status().await.map_err(|error| error.to_string())?;
        if scan.errors != 0 || status.data_errors != 0 {
            return Err(format!("errors stay after the removal: {scan:?}"));
        }
        pool.clear(None).await.map_err(|error| error.to_string())?;
        let status = pool.status().await.map_err(|error| error.to_string())?;
        if status.health != Health::Online {
            return Err(format!("not healthy after the removal: {status:?}"));
        }
        Ok(())
    })
}

/// What can be damaged by itself: the content of a file, or the value of one of its attributes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Part {
    client: usize,
    /// The file's object.
    object: u64,
    attribute: Option<String>,
}

/// Parts that cannot be read whole, with all names of their files.
type Unreadable = BTreeMap<Part, BTreeSet<String>>;

/// Reads everything; returns what cannot be read whole.
async fn look(plan: &Plan, pool: &PoolHandle, trees: &[Visible]) -> Result<Unreadable, String> {
    let mut unreadable = Unreadable::new();
    for (client, expected) in trees.iter().enumerate().take(plan.clients) {
        let (fs, root) = open(pool, client).await?;
        let mut seen = BTreeSet::new();
        let mut dirs = vec![(String::new(), root)];
        while let Some((dir, id)) = dirs.pop() {
            let text = |error: FsError| format!("client {client}: {dir}: {error}");
            for (name, attr) in walk::list(&fs, id, &Cred::root()).await.map_err(text)? {
                let path = if dir.is_empty() {
                    name
                } else {
                    format!("{dir}/{name}")
                };
                seen.insert(path.clone());
                match attr.file_type {
                    FileType::Directory => dirs.push((path, attr.id)),
                    FileType::Symlink => {
                        fs.readlink(attr.id).await.map_err(text)?;
                    }
                    _ => {
                        let Some(Node::File(file)) = expected.get(&path) else {
                            return Err(format!("client {client}: {path} is new"));
                        };
                        let parts = read_parts(&fs, attr.id, file).await;
                        let parts =
                            parts.map_err(|error| format!("client {client}: {path}: {error}"))?;
                        for attribute in parts {
                            let part = Part {
                                client,
                                object: attr.id.object,
                                attribute,
                            };
                            unreadable.entry(part).or_default().insert(path.clone());
                        }
                    }
                }
            }
        }
        let missing = expected
            .keys()
            .find(|path| !path.is_empty() && !seen.contains(*path));
        if let Some(path) = missing {
            return Err(format!("client {client}: {path} is gone"));
        }
    }
    Ok(unreadable)
}

/// Reads a file and its attributes; returns what of it cannot be read: `None` for the content, else an attribute's name.
async fn read_parts(
    fs: &FsHandle,
    id: FileId,
    expected: &File,
) -> Result<Vec<Option<String>>, String> {
    let mut unreadable = Vec::new();
    if !read(fs, id, &expected.content).await? {
        unreadable.push(None);
    }
    for (name, value) in &expected.xattrs {
        match fs.xattr(id, name.as_bytes(), &Cred::root()).await {
            Ok(found) if found == **value => {}
            Ok(_) => return Err(format!("wrong bytes in attribute {name}")),
            Err(FsError::Io) => unreadable.push(Some(name.clone())),
            Err(error) => return Err(format!("attribute {name}: {error}")),
        }
    }
    Ok(unreadable)
}

/// Reads a file piece by piece; true when all of it can be read.
async fn read(fs: &FsHandle, id: FileId, expected: &[u8]) -> Result<bool, String> {
    let mut whole = true;
    let mut offset = 0;
    while offset < expected.len() {
        let len = PIECE.min(expected.len() - offset);
        match fs.read(id, offset as u64, len, &Cred::root()).await {
            Ok(data) => {
                let found = data.pieces.iter().flat_map(|piece| piece.iter());
                if !found.eq(&expected[offset..offset + len]) {
                    return Err(format!("wrong bytes at {offset}"));
                }
            }
            Err(FsError::Io) => whole = false,
            Err(error) => return Err(error.to_string()),
        }
        offset += len;
    }
    Ok(whole)
}

/// Returns the files the pool names as damaged, without the dataset's name.
async fn named(pool: &PoolHandle) -> Result<BTreeSet<String>, String> {
    let files = pool.damaged_files().await;
    Ok(files
        .map_err(|error| error.to_string())?
        .into_iter()
        .collect())
}

/// Compares what cannot be read with what is named, which must be the same. A file has several names, any of which will
/// do; one whose newest name was removed is known by its number alone.
fn compare(unreadable: &Unreadable, mut named: BTreeSet<String>) -> Result<(), String> {
    let mut numbered = Vec::new();
    for (part, paths) in unreadable {
        let dataset = scenario::dataset(part.client);
        let dir = scenario::client_dir(part.client);
        let mut names = paths.iter().map(|path| match &part.attribute {
            None => format!("{dataset}:/{dir}/{path}"),
            Some(attribute) => format!("{dataset}:/{dir}/{path}/<xattrdir>/{attribute}"),
        });
        if names.any(|name| named.remove(&name)) {
            continue;
        }
        let number = match part.attribute {
            None => format!("{dataset}:<{:#x}>", part.object),
            // The value has a number of its own, which is not known here.
            Some(_) => format!("{dataset}:<"),
        };
        numbered.push((part, number));
    }
    // Those whose number is known first.
    numbered.sort_by_key(|(part, _)| part.attribute.is_some());
    for (part, number) in numbered {
        let found = named
            .iter()
            .find(|name| name.starts_with(&number))
            .cloned()
            .ok_or_else(|| format!("cannot be read, but not named: {part:?}"))?;
        named.remove(&found);
    }
    if let Some(extra) = named.first() {
        return Err(format!(
            "{extra} is named, but can be read; cannot be read: {unreadable:?}"
        ));
    }
    Ok(())
}

async fn remove(pool: &PoolHandle, client: usize, path: &str) -> Result<(), String> {
    let text = |error: FsError| format!("remove {path}: {error}");
    let (fs, mut dir) = open(pool, client).await?;
    let (parents, name) = crate::campaign::model::split(path);
    for part in parents.split('/').filter(|part| !part.is_empty()) {
        let found = fs.lookup(dir, part.as_bytes(), &Cred::root()).await;
        dir = found.map_err(text)?.id;
    }
    fs.remove(dir, name.as_bytes(), &Cred::root())
        .await
        .map_err(text)?;
    Ok(())
}

async fn open(pool: &PoolHandle, client: usize) -> Result<(FsHandle, FileId), String> {
    let fs = pool
        .open_fs(scenario::dataset(client))
        .await
        .map_err(|error| error.to_string())?;
    let top = fs.root().await.map_err(|error| error.to_string())?.id;
    let name = scenario::client_dir(client);
    let root = fs.lookup(top, name.as_bytes(), &Cred::root()).await;
    let root = root.map_err(|error| error.to_string())?.id;
    Ok((fs, root))
}

async fn scrub(pool: &PoolHandle, handle: &Handle) -> Result<ScanStatus, String> {
    admin::start_scrub(pool, handle)
        .await
        .map_err(|error| format!("scrub: {error}"))?;
    loop {
        handle.sleep(Duration::from_millis(500)).await;
        let status = pool.status().await.map_err(|error| error.to_string())?;
        let scan = status.scan.unwrap_or_default();
        if !scan.running {
            return Ok(scan);
        }
    }
}
