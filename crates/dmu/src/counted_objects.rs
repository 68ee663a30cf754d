//! How far the counts of what owners use are completed: which objects are in counts that began empty.

use std::collections::{BTreeMap, BTreeSet};

use ondisk::{ObjectId, Txg, objset_flags};

/// Counts that are being completed.
pub(crate) struct Counting {
    /// The flags that the objset gets in the end.
    pub(crate) flags: u64,
    /// The txg from which on objects are counted.
    pub(crate) from: Txg,
    /// The counts of users and groups began empty.
    pub(crate) owners_anew: bool,
    /// The counts of projects did.
    pub(crate) projects_anew: bool,
    /// Objects before this one are counted at the end of a txg and of those that follow.
    counted_to: BTreeMap<Txg, u64>,
    /// Objects behind that were made since `from`.
    made_since: BTreeSet<ObjectId>,
}

impl Counting {
    pub(crate) fn new(flags: u64, complete: u64, from: Txg) -> Self {
        let owners_anew = flags & objset_flags::USER_ACCOUNTING_COMPLETE != 0;
        let project = objset_flags::PROJECT_QUOTA_COMPLETE;
        Self {
            flags,
            from,
            owners_anew,
            projects_anew: flags & project != 0 || (owners_anew && complete & project != 0),
            counted_to: BTreeMap::from([(from, 0)]),
            made_since: BTreeSet::new(),
        }
    }

    /// Whether some counts began empty.
    pub(crate) fn begins_empty(&self) -> bool {
        self.owners_anew || self.projects_anew
    }

    pub(crate) fn reached(&self, txg: Txg) -> u64 {
        self.counted_to
            .range(..=txg)
            .next_back()
            .map_or(0, |(_, &end)| end)
    }

    pub(crate) fn reach(&mut self, txg: Txg, end: u64) {
        self.counted_to.insert(txg, end);
        // At most three txgs are not on disk, and the one before them is asked for.
        while self.counted_to.len() > 4 {
            self.counted_to.pop_first();
        }
    }

    /// Takes note of an object that a sync of `txg` writes. Returns whether it was, and whether it is now, in counts that began empty.
    pub(crate) fn pass_over(
        &mut self,
        object: ObjectId,
        txg: Txg,
        pass: u32,
        change: ObjectChange,
    ) -> (bool, bool) {
        let before = if pass == 1 { Txg(txg.0 - 1) } else { txg };
        let was = object.0 < self.reached(before) || self.made_since.contains(&object);
        let is_behind = object.0 < self.reached(txg);
        match change {
            ObjectChange::Made if !is_behind => {
                self.made_since.insert(object);
            }
            ObjectChange::Changed if !is_behind => {}
            _ => {
                self.made_since.remove(&object);
            }
        }
        (was, was || is_behind || change == ObjectChange::Made)
    }
}

/// What a txg does to an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ObjectChange {
    /// It was made, also in the place of another.
    Made,
    Changed,
    Freed,
}
