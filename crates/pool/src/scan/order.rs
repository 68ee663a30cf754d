//! The order in which a scan visits datasets, as OpenZFS keeps it: each after the snapshot it grew from, so that every
//! block is visited once, by the oldest dataset that holds it.
//!
//! Snapshots that come and go meanwhile are noticed at the end, when everything that exists must have been visited as
//! far back as its history now reaches.
// OpenZFS: module/zfs/dsl_scan.c, dsl_scan_visitds and scan_ds_queue (order, and what the queue object says)

use std::collections::{BTreeMap, BTreeSet};

use dmu::{Objset, zap};
use ondisk::dsl::{DslDatasetPhys, DslDirPhys};
use ondisk::{ObjectId, ObjectType};

use crate::PoolError;
use crate::objects::DIRECTORY;

/// Deepest nesting of directories and longest chain of snapshots believed.
const DATASETS_MAX: usize = 10_000_000;

/// Datasets to be visited, each with the txg after which its own blocks were born.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct DatasetOrder {
    /// Blocks born in or before this txg are not wanted of any dataset.
    pub(super) floor: u64,
    pub(super) waiting: BTreeMap<u64, u64>,
    /// Visited, and from which txg on.
    done: BTreeMap<u64, u64>,
    /// Changes of `waiting` since the queue object was written.
    changes: BTreeMap<u64, Option<u64>>,
}

impl From<u64> for DatasetOrder {
    /// An empty order of a scan that wants only blocks born after `floor`.
    fn from(floor: u64) -> Self {
        Self {
            floor,
            ..Self::default()
        }
    }
}

impl DatasetOrder {
    /// The order of a scan that goes on: what the queue object said.
    pub(super) async fn resume(
        mos: &Objset,
        floor: u64,
        current: Option<u64>,
        waiting: BTreeMap<u64, u64>,
    ) -> Result<Self, PoolError> {
        let all = all_datasets(mos).await?;
        // What cannot be reached from what waits has been visited.
        let mut ahead: BTreeSet<u64> = BTreeSet::new();
        let mut work: Vec<u64> = waiting.keys().copied().chain(current).collect();
        while let Some(object) = work.pop() {
            if ahead.insert(object)
                && let Some(phys) = all.get(&object)
            {
                work.extend(descendants(mos, phys).await?);
            }
        }
        let done = all
            .iter()
            .filter(|(object, _)| !ahead.contains(object))
            .map(|(object, phys)| (*object, phys.prev_snap_txg.max(floor)))
            .collect();
        Ok(Self {
            floor,
            waiting,
            done,
            changes: BTreeMap::new(),
        })
    }

    /// Puts a dataset on the list unless it was visited from that txg on.
    fn push(&mut self, object: u64, min_txg: u64) {
        let min_txg = min_txg.max(self.floor);
        if object == 0 || self.done.get(&object).is_some_and(|&done| done <= min_txg) {
            return;
        }
        let entry = self.waiting.entry(object).or_insert(min_txg);
        *entry = (*entry).min(min_txg);
        self.changes.insert(object, Some(*entry));
    }

    /// Takes the next dataset off the list.
    pub(super) fn pop(&mut self) -> Option<(u64, u64)> {
        let next = self.waiting.pop_first()?;
        self.changes.insert(next.0, None);
        Some(next)
    }

    /// Notes that a dataset was visited, and puts what grew from it on the list.
    pub(super) async fn visited(
        &mut self,
        mos: &Objset,
        object: u64,
        min_txg: u64,
    ) -> Result<(), PoolError> {
        self.done.insert(object, min_txg);
        if let Some(phys) = dataset(mos, object).await? {
            for next in descendants(mos, &phys).await? {
                self.push(next, phys.creation_txg);
            }
        }
        Ok(())
    }

    /// Puts on the list whatever has not been visited; the oldest datasets at the start of a scan.
    pub(super) async fn refill(&mut self, mos: &Objset, max_txg: u64) -> Result<(), PoolError> {
        let start = self.done.is_empty();
        for (object, phys) in all_datasets(mos).await? {
            let wanted = if start {
                phys.prev_snap_obj == 0
            } else {
                phys.prev_snap_txg < max_txg
            };
            if wanted {
                self.push(object, phys.prev_snap_txg);
            }
        }
        Ok(())
    }

