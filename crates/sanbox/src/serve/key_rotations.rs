//! The daemon's task that goes on with rotations of keys that were interrupted, each as a job, as soon as their keys are loaded.

use std::collections::BTreeMap;
use std::sync::Weak;
use std::time::{Duration, Instant};

use engine::PoolHandle;

use crate::appliance::Appliance;
use crate::logging::SANBOX;

/// How often pools are looked at.
const EVERY: Duration = Duration::from_secs(10);
/// How long a pool may take to say what is there.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
/// After what time one that failed is tried again.
const AGAIN: Duration = Duration::from_secs(600);
/// Who gives the command, in the log of jobs.
const ORIGIN: &str = "key rotation";

/// Goes on with what is interrupted for as long as the appliance is there.
pub(super) async fn keep(appliance: Weak<Appliance>) {
    let mut tried: BTreeMap<String, Instant> = BTreeMap::new();
    let mut each = tokio::time::interval(EVERY);
    each.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        each.tick().await;
        let Some(appliance) = appliance.upgrade() else {
            return;
        };
        tried.retain(|_, at| at.elapsed() < AGAIN);
        for pool in appliance.open_pools() {
            if !pool.readonly() {
                go_on(&appliance, &pool, &mut tried).await;
            }
        }
    }
}

async fn go_on(appliance: &Appliance, pool: &PoolHandle, tried: &mut BTreeMap<String, Instant>) {
    let found = tokio::time::timeout(ANSWER_TIMEOUT, pool.key_rotations()).await;
    let Ok(Ok(found)) = found else { return };
    for rotation in found {
        if rotation.running || !rotation.ready {
            continue;
        }
        let Some(dataset) = rotation.dataset else {
            // Its dataset was destroyed: there is nothing to wait for.
            let _ = pool.resume_key_rotations().await;
            continue;
        };
        if tried.contains_key(&dataset) {
            continue;
        }
        tried.insert(dataset.clone(), Instant::now());
        let words = vec!["rotate-key".to_owned(), "-w".to_owned(), dataset.clone()];
        let started = appliance
            .api()
            .map(|api| api.start_own("zfs", words, ORIGIN));
        let failed = match started {
            Some(Ok(_)) => None,
            Some(Err(error)) => Some(error.to_string()),
            // Without a management plane there are no jobs.
            None => pool
                .resume_key_rotations()
                .await
                .err()
                .map(|error| error.to_string()),
        };
        if let Some(error) = failed {
            tracing::warn!(target: SANBOX, "the rotation of the key of '{dataset}' does not go on: {error}");
        }
    }
}
