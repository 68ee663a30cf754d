//! The bytes of a stream on their way: in chunks, compressed where that pays, with a digest of all of them at the end.
//!
//! The digest is of what the sender's pool gave, before it was compressed and encrypted, and is checked where the receiver's pool is about to
//! take it. The last [`HELD_BYTES`] at least are handed on only after that, so that a stream which was changed on its way never becomes a
//! snapshot. A receiver that is slow slows the sender down: a frame is read when its bytes are asked for.

use std::collections::VecDeque;
use std::time::Duration;

use codec::compress::{self, Algorithm};
use engine::IoBuf;
use engine::stream::StreamChunk;
use futures_util::{StreamExt as _, stream};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::timeout;
use twox_hash::XxHash3_128;

use super::frame::{
    CHUNK_BYTES_MAX, Frame, FrameError, FrameKind, FrameReader, FrameWriter, MessageParts, parse,
};
use super::message::Fault;
use crate::replication::{ByteStream, Compression, ReplicationError};

/// How often who is at work says so where nothing else is sent.
pub const ALIVE_EVERY: Duration = Duration::from_secs(15);
/// Without a frame for so long, the other side is given up.
pub const SILENCE_MAX: Duration = Duration::from_secs(60);
/// How long the other side may take nothing: its pool may wait for its disks, and its job for its bandwidth.
pub const STALL_MAX: Duration = Duration::from_secs(600);
/// Bytes of a message about a stream, at most.
const MESSAGE_BYTES_MAX: usize = 64 << 10;
/// Bytes that are sent in a frame at least, where more follow at once.
const FRAME_BYTES_MIN: usize = 256 << 10;
/// Parts of fewer bytes are copied together: what waits takes no more memory than its bytes.
const PART_BYTES_MIN: usize = 16 << 10;
/// Bytes at the end of a stream that are held back until the digest was checked: more than its records that complete a snapshot, which are two
/// of 312 bytes.
const HELD_BYTES: usize = 4096;

/// How compressed bytes are read: of any level.
const DECOMPRESSION: Algorithm = Algorithm::Zstd(1);
/// Chunks that go as they are after one that did not become smaller; twice as many after the next such one, up to [`SKIPPED_MAX`].
const SKIPPED_FIRST: u32 = 4;
/// See [`SKIPPED_FIRST`].
const SKIPPED_MAX: u32 = 256;
/// Bytes of the end of a stream: its length and its digest.
const END_BYTES: usize = 8 + 16;

/// The length and the digest of the bytes of a stream. The digest, XXH3 of 128 bits, finds what memory and programs damage; against what is
/// done on purpose stands TLS, by which all of it comes. (BLAKE3 took a tenth of the target's time.)
#[derive(Default)]
struct StreamDigest {
    hasher: XxHash3_128,
    length: u64,
}

impl StreamDigest {
    fn update(&mut self, bytes: &[u8]) {
        self.length += bytes.len() as u64;
        self.hasher.write(bytes);
    }

    /// As they are at the end of a stream.
    fn end(&self) -> [u8; END_BYTES] {
        let mut end = [0; END_BYTES];
        let (length, digest) = end.split_at_mut(8);
        length.copy_from_slice(&self.length.to_be_bytes());
        digest.copy_from_slice(&self.hasher.finish_128().to_be_bytes());
        end
    }
}

impl std::fmt::Debug for StreamDigest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StreamDigest")
            .field("length", &self.length)
            .finish_non_exhaustive()
    }
}

/// A frame of a stream that is to be sent. Its payload lies in parts, as the pool gave them.
#[derive(Clone, Debug)]
pub struct OutgoingFrame {
    /// What it holds.
    pub kind: FrameKind,
    /// Its bytes.
    pub payload: Vec<IoBuf>,
}

/// Returns the bytes of parts in one piece.
fn joined(parts: &[IoBuf]) -> Vec<u8> {
    let mut whole = Vec::with_capacity(parts.iter().map(|part| part.len()).sum());
    for part in parts {
        whole.extend_from_slice(part);
    }
    whole
}

