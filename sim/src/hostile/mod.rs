//! Pools made to harm: an attacker has changed blocks, pointers, dnodes, the uberblock or the labels and computed every checksum
//! again. Importing such a pool, reading all of it, scrubbing it and writing to it may be refused and may fail, file by file; it
//! must end, in bounded time and memory, and never with a panic.

pub mod command;
mod surgery;

use std::cell::RefCell;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use engine::{
    CreateDataset, CreateMode, Cred, DatasetFilter, DatasetKind, DestroyOptions, Ending, Engine,
    FsHandle, ImportPolicy, IoBuf, PoolHandle, PoolSpec, PropertyQuery, Rewind, SetAttr,
    SnapshotRequest, Stability, VdevSpec,
};
use world::{DiskModel, Ended, Image, Rng, World};

use crate::campaign::scenario::boot;
use surgery::Patient;

const POOL: &str = "tank";
const DISK_BYTES: u64 = 192 << 20;
/// Files and directories looked at in one dataset; a loop of directories has no end.
const VISITS_MAX: u32 = 300;
/// Bytes read of one file, from its beginning and from its end.
const READ_MAX: usize = 1 << 20;
/// Virtual time a machine may take for one pool.
const TIME_MAX: Duration = Duration::from_secs(6 * 3600);

/// What came of one seed.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// What was done to the pool.
    pub harm: String,
    /// How far it got.
    pub reached: Reached,
    /// The first thing that could not be done.
    pub first: Option<String>,
}

/// What could not be done, in words; the first is kept.
#[derive(Default)]
struct Complaints(RefCell<Option<String>>);

impl Complaints {
    /// Returns what came out, or remembers why nothing did.
    fn of<T, E: fmt::Display>(&self, what: &str, result: Result<T, E>) -> Option<T> {
        result
            .inspect_err(|error| {
                let text = || format!("{what}: {error}");
                self.0.borrow_mut().get_or_insert_with(text);
            })
            .ok()
    }
}

/// How far a harmed pool got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reached {
    /// It was not found, or the import was refused.
    Refused,
    /// It was imported; something could not be read or written.
    Failing,
    /// Everything could be read and written.
    Whole,
}

fn disks(mirror: bool) -> Vec<PathBuf> {
    let count = if mirror { 2 } else { 1 };
    (0..count)
        .map(|i| PathBuf::from(format!("/dev/d{i}")))
        .collect()
}

thread_local! {
    /// The healthy pools, made once: a disk, and a mirror.
    static HEALTHY: RefCell<[Option<Vec<Image>>; 2]> = const { RefCell::new([None, None]) };
}

/// A pool with something of everything, exported.
fn healthy(mirror: bool) -> Vec<Image> {
    let index = usize::from(mirror);
    if let Some(images) = HEALTHY.with(|made| made.borrow()[index].clone()) {
        return images;
    }
    let world = World::new(7);
    for path in disks(mirror) {
        world.add_disk(path, DiskModel::new(DISK_BYTES));
    }
    let ended = boot(
        &world,
        || {},
        |_, engine| async move {
            let vdev = if mirror {
                VdevSpec::Mirror(disks(true))
            } else {
                VdevSpec::Single(disks(false).remove(0))
            };
            let spec = PoolSpec {
                name: POOL.to_owned(),
                vdevs: vec![vdev],
                ..PoolSpec::default()
            };
            let pool = engine.create_pool(spec, &[]).await.expect("a pool is made");
            furnish(&pool).await;
            let ending = Ending::Export { command: None };
            engine.end_pool(POOL, ending).await.expect("it is exported");
        },
    );
    assert!(matches!(ended, Ended::Done(())), "no power cut was planned");
    let images: Vec<Image> = world.durable_images().into_values().collect();
    HEALTHY.with(|made| made.borrow_mut()[index] = Some(images.clone()));
    images
}

