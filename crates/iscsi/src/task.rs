//! A task: the data a command still needs of the initiator, whether it was aborted, and the requests that wait for its end.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use runtime::reply::{Reply as Answer, ReplySender};

use crate::memory::MemoryReservation;
use crate::payload::Payload;
use crate::pdu::NO_TAG;
use crate::scsi::{LogicalUnit, TaskSetEntry};
use crate::wire::Wire;

/// A task. It stays in its session's table until it is answered or aborted.
pub(crate) struct Task {
    pub(crate) itt: u32,
    pub(crate) lun: u64,
    pub(crate) cdb: [u8; 16],
    /// The unit, or `None` for a number without one.
    pub(crate) unit: Option<Arc<LogicalUnit>>,
    /// The connection it came by and is answered by.
    pub(crate) wire: Arc<Wire>,
    /// Bytes the initiator expects to send or get.
    pub(crate) expected: usize,
    /// Bytes the command itself wants of the initiator.
    pub(crate) needed: u64,
    /// It reads.
    pub(crate) reads: bool,
    /// Memory set aside for it.
    pub(crate) memory: Option<Arc<MemoryReservation>>,
    aborted: AtomicBool,
    state: Mutex<TaskState>,
}

impl std::fmt::Debug for Task {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Task({:#x})", self.itt)
    }
}

#[derive(Default)]
struct TaskState {
    data: Option<Incoming>,
    /// Its entry in the unit's task set, while it does not run.
    entry: Option<TaskSetEntry>,
    ended: bool,
    waiting: Vec<ReplySender<()>>,
}

/// Data on its way from the initiator.
#[derive(Debug)]
pub(crate) struct Incoming {
    data: Payload,
    /// Bytes we want, from the first on.
    pub(crate) wanted: usize,
    /// Where the next byte goes.
    pub(crate) next: usize,
    /// Where the burst under way ends.
    pub(crate) burst_end: usize,
    /// Tag of the burst: `NO_TAG` while it is unsolicited.
    pub(crate) ttt: u32,
    pub(crate) data_sn: u32,
    pub(crate) r2t_sn: u32,
}

/// What a piece of data leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// More of this burst is to come.
    More,
    /// The burst is complete: ask for the next.
    Ask,
    /// Everything has come.
    Complete,
    /// It is out of order or too much.
    Wrong,
}

impl Incoming {
    /// Prepares for `wanted` bytes.
    pub(crate) fn new(wanted: usize, burst_end: usize) -> Self {
        Self {
            data: Payload::default(),
            wanted,
            next: 0,
            burst_end,
            ttt: NO_TAG,
            data_sn: 0,
            r2t_sn: 0,
        }
    }

    /// Takes data that came with the command or after it.
    pub(crate) fn take(&mut self, offset: usize, data: &Payload, last: bool) -> Step {
        let end = offset.saturating_add(data.len());
        if offset != self.next || end > self.burst_end {
            return Step::Wrong;
        }
        // What the command does not want is dropped.
        self.data.append(data, self.wanted.saturating_sub(offset));
        self.next = end;
        match (last, self.ttt == NO_TAG) {
            (false, _) if end < self.burst_end => Step::More,
            (false, _) => Step::Wrong,
            // A burst that was asked for is whole or it is wrong.
            (true, false) if end < self.burst_end => Step::Wrong,
            (true, _) if end >= self.wanted => Step::Complete,
            (true, _) => Step::Ask,
        }
    }
}

impl Task {
    #[allow(
        clippy::too_many_arguments,
        reason = "the parts of a command PDU, once"
    )]
    pub(crate) fn new(
        itt: u32,
        lun: u64,
        cdb: [u8; 16],
        unit: Option<Arc<LogicalUnit>>,
        wire: Arc<Wire>,
        expected: usize,
        needed: u64,
        reads: bool,
        memory: Option<Arc<MemoryReservation>>,
    ) -> Self {
        Self {
            itt,
            lun,
            cdb,
            unit,
            wire,
            expected,
            needed,
            reads,
            memory,
            aborted: AtomicBool::new(false),
            state: Mutex::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, TaskState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps the task's entry in the unit's task set.
    pub(crate) fn set_entry(&self, entry: TaskSetEntry) {
        self.state().entry = Some(entry);
    }

    /// Takes the entry, to wait until the task may start.
    pub(crate) fn take_entry(&self) -> Option<TaskSetEntry> {
        self.state().entry.take()
    }

    /// Whether the task was aborted.
    pub(crate) fn is_aborted(&self) -> bool {
        self.aborted.load(Ordering::Acquire)
    }

    /// Waits for data from the initiator.
    pub(crate) fn expect(&self, incoming: Incoming) {
        self.state().data = Some(incoming);
    }

    /// Works on the data under way, if there is any.
    pub(crate) fn with_data<T>(&self, work: impl FnOnce(&mut Incoming) -> T) -> Option<T> {
        self.state().data.as_mut().map(work)
    }

    /// Takes the data, once it has all come.
    pub(crate) fn take_data(&self) -> Payload {
        let incoming = self.state().data.take();
        incoming.map_or_else(Payload::default, |incoming| incoming.data)
    }

    /// Marks the task as aborted. Returns an answer to wait for when it is at work.
    pub(crate) fn abort(&self) -> Option<Answer<()>> {
        self.aborted.store(true, Ordering::Release);
        let mut state = self.state();
        // While it waits for data it does not run.
        if state.ended || state.data.take().is_some() {
            let entry = state.entry.take();
            drop(state);
            drop(entry);
            return None;
        }
        let (sender, answer) = runtime::reply();
        state.waiting.push(sender);
        Some(answer)
    }

    /// The work on the task has ended. Returns whether it may be answered.
    pub(crate) fn end(&self) -> bool {
        let mut state = self.state();
        state.ended = true;
        for waiting in state.waiting.drain(..) {
            waiting.send(());
        }
        !self.aborted.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_comes_in_order() {
        let bytes = |fill: u8, count| Payload::new(vec![vec![fill; count].into()]);
        let mut data = Incoming::new(10, 8);
        assert_eq!(data.take(0, &bytes(1, 4), false), Step::More);
        assert_eq!(data.take(5, &bytes(1, 1), false), Step::Wrong, "a gap");
        assert_eq!(data.take(4, &bytes(2, 4), true), Step::Ask);
        data.burst_end = 10;
        data.ttt = 1;
        assert_eq!(data.take(8, &bytes(3, 1), true), Step::Wrong, "short");
        let mut data = Incoming::new(4, 8);
        assert_eq!(
            data.take(0, &bytes(1, 8), true),
            Step::Complete,
            "more than wanted"
        );
        assert_eq!(*data.data.bytes(), [1; 4]);
        assert_eq!(data.take(8, &bytes(1, 1), true), Step::Wrong);
    }
}
