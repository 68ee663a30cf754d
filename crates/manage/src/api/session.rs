//! Calls about the first owner, sessions and users.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use axum::{Extension, Json};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use zeroize::Zeroizing;

use super::{Api, Body, Peer, Problem, Shared};
use crate::accounts::{
    AccountError, Directory, NewSession, Refusal, Role, SESSION_IDLE_SECONDS, SESSION_SECONDS,
    SessionUser, UserEntry,
};
use crate::database::seconds_since_epoch;
use crate::secret;

/// The cookie of a session. A name with this prefix is for this host alone, and only over HTTPS (RFC 6265bis, 4.1.3.2).
pub const COOKIE: &str = "__Host-sanbox";
/// The header that a change needs.
pub const CSRF_HEADER: &str = "x-sanbox-csrf";

/// Returns the secret of the session that a request shows.
pub(super) fn cookie(headers: &HeaderMap) -> Option<&str> {
    cookie_named(headers, COOKIE)
}

/// Returns a cookie that a request shows.
pub(super) fn cookie_named<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers
        .get_all(header::COOKIE)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(';'))
        .find_map(|pair| pair.trim().strip_prefix(name)?.strip_prefix('='))
}

/// Returns the cookie of a session that has just begun.
pub(super) fn session_cookie(new: &NewSession) -> String {
    let secret = &new.secret;
    format!(
        "{COOKIE}={secret}; Path=/; Secure; HttpOnly; SameSite=Strict; Max-Age={SESSION_SECONDS}"
    )
}

/// Returns the API key that a request shows (RFC 6750, 2.1).
pub(super) fn bearer(headers: &HeaderMap) -> Option<&str> {
    let shown = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, key) = shown.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then_some(key.trim())
}

/// Whether a request repeats what its session told. The hashes are compared: the time taken tells nothing of the value.
pub(super) fn csrf_matches(headers: &HeaderMap, user: &SessionUser) -> bool {
    let shown = headers
        .get(CSRF_HEADER)
        .and_then(|value| value.to_str().ok());
    shown.is_some_and(|shown| secret::hash(shown) == secret::hash(&user.csrf))
}

/// Whether the appliance has an owner.
#[derive(Serialize, ToSchema)]
pub(super) struct SetupState {
    /// There is no owner yet: use the link that `sanbox serve` printed.
    needed: bool,
}

/// The first owner.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Setup {
    /// From the link.
    token: String,
    /// Name of the user.
    name: String,
    /// At least 12 characters.
    password: String,
}

/// Who logs in.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Credentials {
    /// Name of the user.
    name: String,
    /// Password.
    password: String,
    /// Code of the authenticator, or a recovery code, of a user with a second factor.
    code: Option<String>,
}

/// A session. The client shows it by its cookie.
#[derive(Serialize, ToSchema)]
pub(super) struct SessionView {
    /// Name of the user.
    name: String,
    /// Role of the user.
    role: Role,
    /// The value of the header `X-Sanbox-Csrf` in changes.
    csrf: String,
    /// Seconds without a request after which the session ends.
    idle_seconds: u64,
}

impl From<&SessionUser> for SessionView {
    fn from(user: &SessionUser) -> Self {
        Self {
            name: user.name.clone(),
            role: user.role,
            csrf: user.csrf.clone(),
            idle_seconds: SESSION_IDLE_SECONDS,
        }
    }
}

/// A change of the own password.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct PasswordChange {
    /// The password now.
    current: String,
    /// The new one.
    new: String,
}

/// A new user.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct NewUser {
    /// 1 to 32 of a-z, 0-9, `.`, `_`, `-`; a letter first.
    name: String,
    /// At least 12 characters; a user without one has API keys only.
    password: Option<String>,
    /// Role.
    role: Role,
}

fn begun(new: &NewSession) -> Response {
    let cookie = session_cookie(new);
    let view = Json(SessionView::from(&new.session));
    (StatusCode::CREATED, [(header::SET_COOKIE, cookie)], view).into_response()
}

/// Whether the appliance waits for its first owner.
#[utoipa::path(get, path = "/api/v1/setup", responses((status = 200, body = SetupState)))]
pub(super) async fn setup_state(State(api): Shared) -> Json<SetupState> {
    let needed = api.accounts.needs_setup();
    Json(SetupState { needed })
}

/// Makes the first owner with the token of a setup link, and begins a session.
#[utoipa::path(post, path = "/api/v1/setup", request_body = Setup,
    responses((status = 201, body = SessionView), (status = 403, body = Problem), (status = 422, body = Problem)))]
pub(super) async fn set_up(
    State(api): Shared,
    Extension(Peer(peer)): Extension<Peer>,
    Body(setup): Body<Setup>,
) -> Result<Response, Problem> {
    let Setup {
        token,
        name,
        password,
    } = setup;
    let now = seconds_since_epoch();
    let new = api
        .accounts
        .set_up(&token, &name, &password, peer.ip(), now)
        .await?;
    api.note(&new.session, peer, "made the first owner with a setup link");
    Ok(begun(&new))
}

/// Begins a session.
#[utoipa::path(post, path = "/api/v1/session", request_body = Credentials,
    responses((status = 201, body = SessionView), (status = 401, body = Problem), (status = 429, body = Problem)))]
