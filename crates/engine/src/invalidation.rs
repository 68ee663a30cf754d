//! Invalidations of what the kernel caches of a mounted file system or of a volume's block device: changes made by other ways
//! than through the mount; of a volume, those of all its contents at once.
//!
//! An invalidation is sent after the change was made, and the request that made the change waits until all watches have
//! processed it: after its answer, no kernel shows what was before.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use runtime::reply::{Reply, ReplySender};
use zpl::{FileDelegations, FileId};

/// What a kernel has to drop from its caches of a file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Invalidation {
    /// The content of a file from a byte on, for so many bytes (`None`: to its end).
    Content(FileId, u64, Option<u64>),
    /// The attributes of a file.
    Attributes(FileId),
    /// A name in a directory.
    Name(FileId, Vec<u8>),
    /// The names in `.zfs/snapshot`: snapshots were destroyed or renamed.
    Snapshots,
    /// The attributes of the root directory, which counts `.zfs` among its links where it lists it.
    Root,
    /// Everything, after a rollback or a receive.
    Everything,
}

/// An invalidation to be processed. Dropping it lets the request that caused it go on.
pub struct InvalidationEvent {
    /// What is to be dropped.
    pub invalidation: Invalidation,
    done: Option<ReplySender<()>>,
}

impl Drop for InvalidationEvent {
    fn drop(&mut self) {
        if let Some(done) = self.done.take() {
            done.send(());
        }
    }
}

/// The receiving end of a watch; it ends when dropped.
pub struct Watch(Receiver<InvalidationEvent>);

impl Watch {
    /// Waits for the next event on the caller's thread; `None` when none came within `timeout`.
    ///
    /// # Errors
    /// `()` when the pool has gone and none will come.
    #[allow(
        clippy::result_unit_err,
        reason = "there is nothing to say about the end"
    )]
    pub fn next(&self, timeout: Duration) -> Result<Option<InvalidationEvent>, ()> {
        match self.0.recv_timeout(timeout) {
            Ok(event) => Ok(Some(event)),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(()),
        }
    }
}

/// What a watch is told of. Asked by any thread, while others wait: it must not.
type Concerns = Box<dyn Fn(&Invalidation) -> bool + Send + Sync>;

/// The sending end of a watch.
struct Watcher {
    number: u64,
    sender: Sender<InvalidationEvent>,
    /// `None`: all.
    concerns: Option<Concerns>,
}

impl Watcher {
    /// Sends an event, unless the watch is not told of it; false when the watch was dropped.
    fn send(&self, invalidation: &Invalidation, waiting: &mut Vec<Reply<()>>) -> bool {
        let concerns = self.concerns.as_ref();
        if concerns.is_some_and(|concerns| !concerns(invalidation)) {
            return true;
        }
        let (done, reply) = runtime::reply();
        let event = InvalidationEvent {
            invalidation: invalidation.clone(),
            done: Some(done),
        };
        let sent = self.sender.send(event).is_ok();
        if sent {
            waiting.push(reply);
        }
        sent
    }
}

/// By a dataset's guid.
type ByDataset = BTreeMap<u64, Vec<Watcher>>;

/// The watches of one pool, and the settings its handles share.
#[derive(Default)]
pub(crate) struct Watches {
    /// How many there are: without any, a change costs one load of this.
    count: AtomicUsize,
    next: AtomicU64,
    by_dataset: Mutex<ByDataset>,
    /// Clients that read files from their own caches.
    pub(crate) delegations: Arc<FileDelegations>,
    /// Whether names made and removed in `.zfs/snapshot` are snapshots made and destroyed.
    pub(crate) admin_snapshots: AtomicBool,
}

impl Watches {
    /// Returns the watches of a pool, none yet, beside its delegated files.
    pub(crate) fn new(delegations: Arc<FileDelegations>) -> Self {
        Self {
            delegations,
            ..Self::default()
        }
    }

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
        map.entry(guid).or_default().push(Watcher {
            number,
            sender,
            concerns: None,
        });
        self.count.fetch_add(1, Ordering::Release);
        (Watch(receiver), number)
    }

    /// Has the watch of that number told only of what concerns it.
    pub(crate) fn limit(&self, guid: u64, number: u64, concerns: Concerns) {
        let mut map = self.by_dataset();
        let mut watchers = map.get_mut(&guid).into_iter().flatten();
        if let Some(watcher) = watchers.find(|watcher| watcher.number == number) {
            watcher.concerns = Some(concerns);
        }
    }

    /// Whether there is no watch of any dataset.
    pub(crate) fn is_empty(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }

    /// Sends invalidations to the watches of a dataset (`None`: of all datasets) but the one numbered `except`, and waits until
    /// they are processed.
    pub(crate) async fn notify(
        &self,
        guid: Option<u64>,
        except: u64,
        invalidations: &[Invalidation],
    ) {
        if let (Some(guid), true) = (guid, invalidations.contains(&Invalidation::Everything)) {
            self.delegations.revoke_all(guid);
        }
        if self.is_empty() || invalidations.is_empty() {
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
                watchers.retain(|watcher| {
                    let mut all = invalidations.iter();
                    watcher.number == except || all.all(|one| watcher.send(one, &mut waiting))
                });
                self.count
                    .fetch_sub(before - watchers.len(), Ordering::Release);
            }
            map.retain(|_, watchers| !watchers.is_empty());
        }
        for reply in waiting {
            // An error says that the watch was dropped: its kernel caches nothing any more.
            let _ = reply.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future as _;
    use std::pin::pin;
    use std::task::{Context, Waker};

    use super::*;

    #[test]
    fn a_watch_is_told_of_what_concerns_it_and_nobody_waits_for_the_rest() {
        let watches = Watches::default();
        let (watch, number) = watches.add(7);
        watches.limit(7, number, Box::new(|what| *what == Invalidation::Snapshots));
        let mut context = Context::from_waker(Waker::noop());
        let root = [Invalidation::Root];
        let mut of_root = pin!(watches.notify(Some(7), 0, &root));
        assert!(of_root.as_mut().poll(&mut context).is_ready());
        assert!(matches!(watch.next(Duration::ZERO), Ok(None)));
        let both = [Invalidation::Root, Invalidation::Snapshots];
        let mut of_both = pin!(watches.notify(Some(7), 0, &both));
        assert!(of_both.as_mut().poll(&mut context).is_pending());
        let event = watch.next(Duration::ZERO).ok().flatten().expect("an event");
        assert_eq!(event.invalidation, Invalidation::Snapshots);
        drop(event);
        assert!(of_both.as_mut().poll(&mut context).is_ready());
        let mut by_itself = pin!(watches.notify(Some(7), number, &both));
        assert!(by_itself.as_mut().poll(&mut context).is_ready());
    }
}
