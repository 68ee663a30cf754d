//! Declustered raidz: fixed groups of columns, spread over the children by permutations that both systems know.
//!
//! ```text
//! logical offset -> group of `width` columns, 16 MiB high -> permutation, row of groups -> column -> child
//! ```
//! Source of the rules and numbers: format page on raidz, section 6, and `draid-maps.csv` beside it; each table of
//! permutations is checked against its sum before it is used.
//!
//! Guarantees: pure arithmetic; the columns of a stripe are on different children.

use std::ops::Range;
use std::sync::Arc;

use super::map::{Column, Map, Stripe, to_usize};

/// The seeds of the permutations by number of children; constants of the format.
const SEEDS: &str = include_str!("../../../../docs/format/draid-maps.csv");
/// First word of the generator's state.
const FIRST_STATE: u64 = 0xd_7a1d_5eed;
/// Bytes of a column of a group on one child before the next group begins.
const ROW_HEIGHT: u64 = 16 << 20;
/// Bytes of the largest block.
const LARGEST_BLOCK: u64 = 16 << 20;
/// Bytes at the end of every child that are kept free.
const RESERVE: u64 = 32 << 20;
const _: () = assert!(RESERVE.is_multiple_of(ROW_HEIGHT));
const _: () = assert!(LARGEST_BLOCK <= ROW_HEIGHT);

/// Shape of a draid vdev.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Draid {
    /// Children.
    pub children: u32,
    /// Columns of each stripe that hold parity, 1 to 3.
    pub parity: u8,
    /// Columns of each stripe that hold data.
    pub data: u32,
    /// Children's worth of space kept as spares.
    pub spares: u32,
    /// Groups that share a permutation.
    pub groups: u32,
    permutations: Arc<[u8]>,
}

impl Draid {
    /// Makes the shape; `None` for numbers that no draid can have, or that contradict each other.
    #[must_use]
    pub fn new(children: u32, parity: u8, data: u32, spares: u32, groups: u32) -> Option<Self> {
        let width = data.checked_add(u32::from(parity))?;
        let disks = children.checked_sub(spares)?;
        let sound = (1..=3).contains(&parity)
            && data > 0
            && (2..=255).contains(&children)
            && width <= disks
            && groups > 0
            && groups <= 255
            && (groups * width).is_multiple_of(disks);
        if !sound {
            return None;
        }
        Some(Self {
            children,
            parity,
            data,
            spares,
            groups,
            permutations: permutations(children)?,
        })
    }

    fn width(&self) -> u64 {
        u64::from(self.data) + u64::from(self.parity)
    }

    fn disks(&self) -> u64 {
        u64::from(self.children - self.spares)
    }

    /// Returns the bytes a block takes: whole stripes.
    pub(crate) fn asize_of(&self, ashift: u8, psize: u64) -> u64 {
        let rows = psize.div_ceil(u64::from(self.data) << ashift);
        rows.saturating_mul(self.width() << ashift)
    }

    /// Returns what each child must offer.
    pub(crate) fn least_asize_of(&self, asize: u64) -> u64 {
        asize.div_ceil(self.disks()).saturating_add(RESERVE)
    }

    /// Returns the allocatable bytes of children that offer `each` bytes: whole groups; 0 when there is room for none.
    // OpenZFS: module/zfs/vdev_draid.c, vdev_draid_open
    pub(crate) fn asize_from(&self, each: u64) -> u64 {
        let rows = each.saturating_sub(RESERVE) / ROW_HEIGHT;
        let group = self.width() * ROW_HEIGHT;
        rows.saturating_mul(self.disks() * ROW_HEIGHT) / group * group
    }

    /// Returns the bytes of a stripe: what is allocated starts at multiples of it, and is a multiple of it.
    pub(crate) fn unit(&self, ashift: u8) -> u64 {
        self.width() << ashift
    }

    /// Returns the bytes of data in a stripe.
    pub(crate) fn stripe_data(&self, ashift: u8) -> u64 {
        u64::from(self.data) << ashift
    }

