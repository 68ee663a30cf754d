//! Writes the log of a txg, and brings the maps of metaslabs up to date with the logs, a few in each txg.

use std::collections::BTreeMap;
use std::ops::Range;

use dmu::{AllocSpec, Tx, zap};
use dsl::Features;
use ondisk::bytes::of_u64s;
use ondisk::{ObjectId, ObjectType, Txg};
use range_tree::Mismatch;
use zio::{BlockStore, MetaslabChange};

use super::{SpaceMaps, count_segments, is_to_condense};
use crate::PoolError;
use crate::log_space_map::{BLOCK_SIZE, DIRECTORY_KEY, Key, Log, SHIFT, TXGS_KEY};
use crate::objects::DIRECTORY;
use crate::space_map::{self, Encoder, MapType, Scale};

const FEATURE: &str = "log_spacemap";
/// Where a log's entries are: anywhere.
const EVERYWHERE: Scale = Scale {
    start: 0,
    size: u64::MAX,
    shift: SHIFT,
};

impl SpaceMaps {
    /// Has the next txg bring all maps up to date and remove all older logs, for an export: the next import then reads none.
    pub(crate) fn flush_all_logs(&self) {
        self.logs.borrow_mut().flush_all = true;
    }

    /// Appends the changes of one pass to the log of `txg`.
    pub(super) async fn write_log(
        &self,
        store: &BlockStore,
        features: &Features,
        (txg, pass): (Txg, u32),
        changes: Vec<MetaslabChange>,
        tx: &Tx,
    ) -> Result<(), PoolError> {
        assert!(tx.is_syncing(), "write log happens in syncing context");
        if changes.is_empty() {
            return Ok(());
        }
        let mut log = self.log_of(txg, features, tx).await?;
        let mut encoder = Encoder::new(EVERYWHERE, &log.header, BLOCK_SIZE, true);
        let mut begun = Vec::new();
        for change in &changes {
            let key = (change.vdev, change.metaslab);
            // One that is used for the first time has a map from then on, as OpenZFS expects, though an empty one.
            let (mut map, scale) = self.map_of(key, features, tx).await?;
            let counted = map.header.histogram;
            count_segments(&mut map, store, key, scale);
            if map.header.histogram != counted {
                space_map::set_header(&self.mos, map.object, &map.header, tx).await?;
            }
            self.put_map(key, map);
            if self.logs.borrow().since(key).is_none() {
                self.logs.borrow_mut().note_flushed(key, txg.0);
                begun.push(key);
            }
            encoder.of_vdev(change.vdev);
            for (kind, ranges) in [
                (MapType::Alloc, &change.allocs),
                (MapType::Free, &change.frees),
            ] {
                if ranges.is_empty() {
                    continue;
                }
                encoder.batch(kind, txg.0, pass);
                for range in ranges {
                    encoder.range(kind, range);
                    self.note_logged(key, kind, range)?;
                }
            }
        }
        encoder
            .append(&self.mos, log.object, &mut log.header, tx)
            .await?;
        space_map::set_header(&self.mos, log.object, &log.header, tx).await?;
        self.logs.borrow_mut().put_log(txg.0, log);
        self.store_txgs(&begun, txg, tx).await
    }

    fn note_logged(&self, key: Key, kind: MapType, range: &Range<u64>) -> Result<(), PoolError> {
        let applied = self.logs.borrow_mut().apply(key, kind, range);
        applied.map_err(|Mismatch| {
            let (id, metaslab) = key;
            PoolError::Corrupt(format!(
                "the space map of metaslab {metaslab} of vdev {id} contradicts what was allocated"
            ))
        })
    }

    /// Brings the maps of some metaslabs up to date, and removes logs whose entries are all in the maps. At the start of a
    /// txg, before its own changes are in its log: from then on the maps say what was before it.
    pub(crate) async fn flush_logs(
        &self,
        store: &BlockStore,
        features: &Features,
        txg: Txg,
        tx: &Tx,
    ) -> Result<(), PoolError> {
        assert!(tx.is_syncing(), "flush logs happens in syncing context");
        let mut turn = self.logs.borrow().turn();
        if !self.logging.get() || turn == 0 {
            return Ok(());
        }
        // Metaslabs flushed in this txg name it, so it must have a log.
        self.log_of(txg, features, tx).await?;
        let mut flushed = Vec::new();
        loop {
            let next = {
                let logs = self.logs.borrow();
                logs.oldest().filter(|&(since, _)| {
                    since < txg.0 && (turn > 0 || logs.is_above_limits(since))
                })
            };
            let Some((_, key)) = next else { break };
            if self.logs.borrow().changes_of(key).is_some() {
                self.flush(store, features, key, txg, tx).await?;
                turn = turn.saturating_sub(1);
            } else {
                self.logs.borrow_mut().note_flushed(key, txg.0);
            }
            flushed.push(key);
        }
        self.logs.borrow_mut().flush_all = false;
        self.store_txgs(&flushed, txg, tx).await?;
        self.remove_obsolete_logs(features, txg, tx).await
    }

