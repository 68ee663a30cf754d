//! What each client did and when, and whether what is left is what may be left.
//!
//! A client does one operation after the other. Changes of names are made durable together, in their order, by whatever
//! commit comes next; changes of one file's content and attributes in theirs, by a commit of that file. So after a cut the
//! names a client finds must be those after some number of its operations, each file must be as it was after some
//! number, not beyond that, and both at least as far as was acknowledged as stable. Between clients of one file system,
//! when a later change of names is visible, one that had ended before it began must be.

use std::collections::BTreeMap;
use std::rc::Rc;

use super::model::{Node, Op, Tree, Visible, difference, node_matches};

/// States kept from before what is known to be stable.
const STATES_KEPT: usize = 20;

/// One client's operations in a boot. A clone is what was known at a moment; states are shared.
#[derive(Clone)]
pub struct History {
    pub client: usize,
    /// The file system it works in.
    dataset: String,
    /// The state before any operation, then after each; those long known to be past are dropped.
    states: Vec<Option<Rc<Tree>>>,
    steps: Vec<Step>,
    /// Operations all of which are stable.
    stable: usize,
    /// Operations of which those that change names are stable.
    stable_names: usize,
    /// By file: operations of which those that change it are stable.
    stable_files: BTreeMap<u64, usize>,
}

#[derive(Clone)]
struct Step {
    op: Rc<Op>,
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
    pub fn new(client: usize, dataset: &str, tree: Tree) -> Self {
        Self {
            client,
            dataset: dataset.to_owned(),
            states: vec![Some(Rc::new(tree))],
            steps: Vec::new(),
            stable: 0,
            stable_names: 0,
            stable_files: BTreeMap::new(),
        }
    }

    fn visible(&self, count: usize) -> Visible {
        self.states[count]
            .as_ref()
            .map(|tree| tree.visible())
            .unwrap_or_default()
    }

    /// The newest state.
    #[must_use]
    pub fn tree(&self) -> &Tree {
        self.states
            .last()
            .and_then(Option::as_deref)
            .expect("the newest state is kept")
    }

