//! The server, for the program around it: its targets, its sessions, and a [`Connection`] for each socket.

use std::net::SocketAddr;
use std::sync::Arc;

use crate::connection::Connection;
use crate::environment::Transport;
use crate::registry::{Registry, ServerConfig};
use crate::spec::{Chap, TargetSpec};
use crate::wire::Wire;

/// A session, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionInfo {
    /// The target's name; empty for discovery.
    pub target: String,
    /// The initiator's name.
    pub initiator: String,
    /// Addresses of its connections.
    pub peers: Vec<SocketAddr>,
}

/// The server. Clones share it.
#[derive(Clone)]
pub struct Server(Arc<Registry>);

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Server")
    }
}

impl Server {
    /// Makes a server without targets.
    #[must_use]
    pub fn new(config: ServerConfig) -> Self {
        Self(Arc::new(Registry::new(config)))
    }

    /// Says what initiators must know to discover targets.
    pub fn set_discovery(&self, chap: Option<Chap>) {
        self.0.set_discovery(chap);
    }

    /// Makes the targets those given. Sessions of targets that go are ended; those of targets that stay are told what changed.
    pub fn set_targets(&self, specs: Vec<TargetSpec>) {
        self.0.set_targets(specs);
    }

    /// Begins to serve a connection.
    #[must_use]
    pub fn connect(
        &self,
        peer: SocketAddr,
        local: SocketAddr,
        transport: Arc<dyn Transport>,
    ) -> Connection {
        let wire = Arc::new(Wire::new(peer, local, transport));
        Connection::new(self.0.clone(), wire)
    }

    /// Lists the sessions.
    #[must_use]
    pub fn sessions(&self) -> Vec<SessionInfo> {
        let sessions = self.0.sessions();
        let info = sessions.iter().map(|session| SessionInfo {
            target: session
                .target
                .as_ref()
                .map(|target| target.name.clone())
                .unwrap_or_default(),
            initiator: session.nexus.port.initiator.clone(),
            peers: session.connections().iter().map(|c| c.peer).collect(),
        });
        info.collect()
    }

    /// Returns how many sessions can reach a volume.
    #[must_use]
    pub fn users_of(&self, guid: u64) -> usize {
        let unit = self.0.unit(guid);
        unit.map_or(0, |unit| unit.state().ports().len())
    }

    /// Asks all initiators to log out within `seconds`.
    pub fn ask_logout(&self, seconds: u16) {
        let sessions = self.0.sessions();
        for session in sessions {
            session.ask_logout(seconds);
        }
    }

    /// Ends all sessions.
    pub fn close(&self) {
        let sessions = self.0.sessions();
        for session in sessions {
            self.0.end_session(&session);
        }
    }
}
