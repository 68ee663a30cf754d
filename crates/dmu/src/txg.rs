//! Transaction groups: the clock that opens, quiesces and syncs them, the holds that transactions keep, and the write throttle.
//!
//! ```text
//!   begin() --> open N+2 --quiesce_next()--> quiescing N+1 --holds gone--> syncing N --synced(N)--> durable
//! ```
//! Guarantees: at most one txg is open, one quiescing, one syncing; a `Tx` belongs to one txg from `begin` to its drop;
//! a txg is handed to the syncer only when no transaction holds it. Dirty bytes are bounded: above the limit `begin` waits, above
//! 60 % of it `begin` is delayed by a curve that grows without bound near the limit.
//!
//! It does not know what is written, nor when the syncer runs: the pool's loop asks `wait_for_work` and `quiesce_next`.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ondisk::Txg;
use runtime::Handle;

use crate::error::{DmuError, Result};
use crate::wait::Notify;

/// Limits of the clock. Bytes and durations; the defaults suit a machine with a few GiB of memory.
#[derive(Debug, Clone)]
pub struct TxgOptions {
    /// Dirty bytes over all txgs above which `begin` waits.
    pub dirty_bytes_max: u64,
    /// Bytes changed in the open txg that ask for a sync before the timer.
    pub dirty_bytes_sync: u64,
    /// Percent of `dirty_bytes_max` that, dirty in the open txg, ask for one as well: blocks changed in part are dirty as a
    /// whole. Below where delays begin, so that the next txg has room while this one is written.
    pub sync_dirty_percent: u64,
    /// Percent of `dirty_bytes_max` at which delays begin (OpenZFS: `zfs_delay_min_dirty_percent`, 60).
    pub delay_min_dirty_percent: u64,
    /// Scale of the delay curve in nanoseconds (OpenZFS: `zfs_delay_scale`, 500,000).
    pub delay_scale_ns: u64,
    /// Longest delay of one `begin`.
    pub delay_max: Duration,
    /// Age at which the open txg is synced when it holds changes (OpenZFS: `zfs_txg_timeout`, 5 s).
    pub timeout: Duration,
}

impl Default for TxgOptions {
    fn default() -> Self {
        Self {
            dirty_bytes_max: 1 << 30,
            dirty_bytes_sync: 200 << 20,
            sync_dirty_percent: 45,
            delay_min_dirty_percent: 60,
            delay_scale_ns: 500_000,
            delay_max: Duration::from_millis(100),
            timeout: Duration::from_secs(5),
        }
    }
}

/// What a transaction is expected to cost, told before it begins.
#[derive(Debug, Clone, Copy, Default)]
pub struct TxWeight {
    /// Estimate of the bytes that will become dirty (data plus metadata).
    pub bytes_dirtied_estimate: u64,
    /// The transaction frees space or must not wait for the throttle (deletes, internal work).
    pub unthrottled: bool,
}

impl TxWeight {
    /// A transaction that dirties about `bytes_dirtied_estimate` bytes.
    #[must_use]
    pub fn bytes(bytes_dirtied_estimate: u64) -> Self {
        Self {
            bytes_dirtied_estimate,
            unthrottled: false,
        }
    }

    /// A transaction that never waits for the write throttle.
    #[must_use]
    pub fn unthrottled() -> Self {
        Self {
            bytes_dirtied_estimate: 0,
            unthrottled: true,
        }
    }
}

/// A transaction: the right to change objects in one transaction group. Dropping it commits it.
///
/// Nothing is durable until the txg has synced (`TxgClock::wait_synced`). Nothing may wait for a sync while holding one.
#[derive(Debug)]
pub struct Tx {
    clock: TxgClock,
    txg: Txg,
    holds: bool,
}

impl Tx {
    /// The transaction group the changes belong to.
    #[must_use]
    pub fn txg(&self) -> Txg {
        self.txg
    }

    /// Whether this is a transaction of the syncing context.
    #[must_use]
    pub fn is_syncing(&self) -> bool {
        !self.holds
    }

