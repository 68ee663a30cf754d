//! Datasets: the tree of directories, chains of snapshots, accounting and deadlists.

use std::collections::{BTreeMap, BTreeSet};

use ondisk::bookmark::BookmarkPhys;
use ondisk::dsl::{DeadlistPhys, DslDatasetPhys, DslDirPhys, dataset_flags, zapified_keys};
use ondisk::feature::Feature;
use ondisk::zil::{ChainId, LogRecord};
use ondisk::zil_record::CloneRange;
use ondisk::{BlockPointer, ObjectType, ObjsetType};

use super::blocks::{Bookmark, Checker};
use super::livelists;
use super::objset::{BlockRef, Place, Tree};
use super::pool::ListSpace;
use super::report::Kind;
use super::usage::Usage;
use super::zap::Zap;

/// A directory.
struct Dir {
    name: String,
    phys: DslDirPhys,
    children: Vec<u64>,
}

/// Blocks, and how often each is there.
type Places = BTreeMap<Place, u64>;

/// A head or a snapshot.
struct Dataset {
    name: String,
    phys: DslDatasetPhys,
    tree: Option<Tree>,
    /// Its blocks, and how often it has each: a clone in the txg of another one is the same.
    places: Places,
}

#[derive(Default)]
struct World {
    dirs: BTreeMap<u64, Dir>,
    datasets: BTreeMap<u64, Dataset>,
    /// By directory: blocks that livelists say are the clone's own.
    livelists: BTreeMap<u64, Vec<BlockPointer>>,
}

impl World {
    fn refs(&self, dataset: u64) -> &[BlockRef] {
        self.datasets
            .get(&dataset)
            .and_then(|d| d.tree.as_ref())
            .map_or(&[], |t| &t.refs)
    }
}

