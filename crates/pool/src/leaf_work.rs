//! Work on the free space of single devices: `zpool trim` and `zpool initialize`.
//!
//! ```text
//! none --start--> active --end--> complete        suspended --start--> active, where it was
//!                   |--suspend--> suspended       active or suspended --cancel--> canceled
//! ```
//! The state of each device is in the device's dictionary; an active one goes on after an import. Only free ranges are
//! touched, and nobody gets them meanwhile.
// OpenZFS: module/zfs/vdev_trim.c, vdev_initialize.c; include/sys/fs/zfs.h, VDEV_LEAF_ZAP_TRIM_STATE and its like

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::{Rc, Weak};
use std::time::Duration;

use dmu::{Tx, zap};
use ondisk::{Guid, ObjectId};
use runtime::sync::Mutex;
use runtime::{IoBuf, JoinHandle};

use crate::PoolError;
use crate::pool::{Inner, Pool};
use crate::status::{LeafWorkState, LeafWorkStatus};

/// Most bytes kept from allocations at once.
pub(crate) const TRIM_HELD: u64 = 64 << 20;
/// See [`TRIM_HELD`].
const INITIALIZE_HELD: u64 = 4 << 20;
/// Most bytes of a range discarded, or written, at once.
// OpenZFS: module/zfs/vdev_trim.c, zfs_trim_extent_bytes_max; vdev_initialize.c, zfs_initialize_chunk_size
const TRIM_BYTES_MAX: u64 = 128 << 20;
/// See [`TRIM_BYTES_MAX`].
const INITIALIZE_BYTES_MAX: u64 = 1 << 20;
/// Shorter ranges are not worth a discard.
// OpenZFS: module/zfs/vdev_trim.c, zfs_trim_extent_bytes_min
pub(crate) const TRIM_BYTES_MIN: u64 = 32 << 10;
/// What free space is written with, in the byte order of the machine.
// OpenZFS: module/zfs/vdev_initialize.c, zfs_initialize_value
const INITIALIZE_VALUE: u64 = 0xdead_beef_dead_beee;
/// How often progress is stored.
const STORE_EVERY: Duration = Duration::from_secs(5);
/// What is waited before the rate is looked at again.
const RATE_PAUSE: Duration = Duration::from_millis(10);

/// What is done to the free space.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LeafWork {
    /// The device is told that it holds nothing.
    Trim,
    /// It is written once.
    Initialize,
}

/// What is asked of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeafWorkRequest {
    /// Begin, or go on where it was suspended. `rate` is the most bytes a second, 0 for no bound; `None` leaves it as it was.
    Start {
        /// See above.
        rate: Option<u64>,
    },
    /// Stop until further notice.
    Suspend,
    /// Stop.
    Cancel,
    /// Forget that it was ever done.
    Forget,
}

impl LeafWork {
    /// Returns the keys of state, time and offset in a device's dictionary.
    fn keys(self) -> [&'static str; 3] {
        match self {
            Self::Trim => [
                "org.zfsonlinux:vdev_trim_state",
                "org.zfsonlinux:vdev_trim_action_time",
                "org.zfsonlinux:next_offset_to_trim",
            ],
            Self::Initialize => [
                "com.delphix:vdev_initialize_state",
                "com.delphix:vdev_initialize_action_time",
                "com.delphix:next_offset_to_initialize",
            ],
        }
    }

    fn word(self) -> &'static str {
        match self {
            Self::Trim => "trim",
            Self::Initialize => "initialize",
        }
    }

    fn busy(self) -> PoolError {
        PoolError::InUse(match self {
            Self::Trim => "currently trimming",
            Self::Initialize => "currently initializing",
        })
    }

    fn idle(self) -> PoolError {
        PoolError::InUse(match self {
            Self::Trim => "there is no active trim",
            Self::Initialize => "there is no active initialization",
        })
    }
}

const TRIM_RATE: &str = "org.zfsonlinux:vdev_trim_rate";
const TRIM_PARTIAL: &str = "org.zfsonlinux:vdev_trim_partial";
const TRIM_SECURE: &str = "org.zfsonlinux:vdev_trim_secure";

/// Where a metaslab is on its vdev, and where it ends on a leaf: 0 when it has nothing there.
type Span = (Range<u64>, u64);

/// One kind of work on one device.
#[derive(Default)]
struct Job {
    state: Cell<LeafWorkState>,
    time: Cell<u64>,
    /// Bytes of the device up to which it is done.
    offset: Cell<u64>,
    rate: Cell<u64>,
    unsupported: Cell<bool>,
    /// Told to stop.
    stopped: Cell<bool>,
    task: RefCell<Option<JoinHandle<()>>>,
}

