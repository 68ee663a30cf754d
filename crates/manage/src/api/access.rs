//! Who may make which call: one table, looked at before any handler.

use std::sync::Arc;

use axum::extract::{MatchedPath, Request, State};
use axum::http::{Method, StatusCode};
use axum::middleware::Next;
use axum::response::Response;

use super::session::{bearer, cookie, csrf_matches};
use super::{Api, Problem};
use crate::accounts::{Role, SessionUser};
use crate::database::seconds_since_epoch;

/// What a call needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Nothing.
    Public,
    /// A session or an API key with at least this role.
    Role(Role),
    /// As [`Self::Role`], and a key that is for some datasets may make it, too: its handler looks at which.
    Datasets(Role),
    /// A session of a user with at least this role: it is about the session itself, or gives other ways in.
    Session(Role),
}

impl Access {
    /// Returns the role that is needed; none for [`Self::Public`].
    #[must_use]
    pub fn role(self) -> Option<Role> {
        match self {
            Self::Public => None,
            Self::Role(role) | Self::Datasets(role) | Self::Session(role) => Some(role),
        }
    }
}

/// Every call there is: method, path, what it needs.
pub const CALLS: &[(Method, &str, Access)] = &[
    (Method::GET, "/healthz", Access::Public),
    (Method::GET, "/api/v1/openapi.json", Access::Public),
    (Method::GET, "/api/v1/setup", Access::Public),
    (Method::POST, "/api/v1/setup", Access::Public),
    (Method::POST, "/api/v1/session", Access::Public),
    (Method::GET, "/api/v1/login", Access::Public),
    (Method::GET, "/api/v1/login/oidc", Access::Public),
    (Method::GET, "/api/v1/login/oidc/callback", Access::Public),
    (
        Method::GET,
        "/api/v1/session",
        Access::Session(Role::Viewer),
    ),
    (
        Method::DELETE,
        "/api/v1/session",
        Access::Session(Role::Viewer),
    ),
    (
        Method::PUT,
        "/api/v1/session/password",
        Access::Session(Role::Viewer),
    ),
    (
        Method::GET,
        "/api/v1/session/totp",
        Access::Session(Role::Viewer),
    ),
    (
        Method::POST,
        "/api/v1/session/totp",
        Access::Session(Role::Viewer),
    ),
    (
        Method::PUT,
        "/api/v1/session/totp",
        Access::Session(Role::Viewer),
    ),
    (
        Method::POST,
        "/api/v1/session/totp/remove",
        Access::Session(Role::Viewer),
    ),
    (
        Method::GET,
        "/api/v1/ssh-keys",
        Access::Session(Role::Viewer),
    ),
    (
        Method::POST,
        "/api/v1/ssh-keys",
        Access::Session(Role::Viewer),
    ),
    (
        Method::DELETE,
        "/api/v1/ssh-keys/{id}",
        Access::Session(Role::Viewer),
    ),
    (Method::GET, "/api/v1/keys", Access::Role(Role::Viewer)),
    (Method::POST, "/api/v1/keys", Access::Session(Role::Viewer)),
    (
        Method::DELETE,
        "/api/v1/keys/{id}",
        Access::Role(Role::Viewer),
    ),
    (Method::GET, "/api/v1/users", Access::Role(Role::Owner)),
    (Method::POST, "/api/v1/users", Access::Session(Role::Owner)),
    (
        Method::DELETE,
        "/api/v1/users/{name}",
        Access::Role(Role::Owner),
    ),
    (
        Method::PUT,
        "/api/v1/users/{name}/role",
        Access::Session(Role::Owner),
    ),
    (
        Method::PUT,
        "/api/v1/users/{name}/password",
        Access::Session(Role::Owner),
    ),
    (
        Method::DELETE,
        "/api/v1/users/{name}/totp",
        Access::Session(Role::Owner),
    ),
    (Method::GET, "/api/v1/groups", Access::Role(Role::Owner)),
    // A role of a group is one of its members.
    (Method::POST, "/api/v1/groups", Access::Session(Role::Owner)),
    (
        Method::DELETE,
        "/api/v1/groups/{name}",
        Access::Role(Role::Owner),
    ),
    (
        Method::PUT,
        "/api/v1/groups/{name}/role",
        Access::Session(Role::Owner),
    ),
    (
        Method::PUT,
        "/api/v1/groups/{name}/members/{user}",
        Access::Session(Role::Owner),
    ),
    (
        Method::DELETE,
        "/api/v1/groups/{name}/members/{user}",
        Access::Role(Role::Owner),
    ),
    (Method::GET, "/api/v1/audit", Access::Role(Role::Owner)),
    (Method::GET, "/api/v1/alerts", Access::Role(Role::Viewer)),
    (
        Method::POST,
        "/api/v1/alerts/{id}/acknowledge",
        Access::Role(Role::Operator),
    ),
    (
        Method::POST,
        "/api/v1/alerts/{id}/mute",
        Access::Role(Role::Operator),
    ),
    (
        Method::POST,
        "/api/v1/alerts/{id}/reopen",
        Access::Role(Role::Operator),
    ),
    (
        Method::POST,
        "/api/v1/alerts/test",
        Access::Role(Role::Owner),
    ),
    (Method::GET, "/api/v1/checks", Access::Role(Role::Viewer)),
    (
        Method::GET,
        "/api/v1/checks/{name}/history",
        Access::Role(Role::Viewer),
    ),
    (Method::GET, "/api/v1/policies", Access::Role(Role::Viewer)),
    (
        Method::GET,
        "/api/v1/policies/preview",
        Access::Role(Role::Viewer),
    ),
    (
        Method::GET,
        "/api/v1/snapshots/why",
        Access::Datasets(Role::Viewer),
    ),
    (
        Method::GET,
        "/api/v1/replications",
        Access::Role(Role::Viewer),
    ),
    (
        Method::POST,
        "/api/v1/replications",
        Access::Role(Role::Owner),
    ),
    (
        Method::GET,
        "/api/v1/replications/{name}",
        Access::Role(Role::Viewer),
    ),
    (
        Method::PUT,
        "/api/v1/replications/{name}",
        Access::Role(Role::Owner),
    ),
    (
        Method::DELETE,
        "/api/v1/replications/{name}",
        Access::Role(Role::Owner),
    ),
    // Which role an action needs, its command decides.
    (
        Method::POST,
        "/api/v1/replications/{name}/{action}",
        Access::Role(Role::Operator),
    ),
    (
        Method::POST,
        "/api/v1/datasets/{name}/takeover",
        Access::Role(Role::Owner),
    ),
    (Method::GET, "/api/v1/peers", Access::Role(Role::Viewer)),
    (Method::POST, "/api/v1/peers", Access::Role(Role::Owner)),
    // A code lets another machine in.
    (
        Method::POST,
        "/api/v1/peers/invitations",
        Access::Session(Role::Owner),
    ),
    (
        Method::DELETE,
        "/api/v1/peers/{name}",
        Access::Role(Role::Owner),
    ),
    (Method::GET, "/api/v1/trash", Access::Role(Role::Viewer)),
    (Method::GET, "/api/v1/report", Access::Role(Role::Viewer)),
    (Method::GET, "/api/v1/settings", Access::Role(Role::Viewer)),
    (Method::GET, "/api/v1/support", Access::Role(Role::Owner)),
    (Method::GET, "/api/v1/history", Access::Role(Role::Viewer)),
    (
        Method::GET,
        "/api/v1/history/why",
        Access::Role(Role::Viewer),
    ),
    (
        Method::GET,
        "/api/v1/version",
        Access::Datasets(Role::Viewer),
    ),
    (Method::GET, "/api/v1/pools", Access::Role(Role::Viewer)),
    (
        Method::GET,
        "/api/v1/pools/{name}",
        Access::Role(Role::Viewer),
    ),
    (
        Method::POST,
        "/api/v1/pools/plan",
        Access::Role(Role::Viewer),
    ),
    (Method::GET, "/api/v1/disks", Access::Role(Role::Viewer)),
    (
        Method::GET,
        "/api/v1/datasets",
        Access::Datasets(Role::Viewer),
    ),
    (
        Method::GET,
        "/api/v1/datasets/{name}",
        Access::Datasets(Role::Viewer),
    ),
    (
        Method::GET,
        "/api/v1/snapshots",
        Access::Datasets(Role::Viewer),
    ),
    // A user that may share a file system may see its files.
    (Method::GET, "/api/v1/files", Access::Role(Role::Operator)),
    (
        Method::GET,
        "/api/v1/files/permissions",
        Access::Role(Role::Operator),
    ),
    // It tells of the machine's users and groups.
    (
        Method::GET,
        "/api/v1/files/access",
        Access::Role(Role::Owner),
    ),
    (
        Method::GET,
        "/api/v1/files/content",
        Access::Role(Role::Operator),
    ),
    (
        Method::PUT,
        "/api/v1/files/content",
        Access::Role(Role::Operator),
    ),
    (Method::GET, "/api/v1/smb", Access::Role(Role::Viewer)),
    // Which role a command needs, the command decides.
    (
        Method::POST,
        "/api/v1/commands",
        Access::Datasets(Role::Viewer),
    ),
    (Method::GET, "/api/v1/jobs", Access::Role(Role::Viewer)),
    (
        Method::GET,
        "/api/v1/jobs/{id}",
        Access::Datasets(Role::Viewer),
    ),
    (
        Method::POST,
        "/api/v1/jobs/{id}/cancel",
        Access::Datasets(Role::Viewer),
    ),
    (
        Method::POST,
        "/api/v1/jobs/{id}/retry",
        Access::Role(Role::Viewer),
    ),
    (
        Method::GET,
        "/api/v1/jobs/{id}/undo",
        Access::Role(Role::Operator),
    ),
    (
        Method::GET,
        "/api/v1/jobs/{id}/output",
        Access::Datasets(Role::Viewer),
    ),
    (Method::GET, "/api/v1/events", Access::Role(Role::Viewer)),
    (Method::GET, "/api/v1/live", Access::Role(Role::Viewer)),
    (Method::GET, "/api/v1/shares", Access::Role(Role::Viewer)),
    (Method::GET, "/api/v1/targets", Access::Role(Role::Operator)),
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

/// Lets a request through whose session or key may make the call, with its user among the extensions.
pub(super) async fn authorise(
    State(api): State<Arc<Api>>,
    path: MatchedPath,
    mut request: Request,
    next: Next,
) -> Result<Response, Problem> {
    let access = match needed(request.method(), path.as_str()) {
        Some(Access::Public) => return Ok(next.run(request).await),
        Some(access) => access,
        None => {
            let detail = "not with this method";
            return Err(Problem::new(StatusCode::METHOD_NOT_ALLOWED, detail));
        }
    };
    let now = seconds_since_epoch();
    let user = match bearer(request.headers()) {
        Some(key) => api.accounts.key_user(key, now),
        None => cookie(request.headers()).and_then(|secret| api.accounts.session(secret, now)),
    };
    let user = user.ok_or_else(Problem::unauthorized)?;
    if let Some(why) = refusal(access, &user) {
        return Err(Problem::new(StatusCode::FORBIDDEN, why));
    }
    // No page can make a browser show a key, so that a request with one is meant.
    let meant = user.key.is_some() || csrf_matches(request.headers(), &user);
    if !request.method().is_safe() && !meant {
        let detail =
            "a change needs the header X-Sanbox-Csrf with the value that the session tells";
        return Err(Problem::new(StatusCode::FORBIDDEN, detail));
    }
    request.extensions_mut().insert(user);
    Ok(next.run(request).await)
}

/// Says why a user may not make a call.
fn refusal(access: Access, user: &SessionUser) -> Option<String> {
    let role = access.role().filter(|role| user.role < *role);
    if let Some(role) = role {
        return Some(format!(
            "this needs the role {}, and '{}' is {}",
            role.as_str(),
            user.shown(),
            user.role.as_str()
        ));
    }
    let key = user.key.as_ref()?;
    match access {
        Access::Session(_) => Some("this needs a session: an API key cannot do it".to_owned()),
        Access::Role(_) if !key.datasets.is_empty() => Some(format!(
            "the key '{}' is for datasets alone: {}",
            key.name,
            key.datasets.join(", ")
        )),
        _ => None,
    }
}
