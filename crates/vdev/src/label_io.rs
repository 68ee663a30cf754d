//! Labels and uberblocks of the leaves of a tree: writing, flushing, reading back.

use std::rc::Rc;
use std::time::Duration;

use ondisk::label::{END_RESERVED, LABEL_COUNT};
use ondisk::{Guid, Txg, Uberblock};
use runtime::{Disk, Instant, IoBuf};

use crate::labels::{self, LabelSet};
use crate::leaf::Leaf;
use crate::tree::leaf_failure;
use crate::{IoClass, LEAF_DATA_START, OpenMode, Tree, VdevError};

/// Leaves that are read from at the same time: half a MiB of labels each.
const CONCURRENT: usize = 16;

impl Tree {
    /// Writes the configuration nvlist (packed, with its 4-byte header) into label `which` (0-3) of a leaf.
    /// Not durable before a flush of the leaf.
    ///
    /// # Errors
    /// [`VdevError::NoSuchLeaf`], [`VdevError::LabelTooLarge`], or the device's failure.
    pub async fn write_label(&self, leaf: Guid, which: u8, packed: &[u8]) -> Result<(), VdevError> {
        assert!(usize::from(which) < LABEL_COUNT, "a leaf has four labels");
        let (leaf, size) = self.leaf_for_label(leaf)?;
        let (offset, block) = labels::config_block(size, usize::from(which), packed)?;
        self.write_reserved(&leaf, offset, block).await
    }

    /// Prepares all four labels of a new leaf: zero pad, empty boot environment, empty ring. Destroys whatever labels
    /// the device had. Not durable before a flush of the leaf.
    ///
    /// # Errors
    /// [`VdevError::NoSuchLeaf`] or the device's failure.
    pub async fn init_labels(&self, leaf: Guid) -> Result<(), VdevError> {
        let (leaf, size) = self.leaf_for_label(leaf)?;
        for which in 0..LABEL_COUNT {
            let (offset, block) = labels::fresh_label(size, which)?;
            self.write_reserved(&leaf, offset, block).await?;
        }
        Ok(())
    }

    /// Prepares the two labels at the end of a leaf that has become larger; those at its front stay as they are. Not durable
    /// before a flush of the leaf.
    ///
    /// # Errors
    /// [`VdevError::NoSuchLeaf`] or the device's failure.
    pub async fn init_end_labels(&self, leaf: Guid) -> Result<(), VdevError> {
        let (leaf, size) = self.leaf_for_label(leaf)?;
        for which in LABEL_COUNT / 2..LABEL_COUNT {
            let (offset, block) = labels::fresh_label(size, which)?;
            self.write_reserved(&leaf, offset, block).await?;
        }
        Ok(())
    }

    /// Writes an uberblock into its slot (`txg % slots`) of all four labels of a leaf. Not durable before a flush of
    /// the leaf.
    ///
    /// # Errors
    /// When not one of the four could be written.
    pub async fn write_uberblock(
        &self,
        leaf: Guid,
        uberblock: &Uberblock,
    ) -> Result<(), VdevError> {
        let (leaf, size) = self.leaf_for_label(leaf)?;
        let ashift = self.ashift(leaf.top)?;
        let mut blocks = Vec::new();
        for which in 0..LABEL_COUNT {
            blocks.push(labels::uberblock_slot(size, which, ashift, uberblock)?);
        }
        let writes = blocks
            .into_iter()
            .map(|(offset, block)| self.write_reserved(&leaf, offset, block));
        let results = runtime::join_all(writes).await;
        if results.iter().any(Result::is_ok) {
            return Ok(());
        }
        results
            .into_iter()
            .next()
            .unwrap_or(Err(VdevError::Unavailable { vdev: leaf.top }))
    }

    /// Writes an uberblock into the slot for heartbeats of label `which` (0-3) of a leaf: other hosts see it then, though it
    /// is not durable.
    ///
    /// # Errors
    /// [`VdevError::NoSuchLeaf`] or the device's failure.
    pub async fn write_heartbeat(
        &self,
        leaf: Guid,
        which: u8,
        uberblock: &Uberblock,
    ) -> Result<(), VdevError> {
        assert!(usize::from(which) < LABEL_COUNT, "a leaf has four labels");
        let (leaf, size) = self.leaf_for_label(leaf)?;
        let ashift = self.ashift(leaf.top)?;
        let (offset, block) = labels::heartbeat_slot(size, usize::from(which), ashift, uberblock)?;
        self.write_reserved(&leaf, offset, block).await
    }

    /// Has all leaves refuse writes after a moment (`None`: never), because another host may have the pool then.
    pub fn write_until(&self, end: Option<Instant>) {
        for leaf in self.all_leaves() {
            leaf.write_until(end);
        }
    }