    /// Returns how much of what is allocated from `start` on is put together at once: whole stripes of one group, about
    /// `most` bytes on each child and never more data than the largest block.
    // OpenZFS: module/zfs/vdev_draid.c, vdev_draid_rebuild_asize
    pub(crate) fn rebuild_len(&self, ashift: u8, start: u64, most: u64) -> u64 {
        let stripe = self.stripe_data(ashift);
        let data = most.saturating_mul(u64::from(self.data)).min(LARGEST_BLOCK);
        let rows = (data / stripe).max(1);
        let group = self.width() * ROW_HEIGHT;
        let left = (start / group + 1) * group - start;
        (rows * self.unit(ashift)).min(left)
    }

    /// Returns the bytes of data in `len` bytes of whole stripes.
    pub(crate) fn data_in(&self, ashift: u8, len: u64) -> u64 {
        len / self.unit(ashift) * self.stripe_data(ashift)
    }

    /// Returns the ranges of children (bytes from the start of their data areas) that the whole stripes in a range of the
    /// vdev cover, ascending for each child.
    pub(crate) fn slot_ranges(&self, ashift: u8, range: &Range<u64>) -> Vec<(usize, Range<u64>)> {
        let (unit, group) = (self.unit(ashift), self.width() * ROW_HEIGHT);
        let (mut at, end) = (range.start.next_multiple_of(unit), range.end / unit * unit);
        let mut ranges = Vec::new();
        while at < end {
            let to = end.min((at / group + 1) * group);
            let size = (to - at) / unit * self.stripe_data(ashift);
            let columns = self.stripe(ashift, at, size, 0, true).columns;
            ranges.extend(columns.into_iter().map(|column| {
                let len = column.len as u64;
                (column.slot, column.offset..column.offset + len)
            }));
            at = to;
        }
        ranges
    }

    /// Returns where the block of `size` bytes (whole sectors) at `offset` is; with the zeros that fill its last stripe if
    /// it is `whole`.
    pub(crate) fn map(&self, ashift: u8, offset: u64, size: u64, whole: bool) -> Map {
        let group_bytes = self.width() * ROW_HEIGHT;
        let mut stripes = Vec::new();
        let (mut done, mut at) = (0, offset);
        while done < size {
            // A block that crosses the end of a group goes on at the start of the next.
            let group_end = (at / group_bytes + 1) * group_bytes;
            let room = (group_end - at) / self.width() * u64::from(self.data);
            let part = (size - done).min(room.max(1 << ashift));
            stripes.push(self.stripe(ashift, at, part, done, whole));
            done += part;
            at = group_end;
        }
        assert!(done == size, "the stripes hold the block");
        Map {
            parity: usize::from(self.parity),
            len: to_usize(size),
            stripes,
            former: 0..0,
        }
    }

    /// The part of a block inside one group; `at` is its place in the block.
    fn stripe(&self, ashift: u8, offset: u64, size: u64, at: u64, whole: bool) -> Stripe {
        let (width, disks) = (self.width(), self.disks());
        let (groups, parity) = (u64::from(self.groups), u64::from(self.parity));
        let group = offset / (width * ROW_HEIGHT);
        let start = group * width % disks;
        let permutation = group / groups;
        let row = permutation * (groups * width / disks) + group % groups * width / disks;
        let sector_in_group = (offset % (width * ROW_HEIGHT)) >> ashift;
        let first = row * ROW_HEIGHT + ((sector_in_group / width) << ashift);
        let sectors = size >> ashift;
        let (full, rest) = (
            sectors / u64::from(self.data),
            sectors % u64::from(self.data),
        );
        let height = (full + u64::from(rest != 0)) << ashift;
        let mut position = at;
        // Also columns without data count in the parity.
        let columns = (0..width).map(|index| {
            let tall = rest != 0 && index < rest + parity;
            let data = (full + u64::from(tall)) << ashift;
            let len = if whole { height } else { data };
            // A group that does not fit beside the others of its row goes on in the next row.
            let wrapped = u64::from(start + index >= disks);
            let is_parity = index < parity;
            let mine = if is_parity { 0 } else { position };
            if !is_parity {
                position += data;
            }
            Column {
                slot: self.child(permutation, (start + index) % disks),
                offset: first + wrapped * ROW_HEIGHT,
                len: to_usize(len),
                at: to_usize(mine),
                data: to_usize(data),
                scratch: false,
                sector: 0,
            }
        });
        let columns = columns.collect();
        assert!(position == at + size, "the data columns hold the part");
        Stripe { columns }
    }

