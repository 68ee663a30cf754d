//! Runs the checks whose findings become alerts: each at its interval, with a bound on its time.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use engine::{PoolHandle, PoolStatus};
use futures_util::future::join_all;
use manage::alerts::{CheckView, Condition, rules};
use manage::api::Api;
use manage::database::seconds_since_epoch;
use manage::history::Cause;
use manage::jobs::JobState;
use manage::silence;
use tokio::time::{Instant, timeout};

use crate::appliance::Appliance;

/// How long a pool may take to be opened: at a start, and while it is imported.
const OPENING_TIMEOUT: Duration = Duration::from_secs(15);
/// How long a pool may take to tell of itself.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// Between two looks whether a check is due.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Seconds of the history from which a forecast is made.
const FORECAST_FROM_SECONDS: u64 = 7 * 86_400;
/// Seconds in which a disk has to be slow.
const SLOW_SECONDS: u64 = 120;
/// Seconds for which a job that failed is told of.
const JOB_SECONDS: u64 = 3600;

/// A check: name, what it looks at, seconds between two runs.
const CHECKS: &[(&str, &str, u64)] = &[
    (
        "pools",
        "pools that are not open, hang, or have disks that are gone or make errors",
        5,
    ),
    ("capacity", "how full pools are, and when they will be", 60),
    ("scrub", "when pools were scrubbed last", 3600),
    (
        "slow disks",
        "disks that take much longer than those beside them",
        60,
    ),
    ("jobs", "commands given over the API that failed", 10),
    (
        "replication",
        "jobs of replication that are not complete",
        10,
    ),
    ("certificate", "the end of the console's certificate", 3600),
    ("clock", "a clock that went back", 60),
    ("memory", "the memory that the process takes", 10),
    (
        "state directory",
        "whether the state directory can be written",
        30,
    ),
];

/// What the checks keep between their runs.
struct Checker {
    appliance: Weak<Appliance>,
    api: Arc<Api>,
    /// Since when a pool is not open.
    closed: BTreeMap<String, Instant>,
    /// Since when a pool has not answered.
    silent: BTreeMap<String, Instant>,
    /// The end of the console's certificate, seconds since 1970.
    certificate: Option<u64>,
    /// The latest time that was seen, seconds since 1970, and when.
    known: (u64, Instant),
    began: u64,
}

