//! One modelled disk: a durable image, a volatile cache of unflushed writes, and its state of health.
//!
//! ```text
//!   write submitted -> in flight -> completed: visible to reads, in the cache -> flushed: durable
//!                          \____________________________/
//!                           a power cut keeps, loses or tears these
//! A write that goes through is durable when it is completed. When a boot ends, what is in flight is decided: completed, or
//! failed as a write error leaves it.
//! ```

use std::collections::BTreeMap;
use std::path::PathBuf;

use runtime::IoBuf;

use crate::faults::{CutModel, Faults};
use crate::image::Image;
use crate::rng::Rng;

/// Torn writes tear at this boundary; also the unit of latent errors.
pub(crate) const SECTOR: u64 = 512;

/// What a disk is like.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskModel {
    pub size_bytes: u64,
    pub logical_sector_bytes: u32,
    pub physical_sector_bytes: u32,
    /// Shown to the engine as a block device (else a plain file).
    pub block_device: bool,
    pub faults: Faults,
}

impl DiskModel {
    /// A perfect disk with 512-byte sectors.
    #[must_use]
    pub fn new(size_bytes: u64) -> Self {
        Self {
            size_bytes,
            logical_sector_bytes: 512,
            physical_sector_bytes: 512,
            block_device: false,
            faults: Faults::default(),
        }
    }

    /// The same with the given sector sizes.
    #[must_use]
    pub fn with_sectors(mut self, logical_bytes: u32, physical_bytes: u32) -> Self {
        self.logical_sector_bytes = logical_bytes;
        self.physical_sector_bytes = physical_bytes;
        self
    }

    /// The same with faults.
    #[must_use]
    pub fn with_faults(mut self, faults: Faults) -> Self {
        self.faults = faults;
        self
    }
}

/// Whether the disk answers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Presence {
    Present,
    /// Operations neither end nor fail until the disk is unstuck.
    Stuck,
    /// Operations fail as gone, and it cannot be opened.
    Vanished,
}

#[derive(Clone)]
pub(crate) struct SimDisk {
    pub(crate) path: PathBuf,
    pub(crate) model: DiskModel,
    pub(crate) presence: Presence,
    /// Counts disappearances: opens from before are dead.
    pub(crate) generation: u64,
    pub(crate) writers: u32,
    durable: Image,
    /// What reads see: durable plus completed writes.
    current: Image,
    cache: BTreeMap<u64, CachedWrite>,
    /// First bytes of unreadable sectors.
    latent: BTreeMap<u64, ()>,
}

#[derive(Clone)]
struct CachedWrite {
    offset: u64,
    change: Change,
    completed: bool,
}

#[derive(Clone)]
enum Change {
    Write(IoBuf),
    Discard(u64),
}

impl CachedWrite {
    /// First byte, and the one after the last.
    fn range(&self) -> (u64, u64) {
        let len = match &self.change {
            Change::Write(data) => data.len() as u64,
            Change::Discard(len) => *len,
        };
        (self.offset, self.offset + len)
    }
}

impl SimDisk {
    pub(crate) fn grow(&mut self, size_bytes: u64) {
        self.model.size_bytes = self.model.size_bytes.max(size_bytes);
        self.durable.grow(size_bytes);
        self.current.grow(size_bytes);
    }

    pub(crate) fn new(path: PathBuf, model: DiskModel, image: Image) -> Self {
        assert_eq!(
            model.size_bytes,
            image.size(),
            "the image has the size of the disk"
        );
        Self {
            path,
            model,
            presence: Presence::Present,
            generation: 0,
            writers: 0,
            durable: image.clone(),
            current: image,
            cache: BTreeMap::new(),
            latent: BTreeMap::new(),
        }
    }

    pub(crate) fn durable(&self) -> &Image {
        &self.durable
    }

    /// Whether a power cut now has anything to decide.
    pub(crate) fn has_unflushed(&self) -> bool {
        !self.cache.is_empty()
    }

    pub(crate) fn current(&self) -> &Image {
        &self.current
    }

    /// A write begins; from now on a power cut may leave it on the medium.
    pub(crate) fn begin_write(&mut self, sequence: u64, offset: u64, data: IoBuf) {
        self.cache.insert(
            sequence,
            CachedWrite {
                offset,
                change: Change::Write(data),
                completed: false,
            },
        );
    }

    pub(crate) fn begin_discard(&mut self, sequence: u64, offset: u64, len: u64) {
        self.cache.insert(
            sequence,
            CachedWrite {
                offset,
                change: Change::Discard(len),
                completed: false,
            },
        );
    }

    /// A write ends: reads see it.
    pub(crate) fn complete_write(&mut self, sequence: u64) {
        let Some(write) = self.cache.get_mut(&sequence) else {
            return;
        };
        write.completed = true;
        match &write.change {
            Change::Write(data) => {
                self.current.write(write.offset, data);
                let (start, end) = (write.offset, write.offset + data.len() as u64);
                let healed: Vec<u64> = self
                    .latent
                    .range(start..end)
                    .map(|(&sector, ())| sector)
                    .collect();
                for sector in healed {
                    self.latent.remove(&sector);
                }
            }
            Change::Discard(len) => self.current.clear(write.offset, *len),
        }
    }

