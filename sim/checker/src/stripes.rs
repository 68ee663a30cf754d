//! Blocks on raidz and draid: sector by sector, parity included.
//!
//! Shares nothing with the engine's layout code. On raidz a block is a run of sectors that go round the children, every
//! `width` of them (parity first) with common parity; where it was expanded ([`super::expansion`]), each row by itself. On draid
//! ([`super::spread`]) it is whole rows of a group, filled up with zeros. What is missing is computed with `codec`, and then the checksum
//! of the block decides; parity is computed again by Horner's rule, a byte at a time.

use ondisk::{Dva, label};

use super::blocks::Checker;
use super::devices::Top;
use super::expansion::Expansion;
use super::spread::Spread;

/// Shape of a raidz or draid vdev.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Shape {
    pub(super) children: u64,
    pub(super) parity: u64,
    /// Of a draid.
    pub(super) spread: Option<Spread>,
    /// Of a raidz.
    pub(super) expansion: Expansion,
}

/// What the leaves hold of one block.
pub(super) struct Stripe {
    parity: usize,
    sector: usize,
    len: usize,
    /// One, but for a block that lies in two groups of a draid, or in rows of their own.
    parts: Vec<Part>,
    /// Which sector of the block each sector of the parts is, where that is not the same.
    order: Vec<usize>,
}

/// Columns with common parity (parity first), as far as they can be read; all leaves of the child.
struct Part {
    columns: Vec<Column>,
}

struct Column {
    child: u64,
    /// Sectors that are the block's, or its parity.
    sectors: usize,
    /// Sectors of zeros behind them.
    filling: usize,
    held: Vec<(u64, Vec<u8>)>,
}

impl Shape {
    /// Children that a block written in a txg is spread over.
    pub(super) fn width(&self, birth: u64) -> u64 {
        self.expansion.width(self.children, birth)
    }

    /// Allocated sectors of a block of `sectors` sectors that was written in a txg.
    pub(super) fn allocated(&self, sectors: u64, birth: u64) -> u64 {
        if let Some(spread) = &self.spread {
            return sectors.div_ceil(spread.data) * spread.width;
        }
        let rows = sectors.div_ceil(self.width(birth) - self.parity);
        (sectors + rows * self.parity).next_multiple_of(self.parity + 1)
    }
}

/// Which sector of a block each of its `data` sectors is, row by row: they are numbered by columns, of which the first ones are longer.
fn order_of_rows(data: u64, width: u64) -> Vec<usize> {
    let (rows, long) = (data.div_ceil(width), data % width);
    let number = |at: u64| {
        let (row, column) = (at / width, at % width);
        let number = match long {
            0 => column * rows + row,
            long => column.min(long) * rows + column.saturating_sub(long) * (rows - 1) + row,
        };
        ondisk::bytes::index(number)
    };
    (0..data).map(number).collect()
}

