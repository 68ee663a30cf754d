//! Feeding the cache devices: which blocks, how many, how often.
//!
//! Written are blocks about to leave memory, metadata before data and frequently used before recently used ones, that are on
//! no device yet. A device that was full once is spared: it takes so many times its size a day and no more.

use std::rc::{Rc, Weak};

use codec::checksum;
use codec::compress;
use ondisk::l2arc::{HEADER_AT, LOG_BLOCK_BYTES, LogEntry};
use runtime::{IoBuf, IoBufMut};

use super::address_table::L2Address;
use super::{Device, name};
use crate::identity::Identity;
use crate::policy::{List, PREFETCHED};
use crate::{Cache, CacheShared};

/// Bytes written at once.
const WRITE_BYTES: usize = 1 << 20;
/// What a device must be able to take for a feed to be worth it.
const FEED_MIN: u64 = 2 * LOG_BLOCK_BYTES as u64;
/// Nanoseconds in a day.
const DAY: u128 = 86_400_000_000_000;

/// A block chosen to be written.
struct Candidate {
    identity: Identity,
    entry: LogEntry,
    bytes: IoBuf,
}

impl Cache {
    pub(super) fn begin_feeding(&self) {
        if std::mem::replace(&mut self.0.l2.borrow_mut().feeding, true) {
            return;
        }
        let weak = Rc::downgrade(&self.0);
        drop(self.0.handle.spawn("feeding cache devices", feed(weak)));
    }

    /// Feeds every device once; returns whether it is worth coming back soon.
    async fn feed_devices(&self) -> bool {
        let devices = self.0.l2.borrow().devices.clone();
        let mut much = false;
        for device in devices {
            let usable = !device.failed.get()
                && !device.gone.get()
                && !device.rebuilding.get()
                && device.writable;
            if !usable {
                continue;
            }
            let target = self.target(&device);
            if target < FEED_MIN {
                self.0.l2.borrow_mut().stats.feeds_spared += 1;
                continue;
            }
            let written = self.feed_device(&device, target).await;
            much |= written > target / 2;
        }
        self.charge_index();
        much
    }

    /// Bytes that may be written to a device now.
    fn target(&self, device: &Device) -> u64 {
        let l2 = self.0.l2.borrow();
        let state = self.0.state.borrow();
        let memory = state.limit / 100 * usize::from(l2.tuning.memory_percent);
        if l2.index_bytes() > memory {
            return 0;
        }
        let ring = device.ring.borrow();
        let mut target = l2.tuning.write_max;
        if ring.header.first {
            target += l2.tuning.write_boost;
        }
        target = target.min(ring.room() / 4);
        if l2.tuning.writes_per_day > 0 {
            let now = self.0.handle.now().as_nanos();
            let (left, then) = device.allowance.get();
            let earned = u128::from(ring.room())
                * u128::from(l2.tuning.writes_per_day)
                * u128::from(now.saturating_sub(then))
                / DAY;
            let earned = u64::try_from(earned).unwrap_or(u64::MAX);
            let left = left.saturating_add(earned).min(ring.room());
            // Fractions of a byte are not lost: time passes only when something was earned.
            if earned > 0 {
                device.allowance.set((left, now));
            }
            target = target.min(left);
        }
        target
    }

    /// The blocks to be written, in order, with what they take on the device at most `target`.
    fn choose(&self, device: &Device, target: u64) -> Vec<Candidate> {
        let l2 = self.0.l2.borrow();
        let state = self.0.state.borrow();
        let ring = device.ring.borrow();
        let headroom = target.saturating_mul(l2.tuning.headroom.max(1));
        let mut left = target - LOG_BLOCK_BYTES as u64;
        // Each full set of entries brings a log block with it.
        let share = LOG_BLOCK_BYTES as u64 / ring.header.log_entries.max(1);
        let mut chosen = Vec::new();
        let passes = [
            (List::Frequent, true),
            (List::Recent, true),
            (List::Frequent, false),
            (List::Recent, false),
        ];
        for (list, metadata) in passes {
            let skip = match l2.tuning.frequent_only {
                0 => false,
                1 => list == List::Recent,
                _ => list == List::Recent && !metadata,
            };
            if skip {
                continue;
            }
            let mut passed = 0;
            state
                .policy
                .oldest(list, metadata, |identity, body, flags| {
                    passed += u64::from(body.lsize);
                    if passed > headroom {
                        return false;
                    }
                    let unused = flags & PREFETCHED != 0 && l2.tuning.no_prefetch;
                    let Some(bytes) = body.on_disk() else {
                        return true;
                    };
                    if unused || !body.facts.second_level || l2.table.get(name(identity)).is_some()
                    {
                        return true;
                    }
                    let psize = bytes.len() as u64;
                    let cost = ring.asize(psize) + share;
                    if cost > left {
                        return false;
                    }
                    left -= cost;
                    chosen.push(Candidate {
                        identity: *identity,
                        entry: LogEntry {
                            vdev: identity.vdev,
                            offset: identity.offset,
                            asize: u64::from(body.facts.sectors) << 9,
                            gang: body.facts.gang,
                            birth: identity.birth,
                            lsize: u64::from(body.lsize),
                            psize,
                            compression: body.facts.compression,
                            metadata,
                            frequent: list == List::Frequent,
                            daddr: 0,
                        },
                        bytes: bytes.clone(),
                    });
                    true
                });
        }
        chosen
    }

