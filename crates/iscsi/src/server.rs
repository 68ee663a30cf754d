//! The server: targets, units, sessions, and what all connections share.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::connection::{Conn, Connection};
use crate::pdu::{Held, Out};
use crate::scsi::LogicalUnit;
use crate::session::Session;
use crate::target::{Chap, Shown, Target, TargetSpec, Units};

/// Wrong passwords from one address before it must wait.
const FAILURES_MAX: u32 = 5;
/// How long, in seconds.
const FAILURE_PAUSE_SECONDS: u64 = 30;
/// Addresses remembered for it.
const FAILURES_KEPT: usize = 4096;

/// The owner of a connection's socket: where its PDUs go and its requests run. Calls come from any thread, in the order in which the PDUs are to be written.
pub trait Transport: Send + Sync {
    /// Writes a PDU after those before it.
    fn send(&self, out: Out);
    /// Ends the connection once what was sent has been written.
    fn close(&self);
    /// Runs `work` beside everything else; to its end, even if the connection ends before.
    fn run(&self, work: Work);
}

/// Work on a request of a connection, which waits for volumes.
pub type Work = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The world as the server needs it.
pub trait Environment: Send + Sync {
    /// Fills bytes nobody can guess.
    fn random(&self, bytes: &mut [u8]);
    /// Seconds of a clock that only goes forward.
    fn now_seconds(&self) -> u64;
    /// Keeps the persistent reservations of a volume (`None`: there are none any more); they are on stable storage when the future
    /// gives true. They come back as [`crate::LunSpec::reservations`].
    fn store_reservations<'a>(
        &'a self,
        name: &'a str,
        guid: u64,
        text: Option<String>,
    ) -> Pin<Box<dyn Future<Output = bool> + Send + 'a>>;
}

/// Settings.
#[derive(Clone)]
pub struct ServerConfig {
    /// The world.
    pub environment: Arc<dyn Environment>,
    /// Bytes of commands' data held at once over all sessions.
    pub memory_bytes_max: usize,
    /// Sessions at once.
    pub sessions_max: usize,
}

impl std::fmt::Debug for ServerConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ServerConfig")
            .field("memory_bytes_max", &self.memory_bytes_max)
            .field("sessions_max", &self.sessions_max)
            .finish_non_exhaustive()
    }
}

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
pub struct Server(Arc<Inner>);

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Server")
    }
}

pub(crate) struct Inner {
    pub(crate) config: ServerConfig,
    memory: AtomicUsize,
    next: AtomicU64,
    shared: Mutex<Shared>,
}

#[derive(Default)]
struct Shared {
    targets: BTreeMap<String, Arc<Target>>,
    /// What initiators must know to discover targets.
    discovery: Option<Chap>,
    /// By the volume's guid.
    units: BTreeMap<u64, Arc<LogicalUnit>>,
    sessions: BTreeMap<u16, Arc<Session>>,
    next_tsih: u16,
    /// Failed logins by address: how many, and when the last was, in seconds.
    failures: BTreeMap<IpAddr, (u32, u64)>,
}

/// What wrong passwords are counted by: an IPv4 address, or the network that an IPv6 host chooses its addresses from.
fn origin(peer: IpAddr) -> IpAddr {
    match peer {
        IpAddr::V4(_) => peer,
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() >> 64 << 64)),
    }
}

/// Memory set aside, until it is dropped.
pub(crate) struct Reserved {
    server: Arc<Inner>,
    bytes: usize,
}

impl std::fmt::Debug for Reserved {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Reserved({})", self.bytes)
    }
}

impl Held for Reserved {}

impl Drop for Reserved {
    fn drop(&mut self) {
        self.server.memory.fetch_sub(self.bytes, Ordering::AcqRel);
    }
}

impl Server {
    /// Makes a server without targets.
    #[must_use]
    pub fn new(config: ServerConfig) -> Self {
        Self(Arc::new(Inner {
            config,
            memory: AtomicUsize::new(0),
            next: AtomicU64::new(1),
            shared: Mutex::default(),
        }))
    }

    /// Says what initiators must know to discover targets.
    pub fn set_discovery(&self, chap: Option<Chap>) {
        self.0.shared().discovery = chap;
    }

    /// Makes the targets those given. Sessions of targets that go are ended; those of targets that stay are told what changed.
    pub fn set_targets(&self, specs: Vec<TargetSpec>) {
        let mut ended = Vec::new();
        {
            let mut shared = self.0.shared();
            let mut used = BTreeSet::new();
            let mut kept = BTreeSet::new();
            for spec in specs {
                let mut units = Units::new();
                for lun in &spec.luns {
                    let guid = lun.volume.guid();
                    let environment = self.0.config.environment.clone();
                    let unit = match shared.units.get(&guid) {
                        Some(unit) => {
                            unit.follow(lun);
                            unit.clone()
                        }
                        None => Arc::new(LogicalUnit::new(lun, environment)),
                    };
                    used.insert(guid);
                    shared.units.insert(guid, unit.clone());
                    units.entry(lun.number).or_default().push(Shown {
                        unit,
                        initiators: lun.initiators.clone(),
                    });
                }
                kept.insert(spec.name.clone());
                let known = shared.targets.get(&spec.name).cloned();
                match known {
                    Some(target) => target.follow(spec, units),
                    None => {
                        let name = spec.name.clone();
                        let target = Arc::new(Target::new(spec, units));
                        ended.extend(shared.targets.insert(name, target));
                    }
                }
            }
            shared.units.retain(|guid, _| used.contains(guid));
            let gone: Vec<String> = shared
                .targets
                .keys()
                .filter(|name| !kept.contains(*name))
                .cloned()
                .collect();
            for name in gone {
                ended.extend(shared.targets.remove(&name));
            }
        }
        for target in ended {
            for session in target.sessions() {
                self.0.end_session(&session);
            }
        }
    }

