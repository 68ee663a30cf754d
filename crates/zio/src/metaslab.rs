//! One metaslab: its free ranges while loaded, what changed per txg, and what was freed but may not be reused yet.
//!
//! Guarantees: a range freed in txg T is not in the usable set before [`Metaslab::txg_synced`] was told T + 2; every
//! allocation and free is recorded exactly once in the changes of its txg.
//! Does not know vdevs or where its free ranges come from.

use std::collections::BTreeMap;
use std::ops::Range;

use ondisk::Txg;
use range_tree::{Mismatch, RangeTree};

/// How many further txgs must sync before space freed in a txg may be handed out again.
/// OpenZFS keeps the same distance (`TXG_DEFER_SIZE`), so that the last three uberblocks stay whole.
pub(crate) const DEFER_TXGS: u64 = 2;

/// Most freed ranges that are remembered for [`Metaslab::hold_freed`]; further ones are not.
const FREED_MAX: usize = 8192;
const _: () = assert!(DEFER_TXGS > 0 && FREED_MAX > 0);

/// How much of a metaslab's free space is in memory.
#[derive(Debug)]
enum LoadState {
    /// Not in memory.
    Unloaded,
    /// Being read. Frees that became reusable meanwhile wait here, since the map being read may miss them.
    Loading { late: Vec<Range<u64>> },
    /// In memory: the usable ranges.
    Loaded(RangeTree),
    /// Could not be read; never used again in this session.
    Broken,
}

/// Changes of one txg not yet taken by the pool.
#[derive(Debug, Default)]
pub(crate) struct Pending {
    pub(crate) allocs: RangeTree,
    pub(crate) frees: RangeTree,
}

/// One metaslab.
#[derive(Debug)]
pub(crate) struct Metaslab {
    /// First byte (of the top-level vdev).
    pub(crate) start: u64,
    /// Bytes.
    pub(crate) size: u64,
    /// Allocated as the space map counts (frees are subtracted at once).
    pub(crate) allocated: u64,
    load: LoadState,
    pending: BTreeMap<Txg, Pending>,
    /// Frees by txg that are not usable yet.
    deferred: BTreeMap<Txg, RangeTree>,
    deferred_bytes: u64,
    /// Free ranges that are not allocated for a moment, because they are being trimmed or initialized.
    held: RangeTree,
    /// What came free since it was last asked for, free or in use again; `None` when frees are not collected.
    freed: Option<RangeTree>,
    /// Where the next first-fit search starts.
    cursor: u64,
    /// Txg of the last allocation.
    used_at: Txg,
}

impl Metaslab {
    /// Makes a metaslab. An untouched one is free as a whole and needs no load.
    pub(crate) fn new(start: u64, size: u64, allocated: u64, untouched: bool) -> Self {
        let load = if untouched {
            let mut usable = RangeTree::searchable();
            usable.union(start..start + size);
            LoadState::Loaded(usable)
        } else {
            LoadState::Unloaded
        };
        Self {
            start,
            size,
            allocated,
            load,
            pending: BTreeMap::new(),
            deferred: BTreeMap::new(),
            deferred_bytes: 0,
            held: RangeTree::default(),
            freed: None,
            cursor: start,
            used_at: Txg(0),
        }
    }

    /// Returns the byte range it covers.
    pub(crate) fn span(&self) -> Range<u64> {
        self.start..self.start + self.size
    }

    /// Returns bytes that could be handed out now, were it loaded.
    pub(crate) fn usable_bytes(&self) -> u64 {
        self.size
            .saturating_sub(self.allocated)
            .saturating_sub(self.deferred_bytes)
    }

    /// Whether something of it was used, and at least three quarters are free.
    pub(crate) fn is_begun(&self) -> bool {
        let free = self.usable_bytes();
        free < self.size && free >= self.size - self.size / 4
    }

    /// Returns bytes freed but not usable yet.
    pub(crate) fn deferred_bytes(&self) -> u64 {
        self.deferred_bytes
    }

    pub(crate) fn is_loaded(&self) -> bool {
        matches!(self.load, LoadState::Loaded(_))
    }

    pub(crate) fn is_unloaded(&self) -> bool {
        matches!(self.load, LoadState::Unloaded)
    }

    pub(crate) fn is_broken(&self) -> bool {
        matches!(self.load, LoadState::Broken)
    }

    pub(crate) fn is_loading(&self) -> bool {
        matches!(self.load, LoadState::Loading { .. })
    }

    /// Returns the longest usable range, 0 if not loaded.
    pub(crate) fn longest(&self) -> u64 {
        match &self.load {
            LoadState::Loaded(usable) => usable.longest(),
            _ => 0,
        }
    }

