//! Calls about API keys, second factors, changes of users by owners, and the log of accounts.

use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::{Extension, Json};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::{Body, Peer, Problem, Shared};
use crate::accounts::{Enrolment, KeyView, NewKey, Role, SecondFactorState, SessionUser};
use crate::audit::AuditEntry;
use crate::database::seconds_since_epoch;

/// Entries of a page when none are asked for.
const PAGE: usize = 200;
/// Entries of a page at most.
const PAGE_MAX: usize = 1000;

/// A key to be made.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct KeyRequest {
    /// What it is for.
    name: String,
    /// Its role at most; the user's own without it.
    role: Option<Role>,
    /// Datasets it is for, with those below; all, and all other calls, without it.
    #[serde(default)]
    datasets: Vec<String>,
    /// Seconds until it ends; never without it.
    expires_seconds: Option<u64>,
}

/// A key that was made.
#[derive(Serialize, ToSchema)]
pub(super) struct MadeKey {
    /// What a request shows, as `Authorization: Bearer KEY`. It cannot be shown again.
    secret: String,
    key: KeyView,
}

/// A code.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Code {
    /// Of the authenticator.
    code: String,
}

/// Recovery codes: each is good for one log-in. They cannot be shown again.
#[derive(Serialize, ToSchema)]
pub(super) struct RecoveryCodes {
    recovery_codes: Vec<String>,
}

/// A new role.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RoleChange {
    role: Role,
}

/// A new password.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct NewPassword {
    /// At least 12 characters.
    password: String,
}

/// Which part of the log of accounts.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct AuditPage {
    /// Only entries whose user, origin or event contains this.
    filter: Option<String>,
    /// Entries, at most 1000 (200).
    limit: Option<usize>,
    /// Where a page before ended: its `next`.
    cursor: Option<u64>,
}

/// A page of the log of accounts, the newest first.
#[derive(Serialize, ToSchema)]
pub(super) struct AuditList {
    entries: Vec<AuditEntry>,
    /// Where the next page begins; none at the end.
    next: Option<u64>,
}

/// Lists the keys: the own ones, and for owners everybody's.
#[utoipa::path(get, path = "/api/v1/keys", responses((status = 200, body = Vec<KeyView>)))]
pub(super) async fn list_keys(
    State(api): Shared,
    Extension(user): Extension<SessionUser>,
) -> Json<Vec<KeyView>> {
    let all = user.role == Role::Owner;
    Json(api.accounts.keys((!all).then_some(user.name.as_str())))
}

/// Makes a key for the session's user. It has at most the user's role, and is shown once.
#[utoipa::path(post, path = "/api/v1/keys", request_body = KeyRequest,
    responses((status = 201, body = MadeKey), (status = 422, body = Problem)))]
pub(super) async fn make_key(
    State(api): Shared,
    Extension(Peer(peer)): Extension<Peer>,
    Extension(user): Extension<SessionUser>,
    Body(asked): Body<KeyRequest>,
) -> Result<(StatusCode, Json<MadeKey>), Problem> {
    let now = seconds_since_epoch();
    let new = NewKey {
        name: asked.name,
        role: asked.role,
        datasets: asked.datasets,
        expires: asked
            .expires_seconds
            .map(|seconds| now.saturating_add(seconds)),
    };
    let (key, secret) = api
        .accounts
        .make_key(&user.name, new, user.role, now)
        .await?;
    let event = format!("made key {} '{}' ({})", key.id, key.name, key.role.as_str());
    api.note(&user, peer, event);
    Ok((StatusCode::CREATED, Json(MadeKey { secret, key })))
}

/// Revokes a key: an own one, and for owners one of any user.
#[utoipa::path(delete, path = "/api/v1/keys/{id}", params(("id" = u64, Path)),
    responses((status = 204), (status = 404, body = Problem)))]
pub(super) async fn revoke_key(
    State(api): Shared,
    Extension(Peer(peer)): Extension<Peer>,
    Extension(user): Extension<SessionUser>,
    id: Result<Path<u64>, PathRejection>,
) -> Result<StatusCode, Problem> {
    let no_key = |_| Problem::not_found("there is no such key");
    let Path(id) = id.map_err(no_key)?;
    let all = user.role == Role::Owner;
    let whose = (!all).then_some(user.name.as_str());
    if !api.accounts.keys(whose).iter().any(|key| key.id == id) {
        return Err(Problem::not_found("there is no such key"));
    }
    let key = api.accounts.revoke_key(whose, id).await?;
    let event = format!("revoked key {id} '{}' of '{}'", key.name, key.user);
    api.note(&user, peer, event);
    Ok(StatusCode::NO_CONTENT)
}

/// Whether the session's user has a second factor.
#[utoipa::path(get, path = "/api/v1/session/totp", responses((status = 200, body = SecondFactorState)))]
pub(super) async fn show_totp(
    State(api): Shared,
    Extension(user): Extension<SessionUser>,
) -> Json<SecondFactorState> {
    Json(api.accounts.second_factor(&user.name))
}

/// Begins the enrolment of a second factor: the secret for the authenticator. Nothing changes until a code of it is shown.
#[utoipa::path(post, path = "/api/v1/session/totp",
    responses((status = 201, body = Enrolment), (status = 409, body = Problem)))]
