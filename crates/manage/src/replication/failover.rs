//! Turning a job round: the target is put in use in place of its source, tried out on clones, and the way back, on which only differences are
//! sent.
//!
//! Each of these begins by reading what is there and can be given again after it was cut off.

use std::sync::Arc;

use engine::DatasetKind;
use jiff::Timestamp;

use super::fence::{
    check_superseded, forget_readonly, give_up_own, put_in_use_again, restore_readonly,
    settle_fences,
};
use super::foreseen::{foresee_test, own, reversed, test_root};
use super::plan;
use super::{
    FENCED_PROPERTY, IDENTITY_PROPERTY, Identity, Job, MARK_PROPERTY, Mark, ReplicaDataset,
    ReplicationError, Report, Switchover, Work, adopt, foresee, run,
};

/// What keeps a copy from acting, in the order in which it is taken away. A received value comes in force.
const LIFTED: &[&str] = &["mountpoint", "sharenfs", "sharesmb", "canmount"];
/// The same for file systems and volumes.
const LIFTED_ANYWHERE: &[&str] = &["org.sanbox:nbd"];

/// As what a copy acts in place of its source: as that, or as what the source acted as, with the next generation.
fn identity(copy: &ReplicaDataset) -> Option<Identity> {
    let mark = copy.mark.as_ref();
    let source = mark.map(|mark| Identity::own(mark.source_guid));
    let before = copy.source_identity.or(source)?;
    Some(Identity {
        generation: before.generation.saturating_add(1),
        ..before
    })
}

/// Puts the target in use: it becomes writable, and mount points and shares that came along are in force. Returns its datasets.
///
/// # Errors
/// The target gives no answer, or a dataset has not arrived whole.
pub(super) async fn fail_over(
    job: &Job,
    target: &dyn Switchover,
) -> Result<Vec<String>, ReplicationError> {
    target.take_over(job.target_root(), &job.name).await
}

/// Returns the job that sent a copy.
///
/// # Errors
/// The side gives no answer, or no job sent it.
pub(super) async fn job_of_copy(
    side: &dyn Switchover,
    root: &str,
) -> Result<String, ReplicationError> {
    let listed = side.list(root).await?;
    let listed =
        listed.ok_or_else(|| ReplicationError::Failed(format!("'{root}' does not exist")))?;
    let mark = listed.into_iter().next().and_then(|first| first.mark);
    let mark = mark.filter(|mark| mark.source_guid != 0);
    let job = mark.map(|mark| mark.job);
    job.ok_or_else(|| ReplicationError::Failed(format!("'{root}' is no copy that a job sent")))
}

/// Puts the copies that a job sent, a dataset and those below it, in use where they are: they become writable, act as their sources, and mount
/// points and shares that came along are in force. Each step is on stable storage before the next; given again after it was cut off, it goes on.
/// Returns the datasets.
///
/// # Errors
/// The side gives no answer, or a dataset has not arrived whole: then nothing was changed.
pub async fn take_over(
    side: &dyn Switchover,
    root: &str,
    job: &str,
) -> Result<Vec<String>, ReplicationError> {
    let own = own(job, side, root).await?;
    if let Some(part) = own.iter().find(|dataset| dataset.snapshots.is_empty()) {
        return Err(ReplicationError::Failed(format!(
            "'{}' has not arrived whole: 'zfs receive -A {}' at the target gives it up, then the others can be used",
            part.name, part.name
        )));
    }
    // First of all, so that the job adds to none of them any more, and clients that come with the handles of the source find them.
    for dataset in &own {
        let mut dataset = dataset.clone();
        if let (None, Some(identity)) = (dataset.identity, identity(&dataset)) {
            dataset.identity = Some(identity);
            let identity = identity.to_string();
            side.set(&dataset.name, IDENTITY_PROPERTY, &identity)
                .await?;
        }
        put_in_use_again(side, &dataset).await?;
    }
    for dataset in &own {
        if dataset.interrupted.is_some() {
            side.discard_interrupted(&dataset.name).await?;
        }
        let is_fs = dataset.kind == DatasetKind::Filesystem;
        let names = LIFTED.iter().filter(|_| is_fs).chain(LIFTED_ANYWHERE);
        for name in names {
            side.inherit(&dataset.name, name, true).await?;
        }
        // What was sent behind the fence of the source came with a `readonly` that is the fence's.
        let is_received = dataset.readonly.at_source.unwrap_or(true);
        side.inherit(&dataset.name, "readonly", is_received).await?;
    }
    Ok(own.into_iter().map(|dataset| dataset.name).collect())
}