    /// Brings the map of one metaslab up to date.
    async fn flush(
        &self,
        store: &BlockStore,
        features: &Features,
        key: Key,
        txg: Txg,
        tx: &Tx,
    ) -> Result<(), PoolError> {
        assert!(tx.is_syncing(), "flush happens in syncing context");
        let Some(changes) = self.logs.borrow().changes_of(key).cloned() else {
            return Ok(());
        };
        let (mut map, scale) = self.map_of(key, features, tx).await?;
        // The changes of this txg are not for the map. Were its number on the entries, what it allocates anew of what they free
        // would look as if it was free (zdb -y).
        let before = (Txg(txg.0 - 1), 1);
        if is_to_condense(&map, store, key) {
            let free = self.free_ranges(key.0, key.1).await?;
            self.condense(&mut map, scale, before, free, tx).await?;
        } else {
            let allocs: Vec<_> = changes.allocs.iter().collect();
            let frees: Vec<_> = changes.frees.iter().collect();
            self.append(&mut map, scale, before, &allocs, &frees, tx)
                .await?;
        }
        count_segments(&mut map, store, key, scale);
        space_map::set_header(&self.mos, map.object, &map.header, tx).await?;
        // At once: a load of the metaslab meanwhile sees either the changes or the longer map.
        self.put_map(key, map);
        self.logs.borrow_mut().note_flushed(key, txg.0);
        Ok(())
    }

    /// Returns the log of a txg, made now if there is none.
    async fn log_of(&self, txg: Txg, features: &Features, tx: &Tx) -> Result<Log, PoolError> {
        if let Some(log) = self.logs.borrow().log(txg.0) {
            return Ok(log.clone());
        }
        let known = self.logs.borrow().directory;
        let directory = match known {
            Some(directory) => directory,
            None => {
                let spec = zap::ZapSpec::new(ObjectType::ZAP_METADATA);
                let directory = zap::create(&self.mos, &spec, tx).await?;
                zap::add_u64(&self.mos, DIRECTORY, DIRECTORY_KEY, directory.0, tx).await?;
                features.set_refcount(FEATURE, 1, tx).await?;
                self.logs.borrow_mut().directory = Some(directory);
                directory
            }
        };
        let (object, header) = self.create_map(BLOCK_SIZE, features, tx).await?;
        zap::add_u64(&self.mos, directory, format!("{:x}", txg.0), object.0, tx).await?;
        let log = Log { object, header };
        self.logs.borrow_mut().put_log(txg.0, log.clone());
        Ok(log)
    }

    /// Stores that everything before `txg` is in the maps of these metaslabs.
    async fn store_txgs(&self, keys: &[Key], txg: Txg, tx: &Tx) -> Result<(), PoolError> {
        let mut by_vdev: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        for &(vdev, metaslab) in keys {
            by_vdev.entry(vdev).or_default().push(metaslab);
        }
        for (vdev, metaslabs) in by_vdev {
            let list = self.list_of(vdev, tx).await?;
            for metaslab in metaslabs {
                let slot = 8 * u64::from(metaslab);
                self.mos.write(list, slot, &of_u64s(&[txg.0]), tx).await?;
            }
        }
        Ok(())
    }

    /// Returns the object that keeps the txgs of a vdev's metaslabs, made now if there is none.
    async fn list_of(&self, vdev: u32, tx: &Tx) -> Result<ObjectId, PoolError> {
        if let Some(list) = self.logs.borrow().list_of(vdev) {
            return Ok(list);
        }
        let config = self.tree.config();
        let top = config.tops.iter().find(|top| top.id == u64::from(vdev));
        let zap_top = top.and_then(|top| top.zap_top).unwrap_or(0);
        if zap_top == 0 {
            return Err(PoolError::Corrupt(format!("vdev {vdev} has no ZAP")));
        }
        let spec = AllocSpec::new(ObjectType::UINT64_METADATA).block_size(BLOCK_SIZE);
        let list = self.mos.allocate(spec, tx).await?;
        zap::add_u64(&self.mos, ObjectId(zap_top), TXGS_KEY, list.0, tx).await?;
        self.logs.borrow_mut().set_list(vdev, list);
        Ok(list)
    }

    async fn remove_obsolete_logs(
        &self,
        features: &Features,
        txg: Txg,
        tx: &Tx,
    ) -> Result<(), PoolError> {
        let (directory, gone) = {
            let mut logs = self.logs.borrow_mut();
            (logs.directory, logs.take_obsolete(txg.0))
        };
        let Some(directory) = directory else {
            return Ok(());
        };
        for (of, log) in gone {
            zap::remove(&self.mos, directory, format!("{of:x}"), tx).await?;
            self.mos.free_object(log.object, tx).await?;
            if log.header.histogram.is_some() {
                features.decr("spacemap_histogram", tx).await?;
            }
        }
        Ok(())
    }
}