    /// Ends the transaction; the same as dropping it.
    pub fn commit(self) {}

    /// The clock it belongs to.
    #[must_use]
    pub fn clock(&self) -> &TxgClock {
        &self.clock
    }

    pub(crate) fn add_dirty(&self, bytes: u64) {
        self.clock.add_dirty(self.txg, bytes);
    }

    /// Counts the bytes of a block as dirty, of which [`Tx::add_changed`] tells how many changed.
    pub(crate) fn add_block(&self, bytes: u64) {
        self.clock.add_block(self.txg, bytes);
    }

    pub(crate) fn add_changed(&self, bytes: u64) {
        self.clock.add_changed(self.txg, bytes);
    }
}

impl Drop for Tx {
    fn drop(&mut self) {
        if self.holds {
            self.clock.release(self.txg);
        }
    }
}

/// The clock of one pool. Clones are handles to the same clock.
#[derive(Clone)]
pub struct TxgClock(Rc<Clock>);

struct Clock {
    handle: Handle,
    options: TxgOptions,
    open: Cell<Txg>,
    quiescing: Cell<Option<Txg>>,
    syncing: Cell<Option<Txg>>,
    last_synced: Cell<Txg>,
    /// The same, for other threads.
    last_synced_atomic: Arc<AtomicU64>,
    /// Holds per txg; only the open and the quiescing one can have any.
    holds: RefCell<BTreeMap<Txg, u64>>,
    /// Dirty bytes per txg that has not synced.
    dirty: RefCell<BTreeMap<Txg, u64>>,
    dirty_total: Cell<u64>,
    /// Bytes changed in the open txg.
    changed: Cell<u64>,
    /// Highest txg that a task waits for.
    wanted: Cell<Txg>,
    stopped: Cell<Option<&'static str>>,
    /// Users' transactions are refused for now.
    refusing: Cell<bool>,
    /// When the last delayed `begin` may proceed; later ones queue behind it (nanoseconds of the runtime's clock).
    delay_until_ns: Cell<u64>,
    /// Anything changed: holds, syncs, wishes, dirty bytes.
    released: Notify,
    synced: Notify,
    work: Notify,
    room: Notify,
    counters: RefCell<TxgCounters>,
}

/// Counters of the clock since it was made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TxgCounters {
    /// Transactions begun.
    pub begun: u64,
    /// Transactions that were delayed by the curve.
    pub delayed: u64,
    /// Transactions that waited at the dirty limit.
    pub throttled: u64,
    /// Groups synced.
    pub synced: u64,
}

impl std::fmt::Debug for TxgClock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TxgClock")
            .field("open", &self.0.open.get())
            .field("quiescing", &self.0.quiescing.get())
            .field("syncing", &self.0.syncing.get())
            .field("dirty_bytes", &self.0.dirty_total.get())
            .finish_non_exhaustive()
    }
}

impl TxgClock {
    /// Makes a clock whose first open txg is `first_open`; everything before counts as synced.
    #[must_use]
    pub fn new(handle: Handle, first_open: Txg, options: TxgOptions) -> Self {
        assert!(
            options.sync_dirty_percent <= 100 && options.delay_min_dirty_percent <= 100,
            "shares of the limit of dirty bytes are at most all of it"
        );
        let last_synced = Txg(first_open.0.saturating_sub(1));
        Self(Rc::new(Clock {
            handle,
            options,
            open: Cell::new(first_open),
            quiescing: Cell::new(None),
            syncing: Cell::new(None),
            last_synced: Cell::new(last_synced),
            last_synced_atomic: Arc::new(AtomicU64::new(last_synced.0)),
            holds: RefCell::default(),
            dirty: RefCell::default(),
            dirty_total: Cell::new(0),
            changed: Cell::new(0),
            wanted: Cell::new(Txg(0)),
            stopped: Cell::new(None),
            refusing: Cell::new(false),
            delay_until_ns: Cell::new(0),
            released: Notify::default(),
            synced: Notify::default(),
            work: Notify::default(),
            room: Notify::default(),
            counters: RefCell::default(),
        }))
    }

