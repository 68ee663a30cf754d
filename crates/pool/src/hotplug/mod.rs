//! Hot plug: spares are activated for failed devices, devices that are back are reopened, and (with `autoreplace=on`) an
//! empty disk at the path of a missing one replaces it.
//!
//! Nothing here waits: the sync loop calls at every round, and the work is done by background tasks.
// OpenZFS: cmd/zed (agents for hot plug, retirement and replacement)

mod state;

use std::path::Path;
use std::time::Duration;

use vdev::{DiskUse, Health};

pub(crate) use self::state::Hotplug;
use crate::hot_spares::activate_in_background;
use crate::pool::{ImportedPool, Pool};

/// How often missing devices are polled.
const POLL_INTERVAL: Duration = Duration::from_secs(10);

/// Starts the polling of the devices of a pool that has just been opened.
pub(crate) fn begin(pool: &Pool) {
    let imported = &pool.0;
    imported
        .activities
        .hotplug
        .next_poll
        .set(imported.handle().now() + POLL_INTERVAL);
}

/// Polls the devices. Called at every round of the sync loop.
pub(crate) fn poll_devices(pool: &Pool) {
    activate_in_background(pool);
    let imported = &pool.0;
    crate::autotrim::look(imported);
    let now = imported.handle().now();
    if now < imported.activities.hotplug.next_poll.get() {
        return;
    }
    imported
        .activities
        .hotplug
        .next_poll
        .set(now + POLL_INTERVAL);
    if imported.session.readonly || imported.writable().is_err() || imported.away().is_empty() {
        return;
    }
    let pool = pool.clone();
    drop(pool.0.handle().clone().spawn("hot plug", async move {
        // What fails is tried again at the next look.
        drop(pool.reopen().await);
        pool.0.autoreplace(&pool).await;
    }));
}

impl ImportedPool {
    /// Returns the leaves that are missing and not offline, with the paths they were at.
    fn away(&self) -> Vec<vdev::LeafInfo> {
        let mut leaves = self.tree().leaves();
        leaves.retain(|leaf| matches!(leaf.health, Health::Removed | Health::Unavailable));
        leaves
    }

    /// Has empty disks take the places of those that were at the same paths.
    async fn autoreplace(&self, pool: &Pool) {
        let wanted = self.properties.is_on("autoreplace");
        if !wanted {
            return;
        }
        for leaf in self.away() {
            let path = Path::new(&leaf.path);
            let found = vdev::disk_use(self.handle(), path).await;
            if matches!(found, Ok(DiskUse::Free)) && self.writable().is_ok() {
                // Too small, or replaced already: nothing to be done.
                drop(pool.attach(leaf.guid.0, path, true, false).await);
            }
        }
    }
}
