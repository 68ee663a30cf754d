//! Trim and initialize: discarding or writing the free space of single devices (`zpool trim`, `zpool initialize`).
//!
//! ```text
//! none --start--> active --end--> complete        suspended --start--> active, where it was
//!                   |--suspend--> suspended       active or suspended --cancel--> canceled
//! ```
//! The state of each device is in the device's ZAP; an active one goes on after an import. Only free ranges are
//! touched, and they are not allocated meanwhile.
// OpenZFS: module/zfs/vdev_trim.c, vdev_initialize.c; include/sys/fs/zfs.h, VDEV_LEAF_ZAP_TRIM_STATE and its like

mod state;

use std::cell::Cell;
use std::ops::Range;
use std::rc::{Rc, Weak};
use std::time::Duration;

use dmu::{Tx, zap};
use ondisk::{Guid, ObjectId};
use runtime::IoBuf;

pub(crate) use self::state::LeafActivities;
use self::state::{ActivityJob, ActivityProgress};
pub use self::state::{LeafActivity, LeafActivityRequest};
use crate::PoolError;
use crate::pool::{ImportedPool, Pool};
use crate::status::{LeafActivityState, LeafActivityStatus};

/// Most bytes withheld from allocation at once.
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
const _: () = assert!(TRIM_BYTES_MIN <= TRIM_BYTES_MAX);
const _: () = assert!(INITIALIZE_BYTES_MAX <= INITIALIZE_HELD);
const _: () = assert!(TRIM_BYTES_MIN < TRIM_BYTES_MAX && TRIM_BYTES_MIN < TRIM_HELD);
const _: () =
    assert!(INITIALIZE_BYTES_MAX <= INITIALIZE_HELD && INITIALIZE_BYTES_MAX.is_multiple_of(8));

/// What free space is written with, in the byte order of the machine.
// OpenZFS: module/zfs/vdev_initialize.c, zfs_initialize_value
const INITIALIZE_VALUE: u64 = 0xdead_beef_dead_beee;
/// How often progress is stored.
const STORE_EVERY: Duration = Duration::from_secs(5);
/// Pause between two checks of the rate.
const RATE_PAUSE: Duration = Duration::from_millis(10);

const TRIM_RATE: &str = "org.zfsonlinux:vdev_trim_rate";
const TRIM_PARTIAL: &str = "org.zfsonlinux:vdev_trim_partial";
const TRIM_SECURE: &str = "org.zfsonlinux:vdev_trim_secure";

/// A metaslab, as a leaf of its vdev has it.
struct MetaslabSpan {
    /// Where it is on the vdev.
    on_vdev: Range<u64>,
    /// Bytes on the leaf.
    leaf_size: u64,
    /// Where it ends on the leaf: 0 when it has nothing there.
    leaf_end: u64,
}

