//! Ways to log in beside a name and a password of the appliance: what there is, and the way by an OpenID Connect provider.
//!
//! The browser is sent to the provider and comes back with a code (RFC 6749, 4.1) that only this appliance can use: what proves that
//! (RFC 7636) is derived from a secret in a cookie of that browser. Nothing is kept here meanwhile.

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use axum::{Extension, body::Body as HttpBody};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use zeroize::Zeroizing;

use super::session::{cookie_named, session_cookie};
use super::{Api, Peer, Problem, Shared};
use crate::accounts::{AccountError, Directory, NewSession, Refusal};
use crate::database::seconds_since_epoch;
use crate::secret;

/// The cookie of a log-in by a provider that has begun. It comes back from there, so that it cannot be `Strict`.
const COOKIE: &str = "__Host-sanbox-login";
/// Seconds that a user has at the provider.
const SECONDS_MAX: u64 = 600;

/// Ways to log in.
#[derive(Serialize, ToSchema)]
pub(super) struct LoginWays {
    /// Names and passwords of an LDAP directory are taken, too.
    ldap: bool,
    /// What the OpenID Connect provider is called, where there is one: `GET /api/v1/login/oidc` leads there.
    oidc: Option<String>,
}

/// What a provider sends a browser back with.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct Callback {
    /// The code.
    code: Option<String>,
    /// What the log-in began with.
    state: Option<String>,
    /// Why there is no code.
    error: Option<String>,
}

/// What a log-in by a provider is asked for and proven with.
pub struct OidcProof {
    /// Comes back with the browser.
    pub state: String,
    /// Comes back in the token.
    pub nonce: String,
    /// Proves that who shows the code began the log-in.
    pub verifier: Zeroizing<String>,
}

impl OidcProof {
    fn of(secret: &str) -> Self {
        Self {
            state: secret::derived(secret, "state"),
            nonce: secret::derived(secret, "nonce"),
            verifier: Zeroizing::new(secret::derived(secret, "verifier")),
        }
    }
}

/// Says which ways to log in there are.
#[utoipa::path(get, path = "/api/v1/login", responses((status = 200, body = LoginWays)))]
pub(super) async fn list_ways(State(api): Shared) -> Json<LoginWays> {
    Json(LoginWays {
        ldap: api.backend.asks_directory(),
        oidc: api.backend.provider(),
    })
}

/// Sends the browser to the OpenID Connect provider.
#[utoipa::path(get, path = "/api/v1/login/oidc",
    responses((status = 303), (status = 404, body = Problem), (status = 503, body = Problem)))]
pub(super) async fn begin_oidc(
    State(api): Shared,
    Extension(Peer(peer)): Extension<Peer>,
) -> Result<Response, Problem> {
    provider(&api)?;
    let secret = secret::generate().map_err(|error| AccountError::Secret(error.to_string()))?;
    let begun = api.backend.provider_address(OidcProof::of(&secret)).await;
    let address = match begun {
        Ok(address) => address,
        Err(why) => return Err(refused(&api, peer, &Refusal::Unavailable(why))),
    };
    let cookie = cookie(&secret, SECONDS_MAX);
    let headers = [(header::LOCATION, address), (header::SET_COOKIE, cookie)];
    Ok((StatusCode::SEE_OTHER, headers).into_response())
}

/// Begins a session of the user whom the OpenID Connect provider has sent back.
#[utoipa::path(get, path = "/api/v1/login/oidc/callback", params(Callback),
    responses((status = 200, content_type = "text/html"), (status = 401, body = Problem), (status = 403, body = Problem),
        (status = 404, body = Problem), (status = 503, body = Problem)))]
pub(super) async fn finish_oidc(
    State(api): Shared,
    Extension(Peer(peer)): Extension<Peer>,
    headers: HeaderMap,
    asked: Result<Query<Callback>, QueryRejection>,
) -> Response {
    let began = cookie_named(&headers, COOKIE).map(str::to_owned);
    let asked = asked.map_err(|error| Problem::bad_request(error.body_text()));
    let logged = match asked {
        Ok(Query(asked)) => oidc_session(&api, peer, began, asked).await,
        Err(problem) => Err(problem),
    };
    let mut response = match logged {
        Ok(new) => entered(&new),
        Err(problem) => problem.into_response(),
    };
    // Whatever came of it, it is over.
    if let Ok(gone) = cookie("", 0).parse() {
        response.headers_mut().append(header::SET_COOKIE, gone);
    }
    response
}

