//! Export, destroy and close.  Both end with one last txg whose labels say so.

use std::rc::Rc;

use ondisk::NvList;

use crate::config::{STATE_DESTROYED, STATE_EXPORTED};
use crate::pool::{ImportedPool, Pool};
use crate::{PoolError, lifecycle};

impl Pool {
    /// Makes everything durable, marks the pool as exported and closes its devices.
    ///
    /// The caller ensures that the datasets are no longer in use.
    ///
    /// # Errors
    /// `Suspended` when the last txg cannot be written; the pool stays open then.
    pub async fn export(&self) -> Result<(), PoolError> {
        self.0.close_with_state(Some(STATE_EXPORTED)).await
    }

    /// Makes everything durable and closes the devices; the labels go on saying that this host has
    /// the pool.  The end of a process, not of the import.
    ///
    /// # Errors
    /// `Suspended` when the last txg cannot be written; the pool stays open then.
    pub async fn close(&self) -> Result<(), PoolError> {
        self.0.close_with_state(None).await
    }

    /// Marks the pool as destroyed and closes its devices.  Its data stays where it is until the
    /// devices are used for something else.  A pool imported read-only is only closed: its labels
    /// stay as they are.
    ///
    /// # Errors
    /// `Suspended` when the last txg cannot be written; the pool stays open then.
    // OpenZFS: module/zfs/spa.c, spa_export_common (labels change only where the pool syncs)
    pub async fn destroy(&self) -> Result<(), PoolError> {
        self.0.close_with_state(Some(STATE_DESTROYED)).await
    }

    /// Closes the devices without writing anything: what a crash would leave.
    pub fn abandon(&self) {
        self.0.close();
    }
}

impl ImportedPool {
    async fn close_with_state(self: &Rc<Self>, state: Option<u64>) -> Result<(), PoolError> {
        if self.lifecycle.is_closed() {
            return Err(PoolError::Closed);
        }
        if !self.session.readonly {
            if self.lifecycle.is_suspended() {
                return Err(PoolError::Suspended);
            }
            self.stop_walk().await;
            self.stop_rebuilds().await;
            self.stop_discarding().await;
            self.stop_removal().await;
            self.stop_reflow().await;
            self.stop_leaf_activities().await;
            self.stop_autotrim().await;
            self.scan_dirty();
            // Logs of datasets that are still open go with the last txgs, too.
            self.hierarchy().retire_logs();
            // First what was written so far, then the labels: the last txg is then short.
            self.clock().sync_all().await?;
            if let Some(state) = state {
                self.config.set_label_state(state);
                self.space().flush_all_logs();
                self.dirty_config();
                self.clock().sync_all().await?;
                let name = match state {
                    STATE_DESTROYED => "pool_destroy",
                    _ => "pool_export",
                };
                self.notify(name, None, NvList::new());
            }
        }
        self.close();
        let task = self.sync.take_loop();
        if let Some(task) = task {
            task.await;
        }
        self.end_heartbeats().await;
        self.close_cache_devices().await;
        Ok(())
    }

    fn close(&self) {
        if self.lifecycle.close() {
            self.clock().stop(lifecycle::CLOSED);
            self.tree().close();
            self.lifecycle.notify();
            self.multihost.stop_heartbeats();
            self.tree().events().wake();
        }
    }
}
