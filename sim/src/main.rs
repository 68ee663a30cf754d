//! The simulator's command line: `campaign` and `seed` run the engine in modelled worlds, `check IMAGES...` judges a
//! pool from its disk images.

use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::Context as _;
use checker::{FileImage, Image, Options};

const USAGE: &str = "usage: sanbox-sim campaign [--seeds N] [--start S] [--jobs J] [--once] [--zdb-every N]
               [--histories|--replicas|--encryption|--devices|--removals|--expansions|--upgrades|--clones|--dedup]
       sanbox-sim faults [--seeds N] [--start S] [--jobs J] [--once] [--zdb-every N]
       sanbox-sim seed|fault S [--once] [--histories|--replicas|--devices|--removals|--clones|--dedup] [--trace FILE] [--dump DIR]
       sanbox-sim nfs4 [SEED [--trace]] [--seeds N] [--start S] [--jobs J] [--twice|--canary]
       sanbox-sim hostile [--seeds N] [--start S] [--jobs J]
       sanbox-sim canary [--seeds N]
       sanbox-sim check [--crashed] IMAGE...

campaign  runs seeds S to S+N-1 of mixed file work with power cuts, each twice (--once: not), in J processes
faults    the same with disks that vanish, return, rot, lie, hang, fail and die, within the redundancy of each layout
seed      runs one seed (fault: of the fault campaign) and tells more; --dump writes the disks after the first cut, or at the failure
--histories  long histories of snapshots, clones, volumes, promotions and rollbacks instead of file work
--replicas   the same, with snapshots sent and received whole, incremental and in parts
--encryption  the same, and datasets are encrypted, and get other master keys; with --replicas they are redacted, and streams heal them, too
--devices    vdevs, logs, spares and cache devices join the pool and leave it meanwhile
--clones     files are cloned, whole and in parts, and what they were cloned from is rewritten and removed; also with --devices or --removals
--dedup      blocks are deduplicated, and clients write the same contents again and again; also with any of the others
--removals   vdevs that hold data join the pool and leave it all the time, in small steps
--expansions  a raidz gets one more device after the other
--upgrades    pools learn, at work, to count what owners use by files and by projects
nfs4      clients of NFSv4.1 with sessions, locks and delegations on a network that fails, and a server that goes down
hostile   imports, reads, scrubs and writes pools changed to harm, with every checksum computed again
canary    runs seeds whose flushes lie; they must fail

Checks the pool on the given disk images (all disks of one pool, in any order) and prints what is wrong with it.
--crashed  the pool was cut off at work: labels may disagree
Exit status: 0 clean, 1 not clean, 2 bad usage.";

fn main() -> ExitCode {
    let mut args: Vec<String> = std::env::args().skip(1).collect();
    if let Some(code) = sim::campaign::command::main(&args) {
        return code;
    }
    if let Some(code) = sim::hostile::command::main(&args) {
        return code;
    }
    if let Some(code) = sim::nfs4::command::main(&args) {
        return code;
    }
    let crashed = args.iter().any(|a| a == "--crashed");
    args.retain(|a| a != "--crashed");
    match args.split_first() {
        Some((command, images)) if command == "check" && !images.is_empty() => {
            match check(images, crashed) {
                Ok(true) => ExitCode::SUCCESS,
                Ok(false) => ExitCode::FAILURE,
                Err(e) => {
                    eprintln!("sanbox-sim: {e:#}");
                    ExitCode::from(2)
                }
            }
        }
        _ => {
            eprintln!("{USAGE}");
            ExitCode::from(2)
        }
    }
}

/// Prints the report; true when the pool is clean.
#[allow(clippy::print_stdout, reason = "a command line tool")]
fn check(paths: &[String], crashed: bool) -> anyhow::Result<bool> {
    let mut images = Vec::new();
    for path in paths {
        images.push(FileImage::open(Path::new(path)).with_context(|| format!("open {path}"))?);
    }
    let images: Vec<&dyn Image> = images.iter().map(|i| i as &dyn Image).collect();
    let start = Instant::now();
    let report = checker::check(&images, Options { crashed });
    println!("{report} in {:?}", start.elapsed());
    Ok(report.is_clean())
}
