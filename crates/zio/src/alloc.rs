//! The allocator of the pool: which vdev, which metaslab, which bytes; frees, deferral, accounting.
//!
//! Allocation is synchronous and mostly a pointer bump: each vdev has a few *cursors* (data, metadata, second and third
//! copies), and each cursor holds a run of free space taken out of one metaslab. Only a used-up run costs a search.
//! Guarantees: no byte is handed out twice before it was freed and two further txgs have synced; the copies of a block
//! go to different vdevs, else different metaslabs, as long as there are any.
//! Does not know I/O; when a space map must be read first it says so ([`AllocStep::Load`]).

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::ops::Range;
use std::pin::Pin;

use ondisk::{BlockPointer, Dva, Txg};
use range_tree::Mismatch;
use vdev::{AllocationBias, TopInfo};

use crate::ZioError;
use crate::checkpoint::{CheckpointFrees, PendingCheckpointFrees};
use crate::metaslab::Metaslab;
use crate::removal_frees::RemovalFrees;

/// Where the allocator learns the free space of a metaslab, and a free how often a block is referenced. Implemented by
/// the pool, which keeps space maps and tables of shared blocks in its meta-objset.
pub trait MetaSource {
    /// Returns the free ranges of a metaslab (bytes of the top-level vdev, sorted, not touching) as of the last synced
    /// txg or later. Must not allocate and must not wait for a txg sync.
    fn load_space_map(&self, vdev: u32, metaslab: u32) -> LoadSpaceMap<'_>;

    /// Whether other pointers may refer to the same block (deduplicated or cloned), so that a free must ask
    /// [`MetaSource::release`]. Quick; may say yes in vain.
    fn may_be_shared(&self, bp: &BlockPointer) -> bool {
        let _ = bp;
        false
    }

    /// Gives up one reference to a block that may be shared, while a txg syncs. Returns the block to be freed instead
    /// of it, `None` when others refer to it still. `dsize` is what the block counts in space accounting.
    fn release<'a>(&'a self, bp: &'a BlockPointer, dsize: u64) -> Release<'a> {
        let _ = dsize;
        Box::pin(async move { Ok(Some(*bp)) })
    }

    /// Checks that one more reference to a block can be counted, and given back later.
    fn check_reference<'a>(&'a self, bp: &'a BlockPointer) -> CheckReference<'a> {
        let _ = bp;
        Box::pin(async { Ok(()) })
    }

    /// Looks for a stored block that equals `wanted`, a pointer without places, and counts one more reference to it, while a
    /// txg syncs. One call at a time for blocks of one checksum.
    fn share<'a>(&'a self, wanted: &'a BlockPointer, copies: u8) -> Share<'a> {
        let _ = (wanted, copies);
        Box::pin(async { Ok(Sharing::Refused) })
    }

    /// Notes a block that was written because [`MetaSource::share`] found none like it for so many `copies`: it has one
    /// reference. Returns whether it can be shared: it may have fewer places than that, or as a gang more.
    fn note_written(&self, bp: &BlockPointer, copies: u8) -> bool {
        let _ = (bp, copies);
        false
    }

    /// Returns the (deflated) bytes that shared blocks would take more, if each reference had a block of its own:
    /// datasets are charged for them, so they count as room for datasets.
    fn saved_bytes(&self) -> u64 {
        0
    }
}

/// Future of [`MetaSource::release`].
pub type Release<'a> = Pin<Box<dyn Future<Output = Result<Option<BlockPointer>, ZioError>> + 'a>>;

/// Whether a block that is to be written is stored already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sharing {
    /// It is: at these places, written in this txg. It has one more reference now.
    Shared([Dva; 3], Txg),
    /// It is not, and can be shared once it is written and noted.
    New,
    /// It cannot be shared, and is to be written as any other.
    Refused,
}

/// Future of [`MetaSource::share`].
pub type Share<'a> = Pin<Box<dyn Future<Output = Result<Sharing, ZioError>> + 'a>>;

/// Future of [`MetaSource::check_reference`].
pub type CheckReference<'a> = Pin<Box<dyn Future<Output = Result<(), ZioError>> + 'a>>;

/// Future of [`MetaSource::load_space_map`].
pub type LoadSpaceMap<'a> = Pin<Box<dyn Future<Output = Result<Vec<Range<u64>>, ZioError>> + 'a>>;

/// What the pool knows of a metaslab before its space map is loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MetaslabSummary {
    /// Top-level vdev.
    pub vdev: u32,
    /// Index.
    pub metaslab: u32,
    /// Bytes allocated (`smp_alloc`, with unflushed log entries applied).
    pub allocated: u64,
    /// True if the metaslab has no space map yet: it is free as a whole and needs no load.
    pub untouched: bool,
}

/// Changes of one metaslab in one txg, to be appended to its space map: all `allocs`, then all `frees`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MetaslabChange {
    /// Top-level vdev.
    pub vdev: u32,
    /// Index.
    pub metaslab: u32,
    /// Ranges allocated, bytes of the top-level vdev, sorted, merged.
    pub allocs: Vec<Range<u64>>,
    /// Ranges freed, bytes of the top-level vdev, sorted, merged.
    pub frees: Vec<Range<u64>>,
}

