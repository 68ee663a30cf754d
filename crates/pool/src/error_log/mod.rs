//! The error logs: which blocks are known to be damaged, in memory and in the meta-objset as OpenZFS keeps them.
//!
//! Two logs: `last` (what a finished scan left, and what was met since) and `scrub` (what the scan under way has met).
//! When a scan ends its log becomes the last one: damage that it did not meet again is gone. Names of files are looked up
//! when they are asked for, not when damage is met.
// OpenZFS: module/zfs/spa_errlog.c (keys, rotation)

mod changed_heads;
mod relatives;
mod state;

use std::collections::{BTreeMap, BTreeSet};

use dmu::{Traversal, TraverseOptions, Tx, zap};
use ondisk::dsl::DslDatasetPhys;
use ondisk::scan::DamagedBlock;
use ondisk::{BlockPointer, ObjectId, ObjectType, Txg};
use zio::{Bookmark, IoClass, ReadProps};

use self::relatives::Relatives;
pub(crate) use self::state::ErrorLogs;
use self::state::{ErrorLog, LOG_MAX};
use crate::PoolError;
use crate::error::ScanRefusal;
use crate::objects::DIRECTORY;
use crate::pool::{ImportedPool, Pool};
use crate::scan::all_datasets;

/// Most blocks visited when looking for one by its place.
const LOOKUP_MAX: u64 = 1 << 20;
const _: () = assert!(LOG_MAX as u64 <= LOOKUP_MAX);

/// Damage of one object, where it is found.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DamagedObject {
    /// Dataset or snapshot by name; `None` for the pool's own metadata, and for datasets that are gone.
    pub dataset: Option<String>,
    /// Its object in the meta-objset; 0 for the pool's own metadata.
    pub objset: u64,
    /// The damaged object.
    pub object: u64,
}

fn spec() -> zap::ZapSpec {
    zap::ZapSpec::new(ObjectType::ERROR_LOG)
}

/// The value of an entry is a name, which OpenZFS leaves empty, too.
fn no_name() -> zap::ZapValue {
    zap::ZapValue::U8(vec![0])
}

impl Pool {
    /// Returns the damaged objects by dataset and number, for `zpool status -v`. With the feature `head_errlog` every
    /// snapshot and clone that holds a damaged block is named.
    ///
    /// # Errors
    /// Of reading the pool's own metadata.
    pub async fn damaged_objects(&self) -> Result<Vec<DamagedObject>, PoolError> {
        self.0.collect_damaged_blocks();
        let blocks = self.0.error_logs.all();
        let datasets = Relatives::from(all_datasets(self.0.mos()).await?);
        let mut objects = BTreeSet::new();
        for block in blocks {
            for objset in self.0.holders(&block, &datasets).await {
                objects.insert((objset, block.object));
            }
        }
        let mut names: BTreeMap<u64, Option<String>> = BTreeMap::new();
        let mut found = Vec::new();
        for (objset, object) in objects {
            if let std::collections::btree_map::Entry::Vacant(entry) = names.entry(objset) {
                let name = if objset == 0 {
                    None
                } else {
                    let dataset = self.0.hierarchy().dataset_by_object(ObjectId(objset)).await;
                    dataset.ok().map(|dataset| dataset.name())
                };
                entry.insert(name);
            }
            found.push(DamagedObject {
                dataset: names.get(&objset).cloned().flatten(),
                objset,
                object,
            });
        }
        Ok(found)
    }

    /// Looks again at every block known to be damaged, repairs what can be, and forgets what is whole or gone
    /// (`zpool scrub -e`). Returns how many blocks are still damaged.
    ///
    /// # Errors
    /// `Scan` while a scan runs; `Invalid` in a pool without the feature `head_errlog`; `ReadOnly`, `Suspended`, `Closed`.
    pub async fn scrub_errors(&self) -> Result<u64, PoolError> {
        let imported = &self.0;
        if let Some(scan) = imported
            .activities
            .scan
            .status()
            .filter(|scan| scan.running)
        {
            return Err(match (scan.resilver, scan.paused_since) {
                (true, _) => ScanRefusal::Resilvering,
                (false, 0) => ScanRefusal::Scrubbing,
                (false, _) => ScanRefusal::PausedToCancel,
            }
            .into());
        }
        if imported.session.readonly {
            return Err(PoolError::ReadOnly);
        }
        // OpenZFS: module/zfs/spa.c, spa_scan_range
        if !imported.hierarchy().features().is_enabled("head_errlog") {
            return Err(PoolError::Invalid(
                "operation not supported on this type of pool".to_owned(),
            ));
        }
        self.sync().await?;
        let datasets = Relatives::from(all_datasets(imported.mos()).await?);
        let mut left = BTreeSet::new();
        for block in imported.error_logs.all() {
            for objset in imported.holders(&block, &datasets).await {
                let known = &datasets.datasets;
                if imported.is_still_damaged(objset, &block, known).await {
                    left.insert(DamagedBlock { objset, ..block });
                }
            }
        }
        let count = ondisk::bytes::len64(left.len());
        {
            let mut last = imported.error_logs.last.borrow_mut();
            last.stored.clear();
            last.met_elsewhere.clear();
            last.pending = left;
        }
        imported.error_logs.rewrite.set(true);
        self.sync().await?;
        Ok(count)
    }
}

