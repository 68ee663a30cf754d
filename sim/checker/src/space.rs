//! Space maps: what they say is allocated, against what was reached.

use std::collections::{BTreeMap, BTreeSet};

use ondisk::NvList;
use ondisk::bytes;
use ondisk::space_map::{self, SpaceMapEntry, SpaceMapHeader, SpaceOp};

use super::blocks::Checker;
use super::devices::Top;
use super::objset::Tree;
use super::report::Kind;
use super::zap::Zap;

/// A set of byte ranges: start to end, never touching each other.
#[derive(Debug, Default)]
pub(super) struct Ranges {
    map: BTreeMap<u64, u64>,
}

impl Ranges {
    /// Adds a range; false when part of it was there.
    pub(super) fn add(&mut self, start: u64, end: u64) -> bool {
        let mut clean = true;
        let (mut from, mut to) = (start, end);
        if let Some((s, e)) = self.map.range(..=start).next_back().map(|(s, e)| (*s, *e))
            && e >= start
        {
            clean &= e == start;
            from = s;
            to = to.max(e);
        }
        while let Some((s, e)) = self.map.range(from..=to).next().map(|(s, e)| (*s, *e)) {
            clean &= s < start || s >= end;
            to = to.max(e);
            self.map.remove(&s);
        }
        self.map.insert(from, to);
        clean
    }

    /// Removes a range; false when part of it was not there.
    pub(super) fn remove(&mut self, start: u64, end: u64) -> bool {
        let covered = self
            .map
            .range(..=start)
            .next_back()
            .is_some_and(|(_, e)| *e >= end);
        let touched: Vec<(u64, u64)> = self
            .map
            .range(..end)
            .rev()
            .take_while(|(_, e)| **e > start)
            .map(|(s, e)| (*s, *e))
            .collect();
        for (s, e) in touched {
            self.map.remove(&s);
            if s < start {
                self.map.insert(s, start);
            }
            if e > end {
                self.map.insert(end, e);
            }
        }
        covered
    }

    pub(super) fn total(&self) -> u64 {
        self.map.iter().map(|(s, e)| e - s).sum()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.map.iter().map(|(s, e)| (*s, *e))
    }
}

/// Parts of `a` that are not in `b`; both sorted and without overlaps.
fn difference(a: &[(u64, u64)], b: &[(u64, u64)]) -> Vec<(u64, u64)> {
    let mut out = Vec::new();
    let mut others = b.iter().peekable();
    for &(start, end) in a {
        let mut at = start;
        while let Some(&&(s, e)) = others.peek() {
            if e <= at {
                others.next();
                continue;
            }
            if s >= end {
                break;
            }
            if s > at {
                out.push((at, s));
            }
            at = e.min(end).max(at);
            if e > end {
                break;
            }
            others.next();
        }
        if at < end {
            out.push((at, end));
        }
    }
    out
}

/// All log space maps of a pool.
#[derive(Default)]
struct Logs {
    /// Of which txgs there are logs.
    txgs: BTreeSet<u64>,
    /// Their entries, oldest first.
    entries: Vec<LogEntry>,
}

/// One entry of the pool-wide logs.
struct LogEntry {
    txg: u64,
    op: SpaceOp,
    vdev: u32,
    start: u64,
    len: u64,
}