/// Brings what was written at the target back to the source, and puts that in use again: the target becomes the copy that it was. While most
/// of it is sent the target stays writable. With `rollback`, what the source has after the newest snapshot in common is given up. `now` says the
/// time, by which snapshots are named.
///
/// # Errors
/// A side gives no answer, or refuses; then both are as they were, or the target is read-only, and giving it again goes on.
pub(super) async fn fail_back(
    job: &Job,
    source: &dyn Switchover,
    target: &dyn Switchover,
    rollback: bool,
    now: &(dyn Fn() -> Timestamp + Sync),
) -> Result<Report, ReplicationError> {
    let back = reversed(job);
    match settle_fences(job, source, target).await {
        // A peer that did not invite to it.
        Ok(_) | Err(ReplicationError::Denied { .. }) => {}
        Err(error) => return Err(error),
    }
    check_turned(job, source, target, rollback).await?;
    if !rollback {
        // Before the source is marked: what is refused leaves it as it is.
        check_unwritten(&back, target, source).await?;
    }
    adopt(&back, target, source, rollback).await?;
    // Before anything is sent.
    let planned = foresee(&back, target, source).await?;
    let refusal = planned
        .datasets
        .into_iter()
        .find_map(|dataset| match dataset.work {
            Work::Refused(refusal) => Some(refusal),
            _ => None,
        });
    if let Some(refusal) = refusal {
        return Err(refusal.into());
    }
    let progress = Arc::default();
    let first = complete(run(&back, target, source, &progress, now()).await?)?;
    // Datasets that were made at the target belong to it from now on.
    let mut copies = target.list(job.target_root()).await?.unwrap_or_default();
    copies.retain(|dataset| back.includes(&dataset.name));
    for dataset in &copies {
        target.set(&dataset.name, "readonly", "on").await?;
    }
    let last = complete(run(&back, target, source, &progress, now()).await?)?;
    for dataset in &copies {
        make_wait(target, dataset).await?;
        let bookmarks = dataset
            .bookmarks
            .iter()
            .filter(|point| job.is_own_bookmark(&point.name));
        let bookmarks: Vec<String> = bookmarks
            .map(|point| format!("{}#{}", dataset.name, point.name))
            .collect();
        if !bookmarks.is_empty() {
            target.destroy_bookmarks(bookmarks).await?;
        }
    }
    let (made, not_mounted) = put_in_use(job, source, target).await?;
    Ok(Report {
        sent: first.sent.into_iter().chain(last.sent).collect(),
        made,
        not_mounted,
        ..Report::default()
    })
}

/// Makes copies of what was fenced, once it was adopted: it acts nowhere, and the fence is gone.
///
/// # Errors
/// The side gives no answer; given again, it goes on.
pub(super) async fn adopt_fenced(
    job: &Job,
    source: &dyn Switchover,
    target: &dyn Switchover,
    adopted: &[String],
) -> Result<(), ReplicationError> {
    let copies = target.list(job.target_root()).await?.unwrap_or_default();
    let is_fenced = |copy: &&ReplicaDataset| copy.fence.is_some() && adopted.contains(&copy.name);
    let fenced: Vec<&ReplicaDataset> = copies.iter().filter(is_fenced).collect();
    if fenced.is_empty() {
        return Ok(());
    }
    // No other acts as it any more. First of all: a copy that waits has no generation, and would get a lower one than the source if it were put in
    // use before this ends.
    for dataset in source.list(job.source_root()).await?.unwrap_or_default() {
        give_up_own(source, &dataset).await?;
    }
    for copy in fenced {
        make_wait(target, copy).await?;
    }
    Ok(())
}