/// Space of the pool in bytes (raw, as the devices see it).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Space {
    /// Sum of all whole metaslabs of vdevs that hold data.
    pub size: u64,
    /// Allocated, as the space maps count: freed space is subtracted at once.
    pub allocated: u64,
    /// Free and usable now: `size - allocated - deferred`.
    pub free: u64,
    /// Freed, waiting for two further txgs before it can be used.
    pub deferred: u64,
    /// `size` times the deflate ratio: what datasets see as pool size.
    pub deflated_size: u64,
    /// Space kept back so that a full pool can still be worked on: dataset writes stop at `deflated_size - slop`.
    pub slop: u64,
}

/// Longest run a cursor takes at once, in a metaslab of 1 GiB or more; a smaller one is a run's size times 2 to the `RUN_SHIFT`, so
/// that what is left of the runs hardly counts as fragmentation.
const RUN_BYTES_MAX: u64 = 16 << 20;
const RUN_SHIFT: u8 = 6;
/// A metaslab whose longest free run is shorter counts as fragmented.
const RUN_BYTES_GOOD: u64 = 1 << 20;
/// Refills from the same metaslab before the others are looked at again.
const REFILLS_BEFORE_SCAN: u32 = 64;
/// Txgs without an allocation after which a metaslab may be unloaded.
// OpenZFS: module/zfs/metaslab.c, metaslab_unload_delay (32)
const IDLE_TXGS: u64 = 32;
/// Bytes placed on one vdev before the next one's turn, for a vdev of average fullness. OpenZFS: 1 MiB times children.
const ROTOR_BYTES: u64 = 1 << 20;
/// The slop rule of OpenZFS (`spa_slop_shift`, `spa_min_slop`, `spa_max_slop`).
const SLOP_SHIFT: u32 = 5;
const SLOP_MIN: u64 = 128 << 20;
const SLOP_MAX: u64 = 128 << 30;
const _: () = assert!(RUN_BYTES_GOOD <= RUN_BYTES_MAX && ROTOR_BYTES >= 16);
const _: () = assert!(SLOP_MIN < SLOP_MAX);

/// Where consecutive blocks of one kind go. Also the index into a vdev's cursors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AllocCursor {
    Data = 0,
    Metadata = 1,
    SecondCopy = 2,
    ThirdCopy = 3,
    Log = 4,
}

const CURSORS: usize = 5;
const _: () = assert!(AllocCursor::Log as usize + 1 == CURSORS);

/// Whether two cursors fill the same metaslab, each in runs of its own. First copies do, so that a vdev has one active metaslab for
/// them; second and third copies must be elsewhere, and blocks of the log, which live for seconds, would leave holes.
// OpenZFS: module/zfs/metaslab.c, metaslab_group_alloc_normal: one primary metaslab an allocator, one secondary
fn share_metaslab(one: usize, other: usize) -> bool {
    let first_copy = |at| at == AllocCursor::Data as usize || at == AllocCursor::Metadata as usize;
    one == other || (first_copy(one) && first_copy(other))
}
/// Percent of the special vdevs that file data leaves to metadata.
// OpenZFS: module/zfs/spa_misc.c, zfs_special_class_metadata_reserve_pct
const SPECIAL_RESERVE_PERCENT: u64 = 25;
const _: () = assert!(SPECIAL_RESERVE_PERCENT < 100);

/// The vdevs of one allocation class, which take turns.
#[derive(Debug, Default)]
struct ClassRotor {
    /// Ids in rotor order.
    ids: Vec<u32>,
    /// Index in `ids` of the vdev whose turn it is.
    next: usize,
    /// Bytes to be placed before the next vdev's turn.
    bytes_left: u64,
}

/// Sizes of stored blocks, in bytes: a smaller one than the least saves nothing, and above it only whole steps do.
// OpenZFS: module/zfs/vdev.c, vdev_spa_set_alloc; module/zfs/zio.c, zio_roundup_alloc_size
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sizes {
    pub(crate) least: u64,
    pub(crate) step: u64,
}

impl Default for Sizes {
    fn default() -> Self {
        Self::of(512)
    }
}

impl Sizes {
    pub(crate) fn of(size: u64) -> Self {
        Self {
            least: size,
            step: size,
        }
    }

    /// Returns the size to be stored for so many bytes.
    pub(crate) fn round_up(self, bytes: usize) -> usize {
        let rounded = if bytes as u64 > self.least {
            (bytes as u64).next_multiple_of(self.step)
        } else {
            self.least
        };
        usize::try_from(rounded).expect("blocks are at most 16 MiB, and steps less")
    }
}

fn common_divisor(mut one: u64, mut other: u64) -> u64 {
    while other != 0 {
        (one, other) = (other, one % other);
    }
    one
}

/// What a block is, as far as its class depends on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Placement {
    /// Data of files and volumes.
    Data,
    /// Data of files small enough for special vdevs.
    SmallFile,
    /// Metadata, indirect blocks of data included.
    Metadata,
    /// A deduplication table.
    Dedup,
}

/// What to do next for an allocation.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum AllocStep {
    /// All copies have a place.
    Done,
    /// Load this metaslab and ask again.
    Load { vdev: u32, metaslab: u32 },
    /// There is no room.
    Full,
}

/// An allocation under way.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) txg: Txg,
    pub(crate) psize: u64,
    pub(crate) copies: u8,
    pub(crate) cursor: AllocCursor,
    /// Vdevs tried first; ordinary ones take what does not fit there.
    pub(crate) class: AllocationBias,
    /// Ordinary vdevs do not take it: it fits its class or nothing.
    pub(crate) only_class: bool,
    /// Places found so far.
    pub(crate) dvas: Vec<Dva>,
}

