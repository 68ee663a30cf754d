//! Labels, uberblocks and the vdev tree.

use std::collections::BTreeMap;

use codec::checksum::sha256;
use ondisk::{NvList, Uberblock, label};

use super::blocks::Checker;
use super::expansion::{Expansion, Reflow};
use super::image::Image;
use super::report::{Kind, Severity};
use super::spread::Spread;
use super::stripes::Shape;

/// One image, with what its labels say.
pub(super) struct Disk<'a> {
    pub(super) image: &'a dyn Image,
    pub(super) labels: Vec<Option<NvList>>,
    pub(super) guid: u64,
    /// Labels that are not valid or not like the newest.
    deviations: Vec<String>,
}

/// A leaf of a top-level vdev.
pub(super) struct Leaf {
    pub(super) guid: u64,
    /// Index of its image, when it is there.
    pub(super) disk: Option<usize>,
    /// Object of its dirty-time log.
    pub(super) dtl: u64,
    /// Ranges of txgs it missed.
    pub(super) missed: Vec<(u64, u64)>,
    /// Which child of the top-level vdev it is, or is below.
    pub(super) child: u64,
}

/// A top-level vdev.
pub(super) struct Top {
    pub(super) ashift: u64,
    pub(super) asize: u64,
    pub(super) metaslab_array: u64,
    pub(super) metaslab_shift: u64,
    /// Object of its attributes.
    pub(super) zap: u64,
    pub(super) leaves: Vec<Leaf>,
    /// Blocks are spread with parity.
    pub(super) raidz: Option<Shape>,
    /// Its index is kept but it holds nothing.
    pub(super) is_hole: bool,
    /// It was removed: a table says where its blocks are.
    pub(super) is_indirect: bool,
}

impl Top {
    /// Allocated bytes of a block of `psize` bytes that was written in a txg.
    pub(super) fn asize_of(&self, psize: u64, birth: u64) -> u64 {
        let sectors = psize.div_ceil(1 << self.ashift);
        let shape = self.raidz.as_ref();
        shape.map_or(sectors, |shape| shape.allocated(sectors, birth)) << self.ashift
    }

    /// First byte and bytes of a metaslab.
    pub(super) fn metaslab(&self, number: u64) -> (u64, u64) {
        let (start, size) = (number << self.metaslab_shift, 1 << self.metaslab_shift);
        let Some(spread) = self.raidz.as_ref().and_then(|shape| shape.spread.as_ref()) else {
            return (start, size);
        };
        // A draid's begin and end with a stripe.
        let unit = spread.unit(self.ashift);
        let first = start.div_ceil(unit) * unit;
        (first, (start + size - first) / unit * unit)
    }

    /// What 512 allocated bytes count in the accounting of datasets: as before any expansion.
    pub(super) fn deflate(&self) -> u64 {
        (1 << 17) / (self.asize_of(1 << 17, 0) / 512)
    }
}

impl<'a> Disk<'a> {
    pub(super) fn read(image: &'a dyn Image) -> Self {
        let labels: Vec<_> = (0..label::LABEL_COUNT)
            .map(|i| read_label(image, i))
            .collect();
        let best = newest(&labels);
        let guid = best.and_then(|l| l.u64("guid")).unwrap_or(0);
        let name = image.name();
        let deviation = |(i, l): (usize, &Option<NvList>)| match l {
            None => Some(format!("{name}: label {i} is not valid")),
            Some(_) if l.as_ref() != best => {
                Some(format!("{name}: label {i} differs from the newest"))
            }
            Some(_) => None,
        };
        // Without any there is nothing to compare.
        let deviations = match best {
            Some(_) => labels.iter().enumerate().filter_map(deviation).collect(),
            None => Vec::new(),
        };
        Self {
            image,
            guid,
            deviations,
            labels,
        }
    }

    pub(super) fn newest_label(&self) -> Option<&NvList> {
        newest(&self.labels)
    }

    /// All uberblocks with a right checksum, of all labels.
    fn uberblocks(&self) -> Vec<Uberblock> {
        let ashift = self
            .newest_label()
            .and_then(|l| l.list("vdev_tree")?.u64("ashift"))
            .unwrap_or(10);
        let slot_size = label::uberblock_slot_size(ashift);
        let mut found = Vec::new();
        for which in 0..label::LABEL_COUNT {
            let Some(base) = label::label_offset(self.image.size(), which) else {
                continue;
            };
            let mut ring = vec![0; label::RING.1];
            let at = base + label::RING.0;
            if !self.image.read_at(at, &mut ring) {
                continue;
            }
            for (i, slot) in ring.chunks_exact(slot_size).enumerate() {
                let Ok(ub) = Uberblock::decode(slot) else {
                    continue;
                };
                let verifier = label::label_verifier(at + (i * slot_size) as u64);
                if label::verify(slot, verifier, sha256) {
                    found.push(ub);
                }
            }
        }
        found
    }
}

