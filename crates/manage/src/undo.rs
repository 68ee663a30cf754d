//! What commands changed, and the commands that undo it.
//!
//! The appliance looks at what a command names before and after it ran; what differs is a [`Plan`], kept with the job. A plan is carried
//! out only while everything is as the command left it. What cannot come back (a destroyed dataset that is in no trash, a rollback, data
//! that was written) has no plan.

use serde::{Deserialize, Serialize};

use crate::accounts::Role;
use crate::commands::{self, GivenWords};

/// Bytes of a plan that are kept; a longer one is not.
pub const PLAN_BYTES_MAX: usize = 16 << 10;

/// Where the value of a property of a dataset comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ValueOrigin {
    /// It was set there.
    Local,
    /// A stream brought it.
    Received,
    /// Neither: the parent's, or the default.
    Unset,
}

/// A property of a dataset at a moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PropertyState {
    /// The value in force, as `zfs get -p` shows it; empty for one that is not there.
    pub value: String,
    /// Where it comes from.
    pub origin: ValueOrigin,
}

impl PropertyState {
    /// Whether both are the same setting. What an unset property is in force follows the parent, and is no setting.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        self.origin == other.origin
            && (self.origin != ValueOrigin::Local || self.value == other.value)
    }
}

/// One thing that a command changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum UndoableChange {
    /// A property of a dataset.
    Property {
        /// The dataset.
        dataset: String,
        /// The property's stored name.
        name: String,
        /// Whether it can be inherited; another is set to its default.
        inheritable: bool,
        /// What it was.
        before: PropertyState,
        /// What it is.
        after: PropertyState,
    },
    /// A property of a pool.
    PoolProperty {
        /// The pool.
        pool: String,
        /// The property.
        name: String,
        /// What it was; empty for none.
        before: String,
        /// What it is.
        after: String,
    },
    /// A file system, volume or snapshot came to be.
    Made {
        /// Its name.
        name: String,
        /// Its guid.
        guid: u64,
        /// The transaction group that it was made in.
        txg: u64,
        /// It is a snapshot, and those below of the same name were made with it.
        recursive: bool,
        /// Bytes that it held when it was made, by the sum of its counters; none of a snapshot.
        written_bytes: Option<u64>,
    },
    /// A dataset or snapshot got another name.
    Renamed {
        /// Its old name.
        from: String,
        /// Its name.
        to: String,
        /// Its guid.
        guid: u64,
        /// Snapshots below were renamed with it.
        recursive: bool,
    },
    /// A dataset was destroyed, and is in the trash.
    Trashed {
        /// Its old name.
        from: String,
        /// Its name in the trash.
        entry: String,
        /// Its guid.
        guid: u64,
    },
    /// A limit of the running appliance.
    Tunable {
        /// Its name.
        name: String,
        /// What it was.
        before: u64,
        /// What it is.
        after: u64,
    },
    /// What the log holds: levels as `sanbox log` shows them.
    LogLevels {
        /// What it was.
        before: String,
        /// What it is.
        after: String,
    },
}

impl UndoableChange {
    /// Returns the command that takes it back, without its tool's name in front.
    #[must_use]
    pub fn step(&self) -> GivenWords {
        match self {
            Self::Property {
                dataset,
                name,
                inheritable,
                before,
                ..
            } => match before.origin {
                ValueOrigin::Local => zfs(&["set", &setting(name, &before.value), dataset]),
                ValueOrigin::Received => zfs(&["inherit", "-S", name, dataset]),
                ValueOrigin::Unset if *inheritable => zfs(&["inherit", name, dataset]),
                ValueOrigin::Unset => zfs(&["set", &setting(name, &before.value), dataset]),
            },
            Self::PoolProperty {
                pool, name, before, ..
            } => words("zpool", &["set", &setting(name, before), pool]),
            Self::Made {
                name, recursive, ..
            } => match recursive {
                true => zfs(&["destroy", "-r", name]),
                false => zfs(&["destroy", name]),
            },
            Self::Renamed {
                from,
                to,
                recursive,
                ..
            } => match recursive {
                true => zfs(&["rename", "-r", to, from]),
                false => zfs(&["rename", to, from]),
            },
            Self::Trashed { entry, .. } => words("sanbox", &["trash", "restore", entry]),
            Self::Tunable { name, before, .. } => {
                words("sanbox", &["tune", &setting(name, &before.to_string())])
            }
            Self::LogLevels { before, after } => words("sanbox", &["log", &levels(before, after)]),
        }
    }

    /// Returns what undoing it changes; none of what undoing destroys.
    #[must_use]
    pub fn reversed(&self) -> Option<Self> {
        let mut turned = self.clone();
        match &mut turned {
            Self::Property { before, after, .. } => std::mem::swap(before, after),
            Self::PoolProperty { before, after, .. } | Self::LogLevels { before, after } => {
                std::mem::swap(before, after);
            }
            Self::Renamed { from, to, .. } => std::mem::swap(from, to),
            Self::Tunable { before, after, .. } => std::mem::swap(before, after),
            // A dataset that went into the trash would have another name there.
            Self::Made { .. } | Self::Trashed { .. } => return None,
        }
        Some(turned)
    }
}