async fn oidc_session(
    api: &Api,
    peer: std::net::SocketAddr,
    began: Option<String>,
    asked: Callback,
) -> Result<NewSession, Problem> {
    provider(api)?;
    let foreign = || {
        let detail = "this log-in was not begun by this browser, or too long ago: begin again";
        Problem::new(StatusCode::FORBIDDEN, detail)
    };
    let proof = OidcProof::of(&began.ok_or_else(foreign)?);
    let state = asked.state.unwrap_or_default();
    if secret::hash(&state) != secret::hash(&proof.state) {
        return Err(foreign());
    }
    let now = seconds_since_epoch();
    // The bounds of all log-ins hold for this address; the name of the user is not known yet.
    api.accounts.may_try("oidc", peer.ip(), now)?;
    let Some(code) = asked.code.filter(|_| asked.error.is_none()) else {
        let said: String = asked.error.unwrap_or_default().chars().take(64).collect();
        note(
            api,
            peer,
            "",
            &format!("log-in refused by the provider: {said:?}"),
        );
        return Err(AccountError::Credentials.into());
    };
    let known = match api.backend.ask_provider(code, proof).await {
        Ok(known) => known,
        Err(refusal) => return Err(refused(api, peer, &refusal)),
    };
    let (name, role) = known;
    let origin = (peer.ip(), now);
    let directory = Directory::Oidc;
    let new = api
        .accounts
        .log_in_by(directory, &name, role.ok_or(Refusal::NoRole), None, origin);
    let new = new.await;
    let event = match &new {
        Ok(_) => "logged in by the provider".to_owned(),
        Err(error) => format!("log-in by the provider refused: {error}"),
    };
    note(api, peer, &name, &event);
    Ok(new?)
}

fn provider(api: &Api) -> Result<(), Problem> {
    let missing = || Problem::not_found("no OpenID Connect provider is set");
    api.backend.provider().map(drop).ok_or_else(missing)
}

/// Notes why a log-in by a provider failed, and answers with as much of it as any client may know.
fn refused(api: &Api, peer: std::net::SocketAddr, refusal: &Refusal) -> Problem {
    match refusal {
        Refusal::Unavailable(why) => {
            note(
                api,
                peer,
                "",
                &format!("log-in by the provider failed: {why}"),
            );
            AccountError::Directory.into()
        }
        Refusal::Credentials => {
            api.accounts
                .failed("oidc", peer.ip(), seconds_since_epoch());
            note(
                api,
                peer,
                "",
                "log-in by the provider failed: it does not know the code",
            );
            AccountError::Credentials.into()
        }
        Refusal::NoRole => AccountError::NoRole(String::new()).into(),
    }
}

fn note(api: &Api, peer: std::net::SocketAddr, name: &str, event: &str) {
    let origin = peer.ip().to_canonical().to_string();
    api.audit.note(name, &origin, event);
}

fn cookie(secret: &str, seconds: u64) -> String {
    format!("{COOKIE}={secret}; Path=/; Secure; HttpOnly; SameSite=Lax; Max-Age={seconds}")
}

/// A page that leads to the console. A redirection would be one that another site began, on which the session's cookie, which is
/// `Strict`, is not shown (RFC 6265bis, 5.2).
fn entered(new: &NewSession) -> Response {
    let page = "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><meta http-equiv=\"refresh\" content=\"0;url=/\">\
                <title>sanbox</title><a href=\"/\">sanbox</a></html>";
    let headers = [
        (header::SET_COOKIE, session_cookie(new)),
        (header::CONTENT_TYPE, "text/html; charset=utf-8".to_owned()),
    ];
    (StatusCode::OK, headers, HttpBody::from(page)).into_response()
}
