//! The steps of what turns a job round or back, in their order: called by the commands, and by the simulated months of `simulation::fencing`.
//!
//! Whether a job counts as turned round is written down before anything of it is in force, and taken back when all of it is: what is given again
//! after it was cut off goes on.

use futures_util::future::BoxFuture;
use jiff::Timestamp;

use super::{
    Job, Location, Reached, Refusal, ReplicaDataset, ReplicationError, Report, Switchover, adopt,
    adopt_fenced, fail_back, fail_over, fence_source, fenced_sources, is_in_force, is_taken_over,
    job_of_copy, lift_fences, reclaim, stands_in,
};

/// Who has a job that is turned round.
pub trait JobHost: Send + Sync {
    /// Returns the source's side.
    fn source(&self) -> Reached<'_, Box<dyn Switchover>>;

    /// Returns the target's side.
    fn target(&self) -> Reached<'_, Box<dyn Switchover>>;

    /// Ends a run of the job that is under way.
    fn stop(&self) -> Reached<'_, ()>;

    /// Runs the job, as it is given here, in place of a run that is under way.
    fn run<'a>(&'a self, job: &'a Job) -> Reached<'a, Report>;

    /// The time, by the clock of who has the job.
    fn now(&self) -> Timestamp;

    /// Writes down whether the job counts as turned round; it is on stable storage when this returns.
    fn write_down(&self, failed_over: bool) -> Result<(), ReplicationError>;

    /// Has what depends on datasets follow them.
    fn changed(&self) -> BoxFuture<'_, ()>;

    /// Says what there is to know though the job is turned round.
    fn note(&self, note: &TurnNote);
}

/// What there is to know of a failover.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TurnNote {
    /// The source cannot be reached: what was written to it since the last run is not in the copy.
    NotSent(ReplicationError),
    /// The source does not allow to be fenced, and goes on.
    SourceGoesOn(ReplicationError),
    /// The job is not turned round, and its source could not be told: it stays fenced.
    StaysFenced(ReplicationError),
}

/// Why a job was not turned round.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotTurned {
    /// Datasets were left out of a run: that needs a decision first.
    Incomplete(Box<Report>),
    /// A side gives no answer, or refuses.
    Failed(ReplicationError),
}

impl From<ReplicationError> for NotTurned {
    fn from(error: ReplicationError) -> Self {
        Self::Failed(error)
    }
}

/// Puts the target of a job in use in place of its source. What the source has still is sent before, if it can be reached: most of it while it is
/// in use, and the rest once it is fenced, since what is written after that would be in no copy. Returns the datasets that are in use then. Given
/// again after it was cut off, it goes on.
///
/// # Errors
/// The job was not turned round, and its source goes on.
pub async fn fail_over_job(job: &Job, host: &dyn JobHost) -> Result<Vec<String>, NotTurned> {
    let found = found_by_failover(job, &*host.target().await?).await?;
    let mut fenced = Vec::new();
    if !found.failed_over {
        if job.failed_over {
            host.write_down(false)?;
        }
        match host.run(&found).await {
            Ok(report) if report.problems.is_empty() => {
                fenced = fence_and_send(&found, host).await?;
            }
            Ok(report) => return Err(NotTurned::Incomplete(Box::new(report))),
            Err(error @ ReplicationError::Unreachable { .. }) => {
                host.note(&TurnNote::NotSent(error));
            }
            Err(error) => return Err(error.into()),
        }
    }
    host.write_down(true)?;
    let done = async { fail_over(job, &*host.target().await?).await };
    match done.await {
        Ok(datasets) => Ok(datasets),
        Err(error) => {
            host.write_down(found.failed_over)?;
            lift(job, host, &fenced).await;
            Err(error.into())
        }
    }
}

/// Returns a job as a failover of it finds it: it counts as turned round when a copy is in use. One that was written down, and cut off before that,
/// begins anew, since the source may have been written to meanwhile.
///
/// # Errors
/// The target gives no answer.
pub async fn found_by_failover(
    job: &Job,
    target: &dyn Switchover,
) -> Result<Job, ReplicationError> {
    Ok(Job {
        failed_over: job.failed_over && stands_in(job, target).await?,
        ..job.clone()
    })
}

/// Fences the source, once the target has nearly all of it, and sends the rest. Returns what was not fenced before.
async fn fence_and_send(job: &Job, host: &dyn JobHost) -> Result<Vec<String>, NotTurned> {
    let fenced = async { fence_source(job, &*host.source().await?).await };
    let fenced = match fenced.await {
        Ok(fenced) => fenced,
        // A peer that did not invite to it.
        Err(error @ ReplicationError::Denied { .. }) => {
            host.note(&TurnNote::SourceGoesOn(error));
            return Ok(Vec::new());
        }
        Err(error) => return Err(error.into()),
    };
    host.changed().await;
    let refused = match host.run(job).await {
        Ok(report) if report.problems.is_empty() => return Ok(fenced),
        Ok(report) => NotTurned::Incomplete(Box::new(report)),
        Err(error) => error.into(),
    };
    lift(job, host, &fenced).await;
    Err(refused)
}

