//! `sanbox-sim campaign|faults|seed|fault|canary`: runs seeds, in several processes, and reports those that fail.
#![allow(clippy::print_stdout, reason = "a command line tool")]

use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use world::World;

use super::faults::{self, FaultPlan};
use super::judge;
use super::scenario::{Failure, Outcome, Plan, run};
use crate::workers::{self, SeedOptions, Sums};

#[derive(Clone, Debug)]
struct Options {
    seeds: SeedOptions,
    once: bool,
    /// Plans of long histories of datasets.
    histories: bool,
    /// Plans in which snapshots are sent and received.
    replicas: bool,
    /// The same, datasets are encrypted, and streams received correctively.
    encryption: bool,
    /// Plans in which the pool's devices change.
    devices: bool,
    /// Plans in which vdevs with data join and leave.
    removals: bool,
    /// Plans in which a raidz gets one more device after the other.
    expansions: bool,
    /// Plans in which older pools learn to count more.
    upgrades: bool,
    /// Plans in which files are cloned, also beside vdevs that come and go.
    clones: bool,
    /// Blocks are deduplicated, and the same contents written again and again.
    dedup: bool,
    zdb_every: Option<u64>,
    /// Seeds of the fault campaign.
    faults: bool,
    trace: Option<PathBuf>,
    dump: Option<PathBuf>,
}

impl Options {
    fn plan(&self, seed: u64) -> Plan {
        let plan = self.plan_of_files(seed);
        let plan = match self.dedup {
            true => plan.with_dedup(),
            false => plan,
        };
        match self.clones {
            true => plan.with_clones(),
            false => plan,
        }
    }

    fn plan_of_files(&self, seed: u64) -> Plan {
        if self.histories {
            Plan::history(seed)
        } else if self.replicas && self.encryption {
            Plan::encrypted_replicas(seed)
        } else if self.replicas {
            Plan::replicas(seed)
        } else if self.encryption {
            Plan::encryption(seed)
        } else if self.devices {
            Plan::devices(seed)
        } else if self.removals {
            Plan::removals(seed)
        } else if self.expansions {
            Plan::expansions(seed)
        } else if self.upgrades {
            Plan::upgrades(seed)
        } else {
            Plan::of_seed(seed)
        }
    }
}

/// Seeds that one worker process runs at most before it is replaced: what leaks a little is noticed, what leaks for ever is not kept.
const SEEDS_PER_WORKER_MAX: u64 = 100;

/// Address space of a worker, enforced by the kernel; one that holds as much reports a failure and ends.
const WORKER_BYTES_MAX: u64 = 3 << 30;

/// Runs the command, when it is one of ours.
#[must_use]
pub fn main(args: &[String]) -> Option<ExitCode> {
    let (command, rest) = args.split_first()?;
    let mut options = Options {
        seeds: SeedOptions::default(),
        once: false,
        histories: false,
        replicas: false,
        encryption: false,
        devices: false,
        removals: false,
        expansions: false,
        upgrades: false,
        clones: false,
        dedup: false,
        zdb_every: None,
        faults: matches!(command.as_str(), "faults" | "fault"),
        trace: None,
        dump: None,
    };
    let known = ["campaign", "faults", "seed", "fault", "canary"];
    if !known.contains(&command.as_str()) {
        return None;
    }
    let mut rest = rest.iter();
    let mut problem = None;
    while let Some(arg) = rest.next() {
        if options.seeds.take(arg, &mut rest)? {
            continue;
        }
        let mut number = || rest.next().and_then(|text| text.parse::<u64>().ok());
        match arg.as_str() {
            "--once" => options.once = true,
            "--histories" => options.histories = true,
            "--replicas" => options.replicas = true,
            "--encryption" => options.encryption = true,
            "--devices" => options.devices = true,
            "--removals" => options.removals = true,
            "--expansions" => options.expansions = true,
            "--upgrades" => options.upgrades = true,
            "--clones" => options.clones = true,
            "--dedup" => options.dedup = true,
            "--zdb-every" => options.zdb_every = Some(number()?.max(1)),
            "--trace" => options.trace = rest.next().map(PathBuf::from),
            "--dump" => options.dump = rest.next().map(PathBuf::from),
            text if matches!(command.as_str(), "seed" | "fault") && text.parse::<u64>().is_ok() => {
                options.seeds.start = text.parse().ok()?;
            }
            other => problem = Some(other.to_owned()),
        }
    }
    if let Some(other) = problem {
        eprintln!("sanbox-sim {command}: what is {other}?");
        return Some(ExitCode::from(2));
    }
    Some(match command.as_str() {
        "seed" | "fault" => one(&options),
        "canary" => canary(&options),
        _ if options.seeds.worker => {
            work(&options);
            ExitCode::SUCCESS
        }
        _ => campaign(&options),
    })
}

