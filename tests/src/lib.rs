//! What the whole-system tests share: the judges and golden pools of [`oracle`], and ports for servers.

#![forbid(unsafe_code)]

use std::net::TcpListener;
use std::sync::atomic::{AtomicU32, Ordering};

pub use engine::block_on;
pub use oracle::{self, golden, root, skip};

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
