//! The sockets of NFS: TCP connections that carry RPC records to the service and its replies back.
//!
//! Each connection is one task that reads calls, runs them all at the same time, so that a client
//! may keep many in flight, and sends answers back as they come. Everything is bounded:
//! connections, calls in flight per connection, and the bytes of requests and of answers held in
//! all. A client that holds one of these while others wait for it, and makes no progress, is
//! disconnected; NFS clients reconnect and repeat what was not answered.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use engine::{IoBufMut, SpinPolicy, spin_then_park};
use futures_util::StreamExt as _;
use futures_util::stream::{FuturesUnordered, unfold};
use nfs::record::{Assembler, IncomingWrite, Next, Record, reply_header};
use nfs::{ClientConnection, RECORD_BYTES_MAX, Reply, Server, TransportSecurity};
use tokio::io::{
    AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, BufReader,
};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::admission::{Admission, AdmissionLimits, ConnectionPermit, WorkUnderWay};
use super::connection_workers::{CallsUnderWay, ConnectionWorkers};
use super::nfs_tls::NfsTls;
use super::outbox::{Outbox, Outgoing};
use crate::logging::{LogLimit, NFS};

/// Calls of one connection under way at once. Linux keeps up to 128 slots on the client side.
const CALLS_MAX: usize = 128;
/// Calls to the client of one connection that are to be sent: one for each of its sessions.
const CALLS_BACK_MAX: usize = 64;
/// Bytes of requests held at once over all connections, in KiB (the semaphore's unit); the same
/// for answers.
const MEMORY_KIB_MAX: usize = 256 << 10;
/// How long the rest of a record may take once it has begun.
const RECORD_TIMEOUT: Duration = Duration::from_secs(60);
/// How long a client may take to accept an answer.
const REPLY_TIMEOUT: Duration = Duration::from_secs(120);
/// How long a client that holds memory others wait for may make no progress; less, the more wait.
const STALL_TIMEOUT: Duration = Duration::from_secs(3);
/// The least it becomes, and how many wait when it has halved.
const STALL_TIMEOUT_MIN: Duration = Duration::from_millis(250);
const STALL_TIMEOUT_WAITING: u32 = 32;
/// What counts as progress within that time, in bytes: 16 KiB.
const PROGRESS_BYTES: usize = 16 << 10;
/// Bytes read before they are asked for: a window of small calls in one system call, while of a
/// large WRITE hardly anything is copied twice.
const READ_AHEAD_BYTES: usize = 8 << 10;
/// WRITEs from this size on are read apart from their data: below, a copy is cheaper than two reads.
const WRITE_APART_BYTES: usize = 16 << 10;

/// Limits of the listeners.
#[derive(Clone, Debug)]
pub(crate) struct Limits {
    /// Connections at once.
    pub(crate) connections_max: usize,
    /// How long a connection may be silent.
    pub(crate) idle: Duration,
    /// Most bytes of requests, and of answers, at once.
    pub(crate) memory_bytes: usize,
}

/// The sockets that are open, which follow what is shared.
pub(crate) struct Listeners {
    /// Addresses the administrator chose; none is up to us.
    chosen: Vec<IpAddr>,
    /// 0 chooses a free one (tests); `None` is no NFS.
    port: Option<u16>,
    portmap: bool,
    shared: Arc<Shared>,
    open: tokio::sync::Mutex<Open>,
}

#[derive(Default)]
struct Open {
    addresses: Vec<IpAddr>,
    tasks: Vec<JoinHandle<()>>,
    bound: Vec<SocketAddr>,
    portmap: Vec<JoinHandle<()>>,
    /// Registered with a port mapper of this machine that is not ours, and whether the locks' programs are.
    registered: bool,
    registered_locks: bool,
}

struct Shared {
    limits: Limits,
    /// `None` offers no TLS.
    tls: Option<Arc<NfsTls>>,
    workers: ConnectionWorkers,
    admission: Arc<Admission>,
    requests: Memory,
    replies: Memory,
}

