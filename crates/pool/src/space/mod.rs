//! The space maps of the whole pool: which metaslab has which object, what it said last, loading
//! them for the allocator and appending each transaction group's changes.

pub(crate) mod checkpoint;
pub(crate) mod checkpoint_map;
mod logs;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::rc::{Rc, Weak};

use dmu::{AllocSpec, Objset, Tx};
use dsl::Features;
use ondisk::bytes::{index, of_u64s, u64_at};
use ondisk::{BlockPointer, ObjectId, ObjectType, Txg};
use range_tree::{Mismatch, RangeTree};
use vdev::{TopInfo, Tree};
use zio::{
    BlockStore, CheckReference, MetaSource, MetaslabChange, MetaslabSummary, Release, Share,
    Sharing, ZioError,
};

use crate::PoolError;
use crate::brt::BlockReferenceTables;
use crate::ddt::DedupTables;
use crate::lifecycle::CLOSED;
use crate::log_space_map::{self, Key, LogSpaceMaps, Unflushed};
use crate::space::checkpoint_map::CheckpointMap;
use crate::space_map::{self, Encoder, Header, MapType, Scale};

/// A map is rewritten when it is this many times as long as its free segments need, ...
const CONDENSE_FACTOR: u64 = 2;
/// ... and longer than this many of its blocks.
// OpenZFS: module/zfs/metaslab.c, metaslab_should_condense (zfs_condense_pct 200, 4 blocks)
const CONDENSE_BLOCKS_MIN: u64 = 4;
const _: () = assert!(CONDENSE_FACTOR > 1 && CONDENSE_BLOCKS_MIN > 0);

/// Whether a map is much longer than what is free in its metaslab needs; `false` while that is not known.
fn is_to_condense(map: &MetaslabMap, store: &BlockStore, (id, metaslab): Key) -> bool {
    store.segment_histogram(id, metaslab).is_some_and(|counts| {
        let optimal = 8 * counts.iter().sum::<u64>().max(1);
        map.header.length > CONDENSE_FACTOR * optimal
            && map.header.length > CONDENSE_BLOCKS_MIN * u64::from(map.block_size)
    })
}

/// Takes the free segments of a metaslab by size into the header of its map, if it keeps them and they are known.
fn count_segments(map: &mut MetaslabMap, store: &BlockStore, (id, metaslab): Key, scale: Scale) {
    let segments = store.segment_histogram(id, metaslab);
    if let (Some(buckets), Some(counts)) = (&mut map.header.histogram, segments) {
        *buckets = space_map::histogram_of(&counts, scale.shift);
    }
}

/// One metaslab's map.
#[derive(Clone, Debug)]
struct MetaslabMap {
    object: ObjectId,
    header: Header,
    block_size: u32,
}

/// The maps of one top-level vdev.
#[derive(Clone, Debug)]
struct VdevMaps {
    array: ObjectId,
    ashift: u8,
    layout: vdev::Layout,
    metaslab_shift: u8,
    count: u64,
    maps: BTreeMap<u32, MetaslabMap>,
}

impl VdevMaps {
    fn scale(&self, metaslab: u32) -> Scale {
        let (ashift, shift) = (self.ashift, self.metaslab_shift);
        let span = self
            .layout
            .metaslab_span(ashift, shift, u64::from(metaslab));
        Scale {
            start: span.start,
            size: span.end - span.start,
            shift: self.ashift,
        }
    }
}

/// How fragmented free space is in percent when all its segments have the size 512 << index.
// OpenZFS: module/zfs/metaslab.c, zfs_frag_table
const FRAGMENTATION: [u64; 21] = [
    100, 99, 97, 93, 88, 83, 77, 71, 64, 57, 50, 43, 36, 29, 23, 17, 12, 7, 3, 1, 0,
];

impl MetaslabMap {
    /// Percent of fragmentation, or `None` for a map without histogram.
    fn fragmentation(&self, shift: u8) -> Option<u64> {
        let buckets = self.header.histogram?;
        let (mut total, mut weighted) = (0u128, 0u128);
        for (i, &count) in buckets.iter().enumerate() {
            let log2 = usize::from(shift) + i;
            let percent = FRAGMENTATION[(log2 - 9).min(FRAGMENTATION.len() - 1)];
            let space = u128::from(count) << log2;
            total += space;
            weighted += space * u128::from(percent);
        }
        if total == 0 {
            return Some(0);
        }
        u64::try_from(weighted / total).ok()
    }
}

