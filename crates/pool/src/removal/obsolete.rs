//! Obsolete ranges of the indirect mappings of removed vdevs: a space map beside each table, so that OpenZFS can shorten
//! the table one day. Kept while the feature `obsolete_counts` is enabled.
// OpenZFS: module/zfs/vdev_indirect.c, vdev_indirect_sync_obsolete

use dmu::{Tx, zap};
use ondisk::{ObjectId, Txg};

use super::state::ObsoleteMap;
use crate::PoolError;
use crate::pool::ImportedPool;
use crate::space_map::{self, Encoder, MapType, Scale};

/// Keys in a top-level vdev's ZAP.
const SPACE_MAP: &str = "com.delphix:indirect_obsolete_sm";
const PRECISE: &str = "com.delphix:obsolete_counts_are_precise";
pub(super) const FEATURE: &str = "obsolete_counts";
const HISTOGRAM: &str = "spacemap_histogram";

impl ImportedPool {
    /// Notes in the ZAP of a vdev whose evacuation begins that its table knows all that is obsolete. Syncing context.
    pub(super) async fn begin_counting(
        &self,
        vdev_zap: ObjectId,
        tx: &Tx,
    ) -> Result<(), PoolError> {
        assert!(tx.is_syncing(), "begin counting happens in syncing context");
        let features = self.hierarchy().features();
        // Once for this note, once for the counts of the table.
        features.incr(FEATURE, tx).await?;
        features.incr(FEATURE, tx).await?;
        Ok(zap::add_u64(self.mos(), vdev_zap, PRECISE, 1, tx).await?)
    }

    /// Removes everything that was kept of what is obsolete on a vdev whose table goes. Syncing context.
    pub(super) async fn end_counting(
        &self,
        vdev: u32,
        vdev_zap: ObjectId,
        has_counts: bool,
        tx: &Tx,
    ) -> Result<(), PoolError> {
        assert!(tx.is_syncing(), "end counting happens in syncing context");
        let features = self.hierarchy().features();
        self.store().forget_obsolete(vdev);
        if has_counts {
            features.decr(FEATURE, tx).await?;
        }
        if zap::lookup_u64(self.mos(), vdev_zap, PRECISE)
            .await?
            .is_some()
        {
            zap::remove(self.mos(), vdev_zap, PRECISE, tx).await?;
            features.decr(FEATURE, tx).await?;
        }
        if let Some(map) = self.obsolete_map(vdev, vdev_zap).await? {
            zap::remove(self.mos(), vdev_zap, SPACE_MAP, tx).await?;
            self.mos().free_object(map.object, tx).await?;
            features.decr(FEATURE, tx).await?;
            if map.header.histogram.is_some() {
                features.decr(HISTOGRAM, tx).await?;
            }
            self.activities
                .removal
                .obsolete
                .0
                .borrow_mut()
                .remove(&vdev);
        }
        Ok(())
    }

    /// Writes down what one pass of `txg` freed of removed vdevs. Syncing context.
    pub(crate) async fn write_obsolete(
        &self,
        txg: Txg,
        pass: u32,
        tx: &Tx,
    ) -> Result<(), PoolError> {
        assert!(tx.is_syncing(), "write obsolete happens in syncing context");
        let uncopied = self.store().take_uncopied(txg);
        if uncopied > 0 {
            self.note_copied(uncopied, tx).await?;
        }
        let obsolete = self.store().take_obsolete(txg);
        let features = self.hierarchy().features();
        if obsolete.is_empty() || !features.is_enabled(FEATURE) {
            return Ok(());
        }
        for (vdev, ranges) in obsolete {
            let config = self.tree().config();
            let top = config.tops.get(vdev as usize);
            let Some((vdev_zap, asize)) = top.and_then(|top| Some((top.zap_top?, top.asize)))
            else {
                continue;
            };
            let vdev_zap = ObjectId(vdev_zap);
            let mut map = match self.obsolete_map(vdev, vdev_zap).await? {
                Some(map) => map,
                None => self.create_obsolete_map(vdev_zap, tx).await?,
            };
            // Offsets in bytes.
            let scale = Scale {
                start: 0,
                size: asize,
                shift: 0,
            };
            let two_words = self.space().two_words.get();
            let mut encoder = Encoder::new(scale, &map.header, map.block_size, two_words);
            encoder.batch(MapType::Alloc, txg.0, pass);
            for range in &ranges {
                encoder.range(MapType::Alloc, range);
            }
            encoder
                .append(self.mos(), map.object, &mut map.header, tx)
                .await?;
            space_map::set_header(self.mos(), map.object, &map.header, tx).await?;
            self.activities
                .removal
                .obsolete
                .0
                .borrow_mut()
                .insert(vdev, map);
        }
        Ok(())
    }

    async fn create_obsolete_map(
        &self,
        vdev_zap: ObjectId,
        tx: &Tx,
    ) -> Result<ObsoleteMap, PoolError> {
        assert!(
            tx.is_syncing(),
            "create obsolete map happens in syncing context"
        );
        let features = self.hierarchy().features();
        let histogram = self.space().histogram.get();
        let (object, header) = space_map::create(self.mos(), histogram, tx).await?;
        zap::add_u64(self.mos(), vdev_zap, SPACE_MAP, object.0, tx).await?;
        features.incr(FEATURE, tx).await?;
        if histogram {
            features.incr(HISTOGRAM, tx).await?;
        }
        Ok(ObsoleteMap {
            object,
            header,
            block_size: space_map::BLOCK_SIZE,
        })
    }

    async fn obsolete_map(
        &self,
        vdev: u32,
        vdev_zap: ObjectId,
    ) -> Result<Option<ObsoleteMap>, PoolError> {
        let known = self
            .activities
            .removal
            .obsolete
            .0
            .borrow()
            .get(&vdev)
            .cloned();
        if known.is_some() {
            return Ok(known);
        }
        let Some(object) = zap::lookup_u64(self.mos(), vdev_zap, SPACE_MAP).await? else {
            return Ok(None);
        };
        let object = ObjectId(object);
        Ok(Some(ObsoleteMap {
            object,
            header: space_map::header(self.mos(), object).await?,
            block_size: self.mos().object_info(object).await?.block_size,
        }))
    }
}
