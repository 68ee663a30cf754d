//! What owners use is counted where it was not when the objects were made: each object is written once more, some in every txg.
//!
//! ```text
//!  begin_counting(T) -- objects of a block of dnodes become dirty -- ... -- end_counting(T + n): the objset's flags say that all is counted
//!                                   counted_to ->
//! ```
//! Each dnode says by its flags whether it is in the counts of users and groups, so that objects that are not yet counted there are
//! counted by the next sync that writes them, and a walk that was cut off goes over those alone that are left. No flag says so of
//! projects, nor does one tell of a dnode that a raw stream wrote: these counts begin empty each time the objset is opened, and
//! until the walk is done an object is in them when it lies before `counted_to` or was made since the walk began.
//!
//! OpenZFS: module/zfs/dmu_objset.c, dmu_objset_id_quota_upgrade_cb.

use ondisk::{ObjectId, dnode_flags};

use crate::counted_objects::Counting;
use crate::dnode::{NEWEST, SLOTS};
use crate::error::Result;
use crate::objset::{GROUP_USED, Objset, PROJECT_USED, USER_USED};
use crate::txg::Tx;
use crate::wait::Pass;

impl Objset {
    /// Whether the owners of its objects are known, so that what they use can be counted.
    #[must_use]
    pub fn knows_owners(&self) -> bool {
        self.0.options.owner_of.is_some()
    }

    /// Waits until no other walk counts the objects of this objset. Not to be called while holding a transaction.
    pub async fn counting_pass(&self) -> CountingPass<'_> {
        CountingPass {
            _pass: self.0.counting_gate.write().await,
        }
    }

    /// Begins to count, for `flags` that the objset does not have yet, or goes on with that. Returns the first block of dnodes that is
    /// left; the walk begins once the txg of `tx` is on disk.
    ///
    /// # Errors
    /// `ReadOnly`, read errors.
    pub async fn begin_counting(&self, flags: u64, tx: &Tx) -> Result<u64> {
        self.check_writable()?;
        if let Some(counting) = &*self.0.counting.borrow()
            && counting.flags == flags
        {
            return Ok(counting.reached(NEWEST) / SLOTS);
        }
        let counting = Counting::new(flags, self.flags(), tx.txg());
        let mut emptied = Vec::new();
        if counting.owners_anew {
            emptied.extend([USER_USED, GROUP_USED]);
        }
        if counting.projects_anew {
            emptied.push(PROJECT_USED);
        }
        *self.0.counting.borrow_mut() = Some(counting);
        for object in emptied {
            if let Some(counts) = self.dnode_any(object).await?
                && !counts.is_free(NEWEST)
            {
                self.free_object(object, tx).await?;
            }
        }
        self.mark_dirty(tx);
        Ok(0)
    }

    /// Returns the next block of dnodes from `block` on that is on disk, and reads it.
    ///
    /// # Errors
    /// Read errors.
    pub async fn next_to_count(&self, block: u64) -> Result<Option<u64>> {
        let next = self.next_base_block(&self.0.meta, block).await?;
        if let Some(next) = next {
            self.slots_taken(next, None).await?;
        }
        Ok(next)
    }

    /// Has the objects of a block of dnodes counted by the sync of `tx`'s txg, where they are not. Returns how many.
    ///
    /// # Errors
    /// Read errors.
    pub async fn count_block(&self, block: u64, tx: &Tx) -> Result<u64> {
        let taken = self.slots_taken(block, None).await?;
        let by_flags = self
            .0
            .counting
            .borrow()
            .as_ref()
            .is_some_and(|counting| !counting.begins_empty());
        let mut count = 0;
        for object in (0..SLOTS).map(|slot| ObjectId(block * SLOTS + slot)) {
            if object.0 == 0 || taken & (1 << (object.0 % SLOTS)) == 0 {
                continue;
            }
            let Some(dnode) = self.dnode_any(object).await? else {
                continue;
            };
            let is_counted =
                by_flags && dnode.base().flags & dnode_flags::USEROBJUSED_ACCOUNTED != 0;
            if !dnode.is_free(tx.txg()) && !is_counted {
                self.dirty_layer(&dnode, tx);
                count += 1;
            }
        }
        if let Some(counting) = &mut *self.0.counting.borrow_mut() {
            counting.reach(tx.txg(), (block + 1) * SLOTS);
        }
        Ok(count)
    }

    /// Ends the walk, which went over all blocks of dnodes: from the txg of `tx` on the counts are complete.
    pub fn end_counting(&self, tx: &Tx) {
        if let Some(counting) = &mut *self.0.counting.borrow_mut() {
            counting.reach(tx.txg(), u64::MAX);
            self.set_flags(self.flags() | counting.flags, tx);
        }
    }

    /// Forgets the walk, once the txg that ended it is on disk.
    pub fn forget_counting(&self) {
        self.0.counting.take();
    }
}

/// The right to be the only one that completes the counts of an objset.
pub struct CountingPass<'a> {
    _pass: Pass<'a>,
}