impl Pool {
    /// Starts, suspends, cancels or forgets work on the free space of a leaf. The new state is durable on return; the work
    /// itself goes on in the background.
    ///
    /// # Errors
    /// `NoSuchDevice`, also for one that is not open; `InUse` when it runs already, or does not; `ReadOnly`, `Suspended`.
    pub async fn request_leaf_activity(
        &self,
        what: LeafActivity,
        leaf: u64,
        request: LeafActivityRequest,
    ) -> Result<(), PoolError> {
        let imported = &self.0;
        imported.writable()?;
        let leaf = Guid(leaf);
        let open = imported.tree().leaves().into_iter().any(|known| {
            known.guid == leaf && known.psize != 0 && known.health == vdev::Health::Online
        });
        if !open {
            return Err(PoolError::NoSuchDevice);
        }
        let leaves = imported.tree().leaves();
        let found = leaves.iter().find(|known| known.guid == leaf);
        if found.is_some_and(|found| imported.moving_vdevs().contains(&Some(found.top))) {
            return Err(what.busy());
        }
        let job = imported.activities.leaf_activities.job(what, leaf);
        let state = job.state.get();
        let is_active = state == LeafActivityState::Active;
        let event = match request {
            LeafActivityRequest::Start { .. } if state == LeafActivityState::Suspended => {
                "trim_resume"
            }
            LeafActivityRequest::Start { .. } => "trim_start",
            LeafActivityRequest::Suspend => "trim_suspend",
            LeafActivityRequest::Cancel | LeafActivityRequest::Uninit => "trim_cancel",
        };
        let (next, word) = match request {
            LeafActivityRequest::Start { .. } if is_active => return Err(what.busy()),
            LeafActivityRequest::Start { rate } => {
                if state != LeafActivityState::Suspended {
                    job.offset.set(0);
                    job.time.set(imported.unix_time());
                }
                job.rate.set(rate.unwrap_or(job.rate.get()));
                job.unsupported.set(false);
                (LeafActivityState::Active, "activated")
            }
            LeafActivityRequest::Suspend if is_active => {
                (LeafActivityState::Suspended, "suspended")
            }
            LeafActivityRequest::Cancel if is_active || state == LeafActivityState::Suspended => {
                (LeafActivityState::Canceled, "canceled")
            }
            LeafActivityRequest::Suspend | LeafActivityRequest::Cancel => return Err(what.idle()),
            LeafActivityRequest::Uninit if is_active => return Err(what.busy()),
            LeafActivityRequest::Uninit => (LeafActivityState::None, "uninitialized"),
        };
        job.state.set(next);
        if next != LeafActivityState::Active {
            job.stop().await;
        }
        imported.store_leaf_activity(what, leaf, Some(word)).await?;
        imported.notify_trim(what, leaf, event);
        if next == LeafActivityState::Active && job.state.get() == next {
            imported.spawn_leaf_activity(what, leaf, &job);
        }
        Ok(())
    }
}

impl ImportedPool {
    /// Reads at import what was done to each device, and what is to go on.
    pub(crate) async fn load_leaf_activities(&self) -> Result<(), PoolError> {
        for leaf in self.tree().config().leaves() {
            let Some(vdev_zap) = leaf.zap_leaf.filter(|&object| object != 0) else {
                continue;
            };
            let number = async |key| -> Result<u64, PoolError> {
                let found = zap::lookup_u64(self.mos(), ObjectId(vdev_zap), key).await?;
                Ok(found.unwrap_or(0))
            };
            for what in [LeafActivity::Trim, LeafActivity::Initialize] {
                let [state, time, offset] = what.keys();
                let state = LeafActivityState::from_number(number(state).await?);
                if state == LeafActivityState::None {
                    continue;
                }
                let job = self.activities.leaf_activities.job(what, leaf.guid);
                job.state.set(state);
                job.time.set(number(time).await?);
                job.offset.set(number(offset).await?);
                if what == LeafActivity::Trim {
                    job.rate.set(number(TRIM_RATE).await?);
                }
            }
        }
        Ok(())
    }

    /// The vdevs whose contents move, by a removal and by an expansion: nothing else rewrites their devices meanwhile.
    fn moving_vdevs(&self) -> [Option<u32>; 2] {
        let expanding = self.tree().reflow_progress().map(|now| now.vdev);
        [self.activities.removal.vdev(), expanding]
    }

    /// Goes on after an import with what was active.
    pub(crate) fn continue_leaf_activities(self: &Rc<Self>) {
        let moving = self.moving_vdevs();
        for top in self.tree().tops() {
            if !moving.contains(&Some(top.id)) {
                self.continue_leaf_activities_below(top.id);
            }
        }
    }

    /// The jobs on the devices of a top-level vdev.
    fn jobs_below(&self, top: u32) -> Vec<((LeafActivity, Guid), Rc<ActivityJob>)> {
        let leaves = self.tree().leaves();
        let mine = |guid: Guid| {
            leaves
                .iter()
                .any(|leaf| leaf.guid == guid && leaf.top == top)
        };
        let jobs = self.activities.leaf_activities.jobs.borrow();
        let found = jobs.iter().filter(|((_, leaf), _)| mine(*leaf));
        found.map(|(key, job)| (*key, Rc::clone(job))).collect()
    }

    /// Stops all workers on the devices of a vdev that is to be removed; what is stored of them stays.
    pub(crate) async fn stop_leaf_activities_below(&self, top: u32) {
        for (_, job) in self.jobs_below(top) {
            job.stop().await;
        }
    }

