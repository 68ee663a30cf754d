//! Commands as jobs: what runs and ran, with its output, and the log of every change.
//!
//! Running jobs and the newest finished ones are in memory, with the end of their output; changes are also in the database, where they
//! outlive the process, as far as the disk takes them. Commands from a shell are here too, without their output.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::StreamExt as _;
use futures_util::future::BoxFuture;
use futures_util::stream::BoxStream;
use rusqlite::params;
use serde::Serialize;
use tokio::sync::{broadcast, watch};
use utoipa::ToSchema;

use crate::accounts::Role;
use crate::commands;
use crate::database::{self, Database, DatabaseError, seconds_since_epoch};
use crate::undo::{PLAN_BYTES_MAX, Plan};

/// Jobs in memory, finished ones included.
const JOBS_MAX: usize = 1000;
/// Finished jobs with their output in memory.
const OUTPUTS_MAX: usize = 32;
/// Commands given over the API that run at a time.
const RUNNING_MAX: usize = 32;
/// Bytes of output kept of a job: its end.
const OUTPUT_BYTES_MAX: usize = 256 << 10;
/// Bytes of output kept in the database.
const STORED_BYTES_MAX: usize = 16 << 10;
/// Changes kept in the database.
const STORED_MAX: u64 = 20_000;
/// Events on their way to a client that is slow to take them.
const EVENTS_MAX: usize = 256;

/// What became of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum JobState {
    /// It runs.
    Running,
    /// It ended with exit code 0.
    Done,
    /// It ended with another exit code.
    Failed,
    /// It was cancelled.
    Cancelled,
    /// The process ended before it did.
    Interrupted,
}

impl JobState {
    const ALL: [Self; 5] = [
        Self::Running,
        Self::Done,
        Self::Failed,
        Self::Cancelled,
        Self::Interrupted,
    ];

    /// Returns its name.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Done => "done",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
            Self::Interrupted => "interrupted",
        }
    }
}

/// A job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct JobView {
    /// Number: later jobs have higher ones.
    pub id: u64,
    /// Who gave the command.
    pub user: String,
    /// From where: an address, or `shell`.
    pub origin: String,
    /// The command line that does the same in a shell.
    pub command: String,
    /// It may have changed something.
    pub change: bool,
    /// What became of it.
    pub state: JobState,
    /// Its exit code, when it has ended by itself.
    pub exit: Option<u8>,
    /// Seconds since 1970.
    pub started: u64,
    /// Seconds since 1970, when it has ended.
    pub ended: Option<u64>,
    /// Bytes of output so far.
    pub output_bytes: u64,
    /// What it changed is known, so that `sanbox undo` can take it back.
    pub undoable: bool,
    /// It was taken back.
    pub undone: bool,
}

/// A part of a job's output: standard output and standard error, in their order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct JobOutput {
    /// The text.
    pub text: String,
    /// Where it begins; above what was asked for when what was before is not kept.
    pub offset: u64,
    /// Where the next part begins.
    pub next: u64,
    /// The job.
    pub job: JobView,
}

/// An event for the clients that follow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// `job` or `pool`.
    pub event: &'static str,
    /// JSON.
    pub data: String,
}

/// A command that was started.
pub struct StartedCommand {
    /// Its output.
    pub output: BoxStream<'static, Vec<u8>>,
    /// Its exit code; none when it was cancelled.
    pub exit: BoxFuture<'static, Option<u8>>,
    /// What it changed that can be undone; it is known with the exit code.
    pub undo: BoxFuture<'static, Option<Plan>>,
    /// Ends it.
    pub cancel: Box<dyn FnOnce() + Send>,
}

/// Who gave a command, from where, and which.
#[derive(Clone, Debug)]
pub struct JobOrigin {
    /// User.
    pub user: String,
    /// An address, or `shell`.
    pub origin: String,
    /// The line to show.
    pub line: String,
    /// It may change something.
    pub change: bool,
}

pub use crate::commands::GivenWords;

