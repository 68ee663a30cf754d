//! What a policy will have left at a moment to come.

use std::collections::BTreeMap;

use jiff::{Timestamp, ToSpan as _};

use super::{Policy, SnapshotState, latest_boundary};

/// Returns the snapshots of the policy that will exist at `then`, if it is at work all the time from `now` on and every snapshot can be
/// taken: their times, the oldest first, and the classes that keep them. Snapshots that exist now count where they still will.
///
/// What skipping of unchanged datasets leaves out cannot be foreseen, and is in the answer.
#[must_use]
pub fn forecast(
    policy: &Policy,
    snapshots: &[SnapshotState],
    now: Timestamp,
    then: Timestamp,
) -> BTreeMap<Timestamp, Vec<String>> {
    let mut newest_first: Vec<&SnapshotState> = snapshots
        .iter()
        .filter(|snapshot| snapshot.creation <= now)
        .collect();
    newest_first.sort_by_key(|snapshot| std::cmp::Reverse(snapshot.create_txg));
    let mut found: BTreeMap<Timestamp, Vec<String>> = BTreeMap::new();
    for class in &policy.classes {
        let name = class.period.name();
        let mut left = class.keep;
        let mut at = then;
        while left > 0 && policy.take {
            let Some(start) =
                latest_boundary(policy, &class.period, at).filter(|start| *start > now)
            else {
                break;
            };
            found.entry(start).or_default().push(name.clone());
            left -= 1;
            let Ok(before) = start.checked_sub(1.second()) else {
                break;
            };
            at = before;
        }
        let is_of_class = |snapshot: &&&SnapshotState| {
            snapshot
                .classes
                .as_ref()
                .is_some_and(|classes| classes.contains(&name))
        };
        for snapshot in newest_first.iter().filter(is_of_class).take(left as usize) {
            found
                .entry(snapshot.creation)
                .or_default()
                .push(name.clone());
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_will_exist_is_what_retention_leaves() {
        let policy: Policy = "hourly=3 daily=2".parse().expect("a policy");
        let now: Timestamp = "2026-11-25T02:15:00Z".parse().expect("a time");
        let existing = SnapshotState {
            name: "auto-20261124T000000Z".to_owned(),
            creation: "2026-11-24T00:00:00Z".parse().expect("a time"),
            create_txg: 5,
            classes: Some(vec!["daily".to_owned()]),
            immutable_until: None,
            holds: 0,
            has_clones: false,
        };
        let check = |then: &str, expect: &[(&str, &str)]| {
            let then = then.parse().expect("a time");
            let found = forecast(&policy, std::slice::from_ref(&existing), now, then);
            let found: Vec<_> = found
                .iter()
                .map(|(at, classes)| (at.to_string(), classes.join(",")))
                .collect();
            let found: Vec<_> = found
                .iter()
                .map(|(at, classes)| (at.as_str(), classes.as_str()))
                .collect();
            assert_eq!(found, expect, "{then}");
        };
        check(
            "2026-11-25T04:30:00Z",
            &[
                ("2026-11-24T00:00:00Z", "daily"),
                ("2026-11-25T03:00:00Z", "hourly"),
                ("2026-11-25T04:00:00Z", "hourly"),
            ],
        );
        check(
            "2026-11-27T01:30:00Z",
            &[
                ("2026-11-26T00:00:00Z", "daily"),
                ("2026-11-26T23:00:00Z", "hourly"),
                ("2026-11-27T00:00:00Z", "hourly,daily"),
                ("2026-11-27T01:00:00Z", "hourly"),
            ],
        );
    }
}
