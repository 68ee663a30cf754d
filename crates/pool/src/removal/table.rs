//! The tables of removed vdevs on disk: where their blocks are now, and in which txgs they were copied.
//!
//! ```text
//! configuration of the vdev  com.delphix:indirect_object -> entries of 24 bytes { source, place }, sorted by source;
//!                            bonus { end, bytes, entries [, object of counts: u32 per entry, obsolete bytes] }
//!                            com.delphix:indirect_births -> { end, txg }; bonus { entries }
//!                            com.delphix:prev_indirect_vdev -> the vdev removed before
//! directory                  com.delphix:removing -> state, vdev, vdev removed last, start, end, bytes, bytes done
//! ```
//! The newest removal's table lies on vdevs that are still there; an older one may lie on a vdev removed since, so the
//! tables are read newest first.
// OpenZFS: include/sys/vdev_indirect_mapping.h, vdev_indirect_births.h, spa_impl.h (spa_removing_phys), and their users

use dmu::{AllocSpec, Objset, Tx, zap};
use ondisk::bytes::{index, len64, put_u64, u64_at};
use ondisk::{ObjectId, ObjectType, Txg};
use vdev::{MappingEntry, Tree, VdevConfig, VdevKind};

use crate::PoolError;
use crate::pool::DIRECTORY;

/// Key of the state of removals in the directory.
const REMOVING: &str = "com.delphix:removing";
/// Keys of a vdev's tables in its configuration.
pub(super) const MAPPING: &str = "com.delphix:indirect_object";
pub(super) const BIRTHS: &str = "com.delphix:indirect_births";
pub(super) const PREVIOUS: &str = "com.delphix:prev_indirect_vdev";
/// Key of one that is being evacuated.
pub(super) const IS_REMOVING: &str = "removing";

/// Bytes of an entry: source, then the two words of a block address.
pub(super) const ENTRY: u64 = 24;
/// Entries read or written at a time.
const BATCH: u64 = 5461;
/// Most entries believed of one vdev (1.5 GiB of blocks of 128 KiB each need 12,288).
const ENTRIES_MAX: u64 = 1 << 24;
const _: () = assert!(ENTRY * BATCH <= BLOCK_SIZE as u64);
/// Bytes of an entry of births, and of a count.
const BIRTH: u64 = 16;
const COUNT: u64 = 4;
/// Data blocks of all these objects.
const BLOCK_SIZE: u32 = 128 << 10;
/// Bonus of a table without and with counts.
const BONUS: u16 = 24;
const BONUS_WITH_COUNTS: u16 = 32;
/// "No vdev".
pub(super) const NONE: u64 = u64::MAX;

/// How far the newest removal is. The numbers are the on-disk ones.
// OpenZFS: include/sys/fs/zfs.h, dsl_scan_state_t
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    Evacuating = 1,
    Finished = 2,
    Canceled = 3,
}

/// What the directory says of removals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RemovalPhys {
    pub(super) stage: Stage,
    pub(super) vdev: u64,
    /// The vdev that was removed last.
    pub(super) previous: u64,
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) to_copy: u64,
    pub(super) copied: u64,
}

impl RemovalPhys {
    /// Reads the state; `None` in a pool that nothing was ever removed from.
    pub(super) async fn read(mos: &Objset) -> Result<Option<Self>, PoolError> {
        let words = match zap::lookup(mos, DIRECTORY, REMOVING).await? {
            None => return Ok(None),
            Some(zap::ZapValue::U64(words)) if words.len() >= 7 => words,
            Some(_) => return Err(bad("state is damaged")),
        };
        let stage = match words[0] {
            0 => return Ok(None),
            1 => Stage::Evacuating,
            2 => Stage::Finished,
            3 => Stage::Canceled,
            _ => return Err(bad("state is unknown")),
        };
        Ok(Some(Self {
            stage,
            vdev: words[1],
            previous: words[2],
            start: words[3],
            end: words[4],
            to_copy: words[5],
            copied: words[6],
        }))
    }