/// What the features of a pool say of its space maps.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SpaceFeatures {
    /// `spacemap_histogram` is enabled: new maps get the long header.
    pub(crate) histogram: bool,
    /// `spacemap_v2` is enabled: two-word entries may be written.
    pub(crate) two_words: bool,
    /// `log_spacemap` is enabled: changes are appended to a log of their txg.
    pub(crate) logs: bool,
}

impl SpaceFeatures {
    /// Asks for each feature by its short name.
    pub(crate) fn of(is_enabled: impl Fn(&str) -> bool) -> Self {
        Self {
            histogram: is_enabled("spacemap_histogram"),
            two_words: is_enabled("spacemap_v2"),
            logs: is_enabled("log_spacemap"),
        }
    }
}

/// The space maps of a pool.
pub(crate) struct SpaceMaps {
    pub(crate) mos: Objset,
    tree: Tree,
    /// The feature `spacemap_histogram` is enabled: new maps get the long header.
    pub(crate) histogram: Cell<bool>,
    /// The feature `spacemap_v2` is enabled: two-word entries may be written.
    pub(crate) two_words: Cell<bool>,
    /// The feature `log_spacemap` is enabled: changes are appended to a log of their txg, not to the maps.
    logging: Cell<bool>,
    vdevs: RefCell<BTreeMap<u32, VdevMaps>>,
    /// The logs, and what they say beyond the maps.
    logs: RefCell<LogSpaceMaps>,
    /// Tables that count references to blocks with more than one.
    dedup: RefCell<Option<Rc<DedupTables>>>,
    clones: RefCell<Option<Rc<BlockReferenceTables>>>,
    /// What a checkpoint keeps, by vdev.
    pub(crate) checkpoint_maps: RefCell<BTreeMap<u32, CheckpointMap>>,
}

impl SpaceMaps {
    /// Makes the maps of a pool without any yet.
    pub(crate) fn new(mos: Objset, tree: &Tree, features: SpaceFeatures) -> Self {
        Self {
            mos,
            tree: tree.clone(),
            histogram: Cell::new(features.histogram),
            two_words: Cell::new(features.two_words),
            logging: Cell::new(features.logs),
            vdevs: RefCell::default(),
            logs: RefCell::default(),
            dedup: RefCell::default(),
            clones: RefCell::default(),
            checkpoint_maps: RefCell::default(),
        }
    }

    /// Takes over the logs found at import. Before the vdevs are opened.
    pub(crate) fn set_logs(&self, logs: LogSpaceMaps) {
        *self.logs.borrow_mut() = logs;
    }

    /// Takes over the tables of shared blocks found at import.
    pub(crate) fn set_tables(&self, dedup: DedupTables, clones: BlockReferenceTables) {
        *self.dedup.borrow_mut() = Some(Rc::new(dedup));
        *self.clones.borrow_mut() = Some(Rc::new(clones));
    }

    /// Returns the deduplication tables.
    pub(crate) fn dedup(&self) -> Option<Rc<DedupTables>> {
        self.dedup.borrow().clone()
    }

    /// Returns the tables of cloned blocks.
    pub(crate) fn clones(&self) -> Option<Rc<BlockReferenceTables>> {
        self.clones.borrow().clone()
    }

    /// Writes what changed in the tables of shared blocks; returns blocks to be freed.
    pub(crate) async fn write_tables(
        &self,
        features: &Features,
        tx: &Tx,
    ) -> Result<Vec<BlockPointer>, PoolError> {
        assert!(tx.is_syncing(), "write tables happens in syncing context");
        let (dedup, clones) = (self.dedup.borrow().clone(), self.clones.borrow().clone());
        if let Some(clones) = clones {
            clones.write(features, tx).await?;
        }
        match dedup {
            Some(dedup) => dedup.write(features, tx).await,
            None => Ok(Vec::new()),
        }
    }

    /// Counts `more` references to a block that is allocated. The txg that is open now, or the one that syncs, stores them.
    pub(crate) async fn refer(
        &self,
        bp: &BlockPointer,
        dsize: u64,
        more: u64,
    ) -> Result<(), PoolError> {
        let clones = self.clones.borrow().clone();
        let clones =
            clones.ok_or_else(|| PoolError::Corrupt("no tables of cloned blocks".into()))?;
        clones.refer(bp, dsize, more).await
    }

