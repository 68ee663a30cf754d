//! Which disks took requests and answered none of them for a while: told from the counters of two moments.

use engine::{PoolStatus, VdevStatus};

/// Returns the paths of the disks that had requests at both moments and completed none between them.
#[must_use]
pub fn silent_disks(before: &PoolStatus, after: &PoolStatus) -> Vec<String> {
    let mut earlier = Vec::new();
    for vdev in std::iter::once(&before.root).chain(&before.caches) {
        leaves(vdev, &mut earlier);
    }
    let mut now = Vec::new();
    for vdev in std::iter::once(&after.root).chain(&after.caches) {
        leaves(vdev, &mut now);
    }
    let is_silent = |leaf: &&VdevStatus| {
        let then = earlier.iter().find(|then| then.guid == leaf.guid);
        then.is_some_and(|then| {
            is_asked(then) && is_asked(leaf) && completed(then) == completed(leaf)
        })
    };
    now.into_iter()
        .filter(is_silent)
        .map(|leaf| leaf.name.clone())
        .collect()
}

/// Whether a disk of the pool has requests that it has not answered.
#[must_use]
pub fn is_any_asked(status: &PoolStatus) -> bool {
    let mut all = Vec::new();
    for vdev in std::iter::once(&status.root).chain(&status.caches) {
        leaves(vdev, &mut all);
    }
    all.into_iter().any(is_asked)
}

fn leaves<'a>(vdev: &'a VdevStatus, into: &mut Vec<&'a VdevStatus>) {
    if vdev.children.is_empty() {
        into.push(vdev);
    }
    for child in &vdev.children {
        leaves(child, into);
    }
}

fn is_asked(leaf: &VdevStatus) -> bool {
    leaf.detail.classes.iter().any(|class| class.active > 0)
}

fn completed(leaf: &VdevStatus) -> [u64; 5] {
    let stats = &leaf.detail;
    [
        stats.read_ops,
        stats.write_ops,
        stats.trim_ops,
        stats.read_errors,
        stats.write_errors,
    ]
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use engine::VdevStats;

    use super::*;

    fn pool(leaves: &[(u64, u32, u64)]) -> PoolStatus {
        let leaf = |(guid, active, write_ops): &(u64, u32, u64)| {
            let mut stats = VdevStats {
                write_ops: *write_ops,
                ..VdevStats::default()
            };
            stats.classes[1].active = *active;
            VdevStatus {
                name: format!("/dev/{guid}"),
                guid: *guid,
                detail: Arc::new(stats),
                ..VdevStatus::default()
            }
        };
        PoolStatus {
            root: VdevStatus {
                children: leaves.iter().map(leaf).collect(),
                ..VdevStatus::default()
            },
            ..PoolStatus::default()
        }
    }

    #[test]
    fn a_disk_is_silent_that_has_requests_and_completes_none() {
        let before = pool(&[(1, 2, 10), (2, 2, 10), (3, 0, 10), (4, 1, 10)]);
        let after = pool(&[(1, 3, 10), (2, 2, 11), (3, 1, 10), (4, 0, 10), (5, 1, 0)]);
        assert_eq!(silent_disks(&before, &after), ["/dev/1"]);
        assert!(is_any_asked(&before));
        assert!(!is_any_asked(&pool(&[(1, 0, 10)])));
    }
}
