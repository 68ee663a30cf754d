//! Streams of snapshots: made on the pool's thread, taken by a reader on any other.

use runtime::mailbox::{Receiver, mailbox};

use crate::delegation::on;
use crate::pool_mailbox::Request;
use crate::property::Kinds;
use crate::{EngineError, PoolHandle};
use dsl::stream::{SendOptions, SendResume, StreamChunk};

/// Chunks of about 1 MiB between the pool and the reader.
const CHUNKS_MAX: usize = 4;

/// What is to be sent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SendRequest {
    /// Full name of the snapshot.
    pub snapshot: String,
    /// Full name of the snapshot or bookmark that the stream counts from; `None` for a full stream.
    pub from: Option<String>,
    /// What the stream may contain.
    pub options: SendOptions,
    /// Where an interrupted stream goes on.
    pub resume: Option<SendResume>,
    /// Name, without the dataset's, of the redaction bookmark of the snapshot whose blocks are left out.
    pub redact: Option<String>,
}

/// A stream under way. The snapshot cannot be destroyed until the stream ends or this is dropped.
pub struct SendStream(Receiver<Result<StreamChunk, EngineError>>);

impl std::fmt::Debug for SendStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SendStream")
    }
}

impl SendStream {
    /// Returns the next bytes; `None` at the end.
    ///
    /// # Errors
    /// A block could not be read: the stream is not whole then, and nothing follows. [`EngineError::PoolClosed`].
    pub async fn next(&mut self) -> Result<Option<Vec<u8>>, EngineError> {
        let chunk = self.next_chunk().await?;
        Ok(chunk.map(StreamChunk::into_vec))
    }

    /// As [`next`](Self::next), without copying blocks together.
    ///
    /// # Errors
    /// As [`next`](Self::next).
    pub async fn next_chunk(&mut self) -> Result<Option<StreamChunk>, EngineError> {
        match self.0.receive().await {
            // An empty chunk is the end: a task that ended before it was cut off.
            Some(Ok(chunk)) if chunk.is_empty() => Ok(None),
            Some(Ok(chunk)) => Ok(Some(chunk)),
            Some(Err(error)) => Err(error),
            None => Err(EngineError::PoolClosed),
        }
    }
}

impl PoolHandle {
    /// Returns the full name of the snapshot or bookmark of a guid, in a dataset and those below it; snapshots first.
    ///
    /// # Errors
    /// [`EngineError::PoolClosed`]; of reading. `None` also when there is no such dataset.
    pub fn snapshot_of_guid<'a>(
        &'a self,
        dataset: &'a str,
        guid: u64,
        bookmarks: bool,
    ) -> Request<'a, Result<Option<String>, EngineError>> {
        Box::pin(async move {
            let dataset = dataset.to_owned();
            self.query(move |context| async move {
                let kinds = if bookmarks {
                    Kinds::SNAPSHOT.union(Kinds::BOOKMARK)
                } else {
                    Kinds::SNAPSHOT
                };
                let spec = dsl::ListSpec { depth: None, kinds };
                match context.pool.hierarchy().list(&dataset, spec).await {
                    Ok(found) => {
                        let mut found: Vec<String> = found
                            .into_iter()
                            .filter(|info| info.guid.0 == guid)
                            .map(|info| info.name)
                            .collect();
                        found.sort_by_key(|name| !name.contains('@'));
                        Ok(found.into_iter().next())
                    }
                    Err(error) if error.is_not_found() => Ok(None),
                    Err(error) => Err(error.into()),
                }
            })
            .await
        })
    }

    /// Begins a stream. What it sends is the snapshot as it is; later changes of the dataset do not touch it.
    ///
    /// # Errors
    /// [`EngineError::DatasetNotFound`] for the snapshot or what it counts from; [`EngineError::WrongKind`];
    /// [`EngineError::NotEarlier`]; [`EngineError::Redaction`]; [`EngineError::Permission`].
    pub fn send(&self, request: SendRequest) -> Request<'_, Result<SendStream, EngineError>> {
        Box::pin(async move {
            let (chunks, stream) = mailbox(CHUNKS_MAX);
            // OpenZFS: zfs_secpolicy_send
            let needs = vec![on(&request.snapshot, &["send"])];
            self.begin_permitted(needs, move |context| async move {
                let hierarchy = context.pool.hierarchy();
                let mut sender = hierarchy
                    .send(
                        &request.snapshot,
                        request.from.as_deref(),
                        request.options,
                        request.resume,
                        request.redact.as_deref(),
                    )
                    .await?;
                let task = async move {
                    loop {
                        let chunk = match sender.next().await {
                            Ok(chunk) => Ok(chunk.unwrap_or_default()),
                            Err(error) => Err(error.into()),
                        };
                        let last = chunk.as_ref().map_or(true, StreamChunk::is_empty);
                        // A reader that is gone ends the stream.
                        if chunks.send(chunk).await.is_err() || last {
                            return;
                        }
                    }
                };
                drop(context.handle.spawn("send", task));
                Ok(())
            })
            .await?;
            Ok(SendStream(stream))
        })
    }

    /// Returns the bytes of the stream that a request makes, without reading what it would contain.
    ///
    /// # Errors
    /// As [`PoolHandle::send`].
    pub fn send_size(&self, request: SendRequest) -> Request<'_, Result<u64, EngineError>> {
        Box::pin(async move {
            let needs = vec![on(&request.snapshot, &["send"])];
            self.begin_permitted(needs, move |context| async move {
                let options = SendOptions {
                    dry_run: true,
                    ..request.options
                };
                let hierarchy = context.pool.hierarchy();
                let sender = hierarchy
                    .send(
                        &request.snapshot,
                        request.from.as_deref(),
                        options,
                        request.resume,
                        request.redact.as_deref(),
                    )
                    .await?;
                Ok(sender.size().await?)
            })
            .await
        })
    }
}
