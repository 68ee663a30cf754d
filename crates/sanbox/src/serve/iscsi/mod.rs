//! iSCSI: the TCP port, the targets that properties and the state directory ask for, and the time, randomness and storage that the service asks for.
//!
//! The port is open while there are targets: to this machine only, unless addresses were chosen or a target says who may log in.

mod connection;

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use ::iscsi::{
    Chap, Environment, LunSpec, Portal, SectorFormat, Server, ServerConfig, SessionInfo, TargetSpec,
};
use engine::property::{DatasetKind, Source, Value};
use engine::{DatasetInfo, PropertyQuery};
use manage::replication::{IDENTITY_PROPERTIES, fence_of, identity_of, is_waiting};
use manage::targets::{Login, Mapping, Targets, parse_mappings};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use super::admission::{Admission, AdmissionLimits};
use super::connection_workers::ConnectionWorkers;
use crate::appliance::context::Context;
use crate::appliance::followed::{FollowedDatasets, ServedPool};
use crate::logging::ISCSI;

pub(crate) use manage::targets::MAP_PROPERTY;

/// Its logical and physical block size: `512n`, `512e`, `4kn`.
const SECTOR_PROPERTY: &str = "org.sanbox:lun.sector";
/// Whether writes may be answered before they are on stable storage: `on`, `off`.
const CACHE_PROPERTY: &str = "org.sanbox:lun.cache";
/// Persistent reservations that are to outlive us.
const RESERVATIONS_PROPERTY: &str = "org.sanbox:lun.reservations";
/// The identifier by which COMSTAR's commands know the volume, and initiators then too: 32 hexadecimal digits.
pub(crate) const GUID_PROPERTY: &str = "org.sanbox:lu.guid";
/// Percent of its possible space that a thin volume may take before initiators are warned; 0 is never.
const THRESHOLD_PROPERTY: &str = "org.sanbox:lun.threshold";
/// The same when the property is not set.
const THRESHOLD_PERCENT: u8 = 90;
/// Bytes of commands' data held at once.
const MEMORY_BYTES_MAX: usize = 512 << 20;
/// Connections that have not logged in yet; the oldest of them ends when there are more.
const PENDING_MAX: usize = 512;
/// How long initiators may take to log out when we end.
const LOGOUT_SECONDS: u16 = 3;

/// Settings.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// Addresses the administrator chose; none is up to us.
    pub(crate) addresses: Vec<IpAddr>,
    /// TCP port.
    pub(crate) port: u16,
    /// Connections at once.
    pub(crate) connections_max: usize,
    /// Sessions at once.
    pub(crate) sessions_max: usize,
}

/// Checks the name of a target.
pub(crate) fn check_target_name(name: &str) -> Result<(), &'static str> {
    ::iscsi::check_name(name)
}

/// The target side of a daemon.
pub(crate) struct Iscsi {
    settings: Settings,
    server: Server,
    context: Weak<Context>,
    /// The volumes that are mapped to targets.
    volumes: FollowedDatasets,
    admission: Arc<Admission>,
    workers: ConnectionWorkers,
    open: tokio::sync::Mutex<Open>,
}

#[derive(Default)]
struct Open {
    addresses: Vec<SocketAddr>,
    tasks: Vec<JoinHandle<()>>,
}

impl Iscsi {
    pub(crate) fn new(
        context: &Arc<Context>,
        settings: Settings,
        workers: ConnectionWorkers,
    ) -> Self {
        let environment = HostEnvironment {
            began: Instant::now(),
            context: Arc::downgrade(context),
        };
        let server = Server::new(ServerConfig {
            environment: Arc::new(environment),
            memory_bytes_max: context.memory_plan().for_clients(MEMORY_BYTES_MAX),
            sessions_max: settings.sessions_max,
        });
        Self {
            admission: Admission::new(AdmissionLimits {
                connections_max: settings.connections_max,
                idle_max: PENDING_MAX,
                ..AdmissionLimits::default()
            }),
            settings,
            server,
            context: Arc::downgrade(context),
            volumes: mapped_volumes(),
            workers,
            open: tokio::sync::Mutex::default(),
        }
    }

    /// Lists the sessions.
    pub(crate) fn sessions(&self) -> Vec<SessionInfo> {
        self.server.sessions()
    }

    /// How many sessions can reach a volume.
    pub(crate) fn users_of(&self, guid: u64) -> usize {
        self.server.users_of(guid)
    }

