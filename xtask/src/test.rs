//! Builds every test once and runs what was built: several test binaries at a time, quick ones first.
//!
//! `cargo test` runs one binary after another, so a binary whose tests wait (for a daemon, a timeout, a client) leaves the
//! machine idle. Here every binary and every campaign of the simulator is a job, as many jobs run as there are processors, the
//! output of each is kept, and is shown where something failed. Afterwards: the seconds of every job, the slowest tests, what was
//! skipped or left out and why, and a last line with nothing but the counts.
//!
//! A test that takes long has `#[ignore = "long: why"]`, and runs with `--long` only. The seconds of each test are in `test-seconds`
//! beside the programs, from which it is seen what should have that mark.
//!
//! It does not know what a test means.

use anyhow::{Context as _, Result, bail, ensure};
use std::collections::VecDeque;
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

pub(crate) const USAGE: &str = "\
usage: cargo xtask test [unit] [sim] [system] [--long] [--seeds N] [--jobs N]

  unit     the tests of the crates
  sim      the tests of the simulator, and campaigns of N seeds (16; with --long 40) and fewer
  system   the tests of the programs
  --long   also the tests that take long, which are left out otherwise, and said so
Without a word: all of them, in this order.
";

/// How many of the slowest tests are named.
const SLOWEST: usize = 20;

/// Seeds of the mixed campaign and of the fault campaign.
const SEEDS: u64 = 16;
const SEEDS_LONG: u64 = 40;
/// Seeds of the simulations that are tests of a crate, with `--long`; they say themselves how many they run otherwise.
const SEEDS_IN_TESTS_LONG: &str = "300";

/// The part of the tests that a job belongs to, in the order in which they begin.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
enum Part {
    Unit,
    Sim,
    System,
}

impl Part {
    fn of_package(package: &str) -> Self {
        match package {
            "sim" => Self::Sim,
            "tests" => Self::System,
            _ => Self::Unit,
        }
    }
}

#[derive(Clone, Debug)]
struct Options {
    parts: Vec<Part>,
    long: bool,
    /// Of the mixed and the fault campaign, where the usual number is not wanted.
    seeds: Option<u64>,
    jobs: usize,
}

impl Options {
    fn seeds(&self) -> u64 {
        let usual = if self.long { SEEDS_LONG } else { SEEDS };
        self.seeds.unwrap_or(usual)
    }
}

/// Something to run, by itself.
#[derive(Debug)]
struct Job {
    part: Part,
    name: String,
    program: PathBuf,
    folder: PathBuf,
    arguments: Vec<String>,
    /// The seeds of a campaign; `None` for a test binary.
    seeds: Option<u64>,
    /// Also what takes long.
    long: bool,
}

#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
struct Counts {
    passed: u64,
    failed: u64,
    skipped: u64,
}

impl Counts {
    fn and(self, other: Self) -> Self {
        Self {
            passed: self.passed + other.passed,
            failed: self.failed + other.failed,
            skipped: self.skipped + other.skipped,
        }
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} passed, {} failed", self.passed, self.failed)?;
        if self.skipped > 0 {
            write!(f, ", {} skipped", self.skipped)?;
        }
        Ok(())
    }
}

/// What came of a job.
#[derive(Debug, Default)]
struct Report {
    name: String,
    counts: Counts,
    wall: Duration,
    /// Test and seconds.
    times: Vec<(String, f64)>,
    /// What was not judged, and why.
    skips: Vec<String>,
    /// The tests that were not run, and why.
    left_out: Vec<String>,
}

/// Builds and runs what the arguments name.
///
/// # Errors
/// When the build fails, an argument is unknown, a job cannot be started, or a test fails.
pub(crate) fn run(root: &Path, arguments: &[String]) -> Result<()> {
    let options = parse(arguments)?;
    let built = Instant::now();
    let (mut jobs, target) = build(root, &options)?;
    eprintln!("built in {} s", built.elapsed().as_secs());
    if options.parts.contains(&Part::Sim) {
        jobs.extend(campaigns(root, &target, options.seeds()));
    }
    // Stable: the order of the parts, and within one the order of the names.
    jobs.sort_by(|a, b| (a.part, &a.name).cmp(&(b.part, &b.name)));
    ensure!(!jobs.is_empty(), "no test was built");
    let tested = Instant::now();
    let reports = run_all(jobs, options.jobs)?;
    write_seconds(&reports, &target.join("test-seconds"))?;
    let counts = summary(&reports, tested.elapsed());
    println!("{counts}");
    ensure!(counts.failed == 0, "{} tests failed", counts.failed);
    Ok(())
}

