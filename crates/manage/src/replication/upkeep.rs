//! What a run leaves behind on both sides: a bookmark at the source and a hold at the target for the newest state that both have, and of the
//! job's own snapshots only that one.
//!
//! All of it is computed from what is there, so that a run that was cut off anywhere is put right by the next one.

use jiff::Timestamp;

use super::plan::StreamFrom;
use super::retention::expired;
use super::{Endpoint, Job, Point, ReplicaDataset, ReplicationError, Step, TreePlan, Work};

/// A dataset whose newest common state is known.
pub(super) struct Settled<'a> {
    /// At the source, as it was listed.
    pub(super) source: &'a ReplicaDataset,
    /// At the target, as it was listed before the run; `None` when the run made it.
    pub(super) copy: Option<&'a ReplicaDataset>,
    /// Full name at the target.
    pub(super) target: &'a str,
    /// Guid of the newest state that both have.
    pub(super) guid: u64,
    /// Its name at the target.
    pub(super) name: &'a str,
}

impl Settled<'_> {
    /// When the newest state that both have was taken.
    pub(super) fn creation(&self) -> Option<i64> {
        let mut points = self.source.snapshots.iter().chain(&self.source.bookmarks);
        points
            .find(|point| point.guid == self.guid)
            .map(|point| point.creation)
    }
}

/// Bookmarks that are made of snapshots before they are sent. Whatever of them is the target's newest state when a run is cut off, has one.
pub(super) const BOOKMARKS_AHEAD: usize = 32;

/// Returns the first bookmarks, with their snapshots, of what is to be sent.
pub(super) fn bookmarks_of(job: &Job, dataset: &str, steps: &[Step]) -> Vec<(String, String)> {
    let pair = |step: &Step| {
        let bookmark = format!("{dataset}#{}", job.bookmark_name(step.guid));
        (bookmark, format!("{dataset}@{}", step.snapshot))
    };
    steps.iter().take(BOOKMARKS_AHEAD).map(pair).collect()
}

/// Makes bookmarks of what is about to be sent, and destroys those that neither it nor the target's newest state needs. Both sides were just
/// read, so it is certain which that is; after a run that was cut off it is not.
pub(super) async fn prepare(
    job: &Job,
    source: &dyn Endpoint,
    tree: &TreePlan,
    listed: &[ReplicaDataset],
) -> Result<(), ReplicationError> {
    let (mut fresh, mut stale) = (Vec::new(), Vec::new());
    for planned in &tree.datasets {
        let Work::Send(steps) = &planned.work else {
            continue;
        };
        let Some(dataset) = listed.iter().find(|dataset| dataset.name == planned.source) else {
            continue;
        };
        let mut needed = bookmarks_of(job, &planned.source, steps);
        let common = planned
            .common
            .as_ref()
            .map(|point| job.bookmark_name(point.guid));
        for point in dataset
            .bookmarks
            .iter()
            .filter(|point| job.is_own_bookmark(&point.name))
        {
            let full = format!("{}#{}", planned.source, point.name);
            let before = needed.len();
            needed.retain(|(bookmark, _)| *bookmark != full);
            if needed.len() == before && common.as_ref() != Some(&point.name) {
                stale.push(full);
            }
        }
        fresh.extend(needed);
    }
    if !fresh.is_empty() {
        source.bookmark(fresh).await?;
    }
    if !stale.is_empty() {
        source.destroy_bookmarks(stale).await?;
    }
    Ok(())
}

/// Requests to both sides, by kind.
#[derive(Debug, Default, PartialEq, Eq)]
struct Requests {
    bookmark: Vec<(String, String)>,
    hold: Vec<String>,
    release_source: Vec<String>,
    release_target: Vec<String>,
    destroy_bookmarks: Vec<String>,
    destroy_source: Vec<String>,
    destroy_target: Vec<String>,
}

