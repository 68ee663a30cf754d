//! The deduplication tables (DDT) of a pool: how often each deduplicated block is referenced, and giving references up.
//!
//! A block pointer with the dedup bit does not own its block: the table of its checksum counts the pointers, and the
//! block is freed with the last one. A block that is written and equals one in a table becomes a reference to it.
//! Large tables of the fast form log their changes and are written some txgs later (`log`).
//!
//! ```text
//! directory   DDT-statistics -> { object name: histogram of that object }
//!             DDT-sha256-zap-{ditto,duplicate,unique} -> { 5 words of key: entry }          (old form)
//!             DDT-sha256 -> { version, flags, DDT-log-sha256-{0,1}, DDT-sha256-zap-... }    (fast form)
//! ```
//! The entries' own layout is `ondisk::ddt`'s.
//! What reads the tables at import is in `open`, what is told of them in `statistics`, how they are made smaller in `prune`.
//!
//! Guarantees: a table on disk counts exactly the references that exist at the end of each txg. Does not know which
//! block pointers refer to a block.
// OpenZFS: module/zfs/ddt.c, ddt_zap.c, ddt_log.c, ddt_stats.c; docs/format/05-space.md section 6

mod log;
mod open;
pub(crate) mod prune;
pub(crate) mod statistics;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use codec::compress::{Algorithm, compress, decompress};
use dmu::{Objset, Tx, zap};
use dsl::Features;
use ondisk::ddt::{DdtEntry, DdtHistogram, DdtKey, DdtPhys};
use ondisk::{BlockPointer, ChecksumKind, Dva, NewBlock, ObjectId, ObjectType, Txg};
use vdev::Tree;
use zap::ZapValue;
use zio::Sharing;

use self::log::{LoggedEntry, Logs};
use crate::PoolError;
use crate::objects::DIRECTORY;
use crate::spec::DedupTuning;

const STATISTICS: &str = "DDT-statistics";
const CHECKSUMS: [(ChecksumKind, &str); 5] = [
    (ChecksumKind::SHA256, "sha256"),
    (ChecksumKind::SHA512, "sha512"),
    (ChecksumKind::SKEIN, "skein"),
    (ChecksumKind::EDONR, "edonr"),
    (ChecksumKind::BLAKE3, "blake3"),
];
const CLASSES: [&str; 3] = ["ditto", "duplicate", "unique"];
const DUPLICATE: usize = 1;
const UNIQUE: usize = 2;
const _: () = assert!(DUPLICATE < CLASSES.len() && UNIQUE < CLASSES.len());
/// Version and flags (flat entries, log) of the only fast form there is.
const FAST_VERSION: u64 = 1;
const FAST_FLAGS: u64 = 3;

/// An entry touched in this txg.
#[derive(Clone, Debug)]
struct EntryChange {
    /// The class whose object holds it.
    class: Option<usize>,
    /// As counted in that class's histogram.
    counted: Option<DdtEntry>,
    now: DdtEntry,
}

/// The table of one checksum.
struct DedupTable {
    kind: ChecksumKind,
    name: &'static str,
    /// ZAP of the table's objects: the pool's directory in the old form. `None` before anything is stored.
    directory: Cell<Option<ObjectId>>,
    flat: bool,
    objects: Cell<[Option<ObjectId>; 3]>,
    histograms: RefCell<[DdtHistogram; 3]>,
    /// Of a table of the fast form.
    logs: RefCell<Logs>,
    /// Entries in the objects.
    stored: Cell<u64>,
    changed: RefCell<BTreeMap<DdtKey, EntryChange>>,
}

/// All tables of a pool.
pub(crate) struct DedupTables {
    mos: Objset,
    tree: Tree,
    /// `None` in a pool that never had a table.
    statistics: Cell<Option<ObjectId>>,
    /// The feature `fast_dedup` is enabled: new tables have the fast form.
    fast: Cell<bool>,
    tables: RefCell<BTreeMap<u8, Rc<DedupTable>>>,
    /// Deflated bytes of all blocks: as referenced, as stored.
    bytes: Cell<(u64, u64)>,
    /// The tables have reached their quota: they get no new entries.
    full: Cell<bool>,
    /// A table of the fast form with so many entries is written through logs.
    log_from: u64,
    /// Entries of a log that are flushed in a txg at least.
    flush_min: usize,
}