struct Job {
    view: JobView,
    /// The words of a command that was given over the API, to be given again; those with secrets are not kept.
    words: Option<GivenWords>,
    /// What undoes it.
    undo: Option<Arc<Plan>>,
    /// The end of the output.
    kept: Vec<u8>,
    cancel: Option<Box<dyn FnOnce() + Send>>,
    /// Changes with each output and at the end.
    progress: watch::Sender<u64>,
}

#[derive(Default)]
struct JobTable {
    jobs: BTreeMap<u64, Job>,
    last: u64,
}

/// See the module.
pub struct Jobs {
    table: Mutex<JobTable>,
    database: Database,
    notices: broadcast::Sender<Notice>,
}

impl Jobs {
    /// Reads the newest changes from the database. Those that ran when the last process ended were interrupted.
    ///
    /// # Errors
    /// The database gives no answer.
    pub async fn open(database: Database) -> Result<Arc<Self>, DatabaseError> {
        // A database that cannot be written keeps them as running; they are shown as interrupted all the same.
        database.record(|sql| {
            sql.execute(
                "UPDATE job SET state = 'interrupted' WHERE state = 'running'",
                [],
            )
            .map(|_| ())
        });
        let stored = database.call(load).await?;
        let mut table = JobTable::default();
        for StoredJob { view, kept, undo } in stored {
            table.last = table.last.max(view.id);
            let mut job = Job::of(view, kept);
            job.undo = undo.map(Arc::new);
            table.jobs.insert(job.view.id, job);
        }
        Ok(Arc::new(Self {
            table: Mutex::new(table),
            database,
            notices: broadcast::channel(EVENTS_MAX).0,
        }))
    }

    /// Follows what happens.
    #[must_use]
    pub fn follow(&self) -> broadcast::Receiver<Notice> {
        self.notices.subscribe()
    }

    /// Sends an event to the followers.
    pub fn publish(&self, notice: Notice) {
        // There may be no follower.
        let _ = self.notices.send(notice);
    }

    /// Whether one more command may be started over the API.
    #[must_use]
    pub fn has_room(&self) -> bool {
        let table = self.table();
        let running = table.jobs.values().filter(|job| job.cancel.is_some());
        running.count() < RUNNING_MAX
    }

    /// Makes a job of a command that was started, and follows it to its end.
    pub fn start(self: &Arc<Self>, given: JobOrigin, started: StartedCommand) -> JobView {
        let StartedCommand {
            mut output,
            exit,
            undo,
            cancel,
        } = started;
        let view = self.insert(given, Some(cancel));
        let (jobs, id) = (self.clone(), view.id);
        tokio::spawn(async move {
            while let Some(bytes) = output.next().await {
                jobs.append(id, &bytes);
            }
            let exit = exit.await;
            if let Some(plan) = undo.await {
                jobs.keep_undo(id, plan);
            }
            jobs.finish(id, exit);
        });
        view
    }

    /// Makes a job of a command that a shell gave; its end is told by [`Self::finish`].
    pub fn begin(&self, given: JobOrigin) -> u64 {
        self.insert(given, None).id
    }

    /// Records the end of a job; without an exit code it was cancelled.
    pub fn finish(&self, id: u64, exit: Option<u8>) {
        let mut table = self.table();
        let Some(job) = table.jobs.get_mut(&id) else {
            return;
        };
        if job.view.state == JobState::Running {
            job.view.state = match exit {
                Some(0) => JobState::Done,
                Some(_) => JobState::Failed,
                None => JobState::Cancelled,
            };
        }
        job.view.exit = exit;
        job.view.ended = Some(seconds_since_epoch());
        job.cancel = None;
        job.progress.send_modify(|changes| *changes += 1);
        let view = job.view.clone();
        let from = job.kept.len().saturating_sub(STORED_BYTES_MAX);
        let kept = String::from_utf8_lossy(&job.kept[from..]).into_owned();
        table.forget_outputs();
        drop(table);
        self.notify(&view);
        if view.change {
            self.database.record(move |sql| {
                sql.execute(
                    "UPDATE job SET state = ?2, exit = ?3, ended = ?4, output = ?5 WHERE id = ?1",
                    params![view.id, view.state.as_str(), view.exit, view.ended, kept],
                )
                .map(|_| ())
            });
        }
    }

