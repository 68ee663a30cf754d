//! iSCSI: the TCP port, the targets that properties and the state directory ask for, and the world the service works in.
//!
//! The port is open while there are targets: to this machine only, unless addresses were chosen or a target says who may log in.

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use ::iscsi::{
    BHS_BYTES, Chap, Connection, Environment, LunSpec, Next, Out, Portal, SectorFormat, Server,
    ServerConfig, SessionInfo, Spawner, TargetSpec, Transport,
};
use engine::property::{DatasetKind, Source, Value};
use engine::{DatasetFilter, DatasetInfo, PoolHandle, PropertyQuery};
use manage::targets::{Login, Mapping, Targets, parse_mappings};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinHandle;

use super::log;
use crate::appliance::Appliance;

/// The property of a volume that says where it is shown.
pub(crate) const MAP_PROPERTY: &str = "org.sanbox:lun";
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
/// Bytes waiting to be written to one connection before nothing more is read from it.
const QUEUED_BYTES_MAX: usize = 16 << 20;
/// PDUs written at once.
const BATCH: usize = 64;
/// How long a login may take altogether.
const LOGIN_TIMEOUT: Duration = Duration::from_secs(15);
/// Connections that have not logged in yet; the oldest ends when there are more.
const PENDING_MAX: usize = 512;
/// How long a PDU may take once it has begun.
const PDU_TIMEOUT: Duration = Duration::from_secs(60);
/// How long a connection may be silent before it is asked whether it lives, and then again before it is closed.
const SILENCE: Duration = Duration::from_secs(30);
/// How long an initiator may take to accept what we send.
const SEND_TIMEOUT: Duration = Duration::from_secs(120);
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
    appliance: Weak<Appliance>,
    connections: Arc<AtomicUsize>,
    pending: Arc<Pending>,
    open: tokio::sync::Mutex<Open>,
}

#[derive(Default)]
struct Open {
    addresses: Vec<SocketAddr>,
    tasks: Vec<JoinHandle<()>>,
}

