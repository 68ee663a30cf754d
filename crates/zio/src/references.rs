//! Whether a block may get one more reference (a clone): looked at before anything depends on it.
//!
//! A pointer that came from a device may name what no vdev has, or space that is free: a reference to it would fail when it is
//! counted or given back, while a txg syncs, where nothing can be refused any more.

use ondisk::BlockPointer;

use crate::checks;
use crate::error::{Bookmark, CorruptReason, ZioError, corrupt};
use crate::store::BlockStore;

impl BlockStore {
    /// Checks that one more reference to a block can be counted and given back: its place is allocated, and what counts the
    /// references to it can be read.
    ///
    /// # Errors
    /// [`ZioError::Corrupt`] for a pointer that cannot be, [`ZioError::References`]; [`ZioError::SpaceMap`],
    /// [`ZioError::ReadOnly`].
    pub async fn check_reference(&self, bp: &BlockPointer) -> Result<(), ZioError> {
        let fail = |what| corrupt(bp, Bookmark::default(), CorruptReason::Pointer(what));
        if bp.is_hole() || bp.is_embedded() {
            return Err(fail("a block that takes no space"));
        }
        checks::check_stored(bp).map_err(fail)?;
        for dva in bp.copies() {
            checks::check_dva(self.tree(), &dva, bp.psize()).map_err(fail)?;
            let range = dva.offset..dva.offset + checks::held_space(self.tree(), &dva);
            // What is on a removed vdev has no space map any more; its mapping says where it is.
            if self.tree().is_removed(dva.vdev) {
                continue;
            }
            let key = self.with_allocator(|allocator| allocator.key_of(dva.vdev, &range))?;
            let (vdev, metaslab) = key.ok_or_else(|| fail("offset of block pointer"))?;
            let allocated = self.allocated_in(vdev, metaslab, &range).await?;
            if allocated.as_slice() != [range] {
                return Err(fail("the place is free"));
            }
        }
        self.source()?.check_reference(bp).await
    }
}
