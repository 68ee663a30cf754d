//! The block reference tables (BRT): how many references each has beyond the first, and giving references up.
//!
//! A cloned block looks like any other in its pointers; each top-level vdev that has some keeps a count of them for
//! every 16 MiB, so that most frees need no look-up, and a table of extra references by offset. References are added for what
//! intent logs name when they are claimed, and for what a txg cloned when its sync begins.
//!
//! ```text
//! directory  com.fudosecurity:brt:vdev:<id> -> object: u16 per region; its bonus { entries, regions, byte order,
//!            entries in all, bytes of a region, bytes referenced again, bytes saved }
//! entries    offset of the first place -> extra references, eight bytes
//! ```
//! Guarantees: a table on disk counts exactly the references that exist at the end of each txg. Does not know which
//! block pointers refer to a block.
// OpenZFS: module/zfs/brt.c, include/sys/brt_impl.h; docs/format/05-space.md section 7

use std::cell::RefCell;
use std::collections::BTreeMap;

use dmu::{AllocSpec, DmuError, Objset, Tx, zap};
use dsl::Features;
use ondisk::brt::{BrtVdevPhys, decode_counts, decode_entry, encode_counts, encode_entry};
use ondisk::bytes::{index, len64};
use ondisk::{BlockPointer, Dva, ObjectId, ObjectType};
use vdev::{TopInfo, Tree};
use zap::ZapValue;

use crate::PoolError;
use crate::objects::DIRECTORY;

const PREFIX: &str = "com.fudosecurity:brt:vdev:";
const HEADER_BYTES: u16 = 56;
const _: () = assert!(BrtVdevPhys::SIZE == HEADER_BYTES as usize);
/// Bytes of a vdev that one count is for, in tables we make. OpenZFS: BRT_RANGESIZE.
const REGION_BYTES: u64 = 16 << 20;
/// Block size of the object of counts. OpenZFS: BRT_BLOCKSIZE.
const COUNTS_BLOCK_BYTES: u32 = 32 << 10;
/// Bytes of a table that are read into the cache at once.
const PREFETCH_BYTES: u64 = 1 << 20;
/// Entries that are in memory at once where they are counted.
const ENTRIES_AT_ONCE: usize = 1024;
/// Most regions believed of one vdev.
const REGIONS_MAX: u64 = 1 << 24;
const _: () = assert!(2 * REGIONS_MAX <= u32::MAX as u64);
const _: () = assert!(REGION_BYTES.is_power_of_two() && COUNTS_BLOCK_BYTES.is_power_of_two());

/// The table of one top-level vdev.
struct ReferenceTable {
    /// The table and its entries, once it is stored.
    objects: Option<(ObjectId, ObjectId)>,
    region_bytes: u64,
    regions: Vec<u16>,
    /// Entries in all.
    total: u64,
    used: u64,
    saved: u64,
    /// Entries touched in this txg: extra references now.
    changed: BTreeMap<u64, u64>,
}

/// All tables of a pool, by vdev.
pub(crate) struct BlockReferenceTables {
    mos: Objset,
    tree: Tree,
    tables: RefCell<BTreeMap<u32, ReferenceTable>>,
}

impl BlockReferenceTables {
    /// The tables of a pool that has no clones yet.
    pub(crate) fn new(mos: &Objset, tree: &Tree) -> Self {
        Self {
            mos: mos.clone(),
            tree: tree.clone(),
            tables: RefCell::default(),
        }
    }

    /// Reads the regions of all tables; a pool without clones has none. Where counts contradict the entries, the entries hold:
    /// a free that met the contradiction would fail while a txg syncs, and every sync after it.
    ///
    /// # Errors
    /// `Corrupt` for what is not a table; errors of reading.
    pub(crate) async fn open(mos: &Objset, tree: &Tree) -> Result<Self, PoolError> {
        let mut tables = BTreeMap::new();
        let removed = tree.removed_tops();
        for top in tree.tops().into_iter().chain(removed) {
            let key = format!("{PREFIX}{}", top.id);
            let Some(object) = zap::lookup_u64(mos, DIRECTORY, key).await? else {
                continue;
            };
            let object = ObjectId(object);
            let bonus = mos.bonus(object).await?.bytes;
            let bad =
                || PoolError::Corrupt(format!("the table of cloned blocks of vdev {}", top.id));
            let header = BrtVdevPhys::decode(&bonus).map_err(|_| bad())?;
            let is_known = header.regions <= REGIONS_MAX && header.byte_order == 0;
            if !is_known || header.region_bytes == 0 || header.entries_object == 0 {
                return Err(bad());
            }
            let counts = mos.read(object, 0, index(2 * header.regions)).await?;
            let mut regions = decode_counts(&counts);
            // One longer than the vdev's metaslabs, which OpenZFS does not open, is cut when it is next written.
            let needed = index(regions_of(&top, header.region_bytes));
            while regions.len() > needed && regions.last() == Some(&0) {
                regions.pop();
            }
            let mut table = ReferenceTable {
                objects: Some((object, ObjectId(header.entries_object))),
                region_bytes: header.region_bytes,
                regions,
                total: header.total,
                used: header.used,
                saved: header.saved,
                changed: BTreeMap::new(),
            };
            table.count_again(mos, needed).await?;
            tables.insert(top.id, table);
        }
        Ok(Self {
            tables: RefCell::new(tables),
            ..Self::new(mos, tree)
        })
    }

