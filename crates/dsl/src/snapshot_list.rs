//! The snapshots of one head: lookup by name, listing by cookie for `.zfs/snapshot`, and by age in pages.

use std::collections::BTreeMap;

use dmu::zap::{self, ZapValue};
use ondisk::dsl::{DslDatasetPhys, dataset_flags, zapified_keys};
use ondisk::{Guid, ObjectId};

use crate::dsl_pool::DslPool;
use crate::error::Result;
use crate::hierarchy::Hierarchy;

/// One snapshot in a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotName {
    /// The name behind the `@`.
    pub name: Vec<u8>,
    /// Its object.
    pub object: ObjectId,
    /// Position after this entry; stays valid while snapshots are created and destroyed, and over imports.
    pub next_cookie: u64,
}

/// Where a page of snapshots ends. It stays valid while snapshots are created and destroyed, this one too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnapshotPosition {
    /// Object of the last snapshot looked at.
    pub object: u64,
    /// Transaction group of its creation.
    pub create_txg: u64,
}

/// One snapshot of a page: what its own object and the list of names know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotEntry {
    /// The name behind the `@`.
    pub name: String,
    /// Unique number.
    pub guid: u64,
    /// Transaction group of its creation.
    pub create_txg: u64,
    /// Creation, seconds since 1970.
    pub creation_time: u64,
    /// Bytes that it refers to (`referenced`).
    pub referenced_bytes: u64,
    /// Bytes that only it refers to (`used`).
    pub unique_bytes: u64,
}

/// Snapshots from the newest to the oldest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SnapshotPage {
    /// Those whose names match; fewer than asked for, or none, where few of those looked at do.
    pub snapshots: Vec<SnapshotEntry>,
    /// Where the next page begins; none at the end.
    pub next: Option<SnapshotPosition>,
    /// How many snapshots the head has.
    pub total: u64,
}

/// A snapshot by when it was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnapshotTime {
    /// Creation, seconds since 1970.
    pub creation_time: u64,
    /// Its object.
    pub object: ObjectId,
    /// Unique number.
    pub guid: Guid,
}

/// Names read from the list at a time.
const NAMES_A_BATCH: usize = 1024;

/// Snapshots looked at for one page: what a filter that matches little may cost.
const PAGE_EXAMINED_MAX: usize = 8192;

impl DslPool {
    /// The names of a head's snapshots, by their objects.
    pub(crate) async fn snapshot_names(
        &self,
        head: &DslDatasetPhys,
    ) -> Result<BTreeMap<u64, Vec<u8>>> {
        let mut names = BTreeMap::new();
        let map = ObjectId(head.snapnames_zapobj);
        let mut cookie = 0;
        loop {
            let entries = match map.0 {
                0 => Vec::new(),
                _ => zap::cursor(&self.mos, map, cookie, NAMES_A_BATCH).await?,
            };
            let Some(last) = entries.last() else {
                return Ok(names);
            };
            cookie = last.next_cookie;
            for entry in entries {
                if let ZapValue::U64(words) = entry.value
                    && let Some(object) = words.first()
                {
                    names.insert(*object, entry.name);
                }
            }
            self.services.handle.yield_now().await;
        }
    }
}

impl Hierarchy {
    /// Returns the snapshots of the head `dataset` that are older than `after`, the newest first: at most `max` whose names contain
    /// `filter`. A page costs the reading of all names, once, and of the objects on it: not of all objects.
    ///
    /// # Errors
    /// There is no such dataset; errors of reading.
    pub async fn snapshot_page(
        &self,
        dataset: &str,
        after: Option<SnapshotPosition>,
        filter: &str,
        max: usize,
    ) -> Result<SnapshotPage> {
        let pool = self.pool();
        let _names = pool.config.read().await;
        let head = pool.find(dataset).await?.dataset;
        let head = pool.dataset_phys(head).await?;
        let names = pool.snapshot_names(&head).await?;
        let mut page = SnapshotPage {
            total: names.len() as u64,
            ..SnapshotPage::default()
        };
        let mut at = head.prev_snap_obj;
        let mut bound = u64::MAX;
        if let Some(after) = after {
            bound = after.create_txg;
            if names.contains_key(&after.object) {
                let phys = pool.dataset_phys(ObjectId(after.object)).await?;
                // An object number is given out again when its snapshot is gone: then the list is walked from its start.
                if phys.creation_txg == after.create_txg {
                    at = phys.prev_snap_obj;
                }
            }
        }
        let (mut examined, mut walked, mut newer) = (0, 0, u64::MAX);
        // Behind the oldest snapshot of a clone stands its origin, which is another head's.
        while let Some(name) = names.get(&at) {
            let phys = pool.dataset_phys(ObjectId(at)).await?;
            let (object, older) = (at, phys.prev_snap_obj);
            at = older;
            // The chain ends even where damage made a ring of it.
            if phys.creation_txg >= newer {
                break;
            }
            newer = phys.creation_txg;
            walked += 1;
            pool.yield_every(walked).await;
            if phys.creation_txg >= bound {
                continue;
            }
            examined += 1;
            let name = String::from_utf8_lossy(name);
            if name.contains(filter) {
                page.snapshots.push(SnapshotEntry {
                    name: name.into_owned(),
                    guid: phys.guid,
                    create_txg: phys.creation_txg,
                    creation_time: phys.creation_time,
                    referenced_bytes: phys.referenced_bytes,
                    unique_bytes: phys.unique_bytes,
                });
            }
            if (page.snapshots.len() >= max || examined >= PAGE_EXAMINED_MAX)
                && names.contains_key(&older)
            {
                page.next = Some(SnapshotPosition {
                    object,
                    create_txg: phys.creation_txg,
                });
                break;
            }
        }
        Ok(page)
    }

