//! What the engine does at its door, without protocols: cached small reads, sequential writes and cold sequential reads,
//! with the CPU each costs. `make bench` runs it.
//!
//! ```text
//! engine_bench DIRECTORY [MIB] [door|write|read]...     (default: 1024 MiB, all)
//! ```
//!
//! One line per measurement: name, value, unit, wall seconds, CPU seconds of the process and of the engine's thread. On a
//! machine that does other work, trust CPU per operation, not rates. The disk is a file of the directory, written once
//! before it is used, so that the host's file system allocates nothing while we measure.

use std::fs::File;
use std::future::Future;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use engine::{
    CreateMode, Cred, Ending, Engine, FileId, FsHandle, ImportPolicy, IoBuf, PoolHandle, PoolSpec,
    SetAttr, Stability, Threads, VdevSpec,
};
use harness::block_on;

const POOL: &str = "bench";
const MIB: u64 = 1 << 20;
/// `O_DIRECT`.
const DIRECT: i32 = 0o40000;

/// Seconds of CPU of a `schedstat` file: nanoseconds on a CPU are its first word.
fn schedstat(path: &Path) -> f64 {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let first = text.split_whitespace().next();
    let nanoseconds: u64 = first.and_then(|word| word.parse().ok()).unwrap_or(0);
    // Not many: exact.
    nanoseconds as f64 / 1e9
}

/// CPU seconds so far of all threads, also those that have ended, and of those that are the engine's.
fn cpu() -> (f64, f64) {
    // User and system time are words 14 and 15, in hundredths (proc(5)); a thread's name may hold spaces, but not ours.
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let ticks = stat.split_whitespace().skip(13).take(2);
    let ticks: u64 = ticks.filter_map(|word| word.parse::<u64>().ok()).sum();
    let mut engine = 0.0;
    for task in std::fs::read_dir("/proc/self/task").into_iter().flatten() {
        let Ok(task) = task else { continue };
        let name = std::fs::read_to_string(task.path().join("comm")).unwrap_or_default();
        if name.trim() == POOL {
            engine += schedstat(&task.path().join("schedstat"));
        }
    }
    (ticks as f64 / 100.0, engine)
}

struct Clock {
    began: Instant,
    cpu: (f64, f64),
}

impl Clock {
    fn start() -> Self {
        Self {
            began: Instant::now(),
            cpu: cpu(),
        }
    }

    /// Prints a measurement of `amount` things; `per` is the cost printed beside the rate.
    fn stop(&self, name: &str, amount: f64, unit: &str, per: &str, scale: f64) {
        let wall = self.began.elapsed().as_secs_f64();
        let now = cpu();
        let (all, engine) = (now.0 - self.cpu.0, now.1 - self.cpu.1);
        say(&format!(
            "{name:24} {:12.1} {unit:8} wall {wall:6.2} s  cpu {all:6.2} s  engine {engine:6.2} s  \
             {:8.3} {per} ({:.3} engine)",
            amount / wall,
            all / amount * scale,
            engine / amount * scale,
        ));
    }
}

fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{line}");
}

/// Which of a client's requests may go on, one bit each. The client is woken when half of them may: one that has a
/// connection to serve is busy meanwhile, and each wake-up is a system call on the engine's thread.
struct Ready {
    bits: AtomicU64,
    enough: AtomicU32,
    thread: std::thread::Thread,
}

struct Bell {
    ready: Arc<Ready>,
    bit: u64,
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        let before = self.ready.bits.fetch_or(self.bit, Ordering::SeqCst);
        if (before | self.bit).count_ones() == self.ready.enough.load(Ordering::SeqCst) {
            self.ready.thread.unpark();
        }
    }
}

/// Keeps `depth` (64 at most) requests in flight until `next` has no more.
fn keep_in_flight<F: Future<Output = ()>>(depth: u32, mut next: impl FnMut() -> Option<F>) {
    let ready = Arc::new(Ready {
        bits: AtomicU64::new(0),
        enough: AtomicU32::new(1),
        thread: std::thread::current(),
    });
    let mut slots: Vec<(Waker, Option<Pin<Box<F>>>)> = (0..depth)
        .map(|slot| {
            let bell = Bell {
                ready: ready.clone(),
                bit: 1 << slot,
            };
            (Waker::from(Arc::new(bell)), next().map(Box::pin))
        })
        .collect();
    let mut woken = u64::MAX >> (64 - depth);
    loop {
        for (slot, (waker, running)) in slots.iter_mut().enumerate() {
            if woken & (1 << slot) == 0 {
                continue;
            }
            while let Some(request) = running {
                match request.as_mut().poll(&mut Context::from_waker(waker)) {
                    Poll::Pending => break,
                    Poll::Ready(()) => *running = next().map(Box::pin),
                }
            }
        }
        let under_way = slots
            .iter()
            .filter(|(_, running)| running.is_some())
            .count();
        if under_way == 0 {
            return;
        }
        let enough = u32::try_from(under_way).unwrap_or(1).div_ceil(2);
        ready.enough.store(enough, Ordering::SeqCst);
        while ready.bits.load(Ordering::SeqCst).count_ones() < enough {
            std::thread::park();
        }
        woken = ready.bits.swap(0, Ordering::SeqCst);
    }
}

