//! The end of a connection that has the job: a side of a job on another appliance.
//!
//! Connections are kept for a while and used again, since a continuous job asks twice a second. A request that changes something is never given
//! twice.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, Either, select};
use serde::de::DeserializeOwned;
use tokio::io::{AsyncRead, AsyncWrite, ReadHalf, WriteHalf};
use tokio::time::timeout;

use super::frame::{FrameError, FrameReader, FrameWriter, MessageParts, parse};
use super::identity::Fingerprint;
use super::message::{Fault, Hello, Paired, Request, WireDataset, WireStream};
use super::pairing::{Code, PairingSide};
use super::transfer::{SILENCE_MAX, STALL_MAX, receive_stream, send_stream};
use crate::replication::{
    ByteStream, Compression, Endpoint, Fence, Reached, ReceiveSpec, ReplicaDataset,
    ReplicationError, StreamSpec, Switchover,
};
use crate::secret::{hex, unhex};

/// How long both sides have to say which protocol they speak.
pub(super) const HELLO_TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes of the first messages, at most.
pub(super) const HELLO_BYTES_MAX: usize = 64 << 10;
/// Bytes of an answer, at most: a list of some million snapshots.
const ANSWER_BYTES_MAX: usize = 256 << 20;
/// How long a connection is kept that is of no use; shorter than the other side waits for a request.
const KEPT_MAX: Duration = Duration::from_secs(60);
/// Connections to a peer that are kept.
const KEPT_CONNECTIONS_MAX: usize = 8;
/// Names in a request that may be parted.
const AT_ONCE: usize = 2000;

/// A connection to a peer, encrypted, whose other end has shown the certificate that it is known by.
pub trait Link: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Link for T {}

/// See [`Link`].
pub type BoxedLink = Box<dyn Link>;

/// Connects to peers.
pub trait Connector: Send + Sync {
    /// Connects to a peer, by its name.
    fn connect<'a>(&'a self, peer: &'a str) -> BoxFuture<'a, Result<BoxedLink, ReplicationError>>;
}

type Frames = FrameReader<ReadHalf<BoxedLink>>;

/// A connection whose both sides have said which protocol they speak.
struct Connection {
    frames: Frames,
    to: FrameWriter<WriteHalf<BoxedLink>>,
}

/// Connections to the peers of an appliance.
pub struct PeerLinks {
    connector: Box<dyn Connector>,
    kept: Mutex<BTreeMap<String, Vec<(Instant, Connection)>>>,
}

impl PeerLinks {
    /// Has connections made by `connector`.
    #[must_use]
    pub fn new(connector: Box<dyn Connector>) -> Arc<Self> {
        Arc::new(Self {
            connector,
            kept: Mutex::default(),
        })
    }

    /// Closes the connections to a peer that are of no use now: it was removed, or is reached elsewhere.
    pub fn forget(&self, peer: &str) {
        self.kept().remove(peer);
    }

    /// Returns a connection, and whether it was used before.
    async fn connection(&self, peer: &str) -> Result<(Connection, bool), ReplicationError> {
        if let Some(kept) = self.take(peer) {
            return Ok((kept, true));
        }
        let link = self.connector.connect(peer).await?;
        let opened = Connection::open(link).await;
        let opened = opened.map_err(|why| ReplicationError::Unreachable {
            place: place(peer),
            why,
        })?;
        Ok((opened, false))
    }

    /// Returns a connection that is kept, and open still.
    fn take(&self, peer: &str) -> Option<Connection> {
        let mut kept = self.kept();
        let kept = kept.get_mut(peer)?;
        kept.retain(|(since, _)| since.elapsed() < KEPT_MAX);
        while let Some((_, mut connection)) = kept.pop() {
            // What would come now is its end.
            if connection.frames.next().now_or_never().is_none() {
                return Some(connection);
            }
        }
        None
    }