    /// Returns the child that has the bytes at `offset` (from the start of its data area) of a distributed spare.
    // OpenZFS: module/zfs/vdev_draid.c, vdev_draid_spare_get_child
    pub(crate) fn spare_slot(&self, spare: u32, offset: u64) -> Option<usize> {
        let last = self.children.checked_sub(1)?;
        let disk = u64::from(last.checked_sub(spare).filter(|_| spare < self.spares)?);
        let slice = self.width() * ROW_HEIGHT * u64::from(self.groups) / self.disks();
        Some(self.child(offset / slice, disk))
    }

    /// Returns the child that is disk `disk` in a permutation.
    fn child(&self, permutation: u64, disk: u64) -> usize {
        let children = u64::from(self.children);
        // The tables are used again and again, each time turned by one.
        let turns = permutation % self.permutations.len() as u64;
        let (table, turn) = (turns / children, turns % children);
        let id = self.permutations[to_usize(table * children + disk)];
        to_usize((u64::from(id) + turn) % children)
    }
}

/// Makes the tables of permutations for a number of children; `None` if the format has none, or the result is not what
/// the format says it is.
fn permutations(children: u32) -> Option<Arc<[u8]>> {
    let number = |text: &str| match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    };
    let line = SEEDS.lines().skip(1).find_map(|line| {
        let fields: Vec<u64> = line.trim().split(',').map_while(number).collect();
        (fields.first() == Some(&u64::from(children))).then_some(fields)
    })?;
    let [_, count, seed, sum]: [u64; 4] = line.try_into().ok()?;
    let mut state = [FIRST_STATE, seed];
    let mut order: Vec<u8> = (0..children)
        .map(u8::try_from)
        .collect::<Result<_, _>>()
        .ok()?;
    let mut tables = Vec::new();
    for _ in 0..count {
        for last in (1..order.len()).rev() {
            let choice = random(&mut state) % (last as u64 + 1);
            order.swap(last, to_usize(choice));
        }
        tables.extend_from_slice(&order);
    }
    let words = tables.chunks_exact(4).map(|word| {
        let bytes = word.try_into().expect("a chunk of four bytes");
        u64::from(u32::from_le_bytes(bytes))
    });
    (words.sum::<u64>() == sum).then(|| tables.into())
}