    /// Begins to serve a connection.
    #[must_use]
    pub fn connect(
        &self,
        peer: SocketAddr,
        local: SocketAddr,
        transport: Arc<dyn Transport>,
    ) -> Connection {
        Connection(Arc::new(Conn::new(self.0.clone(), peer, local, transport)))
    }

    /// Lists the sessions.
    #[must_use]
    pub fn sessions(&self) -> Vec<SessionInfo> {
        let sessions: Vec<_> = self.0.shared().sessions.values().cloned().collect();
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
        let unit = self.0.shared().units.get(&guid).cloned();
        unit.map_or(0, |unit| unit.state().ports().len())
    }

    /// Asks all initiators to log out within `seconds`.
    pub fn ask_logout(&self, seconds: u16) {
        let sessions: Vec<_> = self.0.shared().sessions.values().cloned().collect();
        for connection in sessions.iter().flat_map(|session| session.connections()) {
            connection.ask_logout(seconds);
        }
    }

    /// Ends all sessions.
    pub fn close(&self) {
        let sessions: Vec<_> = self.0.shared().sessions.values().cloned().collect();
        for session in sessions {
            self.0.end_session(&session);
        }
    }
}

impl Inner {
    fn shared(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A number nobody had before.
    pub(crate) fn unique(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Sets memory aside, unless too much is in use.
    pub(crate) fn reserve(self: &Arc<Self>, bytes: usize) -> Option<Arc<Reserved>> {
        let before = self.memory.fetch_add(bytes, Ordering::AcqRel);
        let reserved = Reserved {
            server: self.clone(),
            bytes,
        };
        (before.saturating_add(bytes) <= self.config.memory_bytes_max).then(|| Arc::new(reserved))
    }

    pub(crate) fn discovery(&self) -> Option<Chap> {
        self.shared().discovery.clone()
    }

    pub(crate) fn target(&self, name: &str) -> Option<Arc<Target>> {
        self.shared().targets.get(name).cloned()
    }

    pub(crate) fn targets(&self) -> Vec<Arc<Target>> {
        self.shared().targets.values().cloned().collect()
    }

    pub(crate) fn session(&self, tsih: u16) -> Option<Arc<Session>> {
        self.shared().sessions.get(&tsih).cloned()
    }

    /// Finds the session of an initiator port at a target.
    pub(crate) fn session_of(
        &self,
        port: &crate::scsi::Port,
        target: &str,
    ) -> Option<Arc<Session>> {
        let shared = self.shared();
        let mut all = shared.sessions.values();
        all.find(|session| {
            session.nexus.port == *port
                && session.target.as_ref().map_or("", |t| t.name.as_str()) == target
        })
        .cloned()
    }

    /// Gives out a handle and registers the session that `make` builds with it; `None` when there are too many.
    pub(crate) fn add_session(&self, make: impl FnOnce(u16) -> Session) -> Option<Arc<Session>> {
        let session = {
            let mut shared = self.shared();
            if shared.sessions.len() >= self.config.sessions_max.min(65000) {
                return None;
            }
            loop {
                shared.next_tsih = shared.next_tsih.wrapping_add(1);
                if shared.next_tsih != 0 && !shared.sessions.contains_key(&shared.next_tsih) {
                    break;
                }
            }
            let session = Arc::new(make(shared.next_tsih));
            shared.sessions.insert(session.tsih, session.clone());
            session
        };
        if let Some(target) = &session.target {
            target.join(&session);
        }
        Some(session)
    }

    /// Ends a session: its connections, its tasks, and what it held.
    pub(crate) fn end_session(&self, session: &Arc<Session>) {
        {
            let mut shared = self.shared();
            let known = shared.sessions.get(&session.tsih);
            if known.is_some_and(|known| Arc::ptr_eq(known, session)) {
                shared.sessions.remove(&session.tsih);
            }
        }
        for connection in session.connections() {
            connection.end();
        }
        drop(session.abort(|_| true));
        if let Some(target) = &session.target {
            target.leave(session.nexus.id);
        }
    }

    /// Whether an address has given wrong passwords too often lately.
    pub(crate) fn must_wait(&self, peer: IpAddr) -> bool {
        let now = self.config.environment.now_seconds();
        let shared = self.shared();
        shared
            .failures
            .get(&origin(peer))
            .is_some_and(|(count, last)| {
                *count >= FAILURES_MAX && now < last + FAILURE_PAUSE_SECONDS
            })
    }

    pub(crate) fn note_login(&self, peer: IpAddr, good: bool) {
        let now = self.config.environment.now_seconds();
        let peer = origin(peer);
        let mut shared = self.shared();
        if good {
            shared.failures.remove(&peer);
            return;
        }
        if shared.failures.len() >= FAILURES_KEPT {
            shared
                .failures
                .retain(|_, (_, last)| now < *last + FAILURE_PAUSE_SECONDS);
        }
        if shared.failures.len() < FAILURES_KEPT {
            let entry = shared.failures.entry(peer).or_insert((0, now));
            if now >= entry.1 + FAILURE_PAUSE_SECONDS {
                entry.0 = 0;
            }
            *entry = (entry.0 + 1, now);
        }
    }
}