/// What a seed stands for.
#[derive(Debug)]
enum Story {
    Mixed(Plan),
    Faults(FaultPlan),
}

impl Story {
    fn of_seed(seed: u64, options: &Options) -> Self {
        if options.faults {
            Self::Faults(FaultPlan::of_seed(seed))
        } else {
            Self::Mixed(options.plan(seed))
        }
    }

    fn plan(&self) -> &Plan {
        match self {
            Self::Mixed(plan) => plan,
            Self::Faults(plan) => &plan.base,
        }
    }

    fn run(&self, world: &World, zdb: Option<&Path>) -> Result<Outcome, Failure> {
        match self {
            Self::Mixed(plan) => run(plan, world, &|world: &World, crashed: bool| {
                judge::by_checker(plan, world, crashed)?;
                match zdb {
                    Some(dir) => judge::by_zdb_of(world, dir, &judge::outsiders(plan, world)),
                    None => Ok(()),
                }
            }),
            Self::Faults(plan) => faults::run(plan, world, zdb),
        }
    }
}

/// Runs one seed, catching panics.
fn attempt(story: &Story, world: &World, zdb: Option<&Path>) -> Result<Outcome, Failure> {
    let result = std::panic::catch_unwind(AssertUnwindSafe(|| story.run(world, zdb)));
    result.unwrap_or_else(|panic| {
        let text = format!("panic: {}", runtime::host::panic_message(&*panic));
        Err(Failure {
            seed: story.plan().seed,
            round: 0,
            text,
        })
    })
}

/// Runs a seed, twice unless told otherwise, and compares.
fn attempt_twice(story: &Story, options: &Options) -> Result<Outcome, Failure> {
    let plan = story.plan();
    let zdb_dir = std::env::temp_dir().join(format!("sanbox-sim-{}", plan.seed));
    let sampled = options
        .zdb_every
        .is_some_and(|every| plan.seed.is_multiple_of(every));
    let zdb = sampled.then_some(zdb_dir.as_path());
    let first = World::new(plan.seed);
    let outcome = attempt(story, &first, zdb)?;
    if !options.once {
        let second = World::new(plan.seed);
        attempt(story, &second, None)?;
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
    workers::become_worker(WORKER_BYTES_MAX);
    for seed in options.seeds.seeds() {
        let story = Story::of_seed(seed, options);
        let plan = story.plan();
        let result = attempt_twice(&story, options);
        let held = resident_bytes();
        if held > WORKER_BYTES_MAX {
            println!(
                "FAILED {seed} the worker holds {} MiB: something leaks",
                held >> 20
            );
            std::process::exit(1);
        }
        match result {
            Ok(outcome) => println!(
                "ok {seed} {} {} {} {} {} {} {} {} {} {} {} {} {}",
                outcome.operations,
                outcome.cuts,
                outcome.events,
                outcome.removals.begun,
                outcome.removals.given_up,
                outcome.removals.ended,
                outcome.removals.failed,
                outcome.clones,
                outcome.expansions.begun,
                outcome.expansions.ended,
                outcome.counts.rotations,
                outcome.counts.meanwhile,
                outcome.counts.healed
            ),
            Err(failure) => {
                let text = failure.to_string().replace('\n', "\\n");
                println!("FAILED {seed} {:?} {:?} {text}", plan.layout, plan.trouble);
            }
        }
    }
}

/// Memory of this process, from the second number of `/proc/self/statm` (pages of 4 KiB on the machines we run on).
fn resident_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    text.split(' ')
        .nth(1)
        .and_then(|pages| pages.parse::<u64>().ok())
        .unwrap_or(0)
        * 4096
}

