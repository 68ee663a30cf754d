//! Reads with repair, writes, flush, scrub.
//!
//! A repair must never put old bytes over new ones: a range under repair is watched, a write to it cancels the repair,
//! and waits for one that has already started.

use std::cell::Cell;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use ondisk::Txg;
use runtime::sync::{Event, RwLockReadGuard};
use runtime::{DiskError, IoBuf};

use crate::layout::Layout;
use crate::leaf::{Leaf, LeafError};
use crate::raidz::slot_ranges;
use crate::tree::{SuspectState, Top, leaf_failure, out_of_range};
use crate::{
    Check, IoClass, LEAF_DATA_START, Location, OpenMode, Scrubbed, Tree, VdevError, Verify,
};

/// A range that is being watched because some copy of it is bad. Dropping it ends the watch.
pub struct Suspect {
    tree: Tree,
    state: Rc<SuspectState>,
    /// Where the range really is, if its vdev was removed.
    pieces: Vec<Self>,
}

impl Drop for Suspect {
    fn drop(&mut self) {
        self.tree
            .0
            .suspects
            .borrow_mut()
            .retain(|other| !Rc::ptr_eq(other, &self.state));
    }
}

impl Tree {
    /// Reads a range, trying copies until `verify` accepts one; bad copies are rewritten.
    ///
    /// # Errors
    /// [`VdevError::OutOfRange`] for a place that does not exist; [`VdevError::Rejected`] when every copy read fails
    /// the check; [`VdevError::Device`] or [`VdevError::Unavailable`] when no copy could be read.
    pub async fn read(
        &self,
        at: Location,
        class: IoClass,
        verify: Verify,
    ) -> Result<IoBuf, VdevError> {
        let check: Check<IoBuf> = match verify {
            Verify::None => Arc::new(|bytes: &IoBuf| Some(bytes.clone())),
            Verify::With(good) => Arc::new(move |bytes: &IoBuf| good(bytes).then(|| bytes.clone())),
        };
        self.read_with(at, class, check).await
    }

