//! `sanbox-sim campaign|seed|canary`: runs seeds, in several processes, and reports those that fail.
#![allow(clippy::print_stdout, reason = "a command line tool")]

use std::io::{BufRead as _, BufReader};
use std::panic::AssertUnwindSafe;
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::time::Instant;

use world::World;

use super::judge;
use super::scenario::{Failure, Outcome, Plan, run};

#[derive(Clone, Debug)]
struct Options {
    seeds: u64,
    start: u64,
    jobs: u64,
    once: bool,
    zdb_every: Option<u64>,
    /// `(index, count)`: this process runs every `count`-th seed.
    worker: Option<(u64, u64)>,
    trace: Option<PathBuf>,
    dump: Option<PathBuf>,
}

/// Runs the command, when it is one of ours.
#[must_use]
pub fn main(args: &[String]) -> Option<ExitCode> {
    let (command, rest) = args.split_first()?;
    let mut options = Options {
        seeds: 1000,
        start: 0,
        jobs: 2,
        once: false,
        zdb_every: None,
        worker: None,
        trace: None,
        dump: None,
    };
    if !matches!(command.as_str(), "campaign" | "seed" | "canary") {
        return None;
    }
    let mut rest = rest.iter();
    let mut problem = None;
    while let Some(arg) = rest.next() {
        let mut number = || rest.next().and_then(|text| text.parse::<u64>().ok());
        match arg.as_str() {
            "--once" => options.once = true,
            "--seeds" => options.seeds = number()?,
            "--start" => options.start = number()?,
            "--jobs" => options.jobs = number()?.max(1),
            "--zdb-every" => options.zdb_every = Some(number()?.max(1)),
            "--worker" => options.worker = Some((number()?, number()?)),
            "--trace" => options.trace = rest.next().map(PathBuf::from),
            "--dump" => options.dump = rest.next().map(PathBuf::from),
            text if command == "seed" && text.parse::<u64>().is_ok() => {
                options.start = text.parse().ok()?;
            }
            other => problem = Some(other.to_owned()),
        }
    }
    if let Some(other) = problem {
        eprintln!("sanbox-sim {command}: what is {other}?");
        return Some(ExitCode::from(2));
    }
    Some(match command.as_str() {
        "seed" => one(&options),
        "canary" => canary(&options),
        _ if options.worker.is_some() => {
            work(&options);
            ExitCode::SUCCESS
        }
        _ => campaign(&options),
    })
}

/// Runs one seed, catching panics.
fn attempt(plan: &Plan, world: &World, zdb: Option<&PathBuf>) -> Result<Outcome, Failure> {
    let judge_images = |world: &World, crashed: bool| {
        judge::by_checker(plan, world, crashed)?;
        match zdb {
            Some(dir) => judge::by_zdb(world, dir),
            None => Ok(()),
        }
    };
    let result = std::panic::catch_unwind(AssertUnwindSafe(|| run(plan, world, &judge_images)));
    result.unwrap_or_else(|panic| {
        let text = format!("panic: {}", runtime::host::panic_message(&*panic));
        Err(Failure {
            seed: plan.seed,
            round: 0,
            text,
        })
    })
}

/// Runs a seed, twice unless told otherwise, and compares.
fn attempt_twice(plan: &Plan, options: &Options) -> Result<Outcome, Failure> {
    let zdb_dir = std::env::temp_dir().join(format!("sanbox-sim-{}", plan.seed));
    let sampled = options
        .zdb_every
        .is_some_and(|every| plan.seed.is_multiple_of(every));
    let zdb = sampled.then_some(&zdb_dir);
    let first = World::new(plan.seed);
    let outcome = attempt(plan, &first, zdb)?;
    if !options.once {
        let second = World::new(plan.seed);
        attempt(plan, &second, None)?;
        let (first, second) = (first.event_hash(), second.event_hash());
        if first != second {
            let text = world::NotDeterministic {
                seed: plan.seed,
                first,
                second,
            }
            .to_string();
            return Err(Failure {
                seed: plan.seed,
                round: 0,
                text,
            });
        }
    }
    Ok(outcome)
}

/// A worker process: one line for each seed.
fn work(options: &Options) {
    std::panic::set_hook(Box::new(|info| {
        if let Some(place) = info.location() {
            eprintln!("panic at {place}");
        }
    }));
    let (index, count) = options.worker.expect("only called in workers");
    for seed in (options.start..options.start + options.seeds).filter(|seed| seed % count == index)
    {
        let plan = Plan::of_seed(seed);
        match attempt_twice(&plan, options) {
            Ok(outcome) => println!(
                "ok {seed} {} {} {}",
                outcome.operations, outcome.cuts, outcome.events
            ),
            Err(failure) => println!(
                "FAILED {seed} {:?} {:?} {}",
                plan.layout,
                plan.trouble,
                failure.to_string().replace('\n', "\\n")
            ),
        }
    }
}

