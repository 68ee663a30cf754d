//! The jobs of an appliance as they run: which runs now and how far it is, how the last run of each ended, and when the next is due.
//!
//! What there is to do is computed anew by each process: a start looks at every job once, and finds out from both sides. Past runs are kept in
//! the database as far as its disk takes them.

use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use futures_util::future::{AbortHandle, abortable};
use jiff::Timestamp;

use super::behind::Behind;
use super::configuration::EVERY_DEFAULT;
use super::past_run::{self, Ended, PastRun};
use super::{
    Backoff, CommonState, Endpoint, Job, JobError, Jobs, Progress, RecoveryPoint, ReplicationError,
    Report, RestoreTests,
};
use crate::database::{Database, DatabaseError};

/// How long a run that is to end may take for it.
const END_MAX: Duration = Duration::from_secs(30);
/// How often is looked whether a run has ended.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// The clocks of a process, and its random numbers.
pub(super) trait Clock: Send + Sync {
    /// Time that passes, whatever the clock on the wall does.
    fn instant(&self) -> Instant;
    /// What the clock on the wall says.
    fn now(&self) -> Timestamp;
    /// A number for the jitter.
    fn random(&self) -> u32;
}

struct HostClock;

impl Clock for HostClock {
    fn instant(&self) -> Instant {
        Instant::now()
    }

    fn now(&self) -> Timestamp {
        Timestamp::now()
    }

    fn random(&self) -> u32 {
        // Without random bytes there is no jitter.
        crate::secret::random::<4>().map_or(0, u32::from_ne_bytes)
    }
}

/// What a job does.
#[derive(Clone, Debug, Default)]
pub struct JobState {
    /// The run under way.
    pub running: Option<Arc<Progress>>,
    /// How the last run of this process ended.
    pub ended: Option<Ended>,
    /// Since when no run was complete.
    pub failing_since: Option<Timestamp>,
    /// Failures in a row.
    pub failures: u32,
    /// After what time the next run is due; none before the first, which is due at once.
    pub next_in: Option<Duration>,
    /// Runs that sent something or were not complete, the newest last.
    pub past: Vec<PastRun>,
    /// Up to when the target has all of its datasets, as far as the last look at the source could tell.
    pub as_of: Option<Timestamp>,
    /// What both sides have of each dataset, likewise.
    pub common: Arc<[CommonState]>,
    /// How far the target of a continuous job was behind before its last runs.
    pub recovery_point: Option<RecoveryPoint>,
}

#[derive(Default)]
struct Entry {
    /// As it was when it ran last.
    job: Option<Job>,
    running: Option<(Arc<Progress>, AbortHandle)>,
    ended: Option<Ended>,
    /// By both clocks.
    failing_since: Option<(Timestamp, Instant)>,
    backoff: Backoff,
    due: Option<Instant>,
    past: VecDeque<PastRun>,
    as_of: Option<Timestamp>,
    /// The same moment, as far as it was one of this process: clocks that are set do not touch it.
    whole_at: Option<Instant>,
    common: Arc<[CommonState]>,
    behind: Behind,
    /// Why the side that is not in use could not be fenced, since it does not allow that.
    fence_denied: Option<ReplicationError>,
    /// The source's pool at the last look that found all of it at the target, and when a run looked at both sides.
    settled: Option<(u64, Instant)>,
}

impl Entry {
    /// Takes down since when the target lacks something. By the clock on the wall only as far as it did not jump.
    fn note_whole(&mut self, as_of: Option<Timestamp>, ended: &Ended, began_at: Instant) {
        let Some(as_of) = as_of.filter(|as_of| *as_of <= ended.at) else {
            return;
        };
        let before = ended.began.duration_since(as_of);
        let before = Duration::try_from(before).unwrap_or_default();
        self.whole_at = self.whole_at.max(began_at.checked_sub(before));
    }

    /// Remembers a run that is worth it; returns how.
    fn remember(&mut self, job: &Job, ended: &Ended) -> Option<PastRun> {
        let mut run = PastRun::of(ended)?;
        if let Some(last) = self.past.back()
            && let Some(both) = last.with(&run, job.continuous)
        {
            run = both;
            self.past.pop_back();
        } else if self.past.len() >= past_run::RUNS_MAX {
            self.past.pop_front();
        }
        self.past.push_back(run.clone());
        Some(run)
    }
}

