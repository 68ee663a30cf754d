//! Log space maps: changes of space that the metaslabs' own maps do not say yet.
//!
//! The changes of a txg are appended to one log for all vdevs, and the metaslabs are brought up to date later, a few in each
//! txg, those first that were flushed the longest ago. So a txg that frees all over the pool writes one object, not a map
//! for each metaslab. A log can go once every metaslab was flushed after its txg.
//!
//! ```text
//! directory  com.delphix:log_spacemap_zap -> { hex(txg): log of that txg, ... }
//! ZAP of a top-level vdev  com.delphix:ms_unflushed_phys_txgs -> u64 per metaslab: oldest txg not in its map, 0: never used
//! ```
//!
//! Guarantees: each metaslab that was ever used names a txg that has a log (OpenZFS imports no other pool), and no entry of a
//! log from that txg on is in its own map. This module keeps the account and knows the objects; [`crate::space`] writes them.
// OpenZFS: module/zfs/spa_log_spacemap.c (big comment, spa_flush_metaslabs, spa_cleanup_old_sm_logs, spa_ld_log_sm_metadata);
// docs/format/05-space.md

mod read;
mod unflushed;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use dmu::{Objset, Tx, zap};
use ondisk::ObjectId;
use range_tree::Mismatch;

pub(crate) use self::read::read;
pub(crate) use self::unflushed::Unflushed;
use crate::PoolError;
use crate::space_map::{Header, MapType};

pub(crate) const DIRECTORY_KEY: &str = "com.delphix:log_spacemap_zap";
pub(crate) const TXGS_KEY: &str = "com.delphix:ms_unflushed_phys_txgs";
/// log2 of the unit of logs: they hold offsets of all vdevs.
pub(crate) const SHIFT: u8 = 9;
/// Data block size in bytes of logs, and of the maps of a pool that has them.
pub(crate) const BLOCK_SIZE: u32 = 128 << 10;

/// In how many txgs each metaslab with changes gets its turn: `1 / FLUSH_TXGS` of them are flushed in a txg, at least one.
const FLUSH_TXGS: usize = 100;
/// Most logs that are kept: an import reads them one by one.
// OpenZFS keeps 1000 at most (zfs_unflushed_log_txg_max).
const LOGS_MAX: usize = 400;
/// Most blocks of all logs: so many for each metaslab in use, within these limits.
// OpenZFS: zfs_unflushed_log_block_pct, _min, _max
const BLOCKS_PER_METASLAB: u64 = 4;
const BLOCKS_MIN: u64 = 1000;
const BLOCKS_MAX: u64 = 1 << 17;
/// Most ranges of all metaslabs that wait in memory, about 16 MiB.
const RANGES_MAX: usize = 1 << 18;
const _: () = assert!(FLUSH_TXGS > 0 && FLUSH_TXGS < LOGS_MAX && BLOCKS_MIN < BLOCKS_MAX);

/// A metaslab: top-level vdev and index.
pub(crate) type Key = (u32, u32);

/// The log of one txg.
#[derive(Clone, Debug)]
pub(crate) struct Log {
    pub(crate) object: ObjectId,
    pub(crate) header: Header,
}

impl Log {
    fn blocks(&self) -> u64 {
        self.header.length.div_ceil(u64::from(BLOCK_SIZE))
    }
}

/// When the metaslabs of one top-level vdev were flushed.
#[derive(Clone, Debug, Default)]
struct VdevFlushes {
    /// The object that says so; `None` before the first.
    list: Option<ObjectId>,
    /// Oldest txg that is not in its map, of each metaslab in use.
    since: BTreeMap<u32, u64>,
}

/// All logs of a pool, and what they say beyond the maps.
#[derive(Debug, Default)]
pub(crate) struct LogSpaceMaps {
    /// The ZAP that lists them; `None` in a pool that never had one.
    pub(crate) directory: Option<ObjectId>,
    logs: BTreeMap<u64, Log>,
    vdevs: BTreeMap<u32, VdevFlushes>,
    /// The metaslabs in use by the oldest txg that is not in their map.
    by_age: BTreeSet<(u64, Key)>,
    changes: BTreeMap<Key, Unflushed>,
    /// Ranges of all `changes`.
    ranges: usize,
    /// The next txg flushes all metaslabs: entries of a vdev that has gone must not outlive it, since another may get its id.
    pub(crate) flush_all: bool,
}

impl LogSpaceMaps {
    /// Returns what logs say of a metaslab, `None` when its own map says all.
    pub(crate) fn changes_of(&self, key: Key) -> Option<&Unflushed> {
        self.changes.get(&key)
    }

    /// Returns the log of a txg.
    pub(crate) fn log(&self, txg: u64) -> Option<&Log> {
        self.logs.get(&txg)
    }

    /// Keeps the log of a txg, new or longer than before.
    pub(crate) fn put_log(&mut self, txg: u64, log: Log) {
        self.logs.insert(txg, log);
    }

    /// Applies one entry of a log.
    ///
    /// # Errors
    /// When it contradicts what is known.
    pub(crate) fn apply(
        &mut self,
        key: Key,
        kind: MapType,
        range: &Range<u64>,
    ) -> Result<(), Mismatch> {
        let known = self.changes.entry(key).or_default();
        let before = known.len();
        known.apply(kind, range)?;
        let after = known.len();
        if after == 0 {
            self.changes.remove(&key);
        }
        self.ranges = self.ranges + after - before;
        Ok(())
    }

    /// Returns the oldest txg that is not in the map of a metaslab; `None` when it was never in use.
    pub(crate) fn since(&self, (vdev, metaslab): Key) -> Option<u64> {
        self.vdevs.get(&vdev)?.since.get(&metaslab).copied()
    }

