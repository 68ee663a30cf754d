//! What the whole-system tests share: golden pools, the oracles that judge us, and loud skipping.
//!
//! Nothing here knows the engine's insides. A test whose oracle is not installed says so on standard error and, when
//! `SANBOX_REQUIRE_ORACLES` is set (as in CI), fails instead of passing quietly.

#![forbid(unsafe_code)]

pub mod golden;
pub mod oracle;

use std::future::Future;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

/// Returns the repository's root.
#[must_use]
pub fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("tests/ has a parent")
        .to_path_buf()
}

/// Returns a TCP port of the loopback address that nobody listens at.
#[must_use]
pub fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("bound").port()
}

/// Says aloud that `what` is not tested here, and why.
///
/// # Panics
/// When `SANBOX_REQUIRE_ORACLES` is set: there, everything must be installed.
pub fn skip(what: &str, why: &str) {
    assert!(
        std::env::var_os("SANBOX_REQUIRE_ORACLES").is_none(),
        "{what}: {why}, and SANBOX_REQUIRE_ORACLES is set"
    );
    eprintln!("SKIPPED {what}: {why}");
}

/// Runs a future of the engine's door to its end on this thread.
pub fn block_on<F: Future>(future: F) -> F::Output {
    struct Unpark(std::thread::Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut context = Context::from_waker(&waker);
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(output) => return output,
            Poll::Pending => std::thread::park(),
        }
    }
}