    /// Makes the targets those that the state directory and the volumes' properties ask for.
    pub(crate) async fn follow(&self) {
        let Some(context) = self.context.upgrade() else {
            return;
        };
        let mut open = self.open.lock().await;
        let targets = match context.state().read_targets() {
            Ok(targets) => targets,
            Err(error) => {
                tracing::error!(target: ISCSI, "the targets cannot be read: {error}");
                return;
            }
        };
        let specs = self.specs(&context, &targets).await;
        self.server
            .set_discovery(targets.discovery.clone().map(chap));
        self.server.set_targets(specs);
        self.listen(&mut open, &targets).await;
    }

    async fn specs(&self, context: &Context, targets: &Targets) -> Vec<TargetSpec> {
        let mut specs: Vec<TargetSpec> = targets
            .targets
            .iter()
            .map(|target| TargetSpec {
                name: target.name.clone(),
                alias: target.alias.clone(),
                portals: target
                    .portals
                    .iter()
                    .map(|portal| Portal {
                        address: portal.address,
                        group: portal.group,
                    })
                    .collect(),
                initiators: target.initiators.clone(),
                chap: target.chap.clone().map(chap),
                mutual: target.mutual.clone().map(chap),
                redirect: target.redirect,
                luns: Vec::new(),
            })
            .collect();
        let mut found = Vec::new();
        for served in self.volumes.read(context).await {
            found.extend(luns(&served));
        }
        settle_identities(&mut found);
        for (mapping, mut lun) in found {
            let Some(initiators) = targets.seen_by(&mapping) else {
                tracing::warn!(
                    target: ISCSI,
                    "'{}' is not shown as LUN {} of '{}': there is no initiator group '{}' here",
                    lun.name,
                    lun.number,
                    mapping.scope,
                    mapping.seen_by.as_deref().unwrap_or_default()
                );
                continue;
            };
            lun.initiators = initiators;
            let mut shown = false;
            for spec in &mut specs {
                if !targets.covers(&mapping.scope, &spec.name) {
                    continue;
                }
                shown = true;
                let taken = spec.luns.iter().find(|known| {
                    known.number == lun.number
                        && (known.initiators == lun.initiators || known.initiators.is_empty())
                });
                match taken {
                    Some(known) => {
                        tracing::warn!(
                            target: ISCSI,
                            "'{}' is not shown: LUN {} of '{}' is '{}'",
                            lun.name,
                            lun.number,
                            spec.name,
                            known.name
                        );
                    }
                    None => spec.luns.push(lun.clone()),
                }
            }
            if !shown {
                tracing::warn!(
                    target: ISCSI,
                    "'{}' is mapped to target '{}', which does not exist here: \
                     'sanbox target create' makes it",
                    lun.name,
                    mapping.scope
                );
            }
        }
        specs
    }

    async fn listen(&self, open: &mut Open, targets: &Targets) {
        let guarded = targets
            .targets
            .iter()
            .any(|target| target.chap.is_some() || !target.initiators.is_empty());
        let addresses = match (self.settings.addresses.as_slice(), targets.targets.len()) {
            (_, 0) => Vec::new(),
            ([], _) if guarded => vec![IpAddr::V6(Ipv6Addr::UNSPECIFIED)],
            ([], _) => vec![
                IpAddr::V4(Ipv4Addr::LOCALHOST),
                IpAddr::V6(Ipv6Addr::LOCALHOST),
            ],
            (chosen, _) => chosen.to_vec(),
        };
        let mut wanted: Vec<SocketAddr> = addresses
            .into_iter()
            .map(|address| SocketAddr::new(address, self.settings.port))
            .collect();
        // Portals of other ports are opened too, as far as they are addresses of this machine at which no socket of ours listens already.
        let portals = targets.targets.iter().flat_map(|target| &target.portals);
        for portal in portals.map(|portal| portal.address) {
            let open_already = wanted.iter().any(|known| {
                known.port() == portal.port()
                    && (known.ip() == portal.ip() || known.ip().is_unspecified())
            });
            let chosen = self.settings.addresses.is_empty()
                || self.settings.addresses.contains(&portal.ip())
                || self.settings.addresses.iter().any(IpAddr::is_unspecified);
            // Without secrets and lists nothing but this machine is let in.
            if !open_already && chosen && (guarded || portal.ip().is_loopback()) {
                wanted.push(portal);
            }
        }
        if wanted == open.addresses {
            return;
        }
        for task in open.tasks.drain(..) {
            task.abort();
            let _ = task.await;
        }
        for address in &wanted {
            let ip = address.ip();
            let bound = match TcpListener::bind(*address).await {
                // A machine without IPv6.
                Err(_) if ip.is_ipv6() && ip.is_unspecified() => {
                    TcpListener::bind((Ipv4Addr::UNSPECIFIED, address.port())).await
                }
                bound => bound,
            };
            match bound {
                Ok(listener) => {
                    tracing::info!(
                        target: ISCSI,
                        "iSCSI is served at {ip} port {}",
                        address.port()
                    );
                    open.tasks.push(tokio::spawn(accept(
                        listener,
                        self.server.clone(),
                        self.admission.clone(),
                        self.workers.clone(),
                    )));
                }
                Err(_) if ip.is_ipv6() && wanted.len() > 1 => {}
                // A portal that initiators are told of may be another machine's that forwards to us.
                Err(error)
                    if error.kind() == io::ErrorKind::AddrNotAvailable
                        && address.port() != self.settings.port => {}
                Err(error) => {
                    tracing::error!(
                        target: ISCSI,
                        "iSCSI cannot be served at {ip} port {}: {error}",
                        address.port()
                    );
                }
            }
        }
        open.addresses = wanted;
    }