impl Checker<'_> {
    /// Compares the space maps of all vdevs with what was claimed, and with the `images` of what was claimed on vdevs that
    /// were moved to them. Marks the objects used for them.
    pub(super) fn check_space(
        &mut self,
        mos: &Tree,
        directory: &Zap,
        mut images: BTreeMap<u32, Vec<(u64, u64)>>,
        used: &mut super::usage::Usage,
    ) {
        let logs = self.read_logs(mos, directory, used);
        let ids: Vec<u32> = self.tops.keys().copied().collect();
        for id in ids {
            let moved = images.remove(&id).unwrap_or_default();
            self.check_vdev_space(mos, id, &logs, &moved, used);
        }
    }

    fn check_vdev_space(
        &mut self,
        mos: &Tree,
        id: u32,
        logs: &Logs,
        moved: &[(u64, u64)],
        used: &mut super::usage::Usage,
    ) {
        let is_empty = |top: &&Top| top.is_hole || top.is_indirect;
        let Some(top) = self.tops.get(&id).filter(|top| !is_empty(top)) else {
            return;
        };
        let (shift, ashift, asize, array, zap) = (
            top.metaslab_shift.min(62),
            top.ashift,
            top.asize,
            top.metaslab_array,
            top.zap,
        );
        let count = asize >> shift;
        if array == 0 || shift < ashift || count > 1 << 20 {
            self.report.error(
                Kind::SpaceMap,
                format!("vdev {id}: impossible metaslabs (shift {shift}, array {array})"),
            );
            return;
        }
        used.mark(array, "metaslab array");
        let maps = self.object_bytes(mos, array, 8 * count);
        let unflushed = self.unflushed_txgs(mos, zap, count, used);
        for (metaslab, since) in unflushed.iter().enumerate() {
            // OpenZFS imports no pool in which it is missing.
            if *since != 0 && !logs.txgs.contains(since) {
                let text = format!(
                    "vdev {id} metaslab {metaslab}: flushed in txg {since}, which has no log"
                );
                self.report.error(Kind::SpaceMap, text);
            }
        }
        let mut allocated = Ranges::default();
        for m in 0..count {
            let object = bytes::u64_at(&maps, bytes::index(8 * m));
            if object != 0 {
                used.mark(object, "space map");
                self.apply_space_map(mos, id, m, object, &mut allocated, used);
            }
        }
        for e in logs.entries.iter().filter(|e| e.vdev == id) {
            let metaslab = bytes::index(e.start >> shift);
            if unflushed.get(metaslab).is_some_and(|since| e.txg >= *since) {
                self.apply(
                    &mut allocated,
                    e.op,
                    e.start,
                    e.len,
                    &format!("vdev {id} log of txg {}", e.txg),
                );
            }
        }
        let checkpointed = self.checkpointed_space(mos, id, used);
        self.compare(id, &allocated, &checkpointed, moved);
    }

    fn apply_space_map(
        &mut self,
        mos: &Tree,
        vdev: u32,
        metaslab: u64,
        object: u64,
        allocated: &mut Ranges,
        used: &mut super::usage::Usage,
    ) {
        let what = format!("vdev {vdev} metaslab {metaslab} (space map {object})");
        let Some(dnode) = mos.objects.get(&object) else {
            self.report
                .error(Kind::SpaceMap, format!("{what}: no such object"));
            return;
        };
        let header = match SpaceMapHeader::decode(&dnode.bonus) {
            Ok(h) => h,
            Err(e) => {
                self.report.error(Kind::SpaceMap, format!("{what}: {e}"));
                return;
            }
        };
        if header.histogram.is_some() {
            used.histograms += 1;
        }
        let top = self.tops.get(&vdev).expect("the caller looked it up");
        let (start, size) = top.metaslab(metaslab);
        let ashift = u32::try_from(top.ashift).unwrap_or(9);
        let data = self.object_bytes(mos, object, header.length);
        if data.len() as u64 != header.length {
            self.report.error(
                Kind::SpaceMap,
                format!(
                    "{what}: {} of {} bytes are there",
                    data.len(),
                    header.length
                ),
            );
        }
        let mut own = Ranges::default();
        for entry in space_map::entries(&data, ashift, start) {
            match entry {
                Ok(SpaceMapEntry::Debug { .. }) => {}
                Ok(SpaceMapEntry::Range {
                    op, start: at, len, ..
                }) => {
                    if at + len > start + size {
                        self.report
                            .error(Kind::SpaceMap, format!("{what}: entry beyond the metaslab"));
                    }
                    self.apply(&mut own, op, at, len, &what);
                }
                Err(e) => self.report.error(Kind::SpaceMap, format!("{what}: {e}")),
            }
        }
        if own.total().cast_signed() != header.allocated {
            let text = format!(
                "{what}: header says {} bytes, entries {}",
                header.allocated,
                own.total()
            );
            self.report.error(Kind::SpaceMap, text);
        }
        for (s, e) in own.iter() {
            allocated.add(s, e);
        }
    }

    fn apply(&mut self, set: &mut Ranges, op: SpaceOp, start: u64, len: u64, what: &str) {
        let clean = match op {
            SpaceOp::Alloc => set.add(start, start + len),
            SpaceOp::Free => set.remove(start, start + len),
        };
        if !clean {
            let text =
                format!("{what}: {op:?} of offset {start:#x} size {len:#x}, which is so already");
            self.report.error(Kind::Double, text);
        }
    }

    /// Oldest txg per metaslab whose logged changes are not in its own map.
    fn unflushed_txgs(
        &mut self,
        mos: &Tree,
        zap: u64,
        count: u64,
        used: &mut super::usage::Usage,
    ) -> Vec<u64> {
        let all = vec![0; bytes::index(count)];
        if zap == 0 || !mos.objects.contains_key(&zap) {
            return all;
        }
        let attributes = self.read_zap(mos, zap);
        let Some(object) = attributes.and_then(|z| z.u64("com.delphix:ms_unflushed_phys_txgs"))
        else {
            return all;
        };
        used.mark(object, "unflushed txgs");
        let mut out: Vec<u64> = bytes::u64s(&self.object_bytes(mos, object, 8 * count)).collect();
        out.resize(bytes::index(count), 0);
        out
    }

    fn read_logs(&mut self, mos: &Tree, directory: &Zap, used: &mut super::usage::Usage) -> Logs {
        let mut out = Logs::default();
        let Some(zap) = directory.u64("com.delphix:log_spacemap_zap") else {
            return out;
        };
        used.mark(zap, "log space maps");
        let mut logs: Vec<(u64, u64)> = self
            .read_zap(mos, zap)
            .iter()
            .flat_map(Zap::pairs)
            .filter_map(|(k, v)| Some((u64::from_str_radix(&k, 16).ok()?, v)))
            .collect();
        logs.sort_unstable();
        out.txgs = logs.iter().map(|(txg, _)| *txg).collect();
        for (txg, object) in logs {
            used.mark(object, "log space map");
            let Some(header) = mos
                .objects
                .get(&object)
                .and_then(|d| SpaceMapHeader::decode(&d.bonus).ok())
            else {
                self.report.error(
                    Kind::SpaceMap,
                    format!("log of txg {txg}: object {object} has no header"),
                );
                continue;
            };
            if header.histogram.is_some() {
                used.histograms += 1;
            }
            let data = self.object_bytes(mos, object, header.length);
            for entry in space_map::entries(&data, 9, 0) {
                match entry {
                    Ok(SpaceMapEntry::Range {
                        op,
                        start,
                        len,
                        vdev: Some(vdev),
                    }) => {
                        out.entries.push(LogEntry {
                            txg,
                            op,
                            vdev,
                            start,
                            len,
                        });
                    }
                    Ok(SpaceMapEntry::Debug { .. }) => {}
                    Ok(_) | Err(_) => {
                        self.report
                            .error(Kind::SpaceMap, format!("log of txg {txg}: malformed entry"));
                    }
                }
            }
        }
        out
    }

    /// What was freed on a vdev but for a checkpoint: it is allocated, and no block refers to it.
    fn checkpointed_space(
        &mut self,
        mos: &Tree,
        vdev: u32,
        used: &mut super::usage::Usage,
    ) -> Ranges {
        let mut checkpointed = Ranges::default();
        let (zap, ashift) = match self.tops.get(&vdev) {
            Some(top) => (top.zap, u32::try_from(top.ashift).unwrap_or(9)),
            None => return checkpointed,
        };
        if zap == 0 || !mos.objects.contains_key(&zap) {
            return checkpointed;
        }
        let attributes = self.read_zap(mos, zap);
        let Some(object) = attributes.and_then(|z| z.u64("com.delphix:pool_checkpoint_sm")) else {
            return checkpointed;
        };
        used.mark(object, "checkpoint space map");
        let what = format!("vdev {vdev} checkpoint (space map {object})");
        let header = mos.objects.get(&object);
        let header = header.and_then(|dnode| SpaceMapHeader::decode(&dnode.bonus).ok());
        let Some(header) = header else {
            let text = format!("{what}: it has no header");
            self.report.error(Kind::SpaceMap, text);
            return checkpointed;
        };
        if header.histogram.is_some() {
            used.histograms += 1;
        }
        let data = self.object_bytes(mos, object, header.length);
        for entry in space_map::entries(&data, ashift, 0) {
            match entry {
                Ok(SpaceMapEntry::Debug { .. }) => {}
                Ok(SpaceMapEntry::Range {
                    op: SpaceOp::Free,
                    start,
                    len,
                    ..
                }) => self.apply(&mut checkpointed, SpaceOp::Alloc, start, len, &what),
                Ok(_) => self
                    .report
                    .error(Kind::SpaceMap, format!("{what}: it allocates")),
                Err(e) => self.report.error(Kind::SpaceMap, format!("{what}: {e}")),
            }
        }
        if checkpointed.total().cast_signed() != -header.allocated {
            let text = format!(
                "{what}: header says {} bytes, entries {}",
                -header.allocated,
                checkpointed.total()
            );
            self.report.error(Kind::SpaceMap, text);
        }
        checkpointed
    }

    fn compare(
        &mut self,
        vdev: u32,
        allocated: &Ranges,
        checkpointed: &Ranges,
        moved: &[(u64, u64)],
    ) {
        let reached = self.claims.ranges(vdev, &mut self.report);
        let mut held = Ranges::default();
        for (start, end) in reached.iter().copied().chain(checkpointed.iter()) {
            if !held.add(start, end) {
                let text = format!("vdev {vdev}: what a checkpoint keeps at {start:#x} is in use");
                self.report.error(Kind::Double, text);
            }
        }
        for &(start, end) in moved {
            if !held.add(start, end) {
                let text = format!("vdev {vdev}: a moved block at {start:#x} is in use");
                self.report.error(Kind::Double, text);
            }
        }
        let held: Vec<(u64, u64)> = held.iter().collect();
        let allocated: Vec<(u64, u64)> = allocated.iter().collect();
        let sum = |v: &[(u64, u64)]| v.iter().map(|(s, e)| e - s).sum::<u64>();
        self.report.allocated_bytes += sum(&allocated);
        self.report.reached_bytes += sum(&reached) + sum(moved);
        let all = |list: Vec<(u64, u64)>, kind, verb: &str, report: &mut super::Report| {
            let total = sum(&list);
            for (s, e) in list.iter().take(10) {
                report.error(
                    kind,
                    format!("{verb}: vdev {vdev}, offset {s:#x}, size {:#x}", e - s),
                );
            }
            if list.len() > 10 {
                report.error(
                    kind,
                    format!(
                        "{verb}: vdev {vdev}, {} ranges, {total} bytes in all",
                        list.len()
                    ),
                );
            }
        };
        all(
            difference(&allocated, &held),
            Kind::Leak,
            "leaked space",
            &mut self.report,
        );
        all(
            difference(&held, &allocated),
            Kind::Unallocated,
            "referenced but not allocated",
            &mut self.report,
        );
    }

    /// Reads the dirty-time logs of all leaves.
    pub(super) fn read_missed(&mut self, mos: &Tree, used: &mut super::usage::Usage) {
        let leaves: Vec<(u32, usize, u64)> = self
            .tops
            .iter()
            .flat_map(|(id, t)| t.leaves.iter().enumerate().map(|(i, l)| (*id, i, l.dtl)))
            .filter(|(_, _, dtl)| *dtl != 0)
            .collect();
        for (id, i, object) in leaves {
            used.mark(object, "dirty-time log");
            let Some(header) = mos
                .objects
                .get(&object)
                .and_then(|d| SpaceMapHeader::decode(&d.bonus).ok())
            else {
                self.report.error(
                    Kind::SpaceMap,
                    format!("dirty-time log {object} does not exist"),
                );
                continue;
            };
            if header.histogram.is_some() {
                used.histograms += 1;
            }
            let data = self.object_bytes(mos, object, header.length);
            let mut missed = Ranges::default();
            for entry in space_map::entries(&data, 0, 0) {
                if let Ok(SpaceMapEntry::Range { op, start, len, .. }) = entry {
                    self.apply(
                        &mut missed,
                        op,
                        start,
                        len,
                        &format!("dirty-time log {object}"),
                    );
                }
            }
            if let Some(leaf) = self.tops.get_mut(&id).and_then(|t| t.leaves.get_mut(i)) {
                leaf.missed = missed.iter().collect();
            }
        }
    }

    /// Marks the attribute objects of all vdevs of the configuration; they must be exactly those in the map.
    pub(super) fn check_vdev_zaps(
        &mut self,
        mos: &Tree,
        directory: &Zap,
        config: &NvList,
        used: &mut super::usage::Usage,
    ) {
        let Some(map) = directory.u64("com.delphix:vdev_zap_map") else {
            if config.has("com.delphix:has_per_vdev_zaps") {
                self.report
                    .error(Kind::Config, "has_per_vdev_zaps without a vdev_zap_map");
            }
            return;
        };
        used.mark(map, "vdev zap map");
        let mut listed: Vec<u64> = self
            .read_zap(mos, map)
            .iter()
            .flat_map(Zap::pairs)
            .map(|(_, v)| v)
            .collect();
        let mut in_config = Vec::new();
        if let Some(root) = config.list("vdev_tree") {
            collect_zaps(root, &mut in_config);
        }
        for zap in &in_config {
            used.mark(*zap, "vdev zap");
        }
        listed.sort_unstable();
        in_config.sort_unstable();
        if listed != in_config {
            self.report.error(
                Kind::Config,
                format!("vdev zaps are {in_config:?}, the map lists {listed:?}"),
            );
        }
    }
}

