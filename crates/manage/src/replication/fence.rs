//! Of a source and its copy, one is in use: the other is fenced.
//!
//! Whatever is put in use in place of another has a generation with its identity ([`Identity`]), one more than what it stands in for had. A
//! source that comes back while its copy is in use, or a copy whose source was put in use again, has the lower one. It is fenced as soon as a
//! side of their job finds that out: read-only, and neither shared nor shown to initiators, until it is brought up to date (`failback`,
//! `adopt`) or put in use again with a higher generation (`takeover`).
//!
//! While the two do not reach each other both may be in use: nothing here waits for a peer that gives no answer.

use std::fmt;
use std::str::FromStr;

use engine::DatasetInfo;
use engine::property::Value;

use super::identity::{Identity, local};
use super::{
    Endpoint, IDENTITY_PROPERTY, Job, KEPT_READONLY_PROPERTY, MARK_PROPERTY, Refusal,
    ReplicaDataset, ReplicationError, Switchover,
};

/// The user property of a dataset that is fenced: a [`Fence`].
pub const FENCED_PROPERTY: &str = "org.sanbox:fenced";

/// Why a dataset is fenced: another is in use in place of it. As text `GENERATION:JOB`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fence {
    /// The generation of the one that is in use, or above it.
    pub generation: u64,
    /// The job that sends from one to the other.
    pub job: String,
}

impl fmt::Display for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.generation, self.job)
    }
}

impl FromStr for Fence {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (generation, job) = text.split_once(':').ok_or(())?;
        if !super::is_tag(&format!("replica-{job}")) {
            return Err(());
        }
        Ok(Self {
            generation: generation.parse().map_err(|_| ())?,
            job: job.to_owned(),
        })
    }
}

/// Returns why a dataset is fenced; `None` when it is not. What is inherited or came with a stream fences nothing.
#[must_use]
pub fn fence_of(info: &DatasetInfo) -> Option<Fence> {
    local(info, FENCED_PROPERTY)?.text()?.parse().ok()
}

/// Whether a dataset is a copy that a job sent, as its own mark says.
#[must_use]
pub fn is_copy(info: &DatasetInfo) -> bool {
    local(info, MARK_PROPERTY).and_then(Value::text).is_some()
}

/// As what a dataset acts, or would if it were not fenced.
pub(super) fn acts_as(dataset: &ReplicaDataset) -> Identity {
    dataset.identity.unwrap_or(Identity::own(dataset.guid))
}

/// Fences whichever of a source and its copies has the lower generation. Both sides are read first; given again after it was cut off, it goes
/// on. Returns the datasets that are fenced now and were not, or not for this generation.
///
/// # Errors
/// A side gives no answer, or does not allow it.
pub async fn settle_fences(
    job: &Job,
    source: &dyn Switchover,
    target: &dyn Switchover,
) -> Result<Vec<String>, ReplicationError> {
    let copies = target.list(job.target_root()).await?.unwrap_or_default();
    let is_own = |copy: &&ReplicaDataset| {
        let is_of_job = copy.mark.as_ref().is_some_and(|mark| mark.job == job.name);
        is_of_job && copy.is_in_use()
    };
    let in_use: Vec<&ReplicaDataset> = copies.iter().filter(is_own).collect();
    if in_use.is_empty() {
        return Ok(Vec::new());
    }
    let mut fenced = Vec::new();
    let sources = source.list(job.source_root()).await?.unwrap_or_default();
    for dataset in sources.iter().filter(|one| job.includes(&one.name)) {
        let name = job.target_of(&dataset.name);
        let Some(copy) = in_use.iter().find(|copy| copy.name == name) else {
            continue;
        };
        let (here, there) = (acts_as(dataset), acts_as(copy));
        if here.guid != there.guid {
            continue;
        }
        let is_stale = there.generation > here.generation;
        let (side, loser, generation) = match is_stale {
            true => (source, dataset, there.generation),
            // Both may have the same: each was put in use without knowing of the other. A side refuses a fence that is not above what it has.
            false => (
                target,
                *copy,
                here.generation.max(there.generation.saturating_add(1)),
            ),
        };
        let known = loser.fence.as_ref();
        if known.is_none_or(|known| known.generation < generation) {
            let fence = Fence {
                generation,
                job: job.name.clone(),
            };
            note_readonly(side, loser).await?;
            side.fence(&loser.name, &fence).await?;
            fenced.push(loser.name.clone());
        }
    }
    Ok(fenced)
}

