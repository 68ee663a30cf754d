//! Where the input of a command comes from: the process's own standard input, or the frames of a control connection. It comes in
//! chunks through a bounded channel, so that a slow command holds up the sender and not the memory.

use std::io;
use std::sync::Arc;

use tokio::sync::{Mutex, mpsc};
use zeroize::Zeroizing;

/// Chunks on their way to a command.
const CHUNKS_MAX: usize = 4;
/// Bytes of a chunk that is read here.
const CHUNK_BYTES: usize = 256 << 10;

/// The input of one command. An empty chunk is its end; where the sender is gone before, it was cut off.
#[derive(Clone)]
pub(crate) struct Input(Arc<Mutex<mpsc::Receiver<Vec<u8>>>>);

impl Input {
    /// Input that comes by a channel.
    pub(crate) fn channel() -> (mpsc::Sender<Vec<u8>>, Self) {
        let (sender, receiver) = mpsc::channel(CHUNKS_MAX);
        (sender, Self(Arc::new(Mutex::new(receiver))))
    }

    /// Input that is these bytes.
    pub(crate) fn of(mut bytes: Zeroizing<Vec<u8>>) -> Self {
        let (sender, input) = Self::channel();
        for chunk in [std::mem::take(&mut *bytes), Vec::new()] {
            let sent = sender.try_send(chunk);
            assert!(sent.is_ok(), "two chunks have room in a new channel");
        }
        input
    }

    /// Standard input of this process or a file, read by a thread of its own.
    pub(crate) fn read(mut from: Box<dyn io::Read + Send>) -> Self {
        let (sender, input) = Self::channel();
        let read = move || {
            loop {
                let mut chunk = vec![0; CHUNK_BYTES];
                match from.read(&mut chunk) {
                    Ok(len) => chunk.truncate(len),
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                    Err(_) => return,
                }
                manage::terminal::end_if_interrupted(&chunk);
                let ended = chunk.is_empty();
                if sender.blocking_send(chunk).is_err() || ended {
                    return;
                }
            }
        };
        // Without a thread the input is cut off, which the command reports.
        let _ = std::thread::Builder::new()
            .name("input".to_owned())
            .spawn(read);
        input
    }

    /// The next bytes; `None` at the end.
    pub(crate) async fn next(&self) -> Option<Vec<u8>> {
        let chunk = self.0.lock().await.recv().await?;
        (!chunk.is_empty()).then_some(chunk)
    }
}
