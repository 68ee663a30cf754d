//! The identity of a block: the key of the cache.

use ondisk::BlockPointer;

/// What makes a block itself: place and birth, and a word of its checksum, because within one txg a place can be
/// overwritten without another birth.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Identity {
    pub(crate) offset: u64,
    pub(crate) checksum: u64,
    pub(crate) birth: u64,
    pub(crate) vdev: u32,
    /// It was opened with the keys of its dataset: without them, it has other bytes or was not authenticated.
    pub(crate) keyed: bool,
}

impl Identity {
    /// Returns the identity of a block as it is read with keys or without, `None` for holes and embedded blocks.
    pub(crate) fn of(bp: &BlockPointer, keyed: bool) -> Option<Self> {
        if bp.is_hole() || bp.is_embedded() {
            return None;
        }
        let dva = bp.dvas()[0];
        Some(Self {
            offset: dva.offset,
            checksum: bp.checksum()[0],
            birth: bp.physical_birth().0,
            vdev: dva.vdev,
            keyed: keyed && bp.uses_crypt(),
        })
    }

    /// Returns 64 well mixed bits. Colliding keys are no attack: a chain of them only slows the pool of their
    /// author, and checksums are hard to choose.
    pub(crate) fn hash(&self) -> u64 {
        block_hash(self.vdev, self.offset, self.birth) ^ self.checksum.wrapping_mul(MIX)
    }
}

/// An odd number without structure: the golden ratio in 64 bits.
const MIX: u64 = 0x9e37_79b9_7f4a_7c15;

/// Returns 64 well mixed bits of a block's place and birth.
pub(crate) fn block_hash(vdev: u32, offset: u64, birth: u64) -> u64 {
    let mut word = (offset >> 9) ^ (u64::from(vdev) << 48);
    word = (word ^ (word >> 32)).wrapping_mul(MIX);
    word = (word ^ birth).wrapping_mul(0xd6e8_feb8_6659_fd93);
    word = (word ^ (word >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
    word ^ (word >> 32)
}

/// Whether a block counts as metadata: indirect blocks, and blocks of objects that hold structure.
pub(crate) fn is_metadata(bp: &BlockPointer) -> bool {
    bp.level() > 0 || bp.object_type().is_metadata()
}