    /// Like [`Tree::read`], with a check that also produces a value (so that verification and decompression are one
    /// compute job). `check` returns `None` for wrong bytes.
    ///
    /// # Errors
    /// As [`Tree::read`].
    pub async fn read_with<T: Send + 'static>(
        &self,
        at: Location,
        class: IoClass,
        check: Check<T>,
    ) -> Result<T, VdevError> {
        self.read_checked(at, class, check, true).await
    }

    /// Like [`Tree::read_with`], of a place that may well hold something else (the end of an intent log): when the copies
    /// fail the check that is `None`, and no device's fault. Copies that may lack what was written say nothing: when there
    /// are no others, the place could not be read. Unless every device of the vdev answered: what was acknowledged reached one
    /// of them.
    ///
    /// # Errors
    /// As [`Tree::read`], but for [`VdevError::Rejected`].
    pub async fn read_speculative<T: Send + 'static>(
        &self,
        at: Location,
        class: IoClass,
        check: Check<T>,
    ) -> Result<Option<T>, VdevError> {
        match self.read_checked(at, class, check, false).await {
            Ok(value) => Ok(Some(value)),
            Err(VdevError::Rejected { .. }) => Ok(None),
            // Nothing was there that would have been copied.
            Err(VdevError::OutOfRange { .. }) if self.is_removed(at.vdev) => Ok(None),
            Err(error) => Err(error),
        }
    }

    pub(crate) async fn read_checked<T: Send + 'static>(
        &self,
        at: Location,
        class: IoClass,
        check: Check<T>,
        expected: bool,
    ) -> Result<T, VdevError> {
        let top = self.top_for(at)?;
        if top.is_removed() {
            return self.read_indirect(at, class, check, expected).await;
        }
        if top.is_striped() {
            let (top, _still) = self.enter(top).await;
            return self.read_striped(&top, at, class, check, expected).await;
        }
        let len = usize::try_from(at.size).map_err(|_| out_of_range(at))?;
        let mut failed: Vec<Rc<Leaf>> = Vec::new();
        let mut suspect: Option<Suspect> = None;
        let mut rejected = false;
        let mut answered = 0;
        let mut device_error: Option<DiskError> = None;
        for leaf in read_order(&top, at) {
            match leaf
                .read(LEAF_DATA_START + at.offset, len, class, self.timeout(&top))
                .await
            {
                Ok(bytes) => {
                    if let Some(value) = self.run_check(&check, &bytes).await {
                        if let Some(suspect) = &suspect {
                            suspect.repair_leaves(&failed, &bytes).await;
                        }
                        return Ok(value);
                    }
                    if expected {
                        leaf.count_checksum_error(at);
                    }
                    answered += 1;
                    rejected |= expected || !leaf.writes.dtl_contains(at.born);
                }
                Err(LeafError::Device(error)) => device_error = Some(error),
                Err(LeafError::Stuck) => {}
                Err(LeafError::Closed) => continue,
            }
            if suspect.is_none() {
                suspect = Some(self.suspect(at));
            }
            failed.push(leaf);
        }
        if self.is_removed(at.vdev) {
            // It was removed meanwhile, and its devices are closed.
            return self.read_indirect(at, class, check, expected).await;
        }
        if rejected || (answered > 0 && answered == top.leaves().len()) {
            return Err(VdevError::Rejected {
                vdev: at.vdev,
                offset: at.offset,
                size: at.size,
            });
        }
        Err(
            device_error.map_or(VdevError::Unavailable { vdev: at.vdev }, |source| {
                VdevError::Device {
                    vdev: at.vdev,
                    offset: at.offset,
                    size: at.size,
                    source,
                }
            }),
        )
    }

    /// Reads a range from every leaf and rewrites those that do not hold what a good one holds. A leaf that may lack old
    /// writes must hold exactly the bytes of one that does not. `check` returns false for wrong bytes.
    ///
    /// # Errors
    /// [`VdevError::OutOfRange`]. Devices that fail are counted in the answer.
    pub async fn scrub(
        &self,
        at: Location,
        class: IoClass,
        check: Check<()>,
    ) -> Result<Scrubbed, VdevError> {
        self.scrub_checked(at, class, check, true).await
    }

    /// Like [`Tree::scrub`], of what may have been on its way to the devices when the power failed (an intent log that is
    /// taken over): where it is missing or torn, that is no device's fault.
    ///
    /// # Errors
    /// As [`Tree::scrub`].
    pub async fn complete(
        &self,
        at: Location,
        class: IoClass,
        check: Check<()>,
    ) -> Result<Scrubbed, VdevError> {
        self.scrub_checked(at, class, check, false).await
    }

    pub(crate) async fn scrub_checked(
        &self,
        at: Location,
        class: IoClass,
        check: Check<()>,
        expected: bool,
    ) -> Result<Scrubbed, VdevError> {
        let top = self.top_for(at)?;
        if top.is_removed() {
            return self.scrub_indirect(at, class, check, expected).await;
        }
        if top.is_striped() {
            let (top, _still) = self.enter(top).await;
            return Ok(self.scrub_striped(&top, at, class, check, expected).await);
        }
        let len = usize::try_from(at.size).map_err(|_| out_of_range(at))?;
        let suspect = self.suspect(at);
        let mut order = top.leaves();
        order.retain(|leaf| leaf.is_usable());
        order.sort_by_key(|leaf| leaf.writes.dtl_contains(at.born));
        let mut result = Scrubbed::default();
        let mut bad = Vec::new();
        for leaf in order {
            if leaf.writes.dtl_contains(at.born) && result.good.is_some() {
                // What it holds is not worth reading.
                result.bad_copies += 1;
                bad.push(leaf);
                continue;
            }
            let offset = LEAF_DATA_START + at.offset;
            let timeout = self.timeout(&top);
            let Ok(bytes) = leaf.read(offset, len, class, timeout).await else {
                result.bad_copies += 1;
                bad.push(leaf);
                continue;
            };
            let same = result.good.as_ref().is_some_and(|good| *good == bytes);
            let sound = same || self.run_check(&check, &bytes).await.is_some();
            if sound {
                result.good.get_or_insert(bytes);
            } else {
                if expected {
                    leaf.count_checksum_error(at);
                }
                result.bad_copies += 1;
                bad.push(leaf);
            }
        }
        if result.good.is_none() && self.is_removed(at.vdev) {
            return self.scrub_indirect(at, class, check, expected).await;
        }
        if let Some(good) = &result.good
            && !bad.is_empty()
        {
            result.repaired_copies = suspect.repair_leaves(&bad, good).await;
            result.repaired_bytes = u64::from(result.repaired_copies) * at.size;
        }
        assert!(
            result.repaired_copies <= result.bad_copies,
            "what is repaired was bad"
        );
        Ok(result)
    }

    /// Starts watching a range whose copies are all bad here, so that it can be repaired from a copy elsewhere.
    #[must_use]
    pub fn suspect(&self, at: Location) -> Suspect {
        let pieces = match self.is_removed(at.vdev) {
            true => self.resolve(at).unwrap_or_default(),
            false => Vec::new(),
        };
        let state = Rc::new(SuspectState {
            at,
            end: self.end_of(at),
            overwritten: Cell::new(self.is_writing(at)),
            repairing: Cell::new(false),
            repaired: Event::new("a repair of the same range"),
        });
        self.0.suspects.borrow_mut().push(Rc::clone(&state));
        Suspect {
            tree: self.clone(),
            state,
            pieces: pieces.into_iter().map(|at| self.suspect(at)).collect(),
        }
    }

    /// Writes a range to every leaf that can take it. Succeeds when at least one leaf holds it; leaves that missed it
    /// are remembered for [`Tree::take_missed_writes`]. Not durable before [`Tree::flush`].
    ///
    /// # Errors
    /// [`VdevError::ReadOnly`], [`VdevError::OutOfRange`]; [`VdevError::Device`] or [`VdevError::Unavailable`] when no
    /// leaf took the bytes.
    pub async fn write(&self, at: Location, data: IoBuf, class: IoClass) -> Result<(), VdevError> {
        self.write_as(at, data, class, false).await
    }

    /// As [`Tree::write`], and durable on return. Its flush waits for no other's, and says nothing of other writes.
    ///
    /// # Errors
    /// As [`Tree::write`] and [`Tree::flush_vdev`].
    pub async fn write_through(
        &self,
        at: Location,
        data: IoBuf,
        class: IoClass,
    ) -> Result<(), VdevError> {
        self.write_as(at, data, class, true).await
    }

    async fn write_as(
        &self,
        at: Location,
        data: IoBuf,
        class: IoClass,
        through: bool,
    ) -> Result<(), VdevError> {
        if self.0.mode == OpenMode::ReadOnly {
            return Err(VdevError::ReadOnly);
        }
        let top = self.top_for(at)?;
        if data.len() as u64 != at.size || top.is_removed() {
            return Err(out_of_range(at));
        }
        let end = top.end_of(at);
        assert!(
            end <= top.asize.get(),
            "a write to {:x} ends in its vdev, not at {end:x}",
            at.offset
        );
        self.begin_write(at, end).await;
        let result = if top.is_striped() {
            let (top, _still) = self.enter(Rc::clone(&top)).await;
            self.write_striped(&top, at, data, class).await
        } else if through && top.lost.get() {
            Err(VdevError::Unavailable { vdev: at.vdev })
        } else {
            self.write_leaves(&top, at, |_| data.clone(), class, through)
                .await
        };
        self.end_write(at);
        if through && top.is_striped() {
            result?;
            // The columns missed of each stripe are judged by the flush.
            return self.flush_top(&top).await;
        }
        result
    }

    /// As [`Tree::write`] for a vdev that holds copies, with other bytes for each of its devices: `data` is asked by their
    /// order in the tree.
    pub(crate) async fn write_each(
        &self,
        at: Location,
        data: impl Fn(usize) -> IoBuf,
        class: IoClass,
    ) -> Result<(), VdevError> {
        if self.0.mode == OpenMode::ReadOnly {
            return Err(VdevError::ReadOnly);
        }
        let top = self.top_for(at)?;
        if top.is_striped() || top.is_removed() {
            return Err(out_of_range(at));
        }
        self.begin_write(at, top.end_of(at)).await;
        let result = self.write_leaves(&top, at, data, class, false).await;
        self.end_write(at);
        result
    }

    /// Makes every write that was reported done durable, on all leaves written since the last flush. A log vdev that fails
    /// is no error: nothing of a txg is there, and the writer of an intent log flushes it itself
    /// ([`Tree::flush_vdev`]).
    ///
    /// # Errors
    /// When some top-level vdev has no leaf that both took all writes of the interval and flushed them: then writes may
    /// be lost, the caller must not commit, and every later flush fails too (until the tree is opened anew).
    pub async fn flush(&self) -> Result<(), VdevError> {
        if self.0.mode == OpenMode::ReadOnly {
            return Ok(());
        }
        let tops: Vec<Rc<Top>> = self.0.tops.borrow().iter().flatten().cloned().collect();
        let results = runtime::join_all(tops.iter().map(|top| self.flush_top(top))).await;
        std::iter::zip(&tops, results)
            .try_for_each(|(top, result)| if self.is_log(top.id) { Ok(()) } else { result })
    }

    /// Makes everything written to one top-level vdev so far durable.
    ///
    /// # Errors
    /// As [`Tree::flush`]; [`VdevError::OutOfRange`] when there is no such vdev.
    pub async fn flush_vdev(&self, vdev: u32) -> Result<(), VdevError> {
        if self.0.mode == OpenMode::ReadOnly {
            return Ok(());
        }
        let top = self.top(vdev).ok_or(VdevError::OutOfRange {
            vdev,
            offset: 0,
            size: 0,
        })?;
        self.flush_top(&top).await
    }

    /// Tells the devices that the ranges (bytes of the top-level vdev) hold nothing. Devices that cannot discard are
    /// left alone.
    ///
    /// # Errors
    /// [`VdevError::ReadOnly`], [`VdevError::OutOfRange`].
    pub async fn trim(&self, vdev: u32, ranges: &[Range<u64>]) -> Result<(), VdevError> {
        if self.0.mode == OpenMode::ReadOnly {
            return Err(VdevError::ReadOnly);
        }
        for range in ranges {
            let top = self.top(vdev).filter(|top| {
                let sector = (1_u64 << top.ashift) - 1;
                (range.start | range.end) & sector == 0
                    && range.start < range.end
                    && range.end <= top.asize.get()
            });
            let top = top.ok_or(VdevError::OutOfRange {
                vdev,
                offset: range.start,
                size: range.end.saturating_sub(range.start),
            })?;
            let (top, _still) = self.enter(top).await;
            let ranges = match &top.layout {
                Layout::Copies => vec![(0, range.clone())],
                // Where a range is changes from one moment to the next.
                Layout::Raidz(raidz) if raidz.expanding => continue,
                Layout::Raidz(raidz) => {
                    let ranges = slot_ranges(raidz, top.ashift, range);
                    ranges.into_iter().enumerate().collect()
                }
                Layout::Draid(draid) => draid.slot_ranges(top.ashift, range),
            };
            let mut trims = Vec::new();
            for (slot, range) in ranges {
                let slot = &top.slots[slot];
                let len = range.end.saturating_sub(range.start);
                if len == 0 {
                    continue;
                }
                let offset = LEAF_DATA_START + range.start;
                let leaves = slot.leaves().into_iter();
                trims.extend(leaves.map(|leaf| async move { leaf.trim(offset, len).await }));
            }
            runtime::join_all(trims).await;
        }
        Ok(())
    }

    /// Has sectors of the vdev stay where they are for as long as the guard lives; the vdev is returned in its present shape.
    pub(crate) async fn enter(&self, top: Rc<Top>) -> (Rc<Top>, RwLockReadGuard<()>) {
        let still = top.gate.read().await;
        (self.top(top.id).unwrap_or(top), still)
    }

    async fn run_check<T: Send + 'static>(&self, check: &Check<T>, bytes: &IoBuf) -> Option<T> {
        let limit = match check.is_quick() {
            true => self.0.tuning.offload_sums_above_bytes,
            false => self.0.tuning.offload_above_bytes,
        };
        if bytes.len() as u64 <= limit {
            return check.judge(bytes);
        }
        let (check, bytes) = (Arc::clone(check), bytes.clone());
        self.0.handle.compute(move || check.judge(&bytes)).await
    }

    fn is_writing(&self, at: Location) -> bool {
        let end = self.end_of(at);
        let writing = self.0.writing.borrow();
        writing
            .range((at.vdev, 0)..(at.vdev, end))
            .next_back()
            .is_some_and(|(&(_, offset), &(size, _))| offset + size > at.offset)
    }

    /// Returns the end of the space of a range on its vdev, parity and padding included.
    fn end_of(&self, at: Location) -> u64 {
        self.top(at.vdev)
            .map_or(at.offset.saturating_add(at.size), |top| top.end_of(at))
    }

    /// Registers a write, and waits for repairs of the same range that have started.
    async fn begin_write(&self, at: Location, end: u64) {
        assert!(at.offset < end, "a write has bytes");
        self.0
            .writing
            .borrow_mut()
            .entry((at.vdev, at.offset))
            .or_insert((end - at.offset, 0))
            .1 += 1;
        if self.0.suspects.borrow().is_empty() {
            return;
        }
        let touched: Vec<Rc<SuspectState>> = self
            .0
            .suspects
            .borrow()
            .iter()
            .filter(|suspect| {
                suspect.at.vdev == at.vdev && suspect.at.offset < end && at.offset < suspect.end
            })
            .cloned()
            .collect();
        for suspect in touched {
            suspect.overwritten.set(true);
            while suspect.repairing.get() {
                suspect.repaired.wait().await;
            }
        }
    }

    fn end_write(&self, at: Location) {
        let mut writing = self.0.writing.borrow_mut();
        let entry = writing.get_mut(&(at.vdev, at.offset));
        let (_, count) = entry.expect("a write that ends has begun");
        assert!(*count > 0, "a write ends once");
        *count -= 1;
        if *count == 0 {
            writing.remove(&(at.vdev, at.offset));
        }
    }

    /// How long a leaf may take before the others go on without it; without others, for ever.
    pub(crate) fn timeout(&self, top: &Top) -> Option<Duration> {
        let spare = if top.is_striped() {
            top.closed_slots().len() < top.spare_slots()
        } else {
            let leaves = top.leaves();
            leaves.iter().filter(|leaf| leaf.is_usable()).count() > 1
        };
        spare.then_some(self.0.tuning.stuck_after)
    }

    async fn write_leaves(
        &self,
        top: &Top,
        at: Location,
        data: impl Fn(usize) -> IoBuf,
        class: IoClass,
        through: bool,
    ) -> Result<(), VdevError> {
        let offset = LEAF_DATA_START + at.offset;
        let timeout = self.timeout(top);
        let leaves = top.leaves();
        let results = if let [only] = leaves.as_slice() {
            vec![
                only.put(offset, data(0), class, timeout, Some(at.born), through)
                    .await,
            ]
        } else {
            let write = |(index, leaf): (usize, &Rc<Leaf>)| {
                let (leaf, data) = (Rc::clone(leaf), data(index));
                async move {
                    leaf.put(offset, data, class, timeout, Some(at.born), through)
                        .await
                }
            };
            runtime::join_all(leaves.iter().enumerate().map(write)).await
        };
        let mut first_error = None;
        let mut failed = Vec::new();
        for (leaf, result) in leaves.iter().zip(results) {
            match result {
                Ok(()) => {}
                Err(error) => {
                    failed.push(leaf);
                    if !matches!((&first_error, &error), (Some(_), LeafError::Closed)) {
                        first_error = Some(leaf_failure(leaf, at.offset, at.size, error));
                    }
                }
            }
        }
        if failed.len() < leaves.len() {
            if !through {
                top.dirty.set(true);
            }
            // A write that no leaf took is not missed by any: it has failed, and may be tried again as a whole.
            for leaf in failed {
                match through {
                    true => leaf.writes.note_lack(at.born),
                    false => leaf.writes.note_missed(at.born),
                }
            }
            return Ok(());
        }
        Err(first_error.unwrap_or(VdevError::Unavailable { vdev: at.vdev }))
    }

    async fn flush_top(&self, top: &Rc<Top>) -> Result<(), VdevError> {
        let _turn = top.flushing.lock().await;
        if top.is_striped() {
            // It may have got another shape meanwhile.
            let now = self.top(top.id);
            return self.flush_striped(now.as_ref().unwrap_or(top)).await;
        }
        let gone = VdevError::Unavailable { vdev: top.id };
        if top.lost.get() {
            return Err(gone);
        }
        let leaves = top.leaves();
        let flushed: Vec<&Rc<Leaf>> = leaves
            .iter()
            .filter(|leaf| leaf.writes.is_dirty() && leaf.is_usable())
            .collect();
        let needed = top.dirty.replace(false);
        if flushed.is_empty() && !needed {
            return Ok(());
        }
        // One that took everything and was flushed since has nothing to lose: what a device that just came back makes
        // of its old cache does not matter then.
        let durable = |leaf: &Rc<Leaf>| {
            leaf.is_usable() && !leaf.writes.is_dirty() && !leaf.writes.has_missed()
        };
        let mut whole = leaves.iter().any(durable);
        // The interval ends for all leaves now: later writes belong to the next flush.
        let missed: Vec<bool> = flushed
            .iter()
            .map(|leaf| leaf.writes.begin_flush())
            .collect();
        let timeout = self.timeout(top);
        let results = runtime::join_all(flushed.iter().map(|leaf| leaf.flush(timeout))).await;
        let mut error = None;
        for ((leaf, result), missed) in flushed.iter().zip(results).zip(missed) {
            match result {
                Ok(()) => whole |= !missed,
                Err(failure) => error = Some(leaf_failure(leaf, 0, 0, failure)),
            }
        }
        if whole {
            assert!(
                !top.lost.get(),
                "a flush of vdev {} that lost writes does not succeed",
                top.id
            );
            return Ok(());
        }
        // A device that failed a flush may have dropped what it had, and will not say so a second time.
        top.lost.set(true);
        Err(error.unwrap_or(gone))
    }
}