    /// Flushes one leaf.
    ///
    /// # Errors
    /// [`VdevError::NoSuchLeaf`] or the device's failure; the leaf is then taken out.
    pub async fn flush_leaf(&self, leaf: Guid) -> Result<(), VdevError> {
        let (leaf, _) = self.leaf_for_label(leaf)?;
        let top = self.top(leaf.top);
        let _turn = match &top {
            Some(top) => Some(top.flushing.lock().await),
            None => None,
        };
        leaf.flush(self.timeout_for(&leaf))
            .await
            .map_err(|error| leaf_failure(&leaf, 0, 0, error))
    }

    /// Reads the labels of one leaf.
    ///
    /// # Errors
    /// [`VdevError::NoSuchLeaf`] when it is not open.
    pub async fn read_labels(&self, leaf: Guid) -> Result<LabelSet, VdevError> {
        let found = self
            .0
            .leaves
            .borrow()
            .get(&leaf)
            .and_then(|leaf| leaf.disk());
        LabelSet::read(&found.ok_or(VdevError::NoSuchLeaf { guid: leaf })?).await
    }

    /// Returns every valid uberblock of any leaf, in no order, each as often as it is found.
    ///
    /// # Errors
    /// None at present; leaves that cannot be read are skipped.
    pub async fn uberblocks(&self) -> Result<Vec<Uberblock>, VdevError> {
        let mut all = Vec::new();
        for leaves in self.all_leaves().chunks(CONCURRENT) {
            let disks = leaves.iter().filter_map(|leaf| leaf.disk());
            let reads = disks.map(|disk| async move { LabelSet::read(&disk).await });
            for set in runtime::join_all(reads).await {
                all.extend(set?.uberblocks.iter().map(|found| found.uberblock));
            }
        }
        Ok(all)
    }

    /// Returns the newest valid uberblock of any leaf with txg at most `max`.
    ///
    /// # Errors
    /// None at present; leaves that cannot be read are skipped.
    pub async fn best_uberblock(&self, max: Option<Txg>) -> Result<Option<Uberblock>, VdevError> {
        let mut best: Option<Uberblock> = None;
        for leaves in self.all_leaves().chunks(CONCURRENT) {
            let reads = leaves.iter().filter_map(|leaf| {
                let (disk, ashift) = (leaf.disk()?, self.ashift(leaf.top));
                Some(newest_uberblock(disk, ashift.ok(), max))
            });
            for found in runtime::join_all(reads).await {
                if let Some(found) = found?
                    && best.is_none_or(|best| found.cmp_currency(&best).is_gt())
                {
                    best = Some(found);
                }
            }
        }
        Ok(best)
    }

    pub(crate) fn leaf_for_label(&self, guid: Guid) -> Result<(Rc<Leaf>, u64), VdevError> {
        if self.0.mode == OpenMode::ReadOnly {
            return Err(VdevError::ReadOnly);
        }
        let leaf = self.0.leaves.borrow().get(&guid).cloned();
        let leaf = leaf.ok_or(VdevError::NoSuchLeaf { guid })?;
        let size = leaf.psize();
        if leaf.is_usable() && size != 0 {
            Ok((leaf, size))
        } else {
            Err(VdevError::Unavailable { vdev: leaf.top })
        }
    }

    /// How long a leaf may take before the others go on without it; without others that could stand in, for ever.
    fn timeout_for(&self, leaf: &Leaf) -> Option<Duration> {
        let top = self.top(leaf.top);
        top.and_then(|top| self.timeout(&top))
    }

    async fn write_reserved(
        &self,
        leaf: &Leaf,
        offset: u64,
        block: IoBuf,
    ) -> Result<(), VdevError> {
        let size = block.len() as u64;
        // A leaf that was closed meanwhile has no size, and takes no write.
        let data_end = leaf.psize().saturating_sub(END_RESERVED);
        assert!(
            offset + size <= LEAF_DATA_START || offset >= data_end,
            "a label at {offset:x} lies outside the blocks, which end at {data_end:x}"
        );
        let timeout = self.timeout_for(leaf);
        leaf.write(offset, block, IoClass::SyncWrite, timeout, None)
            .await
            .map_err(|error| leaf_failure(leaf, offset, size, error))
    }
}

async fn newest_uberblock(
    disk: Disk,
    ashift: Option<u8>,
    max: Option<Txg>,
) -> Result<Option<Uberblock>, VdevError> {
    match ashift {
        Some(ashift) => Ok(labels::newest_uberblock(&disk, ashift, max).await),
        None => Ok(LabelSet::read(&disk).await?.best_uberblock(max).copied()),
    }
}