fn campaign(options: &Options) -> ExitCode {
    let start = Instant::now();
    let program = std::env::current_exe().expect("this program exists");
    let (sender, lines) = std::sync::mpsc::channel::<String>();
    let mut children = Vec::new();
    for index in 0..options.jobs {
        let mut command = Command::new(&program);
        command
            .arg("campaign")
            .args(["--seeds", &options.seeds.to_string()]);
        command.args(["--start", &options.start.to_string()]);
        command.args(["--worker", &index.to_string(), &options.jobs.to_string()]);
        if options.once {
            command.arg("--once");
        }
        if let Some(every) = options.zdb_every {
            command.args(["--zdb-every", &every.to_string()]);
        }
        let mut child = command
            .stdout(Stdio::piped())
            .spawn()
            .expect("this program starts");
        let output = child.stdout.take().expect("it is piped");
        let sender = sender.clone();
        children.push((
            child,
            std::thread::spawn(move || {
                for line in BufReader::new(output).lines().map_while(Result::ok) {
                    if sender.send(line).is_err() {
                        break;
                    }
                }
            }),
        ));
    }
    drop(sender);
    let (mut seeds, mut failed, mut operations, mut cuts, mut events) =
        (0_u64, 0_u64, 0_u64, 0_u64, 0_u64);
    let mut last_report = Instant::now();
    for line in lines {
        seeds += 1;
        if let Some(rest) = line.strip_prefix("ok ") {
            let mut numbers = rest
                .split(' ')
                .skip(1)
                .map(|text| text.parse::<u64>().unwrap_or(0));
            operations += numbers.next().unwrap_or(0);
            cuts += numbers.next().unwrap_or(0);
            events += numbers.next().unwrap_or(0);
        } else {
            failed += 1;
            println!("{}", line.replace("\\n", "\n"));
        }
        if last_report.elapsed().as_secs() >= 10 {
            last_report = Instant::now();
            report(seeds, failed, operations, cuts, events, start);
        }
    }
    let mut all_ended_well = true;
    for (mut child, reader) in children {
        all_ended_well &= child.wait().is_ok_and(|status| status.success());
        let _ = reader.join();
    }
    report(seeds, failed, operations, cuts, events, start);
    if failed == 0 && seeds == options.seeds && all_ended_well {
        ExitCode::SUCCESS
    } else {
        println!(
            "{failed} failed, {} did not run",
            options.seeds - seeds.min(options.seeds)
        );
        ExitCode::FAILURE
    }
}

fn report(seeds: u64, failed: u64, operations: u64, cuts: u64, events: u64, start: Instant) {
    let seconds = start.elapsed().as_secs_f64();
    let rate = f64::from(u32::try_from(seeds).unwrap_or(u32::MAX)) / seconds;
    println!(
        "{seeds} seeds ({failed} failed), {operations} operations, {cuts} power cuts, {events} events in {seconds:.0} s: \
         {rate:.1} seeds/s"
    );
}

fn one(options: &Options) -> ExitCode {
    let plan = Plan::of_seed(options.start);
    println!("{plan:#?}");
    let world = World::new(plan.seed);
    if options.trace.is_some() {
        world.start_trace();
    }
    let result = attempt(&plan, &world, None);
    if let Some(path) = &options.trace {
        std::fs::write(path, world.take_trace().join("\n")).expect("the trace can be written");
    }
    if let Some(dir) = &options.dump {
        let files = world.dump(dir).expect("the disks can be written");
        println!("disks are in {files:?}");
    }
    println!("{:?}", world.counts());
    match result {
        Ok(outcome) => {
            println!("{outcome:?}");
            let second = World::new(plan.seed);
            if !options.once
                && (attempt(&plan, &second, None).is_err()
                    || second.event_hash() != world.event_hash())
            {
                println!(
                    "NOT DETERMINISTIC: {:?} and {:?}",
                    world.event_hash(),
                    second.event_hash()
                );
                return ExitCode::FAILURE;
            }
            ExitCode::SUCCESS
        }
        Err(failure) => {
            println!("FAILED {failure}");
            ExitCode::FAILURE
        }
    }
}

fn canary(options: &Options) -> ExitCode {
    let seeds = options.seeds.min(50);
    let caught = (options.start..options.start + seeds)
        .filter(|&seed| attempt(&Plan::canary(seed), &World::new(seed), None).is_err())
        .count();
    println!("{caught} of {seeds} worlds with lying flushes were caught");
    if caught > 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