#[derive(Debug)]
struct FreeRun {
    metaslab: u32,
    next: u64,
    end: u64,
}

#[derive(Debug)]
struct VdevSpace {
    ashift: u8,
    layout: vdev::Layout,
    shift: u8,
    deflate: u64,
    bias: AllocationBias,
    metaslabs: Vec<Metaslab>,
    /// Sums over the metaslabs, so that they need not be walked.
    allocated: u64,
    deferred: u64,
    runs: [Option<FreeRun>; CURSORS],
    /// Metaslab a cursor allocates from, and refills left before a new choice.
    active: [Option<(u32, u32)>; CURSORS],
}

enum TakeResult {
    Done(u64),
    Load(u32),
    Full,
}

/// The space of a pool.
#[derive(Debug)]
pub(crate) struct Allocator {
    vdevs: BTreeMap<u32, VdevSpace>,
    /// Vdevs that take new blocks, by class.
    classes: BTreeMap<AllocationBias, ClassRotor>,
    /// Metaslabs with changes that were not taken, by txg.
    changed: BTreeMap<Txg, BTreeSet<(u32, u32)>>,
    /// Metaslabs with frees that are not usable yet.
    deferring: BTreeSet<(u32, u32)>,
    /// Log vdevs whose devices do not take writes now.
    closed_logs: BTreeSet<u32>,
    /// Freed, but still allocated for a checkpoint.
    checkpoint_frees: PendingCheckpointFrees,
    /// Vdevs that take no new blocks: datasets cannot count on their room.
    idle: BTreeSet<u32>,
    /// What was freed on vdevs that were, or are being, removed.
    pub(crate) removal_frees: RemovalFrees,
}

impl Allocator {
    pub(crate) fn new(tops: &[(TopInfo, u64)], summaries: &[MetaslabSummary]) -> Self {
        let known: BTreeMap<(u32, u32), &MetaslabSummary> = summaries
            .iter()
            .map(|s| ((s.vdev, s.metaslab), s))
            .collect();
        let mut allocator = Self {
            vdevs: BTreeMap::new(),
            classes: BTreeMap::new(),
            changed: BTreeMap::new(),
            deferring: BTreeSet::new(),
            closed_logs: BTreeSet::new(),
            checkpoint_frees: PendingCheckpointFrees::default(),
            idle: BTreeSet::new(),
            removal_frees: RemovalFrees::default(),
        };
        for (top, deflate) in tops {
            allocator.add(top, *deflate, &known);
        }
        allocator
    }

    /// Adds a vdev that holds nothing.
    pub(crate) fn add_vdev(&mut self, top: &TopInfo, deflate: u64) {
        self.add(top, deflate, &BTreeMap::new());
    }

    /// Stops or resumes placing new blocks on a vdev.
    pub(crate) fn set_allocating(&mut self, vdev: u32, allocating: bool) {
        let Some(space) = self.vdevs.get_mut(&vdev) else {
            return;
        };
        let bias = space.bias;
        if allocating {
            self.idle.remove(&vdev);
            let rotor = self.classes.entry(bias).or_default();
            if !rotor.ids.contains(&vdev) {
                rotor.ids.push(vdev);
                rotor.bytes_left = ROTOR_BYTES;
            }
            return;
        }
        self.idle.insert(vdev);
        space.return_runs();
        space.active = [None; CURSORS];
        if let Some(rotor) = self.classes.get_mut(&bias) {
            rotor.ids.retain(|id| *id != vdev);
            rotor.next = 0;
            rotor.bytes_left = ROTOR_BYTES;
            if rotor.ids.is_empty() {
                self.classes.remove(&bias);
            }
        }
    }

    /// Whether a vdev takes no new blocks.
    pub(crate) fn is_idle(&self, vdev: u32) -> bool {
        self.idle.contains(&vdev)
    }

    /// Gives a vdev the free metaslabs that it lacks up to `count`.
    pub(crate) fn grow_vdev(&mut self, vdev: u32, count: u64) {
        let Some(space) = self.vdevs.get_mut(&vdev) else {
            return;
        };
        for index in space.metaslabs.len() as u64..count.min(u64::from(u32::MAX)) {
            let span = space.layout.metaslab_span(space.ashift, space.shift, index);
            space
                .metaslabs
                .push(Metaslab::new(span.start, span.end - span.start, 0, true));
        }
    }

    /// Has blocks placed from now on take what they do in this layout.
    pub(crate) fn set_layout(&mut self, vdev: u32, layout: vdev::Layout) {
        if let Some(space) = self.vdevs.get_mut(&vdev) {
            space.layout = layout;
        }
    }

    /// Forgets a vdev that holds nothing any more.
    pub(crate) fn remove_vdev(&mut self, vdev: u32) {
        self.set_allocating(vdev, false);
        self.vdevs.remove(&vdev);
        self.idle.remove(&vdev);
        self.deferring.retain(|(id, _)| *id != vdev);
        for keys in self.changed.values_mut() {
            keys.retain(|(id, _)| *id != vdev);
        }
    }

