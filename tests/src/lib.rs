//! What the whole-system tests share: golden pools, the oracles that judge us, and loud skipping.
//!
//! Nothing here knows the engine's insides. A test whose oracle is not installed says so on standard error and, when
//! `SANBOX_REQUIRE_ORACLES` is set (as in CI), fails instead of passing quietly.

#![forbid(unsafe_code)]

pub mod golden;
pub mod oracle;

use std::net::TcpListener;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

pub use engine::block_on;

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