async fn furnish(pool: &PoolHandle) {
    for (name, volume) in [("tank/a", false), ("tank/a/b", false), ("tank/v", true)] {
        let mut properties = vec![("compression".to_owned(), "off".to_owned())];
        if volume {
            properties.push(("volsize".to_owned(), "4M".to_owned()));
        }
        let request = CreateDataset {
            name: name.to_owned(),
            volume,
            properties,
            ..CreateDataset::default()
        };
        pool.create_dataset(request)
            .await
            .expect("a dataset is made");
    }
    let cred = Cred::root();
    for name in ["tank/a", "tank/a/b"] {
        let fs = pool.open_fs(name).await.expect("it opens");
        let root = fs.root().await.expect("it has a root").id;
        let dir = fs.mkdir(root, b"many", &SetAttr::default(), &cred).await;
        let dir = dir.expect("a directory is made").file.id;
        for i in 0..400_usize {
            let name = format!("a file with a name of some length {i}");
            write(&fs, dir, name.as_bytes(), i % 700)
                .await
                .expect("a file is written");
        }
        for (i, len) in [0, 100, 5000, 131_072, 700_000].into_iter().enumerate() {
            let name = format!("f{i}");
            write(&fs, root, name.as_bytes(), len)
                .await
                .expect("a file is written");
        }
        let id = fs.lookup(root, b"f1", &cred).await.expect("it is there").id;
        let value = [7; 3000];
        fs.set_xattr(id, b"user.note", &value, engine::XattrMode::Any, &cred)
            .await
            .expect("an attribute is set");
        let names = vec![format!("{name}@s")];
        let request = SnapshotRequest {
            names,
            ..SnapshotRequest::default()
        };
        assert!(pool.snapshot(request).await.expect("a snapshot").is_empty());
        fs.remove(root, b"f3", &cred).await.expect("a file goes");
    }
    pool.clone_snapshot("tank/a@s", "tank/c", &[], false)
        .await
        .expect("a clone");
    let volume = pool.open_volume("tank/v").await.expect("it opens");
    let data = IoBuf::copy_from(&[9; 65_536]);
    volume
        .write(8192, data, Stability::Unstable)
        .await
        .expect("it is written");
}

async fn write(
    fs: &FsHandle,
    dir: engine::FileId,
    name: &[u8],
    len: usize,
) -> Result<(), engine::FsError> {
    let cred = Cred::root();
    let made = fs
        .create(dir, name, CreateMode::Guarded, &SetAttr::default(), &cred)
        .await?;
    let bytes: Vec<u8> = (0..=250_u8).cycle().take(len).collect();
    let data = IoBuf::copy_from(&bytes);
    fs.write(made.file.id, 0, data, Stability::Unstable, &cred)
        .await?;
    Ok(())
}

/// Harms a pool as the seed says, and has it imported, read, scrubbed and written to.
///
/// # Errors
/// It did not come to an end.
pub fn run(seed: u64) -> Result<Outcome, String> {
    let changes = |rng: &mut Rng| rng.below(3) + 1;
    run_with(seed, &changes)
}

/// Does the same to an unchanged pool: to be whole in the end.
///
/// # Errors
/// As [`run`].
pub fn run_unharmed(seed: u64) -> Result<Outcome, String> {
    run_with(seed, &|_| 0)
}

