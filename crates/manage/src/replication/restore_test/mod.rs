//! The test of a restore: the newest snapshot of each dataset that a job sent is cloned at the target, read to the last byte, and compared with
//! the same snapshot at the source where a pool of this appliance has it. The job runs meanwhile as always.
//!
//! One clone exists at a time ([`clone_name`]); it is read-only, neither mounted nor shared, and carries a mark, by which what an interrupted
//! test left is known and destroyed ([`destroy_leftover`]). When the next test is due is computed from the schedule and the last report; it is
//! not kept anywhere.

mod files;
mod kept;
mod read;
mod report;
mod schedule;

use engine::{DatasetKind, DestroyOptions, EngineError, PoolHandle};

use super::failover::test_mark;
use super::foreseen::own;
use super::{
    Endpoint as _, Job, LocalEndpoint, MARK_PROPERTY, Point, ReplicaDataset, ReplicationError,
    Switchover,
};
use files::Files;
use read::Reading;

pub use kept::{RestoreProgress, RestoreSlot, RestoreTests};
pub use report::{RestoreFailure, RestoreReport, RestoredDataset};
pub use schedule::TestSchedule;

/// What follows the target's name in that of the clone.
const CLONE_SUFFIX: &str = "-restore-test";
/// How often a snapshot that was destroyed since it was listed is looked for anew: a continuous job replaces its own.
const CLONE_TRIES: usize = 5;

/// What a clone is set to: nothing acts on it, and it acts on nothing.
const IDLE: [(&str, &str); 2] = [("readonly", "on"), (crate::policy::PROPERTY, "off")];
/// The same of file systems.
const IDLE_FILES: [(&str, &str); 4] = [
    ("canmount", "off"),
    ("mountpoint", "none"),
    ("sharenfs", "off"),
    ("sharesmb", "off"),
];

/// Returns the name of the clone that a test of this job reads.
#[must_use]
pub fn clone_name(job: &Job) -> String {
    format!("{}{CLONE_SUFFIX}", job.target_root())
}

/// Destroys the clone that an interrupted test of a job left; whether there was one. What no test made is left alone.
///
/// # Errors
/// The pool gives no answer, or the clone is in use.
pub async fn destroy_leftover(job: &Job, pool: &PoolHandle) -> Result<bool, ReplicationError> {
    let side = LocalEndpoint::new(pool.clone());
    let name = clone_name(job);
    let listed = side.list(&name).await?.unwrap_or_default();
    let is_left = listed
        .first()
        .is_some_and(|found| found.mark.as_ref() == Some(&test_mark(job)));
    if is_left {
        destroy(pool, &name).await?;
    }
    Ok(is_left)
}

/// Returns the snapshots that a test would read.
///
/// # Errors
/// The target gives no answer, or holds nothing that the job sent.
pub async fn foresee_test_restore(
    job: &Job,
    target: &dyn Switchover,
) -> Result<Vec<String>, ReplicationError> {
    let own = own(&job.name, target, job.target_root()).await?;
    let newest = own.iter().filter_map(|dataset| {
        let newest = dataset.snapshots.last()?;
        Some(format!("{}@{}", dataset.name, newest.name))
    });
    Ok(newest.collect())
}

async fn destroy(pool: &PoolHandle, name: &str) -> Result<(), ReplicationError> {
    let destroyed = pool.destroy_dataset(name, DestroyOptions { recursive: false });
    destroyed.await.map_err(|error| {
        ReplicationError::Failed(format!("the clone '{name}' cannot be destroyed: {error}"))
    })
}

/// Reads what a job sent to this pool; `source` is the pool of the source, where that is one of this appliance. Returns what was found of each
/// dataset, and why the test ended before all were read.
pub async fn test_restore(
    job: &Job,
    pool: &PoolHandle,
    source: Option<&PoolHandle>,
    progress: &RestoreProgress,
) -> (Vec<RestoredDataset>, Option<String>) {
    let mut found = Vec::new();
    let failure = read_all(job, pool, source, progress, &mut found).await;
    (found, failure.err().map(|error| error.to_string()))
}