    /// The open txg.
    #[must_use]
    pub fn open_txg(&self) -> Txg {
        self.0.open.get()
    }

    /// The txg being synced, if any.
    #[must_use]
    pub fn syncing_txg(&self) -> Option<Txg> {
        self.0.syncing.get()
    }

    /// The newest txg that is on disk.
    #[must_use]
    pub fn last_synced(&self) -> Txg {
        self.0.last_synced.get()
    }

    /// The number of the newest txg that is on disk, to be looked at on any thread.
    #[must_use]
    pub fn last_synced_atomic(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.0.last_synced_atomic)
    }

    /// Counters since the clock was made.
    #[must_use]
    pub fn counters(&self) -> TxgCounters {
        *self.0.counters.borrow()
    }

    /// The limits.
    #[must_use]
    pub fn options(&self) -> &TxgOptions {
        &self.0.options
    }

    /// Begins a transaction in the open txg, after waiting as long as the write throttle asks.
    ///
    /// # Errors
    /// `Stopped` when the clock was stopped.
    pub async fn begin(&self, weight: TxWeight) -> Result<Tx> {
        if self.0.refusing.get() {
            return Err(DmuError::Suspended);
        }
        if !weight.unthrottled {
            self.throttle().await?;
        }
        self.begin_now()
    }

    /// Has [`TxgClock::begin`] refuse with `Suspended`, or no longer. What has begun goes on.
    pub fn refuse(&self, refusing: bool) {
        self.0.refusing.set(refusing);
    }

    /// Begins a transaction in the open txg without waiting.
    ///
    /// # Errors
    /// `Stopped` when the clock was stopped.
    pub fn begin_now(&self) -> Result<Tx> {
        self.check()?;
        let txg = self.0.open.get();
        *self.0.holds.borrow_mut().entry(txg).or_insert(0) += 1;
        self.0.counters.borrow_mut().begun += 1;
        Ok(Tx {
            clock: self.clone(),
            txg,
            holds: true,
        })
    }

    /// The transaction of the syncing context of `txg`. It holds nothing and is never delayed.
    #[must_use]
    pub fn syncing_tx(&self, txg: Txg) -> Tx {
        Tx {
            clock: self.clone(),
            txg,
            holds: false,
        }
    }

    /// Dirty bytes of one txg.
    #[must_use]
    pub fn dirty_bytes(&self, txg: Txg) -> u64 {
        self.0.dirty.borrow().get(&txg).copied().unwrap_or(0)
    }

    /// Dirty bytes of all txgs.
    #[must_use]
    pub fn dirty_bytes_total(&self) -> u64 {
        self.0.dirty_total.get()
    }

    /// Waits until the pool's loop has a reason to sync: a task asked (`kick`, `wait_synced`), the open txg is large,
    /// `timeout` has passed, or the clock was stopped. Returns whether a task asked.
    pub async fn wait_for_work(&self, timeout: Duration) -> bool {
        let deadline = self.0.handle.now() + timeout;
        let ticker = self.clone();
        let timer = self.0.handle.spawn("txg timer", async move {
            ticker.0.handle.sleep_until(deadline).await;
            ticker.0.work.notify_all();
        });
        drop(timer);
        loop {
            if self.is_sync_wanted() || self.0.stopped.get().is_some() {
                return true;
            }
            if self.is_open_large() || self.0.handle.now() >= deadline {
                return false;
            }
            self.0.work.wait("work for the sync loop").await;
        }
    }

    /// Whether a task waits for a txg whose sync has not begun.
    #[must_use]
    pub fn is_sync_wanted(&self) -> bool {
        self.0.wanted.get() >= self.0.open.get()
    }

    /// Closes the open txg, opens the next, waits until no transaction holds the closed one, and hands it to the caller to sync.
    /// Called by the sync loop only, one txg at a time.
    ///
    /// # Panics
    /// When the previous txg was not reported by `synced` yet.
    pub async fn quiesce_next(&self) -> Txg {
        assert!(
            self.0.quiescing.get().is_none(),
            "one txg quiesces at a time"
        );
        let txg = self.0.open.get();
        self.0.quiescing.set(Some(txg));
        self.0.open.set(Txg(txg.0 + 1));
        self.0.changed.set(0);
        while self.0.holds.borrow().get(&txg).is_some_and(|&n| n > 0) {
            self.0
                .released
                .wait("transactions of the quiescing txg")
                .await;
        }
        while self.0.syncing.get().is_some() {
            self.0.synced.wait("the syncing txg").await;
        }
        let left = self.0.holds.borrow_mut().remove(&txg);
        assert!(
            left.unwrap_or(0) == 0,
            "txg {txg} has no transaction when it is synced"
        );
        assert!(
            self.0.last_synced.get() < txg && txg < self.0.open.get(),
            "txg {txg} is synced after the one before, and before the open one"
        );
        self.0.quiescing.set(None);
        self.0.syncing.set(Some(txg));
        txg
    }

    /// Reports that `txg` is on disk (its uberblock was flushed): waiters wake and its dirty bytes are forgotten.
    ///
    /// # Panics
    /// When `txg` is not the syncing txg.
    pub fn synced(&self, txg: Txg) {
        assert_eq!(
            self.0.syncing.get(),
            Some(txg),
            "only the syncing txg can be synced"
        );
        assert!(
            self.0.last_synced.get() < txg,
            "txgs are synced in their order"
        );
        self.0.syncing.set(None);
        self.0.last_synced.set(txg);
        self.0.last_synced_atomic.store(txg.0, Ordering::SeqCst);
        self.0.counters.borrow_mut().synced += 1;
        if let Some(left) = self.0.dirty.borrow_mut().remove(&txg) {
            self.0
                .dirty_total
                .set(self.0.dirty_total.get().saturating_sub(left));
        }
        self.0.synced.notify_all();
        self.0.room.notify_all();
    }

    /// Waits until `txg` is on disk, asking for a sync if none is under way.
    ///
    /// # Errors
    /// `Stopped` when the clock is stopped before that.
    pub async fn wait_synced(&self, txg: Txg) -> Result<()> {
        loop {
            if self.0.last_synced.get() >= txg {
                return Ok(());
            }
            self.check()?;
            self.want(txg);
            self.0.synced.wait("a transaction group to sync").await;
        }
    }

    /// Asks for the open txg to be synced soon, without waiting.
    pub fn kick(&self) {
        self.want(self.0.open.get());
    }

    /// Syncs everything changed so far and waits for it.
    ///
    /// # Errors
    /// `Stopped` when the clock is stopped before that.
    pub async fn sync_all(&self) -> Result<()> {
        self.wait_synced(self.0.open.get()).await
    }

    /// Refuses new transactions and wakes every waiting task. `reason` is what they are told.
    pub fn stop(&self, reason: &'static str) {
        if self.0.stopped.get().is_none() {
            self.0.stopped.set(Some(reason));
        }
        self.0.synced.notify_all();
        self.0.room.notify_all();
        self.0.work.notify_all();
        self.0.released.notify_all();
    }

    /// Whether `stop` was called, and why.
    #[must_use]
    pub fn stopped(&self) -> Option<&'static str> {
        self.0.stopped.get()
    }

    /// Most dirty bytes of all txgs before transactions wait.
    #[must_use]
    pub fn dirty_bytes_max(&self) -> u64 {
        self.0.options.dirty_bytes_max
    }

    /// Counts bytes as changed and dirty in `txg`.
    pub fn add_dirty(&self, txg: Txg, bytes: u64) {
        self.add_changed(txg, bytes);
        self.add_block(txg, bytes);
    }

    fn add_block(&self, txg: Txg, bytes: u64) {
        *self.0.dirty.borrow_mut().entry(txg).or_insert(0) += bytes;
        self.0.dirty_total.set(self.0.dirty_total.get() + bytes);
        self.note_growth(txg);
    }

    fn add_changed(&self, txg: Txg, bytes: u64) {
        if txg == self.0.open.get() {
            self.0.changed.set(self.0.changed.get() + bytes);
            self.note_growth(txg);
        }
    }

    fn note_growth(&self, txg: Txg) {
        if txg == self.0.open.get() && self.is_open_large() {
            self.0.work.notify_all();
        }
    }

    /// Whether the open txg is worth a sync before its time. Small writes all over a file of large records make all of it
    /// dirty soon; the longer they go on in one txg, the fewer times each record is written for them.
    fn is_open_large(&self) -> bool {
        let options = &self.0.options;
        let dirty = self.dirty_bytes(self.0.open.get());
        self.0.changed.get() >= options.dirty_bytes_sync
            || dirty >= options.dirty_bytes_max / 100 * options.sync_dirty_percent
    }

    /// Counts bytes of `txg` as written.
    pub fn sub_dirty(&self, txg: Txg, bytes: u64) {
        let mut dirty = self.0.dirty.borrow_mut();
        let Some(left) = dirty.get_mut(&txg) else {
            return;
        };
        let bytes = bytes.min(*left);
        assert!(
            self.0.dirty_total.get() >= bytes,
            "the dirty bytes of all txgs are their sum"
        );
        *left -= bytes;
        self.0
            .dirty_total
            .set(self.0.dirty_total.get().saturating_sub(bytes));
        drop(dirty);
        self.0.room.notify_all();
    }

    fn want(&self, txg: Txg) {
        if txg > self.0.wanted.get() {
            self.0.wanted.set(txg);
        }
        self.0.work.notify_all();
    }

    fn check(&self) -> Result<()> {
        match self.0.stopped.get() {
            Some(reason) => Err(DmuError::Stopped { reason }),
            None => Ok(()),
        }
    }

    fn release(&self, txg: Txg) {
        let mut holds = self.0.holds.borrow_mut();
        let count = holds
            .get_mut(&txg)
            .expect("a transaction's txg keeps its hold count");
        assert!(*count > 0, "a transaction of txg {txg} ends once");
        *count -= 1;
        if *count == 0 {
            drop(holds);
            self.0.released.notify_all();
        }
    }

    async fn throttle(&self) -> Result<()> {
        let mut waited = false;
        while self.0.dirty_total.get() >= self.0.options.dirty_bytes_max {
            self.check()?;
            if !waited {
                waited = true;
                self.0.counters.borrow_mut().throttled += 1;
            }
            self.kick();
            self.0.room.wait("room for dirty data").await;
        }
        let delay = self.delay_ns(self.0.dirty_total.get());
        if delay == 0 {
            return Ok(());
        }
        self.0.counters.borrow_mut().delayed += 1;
        // Delayed transactions queue behind one another: the curve gives a rate, not a time per caller.
        // OpenZFS: module/zfs/dmu_tx.c, dmu_tx_delay
        let now = self.0.handle.now();
        let now_ns = now.as_nanos();
        let max_ns = u64::try_from(self.0.options.delay_max.as_nanos()).unwrap_or(u64::MAX);
        let wake_ns = (now_ns + delay)
            .max(self.0.delay_until_ns.get() + delay)
            .min(now_ns + max_ns);
        self.0.delay_until_ns.set(wake_ns);
        self.0
            .handle
            .sleep(Duration::from_nanos(wake_ns - now_ns))
            .await;
        Ok(())
    }

    /// Delay in nanoseconds for a given amount of dirty bytes: zero up to the threshold, then a hyperbola.
    fn delay_ns(&self, dirty: u64) -> u64 {
        let options = &self.0.options;
        let max = options.dirty_bytes_max;
        let min = max / 100 * options.delay_min_dirty_percent;
        if dirty <= min {
            return 0;
        }
        let longest = u64::try_from(options.delay_max.as_nanos()).unwrap_or(u64::MAX);
        if dirty >= max {
            return longest;
        }
        let delay =
            u128::from(options.delay_scale_ns) * u128::from(dirty - min) / u128::from(max - dirty);
        u64::try_from(delay).unwrap_or(u64::MAX).min(longest)
    }
}
