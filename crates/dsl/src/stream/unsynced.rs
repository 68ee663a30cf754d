//! Large blocks that were received and wait for their transaction group.
//!
//! All changes of a pool may wait for so much memory as the pool has; one receive of blocks of 16 MiB would take a large part of that, since two
//! groups, the open one and the one being written, have some of them each.

use std::collections::VecDeque;

use dmu::TxgClock;
use ondisk::Txg;
use ondisk::stream::StreamRecord;

use crate::error::Result;

/// Blocks up to here are bounded with all other changes of the pool: many of them fit a group.
const SMALL_BYTES: u64 = 1 << 20;
/// Bytes of large blocks that wait; more only of a single one.
const WAITING_BYTES_MAX: u64 = 32 << 20;

/// What waits, of one receive.
#[derive(Debug, Default)]
pub(super) struct Unsynced {
    /// Group and bytes of each block, oldest first.
    blocks: VecDeque<(Txg, u64)>,
    bytes: u64,
}

/// Bytes of memory that a record's block takes until it is on disk, if it is a large one: as they came, and as they are read.
fn large_bytes(record: &StreamRecord) -> Option<u64> {
    let StreamRecord::Write(write) = record else {
        return None;
    };
    let bytes = write.logical_size.saturating_add(write.compressed_size);
    (write.logical_size > SMALL_BYTES).then_some(bytes)
}

impl Unsynced {
    /// Waits until there is room for a record's block; returns how much it takes.
    pub(super) async fn make_room(
        &mut self,
        record: &StreamRecord,
        clock: &TxgClock,
    ) -> Result<Option<u64>> {
        let Some(bytes) = large_bytes(record) else {
            return Ok(None);
        };
        while self.bytes.saturating_add(bytes) > WAITING_BYTES_MAX {
            let Some((txg, oldest)) = self.blocks.pop_front() else {
                break;
            };
            clock.wait_synced(txg).await?;
            self.bytes -= oldest;
        }
        Ok(Some(bytes))
    }

    /// Notes a block that was changed in a transaction group up to this one.
    pub(super) fn add(&mut self, txg: Txg, bytes: u64) {
        self.blocks.push_back((txg, bytes));
        self.bytes = self.bytes.saturating_add(bytes);
    }
}
