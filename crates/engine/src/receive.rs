//! Streams that are received: their bytes come from any thread, and are applied on the pool's.

use std::rc::Rc;

use dsl::stream::{
    ByteOrder, NvList, NvValue, RECORD_SIZE, ReceiveTarget, Receiver, StreamKind, StreamReader,
    StreamRecord,
};
use runtime::mailbox::{self, Sender, mailbox};
use runtime::reply::Reply;

use crate::pool_mailbox::{PoolContext, Request};
use crate::{EngineError, Invalidation, PoolHandle, PropertyQuery};

/// Chunks between the reader and the pool.
const CHUNKS_MAX: usize = 4;
/// Most bytes of the list of names and values behind a BEGIN.
const LIST_BYTES_MAX: u64 = 64 << 20;

/// Where a stream goes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReceiveRequest {
    /// Full name of the dataset.
    pub dataset: String,
    /// Name of the snapshot, without the dataset's; `None` takes the sender's.
    pub snapshot: Option<String>,
    /// What changed since the newest snapshot is given up (`-F`).
    pub force: bool,
}

/// What was received from one stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReceivedSnapshot {
    /// Full name of the snapshot at the sender.
    pub from: String,
    /// Full name of the snapshot that was made.
    pub name: String,
    /// It counts from an earlier snapshot.
    pub incremental: bool,
    /// Bytes of the stream.
    pub bytes: u64,
    /// The stream's package carries properties or holds (`zfs send -p`, `-h`), which were not taken over.
    pub without_properties: bool,
}

/// A receive under way: the bytes of a stream, or of a package of streams, go in. Dropped before [`ReceiveStream::finish`], the stream
/// that is under way is given up.
pub struct ReceiveStream {
    pool: PoolHandle,
    dataset: String,
    chunks: Sender<Vec<u8>>,
    answer: Reply<Result<Vec<ReceivedSnapshot>, EngineError>>,
}

impl std::fmt::Debug for ReceiveStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ReceiveStream")
    }
}

impl ReceiveStream {
    /// Hands the next bytes on; false when no more are taken, and [`ReceiveStream::finish`] says why.
    pub async fn write(&self, bytes: Vec<u8>) -> bool {
        self.chunks.send(bytes).await.is_ok()
    }

    /// Waits for what was received, after the last bytes. All of it is on disk when this returns.
    ///
    /// # Errors
    /// The stream is damaged, is cut short, or cannot be received. Snapshots that were received whole before stay.
    pub async fn finish(self) -> Result<Vec<ReceivedSnapshot>, EngineError> {
        drop(self.chunks);
        let received = self.answer.await.map_err(|_| EngineError::PoolClosed)?;
        // What is open of the dataset is another thing now.
        if let Ok(info) = self.pool.dataset(&self.dataset, &PropertyQuery::None).await {
            self.pool
                .notify(Some(info.guid), Invalidation::Everything)
                .await;
        }
        received
    }
}

impl PoolHandle {
    /// Begins to receive.
    ///
    /// # Errors
    /// [`EngineError::Permission`]; [`EngineError::PoolClosed`].
    pub fn receive(
        &self,
        request: ReceiveRequest,
    ) -> Request<'_, Result<ReceiveStream, EngineError>> {
        Box::pin(async move {
            let (chunks, input) = mailbox(CHUNKS_MAX);
            let (sender, answer) = runtime::reply();
            let creator = self.creator();
            let dataset = request.dataset.clone();
            self.run_as_root(move |context| async move {
                let handle = context.handle.clone();
                let task = async move {
                    let work = Work {
                        context,
                        request,
                        creator,
                        input: Input::new(input),
                        without_properties: false,
                    };
                    sender.send(work.run().await);
                };
                drop(handle.spawn("receive", task));
                Ok(())
            })
            .await?;
            Ok(ReceiveStream {
                pool: self.clone(),
                dataset,
                chunks,
                answer,
            })
        })
    }
}

