//! Removed vdevs, and one that is being emptied: where their blocks are now, and which of them no block refers to.

use std::collections::{BTreeMap, BTreeSet};

use ondisk::space_map::{self, SpaceMapEntry, SpaceMapHeader, SpaceOp};
use ondisk::{Dva, NvList, bytes, label};

use super::blocks::Checker;
use super::objset::Tree;
use super::report::Kind;
use super::space::Ranges;
use super::usage::Usage;
use super::zap::Zap;

/// Keys of a vdev's configuration.
const MAPPING: &str = "com.delphix:indirect_object";
const BIRTHS: &str = "com.delphix:indirect_births";
const PREVIOUS: &str = "com.delphix:prev_indirect_vdev";
/// Key of the directory: stage, vdev, vdev removed last, start, end, bytes to copy, bytes copied.
const REMOVING: &str = "com.delphix:removing";
const EVACUATING: u64 = 1;
const FINISHED: u64 = 2;
/// No vdev.
const NONE: u64 = u64::MAX;
/// Keys of its attributes.
const OBSOLETE: &str = "com.delphix:indirect_obsolete_sm";
const PRECISE: &str = "com.delphix:obsolete_counts_are_precise";
/// Bytes of an entry of the table, and of one of the births.
const ENTRY: u64 = 24;
const BIRTH: u64 = 16;
/// Most combinations of leaves tried for a block in several pieces.
const COMBINATIONS_MAX: usize = 1 << 12;

/// Neighbouring bytes that were moved together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Run {
    from: u64,
    len: u64,
    vdev: u32,
    offset: u64,
    /// Bytes that no block referred to when they were moved.
    obsolete: u64,
}

/// The table of one vdev.
#[derive(Debug)]
pub(super) struct Moved {
    runs: Vec<Run>,
    /// Moved up to here, in which txg.
    births: Vec<(u64, u64)>,
    objects: [u64; 3],
}

/// Where a piece of a block is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Place {
    vdev: u32,
    offset: u64,
    len: u64,
    /// When it was moved there.
    moved: Option<u64>,
}

/// What one leaf has of a piece.
#[derive(Debug)]
pub(super) struct Half {
    pub(super) vdev: u32,
    pub(super) leaf: u64,
    pub(super) moved: Option<u64>,
    data: Vec<u8>,
}

/// What all leaves have of a block: piece by piece.
#[derive(Debug)]
pub(super) struct Halves(Vec<Vec<Half>>);

impl Halves {
    /// How many copies of pieces there are.
    pub(super) fn count(&self) -> u64 {
        self.0.iter().map(|piece| piece.len() as u64).sum()
    }

    /// Puts the block together so that `is_right`; returns the leaves that have something else, too.
    pub(super) fn solve(&self, is_right: &dyn Fn(&[u8]) -> bool) -> (Option<Vec<u8>>, Vec<&Half>) {
        let mut chosen = vec![0; self.0.len()];
        let whole = self.0.iter().all(|piece| !piece.is_empty()) && !self.0.is_empty();
        for _ in 0..if whole { COMBINATIONS_MAX } else { 0 } {
            let pieces = self.0.iter().zip(&chosen);
            let data: Vec<u8> = pieces
                .flat_map(|(piece, &i)| piece[i].data.clone())
                .collect();
            if is_right(&data) {
                let mut wrong = Vec::new();
                for (piece, &i) in self.0.iter().zip(&chosen) {
                    wrong.extend(piece.iter().filter(|half| half.data != piece[i].data));
                }
                return (Some(data), wrong);
            }
            let mut turned = false;
            for (piece, at) in self.0.iter().zip(&mut chosen) {
                *at = (*at + 1) % piece.len();
                turned = *at != 0;
                if turned {
                    break;
                }
            }
            if !turned {
                break;
            }
        }
        (None, self.0.iter().flatten().collect())
    }
}

