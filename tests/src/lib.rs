//! What the whole-system tests share: golden pools, the oracles that judge us, and loud skipping.
//!
//! Nothing here knows the engine's insides. A test whose oracle is not installed says so on standard error and, when
//! `SANBOX_REQUIRE_ORACLES` is set (as in CI), fails instead of passing quietly.

#![forbid(unsafe_code)]

pub mod golden;
pub mod oracle;

use std::future::Future;
use std::net::TcpListener;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll, Wake, Waker};

/// Returns the repository's root.
#[must_use]
pub fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("tests/ has a parent")
        .to_path_buf()
}

/// Returns a TCP port of the loopback address that nobody listens at, another one each time.
///
/// The ports lie below those the kernel gives to outgoing connections (`ip_local_port_range`): a port of that range
/// can be taken by anybody's connection, or handed out twice, between this call and the server's bind.
///
/// # Panics
/// When all of them are in use.
#[must_use]
pub fn free_port() -> u16 {
    const FIRST: u32 = 12_000;
    const PORTS: u32 = 20_000;
    static GIVEN: AtomicU32 = AtomicU32::new(0);
    // Test programs that run beside this one begin elsewhere.
    let start = std::process::id().wrapping_mul(97);
    for _ in 0..PORTS {
        let place = start.wrapping_add(GIVEN.fetch_add(1, Ordering::Relaxed)) % PORTS;
        let port = u16::try_from(FIRST + place).expect("below 32,000");
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
    panic!("no TCP port is free");
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