/// Runs the checks for as long as the appliance is there.
pub(crate) async fn watch(appliance: Weak<Appliance>, api: Arc<Api>) {
    let now = seconds_since_epoch();
    let mut checker = Checker {
        certificate: appliance
            .upgrade()
            .and_then(|appliance| certificate_end(&appliance)),
        appliance,
        api,
        closed: BTreeMap::new(),
        silent: BTreeMap::new(),
        known: (now, Instant::now()),
        began: now,
    };
    let mut due: Vec<Instant> = CHECKS.iter().map(|_| Instant::now()).collect();
    loop {
        for (index, (name, about, interval)) in CHECKS.iter().enumerate() {
            if Instant::now() < due[index] {
                continue;
            }
            due[index] = Instant::now() + Duration::from_secs(*interval);
            let Some(appliance) = checker.appliance.upgrade() else {
                return;
            };
            let began = Instant::now();
            let result = checker.run(&appliance, name).await;
            let now = seconds_since_epoch();
            let (found, error) = match result {
                Ok(found) => (found, None),
                Err(why) => (Vec::new(), Some(why)),
            };
            let view = CheckView {
                name: (*name).to_owned(),
                about: (*about).to_owned(),
                interval: *interval,
                ran: Some(now),
                took_ms: u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX),
                found: found.len() as u64,
                error,
            };
            checker.api.alerts.checked(view, found, now);
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

impl Checker {
    async fn run(&mut self, appliance: &Appliance, name: &str) -> Result<Vec<Condition>, String> {
        let now = seconds_since_epoch();
        let history = &self.api.history;
        Ok(match name {
            "pools" => self.pools(appliance).await,
            "capacity" => self.capacity(now),
            "scrub" => {
                let pools = appliance.open_pools();
                let asked = join_all(pools.iter().map(created)).await;
                let found = asked.into_iter().flatten();
                found
                    .filter_map(|(status, created)| rules::scrub(&status, created, now))
                    .collect()
            }
            "slow disks" => {
                let explained = history.explain(now.saturating_sub(SLOW_SECONDS), now, None, None);
                let slow = explained.findings.iter();
                let slow = slow.filter(|finding| finding.cause == Cause::SlowDisk);
                slow.map(|finding| rules::slow_disk(&finding.subject, &finding.sentence))
                    .collect()
            }
            "jobs" => self.jobs(now),
            "replication" => replication_problems(appliance, now),
            "certificate" => {
                let end = self.certificate;
                end.and_then(|end| rules::certificate(end, now))
                    .into_iter()
                    .collect()
            }
            "clock" => {
                let (known, at) = self.known;
                let expected = known + at.elapsed().as_secs();
                let found = rules::clock(now, expected);
                if found.is_none() {
                    self.known = (now, Instant::now());
                }
                found.into_iter().collect()
            }
            "memory" => {
                let taken = crate::memory::process_bytes().ok_or("the kernel does not say")?;
                let found = rules::memory(taken, appliance.memory_plan().ceiling);
                found.into_iter().collect()
            }
            _ => {
                let written = self.api.accounts.database().call(|sql| {
                    sql.execute_batch(
                        "BEGIN IMMEDIATE; CREATE TABLE probe (x); DROP TABLE probe; COMMIT;",
                    )
                });
                let why = match written.await {
                    Ok(()) => history.unsaved(),
                    Err(error) => Some(error.to_string()),
                };
                why.map(|why| rules::state_disk(&why)).into_iter().collect()
            }
        })
    }

    fn capacity(&self, now: u64) -> Vec<Condition> {
        let history = &self.api.history;
        let recent = history.sum(now.saturating_sub(60), now);
        let then = now.saturating_sub(FORECAST_FROM_SECONDS);
        let first = history.range(then, now, 1000).into_iter().next();
        let earlier = |name: &str| {
            let first = first.as_ref().filter(|first| first.time + 86_400 < now)?;
            let pool = first.span.pools.iter().find(|pool| pool.name == name)?;
            Some((pool, now - first.time))
        };
        let of = |pool| rules::capacity(pool, earlier(&pool.name));
        recent.pools.iter().filter_map(of).collect()
    }

    fn jobs(&self, now: u64) -> Vec<Condition> {
        let jobs = self.api.jobs.list(None, "", 100).into_iter();
        let failed = jobs.filter(|job| {
            let ended = job.ended.unwrap_or(job.started);
            // What failed in a shell was seen there.
            job.origin != "shell"
                // What a run of replication met is its own check's.
                && job.origin != super::replication::ORIGIN
                && job.started >= self.began
                && ended + JOB_SECONDS > now
                && matches!(job.state, JobState::Failed | JobState::Interrupted)
        });
        failed
            .map(|job| rules::failed_job(job.id, &job.command, job.state.as_str()))
            .collect()
    }

    async fn pools(&mut self, appliance: &Appliance) -> Vec<Condition> {
        let pools = appliance.open_pools();
        let mut closed = appliance.remembered_pools();
        closed.retain(|name| pools.iter().all(|pool| pool.name() != name));
        self.closed.retain(|name, _| closed.contains(name));
        let mut found = Vec::new();
        for name in closed {
            let since = *self.closed.entry(name.clone()).or_insert_with(Instant::now);
            if since.elapsed() >= OPENING_TIMEOUT {
                found.push(rules::closed_pool(&name));
            }
        }
        let asked = pools.iter().map(|pool| async {
            let status = timeout(ANSWER_TIMEOUT, pool.status()).await;
            let silent = match &status {
                Ok(Ok(status)) => silent_for(pool, status).await,
                _ => Vec::new(),
            };
            (pool.name().to_owned(), status, silent)
        });
        for (name, status, silent) in join_all(asked).await {
            match status {
                Ok(Ok(status)) => {
                    self.silent.remove(&name);
                    found.extend(rules::devices(&status));
                    if !silent.is_empty() {
                        found.push(rules::silent_disks(&name, &silent));
                    }
                }
                // It is being exported.
                Ok(Err(_)) => {
                    self.silent.remove(&name);
                }
                Err(_) => {
                    let since = *self.silent.entry(name.clone()).or_insert_with(Instant::now);
                    let seconds = (since.elapsed() + ANSWER_TIMEOUT).as_secs();
                    found.push(rules::hung_pool(&name, seconds));
                }
            }
        }
        found
    }
}

fn replication_problems(appliance: &Appliance, now: u64) -> Vec<Condition> {
    let problems = appliance.replications().problems().into_iter();
    problems
        .filter_map(|(job, error, since)| {
            let since = u64::try_from(since.as_second()).unwrap_or(0);
            rules::replication(&job, &error, now.saturating_sub(since))
        })
        .collect()
}

/// A pool's state, and when it was made, in seconds since 1970.
async fn created(pool: &PoolHandle) -> Option<(PoolStatus, u64)> {
    let asked = async {
        let status = pool.status().await.ok()?;
        let query = engine::PropertyQuery::Named(vec!["creation".to_owned()]);
        let info = pool.dataset(pool.name(), &query).await.ok()?;
        let created = match info.property("creation").map(|property| &property.value) {
            Some(engine::property::Value::Number(seconds)) => *seconds,
            _ => 0,
        };
        Some((status, created))
    };
    timeout(ANSWER_TIMEOUT, asked).await.ok().flatten()
}

/// Returns the disks of a pool that complete nothing of what they were asked for a while.
async fn silent_for(pool: &PoolHandle, before: &PoolStatus) -> Vec<String> {
    if !silence::is_any_asked(before) {
        return Vec::new();
    }
    tokio::time::sleep(ANSWER_TIMEOUT).await;
    match timeout(ANSWER_TIMEOUT, pool.status()).await {
        Ok(Ok(after)) => silence::silent_disks(before, &after),
        _ => Vec::new(),
    }
}

/// The end of the console's certificate, in seconds since 1970.
fn certificate_end(appliance: &Appliance) -> Option<u64> {
    use rustls::pki_types::pem::PemObject as _;
    let pem = std::fs::read(appliance.state().path().join("console-cert.pem")).ok()?;
    let der = rustls::pki_types::CertificateDer::from_pem_slice(&pem).ok()?;
    manage::certificate::end_of_validity(&der)
}
