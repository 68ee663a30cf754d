//! Calls about commands and the jobs that they become, and the stream of events.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::sse::{Event, Sse};
use axum::response::{IntoResponse as _, Response};
use axum::{Extension, Json};
use futures_util::stream::{self, Stream};
use serde::{Deserialize, Deserializer, Serialize};
use tokio::sync::OwnedSemaphorePermit;
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;
use utoipa::{IntoParams, ToSchema};
use zeroize::Zeroizing;

use super::live::Sampler;
use super::versions::{self, Subject};
use super::{Api, Body, Delegate, Peer, Problem, Shared, datasets};
use crate::accounts::{Role, SessionUser};
use crate::database::seconds_since_epoch;
use crate::jobs::{GivenWords, JobOrigin, JobOutput, JobState, JobView, Notice};
use crate::secret::SecretHash;
use crate::{commands, control};

/// Entries of a page when none are asked for.
const PAGE: usize = 100;
/// Entries of a page at most.
const PAGE_MAX: usize = 1000;
/// How long a call for output waits for more, in seconds, at most.
const WAIT_SECONDS_MAX: u64 = 10;
/// Time between signs of life on a stream of events; the session is looked at as often.
const HEARTBEAT: Duration = Duration::from_secs(10);

/// A command.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Command {
    /// `zpool`, `zfs` or `sanbox`.
    tool: String,
    /// What follows the tool's name, word by word.
    arguments: Vec<String>,
    /// What the header `If-Match` is about: a dataset, or the path of what else is shown with a tag, such as `/api/v1/targets`.
    about: Option<String>,
    /// What the command reads, of commands that ask for the key of a dataset: a passphrase or a hexadecimal key. It is kept nowhere.
    #[schema(value_type = Option<String>)]
    input: Option<CommandInput>,
}

/// What a command reads. Zeroed when dropped.
struct CommandInput(Zeroizing<Vec<u8>>);

impl<'de> Deserialize<'de> for CommandInput {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        Ok(Self(Zeroizing::new(text.into_bytes())))
    }
}

/// Which part of the list of jobs.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct JobPage {
    /// Only jobs whose command or user contains this.
    filter: Option<String>,
    /// Entries, at most 1000 (100).
    limit: Option<usize>,
    /// Where a page before ended: its `next`.
    cursor: Option<u64>,
}

/// A page of jobs, the newest first.
#[derive(Serialize, ToSchema)]
pub(super) struct JobList {
    jobs: Vec<JobView>,
    /// Where the next page begins; none at the end.
    next: Option<u64>,
}

/// Which part of a job's output.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct OutputQuery {
    /// Where the part begins (0).
    offset: Option<u64>,
    /// Seconds, at most 10 (0), that the call waits while the job runs and there is nothing behind the offset.
    wait: Option<u64>,
}

fn number(id: Result<Path<u64>, PathRejection>) -> Result<u64, Problem> {
    let id = id.map_err(|_| Problem::not_found("there is no such job"))?;
    Ok(id.0)
}

/// Returns what the query of a request asks for.
pub(super) fn query<T>(query: Result<Query<T>, QueryRejection>) -> Result<T, Problem> {
    let query = query.map_err(|error| Problem::bad_request(error.body_text()))?;
    Ok(query.0)
}

fn no_job() -> Problem {
    Problem::not_found("there is no such job")
}

/// Whether a user may see the output of a job, and end it: whose it is, with the user's keys, and owners. A key for some datasets
/// has its own jobs alone.
fn is_theirs(user: &SessionUser, job: &JobView) -> Result<(), Problem> {
    let is_scoped = user.is_for_datasets();
    let of_keys = format!("{} (key ", user.name);
    if user.shown() == job.user
        || !is_scoped
            && (user.role == Role::Owner || user.name == job.user || job.user.starts_with(&of_keys))
    {
        return Ok(());
    }
    let detail = format!("job {} is of '{}'", job.id, job.user);
    Err(Problem::new(StatusCode::FORBIDDEN, detail))
}

/// Gives a command: the same as in a shell. It becomes a job. What a role may do: a viewer looks, an operator changes datasets,
/// snapshots and shares, an owner everything. With `about` and the header `If-Match` it is given only while that is set as it was
/// when it was looked at.
#[utoipa::path(post, path = "/api/v1/commands", request_body = Command,
    responses((status = 202, body = JobView), (status = 403, body = Problem), (status = 412, body = Problem), (status = 422, body = Problem),
        (status = 503, body = Problem)))]
