//! The mailbox into a pool's thread, and the room behind it where requests run.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use runtime::mailbox::{Receiver, Sender, TrySendError};
use runtime::reply::ReplySender;
use runtime::sync::{Permit, Semaphore};
use runtime::{Handle, Turns};
use zpl::{Fs, FsError, FsOptions, ReclaimGrace};
use zvol::{Volume, VolumeOptions};

use crate::EngineError;
use crate::fast_path::FastPath;
use crate::invalidation::Watches;
use crate::rotations::Rotations;
use crate::statistics::{
    Client, DatasetStatistics, PoolStatistics, Replays, RequestStatistics, TuningChange,
};

/// Requests under way at once in one pool; more wait in the mailbox.
///
/// A request that waits for stable storage sleeps through a whole transaction group, so this must
/// be well above the number of clients times the requests each keeps in flight.
const RUNNING_MAX: usize = 4096;

/// Requests accepted and not yet looked at; beyond it senders wait.
pub(crate) const MAILBOX_BOUND: usize = 1024;

/// Snapshots kept open without requests; each has its tables and znodes in memory.
const IDLE_SNAPSHOTS_MAX: usize = 64;

/// How long a suspended pool may recover when the process is to end.
const SUSPENDED_GRACE: Duration = Duration::from_secs(3);
/// How long a request waits for a dataset that pauses before it is refused.
const PAUSE_MAX: Duration = Duration::from_secs(20);
/// How often it looks.
const LOOK_AT_PAUSE_EVERY: Duration = Duration::from_millis(5);
/// How often the end of a process looks whether a pool is suspended.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// How a pool leaves the engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    /// Everything is written out and the disks are let go, but the pool stays marked as in use by
    /// this host: the end of a process, not of the import.
    Close,
    /// `zpool export`: written out and marked as exported.
    Export {
        /// Command line for the pool's history, and the user that gave it.
        command: Option<(String, u32)>,
    },
    /// `zpool destroy`: marked as destroyed.
    Destroy {
        /// Command line for the pool's history, and the user that gave it.
        command: Option<(String, u32)>,
    },
    /// The disks are let go without writing anything, as a crash would: for a pool that cannot be
    /// written any more.
    Abandon,
}

impl Ending {
    fn command(&self) -> Option<(&str, u32)> {
        match self {
            Self::Export { command } | Self::Destroy { command } => command
                .as_ref()
                .map(|(command, uid)| (command.as_str(), *uid)),
            Self::Close | Self::Abandon => None,
        }
    }
}

/// A request to a pool or the engine, which is made when this is first waited for and ends with its answer.
///
/// A box of no known type, because the compiler would otherwise build all that can run on a pool's thread (the code of a
/// future is built where it is waited for) again in each program and test above.
pub type Request<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A request as it crosses to the pool's thread. It starts its own task there.
type Job = Box<dyn FnOnce(Rc<PoolContext>, Permit) + Send>;

/// What the mailbox carries.
pub(crate) enum Message {
    Job(Job),
    End(Ending, ReplySender<Result<(), EngineError>>),
}

/// The sending end of a pool's mailbox.
#[derive(Clone)]
pub(crate) struct PoolMailbox {
    sender: Sender<Message>,
    turns: Turns,
    watches: Arc<Watches>,
    fast_path: Arc<FastPath>,
}

impl fmt::Debug for PoolMailbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PoolMailbox")
    }
}

