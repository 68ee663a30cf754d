//! The snapshots of one head for `.zfs/snapshot`: lookup by name, listing by cookie.

use dmu::zap::{self, ZapValue};
use ondisk::dsl::{dataset_flags, zapified_keys};
use ondisk::{Guid, ObjectId};

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

impl Hierarchy {
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
