//! The frames that two appliances send each other.
//!
//! ```text
//!  0      1               5
//!  +------+---------------+------------------------+
//!  | kind | length, BE    | so many bytes          |
//!  +------+---------------+------------------------+
//! ```
//! A message is JSON, in one frame or in several. Guarantees: a length costs no more memory than an earlier frame needed before its bytes have
//! come, and none is longer than [`PAYLOAD_BYTES_MAX`]; a read that is given up in the middle of a frame goes on there.

use std::io;

use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

use crate::vectored::write_all_parts;

/// Bytes of a stream in a frame, at most.
pub const CHUNK_BYTES_MAX: usize = 1 << 20;
/// Bytes of a frame behind its header, at most: a chunk, and what says how long it is when it is compressed.
pub const PAYLOAD_BYTES_MAX: usize = CHUNK_BYTES_MAX + 64;
/// Bytes of the header.
const HEADER_BYTES: usize = 5;
/// Memory that is taken for a frame before more of its bytes have come, where no earlier one was longer.
const GROWTH_BYTES: usize = 64 << 10;

/// Why what came makes no sense, or does not come.
#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    /// The connection broke.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// It ended in the middle of something.
    #[error("the connection ended")]
    Ended,
    /// What came is not of this protocol.
    #[error("what came is not of the protocol: {0}")]
    Malformed(&'static str),
    /// A message is longer than its receiver takes.
    #[error("a message of more than {0} bytes")]
    TooLong(usize),
}

/// What a frame holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameKind {
    /// Part of a message; more of it follows.
    Part,
    /// A message, or its last part.
    Message,
    /// Bytes of a stream.
    Chunk,
    /// Bytes of a stream, compressed.
    Compressed,
    /// The end of a stream: how long it was and its digest.
    End,
    /// Nothing: the sender is at work.
    Alive,
}

impl FrameKind {
    const ALL: [Self; 6] = [
        Self::Part,
        Self::Message,
        Self::Chunk,
        Self::Compressed,
        Self::End,
        Self::Alive,
    ];

    fn code(self) -> u8 {
        match self {
            Self::Part => b'P',
            Self::Message => b'M',
            Self::Chunk => b'C',
            Self::Compressed => b'Z',
            Self::End => b'E',
            Self::Alive => b'A',
        }
    }

    fn of_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.code() == code)
    }
}

/// A frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// What it holds.
    pub kind: FrameKind,
    /// Its bytes.
    pub payload: Vec<u8>,
}

/// The frames that come on a connection.
#[derive(Debug)]
pub struct FrameReader<R> {
    from: R,
    /// The frame whose bytes are coming.
    head: Option<(FrameKind, usize)>,
    /// What has come of it, or of its header.
    come: Vec<u8>,
    /// Bytes of the longest frame that came: the next one may be as long, and is not copied to grow then.
    longest: usize,
}

impl<R: AsyncRead + Unpin> FrameReader<R> {
    /// Returns the frames of what is read from here.
    pub fn new(from: R) -> Self {
        Self {
            from,
            head: None,
            come: Vec::new(),
            longest: GROWTH_BYTES,
        }
    }

    /// Receives a frame; `None` when the connection ends before one. May be dropped while it waits: nothing is lost.
    ///
    /// # Errors
    /// The connection broke, or what came is no frame.
    pub async fn next(&mut self) -> Result<Option<Frame>, FrameError> {
        loop {
            let whole = self.head.map_or(HEADER_BYTES, |(_, length)| length);
            if self.come.len() < whole {
                let left = whole - self.come.len();
                self.come.reserve(left.min(self.longest));
                let mut limited = (&mut self.from).take(left as u64);
                if limited.read_buf(&mut self.come).await? == 0 {
                    let is_between = self.head.is_none() && self.come.is_empty();
                    return if is_between {
                        Ok(None)
                    } else {
                        Err(FrameError::Ended)
                    };
                }
                continue;
            }
            let come = std::mem::take(&mut self.come);
            match self.head.take() {
                Some((kind, _)) => {
                    self.longest = self.longest.max(come.len());
                    return Ok(Some(Frame {
                        kind,
                        payload: come,
                    }));
                }
                None => self.head = Some(read_header(&come)?),
            }
        }
    }

    /// Receives a frame, where one has to come.
    ///
    /// # Errors
    /// As [`Self::next`], or the connection ends.
    pub async fn expect(&mut self) -> Result<Frame, FrameError> {
        self.next().await?.ok_or(FrameError::Ended)
    }

