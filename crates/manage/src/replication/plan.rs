//! What a job has to send: computed from the points of both sides, and nothing else.

use std::collections::BTreeMap;

use engine::DatasetKind;
use jiff::Timestamp;

use super::{Job, Mark, Point, Refusal, ReplicaDataset};
use crate::policy::settled_name_in_utc;

/// Names of snapshots that a refusal tells.
const TOLD_MAX: usize = 3;

/// What a stream counts from, at the source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StreamFrom {
    /// The snapshot of this name.
    Snapshot(String),
    /// The bookmark of this name.
    Bookmark(String),
}

/// A stream to be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// Name of the snapshot, without the dataset's.
    pub snapshot: String,
    /// Its guid.
    pub guid: u64,
    /// What the stream counts from; `None` for a full one.
    pub from: Option<StreamFrom>,
    /// Resumes the stream that was interrupted.
    pub token: Option<String>,
}

/// What is to be done for a dataset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Work {
    /// Streams are sent, in this order.
    Send(Vec<Step>),
    /// The target has all there is.
    Nothing,
    /// The source has no snapshot that the job is to send.
    NoSnapshots,
    /// A person has to decide.
    Refused(Refusal),
}

/// A dataset of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DatasetPlan {
    /// Full name at the source.
    pub source: String,
    /// Guid of the source's dataset.
    pub source_guid: u64,
    /// File system or volume.
    pub kind: DatasetKind,
    /// Full name at the target.
    pub target: String,
    /// The target does not exist.
    pub is_new: bool,
    /// What an interrupted receive left at the target is of no use any more.
    pub discard_interrupted: bool,
    /// Snapshots of the target that follow the source's in their names before anything is sent, since another one takes theirs: old and new
    /// name, without the dataset's.
    pub renames: Vec<(String, String)>,
    /// The newest point that both have.
    pub common: Option<Point>,
    /// What is to be done.
    pub work: Work,
}

/// What a job has to do.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct TreePlan {
    /// Its datasets, parents first.
    pub datasets: Vec<DatasetPlan>,
    /// Datasets of the target whose source is gone; they are kept.
    pub left: Vec<String>,
}

/// Computes what a job has to send from the datasets of the source, parents first, to those of the target.
#[must_use]
pub fn plan(job: &Job, source: &[ReplicaDataset], target: &[ReplicaDataset]) -> TreePlan {
    let by_name: BTreeMap<&str, &ReplicaDataset> = target
        .iter()
        .map(|dataset| (dataset.name.as_str(), dataset))
        .collect();
    let copies: BTreeMap<u64, &str> = target
        .iter()
        .filter_map(|dataset| Some((dataset.mark.as_ref()?.source_guid, dataset.name.as_str())))
        .collect();
    let mut tree = TreePlan::default();
    for dataset in source.iter().filter(|dataset| job.includes(&dataset.name)) {
        let name = job.target_of(&dataset.name);
        let copy = by_name.get(name.as_str()).copied();
        let renamed = copies.get(&dataset.guid).filter(|_| copy.is_none());
        let mut planned = match renamed {
            Some(old) => DatasetPlan::refused(
                dataset,
                &name,
                Refusal::Renamed {
                    dataset: dataset.name.clone(),
                    old: (*old).to_owned(),
                    new: name.clone(),
                },
            ),
            None => plan_dataset(job, dataset, &name, copy),
        };
        // To give up what was never whole is to destroy it.
        let is_given_up =
            |copy: &ReplicaDataset| planned.discard_interrupted && copy.snapshots.is_empty();
        planned.is_new = copy.is_none_or(|copy| is_begun(dataset, copy) || is_given_up(copy));
        if let Some(above) = missing_above(job, &planned, &by_name, &tree) {
            let target = name;
            planned.work = Work::Refused(Refusal::NoneAbove { target, above });
        }
        tree.datasets.push(planned);
    }
    let is_left = |dataset: &&ReplicaDataset| {
        let mark = dataset.mark.as_ref().filter(|mark| mark.job == job.name);
        mark.is_some_and(|mark| !source.iter().any(|known| known.guid == mark.source_guid))
    };
    tree.left = target
        .iter()
        .filter(is_left)
        .map(|dataset| dataset.name.clone())
        .collect();
    tree
}