pub(super) async fn enrol_totp(
    State(api): Shared,
    Extension(user): Extension<SessionUser>,
) -> Result<(StatusCode, Json<Enrolment>), Problem> {
    let enrolment = api.accounts.enrol_second_factor(&user.name).await?;
    Ok((StatusCode::CREATED, Json(enrolment)))
}

/// Shows a code of the authenticator: log-ins need one from now on.
#[utoipa::path(put, path = "/api/v1/session/totp", request_body = Code,
    responses((status = 200, body = RecoveryCodes), (status = 409, body = Problem), (status = 422, body = Problem)))]
pub(super) async fn confirm_totp(
    State(api): Shared,
    Extension(Peer(peer)): Extension<Peer>,
    Extension(user): Extension<SessionUser>,
    Body(Code { code }): Body<Code>,
) -> Result<Json<RecoveryCodes>, Problem> {
    let now = seconds_since_epoch();
    let confirmed = api.accounts.confirm_second_factor(&user.name, &code, now);
    let recovery_codes = confirmed.await?;
    api.note(&user, peer, "turned the second factor on");
    Ok(Json(RecoveryCodes { recovery_codes }))
}

/// Removes the second factor of the session's user, who shows a code of it once more.
#[utoipa::path(post, path = "/api/v1/session/totp/remove", request_body = Code,
    responses((status = 204), (status = 409, body = Problem), (status = 422, body = Problem)))]
pub(super) async fn remove_totp(
    State(api): Shared,
    Extension(Peer(peer)): Extension<Peer>,
    Extension(user): Extension<SessionUser>,
    Body(Code { code }): Body<Code>,
) -> Result<StatusCode, Problem> {
    let now = seconds_since_epoch();
    api.accounts
        .check_second_factor(&user.name, Some(&code), now)
        .await?;
    api.accounts.remove_second_factor(&user.name).await?;
    api.note(&user, peer, "turned the second factor off");
    Ok(StatusCode::NO_CONTENT)
}

/// Changes a user's role; that of the user's sessions and keys changes with it.
#[utoipa::path(put, path = "/api/v1/users/{name}/role", params(("name" = String, Path)), request_body = RoleChange,
    responses((status = 204), (status = 404, body = Problem), (status = 409, body = Problem)))]
pub(super) async fn change_role(
    State(api): Shared,
    Extension(Peer(peer)): Extension<Peer>,
    Extension(user): Extension<SessionUser>,
    Path(name): Path<String>,
    Body(RoleChange { role }): Body<RoleChange>,
) -> Result<StatusCode, Problem> {
    api.accounts.change_role(&name, role).await?;
    let event = format!("changed the role of '{name}' to {}", role.as_str());
    api.note(&user, peer, event);
    Ok(StatusCode::NO_CONTENT)
}

/// Gives a user a new password; the user's sessions end.
#[utoipa::path(put, path = "/api/v1/users/{name}/password", params(("name" = String, Path)), request_body = NewPassword,
    responses((status = 204), (status = 404, body = Problem), (status = 422, body = Problem)))]
pub(super) async fn reset_password(
    State(api): Shared,
    Extension(Peer(peer)): Extension<Peer>,
    Extension(user): Extension<SessionUser>,
    Path(name): Path<String>,
    Body(NewPassword { password }): Body<NewPassword>,
) -> Result<StatusCode, Problem> {
    api.accounts.reset_password(&name, &password).await?;
    api.note(&user, peer, format!("gave '{name}' a new password"));
    Ok(StatusCode::NO_CONTENT)
}

/// Removes the second factor of a user who has lost it.
#[utoipa::path(delete, path = "/api/v1/users/{name}/totp", params(("name" = String, Path)),
    responses((status = 204), (status = 404, body = Problem)))]
pub(super) async fn reset_totp(
    State(api): Shared,
    Extension(Peer(peer)): Extension<Peer>,
    Extension(user): Extension<SessionUser>,
    Path(name): Path<String>,
) -> Result<StatusCode, Problem> {
    api.accounts.remove_second_factor(&name).await?;
    api.note(
        &user,
        peer,
        format!("removed the second factor of '{name}'"),
    );
    Ok(StatusCode::NO_CONTENT)
}

/// The log of accounts: log-ins, and changes of users, keys, second factors and settings.
#[utoipa::path(get, path = "/api/v1/audit", params(AuditPage),
    responses((status = 200, body = AuditList), (status = 400, body = Problem)))]
pub(super) async fn list_audit(
    State(api): Shared,
    asked: Result<Query<AuditPage>, QueryRejection>,
) -> Result<Json<AuditList>, Problem> {
    let Query(asked) = asked.map_err(|error| Problem::bad_request(error.body_text()))?;
    let limit = asked.limit.unwrap_or(PAGE);
    if !(1..=PAGE_MAX).contains(&limit) {
        return Err(Problem::bad_request(format!("limit is 1 to {PAGE_MAX}")));
    }
    let filter = asked.filter.unwrap_or_default();
    let entries = api.audit.list(asked.cursor, &filter, limit);
    let next = entries.last().map(|entry| entry.id);
    Ok(Json(AuditList {
        next: next.filter(|_| entries.len() == limit),
        entries,
    }))
}
