//! One run of a job: what is there is read on both sides, what is missing at the target is sent, and both sides are left so that the next
//! run can go on.
//!
//! A run may be cut off at any point, by a signal, a crash of either side or the link: what was received whole stays, and the rest of a
//! stream is resumed. Nothing but the two sides remembers anything.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use engine::DatasetKind;
use futures_util::StreamExt as _;
use jiff::Timestamp;

use super::fence::{fenced_for_none, note_readonly};
use super::plan::{check_in_use, newer_than, newest_common};
use super::upkeep::{BOOKMARKS_AHEAD, Settled, bookmarks_of, prepare, upkeep};
use super::{
    ByteStream, DatasetPlan, Endpoint, Job, MARK_PROPERTY, Mark, Progress, ReceiveSpec, Refusal,
    ReplicaDataset, ReplicationError, SentSnapshot, Step, StreamSpec, TreePlan, Work, plan,
};

/// Streams whose sizes are asked for before a run: beyond, the total is not known.
const SIZES_MAX: usize = 200;
/// Properties that come along and are not put in force at a target, because they would act there: mount, share or take snapshots.
const NOT_IN_FORCE: &[&str] = &["mountpoint", "sharenfs", "sharesmb"];
/// The same for file systems and volumes.
const NOT_IN_FORCE_ANYWHERE: &[&str] = &["org.sanbox:nbd", "org.sanbox:policy"];

/// The newest state of a dataset that both sides of a job have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommonState {
    /// Full name at the source.
    pub source: String,
    /// Full name of its snapshot at the target.
    pub snapshot: String,
    /// When it was taken, in seconds since 1970; `None` when neither a snapshot nor a bookmark of the source tells.
    pub creation: Option<i64>,
}

/// What a run did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Full names of snapshots as they are at the target.
    pub sent: Vec<String>,
    /// Datasets of the target that are new.
    pub made: Vec<String>,
    /// Datasets that a peer got back and mounts only when that is said there.
    pub not_mounted: Vec<String>,
    /// Datasets that were left out, and why.
    pub problems: Vec<(String, ReplicationError)>,
    /// Datasets that have nothing to be sent.
    pub without_snapshots: Vec<String>,
    /// Datasets of the target whose source is gone.
    pub left: Vec<String>,
    /// Datasets of the source that are fenced though no copy is in use in place of them.
    pub fenced_for_none: Vec<String>,
    /// Datasets of the job.
    pub datasets: usize,
    /// Up to when the target has all of its datasets: this run's begin where nothing else was written, else when the oldest of the states
    /// was taken that it has.
    pub as_of: Option<Timestamp>,
    /// What both sides have of each dataset now.
    pub common: Vec<CommonState>,
    /// [`Endpoint::unchanged_since`] of the source when it was looked at.
    pub unchanged_since: Option<u64>,
}

/// The two sides of a job, as they were listed.
struct Sides {
    source: Vec<ReplicaDataset>,
    target: Vec<ReplicaDataset>,
    unchanged_since: Option<u64>,
}