    async fn release(
        &self,
        bp: &BlockPointer,
        dsize: u64,
    ) -> Result<Option<BlockPointer>, PoolError> {
        let (dedup, clones) = (self.dedup.borrow().clone(), self.clones.borrow().clone());
        if let Some(clones) = clones.filter(|clones| clones.may_have(bp))
            && clones.release(bp, dsize).await?
        {
            return Ok(None);
        }
        match dedup.filter(|dedup| dedup.may_have(bp)) {
            Some(dedup) => dedup.release(bp).await,
            None => Ok(Some(*bp)),
        }
    }

    /// Takes note of features enabled later.
    pub(crate) fn set_features(&self, features: SpaceFeatures, fast_dedup: bool) {
        self.histogram.set(features.histogram);
        self.two_words.set(features.two_words);
        self.logging.set(features.logs);
        if let Some(dedup) = self.dedup() {
            dedup.set_fast(fast_dedup);
        }
    }

    /// Creates the metaslab array of a new top-level vdev and returns its object.
    pub(crate) async fn add_vdev(&self, top: &TopInfo, tx: &Tx) -> Result<ObjectId, PoolError> {
        assert!(tx.is_syncing(), "add vdev happens in syncing context");
        let array = self
            .mos
            .allocate(AllocSpec::new(ObjectType::OBJECT_ARRAY), tx)
            .await?;
        self.vdevs.borrow_mut().insert(
            top.id,
            VdevMaps {
                array,
                ashift: top.ashift,
                layout: top.layout.clone(),
                metaslab_shift: top.metaslab_shift,
                count: top.metaslab_count,
                maps: BTreeMap::new(),
            },
        );
        Ok(array)
    }

    /// Takes note that a top-level vdev has more metaslabs now.
    pub(crate) fn grow_vdev(&self, id: u32, count: u64) {
        if let Some(vdev) = self.vdevs.borrow_mut().get_mut(&id) {
            vdev.count = vdev.count.max(count);
        }
    }

    /// Frees the array and all maps of a top-level vdev that has gone. Returns how many of the maps had a long header.
    pub(crate) async fn remove_vdev(&self, id: u32, tx: &Tx) -> Result<u64, PoolError> {
        assert!(tx.is_syncing(), "remove vdev happens in syncing context");
        let removed = self.vdevs.borrow_mut().remove(&id);
        self.logs.borrow_mut().forget_vdev(id);
        match removed {
            Some(vdev) => self.free_maps(vdev.array, vdev.count, tx).await,
            None => Ok(0),
        }
    }

    /// Frees an array of `count` metaslabs and its maps. Returns how many of the maps had a long header.
    pub(crate) async fn free_maps(
        &self,
        array: ObjectId,
        count: u64,
        tx: &Tx,
    ) -> Result<u64, PoolError> {
        assert!(tx.is_syncing(), "free maps happens in syncing context");
        if array.0 == 0 {
            return Ok(0);
        }
        let bytes = self.mos.read(array, 0, index(8 * count)).await?;
        let mut long_headers = 0;
        for metaslab in 0..count {
            let object = ObjectId(u64_at(&bytes, index(8 * metaslab)));
            if object.0 != 0 {
                let header = space_map::header(&self.mos, object).await?;
                long_headers += u64::from(header.histogram.is_some());
                self.mos.free_object(object, tx).await?;
            }
        }
        self.mos.free_object(array, tx).await?;
        Ok(long_headers)
    }