fn parse(arguments: &[String]) -> Result<Options> {
    let mut options = Options {
        parts: Vec::new(),
        long: false,
        seeds: None,
        jobs: std::thread::available_parallelism().map_or(2, std::num::NonZero::get),
    };
    let mut words = arguments.iter();
    while let Some(word) = words.next() {
        let mut number = || words.next().and_then(|text| text.parse::<u64>().ok());
        match word.as_str() {
            "unit" => options.parts.push(Part::Unit),
            "sim" => options.parts.push(Part::Sim),
            "system" => options.parts.push(Part::System),
            "--long" => options.long = true,
            "--seeds" => options.seeds = Some(number().context("--seeds needs a number")?),
            "--jobs" => {
                let jobs = number().context("--jobs needs a number")?;
                options.jobs = usize::try_from(jobs)?.max(1);
            }
            other => bail!("unknown argument '{other}'\n{USAGE}"),
        }
    }
    if options.parts.is_empty() {
        options.parts = vec![Part::Unit, Part::Sim, Part::System];
    }
    Ok(options)
}

/// Builds libraries, programs and tests of the whole workspace, and returns a job for each test binary of the chosen parts, and
/// the folder of the programs.
///
/// Always the whole workspace: with a choice of packages cargo would choose other features for what they depend on, and build it
/// a second time. Without examples and doctests: clippy checks the former, and there are none of the latter.
fn build(root: &Path, options: &Options) -> Result<(Vec<Job>, PathBuf)> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .current_dir(root)
        .args(["build", "--workspace", "--lib", "--bins", "--tests"])
        .arg("--message-format=json-render-diagnostics")
        .stderr(Stdio::inherit())
        .output()
        .context("start cargo")?;
    ensure!(output.status.success(), "the build failed");
    let text = String::from_utf8(output.stdout).context("cargo's messages")?;
    let mut jobs = Vec::new();
    let mut programs = None;
    for line in text.lines() {
        let message: serde_json::Value = serde_json::from_str(line).context("a cargo message")?;
        let Some(program) = message["executable"].as_str().map(PathBuf::from) else {
            continue;
        };
        if message["profile"]["test"] != true {
            programs = program.parent().map(Path::to_path_buf);
            continue;
        }
        let folder = message["manifest_path"]
            .as_str()
            .and_then(|path| Path::new(path).parent())
            .context("a message without a manifest")?;
        let package = folder.file_name().unwrap_or_default().to_string_lossy();
        let target = message["target"]["name"].as_str().unwrap_or_default();
        let part = Part::of_package(&package);
        // Shows what passing tests print, for the skips, and the seconds of each test.
        let mut arguments = vec!["-Z", "unstable-options", "--report-time", "--show-output"];
        if options.long {
            arguments.push("--include-ignored");
        }
        if options.parts.contains(&part) {
            jobs.push(Job {
                part,
                name: format!("{package}/{target}"),
                program,
                folder: folder.to_path_buf(),
                arguments: arguments.into_iter().map(str::to_owned).collect(),
                seeds: None,
                long: options.long,
            });
        }
    }
    Ok((jobs, programs.context("no program was built")?))
}

/// The campaigns, each with one process at a time: as many run beside each other as there are jobs. The tests of the simulator
/// run the first dozen seeds of the mixed and the fault campaign; these begin after them.
fn campaigns(root: &Path, programs: &Path, seeds: u64) -> Vec<Job> {
    const AFTER_THE_TESTS: u64 = 12;
    let few = seeds.div_ceil(8);
    let plans: [(&str, &[&str], u64, u64); 13] = [
        ("campaign", &["campaign"], AFTER_THE_TESTS, seeds),
        ("faults", &["faults"], AFTER_THE_TESTS, seeds),
        ("campaign --devices", &["campaign", "--devices"], 0, few),
        ("campaign --removals", &["campaign", "--removals"], 6, few),
        (
            "campaign --expansions",
            &["campaign", "--expansions"],
            0,
            few,
        ),
        ("campaign --histories", &["campaign", "--histories"], 0, few),
        ("campaign --clones", &["campaign", "--clones"], 0, few),
        ("campaign --dedup", &["campaign", "--dedup"], 0, few),
        (
            "campaign --removals --clones",
            &["campaign", "--removals", "--clones"],
            0,
            few,
        ),
        ("campaign --replicas", &["campaign", "--replicas"], 0, few),
        (
            "campaign --encryption",
            &["campaign", "--encryption"],
            0,
            few,
        ),
        (
            "campaign --replicas --encryption",
            &["campaign", "--replicas", "--encryption"],
            0,
            few,
        ),
        ("crash --caches", &["crash", "--caches"], 0, few),
    ];
    plans
        .into_iter()
        .map(|(name, words, start, seeds)| {
            let numbers = [
                "--jobs".to_owned(),
                "1".to_owned(),
                "--start".to_owned(),
                start.to_string(),
                "--seeds".to_owned(),
                seeds.to_string(),
            ];
            let words = words.iter().map(|&word| word.to_owned());
            let program = match name {
                "crash --caches" => "sanbox-lab",
                _ => "sanbox-sim",
            };
            Job {
                part: Part::Sim,
                name: format!("{program} {name}"),
                program: programs.join(program),
                folder: root.to_path_buf(),
                arguments: words.chain(numbers).collect(),
                seeds: Some(seeds),
                long: false,
            }
        })
        .collect()
}

