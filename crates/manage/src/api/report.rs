//! The call about the report of the week.

use axum::Json;
use axum::extract::{Query, State, rejection::QueryRejection};
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::{Problem, Shared};
use crate::database::seconds_since_epoch;
use crate::report::{self, Every, Report};

/// Which report.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ReportQuery {
    /// `daily`, `weekly` or `monthly` (`weekly`): of how much time until now.
    of: Option<String>,
}

/// A report.
#[derive(Serialize, ToSchema)]
pub(super) struct ReportView {
    /// One line that says how it is.
    title: String,
    /// All of it in words.
    text: String,
    /// How full pools were and what their disks carried: SVG.
    picture: String,
}

/// Shows the report of a day, a week or a month until now: capacity, rates, errors and alerts. `sanbox report` prints it, and mails it on a
/// schedule.
#[utoipa::path(get, path = "/api/v1/report", params(ReportQuery), responses((status = 200, body = ReportView), (status = 422, body = Problem)))]
pub(super) async fn show_report(
    State(api): Shared,
    query: Result<Query<ReportQuery>, QueryRejection>,
) -> Result<Json<ReportView>, Problem> {
    let refused = |detail: String| Problem::new(StatusCode::UNPROCESSABLE_ENTITY, detail);
    let Query(query) = query.map_err(|error| refused(error.body_text()))?;
    let of = query.of.as_deref().unwrap_or("weekly");
    let every = Every::from_name(of).filter(|every| *every != Every::Off);
    let every =
        every.ok_or_else(|| refused(format!("'{of}' is none of daily, weekly and monthly")))?;
    let now = seconds_since_epoch();
    let (host, alerts) = (api.backend.host_name(), api.alerts.list(true));
    let from = now.saturating_sub(every.seconds());
    let report = Report::new(&host, &api.history, alerts, from, now);
    Ok(Json(ReportView {
        title: report::title(&report),
        text: report::text(&report),
        picture: report::picture(&report),
    }))
}
