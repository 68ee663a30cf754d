//! The two logs of damaged blocks in memory.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;

use ondisk::scan::DamagedBlock;

/// Most damaged blocks kept in one log; more are only counted as one more.
pub(super) const LOG_MAX: usize = 65_536;

/// One log.
#[derive(Clone, Debug, Default)]
pub(super) struct ErrorLog {
    /// The ZAP, 0 for none.
    pub(super) object: u64,
    /// As they are on disk: with `head_errlog` by the head, not by the snapshot in which they were met.
    pub(super) stored: BTreeSet<DamagedBlock>,
    /// Those met in a snapshot that are stored by its head: met again, they are not new.
    pub(super) met_elsewhere: BTreeSet<DamagedBlock>,
    pub(super) pending: BTreeSet<DamagedBlock>,
}

impl ErrorLog {
    /// Returns whether it was not known.
    pub(super) fn add(&mut self, block: DamagedBlock) -> bool {
        !self.stored.contains(&block)
            && !self.met_elsewhere.contains(&block)
            && self.stored.len() + self.pending.len() < LOG_MAX
            && self.pending.insert(block)
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &DamagedBlock> {
        self.stored.iter().chain(&self.pending)
    }

    /// Returns the heads, or plainly the datasets, that have damage on disk.
    pub(super) fn heads(&self) -> BTreeSet<u64> {
        self.stored.iter().map(|block| block.objset).collect()
    }

    /// Returns what is stored of a head and was born in `txg` or before.
    pub(super) fn born_until(&self, head: u64, txg: u64) -> Vec<DamagedBlock> {
        let of_head = self.stored.iter().filter(|block| block.objset == head);
        of_head
            .filter(|block| block.birth <= txg)
            .copied()
            .collect()
    }
}

/// What is known to be damaged.
#[derive(Debug, Default)]
pub(crate) struct ErrorLogs {
    pub(super) last: RefCell<ErrorLog>,
    pub(super) scrub: RefCell<ErrorLog>,
    /// The scan is over: its log becomes the last.
    pub(super) rotate: Cell<bool>,
    /// The last log must be written anew (blocks were repaired, or its form changes).
    pub(super) rewrite: Cell<bool>,
    /// Form the logs have on disk: one of each head's own (`head_errlog`), or plain.
    pub(super) by_head: Cell<bool>,
}

impl ErrorLogs {
    /// Notes what a scan met; returns whether it was not known.
    pub(crate) fn note_in_scan(&self, block: DamagedBlock) -> bool {
        self.scrub.borrow_mut().add(block)
    }

    pub(super) fn note(&self, block: DamagedBlock, scanning: bool) -> bool {
        if scanning || self.rotate.get() {
            self.note_in_scan(block)
        } else {
            self.last.borrow_mut().add(block)
        }
    }

    /// Makes the log of a finished scan the last one, with the next txg.
    pub(crate) fn rotate(&self) {
        self.rotate.set(true);
    }

    /// Whether the next txg has something to write.
    pub(crate) fn is_dirty(&self) -> bool {
        self.rotate.get()
            || self.rewrite.get()
            || !self.last.borrow().pending.is_empty()
            || !self.scrub.borrow().pending.is_empty()
    }

    /// Returns all blocks known to be damaged.
    pub(crate) fn all(&self) -> BTreeSet<DamagedBlock> {
        let mut all: BTreeSet<DamagedBlock> = self.scrub.borrow().all().copied().collect();
        if !self.rotate.get() {
            all.extend(self.last.borrow().all());
        }
        all
    }

    /// Returns how many there are.
    pub(crate) fn count(&self) -> u64 {
        ondisk::bytes::len64(self.all().len())
    }
}
