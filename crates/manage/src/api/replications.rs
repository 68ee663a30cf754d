//! Calls about jobs of replication. What is shown is what the appliance knows without asking either side; what is changed is a command, as
//! in a shell, and becomes a job.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::Response;
use axum::{Extension, Json};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::commands::{give, query};
use super::datasets::{current_etag, pool_of};
use super::{Api, Body, Peer, Problem, Shared, versions};
use crate::accounts::SessionUser;
use crate::jobs::JobView;
use crate::replication::{
    Job, JobState, PastRun, Progress, RecoveryPoint, Replications, RestoreProgress, RestoreReport,
};

/// Entries of each list about a job's datasets.
const LISTED_MAX: usize = 1000;
/// Reports of tests of restores that are shown.
const REPORTS_SHOWN: usize = 10;
/// How long the file of the jobs may take to be read: the state directory may be on a disk that hangs.
const READ_TIMEOUT: Duration = Duration::from_millis(700);

/// What can be done with a job, by the words of paths: the words of `sanbox replication`.
const ACTIONS: &[(&str, &[&str])] = &[
    ("run", &["run"]),
    ("cancel", &["cancel"]),
    ("pause", &["pause"]),
    ("resume", &["resume"]),
    ("reset", &["reset"]),
    ("adopt", &["adopt"]),
    ("failover", &["failover"]),
    ("failback", &["failback"]),
    ("test", &["test"]),
    ("end-test", &["test", "--end"]),
    ("test-restore", &["test-restore"]),
];
/// Those that take `rollback`.
const WITH_ROLLBACK: &[&str] = &["adopt", "failback"];
/// Those that take `preview`.
const WITH_PREVIEW: &[&str] = &[
    "run",
    "adopt",
    "failover",
    "failback",
    "test",
    "end-test",
    "test-restore",
];

/// The settings of a job. An empty text is the default.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ReplicationSettings {
    /// Letters, digits, `-`, `_` and `.`; at most 40.
    name: String,
    /// The source's dataset, behind `HOST:` where it is another host's.
    from: String,
    /// The target's dataset, likewise.
    to: String,
    /// The command that is run in place of `ssh`.
    #[serde(default)]
    ssh: String,
    /// Datasets below go along.
    #[serde(default)]
    recursive: bool,
    /// Datasets of the source that are left out, with those below; `*` stands for any text.
    #[serde(default)]
    exclude: Vec<String>,
    /// Names of snapshots that are sent, `*` for any text; none: all.
    #[serde(default)]
    select: Vec<String>,
    /// Only the newest snapshot is sent.
    #[serde(default)]
    newest_only: bool,
    /// The job takes snapshots of its own.
    #[serde(default)]
    take: bool,
    /// What is written is sent within seconds.
    #[serde(default)]
    continuous: bool,
    /// How often is looked for something to send: `30s`, `5m`, `1h`, `1d` (`5m`).
    #[serde(default)]
    every: String,
    /// Blocks go as they are stored, encrypted ones without their key.
    #[serde(default)]
    raw: bool,
    /// Properties stay at the source.
    #[serde(default)]
    without_properties: bool,
    /// Properties of the target's new datasets: `NAME=VALUE`.
    #[serde(default)]
    set: Vec<String>,
    /// Properties that come along and are not put in force.
    #[serde(default)]
    not_in_force: Vec<String>,
    /// Bytes a second at most, such as `20M`.
    #[serde(default)]
    bandwidth: String,
    /// How streams from or to a peer are compressed: `off`, `auto`, or `zstd-1` to `zstd-19` (`auto`).
    #[serde(default)]
    compress: String,
    /// Hours of the day in which is sent, such as `22:00-06:00`.
    #[serde(default)]
    window: String,
    /// What the target keeps, such as `daily=30 monthly=12` (everything).
    #[serde(default)]
    keep: String,
    /// When the restore of the copy is tested, such as `weekly weekday=sun at=03:00` (never).
    #[serde(default)]
    test_schedule: String,
}

