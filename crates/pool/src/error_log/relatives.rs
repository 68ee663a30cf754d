//! Which datasets may share a block: those of one directory, and those that branched off, or that it branched off, after the block was born.
// OpenZFS: module/zfs/spa_errlog.c, find_top_affected_fs and check_filesystem

use std::collections::{BTreeMap, BTreeSet};

use ondisk::BlockPointer;
use ondisk::dsl::DslDatasetPhys;

/// All datasets, and how their directories are related.
pub(super) struct Relatives {
    pub(super) datasets: BTreeMap<u64, DslDatasetPhys>,
    /// Datasets by directory.
    by_dir: BTreeMap<u64, Vec<u64>>,
    /// Directories that share history, with the txg of the snapshot at which they part.
    branches: BTreeMap<u64, Vec<(u64, u64)>>,
}

impl From<BTreeMap<u64, DslDatasetPhys>> for Relatives {
    fn from(datasets: BTreeMap<u64, DslDatasetPhys>) -> Self {
        let mut by_dir: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
        let mut branches: BTreeMap<u64, Vec<(u64, u64)>> = BTreeMap::new();
        for (object, phys) in &datasets {
            by_dir.entry(phys.dir_obj).or_default().push(*object);
            let Some(origin) = datasets.get(&phys.prev_snap_obj) else {
                continue;
            };
            if origin.dir_obj != phys.dir_obj {
                for (one, other) in [
                    (phys.dir_obj, origin.dir_obj),
                    (origin.dir_obj, phys.dir_obj),
                ] {
                    let branch = (other, origin.creation_txg);
                    branches.entry(one).or_default().push(branch);
                }
            }
        }
        Self {
            datasets,
            by_dir,
            branches,
        }
    }
}

impl Relatives {
    /// Returns the datasets, with their roots, that may hold a block of `dataset` born in `birth`, by object.
    pub(super) fn that_may_hold(&self, dataset: u64, birth: u64) -> Vec<(u64, BlockPointer)> {
        let mut ahead: Vec<u64> = self
            .datasets
            .get(&dataset)
            .map(|phys| phys.dir_obj)
            .into_iter()
            .collect();
        let (mut seen, mut found) = (BTreeSet::new(), BTreeMap::new());
        while let Some(dir) = ahead.pop() {
            if !seen.insert(dir) {
                continue;
            }
            let branches = self.branches.get(&dir).into_iter().flatten();
            ahead.extend(
                branches
                    .filter(|(_, txg)| *txg >= birth)
                    .map(|(dir, _)| *dir),
            );
            for object in self.by_dir.get(&dir).into_iter().flatten() {
                let root = self.datasets.get(object).map(|phys| phys.bp);
                if let Some(root) = root.filter(|root| root.birth().0 >= birth) {
                    found.insert(*object, root);
                }
            }
        }
        found.into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use ondisk::{ObjectType, Txg};

    use super::*;

    fn dataset(dir_obj: u64, prev_snap_obj: u64, txg: u64) -> DslDatasetPhys {
        DslDatasetPhys {
            dir_obj,
            prev_snap_obj,
            creation_txg: txg,
            bp: BlockPointer::hole(512, ObjectType::OBJSET, 0, Txg(txg)),
            ..DslDatasetPhys::default()
        }
    }

    #[test]
    fn clones_are_asked_if_they_branched_off_after_the_birth() {
        // 10 is the origin of all; 1 has snapshots 21 (txg 50) and 22 (txg 80), 2 is a clone of 22, and 3 of that one's snapshot 41.
        let datasets = BTreeMap::from([
            (10, dataset(9, 0, 1)),
            (21, dataset(1, 10, 50)),
            (22, dataset(1, 21, 80)),
            (20, dataset(1, 22, 200)),
            (41, dataset(2, 22, 90)),
            (40, dataset(2, 41, 200)),
            (60, dataset(3, 41, 200)),
            (70, dataset(4, 10, 200)),
        ]);
        let relatives = Relatives::from(datasets);
        let holders = |dataset, birth| -> Vec<u64> {
            let found = relatives.that_may_hold(dataset, birth);
            found.into_iter().map(|(object, _)| object).collect()
        };
        assert_eq!(holders(20, 40), [20, 21, 22, 40, 41, 60]);
        assert_eq!(holders(60, 60), [20, 22, 40, 41, 60]);
        assert_eq!(holders(20, 85), [20]);
        assert_eq!(holders(40, 85), [40, 41, 60]);
        assert_eq!(holders(60, 95), [60]);
        assert_eq!(holders(70, 40), [70]);
        assert_eq!(holders(99, 40), [0_u64; 0]);
    }
}
