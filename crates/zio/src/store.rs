//! The block store: the interface to the blocks of a pool.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;

use ondisk::{BlockPointer, Txg};
use runtime::sync::{Event, Semaphore};
use runtime::{Handle, IoBuf};
use vdev::{IoClass, Tree};

use crate::alloc::{Allocator, Sizes};
use crate::checkpoint::CheckpointFrees;
use crate::checks;
use crate::dedup_turns::Turns;
use crate::embedded::Embedded;
use crate::error::corrupt;
use crate::faults::{DataFaults, FaultOfRead};
use crate::metaslab::Metaslab;
use crate::pending_references::PendingReferences;
use crate::pending_writes::{PendingWrites, throttle};
use crate::types::{
    Expect, FailureGate, Forms, GangPart, ReadProps, ScrubOutcome, StoreOptions, StoreStats,
    StoreTuning, StoredForm, WriteProps,
};
use crate::{
    BlockKeys, Bookmark, CorruptReason, MetaSource, MetaslabChange, MetaslabSummary, Protection,
    Space, ZioError,
};

/// The blocks of one pool. Clones share it.
#[derive(Clone)]
pub struct BlockStore(Rc<StoreShared>);

struct StoreShared {
    handle: Handle,
    tree: Tree,
    tuning: StoreTuning,
    salt: Cell<[u8; 32]>,
    space: RefCell<Option<Activated>>,
    /// Loads of space maps under way.
    loads: RefCell<BTreeMap<(u32, u32), Event>>,
    /// What 512 allocated bytes count, by vdev id.
    deflate: RefCell<BTreeMap<u32, u64>>,
    /// Whether space is counted as it is allocated, with parity.
    raw_space: Cell<bool>,
    throttle: Rc<Semaphore>,
    stats: RefCell<StoreStats>,
    gate: RefCell<Option<FailureGate>>,
    damaged: RefCell<Vec<(Bookmark, Txg)>>,
    /// The newest txg of the state that a checkpoint keeps.
    checkpoint: Cell<Option<Txg>>,
    /// Deflated bytes that are allocated for it alone.
    checkpoint_bytes: Cell<u64>,
    pending_writes: PendingWrites,
    pending_references: PendingReferences,
    embedded: Embedded,
    dedup_turns: Turns,
    faults: DataFaults,
}

/// Most damaged blocks remembered between two calls of [`BlockStore::take_damaged`].
const DAMAGED_MAX: usize = 4096;

struct Activated {
    allocator: Allocator,
    source: Rc<dyn MetaSource>,
}

impl BlockStore {
    /// Makes a store that can read. Call [`BlockStore::activate`] before the first write.
    #[must_use]
    pub fn new(handle: &Handle, tree: Tree, options: StoreOptions) -> Self {
        let ratio = |id| tree.deflate_ratio(id).unwrap_or(512);
        let deflate = tree.tops().into_iter().map(|top| (top.id, ratio(top.id)));
        let deflate = RefCell::new(deflate.collect());
        Self(Rc::new(StoreShared {
            handle: handle.clone(),
            tree,
            throttle: throttle(options.tuning.writing_bytes_max),
            tuning: options.tuning,
            salt: Cell::new(options.salt),
            space: RefCell::new(None),
            loads: RefCell::default(),
            deflate,
            raw_space: Cell::new(false),
            stats: RefCell::default(),
            gate: RefCell::new(None),
            damaged: RefCell::default(),
            checkpoint: Cell::new(None),
            checkpoint_bytes: Cell::new(0),
            pending_writes: PendingWrites::default(),
            pending_references: PendingReferences::default(),
            embedded: Embedded::default(),
            dedup_turns: Turns::default(),
            faults: DataFaults::default(),
        }))
    }

    pub(crate) fn faults(&self) -> &DataFaults {
        &self.0.faults
    }