/// Memory that connections share.
struct Memory {
    free: Arc<Semaphore>,
    waiting: AtomicUsize,
}

impl Memory {
    fn new(bytes: usize) -> Self {
        Self {
            free: Arc::new(Semaphore::new((bytes >> 10).min(MEMORY_KIB_MAX))),
            waiting: AtomicUsize::new(0),
        }
    }

    /// Takes memory for so many bytes, when there is.
    async fn take(&self, bytes: usize) -> io::Result<OwnedSemaphorePermit> {
        let kib = u32::try_from(bytes.div_ceil(1024)).map_err(io::Error::other)?;
        if let Ok(permit) = self.free.clone().try_acquire_many_owned(kib) {
            return Ok(permit);
        }
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let permit = self.free.clone().acquire_many_owned(kib).await;
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        permit.map_err(io::Error::other)
    }

    /// How long a client that holds memory may make no progress now.
    fn stall_timeout(&self) -> Duration {
        let waiting = u32::try_from(self.waiting.load(Ordering::Relaxed)).unwrap_or(u32::MAX);
        (STALL_TIMEOUT / (1 + waiting / STALL_TIMEOUT_WAITING)).max(STALL_TIMEOUT_MIN)
    }

    /// Ends in an error when `work`, which holds memory, does not end within [`Self::stall_timeout`]
    /// while others wait for memory.
    async fn unless_stalled<T>(&self, work: impl Future<Output = io::Result<T>>) -> io::Result<T> {
        let mut work = pin!(work);
        loop {
            match timeout(self.stall_timeout(), &mut work).await {
                Ok(done) => return done,
                Err(_) if self.waiting.load(Ordering::Relaxed) == 0 => {}
                Err(_) => return Err(io::ErrorKind::TimedOut.into()),
            }
        }
    }
}

impl Listeners {
    pub(crate) fn new(
        chosen: Vec<IpAddr>,
        port: Option<u16>,
        portmap: bool,
        limits: Limits,
        workers: ConnectionWorkers,
        tls: Option<Arc<NfsTls>>,
    ) -> Self {
        let memory_bytes = limits.memory_bytes;
        let shared = Shared {
            admission: Admission::new(AdmissionLimits {
                connections_max: limits.connections_max,
                replaces_idle: true,
                ..AdmissionLimits::default()
            }),
            limits,
            tls,
            workers,
            requests: Memory::new(memory_bytes),
            replies: Memory::new(memory_bytes),
        };
        Self {
            chosen,
            port,
            portmap,
            shared: Arc::new(shared),
            open: tokio::sync::Mutex::default(),
        }
    }

