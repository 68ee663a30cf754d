//! One device: its queue, counters and health.
//!
//! Guarantees: every operation passes the queue and is counted; a device that fails a probe after an error, or that has
//! vanished, is not asked again until it is reopened.
//! Does not know mirrors; offsets here are device bytes.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ondisk::{Guid, Txg, label};
use runtime::sync::Mutex;
use runtime::{Disk, DiskAction, DiskError, DiskKind, DiskMode, Handle, IoBuf};

use crate::events::{LeafEventKind, LeafEvents};
use crate::labels;
use crate::queue::Queue;
use crate::txg_set::TxgSet;
use crate::{
    Health, IoClass, LEAF_DATA_START, Location, OpenMode, QueueTuning, VdevConfig, VdevError,
    VdevStats,
};

/// Bytes of a probe: a read at the start of a label, aligned for every sector size.
const PROBE_BYTES: usize = 64 << 10;
const _: () = assert!(PROBE_BYTES as u64 <= label::LABEL_SIZE);
const _: () = assert!(BURST > 1 && BUSY_TRIES > 0);
/// A device that has failed and then does not answer a probe for this long is out of service.
const PROBE_TIMEOUT: Duration = Duration::from_secs(60);
/// How often and how far apart a busy device is tried again: for two seconds, since whoever closes a block device that was
/// written makes udev lock and probe it, which took more than half a second on a loaded machine.
const BUSY_TRIES: u32 = 80;
/// See [`BUSY_TRIES`].
const BUSY_WAIT: Duration = Duration::from_millis(25);

/// So many errors within [`BURST_WITHIN`] take a leaf out or mark it.
// OpenZFS: cmd/zed/agents/zfs_diagnosis.c (io and checksum, N = 10, T = 10 minutes)
const BURST: usize = 10;
/// See [`BURST`].
const BURST_WITHIN: Duration = Duration::from_secs(600);
/// An operation that takes longer counts as slow.
// OpenZFS: module/zfs/zio.c, zio_slow_io_ms
const SLOW: Duration = Duration::from_secs(30);

/// Why an operation of a leaf failed.
#[derive(Debug, Clone)]
pub(crate) enum LeafError {
    /// It is not open.
    Closed,
    /// The device refused.
    Device(DiskError),
    /// The device did not answer in time and was left behind.
    Stuck,
}

/// One device of the tree.
pub(crate) struct Leaf {
    pub(crate) guid: Guid,
    pub(crate) top: u32,
    /// It is no device, but this spare of its draid: its bytes are on the devices of other leaves.
    pub(crate) spare: Option<u32>,
    handle: Handle,
    disk: RefCell<Option<Disk>>,
    /// Held while it is opened again.
    pub(crate) opening: Mutex<()>,
    health: Cell<Health>,
    reason: RefCell<Option<String>>,
    queue: Queue,
    stats: RefCell<VdevStats>,
    /// Written since the last flush that succeeded.
    dirty: Cell<bool>,
    /// Missed a write since the last flush of its top-level vdev.
    missed_since_flush: Cell<bool>,
    /// Txgs it missed a write of since [`Leaf::take_missed`].
    missed: RefCell<TxgSet>,
    /// Txgs of which it took writes since the last good flush.
    unflushed: RefCell<TxgSet>,
    /// May have lost writes it had taken since the last flush of its top-level vdev.
    lost: Cell<bool>,
    /// Its DTL: txgs of which it may lack writes (what the pool stored, and what it missed in this session). For their blocks other
    /// copies are read first.
    dtl: RefCell<TxgSet>,
    probing: Cell<bool>,
    /// Out of service for a flush that failed; what it holds can be read as long as no other leaf has it.
    only_read: Cell<bool>,
    /// How often it stopped being online.
    absences: Cell<u64>,
    /// Times of the last errors: of the device, and of wrong bytes.
    io_error_times: RefCell<VecDeque<runtime::Instant>>,
    checksum_error_times: RefCell<VecDeque<runtime::Instant>>,
    /// Taken offline by the administrator, until brought online.
    admin_offline: Cell<bool>,
    /// When it stops taking writes, because another host may have the pool then.
    writable_until: Cell<Option<runtime::Instant>>,
    events: LeafEvents,
}

