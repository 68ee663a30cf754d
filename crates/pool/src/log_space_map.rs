//! The log space maps of a pool that OpenZFS wrote: changes of space that its metaslabs' own maps do not say yet.
//!
//! OpenZFS appends the changes of a txg to one log for all vdevs and brings the metaslabs up to date later, a few at a
//! time. Here the logs are read at import, added to what each map says, and merged into the maps by the first txg of
//! a writable import; the feature is inactive from then on, as in a pool that never used it, and OpenZFS starts logs
//! anew when it has the pool again. Nothing is written by a read-only import, which does not need free space.
//!
//! ```text
//! directory  com.delphix:log_spacemap_zap -> { hex(txg): log of that txg, ... }
//! ZAP of a top-level vdev  com.delphix:ms_unflushed_phys_txgs -> u64 per metaslab: oldest txg not in its map
//! ```
// OpenZFS: module/zfs/spa_log_spacemap.c (big comment, spa_ld_log_sm_cb, spa_ld_unflushed_txgs); docs/format/05-space.md

use std::collections::BTreeMap;
use std::ops::Range;

use dmu::{Objset, Tx, zap};
use ondisk::ObjectId;
use ondisk::bytes::index;
use range_tree::{Mismatch, RangeTree};
use vdev::{TopInfo, TreeConfig};

use crate::PoolError;
use crate::objects::DIRECTORY;
use crate::space_map::{self, MapType};

const DIRECTORY_KEY: &str = "com.delphix:log_spacemap_zap";
const TXGS_KEY: &str = "com.delphix:ms_unflushed_phys_txgs";
/// log2 of the unit of logs: they hold offsets of all vdevs.
const SHIFT: u8 = 9;

/// What logs say of one metaslab beyond its own map. The two sets are disjoint.
#[derive(Clone, Debug, Default)]
pub(crate) struct Unflushed {
    /// Allocated since; free in the map.
    pub(crate) allocs: RangeTree,
    /// Freed since; allocated in the map.
    pub(crate) frees: RangeTree,
}

impl Unflushed {
    /// Applies one entry: what undoes an earlier one cancels it.
    fn apply(&mut self, kind: MapType, range: &Range<u64>) -> Result<(), Mismatch> {
        let (undone, into) = match kind {
            MapType::Alloc => (&mut self.frees, &mut self.allocs),
            MapType::Free => (&mut self.allocs, &mut self.frees),
        };
        let mut at = range.start;
        for part in undone.within(range) {
            into.add(at..part.start)?;
            at = part.end;
            undone.remove(&part)?;
        }
        into.add(at..range.end)
    }

    /// Returns allocated minus freed bytes.
    pub(crate) fn balance(&self) -> i64 {
        let signed = |total: u64| i64::try_from(total).unwrap_or(i64::MAX);
        signed(self.allocs.space()) - signed(self.frees.space())
    }
}

/// All logs of a pool, read.
#[derive(Debug, Default)]
pub(crate) struct Logs {
    /// Changes by vdev and metaslab.
    pub(crate) changes: BTreeMap<(u32, u32), Unflushed>,
    objects: LogObjects,
}

/// The objects that go away when the logs have been merged.
#[derive(Clone, Debug, Default)]
pub(crate) struct LogObjects {
    logs_zap: ObjectId,
    logs: Vec<ObjectId>,
    /// Logs counted by the feature `spacemap_histogram`.
    histograms: u64,
    /// (ZAP of the vdev, its list of txgs).
    txg_lists: Vec<(ObjectId, ObjectId)>,
}

/// Reads the logs of a pool; `None` when it has none.
///
/// # Errors
/// `Corrupt` for entries outside their vdev or that contradict each other; errors of reading.
pub(crate) async fn read(
    mos: &Objset,
    tops: &[TopInfo],
    config: &TreeConfig,
) -> Result<Option<Logs>, PoolError> {
    let Some(logs_zap) = zap::lookup_u64(mos, DIRECTORY, DIRECTORY_KEY).await? else {
        return Ok(None);
    };
    let mut found = Logs::default();
    found.objects.logs_zap = ObjectId(logs_zap);
    let mut vdevs = BTreeMap::new();
    for top in tops {
        let zap_top = config.tops.get(top.id as usize).and_then(|v| v.zap_top);
        let mut oldest = Vec::new();
        if let Some(zap_top) = zap_top.filter(|&object| object != 0).map(ObjectId)
            && let Some(object) = zap::lookup_u64(mos, zap_top, TXGS_KEY).await?
        {
            let object = ObjectId(object);
            let bytes = mos.read(object, 0, index(8 * top.metaslab_count)).await?;
            oldest = ondisk::bytes::u64s(&bytes).collect();
            found.objects.txg_lists.push((zap_top, object));
        }
        vdevs.insert(top.id, (top, oldest));
    }
    for (txg, object) in listed_logs(mos, found.objects.logs_zap).await? {
        let header = space_map::header(mos, object).await?;
        found.objects.logs.push(object);
        found.objects.histograms += u64::from(header.histogram.is_some());
        let changes = &mut found.changes;
        let vdevs = &vdevs;
        space_map::for_each(mos, object, &header, |entry| {
            let bad = || PoolError::Corrupt(format!("log space map {object} of txg {txg}"));
            let id = entry.vdev.ok_or_else(bad)?;
            // Vdevs that were removed meanwhile have nothing here any more.
            let Some((top, oldest)) = vdevs.get(&id) else {
                return Ok(());
            };
            let limit = top.metaslab_count << top.metaslab_shift >> SHIFT;
            if entry.offset > limit || entry.run > limit - entry.offset {
                return Err(bad());
            }
            let range = entry.offset << SHIFT..(entry.offset + entry.run) << SHIFT;
            let unit = (1 << top.ashift) - 1;
            let metaslab = range.start >> top.metaslab_shift;
            if range.start & unit != 0
                || range.end & unit != 0
                || (range.end - 1) >> top.metaslab_shift != metaslab
            {
                return Err(bad());
            }
            // Older changes are in the metaslab's own map.
            if oldest
                .get(index(metaslab))
                .is_some_and(|&oldest| txg < oldest)
            {
                return Ok(());
            }
            let metaslab = u32::try_from(metaslab).map_err(|_| bad())?;
            let known = changes.entry((id, metaslab)).or_default();
            known.apply(entry.kind, &range).map_err(|Mismatch| bad())
        })
        .await?;
    }
    Ok(Some(found))
}

