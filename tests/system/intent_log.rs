//! Goal: what was acknowledged as durable is there after a crash, whoever wrote the log. Method: golden pools that
//! OpenZFS left with everything in its intent log are imported read-write and equal the manifest afterwards; pools of
//! ours are let go as a crash would, zdb reads their logs and accounts for all space, and another import finds every
//! acknowledged change.

use anyhow::{Context as _, Result, ensure};
use checker::{FileImage, Image, Options};
use engine::{
    CreateDataset, CreateMode, Cred, Ending, Engine, FileId, FileType, FsHandle, ImportPolicy,
    IoBuf, PoolHandle, PoolSpec, SetAttr, SetTime, Stability, Threads, Timestamp, Tuning, VdevSpec,
    XattrMode,
};
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tests::golden::Golden;
use tests::{block_on, oracle};

use crate::golden_read::{Changed, entries_as_listed, hash, hex, walk};

/// Age at which a group is written: long, so that the logs hold all changes on a slow machine, too.
const TXG_TIMEOUT: Duration = Duration::from_secs(120);

fn import(engine: &Engine, directory: &Path) -> Result<PoolHandle> {
    let found = block_on(engine.discover(vec![directory.to_path_buf()]))?;
    let candidate = found.pools.into_iter().next().context("no pool is found")?;
    let policy = ImportPolicy {
        force: true,
        ..ImportPolicy::default()
    };
    Ok(block_on(engine.import(candidate, policy))?)
}

fn our_checker(images: &[PathBuf], crashed: bool) -> Result<()> {
    let files: Vec<FileImage> = images
        .iter()
        .map(|i| FileImage::open(i))
        .collect::<std::io::Result<_>>()?;
    let images: Vec<&dyn Image> = files.iter().map(|f| f as &dyn Image).collect();
    let report = checker::check(&images, Options { crashed });
    ensure!(
        report.is_clean(),
        "our checker: {:#?}",
        report.errors().take(10).collect::<Vec<_>>()
    );
    Ok(())
}

/// Compares the file systems of a pool with what was acknowledged before the crash.
pub(crate) fn as_acknowledged(pool: &PoolHandle, manifest: &Value) -> Result<usize> {
    let trees = manifest["crash"]["acknowledged_tree"]
        .as_object()
        .context("no acknowledged trees")?;
    // Changes of names have no times in the log: a replay, ours and OpenZFS's, gives directories those of its own.
    let new_mtime = manifest["after_replay"]["mtime_is_replay_time"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .chain(trees.keys().map(String::as_str))
        .map(|path| path.trim_end_matches('/').to_owned())
        .collect();
    let changed = Changed {
        new_mtime,
        ..Changed::default()
    };
    let mut differences = Vec::new();
    let mut files = 0;
    for (mountpoint, tree) in trees {
        let dataset = mountpoint.trim_start_matches('/');
        let fs = block_on(pool.open_fs(dataset)).with_context(|| format!("open {dataset}"))?;
        files += entries_as_listed(&fs, dataset, tree, &[], &changed, &mut differences)?;
    }
    let volumes = manifest["crash"]["acknowledged_volumes"].as_object();
    for (name, expected) in volumes.into_iter().flatten() {
        let volume = block_on(pool.open_volume(name)).with_context(|| format!("open {name}"))?;
        let size = block_on(volume.info())?.size;
        ensure!(
            expected["size"].as_u64() == Some(size),
            "{name} has {size} bytes"
        );
        let mut digest = Sha256::new();
        let mut at = 0;
        while at < size {
            let len = usize::try_from(size - at)?.min(1 << 20);
            for piece in block_on(volume.read(at, len))? {
                digest.update(&piece[..]);
            }
            at += len as u64;
        }
        ensure!(
            expected["sha256"].as_str() == Some(hex(&digest.finalize()).as_str()),
            "{name} has another content"
        );
        files += 1;
    }
    ensure!(
        differences.is_empty(),
        "{} differences:\n{}",
        differences.len(),
        differences
            .iter()
            .take(20)
            .cloned()
            .collect::<Vec<_>>()
            .join("\n")
    );
    Ok(files)
}

/// Imports a golden pool whose log was never replayed, twice, and compares it each time.
fn replayed(name: &str) -> Result<usize> {
    let golden = Golden::unpack(name)?;
    let engine = Engine::new(Threads::default());
    let pool = match import(&engine, golden.directory()) {
        Err(error) if format!("{error:#}").contains("unsupported feature(s)") => {
            // The log is not what stands in the way.
            tests::skip(&format!("replay of {name}"), &format!("{error:#}"));
            return Ok(usize::MAX);
        }
        other => other?,
    };
    let files = as_acknowledged(&pool, &golden.manifest).context("after the replay")?;
    block_on(engine.end_pool(name, Ending::Export { command: None }))?;
    our_checker(&golden.images(), false)?;
    if oracle::has_zdb() {
        oracle::zdb_clean(golden.directory(), name)?;
    }
    let pool = import(&engine, golden.directory())?;
    as_acknowledged(&pool, &golden.manifest).context("after another import")?;
    block_on(engine.close())?;
    Ok(files)
}

#[test]
fn a_log_of_openzfs_in_the_pool() {
    let files = replayed("l1-zil-inpool").expect("everything acknowledged");
    assert!(files > 100, "{files} files were compared");
}

#[test]
fn a_log_of_openzfs_on_log_devices() {
    let files = replayed("l2-zil-slog").expect("everything acknowledged");
    assert!(files > 40, "{files} files and volumes were compared");
}

const POOL: &str = "crash";

struct World {
    directory: TempDir,
    images: Vec<PathBuf>,
    engine: Engine,
    pool: PoolHandle,
}

/// Where a pool's intent logs are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Logs {
    InPool,
    Striped,
    Mirrored,
}

