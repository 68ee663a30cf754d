//! The end of a connection that is asked: requests of a peer, checked against what it was invited to, and carried out on the pools here.
//!
//! Guarantees: who is no peer can redeem an invitation and nothing else; a peer that is removed, or given other rights, is cut off at once, in
//! the middle of a stream too; what a connection can make this side hold is bounded, and a connection that says nothing ends.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::{ReadHalf, WriteHalf};
use tokio::sync::{Semaphore, oneshot};
use tokio::time::timeout;

use super::book::PeerBook;
use super::client::{BoxedLink, HELLO_BYTES_MAX, HELLO_TIMEOUT};
use super::definition::Peer;
use super::frame::{FrameError, FrameKind, FrameReader, FrameWriter};
use super::identity::Fingerprint;
use super::message::{Fault, Hello, Paired, Request, WireDataset, WireReceive, WireStream};
use super::rights::{Allowed, check, excluded};
use super::transfer::{ALIVE_EVERY, STALL_MAX, receive_stream, send_stream};
use crate::replication::{Fence, ReceiveSpec, ReplicaDataset, ReplicationError, Switchover};
use crate::secret::{hex, unhex};

/// How long a connection may be without a request.
const IDLE_TIMEOUT: Duration = Duration::from_secs(120);
/// Bytes of a request, at most.
const REQUEST_BYTES_MAX: usize = 8 << 20;
/// Streams at once, of all peers.
const STREAMS_MAX: usize = 32;
/// How long what was on its way is taken, after a receive was refused: else the refusal would be lost with the connection.
const DRAIN_MAX: Duration = Duration::from_secs(20);

/// What the server asks of the appliance.
pub trait Host: Send + Sync {
    /// Returns the side in a pool.
    fn side<'a>(
        &'a self,
        pool: &'a str,
    ) -> BoxFuture<'a, Result<Box<dyn Switchover>, ReplicationError>>;

    /// Notes that datasets came, changed or went.
    fn changed(&self) -> BoxFuture<'_, ()>;

    /// Mounts and shares datasets that a peer put in use.
    fn put_in_use<'a>(&'a self, peer: &'a str, datasets: &'a [String]) -> BoxFuture<'a, ()>;

    /// Writes down what became of a peer.
    fn note(&self, peer: &str, from: IpAddr, event: &str);

    /// Seconds since 1970.
    fn now(&self) -> u64;
}

/// Who connected.
#[derive(Clone, Copy, Debug)]
pub struct Visitor {
    /// The certificate that it has shown, and has the key of.
    pub certificate: Fingerprint,
    /// From where.
    pub address: IpAddr,
}

/// See the module.
pub struct PeerServer {
    book: Arc<PeerBook>,
    host: Box<dyn Host>,
    /// The certificate of this appliance.
    own: Fingerprint,
    streams: Semaphore,
}

/// A connection on which requests come.
struct Served {
    /// With the receive that is under way, while one is.
    frames: Option<FrameReader<ReadHalf<BoxedLink>>>,
    to: FrameWriter<WriteHalf<BoxedLink>>,
}

impl Served {
    async fn message<T: DeserializeOwned>(&mut self, bytes_max: usize) -> Result<T, FrameError> {
        let frames = self.frames.as_mut().ok_or(FrameError::Ended)?;
        frames.message(bytes_max).await
    }

    async fn answer<T: Serialize>(
        &mut self,
        answer: &Result<T, ReplicationError>,
    ) -> Result<(), FrameError> {
        let answer = answer.as_ref().map_err(|error| Fault::from(error.clone()));
        within(STALL_MAX, self.to.message(&answer)).await
    }

    /// Waits for what is done, and says again and again that it is being done.
    async fn work<T>(&mut self, work: impl Future<Output = T>) -> Result<T, FrameError> {
        let mut work = std::pin::pin!(work);
        loop {
            match timeout(ALIVE_EVERY, &mut work).await {
                Ok(done) => return Ok(done),
                Err(_) => within(STALL_MAX, self.to.send(FrameKind::Alive, &[])).await?,
            }
        }
    }
}

async fn within<T>(
    most: Duration,
    work: impl Future<Output = Result<T, FrameError>>,
) -> Result<T, FrameError> {
    let done = timeout(most, work).await;
    done.unwrap_or_else(|_| Err(FrameError::Io(std::io::ErrorKind::TimedOut.into())))
}

fn denied(what: String) -> ReplicationError {
    ReplicationError::Denied {
        peer: String::new(),
        what,
    }
}