/// Whether the newest label of a disk says that it is in the tree of some pool.
pub fn is_in_a_tree(image: &dyn Image) -> bool {
    let disk = Disk::read(image);
    let label = disk.newest_label();
    label.is_some_and(|label| label.list("vdev_tree").is_some())
}

fn newest(labels: &[Option<NvList>]) -> Option<&NvList> {
    labels
        .iter()
        .flatten()
        .max_by_key(|l| l.u64("txg").unwrap_or(0))
}

fn read_label(image: &dyn Image, which: usize) -> Option<NvList> {
    let at = label::label_offset(image.size(), which)? + label::NVLIST.0;
    let mut block = vec![0; label::NVLIST.1];
    if !image.read_at(at, &mut block) || !label::verify(&block, label::label_verifier(at), sha256) {
        return None;
    }
    NvList::decode(&block).ok()
}

impl Checker<'_> {
    /// Judges the labels, finds the uberblock to follow and the tree as the labels have it.
    pub(super) fn open_devices(&mut self) -> Option<Uberblock> {
        let mut best: Option<Uberblock> = None;
        let mut trees: BTreeMap<u64, (u64, NvList)> = BTreeMap::new();
        let mut texts = Vec::new();
        for disk in &self.disks {
            let name = disk.image.name();
            let Some(newest) = disk.newest_label() else {
                texts.push((Severity::Error, format!("{name} has no valid label")));
                continue;
            };
            // Spares and cache devices know no pool.
            if newest
                .u64("state")
                .is_some_and(|s| s >= label::pool_state::SPARE)
            {
                continue;
            }
            if self.report.pool.is_none() {
                self.report.pool = newest.str("name").map(str::to_owned);
                self.pool_guid = newest.u64("pool_guid").unwrap_or(0);
            } else if newest.u64("pool_guid") != Some(self.pool_guid) {
                texts.push((Severity::Error, format!("{name} belongs to another pool")));
                continue;
            }
            if let Some(tree) = newest.list("vdev_tree") {
                let txg = newest.u64("txg").unwrap_or(0);
                let id = tree.u64("id").unwrap_or(0);
                if trees.get(&id).is_none_or(|(t, _)| *t < txg) {
                    trees.insert(id, (txg, tree.clone()));
                }
            }
            for ub in disk.uberblocks() {
                if best.is_none_or(|b| b.cmp_currency(&ub).is_lt()) {
                    best = Some(ub);
                }
            }
        }
        for (severity, text) in texts {
            self.report.add(severity, Kind::Label, text);
        }
        let Some(ub) = best else {
            self.report
                .error(Kind::Uberblock, "no valid uberblock on any image");
            return None;
        };
        let in_time = |d: &Disk<'_>| {
            d.labels
                .iter()
                .flatten()
                .any(|l| l.u64("txg").is_some_and(|t| t <= ub.txg.0))
        };
        if !self.disks.iter().any(in_time) {
            self.report.error(
                Kind::Label,
                format!("no label is as old as the uberblock of txg {}", ub.txg),
            );
        }
        self.reflow = Reflow::of(&ub);
        for (_, tree) in trees.values() {
            self.add_top(tree);
        }
        Some(ub)
    }

    /// Says where the labels of a disk are not alike: with `config`, of the disks that it knows; of others only with its txg,
    /// since an older label is that of a device which has left the pool, a newer one that of an addition cut short.
    pub(super) fn judge_labels(&mut self, config: Option<&NvList>) {
        let lenient = if self.options.crashed {
            Severity::Note
        } else {
            Severity::Error
        };
        let members = config.map(members);
        for disk in &self.disks {
            let is_stranger = members
                .as_ref()
                .is_some_and(|members| !members.contains(&disk.guid));
            let txg = |list: Option<&NvList>| list.and_then(|list| list.u64("txg"));
            let severity = match is_stranger && txg(disk.newest_label()) != txg(config) {
                true => Severity::Note,
                false => lenient,
            };
            for text in &disk.deviations {
                self.report.add(severity, Kind::Label, text.clone());
            }
        }
    }

    /// Replaces the tree by that of the pool's own configuration.
    pub(super) fn adopt_config(&mut self, config: &NvList, ub: &Uberblock) {
        let Some(root) = config.list("vdev_tree") else {
            self.report
                .error(Kind::Config, "the configuration has no vdev_tree");
            return;
        };
        self.tops.clear();
        for child in root.lists("children").unwrap_or_default().to_vec() {
            self.add_top(&child);
        }
        let sum = guid_sum(root);
        if sum != ub.guid_sum {
            self.report.error(
                Kind::Config,
                format!("sum of guids is {sum}, the uberblock says {}", ub.guid_sum),
            );
        }
        if root.u64("guid") != Some(self.pool_guid)
            || config.u64("pool_guid") != Some(self.pool_guid)
        {
            self.report.error(
                Kind::Config,
                "the configuration's pool guid is not that of the labels",
            );
        }
        let known: Vec<u64> = self
            .tops
            .values()
            .flat_map(|t| t.leaves.iter().map(|l| l.guid))
            .collect();
        let aux = |k: &str| {
            config
                .lists(k)
                .unwrap_or_default()
                .iter()
                .filter_map(|c| c.u64("guid"))
                .collect::<Vec<_>>()
        };
        let spares = [aux("spares"), aux("l2cache")].concat();
        let strangers: Vec<String> = self
            .disks
            .iter()
            .filter(|d| {
                d.newest_label().is_some() && !known.contains(&d.guid) && !spares.contains(&d.guid)
            })
            .filter(|d| {
                d.newest_label()
                    .is_some_and(|l| l.u64("state").is_some_and(|s| s < label::pool_state::SPARE))
            })
            // An older label is that of a device which has left the pool, a newer one that of an addition cut short.
            .filter(|d| {
                d.newest_label()
                    .is_some_and(|l| l.u64("txg") == config.u64("txg"))
            })
            .map(|d| d.image.name())
            .collect();
        for name in strangers {
            self.report.error(
                Kind::Config,
                format!("{name} is not part of the pool's configuration"),
            );
        }
        let missing: Vec<u64> = self
            .tops
            .values()
            .flat_map(|t| &t.leaves)
            .filter(|l| l.disk.is_none())
            .map(|l| l.guid)
            .collect();
        for guid in missing {
            self.report
                .note(Kind::Config, format!("leaf {guid} has no image"));
        }
    }

    pub(super) fn add_top(&mut self, tree: &NvList) {
        let kind = tree.str("type").unwrap_or("?");
        let id = u32::try_from(tree.u64("id").unwrap_or(0)).unwrap_or(u32::MAX);
        if !matches!(
            kind,
            "disk"
                | "file"
                | "mirror"
                | "raidz"
                | "draid"
                | "replacing"
                | "spare"
                | "hole"
                | "indirect"
        ) {
            self.report.error(
                Kind::NotChecked,
                format!("top-level vdev {id} is of type {kind}"),
            );
            return;
        }
        let mut leaves = Vec::new();
        collect_leaves(tree, 0, &mut leaves);
        let raidz = matches!(kind, "raidz" | "draid").then(|| Shape {
            children: tree.lists("children").map_or(0, |c| c.len() as u64),
            parity: tree.u64("nparity").unwrap_or(1),
            spread: Spread::read(tree),
            expansion: Expansion::read(tree, &self.reflow),
        });
        let impossible = |shape: &Shape| {
            !(1..=3).contains(&shape.parity)
                || shape.width(0) <= shape.parity
                || (kind == "draid") != shape.spread.is_some()
        };
        if raidz.as_ref().is_some_and(impossible) {
            self.report.error(
                Kind::Config,
                format!("top-level vdev {id} is a {kind} of an impossible shape"),
            );
            return;
        }
        for leaf in &mut leaves {
            leaf.disk = self.disks.iter().position(|d| d.guid == leaf.guid);
        }
        let w = |k: &str| tree.u64(k).unwrap_or(0);
        self.tops.insert(
            id,
            Top {
                ashift: w("ashift").clamp(9, 16),
                asize: w("asize"),
                metaslab_array: w("metaslab_array"),
                metaslab_shift: w("metaslab_shift"),
                zap: w("com.delphix:vdev_zap_top"),
                leaves,
                raidz,
                is_hole: kind == "hole",
                is_indirect: kind == "indirect",
            },
        );
    }
}

