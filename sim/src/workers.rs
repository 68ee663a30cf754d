//! Seeds in worker processes: a seed that panics, allocates without end or never ends takes its process with it, not the campaign.
//!
//! The workers are this program again, for a range of seeds each; they print one line a seed. Ranges become shorter towards the
//! end, so that no process has a long one left when the others are done. What a line means is the caller's business, but for the
//! word that marks a failure.
#![allow(clippy::print_stdout, reason = "for command line tools")]

use std::io::{BufRead as _, BufReader};
use std::ops::Range;
use std::process::{Command, Stdio};
use std::slice;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, setrlimit};

/// The seeds that no worker has yet.
#[derive(Debug)]
pub(crate) struct Seeds {
    next: AtomicU64,
    end: u64,
    /// Processes at a time.
    jobs: u64,
    /// Seeds that a process runs at most before it is replaced.
    range_max: u64,
    /// No seed begins afterwards.
    until: Option<Instant>,
}

impl Seeds {
    /// Creates the seeds of `range`, to be run by `jobs` processes (at least 1) at a time.
    #[must_use]
    pub(crate) fn new(range: Range<u64>, jobs: u64, range_max: u64) -> Self {
        Self {
            next: AtomicU64::new(range.start),
            end: range.end,
            jobs: jobs.max(1),
            range_max,
            until: None,
        }
    }

    /// Begins no further range after `until`.
    #[must_use]
    pub(crate) fn until(self, until: Option<Instant>) -> Self {
        Self { until, ..self }
    }

    fn take(&self) -> Option<Range<u64>> {
        if self.until.is_some_and(|until| Instant::now() >= until) {
            return None;
        }
        let range = |start: u64| {
            let left = self.end.saturating_sub(start);
            start..start + (left / (2 * self.jobs)).clamp(1, self.range_max)
        };
        let start = self
            .next
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |start| {
                (start < self.end).then(|| range(start).end)
            });
        start.ok().map(range)
    }
}

/// What every campaign may be told: which seeds, and by how many processes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SeedOptions {
    pub(crate) count: u64,
    pub(crate) start: u64,
    jobs: u64,
    /// This process runs the seeds itself, for another one.
    pub(crate) worker: bool,
}

impl Default for SeedOptions {
    fn default() -> Self {
        Self {
            count: 1000,
            start: 0,
            jobs: 2,
            worker: false,
        }
    }
}

impl SeedOptions {
    /// Takes an option, with its value from the words behind it, if it is one of these; `None` where that is no number.
    pub(crate) fn take(
        &mut self,
        option: &str,
        behind: &mut slice::Iter<'_, String>,
    ) -> Option<bool> {
        let mut number = || behind.next().and_then(|text| text.parse::<u64>().ok());
        match option {
            "--seeds" => self.count = number()?,
            "--start" => self.start = number()?,
            "--jobs" => self.jobs = number()?.max(1),
            "--worker" => self.worker = true,
            _ => return Some(false),
        }
        Some(true)
    }

    pub(crate) fn seeds(&self) -> Range<u64> {
        self.first(self.count)
    }

    /// The first of the seeds, so many at most.
    pub(crate) fn first(&self, most: u64) -> Range<u64> {
        self.start..self.start.saturating_add(self.count.min(most))
    }

    /// The seeds for workers that run `range_max` of them each at most.
    pub(crate) fn supply(&self, range_max: u64) -> Seeds {
        Seeds::new(self.seeds(), self.jobs, range_max)
    }
}

/// What the seeds of a campaign come to.
pub(crate) struct Sums<const N: usize> {
    began: Instant,
    pub(crate) ran: u64,
    pub(crate) failed: u64,
    /// Of the numbers in the lines of those that did not fail.
    pub(crate) counts: [u64; N],
}

impl<const N: usize> Sums<N> {
    /// Seconds since the campaign began, and seeds of each.
    pub(crate) fn pace(&self) -> (f64, f64) {
        let seconds = self.began.elapsed().as_secs_f64();
        let ran = f64::from(u32::try_from(self.ran).unwrap_or(u32::MAX));
        (seconds, ran / seconds)
    }
}

