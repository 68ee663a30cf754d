//! Goal: imports with options find what OpenZFS would, and leave what it can use. Method: a golden pool whose log devices
//! are gone, pools of ours with cache files that zdb reads, destroyed ones that come back.

use anyhow::{Context as _, Result, ensure};
use engine::{
    Cred, Ending, Engine, EngineError, Health, ImportPolicy, PoolError, PoolHandle, Threads,
};
use std::path::Path;
use tests::golden::Golden;
use tests::{block_on, oracle};

use crate::cli::Place;

fn import(engine: &Engine, directory: &Path, missing_logs: bool) -> Result<PoolHandle> {
    let found = block_on(engine.discover(vec![directory.to_path_buf()]))?;
    let candidate = found.pools.into_iter().next().context("no pool is found")?;
    let policy = ImportPolicy {
        force: true,
        missing_logs,
        ..ImportPolicy::default()
    };
    Ok(block_on(engine.import(candidate, policy))?)
}

fn without_its_log(name: &str) -> Result<()> {
    let golden = Golden::unpack(name)?;
    let engine = Engine::new(Threads::default());
    // Which of them are the log is found by trying: only without the log does the pool say so.
    let away = golden.directory().join("away");
    std::fs::create_dir(&away)?;
    let logs: Vec<_> = golden.images().split_off(golden.images().len() - 2);
    for image in &logs {
        let name = image.file_name().context("a name")?;
        std::fs::rename(image, away.join(name))?;
    }
    let refused = import(&engine, golden.directory(), false).err();
    let refused = refused.context("a pool without its log is imported")?;
    ensure!(
        matches!(
            refused.downcast_ref(),
            Some(EngineError::Pool(PoolError::MissingLogs { missing })) if missing.len() == 2
        ),
        "{refused:?}"
    );
    let pool = import(&engine, golden.directory(), true)?;
    let status = block_on(pool.status())?;
    ensure!(status.health == Health::Degraded, "{status:?}");
    // What was synced is there, and the pool works on.
    let fs = block_on(pool.open_fs(name))?;
    let root = block_on(fs.root())?.id;
    block_on(fs.mkdir(root, b"after", &engine::SetAttr::default(), &Cred::root()))?;
    block_on(pool.sync())?;
    drop((fs, pool));
    block_on(engine.end_pool(name, Ending::Export { command: None }))?;
    if oracle::has_zdb() {
        oracle::zdb_clean(golden.directory(), name)?;
    }
    // The devices are back: nobody misses what their old logs hold.
    for image in &logs {
        let name = image.file_name().context("a name")?;
        std::fs::rename(away.join(name), image)?;
    }
    let pool = import(&engine, golden.directory(), false)?;
    let status = block_on(pool.status())?;
    ensure!(status.health == Health::Online, "{status:?}");
    let fs = block_on(pool.open_fs(name))?;
    let root = block_on(fs.root())?.id;
    block_on(fs.lookup(root, b"after", &Cred::root()))?;
    drop((fs, pool));
    block_on(engine.end_pool(name, Ending::Export { command: None }))?;
    Ok(())
}

#[test]
fn a_pool_of_openzfs_does_without_its_log_devices() {
    without_its_log("l2-zil-slog").expect("imported with -m");
}

#[test]
fn zdb_reads_our_cache_files() {
    let place = Place::new();
    let made = place.run(
        "truncate -s 128M a b c; zpool create -o cachefile=$PWD/cache tank mirror $PWD/a $PWD/b; \
         zfs create tank/fs; zpool create -o cachefile=$PWD/cache lake $PWD/c; ls cache; \
         zpool get -H -o value cachefile lake",
    );
    assert_eq!(made, "cache\nDIR/cache\n");
    if oracle::has_zdb() {
        let cache = Path::new(&place.work()).join("cache");
        for arguments in [&["-C", "tank"][..], &["-d", "tank"], &["-d", "lake"]] {
            let output = oracle::zdb()
                .arg("-U")
                .arg(&cache)
                .args(arguments)
                .output()
                .expect("zdb runs");
            let text = String::from_utf8_lossy(&output.stdout);
            let name = arguments[1];
            assert!(
                output.status.success() && text.contains(name),
                "zdb {arguments:?}: {text}\n{}",
                String::from_utf8_lossy(&output.stderr)
            );
        }
    }
    // The file follows the pools: exported ones leave it, and it goes with the last.
    let moved = place.run(
        "zpool export tank; zpool import -c cache 2>&1; zpool set cachefile=$PWD/other lake; ls cache other; \
         zpool import -d $PWD -o cachefile=$PWD/other tank; zpool export tank; zpool export lake; ls other; \
         zpool import -d $PWD -R /mnt -o cachefile=none lake; zpool list -H -o name",
    );
    assert_eq!(
        moved,
        "no pools available to import\nother\nlake\n! ls: cannot access 'cache': No such file or directory\n\
         ! ls: cannot access 'other': No such file or directory\n"
    );
}

#[test]
fn a_destroyed_pool_comes_back() {
    let place = Place::new();
    let back = place.run(
        "truncate -s 128M a; zpool create tank $PWD/a; printf data > f; zfs create tank/fs; sanbox put f tank/fs:/f; \
         zpool destroy tank; zpool import -d $PWD; zpool import -d $PWD tank; \
         zpool import -D -d $PWD | grep -c DESTROYED; zpool import -D -d $PWD tank; sanbox cat tank/fs:/f; zpool export tank; \
         zpool import -d $PWD | grep state:",
    );
    assert_eq!(
        back,
        "1\ndata state: ONLINE\n! no pools available to import\n\
         ! cannot import 'tank': no such pool available\n"
    );
    if oracle::has_zdb() {
        oracle::zdb_clean(Path::new(&place.work()), "tank").expect("zdb");
    }
}

#[test]
fn an_import_that_mounts_nothing() {
    let mut place = Place::new();
    if !Path::new("/dev/fuse").exists() || place.run("id -u") != "0\n" {
        tests::skip("imports and mounts", "no /dev/fuse, or not root");
        return;
    }
    place.run("mkdir -p $SANBOX_STATE; printf '[mount]\\nautomatic = true\\n' > $SANBOX_STATE/sanbox.toml");
    place.serve(&["--nfs-port", &tests::free_port().to_string()]);
    let made = place.run(
        "truncate -s 128M a; zpool create -m $PWD/m tank $PWD/a; zfs mount | grep -c tank; zpool export tank",
    );
    assert_eq!(made, "1\n");
    let quiet = place.run("zpool import -N -d $PWD tank; zfs mount; zpool export tank");
    assert_eq!(quiet, "");
    let mounted = place
        .run("zpool import -d $PWD tank; zfs mount | grep -c tank; zpool export tank; zfs mount");
    assert_eq!(mounted, "1\n");
    place.stop();
}