pub(super) async fn give_command(
    State(api): Shared,
    Extension(Peer(peer)): Extension<Peer>,
    Extension(user): Extension<SessionUser>,
    headers: HeaderMap,
    Body(command): Body<Command>,
) -> Result<Response, Problem> {
    if headers.contains_key(header::IF_MATCH) {
        let Some(about) = &command.about else {
            return Err(Problem::bad_request("If-Match needs `about`"));
        };
        let current = match Subject::of_path(about) {
            Some(_) if user.is_for_datasets() => return Err(Problem::beyond_key(about)),
            Some(subject) => subject.tag(&api).await?,
            None => datasets::current_etag(&api, &user, about).await?,
        };
        versions::check(&headers, &current, &format!("'{about}'"))?;
    }
    let words = (command.tool, command.arguments);
    let reads = control::asks_for_keys(&words.0, &words.1)
        || words.0 == "sanbox" && control::asks_password(&words.1);
    if command.input.is_some() && !reads {
        return Err(Problem::bad_request("this command reads nothing"));
    }
    give_with(&api, peer, user, words, command.input)
}

/// Gives the command of a job again. The words of commands are kept while the appliance runs; those with secrets are not.
#[utoipa::path(post, path = "/api/v1/jobs/{id}/retry", params(("id" = u64, Path)),
    responses((status = 202, body = JobView), (status = 403, body = Problem), (status = 404, body = Problem), (status = 409, body = Problem)))]
pub(super) async fn retry_job(
    State(api): Shared,
    Extension(Peer(peer)): Extension<Peer>,
    Extension(user): Extension<SessionUser>,
    id: Result<Path<u64>, PathRejection>,
) -> Result<Response, Problem> {
    let id = number(id)?;
    let job = api.jobs.job(id).ok_or_else(no_job)?;
    is_theirs(&user, &job)?;
    if job.state == JobState::Running {
        return Err(Problem::new(StatusCode::CONFLICT, "the job still runs"));
    }
    let Some(words) = api.jobs.words(id) else {
        let detail = "the words of this command are not kept: give it anew";
        return Err(Problem::new(StatusCode::CONFLICT, detail));
    };
    give(&api, peer, user, words)
}

/// Starts a command that reads nothing for a user, if that role may give it.
pub(super) fn give(
    api: &Api,
    peer: SocketAddr,
    user: SessionUser,
    words: GivenWords,
) -> Result<Response, Problem> {
    give_with(api, peer, user, words, None)
}

/// As [`give`], with what the command reads.
fn give_with(
    api: &Api,
    peer: SocketAddr,
    user: SessionUser,
    (tool, arguments): GivenWords,
    input: Option<CommandInput>,
) -> Result<Response, Problem> {
    let line = commands::line(&tool, &arguments);
    let Some(role) = api.jobs.role_needed(&tool, &arguments) else {
        let detail = format!("'{line}' cannot be given here: use a shell");
        return Err(Problem::new(StatusCode::UNPROCESSABLE_ENTITY, detail));
    };
    let delegate = match user.role < role {
        true => Some(delegate(api, &user, &tool, &arguments).ok_or_else(|| {
            let detail = format!("'{line}' needs the role {}", role.as_str());
            Problem::new(StatusCode::FORBIDDEN, detail)
        })?),
        false => None,
    };
    if user.is_for_datasets()
        && !commands::stays_within(&tool, &arguments, |name| user.reaches(name))
    {
        return Err(Problem::beyond_key(&format!("all that '{line}' does")));
    }
    if arguments.iter().any(|word| word.contains('\0')) {
        return Err(Problem::bad_request("a word holds a zero byte"));
    }
    if !api.jobs.has_room() {
        let detail = "too many commands run: cancel one, or wait for its end";
        return Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, detail));
    }
    let given = JobOrigin {
        user: user.shown(),
        origin: peer.ip().to_canonical().to_string(),
        change: commands::is_change(&tool, &arguments),
        line,
    };
    let is_repeatable = input.is_none() && !commands::takes_secret(&tool, &arguments);
    let words = is_repeatable.then(|| (tool.clone(), arguments.clone()));
    let input = input.map(|CommandInput(input)| input);
    let started = api.backend.start(tool, arguments, input, delegate);
    let started = started
        .map_err(|error| Problem::new(StatusCode::SERVICE_UNAVAILABLE, error.to_string()))?;
    let job = api.jobs.start(given, started);
    if let Some(words) = words {
        api.jobs.keep_words(job.id, words);
    }
    let location = [(header::LOCATION, format!("/api/v1/jobs/{}", job.id))];
    Ok((StatusCode::ACCEPTED, location, Json(job)).into_response())
}