/// Refuses to bring back what was written to a copy in place of which its source was put in use again.
pub(super) fn check_superseded(
    job: &str,
    source: &ReplicaDataset,
    copy: &ReplicaDataset,
) -> Result<(), Refusal> {
    let (here, there) = (acts_as(source), acts_as(copy));
    let is_older = here.guid == there.guid && there.generation < here.generation;
    let are_both_in_use = source.is_in_use_as_source() && copy.is_in_use();
    let is_superseded = copy.fence.is_some() || are_both_in_use && is_older;
    match is_superseded {
        false => Ok(()),
        true => Err(Refusal::Superseded {
            target: copy.name.clone(),
            job: job.to_owned(),
        }),
    }
}

/// Fences the source before its copy is put in use, so that nothing is written to it that the copy would not get. Returns the datasets that
/// were not fenced before.
///
/// # Errors
/// The side gives no answer, or does not allow it: what was fenced until then stays so.
pub(super) async fn fence_source(
    job: &Job,
    source: &dyn Switchover,
) -> Result<Vec<String>, ReplicationError> {
    let mut fenced = Vec::new();
    let sources = source.list(job.source_root()).await?.unwrap_or_default();
    for dataset in sources.iter().filter(|one| job.includes(&one.name)) {
        if dataset.fence.is_some() {
            continue;
        }
        let fence = Fence {
            generation: acts_as(dataset).generation.saturating_add(1),
            job: job.name.clone(),
        };
        note_readonly(source, dataset).await?;
        source.fence(&dataset.name, &fence).await?;
        fenced.push(dataset.name.clone());
        give_up_own(source, dataset).await?;
    }
    Ok(fenced)
}

/// Takes the fences of datasets, a dataset and those below it, away: they are writable then, but for those that were not before.
///
/// # Errors
/// The side gives no answer: given again, it goes on.
pub async fn lift_fences(
    side: &dyn Switchover,
    root: &str,
    names: &[String],
) -> Result<(), ReplicationError> {
    let listed = side.list(root).await?.unwrap_or_default();
    for dataset in listed.iter().filter(|one| names.contains(&one.name)) {
        restore_readonly(side, dataset).await?;
        side.inherit(&dataset.name, FENCED_PROPERTY, false).await?;
        forget_readonly(side, dataset).await?;
    }
    Ok(())
}

/// Notes whether a dataset is read-only by itself, before replication makes it so. What replication made read-only before stays as it was noted.
pub(super) async fn note_readonly(
    side: &dyn Endpoint,
    dataset: &ReplicaDataset,
) -> Result<(), ReplicationError> {
    if dataset.fence.is_some() || dataset.mark.is_some() {
        return Ok(());
    }
    let (name, property) = (&dataset.name, KEPT_READONLY_PROPERTY);
    match (dataset.readonly.is_on, dataset.readonly.is_kept) {
        (true, false) => side.set(name, property, "on").await,
        // Of a time before; it was made writable since.
        (false, true) => side.set(name, property, "off").await,
        _ => Ok(()),
    }
}

/// Returns the sources of a job that are fenced though no copy is in use in place of them: a failover did not come to its end.
pub(super) fn fenced_for_none(
    job: &Job,
    sources: &[ReplicaDataset],
    copies: &[ReplicaDataset],
) -> Vec<String> {
    let is_waiting = |source: &ReplicaDataset| {
        let name = job.target_of(&source.name);
        let copy = copies.iter().find(|copy| copy.name == name);
        // One that is not there may be in use by another name.
        copy.is_some_and(|copy| copy.identity.is_none())
    };
    let sources = sources.iter().filter(|one| job.includes(&one.name));
    let fenced = sources.filter(|one| {
        let fence = one.fence.as_ref();
        one.mark.is_none() && fence.is_some_and(|fence| fence.job == job.name) && is_waiting(one)
    });
    fenced.map(|one| one.name.clone()).collect()
}