/// Collects the leaves; `child` is that of the top-level vdev it lies below.
fn collect_leaves(tree: &NvList, child: u64, out: &mut Vec<Leaf>) {
    let is_raidz = matches!(tree.str("type"), Some("raidz" | "draid"));
    match tree.lists("children") {
        Some(children) => {
            for (index, below) in children.iter().enumerate() {
                let child = if is_raidz { index as u64 } else { child };
                collect_leaves(below, child, out);
            }
        }
        None if !matches!(tree.str("type"), Some("hole" | "indirect")) => out.push(Leaf {
            guid: tree.u64("guid").unwrap_or(0),
            disk: None,
            dtl: tree.u64("DTL").unwrap_or(0),
            missed: Vec::new(),
            child,
        }),
        None => {}
    }
}

/// Guids of the devices that a configuration knows, spares and cache devices among them.
fn members(config: &NvList) -> Vec<u64> {
    fn add(tree: &NvList, into: &mut Vec<u64>) {
        into.extend(tree.u64("guid"));
        for child in tree.lists("children").unwrap_or_default() {
            add(child, into);
        }
    }
    let mut members = Vec::new();
    if let Some(root) = config.list("vdev_tree") {
        add(root, &mut members);
    }
    for auxiliary in ["spares", "l2cache"] {
        for device in config.lists(auxiliary).unwrap_or_default() {
            add(device, &mut members);
        }
    }
    members
}

fn guid_sum(tree: &NvList) -> u64 {
    let own = tree.u64("guid").unwrap_or(0);
    let children = tree.lists("children").unwrap_or_default();
    children
        .iter()
        .fold(own, |sum, c| sum.wrapping_add(guid_sum(c)))
}