    /// Marks the start of a load.
    pub(crate) fn begin_load(&mut self) {
        assert!(self.is_unloaded(), "a metaslab is loaded once at a time");
        self.load = LoadState::Loading { late: Vec::new() };
    }

    /// Ends a load with the free ranges of the space map. Ranges outside the metaslab are an error, and so is a sum
    /// above what the counters allow; the metaslab is then broken.
    pub(crate) fn end_load(&mut self, free: &[Range<u64>]) -> Result<(), Mismatch> {
        let LoadState::Loading { late } = std::mem::replace(&mut self.load, LoadState::Broken)
        else {
            return Err(Mismatch);
        };
        let span = self.span();
        let mut usable = RangeTree::searchable();
        for range in free {
            if range.start < span.start || range.end > span.end || range.start >= range.end {
                return Err(Mismatch);
            }
            usable.add(range.clone())?;
        }
        for range in late {
            usable.union(range);
        }
        // The map may already show frees that must still wait, and it may have been read before the allocations that
        // are only in memory.
        for deferred in self.deferred.values() {
            for range in deferred.iter() {
                usable.subtract(&range);
            }
        }
        for pending in self.pending.values() {
            for range in pending.allocs.iter() {
                usable.subtract(&range);
            }
        }
        // The map itself is the truth; the count that was known before may have come from a damaged header.
        assert!(
            usable.space() + self.deferred_bytes <= self.size,
            "what is free and what becomes free fit into the metaslab"
        );
        self.allocated = self.size - usable.space() - self.deferred_bytes;
        self.load = LoadState::Loaded(usable);
        Ok(())
    }

    /// Ends a load that failed.
    pub(crate) fn fail_load(&mut self) {
        self.load = LoadState::Broken;
    }

    /// Returns how many ranges are held in memory.
    pub(crate) fn loaded_ranges(&self) -> usize {
        match &self.load {
            LoadState::Loaded(usable) => usable.len(),
            _ => 0,
        }
    }

    /// Returns the txg of the last allocation in this session.
    pub(crate) fn used_at(&self) -> Txg {
        self.used_at
    }

    /// Drops the ranges to save memory; they are read again when needed. Only when nothing is pending: what the pool
    /// was told is in the space map. Runs must have been returned before. Returns whether it was done.
    pub(crate) fn unload(&mut self) -> bool {
        let can = self.is_loaded() && self.pending.is_empty() && self.held.is_empty();
        if can {
            self.load = LoadState::Unloaded;
        }
        can
    }

    /// Takes a run of at least `least` bytes for a bump allocator, at most `most` if there is a choice.
    /// The run is out of the usable set but not allocated until [`Metaslab::record_alloc`].
    pub(crate) fn take_run(&mut self, least: u64, most: u64) -> Option<Range<u64>> {
        /// Ranges looked at behind the cursor before the length index decides.
        const TRIES: usize = 16;
        let LoadState::Loaded(usable) = &mut self.load else {
            return None;
        };
        let longest = usable.longest();
        if longest < least {
            return None;
        }
        // While there are long runs, walk forward through the metaslab (sequential layout); when only short ones are
        // left, take the tightest so that the long ones survive for large blocks.
        let wanted = least.max(most / 8);
        let found = if longest >= wanted {
            usable
                .first_fit(self.cursor, wanted, TRIES)
                .or_else(|| usable.first_fit(self.start, wanted, TRIES))
                .or_else(|| usable.longest_range())
        } else {
            usable.best_fit(least)
        }?;
        let run = found.start..found.end.min(found.start + most.max(least));
        assert!(
            run.end - run.start >= least,
            "a run of {run:?} has the {least} bytes asked for"
        );
        usable.remove(&run).expect("the run was just found");
        self.cursor = run.end;
        Some(run)
    }

    /// Gives back the unused part of a run. The next run begins there if no other was taken behind it: else each run that is
    /// given back early would leave a gap.
    pub(crate) fn return_run(&mut self, run: Range<u64>) {
        assert!(
            self.start <= run.start && run.end <= self.start + self.size,
            "the run {run:?} is given back to its metaslab"
        );
        if self.cursor == run.end {
            self.cursor = run.start;
        }
        if let LoadState::Loaded(usable) = &mut self.load {
            usable.add(run).expect("a run is given back once");
        }
    }

