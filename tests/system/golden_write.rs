//! Goal: a pool that OpenZFS made can be written here and given back. Method: golden pools are imported read-write;
//! files are removed from their file systems and a new file system is filled; after the export zdb accounts for every
//! block, OpenZFS's own code in userland imports and scrubs a copy, and all that was not touched is as the manifest says.

use anyhow::{Context as _, Result, ensure};
use checker::{FileImage, Image, Options};
use engine::{
    CreateDataset, Cred, Ending, Engine, FileType, FsHandle, ImportPolicy, IoBuf, ListLimit,
    PoolHandle, Stability, Threads,
};
use serde_json::Value;
use tests::golden::Golden;
use tests::{block_on, oracle};

use crate::golden_read::{Changed, compare_changed};
use crate::written_pools::{Model, bytes, fill, verify};

/// Files removed from each file system.
const REMOVED: usize = 12;
/// The pool with a raidz that OpenZFS expanded.
const EXPANDED: &str = "q-raidz-expanded";
/// Where each volume is written to, within blocks and over their ends.
const VOLUME_WRITES: [(u64, usize); 3] = [(0, 4096), (1_000_000, 300_000), (3 << 20, 1 << 17)];

pub(crate) fn import(golden: &Golden) -> Result<(Engine, PoolHandle)> {
    let engine = Engine::new(Threads::default());
    let found = block_on(engine.discover(vec![golden.directory().to_path_buf()]))?;
    let candidate = found.pools.into_iter().find(|c| c.name == golden.name);
    let candidate = candidate.with_context(|| format!("{} is not found", golden.name))?;
    let policy = ImportPolicy {
        force: true,
        ..ImportPolicy::default()
    };
    let pool = block_on(engine.import(candidate, policy))?;
    Ok((engine, pool))
}

/// Removes plain files with one name from the root of a file system and its first directories.
pub(crate) fn remove_some(fs: &FsHandle, dataset: &str, changed: &mut Changed) -> Result<()> {
    let cred = Cred::root();
    let root = block_on(fs.root())?.id;
    let mut dirs = vec![(Vec::new(), root)];
    let mut removed = 0;
    while let Some((path, dir)) = dirs.pop() {
        let limit = ListLimit {
            entries: 500,
            bytes: 1 << 20,
            entry_overhead_bytes: 0,
            attrs: true,
        };
        let listing = block_on(fs.readdir(dir, 0, limit, &cred))?;
        for entry in &listing.entries {
            if entry.name == b"." || entry.name == b".." {
                continue;
            }
            let attr = entry.attr.as_ref().context("no attributes")?;
            let mut below = path.clone();
            if !below.is_empty() {
                below.push(b'/');
            }
            below.extend_from_slice(&entry.name);
            match attr.file_type {
                FileType::Directory if dirs.len() < 8 => dirs.push((below, attr.id)),
                FileType::Regular if attr.links == 1 && removed < REMOVED => {
                    match block_on(fs.remove(dir, &entry.name, &cred)) {
                        Ok(_) => {}
                        // Immutable ones stay.
                        Err(error) if error.to_string().contains("not permitted") => continue,
                        Err(error) => {
                            let shown = String::from_utf8_lossy(&below).into_owned();
                            return Err(error).with_context(|| format!("remove {shown}"));
                        }
                    }
                    removed += 1;
                    changed.paths.insert((dataset.to_owned(), below));
                    changed.paths.insert((dataset.to_owned(), path.clone()));
                }
                _ => {}
            }
        }
    }
    Ok(())
}

/// The volumes of a pool, without their snapshots.
fn volumes(golden: &Golden) -> Vec<&str> {
    let datasets = golden.manifest["datasets"].as_object();
    datasets
        .into_iter()
        .flatten()
        .filter(|(name, dataset)| !name.contains('@') && !dataset["volume"].is_null())
        .map(|(name, _)| name.as_str())
        .collect()
}

fn write_volume(pool: &PoolHandle, name: &str) -> Result<()> {
    let volume = block_on(pool.open_volume(name))?;
    for (offset, len) in VOLUME_WRITES {
        let data = IoBuf::from(bytes(offset + 1, len, true));
        block_on(volume.write(offset, data, Stability::FileSync))?;
    }
    Ok(())
}

fn verify_volume(pool: &PoolHandle, name: &str) -> Result<()> {
    let volume = block_on(pool.open_volume(name))?;
    for (offset, len) in VOLUME_WRITES {
        let found = block_on(volume.read(offset, len))?;
        ensure!(
            found
                .iter()
                .flat_map(|piece| piece.iter())
                .eq(&bytes(offset + 1, len, true)),
            "{name}: {len} bytes at {offset} differ"
        );
    }
    Ok(())
}

