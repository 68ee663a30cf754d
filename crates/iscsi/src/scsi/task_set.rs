//! The task set of a logical unit: which command may start when. SAM-5 sections 8.6 and 8.7.
//!
//! Simple commands start at once and run side by side; an ordered one waits for all before it, and all after it wait for it; one
//! for the head of the queue starts whatever waits. There is one task set for all initiators (TST=0), and a command enters it when
//! it arrives, before its data does.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use runtime::reply::{Reply as Answer, ReplySender};

/// How a command wants to be ordered among others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Attribute {
    Simple,
    Ordered,
    HeadOfQueue,
}

/// The commands of a unit, in the order of their arrival.
#[derive(Debug, Default)]
pub(crate) struct TaskSet(Mutex<TaskSetState>);

#[derive(Debug, Default)]
struct TaskSetState {
    running: usize,
    /// One of those running is ordered.
    alone: bool,
    waiting: VecDeque<WaitingTask>,
    next: u64,
}

#[derive(Debug)]
struct WaitingTask {
    id: u64,
    ordered: bool,
    start: StartSender,
}

struct StartSender(ReplySender<()>);

impl std::fmt::Debug for StartSender {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("StartSender")
    }
}

/// A command's place, until it is dropped.
#[derive(Debug)]
pub(crate) struct TaskSetEntry {
    set: Arc<TaskSet>,
    ordered: bool,
    /// Its number, if it had to wait.
    id: Option<u64>,
    start: Option<StartReceiver>,
}

struct StartReceiver(Answer<()>);

impl std::fmt::Debug for StartReceiver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("StartReceiver")
    }
}

impl TaskSet {
    fn state(&self) -> MutexGuard<'_, TaskSetState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a command in. It may start once [`TaskSetEntry::started`] has ended.
    pub(crate) fn enter(self: &Arc<Self>, attribute: Attribute) -> TaskSetEntry {
        let ordered = attribute == Attribute::Ordered;
        let mut state = self.state();
        let waits = match attribute {
            Attribute::HeadOfQueue => false,
            Attribute::Simple => state.alone || !state.waiting.is_empty(),
            Attribute::Ordered => state.running > 0 || !state.waiting.is_empty(),
        };
        let (mut id, mut start) = (None, None);
        if waits {
            let (sender, answer) = runtime::reply();
            state.next += 1;
            let number = state.next;
            state.waiting.push_back(WaitingTask {
                id: number,
                ordered,
                start: StartSender(sender),
            });
            (id, start) = (Some(number), Some(StartReceiver(answer)));
        } else {
            state.running += 1;
            state.alone |= ordered;
        }
        drop(state);
        TaskSetEntry {
            set: self.clone(),
            ordered,
            id,
            start,
        }
    }
}

impl TaskSetState {
    /// Starts whatever may start now.
    fn advance(&mut self) {
        while let Some(first) = self.waiting.front() {
            let may = !self.alone && (!first.ordered || self.running == 0);
            if !may {
                return;
            }
            if let Some(first) = self.waiting.pop_front() {
                self.running += 1;
                self.alone |= first.ordered;
                first.start.0.send(());
            }
        }
    }
}

impl TaskSetEntry {
    /// Waits until the command may start.
    pub(crate) async fn started(&mut self) {
        if let Some(start) = self.start.take() {
            // The sender is dropped with the queue only, which this place holds.
            let _ = start.0.await;
        }
    }
}

impl Drop for TaskSetEntry {
    fn drop(&mut self) {
        let mut state = self.set.state();
        let waiting = self
            .id
            .and_then(|id| state.waiting.iter().position(|waiting| waiting.id == id));
        match waiting {
            Some(at) => drop(state.waiting.remove(at)),
            None => {
                state.running = state.running.saturating_sub(1);
                if self.ordered {
                    state.alone = false;
                }
            }
        }
        state.advance();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::Future as _;
    use std::pin::pin;
    use std::task::{Context, Waker};

    fn may_start(entry: &mut TaskSetEntry) -> bool {
        let waiting = pin!(entry.started());
        waiting
            .poll(&mut Context::from_waker(Waker::noop()))
            .is_ready()
    }

    fn polled(entry: &TaskSetEntry) -> bool {
        entry.id.is_none_or(|id| {
            let state = entry.set.state();
            state.waiting.iter().all(|waiting| waiting.id != id)
        })
    }

    #[test]
    fn an_ordered_command_runs_between_what_was_before_and_what_comes_after() {
        let set = Arc::new(TaskSet::default());
        let mut a = set.enter(Attribute::Simple);
        let mut b = set.enter(Attribute::Simple);
        assert!(may_start(&mut a) && may_start(&mut b));
        let ordered = set.enter(Attribute::Ordered);
        let after = set.enter(Attribute::Simple);
        let mut head = set.enter(Attribute::HeadOfQueue);
        assert!(may_start(&mut head));
        assert!(!polled(&ordered) && !polled(&after));
        drop((a, b));
        assert!(!polled(&ordered), "the head of the set came before it");
        drop(head);
        assert!(polled(&ordered) && !polled(&after));
        drop(ordered);
        assert!(polled(&after));
        drop(after);
        let state = set.state();
        assert_eq!(
            (state.running, state.alone, state.waiting.len()),
            (0, false, 0)
        );
    }

    #[test]
    fn one_that_gives_up_holds_nobody_up() {
        let set = Arc::new(TaskSet::default());
        let first = set.enter(Attribute::Ordered);
        let second = set.enter(Attribute::Ordered);
        let third = set.enter(Attribute::Simple);
        drop(second);
        assert!(!polled(&third));
        drop(first);
        assert!(polled(&third));
    }
}
