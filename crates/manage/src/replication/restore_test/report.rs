//! What a test of a restore found, as it is kept in the database of the state directory and shown.

use rusqlite::Connection;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::database;

/// Reports of a job that are kept.
pub(super) const REPORTS_MAX: usize = 30;
/// Failures of a dataset that are named; all are counted.
const FAILURES_MAX: usize = 100;

/// What a test of a restore found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RestoreReport {
    /// When it began, seconds since 1970.
    pub began: i64,
    /// When it ended.
    pub ended: i64,
    /// What was read, by dataset.
    pub datasets: Vec<RestoredDataset>,
    /// Why it ended before everything was read.
    pub failure: Option<String>,
}

/// What was read of a dataset.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RestoredDataset {
    /// The dataset at the target.
    pub dataset: String,
    /// Which snapshot, without the dataset's name; empty when there is none.
    pub snapshot: String,
    /// When that was taken, seconds since 1970.
    pub created: i64,
    /// Regular files that were read.
    pub files: u64,
    /// Directories, symbolic links and other objects that were read.
    pub others: u64,
    /// Bytes of files and volumes that were read; holes are not counted.
    pub bytes: u64,
    /// How many of them cannot be read or are not as at the source.
    pub failed: u64,
    /// Which, and why: the first 100.
    pub failures: Vec<RestoreFailure>,
    /// Why it was not compared with the source's snapshot, or not all of it; none when it was.
    pub not_compared: Option<String>,
}

/// Something that cannot be restored as it was.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RestoreFailure {
    /// Path in the dataset; empty for the dataset itself and for a volume. Bytes that are no UTF-8 are replaced.
    pub path: String,
    /// Why.
    pub why: String,
}

impl RestoredDataset {
    pub(super) fn new(dataset: &str) -> Self {
        Self {
            dataset: dataset.to_owned(),
            ..Self::default()
        }
    }

    /// Takes down that something cannot be restored.
    pub(super) fn fail(&mut self, path: &[u8], why: &str) {
        self.failed += 1;
        if self.failures.len() < FAILURES_MAX {
            self.failures.push(RestoreFailure {
                path: String::from_utf8_lossy(path).into_owned(),
                why: why.to_owned(),
            });
        }
    }
}

impl RestoreReport {
    /// Whether everything was read, and is as at the source where that was looked at.
    #[must_use]
    pub fn is_passed(&self) -> bool {
        self.failure.is_none() && self.failed() == 0
    }

    /// Regular files that were read.
    #[must_use]
    pub fn files(&self) -> u64 {
        self.datasets.iter().map(|dataset| dataset.files).sum()
    }

    /// Bytes that were read.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.datasets.iter().map(|dataset| dataset.bytes).sum()
    }

    /// What cannot be restored.
    #[must_use]
    pub fn failed(&self) -> u64 {
        self.datasets.iter().map(|dataset| dataset.failed).sum()
    }

    /// The first cause of a test that was not passed.
    #[must_use]
    pub fn problem(&self) -> Option<String> {
        let failing = self.datasets.iter().find(|dataset| dataset.failed > 0);
        let first = failing.and_then(|dataset| {
            let failure = dataset.failures.first()?;
            let place = match failure.path.as_str() {
                "" => dataset.dataset.clone(),
                path => format!("{}:{path}", dataset.dataset),
            };
            Some(format!("{place}: {}", failure.why))
        });
        first.or_else(|| self.failure.clone())
    }
}

/// Reads the reports of all jobs, the oldest first. One that this version cannot read is left out.
pub(super) fn load(sql: &Connection) -> rusqlite::Result<Vec<(String, RestoreReport)>> {
    if !database::has_table(sql, "restore_test")? {
        return Ok(Vec::new());
    }
    let mut rows = sql.prepare("SELECT job, report FROM restore_test ORDER BY id")?;
    let read = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get::<_, String>(1)?));
    let found: rusqlite::Result<Vec<(String, String)>> = rows.query_map([], read)?.collect();
    let parsed = found?
        .into_iter()
        .filter_map(|(job, text)| Some((job, serde_json::from_str(&text).ok()?)));
    Ok(parsed.collect())
}

/// Stores a report, and drops the oldest beyond [`REPORTS_MAX`].
pub(super) fn store(sql: &mut Connection, job: &str, text: &str) -> rusqlite::Result<()> {
    let transaction = sql.transaction()?;
    transaction.execute(
        "INSERT INTO restore_test (job, report) VALUES (?1, ?2)",
        (job, text),
    )?;
    transaction.execute(
        "DELETE FROM restore_test WHERE job = ?1 AND id NOT IN
         (SELECT id FROM restore_test WHERE job = ?1 ORDER BY id DESC LIMIT ?2)",
        (job, REPORTS_MAX),
    )?;
    transaction.commit()
}

/// Drops the reports of a job.
pub(super) fn forget(sql: &Connection, job: &str) -> rusqlite::Result<()> {
    sql.execute("DELETE FROM restore_test WHERE job = ?1", [job])
        .map(drop)
}