impl Leaf {
    pub(crate) fn new(
        handle: &Handle,
        config: &VdevConfig,
        top: u32,
        tuning: &QueueTuning,
        events: LeafEvents,
    ) -> Self {
        Self {
            guid: config.guid,
            top,
            spare: config.spare_number(),
            handle: handle.clone(),
            disk: RefCell::new(None),
            opening: Mutex::new("whoever opens a device", ()),
            health: Cell::new(Health::Unavailable),
            reason: RefCell::new(None),
            queue: Queue::new(tuning.clone()),
            stats: RefCell::default(),
            dirty: Cell::new(false),
            missed_since_flush: Cell::new(false),
            missed: RefCell::default(),
            unflushed: RefCell::default(),
            lost: Cell::new(false),
            // Until the pool has read the DTL, anything may be missing.
            dtl: RefCell::new(match config.dtl {
                Some(_) => TxgSet::everything(),
                None => TxgSet::default(),
            }),
            probing: Cell::new(false),
            only_read: Cell::new(false),
            absences: Cell::new(0),
            io_error_times: RefCell::default(),
            checksum_error_times: RefCell::default(),
            admin_offline: Cell::new(false),
            writable_until: Cell::new(None),
            events,
        }
    }

    /// Refuses writes after a moment.
    pub(crate) fn write_until(&self, end: Option<runtime::Instant>) {
        self.writable_until.set(end);
    }

    /// Fails when it is too late for writes.
    fn still_writable(&self) -> Result<(), LeafError> {
        match self.writable_until.get() {
            Some(end) if self.handle.now() > end => Err(LeafError::Closed),
            _ => Ok(()),
        }
    }

    /// Opens the device of `config` and checks that it is the right one. The outcome is the leaf's health.
    /// `pool` is the guid of its pool, `least_asize` what its top-level vdev needs, 0 for a new one.
    pub(crate) async fn open(
        &self,
        config: &VdevConfig,
        mode: OpenMode,
        pool: Guid,
        ashift: u8,
        least_asize: u64,
        fresh: bool,
    ) {
        if config.offline || self.admin_offline.get() {
            self.set_health(Health::Offline, None);
            return;
        }
        if config.faulted {
            self.set_health(Health::Faulted, Some("external device fault".into()));
            return;
        }
        if self.spare.is_some() {
            self.set_health(Health::Online, None);
            return;
        }
        let Some(path) = config.device_path() else {
            self.set_health(Health::Unavailable, Some("cannot open".into()));
            return;
        };
        let opened = self
            .try_open(&path, [config.guid, pool], mode, ashift, least_asize, fresh)
            .await;
        if self.admin_offline.get() {
            // Meanwhile.
            self.set_health(Health::Offline, None);
            return;
        }
        match opened {
            Ok(disk) => {
                *self.disk.borrow_mut() = Some(disk);
                // What happened before is not held against it a second time.
                self.io_error_times.borrow_mut().clear();
                self.checksum_error_times.borrow_mut().clear();
                self.set_health(Health::Online, None);
            }
            Err(error) => {
                let reason = match &error {
                    VdevError::TooSmall { .. } | VdevError::SectorSize { .. } => {
                        "corrupted data".to_owned()
                    }
                    VdevError::BadConfig { what } => (*what).to_owned(),
                    VdevError::Open {
                        source: DiskError::Busy { .. },
                        ..
                    } => "device is in use".into(),
                    _ => format!("was {}", path.display()),
                };
                self.set_health(Health::Unavailable, Some(reason));
            }
        }
    }

