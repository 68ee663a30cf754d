//! The open tree: top-level vdevs, mirrors, reads with repair, writes, flush, labels.
//!
//! A repair must never put old bytes over new ones: a range under repair is watched, a write to it cancels the repair,
//! and waits for one that has already started.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use ondisk::label::LABEL_COUNT;
use ondisk::{Guid, Txg, Uberblock};
use runtime::sync::Event;
use runtime::{DiskError, Handle, IoBuf};

use crate::labels::{self, LabelSet};
use crate::leaf::{Leaf, LeafError};
use crate::{
    ASHIFT_MAX, ASHIFT_MIN, IoClass, LEAF_DATA_START, QueueTuning, TreeConfig, VdevConfig,
    VdevError, VdevKind, VdevStats,
};

/// A byte range of one top-level vdev. Offset 0 is the first allocatable byte. Offset and size are multiples of the
/// vdev's sector.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Location {
    /// Top-level vdev id.
    pub vdev: u32,
    /// Bytes from the start of the allocatable area.
    pub offset: u64,
    /// Length in bytes.
    pub size: u64,
}

/// The question "are these the right bytes?", answered by the caller. Runs on the compute pool for large buffers.
#[derive(Clone)]
pub enum Verify {
    /// Any bytes will do.
    None,
    /// Returns true for good bytes.
    With(Arc<dyn Fn(&IoBuf) -> bool + Send + Sync>),
}

/// How a tree is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpenMode {
    /// No byte is ever written, not even a repair.
    ReadOnly,
    /// Reads and writes.
    ReadWrite,
}

/// Health of a vdev, as `zpool status` words it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Health {
    /// All well.
    Online,
    /// Works with less redundancy than configured.
    Degraded,
    /// Taken out after too many errors.
    Faulted,
    /// Taken out by the administrator.
    Offline,
    /// Could not be opened.
    Unavailable,
    /// Was there and vanished.
    Removed,
}

/// Limits and thresholds of a tree.
#[derive(Debug, Clone)]
pub struct TreeTuning {
    /// Queue of each leaf.
    pub queue: QueueTuning,
    /// Checks of buffers above this many bytes run on the compute pool.
    pub offload_above_bytes: u64,
}

impl Default for TreeTuning {
    fn default() -> Self {
        Self {
            queue: QueueTuning::default(),
            offload_above_bytes: runtime::COMPUTE_WORTHWHILE_BYTES as u64,
        }
    }
}

/// One leaf, for the caller that writes labels and records missed txgs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeafInfo {
    /// Identity.
    pub guid: Guid,
    /// Top-level vdev it belongs to.
    pub top: u32,
    /// Path it was opened at (or should be).
    pub path: String,
    /// Health now.
    pub health: Health,
    /// Device bytes rounded down to 256 KiB, 0 if not open.
    pub psize: u64,
}

/// One top-level vdev.
#[derive(Debug, Clone, PartialEq)]
pub struct TopInfo {
    /// Index.
    pub id: u32,
    /// Identity.
    pub guid: Guid,
    /// Kind.
    pub kind: VdevKind,
    /// Sector shift.
    pub ashift: u8,
    /// Allocatable bytes.
    pub asize: u64,
    /// log2 of the metaslab size.
    pub metaslab_shift: u8,
    /// Number of whole metaslabs.
    pub metaslab_count: u64,
    /// Metaslab array object in the meta-objset, 0 if none.
    pub metaslab_array: u64,
    /// Intent log only.
    pub is_log: bool,
    /// May take new blocks.
    pub allocating: bool,
}

/// One node of the status tree.
#[derive(Debug, Clone, PartialEq)]
pub struct VdevStatus {
    /// `root`, `mirror`, `file`, ...
    pub kind: VdevKind,
    /// Index in the parent.
    pub id: u64,
    /// Identity.
    pub guid: Guid,
    /// Path of a leaf.
    pub path: Option<String>,
    /// Intent log only (top-level).
    pub is_log: bool,
    /// Health now.
    pub health: Health,
    /// Why it is not online, as `zpool status` says it ("cannot open", "was /dev/x", "too many errors").
    pub reason: Option<String>,
    /// Counters.
    pub stats: VdevStats,
    /// Allocatable bytes (top-level) or device bytes (leaf).
    pub asize: u64,
    /// Sector shift (top-level).
    pub ashift: u8,
    /// Children.
    pub children: Vec<VdevStatus>,
}

/// The open device tree of one pool. Clones share it.
#[derive(Clone)]
pub struct Tree(Rc<Inner>);

struct Inner {
    handle: Handle,
    mode: OpenMode,
    tuning: TreeTuning,
    config: RefCell<TreeConfig>,
    /// By top-level id; holes are `None`.
    tops: RefCell<Vec<Option<Rc<Top>>>>,
    /// Every leaf by guid.
    leaves: RefCell<BTreeMap<Guid, Rc<Leaf>>>,
    /// Writes at the devices now: (vdev, offset) -> (bytes, how many).
    writing: RefCell<BTreeMap<(u32, u64), (u64, u32)>>,
    /// Ranges some copy of which is known to be bad and may be rewritten.
    suspects: RefCell<Vec<Rc<SuspectState>>>,
}