/// Runs a job.
///
/// # Errors
/// The run ended before its end. What is refused for single datasets is in the answer.
pub async fn run(
    job: &Job,
    source: &dyn Endpoint,
    target: &dyn Endpoint,
    progress: &Arc<Progress>,
    now: Timestamp,
) -> Result<Report, ReplicationError> {
    if job.failed_over {
        return Err(Refusal::FailedOver {
            target: job.to.clone(),
            job: job.name.clone(),
        }
        .into());
    }
    let mut sides = list(job, source, target).await?;
    let mut tree = plan(job, &sides.source, &sides.target);
    if job.takes_snapshots() {
        sweep(job, source, target, &tree, &sides).await?;
    }
    if job.takes_snapshots() && take(job, source, &tree, &sides.source, now).await? {
        sides.source = listed_source(job, source, &sides.target).await?;
        tree = plan(job, &sides.source, &sides.target);
    }
    follow_names(target, &mut tree, &mut sides.target).await?;
    expect(job, source, &tree, progress).await?;
    prepare(job, source, &tree, &sides.source).await?;
    let mut report = Report {
        left: tree.left.clone(),
        fenced_for_none: fenced_for_none(job, &sides.source, &sides.target),
        datasets: tree.datasets.len(),
        unchanged_since: sides.unchanged_since,
        ..Report::default()
    };
    let sent = send_all(job, source, target, &tree, progress, &mut report).await;
    let ended = sent.as_ref().err().cloned();
    let newest = sent.unwrap_or_else(|_| Vec::new());
    if let Some(error) = ended {
        return Err(error);
    }
    let (sources, copies) = (by_name(&sides.source), by_name(&sides.target));
    let mut settled = Vec::new();
    for (planned, point) in tree.datasets.iter().zip(&newest) {
        let source = sources.get(planned.source.as_str()).copied();
        let (Some(source), Some((name, guid))) = (source, point) else {
            continue;
        };
        settled.push(Settled {
            source,
            copy: copies.get(planned.target.as_str()).copied(),
            target: &planned.target,
            guid: *guid,
            name,
        });
    }
    upkeep(job, source, target, &settled, now).await?;
    let as_of = settled
        .iter()
        .filter_map(|dataset| as_of(job, dataset, now));
    report.as_of = as_of.min();
    // What was written beyond a snapshot that was still to be delivered is of the next run.
    let has_more = |dataset: &Settled<'_>| {
        dataset.source.written_bytes > 0 && dataset.name != job.snapshot_name(now)
    };
    if settled.iter().any(has_more) {
        report.unchanged_since = None;
    }
    let common = |settled: &Settled<'_>| CommonState {
        source: settled.source.name.clone(),
        snapshot: format!("{}@{}", settled.target, settled.name),
        creation: settled.creation(),
    };
    report.common = settled.iter().map(common).collect();
    Ok(report)
}

/// Has snapshots of the target follow the source's in their names, in what was listed, too: what comes later goes by names.
async fn follow_names(
    target: &dyn Endpoint,
    tree: &mut TreePlan,
    copies: &mut [ReplicaDataset],
) -> Result<(), ReplicationError> {
    for planned in &mut tree.datasets {
        for (from, to) in &planned.renames {
            target.rename_snapshot(&planned.target, from, to).await?;
            let copy = copies.iter_mut().find(|copy| copy.name == planned.target);
            let points = copy.into_iter().flat_map(|copy| &mut copy.snapshots);
            let points = points.chain(&mut planned.common);
            for point in points.filter(|point| point.name == *from) {
                point.name.clone_from(to);
            }
        }
    }
    Ok(())
}

/// Up to when the target has all of a dataset: since the run began where nothing was written beyond what it has.
fn as_of(job: &Job, dataset: &Settled<'_>, now: Timestamp) -> Option<Timestamp> {
    let newest = dataset.source.snapshots.last();
    let has_newest = newest.is_some_and(|newest| newest.guid == dataset.guid);
    let is_whole = dataset.source.written_bytes == 0 || dataset.name == job.snapshot_name(now);
    if has_newest && is_whole {
        return Some(now);
    }
    let seconds = dataset.creation()?;
    Timestamp::from_second(seconds).ok()
}

/// Says what a run would do now.
///
/// # Errors
/// A side gives no answer, or the job cannot run at all.
pub async fn foresee(
    job: &Job,
    source: &dyn Endpoint,
    target: &dyn Endpoint,
) -> Result<TreePlan, ReplicationError> {
    let sides = list(job, source, target).await?;
    Ok(plan(job, &sides.source, &sides.target))
}

