//! The daemon's task that empties the trash: what is due is destroyed, each dataset as a job. What a crash left half way is ended at a start.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Weak;
use std::time::{Duration, Instant};

use engine::PoolHandle;
use manage::database::seconds_since_epoch;
use manage::trash;

use crate::appliance::Appliance;
use crate::logging::SANBOX;

/// How often the trash is looked at.
const EVERY: Duration = Duration::from_secs(10);
/// How long a pool may take to say what is there.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
/// After what time a dataset that could not be destroyed is tried again.
const AGAIN: Duration = Duration::from_secs(3600);
/// Who gives the command, in the log of jobs.
const ORIGIN: &str = "trash";

/// Empties the trash for as long as the appliance is there.
pub(super) async fn keep(appliance: Weak<Appliance>) {
    let mut settled: BTreeSet<u64> = BTreeSet::new();
    let mut tried: BTreeMap<String, Instant> = BTreeMap::new();
    let mut each = tokio::time::interval(EVERY);
    each.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        each.tick().await;
        let Some(appliance) = appliance.upgrade() else {
            return;
        };
        tried.retain(|_, at| at.elapsed() < AGAIN);
        let pools = appliance.open_pools();
        settled.retain(|guid| pools.iter().any(|pool| pool.guid() == *guid));
        for pool in pools.iter().filter(|pool| !pool.readonly()) {
            if !settled.contains(&pool.guid()) && settle(pool).await {
                settled.insert(pool.guid());
                appliance.datasets_changed().await;
            }
            destroy_due(&appliance, pool, &mut tried).await;
        }
    }
}

/// Ends what was interrupted; returns whether that was done.
async fn settle(pool: &PoolHandle) -> bool {
    match tokio::time::timeout(ANSWER_TIMEOUT, trash::settle(pool)).await {
        Ok(Ok(())) => true,
        Ok(Err(error)) => {
            tracing::warn!(target: SANBOX, "the trash of pool '{}': {error}", pool.name());
            false
        }
        Err(_) => false,
    }
}

async fn destroy_due(
    appliance: &Appliance,
    pool: &PoolHandle,
    tried: &mut BTreeMap<String, Instant>,
) {
    let Some(api) = appliance.api() else {
        return;
    };
    let Ok(Ok(entries)) = tokio::time::timeout(ANSWER_TIMEOUT, trash::entries(pool)).await else {
        return;
    };
    let now = i64::try_from(seconds_since_epoch()).unwrap_or(0);
    for entry in entries {
        let due = entry.until.is_some_and(|until| until <= now);
        if !due || tried.contains_key(&entry.dataset) {
            continue;
        }
        tried.insert(entry.dataset.clone(), Instant::now());
        let words = vec!["destroy".to_owned(), "-r".to_owned(), entry.dataset.clone()];
        if let Err(error) = api.start_own("zfs", words, ORIGIN) {
            tracing::warn!(target: SANBOX, "'{}' of the trash is not destroyed: {error}", entry.dataset);
        }
    }
}