/// One top-level vdev: a leaf, or leaves that hold the same bytes.
struct Top {
    id: u32,
    guid: Guid,
    kind: VdevKind,
    ashift: u8,
    asize: u64,
    leaves: Vec<Rc<Leaf>>,
}

struct SuspectState {
    at: Location,
    /// Somebody wrote here since: the bytes in hand are old.
    overwritten: Cell<bool>,
    repairing: Cell<bool>,
    repaired: Event,
}

/// What a scrub of one range found.
#[derive(Debug, Default)]
pub struct Scrubbed {
    /// The right bytes, if any leaf had them.
    pub good: Option<IoBuf>,
    /// Leaves that could not be read or held something else.
    pub bad_copies: u32,
    /// Of those, rewritten.
    pub repaired_copies: u32,
}

/// A range that is being watched because some copy of it is bad. Dropping it ends the watch.
pub struct Suspect {
    tree: Tree,
    state: Rc<SuspectState>,
}

impl Drop for Suspect {
    fn drop(&mut self) {
        self.tree
            .0
            .suspects
            .borrow_mut()
            .retain(|other| !Rc::ptr_eq(other, &self.state));
    }
}

impl Tree {
    /// Opens every leaf of `config`. Missing or unfit leaves leave their mirror degraded; a top-level vdev without any
    /// usable leaf is an error (`Unavailable`), an unknown kind is [`VdevError::Unsupported`]. Nothing is written.
    /// A leaf is used only if a label on it carries its guid, except when `fresh` is true (pool creation).
    ///
    /// # Errors
    /// [`VdevError::BadConfig`], [`VdevError::Unsupported`], [`VdevError::Unavailable`].
    pub async fn open(
        handle: &Handle,
        config: &TreeConfig,
        mode: OpenMode,
        tuning: TreeTuning,
        fresh: bool,
    ) -> Result<Self, VdevError> {
        let tree = Self(Rc::new(Inner {
            handle: handle.clone(),
            mode,
            tuning,
            config: RefCell::new(config.clone()),
            tops: RefCell::default(),
            leaves: RefCell::default(),
            writing: RefCell::default(),
            suspects: RefCell::default(),
        }));
        // All shapes first, so that an unsupported tree is refused before any device is touched.
        for top in &config.tops {
            check_shape(top)?;
        }
        let mut opens = Vec::new();
        for (index, vdev) in config.tops.iter().enumerate() {
            let id = u32::try_from(index).map_err(|_| VdevError::BadConfig { what: "vdev id" })?;
            if vdev.kind == VdevKind::Hole {
                tree.0.tops.borrow_mut().push(None);
                continue;
            }
            let leaf_configs: Vec<&VdevConfig> = if vdev.kind.is_leaf() {
                vec![vdev]
            } else {
                vdev.children.iter().collect()
            };
            let mut leaves = Vec::new();
            for leaf_config in leaf_configs {
                let leaf = Rc::new(Leaf::new(handle, leaf_config, id, &tree.0.tuning.queue));
                if tree
                    .0
                    .leaves
                    .borrow_mut()
                    .insert(leaf.guid, Rc::clone(&leaf))
                    .is_some()
                {
                    return Err(VdevError::BadConfig {
                        what: "two vdevs share a guid",
                    });
                }
                leaves.push(Rc::clone(&leaf));
                opens.push((leaf, leaf_config.clone(), vdev.ashift, vdev.asize));
            }
            tree.0.tops.borrow_mut().push(Some(Rc::new(Top {
                id,
                guid: vdev.guid,
                kind: vdev.kind.clone(),
                ashift: vdev.ashift,
                asize: vdev.asize,
                leaves,
            })));
        }
        runtime::join_all(
            opens.iter().map(|(leaf, config, ashift, asize)| {
                leaf.open(config, mode, *ashift, *asize, fresh)
            }),
        )
        .await;
        for top in tree.0.tops.borrow().iter().flatten() {
            if !top.leaves.iter().any(|leaf| leaf.is_usable()) {
                return Err(VdevError::Unavailable { vdev: top.id });
            }
        }
        Ok(tree)
    }

    /// Returns the configuration as it is now.
    #[must_use]
    pub fn config(&self) -> TreeConfig {
        self.0.config.borrow().clone()
    }

    /// Changes stored fields (object numbers of metaslab arrays, DTLs and per-vdev ZAPs, paths, extra keys) of the vdev
    /// with this guid. Shape, ids, sizes and sector shifts must stay as they are. Unknown guids are ignored.
    pub fn update_config(&self, guid: Guid, change: impl FnOnce(&mut VdevConfig)) {
        if let Some(vdev) = self.0.config.borrow_mut().find_mut(guid) {
            change(vdev);
        }
    }

