//! Times of txgs: what a scrub of a range of days goes by.
// OpenZFS: module/zfs/spa.c, spa_sync_time_logger, spa_load_txg_log_time; module/zfs/zfs_ioctl.c, zfs_ioc_pool_scrub

use dmu::{Tx, zap};
use ondisk::txg_times::{TxgTime, TxgTimeList, TxgTimes};

use crate::PoolError;
use crate::objects::DIRECTORY;
use crate::pool::ImportedPool;

/// How often a time is noted, at least; a pool that is not written to notes none.
const NOTED_EVERY_S: u64 = 10 * 60;

impl ImportedPool {
    /// Reads the times that were noted. Lists that are damaged begin anew.
    pub(super) async fn load_txg_times(&self) -> Result<(), PoolError> {
        let mut times = TxgTimes::default();
        let lists = [&mut times.minutes, &mut times.days, &mut times.months];
        for (name, list) in TxgTimes::NAMES.into_iter().zip(lists) {
            if let Some(zap::ZapValue::U64(words)) =
                zap::lookup(self.mos(), DIRECTORY, name).await?
            {
                *list = TxgTimeList::from_words(&words).unwrap_or_default();
            }
        }
        *self.activities.scan.txg_times.borrow_mut() = times;
        Ok(())
    }

    /// Notes the time of the txg that is being synced, when the last one is old enough. Syncing context.
    pub(crate) async fn note_txg_time(&self, tx: &Tx) -> Result<(), PoolError> {
        assert!(tx.is_syncing(), "a time is noted in syncing context");
        let scan = &self.activities.scan;
        let now = self.unix_time();
        // Pools without features keep what their version knows.
        if now < scan.txg_time_due.get() || !self.config.has_features() {
            return Ok(());
        }
        scan.txg_time_due.set(now.saturating_add(NOTED_EVERY_S));
        let entry = TxgTime {
            time: now,
            txg: tx.txg().0,
        };
        let changed = scan
            .txg_times
            .borrow_mut()
            .add(entry)
            .map(|(name, list)| (name, zap::ZapValue::U64(list.to_words())));
        if let Some((name, value)) = changed {
            zap::update(self.mos(), DIRECTORY, name, &value, tx).await?;
        }
        Ok(())
    }

    /// Returns the txg that everything written at or after `time` (seconds since 1970) was born after; 0 when nothing is known
    /// of a time as old.
    pub(super) fn txg_before(&self, time: u64) -> u64 {
        let times = self.activities.scan.txg_times.borrow();
        times.at_or_before(time).unwrap_or(0)
    }

    /// Returns the txg by which everything written before `time` was born; `None` when that can be any of those there are.
    pub(super) fn txg_after(&self, time: u64) -> Option<u64> {
        let noted = self.activities.scan.txg_times.borrow().at_or_after(time);
        // While a txg is synced the next one is closed, and a third one takes what is written.
        noted.map(|txg| txg + 2)
    }
}
