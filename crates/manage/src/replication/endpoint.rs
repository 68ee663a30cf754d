//! What a job asks of either side, wherever that is.

use engine::DatasetKind;
use engine::stream::StreamChunk;
use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, ready};
use futures_util::stream::BoxStream;

use super::{Fence, ReplicaDataset, ReplicationError, StreamFrom};

/// An answer of a side.
pub type Reached<'a, T> = BoxFuture<'a, Result<T, ReplicationError>>;

/// A stream on its way; an error ends it.
pub type ByteStream = BoxStream<'static, Result<StreamChunk, ReplicationError>>;

/// A stream to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamSpec {
    /// Full name of the source's dataset.
    pub dataset: String,
    /// Name of the snapshot, without the dataset's.
    pub snapshot: String,
    /// What it counts from; `None` for a full stream.
    pub from: Option<StreamFrom>,
    /// Resumes an interrupted stream.
    pub token: Option<String>,
    /// Properties go along.
    pub properties: bool,
    /// Blocks go as they are stored, encrypted ones too.
    pub raw: bool,
}

/// Where a stream goes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReceiveSpec {
    /// Full name of the target's dataset.
    pub dataset: String,
    /// Properties that are set there.
    pub set: Vec<(String, String)>,
    /// Properties of the stream that are not put in force.
    pub excluded: Vec<String>,
    /// What is sent, for a side that keeps the stream as it is; not known at the other end of a connection.
    pub sent: Option<SentSnapshot>,
}

/// A snapshot that a stream brings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SentSnapshot {
    /// Full name of the source's dataset.
    pub source: String,
    /// Its guid.
    pub source_guid: u64,
    /// File system or volume.
    pub kind: DatasetKind,
    /// Name of the snapshot, without the dataset's.
    pub snapshot: String,
    /// Guid of the snapshot.
    pub guid: u64,
}

/// One side of a job. Names are full names; a list of them is one request, which leaves out what is not there any more.
pub trait Endpoint: Send + Sync {
    /// Lists a dataset and those below it, parents first; `None` when it does not exist.
    fn list<'a>(&'a self, root: &'a str) -> Reached<'a, Option<Vec<ReplicaDataset>>>;

    /// Writes out what was accepted, so that [`Endpoint::list`] counts it. A side that cannot be asked counts it some seconds later.
    fn write_out(&self) -> Reached<'_, ()>;

    /// Carries out what the intent logs of a dataset and those below it hold, so that [`Endpoint::list`] counts it: what was acknowledged before
    /// a crash. A side that cannot be asked does it when the datasets are opened.
    fn replay_logs<'a>(&'a self, _root: &'a str) -> Reached<'a, ()> {
        ready(Ok(())).boxed()
    }

    /// Returns a number that stays the same as long as nothing in the pool changes; `None` while something waits to be written, and where it
    /// cannot be known.
    fn unchanged_since(&self) -> Reached<'_, Option<u64>>;

    /// Whether a dataset exists.
    fn exists<'a>(&'a self, dataset: &'a str) -> Reached<'a, bool>;

    /// Finds a dataset of the same pool by its guid.
    fn find<'a>(&'a self, dataset: &'a str, guid: u64) -> Reached<'a, Option<String>>;

    /// Takes snapshots at one moment.
    fn snapshot(&self, names: Vec<String>) -> Reached<'_, ()>;

    /// Estimates the bytes of a stream; `None` where that cannot be known.
    fn size(&self, spec: StreamSpec) -> Reached<'_, Option<u64>>;

    /// Begins a stream.
    fn send(&self, spec: StreamSpec) -> Reached<'_, ByteStream>;

    /// Receives a stream. When it breaks off, what was received of it is kept.
    fn receive(&self, spec: ReceiveSpec, stream: ByteStream) -> Reached<'_, ()>;

    /// Gives up what an interrupted receive left.
    fn discard_interrupted<'a>(&'a self, dataset: &'a str) -> Reached<'a, ()>;

    /// Makes bookmarks of snapshots: pairs of bookmark and snapshot.
    fn bookmark(&self, pairs: Vec<(String, String)>) -> Reached<'_, ()>;

    /// Destroys bookmarks.
    fn destroy_bookmarks(&self, names: Vec<String>) -> Reached<'_, ()>;

    /// Destroys snapshots; those with holds or clones stay.
    fn destroy_snapshots(&self, names: Vec<String>) -> Reached<'_, ()>;

    /// Gives a snapshot of a dataset another name.
    fn rename_snapshot<'a>(
        &'a self,
        dataset: &'a str,
        from: &'a str,
        to: &'a str,
    ) -> Reached<'a, ()>;

    /// Holds snapshots; a hold that is there stays.
    fn hold<'a>(&'a self, names: Vec<String>, tag: &'a str) -> Reached<'a, ()>;

    /// Releases holds; one that is not there is none.
    fn release<'a>(&'a self, names: Vec<String>, tag: &'a str) -> Reached<'a, ()>;

    /// Sets a property of a dataset.
    fn set<'a>(&'a self, dataset: &'a str, name: &'a str, value: &'a str) -> Reached<'a, ()>;

    /// Gives up what is newer than a snapshot: the snapshots `newer`, the newest last, and what was written.
    fn rollback<'a>(
        &'a self,
        dataset: &'a str,
        snapshot: &'a str,
        newer: Vec<String>,
    ) -> Reached<'a, ()>;
}

/// What turning a job round asks for besides.
pub trait Switchover: Endpoint {
    /// Puts a copy and those below it that the same job sent in use in place of their sources: see [`take_over`](super::take_over). Returns them.
    fn take_over<'a>(&'a self, root: &'a str, job: &'a str) -> Reached<'a, Vec<String>>;

    /// Whether a dataset is a copy that is in use in place of its source; one that does not exist is none.
    fn is_in_use<'a>(&'a self, dataset: &'a str) -> Reached<'a, bool>;

    /// Fences a dataset: it is read-only, and neither shared nor shown to initiators.
    fn fence<'a>(&'a self, dataset: &'a str, fence: &'a Fence) -> Reached<'a, ()>;

    /// Checks that this side lets a job fence a dataset; nothing is changed. Where no leave is needed nothing is asked.
    fn check_fence<'a>(&'a self, _dataset: &'a str, _job: &'a str) -> Reached<'a, ()> {
        Box::pin(std::future::ready(Ok(())))
    }

    /// Takes a local value of a property away; with `received`, the received one comes in force.
    fn inherit<'a>(&'a self, dataset: &'a str, name: &'a str, received: bool) -> Reached<'a, ()>;

    /// Makes a clone that carries a mark.
    fn clone_snapshot<'a>(
        &'a self,
        snapshot: &'a str,
        name: &'a str,
        mark: &'a str,
    ) -> Reached<'a, ()>;

    /// Destroys a dataset that nothing lies in.
    fn destroy<'a>(&'a self, dataset: &'a str) -> Reached<'a, ()>;
}