    /// Changes the root's own fields.
    pub fn update_root(&self, change: impl FnOnce(&mut TreeConfig)) {
        change(&mut self.0.config.borrow_mut());
    }

    /// Returns how the tree was opened.
    #[must_use]
    pub fn mode(&self) -> OpenMode {
        self.0.mode
    }

    /// Returns the top-level vdevs that can hold blocks, by id (holes are left out).
    #[must_use]
    pub fn tops(&self) -> Vec<TopInfo> {
        let config = self.0.config.borrow();
        let tops = self.0.tops.borrow();
        tops.iter()
            .flatten()
            .filter_map(|top| {
                let vdev = config.tops.get(top.id as usize)?;
                Some(TopInfo {
                    id: top.id,
                    guid: top.guid,
                    kind: top.kind.clone(),
                    ashift: top.ashift,
                    asize: top.asize,
                    metaslab_shift: vdev.metaslab_shift,
                    metaslab_count: top.asize >> vdev.metaslab_shift,
                    metaslab_array: vdev.metaslab_array,
                    is_log: vdev.is_log,
                    allocating: !vdev.non_allocating,
                })
            })
            .collect()
    }

    /// Returns all leaves in tree order.
    #[must_use]
    pub fn leaves(&self) -> Vec<LeafInfo> {
        let config = self.0.config.borrow();
        let leaves = self.0.leaves.borrow();
        config
            .leaves()
            .into_iter()
            .filter_map(|vdev| {
                let leaf = leaves.get(&vdev.guid)?;
                let path = leaf.path().or_else(|| vdev.device_path());
                Some(LeafInfo {
                    guid: leaf.guid,
                    top: leaf.top,
                    path: path
                        .map(|path| path.to_string_lossy().into_owned())
                        .unwrap_or_default(),
                    health: leaf.health(),
                    psize: leaf.psize(),
                })
            })
            .collect()
    }

    /// Reads a range, trying copies until `verify` accepts one; bad copies are rewritten.
    ///
    /// # Errors
    /// [`VdevError::OutOfRange`] for a place that does not exist; [`VdevError::Rejected`] when every copy read fails
    /// the check; [`VdevError::Device`] or [`VdevError::Unavailable`] when no copy could be read.
    pub async fn read(
        &self,
        at: Location,
        class: IoClass,
        verify: Verify,
    ) -> Result<IoBuf, VdevError> {
        let check: Check<IoBuf> = match verify {
            Verify::None => Arc::new(|bytes: &IoBuf| Some(bytes.clone())),
            Verify::With(good) => Arc::new(move |bytes: &IoBuf| good(bytes).then(|| bytes.clone())),
        };
        self.read_with(at, class, check).await
    }

