//! What the engine does at its door, without protocols: cached small reads, sequential writes and cold sequential reads,
//! and small reads, overwrites and synchronous writes at random places of a file, with the CPU each costs. `make bench`
//! runs it; `tests/bench/engine.sh` runs it beside OpenZFS's own code.
//!
//! ```text
//! engine_bench DIRECTORY [MIB] [door|write|raidz|read|random|sync]...     (default: 1024 MiB, all)
//! ```
//!
//! One line per measurement: name, value, unit, wall seconds, CPU seconds of the process and of the engine's thread. On a
//! machine that does other work, trust CPU per operation, not rates. The disks are files of the directory, written once
//! before they are used, so that the host's file system allocates nothing while we measure.

use std::fs::File;
use std::future::Future;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use engine::{
    CreateMode, Cred, Ending, Engine, FileId, FsHandle, ImportPolicy, IoBuf, PoolHandle, PoolSpec,
    SetAttr, Stability, Threads, TuningChange, VdevSpec,
};
use tests::block_on;

const POOL: &str = "bench";
const MIB: u64 = 1 << 20;
/// MiB of the disk, or more: as many as `openzfs_bench` has. On one of half the size writers wait for each group, since what was
/// freed by the last ones does not count as room yet.
const DISK_MIB_MIN: u64 = 4096;
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
    if depth == 1 {
        while let Some(request) = next() {
            block_on(request);
        }
        return;
    }
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

/// How many requests of which kind are made for how long, see [`Bench::many`].
struct Small {
    depth: u32,
    /// The stability of writes; reads if there is none.
    write: Option<Stability>,
}

/// How long each measurement of small requests takes.
const SMALL_TIME: Duration = Duration::from_secs(2);
/// Bytes of a small request.
const SMALL_BYTES: usize = 8192;

/// Writes a file of `bytes` bytes, unless it is there. Returns whether it was not: what was found stays.
fn make_disk(path: &Path, bytes: u64) -> Result<bool> {
    let missing = std::fs::metadata(path).map_or(0, |data| data.len()) != bytes;
    if missing {
        let mut file = File::create(path).context("the disk")?;
        for _ in 0..bytes / MIB {
            file.write_all(&[0; 1 << 20])?;
        }
        file.sync_all()?;
    }
    Ok(missing)
}

struct Bench {
    engine: Engine,
    directory: PathBuf,
    disk: PathBuf,
    mib: u64,
}

impl Bench {
    fn pool(&self, properties: &[(&str, &str)]) -> Result<(PoolHandle, FsHandle)> {
        self.pool_on(VdevSpec::Single(self.disk.clone()), properties)
    }