impl From<&Job> for ReplicationSettings {
    fn from(job: &Job) -> Self {
        let job = job.clone();
        Self {
            name: job.name,
            from: job.from,
            to: job.to,
            ssh: job.ssh,
            recursive: job.recursive,
            exclude: job.exclude,
            select: job.select,
            newest_only: job.newest_only,
            take: job.take,
            continuous: job.continuous,
            every: job.every,
            raw: job.raw,
            without_properties: job.without_properties,
            set: job.set,
            not_in_force: job.not_in_force,
            bandwidth: job.bandwidth,
            compress: job.compress,
            window: job.window,
            keep: job.keep,
            test_schedule: job.test_schedule,
        }
    }
}

impl ReplicationSettings {
    /// The job with these settings, as far as they mean something.
    fn job(self) -> Result<Job, Problem> {
        let job = Job {
            name: self.name,
            from: self.from,
            to: self.to,
            ssh: self.ssh,
            recursive: self.recursive,
            exclude: self.exclude,
            select: self.select,
            newest_only: self.newest_only,
            take: self.take,
            continuous: self.continuous,
            every: self.every,
            raw: self.raw,
            without_properties: self.without_properties,
            set: self.set,
            not_in_force: self.not_in_force,
            bandwidth: self.bandwidth,
            compress: self.compress,
            window: self.window,
            keep: self.keep,
            test_schedule: self.test_schedule,
            failed_over: false,
            paused: false,
            reversed: false,
        };
        let refuse = |why: String| Problem::new(StatusCode::UNPROCESSABLE_ENTITY, why);
        job.check().map_err(|error| refuse(error.to_string()))?;
        if job.name.starts_with('-') {
            // In a command it would be an option.
            return Err(refuse("a name cannot begin with '-'".to_owned()));
        }
        Ok(job)
    }
}

/// What a job does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub(super) enum ReplicationState {
    /// A run is under way.
    Running,
    /// Nothing is done until it is resumed.
    Paused,
    /// The target is in use in place of the source.
    FailedOver,
    /// It did not run yet since the appliance started.
    Waiting,
    /// The target has what the last run found at the source.
    Complete,
    /// It does not: see `problem`.
    Incomplete,
}

/// A run under way.
#[derive(Serialize, ToSchema)]
pub(super) struct RunningView {
    /// The snapshot that is being sent; empty before the first.
    snapshot: String,
    sent_bytes: u64,
    /// How many there will be, as far as that was estimated.
    total_bytes: Option<u64>,
    /// Bytes a second now.
    rate: u64,
    /// Seconds left at this rate.
    remaining: Option<u64>,
}

impl From<&Arc<Progress>> for RunningView {
    fn from(progress: &Arc<Progress>) -> Self {
        Self {
            snapshot: progress.current(),
            sent_bytes: progress.done_bytes(),
            total_bytes: progress.total_bytes(),
            rate: progress.rate(),
            remaining: progress.remaining().map(|left| left.as_secs()),
        }
    }
}

/// How far a target was behind before the last runs that sent something, in seconds.
#[derive(Serialize, ToSchema)]
pub(super) struct RecoveryPointView {
    /// Runs that it is made of.
    runs: u64,
    median: f64,
    p99: f64,
    max: f64,
}

impl From<RecoveryPoint> for RecoveryPointView {
    fn from(point: RecoveryPoint) -> Self {
        Self {
            runs: point.runs as u64,
            median: point.median.as_secs_f64(),
            p99: point.p99.as_secs_f64(),
            max: point.max.as_secs_f64(),
        }
    }
}

/// A job of replication.
#[derive(Serialize, ToSchema)]
pub(super) struct ReplicationView {
    #[serde(flatten)]
    settings: ReplicationSettings,
    state: ReplicationState,
    paused: bool,
    failed_over: bool,
    running: Option<RunningView>,
    /// When the last run ended, seconds since 1970.
    last_run: Option<i64>,
    /// Up to when the target has all that was written at the source, as far as the last look could tell, seconds since 1970.
    as_of: Option<i64>,
    /// Seconds that the target is behind: since `as_of`.
    lag: Option<i64>,
    /// Of a continuous job: how far the target was behind at most before each of its last runs.
    recovery_point: Option<RecoveryPointView>,
    /// Seconds until the next run; none while none is planned.
    next_in: Option<u64>,
    /// Why the last run was not complete, in a word.
    cause: Option<&'static str>,
    /// Why, in a sentence.
    problem: Option<String>,
    /// Since when no run was complete, seconds since 1970.
    failing_since: Option<i64>,
    /// Failures in a row.
    failures: u32,
}

