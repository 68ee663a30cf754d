//! The order of the check, and the pool-wide objects.

use std::collections::BTreeMap;

use codec::compress::{Algorithm, decompress};
use ondisk::brt::BrtVdevPhys;
use ondisk::ddt::{DdtEntry, DdtKey, DdtLogHeader, DdtLogRecord};
use ondisk::dsl::BpobjPhys;
use ondisk::history::{self, HistoryPhys};
use ondisk::{BlockPointer, Dva, NvList, bytes};

use super::blocks::{Bookmark, Checker};
use super::objset::Tree;
use super::report::Kind;
use super::usage::Usage;
use super::zap::Zap;

/// Directory entries that are objects, with what to call them. Lists of block pointers, space maps and ZAPs that
/// need more are handled where they are checked.
const PLAIN_OBJECTS: &[&str] = &[
    "errlog_last",
    "errlog_scrub",
    "pool_props",
    "tmp_userrefs",
    "DDT-statistics",
    "feature_descriptions",
];

/// Directory entries that are values, not objects.
const VALUES: &[&str] = &[
    "deflate",
    "creation_version",
    "org.illumos:checksum_salt",
    "scan",
    "com.delphix:removing",
    "com.delphix:condensing_indirect",
    "com.delphix:zpool_checkpoint",
    "last_scrubbed_txg",
    "com.delphix:errorscrub",
    "org.openzfs:vdev_raidz_expand",
    "com.openzfs:error_scrub",
    "error_scrub",
    "com.klarasystems:last_scrubbed_txg",
    "com.klarasystems:txg_log_time:minutes",
    "com.klarasystems:txg_log_time:days",
    "com.klarasystems:txg_log_time:months",
];

/// Totals of a list of block pointers.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct ListSpace {
    pub(super) bytes: u64,
    pub(super) comp: u64,
    pub(super) uncomp: u64,
}

impl ListSpace {
    pub(super) fn add(&mut self, other: Self) {
        self.bytes = self.bytes.wrapping_add(other.bytes);
        self.comp = self.comp.wrapping_add(other.comp);
        self.uncomp = self.uncomp.wrapping_add(other.uncomp);
    }
}