/// Reads both sides: the target first, because without it there is nothing to do.
async fn list(
    job: &Job,
    source: &dyn Endpoint,
    target: &dyn Endpoint,
) -> Result<Sides, ReplicationError> {
    let root = job.target_root();
    let listed = target.list(root).await?;
    if listed.is_none()
        && let Some((parent, _)) = root.rsplit_once('/')
        && !target.exists(parent).await?
    {
        return Err(Refusal::NoParent {
            target: root.to_owned(),
            parent: parent.to_owned(),
        }
        .into());
    }
    let target = listed.unwrap_or_default();
    source.write_out().await?;
    let unchanged_since = source.unchanged_since().await?;
    let source = listed_source(job, source, &target).await?;
    Ok(Sides {
        source,
        target,
        unchanged_since,
    })
}

async fn listed_source(
    job: &Job,
    source: &dyn Endpoint,
    target: &[ReplicaDataset],
) -> Result<Vec<ReplicaDataset>, ReplicationError> {
    let root = job.source_root();
    if let Some(listed) = source.list(root).await? {
        return Ok(listed);
    }
    let copy = target
        .iter()
        .find(|dataset| dataset.name == job.target_root());
    let mark = copy.and_then(|copy| copy.mark.as_ref());
    let renamed = match mark {
        Some(mark) => source.find(root, mark.source_guid).await?,
        None => None,
    };
    Err(Refusal::SourceGone {
        dataset: root.to_owned(),
        renamed,
    }
    .into())
}

fn by_name(datasets: &[ReplicaDataset]) -> BTreeMap<&str, &ReplicaDataset> {
    let each = datasets.iter();
    each.map(|dataset| (dataset.name.as_str(), dataset))
        .collect()
}

/// The txg of the source in which the newest state was taken that both sides have; 0 where there is none.
fn common_txg(planned: &DatasetPlan, source: &ReplicaDataset) -> u64 {
    let guid = planned.common.as_ref().map(|point| point.guid);
    let points = source.snapshots.iter().chain(&source.bookmarks);
    let mut common = points.filter(|point| Some(point.guid) == guid);
    common.next().map_or(0, |point| point.create_txg)
}

/// Destroys the job's own snapshots that are older than the newest state both sides have: they are left where runs end before they have put
/// things in order. Before another one is taken, so that they are never many.
async fn sweep(
    job: &Job,
    source: &dyn Endpoint,
    target: &dyn Endpoint,
    tree: &TreePlan,
    sides: &Sides,
) -> Result<(), ReplicationError> {
    let (mut at_source, mut at_target, mut held) = (Vec::new(), Vec::new(), Vec::new());
    let (sources, copies) = (by_name(&sides.source), by_name(&sides.target));
    for planned in &tree.datasets {
        let (Some(common), Some(here), Some(there)) = (
            &planned.common,
            sources.get(planned.source.as_str()),
            copies.get(planned.target.as_str()),
        ) else {
            continue;
        };
        let txg = common_txg(planned, here);
        let older = here.snapshots.iter().filter(|point| point.create_txg < txg);
        let own = older.filter(|point| job.is_own(&point.name) && point.holds == 0);
        at_source.extend(own.map(|point| format!("{}@{}", here.name, point.name)));
        let older = there.snapshots.iter();
        let older = older.filter(|point| point.create_txg < common.create_txg);
        for point in older.filter(|point| job.is_own(&point.name)) {
            let full = format!("{}@{}", there.name, point.name);
            if point.holds > 0 {
                held.push(full.clone());
            }
            at_target.push(full);
        }
    }
    if !at_source.is_empty() {
        source.destroy_snapshots(at_source).await?;
    }
    if !held.is_empty() {
        target.release(held, &job.tag()).await?;
    }
    if !at_target.is_empty() {
        target.destroy_snapshots(at_target).await?;
    }
    Ok(())
}