impl DedupTables {
    /// The tables of a pool that has none yet. `fast` says whether new ones have the fast form.
    pub(crate) fn new(mos: &Objset, tree: &Tree, fast: bool, tuning: &DedupTuning) -> Self {
        Self {
            mos: mos.clone(),
            tree: tree.clone(),
            statistics: Cell::new(None),
            fast: Cell::new(fast),
            tables: RefCell::default(),
            bytes: Cell::new((0, 0)),
            full: Cell::new(false),
            log_from: tuning.log_from_entries,
            flush_min: tuning.flush_entries_min,
        }
    }

    /// Takes note that the feature `fast_dedup` was enabled.
    pub(crate) fn set_fast(&self, fast: bool) {
        self.fast.set(fast);
    }

    /// Takes note whether the tables may get new entries.
    pub(crate) fn set_full(&self, full: bool) {
        self.full.set(full);
    }

    /// Whether a table may count this block's references.
    pub(crate) fn may_have(&self, bp: &BlockPointer) -> bool {
        bp.is_dedup() && self.tables.borrow().contains_key(&bp.checksum_kind().0)
    }

    /// Gives up one reference. Returns the block to be freed, if it was the last.
    ///
    /// # Errors
    /// `Corrupt` for an entry that cannot be, errors of reading.
    pub(crate) async fn release(
        &self,
        bp: &BlockPointer,
    ) -> Result<Option<BlockPointer>, PoolError> {
        let table = self.tables.borrow().get(&bp.checksum_kind().0).cloned();
        let mut plain = *bp;
        plain.set_dedup(false);
        // What no table knows (any more) is a block like any other.
        let Some(table) = table else {
            return Ok(Some(plain));
        };
        let key = DdtKey::of(bp);
        if !self.load(&table, &key).await? {
            return Ok(Some(plain));
        }
        let mut changed = table.changed.borrow_mut();
        let now = &mut changed.get_mut(&key).expect("it was just put there").now;
        let place = bp.dvas()[0].to_words();
        let birth = bp.physical_birth().0;
        let variant = now
            .variants
            .iter_mut()
            .find(|v| v.birth == birth && v.dvas[0] == place);
        let Some(variant) = variant else {
            return Ok(Some(plain));
        };
        if variant.references == 0 {
            return Err(table.bad("has a block without references that is referenced"));
        }
        variant.references -= 1;
        if variant.references > 0 {
            return Ok(None);
        }
        let last = table.block(&key, variant);
        *variant = DdtPhys::default();
        Ok(Some(last))
    }

    /// Looks for a stored block that equals `wanted`, and counts one more reference to it. One call at a time for a key.
    ///
    /// # Errors
    /// `Corrupt` for an entry that cannot be, errors of reading.
    pub(crate) async fn share(
        &self,
        wanted: &BlockPointer,
        copies: u8,
    ) -> Result<Sharing, PoolError> {
        let Some(table) = self.table_of(wanted.checksum_kind()) else {
            return Ok(Sharing::Refused);
        };
        let key = DdtKey::of(wanted);
        let unknown = match self.full.get() {
            true => Sharing::Refused,
            false => Sharing::New,
        };
        if !self.load(&table, &key).await? {
            return Ok(unknown);
        }
        let mut changed = table.changed.borrow_mut();
        let now = &mut changed.get_mut(&key).expect("it was just put there").now;
        let variant = &mut now.variants[table.variant_of(copies)];
        if variant.birth == 0 {
            return Ok(unknown);
        }
        let dvas = places(&key, variant);
        let stored = dvas.iter().filter(|dva| dva.is_present()).count();
        // An entry of the fast form has room for one set of places; a block that wants more is none of the table's.
        let is_enough = stored >= usize::from(copies);
        if !is_enough || variant.references == 0 || variant.references == u64::MAX {
            return Ok(Sharing::Refused);
        }
        variant.references += 1;
        Ok(Sharing::Shared(dvas, Txg(variant.birth)))
    }

    /// Enters a block that was written because [`DedupTables::share`] found none for so many `copies`: it has one reference.
    /// Returns false for what a table of the old form cannot count: a block with other than so many places, such as a gang, for
    /// OpenZFS enters it by the copies that were asked for, and looks for it by its places when it is freed.
    // OpenZFS: module/zfs/zio.c, zio_ddt_write; module/zfs/ddt.c, ddt_entry_lookup_is_valid
    ///
    /// # Panics
    /// When the table has such a block.
    pub(crate) fn note_written(&self, bp: &BlockPointer, copies: u8) -> bool {
        let table = self.table_of(bp.checksum_kind());
        let table = table.expect("a block is written to be shared where there can be a table");
        if !table.flat && bp.copies().count() != usize::from(copies) {
            return false;
        }
        let now = u64::try_from(self.mos.services().handle.wall_clock().seconds).unwrap_or(0);
        let mut changed = table.changed.borrow_mut();
        let entry = changed
            .entry(DdtKey::of(bp))
            .or_insert_with(|| EntryChange {
                class: None,
                counted: None,
                now: DdtEntry::empty(table.flat),
            });
        let variant = &mut entry.now.variants[table.variant_of(copies)];
        assert!(variant.birth == 0, "of equal blocks one is written");
        *variant = DdtPhys {
            dvas: bp.dvas().map(|dva| dva.to_words()),
            references: 1,
            birth: bp.physical_birth().0,
            since: if table.flat { now } else { 0 },
        };
        true
    }