impl PoolMailbox {
    /// Whether both lead to one pool, as it is imported now.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.fast_path, &other.fast_path)
    }

    pub(crate) fn new(
        sender: Sender<Message>,
        turns: Turns,
        watches: Arc<Watches>,
        fast_path: Arc<FastPath>,
    ) -> Self {
        Self {
            sender,
            turns,
            watches,
            fast_path,
        }
    }

    /// What can be answered without the pool's thread.
    pub(crate) fn fast_path(&self) -> &FastPath {
        &self.fast_path
    }

    /// The watches of file systems and volumes of this pool.
    pub(crate) fn watches(&self) -> &Arc<Watches> {
        &self.watches
    }

    /// Runs `work` on the pool's thread, or on this one while that one sleeps, and returns its answer.
    ///
    /// # Errors
    /// Those of `work`; [`EngineError::PoolClosed`] when the pool is no longer imported.
    pub(crate) async fn run<T, F, Answer>(&self, work: F) -> Result<T, EngineError>
    where
        T: Send + 'static,
        F: FnOnce(Rc<PoolContext>) -> Answer + Send + 'static,
        Answer: Future<Output = Result<T, EngineError>> + 'static,
    {
        let (sender, reply) = runtime::reply();
        let job: Job = Box::new(move |context: Rc<PoolContext>, permit: Permit| {
            let handle = context.handle.clone();
            // Detached: a request runs to its end even if its handle no longer waits for the answer.
            drop(handle.spawn("request", async move {
                let answer = work(context).await;
                drop(permit);
                sender.send(answer);
            }));
        });
        let mut message = Some(Message::Job(job));
        self.turns.take(|| {
            let sent = message.take().map(|message| self.sender.try_send(message));
            if let Some(Err(TrySendError::Full(unsent) | TrySendError::Closed(unsent))) = sent {
                message = Some(unsent);
            }
        });
        if let Some(message) = message {
            let sent = self.sender.send(message).await;
            sent.map_err(|_| EngineError::PoolClosed)?;
        }
        let answer = reply.await;
        self.turns.note_end();
        answer.map_err(|_| EngineError::PoolClosed)?
    }

    /// Asks the pool's thread to end.
    ///
    /// # Errors
    /// Those of exporting; the pool then stays imported.
    pub(crate) async fn end(&self, ending: Ending) -> Result<(), EngineError> {
        let (sender, reply) = runtime::reply();
        self.sender
            .send(Message::End(ending, sender))
            .await
            .map_err(|_| EngineError::PoolClosed)?;
        reply.await.map_err(|_| EngineError::PoolClosed)?
    }
}

/// Where requests run: one pool and the file systems and volumes opened in it, on one thread.
pub(crate) struct PoolContext {
    pub(crate) handle: Handle,
    pub(crate) pool: pool::Pool,
    pub(crate) fast_path: Arc<FastPath>,
    pub(crate) replays: Replays,
    open: RefCell<BTreeMap<u64, Rc<OpenDataset>>>,
    /// Datasets that are about to go: not to be opened again.
    pub(crate) leaving: RefCell<BTreeSet<u64>>,
    /// Datasets whose requests wait for a short time.
    paused: RefCell<BTreeSet<u64>>,
    /// Rotations of keys that are worked on.
    pub(crate) rotations: Rotations,
    /// Serialises opening, so that a dataset is never opened twice.
    opening: runtime::sync::Mutex<()>,
    running: Semaphore,
    /// Changes of datasets: shared by those of root, exclusive for those that were checked against delegated permissions.
    pub(crate) changing: runtime::sync::RwLock<()>,
    /// Counts uses of datasets.
    uses: Cell<u64>,
}

/// An open dataset, kept while the pool is imported and the dataset exists.
struct OpenDataset {
    content: Content,
    guid: u64,
    users: Cell<usize>,
    /// When it was used last, by [`PoolContext::uses`].
    used: Cell<u64>,
    idle: runtime::sync::Event,
    closing: Cell<bool>,
    requests: RequestStatistics,
}

/// What a dataset holds.
enum Content {
    Fs(Fs),
    Volume(Volume),
}

impl OpenDataset {
    fn is_idle_snapshot(&self) -> bool {
        self.users.get() == 0
            && !self.closing.get()
            && matches!(&self.content, Content::Fs(fs) if fs.is_snapshot() && !fs.is_held())
    }
}

impl Content {
    /// The dataset, unless it is a snapshot.
    fn dataset(&self) -> Option<&dsl::Dataset> {
        match self {
            Self::Fs(fs) => fs.dataset(),
            Self::Volume(volume) => Some(volume.dataset()),
        }
    }

    async fn close(&self) -> Result<(), EngineError> {
        match self {
            Self::Fs(fs) => Ok(fs.close().await?),
            Self::Volume(volume) => Ok(volume.close().await?),
        }
    }
}

/// The use of an open dataset by one request.
pub(crate) struct Lease(Rc<OpenDataset>);

impl Lease {
    /// The file system, if it is one.
    pub(crate) fn fs(&self) -> Result<&Fs, FsError> {
        match &self.0.content {
            Content::Fs(fs) => Ok(fs),
            Content::Volume(_) => Err(FsError::Stale),
        }
    }

    /// The volume, if it is one.
    pub(crate) fn volume(&self) -> Result<&Volume, zvol::VolumeError> {
        match &self.0.content {
            Content::Volume(volume) => Ok(volume),
            Content::Fs(_) => Err(zvol::VolumeError::NotSupported),
        }
    }

    /// Does the work of a client's request and notes where its time goes.
    pub(crate) fn timed<F: Future>(
        &self,
        handle: &Handle,
        client: Client,
        work: F,
    ) -> impl Future<Output = F::Output> {
        self.0.requests.timed(handle, client, work)
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let users = self.0.users.get();
        assert!(users > 0, "a lease of a dataset without users");
        self.0.users.set(users - 1);
        if self.0.users.get() == 0 {
            self.0.idle.notify_all();
        }
    }
}

