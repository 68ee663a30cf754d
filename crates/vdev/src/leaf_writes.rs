//! What a leaf took and what it missed: the writes that wait for a flush, and its DTL (dirty time log).
//!
//! Guarantees: a txg of which the leaf may lack a write is in the DTL until it is resilvered; what the pool has not stored of the
//! DTL yet is returned once.

use std::cell::{Cell, RefCell};
use std::ops::Range;

use ondisk::Txg;

use crate::txg_set::TxgSet;

/// The writes of a leaf.
pub(crate) struct LeafWrites {
    /// Written since the last flush that succeeded.
    dirty: Cell<bool>,
    /// Missed a write since the last flush of its top-level vdev.
    missed_since_flush: Cell<bool>,
    /// Txgs it missed a write of since [`LeafWrites::take_missed`].
    missed: RefCell<TxgSet>,
    /// Txgs of which it took writes since the last good flush.
    unflushed: RefCell<TxgSet>,
    /// May have lost writes it had taken since the last flush of its top-level vdev.
    lost: Cell<bool>,
    /// Txgs of which it may lack writes (what the pool stored, and what it missed in this session). For their blocks other
    /// copies are read first.
    dtl: RefCell<TxgSet>,
}

impl LeafWrites {
    /// With a DTL that is not read yet anything may be missing.
    pub(crate) fn new(has_stored_dtl: bool) -> Self {
        Self {
            dirty: Cell::new(false),
            missed_since_flush: Cell::new(false),
            missed: RefCell::default(),
            unflushed: RefCell::default(),
            lost: Cell::new(false),
            dtl: RefCell::new(match has_stored_dtl {
                true => TxgSet::everything(),
                false => TxgSet::default(),
            }),
        }
    }

    /// Returns whether the leaf lacks anything at all.
    pub(crate) fn is_stale(&self) -> bool {
        !self.dtl.borrow().is_empty()
    }

    /// Returns whether the leaf may lack what was written in `txg`.
    pub(crate) fn dtl_contains(&self, txg: Txg) -> bool {
        self.dtl.borrow().contains(txg)
    }

    /// Sets the DTL: the txgs of which the leaf lacks writes, besides those it missed since [`LeafWrites::take_missed`].
    pub(crate) fn set_dtl(&self, ranges: &[Range<u64>]) {
        let mut dtl = self.missed.borrow().clone();
        for range in ranges {
            dtl.add(range.clone());
        }
        *self.dtl.borrow_mut() = dtl;
    }

    /// Notes that the leaf lacks what was written before it came.
    pub(crate) fn mark_stale(&self) {
        *self.dtl.borrow_mut() = TxgSet::everything();
    }

    /// Removes txgs from the DTL: the leaf was resilvered.
    pub(crate) fn note_resilvered(&self, range: &Range<u64>) {
        self.dtl.borrow_mut().subtract(range);
    }

    /// Records that a write of `txg` did not reach the leaf.
    pub(crate) fn note_missed(&self, txg: Txg) {
        self.missed_since_flush.set(true);
        self.note_lack(txg);
    }

    /// As [`LeafWrites::note_missed`], of a write that is durable elsewhere: whatever the next flush comes to.
    pub(crate) fn note_lack(&self, txg: Txg) {
        self.note_gap(txg.0..txg.0 + 1);
    }

    fn note_gap(&self, range: Range<u64>) {
        assert!(!range.is_empty(), "a gap of {range:?} has txgs");
        self.missed.borrow_mut().add(range.clone());
        self.dtl.borrow_mut().add(range);
    }

    /// Remembers that what the leaf took since the last good flush may be gone.
    pub(crate) fn note_unflushed_missed(&self) {
        self.missed_since_flush.set(true);
        let ranges = self.unflushed.borrow_mut().take();
        for range in ranges {
            self.note_gap(range);
        }
    }

    /// Remembers that writes the leaf had taken may be gone again.
    pub(crate) fn note_lost(&self) {
        self.note_unflushed_missed();
        self.lost.set(true);
    }