/// Takes snapshots of the datasets that were written to since their newest one, at one moment, unless one that the job took earlier is still
/// to be sent: what cannot be delivered is never more than one. Returns whether any was taken.
async fn take(
    job: &Job,
    source: &dyn Endpoint,
    tree: &TreePlan,
    listed: &[ReplicaDataset],
    now: Timestamp,
) -> Result<bool, ReplicationError> {
    let sources = by_name(listed);
    // Also one that a newer snapshot of others will be sent in place of.
    let is_pending = |planned: &DatasetPlan| {
        let dataset = sources.get(planned.source.as_str());
        let dataset = dataset.filter(|_| !matches!(planned.work, Work::Refused(_)));
        dataset.is_some_and(|dataset| {
            let common = common_txg(planned, dataset);
            let mut newer = dataset.snapshots.iter();
            newer.any(|point| point.create_txg > common && job.is_own(&point.name))
        })
    };
    if tree.datasets.iter().any(is_pending) {
        return Ok(false);
    }
    let name = job.snapshot_name(now);
    let is_due = |planned: &&DatasetPlan| {
        let dataset = sources.get(planned.source.as_str());
        let is_changed =
            |dataset: &&ReplicaDataset| dataset.snapshots.is_empty() || dataset.written_bytes > 0;
        !matches!(planned.work, Work::Refused(_)) && dataset.is_some_and(is_changed)
    };
    let due = tree.datasets.iter().filter(is_due);
    let names: Vec<String> = due
        .map(|planned| format!("{}@{name}", planned.source))
        .collect();
    if names.is_empty() {
        return Ok(false);
    }
    source.snapshot(names).await?;
    Ok(true)
}

/// Estimates the bytes of the streams that a plan has; one whose size cannot be told counts nothing.
///
/// # Errors
/// The source gives no answer.
pub async fn foresee_bytes(
    job: &Job,
    source: &dyn Endpoint,
    tree: &TreePlan,
) -> Result<u64, ReplicationError> {
    let mut total = 0_u64;
    for planned in &tree.datasets {
        for step in planned.steps() {
            let size = source.size(stream_spec(job, planned, step)).await?;
            total = total.saturating_add(size.unwrap_or(0));
        }
    }
    Ok(total)
}

/// Adds up how much is to be sent, where it is not too much to ask for.
async fn expect(
    job: &Job,
    source: &dyn Endpoint,
    tree: &TreePlan,
    progress: &Progress,
) -> Result<(), ReplicationError> {
    let steps = tree
        .datasets
        .iter()
        .flat_map(|planned| planned.steps().iter().map(move |step| (planned, step)));
    let steps: Vec<_> = steps.take(SIZES_MAX + 1).collect();
    if steps.len() > SIZES_MAX {
        return Ok(());
    }
    let mut total = 0;
    for (planned, step) in steps {
        match source.size(stream_spec(job, planned, step)).await? {
            Some(bytes) => total += bytes,
            None => return Ok(()),
        }
    }
    progress.expect(total);
    Ok(())
}

fn stream_spec(job: &Job, planned: &DatasetPlan, step: &Step) -> StreamSpec {
    StreamSpec {
        dataset: planned.source.clone(),
        snapshot: step.snapshot.clone(),
        from: step.from.clone(),
        token: step.token.clone(),
        properties: !job.without_properties,
        raw: job.raw,
    }
}