impl Checker<'_> {
    /// Checks everything about datasets. `freed` is what waits in `free_bpobj` and of destroyed clones.
    pub(super) fn check_datasets(
        &mut self,
        mos: &Tree,
        directory: &Zap,
        freed: ListSpace,
        usage: &mut Usage,
    ) {
        let Some(root) = directory.u64("root_dataset") else {
            self.report
                .error(Kind::Linkage, "the object directory has no root_dataset");
            return;
        };
        let empty = directory.u64("empty_bpobj").unwrap_or(0);
        let mut world = World::default();
        let name = self.report.pool.clone().unwrap_or_default();
        self.read_dir(mos, root, 0, name, &mut world, usage, 0);
        self.report.datasets = world.datasets.len() as u64;
        self.claim_datasets(&world);
        self.check_origin_links(mos, &world);
        self.check_dataset_accounting(&world);
        self.check_dir_accounting(mos, &world, freed);
        self.check_deadlists(mos, &world, empty, usage);
        self.check_livelists(&world);
        for dataset in world.datasets.values() {
            if let Some(tree) = &dataset.tree {
                if dataset.phys.flags & dataset_flags::INCONSISTENT != 0 {
                    let text = format!(
                        "{} is inconsistent (a receive did not finish)",
                        dataset.name
                    );
                    self.report.note(Kind::NotChecked, text);
                    continue;
                }
                match tree.phys.objset_type {
                    ObjsetType::ZFS => self.check_files(tree, &dataset.name),
                    ObjsetType::ZVOL => self.check_volume(tree, &dataset.name),
                    other => {
                        self.report.error(
                            Kind::Objset,
                            format!("{} is of objset type {}", dataset.name, other.0),
                        );
                    }
                }
            }
        }
    }

    #[allow(clippy::too_many_arguments, reason = "the state of one recursion")]
    fn read_dir(
        &mut self,
        mos: &Tree,
        id: u64,
        parent: u64,
        name: String,
        world: &mut World,
        usage: &mut Usage,
        depth: u32,
    ) {
        usage.mark(id, "directory");
        let Some(dnode) = mos.objects.get(&id) else {
            return;
        };
        let phys = match DslDirPhys::decode(&dnode.bonus) {
            Ok(p) if dnode.bonus_type == ObjectType::DSL_DIR && depth < 64 => p,
            _ => {
                self.report.error(
                    Kind::Linkage,
                    format!("object {id} ({name}) is not a dataset directory"),
                );
                return;
            }
        };
        if phys.parent_obj != parent {
            self.report.error(
                Kind::Linkage,
                format!("{name}: parent is {}, not {parent}", phys.parent_obj),
            );
        }
        usage.mark(phys.props_zapobj, "properties");
        usage.mark(phys.child_dir_zapobj, "children");
        usage.mark(phys.deleg_zapobj, "permissions");
        usage.mark(phys.clones, "clones");
        if phys.deleg_zapobj != 0 {
            // Permissions are ZAPs named by a ZAP.
            for (_, inner) in self
                .read_zap(mos, phys.deleg_zapobj)
                .iter()
                .flat_map(Zap::pairs)
            {
                usage.mark(inner, "permissions");
            }
        }
        self.read_zap(mos, phys.props_zapobj);
        if dnode.object_type == ObjectType::ZAP_METADATA {
            usage.zapified += 1;
            if let Some(zap) = self.read_zap(mos, id) {
                if let Some(key) = zap.u64(zapified_keys::CRYPTO_KEY) {
                    // Clones share the key object of their origin.
                    usage.mark_shared(key);
                }
                if let Some(list) = zap.u64(zapified_keys::LIVELIST) {
                    let (live, _) = self.read_livelist(mos, list, usage);
                    world.livelists.insert(id, live);
                }
            }
        }
        let mut children = Vec::new();
        for (child, object) in self
            .read_zap(mos, phys.child_dir_zapobj)
            .iter()
            .flat_map(Zap::pairs)
        {
            children.push(object);
            if world.dirs.contains_key(&object) {
                self.report.error(
                    Kind::Linkage,
                    format!("{name}/{child} is the same directory as another"),
                );
                continue;
            }
            self.read_dir(
                mos,
                object,
                id,
                format!("{name}/{child}"),
                world,
                usage,
                depth + 1,
            );
        }
        if phys.head_dataset_obj != 0 {
            self.read_chain(mos, id, &name, phys.head_dataset_obj, world, usage);
        }
        world.dirs.insert(
            id,
            Dir {
                name,
                phys,
                children,
            },
        );
    }

    /// What a livelist says a clone has of its own must be what its tree has that is younger than the origin.
    fn check_livelists(&mut self, world: &World) {
        for (id, live) in &world.livelists {
            let Some(dir) = world.dirs.get(id) else {
                continue;
            };
            let origin = world.datasets.get(&dir.phys.origin_obj);
            let Some(origin) = origin.filter(|origin| origin.phys.next_snap_obj != 0) else {
                let text = format!("{} is no clone and has a livelist", dir.name);
                self.report.error(Kind::Linkage, text);
                continue;
            };
            let refs = world.refs(dir.phys.head_dataset_obj);
            let has = livelists::places(refs.iter().map(|r| &r.bp), origin.phys.creation_txg);
            let said = livelists::places(live.iter(), 0);
            if has != said {
                let missing = has.keys().filter(|place| !said.contains_key(place)).count();
                let wrong = said.keys().filter(|place| !has.contains_key(place)).count();
                let text = format!(
                    "{}: the livelist misses {missing} blocks of {} and has {wrong} others",
                    dir.name,
                    has.len()
                );
                self.report.error(Kind::Deadlist, text);
            }
        }
    }

    /// Reads a head and its snapshots.
    fn read_chain(
        &mut self,
        mos: &Tree,
        dir: u64,
        name: &str,
        head: u64,
        world: &mut World,
        usage: &mut Usage,
    ) {
        let Some(phys) = self.read_dataset(mos, head, name.to_owned(), world, usage) else {
            return;
        };
        let mut listed: BTreeMap<u64, String> = BTreeMap::new();
        usage.mark(phys.snapnames_zapobj, "snapshot names");
        if let Some(names) = self.read_zap(mos, phys.snapnames_zapobj) {
            listed.extend(names.pairs().map(|(k, v)| (v, k)));
        }
        if phys.dir_obj != dir || phys.next_snap_obj != 0 || phys.num_children != 0 {
            self.report.error(
                Kind::Linkage,
                format!("{name}: the head's directory or links are wrong"),
            );
        }
        let (mut newer, mut newer_phys) = (head, phys);
        loop {
            let snap = newer_phys.prev_snap_obj;
            let Some(label) = listed.remove(&snap) else {
                break;
            };
            let full = format!("{name}@{label}");
            let Some(phys) = self.read_dataset(mos, snap, full.clone(), world, usage) else {
                break;
            };
            if phys.dir_obj != dir || phys.next_snap_obj != newer || phys.snapnames_zapobj != 0 {
                self.report.error(
                    Kind::Linkage,
                    format!("{full}: directory or next snapshot is wrong"),
                );
            }
            if newer_phys.prev_snap_txg != phys.creation_txg {
                let text = format!(
                    "{full}: created in txg {}, the next says {}",
                    phys.creation_txg, newer_phys.prev_snap_txg
                );
                self.report.error(Kind::Linkage, text);
            }
            (newer, newer_phys) = (snap, phys);
        }
        for (object, label) in listed {
            self.report.error(
                Kind::Linkage,
                format!("{name}@{label} (object {object}) is not in the chain of snapshots"),
            );
        }
        // What the oldest one continues: the origin, somewhere else in the tree; checked when all are known.
    }

    fn read_dataset(
        &mut self,
        mos: &Tree,
        id: u64,
        name: String,
        world: &mut World,
        usage: &mut Usage,
    ) -> Option<DslDatasetPhys> {
        usage.mark(id, "dataset");
        let dnode = mos.objects.get(&id)?;
        let phys = match DslDatasetPhys::decode(&dnode.bonus) {
            Ok(p) if dnode.bonus_type == ObjectType::DSL_DATASET => p,
            _ => {
                self.report.error(
                    Kind::Linkage,
                    format!("object {id} ({name}) is not a dataset"),
                );
                return None;
            }
        };
        usage.mark(phys.deadlist_obj, "deadlist");
        usage.mark(phys.next_clones_obj, "next clones");
        usage.mark(phys.props_obj, "snapshot properties");
        usage.mark(phys.userrefs_obj, "holds");
        let mut features = Vec::new();
        if dnode.object_type == ObjectType::ZAP_METADATA {
            usage.zapified += 1;
            if let Some(zap) = self.read_zap(mos, id) {
                for (key, value) in zap.pairs() {
                    if Feature::by_guid(&key).is_some_and(|f| f.per_dataset) {
                        *usage.per_dataset.entry(key.clone()).or_default() += 1;
                        features.push(key);
                    } else if key == zapified_keys::BOOKMARKS {
                        usage.bookmarks += 1;
                        usage.mark(value, "bookmarks");
                        let bookmarks = self.read_zap(mos, value);
                        for entry in bookmarks.iter().flat_map(|zap| &zap.entries) {
                            let list = BookmarkPhys::decode(&entry.1.ints).redaction_obj;
                            usage.mark(list, "redaction list");
                            usage.redaction_lists += u64::from(list != 0);
                        }
                    } else if key == zapified_keys::REMAP_DEADLIST {
                        usage.mark(value, "remap deadlist");
                    }
                }
            }
        }
        let tree = if phys.bp.is_hole() {
            None
        } else {
            self.walk_objset(&phys.bp, id)
        };
        if let Some(tree) = &tree {
            self.check_needed_features(tree, &name, &features);
        }
        let mut places = Places::new();
        let refs = tree.iter().flat_map(|tree| &tree.refs);
        for place in refs.filter_map(BlockRef::place) {
            *places.entry(place).or_default() += 1;
        }
        world.datasets.insert(
            id,
            Dataset {
                name,
                phys,
                tree,
                places,
            },
        );
        Some(phys)
    }

    /// Blocks and dnodes that only software with a feature can read need that feature marked on the dataset.
    fn check_needed_features(&mut self, tree: &Tree, name: &str, features: &[String]) {
        use ondisk::{ChecksumKind as C, Compression};
        let mut needed: BTreeSet<&str> = BTreeSet::new();
        for r in &tree.refs {
            if r.bp.lsize() > ondisk::OLD_MAX_BLOCK_SIZE {
                needed.insert("org.open-zfs:large_blocks");
            }
            if r.bp.compression() == Compression::ZSTD {
                needed.insert("org.freebsd:zstd_compress");
            }
            match r.bp.checksum_kind() {
                C::SHA512 => needed.insert("org.illumos:sha512"),
                C::SKEIN => needed.insert("org.illumos:skein"),
                C::EDONR => needed.insert("org.illumos:edonr"),
                C::BLAKE3 => needed.insert("org.openzfs:blake3"),
                _ => false,
            };
        }
        if tree.objects.values().any(|d| d.extra_slots > 0) {
            needed.insert("org.zfsonlinux:large_dnode");
        }
        for guid in needed {
            if !features.iter().any(|f| f == guid) {
                self.report.error(
                    Kind::Feature,
                    format!("{name} uses {guid} but does not say so"),
                );
            }
        }
    }

    /// Claims the blocks each dataset owns: those born after its previous snapshot. The others must have another owner.
    fn claim_datasets(&mut self, world: &World) {
        for d in world.datasets.values() {
            for r in world.refs(d.tree.as_ref().map_or(0, |t| t.id)) {
                if r.bp.birth().0 > d.phys.prev_snap_txg {
                    self.claims
                        .claim(&r.bp, &self.tops, &mut self.report, &|| d.name.clone());
                }
            }
            if let Some(tree) = &d.tree
                && !d.phys.is_snapshot()
            {
                self.claim_log(tree, &d.name);
            }
        }
        for d in world.datasets.values() {
            let orphan = d
                .tree
                .iter()
                .flat_map(|t| &t.refs)
                .find(|r| !self.claims.covers(&r.bp));
            if let Some(r) = orphan {
                let text = format!(
                    "{}: a block older than its previous snapshot is not in it: {}",
                    d.name, r.bp
                );
                self.report.error(Kind::Linkage, text);
            }
        }
    }

    /// Follows an intent log; its blocks up to the synced txg are allocated, and those of a claimed one up to the end of the claim,
    /// which may be younger: they were written in a txg that a crash prevented.
    fn claim_log(&mut self, tree: &Tree, name: &str) {
        let header = tree.phys.zil_header;
        let mut bp = header.log;
        let mut records = 0u64;
        let mut blocks = 0u64;
        let claimed = header.claim_txg != 0;
        let is_allocated = |bp: &BlockPointer, txg: u64| match claimed {
            true => ChainId::of(bp).seq <= header.claim_blk_seq,
            false => bp.birth().0 <= txg,
        };
        while !bp.is_hole() && is_allocated(&bp, self.txg) && blocks < 1 << 20 {
            let at = Bookmark {
                objset: tree.id,
                object: 0,
                level: 0,
                block: blocks,
            };
            if !self.pointer_is_sane(&bp, at) {
                break;
            }
            self.claims.claim(&bp, &self.tops, &mut self.report, &|| {
                format!("{name}: intent log")
            });
            blocks += 1;
            let Some(dva) = bp.copies().next() else { break };
            let len = ondisk::bytes::index(bp.psize());
            let sums = [codec::checksum::fletcher4, codec::checksum::fletcher2];
            let is_log =
                |data: &[u8]| ondisk::zil::LogBlock::open(data, &bp, sums[0], sums[1]).is_some();
            let found = match self.stripe(dva, len, bp.physical_birth().0) {
                Some(stripe) => stripe.solve(&is_log).0,
                None => self.halves(dva, len).solve(&is_log).0,
            };
            let opened = found.as_ref().and_then(|data| {
                let block = ondisk::zil::LogBlock::open(
                    data,
                    &bp,
                    codec::checksum::fletcher4,
                    codec::checksum::fletcher2,
                )?;
                Some((
                    block.next,
                    block.iter().count() as u64,
                    block
                        .iter()
                        .filter(|r| claimed && r.seq <= header.claim_lr_seq)
                        .flat_map(|r| logged_blocks(&bp, &r))
                        .collect::<Vec<_>>(),
                ))
            });
            let Some((next, count, written)) = opened else {
                break;
            };
            records += count;
            for w in &written {
                self.claims.claim(w, &self.tops, &mut self.report, &|| {
                    format!("{name}: intent log write")
                });
            }
            bp = next;
        }
        if records > 0 {
            let text = format!("{name}: the intent log holds {records} records");
            self.report.note(Kind::IntentLog, text);
        }
    }

    /// Snapshots and their clones must know each other.
    fn check_origin_links(&mut self, mos: &Tree, world: &World) {
        let mut continues: BTreeMap<u64, BTreeSet<u64>> = BTreeMap::new();
        let mut heads_of: BTreeMap<u64, BTreeSet<u64>> = BTreeMap::new();
        for (id, d) in &world.datasets {
            if d.phys.prev_snap_obj != 0 {
                continues
                    .entry(d.phys.prev_snap_obj)
                    .or_default()
                    .insert(*id);
            }
        }
        for dir in world.dirs.values() {
            if let Some(origin) = world.datasets.get(&dir.phys.origin_obj) {
                heads_of
                    .entry(origin.phys.dir_obj)
                    .or_default()
                    .insert(dir.phys.head_dataset_obj);
            } else if dir.phys.origin_obj != 0 {
                self.report.error(
                    Kind::Linkage,
                    format!(
                        "{}: origin {} does not exist",
                        dir.name, dir.phys.origin_obj
                    ),
                );
            }
        }
        for (id, d) in world.datasets.iter().filter(|(_, d)| d.phys.is_snapshot()) {
            let mut expected = continues.remove(id).unwrap_or_default();
            let children = expected.len() as u64;
            if children != d.phys.num_children {
                let text = format!(
                    "{}: num_children is {}, {children} datasets continue it",
                    d.name, d.phys.num_children
                );
                self.report.error(Kind::Linkage, text);
            }
            expected.remove(&d.phys.next_snap_obj);
            let listed = self.read_set(mos, d.phys.next_clones_obj);
            if listed != expected {
                let text = format!(
                    "{}: next clones are {expected:?}, listed {listed:?}",
                    d.name
                );
                self.report.error(Kind::Linkage, text);
            }
        }
        for (missing, datasets) in continues {
            self.report.error(
                Kind::Linkage,
                format!("datasets {datasets:?} continue snapshot {missing}, which does not exist"),
            );
        }
        for (id, dir) in &world.dirs {
            let expected = heads_of.remove(id).unwrap_or_default();
            let listed = self.read_set(mos, dir.phys.clones);
            if listed != expected {
                self.report.error(
                    Kind::Linkage,
                    format!("{}: clones are {expected:?}, listed {listed:?}", dir.name),
                );
            }
            // The oldest snapshot of a head continues the origin.
            let mut oldest = dir.phys.head_dataset_obj;
            while let Some(prev) = world.datasets.get(&oldest).map(|d| d.phys.prev_snap_obj) {
                match world.datasets.get(&prev) {
                    Some(p) if p.phys.dir_obj == *id => oldest = prev,
                    _ => {
                        if prev != dir.phys.origin_obj {
                            let text = format!(
                                "{}: origin is {}, its oldest dataset continues {prev}",
                                dir.name, dir.phys.origin_obj
                            );
                            self.report.error(Kind::Linkage, text);
                        }
                        break;
                    }
                }
            }
        }
    }

    /// A ZAP of object numbers under their own hexadecimal names.
    fn read_set(&mut self, mos: &Tree, object: u64) -> BTreeSet<u64> {
        if object == 0 {
            return BTreeSet::new();
        }
        let mut out = BTreeSet::new();
        for (key, value) in self.read_zap(mos, object).iter().flat_map(Zap::pairs) {
            if key != format!("{value:x}") {
                self.report
                    .error(Kind::Linkage, format!("set {object} has {key} = {value}"));
            }
            out.insert(value);
        }
        out
    }

    fn check_dataset_accounting(&mut self, world: &World) {
        for d in world.datasets.values() {
            let refs: &[BlockRef] = d.tree.as_ref().map_or(&[], |t| &t.refs);
            let sum = space_of(refs);
            let said = ListSpace {
                bytes: d.phys.referenced_bytes,
                comp: d.phys.compressed_bytes,
                uncomp: d.phys.uncompressed_bytes,
            };
            if sum != said {
                self.report.error(
                    Kind::Accounting,
                    format!("{}: says it references {said:?}, does {sum:?}", d.name),
                );
            }
            let young = refs
                .iter()
                .filter(|r| r.bp.birth().0 > d.phys.prev_snap_txg);
            let unique: u64 = match world.datasets.get(&d.phys.next_snap_obj) {
                Some(next) => {
                    let gone = difference(&d.places, &next.places);
                    let sizes: BTreeMap<Place, u64> =
                        young.filter_map(|r| Some((r.place()?, r.dsize))).collect();
                    let of = |(place, times): (&Place, &u64)| {
                        sizes.get(place).map_or(0, |dsize| dsize * times)
                    };
                    gone.iter().map(of).sum()
                }
                None => young.map(|r| r.dsize).sum(),
            };
            if unique != d.phys.unique_bytes {
                let text = format!(
                    "{}: unique bytes are {}, should be {unique}",
                    d.name, d.phys.unique_bytes
                );
                self.report.error(Kind::Accounting, text);
            }
        }
    }

    fn check_dir_accounting(&mut self, mos: &Tree, world: &World, freed: ListSpace) {
        let special = |name: &str| {
            let pool = self.report.pool.as_deref().unwrap_or_default();
            world
                .dirs
                .values()
                .find(|d| d.name == format!("{pool}/{name}"))
                .map(|d| d.phys)
        };
        let (own, waiting) = (special("$MOS"), special("$FREE"));
        for (what, phys, want) in [
            ("$MOS", own, space_of(&mos.refs)),
            ("$FREE", waiting, freed),
        ] {
            let said = phys.map(|p| ListSpace {
                bytes: p.used_bytes,
                comp: p.compressed_bytes,
                uncomp: p.uncompressed_bytes,
            });
            // Trees destroyed in the background also count as $FREE.
            if said != Some(want)
                && (what == "$MOS"
                    || self
                        .report
                        .findings
                        .iter()
                        .all(|f| f.kind != Kind::NotChecked))
            {
                self.report.error(
                    Kind::Accounting,
                    format!("{what} says {said:?}, holds {want:?}"),
                );
            }
        }
        for (id, dir) in &world.dirs {
            let p = &dir.phys;
            let [head, snap, child, child_rsrv, refrsrv] = p.used_breakdown;
            let children = || {
                dir.children
                    .iter()
                    .filter_map(|c| world.dirs.get(c))
                    .map(|d| &d.phys)
            };
            let child_used: u64 = children().map(|c| c.used_bytes).sum();
            let reserved: u64 = children()
                .map(|c| c.reserved.saturating_sub(c.used_bytes))
                .sum();
            if head + snap + child + child_rsrv + refrsrv != p.used_bytes {
                let text = format!(
                    "{}: used {} is not the sum of {:?}",
                    dir.name, p.used_bytes, p.used_breakdown
                );
                self.report.error(Kind::Accounting, text);
            }
            if child != child_used || child_rsrv != reserved {
                let text = format!(
                    "{}: children use {child_used} and reserve {reserved}, it says {child} and {child_rsrv}",
                    dir.name
                );
                self.report.error(Kind::Accounting, text);
            }
            if p.head_dataset_obj != 0 {
                self.check_head_and_snapshots(world, *id, dir, head, snap);
            }
        }
    }

    fn check_head_and_snapshots(
        &mut self,
        world: &World,
        id: u64,
        dir: &Dir,
        head: u64,
        snap: u64,
    ) {
        let since = world
            .datasets
            .get(&dir.phys.origin_obj)
            .map_or(0, |o| o.phys.creation_txg);
        let Some(head_set) = world
            .datasets
            .get(&dir.phys.head_dataset_obj)
            .map(|d| &d.places)
        else {
            return;
        };
        let young = |r: &&BlockRef| r.bp.birth().0 > since && r.place().is_some();
        // How often snapshots refer to the same shared block is not known here.
        let shared = |r: &BlockRef| young(&r) && is_shared(&r.bp);
        let in_dir = world.datasets.iter().filter(|(_, d)| d.phys.dir_obj == id);
        if in_dir
            .into_iter()
            .any(|(other, _)| world.refs(*other).iter().any(shared))
        {
            return;
        }
        let in_head: u64 = world
            .refs(dir.phys.head_dataset_obj)
            .iter()
            .filter(young)
            .map(|r| r.dsize)
            .sum();
        let mut only_snapshots = BTreeMap::new();
        for (other, d) in &world.datasets {
            if d.phys.dir_obj == id && *other != dir.phys.head_dataset_obj {
                for r in world.refs(*other).iter().filter(young) {
                    if let Some(place) = r.place().filter(|p| !head_set.contains_key(p)) {
                        only_snapshots.insert(place, r.dsize);
                    }
                }
            }
        }
        let in_snapshots: u64 = only_snapshots.values().sum();
        if (in_head, in_snapshots) != (head, snap) {
            let text = format!(
                "{}: the head uses {in_head} and snapshots {in_snapshots}, it says {head} and {snap}",
                dir.name
            );
            self.report.error(Kind::Accounting, text);
        }
    }

    fn check_deadlists(&mut self, mos: &Tree, world: &World, empty: u64, usage: &mut Usage) {
        for d in world.datasets.values() {
            let object = d.phys.deadlist_obj;
            let Some(dnode) = mos.objects.get(&object) else {
                continue;
            };
            let header = match DeadlistPhys::decode(&dnode.bonus) {
                Ok(h) if dnode.bonus_type == ObjectType::DEADLIST_HDR => h,
                _ => {
                    self.report.note(
                        Kind::NotChecked,
                        format!("{}: a deadlist of the old kind", d.name),
                    );
                    continue;
                }
            };
            let mut keys: Vec<(u64, u64)> = self
                .read_zap(mos, object)
                .iter()
                .flat_map(Zap::pairs)
                .filter_map(|(k, v)| Some((u64::from_str_radix(&k, 16).ok()?, v)))
                .collect();
            keys.sort_unstable();
            let mut sum = ListSpace::default();
            let mut dead = Places::new();
            for (i, (from, list)) in keys.iter().enumerate() {
                let until = keys.get(i + 1).map_or(u64::MAX, |k| k.0);
                let mut entries: Vec<BlockPointer> = Vec::new();
                sum.add(self.read_bpobj(mos, *list, empty, &mut entries, usage, 0));
                for bp in entries {
                    let birth = bp.birth().0;
                    if birth <= *from || birth > until {
                        let text = format!(
                            "{}: deadlist from txg {from} to {until} holds a block of {birth}",
                            d.name
                        );
                        self.report.error(Kind::Deadlist, text);
                    }
                    let dsize = self.dsize(&bp);
                    if let Some(place) = (BlockRef { bp, dsize }).place() {
                        *dead.entry(place).or_default() += 1;
                    }
                }
            }
            let said = ListSpace {
                bytes: header.used,
                comp: header.comp,
                uncomp: header.uncomp,
            };
            if said != sum {
                self.report.error(
                    Kind::Deadlist,
                    format!("{}: deadlist says {said:?}, holds {sum:?}", d.name),
                );
            }
            self.check_deadlist_keys(world, d, &keys);
            let none = Places::new();
            let previous = world.datasets.get(&d.phys.prev_snap_obj);
            let previous = previous.map_or(&none, |previous| &previous.places);
            let gone = difference(previous, &d.places);
            let lost: u64 = difference(&gone, &dead).values().sum();
            let wrong: u64 = difference(&dead, &gone).values().sum();
            if lost + wrong > 0 {
                let text = format!(
                    "{}: {lost} dead blocks are not in the deadlist, {wrong} in it are not dead",
                    d.name
                );
                self.report.error(Kind::Deadlist, text);
            }
        }
    }

    /// Every older snapshot opens a range of its own.
    fn check_deadlist_keys(&mut self, world: &World, d: &Dataset, keys: &[(u64, u64)]) {
        let mut expected: BTreeSet<u64> = BTreeSet::new();
        let mut older = d.phys.prev_snap_obj;
        while let Some(snap) = world.datasets.get(&older) {
            expected.insert(snap.phys.prev_snap_txg);
            older = snap.phys.prev_snap_obj;
            if expected.len() > world.datasets.len() {
                break;
            }
        }
        if let Some(missing) = expected.iter().find(|t| keys.iter().all(|k| k.0 != **t)) {
            self.report.error(
                Kind::Deadlist,
                format!("{}: the deadlist has no range from txg {missing}", d.name),
            );
        }
    }
}

