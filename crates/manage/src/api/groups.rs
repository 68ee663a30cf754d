//! Calls about groups of users.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::{Extension, Json};
use serde::Deserialize;
use utoipa::ToSchema;

use super::{Api, Body, Peer, Problem, Shared};
use crate::accounts::{GroupEntry, NewGroup, Role, SessionUser, groups_of_machine};
use crate::database::seconds_since_epoch;

/// A new group.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct GroupRequest {
    /// 1 to 32 of a-z, 0-9, `.`, `_`, `-`; a letter first.
    name: String,
    /// Its number, 1000 or more. Without it that of the machine's group of this name, or the next free one.
    number: Option<u32>,
    /// The role that members have at least; none without it.
    role: Option<Role>,
}

/// The role that a group gives.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct GroupRole {
    /// None gives none.
    role: Option<Role>,
}

/// Reads the groups that the machine has by itself.
pub async fn machine_groups() -> BTreeMap<String, u32> {
    let read = tokio::task::spawn_blocking(|| std::fs::read_to_string("/etc/group"));
    let list = read.await.ok().and_then(Result::ok);
    groups_of_machine(&list.unwrap_or_default())
}

fn named(role: Option<Role>) -> &'static str {
    role.map_or("no role", Role::as_str)
}

/// Lists the groups.
#[utoipa::path(get, path = "/api/v1/groups", responses((status = 200, body = Vec<GroupEntry>)))]
pub(super) async fn list_groups(State(api): Shared) -> Json<Vec<GroupEntry>> {
    Json(api.accounts.groups())
}

/// Makes a group.
#[utoipa::path(post, path = "/api/v1/groups", request_body = GroupRequest,
    responses((status = 201, body = GroupEntry), (status = 409, body = Problem), (status = 422, body = Problem)))]
pub(super) async fn add_group(
    State(api): Shared,
    Extension(Peer(peer)): Extension<Peer>,
    Extension(user): Extension<SessionUser>,
    Body(asked): Body<GroupRequest>,
) -> Result<(StatusCode, Json<GroupEntry>), Problem> {
    let GroupRequest { name, number, role } = asked;
    let new = NewGroup { name, number, role };
    let machine = machine_groups().await;
    let now = seconds_since_epoch();
    let group = api.accounts.add_group(new, &machine, now).await?;
    let event = format!("made group '{}' ({})", group.name, named(role));
    api.note(&user, peer, event);
    Ok((StatusCode::CREATED, Json(group)))
}

/// Removes a group.
#[utoipa::path(delete, path = "/api/v1/groups/{name}", params(("name" = String, Path)),
    responses((status = 204), (status = 404, body = Problem)))]
pub(super) async fn remove_group(
    State(api): Shared,
    Extension(Peer(peer)): Extension<Peer>,
    Extension(user): Extension<SessionUser>,
    Path(name): Path<String>,
) -> Result<StatusCode, Problem> {
    api.accounts.remove_group(&name).await?;
    api.note(&user, peer, format!("removed group '{name}'"));
    Ok(StatusCode::NO_CONTENT)
}

/// Changes the role that a group gives.
#[utoipa::path(put, path = "/api/v1/groups/{name}/role", params(("name" = String, Path)), request_body = GroupRole,
    responses((status = 204), (status = 404, body = Problem), (status = 422, body = Problem)))]
pub(super) async fn change_group_role(
    State(api): Shared,
    Extension(Peer(peer)): Extension<Peer>,
    Extension(user): Extension<SessionUser>,
    Path(name): Path<String>,
    Body(GroupRole { role }): Body<GroupRole>,
) -> Result<StatusCode, Problem> {
    api.accounts.change_group_role(&name, role).await?;
    let event = format!("changed the role of group '{name}' to {}", named(role));
    api.note(&user, peer, event);
    Ok(StatusCode::NO_CONTENT)
}

/// Adds a user to a group. It may be one of the machine alone, for files.
#[utoipa::path(put, path = "/api/v1/groups/{name}/members/{user}", params(("name" = String, Path), ("user" = String, Path)),
    responses((status = 204), (status = 404, body = Problem), (status = 422, body = Problem)))]
pub(super) async fn add_member(
    State(api): Shared,
    Extension(Peer(peer)): Extension<Peer>,
    Extension(user): Extension<SessionUser>,
    Path(path): Path<(String, String)>,
) -> Result<StatusCode, Problem> {
    change_member(&api, peer, &user, path, true).await
}

/// Takes a user out of a group.
#[utoipa::path(delete, path = "/api/v1/groups/{name}/members/{user}", params(("name" = String, Path), ("user" = String, Path)),
    responses((status = 204), (status = 404, body = Problem), (status = 422, body = Problem)))]
pub(super) async fn remove_member(
    State(api): Shared,
    Extension(Peer(peer)): Extension<Peer>,
    Extension(user): Extension<SessionUser>,
    Path(path): Path<(String, String)>,
) -> Result<StatusCode, Problem> {
    change_member(&api, peer, &user, path, false).await
}

/// Puts a user into a group, or takes it out, and notes it.
async fn change_member(
    api: &Api,
    peer: SocketAddr,
    user: &SessionUser,
    (name, member): (String, String),
    joins: bool,
) -> Result<StatusCode, Problem> {
    let members = [member];
    let event = match joins {
        true => {
            api.accounts.add_members(&name, &members).await?;
            format!("added '{}' to group '{name}'", members[0])
        }
        false => {
            api.accounts.remove_member(&name, &members[0]).await?;
            format!("took '{}' out of group '{name}'", members[0])
        }
    };
    api.note(user, peer, event);
    Ok(StatusCode::NO_CONTENT)
}