    /// The table of a checksum, a new one if need be; `None` for a checksum that makes no tables.
    fn table_of(&self, kind: ChecksumKind) -> Option<Rc<DedupTable>> {
        if let Some(table) = self.tables.borrow().get(&kind.0) {
            return Some(Rc::clone(table));
        }
        let (kind, name) = CHECKSUMS.into_iter().find(|(known, _)| *known == kind)?;
        let table = Rc::new(DedupTable::new(kind, name, self.fast.get()));
        if !table.flat {
            table.directory.set(Some(DIRECTORY));
        }
        self.tables.borrow_mut().insert(kind.0, Rc::clone(&table));
        Some(table)
    }

    /// Makes an entry one of this txg's changes; false when there is none of that key.
    async fn load(&self, table: &DedupTable, key: &DdtKey) -> Result<bool, PoolError> {
        if table.changed.borrow().contains_key(key) {
            return Ok(true);
        }
        let Some(change) = self.find(table, key).await? else {
            return Ok(false);
        };
        // Another task may have read the entry first.
        table.changed.borrow_mut().entry(*key).or_insert(change);
        Ok(true)
    }

    async fn find(
        &self,
        table: &DedupTable,
        key: &DdtKey,
    ) -> Result<Option<EntryChange>, PoolError> {
        if let Some(LoggedEntry { class, entry }) = table.logs.borrow().get(key) {
            // The histogram counts what is in the objects and not in a log.
            return Ok(Some(EntryChange {
                class: *class,
                counted: None,
                now: entry.clone(),
            }));
        }
        for (class, object) in table.objects.get().into_iter().enumerate() {
            let Some(object) = object else { continue };
            match zap::lookup_u64_key(&self.mos, object, &key.0).await? {
                None => {}
                Some(ZapValue::U8(value)) => {
                    let entry = unpack(&value, table.flat)
                        .ok_or_else(|| table.bad("has a damaged entry"))?;
                    return Ok(Some(EntryChange {
                        class: Some(class),
                        counted: Some(entry.clone()),
                        now: entry,
                    }));
                }
                Some(_) => return Err(table.bad("has a damaged entry")),
            }
        }
        Ok(None)
    }

    /// Writes what changed in this txg so far. Returns blocks to be freed: obsolete variants of entries.
    pub(crate) async fn write(
        &self,
        features: &Features,
        tx: &Tx,
    ) -> Result<Vec<BlockPointer>, PoolError> {
        assert!(tx.is_syncing(), "write happens in syncing context");
        let mut freed = Vec::new();
        for table in self.all() {
            let changed = std::mem::take(&mut *table.changed.borrow_mut());
            let mut is_written = !changed.is_empty();
            let has_logs = !table.logs.borrow().is_empty();
            if table.flat && (has_logs || table.stored.get() >= self.log_from) {
                if is_written {
                    self.append_to_log(&table, changed, features, tx).await?;
                }
                is_written |= self.flush_log(&table, &mut freed, features, tx).await?;
            } else {
                for (key, change) in changed {
                    self.write_entry(&table, &key, change, &mut freed, (features, tx))
                        .await?;
                }
            }
            // What has not changed must not be written once more: the passes of a txg end when nothing is.
            if is_written {
                self.finish_txg(&table, features, tx).await?;
            }
        }
        self.count_bytes();
        Ok(freed)
    }