/// Runs all jobs, `at_once` of them beside each other.
fn run_all(jobs: Vec<Job>, at_once: usize) -> Result<Vec<Report>> {
    let waiting = Mutex::new(VecDeque::from(jobs));
    let take = || {
        let mut jobs = waiting.lock().unwrap_or_else(PoisonError::into_inner);
        jobs.pop_front()
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..at_once)
            .map(|_| {
                scope.spawn(|| -> Result<Vec<Report>> {
                    let mut reports = Vec::new();
                    while let Some(job) = take() {
                        reports.push(run_one(&job)?);
                    }
                    Ok(reports)
                })
            })
            .collect();
        let mut reports = Vec::new();
        for worker in workers {
            reports.extend(worker.join().expect("workers do not panic")?);
        }
        Ok(reports)
    })
}

fn run_one(job: &Job) -> Result<Report> {
    let start = Instant::now();
    let mut command = Command::new(&job.program);
    if job.long {
        // For simulations that are tests of a crate.
        command.env("SANBOX_SEEDS", SEEDS_IN_TESTS_LONG);
    }
    let output = command
        .args(&job.arguments)
        .current_dir(&job.folder)
        // The test harness takes `--report-time` only where unstable features are allowed.
        .env("RUSTC_BOOTSTRAP", "1")
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("start {}", job.program.display()))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    let mut report = match job.seeds {
        Some(seeds) => report_of_campaign(&text, seeds),
        None => report_of_tests(&text),
    };
    report.name.clone_from(&job.name);
    report.wall = start.elapsed();
    if !output.status.success() && report.counts.failed == 0 {
        // It ended before it could say what failed.
        report.counts.failed = 1;
    }
    if report.counts.failed > 0 {
        println!("==== {}: {}\n{text}\n{errors}", job.name, output.status);
    }
    eprintln!(
        "{:>7.1} s  {}: {}",
        report.wall.as_secs_f64(),
        job.name,
        report.counts
    );
    Ok(report)
}

/// Reads the output of a test binary. A test that passed and said that it skipped something counts as skipped.
fn report_of_tests(text: &str) -> Report {
    let mut report = Report::default();
    let mut skipped_in = None;
    let mut test = "";
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("test ") {
            match rest.split_once(" ... ") {
                Some((name, outcome)) => {
                    report.counts.passed += u64::from(outcome.starts_with("ok"));
                    report.counts.failed += u64::from(outcome.starts_with("FAILED"));
                    if let Some(why) = outcome.strip_prefix("ignored") {
                        let why = why.trim_start_matches([',', ' ']);
                        report.left_out.push(format!("{name}: {why}"));
                    }
                    if let Some(seconds) = seconds(outcome) {
                        report.times.push((name.to_owned(), seconds));
                    }
                }
                None => continue,
            }
        } else if let Some(name) = line.strip_prefix("---- ") {
            test = name.strip_suffix(" stdout ----").unwrap_or(name);
        } else if line.starts_with("SKIPPED") {
            report.skips.push(format!("{test}: {line}"));
            if skipped_in != Some(test) {
                skipped_in = Some(test);
                report.counts.skipped += 1;
            }
        }
    }
    report.counts.passed = report.counts.passed.saturating_sub(report.counts.skipped);
    report
}

/// The seconds in an outcome as `ok <1.234s>`.
fn seconds(outcome: &str) -> Option<f64> {
    let (_, rest) = outcome.split_once('<')?;
    rest.split_once("s>")?.0.parse().ok()
}

