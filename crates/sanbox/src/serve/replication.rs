//! The daemon's task that runs the jobs of replication when they are due.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use futures_util::{FutureExt as _, StreamExt as _, stream};
use jiff::{Timestamp, Zoned};
use manage::jobs::{JobOrigin, StartedCommand};
use manage::replication::{Ended, Job, Replications, Report};
use tokio::sync::{Semaphore, mpsc, oneshot};

use crate::appliance::Appliance;
use crate::cli::format::nice_bytes;
use crate::logging::REPLICATION;
use crate::replication::run_if_changed;
use crate::restore_tests;

/// How often is looked whether a job is due.
const TICK: Duration = Duration::from_secs(1);
/// Jobs that run at a time; others wait for their turn.
const RUNS_MAX: usize = 4;
/// Continuous jobs that run at a time, beside them.
const CONTINUOUS_RUNS_MAX: usize = 8;
/// How often is looked whether a pool is there by now in which an interrupted test may have left a clone.
const LEFTOVER_EVERY: Duration = Duration::from_secs(10);
/// How long a run may take before it is listed among the jobs of the console: most find nothing to do, or little.
const LISTED_AFTER: Duration = Duration::from_secs(2);
/// The same of a continuous job, which is always at work while something is written.
const CONTINUOUS_LISTED_AFTER: Duration = Duration::from_secs(60);
/// How often a listed run says how far it is.
const PROGRESS_EVERY: Duration = Duration::from_secs(5);
/// Whose name the console shows of these jobs.
pub(super) const ORIGIN: &str = "replication";

/// What was logged of each job last: a cause that stays is one line of the log.
type Logged = Arc<Mutex<BTreeMap<String, Option<&'static str>>>>;

/// Runs jobs until the appliance is gone.
pub(super) async fn keep(appliance: Weak<Appliance>) {
    let turns = Arc::new(Semaphore::new(RUNS_MAX));
    // Those that wait for hours of an initial stream would be seconds behind.
    let continuous_turns = Arc::new(Semaphore::new(CONTINUOUS_RUNS_MAX));
    let logged = Logged::default();
    // A test reads all there is: two at a time would only be in each other's way.
    let tests = Arc::new(Semaphore::new(1));
    let mut looked_after = BTreeSet::new();
    let mut unreadable = None;
    let mut each = tokio::time::interval(TICK);
    each.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        each.tick().await;
        let Some(appliance) = appliance.upgrade() else {
            return;
        };
        let replications = appliance.replications().clone();
        // The state directory may be slow to answer.
        let read = tokio::task::spawn_blocking(move || replications.jobs()).await;
        let jobs = match read {
            Ok(Ok(jobs)) => {
                unreadable = None;
                jobs.replication
            }
            Ok(Err(error)) => {
                let why = error.to_string();
                if unreadable.as_ref() != Some(&why) {
                    tracing::error!(target: REPLICATION, "no job is run: {why}");
                }
                unreadable = Some(why);
                continue;
            }
            Err(_) => continue,
        };
        for job in &jobs {
            if looked_after.insert(job.name.clone()) {
                tokio::spawn(without_leftover(Arc::downgrade(&appliance), job.clone()));
            }
            test_if_due(&appliance, job, &tests);
        }
        for job in jobs {
            let open = window_left(&job);
            if open.is_none() || !appliance.replications().is_due(&job) {
                continue;
            }
            let turns = match job.continuous {
                true => &continuous_turns,
                false => &turns,
            };
            let Ok(turn) = turns.clone().try_acquire_owned() else {
                continue;
            };
            let (appliance, logged) = (appliance.clone(), logged.clone());
            tokio::spawn(async move {
                scheduled(&appliance, &job, open.flatten(), &logged).await;
                drop(turn);
            });
        }
    }
}

/// Destroys what a test left that the end of an earlier process interrupted, as soon as its pool is there.
async fn without_leftover(appliance: Weak<Appliance>, job: Job) {
    if job.check_testable().is_err() {
        return;
    }
    while let Some(appliance) = appliance.upgrade() {
        if restore_tests::destroy_leftover(&appliance, &job).await {
            return;
        }
        drop(appliance);
        tokio::time::sleep(LEFTOVER_EVERY).await;
    }
}

/// Begins the test of a restore when its schedule says so and the job has sent something.
fn test_if_due(appliance: &Arc<Appliance>, job: &Job, tests: &Arc<Semaphore>) {
    let replications = appliance.replications();
    let is_due = replications.restore_tests().is_due(job, Timestamp::now());
    if !is_due || !replications.has_delivered(&job.name) {
        return;
    }
    let Ok(turn) = tests.clone().try_acquire_owned() else {
        return;
    };
    let (appliance, job) = (appliance.clone(), job.clone());
    tokio::spawn(async move {
        let report = restore_tests::run(&appliance, &job).await;
        drop(turn);
        let name = &job.name;
        match report.map(|report| (report.files(), report.problem())) {
            None => {}
            Some((files, None)) => {
                tracing::info!(target: REPLICATION, "{name}: the test of a restore read {files} files");
            }
            Some((_, Some(problem))) => {
                tracing::warn!(target: REPLICATION, "{name}: the test of a restore failed: {problem}");
            }
        }
    });
}

