//! What is counted by owner is completed in the background, in a file system that is older than these counts are in its pool.

use crate::fs::Fs;

impl Fs {
    /// Starts to complete the counts that the pool has and the file system lacks.
    // OpenZFS: module/zfs/dmu_objset.c, dmu_objset_own; module/zfs/zfs_quota.c, zfs_id_overobjquota
    pub fn start_counting(&self) {
        let Some(dataset) = self.0.backing.dataset() else {
            return;
        };
        let due = dataset.counts_due();
        if due == 0
            || self.settings().read_only
            || self.0.closed.get()
            || self.0.counting.tried.replace(due) == due
        {
            return;
        }
        let fs = self.clone();
        let dataset = dataset.clone();
        let work = async move {
            // What stays incomplete is not shown, and begun anew at the next open.
            let _ = dataset.complete_counts(|| fs.0.closed.get()).await;
        };
        let before = self.0.counting.task.take();
        let task = self.0.handle.spawn("count what owners use", async move {
            if let Some(before) = before {
                before.await;
            }
            work.await;
        });
        *self.0.counting.task.borrow_mut() = Some(task);
    }

    /// Waits for the task, which ends early as the file system is closed.
    pub(crate) async fn stop_counting(&self) {
        let task = self.0.counting.task.take();
        if let Some(task) = task {
            task.await;
        }
    }
}