    pub(super) async fn write(&self, mos: &Objset, tx: &Tx) -> Result<(), PoolError> {
        let words = vec![
            self.stage as u64,
            self.vdev,
            self.previous,
            self.start,
            self.end,
            self.to_copy,
            self.copied,
        ];
        let value = zap::ZapValue::U64(words);
        zap::update(mos, DIRECTORY, REMOVING, &value, tx).await?;
        Ok(())
    }
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
        let bonus = mos.bonus(mapping).await?.bytes;
        if bonus.len() < usize::from(BONUS) {
            return Err(bad("table has no header"));
        }
        let counts = (bonus.len() >= usize::from(BONUS_WITH_COUNTS)).then(|| u64_at(&bonus, 24));
        let born = mos.bonus(births).await?.bytes;
        if born.len() < 8 {
            return Err(bad("table of births has no header"));
        }
        Ok(Self {
            mapping,
            births,
            counts: counts.filter(|&object| object != 0).map(ObjectId),
            end: u64_at(&bonus, 0),
            bytes: u64_at(&bonus, 8),
            entries: u64_at(&bonus, 16),
            births_count: u64_at(&born, 0),
        })
    }

    async fn write_headers(&self, mos: &Objset, tx: &Tx) -> Result<(), PoolError> {
        let kind = ObjectType::UINT64_METADATA;
        let len = match self.counts {
            Some(_) => BONUS_WITH_COUNTS,
            None => BONUS,
        };
        let mut bonus = vec![0; usize::from(len)];
        put_u64(&mut bonus, 0, self.end);
        put_u64(&mut bonus, 8, self.bytes);
        put_u64(&mut bonus, 16, self.entries);
        if let Some(counts) = self.counts {
            put_u64(&mut bonus, 24, counts.0);
        }
        mos.set_bonus(self.mapping, kind, &bonus, tx).await?;
        let count = self.births_count.to_le_bytes();
        Ok(mos.set_bonus(self.births, kind, &count, tx).await?)
    }

    /// Adds what was copied in the txg of `tx`, behind all entries there are.
    pub(super) async fn append(
        &mut self,
        mos: &Objset,
        entries: &[CopiedRun],
        tx: &Tx,
    ) -> Result<(), PoolError> {
        for batch in entries.chunks(index(BATCH)) {
            let (mut bytes, mut counts) = (Vec::new(), Vec::new());
            for CopiedRun { moved, obsolete } in batch {
                // Format page on block pointers, DVA: size in the low 24 bits, vdev above 32, all in units of 512.
                let place = u64::from(moved.vdev) << 32 | moved.len >> 9;
                for word in [moved.from >> 9, place, moved.offset >> 9] {
                    bytes.extend_from_slice(&word.to_le_bytes());
                }
                let obsolete = u32::try_from(*obsolete).unwrap_or(u32::MAX);
                counts.extend_from_slice(&obsolete.to_le_bytes());
                self.bytes += moved.len;
                self.end = moved.from + moved.len;
            }
            let at = self.entries * ENTRY;
            mos.write(self.mapping, at, &bytes, tx).await?;
            if let Some(object) = self.counts {
                let at = self.entries * COUNT;
                mos.write(object, at, &counts, tx).await?;
            }
            self.entries += len64(batch.len());
        }
        let mut birth = [0; 16];
        put_u64(&mut birth, 0, self.end);
        put_u64(&mut birth, 8, tx.txg().0);
        let at = self.births_count * BIRTH;
        mos.write(self.births, at, &birth, tx).await?;
        self.births_count += 1;
        self.write_headers(mos, tx).await
    }

    /// Frees all objects of the table.
    pub(super) async fn free(self, mos: &Objset, tx: &Tx) -> Result<(), PoolError> {
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
                let (source, place, offset) =
                    (u64_at(entry, 0), u64_at(entry, 8), u64_at(entry, 16));
                let scaled = |word: u64| (word & !(1 << 63)).checked_mul(512);
                runs.push(MappingEntry {
                    from: scaled(source).ok_or_else(damaged)?,
                    len: (place & 0xff_ffff) << 9,
                    vdev: u32::try_from(place >> 32 & 0xff_ffff).unwrap_or(u32::MAX),
                    offset: scaled(offset).ok_or_else(damaged)?,
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
            let entries = bytes.chunks_exact(index(BIRTH));
            births.extend(entries.map(|entry| (u64_at(entry, 0), Txg(u64_at(entry, 8)))));
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
    let Some(phys) = RemovalPhys::read(mos).await? else {
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
        if next == NONE {
            return Ok(());
        }
        let top = known(next).filter(|top| top.kind == VdevKind::Indirect);
        let top = top.ok_or_else(|| bad("order names a vdev that is not removed"))?;
        load(mos, tree, top).await?;
        next = top.extra.u64(PREVIOUS).unwrap_or(NONE);
    }
    if next == NONE {
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