/// The arguments of this program that make it a worker of the campaign.
fn worker_words(options: &Options) -> Vec<String> {
    let name = if options.faults { "faults" } else { "campaign" };
    let mut words = vec![name.to_owned(), "--worker".to_owned()];
    let flags = [
        ("--once", options.once),
        ("--histories", options.histories),
        ("--replicas", options.replicas),
        ("--encryption", options.encryption),
        ("--devices", options.devices),
        ("--removals", options.removals),
        ("--expansions", options.expansions),
        ("--upgrades", options.upgrades),
        ("--clones", options.clones),
        ("--dedup", options.dedup),
    ];
    words.extend(
        flags
            .iter()
            .filter(|flag| flag.1)
            .map(|flag| flag.0.to_owned()),
    );
    if let Some(every) = options.zdb_every {
        words.extend(["--zdb-every".to_owned(), every.to_string()]);
    }
    words
}

fn campaign(options: &Options) -> ExitCode {
    let supply = options.seeds.supply(SEEDS_PER_WORKER_MAX);
    let sums = workers::sum(&supply, &worker_words(options), report);
    report(&sums);
    if sums.failed == 0 && sums.ran == options.seeds.count {
        ExitCode::SUCCESS
    } else {
        let left = options.seeds.count.saturating_sub(sums.ran);
        println!("{} failed, {left} did not run", sums.failed);
        ExitCode::FAILURE
    }
}

/// Tells what the seeds so far come to, by the numbers in their lines.
fn report(sums: &Sums<13>) {
    let (seconds, rate) = sums.pace();
    let [
        operations,
        cuts,
        events,
        begun,
        given_up,
        ended,
        failed,
        cloned,
        expanding,
        expanded,
        rotations,
        meanwhile,
        healed,
    ] = sums.counts;
    let removals = match begun {
        0 => String::new(),
        _ => format!(
            "{begun} removals ({given_up} given up, {failed} failed, {ended} seen to end), "
        ),
    };
    let clones = match cloned {
        0 => String::new(),
        _ => format!("{cloned} clones, "),
    };
    let expansions = match expanding {
        0 => String::new(),
        _ => format!("{expanding} expansions ({expanded} seen to end), "),
    };
    let keys = match rotations + healed {
        0 => String::new(),
        _ => format!(
            "{rotations} rotations of keys ({meanwhile} changes meanwhile), {healed} blocks healed, "
        ),
    };
    println!(
        "{} seeds ({} failed), {operations} operations, {cuts} power cuts, {removals}{expansions}{clones}{keys}{events} events in {seconds:.0} s: \
         {rate:.1} seeds/s",
        sums.ran, sums.failed
    );
}

fn one(options: &Options) -> ExitCode {
    let story = Story::of_seed(options.seeds.start, options);
    let plan = story.plan();
    println!("{story:#?}");
    let world = World::new(plan.seed);
    if options.trace.is_some() {
        world.start_trace();
    }
    let result = attempt(&story, &world, None);
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
                && (attempt(&story, &second, None).is_err()
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
    let seeds = options.seeds.first(50);
    let mut caught = 0;
    for seed in seeds.clone() {
        match attempt(&Story::Mixed(Plan::canary(seed)), &World::new(seed), None) {
            Ok(_) => println!("seed {seed}: not caught"),
            Err(failure) => {
                println!("{failure}");
                caught += 1;
            }
        }
    }
    let worlds = seeds.end - seeds.start;
    println!("{caught} of {worlds} worlds with lying flushes were caught");
    if caught > 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
