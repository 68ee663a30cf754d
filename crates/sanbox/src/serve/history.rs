//! Takes the samples of the history: each second what every pool tells of itself. Off the path of any request; a pool that does not
//! answer is a sample, too.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use engine::PoolHandle;
use futures_util::future::join_all;
use manage::api::Api;
use manage::database::seconds_since_epoch;
use manage::history::sample::PoolSpan;
use manage::history::{Observation, Span, pool_span};
use tokio::task::JoinHandle;
use tokio::time::{Instant, interval, timeout};

use crate::appliance::Appliance;
use crate::logging::SANBOX;

/// How long a pool may take to tell of itself.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(800);
/// How often samples are written to the state directory.
const STORE_EVERY_SECONDS: u64 = 10;
/// How often a pool is asked whether some of its data is deduplicated.
const DEDUP_EVERY_SECONDS: u64 = 60;

/// A pool that is watched.
#[derive(Default)]
struct WatchedPool {
    before: Option<Observation>,
    /// A question that was not answered in time: no second one is asked meanwhile.
    asked: Option<JoinHandle<Option<Observation>>>,
    dedup: bool,
    dedup_asked: Option<Instant>,
}

/// Takes samples for as long as the appliance is there.
pub(crate) async fn watch(appliance: Weak<Appliance>, api: Arc<Api>) {
    let mut watched: BTreeMap<u64, WatchedPool> = BTreeMap::new();
    let mut network = Network::default();
    let mut each = interval(Duration::from_secs(1));
    each.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut last = Instant::now();
    let mut storing: Option<JoinHandle<()>> = None;
    let mut count = 0_u64;
    loop {
        each.tick().await;
        let (pools, plan) = match appliance.upgrade() {
            Some(appliance) => (appliance.open_pools(), appliance.memory_plan()),
            None => return,
        };
        watched.retain(|guid, _| pools.iter().any(|pool| pool.guid() == *guid));
        let mut asking = Vec::new();
        for pool in pools {
            let state = watched.remove(&pool.guid()).unwrap_or_default();
            asking.push(sample(pool, state));
        }
        let mut spans = Vec::new();
        for (guid, state, span) in join_all(asking).await {
            spans.extend(span);
            watched.insert(guid, state);
        }
        let seconds = last.elapsed().as_secs_f64().max(0.001);
        last = Instant::now();
        let (carried, carries) = network.since(seconds);
        let span = Span {
            seconds: 1,
            memory: crate::memory::process_bytes().unwrap_or(0),
            memory_max: plan.ceiling,
            network: carried,
            network_max: carries,
            pools: spans,
        };
        api.history.push(seconds_since_epoch(), &span);
        count += 1;
        let idle = storing.as_ref().is_none_or(JoinHandle::is_finished);
        if count.is_multiple_of(STORE_EVERY_SECONDS) && idle {
            storing = Some(tokio::spawn(store(api.clone())));
        }
    }
}

/// Writes the history, and says once when that fails, and once when it works again.
pub(crate) async fn store(api: Arc<Api>) {
    let before = api.history.unsaved();
    match (before, api.history.store().await) {
        (None, Err(error)) => tracing::warn!(
            target: SANBOX,
            "the history is kept in memory alone, and ends with this process: {error}"
        ),
        (Some(_), Ok(())) if api.history.unsaved().is_none() => {
            tracing::info!(target: SANBOX, "the history is stored again");
        }
        _ => {}
    }
}

async fn sample(pool: PoolHandle, mut state: WatchedPool) -> (u64, WatchedPool, Option<PoolSpan>) {
    let guid = pool.guid();
    let name = pool.name().to_owned();
    let due = |asked: &Option<Instant>| {
        asked.is_none_or(|at| at.elapsed().as_secs() >= DEDUP_EVERY_SECONDS)
    };
    let asks_dedup = state.asked.is_none() && due(&state.dedup_asked);
    if asks_dedup {
        state.dedup_asked = Some(Instant::now());
    }
    let dedup = state.dedup;
    let mut asked = state
        .asked
        .take()
        .unwrap_or_else(|| tokio::spawn(observe(pool, dedup, asks_dedup)));
    match timeout(ANSWER_TIMEOUT, &mut asked).await {
        Ok(answer) => {
            let Some(now) = answer.ok().flatten() else {
                // It is being exported.
                return (guid, state, None);
            };
            state.dedup = now.dedup;
            let span = state.before.as_ref().map(|before| pool_span(before, &now));
            state.before = Some(now);
            (guid, state, span)
        }
        Err(_) => {
            state.asked = Some(asked);
            let span = PoolSpan {
                name,
                unanswered: 1,
                ..PoolSpan::default()
            };
            (guid, state, Some(span))
        }
    }
}