/// The bytes of a stream, cut into what is asked for.
struct Input {
    chunks: mailbox::Receiver<Vec<u8>>,
    chunk: Vec<u8>,
    at: usize,
    /// Bytes taken since the last BEGIN.
    taken: u64,
}

impl Input {
    fn new(chunks: mailbox::Receiver<Vec<u8>>) -> Self {
        Self {
            chunks,
            chunk: Vec::new(),
            at: 0,
            taken: 0,
        }
    }

    /// Fills a buffer; returns the bytes that came, fewer only at the end.
    async fn fill(&mut self, out: &mut [u8]) -> usize {
        let mut filled = 0;
        while filled < out.len() {
            if self.at == self.chunk.len() {
                match self.chunks.receive().await {
                    Some(chunk) => {
                        self.chunk = chunk;
                        self.at = 0;
                        continue;
                    }
                    None => break,
                }
            }
            let len = (self.chunk.len() - self.at).min(out.len() - filled);
            out[filled..filled + len].copy_from_slice(&self.chunk[self.at..self.at + len]);
            self.at += len;
            filled += len;
        }
        self.taken += filled as u64;
        filled
    }
}

/// A receive on the pool's thread.
struct Work {
    context: Rc<PoolContext>,
    request: ReceiveRequest,
    creator: u32,
    input: Input,
    /// The package that is read carries properties or holds.
    without_properties: bool,
}

fn invalid(why: impl std::fmt::Display) -> EngineError {
    EngineError::Dataset(format!("invalid stream ({why})"))
}

impl Work {
    async fn run(mut self) -> Result<Vec<ReceivedSnapshot>, EngineError> {
        let mut reader = StreamReader::default();
        let mut received = Vec::new();
        let mut packed = false;
        loop {
            let Some(record) = self.record(&mut reader).await? else {
                // A package ends with an END of its own.
                return if packed || received.is_empty() {
                    Err(invalid("it ends too early"))
                } else {
                    Ok(received)
                };
            };
            if reader.order() != Some(ByteOrder::Little) {
                return Err(EngineError::Dataset(
                    "receiving streams of the other byte order is not supported".to_owned(),
                ));
            }
            match record {
                StreamRecord::Begin(begin) if begin.kind == StreamKind::Compound => {
                    if packed {
                        return Err(invalid("a package inside a package"));
                    }
                    packed = true;
                    self.without_properties = self.package_head(&mut reader).await?;
                }
                StreamRecord::Begin(begin) => {
                    received.push(self.stream(&mut reader, begin).await?);
                    if !packed {
                        return Ok(received);
                    }
                }
                StreamRecord::End { .. } if packed => return Ok(received),
                _ => return Err(invalid("no BEGIN record")),
            }
        }
    }

    /// The next record; `None` at the end of the bytes.
    async fn record(
        &mut self,
        reader: &mut StreamReader,
    ) -> Result<Option<StreamRecord>, EngineError> {
        let mut bytes = [0; RECORD_SIZE];
        match self.input.fill(&mut bytes).await {
            0 => Ok(None),
            RECORD_SIZE => reader.record(&bytes).map(Some).map_err(invalid),
            _ => Err(invalid("it ends too early")),
        }
    }

    async fn payload(
        &mut self,
        reader: &mut StreamReader,
        max: u64,
    ) -> Result<Vec<u8>, EngineError> {
        let len = reader.payload_left();
        if len > max {
            return Err(invalid("length of a payload"));
        }
        let len = usize::try_from(len).map_err(invalid)?;
        // It grows as bytes come: a length alone costs nothing.
        let mut payload = Vec::new();
        while payload.len() < len {
            let at = payload.len();
            payload.resize(len.min(at + (1 << 20)), 0);
            if self.input.fill(&mut payload[at..]).await < payload.len() - at {
                return Err(invalid("it ends too early"));
            }
        }
        reader.payload(&payload);
        Ok(payload)
    }