/// Returns as whom a user gives a command whose role the user has not: a member of groups does what was delegated to them. Keys are for their
/// role alone.
fn delegate(api: &Api, user: &SessionUser, tool: &str, arguments: &[String]) -> Option<Delegate> {
    let groups = api.accounts.group_numbers(&user.name);
    let may = user.key.is_none() && !groups.is_empty() && commands::is_delegable(tool, arguments);
    may.then(|| Delegate {
        user: user.name.clone(),
        groups,
    })
}

/// Lists jobs: those that run, those that ran, and changes made by commands in a shell.
#[utoipa::path(get, path = "/api/v1/jobs", params(JobPage), responses((status = 200, body = JobList), (status = 400, body = Problem)))]
pub(super) async fn list_jobs(
    State(api): Shared,
    asked: Result<Query<JobPage>, QueryRejection>,
) -> Result<Json<JobList>, Problem> {
    let asked = query(asked)?;
    let limit = asked.limit.unwrap_or(PAGE);
    if !(1..=PAGE_MAX).contains(&limit) {
        return Err(Problem::bad_request(format!("limit is 1 to {PAGE_MAX}")));
    }
    let filter = asked.filter.unwrap_or_default();
    let jobs = api.jobs.list(asked.cursor, &filter, limit);
    let next = jobs
        .last()
        .map(|job| job.id)
        .filter(|_| jobs.len() == limit);
    Ok(Json(JobList { jobs, next }))
}

/// A job.
#[utoipa::path(get, path = "/api/v1/jobs/{id}", params(("id" = u64, Path)),
    responses((status = 200, body = JobView), (status = 404, body = Problem)))]
pub(super) async fn show_job(
    State(api): Shared,
    Extension(user): Extension<SessionUser>,
    id: Result<Path<u64>, PathRejection>,
) -> Result<Json<JobView>, Problem> {
    let job = api.jobs.job(number(id)?).ok_or_else(no_job)?;
    if user.is_for_datasets() {
        is_theirs(&user, &job)?;
    }
    Ok(Json(job))
}

/// What undoes a job.
#[derive(Serialize, ToSchema)]
pub(super) struct UndoView {
    /// The command lines that `sanbox undo` runs, in their order.
    commands: Vec<String>,
    /// The role that they need, `viewer`, `operator` or `owner`; none where they are given in a shell alone.
    role: Option<&'static str>,
}

/// What the command `sanbox undo` with the job's number would do, unless something was changed since: it looks at that by itself.
#[utoipa::path(get, path = "/api/v1/jobs/{id}/undo", params(("id" = u64, Path)),
    responses((status = 200, body = UndoView), (status = 404, body = Problem)))]
pub(super) async fn show_undo(
    State(api): Shared,
    id: Result<Path<u64>, PathRejection>,
) -> Result<Json<UndoView>, Problem> {
    let plan = api.jobs.undo(number(id)?);
    let plan = plan.ok_or_else(|| Problem::not_found("nothing is known that undoes this job"))?;
    Ok(Json(UndoView {
        commands: plan.lines(),
        role: plan.role_needed().map(Role::as_str),
    }))
}

/// Ends a running job. What it has changed until then stays.
#[utoipa::path(post, path = "/api/v1/jobs/{id}/cancel", params(("id" = u64, Path)),
    responses((status = 204), (status = 403, body = Problem), (status = 404, body = Problem), (status = 409, body = Problem)))]
pub(super) async fn cancel_job(
    State(api): Shared,
    Extension(user): Extension<SessionUser>,
    id: Result<Path<u64>, PathRejection>,
) -> Result<StatusCode, Problem> {
    let id = number(id)?;
    is_theirs(&user, &api.jobs.job(id).ok_or_else(no_job)?)?;
    if api.jobs.cancel(id) {
        Ok(StatusCode::NO_CONTENT)
    } else {
        let detail = "the job has ended, or was given by a shell";
        Err(Problem::new(StatusCode::CONFLICT, detail))
    }
}