    /// Returns the fault that is injected into the read of a copy of a block, if one is.
    pub(crate) fn fault_of(
        &self,
        bp: &BlockPointer,
        bookmark: Bookmark,
        copy: usize,
        expect: Expect,
    ) -> Option<FaultOfRead> {
        let handle = &self.0.handle;
        self.0.faults.of(handle, bp, bookmark, copy, expect)
    }

    /// Returns the device tree.
    #[must_use]
    pub fn tree(&self) -> &Tree {
        &self.0.tree
    }

    /// Sets the checksum salt once it is known (a pool's salt is stored in its meta-objset).
    pub fn set_salt(&self, salt: [u8; 32]) {
        self.0.salt.set(salt);
    }

    /// Counts the space of blocks as it is allocated, parity and all, as pools do that were made before version 3. To be called
    /// before the store has its allocator.
    // OpenZFS: module/zfs/spa_misc.c, dva_get_dsize_sync (spa_deflate)
    pub fn count_raw_space(&self) {
        assert!(
            self.0.space.borrow().is_none(),
            "the allocator is made with the ratios"
        );
        self.0.raw_space.set(true);
    }

    /// Gives the store its allocator. `summaries` has one entry per metaslab that was ever used; all others are free.
    /// For a new pool it is empty. `source` is asked when a metaslab is first allocated from.
    pub fn activate(&self, source: Rc<dyn MetaSource>, summaries: &[MetaslabSummary]) {
        let tops: Vec<_> = self
            .0
            .tree
            .tops()
            .into_iter()
            .map(|top| {
                let ratio = self.deflate_ratio(top.id);
                (top, ratio)
            })
            .collect();
        let allocator = Allocator::new(&tops, summaries);
        *self.0.space.borrow_mut() = Some(Activated { allocator, source });
    }

    /// Begins to allocate from a top-level vdev that has joined the tree and holds nothing. To be called when the tree is
    /// durable with it: until then no block may be where a crash would make it unreachable.
    pub fn add_vdev(&self, vdev: u32) {
        let found = self.0.tree.tops().into_iter().find(|top| top.id == vdev);
        let Some(top) = found else { return };
        let ratio = self.0.tree.deflate_ratio(vdev).unwrap_or(512);
        self.0.deflate.borrow_mut().insert(vdev, ratio);
        let ratio = self.deflate_ratio(vdev);
        if let Some(space) = self.0.space.borrow_mut().as_mut() {
            space.allocator.add_vdev(&top, ratio);
        }
    }

    /// Stops (or resumes) placing new blocks on a top-level vdev; what is there stays readable.
    pub fn set_allocating(&self, vdev: u32, allocating: bool) {
        if let Some(space) = self.0.space.borrow_mut().as_mut() {
            space.allocator.set_allocating(vdev, allocating);
        }
    }

    /// Whether a top-level vdev takes no new blocks.
    #[must_use]
    pub fn is_idle(&self, vdev: u32) -> bool {
        self.with_allocator(|allocator| allocator.is_idle(vdev))
            .unwrap_or(true)
    }

    /// Begins to use the room by which a top-level vdev has grown. To be called when the tree is durable with it.
    pub fn grow_vdev(&self, vdev: u32) {
        let found = self.0.tree.tops().into_iter().find(|top| top.id == vdev);
        if let (Some(top), Some(space)) = (found, self.0.space.borrow_mut().as_mut()) {
            space.allocator.grow_vdev(vdev, top.metaslab_count);
        }
    }

    /// Has blocks placed on a vdev from now on take what they do in the layout it has now.
    pub fn adopt_layout(&self, vdev: u32) {
        let found = self.0.tree.tops().into_iter().find(|top| top.id == vdev);
        if let (Some(top), Some(space)) = (found, self.0.space.borrow_mut().as_mut()) {
            space.allocator.set_layout(vdev, top.layout);
        }
    }

