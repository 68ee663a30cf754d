//! `sanbox-sim nfs4`: runs seeds, in several processes, and reports those that fail.
#![allow(clippy::print_stdout, reason = "a command line tool")]

use std::panic::AssertUnwindSafe;
use std::process::ExitCode;

use world::World;

use super::scenario::{Failure, Flaw, Outcome, Plan, run_and_tell};
use crate::workers::{self, SeedOptions, Sums};

/// Seeds that one worker process runs at most before it is replaced.
const SEEDS_PER_WORKER_MAX: u64 = 500;
/// Address space of a worker, enforced by the kernel.
const WORKER_BYTES_MAX: u64 = 2 << 30;

#[derive(Clone, Copy, Debug)]
struct Options {
    seeds: SeedOptions,
    /// Each seed is run twice, and both runs compared.
    twice: bool,
    /// One seed, and more about it; all that happens.
    one: bool,
    trace: bool,
    /// Worlds with flaws, which have to be found.
    canary: bool,
}

/// Runs the command, when it is this one.
#[must_use]
pub fn main(args: &[String]) -> Option<ExitCode> {
    let (command, rest) = args.split_first()?;
    if command != "nfs4" {
        return None;
    }
    let mut options = Options {
        seeds: SeedOptions::default(),
        twice: false,
        one: false,
        trace: false,
        canary: false,
    };
    let mut rest = rest.iter();
    while let Some(arg) = rest.next() {
        if options.seeds.take(arg, &mut rest)? {
            continue;
        }
        match arg.as_str() {
            "--twice" => options.twice = true,
            "--trace" => options.trace = true,
            "--canary" => options.canary = true,
            text if text.parse::<u64>().is_ok() => {
                options.one = true;
                options.seeds.start = text.parse().ok()?;
            }
            other => {
                eprintln!("sanbox-sim nfs4: what is {other}?");
                return Some(ExitCode::from(2));
            }
        }
    }
    Some(if options.seeds.worker {
        work(&options)
    } else if options.canary {
        canary(&options)
    } else if options.one {
        one(&options)
    } else {
        campaign(&options)
    })
}

/// Runs a seed, catching panics.
fn attempt(seed: u64, world: &World, trace: bool) -> Result<Outcome, Failure> {
    let plan = Plan::of_seed(seed);
    let result = std::panic::catch_unwind(AssertUnwindSafe(|| run_and_tell(&plan, world, trace)));
    result.unwrap_or_else(|panic| {
        let text = format!("panic: {}", runtime::host::panic_message(&*panic));
        Err(Failure { seed, text })
    })
}

fn attempt_and_compare(seed: u64, twice: bool) -> Result<Outcome, Failure> {
    let world = World::new(seed);
    let outcome = attempt(seed, &world, false)?;
    if twice {
        let second = World::new(seed);
        attempt(seed, &second, false)?;
        let (first, second) = (world.event_hash(), second.event_hash());
        if first != second {
            let text = world::NotDeterministic {
                seed,
                first,
                second,
            };
            let text = text.to_string();
            return Err(Failure { seed, text });
        }
    }
    Ok(outcome)
}

fn numbers(outcome: &Outcome) -> [u64; 12] {
    let judged = &outcome.judged;
    [
        outcome.cuts,
        outcome.seconds,
        judged.opens,
        judged.locks,
        judged.delegations,
        judged.recalls,
        judged.writes,
        judged.reads,
        judged.cached,
        judged.taken,
        judged.reclaims,
        judged.repeats,
    ]
}

fn work(options: &Options) -> ExitCode {
    workers::become_worker(WORKER_BYTES_MAX);
    for seed in options.seeds.seeds() {
        match attempt_and_compare(seed, options.twice) {
            Ok(outcome) => {
                let numbers = numbers(&outcome).map(|number| number.to_string());
                println!("ok {seed} {}", numbers.join(" "));
            }
            Err(failure) => println!("FAILED {}", failure.to_string().replace('\n', "\\n")),
        }
    }
    ExitCode::SUCCESS
}

fn campaign(options: &Options) -> ExitCode {
    let supply = options.seeds.supply(SEEDS_PER_WORKER_MAX);
    let mut words = vec!["nfs4".to_owned(), "--worker".to_owned()];
    words.extend(options.twice.then(|| "--twice".to_owned()));
    let sums = workers::sum(&supply, &words, report);
    report(&sums);
    if sums.failed == 0 && sums.ran == options.seeds.count {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn report(sums: &Sums<12>) {
    let (seconds, rate) = sums.pace();
    let Sums { ran, failed, .. } = sums;
    let [
        cuts,
        virtual_seconds,
        opens,
        locks,
        delegations,
        recalls,
        writes,
        reads,
        cached,
        taken,
        reclaims,
        repeats,
    ] = sums.counts;
    println!(
        "{ran} seeds ({failed} failed) in {seconds:.0} s: {rate:.1} seeds/s; {virtual_seconds} s of simulated time, {cuts} power cuts\n\
         {opens} opens, {locks} locks, {delegations} delegations ({recalls} recalled), {writes} writes, {reads} reads, \
         {cached} in caches\n\
         {taken} taken after a lease, {reclaims} reclaimed, {repeats} repeats answered from their slots"
    );
}

/// Runs worlds with each flaw; every flaw has to be found in some.
fn canary(options: &Options) -> ExitCode {
    let seeds = options.seeds.first(50);
    let mut blind = false;
    for flaw in [Flaw::LyingFlush, Flaw::FastClock, Flaw::NoRecord] {
        let failed = |seed: &u64| {
            let plan = Plan::with_flaw(*seed, flaw);
            let failure = run_and_tell(&plan, &World::new(*seed), false).err();
            failure.inspect(|failure| println!("{flaw:?}: {failure}"))
        };
        let count = seeds.clone().filter(|seed| failed(seed).is_some()).count();
        println!(
            "{flaw:?}: found in {count} of {} worlds",
            seeds.end - seeds.start
        );
        blind |= count == 0;
    }
    ExitCode::from(u8::from(blind))
}

fn one(options: &Options) -> ExitCode {
    let seed = options.seeds.start;
    println!("{:#?}", Plan::of_seed(seed));
    let result = match options.trace {
        true => attempt(seed, &World::new(seed), true),
        false => attempt_and_compare(seed, true),
    };
    match result {
        Ok(outcome) => {
            println!("{outcome:#?}");
            ExitCode::SUCCESS
        }
        Err(failure) => {
            println!("FAILED {failure}");
            ExitCode::FAILURE
        }
    }
}
