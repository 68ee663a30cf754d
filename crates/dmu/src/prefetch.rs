//! Prefetch: blocks that a reader in order is expected to need next are read into the cache.
//!
//! What is read ahead of which read is decided by [`Readers`]. Blocks are asked for in the order in which they are needed, so that
//! the device is never idle between two of them.
//!
//! Guarantees: never more under way, or read and not yet used, than the cache allows, which allows less when what was read ahead
//! was not used; no read waits for it; blocks in memory are not read.

use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;

use arc::BlockKinds;
use ondisk::ObjectId;
use runtime::join_all;
use zio::IoClass;

use crate::dnode::{Dnode, NEWEST, Peek};
use crate::objset::Objset;
use crate::readers::Ahead;
#[cfg(doc)]
use crate::readers::Readers;

/// Most blocks read ahead at a time.
const BLOCKS_MAX: usize = 256;
/// Blocks under way at once of those.
const AT_ONCE: usize = 32;
const _: () = assert!(0 < AT_ONCE && AT_ONCE <= BLOCKS_MAX);

impl Objset {
    /// Starts reading the blocks of a byte range into the cache, without waiting.
    pub fn prefetch(&self, object: ObjectId, range: Range<u64>) {
        let os = self.clone();
        let handle = &self.0.services.handle;
        drop(handle.spawn("prefetch", async move {
            // A failed prefetch is no error: the read that needs the block reports it.
            if let Ok(dnode) = os.dnode(object).await {
                os.prefetch_blocks(&dnode, std::iter::once(range)).await;
            }
        }));
    }

    /// Notices readers in order and reads ahead of them.
    pub(crate) fn read_ahead(&self, dnode: &Rc<Dnode>, offset: u64, len: u64) {
        if len == 0 {
            return;
        }
        let policy = self.policy();
        // What is not kept would be read twice.
        let kinds = policy.read_ahead.min(policy.cache.memory);
        if kinds == BlockKinds::Nothing
            || kinds == BlockKinds::Metadata && !dnode.base().core.object_type.is_metadata()
        {
            return;
        }
        let base = dnode.base();
        let size = u64::from(base.core.block_size);
        if base.core.max_block_id == 0 {
            return;
        }
        let room = self.0.services.blocks().prefetch_room();
        let ahead = dnode.readers.borrow_mut().note(offset, len, room);
        let first = match ahead {
            Ahead::Nothing => return,
            Ahead::Range(ref range) => range.start,
            Ahead::Steps { first, .. } => first,
        };
        if first >= (base.core.max_block_id + 1).saturating_mul(size) {
            return;
        }
        if self.is_cached(dnode, first / size) {
            dnode.readers.borrow_mut().forget_issued();
            return;
        }
        let (os, dnode) = (self.clone(), Rc::clone(dnode));
        drop(self.0.services.handle.spawn("read-ahead", async move {
            match ahead {
                Ahead::Nothing => {}
                Ahead::Range(range) => os.prefetch_blocks(&dnode, std::iter::once(range)).await,
                Ahead::Steps {
                    first,
                    stride,
                    len,
                    count,
                } => {
                    let steps = (0..count).map(|step| {
                        let at = first.saturating_add(step.saturating_mul(stride));
                        at..at.saturating_add(len)
                    });
                    os.prefetch_blocks(&dnode, steps).await;
                }
            }
        }));
    }

    /// Reads the blocks of byte ranges into the cache, in order and some at once.
    async fn prefetch_blocks(&self, dnode: &Dnode, ranges: impl Iterator<Item = Range<u64>>) {
        let (size, end) = {
            let base = dnode.base();
            let size = u64::from(base.core.block_size);
            (size, base.core.max_block_id.saturating_add(1))
        };
        let blocks: Vec<u64> = ranges
            .flat_map(|range| {
                let blocks = range.start / size..range.end.div_ceil(size).min(end);
                blocks.take(BLOCKS_MAX)
            })
            .collect();
        let tasks = blocks.len().min(AT_ONCE);
        let blocks = RefCell::new(blocks.into_iter());
        let next = || blocks.borrow_mut().next();
        // Each task takes the next block when it has read one: a wait for the slowest of them would let the device idle.
        join_all((0..tasks).map(|_| async {
            while let Some(block) = next() {
                self.prefetch_block(dnode, block).await;
            }
        }))
        .await;
    }

    async fn prefetch_block(&self, dnode: &Dnode, block: u64) {
        if !matches!(dnode.state.borrow().peek(NEWEST, block), Peek::Base) {
            return;
        }
        let blocks = self.0.services.blocks();
        if let Ok(bp) = self.base_pointer(dnode, block).await
            && !bp.is_hole()
            && !blocks.has(&bp)
        {
            let read = self.read_block(&bp, dnode.id, 0, block, IoClass::AsyncRead);
            drop(read.await);
        }
    }
}
