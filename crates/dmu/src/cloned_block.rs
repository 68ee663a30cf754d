//! A block of a layer that is a clone of another one.

use ondisk::{BlockPointer, Txg};
use zio::PendingReference;

use crate::blocks::Blocks;

/// Dirty memory charged for a cloned block, in bytes: its pointer, and its entry of the table of references.
pub const CLONED_BLOCK_BYTES: u64 = 512;

/// A block of a layer that is a clone.
pub(crate) struct ClonedBlock {
    /// As it will be stored.
    pub(crate) bp: BlockPointer,
    /// What takes no space has none.
    _reference: Option<PendingReference>,
}

impl ClonedBlock {
    pub(crate) fn new(blocks: &Blocks, bp: &BlockPointer, txg: Txg) -> Self {
        let mut clone = *bp;
        clone.set_birth(txg);
        let mut reference = None;
        if !bp.is_embedded() {
            // The block was written when it was; only here it is new.
            clone.set_physical_birth(bp.physical_birth());
            reference = Some(blocks.refer(txg, &clone));
        }
        Self {
            bp: clone,
            _reference: reference,
        }
    }
}
