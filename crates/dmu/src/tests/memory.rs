//! A block store in memory with the rules of the real one that matter here: zeros become holes, a block is immutable unless it is
//! rewritten in place within its txg, freed blocks are not read any more.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use ondisk::{BlockPointer, ChecksumKind, Compression, Dva, NewBlock, Txg};
use runtime::{Handle, IoBuf};
use zio::{CorruptReason, PendingReferences, WriteProps, ZioError};

use crate::types::Ledger;

struct Stored {
    data: IoBuf,
    tag: u64,
}

/// The store. Clones share it.
#[derive(Clone)]
pub(crate) struct MemoryStore(Rc<State>);

struct State {
    handle: Handle,
    blocks: RefCell<BTreeMap<u64, Stored>>,
    next: Cell<u64>,
    tag: Cell<u64>,
    pub(crate) writes: Cell<u64>,
    pub(crate) reads: Cell<u64>,
    /// Blocks are found without reading, as in a cache that has them all.
    cached: Cell<bool>,
    writes_at_once: Cell<bool>,
    /// References of clones that the next syncs count.
    references: PendingReferences,
}

impl MemoryStore {
    pub(crate) fn new(handle: Handle) -> Self {
        Self(Rc::new(State {
            handle,
            blocks: RefCell::default(),
            next: Cell::new(1),
            tag: Cell::new(1),
            writes: Cell::new(0),
            reads: Cell::new(0),
            cached: Cell::new(false),
            writes_at_once: Cell::new(false),
            references: PendingReferences::default(),
        }))
    }

    pub(crate) fn references(&self) -> &PendingReferences {
        &self.0.references
    }

    pub(crate) fn set_cached(&self, cached: bool) {
        self.0.cached.set(cached);
    }

    /// The block, if it is to be found without reading.
    pub(crate) fn peek(&self, bp: &BlockPointer) -> Option<IoBuf> {
        let blocks = self.0.blocks.borrow();
        let stored = blocks.get(&(bp.dvas()[0].offset / 512))?;
        (self.0.cached.get() && stored.tag == bp.checksum()[0]).then(|| stored.data.clone())
    }

    /// Has writes end without a turn of another task, as those of small blocks do.
    pub(crate) fn write_at_once(&self) {
        self.0.writes_at_once.set(true);
    }

    pub(crate) async fn read(&self, bp: &BlockPointer) -> Result<IoBuf, ZioError> {
        self.0.reads.set(self.0.reads.get() + 1);
        self.0.handle.yield_now().await;
        let key = bp.dvas()[0].offset / 512;
        let blocks = self.0.blocks.borrow();
        match blocks.get(&key) {
            Some(stored) if stored.tag == bp.checksum()[0] => Ok(stored.data.clone()),
            _ => Err(ZioError::Corrupt {
                bookmark: zio::Bookmark::default(),
                pointer: Box::new(*bp),
                reason: CorruptReason::Checksum,
            }),
        }
    }

    pub(crate) async fn write(
        &self,
        txg: Txg,
        data: IoBuf,
        props: &WriteProps,
    ) -> Result<BlockPointer, ZioError> {
        self.0.writes.set(self.0.writes.get() + 1);
        if !self.0.writes_at_once.get() {
            self.0.handle.yield_now().await;
        }
        if data.iter().all(|&b| b == 0) {
            return Ok(BlockPointer::HOLE);
        }
        let key = match &props.rewrite {
            Some(old) if old.birth() == txg => old.dvas()[0].offset / 512,
            _ => {
                let key = self.0.next.get();
                self.0.next.set(key + (data.len() as u64) / 512);
                key
            }
        };
        let tag = self.0.tag.get();
        self.0.tag.set(tag + 1);
        let lsize = data.len() as u64;
        self.0.blocks.borrow_mut().insert(key, Stored { data, tag });
        let dva = Dva {
            vdev: 0,
            offset: key * 512,
            asize: lsize,
            gang: false,
        };
        Ok(BlockPointer::new(&NewBlock {
            dvas: [dva, Dva::ABSENT, Dva::ABSENT],
            lsize,
            psize: lsize,
            compression: Compression::OFF,
            checksum_kind: ChecksumKind::FLETCHER4,
            object_type: props.object_type,
            level: props.level,
            birth: txg,
            fill: props.fill,
            checksum: [tag, 0, 0, 0],
        }))
    }

    /// Loses a block: reads of it fail from now on.
    pub(crate) fn lose(&self, bp: &BlockPointer) {
        let key = bp.dvas()[0].offset / 512;
        self.0.blocks.borrow_mut().remove(&key);
    }

    /// Bytes stored.
    pub(crate) fn bytes(&self) -> u64 {
        self.0
            .blocks
            .borrow()
            .values()
            .map(|s| s.data.len() as u64)
            .sum()
    }

    pub(crate) fn reads(&self) -> u64 {
        self.0.reads.get()
    }
}

/// A ledger that keeps the set of live blocks and frees killed ones in the store two txgs later, as the real one does. A block
/// that was cloned is live until its last reference is killed.
pub(crate) struct Live {
    pub(crate) store: MemoryStore,
    /// With how many pointers refer to each.
    pub(crate) live: BTreeMap<u64, (BlockPointer, u64)>,
    dead: [Vec<u64>; 3],
}

impl Live {
    pub(crate) fn new(store: &MemoryStore) -> Self {
        Self {
            store: store.clone(),
            live: BTreeMap::new(),
            dead: Default::default(),
        }
    }
}

impl Live {
    /// Counts the references of the clones of a txg, before anything of it is freed.
    pub(crate) fn count_references(&mut self, txg: Txg) {
        for (bp, more) in self.store.references().take(txg) {
            let key = bp.dvas()[0].offset / 512;
            let live = self.live.get_mut(&key);
            live.expect("only live blocks are cloned").1 += more;
        }
    }

    /// A txg has synced.
    pub(crate) fn synced(&mut self) {
        for key in std::mem::take(&mut self.dead[2]) {
            self.store.0.blocks.borrow_mut().remove(&key);
        }
        self.dead.rotate_right(1);
    }
}

impl Ledger for Live {
    fn block_born(&mut self, bp: &BlockPointer) {
        let key = bp.dvas()[0].offset / 512;
        if bp.physical_birth() != bp.birth() {
            // A clone: counted before.
            assert!(self.live.contains_key(&key), "a cloned block is live");
            return;
        }
        let born = self.live.insert(key, (*bp, 1));
        assert!(born.is_none(), "a block is born once");
    }

    fn block_freed(&mut self, bp: &BlockPointer) {
        let key = bp.dvas()[0].offset / 512;
        let live = self
            .live
            .get_mut(&key)
            .expect("only live blocks are killed");
        live.1 -= 1;
        if live.1 == 0 {
            self.live.remove(&key);
            self.dead[0].push(key);
        }
    }
}