/// All work on devices.
#[derive(Default)]
pub(crate) struct State {
    jobs: RefCell<BTreeMap<(LeafWork, Guid), Rc<Job>>>,
    /// One worker at a time on each top-level vdev: leaves of a mirror have the same free space.
    turns: RefCell<BTreeMap<u32, Mutex<()>>>,
    /// The pool is being left.
    leaving: Cell<bool>,
}

impl State {
    fn job(&self, what: LeafWork, leaf: Guid) -> Rc<Job> {
        let mut jobs = self.jobs.borrow_mut();
        Rc::clone(jobs.entry((what, leaf)).or_default())
    }

    /// Whether the pool is being left.
    pub(crate) fn is_leaving(&self) -> bool {
        self.leaving.get()
    }

    pub(crate) fn turn(&self, top: u32) -> Mutex<()> {
        let mut turns = self.turns.borrow_mut();
        let new = || Mutex::new("another worker on the free space of the vdev", ());
        turns.entry(top).or_insert_with(new).clone()
    }
}

impl Pool {
    /// Starts, suspends, cancels or forgets work on the free space of a leaf. The new state is durable on return; the work
    /// itself goes on in the background.
    ///
    /// # Errors
    /// `NoSuchDevice`, also for one that is not open; `InUse` when it runs already, or does not; `ReadOnly`, `Suspended`.
    pub async fn work_on_leaf(
        &self,
        what: LeafWork,
        leaf: u64,
        request: LeafWorkRequest,
    ) -> Result<(), PoolError> {
        let inner = &self.0;
        inner.writable()?;
        let leaf = Guid(leaf);
        let open = inner.tree.leaves().into_iter().any(|known| {
            known.guid == leaf && known.psize != 0 && known.health == vdev::Health::Online
        });
        if !open {
            return Err(PoolError::NoSuchDevice);
        }
        let removing = inner.removal.vdev();
        let leaves = inner.tree.leaves();
        let found = leaves.iter().find(|known| known.guid == leaf);
        if found.is_some_and(|found| Some(found.top) == removing) {
            return Err(what.busy());
        }
        let job = inner.leaf_work.job(what, leaf);
        let state = job.state.get();
        let is_active = state == LeafWorkState::Active;
        let event = match request {
            LeafWorkRequest::Start { .. } if state == LeafWorkState::Suspended => "trim_resume",
            LeafWorkRequest::Start { .. } => "trim_start",
            LeafWorkRequest::Suspend => "trim_suspend",
            LeafWorkRequest::Cancel | LeafWorkRequest::Forget => "trim_cancel",
        };
        let (next, word) = match request {
            LeafWorkRequest::Start { .. } if is_active => return Err(what.busy()),
            LeafWorkRequest::Start { rate } => {
                if state != LeafWorkState::Suspended {
                    job.offset.set(0);
                    job.time.set(inner.unix_time());
                }
                job.rate.set(rate.unwrap_or(job.rate.get()));
                job.unsupported.set(false);
                (LeafWorkState::Active, "activated")
            }
            LeafWorkRequest::Suspend if is_active => (LeafWorkState::Suspended, "suspended"),
            LeafWorkRequest::Cancel if is_active || state == LeafWorkState::Suspended => {
                (LeafWorkState::Canceled, "canceled")
            }
            LeafWorkRequest::Suspend | LeafWorkRequest::Cancel => return Err(what.idle()),
            LeafWorkRequest::Forget if is_active => return Err(what.busy()),
            LeafWorkRequest::Forget => (LeafWorkState::None, "uninitialized"),
        };
        job.state.set(next);
        if next != LeafWorkState::Active {
            job.stop().await;
        }
        inner.store_leaf_work(what, leaf, Some(word)).await?;
        inner.notify_trim(what, leaf, event);
        if next == LeafWorkState::Active && job.state.get() == next {
            inner.begin_leaf_work(what, leaf, &job);
        }
        Ok(())
    }
}

impl Job {
    /// Stops the worker, and waits until it has.
    async fn stop(&self) {
        self.stopped.set(true);
        let task = self.task.borrow_mut().take();
        if let Some(task) = task {
            task.await;
        }
        self.stopped.set(false);
    }

    fn status(&self, percent: u64) -> LeafWorkStatus {
        LeafWorkStatus {
            state: self.state.get(),
            time: self.time.get(),
            percent,
            unsupported: self.unsupported.get(),
        }
    }
}

