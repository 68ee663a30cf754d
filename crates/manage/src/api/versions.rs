//! Two people who change the same thing: what can be changed has a tag (`ETag`), and a change with `If-Match` is made only while it is as it was
//! when it was looked at (RFC 9110, 13.1.1). Datasets, whose settings hold shares and policies, have theirs in `datasets`.
//!
//! The tag is of what people set, not of what is counted meanwhile.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::Response;
use serde::Serialize;
use sha2::{Digest as _, Sha256};

use super::{Api, Problem, shares};
use crate::alerts::Alert;
use crate::replication::Job;

/// How long the state directory may take.
const READ_TIMEOUT: Duration = Duration::from_secs(3);

/// Something that people change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Subject {
    Users,
    Groups,
    Targets,
    Settings,
    Checks,
    Peers,
    Replications,
    Replication(String),
    Alert(u64),
}

impl Subject {
    /// Returns what a path of the API is about, that of a call that changes it as well as that of one that shows it.
    pub(super) fn of_path(path: &str) -> Option<Self> {
        let mut parts = path.strip_prefix("/api/v1/")?.split('/');
        match (parts.next()?, parts.next()) {
            ("users", _) => Some(Self::Users),
            ("groups", _) => Some(Self::Groups),
            ("targets", None) => Some(Self::Targets),
            ("settings", None) => Some(Self::Settings),
            ("checks", None) => Some(Self::Checks),
            ("peers", _) => Some(Self::Peers),
            ("replications", None) => Some(Self::Replications),
            ("replications", Some(name)) => Some(Self::Replication(name.to_owned())),
            ("alerts", Some(id)) => id.parse().ok().map(Self::Alert),
            _ => None,
        }
    }

    /// Returns its tag now; that of nothing when it is not there.
    pub(super) async fn tag(&self, api: &Api) -> Result<String, Problem> {
        Ok(match self {
            Self::Users => {
                // A second factor is its user's own: who sets one up is in the way of no owner.
                let users = api.accounts.users().into_iter();
                let set = users.map(|user| (user.name, user.own_role, user.password));
                tag(&set.collect::<Vec<_>>())
            }
            Self::Groups => tag(&api.accounts.groups()),
            Self::Targets => tag(&shares::settings_of_targets(api).await?),
            Self::Settings => tag(&api.backend.settings().await),
            Self::Checks => {
                let checks = api.alerts.checks().into_iter();
                tag(&checks
                    .map(|check| (check.name, check.on))
                    .collect::<Vec<_>>())
            }
            Self::Peers => tag(&api.backend.peers().peers().map_err(unavailable)?.peer),
            Self::Replications => tag(&jobs(api).await?),
            Self::Replication(name) => {
                let all = jobs(api).await?;
                tag(&all.iter().find(|job| job.name == *name))
            }
            Self::Alert(id) => {
                let open = api.alerts.list(false);
                open.iter()
                    .find(|alert| alert.id == *id)
                    .map_or_else(|| tag(&()), alert_tag)
            }
        })
    }
}

fn unavailable(why: impl ToString) -> Problem {
    Problem::new(StatusCode::SERVICE_UNAVAILABLE, why.to_string())
}

/// Returns the jobs of replication as they are set.
async fn jobs(api: &Api) -> Result<Vec<Job>, Problem> {
    let replications = api.backend.replications();
    let read = tokio::task::spawn_blocking(move || replications.jobs());
    let read = tokio::time::timeout(READ_TIMEOUT, read).await;
    let jobs = read.map_err(unavailable)?.map_err(unavailable)?;
    Ok(jobs.map_err(unavailable)?.replication)
}

/// Returns the tag of an alert: of what became of it.
pub(super) fn alert_tag(alert: &Alert) -> String {
    tag(&(
        alert.id,
        alert.state,
        &alert.by,
        alert.muted_until,
        alert.severity,
    ))
}

/// Returns the tag of a value.
pub(super) fn tag(value: &impl Serialize) -> String {
    let text = serde_json::to_vec(value).unwrap_or_default();
    let digits: String = Sha256::digest(text)[..16]
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    format!("\"{digits}\"")
}

/// Refuses a change whose `If-Match` has not the tag that `what` has now.
pub(super) fn check(headers: &HeaderMap, current: &str, what: &str) -> Result<(), Problem> {
    let Some(wanted) = headers.get(header::IF_MATCH) else {
        return Ok(());
    };
    let wanted = wanted.to_str().unwrap_or_default();
    if wanted
        .split(',')
        .any(|tag| matches!(tag.trim(), "*") || tag.trim() == current)
    {
        return Ok(());
    }
    let detail = format!("{what} was changed meanwhile: look at it again");
    Err(Problem::new(StatusCode::PRECONDITION_FAILED, detail))
}

/// Adds the tag to what shows something that can be changed, and checks that of changes.
pub(super) async fn conditional(
    State(api): State<Arc<Api>>,
    request: Request,
    next: Next,
) -> Result<Response, Problem> {
    let path = request.uri().path().to_owned();
    let subject = Subject::of_path(&path);
    let shows = matches!(*request.method(), Method::GET | Method::HEAD);
    match (&subject, shows) {
        (Some(subject), false) if request.headers().contains_key(header::IF_MATCH) => {
            let current = subject.tag(&api).await?;
            check(request.headers(), &current, &format!("'{path}'"))?;
            Ok(next.run(request).await)
        }
        (Some(subject), true) => {
            // Before the answer is made: a change meanwhile is a conflict, and not overlooked.
            let tag = subject.tag(&api).await?;
            let mut response = next.run(request).await;
            if response.status() == StatusCode::OK
                && let Ok(tag) = HeaderValue::from_str(&tag)
            {
                response.headers_mut().insert(header::ETAG, tag);
            }
            Ok(response)
        }
        _ => Ok(next.run(request).await),
    }
}
