//! `lab crash` and `lab ledger`: seeds in several processes, a line of progress, a ledger.
#![allow(clippy::print_stdout, reason = "a command line tool")]

use std::collections::BTreeSet;
use std::panic::AssertUnwindSafe;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use super::ledger::{self, Run, per_hour};
use super::{Counts, Options, Violation, plan_of_seed, run};
use crate::campaign::Plan;
use crate::workers::{self, Seeds};

/// What `lab crash` understands.
pub const USAGE: &str = "\
usage: sanbox lab crash [--seeds N] [--start S] [--jobs J] [--minutes M] [--twice] [--check-all] [--caches] [--ledger FILE] [--engine NAME]
       sanbox lab crash --seed S [--caches] [--cut N] [--dump DIR] [--trace FILE]
       sanbox lab ledger FILE

crash   tries power cuts in simulated machines: runs seeds S to S+N-1 (default: 100 seeds, or until M minutes are over) in
        J processes, judges what every cut leaves against everything that was acknowledged, and reports cuts and violations
        --twice   runs each seed a second time and compares
        --check-all  has the checker look for leaked and lost space after every cut, not after one in 24
        --caches  gives every pool a cache device, which may rot or fail
        --ledger  adds the run to a ledger, and begins with the first seed that has not been run unless --start says otherwise
        --engine  what the ledger calls the state of the program
        --seed    runs one seed and tells more; --cut tries one of its cuts; --dump writes the disks of a violation
ledger  adds a ledger up
Exit status: 0 no violation, 1 violations, 2 bad usage.";

/// Seeds that one worker process runs at most before it is replaced.
const SEEDS_PER_WORKER_MAX: u64 = 20;
/// Address space of a worker, enforced by the kernel.
const WORKER_BYTES_MAX: u64 = 3 << 30;
/// How often progress is told and the ledger written.
const REPORT_EVERY: Duration = Duration::from_secs(30);

#[derive(Clone, Debug)]
struct Request {
    seeds: Option<u64>,
    start: Option<u64>,
    jobs: u64,
    minutes: Option<u64>,
    twice: bool,
    ledger: Option<PathBuf>,
    engine: String,
    worker: bool,
    seed: Option<u64>,
    options: Options,
}

/// Runs `crash` or `ledger FILE`; options may stand before and after these words. The processes of a campaign are the same program
/// with the same first words.
#[must_use]
pub fn main(words: &[String]) -> ExitCode {
    let Some((command, request)) = parse(words) else {
        return usage();
    };
    match command.as_slice() {
        ["ledger", path] => sum(path),
        ["crash"] if request.worker => {
            work(&request);
            ExitCode::SUCCESS
        }
        ["crash"] if request.seed.is_some() => one(&request),
        ["crash"] => crash(&request),
        _ => usage(),
    }
}

fn usage() -> ExitCode {
    eprintln!("{USAGE}");
    ExitCode::from(2)
}

/// Returns the words that are no options, and what the options say; `None` for an unknown option.
fn parse(words: &[String]) -> Option<(Vec<&str>, Request)> {
    let mut command = Vec::new();
    let mut request = Request {
        seeds: None,
        start: None,
        jobs: 2,
        minutes: None,
        twice: false,
        ledger: None,
        engine: env!("CARGO_PKG_VERSION").to_owned(),
        worker: false,
        seed: None,
        options: Options::default(),
    };
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let mut text = || words.next().cloned();
        let number = |text: Option<String>| text?.parse::<u64>().ok();
        match word.as_str() {
            "--twice" => request.twice = true,
            "--check-all" => request.options.check_all = true,
            "--caches" => request.options.caches = true,
            "--worker" => request.worker = true,
            "--seeds" => request.seeds = Some(number(text())?),
            "--start" => request.start = Some(number(text())?),
            "--jobs" => request.jobs = number(text())?.clamp(1, 256),
            "--minutes" => request.minutes = Some(number(text())?),
            "--ledger" => request.ledger = Some(text()?.into()),
            "--engine" => request.engine = text()?.replace(['"', '\\', '\n'], ""),
            "--seed" => request.seed = Some(number(text())?),
            "--cut" => request.options.only = Some(number(text())?),
            "--dump" => request.options.dump = Some(text()?.into()),
            "--trace" => request.options.trace = Some(text()?.into()),
            option if option.starts_with('-') => return None,
            operand => command.push(operand),
        }
    }
    Some((command, request))
}

fn sum(path: &str) -> ExitCode {
    let Ok(text) = std::fs::read_to_string(path) else {
        eprintln!("sanbox lab: cannot read {path}");
        return ExitCode::from(2);
    };
    let sum = ledger::totals(&text);
    println!(
        "{} runs, {} seeds, {} power cuts ({} an hour, {} an hour of CPU), {} seeds with violations",
        sum.runs,
        sum.seeds,
        sum.cuts,
        per_hour(sum.cuts, sum.seconds),
        per_hour(sum.cuts, sum.cpu_seconds),
        sum.violations
    );
    ExitCode::SUCCESS
}

fn plan_of(seed: u64, options: &Options) -> Plan {
    Plan {
        with_cache: options.caches,
        ..plan_of_seed(seed)
    }
}

/// Runs one seed, catching panics.
fn attempt(seed: u64, options: &Options) -> Result<Counts, Violation> {
    let plan = plan_of(seed, options);
    let result = std::panic::catch_unwind(AssertUnwindSafe(|| run(&plan, options)));
    result.unwrap_or_else(|panic| {
        Err(Violation {
            seed,
            cut: None,
            text: format!("panic: {}", runtime::host::panic_message(&*panic)),
        })
    })
}