    fn add(&mut self, top: &TopInfo, deflate: u64, known: &BTreeMap<(u32, u32), &MetaslabSummary>) {
        let count = u32::try_from(top.metaslab_count).unwrap_or(u32::MAX);
        let metaslabs: Vec<Metaslab> = (0..count)
            .map(|index| {
                let span = top.metaslab_span(u64::from(index));
                let (start, size) = (span.start, span.end - span.start);
                match known.get(&(top.id, index)) {
                    Some(s) => Metaslab::new(start, size, s.allocated.min(size), s.untouched),
                    None => Metaslab::new(start, size, 0, true),
                }
            })
            .collect();
        if top.allocating {
            let rotor = self.classes.entry(top.bias).or_default();
            rotor.ids.push(top.id);
            rotor.bytes_left = ROTOR_BYTES;
        } else {
            self.idle.insert(top.id);
        }
        self.vdevs.insert(
            top.id,
            VdevSpace {
                ashift: top.ashift,
                layout: top.layout.clone(),
                shift: top.metaslab_shift,
                deflate,
                bias: top.bias,
                allocated: metaslabs.iter().map(|metaslab| metaslab.allocated).sum(),
                deferred: 0,
                metaslabs,
                runs: [const { None }; CURSORS],
                active: [None; CURSORS],
            },
        );
    }

    /// The sizes that blocks should have, as far as there is a choice.
    pub(crate) fn sizes(&self) -> Sizes {
        let normal = self.classes.get(&AllocationBias::None);
        let mut sizes = normal
            .iter()
            .flat_map(|rotor| &rotor.ids)
            .filter_map(|id| self.vdevs.get(id))
            .map(|v| v.layout.least_psize(v.ashift));
        let Some(first) = sizes.next() else {
            return Sizes::default();
        };
        sizes.fold(Sizes::of(first), |all, next| Sizes {
            least: all.least.min(next),
            step: common_divisor(all.step, next),
        })
    }

    /// Returns the vdevs that take intent logs and nothing else.
    pub(crate) fn log_vdevs(&self) -> Vec<u32> {
        let logs = self.classes.get(&AllocationBias::Log);
        logs.map(|rotor| rotor.ids.clone()).unwrap_or_default()
    }

    /// Says which log vdevs do not take writes now.
    pub(crate) fn close_logs(&mut self, closed: BTreeSet<u32>) {
        self.closed_logs = closed;
    }

    /// Returns the class a block goes to first.
    // OpenZFS: module/zfs/spa_misc.c, spa_preferred_class
    pub(crate) fn preferred(&self, kind: Placement) -> AllocationBias {
        let has = |class| self.classes.contains_key(&class);
        let special = || {
            if has(AllocationBias::Special) {
                AllocationBias::Special
            } else {
                AllocationBias::None
            }
        };
        match kind {
            Placement::Dedup if has(AllocationBias::Dedup) => AllocationBias::Dedup,
            Placement::Dedup | Placement::Metadata => special(),
            Placement::SmallFile => {
                let space = self.class_space(AllocationBias::Special);
                let limit = space.size / 100 * (100 - SPECIAL_RESERVE_PERCENT);
                if space.allocated < limit {
                    special()
                } else {
                    AllocationBias::None
                }
            }
            Placement::Data => AllocationBias::None,
        }
    }

    /// Continues an allocation. On [`AllocStep::Full`] places found so far stay in the request (for [`Allocator::undo`]);
    /// a block that has its first copy is content with fewer than it asked for.
    pub(crate) fn step(&mut self, request: &mut Request) -> AllocStep {
        while request.dvas.len() < usize::from(request.copies) {
            match self.place(request) {
                Ok(dva) => request.dvas.push(dva),
                Err(AllocStep::Full) if !request.dvas.is_empty() => break,
                Err(step) => return step,
            }
        }
        AllocStep::Done
    }

    /// Takes back the places of a request nothing was written to.
    pub(crate) fn undo(&mut self, request: &mut Request) {
        for dva in std::mem::take(&mut request.dvas) {
            let range = dva.offset..dva.offset + dva.asize;
            if let Some(key) = self.key_of(dva.vdev, &range) {
                let undone = self.change(key, |metaslab| metaslab.undo_alloc(request.txg, &range));
                assert!(undone.is_ok(), "the request holds this range");
                self.note_change(request.txg, key);
                self.deferring.insert(key);
            }
        }
    }

    /// Finds the place of one more copy: in the preferred class, then among the ordinary vdevs.
    fn place(&mut self, request: &Request) -> Result<Dva, AllocStep> {
        match self.place_in(request.class, request) {
            Err(AllocStep::Full)
                if request.class != AllocationBias::None && !request.only_class =>
            {
                self.place_in(AllocationBias::None, request)
            }
            result => result,
        }
    }