/// Brings both sides into order. What makes increments possible comes before what is destroyed.
pub(super) async fn upkeep(
    job: &Job,
    source: &dyn Endpoint,
    target: &dyn Endpoint,
    settled: &[Settled<'_>],
    now: Timestamp,
) -> Result<(), ReplicationError> {
    let mut requests = Requests::default();
    let keep = job.keep_policy().ok().flatten();
    for dataset in settled {
        requests.add(job, dataset);
        if let (Some(policy), Some(copy)) = (&keep, dataset.copy)
            && let Some(newest) = copy
                .snapshots
                .iter()
                .find(|point| point.guid == dataset.guid)
        {
            let expired = expired(policy, copy, newest, now);
            requests
                .destroy_target
                .extend(expired.iter().map(|name| format!("{}@{name}", copy.name)));
        }
    }
    requests.destroy_target.sort();
    requests.destroy_target.dedup();
    let tag = job.tag();
    if !requests.bookmark.is_empty() {
        source.bookmark(requests.bookmark).await?;
    }
    if !requests.hold.is_empty() {
        target.hold(requests.hold, &tag).await?;
    }
    if !requests.release_source.is_empty() {
        source.release(requests.release_source, &tag).await?;
    }
    if !requests.release_target.is_empty() {
        target.release(requests.release_target, &tag).await?;
    }
    if !requests.destroy_bookmarks.is_empty() {
        source.destroy_bookmarks(requests.destroy_bookmarks).await?;
    }
    if !requests.destroy_source.is_empty() {
        source.destroy_snapshots(requests.destroy_source).await?;
    }
    if !requests.destroy_target.is_empty() {
        target.destroy_snapshots(requests.destroy_target).await?;
    }
    Ok(())
}

impl Requests {
    fn add(&mut self, job: &Job, dataset: &Settled<'_>) {
        let Settled {
            source,
            copy,
            target,
            guid,
            name,
        } = dataset;
        let is_newest = |point: &&Point| point.guid == *guid;
        let at_source = source.snapshots.iter().find(is_newest);
        let bookmark = job.bookmark_name(*guid);
        let bookmarked = source.bookmarks.iter().find(|point| point.name == bookmark);
        // What was sent in this run was given a bookmark before.
        let was_sent =
            !copy.is_some_and(|copy| copy.snapshots.iter().any(|point| point.guid == *guid));
        if let (Some(snapshot), None, false) = (at_source, bookmarked, was_sent) {
            let full = format!("{}@{}", source.name, snapshot.name);
            self.bookmark
                .push((format!("{}#{bookmark}", source.name), full));
        }
        // An older bookmark is given up only when another base of increments is there.
        if at_source.or(bookmarked).is_some() {
            let old = source.bookmarks.iter();
            let old =
                old.filter(|point| job.is_own_bookmark(&point.name) && point.name != bookmark);
            self.destroy_bookmarks
                .extend(old.map(|point| format!("{}#{}", source.name, point.name)));
        }
        let newest_txg = at_source.or(bookmarked).map_or(0, |point| point.create_txg);
        for point in source
            .snapshots
            .iter()
            .filter(|point| point.create_txg <= newest_txg)
        {
            let full = || format!("{}@{}", source.name, point.name);
            if point.holds > 0 {
                self.release_source.push(full());
            }
            if job.is_own(&point.name) && point.guid != *guid {
                self.destroy_source.push(full());
            }
        }
        let known = copy.map_or(&[][..], |copy| &copy.snapshots[..]);
        if !known
            .iter()
            .any(|point| point.guid == *guid && point.holds > 0)
        {
            self.hold.push(format!("{target}@{name}"));
        }
        for point in known.iter().filter(|point| point.guid != *guid) {
            let full = || format!("{target}@{}", point.name);
            if point.holds > 0 {
                self.release_target.push(full());
            }
            if job.is_own(&point.name) {
                self.destroy_target.push(full());
            }
        }
    }
}

/// Returns the full name of what a stream counts from.
pub(super) fn full_name(dataset: &str, from: &StreamFrom) -> String {
    match from {
        StreamFrom::Snapshot(name) => format!("{dataset}@{name}"),
        StreamFrom::Bookmark(name) => format!("{dataset}#{name}"),
    }
}