/// Makes a dataset a copy that acts nowhere.
async fn make_wait(
    side: &dyn Switchover,
    dataset: &ReplicaDataset,
) -> Result<(), ReplicationError> {
    if dataset.kind == DatasetKind::Filesystem {
        for (name, value) in [
            ("canmount", "noauto"),
            ("sharenfs", "off"),
            ("sharesmb", "off"),
        ] {
            side.set(&dataset.name, name, value).await?;
        }
    }
    for (name, is_set) in [
        (IDENTITY_PROPERTY, dataset.identity.is_some()),
        (FENCED_PROPERTY, dataset.fence.is_some()),
    ] {
        if is_set {
            side.inherit(&dataset.name, name, false).await?;
        }
    }
    Ok(())
}

/// Refuses when the source was put in use again in place of its copy; with `rollback` also when a dataset is in use at the source and its copy
/// is not, since it would be rolled back: a takeover, or the end of an earlier `failback`, was cut off.
async fn check_turned(
    job: &Job,
    source: &dyn Switchover,
    target: &dyn Switchover,
    rollback: bool,
) -> Result<(), ReplicationError> {
    let copies = target.list(job.target_root()).await?.unwrap_or_default();
    let sources = source.list(job.source_root()).await?.unwrap_or_default();
    for dataset in sources.iter().filter(|one| job.includes(&one.name)) {
        let name = job.target_of(&dataset.name);
        let Some(copy) = copies.iter().find(|copy| copy.name == name) else {
            continue;
        };
        check_superseded(&job.name, dataset, copy)?;
        if rollback && dataset.is_in_use_as_source() && !copy.is_in_use() {
            let (dataset, root) = (dataset.name.clone(), job.source_root().to_owned());
            return Err(super::Refusal::PartlyTurned { dataset, root }.into());
        }
    }
    Ok(())
}

/// Refuses when the source has something that would be given up.
async fn check_unwritten(
    back: &Job,
    target: &dyn Switchover,
    source: &dyn Switchover,
) -> Result<(), ReplicationError> {
    // What a log replays after this look would be written after the newest snapshot in common.
    source.replay_logs(back.target_root()).await?;
    let copies = target.list(back.source_root()).await?.unwrap_or_default();
    let sources = source.list(back.target_root()).await?.unwrap_or_default();
    for copy in copies.iter().filter(|copy| back.includes(&copy.name)) {
        let name = back.target_of(&copy.name);
        let Some(dataset) = sources.iter().find(|dataset| dataset.name == name) else {
            continue;
        };
        if let Some((common, _)) = plan::newest_common(copy, dataset) {
            plan::check_unchanged(back, dataset, common)?;
        }
    }
    Ok(())
}

