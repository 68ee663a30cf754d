//! One TCP connection of an initiator: all in one task, which reads PDUs, runs the commands they ask for beside each other and
//! writes what comes of them. What wakes it for one thing finds everything else that is ready, so that many commands cost few
//! system calls, and no thread wakes another for them.
//!
//! Commands run to their end even when the connection has gone. Nothing more is read while too much waits to be written.

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use ::iscsi::{BHS_BYTES, Connection, Next, Out, Rest, Server, Transport, Work};
use engine::{IoBufMut, SpinPolicy, spin_then_park};
use futures_util::StreamExt as _;
use futures_util::stream::{FuturesUnordered, unfold};
use tokio::io::{AsyncRead, AsyncReadExt as _, BufReader};
use tokio::net::TcpStream;
use tokio::net::tcp::WriteHalf;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use crate::serve::admission::ConnectionPermit;
use crate::serve::connection_workers::CallsUnderWay;
use crate::serve::outbox::{Outbox, Outgoing};

/// Bytes waiting to be written to one connection before nothing more is read from it.
const QUEUED_BYTES_MAX: usize = 16 << 20;
/// Bytes read before they are asked for: a queue of commands in one system call, while of a burst of data little is copied twice.
const READ_AHEAD_BYTES: usize = 16 << 10;
/// How long a login may take altogether.
const LOGIN_TIMEOUT: Duration = Duration::from_secs(15);
/// How long a PDU may take once it has begun.
const PDU_TIMEOUT: Duration = Duration::from_secs(60);
/// How long a connection may be silent before it is asked whether it lives, and then again before it is closed.
const SILENCE: Duration = Duration::from_secs(30);
/// How long an initiator may take to accept a PDU of ours.
const SEND_TIMEOUT: Duration = Duration::from_secs(120);

impl Outgoing for Out {
    fn len(&self) -> usize {
        let data: usize = self.pieces.iter().map(|piece| piece.len()).sum();
        self.header.len() + data + self.tail.len()
    }

    fn slices(&self) -> impl Iterator<Item = &[u8]> {
        let pieces = self.pieces.iter().map(|piece| &piece[..]);
        std::iter::once(self.header.as_slice())
            .chain(pieces)
            .chain(std::iter::once(self.tail.as_slice()))
            .filter(|slice| !slice.is_empty())
    }
}

/// What the service hands to the connection's task, from any thread.
#[derive(Default)]
struct Wire(Mutex<Handed>);

#[derive(Default)]
struct Handed {
    pdus: Vec<Out>,
    work: Vec<Work>,
    /// Nothing is sent after what was sent.
    closed: bool,
    /// The connection's task takes no work any more.
    ended: bool,
    waker: Option<Waker>,
}

impl Wire {
    fn handed(&self) -> MutexGuard<'_, Handed> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut Handed)) {
        let mut handed = self.handed();
        change(&mut handed);
        let waker = handed.waker.take();
        drop(handed);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Ready when something has been handed over since it was last taken.
    fn poll(&self, context: &mut Context<'_>) -> Poll<()> {
        let mut handed = self.handed();
        if handed.closed || !handed.pdus.is_empty() || !handed.work.is_empty() {
            return Poll::Ready(());
        }
        match &mut handed.waker {
            Some(waker) => waker.clone_from(context.waker()),
            none => *none = Some(context.waker().clone()),
        }
        Poll::Pending
    }

    /// Moves what was handed over to where it is worked on. Returns whether the connection is to be closed.
    fn take(
        &self,
        calls: &FuturesUnordered<Work>,
        outbox: &mut Outbox<WriteHalf<'_>, Out>,
    ) -> bool {
        let mut handed = self.handed();
        if !handed.pdus.is_empty() {
            outbox.extend(handed.pdus.drain(..));
        }
        for work in handed.work.drain(..) {
            calls.push(work);
        }
        handed.closed
    }

    /// Nothing is taken any more; returns what is left to be run.
    fn end(&self) -> Vec<Work> {
        let mut handed = self.handed();
        handed.ended = true;
        handed.closed = true;
        handed.pdus = Vec::new();
        std::mem::take(&mut handed.work)
    }
}

impl Transport for Wire {
    fn send(&self, out: Out) {
        self.change(|handed| {
            if !handed.closed {
                handed.pdus.push(out);
            }
        });
    }

    fn close(&self) {
        self.change(|handed| handed.closed = true);
    }

    fn run(&self, work: Work) {
        if self.handed().ended {
            tokio::spawn(work);
        } else {
            self.change(|handed| handed.work.push(work));
        }
    }
}

/// Serves a connection to its end.
pub(super) async fn serve(
    mut stream: TcpStream,
    peer: SocketAddr,
    server: Server,
    permit: ConnectionPermit,
) {
    let _ = stream.set_nodelay(true);
    let Ok(local) = stream.local_addr() else {
        return;
    };
    let wire = Arc::new(Wire::default());
    let connection = server.connect(peer, local, wire.clone());
    let mut calls = FuturesUnordered::new();
    let (reader, writer) = stream.split();
    let mut outbox = Outbox::new(writer, false);
    let alive = exchange(reader, &connection, &wire, &permit, &mut calls, &mut outbox).await;
    // Ends the connection's tasks; those at work go on below.
    drop(connection);
    if alive {
        let _ = timeout(SEND_TIMEOUT, finish(&wire, &mut calls, &mut outbox)).await;
    }
    outbox.shutdown().await;
    calls.extend(wire.end());
    drop(stream);
    drop(permit);
    while calls.next().await.is_some() {}
}