/// The logs that the list names, by their txgs, oldest first.
async fn listed_logs(mos: &Objset, logs_zap: ObjectId) -> Result<Vec<(u64, ObjectId)>, PoolError> {
    let mut logs = Vec::new();
    for entry in zap::entries(mos, logs_zap).await? {
        let name = std::str::from_utf8(&entry.name).ok();
        let txg = name.and_then(|name| u64::from_str_radix(name, 16).ok());
        match (txg, &entry.value) {
            (Some(txg), zap::ZapValue::U64(object)) if object.len() == 1 => {
                logs.push((txg, ObjectId(object[0])));
            }
            _ => return Err(PoolError::Corrupt("the list of log space maps".into())),
        }
    }
    logs.sort_unstable();
    Ok(logs)
}

impl Logs {
    /// Splits what is merged into the maps from the objects that are then removed.
    pub(crate) fn into_parts(self) -> (BTreeMap<(u32, u32), Unflushed>, LogObjects) {
        (self.changes, self.objects)
    }
}

impl LogObjects {
    /// Removes the logs. Returns how many of them the feature `spacemap_histogram` counted.
    pub(crate) async fn remove(&self, mos: &Objset, tx: &Tx) -> Result<u64, PoolError> {
        for &log in &self.logs {
            mos.free_object(log, tx).await?;
        }
        zap::remove(mos, DIRECTORY, DIRECTORY_KEY, tx).await?;
        mos.free_object(self.logs_zap, tx).await?;
        for &(top_zap, list) in &self.txg_lists {
            zap::remove(mos, top_zap, TXGS_KEY, tx).await?;
            mos.free_object(list, tx).await?;
        }
        Ok(self.histograms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_cancel_what_they_undo() {
        // A naive model over 64 units: what the map says, and what is true.
        let mut seed = 11_u64;
        for _ in 0..200 {
            let mut map = [false; 64];
            let mut truth = [false; 64];
            let mut unflushed = Unflushed::default();
            for step in 0..200 {
                seed = seed
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1_442_695_040_888_963_407);
                let start = (seed >> 33) % 60;
                let end = start + 1 + (seed >> 40) % 4;
                let units = index(start)..index(end);
                let (kind, from) = if seed >> 60 & 1 == 0 {
                    (MapType::Alloc, false)
                } else {
                    (MapType::Free, true)
                };
                if truth[units.clone()].iter().any(|&used| used != from) {
                    continue;
                }
                truth[units.clone()].fill(!from);
                if step < 50 {
                    map[units].fill(!from);
                } else {
                    unflushed.apply(kind, &(start..end)).unwrap();
                }
            }
            for range in unflushed.allocs.iter() {
                let units = index(range.start)..index(range.end);
                assert!(map[units.clone()].iter().all(|used| !used));
                map[units].fill(true);
            }
            for range in unflushed.frees.iter() {
                let units = index(range.start)..index(range.end);
                assert!(map[units.clone()].iter().all(|used| *used));
                map[units].fill(false);
            }
            assert_eq!(map, truth);
        }
    }

    #[test]
    fn contradictions_are_noticed() {
        let mut unflushed = Unflushed::default();
        unflushed.apply(MapType::Alloc, &(10..20)).unwrap();
        assert!(unflushed.apply(MapType::Alloc, &(15..16)).is_err());
        unflushed.apply(MapType::Free, &(10..20)).unwrap();
        assert_eq!(unflushed.balance(), 0);
        unflushed.apply(MapType::Free, &(10..20)).unwrap();
        assert_eq!(unflushed.balance(), -10);
        assert!(unflushed.apply(MapType::Free, &(0..30)).is_err());
    }
}