/// Returns the dataset that a new one is to be made in, where it is not there and will not be when its turn comes: the source of that one
/// has no snapshot, say.
fn missing_above(
    job: &Job,
    planned: &DatasetPlan,
    target: &BTreeMap<&str, &ReplicaDataset>,
    tree: &TreePlan,
) -> Option<String> {
    if !planned.is_new || planned.steps().is_empty() || planned.target == job.target_root() {
        return None;
    }
    let (above, _) = planned.target.rsplit_once('/')?;
    let is_made = || {
        let mut earlier = tree.datasets.iter().rev();
        earlier.any(|earlier| earlier.target == above && !earlier.steps().is_empty())
    };
    (!target.contains_key(above) && !is_made()).then(|| above.to_owned())
}

impl DatasetPlan {
    fn of(source: &ReplicaDataset, target: &str, work: Work) -> Self {
        Self {
            source: source.name.clone(),
            source_guid: source.guid,
            kind: source.kind,
            target: target.to_owned(),
            is_new: false,
            discard_interrupted: false,
            renames: Vec::new(),
            common: None,
            work,
        }
    }

    fn refused(source: &ReplicaDataset, target: &str, refusal: Refusal) -> Self {
        Self::of(source, target, Work::Refused(refusal))
    }

    /// Streams that are to be sent.
    #[must_use]
    pub fn steps(&self) -> &[Step] {
        match &self.work {
            Work::Send(steps) => steps,
            _ => &[],
        }
    }
}

fn plan_dataset(
    job: &Job,
    source: &ReplicaDataset,
    target: &str,
    copy: Option<&ReplicaDataset>,
) -> DatasetPlan {
    let wanted: Vec<&Point> = source
        .snapshots
        .iter()
        .filter(|point| job.selects(&point.name))
        .collect();
    let Some(copy) = copy else {
        let steps = steps_after(job, &wanted, None);
        let work = if steps.is_empty() {
            Work::NoSnapshots
        } else {
            Work::Send(steps)
        };
        return DatasetPlan::of(source, target, work);
    };
    let refuse = |refusal| DatasetPlan::refused(source, target, refusal);
    if let Err(refusal) = check_mark(job, source, copy) {
        return refuse(refusal);
    }
    let resumed = copy
        .interrupted
        .as_ref()
        .and_then(|rest| resume(source, rest));
    let common = newest_common(source, copy);
    if common.is_none() && !copy.snapshots.is_empty() {
        return refuse(Refusal::NothingInCommon {
            dataset: source.name.clone(),
            target: target.to_owned(),
        });
    }
    if let Some((common, _)) = &common
        && let Err(refusal) = check_unchanged(job, copy, common)
    {
        return refuse(refusal);
    }
    let mut steps = Vec::new();
    let base = match &resumed {
        Some((step, point)) => {
            steps.push(step.clone());
            Some((*point, StreamFrom::Snapshot(point.name.clone())))
        }
        None => common.clone().map(|(_, at_source)| at_source),
    };
    steps.extend(steps_after(job, &wanted, base));
    let renames = match renames(source, copy, &steps) {
        Ok(renames) => renames,
        Err(snapshot) => {
            let target = target.to_owned();
            return refuse(Refusal::NameTaken { target, snapshot });
        }
    };
    let work = match (steps.is_empty(), wanted.is_empty() && common.is_none()) {
        (false, _) => Work::Send(steps),
        (true, true) => Work::NoSnapshots,
        (true, false) => Work::Nothing,
    };
    DatasetPlan {
        discard_interrupted: copy.interrupted.is_some() && resumed.is_none(),
        renames,
        common: common.map(|(point, _)| point.clone()),
        ..DatasetPlan::of(source, target, work)
    }
}

