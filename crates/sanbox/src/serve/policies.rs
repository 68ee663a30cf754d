//! The daemon's task that carries out snapshot policies. A round is a computation from what exists: when this task starts, stops or is late
//! changes nothing but the moment at which a due snapshot is taken.

use std::collections::BTreeMap;
use std::sync::Weak;
use std::time::{Duration, Instant};

use engine::PoolHandle;
use jiff::Timestamp;
use manage::policy::{Hooks, PoolPolicies, Round};

use crate::appliance::Appliance;
use crate::logging::POLICY;

/// How often the policies of a pool are looked at: a change of one takes effect within this time, and a snapshot is late by this much at
/// the most.
const INTERVAL: Duration = Duration::from_secs(15);
/// How often is looked for pools that were opened meanwhile.
const TICK: Duration = Duration::from_secs(1);
/// How long a round of one pool may take before the others have their turn.
const ROUND_MAX: Duration = Duration::from_secs(60);

/// A pool's policies between two rounds.
#[derive(Default)]
struct WatchedPool {
    policies: PoolPolicies,
    answering: Answering,
    /// When the last round ended; none was before.
    looked: Option<Instant>,
}

/// Carries out the policies of all open pools until the appliance is gone.
pub(super) async fn keep(appliance: Weak<Appliance>) {
    let mut watched: BTreeMap<u64, WatchedPool> = BTreeMap::new();
    let mut each = tokio::time::interval(TICK);
    each.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        each.tick().await;
        let Some(appliance) = appliance.upgrade() else {
            return;
        };
        let pools = appliance.open_pools();
        watched.retain(|guid, _| pools.iter().any(|pool| pool.guid() == *guid));
        for pool in pools {
            let own = watched.entry(pool.guid()).or_default();
            if own.looked.is_none_or(|at| at.elapsed() >= INTERVAL) {
                own.round(&pool, appliance.hooks()).await;
                appliance.snapshots_changed().await;
            }
        }
    }
}

impl WatchedPool {
    /// Does what is due. A pool that does not answer delays the snapshots of the others by [`ROUND_MAX`], and its own until it answers.
    async fn round(&mut self, pool: &PoolHandle, hooks: &Hooks) {
        let round = self.policies.round(pool, hooks, Timestamp::now());
        let failure = match tokio::time::timeout(ROUND_MAX, round).await {
            Ok(Ok(round)) => {
                report(pool, &round);
                None
            }
            Ok(Err(error)) => Some(error.to_string()),
            Err(_) => Some("it does not answer".to_owned()),
        };
        self.answering.note(pool, failure);
        self.looked = Some(Instant::now());
    }
}

/// Whether the last round of a pool was carried out: a pool that is suspended for days is one line of the log, not one a round.
#[derive(Debug, Default)]
struct Answering {
    failure: Option<String>,
}

impl Answering {
    fn note(&mut self, pool: &PoolHandle, failure: Option<String>) {
        if failure == self.failure {
            return;
        }
        match &failure {
            Some(why) => {
                tracing::warn!(target: POLICY, "{}: no snapshots are taken: {why}", pool.name());
            }
            None => tracing::info!(target: POLICY, "{}: snapshots are taken again", pool.name()),
        }
        self.failure = failure;
    }
}

/// Writes what a round did to the daemon's log.
fn report(pool: &PoolHandle, round: &Round) {
    for (dataset, why) in &round.problems {
        tracing::warn!(target: POLICY, "{dataset}: {why}");
    }
    for (hook, why) in &round.hook_failures {
        tracing::warn!(target: POLICY, "{}: hook '{hook}' failed; the snapshot was taken all the same: {why}", pool.name());
    }
    for dataset in &round.solved {
        tracing::info!(target: POLICY, "{dataset}: its policy is carried out again");
    }
    if !round.taken.is_empty() || !round.destroyed.is_empty() {
        let (taken, destroyed) = (round.taken.len(), round.destroyed.len());
        tracing::info!(target: POLICY, "{}: {taken} snapshots taken, {destroyed} destroyed", pool.name());
    }
}
