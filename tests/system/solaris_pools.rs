//! Goal: pools that Solaris made are read as OpenZFS reads them, also those of big-endian machines (SPARC). Method: the pools that
//! OpenZFS's test suite keeps for its tests of upgrades (versions 1 to 15, of both byte orders) are imported read-only; the
//! digests of all objects are those that OpenZFS's own code in userland computes. Big-endian pools are not written to.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use engine::{Engine, ImportPolicy, Threads};
use tests::{block_on, oracle};

use crate::encrypted::sums;

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

/// The digests of the root dataset's objects as sanbox reads them; and what a writable import is answered, which does not happen.
fn ours(directory: &Path, pool: &str) -> Result<(Vec<String>, Option<String>)> {
    let engine = Engine::new(Threads::default());
    let found = block_on(engine.discover(vec![directory.to_path_buf()]))?;
    let candidate = found.pools.into_iter().find(|c| c.name == pool);
    let candidate = candidate.with_context(|| format!("{pool} is not found"))?;
    let policy = |readonly| ImportPolicy {
        readonly,
        force: true,
        ..ImportPolicy::default()
    };
    let version = candidate.version;
    let opened = block_on(engine.import(candidate.clone(), policy(true)))?;
    let sums = sums(&opened, pool)?;
    block_on(engine.end_pool(pool, engine::Ending::Export { command: None }))?;
    let refused = match version {
        0..9 => block_on(engine.import(candidate, policy(false))).err(),
        _ => None,
    };
    block_on(engine.close())?;
    Ok((sums, refused.map(|error| error.to_string())))
}

fn check(pool: &str, name: &str, count: usize) -> Result<()> {
    let directory = tempfile::TempDir::new()?;
    let files = unpack(directory.path(), name, count)?;
    let (mut ours, refused) = ours(directory.path(), pool)?;
    if let Some(words) = refused {
        ensure!(words.contains("readonly=on"), "a refusal: {words}");
    }
    let theirs = oracle::refpool_does(pool, &files, &[format!("sums:{pool}")])?;
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
        check(pool, name, count)
            .unwrap_or_else(|error| panic!("{pool}, {order}-endian: {error:#}"));
    }
}