/// Bytes of which `random` of every 4 KiB do not compress, in pieces of 1 MiB.
fn pattern(random: usize) -> Vec<IoBuf> {
    let mut state = 88_172_645_463_325_252_u64;
    (0..64)
        .map(|_| {
            let mut bytes = vec![0; 1 << 20];
            for block in bytes.chunks_exact_mut(4096) {
                for word in block[..random].chunks_exact_mut(8) {
                    state ^= state << 13;
                    state ^= state >> 7;
                    state ^= state << 17;
                    word.copy_from_slice(&state.to_le_bytes());
                }
            }
            IoBuf::copy_from(&bytes)
        })
        .collect()
}

struct Bench {
    engine: Engine,
    disk: PathBuf,
    mib: u64,
}

impl Bench {
    fn pool(&self, properties: &[(&str, &str)]) -> Result<(PoolHandle, FsHandle)> {
        let spec = PoolSpec {
            name: POOL.to_owned(),
            vdevs: vec![VdevSpec::Single(self.disk.clone())],
            properties: vec![("ashift".to_owned(), "12".to_owned())],
            force: true,
            ..PoolSpec::default()
        };
        let properties: Vec<(String, String)> = properties
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect();
        let pool = block_on(self.engine.create_pool(spec, &properties))?;
        let fs = block_on(pool.open_fs(POOL))?;
        Ok((pool, fs))
    }

    fn end(&self) -> Result<()> {
        let ending = Ending::Export { command: None };
        Ok(block_on(self.engine.end_pool(POOL, ending))?)
    }

    /// Writes a file of `mib` MiB, one MiB a call, `depth` in flight; returns when it is on disk.
    fn fill(&self, pool: &PoolHandle, fs: &FsHandle, mib: u64, data: &[IoBuf]) -> Result<FileId> {
        let root = block_on(fs.root())?.id;
        let (mode, set, cred) = (CreateMode::Guarded, SetAttr::default(), Cred::root());
        let file = block_on(fs.create(root, b"file", mode, &set, &cred))?
            .file
            .id;
        let failed = Arc::new(Mutex::new(None));
        let mut at = 0;
        keep_in_flight(4, || {
            let piece = data.get(usize::try_from(at).ok()? % data.len())?.clone();
            let offset = (at < mib).then_some(at * MIB)?;
            at += 1;
            let (fs, failed) = (fs.clone(), failed.clone());
            Some(async move {
                let cred = Cred::root();
                let stability = Stability::Unstable;
                if let Err(error) = fs.write(file, offset, piece, stability, &cred).await {
                    *failed.lock().expect("no panic") = Some(error);
                }
            })
        });
        let failed = failed.lock().expect("no panic").take();
        ensure!(failed.is_none(), "writing: {failed:?}");
        block_on(pool.sync())?;
        Ok(file)
    }

    /// The gate of ADR 0001: cached 4 KiB reads through the door of one engine thread.
    fn door(&self) -> Result<()> {
        let (pool, fs) = self.pool(&[("compression", "off"), ("atime", "off")])?;
        let file = self.fill(&pool, &fs, 64, &pattern(4096))?;
        for offset in 0..64 {
            block_on(fs.read(file, offset * MIB, 1 << 20, &Cred::root()))?;
        }
        for (clients, depth) in [(1, 1), (1, 32), (1, 64), (2, 64)] {
            let each: u64 = if depth == 1 { 50_000 } else { 400_000 };
            let clock = Clock::start();
            let threads: Vec<_> = (0..clients)
                .map(|client: u64| {
                    let fs = fs.clone();
                    std::thread::spawn(move || {
                        let mut state = 0x9e37_79b9_7f4a_7c15 ^ (client + 1);
                        let mut left = each;
                        keep_in_flight(depth, || {
                            left = left.checked_sub(1)?;
                            state ^= state << 13;
                            state ^= state >> 7;
                            state ^= state << 17;
                            let offset = state % (64 * MIB / 4096) * 4096;
                            let fs = fs.clone();
                            Some(async move {
                                let read = fs.read(file, offset, 4096, &Cred::root()).await;
                                assert!(read.is_ok_and(|data| data.len() == 4096));
                            })
                        });
                    })
                })
                .collect();
            for thread in threads {
                ensure!(thread.join().is_ok(), "a client failed");
            }
            let name = format!("door.read4k.x{}", clients * u64::from(depth));
            let amount = (clients * each) as f64;
            clock.stop(&name, amount, "op/s", "us/op", 1e6);
        }
        self.end()
    }

