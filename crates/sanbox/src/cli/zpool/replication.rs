//! Whether the vdevs of a pool, and those to be added to it, can lose as many devices each: the weakest is the pool's.
// OpenZFS: cmd/zpool/zpool_vdev.c, get_replication and check_replication (what is compared, and the words)

use std::io::{Seek as _, SeekFrom};
use std::path::Path;

use engine::{AllocationBias, VdevSpec, VdevStatus};

/// Devices of one vdev may differ in size by this much.
// OpenZFS: cmd/zpool/zpool_vdev.c, ZPOOL_FUZZ
const FUZZ: u64 = 16 << 20;

/// How many devices a vdev has and how many of them may be lost.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Level {
    kind: String,
    ways: usize,
    parity: usize,
}

/// A vdev as far as this comparison goes.
pub(super) struct Vdev {
    level: Level,
    leaves: Vec<(String, Option<u64>)>,
}

impl Vdev {
    /// Of a vdev to be made.
    pub(super) fn of_spec(spec: &VdevSpec) -> Self {
        let leaves: Vec<_> = spec.paths().iter().map(|path| leaf(path)).collect();
        let kind = match spec {
            VdevSpec::Single(_) => leaves[0].0.clone(),
            VdevSpec::Mirror(_) => "mirror".to_owned(),
            VdevSpec::Raidz { .. } => "raidz".to_owned(),
            VdevSpec::Draid { .. } => "draid".to_owned(),
        };
        Self {
            level: Level {
                kind,
                ways: leaves.len(),
                parity: usize::from(spec.parity()),
            },
            leaves,
        }
    }

    /// Of a top-level vdev of a pool; `None` of those that do not count: logs.
    fn of_status(top: &VdevStatus) -> Option<Self> {
        /// What stands for a device while it is replaced is one device.
        fn real(vdev: &VdevStatus) -> &VdevStatus {
            match vdev.children.first() {
                Some(first) if matches!(vdev.kind.as_str(), "replacing" | "spare") => real(first),
                _ => vdev,
            }
        }
        if top.bias == AllocationBias::Log {
            return None;
        }
        let shown = top
            .name
            .trim_start_matches("raidz")
            .trim_start_matches("draid");
        let parity = match top.kind.as_str() {
            "raidz" | "draid" => shown.chars().next().and_then(|digit| digit.to_digit(10)),
            _ => Some(0),
        };
        let leaves: Vec<_> = top
            .children
            .iter()
            .map(real)
            .filter_map(|vdev| vdev.path.as_deref())
            .map(leaf)
            .collect();
        Some(Self {
            level: Level {
                kind: top.kind.clone(),
                ways: top.children.len().max(1),
                parity: parity.unwrap_or(1) as usize,
            },
            leaves,
        })
    }
}

fn leaf(path: &Path) -> (String, Option<u64>) {
    let device = std::fs::metadata(path).is_ok_and(|data| !data.is_file());
    let kind = if device { "disk" } else { "file" };
    // The size of a block device is where it ends.
    let end = |mut file: std::fs::File| file.seek(SeekFrom::End(0)).ok();
    let size = std::fs::File::open(path).ok().and_then(end);
    (kind.to_owned(), size.filter(|&size| size != 0))
}

/// Returns what is wrong with adding `new` to a pool whose root is `pool`, or with a new pool made of them; empty when
/// nothing is. A pool that is uneven already may get anything that is even in itself.
pub(super) fn complaints(pool: Option<&VdevStatus>, new: &[Vdev]) -> Vec<String> {
    let mut current = None;
    if let Some(root) = pool {
        let own: Vec<Vdev> = root.children.iter().filter_map(Vdev::of_status).collect();
        if !uneven(&own).is_empty() {
            return Vec::new();
        }
        current = own.last().map(|vdev| vdev.level.clone());
    }
    let Some(last) = new.last() else {
        return Vec::new();
    };
    let found = uneven(new);
    if !found.is_empty() {
        return found;
    }
    current
        .and_then(|current| against(&current, &last.level))
        .into_iter()
        .collect()
}

/// What makes some vdevs uneven among themselves.
fn uneven(vdevs: &[Vdev]) -> Vec<String> {
    let mut found = Vec::new();
    let mut before: Option<&Level> = None;
    for vdev in vdevs {
        let level = &vdev.level;
        if level.ways > 1 {
            found.extend(mixture(vdev));
        }
        if let Some(before) = before {
            found.extend(between(before, level));
        }
        before = Some(level);
    }
    found
}

fn mixture(vdev: &Vdev) -> Option<String> {
    let kind = &vdev.level.kind;
    let mut last: Option<&(String, Option<u64>)> = None;
    for leaf in vdev.leaves.iter().filter(|(_, size)| size.is_some()) {
        if let Some((other_kind, other_size)) = last {
            if *other_kind != leaf.0 {
                return Some(format!(
                    "mismatched replication level: {kind} contains both files and devices"
                ));
            }
            let (size, other) = (leaf.1.unwrap_or(0), other_size.unwrap_or(0));
            if size.abs_diff(other) > FUZZ {
                return Some(format!("{kind} contains devices of different sizes"));
            }
        }
        last = Some(leaf);
    }
    None
}