impl Checker<'_> {
    /// Reads the tables that are not known yet of the vdevs in the configuration; whether there were any. Adopts the tree
    /// then, since the labels do not know removed vdevs.
    pub(super) fn read_tables(&mut self, mos: &Tree) -> bool {
        let directory = self.read_zap(mos, 1);
        let Some(object) = directory.and_then(|directory| directory.u64("config")) else {
            return false;
        };
        let Some(config) = self.read_nvlist(mos, object) else {
            return false;
        };
        let mut found = false;
        for top in tops(&config).iter().filter(|top| top.has(MAPPING)) {
            let id = id_of(top);
            if !self.moved.contains_key(&id)
                && let Some(table) = self.read_table(mos, top)
            {
                self.moved.insert(id, table);
                found = true;
            }
        }
        if found {
            self.tops.clear();
            for top in tops(&config) {
                self.add_top(top);
            }
        }
        found
    }

    fn read_table(&mut self, mos: &Tree, top: &NvList) -> Option<Moved> {
        let (mapping, births) = (top.u64(MAPPING)?, top.u64(BIRTHS)?);
        let header = &mos.objects.get(&mapping)?.bonus;
        if header.len() < 24 {
            return None;
        }
        let (end, total, count) = (
            bytes::u64_at(header, 0),
            bytes::u64_at(header, 8),
            bytes::u64_at(header, 16),
        );
        let counts = if header.len() >= 32 {
            bytes::u64_at(header, 24)
        } else {
            0
        };
        let births_count = bytes::u64_at(&mos.objects.get(&births)?.bonus, 0);
        let entries = self.object_bytes(mos, mapping, count.checked_mul(ENTRY)?);
        let obsolete = self.object_bytes(mos, counts, count.checked_mul(4)?);
        let mut runs: Vec<Run> = Vec::new();
        for (index, entry) in entries.chunks_exact(bytes::index(ENTRY)).enumerate() {
            let place = bytes::u64_at(entry, 8);
            let at = |word: u64| (word & !(1 << 63)) << 9;
            let counted = obsolete.get(4 * index..4 * index + 4);
            let counted = counted.and_then(|four| four.try_into().ok());
            runs.push(Run {
                from: at(bytes::u64_at(entry, 0)),
                len: (place & 0xff_ffff) << 9,
                vdev: u32::try_from(place >> 32 & 0xff_ffff).ok()?,
                offset: at(bytes::u64_at(entry, 16)),
                obsolete: counted.map_or(0, |four| u64::from(u32::from_le_bytes(four))),
            });
        }
        let sorted = runs.windows(2).all(|w| w[0].from + w[0].len <= w[1].from);
        let last = runs.last().map_or(0, |run| run.from + run.len);
        let sum: u64 = runs.iter().map(|run| run.len).sum();
        let whole = runs.len() as u64 == count && runs.iter().all(|run| run.len != 0);
        if !whole || !sorted || sum != total || last != end {
            return None;
        }
        let births_bytes = self.object_bytes(mos, births, births_count.checked_mul(BIRTH)?);
        let pair = |entry: &[u8]| (bytes::u64_at(entry, 0), bytes::u64_at(entry, 8));
        Some(Moved {
            runs,
            births: births_bytes
                .chunks_exact(bytes::index(BIRTH))
                .map(pair)
                .collect(),
            objects: [mapping, births, counts],
        })
    }

    /// Returns where the bytes of a vdev are now, or are as well (of one that is being emptied, when `copies`).
    fn places(&self, vdev: u32, offset: u64, len: u64, copies: bool) -> Option<Vec<Place>> {
        let is_gone = self.tops.get(&vdev).is_some_and(|top| top.is_indirect);
        if !is_gone && !copies {
            return Some(vec![Place {
                vdev,
                offset,
                len,
                moved: None,
            }]);
        }
        let table = self.moved.get(&vdev)?;
        let mut out = Vec::new();
        let (mut at, end) = (offset, offset.checked_add(len)?);
        while at < end {
            let next = table.runs.partition_point(|run| run.from + run.len <= at);
            let run = table.runs.get(next).filter(|run| run.from <= at)?;
            let len = (run.from + run.len).min(end) - at;
            let birth = table.births.partition_point(|(until, _)| *until <= at);
            let birth = table.births.get(birth).map(|(_, txg)| *txg);
            // A table points to vdevs that were there when it was made: the chain is no longer than they are many.
            if run.vdev == vdev {
                return None;
            }
            let below = self.places(run.vdev, run.offset + (at - run.from), len, false)?;
            out.extend(below.into_iter().map(|place| Place {
                moved: place.moved.or(birth),
                ..place
            }));
            at += len;
        }
        Some(out)
    }

    /// The bytes at a DVA on every leaf that is there and can be read.
    pub(super) fn halves(&mut self, dva: Dva, len: usize) -> Halves {
        let mut fault = |text: String| {
            self.report.error(Kind::BlockPointer, text);
            Halves(Vec::new())
        };
        if !self.tops.contains_key(&dva.vdev) {
            return fault(format!(
                "pointer to vdev {}, which does not exist",
                dva.vdev
            ));
        }
        // Nested as deep as there are vdevs, so a circle would end, too.
        let Some(places) = self.places(dva.vdev, dva.offset, len as u64, false) else {
            let text = format!("vdev {} offset {:#x} was not moved", dva.vdev, dva.offset);
            self.report.error(Kind::BlockPointer, text);
            return Halves(Vec::new());
        };
        let mut pieces = Vec::new();
        for place in places {
            let mut piece = Vec::new();
            let leaves = self.tops.get(&place.vdev).map(|top| &top.leaves);
            for leaf in leaves.into_iter().flatten() {
                let Some(disk) = leaf.disk.and_then(|i| self.disks.get(i)) else {
                    continue;
                };
                let mut data = vec![0; bytes::index(place.len)];
                let at = place.offset.saturating_add(label::DATA_START);
                if disk.image.read_at(at, &mut data) {
                    piece.push(Half {
                        vdev: place.vdev,
                        leaf: leaf.guid,
                        moved: place.moved,
                        data,
                    });
                }
            }
            pieces.push(piece);
        }
        Halves(pieces)
    }

    /// Returns what is allocated on other vdevs for the blocks of those that were moved, by vdev. Judges the tables, and
    /// marks their objects.
    pub(super) fn check_moved(
        &mut self,
        mos: &Tree,
        directory: &Zap,
        config: Option<&NvList>,
        used: &mut Usage,
    ) -> BTreeMap<u32, Vec<(u64, u64)>> {
        let mut images: BTreeMap<u32, Vec<(u64, u64)>> = BTreeMap::new();
        let listed = config.map(tops).unwrap_or_default();
        self.check_order(directory, listed);
        for top in listed.iter().filter(|top| top.has(MAPPING)) {
            let id = id_of(top);
            let Some(table) = self.moved.get(&id) else {
                let text = format!("vdev {id}: its table cannot be read, or is damaged");
                self.report.error(Kind::Config, text);
                continue;
            };
            for (object, what) in table.objects.iter().zip(["table", "births", "counts"]) {
                used.mark(*object, what);
            }
            used.removals += 1;
            used.obsolete_counts += u64::from(table.objects[2] != 0);
            let (runs, births) = (table.runs.clone(), table.births.clone());
            let until = runs.last().map_or(0, |run| run.from + run.len);
            self.check_births(id, until, &births);
            let is_gone = self.tops.get(&id).is_some_and(|top| top.is_indirect);
            let reached = self.claims.ranges(id, &mut self.report);
            for &(start, end) in &reached {
                let end = if is_gone { end } else { end.min(until) };
                if start >= end {
                    continue;
                }
                match self.places(id, start, end - start, true) {
                    Some(places) => {
                        for place in places {
                            let of_vdev = images.entry(place.vdev).or_default();
                            of_vdev.push((place.offset, place.offset + place.len));
                        }
                    }
                    None => self.report.error(
                        Kind::Unallocated,
                        format!("vdev {id} offset {start:#x}: in use, and not moved"),
                    ),
                }
            }
            self.check_obsolete(mos, id, &runs, &reached, used);
        }
        images
    }

    /// What the directory says of removals must lead to every table, each newer one before the older: they may lie on vdevs
    /// removed later.
    fn check_order(&mut self, directory: &Zap, tops: &[NvList]) {
        let mut fault = |text: String| self.report.error(Kind::Config, text);
        let state = directory.entries.get(REMOVING.as_bytes());
        let word = |at: usize| state.and_then(|state| state.ints.get(at).copied());
        let (stage, vdev) = (word(0).unwrap_or(0), word(1).unwrap_or(NONE));
        let mut last = word(2).unwrap_or(NONE);
        let mut expected: BTreeSet<u64> = BTreeSet::new();
        if stage == EVACUATING {
            expected.insert(vdev);
        } else if stage == FINISHED && last != vdev {
            fault(format!(
                "vdev {vdev} was removed last, and {last} is said to be the first table"
            ));
        }
        let (to_copy, copied) = (word(5).unwrap_or(0), word(6).unwrap_or(0));
        if copied > to_copy || stage == FINISHED && copied != to_copy {
            fault(format!(
                "the newest removal copied {copied} of {to_copy} bytes"
            ));
        }
        while last != NONE && expected.insert(last) {
            let top = tops.iter().find(|top| top.u64("id") == Some(last));
            let top = top.filter(|top| top.str("type") == Some("indirect"));
            let Some(top) = top else {
                return fault(format!("vdev {last} has no table, and is said to"));
            };
            last = top.u64(PREVIOUS).unwrap_or(NONE);
        }
        let tables = tops.iter().filter(|top| top.has(MAPPING));
        let tables: BTreeSet<u64> = tables.map(|top| u64::from(id_of(top))).collect();
        if last != NONE || tables != expected {
            fault(format!(
                "vdevs {tables:?} have tables, {expected:?} are led to"
            ));
        }
    }

    /// Every run must have been moved in some txg, the later ones later.
    fn check_births(&mut self, id: u32, until: u64, births: &[(u64, u64)]) {
        let sorted = births
            .windows(2)
            .all(|w| w[0].0 < w[1].0 && w[0].1 < w[1].1);
        let possible = births.iter().all(|&(_, txg)| txg > 0 && txg <= self.txg);
        let reached = births.last().map_or(0, |&(end, _)| end);
        if !sorted || !possible || reached < until {
            let text = format!(
                "vdev {id}: moved up to {until:#x}, births up to {reached:#x}: {births:x?}"
            );
            self.report.error(Kind::Config, text);
        }
    }

    /// Compares what is said to be obsolete of a table with what no block refers to.
    fn check_obsolete(
        &mut self,
        mos: &Tree,
        id: u32,
        runs: &[Run],
        reached: &[(u64, u64)],
        used: &mut Usage,
    ) {
        let zap = self.tops.get(&id).map_or(0, |top| top.zap);
        if zap == 0 || !mos.objects.contains_key(&zap) {
            return;
        }
        let attributes = self.read_zap(mos, zap);
        let of = |key| attributes.as_ref().and_then(|zap: &Zap| zap.u64(key));
        let is_precise = of(PRECISE).is_some_and(|value| value != 0);
        used.obsolete_counts += u64::from(of(PRECISE).is_some());
        let mut obsolete = Ranges::default();
        if let Some(object) = of(OBSOLETE) {
            used.mark(object, "obsolete space map");
            used.obsolete_counts += 1;
            self.read_obsolete(mos, id, object, &mut obsolete, used);
        }
        if !is_precise {
            return;
        }
        let noted: Vec<(u64, u64)> = obsolete.iter().collect();
        let within = |ranges: &[(u64, u64)], run: &Run| -> u64 {
            let (from, to) = (run.from, run.from + run.len);
            let first = ranges.partition_point(|(_, end)| *end <= from);
            let those = ranges[first..].iter().take_while(|(start, _)| *start < to);
            those.map(|(s, e)| (*e).min(to) - (*s).max(from)).sum()
        };
        for run in runs {
            let live = within(reached, run);
            let said = run.obsolete + within(&noted, run);
            if run.len - live.min(run.len) != said {
                let text = format!(
                    "vdev {id}: of {} moved bytes at {:#x} {live} are in use, {said} said to be obsolete",
                    run.len, run.from
                );
                self.report.error(Kind::SpaceMap, text);
            }
        }
    }

    fn read_obsolete(
        &mut self,
        mos: &Tree,
        id: u32,
        object: u64,
        into: &mut Ranges,
        used: &mut Usage,
    ) {
        let what = format!("vdev {id} obsolete (space map {object})");
        let header = mos.objects.get(&object);
        let Some(header) = header.and_then(|dnode| SpaceMapHeader::decode(&dnode.bonus).ok())
        else {
            let text = format!("{what}: it has no header");
            self.report.error(Kind::SpaceMap, text);
            return;
        };
        used.histograms += u64::from(header.histogram.is_some());
        let data = self.object_bytes(mos, object, header.length);
        // Offsets are in bytes.
        for entry in space_map::entries(&data, 0, 0) {
            match entry {
                Ok(SpaceMapEntry::Debug { .. }) => {}
                Ok(SpaceMapEntry::Range {
                    op: SpaceOp::Alloc,
                    start,
                    len,
                    ..
                }) => {
                    if !into.add(start, start + len) {
                        let text = format!("{what}: {start:#x} twice");
                        self.report.error(Kind::Double, text);
                    }
                }
                Ok(_) => {
                    let text = format!("{what}: it frees");
                    self.report.error(Kind::SpaceMap, text);
                }
                Err(e) => self.report.error(Kind::SpaceMap, format!("{what}: {e}")),
            }
        }
    }
}

fn tops(config: &NvList) -> &[NvList] {
    let root = config.list("vdev_tree");
    root.and_then(|root| root.lists("children"))
        .unwrap_or_default()
}

fn id_of(top: &NvList) -> u32 {
    u32::try_from(top.u64("id").unwrap_or(0)).unwrap_or(u32::MAX)
}