    /// Forgets a top-level vdev that has left the tree and held nothing.
    pub fn remove_vdev(&self, vdev: u32) {
        if let Some(space) = self.0.space.borrow_mut().as_mut() {
            space.allocator.remove_vdev(vdev);
        }
    }

    /// Sets the function that decides what happens when no device of a top-level vdev takes a write (the pool suspends and waits).
    pub fn set_failure_gate(&self, gate: FailureGate) {
        *self.0.gate.borrow_mut() = Some(gate);
    }

    pub(crate) fn failure_gate(&self) -> Option<FailureGate> {
        self.0.gate.borrow().clone()
    }

    /// Reads every copy of a block on every device, and rewrites the bad ones from a good one. Of gangs the headers and
    /// all pieces. Holes and embedded blocks have nothing to scrub; encrypted blocks are verified as far as the
    /// checksum reaches without a key.
    ///
    /// # Errors
    /// [`ZioError::Corrupt`] when the pointer is impossible. A block without any good copy is not an error but
    /// [`ScrubOutcome::lost`].
    pub async fn scrub(
        &self,
        bp: &BlockPointer,
        props: ReadProps,
    ) -> Result<ScrubOutcome, ZioError> {
        self.scrub_block(bp, props, Expect::Written).await
    }

    /// Like [`BlockStore::scrub`], of a block that may have been on its way to the devices when the power failed: what of
    /// it did not arrive is rewritten from what did, and no device's fault. Durable after the next flush.
    ///
    /// # Errors
    /// As [`BlockStore::scrub`].
    pub async fn complete(
        &self,
        bp: &BlockPointer,
        class: IoClass,
    ) -> Result<ScrubOutcome, ZioError> {
        let bookmark = Bookmark::default();
        let props = ReadProps { class, bookmark };
        self.scrub_block(bp, props, Expect::MaybeWritten).await
    }

    /// Returns the logical bytes of a block: exactly lsize, verified and decompressed. Holes read as zeros.
    /// Bad copies are rewritten from good ones on the way.
    ///
    /// # Errors
    /// [`ZioError::Corrupt`] when no copy is good or the pointer is impossible; [`ZioError::Device`];
    /// [`ZioError::Encrypted`], [`ZioError::ForeignByteOrder`], [`ZioError::Redacted`].
    pub async fn read(&self, bp: &BlockPointer, props: ReadProps) -> Result<IoBuf, ZioError> {
        Ok(self.read_block(bp, props, None).await?.logical)
    }

    /// As [`BlockStore::read`], with the stored bytes of a compressed or encrypted block beside the logical ones. `keys` are
    /// those of the dataset, if it is encrypted: its blocks are decrypted, and authenticated in any case. Without them its
    /// blocks that are in the clear can be read, unauthenticated.
    ///
    /// # Errors
    /// As [`BlockStore::read`].
    pub async fn read_forms(
        &self,
        bp: &BlockPointer,
        props: ReadProps,
        keys: Option<&BlockKeys>,
    ) -> Result<Forms, ZioError> {
        self.read_block(bp, props, keys).await
    }

    /// Writes a block born in `txg` and returns its pointer. `data` is the logical block (a multiple of 512, at most
    /// 16 MiB). On return the devices have taken the bytes; they are durable after the next flush. When
    /// `props.rewrite` was overwritten in place, the new pointer has the same places; otherwise the old block is left
    /// alone and the caller frees it.
    ///
    /// # Errors
    /// [`ZioError::NoSpace`], [`ZioError::Device`] (then the txg must not commit), [`ZioError::ReadOnly`],
    /// [`ZioError::BadSize`], [`ZioError::Unsupported`].
    pub async fn write(
        &self,
        txg: Txg,
        data: IoBuf,
        props: &WriteProps,
    ) -> Result<BlockPointer, ZioError> {
        Ok(self
            .write_block(txg, data, None, props, &Protection::None, false)
            .await?
            .0)
    }