    /// Takes free ranges from `from` on, at most `most` bytes, out of reach of allocations until [`Metaslab::release`].
    /// Needs a loaded metaslab, else nothing is found. Runs must have been returned before.
    pub(crate) fn hold(&mut self, from: u64, most: u64) -> Vec<Range<u64>> {
        let LoadState::Loaded(usable) = &mut self.load else {
            return Vec::new();
        };
        let mut left = most;
        let mut ranges = Vec::new();
        for range in usable.iter() {
            let start = range.start.max(from);
            let end = range.end.min(start.saturating_add(left));
            if start >= end {
                if left == 0 {
                    break;
                }
                continue;
            }
            left -= end - start;
            ranges.push(start..end);
        }
        let held: u64 = ranges.iter().map(|range| range.end - range.start).sum();
        assert!(held <= most, "no more is held than was asked for");
        for range in &ranges {
            usable.remove(range).expect("the range was just found");
            self.held
                .add(range.clone())
                .expect("a usable range is not held");
        }
        ranges
    }

    /// Begins or ends to remember what comes free.
    pub(crate) fn collect_freed(&mut self, on: bool) {
        match (&self.freed, on) {
            (None, true) => self.freed = Some(RangeTree::default()),
            (Some(_), false) => self.freed = None,
            _ => {}
        }
    }

    /// Whether something came free since it was last held.
    pub(crate) fn has_freed(&self) -> bool {
        self.freed.as_ref().is_some_and(|freed| !freed.is_empty())
    }

    /// As [`Metaslab::hold`], of what came free since the last call, in pieces of at least `least` bytes. Shorter ones are
    /// remembered.
    pub(crate) fn hold_freed(&mut self, least: u64, most: u64) -> Vec<Range<u64>> {
        let (LoadState::Loaded(usable), Some(freed)) = (&mut self.load, &mut self.freed) else {
            return Vec::new();
        };
        let mut ranges = Vec::new();
        let mut left = most;
        let mut wanted = freed.drain().into_iter().peekable();
        for free in usable.iter() {
            while let Some(range) = wanted.peek_mut() {
                let start = range.start.max(free.start);
                let end = range.end.min(free.end);
                if start < end {
                    let room = end.min(start.saturating_add(left));
                    if end - start < least || room - start < least {
                        freed.union(start..end);
                    } else {
                        left -= room - start;
                        ranges.push(start..room);
                        if room < end {
                            freed.union(room..end);
                        }
                    }
                }
                // What is left of it may lie in the next free range; what lies before is in use again.
                if range.end > free.end {
                    range.start = range.start.max(free.end);
                    break;
                }
                wanted.next();
            }
        }
        for range in &ranges {
            usable.remove(range).expect("the range was just found");
            self.held
                .add(range.clone())
                .expect("a usable range is not held");
        }
        ranges
    }

    /// Gives back what is held.
    pub(crate) fn release(&mut self) {
        for range in self.held.drain() {
            self.return_run(range);
        }
    }

    /// Records an allocation out of a run taken before.
    pub(crate) fn record_alloc(&mut self, txg: Txg, range: Range<u64>) {
        assert!(
            self.span().start <= range.start && range.end <= self.span().end,
            "{range:?} is allocated inside its metaslab"
        );
        self.allocated += range.end - range.start;
        self.used_at = txg;
        let pending = self.pending.entry(txg).or_default();
        pending.allocs.add(range).expect("a run is allocated once");
    }

    /// Takes back an allocation of `txg` that was never written: usable again at once, unless it was already reported
    /// to the pool (then it is freed like any other block).
    pub(crate) fn undo_alloc(&mut self, txg: Txg, range: &Range<u64>) -> Result<(), Mismatch> {
        let recorded = self
            .pending
            .get_mut(&txg)
            .is_some_and(|p| p.allocs.remove(range).is_ok());
        if recorded {
            assert!(
                self.allocated >= range.end - range.start,
                "what is given back was counted"
            );
            self.allocated -= range.end - range.start;
            self.return_run(range.clone());
            return Ok(());
        }
        self.free(txg, range)
    }

    /// Allocates a given range (a log block found after a crash). Needs a loaded metaslab.
    pub(crate) fn claim(&mut self, txg: Txg, range: &Range<u64>) -> Result<(), Mismatch> {
        if self
            .pending
            .get(&txg)
            .is_some_and(|p| p.allocs.covers(range))
        {
            return Ok(());
        }
        let LoadState::Loaded(usable) = &mut self.load else {
            return Err(Mismatch);
        };
        usable.remove(range)?;
        self.record_alloc(txg, range.clone());
        Ok(())
    }

