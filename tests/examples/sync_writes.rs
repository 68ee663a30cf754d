//! How long a synchronous write takes: `sync_writes DIRECTORY [SECONDS]` makes a pool on an image in the directory and
//! writes 8 KiB at random places of a file, by 1 and by 32 writers; once through the intent log (FILE_SYNC), once by
//! waiting for the transaction group as if there were no log. Prints operations per second and latencies.
#![allow(clippy::print_stdout, reason = "a command line tool")]
#![allow(
    clippy::disallowed_methods,
    reason = "measures from outside of the engine"
)]

use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use engine::{
    CreateMode, Cred, Ending, Engine, FileId, FsHandle, IoBuf, PoolHandle, PoolSpec, SetAttr,
    Stability, Threads, VdevSpec,
};
use tests::block_on;

const FILE_BYTES: u64 = 64 << 20;
const WRITE_BYTES: usize = 8 << 10;

fn run(pool: &PoolHandle, fs: &FsHandle, file: FileId, writers: u64, log: bool, time: Duration) {
    let threads: Vec<_> = (0..writers)
        .map(|writer| {
            let (pool, fs) = (pool.clone(), fs.clone());
            thread::spawn(move || {
                let mut state = writer.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
                let bytes = vec![u8::try_from(writer).unwrap_or(1); WRITE_BYTES];
                let begun = Instant::now();
                let mut latencies = Vec::new();
                while begun.elapsed() < time {
                    state ^= state << 13;
                    state ^= state >> 7;
                    state ^= state << 17;
                    let offset = state % (FILE_BYTES / WRITE_BYTES as u64) * WRITE_BYTES as u64;
                    let data = IoBuf::copy_from(&bytes);
                    let start = Instant::now();
                    let stability = if log {
                        Stability::FileSync
                    } else {
                        Stability::Unstable
                    };
                    block_on(fs.write(file, offset, data, stability, &Cred::root()))
                        .expect("write");
                    if !log {
                        block_on(pool.sync()).expect("sync");
                    }
                    latencies.push(start.elapsed());
                }
                latencies
            })
        })
        .collect();
    let begun = Instant::now();
    let mut all: Vec<Duration> = Vec::new();
    for thread in threads {
        all.extend(thread.join().expect("a writer"));
    }
    let took = begun.elapsed().as_secs_f64();
    all.sort_unstable();
    let at = |percent: usize| all[(all.len() * percent / 100).min(all.len() - 1)].as_micros();
    println!(
        "{:>4} {writers:>2} writers: {:>8.0} writes/s  p50 {:>7} us  p99 {:>7} us",
        if log { "log" } else { "txg" },
        all.len() as f64 / took,
        at(50),
        at(99)
    );
}

fn main() {
    let mut args = std::env::args().skip(1);
    let directory = PathBuf::from(args.next().expect("a directory"));
    let seconds = args.next().and_then(|s| s.parse().ok()).unwrap_or(5);
    let image = directory.join("sync_writes.img");
    std::fs::File::create(&image)
        .and_then(|file| file.set_len(2 << 30))
        .expect("an image");
    let engine = Engine::new(Threads::default());
    let spec = PoolSpec {
        name: "measure".to_owned(),
        vdevs: vec![VdevSpec::Single(image.clone())],
        ..PoolSpec::default()
    };
    let pool = block_on(engine.create_pool(spec, &[])).expect("a pool");
    let fs = block_on(pool.open_fs("measure")).expect("a file system");
    let root = block_on(fs.root()).expect("its root").id;
    let (mode, cred) = (CreateMode::Guarded, Cred::root());
    let made = block_on(fs.create(root, b"file", mode, &SetAttr::default(), &cred));
    let file = made.expect("a file").file.id;
    for at in (0..FILE_BYTES).step_by(1 << 20) {
        let data = IoBuf::copy_from(&vec![7; 1 << 20]);
        block_on(fs.write(file, at, data, Stability::Unstable, &cred)).expect("fill");
    }
    block_on(pool.sync()).expect("sync");
    for writers in [1, 32] {
        for log in [true, false] {
            run(&pool, &fs, file, writers, log, Duration::from_secs(seconds));
        }
    }
    drop((fs, pool));
    block_on(engine.end_pool("measure", Ending::Export { command: None })).expect("export");
    let _ = std::fs::remove_file(image);
}
