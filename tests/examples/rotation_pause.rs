//! How long a dataset pauses when its master key is exchanged: `rotation_pause DIRECTORY [SNAPSHOTS...]` makes a pool on an image in the
//! directory, an encrypted file system with 32 MiB and so many snapshots, each of which has a block of its own, and rotates its key while one
//! writer writes 8 KiB after another, synchronously. Prints the writes, and the longest of them beside the longest of as many seconds without
//! a rotation.
#![allow(clippy::print_stdout, reason = "a command line tool")]
#![allow(
    clippy::disallowed_methods,
    reason = "measures from outside of the engine"
)]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use engine::{
    CreateDataset, CreateMode, Cred, Ending, Engine, FileId, FsHandle, IoBuf, KeyFormat, NewKey,
    PoolHandle, PoolSpec, SetAttr, SnapshotRequest, Stability, Threads, VdevSpec, WrappingKey,
};
use tests::block_on;

const FILE_BYTES: u64 = 32 << 20;
const WRITE_BYTES: usize = 8 << 10;
const NAME: &str = "measure/safe";

fn write(fs: &FsHandle, file: FileId, at: u64, stability: Stability) {
    let data = IoBuf::copy_from(&at.to_le_bytes().repeat(WRITE_BYTES / 8));
    block_on(fs.write(file, at, data, stability, &Cred::root())).expect("writes");
}

/// Writes until it is told to stop; returns how often, and how long the longest one took.
fn write_until(fs: &FsHandle, file: FileId, stop: &AtomicBool) -> (u64, Duration) {
    let (mut count, mut longest) = (0, Duration::ZERO);
    while !stop.load(Ordering::Relaxed) {
        let began = Instant::now();
        let at = count * 7919 % (FILE_BYTES / WRITE_BYTES as u64) * WRITE_BYTES as u64;
        write(fs, file, at, Stability::FileSync);
        longest = longest.max(began.elapsed());
        count += 1;
    }
    (count, longest)
}

fn beside<T>(fs: &FsHandle, file: FileId, work: impl FnOnce() -> T) -> (T, u64, Duration) {
    let stop = Arc::new(AtomicBool::new(false));
    let (fs, told) = (fs.clone(), Arc::clone(&stop));
    let writer = thread::spawn(move || write_until(&fs, file, &told));
    let done = work();
    stop.store(true, Ordering::Relaxed);
    let (count, longest) = writer.join().expect("the writer");
    (done, count, longest)
}

fn rotate(pool: &PoolHandle) -> Duration {
    let began = Instant::now();
    block_on(pool.start_key_rotation(NAME)).expect("begins");
    loop {
        let found = block_on(pool.key_rotations()).expect("looks");
        let Some(rotation) = found.first() else { break };
        assert!(rotation.running, "{rotation:?}");
        thread::sleep(Duration::from_millis(20));
    }
    began.elapsed()
}

fn measure(directory: &Path, snapshots: usize) {
    let image = directory.join("rotation_pause.img");
    std::fs::File::create(&image)
        .and_then(|file| file.set_len(4 << 30))
        .expect("an image");
    let engine = Engine::new(Threads::default());
    let spec = PoolSpec {
        name: "measure".to_owned(),
        vdevs: vec![VdevSpec::Single(image.clone())],
        ..PoolSpec::default()
    };
    let pool = block_on(engine.create_pool(spec, &[])).expect("a pool");
    let settings = [
        ("encryption", "on"),
        ("keyformat", "raw"),
        ("keylocation", "file:///key"),
    ];
    let request = CreateDataset {
        name: NAME.to_owned(),
        properties: settings
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .into(),
        key: Some(NewKey {
            format: KeyFormat::Raw,
            key: Arc::new(WrappingKey::from_raw(&[1; 32]).expect("32 bytes")),
        }),
        ..CreateDataset::default()
    };
    block_on(pool.create_dataset(request)).expect("creates");
    let fs = block_on(pool.open_fs(NAME)).expect("a file system");
    let root = block_on(fs.root()).expect("its root").id;
    let (mode, cred) = (CreateMode::Guarded, Cred::root());
    let made = block_on(fs.create(root, b"file", mode, &SetAttr::default(), &cred));
    let file = made.expect("a file").file.id;
    for at in (0..FILE_BYTES).step_by(WRITE_BYTES) {
        write(&fs, file, at, Stability::Unstable);
    }
    for number in 0..snapshots {
        write(
            &fs,
            file,
            (number * WRITE_BYTES) as u64 % FILE_BYTES,
            Stability::Unstable,
        );
        let request = SnapshotRequest {
            names: vec![format!("{NAME}@s{number}")],
            ..SnapshotRequest::default()
        };
        assert!(block_on(pool.snapshot(request)).expect("takes").is_empty());
    }
    let (took, writes, longest) = beside(&fs, file, || rotate(&pool));
    let ((), _, before) = beside(&fs, file, || {
        thread::sleep(took.min(Duration::from_secs(20)));
    });
    println!(
        "{snapshots:>6} snapshots: rotated in {:.1} s, {writes} writes, longest {} ms (without a rotation {} ms)",
        took.as_secs_f64(),
        longest.as_millis(),
        before.as_millis()
    );
    drop((fs, pool));
    block_on(engine.end_pool("measure", Ending::Export { command: None })).expect("export");
    let _ = std::fs::remove_file(image);
}

fn main() {
    let mut args = std::env::args().skip(1);
    let directory = PathBuf::from(args.next().expect("a directory"));
    let numbers: Vec<usize> = args.filter_map(|text| text.parse().ok()).collect();
    let numbers = if numbers.is_empty() {
        vec![0, 100, 1000]
    } else {
        numbers
    };
    for snapshots in numbers {
        measure(&directory, snapshots);
    }
}