fn collect_zaps(tree: &NvList, out: &mut Vec<u64>) {
    for key in [
        "com.delphix:vdev_zap_leaf",
        "com.delphix:vdev_zap_top",
        "com.klarasystems:vdev_zap_root",
    ] {
        out.extend(tree.u64(key).filter(|z| *z != 0));
    }
    tree.lists("children")
        .unwrap_or_default()
        .iter()
        .for_each(|c| collect_zaps(c, out));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_join_and_split() {
        let mut r = Ranges::default();
        assert!(r.add(10, 20) && r.add(30, 40) && r.add(20, 30));
        assert_eq!(r.iter().collect::<Vec<_>>(), [(10, 40)]);
        assert!(!r.add(39, 41));
        assert!(!r.add(5, 50));
        assert_eq!(r.iter().collect::<Vec<_>>(), [(5, 50)]);
        assert!(r.remove(10, 20) && r.remove(45, 50));
        assert!(!r.remove(15, 25));
        assert_eq!(r.iter().collect::<Vec<_>>(), [(5, 10), (25, 45)]);
        assert_eq!(r.total(), 25);
        assert!(r.add(10, 25));
        assert_eq!(r.iter().collect::<Vec<_>>(), [(5, 45)]);
    }

    #[test]
    fn differences() {
        assert_eq!(
            difference(&[(0, 10), (20, 30)], &[(5, 22), (25, 26)]),
            [(0, 5), (22, 25), (26, 30)]
        );
        assert_eq!(difference(&[(0, 10)], &[]), [(0, 10)]);
        assert_eq!(difference(&[(2, 4), (6, 8)], &[(0, 100)]), []);
    }
}
