//! The daemon's task for jobs of replication that do not run, since they were turned round or are paused: of the two sides, the one that is not in
//! use is fenced all the same.

use std::collections::BTreeMap;
use std::sync::Weak;
use std::time::{Duration, Instant};

use manage::replication::Backoff;

use crate::appliance::Appliance;
use crate::replication::settle;

/// How often is looked for such jobs.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// How long after a look without an answer the next one is, at most: a source that comes back serves until it is told.
const RETRY_MAX: Duration = Duration::from_secs(60);

/// What is known of a job that does not run.
#[derive(Default)]
struct Watched {
    backoff: Backoff,
    due: Option<Instant>,
}

/// Looks at the jobs that do not run, since they were turned round or are paused, until the appliance is gone.
pub(super) async fn keep(appliance: Weak<Appliance>) {
    let mut watched: BTreeMap<String, Watched> = BTreeMap::new();
    let mut each = tokio::time::interval(LOOK_EVERY);
    each.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        each.tick().await;
        let Some(appliance) = appliance.upgrade() else {
            return;
        };
        let replications = appliance.replications().clone();
        let read = tokio::task::spawn_blocking(move || replications.jobs()).await;
        let Ok(Ok(jobs)) = read else {
            continue;
        };
        let mut idle = jobs.replication;
        idle.retain(|job| job.failed_over || job.paused);
        watched.retain(|name, _| idle.iter().any(|job| job.name == *name));
        for job in idle {
            let known = watched.entry(job.name.clone()).or_default();
            if known.due.is_some_and(|due| due > Instant::now()) {
                continue;
            }
            let settled = settle(&appliance, &job).await;
            let wait = match settled {
                Ok(()) => {
                    known.backoff.succeed();
                    job.interval().unwrap_or(LOOK_EVERY)
                }
                Err(_) => {
                    let random = manage::secret::random::<4>().map_or(0, u32::from_ne_bytes);
                    known.backoff.fail(random).min(RETRY_MAX)
                }
            };
            known.due = Some(Instant::now() + wait);
        }
    }
}