/// Sends what is to be sent, dataset after dataset. Returns the newest state that both sides have afterwards of each, by name and guid.
async fn send_all(
    job: &Job,
    source: &dyn Endpoint,
    target: &dyn Endpoint,
    tree: &TreePlan,
    progress: &Arc<Progress>,
    report: &mut Report,
) -> Result<Vec<Option<(String, u64)>>, ReplicationError> {
    let mut newest = Vec::with_capacity(tree.datasets.len());
    let mut failed: Vec<String> = Vec::new();
    for planned in &tree.datasets {
        let mut point = planned
            .common
            .as_ref()
            .map(|point| (point.name.clone(), point.guid));
        let above_failed = |above: &String| planned.target.starts_with(above.as_str());
        match &planned.work {
            // A new dataset is not made in what is another's.
            Work::Refused(_) if planned.is_new && failed.iter().any(above_failed) => {}
            Work::Refused(refusal) => {
                if refusal.is_foreign() {
                    failed.push(format!("{}/", planned.target));
                }
                report
                    .problems
                    .push((planned.source.clone(), refusal.clone().into()));
            }
            Work::NoSnapshots => report.without_snapshots.push(planned.source.clone()),
            Work::Nothing => {}
            // What lies in a dataset that could not be made cannot be made either.
            Work::Send(_) if planned.is_new && failed.iter().any(above_failed) => {}
            Work::Send(steps) => {
                let done = send(
                    job, source, target, planned, steps, progress, report, &mut point,
                )
                .await;
                match done {
                    Ok(()) => {}
                    Err(error) if error.ends_run() => return Err(error),
                    Err(error) => {
                        failed.push(format!("{}/", planned.target));
                        report.problems.push((planned.source.clone(), error));
                    }
                }
            }
        }
        newest.push(point);
    }
    Ok(newest)
}

#[allow(clippy::too_many_arguments, reason = "the parts of one run")]
async fn send(
    job: &Job,
    source: &dyn Endpoint,
    target: &dyn Endpoint,
    planned: &DatasetPlan,
    steps: &[Step],
    progress: &Arc<Progress>,
    report: &mut Report,
    newest: &mut Option<(String, u64)>,
) -> Result<(), ReplicationError> {
    if planned.discard_interrupted {
        target.discard_interrupted(&planned.target).await?;
    }
    for (index, step) in steps.iter().enumerate() {
        if index > 0 && index % BOOKMARKS_AHEAD == 0 {
            source
                .bookmark(bookmarks_of(job, &planned.source, &steps[index..]))
                .await?;
        }
        let is_initial = step.from.is_none();
        let full = format!("{}@{}", planned.source, step.snapshot);
        if is_initial && step.token.is_none() {
            // No bookmark stands for an initial stream that is interrupted: without its snapshot it would begin anew.
            source.hold(vec![full.clone()], &job.tag()).await?;
        }
        progress.begin(&full);
        let stream = source.send(stream_spec(job, planned, step)).await?;
        let stream = metered(
            stream,
            progress.clone(),
            job.bandwidth_bytes().ok().flatten(),
        );
        let spec = ReceiveSpec {
            sent: Some(SentSnapshot {
                source: planned.source.clone(),
                source_guid: planned.source_guid,
                kind: planned.kind,
                snapshot: step.snapshot.clone(),
                guid: step.guid,
            }),
            ..receive_spec(job, planned, planned.is_new && index == 0)
        };
        let received = target.receive(spec, stream).await;
        if matches!(received, Err(ReplicationError::Damaged { .. })) {
            // To go on from there would keep what is damaged.
            target.discard_interrupted(&planned.target).await?;
        }
        received?;
        if is_initial {
            source.release(vec![full], &job.tag()).await?;
        }
        if planned.is_new && index == 0 {
            report.made.push(planned.target.clone());
        }
        report
            .sent
            .push(format!("{}@{}", planned.target, step.snapshot));
        *newest = Some((step.snapshot.clone(), step.guid));
    }
    Ok(())
}

/// How a stream is received: a new dataset is marked, read-only, and not mounted by itself.
fn receive_spec(job: &Job, planned: &DatasetPlan, is_new: bool) -> ReceiveSpec {
    let is_fs = planned.kind == DatasetKind::Filesystem;
    let mut spec = ReceiveSpec {
        dataset: planned.target.clone(),
        ..ReceiveSpec::default()
    };
    let mut set = |name: &str, value: &str| spec.set.push((name.to_owned(), value.to_owned()));
    if is_new {
        let mark = Mark {
            job: job.name.clone(),
            source_guid: planned.source_guid,
            adopted_txg: 0,
        };
        set(MARK_PROPERTY, &mark.to_string());
        set("readonly", "on");
        if is_fs {
            set("canmount", "noauto");
        }
        for (name, value) in job.set.iter().filter_map(|setting| setting.split_once('=')) {
            set(name, value);
        }
    }
    if !job.without_properties {
        let names = NOT_IN_FORCE
            .iter()
            .filter(|_| is_fs)
            .chain(NOT_IN_FORCE_ANYWHERE);
        spec.excluded.extend(names.map(|name| (*name).to_owned()));
        spec.excluded.extend(job.not_in_force.iter().cloned());
        spec.excluded
            .retain(|name| !spec.set.iter().any(|(known, _)| known == name));
    }
    spec
}