    /// Forgets the work on devices that have left the pool.
    pub(crate) fn forget_detached_leaf_activities(&self) {
        let leaves = self.tree().leaves();
        let mut jobs = self.activities.leaf_activities.jobs.borrow_mut();
        jobs.retain(|(_, guid), _| leaves.iter().any(|leaf| leaf.guid == *guid));
    }

    /// Goes on with what was active on the devices of a top-level vdev.
    pub(crate) fn continue_leaf_activities_below(self: &Rc<Self>, top: u32) {
        for ((what, leaf), job) in self.jobs_below(top) {
            if job.state.get() == LeafActivityState::Active {
                self.spawn_leaf_activity(what, leaf, &job);
            }
        }
    }

    /// Stops all workers before the pool is left. They go on after the next import.
    pub(crate) async fn stop_leaf_activities(&self) {
        self.activities.leaf_activities.closing.set(true);
        let jobs: Vec<_> = {
            let jobs = self.activities.leaf_activities.jobs.borrow();
            jobs.iter()
                .map(|(key, job)| (*key, Rc::clone(job)))
                .collect()
        };
        for ((what, leaf), job) in jobs {
            let was_active = job.state.get() == LeafActivityState::Active;
            job.stop().await;
            if was_active {
                // What is not stored is done again.
                drop(self.store_leaf_activity(what, leaf, None).await);
            }
        }
    }

    /// Posts what became of a trim. (OpenZFS knows no such events of the other work.)
    fn notify_trim(&self, what: LeafActivity, leaf: Guid, event: &str) {
        if what == LeafActivity::Trim {
            self.notify(event, Some(leaf), ondisk::NvList::new());
        }
    }

    fn spawn_leaf_activity(self: &Rc<Self>, what: LeafActivity, leaf: Guid, job: &Rc<ActivityJob>) {
        let (weak, worker) = (Rc::downgrade(self), Rc::clone(job));
        let task = self
            .handle()
            .spawn("work on free space", run(weak, what, leaf, worker));
        job.task.replace(Some(task));
    }

    /// Stores the state of a job, with a line in the history if there is something to say. Durable on return.
    async fn store_leaf_activity(
        &self,
        what: LeafActivity,
        leaf: Guid,
        event: Option<&'static str>,
    ) -> Result<(), PoolError> {
        self.run_in_sync(async move |imported: Rc<Self>, tx: Rc<Tx>| {
            imported.create_vdev_objects(&tx).await?;
            let config = imported.tree().config();
            let mut leaves = config.leaves().into_iter();
            let found = leaves.find(|known| known.guid == leaf);
            let Some(vdev_zap) = found.and_then(|known| known.zap_leaf) else {
                // It has left the pool.
                return Ok(());
            };
            let job = imported.activities.leaf_activities.job(what, leaf);
            let vdev_zap = ObjectId(vdev_zap);
            let mut entries: Vec<(&str, u64)> = what
                .keys()
                .into_iter()
                .zip([job.state.get().number(), job.time.get(), job.offset.get()])
                .collect();
            if what == LeafActivity::Trim {
                let rest = [
                    (TRIM_RATE, job.rate.get()),
                    (TRIM_PARTIAL, 0),
                    (TRIM_SECURE, 0),
                ];
                entries.extend(rest);
            }
            for (key, value) in entries {
                if job.state.get() != LeafActivityState::None {
                    zap::update_u64(imported.mos(), vdev_zap, key, value, &tx).await?;
                } else if zap::lookup_u64(imported.mos(), vdev_zap, key)
                    .await?
                    .is_some()
                {
                    zap::remove(imported.mos(), vdev_zap, key, &tx).await?;
                }
            }
            if let Some(event) = event {
                let path = imported.leaf_path(leaf);
                let (name, text) = match (event, what) {
                    // OpenZFS: module/zfs/vdev_initialize.c, vdev_initialize_change_state
                    ("uninitialized", LeafActivity::Initialize) => {
                        ("uninitialize", format!("vdev={path}"))
                    }
                    _ => (what.word(), format!("vdev={path} {event}")),
                };
                imported.log_internal(name, &text, &tx).await?;
            }
            Ok(())
        })
        .await
    }

