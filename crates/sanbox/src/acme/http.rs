//! The connections to an authority: each request has its own, bounded in time and bytes.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Context as _;
use http_body_util::Full;
use hyper::body::Bytes;
use hyper::header::{HeaderValue, RETRY_AFTER};
use hyper::{Request, Response};
use instant_acme::{BodyWrapper, BytesResponse, HttpClient};
use manage::database::seconds_since_epoch;
use tokio::time::timeout;

use crate::web_client::{Trust, exchange};

/// How long a request may take.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// Bytes of an answer: a chain of certificates is the longest.
const ANSWER_BYTES_MAX: usize = 1 << 20;

/// When the authority wants to be asked again, as its last refusal said, in seconds since 1970; 0 where it said nothing.
#[derive(Clone, Debug, Default)]
pub(super) struct RetryAt(Arc<AtomicU64>);

impl RetryAt {
    pub(super) fn get(&self) -> Option<u64> {
        let at = self.0.load(Ordering::Relaxed);
        (at != 0).then_some(at)
    }
}

/// See the module.
pub(super) struct AuthorityClient {
    pub(super) trust: Trust,
    pub(super) retry_at: RetryAt,
}

impl HttpClient for AuthorityClient {
    fn request(
        &self,
        request: Request<BodyWrapper<Bytes>>,
    ) -> Pin<Box<dyn Future<Output = Result<BytesResponse, instant_acme::Error>> + Send>> {
        let (trust, retry_at) = (self.trust.clone(), self.retry_at.clone());
        Box::pin(async move {
            let server = request.uri().authority().map(ToString::to_string);
            let server = server.unwrap_or_default();
            let answer = match timeout(REQUEST_TIMEOUT, send(request, &trust)).await {
                Ok(answer) => answer,
                Err(_) => Err(anyhow::anyhow!("no answer within {REQUEST_TIMEOUT:?}")),
            };
            let answer = answer
                .with_context(|| format!("asking {server}"))
                .map_err(|error| instant_acme::Error::Other(format!("{error:#}").into()))?;
            if answer.status().is_client_error() || answer.status().is_server_error() {
                let header = answer.headers().get(RETRY_AFTER);
                let at = header.and_then(retry_after).unwrap_or(0);
                retry_at.0.store(at, Ordering::Relaxed);
            }
            Ok(BytesResponse::from(answer))
        })
    }
}

/// Reads `Retry-After` (RFC 9110, 10.2.3): seconds, or a date.
fn retry_after(value: &HeaderValue) -> Option<u64> {
    let text = value.to_str().ok()?.trim();
    if let Ok(seconds) = text.parse::<u64>() {
        return Some(seconds_since_epoch().saturating_add(seconds));
    }
    let date = jiff::fmt::rfc2822::parse(text).ok()?;
    u64::try_from(date.timestamp().as_second()).ok()
}

async fn send(
    request: Request<BodyWrapper<Bytes>>,
    trust: &Trust,
) -> anyhow::Result<Response<Full<Bytes>>> {
    let is_secured = request.uri().scheme_str() == Some("https");
    anyhow::ensure!(is_secured, "the authority's address is without TLS");
    let answer = exchange(request, trust, ANSWER_BYTES_MAX).await?;
    Ok(answer.map(Full::new))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wish_to_be_left_alone_is_read() {
        let read = |text: &str| retry_after(&HeaderValue::from_str(text).expect("a value"));
        let now = seconds_since_epoch();
        assert!(read("120").is_some_and(|at| (now + 120..now + 130).contains(&at)));
        assert_eq!(read("Sun, 06 Nov 1994 08:49:37 GMT"), Some(784_111_777));
        assert_eq!(read("soon"), None);
        assert_eq!(read("18446744073709551615"), Some(u64::MAX));
    }
}