    async fn try_open(
        &self,
        path: &Path,
        [guid, pool]: [Guid; 2],
        mode: OpenMode,
        ashift: u8,
        least_asize: u64,
        fresh: bool,
    ) -> Result<Disk, VdevError> {
        let disk = open_disk(&self.handle, path, mode).await?;
        check_size(&disk, least_asize)?;
        check_sectors(&disk, ashift)?;
        if !fresh {
            let config = labels::current_config(&disk, ashift).await;
            let bad = |what| Err(VdevError::BadConfig { what });
            match config.as_ref().and_then(|config| config.u64("guid")) {
                Some(found) if found == guid.0 => {}
                Some(_) => return bad("corrupted data"),
                None => return bad("missing label"),
            }
            // It may be a half that was split off, or a copy under another pool's guid.
            let named = config.and_then(|config| config.u64("pool_guid"));
            if named.is_some_and(|named| named != pool.0) {
                return bad("split into new pool");
            }
        }
        Ok(disk)
    }

    /// Returns the open device.
    pub(crate) fn disk(&self) -> Option<Disk> {
        if self.is_usable() {
            self.disk.borrow().clone()
        } else {
            None
        }
    }

    /// Whether reading is worth a try: it is usable, or was until it failed a flush. What it took may be gone with the next
    /// loss of power, but is still there; the reader's checksum decides.
    pub(crate) fn is_readable(&self) -> bool {
        self.is_usable() || (self.only_read.get() && self.health.get() == Health::Faulted)
    }

    pub(crate) fn is_usable(&self) -> bool {
        matches!(self.health.get(), Health::Online | Health::Degraded)
    }

    pub(crate) fn health(&self) -> Health {
        self.health.get()
    }

    pub(crate) fn reason(&self) -> Option<String> {
        self.reason.borrow().clone()
    }

    /// Returns whether the leaf lacks anything at all.
    pub(crate) fn is_stale(&self) -> bool {
        !self.dtl.borrow().is_empty()
    }

    /// Returns operations waiting or at the device.
    pub(crate) fn load(&self) -> usize {
        self.queue.load()
    }

    /// Returns the device size rounded down to whole labels, 0 when not open.
    pub(crate) fn psize(&self) -> u64 {
        self.disk
            .borrow()
            .as_ref()
            .map_or(0, |disk| label::usable_size(disk.size_bytes()))
    }

    /// Returns the path it was opened at.
    pub(crate) fn path(&self) -> Option<PathBuf> {
        self.disk
            .borrow()
            .as_ref()
            .map(|disk| disk.info().path.clone())
    }

    /// Returns the counters with the queue's depths.
    pub(crate) fn stats(&self) -> VdevStats {
        let mut stats = self.stats.borrow().clone();
        for class in IoClass::ALL {
            let (pending, active) = self.queue.depth(class);
            stats.classes[class.index()].pending = pending;
            stats.classes[class.index()].active = active;
        }
        stats
    }

    /// Counts wrong bytes in place of a block.
    pub(crate) fn count_checksum_error(&self, at: Location) {
        if self.dtl_contains(at.born) {
            // It is known to lack the block: no fault of the device.
            return;
        }
        self.stats.borrow_mut().checksum_errors += 1;
        self.note_time(&self.checksum_error_times);
        let offset = LEAF_DATA_START + at.offset;
        self.post(LeafEventKind::ChecksumError {
            offset,
            size: at.size,
        });
    }

    fn post(&self, what: LeafEventKind) {
        self.events.post(self.guid, what);
    }

    /// Posts an event if an operation took too long.
    fn post_if_slow(&self, offset: u64, size: u64, [asked, ended]: [runtime::Instant; 2]) {
        if ended > asked + SLOW {
            self.post(LeafEventKind::Slow {
                offset,
                size,
                nanoseconds: nanos(asked, ended),
            });
        }
    }

