//! Writes with parity, and what a flush may promise after writes that some places missed.

use std::rc::Rc;

use runtime::IoBuf;

use super::Map;
use super::interval::SlotSet;
use super::map::Stripe;
use super::read::{Bad, Index};
use super::solve;
use crate::io::Suspect;
use crate::leaf::{Leaf, LeafError};
use crate::tree::{ColumnReplica, Top, leaf_failure};
use crate::{IoClass, Location, Tree, VdevError};

/// What a write to one device is for.
#[derive(Clone, Copy)]
enum ColumnPlace {
    /// A column of the block.
    First(Index),
    /// A column, also where it is going to be (stripe, slot).
    Second(usize, usize),
}

impl Tree {
    /// [`Tree::write`] for blocks with parity.
    pub(crate) async fn write_striped(
        &self,
        top: &Top,
        at: Location,
        data: IoBuf,
        class: IoClass,
    ) -> Result<(), VdevError> {
        let map = top.whole_map(at);
        assert!(
            map.parity == top.layout.parity() && map.len == data.len(),
            "a block is laid out whole, with the parity of its vdev"
        );
        let map_of_job = map.clone();
        let columns = self
            .run_job(map.len, move || solve::columns_of(&map_of_job, &data))
            .await;
        let mut writes = Vec::new();
        for (index, column) in map.columns().filter(|(_, column)| column.len > 0) {
            for replica in top.replicas(column.slot, column.offset) {
                writes.push((
                    ColumnPlace::First(index),
                    replica.leaf,
                    column.start(),
                    index,
                ));
            }
        }
        for shadow in top.shadows(&map) {
            let place = ColumnPlace::Second(shadow.index.0, shadow.slot);
            for leaf in top.slots[shadow.slot].leaves() {
                writes.push((place, leaf, shadow.start, shadow.index));
            }
        }
        let timeout = self.timeout(top);
        let results = runtime::join_all(writes.iter().map(|(_, leaf, start, (s, c))| {
            let (bytes, born) = (columns[*s][*c].clone(), Some(at.born));
            leaf.write(*start, bytes, class, timeout, born)
        }))
        .await;
        let mut first_error = None;
        let mut failed: Vec<&Rc<Leaf>> = Vec::new();
        let empty = |stripe: &Stripe| stripe.columns.iter().map(|c| c.len == 0).collect();
        let mut taken: Vec<Vec<bool>> = map.stripes.iter().map(empty).collect();
        let mut seconds = vec![SlotSet::default(); map.stripes.len()];
        for ((place, leaf, _, _), result) in writes.iter().zip(results) {
            match result {
                Ok(()) => {
                    if let ColumnPlace::First((s, c)) = place {
                        taken[*s][*c] = true;
                    }
                }
                Err(error) => {
                    failed.push(leaf);
                    if let ColumnPlace::Second(stripe, slot) = place {
                        seconds[*stripe].insert(*slot);
                    }
                    if first_error.is_none() || !matches!(error, LeafError::Closed) {
                        first_error = Some(leaf_failure(leaf, at.offset, at.size, error));
                    }
                }
            }
        }
        let enough = seconds.iter().all(|set| set.len() <= map.parity);
        let Some(sets) = missed_slots(&map, &taken).filter(|_| enough) else {
            return Err(first_error.unwrap_or(VdevError::Unavailable { vdev: at.vdev }));
        };
        top.dirty.set(true);
        top.interval.borrow_mut().add(&sets);
        top.interval.borrow_mut().add(&seconds);
        for leaf in failed {
            leaf.writes.note_missed(at.born);
        }
        Ok(())
    }

    /// Makes the writes of a vdev with parity durable. Fails when a stripe may have lost more columns than it has
    /// parity: those it missed when it was written, and those on leaves that lost what they had taken.
    pub(crate) async fn flush_striped(&self, top: &Rc<Top>) -> Result<(), VdevError> {
        let gone = VdevError::Unavailable { vdev: top.id };
        if top.lost.get() {
            return Err(gone);
        }
        top.dirty.set(false);
        // The interval ends for all leaves now: later writes belong to the next flush.
        let interval = top.interval.take();
        let slots: Vec<Vec<Rc<Leaf>>> = top.slots.iter().map(|slot| slot.leaves()).collect();
        let mut flushed = Vec::new();
        let mut lost_slots = SlotSet::default();
        for (slot, leaves) in slots.iter().enumerate() {
            let alone = leaves.len() == 1;
            for leaf in leaves {
                let missed = leaf.writes.begin_flush();
                let lost = leaf.writes.take_lost();
                if !leaf.writes.is_dirty() {
                    // Nothing to lose, unless it lost it before and came back.
                    if lost {
                        lost_slots.insert(slot);
                    }
                    continue;
                }
                // Of a single leaf the interval knows precisely what it missed.
                flushed.push((slot, Rc::clone(leaf), !lost && (alone || !missed)));
            }
        }
        if flushed.is_empty() && interval.is_empty() && lost_slots.len() == 0 {
            return Ok(());
        }
        let timeout = self.timeout(top);
        let results =
            runtime::join_all(flushed.iter().map(|(_, leaf, _)| leaf.flush(timeout))).await;
        let mut whole = SlotSet::default();
        let mut error = None;
        for ((slot, leaf, complete), result) in flushed.iter().zip(results) {
            match result {
                Ok(()) if *complete => whole.insert(*slot),
                Ok(()) => {}
                Err(failure) => {
                    if matches!(failure, LeafError::Closed) {
                        // It went away with what it had not written down: that is missed now, and told once.
                        leaf.writes.note_unflushed_missed();
                        leaf.writes.forget_dirty();
                    } else {
                        error = Some(leaf_failure(leaf, 0, 0, failure));
                    }
                }
            }
        }
        for (slot, _, _) in &flushed {
            if !whole.has(*slot) {
                lost_slots.insert(*slot);
            }
        }
        if interval.worst_with(lost_slots) <= top.layout.parity() {
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

    /// Writes a whole block, whose bytes came from elsewhere, over what is there. Returns 1 if every place that can be
    /// reached took its column.
    pub(crate) async fn rewrite_striped(&self, top: &Top, suspect: &Suspect, good: &IoBuf) -> u32 {
        let map = top.whole_map(suspect.location());
        if good.len() != map.len {
            return 0;
        }
        let mut all = Vec::new();
        for (index, column) in map.columns() {
            let replicas = top.replicas(column.slot, column.offset).into_iter();
            all.extend(replicas.map(|ColumnReplica { leaf, .. }| Bad { index, leaf }));
        }
        all.retain(|bad| bad.leaf.is_usable());
        let (count, _) = self.repair_columns(top, suspect, &map, good, &all).await;
        u32::from(!all.is_empty() && count as usize == all.len())
    }
}

/// The slots that missed their column of each stripe; `None` when those are more of one stripe than it has parity. A write that too
/// few places took is not missed by any: it has failed, and may be tried again as a whole.
fn missed_slots(map: &Map, taken: &[Vec<bool>]) -> Option<Vec<SlotSet>> {
    let mut sets = Vec::with_capacity(map.stripes.len());
    for (stripe, taken) in map.stripes.iter().zip(taken) {
        let mut missed = SlotSet::default();
        for (column, taken) in stripe.columns.iter().zip(taken) {
            if !taken {
                missed.insert(column.slot);
            }
        }
        assert!(
            missed.len() <= stripe.columns.len(),
            "a column is missed once"
        );
        if missed.len() > map.parity {
            return None;
        }
        sets.push(missed);
    }
    Some(sets)
}
