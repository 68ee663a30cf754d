//! The tests of restores of an appliance: which runs now, and what those before found. Reports are kept in the database as far as its disk takes
//! them.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use jiff::Timestamp;

use super::super::Job;
use super::report::{self, REPORTS_MAX};
use super::{RestoreReport, RestoredDataset, TestSchedule};
use crate::database::{Database, DatabaseError};

/// How far a test is.
#[derive(Debug, Default)]
pub struct RestoreProgress {
    snapshot: Mutex<String>,
    files: AtomicU64,
    bytes: AtomicU64,
    cancelled: AtomicBool,
}

impl RestoreProgress {
    pub(super) fn begin(&self, snapshot: &str) {
        let mut current = self.snapshot.lock().unwrap_or_else(PoisonError::into_inner);
        snapshot.clone_into(&mut current);
    }

    pub(super) fn add_file(&self) {
        self.files.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn add_bytes(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(super) fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
    }

    /// The snapshot that is being read; empty before the first.
    #[must_use]
    pub fn snapshot(&self) -> String {
        let current = self.snapshot.lock().unwrap_or_else(PoisonError::into_inner);
        current.clone()
    }

    /// Files, directories and other objects that were read.
    #[must_use]
    pub fn files(&self) -> u64 {
        self.files.load(Ordering::Relaxed)
    }

    /// Bytes that were read.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }
}

#[derive(Default)]
struct Entry {
    running: Option<Arc<RestoreProgress>>,
    /// The newest last.
    reports: VecDeque<Arc<RestoreReport>>,
}

/// See the module.
#[derive(Default)]
pub struct RestoreTests {
    entries: Mutex<BTreeMap<String, Entry>>,
    database: OnceLock<Database>,
}

/// The one test of a job that is under way, until this is dropped.
pub struct RestoreSlot<'a> {
    tests: &'a RestoreTests,
    job: String,
    progress: Arc<RestoreProgress>,
}

impl RestoreSlot<'_> {
    /// How far it is.
    #[must_use]
    pub fn progress(&self) -> &RestoreProgress {
        &self.progress
    }
}

impl Drop for RestoreSlot<'_> {
    fn drop(&mut self) {
        if let Some(entry) = self.tests.entries().get_mut(&self.job) {
            entry.running = None;
        }
    }
}

impl RestoreTests {
    /// Reads the reports that a database has, and keeps those to come in it.
    pub(in super::super) async fn keep_in(&self, database: &Database) -> Result<(), DatabaseError> {
        let loaded = database.call(|sql| report::load(sql)).await?;
        for (job, report) in loaded {
            self.remember(&job, Arc::new(report));
        }
        let _ = self.database.set(database.clone());
        Ok(())
    }

