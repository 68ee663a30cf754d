//! Measures the host drivers against fio on one file: reads and writes of 4 KiB and 128 KiB at depth 1 and 32.
//!
//! `cargo run --release -p runtime --example disk_bench -- FILE [SECONDS]`
//! FILE is created with 1 GiB when it does not exist. Prints a table for docs/adr/0001; CPU is that of the whole
//! process (all threads), for fio user plus system as it reports.

use std::cell::Cell;
use std::path::Path;
use std::process::Command;
use std::rc::Rc;
use std::time::Duration;

use runtime::host::{DriverChoice, HostConfig, driver};
use runtime::{DiskMode, IoBufMut, Runtime, join_all};
use rustix::time::{ClockId, clock_gettime};

const FILE_BYTES: u64 = 1 << 30;

struct Row {
    operations: f64,
    seconds: f64,
    cpu: f64,
    note: String,
}

fn main() {
    let mut args = std::env::args().skip(1);
    let file = args.next().expect("a file name");
    let seconds = args.next().map_or(3, |text| text.parse().expect("seconds"));
    let path = Path::new(&file);
    prepare(path);
    eprintln!("| what | who | op/s | MB/s | CPU us/op | CPU-s per GB | polls > 1 ms |");
    eprintln!("|---|---|---|---|---|---|---|");
    for write in [false, true] {
        for block in [4096_usize, 131_072] {
            for depth in [1_usize, 32] {
                let what = format!(
                    "{} {}K x{depth}",
                    if write { "write" } else { "read" },
                    block >> 10
                );
                for choice in [DriverChoice::Uring, DriverChoice::Threads] {
                    let row = ours(path, choice, write, block, depth, seconds);
                    print(&what, &format!("{choice:?}"), block, &row);
                }
                for engine in ["io_uring", "psync"] {
                    if let Some(row) = fio(&file, engine, write, block, depth, seconds) {
                        print(&what, &format!("fio {engine}"), block, &row);
                    }
                }
            }
        }
    }
}

fn prepare(path: &Path) {
    if std::fs::metadata(path).is_ok_and(|metadata| metadata.len() >= FILE_BYTES) {
        return;
    }
    let runtime = Runtime::new(driver(&HostConfig::default()));
    std::fs::File::create(path)
        .and_then(|file| file.set_len(FILE_BYTES))
        .expect("creates the file");
    runtime.block_on(async {
        let handle = runtime.handle();
        let disk = handle
            .open_disk(path, DiskMode::ReadWrite)
            .await
            .expect("opens");
        let mut chunk = IoBufMut::zeroed(1 << 20);
        handle.fill_random(&mut chunk);
        let chunk = chunk.freeze();
        for offset in (0..FILE_BYTES).step_by(1 << 20) {
            disk.write(offset, chunk.clone()).await.expect("writes");
        }
        disk.flush().await.expect("flushes");
    });
}

fn cpu_seconds() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(
        time.tv_sec.unsigned_abs(),
        u32::try_from(time.tv_nsec).expect("below a second"),
    )
    .as_secs_f64()
}