    fn place_in(&mut self, class: AllocationBias, request: &Request) -> Result<Dva, AllocStep> {
        let Some(rotor) = self.classes.get(&class) else {
            return Err(AllocStep::Full);
        };
        let copy = request.dvas.len();
        let cursor = match (copy, request.cursor) {
            (0, cursor) => cursor,
            (1, _) => AllocCursor::SecondCopy,
            _ => AllocCursor::ThirdCopy,
        };
        let (rotor, count) = (rotor.next, rotor.ids.len());
        let mut wanted_load = None;
        // First round: vdevs without a copy of this block; second round: any.
        for fresh in [true, false] {
            for turn in 0..count {
                let id = self.classes[&class].ids[(rotor + turn + copy) % count];
                if class == AllocationBias::Log && self.closed_logs.contains(&id) {
                    continue;
                }
                let used = request.dvas.iter().any(|dva| dva.vdev == id);
                if used == fresh {
                    continue;
                }
                let vdev = self
                    .vdevs
                    .get_mut(&id)
                    .expect("every rotor entry is a vdev");
                let avoid: Vec<u32> = request
                    .dvas
                    .iter()
                    .filter(|dva| dva.vdev == id)
                    .map(|dva| vdev.metaslab_index(dva.offset))
                    .collect();
                let asize = vdev
                    .layout
                    .asize_in(request.txg, vdev.ashift, request.psize);
                match vdev.take(cursor, asize, &avoid) {
                    TakeResult::Done(offset) => {
                        let key = (id, vdev.metaslab_index(offset));
                        self.change(key, |metaslab| {
                            metaslab.record_alloc(request.txg, offset..offset + asize);
                        });
                        self.note_change(request.txg, key);
                        if copy == 0 {
                            self.advance(class, id, asize);
                        }
                        return Ok(Dva {
                            vdev: id,
                            offset,
                            asize,
                            gang: false,
                        });
                    }
                    TakeResult::Load(metaslab) => {
                        wanted_load.get_or_insert(AllocStep::Load { vdev: id, metaslab });
                        // A vdev that has room after a load is as good as one that has room now, and spreading copies
                        // is worth the read.
                        break;
                    }
                    TakeResult::Full => {}
                }
            }
            if let Some(step) = wanted_load {
                return Err(step);
            }
        }
        Err(AllocStep::Full)
    }

    /// Moves a class's rotor when the vdev has had its share.
    fn advance(&mut self, class: AllocationBias, id: u32, asize: u64) {
        let Some(rotor) = self.classes.get_mut(&class) else {
            return;
        };
        if rotor.ids[rotor.next % rotor.ids.len()] == id && rotor.bytes_left > asize {
            rotor.bytes_left -= asize;
            return;
        }
        let position = rotor.ids.iter().position(|other| *other == id).unwrap_or(0);
        rotor.next = (position + 1) % rotor.ids.len();
        // A vdev with twice the average share of free space gets twice the turn, so that vdevs fill up together.
        let free_share = |id: &u32| {
            let space = self.vdevs.get(id).map(VdevSpace::space).unwrap_or_default();
            (space.free >> 10, (space.size >> 10).max(1))
        };
        let (free, size) = free_share(&rotor.ids[rotor.next]);
        let (all_free, all_size) = rotor
            .ids
            .iter()
            .map(free_share)
            .fold((0, 0), |(free, size), (f, s)| (free + f, size + s));
        let share = u128::from(ROTOR_BYTES) * u128::from(free) * u128::from(all_size.max(1))
            / (u128::from(size) * u128::from(all_free.max(1)));
        let share = u64::try_from(share).unwrap_or(u64::MAX);
        rotor.bytes_left = share.clamp(ROTOR_BYTES / 16, ROTOR_BYTES * 4);
    }

    /// Frees one copy.
    pub(crate) fn free(&mut self, txg: Txg, vdev: u32, range: &Range<u64>) -> Result<(), Mismatch> {
        let key = self.key_of(vdev, range).ok_or(Mismatch)?;
        self.change(key, |metaslab| metaslab.free(txg, range))?;
        self.note_change(txg, key);
        self.deferring.insert(key);
        Ok(())
    }

    /// Records that one copy is freed, but stays allocated for a checkpoint.
    pub(crate) fn free_for_checkpoint(
        &mut self,
        txg: Txg,
        vdev: u32,
        range: &Range<u64>,
    ) -> Result<(), Mismatch> {
        let key = self.key_of(vdev, range).ok_or(Mismatch)?;
        let metaslab = self.metaslab(key.0, key.1).ok_or(Mismatch)?;
        if metaslab.is_known_free(range) {
            return Err(Mismatch);
        }
        self.checkpoint_frees.add(txg, key, range.clone())
    }

    /// Takes the frees of checkpointed blocks in `txg`.
    pub(crate) fn take_checkpoint_frees(&mut self, txg: Txg) -> Vec<CheckpointFrees> {
        self.checkpoint_frees.take(txg)
    }

    /// Allocates a given place. `Ok(Some(..))` names a metaslab to load first.
    pub(crate) fn claim(
        &mut self,
        txg: Txg,
        vdev: u32,
        range: &Range<u64>,
    ) -> Result<Option<(u32, u32)>, Mismatch> {
        let key = self.key_of(vdev, range).ok_or(Mismatch)?;
        let space = self.vdevs.get_mut(&vdev).ok_or(Mismatch)?;
        let metaslab = &space.metaslabs[key.1 as usize];
        if !metaslab.is_loaded() {
            return Ok(Some(key));
        }
        // The place may be inside a run a cursor holds.
        space.return_runs_of(key.1);
        self.change(key, |metaslab| metaslab.claim(txg, range))?;
        self.note_change(txg, key);
        Ok(None)
    }

    /// Returns a metaslab.
    pub(crate) fn metaslab(&mut self, vdev: u32, metaslab: u32) -> Option<&mut Metaslab> {
        self.vdevs
            .get_mut(&vdev)?
            .metaslabs
            .get_mut(metaslab as usize)
    }

    /// Asks a metaslab that has got back what was taken out of it in advance; `None` if there is none, or if it says so.
    pub(crate) fn ask_metaslab<T>(
        &mut self,
        (vdev, metaslab): (u32, u32),
        ask: impl FnOnce(&Metaslab) -> Option<T>,
    ) -> Option<T> {
        let space = self.vdevs.get_mut(&vdev)?;
        space.return_runs_of(metaslab);
        ask(space.metaslabs.get(metaslab as usize)?)
    }

