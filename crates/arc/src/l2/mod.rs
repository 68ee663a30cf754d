//! The second level: blocks on cache devices.
//!
//! A task writes blocks that are about to leave memory to the devices, at most so many bytes a second and so many times the
//! device's size a day; a miss in memory looks there before it goes to the pool. The devices keep a log of what they hold, which is
//! read at import.
//!
//! Guarantees: a cache device may return wrong bytes, hang or vanish: what comes from it is checked against the block's own checksum,
//! waits for it end, and after a write error, or many read errors, it is not used any more. At most 40 bytes of memory a block.

mod address_table;
mod feed;
mod rebuild;
mod ring;

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use ondisk::BlockPointer;
use runtime::{Disk, IoBuf};
use zio::{BlockKeys, Forms};

use crate::Cache;
use crate::identity::{Identity, block_hash};
use address_table::{L2Address, Table};
use ring::Ring;

/// A cache device takes longer than this: the pool is asked instead.
const READ_TIMEOUT: Duration = Duration::from_secs(1);
/// Reads in a row that failed before a device is left alone.
const READ_FAILURES_MAX: u32 = 16;
/// Reads of one device at once; more go to the pool.
const READS_MAX: u32 = 128;

/// A cache device to be used.
pub struct CacheDevice {
    /// Its guid.
    pub guid: u64,
    /// The pool's guid.
    pub pool_guid: u64,
    /// The device.
    pub disk: Disk,
    /// log2 of its sector.
    pub ashift: u8,
    /// Its bytes, rounded down to whole labels (256 KiB).
    pub size: u64,
    /// The pool may be written.
    pub writable: bool,
    /// It is new to the pool: what a header on it says is ignored.
    pub fresh: bool,
}

/// How cache devices are fed and used. The names are OpenZFS's where it has them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct L2Tuning {
    /// Most bytes written to a device at a time (`l2arc_write_max`).
    pub write_max: u64,
    /// More bytes at a time until the device was full once (`l2arc_write_boost`).
    pub write_boost: u64,
    /// How many times `write_max` of the blocks next to be evicted are looked at, for each list (`l2arc_headroom`).
    pub headroom: u64,
    /// Between two times when little is written (`l2arc_feed_secs`).
    pub feed_interval: Duration,
    /// Between two times when much is written (`l2arc_feed_min_ms`).
    pub feed_interval_min: Duration,
    /// Blocks that were read ahead and never asked for are not written (`l2arc_noprefetch`).
    pub no_prefetch: bool,
    /// Only frequently used blocks are written: 1; 2 keeps recently used metadata too (`l2arc_mfuonly`).
    pub frequent_only: u8,
    /// Devices are refilled from their logs at import (`l2arc_rebuild_enabled`).
    pub rebuild: bool,
    /// Most percent of the cache's memory for the index of the devices (`l2arc_meta_percent`).
    pub memory_percent: u8,
    /// Times the device's size that may be written in a day, after it was full once; 0 is no bound
    /// (`l2arc_device_writes_per_day`; ours).
    pub writes_per_day: u32,
}

impl Default for L2Tuning {
    fn default() -> Self {
        Self {
            write_max: 32 << 20,
            write_boost: 32 << 20,
            headroom: 8,
            feed_interval: Duration::from_secs(1),
            feed_interval_min: Duration::from_millis(200),
            no_prefetch: true,
            frequent_only: 0,
            rebuild: true,
            memory_percent: 33,
            writes_per_day: 10,
        }
    }
}

/// Counters of all cache devices of a pool.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct L2Stats {
    /// Misses in memory answered by a cache device.
    pub hits: u64,
    /// Misses in memory that no cache device had.
    pub misses: u64,
    /// Bytes read from cache devices.
    pub read_bytes: u64,
    /// Bytes written to cache devices.
    pub write_bytes: u64,
    /// Times the devices were fed.
    pub feeds: u64,
    /// Times nothing was written because the day's writes were used up.
    pub feeds_spared: u64,
    /// Blocks on cache devices.
    pub blocks: usize,
    /// Bytes those take there.
    pub allocated_bytes: u64,
    /// Bytes of memory their index takes.
    pub index_bytes: usize,
    /// Reads of a device that failed or took too long.
    pub io_errors: u64,
    /// Blocks whose bytes were not the right ones.
    pub checksum_errors: u64,
    /// Blocks found in the logs of devices at import.
    pub rebuilt_blocks: u64,
    /// Log blocks written.
    pub log_blocks_written: u64,
}

/// One cache device as it stands.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CacheDeviceStats {
    /// Its guid.
    pub guid: u64,
    /// Bytes it has room for.
    pub size_bytes: u64,
    /// Bytes in use.
    pub allocated_bytes: u64,
    /// Reads, and their bytes.
    pub read_ops: u64,
    /// See `read_ops`.
    pub read_bytes: u64,
    /// Writes, and their bytes.
    pub write_ops: u64,
    /// See `write_ops`.
    pub write_bytes: u64,
    /// Reads the device refused or did not answer.
    pub read_errors: u64,
    /// Writes the device refused.
    pub write_errors: u64,
    /// Blocks whose bytes were not the right ones.
    pub checksum_errors: u64,
    /// It is left alone after errors.
    pub failed: bool,
    /// Its log is being read.
    pub rebuilding: bool,
}