impl Inner {
    /// Reads at import what was done to each device, and what is to go on.
    pub(crate) async fn load_leaf_work(&self) -> Result<(), PoolError> {
        for leaf in self.tree.config().leaves() {
            let Some(dictionary) = leaf.zap_leaf.filter(|&object| object != 0) else {
                continue;
            };
            let number = async |key| -> Result<u64, PoolError> {
                let found = zap::lookup_u64(&self.mos, ObjectId(dictionary), key).await?;
                Ok(found.unwrap_or(0))
            };
            for what in [LeafWork::Trim, LeafWork::Initialize] {
                let [state, time, offset] = what.keys();
                let state = LeafWorkState::from_number(number(state).await?);
                if state == LeafWorkState::None {
                    continue;
                }
                let job = self.leaf_work.job(what, leaf.guid);
                job.state.set(state);
                job.time.set(number(time).await?);
                job.offset.set(number(offset).await?);
                if what == LeafWork::Trim {
                    job.rate.set(number(TRIM_RATE).await?);
                }
            }
        }
        Ok(())
    }

    /// Goes on after an import with what was active.
    pub(crate) fn continue_leaf_work(self: &Rc<Self>) {
        for top in self.tree.tops() {
            if Some(top.id) != self.removal.vdev() {
                self.continue_leaf_work_below(top.id);
            }
        }
    }

    /// The jobs on the devices of a top-level vdev.
    fn jobs_below(&self, top: u32) -> Vec<((LeafWork, Guid), Rc<Job>)> {
        let leaves = self.tree.leaves();
        let mine = |guid: Guid| {
            leaves
                .iter()
                .any(|leaf| leaf.guid == guid && leaf.top == top)
        };
        let jobs = self.leaf_work.jobs.borrow();
        let found = jobs.iter().filter(|((_, leaf), _)| mine(*leaf));
        found.map(|(key, job)| (*key, Rc::clone(job))).collect()
    }

    /// Stops all workers on the devices of a vdev that is to be removed; what is stored of them stays.
    pub(crate) async fn stop_leaf_work_below(&self, top: u32) {
        for (_, job) in self.jobs_below(top) {
            job.stop().await;
        }
    }

    /// Forgets the work on devices that have left the pool.
    pub(crate) fn forget_leaf_work(&self) {
        let leaves = self.tree.leaves();
        let mut jobs = self.leaf_work.jobs.borrow_mut();
        jobs.retain(|(_, guid), _| leaves.iter().any(|leaf| leaf.guid == *guid));
    }

    /// Goes on with what was active on the devices of a top-level vdev.
    pub(crate) fn continue_leaf_work_below(self: &Rc<Self>, top: u32) {
        for ((what, leaf), job) in self.jobs_below(top) {
            if job.state.get() == LeafWorkState::Active {
                self.begin_leaf_work(what, leaf, &job);
            }
        }
    }

    /// Stops all workers before the pool is left. They go on after the next import.
    pub(crate) async fn stop_leaf_work(&self) {
        self.leaf_work.leaving.set(true);
        let jobs: Vec<_> = {
            let jobs = self.leaf_work.jobs.borrow();
            jobs.iter()
                .map(|(key, job)| (*key, Rc::clone(job)))
                .collect()
        };
        for ((what, leaf), job) in jobs {
            let was_active = job.state.get() == LeafWorkState::Active;
            job.stop().await;
            if was_active {
                // What is not stored is done again.
                drop(self.store_leaf_work(what, leaf, None).await);
            }
        }
    }

    /// Posts what became of a trim. (OpenZFS knows no such events of the other work.)
    fn notify_trim(&self, what: LeafWork, leaf: Guid, event: &str) {
        if what == LeafWork::Trim {
            self.notify(event, Some(leaf), ondisk::NvList::new());
        }
    }

    fn begin_leaf_work(self: &Rc<Self>, what: LeafWork, leaf: Guid, job: &Rc<Job>) {
        let (weak, worker) = (Rc::downgrade(self), Rc::clone(job));
        let task = self
            .handle
            .spawn("work on free space", run(weak, what, leaf, worker));
        job.task.replace(Some(task));
    }

