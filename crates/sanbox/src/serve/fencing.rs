//! The daemon's task for jobs of replication that do not run, since they were turned round or are paused, or whose runs fail and are given at
//! growing distances: of the two sides, the one that is not in use is fenced all the same, a minute after they reach each other.

use std::collections::BTreeMap;
use std::sync::Weak;
use std::time::{Duration, Instant};

use manage::replication::{Backoff, Job};

use crate::appliance::Appliance;
use crate::replication::settle;

/// How often is looked for such jobs.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// How long after a look without an answer the next one is, at most: a source that comes back serves until it is told.
const RETRY_MAX: Duration = Duration::from_secs(60);

/// What is known of a job that does not run, or fails.
#[derive(Default)]
struct Watched {
    backoff: Backoff,
    due: Option<Instant>,
}

/// Looks at the jobs that do not run, or whose runs fail, until the appliance is gone.
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
        let is_failing = |job: &Job| appliance.replications().state_of(&job.name).failures > 0;
        idle.retain(|job| job.failed_over || job.paused || is_failing(job));
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
                    job.interval().unwrap_or(LOOK_EVERY).min(RETRY_MAX)
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
