//! Which blocks of a reader or writer the caches keep.

use ondisk::BlockPointer;

use crate::identity::is_metadata;

/// Kinds of blocks, as properties choose among them.
// OpenZFS: zfsprops(7), primarycache, secondarycache, prefetch (the values are the properties')
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum BlockKinds {
    /// None of them.
    Nothing,
    /// Metadata only.
    Metadata,
    /// All.
    #[default]
    All,
}

impl BlockKinds {
    /// Whether this block is one.
    pub(crate) fn has(self, bp: &BlockPointer) -> bool {
        match self {
            Self::Nothing => false,
            Self::Metadata => is_metadata(bp),
            Self::All => true,
        }
    }
}

/// What the caches keep.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CacheUse {
    /// Blocks that stay in memory once they were read or written.
    pub memory: BlockKinds,
    /// Blocks that may go from there to cache devices.
    pub devices: BlockKinds,
}