    fn post_failed(&self, offset: u64, size: u64, error: &DiskError) {
        // OpenZFS: EIO; ENXIO of a device that is gone
        let errno = match error {
            DiskError::Io { errno, .. } => *errno,
            DiskError::Gone { .. } => 6,
            _ => 5,
        };
        self.post(LeafEventKind::IoError {
            offset,
            size,
            errno,
        });
    }

    pub(crate) fn count_healed(&self, bytes: u64) {
        self.stats.borrow_mut().self_healed_bytes += bytes;
    }

    /// Zeroes the error counters.
    pub(crate) fn clear_counters(&self) {
        let mut stats = self.stats.borrow_mut();
        stats.read_errors = 0;
        stats.write_errors = 0;
        stats.checksum_errors = 0;
        stats.slow_ios = 0;
        drop(stats);
        self.io_error_times.borrow_mut().clear();
        self.checksum_error_times.borrow_mut().clear();
        if self.health() == Health::Degraded {
            self.set_health(Health::Online, None);
        }
    }

    /// Records that a write of `txg` did not reach this leaf.
    pub(crate) fn note_missed(&self, txg: Txg) {
        self.missed_since_flush.set(true);
        self.note_lack(txg);
    }

    /// As [`Leaf::note_missed`], of a write that is durable elsewhere: whatever the next flush comes to.
    pub(crate) fn note_lack(&self, txg: Txg) {
        self.note_gap(txg.0..txg.0 + 1);
    }

    fn note_gap(&self, range: Range<u64>) {
        assert!(!range.is_empty(), "a gap of {range:?} has txgs");
        self.missed.borrow_mut().add(range.clone());
        self.dtl.borrow_mut().add(range);
    }

    /// Remembers that what it took since the last good flush may be gone.
    pub(crate) fn note_unflushed_missed(&self) {
        self.missed_since_flush.set(true);
        let ranges = self.unflushed.borrow_mut().take();
        for range in ranges {
            self.note_gap(range);
        }
    }

    /// Remembers that writes this leaf had taken may be gone again.
    pub(crate) fn note_lost(&self) {
        self.note_unflushed_missed();
        self.lost.set(true);
    }

    /// Returns and clears whether writes were lost since the last call.
    pub(crate) fn take_lost(&self) -> bool {
        self.lost.replace(false)
    }

    /// Forgets that there are writes to flush: they are known to be missed.
    pub(crate) fn forget_dirty(&self) {
        self.dirty.set(false);
    }

    /// Returns whether the leaf may lack what was written in `txg`.
    pub(crate) fn dtl_contains(&self, txg: Txg) -> bool {
        self.dtl.borrow().contains(txg)
    }

    /// Returns and clears the txgs of which writes were missed since the last call.
    pub(crate) fn take_missed(&self) -> Vec<Range<u64>> {
        self.missed.borrow_mut().take()
    }

    /// Sets the DTL: the txgs of which the leaf lacks writes, besides those it missed since [`Leaf::take_missed`].
    pub(crate) fn set_dtl(&self, ranges: &[Range<u64>]) {
        let mut dtl = self.missed.borrow().clone();
        for range in ranges {
            dtl.add(range.clone());
        }
        *self.dtl.borrow_mut() = dtl;
    }

    /// Removes txgs from the DTL: the leaf was resilvered.
    pub(crate) fn note_resilvered(&self, range: &Range<u64>) {
        self.dtl.borrow_mut().subtract(range);
    }

    /// Closes the device.
    pub(crate) fn close(&self) {
        *self.disk.borrow_mut() = None;
        self.set_health(Health::Unavailable, None);
    }

