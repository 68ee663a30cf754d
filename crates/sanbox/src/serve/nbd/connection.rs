//! One connection: the negotiation, then requests that run at the same time and answers as they come.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use engine::{IoBuf, Stability, VolumeError, VolumeHandle};
use runtime::IoBufMut;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use super::wire::{
    self, Reader, Request, chunk, command, errno, flag, handshake, info, option, reply, status,
    transmission,
};
use super::{Door, Export, Place};

/// Bytes of one read or write, as the protocol lets clients expect.
const PAYLOAD_BYTES_MAX: u32 = 32 << 20;
/// Bytes of an option's data.
const OPTION_BYTES_MAX: usize = 64 << 10;
/// Options a client may send before it chooses an export.
const OPTIONS_MAX: usize = 10_000;
/// Requests of one connection under way at once.
const REQUESTS_MAX: usize = 64;
/// Stretches in one answer about allocation.
const EXTENTS_MAX: usize = 1024;
/// How long the negotiation may take from one message to the next.
const NEGOTIATION_TIMEOUT: Duration = Duration::from_secs(60);
/// How long a client may take to accept an answer.
const REPLY_TIMEOUT: Duration = Duration::from_secs(120);
/// The only metadata context.
const BASE_ALLOCATION: &str = "base:allocation";
/// The number we give it.
const BASE_ALLOCATION_ID: u32 = 1;

/// What was agreed on.
#[derive(Debug, Default, Clone)]
struct Terms {
    no_zeroes: bool,
    structured: bool,
    /// The export for which `base:allocation` was selected.
    allocation_of: Option<String>,
}

/// Serves a connection until it ends.
pub(super) async fn serve<R, W>(mut reader: R, mut writer: W, door: Door, place: Place)
where
    R: AsyncRead + Unpin + Send + 'static,
    W: AsyncWrite + Unpin + Send + 'static,
{
    // An error here is a client that has gone or talks nonsense: the connection ends, nothing else.
    if let Ok(Some((export, terms))) = negotiate(&mut reader, &mut writer, door, &place).await {
        transmit(reader, writer, export, terms, &place).await;
    }
}

fn nonsense(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

async fn timely<T>(work: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    tokio::time::timeout(NEGOTIATION_TIMEOUT, work)
        .await
        .unwrap_or_else(|_| Err(io::Error::from(io::ErrorKind::TimedOut)))
}

async fn negotiate<R, W>(
    reader: &mut R,
    writer: &mut W,
    door: Door,
    place: &Place,
) -> io::Result<Option<(Export, Terms)>>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    let mut greeting = Vec::with_capacity(18);
    greeting.extend_from_slice(&wire::MAGIC.to_be_bytes());
    greeting.extend_from_slice(&wire::OPTION_MAGIC.to_be_bytes());
    let offered = handshake::FIXED_NEWSTYLE | handshake::NO_ZEROES;
    greeting.extend_from_slice(&offered.to_be_bytes());
    timely(writer.write_all(&greeting)).await?;
    let flags = timely(reader.read_u32()).await?;
    if flags & !u32::from(offered) != 0 {
        return Err(nonsense("unknown flags"));
    }
    let mut terms = Terms {
        no_zeroes: flags & u32::from(handshake::NO_ZEROES) != 0,
        ..Terms::default()
    };
    for _ in 0..OPTIONS_MAX {
        let magic = timely(reader.read_u64()).await?;
        let code = timely(reader.read_u32()).await?;
        let len = timely(reader.read_u32()).await?;
        if magic != wire::OPTION_MAGIC {
            return Err(nonsense("an option"));
        }
        let len = usize::try_from(len).map_err(|_| nonsense("an option's length"))?;
        if len > OPTION_BYTES_MAX {
            if code == option::EXPORT_NAME {
                return Err(nonsense("an export's name"));
            }
            let (mut rest, mut sink) = ((&mut *reader).take(len as u64), tokio::io::sink());
            timely(tokio::io::copy(&mut rest, &mut sink)).await?;
            let refused = wire::option_reply(code, reply::ERR_TOO_BIG, b"");
            timely(writer.write_all(&refused)).await?;
            continue;
        }
        let mut data = vec![0; len];
        timely(reader.read_exact(&mut data)).await?;
        if code == option::EXPORT_NAME {
            let name = std::str::from_utf8(&data).map_err(|_| nonsense("an export's name"))?;
            let export = place.0.export(door, name).await;
            // Without a reply of its own the option can only succeed or end the connection.
            let export = export.ok_or_else(|| nonsense("an export"))?;
            let facts = Facts::of(&export)
                .await
                .ok_or_else(|| nonsense("an export"))?;
            let mut answer = Vec::with_capacity(134);
            answer.extend_from_slice(&facts.size.to_be_bytes());
            answer.extend_from_slice(&facts.flags(&terms).to_be_bytes());
            if !terms.no_zeroes {
                answer.extend_from_slice(&[0; 124]);
            }
            timely(writer.write_all(&answer)).await?;
            terms.allocation_of = terms.allocation_of.filter(|chosen| chosen == name);
            return Ok(Some((export, terms)));
        }
        let answer = answer_option(code, &data, &mut terms, door, place).await;
        timely(writer.write_all(&answer.bytes)).await?;
        if answer.ends {
            return Ok(answer.export.map(|export| (export, terms)));
        }
    }
    Err(nonsense("too many options"))
}

