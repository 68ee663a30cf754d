//! A machine with modelled disks, a minimal root dataset, and OpenZFS's tools as judges.

use std::path::{Path, PathBuf};
use std::process::Command;

use dmu::{Objset, Tx};
use dsl::property::Setting;
pub(crate) use oracle::{has_zdb, refpool};
use pool::{Candidate, HostIdentity, ImportPolicy, Pool, PoolSpec, VdevSpec, discover};
use runtime::Handle;
use world::{DiskModel, Ended, World};

pub(crate) const POOL: &str = "tank";
pub(crate) const MIB: u64 = 1 << 20;

pub(crate) fn host() -> HostIdentity {
    HostIdentity {
        hostid: 0x1234_5678,
        hostname: "here".into(),
        kernel: String::new(),
    }
}

pub(crate) fn path(disk: usize) -> PathBuf {
    PathBuf::from(format!("/disks/d{disk}"))
}

pub(crate) fn world(seed: u64, disks: usize, size: u64) -> World {
    let world = World::new(seed);
    for disk in 0..disks {
        world.add_disk(path(disk), DiskModel::new(size));
    }
    world
}

pub(crate) fn single() -> Vec<VdevSpec> {
    vec![VdevSpec::Single(path(0))]
}

pub(crate) fn mirror() -> Vec<VdevSpec> {
    vec![VdevSpec::Mirror(vec![path(0), path(1)])]
}

pub(crate) fn spec(vdevs: Vec<VdevSpec>) -> PoolSpec {
    PoolSpec {
        name: POOL.into(),
        vdevs,
        host: host(),
        command: Some("zpool create tank".into()),
        ..PoolSpec::default()
    }
}

/// An empty root dataset: enough for OpenZFS's userland, which does not look into file systems.
pub(crate) async fn empty_root(_: &Objset, _: &Tx, _: &[Setting]) -> dsl::Result<()> {
    Ok(())
}

pub(crate) async fn create(handle: &Handle, vdevs: Vec<VdevSpec>) -> Pool {
    Pool::create(handle, spec(vdevs), empty_root)
        .await
        .expect("create the pool")
}

pub(crate) async fn find(handle: &Handle, disks: usize) -> Vec<Candidate> {
    let places: Vec<PathBuf> = (0..disks).map(path).collect();
    let found = discover(handle, &places).await;
    for (path, reason) in &found.rejected {
        eprintln!("{}: {reason}", path.display());
    }
    found.pools
}

pub(crate) fn policy() -> ImportPolicy {
    ImportPolicy {
        host: host(),
        ..ImportPolicy::default()
    }
}

pub(crate) async fn import(handle: &Handle, disks: usize) -> Pool {
    let found = find(handle, disks).await;
    assert_eq!(found.len(), 1, "one pool on the disks");
    Pool::import(handle, &found[0], policy())
        .await
        .expect("import the pool")
}

/// Runs to the end; a power cut would be the test's mistake.
pub(crate) fn run<T, F: Future<Output = T>>(world: &World, main: impl FnOnce(Handle) -> F) -> T {
    match world.run(main) {
        Ended::Done(output) => output,
        Ended::PowerCut => panic!("the world cut no power"),
    }
}

/// Makes a pool on the disks and exports it.
pub(crate) fn make_exported(world: &World, vdevs: Vec<VdevSpec>) {
    run(world, |handle| async move {
        let pool = create(&handle, vdevs).await;
        pool.export().await.expect("export");
    });
}

/// Lets zdb check every checksum, every reference count and all space of the pool on the disks.
pub(crate) fn zdb_clean(world: &World, what: &str) {
    if !has_zdb() {
        return;
    }
    let dir = tempfile::tempdir().expect("temporary directory");
    world.dump(dir.path()).expect("dump the disks");
    zdb_clean_dir(dir.path(), what);
}

pub(crate) fn zdb_clean_dir(dir: &Path, what: &str) {
    if let Err(complaint) = oracle::zdb_clean(dir, POOL) {
        let kept = keep(dir);
        panic!("{what}: {complaint:#}; disks kept in {}", kept.display());
    }
}

/// Has zdb check that livelists agree with what is allocated.
pub(crate) fn zdb_livelists(world: &World, what: &str) {
    if !has_zdb() {
        return;
    }
    let dir = tempfile::tempdir().expect("temporary directory");
    world.dump(dir.path()).expect("dump the disks");
    let output = oracle::zdb()
        .args(["-y", "-e", "-p"])
        .arg(dir.path())
        .arg(POOL)
        .output()
        .expect("zdb runs");
    let out = String::from_utf8_lossy(&output.stdout).into_owned();
    let err = String::from_utf8_lossy(&output.stderr).into_owned();
    let bad = !output.status.success() || out.contains("ERROR") || err.contains("ERROR");
    assert!(!bad, "{what}: zdb -y: {}\n{}", tail(&out), tail(&err));
}

/// Copies the disks aside for a look after a failed test.
fn keep(dir: &Path) -> PathBuf {
    let kept = std::env::temp_dir().join(format!("pool-test-{}", std::process::id()));
    drop(std::fs::create_dir_all(&kept));
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        drop(
            Command::new("cp")
                .arg("--sparse=always")
                .arg(entry.path())
                .arg(&kept)
                .status(),
        );
    }
    kept
}

fn tail(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(25)..].join("\n")
}

/// Lets OpenZFS's code work on the disks: `args` follow the names of the files (`import`, or `ds`
/// with operations).  Returns false when it is not there.
pub(crate) fn refpool_run(dir: &Path, command: &str, files: &[PathBuf], args: &[&str]) -> bool {
    match refpool_try(dir, command, files, args) {
        None => false,
        Some(Ok(())) => true,
        Some(Err(failure)) => panic!("{failure}"),
    }
}

/// The same, for a run that is expected to fail: returns its message then.
pub(crate) fn refpool_try(
    dir: &Path,
    command: &str,
    files: &[PathBuf],
    args: &[&str],
) -> Option<Result<(), String>> {
    let output = Command::new(refpool()?)
        .current_dir(dir)
        .arg(command)
        .arg(POOL)
        .args(files)
        .args(args)
        .output()
        .expect("refpool runs");
    let out = String::from_utf8_lossy(&output.stdout);
    let err = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        let status = output.status;
        return Some(Err(format!("refpool {command}: {status}\n{out}\n{err}")));
    }
    let scrubs = args.iter().any(|arg| arg.starts_with("scrub:"));
    if scrubs && !out.contains(" 0 errors") {
        return Some(Err(format!("scrub found errors:\n{out}\n{err}")));
    }
    Some(Ok(()))
}

/// Loads files that another program changed back into a new world.
pub(crate) fn world_of_files(seed: u64, files: &[PathBuf]) -> World {
    let world = World::new(seed);
    for (disk, file) in files.iter().enumerate() {
        let image = world::Image::from_file(file).expect("read the image");
        world.add_disk_with(path(disk), DiskModel::new(image.size()), image);
    }
    world
}