/// See the module.
pub struct Replications {
    state: PathBuf,
    clock: Box<dyn Clock>,
    entries: Mutex<BTreeMap<String, Entry>>,
    /// Held while the configuration is changed.
    changing: Mutex<()>,
    /// Names of jobs that are being turned round.
    turning: Mutex<Vec<String>>,
    /// Where past runs are kept.
    database: OnceLock<Database>,
    restore_tests: RestoreTests,
}

/// A job that is being turned round, until this is dropped.
#[derive(Debug)]
pub struct Turning {
    replications: Arc<Replications>,
    name: String,
}

impl Drop for Turning {
    fn drop(&mut self) {
        let mut turning = self.replications.turning_jobs();
        if let Some(at) = turning.iter().position(|name| *name == self.name) {
            turning.swap_remove(at);
        }
    }
}

impl std::fmt::Debug for Replications {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Replications").finish_non_exhaustive()
    }
}

impl Replications {
    /// Begins to turn a job round: what is fenced until this ends is part of it.
    #[must_use]
    pub fn turn(self: &Arc<Self>, name: &str) -> Turning {
        self.turning_jobs().push(name.to_owned());
        Turning {
            replications: self.clone(),
            name: name.to_owned(),
        }
    }

    /// Whether a job is being turned round now.
    #[must_use]
    pub fn is_turning(&self, name: &str) -> bool {
        self.turning_jobs().iter().any(|known| known == name)
    }

    fn turning_jobs(&self) -> MutexGuard<'_, Vec<String>> {
        self.turning.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the jobs of a state directory; nothing is read yet.
    #[must_use]
    pub fn new(state: &Path) -> Arc<Self> {
        Self::with_clock(state, Box::new(HostClock))
    }

    pub(super) fn with_clock(state: &Path, clock: Box<dyn Clock>) -> Arc<Self> {
        Arc::new(Self {
            state: state.to_owned(),
            clock,
            entries: Mutex::default(),
            changing: Mutex::default(),
            turning: Mutex::default(),
            database: OnceLock::new(),
            restore_tests: RestoreTests::default(),
        })
    }

    /// Reads the past runs that a database has, and keeps those to come in it.
    ///
    /// # Errors
    /// The database gives no answer.
    pub async fn keep_in(&self, database: Database) -> Result<(), DatabaseError> {
        self.restore_tests.keep_in(&database).await?;
        let past = database.call(|sql| past_run::load(sql)).await?;
        let mut entries = self.entries();
        for (job, run) in past {
            entries.entry(job).or_default().past.push_back(run);
        }
        drop(entries);
        let _ = self.database.set(database);
        Ok(())
    }

    /// Returns the tests of restores.
    #[must_use]
    pub fn restore_tests(&self) -> &RestoreTests {
        &self.restore_tests
    }

    /// Whether the target of a job has something, as far as this process knows.
    #[must_use]
    pub fn has_delivered(&self, job: &str) -> bool {
        let entries = self.entries();
        entries.get(job).is_some_and(|entry| {
            !entry.common.is_empty() || entry.past.iter().any(|run| run.snapshots > 0)
        })
    }