fn write_to(golden: &Golden, changed: &mut Changed) -> Result<Model> {
    let (engine, pool) = import(golden)?;
    let datasets = golden.manifest["datasets"].as_object();
    for name in volumes(golden) {
        write_volume(&pool, name).with_context(|| name.to_owned())?;
        changed.volumes.insert(name.to_owned());
    }
    for (name, dataset) in datasets.context("no datasets")? {
        if name.contains('@') || dataset["tree"]["entries"].is_null() {
            continue;
        }
        let readonly = &golden.manifest["zfs_get"][name]["readonly"][0];
        if readonly == "on" {
            continue;
        }
        let fs = block_on(pool.open_fs(name)).with_context(|| format!("open {name}"))?;
        remove_some(&fs, name, changed).with_context(|| name.clone())?;
    }
    let made = format!("{}/written-here", golden.name);
    let request = CreateDataset {
        name: made.clone(),
        ..CreateDataset::default()
    };
    block_on(pool.create_dataset(request)).context("create a file system")?;
    let fs = block_on(pool.open_fs(&made))?;
    let model = fill(&fs, 5).context("fill it")?;
    changed.datasets.insert(made);
    drop(fs);
    block_on(engine.end_pool(&golden.name, Ending::Export { command: None })).context("export")?;
    block_on(engine.close())?;
    Ok(model)
}

/// Whether the manifest says that the pool has features: it is of no numbered version.
fn has_features(golden: &Golden) -> bool {
    let version = golden.manifest["zpool_get"]["version"][0].as_str();
    version.is_none_or(|version| version.parse::<u64>().is_err())
}

pub(crate) fn judge(golden: &Golden) -> Result<()> {
    // Our own checker does not know where the blocks of an expanded raidz are.
    if has_features(golden) && golden.name != EXPANDED {
        judge_by_checker(golden)?;
    }
    if oracle::has_zdb() {
        oracle::zdb_clean(golden.directory(), &golden.name)?;
    }
    Ok(())
}

/// Has our own checker, which knows pools with features, look at a pool.
fn judge_by_checker(golden: &Golden) -> Result<()> {
    let files: Vec<FileImage> = golden
        .images()
        .iter()
        .map(|i| FileImage::open(i))
        .collect::<std::io::Result<_>>()?;
    let images: Vec<&dyn Image> = files.iter().map(|f| f as &dyn Image).collect();
    let report = checker::check(&images, Options::default());
    ensure!(
        report.is_clean(),
        "our checker: {:#?}",
        report.errors().take(10).collect::<Vec<_>>()
    );
    Ok(())
}

fn check(name: &str) {
    check_unpacked(&Golden::unpack(name).expect("unpack the golden pool"));
}

fn check_unpacked(golden: &Golden) {
    let name = &golden.name;
    let mut changed = Changed::default();
    let written = write_to(golden, &mut changed).unwrap_or_else(|e| panic!("{name}: {e:#}"));
    judge(golden).unwrap_or_else(|error| panic!("{name}: {error:#}"));
    compare_changed(golden, &changed).unwrap_or_else(|error| panic!("{name}: {error:#}"));
    again(golden, &written).unwrap_or_else(|error| panic!("{name}: {error:#}"));
}

/// As [`check`], of a pool some of whose copies are damaged: a scrub repairs them first.
fn check_repaired(name: &str) {
    let golden = Golden::unpack(name).expect("unpack the golden pool");
    let (engine, pool) = import(&golden).expect("import");
    block_on(pool.start_scrub()).expect("scrub");
    let scan = loop {
        let status = block_on(pool.status()).expect("status");
        match status.scan {
            Some(scan) if !scan.running => break scan,
            _ => std::thread::sleep(std::time::Duration::from_millis(50)),
        }
    };
    assert!(scan.processed_bytes > 0, "there was something to repair");
    assert_eq!(scan.errors, 0, "all of it was repaired");
    block_on(engine.end_pool(&golden.name, Ending::Export { command: None })).expect("export");
    block_on(engine.close()).expect("close");
    check_unpacked(&golden);
}

/// The images of devices that hold the pool's blocks: cache devices and idle spares are not part of its tree.
fn data_images(golden: &Golden) -> Vec<std::path::PathBuf> {
    let status = golden.manifest["zpool_status"].as_array();
    let lines: Vec<&str> = status
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    let others = lines
        .iter()
        .position(|line| matches!(line.trim(), "cache" | "spares"))
        .unwrap_or(lines.len());
    let listed = golden.manifest["images"].as_array();
    let listed = listed.map_or(&[][..], Vec::as_slice);
    std::iter::zip(golden.images(), listed)
        .filter(|(_, image)| {
            let device = image["device_in_vm"].as_str().unwrap_or_default();
            !lines[others..].iter().any(|line| line.contains(device))
        })
        .map(|(path, _)| path)
        .collect()
}

/// OpenZFS has the pool in between; then it is written here a second time.
fn again(golden: &Golden, written: &Model) -> Result<()> {
    if oracle::refpool().is_some() {
        oracle::refpool_scrub(&golden.name, &data_images(golden))?;
    }
    let (engine, pool) = import(golden)?;
    let fs = block_on(pool.open_fs(&format!("{}/written-here", golden.name)))?;
    verify(&fs, written)?;
    for name in volumes(golden) {
        verify_volume(&pool, name)?;
    }
    drop(fs);
    block_on(engine.end_pool(&golden.name, Ending::Export { command: None })).context("export")?;
    block_on(engine.close())?;
    judge(golden).context("after OpenZFS had the pool")
}