/// Reads, runs and writes until one side ends it. Returns whether the initiator may still take what is to be written.
async fn exchange(
    reader: impl AsyncRead + Unpin,
    connection: &Connection,
    wire: &Wire,
    permit: &ConnectionPermit,
    calls: &mut FuturesUnordered<Work>,
    outbox: &mut Outbox<WriteHalf<'_>, Out>,
) -> bool {
    let reader = BufReader::with_capacity(READ_AHEAD_BYTES, reader);
    let mut incoming = pin!(unfold(reader, async |mut reader| {
        let pdu = read(&mut reader, connection).await?;
        Some((pdu, reader))
    }));
    // The login as a whole, however many PDUs it is made of.
    let mut login = pin!(sleep(LOGIN_TIMEOUT));
    // A session is work: only a connection without one ends for others.
    let mut session = None;
    let mut under_way = CallsUnderWay::default();
    let mut spin = SpinPolicy::default();
    loop {
        if wire.take(calls, outbox) {
            return true;
        }
        if session.is_none() && connection.is_logged_in() {
            session = Some(permit.begin_work());
        }
        let reads = outbox.bytes() <= QUEUED_BYTES_MAX;
        under_way.set(calls.len());
        let call = spin_then_park(&mut spin, CallsUnderWay::is_one, calls.next());
        tokio::select! {
            biased;
            Some(()) = call, if under_way.any() => {}
            pdu = incoming.next(), if reads => match pdu {
                Some((bhs, rest)) => {
                    if connection.receive(bhs, rest) == Next::End {
                        return true;
                    }
                }
                None => return true,
            },
            sent = send(outbox), if !outbox.is_empty() => {
                if sent.is_err() {
                    return false;
                }
            }
            () = poll_fn(|context| wire.poll(context)) => {}
            () = permit.evicted(), if session.is_none() => return true,
            () = &mut login, if session.is_none() => return true,
        }
    }
}

/// Writes what is left to be written, while what is under way goes on.
async fn finish(
    wire: &Wire,
    calls: &mut FuturesUnordered<Work>,
    outbox: &mut Outbox<WriteHalf<'_>, Out>,
) {
    wire.take(calls, outbox);
    while !outbox.is_empty() {
        tokio::select! {
            Some(()) = calls.next(), if !calls.is_empty() => {}
            sent = send(outbox) => if sent.is_err() {
                return;
            },
        }
    }
}

/// Gives the initiator what it takes at once.
async fn send(outbox: &mut Outbox<WriteHalf<'_>, Out>) -> io::Result<()> {
    let until = outbox.first_since() + SEND_TIMEOUT;
    timeout_at(until, outbox.send()).await?
}

/// Reads a PDU: its header and what follows it; `None` at the end of the connection.
async fn read(
    reader: &mut BufReader<impl AsyncRead + Unpin>,
    connection: &Connection,
) -> Option<([u8; BHS_BYTES], Rest)> {
    let mut bhs = [0; BHS_BYTES];
    bhs[0] = first_byte(reader, connection).await?;
    let limit = if connection.is_logged_in() {
        PDU_TIMEOUT
    } else {
        LOGIN_TIMEOUT
    };
    let whole = async {
        if let Some(rest) = bhs.get_mut(1..) {
            reader.read_exact(rest).await?;
        }
        let shape = connection.shape(&bhs).map_err(io::Error::other)?;
        let mut rest = Rest {
            head: vec![0; shape.head],
            data: Vec::new(),
            tail: vec![0; shape.tail],
        };
        reader.read_exact(&mut rest.head).await?;
        for len in shape.pieces() {
            // Taken one by one, as bytes come: an initiator that sends nothing holds one of them.
            let mut piece = IoBufMut::scratch(len);
            reader.read_exact(&mut piece).await?;
            rest.data.push(piece.freeze());
        }
        reader.read_exact(&mut rest.tail).await?;
        Ok::<_, io::Error>(rest)
    };
    let rest = timeout_at(Instant::now() + limit, whole).await.ok()?.ok()?;
    Some((bhs, rest))
}

/// Waits for the next PDU, asking after a while whether the initiator still lives.
async fn first_byte(
    reader: &mut BufReader<impl AsyncRead + Unpin>,
    connection: &Connection,
) -> Option<u8> {
    for round in 0..2 {
        let logged_in = connection.is_logged_in();
        let silence_max = if logged_in { SILENCE } else { LOGIN_TIMEOUT };
        match timeout(silence_max, reader.read_u8()).await {
            Ok(Ok(byte)) => return Some(byte),
            Ok(Err(_)) => return None,
            Err(_) if round == 0 && logged_in => connection.ping(),
            Err(_) => return None,
        }
    }
    None
}