impl Checker<'_> {
    /// Reads all columns of the block of `len` bytes that was written in a txg at a place with parity; `None` if the place has none.
    pub(super) fn stripe(&self, dva: Dva, len: usize, birth: u64) -> Option<Stripe> {
        let top = self.tops.get(&dva.vdev)?;
        let shape = top.raidz.as_ref()?;
        let sector = 1_usize << top.ashift;
        let data = len.div_ceil(sector) as u64;
        let first = dva.offset >> top.ashift;
        let mut order = Vec::new();
        let parts = match &shape.spread {
            None if !shape.expansion.is_none() => {
                let width = shape.width(birth);
                order = order_of_rows(data, width - shape.parity);
                self.rows_of_raidz(top, shape, dva.offset, data, width)
            }
            None => vec![self.part_of_raidz(top, shape, dva.offset, data)],
            Some(spread) => {
                let (mut parts, mut done) = (Vec::new(), 0);
                while done < data {
                    let at = first + done / spread.data * spread.width;
                    let left = spread.rows_left(at, top.ashift) * spread.data;
                    let count = left.min(data - done);
                    parts.push(self.part_of_draid(top, shape.parity, spread, at, count));
                    done += count;
                }
                parts
            }
        };
        Some(Stripe {
            parity: ondisk::bytes::index(shape.parity),
            sector,
            len,
            parts,
            order,
        })
    }

    fn part_of_raidz(&self, top: &Top, shape: &Shape, offset: u64, data: u64) -> Part {
        let rows = data.div_ceil(shape.children - shape.parity);
        let all = data + rows * shape.parity;
        let first = offset >> top.ashift;
        let width = shape.children.min(all);
        let mut columns = Vec::new();
        for column in 0..width {
            // Single parity: the first two columns change places in every second MiB.
            let swapped = match column {
                0 | 1 if shape.parity == 1 && offset >> 20 & 1 == 1 => 1 - column,
                _ => column,
            };
            let sectors = (all - column).div_ceil(width);
            let child = (first + swapped) % shape.children;
            let row = (first + swapped) / shape.children;
            columns.push(self.column(top, child, label::DATA_START, row, sectors, 0));
        }
        Part { columns }
    }

    /// The rows of a block on an expanded raidz, each with parity of its own. The last one has columns of no sectors where it is shorter.
    fn rows_of_raidz(
        &self,
        top: &Top,
        shape: &Shape,
        offset: u64,
        data: u64,
        width: u64,
    ) -> Vec<Part> {
        let rows = data.div_ceil(width - shape.parity);
        let all = data + rows * shape.parity;
        let swaps = shape.parity == 1 && offset >> 20 & 1 == 1;
        let row = |row: u64| {
            let first = (offset >> top.ashift) + row * width;
            let count = width.min(all);
            let place = shape
                .expansion
                .place(shape.children, (first + count) << top.ashift);
            let here = width.min(all - row * width);
            let columns = (0..count).map(|column| {
                let swapped = if swaps && column < 2 {
                    1 - column
                } else {
                    column
                };
                let at = first + swapped;
                let (child, row) = (at % place.children, at / place.children);
                self.column(top, child, place.base, row, u64::from(column < here), 0)
            });
            Part {
                columns: columns.collect(),
            }
        };
        (0..rows).map(row).collect()
    }

    fn part_of_draid(&self, top: &Top, parity: u64, spread: &Spread, at: u64, data: u64) -> Part {
        let rows = data.div_ceil(spread.data);
        let places = spread.places(at, top.ashift).into_iter().enumerate();
        let columns = places.map(|(index, (child, row))| {
            let mine = (index as u64).checked_sub(parity);
            let sectors = mine.map_or(rows, |index| {
                data / spread.data + u64::from(index < data % spread.data)
            });
            self.column(top, child, label::DATA_START, row, sectors, rows - sectors)
        });
        Part {
            columns: columns.collect(),
        }
    }

    /// Reads sectors of one child from `row` on, which are numbered from `base`.
    fn column(
        &self,
        top: &Top,
        child: u64,
        base: u64,
        row: u64,
        sectors: u64,
        filling: u64,
    ) -> Column {
        let mut held = Vec::new();
        for leaf in top.leaves.iter().filter(|leaf| leaf.child == child) {
            let Some(disk) = leaf.disk.and_then(|i| self.disks.get(i)) else {
                continue;
            };
            let mut bytes = vec![0; ondisk::bytes::index(sectors + filling) << top.ashift];
            let at = (row << top.ashift).saturating_add(base);
            if disk.image.read_at(at, &mut bytes) {
                held.push((leaf.guid, bytes));
            }
        }
        Column {
            child,
            sectors: ondisk::bytes::index(sectors),
            filling: ondisk::bytes::index(filling),
            held,
        }
    }
}

impl Stripe {
    /// How many columns were read.
    pub(super) fn count(&self) -> u64 {
        let columns = self.parts.iter().flat_map(|part| &part.columns);
        columns.map(|c| c.held.len() as u64).sum()
    }

    /// Returns the bytes that `accept` takes for the right ones, if any, and the leaves that hold something else.
    pub(super) fn solve(&self, accept: &dyn Fn(&[u8]) -> bool) -> (Option<Vec<u8>>, Vec<u64>) {
        let mut without = Vec::new();
        let columns = self.parts.iter().flat_map(|part| &part.columns);
        let mut children: Vec<u64> = columns.map(|column| column.child).collect();
        children.sort_unstable();
        children.dedup();
        for size in 0..=self.parity {
            if let Some(block) = self.attempt(size, &children, &mut without, accept) {
                let bad = self.differing(&block);
                let mut data = block;
                data.truncate(self.len);
                return (Some(data), bad);
            }
        }
        (None, Vec::new())
    }