    /// Cancels a running job; `false` when it is not running, or was given by a shell.
    pub fn cancel(&self, id: u64) -> bool {
        let mut table = self.table();
        let job = table.jobs.get_mut(&id);
        let cancel = job.and_then(|job| job.cancel.take());
        drop(table);
        match cancel {
            Some(cancel) => {
                cancel();
                true
            }
            None => false,
        }
    }

    /// Returns the jobs before the one with the number `before`, the newest first: at most `max` whose command or user contains
    /// `filter`.
    #[must_use]
    pub fn list(&self, before: Option<u64>, filter: &str, max: usize) -> Vec<JobView> {
        let table = self.table();
        let older = table.jobs.range(..before.unwrap_or(u64::MAX));
        older
            .rev()
            .map(|(_, job)| &job.view)
            .filter(|view| view.command.contains(filter) || view.user.contains(filter))
            .take(max)
            .cloned()
            .collect()
    }

    /// Returns a job.
    #[must_use]
    pub fn job(&self, id: u64) -> Option<JobView> {
        self.table().jobs.get(&id).map(|job| job.view.clone())
    }

    /// Keeps the words of a job's command, so that it can be given again while this process runs.
    pub fn keep_words(&self, id: u64, words: GivenWords) {
        if let Some(job) = self.table().jobs.get_mut(&id) {
            job.words = Some(words);
        }
    }

    /// Returns the words of a job's command, if they were kept.
    #[must_use]
    pub fn words(&self, id: u64) -> Option<GivenWords> {
        self.table().jobs.get(&id)?.words.clone()
    }

    /// Keeps what undoes a job that changed something. A plan that is empty or longer than [`PLAN_BYTES_MAX`] is not kept.
    pub fn keep_undo(&self, id: u64, plan: Plan) {
        let text = serde_json::to_string(&plan).unwrap_or_default();
        if plan.0.is_empty() || text.is_empty() || text.len() > PLAN_BYTES_MAX {
            return;
        }
        {
            let mut table = self.table();
            let job = table.jobs.get_mut(&id).filter(|job| job.view.change);
            let Some(job) = job else { return };
            job.undo = Some(Arc::new(plan));
            job.view.undoable = true;
        }
        self.database.record(move |sql| {
            sql.execute(
                "INSERT OR REPLACE INTO job_undo VALUES (?1, ?2, 0)",
                params![id, text],
            )
            .map(|_| ())
        });
    }

    /// Returns what undoes a job, if that is known.
    #[must_use]
    pub fn undo(&self, id: u64) -> Option<Arc<Plan>> {
        self.table().jobs.get(&id)?.undo.clone()
    }

    /// Records that a job was undone.
    pub fn note_undone(&self, id: u64) {
        let view = {
            let mut table = self.table();
            let Some(job) = table.jobs.get_mut(&id) else {
                return;
            };
            job.view.undone = true;
            job.view.clone()
        };
        self.notify(&view);
        self.database.record(move |sql| {
            sql.execute("UPDATE job_undo SET undone = 1 WHERE job = ?1", [id])
                .map(|_| ())
        });
    }

    /// Returns the role that a command needs, as [`commands::role_needed`] does; of `sanbox undo` that of what it does.
    #[must_use]
    pub fn role_needed(&self, tool: &str, arguments: &[String]) -> Option<Role> {
        let role = commands::role_needed(tool, arguments)?;
        let Some(id) = commands::undoes(tool, arguments) else {
            return Some(role);
        };
        // A job that is not there is told of by the command.
        self.undo(id)
            .map_or(Some(role), |plan| Some(plan.role_needed()?.max(role)))
    }