    /// Holds free ranges of a metaslab, from `from` on and at most `most` bytes, but no more than an eighth of what is free
    /// on the vdev.
    pub(crate) fn hold_free(
        &mut self,
        (vdev, metaslab): (u32, u32),
        from: u64,
        most: u64,
    ) -> Vec<Range<u64>> {
        let Some(space) = self.vdevs.get_mut(&vdev) else {
            return Vec::new();
        };
        let least = space.unit();
        let share = space.space().free / 8;
        let most = most.min(share.max(least)) / least * least;
        space.return_runs_of(metaslab);
        match space.metaslabs.get_mut(metaslab as usize) {
            Some(metaslab) => metaslab.hold(from, most),
            None => Vec::new(),
        }
    }

    /// As [`Allocator::hold_free`], of what came free since the last call.
    pub(crate) fn hold_freed(
        &mut self,
        (vdev, metaslab): (u32, u32),
        least: u64,
        most: u64,
    ) -> Vec<Range<u64>> {
        let Some(space) = self.vdevs.get_mut(&vdev) else {
            return Vec::new();
        };
        let unit = space.unit();
        let most = most.min(space.space().free / 8) / unit * unit;
        space.return_runs_of(metaslab);
        match space.metaslabs.get_mut(metaslab as usize) {
            Some(metaslab) => metaslab.hold_freed(least, most),
            None => Vec::new(),
        }
    }

    /// Begins or ends to remember what comes free.
    pub(crate) fn collect_freed(&mut self, on: bool) {
        let metaslabs = self.vdevs.values_mut().flat_map(|vdev| &mut vdev.metaslabs);
        metaslabs.for_each(|metaslab| metaslab.collect_freed(on));
    }

    /// Returns the metaslabs in which something came free.
    pub(crate) fn freed_metaslabs(&self) -> Vec<(u32, u32)> {
        let mut places = Vec::new();
        for (&id, vdev) in &self.vdevs {
            let indices = (0_u32..).zip(&vdev.metaslabs);
            let freed = indices.filter(|(_, metaslab)| metaslab.has_freed());
            places.extend(freed.map(|(index, _)| (id, index)));
        }
        places
    }

    /// Gives all runs back.
    #[cfg(test)]
    fn return_all_runs(&mut self) {
        self.vdevs.values_mut().for_each(VdevSpace::return_runs);
    }

    /// Returns a metaslab's free segments counted by log2 of their size; `None` if it is not loaded.
    pub(crate) fn histogram(&self, vdev: u32, metaslab: u32) -> Option<[u64; 64]> {
        let space = self.vdevs.get(&vdev)?;
        let mut counts = space.metaslabs.get(metaslab as usize)?.histogram()?;
        for run in space
            .runs
            .iter()
            .flatten()
            .filter(|run| run.metaslab == metaslab)
        {
            if run.end > run.next {
                counts[(run.end - run.next).ilog2() as usize] += 1;
            }
        }
        Some(counts)
    }

    /// Takes the changes of `txg`, in order of vdev and metaslab.
    pub(crate) fn take_changes(&mut self, txg: Txg) -> Vec<MetaslabChange> {
        let keys = self.changed.remove(&txg).unwrap_or_default();
        let mut changes = Vec::with_capacity(keys.len());
        for (vdev, metaslab) in keys {
            let Some(mut pending) = self
                .metaslab(vdev, metaslab)
                .and_then(|metaslab| metaslab.take_pending(txg))
            else {
                continue;
            };
            let (allocs, frees) = (pending.allocs.drain(), pending.frees.drain());
            if !(allocs.is_empty() && frees.is_empty()) {
                changes.push(MetaslabChange {
                    vdev,
                    metaslab,
                    allocs,
                    frees,
                });
            }
        }
        changes
    }

    pub(crate) fn has_changes(&self, txg: Txg) -> bool {
        self.checkpoint_frees.has(txg)
            || self.removal_frees.has(txg)
            || self.changed.get(&txg).is_some_and(|keys| {
                keys.iter().any(|&(vdev, metaslab)| {
                    self.vdevs
                        .get(&vdev)
                        .and_then(|space| space.metaslabs.get(metaslab as usize))
                        .is_some_and(|metaslab| metaslab.has_pending(txg))
                })
            })
    }

    /// Makes usable what was freed two txgs before `txg`.
    pub(crate) fn txg_synced(&mut self, txg: Txg) {
        let keys: Vec<(u32, u32)> = self.deferring.iter().copied().collect();
        for (vdev, index) in keys {
            let waiting = self.change((vdev, index), |metaslab| {
                metaslab.txg_synced(txg);
                metaslab.has_deferred()
            });
            if !waiting {
                self.deferring.remove(&(vdev, index));
            }
        }
    }

