//! Runs the checks whose findings become alerts: each at its interval, with a bound on its time.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Weak};
use std::time::Duration;

use engine::{PoolHandle, PoolStatus};
use futures_util::future::join_all;
use manage::acme::AcmeProgress;
use manage::alerts::checks::{CHECKS, Check};
use manage::alerts::{CheckResult, Condition, rules};
use manage::api::Api;
use manage::database::{seconds_since_epoch, set_aside_in};
use manage::history::Cause;
use manage::jobs::JobState;
use manage::policy::{self, DatasetState, NextSnapshot, PolicyOverview};
use manage::silence;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use tokio::time::{Instant, timeout};

use super::management;
use crate::appliance::Appliance;
use crate::paths;

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
const DAY_SECONDS: u64 = 86_400;
/// Seconds for which a job that failed is told of.
const JOB_SECONDS: u64 = 3600;

/// What the checks keep between their runs.
struct Checker {
    appliance: Weak<Appliance>,
    api: Arc<Api>,
    /// Since when a pool is not open.
    closed: BTreeMap<String, Instant>,
    /// Since when a pool has not answered.
    silent: BTreeMap<String, Instant>,
    /// Since when a snapshot of a dataset is due.
    due: BTreeMap<String, Instant>,
    /// The latest time that was seen, seconds since 1970, and when.
    known: (u64, Instant),
    began: u64,
}

/// Runs the checks for as long as the appliance is there.
pub(crate) async fn watch(appliance: Weak<Appliance>, api: Arc<Api>) {
    let now = seconds_since_epoch();
    let mut checker = Checker {
        appliance,
        api,
        closed: BTreeMap::new(),
        silent: BTreeMap::new(),
        due: BTreeMap::new(),
        known: (now, Instant::now()),
        began: now,
    };
    let mut due: Vec<Instant> = CHECKS.iter().map(|_| Instant::now()).collect();
    loop {
        let wanted = checker.api.alerts.take_wanted_checks();
        for (index, check) in CHECKS.iter().enumerate() {
            let on = checker
                .api
                .alerts
                .check(check.name)
                .is_some_and(|view| view.on);
            if !wanted.contains(check.name) && (!on || Instant::now() < due[index]) {
                continue;
            }
            due[index] = Instant::now() + Duration::from_secs(check.interval);
            let Some(appliance) = checker.appliance.upgrade() else {
                return;
            };
            checker.run_and_note(&appliance, check).await;
        }
        let _ = timeout(LOOK_EVERY, checker.api.alerts.check_wanted()).await;
        if checker.appliance.strong_count() == 0 {
            return;
        }
    }
}