impl Suspect {
    /// Writes good bytes over the whole range on every leaf, unless the range was written since the watch began. Returns
    /// how many leaves took them.
    pub async fn repair(&self, good: &IoBuf) -> u32 {
        if !self.pieces.is_empty() {
            return self.repair_pieces(good).await;
        }
        match self.tree.top(self.state.at.vdev) {
            Some(top) if top.is_striped() => {
                let (top, _still) = self.tree.enter(top).await;
                self.tree.rewrite_striped(&top, self, good).await
            }
            Some(top) => self.repair_leaves(&top.leaves(), good).await,
            None => 0,
        }
    }

    /// Writes the pieces of good bytes to where they are; returns how many devices took those of the piece with the most.
    async fn repair_pieces(&self, good: &IoBuf) -> u32 {
        let (mut from, mut most) = (0_usize, 0);
        for piece in &self.pieces {
            let Ok(size) = usize::try_from(piece.state.at.size) else {
                return most;
            };
            let Some(end) = from.checked_add(size).filter(|&end| end <= good.len()) else {
                return most;
            };
            most = most.max(Box::pin(piece.repair(&good.slice(from..end))).await);
            from = end;
        }
        most
    }

    pub(crate) fn location(&self) -> Location {
        self.state.at
    }

    /// Returns how many leaves took the good bytes.
    async fn repair_leaves(&self, bad: &[Rc<Leaf>], good: &IoBuf) -> u32 {
        let at = self.state.at;
        if good.len() as u64 != at.size {
            return 0;
        }
        let writes = bad
            .iter()
            .map(|leaf| (Rc::clone(leaf), LEAF_DATA_START + at.offset, good.clone()));
        self.write_repairs(writes.collect()).await.0
    }

