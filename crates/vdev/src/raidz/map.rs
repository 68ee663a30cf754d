//! Where the sectors of a block are: stripes, columns, children.
//!
//! Guarantees: pure arithmetic; the columns of a stripe are on different children; every offset given out lies inside
//! the part of the child that belongs to the vdev, if the block lies inside the vdev.
//! Source of the rules: format page on raidz, sections 2 and 5, checked against pools written by OpenZFS.

use std::ops::Range;

use ondisk::RaidzReflow;

use super::shape::Raidz;
use crate::{BOOT_AREA_START, LEAF_DATA_START, Location};

/// Offsets with this bit have the parity of single-parity stripes and the first data column change places, which spread
/// the parity before the first column rotated with the offset.
const SWAP_BIT: u64 = 1 << 20;
const _: () = assert!(SWAP_BIT.is_power_of_two());

/// One column: a range of one child.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Column {
    /// Child.
    pub(crate) slot: usize,
    /// Bytes from the start of the child's data area.
    pub(crate) offset: u64,
    /// Bytes; 0 only where nothing needs to be read of a column that counts in the parity.
    pub(crate) len: usize,
    /// Place of a data column's bytes in the block; 0 for parity.
    pub(crate) at: usize,
    /// Bytes of a data column that are the block's, `len` for parity. Zeros follow.
    pub(crate) data: usize,
    /// The offset counts from the start of the boot area instead, where the first rows are kept while an expansion
    /// overwrites them.
    pub(crate) scratch: bool,
    /// Number of the column's first sector in the address space of an expanded raidz; 0 where children never changed.
    pub(crate) sector: u64,
}

impl Column {
    /// Returns the offset from the start of the device.
    pub(crate) fn start(&self) -> u64 {
        let area = if self.scratch {
            BOOT_AREA_START
        } else {
            LEAF_DATA_START
        };
        area + self.offset
    }
}

/// Columns with common parity, parity first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Stripe {
    pub(crate) columns: Vec<Column>,
}

/// Where a block is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Map {
    /// Rows of parity of every stripe.
    pub(crate) parity: usize,
    /// Bytes of the block, whole sectors.
    pub(crate) len: usize,
    pub(crate) stripes: Vec<Stripe>,
    /// Numbers of children that the vdev had since the block was born, and has no more.
    pub(crate) former: Range<u32>,
}

impl Map {
    /// Returns where a block (of whole sectors) is; `reflow` counts while the vdev is being expanded.
    pub(crate) fn of_raidz(raidz: &Raidz, reflow: RaidzReflow, ashift: u8, at: Location) -> Self {
        let Location { offset, size, .. } = at;
        let width = raidz.width_at(at.born);
        assert!(
            width > u32::from(raidz.parity),
            "a raidz of {width} has data beside its parity of {}",
            raidz.parity
        );
        let shape = Shape {
            children: u64::from(raidz.width),
            reflow: raidz.expanding.then_some(reflow),
            width: u64::from(width),
            parity: u64::from(raidz.parity),
            ashift,
            first: offset >> ashift,
            sectors: size >> ashift,
            swap: raidz.parity == 1 && offset & SWAP_BIT != 0,
        };
        let stripes = if raidz.width == width {
            vec![shape.whole()]
        } else {
            (0..shape.rows()).map(|row| shape.row(row)).collect()
        };
        Self {
            parity: usize::from(raidz.parity),
            len: to_usize(size),
            stripes,
            former: width..raidz.width,
        }
    }

    /// Returns the map of a range that lies on one place as it is.
    pub(crate) fn plain(offset: u64, size: u64) -> Self {
        let len = to_usize(size);
        let column = Column {
            slot: 0,
            offset,
            len,
            at: 0,
            data: len,
            scratch: false,
            sector: 0,
        };
        Self {
            parity: 0,
            len,
            stripes: vec![Stripe {
                columns: vec![column],
            }],
            former: 0..0,
        }
    }

