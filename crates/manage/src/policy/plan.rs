//! What the policies of a pool ask for at a moment: computed from what exists, and nothing else.

use std::collections::BTreeMap;

use jiff::Timestamp;

use super::retention::CLOCK_SLACK;
use super::{Decision, Period, Policy, SnapshotState, decide, latest_boundary, next_boundary};

/// Where a dataset's policy comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PolicySource {
    /// Set on this dataset.
    Local,
    /// Set on the ancestor of this name.
    Inherited(String),
    /// It came with a received stream, here or at an ancestor: it is not in force.
    Received,
}

/// A dataset that has the property.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DatasetState {
    /// Full name.
    pub name: String,
    /// The value of the property.
    pub policy: String,
    /// Where that comes from.
    pub source: PolicySource,
    /// Bytes written since the newest snapshot.
    pub written_bytes: u64,
    /// Its snapshots, in any order.
    pub snapshots: Vec<SnapshotState>,
}

/// Snapshots to be taken in one txg.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SnapshotGroup {
    /// Full names.
    pub names: Vec<String>,
    /// Snapshots that have one of these names, by full name, and the names that they get before: where names move on.
    pub renames: Vec<(String, String)>,
    /// Their classes, separated by commas: the value of [`super::CLASSES_PROPERTY`].
    pub classes: String,
    /// Hours for which they are not destroyed; 0: no such time.
    pub immutable_hours: u32,
    /// Hooks of their policies, sorted, each once: they run around the whole group, which stays one moment.
    pub hooks: Vec<String>,
}

/// What is to be done now, and when to look again.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Plan {
    /// What is to be taken.
    pub take: Vec<SnapshotGroup>,
    /// What is to be destroyed, by full name, the oldest of each dataset first.
    pub destroy: Vec<String>,
    /// What a person must mend: the dataset, and why nothing is done for it.
    pub problems: Vec<(String, String)>,
    /// The next moment at which something is due; `None` where nothing ever is.
    pub next: Option<Timestamp>,
}

/// Computes what is due for the datasets of one pool.
#[must_use]
pub fn plan(datasets: &[DatasetState], now: Timestamp) -> Plan {
    let mut plan = Plan::default();
    let mut groups = Groups::new();
    for dataset in datasets {
        if dataset.source == PolicySource::Received {
            continue;
        }
        let policy: Policy = match dataset.policy.parse() {
            Ok(policy) => policy,
            Err(error) => {
                let why = format!("the policy '{}' cannot be read: {error}", dataset.policy);
                plan.problems.push((dataset.name.clone(), why));
                continue;
            }
        };
        if policy.take {
            let next = policy
                .classes
                .iter()
                .filter_map(|class| next_boundary(&policy, &class.period, now))
                .min();
            plan.next = [plan.next, next].into_iter().flatten().min();
            take(dataset, &policy, now, &mut groups, &mut plan.problems);
        }
        let decisions = decide(&policy, &dataset.snapshots, now);
        let expired = decisions.into_iter().filter(|decision| !decision.is_kept());
        let name = |decision: Decision| format!("{}@{}", dataset.name, decision.snapshot);
        plan.destroy.extend(expired.map(name));
    }
    plan.take = groups
        .into_iter()
        .map(|((_, classes, immutable_hours), mut group)| {
            group.classes = classes;
            group.immutable_hours = immutable_hours;
            group.hooks.sort();
            group.hooks.dedup();
            group
        })
        .collect();
    plan
}

/// Groups by the snapshot's name, its classes and the hours for which it is immutable.
type Groups = BTreeMap<(String, String, u32), SnapshotGroup>;