    /// Opens and closes sockets as what is shared asks for: without shares only this machine can
    /// connect, with shares every client (which the share's own list then admits or not).
    pub(crate) async fn follow(&self, server: &Server, shares: bool) {
        let Some(port) = self.port else { return };
        let wanted = match (self.chosen.as_slice(), shares) {
            ([], true) => vec![IpAddr::V6(Ipv6Addr::UNSPECIFIED)],
            ([], false) => vec![
                IpAddr::V4(Ipv4Addr::LOCALHOST),
                IpAddr::V6(Ipv6Addr::LOCALHOST),
            ],
            (chosen, _) => chosen.to_vec(),
        };
        let mut open = self.open.lock().await;
        if open.addresses == wanted {
            return;
        }
        let port = open.bound.first().map_or(port, SocketAddr::port);
        // Connections that exist go on; only accepting changes.
        for task in open.tasks.drain(..) {
            task.abort();
            let _ = task.await;
        }
        open.bound.clear();
        for address in &wanted {
            let port = open.bound.first().map_or(port, SocketAddr::port);
            match TcpListener::bind(SocketAddr::new(*address, port)).await {
                Ok(listener) => {
                    if let Ok(bound) = listener.local_addr() {
                        open.bound.push(bound);
                    }
                    let accept = accept(listener, server.clone(), self.shared.clone());
                    open.tasks.push(tokio::spawn(accept));
                }
                Err(error)
                    if address.is_ipv6() && open.addresses.is_empty() && is_absent(&error) =>
                {
                    // A machine without IPv6.
                    if address.is_unspecified()
                        && let Ok(listener) = TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).await
                    {
                        open.bound.extend(listener.local_addr().ok());
                        let accept = accept(listener, server.clone(), self.shared.clone());
                        open.tasks.push(tokio::spawn(accept));
                    }
                }
                Err(error) => {
                    tracing::error!(
                        target: NFS,
                        "NFS cannot be served at {address} port {port}: {error}"
                    );
                }
            }
        }
        open.addresses = wanted;
        for address in open.bound.clone() {
            match UdpSocket::bind(address).await {
                Ok(udp) => open
                    .tasks
                    .push(tokio::spawn(datagrams(udp, server.clone()))),
                Err(error) => tracing::warn!(
                    target: NFS,
                    "clients that restart cannot say so at {address} (UDP): {error}"
                ),
            }
        }
        for address in &open.bound {
            tracing::info!(target: NFS, "NFS is served at {address}");
        }
        if self.portmap && shares && open.portmap.is_empty() && !open.registered {
            self.announce(server, &mut open).await;
        }
    }

    /// Makes the port known: with a port mapper that runs here, else by being it.
    async fn announce(&self, server: &Server, open: &mut Open) {
        let Some(port) = open.bound.first().map(SocketAddr::port) else {
            return;
        };
        let rpcbind = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 111);
        if let Ok(stream) = TcpStream::connect(rpcbind).await {
            match call_all(stream, nfs::rpcbind::set_calls(port)).await {
                Ok(true) => {
                    open.registered = true;
                    open.registered_locks = register_locks(rpcbind, port).await;
                    tracing::info!(target: NFS, "NFS is registered with this machine's rpcbind");
                }
                Ok(false) => {
                    tracing::warn!(
                        target: NFS,
                        "this machine's rpcbind refuses to register NFS; clients need port= and mountport="
                    );
                }
                Err(error) => {
                    tracing::warn!(target: NFS, "this machine's rpcbind does not answer: {error}");
                }
            }
            return;
        }
        let any = SocketAddr::new(
            self.chosen
                .first()
                .copied()
                .unwrap_or(IpAddr::V6(Ipv6Addr::UNSPECIFIED)),
            111,
        );
        let udp = match UdpSocket::bind(any).await {
            Err(_) if any.ip().is_unspecified() => UdpSocket::bind(("0.0.0.0", 111)).await,
            other => other,
        };
        match (TcpListener::bind(any).await, udp) {
            (Ok(listener), Ok(udp)) => {
                let accept = accept(listener, server.clone(), self.shared.clone());
                open.portmap.push(tokio::spawn(accept));
                open.portmap
                    .push(tokio::spawn(datagrams(udp, server.clone())));
                tracing::info!(target: NFS, "port queries are answered at port 111");
            }
            (Err(error), _) | (_, Err(error)) => {
                tracing::warn!(
                    target: NFS,
                    "port 111 cannot be served ({error}); clients need port={port},mountport={port}"
                );
            }
        }
    }

    /// Ends everything.
    pub(crate) async fn close(&self) {
        let mut open = self.open.lock().await;
        let registered = open.registered;
        for task in std::mem::take(&mut open.tasks)
            .into_iter()
            .chain(std::mem::take(&mut open.portmap))
        {
            task.abort();
        }
        if registered {
            let rpcbind = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 111);
            if let Ok(stream) = TcpStream::connect(rpcbind).await {
                let port = open.bound.first().map_or(0, SocketAddr::port);
                let mut calls = nfs::rpcbind::unset_calls(port);
                if open.registered_locks {
                    calls.extend(nfs::rpcbind::unset_lock_calls(port));
                }
                let _ = call_all(stream, calls).await;
            }
        }
    }
}