    /// Returns every (stripe, column) with its column.
    pub(crate) fn columns(&self) -> impl Iterator<Item = ((usize, usize), &Column)> {
        self.stripes.iter().enumerate().flat_map(|(s, stripe)| {
            let columns = stripe.columns.iter().enumerate();
            columns.map(move |(c, column)| ((s, c), column))
        })
    }
}

struct Shape {
    children: u64,
    /// How far the sectors have moved from one child less to all of them; `None` when they all have.
    reflow: Option<RaidzReflow>,
    width: u64,
    parity: u64,
    ashift: u8,
    /// First sector of the block, counted over all children row by row.
    first: u64,
    /// Sectors of data.
    sectors: u64,
    swap: bool,
}

impl Shape {
    fn data_columns(&self) -> u64 {
        self.width - self.parity
    }

    fn rows(&self) -> u64 {
        self.sectors.div_ceil(self.data_columns())
    }

    /// Sectors of data in the last row, if it is not full.
    fn rest(&self) -> u64 {
        self.sectors % self.data_columns()
    }

    /// Columns used at all.
    fn used(&self) -> u64 {
        if self.sectors < self.data_columns() {
            self.rest() + self.parity
        } else {
            self.width
        }
    }

    /// Rows of a column.
    fn height(&self, column: u64) -> u64 {
        let full = self.sectors / self.data_columns();
        let tall = self.rest() != 0 && column < self.rest() + self.parity;
        full + u64::from(tall)
    }

    /// Sectors of the block's data before data column `column` (counted from 0), in column order.
    fn before(&self, column: u64) -> u64 {
        (0..column).map(|c| self.height(c + self.parity)).sum()
    }

    /// Returns the child and the offset on it of the sector at this distance from the block's first, where the sectors
    /// are spread over so many children.
    fn locate(&self, distance: u64, children: u64) -> (usize, u64) {
        let sector = self.first + distance;
        let slot = to_usize(sector % children);
        (slot, (sector / children) << self.ashift)
    }

    /// The only stripe of a block as wide as the vdev: columns are contiguous on their children.
    fn whole(&self) -> Stripe {
        let mut at = 0;
        let columns = (0..self.used()).map(|column| {
            let (slot, offset) = self.locate(column, self.children);
            let len = to_usize(self.height(column) << self.ashift);
            let mine = if column < self.parity { 0 } else { at };
            if column >= self.parity {
                at += len;
            }
            Column {
                slot,
                offset,
                len,
                at: mine,
                data: len,
                scratch: false,
                sector: 0,
            }
        });
        let columns = columns.collect();
        assert!(
            at as u64 == self.sectors << self.ashift,
            "the data columns hold the block"
        );
        self.swapped(columns)
    }

    /// One row of a block that is narrower than the vdev: a sector per column. The columns that the last row does not
    /// reach count in its parity, as zeros.
    fn row(&self, row: u64) -> Stripe {
        let first = row * self.width;
        // A row that has not moved as a whole, counted with its full width, is whole where it was. In the scratch area
        // is what moved first, until it is safe at its new place.
        // OpenZFS: module/zfs/vdev_raidz.c, vdev_raidz_map_alloc_expanded
        let end = (self.first + first + self.used()) << self.ashift;
        let (children, scratch) = match self.reflow {
            Some(reflow) if end > reflow.offset() => (self.children - 1, false),
            Some(reflow) => (self.children, reflow.is_in_scratch()),
            None => (self.children, false),
        };
        let columns = (0..self.used()).map(|column| {
            let (slot, offset) = self.locate(first + column, children);
            let len = if row < self.height(column) {
                1 << self.ashift
            } else {
                0
            };
            let at = match column.checked_sub(self.parity) {
                Some(data) if len > 0 => to_usize((self.before(data) + row) << self.ashift),
                _ => 0,
            };
            Column {
                slot,
                offset,
                len,
                at,
                data: len,
                scratch,
                sector: self.first + first + column,
            }
        });
        self.swapped(columns.collect())
    }