impl World {
    fn new(disks: usize, logs: Logs) -> Result<Self> {
        let directory = TempDir::new()?;
        let mut images: Vec<PathBuf> = (0..disks)
            .map(|i| directory.path().join(format!("d{i}.img")))
            .collect();
        let log_images: Vec<PathBuf> = match logs {
            Logs::InPool => Vec::new(),
            Logs::Striped | Logs::Mirrored => (0..2)
                .map(|i| directory.path().join(format!("log{i}.img")))
                .collect(),
        };
        for image in images.iter().chain(&log_images) {
            std::fs::File::create(image)?.set_len(512 << 20)?;
        }
        let logs = match logs {
            Logs::InPool => Vec::new(),
            Logs::Striped => log_images.iter().cloned().map(VdevSpec::Single).collect(),
            Logs::Mirrored => vec![VdevSpec::Mirror(log_images.clone())],
        };
        let engine = Engine::new(Threads::default());
        let vdev = match images.as_slice() {
            [one] => VdevSpec::Single(one.clone()),
            many => VdevSpec::Mirror(many.to_vec()),
        };
        let mut tuning = Tuning::default();
        tuning.txg.timeout = TXG_TIMEOUT;
        let spec = PoolSpec {
            name: POOL.to_owned(),
            vdevs: vec![vdev],
            logs,
            // Without the second, attributes among a file's own have no record, and commits of them wait for the group.
            properties: [("ashift", "12"), ("feature@zilsaxattr", "enabled")]
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .into(),
            tuning,
            ..PoolSpec::default()
        };
        let pool = block_on(engine.create_pool(spec, &[]))?;
        images.extend(log_images);
        Ok(Self {
            directory,
            images,
            engine,
            pool,
        })
    }

    fn dataset(&self, name: &str, properties: &[(&str, &str)]) -> Result<FsHandle> {
        let name = format!("{POOL}/{name}");
        let properties = properties
            .iter()
            .map(|(n, v)| ((*n).to_owned(), (*v).to_owned()))
            .collect();
        let request = CreateDataset {
            name: name.clone(),
            properties,
            ..CreateDataset::default()
        };
        block_on(self.pool.create_dataset(request))?;
        Ok(block_on(self.pool.open_fs(&name))?)
    }