fn random(state: &mut [u64; 2]) -> u64 {
    let [mut a, mut b] = *state;
    let result = a.wrapping_add(b).rotate_left(17).wrapping_add(a);
    b ^= a;
    a = a.rotate_left(49) ^ b ^ (b << 21);
    b = b.rotate_left(28);
    *state = [a, b];
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_table_has_the_sum_of_the_format() {
        for children in 2..=255 {
            assert!(permutations(children).is_some(), "{children} children");
        }
        assert!(permutations(1).is_none() && permutations(256).is_none());
    }

    #[test]
    fn impossible_shapes_are_refused() {
        for (children, parity, data, spares, groups) in [
            (6, 0, 2, 1, 3),
            (6, 4, 1, 0, 1),
            (6, 1, 0, 0, 1),
            (6, 1, 6, 0, 1),
            (6, 1, 2, 7, 1),
            (6, 1, 2, 1, 2),
            (300, 1, 2, 0, 1),
        ] {
            assert!(Draid::new(children, parity, data, spares, groups).is_none());
        }
    }

    /// Whole stripes one by one, and all of them at once, cover the same sectors of every child, in order.
    #[test]
    fn ranges_of_children_are_those_of_the_stripes() {
        let draid = Draid::new(7, 2, 3, 1, 6).expect("a shape");
        let (ashift, unit) = (22, 5 << 22);
        let mut expect = vec![std::collections::BTreeSet::new(); 7];
        for row in 3..41 {
            let map = draid.map(ashift, row * unit, 3 << ashift, true);
            for (_, column) in map.columns() {
                expect[column.slot].insert(column.offset);
            }
        }
        let mut found = vec![std::collections::BTreeSet::new(); 7];
        let mut last = [0; 7];
        for (slot, range) in draid.slot_ranges(ashift, &(2 * unit + 1..42 * unit - 1)) {
            assert!(last[slot] <= range.start, "child {slot} goes back");
            last[slot] = range.end;
            for sector in (range.start..range.end).step_by(1 << ashift) {
                assert!(found[slot].insert(sector));
            }
        }
        assert_eq!(found, expect);
    }

    /// What a spare has of a stripe is on a child that the stripe does not use.
    #[test]
    fn spares_are_beside_the_stripes() {
        let draid = Draid::new(8, 1, 2, 2, 2).expect("a shape");
        assert_eq!(draid.spare_slot(2, 0), None);
        for group in 0..100_u64 {
            let map = draid.map(24, (group * 3) << 24, 2 << 24, true);
            let mut used: Vec<usize> = map.columns().map(|(_, column)| column.slot).collect();
            for (_, column) in map.columns() {
                let of = |spare| draid.spare_slot(spare, column.offset).expect("a spare");
                assert!(!used[..3].contains(&of(0)) && !used[..3].contains(&of(1)));
                assert_ne!(of(0), of(1));
            }
            used.truncate(3);
        }
    }

    #[test]
    fn sizes_are_those_of_openzfs() {
        // draid1:2d:6c:1s on files of 160 MiB, as zdb says; too small for one group.
        let draid = Draid::new(6, 1, 2, 1, 5).expect("a shape");
        let each = (160 << 20) - (4 << 20) - (512 << 10);
        assert_eq!(draid.asize_from(each), 528 << 20);
        assert_eq!(draid.asize_from(32 << 20), 0);
    }

    /// No two stripes share a byte, and the columns of a stripe are on different children.
    #[test]
    fn stripes_are_disjoint() {
        let draid = Draid::new(7, 2, 3, 1, 6).expect("a shape");
        let (ashift, width) = (22, 5);
        let mut seen = std::collections::BTreeSet::new();
        // Sectors of 4 MiB: four rows to a group.
        for row in 0..200_u64 {
            let offset = (row * width) << ashift;
            let map = draid.map(ashift, offset, 3 << ashift, false);
            let [stripe] = map.stripes.as_slice() else {
                panic!("one row is in one group")
            };
            let mut slots: Vec<usize> = stripe.columns.iter().map(|c| c.slot).collect();
            for column in &stripe.columns {
                assert!(seen.insert((column.slot, column.offset)), "row {row}");
            }
            slots.sort_unstable();
            slots.dedup();
            assert_eq!(slots.len(), 5);
        }
        // Two rows, of which the second is in the next group.
        let map = draid.map(ashift, (3 * width) << ashift, 5 << ashift, false);
        assert_eq!(map.stripes.len(), 2);
        assert_eq!(map.stripes[0].columns.len(), 5);
        let lens: Vec<usize> = map.stripes[1]
            .columns
            .iter()
            .map(|c| c.len >> ashift)
            .collect();
        assert_eq!(lens, [1, 1, 1, 1, 0]);
        assert_eq!(map.stripes[1].columns[2].at, 3 << ashift);
        let map = draid.map(ashift, (3 * width) << ashift, 5 << ashift, true);
        assert!(map.columns().all(|(_, column)| column.len == 1 << ashift));
    }
}
