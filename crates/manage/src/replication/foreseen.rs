//! What turning a job round would do to the datasets of its sides. Nothing is changed here.

use super::fence::check_superseded;
use super::plan::{check_in_use, check_unchanged, newer_than, newest_common};
use super::{Job, Refusal, ReplicaDataset, ReplicationError, Switchover};

/// What follows the target's name in that of its clones.
const TEST_SUFFIX: &str = "-test";

/// What taking a dataset as the copy of another would do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Adoption {
    /// What is sent from.
    pub source: String,
    /// What would be its copy.
    pub target: String,
    /// What would come of it.
    pub outcome: AdoptionOutcome,
}

/// What would come of an [`Adoption`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AdoptionOutcome {
    /// The target does not exist: all of the source is sent.
    New,
    /// The target has the newest snapshot in common, and the source is sent from there.
    Since {
        /// Name of that snapshot, without the dataset's.
        snapshot: String,
        /// Snapshots of the target that would be given up, without the dataset's name.
        given_up: Vec<String>,
        /// Bytes written to the target since its newest snapshot, which would be given up.
        given_up_bytes: u64,
        /// Snapshots of the source that would be sent.
        sent: usize,
        /// Bytes written to the source since its newest snapshot.
        written_bytes: u64,
    },
    /// It would be refused.
    Refused(Refusal),
}

/// Says what bringing back what was written at the target would do; what would be sent is the target's.
///
/// # Errors
/// A side gives no answer, or the source does not exist.
pub async fn foresee_fail_back(
    job: &Job,
    source: &dyn Switchover,
    target: &dyn Switchover,
    rollback: bool,
) -> Result<Vec<Adoption>, ReplicationError> {
    let back = reversed(job);
    foresee_adoption(&back, target, source, rollback).await
}

/// Says what adopting the target of a job would do. Without `rollback`, what was written there is a refusal.
///
/// # Errors
/// A side gives no answer.
pub async fn foresee_adoption(
    job: &Job,
    source: &dyn Switchover,
    target: &dyn Switchover,
    rollback: bool,
) -> Result<Vec<Adoption>, ReplicationError> {
    // What is in a log only counts as written, too.
    source.write_out().await?;
    target.write_out().await?;
    let copies = target.list(job.target_root()).await?.unwrap_or_default();
    let sources = source.list(job.source_root()).await?.unwrap_or_default();
    let sources = sources.iter().filter(|dataset| job.includes(&dataset.name));
    let foreseen = sources.map(|dataset| {
        let target = job.target_of(&dataset.name);
        let copy = copies.iter().find(|copy| copy.name == target);
        let outcome = match copy {
            None => Ok(AdoptionOutcome::New),
            Some(copy) => outcome(job, dataset, copy, rollback),
        };
        Adoption {
            source: dataset.name.clone(),
            target,
            outcome: outcome.unwrap_or_else(AdoptionOutcome::Refused),
        }
    });
    Ok(foreseen.collect())
}

fn outcome(
    job: &Job,
    source: &ReplicaDataset,
    copy: &ReplicaDataset,
    rollback: bool,
) -> Result<AdoptionOutcome, Refusal> {
    check_in_use(job, copy)?;
    if job.reversed {
        // What is sent from is the copy.
        check_superseded(&job.name, copy, source)?;
    }
    let common = newest_common(source, copy);
    let (common, (at_source, _)) = common.ok_or_else(|| Refusal::NothingInCommon {
        dataset: source.name.clone(),
        target: copy.name.clone(),
    })?;
    if !rollback {
        check_unchanged(job, copy, common)?;
    }
    let given_up = newer_than(copy, common);
    Ok(AdoptionOutcome::Since {
        snapshot: common.name.clone(),
        given_up: given_up.iter().map(|point| point.name.clone()).collect(),
        given_up_bytes: copy.written_bytes,
        sent: newer_than(source, at_source).len(),
        written_bytes: source.written_bytes,
    })
}

/// Returns the datasets of a side, a dataset and those below it, that putting the copies of a job in use makes writable.
///
/// # Errors
/// The side gives no answer, or no job sent them.
pub async fn foresee_take_over(
    side: &dyn Switchover,
    root: &str,
    job: &str,
) -> Result<Vec<String>, ReplicationError> {
    let own = own(job, side, root).await?;
    Ok(own.into_iter().map(|dataset| dataset.name).collect())
}

/// Returns the clones that a test makes, each with the snapshot that it is of. A dataset without a snapshot has none.
///
/// # Errors
/// The target gives no answer, or has such clones already.
pub async fn foresee_test(
    job: &Job,
    target: &dyn Switchover,
) -> Result<Vec<(String, String)>, ReplicationError> {
    let root = test_root(job);
    if target.exists(&root).await? {
        return Err(ReplicationError::Failed(format!(
            "'{root}' exists: 'sanbox replication test {} --end' destroys the clones of an earlier test",
            job.name
        )));
    }
    let own = own(&job.name, target, job.target_root()).await?;
    let clones = own.iter().filter_map(|dataset| {
        let newest = dataset.snapshots.last()?;
        let below = dataset.name.strip_prefix(job.target_root())?;
        let snapshot = format!("{}@{}", dataset.name, newest.name);
        Some((format!("{root}{below}"), snapshot))
    });
    Ok(clones.collect())
}

/// The name of the clones that a test makes of the target's root.
pub(super) fn test_root(job: &Job) -> String {
    format!("{}{TEST_SUFFIX}", job.target_root())
}

/// Returns the datasets of a side that a job made or adopted.
pub(super) async fn own(
    job: &str,
    side: &dyn Switchover,
    root: &str,
) -> Result<Vec<ReplicaDataset>, ReplicationError> {
    let listed = side.list(root).await?.unwrap_or_default();
    let is_own =
        |dataset: &ReplicaDataset| dataset.mark.as_ref().is_some_and(|mark| mark.job == job);
    let own: Vec<ReplicaDataset> = listed.into_iter().filter(is_own).collect();
    if own.is_empty() {
        return Err(ReplicationError::Failed(format!(
            "'{root}' holds nothing that the job '{job}' sent"
        )));
    }
    Ok(own)
}

/// The job in the other direction: what was written at the target goes back, in snapshots of the job's own.
pub(super) fn reversed(job: &Job) -> Job {
    let target = |name: &String| match name.strip_prefix(job.source_root()) {
        Some(below) => format!("{}{below}", job.target_root()),
        None => name.clone(),
    };
    Job {
        name: job.name.clone(),
        from: job.to.clone(),
        to: job.from.clone(),
        ssh: job.ssh.clone(),
        recursive: job.recursive,
        exclude: job.exclude.iter().map(target).collect(),
        bandwidth: job.bandwidth.clone(),
        compress: job.compress.clone(),
        take: true,
        without_properties: true,
        reversed: true,
        ..Job::default()
    }
}