impl PeerServer {
    /// Returns what answers the peers of an appliance.
    #[must_use]
    pub fn new(book: Arc<PeerBook>, host: Box<dyn Host>, own: Fingerprint) -> Arc<Self> {
        Arc::new(Self {
            book,
            host,
            own,
            streams: Semaphore::new(STREAMS_MAX),
        })
    }

    /// Answers on a connection until it ends.
    ///
    /// # Errors
    /// Why it ended, unless the other side ended it between two requests.
    pub async fn serve(&self, link: BoxedLink, visitor: Visitor) -> Result<(), FrameError> {
        let (from, to) = tokio::io::split(link);
        let mut served = Served {
            frames: Some(FrameReader::new(from)),
            to: FrameWriter::new(to),
        };
        let greet = async {
            let hello: Hello = served.message(HELLO_BYTES_MAX).await?;
            served.to.message(&Hello::own()).await?;
            Ok(hello)
        };
        let hello = within(HELLO_TIMEOUT, greet).await?;
        // The other side says what is to be done.
        if hello.problem().is_some() {
            return Ok(());
        }
        if self.book.of(&visitor.certificate).is_none() {
            return self.stranger(&mut served, visitor).await;
        }
        tokio::select! {
            ended = self.requests(&mut served, visitor) => ended,
            () = self.rights_change(&visitor.certificate) => Ok(()),
        }
    }

    /// Waits until a peer is none any more, or may do something else.
    async fn rights_change(&self, certificate: &Fingerprint) {
        let mut peers = self.book.watch();
        let before = self.book.of(certificate);
        while peers.changed().await.is_ok() {
            if self.book.of(certificate) != before {
                return;
            }
        }
    }

    /// Answers who is no peer yet.
    async fn stranger(&self, served: &mut Served, visitor: Visitor) -> Result<(), FrameError> {
        let request = within(HELLO_TIMEOUT, served.message(HELLO_BYTES_MAX)).await?;
        let answer = match request {
            Request::Pair { id, proof, name } => self.pair(visitor, &id, &proof, &name),
            _ => Err(denied(
                "it is no peer (any more): 'sanbox peer invite' there makes a code".to_owned(),
            )),
        };
        served.answer(&answer).await?;
        served.to.shutdown().await;
        Ok(())
    }

    fn pair(
        &self,
        visitor: Visitor,
        id: &str,
        proof: &str,
        calls_itself: &str,
    ) -> Result<Paired, ReplicationError> {
        let proof = unhex(proof).unwrap_or_default();
        let redeemed = self.book.redeem(
            visitor.address,
            (id, &proof, calls_itself),
            (&self.own, &visitor.certificate),
            self.host.now(),
        );
        let (peer, proof) = redeemed.map_err(|error| {
            self.host
                .note("", visitor.address, &format!("pairing refused: {error}"));
            denied(error.to_string())
        })?;
        let event = format!("paired with certificate {}", visitor.certificate);
        self.host.note(&peer.name, visitor.address, &event);
        Ok(Paired {
            proof: hex(&proof),
            name: peer.name,
            datasets: peer.datasets,
            push: peer.push,
            pull: peer.pull,
            failover: peer.failover,
        })
    }

    async fn requests(&self, served: &mut Served, visitor: Visitor) -> Result<(), FrameError> {
        loop {
            let request = within(IDLE_TIMEOUT, served.message(REQUEST_BYTES_MAX)).await;
            let request = match request {
                Ok(request) => request,
                // Between two requests.
                Err(FrameError::Ended) => return Ok(()),
                Err(error) => return Err(error),
            };
            let Some(peer) = self.book.of(&visitor.certificate) else {
                return Ok(());
            };
            let allowed = match check(&peer, &request) {
                Ok(allowed) => allowed,
                Err(what) => {
                    served.answer::<()>(&Err(denied(what))).await?;
                    continue;
                }
            };
            if !self.carry_out(served, &peer, request, allowed).await? {
                return Ok(());
            }
        }
    }

