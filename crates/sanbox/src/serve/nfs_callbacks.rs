//! Carries the NFS service's calls to its clients: finds the client's port by its port mapper, calls, and reports the answer.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use nfs::record::reply_header;
use nfs::{ClientCall, ClientCalls, Server, Transport};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream, UdpSocket};
use tokio::sync::{Semaphore, mpsc};
use tokio::time::{sleep, timeout};

use crate::logging::NFS;

/// Calls that wait to be carried.
const WAITING_MAX: usize = 4096;
/// Calls under way at once.
const UNDER_WAY_MAX: usize = 64;
/// How long a client may take for one step.
const STEP_TIMEOUT: Duration = Duration::from_secs(5);
/// The pauses between tries grow up to this.
const PAUSE_MAX: Duration = Duration::from_secs(60);
/// The longest answer, in bytes.
const ANSWER_BYTES_MAX: usize = 4096;
const PORTMAP_PORT: u16 = 111;

/// Takes the calls of the service.
pub(crate) struct CallQueue(mpsc::Sender<ClientCall>);

/// Returns where the service leaves its calls, and what [`carry`] takes them from.
pub(crate) fn queue() -> (CallQueue, mpsc::Receiver<ClientCall>) {
    let (sender, receiver) = mpsc::channel(WAITING_MAX);
    (CallQueue(sender), receiver)
}

impl ClientCalls for CallQueue {
    fn send(&self, call: ClientCall) -> Result<(), Box<ClientCall>> {
        let sent = self.0.try_send(call);
        sent.map_err(|error| Box::new(error.into_inner()))
    }
}

/// Carries calls until the service ends.
pub(crate) async fn carry(mut calls: mpsc::Receiver<ClientCall>, server: Server) {
    let under_way = Arc::new(Semaphore::new(UNDER_WAY_MAX));
    let next_xid = Arc::new(AtomicU32::new(1));
    while let Some(call) = calls.recv().await {
        let (server, under_way) = (server.clone(), under_way.clone());
        let next_xid = next_xid.clone();
        tokio::spawn(async move {
            let answer = try_all(&call, &under_way, &next_xid).await;
            if answer.is_none() {
                let (_, what) = call.tries();
                tracing::warn!(target: NFS, "client {} was not told: {what}", call.to);
            }
            server.answered(&call, answer.as_deref());
        });
    }
}

/// Calls until the client answers, as often as the call is worth.
async fn try_all(
    call: &ClientCall,
    under_way: &Semaphore,
    next_xid: &AtomicU32,
) -> Option<Vec<u8>> {
    let (tries, what) = call.tries();
    let mut pause = Duration::from_secs(2);
    for attempt in 1..=tries {
        let permit = under_way.acquire().await.ok()?;
        let xid = next_xid.fetch_add(4, Ordering::Relaxed);
        match call_once(call, xid).await {
            Ok(answer) => return Some(answer),
            Err(error) => {
                tracing::debug!(target: NFS, "client {} was not told ({what}): {error}", call.to);
            }
        }
        drop(permit);
        if attempt < tries {
            sleep(pause).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }
    None
}

async fn call_once(call: &ClientCall, xid: u32) -> io::Result<Vec<u8>> {
    let (transport, port) = locate(call, xid).await?;
    let message = call.message(xid.wrapping_add(3));
    exchange(call, transport, port, &message).await
}

/// Finds where the client serves the call's program.
async fn locate(call: &ClientCall, xid: u32) -> io::Result<(Transport, u16)> {
    let mut refused = io::Error::from(io::ErrorKind::NotFound);
    // Some port mappers take datagrams only.
    for asking in [Transport::Tcp, Transport::Udp] {
        for (transport, xid) in [(Transport::Tcp, xid), (Transport::Udp, xid.wrapping_add(1))] {
            let query = call.port_query(xid, transport);
            match exchange(call, asking, PORTMAP_PORT, &query).await {
                Ok(answer) => {
                    if let Some(port) = call.port_of_answer(&answer) {
                        return Ok((transport, port));
                    }
                }
                Err(error) => {
                    refused = error;
                    break;
                }
            }
        }
    }
    Err(refused)
}

/// Sends an RPC message, and returns the reply.
async fn exchange(
    call: &ClientCall,
    transport: Transport,
    port: u16,
    message: &[u8],
) -> io::Result<Vec<u8>> {
    let to = SocketAddr::new(call.to, port);
    let work = async {
        match transport {
            Transport::Tcp => by_connection(call.from, to, message).await,
            Transport::Udp => by_datagram(call.from, to, message).await,
        }
    };
    timeout(STEP_TIMEOUT, work)
        .await
        .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

async fn by_connection(from: IpAddr, to: SocketAddr, message: &[u8]) -> io::Result<Vec<u8>> {
    let mut stream = connect(from, to).await?;
    stream.write_all(&reply_header(message.len())).await?;
    stream.write_all(message).await?;
    let mut header = [0; 4];
    stream.read_exact(&mut header).await?;
    let header = u32::from_be_bytes(header);
    let length = (header & 0x7fff_ffff) as usize;
    // Answers are short: they come in one piece.
    if header >> 31 == 0 || length > ANSWER_BYTES_MAX {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut answer = vec![0; length];
    stream.read_exact(&mut answer).await?;
    check_xid(message, &answer)?;
    Ok(answer)
}

/// Connects from the address that the client knows; from any where this machine does not have it any more.
async fn connect(from: IpAddr, to: SocketAddr) -> io::Result<TcpStream> {
    let socket = match to {
        SocketAddr::V4(_) => TcpSocket::new_v4(),
        SocketAddr::V6(_) => TcpSocket::new_v6(),
    }?;
    if socket.bind(SocketAddr::new(from, 0)).is_err() {
        tracing::debug!(target: NFS, "{to} is called from another address than {from}");
    }
    socket.connect(to).await
}

async fn by_datagram(from: IpAddr, to: SocketAddr, message: &[u8]) -> io::Result<Vec<u8>> {
    let socket = match UdpSocket::bind(SocketAddr::new(from, 0)).await {
        Ok(socket) => socket,
        Err(_) if to.is_ipv4() => UdpSocket::bind("0.0.0.0:0").await?,
        Err(_) => UdpSocket::bind("[::]:0").await?,
    };
    socket.connect(to).await?;
    let mut buffer = vec![0; ANSWER_BYTES_MAX];
    // Datagrams get lost.
    for _ in 0..3 {
        socket.send(message).await?;
        if let Ok(received) = timeout(STEP_TIMEOUT / 4, socket.recv(&mut buffer)).await {
            buffer.truncate(received?);
            check_xid(message, &buffer)?;
            return Ok(buffer);
        }
    }
    Err(io::ErrorKind::TimedOut.into())
}

fn check_xid(message: &[u8], answer: &[u8]) -> io::Result<()> {
    if answer.get(..4) == message.get(..4) {
        return Ok(());
    }
    Err(io::ErrorKind::InvalidData.into())
}