fn is_absent(error: &io::Error) -> bool {
    // EAFNOSUPPORT and EADDRNOTAVAIL
    matches!(error.raw_os_error(), Some(97 | 99))
}

/// Registers what locks; this machine's own may be registered, and then NFSv3's clients lock with it in vain.
async fn register_locks(rpcbind: SocketAddr, port: u16) -> bool {
    let calls = nfs::rpcbind::set_lock_calls(port);
    let registered = match TcpStream::connect(rpcbind).await {
        Ok(stream) => call_all(stream, calls).await.unwrap_or(false),
        Err(_) => false,
    };
    if !registered {
        tracing::warn!(
            target: NFS,
            "this machine's own lockd or statd is registered with rpcbind: clients of NFSv3 need the option nolock"
        );
    }
    registered
}

/// Sends ready calls to a port mapper; true when it agreed to all of them.
async fn call_all(mut stream: TcpStream, calls: Vec<Vec<u8>>) -> io::Result<bool> {
    let exchange = async {
        let mut agreed = true;
        for call in calls {
            stream.write_all(&reply_header(call.len())).await?;
            stream.write_all(&call).await?;
            let mut header = [0; 4];
            stream.read_exact(&mut header).await?;
            let len = (u32::from_be_bytes(header) & 0x7fff_ffff) as usize;
            if len > 4096 {
                return Err(io::Error::from(io::ErrorKind::InvalidData));
            }
            let mut answer = vec![0; len];
            stream.read_exact(&mut answer).await?;
            agreed &= nfs::rpcbind::registered(&answer);
        }
        Ok(agreed)
    };
    tokio::time::timeout(Duration::from_secs(5), exchange)
        .await
        .unwrap_or_else(|_| Err(io::Error::from(io::ErrorKind::TimedOut)))
}

/// Answers port queries that come as datagrams.
async fn datagrams(socket: UdpSocket, server: Server) {
    let mut buffer = vec![0; 4096];
    loop {
        let Ok((len, peer)) = socket.recv_from(&mut buffer).await else {
            return;
        };
        let Ok(local) = socket.local_addr() else {
            return;
        };
        let record = buffer[..len].to_vec().into();
        if let Some(reply) = server.call(plain(peer), plain(local), record).await {
            let bytes: Vec<u8> = reply
                .pieces
                .iter()
                .flat_map(|piece| piece.as_ref())
                .copied()
                .collect();
            let _ = socket.send_to(&bytes, peer).await;
        }
    }
}

/// An address as the access lists know it: IPv4 clients of an IPv6 socket are IPv4 clients.
fn plain(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

async fn accept(listener: TcpListener, server: Server, shared: Arc<Shared>) {
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => {
                // Closed when all connections are at work: the client tries again later.
                if let Some(permit) = shared.admission.admit(Some(peer.ip())) {
                    let (server, served) = (server.clone(), shared.clone());
                    let serve = move |stream| async move {
                        tracing::debug!(target: NFS, "{peer} is connected");
                        connection(stream, peer, server, &served, permit).await;
                        tracing::debug!(target: NFS, "{peer} is disconnected");
                    };
                    shared.workers.serve(stream, serve);
                } else {
                    tracing::debug!(
                        target: NFS,
                        "{peer} is turned away: all connections are in use"
                    );
                }
            }
            Err(error) => {
                // Out of descriptors, most likely: existing connections free some.
                tracing::warn!(target: NFS, "a connection could not be accepted: {error}");
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
        }
    }
}

/// A call that has come, with the memory that is set aside for it and its answer.
struct Incoming {
    record: Record,
    /// Nothing has come behind it.
    is_last: bool,
    memory: Vec<OwnedSemaphorePermit>,
    answer: OwnedSemaphorePermit,
    under_way: CallUnderWay,
}

