//! The tables of removed vdevs on disk: where their blocks are now, and in which txgs they were copied.
//!
//! ```text
//! configuration of the vdev  com.delphix:indirect_object -> mapping (and object of counts: u32 per entry, obsolete bytes)
//!                            com.delphix:indirect_births -> in which txgs
//!                            com.delphix:prev_indirect_vdev -> the vdev removed before
//! directory                  com.delphix:removing -> how far the newest removal is
//! ```
//! The layouts are `ondisk::removal`'s.
//! The newest removal's table lies on vdevs that are still there; an older one may lie on a vdev removed since, so the
//! tables are read newest first.
// OpenZFS: include/sys/vdev_indirect_mapping.h, vdev_indirect_births.h, spa_impl.h (spa_removing_phys), and their users

use dmu::{AllocSpec, Objset, Tx, zap};
use ondisk::bytes::{index, len64};
use ondisk::removal::{
    IndirectBirthPhys, IndirectMappingEntryPhys, IndirectMappingPhys, NO_VDEV, RemovalPhys, Stage,
};
use ondisk::{ObjectId, ObjectType, Txg};
use vdev::{MappingEntry, Tree, VdevConfig, VdevKind};

use crate::PoolError;
use crate::objects::DIRECTORY;

/// Key of the state of removals in the directory.
const REMOVING: &str = "com.delphix:removing";
/// Keys of a vdev's tables in its configuration.
pub(super) const MAPPING: &str = "com.delphix:indirect_object";
pub(super) const BIRTHS: &str = "com.delphix:indirect_births";
pub(super) const PREVIOUS: &str = "com.delphix:prev_indirect_vdev";
/// Key of one that is being evacuated.
pub(super) const IS_REMOVING: &str = "removing";

/// Bytes of an entry.
pub(super) const ENTRY: u64 = IndirectMappingEntryPhys::SIZE as u64;
/// Entries read or written at a time.
const BATCH: u64 = 5461;
/// Most entries believed of one vdev (1.5 GiB of blocks of 128 KiB each need 12,288).
const ENTRIES_MAX: u64 = 1 << 24;
const _: () = assert!(ENTRY * BATCH <= BLOCK_SIZE as u64);
/// Bytes of an entry of births, and of a count.
const BIRTH: u64 = IndirectBirthPhys::SIZE as u64;
const COUNT: u64 = 4;
/// Data blocks of all these objects.
const BLOCK_SIZE: u32 = 128 << 10;
/// Bonus of a table without and with counts.
const BONUS: u16 = 24;
const BONUS_WITH_COUNTS: u16 = 32;
const _: () = assert!(BIRTH < ENTRY && COUNT * BATCH <= BLOCK_SIZE as u64);
const _: () = assert!(
    IndirectMappingPhys::SIZES.0 == BONUS as usize
        && IndirectMappingPhys::SIZES.1 == BONUS_WITH_COUNTS as usize
);

/// Reads the state of removals; `None` in a pool that nothing was ever removed from.
pub(super) async fn read_state(mos: &Objset) -> Result<Option<RemovalPhys>, PoolError> {
    match zap::lookup(mos, DIRECTORY, REMOVING).await? {
        None => Ok(None),
        Some(zap::ZapValue::U64(words)) => {
            RemovalPhys::from_words(&words).map_err(|error| bad(error.what))
        }
        Some(_) => Err(bad("state is damaged")),
    }
}

/// Stores the state of removals.
pub(super) async fn write_state(
    phys: &RemovalPhys,
    mos: &Objset,
    tx: &Tx,
) -> Result<(), PoolError> {
    assert!(tx.is_syncing(), "write state happens in syncing context");
    let value = zap::ZapValue::U64(phys.to_words());
    zap::update(mos, DIRECTORY, REMOVING, &value, tx).await?;
    Ok(())
}

/// An entry to be added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CopiedRun {
    pub(super) moved: MappingEntry,
    /// Bytes of it that were freed already.
    pub(super) obsolete: u64,
}

/// The objects of one table.
#[derive(Clone, Copy, Debug)]
pub(super) struct IndirectTable {
    pub(super) mapping: ObjectId,
    pub(super) births: ObjectId,
    pub(super) counts: Option<ObjectId>,
    end: u64,
    bytes: u64,
    entries: u64,
    births_count: u64,
}