    /// Like [`Tree::read`], with a check that also produces a value (so that verification and decompression are one
    /// compute job). `check` returns `None` for wrong bytes.
    ///
    /// # Errors
    /// As [`Tree::read`].
    pub async fn read_with<T: Send + 'static>(
        &self,
        at: Location,
        class: IoClass,
        check: Check<T>,
    ) -> Result<T, VdevError> {
        let top = self.top_for(at)?;
        let len = usize::try_from(at.size).map_err(|_| out_of_range(at))?;
        let mut failed: Vec<Rc<Leaf>> = Vec::new();
        let mut suspect: Option<Suspect> = None;
        let mut rejected = false;
        let mut device_error: Option<DiskError> = None;
        for leaf in read_order(&top, at.offset) {
            match leaf.read(LEAF_DATA_START + at.offset, len, class).await {
                Ok(bytes) => {
                    if let Some(value) = self.run_check(&check, &bytes).await {
                        if let Some(suspect) = &suspect {
                            suspect.repair_leaves(&failed, &bytes).await;
                        }
                        return Ok(value);
                    }
                    leaf.count_checksum_error();
                    rejected = true;
                }
                Err(LeafError::Device(error)) => device_error = Some(error),
                Err(LeafError::Closed) => continue,
            }
            if suspect.is_none() {
                suspect = Some(self.suspect(at));
            }
            failed.push(leaf);
        }
        if rejected {
            return Err(VdevError::Rejected {
                vdev: at.vdev,
                offset: at.offset,
                size: at.size,
            });
        }
        Err(
            device_error.map_or(VdevError::Unavailable { vdev: at.vdev }, |source| {
                VdevError::Device {
                    vdev: at.vdev,
                    offset: at.offset,
                    size: at.size,
                    source,
                }
            }),
        )
    }

    /// Reads a range from every leaf and rewrites those that do not hold what a good one holds. A leaf that may lack old
    /// writes must hold exactly the bytes of one that does not. `check` returns false for wrong bytes.
    ///
    /// # Errors
    /// [`VdevError::OutOfRange`]. Devices that fail are counted in the answer.
    pub async fn scrub(
        &self,
        at: Location,
        class: IoClass,
        check: Check<()>,
    ) -> Result<Scrubbed, VdevError> {
        let top = self.top_for(at)?;
        let len = usize::try_from(at.size).map_err(|_| out_of_range(at))?;
        let suspect = self.suspect(at);
        let mut order: Vec<Rc<Leaf>> = top
            .leaves
            .iter()
            .filter(|leaf| leaf.is_usable())
            .cloned()
            .collect();
        order.sort_by_key(|leaf| leaf.is_stale());
        let mut result = Scrubbed::default();
        let mut bad = Vec::new();
        for leaf in order {
            let Ok(bytes) = leaf.read(LEAF_DATA_START + at.offset, len, class).await else {
                result.bad_copies += 1;
                bad.push(leaf);
                continue;
            };
            let same = result.good.as_ref().is_some_and(|good| *good == bytes);
            let sound = same
                || (!(leaf.is_stale() && result.good.is_some())
                    && self.run_check(&check, &bytes).await.is_some());
            if sound {
                result.good.get_or_insert(bytes);
            } else {
                leaf.count_checksum_error();
                result.bad_copies += 1;
                bad.push(leaf);
            }
        }
        if let Some(good) = &result.good
            && !bad.is_empty()
        {
            result.repaired_copies = suspect.repair_leaves(&bad, good).await;
        }
        Ok(result)
    }

    /// Starts watching a range whose copies are all bad here, so that it can be repaired from a copy elsewhere.
    #[must_use]
    pub fn suspect(&self, at: Location) -> Suspect {
        let state = Rc::new(SuspectState {
            at,
            overwritten: Cell::new(self.is_writing(at)),
            repairing: Cell::new(false),
            repaired: Event::new("a repair of the same range"),
        });
        self.0.suspects.borrow_mut().push(Rc::clone(&state));
        Suspect {
            tree: self.clone(),
            state,
        }
    }

    /// Writes a range to every leaf that can take it. Succeeds when at least one leaf holds it; leaves that missed it
    /// are remembered for [`Tree::take_missed_writes`]. Not durable before [`Tree::flush`].
    ///
    /// # Errors
    /// [`VdevError::ReadOnly`], [`VdevError::OutOfRange`]; [`VdevError::Device`] or [`VdevError::Unavailable`] when no
    /// leaf took the bytes.
    pub async fn write(&self, at: Location, data: IoBuf, class: IoClass) -> Result<(), VdevError> {
        if self.0.mode == OpenMode::ReadOnly {
            return Err(VdevError::ReadOnly);
        }
        let top = self.top_for(at)?;
        if data.len() as u64 != at.size {
            return Err(out_of_range(at));
        }
        self.begin_write(at).await;
        let result = write_leaves(&top, at, data, class).await;
        self.end_write(at);
        result
    }

    /// Makes every write that was reported done durable, on all leaves written since the last flush.
    ///
    /// # Errors
    /// When some top-level vdev has no leaf that both took all writes of the interval and flushed them: then writes may
    /// be lost and the caller must not commit.
    pub async fn flush(&self) -> Result<(), VdevError> {
        if self.0.mode == OpenMode::ReadOnly {
            return Ok(());
        }
        let tops: Vec<Rc<Top>> = self.0.tops.borrow().iter().flatten().cloned().collect();
        let results = runtime::join_all(tops.iter().map(flush_top)).await;
        results.into_iter().collect()
    }

    /// Tells the devices that the ranges (bytes of the top-level vdev) hold nothing. Devices that cannot discard are
    /// left alone.
    ///
    /// # Errors
    /// [`VdevError::ReadOnly`], [`VdevError::OutOfRange`].
    pub async fn trim(&self, vdev: u32, ranges: &[Range<u64>]) -> Result<(), VdevError> {
        if self.0.mode == OpenMode::ReadOnly {
            return Err(VdevError::ReadOnly);
        }
        for range in ranges {
            let size = range.end.saturating_sub(range.start);
            let at = Location {
                vdev,
                offset: range.start,
                size,
            };
            let top = self.top_for(at)?;
            let trims = top
                .leaves
                .iter()
                .map(|leaf| leaf.trim(LEAF_DATA_START + at.offset, size));
            runtime::join_all(trims).await;
        }
        Ok(())
    }

    /// Returns the leaves that missed a write since the last call. The pool adds the current txg to their DTLs.
    #[must_use]
    pub fn take_missed_writes(&self) -> Vec<Guid> {
        let leaves = self.0.leaves.borrow();
        leaves
            .values()
            .filter(|leaf| leaf.take_missed())
            .map(|leaf| leaf.guid)
            .collect()
    }

    /// Returns the bytes a block of `psize` bytes takes on the vdev.
    ///
    /// # Errors
    /// [`VdevError::OutOfRange`] when there is no such vdev.
    pub fn asize_of(&self, vdev: u32, psize: u64) -> Result<u64, VdevError> {
        let top = self.top(vdev).ok_or(VdevError::OutOfRange {
            vdev,
            offset: 0,
            size: psize,
        })?;
        Ok(psize.next_multiple_of(1 << top.ashift))
    }

    /// Returns the sector shift of the vdev.
    ///
    /// # Errors
    /// [`VdevError::OutOfRange`] when there is no such vdev.
    pub fn ashift(&self, vdev: u32) -> Result<u8, VdevError> {
        self.top(vdev)
            .map(|top| top.ashift)
            .ok_or(VdevError::OutOfRange {
                vdev,
                offset: 0,
                size: 0,
            })
    }

    /// Returns the deflate ratio of the vdev: what 512 allocated bytes count in space accounting. 512 for disks and
    /// mirrors (the ratio only differs for raidz).
    ///
    /// # Errors
    /// [`VdevError::OutOfRange`] when there is no such vdev.
    pub fn deflate_ratio(&self, vdev: u32) -> Result<u64, VdevError> {
        let asize = self.asize_of(vdev, DEFLATE_BLOCK)?;
        Ok(DEFLATE_BLOCK / (asize >> 9))
    }

    /// Returns the allocatable bytes of the vdev, `None` when there is no such vdev.
    #[must_use]
    pub fn asize(&self, vdev: u32) -> Option<u64> {
        self.top(vdev).map(|top| top.asize)
    }

    /// Returns the sum of all guids of the tree including the root, modulo 2^64 (for the uberblock).
    #[must_use]
    pub fn guid_sum(&self) -> u64 {
        self.0.config.borrow().guid_sum()
    }

    /// Returns the status tree; the root node carries the pool's sums.
    #[must_use]
    pub fn status(&self) -> VdevStatus {
        let config = self.0.config.borrow();
        let mut root = VdevStatus {
            kind: VdevKind::Other("root".into()),
            id: 0,
            guid: config.guid,
            path: None,
            is_log: false,
            health: Health::Online,
            reason: None,
            stats: VdevStats::default(),
            asize: 0,
            ashift: 0,
            children: config.tops.iter().map(|top| self.status_of(top)).collect(),
        };
        for top in &root.children {
            root.stats.merge(&top.stats);
            root.asize += top.asize;
        }
        // A pool without one of its top-level vdevs does not work; any other trouble below only degrades it.
        root.health = match root.children.iter().map(|top| top.health).max() {
            None | Some(Health::Online) => Health::Online,
            Some(Health::Degraded) => Health::Degraded,
            Some(_) => Health::Unavailable,
        };
        root
    }

    /// Sets error counters to zero, of one leaf or all, and reopens leaves that were taken out.
    pub async fn clear_errors(&self, guid: Option<Guid>) {
        for leaf in self.all_leaves() {
            if guid.is_none_or(|guid| guid == leaf.guid) {
                leaf.clear_counters();
                self.reopen_leaf(&leaf).await;
            }
        }
    }

    /// Tries to open every leaf that is not open and may be. Returns how many came back. What they missed meanwhile
    /// they still lack: they are read last until [`Tree::mark_whole`].
    pub async fn reopen(&self) -> usize {
        let mut back = 0;
        for leaf in self.all_leaves() {
            if matches!(leaf.health(), Health::Unavailable | Health::Removed) {
                back += usize::from(self.reopen_leaf(&leaf).await);
            }
        }
        back
    }

    /// Says that a leaf has been resilvered: it lacks nothing any more.
    pub fn mark_whole(&self, guid: Guid) {
        if let Some(leaf) = self.0.leaves.borrow().get(&guid) {
            leaf.mark_whole();
        }
    }

    fn all_leaves(&self) -> Vec<Rc<Leaf>> {
        self.0.leaves.borrow().values().cloned().collect()
    }

    /// Returns true if the leaf was not usable and is now.
    async fn reopen_leaf(&self, leaf: &Leaf) -> bool {
        if leaf.is_usable() {
            return false;
        }
        let found = {
            let config = self.0.config.borrow();
            let vdev = config
                .leaves()
                .into_iter()
                .find(|vdev| vdev.guid == leaf.guid)
                .cloned();
            vdev.zip(self.top(leaf.top))
        };
        if let Some((mut vdev, top)) = found {
            vdev.faulted = false;
            if leaf.is_dirty() {
                // Whatever took the device away may have taken its cache, too.
                leaf.note_missed();
            }
            leaf.close();
            leaf.open(&vdev, self.0.mode, top.ashift, top.asize, false)
                .await;
        }
        leaf.is_usable()
    }

    /// Writes the configuration nvlist (packed, with its 4-byte header) into label `which` (0-3) of a leaf.
    /// Not durable before a flush of the leaf.
    ///
    /// # Errors
    /// [`VdevError::NoSuchLeaf`], [`VdevError::LabelTooLarge`], or the device's failure.
    pub async fn write_label(&self, leaf: Guid, which: u8, packed: &[u8]) -> Result<(), VdevError> {
        let (leaf, size) = self.leaf_for_label(leaf)?;
        let (offset, block) = labels::config_block(size, usize::from(which), packed)?;
        self.write_reserved(&leaf, offset, block).await
    }

    /// Prepares all four labels of a new leaf: zero pad, empty boot environment, empty ring. Destroys whatever labels
    /// the device had. Not durable before a flush of the leaf.
    ///
    /// # Errors
    /// [`VdevError::NoSuchLeaf`] or the device's failure.
    pub async fn init_labels(&self, leaf: Guid) -> Result<(), VdevError> {
        let (leaf, size) = self.leaf_for_label(leaf)?;
        for which in 0..LABEL_COUNT {
            let (offset, block) = labels::fresh_label(size, which)?;
            self.write_reserved(&leaf, offset, block).await?;
        }
        Ok(())
    }

    /// Writes an uberblock into its slot (`txg % slots`) of all four labels of a leaf. Not durable before a flush of
    /// the leaf.
    ///
    /// # Errors
    /// When not one of the four could be written.
    pub async fn write_uberblock(
        &self,
        leaf: Guid,
        uberblock: &Uberblock,
    ) -> Result<(), VdevError> {
        let (leaf, size) = self.leaf_for_label(leaf)?;
        let ashift = self.ashift(leaf.top)?;
        let mut blocks = Vec::new();
        for which in 0..LABEL_COUNT {
            blocks.push(labels::uberblock_slot(size, which, ashift, uberblock)?);
        }
        let writes = blocks
            .into_iter()
            .map(|(offset, block)| self.write_reserved(&leaf, offset, block));
        let results = runtime::join_all(writes).await;
        if results.iter().any(Result::is_ok) {
            return Ok(());
        }
        results
            .into_iter()
            .next()
            .unwrap_or(Err(VdevError::Unavailable { vdev: leaf.top }))
    }

    /// Flushes one leaf.
    ///
    /// # Errors
    /// [`VdevError::NoSuchLeaf`] or the device's failure; the leaf is then taken out.
    pub async fn flush_leaf(&self, leaf: Guid) -> Result<(), VdevError> {
        let (leaf, _) = self.leaf_for_label(leaf)?;
        leaf.flush()
            .await
            .map_err(|error| leaf_failure(&leaf, 0, 0, error))
    }

    /// Reads the labels of one leaf.
    ///
    /// # Errors
    /// [`VdevError::NoSuchLeaf`] when it is not open.
    pub async fn read_labels(&self, leaf: Guid) -> Result<LabelSet, VdevError> {
        let found = self
            .0
            .leaves
            .borrow()
            .get(&leaf)
            .and_then(|leaf| leaf.disk());
        LabelSet::read(&found.ok_or(VdevError::NoSuchLeaf { guid: leaf })?).await
    }

    /// Returns the newest valid uberblock of any leaf with txg at most `max`.
    ///
    /// # Errors
    /// None at present; leaves that cannot be read are skipped.
    pub async fn best_uberblock(&self, max: Option<Txg>) -> Result<Option<Uberblock>, VdevError> {
        let mut best: Option<Uberblock> = None;
        for leaf in self.all_leaves() {
            let Some(disk) = leaf.disk() else { continue };
            let set = LabelSet::read(&disk).await?;
            if let Some(found) = set.best_uberblock(max)
                && best.is_none_or(|best| found.cmp_currency(&best).is_gt())
            {
                best = Some(*found);
            }
        }
        Ok(best)
    }

    /// Closes all devices. Later calls fail with `Unavailable`.
    pub fn close(&self) {
        for leaf in self.0.leaves.borrow().values() {
            leaf.close();
        }
    }

    fn top(&self, vdev: u32) -> Option<Rc<Top>> {
        self.0.tops.borrow().get(vdev as usize).cloned().flatten()
    }

    /// Returns the vdev of a range that lies inside it, in whole sectors.
    fn top_for(&self, at: Location) -> Result<Rc<Top>, VdevError> {
        let top = self.top(at.vdev).ok_or(out_of_range(at))?;
        let sector = (1_u64 << top.ashift) - 1;
        let inside = at
            .offset
            .checked_add(at.size)
            .is_some_and(|end| end <= top.asize);
        if inside && at.size != 0 && at.offset & sector == 0 && at.size & sector == 0 {
            Ok(top)
        } else {
            Err(out_of_range(at))
        }
    }

    async fn run_check<T: Send + 'static>(&self, check: &Check<T>, bytes: &IoBuf) -> Option<T> {
        if bytes.len() as u64 <= self.0.tuning.offload_above_bytes {
            return check(bytes);
        }
        let (check, bytes) = (Arc::clone(check), bytes.clone());
        self.0.handle.compute(move || check(&bytes)).await
    }

    fn is_writing(&self, at: Location) -> bool {
        let writing = self.0.writing.borrow();
        writing
            .range((at.vdev, 0)..(at.vdev, at.offset + at.size))
            .next_back()
            .is_some_and(|(&(_, offset), &(size, _))| offset + size > at.offset)
    }

    /// Registers a write, and waits for repairs of the same range that have started.
    async fn begin_write(&self, at: Location) {
        self.0
            .writing
            .borrow_mut()
            .entry((at.vdev, at.offset))
            .or_insert((at.size, 0))
            .1 += 1;
        if self.0.suspects.borrow().is_empty() {
            return;
        }
        let touched: Vec<Rc<SuspectState>> = self
            .0
            .suspects
            .borrow()
            .iter()
            .filter(|suspect| {
                suspect.at.vdev == at.vdev
                    && suspect.at.offset < at.offset + at.size
                    && at.offset < suspect.at.offset + suspect.at.size
            })
            .cloned()
            .collect();
        for suspect in touched {
            suspect.overwritten.set(true);
            while suspect.repairing.get() {
                suspect.repaired.wait().await;
            }
        }
    }

    fn end_write(&self, at: Location) {
        let mut writing = self.0.writing.borrow_mut();
        if let Some((_, count)) = writing.get_mut(&(at.vdev, at.offset)) {
            *count -= 1;
            if *count == 0 {
                writing.remove(&(at.vdev, at.offset));
            }
        }
    }

    fn leaf_for_label(&self, guid: Guid) -> Result<(Rc<Leaf>, u64), VdevError> {
        if self.0.mode == OpenMode::ReadOnly {
            return Err(VdevError::ReadOnly);
        }
        let leaf = self.0.leaves.borrow().get(&guid).cloned();
        let leaf = leaf.ok_or(VdevError::NoSuchLeaf { guid })?;
        let size = leaf.psize();
        if leaf.is_usable() && size != 0 {
            Ok((leaf, size))
        } else {
            Err(VdevError::Unavailable { vdev: leaf.top })
        }
    }

    async fn write_reserved(
        &self,
        leaf: &Leaf,
        offset: u64,
        block: IoBuf,
    ) -> Result<(), VdevError> {
        let size = block.len() as u64;
        leaf.write(offset, block, IoClass::SyncWrite)
            .await
            .map_err(|error| leaf_failure(leaf, offset, size, error))
    }

    fn status_of(&self, vdev: &VdevConfig) -> VdevStatus {
        let leaf = self.0.leaves.borrow().get(&vdev.guid).cloned();
        let mut status = VdevStatus {
            kind: vdev.kind.clone(),
            id: vdev.id,
            guid: vdev.guid,
            path: vdev.path.clone(),
            is_log: vdev.is_log,
            health: Health::Online,
            reason: None,
            stats: VdevStats::default(),
            asize: vdev.asize,
            ashift: vdev.ashift,
            children: vdev
                .children
                .iter()
                .map(|child| self.status_of(child))
                .collect(),
        };
        if let Some(leaf) = leaf {
            status.health = leaf.health();
            status.reason = leaf.reason();
            status.stats = leaf.stats();
            if status.asize == 0 {
                status.asize = leaf.psize();
            }
            return status;
        }
        for child in &status.children {
            status.stats.merge(&child.stats);
        }
        // Checksum errors are the children's; the mirror's own are errors no child could answer for.
        let usable = status
            .children
            .iter()
            .filter(|child| child.health == Health::Online)
            .count();
        if usable < status.children.len() {
            if usable == 0 {
                status.health = Health::Unavailable;
                status.reason = Some("insufficient replicas".into());
            } else {
                status.health = Health::Degraded;
            }
        }
        status
    }
}

