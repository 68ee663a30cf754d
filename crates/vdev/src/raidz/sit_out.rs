//! Devices of a vdev with parity that sit out: they are not read as long as parity stands in for them. An administrator says
//! so, or they are found to be very much slower than the others. They are written to, scrubbed and resilvered like any other.
// OpenZFS: module/zfs/vdev_raidz.c, vdev_child_slow_outlier, vdev_sit_out_reads

use std::time::Duration;

use ondisk::Guid;
use runtime::Instant;

use super::latency::{LIMIT_AT_ONCE, outlier};
use crate::leaf_state::SitOut;
use crate::tree::Top;
use crate::{Health, Tree, VdevError};

/// How long a device sits out that was found to be slow.
const PERIOD: Duration = Duration::from_secs(600);
/// How often latencies are compared.
const CHECK_EVERY: Duration = Duration::from_secs(1);
/// Fewer devices do not tell what is normal.
const DEVICES_MIN: usize = 5;
impl Tree {
    /// Has the devices of a vdev with parity sit out, or not, when they are found to be far slower than the others.
    pub fn set_autosit(&self, top: Guid, on: bool) {
        let found = self.tops().into_iter().find(|found| found.guid == top);
        let top = found.and_then(|found| self.top(found.id));
        if let Some(top) = top.filter(|top| top.is_striped()) {
            top.latencies.enabled.set(on);
        }
    }

    /// Has a device of a vdev with parity sit out until it is told otherwise or opened again, or has it read again.
    ///
    /// # Errors
    /// [`VdevError::NoSuchLeaf`] for one of another vdev, too; [`VdevError::Required`] when as many others sit out as parity makes up for.
    pub fn set_sit_out(&self, guid: Guid, on: bool) -> Result<(), VdevError> {
        let leaf = self.leaf(guid)?;
        let top = self.top(leaf.top).filter(|top| top.is_striped());
        let Some(top) = top.filter(|_| leaf.spare.is_none()) else {
            return Err(VdevError::NoSuchLeaf { guid });
        };
        if on {
            let is_own = |slot: &usize| top.slots[*slot].any(|other| other.guid == guid);
            let mut sitting = top.sitting_slots(self.now());
            sitting.retain(|slot| !is_own(slot));
            if sitting.len() >= top.spare_slots() {
                return Err(VdevError::Required);
            }
        }
        leaf.set_sit_out(if on { SitOut::Set } else { SitOut::No });
        Ok(())
    }

    /// Whether a device sits out; `None` for one of a vdev without parity, of which none does.
    #[must_use]
    pub fn sits_out(&self, guid: Guid) -> Option<bool> {
        let leaf = self.leaf(guid).ok()?;
        let top = self.top(leaf.top)?;
        let can = top.is_striped() && leaf.spare.is_none();
        can.then(|| leaf.sit_out().is_at(self.now()))
    }

    pub(super) fn now(&self) -> Instant {
        self.0.handle.now()
    }
}

impl Top {
    /// Returns the slots of which a device sits out.
    pub(crate) fn sitting_slots(&self, now: Instant) -> Vec<usize> {
        let slots = self.slots.iter().enumerate();
        let sitting = slots.filter(|(_, slot)| slot.any(|leaf| leaf.sit_out().is_at(now)));
        sitting.map(|(index, _)| index).collect()
    }

    /// Compares the devices' latencies, if that is due. One that was far slower than the others time and again sits out.
    pub(crate) fn watch_latencies(&self, now: Instant) {
        let watch = &self.latencies;
        let is_due = watch
            .checked
            .get()
            .is_none_or(|last| now >= last + CHECK_EVERY);
        if !watch.enabled.get() || !is_due || self.slots.len() < DEVICES_MIN {
            return;
        }
        watch.checked.set(Some(now));
        let reads = self.slots.iter().map(|slot| {
            let leaves = slot.leaves();
            let sums = leaves.iter().map(|leaf| leaf.reads());
            sums.fold((0, 0), |(ops, time), (more, longer)| {
                (ops + more, time + longer)
            })
        });
        let reads: Vec<(u64, u64)> = reads.collect();
        let before = watch.seen.replace(reads.clone());
        if before.len() != reads.len() {
            return;
        }
        let out = self.slots.iter().map(|slot| {
            slot.any(|leaf| leaf.sit_out().is_at(now) || leaf.health() != Health::Online)
        });
        let out: Vec<bool> = out.collect();
        // One more than parity makes up for could not sit out.
        if out.iter().filter(|out| **out).count() >= self.spare_slots() {
            return;
        }
        let mut slots = Vec::new();
        let mut latencies = Vec::new();
        for (slot, ((ops, time), (ops_before, time_before))) in
            reads.into_iter().zip(before).enumerate()
        {
            let (ops, time) = (
                ops.saturating_sub(ops_before),
                time.saturating_sub(time_before),
            );
            match time.checked_div(ops) {
                _ if out.get(slot) == Some(&true) => {}
                Some(latency) => {
                    slots.push(slot);
                    latencies.push(latency);
                }
                // All have to have been read from.
                None => return,
            }
        }
        assert!(slots.len() == latencies.len(), "a latency of each slot");
        let Some((at, beyond)) = outlier(&latencies) else {
            return;
        };
        let Some(&slot) = slots.get(at) else {
            return;
        };
        let more = beyond.clamp(1, LIMIT_AT_ONCE);
        let count = watch
            .outliers
            .borrow_mut()
            .count(slot, self.slots.len(), more);
        if count {
            for leaf in self.slots[slot].leaves() {
                leaf.found_slow(now + PERIOD);
            }
        }
    }
}
