//! The chain of log blocks of a running log: which exist, which are written, which are no longer needed.

use std::collections::VecDeque;

use ondisk::zil::ChainId;
use ondisk::{BlockPointer, Txg};

/// One block of the chain (a log write block).
#[derive(Debug, Clone, Copy)]
pub(crate) struct Lwb {
    /// Where it is; the checksum words are its identity.
    pub(crate) bp: BlockPointer,
    /// Newest txg of its records; 0 without any.
    pub(crate) newest: Txg,
    /// It is on stable storage.
    pub(crate) flushed: bool,
}

impl Lwb {
    fn is_done(&self, txg: Txg) -> bool {
        self.bp.birth() <= txg && self.newest <= txg
    }
}

/// The blocks of a chain, oldest first. The last one is allocated and not written.
#[derive(Debug, Default)]
pub(crate) struct Chain {
    blocks: VecDeque<Lwb>,
    /// A block of it could not be written: nothing may be added, and it is freed when its txgs have synced.
    pub(crate) broken: bool,
}

impl Chain {
    pub(crate) fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// Whether some block of it lies on a top-level vdev.
    pub(crate) fn is_on(&self, vdev: u32) -> bool {
        let mut copies = self.blocks.iter().flat_map(|lwb| lwb.bp.copies());
        copies.any(|dva| dva.vdev == vdev)
    }

    /// The oldest block: the one the header points to.
    pub(crate) fn first(&self) -> Option<BlockPointer> {
        self.blocks.front().map(|lwb| lwb.bp)
    }

    /// The block to be written next.
    pub(crate) fn last(&self) -> Option<BlockPointer> {
        self.blocks.back().map(|lwb| lwb.bp)
    }

    pub(crate) fn push(&mut self, bp: BlockPointer) {
        let (last, id) = (self.last(), ChainId::of(&bp));
        assert!(
            last.is_none_or(|last| ChainId::of(&last).next() == id),
            "the blocks of a log chain are numbered without gaps"
        );
        assert!(
            last.is_none_or(|last| last.birth() <= bp.birth()),
            "the blocks of a log chain are allocated in the order of txgs"
        );
        self.blocks.push_back(Lwb {
            bp,
            newest: Txg(0),
            flushed: false,
        });
    }

    /// Records the newest txg of the records put into a block.
    pub(crate) fn filled(&mut self, bp: &BlockPointer, newest: Txg) {
        if let Some(lwb) = self.find(bp) {
            assert!(
                lwb.newest == Txg(0) && !lwb.flushed,
                "a log block is filled once, before it is written"
            );
            lwb.newest = newest;
        }
    }

    /// Records that a block is on stable storage.
    pub(crate) fn flushed(&mut self, bp: &BlockPointer) {
        if let Some(lwb) = self.find(bp) {
            lwb.flushed = true;
        }
    }

    /// Searches from the end, where the blocks under way are: until its txgs have synced a chain may have thousands.
    fn find(&mut self, bp: &BlockPointer) -> Option<&mut Lwb> {
        let id = ChainId::of(bp);
        let mut newest_first = self.blocks.iter_mut().rev();
        newest_first.find(|lwb| ChainId::of(&lwb.bp) == id)
    }

    /// Takes the blocks at the front that hold nothing newer than `txg`, the one being synced.
    pub(crate) fn take_done(&mut self, txg: Txg) -> Vec<BlockPointer> {
        let mut done = Vec::new();
        while let Some(lwb) = self.blocks.front()
            && lwb.flushed
            && lwb.is_done(txg)
        {
            done.push(lwb.bp);
            self.blocks.pop_front();
        }
        done
    }

    /// Takes all blocks, if none was allocated in, or holds records of, a txg after `txg`.
    pub(crate) fn take_all(&mut self, txg: Txg) -> Option<Vec<BlockPointer>> {
        if !self.blocks.iter().all(|lwb| lwb.is_done(txg)) {
            return None;
        }
        self.broken = false;
        Some(self.blocks.drain(..).map(|lwb| lwb.bp).collect())
    }
}