    /// As [`BlockStore::write`], with the stored bytes of a block that was compressed or encrypted. With the keys of an
    /// encrypted dataset the block is encrypted, or authenticated if its kind is stored in the clear; it has two copies at
    /// most then.
    ///
    /// # Errors
    /// As [`BlockStore::write`].
    pub async fn write_forms(
        &self,
        txg: Txg,
        data: IoBuf,
        props: &WriteProps,
        protection: &Protection,
    ) -> Result<(BlockPointer, Option<IoBuf>), ZioError> {
        self.write_block(txg, data, None, props, protection, false)
            .await
    }

    /// As [`BlockStore::write_forms`], but the devices may not have taken the bytes yet: that is awaited, and
    /// failures are reported, by [`BlockStore::wait_writes`]. Reads of the block wait by themselves. A form that is given is stored
    /// instead of compressing the block here; that it is one of the same bytes is the caller's to know.
    ///
    /// # Errors
    /// As [`BlockStore::write`]; of writes begun before, too.
    pub async fn write_behind(
        &self,
        txg: Txg,
        data: IoBuf,
        form: Option<StoredForm>,
        props: &WriteProps,
        protection: &Protection,
    ) -> Result<(BlockPointer, Option<IoBuf>), ZioError> {
        self.check_write_behind()?;
        self.write_block(txg, data, form, props, protection, true)
            .await
    }

