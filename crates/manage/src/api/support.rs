//! The call that downloads what `sanbox support` has put together.

use std::io::ErrorKind;

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse as _, Response};

use super::{Problem, Shared};

/// Downloads the archive that the command `sanbox support` made last.
#[utoipa::path(get, path = "/api/v1/support",
    responses((status = 200, content_type = "application/x-tar", body = Vec<u8>), (status = 404, body = Problem), (status = 503, body = Problem)))]
pub(super) async fn download_support(State(api): Shared) -> Result<Response, Problem> {
    let archive = api.backend.support_bundle().await;
    let archive = archive.map_err(|error| match error.kind() {
        ErrorKind::NotFound => Problem::not_found("there is none yet: 'sanbox support' makes one"),
        _ => Problem::new(StatusCode::SERVICE_UNAVAILABLE, error.to_string()),
    })?;
    let headers = [
        (header::CONTENT_TYPE, "application/x-tar"),
        (
            header::CONTENT_DISPOSITION,
            "attachment; filename=\"sanbox-support.tar\"",
        ),
    ];
    Ok((headers, archive).into_response())
}