    fn fs(&self, name: &str) -> Result<FsHandle> {
        Ok(block_on(self.pool.open_fs(&format!("{POOL}/{name}")))?)
    }

    /// Lets the pool go without writing anything more.
    fn crash(&self) -> Result<()> {
        block_on(self.engine.end_pool(POOL, Ending::Abandon))?;
        Ok(())
    }

    fn import(&mut self) -> Result<()> {
        self.pool = import(&self.engine, self.directory.path())?;
        Ok(())
    }

    /// Bytes of the log images that are not holes, labels aside.
    fn log_bytes(&self) -> Result<u64> {
        let mut used = 0;
        for image in &self.images {
            if image
                .file_name()
                .is_some_and(|name| name.to_string_lossy().starts_with("log"))
            {
                let bytes = std::fs::read(image)?;
                let data = &bytes[4 << 20..bytes.len() - (1 << 20)];
                used += data
                    .chunks(4096)
                    .filter(|page| page.iter().any(|&b| b != 0))
                    .count() as u64
                    * 4096;
            }
        }
        Ok(used)
    }

    /// Asks zdb about the crashed pool: all space accounted for, and every record of the logs as it reads them.
    fn zdb_reads_the_log(&self, kinds: &[&str]) -> Result<()> {
        if !oracle::has_zdb() {
            return Ok(());
        }
        oracle::zdb_clean(self.directory.path(), POOL)?;
        let output = oracle::zdb()
            .args(["-e", "-p"])
            .arg(self.directory.path())
            .args(["-ivvv", POOL])
            .output()
            .context("run zdb")?;
        let out = String::from_utf8_lossy(&output.stdout);
        ensure!(
            output.status.success(),
            "zdb -ivvv: {}\n{out}",
            output.status
        );
        for kind in kinds {
            // Not the line of the table at the end.
            let shows = |line: &str| {
                line.contains(kind) && (line.contains(" len ") || !kind.starts_with("TX_"))
            };
            ensure!(out.lines().any(shows), "zdb -ivvv shows no {kind}:\n{out}");
        }
        Ok(())
    }
}

fn bytes(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..len)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            u8::try_from(state >> 56).expect("eight bits")
        })
        .collect()
}

fn create(fs: &FsHandle, dir: FileId, name: &str) -> Result<FileId> {
    let (mode, cred) = (CreateMode::Guarded, Cred::root());
    let made = block_on(fs.create(dir, name.as_bytes(), mode, &SetAttr::default(), &cred));
    Ok(made.with_context(|| format!("create {name}"))?.file.id)
}

fn write(fs: &FsHandle, id: FileId, at: u64, data: &[u8], stability: Stability) -> Result<()> {
    let data = IoBuf::copy_from(data);
    block_on(fs.write(id, at, data, stability, &Cred::root()))?;
    Ok(())
}

fn content(fs: &FsHandle, id: FileId) -> Result<Vec<u8>> {
    let size = block_on(fs.getattr(id))?.size;
    let mut all = Vec::new();
    while (all.len() as u64) < size {
        let data = block_on(fs.read(id, all.len() as u64, 1 << 20, &Cred::root()))?;
        ensure!(!data.is_empty(), "a hole in the middle of reading");
        for piece in &data.pieces {
            all.extend_from_slice(&piece[..]);
        }
    }
    Ok(all)
}

/// The first commit of a log waits for a group. What is changed from then on until the next one is in the log only.
fn begin_log(fs: &FsHandle) -> Result<()> {
    let root = block_on(fs.root())?.id;
    let first = create(fs, root, "first")?;
    write(fs, first, 0, b"log", Stability::FileSync)
}

