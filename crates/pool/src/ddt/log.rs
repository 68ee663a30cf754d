//! The logs of a large table of the fast form: changed entries are appended to one and brought to the table's objects later,
//! many at a time in the order of their keys, so that a block of the table is written once for all its entries.
//!
//! ```text
//!   changes of a txg --> active log, and memory
//!   every txg: a share of the flushing log's entries --> objects; the key of the last one is its checkpoint
//!   the flushing log is empty: it is cut to nothing, and the two change places
//! ```
//! Guarantees: an entry is in memory while it is in a log and newer there than in the objects; memory is bounded by
//! [`ENTRIES_MAX`]. A small table is written without logs.
// OpenZFS: module/zfs/ddt_log.c; module/zfs/ddt.c, ddt_sync_table_log and ddt_sync_flush_log (order, form; the pace is our own)

use std::collections::BTreeMap;

use dmu::{AllocSpec, Tx, zap};
use dsl::Features;
use ondisk::bytes::index;
use ondisk::ddt::{DdtEntry, DdtKey, DdtLogHeader, DdtLogRecord};
use ondisk::{BlockPointer, ObjectId, ObjectType, Txg};

use super::{DedupTable, DedupTables, EntryChange};
use crate::PoolError;

/// Block size of logs made here. OpenZFS: ddt_log_create_one
const BLOCK_BYTES: u32 = 128 << 10;
const HEADER_BYTES: u16 = 64;
const _: () = assert!(DdtLogHeader::SIZE == HEADER_BYTES as usize);
const _: () = assert!(DdtLogRecord::FLAT_SIZE <= BLOCK_BYTES as usize);
/// Txgs in which a log is flushed.
const FLUSH_TXGS: usize = 4;
/// Entries of the active log above which the other one is flushed at once.
const ENTRIES_MAX: usize = 200_000;
/// Longest log believed: OpenZFS flushes long before.
const LENGTH_MAX: u64 = 1 << 30;

/// An entry in a log.
#[derive(Clone, Debug)]
pub(super) struct LoggedEntry {
    /// The class whose object has an older version of it.
    pub(super) class: Option<usize>,
    pub(super) entry: DdtEntry,
}

/// One log.
#[derive(Default)]
struct Log {
    object: Option<ObjectId>,
    header: DdtLogHeader,
    entries: BTreeMap<DdtKey, LoggedEntry>,
}

/// The two logs of a table.
#[derive(Default)]
pub(super) struct Logs {
    logs: [Log; 2],
    /// Which of them is being flushed.
    flushing: usize,
    /// Entries that it had when its flush began.
    begun_with: usize,
    flushed: Txg,
}

impl Logs {
    fn flushing(&mut self) -> &mut Log {
        &mut self.logs[self.flushing]
    }

    fn active(&mut self) -> &mut Log {
        &mut self.logs[1 - self.flushing]
    }

    /// The objects of the logs.
    pub(super) fn objects(&self) -> Vec<ObjectId> {
        self.logs.iter().filter_map(|log| log.object).collect()
    }

    /// Whether neither log has an entry.
    pub(super) fn is_empty(&self) -> bool {
        self.logs.iter().all(|log| log.entries.is_empty())
    }

    /// The newest version of an entry that is in a log.
    pub(super) fn get(&self, key: &DdtKey) -> Option<&LoggedEntry> {
        let [a, b] = &self.logs;
        a.entries.get(key).or_else(|| b.entries.get(key))
    }

    /// All entries in logs.
    pub(super) fn entries(&self) -> impl Iterator<Item = (&DdtKey, &LoggedEntry)> {
        self.logs.iter().flat_map(|log| log.entries.iter())
    }

    /// Takes over what was read of both logs: an entry of both is the active log's.
    fn adopt(&mut self, logs: [Log; 2]) {
        self.flushing = usize::from(!logs[0].header.is_flushing);
        self.logs = logs;
        let newer: Vec<DdtKey> = self.active().entries.keys().copied().collect();
        for key in newer {
            self.flushing().entries.remove(&key);
        }
        self.begun_with = self.flushing().entries.len();
    }

    /// The object of the flushing log, if nothing of it is newest any more: it is empty from here on.
    fn cut_flushed(&mut self) -> Option<ObjectId> {
        let flushing = self.flushing();
        if flushing.header.length == 0 || !flushing.entries.is_empty() {
            return None;
        }
        flushing.header.length = 0;
        flushing.header.checkpoint = None;
        flushing.object
    }