    /// Reads the tables into the cache. What does not fit is pushed out again.
    ///
    /// # Errors
    /// Those of reading.
    pub(crate) async fn prefetch(&self) -> Result<(), PoolError> {
        let of_tables = |table: &ReferenceTable| table.objects;
        let tables = self
            .tables
            .borrow()
            .values()
            .filter_map(of_tables)
            .collect::<Vec<_>>();
        for (counts, entries) in tables {
            for object in [counts, entries] {
                let info = self.mos.object_info(object).await?;
                let block = u64::from(info.block_size);
                let end = block.saturating_mul(info.max_block_id.saturating_add(1));
                let mut at = 0;
                while at < end {
                    let len = PREFETCH_BYTES.min(end - at);
                    self.mos.read(object, at, index(len)).await?;
                    at += len;
                }
            }
        }
        Ok(())
    }

    /// Returns the bytes (deflated) that the extra references would take.
    pub(crate) fn saved_bytes(&self) -> u64 {
        let tables = self.tables.borrow();
        let saved = tables.values().map(|table| table.saved);
        saved.fold(0, u64::saturating_add)
    }

    /// Returns the bytes (deflated) of the blocks that have extra references.
    pub(crate) fn used_bytes(&self) -> u64 {
        let tables = self.tables.borrow();
        let used = tables.values().map(|table| table.used);
        used.fold(0, u64::saturating_add)
    }

    /// Whether the block may have extra references.
    pub(crate) fn may_have(&self, bp: &BlockPointer) -> bool {
        let dva = bp.dvas()[0];
        if bp.level() > 0 || bp.object_type().is_metadata() {
            return false;
        }
        self.in_region(&dva) > 0
    }

    /// The extra references of the block at a place.
    async fn count(&self, dva: &Dva) -> Result<u64, PoolError> {
        let (entries, known) = {
            let tables = self.tables.borrow();
            let Some(table) = tables.get(&dva.vdev) else {
                return Ok(0);
            };
            let known = table.changed.get(&dva.offset).copied();
            (table.objects.map(|(_, entries)| entries), known)
        };
        if let Some(count) = known {
            return Ok(count);
        }
        let Some(entries) = entries else {
            return Ok(0);
        };
        match zap::lookup_u64_key(&self.mos, entries, &[dva.offset]).await? {
            None => Ok(0),
            Some(ZapValue::U8(value)) => decode_entry(&value).ok_or_else(|| bad_entry(dva)),
            Some(_) => Err(bad_entry(dva)),
        }
    }

    fn top_of(&self, dva: &Dva) -> Result<TopInfo, PoolError> {
        let removed = self.tree.removed_tops();
        let mut tops = self.tree.tops().into_iter().chain(removed);
        let top = tops.find(|top| top.id == dva.vdev);
        top.ok_or_else(|| bad_entry(dva))
    }

    /// Checks that one more reference to a block can be counted, and given back.
    ///
    /// # Errors
    /// `Corrupt` for a place that no vdev has, and a table that contradicts itself; errors of reading.
    pub(crate) async fn check(&self, bp: &BlockPointer) -> Result<(), PoolError> {
        let dva = bp.dvas()[0];
        let bad = || bad_entry(&dva);
        let top = self.top_of(&dva)?;
        let (region_bytes, in_region) = {
            let tables = self.tables.borrow();
            match tables.get(&dva.vdev) {
                None => (REGION_BYTES, 0),
                Some(table) => {
                    let region = index(dva.offset / table.region_bytes);
                    let in_region = table.regions.get(region).copied();
                    (table.region_bytes, in_region.unwrap_or(0))
                }
            }
        };
        let fits = dva.offset / region_bytes < regions_of(&top, region_bytes);
        let count = self.count(&dva).await?;
        let is_counted = count == 0 || in_region > 0;
        if !fits || !is_counted || count == u64::MAX || in_region == u16::MAX {
            return Err(bad());
        }
        Ok(())
    }