/// The jobs of replication.
#[derive(Serialize, ToSchema)]
pub(super) struct ReplicationList {
    replications: Vec<ReplicationView>,
}

/// Runs that sent something, or met the same cause in a row.
#[derive(Serialize, ToSchema)]
pub(super) struct ReplicationRun {
    /// When the first of them began, seconds since 1970.
    began: i64,
    /// When the last of them ended.
    ended: i64,
    /// How many.
    runs: u32,
    /// Snapshots that were sent.
    snapshots: u64,
    /// Bytes of streams that were sent.
    sent_bytes: u64,
    /// Why they were not complete, in a word.
    cause: Option<String>,
    /// Why, in a sentence.
    problem: Option<String>,
}

impl From<&PastRun> for ReplicationRun {
    fn from(run: &PastRun) -> Self {
        Self {
            began: run.began.as_second(),
            ended: run.ended.as_second(),
            runs: run.runs,
            snapshots: run.snapshots as u64,
            sent_bytes: run.bytes,
            cause: run.problem.as_ref().map(|(cause, _)| cause.clone()),
            problem: run.problem.as_ref().map(|(_, why)| why.clone()),
        }
    }
}

/// The newest snapshot of a dataset that both sides have.
#[derive(Serialize, ToSchema)]
pub(super) struct CommonSnapshot {
    /// The dataset at the source.
    dataset: String,
    /// The snapshot at the target.
    snapshot: String,
    /// When it was taken, seconds since 1970.
    creation: Option<i64>,
}

/// A dataset that the last run left out.
#[derive(Serialize, ToSchema)]
pub(super) struct LeftOut {
    dataset: String,
    /// Why, and what to do.
    problem: String,
}

/// A job of replication with what is known of its datasets and of its runs.
#[derive(Serialize, ToSchema)]
pub(super) struct ReplicationDetail {
    #[serde(flatten)]
    view: ReplicationView,
    /// Runs that sent something or were not complete, the newest first; at most 100.
    history: Vec<ReplicationRun>,
    /// How many datasets have a snapshot in common.
    in_common: u64,
    /// The newest of each, by the last run; at most 1000.
    common: Vec<CommonSnapshot>,
    /// Datasets that the last run left out; at most 1000.
    left_out: Vec<LeftOut>,
    /// Datasets of the source that have nothing to be sent; at most 1000.
    without_snapshots: Vec<String>,
    /// Datasets of the target whose source is gone; at most 1000.
    sources_gone: Vec<String>,
    /// The test of a restore that is under way.
    testing: Option<TestingView>,
    /// When the next test of a restore is due, seconds since 1970; none while none is planned.
    next_test: Option<i64>,
    /// What the last tests of a restore found, the newest first; at most 10.
    tests: Vec<RestoreReport>,
}

/// A test of a restore that is under way.
#[derive(Serialize, ToSchema)]
pub(super) struct TestingView {
    /// The snapshot that is being read; empty before the first.
    snapshot: String,
    /// Files, directories and other objects that were read.
    files: u64,
    read_bytes: u64,
}

impl From<&RestoreProgress> for TestingView {
    fn from(progress: &RestoreProgress) -> Self {
        Self {
            snapshot: progress.snapshot(),
            files: progress.files(),
            read_bytes: progress.bytes(),
        }
    }
}

/// How something is done.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ActionQuery {
    /// `adopt`, `failback`: gives up what is newer at the other side than the newest snapshot in common (false).
    rollback: Option<bool>,
    /// `run`, `adopt`, `failover`, `failback`, `test`, `end-test`, `test-restore`: the job only says what would be done (false).
    preview: Option<bool>,
}

/// How a copy is put in use.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct TakeoverQuery {
    /// The job only says what would be done (false).
    preview: Option<bool>,
}

