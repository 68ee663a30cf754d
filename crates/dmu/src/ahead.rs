//! Blocks written to their place before their transaction group syncs, for an intent log that points to them instead of
//! holding a copy.
//!
//! ```text
//!  write: the block in memory --> commit: the block at its place, its pointer in the log record
//!                             \--> sync of the group: still the same bytes? the pointer is adopted, nothing is written
//!                                                    changed since?        the block is born and killed in the group
//! ```
//! Guarantees: a block written ahead is part of its group, or freed with it. Before the group syncs nothing else is put
//! there; after a crash the log claims it.
//! Does not know logs, nor when writing ahead pays.
// OpenZFS: module/zfs/dmu.c, dmu_sync (when a log record gets a pointer)

use std::collections::BTreeMap;

use ondisk::{BlockPointer, Compression, ObjectId, ObjectType};
use runtime::IoBuf;

use crate::dnode::{Block, Dnode};
use crate::error::{DmuError, Result};
use crate::objset::Objset;
use crate::tree::{BlockWrite, SyncContext, props_of};
use crate::txg::Tx;

/// Blocks of one group by object and number.
pub(crate) type Ahead = BTreeMap<(ObjectId, u64), Vec<Written>>;

/// A block at its place.
pub(crate) struct Written {
    bp: BlockPointer,
    /// The bytes it was written with; `None` when the block has changed since, for old versions must not fill the memory.
    data: Option<IoBuf>,
}

impl Objset {
    /// Writes a block to its final place now, if `data` are the bytes it has in `tx`'s group. Returns its pointer, born in
    /// that group; durable after the next flush of its vdevs. `None` when the block has changed, takes no space of its own,
    /// or there is no room: then it is written with its group as ever.
    ///
    /// # Errors
    /// `NoSuchObject`; write errors.
    pub async fn write_ahead(
        &self,
        object: ObjectId,
        offset: u64,
        data: &IoBuf,
        tx: &Tx,
    ) -> Result<Option<BlockPointer>> {
        let dnode = self.dnode(object).await?;
        let Some(kept) = kept_block(&dnode, offset, data, tx) else {
            return Ok(None);
        };
        let block = kept.number;
        let what = BlockWrite {
            object,
            object_type: kept.object_type,
            level: 0,
            block,
            fill: 1,
            is_spill: false,
            compression: kept.compression,
        };
        let policy = self.0.policy.get();
        let props = props_of(&policy, 1, self.id(), &what, &BlockPointer::HOLE, None);
        let blocks = self.0.services.blocks();
        let write = blocks.write(tx.txg(), kept.data.clone(), &props, policy.second_level);
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
        if bp.is_hole() || bp.is_embedded() {
            return Ok(None);
        }
        // While it was written the block may have changed.
        let is_newest =
            kept_block(&dnode, offset, data, tx).is_some_and(|now| now.data.is_same(&kept.data));
        let mut ahead = self.0.ahead.borrow_mut();
        let group = ahead.entry(tx.txg()).or_default();
        let versions = group.entry((object, block)).or_default();
        if is_newest {
            for older in versions.iter_mut() {
                older.data = None;
            }
        }
        versions.push(Written {
            bp,
            data: is_newest.then_some(kept.data),
        });
        // A claim after a crash takes one range for each copy.
        Ok((!bp.is_gang()).then_some(bp))
    }
}

/// A block as a group has it.
struct Kept {
    number: u64,
    object_type: ObjectType,
    compression: Compression,
    /// Its bytes, from now on shared: whoever changes the block makes a copy.
    data: IoBuf,
}

/// The block at `offset`, if `data` are the bytes it has in the group of `tx`.
fn kept_block(dnode: &Dnode, offset: u64, data: &IoBuf, tx: &Tx) -> Option<Kept> {
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
    Some(Kept {
        number,
        object_type: layer.core.object_type,
        compression: layer.core.compression,
        data: block.share(),
    })
}

impl SyncContext {
    /// The pointer of a block that was written ahead with these bytes.
    pub(crate) fn take_ahead(&self, what: &BlockWrite, data: &IoBuf) -> Option<BlockPointer> {
        if what.level != 0 || what.is_spill {
            return None;
        }
        let mut ahead = self.ahead.borrow_mut();
        let written = ahead.get_mut(&(what.object, what.block))?;
        let at = written
            .iter()
            .position(|one| one.data.as_ref().is_some_and(|bytes| bytes.is_same(data)))?;
        Some(written.swap_remove(at).bp)
    }

    /// Gives back what was written ahead and has changed since: it was born and killed in this group.
    pub(crate) fn drop_ahead(&self) {
        for Written { bp, .. } in self.ahead.take().into_values().flatten() {
            self.effects.push(true, &bp);
            self.effects.push(false, &bp);
        }
    }
}
