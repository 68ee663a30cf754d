//! What keeps each snapshot of a dataset, and until when: the policy's classes, and everything else that stands in the way of its end.

use std::collections::BTreeMap;

use engine::property::Value;
use engine::{DatasetFilter, DatasetKind, EngineError, PoolHandle, PropertyQuery};
use jiff::Timestamp;

use super::{Decision, Period, Policy, Reason, SnapshotState, decide, next_boundary, state};
use super::{PolicyError, PolicySource};

/// Snapshots whose holds are asked for in one request.
const HELD_AT_ONCE: usize = 500;

/// A snapshot, and what keeps it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotWhy {
    /// What is to become of it, and why.
    pub decision: Decision,
    /// When the policy lets it go, at the earliest; `None` when it does not, or goes already.
    pub leaves: Option<Timestamp>,
    /// The time before which it is not destroyed, if that is to come.
    pub immutable_until: Option<Timestamp>,
    /// Tags of its holds.
    pub holds: Vec<String>,
    /// Clones that stand on it.
    pub clones: Vec<String>,
    /// Bookmarks of it: increments can go on from them when it is gone.
    pub bookmarks: Vec<String>,
}

impl SnapshotWhy {
    /// Says all of it in one line.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = self.decision.reason.to_string();
        if let Some(leaves) = self.leaves {
            text.push_str(&format!(", until {leaves} at the earliest"));
        }
        let is_said = matches!(self.decision.reason, Reason::Immutable { .. });
        if let Some(until) = self.immutable_until.filter(|_| !is_said) {
            text.push_str(&format!("; immutable until {until}"));
        }
        for (what, names) in [
            ("holds", &self.holds),
            ("clones", &self.clones),
            ("bookmarks", &self.bookmarks),
        ] {
            if !names.is_empty() {
                text.push_str(&format!("; {what}: {}", names.join(", ")));
            }
        }
        text
    }
}

