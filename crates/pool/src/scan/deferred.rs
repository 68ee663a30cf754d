//! Devices that came while a resilver runs: when that has done a good part of its work, they wait for the next one instead of having it begin
//! again.
// OpenZFS: module/zfs/vdev.c, vdev_defer_resilver; module/zfs/dsl_scan.c, dsl_scan_sync (zfs_resilver_defer_percent)

use std::cell::Cell;
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;

use dmu::Tx;
use ondisk::Guid;

use crate::PoolError;
use crate::pool::ImportedPool;

/// The feature, which is in use while a device waits.
const FEATURE: &str = "resilver_defer";
/// The mark in a device's configuration.
const MARK: &str = "com.datto:resilver_defer";
/// A resilver that has done less than this much of its work begins again.
const DONE_PERCENT: u64 = 10;
const _: () = assert!(DONE_PERCENT <= 100);

impl ImportedPool {
    /// Has the leaves that the resilver under way does not work for wait for its end; false when it is to begin again instead.
    pub(super) async fn defer_resilver(
        self: &Rc<Self>,
        outdated: &BTreeMap<u64, Vec<Range<u64>>>,
    ) -> Result<bool, PoolError> {
        let status = self.activities.scan.status().unwrap_or_default();
        let total = status.to_examine_bytes.saturating_sub(status.skipped_bytes);
        let early = status.issued_bytes < total / 100 * DONE_PERCENT;
        if early || !self.hierarchy().features().is_enabled(FEATURE) {
            return Ok(false);
        }
        let is_waiting =
            |leaf: &&u64| !self.activities.scan.resilvering.borrow().contains_key(leaf);
        let waiting: Vec<u64> = outdated.keys().filter(is_waiting).copied().collect();
        let deferred = Rc::new(Cell::new(false));
        let noted = Rc::clone(&deferred);
        self.run_in_sync(async move |imported: Rc<Self>, tx: Rc<Tx>| {
            // It may have ended meanwhile; then none of them has to wait.
            noted.set(imported.activities.scan.is_resilvering());
            if !noted.get() {
                return Ok(());
            }
            let features = imported.hierarchy().features();
            if !features.is_active(FEATURE) {
                features.incr(FEATURE, &tx).await?;
            }
            for leaf in waiting {
                imported
                    .tree()
                    .update_config(Guid(leaf), |vdev| vdev.extra.insert_flag(MARK));
            }
            imported.dirty_config();
            Ok(())
        })
        .await?;
        Ok(deferred.get())
    }

    /// Whether a leaf waits for the end of the resilver under way.
    pub(crate) fn is_deferred(&self, leaf: Guid) -> bool {
        let marked = || {
            let config = self.tree().config();
            let mut leaves = config.leaves().into_iter();
            leaves.any(|known| known.guid == leaf && known.extra.get(MARK).is_some())
        };
        self.hierarchy().features().is_active(FEATURE) && marked()
    }

    /// No device waits any more: what is outdated is resilvered next. Syncing context.
    pub(super) async fn end_deferral(&self, tx: &Tx) -> Result<(), PoolError> {
        assert!(tx.is_syncing(), "a deferral ends in syncing context");
        let features = self.hierarchy().features();
        if features.is_active(FEATURE) {
            features.decr(FEATURE, tx).await?;
            for leaf in self.tree().leaves() {
                self.tree().update_config(leaf.guid, |vdev| {
                    vdev.extra.remove(MARK);
                });
            }
            self.dirty_config();
        }
        Ok(())
    }
}
