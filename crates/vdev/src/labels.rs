//! Labels and the uberblock ring of one device.
//!
//! Each leaf holds four copies; all copies of the configuration are equal but for their embedded checksum, which is
//! seeded with the absolute device offset.
//! Guarantees: what is returned passed its checksum; bad labels are states of the answer, never errors or panics.
//! Does not know what the configuration means.

use std::collections::BTreeMap;
use std::time::Duration;

use codec::checksum::{Algorithm, compute};
use ondisk::label::{
    self, BOOT_ENV, LABEL_COUNT, LABEL_SIZE, NVLIST, NVLIST_MAX, RING, label_verifier,
};
use ondisk::nvlist::NvList;
use ondisk::{Txg, Uberblock};
use runtime::{Disk, DiskError, IoBuf, IoBufMut};

use crate::VdevError;

// The parts of a label follow each other without a gap, and the ring ends it.
const _: () = assert!(BOOT_ENV.0 + BOOT_ENV.1 as u64 == NVLIST.0);
const _: () = assert!(NVLIST.0 + NVLIST.1 as u64 == RING.0);
const _: () = assert!(RING.0 + RING.1 as u64 == LABEL_SIZE);

/// How long a label may take to be read. Kernels give up on a command after 30 seconds, and then may try again without end.
const LABEL_TIMEOUT: Duration = Duration::from_secs(30);

/// As [`LABEL_TIMEOUT`], of a disk that had its time when the pool was looked for.
const KNOWN_TIMEOUT: Duration = Duration::from_secs(10);

/// One label's configuration as read.
#[derive(Debug, Clone)]
pub enum LabelState {
    /// Checksum and nvlist are good.
    Valid(Box<NvList>),
    /// The label could not be read, or no answer came within half a minute.
    Unreadable,
    /// Never written or zeroed.
    Empty,
    /// Checksum or nvlist is bad.
    Bad,
}

/// An uberblock found in a ring.
#[derive(Debug, Clone)]
pub struct FoundUberblock {
    /// Which label (0-3).
    pub label: u8,
    /// Slot in the ring.
    pub slot: u32,
    /// The uberblock, its checksum verified.
    pub uberblock: Uberblock,
}

/// All four labels of a device.
#[derive(Debug, Clone)]
pub struct LabelSet {
    /// Device bytes rounded down to 256 KiB.
    pub psize: u64,
    /// The four configurations.
    pub labels: [LabelState; LABEL_COUNT],
    /// Every valid uberblock of the four rings.
    pub uberblocks: Vec<FoundUberblock>,
}

impl LabelSet {
    /// Reads and verifies all four labels of a device of any size (too small: all unreadable).
    ///
    /// # Errors
    /// None at present: a label that cannot be read is [`LabelState::Unreadable`].
    pub async fn read(disk: &Disk) -> Result<Self, VdevError> {
        let size = disk.size_bytes();
        let mut set = Self {
            psize: label::usable_size(size),
            labels: std::array::from_fn(|_| LabelState::Unreadable),
            uberblocks: Vec::new(),
        };
        let reads = (0..LABEL_COUNT).map(|which| async move {
            let offset = label::label_offset(size, which)?;
            // The first 16 KiB (pad and boot environment) are not needed.
            let skip = NVLIST.0;
            let len = usize::try_from(LABEL_SIZE - skip).expect("a label fits");
            disk.read_within(offset + skip, len, LABEL_TIMEOUT)
                .await
                .ok()
                .map(|bytes| (offset, bytes))
        });
        let found = runtime::join_all(reads).await;
        let mut configs: Vec<(&[u8], LabelState)> = Vec::new();
        for (which, read) in found.iter().enumerate() {
            if let Some((offset, bytes)) = read {
                let block = &bytes[..NVLIST.1];
                let twin = configs.iter().find(|(known, _)| repeats(block, known));
                set.labels[which] = match twin {
                    Some((_, state)) => state.clone(),
                    None => decode_config(block, offset + NVLIST.0),
                };
                if let (None, LabelState::Valid(_)) = (twin, &set.labels[which]) {
                    configs.push((block, set.labels[which].clone()));
                }
            }
        }
        set.find_uberblocks(&found);
        Ok(set)
    }

