//! Where the sectors of a draid are, from the words of its configuration and the seeds of the format.
//!
//! Shares nothing with the engine but the list of seeds. A slice is as many groups as come out even on the disks; each
//! group is 16 MiB high, and groups follow each other over the disks of a slice like words over lines. Each slice has its
//! own order of the children.

use ondisk::NvList;

const SEEDS: &str = include_str!("../../../docs/format/draid-maps.csv");
/// Bytes of one group on one child.
pub const HEIGHT: u64 = 16 << 20;

/// A draid.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Spread {
    pub(super) data: u64,
    pub(super) width: u64,
    children: u64,
    disks: u64,
    groups: u64,
    /// One after the other.
    orders: Vec<Vec<u64>>,
}

impl Spread {
    /// Reads what a configuration says of a draid; `None` if that cannot be.
    pub(super) fn read(tree: &NvList) -> Option<Self> {
        let children = tree.lists("children")?.len() as u64;
        let parity = tree.u64("nparity").filter(|p| (1..=3).contains(p))?;
        let data = tree.u64("draid_ndata").filter(|&d| d > 0 && d < 256)?;
        let spares = tree.u64("draid_nspares")?;
        let groups = tree.u64("draid_ngroups").filter(|&g| g > 0 && g < 256)?;
        Self::new([children, parity, data, spares], groups)
    }

    /// Makes the draid with the fewest groups to a slice; `[children, parity, data, spares]`.
    pub fn of_shape(shape: [u64; 4]) -> Option<Self> {
        let [children, parity, data, spares] = shape;
        let disks = children.checked_sub(spares)?;
        let groups = (1..=disks).find(|groups| (groups * (data + parity)).is_multiple_of(disks))?;
        Self::new(shape, groups)
    }

    fn new([children, parity, data, spares]: [u64; 4], groups: u64) -> Option<Self> {
        let (width, disks) = (data + parity, children.checked_sub(spares)?);
        (width <= disks && (groups * width).is_multiple_of(disks)).then_some(())?;
        Some(Self {
            data,
            width,
            children,
            disks,
            groups,
            orders: orders(children)?,
        })
    }

    /// Returns, for each group that has part of a row of the children (bytes of their data areas), which children those are.
    pub fn groups_in_row(&self, offset: u64) -> Vec<Vec<u64>> {
        let row = offset / HEIGHT;
        let first = (row * self.disks / self.width).saturating_sub(1);
        let last = (row + 1) * self.disks / self.width;
        let part = |group: u64| -> Vec<u64> {
            // With sectors as high as a group there is one row in each.
            let places = self.places(group * self.width, u64::from(HEIGHT.ilog2()));
            let there = places.into_iter().filter(|(_, place)| *place == row);
            there.map(|(child, _)| child).collect()
        };
        let parts = (first..=last).map(part);
        parts.filter(|part| !part.is_empty()).collect()
    }

    /// Returns how many rows of its group a sector of the vdev and those behind it have.
    pub(super) fn rows_left(&self, sector: u64, ashift: u64) -> u64 {
        let rows = HEIGHT >> ashift;
        rows - sector / self.width % rows
    }

    /// Returns the bytes of a stripe.
    pub(super) fn unit(&self, ashift: u64) -> u64 {
        self.width << ashift
    }

    /// Returns child and sector of every column of the stripe that begins at a sector of the vdev.
    pub(super) fn places(&self, sector: u64, ashift: u64) -> Vec<(u64, u64)> {
        let rows = HEIGHT >> ashift;
        let group = sector / self.width / rows;
        let (slice, in_slice) = (group / self.groups, group % self.groups);
        let lines = self.groups * self.width / self.disks;
        let count = self.orders.len() as u64;
        // Orders are used once for every turn of theirs.
        let number = slice % (count * self.children);
        let order = &self.orders[ondisk::bytes::index(number / self.children)];
        let turn = number % self.children;
        (0..self.width)
            .map(|column| {
                let word = in_slice * self.width + column;
                let (line, disk) = (slice * lines + word / self.disks, word % self.disks);
                let child = (order[ondisk::bytes::index(disk)] + turn) % self.children;
                (child, line * rows + sector / self.width % rows)
            })
            .collect()
    }
}

fn orders(children: u64) -> Option<Vec<Vec<u64>>> {
    let number = |text: &str| -> Option<u64> {
        let hex = text.trim().strip_prefix("0x");
        hex.map_or_else(
            || text.trim().parse().ok(),
            |h| u64::from_str_radix(h, 16).ok(),
        )
    };
    let line = SEEDS.lines().find(|line| {
        let first = line.split(',').next();
        first.and_then(number) == Some(children)
    })?;
    let mut words = line.split(',').skip(1).map(number);
    let (count, seed) = (words.next()??, words.next()??);
    let mut state = (0xd_7a1d_5eed_u64, seed);
    let mut next = || {
        let (a, mut b) = state;
        let value = a.wrapping_add(b).rotate_left(17).wrapping_add(a);
        b ^= a;
        state = (a.rotate_left(49) ^ b ^ (b << 21), b.rotate_left(28));
        value
    };
    let mut order: Vec<u64> = (0..children).collect();
    let mut all = Vec::new();
    for _ in 0..count {
        for last in (1..children).rev() {
            let other = next() % (last + 1);
            order.swap(ondisk::bytes::index(last), ondisk::bytes::index(other));
        }
        all.push(order.clone());
    }
    Some(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_shared_by_groups() {
        let spread = Spread::of_shape([6, 1, 3, 0]).expect("a shape");
        for row in 0..40 {
            let groups = spread.groups_in_row(row * HEIGHT + 4096);
            let sizes: Vec<usize> = groups.iter().map(Vec::len).collect();
            assert_eq!(sizes, if row % 2 == 0 { [4, 2] } else { [2, 4] });
            let mut children: Vec<u64> = groups.into_iter().flatten().collect();
            children.sort_unstable();
            assert_eq!(children, [0, 1, 2, 3, 4, 5]);
        }
        assert!(Spread::of_shape([6, 1, 6, 0]).is_none());
    }
}
