//! `sanbox-sim hostile`: runs seeds of harmed pools in processes of limited memory and time, and reports those that end in a panic,
//! in too much memory, or not at all.
#![allow(clippy::print_stdout, reason = "a command line tool")]

use std::panic::AssertUnwindSafe;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::{Reached, run};
use crate::workers::{self, SeedOptions};

/// Address space of a worker: several times what a healthy pool takes.
const WORKER_BYTES_MAX: u64 = 2 << 30;
/// How long one seed may take on this machine, however busy it is.
const SEED_TIME_MAX: Duration = Duration::from_secs(120);
/// Seeds that one worker process runs at most before it is replaced.
const SEEDS_PER_WORKER_MAX: u64 = 200;

/// Runs the command, when it is ours.
#[must_use]
pub fn main(args: &[String]) -> Option<ExitCode> {
    let (command, rest) = args.split_first()?;
    if command != "hostile" {
        return None;
    }
    let mut options = SeedOptions::default();
    let mut rest = rest.iter();
    while let Some(arg) = rest.next() {
        if !options.take(arg, &mut rest)? {
            eprintln!("sanbox-sim hostile: what is {arg}?");
            return Some(ExitCode::from(2));
        }
    }
    if options.worker {
        work(&options);
        return Some(ExitCode::SUCCESS);
    }
    Some(campaign(&options))
}

/// A worker process: one line for each seed. A seed that takes too long ends it.
fn work(options: &SeedOptions) {
    workers::become_worker(WORKER_BYTES_MAX);
    let current = Arc::new(AtomicU64::new(options.start));
    let watched = current.clone();
    std::thread::spawn(move || {
        let (mut seed, mut since) = (watched.load(Ordering::Relaxed), Instant::now());
        loop {
            std::thread::sleep(Duration::from_secs(1));
            let now = watched.load(Ordering::Relaxed);
            if now != seed {
                (seed, since) = (now, Instant::now());
            } else if since.elapsed() > SEED_TIME_MAX {
                println!("FAILED {seed} no end after {SEED_TIME_MAX:?}");
                std::process::exit(1);
            }
        }
    });
    for seed in options.seeds() {
        current.store(seed, Ordering::Relaxed);
        match std::panic::catch_unwind(AssertUnwindSafe(|| run(seed))) {
            Ok(Ok(outcome)) => {
                let first = outcome.first.unwrap_or_default().replace('\n', " ");
                println!("ok {seed} {:?} {}: {first}", outcome.reached, outcome.harm);
            }
            Ok(Err(text)) => println!("FAILED {seed} {text}"),
            Err(panic) => {
                let text = runtime::host::panic_message(&*panic).replace('\n', "\\n");
                println!("FAILED {seed} panic: {text}");
                // What it left behind must not reach the next seed.
                std::process::exit(1);
            }
        }
    }
}

fn campaign(options: &SeedOptions) -> ExitCode {
    let began = Instant::now();
    let supply = options.supply(SEEDS_PER_WORKER_MAX);
    let words = ["hostile", "--worker"].map(str::to_owned);
    let (mut seeds, mut failed, mut counts) = (0_u64, 0_u64, [0_u64; 3]);
    let mut reported = Instant::now();
    let report = |seeds: u64, failed: u64, counts: [u64; 3]| {
        let [refused, failing, whole] = counts;
        println!(
            "{seeds} harmed pools ({failed} failed): {refused} refused, {failing} with errors, {whole} whole, in {:?}",
            began.elapsed()
        );
    };
    workers::run(&supply, &words, "FAILED", |line| {
        seeds += 1;
        let kind = line
            .strip_prefix("ok ")
            .and_then(|rest| rest.split(' ').nth(1));
        let known = [Reached::Refused, Reached::Failing, Reached::Whole];
        let place = known
            .iter()
            .position(|k| kind == Some(format!("{k:?}").as_str()));
        match place {
            Some(place) => counts[place] += 1,
            None => {
                failed += 1;
                println!("{}", line.replace("\\n", "\n"));
            }
        }
        if reported.elapsed().as_secs() >= 20 {
            reported = Instant::now();
            report(seeds, failed, counts);
        }
    });
    report(seeds, failed, counts);
    if failed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
