//! Bodies of requests that were answered before they were read.
//!
//! A connection that is closed while its client still sends is reset, and the client may lose the answer with it: an upload that is refused
//! would look like a broken network. What is left of such a body is read and thrown away, within bounds, before the connection closes.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, BodyDataStream, Bytes, HttpBody as _};
use axum::extract::Request;
use axum::http::header;
use axum::middleware::Next;
use axum::response::Response;
use futures_util::{Stream, StreamExt as _};

/// Bytes that are read of what is left, at most: a client that sends more learns by the end of its connection.
const LEFT_BYTES_MAX: usize = 8 << 20;
/// How long they are waited for.
const LEFT_TIMEOUT: Duration = Duration::from_secs(2);

/// Has what a handler leaves of a body read to its end, after the answer.
pub(super) async fn read_to_end(request: Request, next: Next) -> Response {
    if request.body().is_end_stream() {
        return next.run(request).await;
    }
    let (parts, body) = request.into_parts();
    let watched = WatchedBody {
        left: Some(body.into_data_stream()),
        is_coming: !parts.headers.contains_key(header::EXPECT),
    };
    let body = Body::from_stream(watched);
    next.run(Request::from_parts(parts, body)).await
}

/// A body, the rest of which is thrown away when this is dropped.
struct WatchedBody {
    /// `None` at its end.
    left: Option<BodyDataStream>,
    /// RFC 9110, 10.1.1: a client that expects "100 (Continue)" sends nothing before, and that is told where a body is first asked for.
    is_coming: bool,
}

impl Stream for WatchedBody {
    type Item = Result<Bytes, axum::Error>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.is_coming = true;
        let Some(left) = &mut self.left else {
            return Poll::Ready(None);
        };
        let polled = left.poll_next_unpin(context);
        if matches!(polled, Poll::Ready(None | Some(Err(_)))) {
            self.left = None;
        }
        polled
    }
}

impl Drop for WatchedBody {
    fn drop(&mut self) {
        let left = self.left.take().filter(|_| self.is_coming);
        // Without a runtime there is no connection either.
        if let (Some(left), Ok(runtime)) = (left, tokio::runtime::Handle::try_current()) {
            runtime.spawn(tokio::time::timeout(LEFT_TIMEOUT, throw_away(left)));
        }
    }
}

async fn throw_away(mut left: BodyDataStream) {
    let mut bytes = 0;
    while let Some(Ok(chunk)) = left.next().await {
        bytes += chunk.len();
        if bytes > LEFT_BYTES_MAX {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use axum::Router;
    use axum::http::StatusCode;
    use axum::middleware::from_fn;
    use axum::routing::post;
    use futures_util::stream;
    use tower::ServiceExt as _;

    use super::*;

    /// Chunks of 64 KiB that are read of a body of `chunks`, when its handler reads `wanted` of them and answers.
    async fn read_of(chunks: usize, wanted: usize, expects: bool) -> usize {
        let taken = Arc::new(AtomicUsize::new(0));
        let counter = taken.clone();
        let body = stream::iter(0..chunks).map(move |_| {
            counter.fetch_add(1, Ordering::Relaxed);
            Ok::<_, std::io::Error>(vec![0_u8; 64 << 10])
        });
        let handler = async move |body: Body| {
            let mut body = body.into_data_stream();
            for _ in 0..wanted {
                body.next().await;
            }
            StatusCode::PAYLOAD_TOO_LARGE
        };
        let router = Router::new()
            .route("/", post(handler))
            .layer(from_fn(read_to_end));
        let request = axum::http::Request::post("/");
        let request = match expects {
            true => request.header(header::EXPECT, "100-continue"),
            false => request,
        };
        let request = request.body(Body::from_stream(body)).expect("a request");
        let answer = router.oneshot(request).await.expect("answered");
        assert_eq!(answer.status(), StatusCode::PAYLOAD_TOO_LARGE);
        tokio::task::yield_now().await;
        taken.load(Ordering::Relaxed)
    }

    #[tokio::test]
    async fn what_a_refused_request_sends_still_is_read_within_bounds() {
        assert_eq!(read_of(100, 0, false).await, 100);
        assert_eq!(read_of(100, 3, false).await, 100);
        assert_eq!(read_of(100, 100, false).await, 100);
        let bound = (LEFT_BYTES_MAX >> 16) + 1;
        assert_eq!(read_of(10_000, 0, false).await, bound);
        // The client was not told to send.
        assert_eq!(read_of(100, 0, true).await, 0);
        assert_eq!(read_of(100, 1, true).await, 100);
    }
}
