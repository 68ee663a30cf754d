//! Hostile bytes, for fuzzing: whole connections.

use std::pin::pin;
use std::task::{Context, Poll, Waker};

use crate::exports::{Export, Exports};
use crate::negotiation::{Need, Negotiation, Step};
use crate::request::{REQUEST_BYTES, Request};

/// Two exports without anything behind them.
pub(crate) struct NamedExports;

impl Exports for NamedExports {
    type Volume = ();

    async fn names(&self) -> Vec<String> {
        vec!["tank/a".to_owned(), "tank/b".to_owned()]
    }

    async fn open(&self, name: &str) -> Option<Export<()>> {
        matches!(name, "tank/a" | "tank/b").then(|| Export {
            volume: (),
            size: 1 << 30,
            block_size: 16 << 10,
            volume_read_only: false,
            read_only: name == "tank/b",
        })
    }
}

/// Runs what waits for nothing.
pub(crate) fn run<T>(work: impl Future<Output = T>) -> T {
    match pin!(work).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(done) => done,
        Poll::Pending => panic!("nothing here waits"),
    }
}

/// Feeds bytes to a connection as they would come from a socket, through the negotiation and then as requests, as far as they last.
pub fn connection(bytes: &[u8]) {
    let (mut negotiation, _greeting) = Negotiation::begin();
    let mut rest = bytes;
    loop {
        let (count, skipped) = match negotiation.need() {
            Need::Bytes(count) => (count, false),
            Need::Skip(count) => (usize::try_from(count).unwrap_or(usize::MAX), true),
        };
        let Some((taken, after)) = rest.split_at_checked(count) else {
            return;
        };
        rest = after;
        let taken = if skipped { &[] } else { taken };
        match run(negotiation.receive(taken, &NamedExports)) {
            Ok(Step::Continue(_)) => {}
            Ok(Step::Chosen(..)) => break,
            Ok(Step::End(_)) | Err(_) => return,
        }
    }
    while let Some((header, after)) = rest.split_first_chunk::<REQUEST_BYTES>() {
        let Some(request) = Request::decode(header).filter(|known| !known.is_disconnect()) else {
            return;
        };
        let data = request
            .data_bytes()
            .and_then(|count| after.split_at_checked(count));
        let Some((_, after)) = data else {
            return;
        };
        rest = after;
    }
}