    /// Sequential writes of 128 KiB records, to the end of the last transaction group.
    fn write(&self) -> Result<()> {
        for (compression, random) in [
            ("off", 4096),
            ("lz4", 2048),
            ("lz4", 4096),
            ("zstd-3", 2048),
        ] {
            let data = pattern(random);
            let (pool, fs) = self.pool(&[("compression", compression)])?;
            let clock = Clock::start();
            self.fill(&pool, &fs, self.mib, &data)?;
            let kind = if random == 4096 { "random" } else { "half" };
            let name = format!("write128k.{compression}.{kind}");
            let amount = (self.mib * MIB) as f64 / 1e6;
            clock.stop(&name, amount, "MB/s", "CPU-s/GB", 1e3);
            self.end()?;
        }
        Ok(())
    }

    /// Sequential reads of what is in no cache, beside reads of the same disk without a pool.
    fn read(&self) -> Result<()> {
        let (pool, fs) = self.pool(&[("compression", "off"), ("atime", "off")])?;
        let file = self.fill(&pool, &fs, self.mib, &pattern(4096))?;
        drop((pool, fs));
        self.end()?;
        let amount = (self.mib * MIB) as f64 / 1e6;
        for round in 0..3 {
            let found = block_on(self.engine.discover(vec![self.disk.clone()]))?;
            let candidate = found.pools.into_iter().next().context("the pool")?;
            let pool = block_on(self.engine.import(candidate, ImportPolicy::default()))?;
            let fs = block_on(pool.open_fs(POOL))?;
            let clock = Clock::start();
            for offset in 0..self.mib {
                let read = block_on(fs.read(file, offset * MIB, 1 << 20, &Cred::root()))?;
                ensure!(read.len() == 1 << 20, "a short read");
            }
            clock.stop(
                &format!("read128k.cold.{round}"),
                amount,
                "MB/s",
                "CPU-s/GB",
                1e3,
            );
            drop((pool, fs));
            self.end()?;
            let clock = Clock::start();
            self.raw()?;
            clock.stop(
                &format!("raw.read.{round}"),
                amount,
                "MB/s",
                "CPU-s/GB",
                1e3,
            );
        }
        Ok(())
    }

    /// Reads as much of the disk as the file has, two requests of 1 MiB in flight.
    fn raw(&self) -> Result<()> {
        let half = self.mib / 2;
        let readers: Vec<_> = (0..2)
            .map(|part| {
                let disk = self.disk.clone();
                std::thread::spawn(move || -> Result<()> {
                    use std::io::Seek as _;
                    let mut options = File::options();
                    let mut disk = options.read(true).custom_flags(DIRECT).open(disk)?;
                    disk.seek(std::io::SeekFrom::Start((16 + part * half) * MIB))?;
                    let mut buffer = IoBuf::zeroed(1 << 20).into_mut();
                    for _ in 0..half {
                        disk.read_exact(&mut buffer)?;
                    }
                    Ok(())
                })
            })
            .collect();
        for reader in readers {
            reader.join().ok().context("a reader")??;
        }
        Ok(())
    }
}

fn main() -> Result<()> {
    let mut words = std::env::args().skip(1);
    let directory = PathBuf::from(
        words
            .next()
            .context("engine_bench DIRECTORY [MIB] [WHAT]...")?,
    );
    let mut rest: Vec<String> = words.collect();
    let mib = match rest.first().and_then(|word| word.parse().ok()) {
        Some(mib) => {
            rest.remove(0);
            mib
        }
        None => 1024,
    };
    let disk = directory.join("bench-disk");
    let size = (mib * 2 + 1024) * MIB;
    if std::fs::metadata(&disk).map_or(0, |data| data.len()) != size {
        let mut file = File::create(&disk).context("the disk")?;
        for _ in 0..size / MIB {
            file.write_all(&[0; 1 << 20])?;
        }
        file.sync_all()?;
    }
    let bench = Bench {
        engine: Engine::new(Threads::default()),
        disk: disk.clone(),
        mib,
    };
    let wanted = |what: &str| rest.is_empty() || rest.iter().any(|word| word == what);
    if wanted("door") {
        bench.door()?;
    }
    if wanted("write") {
        bench.write()?;
    }
    if wanted("read") {
        bench.read()?;
    }
    std::fs::remove_file(disk).context("the disk goes")
}