    /// What stands at the beginning of a package: a list, which names nothing where it is that of `zfs send -I`, and an END. Returns
    /// whether the list carries properties or holds.
    async fn package_head(&mut self, reader: &mut StreamReader) -> Result<bool, EngineError> {
        let list = self.payload(reader, LIST_BYTES_MAX).await?;
        let mut carries = false;
        if !list.is_empty() {
            let list = NvList::decode(&list).map_err(invalid)?;
            if list.get("not_recursive").is_none() {
                return Err(EngineError::Dataset(
                    "receiving replication streams (-R) is not supported".to_owned(),
                ));
            }
            carries = list.list("fss").is_some_and(carries_properties);
        }
        match self.record(reader).await? {
            Some(StreamRecord::End { .. }) => Ok(carries),
            _ => Err(invalid("no END record")),
        }
    }

    async fn stream(
        &mut self,
        reader: &mut StreamReader,
        begin: dsl::stream::Begin,
    ) -> Result<ReceivedSnapshot, EngineError> {
        self.input.taken = RECORD_SIZE as u64;
        self.payload(reader, LIST_BYTES_MAX).await?;
        let from = String::from_utf8_lossy(&begin.to_name).into_owned();
        let sent = from.split_once('@').map_or("", |(_, snapshot)| snapshot);
        let snapshot = self
            .request
            .snapshot
            .clone()
            .unwrap_or_else(|| sent.to_owned());
        let target = ReceiveTarget {
            dataset: self.request.dataset.clone(),
            snapshot: snapshot.clone(),
            force: self.request.force,
            creator: self.creator,
        };
        let incremental = begin.from_guid != 0;
        let hierarchy = self.context.pool.hierarchy().clone();
        let mut receiver = hierarchy.receive(target, begin).await?;
        match self.apply(reader, &mut receiver).await {
            Ok(()) => {}
            Err(error) => {
                receiver.abandon().await;
                return Err(error);
            }
        }
        if incremental {
            // The dataset must be closed while its contents change; requests open it anew.
            let dataset = &self.request.dataset;
            let object = hierarchy.info(dataset).await?.object.0;
            let work = async { Ok(receiver.finish().await?) };
            self.context.without(object, work).await?;
        } else {
            receiver.finish().await?;
        }
        Ok(ReceivedSnapshot {
            from,
            name: format!("{}@{snapshot}", self.request.dataset),
            incremental,
            bytes: self.input.taken,
            without_properties: self.without_properties,
        })
    }

    async fn apply(
        &mut self,
        reader: &mut StreamReader,
        receiver: &mut Receiver,
    ) -> Result<(), EngineError> {
        loop {
            let Some(record) = self.record(reader).await? else {
                return Err(invalid("it ends too early"));
            };
            let payload = self.payload(reader, ondisk::MAX_BLOCK_SIZE).await?;
            receiver.record(&record, &payload).await?;
            if matches!(record, StreamRecord::End { .. }) {
                return Ok(());
            }
        }
    }
}

/// The lists in a list.
fn nested(list: &NvList) -> impl Iterator<Item = &NvList> {
    list.iter().filter_map(|(_, value)| match value {
        NvValue::List(list) => Some(list),
        _ => None,
    })
}

/// Whether the file systems of a package's list have properties or holds, of their own or of their snapshots.
// Format: docs/format/11-send-stream.md: "fss" holds a list by guid, with the lists "props", "snapprops", "snapholds".
fn carries_properties(filesystems: &NvList) -> bool {
    nested(filesystems).any(|filesystem| {
        let own = filesystem.list("props");
        let of_snapshots = ["snapprops", "snapholds"]
            .iter()
            .filter_map(|name| filesystem.list(name))
            .flat_map(nested);
        own.into_iter()
            .chain(of_snapshots)
            .any(|list| !list.is_empty())
    })
}