    /// Finds the valid uberblocks in the rings of the labels that could be read: offset and bytes of each from its configuration on.
    fn find_uberblocks(&mut self, found: &[Option<(u64, IoBuf)>]) {
        // The ring's slot size follows the ashift of the top-level vdev; without a configuration, try them all.
        let ashift = self
            .best_config()
            .and_then(|config| config.list("vdev_tree"))
            .and_then(|tree| tree.u64("ashift"))
            .filter(|ashift| (9..=16).contains(ashift));
        let slot_sizes: Vec<usize> = ashift.map_or_else(
            || (10..=13).map(|shift| 1 << shift).collect(),
            |ashift| vec![label::uberblock_slot_size(ashift)],
        );
        let mut verified: BTreeMap<(usize, usize), Vec<&[u8]>> = BTreeMap::new();
        for (which, read) in found.iter().enumerate() {
            let Some((offset, bytes)) = read else {
                continue;
            };
            let ring = &bytes[NVLIST.1..];
            for &size in &slot_sizes {
                for (slot, block) in ring.chunks_exact(size).enumerate() {
                    // Cheap look first: hashing 128 empty slots of every label costs more than the read.
                    let Ok(uberblock) = Uberblock::decode(block) else {
                        continue;
                    };
                    let at = offset + RING.0 + (slot * size) as u64;
                    let twins = verified.entry((size, slot)).or_default();
                    let is_twin = twins.iter().any(|known| repeats(block, known));
                    if is_twin || label::verify(block, label_verifier(at), sha256) {
                        if !is_twin {
                            twins.push(block);
                        }
                        self.uberblocks.push(FoundUberblock {
                            label: u8::try_from(which).expect("four labels"),
                            slot: u32::try_from(slot).expect("at most 128 slots"),
                            uberblock,
                        });
                    }
                }
            }
        }
    }

    /// Returns the configuration with the highest txg among the valid labels.
    #[must_use]
    pub fn best_config(&self) -> Option<&NvList> {
        self.labels
            .iter()
            .filter_map(|label| match label {
                LabelState::Valid(config) => Some(&**config),
                _ => None,
            })
            .max_by_key(|config| config.u64("txg").unwrap_or(0))
    }

    /// Returns the configuration that counts: the newest whose txg an uberblock of the device completes. (Another was
    /// written by a txg cut short.) Of devices without uberblocks, the newest.
    #[must_use]
    pub fn current_config(&self) -> Option<&NvList> {
        let last = self.best_uberblock(None).map(|uberblock| uberblock.txg.0);
        let complete = |config: &&NvList| {
            let txg = config.u64("txg").unwrap_or(0);
            last.is_some_and(|last| txg <= last)
        };
        self.labels
            .iter()
            .filter_map(|label| match label {
                LabelState::Valid(config) => Some(&**config),
                _ => None,
            })
            .filter(complete)
            .max_by_key(|config| config.u64("txg").unwrap_or(0))
            .or_else(|| self.best_config())
    }

    /// Returns the newest uberblock with txg at most `max` (by txg, timestamp, multihost sequence).
    #[must_use]
    pub fn best_uberblock(&self, max: Option<Txg>) -> Option<&Uberblock> {
        self.uberblocks
            .iter()
            .map(|found| &found.uberblock)
            .filter(|uberblock| max.is_none_or(|max| uberblock.txg <= max))
            .max_by(|a, b| a.cmp_currency(b))
    }
}

/// Returns what [`LabelSet::current_config`] of all labels would be on a device whose top-level vdev has this ashift,
/// hashing as few of them as possible.
///
/// # Errors
/// [`VdevError::Open`] when none of the labels can be read.
pub(crate) async fn current_config(disk: &Disk, ashift: u8) -> Result<Option<NvList>, VdevError> {
    let size = disk.size_bytes();
    let txg_of = |config: &NvList| config.u64("txg").unwrap_or(0);
    let found = read_areas(disk, size, NVLIST.0, NVLIST.1).await;
    let found = found.map_err(|source| VdevError::Open {
        path: disk.info().path.clone(),
        source,
    })?;
    let mut configs: Vec<(NvList, u64, IoBuf)> = found
        .into_iter()
        .filter_map(|(offset, bytes)| {
            let config = NvList::decode(bytes.get(..NVLIST_MAX)?).ok()?;
            Some((config, offset, bytes))
        })
        .collect();
    configs.sort_by_key(|(config, ..)| std::cmp::Reverse(txg_of(config)));
    let differ = configs
        .windows(2)
        .any(|pair| txg_of(&pair[0].0) != txg_of(&pair[1].0));
    // The rings are looked at only after a txg cut short between its labels.
    let last = match differ {
        true => newest_uberblock(disk, ashift, None).await,
        false => None,
    };
    let sound = |(_, offset, bytes): &&(NvList, u64, IoBuf)| {
        label::verify(bytes, label_verifier(*offset), sha256)
    };
    let complete = |config: &NvList| last.is_some_and(|last| txg_of(config) <= last.txg.0);
    let newest = configs
        .iter()
        .filter(|(config, ..)| complete(config))
        .find(sound)
        .or_else(|| configs.iter().find(sound));
    Ok(newest.map(|(config, ..)| config.clone()))
}