#[test]
fn defaults_of_a_single_disk() {
    check("a-single");
}

#[test]
fn mirror() {
    check("b-mirror2");
}

#[test]
fn every_checksum() {
    check("g-checksum");
}

#[test]
fn deduplicated_blocks() {
    check("j1-dedup-legacy");
}

#[test]
fn deduplicated_blocks_with_logs() {
    check("j2-dedup-fast");
}

#[test]
fn cloned_datasets_with_livelists() {
    check("h-snapshots");
}

#[test]
fn cloned_blocks_and_long_names() {
    check("o-features");
}

#[test]
fn special_and_log_vdevs() {
    check("k-special");
}

#[test]
fn sectors_of_512_bytes() {
    check("n1-ashift9");
}

#[test]
fn raidz1_of_three() {
    check("c-raidz1-3");
}

#[test]
fn raidz2_of_six() {
    check("d-raidz2-6");
}

#[test]
fn raidz3_of_five() {
    check("e-raidz3-5");
}

#[test]
fn raidz_with_sectors_of_16k() {
    check("n4-ashift14-raidz");
}

#[test]
fn every_compression() {
    check("f-compress");
}

#[test]
fn volumes_of_every_block_size() {
    check("i-zvols");
}

#[test]
fn sectors_of_4k() {
    check("n2-ashift12");
}

#[test]
fn disks_that_say_4k_themselves() {
    check("n3-ashift-auto-4kn");
}

#[test]
fn a_vdev_that_was_removed() {
    check("r-stripe-indirect");
}

#[test]
fn raidz_that_was_expanded() {
    check(EXPANDED);
}

#[test]
fn raidz2_without_two_of_its_disks() {
    check("p1-degraded-raidz2");
}

#[test]
fn a_mirror_with_damaged_copies() {
    check_repaired("p2-corrupt-mirror");
}

#[test]
fn raidz1_with_damaged_columns() {
    check_repaired("p3-corrupt-raidz1");
}

/// What sanbox says the version of a golden pool is.
fn version(golden: &Golden) -> Result<u64> {
    let (engine, pool) = import(golden)?;
    let version = block_on(pool.version())?;
    block_on(engine.close())?;
    Ok(version)
}

/// A pool of an old version keeps it, whatever is written to it.
fn check_version(name: &str, expected: u64) {
    check(name);
    let golden = Golden::unpack(name).expect("unpack the golden pool");
    write_to(&golden, &mut Changed::default()).expect("write to it");
    assert_eq!(version(&golden).expect("import it"), expected);
}

#[test]
fn version_10() {
    check_version("t3-version10", 10);
}

#[test]
fn version_15_on_raidz2() {
    check_version("t4-version15", 15);
}

#[test]
fn version_23() {
    check_version("t5-version23", 23);
}

#[test]
fn version_26() {
    check_version("t6-version26", 26);
}

#[test]
fn version_28_on_raidz1() {
    check_version("t7-version28", 28);
}

#[test]
fn version_1() {
    check_version("t1-version1", 1);
}

#[test]
fn version_3() {
    check_version("t2-version3", 3);
}

/// Pools become newer step by step, and OpenZFS has nothing against the result.
#[test]
fn upgrades() {
    for name in [
        "t1-version1",
        "t2-version3",
        "t3-version10",
        "t4-version15",
        "t5-version23",
        "t6-version26",
        "t7-version28",
    ] {
        let golden = Golden::unpack(name).expect("unpack the golden pool");
        let mut changed = Changed::default();
        for to in [2, 3, 9, 11, 15, 24, 26, 28, 5000] {
            upgrade(&golden, to).unwrap_or_else(|error| panic!("{name} to {to}: {error:#}"));
            judge(&golden).unwrap_or_else(|error| panic!("{name} at {to}: {error:#}"));
        }
        write_to(&golden, &mut changed).unwrap_or_else(|error| panic!("{name}: {error:#}"));
        judge(&golden).unwrap_or_else(|error| panic!("{name}: {error:#}"));
        compare_changed(&golden, &changed).unwrap_or_else(|error| panic!("{name}: {error:#}"));
        if oracle::refpool().is_some() {
            oracle::refpool_scrub(&golden.name, &golden.images()).expect("it scrubs clean");
        }
    }
}

/// Upgrades a pool, and then takes and destroys snapshots in it: their deadlists change their form.
fn upgrade(golden: &Golden, to: u64) -> Result<()> {
    let (engine, pool) = import(golden)?;
    block_on(pool.upgrade(to))?;
    ensure!(block_on(pool.version())? >= to, "the version is as before");
    let name = format!("{}/fs@to-{to}", golden.name);
    let request = engine::SnapshotRequest {
        names: vec![name.clone()],
        ..engine::SnapshotRequest::default()
    };
    block_on(pool.snapshot(request)).context("take a snapshot")?;
    block_on(pool.destroy_snapshots(&[name], false)).context("destroy it")?;
    block_on(engine.end_pool(&golden.name, Ending::Export { command: None })).context("export")?;
    block_on(engine.close())?;
    Ok(())
}