/// Bytes of a stream that were not sent yet.
#[derive(Debug, Default)]
struct Pending {
    parts: VecDeque<IoBuf>,
    /// Short parts that follow these.
    tail: Vec<u8>,
    /// All of them.
    bytes: usize,
}

impl Pending {
    fn add(&mut self, chunk: StreamChunk) {
        self.bytes += chunk.len();
        for part in chunk.into_parts() {
            if part.len() < PART_BYTES_MIN {
                self.tail.extend_from_slice(&part);
            } else {
                self.end_tail();
                self.parts.push_back(part);
            }
        }
    }

    fn end_tail(&mut self) {
        if !self.tail.is_empty() {
            self.parts.push_back(std::mem::take(&mut self.tail).into());
        }
    }

    /// Takes the first bytes: so many, or all there are.
    fn take(&mut self, bytes_max: usize) -> Vec<IoBuf> {
        self.end_tail();
        let mut taken = Vec::new();
        let mut left = bytes_max;
        while left > 0
            && let Some(first) = self.parts.pop_front()
        {
            let now = first.len().min(left);
            if now < first.len() {
                self.parts.push_front(first.slice(now..first.len()));
            }
            taken.push(first.slice(0..now));
            self.bytes -= now;
            left -= now;
        }
        taken
    }
}

/// Makes frames of the bytes of a stream.
#[derive(Debug)]
pub struct StreamEncoder {
    digest: StreamDigest,
    compression: Compression,
    /// Chunks that go as they are before the next try.
    skipped: u32,
    /// How many it will be after the next that did not become smaller.
    skipped_next: u32,
}

impl StreamEncoder {
    /// Begins a stream.
    #[must_use]
    pub fn new(compression: Compression) -> Self {
        Self {
            digest: StreamDigest::default(),
            compression,
            skipped: 0,
            skipped_next: SKIPPED_FIRST,
        }
    }

    /// Makes a frame of the next bytes, which lie in parts.
    ///
    /// # Panics
    /// They are more than [`CHUNK_BYTES_MAX`].
    pub fn chunk(&mut self, parts: Vec<IoBuf>) -> OutgoingFrame {
        let length: usize = parts.iter().map(|part| part.len()).sum();
        assert!(length <= CHUNK_BYTES_MAX, "a chunk that is too long");
        for part in &parts {
            self.digest.update(part);
        }
        match self.compressed(&parts) {
            Some(payload) => OutgoingFrame {
                kind: FrameKind::Compressed,
                payload: vec![payload.into()],
            },
            None => OutgoingFrame {
                kind: FrameKind::Chunk,
                payload: parts,
            },
        }
    }

    fn compressed(&mut self, parts: &[IoBuf]) -> Option<Vec<u8>> {
        let algorithm = self.compression.algorithm()?;
        if self.skipped > 0 {
            self.skipped -= 1;
            return None;
        }
        let whole: Vec<u8>;
        let bytes = match parts {
            [one] => &one[..],
            several => {
                whole = joined(several);
                &whole
            }
        };
        // An eighth at least, or it is not worth the receiver's time.
        let Some(smaller) = compress::compress(algorithm, bytes, bytes.len() - bytes.len() / 8)
        else {
            self.skipped = self.skipped_next;
            self.skipped_next = (self.skipped_next * 2).min(SKIPPED_MAX);
            return None;
        };
        self.skipped_next = SKIPPED_FIRST;
        let length = u32::try_from(bytes.len()).expect("a chunk");
        let mut payload = length.to_be_bytes().to_vec();
        payload.extend(smaller);
        Some(payload)
    }

    /// Makes the frame that ends the stream.
    #[must_use]
    pub fn end(self) -> OutgoingFrame {
        OutgoingFrame {
            kind: FrameKind::End,
            payload: vec![self.digest.end().to_vec().into()],
        }
    }
}

/// What a frame of a stream gives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Received {
    /// Bytes for the pool; there may be none yet.
    Chunk(Vec<u8>),
    /// The last bytes: all that came is what was sent.
    Whole(Vec<u8>),
    /// What came is not what was sent.
    Damaged,
}

/// Makes the bytes of a stream of its frames.
#[derive(Debug, Default)]
pub struct StreamDecoder {
    digest: StreamDigest,
    /// What came last, and is handed on when so many bytes came behind it, or the end.
    held: VecDeque<Vec<u8>>,
    /// Bytes of it.
    held_bytes: usize,
}