fn attempt_twice(seed: u64, request: &Request) -> Result<Counts, Violation> {
    let first = attempt(seed, &request.options)?;
    if request.twice && attempt(seed, &request.options)? != first {
        return Err(Violation {
            seed,
            cut: None,
            text: "two runs were different".to_owned(),
        });
    }
    Ok(first)
}

fn one(request: &Request) -> ExitCode {
    let seed = request.seed.unwrap_or(0);
    println!("{:#?}", plan_of(seed, &request.options));
    let start = Instant::now();
    match attempt_twice(seed, request) {
        Ok(counts) => {
            println!("{counts:?} in {:?}", start.elapsed());
            ExitCode::SUCCESS
        }
        Err(violation) => {
            println!("VIOLATION {violation}");
            ExitCode::FAILURE
        }
    }
}

/// A worker process: one line for each seed.
fn work(request: &Request) {
    workers::become_worker(WORKER_BYTES_MAX);
    let start = request.start.unwrap_or(0);
    for seed in start..start + request.seeds.unwrap_or(1) {
        let before = cpu();
        match attempt_twice(seed, request) {
            Ok(counts) => println!(
                "ok {seed} {} {} {} {} {} {}",
                counts.operations,
                counts.cuts,
                counts.nested,
                counts.lost_logs,
                counts.checked,
                (cpu().saturating_sub(before)).as_millis()
            ),
            Err(violation) => println!("VIOLATION {seed} {}", one_line(&violation.to_string())),
        }
    }
}

fn one_line(text: &str) -> String {
    text.replace('\n', "\\n")
}

/// CPU time of this process.
fn cpu() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(
        u64::try_from(time.tv_sec).unwrap_or(0),
        u32::try_from(time.tv_nsec).unwrap_or(0),
    )
}

/// The arguments of this program that make it a worker of the campaign.
fn worker_words(request: &Request) -> Vec<String> {
    let mut words = vec!["crash", "--worker"];
    if request.twice {
        words.push("--twice");
    }
    if request.options.check_all {
        words.push("--check-all");
    }
    if request.options.caches {
        words.push("--caches");
    }
    words.into_iter().map(str::to_owned).collect()
}

fn crash(request: &Request) -> ExitCode {
    let start = Instant::now();
    let before = request
        .ledger
        .as_ref()
        .and_then(|path| std::fs::read_to_string(path).ok())
        .unwrap_or_default();
    let first = request
        .start
        .unwrap_or_else(|| ledger::totals(&before).next_seed);
    let seeds = match (request.seeds, request.minutes) {
        (Some(seeds), _) => seeds,
        (None, Some(_)) => u64::MAX / 2 - first,
        (None, None) => 100,
    };
    let until = request
        .minutes
        .map(|minutes| start + Duration::from_secs(minutes * 60));
    let supply = Seeds::new(first..first + seeds, request.jobs, SEEDS_PER_WORKER_MAX).until(until);
    let mut run = Run {
        engine: request.engine.clone(),
        start: first,
        ..Run::default()
    };
    let mut violations = BTreeSet::new();
    let mut milliseconds = 0;
    let mut told = Instant::now();
    let report = |run: &Run| {
        println!(
            "{} seeds, {} operations, {} power cuts ({} during imports, {} with a log device), {} s: {} cuts an hour, {} \
             an hour of CPU; {} violations",
            run.seeds,
            run.operations,
            run.cuts,
            run.nested,
            run.lost_logs,
            run.seconds,
            per_hour(run.cuts, run.seconds),
            per_hour(run.cuts, run.cpu_seconds),
            run.violations.len()
        );
        if let Some(path) = &request.ledger
            && let Err(error) = ledger::write(path, &before, run)
        {
            eprintln!("sanbox lab: write {}: {error}", path.display());
        }
    };
    workers::run(&supply, &worker_words(request), "VIOLATION", |line| {
        run.seeds += 1;
        if let Some(rest) = line.strip_prefix("ok ") {
            let numbers: Vec<u64> = rest.split(' ').filter_map(|n| n.parse().ok()).collect();
            if let &[_, operations, cuts, nested, lost_logs, checked, cpu] = numbers.as_slice() {
                run.operations += operations;
                run.cuts += cuts;
                run.nested += nested;
                run.lost_logs += lost_logs;
                run.checked += checked;
                milliseconds += cpu;
            }
        } else {
            println!("{}", line.replace("\\n", "\n"));
            let seed = line.split(' ').nth(1).and_then(|seed| seed.parse().ok());
            violations.extend::<Option<u64>>(seed);
        }
        run.seconds = start.elapsed().as_secs();
        run.cpu_seconds = milliseconds / 1000;
        run.violations = violations.iter().copied().collect();
        if told.elapsed() >= REPORT_EVERY {
            told = Instant::now();
            report(&run);
        }
    });
    run.seconds = start.elapsed().as_secs();
    report(&run);
    if run.violations.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn options_stand_before_and_after_the_command() {
        for line in [
            "crash --seed 7 --cut 3",
            "--seed 7 crash --cut 3",
            "--seed 7 --cut 3 crash",
        ] {
            let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
            let (command, request) = parse(&words).expect(line);
            assert_eq!(command, ["crash"]);
            assert_eq!((request.seed, request.options.only), (Some(7), Some(3)));
        }
        let words = ["crash", "--nothing"].map(str::to_owned);
        assert!(parse(&words).is_none());
    }
}
