//! The space maps of a checkpoint: for each top-level vdev, what was freed since and stays allocated for it.
//!
//! The maps list frees only. They are read back from their ends when the checkpoint is discarded, so that a discard may be
//! interrupted at any txg.
// OpenZFS: module/zfs/spa_checkpoint.c (vdev_checkpoint_sm); include/sys/fs/zfs.h, VDEV_TOP_ZAP_POOL_CHECKPOINT_SM

use std::ops::Range;

use dmu::{Tx, zap};
use ondisk::{ObjectId, Txg};
use vdev::TopInfo;
use zio::CheckpointFrees;

use super::SpaceMaps;
use super::checkpoint_map::CheckpointMap;
use crate::PoolError;
use crate::space_map::{self, Encoder, MapType, Scale};

/// Key of a vdev's map in the vdev's ZAP.
const KEY: &str = "com.delphix:pool_checkpoint_sm";

/// A top-level vdev and its ZAP, which names the checkpoint's map.
#[derive(Clone, Debug)]
pub(crate) struct CheckpointVdev {
    pub(crate) top: TopInfo,
    /// The vdev's ZAP.
    pub(crate) vdev_zap: ObjectId,
}

impl CheckpointVdev {
    fn scale(&self) -> Scale {
        Scale {
            start: 0,
            size: self.top.metaslab_count << self.top.metaslab_shift,
            shift: self.top.ashift,
        }
    }
}

impl SpaceMaps {
    /// Opens the map of a vdev, if it has one.
    pub(crate) async fn open_checkpoint_map(
        &self,
        place: &CheckpointVdev,
    ) -> Result<(), PoolError> {
        let found = zap::lookup_u64(&self.mos, place.vdev_zap, KEY).await?;
        let Some(object) = found.filter(|&object| object != 0).map(ObjectId) else {
            return Ok(());
        };
        let header = space_map::header(&self.mos, object).await?;
        if header.allocated > 0 {
            let text = format!("space map {object}: a checkpoint's map allocates");
            return Err(PoolError::Corrupt(text));
        }
        let map = CheckpointMap {
            object,
            header,
            block_size: self.mos.object_info(object).await?.block_size,
            scale: place.scale(),
        };
        self.checkpoint_maps.borrow_mut().insert(place.top.id, map);
        Ok(())
    }

    /// Returns the bytes that each vdev keeps allocated for the checkpoint.
    pub(crate) fn checkpoint_bytes_by_vdev(&self) -> Vec<(u32, u64)> {
        let maps = self.checkpoint_maps.borrow();
        maps.iter().map(|(&id, map)| (id, map.bytes())).collect()
    }

    /// Appends what one pass of `txg` freed but for the checkpoint. Returns how many maps with the long header were made.
    pub(crate) async fn write_checkpoint_frees(
        &self,
        changes: Vec<CheckpointFrees>,
        places: &[CheckpointVdev],
        (txg, pass): (Txg, u32),
        tx: &Tx,
    ) -> Result<u64, PoolError> {
        assert!(
            tx.is_syncing(),
            "write checkpoint frees happens in syncing context"
        );
        let mut created = 0;
        for change in changes {
            let place = places.iter().find(|place| place.top.id == change.vdev);
            let place = place.ok_or(PoolError::NoSuchDevice)?;
            let known = self.checkpoint_maps.borrow().get(&change.vdev).cloned();
            let mut map = match known {
                Some(map) => map,
                None => {
                    let histogram = self.histogram.get();
                    let (object, header) = space_map::create(&self.mos, histogram, tx).await?;
                    zap::add_u64(&self.mos, place.vdev_zap, KEY, object.0, tx).await?;
                    created += u64::from(histogram);
                    CheckpointMap {
                        object,
                        header,
                        block_size: space_map::BLOCK_SIZE,
                        scale: place.scale(),
                    }
                }
            };
            // The vdev may have grown since.
            map.scale = place.scale();
            let mut encoder =
                Encoder::new(map.scale, &map.header, map.block_size, self.two_words.get());
            encoder.batch(MapType::Free, txg.0, pass);
            for range in &change.ranges {
                encoder.range(MapType::Free, range);
            }
            encoder
                .append(&self.mos, map.object, &mut map.header, tx)
                .await?;
            space_map::set_header(&self.mos, map.object, &map.header, tx).await?;
            self.checkpoint_maps.borrow_mut().insert(change.vdev, map);
        }
        Ok(created)
    }

    /// Takes about `most` bytes of entries off the end of a map; an empty map is freed. Returns the vdev and its places, and
    /// whether a map with the long header is gone; `None` when there is no map any more.
    pub(crate) async fn take_checkpoint_frees(
        &self,
        most: u64,
        places: &[CheckpointVdev],
        tx: &Tx,
    ) -> Result<Option<(u32, Vec<Range<u64>>, bool)>, PoolError> {
        assert!(
            tx.is_syncing(),
            "take checkpoint frees happens in syncing context"
        );
        let first = {
            let maps = self.checkpoint_maps.borrow();
            maps.iter().next().map(|(&id, map)| (id, map.clone()))
        };
        let Some((id, mut map)) = first else {
            return Ok(None);
        };
        let bad = |what: &str| PoolError::Corrupt(format!("space map {}: {what}", map.object));
        let block = u64::from(map.block_size);
        // Entries never straddle blocks.
        let from = map
            .header
            .length
            .saturating_sub(most)
            .next_multiple_of(block);
        let from = match from {
            from if from < map.header.length => from,
            _ => map.header.length.saturating_sub(1) / block * block,
        };
        let mut ranges = Vec::new();
        let (scale, units) = (map.scale, map.scale.size >> map.scale.shift);
        let header = map.header.clone();
        let visit = |run: space_map::Run| {
            if run.kind != MapType::Free || run.offset > units || run.run > units - run.offset {
                return Err(bad("an entry of a checkpoint's map is impossible"));
            }
            let start = scale.start + (run.offset << scale.shift);
            ranges.push(start..start + (run.run << scale.shift));
            Ok(())
        };
        space_map::for_each_from(&self.mos, map.object, &header, from, visit).await?;
        let bytes: u64 = ranges.iter().map(|range| range.end - range.start).sum();
        map.header.length = from;
        map.header.allocated += i64::try_from(bytes).map_err(|_| bad("it is too long"))?;
        if from > 0 {
            space_map::set_header(&self.mos, map.object, &map.header, tx).await?;
            self.checkpoint_maps.borrow_mut().insert(id, map);
            return Ok(Some((id, ranges, false)));
        }
        if map.header.allocated != 0 {
            return Err(bad("its entries do not add up to the sum in its header"));
        }
        let place = places.iter().find(|place| place.top.id == id);
        let place = place.ok_or(PoolError::NoSuchDevice)?;
        zap::remove(&self.mos, place.vdev_zap, KEY, tx).await?;
        self.mos.free_object(map.object, tx).await?;
        self.checkpoint_maps.borrow_mut().remove(&id);
        Ok(Some((id, ranges, map.header.histogram.is_some())))
    }
}