    /// Returns the output of a job from `offset` on, as far as it is kept.
    #[must_use]
    pub fn output(&self, id: u64, offset: u64) -> Option<JobOutput> {
        let table = self.table();
        let job = table.jobs.get(&id)?;
        let end = job.view.output_bytes;
        let first = end - job.kept.len() as u64;
        let offset = offset.clamp(first, end);
        let from = usize::try_from(offset - first).unwrap_or(job.kept.len());
        Some(JobOutput {
            text: String::from_utf8_lossy(&job.kept[from..]).into_owned(),
            offset,
            next: end,
            job: job.view.clone(),
        })
    }

    /// Returns a receiver that changes with a job's output and at its end.
    #[must_use]
    pub fn progress(&self, id: u64) -> Option<watch::Receiver<u64>> {
        let table = self.table();
        table.jobs.get(&id).map(|job| job.progress.subscribe())
    }

    fn insert(&self, given: JobOrigin, cancel: Option<Box<dyn FnOnce() + Send>>) -> JobView {
        let mut table = self.table();
        table.last += 1;
        let view = JobView {
            id: table.last,
            user: given.user,
            origin: given.origin,
            command: given.line,
            change: given.change,
            state: JobState::Running,
            exit: None,
            started: seconds_since_epoch(),
            ended: None,
            output_bytes: 0,
            undoable: false,
            undone: false,
        };
        let mut job = Job::of(view.clone(), Vec::new());
        job.cancel = cancel;
        table.jobs.insert(view.id, job);
        if table.jobs.len() > JOBS_MAX {
            let finished = |job: &&Job| job.view.state != JobState::Running;
            let oldest = table.jobs.values().find(finished).map(|job| job.view.id);
            oldest.map(|id| table.jobs.remove(&id));
        }
        drop(table);
        self.notify(&view);
        if view.change {
            self.store(view.clone());
        }
        view
    }

    fn store(&self, view: JobView) {
        self.database.record(move |sql| {
            sql.execute(
                "INSERT INTO job VALUES (?1, ?2, ?3, ?4, ?5, NULL, ?6, NULL, '')",
                params![
                    view.id,
                    view.user,
                    view.origin,
                    view.command,
                    view.state.as_str(),
                    view.started
                ],
            )?;
            let oldest = view.id.saturating_sub(STORED_MAX);
            sql.execute("DELETE FROM job_undo WHERE job <= ?1", [oldest])?;
            sql.execute("DELETE FROM job WHERE id <= ?1", [oldest])
                .map(|_| ())
        });
    }

    fn append(&self, id: u64, bytes: &[u8]) {
        let mut table = self.table();
        let Some(job) = table.jobs.get_mut(&id) else {
            return;
        };
        job.view.output_bytes += bytes.len() as u64;
        job.kept.extend_from_slice(bytes);
        if job.kept.len() > OUTPUT_BYTES_MAX {
            // Half at a time, so that long output is not moved with each line.
            let beyond = job.kept.len() - OUTPUT_BYTES_MAX / 2;
            job.kept.drain(..beyond);
        }
        job.progress.send_modify(|changes| *changes += 1);
    }

    fn notify(&self, view: &JobView) {
        if let Ok(data) = serde_json::to_string(view) {
            self.publish(Notice { event: "job", data });
        }
    }

    fn table(&self) -> MutexGuard<'_, JobTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Job {
    fn of(view: JobView, kept: Vec<u8>) -> Self {
        Self {
            view,
            words: None,
            undo: None,
            kept,
            cancel: None,
            progress: watch::channel(0).0,
        }
    }
}

impl JobTable {
    /// Drops the output of all finished jobs but the newest.
    fn forget_outputs(&mut self) {
        let finished = self.jobs.values_mut().rev();
        let finished = finished.filter(|job| job.view.state != JobState::Running);
        for job in finished
            .filter(|job| !job.kept.is_empty())
            .skip(OUTPUTS_MAX)
        {
            job.kept = Vec::new();
        }
    }
}

/// A job as the database has it.
struct StoredJob {
    view: JobView,
    /// The end of its output.
    kept: Vec<u8>,
    undo: Option<Plan>,
}