    /// Writes blocks to a device, with the log blocks that fall due and the header; returns the bytes written.
    async fn feed_device(&self, device: &Rc<Device>, target: u64) -> u64 {
        let chosen = self.choose(device, target);
        let moved = {
            let mut l2 = self.0.l2.borrow_mut();
            let mut ring = device.ring.borrow_mut();
            let before = ring.header.evict;
            if !chosen.is_empty() {
                ring.make_room(target, device.number, &mut l2.table);
            }
            ring.header.evict != before
        };
        if chosen.is_empty() {
            return 0;
        }
        if moved {
            // The header first: it must not refer to log blocks that are being overwritten.
            self.write_header(device).await;
        }
        let mut run = Run::default();
        let mut placed = Vec::with_capacity(chosen.len());
        let mut written = 0;
        for candidate in chosen {
            let (sector, daddr, due) = {
                let mut ring = device.ring.borrow_mut();
                let (daddr, due) = ring.append(candidate.entry);
                (ring.sector, daddr, due)
            };
            run.add(daddr, &candidate.bytes, sector);
            if let Some(address) = L2Address::new(device.number, daddr, candidate.entry.psize) {
                placed.push((candidate.identity, address));
            }
            if due {
                let at = device.ring.borrow().hand;
                let bytes = device.ring.borrow_mut().place_log(pack, fletcher4);
                run.add(at, &bytes, sector);
                self.0.l2.borrow_mut().stats.log_blocks_written += 1;
            }
            if run.bytes.len() >= WRITE_BYTES {
                written += self.write_run(device, std::mem::take(&mut run)).await;
            }
        }
        written += self.write_run(device, run).await;
        if device.failed.get() || device.gone.get() {
            return 0;
        }
        {
            let mut l2 = self.0.l2.borrow_mut();
            for (identity, address) in placed {
                let name = name(&identity);
                if let Some(before) = l2.table.insert(name, address) {
                    l2.give_up(before);
                }
                device.ring.borrow_mut().order.push_newest(name);
            }
            l2.stats.feeds += 1;
            l2.stats.write_bytes += written;
            let (left, then) = device.allowance.get();
            device.allowance.set((left.saturating_sub(written), then));
        }
        self.write_header(device).await;
        written
    }

    async fn write_run(&self, device: &Device, run: Run) -> u64 {
        let len = run.bytes.len() as u64;
        if len == 0 || device.failed.get() || device.gone.get() {
            return 0;
        }
        let mut buf = IoBufMut::scratch(run.bytes.len());
        buf.copy_from_slice(&run.bytes);
        if self.write(device, run.start, buf.freeze()).await {
            len
        } else {
            0
        }
    }

    pub(super) async fn write_header(&self, device: &Device) {
        let bytes = {
            let ring = device.ring.borrow();
            let sector = usize::try_from(ring.sector).unwrap_or(512);
            ring.header.encode(sector, sha256)
        };
        self.write(device, HEADER_AT, IoBuf::copy_from(&bytes))
            .await;
    }

    /// Writes to a device; the first error ends its use.
    async fn write(&self, device: &Device, at: u64, bytes: IoBuf) -> bool {
        if device.gone.get() {
            return false;
        }
        let len = bytes.len() as u64;
        let done = device.disk.write(at, bytes).await.is_ok();
        let mut stats = device.stats.borrow_mut();
        if done {
            stats.write_ops += 1;
            stats.write_bytes += len;
        } else {
            stats.write_errors += 1;
            drop(stats);
            self.give_up_device(device);
        }
        done
    }
}

/// Bytes that lie one after the other on a device.
#[derive(Default)]
struct Run {
    start: u64,
    bytes: Vec<u8>,
}

impl Run {
    fn add(&mut self, at: u64, bytes: &[u8], sector: u64) {
        if self.bytes.is_empty() {
            self.start = at;
        }
        self.bytes.extend_from_slice(bytes);
        let sector = usize::try_from(sector).unwrap_or(512);
        self.bytes
            .resize(self.bytes.len().next_multiple_of(sector), 0);
    }
}

/// Feeds the devices of a cache for as long as there are both.
async fn feed(cache: Weak<CacheShared>) {
    let mut soon = false;
    loop {
        let Some((handle, wait)) = cache.upgrade().map(|inner| {
            let tuning = &inner.l2.borrow().tuning;
            let wait = if soon {
                tuning.feed_interval_min
            } else {
                tuning.feed_interval
            };
            (inner.handle.clone(), wait)
        }) else {
            return;
        };
        handle.sleep(wait).await;
        let Some(cache) = cache.upgrade().map(Cache) else {
            return;
        };
        if cache.0.l2.borrow().is_empty() {
            cache.0.l2.borrow_mut().feeding = false;
            return;
        }
        soon = cache.feed_devices().await;
    }
}

pub(super) fn sha256(bytes: &[u8]) -> [u64; 4] {
    checksum::compute(checksum::Algorithm::Sha256, &[0; 32], bytes)
}

pub(super) fn fletcher4(bytes: &[u8]) -> [u64; 4] {
    checksum::compute(checksum::Algorithm::Fletcher4, &[0; 32], bytes)
}

fn pack(bytes: &[u8]) -> Option<Vec<u8>> {
    compress::compress(compress::Algorithm::Lz4, bytes, bytes.len() - 512)
}
