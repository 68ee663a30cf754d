//! The space map of what a checkpoint keeps on one top-level vdev.

use ondisk::ObjectId;

use crate::space_map::{Header, Scale};

/// The map of one vdev.
#[derive(Clone, Debug)]
pub(crate) struct CheckpointMap {
    pub(super) object: ObjectId,
    pub(super) header: Header,
    pub(super) block_size: u32,
    pub(super) scale: Scale,
}

impl CheckpointMap {
    pub(super) fn bytes(&self) -> u64 {
        u64::try_from(-self.header.allocated).unwrap_or(0)
    }
}
