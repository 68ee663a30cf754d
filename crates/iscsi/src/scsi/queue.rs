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
pub(crate) struct Queue(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    running: usize,
    /// One of those running is ordered.
    alone: bool,
    waiting: VecDeque<Waiting>,
    next: u64,
}

#[derive(Debug)]
struct Waiting {
    id: u64,
    ordered: bool,
    start: Start,
}

struct Start(ReplySender<()>);

impl std::fmt::Debug for Start {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Start")
    }
}

/// A command's place, until it is dropped.
#[derive(Debug)]
pub(crate) struct Place {
    queue: Arc<Queue>,
    ordered: bool,
    /// Its number, if it had to wait.
    id: Option<u64>,
    turn: Option<Turn>,
}

struct Turn(Answer<()>);

impl std::fmt::Debug for Turn {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Turn")
    }
}

impl Queue {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a command in. It may start once [`Place::turn`] has ended.
    pub(crate) fn enter(self: &Arc<Self>, attribute: Attribute) -> Place {
        let ordered = attribute == Attribute::Ordered;
        let mut inner = self.inner();
        let waits = match attribute {
            Attribute::HeadOfQueue => false,
            Attribute::Simple => inner.alone || !inner.waiting.is_empty(),
            Attribute::Ordered => inner.running > 0 || !inner.waiting.is_empty(),
        };
        let (mut id, mut turn) = (None, None);
        if waits {
            let (sender, answer) = runtime::reply();
            inner.next += 1;
            let number = inner.next;
            inner.waiting.push_back(Waiting {
                id: number,
                ordered,
                start: Start(sender),
            });
            (id, turn) = (Some(number), Some(Turn(answer)));
        } else {
            inner.running += 1;
            inner.alone |= ordered;
        }
        drop(inner);
        Place {
            queue: self.clone(),
            ordered,
            id,
            turn,
        }
    }
}

impl Inner {
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

impl Place {
    /// Waits until the command may start.
    pub(crate) async fn turn(&mut self) {
        if let Some(turn) = self.turn.take() {
            // The sender is dropped with the queue only, which this place holds.
            let _ = turn.0.await;
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut inner = self.queue.inner();
        let waiting = self
            .id
            .and_then(|id| inner.waiting.iter().position(|waiting| waiting.id == id));
        match waiting {
            Some(at) => drop(inner.waiting.remove(at)),
            None => {
                inner.running = inner.running.saturating_sub(1);
                if self.ordered {
                    inner.alone = false;
                }
            }
        }
        inner.advance();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::Future as _;
    use std::pin::pin;
    use std::task::{Context, Waker};

    fn may_start(place: &mut Place) -> bool {
        let waiting = pin!(place.turn());
        waiting
            .poll(&mut Context::from_waker(Waker::noop()))
            .is_ready()
    }

    fn polled(place: &Place) -> bool {
        place.id.is_none_or(|id| {
            let inner = place.queue.inner();
            inner.waiting.iter().all(|waiting| waiting.id != id)
        })
    }

    #[test]
    fn an_ordered_command_runs_between_what_was_before_and_what_comes_after() {
        let queue = Arc::new(Queue::default());
        let mut a = queue.enter(Attribute::Simple);
        let mut b = queue.enter(Attribute::Simple);
        assert!(may_start(&mut a) && may_start(&mut b));
        let ordered = queue.enter(Attribute::Ordered);
        let after = queue.enter(Attribute::Simple);
        let mut head = queue.enter(Attribute::HeadOfQueue);
        assert!(may_start(&mut head));
        assert!(!polled(&ordered) && !polled(&after));
        drop((a, b));
        assert!(!polled(&ordered), "the head of the queue came before it");
        drop(head);
        assert!(polled(&ordered) && !polled(&after));
        drop(ordered);
        assert!(polled(&after));
        drop(after);
        let inner = queue.inner();
        assert_eq!(
            (inner.running, inner.alone, inner.waiting.len()),
            (0, false, 0)
        );
    }

    #[test]
    fn one_that_gives_up_holds_nobody_up() {
        let queue = Arc::new(Queue::default());
        let first = queue.enter(Attribute::Ordered);
        let second = queue.enter(Attribute::Ordered);
        let third = queue.enter(Attribute::Simple);
        drop(second);
        assert!(!polled(&third));
        drop(first);
        assert!(polled(&third));
    }
}