    /// Stores the state of a job, with a line in the history if there is something to say. Durable on return.
    async fn store_leaf_work(
        &self,
        what: LeafWork,
        leaf: Guid,
        event: Option<&'static str>,
    ) -> Result<(), PoolError> {
        self.run_in_sync(async move |inner: Rc<Self>, tx: Rc<Tx>| {
            inner.create_vdev_objects(&tx).await?;
            let config = inner.tree.config();
            let mut leaves = config.leaves().into_iter();
            let found = leaves.find(|known| known.guid == leaf);
            let Some(dictionary) = found.and_then(|known| known.zap_leaf) else {
                // It has left the pool.
                return Ok(());
            };
            let job = inner.leaf_work.job(what, leaf);
            let dictionary = ObjectId(dictionary);
            let mut entries: Vec<(&str, u64)> = what
                .keys()
                .into_iter()
                .zip([job.state.get().number(), job.time.get(), job.offset.get()])
                .collect();
            if what == LeafWork::Trim {
                let rest = [
                    (TRIM_RATE, job.rate.get()),
                    (TRIM_PARTIAL, 0),
                    (TRIM_SECURE, 0),
                ];
                entries.extend(rest);
            }
            for (key, value) in entries {
                if job.state.get() != LeafWorkState::None {
                    zap::update_u64(&inner.mos, dictionary, key, value, &tx).await?;
                } else if zap::lookup_u64(&inner.mos, dictionary, key)
                    .await?
                    .is_some()
                {
                    zap::remove(&inner.mos, dictionary, key, &tx).await?;
                }
            }
            if let Some(event) = event {
                let text = format!("vdev={} {event}", inner.leaf_path(leaf));
                inner.log_internal(what.word(), &text, &tx).await?;
            }
            Ok(())
        })
        .await
    }

    /// Returns what is said of the work on a leaf.
    pub(crate) fn leaf_work_status(&self, what: LeafWork, leaf: Guid) -> LeafWorkStatus {
        let known = self.leaf_work.jobs.borrow().get(&(what, leaf)).cloned();
        let Some(job) = known else {
            return LeafWorkStatus::default();
        };
        let percent = match job.state.get() {
            LeafWorkState::Complete => 100,
            LeafWorkState::Active | LeafWorkState::Suspended => self.progress(leaf, &job),
            _ => 0,
        };
        job.status(percent)
    }

    /// How much of the free space is done, in percent.
    fn progress(&self, leaf: Guid, job: &Job) -> u64 {
        let Some((top, spans)) = self.spans(leaf) else {
            return 0;
        };
        let (mut all, mut done) = (0_u64, 0);
        for (number, (span, on_leaf)) in spans.into_iter().enumerate() {
            let number = u32::try_from(number).unwrap_or(u32::MAX);
            let size = span.end - span.start;
            let free = size.saturating_sub(self.store().metaslab_allocated(top, number));
            all += free;
            if on_leaf <= job.offset.get() {
                done += free;
            }
        }
        done * 100 / (all + 1)
    }

    /// The metaslabs of a leaf's vdev: where each is on the vdev and on the leaf.
    fn spans(&self, leaf: Guid) -> Option<(u32, Vec<Span>)> {
        let leaves = self.tree.leaves();
        let id = leaves.iter().find(|known| known.guid == leaf)?.top;
        let tops = self.tree.tops();
        let top = tops.iter().find(|top| top.id == id)?;
        let spans = (0..top.metaslab_count).map(|number| {
            let span = top.metaslab_span(number);
            let on_leaf = self.tree.leaf_ranges(leaf, &span)?;
            Some((span, on_leaf.last().map_or(0, |last| last.end)))
        });
        Some((id, spans.collect::<Option<Vec<_>>>()?))
    }

    /// Does what is to be done to free ranges of a vdev, held by the caller, on one leaf. False when the device cannot.
    async fn work_on_ranges(
        &self,
        what: LeafWork,
        leaf: Guid,
        job: &Job,
        pace: &Pace,
        ranges: &[Range<u64>],
    ) -> Result<bool, PoolError> {
        let mut on_leaf = Vec::new();
        for range in ranges {
            let Some(parts) = self.tree.leaf_ranges(leaf, range) else {
                return Ok(false);
            };
            on_leaf.extend(parts);
        }
        for range in on_leaf {
            // Where it was when it was interrupted.
            let start = range.start.max(job.offset.get());
            let too_short =
                what == LeafWork::Trim && range.end.saturating_sub(start) < TRIM_BYTES_MIN;
            if start >= range.end || too_short {
                continue;
            }
            let most = match what {
                LeafWork::Trim => TRIM_BYTES_MAX,
                LeafWork::Initialize => INITIALIZE_BYTES_MAX,
            };
            let mut at = start;
            while at < range.end {
                if job.stopped.get() || self.closed.get() {
                    return Ok(true);
                }
                let end = range.end.min(at + most);
                pace.keep(self, job, end - at).await;
                let possible = match what {
                    LeafWork::Trim => self.tree.trim_leaf(leaf, &(at..end)).await?,
                    LeafWork::Initialize => {
                        let data = pattern(end - at);
                        self.tree.fill_leaf(leaf, at, data).await?;
                        true
                    }
                };
                if !possible {
                    return Ok(false);
                }
                at = end;
                job.offset.set(end);
            }
        }
        Ok(true)
    }
}