fn ours(
    path: &Path,
    choice: DriverChoice,
    write: bool,
    block: usize,
    depth: usize,
    seconds: u64,
) -> Row {
    let config = HostConfig {
        driver: choice,
        io_threads: depth.clamp(1, 32),
        ..HostConfig::default()
    };
    let runtime = Runtime::new(driver(&config));
    let handle = runtime.handle();
    let operations = Rc::new(Cell::new(0_u64));
    let cpu = cpu_seconds();
    let start = handle.now();
    runtime.block_on(async {
        let disk = handle
            .open_disk(path, DiskMode::ReadWrite)
            .await
            .expect("opens");
        let deadline = handle.now() + Duration::from_secs(seconds);
        let mut data = IoBufMut::zeroed(block);
        handle.fill_random(&mut data);
        let data = data.freeze();
        let workers: Vec<_> = (0..depth)
            .map(|_| {
                let (handle, disk, operations, data) = (
                    handle.clone(),
                    disk.clone(),
                    operations.clone(),
                    data.clone(),
                );
                let mut random = handle.random_u64() | 1;
                handle.clone().spawn("worker", async move {
                    while handle.now() < deadline {
                        random = random
                            .wrapping_mul(6_364_136_223_846_793_005)
                            .wrapping_add(1);
                        let offset = (random >> 20) % (FILE_BYTES / block as u64) * block as u64;
                        if write {
                            disk.write(offset, data.clone()).await.expect("writes");
                        } else {
                            disk.read(offset, block).await.expect("reads");
                        }
                        operations.set(operations.get() + 1);
                    }
                })
            })
            .collect();
        join_all(workers).await;
    });
    let seconds = (handle.now() - start).as_secs_f64();
    let stats = handle.stats();
    let note = format!("{} (longest {:?})", stats.long_polls, stats.longest_poll);
    Row {
        operations: as_f64(operations.get()),
        seconds,
        cpu: cpu_seconds() - cpu,
        note,
    }
}

fn as_f64(count: u64) -> f64 {
    f64::from(u32::try_from(count).expect("fewer operations than that"))
}

/// One random-I/O job; the terse output's fields are documented in fio(1), "TERSE OUTPUT".
fn fio(
    file: &str,
    engine: &str,
    write: bool,
    block: usize,
    depth: usize,
    seconds: u64,
) -> Option<Row> {
    let mut command = Command::new("fio");
    command.args([
        "--name=x",
        "--direct=1",
        "--minimal",
        "--time_based",
        "--group_reporting",
    ]);
    command
        .arg(format!("--filename={file}"))
        .arg(format!("--runtime={seconds}"));
    command
        .arg(format!("--ioengine={engine}"))
        .arg(format!("--bs={block}"));
    command
        .arg(if write {
            "--rw=randwrite"
        } else {
            "--rw=randread"
        })
        .arg("--size=1g");
    if engine == "psync" {
        command.arg(format!("--numjobs={depth}")).arg("--thread");
    } else {
        command.arg(format!("--iodepth={depth}"));
    }
    let output = command.output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let fields: Vec<&str> = text.trim().lines().last()?.split(';').collect();
    // Version 3: read bandwidth KiB/s, IOPS, runtime ms are fields 6..8, write's 47..49 (zero based), then CPU.
    let base = if write { 46 } else { 5 };
    let kib: f64 = fields.get(base)?.parse().ok()?;
    let millis: f64 = fields.get(base + 3)?.parse().ok()?;
    let percent = |index: usize| fields.get(index)?.trim_end_matches('%').parse::<f64>().ok();
    let jobs = if engine == "psync" { depth } else { 1 };
    let cpu = (percent(87)? + percent(88)?) / 100.0 * millis / 1000.0 * as_f64(jobs as u64);
    Some(Row {
        operations: kib / as_f64(1024),
        seconds: millis / 1000.0,
        cpu,
        note: "-".to_owned(),
    })
}

fn print(what: &str, who: &str, block: usize, row: &Row) {
    let is_fio = who.starts_with("fio");
    let (rate, megabytes) = if is_fio {
        // `operations` holds MiB/s there.
        let bytes = row.operations * 1_048_576.0;
        (bytes / as_f64(block as u64), bytes / 1e6)
    } else {
        let rate = row.operations / row.seconds;
        (rate, rate * as_f64(block as u64) / 1e6)
    };
    let (per_op, per_gb) = (
        row.cpu / row.seconds / rate * 1e6,
        row.cpu / row.seconds / megabytes * 1e3,
    );
    eprintln!(
        "| {what} | {who} | {rate:.0} | {megabytes:.0} | {per_op:.1} | {per_gb:.2} | {} |",
        row.note
    );
}
