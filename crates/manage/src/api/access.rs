//! Who may make which call: one table, looked at before any handler.

use std::sync::Arc;

use axum::extract::{MatchedPath, Request, State};
use axum::http::{Method, StatusCode};
use axum::middleware::Next;
use axum::response::Response;

use super::session::{cookie, csrf_matches};
use super::{Api, Problem};
use crate::accounts::Role;
use crate::database::seconds_since_epoch;

/// What a call needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Nothing.
    Public,
    /// A session of a user with at least this role.
    Role(Role),
}

/// Every call there is: method, path, what it needs.
pub const CALLS: &[(Method, &str, Access)] = &[
    (Method::GET, "/healthz", Access::Public),
    (Method::GET, "/api/v1/openapi.json", Access::Public),
    (Method::GET, "/api/v1/setup", Access::Public),
    (Method::POST, "/api/v1/setup", Access::Public),
    (Method::POST, "/api/v1/session", Access::Public),
    (Method::GET, "/api/v1/session", Access::Role(Role::Viewer)),
    (
        Method::DELETE,
        "/api/v1/session",
        Access::Role(Role::Viewer),
    ),
    (
        Method::PUT,
        "/api/v1/session/password",
        Access::Role(Role::Viewer),
    ),
    (Method::GET, "/api/v1/users", Access::Role(Role::Owner)),
    (Method::POST, "/api/v1/users", Access::Role(Role::Owner)),
    (
        Method::DELETE,
        "/api/v1/users/{name}",
        Access::Role(Role::Owner),
    ),
    (Method::GET, "/api/v1/version", Access::Role(Role::Viewer)),
    (Method::GET, "/api/v1/pools", Access::Role(Role::Viewer)),
    (
        Method::GET,
        "/api/v1/pools/{name}",
        Access::Role(Role::Viewer),
    ),
    (Method::GET, "/api/v1/datasets", Access::Role(Role::Viewer)),
    (
        Method::GET,
        "/api/v1/datasets/{name}",
        Access::Role(Role::Viewer),
    ),
    (Method::GET, "/api/v1/snapshots", Access::Role(Role::Viewer)),
    // Which role a command needs, the command decides.
    (Method::POST, "/api/v1/commands", Access::Role(Role::Viewer)),
    (Method::GET, "/api/v1/jobs", Access::Role(Role::Viewer)),
    (Method::GET, "/api/v1/jobs/{id}", Access::Role(Role::Viewer)),
    (
        Method::POST,
        "/api/v1/jobs/{id}/cancel",
        Access::Role(Role::Viewer),
    ),
    (
        Method::GET,
        "/api/v1/jobs/{id}/output",
        Access::Role(Role::Viewer),
    ),
    (Method::GET, "/api/v1/events", Access::Role(Role::Viewer)),
];

fn needed(method: &Method, path: &str) -> Option<Access> {
    // RFC 9110, 9.3.2: HEAD is GET without the content.
    let method = if method == Method::HEAD {
        &Method::GET
    } else {
        method
    };
    CALLS
        .iter()
        .find(|(known, at, _)| known == method && *at == path)
        .map(|(_, _, access)| *access)
}

/// Lets a request through whose session may make the call, with its user among the extensions.
pub(super) async fn authorise(
    State(api): State<Arc<Api>>,
    path: MatchedPath,
    mut request: Request,
    next: Next,
) -> Result<Response, Problem> {
    let role = match needed(request.method(), path.as_str()) {
        Some(Access::Public) => return Ok(next.run(request).await),
        Some(Access::Role(role)) => role,
        None => {
            let detail = "not with this method";
            return Err(Problem::new(StatusCode::METHOD_NOT_ALLOWED, detail));
        }
    };
    let secret = cookie(request.headers()).ok_or_else(Problem::unauthorized)?;
    let user = api.accounts.session(secret, seconds_since_epoch());
    let user = user.ok_or_else(Problem::unauthorized)?;
    if user.role < role {
        let detail = format!(
            "this needs the role {}, and '{}' is {}",
            role.as_str(),
            user.name,
            user.role.as_str()
        );
        return Err(Problem::new(StatusCode::FORBIDDEN, detail));
    }
    if !request.method().is_safe() && !csrf_matches(request.headers(), &user) {
        let detail =
            "a change needs the header X-Sanbox-Csrf with the value that the session tells";
        return Err(Problem::new(StatusCode::FORBIDDEN, detail));
    }
    request.extensions_mut().insert(user);
    Ok(next.run(request).await)
}