/// Bytes that free space is written with.
fn pattern(len: u64) -> IoBuf {
    let words = len / 8;
    let bytes: Vec<u8> = (0..words)
        .flat_map(|_| INITIALIZE_VALUE.to_le_bytes())
        .collect();
    IoBuf::copy_from(&bytes)
}

/// How fast a worker is.
struct Pace {
    began: runtime::Instant,
    bytes: Cell<u64>,
}

impl Pace {
    /// Waits until so many more bytes are within the rate.
    async fn keep(&self, inner: &Inner, job: &Job, bytes: u64) {
        loop {
            let rate = job.rate.get();
            let now = inner.handle.now();
            let nanoseconds = now.as_nanos().saturating_sub(self.began.as_nanos());
            let allowed = u128::from(rate) * u128::from(nanoseconds) / 1_000_000_000;
            let is_ahead = rate != 0 && u128::from(self.bytes.get()) > allowed;
            if !is_ahead || job.stopped.get() {
                break;
            }
            inner.handle.sleep(RATE_PAUSE).await;
        }
        self.bytes.set(self.bytes.get() + bytes);
    }
}

/// How a worker ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Done,
    Stopped,
    Unsupported,
}

async fn run(weak: Weak<Inner>, what: LeafWork, leaf: Guid, job: Rc<Job>) {
    let Some(inner) = weak.upgrade() else { return };
    let end = work(&inner, what, leaf, &job).await;
    let state = match end {
        Ok(End::Done) => LeafWorkState::Complete,
        Ok(End::Unsupported) => {
            job.unsupported.set(true);
            LeafWorkState::Canceled
        }
        // The device is gone, or the pool: what is stored says where to go on.
        Ok(End::Stopped) | Err(_) => return,
    };
    if job.stopped.get() || inner.leaf_work.leaving.get() || inner.closed.get() {
        return;
    }
    job.state.set(state);
    if state == LeafWorkState::Complete {
        job.time.set(inner.unix_time());
    }
    let event = match state {
        LeafWorkState::Complete => "complete",
        _ => "canceled",
    };
    drop(inner.store_leaf_work(what, leaf, Some(event)).await);
    let event = match state {
        LeafWorkState::Complete => "trim_finish",
        _ => "trim_cancel",
    };
    inner.notify_trim(what, leaf, event);
}

async fn work(
    inner: &Rc<Inner>,
    what: LeafWork,
    leaf: Guid,
    job: &Rc<Job>,
) -> Result<End, PoolError> {
    let Some((top, spans)) = inner.spans(leaf) else {
        return Ok(End::Unsupported);
    };
    let pace = Pace {
        began: inner.handle.now(),
        bytes: Cell::new(0),
    };
    let most = match what {
        LeafWork::Trim => TRIM_HELD,
        LeafWork::Initialize => INITIALIZE_HELD,
    };
    let turn = inner.leaf_work.turn(top);
    let mut stored = inner.handle.now();
    for (number, (span, on_leaf)) in spans.into_iter().enumerate() {
        if on_leaf <= job.offset.get() {
            continue;
        }
        let number = u32::try_from(number).map_err(|_| PoolError::NoSuchDevice)?;
        let mut from = span.start;
        loop {
            if job.stopped.get() || inner.closed.get() || inner.dead.get() {
                return Ok(End::Stopped);
            }
            let guard = turn.lock().await;
            let ranges = inner.store().hold_free(top, number, from, most).await?;
            let Some(last) = ranges.last() else {
                break;
            };
            from = last.end;
            let worked = inner.work_on_ranges(what, leaf, job, &pace, &ranges).await;
            // Also after an error: they are free.
            inner.store().release_free(top, number);
            drop(guard);
            if !worked? {
                return Ok(End::Unsupported);
            }
        }
        if !job.stopped.get() {
            job.offset.set(job.offset.get().max(on_leaf));
        }
        if inner.handle.now() >= stored + STORE_EVERY {
            stored = inner.handle.now();
            inner.store_leaf_work(what, leaf, None).await?;
        }
    }
    if job.stopped.get() {
        return Ok(End::Stopped);
    }
    // Done is what a power cut does not undo.
    inner.tree.flush_vdev(top).await?;
    Ok(End::Done)
}