    fn swapped(&self, mut columns: Vec<Column>) -> Stripe {
        if self.swap
            && let [parity, data, ..] = columns.as_mut_slice()
        {
            std::mem::swap(&mut parity.slot, &mut data.slot);
            std::mem::swap(&mut parity.offset, &mut data.offset);
            std::mem::swap(&mut parity.sector, &mut data.sector);
        }
        Stripe { columns }
    }
}

/// Returns the range of every child (bytes from the start of its data area) that a range of the vdev covers.
pub(crate) fn slot_ranges(raidz: &Raidz, ashift: u8, range: &Range<u64>) -> Vec<Range<u64>> {
    let children = u64::from(raidz.width);
    let rows_before = |sector: u64, child: u64| sector.saturating_sub(child).div_ceil(children);
    let (from, to) = (range.start >> ashift, range.end >> ashift);
    (0..children)
        .map(|child| rows_before(from, child) << ashift..rows_before(to, child) << ashift)
        .collect()
}

/// Blocks are at most 16 MiB and children at most 255.
pub(super) fn to_usize(number: u64) -> usize {
    usize::try_from(number).expect("a number of columns or the length of a block")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use ondisk::Txg;
    use runtime::IoBuf;

    use super::*;
    use crate::Layout;
    use crate::raidz::solve;

    fn raidz(width: u32, parity: u8) -> Raidz {
        Raidz {
            width,
            parity,
            expanded: Vec::new(),
            expanding: false,
        }
    }

    fn at(offset: u64, size: u64, born: u64) -> Location {
        Location {
            vdev: 0,
            offset,
            size,
            born: Txg(born),
        }
    }

    /// The map of a vdev that is not being expanded.
    fn map_of(raidz: &Raidz, ashift: u8, at: Location) -> Map {
        Map::of_raidz(raidz, RaidzReflow(0), ashift, at)
    }

    /// What becomes of the shape when it has been made wider by as many children, in group 100.
    fn widened(narrow: &Raidz, by: u32) -> Raidz {
        Raidz {
            width: narrow.width + by,
            expanded: vec![Txg(100); by as usize],
            ..narrow.clone()
        }
    }

    /// The number that the address space has for a sector of a column.
    fn sector(column: &Column, row: u64, children: u64, ashift: u8) -> u64 {
        ((column.offset >> ashift) + row) * children + column.slot as u64
    }

    /// The sectors of a block as the address space numbers them, taken from its columns.
    fn sectors(map: &Map, children: u64, ashift: u8) -> Vec<u64> {
        let mut sectors = Vec::new();
        for (_, column) in map.columns() {
            let rows = 0..column.len as u64 >> ashift;
            sectors.extend(rows.map(|row| sector(column, row, children, ashift)));
        }
        sectors.sort_unstable();
        sectors
    }

    #[test]
    fn every_shape_covers_its_sectors_once() {
        for width in 2..=9_u32 {
            for parity in 1..=3.min(u8::try_from(width - 1).expect("small")) {
                for wider in 0..=2 {
                    let narrow = raidz(width, parity);
                    let shape = widened(&narrow, wider);
                    for (offset, size) in (0..40).flat_map(|o| (1..30).map(move |s| (o, s))) {
                        let (ashift, p) = (9, u64::from(parity));
                        let map = map_of(&shape, ashift, at(offset << 9, size << 9, 50));
                        let all = Layout::Raidz(narrow.clone()).asize_of(ashift, size << 9) >> 9;
                        let used = size + p * size.div_ceil(u64::from(width) - p);
                        assert!(all >= used && all - used <= p, "padding");
                        let expect: Vec<u64> = (offset..offset + used).collect();
                        assert_eq!(sectors(&map, u64::from(shape.width), ashift), expect);
                        let mut covered = vec![0; to_usize(size << 9)];
                        for stripe in &map.stripes {
                            let mut slots: Vec<_> = stripe.columns.iter().map(|c| c.slot).collect();
                            slots.sort_unstable();
                            slots.dedup();
                            assert_eq!(slots.len(), stripe.columns.len(), "a child twice");
                            for column in &stripe.columns[usize::from(parity)..] {
                                for byte in &mut covered[column.at..column.at + column.len] {
                                    *byte += 1;
                                }
                            }
                        }
                        assert!(covered.iter().all(|&times| times == 1));
                    }
                }
            }
        }
    }

    #[test]
    fn allocated_sizes_are_those_of_openzfs() {
        // Asizes of zdb on golden pools: (width, parity, ashift, psize, asize).
        for (width, parity, ashift, psize, asize) in [
            (3, 1, 12, 512, 0x2000),
            (6, 2, 12, 512, 0x3000),
            (3, 1, 12, 128 << 10, 0x30000),
            (6, 2, 12, 128 << 10, 0x30000),
            (5, 3, 12, 4096, 0x4000),
        ] {
            let layout = Layout::Raidz(raidz(width, parity));
            assert_eq!(layout.asize_of(ashift, psize), asize);
        }
    }

    #[test]
    fn single_parity_changes_places_by_offset() {
        let plain = map_of(&raidz(3, 1), 12, at(0, 8192, 0));
        let swapped = map_of(&raidz(3, 1), 12, at(3 << 20, 8192, 0));
        let slots =
            |map: &Map| -> Vec<usize> { map.stripes[0].columns.iter().map(|c| c.slot).collect() };
        assert_eq!(slots(&plain), [0, 1, 2]);
        assert_eq!(slots(&swapped), [1, 0, 2]);
    }

    /// Every sector of a block with what it holds, by its number in the address space.
    fn content(map: &Map, children: u64, ashift: u8, block: &IoBuf) -> BTreeMap<u64, Vec<u8>> {
        let columns = solve::columns_of(map, block);
        let mut content = BTreeMap::new();
        for ((s, c), column) in map.columns() {
            for (row, bytes) in columns[s][c].chunks(1 << ashift).enumerate() {
                let sector = sector(column, row as u64, children, ashift);
                content.insert(sector, bytes.to_vec());
            }
        }
        content
    }

    #[test]
    fn expansion_moves_sectors_and_does_not_change_them() {
        for (width, parity) in [(3, 1), (4, 2), (6, 2), (5, 3), (7, 3)] {
            for (offset, size) in (0..9).flat_map(|o| (1..30).map(move |s| (o << 9, s << 9))) {
                let block: Vec<u8> = (0..size)
                    .map(|i| u8::try_from((i * 7 + i / 256 * 31) % 251).expect("small"))
                    .collect();
                let block = IoBuf::copy_from(&block);
                let shape = raidz(width, parity);
                let narrow = map_of(&shape, 9, at(offset, size, 50));
                let wide = map_of(&widened(&shape, 1), 9, at(offset, size, 50));
                assert_eq!(
                    content(&wide, u64::from(width) + 1, 9, &block),
                    content(&narrow, u64::from(width), 9, &block),
                    "{width} wide, parity {parity}, {size} bytes at {offset}"
                );
            }
        }
    }

    #[test]
    fn only_expansions_since_its_birth_have_moved_a_block() {
        for (expanding, born, former) in [
            (false, 20, 4..7),
            (false, 30, 5..7),
            (false, 95, 7..7),
            (true, 20, 3..7),
            (true, 95, 6..7),
        ] {
            let shape = Raidz {
                width: 7,
                parity: 1,
                expanded: vec![Txg(30), Txg(60), Txg(90)],
                expanding,
            };
            let map = map_of(&shape, 9, at(0, 4 << 9, born));
            assert_eq!(map.former, former, "{expanding}, born {born}");
        }
    }

    /// (child, row on it, bytes, scratch) of the columns of every stripe.
    fn locations(map: &Map) -> Vec<Vec<(usize, u64, usize, bool)>> {
        let of = |column: &Column| {
            let Column { slot, len, .. } = *column;
            (slot, column.offset >> 9, len, column.scratch)
        };
        let stripes = map.stripes.iter();
        stripes
            .map(|stripe| stripe.columns.iter().map(of).collect())
            .collect()
    }

    #[test]
    fn rows_are_where_the_expansion_left_them() {
        // Four children become five. The block: five sectors of data in two rows, P d0 d2 d4 | P d1 d3, from sector 6 on.
        let raidz = Raidz {
            expanding: true,
            ..raidz(5, 1)
        };
        let block = |state: u64, moved: u64| {
            let reflow = RaidzReflow(state << 55 | moved);
            locations(&Map::of_raidz(&raidz, reflow, 9, at(6 << 9, 5 << 9, 70)))
        };
        let old = [
            vec![
                (2, 1, 512, false),
                (3, 1, 512, false),
                (0, 2, 512, false),
                (1, 2, 512, false),
            ],
            vec![
                (2, 2, 512, false),
                (3, 2, 512, false),
                (0, 3, 512, false),
                (1, 3, 0, false),
            ],
        ];
        let new = |scratch: bool| {
            [
                vec![
                    (1, 1, 512, scratch),
                    (2, 1, 512, scratch),
                    (3, 1, 512, scratch),
                    (4, 1, 512, scratch),
                ],
                vec![
                    (0, 2, 512, scratch),
                    (1, 2, 512, scratch),
                    (2, 2, 512, scratch),
                    (3, 2, 0, scratch),
                ],
            ]
        };
        let half = |scratch| [new(scratch)[0].clone(), old[1].clone()];
        // The first row ends before sector 10, the second before 14 with the column that it does not reach.
        for (state, moved, expect) in [
            (0, 0, old.clone()),
            (4, 6, old.clone()),
            (4, 9, old.clone()),
            (4, 10, half(false)),
            (4, 13, half(false)),
            (4, 14, new(false)),
            (4, 1 << 40, new(false)),
            (1, 9, old.clone()),
            (1, 10, half(true)),
            (1, 14, new(true)),
            (2, 14, new(false)),
            (3, 14, new(false)),
        ] {
            assert_eq!(
                block(state, moved),
                expect,
                "state {state}, {moved} sectors moved"
            );
        }
        let scratch = Map::of_raidz(&raidz, RaidzReflow(1 << 55 | 14), 9, at(6 << 9, 5 << 9, 70));
        assert_eq!(
            scratch.stripes[1].columns[0].start(),
            (512 << 10) + (2 << 9)
        );
    }

    #[test]
    fn a_second_expansion_moves_stripes_of_every_width() {
        // Three children, four since group 100, five soon: blocks are three or four wide, and all lie on four or five.
        let raidz = Raidz {
            width: 5,
            expanding: true,
            ..widened(&raidz(3, 1), 1)
        };
        assert_eq!((raidz.width_at(Txg(99)), raidz.width_at(Txg(100))), (3, 4));
        let reflow = RaidzReflow(4 << 55 | 12);
        let first = Map::of_raidz(&raidz, reflow, 9, at(9 << 9, 4 << 9, 99));
        assert_eq!(
            locations(&first),
            [
                vec![(4, 1, 512, false), (0, 2, 512, false), (1, 2, 512, false)],
                vec![(0, 3, 512, false), (1, 3, 512, false), (2, 3, 512, false)],
            ]
        );
        let second = Map::of_raidz(&raidz, reflow, 9, at(9 << 9, 3 << 9, 100));
        let unmoved = [vec![
            (1, 2, 512, false),
            (2, 2, 512, false),
            (3, 2, 512, false),
            (0, 3, 512, false),
        ]];
        assert_eq!(locations(&second), unmoved);
    }

    #[test]
    fn ranges_of_children_add_up() {
        let shape = raidz(5, 2);
        for (from, to) in [(0, 7), (3, 4), (3, 22), (5, 10), (9, 9)] {
            let ranges = slot_ranges(&shape, 9, &(from << 9..to << 9));
            let mut found = Vec::new();
            for (child, range) in ranges.iter().enumerate() {
                for row in range.start >> 9..range.end >> 9 {
                    found.push(row * 5 + child as u64);
                }
            }
            found.sort_unstable();
            assert_eq!(found, (from..to).collect::<Vec<_>>());
        }
    }
}