    fn keep(&self, peer: &str, connection: Connection) {
        let mut kept = self.kept();
        // Those of peers that are asked no more, too.
        kept.retain(|_, kept| {
            kept.retain(|(since, _)| since.elapsed() < KEPT_MAX);
            !kept.is_empty()
        });
        let kept = kept.entry(peer.to_owned()).or_default();
        if kept.len() < KEPT_CONNECTIONS_MAX {
            kept.push((Instant::now(), connection));
        }
    }

    fn kept(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, Vec<(Instant, Connection)>>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn place(peer: &str) -> String {
    format!("peer '{peer}'")
}

/// The error of a connection that broke, or on which nonsense came.
fn broken(peer: &str, error: &FrameError) -> ReplicationError {
    let why = match error {
        FrameError::Io(error) if error.kind() == std::io::ErrorKind::TimedOut => {
            format!("no sign of life for {} s", SILENCE_MAX.as_secs())
        }
        other => other.to_string(),
    };
    match error {
        FrameError::Io(_) | FrameError::Ended => ReplicationError::Unreachable {
            place: place(peer),
            why,
        },
        FrameError::Malformed(_) | FrameError::TooLong(_) => {
            ReplicationError::Failed(format!("{}: {why}", place(peer)))
        }
    }
}

fn timed_out() -> FrameError {
    FrameError::Io(std::io::ErrorKind::TimedOut.into())
}

impl Connection {
    /// Says which protocol this side speaks, and hears what the other does.
    async fn open(link: BoxedLink) -> Result<Self, String> {
        let (from, to) = tokio::io::split(link);
        let (mut frames, mut to) = (FrameReader::new(from), FrameWriter::new(to));
        let greet = async {
            to.message(&Hello::own()).await?;
            frames.message::<Hello>(HELLO_BYTES_MAX).await
        };
        let hello = match timeout(HELLO_TIMEOUT, greet).await {
            Ok(Ok(hello)) => hello,
            Ok(Err(FrameError::Ended | FrameError::Io(_))) => {
                return Err(
                    "it ends the connection: it does not know this appliance (any more), or has as many connections as it takes"
                        .to_owned(),
                );
            }
            Ok(Err(error)) => return Err(error.to_string()),
            Err(_) => return Err("no answer".to_owned()),
        };
        match hello.problem() {
            Some(problem) => Err(problem),
            None => Ok(Self { frames, to }),
        }
    }

    async fn give(&mut self, request: &Request) -> Result<(), FrameError> {
        let given = timeout(STALL_MAX, self.to.message(request)).await;
        given.unwrap_or_else(|_| Err(timed_out()))
    }
}

/// Receives an answer, for which the other side may work as long as it gives signs of life.
async fn answer<T: DeserializeOwned>(frames: &mut Frames) -> Result<Result<T, Fault>, FrameError> {
    let mut message = MessageParts::new(ANSWER_BYTES_MAX);
    loop {
        let frame = timeout(SILENCE_MAX, frames.expect()).await;
        let frame = frame.unwrap_or_else(|_| Err(timed_out()))?;
        if let Some(text) = message.add(frame)? {
            return parse(&text);
        }
    }
}

/// Redeems the code of an invitation on a connection to who made it. `inviter` is the certificate that it showed, `redeemer` the one that was
/// shown to it. What is returned was proven by who has the code.
///
/// # Errors
/// The code is not taken, or the other side cannot prove that it made it: in words.
pub async fn pair(
    link: BoxedLink,
    code: &Code,
    (inviter, redeemer): (&Fingerprint, &Fingerprint),
    calls_itself: &str,
) -> Result<Paired, String> {
    let mut connection = Connection::open(link).await?;
    let proof = code.proof(PairingSide::Redeemer, inviter, redeemer);
    let request = Request::Pair {
        id: code.id().to_owned(),
        proof: hex(&proof),
        name: calls_itself.to_owned(),
    };
    let asked = async {
        connection.give(&request).await?;
        answer::<Paired>(&mut connection.frames).await
    };
    let paired = asked.await.map_err(|error| error.to_string())?;
    let paired = paired.map_err(|fault| match fault {
        Fault::Denied { what } | Fault::Failed { why: what } => what,
        other => other.of_peer("the inviter").to_string(),
    })?;
    let is_proven = unhex(&paired.proof)
        .is_some_and(|proof| code.is_proven(&proof, PairingSide::Inviter, inviter, redeemer));
    match is_proven {
        true => Ok(paired),
        false => Err(
            "what answers there does not know the code: it is not the appliance that made it"
                .to_owned(),
        ),
    }
}

/// See the module.
#[derive(Clone)]
pub struct PeerEndpoint {
    links: Arc<PeerLinks>,
    peer: String,
    /// The job's root there: a name of the pool that requests without one are about.
    root: String,
    compression: Compression,
}

impl PeerEndpoint {
    /// Returns the side at a peer, by its name; `root` is the job's dataset there, and streams go there, or come from there, compressed so.
    #[must_use]
    pub fn new(links: Arc<PeerLinks>, peer: &str, root: &str, compression: Compression) -> Self {
        Self {
            links,
            peer: peer.to_owned(),
            root: root.to_owned(),
            compression,
        }
    }

    fn broken(&self, error: &FrameError) -> ReplicationError {
        broken(&self.peer, error)
    }

    /// Gives a request and returns its answer.
    async fn ask<T: DeserializeOwned>(&self, request: Request) -> Result<T, ReplicationError> {
        let (mut connection, was_used) = self.links.connection(&self.peer).await?;
        let mut asked = self.ask_on(&mut connection, &request).await;
        // The other side may have ended just when it was asked. What only looks can be asked again.
        if was_used
            && matches!(asked, Err(FrameError::Ended | FrameError::Io(_)))
            && looks(&request)
        {
            self.links.forget(&self.peer);
            connection = self.links.connection(&self.peer).await?.0;
            asked = self.ask_on(&mut connection, &request).await;
        }
        let answer = asked.map_err(|error| self.broken(&error))?;
        self.links.keep(&self.peer, connection);
        answer.map_err(|fault| fault.of_peer(&self.peer))
    }

    async fn ask_on<T: DeserializeOwned>(
        &self,
        connection: &mut Connection,
        request: &Request,
    ) -> Result<Result<T, Fault>, FrameError> {
        connection.give(request).await?;
        answer(&mut connection.frames).await
    }

    async fn begin(&self, spec: StreamSpec) -> Result<ByteStream, ReplicationError> {
        let what = format!("{}@{}", spec.dataset, spec.snapshot);
        let is_default = self.compression == Compression::default();
        let stream = WireStream {
            compress: (!is_default).then(|| self.compression.to_string()),
            ..WireStream::from(spec)
        };
        let request = Request::Send { stream };
        let (mut connection, _) = self.links.connection(&self.peer).await?;
        let begun = self.ask_on::<()>(&mut connection, &request).await;
        let begun = begun.map_err(|error| self.broken(&error))?;
        begun.map_err(|fault| fault.of_peer(&self.peer))?;
        let Connection { frames, to } = connection;
        let (own, failing, faulty) = (self.clone(), self.clone(), self.clone());
        Ok(receive_stream(
            frames,
            what,
            move |error| failing.broken(&error),
            move |fault| fault.of_peer(&faulty.peer),
            move |frames, is_whole| {
                if is_whole {
                    own.links.keep(&own.peer, Connection { frames, to });
                }
            },
        ))
    }

    async fn take_in(&self, spec: ReceiveSpec, bytes: ByteStream) -> Result<(), ReplicationError> {
        let request = Request::Receive { into: spec.into() };
        let (mut connection, _) = self.links.connection(&self.peer).await?;
        let begun = self.ask_on::<()>(&mut connection, &request).await;
        let begun = begun.map_err(|error| self.broken(&error))?;
        begun.map_err(|fault| fault.of_peer(&self.peer))?;
        let Connection { mut frames, mut to } = connection;
        let ended = {
            let answering = std::pin::pin!(answer::<()>(&mut frames));
            let sending = std::pin::pin!(send_stream(&mut to, bytes, self.compression));
            match select(sending, answering).await {
                Either::Left((Ok(Ok(())), answering)) => answering.await,
                // The source's own error: the other side keeps what came.
                Either::Left((Ok(Err(error)), _)) => return Err(error),
                // It ended the connection, and may have said why before.
                Either::Left((Err(error), answering)) => match answering.now_or_never() {
                    Some(Ok(Err(fault))) => Ok(Err(fault)),
                    _ => Err(error),
                },
                Either::Right((Ok(Ok(())), _)) => {
                    Err(FrameError::Malformed("an answer before its time"))
                }
                Either::Right((refused, _)) => refused,
            }
        };
        let ended = ended.map_err(|error| self.broken(&error))?;
        // After a refusal, what was on its way is in the way.
        ended.map_err(|fault| fault.of_peer(&self.peer))?;
        self.links.keep(&self.peer, Connection { frames, to });
        Ok(())
    }

    /// Gives a request about many names, part by part.
    async fn each_part<T: Clone>(
        &self,
        all: Vec<T>,
        request: impl Fn(Vec<T>) -> Request,
    ) -> Result<(), ReplicationError> {
        for part in all.chunks(AT_ONCE) {
            self.ask::<()>(request(part.to_vec())).await?;
        }
        Ok(())
    }
}

/// Whether a request changes nothing.
fn looks(request: &Request) -> bool {
    matches!(
        request,
        Request::List { .. }
            | Request::WriteOut { .. }
            | Request::ReplayLogs { .. }
            | Request::UnchangedSince { .. }
            | Request::Exists { .. }
            | Request::Find { .. }
            | Request::Size { .. }
    )
}

impl Endpoint for PeerEndpoint {
    fn list<'a>(&'a self, root: &'a str) -> Reached<'a, Option<Vec<ReplicaDataset>>> {
        async move {
            let request = Request::List {
                root: root.to_owned(),
            };
            let listed: Option<Vec<WireDataset>> = self.ask(request).await?;
            Ok(listed.map(|all| all.into_iter().map(ReplicaDataset::from).collect()))
        }
        .boxed()
    }

    fn write_out(&self) -> Reached<'_, ()> {
        let root = self.root.clone();
        self.ask(Request::WriteOut { root }).boxed()
    }

    fn replay_logs<'a>(&'a self, root: &'a str) -> Reached<'a, ()> {
        let root = root.to_owned();
        self.ask(Request::ReplayLogs { root }).boxed()
    }

    fn unchanged_since(&self) -> Reached<'_, Option<u64>> {
        let root = self.root.clone();
        self.ask(Request::UnchangedSince { root }).boxed()
    }