    /// Reads device bytes. With a timeout, a device that takes longer is taken out of service: only given when another
    /// leaf holds the same bytes.
    pub(crate) async fn read(
        &self,
        offset: u64,
        len: usize,
        class: IoClass,
        timeout: Option<Duration>,
    ) -> Result<IoBuf, LeafError> {
        let disk = self.is_readable().then(|| self.disk.borrow().clone());
        let disk = disk.flatten().ok_or(LeafError::Closed)?;
        let asked = self.handle.now();
        let permit = self.queue.enter(class).await;
        if !self.is_readable() {
            return Err(LeafError::Closed);
        }
        let started = self.handle.now();
        let mut result = self.within(timeout, disk.read(offset, len)).await?;
        if result.as_ref().is_err_and(may_retry) {
            result = self.within(timeout, disk.read(offset, len)).await?;
        }
        drop(permit);
        let ended = self.handle.now();
        match result {
            Ok(buf) => {
                let mut stats = self.stats.borrow_mut();
                stats.read_ops += 1;
                stats.read_bytes += len as u64;
                stats.read_total.record(nanos(asked, ended));
                stats.slow_ios += u64::from(ended > asked + SLOW);
                count_class(&mut stats, class, len as u64, [asked, started, ended]);
                drop(stats);
                self.post_if_slow(offset, len as u64, [asked, ended]);
                Ok(buf)
            }
            Err(error) => {
                self.stats.borrow_mut().read_errors += 1;
                self.note_time(&self.io_error_times);
                self.post_failed(offset, len as u64, &error);
                self.after_error(&error).await;
                Err(LeafError::Device(error))
            }
        }
    }

    /// Writes device bytes of a block born in `born` (labels have none). On failure the caller notes the miss.
    pub(crate) async fn write(
        &self,
        offset: u64,
        data: IoBuf,
        class: IoClass,
        timeout: Option<Duration>,
        born: Option<Txg>,
    ) -> Result<(), LeafError> {
        self.put(offset, data, class, timeout, born, false).await
    }

    /// As [`Leaf::write`]. What goes `through` is durable at the end, and no flush is owed for it.
    pub(crate) async fn put(
        &self,
        offset: u64,
        data: IoBuf,
        class: IoClass,
        timeout: Option<Duration>,
        born: Option<Txg>,
        through: bool,
    ) -> Result<(), LeafError> {
        let disk = self.disk().ok_or(LeafError::Closed)?;
        let write = |data: IoBuf| {
            let disk = disk.clone();
            async move {
                match through {
                    true => disk.write_through(offset, data).await.map(Some),
                    false => disk.write(offset, data).await.map(|()| None),
                }
            }
        };
        let len = data.len() as u64;
        let asked = self.handle.now();
        let permit = self.queue.enter(class).await;
        self.still_usable()?;
        self.still_writable()?;
        let started = self.handle.now();
        if !through {
            self.note_taken(born);
        }
        let mut result = self.within(timeout, write(data.clone())).await?;
        if result.as_ref().is_err_and(may_retry) {
            result = self.within(timeout, write(data)).await?;
        }
        drop(permit);
        if !through {
            // Again after the write: a flush that ran meanwhile did not cover it.
            self.note_taken(born);
            if !self.is_usable() {
                // It gets no further flush.
                self.note_unflushed_missed();
            }
        }
        let ended = self.handle.now();
        match result {
            Ok(arrived) => {
                let mut stats = self.stats.borrow_mut();
                if let Some(arrived) = arrived {
                    stats.flushes.record(nanos(arrived, ended));
                }
                let written = arrived.unwrap_or(ended);
                stats.write_ops += 1;
                stats.write_bytes += len;
                stats.write_total.record(nanos(asked, written));
                stats.slow_ios += u64::from(ended > asked + SLOW);
                count_class(&mut stats, class, len, [asked, started, written]);
                drop(stats);
                self.post_if_slow(offset, len, [asked, ended]);
                Ok(())
            }
            Err(error) if is_of_flush(&error) => {
                self.note_unflushed_missed();
                self.flush_failed(&error);
                Err(LeafError::Device(error))
            }
            Err(error) => {
                self.stats.borrow_mut().write_errors += 1;
                self.note_time(&self.io_error_times);
                self.post_failed(offset, len, &error);
                self.after_error(&error).await;
                Err(LeafError::Device(error))
            }
        }
    }

