//! Tests of restores, carried out on the pools of this appliance.

use std::sync::Arc;

use engine::PoolHandle;
use jiff::Timestamp;
use manage::replication::{
    self, Job, Location, ReplicationError, RestoreProgress, RestoreReport, RestoredDataset,
};

use crate::appliance::Appliance;
use crate::logging::REPLICATION;

/// Tests the restore of what a job sent, and returns what was found. `None` when a test of it is under way. It ends only when it was
/// cancelled or all was read, whoever waits for it, and leaves no clone.
pub(crate) async fn run(appliance: &Arc<Appliance>, job: &Job) -> Option<Arc<RestoreReport>> {
    let (appliance, job) = (appliance.clone(), job.clone());
    let task = tokio::spawn(async move {
        let tests = appliance.replications().restore_tests();
        let slot = tests.begin(&job.name)?;
        let began = Timestamp::now();
        let found = read(&appliance, &job, slot.progress()).await;
        Some(tests.note(&slot, (began, Timestamp::now()), found))
    });
    task.await.ok().flatten()
}

async fn read(
    appliance: &Appliance,
    job: &Job,
    progress: &RestoreProgress,
) -> (Vec<RestoredDataset>, Option<String>) {
    let pool = match target_pool(appliance, job).await {
        Ok(pool) => pool,
        Err(why) => return (Vec::new(), Some(why)),
    };
    let source = match job.source() {
        Ok(Location::Local(dataset)) => appliance.pool_of(&dataset).await.ok(),
        _ => None,
    };
    replication::test_restore(job, &pool, source.as_ref(), progress).await
}

async fn target_pool(appliance: &Appliance, job: &Job) -> Result<PoolHandle, String> {
    job.check_testable().map_err(|error| error.to_string())?;
    let pool = appliance.pool_of(job.target_root()).await;
    pool.map_err(|error| format!("'{}' cannot be opened: {error}", job.to))
}

/// Destroys the clone that a test left which the end of a process interrupted. Whether the pool could be asked; while a test runs, it is the
/// test's.
pub(crate) async fn destroy_leftover(appliance: &Appliance, job: &Job) -> bool {
    let tests = appliance.replications().restore_tests();
    let Some(_slot) = tests.begin(&job.name) else {
        return true;
    };
    let destroyed = async {
        let pool = target_pool(appliance, job).await;
        let pool = pool.map_err(ReplicationError::Failed)?;
        replication::destroy_leftover(job, &pool).await
    };
    match destroyed.await {
        Ok(false) => true,
        Ok(true) => {
            let name = replication::clone_name(job);
            tracing::info!(target: REPLICATION, "{}: destroyed {name}, which a test left that was interrupted", job.name);
            true
        }
        Err(_) => false,
    }
}
