//! The steps of a failover, in their order: called by the command, and by the simulated months of `simulation::fencing`.

use futures_util::future::BoxFuture;

use super::{
    Job, Reached, ReplicationError, Report, Switchover, fail_over, fence_source, lift_fences,
};

/// Who has a job that is turned round.
pub trait JobHost: Send + Sync {
    /// Returns the source's side.
    fn source(&self) -> Reached<'_, Box<dyn Switchover>>;

    /// Returns the target's side.
    fn target(&self) -> Reached<'_, Box<dyn Switchover>>;

    /// Runs the job, in place of a run that is under way.
    fn run(&self) -> Reached<'_, Report>;

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
    let mut fenced = Vec::new();
    if !job.failed_over {
        match host.run().await {
            Ok(report) if report.problems.is_empty() => fenced = fence_and_send(job, host).await?,
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
            host.write_down(job.failed_over)?;
            lift(job, host, &fenced).await;
            Err(error.into())
        }
    }
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
    let refused = match host.run().await {
        Ok(report) if report.problems.is_empty() => return Ok(fenced),
        Ok(report) => NotTurned::Incomplete(Box::new(report)),
        Err(error) => error.into(),
    };
    lift(job, host, &fenced).await;
    Err(refused)
}

/// Has the source go on after a failover that did not come about.
async fn lift(job: &Job, host: &dyn JobHost, fenced: &[String]) {
    let lifted = async { lift_fences(&*host.source().await?, job.source_root(), fenced).await };
    if let Err(error) = lifted.await {
        host.note(&TurnNote::StaysFenced(error));
    }
    host.changed().await;
}