/// Whether a run met a target that is in use: then one of the two sides is to be fenced.
#[must_use]
pub fn met_in_use(result: &Result<Report, ReplicationError>) -> bool {
    let is_in_use = |error: &ReplicationError| {
        matches!(error, ReplicationError::Refused(Refusal::FailedOver { .. }))
    };
    match result {
        Ok(report) => report.problems.iter().any(|(_, error)| is_in_use(error)),
        Err(error) => is_in_use(error),
    }
}

/// Whether a job is turned round: by a failover of its own of which anything is in force, or since its target was put in use where it is.
///
/// # Errors
/// A side gives no answer.
pub async fn is_turned(job: &Job, host: &dyn JobHost) -> Result<bool, ReplicationError> {
    let target = host.target().await?;
    match job.failed_over {
        true => is_in_force(job, &*host.source().await?, &*target).await,
        false => is_taken_over(job, &*target).await,
    }
}

/// Brings what was written at the target of a job back to its source, and puts that in use again. With `rollback`, what the source has after the
/// newest snapshot in common is given up. `None` when the job is not turned round.
///
/// # Errors
/// A side gives no answer, or refuses; the job is turned round still.
pub async fn fail_back_job(
    job: &Job,
    host: &dyn JobHost,
    rollback: bool,
) -> Result<Option<Report>, ReplicationError> {
    if !is_turned(job, host).await? {
        if job.failed_over {
            host.write_down(false)?;
        }
        return Ok(None);
    }
    if !job.failed_over {
        host.stop().await?;
        host.write_down(true)?;
    }
    let (source, target) = (host.source().await?, host.target().await?);
    let report = fail_back(job, &*source, &*target, rollback, &|| host.now()).await?;
    host.write_down(false)?;
    Ok(Some(report))
}

/// Takes what is there as the target of a job, and makes it a copy again where it was fenced. With `rollback`, what it has after the newest
/// snapshot in common is given up. Returns its datasets; none where there is no target.
///
/// # Errors
/// A side gives no answer, or the target cannot be one.
pub async fn adopt_job(
    job: &Job,
    host: &dyn JobHost,
    rollback: bool,
) -> Result<Vec<String>, ReplicationError> {
    let (source, target) = (host.source().await?, host.target().await?);
    let adopted = adopt(job, &*source, &*target, rollback).await?;
    adopt_fenced(job, &*source, &*target, &adopted).await?;
    if job.failed_over && !adopted.is_empty() {
        // No copy is in use: one that is would not have been adopted.
        host.write_down(false)?;
    }
    Ok(adopted)
}

/// What putting a dataset in use where it is comes to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Takeover {
    /// Sources that are fenced are put in use again ([`reclaim_sources`]).
    Sources(Vec<ReplicaDataset>),
    /// The target of a job of this appliance: a failover ([`fail_over_job`]).
    TargetOf(String),
    /// A copy that the job of another appliance sent ([`take_over`](super::take_over)).
    Copy(String),
}

/// Finds out what putting a dataset of this appliance, which has these jobs, in use comes to.
///
/// # Errors
/// The side gives no answer, or no job sent it.
pub async fn takeover_of(
    side: &dyn Switchover,
    root: &str,
    jobs: &[Job],
) -> Result<Takeover, ReplicationError> {
    let sources = fenced_sources(side, root).await?;
    if !sources.is_empty() {
        return Ok(Takeover::Sources(sources));
    }
    let name = job_of_copy(side, root).await?;
    let is_here = |job: &Job| {
        job.name == name && matches!(job.target(), Ok(Location::Local(target)) if target == root)
    };
    Ok(match jobs.iter().any(is_here) {
        true => Takeover::TargetOf(name),
        false => Takeover::Copy(name),
    })
}

/// Puts sources that are fenced ([`Takeover::Sources`]) in use again. Of the jobs of this appliance, those that send from them do not
/// count as turned round any more. Where no copy is in use the fences are just lifted; where one is, or that cannot be found out, the sources get
/// a higher generation.
///
/// # Errors
/// The side gives no answer, or a run of a job does not end: given again, it goes on.
pub async fn reclaim_sources(
    side: &dyn Switchover,
    sources: &[ReplicaDataset],
    jobs: &[(&Job, &dyn JobHost)],
) -> Result<(), ReplicationError> {
    let is_by = |job: &Job| {
        let mut fences = sources.iter().filter_map(|one| one.fence.as_ref());
        fences.any(|fence| fence.job == job.name)
    };
    let mut is_in_use = None;
    for (job, host) in jobs.iter().filter(|(job, _)| is_by(job)) {
        host.stop().await?;
        let asked = async { is_taken_over(job, &*host.target().await?).await };
        is_in_use = Some(is_in_use.unwrap_or(false) || asked.await.unwrap_or(true));
        host.write_down(false)?;
    }
    reclaim(side, sources, is_in_use.unwrap_or(true)).await
}

/// Has the source go on after a failover that did not come about.
async fn lift(job: &Job, host: &dyn JobHost, fenced: &[String]) {
    let lifted = async { lift_fences(&*host.source().await?, job.source_root(), fenced).await };
    if let Err(error) = lifted.await {
        host.note(&TurnNote::StaysFenced(error));
    }
    host.changed().await;
}