    fn attempt(
        &self,
        size: usize,
        children: &[u64],
        without: &mut Vec<u64>,
        accept: &dyn Fn(&[u8]) -> bool,
    ) -> Option<Vec<u8>> {
        if size == 0 {
            let mut block = Vec::new();
            for part in &self.parts {
                part.add_to(&mut block, self.parity, self.sector, without)?;
            }
            let block = self.ordered(block, |from, to| (from, to));
            return accept(block.get(..self.len)?).then_some(block);
        }
        children.iter().enumerate().find_map(|(index, child)| {
            without.push(*child);
            let found = self.attempt(size - 1, &children[index + 1..], without, accept);
            without.pop();
            found
        })
    }

    /// Puts the sectors of the parts into the order of the block, or the other way round, as `direction` says for a sector of the parts and
    /// its number in the block.
    fn ordered(&self, bytes: Vec<u8>, direction: fn(usize, usize) -> (usize, usize)) -> Vec<u8> {
        if self.order.is_empty() {
            return bytes;
        }
        let mut out = vec![0; bytes.len()];
        for (part, block) in self.order.iter().enumerate() {
            let (from, to) = direction(part, *block);
            let sector = |number: usize| number * self.sector..(number + 1) * self.sector;
            out[sector(to)].copy_from_slice(&bytes[sector(from)]);
        }
        out
    }

    /// The leaves whose column is not that of the block.
    fn differing(&self, block: &[u8]) -> Vec<u64> {
        let mut bad = Vec::new();
        let block = self.ordered(block.to_vec(), |from, to| (to, from));
        let mut rest = block.as_slice();
        for part in &self.parts {
            rest = part.compare(rest, self.parity, self.sector, &mut bad);
        }
        bad
    }
}

impl Part {
    /// Appends the data, in whole sectors, from the columns of all but these children.
    fn add_to(
        &self,
        block: &mut Vec<u8>,
        parity: usize,
        sector: usize,
        without: &[u64],
    ) -> Option<()> {
        let column = |i: usize| -> Option<&[u8]> {
            let column = &self.columns[i];
            if column.sectors == 0 {
                return Some(&[]);
            }
            let first = column.held.first()?;
            let bytes = first.1.get(..column.sectors * sector)?;
            (!without.contains(&column.child)).then_some(bytes)
        };
        let data = parity..self.columns.len();
        let known: Vec<Option<&[u8]>> = data.clone().map(column).collect();
        let rows: Vec<Option<&[u8]>> = (0..parity).map(column).collect();
        let mut lost: Vec<Vec<u8>> = data
            .filter(|i| column(*i).is_none())
            .map(|i| vec![0; self.columns[i].sectors * sector])
            .collect();
        let mut places: Vec<&mut [u8]> = lost.iter_mut().map(Vec::as_mut_slice).collect();
        codec::parity::reconstruct(&known, &rows, &mut places).ok()?;
        let mut found = lost.into_iter();
        for bytes in known {
            match bytes {
                Some(bytes) => block.extend_from_slice(bytes),
                None => block.extend_from_slice(&found.next()?),
            }
        }
        Some(())
    }

    /// Notes the leaves that do not hold what they should of the block that `rest` begins with; returns what follows.
    fn compare<'a>(
        &self,
        rest: &'a [u8],
        parity: usize,
        sector: usize,
        bad: &mut Vec<u64>,
    ) -> &'a [u8] {
        let mut expected: Vec<Vec<u8>> = Vec::new();
        let mut at = 0;
        for column in &self.columns[parity..] {
            let end = at + column.sectors * sector;
            let mut bytes = rest[at..end].to_vec();
            bytes.resize(bytes.len() + column.filling * sector, 0);
            expected.push(bytes);
            at = end;
        }
        let height = self.columns[0].sectors * sector;
        let rows: Vec<Vec<u8>> = (0..parity)
            .map(|row| {
                let mut sum = vec![0_u8; height];
                for column in &expected {
                    for (i, byte) in sum.iter_mut().enumerate() {
                        for _ in 0..row {
                            *byte = (*byte << 1) ^ if *byte & 0x80 == 0 { 0 } else { 0x1d };
                        }
                        *byte ^= column.get(i).copied().unwrap_or(0);
                    }
                }
                sum
            })
            .collect();
        for (column, right) in self.columns.iter().zip(rows.iter().chain(&expected)) {
            for (leaf, bytes) in &column.held {
                if bytes != right {
                    bad.push(*leaf);
                }
            }
        }
        &rest[at..]
    }
}