fn state_of(job: &Job, state: &JobState) -> ReplicationState {
    if state.running.is_some() {
        return ReplicationState::Running;
    }
    if job.failed_over {
        return ReplicationState::FailedOver;
    }
    if job.paused {
        return ReplicationState::Paused;
    }
    match state.ended.as_ref().map(|ended| ended.problem()) {
        None => ReplicationState::Waiting,
        Some(None) => ReplicationState::Complete,
        Some(Some(_)) => ReplicationState::Incomplete,
    }
}

fn view(job: &Job, state: &JobState, now: Timestamp) -> ReplicationView {
    let problem = state.ended.as_ref().and_then(|ended| ended.problem());
    let is_planned = !job.paused && !job.failed_over && state.running.is_none();
    let as_of = state.as_of.map(Timestamp::as_second);
    ReplicationView {
        settings: job.into(),
        state: state_of(job, state),
        paused: job.paused,
        failed_over: job.failed_over,
        running: state.running.as_ref().map(RunningView::from),
        last_run: state.ended.as_ref().map(|ended| ended.at.as_second()),
        as_of,
        // A clock that was set back makes no copy of the future.
        lag: as_of.map(|as_of| now.as_second().saturating_sub(as_of).max(0)),
        recovery_point: state.recovery_point.map(RecoveryPointView::from),
        next_in: is_planned.then(|| state.next_in.map_or(0, |left| left.as_secs())),
        cause: problem.map(|(_, error)| error.cause()),
        problem: problem.map(|(_, error)| error.to_string()),
        failing_since: state.failing_since.map(Timestamp::as_second),
        failures: state.failures,
    }
}

/// Reads the jobs.
async fn jobs(replications: &Arc<Replications>) -> Result<Vec<Job>, Problem> {
    let unavailable = |why: String| Problem::new(StatusCode::SERVICE_UNAVAILABLE, why);
    let replications = replications.clone();
    let read = tokio::task::spawn_blocking(move || replications.jobs());
    match tokio::time::timeout(READ_TIMEOUT, read).await {
        Ok(Ok(Ok(jobs))) => Ok(jobs.replication),
        Ok(Ok(Err(error))) => Err(unavailable(error.to_string())),
        Ok(Err(error)) => Err(unavailable(error.to_string())),
        Err(_) => Err(unavailable(
            "the state directory does not answer: its disk may hang".to_owned(),
        )),
    }
}

async fn job(api: &Api, name: Result<Path<String>, PathRejection>) -> Result<Job, Problem> {
    let name = name
        .map_err(|error| Problem::bad_request(error.body_text()))?
        .0;
    find(api, &name).await
}

async fn find(api: &Api, name: &str) -> Result<Job, Problem> {
    let jobs = jobs(&api.backend.replications()).await?;
    let found = jobs.into_iter().find(|job| job.name == name);
    found.ok_or_else(|| Problem::not_found(format!("there is no job '{name}' of replication")))
}

/// Lists the jobs of replication, in the order in which they were made.
#[utoipa::path(get, path = "/api/v1/replications", responses((status = 200, body = ReplicationList), (status = 503, body = Problem)))]
pub(super) async fn list_replications(
    State(api): Shared,
) -> Result<Json<ReplicationList>, Problem> {
    let replications = api.backend.replications();
    let now = Timestamp::now();
    let all = jobs(&replications).await?;
    let view = |job: &Job| view(job, &replications.state_of(&job.name), now);
    Ok(Json(ReplicationList {
        replications: all.iter().map(view).collect(),
    }))
}

/// Says what is known of a job of replication.
#[utoipa::path(get, path = "/api/v1/replications/{name}", params(("name" = String, Path)),
    responses((status = 200, body = ReplicationDetail), (status = 404, body = Problem), (status = 503, body = Problem)))]