    /// Frees a range in `txg`. Fails if it is free already, as far as that is known without a load.
    pub(crate) fn free(&mut self, txg: Txg, range: &Range<u64>) -> Result<(), Mismatch> {
        assert!(
            self.span().start <= range.start && range.end <= self.span().end,
            "{range:?} is freed inside its metaslab"
        );
        let length = range.end - range.start;
        if self.allocated < length || self.is_known_free(range) {
            return Err(Mismatch);
        }
        self.deferred.entry(txg).or_default().add(range.clone())?;
        self.pending
            .entry(txg)
            .or_default()
            .frees
            .add(range.clone())?;
        self.allocated -= length;
        self.deferred_bytes += length;
        Ok(())
    }

    /// Returns whether some of a range is free, as far as that is known without a load.
    pub(crate) fn is_known_free(&self, range: &Range<u64>) -> bool {
        let usable = matches!(&self.load, LoadState::Loaded(usable) if usable.overlaps(range));
        usable
            || self.held.overlaps(range)
            || self
                .deferred
                .values()
                .any(|deferred| deferred.overlaps(range))
    }

    /// Returns whether `txg` has changes that were not taken.
    pub(crate) fn has_pending(&self, txg: Txg) -> bool {
        self.pending.contains_key(&txg)
    }

    /// Takes the changes of `txg`.
    pub(crate) fn take_pending(&mut self, txg: Txg) -> Option<Pending> {
        self.pending.remove(&txg)
    }

    /// Makes usable what was freed in `txg - DEFER_TXGS` and before. Returns the bytes that became usable.
    pub(crate) fn txg_synced(&mut self, txg: Txg) -> u64 {
        let mut matured = 0;
        while let Some(entry) = self.deferred.first_entry() {
            if entry.key().0 + DEFER_TXGS > txg.0 {
                break;
            }
            let mut ranges = entry.remove();
            matured += ranges.space();
            for range in ranges.drain() {
                if let Some(freed) = &mut self.freed
                    && freed.len() < FREED_MAX
                {
                    freed.union(range.clone());
                }
                match &mut self.load {
                    LoadState::Loaded(usable) => {
                        // Checked when it was freed, so this can only fail on our own mistake.
                        usable
                            .add(range)
                            .expect("deferred space is not usable before");
                    }
                    LoadState::Loading { late } => late.push(range),
                    LoadState::Unloaded | LoadState::Broken => {}
                }
            }
        }
        assert!(
            matured <= self.deferred_bytes,
            "what becomes usable was deferred"
        );
        self.deferred_bytes -= matured;
        matured
    }

    /// Returns true if frees are still waiting.
    pub(crate) fn has_deferred(&self) -> bool {
        !self.deferred.is_empty()
    }

    /// Returns the free ranges as a space map states them when all changes taken so far have been applied: usable and
    /// deferred ones, with changes not taken yet undone. Runs must have been returned before. `None` if not loaded.
    pub(crate) fn map_free(&self) -> Option<Vec<Range<u64>>> {
        let LoadState::Loaded(usable) = &self.load else {
            return None;
        };
        let mut free = usable.clone();
        self.held.iter().for_each(|range| free.union(range));
        for deferred in self.deferred.values() {
            deferred.iter().for_each(|range| free.union(range));
        }
        // Undone backwards: within a txg frees follow allocations.
        for pending in self.pending.values().rev() {
            pending.frees.iter().for_each(|range| free.subtract(&range));
            pending.allocs.iter().for_each(|range| free.union(range));
        }
        Some(free.drain())
    }

    /// Returns what is allocated within a range of it, in order; `None` if it is not loaded. Runs must have been returned
    /// before.
    pub(crate) fn allocated_in(&self, within: &Range<u64>) -> Option<Vec<Range<u64>>> {
        let LoadState::Loaded(usable) = &self.load else {
            return None;
        };
        let mut parts = usable.gaps(within);
        for free in self.deferred.values().chain([&self.held]) {
            parts = parts.iter().flat_map(|part| free.gaps(part)).collect();
        }
        Some(parts)
    }

    /// Returns what is not usable within a range: allocated, or freed and not yet to be used again; `None` if not loaded.
    pub(crate) fn occupied_in(&self, within: &Range<u64>) -> Option<Vec<Range<u64>>> {
        match &self.load {
            LoadState::Loaded(usable) => Some(usable.gaps(within)),
            _ => None,
        }
    }

    /// Returns the free segments (usable or deferred, not merged) counted by log2 of their size; `None` if not loaded.
    pub(crate) fn histogram(&self) -> Option<[u64; 64]> {
        let LoadState::Loaded(usable) = &self.load else {
            return None;
        };
        let mut counts = [0; 64];
        let deferred = self.deferred.values().flat_map(RangeTree::iter);
        for range in usable.iter().chain(deferred).chain(self.held.iter()) {
            counts[(range.end - range.start).ilog2() as usize] += 1;
        }
        Some(counts)
    }
}