    /// Returns what is said of the work on a leaf.
    pub(crate) fn leaf_activity_status(
        &self,
        what: LeafActivity,
        leaf: Guid,
    ) -> LeafActivityStatus {
        let known = self
            .activities
            .leaf_activities
            .jobs
            .borrow()
            .get(&(what, leaf))
            .cloned();
        let Some(job) = known else {
            return LeafActivityStatus::default();
        };
        let progress = match job.state.get() {
            LeafActivityState::Active | LeafActivityState::Suspended => self.progress(leaf, &job),
            _ => ActivityProgress::default(),
        };
        job.status(progress)
    }

    /// How much of the free space is done.
    fn progress(&self, leaf: Guid, job: &ActivityJob) -> ActivityProgress {
        let mut progress = ActivityProgress::default();
        let Some((top, spans)) = self.spans(leaf) else {
            return progress;
        };
        for (number, span) in spans.into_iter().enumerate() {
            let number = u32::try_from(number).unwrap_or(u32::MAX);
            let size = span.on_vdev.end - span.on_vdev.start;
            let free = size.saturating_sub(self.store().metaslab_allocated(top, number));
            // The leaf's part of it.
            let part = u128::from(free) * u128::from(span.leaf_size) / u128::from(size.max(1));
            let part = u64::try_from(part).unwrap_or(free);
            progress.all_bytes += part;
            if span.leaf_end <= job.offset.get() {
                progress.done_bytes += part;
            }
        }
        progress
    }

    /// The metaslabs of a leaf's vdev.
    fn spans(&self, leaf: Guid) -> Option<(u32, Vec<MetaslabSpan>)> {
        let leaves = self.tree().leaves();
        let id = leaves.iter().find(|known| known.guid == leaf)?.top;
        let tops = self.tree().tops();
        let top = tops.iter().find(|top| top.id == id)?;
        let spans = (0..top.metaslab_count).map(|number| {
            let span = top.metaslab_span(number);
            let on_leaf = self.tree().leaf_ranges(leaf, &span)?;
            Some(MetaslabSpan {
                leaf_size: on_leaf.iter().map(|range| range.end - range.start).sum(),
                leaf_end: on_leaf.last().map_or(0, |last| last.end),
                on_vdev: span,
            })
        });
        Some((id, spans.collect::<Option<Vec<_>>>()?))
    }