    /// Returns the newest snapshots of the head `head`, `max` of them at most, by the second they were taken in, the latest first: of
    /// several of one second the newest.
    ///
    /// # Errors
    /// The object is no head; errors of reading.
    pub async fn snapshots_by_time(&self, head: ObjectId, max: usize) -> Result<Vec<SnapshotTime>> {
        let pool = self.pool();
        let _names = pool.config.read().await;
        let head = pool.dataset_phys(head).await?;
        let mut found: BTreeMap<u64, SnapshotTime> = BTreeMap::new();
        let (mut at, mut newer) = (head.prev_snap_obj, u64::MAX);
        for walked in 0..max {
            if at == 0 {
                break;
            }
            let phys = pool.dataset_phys(ObjectId(at)).await?;
            // Behind the oldest snapshot of a clone stands its origin, which is another head's. The chain ends even where damage
            // made a ring of it.
            if phys.dir_obj != head.dir_obj || phys.creation_txg >= newer {
                break;
            }
            let snapshot = SnapshotTime {
                creation_time: phys.creation_time,
                object: ObjectId(at),
                guid: Guid(phys.guid),
            };
            found.entry(phys.creation_time).or_insert(snapshot);
            (at, newer) = (phys.prev_snap_obj, phys.creation_txg);
            pool.yield_every(walked).await;
        }
        Ok(found.into_values().rev().collect())
    }

    /// Lists snapshots of the head `head` from `cookie` on (0: from the start), at most `max`; none at the end.
    ///
    /// # Errors
    /// The object is no head; errors of reading.
    pub async fn snapshots_after(
        &self,
        head: ObjectId,
        cookie: u64,
        max: usize,
    ) -> Result<Vec<SnapshotName>> {
        let pool = self.pool();
        let _names = pool.config.read().await;
        let map = ObjectId(pool.dataset_phys(head).await?.snapnames_zapobj);
        if map.0 == 0 {
            return Ok(Vec::new());
        }
        let entries = zap::cursor(&pool.mos, map, cookie, max).await?;
        Ok(entries
            .into_iter()
            .filter_map(|entry| match entry.value {
                ZapValue::U64(words) => Some(SnapshotName {
                    name: entry.name,
                    object: ObjectId(*words.first()?),
                    next_cookie: entry.next_cookie,
                }),
                _ => None,
            })
            .collect())
    }

    /// Finds a snapshot of the head `head` by the name behind the `@`; in a case-insensitive file system also when it
    /// differs by case. Returns its object, its guid and the name as stored.
    ///
    /// # Errors
    /// The object is no head; errors of reading.
    pub async fn snapshot_named(
        &self,
        head: ObjectId,
        name: &[u8],
    ) -> Result<Option<(ObjectId, Guid, Vec<u8>)>> {
        let pool = self.pool();
        let _names = pool.config.read().await;
        let phys = pool.dataset_phys(head).await?;
        let map = ObjectId(phys.snapnames_zapobj);
        if map.0 == 0 {
            return Ok(None);
        }
        let mut stored = name.to_vec();
        let mut value = zap::lookup(&pool.mos, map, name).await?;
        if value.is_none() && phys.flags & dataset_flags::CASE_INSENSITIVE != 0 {
            let found = zap::lookup_normalized(&pool.mos, map, name).await?;
            if let Some((found, name, _)) = found {
                stored = name;
                value = Some(found);
            }
        }
        let Some(ZapValue::U64(words)) = value else {
            return Ok(None);
        };
        let Some(object) = words.first().copied().map(ObjectId) else {
            return Ok(None);
        };
        let guid = pool.dataset_phys(object).await?.guid;
        Ok(Some((object, Guid(guid), stored)))
    }

    /// Returns how many snapshots the head `head` has, and when that changed last (or the head was made), in seconds
    /// since 1970.
    ///
    /// # Errors
    /// The object is no head; errors of reading.
    pub async fn snapshot_count(&self, head: ObjectId) -> Result<(u64, u64)> {
        let pool = self.pool();
        let _names = pool.config.read().await;
        let phys = pool.dataset_phys(head).await?;
        let count = match phys.snapnames_zapobj {
            0 => 0,
            map => zap::count(&pool.mos, ObjectId(map)).await?,
        };
        let dir = pool.dir(ObjectId(phys.dir_obj)).await?;
        let key = zapified_keys::SNAPSHOTS_CHANGED;
        let changed = pool.dir_time(&dir, key).await?;
        Ok((count, changed.unwrap_or(phys.creation_time)))
    }
}
