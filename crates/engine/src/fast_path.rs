//! The fast path: requests that the attribute cache can answer on the caller's thread, without a request to the pool's thread.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use zpl::{AttrCache, FileDelegations, ReclaimGrace};

use crate::statistics::{Client, RequestStatistics};

/// The fast path of one pool: its attribute cache, and where the requests it answers are counted.
pub(crate) struct FastPath {
    pub(crate) attrs: Arc<AttrCache>,
    /// Files that clients have delegated: changes of them look here.
    pub(crate) delegations: Arc<FileDelegations>,
    /// Request statistics of the open datasets, by guid.
    datasets: Mutex<BTreeMap<u64, RequestStatistics>>,
}

/// Txgs that a log may have records of beyond the last one on disk: one is open, one quiesces and one is written.
const TXGS_UNDER_WAY: u64 = 3;

impl FastPath {
    pub(crate) fn new(synced: Arc<AtomicU64>, reclaims: Arc<ReclaimGrace>) -> Self {
        let earlier = synced.load(Ordering::Relaxed) + TXGS_UNDER_WAY;
        Self {
            delegations: Arc::new(FileDelegations::new(reclaims, earlier)),
            attrs: Arc::new(AttrCache::new(synced)),
            datasets: Mutex::default(),
        }
    }

    fn datasets<T>(&self, look: impl FnOnce(&mut BTreeMap<u64, RequestStatistics>) -> T) -> T {
        // Entries are whole: a panic elsewhere leaves none half made.
        look(&mut self.datasets.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Registers the statistics of a dataset that was opened.
    pub(crate) fn opened(&self, guid: u64, requests: &RequestStatistics) {
        self.datasets(|datasets| datasets.insert(guid, requests.clone()));
    }

    /// Invalidates the cache and unregisters the statistics of a dataset that was closed.
    pub(crate) fn closed(&self, guid: u64) {
        self.attrs.invalidate_all();
        self.datasets(|datasets| datasets.remove(&guid));
    }

    /// Answers a client's request to a dataset from the cache, and counts the request if it could.
    pub(crate) fn answer<T>(
        &self,
        guid: u64,
        client: Client,
        look: impl FnOnce(&AttrCache) -> Option<T>,
    ) -> Option<T> {
        let answer = look(&self.attrs)?;
        self.datasets(|datasets| {
            if let Some(requests) = datasets.get(&guid) {
                requests.count_immediate(client);
            }
        });
        Some(answer)
    }
}