    async fn write_entry(
        &self,
        table: &DedupTable,
        key: &DdtKey,
        change: EntryChange,
        freed: &mut Vec<BlockPointer>,
        (features, tx): (&Features, &Tx),
    ) -> Result<(), PoolError> {
        assert!(tx.is_syncing(), "write entry happens in syncing context");
        let mut now = change.now;
        if !table.flat && now.variants[0].birth != 0 {
            freed.push(table.block(key, &now.variants[0]));
            now.variants[0] = DdtPhys::default();
        }
        let references = now.references(table.flat);
        let class = if references > 1 { DUPLICATE } else { UNIQUE };
        assert!(
            change.counted.is_none() || change.class.is_some(),
            "what a histogram counts is in an object"
        );
        if let Some(old) = change.class {
            if let Some(counted) = &change.counted {
                let sums = self.sums(key, counted);
                table.histograms.borrow_mut()[old].change(&sums, false);
            }
            if (references == 0 || old != class)
                && let Some(object) = table.objects.get()[old]
            {
                zap::remove_u64_key(&self.mos, object, &key.0, tx).await?;
            }
        }
        if references > 0 {
            let object = match table.objects.get()[class] {
                Some(object) => object,
                None => self.create_object(table, class, features, tx).await?,
            };
            let sums = self.sums(key, &now);
            table.histograms.borrow_mut()[class].change(&sums, true);
            let value = pack(&now, table.flat);
            zap::update_u64_key(&self.mos, object, &key.0, &value, tx).await?;
        }
        Ok(())
    }

    async fn create_object(
        &self,
        table: &DedupTable,
        class: usize,
        features: &Features,
        tx: &Tx,
    ) -> Result<ObjectId, PoolError> {
        assert!(tx.is_syncing(), "create object happens in syncing context");
        let (directory, statistics) = self.places_of(table, features, tx).await?;
        // 48 bits of hash, integer keys; a cryptographic sum is a hash already, and edonr does not pass for one.
        // OpenZFS: module/zfs/ddt_zap.c, ddt_zap_create; module/zfs/zio_checksum.c, zio_checksum_table
        let hashed = table.kind != ChecksumKind::EDONR;
        let mut spec = zap::ZapSpec::new(ObjectType::DDT_ZAP);
        spec.flags = 1 | 2 | u64::from(hashed) << 2;
        spec.fat_block_shift = 15;
        spec.indirect_shift = 15;
        let object = zap::create(&self.mos, &spec, tx).await?;
        let name = table.object_name(class);
        zap::add_u64(&self.mos, directory, &name, object.0, tx).await?;
        let histogram = ZapValue::U64(table.histograms.borrow()[class].to_words());
        zap::update(&self.mos, statistics, &name, &histogram, tx).await?;
        let mut objects = table.objects.get();
        objects[class] = Some(object);
        table.objects.set(objects);
        Ok(object)
    }

    /// The table's directory, and the statistics of all tables; made if need be.
    async fn places_of(
        &self,
        table: &DedupTable,
        features: &Features,
        tx: &Tx,
    ) -> Result<(ObjectId, ObjectId), PoolError> {
        let directory = match table.directory.get() {
            Some(directory) => directory,
            None => self.create_directory(table, features, tx).await?,
        };
        let statistics = match self.statistics.get() {
            Some(statistics) => statistics,
            None => self.create_statistics(tx).await?,
        };
        Ok((directory, statistics))
    }

    async fn create_statistics(&self, tx: &Tx) -> Result<ObjectId, PoolError> {
        let spec = zap::ZapSpec::new(ObjectType::DDT_STATS);
        let statistics = zap::create(&self.mos, &spec, tx).await?;
        zap::add_u64(&self.mos, DIRECTORY, STATISTICS, statistics.0, tx).await?;
        self.statistics.set(Some(statistics));
        Ok(statistics)
    }

    /// Makes the directory of a table of the fast form.
    // OpenZFS: module/zfs/ddt.c, ddt_create_dir
    async fn create_directory(
        &self,
        table: &DedupTable,
        features: &Features,
        tx: &Tx,
    ) -> Result<ObjectId, PoolError> {
        assert!(table.flat, "tables of the old form have no directory");
        let mos = &self.mos;
        let spec = zap::ZapSpec::new(ObjectType::ZAP_METADATA);
        let directory = zap::create(mos, &spec, tx).await?;
        zap::add_u64(mos, directory, "version", FAST_VERSION, tx).await?;
        zap::add_u64(mos, directory, "flags", FAST_FLAGS, tx).await?;
        zap::add_u64(mos, DIRECTORY, table.directory_name(), directory.0, tx).await?;
        features.incr("fast_dedup", tx).await?;
        table.directory.set(Some(directory));
        Ok(directory)
    }