    /// A write fails: its sectors are old or new, each for itself.
    pub(crate) fn fail_write(&mut self, sequence: u64, rng: &mut Rng) {
        if let Some(write) = self.cache.remove(&sequence) {
            let torn = torn(&write, rng);
            for (offset, data) in &torn {
                self.current.write(*offset, data);
                self.durable.write(*offset, data);
            }
        }
    }

    /// The host that submitted writes is gone: what those come to that are in flight is decided now. None may come later,
    /// over what the next host has written.
    pub(crate) fn settle(&mut self, rng: &mut Rng) {
        let in_flight = self.cache.iter().filter(|(_, write)| !write.completed);
        let in_flight: Vec<u64> = in_flight.map(|(&sequence, _)| sequence).collect();
        for sequence in in_flight {
            match rng.coin() {
                true => self.complete_write(sequence),
                false => self.fail_write(sequence, rng),
            }
        }
    }

    /// The writes a flush submitted now covers: those completed.
    pub(crate) fn flushable(&self) -> Vec<u64> {
        self.cache
            .iter()
            .filter(|(_, write)| write.completed)
            .map(|(&sequence, _)| sequence)
            .collect()
    }

    /// A flush ends: what it covers is durable.
    pub(crate) fn complete_flush(&mut self, covered: &[u64]) {
        let flushed: Vec<CachedWrite> = covered
            .iter()
            .filter_map(|sequence| self.cache.remove(sequence))
            .collect();
        // With nothing left in the cache, what reads see is what is durable.
        if self.cache.is_empty() {
            self.durable = self.current.clone();
            return;
        }
        for write in &flushed {
            apply(&mut self.durable, write);
        }
    }

    /// A write ends that went through: it is durable, and so is what it lies over.
    pub(crate) fn complete_through(&mut self, sequence: u64) {
        self.complete_write(sequence);
        let Some(write) = self.cache.get(&sequence) else {
            return;
        };
        let (start, end) = write.range();
        let touches = |other: &CachedWrite| {
            let (from, to) = other.range();
            other.completed && from < end && start < to
        };
        let covered: Vec<u64> = self
            .cache
            .iter()
            .filter(|(number, other)| **number <= sequence && touches(other))
            .map(|(&number, _)| number)
            .collect();
        self.complete_flush(&covered);
    }

    /// Unreadable sectors within a range.
    pub(crate) fn latent_in(&self, offset: u64, len: u64) -> bool {
        let first = offset - offset % SECTOR;
        self.latent.range(first..offset + len).next().is_some()
    }

    pub(crate) fn add_latent(&mut self, offset: u64) {
        self.latent.insert(offset - offset % SECTOR, ());
    }

    pub(crate) fn forget_latent(&mut self) {
        self.latent.clear();
    }

    /// Changes bytes without a write, durably.
    pub(crate) fn damage(&mut self, offset: u64, data: &[u8]) {
        self.current.write(offset, data);
        self.durable.write(offset, data);
    }

    /// Power goes: the cache is resolved, and what is left is both durable and visible.
    pub(crate) fn cut(&mut self, model: CutModel, rng: &mut Rng) {
        let cache = std::mem::take(&mut self.cache);
        let mut writes: Vec<CachedWrite> = cache.into_values().collect();
        match model {
            CutModel::LoseAll => writes.clear(),
            CutModel::KeepAll => {}
            CutModel::Prefix => {
                let kept = rng.index(writes.len() + 1);
                if let Some(last) = writes.get(kept) {
                    let parts = torn(last, rng);
                    writes.truncate(kept);
                    writes.extend(parts.into_iter().map(part));
                } else {
                    writes.truncate(kept);
                }
            }
            CutModel::Subset => {
                // Some cuts lose little, some much.
                let kept_per_million = u32::try_from(rng.below(1_000_001)).expect("a million");
                let torn_per_million = *rng.choose(&[0, 50_000, 500_000]);
                let mut kept = Vec::new();
                for write in writes {
                    if rng.chance(torn_per_million) {
                        kept.extend(torn(&write, rng).into_iter().map(part));
                    } else if rng.chance(kept_per_million) {
                        kept.push(write);
                    }
                }
                writes = kept;
            }
        }
        for write in &writes {
            apply(&mut self.durable, write);
        }
        self.current = self.durable.clone();
        self.writers = 0;
        self.generation += 1;
    }
}

fn apply(image: &mut Image, write: &CachedWrite) {
    match &write.change {
        Change::Write(data) => image.write(write.offset, data),
        Change::Discard(len) => image.clear(write.offset, *len),
    }
}

fn part((offset, data): (u64, IoBuf)) -> CachedWrite {
    CachedWrite {
        offset,
        change: Change::Write(data),
        completed: true,
    }
}

/// The sectors of a write that made it: a beginning, an end, or any of them.
fn torn(write: &CachedWrite, rng: &mut Rng) -> Vec<(u64, IoBuf)> {
    let Change::Write(data) = &write.change else {
        return Vec::new();
    };
    let sector = usize::try_from(SECTOR).expect("small");
    let count = data.len().div_ceil(sector);
    let shape = rng.below(3);
    let point = rng.index(count + 1);
    (0..count)
        .filter(|&index| match shape {
            0 => index < point,
            1 => index >= point,
            _ => rng.coin(),
        })
        .map(|index| {
            let range = index * sector..((index + 1) * sector).min(data.len());
            (write.offset + range.start as u64, data.slice(range))
        })
        .collect()
}