impl Incoming {
    async fn run(
        self,
        server: &Server,
        by: &Arc<ClientConnection>,
        peer: SocketAddr,
        local: SocketAddr,
    ) -> Option<Answer> {
        let reply = server.call_by(Some(by), peer, local, self.record).await;
        drop(self.memory);
        let reply = reply?;
        Some(Answer {
            header: reply_header(reply.len()),
            reply,
            _held: Some((self.answer, self.under_way)),
        })
    }
}

/// An answer, with the memory that was set aside for it; its call is under way until it is sent. Or a call to the client.
struct Answer {
    header: [u8; 4],
    reply: Reply,
    _held: Option<(OwnedSemaphorePermit, CallUnderWay)>,
}

impl Answer {
    /// Something short, for which no memory was set aside.
    fn alone(message: Reply) -> Self {
        Self {
            header: reply_header(message.len()),
            reply: message,
            _held: None,
        }
    }
}

impl Outgoing for Answer {
    fn len(&self) -> usize {
        self.header.len() + self.reply.len()
    }

    fn slices(&self) -> impl Iterator<Item = &[u8]> {
        let pieces = self.reply.pieces.iter().map(AsRef::as_ref);
        std::iter::once(self.header.as_slice()).chain(pieces)
    }
}

/// A call under way, one of those that its connection may have.
struct CallUnderWay {
    _work: WorkUnderWay,
    _permit: OwnedSemaphorePermit,
}

/// What came of serving calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Served {
    /// The connection has ended.
    All,
    /// The client was told that the handshake of TLS begins.
    UntilTls,
}

/// Serves one connection, with TLS from when the client asks for it.
/// Any host that can connect makes handshakes fail.
static FAILED_HANDSHAKES: LogLimit = LogLimit::new();

async fn connection(
    mut stream: TcpStream,
    peer: SocketAddr,
    server: Server,
    shared: &Shared,
    permit: ConnectionPermit,
) {
    let _ = stream.set_nodelay(true);
    let Ok(local) = stream.local_addr() else {
        return;
    };
    let (peer, local) = (plain(peer), plain(local));
    let conversation = Conversation {
        peer,
        local,
        server: &server,
        shared,
        permit: &permit,
    };
    let served = conversation
        .serve(stream.split(), TransportSecurity::Plain)
        .await;
    let Some(tls) = shared.tls.as_ref().filter(|_| served == Served::UntilTls) else {
        return;
    };
    match tls.accept(stream).await {
        Ok((stream, security)) => {
            conversation.serve(tokio::io::split(stream), security).await;
        }
        Err(error) => {
            if let Some(more) = FAILED_HANDSHAKES.admit() {
                tracing::info!(target: NFS, "TLS with {peer}: {error}{more}");
            }
        }
    }
}

/// Whose calls are served, by what.
struct Conversation<'a> {
    peer: SocketAddr,
    local: SocketAddr,
    server: &'a Server,
    shared: &'a Shared,
    permit: &'a ConnectionPermit,
}