pub(super) async fn show_replication(
    State(api): Shared,
    name: Result<Path<String>, PathRejection>,
) -> Result<Json<ReplicationDetail>, Problem> {
    let job = job(&api, name).await?;
    let replications = api.backend.replications();
    let (state, now) = (replications.state_of(&job.name), Timestamp::now());
    let tests = replications.restore_tests();
    let shown = tests.reports(&job.name).into_iter().take(REPORTS_SHOWN);
    let report = state.ended.as_ref();
    let report = report.and_then(|ended| ended.result.as_ref().ok());
    let first = |names: &[String]| names.iter().take(LISTED_MAX).cloned().collect();
    Ok(Json(ReplicationDetail {
        view: view(&job, &state, now),
        history: state.past.iter().rev().map(ReplicationRun::from).collect(),
        in_common: state.common.len() as u64,
        common: state
            .common
            .iter()
            .take(LISTED_MAX)
            .map(|common| CommonSnapshot {
                dataset: common.source.clone(),
                snapshot: common.snapshot.clone(),
                creation: common.creation,
            })
            .collect(),
        left_out: report.map_or_else(Vec::new, |report| {
            let left_out = |(dataset, error): &(String, _)| LeftOut {
                dataset: dataset.clone(),
                problem: ToString::to_string(error),
            };
            let problems = report.problems.iter().take(LISTED_MAX);
            problems.map(left_out).collect()
        }),
        without_snapshots: report.map_or_else(Vec::new, |report| first(&report.without_snapshots)),
        sources_gone: report.map_or_else(Vec::new, |report| first(&report.left)),
        testing: tests.running(&job.name).map(|running| (&*running).into()),
        next_test: tests.next(&job, now).map(Timestamp::as_second),
        tests: shown.map(|report| (*report).clone()).collect(),
    }))
}

/// Makes a job of replication: `sanbox replication create`.
#[utoipa::path(post, path = "/api/v1/replications", request_body = ReplicationSettings,
    responses((status = 202, body = JobView), (status = 403, body = Problem), (status = 409, body = Problem), (status = 422, body = Problem)))]
pub(super) async fn create_replication(
    State(api): Shared,
    Extension(Peer(peer)): Extension<Peer>,
    Extension(user): Extension<SessionUser>,
    Body(settings): Body<ReplicationSettings>,
) -> Result<Response, Problem> {
    let job = settings.job()?;
    let all = jobs(&api.backend.replications()).await?;
    if all.iter().any(|known| known.name == job.name) {
        let detail = format!("there is a job '{}' already", job.name);
        return Err(Problem::new(StatusCode::CONFLICT, detail));
    }
    sanbox(&api, peer, user, job.words_of_create())
}

/// Gives a job of replication these settings: `sanbox replication change` of those that differ. Name, source and target stay.
#[utoipa::path(put, path = "/api/v1/replications/{name}", params(("name" = String, Path)), request_body = ReplicationSettings,
    responses((status = 202, body = JobView), (status = 403, body = Problem), (status = 404, body = Problem), (status = 409, body = Problem),
        (status = 422, body = Problem)))]
pub(super) async fn change_replication(
    State(api): Shared,
    Extension(Peer(peer)): Extension<Peer>,
    Extension(user): Extension<SessionUser>,
    name: Result<Path<String>, PathRejection>,
    Body(settings): Body<ReplicationSettings>,
) -> Result<Response, Problem> {
    let before = job(&api, name).await?;
    let wanted = settings.job()?;
    if (&wanted.name, &wanted.from, &wanted.to) != (&before.name, &before.from, &before.to) {
        let detail =
            "name, source and target of a job stay: another source or target is another job";
        return Err(Problem::new(StatusCode::UNPROCESSABLE_ENTITY, detail));
    }
    let Some(words) = wanted.words_of_change(&before) else {
        let detail = "the job has these settings already";
        return Err(Problem::new(StatusCode::CONFLICT, detail));
    };
    sanbox(&api, peer, user, words)
}

/// Forgets a job of replication: `sanbox replication remove`. Its holds, its bookmarks and the snapshots that it took at the source are given up.
#[utoipa::path(delete, path = "/api/v1/replications/{name}", params(("name" = String, Path)),
    responses((status = 202, body = JobView), (status = 403, body = Problem), (status = 404, body = Problem)))]