    /// Whether both are the blocks of one pool.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        Rc::ptr_eq(&self.0, &other.0)
    }

    /// The references to blocks that txgs which have not synced will have.
    #[must_use]
    pub fn pending_references(&self) -> &PendingReferences {
        &self.0.pending_references
    }

    pub(crate) fn pending_writes(&self) -> &PendingWrites {
        &self.0.pending_writes
    }

    pub(crate) fn dedup_turns(&self) -> &Turns {
        &self.0.dedup_turns
    }

    pub(crate) fn embedded(&self) -> &Embedded {
        &self.0.embedded
    }

    pub(crate) fn handle(&self) -> &Handle {
        &self.0.handle
    }

    /// Frees a block in `txg` (the syncing one): it is free in that txg's space-map changes, and can be handed out again
    /// after txg + 2 has synced. Holes and embedded pointers are ignored. Gang headers are read, hence async.
    ///
    /// # Errors
    /// [`ZioError::Corrupt`] when the pointer is impossible or its space is free already (nothing is freed twice);
    /// what could not be freed stays allocated.
    pub async fn free(&self, txg: Txg, bp: &BlockPointer) -> Result<(), ZioError> {
        self.free_block(txg, bp, Bookmark::default()).await
    }

    /// Marks a block as allocated that was written by a log before the crash. Idempotent within one txg.
    ///
    /// # Errors
    /// [`ZioError::Corrupt`] when its space is not free; [`ZioError::SpaceMap`].
    pub async fn claim(&self, txg: Txg, bp: &BlockPointer) -> Result<(), ZioError> {
        if bp.is_hole() || bp.is_embedded() {
            return Ok(());
        }
        let fail = |what| corrupt(bp, Bookmark::default(), CorruptReason::Pointer(what));
        for dva in bp.copies() {
            checks::check_dva(&self.0.tree, &dva, bp.psize()).map_err(fail)?;
            let range = dva.offset..dva.offset + checks::held_space(&self.0.tree, &dva);
            loop {
                let step =
                    self.with_allocator(|allocator| allocator.claim(txg, dva.vdev, &range))?;
                match step.map_err(|_| fail("the place is allocated already"))? {
                    None => break,
                    Some((vdev, metaslab)) => self.load_metaslab(vdev, metaslab).await?,
                }
            }
        }
        Ok(())
    }

    /// Returns the space a block is accounted with: sum over its copies of asize/512 times the vdev's deflate ratio.
    #[must_use]
    pub fn dsize(&self, bp: &BlockPointer) -> u64 {
        if bp.is_embedded() || bp.is_hole() {
            return 0;
        }
        bp.copies()
            .map(|dva| (dva.asize >> 9) * self.deflate_ratio(dva.vdev))
            .sum()
    }

    /// Returns the most that one copy of a block of `psize` bytes is accounted with, wherever it goes.
    #[must_use]
    pub fn worst_dsize(&self, psize: u64) -> u64 {
        let sizes = self.0.tree.tops().into_iter().map(|top| {
            let asize = self.0.tree.asize_of(top.id, psize).unwrap_or(psize);
            (asize >> 9) * self.deflate_ratio(top.id)
        });
        sizes.max().unwrap_or(psize)
    }

    /// From now on blocks born in `txg` or before stay allocated when they are freed later: a checkpoint refers to them.
    /// What is freed of them is returned by [`BlockStore::take_checkpoint_frees`]. `None` ends that for new frees.
    pub fn set_checkpoint(&self, txg: Option<Txg>) {
        self.0.checkpoint.set(txg);
    }

    /// Sets how many bytes of each top-level vdev are allocated for a checkpoint alone: datasets cannot have them.
    pub fn set_checkpoint_space(&self, checkpointed: impl IntoIterator<Item = (u32, u64)>) {
        let deflated = checkpointed
            .into_iter()
            .map(|(vdev, bytes)| (bytes >> 9) * self.deflate_ratio(vdev));
        self.0.checkpoint_bytes.set(deflated.sum());
    }

    /// Returns and forgets the frees of checkpointed blocks in `txg`, since the last call (once per sync pass).
    #[must_use]
    pub fn take_checkpoint_frees(&self, txg: Txg) -> Vec<CheckpointFrees> {
        self.with_allocator(|allocator| allocator.take_checkpoint_frees(txg))
            .unwrap_or_default()
    }

    /// Frees in `txg` a range that stayed allocated for a checkpoint.
    ///
    /// # Errors
    /// [`ZioError::SpaceMap`] when it is not allocated; [`ZioError::ReadOnly`].
    pub fn free_checkpointed(
        &self,
        txg: Txg,
        vdev: u32,
        range: &Range<u64>,
    ) -> Result<(), ZioError> {
        let freed = self.with_allocator(|allocator| allocator.free(txg, vdev, range))?;
        freed.map_err(|_| ZioError::SpaceMap {
            vdev,
            metaslab: 0,
            reason: format!(
                "what a checkpoint held at {:#x} is free already",
                range.start
            ),
        })
    }

    /// Returns the space of the pool (vdevs that hold data; what datasets see as its size includes what shared blocks
    /// save, and not what a checkpoint keeps). All zero before activation.
    #[must_use]
    pub fn space(&self) -> Space {
        let space = self.0.space.borrow();
        let Some(space) = space.as_ref() else {
            return Space::default();
        };
        let mut sum = space.allocator.space();
        sum.deflated_size = sum
            .deflated_size
            .saturating_add(space.source.saved_bytes())
            .saturating_sub(self.0.checkpoint_bytes.get());
        sum
    }

    /// Returns the space of one top-level vdev.
    #[must_use]
    pub fn vdev_space(&self, vdev: u32) -> Space {
        let space = self.0.space.borrow();
        space
            .as_ref()
            .map(|space| space.allocator.vdev_space(vdev))
            .unwrap_or_default()
    }

    /// Returns and forgets the changes recorded for `txg` since the last call (once per sync pass).
    #[must_use]
    pub fn take_changes(&self, txg: Txg) -> Vec<MetaslabChange> {
        self.with_allocator(|allocator| allocator.take_changes(txg))
            .unwrap_or_default()
    }

    /// Returns whether [`BlockStore::take_changes`] would return anything.
    #[must_use]
    pub fn has_changes(&self, txg: Txg) -> bool {
        self.with_allocator(|allocator| allocator.has_changes(txg))
            .unwrap_or(false)
    }

    /// Returns the free ranges of a metaslab as its space map must state them once every change taken so far has been
    /// applied (for condensing: what was freed counts as free even while it cannot be reused; what was not taken yet
    /// is left out). Loads the metaslab if necessary.
    ///
    /// # Errors
    /// [`ZioError::SpaceMap`], [`ZioError::ReadOnly`].
    pub async fn free_ranges(&self, vdev: u32, metaslab: u32) -> Result<Vec<Range<u64>>, ZioError> {
        self.ranges_of(vdev, metaslab, Metaslab::map_free).await
    }

    /// Returns what a metaslab says once it is loaded; `ask` is to return `None` before.
    pub(crate) async fn ranges_of(
        &self,
        vdev: u32,
        metaslab: u32,
        ask: impl Fn(&Metaslab) -> Option<Vec<Range<u64>>>,
    ) -> Result<Vec<Range<u64>>, ZioError> {
        loop {
            let key = (vdev, metaslab);
            let found = self.with_allocator(|allocator| allocator.ask_metaslab(key, &ask))?;
            match found {
                Some(ranges) => return Ok(ranges),
                None => self.load_metaslab(vdev, metaslab).await?,
            }
        }
    }

    /// Takes free ranges of a metaslab out of reach of allocations, for work on the devices where nothing is: those from
    /// `from` (bytes of the top-level vdev) on, in order, about `most` bytes at most and little of what the vdev has free.
    /// None are left when nothing is returned. [`BlockStore::release_free`] gives them back; one worker at a time.
    ///
    /// # Errors
    /// [`ZioError::SpaceMap`], [`ZioError::ReadOnly`].
    pub async fn hold_free(
        &self,
        vdev: u32,
        metaslab: u32,
        from: u64,
        most: u64,
    ) -> Result<Vec<Range<u64>>, ZioError> {
        loop {
            self.load_metaslab(vdev, metaslab).await?;
            let held = self.with_allocator(|allocator| {
                let loaded = allocator.metaslab(vdev, metaslab);
                loaded
                    .is_none_or(|found| found.is_loaded())
                    .then(|| allocator.hold_free((vdev, metaslab), from, most))
            })?;
            if let Some(held) = held {
                return Ok(held);
            }
        }
    }

    /// As [`BlockStore::hold_free`], of what came free since the last call and is in pieces of at least `least` bytes.
    ///
    /// # Errors
    /// As [`BlockStore::hold_free`].
    pub async fn hold_freed(
        &self,
        vdev: u32,
        metaslab: u32,
        least: u64,
        most: u64,
    ) -> Result<Vec<Range<u64>>, ZioError> {
        self.load_metaslab(vdev, metaslab).await?;
        self.with_allocator(|allocator| allocator.hold_freed((vdev, metaslab), least, most))
    }

    /// Begins or ends to remember what comes free.
    pub fn collect_freed(&self, on: bool) {
        drop(self.with_allocator(|allocator| allocator.collect_freed(on)));
    }

    /// Returns the metaslabs (with their vdev before them) in which something came free since it was asked for.
    #[must_use]
    pub fn freed_metaslabs(&self) -> Vec<(u32, u32)> {
        self.with_allocator(|allocator| allocator.freed_metaslabs())
            .unwrap_or_default()
    }

    /// Gives back what [`BlockStore::hold_free`] took of a metaslab.
    pub fn release_free(&self, vdev: u32, metaslab: u32) {
        drop(self.with_allocator(|allocator| {
            if let Some(found) = allocator.metaslab(vdev, metaslab) {
                found.release();
            }
        }));
    }

    /// Returns the free segments of a metaslab counted by log2 of their bytes, as the space map's histogram wants them
    /// (what was freed counts as free); `None` when the metaslab is not loaded.
    #[must_use]
    pub fn segment_histogram(&self, vdev: u32, metaslab: u32) -> Option<[u64; 64]> {
        let space = self.0.space.borrow();
        space
            .as_ref()
            .and_then(|space| space.allocator.histogram(vdev, metaslab))
    }

    /// Returns the bytes allocated in a metaslab as its space map states them.
    #[must_use]
    pub fn metaslab_allocated(&self, vdev: u32, metaslab: u32) -> u64 {
        self.with_allocator(|allocator| {
            allocator
                .metaslab(vdev, metaslab)
                .map_or(0, |metaslab| metaslab.allocated)
        })
        .unwrap_or(0)
    }

    /// Notes that `txg` is durable: space freed in `txg - 2` and before becomes usable.
    pub fn txg_synced(&self, txg: Txg) {
        if let Some(space) = self.0.space.borrow_mut().as_mut() {
            space.allocator.txg_synced(txg);
            let most = self.0.tuning.free_ranges_max;
            space.allocator.unload_idle(txg, most);
        }
    }

    /// Returns the counters.
    #[must_use]
    pub fn stats(&self) -> StoreStats {
        self.0.stats.borrow().clone()
    }

    /// Returns the blocks that could not be read since the last call, with their birth; not those of scans, which tell
    /// their callers. Some may be missing when there are thousands.
    #[must_use]
    pub fn take_damaged(&self) -> Vec<(Bookmark, Txg)> {
        std::mem::take(&mut *self.0.damaged.borrow_mut())
    }

    /// Whether [`BlockStore::take_damaged`] would return anything.
    #[must_use]
    pub fn has_damaged(&self) -> bool {
        !self.0.damaged.borrow().is_empty()
    }

    pub(crate) fn note_damaged(&self, bp: &BlockPointer, props: ReadProps) {
        let mut damaged = self.0.damaged.borrow_mut();
        let known = (props.bookmark, bp.birth());
        if props.class != IoClass::Scrub
            && damaged.len() < DAMAGED_MAX
            && damaged.last() != Some(&known)
        {
            damaged.push(known);
        }
    }

    pub(crate) async fn free_block(
        &self,
        txg: Txg,
        bp: &BlockPointer,
        bookmark: Bookmark,
    ) -> Result<(), ZioError> {
        if bp.is_hole() || bp.is_embedded() {
            return Ok(());
        }
        let source = self.source()?;
        if source.may_be_shared(bp) {
            let dsize = self.dsize(bp);
            return match source.release(bp, dsize).await? {
                Some(last) => self.free_space(txg, &last, bookmark).await,
                None => Ok(()),
            };
        }
        self.free_space(txg, bp, bookmark).await
    }

    /// Frees the space of a block that has no references any more.
    async fn free_space(
        &self,
        txg: Txg,
        bp: &BlockPointer,
        bookmark: Bookmark,
    ) -> Result<(), ZioError> {
        let mut blocks = vec![*bp];
        if bp.is_gang() {
            self.gang_pieces(bp, bookmark, IoClass::SyncRead, 0, &mut |part, child| {
                debug_assert!(part == GangPart::Piece || child.is_gang());
                blocks.push(*child);
            })
            .await?;
        }
        for block in &blocks {
            self.free_copies(txg, block, bookmark)?;
        }
        Ok(())
    }

    /// Frees the places of one pointer: whole blocks, or only the header of a gang.
    fn free_copies(&self, txg: Txg, bp: &BlockPointer, bookmark: Bookmark) -> Result<(), ZioError> {
        let fail = |what| corrupt(bp, bookmark, CorruptReason::Pointer(what));
        let mut ranges = Vec::with_capacity(3);
        for dva in bp.copies() {
            checks::check_dva(&self.0.tree, &dva, bp.psize()).map_err(fail)?;
            let size = checks::held_space(&self.0.tree, &dva);
            ranges.push((dva.vdev, dva.offset..dva.offset + size));
        }
        // OpenZFS goes by the logical birth, which is the same but for blocks that were cloned after the checkpoint: those
        // belong to it, too.
        let checkpoint = self.0.checkpoint.get();
        let checkpointed =
            checkpoint.is_some_and(|taken| bp.physical_birth() <= taken && txg > taken);
        for (vdev, range) in ranges {
            let freed = self.free_copy_range(txg, vdev, &range, checkpointed);
            freed?.map_err(|_| fail("the place is free already"))?;
        }
        Ok(())
    }

    /// Reads the space map of a metaslab, once for all concurrent callers.
    pub(crate) async fn load_metaslab(&self, vdev: u32, metaslab: u32) -> Result<(), ZioError> {
        let fail = |reason: &str| ZioError::SpaceMap {
            vdev,
            metaslab,
            reason: reason.to_owned(),
        };
        let state = self.with_allocator(|allocator| {
            allocator.metaslab(vdev, metaslab).map(|found| {
                let start = found.is_unloaded();
                if start {
                    found.begin_load();
                }
                (start, found.is_loaded(), found.is_broken())
            })
        })?;
        let (start, loaded, broken) = state.ok_or_else(|| fail("no such metaslab"))?;
        if loaded {
            return Ok(());
        }
        if broken {
            return Err(fail("it could not be read before"));
        }
        if !start {
            let event = self.0.loads.borrow().get(&(vdev, metaslab)).cloned();
            if let Some(event) = event {
                event.wait().await;
            }
            return Ok(());
        }
        let event = Event::new("a space map to be loaded");
        self.0
            .loads
            .borrow_mut()
            .insert((vdev, metaslab), event.clone());
        let source = self.source()?;
        let result = source.load_space_map(vdev, metaslab).await;
        self.0.loads.borrow_mut().remove(&(vdev, metaslab));
        let free = result.as_deref().ok();
        let ended = self.with_allocator(|allocator| allocator.end_load(vdev, metaslab, free))?;
        event.notify_all();
        result?;
        ended.map_err(|_| fail("its ranges contradict each other"))
    }

    pub(crate) fn source(&self) -> Result<Rc<dyn MetaSource>, ZioError> {
        let space = self.0.space.borrow();
        let source = space.as_ref().map(|space| Rc::clone(&space.source));
        source.ok_or(ZioError::ReadOnly)
    }

    pub(crate) fn with_allocator<R>(
        &self,
        with: impl FnOnce(&mut Allocator) -> R,
    ) -> Result<R, ZioError> {
        let mut space = self.0.space.borrow_mut();
        space
            .as_mut()
            .map(|space| with(&mut space.allocator))
            .ok_or(ZioError::ReadOnly)
    }

    pub(crate) fn sizes(&self) -> Result<Sizes, ZioError> {
        self.with_allocator(|allocator| allocator.sizes())
    }

    /// Runs a job on `len` bytes here or on the compute pool, whichever is cheaper.
    pub(crate) async fn offload<T: Send + 'static>(
        &self,
        len: usize,
        job: impl FnOnce() -> T + Send + 'static,
    ) -> T {
        if len <= self.0.tuning.offload_above_bytes {
            job()
        } else {
            self.0.handle.compute(job).await
        }
    }

    pub(crate) fn gang_above_bytes(&self) -> u64 {
        self.0.tuning.gang_above_bytes
    }

    pub(crate) fn write_throttle(&self) -> &Semaphore {
        &self.0.throttle
    }

    pub(crate) fn salt(&self) -> [u8; 32] {
        self.0.salt.get()
    }

    pub(crate) fn count(&self, change: impl FnOnce(&mut StoreStats)) {
        change(&mut self.0.stats.borrow_mut());
    }

    fn deflate_ratio(&self, vdev: u32) -> u64 {
        if self.0.raw_space.get() {
            return 512;
        }
        let deflate = self.0.deflate.borrow();
        deflate.get(&vdev).copied().unwrap_or(512)
    }
}
