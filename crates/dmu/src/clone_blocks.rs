//! Blocks that an object shares with another one, of the same pool: pointers are copied, not bytes.
//!
//! ```text
//!   source, as on disk --> its pointers --> the layer of the open txg --> sync: the reference is counted, the pointer put in place
//!                                                                    \--> written to or freed before: there is no reference
//! ```
//! Guarantees: a cloned block has one more reference from the sync of its txg on, and none if it does not get there. It is read like
//! any other at once. Does not know which objects may share blocks (keys, quotas): the caller does.
// OpenZFS: module/zfs/dmu.c, dmu_read_l0_bps and dmu_brt_clone; docs/format/05-space.md section 7

use std::rc::Rc;

use ondisk::{BlockPointer, ObjectId, Txg};
use runtime::{IoBuf, IoBufMut};
use zio::IoClass;

use crate::cloned_block::{CLONED_BLOCK_BYTES, ClonedBlock};
use crate::dnode::{Block, Dnode, NEWEST, Peek};
use crate::error::{DmuError, Result};
use crate::objset::Objset;
use crate::tree::{SyncContext, Tree};
use crate::txg::Tx;

/// What the blocks of a range are, for a clone of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cloneable {
    /// Their pointers, in order; holes where there is nothing.
    Blocks(Vec<BlockPointer>),
    /// One of them is not on disk yet: it is when this txg has synced.
    NotBefore(Txg),
    /// One of them cannot be shared: it is counted elsewhere (deduplicated), redacted, or no block of data.
    Never,
}

impl Cloneable {
    /// Whether clones can be made of a block that is on disk, in an object with blocks of `size` bytes; else it has another size, is
    /// counted elsewhere (deduplicated), redacted, or no block of data.
    #[must_use]
    pub fn allows(bp: &BlockPointer, size: u64) -> bool {
        if !bp.is_hole() && bp.lsize() != size {
            return false;
        }
        // OpenZFS counts a deduplicated block's clones in the deduplication table.
        if bp.is_redacted() || bp.is_dedup() || bp.level() > 0 {
            return false;
        }
        let takes_space = !bp.is_hole() && !bp.is_embedded();
        !takes_space || (bp.is_little_endian() && !bp.object_type().is_metadata())
    }
}

impl Objset {
    /// Whether objects of both can share blocks: they are of one pool, and in the clear or encrypted with the same key.
    // OpenZFS: module/zfs/zfs_vnops.c, zfs_clone_range
    #[must_use]
    pub fn can_share_with(&self, other: &Self) -> bool {
        let (ours, theirs) = (self.0.services.blocks(), other.0.services.blocks());
        ours.can_share_with(theirs)
    }

    /// The pointers of `count` data blocks from `first` on, if clones can be made of them. The caller keeps writers out of the range
    /// until it has cloned them.
    ///
    /// # Errors
    /// `NoSuchObject`; read errors of indirect blocks; `Read` of a block whose place or count of references cannot be.
    pub async fn cloneable(&self, object: ObjectId, first: u64, count: u64) -> Result<Cloneable> {
        let dnode = self.dnode(object).await?;
        let size = u64::from(dnode.with_core(NEWEST, |core| core.block_size));
        let mut blocks = Vec::new();
        for number in first..first.saturating_add(count) {
            let bp = match self.stored_pointer(&dnode, number).await? {
                Ok(bp) => bp,
                Err(dirty) => return Ok(Cloneable::NotBefore(dirty)),
            };
            if !Cloneable::allows(&bp, size) {
                return Ok(Cloneable::Never);
            }
            if !bp.is_hole() && !bp.is_embedded() {
                let checked = self.0.services.blocks().check_reference(&bp).await;
                checked.map_err(|source| DmuError::Read {
                    objset: self.id(),
                    object,
                    level: 0,
                    block: number,
                    source: std::sync::Arc::new(source),
                })?;
            }
            blocks.push(bp);
        }
        Ok(Cloneable::Blocks(blocks))
    }

    /// The pointer of a block that is on disk, or a clone of one that is; else the txg that brings it there.
    async fn stored_pointer(
        &self,
        dnode: &Dnode,
        number: u64,
    ) -> Result<std::result::Result<BlockPointer, Txg>> {
        loop {
            let generation = {
                let state = dnode.state.borrow();
                match state.peek(NEWEST, number) {
                    Peek::Clone(clone) => return Ok(Ok(clone.bp)),
                    // Of a range that was freed the pointers on disk are still others.
                    Peek::Hole => return Ok(Ok(BlockPointer::HOLE)),
                    Peek::Data(_) => {
                        let newest = state.layers.last().map(|layer| layer.txg);
                        return Ok(Err(newest.expect("changed data is in a layer")));
                    }
                    Peek::Base => state.generation,
                }
            };
            let bp = self.base_pointer(dnode, number).await?;
            let state = dnode.state.borrow();
            if state.generation != generation || !matches!(state.peek(NEWEST, number), Peek::Base) {
                continue;
            }
            drop(state);
            // Put in place by a sync that has not ended: a log could name it before it is there.
            if !bp.is_hole() && bp.physical_birth() > self.0.services.clock.last_synced() {
                return Ok(Err(bp.physical_birth()));
            }
            return Ok(Ok(bp));
        }
    }

