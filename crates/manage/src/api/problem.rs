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
    /// A word for programs, where one status has several causes: `second-factor-needed`, `second-factor-wrong`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<&'static str>,
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
            reason: None,
            retry_seconds: None,
        }
    }

    /// The request needs a session.
    pub(crate) fn unauthorized() -> Self {
        Self::new(
            StatusCode::UNAUTHORIZED,
            "log in first, or show an API key that is valid",
        )
    }

    /// A key that is for some datasets alone was shown for something else.
    pub(crate) fn beyond_key(what: &str) -> Self {
        let detail = format!("the key is for some datasets alone, and does not reach {what}");
        Self::new(StatusCode::FORBIDDEN, detail)
    }

    /// What was asked of a pool was not answered in time.
    pub(crate) fn unanswered(pool: &str, seconds: u64) -> Self {
        let detail = format!(
            "pool '{pool}' did not answer within {seconds} s: one of its disks may hang; nothing was changed"
        );
        Self::new(StatusCode::SERVICE_UNAVAILABLE, detail)
    }

    /// What was asked waits for disks that do not answer; none are named when the pool itself does not.
    pub(crate) fn silent(pool: &str, disks: &[String]) -> Self {
        let detail = match disks {
            [] => format!("pool '{pool}' does not answer: one of its disks may hang"),
            disks => format!(
                "pool '{pool}' waits for a disk that does not answer: {}",
                disks.join(", ")
            ),
        };
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
            AccountError::SetupToken
            | AccountError::NoRole(_)
            | AccountError::NotOfDirectory(_) => StatusCode::FORBIDDEN,
            AccountError::Credentials | AccountError::SecondFactorNeeded => {
                StatusCode::UNAUTHORIZED
            }
            AccountError::SecondFactor | AccountError::Key(_) | AccountError::Group(_) => {
                StatusCode::UNPROCESSABLE_ENTITY
            }
            AccountError::Wait(_) => StatusCode::TOO_MANY_REQUESTS,
            AccountError::Name | AccountError::Password | AccountError::KnownPassword => {
                StatusCode::UNPROCESSABLE_ENTITY
            }
            AccountError::Missing(_) | AccountError::GroupMissing(_) => StatusCode::NOT_FOUND,
            AccountError::Exists(_)
            | AccountError::GroupExists(_)
            | AccountError::OfDirectory(_)
            | AccountError::LastOwner(_)
            | AccountError::SecondFactorExists(_)
            | AccountError::SecondFactorMissing(_)
            | AccountError::Full => StatusCode::CONFLICT,
            AccountError::Busy | AccountError::Directory | AccountError::Database(_) => {
                StatusCode::SERVICE_UNAVAILABLE
            }
            AccountError::Secret(_) => StatusCode::INTERNAL_SERVER_ERROR,
        };
        let mut problem = Self::new(status, error.to_string());
        problem.reason = match &error {
            AccountError::SecondFactorNeeded => Some("second-factor-needed"),
            AccountError::SecondFactor => Some("second-factor-wrong"),
            _ => None,
        };
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
        let asks = status == StatusCode::UNAUTHORIZED;
        let mut response = (status, Json(self)).into_response();
        let headers = response.headers_mut();
        let kind = HeaderValue::from_static("application/problem+json");
        headers.insert(header::CONTENT_TYPE, kind);
        if asks {
            // RFC 9110, 15.5.2: the answer says how to authenticate.
            let schemes = HeaderValue::from_static("Bearer realm=\"sanbox\"");
            headers.insert(header::WWW_AUTHENTICATE, schemes);
        }
        if let Some(seconds) = retry {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}
