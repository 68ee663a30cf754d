//! Pools made to harm: somebody has changed blocks, pointers, dnodes, the uberblock or the labels and computed every checksum
//! again. Importing such a pool, reading all of it, scrubbing it and writing to it may be refused and may fail, file by file; it
//! must end, in bounded time and memory, and never with a panic.

pub mod command;
mod surgery;

use std::cell::RefCell;
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
const TIME_MAX: Duration = Duration::from_hours(6);

/// What came of one seed.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// What was done to the pool.
    pub harm: String,
    /// How far it got.
    pub reached: Reached,
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
    let mut rng = Rng::new(seed);
    let mirror = rng.below(4) == 0;
    let mut patient = Patient::open(healthy(mirror)).ok_or("the healthy pool has no uberblock")?;
    let mut harm = Vec::new();
    for _ in 0..rng.below(3) + 1 {
        harm.push(patient.harm(&mut rng));
    }
    let world = World::new(seed);
    for (path, image) in disks(mirror).into_iter().zip(patient.images) {
        world.add_disk_with(path, DiskModel::new(DISK_BYTES), image);
    }
    let limit = || world.plan_cut_after(TIME_MAX);
    let ended = boot(&world, limit, |_, engine| async move {
        let reached = examine(&engine, &mut rng).await;
        // What cannot be exported is given up, as at a crash.
        if engine.pool(POOL).is_ok() {
            let ending = Ending::Export { command: None };
            if engine.end_pool(POOL, ending).await.is_err() {
                let _ = engine.end_pool(POOL, Ending::Abandon).await;
            }
        }
        reached
    });
    match ended {
        Ended::Done(reached) => Ok(Outcome {
            harm: harm.join(", "),
            reached,
        }),
        Ended::PowerCut => Err(format!("no end after {TIME_MAX:?} ({})", harm.join(", "))),
    }
}

async fn examine(engine: &Engine, rng: &mut Rng) -> Reached {
    let Ok(found) = engine.discover(vec![PathBuf::from("/dev")]).await else {
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
    let Ok(pool) = engine.import(candidate, policy).await else {
        return Reached::Refused;
    };
    let mut whole = read_all(&pool).await;
    if !readonly {
        whole &= pool.start_scrub().await.is_ok();
        whole &= change(&pool).await.is_ok();
        whole &= pool.sync().await.is_ok();
        whole &= read_all(&pool).await;
        for name in ["tank/c", "tank/a"] {
            let options = DestroyOptions { recursive: true };
            whole &= pool.destroy_dataset(name, options).await.is_ok();
        }
        whole &= pool.sync().await.is_ok();
    }
    whole &= pool
        .damaged_files()
        .await
        .is_ok_and(|files| files.is_empty());
    if whole {
        Reached::Whole
    } else {
        Reached::Failing
    }
}

/// Reads what can be read; whether that was everything.
async fn read_all(pool: &PoolHandle) -> bool {
    let mut whole = pool.status().await.is_ok();
    whole &= pool.properties().await.is_ok();
    whole &= pool.history().await.is_ok();
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
    let Ok(datasets) = pool.datasets(&filter, &PropertyQuery::All).await else {
        return false;
    };
    for dataset in datasets {
        match dataset.kind {
            DatasetKind::Bookmark => {}
            DatasetKind::Volume => {
                let read = async {
                    let volume = pool.open_volume(&dataset.name).await.ok()?;
                    volume.read(0, READ_MAX).await.ok()
                };
                whole &= read.await.is_some();
            }
            _ => {
                whole &= match pool.open_fs(&dataset.name).await {
                    Ok(fs) => walk(&fs).await,
                    Err(_) => false,
                };
            }
        }
        whole &= pool.object_sums(&dataset.name, 0).await.is_ok();
    }
    whole
}

async fn walk(fs: &FsHandle) -> bool {
    let cred = Cred::root();
    let Ok(root) = fs.root().await else {
        return false;
    };
    let (mut whole, mut visits) = (fs.statfs().await.is_ok(), 0);
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
            let Ok(part) = fs.readdir(dir, cookie, limit, &cred).await else {
                whole = false;
                break;
            };
            for entry in part.entries {
                visits += 1;
                cookie = entry.cookie;
                if entry.name == b"." || entry.name == b".." {
                    continue;
                }
                let Ok(attr) = fs.lookup(dir, &entry.name, &cred).await else {
                    whole = false;
                    continue;
                };
                if attr.file_type == engine::FileType::Directory {
                    dirs.push(attr.id);
                }
                whole &= look(fs, &attr).await;
            }
            if part.eof {
                break;
            }
        }
    }
    whole
}

async fn look(fs: &FsHandle, attr: &engine::Attr) -> bool {
    let cred = Cred::root();
    let id = attr.id;
    let mut whole = match fs.xattrs(id, &cred).await {
        Ok(list) => {
            let mut all = true;
            for stored in list {
                all &= fs.xattr(id, &stored.name, &cred).await.is_ok();
            }
            all
        }
        Err(_) => false,
    };
    match attr.file_type {
        engine::FileType::Regular => {
            whole &= fs.read(id, 0, READ_MAX, &cred).await.is_ok();
            let near_end = attr.size.saturating_sub(4096);
            whole &= fs.read(id, near_end, 4096, &cred).await.is_ok();
            whole &= fs.seek(id, 0, engine::SeekTarget::Hole).await.is_ok();
        }
        engine::FileType::Symlink => whole &= fs.readlink(id).await.is_ok(),
        _ => {}
    }
    whole
}

/// Writes to what there is.
async fn change(pool: &PoolHandle) -> Result<(), Box<dyn std::error::Error>> {
    let cred = Cred::root();
    let mut first = None;
    for name in ["tank/a", "tank/a/b", "tank/c"] {
        let done: Result<(), Box<dyn std::error::Error>> = async {
            let fs = pool.open_fs(name).await?;
            let root = fs.root().await?.id;
            write(&fs, root, b"new", 300_000).await?;
            let old = fs.lookup(root, b"f4", &cred).await?.id;
            let data = IoBuf::copy_from(&[1; 10_000]);
            fs.write(old, 100_000, data, Stability::FileSync, &cred)
                .await?;
            fs.remove(root, b"f2", &cred).await?;
            Ok(())
        }
        .await;
        if let Err(error) = done {
            first.get_or_insert(error);
        }
    }
    let request = SnapshotRequest {
        names: vec!["tank/a@new".to_owned()],
        ..SnapshotRequest::default()
    };
    pool.snapshot(request).await?;
    let volume = pool.open_volume("tank/v").await?;
    let data = IoBuf::copy_from(&[3; 32_768]);
    volume.write(0, data, Stability::FileSync).await?;
    pool.destroy_snapshots(&["tank/a/b@s".to_owned()], false)
        .await?;
    first.map_or(Ok(()), Err)
}