    /// Reads the array and all headers of a top-level vdev, and returns what the allocator wants to
    /// know of each metaslab that was ever used.
    pub(crate) async fn open_vdev(&self, top: &TopInfo) -> Result<Vec<MetaslabSummary>, PoolError> {
        let array = ObjectId(top.metaslab_array);
        let mut vdev = VdevMaps {
            array,
            ashift: top.ashift,
            layout: top.layout.clone(),
            metaslab_shift: top.metaslab_shift,
            count: top.metaslab_count,
            maps: BTreeMap::new(),
        };
        let mut summaries = Vec::new();
        if array.0 != 0 {
            let bytes = self
                .mos
                .read(array, 0, index(8 * top.metaslab_count))
                .await?;
            for metaslab in 0..top.metaslab_count {
                let object = ObjectId(u64_at(&bytes, index(8 * metaslab)));
                if object.0 == 0 {
                    continue;
                }
                let header = space_map::header(&self.mos, object).await?;
                let block_size = self.mos.object_info(object).await?.block_size;
                let metaslab = u32::try_from(metaslab)
                    .map_err(|_| PoolError::Corrupt("too many metaslabs".into()))?;
                let logs = self.logs.borrow();
                let logged = logs.changes_of((top.id, metaslab));
                let balance = logged.map_or(0, Unflushed::balance);
                let allocated = header.allocated.saturating_add(balance);
                summaries.push(MetaslabSummary {
                    vdev: top.id,
                    metaslab,
                    allocated: u64::try_from(allocated).unwrap_or(0),
                    untouched: header.length == 0 && logged.is_none(),
                });
                drop(logs);
                vdev.maps.insert(
                    metaslab,
                    MetaslabMap {
                        object,
                        header,
                        block_size,
                    },
                );
            }
        }
        self.vdevs.borrow_mut().insert(top.id, vdev);
        Ok(summaries)
    }

    /// Returns the fragmentation of a top-level vdev's free space in percent, `None` when too few
    /// maps keep histograms.
    pub(crate) fn fragmentation(&self, id: u32) -> Option<u64> {
        let vdevs = self.vdevs.borrow();
        let vdev = vdevs.get(&id)?;
        let logs = self.logs.borrow();
        let size = 1u64 << vdev.metaslab_shift;
        let untouched = vdev.count - ondisk::bytes::len64(vdev.maps.len());
        // Metaslabs never used are free as a whole and not fragmented.
        let mut known = untouched;
        let mut free_total = u128::from(untouched) * u128::from(size);
        let mut weighted = 0u128;
        for (&metaslab, map) in &vdev.maps {
            let Some(percent) = map.fragmentation(vdev.ashift) else {
                continue;
            };
            known += 1;
            let logged = logs.changes_of((id, metaslab));
            let allocated = map.header.allocated + logged.map_or(0, Unflushed::balance);
            let free = size.saturating_sub(u64::try_from(allocated).unwrap_or(0));
            free_total += u128::from(free);
            weighted += u128::from(free) * u128::from(percent);
        }
        if known < vdev.count.div_ceil(2) || free_total == 0 {
            return None;
        }
        u64::try_from(weighted / free_total).ok()
    }

    /// Returns the free segments of a top-level vdev counted by log2 of their bytes, as far as its maps keep histograms;
    /// `None` when too few do.
    pub(crate) fn free_segments(&self, id: u32) -> Option<[u64; 64]> {
        self.fragmentation(id)?;
        let vdevs = self.vdevs.borrow();
        let vdev = vdevs.get(&id)?;
        let mut counts = [0; 64];
        for map in vdev.maps.values() {
            let buckets = map.header.histogram.iter().flatten();
            for (count, bucket) in counts[usize::from(vdev.ashift)..].iter_mut().zip(buckets) {
                *count += bucket;
            }
        }
        Some(counts)
    }

    /// Stores the changes of one pass of `txg`: in its log, or in the maps of a pool without logs.
    pub(crate) async fn write(
        &self,
        store: &BlockStore,
        features: &Features,
        (txg, pass): (Txg, u32),
        changes: Vec<MetaslabChange>,
        tx: &Tx,
    ) -> Result<(), PoolError> {
        assert!(tx.is_syncing(), "write happens in syncing context");
        if self.logging.get() {
            return self
                .write_log(store, features, (txg, pass), changes, tx)
                .await;
        }
        for change in changes {
            let key = (change.vdev, change.metaslab);
            let (mut map, scale) = self.map_of(key, features, tx).await?;
            let free = match pass == 1 && is_to_condense(&map, store, key) {
                true => Some(store.free_ranges(key.0, key.1).await?),
                false => None,
            };
            let at = (txg, pass);
            if let Some(free) = free {
                self.condense(&mut map, scale, at, free, tx).await?;
            } else {
                let (allocs, frees) = (&change.allocs, &change.frees);
                self.append(&mut map, scale, at, allocs, frees, tx).await?;
            }
            count_segments(&mut map, store, key, scale);
            space_map::set_header(&self.mos, map.object, &map.header, tx).await?;
            self.put_map(key, map);
        }
        Ok(())
    }

