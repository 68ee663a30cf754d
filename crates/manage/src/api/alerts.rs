//! Calls about alerts, the checks that find them, and the channels by which people are told.

use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::{Extension, Json};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::{Body, Peer, Problem, Shared};
use crate::accounts::SessionUser;
use crate::alerts::{Alert, ChannelView, CheckView};
use crate::database::seconds_since_epoch;

/// Which alerts.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct AlertQuery {
    /// Those that are over, too.
    all: Option<bool>,
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
    responses((status = 200, body = Vec<Alert>), (status = 400, body = Problem)))]
pub(super) async fn list_alerts(
    State(api): Shared,
    asked: Result<Query<AlertQuery>, QueryRejection>,
) -> Result<Json<Vec<Alert>>, Problem> {
    let Query(asked) = asked.map_err(|error| Problem::bad_request(error.body_text()))?;
    Ok(Json(api.alerts.list(asked.all.unwrap_or(false))))
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