    /// Does what is to be done to free ranges of a vdev, held by the caller, on one leaf. False when the device cannot.
    async fn trim_or_write_ranges(
        &self,
        what: LeafActivity,
        leaf: Guid,
        job: &ActivityJob,
        rate_limit: &RateLimit,
        ranges: &[Range<u64>],
    ) -> Result<bool, PoolError> {
        let mut on_leaf = Vec::new();
        for range in ranges {
            let Some(parts) = self.tree().leaf_ranges(leaf, range) else {
                return Ok(false);
            };
            on_leaf.extend(parts);
        }
        for range in on_leaf {
            // Where it was when it was interrupted.
            let start = range.start.max(job.offset.get());
            let too_short =
                what == LeafActivity::Trim && range.end.saturating_sub(start) < TRIM_BYTES_MIN;
            if start >= range.end || too_short {
                continue;
            }
            let most = match what {
                LeafActivity::Trim => TRIM_BYTES_MAX,
                LeafActivity::Initialize => INITIALIZE_BYTES_MAX,
            };
            let mut at = start;
            while at < range.end {
                if job.stopped.get() || self.lifecycle.is_closed() {
                    return Ok(true);
                }
                let end = range.end.min(at + most);
                rate_limit.keep(self, job, end - at).await;
                let possible = match what {
                    LeafActivity::Trim => self.tree().trim_leaf(leaf, &(at..end)).await?,
                    LeafActivity::Initialize => {
                        let data = pattern(end - at);
                        self.tree().fill_leaf(leaf, at, data).await?;
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
struct RateLimit {
    began: runtime::Instant,
    bytes: Cell<u64>,
}

impl RateLimit {
    /// Waits until so many more bytes are within the rate.
    async fn keep(&self, imported: &ImportedPool, job: &ActivityJob, bytes: u64) {
        loop {
            let rate = job.rate.get();
            let now = imported.handle().now();
            let nanoseconds = now.as_nanos().saturating_sub(self.began.as_nanos());
            let allowed = u128::from(rate) * u128::from(nanoseconds) / 1_000_000_000;
            let is_ahead = rate != 0 && u128::from(self.bytes.get()) > allowed;
            if !is_ahead || job.stopped.get() {
                break;
            }
            imported.handle().sleep(RATE_PAUSE).await;
        }
        self.bytes.set(self.bytes.get() + bytes);
    }
}

/// How a worker ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ActivityEnd {
    Done,
    Stopped,
    Unsupported,
}

async fn run(weak: Weak<ImportedPool>, what: LeafActivity, leaf: Guid, job: Rc<ActivityJob>) {
    let Some(imported) = weak.upgrade() else {
        return;
    };
    let end = work(&imported, what, leaf, &job).await;
    let state = match end {
        Ok(ActivityEnd::Done) => LeafActivityState::Complete,
        Ok(ActivityEnd::Unsupported) => {
            job.unsupported.set(true);
            LeafActivityState::Canceled
        }
        // The device is gone, or the pool: what is stored says where to go on.
        Ok(ActivityEnd::Stopped) | Err(_) => return,
    };
    if job.stopped.get()
        || imported.activities.leaf_activities.closing.get()
        || imported.lifecycle.is_closed()
    {
        return;
    }
    job.state.set(state);
    if state == LeafActivityState::Complete {
        job.time.set(imported.unix_time());
    }
    let event = match state {
        LeafActivityState::Complete => "complete",
        _ => "canceled",
    };
    drop(imported.store_leaf_activity(what, leaf, Some(event)).await);
    let event = match state {
        LeafActivityState::Complete => "trim_finish",
        _ => "trim_cancel",
    };
    imported.notify_trim(what, leaf, event);
}

async fn work(
    imported: &Rc<ImportedPool>,
    what: LeafActivity,
    leaf: Guid,
    job: &Rc<ActivityJob>,
) -> Result<ActivityEnd, PoolError> {
    let Some((top, spans)) = imported.spans(leaf) else {
        return Ok(ActivityEnd::Unsupported);
    };
    let rate_limit = RateLimit {
        began: imported.handle().now(),
        bytes: Cell::new(0),
    };
    let most = match what {
        LeafActivity::Trim => TRIM_HELD,
        LeafActivity::Initialize => INITIALIZE_HELD,
    };
    let turn = imported.activities.leaf_activities.turn(top);
    let mut stored = imported.handle().now();
    for (number, span) in spans.into_iter().enumerate() {
        if span.leaf_end <= job.offset.get() {
            continue;
        }
        let number = u32::try_from(number).map_err(|_| PoolError::NoSuchDevice)?;
        let mut from = span.on_vdev.start;
        loop {
            if job.stopped.get() || imported.lifecycle.is_stopped() {
                return Ok(ActivityEnd::Stopped);
            }
            let guard = turn.lock().await;
            let ranges = imported.store().hold_free(top, number, from, most).await?;
            let Some(last) = ranges.last() else {
                break;
            };
            from = last.end;
            let worked = imported
                .trim_or_write_ranges(what, leaf, job, &rate_limit, &ranges)
                .await;
            // Also after an error: they are free.
            imported.store().release_free(top, number);
            drop(guard);
            if !worked? {
                return Ok(ActivityEnd::Unsupported);
            }
        }
        if !job.stopped.get() {
            job.offset.set(job.offset.get().max(span.leaf_end));
        }
        if imported.handle().now() >= stored + STORE_EVERY {
            stored = imported.handle().now();
            imported.store_leaf_activity(what, leaf, None).await?;
        }
    }
    if job.stopped.get() {
        return Ok(ActivityEnd::Stopped);
    }
    // Done is what a power cut does not undo.
    imported.tree().flush_vdev(top).await?;
    Ok(ActivityEnd::Done)
}