/// Returns what the snapshots of a copy are called from now on that have the names of some to be sent: as the same ones at the source, which
/// were renamed there; where the source has them no more, by the time that a moving name stood for.
///
/// # Errors
/// The name of a snapshot to be sent that stays taken.
fn renames(
    source: &ReplicaDataset,
    copy: &ReplicaDataset,
    steps: &[Step],
) -> Result<Vec<(String, String)>, String> {
    let mut renames: Vec<(String, String)> = Vec::new();
    for step in steps {
        let mut points = copy.snapshots.iter();
        let Some(point) = points.find(|point| point.name == step.snapshot) else {
            continue;
        };
        let mut originals = source.snapshots.iter();
        let name = match originals.find(|original| original.guid == point.guid) {
            Some(original) => Some(original.name.clone()),
            None => Timestamp::from_second(point.creation)
                .ok()
                .and_then(|creation| settled_name_in_utc(&point.name, creation)),
        };
        let is_free = |name: &String| {
            copy.snapshots.iter().all(|known| known.name != *name)
                && steps.iter().all(|step| step.snapshot != *name)
                && renames.iter().all(|(_, known)| known != name)
        };
        match name.filter(is_free) {
            Some(name) => renames.push((point.name.clone(), name)),
            None => return Err(step.snapshot.clone()),
        }
    }
    Ok(renames)
}

/// Whether the job may add to a dataset that exists at the target.
fn check_mark(job: &Job, source: &ReplicaDataset, copy: &ReplicaDataset) -> Result<(), Refusal> {
    let target = copy.name.clone();
    match &copy.mark {
        Some(Mark { job: other, .. }) if *other != job.name => Err(Refusal::OtherJob {
            target,
            job: other.clone(),
        }),
        Some(Mark { source_guid, .. }) if *source_guid != source.guid => {
            Err(Refusal::NothingInCommon {
                dataset: source.name.clone(),
                target,
            })
        }
        Some(_) => check_in_use(job, copy),
        None if is_begun(source, copy) => Ok(()),
        None => Err(Refusal::NotAdopted { target }),
    }
}

/// Refuses what would change a copy that is in use in place of its source, but for bringing back what was written there.
pub(super) fn check_in_use(job: &Job, copy: &ReplicaDataset) -> Result<(), Refusal> {
    let is_own = copy.mark.as_ref().is_some_and(|mark| mark.job == job.name);
    if job.reversed || !copy.is_in_use() || !is_own {
        return Ok(());
    }
    Err(Refusal::FailedOver {
        target: copy.name.clone(),
        job: job.name.clone(),
    })
}

/// Whether a dataset at the target is what an interrupted first stream of the source left, without a mark: the mark is written in a
/// transaction group behind the one that makes the dataset, and the target may have ended in between. Nothing else is in it.
fn is_begun(source: &ReplicaDataset, copy: &ReplicaDataset) -> bool {
    let of_source = |guid| source.snapshots.iter().any(|point| point.guid == guid);
    copy.mark.is_none()
        && copy.snapshots.is_empty()
        && copy
            .interrupted
            .as_ref()
            .is_some_and(|rest| rest.from_guid.is_none() && of_source(rest.to_guid))
}

/// Whether the newest common point is still the newest state of the target.
pub(super) fn check_unchanged(
    job: &Job,
    copy: &ReplicaDataset,
    common: &Point,
) -> Result<(), Refusal> {
    let by = if job.reversed { "failback" } else { "adopt" };
    let newer = newer_than(copy, common);
    let (target, since) = (copy.name.clone(), common.name.clone());
    if !newer.is_empty() {
        let mut names: Vec<String> = newer
            .iter()
            .map(|point| format!("@{}", point.name))
            .collect();
        let beyond = names.len().saturating_sub(TOLD_MAX);
        names.truncate(TOLD_MAX);
        if beyond > 0 {
            names.push(format!("and {beyond} more"));
        }
        return Err(Refusal::Diverged {
            target,
            since,
            newer: names,
            by,
        });
    }
    if copy.written_bytes > 0 {
        let bytes = copy.written_bytes;
        return Err(Refusal::Written {
            target,
            since,
            bytes,
            by,
        });
    }
    Ok(())
}