    fn exists<'a>(&'a self, dataset: &'a str) -> Reached<'a, bool> {
        let dataset = dataset.to_owned();
        self.ask(Request::Exists { dataset }).boxed()
    }

    fn find<'a>(&'a self, dataset: &'a str, guid: u64) -> Reached<'a, Option<String>> {
        let dataset = dataset.to_owned();
        self.ask(Request::Find { dataset, guid }).boxed()
    }

    fn snapshot(&self, names: Vec<String>) -> Reached<'_, ()> {
        // One request, since they are taken at one moment.
        self.ask(Request::Snapshot { names }).boxed()
    }

    fn size(&self, spec: StreamSpec) -> Reached<'_, Option<u64>> {
        let stream = spec.into();
        self.ask(Request::Size { stream }).boxed()
    }

    fn send(&self, spec: StreamSpec) -> Reached<'_, ByteStream> {
        self.begin(spec).boxed()
    }

    fn receive(&self, spec: ReceiveSpec, stream: ByteStream) -> Reached<'_, ()> {
        self.take_in(spec, stream).boxed()
    }

    fn discard_interrupted<'a>(&'a self, dataset: &'a str) -> Reached<'a, ()> {
        let dataset = dataset.to_owned();
        self.ask(Request::DiscardInterrupted { dataset }).boxed()
    }

    fn bookmark(&self, pairs: Vec<(String, String)>) -> Reached<'_, ()> {
        self.each_part(pairs, |pairs| Request::Bookmark { pairs })
            .boxed()
    }

    fn destroy_bookmarks(&self, names: Vec<String>) -> Reached<'_, ()> {
        self.each_part(names, |names| Request::DestroyBookmarks { names })
            .boxed()
    }

    fn destroy_snapshots(&self, names: Vec<String>) -> Reached<'_, ()> {
        self.each_part(names, |names| Request::DestroySnapshots { names })
            .boxed()
    }

    fn rename_snapshot<'a>(
        &'a self,
        dataset: &'a str,
        from: &'a str,
        to: &'a str,
    ) -> Reached<'a, ()> {
        let [dataset, from, to] = [dataset, from, to].map(str::to_owned);
        self.ask(Request::RenameSnapshot { dataset, from, to })
            .boxed()
    }

    fn hold<'a>(&'a self, names: Vec<String>, tag: &'a str) -> Reached<'a, ()> {
        let request = |names| Request::Hold {
            names,
            tag: tag.to_owned(),
        };
        self.each_part(names, request).boxed()
    }

    fn release<'a>(&'a self, names: Vec<String>, tag: &'a str) -> Reached<'a, ()> {
        let request = |names| Request::Release {
            names,
            tag: tag.to_owned(),
        };
        self.each_part(names, request).boxed()
    }

    fn set<'a>(&'a self, dataset: &'a str, name: &'a str, value: &'a str) -> Reached<'a, ()> {
        let request = Request::Set {
            dataset: dataset.to_owned(),
            name: name.to_owned(),
            value: value.to_owned(),
        };
        self.ask(request).boxed()
    }

    fn rollback<'a>(
        &'a self,
        dataset: &'a str,
        snapshot: &'a str,
        newer: Vec<String>,
    ) -> Reached<'a, ()> {
        let request = Request::Rollback {
            dataset: dataset.to_owned(),
            snapshot: snapshot.to_owned(),
            newer,
        };
        self.ask(request).boxed()
    }
}