    /// An operation begins: from now on its effect may be found.
    pub fn begin(&mut self, op: &Op, order: &Order) {
        let mut tree = self.tree().clone();
        tree.apply(op);
        self.states.push(Some(Rc::new(tree)));
        // A few are kept to explain what was lost.
        for old in self
            .states
            .iter_mut()
            .take(self.stable.saturating_sub(STATES_KEPT))
        {
            *old = None;
        }
        self.steps.push(Step {
            op: Rc::new(op.clone()),
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

    fn ended_before(&self, begun: u64) -> usize {
        let ended = |step: &&Step| step.ended.is_some_and(|end| end < begun);
        self.steps.iter().take_while(ended).count()
    }

    /// Everything that had ended before `begun` is stable.
    pub fn note_stable(&mut self, begun: u64) {
        self.stable = self.stable.max(self.ended_before(begun));
    }

    /// A commit that began at `begun`, of anything in `dataset`, was acknowledged: changes of names that had ended
    /// before are stable.
    pub fn note_names_stable(&mut self, dataset: &str, begun: u64) {
        if self.dataset == dataset {
            self.stable_names = self.stable_names.max(self.ended_before(begun));
        }
    }

    /// What was done to the file `path`, up to the last operation, is stable.
    pub fn note_file_stable(&mut self, path: &str) {
        let count = self.steps.len();
        if let Some(file) = self.tree().number(path) {
            self.stable_files.insert(file, count);
        }
        self.stable_names = count;
    }

    /// Takes back what was promised by the intent log alone: its device is lost with the power. What a transaction group
    /// made stable stays promised.
    pub fn forget_the_log(&mut self) {
        self.stable_names = 0;
        self.stable_files.clear();
    }

    /// The file system it works in.
    #[must_use]
    pub fn dataset(&self) -> &str {
        &self.dataset
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

    /// Whether what was found may be left: names as after `count` operations, files as after no more.
    fn may_be(&self, count: usize, found: &Visible) -> bool {
        let Some(names) = &self.states[count] else {
            return false;
        };
        let expected = names.visible();
        expected.len() == found.len()
            && expected
                .iter()
                .zip(found)
                .all(|((path, node), (other_path, other))| {
                    path == other_path
                        && (node_matches(node, other)
                            || names.number(path).is_some_and(|file| {
                                let least = self.stable_files.get(&file).copied().unwrap_or(0);
                                let least = least.max(self.stable);
                                let at = |k: usize| {
                                    let state = self.states.get(k)?.as_ref()?;
                                    state.node_as_in(file, path, names)
                                };
                                (least..count)
                                    .rev()
                                    .any(|k| at(k).is_some_and(|node| node_matches(&node, other)))
                                    || (least..count).rev().any(|k| {
                                        self.is_write_of(k, file)
                                            && at(k).zip(at(k + 1)).is_some_and(|(old, new)| {
                                                is_torn(&self.steps[k].op, &old, &new, other)
                                            })
                                    })
                            }))
                })
    }

    fn is_write_of(&self, step: usize, file: u64) -> bool {
        let Some((path, ..)) = self.steps[step].op.written() else {
            return false;
        };
        let state = self.states[step].as_ref();
        state.and_then(|state| state.number(path)) == Some(file)
    }

    /// Returns the least and the greatest number of operations whose names are what was found; both end before a
    /// change of names, or with the last operation.
    fn prefixes(&self, found: &Visible) -> Result<(usize, usize), String> {
        let ends = |&count: &usize| {
            self.steps
                .get(count)
                .is_none_or(|next| next.op.changes_names())
        };
        let fits: Vec<usize> = (self.stable.max(self.stable_names)..self.states.len())
            .filter(ends)
            .filter(|&count| self.may_be(count, found))
            .collect();
        match (fits.first(), fits.last()) {
            (Some(&least), Some(&most)) => Ok((least, most)),
            _ => Err(self.explain(found)),
        }
    }

    fn explain(&self, found: &Visible) -> String {
        let promised = self.stable.max(self.stable_names);
        let early = (0..promised).rev().find(|&count| self.may_be(count, found));
        if let Some(count) = early {
            // From the first that is lost to the one that should have carried it to the disk.
            let story: Vec<String> = self.steps[count..self.steps.len().min(promised + 8)]
                .iter()
                .map(|step| format!("{}..{:?} {:?}", step.begun, step.ended, step.op))
                .collect();
            return format!(
                "client {}: {} of {} operations were acknowledged as stable, but only {count} are there; first lost:\n    {}",
                self.client,
                promised,
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
        let nearest = (promised..self.states.len())
            .rev()
            .min_by_key(distance)
            .expect("there is one");
        let story: Vec<String> = (promised..self.steps.len())
            .map(|step| format!("{step} {:?}", self.steps[step].op))
            .collect();
        let last = nearest.checked_sub(1).map(|index| &self.steps[index].op);
        let next = self.steps.get(nearest).map(|step| &step.op);
        format!(
            "client {}: what is there is not what its {} operations may leave (stable: {}, names {}, files {:?}). \
             Nearest is after {nearest}\n  last: {last:?}\n  next: {next:?}\n    {}\n  what may be lost:\n    {}",
            self.client,
            self.steps.len(),
            self.stable,
            self.stable_names,
            self.stable_files,
            difference(&self.visible(nearest), found),
            story.join("\n    ")
        )
    }
}

/// Whether a file is as a write leaves it of which only the front was logged: a long one is several records, and power
/// may go between them before anything is acknowledged.
fn is_torn(op: &Op, old: &Node, new: &Node, found: &Node) -> bool {
    let (Some((_, offset, len)), Node::File(old), Node::File(new), Node::File(found)) =
        (op.written(), old, new, found)
    else {
        return false;
    };
    let from = usize::try_from(offset).expect("small");
    let to = usize::try_from(offset + len).expect("small");
    let done = (from..to.min(found.content.len()))
        .take_while(|&i| found.content[i] == new.content[i])
        .count();
    let before = |i: usize| old.content.get(i).copied().unwrap_or(0);
    let mut as_found = old.clone();
    as_found.content = found.content.clone();
    as_found.mtime_seconds = None;
    node_matches(&Node::File(as_found), &Node::File(found.clone()))
        && done > 0
        && (found.content.len() == old.content.len().max(from + done))
        && (0..found.content.len())
            .filter(|i| !(from..from + done).contains(i))
            .all(|i| found.content[i] == before(i))
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
            let visible = later.steps[..least]
                .iter()
                .rev()
                .find(|step| step.op.changes_names());
            let Some(visible) = visible.filter(|_| later.dataset == earlier.dataset) else {
                continue;
            };
            if visible.begun > ended {
                return Err(format!(
                    "out of order: client {} lost {:?}, which had ended before client {} began {:?}, which is there",
                    earlier.client, invisible.op, later.client, visible.op
                ));
            }
        }
    }
    Ok(())
}