    /// Reads the configuration.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn jobs(&self) -> Result<Jobs, JobError> {
        Jobs::read(&self.state)
    }

    /// Changes the configuration.
    ///
    /// # Errors
    /// The change is refused, or cannot be written.
    pub fn change<T>(
        &self,
        change: impl FnOnce(&mut Jobs) -> Result<T, JobError>,
    ) -> Result<T, JobError> {
        let _one = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let mut jobs = self.jobs()?;
        let done = change(&mut jobs)?;
        jobs.write(&self.state)?;
        Ok(done)
    }

    /// Returns what a job does.
    #[must_use]
    pub fn state_of(&self, job: &str) -> JobState {
        let entries = self.entries();
        let Some(entry) = entries.get(job) else {
            return JobState::default();
        };
        JobState {
            running: entry.running.as_ref().map(|(progress, _)| progress.clone()),
            ended: entry.ended.clone(),
            failing_since: entry.failing_since.map(|(at, _)| at),
            failures: entry.backoff.failures(),
            next_in: entry
                .due
                .map(|due| due.saturating_duration_since(self.clock.instant())),
            past: entry.past.iter().cloned().collect(),
            as_of: entry.as_of,
            common: entry.common.clone(),
            recovery_point: entry.behind.recovery_point(),
        }
    }

    /// Whether a job is due.
    #[must_use]
    pub fn is_due(&self, job: &Job) -> bool {
        let entries = self.entries();
        let entry = entries.get(&job.name);
        !job.paused
            && !job.failed_over
            && entry.is_none_or(|entry| {
                let is_time = entry.due.is_none_or(|due| due <= self.clock.instant());
                entry.running.is_none() && is_time
            })
    }

    /// Returns the jobs whose runs are not complete, why, and for how long, whatever the clock was set to meanwhile.
    #[must_use]
    pub fn problems(&self) -> Vec<(Job, ReplicationError, Duration)> {
        let entries = self.entries();
        let now = self.clock.instant();
        let problem = |entry: &Entry| {
            let (_, error) = entry.ended.as_ref()?.problem()?;
            let (_, since) = entry.failing_since?;
            let failing = now.saturating_duration_since(since);
            Some((entry.job.clone()?, error.clone(), failing))
        };
        entries
            .values()
            .filter_map(problem)
            .filter(|(job, ..)| !job.paused)
            .collect()
    }

    /// Takes down whether a side of a job allowed to be fenced.
    pub fn note_fences(&self, job: &str, denied: Option<ReplicationError>) {
        let mut entries = self.entries();
        match denied {
            Some(_) => entries.entry(job.to_owned()).or_default().fence_denied = denied,
            None => {
                if let Some(entry) = entries.get_mut(job) {
                    entry.fence_denied = None;
                }
            }
        }
    }

    /// Returns the jobs of which a side did not allow to be fenced, and why.
    #[must_use]
    pub fn fences_denied(&self) -> Vec<(String, ReplicationError)> {
        let entries = self.entries();
        let denied = entries
            .iter()
            .filter_map(|(job, entry)| Some((job.clone(), entry.fence_denied.clone()?)));
        denied.collect()
    }

    /// Makes a job due at once, whatever failed before.
    pub fn hurry(&self, job: &str) {
        if let Some(entry) = self.entries().get_mut(job) {
            entry.due = None;
            entry.backoff.succeed();
        }
    }

    /// Ends the run of a job; what was sent of the stream under way is kept. Returns whether one was under way.
    pub fn cancel(&self, job: &str) -> bool {
        let entries = self.entries();
        let running = entries.get(job).and_then(|entry| entry.running.as_ref());
        running.inspect(|(_, abort)| abort.abort()).is_some()
    }

    /// Waits for the end of the run that is under way, and returns how the last run ended.
    pub async fn ended(&self, job: &str) -> Option<Ended> {
        loop {
            let state = self.state_of(job);
            if state.running.is_none() {
                return state.ended;
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// Ends the run of a job and waits until it has ended. Returns false when it has not after half a minute.
    pub async fn stop(&self, job: &str) -> bool {
        let stopped = async {
            while self.cancel(job) {
                tokio::time::sleep(LOOK_EVERY).await;
            }
        };
        tokio::time::timeout(END_MAX, stopped).await.is_ok()
    }

    /// Ends all runs, at the end of the process; none begins any more.
    pub fn cancel_all(&self) {
        self.restore_tests.cancel_all();
        for entry in self.entries().values() {
            if let Some((_, abort)) = &entry.running {
                abort.abort();
            }
        }
    }

    /// Forgets what is known of a job that was removed.
    pub fn forget(&self, job: &str) {
        self.cancel(job);
        self.restore_tests.forget(job);
        self.entries().remove(job);
        if let Some(database) = self.database.get() {
            let job = job.to_owned();
            database.record(move |sql| past_run::forget(sql, &job));
        }
    }

    /// Carries out a run of a job, one at a time. `None` when one is under way.
    pub async fn run<F>(&self, job: &Job, work: impl FnOnce(Arc<Progress>) -> F) -> Option<Ended>
    where
        F: Future<Output = Result<Report, ReplicationError>>,
    {
        let (began, began_at) = (self.clock.now(), self.clock.instant());
        let progress = Arc::new(Progress::default());
        let (work, abort) = abortable(work(progress.clone()));
        {
            let mut entries = self.entries();
            let entry = entries.entry(job.name.clone()).or_default();
            if entry.running.is_some() {
                return None;
            }
            entry.running = Some((progress.clone(), abort));
        }
        let running = Running {
            replications: self,
            job: &job.name,
        };
        let result = work.await.unwrap_or(Err(ReplicationError::Cancelled));
        drop(running);
        let ended = Ended {
            began,
            at: self.clock.now(),
            bytes: progress.done_bytes(),
            result,
        };
        self.note(job, &ended, began_at);
        Some(ended)
    }

    /// Whether the target of a continuous job has all that was written until now, as the source's pool tells. False when a run has to look
    /// at both sides.
    pub async fn is_settled(&self, job: &Job, source: &dyn Endpoint) -> bool {
        if !job.continuous {
            return false;
        }
        // What is accepted from here on is of the next look.
        let (at, whole_at) = (self.clock.now(), self.clock.instant());
        let unchanged = source.unchanged_since().await;
        unchanged.is_ok_and(|unchanged| self.confirm(job, unchanged, at, whole_at))
    }

    /// Takes down that the target of a continuous job has all that was written before `at`, when the source's pool is as the last run that
    /// was complete found it. False when a run has to look: also when none looked at both sides for as long as the job says.
    fn confirm(
        &self,
        job: &Job,
        unchanged_since: Option<u64>,
        at: Timestamp,
        whole_at: Instant,
    ) -> bool {
        let mut entries = self.entries();
        let Some(entry) = entries.get_mut(&job.name) else {
            return false;
        };
        let every = job.interval().unwrap_or(EVERY_DEFAULT);
        let is_as_it_was = entry.settled.is_some_and(|(number, looked)| {
            Some(number) == unchanged_since
                && self.clock.instant().saturating_duration_since(looked) < every
        });
        let is_idle = entry.running.is_none() && entry.as_of.is_some();
        if !is_as_it_was || !is_idle || entry.job.as_ref() != Some(job) {
            return false;
        }
        entry.as_of = Some(at);
        entry.whole_at = Some(whole_at);
        entry.due = Some(self.clock.instant() + job.pause());
        true
    }

    /// Takes down how a run ended, and computes when the next is due.
    fn note(&self, job: &Job, ended: &Ended, began_at: Instant) {
        let ended_at = self.clock.instant();
        let mut entries = self.entries();
        let Some(entry) = entries.get_mut(&job.name) else {
            return;
        };
        let every = job.interval().unwrap_or(EVERY_DEFAULT);
        let wait = match ended.problem() {
            Some((_, error)) if error.is_transient() => entry.backoff.fail(self.clock.random()),
            // What a person has to decide, or ended, is looked at again as often as anything else.
            Some(_) => every,
            None => {
                entry.backoff.succeed();
                job.pause()
            }
        };
        let is_complete = ended.problem().is_none();
        entry.due = Some(ended_at + wait);
        match ended.problem() {
            Some(_) => {
                entry.failing_since.get_or_insert((ended.at, ended_at));
            }
            None => entry.failing_since = None,
        }
        if let (Some(run), Some(database)) = (entry.remember(job, ended), self.database.get()) {
            let job = job.name.clone();
            database.record(move |sql| past_run::store(sql, &job, &run));
        }
        entry.settled = None;
        if let Ok(report) = &ended.result {
            if job.continuous
                && !report.sent.is_empty()
                && let Some(before) = entry.whole_at
            {
                entry.behind.add(ended_at.saturating_duration_since(before));
            }
            let unchanged = report.unchanged_since.filter(|_| is_complete);
            entry.settled = unchanged.map(|number| (number, ended_at));
            entry.note_whole(report.as_of, ended, began_at);
            entry.as_of = report.as_of;
            entry.common = report.common.as_slice().into();
        }
        entry.job = Some(job.clone());
        entry.ended = Some(ended.clone());
    }

    fn entries(&self) -> MutexGuard<'_, BTreeMap<String, Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A run under way: over when this is dropped, also when its task was.
struct Running<'a> {
    replications: &'a Replications,
    job: &'a str,
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        if let Some(entry) = self.replications.entries().get_mut(self.job) {
            entry.running = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(name: &str) -> Job {
        Job {
            name: name.to_owned(),
            from: "tank/a".to_owned(),
            to: "back/a".to_owned(),
            ..Job::default()
        }
    }

    #[tokio::test]
    async fn one_run_at_a_time_and_its_end_says_when_the_next_is_due() {
        let replications = Replications::new(Path::new("/nonexistent"));
        let job = job("a");
        assert!(replications.is_due(&job));
        let unreachable = || ReplicationError::Unreachable {
            place: "backup".to_owned(),
            why: "no route".to_owned(),
        };
        let within = replications.run(&job, |_| async {
            assert!(!replications.is_due(&job));
            let second = replications.run(&job, |_| async { Ok(Report::default()) });
            assert!(second.await.is_none());
            Err(unreachable())
        });
        let ended = within.await.expect("run");
        assert_eq!(ended.result, Err(unreachable()));
        let state = replications.state_of("a");
        assert_eq!((state.failures, state.running.is_some()), (1, false));
        assert!(state.next_in.expect("planned") <= Duration::from_secs(15));
        assert!(!replications.is_due(&job));
        replications.hurry("a");
        assert!(replications.is_due(&job));
        assert!(!replications.is_due(&Job {
            paused: true,
            ..job.clone()
        }));

        // Cancelled, and dropped: neither leaves it running.
        let endless = replications.run(&job, |_| async {
            replications.cancel("a");
            std::future::pending().await
        });
        let ended = endless.await.expect("run");
        assert_eq!(ended.result, Err(ReplicationError::Cancelled));
        let dropped = replications.run(&job, |_| std::future::pending());
        assert!(
            tokio::time::timeout(Duration::from_millis(1), dropped)
                .await
                .is_err()
        );
        assert!(replications.state_of("a").running.is_none());
        assert!(
            replications
                .run(&job, |_| async { Ok(Report::default()) })
                .await
                .is_some()
        );
        assert_eq!(replications.state_of("a").failing_since, None);
    }

    /// A clock that says what it is told.
    struct TestClock {
        start: Instant,
        passed: Mutex<Duration>,
        wall: Mutex<i64>,
    }

    impl Clock for Arc<TestClock> {
        fn instant(&self) -> Instant {
            self.start + *self.passed.lock().expect("one thread")
        }

        fn now(&self) -> Timestamp {
            at(*self.wall.lock().expect("one thread"))
        }

        fn random(&self) -> u32 {
            0
        }
    }

    impl TestClock {
        fn pass(&self, seconds: u32) {
            *self.passed.lock().expect("one thread") += Duration::from_secs(seconds.into());
            *self.wall.lock().expect("one thread") += i64::from(seconds);
        }
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).expect("a time")
    }

    fn report(second: i64, sent: &[&str]) -> Report {
        Report {
            sent: sent.iter().map(|name| (*name).to_owned()).collect(),
            as_of: Some(at(second)),
            unchanged_since: Some(7),
            ..Report::default()
        }
    }

    #[tokio::test]
    async fn a_copy_is_of_now_as_long_as_nothing_changed() {
        let clock = Arc::new(TestClock {
            start: Instant::now(),
            passed: Mutex::default(),
            wall: Mutex::new(100),
        });
        let replications =
            Replications::with_clock(Path::new("/nonexistent"), Box::new(clock.clone()));
        let job = Job {
            continuous: true,
            ..job("a")
        };
        let confirm = |job: &Job, unchanged| {
            replications.confirm(job, unchanged, clock.now(), clock.instant())
        };
        assert!(!confirm(&job, Some(7)), "no run yet");
        let run = replications.run(&job, |_| std::future::ready(Ok(report(100, &["back/a@1"]))));
        assert!(run.await.is_some());
        clock.pass(100);
        assert!(!confirm(&job, None), "something waits");
        assert!(!confirm(&job, Some(8)), "a txg later");
        assert_eq!(replications.state_of("a").as_of, Some(at(100)));
        assert!(confirm(&job, Some(7)));
        let state = replications.state_of("a");
        assert_eq!((state.as_of, state.recovery_point), (Some(at(200)), None));
        let other = Job {
            recursive: true,
            ..job.clone()
        };
        assert!(!confirm(&other, Some(7)), "changed");

        // What counts is the state that the target had until it had the next one.
        let send = async |as_of, seconds| {
            let run = replications.run(&job, |_| {
                clock.pass(seconds);
                std::future::ready(Ok(report(as_of, &["back/a@2"])))
            });
            assert!(run.await.is_some());
            let point = replications.state_of("a").recovery_point.expect("sent");
            (point.runs, point.max.as_secs())
        };
        clock.pass(2);
        assert_eq!(send(202, 1).await, (1, 3));
        // One that was taken 4 s before the run; it was behind since the run before began.
        clock.pass(7);
        assert_eq!(send(206, 1).await, (2, 9));
        assert_eq!(send(211, 1).await, (3, 9));
        // However the clock is set.
        for jump in [-1_000_000, 300_000_000] {
            *clock.wall.lock().expect("one thread") += jump;
            clock.pass(2);
            let now = clock.now().as_second();
            assert_eq!(send(now, 1).await.1, 9, "{jump}");
        }

        // After a run that was not complete a look is needed, however little changes.
        assert!(confirm(&job, Some(7)));
        let refused = Err(ReplicationError::Cancelled);
        let run = replications.run(&job, |_| std::future::ready(refused));
        assert!(run.await.is_some());
        assert!(!confirm(&job, Some(7)));
    }

    #[tokio::test]
    async fn runs_that_met_one_cause_are_one_entry() {
        let replications = Replications::new(Path::new("/nonexistent"));
        let job = job("a");
        let unreachable = || ReplicationError::Unreachable {
            place: "backup".to_owned(),
            why: "no route".to_owned(),
        };
        let sent = || Report {
            sent: vec!["back/a@1".to_owned()],
            ..Report::default()
        };
        for result in [
            Ok(sent()),
            Ok(Report::default()),
            Err(unreachable()),
            Err(unreachable()),
            Err(ReplicationError::Cancelled),
            Ok(sent()),
            Ok(sent()),
        ] {
            let run = replications.run(&job, |_| std::future::ready(result));
            assert!(run.await.is_some());
        }
        let told = |run: PastRun| (run.runs, run.snapshots, run.problem.map(|(cause, _)| cause));
        let past: Vec<_> = replications
            .state_of("a")
            .past
            .into_iter()
            .map(told)
            .collect();
        assert_eq!(
            past,
            [
                (1, 1, None),
                (2, 0, Some(unreachable().cause().to_owned())),
                (1, 0, Some(ReplicationError::Cancelled.cause().to_owned())),
                (1, 1, None),
                (1, 1, None),
            ]
        );
        for _ in 0..2 * past_run::RUNS_MAX {
            let run = replications.run(&job, |_| std::future::ready(Ok(sent())));
            assert!(run.await.is_some());
        }
        assert_eq!(replications.state_of("a").past.len(), past_run::RUNS_MAX);
    }

    #[tokio::test]
    async fn past_runs_outlive_the_process() {
        let directory = tempfile::tempdir().expect("a directory");
        let open = async || {
            let replications = Replications::new(directory.path());
            let path = directory.path().join("state.db");
            let (database, _) = Database::open(path).await.expect("made");
            let kept = replications.keep_in(database.clone()).await;
            kept.expect("read");
            (replications, database)
        };
        let refused = || ReplicationError::Cancelled;
        let (replications, database) = open().await;
        let jobs = [job("a"), job("b")];
        for job in &jobs {
            for result in [Err(refused()), Err(refused()), Ok(())] {
                let report = || Report {
                    sent: vec!["back/a@1".to_owned()],
                    ..Report::default()
                };
                let result = result.map(|()| report());
                let run = replications.run(job, |_| std::future::ready(result));
                assert!(run.await.is_some());
                // Runs are told apart by when they began.
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        }
        replications.forget("b");
        database.call(|_| Ok(())).await.expect("stored");
        let counts = |replications: &Replications, name: &str| -> Vec<_> {
            let past = replications.state_of(name).past;
            let count = |run: PastRun| (run.runs, run.snapshots, run.problem);
            past.into_iter().map(count).collect()
        };
        let before = counts(&replications, "a");
        assert_eq!((before.len(), before[0].0), (2, 2));
        let (replications, _database) = open().await;
        assert_eq!(counts(&replications, "a"), before);
        assert_eq!(counts(&replications, "b"), []);
        // The next failure is a run of its own, since one was complete.
        let run = replications.run(&jobs[0], |_| std::future::ready(Err(refused())));
        assert!(run.await.is_some());
        assert_eq!(counts(&replications, "a").len(), 3);
    }
}