/// One of every kind of change; returns the files to look at again.
fn changes(fs: &FsHandle) -> Result<FileId> {
    let (root, cred) = (block_on(fs.root())?.id, Cred::root());
    let dir = block_on(fs.mkdir(root, b"dir", &SetAttr::default(), &cred))?
        .file
        .id;
    let file = create(fs, dir, "file")?;
    write(fs, file, 0, &bytes(1, 500_000), Stability::Unstable)?;
    write(fs, file, 100_000, &bytes(2, 10), Stability::Unstable)?;
    let set = SetAttr {
        mode: Some(0o640),
        uid: Some(1000),
        gid: Some(1001),
        mtime: Some(SetTime::Client(Timestamp {
            seconds: 1_000_000_000,
            nanoseconds: 7,
        })),
        flags: Some(engine::FlagsChange {
            set: engine::flags::NODUMP,
            clear: 0,
        }),
        ..SetAttr::default()
    };
    block_on(fs.link(file, root, b"second", &cred))?;
    block_on(fs.symlink(root, b"soft", b"to/nowhere", &SetAttr::default(), &cred))?;
    let fifo = FileType::Fifo;
    block_on(fs.mknod(
        root,
        b"pipe",
        fifo,
        engine::DeviceNumber::default(),
        &SetAttr::default(),
        &cred,
    ))?;
    let cut = create(fs, root, "cut")?;
    write(fs, cut, 0, &bytes(3, 300_000), Stability::Unstable)?;
    let size = SetAttr {
        size: Some(70_000),
        ..SetAttr::default()
    };
    block_on(fs.setattr(cut, &size, None, &cred))?;
    block_on(fs.punch(cut, 10_000, 20_000, &cred))?;
    block_on(fs.commit(cut, 0, 0))?;
    block_on(fs.set_xattr(file, b"user.note", b"hello", XattrMode::Any, &cred))?;
    block_on(fs.set_xattr(file, b"user.big", &bytes(4, 50_000), XattrMode::Any, &cred))?;
    let gone = create(fs, root, "gone")?;
    write(fs, gone, 0, b"x", Stability::FileSync)?;
    block_on(fs.remove(root, b"gone", &cred))?;
    block_on(fs.mkdir(root, b"empty", &SetAttr::default(), &cred))?;
    block_on(fs.rmdir(root, b"empty", &cred))?;
    let old = create(fs, root, "old")?;
    write(fs, old, 0, b"renamed", Stability::Unstable)?;
    create(fs, dir, "target")?;
    block_on(fs.rename(root, b"old", dir, b"target", &cred))?;
    block_on(fs.commit(old, 0, 0))?;
    block_on(fs.mkdir(dir, b"inner", &SetAttr::default(), &cred))?;
    let plain = create(fs, root, "plain")?;
    write(fs, plain, 0, b"changed places", Stability::Unstable)?;
    block_on(fs.exchange(root, b"plain", dir, b"inner", &cred))?;
    block_on(fs.commit(plain, 0, 0))?;
    block_on(fs.setattr(file, &set, None, &cred))?;
    block_on(fs.commit(file, 0, 0))?;
    Ok(file)
}