fn run_with(seed: u64, changes: &dyn Fn(&mut Rng) -> u64) -> Result<Outcome, String> {
    let mut rng = Rng::new(seed);
    let mirror = rng.below(4) == 0;
    let mut patient = Patient::open(healthy(mirror)).ok_or("the healthy pool has no uberblock")?;
    let mut harm = Vec::new();
    for _ in 0..changes(&mut rng) {
        harm.push(patient.harm(&mut rng));
    }
    let world = World::new(seed);
    for (path, image) in disks(mirror).into_iter().zip(patient.images) {
        world.add_disk_with(path, DiskModel::new(DISK_BYTES), image);
    }
    let limit = || world.plan_cut_after(TIME_MAX);
    let ended = boot(&world, limit, |_, engine| async move {
        let complaints = Complaints::default();
        let reached = examine(&engine, &mut rng, &complaints).await;
        // What cannot be exported is given up, as at a crash.
        if engine.pool(POOL).is_ok() {
            let ending = Ending::Export { command: None };
            if engine.end_pool(POOL, ending).await.is_err() {
                let _ = engine.end_pool(POOL, Ending::Abandon).await;
            }
        }
        let first = complaints.0.into_inner();
        match (reached, &first) {
            (Reached::Whole, Some(_)) => (Reached::Failing, first),
            _ => (reached, first),
        }
    });
    match ended {
        Ended::Done((reached, first)) => Ok(Outcome {
            harm: harm.join(", "),
            reached,
            first,
        }),
        Ended::PowerCut => Err(format!("no end after {TIME_MAX:?} ({})", harm.join(", "))),
    }
}

async fn examine(engine: &Engine, rng: &mut Rng, notes: &Complaints) -> Reached {
    let places = vec![PathBuf::from("/dev")];
    let Some(found) = notes.of("discover", engine.discover(places).await) else {
        return Reached::Refused;
    };
    let Some(candidate) = found.pools.into_iter().next() else {
        return Reached::Refused;
    };
    let name = candidate.name.clone();
    let readonly = rng.below(4) == 0;
    let policy = ImportPolicy {
        force: true,
        readonly,
        rewind: (rng.below(4) == 0).then(Rewind::default),
        // The name may have been changed to anything.
        new_name: (name != POOL).then(|| POOL.to_owned()),
        ..ImportPolicy::default()
    };
    let Some(pool) = notes.of("import", engine.import(candidate, policy).await) else {
        return Reached::Refused;
    };
    read_all(&pool, notes).await;
    if !readonly {
        notes.of("scrub", pool.start_scrub().await);
        change(&pool, notes).await;
        notes.of("sync", pool.sync().await);
        read_all(&pool, notes).await;
        let options = DestroyOptions { recursive: true };
        notes.of(
            "destroy the clone",
            pool.destroy_dataset("tank/c", options).await,
        );
        let snapshots = ["tank/a@s".to_owned(), "tank/a@new".to_owned()];
        let gone = pool.destroy_snapshots(&snapshots, false).await;
        let refused = notes.of("destroy snapshots", gone).unwrap_or_default();
        if let Some(refused) = refused.first() {
            notes.of::<(), _>("destroy snapshots", Err(format!("{refused:?}")));
        }
        notes.of("destroy", pool.destroy_dataset("tank/a", options).await);
        notes.of("sync", pool.sync().await);
    }
    if let Some(files) = notes.of("damage", pool.damaged_files().await)
        && let Some(file) = files.first()
    {
        notes.of::<(), _>("damage", Err(file));
    }
    Reached::Whole
}

/// Reads what can be read.
async fn read_all(pool: &PoolHandle, notes: &Complaints) {
    notes.of("status", pool.status().await);
    notes.of("properties", pool.properties().await);
    notes.of("history", pool.history().await);
    let filter = DatasetFilter {
        root: POOL.to_owned(),
        depth: None,
        kinds: vec![
            DatasetKind::Filesystem,
            DatasetKind::Volume,
            DatasetKind::Snapshot,
            DatasetKind::Bookmark,
        ],
    };
    let datasets = pool.datasets(&filter, &PropertyQuery::All).await;
    for dataset in notes.of("list", datasets).unwrap_or_default() {
        match dataset.kind {
            DatasetKind::Bookmark => continue,
            DatasetKind::Volume => {
                let opened = pool.open_volume(&dataset.name).await;
                if let Some(volume) = notes.of("open a volume", opened) {
                    notes.of("read a volume", volume.read(0, READ_MAX).await);
                }
            }
            _ => {
                let opened = pool.open_fs(&dataset.name).await;
                if let Some(fs) = notes.of("open", opened) {
                    walk(&fs, notes).await;
                }
            }
        }
        let sums = pool.object_sums(&dataset.name, 0).await;
        for sum in notes.of("sums", sums).unwrap_or_default() {
            notes.of("sum", sum.sum);
        }
    }
}

