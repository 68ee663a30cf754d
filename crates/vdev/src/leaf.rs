//! One device: its queue, counters and state.
//!
//! Guarantees: every operation passes the queue and is counted; a device that fails a probe after an error, or that has
//! vanished, is not asked again until it is reopened.
//! Does not know mirrors; offsets here are device bytes. Its states are in `leaf_state`, what it missed in `leaf_writes`.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ondisk::{Guid, Txg, label};
use runtime::sync::Mutex;
use runtime::{Disk, DiskAction, DiskError, DiskKind, DiskMode, Handle, Instant, IoBuf};

use crate::diagnosis::{ErrorLimits, ErrorTimes};
use crate::events::{LeafEventKind, LeafEvents};
use crate::faults::{self, DeviceFaults, InjectedIo, Injection};
use crate::labels;
use crate::leaf_state::{LeafState, SitOut};
use crate::leaf_writes::LeafWrites;
use crate::queue::Queue;
use crate::{
    Health, IoClass, LEAF_DATA_START, Location, OpenMode, QueueTuning, VdevConfig, VdevError,
    VdevStats, note,
};

/// Bytes of a probe: a read at the start of a label, aligned for every sector size.
const PROBE_BYTES: usize = 64 << 10;
const _: () = assert!(PROBE_BYTES as u64 <= label::LABEL_SIZE);
const _: () = assert!(BUSY_TRIES > 0);
/// A device that has failed and then does not answer a probe for this long is out of service.
const PROBE_TIMEOUT: Duration = Duration::from_secs(60);
/// How often and how far apart a busy device is tried again: for two seconds, because the closing of a block device that was
/// written makes udev lock and probe it, which took more than half a second on a loaded machine.
const BUSY_TRIES: u32 = 80;
/// See [`BUSY_TRIES`].
const BUSY_WAIT: Duration = Duration::from_millis(25);

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
    state: RefCell<LeafState>,
    /// Taken offline by the administrator, until brought online: an open that is under way meanwhile does not end that.
    admin_offline: Cell<bool>,
    /// Declared faulted by the administrator, until that is cleared.
    admin_fault: Cell<bool>,
    queue: Queue,
    stats: RefCell<VdevStats>,
    pub(crate) writes: LeafWrites,
    probing: Cell<bool>,
    /// How often it stopped being online.
    absences: Cell<u64>,
    /// Errors of the device, wrong bytes, and slowness.
    io_errors: ErrorTimes,
    checksum_errors: ErrorTimes,
    slow_operations: ErrorTimes,
    error_limits: Cell<ErrorLimits>,
    sit_out: Cell<SitOut>,
    /// When it stops taking writes, because another host may have the pool then.
    writable_until: Cell<Option<runtime::Instant>>,
    events: LeafEvents,
    faults: DeviceFaults,
}

impl Leaf {
    pub(crate) fn new(
        handle: &Handle,
        config: &VdevConfig,
        top: u32,
        tuning: &QueueTuning,
        events: LeafEvents,
        faults: DeviceFaults,
    ) -> Self {
        Self {
            guid: config.guid,
            top,
            spare: config.spare_number(),
            handle: handle.clone(),
            disk: RefCell::new(None),
            opening: Mutex::new("opening of a device", ()),
            state: RefCell::new(LeafState::Closed),
            admin_offline: Cell::new(false),
            admin_fault: Cell::new(false),
            queue: Queue::new(tuning.clone()),
            stats: RefCell::default(),
            writes: LeafWrites::new(config.dtl.is_some()),
            probing: Cell::new(false),
            absences: Cell::new(0),
            io_errors: ErrorTimes::default(),
            checksum_errors: ErrorTimes::default(),
            slow_operations: ErrorTimes::default(),
            error_limits: Cell::default(),
            sit_out: Cell::default(),
            writable_until: Cell::new(None),
            events,
            faults,
        }
    }