/// Adds what is due for one dataset to the groups.
fn take(
    dataset: &DatasetState,
    policy: &Policy,
    now: Timestamp,
    groups: &mut Groups,
    problems: &mut Vec<(String, String)>,
) {
    let due: Vec<&Period> = policy
        .classes
        .iter()
        .map(|class| &class.period)
        .filter(|period| is_due(dataset, policy, period, now))
        .collect();
    let Some(longest) = due.last() else {
        return;
    };
    if policy.skip_unchanged && dataset.written_bytes == 0 && !dataset.snapshots.is_empty() {
        return;
    }
    let name = policy.naming.snapshot_name(longest, now, &policy.zone);
    let mut of_name = dataset.snapshots.iter();
    let standing = of_name.find(|snapshot| snapshot.name == name);
    let settled = standing.and_then(|standing| settled_name(dataset, policy, standing));
    if standing.is_some() && settled.is_none() {
        let why = format!(
            "the snapshot '{name}' exists already, and is not one of this policy's; 'naming' chooses other names"
        );
        problems.push((dataset.name.clone(), why));
        return;
    }
    let classes: Vec<String> = due.into_iter().map(Period::name).collect();
    let full = format!("{}@{name}", dataset.name);
    let group = groups
        .entry((name, classes.join(","), policy.immutable_hours))
        .or_default();
    let renamed = settled.map(|settled| (full.clone(), format!("{}@{settled}", dataset.name)));
    group.renames.extend(renamed);
    group.names.push(full);
    group.hooks.extend(policy.hooks.iter().cloned());
}

/// The name that a snapshot gets whose name moves on to the next one. Two of a minute (the clock was set back) are told apart by their txgs.
fn settled_name(
    dataset: &DatasetState,
    policy: &Policy,
    standing: &SnapshotState,
) -> Option<String> {
    // What no policy took is not touched.
    standing.classes.as_ref()?;
    let name = &standing.name;
    let settled = policy
        .naming
        .settled_name(name, standing.creation, &policy.zone)?;
    let other = format!("{settled}-{}", standing.create_txg);
    let is_free = |name: &String| dataset.snapshots.iter().all(|one| one.name != *name);
    [settled, other].into_iter().find(is_free)
}