    /// Carries out a request and answers it. Returns false when the connection is of no further use.
    async fn carry_out(
        &self,
        served: &mut Served,
        peer: &Peer,
        request: Request,
        allowed: Allowed,
    ) -> Result<bool, FrameError> {
        let side = served.work(self.host.side(&allowed.pool)).await?;
        let side = match side {
            Ok(side) => side,
            Err(error) => {
                served.answer::<()>(&Err(error)).await?;
                return Ok(true);
            }
        };
        let provable = served.work(prove(&*side, &allowed)).await?;
        if let Err(error) = provable {
            served.answer::<()>(&Err(error)).await?;
            return Ok(true);
        }
        match request {
            Request::Send { stream } => return self.send(served, &*side, stream).await,
            Request::Receive { into } => return self.receive(served, &*side, into).await,
            Request::List { root } => {
                let listed = served.work(side.list(&root)).await?;
                let listed = listed.map(|all| {
                    all.map(|all| all.into_iter().map(WireDataset::from).collect::<Vec<_>>())
                });
                served.answer(&listed).await?;
            }
            Request::UnchangedSince { .. } => {
                let since = served.work(side.unchanged_since()).await?;
                served.answer(&since).await?;
            }
            Request::Exists { dataset } => {
                let exists = served.work(side.exists(&dataset)).await?;
                served.answer(&exists).await?;
            }
            Request::Find { dataset, guid } => {
                let found = served.work(side.find(&dataset, guid)).await?;
                // All of the pool was looked at.
                let found = found.map(|found| found.filter(|name| peer.reaches(name)));
                served.answer(&found).await?;
            }
            Request::Size { stream } => {
                let size = served.work(side.size(stream.into())).await?;
                served.answer(&size).await?;
            }
            Request::TakeOver { root, job } => {
                return self.take_over(served, peer, &*side, (&root, &job)).await;
            }
            change => {
                let changes_datasets = matches!(
                    change,
                    Request::Set { .. }
                        | Request::Rollback { .. }
                        | Request::Inherit { .. }
                        | Request::CloneSnapshot { .. }
                        | Request::Destroy { .. }
                        | Request::Fence { .. }
                );
                let done = served.work(change_of(&*side, change)).await?;
                if changes_datasets {
                    self.host.changed().await;
                }
                served.answer(&done).await?;
            }
        }
        Ok(true)
    }

    async fn take_over(
        &self,
        served: &mut Served,
        peer: &Peer,
        side: &dyn Switchover,
        (root, job): (&str, &str),
    ) -> Result<bool, FrameError> {
        let work = async {
            let datasets = side.take_over(root, job).await?;
            self.host.put_in_use(&peer.name, &datasets).await;
            Ok(datasets)
        };
        let taken: Result<Vec<String>, ReplicationError> = served.work(work).await?;
        served.answer(&taken).await?;
        Ok(true)
    }

    async fn send(
        &self,
        served: &mut Served,
        side: &dyn Switchover,
        stream: WireStream,
    ) -> Result<bool, FrameError> {
        let Ok(_turn) = self.streams.try_acquire() else {
            served.answer::<()>(&Err(too_many())).await?;
            return Ok(true);
        };
        let compression = match stream.compress.as_deref().map(str::parse).transpose() {
            Ok(given) => given.unwrap_or_default(),
            Err(()) => {
                let why = "it is asked for an unknown compression".to_owned();
                served
                    .answer::<()>(&Err(ReplicationError::Failed(why)))
                    .await?;
                return Ok(true);
            }
        };
        let begun = served.work(side.send(stream.into())).await?;
        let (begun, bytes) = match begun {
            Ok(bytes) => (Ok(()), Some(bytes)),
            Err(error) => (Err(error), None),
        };
        served.answer(&begun).await?;
        let Some(bytes) = bytes else {
            return Ok(true);
        };
        match send_stream(&mut served.to, bytes, compression).await? {
            Ok(()) => Ok(true),
            Err(error) => {
                within(STALL_MAX, served.to.message(&Fault::from(error))).await?;
                Ok(true)
            }
        }
    }

    async fn receive(
        &self,
        served: &mut Served,
        side: &dyn Switchover,
        into: WireReceive,
    ) -> Result<bool, FrameError> {
        let Ok(_turn) = self.streams.try_acquire() else {
            served.answer::<()>(&Err(too_many())).await?;
            return Ok(true);
        };
        let spec = ReceiveSpec {
            excluded: excluded(&into),
            ..ReceiveSpec::from(into)
        };
        let dataset = spec.dataset.clone();
        served.answer(&Ok(())).await?;
        let (over, left) = oneshot::channel();
        let Some(frames) = served.frames.take() else {
            return Ok(false);
        };
        let bytes = receive_stream(
            frames,
            dataset.clone(),
            |error| ReplicationError::Failed(error.to_string()),
            |fault| fault.of_peer("sender"),
            move |frames, is_whole| drop(over.send((frames, is_whole))),
        );
        let mut received = served.work(side.receive(spec, bytes)).await?;
        let Ok((mut frames, is_whole)) = left.await else {
            return Ok(false);
        };
        if matches!(received, Err(ReplicationError::Damaged { .. })) {
            // What came before may be damaged, too.
            let discarded = served.work(side.discard_interrupted(&dataset)).await?;
            received = discarded.and(received);
        }
        self.host.changed().await;
        served.answer(&received).await?;
        if is_whole {
            served.frames = Some(frames);
            return Ok(true);
        }
        let drain = async { while let Ok(Some(_)) = frames.next().await {} };
        let _ = timeout(DRAIN_MAX, drain).await;
        Ok(false)
    }
}