fn load(sql: &mut rusqlite::Connection) -> rusqlite::Result<Vec<StoredJob>> {
    // A database that cannot be written may be one that an older program made.
    if !database::has_table(sql, "job")? {
        return Ok(Vec::new());
    }
    let mut rows = sql.prepare(match database::has_table(sql, "job_undo")? {
        true => {
            "SELECT id, user, origin, command, state, exit, started, ended, output, plan, undone FROM job
             LEFT JOIN job_undo ON job_undo.job = job.id ORDER BY id DESC LIMIT ?1"
        }
        false => {
            "SELECT id, user, origin, command, state, exit, started, ended, output, NULL, NULL FROM job
             ORDER BY id DESC LIMIT ?1"
        }
    })?;
    let read = |row: &rusqlite::Row<'_>| {
        let state: String = row.get(4)?;
        let known = JobState::ALL
            .into_iter()
            .find(|known| known.as_str() == state);
        let output: String = row.get(8)?;
        // A plan of a later program may hold what this one does not know.
        let plan: Option<String> = row.get(9)?;
        let undo: Option<Plan> = plan.and_then(|text| serde_json::from_str(&text).ok());
        let view = JobView {
            id: row.get(0)?,
            user: row.get(1)?,
            origin: row.get(2)?,
            command: row.get(3)?,
            change: true,
            state: known
                .filter(|state| *state != JobState::Running)
                .unwrap_or(JobState::Interrupted),
            exit: row.get(5)?,
            started: row.get(6)?,
            ended: row.get(7)?,
            output_bytes: output.len() as u64,
            undoable: undo.is_some(),
            undone: row.get::<_, Option<bool>>(10)?.unwrap_or(false),
        };
        Ok(StoredJob {
            view,
            kept: output.into_bytes(),
            undo,
        })
    };
    let found = rows.query_map([JOBS_MAX as u64], read)?;
    found.collect()
}

#[cfg(test)]
mod tests {
    use futures_util::{FutureExt as _, stream};
    use tokio::sync::{mpsc, oneshot};

    use super::*;
    use crate::undo::UndoableChange;

    fn given(line: &str, change: bool) -> JobOrigin {
        JobOrigin {
            user: "ann".to_owned(),
            origin: "127.0.0.1".to_owned(),
            line: line.to_owned(),
            change,
        }
    }

    /// The command's side.
    struct Ends {
        output: mpsc::Sender<Vec<u8>>,
        exit: oneshot::Sender<u8>,
    }

    fn started() -> (Ends, StartedCommand) {
        let (output, from) = mpsc::channel(4);
        let (exit, ended) = oneshot::channel();
        let started = StartedCommand {
            output: stream::unfold(from, |mut from| async {
                from.recv().await.map(|bytes| (bytes, from))
            })
            .boxed(),
            exit: async { ended.await.ok() }.boxed(),
            undo: async { None }.boxed(),
            cancel: Box::new(|| {}),
        };
        (Ends { output, exit }, started)
    }

    async fn opened(directory: &tempfile::TempDir) -> (Arc<Jobs>, Database) {
        let path = directory.path().join("state.db");
        let (database, _) = Database::open(path).await.expect("opens");
        (Jobs::open(database.clone()).await.expect("read"), database)
    }

    async fn ended(jobs: &Jobs, id: u64) -> JobView {
        let mut progress = jobs.progress(id).expect("a job");
        loop {
            let view = jobs.job(id).expect("a job");
            if view.state != JobState::Running {
                return view;
            }
            progress.changed().await.expect("it is kept");
        }
    }

