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
    /// Writes a block to its final place now, if `data` are the very bytes it has in `tx`'s group (shared, not equal).
    /// Returns its pointer, born in that group; durable after the next flush of its vdevs. `None` when the block has changed,
    /// is not kept as one shared buffer, takes no space of its own, or there is no room: then it is written with its group as
    /// ever.
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
        let Some((block, object_type, compression)) = kept_block(&dnode, offset, data, tx) else {
            return Ok(None);
        };
        let what = BlockWrite {
            object,
            object_type,
            level: 0,
            block,
            fill: 1,
            is_spill: false,
            compression,
        };
        let props = props_of(
            &self.0.policy.get(),
            1,
            self.id(),
            &what,
            &BlockPointer::HOLE,
            None,
        );
        let blocks = self.0.services.blocks();
        let bp = match blocks.write(tx.txg(), data.clone(), &props).await {
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
        let is_newest = kept_block(&dnode, offset, data, tx).is_some();
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
            data: is_newest.then(|| data.clone()),
        });
        // A claim after a crash takes one range for each copy.
        Ok((!bp.is_gang()).then_some(bp))
    }
}

/// The number, type and compression of the block at `offset`, if these very bytes are what it holds in the group of `tx`.
fn kept_block(
    dnode: &Dnode,
    offset: u64,
    data: &IoBuf,
    tx: &Tx,
) -> Option<(u64, ObjectType, Compression)> {
    let state = dnode.state.borrow();
    let layer = state.layers.iter().find(|layer| layer.txg == tx.txg())?;
    let core = &layer.core;
    let size = u64::from(core.block_size);
    let block = offset.checked_div(size)?;
    let is_whole = size == data.len() as u64 && offset.is_multiple_of(size);
    let is_same = match layer.blocks.get(&block)? {
        Block::Shared(buf) => buf.is_same(data),
        Block::Own(_) => false,
    };
    (is_whole && is_same && !layer.frozen).then_some((block, core.object_type, core.compression))
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