impl ImportedPool {
    /// Takes note of blocks that could not be read since the last call.
    pub(crate) fn collect_damaged_blocks(&self) {
        if !self.store().has_damaged() {
            return;
        }
        let scanning = self
            .activities
            .scan
            .status()
            .is_some_and(|scan| scan.running);
        for (bookmark, birth) in self.store().take_damaged() {
            let block = DamagedBlock {
                objset: bookmark.objset,
                object: bookmark.object,
                level: bookmark.level,
                block: bookmark.block,
                birth: birth.0,
            };
            if self.error_logs.note(block, scanning) {
                self.report_damage(&block);
            }
        }
    }

    fn heads_have_logs(&self) -> bool {
        self.hierarchy().features().is_enabled("head_errlog")
    }

    /// Reads both logs.
    pub(crate) async fn load_error_logs(&self) -> Result<(), PoolError> {
        self.error_logs.by_head.set(self.heads_have_logs());
        for (key, log) in [
            ("errlog_last", &self.error_logs.last),
            ("errlog_scrub", &self.error_logs.scrub),
        ] {
            let object = zap::lookup_u64(self.mos(), DIRECTORY, key)
                .await?
                .unwrap_or(0);
            if object == 0 {
                continue;
            }
            // A damaged log must not keep the pool from being opened.
            let stored = self.read_log(ObjectId(object)).await.unwrap_or_default();
            *log.borrow_mut() = ErrorLog {
                object,
                stored,
                ..ErrorLog::default()
            };
        }
        Ok(())
    }

    async fn read_log(&self, object: ObjectId) -> Result<BTreeSet<DamagedBlock>, PoolError> {
        let mut found = BTreeSet::new();
        for entry in zap::entries(self.mos(), object).await? {
            if !self.heads_have_logs() {
                found.extend(DamagedBlock::from_plain_key(&entry.name));
                continue;
            }
            let head = std::str::from_utf8(&entry.name)
                .ok()
                .and_then(|key| u64::from_str_radix(key, 16).ok());
            let (Some(head), zap::ZapValue::U64(value)) = (head, entry.value) else {
                continue;
            };
            let own = ObjectId(value.first().copied().unwrap_or(0));
            for entry in zap::entries(self.mos(), own).await? {
                found.extend(DamagedBlock::from_head_key(head, &entry.name));
            }
            if found.len() > LOG_MAX {
                break;
            }
        }
        Ok(found)
    }

    /// Writes what was met since the last txg. Syncing context.
    pub(crate) async fn write_error_logs(&self, tx: &Tx) -> Result<(), PoolError> {
        assert!(
            tx.is_syncing(),
            "write error logs happens in syncing context"
        );
        self.collect_damaged_blocks();
        if self.error_logs.by_head.replace(self.heads_have_logs()) != self.heads_have_logs() {
            // The feature was enabled: stored logs have the old form.
            let logs = [&self.error_logs.last, &self.error_logs.scrub];
            let stored = logs.iter().any(|log| log.borrow().object != 0);
            self.error_logs.rewrite.set(stored);
        }
        if !self.error_logs.is_dirty() {
            return Ok(());
        }
        let rotate = self.error_logs.rotate.replace(false);
        let rewrite = self.error_logs.rewrite.replace(false);
        let mut last = self.error_logs.last.take();
        let mut scrub = self.error_logs.scrub.take();
        if rotate {
            self.delete_log(last.object, tx).await?;
            last = std::mem::take(&mut scrub);
        }
        if rewrite {
            for log in [&mut last, &mut scrub] {
                self.delete_log(log.object, tx).await?;
                log.object = 0;
                log.met_elsewhere.clear();
                let stored = std::mem::take(&mut log.stored);
                log.pending.extend(stored);
            }
        }
        for (key, log) in [("errlog_last", &mut last), ("errlog_scrub", &mut scrub)] {
            self.append_log(log, tx).await?;
            zap::update_u64(self.mos(), DIRECTORY, key, log.object, tx).await?;
        }
        // What was noted while this wrote stays pending.
        for (cell, log) in [
            (&self.error_logs.last, last),
            (&self.error_logs.scrub, scrub),
        ] {
            let meanwhile = cell.replace(log);
            cell.borrow_mut().pending.extend(meanwhile.pending);
        }
        Ok(())
    }

