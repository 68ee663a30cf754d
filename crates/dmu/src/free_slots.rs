//! Where the search for free slots in the table of dnodes stands. Does no I/O.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;

use ondisk::ObjectId;

use crate::dnode::SLOTS;
use crate::wait::{Gate, Pass};

/// Fruitless looks after which the search goes to the end of the table (large dnodes make full blocks look empty).
const FRUITLESS_MAX: u32 = 8;
/// Blocks remembered for reuse.
const FREED_BLOCKS_MAX: usize = 1 << 16;
const _: () = assert!(FRUITLESS_MAX > 0 && FREED_BLOCKS_MAX > 0);

/// Search state of one objset.
pub(crate) struct Allocator {
    /// Block whose bits are in `taken`; 0 for none (object numbers below 32 are only given out on request).
    block: Cell<u64>,
    taken: Cell<u32>,
    /// Next block the search by fill looks at.
    scan: Cell<u64>,
    fruitless: Cell<u32>,
    /// First block beyond everything ever allocated.
    end: Cell<u64>,
    /// Blocks in which objects were freed.
    freed: RefCell<BTreeSet<u64>>,
    gate: Gate,
}

impl Allocator {
    pub(crate) fn new(end: u64) -> Self {
        Self {
            block: Cell::new(0),
            taken: Cell::new(u32::MAX),
            scan: Cell::new(1),
            fruitless: Cell::new(0),
            end: Cell::new(end.max(1)),
            freed: RefCell::default(),
            gate: Gate::default(),
        }
    }

    /// Takes `slots` free slots in a row of the block searched now.
    pub(crate) fn take_here(&self, slots: u8) -> Option<u64> {
        assert!(
            slots > 0 && u64::from(slots) <= SLOTS,
            "a dnode has 1 to {SLOTS} slots, not {slots}"
        );
        let taken = self.taken.get();
        let want = slot_mask(slots);
        let slot = (0..=SLOTS - u64::from(slots)).find(|&s| taken & (want << s) == 0)?;
        self.taken.set(taken | (want << slot));
        Some(self.block.get() * SLOTS + slot)
    }

    /// Searches in this block from now on, of which the slots in `taken` are; `is_end` when it is the first one beyond the table.
    pub(crate) fn search_in(&self, block: u64, taken: u32, is_end: bool) {
        self.block.set(block);
        self.taken.set(taken);
        if is_end {
            self.end.set(self.end.get().max(block + 1));
        }
    }

    /// A block in which objects were freed. Block 0 is never searched.
    pub(crate) fn take_freed(&self) -> Option<u64> {
        let block = self.freed.borrow_mut().pop_first();
        block.filter(|&block| block != 0)
    }

    /// The next block to look at by its fill count, unless too many looks were in vain.
    pub(crate) fn next_to_scan(&self) -> Option<u64> {
        let block = self.scan.get();
        if block >= self.end.get() || self.fruitless.get() >= FRUITLESS_MAX {
            return None;
        }
        self.scan.set(block + 1);
        Some(block)
    }

    /// A block found by its fill count is searched.
    pub(crate) fn count_scanned(&self) {
        self.fruitless.set(self.fruitless.get() + 1);
    }

    /// First block beyond everything ever allocated.
    pub(crate) fn end(&self) -> u64 {
        self.end.get()
    }

    /// Excludes other searches.
    pub(crate) async fn exclusive(&self) -> Pass<'_> {
        self.gate.write().await
    }

    /// The free of an object has reached the disk: only now its slots can be used again, whatever the txg.
    pub(crate) fn note_freed(&self, object: ObjectId) {
        assert!(object.0 > 0, "the table of dnodes is not freed");
        let block = object.0 / SLOTS;
        if block == self.block.get() {
            // Its bits are found out again when it is next looked at.
            self.block.set(0);
            self.taken.set(u32::MAX);
        }
        let mut freed = self.freed.borrow_mut();
        if freed.len() < FREED_BLOCKS_MAX {
            freed.insert(block);
        }
    }

    /// The object with a number of the caller's choice takes its slots.
    pub(crate) fn note_allocated(&self, object: ObjectId, slots: u8) {
        let block = object.0 / SLOTS;
        self.end.set(self.end.get().max(block + 1));
        if block == self.block.get() {
            self.taken
                .set(self.taken.get() | (slot_mask(slots) << (object.0 % SLOTS)));
        }
    }
}

/// Bits of so many slots.
pub(crate) fn slot_mask(slots: u8) -> u32 {
    if slots >= 32 {
        u32::MAX
    } else {
        (1 << slots) - 1
    }
}