/// Counts the bytes of a stream, and keeps them below a rate.
fn metered(stream: ByteStream, progress: Arc<Progress>, limit: Option<u64>) -> ByteStream {
    let began = Instant::now();
    let metered = futures_util::stream::unfold((stream, 0_u64), move |(mut stream, sent)| {
        let progress = progress.clone();
        async move {
            let chunk = stream.next().await?;
            let bytes = chunk.as_ref().map_or(0, |chunk| chunk.len() as u64);
            progress.add(bytes);
            let sent = sent + bytes;
            if let Some(limit) = limit {
                let due = Duration::from_micros(sent.saturating_mul(1_000_000) / limit);
                if let Some(early) = due.checked_sub(began.elapsed()) {
                    tokio::time::sleep(early).await;
                }
            }
            Some((chunk, (stream, sent)))
        }
    });
    metered.boxed()
}

/// Gives up at the target what interrupted receives left.
///
/// # Errors
/// A side gives no answer, or refuses.
pub async fn reset(job: &Job, target: &dyn Endpoint) -> Result<Vec<String>, ReplicationError> {
    let listed = target.list(job.target_root()).await?.unwrap_or_default();
    let mut given_up = Vec::new();
    for dataset in listed
        .into_iter()
        .filter(|dataset| dataset.interrupted.is_some())
    {
        target.discard_interrupted(&dataset.name).await?;
        given_up.push(dataset.name);
    }
    Ok(given_up)
}

/// Takes datasets that exist at the target as the job's: those that have a snapshot in common with their source. With `rollback`, what is
/// newer there is given up. Returns the datasets that were taken.
///
/// # Errors
/// A side gives no answer, or a dataset cannot be taken: those before it were.
pub(super) async fn adopt(
    job: &Job,
    source: &dyn Endpoint,
    target: &dyn Endpoint,
    rollback: bool,
) -> Result<Vec<String>, ReplicationError> {
    // What a log replays after this look would be written after the newest snapshot in common.
    target.replay_logs(job.target_root()).await?;
    let sides = list(job, source, target).await?;
    let mut adopted = Vec::new();
    for dataset in sides
        .source
        .iter()
        .filter(|dataset| job.includes(&dataset.name))
    {
        let name = job.target_of(&dataset.name);
        let Some(copy) = sides.target.iter().find(|copy| copy.name == name) else {
            continue;
        };
        check_in_use(job, copy)?;
        let Some((common, _)) = newest_common(dataset, copy) else {
            return Err(Refusal::NothingInCommon {
                dataset: dataset.name.clone(),
                target: name,
            }
            .into());
        };
        let newer: Vec<String> = newer_than(copy, common)
            .iter()
            .map(|point| point.name.clone())
            .collect();
        if rollback && (!newer.is_empty() || copy.written_bytes > 0) {
            target.rollback(&name, &common.name, newer).await?;
        }
        let mark = Mark {
            job: job.name.clone(),
            source_guid: dataset.guid,
            adopted_txg: common.create_txg,
        };
        let is_own = |known: &Mark| known.job == mark.job && known.source_guid == mark.source_guid;
        if !copy.mark.as_ref().is_some_and(is_own) {
            note_readonly(target, copy).await?;
            target.set(&name, MARK_PROPERTY, &mark.to_string()).await?;
            target.set(&name, "readonly", "on").await?;
        }
        adopted.push(name);
    }
    Ok(adopted)
}
