//! What each client did and when, and whether what is left is a prefix of it.
//!
//! A client does one operation after the other. After a cut, the tree it finds must equal the state after some number of
//! its operations, at least as many as were acknowledged as stable. Between clients, transaction groups order
//! operations: an operation that had ended before another began is in the same or an earlier group; so when the later
//! one is visible, the earlier one must be.

use super::model::{Op, Tree, Visible, difference, matches, node_matches};

/// States kept from before what is known to be stable.
const STATES_KEPT: usize = 20;

/// One client's operations in a boot.
pub struct History {
    pub client: usize,
    /// The state before any operation, then after each; those long known to be past are dropped.
    states: Vec<Option<Tree>>,
    steps: Vec<Step>,
    stable: usize,
}

struct Step {
    op: Op,
    begun: u64,
    ended: Option<u64>,
}

/// The clock of all histories of a boot: a number for each begin and end.
#[derive(Default)]
pub struct Order {
    now: std::cell::Cell<u64>,
}

impl Order {
    fn tick(&self) -> u64 {
        self.now.set(self.now.get() + 1);
        self.now.get()
    }
}

impl History {
    #[must_use]
    pub fn new(client: usize, tree: Tree) -> Self {
        Self {
            client,
            states: vec![Some(tree)],
            steps: Vec::new(),
            stable: 0,
        }
    }

    fn visible(&self, count: usize) -> Visible {
        self.states[count]
            .as_ref()
            .map(Tree::visible)
            .unwrap_or_default()
    }

    fn is_state(&self, count: usize, found: &Visible) -> bool {
        self.states[count]
            .as_ref()
            .is_some_and(|tree| matches(&tree.visible(), found))
    }

    /// The newest state.
    #[must_use]
    pub fn tree(&self) -> &Tree {
        self.states
            .last()
            .and_then(Option::as_ref)
            .expect("the newest state is kept")
    }

    /// An operation begins: from now on its effect may be found.
    pub fn begin(&mut self, op: &Op, order: &Order) {
        let mut tree = self.tree().clone();
        tree.apply(op);
        self.states.push(Some(tree));
        // A few are kept to explain what was lost.
        for old in self
            .states
            .iter_mut()
            .take(self.stable.saturating_sub(STATES_KEPT))
        {
            *old = None;
        }
        self.steps.push(Step {
            op: op.clone(),
            begun: order.tick(),
            ended: None,
        });
    }

    /// The last operation ends well. Returns when it began.
    pub fn end(&mut self, order: &Order) -> u64 {
        let step = self.steps.last_mut().expect("one has begun");
        step.ended = Some(order.tick());
        step.begun
    }

    /// The last operation was refused and has had no effect.
    pub fn refused(&mut self) {
        self.states.pop();
        self.steps.pop();
    }

    /// Everything that had ended before `begun` is stable.
    pub fn note_stable(&mut self, begun: u64) {
        let ended = |step: &&Step| step.ended.is_some_and(|end| end < begun);
        self.stable = self.stable.max(self.steps.iter().take_while(ended).count());
    }

    /// What was written to `path` last is stable, and with it everything in its transaction group or an earlier one.
    /// Returns when that write began; `None` when the path may have meant another file then.
    #[must_use]
    pub fn last_write(&self, path: &str) -> Option<u64> {
        for step in self.steps.iter().rev() {
            match &step.op {
                // Truncating and punching may have had nothing to do.
                Op::Write { path: written, .. } if written == path => return Some(step.begun),
                Op::Rename { .. } | Op::Remove { .. } => return None,
                _ => {}
            }
        }
        None
    }

    /// The operation that began at `begun` is stable, and everything that had ended before.
    pub fn note_stable_through(&mut self, begun: u64) {
        self.stable = self.stable.max(
            self.steps
                .iter()
                .take_while(|step| step.begun <= begun)
                .count(),
        );
    }

    /// Everything is stable.
    pub fn note_all_stable(&mut self) {
        self.stable = self.steps.len();
    }

    #[must_use]
    pub fn len(&self) -> usize {
        self.steps.len()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// Returns the least and the greatest number of operations whose effect is what was found.
    fn prefixes(&self, found: &Visible) -> Result<(usize, usize), String> {
        let fits: Vec<usize> = (self.stable..self.states.len())
            .filter(|&count| self.is_state(count, found))
            .collect();
        match (fits.first(), fits.last()) {
            (Some(&least), Some(&most)) => Ok((least, most)),
            _ => Err(self.explain(found)),
        }
    }

    fn explain(&self, found: &Visible) -> String {
        let early = (0..self.stable)
            .rev()
            .find(|&count| self.is_state(count, found));
        if let Some(count) = early {
            // From the first that is lost to the one that should have carried it to the disk.
            let story: Vec<String> = self.steps[count..self.steps.len().min(self.stable + 8)]
                .iter()
                .map(|step| format!("{}..{:?} {:?}", step.begun, step.ended, step.op))
                .collect();
            return format!(
                "client {}: {} of {} operations were acknowledged as stable, but only {count} are there; first lost:\n    {}",
                self.client,
                self.stable,
                self.steps.len(),
                story.join("\n    ")
            );
        }
        // The nearest state says most about what went wrong.
        let distance = |count: &usize| {
            let expected = self.visible(*count);
            let keys: std::collections::BTreeSet<_> = expected.keys().chain(found.keys()).collect();
            keys.into_iter()
                .filter(|path| match (expected.get(*path), found.get(*path)) {
                    (Some(node), Some(other)) => !node_matches(node, other),
                    _ => true,
                })
                .count()
        };
        let nearest = (self.stable..self.states.len())
            .rev()
            .min_by_key(distance)
            .expect("there is one");
        let last = nearest.checked_sub(1).map(|index| &self.steps[index].op);
        let next = self.steps.get(nearest).map(|step| &step.op);
        format!(
            "client {}: what is there is no prefix of its {} operations (stable: {}). Nearest is after {nearest}\n  \
             last: {last:?}\n  next: {next:?}\n    {}",
            self.client,
            self.steps.len(),
            self.stable,
            difference(&self.visible(nearest), found)
        )
    }
}

/// Judges what all clients found after a cut.
///
/// # Errors
/// A sentence about what is lost, half there, or out of order.
pub fn judge(histories: &[History], found: &[Visible]) -> Result<(), String> {
    let mut prefixes = Vec::new();
    for (history, found) in histories.iter().zip(found) {
        prefixes.push(history.prefixes(found)?);
    }
    for (earlier, &(_, most)) in histories.iter().zip(&prefixes) {
        let Some(invisible) = earlier.steps.get(most) else {
            continue;
        };
        let Some(ended) = invisible.ended else {
            continue;
        };
        for (later, &(least, _)) in histories.iter().zip(&prefixes) {
            let Some(visible) = least.checked_sub(1).map(|index| &later.steps[index]) else {
                continue;
            };
            if visible.begun > ended {
                return Err(format!(
                    "not a prefix of transaction groups: client {} lost {:?}, which had ended before client {} began \
                     {:?}, which is there",
                    earlier.client, invisible.op, later.client, visible.op
                ));
            }
        }
    }
    Ok(())
}
