//! Livelists: what a clone has of its own, by its list and by its tree; and destroyed clones that only their lists remember.

use std::collections::BTreeMap;

use ondisk::dsl::{BpobjPhys, DeadlistPhys, livelist_entry};
use ondisk::{BlockPointer, ObjectType, bytes};

use super::blocks::Checker;
use super::objset::Tree;
use super::pool::ListSpace;
use super::report::Kind;
use super::usage::Usage;
use super::zap::Zap;

/// Where the bonus of a list counts the entries that mark the end of a block.
const FREED_AT: usize = 48;

/// Places of blocks, and how often each is there.
pub(super) type Places = BTreeMap<(u32, u64), u64>;

/// Counts the places of blocks that a livelist would have.
pub(super) fn places<'a>(blocks: impl Iterator<Item = &'a BlockPointer>, since: u64) -> Places {
    let mut places = Places::new();
    for bp in blocks {
        if !bp.is_hole() && !bp.is_embedded() && bp.birth().0 > since {
            let first = bp.dvas()[0];
            *places.entry((first.vdev, first.offset)).or_insert(0) += 1;
        }
    }
    places
}

impl Checker<'_> {
    /// Reads a livelist, checks its sums, and returns the blocks that were written and have no end, with their sizes.
    pub(super) fn read_livelist(
        &mut self,
        mos: &Tree,
        object: u64,
        usage: &mut Usage,
    ) -> (Vec<BlockPointer>, ListSpace) {
        usage.mark(object, "livelist");
        usage.livelists += 1;
        let mut live = Vec::new();
        let mut sum = ListSpace::default();
        let header = mos
            .objects
            .get(&object)
            .filter(|d| d.bonus_type == ObjectType::DEADLIST_HDR)
            .and_then(|d| DeadlistPhys::decode(&d.bonus).ok());
        let Some(header) = header else {
            let text = format!("object {object} is not a livelist");
            self.report.error(Kind::Deadlist, text);
            return (live, sum);
        };
        let mut keys: Vec<(u64, u64)> = self
            .read_zap(mos, object)
            .iter()
            .flat_map(Zap::pairs)
            .filter_map(|(k, v)| Some((u64::from_str_radix(&k, 16).ok()?, v)))
            .collect();
        keys.sort_unstable();
        for (i, (from, list)) in keys.iter().enumerate() {
            let until = keys.get(i + 1).map_or(u64::MAX, |k| k.0);
            let of_entry = self.read_livelist_entry(mos, *list, usage);
            for bp in &of_entry {
                let birth = bp.birth().0;
                if (birth <= *from && i > 0) || birth > until {
                    let text = format!(
                        "livelist {object} from txg {from} to {until} has a block of {birth}"
                    );
                    self.report.error(Kind::Deadlist, text);
                }
                sum.add(ListSpace {
                    bytes: self.dsize(bp),
                    comp: bp.accounted_compressed(),
                    uncomp: bp.accounted_uncompressed(),
                });
            }
            live.extend(of_entry);
        }
        let said = ListSpace {
            bytes: header.used,
            comp: header.comp,
            uncomp: header.uncomp,
        };
        if said != sum {
            let text = format!("livelist {object} says {said:?}, holds {sum:?}");
            self.report.error(Kind::Deadlist, text);
        }
        (live, sum)
    }

    fn read_livelist_entry(
        &mut self,
        mos: &Tree,
        object: u64,
        usage: &mut Usage,
    ) -> Vec<BlockPointer> {
        if object == usage.empty_list {
            usage.empty_bpobj += 1;
            return Vec::new();
        }
        usage.mark(object, "part of a livelist");
        let found = mos.objects.get(&object).and_then(|d| {
            let counted = d.bonus.len() >= FREED_AT + 8;
            let freed = if counted {
                bytes::u64_at(&d.bonus, FREED_AT)
            } else {
                0
            };
            Some((BpobjPhys::decode(&d.bonus).ok()?, freed))
        });
        let Some((header, freed)) = found.filter(|(header, _)| header.num_subobjs == 0) else {
            let text = format!("object {object} is not a part of a livelist");
            self.report.error(Kind::Bpobj, text);
            return Vec::new();
        };
        let len = header.num_blkptrs.saturating_mul(BlockPointer::SIZE as u64);
        let data = self.object_bytes(mos, object, len);
        let mut live: BTreeMap<(u32, u64), Vec<BlockPointer>> = BTreeMap::new();
        let mut ends = 0;
        let mut orphans = 0;
        for entry in BlockPointer::decode_all(&data) {
            let (bp, end) = livelist_entry(&entry);
            let first = bp.dvas()[0];
            let at = live.entry((first.vdev, first.offset)).or_default();
            if !end {
                at.push(bp);
                continue;
            }
            ends += 1;
            orphans += u64::from(at.pop().is_none());
        }
        if ends != freed || orphans > 0 {
            let text = format!(
                "part {object} of a livelist counts {freed} ends and has {ends}, {orphans} of blocks it does not have"
            );
            self.report.error(Kind::Bpobj, text);
        }
        live.into_values().flatten().collect()
    }

    /// Reads the livelists of clones that are being destroyed: their blocks are still allocated.
    pub(super) fn read_deleted_clones(
        &mut self,
        mos: &Tree,
        directory: &Zap,
        usage: &mut Usage,
    ) -> ListSpace {
        let mut space = ListSpace::default();
        let Some(queue) = directory.u64("com.delphix:deleted_clones") else {
            return space;
        };
        let lists: Vec<u64> = self
            .read_zap(mos, queue)
            .iter()
            .flat_map(Zap::pairs)
            .map(|(_, list)| list)
            .collect();
        for list in lists {
            let (live, sizes) = self.read_livelist(mos, list, usage);
            for bp in &live {
                self.claims.claim(bp, &self.tops, &mut self.report, &|| {
                    "a destroyed clone".to_owned()
                });
            }
            space.add(sizes);
        }
        space
    }
}
