//! What all connections of a server share: its targets with their units, its sessions, and the logins that failed lately.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::environment::Environment;
use crate::memory::MemoryBudget;
use crate::scsi::{LogicalUnit, Port};
use crate::session::Session;
use crate::spec::{Chap, TargetSpec};
use crate::target::{MappedUnit, Target, Units};

/// Wrong passwords from one address before it must wait.
const FAILURES_MAX: u32 = 5;
/// How long, in seconds.
const FAILURE_PAUSE_SECONDS: u64 = 30;
/// Addresses remembered for it.
const FAILURES_KEPT: usize = 4096;

/// Settings.
#[derive(Clone)]
pub struct ServerConfig {
    /// The program around the server.
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

/// Targets, units and sessions, as all connections share them.
pub(crate) struct Registry {
    pub(crate) config: ServerConfig,
    pub(crate) memory: Arc<MemoryBudget>,
    next: AtomicU64,
    state: Mutex<RegistryState>,
}

impl std::fmt::Debug for Registry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Registry")
    }
}

#[derive(Default)]
struct RegistryState {
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

impl Registry {
    pub(crate) fn new(config: ServerConfig) -> Self {
        Self {
            memory: MemoryBudget::new(config.memory_bytes_max),
            config,
            next: AtomicU64::new(1),
            state: Mutex::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, RegistryState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a number that was not used before.
    pub(crate) fn unique(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Makes the targets those given. Sessions of targets that go are ended; those of targets that stay are told what changed.
    pub(crate) fn set_targets(&self, specs: Vec<TargetSpec>) {
        let mut ended = Vec::new();
        {
            let mut state = self.state();
            let mut used = BTreeSet::new();
            let mut named = BTreeSet::new();
            for spec in specs {
                let mut units = Units::new();
                for lun in &spec.luns {
                    let guid = lun.volume.guid();
                    let environment = self.config.environment.clone();
                    let unit = match state.units.get(&guid) {
                        Some(unit) => {
                            unit.follow(lun);
                            unit.clone()
                        }
                        None => Arc::new(LogicalUnit::new(lun, environment)),
                    };
                    used.insert(guid);
                    state.units.insert(guid, unit.clone());
                    units.entry(lun.number).or_default().push(MappedUnit {
                        unit,
                        initiators: lun.initiators.clone(),
                    });
                }
                named.insert(spec.name.clone());
                let known = state.targets.get(&spec.name).cloned();
                match known {
                    Some(target) => target.follow(spec, units),
                    None => {
                        let name = spec.name.clone();
                        let target = Arc::new(Target::new(spec, units));
                        ended.extend(state.targets.insert(name, target));
                    }
                }
            }
            state.units.retain(|guid, _| used.contains(guid));
            let gone: Vec<String> = state
                .targets
                .keys()
                .filter(|name| !named.contains(*name))
                .cloned()
                .collect();
            for name in gone {
                ended.extend(state.targets.remove(&name));
            }
        }
        for target in ended {
            for session in self.sessions_at(&target) {
                self.end_session(&session);
            }
        }
    }

    /// What initiators must know to discover targets.
    pub(crate) fn set_discovery(&self, chap: Option<Chap>) {
        self.state().discovery = chap;
    }

    pub(crate) fn discovery(&self) -> Option<Chap> {
        self.state().discovery.clone()
    }

    pub(crate) fn target(&self, name: &str) -> Option<Arc<Target>> {
        self.state().targets.get(name).cloned()
    }

    pub(crate) fn targets(&self) -> Vec<Arc<Target>> {
        self.state().targets.values().cloned().collect()
    }

    /// A unit, by the guid of its volume.
    pub(crate) fn unit(&self, guid: u64) -> Option<Arc<LogicalUnit>> {
        self.state().units.get(&guid).cloned()
    }

    pub(crate) fn sessions(&self) -> Vec<Arc<Session>> {
        self.state().sessions.values().cloned().collect()
    }

    fn sessions_at(&self, target: &Arc<Target>) -> Vec<Arc<Session>> {
        let mut sessions = self.sessions();
        let at = |session: &Arc<Session>| {
            let own = session.target.as_ref();
            own.is_some_and(|own| Arc::ptr_eq(own, target))
        };
        sessions.retain(at);
        sessions
    }

    pub(crate) fn session(&self, tsih: u16) -> Option<Arc<Session>> {
        self.state().sessions.get(&tsih).cloned()
    }

    /// Finds the session of an initiator port at a target.
    pub(crate) fn session_of(&self, port: &Port, target: &str) -> Option<Arc<Session>> {
        let state = self.state();
        let mut all = state.sessions.values();
        all.find(|session| {
            session.nexus.port == *port
                && session.target.as_ref().map_or("", |t| t.name.as_str()) == target
        })
        .cloned()
    }

    /// Gives out a handle and registers the session that `make` builds with it; `None` when there are too many.
    pub(crate) fn add_session(&self, make: impl FnOnce(u16) -> Session) -> Option<Arc<Session>> {
        let session = {
            let mut state = self.state();
            if state.sessions.len() >= self.config.sessions_max.min(65000) {
                return None;
            }
            loop {
                state.next_tsih = state.next_tsih.wrapping_add(1);
                if state.next_tsih != 0 && !state.sessions.contains_key(&state.next_tsih) {
                    break;
                }
            }
            let session = Arc::new(make(state.next_tsih));
            state.sessions.insert(session.tsih, session.clone());
            session
        };
        if let Some(target) = &session.target {
            target.join(&session.nexus, &session.tasks);
        }
        Some(session)
    }

    /// Ends a session: its connections, its tasks, and what it held.
    pub(crate) fn end_session(&self, session: &Arc<Session>) {
        {
            let mut state = self.state();
            let known = state.sessions.get(&session.tsih);
            if known.is_some_and(|known| Arc::ptr_eq(known, session)) {
                state.sessions.remove(&session.tsih);
            }
        }
        for connection in session.connections() {
            connection.close();
            session.disconnect(&connection);
        }
        drop(session.abort(|_| true));
        if let Some(target) = &session.target {
            target.leave(session.nexus.id);
        }
    }

    /// Whether an address has given wrong passwords too often lately.
    pub(crate) fn must_wait(&self, peer: IpAddr) -> bool {
        let now = self.config.environment.now_seconds();
        let state = self.state();
        state
            .failures
            .get(&origin(peer))
            .is_some_and(|(count, last)| {
                *count >= FAILURES_MAX && now < last + FAILURE_PAUSE_SECONDS
            })
    }

    pub(crate) fn note_login(&self, peer: IpAddr, good: bool) {
        let now = self.config.environment.now_seconds();
        let peer = origin(peer);
        let mut state = self.state();
        if good {
            state.failures.remove(&peer);
            return;
        }
        if state.failures.len() >= FAILURES_KEPT {
            state
                .failures
                .retain(|_, (_, last)| now < *last + FAILURE_PAUSE_SECONDS);
        }
        if state.failures.len() < FAILURES_KEPT {
            let entry = state.failures.entry(peer).or_insert((0, now));
            if now >= entry.1 + FAILURE_PAUSE_SECONDS {
                entry.0 = 0;
            }
            *entry = (entry.0 + 1, now);
        }
    }
}