impl Suspect {
    /// Writes good bytes over the whole range on every leaf, unless somebody wrote there since the watch began. Returns
    /// how many leaves took them.
    pub async fn repair(&self, good: &IoBuf) -> u32 {
        match self.tree.top(self.state.at.vdev) {
            Some(top) => self.repair_leaves(&top.leaves, good).await,
            None => 0,
        }
    }

    /// Returns how many leaves took the good bytes.
    async fn repair_leaves(&self, bad: &[Rc<Leaf>], good: &IoBuf) -> u32 {
        let at = self.state.at;
        if self.tree.0.mode == OpenMode::ReadOnly
            || good.len() as u64 != at.size
            || self.state.overwritten.get()
        {
            return 0;
        }
        self.state.repairing.set(true);
        let writes = bad
            .iter()
            .filter(|leaf| leaf.is_usable())
            .map(|leaf| async move {
                let offset = LEAF_DATA_START + at.offset;
                // A failure is counted by the leaf; the good copy is still there.
                let healed = leaf
                    .write(offset, good.clone(), IoClass::Scrub)
                    .await
                    .is_ok();
                if healed {
                    leaf.count_healed(at.size);
                }
                u32::from(healed)
            });
        let healed = runtime::join_all(writes).await.into_iter().sum();
        self.state.repairing.set(false);
        self.state.repaired.notify_all();
        healed
    }
}

