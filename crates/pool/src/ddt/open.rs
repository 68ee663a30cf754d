//! Reading the tables at import.

use std::rc::Rc;

use dmu::{Objset, zap};
use ondisk::ddt::DdtHistogram;
use ondisk::{ChecksumKind, ObjectId};
use vdev::Tree;
use zap::ZapValue;

use super::{CHECKSUMS, CLASSES, DedupTable, DedupTables, FAST_FLAGS, FAST_VERSION, STATISTICS};
use crate::PoolError;
use crate::objects::DIRECTORY;
use crate::spec::DedupTuning;

impl DedupTables {
    /// Reads what the tables are.
    ///
    /// # Errors
    /// `Corrupt` for what is not a table; `Unsupported` forms are corrupt as well, by name.
    pub(crate) async fn open(
        mos: &Objset,
        tree: &Tree,
        fast: bool,
        tuning: &DedupTuning,
    ) -> Result<Self, PoolError> {
        let found = Self::new(mos, tree, fast, tuning);
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
        for object in objects.into_iter().flatten() {
            let entries = zap::count(mos, object).await?;
            table.stored.set(table.stored.get().saturating_add(entries));
        }
        if own.is_some() {
            self.read_logs(&table, directory).await?;
        }
        Ok(Some(table))
    }
}