/// The answer to an option.
#[derive(Default)]
struct Answer {
    bytes: Vec<u8>,
    /// The negotiation is over, with an export or without.
    ends: bool,
    export: Option<Export>,
}

impl Answer {
    fn one(code: u32, kind: u32, data: &[u8]) -> Self {
        Self {
            bytes: wire::option_reply(code, kind, data),
            ..Self::default()
        }
    }
}

async fn answer_option(
    code: u32,
    data: &[u8],
    terms: &mut Terms,
    door: Door,
    place: &Place,
) -> Answer {
    match code {
        option::ABORT => Answer {
            ends: true,
            ..Answer::one(code, reply::ACK, b"")
        },
        option::LIST if !data.is_empty() => {
            Answer::one(code, reply::ERR_INVALID, b"LIST takes no data")
        }
        option::LIST => {
            let mut bytes = Vec::new();
            for (name, _) in place.0.exports(door).await {
                let mut entry = u32::try_from(name.len())
                    .unwrap_or(0)
                    .to_be_bytes()
                    .to_vec();
                entry.extend_from_slice(name.as_bytes());
                bytes.extend(wire::option_reply(code, reply::SERVER, &entry));
            }
            bytes.extend(wire::option_reply(code, reply::ACK, b""));
            Answer {
                bytes,
                ..Answer::default()
            }
        }
        option::STRUCTURED_REPLY if data.is_empty() => {
            terms.structured = true;
            Answer::one(code, reply::ACK, b"")
        }
        option::STRUCTURED_REPLY => {
            Answer::one(code, reply::ERR_INVALID, b"STRUCTURED_REPLY takes no data")
        }
        option::INFO | option::GO => go(code, data, terms, door, place).await,
        option::LIST_META_CONTEXT | option::SET_META_CONTEXT => {
            meta_context(code, data, terms, door, place).await
        }
        _ => Answer::one(code, reply::ERR_UNSUPPORTED, b""),
    }
}