/// Returns the snapshots of a target's dataset that came after one of its own.
pub(super) fn newer_than<'a>(copy: &'a ReplicaDataset, common: &Point) -> Vec<&'a Point> {
    copy.snapshots
        .iter()
        .filter(|point| point.create_txg > common.create_txg)
        .collect()
}

/// Returns the newest point that both have: as the target has it, and as the source has it, a snapshot before a bookmark.
pub(super) fn newest_common<'a>(
    source: &'a ReplicaDataset,
    copy: &'a ReplicaDataset,
) -> Option<(&'a Point, (&'a Point, StreamFrom))> {
    let bookmarks = source.bookmarks.iter();
    let bookmarks = bookmarks.map(|point| (point, StreamFrom::Bookmark(point.name.clone())));
    let snapshots = source.snapshots.iter();
    let snapshots = snapshots.map(|point| (point, StreamFrom::Snapshot(point.name.clone())));
    let points: BTreeMap<u64, (&Point, StreamFrom)> = bookmarks
        .chain(snapshots)
        .map(|(point, from)| (point.guid, (point, from)))
        .collect();
    let newest_first = copy.snapshots.iter().rev();
    newest_first
        .into_iter()
        .find_map(|point| Some((point, points.get(&point.guid)?.clone())))
}

/// Returns the step that resumes an interrupted stream, and its snapshot, if the source still has both of its ends.
fn resume<'a>(source: &'a ReplicaDataset, rest: &super::Interrupted) -> Option<(Step, &'a Point)> {
    let to = source
        .snapshots
        .iter()
        .find(|point| point.guid == rest.to_guid)?;
    let of_guid = |points: &[Point], guid| {
        let found = points.iter().find(|point| point.guid == guid);
        found.map(|point| point.name.clone())
    };
    let from = match rest.from_guid {
        None => None,
        Some(guid) => {
            let snapshot = of_guid(&source.snapshots, guid).map(StreamFrom::Snapshot);
            Some(snapshot.or_else(|| of_guid(&source.bookmarks, guid).map(StreamFrom::Bookmark))?)
        }
    };
    let step = Step {
        snapshot: to.name.clone(),
        guid: to.guid,
        from,
        token: Some(rest.token.clone()),
    };
    Some((step, to))
}