async fn walk(fs: &FsHandle, notes: &Complaints) {
    let cred = Cred::root();
    let Some(root) = notes.of("root", fs.root().await) else {
        return;
    };
    notes.of("statfs", fs.statfs().await);
    let mut visits = 0;
    let mut dirs = vec![root.id];
    let limit = engine::ListLimit {
        entries: 50,
        bytes: 65_536,
        entry_overhead_bytes: 24,
        attrs: true,
    };
    while let Some(dir) = dirs.pop() {
        let mut cookie = 0;
        while visits < VISITS_MAX {
            visits += 1;
            let part = fs.readdir(dir, cookie, limit, &cred).await;
            let Some(part) = notes.of("readdir", part) else {
                break;
            };
            for entry in part.entries {
                visits += 1;
                cookie = entry.cookie;
                if entry.name == b"." || entry.name == b".." {
                    continue;
                }
                let found = fs.lookup(dir, &entry.name, &cred).await;
                let Some(attr) = notes.of("lookup", found) else {
                    continue;
                };
                if attr.file_type == engine::FileType::Directory {
                    dirs.push(attr.id);
                }
                look(fs, &attr, notes).await;
            }
            if part.eof {
                break;
            }
        }
    }
}

async fn look(fs: &FsHandle, attr: &engine::Attr, notes: &Complaints) {
    let cred = Cred::root();
    let id = attr.id;
    let list = notes.of("list attributes", fs.xattrs(id, &cred).await);
    for stored in list.unwrap_or_default() {
        notes.of("read an attribute", fs.xattr(id, &stored.name, &cred).await);
    }
    match attr.file_type {
        engine::FileType::Regular => {
            notes.of("read", fs.read(id, 0, READ_MAX, &cred).await);
            let near_end = attr.size.saturating_sub(4096);
            notes.of("read", fs.read(id, near_end, 4096, &cred).await);
            // Nothing can be sought in an empty file.
            if attr.size > 0 {
                notes.of("seek", fs.seek(id, 0, engine::SeekTarget::Hole).await);
            }
        }
        engine::FileType::Symlink => {
            notes.of("readlink", fs.readlink(id).await);
        }
        _ => {}
    }
}

/// Writes to what there is.
async fn change(pool: &PoolHandle, notes: &Complaints) {
    for name in ["tank/a", "tank/a/b", "tank/c"] {
        if let Some(fs) = notes.of("open", pool.open_fs(name).await) {
            notes.of("change files", change_files(&fs).await);
        }
    }
    let request = SnapshotRequest {
        names: vec!["tank/a@new".to_owned()],
        ..SnapshotRequest::default()
    };
    notes.of("snapshot", pool.snapshot(request).await);
    if let Some(volume) = notes.of("open a volume", pool.open_volume("tank/v").await) {
        let data = IoBuf::copy_from(&[3; 32_768]);
        let written = volume.write(0, data, Stability::FileSync).await;
        notes.of("write a volume", written);
    }
    let names = ["tank/a/b@s".to_owned()];
    notes.of(
        "destroy a snapshot",
        pool.destroy_snapshots(&names, false).await,
    );
}

async fn change_files(fs: &FsHandle) -> Result<(), engine::FsError> {
    let cred = Cred::root();
    let root = fs.root().await?.id;
    write(fs, root, b"new", 300_000).await?;
    let old = fs.lookup(root, b"f4", &cred).await?.id;
    let data = IoBuf::copy_from(&[1; 10_000]);
    fs.write(old, 100_000, data, Stability::FileSync, &cred)
        .await?;
    fs.remove(root, b"f2", &cred).await?;
    Ok(())
}