impl IndirectTable {
    /// Creates an empty table.
    pub(super) async fn create(mos: &Objset, counts: bool, tx: &Tx) -> Result<Self, PoolError> {
        assert!(tx.is_syncing(), "create happens in syncing context");
        let kind = ObjectType::UINT64_METADATA;
        let spec = |bonus| {
            AllocSpec::new(kind)
                .block_size(BLOCK_SIZE)
                .bonus(kind, bonus)
        };
        let bonus = if counts { BONUS_WITH_COUNTS } else { BONUS };
        let mapping = mos.allocate(spec(bonus), tx).await?;
        let mut counted = None;
        if counts {
            let spec = AllocSpec::new(ObjectType::UINT32_METADATA).block_size(BLOCK_SIZE);
            counted = Some(mos.allocate(spec, tx).await?);
        }
        let births = mos.allocate(spec(8), tx).await?;
        let table = Self {
            mapping,
            births,
            counts: counted,
            end: 0,
            bytes: 0,
            entries: 0,
            births_count: 0,
        };
        table.write_headers(mos, tx).await?;
        Ok(table)
    }

    /// Opens the table of a vdev.
    pub(super) async fn open(mos: &Objset, top: &VdevConfig) -> Result<Self, PoolError> {
        let object = |key| ObjectId(top.extra.u64(key).unwrap_or(0));
        let (mapping, births) = (object(MAPPING), object(BIRTHS));
        if mapping.0 == 0 || births.0 == 0 {
            return Err(bad("table is missing"));
        }
        let header = IndirectMappingPhys::decode(&mos.bonus(mapping).await?.bytes);
        let header = header.map_err(|_| bad("table has no header"))?;
        let born = mos.bonus(births).await?.bytes;
        if born.len() < 8 {
            return Err(bad("table of births has no header"));
        }
        Ok(Self {
            mapping,
            births,
            counts: header.counts_object.map(ObjectId),
            end: header.end,
            bytes: header.bytes,
            entries: header.entries,
            births_count: ondisk::bytes::u64_at(&born, 0),
        })
    }

    async fn write_headers(&self, mos: &Objset, tx: &Tx) -> Result<(), PoolError> {
        assert!(tx.is_syncing(), "write headers happens in syncing context");
        let kind = ObjectType::UINT64_METADATA;
        let header = IndirectMappingPhys {
            end: self.end,
            bytes: self.bytes,
            entries: self.entries,
            counts_object: self.counts.map(|object| object.0),
        };
        mos.set_bonus(self.mapping, kind, &header.encode(), tx)
            .await?;
        let count = ondisk::bytes::of_u64s(&[self.births_count]);
        Ok(mos.set_bonus(self.births, kind, &count, tx).await?)
    }

    /// Adds what was copied in the txg of `tx`, behind all entries there are.
    pub(super) async fn append(
        &mut self,
        mos: &Objset,
        entries: &[CopiedRun],
        tx: &Tx,
    ) -> Result<(), PoolError> {
        assert!(tx.is_syncing(), "append happens in syncing context");
        assert!(!entries.is_empty(), "a txg without copies has no birth");
        assert!(
            entries.is_sorted_by_key(|entry| entry.moved.from),
            "entries are in the order of the removed vdev"
        );
        for batch in entries.chunks(index(BATCH)) {
            let (mut bytes, mut counts) = (Vec::new(), Vec::new());
            for CopiedRun { moved, obsolete } in batch {
                let entry = IndirectMappingEntryPhys {
                    source: moved.from,
                    len: moved.len,
                    vdev: moved.vdev,
                    offset: moved.offset,
                };
                bytes.extend_from_slice(&entry.encode());
                let obsolete = u32::try_from(*obsolete).unwrap_or(u32::MAX);
                counts.push(obsolete);
                self.bytes += moved.len;
                self.end = moved.from + moved.len;
            }
            let at = self.entries * ENTRY;
            mos.write(self.mapping, at, &bytes, tx).await?;
            if let Some(object) = self.counts {
                let at = self.entries * COUNT;
                mos.write(object, at, &ondisk::bytes::of_u32s(&counts), tx)
                    .await?;
            }
            self.entries += len64(batch.len());
        }
        let birth = IndirectBirthPhys {
            end: self.end,
            txg: tx.txg().0,
        };
        let at = self.births_count * BIRTH;
        mos.write(self.births, at, &birth.encode(), tx).await?;
        self.births_count += 1;
        self.write_headers(mos, tx).await
    }

