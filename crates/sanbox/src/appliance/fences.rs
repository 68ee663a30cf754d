//! Which datasets of this appliance are fenced, because another is in use in place of them (`manage::replication`), and what finds that out before
//! a pool is served.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use engine::{DatasetKind, PoolHandle};
use futures_util::future::join_all;
use manage::replication::{
    FENCED_PROPERTY, Fence, Job, LocalEndpoint, Location, MARK_PROPERTY, Replications, Switchover,
    fence_of, is_copy, settle_fences,
};
use tokio::time::timeout;

use super::context::Context;
use super::followed::FollowedDatasets;
use crate::logging::REPLICATION;
use crate::names::pool_part;
use crate::peers::PeerService;

/// How long a pool waits, before it is served, for the other sides of the jobs that send from it or to it. One that is dead does not keep a
/// source from its clients for longer.
const ASKED_MAX: Duration = Duration::from_secs(3);

/// A dataset that is fenced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FencedDataset {
    pub(crate) name: String,
    pub(crate) fence: Fence,
    /// It is the copy, not the source.
    pub(crate) is_copy: bool,
}

/// The datasets that are fenced, as the services found them last.
pub(crate) struct Fences {
    datasets: FollowedDatasets,
    found: Mutex<Vec<FencedDataset>>,
}

impl Default for Fences {
    fn default() -> Self {
        let kinds = [DatasetKind::Filesystem, DatasetKind::Volume];
        let properties = [FENCED_PROPERTY, MARK_PROPERTY];
        Self {
            datasets: FollowedDatasets::new(&kinds, &properties, |info| fence_of(info).is_some()),
            found: Mutex::default(),
        }
    }
}

impl Fences {
    pub(crate) fn list(&self) -> Vec<FencedDataset> {
        let found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        found.clone()
    }

    /// Looks at all datasets.
    pub(crate) async fn follow(&self, context: &Context) {
        let mut found = Vec::new();
        for served in self.datasets.read(context).await {
            for info in served.datasets {
                if let Some(fence) = fence_of(&info) {
                    found.push(FencedDataset {
                        name: info.name.clone(),
                        fence,
                        is_copy: is_copy(&info),
                    });
                }
            }
        }
        *self.found.lock().unwrap_or_else(PoisonError::into_inner) = found;
    }
}

/// Finds out, before a pool is served, whether others are in use in place of its datasets. What gives no answer in time is asked again by the
/// runs of its job.
pub(super) async fn before_serving(
    context: &Context,
    replications: &Arc<Replications>,
    peers: &Arc<PeerService>,
    pool: &PoolHandle,
) {
    let replications = replications.clone();
    // The state directory may be slow to answer.
    let read = tokio::task::spawn_blocking(move || replications.jobs()).await;
    let Ok(Ok(jobs)) = read else {
        return;
    };
    let is_here = |location: Result<Location, _>| matches!(location, Ok(Location::Local(dataset)) if pool_part(&dataset) == pool.name());
    let jobs = jobs.replication;
    let concerned = jobs
        .iter()
        .filter(|job| is_here(job.source()) || is_here(job.target()));
    let asked = concerned.map(|job| async move {
        let open = |location| open_side(context, peers, job, location);
        let (Some(source), Some(target)) = (
            open(job.source().ok()),
            open(job.target().ok()),
        ) else {
            return;
        };
        let settled = timeout(ASKED_MAX, settle_fences(job, &*source, &*target)).await;
        match settled {
            Ok(Ok(fenced)) => tell(job, &fenced),
            Ok(Err(error)) => {
                tracing::info!(target: REPLICATION, "{}: served without knowing what its other side has in use: {error}", job.name);
            }
            Err(_) => {
                tracing::info!(target: REPLICATION, "{}: served without knowing what its other side has in use: no answer", job.name);
            }
        }
    });
    join_all(asked).await;
}

/// A side of a job as far as it can be had without opening a pool.
fn open_side(
    context: &Context,
    peers: &Arc<PeerService>,
    job: &Job,
    location: Option<Location>,
) -> Option<Box<dyn Switchover>> {
    peers.endpoint_elsewhere(job, location?).map_or_else(
        |dataset| {
            let mut open = context.engine().pools().into_iter();
            let pool = open.find(|pool| pool.name() == pool_part(&dataset))?;
            Some(Box::new(LocalEndpoint::new(pool)) as Box<dyn Switchover>)
        },
        Some,
    )
}

/// Says in the log what was fenced.
pub(crate) fn tell(job: &Job, fenced: &[String]) {
    if !fenced.is_empty() {
        let names = fenced.join(", ");
        tracing::warn!(target: REPLICATION, "{}: read-only and not shared, because the other side is in use in place of: {names}", job.name);
    }
}
