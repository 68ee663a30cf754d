//! Blocks written to their final location before their txg syncs, for an intent log that points to them instead of holding a
//! copy.
//!
//! ```text
//!  write: the block in memory --> commit: the block at its location, its pointer in the log record
//!                             \--> sync of the txg: still the same bytes? the pointer is adopted, nothing is written
//!                                                  changed since?        the block is born and freed in the txg
//! ```
//! Guarantees: a block written early is part of its txg, or freed with it. Before the txg syncs nothing else is allocated
//! there; after a crash the log claims it.
//! Does not know logs, nor when an early write pays.
// OpenZFS: module/zfs/dmu.c, dmu_sync (when a log record gets a pointer)

use ondisk::{BlockPointer, Compression, ObjectId, ObjectType};
use runtime::IoBuf;

use crate::blocks::EarlyWrite;
use crate::dnode::{Block, Dnode};
use crate::error::{DmuError, Result};
use crate::objset::Objset;
use crate::tree::{BlockWrite, SyncContext, props_of};
use crate::txg::Tx;

impl Objset {
    /// Writes a block to its final location now, if `data` are the bytes it has in `tx`'s txg. Returns its pointer, born in
    /// that txg; durable after the next flush of its vdevs. `None` when the block has changed, takes no space of its own, is to be
    /// deduplicated, or there is no room: then the sync of its txg writes it.
    ///
    /// # Errors
    /// `NoSuchObject`; write errors.
    pub async fn write_early(
        &self,
        object: ObjectId,
        offset: u64,
        data: &IoBuf,
        tx: &Tx,
    ) -> Result<Option<BlockPointer>> {
        let policy = self.0.policy.get();
        // References are counted while a txg syncs: until then it is not known whether the block is stored already.
        if policy.dedup.is_some() {
            return Ok(None);
        }
        let dnode = self.dnode(object).await?;
        let Some(block) = unchanged_block(&dnode, offset, data, tx) else {
            return Ok(None);
        };
        let what = BlockWrite {
            object,
            object_type: block.object_type,
            level: 0,
            block: block.number,
            fill: 1,
            is_spill: false,
            compression: block.compression,
        };
        let mut props = props_of(&policy, 1, self.id(), &what, &BlockPointer::HOLE, None);
        let is_tried = dnode.compressibility.decide(&mut props);
        let blocks = self.0.services.blocks();
        let write = blocks.write(tx.txg(), block.data.clone(), &props, policy.cache);
        let bp = match write.await {
            Ok(bp) => bp,
            Err(zio::ZioError::NoSpace { .. }) => return Ok(None),
            Err(source) => {
                return Err(DmuError::Write {
                    objset: self.id(),
                    source: std::sync::Arc::new(source),
                });
            }
        };
        if is_tried {
            dnode.compressibility.note(&bp);
        }
        if bp.is_hole() || bp.is_embedded() {
            return Ok(None);
        }
        // While it was written the block may have changed.
        let is_newest = unchanged_block(&dnode, offset, data, tx)
            .is_some_and(|now| now.data.is_same(&block.data));
        let mut early_writes = self.0.early_writes.borrow_mut();
        let of_txg = early_writes.entry(tx.txg()).or_default();
        let versions = of_txg.entry((object, block.number)).or_default();
        if is_newest {
            for older in versions.iter_mut() {
                older.data = None;
            }
        }
        versions.push(EarlyWrite {
            bp,
            data: is_newest.then_some(block.data),
        });
        // A claim after a crash takes one range for each copy.
        Ok((!bp.is_gang()).then_some(bp))
    }
}

/// A block as a txg has it.
struct DirtyBlock {
    number: u64,
    object_type: ObjectType,
    compression: Compression,
    /// Its bytes, from now on shared: a change of the block copies them.
    data: IoBuf,
}

/// The block at `offset`, if `data` are the bytes it has in the txg of `tx`.
fn unchanged_block(dnode: &Dnode, offset: u64, data: &IoBuf, tx: &Tx) -> Option<DirtyBlock> {
    let mut state = dnode.state.borrow_mut();
    let mut layers = state.layers.iter_mut();
    let layer = layers.find(|layer| layer.txg == tx.txg() && !layer.frozen)?;
    let size = u64::from(layer.core.block_size);
    let number = offset.checked_div(size)?;
    if size != data.len() as u64 || !offset.is_multiple_of(size) {
        return None;
    }
    let block = layer.blocks.get_mut(&number)?;
    let is_same = matches!(block, Block::Shared(buf) if buf.is_same(data));
    if !is_same && block[..] != data[..] {
        return None;
    }
    Some(DirtyBlock {
        number,
        object_type: layer.core.object_type,
        compression: layer.core.compression,
        data: block.share(),
    })
}

impl SyncContext {
    /// The pointer of a block that was written early with these bytes.
    pub(crate) fn take_early_write(&self, what: &BlockWrite, data: &IoBuf) -> Option<BlockPointer> {
        if what.level != 0 || what.is_spill {
            return None;
        }
        let mut early_writes = self.early_writes.borrow_mut();
        let written = early_writes.get_mut(&(what.object, what.block))?;
        let at = written
            .iter()
            .position(|one| one.data.as_ref().is_some_and(|bytes| bytes.is_same(data)))?;
        Some(written.swap_remove(at).bp)
    }

    /// Frees what was written early and has changed since: it was born and freed in this txg.
    pub(crate) fn free_unused_early_writes(&self) {
        for EarlyWrite { bp, .. } in self.early_writes.take().into_values().flatten() {
            self.effects.push(true, &bp);
            self.effects.push(false, &bp);
        }
    }
}