/// Reads the output of a campaign: each seed is a test. A seed that failed has a line of its own, and one that did not run failed.
fn report_of_campaign(text: &str, seeds: u64) -> Report {
    let last = text.lines().rev().find_map(|line| {
        let (ran, rest) = line.split_once(" seeds")?;
        rest.starts_with([' ', ',']).then_some(())?;
        ran.parse::<u64>().ok()
    });
    let failures = text
        .lines()
        .filter(|line| line.starts_with("FAILED") || line.starts_with("VIOLATION"))
        .count();
    let failed = failures as u64 + seeds.saturating_sub(last.unwrap_or(0));
    Report {
        counts: Counts {
            passed: seeds.saturating_sub(failed),
            failed,
            skipped: 0,
        },
        ..Report::default()
    }
}

/// Writes the seconds of every test, one a line.
fn write_seconds(reports: &[Report], file: &Path) -> Result<()> {
    let lines: Vec<String> = reports
        .iter()
        .flat_map(|report| {
            let line = |(test, seconds): &(String, f64)| {
                format!("{seconds:.3}\t{}\t{test}\n", report.name)
            };
            report.times.iter().map(line)
        })
        .collect();
    std::fs::write(file, lines.concat()).with_context(|| format!("write {}", file.display()))
}

/// Prints the seconds of the jobs, the slowest tests and the skips; returns the sum of the counts.
fn summary(reports: &[Report], wall: Duration) -> Counts {
    let mut slowest: Vec<(f64, String)> = Vec::new();
    for report in reports {
        let tests = report.times.iter();
        slowest.extend(tests.map(|(test, seconds)| (*seconds, format!("{} {test}", report.name))));
    }
    slowest.sort_by(|a, b| b.0.total_cmp(&a.0));
    println!("the slowest tests:");
    for (seconds, test) in slowest.iter().take(SLOWEST) {
        println!("{seconds:>7.1} s  {test}");
    }
    for report in reports {
        for skip in &report.skips {
            println!("{} {skip}", report.name);
        }
    }
    let left_out: usize = reports.iter().map(|report| report.left_out.len()).sum();
    if left_out > 0 {
        println!("left out, {left_out} tests that `make test-long` runs:");
    }
    for report in reports {
        for test in &report.left_out {
            println!("  {} {test}", report.name);
        }
    }
    let sum: f64 = reports.iter().map(|r| r.wall.as_secs_f64()).sum();
    println!(
        "{} jobs, {sum:.0} s of them in {} s",
        reports.len(),
        wall.as_secs()
    );
    let counts = reports.iter().map(|report| report.counts);
    counts.fold(Counts::default(), Counts::and)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_skip_is_not_a_pass() {
        let text = "\
running 4 tests
test a::one ... ok <0.010s>
test a::two ... ok <1.500s>
test three ... FAILED <0.001s>
test four ... ignored, long: 80 s

successes:

---- a::two stdout ----
SKIPPED zdb of a pool: zdb is not installed
SKIPPED zdb of another: zdb is not installed

test result: FAILED. 2 passed; 1 failed; 1 ignored; 0 measured; 0 filtered out; finished in 1.51s
";
        let report = report_of_tests(text);
        let counts = Counts {
            passed: 1,
            failed: 1,
            skipped: 1,
        };
        assert_eq!(report.counts, counts);
        assert_eq!(report.skips.len(), 2);
        assert_eq!(report.left_out, ["four: long: 80 s"]);
        assert_eq!(report.times[1], ("a::two".to_owned(), 1.5));
        assert_eq!(counts.to_string(), "1 passed, 1 failed, 1 skipped");
    }

    #[test]
    fn seeds_that_did_not_run_have_failed() {
        let check = |text: &str, expect: (u64, u64)| {
            let counts = report_of_campaign(text, 40).counts;
            assert_eq!((counts.passed, counts.failed), expect, "{text}");
        };
        let whole =
            "40 seeds (0 failed), 1 operations, 2 power cuts, 3 events in 4 s: 10.0 seeds/s\n";
        check(whole, (40, 0));
        check(&format!("FAILED 7 Mirror None text\n{whole}"), (39, 1));
        check(
            "FAILED 7 x\n10 seeds (1 failed), 1 operations\n30 did not run\n",
            (9, 31),
        );
        check(
            "40 seeds, 9 operations, 2 power cuts (0 during imports\n",
            (40, 0),
        );
        check("", (0, 40));
    }
}