    fn pool_on(
        &self,
        vdev: VdevSpec,
        properties: &[(&str, &str)],
    ) -> Result<(PoolHandle, FsHandle)> {
        let spec = PoolSpec {
            name: POOL.to_owned(),
            vdevs: vec![vdev],
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

    /// Writes a file of `mib` MiB, one MiB a call, four in flight; returns when it is on disk.
    fn fill(&self, pool: &PoolHandle, fs: &FsHandle, mib: u64, data: &[IoBuf]) -> Result<FileId> {
        self.fill_as(b"file", pool, fs, mib, data)
    }

    fn fill_as(
        &self,
        name: &[u8],
        pool: &PoolHandle,
        fs: &FsHandle,
        mib: u64,
        data: &[IoBuf],
    ) -> Result<FileId> {
        let root = block_on(fs.root())?.id;
        let (mode, set, cred) = (CreateMode::Guarded, SetAttr::default(), Cred::root());
        let file = block_on(fs.create(root, name, mode, &set, &cred))?.file.id;
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

    /// Sequential writes of 128 KiB records, to the end of the last transaction group; the second time over, when the
    /// process has its memory: a page that the kernel must clear first costs more than what is measured.
    fn write(&self) -> Result<()> {
        for (compression, random) in [
            ("off", 4096),
            ("lz4", 2048),
            ("lz4", 4096),
            ("zstd-3", 2048),
        ] {
            let data = pattern(random);
            let (pool, fs) = self.pool(&[("compression", compression)])?;
            self.fill_as(b"before", &pool, &fs, self.mib, &data)?;
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

    /// Sequential writes of 128 KiB records to a raidz2 of six disks.
    fn raidz(&self) -> Result<()> {
        let paths: Vec<PathBuf> = (0..6)
            .map(|number| self.directory.join(format!("bench-disk{number}")))
            .collect();
        let mut made = Vec::new();
        for path in &paths {
            if make_disk(path, (self.mib + 512) * MIB)? {
                made.push(path);
            }
        }
        let vdev = VdevSpec::Raidz {
            parity: 2,
            paths: paths.clone(),
        };
        let (pool, fs) = self.pool_on(vdev, &[("compression", "lz4")])?;
        let data = pattern(2048);
        self.fill_as(b"before", &pool, &fs, self.mib, &data)?;
        let clock = Clock::start();
        self.fill(&pool, &fs, self.mib, &data)?;
        let amount = (self.mib * MIB) as f64 / 1e6;
        clock.stop("raidz2x6.lz4.half", amount, "MB/s", "CPU-s/GB", 1e3);
        drop((pool, fs));
        self.end()?;
        for path in made {
            std::fs::remove_file(path)?;
        }
        Ok(())
    }

    /// A pool with a file of `mib` MiB in records of `recordsize`, lz4, half of it compressible, all of it in the cache.
    fn warm(&self, recordsize: &str) -> Result<(PoolHandle, FsHandle, FileId)> {
        let properties = [
            ("compression", "lz4"),
            ("atime", "off"),
            ("recordsize", recordsize),
        ];
        let (pool, fs) = self.pool(&properties)?;
        block_on(pool.tune(TuningChange {
            cache_bytes: Some(4 << 30),
            ..TuningChange::default()
        }))?;
        let file = self.fill(&pool, &fs, self.mib, &pattern(2048))?;
        for offset in 0..self.mib {
            block_on(fs.read(file, offset * MIB, 1 << 20, &Cred::root()))?;
        }
        Ok((pool, fs, file))
    }

    /// Requests of 8 KiB at random places, `depth` in flight from one thread, for two seconds; asynchronous writes count
    /// until their group is on disk. Prints the latencies too.
    fn many(
        &self,
        pool: &PoolHandle,
        fs: &FsHandle,
        file: FileId,
        name: &str,
        what: &Small,
    ) -> Result<()> {
        let (data, write) = (pattern(2048), what.write);
        // Once unmeasured: the first versions of blocks take fresh memory from the kernel.
        if write.is_some() {
            for record in 0..self.mib * 8 {
                let data = data[0].slice(0..SMALL_BYTES);
                let (offset, cred) = (record * (MIB / 8), Cred::root());
                block_on(fs.write(file, offset, data, Stability::Unstable, &cred))?;
            }
            block_on(pool.sync())?;
        }
        let latencies = Arc::new(Mutex::new(Vec::new()));
        let failed = Arc::new(Mutex::new(None));
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let places = self.mib * MIB / SMALL_BYTES as u64;
        let clock = Clock::start();
        keep_in_flight(what.depth, || {
            if clock.began.elapsed() > SMALL_TIME {
                return None;
            }
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            let place = state % places;
            let piece = write.map(|stability| {
                let place = usize::try_from(place).unwrap_or(0);
                let start = place * SMALL_BYTES % (1 << 20);
                let bytes = &data[place % data.len()][start..start + SMALL_BYTES];
                (IoBuf::copy_from(bytes), stability)
            });
            let (fs, latencies, failed) = (fs.clone(), latencies.clone(), failed.clone());
            Some(async move {
                let offset = place * SMALL_BYTES as u64;
                let (began, cred) = (Instant::now(), Cred::root());
                let error = match piece {
                    Some((piece, stability)) => {
                        fs.write(file, offset, piece, stability, &cred).await.err()
                    }
                    None => fs.read(file, offset, SMALL_BYTES, &cred).await.err(),
                };
                latencies.lock().expect("no panic").push(began.elapsed());
                if error.is_some() {
                    *failed.lock().expect("no panic") = error;
                }
            })
        });
        if write == Some(Stability::Unstable) {
            block_on(pool.sync())?;
        }
        let failed = failed.lock().expect("no panic").take();
        ensure!(failed.is_none(), "{name}: {failed:?}");
        let mut latencies = latencies.lock().expect("no panic");
        latencies.sort_unstable();
        let count = latencies.len();
        let name = format!("{name}.x{}", what.depth);
        clock.stop(&name, count as f64, "op/s", "us/op", 1e6);
        let at = |part: usize| latencies[(count * part / 100).min(count - 1)].as_micros();
        say(&format!("{name:24} p50 {} us, p99 {} us", at(50), at(99)));
        Ok(())
    }

    /// Cached reads, and overwrites that nobody waits for.
    fn random(&self) -> Result<()> {
        for (recordsize, short) in [("8K", "8k"), ("128K", "128k")] {
            let (pool, fs, file) = self.warm(recordsize)?;
            for depth in [1, 32] {
                let read = Small { depth, write: None };
                self.many(&pool, &fs, file, &format!("read8k.warm.{short}"), &read)?;
            }
            for depth in [1, 32] {
                let write = Small {
                    depth,
                    write: Some(Stability::Unstable),
                };
                self.many(&pool, &fs, file, &format!("write8k.async.{short}"), &write)?;
            }
            drop((pool, fs));
            self.end()?;
        }
        Ok(())
    }

    /// Overwrites each of which is in the log before it is answered.
    fn sync(&self) -> Result<()> {
        let (pool, fs, file) = self.warm("8K")?;
        for depth in [1, 8, 32] {
            let write = Small {
                depth,
                write: Some(Stability::FileSync),
            };
            self.many(&pool, &fs, file, "write8k.sync", &write)?;
        }
        drop((pool, fs));
        self.end()
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
    let is_made = make_disk(&disk, (mib * 3 + 1024).max(DISK_MIB_MIN) * MIB)?;
    let bench = Bench {
        engine: Engine::new(Threads::default()),
        directory,
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
    if wanted("raidz") {
        bench.raidz()?;
    }
    if wanted("read") {
        bench.read()?;
    }
    if wanted("random") {
        bench.random()?;
    }
    if wanted("sync") {
        bench.sync()?;
    }
    if is_made {
        std::fs::remove_file(disk).context("the disk goes")?;
    }
    Ok(())
}