async fn go(code: u32, data: &[u8], terms: &mut Terms, door: Door, place: &Place) -> Answer {
    let mut reader = Reader(data);
    let mut parse = || -> Option<(&str, Vec<u16>)> {
        let name = reader.text()?;
        let count = usize::from(reader.u16()?);
        if reader.0.len() != count * 2 {
            return None;
        }
        let wanted = (0..count).map_while(|_| reader.u16()).collect();
        Some((name, wanted))
    };
    let Some((name, wanted)) = parse() else {
        return Answer::one(code, reply::ERR_INVALID, b"malformed");
    };
    let export = place.0.export(door, name).await;
    let facts = match &export {
        Some(export) => Facts::of(export).await,
        None => None,
    };
    let (Some(export), Some(facts)) = (export, facts) else {
        let text = format!("no volume '{name}' is offered here");
        return Answer::one(code, reply::ERR_UNKNOWN, text.as_bytes());
    };
    let mut bytes = Vec::new();
    let mut told = info::EXPORT.to_be_bytes().to_vec();
    told.extend_from_slice(&facts.size.to_be_bytes());
    told.extend_from_slice(&facts.flags(terms).to_be_bytes());
    bytes.extend(wire::option_reply(code, reply::INFO, &told));
    if wanted.contains(&info::NAME) {
        let mut told = info::NAME.to_be_bytes().to_vec();
        told.extend_from_slice(name.as_bytes());
        bytes.extend(wire::option_reply(code, reply::INFO, &told));
    }
    // Any alignment works, so this may be told to those who did not ask and will not obey.
    let mut told = info::BLOCK_SIZE.to_be_bytes().to_vec();
    for size in [1, facts.preferred, PAYLOAD_BYTES_MAX] {
        told.extend_from_slice(&size.to_be_bytes());
    }
    bytes.extend(wire::option_reply(code, reply::INFO, &told));
    bytes.extend(wire::option_reply(code, reply::ACK, b""));
    let ends = code == option::GO;
    if ends {
        terms.allocation_of = terms.allocation_of.take().filter(|chosen| chosen == name);
    }
    Answer {
        bytes,
        ends,
        export: ends.then_some(export),
    }
}

async fn meta_context(
    code: u32,
    data: &[u8],
    terms: &mut Terms,
    door: Door,
    place: &Place,
) -> Answer {
    let mut reader = Reader(data);
    let mut parse = || -> Option<(&str, Vec<&str>)> {
        let name = reader.text()?;
        let count = reader.u32()?;
        // Each query takes four bytes at least, so the data bounds their number.
        let mut queries = Vec::new();
        for _ in 0..count {
            queries.push(reader.text()?);
        }
        reader.0.is_empty().then_some((name, queries))
    };
    let Some((name, queries)) = parse() else {
        return Answer::one(code, reply::ERR_INVALID, b"malformed");
    };
    let set = code == option::SET_META_CONTEXT;
    if set {
        terms.allocation_of = None;
        if !terms.structured {
            return Answer::one(code, reply::ERR_INVALID, b"structured replies come first");
        }
    }
    if place.0.export(door, name).await.is_none() {
        let text = format!("no volume '{name}' is offered here");
        return Answer::one(code, reply::ERR_UNKNOWN, text.as_bytes());
    }
    let lists_all = !set && (queries.is_empty() || queries.contains(&"base:"));
    let mut bytes = Vec::new();
    if lists_all || queries.contains(&BASE_ALLOCATION) {
        let id = if set { BASE_ALLOCATION_ID } else { 0 };
        let mut told = id.to_be_bytes().to_vec();
        told.extend_from_slice(BASE_ALLOCATION.as_bytes());
        bytes.extend(wire::option_reply(code, reply::META_CONTEXT, &told));
        if set {
            terms.allocation_of = Some(name.to_owned());
        }
    }
    bytes.extend(wire::option_reply(code, reply::ACK, b""));
    Answer {
        bytes,
        ..Answer::default()
    }
}

/// What clients are told of an export.
struct Facts {
    size: u64,
    preferred: u32,
    read_only: bool,
}

impl Facts {
    async fn of(export: &Export) -> Option<Self> {
        let info = export.volume.info().await.ok()?;
        Some(Self {
            size: info.size,
            preferred: u32::try_from(info.block_size)
                .unwrap_or(PAYLOAD_BYTES_MAX)
                .clamp(4096, PAYLOAD_BYTES_MAX),
            read_only: info.read_only || export.read_only,
        })
    }

    fn flags(&self, terms: &Terms) -> u16 {
        let mut flags = transmission::HAS_FLAGS
            | transmission::FLUSH
            | transmission::FUA
            | transmission::MULTI_CONN
            | transmission::CACHE;
        if self.read_only {
            flags |= transmission::READ_ONLY;
        } else {
            flags |= transmission::TRIM | transmission::WRITE_ZEROES | transmission::FAST_ZERO;
        }
        if terms.structured {
            flags |= transmission::DF;
        }
        flags
    }
}