fn changes_are_there(fs: &FsHandle, file: FileId) -> Result<()> {
    let (root, cred) = (block_on(fs.root())?.id, Cred::root());
    let dir = block_on(fs.lookup(root, b"dir", &cred))?.id;
    ensure!(
        block_on(fs.lookup(dir, b"file", &cred))?.id == file,
        "same handle"
    );
    ensure!(
        block_on(fs.lookup(root, b"second", &cred))?.id == file,
        "link"
    );
    let mut expected = bytes(1, 500_000);
    expected[100_000..100_010].copy_from_slice(&bytes(2, 10));
    ensure!(content(fs, file)? == expected, "content");
    let attr = block_on(fs.getattr(file))?;
    ensure!(
        (attr.mode, attr.uid, attr.gid, attr.links) == (0o640, 1000, 1001, 2),
        "attributes: {attr:?}"
    );
    ensure!(
        attr.mtime.seconds == 1_000_000_000 && attr.mtime.nanoseconds == 7,
        "mtime"
    );
    ensure!(attr.flags & engine::flags::NODUMP != 0, "flags");
    ensure!(
        block_on(fs.xattr(file, b"user.note", &cred))? == b"hello",
        "short attribute"
    );
    ensure!(
        block_on(fs.xattr(file, b"user.big", &cred))? == bytes(4, 50_000),
        "long attribute"
    );
    let soft = block_on(fs.lookup(root, b"soft", &cred))?.id;
    ensure!(
        block_on(fs.readlink(soft))? == b"to/nowhere",
        "symbolic link"
    );
    let pipe = block_on(fs.lookup(root, b"pipe", &cred))?;
    ensure!(pipe.file_type == FileType::Fifo, "pipe");
    let cut = block_on(fs.lookup(root, b"cut", &cred))?.id;
    let mut expected = bytes(3, 70_000);
    expected[10_000..30_000].fill(0);
    ensure!(content(fs, cut)? == expected, "cut and punched");
    ensure!(
        block_on(fs.lookup(root, b"gone", &cred)).is_err(),
        "removed"
    );
    ensure!(
        block_on(fs.lookup(root, b"empty", &cred)).is_err(),
        "removed directory"
    );
    ensure!(
        block_on(fs.lookup(root, b"old", &cred)).is_err(),
        "renamed away"
    );
    let inner = block_on(fs.lookup(dir, b"inner", &cred))?.id;
    ensure!(content(fs, inner)? == b"changed places", "exchanged");
    let plain = block_on(fs.lookup(root, b"plain", &cred))?;
    ensure!(plain.file_type == FileType::Directory, "exchanged for it");
    let target = block_on(fs.lookup(dir, b"target", &cred))?.id;
    ensure!(content(fs, target)? == b"renamed", "renamed over another");
    Ok(())
}

/// Everything in a file system, a line each, for `tests/interop/log.sh`.
fn listing(fs: &FsHandle, name: &str) -> Result<Vec<String>> {
    let root = block_on(fs.root())?;
    let mut found = BTreeMap::new();
    walk(fs, Vec::new(), root.id, &mut found)?;
    let mut lines = Vec::new();
    for (path, id) in found {
        let attr = block_on(fs.getattr(id))?;
        let what = match attr.file_type {
            FileType::Regular => format!("{} {}", attr.size, hash(fs, id, 0, attr.size)?),
            FileType::Symlink => {
                let target = block_on(fs.readlink(id))?;
                String::from_utf8_lossy(&target).into_owned()
            }
            _ => String::new(),
        };
        let mut attributes = Vec::new();
        for xattr in block_on(fs.xattrs(id, &Cred::root()))? {
            let value = block_on(fs.xattr(id, &xattr.name, &Cred::root()))?;
            let name = String::from_utf8_lossy(&xattr.name).into_owned();
            attributes.push(format!("{name}={}", hex(&Sha256::digest(&value))));
        }
        attributes.sort();
        lines.push(format!(
            "{name}/{} {:o} {} {} {} {what} [{}]",
            String::from_utf8_lossy(&path),
            attr.file_type.mode_bits() | u64::from(attr.mode),
            attr.uid,
            attr.gid,
            attr.links,
            attributes.join(" ")
        ));
    }
    lines.sort();
    Ok(lines)
}

