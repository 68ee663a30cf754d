//! The call about what was destroyed and is kept for a while.

use axum::Json;
use axum::extract::State;
use futures_util::future::join_all;
use serde::Serialize;
use utoipa::ToSchema;

use super::Shared;
use crate::trash::{self, TrashEntry};

/// What is in the trash.
#[derive(Serialize, ToSchema)]
pub(super) struct TrashList {
    /// The first to go first.
    entries: Vec<TrashEntry>,
    /// Pools that did not answer, and whose trash is missing here.
    unanswered: Vec<String>,
}

/// Lists datasets that were destroyed and are kept for a while, of all pools. Commands bring them back or destroy them for good: `sanbox trash`.
#[utoipa::path(get, path = "/api/v1/trash", responses((status = 200, body = TrashList)))]
pub(super) async fn list_trash(State(api): Shared) -> Json<TrashList> {
    let pools = api.backend.open_pools();
    let asked = pools.iter().map(|pool| {
        api.asking
            .ask_of_many(pool, |pool| async move { trash::entries(&pool).await })
    });
    let mut list = TrashList {
        entries: Vec::new(),
        unanswered: Vec::new(),
    };
    for (pool, found) in pools.iter().zip(join_all(asked).await) {
        match found {
            Some(found) => list.entries.extend(found),
            None => list.unanswered.push(pool.name().to_owned()),
        }
    }
    list.entries
        .sort_by_key(|entry| entry.until.unwrap_or(i64::MAX));
    Json(list)
}