/// Why the snapshots of a dataset cannot be explained.
#[derive(Debug, thiserror::Error)]
pub enum WhyError {
    /// The pool does not answer, or there is no such dataset.
    #[error("{0}")]
    Engine(#[from] EngineError),
    /// The policy cannot be read.
    #[error("bad policy: {0}")]
    Policy(#[from] PolicyError),
}

/// Explains the snapshots of a dataset, or one of them, in the order in which they were taken.
///
/// # Errors
/// There is no such dataset, or it cannot be read; its policy cannot be read.
pub async fn why(
    pool: &PoolHandle,
    dataset: &str,
    wanted: Option<&str>,
    now: Timestamp,
) -> Result<Vec<SnapshotWhy>, WhyError> {
    let state = state(pool, dataset).await?;
    let policy: Policy = match state.source {
        PolicySource::Received => "off".parse()?,
        _ => state.policy.parse()?,
    };
    let mut others = others(pool, dataset).await?;
    let mut found = explain(&policy, &state.snapshots, now);
    found.retain(|why| wanted.is_none_or(|wanted| wanted == why.decision.snapshot));
    let held: Vec<String> = found
        .iter()
        .filter(|why| {
            others
                .get(&why.decision.snapshot)
                .is_some_and(|other| other.held)
        })
        .map(|why| format!("{dataset}@{}", why.decision.snapshot))
        .collect();
    let mut holds: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for part in held.chunks(HELD_AT_ONCE) {
        for hold in pool.holds(part, false).await? {
            holds.entry(hold.snapshot).or_default().push(hold.tag);
        }
    }
    for why in &mut found {
        let full = format!("{dataset}@{}", why.decision.snapshot);
        why.holds = holds.remove(&full).unwrap_or_default();
        if let Some(other) = others.remove(&why.decision.snapshot) {
            why.clones = other.clones;
            why.bookmarks = other.bookmarks;
        }
    }
    Ok(found)
}

/// Decides over snapshots, and says when those that a class keeps leave the last one that does. 100,000 take less than a second.
#[must_use]
pub fn explain(policy: &Policy, snapshots: &[SnapshotState], now: Timestamp) -> Vec<SnapshotWhy> {
    let mut departures = Departures::new(policy, now);
    let mut newest_first: Vec<&SnapshotState> = snapshots.iter().collect();
    newest_first.sort_by_key(|snapshot| std::cmp::Reverse(snapshot.create_txg));
    let mut leaves: Vec<Option<Timestamp>> = newest_first
        .iter()
        .map(|snapshot| departures.of(snapshot))
        .collect();
    leaves.reverse();
    newest_first.reverse();
    let decisions = decide(policy, snapshots, now).into_iter();
    decisions
        .zip(leaves)
        .zip(newest_first)
        .map(|((decision, leaves), snapshot)| SnapshotWhy {
            leaves: leaves.filter(|_| matches!(decision.reason, Reason::Class { .. })),
            immutable_until: snapshot.immutable_until.filter(|until| *until > now),
            holds: Vec::new(),
            clones: Vec::new(),
            bookmarks: Vec::new(),
            decision,
        })
        .collect()
}

/// When snapshots leave the classes of a policy, asked for from the newest on.
struct Departures<'a> {
    policy: &'a Policy,
    /// By name of the class: the period, how many are kept, how many were counted, and the times of snapshots to come.
    classes: BTreeMap<String, (&'a Period, usize, usize, Vec<Timestamp>)>,
    now: Timestamp,
}

impl<'a> Departures<'a> {
    fn new(policy: &'a Policy, now: Timestamp) -> Self {
        let classes = policy.classes.iter().map(|class| {
            let keep = usize::try_from(class.keep).unwrap_or(usize::MAX);
            (class.period.name(), (&class.period, keep, 0, Vec::new()))
        });
        Self {
            policy,
            classes: classes.collect(),
            now,
        }
    }

    /// The moment at which so many younger ones were taken that no class keeps the next snapshot, if none is missed.
    fn of(&mut self, snapshot: &SnapshotState) -> Option<Timestamp> {
        let mut last = None;
        for name in snapshot.classes.iter().flatten() {
            let Some((period, keep, counted, to_come)) = self.classes.get_mut(name) else {
                continue;
            };
            *counted += 1;
            if !self.policy.take || *counted > *keep {
                continue;
            }
            // The first of the class goes when as many as are kept have come after it.
            let missing = *keep - *counted;
            while to_come.len() <= missing {
                let after = to_come.last().copied().unwrap_or(self.now);
                let next = next_boundary(self.policy, period, after)?;
                to_come.push(next);
            }
            last = last.max(to_come.get(missing).copied());
        }
        last
    }
}

/// What a list of snapshots does not tell policies.
#[derive(Default)]
struct Other {
    held: bool,
    clones: Vec<String>,
    bookmarks: Vec<String>,
}

async fn others(pool: &PoolHandle, dataset: &str) -> Result<BTreeMap<String, Other>, EngineError> {
    let filter = DatasetFilter {
        root: dataset.to_owned(),
        depth: Some(1),
        kinds: vec![DatasetKind::Snapshot, DatasetKind::Bookmark],
    };
    let names = ["clones", "userrefs"].map(str::to_owned);
    let listed = pool
        .datasets(&filter, &PropertyQuery::Named(names.to_vec()))
        .await?;
    let mut others: BTreeMap<String, Other> = BTreeMap::new();
    let mut by_guid = BTreeMap::new();
    for info in &listed {
        let Some((_, name)) = info.name.split_once('@') else {
            continue;
        };
        let clones = match info.property("clones").map(|property| &property.value) {
            Some(Value::Text(text)) if !text.is_empty() => {
                text.split(',').map(str::to_owned).collect()
            }
            _ => Vec::new(),
        };
        let holds = info
            .property("userrefs")
            .and_then(|property| property.value.number());
        by_guid.insert(info.guid, name);
        let held = holds.unwrap_or(0) > 0;
        let other = Other {
            held,
            clones,
            bookmarks: Vec::new(),
        };
        others.insert(name.to_owned(), other);
    }
    for info in &listed {
        if let Some((_, bookmark)) = info.name.split_once('#')
            && let Some(name) = by_guid.get(&info.guid)
            && let Some(other) = others.get_mut(*name)
        {
            other.bookmarks.push(format!("#{bookmark}"));
        }
    }
    Ok(others)
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;

    use super::*;

    fn hourly(count: u64, now: Timestamp, classes: &str) -> Vec<SnapshotState> {
        let state = |index: u64| SnapshotState {
            name: format!("s{index}"),
            creation: now - SignedDuration::from_hours(i64::try_from(count - index).expect("few")),
            create_txg: index,
            classes: Some(classes.split(',').map(str::to_owned).collect()),
            immutable_until: None,
            holds: 0,
            has_clones: false,
        };
        (0..count).map(state).collect()
    }

    #[test]
    fn a_snapshot_leaves_when_enough_younger_ones_were_taken() {
        let now: Timestamp = "2026-11-25T12:30:00Z".parse().expect("a time");
        let policy: Policy = "hourly=3".parse().expect("a policy");
        let found = explain(&policy, &hourly(4, now, "hourly"), now);
        let texts: Vec<String> = found.iter().map(SnapshotWhy::text).collect();
        assert_eq!(
            texts,
            [
                "goes: no longer among the newest of hourly",
                "kept: number 3 of the newest 3 hourly, until 2026-11-25T13:00:00Z at the earliest",
                "kept: number 2 of the newest 3 hourly, until 2026-11-25T14:00:00Z at the earliest",
                "kept: number 1 of the newest 3 hourly, until 2026-11-25T15:00:00Z at the earliest",
            ]
        );
    }

    #[test]
    fn immutability_keeps_what_no_class_does() {
        let now: Timestamp = "2026-11-25T12:30:00Z".parse().expect("a time");
        let policy: Policy = "hourly=1".parse().expect("a policy");
        let mut snapshots = hourly(3, now, "hourly");
        // One is immutable still; that of another is over, and its hold does not count.
        snapshots[0].immutable_until = Some("2026-11-26T00:00:00Z".parse().expect("a time"));
        snapshots[0].holds = 1;
        snapshots[1].immutable_until = Some("2026-11-25T00:00:00Z".parse().expect("a time"));
        snapshots[1].holds = 1;
        let found = explain(&policy, &snapshots, now);
        assert_eq!(
            found[0].text(),
            "kept: it is immutable until 2026-11-26T00:00:00Z"
        );
        assert!(found[0].decision.is_kept() && !found[1].decision.is_kept());
    }

    /// 0.5 s on a busy machine of two cores (2026-11-27), most of it for making them up.
    #[test]
    fn a_hundred_thousand_snapshots_are_explained_in_a_moment() {
        let now: Timestamp = "2026-11-25T12:30:00Z".parse().expect("a time");
        let policy: Policy = "hourly=50000 daily=1000".parse().expect("a policy");
        let found = explain(&policy, &hourly(100_000, now, "hourly,daily"), now);
        assert_eq!(
            found.iter().filter(|why| !why.decision.is_kept()).count(),
            50_000
        );
    }
}
