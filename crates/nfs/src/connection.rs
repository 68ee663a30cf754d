//! A connection of a client, as far as the server sends calls of its own by it (RFC 8881, section 2.10.3.1: the back channel).

use crate::call_counts::ClientCounters;
use crate::exports::Flavour;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

/// How what goes by a connection is protected (RFC 9289).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum TransportSecurity {
    /// Not at all.
    #[default]
    Plain,
    /// By TLS; the client showed no certificate.
    Tls,
    /// By TLS; the client has a certificate that was verified.
    MutualTls,
}

/// A connection of a client. It ends when the last clone of its `Arc` is dropped by who carries it.
pub struct ClientConnection {
    security: TransportSecurity,
    send: Box<dyn Fn(Vec<u8>) -> bool + Send + Sync>,
    called_back: AtomicBool,
    counters: OnceLock<Arc<ClientCounters>>,
}

impl std::fmt::Debug for ClientConnection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClientConnection").finish_non_exhaustive()
    }
}

impl ClientConnection {
    /// Returns a connection. `send` takes an RPC message without its record mark that is to be sent to the client, and returns
    /// at once, false where it cannot be taken.
    #[must_use]
    pub fn new(
        security: TransportSecurity,
        send: impl Fn(Vec<u8>) -> bool + Send + Sync + 'static,
    ) -> Arc<Self> {
        Arc::new(Self {
            security,
            send: Box::new(send),
            called_back: AtomicBool::new(false),
            counters: OnceLock::new(),
        })
    }

    pub(crate) fn security(&self) -> TransportSecurity {
        self.security
    }

    /// Returns whether calls may be sent by it: until its client asked for that there are none.
    #[must_use]
    pub fn is_called_back(&self) -> bool {
        self.called_back.load(Ordering::Relaxed)
    }

    /// Notes that a session of the client has its back channel here.
    pub(crate) fn call_back(&self) {
        self.called_back.store(true, Ordering::Relaxed);
    }

    /// What its client's calls are counted in.
    pub(crate) fn counters(
        &self,
        find: impl FnOnce() -> Arc<ClientCounters>,
    ) -> Arc<ClientCounters> {
        Arc::clone(self.counters.get_or_init(find))
    }

    pub(crate) fn send(&self, message: Vec<u8>) -> bool {
        (self.send)(message)
    }
}

/// The other side of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer {
    pub(crate) address: SocketAddr,
    pub(crate) security: TransportSecurity,
    /// Of the call: a connection has calls of several.
    pub(crate) flavour: Flavour,
}

impl Peer {
    pub(crate) fn ip(&self) -> IpAddr {
        self.address.ip()
    }

    pub(crate) fn port(&self) -> u16 {
        self.address.port()
    }
}

/// Where a call came from.
#[derive(Clone, Copy)]
pub(crate) struct CallOrigin<'a> {
    /// By which the client can be called back.
    pub(crate) connection: Option<&'a Arc<ClientConnection>>,
    pub(crate) peer: Peer,
    pub(crate) local: SocketAddr,
    pub(crate) counters: &'a ClientCounters,
}