impl StreamDecoder {
    /// Takes a frame.
    ///
    /// # Errors
    /// It is none of a stream.
    pub fn take(&mut self, frame: Frame) -> Result<Received, FrameError> {
        let bytes = match frame.kind {
            FrameKind::Alive => return Ok(Received::Chunk(Vec::new())),
            FrameKind::Chunk if frame.payload.len() <= CHUNK_BYTES_MAX => frame.payload,
            FrameKind::Chunk => return Err(FrameError::Malformed("a chunk that is too long")),
            FrameKind::Compressed => match decompressed(&frame.payload) {
                Some(bytes) => bytes,
                None => return Ok(Received::Damaged),
            },
            FrameKind::End => return self.end(&frame.payload),
            FrameKind::Part | FrameKind::Message => {
                return Err(FrameError::Malformed("a message in place of a stream"));
            }
        };
        self.digest.update(&bytes);
        self.held_bytes += bytes.len();
        self.held.push_back(bytes);
        let mut ready = Vec::new();
        while let Some(first) = self.held.front()
            && self.held_bytes - first.len() >= HELD_BYTES
        {
            self.held_bytes -= first.len();
            match self.held.pop_front() {
                Some(first) if ready.is_empty() => ready = first,
                first => ready.extend(first.unwrap_or_default()),
            }
        }
        Ok(Received::Chunk(ready))
    }

    fn end(&mut self, payload: &[u8]) -> Result<Received, FrameError> {
        if payload.len() != END_BYTES {
            return Err(FrameError::Malformed("an unknown end of a stream"));
        }
        Ok(match payload == self.digest.end() {
            true => Received::Whole(self.held.drain(..).flatten().collect()),
            false => Received::Damaged,
        })
    }
}

fn decompressed(payload: &[u8]) -> Option<Vec<u8>> {
    let (length, bytes) = payload.split_first_chunk()?;
    let length = usize::try_from(u32::from_be_bytes(*length)).ok()?;
    if length > CHUNK_BYTES_MAX {
        return None;
    }
    compress::decompress(DECOMPRESSION, bytes, length).ok()
}

/// Sends a stream. The inner error is the stream's own: what came before it was sent, and nothing says that it ended.
///
/// # Errors
/// The connection broke, or the other side takes nothing.
pub async fn send_stream<W: AsyncWrite + Unpin>(
    to: &mut FrameWriter<W>,
    mut bytes: ByteStream,
    compression: Compression,
) -> Result<Result<(), ReplicationError>, FrameError> {
    let mut encoder = StreamEncoder::new(compression);
    let mut pending = Pending::default();
    loop {
        let (least, end) = match timeout(ALIVE_EVERY, bytes.next()).await {
            Err(_) if pending.bytes == 0 => {
                send(to, FrameKind::Alive, &[]).await?;
                continue;
            }
            Err(_) => (1, None),
            Ok(Some(Ok(more))) => {
                pending.add(more);
                (FRAME_BYTES_MIN, None)
            }
            Ok(Some(Err(error))) => (1, Some(Err(error))),
            Ok(None) => (1, Some(Ok(()))),
        };
        while pending.bytes >= least {
            send_frame(to, &encoder.chunk(pending.take(CHUNK_BYTES_MAX))).await?;
        }
        if let Some(end) = end {
            if end.is_ok() {
                send_frame(to, &encoder.end()).await?;
            }
            return Ok(end);
        }
    }
}

async fn send_frame<W: AsyncWrite + Unpin>(
    to: &mut FrameWriter<W>,
    frame: &OutgoingFrame,
) -> Result<(), FrameError> {
    let parts: Vec<&[u8]> = frame.payload.iter().map(|part| &part[..]).collect();
    send(to, frame.kind, &parts).await
}

async fn send<W: AsyncWrite + Unpin>(
    to: &mut FrameWriter<W>,
    kind: FrameKind,
    payload: &[&[u8]],
) -> Result<(), FrameError> {
    let sent = timeout(STALL_MAX, to.send(kind, payload)).await;
    sent.unwrap_or_else(|_| Err(FrameError::Io(std::io::ErrorKind::TimedOut.into())))
}