    /// Takes note that a metaslab's own map says everything from before `txg`.
    pub(crate) fn note_flushed(&mut self, key: Key, txg: u64) {
        let (vdev, metaslab) = key;
        let flushes = self.vdevs.entry(vdev).or_default();
        if let Some(before) = flushes.since.insert(metaslab, txg) {
            self.by_age.remove(&(before, key));
        }
        self.by_age.insert((txg, key));
        if let Some(gone) = self.changes.remove(&key) {
            self.ranges -= gone.len();
        }
    }

    /// Returns the metaslab that was flushed the longest ago, and the oldest txg that is not in its map.
    pub(crate) fn oldest(&self) -> Option<(u64, Key)> {
        self.by_age.first().copied()
    }

    /// Returns how many metaslabs with changes a txg has to flush, if no limit asks for more.
    pub(crate) fn turn(&self) -> usize {
        match self.flush_all {
            true => usize::MAX,
            false => self.changes.len().div_ceil(FLUSH_TXGS),
        }
    }

    /// Whether more is kept than should be, when logs before `since` can go.
    pub(crate) fn is_above_limits(&self, since: u64) -> bool {
        if self.ranges > RANGES_MAX {
            return true;
        }
        let kept = self.logs.range(since..);
        let (logs, blocks) = kept.fold((0, 0), |(logs, blocks), (_, log)| {
            (logs + 1, blocks + log.blocks())
        });
        let used = ondisk::bytes::len64(self.by_age.len());
        let most = (used * BLOCKS_PER_METASLAB).clamp(BLOCKS_MIN, BLOCKS_MAX);
        logs > LOGS_MAX || blocks > most
    }

    /// Forgets and returns the logs whose entries are all in the metaslabs' own maps; the one of `txg` is kept.
    pub(crate) fn take_obsolete(&mut self, txg: u64) -> Vec<(u64, Log)> {
        let since = self.oldest().map_or(txg, |(since, _)| since);
        let kept = self.logs.split_off(&since.min(txg));
        std::mem::replace(&mut self.logs, kept)
            .into_iter()
            .collect()
    }

    /// Returns the object that keeps the txgs of a vdev's metaslabs.
    pub(crate) fn list_of(&self, vdev: u32) -> Option<ObjectId> {
        self.vdevs.get(&vdev)?.list
    }

    /// Keeps the object that has the txgs of a vdev's metaslabs.
    pub(crate) fn set_list(&mut self, vdev: u32, list: ObjectId) {
        self.vdevs.entry(vdev).or_default().list = Some(list);
    }

    /// Forgets a vdev that has gone.
    pub(crate) fn forget_vdev(&mut self, vdev: u32) {
        self.vdevs.remove(&vdev);
        self.by_age.retain(|&(_, key)| key.0 != vdev);
        self.changes.retain(|key, _| key.0 != vdev);
        self.ranges = self.changes.values().map(Unflushed::len).sum();
        self.flush_all = true;
    }
}

/// Frees the list of txgs that the ZAP of a top-level vdev names, if there is one.
pub(crate) async fn free_list(mos: &Objset, zap_top: ObjectId, tx: &Tx) -> Result<(), PoolError> {
    assert!(tx.is_syncing(), "free list happens in syncing context");
    if let Some(list) = zap::lookup_u64(mos, zap_top, TXGS_KEY).await? {
        zap::remove(mos, zap_top, TXGS_KEY, tx).await?;
        mos.free_object(ObjectId(list), tx).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(blocks: u64) -> Log {
        let mut header = Header::empty(true);
        header.length = blocks * u64::from(BLOCK_SIZE);
        Log {
            object: ObjectId(1),
            header,
        }
    }

    #[test]
    fn a_log_goes_when_every_metaslab_was_flushed_after_it() {
        let mut logs = LogSpaceMaps::default();
        for txg in 10..14 {
            logs.put_log(txg, log(1));
        }
        logs.note_flushed((0, 0), 10);
        logs.note_flushed((0, 1), 12);
        logs.apply((0, 0), MapType::Alloc, &(0..512)).unwrap();
        assert!(logs.take_obsolete(13).is_empty());
        assert_eq!(logs.oldest(), Some((10, (0, 0))));
        logs.note_flushed((0, 0), 13);
        assert!(logs.changes_of((0, 0)).is_none() && logs.ranges == 0);
        let gone: Vec<u64> = logs.take_obsolete(13).iter().map(|(txg, _)| *txg).collect();
        assert_eq!(gone, [10, 11]);
        logs.forget_vdev(0);
        assert!(logs.flush_all && logs.oldest().is_none());
        let gone = logs.take_obsolete(13).len();
        assert_eq!((gone, logs.log(13).is_some()), (1, true));
    }

    #[test]
    fn limits_count_what_would_be_kept() {
        let mut logs = LogSpaceMaps::default();
        logs.note_flushed((0, 0), 1);
        logs.put_log(1, log(BLOCKS_MIN));
        assert!(!logs.is_above_limits(1));
        logs.put_log(2, log(1));
        assert!(logs.is_above_limits(1) && !logs.is_above_limits(2));
        for txg in 3..3 + LOGS_MAX as u64 {
            logs.put_log(txg, log(0));
        }
        assert!(logs.is_above_limits(2) && !logs.is_above_limits(3));
    }

    #[test]
    fn each_txg_takes_a_part_of_what_waits() {
        let mut logs = LogSpaceMaps::default();
        assert_eq!(logs.turn(), 0);
        for metaslab in 0..250 {
            let start = u64::from(metaslab) << 20;
            logs.apply((1, metaslab), MapType::Free, &(start..start + 512))
                .unwrap();
        }
        assert_eq!(logs.turn(), 3);
        logs.flush_all = true;
        assert_eq!(logs.turn(), usize::MAX);
    }
}
