//! fletcher4, lz4 and zstd-3 on one core, beside the reference libraries (OpenZFS's libzpool, liblz4, libzstd) in the same
//! rounds: blocks of 128 KiB of text, of machine code, and of bytes without order. `make bench-codec` runs it.
//!
//! ```text
//! codec_bench [PEER [ROUNDS]]     (PEER: tests/bench/codec_peer.c, built; default: 5 rounds; without it only our own numbers)
//! ```
//!
//! One line per sample and operation: GB/s of data (not of what it is compressed to), medians of the rounds; the ratio; and how
//! many times shorter the sample became here and there.

#![allow(clippy::print_stdout, reason = "a program that prints a table")]

mod timing;

use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use codec::checksum::fletcher4;
use codec::compress::{Algorithm, compress, compress_with, decompress_into};

const BLOCK_BYTES: usize = 128 << 10;
/// Beyond the caches of a core.
const SAMPLE_BYTES: usize = 8 << 20;
/// How long one number is measured.
const ROUND: Duration = Duration::from_millis(300);
const OPERATIONS: &[&str] = &["fletcher4", "lz4", "lz4-read", "zstd-3", "zstd-3-read"];

struct Sample {
    name: &'static str,
    path: PathBuf,
    bytes: Vec<u8>,
}

/// Repeats `work` over the blocks for a round; GB/s of data.
fn rate(blocks: usize, mut work: impl FnMut(usize)) -> f64 {
    timing::rate(ROUND, BLOCK_BYTES, |done| work(done % blocks))
}

/// Measures one of our operations once: its rate, and the bytes that the sample is compressed to.
fn ours(operation: &str, sample: &Sample) -> (f64, usize) {
    let blocks: Vec<&[u8]> = sample.bytes.chunks_exact(BLOCK_BYTES).collect();
    let mut out = vec![0; BLOCK_BYTES];
    let algorithm = match operation {
        "fletcher4" => {
            let speed = rate(blocks.len(), |at| {
                black_box(fletcher4(black_box(blocks[at])));
            });
            return (speed, 0);
        }
        "lz4" | "lz4-read" => Algorithm::Lz4,
        _ => Algorithm::Zstd(3),
    };
    let packed: Vec<Vec<u8>> = blocks
        .iter()
        .map(|block| compress(algorithm, block, usize::MAX).expect("there is room"))
        .collect();
    let bytes = packed.iter().map(Vec::len).sum();
    if operation.ends_with("-read") {
        let speed = rate(blocks.len(), |at| {
            decompress_into(algorithm, &packed[at], &mut out[..BLOCK_BYTES])
                .expect("what we wrote");
        });
        return (speed, bytes);
    }
    let speed = rate(blocks.len(), |at| {
        black_box(compress_with(
            algorithm,
            blocks[at],
            usize::MAX,
            <[u8]>::len,
        ));
    });
    (speed, bytes)
}

/// Measures the library's once.
fn theirs(peer: &Path, operation: &str, sample: &Sample) -> Option<(f64, usize)> {
    let output = Command::new(peer)
        .arg(operation)
        .arg(&sample.path)
        .arg(BLOCK_BYTES.to_string())
        .arg(ROUND.as_millis().to_string())
        .output()
        .ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let (speed, bytes) = text.trim().split_once(' ')?;
    Some((speed.parse().ok()?, bytes.parse().ok()?))
}

/// The sources of this repository, this program, and bytes without order.
fn samples() -> Vec<Sample> {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut text = Vec::new();
    let mut directories = vec![crates];
    while let Some(directory) = directories.pop() {
        let entries = std::fs::read_dir(directory).expect("the crates");
        let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
        paths.sort();
        for path in paths {
            if path.is_dir() {
                directories.push(path);
            } else if path.extension().is_some_and(|kind| kind == "rs") {
                text.extend(std::fs::read(path).expect("a source"));
            }
        }
    }
    let program = std::env::current_exe().expect("a program knows its own path");
    let code = std::fs::read(program).expect("this program");
    let mut state = 1_u64;
    let random = std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()[3]
    });
    let place = std::env::temp_dir().join(format!("codec-bench-{}", std::process::id()));
    std::fs::create_dir(&place).expect("a place for the samples");
    let forms = [
        ("text", text),
        ("code", code),
        ("random", random.take(SAMPLE_BYTES).collect()),
    ];
    forms
        .into_iter()
        .map(|(name, mut bytes)| {
            bytes.truncate(SAMPLE_BYTES.min(bytes.len() / BLOCK_BYTES * BLOCK_BYTES));
            let path = place.join(name);
            std::fs::write(&path, &bytes).expect("a sample is written");
            Sample { name, path, bytes }
        })
        .collect()
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let peer = arguments.next().map(PathBuf::from);
    let rounds: usize = arguments
        .next()
        .and_then(|word| word.parse().ok())
        .unwrap_or(5);
    let samples = samples();
    println!(
        "{:8} {:12} {:>8} {:>8} {:>7} {:>8} {:>8}",
        "sample", "operation", "GB/s", "theirs", "ratio", "shorter", "theirs"
    );
    for sample in &samples {
        for operation in OPERATIONS {
            let (mut here, mut there) = (Vec::new(), Vec::new());
            let (mut bytes, mut their_bytes) = (0, 0);
            for _ in 0..rounds {
                let measured = ours(operation, sample);
                here.push(measured.0);
                bytes = measured.1;
                if let Some(measured) = peer
                    .as_deref()
                    .and_then(|peer| theirs(peer, operation, sample))
                {
                    there.push(measured.0);
                    their_bytes = measured.1;
                }
            }
            let here = timing::median(here).unwrap_or(0.0);
            let times = |bytes: usize| sample.bytes.len() as f64 / bytes.max(1) as f64;
            let shorter = match bytes {
                0 => format!("{:>8}", ""),
                _ => format!("{:8.2}", times(bytes)),
            };
            print!("{:8} {operation:12} {here:8.2}", sample.name);
            match timing::median(there) {
                Some(there) if bytes == 0 => println!(" {there:8.2} {:7.2}", here / there),
                Some(there) => println!(
                    " {there:8.2} {:7.2} {shorter} {:8.2}",
                    here / there,
                    times(their_bytes)
                ),
                None => println!(" {:>8} {:>7} {shorter}", "", ""),
            }
        }
    }
    if let Some(place) = samples.first().and_then(|sample| sample.path.parent()) {
        drop(std::fs::remove_dir_all(place));
    }
}