impl Conversation<'_> {
    /// Serves calls, all in one task: what wakes it for one thing finds everything else that is ready, so that many calls cost few
    /// system calls and no thread wakes another.
    async fn serve(
        &self,
        (reader, writer): (impl AsyncRead + Unpin, impl AsyncWrite + Unpin),
        security: TransportSecurity,
    ) -> Served {
        let (shared, permit) = (self.shared, self.permit);
        let is_plain = security == TransportSecurity::Plain;
        let offers_tls = is_plain && shared.tls.is_some();
        let mut served = Served::All;
        let requests = Requests::new(reader, shared, permit);
        let mut incoming = pin!(unfold(requests, async |mut requests| {
            let next = requests.next().await.ok()?;
            Some((next, requests))
        }));
        let (call_back, mut calls_back) = tokio::sync::mpsc::channel(CALLS_BACK_MAX);
        let by =
            ClientConnection::new(security, move |message| call_back.try_send(message).is_ok());
        let mut calls = FuturesUnordered::new();
        let mut answers = Outbox::new(writer, !is_plain);
        let mut ended = pin!(permit.evicted());
        let mut silence = pin!(sleep(shared.limits.idle));
        let mut reading = true;
        let mut under_way = CallsUnderWay::default();
        let mut spin = SpinPolicy::default();
        // The connection ends when the calls under way have been answered.
        while reading || !calls.is_empty() || !answers.is_empty() {
            under_way.set(calls.len());
            let call = spin_then_park(&mut spin, CallsUnderWay::is_one, calls.next());
            tokio::select! {
                biased;
                Some(answer) = call, if under_way.any() => answers.extend(answer),
                next = incoming.next(), if reading => match next {
                    Some(call) => match call.record.start_tls().filter(|_| offers_tls) {
                        None => calls.push(call.run(self.server, &by, self.peer, self.local)),
                        // What came behind it in plain text, or is answered so, would pass for a part of what TLS protects.
                        Some(answer) if call.is_last && calls.is_empty() => {
                            answers.extend(Some(Answer::alone(answer)));
                            (served, reading) = (Served::UntilTls, false);
                        }
                        Some(_) => reading = false,
                    },
                    None => reading = false,
                },
                Some(message) = calls_back.recv(), if by.is_called_back() => {
                    answers.extend(Some(Answer::alone(message.into())));
                }
                sent = send(&mut answers, &shared.replies), if !answers.is_empty() => {
                    // The client has gone or takes nothing: the connection is of no more use. Calls under way run to their
                    // end, for their answers are kept for the client that asks again.
                    if sent.is_err() {
                        while calls.next().await.is_some() {}
                        return Served::All;
                    }
                }
                () = &mut ended, if reading => reading = false,
                () = &mut silence, if reading => match self.silence_left() {
                    None if calls.is_empty() => reading = false,
                    left => silence.as_mut().reset(Instant::now() + left.unwrap_or(STALL_TIMEOUT)),
                },
            }
        }
        if served == Served::All {
            answers.shutdown().await;
        }
        served
    }

    /// Returns how much longer the client may be silent; `None` when it has been for too long.
    fn silence_left(&self) -> Option<Duration> {
        let left = self
            .shared
            .limits
            .idle
            .checked_sub(self.permit.silent_for());
        left.filter(|left| !left.is_zero())
            .map(|left| left.max(STALL_TIMEOUT))
    }
}

/// The calls of a connection, as they come.
struct Requests<'a, R> {
    reader: BufReader<R>,
    assembler: Assembler,
    /// One per call: a client that asks more than it may waits in its own socket.
    calls: Arc<Semaphore>,
    shared: &'a Shared,
    permit: &'a ConnectionPermit,
}

impl<'a, R: AsyncRead + Unpin> Requests<'a, R> {
    fn new(reader: R, shared: &'a Shared, permit: &'a ConnectionPermit) -> Self {
        Self {
            reader: BufReader::with_capacity(READ_AHEAD_BYTES, reader),
            assembler: Assembler::new(RECORD_BYTES_MAX),
            calls: Arc::new(Semaphore::new(CALLS_MAX)),
            shared,
            permit,
        }
    }

    /// Returns the next call, when there is memory for it and its answer.
    async fn next(&mut self) -> io::Result<Incoming> {
        let permit = self.calls.clone().acquire_owned().await;
        let permit = permit.map_err(io::Error::other)?;
        let mut header = [0; 4];
        self.reader.read_exact(&mut header).await?;
        let body = self.record(header);
        let (record, memory) = timeout(RECORD_TIMEOUT, body).await??;
        self.permit.note_request();
        let under_way = CallUnderWay {
            _work: self.permit.begin_work(),
            _permit: permit,
        };
        let answer = self.shared.replies.take(record.reply_bytes_max());
        Ok(Incoming {
            memory,
            answer: answer.await?,
            is_last: self.reader.buffer().is_empty(),
            record,
            under_way,
        })
    }