pub(super) async fn log_in(
    State(api): Shared,
    Extension(Peer(peer)): Extension<Peer>,
    Body(credentials): Body<Credentials>,
) -> Result<Response, Problem> {
    let Credentials {
        name,
        password,
        code,
    } = credentials;
    let code = code.as_deref();
    let new = match api.backend.asks_directory() && !api.accounts.has_password(&name) {
        true => by_directory(&api, &name, password, code, peer).await,
        false => {
            let now = seconds_since_epoch();
            let known = api.accounts.log_in(&name, &password, code, peer.ip(), now);
            known.await
        }
    };
    let failed = match &new {
        Ok(_) => None,
        Err(AccountError::Credentials) => Some("log-in failed"),
        Err(AccountError::SecondFactor) => {
            Some("log-in failed: wrong code behind the right password")
        }
        Err(AccountError::SecondFactorNeeded) => return Ok(new.map(|new| begun(&new))?),
        Err(AccountError::NoRole(_)) => Some("log-in refused: in no group that has a role"),
        Err(_) => Some("log-in refused"),
    };
    let origin = peer.ip().to_canonical().to_string();
    api.audit
        .note(&name, &origin, failed.unwrap_or("logged in"));
    Ok(begun(&new?))
}

/// Begins a session of a user whom the appliance has no password of, and the LDAP directory may have.
async fn by_directory(
    api: &Api,
    name: &str,
    password: String,
    code: Option<&str>,
    peer: SocketAddr,
) -> Result<NewSession, AccountError> {
    let origin = (peer.ip(), seconds_since_epoch());
    api.accounts.may_try(name, origin.0, origin.1)?;
    let password = Zeroizing::new(password);
    let answer = api.backend.ask_directory(name.to_owned(), password).await;
    if let Err(Refusal::Unavailable(why)) = &answer {
        let address = peer.ip().to_canonical().to_string();
        let event = format!("log-in failed: the directory does not answer: {why}");
        api.audit.note(name, &address, event);
    }
    let directory = Directory::Ldap;
    let logged = api
        .accounts
        .log_in_by(directory, name, answer, code, origin);
    logged.await
}

/// The session's user.
#[utoipa::path(get, path = "/api/v1/session", responses((status = 200, body = SessionView), (status = 401, body = Problem)))]
pub(super) async fn who_am_i(Extension(user): Extension<SessionUser>) -> Json<SessionView> {
    Json(SessionView::from(&user))
}

/// Ends the session.
#[utoipa::path(delete, path = "/api/v1/session", responses((status = 204), (status = 401, body = Problem)))]
pub(super) async fn log_out(
    State(api): Shared,
    Extension(user): Extension<SessionUser>,
) -> Response {
    api.accounts.log_out(user.session);
    let cookie = format!("{COOKIE}=; Path=/; Secure; HttpOnly; SameSite=Strict; Max-Age=0");
    (StatusCode::NO_CONTENT, [(header::SET_COOKIE, cookie)]).into_response()
}

/// Changes the own password; the user's other sessions end.
#[utoipa::path(put, path = "/api/v1/session/password", request_body = PasswordChange,
    responses((status = 204), (status = 401, body = Problem), (status = 422, body = Problem)))]
pub(super) async fn change_password(
    State(api): Shared,
    Extension(Peer(peer)): Extension<Peer>,
    Extension(user): Extension<SessionUser>,
    Body(change): Body<PasswordChange>,
) -> Result<StatusCode, Problem> {
    let PasswordChange { current, new } = change;
    let now = seconds_since_epoch();
    api.accounts
        .change_password(&user, &current, &new, peer.ip(), now)
        .await?;
    api.note(&user, peer, "changed the own password");
    Ok(StatusCode::NO_CONTENT)
}

/// Lists the users.
#[utoipa::path(get, path = "/api/v1/users", responses((status = 200, body = Vec<UserEntry>)))]
pub(super) async fn list_users(State(api): State<Arc<Api>>) -> Json<Vec<UserEntry>> {
    Json(api.accounts.users())
}

/// Makes a user.
#[utoipa::path(post, path = "/api/v1/users", request_body = NewUser,
    responses((status = 201), (status = 409, body = Problem), (status = 422, body = Problem)))]
pub(super) async fn add_user(
    State(api): Shared,
    Extension(Peer(peer)): Extension<Peer>,
    Extension(user): Extension<SessionUser>,
    Body(new): Body<NewUser>,
) -> Result<StatusCode, Problem> {
    let NewUser {
        name,
        password,
        role,
    } = new;
    let now = seconds_since_epoch();
    let password = password.as_deref();
    api.accounts.add_user(&name, password, role, now).await?;
    api.note(
        &user,
        peer,
        format!("made user '{name}' ({})", role.as_str()),
    );
    Ok(StatusCode::CREATED)
}

/// Removes a user; the user's sessions end.
#[utoipa::path(delete, path = "/api/v1/users/{name}", params(("name" = String, Path)),
    responses((status = 204), (status = 404, body = Problem), (status = 409, body = Problem)))]
pub(super) async fn remove_user(
    State(api): Shared,
    Extension(Peer(peer)): Extension<Peer>,
    Extension(user): Extension<SessionUser>,
    Path(name): Path<String>,
) -> Result<StatusCode, Problem> {
    api.accounts.remove_user(&name).await?;
    api.note(&user, peer, format!("removed user '{name}'"));
    Ok(StatusCode::NO_CONTENT)
}