    /// The entries to be flushed next, `least` at least if there are so many; the logs change places before, if the one that was
    /// flushed is empty.
    fn next_to_flush(&mut self, least: usize) -> Vec<(DdtKey, LoggedEntry)> {
        if self.flushing().entries.is_empty() {
            assert!(
                self.flushing().header.length == 0,
                "a log without entries was cut"
            );
            self.flushing().header.is_flushing = false;
            self.flushing = 1 - self.flushing;
            self.flushing().header.is_flushing = true;
            self.begun_with = self.flushing().entries.len();
        }
        let count = match self.active().entries.len() > ENTRIES_MAX {
            true => usize::MAX,
            false => self.begun_with.div_ceil(FLUSH_TXGS).max(least),
        };
        let entries = &mut self.flushing().entries;
        let mut next = Vec::with_capacity(count.min(entries.len()));
        while next.len() < count
            && let Some(first) = entries.pop_first()
        {
            next.push(first);
        }
        next
    }
}

impl DedupTables {
    /// Reads both logs of a table at import.
    pub(super) async fn read_logs(
        &self,
        table: &DedupTable,
        directory: ObjectId,
    ) -> Result<(), PoolError> {
        let mut logs = [Log::default(), Log::default()];
        for (n, log) in logs.iter_mut().enumerate() {
            let name = table.log_name(n);
            let Some(object) = zap::lookup_u64(&self.mos, directory, name).await? else {
                continue;
            };
            let object = ObjectId(object);
            let header = DdtLogHeader::decode(&self.mos.bonus(object).await?.bytes);
            log.header = header.map_err(|_| table.bad("has a log of an unknown form"))?;
            log.object = Some(object);
            self.read_log(table, log, object).await?;
        }
        table.logs.borrow_mut().adopt(logs);
        Ok(())
    }

    async fn read_log(
        &self,
        table: &DedupTable,
        log: &mut Log,
        object: ObjectId,
    ) -> Result<(), PoolError> {
        let length = log.header.length;
        let info = self.mos.object_info(object).await?;
        let block = u64::from(info.block_size);
        let room = block.saturating_mul(info.max_block_id.saturating_add(1));
        if length > room || length > LENGTH_MAX {
            return Err(table.bad("has a log of an impossible length"));
        }
        let damaged = || table.bad("has a damaged log");
        let mut at = 0;
        while at < length {
            let bytes = self.mos.read(object, at, index(block)).await?;
            let mut rest = &bytes[..];
            while let Some((record, len)) =
                DdtLogRecord::decode(rest, table.flat).map_err(|_| damaged())?
            {
                let class = record.class.map(index);
                if class.is_some_and(|class| class >= super::CLASSES.len()) {
                    return Err(table.bad("has a log with an unknown class"));
                }
                // Up to the checkpoint, entries of the log being flushed are in the objects already.
                let checkpoint = log.header.checkpoint;
                if checkpoint.is_none_or(|done| record.key > done) {
                    let entry = record.entry;
                    log.entries.insert(record.key, LoggedEntry { class, entry });
                }
                rest = &rest[len..];
            }
            at += block;
        }
        Ok(())
    }

    /// Appends the changes of a table to its active log, in place of its objects.
    pub(super) async fn append_to_log(
        &self,
        table: &DedupTable,
        changes: BTreeMap<DdtKey, EntryChange>,
        features: &Features,
        tx: &Tx,
    ) -> Result<(), PoolError> {
        assert!(tx.is_syncing(), "a log is written in syncing context");
        if table.logs.borrow().objects().len() < 2 {
            self.create_logs(table, features, tx).await?;
        }
        let mut records = Vec::with_capacity(changes.len());
        for (key, change) in changes {
            if let (Some(class), Some(counted)) = (change.class, &change.counted) {
                let sums = self.sums(&key, counted);
                table.histograms.borrow_mut()[class].change(&sums, false);
            }
            records.push(DdtLogRecord {
                key,
                class: change.class.map(|class| class as u64),
                entry: change.now,
            });
        }
        let (object, at) = {
            let mut logs = table.logs.borrow_mut();
            let active = logs.active();
            if active.header.length == 0 {
                active.header.first_txg = tx.txg().0;
            }
            (active.object.expect("both were made"), active.header.length)
        };
        let mut blocks = Vec::new();
        let block = index(u64::from(BLOCK_BYTES));
        for of_block in records.chunks(block / DdtLogRecord::FLAT_SIZE) {
            let start = blocks.len();
            for record in of_block {
                blocks.extend(record.encode_flat());
            }
            blocks.resize(start + block, 0);
        }
        self.mos.write(object, at, &blocks, tx).await?;
        {
            let mut logs = table.logs.borrow_mut();
            logs.active().header.length = at + blocks.len() as u64;
            for DdtLogRecord { key, class, entry } in records {
                logs.flushing().entries.remove(&key);
                let class = class.map(index);
                logs.active()
                    .entries
                    .insert(key, LoggedEntry { class, entry });
            }
        }
        self.write_log_headers(table, tx).await
    }

