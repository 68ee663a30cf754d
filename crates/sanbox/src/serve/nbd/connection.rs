//! One connection: the negotiation, then requests that run at the same time and answers as they come. What the bytes mean is the
//! crate `nbd`'s affair; here are the socket, its time limits and the memory of requests.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use ::nbd::{Need, Negotiation, REQUEST_BYTES, Reply, Request, Session, Step};
use engine::{IoBuf, IoBufMut};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use super::OfferedExports;
use crate::serve::admission::ConnectionPermit;

/// Requests of one connection under way at once.
const REQUESTS_MAX: usize = 64;
/// How long the negotiation may take from one message to the next.
const NEGOTIATION_TIMEOUT: Duration = Duration::from_secs(60);
/// How long a client may take to accept an answer.
const REPLY_TIMEOUT: Duration = Duration::from_secs(120);

/// Serves a connection until it ends.
pub(super) async fn serve<R, W>(
    mut reader: R,
    mut writer: W,
    exports: OfferedExports,
    permit: ConnectionPermit,
) where
    R: AsyncRead + Unpin + Send + 'static,
    W: AsyncWrite + Unpin + Send + 'static,
{
    // After an error the client has gone, or does not speak the protocol: the connection ends, nothing else.
    if let Ok(Some(session)) = negotiate(&mut reader, &mut writer, &exports).await {
        transmit(reader, writer, session, exports.memory()).await;
    }
    drop(permit);
}

async fn in_time<T>(work: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    tokio::time::timeout(NEGOTIATION_TIMEOUT, work)
        .await
        .unwrap_or_else(|_| Err(io::Error::from(io::ErrorKind::TimedOut)))
}

/// Returns what the client has chosen; `None` when it ends the connection.
async fn negotiate<R, W>(
    reader: &mut R,
    writer: &mut W,
    exports: &OfferedExports,
) -> io::Result<Option<Session>>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    let (mut negotiation, greeting) = Negotiation::begin();
    in_time(writer.write_all(&greeting)).await?;
    loop {
        let mut bytes = Vec::new();
        match negotiation.need() {
            Need::Bytes(count) => {
                bytes.resize(count, 0);
                in_time(reader.read_exact(&mut bytes)).await?;
            }
            Need::Skip(count) => {
                let (mut skipped, mut sink) = ((&mut *reader).take(count), tokio::io::sink());
                in_time(tokio::io::copy(&mut skipped, &mut sink)).await?;
            }
        }
        let step = negotiation.receive(&bytes, exports).await;
        match step.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))? {
            Step::Continue(sent) => in_time(writer.write_all(&sent)).await?,
            Step::End(sent) => {
                in_time(writer.write_all(&sent)).await?;
                return Ok(None);
            }
            Step::Chosen(sent, export, terms) => {
                in_time(writer.write_all(&sent)).await?;
                return Ok(Some(Session::new(export, &terms)));
            }
        }
    }
}

/// An answer on its way out.
struct Outgoing {
    reply: Reply,
    /// One of the requests that may be under way, and the memory its request took.
    _held: (OwnedSemaphorePermit, OwnedSemaphorePermit),
}

async fn transmit<R, W>(mut reader: R, writer: W, session: Session, memory: Arc<Semaphore>)
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin + Send + 'static,
{
    let session = Arc::new(session);
    let (sender, receiver) = mpsc::channel::<Outgoing>(REQUESTS_MAX);
    let writing = tokio::spawn(write_replies(writer, receiver));
    let requests = Arc::new(Semaphore::new(REQUESTS_MAX));
    while let Ok(turn) = requests.clone().acquire_owned().await {
        let mut header = [0; REQUEST_BYTES];
        // A client may be silent for as long as it likes: a disk is not closed for being idle.
        let Ok(_) = reader.read_exact(&mut header).await else {
            break;
        };
        let Some(request) = Request::decode(&header).filter(|request| !request.is_disconnect())
        else {
            break;
        };
        let Some(data_bytes) = request.data_bytes() else {
            break;
        };
        let kib = request.memory_bytes().div_ceil(1024);
        let Ok(held) = memory.clone().acquire_many_owned(kib).await else {
            break;
        };
        let mut data = IoBuf::empty();
        if data_bytes > 0 {
            let mut buffer = IoBufMut::zeroed(data_bytes);
            if reader.read_exact(&mut buffer).await.is_err() {
                break;
            }
            data = buffer.freeze();
        }
        let (session, sender) = (session.clone(), sender.clone());
        tokio::spawn(async move {
            let outgoing = Outgoing {
                reply: session.answer(request, data).await,
                _held: (turn, held),
            };
            let _ = sender.send(outgoing).await;
        });
    }
    drop(sender);
    let _ = writing.await;
}

async fn write_replies<W: AsyncWrite + Unpin>(
    mut writer: W,
    mut replies: mpsc::Receiver<Outgoing>,
) {
    while let Some(outgoing) = replies.recv().await {
        let write = write_reply(&mut writer, &outgoing.reply);
        match tokio::time::timeout(REPLY_TIMEOUT, write).await {
            Ok(Ok(())) => {}
            _ => return,
        }
    }
    let _ = writer.shutdown().await;
}

async fn write_reply<W: AsyncWrite + Unpin>(writer: &mut W, reply: &Reply) -> io::Result<()> {
    let mut slices = Vec::with_capacity(reply.pieces.len() + 1);
    slices.push(io::IoSlice::new(&reply.header));
    slices.extend(reply.pieces.iter().map(|piece| io::IoSlice::new(piece)));
    let mut left = slices.as_mut_slice();
    while !left.is_empty() {
        let count = writer.write_vectored(left).await?;
        if count == 0 {
            return Err(io::Error::from(io::ErrorKind::WriteZero));
        }
        io::IoSlice::advance_slices(&mut left, count);
    }
    writer.flush().await
}
