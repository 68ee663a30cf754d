//! The heartbeats of an imported pool, in memory.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::time::Duration;

use ondisk::{Guid, Heartbeat};
use runtime::sync::Event;
use runtime::{Instant, JoinHandle};

use crate::spec::MultihostTuning;

/// Heartbeats of a pool.
pub(crate) struct MultihostState {
    pub(super) tuning: MultihostTuning,
    /// When the last heartbeat that landed was begun.
    pub(super) last: Cell<Option<Instant>>,
    /// Average time between heartbeats, nanoseconds.
    pub(super) delay: Cell<u64>,
    /// Time and number of the last heartbeat.
    pub(super) timestamp: Cell<u64>,
    pub(super) sequence: Cell<u16>,
    /// The leaf that had the last one, and those that have not yet taken theirs.
    pub(super) leaf: Cell<Guid>,
    pub(super) pending: RefCell<BTreeSet<Guid>>,
    /// Notified when there is to be no heartbeat any more.
    pub(super) stop: Event,
    pub(super) task: RefCell<Option<JoinHandle<()>>>,
    /// No heartbeat landed for too long: another host may have the pool.
    pub(super) lost: Cell<bool>,
}

impl MultihostState {
    pub(crate) fn new(tuning: MultihostTuning) -> Self {
        let delay = nanoseconds(tuning.interval());
        Self {
            tuning,
            last: Cell::new(None),
            delay: Cell::new(delay),
            timestamp: Cell::new(0),
            sequence: Cell::new(0),
            leaf: Cell::new(Guid(0)),
            pending: RefCell::default(),
            stop: Event::new("the next heartbeat"),
            task: RefCell::new(None),
            lost: Cell::new(false),
        }
    }

    /// Whether the pool was given up because no heartbeat landed.
    pub(crate) fn is_lost(&self) -> bool {
        self.lost.get()
    }

    /// Wakes the task, which checks whether it is still needed.
    pub(crate) fn stop_heartbeats(&self) {
        self.stop.notify_all();
    }

    /// How long the pool may go without a heartbeat; `None` for ever.
    pub(super) fn fail_timeout(&self) -> Option<Duration> {
        let intervals = self.tuning.fail_intervals;
        (intervals != 0).then(|| self.tuning.interval() * u32::from(intervals.max(2)))
    }

    pub(super) fn heartbeat(&self, sequence: u16) -> Heartbeat {
        Heartbeat {
            delay_nanoseconds: self.delay.get().max(1),
            interval_ms: u32::try_from(self.tuning.interval().as_millis()).unwrap_or(u32::MAX),
            fail_intervals: match self.tuning.fail_intervals {
                0 => 0,
                intervals => intervals.max(2),
            },
            sequence,
        }
    }
}

pub(super) fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