pub(crate) struct Device {
    guid: u64,
    disk: Disk,
    number: u8,
    writable: bool,
    ring: RefCell<Ring>,
    failed: Cell<bool>,
    gone: Cell<bool>,
    rebuilding: Cell<bool>,
    reading: Cell<u32>,
    failures: Cell<u32>,
    /// Bytes that may still be written, and when that was reckoned, in nanoseconds.
    allowance: Cell<(u64, u64)>,
    stats: RefCell<CacheDeviceStats>,
}

/// The cache devices of a cache.
#[derive(Default)]
pub(crate) struct L2 {
    devices: Vec<Rc<Device>>,
    table: Table,
    tuning: L2Tuning,
    stats: L2Stats,
    feeding: bool,
}

impl L2 {
    pub(crate) fn new(tuning: L2Tuning) -> Self {
        Self {
            tuning,
            ..Self::default()
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.devices.is_empty()
    }

    /// A block was freed.
    pub(crate) fn forget(&mut self, identity: &Identity) {
        if let Some(address) = self.table.remove(name(identity)) {
            self.give_up(address);
        }
    }

    pub(crate) fn index_bytes(&self) -> usize {
        if self.devices.is_empty() {
            return 0;
        }
        let orders: usize = self
            .devices
            .iter()
            .map(|device| device.ring.borrow().order.bytes())
            .sum();
        self.table.bytes() + orders
    }

    fn give_up(&self, address: L2Address) {
        if let Some(device) = self.device(address.device()) {
            device.ring.borrow_mut().give_up(address.psize());
        }
    }

    fn device(&self, number: u8) -> Option<&Rc<Device>> {
        self.devices.iter().find(|device| device.number == number)
    }

    /// Forgets all blocks of a device.
    fn drop_blocks(&mut self, device: &Device) {
        let mut ring = device.ring.borrow_mut();
        for name in ring.order.names() {
            if self
                .table
                .get(name)
                .is_some_and(|address| address.device() == device.number)
            {
                self.table.remove(name);
            }
        }
        ring.order = address_table::Order::default();
        ring.allocated = 0;
    }
}

/// Returns the key of a block in the index of cache devices.
fn name(identity: &Identity) -> u64 {
    block_hash(identity.vdev, identity.offset, identity.birth)
}

impl Cache {
    /// Begins to use a cache device: reads its header and, in the background, its log; then feeds it. A device that is too
    /// small, or the 256th, is not used.
    pub async fn add_device(&self, device: CacheDevice) {
        let CacheDevice {
            guid,
            pool_guid,
            disk,
            ashift,
            size,
            writable,
            fresh,
        } = device;
        let Some(ring) = Ring::new(pool_guid, guid, size, ashift) else {
            return;
        };
        self.remove_device(guid).await;
        let device = {
            let mut l2 = self.0.l2.borrow_mut();
            let Some(number) = (0..=u8::MAX).find(|&number| l2.device(number).is_none()) else {
                return;
            };
            let allowance = ring.room();
            let device = Rc::new(Device {
                guid,
                disk,
                number,
                writable,
                ring: RefCell::new(ring),
                failed: Cell::new(false),
                gone: Cell::new(false),
                rebuilding: Cell::new(true),
                reading: Cell::new(0),
                failures: Cell::new(0),
                allowance: Cell::new((allowance, self.0.handle.now().as_nanos())),
                stats: RefCell::default(),
            });
            l2.devices.push(Rc::clone(&device));
            device
        };
        self.0.state.borrow_mut().keep_stored = true;
        self.begin_rebuild(&device, fresh).await;
        self.begin_feeding();
    }

    /// Ends the use of a cache device; nothing is read from it or written to it any more when this returns, but for a read it
    /// does not answer. Returns whether there was one of this guid.
    pub async fn remove_device(&self, guid: u64) -> bool {
        let device = {
            let mut l2 = self.0.l2.borrow_mut();
            let at = l2.devices.iter().position(|device| device.guid == guid);
            let Some(at) = at else { return false };
            let device = Rc::clone(&l2.devices[at]);
            device.gone.set(true);
            l2.drop_blocks(&device);
            l2.devices.remove(at);
            if l2.devices.is_empty() {
                self.0.state.borrow_mut().keep_stored = false;
            }
            device
        };
        // The rebuild and a feed under way see that it is gone between two steps.
        let deadline = self.0.handle.now() + READ_TIMEOUT;
        while (device.reading.get() > 0 || device.rebuilding.get())
            && self.0.handle.now() < deadline
        {
            self.0.handle.sleep(Duration::from_millis(1)).await;
        }
        if device.writable && !device.failed.get() {
            // What its header says is found after a power cut too.
            let disk = device.disk.clone();
            let flush = self
                .0
                .handle
                .spawn("flush of a cache device", async move { disk.flush().await });
            drop(runtime::timeout(&self.0.handle, READ_TIMEOUT, flush).await);
        }
        self.charge_index();
        true
    }