    /// Begins a test, or what must not run beside one. `None` while one is under way.
    #[must_use]
    pub fn begin(&self, job: &str) -> Option<RestoreSlot<'_>> {
        let progress = Arc::<RestoreProgress>::default();
        let mut entries = self.entries();
        let entry = entries.entry(job.to_owned()).or_default();
        if entry.running.is_some() {
            return None;
        }
        entry.running = Some(progress.clone());
        drop(entries);
        Some(RestoreSlot {
            tests: self,
            job: job.to_owned(),
            progress,
        })
    }

    /// Takes down how a test that began at `began` ended.
    pub fn note(
        &self,
        slot: &RestoreSlot<'_>,
        (began, ended): (Timestamp, Timestamp),
        (datasets, failure): (Vec<RestoredDataset>, Option<String>),
    ) -> Arc<RestoreReport> {
        let report = Arc::new(RestoreReport {
            began: began.as_second(),
            ended: ended.as_second(),
            datasets,
            failure,
        });
        if self.running(&slot.job).is_none() {
            // The job was removed meanwhile.
            return report;
        }
        self.remember(&slot.job, report.clone());
        if let (Some(database), Ok(text)) = (self.database.get(), serde_json::to_string(&*report)) {
            let job = slot.job.clone();
            database.record(move |sql| report::store(sql, &job, &text));
        }
        report
    }

    fn remember(&self, job: &str, report: Arc<RestoreReport>) {
        let mut entries = self.entries();
        let reports = &mut entries.entry(job.to_owned()).or_default().reports;
        if reports.len() >= REPORTS_MAX {
            reports.pop_front();
        }
        reports.push_back(report);
    }

    /// Returns how far the test under way is.
    #[must_use]
    pub fn running(&self, job: &str) -> Option<Arc<RestoreProgress>> {
        self.entries().get(job)?.running.clone()
    }

    /// Returns the reports of a job, the newest first.
    #[must_use]
    pub fn reports(&self, job: &str) -> Vec<Arc<RestoreReport>> {
        let entries = self.entries();
        let reports = entries.get(job).map(|entry| entry.reports.iter().rev());
        reports.map_or_else(Vec::new, |reports| reports.cloned().collect())
    }

    /// Returns what the last test of a job found.
    #[must_use]
    pub fn last(&self, job: &str) -> Option<Arc<RestoreReport>> {
        self.entries().get(job)?.reports.back().cloned()
    }

    /// Whether a test of a job is due by its schedule: not while one is under way, the job is paused, or its target is in use.
    #[must_use]
    pub fn is_due(&self, job: &Job, now: Timestamp) -> bool {
        let Some((schedule, last)) = self.scheduled(job) else {
            return false;
        };
        schedule.is_due(last, now) && self.running(&job.name).is_none()
    }

    /// Returns when the next test of a job is due; `None` while none is planned.
    #[must_use]
    pub fn next(&self, job: &Job, now: Timestamp) -> Option<Timestamp> {
        let (schedule, last) = self.scheduled(job)?;
        schedule.next(last, now)
    }

    /// The schedule of a job whose tests go by one, and when the last test began.
    fn scheduled(&self, job: &Job) -> Option<(TestSchedule, Option<Timestamp>)> {
        if job.paused || job.failed_over {
            return None;
        }
        let schedule = job.test_schedule().ok().flatten()?;
        let last = self.last(&job.name);
        let last = last.and_then(|report| Timestamp::from_second(report.began).ok());
        Some((schedule, last))
    }

    /// Ends the test of a job that is under way; whether there was one.
    pub fn cancel(&self, job: &str) -> bool {
        let running = self.running(job);
        let cancelled = running.map(|running| running.cancelled.store(true, Ordering::Relaxed));
        cancelled.is_some()
    }

    /// Ends all tests, at the end of the process.
    pub(in super::super) fn cancel_all(&self) {
        for entry in self.entries().values() {
            if let Some(running) = &entry.running {
                running.cancelled.store(true, Ordering::Relaxed);
            }
        }
    }

    /// Forgets the reports of a job that was removed.
    pub(in super::super) fn forget(&self, job: &str) {
        self.cancel(job);
        self.entries().remove(job);
        if let Some(database) = self.database.get() {
            let job = job.to_owned();
            database.record(move |sql| report::forget(sql, &job));
        }
    }

    fn entries(&self) -> MutexGuard<'_, BTreeMap<String, Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job() -> Job {
        Job {
            name: "vm".to_owned(),
            from: "tank/vm".to_owned(),
            to: "back/vm".to_owned(),
            test_schedule: "daily at=03:00".to_owned(),
            ..Job::default()
        }
    }

    #[tokio::test]
    async fn reports_outlive_the_process_and_say_when_the_next_test_is_due() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("state.db");
        let (database, _) = Database::open(path).await.expect("open");
        let time = |text: &str| text.parse::<Timestamp>().expect("a time");
        let (job, night) = (job(), time("2026-11-25T03:00:10Z"));
        let tests = RestoreTests::default();
        tests.keep_in(&database).await.expect("kept");
        assert!(tests.is_due(&job, night));
        let slot = tests.begin("vm").expect("none under way");
        assert!(tests.begin("vm").is_none() && !tests.is_due(&job, night));
        let mut tested = RestoredDataset::new("back/vm");
        tested.fail(b"/f", "bytes from 0 on cannot be read: input/output error");
        let report = tests.note(&slot, (night, night), (vec![tested], None));
        drop(slot);
        assert!(!report.is_passed());
        database.settle().await;

        let again = RestoreTests::default();
        again.keep_in(&database).await.expect("kept");
        assert_eq!(again.last("vm"), Some(report));
        assert!(!again.is_due(&job, time("2026-11-26T02:59:59Z")));
        assert_eq!(again.next(&job, night), Some(time("2026-11-26T03:00:00Z")));
        assert!(again.is_due(&job, time("2026-11-26T03:00:00Z")));
        let paused = Job {
            paused: true,
            ..job
        };
        assert_eq!(again.next(&paused, night), None);
        again.forget("vm");
        assert_eq!(again.last("vm"), None);
    }
}