impl Iscsi {
    pub(crate) fn new(appliance: &Arc<Appliance>, settings: Settings) -> Self {
        let world = World {
            began: Instant::now(),
            appliance: Arc::downgrade(appliance),
        };
        let server = Server::new(ServerConfig {
            environment: Arc::new(world),
            spawner: Arc::new(Tokio(tokio::runtime::Handle::current())),
            memory_bytes_max: appliance.memory_plan().for_clients(MEMORY_BYTES_MAX),
            sessions_max: settings.sessions_max,
        });
        Self {
            settings,
            server,
            appliance: Arc::downgrade(appliance),
            connections: Arc::new(AtomicUsize::new(0)),
            pending: Arc::default(),
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
        let Some(appliance) = self.appliance.upgrade() else {
            return;
        };
        let mut open = self.open.lock().await;
        let targets = match appliance.state().read_targets() {
            Ok(targets) => targets,
            Err(error) => {
                log(format!("the targets cannot be read: {error}"));
                return;
            }
        };
        let specs = self.specs(&appliance, &targets).await;
        self.server
            .set_discovery(targets.discovery.clone().map(chap));
        self.server.set_targets(specs);
        self.listen(&mut open, &targets).await;
    }

    async fn specs(&self, appliance: &Appliance, targets: &Targets) -> Vec<TargetSpec> {
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
        for pool in appliance.engine().pools() {
            for (mapping, mut lun) in luns(&pool).await {
                let Some(initiators) = targets.seen_by(&mapping) else {
                    log(format!(
                        "'{}' is not shown as LUN {} of '{}': there is no initiator group '{}' here",
                        lun.name,
                        lun.number,
                        mapping.place,
                        mapping.seen_by.as_deref().unwrap_or_default()
                    ));
                    continue;
                };
                lun.initiators = initiators;
                let mut shown = false;
                for spec in &mut specs {
                    if !targets.covers(&mapping.place, &spec.name) {
                        continue;
                    }
                    shown = true;
                    let taken = spec.luns.iter().find(|known| {
                        known.number == lun.number
                            && (known.initiators == lun.initiators || known.initiators.is_empty())
                    });
                    match taken {
                        Some(known) => log(format!(
                            "'{}' is not shown: LUN {} of '{}' is '{}'",
                            lun.name, lun.number, spec.name, known.name
                        )),
                        None => spec.luns.push(lun.clone()),
                    }
                }
                if !shown {
                    log(format!(
                        "'{}' is mapped to target '{}', which does not exist here: \
                         'sanbox target create' makes it",
                        lun.name, mapping.place
                    ));
                }
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
        // Portals of other ports are opened too, as far as they are addresses of this machine and nobody listens there already.
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
            let bound = bind(*address).or_else(|error| {
                // A machine without IPv6.
                if ip.is_ipv6() && ip.is_unspecified() {
                    bind(SocketAddr::new(
                        IpAddr::V4(Ipv4Addr::UNSPECIFIED),
                        address.port(),
                    ))
                } else {
                    Err(error)
                }
            });
            match bound {
                Ok(listener) => {
                    log(format!("iSCSI is served at {ip} port {}", address.port()));
                    open.tasks.push(tokio::spawn(accept(
                        listener,
                        self.server.clone(),
                        self.connections.clone(),
                        self.pending.clone(),
                        self.settings.connections_max,
                    )));
                }
                Err(_) if ip.is_ipv6() && wanted.len() > 1 => {}
                // A portal that is told of may be another machine's that forwards to us.
                Err(error)
                    if error.kind() == io::ErrorKind::AddrNotAvailable
                        && address.port() != self.settings.port => {}
                Err(error) => log(format!(
                    "iSCSI cannot be served at {ip} port {}: {error}",
                    address.port()
                )),
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

/// The volumes of a pool that are shown, with where they are.
async fn luns(pool: &PoolHandle) -> Vec<(Mapping, LunSpec)> {
    let filter = DatasetFilter {
        root: pool.name().to_owned(),
        depth: None,
        kinds: vec![DatasetKind::Volume],
    };
    let names = [
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
    let query = PropertyQuery::Named(names.iter().map(|name| (*name).to_owned()).collect());
    let mut found = Vec::new();
    for info in pool.datasets(&filter, &query).await.unwrap_or_default() {
        let Some(mapped) = local_text(&info, MAP_PROPERTY) else {
            continue;
        };
        let bytes = number(&info, "volsize");
        let sectors = match text(&info, SECTOR_PROPERTY).as_deref() {
            Some("512n") => SectorFormat::Native512,
            Some("4kn" | "4k" | "4096") => SectorFormat::Native4096,
            _ => SectorFormat::Emulated512,
        };
        for mapping in parse_mappings(&mapped) {
            let lun = LunSpec {
                number: mapping.lun,
                volume: pool.volume_by_number(info.object, info.guid),
                name: info.name.clone(),
                bytes,
                volume_block: number(&info, "volblocksize"),
                sectors,
                write_cache: text(&info, CACHE_PROPERTY).as_deref() != Some("off"),
                read_only: pool.readonly() || number(&info, "readonly") == 1,
                thin: number(&info, "refreservation") == 0,
                reservations: local_text(&info, RESERVATIONS_PROPERTY),
                threshold_percent: text(&info, THRESHOLD_PROPERTY)
                    .and_then(|text| text.trim_end_matches('%').parse().ok())
                    .filter(|percent| *percent <= 100)
                    .unwrap_or(THRESHOLD_PERCENT),
                initiators: Vec::new(),
                naa: local_text(&info, GUID_PROPERTY).and_then(|text| naa(&text)),
            };
            found.push((mapping, lun));
        }
    }
    found
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

fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv6() {
        TcpSocket::new_v6()?
    } else {
        TcpSocket::new_v4()?
    };
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(1024)
}

/// The world of the service.
struct World {
    began: Instant,
    appliance: Weak<Appliance>,
}

impl Environment for World {
    fn random(&self, bytes: &mut [u8]) {
        let mut at = 0;
        while at < bytes.len() {
            let rest = bytes.get_mut(at..).unwrap_or_default();
            match rustix::rand::getrandom(rest, rustix::rand::GetRandomFlags::empty()) {
                Ok(count) => at += count,
                Err(rustix::io::Errno::INTR) => {}
                // Without randomness there are no challenges: nobody may log in with known ones.
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
            let Some(appliance) = self.appliance.upgrade() else {
                return false;
            };
            let Ok(pool) = appliance.engine().pool_of(name) else {
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

struct Tokio(tokio::runtime::Handle);

impl Spawner for Tokio {
    fn spawn(&self, work: Pin<Box<dyn Future<Output = ()> + Send>>) {
        self.0.spawn(work);
    }
}

async fn accept(
    listener: TcpListener,
    server: Server,
    connections: Arc<AtomicUsize>,
    pending: Arc<Pending>,
    connections_max: usize,
) {
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => {
                let count = connections.fetch_add(1, Ordering::Relaxed) + 1;
                let place = Place(connections.clone());
                if count > connections_max {
                    // Dropped: the initiator tries again later.
                    continue;
                }
                let waiting = pending.enter();
                tokio::spawn(connection(stream, peer, server.clone(), place, waiting));
            }
            Err(error) => {
                log(format!(
                    "an iSCSI connection could not be accepted: {error}"
                ));
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
        }
    }
}

/// Connections that have not logged in yet, in the order they came. Whoever opens many and says nothing ends his own first.
#[derive(Default)]
struct Pending {
    waiting: Mutex<VecDeque<(u64, Arc<Notify>)>>,
    next: AtomicU64,
}

/// A connection among those, until it is dropped.
struct Waiting {
    pending: Arc<Pending>,
    id: u64,
    ended: Arc<Notify>,
}

impl Pending {
    fn waiting(&self) -> MutexGuard<'_, VecDeque<(u64, Arc<Notify>)>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn enter(self: &Arc<Self>) -> Waiting {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let ended = Arc::new(Notify::new());
        let mut waiting = self.waiting();
        if waiting.len() >= PENDING_MAX
            && let Some((_, oldest)) = waiting.pop_front()
        {
            oldest.notify_one();
        }
        waiting.push_back((id, ended.clone()));
        Waiting {
            pending: self.clone(),
            id,
            ended,
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.pending.waiting().retain(|(id, _)| *id != self.id);
    }
}

/// A connection's place among all.
struct Place(Arc<AtomicUsize>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What goes to the writer.
enum Message {
    Pdu(Out),
    Close,
}

/// The way out of a connection.
struct Wire {
    sender: mpsc::UnboundedSender<Message>,
    queued: Arc<Queued>,
    closing: Notify,
}

/// Bytes on their way to the writer.
#[derive(Default)]
struct Queued {
    bytes: AtomicUsize,
    less: Notify,
}

fn size(out: &Out) -> usize {
    let data: usize = out.pieces.iter().map(|piece| piece.len()).sum();
    out.header.len() + data + out.tail.len()
}

impl Transport for Wire {
    fn send(&self, out: Out) {
        self.queued.bytes.fetch_add(size(&out), Ordering::AcqRel);
        // The writer has gone with the connection.
        let _ = self.sender.send(Message::Pdu(out));
    }

    fn close(&self) {
        let _ = self.sender.send(Message::Close);
        self.closing.notify_one();
    }
}

async fn connection(
    stream: TcpStream,
    peer: SocketAddr,
    server: Server,
    place: Place,
    waiting: Waiting,
) {
    let _ = stream.set_nodelay(true);
    let Ok(local) = stream.local_addr() else {
        return;
    };
    let (reader, writer) = stream.into_split();
    let (sender, receiver) = mpsc::unbounded_channel();
    let queued = Arc::new(Queued::default());
    let wire = Arc::new(Wire {
        sender,
        queued: queued.clone(),
        closing: Notify::new(),
    });
    let mut writing = tokio::spawn(write(writer, receiver, queued.clone()));
    let connection = server.connect(peer, local, wire.clone());
    tokio::select! {
        () = read(reader, &connection, &queued, waiting) => {}
        // Ended from our side, or by a writer that cannot write.
        () = wire.closing.notified() => {}
        _ = &mut writing => {}
    }
    drop(connection);
    let _ = wire.sender.send(Message::Close);
    drop(wire);
    if !writing.is_finished() {
        let _ = tokio::time::timeout(SEND_TIMEOUT, writing).await;
    }
    drop(place);
}

async fn read(reader: OwnedReadHalf, connection: &Connection, queued: &Queued, waiting: Waiting) {
    let mut reader = BufReader::with_capacity(64 << 10, reader);
    let login = async {
        while !connection.is_logged_in() {
            if read_one(&mut reader, connection, queued).await.is_none() {
                return false;
            }
        }
        true
    };
    // The login as a whole, however many PDUs it is made of.
    let ended = waiting.ended.clone();
    let logged_in = tokio::select! {
        logged_in = tokio::time::timeout(LOGIN_TIMEOUT, login) => logged_in.unwrap_or(false),
        () = ended.notified() => false,
    };
    drop(waiting);
    if logged_in {
        while read_one(&mut reader, connection, queued).await.is_some() {}
    }
}

/// Reads a PDU and hands it on; `None` at the end of the connection.
async fn read_one(
    reader: &mut BufReader<OwnedReadHalf>,
    connection: &Connection,
    queued: &Queued,
) -> Option<()> {
    {
        while queued.bytes.load(Ordering::Acquire) > QUEUED_BYTES_MAX {
            let less = queued.less.notified();
            if queued.bytes.load(Ordering::Acquire) > QUEUED_BYTES_MAX {
                less.await;
            }
        }
        let mut bhs = [0; BHS_BYTES];
        bhs[0] = first_byte(reader, connection).await?;
        let limit = if connection.is_logged_in() {
            PDU_TIMEOUT
        } else {
            LOGIN_TIMEOUT
        };
        let framing = connection.framing();
        let whole = async {
            if let Some(rest) = bhs.get_mut(1..) {
                reader.read_exact(rest).await?;
            }
            let len = framing.rest(&bhs).map_err(io::Error::other)?;
            let mut rest = Vec::new();
            // Reserved now, filled as bytes come: silence costs address space only.
            rest.reserve_exact(len);
            while rest.len() < len {
                let left = (len - rest.len()) as u64;
                let mut part = (&mut *reader).take(left);
                if part.read_buf(&mut rest).await? == 0 {
                    return Err(io::Error::from(io::ErrorKind::UnexpectedEof));
                }
            }
            Ok(rest)
        };
        let rest = tokio::time::timeout(limit, whole).await.ok()?.ok()?;
        (connection.receive(bhs, rest) == Next::Continue).then_some(())
    }
}

/// Waits for the next PDU, asking after a while whether the initiator still lives.
async fn first_byte(reader: &mut BufReader<OwnedReadHalf>, connection: &Connection) -> Option<u8> {
    for round in 0..2 {
        let logged_in = connection.is_logged_in();
        let patience = if logged_in { SILENCE } else { LOGIN_TIMEOUT };
        match tokio::time::timeout(patience, reader.read_u8()).await {
            Ok(Ok(byte)) => return Some(byte),
            Ok(Err(_)) => return None,
            Err(_) if round == 0 && logged_in => connection.ping(),
            Err(_) => return None,
        }
    }
    None
}

async fn write(
    mut writer: OwnedWriteHalf,
    mut receiver: mpsc::UnboundedReceiver<Message>,
    queued: Arc<Queued>,
) {
    let mut batch = Vec::with_capacity(BATCH);
    loop {
        batch.clear();
        if receiver.recv_many(&mut batch, BATCH).await == 0 {
            break;
        }
        let ends = batch.iter().position(|m| matches!(m, Message::Close));
        let pdus: Vec<&Out> = batch
            .iter()
            .take(ends.unwrap_or(batch.len()))
            .filter_map(|message| match message {
                Message::Pdu(out) => Some(out),
                Message::Close => None,
            })
            .collect();
        let bytes: usize = pdus.iter().map(|out| size(out)).sum();
        let written = tokio::time::timeout(SEND_TIMEOUT, write_all(&mut writer, &pdus)).await;
        queued.bytes.fetch_sub(bytes, Ordering::AcqRel);
        queued.less.notify_one();
        if !matches!(written, Ok(Ok(()))) || ends.is_some() {
            break;
        }
    }
    let _ = writer.shutdown().await;
}

async fn write_all(writer: &mut OwnedWriteHalf, pdus: &[&Out]) -> io::Result<()> {
    let mut slices = Vec::with_capacity(pdus.len() * 3);
    for out in pdus {
        slices.push(io::IoSlice::new(&out.header));
        slices.extend(out.pieces.iter().map(|piece| io::IoSlice::new(piece)));
        if !out.tail.is_empty() {
            slices.push(io::IoSlice::new(&out.tail));
        }
    }
    let mut left = slices.as_mut_slice();
    while !left.is_empty() {
        let count = writer.write_vectored(left).await?;
        if count == 0 {
            return Err(io::Error::from(io::ErrorKind::WriteZero));
        }
        io::IoSlice::advance_slices(&mut left, count);
    }
    Ok(())
}