    /// Returns the cache devices as they stand.
    #[must_use]
    pub fn devices(&self) -> Vec<CacheDeviceStats> {
        let l2 = self.0.l2.borrow();
        l2.devices
            .iter()
            .map(|device| {
                let ring = device.ring.borrow();
                CacheDeviceStats {
                    guid: device.guid,
                    size_bytes: ring.room(),
                    allocated_bytes: ring.allocated,
                    failed: device.failed.get(),
                    rebuilding: device.rebuilding.get(),
                    ..device.stats.borrow().clone()
                }
            })
            .collect()
    }

    /// Returns the counters of all cache devices together.
    #[must_use]
    pub fn l2_stats(&self) -> L2Stats {
        let l2 = self.0.l2.borrow();
        L2Stats {
            blocks: l2.table.len(),
            allocated_bytes: l2
                .devices
                .iter()
                .map(|device| device.ring.borrow().allocated)
                .sum(),
            index_bytes: l2.index_bytes(),
            ..l2.stats.clone()
        }
    }

    /// Returns how cache devices are fed.
    #[must_use]
    pub fn l2_tuning(&self) -> L2Tuning {
        self.0.l2.borrow().tuning.clone()
    }

    /// Changes how cache devices are fed, from the next feed on.
    pub fn set_l2_tuning(&self, tuning: L2Tuning) {
        self.0.l2.borrow_mut().tuning = tuning;
    }

    /// Reads a block from a cache device, if one has it and gives the right bytes.
    pub(crate) async fn read_device(
        &self,
        identity: &Identity,
        bp: &BlockPointer,
        keys: Option<&BlockKeys>,
    ) -> Option<Forms> {
        let (device, address) = {
            let mut l2 = self.0.l2.borrow_mut();
            if l2.devices.is_empty() {
                return None;
            }
            let found = l2.table.get(name(identity));
            let found =
                found.and_then(|address| Some((Rc::clone(l2.device(address.device())?), address)));
            let usable = found.filter(|(device, address)| {
                !device.failed.get()
                    && device.reading.get() < READS_MAX
                    && address.psize() == bp.psize()
            });
            let Some(found) = usable else {
                l2.stats.misses += 1;
                return None;
            };
            found
        };
        device.reading.set(device.reading.get() + 1);
        let bytes = self.read_at(&device, address).await;
        device.reading.set(device.reading.get() - 1);
        let forms = match bytes {
            Some(bytes) => self.0.store.verify(bp, bytes, keys).await,
            None => {
                self.0.l2.borrow_mut().stats.misses += 1;
                return None;
            }
        };
        let mut l2 = self.0.l2.borrow_mut();
        if forms.is_some() {
            l2.stats.hits += 1;
            l2.stats.read_bytes += bp.psize();
        } else {
            // Rotten, or overwritten in the meantime.
            l2.stats.misses += 1;
            if l2.table.get(name(identity)) == Some(address) {
                l2.stats.checksum_errors += 1;
                device.stats.borrow_mut().checksum_errors += 1;
                l2.forget(identity);
            }
        }
        forms
    }

    /// Reads from a device, for at most [`READ_TIMEOUT`].
    async fn read_at(&self, device: &Rc<Device>, address: L2Address) -> Option<IoBuf> {
        let disk = device.disk.clone();
        let sector = device.ring.borrow().sector;
        let len = usize::try_from(address.psize().next_multiple_of(sector)).ok()?;
        // A task of its own: it goes on after the timeout.
        let read = self.0.handle.spawn("read of a cache device", async move {
            disk.read(address.daddr(), len).await
        });
        let result = runtime::timeout(&self.0.handle, READ_TIMEOUT, read).await;
        let mut stats = device.stats.borrow_mut();
        if let Some(Ok(bytes)) = result {
            device.failures.set(0);
            stats.read_ops += 1;
            stats.read_bytes += bytes.len() as u64;
            return Some(bytes);
        }
        stats.read_errors += 1;
        drop(stats);
        device.failures.set(device.failures.get() + 1);
        self.0.l2.borrow_mut().stats.io_errors += 1;
        if device.failures.get() >= READ_FAILURES_MAX {
            self.give_up_device(device);
        }
        None
    }

    /// Leaves a device alone from now on.
    fn give_up_device(&self, device: &Device) {
        if !device.failed.replace(true) {
            self.0.l2.borrow_mut().drop_blocks(device);
            self.charge_index();
        }
    }

    /// Charges the memory of the index against the cache.
    fn charge_index(&self) {
        let bytes = self.0.l2.borrow().index_bytes();
        self.0.state.borrow_mut().charge_index(bytes);
    }
}
