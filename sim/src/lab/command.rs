//! `lab crash` and `lab ledger`: seeds in several processes, a line of progress, a ledger.
#![allow(clippy::print_stdout, reason = "a command line tool")]

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader};
use std::panic::AssertUnwindSafe;
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, setrlimit};

use super::ledger::{self, Run, per_hour};
use super::{Counts, Options, Violation, plan_of_seed, run};

/// What `lab crash` understands.
pub const USAGE: &str = "usage: sanbox lab crash [--seeds N] [--start S] [--jobs J] [--minutes M] [--twice] [--check-all] [--ledger FILE] [--engine NAME]
       sanbox lab crash --seed S [--cut N] [--dump DIR] [--trace FILE]
       sanbox lab ledger FILE

crash   tries power cuts in simulated machines: runs seeds S to S+N-1 (default: 100 seeds, or until M minutes are over) in
        J processes, judges what every cut leaves against everything that was acknowledged, and reports cuts and violations
        --twice   runs each seed a second time and compares
        --check-all  has the checker look for leaked and lost space after every cut, not after one in 24
        --ledger  adds the run to a ledger, and begins with the first seed nobody has run unless --start says otherwise
        --engine  what the ledger calls the state of the program
        --seed    runs one seed and tells more; --cut tries one of its cuts; --dump writes the disks of a violation
ledger  adds a ledger up
Exit status: 0 no violation, 1 violations, 2 bad usage.";

/// Seeds that one worker process runs before it is replaced.
const SEEDS_PER_WORKER: u64 = 20;
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
    /// The words this program is called with to come here again.
    again: Vec<String>,
}

/// Runs `crash` or `ledger FILE`; options may stand before and after these words. `again` are the words after the program's
/// name that lead here.
#[must_use]
pub fn main(words: &[String], again: &[&str]) -> ExitCode {
    let Some((command, request)) = parse(words, again) else {
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
fn parse<'a>(words: &'a [String], again: &[&str]) -> Option<(Vec<&'a str>, Request)> {
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
        again: again.iter().map(|&word| word.to_owned()).collect(),
    };
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let mut text = || words.next().cloned();
        let number = |text: Option<String>| text?.parse::<u64>().ok();
        match word.as_str() {
            "--twice" => request.twice = true,
            "--check-all" => request.options.check_all = true,
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

/// Runs one seed, catching panics.
fn attempt(seed: u64, options: &Options) -> Result<Counts, Violation> {
    let plan = plan_of_seed(seed);
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
    println!("{:#?}", plan_of_seed(seed));
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
    // One seed that allocates without end must end its worker, not the machine.
    let limit = Rlimit {
        current: Some(WORKER_BYTES_MAX),
        maximum: Some(WORKER_BYTES_MAX),
    };
    if let Err(error) = setrlimit(Resource::As, limit) {
        eprintln!("sanbox lab: limit the memory of a worker: {error}");
    }
    std::panic::set_hook(Box::new(|info| {
        if let Some(place) = info.location() {
            eprintln!("panic at {place}");
        }
    }));
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

/// Which seeds are left, shared by those who start workers.
struct Supply {
    next: AtomicU64,
    end: u64,
    until: Option<Instant>,
}

impl Supply {
    fn take(&self) -> Option<(u64, u64)> {
        if self.until.is_some_and(|until| Instant::now() >= until) {
            return None;
        }
        let start = self.next.fetch_add(SEEDS_PER_WORKER, Ordering::Relaxed);
        (start < self.end).then(|| (start, SEEDS_PER_WORKER.min(self.end - start)))
    }
}

fn drive(request: &Request, supply: &Supply, sender: &Sender<String>) {
    let program = std::env::current_exe().expect("this program exists");
    while let Some((start, count)) = supply.take() {
        let mut command = Command::new(&program);
        command.args(&request.again).args(["crash", "--worker"]);
        command.args(["--seeds", &count.to_string(), "--start", &start.to_string()]);
        if request.twice {
            command.arg("--twice");
        }
        if request.options.check_all {
            command.arg("--check-all");
        }
        let child = command.stdout(Stdio::piped()).spawn();
        let Ok(mut child) = child else {
            let _ = sender.send(format!("VIOLATION {start} no worker could be started"));
            return;
        };
        let mut reported = 0;
        if let Some(output) = child.stdout.take() {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                reported += 1;
                if sender.send(line).is_err() {
                    break;
                }
            }
        }
        let status = child.wait();
        if !status.as_ref().is_ok_and(std::process::ExitStatus::success) {
            let seed = start + reported;
            let _ = sender.send(format!("VIOLATION {seed} the worker ended: {status:?}"));
        }
    }
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
    let supply = Arc::new(Supply {
        next: AtomicU64::new(first),
        end: first + seeds,
        until: request
            .minutes
            .map(|minutes| start + Duration::from_secs(minutes * 60)),
    });
    let (sender, lines) = std::sync::mpsc::channel::<String>();
    let drivers: Vec<_> = (0..request.jobs)
        .map(|_| {
            let (request, supply, sender) = (request.clone(), supply.clone(), sender.clone());
            std::thread::spawn(move || drive(&request, &supply, &sender))
        })
        .collect();
    drop(sender);
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
    for line in lines {
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
    }
    for driver in drivers {
        driver.join().expect("drivers do not panic");
    }
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
            let (command, request) = parse(&words, &["lab"]).expect(line);
            assert_eq!(command, ["crash"]);
            assert_eq!((request.seed, request.options.only), (Some(7), Some(3)));
        }
        let words = ["crash", "--nothing"].map(str::to_owned);
        assert!(parse(&words, &["lab"]).is_none());
    }
}