    /// Counts `more` references to an allocated block. `dsize` is what the block counts in space accounting.
    ///
    /// # Errors
    /// `Corrupt` for a place that no vdev has; errors of reading.
    pub(crate) async fn refer(
        &self,
        bp: &BlockPointer,
        dsize: u64,
        more: u64,
    ) -> Result<(), PoolError> {
        assert!(more > 0, "references are added");
        let dva = bp.dvas()[0];
        let top = self.top_of(&dva)?;
        // A region without entries has none for the block.
        let stored = match self.in_region(&dva) {
            0 => 0,
            _ => self.count(&dva).await?,
        };
        let mut tables = self.tables.borrow_mut();
        let table = tables
            .entry(dva.vdev)
            .or_insert_with(|| ReferenceTable::new(&top));
        let region = index(dva.offset / table.region_bytes);
        let regions = index(regions_of(&top, table.region_bytes));
        if table.regions.len() < regions {
            // The vdev has grown since the table was made.
            table.regions.resize(regions, 0);
        }
        let of_region = table.regions.get_mut(region);
        let of_region = of_region.ok_or_else(|| bad_entry(&dva))?;
        let count = table.changed.entry(dva.offset).or_insert(stored);
        if *count == 0 {
            *of_region = of_region.saturating_add(1);
            table.total = table.total.saturating_add(1);
            table.used = table.used.saturating_add(dsize);
        }
        *count = count.saturating_add(more);
        table.saved = table.saved.saturating_add(dsize.saturating_mul(more));
        Ok(())
    }

    /// Entries in the region of a place.
    fn in_region(&self, dva: &Dva) -> u16 {
        let tables = self.tables.borrow();
        let counted = tables.get(&dva.vdev).and_then(|table| {
            let region = index(dva.offset / table.region_bytes);
            table.regions.get(region).copied()
        });
        counted.unwrap_or(0)
    }

    /// Gives up one extra reference, if there is one; else the block itself is to be freed (false). `dsize` is what
    /// the block counts in space accounting.
    ///
    /// # Errors
    /// `Corrupt` for an entry that cannot be; errors of reading.
    pub(crate) async fn release(&self, bp: &BlockPointer, dsize: u64) -> Result<bool, PoolError> {
        let dva = bp.dvas()[0];
        let bad = || bad_entry(&dva);
        if !self.tables.borrow().contains_key(&dva.vdev) {
            return Ok(false);
        }
        let stored = self.count(&dva).await?;
        let mut tables = self.tables.borrow_mut();
        let table = tables.get_mut(&dva.vdev).ok_or_else(bad)?;
        // A concurrent release may have read the entry first.
        let count = table.changed.entry(dva.offset).or_insert(stored);
        if *count == 0 {
            return Ok(false);
        }
        *count -= 1;
        table.saved = table.saved.saturating_sub(dsize);
        if *count == 0 {
            let region = index(dva.offset / table.region_bytes);
            let region = table.regions.get_mut(region).ok_or_else(bad)?;
            *region = region.checked_sub(1).ok_or_else(bad)?;
            table.total = table.total.checked_sub(1).ok_or_else(bad)?;
            table.used = table.used.saturating_sub(dsize);
        }
        Ok(true)
    }

    /// Makes the objects of a vdev's first table.
    // OpenZFS: module/zfs/brt.c, brt_vdev_create
    async fn create(
        &self,
        vdev: u32,
        features: &Features,
        tx: &Tx,
    ) -> Result<(ObjectId, ObjectId), PoolError> {
        assert!(tx.is_syncing(), "create happens in syncing context");
        let mut spec = zap::ZapSpec::new(ObjectType::ZAP_METADATA);
        // 48 bits of hash, integer keys.
        spec.flags = 1 | 2;
        spec.fat_block_shift = 12;
        spec.indirect_shift = 12;
        let entries = zap::create(&self.mos, &spec, tx).await?;
        let spec = AllocSpec::new(ObjectType::UINT64_METADATA)
            .block_size(COUNTS_BLOCK_BYTES)
            .bonus(ObjectType::UINT64_METADATA, HEADER_BYTES);
        let object = self.mos.allocate(spec, tx).await?;
        let header = BrtVdevPhys {
            entries_object: entries.0,
            region_bytes: REGION_BYTES,
            ..BrtVdevPhys::default()
        };
        self.mos
            .set_bonus(object, ObjectType::UINT64_METADATA, &header.encode(), tx)
            .await?;
        zap::add_u64(
            &self.mos,
            DIRECTORY,
            format!("{PREFIX}{vdev}"),
            object.0,
            tx,
        )
        .await?;
        features.incr("block_cloning", tx).await?;
        if let Some(table) = self.tables.borrow_mut().get_mut(&vdev) {
            table.objects = Some((object, entries));
        }
        Ok((object, entries))
    }

