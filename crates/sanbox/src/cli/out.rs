//! Where the output of a command goes: the process's own standard output and error, or the frames of a
//! control connection. Text is gathered and handed on in order, so that standard output and standard
//! error keep their sequence, and a slow reader holds up the command and not the memory.

use std::borrow::Cow;
use std::io::{self, IsTerminal as _, Write as _};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use engine::stream::StreamChunk;
use manage::descriptor::Descriptor;
use tokio::sync::Mutex as AsyncMutex;

/// Where bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stream {
    /// Standard output.
    Out,
    /// Standard error.
    Err,
    /// The name of the process, as lists of processes show it.
    Title,
}

/// The reader of the output has closed it; the command ends quietly, as on SIGPIPE.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OutputClosed;

enum Sink {
    Process,
    Channel {
        sender: tokio::sync::mpsc::Sender<(Stream, Vec<u8>)>,
        /// What standard output is written to instead.
        stream: Option<AsyncMutex<Descriptor>>,
    },
}

/// The output of one command.
#[derive(Clone)]
pub(crate) struct Out(Arc<PendingOutput>);

/// Output that has not been handed on, and where it goes.
struct PendingOutput {
    sink: Sink,
    pending: Mutex<Vec<(Stream, Vec<u8>)>>,
}

impl Out {
    /// Output to this process's own streams.
    pub(crate) fn process() -> Self {
        Self::with(Sink::Process)
    }

    /// Output into a channel, from which a control connection is fed; standard output to `stream`, where there is one.
    pub(crate) fn channel(
        sender: tokio::sync::mpsc::Sender<(Stream, Vec<u8>)>,
        stream: Option<Descriptor>,
    ) -> Self {
        let stream = stream.map(AsyncMutex::new);
        Self::with(Sink::Channel { sender, stream })
    }

    fn with(sink: Sink) -> Self {
        Self(Arc::new(PendingOutput {
            sink,
            pending: Mutex::new(Vec::new()),
        }))
    }

    /// Adds bytes to a stream. Those that are given away are not copied where none wait.
    pub(crate) fn push<'a>(&self, stream: Stream, bytes: impl Into<Cow<'a, [u8]>>) {
        let bytes = bytes.into();
        let mut pending = self.pending();
        match pending.last_mut() {
            Some((last, buffer)) if *last == stream && stream != Stream::Title => {
                buffer.extend_from_slice(&bytes);
            }
            _ => pending.push((stream, bytes.into_owned())),
        }
    }

    /// Adds text to standard output.
    pub(crate) fn text(&self, text: impl AsRef<str>) {
        self.push(Stream::Out, text.as_ref().as_bytes());
    }

    /// Adds a line to standard output.
    pub(crate) fn line(&self, text: impl AsRef<str>) {
        self.text(text);
        self.text("\n");
    }

    /// Adds a line to standard error.
    pub(crate) fn error(&self, text: impl AsRef<str>) {
        self.push(Stream::Err, text.as_ref().as_bytes());
        self.push(Stream::Err, b"\n");
    }

    /// Adds a line for a person at the terminal of this process: to standard error, or nowhere when that is no terminal or
    /// the command runs in a daemon.
    pub(crate) fn hint(&self, text: impl AsRef<str>) {
        if matches!(self.0.sink, Sink::Process) && io::stderr().is_terminal() {
            self.error(text);
        }
    }

    /// Hands everything on. Commands that write much call it now and then; the end of a command
    /// does it in any case.
    pub(crate) async fn flush(&self) -> Result<(), OutputClosed> {
        let pending = self.take();
        for (stream, bytes) in pending {
            match (&self.0.sink, stream) {
                (Sink::Process, _) => write_own(stream, &bytes).map_err(|_| OutputClosed)?,
                (
                    Sink::Channel {
                        stream: Some(descriptor),
                        sender,
                    },
                    Stream::Out,
                ) => {
                    let written = descriptor.lock().await.write_all(&[&bytes]).await;
                    told(written, sender).await?;
                }
                (Sink::Channel { sender, .. }, _) => sender
                    .send((stream, bytes))
                    .await
                    .map_err(|_| OutputClosed)?,
            }
        }
        Ok(())
    }

    /// Hands on what waits, and then a part of a stream to standard output.
    pub(crate) async fn send_chunk(&self, chunk: StreamChunk) -> Result<(), OutputClosed> {
        self.flush().await?;
        if let Sink::Channel {
            stream: Some(descriptor),
            sender,
        } = &self.0.sink
        {
            let parts: Vec<&[u8]> = chunk.parts().collect();
            let written = descriptor.lock().await.write_all(&parts).await;
            return told(written, sender).await;
        }
        self.push(Stream::Out, chunk.into_vec());
        self.flush().await
    }

    fn take(&self) -> Vec<(Stream, Vec<u8>)> {
        std::mem::take(&mut *self.pending())
    }

    fn pending(&self) -> MutexGuard<'_, Vec<(Stream, Vec<u8>)>> {
        self.0
            .pending
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// Tells why a descriptor takes no more: nothing where it has no reader, but that a file system is full.
async fn told(
    written: io::Result<()>,
    sender: &tokio::sync::mpsc::Sender<(Stream, Vec<u8>)>,
) -> Result<(), OutputClosed> {
    let Err(error) = written else {
        return Ok(());
    };
    if error.kind() != io::ErrorKind::BrokenPipe {
        let why = error.to_string();
        let why = why.split(" (os error").next().unwrap_or(&why);
        let words = format!("cannot write the output: {why}\n");
        let _ = sender.send((Stream::Err, words.into_bytes())).await;
    }
    Err(OutputClosed)
}

fn write_own(stream: Stream, bytes: &[u8]) -> io::Result<()> {
    match stream {
        Stream::Out => {
            let mut stdout = io::stdout().lock();
            stdout.write_all(bytes)?;
            stdout.flush()
        }
        Stream::Err => io::stderr().lock().write_all(bytes),
        Stream::Title => {
            manage::control::set_title(bytes);
            Ok(())
        }
    }
}