/// An answer on its way out.
struct Reply {
    header: Vec<u8>,
    pieces: Vec<IoBuf>,
    /// Its place among the requests under way, and the memory its request took.
    _held: (OwnedSemaphorePermit, Option<OwnedSemaphorePermit>),
}

/// What requests need of their connection.
struct Session {
    volume: VolumeHandle,
    read_only: bool,
    structured: bool,
    allocation: bool,
}

async fn transmit<R, W>(mut reader: R, writer: W, export: Export, terms: Terms, place: &Place)
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin + Send + 'static,
{
    let session = Arc::new(Session {
        volume: export.volume,
        read_only: export.read_only,
        structured: terms.structured,
        allocation: terms.allocation_of.is_some(),
    });
    let (sender, receiver) = mpsc::channel::<Reply>(REQUESTS_MAX);
    let writing = tokio::spawn(write_replies(writer, receiver));
    let requests = Arc::new(Semaphore::new(REQUESTS_MAX));
    loop {
        let Ok(turn) = requests.clone().acquire_owned().await else {
            break;
        };
        let mut header = [0; wire::REQUEST_BYTES];
        // A client may be silent for as long as it likes: a disk is not closed for being idle.
        let Ok(_) = reader.read_exact(&mut header).await else {
            break;
        };
        let Some(request) = Request::decode(&header) else {
            break;
        };
        if request.command == command::DISCONNECT {
            break;
        }
        let carries = matches!(request.command, command::READ | command::WRITE);
        if request.command == command::WRITE && request.length > PAYLOAD_BYTES_MAX {
            // What follows cannot be told from requests any more.
            break;
        }
        let memory = if carries && request.length <= PAYLOAD_BYTES_MAX {
            let kib = request.length.div_ceil(1024);
            place.0.memory.clone().acquire_many_owned(kib).await.ok()
        } else {
            None
        };
        let mut data = IoBuf::empty();
        if request.command == command::WRITE {
            let len = usize::try_from(request.length).unwrap_or(0);
            let mut buffer = IoBufMut::zeroed(len);
            if reader.read_exact(&mut buffer).await.is_err() {
                break;
            }
            data = buffer.freeze();
        }
        let (session, sender) = (session.clone(), sender.clone());
        tokio::spawn(async move {
            let (header, pieces) = session.answer(request, data).await;
            let reply = Reply {
                header,
                pieces,
                _held: (turn, memory),
            };
            let _ = sender.send(reply).await;
        });
    }
    drop(sender);
    let _ = writing.await;
}

