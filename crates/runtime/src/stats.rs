//! What the executor counts, and how it describes a standstill.

use std::fmt;
use std::time::Duration;

/// Counters since the runtime was made. Cheap to take.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Tasks alive now.
    pub tasks: usize,
    pub tasks_spawned: u64,
    pub polls: u64,
    /// Polls that held the thread for longer than [`LONG_POLL`].
    pub long_polls: u64,
    pub longest_poll: Duration,
    /// The task that made the longest poll.
    pub longest_poll_task: &'static str,
    /// Times the executor asked the driver to wait or look.
    pub waits: u64,
    pub reads: u64,
    pub read_bytes: u64,
    pub writes: u64,
    pub write_bytes: u64,
    pub flushes: u64,
    pub discards: u64,
    pub compute_jobs: u64,
    /// Disk and compute operations outstanding now.
    pub outstanding: usize,
}

/// A poll longer than this is counted as long: other requests waited that time (house: 1 ms).
pub const LONG_POLL: Duration = Duration::from_millis(1);

/// One task in a [`StallReport`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StalledTask {
    pub name: &'static str,
    /// What it waits for, as named by the wait.
    pub waiting_for: &'static str,
    /// For how long it has not been polled.
    pub since: Duration,
}

/// Every task and what it waits for; reads like sentences.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StallReport {
    pub tasks: Vec<StalledTask>,
    /// What the main future waits for.
    pub main_waiting_for: &'static str,
}

impl fmt::Display for StallReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "the main future waits for: {}", self.main_waiting_for)?;
        for task in &self.tasks {
            writeln!(
                f,
                "task \"{}\" has waited {:?} for: {}",
                task.name, task.since, task.waiting_for
            )?;
        }
        Ok(())
    }
}
