//! Calls about alerts, the checks that find them, and the channels by which people are told.

use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::{Extension, Json};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::{Body, Peer, Problem, Shared, versions};
use crate::accounts::SessionUser;
use crate::alerts::{Alert, AlertState, ChannelView, CheckRuns, CheckView, Severity};
use crate::database::seconds_since_epoch;

/// Which alerts.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct AlertQuery {
    /// Those that are over, too.
    all: Option<bool>,
}

/// An alert, and the tag for changes of it.
#[derive(Serialize, ToSchema)]
pub(super) struct AlertView {
    /// Number: later alerts have higher ones.
    id: u64,
    /// What it is about: there is one alert of a key at a time.
    key: String,
    /// How bad it is.
    severity: Severity,
    /// Pool, disk, job or other thing.
    subject: String,
    /// What is the case.
    fact: String,
    /// What it means for the data.
    effect: String,
    /// What to do.
    next_step: String,
    /// What became of it.
    state: AlertState,
    /// Who acknowledged or muted it.
    by: Option<String>,
    /// Until when it is muted, seconds since 1970.
    muted_until: Option<u64>,
    /// Begin, seconds since 1970.
    opened: u64,
    /// When its condition held last, seconds since 1970.
    seen: u64,
    /// End, seconds since 1970.
    cleared: Option<u64>,
    /// For `If-Match`: it changes with what became of the alert.
    etag: String,
}

impl From<Alert> for AlertView {
    fn from(alert: Alert) -> Self {
        Self {
            etag: versions::alert_tag(&alert),
            id: alert.id,
            key: alert.key,
            severity: alert.severity,
            subject: alert.subject,
            fact: alert.fact,
            effect: alert.effect,
            next_step: alert.next_step,
            state: alert.state,
            by: alert.by,
            muted_until: alert.muted_until,
            opened: alert.opened,
            seen: alert.seen,
            cleared: alert.cleared,
        }
    }
}

/// How long an alert is muted.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct MuteRequest {
    /// Seconds; until it is over without them.
    seconds: Option<u64>,
}

/// Which channel is tried out.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct TestRequest {
    /// Its name; all without it.
    channel: Option<String>,
}

/// What looks for trouble, and who is told.
#[derive(Serialize, ToSchema)]
pub(super) struct ChecksView {
    checks: Vec<CheckView>,
    channels: Vec<ChannelView>,
}

fn number(id: Result<Path<u64>, PathRejection>) -> Result<u64, Problem> {
    id.map(|id| id.0).map_err(|_| no_alert())
}

fn no_alert() -> Problem {
    Problem::not_found("there is no such alert, or it is over")
}

/// Lists the alerts whose conditions hold, the worst first, and with `all` behind them those that are over.
#[utoipa::path(get, path = "/api/v1/alerts", params(AlertQuery),
    responses((status = 200, body = Vec<AlertView>), (status = 400, body = Problem)))]
pub(super) async fn list_alerts(
    State(api): Shared,
    asked: Result<Query<AlertQuery>, QueryRejection>,
) -> Result<Json<Vec<AlertView>>, Problem> {
    let Query(asked) = asked.map_err(|error| Problem::bad_request(error.body_text()))?;
    let alerts = api.alerts.list(asked.all.unwrap_or(false)).into_iter();
    Ok(Json(alerts.map(AlertView::from).collect()))
}

/// Acknowledges an alert.
#[utoipa::path(post, path = "/api/v1/alerts/{id}/acknowledge", params(("id" = u64, Path)),
    responses((status = 200, body = Alert), (status = 404, body = Problem)))]
pub(super) async fn acknowledge_alert(
    State(api): Shared,
    Extension(Peer(peer)): Extension<Peer>,
    Extension(user): Extension<SessionUser>,
    id: Result<Path<u64>, PathRejection>,
) -> Result<Json<Alert>, Problem> {
    let id = number(id)?;
    let alert = api
        .alerts
        .acknowledge(id, &user.shown())
        .ok_or_else(no_alert)?;
    api.note(
        &user,
        peer,
        format!("acknowledged alert {id}: {}", alert.fact),
    );
    Ok(Json(alert))
}

/// Mutes an alert: no channel is told of it for a time.
#[utoipa::path(post, path = "/api/v1/alerts/{id}/mute", params(("id" = u64, Path)), request_body = MuteRequest,
    responses((status = 200, body = Alert), (status = 404, body = Problem)))]
pub(super) async fn mute_alert(
    State(api): Shared,
    Extension(Peer(peer)): Extension<Peer>,
    Extension(user): Extension<SessionUser>,
    id: Result<Path<u64>, PathRejection>,
    Body(asked): Body<MuteRequest>,
) -> Result<Json<Alert>, Problem> {
    let id = number(id)?;
    let until = asked
        .seconds
        .map(|seconds| seconds_since_epoch().saturating_add(seconds));
    let alert = api
        .alerts
        .mute(id, &user.shown(), until)
        .ok_or_else(no_alert)?;
    api.note(&user, peer, format!("muted alert {id}: {}", alert.fact));
    Ok(Json(alert))
}

/// Opens an alert again that was acknowledged or muted.
#[utoipa::path(post, path = "/api/v1/alerts/{id}/reopen", params(("id" = u64, Path)),
    responses((status = 200, body = Alert), (status = 404, body = Problem)))]
pub(super) async fn reopen_alert(
    State(api): Shared,
    id: Result<Path<u64>, PathRejection>,
) -> Result<Json<Alert>, Problem> {
    api.alerts
        .reopen(number(id)?)
        .map(Json)
        .ok_or_else(no_alert)
}

/// Sends a test by a channel, or by all. `GET /api/v1/checks` says what became of it.
#[utoipa::path(post, path = "/api/v1/alerts/test", request_body = TestRequest,
    responses((status = 202), (status = 404, body = Problem)))]
pub(super) async fn test_alerts(
    State(api): Shared,
    Body(asked): Body<TestRequest>,
) -> Result<StatusCode, Problem> {
    match api.alerts.test(asked.channel.as_deref()) {
        true => Ok(StatusCode::ACCEPTED),
        false => Err(Problem::not_found(
            "there is no such channel: they are set under [alerts] in sanbox.toml",
        )),
    }
}

/// The checks with their last results, and the channels by which people are told.
#[utoipa::path(get, path = "/api/v1/checks", responses((status = 200, body = ChecksView)))]
pub(super) async fn list_checks(State(api): Shared) -> Json<ChecksView> {
    Json(ChecksView {
        checks: api.alerts.checks(),
        channels: api.alerts.channels(),
    })
}

/// How the runs of a check went, the newest first; those that found the same, one after the other, are one entry. Commands turn a check on
/// and off, and have it run: `sanbox checks`.
#[utoipa::path(get, path = "/api/v1/checks/{name}/history", params(("name" = String, Path)),
    responses((status = 200, body = Vec<CheckRuns>), (status = 404, body = Problem)))]
pub(super) async fn check_history(
    State(api): Shared,
    Path(name): Path<String>,
) -> Result<Json<Vec<CheckRuns>>, Problem> {
    let runs = api.alerts.check_runs(&name);
    runs.map(Json)
        .ok_or_else(|| Problem::not_found(format!("there is no check '{name}'")))
}
