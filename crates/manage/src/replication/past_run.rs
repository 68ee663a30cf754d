//! Runs of jobs that are over, as they are told and as the database of the state directory keeps them.

use jiff::Timestamp;
use rusqlite::Connection;

use super::{ReplicationError, Report};
use crate::database;

/// Runs of a job that are remembered.
pub(super) const RUNS_MAX: usize = 100;

/// How a run ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    /// When it began.
    pub began: Timestamp,
    /// When it ended.
    pub at: Timestamp,
    /// Bytes of streams that were sent.
    pub bytes: u64,
    /// What it did, or why it ended early.
    pub result: Result<Report, ReplicationError>,
}

impl Ended {
    /// The cause that keeps the job from being complete: of the run, or the first of its datasets, with the dataset.
    #[must_use]
    pub fn problem(&self) -> Option<(Option<&str>, &ReplicationError)> {
        match &self.result {
            Err(error) => Some((None, error)),
            Ok(report) => report
                .problems
                .first()
                .map(|(dataset, error)| (Some(dataset.as_str()), error)),
        }
    }
}

/// A run that sent something or was not complete. Runs in a row that met one cause are one entry, those of a continuous job in an hour, too;
/// those that found nothing to do have none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PastRun {
    /// When the first of them began.
    pub began: Timestamp,
    /// When the last of them ended.
    pub ended: Timestamp,
    /// How many runs.
    pub runs: u32,
    /// Snapshots that were sent.
    pub snapshots: usize,
    /// Bytes of streams that were sent.
    pub bytes: u64,
    /// The cause that kept the last of them from being complete, as a word and in a sentence.
    pub problem: Option<(String, String)>,
}

impl PastRun {
    /// What is told of a run that ended; `None` when it found nothing to do.
    pub(super) fn of(ended: &Ended) -> Option<Self> {
        let snapshots = ended.result.as_ref().map_or(0, |report| report.sent.len());
        let problem = ended
            .problem()
            .map(|(_, error)| (error.cause().to_owned(), error.to_string()));
        (problem.is_some() || snapshots > 0).then_some(Self {
            began: ended.began,
            ended: ended.at,
            runs: 1,
            snapshots,
            bytes: ended.bytes,
            problem,
        })
    }

    /// This run and the next one as one entry, when one cause kept both from being complete; of a continuous job also when both were
    /// complete and began in the same hour.
    pub(super) fn with(&self, next: &Self, continuous: bool) -> Option<Self> {
        let hour = |run: &Self| run.began.as_second().div_euclid(3600);
        let is_same = match (&self.problem, &next.problem) {
            (Some((cause, _)), Some((same, _))) => cause == same,
            (None, None) => continuous && hour(self) == hour(next),
            _ => false,
        };
        is_same.then(|| Self {
            began: self.began,
            runs: self.runs.saturating_add(1),
            snapshots: self.snapshots + next.snapshots,
            bytes: self.bytes.saturating_add(next.bytes),
            ..next.clone()
        })
    }
}

/// Reads the runs of all jobs, the oldest first.
pub(super) fn load(sql: &Connection) -> rusqlite::Result<Vec<(String, PastRun)>> {
    if !database::has_table(sql, "replication_run")? {
        return Ok(Vec::new());
    }
    let mut rows = sql.prepare(
        "SELECT job, began, ended, runs, snapshots, bytes, cause, problem FROM replication_run ORDER BY began",
    )?;
    let time = |milliseconds| Timestamp::from_millisecond(milliseconds).unwrap_or_default();
    let read = |row: &rusqlite::Row<'_>| {
        let cause: Option<String> = row.get(6)?;
        let problem = cause.zip(row.get(7)?);
        let run = PastRun {
            began: time(row.get(1)?),
            ended: time(row.get(2)?),
            runs: row.get(3)?,
            snapshots: row.get(4)?,
            bytes: row.get(5)?,
            problem,
        };
        Ok((row.get(0)?, run))
    };
    let found = rows.query_map([], read)?;
    found.collect()
}

/// Stores a run, in place of the entry that began at the same time, and drops the oldest beyond [`RUNS_MAX`].
pub(super) fn store(sql: &mut Connection, job: &str, run: &PastRun) -> rusqlite::Result<()> {
    let (cause, problem) = run.problem.clone().unzip();
    let transaction = sql.transaction()?;
    transaction.execute(
        "INSERT OR REPLACE INTO replication_run (job, began, ended, runs, snapshots, bytes, cause, problem)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
        (
            job,
            run.began.as_millisecond(),
            run.ended.as_millisecond(),
            run.runs,
            run.snapshots,
            run.bytes,
            cause,
            problem,
        ),
    )?;
    transaction.execute(
        "DELETE FROM replication_run WHERE job = ?1 AND began NOT IN
         (SELECT began FROM replication_run WHERE job = ?1 ORDER BY began DESC LIMIT ?2)",
        (job, RUNS_MAX),
    )?;
    transaction.commit()
}

/// Drops the runs of a job.
pub(super) fn forget(sql: &Connection, job: &str) -> rusqlite::Result<()> {
    sql.execute("DELETE FROM replication_run WHERE job = ?1", [job])
        .map(drop)
}
