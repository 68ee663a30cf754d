//! Jobs of replication, carried out on the pools of this appliance.

use std::sync::Arc;

use engine::EngineError;
use jiff::Timestamp;
use manage::replication::{
    self, Ended, Job, JobError, LocalEndpoint, Location, ReplicationError, Switchover,
};

use crate::appliance::{Appliance, fences};
use crate::logging::REPLICATION;

/// Returns the source's side of a job.
pub(crate) async fn source_of(
    appliance: &Appliance,
    job: &Job,
) -> Result<Box<dyn Switchover>, ReplicationError> {
    endpoint(appliance, job, job.source()).await
}

/// Returns the target's side of a job.
pub(crate) async fn target_of(
    appliance: &Appliance,
    job: &Job,
) -> Result<Box<dyn Switchover>, ReplicationError> {
    endpoint(appliance, job, job.target()).await
}

async fn endpoint(
    appliance: &Appliance,
    job: &Job,
    location: Result<Location, JobError>,
) -> Result<Box<dyn Switchover>, ReplicationError> {
    let location = location.map_err(|error| ReplicationError::Failed(error.to_string()))?;
    match appliance.peers().endpoint_elsewhere(job, location) {
        Ok(elsewhere) => Ok(elsewhere),
        Err(dataset) => {
            let pool = appliance.pool_of(&dataset).await;
            let pool = pool.map_err(|error| ReplicationError::Unreachable {
                place: format!("pool '{}'", crate::cli::pool_part(&dataset)),
                why: match error {
                    EngineError::PoolNotFound(_) => "it is not imported".to_owned(),
                    other => other.to_string(),
                },
            })?;
            Ok(Box::new(LocalEndpoint::new(pool)))
        }
    }
}

/// Runs a job, and lets what follows the datasets know. `None` when it runs already.
pub(crate) async fn run_job(appliance: &Arc<Appliance>, job: &Job) -> Option<Ended> {
    let replications = appliance.replications().clone();
    let work = |progress| async move {
        let target = target_of(appliance, job).await?;
        let source = source_of(appliance, job).await?;
        replication::run(job, &*source, &*target, &progress, Timestamp::now()).await
    };
    let ended = replications.run(job, work).await?;
    if replication::met_in_use(&ended.result) {
        // What it meets is told by the run already.
        let _ = settle(appliance, job).await;
    }
    if let Ok(report) = &ended.result
        && !report.fenced_for_none.is_empty()
        && !replications.is_turning(&job.name)
    {
        lift(appliance, job, &report.fenced_for_none).await;
    }
    let changed = match &ended.result {
        Ok(report) => !report.sent.is_empty(),
        // What was sent before it ended is there.
        Err(_) => true,
    };
    if changed {
        appliance.datasets_changed().await;
    }
    Some(ended)
}

/// Runs a job that is due. `None` when it runs already, and when nothing was written that the target of a continuous job does not have.
pub(crate) async fn run_if_changed(appliance: &Arc<Appliance>, job: &Job) -> Option<Ended> {
    if job.continuous
        && let Ok(source) = source_of(appliance, job).await
        && appliance.replications().is_settled(job, &*source).await
    {
        return None;
    }
    run_job(appliance, job).await
}

/// Has a source go on whose failover did not come to its end: the process that did it was ended, or the link broke off.
async fn lift(appliance: &Appliance, job: &Job, fenced: &[String]) {
    let lifted = async {
        let source = source_of(appliance, job).await?;
        replication::lift_fences(&*source, job.source_root(), fenced).await
    };
    let names = fenced.join(", ");
    match lifted.await {
        Ok(()) => {
            tracing::warn!(target: REPLICATION, "{}: a failover did not come to its end, and its source goes on: {names}", job.name);
        }
        Err(error) => {
            tracing::warn!(target: REPLICATION, "{}: a failover did not come to its end, and its source stays fenced: {names}: {error}", job.name);
        }
    }
    appliance.datasets_changed().await;
}

/// Fences whichever side of a job has the lower generation, and lets the services know.
pub(crate) async fn settle(appliance: &Appliance, job: &Job) -> Result<(), ReplicationError> {
    let target = target_of(appliance, job).await?;
    let source = source_of(appliance, job).await?;
    let settled = replication::settle_fences(job, &*source, &*target).await;
    match &settled {
        Ok(_) => appliance.replications().note_fences(&job.name, None),
        Err(error @ ReplicationError::Denied { .. }) => {
            let denied = Some(error.clone());
            appliance.replications().note_fences(&job.name, denied);
        }
        Err(_) => {}
    }
    let fenced = settled?;
    fences::tell(job, &fenced);
    if !fenced.is_empty() {
        appliance.datasets_changed().await;
    }
    Ok(())
}
