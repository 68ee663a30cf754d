//! Counts of what owners use in a file system that is older than they are in its pool, or that a raw stream brought: completed by a walk
//! over its objects.
//!
//! OpenZFS: module/zfs/dmu_objset.c, dmu_objset_id_quota_upgrade_cb and dmu_objset_userspace_upgrade_cb.

use dmu::Objset;
use ondisk::{ObjsetType, Txg, objset_flags};

use crate::dataset::Dataset;
use crate::error::Result;
use crate::features::Features;
use crate::types::Estimate;

/// Features of the pool, each with the flag of the object sets in which what it counts is complete.
const COUNTED_BY_FEATURE: [(&str, u64); 2] = [
    (
        "userobj_accounting",
        objset_flags::USER_OBJECT_ACCOUNTING_COMPLETE,
    ),
    ("project_quota", objset_flags::PROJECT_QUOTA_COMPLETE),
];

/// Objects that become dirty in one txg at most: their dnodes and the blocks of the table stay in memory until it is on disk.
const OBJECTS_PER_TXG_MAX: u64 = 16 << 10;

/// What the objects of a block of dnodes make dirty, roughly: the block itself and those above it.
const BLOCK_BYTES: u64 = 64 << 10;

/// Features whose counts a file system of the pool has, with their flags.
pub(crate) fn counted_by_feature(
    features: &Features,
) -> impl Iterator<Item = (&'static str, u64)> + '_ {
    COUNTED_BY_FEATURE
        .into_iter()
        .filter(|(feature, _)| features.is_enabled(feature))
}

/// Whether the counts of `flags` say all of an object set.
pub(crate) fn are_complete(objset: &Objset, flags: u64) -> bool {
    objset.flags() & flags == flags
}

impl Dataset {
    /// Whether files may have projects.
    #[must_use]
    pub fn has_projects(&self) -> bool {
        self.pool_features().is_enabled("project_quota")
    }

    /// The flags of counts that the pool has and the file system lacks; 0 also where nothing can be written.
    #[must_use]
    pub fn counts_due(&self) -> u64 {
        let objset = self.objset();
        let have = objset.flags();
        let all = objset_flags::USER_ACCOUNTING_COMPLETE
            | objset_flags::USER_OBJECT_ACCOUNTING_COMPLETE
            | objset_flags::PROJECT_QUOTA_COMPLETE;
        if have & all == all
            || objset.kind() != ObjsetType::ZFS
            || objset.is_read_only()
            || !objset.knows_owners()
        {
            return 0;
        }
        counted_by_feature(self.pool_features()).fold(
            objset_flags::USER_ACCOUNTING_COMPLETE,
            |flags, (_, flag)| flags | flag,
        ) & !have
    }

    /// Completes the counts that are due; they are on disk on return. Clients may change everything meanwhile. Ends early, with false, when
    /// `stop` says so; what was counted until then stays counted.
    ///
    /// # Errors
    /// Of reading and writing: then the counts stay incomplete.
    pub async fn complete_counts(&self, stop: impl Fn() -> bool) -> Result<bool> {
        let objset = self.objset();
        let _pass = objset.counting_pass().await;
        let due = self.counts_due();
        if due == 0 {
            return Ok(true);
        }
        for (feature, flag) in counted_by_feature(self.pool_features()) {
            if due & flag != 0 {
                self.needs_feature(feature);
            }
        }
        let tx = self.begin(Estimate::freeing(BLOCK_BYTES)).await?;
        let clock = tx.clock().clone();
        let mut block = objset.begin_counting(due, &tx).await?;
        let begun = tx.txg();
        drop(tx);
        // Objects made before that are on disk then, and those made later are counted when they are written.
        clock.wait_synced(begun).await?;
        let (mut txg, mut dirty) = (Txg(0), 0);
        while let Some(next) = objset.next_to_count(block).await? {
            if stop() {
                return Ok(false);
            }
            let tx = self.begin(Estimate::freeing(BLOCK_BYTES)).await?;
            if tx.txg() != txg {
                (txg, dirty) = (tx.txg(), 0);
            }
            dirty += objset.count_block(next, &tx).await?;
            drop(tx);
            if dirty >= OBJECTS_PER_TXG_MAX {
                clock.wait_synced(txg).await?;
            }
            block = next + 1;
        }
        let tx = self.begin(Estimate::freeing(BLOCK_BYTES)).await?;
        let ended = tx.txg();
        objset.end_counting(&tx);
        drop(tx);
        clock.wait_synced(ended).await?;
        objset.forget_counting();
        Ok(true)
    }
}