    /// Returns whether anything was written since the last good flush.
    pub(crate) fn is_dirty(&self) -> bool {
        self.dirty.get()
    }

    /// Starts a new flush interval; returns whether the leaf missed a write in the one that ends.
    pub(crate) fn begin_flush(&self) -> bool {
        self.missed_since_flush.replace(false)
    }

    /// Returns whether the leaf missed a write since the last flush.
    pub(crate) fn has_missed(&self) -> bool {
        self.missed_since_flush.get()
    }

    /// Makes completed writes durable. After a failure nothing is known about writes since the last good flush, so the
    /// leaf is taken out.
    pub(crate) async fn flush(&self, timeout: Option<Duration>) -> Result<(), LeafError> {
        let disk = self.disk().ok_or(LeafError::Closed)?;
        self.dirty.set(false);
        let covered = self.unflushed.take();
        let restore = || {
            self.dirty.set(true);
            let mut unflushed = self.unflushed.borrow_mut();
            for range in covered.clone().take() {
                unflushed.add(range);
            }
        };
        let asked = self.handle.now();
        match self.within(timeout, disk.flush()).await {
            Ok(Ok(())) => {
                let taken = nanos(asked, self.handle.now());
                self.stats.borrow_mut().flushes.record(taken);
                Ok(())
            }
            Err(error) => {
                restore();
                self.note_unflushed_missed();
                Err(error)
            }
            Ok(Err(error)) => {
                restore();
                self.note_unflushed_missed();
                self.flush_failed(&error);
                Err(LeafError::Device(error))
            }
        }
    }

    /// Takes it out: it may have dropped what it had taken, and will not say so a second time.
    fn flush_failed(&self, error: &DiskError) {
        self.stats.borrow_mut().write_errors += 1;
        let (health, reason) = if matches!(error, DiskError::Gone { .. }) {
            (Health::Removed, None)
        } else {
            (Health::Faulted, Some("too many errors".to_owned()))
        };
        self.set_health(health, reason);
        self.only_read.set(health == Health::Faulted);
    }

    /// Discards a range that holds nothing. Devices that cannot are left alone.
    pub(crate) async fn trim(&self, offset: u64, len: u64) -> Result<(), LeafError> {
        assert!(
            offset >= LEAF_DATA_START,
            "a trim at {offset:x} leaves labels and boot area alone"
        );
        let disk = self.disk().ok_or(LeafError::Closed)?;
        let permit = self.queue.enter(IoClass::Trim).await;
        self.still_writable()?;
        let result = disk.discard(offset, len).await;
        drop(permit);
        result.map_err(LeafError::Device)?;
        let mut stats = self.stats.borrow_mut();
        stats.trim_ops += 1;
        stats.trim_bytes += len;
        Ok(())
    }

    /// Waits for the device, but no longer than the timeout: then the leaf is out of service, and what it was asked may
    /// or may not happen. (A write that happens much later can only make a copy wrong, which its checksum tells.)
    async fn within<T>(
        &self,
        timeout: Option<Duration>,
        operation: impl Future<Output = T>,
    ) -> Result<T, LeafError> {
        let Some(timeout) = timeout else {
            return Ok(operation.await);
        };
        match runtime::timeout(&self.handle, timeout, operation).await {
            Some(result) => Ok(result),
            None => {
                self.set_health(Health::Faulted, Some("too many slow I/Os".into()));
                Err(LeafError::Stuck)
            }
        }
    }

    /// Fails if the leaf was taken out while its caller stood in the queue.
    fn still_usable(&self) -> Result<(), LeafError> {
        if self.is_usable() {
            Ok(())
        } else {
            Err(LeafError::Closed)
        }
    }