/// Makes a dataset writable again, unless it was read-only before replication made it so. The note is given up when all else is done
/// ([`forget_readonly`]): before, what is given again would not find it.
pub(super) async fn restore_readonly(
    side: &dyn Switchover,
    dataset: &ReplicaDataset,
) -> Result<(), ReplicationError> {
    match dataset.readonly.is_kept {
        true => Ok(()),
        false => side.inherit(&dataset.name, "readonly", false).await,
    }
}

/// Gives up what [`note_readonly`] noted.
pub(super) async fn forget_readonly(
    side: &dyn Switchover,
    dataset: &ReplicaDataset,
) -> Result<(), ReplicationError> {
    let name = &dataset.name;
    match dataset.readonly.is_kept {
        true => side.inherit(name, KEPT_READONLY_PROPERTY, false).await,
        false => Ok(()),
    }
}

/// Has a dataset that acts as itself, after it was put in use again, count as one that no copy stood in for.
pub(super) async fn give_up_own(
    side: &dyn Switchover,
    dataset: &ReplicaDataset,
) -> Result<(), ReplicationError> {
    match dataset.identity {
        Some(identity) if identity.guid == dataset.guid => {
            side.inherit(&dataset.name, IDENTITY_PROPERTY, false).await
        }
        _ => Ok(()),
    }
}

/// Puts sources that are fenced in use again; they are targets of a `failback` no more. Where a copy may be in use in place of one, each has a
/// higher generation than that, which is fenced as soon as the two sides reach each other.
///
/// # Errors
/// The side gives no answer: given again, it goes on.
pub(super) async fn reclaim(
    side: &dyn Switchover,
    datasets: &[ReplicaDataset],
    is_copy_in_use: bool,
) -> Result<(), ReplicationError> {
    for dataset in datasets {
        // While it is fenced still: what is cut off here is given again.
        restore_readonly(side, dataset).await?;
        if dataset.interrupted.is_some() {
            side.discard_interrupted(&dataset.name).await?;
        }
        if dataset.mark.is_some() {
            side.inherit(&dataset.name, MARK_PROPERTY, false).await?;
        }
        match is_copy_in_use {
            true => put_in_use_again(side, dataset).await?,
            false => side.inherit(&dataset.name, FENCED_PROPERTY, false).await?,
        }
        forget_readonly(side, dataset).await?;
    }
    Ok(())
}

/// Returns the sources at a side that are fenced: a dataset and those below it.
///
/// # Errors
/// The side gives no answer.
pub(super) async fn fenced_sources(
    side: &dyn Switchover,
    root: &str,
) -> Result<Vec<ReplicaDataset>, ReplicationError> {
    let mut listed = side.list(root).await?.unwrap_or_default();
    // A source is marked while what was written to its copy is brought back: it was adopted for that, and acts as itself. A copy acts as its
    // source; an adoption takes that away a moment before the fence.
    let is_source = |one: &ReplicaDataset| match (&one.mark, one.identity) {
        (None, _) => true,
        (Some(_), Some(identity)) => identity.guid == one.guid,
        (Some(mark), None) => mark.adopted_txg != 0,
    };
    listed.retain(|dataset| dataset.fence.is_some() && is_source(dataset));
    Ok(listed)
}

/// Gives a dataset that is fenced a generation above that of the one in use, and takes the fence away.
pub(super) async fn put_in_use_again(
    side: &dyn Switchover,
    dataset: &ReplicaDataset,
) -> Result<(), ReplicationError> {
    let Some(fence) = &dataset.fence else {
        return Ok(());
    };
    let own = acts_as(dataset);
    let identity = Identity {
        generation: own.generation.max(fence.generation).saturating_add(1),
        ..own
    };
    let (name, identity) = (&dataset.name, identity.to_string());
    // Before the fence is gone: without it a dataset of a lower generation would be in use.
    side.set(name, IDENTITY_PROPERTY, &identity).await?;
    side.inherit(name, FENCED_PROPERTY, false).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fence_is_read_as_it_is_written() {
        let read: Fence = "3:vm".parse().expect("a fence");
        assert_eq!((read.to_string().as_str(), read.generation), ("3:vm", 3));
        for text in ["", "3", "x:vm", "3:", "3:a b"] {
            assert!(text.parse::<Fence>().is_err(), "{text}");
        }
    }
}