/// Returns how long the job may run: `None` when it may not now, `Some(None)` when nothing ends it.
fn window_left(job: &Job) -> Option<Option<Duration>> {
    match job.window() {
        Ok(None) => Some(None),
        Ok(Some(window)) => window.left(&Zoned::now()).map(Some),
        Err(_) => None,
    }
}

/// A run that was due. It ends with its window: what was sent of the stream under way is kept.
async fn scheduled(appliance: &Arc<Appliance>, job: &Job, open: Option<Duration>, logged: &Logged) {
    let replications = appliance.replications();
    let closing = async {
        match open {
            Some(left) => tokio::time::sleep(left).await,
            None => std::future::pending().await,
        }
        replications.cancel(&job.name);
        std::future::pending::<()>().await;
    };
    let ended = tokio::select! {
        ended = run_if_changed(appliance, job) => ended,
        () = listed(appliance, job) => None,
        () = closing => None,
    };
    if let Some(ended) = ended {
        log(job, &ended, logged);
    }
}

/// Lists a run that takes long among the jobs of the console, where it can be watched and cancelled. Never returns: it ends with the run.
async fn listed(appliance: &Arc<Appliance>, job: &Job) {
    tokio::time::sleep(match job.continuous {
        true => CONTINUOUS_LISTED_AFTER,
        false => LISTED_AFTER,
    })
    .await;
    let Some(jobs) = appliance.jobs() else {
        return std::future::pending().await;
    };
    let (sender, output) = mpsc::channel::<Vec<u8>>(8);
    let (over, exit) = oneshot::channel();
    let replications = appliance.replications().clone();
    let (cancelled, name) = (replications.clone(), job.name.clone());
    jobs.start(
        JobOrigin {
            user: ORIGIN.to_owned(),
            origin: ORIGIN.to_owned(),
            line: format!("sanbox replication run {}", job.name),
            change: true,
        },
        StartedCommand {
            output: stream::unfold(output, |mut output| async {
                let bytes = output.recv().await?;
                Some((bytes, output))
            })
            .boxed(),
            exit: exit.map(|ended| ended.ok()).boxed(),
            undo: async { None }.boxed(),
            cancel: Box::new(move || {
                cancelled.cancel(&name);
            }),
        },
    );
    let listed = ListedRun {
        replications,
        job: job.name.clone(),
        over: Some(over),
        output: sender,
    };
    loop {
        listed.tell_progress();
        tokio::time::sleep(PROGRESS_EVERY).await;
    }
}

/// A run in the list of jobs, which ends there when this is dropped.
struct ListedRun {
    replications: Arc<Replications>,
    job: String,
    over: Option<oneshot::Sender<u8>>,
    output: mpsc::Sender<Vec<u8>>,
}

impl ListedRun {
    fn tell(&self, text: String) {
        // A reader that is behind misses a line.
        let _ = self.output.try_send(format!("{text}\n").into_bytes());
    }

    fn tell_progress(&self) {
        let Some(progress) = self.replications.state_of(&self.job).running else {
            return;
        };
        let (done, rate) = (progress.done_bytes(), progress.rate());
        let mut text = format!(
            "{}: {} sent, {}/s",
            progress.current(),
            nice_bytes(done),
            nice_bytes(rate)
        );
        if let Some(total) = progress.total_bytes() {
            text.push_str(&format!(", of {}", nice_bytes(total)));
        }
        if let Some(left) = progress.remaining() {
            text.push_str(&format!(", {} s left", left.as_secs()));
        }
        self.tell(text);
    }
}

impl Drop for ListedRun {
    fn drop(&mut self) {
        let ended = self.replications.state_of(&self.job).ended;
        let Some(ended) = ended else {
            return;
        };
        let code = match &ended.result {
            Ok(report) => {
                self.tell(summary(report));
                u8::from(!report.problems.is_empty())
            }
            Err(error) => {
                self.tell(error.to_string());
                1
            }
        };
        // The receiver may be gone.
        let _ = self.over.take().map(|over| over.send(code));
    }
}

fn summary(report: &Report) -> String {
    format!(
        "{} datasets, {} snapshots sent",
        report.datasets,
        report.sent.len()
    )
}

/// Writes how a run ended to the daemon's log: what was sent, and a cause when it is another than before.
fn log(job: &Job, ended: &Ended, logged: &Logged) {
    let problem = ended.problem();
    let cause = problem.map(|(_, error)| error.cause());
    let before = {
        let mut logged = logged.lock().unwrap_or_else(PoisonError::into_inner);
        logged.insert(job.name.clone(), cause).flatten()
    };
    match problem {
        Some((_, error)) if cause != before => {
            let again = if error.is_transient() {
                "; it is tried again at growing distances"
            } else {
                ""
            };
            tracing::warn!(target: REPLICATION, "{}: {error}{again}", job.name);
        }
        None if before.is_some() => tracing::info!(target: REPLICATION, "{}: it goes on", job.name),
        _ => {}
    }
    if let Ok(report) = &ended.result
        && !report.sent.is_empty()
        && !job.continuous
    {
        tracing::info!(target: REPLICATION, "{}: {}", job.name, summary(report));
    }
}
