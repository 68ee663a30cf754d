//! The chain of log blocks of a running log: which exist, which are written, which are no longer needed.

use std::collections::VecDeque;

use ondisk::zil::ChainId;
use ondisk::{BlockPointer, Txg};

/// One block of the chain.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ChainBlock {
    /// Its place; the checksum words are its identity.
    pub(crate) bp: BlockPointer,
    /// Newest group of its records; 0 without any.
    pub(crate) newest: Txg,
    /// It is on stable storage.
    pub(crate) durable: bool,
}

impl ChainBlock {
    fn is_done(&self, txg: Txg) -> bool {
        self.bp.birth() <= txg && self.newest <= txg
    }
}

/// The blocks of a chain, oldest first. The last one is set aside and not written.
#[derive(Debug, Default)]
pub(crate) struct Chain {
    blocks: VecDeque<ChainBlock>,
    /// A block of it could not be written: nothing may be added, what is there goes when its groups have synced.
    pub(crate) broken: bool,
}

impl Chain {
    pub(crate) fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// Whether some block of it lies on a top-level vdev.
    pub(crate) fn is_on(&self, vdev: u32) -> bool {
        let mut places = self.blocks.iter().flat_map(|block| block.bp.copies());
        places.any(|dva| dva.vdev == vdev)
    }

    /// The oldest block: the one the header points to.
    pub(crate) fn first(&self) -> Option<BlockPointer> {
        self.blocks.front().map(|block| block.bp)
    }

    /// The block to be written next.
    pub(crate) fn last(&self) -> Option<BlockPointer> {
        self.blocks.back().map(|block| block.bp)
    }

    pub(crate) fn push(&mut self, bp: BlockPointer) {
        debug_assert!(
            self.last()
                .is_none_or(|last| ChainId::of(&last).next() == ChainId::of(&bp)),
            "blocks of a chain are numbered"
        );
        self.blocks.push_back(ChainBlock {
            bp,
            newest: Txg(0),
            durable: false,
        });
    }

    /// Notes the newest group of the records a block is given.
    pub(crate) fn filled(&mut self, bp: &BlockPointer, newest: Txg) {
        if let Some(block) = self.find(bp) {
            block.newest = newest;
        }
    }

    /// Notes that a block is on stable storage.
    pub(crate) fn durable(&mut self, bp: &BlockPointer) {
        if let Some(block) = self.find(bp) {
            block.durable = true;
        }
    }

    /// Looks from the end, near which all that are being written are: until its group is synced a chain may have thousands.
    fn find(&mut self, bp: &BlockPointer) -> Option<&mut ChainBlock> {
        let id = ChainId::of(bp);
        let mut newest_first = self.blocks.iter_mut().rev();
        newest_first.find(|block| ChainId::of(&block.bp) == id)
    }

    /// Takes the blocks at the front that hold nothing newer than `txg`, the group being synced.
    pub(crate) fn take_done(&mut self, txg: Txg) -> Vec<BlockPointer> {
        let mut done = Vec::new();
        while let Some(block) = self.blocks.front()
            && block.durable
            && block.is_done(txg)
        {
            done.push(block.bp);
            self.blocks.pop_front();
        }
        done
    }

    /// Takes all blocks, if none was set aside in, or holds records of, a group after `txg`.
    pub(crate) fn take_all(&mut self, txg: Txg) -> Option<Vec<BlockPointer>> {
        if !self.blocks.iter().all(|block| block.is_done(txg)) {
            return None;
        }
        self.broken = false;
        Some(self.blocks.drain(..).map(|block| block.bp).collect())
    }
}