    /// Frees all objects of the table.
    pub(super) async fn free(self, mos: &Objset, tx: &Tx) -> Result<(), PoolError> {
        assert!(tx.is_syncing(), "free happens in syncing context");
        let objects = [Some(self.mapping), Some(self.births), self.counts];
        for object in objects.into_iter().flatten() {
            mos.free_object(object, tx).await?;
        }
        Ok(())
    }

    /// Reads all runs, and when they were copied.
    async fn read(&self, mos: &Objset) -> Result<(Vec<MappingEntry>, Vec<(u64, Txg)>), PoolError> {
        let damaged = || bad("table is damaged");
        if self.entries > ENTRIES_MAX || self.births_count > ENTRIES_MAX {
            return Err(bad("table has an impossible length"));
        }
        let mut runs = Vec::new();
        let mut from = 0;
        while from < self.entries {
            let batch = (self.entries - from).min(BATCH);
            let len = index(batch * ENTRY);
            let bytes = mos.read(self.mapping, from * ENTRY, len).await?;
            for entry in bytes.chunks_exact(index(ENTRY)) {
                let entry = IndirectMappingEntryPhys::decode(entry).map_err(|_| damaged())?;
                runs.push(MappingEntry {
                    from: entry.source,
                    len: entry.len,
                    vdev: entry.vdev,
                    offset: entry.offset,
                });
            }
            from += batch;
        }
        let mut births = Vec::new();
        let mut from = 0;
        while from < self.births_count {
            let batch = (self.births_count - from).min(BATCH);
            let len = index(batch * BIRTH);
            let bytes = mos.read(self.births, from * BIRTH, len).await?;
            for entry in bytes.chunks_exact(index(BIRTH)) {
                let birth = IndirectBirthPhys::decode(entry).map_err(|_| damaged())?;
                births.push((birth.end, Txg(birth.txg)));
            }
            from += batch;
        }
        Ok((runs, births))
    }
}

fn bad(what: &str) -> PoolError {
    PoolError::Corrupt(format!("the removed vdevs' {what}"))
}

/// Tells the tree where the blocks of removed vdevs are, and those of one that is being evacuated.
pub(crate) async fn load_mappings(mos: &Objset, tree: &Tree) -> Result<(), PoolError> {
    let config = tree.config();
    let Some(phys) = read_state(mos).await? else {
        let removed = config.tops.iter().any(|top| top.kind == VdevKind::Indirect);
        return if removed {
            Err(bad("state is missing"))
        } else {
            Ok(())
        };
    };
    let known = |id: u64| usize::try_from(id).ok().and_then(|id| config.tops.get(id));
    if phys.stage == Stage::Evacuating {
        let top = known(phys.vdev).filter(|top| top.extra.u64(IS_REMOVING) == Some(1));
        let top = top.ok_or_else(|| bad("state names a vdev that is not being removed"))?;
        load(mos, tree, top).await?;
    }
    let mut next = phys.previous;
    for _ in 0..config.tops.len() {
        if next == NO_VDEV {
            return Ok(());
        }
        let top = known(next).filter(|top| top.kind == VdevKind::Indirect);
        let top = top.ok_or_else(|| bad("order names a vdev that is not removed"))?;
        load(mos, tree, top).await?;
        next = top.extra.u64(PREVIOUS).unwrap_or(NO_VDEV);
    }
    if next == NO_VDEV {
        Ok(())
    } else {
        Err(bad("order leads round in a circle"))
    }
}

async fn load(mos: &Objset, tree: &Tree, top: &VdevConfig) -> Result<(), PoolError> {
    let id = u32::try_from(top.id).map_err(|_| bad("order"))?;
    let (runs, births) = IndirectTable::open(mos, top).await?.read(mos).await?;
    Ok(tree.set_mapping(id, runs, births)?)
}