/// Block size by which the deflate ratio is defined.
const DEFLATE_BLOCK: u64 = 128 << 10;

/// A check of bytes that produces a value, `None` for wrong bytes.
pub type Check<T> = Arc<dyn Fn(&IoBuf) -> Option<T> + Send + Sync>;

/// Refuses trees this version cannot serve.
fn check_shape(top: &VdevConfig) -> Result<(), VdevError> {
    let unsupported = |kind: &VdevKind| VdevError::Unsupported {
        kind: kind.as_str().to_owned(),
    };
    match &top.kind {
        VdevKind::Hole => return Ok(()),
        VdevKind::Disk | VdevKind::File => {}
        VdevKind::Mirror => {
            if top.children.is_empty() {
                return Err(VdevError::BadConfig {
                    what: "a mirror without children",
                });
            }
            if let Some(child) = top.children.iter().find(|child| !child.kind.is_leaf()) {
                return Err(unsupported(&child.kind));
            }
        }
        other => return Err(unsupported(other)),
    }
    if !(ASHIFT_MIN..=ASHIFT_MAX).contains(&top.ashift) {
        return Err(VdevError::BadConfig {
            what: "ashift out of range",
        });
    }
    if !(24..=60).contains(&top.metaslab_shift) && top.metaslab_shift != 0 {
        return Err(VdevError::BadConfig {
            what: "metaslab_shift out of range",
        });
    }
    // Offsets are stored in 55 bits of 512 bytes at most; far below, sums cannot overflow.
    if top.asize == 0 || top.asize > 1 << 62 || top.asize % (1 << top.ashift) != 0 {
        return Err(VdevError::BadConfig {
            what: "asize out of range",
        });
    }
    Ok(())
}

