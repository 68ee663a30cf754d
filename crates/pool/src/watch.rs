//! What a pool in use does about its devices without being told: spares take over, devices that are back come into service,
//! and (with `autoreplace=on`) an empty disk in the place of one that is gone takes its place.
//!
//! Nothing here waits: the sync loop looks in at every round, and what is to be done is done in the background.
// OpenZFS: cmd/zed (agents for hot plug, retirement and replacement)

use std::path::Path;
use std::time::Duration;

use vdev::{DiskUse, Health};

use crate::pool::{Inner, Pool, Stored};
use crate::sparing::spare_in_background;

/// How often devices that are away are looked for.
const LOOK_EVERY: Duration = Duration::from_secs(10);

/// Begins to look after the devices of a pool that has just been opened: they need not be looked for at once.
pub(crate) fn begin(pool: &Pool) {
    let inner = &pool.0;
    inner.next_look.set(inner.handle.now() + LOOK_EVERY);
}

/// Looks after the devices. Called at every round of the sync loop.
pub(crate) fn look_after_devices(pool: &Pool) {
    spare_in_background(pool);
    let inner = &pool.0;
    crate::autotrim::look(inner);
    let now = inner.handle.now();
    if now < inner.next_look.get() {
        return;
    }
    inner.next_look.set(now + LOOK_EVERY);
    if inner.readonly || inner.writable().is_err() || inner.away().is_empty() {
        return;
    }
    let pool = pool.clone();
    drop(pool.0.handle.clone().spawn("hot plug", async move {
        // What fails is tried again at the next look.
        drop(pool.reopen().await);
        pool.0.replace_by_itself(&pool).await;
    }));
}

impl Inner {
    /// Returns the leaves that are away, not by will, with the paths they were at.
    fn away(&self) -> Vec<vdev::LeafInfo> {
        let mut leaves = self.tree.leaves();
        leaves.retain(|leaf| matches!(leaf.health, Health::Removed | Health::Unavailable));
        leaves
    }

    /// Has empty disks take the places of those that were at the same paths.
    async fn replace_by_itself(&self, pool: &Pool) {
        let wanted = matches!(
            self.properties.borrow().get("autoreplace"),
            Some(Stored::Number(1))
        );
        if !wanted {
            return;
        }
        for leaf in self.away() {
            let path = Path::new(&leaf.path);
            let found = vdev::disk_use(&self.handle, path).await;
            if matches!(found, Ok(DiskUse::Free)) && self.writable().is_ok() {
                // Too small, or replaced already: nothing to be done.
                drop(pool.attach(leaf.guid.0, path, true, false).await);
            }
        }
    }
}