async fn read_all(
    job: &Job,
    pool: &PoolHandle,
    source: Option<&PoolHandle>,
    progress: &RestoreProgress,
    found: &mut Vec<RestoredDataset>,
) -> Result<(), ReplicationError> {
    destroy_leftover(job, pool).await?;
    let side = LocalEndpoint::new(pool.clone());
    let sources = match source {
        Some(source) => Some((source, listed_sources(job, source).await)),
        None => None,
    };
    for dataset in own(&job.name, &side, job.target_root()).await? {
        if progress.is_cancelled() {
            return Err(ReplicationError::Cancelled);
        }
        let mut tested = RestoredDataset::new(&dataset.name);
        let cloned = clone_newest(job, pool, dataset).await?;
        let Some((dataset, newest)) = cloned else {
            tested.fail(b"", "it has not arrived whole: there is no snapshot of it");
            found.push(tested);
            continue;
        };
        tested.snapshot.clone_from(&newest.name);
        tested.created = newest.creation;
        progress.begin(&format!("{}@{}", dataset.name, newest.name));
        let original = match &sources {
            None => Err("the source is on another host".to_owned()),
            Some((pool, listed)) => original(pool, listed.as_deref(), &dataset, &newest),
        };
        let reading = Reading {
            tested: &mut tested,
            progress,
        };
        let clone = clone_name(job);
        let read = read_clone(reading, (pool, &clone), dataset.kind, original).await;
        found.push(tested);
        destroy(pool, &clone).await?;
        read?;
    }
    Ok(())
}

async fn listed_sources(job: &Job, source: &PoolHandle) -> Option<Vec<ReplicaDataset>> {
    let side = LocalEndpoint::new(source.clone());
    side.list(job.source_root()).await.ok().flatten()
}

/// Clones the newest snapshot of a dataset of the target, and returns both; `None` when it has no snapshot.
async fn clone_newest(
    job: &Job,
    pool: &PoolHandle,
    mut dataset: ReplicaDataset,
) -> Result<Option<(ReplicaDataset, Point)>, ReplicationError> {
    let name = clone_name(job);
    let is_fs = dataset.kind == DatasetKind::Filesystem;
    let idle = IDLE.iter().chain(IDLE_FILES.iter().filter(|_| is_fs));
    let mut settings: Vec<(String, String)> = idle
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
        .collect();
    settings.push((MARK_PROPERTY.to_owned(), test_mark(job).to_string()));
    let mut tries = 0;
    loop {
        let Some(newest) = dataset.snapshots.last().cloned() else {
            return Ok(None);
        };
        let snapshot = format!("{}@{}", dataset.name, newest.name);
        tries += 1;
        match pool
            .clone_snapshot(&snapshot, &name, &settings, false)
            .await
        {
            Ok(()) => return Ok(Some((dataset, newest))),
            Err(EngineError::DatasetNotFound(_)) if tries < CLONE_TRIES => {}
            Err(error) => {
                let why = format!("'{snapshot}' cannot be cloned as '{name}': {error}");
                return Err(ReplicationError::Failed(why));
            }
        }
        let side = LocalEndpoint::new(pool.clone());
        let again = side.list(&dataset.name).await?.unwrap_or_default();
        let Some(again) = again.into_iter().next() else {
            return Ok(None);
        };
        dataset = again;
    }
}

/// Returns the snapshot that a copy is of, in the pool of the source, or why it cannot be compared.
fn original<'a>(
    pool: &'a PoolHandle,
    sources: Option<&[ReplicaDataset]>,
    copy: &ReplicaDataset,
    newest: &Point,
) -> Result<(&'a PoolHandle, String), String> {
    let source_guid = copy.mark.as_ref().map(|mark| mark.source_guid);
    let sources = sources.ok_or("the source cannot be read")?;
    let source = sources.iter().find(|one| Some(one.guid) == source_guid);
    let source = source.ok_or("its source does not exist any more")?;
    let same = source.snapshots.iter().find(|one| one.guid == newest.guid);
    let same = same.ok_or("the source does not have this snapshot any more")?;
    Ok((pool, format!("{}@{}", source.name, same.name)))
}

/// Reads a clone, beside the snapshot of the source where there is one.
async fn read_clone(
    mut reading: Reading<'_>,
    (pool, clone): (&PoolHandle, &str),
    kind: DatasetKind,
    original: Result<(&PoolHandle, String), String>,
) -> Result<(), ReplicationError> {
    let (source, not_compared) = match original {
        Ok(original) => (Some(original), None),
        Err(why) => (None, Some(why)),
    };
    reading.tested.not_compared = not_compared;
    let opened = match kind {
        DatasetKind::Volume => {
            let copy = pool.open_volume(clone).await;
            let beside = match &source {
                Some((pool, name)) => Some(pool.open_volume(name).await),
                None => None,
            };
            match copy {
                Ok(copy) => {
                    let beside = reading.beside(beside);
                    return reading.volume(&copy, beside.as_ref()).await;
                }
                Err(error) => error,
            }
        }
        _ => {
            let copy = pool.open_fs(clone).await;
            let beside = match &source {
                Some((pool, name)) => Some(pool.open_fs(name).await),
                None => None,
            };
            match copy {
                Ok(copy) => {
                    let beside = reading.beside(beside);
                    let beside = beside.as_ref().map(|beside| beside as &dyn Files);
                    return reading.tree(&copy, beside).await;
                }
                Err(error) => error,
            }
        }
    };
    reading
        .tested
        .fail(b"", &format!("it cannot be opened: {opened}"));
    Ok(())
}