    /// Writes a map anew, with as few entries as what is free needs.
    async fn condense(
        &self,
        map: &mut MetaslabMap,
        scale: Scale,
        (txg, pass): (Txg, u32),
        free: Vec<Range<u64>>,
        tx: &Tx,
    ) -> Result<(), PoolError> {
        assert!(tx.is_syncing(), "condense happens in syncing context");
        let free: RangeTree = free.into_iter().collect();
        space_map::truncate(&self.mos, map.object, &mut map.header, tx).await?;
        let mut encoder = Encoder::new(scale, &map.header, map.block_size, self.two_words.get());
        encoder.batch(MapType::Alloc, txg.0, pass);
        for range in free.gaps(&(scale.start..scale.start + scale.size)) {
            encoder.range(MapType::Alloc, &range);
        }
        encoder
            .append(&self.mos, map.object, &mut map.header, tx)
            .await
    }

    /// Returns a metaslab's map, made now if it has none, and where it is.
    async fn map_of(
        &self,
        (id, metaslab): Key,
        features: &Features,
        tx: &Tx,
    ) -> Result<(MetaslabMap, Scale), PoolError> {
        let (array, scale, known) = {
            let vdevs = self.vdevs.borrow();
            let vdev = vdevs.get(&id).expect("changes are of vdevs the pool has");
            assert!(
                u64::from(metaslab) < vdev.count,
                "changes are of metaslabs the vdev has"
            );
            (
                vdev.array,
                vdev.scale(metaslab),
                vdev.maps.get(&metaslab).cloned(),
            )
        };
        if let Some(map) = known {
            return Ok((map, scale));
        }
        let block_size = match self.logging.get() {
            true => log_space_map::BLOCK_SIZE,
            false => space_map::BLOCK_SIZE,
        };
        let (object, header) = self.create_map(block_size, features, tx).await?;
        let slot = 8 * u64::from(metaslab);
        self.mos
            .write(array, slot, &of_u64s(&[object.0]), tx)
            .await?;
        let map = MetaslabMap {
            object,
            header,
            block_size,
        };
        Ok((map, scale))
    }

    /// Creates a map, with a long header where the pool has them.
    async fn create_map(
        &self,
        block_size: u32,
        features: &Features,
        tx: &Tx,
    ) -> Result<(ObjectId, Header), PoolError> {
        assert!(tx.is_syncing(), "create map happens in syncing context");
        let histogram = self.histogram.get();
        if histogram {
            features.incr("spacemap_histogram", tx).await?;
        }
        space_map::create_with(&self.mos, histogram, block_size, tx).await
    }

    fn put_map(&self, (id, metaslab): Key, map: MetaslabMap) {
        let mut vdevs = self.vdevs.borrow_mut();
        let vdev = vdevs
            .get_mut(&id)
            .expect("vdevs do not vanish during a sync");
        assert!(
            u64::from(metaslab) < vdev.count && map.object.0 != 0,
            "metaslab {metaslab} of vdev {id} has a map"
        );
        vdev.maps.insert(metaslab, map);
    }

    async fn append(
        &self,
        map: &mut MetaslabMap,
        scale: Scale,
        (txg, pass): (Txg, u32),
        allocs: &[Range<u64>],
        frees: &[Range<u64>],
        tx: &Tx,
    ) -> Result<(), PoolError> {
        assert!(tx.is_syncing(), "append happens in syncing context");
        let mut encoder = Encoder::new(scale, &map.header, map.block_size, self.two_words.get());
        for (kind, ranges) in [(MapType::Alloc, allocs), (MapType::Free, frees)] {
            if ranges.is_empty() {
                continue;
            }
            encoder.batch(kind, txg.0, pass);
            for range in ranges {
                encoder.range(kind, range);
            }
        }
        encoder
            .append(&self.mos, map.object, &mut map.header, tx)
            .await
    }