    /// Ends listening, asks initiators to log out and ends their sessions.
    pub(crate) async fn close(&self) {
        let mut open = self.open.lock().await;
        for task in open.tasks.drain(..) {
            task.abort();
        }
        self.server.ask_logout(LOGOUT_SECONDS);
        let until = Instant::now() + Duration::from_secs(u64::from(LOGOUT_SECONDS));
        while !self.server.sessions().is_empty() && Instant::now() < until {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        self.server.close();
    }
}

fn chap(login: Login) -> Chap {
    Chap {
        user: login.user,
        secret: login.secret,
    }
}

/// The volumes of the open pools that are mapped.
fn mapped_volumes() -> FollowedDatasets {
    let properties = [
        MAP_PROPERTY,
        SECTOR_PROPERTY,
        CACHE_PROPERTY,
        RESERVATIONS_PROPERTY,
        GUID_PROPERTY,
        THRESHOLD_PROPERTY,
        "volsize",
        "volblocksize",
        "readonly",
        "refreservation",
    ];
    let others = IDENTITY_PROPERTIES.iter();
    let others = others.filter(|name| !properties.contains(*name));
    let properties: Vec<&str> = properties.iter().chain(others).copied().collect();
    FollowedDatasets::new(&[DatasetKind::Volume], &properties, |info| {
        local_text(info, MAP_PROPERTY).is_some()
    })
}

/// The volumes of a pool that are shown, with where they are.
fn luns(served: &ServedPool) -> Vec<(Mapping, LunSpec)> {
    let pool = &served.pool;
    let mut found = Vec::new();
    for info in &served.datasets {
        let Some(mapped) = local_text(info, MAP_PROPERTY) else {
            continue;
        };
        // An initiator would take it for the source, which goes on.
        if is_waiting(info) || fence_of(info).is_some() {
            continue;
        }
        let bytes = number(info, "volsize");
        let sectors = match text(info, SECTOR_PROPERTY).as_deref() {
            Some("512n") => SectorFormat::Native512,
            Some("4kn" | "4k" | "4096") => SectorFormat::Native4096,
            _ => SectorFormat::Emulated512,
        };
        for mapping in parse_mappings(&mapped) {
            let lun = LunSpec {
                number: mapping.lun,
                volume: pool.volume_by_number(info.object, info.guid),
                name: info.name.clone(),
                identity: identity_of(info).unwrap_or(info.guid),
                bytes,
                volume_block: number(info, "volblocksize"),
                sectors,
                write_cache: text(info, CACHE_PROPERTY).as_deref() != Some("off"),
                read_only: pool.readonly() || number(info, "readonly") == 1,
                thin: number(info, "refreservation") == 0,
                reservations: local_text(info, RESERVATIONS_PROPERTY),
                threshold_percent: text(info, THRESHOLD_PROPERTY)
                    .and_then(|text| text.trim_end_matches('%').parse().ok())
                    .filter(|percent| *percent <= 100)
                    .unwrap_or(THRESHOLD_PERCENT),
                initiators: Vec::new(),
                naa: local_text(info, GUID_PROPERTY).and_then(|text| naa(&text)),
            };
            found.push((mapping, lun));
        }
    }
    found
}

/// Has volumes act as others only where those are not shown, and one at most as each: two units with one serial number would be taken for two
/// paths to one.
fn settle_identities(found: &mut [(Mapping, LunSpec)]) {
    let mut acting: BTreeMap<u64, u64> = BTreeMap::new();
    for (_, lun) in found.iter() {
        let own = lun.volume.guid();
        acting.insert(own, own);
    }
    for (_, lun) in found {
        let own = lun.volume.guid();
        if *acting.entry(lun.identity).or_insert(own) != own {
            lun.identity = own;
        }
    }
}

fn text(info: &DatasetInfo, name: &str) -> Option<String> {
    info.property(name)?.value.text().map(str::to_owned)
}

/// An identifier of 32 hexadecimal digits that begins with the type of a registered one. SPC-4 section 7.8.6.6.5.
pub(crate) fn naa(text: &str) -> Option<[u8; 16]> {
    let whole = text.len() == 32 && text.starts_with('6');
    let number = u128::from_str_radix(text, 16).ok().filter(|_| whole)?;
    Some(number.to_be_bytes())
}

/// A property that was set on the volume itself: where a volume is shown is not handed down.
fn local_text(info: &DatasetInfo, name: &str) -> Option<String> {
    let property = info.property(name)?;
    match (&property.source, &property.value) {
        (Source::Local | Source::Received, Value::Text(text)) => Some(text.clone()),
        _ => None,
    }
}

fn number(info: &DatasetInfo, name: &str) -> u64 {
    let property = info.property(name);
    property.and_then(|p| p.value.number()).unwrap_or(0)
}

/// Time, randomness and storage, as the service asks for them.
struct HostEnvironment {
    began: Instant,
    context: Weak<Context>,
}

impl Environment for HostEnvironment {
    fn random(&self, bytes: &mut [u8]) {
        let mut at = 0;
        while at < bytes.len() {
            let rest = bytes.get_mut(at..).unwrap_or_default();
            match rustix::rand::getrandom(rest, rustix::rand::GetRandomFlags::empty()) {
                Ok(count) => at += count,
                Err(rustix::io::Errno::INTR) => {}
                // Without randomness a challenge could be foreseen, and a login be forged.
                Err(errno) => panic!("the kernel gives no random bytes: {errno}"),
            }
        }
    }