impl Checker<'_> {
    /// Runs the whole check.
    pub(super) fn run(&mut self) {
        let mut config = None;
        self.judge_pool(&mut config);
        self.judge_labels(config.as_ref());
    }

    /// Judges all but the labels, which need the configuration, given as soon as it is read.
    fn judge_pool(&mut self, found: &mut Option<NvList>) {
        let Some(ub) = self.open_devices() else {
            return;
        };
        self.txg = ub.txg.0;
        self.report.txg = ub.txg.0;
        if self.tops.is_empty() {
            return;
        }
        self.settle_listed_children(&ub.rootbp);
        let Some(mos) = self.walk_mos(&ub.rootbp) else {
            return;
        };
        let Some(directory) = self.read_zap(&mos, 1) else {
            return;
        };
        if let Some(salt) = directory.bytes("org.illumos:checksum_salt") {
            match salt.try_into() {
                Ok(salt) => self.salt = salt,
                Err(_) => self
                    .report
                    .error(Kind::Config, "the checksum salt is not 32 bytes"),
            }
        }
        let mut usage = Usage::default();
        usage.mark(1, "object directory");
        let config = self.read_config(&mos, &directory, &mut usage);
        if let Some(config) = &config {
            self.adopt_config(config, &ub);
            self.settle_listed_children(&ub.rootbp);
            *found = Some(config.clone());
        }
        self.read_missed(&mos, &mut usage);
        for r in &mos.refs {
            self.claims.claim(&r.bp, &self.tops, &mut self.report, &|| {
                "meta object set".to_owned()
            });
        }
        self.read_clone_table(&mos, &directory, &mut usage);
        self.read_dedup_tables(&mos, &directory);
        let freed = self.check_pool_lists(&mos, &directory, &mut usage);
        self.check_plain_objects(&mos, &directory, &mut usage);
        self.check_history(&mos, &directory, &mut usage);
        self.check_datasets(&mos, &directory, freed, &mut usage);
        self.claims.judge_clones(&mut self.report);
        self.claims.judge_dedup(&mut self.report);
        let images = self.check_moved(&mos, &directory, config.as_ref(), &mut usage);
        self.check_space(&mos, &directory, images, &mut usage);
        if let Some(config) = &config {
            self.check_vdev_zaps(&mos, &directory, config, &mut usage);
            self.check_features(&mos, &directory, config, &mut usage);
        }
        self.check_usage(&mos, &usage);
        self.judge_bad_copies();
    }

    /// Walks the meta object set, again whenever it led to the table of a removed vdev: parts of it may lie there.
    fn walk_mos(&mut self, root: &BlockPointer) -> Option<Tree> {
        loop {
            let before = self.report.clone();
            let mos = self.walk_objset(root, 0);
            if !mos.as_ref().is_some_and(|mos| self.read_tables(mos)) {
                return mos;
            }
            self.report = before;
            self.forget_blocks();
        }
    }

    fn read_config(&mut self, mos: &Tree, directory: &Zap, usage: &mut Usage) -> Option<NvList> {
        let Some(object) = directory.u64("config") else {
            self.report
                .error(Kind::Config, "the object directory has no config");
            return None;
        };
        usage.mark(object, "config");
        let config = self.read_nvlist(mos, object)?;
        let txg = config.u64("txg").unwrap_or(0);
        if txg > self.txg {
            self.report.error(
                Kind::Config,
                format!("the configuration is of txg {txg}, the future"),
            );
        }
        Some(config)
    }

    /// Reads an object that is one packed list with its length in the bonus.
    pub(super) fn read_nvlist(&mut self, mos: &Tree, object: u64) -> Option<NvList> {
        let len = mos
            .objects
            .get(&object)
            .map_or(0, |d| bytes::u64_at(&d.bonus, 0));
        let data = self.object_bytes(mos, object, len);
        match NvList::decode(&data) {
            Ok(list) => Some(list),
            Err(e) => {
                self.report
                    .error(Kind::Config, format!("object {object}: {e}"));
                None
            }
        }
    }

    fn check_plain_objects(&mut self, mos: &Tree, directory: &Zap, usage: &mut Usage) {
        for (name, value) in directory.pairs() {
            if PLAIN_OBJECTS.contains(&name.as_str()) {
                usage.mark(value, "directory entry");
                if name.starts_with("errlog") && value != 0 {
                    self.mark_error_log(mos, value, usage);
                }
            } else if name == "spares" || name == "l2cache" {
                usage.mark(value, "auxiliary vdevs");
                if value != 0 {
                    self.read_nvlist(mos, value);
                }
            } else if name.starts_with("DDT-") {
                self.mark_dedup(mos, &name, value, usage);
            } else if name == "bptree_obj" {
                usage.mark(value, "destroyed trees");
                if mos
                    .objects
                    .get(&value)
                    .is_some_and(|d| bytes::u64_at(&d.bonus, 16) != 0)
                {
                    self.report.note(
                        Kind::NotChecked,
                        "a dataset is being destroyed in the background",
                    );
                }
            } else if name == "com.delphix:deleted_clones" {
                usage.mark(value, "deleted clones");
            } else if name == "scan" {
                self.mark_scan(directory, usage);
            } else if VALUES.contains(&name.as_str()) {
                // Values are judged with what they are about.
            } else if !known_elsewhere(&name) {
                self.report.note(
                    Kind::NotChecked,
                    format!("unknown directory entry {name} = {value}"),
                );
            }
        }
    }

    fn mark_scan(&mut self, directory: &Zap, usage: &mut Usage) {
        if let Some(scan) = directory.entries.get(b"scan".as_slice()) {
            usage.mark(scan.ints.get(2).copied().unwrap_or(0), "scan queue");
            if scan.ints.get(1) == Some(&1) {
                self.report.note(Kind::NotChecked, "a scan is in progress");
            }
        }
    }

    fn mark_error_log(&mut self, mos: &Tree, object: u64, usage: &mut Usage) {
        // With head_errlog the log lists one ZAP per dataset.
        for (_, inner) in self.read_zap(mos, object).iter().flat_map(Zap::pairs) {
            if mos
                .objects
                .get(&inner)
                .is_some_and(|d| d.object_type.is_zap())
            {
                usage.mark(inner, "error log of a dataset");
            }
        }
    }

    fn mark_dedup(&mut self, mos: &Tree, name: &str, object: u64, usage: &mut Usage) {
        usage.mark(object, "deduplication table");
        if name.contains("-zap-") {
            return;
        }
        // A table of the newer kind is a ZAP of further objects.
        for (key, inner) in self.read_zap(mos, object).iter().flat_map(Zap::pairs) {
            if key.starts_with("DDT-") {
                usage.mark(inner, "deduplication table part");
            }
        }
    }

    /// Reads how often deduplicated blocks are referenced.
    fn read_dedup_tables(&mut self, mos: &Tree, directory: &Zap) {
        for (name, object) in directory.pairs() {
            if !name.starts_with("DDT-") || name == "DDT-statistics" {
                continue;
            }
            if name.contains("-zap-") {
                let entries = self.dedup_entries(mos, &name, object, false);
                self.count_dedup(entries.values());
                continue;
            }
            let parts = self
                .read_zap(mos, object)
                .map(|zap| zap.pairs().collect::<Vec<_>>());
            let mut entries = BTreeMap::new();
            let mut logs = Vec::new();
            for (key, inner) in parts.unwrap_or_default() {
                if key.contains("-zap-") {
                    entries.extend(self.dedup_entries(mos, &key, inner, true));
                } else if key.contains("-log-") {
                    logs.push(self.dedup_log(mos, &key, inner));
                }
            }
            // The log that is not being flushed has the last word.
            logs.sort_by_key(|(header, _)| !header.is_flushing);
            for (header, records) in logs {
                let pending = records.into_iter();
                entries.extend(
                    pending.filter(|(key, _)| header.checkpoint.is_none_or(|done| *key > done)),
                );
            }
            self.count_dedup(entries.values());
        }
    }

    fn count_dedup<'e>(&mut self, entries: impl Iterator<Item = &'e DdtEntry>) {
        let variants = entries.flat_map(|entry| &entry.variants);
        for variant in variants.filter(|variant| variant.birth != 0) {
            let [(first, second), ..] = variant.dvas;
            let dva = Dva::from_words(first, second);
            let counted = (variant.references, variant.birth);
            self.claims
                .deduplicated
                .insert((dva.vdev, dva.offset), counted);
        }
    }

    fn dedup_entries(
        &mut self,
        mos: &Tree,
        name: &str,
        object: u64,
        flat: bool,
    ) -> BTreeMap<DdtKey, DdtEntry> {
        let unzle = |packed: &[u8], len: usize| decompress(Algorithm::Zle, packed, len).ok();
        let mut entries = BTreeMap::new();
        let zap = self.read_zap(mos, object).unwrap_or_default();
        for (key, value) in &zap.entries {
            let bytes: Vec<u8> = value
                .ints
                .iter()
                .map(|byte| byte.to_le_bytes()[0])
                .collect();
            let entry = DdtEntry::unpack(&bytes, flat, unzle).ok();
            match DdtKey::from_be_bytes(key).zip(entry) {
                Some((key, entry)) => drop(entries.insert(key, entry)),
                None => self
                    .report
                    .error(Kind::Accounting, format!("{name}: a damaged entry")),
            }
        }
        entries
    }

    /// The header of a log, and its records, the later of two of one key.
    fn dedup_log(
        &mut self,
        mos: &Tree,
        name: &str,
        object: u64,
    ) -> (DdtLogHeader, BTreeMap<DdtKey, DdtEntry>) {
        let mut entries = BTreeMap::new();
        let dnode = mos.objects.get(&object);
        let header = dnode.and_then(|dnode| DdtLogHeader::decode(&dnode.bonus).ok());
        let Some(header) = header else {
            self.report
                .error(Kind::Accounting, format!("{name}: no log"));
            return (DdtLogHeader::default(), entries);
        };
        let bytes = self.object_bytes(mos, object, header.length);
        // Records do not cross blocks, of 128 KiB.
        for mut block in bytes.chunks(128 << 10) {
            while let Ok(Some((record, len))) = DdtLogRecord::decode(block, true) {
                entries.insert(record.key, record.entry);
                block = block.get(len..).unwrap_or_default();
            }
        }
        (header, entries)
    }

    /// Reads how often cloned blocks may be referenced.
    fn read_clone_table(&mut self, mos: &Tree, directory: &Zap, usage: &mut Usage) {
        for (name, object) in directory.pairs() {
            let Some(vdev) = name
                .strip_prefix("com.fudosecurity:brt:vdev:")
                .and_then(|v| v.parse::<u32>().ok())
            else {
                continue;
            };
            usage.mark(object, "clone counts");
            usage.clone_tables += 1;
            let header = mos
                .objects
                .get(&object)
                .and_then(|d| BrtVdevPhys::decode(&d.bonus).ok());
            let Some(header) = header else {
                let text = format!("vdev {vdev}: object {object} is no table of cloned blocks");
                self.report.error(Kind::Accounting, text);
                continue;
            };
            usage.mark(header.entries_object, "clone references");
            let mut regions: BTreeMap<u64, u16> = BTreeMap::new();
            let mut total = 0;
            if let Some(zap) = self.read_zap(mos, header.entries_object) {
                for (key, value) in &zap.entries {
                    let offset = key.iter().fold(0u64, |v, b| v << 8 | u64::from(*b));
                    let bytes = value.ints.iter().rev();
                    let count = match value.int_size {
                        1 => bytes.fold(0u64, |v, b| v << 8 | b),
                        _ => 0,
                    };
                    self.claims.cloned.insert((vdev, offset), count);
                    let region = offset.checked_div(header.region_bytes).unwrap_or(u64::MAX);
                    let in_region = regions.entry(region).or_default();
                    *in_region = in_region.saturating_add(1);
                    total += 1;
                }
            }
            self.check_clone_regions(mos, (vdev, object), &header, total, &regions);
        }
    }

    /// Compares the counts by region with the entries of a table. OpenZFS opens no table with regions behind the last metaslab.
    fn check_clone_regions(
        &mut self,
        mos: &Tree,
        (vdev, object): (u32, u64),
        header: &BrtVdevPhys,
        total: u64,
        regions: &BTreeMap<u64, u16>,
    ) {
        let in_metaslabs = self.tops.get(&vdev).map_or(0, |top| {
            (top.asize >> top.metaslab_shift.min(62)) << top.metaslab_shift.min(62)
        });
        let most = in_metaslabs.div_ceil(header.region_bytes.max(1));
        let counts = self.object_bytes(mos, object, header.regions.min(most).saturating_mul(2));
        let counts = ondisk::brt::decode_counts(&counts);
        let told = (0..).zip(counts).filter(|(_, count)| *count > 0);
        let agrees = told.eq(regions.iter().map(|(region, count)| (*region, *count)));
        if !agrees || header.regions > most || header.total != total {
            let text = format!(
                "vdev {vdev}: the table of cloned blocks counts {} entries in {} regions, there are {total} in {regions:?} of {most}",
                header.total, header.regions
            );
            self.report.error(Kind::Accounting, text);
        }
    }

    /// Reads the lists of blocks that are to be freed: they are still allocated. Returns what `free_bpobj` and
    /// destroyed clones hold.
    fn check_pool_lists(&mut self, mos: &Tree, directory: &Zap, usage: &mut Usage) -> ListSpace {
        let empty = directory.u64("empty_bpobj").unwrap_or(0);
        if empty != 0 {
            usage.mark(empty, "empty list");
        }
        usage.empty_list = empty;
        let mut freed = ListSpace::default();
        for name in ["sync_bplist", "free_bpobj", "com.delphix:obsolete_bpobj"] {
            let Some(object) = directory.u64(name) else {
                if name != "com.delphix:obsolete_bpobj" {
                    self.report
                        .error(Kind::Linkage, format!("the object directory has no {name}"));
                }
                continue;
            };
            let mut entries = Vec::new();
            let space = self.read_bpobj(mos, object, empty, &mut entries, usage, 0);
            for bp in &entries {
                self.claims
                    .claim(bp, &self.tops, &mut self.report, &|| name.to_owned());
            }
            if name == "free_bpobj" {
                freed = space;
            }
        }
        freed.add(self.read_deleted_clones(mos, directory, usage));
        freed
    }

    /// Reads a list of block pointers with its sub-lists into `out`, and checks its sums.
    pub(super) fn read_bpobj(
        &mut self,
        mos: &Tree,
        object: u64,
        empty: u64,
        out: &mut Vec<BlockPointer>,
        usage: &mut Usage,
        depth: u32,
    ) -> ListSpace {
        let mut sum = ListSpace::default();
        if object == empty {
            usage.empty_bpobj += 1;
            return sum;
        }
        usage.mark(object, "list of block pointers");
        let header = mos
            .objects
            .get(&object)
            .and_then(|d| BpobjPhys::decode(&d.bonus).ok());
        let (Some(header), true) = (header, depth < 16) else {
            self.report.error(
                Kind::Bpobj,
                format!("object {object} is not a list of block pointers"),
            );
            return sum;
        };
        let len = header.num_blkptrs.saturating_mul(BlockPointer::SIZE as u64);
        let data = self.object_bytes(mos, object, len);
        if data.len() as u64 != len {
            self.report.error(
                Kind::Bpobj,
                format!(
                    "list {object}: not all of its {} pointers are there",
                    header.num_blkptrs
                ),
            );
        }
        for bp in BlockPointer::decode_all(&data) {
            let at = Bookmark {
                objset: 0,
                object,
                level: 0,
                block: 0,
            };
            if bp.is_hole() {
                self.report
                    .error(Kind::Bpobj, format!("list {object} holds a hole"));
            } else if bp.is_embedded() || self.pointer_is_sane(&bp, at) {
                sum.add(ListSpace {
                    bytes: self.dsize(&bp),
                    comp: bp.accounted_compressed(),
                    uncomp: bp.accounted_uncompressed(),
                });
                out.push(bp);
            }
        }
        if header.num_subobjs > 0 {
            usage.mark(header.subobjs, "sub-lists");
            let list = self.object_bytes(mos, header.subobjs, header.num_subobjs.saturating_mul(8));
            let subs: Vec<u64> = bytes::u64s(&list).collect();
            for sub in subs {
                sum.add(self.read_bpobj(mos, sub, empty, out, usage, depth + 1));
            }
        } else if header.subobjs != 0 {
            usage.mark(header.subobjs, "sub-lists");
        }
        let said = ListSpace {
            bytes: header.bytes,
            comp: header.comp,
            uncomp: header.uncomp,
        };
        if said != sum {
            self.report.error(
                Kind::Bpobj,
                format!("list {object} says {said:?}, holds {sum:?}"),
            );
        }
        sum
    }

    fn check_history(&mut self, mos: &Tree, directory: &Zap, usage: &mut Usage) {
        let Some(object) = directory.u64("history") else {
            return;
        };
        usage.mark(object, "history");
        let Some(header) = mos
            .objects
            .get(&object)
            .and_then(|d| HistoryPhys::decode(&d.bonus).ok())
        else {
            self.report
                .error(Kind::History, "the history has no header");
            return;
        };
        let len = header.eof.saturating_sub(header.bof);
        let object_len = header
            .phys_max_off
            .min(header.eof.max(header.pool_create_len));
        let data = self.object_bytes(mos, object, object_len);
        let mut records = Vec::new();
        for logical in header.bof
            ..header
                .bof
                .saturating_add(len)
                .min(header.bof + header.phys_max_off)
        {
            let byte = header
                .physical(logical)
                .and_then(|p| data.get(bytes::index(p)));
            records.push(byte.copied().unwrap_or(0));
        }
        let mut at = 0;
        while at < records.len() {
            match history::decode_record(&records[at..]) {
                Ok((_, used)) => at += used,
                Err(e) => {
                    self.report.error(
                        Kind::History,
                        format!("record at {at} of {}: {e}", records.len()),
                    );
                    break;
                }
            }
        }
    }
}

/// Directory entries that other parts of the check read.
fn known_elsewhere(name: &str) -> bool {
    const NAMES: &[&str] = &[
        "config",
        "root_dataset",
        "history",
        "sync_bplist",
        "free_bpobj",
        "empty_bpobj",
        "com.delphix:obsolete_bpobj",
        "features_for_read",
        "features_for_write",
        "feature_enabled_txg",
        "com.delphix:vdev_zap_map",
        "com.delphix:log_spacemap_zap",
    ];
    NAMES.contains(&name) || name.starts_with("com.fudosecurity:brt:vdev:")
}