/// Makes the source writable again, and gives what was made at the target its mark. Returns the datasets that are new at the source, and those
/// of them that a peer mounts only when that is said there.
async fn put_in_use(
    job: &Job,
    source: &dyn Switchover,
    target: &dyn Switchover,
) -> Result<(Vec<String>, Vec<String>), ReplicationError> {
    let (mut made, mut not_mounted) = (Vec::new(), Vec::new());
    for dataset in own(&job.name, source, job.source_root()).await? {
        // One that was there before was adopted.
        if dataset
            .mark
            .as_ref()
            .is_some_and(|mark| mark.adopted_txg == 0)
        {
            made.push(dataset.name.clone());
            if dataset.kind == DatasetKind::Filesystem {
                match source.set(&dataset.name, "canmount", "on").await {
                    Err(ReplicationError::Denied { .. }) => not_mounted.push(dataset.name.clone()),
                    set => set?,
                }
            }
            let mark = Mark {
                job: job.name.clone(),
                source_guid: dataset.guid,
                adopted_txg: 0,
            };
            target
                .set(
                    &job.target_of(&dataset.name),
                    MARK_PROPERTY,
                    &mark.to_string(),
                )
                .await?;
        }
        restore_readonly(source, &dataset).await?;
        give_up_own(source, &dataset).await?;
        source.inherit(&dataset.name, MARK_PROPERTY, false).await?;
        // Last of all: what is fenced and cut off here is known as a source that can be put in use again.
        if dataset.fence.is_some() {
            source
                .inherit(&dataset.name, FENCED_PROPERTY, false)
                .await?;
        }
        forget_readonly(source, &dataset).await?;
    }
    Ok((made, not_mounted))
}

/// A run in which nothing was left out.
fn complete(report: Report) -> Result<Report, ReplicationError> {
    match report.problems.first() {
        Some((_, error)) => Err(error.clone()),
        None => Ok(report),
    }
}

/// Whether the target of a job was put in use where it is, without this job.
///
/// # Errors
/// The target gives no answer.
pub(super) async fn is_taken_over(
    job: &Job,
    target: &dyn Switchover,
) -> Result<bool, ReplicationError> {
    let listed = target.list(job.target_root()).await?.unwrap_or_default();
    let is_in_use = |dataset: &ReplicaDataset| plan::check_in_use(job, dataset).is_err();
    Ok(listed.iter().any(is_in_use))
}

/// Whether a copy of a job stands in for its source.
///
/// # Errors
/// The target gives no answer.
pub(super) async fn stands_in(
    job: &Job,
    target: &dyn Switchover,
) -> Result<bool, ReplicationError> {
    let copies = target.list(job.target_root()).await?.unwrap_or_default();
    Ok(copies.iter().any(|copy| copy.identity.is_some()))
}

/// Whether anything of turning a job round is in force: a copy stands in for its source, or a source is not in use.
///
/// # Errors
/// A side gives no answer.
pub(super) async fn is_in_force(
    job: &Job,
    source: &dyn Switchover,
    target: &dyn Switchover,
) -> Result<bool, ReplicationError> {
    if stands_in(job, target).await? {
        return Ok(true);
    }
    let sources = source.list(job.source_root()).await?.unwrap_or_default();
    let mut sources = sources.iter().filter(|one| job.includes(&one.name));
    Ok(sources.any(|one| !one.is_in_use_as_source()))
}

/// What marks a clone of a test: no source has this guid.
pub(super) fn test_mark(job: &Job) -> Mark {
    Mark {
        job: job.name.clone(),
        source_guid: 0,
        adopted_txg: 0,
    }
}

/// Makes writable clones of the newest snapshots of the target, beside it; replication goes on. Returns their names.
///
/// # Errors
/// The target gives no answer, or has such clones already.
pub async fn test(job: &Job, target: &dyn Switchover) -> Result<Vec<String>, ReplicationError> {
    let mut clones = Vec::new();
    for (clone, snapshot) in foresee_test(job, target).await? {
        target
            .clone_snapshot(&snapshot, &clone, &test_mark(job).to_string())
            .await?;
        clones.push(clone);
    }
    Ok(clones)
}

/// Returns the clones of a test, those that lie in others first.
///
/// # Errors
/// The target gives no answer.
pub async fn test_clones(
    job: &Job,
    target: &dyn Switchover,
) -> Result<Vec<String>, ReplicationError> {
    let listed = target.list(&test_root(job)).await?.unwrap_or_default();
    let is_clone = |dataset: &&ReplicaDataset| dataset.mark.as_ref() == Some(&test_mark(job));
    let clones = listed.iter().rev().filter(is_clone);
    Ok(clones.map(|dataset| dataset.name.clone()).collect())
}
