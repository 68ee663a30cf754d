//! Fragmentation of free space: what a pool says of itself is what OpenZFS's code (`zdb -M`) says of the same disks.
//!
//! A new pool is not at 0 % where its metaslabs are small: a run of 8 MiB counts 23 %, in a pool of OpenZFS as well.

use std::path::Path;
use std::process::Command;

use dsl::NewDataset;
use dsl::property::DatasetKind;
use pool::{ImportPolicy, Pool, PoolSpec, PoolStatus, VdevSpec};

use crate::support::*;

/// Percent of the pool, then of each top-level vdev.
type Percents = Vec<Option<u64>>;

fn of_status(status: &PoolStatus) -> Percents {
    let tops = status.root.children.iter();
    std::iter::once(status.root.fragmentation_percent)
        .chain(tops.map(|top| top.fragmentation_percent))
        .collect()
}

/// The lines `vdev 0 metaslabs 7 fragmentation 21%` and `pool tank fragmentation 21%` of zdb.
fn of_zdb(dir: &Path) -> Percents {
    let mut zdb = oracle::zdb();
    let output = zdb.args(["-M", "-e", "-p"]).arg(dir).arg(POOL).output();
    let output = output.expect("run zdb");
    let text = String::from_utf8_lossy(&output.stdout);
    let percent = |line: &str| {
        let (_, percent) = line.rsplit_once("fragmentation")?;
        percent.trim().strip_suffix('%')?.parse().ok()
    };
    let about = |what: &'static str| {
        let words = move |line: &&str| line.split_whitespace().next() == Some(what);
        let lines = text.lines().filter(|line| line.contains("fragmentation"));
        lines.filter(words).map(percent)
    };
    let all: Percents = about("pool").chain(about("vdev")).collect();
    assert!(!all.is_empty(), "zdb says: {text}");
    all
}

/// Makes a pool, works on it, and compares what both say while it is as it is on the disks.
fn check(name: &str, [disks, mib]: [u64; 2], spec: PoolSpec, datasets: u32) {
    let disks = usize::try_from(disks).expect("few");
    let world = world(7, disks, mib * MIB);
    let ours = run(&world, async |handle| {
        let pool = Pool::create(&handle, spec, empty_root)
            .await
            .expect("create");
        let name = |number: u32| format!("{POOL}/d{number}");
        for number in 0..datasets {
            let new = NewDataset {
                name: name(number),
                kind: DatasetKind::Filesystem,
                settings: Vec::new(),
                creator: 0,
                key: None,
            };
            let made = pool.hierarchy().create_dataset(new, empty_root).await;
            made.expect("create a dataset");
        }
        for number in (0..datasets).step_by(2) {
            let gone = pool.hierarchy().destroy(&name(number)).await;
            gone.expect("destroy a dataset");
        }
        pool.sync().await.expect("sync");
        of_status(&pool.status())
    });
    let dir = tempfile::tempdir().expect("temporary directory");
    world.dump(dir.path()).expect("dump the disks");
    let judged = of_zdb(dir.path());
    // zdb names the vdevs of the normal class, which come first.
    let named = judged.len().min(ours.len());
    assert!(named > 1, "{name}: a vdev in {judged:?}");
    assert_eq!(ours[..named], judged[..], "{name}: the pool and its vdevs");
}

#[test]
fn pools_of_ours() {
    if !has_zdb() {
        return;
    }
    check("new, 128 MiB", [1, 128], spec(single()), 0);
    check("new, 1 GiB", [1, 1024], spec(single()), 0);
    check("new, 4 GiB", [1, 4096], spec(single()), 0);
    check("a mirror in use", [2, 256], spec(mirror()), 20);
    let raidz = VdevSpec::Raidz {
        parity: 1,
        paths: vec![path(0), path(1), path(2)],
    };
    check("raidz1 in use", [3, 256], spec(vec![raidz]), 10);
    let special = PoolSpec {
        special: vec![VdevSpec::Single(path(1))],
        ..spec(single())
    };
    check("a special vdev", [2, 512], special, 20);
}

/// What zdb says of a pool of OpenZFS's on a file of so many MiB: new, and after each of so many imports; `None` without its code.
fn of_openzfs(mib: u64, imports: usize) -> Option<Vec<Percents>> {
    let refpool = refpool()?;
    let dir = tempfile::tempdir().expect("temporary directory");
    let file = dir.path().join("d0");
    let image = std::fs::File::create(&file).expect("make the image");
    image.set_len(mib * MIB).expect("size the image");
    let run = |arguments: &[&str]| {
        let mut command = Command::new(refpool);
        let command = command.current_dir(dir.path()).args(arguments);
        let done = command.output().expect("refpool runs");
        assert!(done.status.success(), "{done:?}");
        of_zdb(dir.path())
    };
    let path = file.to_str().expect("text");
    let mut said = vec![run(&["create", POOL, "stripe", path])];
    said.extend((0..imports).map(|_| run(&["import", POOL, path])));
    Some(said)
}

/// Each opening goes on in the metaslabs that are in use already: those that nothing was written to stay whole.
#[test]
fn a_new_pool_that_was_opened_a_few_times_is_no_more_fragmented_than_openzfs_makes_it() {
    const IMPORTS: usize = 3;
    if !has_zdb() {
        return;
    }
    for mib in [128, 1024, 4096, 20480] {
        let Some(theirs) = of_openzfs(mib, IMPORTS) else {
            return;
        };
        let world = world(9, 1, mib * MIB);
        let make = |opened: usize| {
            run(&world, async |handle| {
                let pool = if opened == 0 {
                    Pool::create(&handle, spec(single()), empty_root).await
                } else {
                    let found = find(&handle, 1).await;
                    Pool::import(&handle, &found[0], policy()).await
                };
                let pool = pool.expect("open");
                pool.sync().await.expect("sync");
                let ours = of_status(&pool.status());
                pool.export().await.expect("export");
                ours
            })
        };
        let ours: Vec<Percents> = (0..=IMPORTS).map(make).collect();
        let pairs = ours.iter().zip(&theirs);
        let worse = pairs.filter(|(ours, theirs)| ours[0] > theirs[0]).count();
        assert_eq!(worse, 0, "{mib} MiB: {ours:?}, OpenZFS {theirs:?}");
    }
}

/// A pool with unflushed logs of space maps: their histograms are up to date all the same.
#[test]
fn a_pool_of_openzfs_with_logs_of_space_maps() {
    if !has_zdb() {
        return;
    }
    let dir = tempfile::tempdir().expect("temporary directory");
    let file = dir.path().join("d0");
    let image = std::fs::File::create(&file).expect("make the image");
    image.set_len(256 * MIB).expect("size the image");
    let Some(refpool) = refpool() else { return };
    let made = Command::new(refpool)
        .args(["create", POOL, "stripe"])
        .arg(&file)
        // Not exported: that would flush the logs.
        .env("REFPOOL_KEEP", "1")
        .output()
        .expect("refpool runs");
    assert!(made.status.success(), "{made:?}");
    let world = world_of_files(8, &[file]);
    let ours = run(&world, async |handle| {
        let found = find(&handle, 1).await;
        let policy = ImportPolicy {
            readonly: true,
            force: true,
            ..policy()
        };
        let pool = Pool::import(&handle, &found[0], policy).await;
        of_status(&pool.expect("import").status())
    });
    assert_eq!(ours, of_zdb(dir.path()));
}