/// Returns the usable leaves in the order they should be read: those that lack nothing first, then the least busy one,
/// then by place, so that neighbouring blocks come from the same leaf.
fn read_order(top: &Top, offset: u64) -> Vec<Rc<Leaf>> {
    if let [only] = top.leaves.as_slice() {
        return vec![Rc::clone(only)];
    }
    // 1 MiB stripes over the copies, as OpenZFS's mirror does for idle devices.
    let favourite = usize::try_from((offset >> 20) % top.leaves.len() as u64).unwrap_or(0);
    let mut order: Vec<(bool, usize, bool, usize)> = top
        .leaves
        .iter()
        .enumerate()
        .filter(|(_, leaf)| leaf.is_usable())
        .map(|(index, leaf)| (leaf.is_stale(), leaf.load(), index != favourite, index))
        .collect();
    order.sort_unstable();
    order
        .into_iter()
        .map(|(_, _, _, index)| Rc::clone(&top.leaves[index]))
        .collect()
}

async fn write_leaves(
    top: &Top,
    at: Location,
    data: IoBuf,
    class: IoClass,
) -> Result<(), VdevError> {
    let offset = LEAF_DATA_START + at.offset;
    let results = if let [only] = top.leaves.as_slice() {
        vec![only.write(offset, data, class).await]
    } else {
        let writes = top
            .leaves
            .iter()
            .map(|leaf| leaf.write(offset, data.clone(), class));
        runtime::join_all(writes).await
    };
    let mut first_error = None;
    let mut written = 0;
    let mut failed = Vec::new();
    for (leaf, result) in top.leaves.iter().zip(results) {
        match result {
            Ok(()) => written += 1,
            Err(error) => {
                failed.push(leaf);
                if !matches!((&first_error, &error), (Some(_), LeafError::Closed)) {
                    first_error = Some(leaf_failure(leaf, at.offset, at.size, error));
                }
            }
        }
    }
    if written > 0 {
        // A write that no leaf took is not missed by any: it has failed, and may be tried again as a whole.
        for leaf in failed {
            leaf.note_missed();
        }
        return Ok(());
    }
    Err(first_error.unwrap_or(VdevError::Unavailable { vdev: at.vdev }))
}