    /// Receives a message of at most `bytes_max` bytes of JSON. Frames that say nothing but that the sender is at work are passed over.
    /// What has come of a message is lost when this is dropped.
    ///
    /// # Errors
    /// As [`Self::next`]; or what came is no such message.
    pub async fn message<T: DeserializeOwned>(
        &mut self,
        bytes_max: usize,
    ) -> Result<T, FrameError> {
        let mut message = MessageParts::new(bytes_max);
        loop {
            if let Some(text) = message.add(self.expect().await?)? {
                return parse(&text);
            }
        }
    }
}

/// A message of which the parts come one by one.
#[derive(Debug)]
pub struct MessageParts {
    bytes_max: usize,
    come: Vec<u8>,
}

impl MessageParts {
    /// Begins a message of at most so many bytes.
    #[must_use]
    pub fn new(bytes_max: usize) -> Self {
        Self {
            bytes_max,
            come: Vec::new(),
        }
    }

    /// Adds a frame; returns the message when it is whole.
    ///
    /// # Errors
    /// The frame is none of a message, or the message is too long.
    pub fn add(&mut self, frame: Frame) -> Result<Option<Vec<u8>>, FrameError> {
        if frame.kind == FrameKind::Alive {
            return Ok(None);
        }
        if !matches!(frame.kind, FrameKind::Part | FrameKind::Message) {
            return Err(FrameError::Malformed(
                "bytes of a stream in place of a message",
            ));
        }
        if self.come.len() + frame.payload.len() > self.bytes_max {
            return Err(FrameError::TooLong(self.bytes_max));
        }
        if self.come.is_empty() {
            self.come = frame.payload;
        } else {
            self.come.extend(frame.payload);
        }
        Ok((frame.kind == FrameKind::Message).then(|| std::mem::take(&mut self.come)))
    }
}

/// Reads a message.
///
/// # Errors
/// It is not what is expected.
pub fn parse<T: DeserializeOwned>(text: &[u8]) -> Result<T, FrameError> {
    serde_json::from_slice(text).map_err(|_| FrameError::Malformed("an unknown message"))
}

fn read_header(header: &[u8]) -> Result<(FrameKind, usize), FrameError> {
    let malformed = FrameError::Malformed("an unknown frame");
    let Some((code, length)) = header.split_first() else {
        return Err(malformed);
    };
    let (Some(kind), Some(length)) = (FrameKind::of_code(*code), length.first_chunk()) else {
        return Err(malformed);
    };
    let length = usize::try_from(u32::from_be_bytes(*length)).unwrap_or(usize::MAX);
    if length > PAYLOAD_BYTES_MAX {
        return Err(FrameError::Malformed("a frame that is too long"));
    }
    Ok((kind, length))
}

/// Where frames are sent.
#[derive(Debug)]
pub struct FrameWriter<W> {
    to: W,
}

impl<W: AsyncWrite + Unpin> FrameWriter<W> {
    /// Sends frames there.
    pub fn new(to: W) -> Self {
        Self { to }
    }

    /// Sends a frame, whose payload may lie in parts. A send that is dropped half-way leaves the connection without use.
    ///
    /// # Errors
    /// The connection broke.
    ///
    /// # Panics
    /// The frame is longer than [`PAYLOAD_BYTES_MAX`].
    pub async fn send(&mut self, kind: FrameKind, payload: &[&[u8]]) -> Result<(), FrameError> {
        let length: usize = payload.iter().map(|part| part.len()).sum();
        assert!(length <= PAYLOAD_BYTES_MAX, "a frame that is too long");
        let length = u32::try_from(length).expect("below the most that a frame holds");
        let mut header = [0; HEADER_BYTES];
        header[0] = kind.code();
        header[1..].copy_from_slice(&length.to_be_bytes());
        let parts: Vec<&[u8]> = std::iter::once(&header[..])
            .chain(payload.iter().copied())
            .collect();
        write_all_parts(&mut self.to, &parts).await?;
        Ok(self.to.flush().await?)
    }

    /// Sends a message, in as many frames as it needs.
    ///
    /// # Errors
    /// The connection broke.
    pub async fn message(&mut self, message: &impl Serialize) -> Result<(), FrameError> {
        let text = serde_json::to_vec(message).map_err(io::Error::other)?;
        let mut parts = text.chunks(CHUNK_BYTES_MAX).peekable();
        while let Some(part) = parts.next() {
            let kind = match parts.peek() {
                Some(_) => FrameKind::Part,
                None => FrameKind::Message,
            };
            self.send(kind, &[part]).await?;
        }
        Ok(())
    }