impl PoolContext {
    /// Collects the statistics of the pool.
    pub(crate) fn statistics(&self) -> PoolStatistics {
        let (cache, clock) = (self.pool.cache(), self.pool.clock());
        PoolStatistics {
            cache: cache.stats(),
            l2: cache.l2_stats(),
            devices: cache.devices(),
            l2_tuning: cache.l2_tuning(),
            datasets: self.dataset_statistics(),
            dirty_bytes: clock.dirty_bytes_total(),
            dirty_bytes_max: clock.dirty_bytes_max(),
            open_txg: clock.open_txg().0,
            synced_txg: clock.last_synced().0,
            transactions: clock.counters(),
        }
    }

    /// Changes limits of the pool.
    pub(crate) fn tune(&self, change: TuningChange) {
        let cache = self.pool.cache();
        if let Some(bytes) = change.cache_bytes {
            cache.set_limit(bytes);
        }
        if let Some(bytes) = change.pressed_bytes {
            cache.press(bytes);
        }
        if let Some(tuning) = change.l2 {
            cache.set_l2_tuning(tuning);
        }
        if let Some(paused) = change.removal_paused {
            self.pool.pause_removal(paused);
        }
    }
}

impl PoolContext {
    pub(crate) fn new(handle: Handle, pool: pool::Pool, reclaims: Arc<ReclaimGrace>) -> Rc<Self> {
        let synced = pool.clock().last_synced_atomic();
        let fast_path = Arc::new(FastPath::new(synced, reclaims));
        Rc::new(Self {
            handle,
            pool,
            fast_path,
            replays: Replays::default(),
            open: RefCell::new(BTreeMap::new()),
            leaving: RefCell::new(BTreeSet::new()),
            paused: RefCell::default(),
            rotations: Rotations::default(),
            opening: runtime::sync::Mutex::new("the opening of a dataset", ()),
            running: Semaphore::new("a place for a request", RUNNING_MAX),
            changing: runtime::sync::RwLock::new("a change of datasets", ()),
            uses: Cell::new(0),
        })
    }

    /// Serves the mailbox until the pool ends.
    pub(crate) async fn serve(self: Rc<Self>, mut receiver: Receiver<Message>) {
        while let Some(message) = receiver.receive().await {
            match message {
                Message::Job(job) => {
                    let permit = self.running.acquire(1).await;
                    job(self.clone(), permit);
                }
                Message::End(ending, reply) => {
                    let outcome = self.end(ending).await;
                    let ended = outcome.is_ok();
                    reply.send(outcome);
                    if ended {
                        return;
                    }
                }
            }
        }
        // All handles are gone without a word: leave the pool consistent.
        let _ = self.end(Ending::Close).await;
    }

    async fn end(self: &Rc<Self>, ending: Ending) -> Result<(), EngineError> {
        if ending != Ending::Close {
            return self.end_in_order(ending).await;
        }
        // The end of the process must not wait for ever for devices that are gone.
        let over = Rc::new(Cell::new(false));
        let (context, ended) = (self.clone(), over.clone());
        let gave_up = Rc::new(Cell::new(false));
        let gives_up = gave_up.clone();
        drop(self.handle.spawn("end of a suspended pool", async move {
            while !ended.get() {
                if context.pool.suspended().is_some() {
                    context.handle.sleep(SUSPENDED_GRACE).await;
                    if !ended.get() && context.pool.suspended().is_some() {
                        gives_up.set(true);
                        context.pool.abandon();
                        return;
                    }
                }
                context.handle.sleep(LOOK_EVERY).await;
            }
        }));
        let outcome = self.end_in_order(ending).await;
        over.set(true);
        if gave_up.get() {
            // What was acknowledged is on the devices that are left, as after a crash.
            return Ok(());
        }
        outcome
    }

