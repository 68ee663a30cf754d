//! `sanbox-sim hostile`: runs seeds of harmed pools in processes of limited memory and time, and reports those that end in a panic,
//! in too much memory, or not at all.
#![allow(clippy::print_stdout, reason = "a command line tool")]

use std::io::{BufRead as _, BufReader};
use std::panic::AssertUnwindSafe;
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, setrlimit};

use super::{Reached, run};

/// Address space of a worker: several times what a healthy pool takes.
const WORKER_BYTES_MAX: u64 = 2 << 30;
/// How long one seed may take on this machine, however busy it is.
const SEED_TIME_MAX: Duration = Duration::from_secs(120);
const SEEDS_PER_WORKER: u64 = 200;

#[derive(Clone)]
struct Options {
    seeds: u64,
    start: u64,
    jobs: u64,
    worker: bool,
}

/// Runs the command, when it is ours.
#[must_use]
pub fn main(args: &[String]) -> Option<ExitCode> {
    let (command, rest) = args.split_first()?;
    if command != "hostile" {
        return None;
    }
    let mut options = Options {
        seeds: 1000,
        start: 0,
        jobs: 2,
        worker: false,
    };
    let mut rest = rest.iter();
    while let Some(arg) = rest.next() {
        let mut number = || rest.next().and_then(|text| text.parse::<u64>().ok());
        match arg.as_str() {
            "--seeds" => options.seeds = number()?,
            "--start" => options.start = number()?,
            "--jobs" => options.jobs = number()?.max(1),
            "--worker" => options.worker = true,
            other => {
                eprintln!("sanbox-sim hostile: what is {other}?");
                return Some(ExitCode::from(2));
            }
        }
    }
    if options.worker {
        work(&options);
        return Some(ExitCode::SUCCESS);
    }
    Some(campaign(&options))
}

/// A worker process: one line for each seed. A seed that takes too long ends it.
fn work(options: &Options) {
    let limit = Rlimit {
        current: Some(WORKER_BYTES_MAX),
        maximum: Some(WORKER_BYTES_MAX),
    };
    if let Err(error) = setrlimit(Resource::As, limit) {
        eprintln!("sanbox-sim: limit the memory of a worker: {error}");
    }
    std::panic::set_hook(Box::new(|info| {
        if let Some(place) = info.location() {
            eprintln!("panic at {place}");
        }
    }));
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
    for seed in options.start..options.start + options.seeds {
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

/// Runs workers one after the other; a worker that ended early is replaced for the seeds it left.
fn drive(options: &Options, next: &AtomicU64, sender: &Sender<String>) {
    let program = std::env::current_exe().expect("this program exists");
    let last = options.start + options.seeds;
    loop {
        let mut start = next.fetch_add(SEEDS_PER_WORKER, Ordering::Relaxed);
        let end = last.min(start + SEEDS_PER_WORKER);
        if start >= last {
            return;
        }
        while start < end {
            let mut child = Command::new(&program)
                .args(["hostile", "--worker", "--start", &start.to_string()])
                .args(["--seeds", &(end - start).to_string()])
                .stdout(Stdio::piped())
                .spawn()
                .expect("this program starts");
            let (mut failed, mut unheard) = (false, false);
            let output = BufReader::new(child.stdout.take().expect("it is piped"));
            for line in output.lines().map_while(Result::ok) {
                start += 1;
                failed = line.starts_with("FAILED");
                unheard = sender.send(line).is_err();
                if unheard {
                    break;
                }
            }
            let status = child.wait();
            if unheard {
                return;
            }
            if !failed && start < end {
                let line = format!("FAILED {start} the worker ended: {status:?}");
                start += 1;
                if sender.send(line).is_err() {
                    return;
                }
            }
        }
    }
}

fn campaign(options: &Options) -> ExitCode {
    let began = Instant::now();
    let (sender, lines) = std::sync::mpsc::channel::<String>();
    let next = Arc::new(AtomicU64::new(options.start));
    for _ in 0..options.jobs {
        let (options, next, sender) = (options.clone(), next.clone(), sender.clone());
        std::thread::spawn(move || drive(&options, &next, &sender));
    }
    drop(sender);
    let (mut seeds, mut failed, mut counts) = (0_u64, 0_u64, [0_u64; 3]);
    let mut reported = Instant::now();
    let report = |seeds: u64, failed: u64, counts: [u64; 3]| {
        let [refused, failing, whole] = counts;
        println!(
            "{seeds} harmed pools ({failed} failed): {refused} refused, {failing} with errors, {whole} whole, in {:?}",
            began.elapsed()
        );
    };
    for line in lines {
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
    }
    report(seeds, failed, counts);
    if failed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