    /// Ends what is sent.
    pub async fn shutdown(&mut self) {
        // The other side may have ended it before.
        let _ = self.to.shutdown().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn sent(frames: &[(FrameKind, &[u8])]) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut writer = FrameWriter::new(&mut bytes);
        for (kind, payload) in frames {
            writer.send(*kind, &[payload]).await.expect("sent");
        }
        bytes
    }

    #[tokio::test]
    async fn frames_come_as_they_were_sent_and_may_end_between_only() {
        let long = vec![7; CHUNK_BYTES_MAX];
        let bytes = sent(&[
            (FrameKind::Chunk, &long),
            (FrameKind::Alive, &[]),
            (FrameKind::End, &[1; 40]),
        ])
        .await;
        let mut reader = FrameReader::new(&bytes[..]);
        let first = reader.expect().await.expect("a frame");
        assert_eq!(
            (first.kind, first.payload == long),
            (FrameKind::Chunk, true)
        );
        assert_eq!(reader.expect().await.expect("one").kind, FrameKind::Alive);
        assert_eq!(reader.expect().await.expect("one").payload.len(), 40);
        assert!(reader.next().await.expect("the end").is_none());
        let bytes = sent(&[(FrameKind::Chunk, b"abc")]).await;
        for end in 1..bytes.len() {
            let cut = FrameReader::new(&bytes[..end]).next().await;
            assert!(matches!(cut, Err(FrameError::Ended)), "{end}: {cut:?}");
        }
    }

    #[tokio::test]
    async fn a_read_that_is_given_up_goes_on_where_it_was() {
        let (mut far, near) = tokio::io::duplex(64);
        let mut reader = FrameReader::new(near);
        for byte in sent(&[(FrameKind::Chunk, b"abc"), (FrameKind::Alive, b"")]).await {
            let given_up =
                tokio::time::timeout(std::time::Duration::from_millis(1), reader.next()).await;
            if let Ok(frame) = given_up {
                assert_eq!(frame.expect("a frame").expect("one").payload, b"abc");
            }
            far.write_all(&[byte]).await.expect("sent");
        }
        assert_eq!(reader.expect().await.expect("one").kind, FrameKind::Alive);
    }

    #[tokio::test]
    async fn hostile_frames_are_refused_and_cost_nothing() {
        for (bytes, why) in [
            (&b"X\0\0\0\0"[..], "an unknown frame"),
            (&b"C\xff\xff\xff\xff"[..], "too long"),
            (&b"M\0\x20\0\0"[..], "too long"),
            (&b"GET / HTTP/1.1\r\n\r\n"[..], "an unknown frame"),
            (&b"M\0\0\0\x02{}"[..], "an unknown message"),
            (&b"C\0\0\0\x02{}"[..], "in place of a message"),
            (&b"E\0\0\0\0"[..], "in place of a message"),
            (
                &b"P\0\0\0\x04\"abcM\0\0\0\x04def\""[..],
                "more than 6 bytes",
            ),
        ] {
            let read = FrameReader::new(bytes).message::<String>(6).await;
            let error = read.expect_err("refused").to_string();
            assert!(error.contains(why), "{bytes:?}: {error}");
        }
        // A length alone: what is held is what came.
        let mut reader = FrameReader::new(&b"C\0\x0f\xff\xff"[..]);
        assert!(matches!(reader.next().await, Err(FrameError::Ended)));
        assert!(reader.come.capacity() <= 2 * GROWTH_BYTES);
    }

    #[tokio::test]
    async fn long_messages_come_in_parts() {
        let names: Vec<String> = (0..100_000).map(|at| format!("tank/vm/{at}@s")).collect();
        let mut bytes = Vec::new();
        let mut writer = FrameWriter::new(&mut bytes);
        writer.message(&names).await.expect("sent");
        writer.send(FrameKind::Alive, &[]).await.expect("sent");
        writer.message(&"short").await.expect("sent");
        let mut reader = FrameReader::new(&bytes[..]);
        let read: Vec<String> = reader.message(8 << 20).await.expect("read");
        assert_eq!(read, names);
        assert_eq!(reader.message::<String>(9).await.expect("read"), "short");
    }
}