fn space_of(refs: &[BlockRef]) -> ListSpace {
    let mut sum = ListSpace::default();
    for r in refs {
        sum.add(ListSpace {
            bytes: r.dsize,
            comp: r.comp(),
            uncomp: r.uncomp(),
        });
    }
    sum
}

/// What is in the first and not in the second, and how often more.
fn difference(first: &Places, second: &Places) -> Places {
    let more = first.iter().map(|(place, times)| {
        let others = second.get(place).copied().unwrap_or(0);
        (*place, times.saturating_sub(others))
    });
    more.filter(|(_, times)| *times > 0).collect()
}

/// Whether other pointers may refer to the same stored block: it is deduplicated, or a clone of an older one.
fn is_shared(bp: &BlockPointer) -> bool {
    bp.is_dedup() || bp.physical_birth() != bp.birth()
}

/// The blocks that a record of a claimed log refers to: of an indirect write, and those that it clones.
fn logged_blocks(log: &BlockPointer, record: &LogRecord<'_>) -> Vec<BlockPointer> {
    let mut blocks: Vec<BlockPointer> = record.indirect_write().into_iter().collect();
    if record.is_clone_range() {
        let named = match log.uses_crypt() {
            true => CloneRange::pointers(record.body),
            false => CloneRange::decode(record.body).map(|range| range.blocks),
        };
        let named = named.unwrap_or_default().into_iter();
        blocks.extend(named.filter(CloneRange::is_shared));
    }
    blocks
}