    /// Makes blocks of the object, from `first` on, clones of these; holes become holes. They can be read at once, and are durable
    /// when the txg has synced.
    ///
    /// # Errors
    /// `NoSuchObject`, `ReadOnly`; `Invalid` for a block of another size than the object's, or a second block of an object whose
    /// block size is no power of two. Nothing has changed then.
    ///
    /// # Panics
    /// For a block that [`Cloneable::allows`] does not.
    pub async fn clone_blocks(
        &self,
        object: ObjectId,
        first: u64,
        blocks: &[BlockPointer],
        tx: &Tx,
    ) -> Result<()> {
        self.check_writable()?;
        let dnode = self.dnode(object).await?;
        let size = dnode.with_core(tx.txg(), |core| core.block_size);
        let is_newest_size = dnode.holds_from(tx.txg(), |core| core.block_size == size);
        let fits = |bp: &BlockPointer| bp.is_hole() || bp.lsize() == u64::from(size);
        if !is_newest_size || !blocks.iter().all(fits) {
            return Err(DmuError::Invalid {
                what: "blocks are cloned into an object with blocks of their size",
            });
        }
        if first + blocks.len() as u64 > 1 && !size.is_power_of_two() {
            return Err(DmuError::Invalid {
                what: "more than one block needs a block size that is a power of two",
            });
        }
        for (number, bp) in (first..).zip(blocks) {
            assert!(
                Cloneable::allows(bp, u64::from(size)),
                "only blocks of data are cloned"
            );
            if bp.is_hole() {
                let (offset, len) = (number * u64::from(size), u64::from(size));
                self.free_range(object, offset, len, tx).await?;
            } else {
                self.clone_block(&dnode, number, bp, tx);
            }
        }
        dnode.bump();
        Ok(())
    }

    /// Puts a clone into the layer of `tx` and, for the newest view has every change, into newer ones that have the block.
    fn clone_block(&self, dnode: &Rc<Dnode>, number: u64, bp: &BlockPointer, tx: &Tx) {
        let at = self.dirty_layer(dnode, tx);
        let mut state = dnode.state.borrow_mut();
        for (depth, layer) in state.layers[at..].iter_mut().enumerate() {
            if depth > 0 && layer.reset {
                break;
            }
            layer.core.max_block_id = layer.core.max_block_id.max(number);
            let has_own = layer.blocks.contains_key(&number)
                || layer.clones.contains_key(&number)
                || layer.freed.contains(number);
            if depth > 0 && !has_own {
                continue;
            }
            layer.blocks.remove(&number);
            let clone = ClonedBlock::new(self.0.services.blocks(), bp, layer.txg);
            layer.clones.insert(number, Rc::new(clone));
        }
        // What was read of the version on disk for this block is not what a writer merges with now.
        state.generation += 1;
        drop(state);
        tx.add_dirty(CLONED_BLOCK_BYTES);
    }

    /// Turns clones of a block in the layer of `tx` and newer ones into blocks of the object's own, which can be changed in part.
    pub(crate) async fn own_clones(&self, dnode: &Dnode, number: u64, tx: &Tx) -> Result<()> {
        loop {
            let found = {
                let state = dnode.state.borrow();
                let newer = state.layers.iter().filter(|layer| layer.txg >= tx.txg());
                let mut open = newer.filter(|layer| !layer.frozen);
                open.find_map(|layer| Some((layer.txg, Rc::clone(layer.clones.get(&number)?))))
            };
            let Some((txg, clone)) = found else {
                return Ok(());
            };
            let bytes = self.read_clone(dnode, &clone, number).await;
            let mut state = dnode.state.borrow_mut();
            let mut layers = state.layers.iter_mut();
            let layer = layers.find(|layer| layer.txg == txg && !layer.frozen);
            let Some(layer) = layer else { continue };
            let is_same = layer
                .clones
                .get(&number)
                .is_some_and(|now| Rc::ptr_eq(now, &clone));
            if !is_same {
                continue;
            }
            let bytes = bytes?;
            layer.clones.remove(&number);
            let size = bytes.len() as u64;
            layer.blocks.insert(number, Block::Own(own_copy(&bytes)));
            state.generation += 1;
            self.0.services.clock.add_dirty(txg, size);
        }
    }

    /// The bytes of a clone.
    pub(crate) async fn read_clone(
        &self,
        dnode: &Dnode,
        clone: &ClonedBlock,
        number: u64,
    ) -> Result<IoBuf> {
        if let Some(bytes) = self.0.services.blocks().peek(&clone.bp) {
            return Ok(bytes);
        }
        Box::pin(self.read_block(&clone.bp, dnode.id, 0, number, IoClass::SyncRead)).await
    }
}

impl SyncContext {
    /// Puts a clone in place of `old` and records birth and free. Returns the change of used bytes.
    fn put_clone(&self, bp: &BlockPointer, old: &BlockPointer) -> i64 {
        assert!(
            bp.birth() == self.txg,
            "a clone is born in the txg that puts it in place"
        );
        let mut used = self.signed_dsize(bp);
        if !old.is_hole() {
            self.free_block(old);
            used -= self.signed_dsize(old);
        }
        self.effects.push(true, bp);
        used
    }
}

impl Tree {
    /// Puts a clone in the place of a data block.
    pub(crate) fn put_clone(&self, clone: &ClonedBlock, old: &BlockPointer) -> BlockPointer {
        let used = self.context.put_clone(&clone.bp, old);
        self.used.set(self.used.get() + used);
        let clock = &self.context.services.clock;
        clock.sub_dirty(self.context.txg, CLONED_BLOCK_BYTES);
        clone.bp
    }
}

fn own_copy(bytes: &[u8]) -> IoBufMut {
    let mut own = IoBufMut::scratch(bytes.len());
    own.copy_from_slice(bytes);
    own
}
