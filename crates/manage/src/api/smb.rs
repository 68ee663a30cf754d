//! The call about SMB: shares, clients and open files.

use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;

use super::{Problem, Shared};
use crate::samba::status::SmbStatus;

/// How long Samba may take to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// Shows what is shared by SMB, who is connected, and which files are open.
#[utoipa::path(get, path = "/api/v1/smb", responses(
    (status = 200, body = SmbStatus),
    (status = 404, body = Problem),
    (status = 503, body = Problem),
))]
pub(super) async fn show_smb(State(api): Shared) -> Result<Json<SmbStatus>, Problem> {
    let status = tokio::time::timeout(ANSWER_TIMEOUT, api.backend.smb_status()).await;
    match status {
        Ok(Some(status)) => Ok(Json(status)),
        Ok(None) => Err(Problem::not_found(
            "SMB is not served: [smb] port is 0 in sanbox.toml",
        )),
        Err(_) => Err(Problem::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "Samba did not answer in time",
        )),
    }
}