/// Returns what [`LabelSet::best_uberblock`] would be on a device whose top-level vdev has this ashift, hashing as few
/// slots as possible.
pub(crate) async fn newest_uberblock(
    disk: &Disk,
    ashift: u8,
    max: Option<Txg>,
) -> Option<Uberblock> {
    let size = disk.size_bytes();
    let slot_size = label::uberblock_slot_size(u64::from(ashift));
    let rings = read_areas(disk, size, RING.0, RING.1).await;
    let rings = rings.unwrap_or_default();
    let mut slots: Vec<(Uberblock, u64, &[u8])> = Vec::new();
    for (offset, ring) in &rings {
        for (slot, block) in ring.chunks_exact(slot_size).enumerate() {
            if let Ok(uberblock) = Uberblock::decode(block)
                && max.is_none_or(|max| uberblock.txg <= max)
            {
                slots.push((uberblock, offset + (slot * slot_size) as u64, block));
            }
        }
    }
    slots.sort_by(|(a, ..), (b, ..)| b.cmp_currency(a));
    slots
        .into_iter()
        .find(|(_, offset, block)| label::verify(block, label_verifier(*offset), sha256))
        .map(|(uberblock, ..)| uberblock)
}

/// Reads the same part of all four labels; those that cannot be read are left out. With each its device offset.
///
/// # Errors
/// That of one of them, when none can be read.
async fn read_areas(
    disk: &Disk,
    size: u64,
    skip: u64,
    len: usize,
) -> Result<Vec<(u64, IoBuf)>, DiskError> {
    let offsets = (0..LABEL_COUNT).filter_map(|which| label::label_offset(size, which));
    let reads = offsets.map(|label| async move {
        let offset = label + skip;
        let bytes = disk.read_within(offset, len, KNOWN_TIMEOUT).await?;
        Ok((offset, bytes))
    });
    let (mut read, mut failed) = (Vec::new(), None);
    for area in runtime::join_all(reads).await {
        match area {
            Ok(area) => read.push(area),
            Err(error) => failed = Some(error),
        }
    }
    match failed {
        Some(error) if read.is_empty() => Err(error),
        _ => Ok(read),
    }
}

/// Zeroes the four labels of a device so that no tool finds a pool on it. Durable on return.
///
/// # Errors
/// [`VdevError::Open`] with the device's error; labels not reached may remain.
pub async fn clear(disk: &Disk) -> Result<(), VdevError> {
    let size = disk.size_bytes();
    let fail = |source| VdevError::Open {
        path: disk.info().path.clone(),
        source,
    };
    let zeros = IoBuf::zeroed(usize::try_from(LABEL_SIZE).expect("a label fits"));
    for which in 0..LABEL_COUNT {
        if let Some(offset) = label::label_offset(size, which) {
            disk.write(offset, zeros.clone()).await.map_err(fail)?;
        }
    }
    disk.flush().await.map_err(fail)
}

/// Zeroes those of the four labels that are valid, and leaves everything else on the device alone. Durable on return.
///
/// # Errors
/// [`VdevError::Open`] with the device's error; labels not reached may remain.
// OpenZFS: lib/libzutil/zutil_import.c, zpool_clear_label
pub async fn clear_valid(disk: &Disk) -> Result<(), VdevError> {
    let size = disk.size_bytes();
    let fail = |source| VdevError::Open {
        path: disk.info().path.clone(),
        source,
    };
    let set = LabelSet::read(disk).await?;
    let zeros = IoBuf::zeroed(usize::try_from(LABEL_SIZE).expect("a label fits"));
    for (which, state) in set.labels.iter().enumerate() {
        if let (LabelState::Valid(_), Some(offset)) = (state, label::label_offset(size, which)) {
            disk.write(offset, zeros.clone()).await.map_err(fail)?;
        }
    }
    disk.flush().await.map_err(fail)
}

/// Writes four whole labels that carry only a configuration (packed, with its 4-byte header) and no uberblock: those of
/// spares and cache devices. Destroys whatever labels the device had. Durable on return.
///
/// # Errors
/// [`VdevError::Open`] with the device's error; [`VdevError::LabelTooLarge`].
pub async fn write_bare(disk: &Disk, packed: &[u8]) -> Result<(), VdevError> {
    let size = label::usable_size(disk.size_bytes());
    let fail = |source| VdevError::Open {
        path: disk.info().path.clone(),
        source,
    };
    for which in 0..LABEL_COUNT {
        let (offset, block) = fresh_label(size, which)?;
        disk.write(offset, block).await.map_err(fail)?;
        let (offset, block) = config_block(size, which, packed)?;
        disk.write(offset, block).await.map_err(fail)?;
    }
    disk.flush().await.map_err(fail)
}