    async fn free_ranges(&self, id: u32, metaslab: u32) -> Result<Vec<Range<u64>>, PoolError> {
        let (scale, map) = {
            let vdevs = self.vdevs.borrow();
            let Some(vdev) = vdevs.get(&id) else {
                return Err(PoolError::Corrupt(format!("no vdev {id}")));
            };
            (vdev.scale(metaslab), vdev.maps.get(&metaslab).cloned())
        };
        // Taken together with the map's header, before anything is waited for.
        let logged = self.logs.borrow().changes_of((id, metaslab)).cloned();
        let whole = scale.start..scale.start + scale.size;
        let mut allocated = match map {
            None => RangeTree::default(),
            Some(map) => space_map::load(&self.mos, map.object, &map.header, scale).await?,
        };
        if let Some(logged) = logged {
            let bad = |Mismatch| PoolError::Corrupt("a log contradicts the space map".into());
            for range in logged.allocs.iter() {
                allocated.add(range).map_err(bad)?;
            }
            for range in logged.frees.iter() {
                allocated.remove(&range).map_err(bad)?;
            }
        }
        Ok(allocated.gaps(&whole))
    }
}

/// The space maps as the block store asks for them. The maps lie in the meta-objset, which holds the store: the store
/// must not hold them in turn, or no pool would ever be let go.
pub(crate) struct SpaceMapSource(Weak<SpaceMaps>);

impl SpaceMapSource {
    pub(crate) fn of(maps: &Rc<SpaceMaps>) -> Rc<Self> {
        Rc::new(Self(Rc::downgrade(maps)))
    }
}

impl MetaSource for SpaceMapSource {
    fn load_space_map(
        &self,
        vdev: u32,
        metaslab: u32,
    ) -> Pin<Box<dyn Future<Output = Result<Vec<Range<u64>>, ZioError>> + '_>> {
        Box::pin(async move {
            let fail = |reason: String| ZioError::SpaceMap {
                vdev,
                metaslab,
                reason,
            };
            let maps = self.0.upgrade().ok_or_else(|| fail(CLOSED.to_owned()))?;
            maps.free_ranges(vdev, metaslab)
                .await
                .map_err(|error| fail(error.to_string()))
        })
    }

    fn may_be_shared(&self, bp: &BlockPointer) -> bool {
        self.0.upgrade().is_some_and(|maps| {
            let clones = maps.clones.borrow();
            let dedup = maps.dedup.borrow();
            clones.as_ref().is_some_and(|clones| clones.may_have(bp))
                || dedup.as_ref().is_some_and(|dedup| dedup.may_have(bp))
        })
    }

    fn release<'a>(&'a self, bp: &'a BlockPointer, dsize: u64) -> Release<'a> {
        Box::pin(async move {
            let fail = |reason: String| ZioError::References { reason };
            let maps = self.0.upgrade().ok_or_else(|| fail(CLOSED.to_owned()))?;
            maps.release(bp, dsize)
                .await
                .map_err(|error| fail(error.to_string()))
        })
    }

    fn share<'a>(&'a self, wanted: &'a BlockPointer, copies: u8) -> Share<'a> {
        Box::pin(async move {
            let fail = |reason: String| ZioError::References { reason };
            let maps = self.0.upgrade().ok_or_else(|| fail(CLOSED.to_owned()))?;
            let Some(dedup) = maps.dedup() else {
                return Ok(Sharing::Refused);
            };
            let shared = dedup.share(wanted, copies).await;
            shared.map_err(|error| fail(error.to_string()))
        })
    }

    fn note_written(&self, bp: &BlockPointer, copies: u8) -> bool {
        let dedup = self.0.upgrade().and_then(|maps| maps.dedup());
        dedup.is_some_and(|dedup| dedup.note_written(bp, copies))
    }

    fn check_reference<'a>(&'a self, bp: &'a BlockPointer) -> CheckReference<'a> {
        Box::pin(async move {
            let fail = |reason: String| ZioError::References { reason };
            let maps = self.0.upgrade().ok_or_else(|| fail(CLOSED.to_owned()))?;
            let clones = maps.clones.borrow().clone();
            let clones = clones.ok_or_else(|| fail("no tables of cloned blocks".to_owned()))?;
            let checked = clones.check(bp).await;
            checked.map_err(|error| fail(error.to_string()))
        })
    }

    fn saved_bytes(&self) -> u64 {
        self.0.upgrade().map_or(0, |maps| {
            let clones = maps.clones.borrow();
            let dedup = maps.dedup.borrow();
            let saved = dedup.as_ref().map_or(0, |dedup| dedup.saved_bytes());
            saved.saturating_add(clones.as_ref().map_or(0, |clones| clones.saved_bytes()))
        })
    }
}