    /// Stores the histograms; a table without entries is freed as a whole.
    async fn finish_txg(
        &self,
        table: &DedupTable,
        features: &Features,
        tx: &Tx,
    ) -> Result<(), PoolError> {
        assert!(tx.is_syncing(), "finish txg happens in syncing context");
        let mos = &self.mos;
        let (Some(directory), Some(statistics)) = (table.directory.get(), self.statistics.get())
        else {
            // All its references were given up in the txg that made them: nothing of it is stored.
            self.tables.borrow_mut().remove(&table.kind.0);
            return Ok(());
        };
        let mut entries = 0;
        for (class, object) in table.objects.get().into_iter().enumerate() {
            if let Some(object) = object {
                let histogram = ZapValue::U64(table.histograms.borrow()[class].to_words());
                let name = table.object_name(class);
                zap::update(mos, statistics, name, &histogram, tx).await?;
                entries += zap::count(mos, object).await?;
            }
        }
        table.stored.set(entries);
        if entries > 0 || !table.logs.borrow().is_empty() {
            return Ok(());
        }
        for (class, object) in table.objects.take().into_iter().enumerate() {
            if let Some(object) = object {
                let name = table.object_name(class);
                zap::remove(mos, directory, &name, tx).await?;
                zap::remove(mos, statistics, &name, tx).await?;
                mos.free_object(object, tx).await?;
            }
        }
        if table.flat {
            for log in table.logs.take().objects() {
                mos.free_object(log, tx).await?;
            }
            zap::remove(mos, DIRECTORY, table.directory_name(), tx).await?;
            mos.free_object(directory, tx).await?;
            features.decr("fast_dedup", tx).await?;
        }
        self.tables.borrow_mut().remove(&table.kind.0);
        Ok(())
    }

    fn all(&self) -> Vec<Rc<DedupTable>> {
        self.tables.borrow().values().cloned().collect()
    }
}

impl DedupTable {
    fn new(kind: ChecksumKind, name: &'static str, flat: bool) -> Self {
        Self {
            kind,
            name,
            directory: Cell::new(None),
            flat,
            objects: Cell::default(),
            histograms: RefCell::default(),
            logs: RefCell::default(),
            stored: Cell::new(0),
            changed: RefCell::default(),
        }
    }

    /// Index of the variant of an entry for so many copies.
    fn variant_of(&self, copies: u8) -> usize {
        if self.flat { 0 } else { usize::from(copies) }
    }

    fn directory_name(&self) -> String {
        format!("DDT-{}", self.name)
    }

    fn bad(&self, what: &str) -> PoolError {
        PoolError::Corrupt(format!("the deduplication table of {} {what}", self.name))
    }

    fn object_name(&self, class: usize) -> String {
        format!("DDT-{}-zap-{}", self.name, CLASSES[class])
    }

    /// The block a variant counts, as an ordinary one.
    fn block(&self, key: &DdtKey, variant: &DdtPhys) -> BlockPointer {
        let (lsize, psize) = key.sizes();
        BlockPointer::new(&NewBlock {
            dvas: places(key, variant),
            lsize,
            psize,
            compression: key.compression(),
            checksum_kind: self.kind,
            object_type: ObjectType::DEDUP,
            level: 0,
            birth: Txg(variant.birth),
            fill: 1,
            checksum: key.checksum(),
        })
    }
}

/// The places of a variant's block. The third of an encrypted block is none: its pointer has salt and IV there.
fn places(key: &DdtKey, variant: &DdtPhys) -> [Dva; 3] {
    let copies = if key.is_encrypted() { 2 } else { 3 };
    let mut dvas = variant
        .dvas
        .map(|(first, second)| Dva::from_words(first, second));
    dvas[copies..].fill(Dva::ABSENT);
    dvas
}

fn unpack(value: &[u8], flat: bool) -> Option<DdtEntry> {
    let unzle = |packed: &[u8], len: usize| decompress(Algorithm::Zle, packed, len).ok();
    DdtEntry::unpack(value, flat, unzle).ok()
}

fn pack(entry: &DdtEntry, flat: bool) -> ZapValue {
    ZapValue::U8(entry.pack(flat, |bytes, most| compress(Algorithm::Zle, bytes, most)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ondisk::ddt::DdtPhys;

    #[test]
    fn entries_are_squeezed() {
        let variant = DdtPhys {
            dvas: [(8, 77), (0, 0), (0, 0)],
            references: 3,
            birth: 12,
            since: 0,
        };
        let fast = DdtEntry {
            variants: vec![variant],
        };
        let ZapValue::U8(value) = pack(&fast, true) else {
            panic!("bytes")
        };
        assert_eq!(unpack(&value, true), Some(fast));
        assert!(value.len() < 72, "zeros are squeezed out");
        let mut variants = vec![DdtPhys::default(); 4];
        variants[1] = variant;
        let old = DdtEntry { variants };
        let ZapValue::U8(value) = pack(&old, false) else {
            panic!("bytes")
        };
        assert_eq!(unpack(&value, false), Some(old));
        // The start of an entry that OpenZFS wrote (format/05): 64 zeros for the unused first variant.
        assert_eq!(value[..2], [0x8e, 0x7f]);
    }
}