/// Returns the configuration block, with its checksum, of label `which`, and its device offset.
pub(crate) fn config_block(
    size_bytes: u64,
    which: usize,
    packed: &[u8],
) -> Result<(u64, IoBuf), VdevError> {
    if packed.len() > NVLIST_MAX {
        return Err(VdevError::LabelTooLarge { len: packed.len() });
    }
    let offset = offset_of(size_bytes, which)? + NVLIST.0;
    assert!(
        packed.len() + label::ECK_SIZE <= NVLIST.1,
        "a configuration leaves room for its checksum"
    );
    let mut block = IoBufMut::zeroed(NVLIST.1);
    block[..packed.len()].copy_from_slice(packed);
    label::set_checksum(&mut block, label_verifier(offset), sha256);
    Ok((offset, block.freeze()))
}

/// Returns the content of a whole fresh label: zero pad, empty boot environment, no configuration, empty ring.
pub(crate) fn fresh_label(size_bytes: u64, which: usize) -> Result<(u64, IoBuf), VdevError> {
    let offset = offset_of(size_bytes, which)?;
    let mut block = IoBufMut::zeroed(usize::try_from(LABEL_SIZE).expect("a label fits"));
    let at = usize::try_from(BOOT_ENV.0).expect("inside a label");
    label::set_checksum(
        &mut block[at..at + BOOT_ENV.1],
        label_verifier(offset + BOOT_ENV.0),
        sha256,
    );
    Ok((offset, block.freeze()))
}

/// Returns the ring slot, with its checksum, of an uberblock in label `which`, and its device offset.
pub(crate) fn uberblock_slot(
    size_bytes: u64,
    which: usize,
    ashift: u8,
    uberblock: &Uberblock,
) -> Result<(u64, IoBuf), VdevError> {
    let ashift = u64::from(ashift);
    let slot = label::uberblock_slot_for(uberblock.txg.0, ashift, uberblock.is_multihost());
    assert!(
        !uberblock.is_multihost() || slot + 1 < label::uberblock_slots(ashift),
        "the last slot is for heartbeats"
    );
    ring_slot(size_bytes, which, ashift, slot, uberblock)
}

/// As [`uberblock_slot`], for a heartbeat: the slot no txg is written to.
pub(crate) fn heartbeat_slot(
    size_bytes: u64,
    which: usize,
    ashift: u8,
    uberblock: &Uberblock,
) -> Result<(u64, IoBuf), VdevError> {
    let ashift = u64::from(ashift);
    let slot = label::uberblock_slots(ashift) - 1;
    ring_slot(size_bytes, which, ashift, slot, uberblock)
}

fn ring_slot(
    size_bytes: u64,
    which: usize,
    ashift: u64,
    slot: usize,
    uberblock: &Uberblock,
) -> Result<(u64, IoBuf), VdevError> {
    let size = label::uberblock_slot_size(ashift);
    assert!(
        (slot + 1) * size <= RING.1,
        "slot {slot} of {size} bytes lies in the ring"
    );
    let offset = offset_of(size_bytes, which)? + RING.0 + (slot * size) as u64;
    let mut block = IoBufMut::zeroed(size);
    uberblock.encode(&mut block);
    label::set_checksum(&mut block, label_verifier(offset), sha256);
    Ok((offset, block.freeze()))
}

fn offset_of(size_bytes: u64, which: usize) -> Result<u64, VdevError> {
    label::label_offset(size_bytes, which).ok_or(VdevError::BadConfig {
        what: "device without room for labels",
    })
}

fn decode_config(block: &[u8], offset: u64) -> LabelState {
    if block.iter().all(|&byte| byte == 0) {
        return LabelState::Empty;
    }
    if !label::verify(block, label_verifier(offset), sha256) {
        return LabelState::Bad;
    }
    match NvList::decode(&block[..NVLIST_MAX]) {
        Ok(config) => LabelState::Valid(Box::new(config)),
        // A block with a right checksum and without a list: the label was prepared, but no pool was ever synced to it.
        Err(_) if block[..NVLIST_MAX].iter().all(|&byte| byte == 0) => LabelState::Empty,
        Err(_) => LabelState::Bad,
    }
}

/// Returns whether a block says what another one, verified, says: the labels of a device are equal but for the embedded
/// checksum, and comparing them costs a tenth of hashing each.
fn repeats(block: &[u8], verified: &[u8]) -> bool {
    block[..block.len() - label::ECK_SIZE] == verified[..verified.len() - label::ECK_SIZE]
}

fn sha256(bytes: &[u8]) -> [u64; 4] {
    compute(Algorithm::Sha256, &[0; 32], bytes)
}
