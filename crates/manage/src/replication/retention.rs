//! Which snapshots of a target a job keeps, whatever the source keeps: the first of each period of a policy's classes, so many of them.
//!
//! The classes are computed from the times at which the snapshots were taken at the source, so that it does not matter by whom: what the source
//! called them, and whether it has them still, plays no part.

use jiff::Timestamp;

use super::{Point, ReplicaDataset};
use crate::policy::{self, Policy, SnapshotState};

/// Returns the names of a target's snapshots that go, the oldest first: of those that the job sent, and never the newest common one, nor what
/// came after it.
pub(super) fn expired(
    policy: &Policy,
    copy: &ReplicaDataset,
    newest: &Point,
    now: Timestamp,
) -> Vec<String> {
    let adopted_txg = copy.mark.as_ref().map_or(u64::MAX, |mark| mark.adopted_txg);
    let mut last: Vec<Option<Timestamp>> = vec![None; policy.classes.len()];
    let mut states = Vec::with_capacity(copy.snapshots.len());
    let sent = copy.snapshots.iter();
    for point in
        sent.filter(|point| point.create_txg > adopted_txg && point.create_txg < newest.create_txg)
    {
        let creation = Timestamp::from_second(point.creation).unwrap_or(Timestamp::MAX);
        let mut classes = Vec::new();
        for (class, last) in policy.classes.iter().zip(&mut last) {
            let begin = policy::latest_boundary(policy, &class.period, creation);
            if begin != *last {
                *last = begin;
                classes.push(class.period.name());
            }
        }
        states.push(SnapshotState {
            name: point.name.clone(),
            creation,
            create_txg: point.create_txg,
            classes: Some(classes),
            // A hold stands beside it, which the target counts.
            immutable_until: None,
            holds: point.holds,
            has_clones: false,
        });
    }
    let decisions = policy::decide(policy, &states, now);
    decisions
        .into_iter()
        .filter(|decision| !decision.is_kept())
        .map(|decision| decision.snapshot)
        .collect()
}

#[cfg(test)]
mod tests {
    use engine::DatasetKind;

    use super::super::Mark;
    use super::*;

    #[test]
    fn the_first_of_each_period_stays_and_nothing_of_others_goes() {
        let start: Timestamp = "2026-11-01T00:00:00Z".parse().expect("a time");
        let mut copy = ReplicaDataset::new("back/a".to_owned(), 1, DatasetKind::Filesystem);
        // Ten days of snapshots each six hours.
        copy.snapshots = (0..40)
            .map(|index| Point {
                name: format!("s{index}"),
                guid: index,
                create_txg: 100 + index,
                holds: u64::from(index == 3),
                creation: start.as_second() + i64::try_from(index).expect("small") * 6 * 3600,
            })
            .collect();
        copy.mark = Some(Mark {
            job: "j".to_owned(),
            source_guid: 7,
            adopted_txg: 101,
        });
        let policy: Policy = "daily=3 weekly=2 zone=UTC".parse().expect("a policy");
        let newest = copy.snapshots[39].clone();
        let now = "2026-11-11T00:00:00Z".parse().expect("a time");
        let goes = expired(&policy, &copy, &newest, now);
        let stays: Vec<&str> = copy
            .snapshots
            .iter()
            .map(|point| point.name.as_str())
            .filter(|name| !goes.iter().any(|gone| gone == name))
            .collect();
        // Of before the adoption s0 and s1; held s3; the first of the two weeks, s4 and s32 (Mondays); of three days; the newest.
        assert_eq!(stays, ["s0", "s1", "s3", "s4", "s28", "s32", "s36", "s39"]);
        // Without a mark nothing was sent by a job.
        copy.mark = None;
        assert!(expired(&policy, &copy, &newest, now).is_empty());
    }
}
