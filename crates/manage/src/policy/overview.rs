//! A dataset's policy at a glance: what it has taken, and when it takes the next.

use jiff::Timestamp;

use super::{DatasetState, Policy, PolicyError, PolicySource, plan};

/// When a policy takes its next snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NextSnapshot {
    /// It takes none: it is `off`, only keeps what arrives, or came with a received stream.
    NotHere,
    /// One is due.
    Now,
    /// At this time.
    At(Timestamp),
    /// Its schedule has no further time.
    Never,
    /// It cannot be read.
    Unreadable(PolicyError),
}

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyOverview {
    /// Snapshots that a policy took.
    pub taken: usize,
    /// When the newest of them was taken.
    pub newest: Option<Timestamp>,
    /// When the next is taken.
    pub next: NextSnapshot,
}

impl PolicyOverview {
    /// Looks at a dataset.
    #[must_use]
    pub fn of(state: &DatasetState, now: Timestamp) -> Self {
        let taken = state.snapshots.iter().filter(|one| one.classes.is_some());
        Self {
            taken: taken.clone().count(),
            newest: taken.map(|one| one.creation).max(),
            next: next(state, now),
        }
    }
}

fn next(state: &DatasetState, now: Timestamp) -> NextSnapshot {
    let policy: Policy = match state.policy.parse() {
        Ok(policy) => policy,
        Err(error) => return NextSnapshot::Unreadable(error),
    };
    if state.source == PolicySource::Received || policy.is_off() || !policy.take {
        return NextSnapshot::NotHere;
    }
    let plan = plan(std::slice::from_ref(state), now);
    match plan.next {
        _ if !plan.take.is_empty() => NextSnapshot::Now,
        Some(next) => NextSnapshot::At(next),
        None => NextSnapshot::Never,
    }
}

#[cfg(test)]
mod tests {
    use super::super::SnapshotState;
    use super::*;

    #[test]
    fn the_next_snapshot_is_by_the_policy_in_force() {
        let time = |text: &str| text.parse::<Timestamp>().expect("a time");
        let now = time("2026-11-25T02:15:00Z");
        let taken = SnapshotState {
            name: "auto-20261125T020000Z".to_owned(),
            creation: time("2026-11-25T02:00:00Z"),
            create_txg: 5,
            classes: Some(vec!["hourly".to_owned()]),
            immutable_until: None,
            holds: 0,
            has_clones: false,
        };
        for (policy, source, snapshots, next) in [
            ("hourly=2", PolicySource::Local, vec![], NextSnapshot::Now),
            (
                "hourly=2",
                PolicySource::Local,
                vec![taken.clone()],
                NextSnapshot::At(time("2026-11-25T03:00:00Z")),
            ),
            (
                "hourly=2",
                PolicySource::Received,
                vec![],
                NextSnapshot::NotHere,
            ),
            (
                "hourly=2 take=no",
                PolicySource::Local,
                vec![],
                NextSnapshot::NotHere,
            ),
            ("off", PolicySource::Local, vec![], NextSnapshot::NotHere),
            (
                "hourly",
                PolicySource::Local,
                vec![],
                NextSnapshot::Unreadable(PolicyError::NotAnAssignment("hourly".to_owned())),
            ),
        ] {
            let count = snapshots.len();
            let state = DatasetState {
                name: "tank/a".to_owned(),
                policy: policy.to_owned(),
                source,
                written_bytes: 1,
                snapshots,
            };
            let found = PolicyOverview::of(&state, now);
            assert_eq!((found.taken, found.next), (count, next), "{policy}");
        }
    }
}
