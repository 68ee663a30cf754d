//! Which of several devices is far slower than the others.
// OpenZFS: module/zfs/vdev_raidz.c, vdev_child_slow_outlier (what counts as an outlier; numbers)

use std::cell::{Cell, RefCell};

use runtime::Instant;

/// How many times the distance of the quartiles an outlier is above the upper one.
const DISTANCES: u64 = 50;
/// A device sits out that was an outlier more often than this.
const LIMIT: u64 = 20;
/// Most that one comparison counts for.
pub(super) const LIMIT_AT_ONCE: u64 = LIMIT / 4;

/// The latencies of a vdev's devices, compared once a second.
#[derive(Debug, Default)]
pub(crate) struct LatencyWatch {
    /// Devices that are found to be slow sit out.
    pub(crate) enabled: Cell<bool>,
    pub(super) checked: Cell<Option<Instant>>,
    /// Reads of each slot, and their time in nanoseconds, when they were compared last.
    pub(super) seen: RefCell<Vec<(u64, u64)>>,
    pub(super) outliers: RefCell<Outliers>,
}

/// How often each slot was an outlier, less what time has taken off.
#[derive(Debug, Default)]
pub(super) struct Outliers {
    of_slot: Vec<u64>,
    all: u64,
}

impl Outliers {
    /// Counts an outlier; returns whether it is one too many.
    pub(super) fn count(&mut self, slot: usize, slots: usize, more: u64) -> bool {
        assert!(slot < slots, "slot {slot} of {slots}");
        self.of_slot.resize(slots, 0);
        self.all += more;
        // What falls on all alike is no sign of a bad device.
        if self.all >= slots as u64 {
            for count in &mut self.of_slot {
                *count = count.saturating_sub(2);
            }
            self.all = 0;
        }
        let Some(count) = self.of_slot.get_mut(slot) else {
            return false;
        };
        *count += more;
        let too_many = *count > LIMIT;
        if too_many {
            self.of_slot.fill(0);
        }
        too_many
    }
}

/// The one of these latencies that is far from the others, and by how many distances of their quartiles it is beyond what is tolerated.
pub(super) fn outlier(latencies: &[u64]) -> Option<(usize, u64)> {
    let (slot, slowest) = latencies
        .iter()
        .copied()
        .enumerate()
        .max_by_key(|(_, l)| *l)?;
    // Quartiles of the others: of five, OpenZFS's upper one has the slowest in it, which is then never far from it.
    let mut others = latencies.to_vec();
    others.swap_remove(slot);
    others.sort_unstable();
    let half = others.len() / 2;
    let lower = median(others.get(..half)?)?;
    let upper = median(others.get(others.len() - half..)?)?;
    // Of latencies that are nearly equal small differences mean nothing.
    assert!(lower <= upper, "quartiles of sorted latencies");
    let distance = (upper - lower).max(lower / 4).max(1);
    let fence = upper.saturating_add(distance.saturating_mul(DISTANCES));
    (slowest > fence).then(|| (slot, (slowest - fence) / distance))
}

fn median(sorted: &[u64]) -> Option<u64> {
    assert!(sorted.is_sorted(), "a median is of sorted numbers");
    let middle = sorted.len() / 2;
    let above = sorted.get(middle)?;
    match sorted.len() % 2 {
        0 => Some(sorted.get(middle - 1)?.midpoint(*above)),
        _ => Some(*above),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outlier_is_far_from_the_others() {
        assert_eq!(outlier(&[100, 110, 105, 95, 100]), None);
        // The quartiles of the others are 97 and 107: a quarter of the lower one counts, fifty times.
        assert_eq!(outlier(&[100, 110, 105, 95, 1000]), None);
        assert_eq!(
            outlier(&[100, 110, 5000, 95, 100]).map(|(slot, _)| slot),
            Some(2)
        );
        assert_eq!(outlier(&[0, 0, 0, 0, 51]), Some((4, 1)));
        assert_eq!(outlier(&[0, 0, 0, 0, 50]), None);
        assert_eq!(outlier(&[]), None);
    }

    #[test]
    fn one_that_is_slow_all_the_time_sits_out_and_all_in_turn_do_not() {
        let mut outliers = Outliers::default();
        let times = (1..).find(|_| outliers.count(3, 6, 1)).expect("some time");
        assert!((21..60).contains(&times), "{times}");
        let mut outliers = Outliers::default();
        assert!((0..1000).all(|time| !outliers.count(time % 6, 6, 1)));
        let mut outliers = Outliers::default();
        let times = (1..)
            .find(|_| outliers.count(0, 6, LIMIT_AT_ONCE))
            .expect("some time");
        assert!(times <= 9, "{times}");
    }
}