/// Returns the raidz and the mirror, when it is one of each.
fn raidz_and_mirror<'a>(one: &'a Level, other: &'a Level) -> Option<(&'a Level, &'a Level)> {
    match (is_striped(one), is_striped(other)) {
        (true, false) if other.kind == "mirror" => Some((one, other)),
        (false, true) if one.kind == "mirror" => Some((other, one)),
        _ => None,
    }
}

fn is_striped(level: &Level) -> bool {
    matches!(level.kind.as_str(), "raidz" | "draid")
}

fn is_bare(level: &Level) -> bool {
    matches!(level.kind.as_str(), "disk" | "file")
}

fn between(one: &Level, other: &Level) -> Option<String> {
    let (kind, other_kind) = (&one.kind, &other.kind);
    if is_bare(one) && is_bare(other) {
        return None;
    }
    if let Some((raidz, mirror)) = raidz_and_mirror(one, other) {
        // As many devices may fail in both: good enough.
        return (raidz.parity + 1 != mirror.ways).then(|| {
            format!(
                "mismatched replication level: {} and {} vdevs with different redundancy, {} vs. {} ({}-way) are present",
                raidz.kind,
                mirror.kind,
                raidz.parity,
                mirror.ways - 1,
                mirror.ways
            )
        });
    }
    if is_striped(one) && is_striped(other) && kind != other_kind {
        return (one.parity != other.parity).then(|| {
            format!(
                "mismatched replication level: {kind} and {other_kind} vdevs with different redundancy, {} vs. {} are present",
                one.parity, other.parity
            )
        });
    }
    if kind != other_kind {
        return Some(format!(
            "mismatched replication level: both {kind} and {other_kind} vdevs are present"
        ));
    }
    if one.parity != other.parity {
        return Some(format!(
            "mismatched replication level: both {} and {} device parity {kind} vdevs are present",
            one.parity, other.parity
        ));
    }
    (one.ways != other.ways).then(|| {
        format!(
            "mismatched replication level: both {}-way and {}-way {kind} vdevs are present",
            one.ways, other.ways
        )
    })
}

fn against(pool: &Level, new: &Level) -> Option<String> {
    if is_bare(pool) && is_bare(new) {
        return None;
    }
    if let Some((raidz, mirror)) = raidz_and_mirror(pool, new) {
        return (raidz.parity + 1 != mirror.ways).then(|| {
            format!(
                "mismatched replication level: pool and new vdev with different redundancy, {} and {} vdevs, {} vs. {} ({}-way)",
                raidz.kind,
                mirror.kind,
                raidz.parity,
                mirror.ways - 1,
                mirror.ways
            )
        });
    }
    if pool.kind != new.kind {
        return Some(format!(
            "mismatched replication level: pool uses {} and new vdev is {}",
            pool.kind, new.kind
        ));
    }
    if pool.parity != new.parity {
        return Some(format!(
            "mismatched replication level: pool uses {} device parity and new vdev uses {}",
            pool.parity, new.parity
        ));
    }
    (pool.ways != new.ways).then(|| {
        format!(
            "mismatched replication level: pool uses {}-way {} and new vdev uses {}-way {}",
            pool.ways, pool.kind, new.ways, new.kind
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mirror(ways: usize) -> VdevStatus {
        VdevStatus {
            kind: "mirror".into(),
            name: "mirror-0".into(),
            children: vec![VdevStatus::default(); ways],
            ..VdevStatus::default()
        }
    }

    fn root(tops: Vec<VdevStatus>) -> VdevStatus {
        VdevStatus {
            children: tops,
            ..VdevStatus::default()
        }
    }

    fn check(pool: Vec<VdevStatus>, new: &[VdevSpec], expect: &str) {
        let new: Vec<Vdev> = new.iter().map(Vdev::of_spec).collect();
        let found = complaints(Some(&root(pool)), &new);
        assert_eq!(found.join("; "), expect);
    }

    #[test]
    fn what_weakens_a_pool_is_said_in_openzfs_words() {
        let single = |name: &str| VdevSpec::Single(name.into());
        let pair = || VdevSpec::Mirror(vec!["/x/a".into(), "/x/b".into()]);
        check(vec![mirror(2)], &[pair()], "");
        check(
            vec![mirror(2)],
            &[single("/x/a")],
            "mismatched replication level: pool uses mirror and new vdev is file",
        );
        check(
            vec![mirror(3)],
            &[pair()],
            "mismatched replication level: pool uses 3-way mirror and new vdev uses 2-way mirror",
        );
        check(
            vec![mirror(2)],
            &[single("/x/a"), pair()],
            "mismatched replication level: both file and mirror vdevs are present",
        );
        // Nothing is said to a pool that is uneven already.
        check(vec![mirror(2), mirror(3)], &[single("/x/a")], "");
        let raidz = VdevSpec::Raidz {
            parity: 1,
            paths: vec!["/x/a".into(), "/x/b".into(), "/x/c".into()],
        };
        check(vec![mirror(2)], std::slice::from_ref(&raidz), "");
        check(
            vec![mirror(3)],
            &[raidz],
            "mismatched replication level: pool and new vdev with different redundancy, raidz and mirror vdevs, 1 vs. 2 (3-way)",
        );
    }
}
