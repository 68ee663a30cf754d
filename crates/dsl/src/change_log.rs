//! Which datasets have changed in names and properties since a moment: a list of them that is kept is read again only where it is out of date.
//!
//! What counts is whether a file system or volume exists, its name, its object, what its properties are set to or inherit, and whether its key
//! is loaded. Space, which every txg changes, does not, nor do snapshots and bookmarks. It does not know what the changes were.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, VecDeque};

use crate::namecheck::split;

/// So many changes are kept; of earlier ones nothing is known but that there were some.
const KEPT_MAX: usize = 1024;

/// The file systems and volumes that a change concerns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Concerned {
    /// None: it is of snapshots, bookmarks or permissions.
    Nothing,
    /// Those named and all below them.
    Subtrees(Vec<String>),
    /// Maybe all of the pool.
    All,
}

impl Concerned {
    /// A dataset and all below it; nothing, if the name is a snapshot's or a bookmark's.
    pub(crate) fn subtree(name: &str) -> Self {
        let parts = split(name);
        if parts.snapshot.is_some() || parts.bookmark.is_some() {
            Self::Nothing
        } else {
            Self::Subtrees(vec![name.to_owned()])
        }
    }
}

/// What has changed since a moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DatasetChanges {
    /// Stands for this moment in the next question. It counts up from 1 as long as the pool is open.
    pub now: u64,
    /// Roots of the subtrees that have changed, none below another; a root that does not exist is gone. `None` is the whole pool.
    pub subtrees: Option<Vec<String>>,
}

/// The changes since a pool was opened.
pub(crate) struct ChangeLog {
    /// The number of the latest change.
    latest: Cell<u64>,
    /// What concerned subtrees, by number.
    kept: RefCell<VecDeque<(u64, String)>>,
    /// The latest change that is not kept: what was read before it is read again as a whole.
    forgotten: Cell<u64>,
}

impl Default for ChangeLog {
    fn default() -> Self {
        Self {
            latest: Cell::new(1),
            kept: RefCell::default(),
            forgotten: Cell::new(1),
        }
    }
}

impl ChangeLog {
    /// Notes a change that was made: each later question is answered with it.
    pub(crate) fn record(&self, concerned: Concerned) {
        let names = match concerned {
            Concerned::Nothing => return,
            Concerned::Subtrees(names) => Some(names),
            Concerned::All => None,
        };
        let number = self.latest.get() + 1;
        self.latest.set(number);
        let mut kept = self.kept.borrow_mut();
        match names {
            Some(names) => kept.extend(names.into_iter().map(|name| (number, name))),
            None => {
                kept.clear();
                self.forgotten.set(number);
            }
        }
        while kept.len() > KEPT_MAX {
            if let Some((number, _)) = kept.pop_front() {
                self.forgotten.set(number);
            }
        }
    }

    /// Returns what has changed since the moment `seen`; 0 has seen nothing.
    pub(crate) fn since(&self, seen: u64) -> DatasetChanges {
        let now = self.latest.get();
        if seen < self.forgotten.get() {
            return DatasetChanges {
                now,
                subtrees: None,
            };
        }
        let kept = self.kept.borrow();
        let new = kept.iter().filter(|(number, _)| *number > seen);
        let names: BTreeSet<&str> = new.map(|(_, name)| name.as_str()).collect();
        let is_below_another = |name: &str| {
            let mut ends = name.match_indices('/').map(|(end, _)| end);
            ends.any(|end| names.contains(&name[..end]))
        };
        let roots = names.iter().filter(|name| !is_below_another(name));
        DatasetChanges {
            now,
            subtrees: Some(roots.map(|name| (*name).to_owned()).collect()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn subtrees(log: &ChangeLog, seen: u64) -> Option<Vec<String>> {
        log.since(seen).subtrees
    }

    fn names(list: &[&str]) -> Option<Vec<String>> {
        Some(list.iter().map(|name| (*name).to_owned()).collect())
    }

    #[test]
    fn what_changed_since_a_moment_is_named_once() {
        let log = ChangeLog::default();
        assert_eq!(subtrees(&log, 0), None);
        let begin = log.since(0).now;
        assert_eq!(subtrees(&log, begin), names(&[]));
        for name in [
            "tank/b/c",
            "tank/a",
            "tank/b",
            "tank/a",
            "tank/ab",
            "tank/a-b/c",
        ] {
            log.record(Concerned::subtree(name));
        }
        assert_eq!(
            subtrees(&log, begin),
            names(&["tank/a", "tank/a-b/c", "tank/ab", "tank/b"])
        );
        let later = log.since(begin).now;
        log.record(Concerned::subtree("tank/a@now"));
        log.record(Concerned::subtree("tank/a#mark"));
        log.record(Concerned::Nothing);
        assert_eq!(log.since(later).now, later);
        log.record(Concerned::subtree("tank/z"));
        assert_eq!(subtrees(&log, later), names(&["tank/z"]));
    }

    #[test]
    fn a_change_of_all_and_one_that_is_not_kept_are_the_whole_pool() {
        let log = ChangeLog::default();
        let begin = log.since(0).now;
        log.record(Concerned::All);
        assert_eq!(subtrees(&log, begin), None);
        let all = log.since(begin).now;
        assert_eq!(subtrees(&log, all), names(&[]));
        for _ in 0..KEPT_MAX {
            log.record(Concerned::subtree("tank/a"));
        }
        assert_eq!(subtrees(&log, all), names(&["tank/a"]));
        log.record(Concerned::subtree("tank/a"));
        assert_eq!(subtrees(&log, all), None);
        assert_eq!(subtrees(&log, all + 1), names(&["tank/a"]));
    }
}