impl Switchover for PeerEndpoint {
    fn take_over<'a>(&'a self, root: &'a str, job: &'a str) -> Reached<'a, Vec<String>> {
        let request = Request::TakeOver {
            root: root.to_owned(),
            job: job.to_owned(),
        };
        self.ask(request).boxed()
    }

    fn is_in_use<'a>(&'a self, dataset: &'a str) -> Reached<'a, bool> {
        async move {
            let listed = self.list(dataset).await?.unwrap_or_default();
            Ok(listed.first().is_some_and(ReplicaDataset::is_in_use))
        }
        .boxed()
    }

    fn fence<'a>(&'a self, dataset: &'a str, fence: &'a Fence) -> Reached<'a, ()> {
        let request = Request::Fence {
            dataset: dataset.to_owned(),
            generation: fence.generation,
            job: fence.job.clone(),
        };
        self.ask(request).boxed()
    }

    fn check_fence<'a>(&'a self, dataset: &'a str, job: &'a str) -> Reached<'a, ()> {
        // Nothing is fenced for generation 0: a peer that allows it refuses since the dataset has at least that one.
        let request = Request::Fence {
            dataset: dataset.to_owned(),
            generation: 0,
            job: job.to_owned(),
        };
        async move {
            match self.ask(request).await {
                Ok(()) | Err(ReplicationError::Failed(_)) => Ok(()),
                Err(error) => Err(error),
            }
        }
        .boxed()
    }

    fn inherit<'a>(&'a self, dataset: &'a str, name: &'a str, received: bool) -> Reached<'a, ()> {
        let request = Request::Inherit {
            dataset: dataset.to_owned(),
            name: name.to_owned(),
            received,
        };
        self.ask(request).boxed()
    }

    fn clone_snapshot<'a>(
        &'a self,
        snapshot: &'a str,
        name: &'a str,
        mark: &'a str,
    ) -> Reached<'a, ()> {
        let request = Request::CloneSnapshot {
            snapshot: snapshot.to_owned(),
            name: name.to_owned(),
            mark: mark.to_owned(),
        };
        self.ask(request).boxed()
    }

    fn destroy<'a>(&'a self, dataset: &'a str) -> Reached<'a, ()> {
        let dataset = dataset.to_owned();
        self.ask(Request::Destroy { dataset }).boxed()
    }
}