fn words(tool: &str, words: &[&str]) -> GivenWords {
    let words = words.iter().map(|word| (*word).to_owned());
    (tool.to_owned(), words.collect())
}

fn zfs(arguments: &[&str]) -> GivenWords {
    words("zfs", arguments)
}

fn setting(name: &str, value: &str) -> String {
    format!("{name}={value}")
}

/// The words that lead from some levels of the log to others: a module that has none of its own then gets that of all.
fn levels(to: &str, from: &str) -> String {
    let all = to.split(',').find(|word| !word.contains('='));
    let all = all.unwrap_or("info");
    let named = |text: &str, module: &str| {
        text.split(',')
            .any(|word| word.split_once('=').is_some_and(|(name, _)| name == module))
    };
    let mut text = to.to_owned();
    for (module, _) in from.split(',').filter_map(|word| word.split_once('=')) {
        if !named(to, module) {
            text.push_str(&format!(",{module}={all}"));
        }
    }
    text
}

/// What one command changed, in its order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Plan(pub Vec<UndoableChange>);

impl Plan {
    /// Returns the commands that undo it, in their order: the last change first.
    #[must_use]
    pub fn steps(&self) -> Vec<GivenWords> {
        self.0.iter().rev().map(UndoableChange::step).collect()
    }

    /// Returns the command lines that undo it, as they are shown.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        let steps = self.steps();
        let line = |(tool, arguments): &GivenWords| commands::line(tool, arguments);
        steps.iter().map(line).collect()
    }

    /// Returns the plan that undoes this one's undoing; none where that destroys something.
    #[must_use]
    pub fn reversed(&self) -> Option<Self> {
        let turned = self.0.iter().rev().map(UndoableChange::reversed);
        turned.collect::<Option<Vec<_>>>().map(Self)
    }

    /// Returns the role that undoing it needs over the API; none where one of the commands cannot be given there.
    #[must_use]
    pub fn role_needed(&self) -> Option<Role> {
        let steps = self.steps();
        let needed = steps
            .iter()
            .map(|(tool, arguments)| commands::role_needed(tool, arguments));
        needed.collect::<Option<Vec<_>>>()?.into_iter().max()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(value: &str, origin: ValueOrigin) -> PropertyState {
        PropertyState {
            value: value.to_owned(),
            origin,
        }
    }

    fn property(name: &str, inheritable: bool, before: PropertyState) -> UndoableChange {
        UndoableChange::Property {
            dataset: "tank/a".to_owned(),
            name: name.to_owned(),
            inheritable,
            before,
            after: state("x", ValueOrigin::Local),
        }
    }

    fn check(change: UndoableChange, line: &str) {
        assert_eq!(Plan(vec![change]).lines(), [line]);
    }

    #[test]
    fn each_change_has_the_command_that_takes_it_back() {
        use ValueOrigin::{Local, Received, Unset};
        check(
            property("compression", true, state("lz4", Local)),
            "zfs set compression=lz4 tank/a",
        );
        check(
            property("compression", true, state("on", Unset)),
            "zfs inherit compression tank/a",
        );
        check(
            property("org.x:y", true, state("1", Received)),
            "zfs inherit -S org.x:y tank/a",
        );
        check(
            property("quota", false, state("0", Unset)),
            "zfs set quota=0 tank/a",
        );
        let made = |name: &str, recursive| UndoableChange::Made {
            name: name.to_owned(),
            guid: 1,
            txg: 2,
            recursive,
            written_bytes: None,
        };
        check(made("tank@x", true), "zfs destroy -r tank@x");
        check(made("tank/b", false), "zfs destroy tank/b");
        let renamed = UndoableChange::Renamed {
            from: "tank/a".to_owned(),
            to: "tank/b c".to_owned(),
            guid: 7,
            recursive: false,
        };
        check(renamed, "zfs rename 'tank/b c' tank/a");
        let levels = UndoableChange::LogLevels {
            before: "info,nfs=warn".to_owned(),
            after: "debug,iscsi=trace,nfs=info".to_owned(),
        };
        check(levels, "sanbox log info,nfs=warn,iscsi=info");
    }

    #[test]
    fn the_last_change_is_taken_back_first_and_what_was_undone_can_be_done_again() {
        let limit = |name: &str, before, after| UndoableChange::Tunable {
            name: name.to_owned(),
            before,
            after,
        };
        let plan = Plan(vec![limit("a", 1, 2), limit("b", 3, 4)]);
        assert_eq!(plan.lines(), ["sanbox tune b=3", "sanbox tune a=1"]);
        let again = plan.reversed().expect("nothing is destroyed");
        assert_eq!(again.lines(), ["sanbox tune a=2", "sanbox tune b=4"]);
        assert_eq!(plan.role_needed(), Some(Role::Owner));
        let text = serde_json::to_string(&plan).expect("plain data");
        assert_eq!(serde_json::from_str::<Plan>(&text).expect("read"), plan);
    }

    #[test]
    fn what_is_not_set_there_is_no_setting() {
        use ValueOrigin::{Local, Unset};
        assert!(state("a", Unset).is_same(&state("b", Unset)));
        assert!(!state("a", Local).is_same(&state("b", Local)));
        assert!(!state("a", Local).is_same(&state("a", Unset)));
    }
}
