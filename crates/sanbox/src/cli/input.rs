//! Where the input of a command comes from: the process's own standard input, the frames of a control connection, or the descriptor that
//! came with the request. The first two come in chunks through a bounded channel, so that a slow command holds up the sender and not
//! the memory. Of a command that reads on demand no more is read than it asked for.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use manage::control::InputDemands;
use manage::descriptor::Descriptor;
use tokio::sync::{Mutex, mpsc};
use zeroize::Zeroizing;

/// Chunks on their way to a command.
const CHUNKS_MAX: usize = 4;
/// Bytes of a chunk that is read here.
const CHUNK_BYTES: usize = 256 << 10;

/// The input of one command. An empty chunk is its end; where the sender is gone before, it was cut off.
#[derive(Clone)]
pub(crate) struct Input {
    source: Source,
    /// Where the command reads on demand.
    demands: Option<Demands>,
}

#[derive(Clone)]
enum Source {
    Chunks(Arc<Mutex<mpsc::Receiver<Vec<u8>>>>),
    Descriptor(Arc<Mutex<Descriptor>>),
}

/// The way to what reads the input.
#[derive(Clone)]
struct Demands {
    ask: Arc<dyn Fn(u32) + Send + Sync>,
    /// Everything was asked for.
    all: Arc<AtomicBool>,
}

impl Input {
    /// Input that comes by a channel.
    pub(crate) fn channel() -> (mpsc::Sender<Vec<u8>>, Self) {
        let (sender, receiver) = mpsc::channel(CHUNKS_MAX);
        let input = Self {
            source: Source::Chunks(Arc::new(Mutex::new(receiver))),
            demands: None,
        };
        (sender, input)
    }

    /// Input that is read from a descriptor as the command wants it.
    pub(crate) fn of_descriptor(descriptor: Descriptor) -> Self {
        Self {
            source: Source::Descriptor(Arc::new(Mutex::new(descriptor))),
            demands: None,
        }
    }

    /// Calls `ask` with what the command wants: a number of bytes, or 0 for all.
    pub(crate) fn on_demand(self, ask: impl Fn(u32) + Send + Sync + 'static) -> Self {
        let demands = Demands {
            ask: Arc::new(ask),
            all: Arc::default(),
        };
        Self {
            demands: Some(demands),
            ..self
        }
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
    pub(crate) fn read(mut from: Box<dyn io::Read + Send>, on_demand: bool) -> Self {
        let (sender, mut input) = Self::channel();
        let mut demands = InputDemands::ALL;
        if on_demand {
            let (demanding, receiver) = InputDemands::channel();
            // Where nothing reads any more, the chunks end.
            input = input.on_demand(move |wanted| {
                let _ = demanding.send(wanted);
            });
            demands = receiver;
        }
        let read = move || {
            let mut wanted = 0;
            loop {
                // A read that was interrupted is made again.
                if wanted == 0 {
                    match demands.wait(CHUNK_BYTES) {
                        Some(more) => wanted = more,
                        None => return,
                    }
                }
                let mut chunk = vec![0; wanted];
                match from.read(&mut chunk) {
                    Ok(len) => chunk.truncate(len),
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                    Err(_) => return,
                }
                wanted = 0;
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
        self.next_of(None).await
    }

    /// The next bytes, at most `wanted` of them where the input is read on demand and not all was asked for (`None`) before; `None` at the
    /// end.
    pub(crate) async fn next_of(&self, wanted: Option<usize>) -> Option<Vec<u8>> {
        if let Some(demands) = &self.demands
            && !demands.all.load(Ordering::Relaxed)
        {
            let bytes = wanted.map_or(0, |wanted| u32::try_from(wanted).unwrap_or(u32::MAX));
            demands.all.store(bytes == 0, Ordering::Relaxed);
            (demands.ask)(bytes);
        }
        let chunk = match &self.source {
            Source::Chunks(chunks) => chunks.lock().await.recv().await?,
            Source::Descriptor(descriptor) => {
                let wanted = wanted.unwrap_or(CHUNK_BYTES).min(CHUNK_BYTES);
                // The command sees a stream that ends too early.
                descriptor
                    .lock()
                    .await
                    .read(wanted)
                    .await
                    .unwrap_or_default()
            }
        };
        (!chunk.is_empty()).then_some(chunk)
    }
}