    /// Takes the changes that the queue object must get: a txg to store, or `None` to remove.
    pub(super) fn take_changes(&mut self) -> BTreeMap<u64, Option<u64>> {
        std::mem::take(&mut self.changes)
    }
}

/// Reads a dataset; `None` when it is gone.
pub(super) async fn dataset(
    mos: &Objset,
    object: u64,
) -> Result<Option<DslDatasetPhys>, PoolError> {
    let bonus = match mos.bonus(ObjectId(object)).await {
        Ok(bonus) => bonus,
        Err(error) if error.is_not_found() => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    if bonus.bonus_type != ObjectType::DSL_DATASET {
        return Ok(None);
    }
    Ok(DslDatasetPhys::decode(&bonus.bytes).ok())
}

/// The next snapshot or head, and the clones.
async fn descendants(mos: &Objset, phys: &DslDatasetPhys) -> Result<Vec<u64>, PoolError> {
    let mut found = Vec::new();
    if phys.next_snap_obj != 0 {
        found.push(phys.next_snap_obj);
    }
    if phys.next_clones_obj != 0 {
        for entry in zap::entries(mos, ObjectId(phys.next_clones_obj)).await? {
            if let zap::ZapValue::U64(value) = entry.value {
                found.extend(value.first());
            }
        }
    }
    Ok(found)
}

/// Every head and snapshot there is.
pub(crate) async fn all_datasets(mos: &Objset) -> Result<BTreeMap<u64, DslDatasetPhys>, PoolError> {
    let root = zap::lookup_u64(mos, DIRECTORY, "root_dataset")
        .await?
        .unwrap_or(0);
    Ok(datasets_below(mos, root).await?.0)
}

/// Every head and snapshot of a directory and those below it, with the snapshots that clones among them grew from, and the directories.
pub(crate) async fn datasets_below(
    mos: &Objset,
    root: u64,
) -> Result<(BTreeMap<u64, DslDatasetPhys>, BTreeMap<u64, DslDirPhys>), PoolError> {
    let mut dirs = vec![root];
    let mut seen = BTreeMap::new();
    let mut all = BTreeMap::new();
    while let Some(dir) = dirs.pop() {
        if dir == 0 || seen.contains_key(&dir) || seen.len() >= DATASETS_MAX {
            continue;
        }
        let bonus = match mos.bonus(ObjectId(dir)).await {
            Ok(bonus) => bonus,
            Err(error) if error.is_not_found() => continue,
            Err(error) => return Err(error.into()),
        };
        let Ok(phys) = DslDirPhys::decode(&bonus.bytes) else {
            continue;
        };
        seen.insert(dir, phys);
        if phys.child_dir_zapobj != 0 {
            for entry in zap::entries(mos, ObjectId(phys.child_dir_zapobj)).await? {
                if let zap::ZapValue::U64(value) = entry.value {
                    dirs.extend(value.first());
                }
            }
        }
        let mut object = phys.head_dataset_obj;
        while object != 0 && all.len() < DATASETS_MAX {
            let Some(phys) = dataset(mos, object).await? else {
                break;
            };
            let previous = phys.prev_snap_obj;
            if all.insert(object, phys).is_some() {
                // From here on it is the history of another dataset.
                break;
            }
            object = previous;
        }
    }
    Ok((all, seen))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dataset_is_visited_again_only_when_its_history_grew() {
        let mut order = DatasetOrder::default();
        order.push(7, 10);
        order.push(7, 5);
        order.push(7, 8);
        assert_eq!(order.pop(), Some((7, 5)));
        assert_eq!(order.pop(), None);
        order.done.insert(7, 5);
        order.push(7, 5);
        order.push(7, 6);
        assert_eq!(order.pop(), None);
        // The snapshot before it was destroyed: older blocks are its own now.
        order.push(7, 2);
        assert_eq!(order.pop(), Some((7, 2)));
        assert_eq!(
            order.take_changes().into_iter().collect::<Vec<_>>(),
            [(7, None)]
        );
    }

    #[test]
    fn a_resilver_wants_nothing_older_than_what_is_missing() {
        let mut order = DatasetOrder {
            floor: 20,
            ..DatasetOrder::default()
        };
        order.push(7, 10);
        assert_eq!(order.pop(), Some((7, 20)));
        order.done.insert(7, 20);
        order.push(7, 10);
        assert_eq!(order.pop(), None);
    }
}
