//! `autotrim=on`: freed space is discarded on the devices, some txgs after it could be allocated again.
//!
//! Guarantees: only free space is touched, and it is not allocated meanwhile; ranges too short to be worth a discard wait for
//! their neighbours. Does not know what was free before the property was set: that is `zpool trim`.
// OpenZFS: module/zfs/vdev_trim.c, vdev_autotrim_thread, zfs_trim_txg_batch

mod state;

use std::rc::Rc;

use vdev::Health;

pub(crate) use self::state::AutotrimState;
use crate::initialize_trim::{TRIM_BYTES_MIN, TRIM_HELD};
use crate::pool::ImportedPool;

/// Rounds of the sync loop, mostly txgs, in which freed space is collected.
const ROUNDS: u32 = 32;

/// Takes note of a round of the sync loop.
pub(crate) fn look(imported: &Rc<ImportedPool>) {
    let state = &imported.activities.autotrim;
    let wanted = imported.properties.is_on("autotrim");
    if state.on.replace(wanted) != wanted {
        state.rounds.set(0);
        state.unable.borrow_mut().clear();
        imported.store().collect_freed(wanted);
    }
    if !wanted {
        return;
    }
    state.rounds.set(state.rounds.get() + 1);
    let task = state.task.borrow();
    let runs = task.as_ref().is_some_and(|task| !task.is_finished());
    drop(task);
    if state.rounds.get() < ROUNDS || runs || imported.writable().is_err() {
        return;
    }
    state.rounds.set(0);
    let worker = Rc::clone(imported);
    let task = async move { worker.discard_freed().await };
    let task = imported.handle().spawn("autotrim", task);
    state.task.replace(Some(task));
}

impl ImportedPool {
    /// Waits until nothing is being discarded any more, of a pool that is about to be left.
    pub(crate) async fn stop_autotrim(&self) {
        let task = self.activities.autotrim.task.borrow_mut().take();
        if let Some(task) = task {
            task.await;
        }
    }

    async fn discard_freed(&self) {
        // Also for vdevs that came since.
        self.store().collect_freed(true);
        for (vdev, metaslab) in self.store().freed_metaslabs() {
            if self.activities.leaf_activities.is_closing() || self.lifecycle.is_stopped() {
                return;
            }
            let turn = self.activities.leaf_activities.turn(vdev);
            let _guard = turn.lock().await;
            let held = self
                .store()
                .hold_freed(vdev, metaslab, TRIM_BYTES_MIN, TRIM_HELD);
            let Ok(ranges) = held.await else { continue };
            for leaf in self.tree().leaves() {
                let able = leaf.top == vdev && leaf.health == Health::Online;
                if !able
                    || self
                        .activities
                        .autotrim
                        .unable
                        .borrow()
                        .contains(&leaf.guid)
                {
                    continue;
                }
                let parts = |range| self.tree().leaf_ranges(leaf.guid, range);
                for on_leaf in ranges.iter().filter_map(parts).flatten() {
                    if on_leaf.end.saturating_sub(on_leaf.start) < TRIM_BYTES_MIN {
                        continue;
                    }
                    match self.tree().trim_leaf(leaf.guid, &on_leaf).await {
                        Ok(true) => {}
                        Ok(false) => {
                            self.activities
                                .autotrim
                                .unable
                                .borrow_mut()
                                .insert(leaf.guid);
                            break;
                        }
                        // It is gone, or refuses: its free space stays as it is.
                        Err(_) => break,
                    }
                }
            }
            self.store().release_free(vdev, metaslab);
        }
    }
}