    /// Takes it out of service, or marks it, for a reason from above.
    pub(crate) fn take_out_of_service(&self, health: Health, reason: Option<String>) {
        if health == Health::Offline {
            self.admin_offline.set(true);
        }
        if health != Health::Degraded {
            *self.disk.borrow_mut() = None;
        }
        self.set_health(health, reason);
    }

    /// Lets it be opened again after [`Leaf::take_out_of_service`].
    pub(crate) fn allow_reopen(&self) {
        self.admin_offline.set(false);
    }

    /// Puts a distributed spare into service.
    pub(crate) fn start_spare(&self) {
        self.set_health(Health::Online, None);
    }

    /// Notes that it lacks what was written before it came.
    pub(crate) fn mark_stale(&self) {
        *self.dtl.borrow_mut() = TxgSet::everything();
    }

    /// Notes a write of txg `born` on its way or taken: not durable before the next flush.
    fn note_taken(&self, born: Option<Txg>) {
        self.dirty.set(true);
        if let Some(Txg(txg)) = born {
            self.unflushed.borrow_mut().add(txg..txg + 1);
        }
    }

    fn note_time(&self, times: &RefCell<VecDeque<runtime::Instant>>) {
        let mut times = times.borrow_mut();
        assert!(times.len() <= BURST, "no more times than a burst has");
        if times.len() == BURST {
            times.pop_front();
        }
        times.push_back(self.handle.now());
    }

    /// Returns and forgets whether the device failed, and whether it gave wrong bytes, too often.
    pub(crate) fn take_diagnosis(&self) -> (bool, bool) {
        let now = self.handle.now();
        let too_often = |times: &RefCell<VecDeque<runtime::Instant>>| {
            let mut times = times.borrow_mut();
            let often = times.len() == BURST
                && times
                    .front()
                    .is_some_and(|first| now <= *first + BURST_WITHIN);
            if often {
                times.clear();
            }
            often
        };
        (
            too_often(&self.io_error_times),
            too_often(&self.checksum_error_times),
        )
    }

    /// Returns how often it stopped being online since it was first opened.
    pub(crate) fn absences(&self) -> u64 {
        self.absences.get()
    }

    fn set_health(&self, health: Health, reason: Option<String>) {
        if self.is_usable() && !matches!(health, Health::Online | Health::Degraded) {
            self.absences.set(self.absences.get() + 1);
            // What it had in its cache may not be there when it comes back.
            self.note_unflushed_missed();
        }
        self.only_read.set(false);
        let from = self.health.replace(health);
        if from != health {
            self.post(LeafEventKind::Health { from, to: health });
        }
        *self.reason.borrow_mut() = reason;
    }

    /// Decides after a failed operation whether the device is still good for anything.
    async fn after_error(&self, error: &DiskError) {
        match error {
            DiskError::Gone { .. } => {
                self.set_health(Health::Removed, None);
                return;
            }
            DiskError::OutOfRange { .. }
            | DiskError::Misaligned { .. }
            | DiskError::ReadOnly { .. } => {
                return;
            }
            _ => {}
        }
        // A bad sector does not condemn a device: it must also fail to give any of its labels.
        if self.probing.replace(true) {
            return;
        }
        let disk = self.disk.borrow().clone();
        if let Some(disk) = disk {
            let answer = runtime::timeout(&self.handle, PROBE_TIMEOUT, probe(&disk)).await;
            if !matches!(answer, Some(Ok(()))) {
                self.post(LeafEventKind::ProbeFailed);
            }
            match answer {
                Some(Ok(())) => {}
                Some(Err(DiskError::Gone { .. })) => self.set_health(Health::Removed, None),
                Some(Err(_)) => self.set_health(Health::Faulted, Some("too many errors".into())),
                None => self.set_health(Health::Faulted, Some("too many slow I/Os".into())),
            }
        }
        self.probing.set(false);
    }
}

