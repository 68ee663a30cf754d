//! Space arithmetic of datasets and directories, without any I/O.
//!
//! Every rule here is checked against sums over real pools in the tests of this crate. OpenZFS:
//! module/zfs/dsl_dir.c and dsl_dataset.c, the functions named `*_diduse_*` and `parent_delta`.

use ondisk::BlockPointer;
use ondisk::dsl::{DslDirPhys as DirPhys, UsedBy as Used, dir_flags};

/// Sizes of a set of blocks: allocated (deflated), physical and logical bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sizes {
    pub(crate) used: u64,
    pub(crate) compressed: u64,
    pub(crate) uncompressed: u64,
}

impl Sizes {
    /// From the three words of an on-disk structure.
    pub(crate) fn from_words([used, compressed, uncompressed]: [u64; 3]) -> Self {
        Self {
            used,
            compressed,
            uncompressed,
        }
    }

    /// The three words of an on-disk structure.
    pub(crate) fn words(self) -> [u64; 3] {
        [self.used, self.compressed, self.uncompressed]
    }

    pub(crate) fn add(&mut self, other: Self) {
        self.used += other.used;
        self.compressed += other.compressed;
        self.uncompressed += other.uncompressed;
    }

    /// Subtracts, stopping at zero: totals of a damaged pool may be too small.
    pub(crate) fn sub(&mut self, other: Self) {
        self.used = self.used.saturating_sub(other.used);
        self.compressed = self.compressed.saturating_sub(other.compressed);
        self.uncompressed = self.uncompressed.saturating_sub(other.uncompressed);
    }
}

/// Signed [`Sizes`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Delta {
    pub(crate) used: i64,
    pub(crate) compressed: i64,
    pub(crate) uncompressed: i64,
}

impl Delta {
    pub(crate) fn is_zero(self) -> bool {
        self == Self::default()
    }
}

impl From<Sizes> for Delta {
    fn from(sizes: Sizes) -> Self {
        Self {
            used: signed(sizes.used),
            compressed: signed(sizes.compressed),
            uncompressed: signed(sizes.uncompressed),
        }
    }
}

impl std::ops::Neg for Delta {
    type Output = Self;
    fn neg(self) -> Self {
        Self {
            used: -self.used,
            compressed: -self.compressed,
            uncompressed: -self.uncompressed,
        }
    }
}

impl std::ops::AddAssign for Delta {
    fn add_assign(&mut self, other: Self) {
        self.used += other.used;
        self.compressed += other.compressed;
        self.uncompressed += other.uncompressed;
    }
}

/// A byte count as a signed number; sizes of pools are far below 2^63.
pub(crate) fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

/// Adds a signed change; a pool with wrong totals stops at zero instead of wrapping.
pub(crate) fn apply(total: &mut u64, change: i64) {
    *total = if change < 0 {
        total.saturating_sub(change.unsigned_abs())
    } else {
        total.saturating_add(change.unsigned_abs())
    };
}

/// What a block counts for, given the space its copies take.
pub(crate) fn sizes_of(bp: &BlockPointer, dsize: u64) -> Sizes {
    if bp.is_hole() || bp.is_redacted() {
        return Sizes::default();
    }
    Sizes {
        used: if bp.is_embedded() { 0 } else { dsize },
        compressed: bp.accounted_compressed(),
        uncompressed: bp.accounted_uncompressed(),
    }
}

/// How much more (or less) is charged above when `used` changes by `change` under a reservation:
/// what fits into the reservation was charged already.
pub(crate) fn charged(used: u64, reserved: u64, change: i64) -> i64 {
    let mut after = used;
    apply(&mut after, change);
    signed(after.max(reserved)) - signed(used.max(reserved))
}

/// A step of space propagation through one directory.
///
/// `charge` is what the directory's total changes by, `into` what its part `to` changes by; the
/// rest (`into - charge`) was charged before under `from`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Transfer {
    pub(crate) charge: i64,
    pub(crate) compressed: i64,
    pub(crate) uncompressed: i64,
    pub(crate) into: i64,
    pub(crate) from: Used,
    pub(crate) to: Used,
}

/// Applies a transfer to one directory and returns the one for its parent.
pub(crate) fn transfer(dir: &mut DirPhys, step: Transfer) -> Transfer {
    let above = charged(dir.used_bytes, dir.reserved, step.charge);
    apply(&mut dir.used_bytes, step.charge);
    apply(&mut dir.compressed_bytes, step.compressed);
    apply(&mut dir.uncompressed_bytes, step.uncompressed);
    if dir.flags & dir_flags::USED_BREAKDOWN != 0 {
        apply(
            &mut dir.used_breakdown[step.from as usize],
            step.charge - step.into,
        );
        apply(&mut dir.used_breakdown[step.to as usize], step.into);
    }
    Transfer {
        charge: above,
        compressed: step.compressed,
        uncompressed: step.uncompressed,
        into: step.charge,
        from: Used::ChildReservations,
        to: Used::Children,
    }
}