/// With `SANBOX_CRASHED_POOL=DIRECTORY` the crashed pool is kept there, for the real kernel module to replay, with the
/// list of what it should find.
fn crash_and_replay(logs: Logs) -> Result<()> {
    let (mut world, [a, b, c]) = loop {
        let world = World::new(2, logs)?;
        let fs = world.dataset("fs", &[])?;
        let dir = world.dataset("dirs", &[("xattr", "dir"), ("recordsize", "16K")])?;
        let direct = world.dataset("direct", &[("logbias", "throughput"), ("recordsize", "8K")])?;
        for fs in [&fs, &dir, &direct] {
            begin_log(fs)?;
        }
        let began = Instant::now();
        let changed = [changes(&fs)?, changes(&dir)?, changes(&direct)?];
        drop((fs, dir, direct));
        world.crash()?;
        if began.elapsed() < TXG_TIMEOUT / 2 {
            break (world, changed);
        }
        // So late on a busy machine a group has synced meanwhile, and the logs do not hold everything.
    };
    our_checker(&world.images, true)?;
    world.zdb_reads_the_log(&[
        "TX_CREATE ",
        "TX_MKDIR ",
        "TX_MKXATTR ",
        "TX_SYMLINK ",
        "TX_REMOVE ",
        "TX_RMDIR ",
        "TX_LINK ",
        "TX_RENAME ",
        "TX_RENAME_EXCHANGE ",
        "TX_WRITE ",
        "TX_TRUNCATE ",
        "TX_SETATTR ",
        "TX_SETSAXATTR ",
        // A write whose record points to its block.
        "has blkptr",
    ])?;
    let there = |world: &World| -> Result<()> {
        changes_are_there(&world.fs("fs")?, a).context("fs")?;
        changes_are_there(&world.fs("dirs")?, b).context("dirs")?;
        changes_are_there(&world.fs("direct")?, c).context("direct")
    };
    claimed_by_openzfs(&mut world, there)?;
    let kept = std::env::var_os("SANBOX_CRASHED_POOL").map(PathBuf::from);
    if logs != Logs::InPool {
        let used = world.log_bytes()?;
        ensure!(used > 0, "nothing is on the log devices");
    }
    if let Some(kept) = &kept {
        for image in &world.images {
            std::fs::copy(image, kept.join(image.file_name().context("a name")?))?;
        }
    }
    world.import()?;
    there(&world)?;
    if let Some(kept) = &kept {
        let mut lines = listing(&world.fs("fs")?, "fs")?;
        lines.extend(listing(&world.fs("dirs")?, "dirs")?);
        lines.extend(listing(&world.fs("direct")?, "direct")?);
        lines.sort();
        std::fs::write(kept.join("expect"), lines.join("\n") + "\n")?;
    }
    block_on(
        world
            .engine
            .end_pool(POOL, Ending::Export { command: None }),
    )?;
    our_checker(&world.images, false)?;
    world.zdb_reads_the_log(&[])?;
    world.import()?;
    there(&world).context("again")?;
    block_on(world.engine.close())?;
    Ok(())
}

/// Lets OpenZFS's own code import a copy of the crashed pool: it claims the logs, with the blocks their records point to,
/// and scrubs them. What it leaves is then replayed here.
fn claimed_by_openzfs(world: &mut World, there: impl Fn(&World) -> Result<()>) -> Result<()> {
    if oracle::refpool().is_none() {
        return Ok(());
    }
    let directory = TempDir::new()?;
    let mut images = Vec::new();
    for image in &world.images {
        let copy = directory.path().join(image.file_name().context("a name")?);
        std::fs::copy(image, &copy)?;
        images.push(copy);
    }
    oracle::refpool_scrub(POOL, &images).context("OpenZFS claims the log")?;
    world.pool = import(&world.engine, directory.path())?;
    there(world).context("what OpenZFS claimed")?;
    let ending = Ending::Export { command: None };
    block_on(world.engine.end_pool(POOL, ending))?;
    our_checker(&images, false)
}

#[test]
fn a_log_of_ours() {
    crash_and_replay(Logs::InPool).expect("everything acknowledged");
}

#[test]
#[ignore = "long: one layout of log devices; others are tested beside it"]
fn a_log_of_ours_on_striped_devices() {
    crash_and_replay(Logs::Striped).expect("everything acknowledged");
}

#[test]
fn a_log_of_ours_on_mirrored_devices() {
    crash_and_replay(Logs::Mirrored).expect("everything acknowledged");
}