/// What a stream comes from; when it is dropped, the frames behind the stream go to who waits for them.
struct Incoming<R, F: FnOnce(FrameReader<R>, bool)> {
    frames: Option<FrameReader<R>>,
    decoder: StreamDecoder,
    /// Its end came.
    is_whole: bool,
    over: Option<F>,
}

impl<R, F: FnOnce(FrameReader<R>, bool)> Drop for Incoming<R, F> {
    fn drop(&mut self) {
        if let (Some(frames), Some(over)) = (self.frames.take(), self.over.take()) {
            over(frames, self.is_whole);
        }
    }
}

/// Returns the bytes of a stream that comes in frames. `over` gets what comes behind when the stream is dropped, and whether all of it came;
/// `what` names it in errors, and `fault` makes an error of what the other side says in place of the stream's rest.
pub fn receive_stream<R, F>(
    frames: FrameReader<R>,
    what: String,
    unreachable: impl Fn(FrameError) -> ReplicationError + Send + 'static,
    fault: impl Fn(Fault) -> ReplicationError + Send + 'static,
    over: F,
) -> ByteStream
where
    R: AsyncRead + Unpin + Send + 'static,
    F: FnOnce(FrameReader<R>, bool) + Send + 'static,
{
    let incoming = Incoming {
        frames: Some(frames),
        decoder: StreamDecoder::default(),
        is_whole: false,
        over: Some(over),
    };
    let parts = (unreachable, fault, what);
    let bytes = stream::unfold(Some((incoming, parts)), |state| async {
        let (mut incoming, parts) = state?;
        loop {
            match incoming.more(&parts.2).await {
                Ok(Some(bytes)) if bytes.is_empty() => {}
                Ok(Some(bytes)) => return Some((Ok(bytes.into()), Some((incoming, parts)))),
                Ok(None) => return None,
                Err(Broken::Frame(error)) => return Some((Err(parts.0(error)), None)),
                Err(Broken::Fault(error)) => return Some((Err(parts.1(error)), None)),
            }
        }
    });
    bytes.boxed()
}

/// Why a stream does not go on.
enum Broken {
    Frame(FrameError),
    Fault(Fault),
}