async fn write_replies<W: AsyncWrite + Unpin>(mut writer: W, mut replies: mpsc::Receiver<Reply>) {
    while let Some(reply) = replies.recv().await {
        let write = write_reply(&mut writer, &reply);
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

impl Session {
    /// Does a request and returns its answer: a header and the bytes after it.
    async fn answer(&self, request: Request, data: IoBuf) -> (Vec<u8>, Vec<IoBuf>) {
        let cookie = request.cookie;
        match self.run(request, data).await {
            Ok(Done::Nothing) if self.structured => {
                (wire::last_chunk(cookie, chunk::NONE, 0), Vec::new())
            }
            Ok(Done::Nothing) => (wire::simple_reply(cookie, 0), Vec::new()),
            Ok(Done::Data(pieces)) if self.structured => {
                let mut header =
                    wire::last_chunk(cookie, chunk::OFFSET_DATA, request.length.saturating_add(8));
                header.extend_from_slice(&request.offset.to_be_bytes());
                (header, pieces)
            }
            Ok(Done::Data(pieces)) => (wire::simple_reply(cookie, 0), pieces),
            Ok(Done::Status(extents)) => {
                let bytes = 4 + 8 * u32::try_from(extents.len()).unwrap_or(0);
                let mut header = wire::last_chunk(cookie, chunk::BLOCK_STATUS, bytes);
                header.extend_from_slice(&BASE_ALLOCATION_ID.to_be_bytes());
                for (len, bits) in extents {
                    header.extend_from_slice(&len.to_be_bytes());
                    header.extend_from_slice(&bits.to_be_bytes());
                }
                (header, Vec::new())
            }
            Err(error) if self.structured => {
                let mut header = wire::last_chunk(cookie, chunk::ERROR, 6);
                header.extend_from_slice(&error.to_be_bytes());
                header.extend_from_slice(&0_u16.to_be_bytes());
                (header, Vec::new())
            }
            Err(error) => (wire::simple_reply(cookie, error), Vec::new()),
        }
    }

    async fn run(&self, request: Request, data: IoBuf) -> Result<Done, u32> {
        let volume = &self.volume;
        let (offset, len) = (request.offset, u64::from(request.length));
        let stability = if request.flags & flag::FUA != 0 {
            Stability::FileSync
        } else {
            Stability::Unstable
        };
        let changes = matches!(
            request.command,
            command::WRITE | command::TRIM | command::WRITE_ZEROES
        );
        if changes && self.read_only {
            return Err(errno::EPERM);
        }
        let done = match request.command {
            command::READ if request.length > PAYLOAD_BYTES_MAX => return Err(errno::EOVERFLOW),
            command::READ => {
                let len = usize::try_from(request.length).map_err(|_| errno::EOVERFLOW)?;
                volume.read(offset, len).await.map(Done::Data)
            }
            command::WRITE => volume
                .write(offset, data, stability)
                .await
                .map(|()| Done::Nothing),
            command::FLUSH => volume.flush().await.map(|()| Done::Nothing),
            command::TRIM => volume
                .discard(offset, len, stability)
                .await
                .map(|()| Done::Nothing),
            command::WRITE_ZEROES => volume
                .zero(offset, len, stability)
                .await
                .map(|()| Done::Nothing),
            command::CACHE => {
                // Whoever asks wants it in memory; reading it puts it there.
                let mut at = 0;
                while at < len {
                    let step = (len - at).min(1 << 20);
                    let bytes = usize::try_from(step).map_err(|_| errno::EOVERFLOW)?;
                    volume.read(offset + at, bytes).await.map_err(number)?;
                    at += step;
                }
                Ok(Done::Nothing)
            }
            command::BLOCK_STATUS if self.allocation && len > 0 => {
                let max = if request.flags & flag::REQ_ONE != 0 {
                    1
                } else {
                    EXTENTS_MAX
                };
                let map = volume.allocation(offset, len, max).await;
                map.map(|map| {
                    let extents = map.iter().map(|part| {
                        let bits = if part.data {
                            0
                        } else {
                            status::HOLE | status::ZERO
                        };
                        (u32::try_from(part.len).unwrap_or(u32::MAX), bits)
                    });
                    Done::Status(extents.collect())
                })
            }
            command::BLOCK_STATUS => return Err(errno::EINVAL),
            _ => return Err(errno::ENOTSUP),
        };
        done.map_err(|error| match error {
            // A range past the end: reads are invalid, writes have no space, as the protocol wants it.
            VolumeError::OutOfRange if changes && request.command != command::TRIM => errno::ENOSPC,
            other => number(other),
        })
    }
}

/// What came of a request.
enum Done {
    Nothing,
    Data(Vec<IoBuf>),
    Status(Vec<(u32, u32)>),
}

fn number(error: VolumeError) -> u32 {
    match error {
        VolumeError::OutOfRange | VolumeError::BadSize | VolumeError::Miscompare(_) => {
            errno::EINVAL
        }
        VolumeError::Io | VolumeError::Corrupt(_) => errno::EIO,
        VolumeError::NoSpace => errno::ENOSPC,
        VolumeError::ReadOnly => errno::EPERM,
        VolumeError::Gone | VolumeError::Busy => errno::ESHUTDOWN,
        VolumeError::NotSupported => errno::ENOTSUP,
    }
}