/// Runs seeds by workers that print `ok SEED` and so many numbers of each, or `FAILED` and why, which is printed here. Tells `progress` now
/// and then.
pub(crate) fn sum<const N: usize>(
    seeds: &Seeds,
    words: &[String],
    mut progress: impl FnMut(&Sums<N>),
) -> Sums<N> {
    const REPORT_EVERY: Duration = Duration::from_secs(10);
    let mut sums = Sums {
        began: Instant::now(),
        ran: 0,
        failed: 0,
        counts: [0; N],
    };
    let mut reported = Instant::now();
    run(seeds, words, "FAILED", |line| {
        sums.ran += 1;
        if let Some(rest) = line.strip_prefix("ok ") {
            let numbers = rest.split(' ').skip(1);
            for (sum, number) in sums.counts.iter_mut().zip(numbers) {
                *sum += number.parse::<u64>().unwrap_or(0);
            }
        } else {
            sums.failed += 1;
            println!("{}", line.replace("\\n", "\n"));
        }
        if reported.elapsed() >= REPORT_EVERY {
            reported = Instant::now();
            progress(&sums);
        }
    });
    sums
}

/// Runs all seeds and gives every line to `on_line`. `words` are the arguments that make this program a worker, before
/// `--start N --seeds N`. Where a worker ends before its seeds do, the seed at which it ended gets a line `failed SEED why`, unless
/// it said so itself, and the seeds behind it another worker.
///
/// # Panics
/// When this program cannot be started again.
pub(crate) fn run(seeds: &Seeds, words: &[String], failed: &str, mut on_line: impl FnMut(&str)) {
    std::thread::scope(|scope| {
        let (sender, lines) = std::sync::mpsc::channel::<String>();
        for _ in 0..seeds.jobs {
            let sender = sender.clone();
            scope.spawn(move || {
                while let Some(range) = seeds.take() {
                    run_range(range, words, failed, &sender);
                }
            });
        }
        drop(sender);
        for line in lines {
            on_line(&line);
        }
    });
}

fn run_range(mut range: Range<u64>, words: &[String], failed: &str, sender: &Sender<String>) {
    let program = std::env::current_exe().expect("this program exists");
    while !range.is_empty() {
        let count = range.end - range.start;
        let mut child = Command::new(&program)
            .args(words)
            .args(["--start", &range.start.to_string()])
            .args(["--seeds", &count.to_string()])
            .stdout(Stdio::piped())
            .spawn()
            .expect("this program starts");
        let output = BufReader::new(child.stdout.take().expect("it is piped"));
        let mut has_failed = false;
        let send = |line| {
            sender
                .send(line)
                .expect("lines are read until all are sent");
        };
        for line in output.lines().map_while(Result::ok) {
            range.start += 1;
            has_failed = line.starts_with(failed);
            send(line);
        }
        let status = child.wait();
        let is_success = status.as_ref().is_ok_and(std::process::ExitStatus::success);
        if !range.is_empty() && (!has_failed || is_success) {
            send(format!(
                "{failed} {} the worker ended: {status:?}",
                range.start
            ));
            range.start += 1;
        }
    }
}

/// Has the kernel refuse this process more address space than `bytes_max`, and panics say where they are in one line.
pub(crate) fn become_worker(bytes_max: u64) {
    // One seed that allocates without end must end its worker, not the machine.
    let limit = Rlimit {
        current: Some(bytes_max),
        maximum: Some(bytes_max),
    };
    if let Err(error) = setrlimit(Resource::As, limit) {
        eprintln!("limit the memory of a worker: {error}");
    }
    std::panic::set_hook(Box::new(|info| {
        if let Some(location) = info.location() {
            eprintln!("panic at {location}");
        }
    }));
}

#[cfg(test)]
mod tests {
    use super::Seeds;

    #[test]
    fn ranges_cover_all_seeds_and_become_short() {
        let seeds = Seeds::new(12..52, 2, 100);
        let mut next = 12;
        let mut lengths = Vec::new();
        while let Some(range) = seeds.take() {
            assert_eq!(range.start, next);
            next = range.end;
            lengths.push(range.end - range.start);
        }
        assert_eq!(next, 52);
        assert_eq!((lengths.first(), lengths.last()), (Some(&10), Some(&1)));
    }
}
