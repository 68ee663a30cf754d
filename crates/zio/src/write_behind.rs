//! Write-behind: writes whose pointers are returned before the devices have taken the bytes, so that a txg need not wait for a
//! level of its trees before it writes the next.
//!
//! Guarantees: two writes of one place reach it in their order; a read of a place waits for what is on its way there;
//! [`BlockStore::wait_writes`] reports every write that failed.

use ondisk::{BlockPointer, Dva, Txg};
use runtime::IoBuf;
use runtime::sync::Permit;
use vdev::IoClass;

use crate::{BlockStore, Bookmark, ZioError};

/// A block with its DVAs, ready to be written.
pub(crate) struct PlacedBlock {
    pub(crate) txg: Txg,
    pub(crate) dvas: Vec<Dva>,
    pub(crate) bytes: IoBuf,
    pub(crate) class: IoClass,
    pub(crate) bookmark: Bookmark,
    /// Its share of [`StoreTuning::writing_bytes_max`](crate::StoreTuning::writing_bytes_max), released at the end.
    pub(crate) room: Permit,
}

impl BlockStore {
    /// Begins to write a block to DVAs that are allocated for it.
    pub(crate) fn begin_write_behind(&self, block: PlacedBlock) {
        let Some(first) = block.dvas.first() else {
            return;
        };
        let key = (first.vdev, first.offset);
        let writes = self.pending_writes();
        let (pending, before) = writes.begin(key);
        let store = self.clone();
        let write = async move {
            if let Some(before) = before {
                before.wait().await;
            }
            let written = store
                .write_copies(
                    block.txg,
                    &block.dvas,
                    &block.bytes,
                    block.class,
                    block.bookmark,
                )
                .await;
            drop(block.room);
            store.pending_writes().end(key, &pending, written);
        };
        drop(self.handle().spawn("a write of a txg", write));
    }

    /// Waits until the devices have taken everything that [`BlockStore::write_behind`] began.
    ///
    /// # Errors
    /// The first failure since the last call: the txg must not commit.
    pub async fn wait_writes(&self) -> Result<(), ZioError> {
        self.pending_writes().wait_all().await
    }

    /// Returns the first failure of a pending write, if one has failed already: the txg cannot commit.
    pub(crate) fn check_write_behind(&self) -> Result<(), ZioError> {
        self.pending_writes().check()
    }

    /// Waits for the pending write of a block, if there is one.
    pub(crate) async fn wait_pending_write(&self, bp: &BlockPointer) {
        let Some(first) = bp.copies().next() else {
            return;
        };
        self.pending_writes()
            .wait_for((first.vdev, first.offset))
            .await;
    }
}