/// Whether a device gives the begin of any label: one may have a bad sector, too, and keeps it until it is written again.
async fn probe(disk: &Disk) -> Result<(), DiskError> {
    let mut result = Ok(());
    for which in 0..label::LABEL_COUNT {
        let Some(offset) = label::label_offset(disk.size_bytes(), which) else {
            continue;
        };
        match disk.read(offset, PROBE_BYTES).await {
            Ok(_) => return Ok(()),
            Err(error @ DiskError::Gone { .. }) => return Err(error),
            Err(error) => result = Err(error),
        }
    }
    result
}

/// Opens a device for a tree. A device that is busy gets a little time: its last user may just be closing it.
///
/// # Errors
/// [`VdevError::Open`].
pub async fn open_disk(handle: &Handle, path: &Path, mode: OpenMode) -> Result<Disk, VdevError> {
    let disk_mode = match mode {
        OpenMode::ReadOnly => DiskMode::ReadOnly,
        OpenMode::ReadWrite => DiskMode::ReadWrite,
    };
    let mut left = BUSY_TRIES;
    loop {
        match handle.open_disk(path, disk_mode).await {
            Ok(disk) => return Ok(disk),
            Err(DiskError::Busy { .. }) if left > 0 => {
                left -= 1;
                handle.sleep(BUSY_WAIT).await;
            }
            Err(source) => {
                return Err(VdevError::Open {
                    path: path.to_owned(),
                    source,
                });
            }
        }
    }
}

/// Refuses devices too small to be a leaf, or smaller than the vdev needs.
pub(crate) fn check_size(disk: &Disk, least_asize: u64) -> Result<(), VdevError> {
    let info = disk.info();
    let needed_bytes = label::MIN_DEVICE_SIZE
        .max(least_asize.saturating_add(label::DATA_START + label::END_RESERVED));
    if label::leaf_asize(info.size_bytes) < least_asize || info.size_bytes < label::MIN_DEVICE_SIZE
    {
        return Err(VdevError::TooSmall {
            path: info.path.clone(),
            size_bytes: info.size_bytes,
            needed_bytes,
        });
    }
    Ok(())
}

/// Refuses block devices that cannot address sectors of `1 << ashift` bytes. (Files serve any request.)
pub(crate) fn check_sectors(disk: &Disk, ashift: u8) -> Result<(), VdevError> {
    let info = disk.info();
    if info.kind == DiskKind::Block && u64::from(info.logical_sector_bytes) > 1 << ashift {
        let needed = u8::try_from(info.logical_sector_bytes.trailing_zeros()).unwrap_or(u8::MAX);
        return Err(VdevError::SectorSize {
            path: info.path.clone(),
            needed,
            have: ashift,
        });
    }
    Ok(())
}

fn may_retry(error: &DiskError) -> bool {
    matches!(error, DiskError::Io { .. }) && !is_of_flush(error)
}

/// Whether what was written may be gone again, and more than that.
fn is_of_flush(error: &DiskError) -> bool {
    let DiskError::Io { action, .. } = error else {
        return false;
    };
    *action == DiskAction::Flush
}

fn nanos(from: runtime::Instant, to: runtime::Instant) -> u64 {
    to.as_nanos().saturating_sub(from.as_nanos())
}

fn count_class(stats: &mut VdevStats, class: IoClass, bytes: u64, times: [runtime::Instant; 3]) {
    let [asked, started, ended] = times;
    let stats = &mut stats.classes[class.index()];
    stats.ops += 1;
    stats.bytes += bytes;
    let bucket = (63 - (bytes | 1).leading_zeros()) as usize;
    stats.sizes[bucket.min(stats.sizes.len() - 1)] += 1;
    stats.queue_wait.record(nanos(asked, started));
    stats.disk_wait.record(nanos(started, ended));
}
