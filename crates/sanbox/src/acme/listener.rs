//! The port of plain HTTP, open while an authority is expected: challenges are answered, and everything else is sent to HTTPS.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::challenges::Challenges;
use crate::serve::redirect;

/// Connections at once.
const CONNECTIONS_MAX: usize = 64;
/// How long a client may take.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(10);

/// Listens at a port of these addresses, or of all where none is given, until what is returned is dropped.
///
/// # Errors
/// The port cannot be listened at, in words.
pub(super) async fn listen(
    addresses: &[IpAddr],
    port: u16,
    console_port: u16,
    challenges: &Arc<Challenges>,
) -> Result<JoinSet<()>, String> {
    let everywhere = [
        IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        IpAddr::V4(Ipv4Addr::UNSPECIFIED),
    ];
    let mut tasks = JoinSet::new();
    let mut failure = None;
    let chosen = if addresses.is_empty() {
        &everywhere
    } else {
        addresses
    };
    for address in chosen {
        match TcpListener::bind((*address, port)).await {
            Ok(listener) => {
                tasks.spawn(accept(listener, challenges.clone(), console_port));
            }
            Err(error) => failure = Some(format!("port {port} of {address}: {error}")),
        }
    }
    // That of all IPv6 addresses takes IPv4's, too.
    match failure {
        Some(why) if tasks.is_empty() || !addresses.is_empty() => Err(why),
        _ => Ok(tasks),
    }
}

async fn accept(listener: TcpListener, challenges: Arc<Challenges>, console_port: u16) {
    let permits = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let mut connections = JoinSet::new();
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            // No descriptor is left: others may close theirs.
            sleep(Duration::from_millis(100)).await;
            continue;
        };
        while connections.try_join_next().is_some() {}
        let Ok(permit) = permits.clone().try_acquire_owned() else {
            continue;
        };
        let challenges = challenges.clone();
        connections.spawn(async move {
            let _permit = permit;
            let answering = redirect::answer(stream, &challenges, Some(console_port));
            // A broken connection is the client's affair.
            let _ = timeout(CLIENT_TIMEOUT, answering).await;
        });
    }
}
