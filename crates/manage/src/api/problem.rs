//! Errors as clients see them: RFC 9457, problem details.

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use engine::EngineError;
use serde::Serialize;
use utoipa::ToSchema;

use crate::accounts::AccountError;

/// Why a request failed (RFC 9457).
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct Problem {
    /// Status code of HTTP.
    pub status: u16,
    /// What the status means.
    pub title: String,
    /// What went wrong, and what to do.
    pub detail: String,
    #[serde(skip)]
    retry_seconds: Option<u64>,
}

impl Problem {
    /// Returns a problem of a status.
    pub(crate) fn new(status: StatusCode, detail: impl Into<String>) -> Self {
        Self {
            status: status.as_u16(),
            title: status.canonical_reason().unwrap_or_default().to_owned(),
            detail: detail.into(),
            retry_seconds: None,
        }
    }

    /// The request needs a session.
    pub(crate) fn unauthorized() -> Self {
        Self::new(StatusCode::UNAUTHORIZED, "log in first")
    }

    /// What was asked of a pool was not answered in time.
    pub(crate) fn unanswered(pool: &str, seconds: u64) -> Self {
        let detail = format!(
            "pool '{pool}' did not answer within {seconds} s: one of its disks may hang; nothing was changed"
        );
        Self::new(StatusCode::SERVICE_UNAVAILABLE, detail)
    }

    /// What was asked does not exist.
    pub(crate) fn not_found(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, detail)
    }

    /// The request is not as it should be.
    pub(crate) fn bad_request(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, detail)
    }

    /// What the engine answered about a pool or dataset.
    pub(crate) fn of_engine(name: &str, error: &EngineError) -> Self {
        let status = match error {
            EngineError::PoolNotFound(_) | EngineError::DatasetNotFound(_) => StatusCode::NOT_FOUND,
            EngineError::PoolClosed => StatusCode::CONFLICT,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Self::new(status, format!("'{name}': {error}"))
    }
}

impl From<AccountError> for Problem {
    fn from(error: AccountError) -> Self {
        let status = match &error {
            AccountError::SetupToken => StatusCode::FORBIDDEN,
            AccountError::Credentials => StatusCode::UNAUTHORIZED,
            AccountError::Wait(_) => StatusCode::TOO_MANY_REQUESTS,
            AccountError::Name | AccountError::Password => StatusCode::UNPROCESSABLE_ENTITY,
            AccountError::Missing(_) => StatusCode::NOT_FOUND,
            AccountError::Exists(_) | AccountError::LastOwner(_) | AccountError::Full => {
                StatusCode::CONFLICT
            }
            AccountError::Busy | AccountError::Database(_) => StatusCode::SERVICE_UNAVAILABLE,
            AccountError::Secret(_) => StatusCode::INTERNAL_SERVER_ERROR,
        };
        let mut problem = Self::new(status, error.to_string());
        if let AccountError::Wait(seconds) = error {
            problem.retry_seconds = Some(seconds);
        }
        problem
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let retry = self.retry_seconds;
        let mut response = (status, Json(self)).into_response();
        let headers = response.headers_mut();
        let kind = HeaderValue::from_static("application/problem+json");
        headers.insert(header::CONTENT_TYPE, kind);
        if let Some(seconds) = retry {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}