    fn now_seconds(&self) -> u64 {
        self.began.elapsed().as_secs()
    }

    fn store_reservations<'a>(
        &'a self,
        name: &'a str,
        guid: u64,
        text: Option<String>,
    ) -> Pin<Box<dyn Future<Output = bool> + Send + 'a>> {
        Box::pin(async move {
            let Some(context) = self.context.upgrade() else {
                return false;
            };
            let Ok(pool) = context.engine().pool_of(name) else {
                return false;
            };
            // The name may be an old one: the guid decides.
            let same = pool.dataset(name, &PropertyQuery::None).await;
            if same.map(|info| info.guid).ok() != Some(guid) {
                return false;
            }
            let stored = match text {
                Some(text) => {
                    let setting = (RESERVATIONS_PROPERTY.to_owned(), text);
                    pool.set_dataset_properties(name, &[setting]).await
                }
                None => pool.inherit(name, RESERVATIONS_PROPERTY, false).await,
            };
            stored.is_ok()
        })
    }
}

async fn accept(
    listener: TcpListener,
    server: Server,
    admission: Arc<Admission>,
    workers: ConnectionWorkers,
) {
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => {
                let Some(permit) = admission.admit(Some(peer.ip())) else {
                    // Closed: the initiator tries again later.
                    tracing::debug!(
                        target: ISCSI,
                        "{peer} is turned away: all connections are in use"
                    );
                    continue;
                };
                let server = server.clone();
                workers.serve(stream, move |stream| async move {
                    tracing::debug!(target: ISCSI, "{peer} is connected");
                    connection::serve(stream, peer, server, permit).await;
                    tracing::debug!(target: ISCSI, "{peer} is disconnected");
                });
            }
            Err(error) => {
                tracing::warn!(target: ISCSI, "an iSCSI connection could not be accepted: {error}");
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
        }
    }
}