    /// Unloads metaslabs that were not allocated from for some txgs, longest unused first, until at most `most` ranges
    /// are in memory. Called when `txg` has synced.
    pub(crate) fn unload_idle(&mut self, txg: Txg, most: usize) {
        let mut loaded = 0;
        let mut idle = Vec::new();
        for (&id, vdev) in &self.vdevs {
            for (index, metaslab) in vdev.metaslabs.iter().enumerate() {
                let ranges = metaslab.loaded_ranges();
                loaded += ranges;
                // One range or none is no burden, and a load would cost a read.
                if ranges > 1 && metaslab.used_at().0 + IDLE_TXGS <= txg.0 {
                    let index = u32::try_from(index).expect("metaslab indices fit");
                    idle.push((metaslab.used_at(), id, index, ranges));
                }
            }
        }
        if loaded <= most {
            return;
        }
        idle.sort_unstable();
        for (_, id, index, ranges) in idle {
            if loaded <= most {
                break;
            }
            let vdev = self.vdevs.get_mut(&id).expect("listed just now");
            vdev.return_runs_of(index);
            for active in &mut vdev.active {
                *active = active.filter(|(metaslab, _)| *metaslab != index);
            }
            if vdev.metaslabs[index as usize].unload() {
                loaded -= ranges;
            }
        }
    }

    /// Returns the space of the vdevs that hold data. The size datasets see is that of the ordinary vdevs alone: special
    /// and dedup vdevs only take load off them.
    // OpenZFS: module/zfs/spa_misc.c, spa_update_dspace; module/zfs/spa.c, spa_prop_get_config
    pub(crate) fn space(&self) -> Space {
        let mut sum = Space::default();
        for (id, space) in self
            .vdevs
            .iter()
            .filter(|(_, v)| v.bias != AllocationBias::Log)
        {
            let is_normal = space.bias == AllocationBias::None;
            let is_idle = self.idle.contains(id);
            let mut space = space.space();
            if is_idle {
                space.free = 0;
            }
            sum.add(&space, is_normal && !is_idle);
        }
        sum.slop = slop(sum.deflated_size);
        sum
    }

    /// Returns the space of all vdevs of one class.
    pub(crate) fn class_space(&self, class: AllocationBias) -> Space {
        let mut sum = Space::default();
        for space in self.vdevs.values().filter(|v| v.bias == class) {
            sum.add(&space.space(), true);
        }
        sum
    }

    /// Returns the space of one vdev.
    pub(crate) fn vdev_space(&self, vdev: u32) -> Space {
        self.vdevs
            .get(&vdev)
            .map(VdevSpace::space)
            .unwrap_or_default()
    }

    /// Ends the load of a metaslab.
    pub(crate) fn end_load(
        &mut self,
        vdev: u32,
        metaslab: u32,
        free: Option<&[Range<u64>]>,
    ) -> Result<(), Mismatch> {
        self.metaslab(vdev, metaslab).ok_or(Mismatch)?;
        self.change((vdev, metaslab), |metaslab| match free {
            Some(free) => metaslab.end_load(free),
            None => {
                metaslab.fail_load();
                Ok(())
            }
        })
    }

    /// Changes one metaslab and keeps its vdev's sums.
    fn change<R>(&mut self, key: (u32, u32), change: impl FnOnce(&mut Metaslab) -> R) -> R {
        let space = self.vdevs.get_mut(&key.0).expect("keys name vdevs");
        let metaslab = &mut space.metaslabs[key.1 as usize];
        let (allocated, deferred) = (metaslab.allocated, metaslab.deferred_bytes());
        assert!(
            space.allocated >= allocated && space.deferred >= deferred,
            "the sums of vdev {} count metaslab {}",
            key.0,
            key.1
        );
        let result = change(metaslab);
        space.allocated = space.allocated - allocated + metaslab.allocated;
        space.deferred = space.deferred - deferred + metaslab.deferred_bytes();
        result
    }

    fn note_change(&mut self, txg: Txg, key: (u32, u32)) {
        self.changed.entry(txg).or_default().insert(key);
    }

    /// Returns the key of the metaslab that holds the whole range.
    pub(crate) fn key_of(&self, vdev: u32, range: &Range<u64>) -> Option<(u32, u32)> {
        let space = self.vdevs.get(&vdev)?;
        let unit = (1_u64 << space.ashift) - 1;
        if range.is_empty() || range.start & unit != 0 || range.end & unit != 0 {
            return None;
        }
        let index = u32::try_from(range.start >> space.shift).ok()?;
        let metaslab = space.metaslabs.get(index as usize)?;
        let span = metaslab.span();
        (span.start <= range.start && range.end <= span.end).then_some((vdev, index))
    }
}

impl Space {
    fn add(&mut self, other: &Self, for_datasets: bool) {
        self.size += other.size;
        self.allocated += other.allocated;
        self.free += other.free;
        self.deferred += other.deferred;
        if for_datasets {
            self.deflated_size += other.deflated_size;
        }
    }
}

/// Returns the bytes kept back from datasets, of `size` deflated bytes.
#[must_use]
pub fn slop(size: u64) -> u64 {
    let slop = (size >> SLOP_SHIFT).min(SLOP_MAX);
    slop.max((size >> 1).min(SLOP_MIN))
}

impl VdevSpace {
    fn metaslab_index(&self, offset: u64) -> u32 {
        u32::try_from(offset >> self.shift).expect("offsets handed out are inside the vdev")
    }

    /// What all ranges are multiples of, from the start of their metaslab.
    fn unit(&self) -> u64 {
        self.layout.unit(self.ashift)
    }

    fn space(&self) -> Space {
        let size = self
            .metaslabs
            .iter()
            .map(|metaslab| metaslab.size)
            .sum::<u64>();
        Space {
            size,
            allocated: self.allocated,
            deferred: self.deferred,
            free: size
                .saturating_sub(self.allocated)
                .saturating_sub(self.deferred),
            deflated_size: (size >> 9) * self.deflate,
            slop: 0,
        }
    }

