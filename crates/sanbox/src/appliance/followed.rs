//! The datasets of the open pools that a service is concerned with, kept from one look to the next: only what has changed in names and properties
//! is read again, so that a change costs the same however many datasets there are.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use engine::{
    DatasetFilter, DatasetInfo, DatasetKind, EngineError, PoolHandle, PoolOpening, PropertyQuery,
};

use super::context::Context;
use crate::logging::SANBOX;

/// See the module.
pub(crate) struct FollowedDatasets {
    kinds: Vec<DatasetKind>,
    query: PropertyQuery,
    /// Of the kinds, those that the service is concerned with; the others are not kept.
    concerns: fn(&DatasetInfo) -> bool,
    pools: tokio::sync::Mutex<BTreeMap<String, FollowedPool>>,
}

/// What is known of a pool.
struct FollowedPool {
    opening: PoolOpening,
    /// The moment up to which changes have been read ([`PoolHandle::dataset_changes`]).
    seen: u64,
    datasets: BTreeMap<String, Arc<DatasetInfo>>,
}

/// A pool with the datasets that a service is concerned with, in the order of their names, parents first.
pub(crate) struct ServedPool {
    pub(crate) pool: PoolHandle,
    pub(crate) datasets: Vec<Arc<DatasetInfo>>,
}

impl FollowedDatasets {
    /// The file systems or volumes for which `concerns` says yes, with these properties.
    pub(crate) fn new(
        kinds: &[DatasetKind],
        properties: &[&str],
        concerns: fn(&DatasetInfo) -> bool,
    ) -> Self {
        let names = properties.iter().map(|name| (*name).to_owned());
        Self {
            kinds: kinds.to_vec(),
            query: PropertyQuery::Named(names.collect()),
            concerns,
            pools: tokio::sync::Mutex::default(),
        }
    }

    /// Returns the datasets as they are now, of all pools that may be served. Of a pool that cannot be read there are none, which the log says.
    pub(crate) async fn read(&self, context: &Context) -> Vec<ServedPool> {
        let mut known = self.pools.lock().await;
        let served = context.served_pools();
        known.retain(|name, _| served.iter().any(|pool| pool.name() == name));
        let mut read = Vec::with_capacity(served.len());
        for pool in served {
            let opening = pool.opening();
            let kept = known.remove(pool.name());
            let mut followed =
                kept.filter(|kept| kept.opening == opening)
                    .unwrap_or(FollowedPool {
                        opening,
                        seen: 0,
                        datasets: BTreeMap::new(),
                    });
            let datasets = match self.update(&pool, &mut followed).await {
                Ok(()) => {
                    let datasets = followed.datasets.values().cloned().collect();
                    known.insert(pool.name().to_owned(), followed);
                    datasets
                }
                Err(EngineError::PoolClosed) => Vec::new(),
                Err(error) => {
                    tracing::warn!(
                        target: SANBOX,
                        "the datasets of '{}' cannot be listed: {error}",
                        pool.name()
                    );
                    Vec::new()
                }
            };
            read.push(ServedPool { pool, datasets });
        }
        read
    }

    /// Reads again what has changed.
    async fn update(
        &self,
        pool: &PoolHandle,
        followed: &mut FollowedPool,
    ) -> Result<(), EngineError> {
        let changes = pool.dataset_changes(followed.seen).await?;
        match changes.subtrees {
            None => {
                followed.datasets.clear();
                self.read_below(pool, pool.name().to_owned(), followed)
                    .await?;
            }
            Some(roots) => {
                for root in roots {
                    remove_subtree(&mut followed.datasets, &root);
                    match self.read_below(pool, root, followed).await {
                        Ok(()) | Err(EngineError::DatasetNotFound(_)) => {}
                        Err(error) => return Err(error),
                    }
                }
            }
        }
        followed.seen = changes.now;
        Ok(())
    }

    async fn read_below(
        &self,
        pool: &PoolHandle,
        root: String,
        followed: &mut FollowedPool,
    ) -> Result<(), EngineError> {
        let filter = DatasetFilter {
            root,
            depth: None,
            kinds: self.kinds.clone(),
        };
        let found = pool.datasets(&filter, &self.query).await?;
        let concerned = found.into_iter().filter(self.concerns);
        let named = concerned.map(|info| (info.name.clone(), Arc::new(info)));
        followed.datasets.extend(named);
        Ok(())
    }
}

/// Removes a dataset and all below it.
fn remove_subtree<T>(datasets: &mut BTreeMap<String, T>, root: &str) {
    datasets.remove(root);
    // Behind '/' comes '0'.
    let below = (
        Bound::Included(format!("{root}/")),
        Bound::Excluded(format!("{root}0")),
    );
    let names: Vec<String> = datasets
        .range(below)
        .map(|(name, _)| name.clone())
        .collect();
    for name in names {
        datasets.remove(&name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subtree_is_removed_without_its_neighbours() {
        let names = [
            "t", "t/a", "t/a-b", "t/a/c", "t/a/c/d", "t/a0", "t/ab", "t/b",
        ];
        let mut datasets: BTreeMap<String, ()> =
            names.iter().map(|name| ((*name).to_owned(), ())).collect();
        remove_subtree(&mut datasets, "t/a");
        let left: Vec<&str> = datasets.keys().map(String::as_str).collect();
        assert_eq!(left, ["t", "t/a-b", "t/a0", "t/ab", "t/b"]);
        remove_subtree(&mut datasets, "t/none");
        assert_eq!(datasets.len(), 5);
    }
}