    async fn end_in_order(&self, ending: Ending) -> Result<(), EngineError> {
        self.rotations.stop();
        // Every accepted request ends first; nothing new is taken meanwhile.
        let all = self.running.acquire(RUNNING_MAX).await;
        if matches!(ending, Ending::Destroy { .. }) {
            // Before anything is closed: the pool stays as it is.
            let refused = self.pool.hierarchy().check_nothing_immutable().await;
            refused.inspect_err(|_| self.rotations.resume())?;
        }
        if ending == Ending::Abandon {
            // First of all, so that closing the file systems writes nothing.
            self.pool.abandon();
        }
        self.rotations.stopped().await;
        let open: Vec<u64> = self.open.borrow().keys().copied().collect();
        for dataset in open {
            let closed = self.close_dataset(dataset).await;
            if ending != Ending::Abandon {
                closed?;
            }
        }
        if let Some((command, uid)) = ending.command() {
            self.pool.log_command(command, u64::from(uid));
        }
        let outcome = match ending {
            Ending::Close => self.pool.close().await,
            Ending::Export { .. } => self.pool.export().await,
            Ending::Destroy { .. } => self.pool.destroy().await,
            Ending::Abandon => Ok(()),
        };
        drop(all);
        outcome.map_err(EngineError::from)
    }

    /// Returns an open dataset, opening it if need be.
    pub(crate) async fn dataset_in_use(
        &self,
        dataset: u64,
        guid: u64,
    ) -> Result<Lease, EngineError> {
        if self.paused.borrow().contains(&dataset) {
            Box::pin(self.pause_over(dataset)).await;
        }
        if self.leaving.borrow().contains(&dataset) {
            return Err(EngineError::Busy(String::new()));
        }
        if let Some(lease) = self.lease(dataset, guid)? {
            return Ok(lease);
        }
        // Apart, so that the state of an opening is no part of every request's task.
        Box::pin(self.dataset_opened(dataset, guid)).await
    }

    async fn dataset_opened(&self, dataset: u64, guid: u64) -> Result<Lease, EngineError> {
        let _one = self.opening.lock().await;
        if self.leaving.borrow().contains(&dataset) {
            return Err(EngineError::Busy(String::new()));
        }
        if let Some(lease) = self.lease(dataset, guid)? {
            return Ok(lease);
        }
        let opened = self.open_dataset(dataset, guid).await?;
        self.close_idle_snapshots().await;
        let read_only = self.pool.is_read_only();
        let content = if opened.head_kind() == crate::DatasetKind::Volume {
            Content::Volume(Volume::open(opened, VolumeOptions { read_only }).await?)
        } else {
            let options = FsOptions {
                read_only,
                attr_cache: Some((self.fast_path.attrs.clone(), guid)),
                delegations: Some((self.fast_path.delegations.clone(), guid)),
                ..FsOptions::default()
            };
            Content::Fs(Fs::open(opened, options).await?)
        };
        if let Some(dataset) = content.dataset() {
            self.replays.note(dataset);
        }
        let requests = RequestStatistics::default();
        self.fast_path.opened(guid, &requests);
        let entry = OpenDataset {
            content,
            guid,
            users: Cell::new(0),
            used: Cell::new(0),
            idle: runtime::sync::Event::new("the last user of a dataset"),
            closing: Cell::new(false),
            requests,
        };
        self.open.borrow_mut().insert(dataset, Rc::new(entry));
        self.lease(dataset, guid)?.ok_or(EngineError::PoolClosed)
    }

    fn lease(&self, dataset: u64, guid: u64) -> Result<Option<Lease>, EngineError> {
        let Some(open) = self.open.borrow().get(&dataset).cloned() else {
            return Ok(None);
        };
        if open.closing.get() {
            return Err(EngineError::Busy(String::new()));
        }
        if open.guid != guid {
            return Err(EngineError::DatasetNotFound(String::new()));
        }
        open.users.set(open.users.get() + 1);
        self.uses.set(self.uses.get() + 1);
        open.used.set(self.uses.get());
        Ok(Some(Lease(open)))
    }

    /// Closes snapshots without requests, the longest unused first, until few are left: a client may walk through all of
    /// a pool's.
    async fn close_idle_snapshots(&self) {
        let mut idle: Vec<(u64, u64)> = self
            .open
            .borrow()
            .iter()
            .filter(|(_, open)| open.is_idle_snapshot())
            .map(|(dataset, open)| (open.used.get(), *dataset))
            .collect();
        let surplus = idle.len().saturating_sub(IDLE_SNAPSHOTS_MAX);
        if surplus == 0 {
            return;
        }
        idle.sort_unstable();
        for (_, dataset) in idle.into_iter().take(surplus) {
            // Nothing is written by closing a snapshot, so nothing is lost if that fails.
            let _ = self.close_dataset(dataset).await;
        }
    }

    /// Whether a file of a snapshot is open on this machine.
    pub(crate) fn is_held(&self, dataset: u64) -> bool {
        let open = self.open.borrow().get(&dataset).cloned();
        open.is_some_and(|open| matches!(&open.content, Content::Fs(fs) if fs.is_held()))
    }