    /// Takes `asize` bytes, preferably outside the metaslabs to avoid.
    fn take(&mut self, cursor: AllocCursor, asize: u64, avoid: &[u32]) -> TakeResult {
        let at = cursor as usize;
        if let Some(run) = &mut self.runs[at]
            && run.end - run.next >= asize
            && !avoid.contains(&run.metaslab)
        {
            let offset = run.next;
            run.next += asize;
            assert!(run.next <= run.end, "a block ends in its run");
            return TakeResult::Done(offset);
        }
        self.return_run(at);
        let mut reclaimed = false;
        loop {
            match self.choose(at, asize, avoid) {
                MetaslabChoice::Use(index) => {
                    let unit = self.unit();
                    let most = RUN_BYTES_MAX.min(1 << (self.shift - RUN_SHIFT)) / unit * unit;
                    let taken = self.metaslabs[index as usize].take_run(asize, most);
                    let run = taken.expect("the chosen metaslab has a long enough run");
                    self.runs[at] = Some(FreeRun {
                        metaslab: index,
                        next: run.start + asize,
                        end: run.end,
                    });
                    return TakeResult::Done(run.start);
                }
                MetaslabChoice::Load(index) => return TakeResult::Load(index),
                MetaslabChoice::None if reclaimed => return TakeResult::Full,
                MetaslabChoice::None => {
                    // Other cursors may sit on the last free space.
                    self.return_runs();
                    reclaimed = true;
                }
            }
        }
    }

    /// Chooses the metaslab for the next run of a cursor.
    fn choose(&mut self, at: usize, asize: u64, avoid: &[u32]) -> MetaslabChoice {
        if let Some((active, left)) = self.active[at]
            && left > 0
            && !avoid.contains(&active)
            && self.metaslabs[active as usize].longest() >= asize
        {
            self.active[at] = Some((active, left - 1));
            return MetaslabChoice::Use(active);
        }
        let good = asize.max(RUN_BYTES_GOOD);
        let mut best: Option<(MetaslabWeight, u32)> = None;
        for (index, metaslab) in self.metaslabs.iter().enumerate() {
            let index = u32::try_from(index).expect("metaslab indices fit");
            let loaded = metaslab.is_loaded();
            let (fits, is_good) = if loaded {
                (metaslab.longest() >= asize, metaslab.longest() >= good)
            } else if metaslab.is_unloaded() || metaslab.is_loading() {
                (
                    metaslab.usable_bytes() >= asize,
                    metaslab.usable_bytes() >= 4 * good,
                )
            } else {
                (false, false)
            };
            if !fits {
                continue;
            }
            let used_by = |other: usize| {
                let run = self.runs[other].as_ref();
                run.is_some_and(|run| run.metaslab == index)
                    || self.active[other].is_some_and(|(active, _)| active == index)
            };
            let mut others = (0..CURSORS).filter(|other| *other != at && used_by(*other));
            let shared = others.clone().any(|other| !share_metaslab(at, other));
            let weight = MetaslabWeight {
                allowed: !avoid.contains(&index),
                is_good,
                unshared: !shared,
                partner: others.any(|other| share_metaslab(at, other)),
                begun: metaslab.is_begun(),
                loaded,
                free: metaslab.usable_bytes(),
            };
            if best.is_none_or(|(other, _)| weight > other) {
                best = Some((weight, index));
            }
        }
        match best {
            None => MetaslabChoice::None,
            Some((_, index)) if self.metaslabs[index as usize].is_loaded() => {
                self.active[at] = Some((index, REFILLS_BEFORE_SCAN));
                MetaslabChoice::Use(index)
            }
            Some((_, index)) => MetaslabChoice::Load(index),
        }
    }

    fn return_run(&mut self, at: usize) {
        let run = self.runs[at].take();
        assert!(
            run.as_ref().is_none_or(|run| run.next <= run.end),
            "no more than a run has was placed in it"
        );
        if let Some(run) = run
            && run.end > run.next
        {
            self.metaslabs[run.metaslab as usize].return_run(run.next..run.end);
        }
    }

    fn return_runs(&mut self) {
        for at in 0..CURSORS {
            self.return_run(at);
        }
    }

    fn return_runs_of(&mut self, metaslab: u32) {
        for at in 0..CURSORS {
            if self.runs[at]
                .as_ref()
                .is_some_and(|run| run.metaslab == metaslab)
            {
                self.return_run(at);
            }
        }
    }
}

/// The weight of a metaslab for a new run, compared in the order of its fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct MetaslabWeight {
    /// It holds no other copy of the block.
    allowed: bool,
    /// It has long runs.
    is_good: bool,
    /// No cursor uses it that wants one for itself.
    unshared: bool,
    /// A cursor that shares its metaslab with this one uses it.
    partner: bool,
    /// Little of it is used, yet not nothing: each start of a pool goes on there, and leaves the untouched ones whole.
    begun: bool,
    loaded: bool,
    /// Bytes.
    free: u64,
}

enum MetaslabChoice {
    Use(u32),
    Load(u32),
    None,
}

#[cfg(test)]
#[path = "alloc_tests.rs"]
#[allow(
    clippy::cast_possible_truncation,
    reason = "the numbers of these tests are small"
)]
mod tests;