    /// Returns what is injected into an I/O that is about to begin.
    fn injection(&self, io: InjectedIo, offset: u64, len: u64) -> Option<Injection> {
        let bytes = offset..offset.saturating_add(len);
        self.faults.begin(self.guid, self.psize(), io, bytes)
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

    /// Opens the device of `config` and checks that it is the right one. The outcome is the leaf's state.
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
            return self.enter(LeafState::Offline);
        }
        if config.faulted || self.admin_fault.get() {
            return self.enter(LeafState::faulted(note::EXTERNAL_FAULT));
        }
        if self.spare.is_some() {
            return self.enter(LeafState::Online);
        }
        let path = config.device_path();
        let Some(path) = path.filter(|_| !self.faults.refuses_open(self.guid)) else {
            let reason = "cannot open".to_owned();
            return self.enter(LeafState::CannotOpen { reason });
        };
        let opened = self
            .try_open(&path, [config.guid, pool], mode, ashift, least_asize, fresh)
            .await;
        if self.admin_offline.get() {
            // Meanwhile.
            return self.enter(LeafState::Offline);
        }
        if self.admin_fault.get() {
            return self.enter(LeafState::faulted(note::EXTERNAL_FAULT));
        }
        match opened {
            Ok(disk) => {
                *self.disk.borrow_mut() = Some(disk);
                // What happened before is not held against it a second time.
                self.forget_errors();
                self.enter(LeafState::Online);
            }
            Err(error) => {
                let reason = match &error {
                    VdevError::TooSmall { .. } | VdevError::SectorSize { .. } => {
                        note::CORRUPTED_DATA.to_owned()
                    }
                    VdevError::BadConfig { what } => (*what).to_owned(),
                    VdevError::Open {
                        source: DiskError::Busy { .. },
                        ..
                    } => "device is in use".into(),
                    _ => format!("was {}", path.display()),
                };
                self.enter(LeafState::CannotOpen { reason });
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
            let config = labels::current_config(&disk, ashift).await?;
            let bad = |what| Err(VdevError::BadConfig { what });
            match config.as_ref().and_then(|config| config.u64("guid")) {
                Some(found) if found == guid.0 => {}
                Some(_) => return bad(note::CORRUPTED_DATA),
                None => return bad(note::INVALID_LABEL),
            }
            // It may be a half that was split off, or a copy under another pool's guid.
            let named = config.and_then(|config| config.u64("pool_guid"));
            if named.is_some_and(|named| named != pool.0) {
                return bad(note::SPLIT);
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
        self.state.borrow().is_readable()
    }

    pub(crate) fn is_usable(&self) -> bool {
        self.state.borrow().is_in_service()
    }

    pub(crate) fn health(&self) -> Health {
        self.state.borrow().health()
    }

    pub(crate) fn reason(&self) -> Option<String> {
        self.state.borrow().reason().map(str::to_owned)
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
        if self.writes.dtl_contains(at.born) {
            // It is known to lack the block: no fault of the device.
            return;
        }
        self.stats.borrow_mut().checksum_errors += 1;
        let limit = self.error_limits.get().checksum;
        self.checksum_errors.note(self.handle.now(), limit);
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
            self.slow_operations
                .note(ended, self.error_limits.get().slow);
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

    /// Counts and posts a read that is taken for one that failed.
    pub(crate) fn count_failed_read(&self, offset: u64, size: u64, errno: i32) {
        self.stats.borrow_mut().read_errors += 1;
        self.note_io_error();
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
        self.forget_errors();
        if self.health() == Health::Degraded {
            self.enter(LeafState::Online);
        }
    }

    fn forget_errors(&self) {
        self.io_errors.clear();
        self.checksum_errors.clear();
        self.slow_operations.clear();
        self.sit_out.set(SitOut::No);
    }

    /// Closes the device.
    pub(crate) fn close(&self) {
        *self.disk.borrow_mut() = None;
        self.enter(LeafState::Closed);
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
        let injection = self.injection(InjectedIo::Read, offset, len as u64);
        let injection = injection.as_ref();
        let read = faults::read(injection, &disk, offset, len);
        let mut result = self.within(timeout, read).await?;
        if result
            .as_ref()
            .is_err_and(|error| may_retry(error, injection))
        {
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
                self.note_io_error();
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
            self.writes.note_taken(born);
        }
        let injection = self.injection(InjectedIo::Write, offset, len);
        let io = (&disk, DiskAction::Write, offset..offset.saturating_add(len));
        let skipped = || through.then(|| self.handle.now());
        let first = faults::run(injection.as_ref(), io, write(data.clone()), skipped);
        let mut result = self.within(timeout, first).await?;
        let may_retry = |error: &DiskError| may_retry(error, injection.as_ref());
        if result.as_ref().is_err_and(may_retry) {
            result = self.within(timeout, write(data)).await?;
        }
        if through && result.is_ok() {
            result = self.flushed_through(&disk, result).await;
        }
        drop(permit);
        if !through {
            // Again after the write: a flush that ran meanwhile did not cover it.
            self.writes.note_taken(born);
            if !self.is_usable() {
                // It gets no further flush.
                self.writes.note_unflushed_missed();
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
                stats.slow_ios += u64::from(ended > asked + SLOW);
                count_write(&mut stats, class, len, [asked, started, written]);
                drop(stats);
                self.post_if_slow(offset, len, [asked, ended]);
                Ok(())
            }
            Err(error) => {
                self.write_failed(offset, len, &error).await;
                Err(LeafError::Device(error))
            }
        }
    }

    /// Makes of a write that went through what is injected into the flush that is part of it.
    async fn flushed_through<T>(
        &self,
        disk: &Disk,
        written: Result<Option<T>, DiskError>,
    ) -> Result<Option<T>, DiskError> {
        let injection = self.injection(InjectedIo::Flush, 0, 0);
        let io = (disk, DiskAction::Flush, 0..0);
        let done = std::future::ready(written);
        faults::run(injection.as_ref(), io, done, || None).await
    }

    /// Counts and posts a write that failed for good; what follows for the leaf depends on whether it was its flush.
    async fn write_failed(&self, offset: u64, len: u64, error: &DiskError) {
        if is_of_flush(error) {
            self.writes.note_unflushed_missed();
            self.flush_failed(error);
            return;
        }
        self.stats.borrow_mut().write_errors += 1;
        self.note_io_error();
        self.post_failed(offset, len, error);
        self.after_error(error).await;
    }

    /// Makes completed writes durable. After a failure nothing is known about writes since the last good flush, so the
    /// leaf is taken out.
    pub(crate) async fn flush(&self, timeout: Option<Duration>) -> Result<(), LeafError> {
        let disk = self.disk().ok_or(LeafError::Closed)?;
        let covered = self.writes.begin_device_flush();
        let asked = self.handle.now();
        let injection = self.injection(InjectedIo::Flush, 0, 0);
        let io = (&disk, DiskAction::Flush, 0..0);
        let flush = faults::run(injection.as_ref(), io, disk.flush(), || ());
        match self.within(timeout, flush).await {
            Ok(Ok(())) => {
                let taken = nanos(asked, self.handle.now());
                self.stats.borrow_mut().flushes.record(taken);
                Ok(())
            }
            Err(error) => {
                self.writes.device_flush_failed(covered);
                Err(error)
            }
            Ok(Err(error)) => {
                self.writes.device_flush_failed(covered);
                self.flush_failed(&error);
                Err(LeafError::Device(error))
            }
        }
    }

    /// Takes it out: it may have dropped what it had taken, and will not say so a second time.
    fn flush_failed(&self, error: &DiskError) {
        self.stats.borrow_mut().write_errors += 1;
        self.fail(match error {
            DiskError::Gone { .. } => LeafState::Removed,
            _ => LeafState::Faulted {
                reason: "too many errors".to_owned(),
                readable: true,
            },
        });
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
        let injection = self.injection(InjectedIo::Trim, offset, len);
        let io = (
            &disk,
            DiskAction::Discard,
            offset..offset.saturating_add(len),
        );
        let trim = faults::run(injection.as_ref(), io, disk.discard(offset, len), || ());
        let result = trim.await;
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
                self.fail(LeafState::faulted("too many slow I/Os"));
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

    /// Takes it out of service for the administrator, until [`Leaf::allow_reopen`].
    pub(crate) fn take_offline(&self) {
        self.admin_offline.set(true);
        *self.disk.borrow_mut() = None;
        self.enter(LeafState::Offline);
    }

    /// Takes it out of service, because it failed too often.
    pub(crate) fn fault(&self, reason: &str) {
        *self.disk.borrow_mut() = None;
        self.enter(LeafState::faulted(reason));
    }

    /// Marks it, because it gave wrong bytes too often.
    pub(crate) fn degrade(&self, reason: &str) {
        let reason = reason.to_owned();
        self.enter(LeafState::Degraded { reason });
    }

    /// Declares it faulted for the administrator, until [`Leaf::lift_fault`]; whether it was offline stays.
    pub(crate) fn take_faulted(&self) {
        self.admin_fault.set(true);
        self.fault(note::EXTERNAL_FAULT);
    }

    /// Lets it be opened again after [`Leaf::take_faulted`].
    pub(crate) fn lift_fault(&self) {
        self.admin_fault.set(false);
    }

    /// Lets it be opened again after [`Leaf::take_offline`].
    pub(crate) fn allow_reopen(&self) {
        self.admin_offline.set(false);
    }

    /// Puts a distributed spare into service.
    pub(crate) fn start_spare(&self) {
        assert!(self.spare.is_some(), "a spare of a draid has no device");
        self.enter(LeafState::Online);
    }

    /// Whether it is left out of reads that parity makes up for.
    pub(crate) fn sit_out(&self) -> SitOut {
        self.sit_out.get()
    }

    /// Has it sit out, or read again.
    pub(crate) fn set_sit_out(&self, sit_out: SitOut) {
        self.sit_out.set(sit_out);
    }

    /// Has it sit out until a moment, because it is slow.
    pub(crate) fn found_slow(&self, until: Instant) {
        self.sit_out.set(SitOut::Until(until));
        self.stats.borrow_mut().slow_ios += 1;
        self.events.post(self.guid, LeafEventKind::SitOut);
    }

    /// Returns the reads the device has done, and the time they took there in nanoseconds.
    pub(crate) fn reads(&self) -> (u64, u64) {
        let stats = self.stats.borrow();
        let classes =
            [IoClass::SyncRead, IoClass::AsyncRead].map(|class| &stats.classes[class.index()]);
        let waits = classes.map(|class| &class.disk_wait);
        let sums = waits.iter().map(|wait| (wait.count, wait.sum_ns));
        sums.fold((0, 0), |(ops, time), (more, longer)| {
            (ops + more, time.saturating_add(longer))
        })
    }

    /// Sets how many errors are too many.
    pub(crate) fn limit_errors(&self, limits: ErrorLimits) {
        self.error_limits.set(limits);
    }

    fn note_io_error(&self) {
        let limit = self.error_limits.get().io;
        self.io_errors.note(self.handle.now(), limit);
    }

    /// Returns and forgets whether the device failed, and whether it gave wrong bytes or was slow, too often.
    pub(crate) fn take_diagnosis(&self) -> (bool, bool) {
        let (now, limits) = (self.handle.now(), self.error_limits.get());
        let wrong = self.checksum_errors.take_burst(now, limits.checksum);
        let slow = self.slow_operations.take_burst(now, limits.slow);
        let failed = self.io_errors.take_burst(now, limits.io);
        (failed, wrong || slow)
    }

    /// Returns how often it stopped being online since it was first opened.
    pub(crate) fn absences(&self) -> u64 {
        self.absences.get()
    }

    /// Takes it out of service after a failed operation, unless it left service while the operation was under way.
    fn fail(&self, to: LeafState) {
        if self.state.borrow().fails_into(&to) {
            self.enter(to);
        }
    }

    fn enter(&self, to: LeafState) {
        let health = to.health();
        if self.is_usable() && !to.is_in_service() {
            self.absences.set(self.absences.get() + 1);
            // What it had in its cache may not be there when it comes back.
            self.writes.note_unflushed_missed();
        }
        let allowed = self.state.borrow().can_become(&to);
        assert!(allowed, "from {:?} to {to:?}", self.state.borrow());
        let from = self.state.replace(to).health();
        if from != health {
            self.post(LeafEventKind::Health { from, to: health });
        }
    }

    /// Decides after a failed operation whether the device is still good for anything.
    async fn after_error(&self, error: &DiskError) {
        match error {
            DiskError::Gone { .. } => {
                return self.fail(LeafState::Removed);
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
            let injection = self.injection(InjectedIo::Probe, 0, PROBE_BYTES as u64);
            let io = (&disk, DiskAction::Read, 0..PROBE_BYTES as u64);
            let probe = faults::run(injection.as_ref(), io, probe(&disk), || ());
            let answer = runtime::timeout(&self.handle, PROBE_TIMEOUT, probe).await;
            if !matches!(answer, Some(Ok(()))) {
                self.post(LeafEventKind::ProbeFailed);
            }
            match answer {
                Some(Ok(())) => {}
                Some(Err(DiskError::Gone { .. })) => self.fail(LeafState::Removed),
                Some(Err(_)) => self.fail(LeafState::faulted("too many errors")),
                None => self.fail(LeafState::faulted("too many slow I/Os")),
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

fn may_retry(error: &DiskError, injection: Option<&Injection>) -> bool {
    matches!(error, DiskError::Io { .. })
        && !is_of_flush(error)
        && injection.is_none_or(Injection::allows_retry)
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

fn count_write(stats: &mut VdevStats, class: IoClass, bytes: u64, times: [runtime::Instant; 3]) {
    let [asked, _, ended] = times;
    stats.write_ops += 1;
    stats.write_bytes += bytes;
    stats.write_total.record(nanos(asked, ended));
    count_class(stats, class, bytes, times);
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
