//! Blocks on raidz: sector by sector, parity included.
//!
//! Shares nothing with the engine's layout code: a block is a run of sectors that go round the children, every `width`
//! of them (parity first) with common parity. What is missing is computed with `codec`, and then the checksum of the
//! block decides; parity is computed again by Horner's rule, a byte at a time.

use ondisk::{Dva, label};

use super::blocks::Checker;

/// Shape of a raidz vdev.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Shape {
    pub(super) children: u64,
    pub(super) parity: u64,
}

/// What the leaves hold of one block.
pub(super) struct Stripe {
    parity: usize,
    sector: usize,
    len: usize,
    /// Bytes of every column (parity first), as far as they can be read; all leaves of the child.
    columns: Vec<Column>,
}

struct Column {
    sectors: usize,
    held: Vec<(u64, Vec<u8>)>,
}

impl Shape {
    /// Allocated sectors of a block of `sectors` sectors.
    pub(super) fn allocated(self, sectors: u64) -> u64 {
        let rows = sectors.div_ceil(self.children - self.parity);
        (sectors + rows * self.parity).next_multiple_of(self.parity + 1)
    }
}

impl Checker<'_> {
    /// Reads all columns of the block of `len` bytes at a place on a raidz; `None` if the place is on no raidz.
    pub(super) fn stripe(&self, dva: Dva, len: usize) -> Option<Stripe> {
        let top = self.tops.get(&dva.vdev)?;
        let shape = top.raidz?;
        let sector = 1_usize << top.ashift;
        let data = len.div_ceil(sector) as u64;
        let rows = data.div_ceil(shape.children - shape.parity);
        let all = data + rows * shape.parity;
        let first = dva.offset >> top.ashift;
        let width = shape.children.min(all);
        let mut columns = Vec::new();
        for column in 0..width {
            // Single parity: the first two columns change places in every second MiB.
            let swapped = match column {
                0 | 1 if shape.parity == 1 && dva.offset >> 20 & 1 == 1 => 1 - column,
                _ => column,
            };
            let sectors = (all - column).div_ceil(width);
            let child = (first + swapped) % shape.children;
            let row = (first + swapped) / shape.children;
            let mut held = Vec::new();
            for leaf in top.leaves.iter().filter(|leaf| leaf.child == child) {
                let Some(disk) = leaf.disk.and_then(|i| self.disks.get(i)) else {
                    continue;
                };
                let mut bytes = vec![0; ondisk::bytes::index(sectors) * sector];
                let at = (row << top.ashift).saturating_add(label::DATA_START);
                if disk.image.read_at(at, &mut bytes) {
                    held.push((leaf.guid, bytes));
                }
            }
            columns.push(Column {
                sectors: ondisk::bytes::index(sectors),
                held,
            });
        }
        Some(Stripe {
            parity: ondisk::bytes::index(shape.parity),
            sector,
            len,
            columns,
        })
    }
}

impl Stripe {
    /// How many columns were read.
    pub(super) fn count(&self) -> u64 {
        self.columns.iter().map(|c| c.held.len() as u64).sum()
    }

    /// Returns the bytes that `accept` takes for the right ones, if any, and the leaves that hold something else.
    pub(super) fn solve(&self, accept: &dyn Fn(&[u8]) -> bool) -> (Option<Vec<u8>>, Vec<u64>) {
        let mut without = Vec::new();
        for size in 0..=self.parity {
            if let Some(block) = self.attempt(size, 0, &mut without, accept) {
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
        from: usize,
        without: &mut Vec<usize>,
        accept: &dyn Fn(&[u8]) -> bool,
    ) -> Option<Vec<u8>> {
        if size == 0 {
            let block = self.block(without)?;
            return accept(block.get(..self.len)?).then_some(block);
        }
        (from..self.columns.len()).find_map(|column| {
            without.push(column);
            let found = self.attempt(size - 1, column + 1, without, accept);
            without.pop();
            found
        })
    }

    /// The block, in whole sectors, from all columns but these.
    fn block(&self, without: &[usize]) -> Option<Vec<u8>> {
        let column = |i: usize| -> Option<&[u8]> {
            let first = self.columns[i].held.first()?;
            (!without.contains(&i)).then_some(first.1.as_slice())
        };
        let data = self.parity..self.columns.len();
        let known: Vec<Option<&[u8]>> = data.clone().map(column).collect();
        let parity: Vec<Option<&[u8]>> = (0..self.parity).map(column).collect();
        let mut lost: Vec<Vec<u8>> = data
            .clone()
            .filter(|i| column(*i).is_none())
            .map(|i| vec![0; self.columns[i].sectors * self.sector])
            .collect();
        let mut places: Vec<&mut [u8]> = lost.iter_mut().map(Vec::as_mut_slice).collect();
        codec::parity::reconstruct(&known, &parity, &mut places).ok()?;
        let mut found = lost.into_iter();
        let mut block = Vec::new();
        for bytes in known {
            match bytes {
                Some(bytes) => block.extend_from_slice(bytes),
                None => block.extend_from_slice(&found.next()?),
            }
        }
        Some(block)
    }

    /// The leaves whose column is not that of the block.
    fn differing(&self, block: &[u8]) -> Vec<u64> {
        let mut expected: Vec<Vec<u8>> = Vec::new();
        let mut at = 0;
        for column in &self.columns[self.parity..] {
            let end = at + column.sectors * self.sector;
            expected.push(block[at..end].to_vec());
            at = end;
        }
        let height = self.columns[0].sectors * self.sector;
        let rows: Vec<Vec<u8>> = (0..self.parity)
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
        let all = rows.iter().chain(&expected);
        let mut bad = Vec::new();
        for (column, right) in self.columns.iter().zip(all) {
            for (leaf, bytes) in &column.held {
                if bytes != right {
                    bad.push(*leaf);
                }
            }
        }
        bad
    }
}