/// Whether the period that `now` is in has no snapshot yet. Snapshots ahead of the clock do not count: after the clock was set back to the
/// right time, they would else stand for every period until their time comes.
fn is_due(dataset: &DatasetState, policy: &Policy, period: &Period, now: Timestamp) -> bool {
    let Some(start) = latest_boundary(policy, period, now) else {
        return false;
    };
    let end = now.saturating_add(CLOCK_SLACK).unwrap_or(Timestamp::MAX);
    let class = period.name();
    !dataset.snapshots.iter().any(|snapshot| {
        let is_of_class = snapshot
            .classes
            .as_ref()
            .is_some_and(|classes| classes.contains(&class));
        is_of_class && (start..=end).contains(&snapshot.creation)
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use jiff::{SignedDuration, ToSpan as _};

    use super::*;

    fn dataset(name: &str, policy: &str) -> DatasetState {
        DatasetState {
            name: name.to_owned(),
            policy: policy.to_owned(),
            source: PolicySource::Local,
            written_bytes: 1,
            snapshots: Vec::new(),
        }
    }

    /// Does what the plan says, as the pool would; returns how many snapshots were taken.
    fn apply(datasets: &mut [DatasetState], plan: &Plan, now: Timestamp, txg: &mut u64) -> usize {
        *txg += 1;
        let mut taken = 0;
        for group in &plan.take {
            rename(datasets, group);
            for full in &group.names {
                let (name, snapshot) = full.split_once('@').expect("a snapshot");
                let dataset = datasets
                    .iter_mut()
                    .find(|dataset| dataset.name == name)
                    .expect("a dataset");
                dataset.snapshots.push(SnapshotState {
                    name: snapshot.to_owned(),
                    creation: now,
                    create_txg: *txg,
                    classes: Some(group.classes.split(',').map(str::to_owned).collect()),
                    immutable_until: None,
                    holds: 0,
                    has_clones: false,
                });
                taken += 1;
            }
        }
        let gone: BTreeSet<&String> = plan.destroy.iter().collect();
        for dataset in datasets {
            let name = dataset.name.clone();
            dataset
                .snapshots
                .retain(|snapshot| !gone.contains(&format!("{name}@{}", snapshot.name)));
        }
        taken
    }

    /// Gives snapshots the names that they get before others are taken.
    fn rename(datasets: &mut [DatasetState], group: &SnapshotGroup) {
        for (from, to) in &group.renames {
            let (name, before) = from.split_once('@').expect("a snapshot");
            let dataset = datasets.iter_mut().find(|dataset| dataset.name == name);
            let mut snapshots = dataset.expect("a dataset").snapshots.iter_mut();
            let snapshot = snapshots.find(|snapshot| snapshot.name == before);
            let (_, after) = to.split_once('@').expect("a snapshot");
            after.clone_into(&mut snapshot.expect("a snapshot").name);
        }
    }

    fn names(dataset: &DatasetState) -> Vec<&str> {
        let names = dataset.snapshots.iter().map(|one| one.name.as_str());
        names.collect()
    }

    fn at(text: &str) -> Timestamp {
        text.parse().expect("a time")
    }

    /// The process ends between the two steps: after the rename, where the next round takes what is missing and renames nothing more; and
    /// after the new one was taken, where there is nothing to do.
    #[test]
    fn a_name_moves_on_whenever_the_process_ends() {
        let mut datasets = [dataset("tank/a", "daily=2 naming=seed-latest")];
        let (mut txg, monday) = (0, at("2026-11-23T02:00:00Z"));
        let todo = plan(&datasets, monday);
        assert!(todo.take[0].renames.is_empty());
        apply(&mut datasets, &todo, monday, &mut txg);
        assert_eq!(names(&datasets[0]), ["snap-daily-1-latest"]);
        let tuesday = at("2026-11-24T02:00:00Z");
        let todo = plan(&datasets, tuesday);
        let renamed = "tank/a@snap-daily-1-2026-11-23-0200".to_owned();
        let renames = [("tank/a@snap-daily-1-latest".to_owned(), renamed)];
        assert_eq!(todo.take[0].renames, renames);
        rename(&mut datasets, &todo.take[0]);

        let todo = plan(&datasets, tuesday);
        assert!(todo.take[0].renames.is_empty() && todo.destroy.is_empty());
        assert_eq!(todo.take[0].names, ["tank/a@snap-daily-1-latest"]);
        apply(&mut datasets, &todo, tuesday, &mut txg);
        let both = ["snap-daily-1-2026-11-23-0200", "snap-daily-1-latest"];
        assert_eq!(names(&datasets[0]), both);

        let todo = plan(&datasets, tuesday);
        assert!(todo.take.is_empty() && todo.destroy.is_empty());
        // Counted once each: the third pushes the first out.
        let wednesday = at("2026-11-25T02:00:00Z");
        let todo = plan(&datasets, wednesday);
        apply(&mut datasets, &todo, wednesday, &mut txg);
        assert_eq!(
            plan(&datasets, wednesday).destroy,
            ["tank/a@snap-daily-1-2026-11-23-0200"]
        );
        // One that somebody made by hand keeps its name.
        datasets[0].snapshots[2].classes = None;
        let todo = plan(&datasets, at("2026-11-26T02:00:00Z"));
        assert!(todo.take.is_empty() && todo.problems.len() == 1);
    }

    #[test]
    fn one_snapshot_serves_all_classes_that_are_due_and_all_datasets_at_once() {
        let datasets = [
            dataset("tank/a", "hourly=2 daily=2 hook=db"),
            dataset("tank/b", "hourly=2 daily=2"),
        ];
        let first = plan(&datasets, at("2026-11-25T02:15:00Z"));
        let expected = SnapshotGroup {
            names: vec![
                "tank/a@auto-20261125T021500Z".to_owned(),
                "tank/b@auto-20261125T021500Z".to_owned(),
            ],
            renames: Vec::new(),
            classes: "hourly,daily".to_owned(),
            immutable_hours: 0,
            hooks: vec!["db".to_owned()],
        };
        assert_eq!(first.take, [expected]);
        assert_eq!(first.next, Some(at("2026-11-25T03:00:00Z")));
    }

    /// The appliance was off for 30 days, was restarted every seven minutes, and its clock jumped: never more than one snapshot a period,
    /// and never more than the policy keeps.
    #[test]
    fn nothing_makes_it_run_amok() {
        let mut datasets = [dataset("tank/a", "hourly=24 daily=7 monthly=2")];
        let (mut now, mut txg) = (at("2026-01-01T00:00:30Z"), 0);
        let mut taken = 0;
        for round in 0..20_000 {
            let todo = plan(&datasets, now);
            taken += apply(&mut datasets, &todo, now, &mut txg);
            let todo = plan(&datasets, now);
            assert!(todo.take.is_empty(), "{round}: {now}: {todo:?}");
            apply(&mut datasets, &todo, now, &mut txg);
            assert!(
                datasets[0].snapshots.len() <= 24 + 7 + 2 + 2,
                "{round}: {now}"
            );
            now = match round {
                5000 => now + SignedDuration::from_hours(24 * 30),
                // The clock says 2050 for a while, and is set right again.
                9000 => now + SignedDuration::from_hours(24 * 365 * 20),
                9003 => now - SignedDuration::from_hours(24 * 365 * 20),
                _ => now.checked_add(7.minutes()).expect("a time"),
            };
        }
        // 97 days of hours and a few starts: not one more.
        let hours = 20_000 * 7 / 60 + 6;
        assert!(
            (hours - 10..=hours + 3).contains(&taken),
            "{taken} of {hours}"
        );
    }

    #[test]
    fn snapshots_of_the_future_neither_count_nor_go() {
        let mut datasets = [dataset("tank/a", "daily=2")];
        let mut txg = 0;
        let future = at("2050-01-01T10:00:00Z");
        let todo = plan(&datasets, future);
        assert_eq!(apply(&mut datasets, &todo, future, &mut txg), 1);
        for day in 1..=5 {
            let now = at(&format!("2026-11-0{day}T10:00:00Z"));
            let todo = plan(&datasets, now);
            assert_eq!(apply(&mut datasets, &todo, now, &mut txg), 1, "{now}");
        }
        assert_eq!(datasets[0].snapshots.len(), 4, "{datasets:?}");
    }

    #[test]
    fn received_and_unreadable_policies_and_strangers_are_left_alone() {
        let mut received = dataset("tank/a", "hourly=1");
        received.source = PolicySource::Received;
        let mut stranger = dataset("tank/c", "hourly=1");
        let now = at("2026-11-25T02:15:00Z");
        stranger.snapshots.push(SnapshotState {
            name: "auto-20261125T021500Z".to_owned(),
            creation: now,
            create_txg: 1,
            classes: None,
            immutable_until: None,
            holds: 0,
            has_clones: false,
        });
        let plan = plan(&[received, dataset("tank/b", "hourly"), stranger], now);
        assert_eq!((plan.take, plan.destroy), (Vec::new(), Vec::new()));
        let names: Vec<&str> = plan
            .problems
            .iter()
            .map(|(name, _)| name.as_str())
            .collect();
        assert_eq!(names, ["tank/b", "tank/c"]);
    }

    #[test]
    fn unchanged_datasets_are_skipped_where_that_is_wanted() {
        let mut datasets = [
            dataset("tank/a", "hourly=3 unchanged=skip"),
            dataset("tank/b", "hourly=3"),
        ];
        let mut txg = 0;
        for hour in 1..=5 {
            for dataset in &mut datasets {
                dataset.written_bytes = u64::from(hour == 1 || hour == 4);
            }
            let now = at(&format!("2026-11-25T0{hour}:00:00Z"));
            let todo = plan(&datasets, now);
            apply(&mut datasets, &todo, now, &mut txg);
        }
        let names = |dataset: &DatasetState| {
            dataset
                .snapshots
                .iter()
                .map(|s| s.name[14..16].to_owned())
                .collect::<Vec<_>>()
        };
        assert_eq!(names(&datasets[0]), ["01", "04"]);
        assert_eq!(
            datasets[1].snapshots.len(),
            4,
            "the fifth is taken before the oldest goes"
        );
    }

    #[test]
    fn a_hundred_thousand_snapshots_are_decided_in_a_moment() {
        let mut big = dataset("tank/a", "hourly=50000");
        let now = at("2026-11-25T02:15:00Z");
        big.snapshots = (0..100_000_u64)
            .map(|index| SnapshotState {
                name: format!("s{index}"),
                creation: now
                    - SignedDuration::from_mins(100_000 - i64::try_from(index).expect("small")),
                create_txg: index,
                classes: Some(vec!["hourly".to_owned()]),
                immutable_until: None,
                holds: 0,
                has_clones: false,
            })
            .collect();
        assert_eq!(plan(&[big], now).destroy.len(), 50_000);
    }
}