impl Checker {
    async fn run_and_note(&mut self, appliance: &Appliance, check: &Check) {
        let began = Instant::now();
        let (found, error) = match self.run(appliance, check.name).await {
            Ok(found) => (found, None),
            Err(why) => (Vec::new(), Some(why)),
        };
        let result = CheckResult {
            took_ms: u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX),
            found: found.len() as u64,
            error,
        };
        let now = seconds_since_epoch();
        self.api.alerts.checked(check.name, result, found, now);
    }

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
            "slow-disks" => {
                let explained = history.explain(now.saturating_sub(SLOW_SECONDS), now, None, None);
                let slow = explained.findings.iter();
                let slow = slow.filter(|finding| finding.cause == Cause::SlowDisk);
                slow.map(|finding| rules::slow_disk(&finding.subject, &finding.sentence))
                    .collect()
            }
            "jobs" => self.jobs(now),
            "schedules" => self.schedules(appliance).await,
            "replication" => replication_problems(appliance)?,
            "replication-lag" => copies_behind(appliance, now)?,
            "certificate" => certificate(appliance, now).await?,
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
            "state-directory" => self.state_directory(appliance).await,
            "state-space" => state_space(appliance).await?,
            "config-backup" => {
                let noted = self
                    .api
                    .accounts
                    .database()
                    .noted_time(management::EXPORTED);
                let last = noted.await.map_err(|error| error.to_string())?;
                rules::config_backup(last, now).into_iter().collect()
            }
            other => return Err(format!("there is no check '{other}'")),
        })
    }

    async fn state_directory(&self, appliance: &Appliance) -> Vec<Condition> {
        let written = self.api.accounts.database().call(|sql| {
            sql.execute_batch("BEGIN IMMEDIATE; CREATE TABLE probe (x); DROP TABLE probe; COMMIT;")
        });
        let why = match written.await {
            Ok(()) => self.api.history.unsaved(),
            Err(error) => Some(error.to_string()),
        };
        let mut found: Vec<Condition> =
            why.map(|why| rules::state_disk(&why)).into_iter().collect();
        let path = appliance.state().path().to_owned();
        let asked = path.clone();
        let aside = paths::call_within(ANSWER_TIMEOUT, &path, move || set_aside_in(&asked));
        // A directory that gives no answer is told of by the check of its room.
        let aside = aside.await.unwrap_or_default();
        found.extend(aside.iter().map(|name| rules::state_set_aside(name)));
        found
    }

    /// Policies whose snapshots are due and stay so. A pool that does not answer is told of by another check.
    async fn schedules(&mut self, appliance: &Appliance) -> Vec<Condition> {
        let pools = appliance.open_pools();
        let asked = pools
            .iter()
            .map(|pool| timeout(ANSWER_TIMEOUT, states(pool)));
        let states: Vec<DatasetState> = join_all(asked)
            .await
            .into_iter()
            .filter_map(|answer| answer.ok().flatten())
            .flatten()
            .collect();
        let now = jiff::Timestamp::now();
        let mut due = BTreeMap::new();
        let mut found = Vec::new();
        for state in &states {
            match PolicyOverview::of(state, now).next {
                NextSnapshot::Now => {
                    let known = self.due.get(&state.name).copied();
                    let since = known.unwrap_or_else(Instant::now);
                    due.insert(state.name.clone(), since);
                    found.extend(rules::schedule(
                        &state.name,
                        since.elapsed().as_secs(),
                        None,
                    ));
                }
                NextSnapshot::Unreadable(why) => {
                    found.extend(rules::schedule(&state.name, 0, Some(&why.to_string())));
                }
                NextSnapshot::NotHere | NextSnapshot::At(_) | NextSnapshot::Never => {}
            }
        }
        self.due = due;
        found
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

fn replication_problems(appliance: &Appliance) -> Result<Vec<Condition>, String> {
    let fenced = appliance.fenced().into_iter();
    let fences = fenced.map(|one| rules::fenced(&one.name, &one.fence.job, one.is_copy));
    let denied = appliance.replications().fences_denied().into_iter();
    let denied = denied.map(|(job, error)| rules::fence_denied(&job, &error));
    let problems = appliance.replications().problems().into_iter();
    let jobs = appliance.replications().jobs();
    let jobs = jobs.map_err(|error| error.to_string())?.replication;
    let tests = appliance.replications().restore_tests();
    let failed = jobs
        .iter()
        .filter_map(|job| rules::restore_test(&job.name, &*tests.last(&job.name)?));
    let found = problems
        .filter_map(|(job, error, failing)| rules::replication(&job, &error, failing.as_secs()))
        .chain(fences)
        .chain(denied)
        .chain(failed);
    Ok(found.collect())
}

/// The datasets of a pool that have a policy.
async fn states(pool: &PoolHandle) -> Option<Vec<DatasetState>> {
    let found = policy::policies(pool, pool.name()).await.ok()?;
    policy::states(pool, &found).await.ok()
}

/// Copies that are older than their jobs should let them become. A job that fails is told of by another check.
fn copies_behind(appliance: &Appliance, now: u64) -> Result<Vec<Condition>, String> {
    let replications = appliance.replications();
    let jobs = replications.jobs().map_err(|error| error.to_string())?;
    let mut found = Vec::new();
    for job in jobs
        .replication
        .iter()
        .filter(|job| !job.paused && !job.failed_over)
    {
        let state = replications.state_of(&job.name);
        let (Some(as_of), None) = (state.as_of, state.failing_since) else {
            continue;
        };
        let window = job.window().map_err(|error| error.to_string())?;
        let within = if window.is_some() { DAY_SECONDS } else { 0 };
        let interval = job.interval().map_err(|error| error.to_string())?;
        let lag = now.saturating_sub(u64::try_from(as_of.as_second()).unwrap_or(0));
        let interval = interval.as_secs().max(within);
        found.extend(rules::replication_lag(&job.name, lag, interval));
    }
    Ok(found)
}

async fn state_space(appliance: &Appliance) -> Result<Vec<Condition>, String> {
    let path = appliance.state().path().to_owned();
    let asked = path.clone();
    let seen = paths::call_within(ANSWER_TIMEOUT, &path, move || rustix::fs::statvfs(&asked));
    let seen = seen.await?.map_err(|error| error.to_string())?;
    let [free, size] =
        [seen.f_bavail, seen.f_blocks].map(|count| count.saturating_mul(seen.f_frsize));
    Ok(rules::state_space(free, size).into_iter().collect())
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

/// What is wrong with the console's certificate, and with the one that an authority is asked for.
async fn certificate(appliance: &Appliance, now: u64) -> Result<Vec<Condition>, String> {
    let directory = appliance.state().path().to_owned();
    let path = directory.join("console-cert.pem");
    let is_on = appliance.acme().settings().borrow().is_on();
    let read = paths::call(&path, move || {
        let failure = AcmeProgress::read(&directory).failure;
        (validity(&directory), failure.filter(|_| is_on))
    });
    let (validity, failure) = read.await?;
    let ending = validity.and_then(|validity| rules::certificate(validity, now));
    let end = validity.map(|(_, end)| end);
    let refused = failure.map(|failure| rules::acme(&failure, end, now));
    Ok(ending.into_iter().chain(refused).collect())
}

/// When the validity of the console's certificate begins and ends, in seconds since 1970.
fn validity(state: &Path) -> Option<(u64, u64)> {
    let pem = std::fs::read(state.join("console-cert.pem")).ok()?;
    let der = CertificateDer::from_pem_slice(&pem).ok()?;
    manage::certificate::validity(&der)
}