/// Applies a plain change of one part of a directory and returns the transfer for its parent.
pub(crate) fn did_use(dir: &mut DirPhys, part: Used, delta: Delta) -> Transfer {
    transfer(
        dir,
        Transfer {
            charge: delta.used,
            compressed: delta.compressed,
            uncompressed: delta.uncompressed,
            into: delta.used,
            from: part,
            to: part,
        },
    )
}

/// Moves bytes between two parts of a directory; its total stays.
pub(crate) fn move_part(dir: &mut DirPhys, bytes: i64, from: Used, to: Used) {
    if dir.flags & dir_flags::USED_BREAKDOWN != 0 {
        apply(&mut dir.used_breakdown[from as usize], -bytes);
        apply(&mut dir.used_breakdown[to as usize], bytes);
    }
}

/// 100 times logical over compressed bytes; 100 for nothing.
pub(crate) fn ratio(uncompressed: u64, compressed: u64) -> u64 {
    uncompressed
        .saturating_mul(100)
        .checked_div(compressed)
        .unwrap_or(100)
}

/// One level of the walk that finds the space available to a directory, from the pool's root down.
///
/// `parent` is the result for the parent (`u64::MAX` above the root), `limit` the smaller of the
/// directory's quota and, at the root, the pool's size.
pub(crate) fn available(parent: u64, used: u64, reserved: u64, limit: u64) -> u64 {
    let mut room = parent;
    if reserved > used && parent != u64::MAX {
        room = room.saturating_add(reserved - used);
    }
    if used > limit {
        0
    } else {
        room.min(limit - used)
    }
}

/// The space available to a dataset, given its directory's.
pub(crate) fn available_to_dataset(
    dir_available: u64,
    unique: u64,
    referenced: u64,
    ref_reserved: u64,
    ref_quota: u64,
) -> u64 {
    let mut room = dir_available;
    if ref_reserved > unique {
        room = room.saturating_add(ref_reserved - unique);
    }
    if ref_quota == 0 {
        room
    } else {
        room.min(ref_quota.saturating_sub(referenced))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dir(used: u64, reserved: u64) -> DirPhys {
        DirPhys {
            used_bytes: used,
            reserved,
            flags: 1,
            ..DirPhys::default()
        }
    }

    #[test]
    fn reservation_absorbs_growth() {
        assert_eq!(charged(0, 100, 60), 0);
        assert_eq!(charged(60, 100, 60), 20);
        assert_eq!(charged(120, 100, -60), -20);
        assert_eq!(charged(120, 0, -60), -60);
    }

    /// Two levels: a child with a reservation of 100 writes 60, then 60 more, then frees 100.
    #[test]
    fn parent_sees_reservation_then_growth() {
        let mut child = dir(0, 100);
        let mut parent = dir(100, 0);
        parent.used_breakdown[Used::ChildReservations as usize] = 100;
        let mut write = |bytes: i64| {
            let delta = Delta {
                used: bytes,
                compressed: bytes,
                uncompressed: bytes,
            };
            let up = did_use(&mut child, Used::Head, delta);
            transfer(&mut parent, up);
            let [_, _, part_child, part_reservation, _] = parent.used_breakdown;
            assert_eq!(part_child, child.used_bytes);
            assert_eq!(part_child + part_reservation, parent.used_bytes);
            assert_eq!(child.used_breakdown[0], child.used_bytes);
            parent.used_bytes
        };
        assert_eq!(write(60), 100);
        assert_eq!(write(60), 120);
        assert_eq!(write(-100), 100);
    }

    #[test]
    fn refreservation_is_consumed_by_the_head() {
        let mut d = dir(100, 0);
        d.used_breakdown[Used::Refreservation as usize] = 100;
        // Unique grows from 0 to 30 under a refreservation of 100: nothing more is charged.
        let charge = charged(0, 100, 30);
        let step = Transfer {
            charge,
            compressed: 30,
            uncompressed: 30,
            into: 30,
            from: Used::Refreservation,
            to: Used::Head,
        };
        transfer(&mut d, step);
        assert_eq!((d.used_bytes, d.used_breakdown), (100, [30, 0, 0, 0, 70]));
    }

    #[test]
    fn available_walk() {
        // Pool of 1000, 300 used; a child with quota 200 and 50 used; its child reserves 30.
        let root = available(u64::MAX, 300, 0, 1000);
        assert_eq!(root, 700);
        let child = available(root, 50, 0, 200);
        assert_eq!(child, 150);
        assert_eq!(available(child, 0, 30, u64::MAX), 180);
        assert_eq!(available(child, 201, 0, 200), 0);
        assert_eq!(available_to_dataset(150, 10, 40, 30, 0), 170);
        assert_eq!(available_to_dataset(150, 10, 40, 0, 60), 20);
        assert_eq!(available_to_dataset(150, 10, 70, 0, 60), 0);
    }

    #[test]
    fn ratios() {
        assert_eq!(ratio(0, 0), 100);
        assert_eq!(ratio(390, 100), 390);
    }
}