/// Returns the streams for the wanted snapshots, in the order in which they were taken, that came after a point of the source; all of them
/// without one.
fn steps_after(job: &Job, wanted: &[&Point], base: Option<(&Point, StreamFrom)>) -> Vec<Step> {
    let after = base.as_ref().map_or(0, |(point, _)| point.create_txg);
    let mut due: Vec<&&Point> = wanted
        .iter()
        .filter(|point| point.create_txg > after)
        .collect();
    if job.newest_only {
        due.drain(..due.len().saturating_sub(1));
    }
    let mut from = base.map(|(_, from)| from);
    let mut steps = Vec::with_capacity(due.len());
    for point in due {
        steps.push(Step {
            snapshot: point.name.clone(),
            guid: point.guid,
            from: from.replace(StreamFrom::Snapshot(point.name.clone())),
            token: None,
        });
    }
    steps
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(name: &str, guid: u64, create_txg: u64) -> Point {
        Point {
            name: name.to_owned(),
            guid,
            create_txg,
            holds: 0,
            creation: 0,
        }
    }

    /// Points from `a1 b2`: name and guid, which is also their order.
    fn points(text: &str) -> Vec<Point> {
        let of = |word: &str| {
            let guid = word[1..].parse().expect("a guid");
            point(word, guid, 10 * (guid + 1))
        };
        text.split_whitespace().map(of).collect()
    }

    fn dataset(name: &str, snapshots: &str, bookmarks: &str) -> ReplicaDataset {
        let mut dataset = ReplicaDataset::new(name.to_owned(), 77, DatasetKind::Filesystem);
        dataset.snapshots = points(snapshots);
        dataset.bookmarks = points(bookmarks);
        dataset
    }

    fn job(line: &str) -> Job {
        let text = format!("name = 'j'\nfrom = 'tank/a'\nto = 'back/a'\n{line}\n");
        toml::from_str(&text).expect("a job")
    }

    /// A dataset of the source and its copy in a case of the table: snapshots; bookmarks; snapshots of the target, `-` for none; what is
    /// to come of it.
    fn of(job: &Job, source: &ReplicaDataset, copy: Option<ReplicaDataset>) -> String {
        let copy: Vec<ReplicaDataset> = copy.into_iter().collect();
        let tree = plan(job, std::slice::from_ref(source), &copy);
        match &tree.datasets[0].work {
            Work::Nothing => "nothing".to_owned(),
            Work::NoSnapshots => "no snapshots".to_owned(),
            Work::Refused(refusal) => super::super::ReplicationError::Refused(refusal.clone())
                .cause()
                .to_owned(),
            Work::Send(steps) => {
                let one = |step: &Step| {
                    let from = match &step.from {
                        None => "full".to_owned(),
                        Some(StreamFrom::Snapshot(name)) => format!("@{name}"),
                        Some(StreamFrom::Bookmark(name)) => format!("#{name}"),
                    };
                    let token = step.token.as_ref().map_or("", |_| "~");
                    format!("{from}>{}{token}", step.snapshot)
                };
                let mut texts: Vec<String> = steps.iter().map(one).collect();
                if tree.datasets[0].discard_interrupted {
                    texts.insert(0, "discard".to_owned());
                }
                texts.join(" ")
            }
        }
    }

    fn marked(mut copy: ReplicaDataset) -> ReplicaDataset {
        copy.mark = Some(Mark {
            job: "j".to_owned(),
            source_guid: 77,
            adopted_txg: 0,
        });
        copy
    }

    #[test]
    fn what_is_sent_follows_from_what_both_have() {
        let table = [
            // source's snapshots, its bookmarks, the target's snapshots, further settings, what comes of it
            ("a1 b2 c3", "", "-", "", "full>a1 @a1>b2 @b2>c3"),
            ("a1 b2 c3", "", "-", "newest_only = true", "full>c3"),
            ("", "", "-", "", "no snapshots"),
            ("a1 b2 c3", "", "a1", "", "@a1>b2 @b2>c3"),
            ("a1 b2 c3", "", "a1 b2 c3", "", "nothing"),
            ("a1 b2 c3", "", "a1", "newest_only = true", "@a1>c3"),
            // The source lost what the target has; a bookmark stands for it.
            ("b2 c3", "a1", "a1", "", "#a1>b2 @b2>c3"),
            ("", "a1", "a1", "", "nothing"),
            // A snapshot is preferred to its bookmark, and the newest common point to older ones.
            ("a1 b2 c3", "a1 b2", "a1 b2", "", "@b2>c3"),
            // Renamed snapshots are the same.
            ("z1 b2", "", "a1", "", "@z1>b2"),
            ("b2 c3", "", "a1", "", "foreign target"),
            ("a1 b2", "", "a1 x9", "", "diverged"),
            ("a1 b2 c3", "", "a1 c9", "", "diverged"),
            ("a1 b2 p3 q4", "", "a1", "select = ['p*', 'a*']", "@a1>p3"),
            ("a1 b2", "", "b0 a1", "", "name taken"),
        ];
        for (snapshots, bookmarks, copy, line, expected) in table {
            let mut source = dataset("tank/a", snapshots, bookmarks);
            let name_taken = expected == "name taken";
            if name_taken {
                source.snapshots[1].name = "b0".to_owned();
            }
            let copy = (copy != "-").then(|| marked(dataset("back/a", copy, "")));
            let case = format!("{snapshots} | {bookmarks} | {copy:?} | {line}");
            assert_eq!(of(&job(line), &source, copy), expected, "{case}");
        }
    }

    /// A name that another snapshot takes at the source is free at the target before that is sent.
    #[test]
    fn copies_follow_their_sources_in_their_names() {
        let latest = |guid: u64| Point {
            creation: 1_295_641_320,
            ..point("snap-daily-1-latest", guid, 10 * (guid + 1))
        };
        let job = job("");
        let planned = |source: &ReplicaDataset, copy: &ReplicaDataset| {
            let copies = [copy.clone()];
            plan(&job, std::slice::from_ref(source), &copies)
                .datasets
                .remove(0)
        };
        let mut copy = marked(dataset("back/a", "", ""));
        copy.snapshots = vec![latest(1)];
        let mut source = dataset("tank/a", "d1", "");
        source.snapshots.push(latest(2));
        let renames = |new: &str| [("snap-daily-1-latest".to_owned(), new.to_owned())];
        assert_eq!(planned(&source, &copy).renames, renames("d1"));
        assert_eq!(
            of(&job, &source, Some(copy.clone())),
            "@d1>snap-daily-1-latest"
        );
        // The source has it no more, but a bookmark.
        let mut lost = dataset("tank/a", "", "m1");
        lost.snapshots.push(latest(2));
        let found = planned(&lost, &copy);
        assert_eq!(found.renames, renames("snap-daily-1-2011-01-21-2022p0000"));
        // Nothing is to be sent: it keeps its name until another one needs that.
        source.snapshots.pop();
        assert!(planned(&source, &copy).renames.is_empty());
        // A name that no other snapshot may have is refused as before.
        let mut taken = dataset("tank/a", "x2", "y1");
        taken.snapshots[0].name = "y".to_owned();
        copy.snapshots = vec![point("y", 1, 20)];
        assert_eq!(of(&job, &taken, Some(copy)), "name taken");
    }

    #[test]
    fn interrupted_streams_go_on_or_are_given_up() {
        let table = [
            // source, bookmarks, target, from, to, what comes of it
            ("a1 b2 c3", "", "", None, 1, "full>a1~ @a1>b2 @b2>c3"),
            ("a1 b2 c3", "", "a1", Some(1), 2, "@a1>b2~ @b2>c3"),
            ("b2 c3", "a1", "a1", Some(1), 2, "#a1>b2~ @b2>c3"),
            // The snapshot that was being sent is gone.
            ("a1 c3", "", "a1", Some(1), 2, "discard @a1>c3"),
            // What it counts from is gone: an older common point is no help, there is none.
            ("b2 c3", "", "a1", Some(1), 2, "foreign target"),
        ];
        for (snapshots, bookmarks, copy, from_guid, to_guid, expected) in table {
            let source = dataset("tank/a", snapshots, bookmarks);
            let mut copy = marked(dataset("back/a", copy, ""));
            copy.interrupted = Some(Interrupted {
                token: "1-abc".to_owned(),
                from_guid,
                to_guid,
            });
            assert_eq!(of(&job(""), &source, Some(copy)), expected, "{snapshots}");
        }
    }

    use super::super::Interrupted;

    #[test]
    fn a_first_stream_that_ended_before_the_mark_was_written_goes_on() {
        let source = dataset("tank/a", "a1 b2", "");
        let begun = |snapshots, from_guid, to_guid| {
            let mut copy = dataset("back/a", snapshots, "");
            copy.interrupted = Some(Interrupted {
                token: "1-abc".to_owned(),
                from_guid,
                to_guid,
            });
            copy
        };
        let tree = plan(
            &job(""),
            std::slice::from_ref(&source),
            &[begun("", None, 1)],
        );
        assert!(tree.datasets[0].is_new, "the mark is still to be written");
        assert_eq!(
            of(&job(""), &source, Some(begun("", None, 1))),
            "full>a1~ @a1>b2"
        );
        // Streams of other sources, and into datasets of others.
        for copy in [
            begun("", None, 9),
            begun("", Some(1), 2),
            begun("a1", None, 1),
        ] {
            assert_eq!(of(&job(""), &source, Some(copy)), "foreign target");
        }
    }

    #[test]
    fn targets_of_others_and_targets_that_were_written_to_are_left_alone() {
        let source = dataset("tank/a", "a1 b2", "");
        let unmarked = dataset("back/a", "a1", "");
        assert_eq!(
            of(&job(""), &source, Some(unmarked.clone())),
            "foreign target"
        );
        let mut other = marked(unmarked.clone());
        other.mark.as_mut().expect("marked").job = "k".to_owned();
        assert_eq!(of(&job(""), &source, Some(other)), "other job");
        let mut elsewhere = marked(unmarked.clone());
        elsewhere.mark.as_mut().expect("marked").source_guid = 78;
        assert_eq!(of(&job(""), &source, Some(elsewhere)), "foreign target");
        let mut in_use = marked(unmarked.clone());
        in_use.identity = "77".parse().ok();
        assert_eq!(of(&job(""), &source, Some(in_use)), "failed over");
        let mut written = marked(unmarked);
        written.written_bytes = 512;
        assert_eq!(of(&job(""), &source, Some(written)), "diverged");
    }

    #[test]
    fn trees_with_exclusions_renames_and_datasets_that_are_gone() {
        let job = job("recursive = true\nexclude = ['tank/a/tmp']");
        let mut source = vec![
            dataset("tank/a", "a1", ""),
            dataset("tank/a/new", "a1", ""),
            dataset("tank/a/tmp", "a1", ""),
            dataset("tank/a/tmp/x", "a1", ""),
        ];
        for (guid, dataset) in source.iter_mut().enumerate() {
            dataset.guid = guid as u64;
        }
        let marked = |name: &str, source_guid| {
            let mut copy = dataset(name, "a1", "");
            copy.mark = Some(Mark {
                job: "j".to_owned(),
                source_guid,
                adopted_txg: 0,
            });
            copy
        };
        let target = [
            marked("back/a", 0),
            marked("back/a/gone", 99),
            marked("back/a/old", 1),
        ];
        let tree = plan(&job, &source, &target);
        let names: Vec<&str> = tree
            .datasets
            .iter()
            .map(|dataset| dataset.target.as_str())
            .collect();
        assert_eq!(names, ["back/a", "back/a/new"]);
        assert_eq!(tree.datasets[0].work, Work::Nothing);
        let Work::Refused(refusal) = &tree.datasets[1].work else {
            unreachable!("{tree:?}");
        };
        assert!(
            refusal
                .to_string()
                .contains("'zfs rename back/a/old back/a/new'"),
            "{refusal}"
        );
        assert_eq!(tree.left, ["back/a/gone"]);
        // Only the dataset itself, without -r.
        let single = Job {
            recursive: false,
            ..job
        };
        assert_eq!(plan(&single, &source, &target).datasets.len(), 1);
    }

    #[test]
    fn a_dataset_is_not_made_before_the_one_above() {
        let job = job("recursive = true");
        let mut source = ["tank/a", "tank/a/x", "tank/a/x/y"].map(|name| dataset(name, "a1", ""));
        for (guid, dataset) in source.iter_mut().enumerate() {
            dataset.guid = guid as u64;
        }
        let works = |source: &[ReplicaDataset], target: &[ReplicaDataset]| {
            let tree = plan(&job, source, target);
            let works = tree.datasets.iter().map(|planned| match &planned.work {
                Work::Refused(refusal) => refusal.to_string(),
                _ => planned.steps().len().to_string(),
            });
            works.collect::<Vec<_>>()
        };
        assert_eq!(works(&source, &[]), ["1", "1", "1"]);
        source[0].snapshots.clear();
        let none = |target: &str, above: &str| {
            format!("'{target}' cannot be made: '{above}' is not there yet")
        };
        let expected = [
            "0".to_owned(),
            none("back/a/x", "back/a"),
            none("back/a/x/y", "back/a/x"),
        ];
        assert_eq!(works(&source, &[]), expected);
    }

    #[test]
    fn a_hundred_thousand_snapshots_are_planned_in_a_moment() {
        let mut source = dataset("tank/a", "", "");
        source.snapshots = (0..100_000)
            .map(|guid| point(&format!("s{guid}"), guid, guid + 1))
            .collect();
        let mut copy = marked(dataset("back/a", "", ""));
        copy.snapshots = source.snapshots[..99_990].to_vec();
        let tree = plan(&job(""), &[source], &[copy]);
        assert_eq!(tree.datasets[0].steps().len(), 10);
    }
}