    /// Writes what changed in this txg so far; a table without entries is freed.
    ///
    /// # Errors
    /// Errors of reading and writing the meta-objset.
    pub(crate) async fn write(&self, features: &Features, tx: &Tx) -> Result<(), PoolError> {
        assert!(tx.is_syncing(), "write happens in syncing context");
        let mos = &self.mos;
        let vdevs: Vec<u32> = self.tables.borrow().keys().copied().collect();
        for vdev in vdevs {
            let (objects, changed, total) = {
                let mut tables = self.tables.borrow_mut();
                let Some(table) = tables.get_mut(&vdev) else {
                    continue;
                };
                let changed = std::mem::take(&mut table.changed);
                (table.objects, changed, table.total)
            };
            let (object, entries) = match objects {
                _ if changed.is_empty() => continue,
                Some(objects) => objects,
                None if total == 0 => {
                    self.tables.borrow_mut().remove(&vdev);
                    continue;
                }
                None => self.create(vdev, features, tx).await?,
            };
            for (offset, count) in changed {
                if count == 0 {
                    match zap::remove_u64_key(mos, entries, &[offset], tx).await {
                        Ok(()) | Err(DmuError::ZapNoEntry { .. }) => {}
                        Err(error) => return Err(error.into()),
                    }
                } else {
                    let value = ZapValue::U8(encode_entry(count));
                    zap::update_u64_key(mos, entries, &[offset], &value, tx).await?;
                }
            }
            let stored = self
                .tables
                .borrow()
                .get(&vdev)
                .and_then(|table| table.stored(entries));
            if let Some((counts, phys)) = stored {
                mos.write(object, 0, &counts, tx).await?;
                let header = mos.bonus(object).await?;
                let mut bytes = header.bytes.to_vec();
                bytes[..BrtVdevPhys::SIZE].copy_from_slice(&phys.encode());
                mos.set_bonus(object, header.bonus_type, &bytes, tx).await?;
            } else {
                mos.free_object(entries, tx).await?;
                mos.free_object(object, tx).await?;
                zap::remove(mos, DIRECTORY, format!("{PREFIX}{vdev}"), tx).await?;
                features.decr("block_cloning", tx).await?;
                self.tables.borrow_mut().remove(&vdev);
            }
        }
        Ok(())
    }
}

impl ReferenceTable {
    fn new(top: &TopInfo) -> Self {
        Self {
            objects: None,
            region_bytes: REGION_BYTES,
            regions: vec![0; index(regions_of(top, REGION_BYTES))],
            total: 0,
            used: 0,
            saved: 0,
            changed: BTreeMap::new(),
        }
    }

    /// Counts the entries by region, unless the counts found agree with how many there are. At most `needed` regions.
    async fn count_again(&mut self, mos: &Objset, needed: usize) -> Result<(), PoolError> {
        let Some((object, entries)) = self.objects else {
            return Ok(());
        };
        let there = zap::count(mos, entries).await?;
        let counted: u64 = self.regions.iter().map(|&count| u64::from(count)).sum();
        if counted == there && self.total == there {
            return Ok(());
        }
        let bad = || PoolError::Corrupt(format!("the table of cloned blocks in object {object}"));
        self.total = there;
        self.regions.clear();
        self.regions.resize(needed, 0);
        let mut cookie = 0;
        loop {
            let some = zap::cursor(mos, entries, cookie, ENTRIES_AT_ONCE).await?;
            let Some(last) = some.last() else {
                return Ok(());
            };
            cookie = last.next_cookie;
            for entry in &some {
                let offset = <[u8; 8]>::try_from(entry.name.as_slice()).map_err(|_| bad())?;
                let region = index(u64::from_be_bytes(offset) / self.region_bytes);
                let count = self.regions.get_mut(region).ok_or_else(bad)?;
                *count = count.checked_add(1).ok_or_else(bad)?;
            }
        }
    }

    /// The counts and the header to be stored, for a table with these entries; `None` when no entry is left.
    fn stored(&self, entries: ObjectId) -> Option<(Vec<u8>, BrtVdevPhys)> {
        if self.total == 0 {
            return None;
        }
        let header = BrtVdevPhys {
            entries_object: entries.0,
            regions: len64(self.regions.len()),
            byte_order: 0,
            total: self.total,
            region_bytes: self.region_bytes,
            used: self.used,
            saved: self.saved,
        };
        Some((encode_counts(&self.regions), header))
    }
}

/// Regions of a vdev's table: they end with its last metaslab, not with the vdev.
// OpenZFS: module/zfs/brt.c, brt_vdev_realloc; module/zfs/vdev.c, vdev_get_min_asize
fn regions_of(top: &TopInfo, region_bytes: u64) -> u64 {
    (top.metaslab_count << top.metaslab_shift)
        .div_ceil(region_bytes)
        .min(REGIONS_MAX)
}

fn bad_entry(dva: &Dva) -> PoolError {
    let place = format!("{}:{:x}", dva.vdev, dva.offset);
    PoolError::Corrupt(format!("the table of cloned blocks at {place}"))
}