async fn observe(pool: PoolHandle, dedup: bool, asks_dedup: bool) -> Option<Observation> {
    let status = pool.status().await.ok()?;
    let seen = pool.statistics().await.ok()?;
    let dedup = match asks_dedup {
        true => is_deduplicated(&pool).await,
        false => dedup,
    };
    Some(Observation {
        status,
        seen,
        dedup,
    })
}

/// Whether the pool's data has been found to be there already, as its ratio says.
async fn is_deduplicated(pool: &PoolHandle) -> bool {
    let Ok(entries) = pool.properties().await else {
        return false;
    };
    let ratio = entries.iter().find(|entry| entry.name == "dedupratio");
    ratio.is_some_and(|entry| match &entry.value {
        // In hundredths.
        engine::pool_property::PropertyValue::Number(ratio) => *ratio > 100,
        _ => false,
    })
}

/// What the network interfaces of this machine carry.
#[derive(Default)]
struct Network {
    /// Bytes received and sent, by interface.
    before: BTreeMap<String, [u64; 2]>,
}

impl Network {
    /// Returns bytes a second over the interface that is closest to its limit, in its busier direction, and that limit; 0 where it is not
    /// known.
    fn since(&mut self, seconds: f64) -> (u64, u64) {
        let text = std::fs::read_to_string("/proc/net/dev").unwrap_or_default();
        let now = counters(&text);
        let mut busiest = (0, 0);
        for (name, counts) in &now {
            let Some(before) = self.before.get(name) else {
                continue;
            };
            let pairs = counts.iter().zip(before);
            let most = pairs.map(|(now, before)| now.saturating_sub(*before)).max();
            #[allow(
                clippy::cast_precision_loss,
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "a rate"
            )]
            let rate = (most.unwrap_or(0) as f64 / seconds) as u64;
            let limit = limit(name);
            let share = |(rate, limit): (u64, u64)| (rate * 1000).checked_div(limit).unwrap_or(0);
            if share((rate, limit)) > share(busiest) || busiest.1 == 0 && rate > busiest.0 {
                busiest = (rate, limit);
            }
        }
        self.before = now;
        busiest
    }
}

/// Reads the counters of /proc/net/dev: bytes received and sent of each interface but loopback.
fn counters(text: &str) -> BTreeMap<String, [u64; 2]> {
    let line = |line: &str| {
        let (name, numbers) = line.split_once(':')?;
        let name = name.trim();
        let numbers: Vec<u64> = numbers
            .split_whitespace()
            .filter_map(|number| number.parse().ok())
            .collect();
        (name != "lo").then_some(())?;
        Some((name.to_owned(), [*numbers.first()?, *numbers.get(8)?]))
    };
    text.lines().filter_map(line).collect()
}

/// Bytes a second that an interface carries; 0 where the kernel does not say.
fn limit(name: &str) -> u64 {
    let text = std::fs::read_to_string(format!("/sys/class/net/{name}/speed"));
    let megabits = text.ok().and_then(|text| text.trim().parse::<u64>().ok());
    megabits.map_or(0, |megabits| megabits.saturating_mul(125_000))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interfaces_are_read_as_the_kernel_writes_them() {
        let text = "Inter-|   Receive                                                |  Transmit\n \
                    face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed\n    \
                    lo:  100 1 0 0 0 0 0 0  100 1 0 0 0 0 0 0\n  \
                    eth0: 5000 10 0 0 0 0 0 0 700 3 0 0 0 0 0 0\n";
        let read = counters(text);
        assert_eq!(read.len(), 1);
        assert_eq!(read["eth0"], [5000, 700]);
    }
}