    /// Brings this txg's share of the flushing log to the table's objects, once in a txg. Returns whether there was any.
    pub(super) async fn flush_log(
        &self,
        table: &DedupTable,
        freed: &mut Vec<BlockPointer>,
        features: &Features,
        tx: &Tx,
    ) -> Result<bool, PoolError> {
        assert!(tx.is_syncing(), "a log is flushed in syncing context");
        if table.logs.borrow().flushed == tx.txg() {
            return Ok(false);
        }
        table.logs.borrow_mut().flushed = tx.txg();
        // All its entries may have changed since it was written.
        let was_cut = self.cut_flushed(table, tx).await?;
        let next = table.logs.borrow_mut().next_to_flush(self.flush_min);
        let Some(last) = next.last().map(|(key, _)| *key) else {
            if was_cut {
                self.write_log_headers(table, tx).await?;
            }
            return Ok(was_cut);
        };
        for (key, LoggedEntry { class, entry }) in next {
            let mut change = EntryChange {
                class,
                counted: None,
                now: entry,
            };
            // OpenZFS logs an entry that has lost its last reference, and frees the block when it is flushed.
            for variant in &mut change.now.variants {
                if variant.birth != 0 && variant.references == 0 {
                    freed.push(table.block(&key, variant));
                    *variant = ondisk::ddt::DdtPhys::default();
                }
            }
            self.write_entry(table, &key, change, freed, (features, tx))
                .await?;
        }
        table.logs.borrow_mut().flushing().header.checkpoint = Some(last);
        self.cut_flushed(table, tx).await?;
        self.write_log_headers(table, tx).await?;
        Ok(true)
    }

    /// Frees the blocks of the flushing log, if nothing of it is newest any more; returns whether it did. The headers are to be
    /// written then.
    async fn cut_flushed(&self, table: &DedupTable, tx: &Tx) -> Result<bool, PoolError> {
        let cut = table.logs.borrow_mut().cut_flushed();
        if let Some(object) = cut {
            self.mos.free_range(object, 0, u64::MAX, tx).await?;
        }
        Ok(cut.is_some())
    }

    async fn create_logs(
        &self,
        table: &DedupTable,
        features: &Features,
        tx: &Tx,
    ) -> Result<(), PoolError> {
        let (directory, _) = self.places_of(table, features, tx).await?;
        for n in 0..2 {
            if table.logs.borrow().logs[n].object.is_some() {
                continue;
            }
            let spec = AllocSpec::new(ObjectType::UINT64_METADATA)
                .block_size(BLOCK_BYTES)
                .bonus(ObjectType::UINT64_METADATA, HEADER_BYTES);
            let object = self.mos.allocate(spec, tx).await?;
            zap::add_u64(&self.mos, directory, table.log_name(n), object.0, tx).await?;
            table.logs.borrow_mut().logs[n].object = Some(object);
        }
        table.logs.borrow_mut().flushing().header.is_flushing = true;
        Ok(())
    }

    async fn write_log_headers(&self, table: &DedupTable, tx: &Tx) -> Result<(), PoolError> {
        let headers = {
            let logs = table.logs.borrow();
            logs.logs.each_ref().map(|log| (log.object, log.header))
        };
        for (object, header) in headers {
            if let Some(object) = object {
                let kind = ObjectType::UINT64_METADATA;
                self.mos
                    .set_bonus(object, kind, &header.encode(), tx)
                    .await?;
            }
        }
        Ok(())
    }
}

impl DedupTable {
    fn log_name(&self, n: usize) -> String {
        format!("DDT-log-{}-{n}", self.name)
    }
}