pub(super) async fn remove_replication(
    State(api): Shared,
    Extension(Peer(peer)): Extension<Peer>,
    Extension(user): Extension<SessionUser>,
    name: Result<Path<String>, PathRejection>,
) -> Result<Response, Problem> {
    let job = job(&api, name).await?;
    sanbox(&api, peer, user, words(&["remove"], &job.name))
}

/// Does something with a job of replication: `run`, `cancel`, `pause`, `resume`, `reset`, `adopt`, `failover`, `failback`, `test`,
/// `end-test` or `test-restore`. Operators may run, cancel, pause, resume, reset and test; owners do the rest.
#[utoipa::path(post, path = "/api/v1/replications/{name}/{action}", params(("name" = String, Path), ("action" = String, Path), ActionQuery),
    responses((status = 202, body = JobView), (status = 400, body = Problem), (status = 403, body = Problem), (status = 404, body = Problem),
        (status = 422, body = Problem)))]
pub(super) async fn act_on_replication(
    State(api): Shared,
    Extension(Peer(peer)): Extension<Peer>,
    Extension(user): Extension<SessionUser>,
    path: Result<Path<(String, String)>, PathRejection>,
    how: Result<Query<ActionQuery>, QueryRejection>,
) -> Result<Response, Problem> {
    let Path((name, action)) = path.map_err(|error| Problem::bad_request(error.body_text()))?;
    let how = query(how)?;
    let known = ACTIONS.iter().find(|(known, _)| *known == action);
    let Some((_, given)) = known else {
        let detail = format!("'{action}' is nothing that can be done with a job of replication");
        return Err(Problem::not_found(detail));
    };
    let job = find(&api, &name).await?;
    let mut words = words(given, &job.name);
    if how.rollback.unwrap_or(false) {
        if !WITH_ROLLBACK.contains(&action.as_str()) {
            let detail = format!("`rollback` means nothing for '{action}'");
            return Err(Problem::new(StatusCode::UNPROCESSABLE_ENTITY, detail));
        }
        words.push("--rollback".to_owned());
    }
    if how.preview.unwrap_or(false) {
        if !WITH_PREVIEW.contains(&action.as_str()) {
            let detail = format!("`preview` means nothing for '{action}'");
            return Err(Problem::new(StatusCode::UNPROCESSABLE_ENTITY, detail));
        }
        words.push("-n".to_owned());
    }
    sanbox(&api, peer, user, words)
}

/// Puts a copy of this appliance in use where it is, or a source that is fenced in use again: `sanbox replication takeover`. The slashes of
/// the name are written `%2F`.
#[utoipa::path(post, path = "/api/v1/datasets/{name}/takeover", params(("name" = String, Path), TakeoverQuery),
    responses((status = 202, body = JobView), (status = 400, body = Problem), (status = 403, body = Problem), (status = 404, body = Problem),
        (status = 412, body = Problem)))]
pub(super) async fn take_over_dataset(
    State(api): Shared,
    Extension(Peer(peer)): Extension<Peer>,
    Extension(user): Extension<SessionUser>,
    name: Result<Path<String>, PathRejection>,
    how: Result<Query<TakeoverQuery>, QueryRejection>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let Path(name) = name.map_err(|error| Problem::bad_request(error.body_text()))?;
    let how = query(how)?;
    api.pool(pool_of(&name))?;
    if headers.contains_key(header::IF_MATCH) {
        let current = current_etag(&api, &user, &name).await?;
        versions::check(&headers, &current, &format!("'{name}'"))?;
    }
    let mut words = words(&["takeover"], &name);
    if how.preview.unwrap_or(false) {
        words.push("-n".to_owned());
    }
    sanbox(&api, peer, user, words)
}

fn words(given: &[&str], job: &str) -> Vec<String> {
    let mut words = vec![
        "replication".to_owned(),
        given[0].to_owned(),
        job.to_owned(),
    ];
    words.extend(given[1..].iter().map(|word| (*word).to_owned()));
    words
}

fn sanbox(
    api: &Api,
    peer: SocketAddr,
    user: SessionUser,
    words: Vec<String>,
) -> Result<Response, Problem> {
    give(api, peer, user, ("sanbox".to_owned(), words))
}