    #[tokio::test]
    async fn changes_are_kept_over_a_restart() {
        let directory = tempfile::tempdir().expect("a directory");
        let (jobs, database) = opened(&directory).await;
        let (ends, command) = started();
        let first = jobs.start(given("zfs snapshot tank@a", true), command).id;
        ends.output.send(b"made\n".to_vec()).await.expect("taken");
        drop(ends.output);
        ends.exit.send(2).expect("taken");
        let view = ended(&jobs, first).await;
        assert_eq!((view.state, view.exit), (JobState::Failed, Some(2)));
        let shell = jobs.begin(given("zpool scrub tank", true));
        jobs.begin(given("zfs list", false));
        database.call(|_| Ok(())).await.expect("stored");
        drop((jobs, database));
        let (jobs, _) = opened(&directory).await;
        let states: Vec<_> = jobs
            .list(None, "", 10)
            .iter()
            .map(|job| (job.id, job.state))
            .collect();
        assert_eq!(
            states,
            [(shell, JobState::Interrupted), (first, JobState::Failed)]
        );
        assert_eq!(jobs.output(first, 0).expect("kept").text, "made\n");
        assert_eq!(jobs.begin(given("zfs list", false)), shell + 1);
    }

    #[tokio::test]
    async fn what_undoes_a_job_is_kept_with_it_and_needs_the_role_of_its_commands() {
        let directory = tempfile::tempdir().expect("a directory");
        let (jobs, database) = opened(&directory).await;
        let plan = Plan(vec![UndoableChange::Tunable {
            name: "zfs_arc_max".to_owned(),
            before: 1,
            after: 2,
        }]);
        let (ends, mut command) = started();
        let known = plan.clone();
        command.undo = async move { Some(known) }.boxed();
        let id = jobs.start(given("sanbox tune zfs_arc_max=2", true), command);
        drop(ends.output);
        ends.exit.send(0).expect("taken");
        assert!(ended(&jobs, id.id).await.undoable);
        let looked = jobs.begin(given("zfs list", false));
        jobs.keep_undo(looked, plan.clone());
        let long = Plan(vec![plan.0[0].clone(); PLAN_BYTES_MAX / 32]);
        let shell = jobs.begin(given("sanbox tune a=2 b=3", true));
        jobs.keep_undo(shell, long);
        assert_eq!((jobs.undo(looked), jobs.undo(shell)), (None, None));
        let undo = |id: u64| ["undo".to_owned(), id.to_string()];
        assert_eq!(jobs.role_needed("sanbox", &undo(id.id)), Some(Role::Owner));
        assert_eq!(jobs.role_needed("sanbox", &undo(99)), Some(Role::Operator));
        jobs.note_undone(id.id);
        database.call(|_| Ok(())).await.expect("stored");
        drop((jobs, database));
        let (jobs, _) = opened(&directory).await;
        let view = jobs.job(id.id).expect("kept");
        assert!(view.undoable && view.undone);
        assert_eq!(jobs.undo(id.id).as_deref(), Some(&plan));
    }

    #[tokio::test]
    async fn long_output_keeps_its_end_and_its_offsets() {
        let directory = tempfile::tempdir().expect("a directory");
        let (jobs, _) = opened(&directory).await;
        let (ends, command) = started();
        let id = jobs.start(given("zpool history", false), command).id;
        for _ in 0..100 {
            ends.output.send(vec![b'x'; 10_000]).await.expect("taken");
        }
        ends.output.send(b"end".to_vec()).await.expect("taken");
        drop(ends.output);
        drop(ends.exit);
        assert_eq!(ended(&jobs, id).await.state, JobState::Cancelled);
        let output = jobs.output(id, 0).expect("kept");
        assert_eq!(output.next, 1_000_003);
        assert!(output.text.len() <= OUTPUT_BYTES_MAX && output.text.ends_with("end"));
        assert_eq!(output.offset + output.text.len() as u64, output.next);
        assert_eq!(jobs.output(id, 1_000_000).expect("kept").text, "end");
    }

    #[tokio::test]
    async fn pages_are_told_and_jobs_are_cancelled_once() {
        let directory = tempfile::tempdir().expect("a directory");
        let (jobs, _) = opened(&directory).await;
        let mut notices = jobs.follow();
        let (_ends, command) = started();
        let id = jobs.start(given("zpool wait tank", true), command).id;
        assert_eq!(notices.recv().await.expect("told").event, "job");
        assert!(jobs.cancel(id));
        assert!(!jobs.cancel(id));
        assert!(!jobs.cancel(99));
    }
}