    /// Closes a dataset once its last request has ended. To be called before its dataset is
    /// destroyed or the pool ends; the next request opens it anew.
    pub(crate) async fn close_dataset(&self, dataset: u64) -> Result<(), EngineError> {
        let Some(open) = self.open.borrow().get(&dataset).cloned() else {
            return Ok(());
        };
        open.closing.set(true);
        while open.users.get() > 0 {
            open.idle.wait().await;
        }
        let outcome = open.content.close().await;
        assert_eq!(open.users.get(), 0, "a dataset was used while it closed");
        self.fast_path.closed(open.guid);
        self.open.borrow_mut().remove(&dataset);
        outcome
    }

    /// Keeps a dataset from being opened until it is taken out of `leaving`, and forgets it if it is open and nothing uses it: without a
    /// wait for its log or for a txg, because what it holds is about to go. One that is in use stays open.
    pub(crate) fn forget_idle(&self, dataset: u64) {
        self.leaving.borrow_mut().insert(dataset);
        let mut open = self.open.borrow_mut();
        let is_idle = |open: &Rc<OpenDataset>| {
            let is_held = matches!(&open.content, Content::Fs(fs) if fs.is_held());
            let log = open.content.dataset().and_then(dsl::Dataset::log);
            let has_log = log.is_some_and(|log| log.has_chain());
            open.users.get() == 0 && !open.closing.get() && !is_held && !has_log
        };
        if open.get(&dataset).is_some_and(is_idle)
            && let Some(forgotten) = open.remove(&dataset)
        {
            self.fast_path.closed(forgotten.guid);
        }
    }

    /// Keeps a dataset from being opened while `work` on it runs, and closes it before.
    pub(crate) async fn without<T>(
        &self,
        dataset: u64,
        work: impl Future<Output = Result<T, EngineError>>,
    ) -> Result<T, EngineError> {
        self.without_all(&[dataset], work).await
    }

    /// As [`Self::without`], but requests that come meanwhile wait for a while instead of being refused.
    pub(crate) async fn while_paused<T>(
        &self,
        dataset: u64,
        work: impl Future<Output = Result<T, EngineError>>,
    ) -> Result<T, EngineError> {
        self.paused.borrow_mut().insert(dataset);
        let outcome = Box::pin(self.without(dataset, work)).await;
        self.paused.borrow_mut().remove(&dataset);
        outcome
    }

    /// Waits until a dataset does not pause any more, or for so long that the request may be what the pause waits for.
    async fn pause_over(&self, dataset: u64) {
        let began = self.handle.now();
        while self.paused.borrow().contains(&dataset) && self.handle.now().since(began) < PAUSE_MAX
        {
            self.handle.sleep(LOOK_AT_PAUSE_EVERY).await;
        }
    }

    /// As [`Self::without`], for several datasets.
    pub(crate) async fn without_all<T>(
        &self,
        datasets: &[u64],
        work: impl Future<Output = Result<T, EngineError>>,
    ) -> Result<T, EngineError> {
        self.leaving.borrow_mut().extend(datasets);
        // One that is just being opened is waited for.
        drop(self.opening.lock().await);
        let mut closed = Ok(());
        for dataset in datasets {
            closed = self.close_dataset(*dataset).await;
            if closed.is_err() {
                break;
            }
        }
        let outcome = match closed {
            Ok(()) => work.await,
            Err(error) => Err(error),
        };
        let mut leaving = self.leaving.borrow_mut();
        for dataset in datasets {
            leaving.remove(dataset);
        }
        outcome
    }

    /// Returns what open datasets have seen: name, log counters, requests by client.
    pub(crate) fn dataset_statistics(&self) -> Vec<DatasetStatistics> {
        let open: Vec<_> = self
            .open
            .borrow()
            .iter()
            .map(|(&id, o)| (id, o.clone()))
            .collect();
        let seen = open.into_iter().filter_map(|(id, open)| {
            let dataset = open.content.dataset()?;
            Some(DatasetStatistics {
                name: dataset.name(),
                id,
                log: dataset.log().map(|log| log.stats()).unwrap_or_default(),
                traffic: dataset.traffic(),
                requests: open.requests.by_client(),
            })
        });
        seen.collect()
    }

    /// Makes open file systems follow changed properties.
    pub(crate) async fn reload_properties(&self) -> Result<(), EngineError> {
        self.fast_path.attrs.invalidate_all();
        let open: Vec<Rc<OpenDataset>> = self.open.borrow().values().cloned().collect();
        for entry in open {
            if let Content::Fs(fs) = &entry.content
                && !entry.closing.get()
            {
                fs.reload_properties().await?;
            }
        }
        Ok(())
    }
}
