//! What is to be written to a socket: many pieces of many messages, in few system calls.

use std::collections::VecDeque;
use std::io;

use tokio::io::{AsyncWrite, AsyncWriteExt as _};
use tokio::time::Instant;

/// Pieces given to one system call.
const SLICES_MAX: usize = 256;

/// A message that is ready for the wire.
pub(super) trait Outgoing {
    /// Returns its length in bytes, never 0.
    fn len(&self) -> usize;
    /// Returns its bytes.
    fn slices(&self) -> impl Iterator<Item = &[u8]>;
}

/// The messages of a connection on their way to its peer, in order.
pub(super) struct Outbox<W, T> {
    writer: W,
    waiting: VecDeque<T>,
    /// Bytes of the first that the peer has.
    sent: usize,
    /// Bytes waiting.
    bytes: usize,
    /// Whether the writer keeps what it took until it is flushed, and whether it has something.
    keeps: bool,
    kept: bool,
    first_since: Instant,
    progress: Instant,
}

impl<W: AsyncWrite + Unpin, T: Outgoing> Outbox<W, T> {
    /// Returns an empty one. A writer that `keeps` bytes is flushed behind the last of them.
    pub(super) fn new(writer: W, keeps: bool) -> Self {
        let now = Instant::now();
        Self {
            writer,
            waiting: VecDeque::new(),
            sent: 0,
            bytes: 0,
            keeps,
            kept: false,
            first_since: now,
            progress: now,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty() && !self.kept
    }

    /// Returns how many bytes wait.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Since when the first has been the first.
    pub(super) fn first_since(&self) -> Instant {
        self.first_since
    }

    /// When the peer last took something, or the first came to be it.
    pub(super) fn progress(&self) -> Instant {
        self.progress
    }

    pub(super) fn extend(&mut self, messages: impl IntoIterator<Item = T>) {
        if self.waiting.is_empty() {
            self.first_since = Instant::now();
            self.progress = self.first_since;
        }
        for message in messages {
            self.bytes += message.len();
            self.waiting.push_back(message);
        }
    }

    /// Gives the peer as much of all of them as it takes at once. Dropped before it ends, it has given nothing.
    ///
    /// # Errors
    /// The peer has gone.
    pub(super) async fn send(&mut self) -> io::Result<()> {
        if self.waiting.is_empty() {
            self.writer.flush().await?;
            self.progress = Instant::now();
            self.kept = false;
            return Ok(());
        }
        let all = self.waiting.iter().flat_map(Outgoing::slices);
        let mut slices: Vec<_> = all.take(SLICES_MAX).map(io::IoSlice::new).collect();
        let mut rest = slices.as_mut_slice();
        io::IoSlice::advance_slices(&mut rest, self.sent);
        let count = self.writer.write_vectored(rest).await?;
        if count == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        self.kept = self.keeps;
        self.progress = Instant::now();
        self.bytes -= count;
        self.sent += count;
        while let Some(first) = self.waiting.front()
            && self.sent >= first.len()
        {
            self.sent -= first.len();
            self.waiting.pop_front();
            self.first_since = self.progress;
        }
        Ok(())
    }

    /// Says that nothing more will come.
    pub(super) async fn shutdown(mut self) {
        let _ = self.writer.shutdown().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::AsyncReadExt as _;

    struct Text(&'static str, &'static str);

    impl Outgoing for Text {
        fn len(&self) -> usize {
            self.0.len() + self.1.len()
        }

        fn slices(&self) -> impl Iterator<Item = &[u8]> {
            [self.0.as_bytes(), self.1.as_bytes()].into_iter()
        }
    }

    #[tokio::test]
    async fn a_peer_that_takes_little_gets_all_of_it_in_order() {
        let (near, mut far) = tokio::io::duplex(3);
        let mut outbox = Outbox::new(near, false);
        outbox.extend([Text("he", "llo"), Text("", " "), Text("world", "")]);
        assert_eq!(outbox.bytes(), 11);
        let mut read = Vec::new();
        while !outbox.is_empty() {
            outbox.send().await.expect("the peer is there");
            let mut part = [0; 2];
            let count = far.read(&mut part).await.expect("reads");
            read.extend_from_slice(&part[..count]);
        }
        assert_eq!(outbox.bytes(), 0);
        outbox.shutdown().await;
        far.read_to_end(&mut read).await.expect("ends");
        assert_eq!(read, b"hello world");
    }

    #[tokio::test]
    async fn what_a_writer_keeps_is_flushed() {
        let (near, mut far) = tokio::io::duplex(64);
        let mut outbox = Outbox::new(tokio::io::BufWriter::new(near), true);
        outbox.extend([Text("a", "b")]);
        while !outbox.is_empty() {
            outbox.send().await.expect("the peer is there");
        }
        let mut read = [0; 2];
        far.read_exact(&mut read).await.expect("has come");
        assert_eq!(&read, b"ab");
    }

    #[tokio::test]
    async fn a_peer_that_has_gone_is_an_error() {
        let (near, far) = tokio::io::duplex(64);
        drop(far);
        let mut outbox = Outbox::new(near, false);
        outbox.extend([Text("a", "b")]);
        assert!(outbox.send().await.is_err());
    }
}
