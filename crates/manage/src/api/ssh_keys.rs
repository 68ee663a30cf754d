//! Calls about SSH keys: by them other hosts log in to replicate in the name of a user.

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::{Extension, Json};
use serde::Deserialize;
use utoipa::ToSchema;

use super::{Body, Peer, Problem, Shared};
use crate::accounts::{Role, SessionUser, SshKey, SshKeyView};
use crate::database::seconds_since_epoch;

/// An SSH key to be added.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct SshKeyRequest {
    /// The line of a file such as `id_ed25519.pub`.
    key: String,
    /// Whose it is, for owners; the session's user without it.
    user: Option<String>,
}

/// Lists the SSH keys: the own ones, and for owners everybody's.
#[utoipa::path(get, path = "/api/v1/ssh-keys", responses((status = 200, body = Vec<SshKeyView>)))]
pub(super) async fn list_ssh_keys(
    State(api): Shared,
    Extension(user): Extension<SessionUser>,
) -> Json<Vec<SshKeyView>> {
    let all = user.role == Role::Owner;
    Json(api.accounts.ssh_keys((!all).then_some(user.name.as_str())))
}

/// Adds an SSH key to the session's user, for owners to any. Who logs in by it may do what the user may.
#[utoipa::path(post, path = "/api/v1/ssh-keys", request_body = SshKeyRequest,
    responses((status = 201, body = SshKeyView), (status = 403, body = Problem), (status = 422, body = Problem)))]
pub(super) async fn add_ssh_key(
    State(api): Shared,
    Extension(Peer(peer)): Extension<Peer>,
    Extension(user): Extension<SessionUser>,
    Body(asked): Body<SshKeyRequest>,
) -> Result<(StatusCode, Json<SshKeyView>), Problem> {
    let whose = asked.user.unwrap_or_else(|| user.name.clone());
    if whose != user.name && user.role != Role::Owner {
        let detail = "the keys of others are for owners";
        return Err(Problem::new(StatusCode::FORBIDDEN, detail));
    }
    let key = SshKey::parse(&asked.key);
    let key = key.map_err(|why| Problem::new(StatusCode::UNPROCESSABLE_ENTITY, why))?;
    let added = api
        .accounts
        .add_ssh_key(&whose, key, seconds_since_epoch())
        .await?;
    let event = format!(
        "added SSH key {} '{}' of '{whose}'",
        added.id, added.fingerprint
    );
    api.note(&user, peer, event);
    Ok((StatusCode::CREATED, Json(added)))
}

/// Removes an SSH key: an own one, and for owners one of any user.
#[utoipa::path(delete, path = "/api/v1/ssh-keys/{id}", params(("id" = u64, Path)),
    responses((status = 204), (status = 404, body = Problem)))]
pub(super) async fn remove_ssh_key(
    State(api): Shared,
    Extension(Peer(peer)): Extension<Peer>,
    Extension(user): Extension<SessionUser>,
    id: Result<Path<u64>, PathRejection>,
) -> Result<StatusCode, Problem> {
    let no_key = || Problem::not_found("there is no such SSH key");
    let Path(id) = id.map_err(|_| no_key())?;
    let all = user.role == Role::Owner;
    let whose = (!all).then_some(user.name.as_str());
    if !api.accounts.ssh_keys(whose).iter().any(|key| key.id == id) {
        return Err(no_key());
    }
    let key = api.accounts.remove_ssh_key(whose, id).await?;
    let event = format!(
        "removed SSH key {id} '{}' of '{}'",
        key.fingerprint, key.user
    );
    api.note(&user, peer, event);
    Ok(StatusCode::NO_CONTENT)
}