    /// Returns whether the range was written since the watch began: what was read of it before is old.
    pub(crate) fn is_overwritten(&self) -> bool {
        self.state.overwritten.get()
    }

    /// Writes bytes at offsets from the start of leaves, unless the range was written since the watch began.
    /// Returns how many writes, and how many bytes, were taken.
    pub(crate) async fn write_repairs(&self, writes: Vec<(Rc<Leaf>, u64, IoBuf)>) -> (u32, u64) {
        let born = Some(self.state.at.born);
        self.write_repairs_as(writes, IoClass::Scrub, born).await
    }

    /// As [`Suspect::write_repairs`], as I/O of a class; `born` is the txg whose writes a leaf lacks if it loses what it took.
    pub(crate) async fn write_repairs_as(
        &self,
        writes: Vec<(Rc<Leaf>, u64, IoBuf)>,
        class: IoClass,
        born: Option<Txg>,
    ) -> (u32, u64) {
        if self.tree.0.mode == OpenMode::ReadOnly || self.is_overwritten() {
            return (0, 0);
        }
        let top = self.tree.top(self.state.at.vdev);
        self.state.repairing.set(true);
        // A device that hangs must not hold up the reader, nor a write that waits to overwrite the range.
        let timeout = top.and_then(|top| self.tree.timeout(&top));
        let writes = writes
            .into_iter()
            .filter(|(leaf, _, _)| leaf.is_usable())
            .map(|(leaf, offset, bytes)| async move {
                let len = bytes.len() as u64;
                // A failure is counted by the leaf; the good copy is still there.
                let healed = leaf
                    .write(offset, bytes, class, timeout, born)
                    .await
                    .is_ok();
                if healed {
                    leaf.count_healed(len);
                }
                (u32::from(healed), len * u64::from(healed))
            });
        let healed = runtime::join_all(writes).await.into_iter();
        let sum = healed.fold((0, 0), |(count, bytes), (c, b)| (count + c, bytes + b));
        self.state.repairing.set(false);
        self.state.repaired.notify_all();
        sum
    }
}

/// Returns the readable leaves in the order they should be read: those in service first, of these those that lack nothing,
/// then the least busy one, then by place, so that neighbouring blocks come from the same leaf.
fn read_order(top: &Top, at: Location) -> Vec<Rc<Leaf>> {
    let leaves = top.leaves();
    if leaves.len() == 1 {
        return leaves;
    }
    // 1 MiB stripes over the copies, as OpenZFS's mirror does for idle devices.
    let favourite = usize::try_from((at.offset >> 20) % leaves.len() as u64).unwrap_or(0);
    let mut order: Vec<(bool, bool, usize, bool, usize)> = leaves
        .iter()
        .enumerate()
        .filter(|(_, leaf)| leaf.is_readable())
        .map(|(index, leaf)| {
            let is_out = !leaf.is_usable();
            let is_other = index != favourite;
            (
                is_out,
                leaf.writes.dtl_contains(at.born),
                leaf.load(),
                is_other,
                index,
            )
        })
        .collect();
    order.sort_unstable();
    order
        .into_iter()
        .map(|(.., index)| Rc::clone(&leaves[index]))
        .collect()
}