impl<R: AsyncRead + Unpin, F: FnOnce(FrameReader<R>, bool)> Incoming<R, F> {
    /// Returns the next bytes, of which there may be none; `None` at the end.
    async fn more(&mut self, what: &str) -> Result<Option<Vec<u8>>, Broken> {
        let Some(frames) = self.frames.as_mut().filter(|_| !self.is_whole) else {
            return Ok(None);
        };
        let silent = || FrameError::Io(std::io::ErrorKind::TimedOut.into());
        let frame = timeout(SILENCE_MAX, frames.expect()).await;
        let frame = frame
            .unwrap_or_else(|_| Err(silent()))
            .map_err(Broken::Frame)?;
        if matches!(frame.kind, FrameKind::Part | FrameKind::Message) {
            let text = MessageParts::new(MESSAGE_BYTES_MAX).add(frame);
            let text = text.map_err(Broken::Frame)?.unwrap_or_default();
            return Err(match parse(&text) {
                Ok(fault) => Broken::Fault(fault),
                Err(error) => Broken::Frame(error),
            });
        }
        match self.decoder.take(frame).map_err(Broken::Frame)? {
            Received::Chunk(bytes) => Ok(Some(bytes)),
            Received::Whole(bytes) => {
                self.is_whole = true;
                Ok(Some(bytes))
            }
            Received::Damaged => Err(Broken::Fault(Fault::Damaged {
                what: what.to_owned(),
            })),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A stream of three chunks: two that become smaller, and one that does not.
    fn frames() -> (Vec<u8>, Vec<Frame>) {
        let noise: Vec<u8> = (0..40_u64)
            .flat_map(|at| *blake3::hash(&at.to_be_bytes()).as_bytes())
            .collect();
        let chunks = [vec![1; CHUNK_BYTES_MAX], noise, b"words ".repeat(999)];
        let mut encoder = StreamEncoder::new(Compression::default());
        let mut frames = Vec::new();
        for chunk in &chunks {
            // In parts, as blocks of a pool are.
            let parts = chunk.chunks(99_000).map(|part| part.to_vec().into());
            frames.push(come(encoder.chunk(parts.collect())));
        }
        frames.push(come(encoder.end()));
        (chunks.concat(), frames)
    }

    /// As it comes at the other side.
    fn come(frame: OutgoingFrame) -> Frame {
        Frame {
            kind: frame.kind,
            payload: joined(&frame.payload),
        }
    }

    #[test]
    fn a_digest_is_that_of_xxhsum_in_whatever_parts_the_bytes_come() {
        let bytes: Vec<u8> = (0..200_000_u32)
            .map(|at| u8::try_from(at % 251).expect("below 251"))
            .collect();
        for size in [1, 1000, 200_000] {
            let mut digest = StreamDigest::default();
            for part in bytes.chunks(size) {
                digest.update(part);
            }
            let end = digest.end();
            assert_eq!(end[..8], 200_000_u64.to_be_bytes());
            // `xxhsum -H2` of these bytes.
            let known = 0xb0b4_a899_5101_f27b_f054_3157_a23a_8634_u128;
            assert_eq!(end[8..], known.to_be_bytes());
        }
    }

    fn decode(frames: Vec<Frame>) -> (Vec<u8>, Result<Received, FrameError>) {
        let mut decoder = StreamDecoder::default();
        let mut come = Vec::new();
        let mut last = Ok(Received::Chunk(Vec::new()));
        for frame in frames {
            last = decoder.take(frame);
            match &last {
                Ok(Received::Chunk(bytes) | Received::Whole(bytes)) => {
                    come.extend(bytes);
                }
                _ => break,
            }
        }
        (come, last)
    }

    #[test]
    fn bytes_come_as_they_were_sent() {
        let (bytes, mut frames) = frames();
        assert_eq!(frames[0].kind, FrameKind::Compressed);
        assert_eq!(frames[1].kind, FrameKind::Chunk);
        let alive = Frame {
            kind: FrameKind::Alive,
            payload: Vec::new(),
        };
        frames.insert(2, alive);
        let (whole, last) = decode(frames);
        assert_eq!(whole, bytes);
        assert!(matches!(last, Ok(Received::Whole(_))));
        let (come, last) = decode(vec![come(StreamEncoder::new(Compression::default()).end())]);
        assert_eq!(come, b"");
        assert!(matches!(last, Ok(Received::Whole(_))));
    }

    #[test]
    fn a_byte_that_was_changed_is_noticed_before_the_last_chunk_is_handed_on() {
        let (bytes, whole) = frames();
        let last_chunk = 999 * 6;
        assert!(last_chunk > HELD_BYTES);
        for (at, frame) in whole.iter().enumerate() {
            let step = (frame.payload.len() / 9).max(1);
            for byte in (0..frame.payload.len()).step_by(step) {
                let mut frames = whole.clone();
                frames[at].payload[byte] ^= 1;
                let (come, last) = decode(frames);
                assert!(
                    matches!(last, Ok(Received::Damaged)),
                    "{at} {byte}: {last:?}"
                );
                assert!(come.len() <= bytes.len() - last_chunk, "{at} {byte}");
            }
        }
        // Chunks that are missing, and chunks in another order.
        for frames in [
            vec![whole[0].clone(), whole[1].clone(), whole[3].clone()],
            vec![
                whole[1].clone(),
                whole[0].clone(),
                whole[2].clone(),
                whole[3].clone(),
            ],
        ] {
            assert!(matches!(decode(frames).1, Ok(Received::Damaged)));
        }
    }

    #[test]
    fn what_does_not_become_smaller_is_tried_rarely_and_nothing_where_it_is_off() {
        let mut number = 0_u64;
        let mut noise = || {
            number += 1;
            let mut bytes = vec![0; 32 << 10];
            blake3::Hasher::new()
                .update(&number.to_be_bytes())
                .finalize_xof()
                .fill(&mut bytes);
            bytes
        };
        let mut encoder = StreamEncoder::new(Compression::default());
        for _ in 0..100 {
            assert_eq!(encoder.chunk(vec![noise().into()]).kind, FrameKind::Chunk);
        }
        assert!(encoder.skipped_next >= 64 && encoder.skipped_next <= SKIPPED_MAX);
        let mut off = StreamEncoder::new(Compression::Off);
        assert_eq!(off.chunk(vec![vec![0; 4096].into()]).kind, FrameKind::Chunk);
    }

    #[test]
    fn the_records_that_complete_a_snapshot_are_held_back_in_frames_of_any_size() {
        for size in [1, 311, 312, 4095, 4096, 10_000] {
            let mut encoder = StreamEncoder::new(Compression::Off);
            let mut decoder = StreamDecoder::default();
            let mut handed_on = 0;
            for sent in 1..=20_000 / size {
                let taken = decoder.take(come(encoder.chunk(vec![vec![3; size].into()])));
                let taken = taken.expect("a frame");
                let Received::Chunk(bytes) = taken else {
                    panic!("no end came");
                };
                handed_on += bytes.len();
                assert!(handed_on + HELD_BYTES.min(sent * size) <= sent * size + size);
                assert!(sent * size - handed_on >= HELD_BYTES.min(sent * size));
            }
        }
    }

    #[tokio::test]
    async fn streams_end_when_they_were_sent_whole_and_only_then() {
        let bytes: Vec<u8> = (0..3_000_000_u32).flat_map(u32::to_le_bytes).collect();
        for (broken, cut) in [(false, false), (true, false), (false, true)] {
            let (near, far) = tokio::io::duplex(70_000);
            let mut chunks: Vec<_> = bytes
                .chunks(99_999)
                .map(|c| Ok(c.to_vec().into()))
                .collect();
            if broken {
                chunks.truncate(60);
                chunks.push(Err(ReplicationError::Cancelled));
            }
            if cut {
                chunks.truncate(60);
            }
            let mut source = stream::iter(chunks).boxed();
            if cut {
                source = source.chain(stream::pending()).boxed();
            }
            let (over, left) = tokio::sync::oneshot::channel();
            let receiving = receive_stream(
                FrameReader::new(far),
                "tank/a@s".to_owned(),
                |error| ReplicationError::Failed(error.to_string()),
                |fault| fault.of_peer("box"),
                |_, is_whole| {
                    let _ = over.send(is_whole);
                },
            );
            let sending = async move {
                let mut writer = FrameWriter::new(near);
                let sent = send_stream(&mut writer, source, Compression::default());
                // One that is cut off never ends; the others may take long on a busy machine.
                let limit = Duration::from_secs(if cut { 2 } else { 60 });
                match timeout(limit, sent).await {
                    Ok(sent) => assert_eq!(sent.expect("sent").is_err(), broken),
                    Err(_) => assert!(cut),
                }
            };
            let (come, ()) = tokio::join!(receiving.collect::<Vec<_>>(), sending);
            let error = come.iter().find_map(|chunk| chunk.as_ref().err());
            assert_eq!(error.is_some(), broken || cut, "{error:?}");
            assert_eq!(left.await, Ok(!broken && !cut));
            let come: Vec<u8> = come
                .into_iter()
                .flatten()
                .flat_map(StreamChunk::into_vec)
                .collect();
            assert!(bytes.starts_with(&come));
            assert_eq!(come.len() == bytes.len(), !broken && !cut);
            assert!(come.len() > 1_000_000);
        }
    }

    #[test]
    fn frames_of_no_stream_are_refused() {
        for (kind, payload) in [
            (FrameKind::Message, vec![1]),
            (FrameKind::Part, vec![1]),
            (FrameKind::End, vec![0; 39]),
            (FrameKind::Chunk, vec![0; CHUNK_BYTES_MAX + 1]),
        ] {
            let taken = StreamDecoder::default().take(Frame { kind, payload });
            assert!(taken.is_err(), "{kind:?}");
        }
        // Nothing is made larger than a chunk.
        let bomb = Frame {
            kind: FrameKind::Compressed,
            payload: vec![0xff; 40],
        };
        assert!(matches!(
            StreamDecoder::default().take(bomb),
            Ok(Received::Damaged)
        ));
    }
}