    /// Returns whether writes were lost, and no flush has taken note of it yet.
    pub(crate) fn has_lost(&self) -> bool {
        self.lost.get()
    }

    /// Returns and clears whether writes were lost since the last call.
    pub(crate) fn take_lost(&self) -> bool {
        self.lost.replace(false)
    }

    /// Returns and clears the txgs of which writes were missed since the last call.
    pub(crate) fn take_missed(&self) -> Vec<Range<u64>> {
        self.missed.borrow_mut().take()
    }

    /// Notes a write of txg `born` on its way or taken: not durable before the next flush.
    pub(crate) fn note_taken(&self, born: Option<Txg>) {
        self.dirty.set(true);
        if let Some(Txg(txg)) = born {
            self.unflushed.borrow_mut().add(txg..txg + 1);
        }
    }

    /// Returns whether anything was written since the last good flush.
    pub(crate) fn is_dirty(&self) -> bool {
        self.dirty.get()
    }

    /// Forgets that there are writes to flush: they are known to be missed.
    pub(crate) fn forget_dirty(&self) {
        self.dirty.set(false);
    }

    /// Starts a new flush interval of the top-level vdev; returns whether the leaf missed a write in the one that ends.
    pub(crate) fn begin_flush(&self) -> bool {
        self.missed_since_flush.replace(false)
    }

    /// Returns whether the leaf missed a write since the last flush.
    pub(crate) fn has_missed(&self) -> bool {
        self.missed_since_flush.get()
    }

    /// Takes what a flush of the device that begins now covers.
    pub(crate) fn begin_device_flush(&self) -> TxgSet {
        self.dirty.set(false);
        self.unflushed.take()
    }

    /// Takes back what a flush that failed was to cover: nothing is known of these writes.
    pub(crate) fn device_flush_failed(&self, mut covered: TxgSet) {
        self.dirty.set(true);
        {
            let mut unflushed = self.unflushed.borrow_mut();
            for range in covered.take() {
                unflushed.add(range);
            }
        }
        self.note_unflushed_missed();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_flush_makes_what_it_was_to_cover_missed() {
        let writes = LeafWrites::new(false);
        writes.note_taken(Some(Txg(5)));
        let covered = writes.begin_device_flush();
        assert!(!writes.is_dirty() && !writes.is_stale());
        // A write that comes while the flush is under way is not covered by it, and lost with it all the same.
        writes.note_taken(Some(Txg(6)));
        writes.device_flush_failed(covered);
        assert!(writes.is_dirty() && writes.has_missed());
        assert!(writes.dtl_contains(Txg(5)) && writes.dtl_contains(Txg(6)));
        let missed: Vec<u64> = writes.take_missed().into_iter().flatten().collect();
        assert_eq!(missed, [5, 6]);
        assert!(writes.take_missed().is_empty(), "told once");
        writes.note_resilvered(&(0..7));
        assert!(!writes.is_stale());
    }

    #[test]
    fn a_good_flush_leaves_only_what_came_after_it_began() {
        let writes = LeafWrites::new(false);
        writes.note_taken(Some(Txg(5)));
        drop(writes.begin_device_flush());
        writes.note_taken(Some(Txg(6)));
        writes.note_lost();
        let missed: Vec<u64> = writes.take_missed().into_iter().flatten().collect();
        assert_eq!(missed, [6]);
        assert!(writes.take_lost() && !writes.take_lost());
    }

    #[test]
    fn a_stored_dtl_replaces_the_doubt_and_not_what_was_missed_since() {
        let writes = LeafWrites::new(true);
        assert!(writes.dtl_contains(Txg(1)));
        writes.note_missed(Txg(9));
        writes.set_dtl(std::slice::from_ref(&(3..4)));
        let missing: Vec<u64> = (0..12).filter(|t| writes.dtl_contains(Txg(*t))).collect();
        assert_eq!(missing, [3, 9]);
    }
}
