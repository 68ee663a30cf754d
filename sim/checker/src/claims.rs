//! Which block references which space: every sector may be referenced by one block only.

use std::collections::BTreeMap;

use ondisk::{BlockPointer, Dva};

use super::devices::Top;
use super::report::{Kind, Report};

/// One referenced place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Claim {
    asize: u64,
    birth: u64,
    /// Where the first copy of the block is: the reference table names no other.
    block: (u32, u64),
    /// References beyond the first.
    extra: u64,
    /// A deduplicated block, which may be referenced at will.
    dedup: bool,
}

/// All referenced places by vdev and offset.
#[derive(Debug, Default)]
pub(super) struct Claims {
    places: BTreeMap<(u32, u64), Claim>,
    /// Children found in gang headers, by header place; claimed with their header.
    gangs: BTreeMap<(u32, u64), Vec<BlockPointer>>,
    /// References that clones of blocks may have beyond the first, by place.
    pub(super) cloned: BTreeMap<(u32, u64), u64>,
    /// References that the tables count of deduplicated blocks, by the place of the first copy and the txg that wrote it.
    pub(super) deduplicated: BTreeMap<(u32, u64), (u64, u64)>,
}

impl Claims {
    /// Remembers that the gang block `parent` has this child.
    pub(super) fn gang_child(&mut self, parent: &BlockPointer, child: &BlockPointer) {
        let dva = parent.dvas()[0];
        let children = self.gangs.entry((dva.vdev, dva.offset)).or_default();
        if !children.contains(child) {
            children.push(*child);
        }
    }

    /// Claims all copies of a block for its only owner. `owner` is for findings.
    pub(super) fn claim(
        &mut self,
        bp: &BlockPointer,
        tops: &BTreeMap<u32, Top>,
        report: &mut Report,
        owner: &dyn Fn() -> String,
    ) {
        let mut again = false;
        let first = bp.dvas()[0];
        let block = (first.vdev, first.offset);
        for dva in bp.copies() {
            let asize = if dva.gang {
                tops.get(&dva.vdev)
                    .map_or(512, |t| t.asize_of(512, bp.physical_birth().0))
            } else {
                dva.asize
            };
            let birth = bp.physical_birth().0;
            again |= self.place(
                dva,
                Claim {
                    asize,
                    birth,
                    block,
                    extra: 0,
                    dedup: bp.is_dedup(),
                },
                report,
                owner,
            );
        }
        if bp.is_gang() && !again {
            for child in self.gangs.get(&block).cloned().unwrap_or_default() {
                self.claim(&child, tops, report, owner);
            }
        }
    }

    /// Claims a place; true when the same block had claimed it before.
    fn place(
        &mut self,
        dva: Dva,
        claim: Claim,
        report: &mut Report,
        owner: &dyn Fn() -> String,
    ) -> bool {
        let key = (dva.vdev, dva.offset);
        match self.places.get_mut(&key) {
            None => {
                self.places.insert(key, claim);
                false
            }
            Some(old) => {
                let what = |claim: &Claim| (claim.asize, claim.birth, claim.block);
                let same = what(old) == what(&claim);
                let counted = self.deduplicated.get(&claim.block);
                let is_counted = counted.is_some_and(|&(_, birth)| birth == claim.birth);
                let is_dedup = claim.dedup && old.dedup && is_counted;
                let is_shared = is_dedup || self.cloned.contains_key(&claim.block);
                old.extra += 1;
                if !same || !is_shared {
                    report.error(
                        Kind::Double,
                        format!(
                            "{}: vdev {} offset {:#x} is referenced twice",
                            owner(),
                            dva.vdev,
                            dva.offset
                        ),
                    );
                }
                same
            }
        }
    }

    /// True when every copy of a block is claimed with the same size.
    pub(super) fn covers(&self, bp: &BlockPointer) -> bool {
        bp.copies().all(|d| {
            self.places
                .get(&(d.vdev, d.offset))
                .is_some_and(|c| d.gang || c.asize == d.asize)
        })
    }

    /// Compares how often cloned blocks are referenced with the reference table.
    pub(super) fn judge_clones(&self, report: &mut Report) {
        for ((vdev, offset), count) in &self.cloned {
            let extra = self.places.get(&(*vdev, *offset)).map(|c| c.extra);
            if extra != Some(*count) {
                report.error(
                    Kind::Accounting,
                    format!(
                        "cloned block at vdev {vdev} offset {offset:#x}: table says {count} further references, found {extra:?}"
                    ),
                );
            }
        }
    }

    /// Compares how often deduplicated blocks are referenced with what their tables count.
    pub(super) fn judge_dedup(&self, report: &mut Report) {
        for ((vdev, offset), (count, birth)) in &self.deduplicated {
            let claim = self.places.get(&(*vdev, *offset));
            let found = claim.filter(|claim| claim.birth == *birth && claim.dedup);
            let found = found.map_or(0, |claim| claim.extra + 1);
            if found != *count {
                report.error(
                    Kind::Accounting,
                    format!(
                        "deduplicated block at vdev {vdev} offset {offset:#x}: table says {count} references, found {found}"
                    ),
                );
            }
        }
    }

    /// The claimed ranges of one vdev as `(start, end)`, merged and sorted; overlaps are reported.
    pub(super) fn ranges(&self, vdev: u32, report: &mut Report) -> Vec<(u64, u64)> {
        let mut out: Vec<(u64, u64)> = Vec::new();
        for ((_, offset), claim) in self.places.range((vdev, 0)..=(vdev, u64::MAX)) {
            let end = offset + claim.asize;
            match out.last_mut() {
                Some((_, last)) if *last > *offset => {
                    report.error(
                        Kind::Double,
                        format!("vdev {vdev}: blocks overlap at offset {offset:#x}"),
                    );
                    *last = end.max(*last);
                }
                Some((_, last)) if *last == *offset => *last = end,
                _ => out.push((*offset, end)),
            }
        }
        out
    }
}