async fn flush_top(top: &Rc<Top>) -> Result<(), VdevError> {
    let written: Vec<&Rc<Leaf>> = top.leaves.iter().filter(|leaf| leaf.is_dirty()).collect();
    if written.is_empty() {
        return Ok(());
    }
    // The interval ends for all leaves now: later writes belong to the next flush.
    let missed: Vec<bool> = written.iter().map(|leaf| leaf.begin_flush()).collect();
    let results = runtime::join_all(written.iter().map(|leaf| leaf.flush())).await;
    let mut error = None;
    let mut whole = false;
    for ((leaf, result), missed) in written.iter().zip(results).zip(missed) {
        match result {
            Ok(()) => whole |= !missed,
            Err(failure) => error = Some(leaf_failure(leaf, 0, 0, failure)),
        }
    }
    if whole {
        return Ok(());
    }
    Err(error.unwrap_or(VdevError::Unavailable { vdev: top.id }))
}

fn leaf_failure(leaf: &Leaf, offset: u64, size: u64, error: LeafError) -> VdevError {
    match error {
        LeafError::Closed => VdevError::Unavailable { vdev: leaf.top },
        LeafError::Device(source) => VdevError::Device {
            vdev: leaf.top,
            offset,
            size,
            source,
        },
    }
}

fn out_of_range(at: Location) -> VdevError {
    VdevError::OutOfRange {
        vdev: at.vdev,
        offset: at.offset,
        size: at.size,
    }
}
