//! A side that breaks off at any request: before it is carried out, or after, so that its answer is lost.

use std::sync::{Arc, Mutex};

use futures_util::FutureExt as _;

use super::super::*;
use super::Side;

/// What breaks off, at which of the requests to both sides.
#[derive(Clone, Copy, Debug)]
pub(super) struct Break {
    /// Requests that are answered before.
    pub(super) requests_left: u64,
    /// It is carried out, and the answer is lost.
    pub(super) is_after: bool,
    /// The process that runs the job ends; else the other side is gone.
    pub(super) is_killed: bool,
}

/// What is to break off, if anything is; both sides count.
pub(super) type Trouble = Arc<Mutex<Option<Break>>>;

#[derive(Clone)]
pub(super) struct TroubledSide {
    pub(super) side: Side,
    pub(super) trouble: Trouble,
}

impl TroubledSide {
    /// Counts a request; returns what breaks off now.
    fn count(&self) -> Option<Break> {
        let mut trouble = self.trouble.lock().expect("one thread");
        let due = trouble.as_mut()?;
        match due.requests_left.checked_sub(1) {
            Some(left) => {
                due.requests_left = left;
                None
            }
            None => trouble.take(),
        }
    }

    async fn broken(&self, how: Break) -> ReplicationError {
        if how.is_killed {
            std::future::pending::<()>().await;
        }
        self.side.model().reachable = false;
        ReplicationError::Unreachable {
            place: "the peer".to_owned(),
            why: "connection reset".to_owned(),
        }
    }

    fn through<'a, T: Send + 'a>(&'a self, request: Reached<'a, T>) -> Reached<'a, T> {
        async move {
            let how = self.count();
            if let Some(how) = how.filter(|how| !how.is_after) {
                return Err(self.broken(how).await);
            }
            let answer = request.await;
            match how {
                Some(how) => Err(self.broken(how).await),
                None => answer,
            }
        }
        .boxed()
    }
}

impl Endpoint for TroubledSide {
    fn list<'a>(&'a self, root: &'a str) -> Reached<'a, Option<Vec<ReplicaDataset>>> {
        self.through(self.side.list(root))
    }

    fn write_out(&self) -> Reached<'_, ()> {
        self.through(self.side.write_out())
    }

    fn unchanged_since(&self) -> Reached<'_, Option<u64>> {
        self.through(self.side.unchanged_since())
    }

    fn exists<'a>(&'a self, dataset: &'a str) -> Reached<'a, bool> {
        self.through(self.side.exists(dataset))
    }

    fn find<'a>(&'a self, dataset: &'a str, guid: u64) -> Reached<'a, Option<String>> {
        self.through(self.side.find(dataset, guid))
    }

    fn snapshot(&self, names: Vec<String>) -> Reached<'_, ()> {
        self.through(self.side.snapshot(names))
    }

    fn size(&self, spec: StreamSpec) -> Reached<'_, Option<u64>> {
        self.through(self.side.size(spec))
    }

    fn send(&self, spec: StreamSpec) -> Reached<'_, ByteStream> {
        self.through(self.side.send(spec))
    }

    fn receive(&self, spec: ReceiveSpec, stream: ByteStream) -> Reached<'_, ()> {
        self.through(self.side.receive(spec, stream))
    }

    fn discard_interrupted<'a>(&'a self, dataset: &'a str) -> Reached<'a, ()> {
        self.through(self.side.discard_interrupted(dataset))
    }

    fn bookmark(&self, pairs: Vec<(String, String)>) -> Reached<'_, ()> {
        self.through(self.side.bookmark(pairs))
    }

    fn destroy_bookmarks(&self, names: Vec<String>) -> Reached<'_, ()> {
        self.through(self.side.destroy_bookmarks(names))
    }

    fn destroy_snapshots(&self, names: Vec<String>) -> Reached<'_, ()> {
        self.through(self.side.destroy_snapshots(names))
    }

    fn rename_snapshot<'a>(
        &'a self,
        dataset: &'a str,
        from: &'a str,
        to: &'a str,
    ) -> Reached<'a, ()> {
        self.through(self.side.rename_snapshot(dataset, from, to))
    }

    fn hold<'a>(&'a self, names: Vec<String>, tag: &'a str) -> Reached<'a, ()> {
        self.through(self.side.hold(names, tag))
    }

    fn release<'a>(&'a self, names: Vec<String>, tag: &'a str) -> Reached<'a, ()> {
        self.through(self.side.release(names, tag))
    }

    fn set<'a>(&'a self, dataset: &'a str, name: &'a str, value: &'a str) -> Reached<'a, ()> {
        self.through(self.side.set(dataset, name, value))
    }

    fn rollback<'a>(
        &'a self,
        dataset: &'a str,
        snapshot: &'a str,
        newer: Vec<String>,
    ) -> Reached<'a, ()> {
        self.through(self.side.rollback(dataset, snapshot, newer))
    }
}

impl Switchover for TroubledSide {
    fn take_over<'a>(&'a self, root: &'a str, job: &'a str) -> Reached<'a, Vec<String>> {
        // It breaks off in the middle, too.
        take_over(self, root, job).boxed()
    }

    fn is_in_use<'a>(&'a self, dataset: &'a str) -> Reached<'a, bool> {
        self.through(self.side.is_in_use(dataset))
    }

    fn fence<'a>(&'a self, dataset: &'a str, fence: &'a Fence) -> Reached<'a, ()> {
        self.through(self.side.fence(dataset, fence))
    }

    fn inherit<'a>(&'a self, dataset: &'a str, name: &'a str, received: bool) -> Reached<'a, ()> {
        self.through(self.side.inherit(dataset, name, received))
    }

    fn clone_snapshot<'a>(
        &'a self,
        snapshot: &'a str,
        name: &'a str,
        mark: &'a str,
    ) -> Reached<'a, ()> {
        self.through(self.side.clone_snapshot(snapshot, name, mark))
    }

    fn destroy<'a>(&'a self, dataset: &'a str) -> Reached<'a, ()> {
        self.through(self.side.destroy(dataset))
    }
}