    async fn append_log(&self, log: &mut ErrorLog, tx: &Tx) -> Result<(), PoolError> {
        assert!(tx.is_syncing(), "append log happens in syncing context");
        let pending = std::mem::take(&mut log.pending);
        if pending.is_empty() {
            return Ok(());
        }
        if log.object == 0 {
            log.object = zap::create(self.mos(), &spec(), tx).await?.0;
        }
        let object = ObjectId(log.object);
        for mut block in pending {
            if self.heads_have_logs() {
                let head = self.head_of(block.objset).await;
                self.store_of_head(object, head, &block, tx).await?;
                if block.objset != head && log.met_elsewhere.len() < LOG_MAX {
                    log.met_elsewhere.insert(block);
                }
                block.objset = head;
            } else {
                zap::update(self.mos(), object, block.plain_key(), &no_name(), tx).await?;
            }
            log.stored.insert(block);
        }
        Ok(())
    }

    /// Enters a block into the log of a head, which is made if there is none.
    async fn store_of_head(
        &self,
        log: ObjectId,
        head: u64,
        block: &DamagedBlock,
        tx: &Tx,
    ) -> Result<(), PoolError> {
        let own = match zap::lookup_int_key(self.mos(), log, head).await? {
            Some(own) => ObjectId(own),
            None => {
                let own = zap::create(self.mos(), &spec(), tx).await?;
                zap::update_int_key(self.mos(), log, head, own.0, tx).await?;
                own
            }
        };
        zap::update(self.mos(), own, block.head_key(), &no_name(), tx).await?;
        Ok(())
    }

    async fn delete_log(&self, object: u64, tx: &Tx) -> Result<(), PoolError> {
        if object == 0 {
            return Ok(());
        }
        let object = ObjectId(object);
        for entry in zap::entries(self.mos(), object).await? {
            // Entries of plain logs are bytes; those of heads are objects.
            if let zap::ZapValue::U64(value) = entry.value
                && let Some(&own) = value.first()
            {
                self.mos().free_object(ObjectId(own), tx).await?;
            }
        }
        Ok(self.mos().free_object(object, tx).await?)
    }

    /// Returns the head of a dataset's directory; the dataset itself when that cannot be found.
    async fn head_of(&self, objset: u64) -> u64 {
        match self.dir_of(objset).await {
            Some(dir) if objset != 0 && dir.head_dataset_obj != 0 => dir.head_dataset_obj,
            _ => objset,
        }
    }

    /// Returns the datasets that hold a damaged block: with `head_errlog` the log names only the head.
    async fn holders(&self, block: &DamagedBlock, datasets: &Relatives) -> Vec<u64> {
        if block.objset == 0 || block.birth == 0 || !self.heads_have_logs() {
            return vec![block.objset];
        }
        if !datasets.datasets.contains_key(&block.objset) {
            return vec![block.objset];
        }
        let mut holders = Vec::new();
        for (object, root) in datasets.that_may_hold(block.objset, block.birth) {
            let held = self.find_block(object, root, block).await;
            if held.is_some_and(|bp| bp.birth().0 == block.birth) {
                holders.push(object);
            }
        }
        holders
    }

    async fn is_still_damaged(
        &self,
        objset: u64,
        block: &DamagedBlock,
        datasets: &BTreeMap<u64, DslDatasetPhys>,
    ) -> bool {
        let root = if objset == 0 {
            self.mos().root()
        } else {
            match datasets.get(&objset) {
                Some(phys) => phys.bp,
                None => return false,
            }
        };
        let Some(bp) = self.find_block(objset, root, block).await else {
            return false;
        };
        if block.birth != 0 && bp.birth().0 != block.birth {
            return false;
        }
        let props = ReadProps {
            class: IoClass::Scrub,
            bookmark: Bookmark {
                objset,
                object: block.object,
                level: block.level,
                block: block.block,
            },
        };
        match self.store().scrub(&bp, props).await {
            Ok(outcome) => outcome.lost,
            Err(_) => true,
        }
    }

    /// Finds the pointer of a block by its place.
    async fn find_block(
        &self,
        objset: u64,
        root: BlockPointer,
        block: &DamagedBlock,
    ) -> Option<BlockPointer> {
        if root.is_hole() {
            return None;
        }
        if block.level == -1 {
            return Some(root);
        }
        let first = if block.level == 0 { block.block } else { 0 };
        let options = TraverseOptions {
            objset_id: objset,
            min_birth: Txg(0),
            skip_errors: true,
            background: true,
            resume: Some((ObjectId(block.object), first)),
            ..TraverseOptions::default()
        };
        let mut traversal = Traversal::new(self.services(), root, options);
        for _ in 0..LOOKUP_MAX {
            let item = traversal.next().await.ok().flatten()?;
            let here = item.object.0 == block.object
                && i64::from(item.level) == block.level
                && item.block == block.block;
            if here && item.error.is_none() {
                return Some(item.bp);
            }
            if item.object.0 > block.object && item.object.0 != 0 {
                return None;
            }
        }
        None
    }
}
