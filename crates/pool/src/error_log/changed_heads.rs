//! The logs follow heads that are destroyed, and clones that are promoted.
// OpenZFS: module/zfs/spa_errlog.c, spa_delete_dataset_errlog and spa_swap_errlog

use dmu::{Tx, zap};
use dsl::HistoryEvent;
use ondisk::ObjectId;
use ondisk::dsl::{DslDatasetPhys, DslDirPhys};
use ondisk::scan::DamagedBlock;

use crate::PoolError;
use crate::pool::ImportedPool;

impl ImportedPool {
    /// Has the logs by heads (`head_errlog`) follow what happened to datasets in this txg. Syncing context.
    pub(crate) async fn error_logs_follow(
        &self,
        event: &HistoryEvent,
        tx: &Tx,
    ) -> Result<(), PoolError> {
        assert!(
            tx.is_syncing(),
            "error logs follow events in syncing context"
        );
        if !self.heads_have_logs() {
            return Ok(());
        }
        match event.name {
            "destroy" => self.forget_head(event.object.0, tx).await,
            "promote" => self.move_to_promoted(event.object.0, tx).await,
            _ => Ok(()),
        }
    }

    /// Deletes what the logs have of a head that is gone: its number will be that of another dataset.
    async fn forget_head(&self, head: u64, tx: &Tx) -> Result<(), PoolError> {
        for cell in [&self.error_logs.last, &self.error_logs.scrub] {
            let log = ObjectId(cell.borrow().object);
            if let Some(own) = self.log_of_head(log, head).await? {
                self.delete_log_of_head(log, head, own, tx).await?;
            }
            let log = &mut *cell.borrow_mut();
            for blocks in [&mut log.stored, &mut log.pending, &mut log.met_elsewhere] {
                blocks.retain(|block| block.objset != head);
            }
        }
        Ok(())
    }

    /// Moves what clones of a promoted head have from before they branched off: the snapshots that hold it are the promoted head's now.
    async fn move_to_promoted(&self, promoted: u64, tx: &Tx) -> Result<(), PoolError> {
        for cell in [&self.error_logs.last, &self.error_logs.scrub] {
            let log = ObjectId(cell.borrow().object);
            let heads = cell.borrow().heads();
            for head in heads {
                let Some(branched) = self.branched_off(head, promoted).await else {
                    continue;
                };
                let Some(own) = self.log_of_head(log, head).await? else {
                    continue;
                };
                let older = cell.borrow().born_until(head, branched);
                for block in older {
                    zap::remove(self.mos(), own, block.head_key(), tx).await?;
                    self.store_of_head(log, promoted, &block, tx).await?;
                    let objset = promoted;
                    let stored = &mut cell.borrow_mut().stored;
                    stored.remove(&block);
                    stored.insert(DamagedBlock { objset, ..block });
                }
                let is_empty = !cell.borrow().heads().contains(&head);
                if is_empty {
                    self.delete_log_of_head(log, head, own, tx).await?;
                }
            }
        }
        Ok(())
    }

    /// Returns the txg of the snapshot of `promoted` that `head` is a clone of. What cannot be read is none: the log may be damaged.
    async fn branched_off(&self, head: u64, promoted: u64) -> Option<u64> {
        let origin = self.dir_of(head).await?.origin_obj;
        let is_of_promoted = head != promoted && self.head_of(origin).await == promoted;
        let origin = self.dataset(origin).await.filter(|_| is_of_promoted);
        origin.map(|origin| origin.creation_txg)
    }

    async fn delete_log_of_head(
        &self,
        log: ObjectId,
        head: u64,
        own: ObjectId,
        tx: &Tx,
    ) -> Result<(), PoolError> {
        zap::remove_int(self.mos(), log, head, tx).await?;
        Ok(self.mos().free_object(own, tx).await?)
    }

    async fn log_of_head(&self, log: ObjectId, head: u64) -> Result<Option<ObjectId>, PoolError> {
        if log.0 == 0 {
            return Ok(None);
        }
        let own = zap::lookup_int_key(self.mos(), log, head).await?;
        Ok(own.map(ObjectId))
    }

    async fn dataset(&self, object: u64) -> Option<DslDatasetPhys> {
        let bonus = self.mos().bonus(ObjectId(object)).await.ok()?;
        DslDatasetPhys::decode(&bonus.bytes).ok()
    }

    /// Returns the directory of a dataset; `None` when that cannot be found.
    pub(super) async fn dir_of(&self, dataset: u64) -> Option<DslDirPhys> {
        let dir = self.dataset(dataset).await?.dir_obj;
        let bonus = self.mos().bonus(ObjectId(dir)).await.ok()?;
        DslDirPhys::decode(&bonus.bytes).ok()
    }
}