fn too_many() -> ReplicationError {
    ReplicationError::Failed(format!(
        "it sends and receives {STREAMS_MAX} streams, which is the most at once; it is tried again"
    ))
}

/// Carries out what changes something and answers nothing.
async fn change_of(side: &dyn Switchover, change: Request) -> Result<(), ReplicationError> {
    match change {
        Request::WriteOut { .. } => side.write_out().await,
        Request::Snapshot { names } => side.snapshot(names).await,
        Request::DiscardInterrupted { dataset } => side.discard_interrupted(&dataset).await,
        Request::Bookmark { pairs } => side.bookmark(pairs).await,
        Request::DestroyBookmarks { names } => side.destroy_bookmarks(names).await,
        Request::DestroySnapshots { names } => side.destroy_snapshots(names).await,
        Request::RenameSnapshot { dataset, from, to } => {
            side.rename_snapshot(&dataset, &from, &to).await
        }
        Request::Hold { names, tag } => side.hold(names, &tag).await,
        Request::Release { names, tag } => side.release(names, &tag).await,
        Request::Set {
            dataset,
            name,
            value,
        } => side.set(&dataset, &name, &value).await,
        Request::Rollback {
            dataset,
            snapshot,
            newer,
        } => side.rollback(&dataset, &snapshot, newer).await,
        Request::Inherit {
            dataset,
            name,
            received,
        } => side.inherit(&dataset, &name, received).await,
        Request::CloneSnapshot {
            snapshot,
            name,
            mark,
        } => side.clone_snapshot(&snapshot, &name, &mark).await,
        Request::Destroy { dataset } => side.destroy(&dataset).await,
        Request::ReplayLogs { root } => side.replay_logs(&root).await,
        Request::Fence {
            dataset,
            generation,
            job,
        } => side.fence(&dataset, &Fence { generation, job }).await,
        Request::Pair { .. }
        | Request::List { .. }
        | Request::UnchangedSince { .. }
        | Request::Exists { .. }
        | Request::Find { .. }
        | Request::Size { .. }
        | Request::Send { .. }
        | Request::Receive { .. }
        | Request::TakeOver { .. } => Err(denied("it changes nothing".to_owned())),
    }
}

/// Checks what only the pool knows: that snapshots to be destroyed were sent by a job, and that a dataset to be destroyed is a clone of a test.
async fn prove(side: &dyn Switchover, allowed: &Allowed) -> Result<(), ReplicationError> {
    let mut known: Vec<ReplicaDataset> = Vec::new();
    for (dataset, snapshot) in &allowed.sent {
        if known.first().is_none_or(|first| first.name != *dataset) {
            known = side.list(dataset).await?.unwrap_or_default();
        }
        let Some(copy) = known.first() else {
            continue;
        };
        let point = copy.snapshots.iter().find(|point| point.name == *snapshot);
        let is_sent = |txg: u64| {
            copy.mark
                .as_ref()
                .is_some_and(|mark| txg > mark.adopted_txg)
        };
        if point.is_some_and(|point| !is_sent(point.create_txg)) {
            return Err(denied(format!("'{dataset}@{snapshot}' was sent by no job")));
        }
    }
    if let Some(dataset) = &allowed.changed
        && side.is_in_use(dataset).await?
    {
        return Err(denied(format!(
            "'{dataset}' is in use in place of its source ('sanbox replication failback' of the job that sent it turns that round)"
        )));
    }
    if let Some(dataset) = &allowed.test_clone {
        let listed = side.list(dataset).await?.unwrap_or_default();
        let is_clone = |dataset: &ReplicaDataset| {
            dataset
                .mark
                .as_ref()
                .is_some_and(|mark| mark.source_guid == 0)
        };
        if listed.first().is_some_and(|dataset| !is_clone(dataset)) {
            return Err(denied(format!("'{dataset}' is no clone of a test")));
        }
    }
    Ok(())
}
