//! What a job leaves behind that holds something: holds, bookmarks and snapshots of its own, which are of no use without it.

use super::{Endpoint, Job, ReplicaDataset, ReplicationError};

/// What was given up at a side.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Released {
    /// Holds of the job.
    pub holds: u64,
    /// Its bookmarks.
    pub bookmarks: usize,
    /// Snapshots that it took.
    pub snapshots: usize,
}

impl Released {
    /// Whether there was nothing.
    #[must_use]
    pub fn is_nothing(&self) -> bool {
        *self == Self::default()
    }
}

fn holds(listed: &[ReplicaDataset]) -> u64 {
    let points = listed.iter().flat_map(|dataset| &dataset.snapshots);
    points.map(|point| point.holds).sum()
}

/// Gives up at the source what a job holds there: its holds, its bookmarks and the snapshots that it took, but for those that another hold or
/// a clone keeps. What others hold stays. A job of the same name finds nothing to go on from afterwards but the snapshots that
/// others took.
///
/// # Errors
/// The source gives no answer. What was given up before is.
pub async fn release_source(
    job: &Job,
    source: &dyn Endpoint,
) -> Result<Released, ReplicationError> {
    let holds = release_holds(job, source, job.source_root()).await?;
    let before = listed(job, source, job.source_root()).await?;
    let (bookmarks, snapshots) = own(job, &before);
    let mut released = Released {
        holds,
        bookmarks: bookmarks.len(),
        snapshots: snapshots.len(),
    };
    if !bookmarks.is_empty() {
        source.destroy_bookmarks(bookmarks).await?;
    }
    if !snapshots.is_empty() {
        source.destroy_snapshots(snapshots).await?;
        // Those that clones keep are there still.
        let (_, kept) = own(job, &listed(job, source, job.source_root()).await?);
        released.snapshots = released.snapshots.saturating_sub(kept.len());
    }
    Ok(released)
}

/// Bookmarks of a job, and snapshots that it took and that have no hold.
fn own(job: &Job, listed: &[ReplicaDataset]) -> (Vec<String>, Vec<String>) {
    let (mut bookmarks, mut snapshots) = (Vec::new(), Vec::new());
    for dataset in listed {
        let name = &dataset.name;
        let own = dataset.bookmarks.iter();
        let own = own.filter(|point| job.is_own_bookmark(&point.name));
        bookmarks.extend(own.map(|point| format!("{name}#{}", point.name)));
        let own = dataset.snapshots.iter();
        let own = own.filter(|point| job.is_own(&point.name) && point.holds == 0);
        snapshots.extend(own.map(|point| format!("{name}@{}", point.name)));
    }
    (bookmarks, snapshots)
}

/// Releases the holds of a job at its target; all snapshots stay. Returns how many there were.
///
/// # Errors
/// The target gives no answer.
pub async fn release_target(job: &Job, target: &dyn Endpoint) -> Result<u64, ReplicationError> {
    release_holds(job, target, job.target_root()).await
}

/// The datasets of a side; none where its root is gone.
async fn listed(
    job: &Job,
    side: &dyn Endpoint,
    root: &str,
) -> Result<Vec<ReplicaDataset>, ReplicationError> {
    let mut listed = side.list(root).await?.unwrap_or_default();
    listed.retain(|dataset| job.recursive || dataset.name == root);
    Ok(listed)
}

async fn release_holds(
    job: &Job,
    side: &dyn Endpoint,
    root: &str,
) -> Result<u64, ReplicationError> {
    let before = listed(job, side, root).await?;
    let mut held = Vec::new();
    for dataset in &before {
        let snapshots = dataset.snapshots.iter().filter(|point| point.holds > 0);
        held.extend(snapshots.map(|point| format!("{}@{}", dataset.name, point.name)));
    }
    if held.is_empty() {
        return Ok(0);
    }
    side.release(held, &job.tag()).await?;
    // Holds of others are among those that were counted.
    let after = listed(job, side, root).await?;
    Ok(holds(&before).saturating_sub(holds(&after)))
}
