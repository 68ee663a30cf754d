//! Reading the tables at import, and the logs of the fast form.

use std::rc::Rc;

use dmu::{Objset, zap};
use ondisk::bytes::index;
use ondisk::ddt::{DdtHistogram, DdtLogHeader, DdtLogRecord};
use ondisk::{ChecksumKind, ObjectId};
use vdev::Tree;
use zap::ZapValue;

use super::{
    CHECKSUMS, CLASSES, DedupTable, DedupTables, FAST_FLAGS, FAST_VERSION, LOG_BYTES_MAX,
    STATISTICS,
};
use crate::PoolError;
use crate::objects::DIRECTORY;

impl DedupTables {
    /// Reads what the tables are.
    ///
    /// # Errors
    /// `Corrupt` for what is not a table; `Unsupported` forms are corrupt as well, by name.
    pub(crate) async fn open(mos: &Objset, tree: &Tree, fast: bool) -> Result<Self, PoolError> {
        let found = Self::new(mos, tree, fast);
        let Some(statistics) = zap::lookup_u64(mos, DIRECTORY, STATISTICS).await? else {
            return Ok(found);
        };
        found.statistics.set(Some(ObjectId(statistics)));
        for (kind, name) in CHECKSUMS {
            let opened = found.open_table(kind, name, ObjectId(statistics)).await?;
            if let Some(table) = opened {
                found.tables.borrow_mut().insert(kind.0, Rc::new(table));
            }
        }
        found.count_bytes();
        Ok(found)
    }

    async fn open_table(
        &self,
        kind: ChecksumKind,
        name: &'static str,
        statistics: ObjectId,
    ) -> Result<Option<DedupTable>, PoolError> {
        let mos = &self.mos;
        let bad = || PoolError::Corrupt(format!("the deduplication table of {name}"));
        let own = zap::lookup_u64(mos, DIRECTORY, format!("DDT-{name}")).await?;
        let directory = own.map_or(DIRECTORY, ObjectId);
        if own.is_some() {
            let version = zap::lookup_u64(mos, directory, "version").await?;
            let flags = zap::lookup_u64(mos, directory, "flags").await?;
            if (version, flags) != (Some(FAST_VERSION), Some(FAST_FLAGS)) {
                return Err(bad());
            }
        }
        let mut objects = [None; 3];
        let mut histograms = <[DdtHistogram; 3]>::default();
        for (class, text) in CLASSES.iter().enumerate() {
            let key = format!("DDT-{name}-zap-{text}");
            let Some(object) = zap::lookup_u64(mos, directory, &key).await? else {
                continue;
            };
            objects[class] = Some(ObjectId(object));
            if let Some(ZapValue::U64(words)) = zap::lookup(mos, statistics, &key).await? {
                histograms[class] = DdtHistogram::from_words(&words).ok_or_else(bad)?;
            }
        }
        if own.is_none() && objects.iter().all(Option::is_none) {
            return Ok(None);
        }
        let table = DedupTable::new(kind, name, own.is_some());
        table.directory.set(Some(directory));
        table.objects.set(objects);
        table.histograms.replace(histograms);
        if own.is_some() {
            self.read_logs(&table, directory).await?;
        }
        Ok(Some(table))
    }

    /// Reads both logs: the one that is being flushed first, so that the active one has the last word.
    async fn read_logs(&self, table: &DedupTable, directory: ObjectId) -> Result<(), PoolError> {
        let mos = &self.mos;
        let mut headers = Vec::new();
        for n in 0..2 {
            let key = format!("DDT-log-{}-{n}", table.name);
            let Some(object) = zap::lookup_u64(mos, directory, key).await? else {
                continue;
            };
            let object = ObjectId(object);
            let header = DdtLogHeader::decode(&mos.bonus(object).await?.bytes);
            let header = header.map_err(|_| table.bad("has a log of an unknown form"))?;
            table.logs.borrow_mut().push(object);
            headers.push((object, header));
        }
        headers.sort_by_key(|(_, header)| !header.is_flushing);
        for (object, header) in headers {
            self.read_log(table, object, &header).await?;
        }
        Ok(())
    }

    async fn read_log(
        &self,
        table: &DedupTable,
        log: ObjectId,
        header: &DdtLogHeader,
    ) -> Result<(), PoolError> {
        let length = header.length;
        let info = self.mos.object_info(log).await?;
        let block = u64::from(info.block_size);
        let room = block.saturating_mul(info.max_block_id.saturating_add(1));
        if length > room || length > LOG_BYTES_MAX {
            return Err(table.bad("has a log of an impossible length"));
        }
        let damaged = || table.bad("has a damaged log");
        let mut at = 0;
        while at < length {
            let bytes = self.mos.read(log, at, index(block)).await?;
            let mut rest = &bytes[..];
            while let Some((record, len)) =
                DdtLogRecord::decode(rest, table.flat).map_err(|_| damaged())?
            {
                let class = record.class.map(index);
                if class.is_some_and(|class| class >= CLASSES.len()) {
                    return Err(table.bad("has a log with an unknown class"));
                }
                // Up to the checkpoint, entries of the log being flushed are in the objects already.
                if header.checkpoint.is_none_or(|done| record.key > done) {
                    let mut logged = table.logged.borrow_mut();
                    logged.insert(record.key, (class, record.entry));
                }
                rest = &rest[len..];
            }
            at += block;
        }
        Ok(())
    }
}
