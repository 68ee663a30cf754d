//! Who wants to know what happened to a file system by another way than its own: mounts, whose kernel caches what it has
//! seen.
//!
//! A change is told after it was made, and whoever made it goes on when all watchers have done with it: what a kernel
//! shows then is not older.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use runtime::reply::ReplySender;
use zpl::FileId;

/// What happened to a file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Happened {
    /// A file has other content from a byte on, for so many bytes (`None`: to its end).
    Content(FileId, u64, Option<u64>),
    /// A file has other attributes.
    Attributes(FileId),
    /// A name of a directory stands for something else now, or for nothing.
    Name(FileId, Vec<u8>),
    /// Snapshots went, or have other names.
    Snapshots,
    /// Anything may be different: a rollback.
    Everything,
}

/// Something that happened, held until the watcher is done with it.
pub struct Notice {
    /// What.
    pub happened: Happened,
    done: Option<ReplySender<()>>,
}

impl Drop for Notice {
    fn drop(&mut self) {
        if let Some(done) = self.done.take() {
            done.send(());
        }
    }
}

/// The receiving end of a watch; it ends when dropped.
pub struct Watch(Receiver<Notice>);

impl Watch {
    /// Waits for the next notice on a thread of the caller's; `None` when none came for `patience`.
    ///
    /// # Errors
    /// `()` when the pool has gone and none will come.
    #[allow(
        clippy::result_unit_err,
        reason = "there is nothing to say about the end"
    )]
    pub fn next(&self, patience: Duration) -> Result<Option<Notice>, ()> {
        match self.0.recv_timeout(patience) {
            Ok(notice) => Ok(Some(notice)),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(()),
        }
    }
}

/// By a dataset's guid: watches, by their numbers.
type ByDataset = BTreeMap<u64, Vec<(u64, Sender<Notice>)>>;

/// The watches of one pool, and what else its handles share.
#[derive(Default)]
pub(crate) struct Watches {
    /// How many there are, so that a change nobody watches costs one look.
    count: AtomicUsize,
    next: AtomicU64,
    by_dataset: Mutex<ByDataset>,
    /// Whether names made and removed in `.zfs/snapshot` are snapshots made and destroyed.
    pub(crate) admin_snapshots: AtomicBool,
}

impl Watches {
    fn by_dataset(&self) -> MutexGuard<'_, ByDataset> {
        self.by_dataset
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a watch of the dataset with this guid; returns its number too, which is never 0.
    pub(crate) fn add(&self, guid: u64) -> (Watch, u64) {
        let (sender, receiver) = channel();
        let number = self.next.fetch_add(1, Ordering::Relaxed) + 1;
        let mut map = self.by_dataset();
        map.entry(guid).or_default().push((number, sender));
        self.count.fetch_add(1, Ordering::Release);
        (Watch(receiver), number)
    }

    /// Whether nobody watches anything.
    pub(crate) fn is_empty(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }

    /// Tells the watchers of a dataset (of all, without one) but `except`, and waits until they are done.
    pub(crate) async fn tell(&self, guid: Option<u64>, except: u64, happened: &[Happened]) {
        if self.is_empty() || happened.is_empty() {
            return;
        }
        let mut waiting = Vec::new();
        {
            let mut map = self.by_dataset();
            for (dataset, watchers) in map.iter_mut() {
                if guid.is_some_and(|guid| guid != *dataset) {
                    continue;
                }
                let before = watchers.len();
                watchers.retain(|(number, sender)| {
                    if *number == except {
                        return true;
                    }
                    happened.iter().all(|happened| {
                        let (done, reply) = runtime::reply();
                        let notice = Notice {
                            happened: happened.clone(),
                            done: Some(done),
                        };
                        let sent = sender.send(notice).is_ok();
                        if sent {
                            waiting.push(reply);
                        }
                        sent
                    })
                });
                self.count
                    .fetch_sub(before - watchers.len(), Ordering::Release);
            }
            map.retain(|_, watchers| !watchers.is_empty());
        }
        for reply in waiting {
            // One that ended meanwhile needs no waiting for.
            let _ = reply.await;
        }
    }
}