/// The output of a job, to its user and to owners. With `wait`, the call waits for more while the job runs.
#[utoipa::path(get, path = "/api/v1/jobs/{id}/output", params(("id" = u64, Path), OutputQuery),
    responses((status = 200, body = JobOutput), (status = 403, body = Problem), (status = 404, body = Problem)))]
pub(super) async fn job_output(
    State(api): Shared,
    Extension(user): Extension<SessionUser>,
    id: Result<Path<u64>, PathRejection>,
    asked: Result<Query<OutputQuery>, QueryRejection>,
) -> Result<Json<JobOutput>, Problem> {
    let (id, asked) = (number(id)?, query(asked)?);
    let offset = asked.offset.unwrap_or(0);
    let wait = Duration::from_secs(asked.wait.unwrap_or(0).min(WAIT_SECONDS_MAX));
    is_theirs(&user, &api.jobs.job(id).ok_or_else(no_job)?)?;
    let mut progress = api.jobs.progress(id).ok_or_else(no_job)?;
    let more = async {
        loop {
            let output = api.jobs.output(id, offset)?;
            if output.next > offset || output.job.state != JobState::Running {
                return Some(output);
            }
            progress.changed().await.ok()?;
        }
    };
    let output = match tokio::time::timeout(wait, more).await {
        Ok(output) => output,
        Err(_) => api.jobs.output(id, offset),
    };
    output.map(Json).ok_or_else(no_job)
}

/// A stream of events to one client.
struct EventStream {
    api: Arc<Api>,
    notices: Receiver<Notice>,
    session: SecretHash,
    _permit: OwnedSemaphorePermit,
}

impl EventStream {
    /// Returns the next event; none when the session has ended.
    async fn next(&mut self) -> Option<Event> {
        let notice = tokio::time::timeout(HEARTBEAT, self.notices.recv()).await;
        if !self
            .api
            .accounts
            .is_current(self.session, seconds_since_epoch())
        {
            return None;
        }
        match notice {
            Ok(Ok(notice)) => Some(Event::default().event(notice.event).data(notice.data)),
            Ok(Err(RecvError::Lagged(_))) => Some(Event::default().event("missed").data("{}")),
            Ok(Err(RecvError::Closed)) => None,
            Err(_) => Some(Event::default().comment("alive")),
        }
    }
}

/// A stream of server-sent events, until the session ends: `job` with a job at its begin and end, those of a shell too; `pool` with an
/// event of `zpool events`; `missed` when the client was too slow and has to look anew.
#[utoipa::path(get, path = "/api/v1/events",
    responses((status = 200, content_type = "text/event-stream", body = String), (status = 503, body = Problem)))]
pub(super) async fn follow_events(
    State(api): Shared,
    Extension(user): Extension<SessionUser>,
) -> Result<Sse<impl Stream<Item = Result<Event, Infallible>>>, Problem> {
    let notices = api.jobs.follow();
    stream_of(api, &user, notices)
}

/// A stream of server-sent events, until the session ends: `sample` with what the pools do, once a second: operations, bytes and
/// latencies of each device, dataset and client, the caches, the intent logs and the transaction groups.
#[utoipa::path(get, path = "/api/v1/live",
    responses((status = 200, content_type = "text/event-stream", body = String), (status = 503, body = Problem)))]
pub(super) async fn follow_samples(
    State(api): Shared,
    Extension(user): Extension<SessionUser>,
) -> Result<Sse<impl Stream<Item = Result<Event, Infallible>>>, Problem> {
    let notices = Sampler::follow(&api);
    stream_of(api, &user, notices)
}

fn stream_of(
    api: Arc<Api>,
    user: &SessionUser,
    notices: Receiver<Notice>,
) -> Result<Sse<impl Stream<Item = Result<Event, Infallible>> + use<>>, Problem> {
    let Ok(permit) = api.event_streams.clone().try_acquire_owned() else {
        let detail = "too many streams of events are open";
        return Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, detail));
    };
    let events = EventStream {
        notices,
        session: user.session,
        api,
        _permit: permit,
    };
    Ok(Sse::new(stream::unfold(events, |mut events| async {
        let event = events.next().await?;
        Some((Ok(event), events))
    })))
}
