//! Goal: pools that Solaris made are read as OpenZFS reads them, also those of big-endian machines (SPARC). Method: the pools that
//! OpenZFS's test suite keeps for its tests of upgrades (versions 1 to 15, of both byte orders) are imported read-only; the
//! digests of all objects are those that OpenZFS's own code in userland computes. Then they are written to, and zdb and that code judge
//! the result.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use engine::{CreateDataset, Cred, Ending, Engine, ImportPolicy, SnapshotRequest, Threads};
use tests::{block_on, oracle};

use crate::encrypted::sums;
use crate::written_pools::{fill, verify};

const SUITE: &str = "/usr/share/zfs/zfs-tests/tests/functional/cli_root/zpool_upgrade/blockfiles";

/// Pools, what their files are called, and how many there are; whether a big-endian machine made them.
// OpenZFS: tests/zfs-tests/tests/functional/cli_root/zpool_upgrade/zpool_upgrade.cfg
const POOLS: [(&str, &str, usize, bool); 16] = [
    ("v1-pool", "v1", 0, true),
    ("pool-v1stripe", "v1stripe", 3, true),
    ("pool-v1raidz", "v1raidz", 3, true),
    ("pool-v1mirror", "v1mirror", 3, true),
    ("v2-pool", "v2", 0, true),
    ("pool-v2raidz", "v2raidz", 3, true),
    ("v3-pool", "v3", 0, false),
    ("pool-v3raidz", "v3raidz", 3, false),
    ("pool-v3raidz2", "v3raidz2", 3, false),
    ("v5-pool", "v5", 0, false),
    ("v8-pool", "v8", 0, false),
    ("v9-pool", "v9", 0, true),
    ("v10-pool", "v10", 0, true),
    ("v11-pool", "v11", 0, false),
    ("v13-pool", "v13", 0, false),
    ("v15-pool", "v15", 0, true),
];

/// Unpacks the files of a pool.
fn unpack(directory: &Path, name: &str, count: usize) -> Result<Vec<PathBuf>> {
    let names: Vec<String> = match count {
        0 => vec![format!("zfs-pool-{name}.dat")],
        count => (1..=count)
            .map(|number| format!("zfs-pool-{name}{number}.dat"))
            .collect(),
    };
    let mut files = Vec::new();
    for name in names {
        let packed = Path::new(SUITE).join(format!("{name}.bz2"));
        let output = Command::new("bzip2").arg("-dc").arg(&packed).output();
        let output = output.context("run bzip2")?;
        ensure!(output.status.success(), "{} is damaged", packed.display());
        let path = directory.join(name);
        std::fs::write(&path, output.stdout)?;
        files.push(path);
    }
    Ok(files)
}

/// The digests of the root dataset's objects as sanbox reads them.
fn ours(directory: &Path, pool: &str) -> Result<Vec<String>> {
    let engine = Engine::new(Threads::default());
    let found = block_on(engine.discover(vec![directory.to_path_buf()]))?;
    let candidate = found.pools.into_iter().find(|c| c.name == pool);
    let candidate = candidate.with_context(|| format!("{pool} is not found"))?;
    let policy = ImportPolicy {
        readonly: true,
        force: true,
        ..ImportPolicy::default()
    };
    let opened = block_on(engine.import(candidate, policy))?;
    let sums = sums(&opened, pool)?;
    block_on(engine.end_pool(pool, Ending::Export { command: None }))?;
    block_on(engine.close())?;
    Ok(sums)
}