    /// Reads the rest of a record whose first header has come, and takes the memory for it first.
    async fn record(&mut self, first: [u8; 4]) -> io::Result<(Record, Vec<OwnedSemaphorePermit>)> {
        let requests = &self.shared.requests;
        let mut memory = Vec::new();
        let mut record = Vec::new();
        let _ = self.assembler.begin();
        let invalid = |error| io::Error::new(io::ErrorKind::InvalidData, error);
        let mut next = self.assembler.header(first).map_err(invalid)?;
        loop {
            match next {
                Next::Complete => return Ok((record.into(), memory)),
                Next::Header => {
                    let mut header = [0; 4];
                    let read = self.reader.read_exact(&mut header);
                    requests.unless_stalled(read).await?;
                    next = self.assembler.header(header).map_err(invalid)?;
                }
                Next::Body(length) => {
                    let begins = memory.is_empty();
                    if begins {
                        // Nothing is set aside for a record of which nothing comes.
                        self.reader.fill_buf().await?;
                    }
                    let more = requests.take(length);
                    memory.push(if begins {
                        more.await?
                    } else {
                        // A client that holds some and needs more may be the one that all others wait for.
                        requests.unless_stalled(more).await?
                    });
                    if begins && let Some(record) = self.write(length).await? {
                        return Ok((record, memory));
                    }
                    // Reserved now, filled as bytes come: silence costs address space only.
                    record.reserve_exact(length);
                    let end = record.len() + length;
                    while record.len() < end {
                        let enough = end.min(record.len() + PROGRESS_BYTES);
                        let part = fill(&mut self.reader, &mut record, enough, end);
                        requests.unless_stalled(part).await?;
                    }
                    next = self.assembler.body();
                }
            }
        }
    }

    /// Reads a record that is a large WRITE: its data goes where the engine takes it without a copy.
    async fn write(&mut self, length: usize) -> io::Result<Option<Record>> {
        let requests = &self.shared.requests;
        if length < WRITE_APART_BYTES || self.assembler.body() != Next::Complete {
            return Ok(None);
        }
        let Some(write) = IncomingWrite::decode(self.reader.buffer(), length) else {
            return Ok(None);
        };
        let range = write.data();
        let mut head = vec![0; range.start];
        self.reader.read_exact(&mut head).await?;
        let mut data = IoBufMut::scratch(range.len());
        let mut filled = 0;
        while filled < data.len() {
            let enough = data.len().min(filled + PROGRESS_BYTES);
            let part = async {
                while filled < enough {
                    match self.reader.read(&mut data[filled..]).await? {
                        0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                        count => filled += count,
                    }
                }
                Ok(())
            };
            requests.unless_stalled(part).await?;
        }
        let mut padding = vec![0; length - range.end];
        let read = self.reader.read_exact(&mut padding);
        requests.unless_stalled(read).await?;
        Ok(Some(write.complete(head, data.freeze())))
    }
}

/// Lengthens the record to `enough` bytes at least, and to `end` if so much is there.
async fn fill(
    reader: &mut (impl AsyncRead + Unpin),
    record: &mut Vec<u8>,
    enough: usize,
    end: usize,
) -> io::Result<()> {
    while record.len() < enough {
        let rest = (end - record.len()) as u64;
        if (&mut *reader).take(rest).read_buf(record).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    Ok(())
}

/// Gives the client as much of its answers as it takes at once. Dropped before it ends, it has given nothing.
///
/// # Errors
/// The client has gone, or takes nothing for too long.
async fn send<W>(answers: &mut Outbox<W, Answer>, memory: &Memory) -> io::Result<()>
where
    W: AsyncWrite + Unpin,
{
    let mut look_at = answers.progress() + memory.stall_timeout();
    loop {
        let first_since = answers.first_since();
        match timeout_at(look_at, answers.send()).await {
            Ok(sent) => return sent,
            Err(_)
                if first_since.elapsed() < REPLY_TIMEOUT
                    && memory.waiting.load(Ordering::Relaxed) == 0 =>
            {
                look_at = Instant::now() + memory.stall_timeout();
            }
            Err(_) => return Err(io::ErrorKind::TimedOut.into()),
        }
    }
}