/// What comes of writing to a pool: a snapshot is taken, files are made in its file systems and in a new one, and removed, the
/// snapshot is destroyed. Its version stays.
fn write_to(directory: &Path, pool: &str) -> Result<()> {
    let engine = Engine::new(Threads::default());
    let found = block_on(engine.discover(vec![directory.to_path_buf()]))?;
    let candidate = found.pools.into_iter().find(|c| c.name == pool);
    let candidate = candidate.with_context(|| format!("{pool} is not found"))?;
    let version = candidate.version;
    let policy = ImportPolicy {
        force: true,
        ..ImportPolicy::default()
    };
    let opened = block_on(engine.import(candidate, policy))?;
    let snapshot = format!("{pool}@before");
    let request = SnapshotRequest {
        names: vec![snapshot.clone()],
        ..SnapshotRequest::default()
    };
    block_on(opened.snapshot(request)).context("take a snapshot")?;
    let made = format!("{pool}/written-here");
    let request = CreateDataset {
        name: made.clone(),
        ..CreateDataset::default()
    };
    block_on(opened.create_dataset(request)).context("create a file system")?;
    for name in [pool, &made] {
        let fs = block_on(opened.open_fs(name))?;
        let model = fill(&fs, 7).with_context(|| format!("fill {name}"))?;
        verify(&fs, &model).with_context(|| format!("verify {name}"))?;
        let root = block_on(fs.root())?.id;
        for path in model.keys().filter(|path| !path.contains('/')).step_by(2) {
            block_on(fs.remove(root, path.as_bytes(), &Cred::root()))
                .with_context(|| format!("remove {path} of {name}"))?;
        }
    }
    block_on(opened.destroy_snapshots(&[snapshot], false)).context("destroy it")?;
    ensure!(block_on(opened.version())? == version, "another version");
    block_on(engine.end_pool(pool, Ending::Export { command: None })).context("export")?;
    block_on(engine.close())?;
    Ok(())
}

/// Whether the digests of the root dataset's objects are those that OpenZFS computes.
fn compare(directory: &Path, pool: &str, files: &[PathBuf]) -> Result<()> {
    let mut ours = ours(directory, pool)?;
    let theirs = oracle::refpool_does(pool, files, &[format!("sums:{pool}")])?;
    let mut theirs: Vec<&str> = theirs
        .lines()
        .filter(|line| line.split(' ').next() == Some(pool))
        .collect();
    ours.sort_unstable();
    theirs.sort_unstable();
    ensure!(!ours.is_empty() && ours == theirs, "{ours:#?}\n{theirs:#?}");
    Ok(())
}

#[test]
#[ignore = "long: sixteen pools of Solaris; another test writes to them"]
fn digests_are_those_of_openzfs() {
    if !Path::new(SUITE).exists() {
        tests::skip("pools of Solaris", "zfs-test is not installed");
        return;
    }
    if oracle::refpool().is_none() {
        return;
    }
    for (pool, name, count, big_endian) in POOLS {
        let order = if big_endian { "big" } else { "little" };
        let directory = tempfile::TempDir::new().expect("a directory");
        let files = unpack(directory.path(), name, count).expect("unpack the pool");
        compare(directory.path(), pool, &files)
            .unwrap_or_else(|error| panic!("{pool}, {order}-endian: {error:#}"));
    }
}

/// Writes to the pools of one byte order.
fn check_written(is_big_endian: bool) {
    if !Path::new(SUITE).exists() {
        tests::skip("pools of Solaris", "zfs-test is not installed");
        return;
    }
    for (pool, name, count, _) in POOLS.into_iter().filter(|pool| pool.3 == is_big_endian) {
        let directory = tempfile::TempDir::new().expect("a directory");
        let files = unpack(directory.path(), name, count).expect("unpack the pool");
        write_to(directory.path(), pool).unwrap_or_else(|error| panic!("{pool}: {error:#}"));
        if oracle::refpool().is_some() {
            compare(directory.path(), pool, &files)
                .unwrap_or_else(|error| panic!("{pool}: {error:#}"));
        }
        if oracle::has_zdb() {
            oracle::zdb_clean(directory.path(), pool)
                .unwrap_or_else(|error| panic!("{pool}: {error:#}"));
        }
    }
}

/// OpenZFS has nothing against a pool of Solaris after it was written to here.
#[test]
fn openzfs_reads_what_was_written_to_them() {
    check_written(false);
}

/// The same of pools that big-endian machines made: what was there and what is new are of both byte orders.
#[test]
fn openzfs_reads_what_was_written_to_those_of_big_endian_machines() {
    check_written(true);
}
