//! The open tree: top-level vdevs and their leaves, shape checks, status, reopening.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;

use ondisk::{Guid, RaidzReflow, Txg};
use runtime::Handle;
use runtime::sync::{Event, Mutex, RwLock};

use crate::events::LeafEvents;
use crate::faults::DeviceFaults;
use crate::layout::Layout;
use crate::leaf::{Leaf, LeafError};
use crate::mapping::Mapping;
use crate::raidz::draid::Draid;
use crate::raidz::latency::LatencyWatch;
use crate::raidz::shape::Raidz;
use crate::raidz::{Interval, Map};
use crate::{
    ASHIFT_MAX, ASHIFT_MIN, AllocationBias, Health, LeafInfo, Location, OpenMode, TopInfo,
    TreeConfig, TreeTuning, VdevConfig, VdevError, VdevKind, VdevStats, VdevStatus,
};

/// Most metaslabs accepted of one vdev. OpenZFS makes at most 131,072 of a new vdev, more only by growing it.
const METASLABS_MAX: u64 = 1 << 20;
const _: () = assert!(
    METASLABS_MAX <= u32::MAX as u64,
    "metaslabs are numbered in 32 bits"
);

/// The open device tree of one pool. Clones share it.
#[derive(Clone)]
pub struct Tree(pub(crate) Rc<TreeShared>);

pub(crate) struct TreeShared {
    pub(crate) handle: Handle,
    pub(crate) mode: OpenMode,
    pub(crate) tuning: TreeTuning,
    pub(crate) config: RefCell<TreeConfig>,
    /// By top-level id; holes are `None`.
    pub(crate) tops: RefCell<Vec<Option<Rc<Top>>>>,
    /// Every leaf by guid.
    pub(crate) leaves: RefCell<BTreeMap<Guid, Rc<Leaf>>>,
    /// Writes at the devices now: (vdev, offset) -> (bytes, how many).
    pub(crate) writing: RefCell<BTreeMap<(u32, u64), (u64, u32)>>,
    /// Where the blocks of removed vdevs are.
    pub(crate) mappings: RefCell<BTreeMap<u32, Rc<Mapping>>>,
    pub(crate) events: LeafEvents,
    /// What is injected into the I/O of leaves.
    pub(crate) faults: DeviceFaults,
    /// Ranges some copy of which is known to be bad and may be rewritten.
    pub(crate) suspects: RefCell<Vec<Rc<SuspectState>>>,
}

/// A child of a top-level vdev that holds one set of bytes, on one leaf or several (a replacement or spare beside it).
pub(crate) struct ChildSlot {
    leaves: RefCell<Vec<Rc<Leaf>>>,
}

/// A leaf that should hold the bytes of a child slot at some offset.
#[derive(Clone)]
pub(crate) struct ColumnReplica {
    pub(crate) leaf: Rc<Leaf>,
    /// The distributed spares it holds them for.
    via: Vec<Rc<Leaf>>,
}

impl ColumnReplica {
    /// Whether it may lack what was written there in `txg`.
    pub(crate) fn dtl_contains(&self, txg: Txg) -> bool {
        self.leaf.writes.dtl_contains(txg)
            || self.via.iter().any(|spare| spare.writes.dtl_contains(txg))
    }

    /// Whether it may lack anything at all.
    pub(crate) fn is_stale(&self) -> bool {
        self.leaf.writes.is_stale() || self.via.iter().any(|spare| spare.writes.is_stale())
    }

    /// Whether what is written there is written for one of these devices.
    pub(crate) fn is_for(&self, devices: &[Guid]) -> bool {
        devices.contains(&self.leaf.guid)
            || self.via.iter().any(|spare| devices.contains(&spare.guid))
    }
}

/// One top-level vdev: one slot (a leaf, or leaves that hold the same bytes), or several with parity among them.
pub(crate) struct Top {
    pub(crate) id: u32,
    /// It was removed: its blocks are where its mapping says.
    pub(crate) removed: bool,
    pub(crate) ashift: u8,
    pub(crate) asize: Cell<u64>,
    pub(crate) layout: Layout,
    pub(crate) slots: Vec<ChildSlot>,
    /// Written since the last flush.
    pub(crate) dirty: Cell<bool>,
    /// Held over a flush: a caller that finds nothing dirty relies on it being durable, not on its way.
    pub(crate) flushing: Rc<Mutex<()>>,
    /// Held for reading by all I/O of blocks with parity: sectors move, and the shape changes, only when there is none.
    pub(crate) gate: Rc<RwLock<()>>,
    /// What places missed since the last flush (with parity).
    pub(crate) interval: RefCell<Interval>,
    /// A flush failed where no other leaf could stand in.
    pub(crate) lost: Cell<bool>,
    /// How far its expansion is by the newest uberblock, if it is being expanded.
    pub(crate) reflow: Cell<RaidzReflow>,
    /// What the next uberblock is to say of it.
    pub(crate) ahead: Cell<RaidzReflow>,
    /// How fast its places are (with parity).
    pub(crate) latencies: LatencyWatch,
}

pub(crate) struct SuspectState {
    pub(crate) at: Location,
    /// End of its space on the vdev, parity and padding included.
    pub(crate) end: u64,
    /// The range was written since: the bytes in hand are old.
    pub(crate) overwritten: Cell<bool>,
    pub(crate) repairing: Cell<bool>,
    pub(crate) repaired: Event,
}

impl Tree {
    /// Opens every leaf of `config`. Missing or unfit leaves leave their top-level vdev degraded; one with too few usable
    /// leaves to read it is an error (`Unavailable`), an unknown kind is [`VdevError::Unsupported`]. Nothing is written.
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
        let tree = Self(Rc::new(TreeShared {
            handle: handle.clone(),
            mode,
            tuning,
            config: RefCell::new(config.clone()),
            tops: RefCell::default(),
            leaves: RefCell::default(),
            writing: RefCell::default(),
            mappings: RefCell::default(),
            suspects: RefCell::default(),
            events: LeafEvents::default(),
            faults: DeviceFaults::new(handle),
        }));
        // All shapes first, so that an unsupported tree is refused before any device is touched.
        for top in &config.tops {
            check_shape(top)?;
        }
        let mut opens = Vec::new();
        for (index, vdev) in config.tops.iter().enumerate() {
            let id = u32::try_from(index).map_err(|_| VdevError::BadConfig { what: "vdev id" })?;
            // Labels do not describe removed vdevs, only the pool's own configuration does.
            let unknown = vdev.kind == VdevKind::Indirect && vdev.asize == 0;
            if vdev.kind == VdevKind::Hole || unknown {
                tree.0.tops.borrow_mut().push(None);
                continue;
            }
            let top = tree.top_of(id, vdev)?;
            let least_asize = least_asize_of(&top.layout, vdev.asize);
            for (leaf, config) in top.leaves().into_iter().zip(leaf_configs(vdev)) {
                let known = tree.0.leaves.borrow_mut().insert(leaf.guid, leaf.clone());
                if known.is_some() {
                    return Err(VdevError::BadConfig {
                        what: "two vdevs share a guid",
                    });
                }
                opens.push((leaf, config.clone(), vdev.ashift, least_asize));
            }
            tree.0.tops.borrow_mut().push(Some(Rc::new(top)));
        }
        let guid = config.guid;
        runtime::join_all(opens.iter().map(|(leaf, config, ashift, asize)| {
            leaf.open(config, mode, guid, *ashift, *asize, fresh)
        }))
        .await;
        for top in tree.0.tops.borrow().iter().flatten() {
            // A log vdev is empty when its last device is taken out of service.
            let out_of_service = || {
                let leaves = top.leaves();
                let mut away = leaves.iter().filter(|leaf| !leaf.is_usable());
                away.all(|leaf| leaf.health() == Health::Offline)
            };
            let dispensable =
                tree.is_log(top.id) && (tree.0.tuning.missing_logs || out_of_service());
            if top.closed_slots().len() > top.spare_slots() && !dispensable {
                return Err(VdevError::Unavailable { vdev: top.id });
            }
        }
        Ok(tree)
    }

    /// Makes a leaf of a top-level vdev, not open.
    pub(crate) fn new_leaf(&self, config: &VdevConfig, top: u32) -> Leaf {
        let (events, faults) = (self.0.events.clone(), self.0.faults.clone());
        Leaf::new(
            &self.0.handle,
            config,
            top,
            &self.0.tuning.queue,
            events,
            faults,
        )
    }

    /// Builds a top-level vdev with its leaves, none of them open.
    pub(crate) fn top_of(&self, id: u32, vdev: &VdevConfig) -> Result<Top, VdevError> {
        let slots = slots_of(vdev).into_iter().map(|configs| {
            let leaves = configs
                .into_iter()
                .map(|config| Rc::new(self.new_leaf(config, id)));
            ChildSlot {
                leaves: RefCell::new(leaves.collect()),
            }
        });
        Ok(Top {
            id,
            removed: vdev.kind == VdevKind::Indirect,
            ashift: vdev.ashift,
            asize: Cell::new(vdev.asize),
            layout: layout_of(vdev)?,
            slots: slots.collect(),
            dirty: Cell::new(false),
            flushing: Rc::new(Mutex::new("another flush of this vdev", ())),
            gate: Rc::new(RwLock::new("sectors of this vdev to move", ())),
            interval: RefCell::default(),
            lost: Cell::new(false),
            reflow: Cell::default(),
            ahead: Cell::default(),
            latencies: LatencyWatch::default(),
        })
    }

    /// Returns the events of the leaves.
    #[must_use]
    pub fn events(&self) -> LeafEvents {
        self.0.events.clone()
    }

    /// Returns the counters of a leaf; `None` when there is no such leaf.
    #[must_use]
    pub fn leaf_stats(&self, leaf: Guid) -> Option<VdevStats> {
        let leaves = self.0.leaves.borrow();
        leaves.get(&leaf).map(|leaf| leaf.stats())
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

    /// Says how far the expansion of a raidz vdev was in the state that is read from now on: what its uberblock says. Not
    /// begun, until then.
    pub fn set_reflow(&self, reflow: RaidzReflow) {
        for top in self.0.tops.borrow().iter().flatten() {
            top.reflow.set(reflow);
            top.ahead.set(reflow);
        }
    }

    /// Returns how the tree was opened.
    #[must_use]
    pub fn mode(&self) -> OpenMode {
        self.0.mode
    }

    /// Returns the top-level vdevs that can hold blocks, by id (holes and removed vdevs are left out).
    #[must_use]
    pub fn tops(&self) -> Vec<TopInfo> {
        self.infos(false)
    }

    /// Returns the removed top-level vdevs, by id: block pointers name them still.
    #[must_use]
    pub fn removed_tops(&self) -> Vec<TopInfo> {
        self.infos(true)
    }

    fn infos(&self, removed: bool) -> Vec<TopInfo> {
        let config = self.0.config.borrow();
        let tops = self.0.tops.borrow();
        tops.iter()
            .flatten()
            .filter(|top| top.is_removed() == removed)
            .filter_map(|top| {
                let vdev = config.tops.get(top.id as usize)?;
                Some(TopInfo {
                    id: top.id,
                    guid: vdev.guid,
                    kind: vdev.kind.clone(),
                    ashift: top.ashift,
                    asize: top.asize.get(),
                    metaslab_shift: vdev.metaslab_shift,
                    metaslab_count: top.asize.get() >> vdev.metaslab_shift,
                    metaslab_array: vdev.metaslab_array,
                    is_log: vdev.is_log,
                    bias: vdev.allocation_bias(),
                    allocating: !vdev.non_allocating,
                    layout: top.layout.clone(),
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

    /// Returns the leaves that missed writes since the last call, with the txgs (as ranges) these belong to. The
    /// pool adds them to their DTLs.
    #[must_use]
    pub fn take_missed_writes(&self) -> Vec<(Guid, Vec<Range<u64>>)> {
        let leaves = self.0.leaves.borrow();
        let missed = leaves
            .values()
            .map(|leaf| (leaf.guid, leaf.writes.take_missed()));
        missed.filter(|(_, ranges)| !ranges.is_empty()).collect()
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
        Ok(top.layout.asize_of(top.ashift, psize))
    }

    /// Returns the bytes to read or write for a block of `psize` bytes: whole sectors, without parity and padding. The
    /// size of a [`Location`].
    ///
    /// # Errors
    /// [`VdevError::OutOfRange`] when there is no such vdev.
    pub fn io_size(&self, vdev: u32, psize: u64) -> Result<u64, VdevError> {
        Ok(psize.next_multiple_of(1 << self.ashift(vdev)?))
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

    /// Whether blocks written to the vdev now are likely to get there: it has devices enough, and has lost no flush. What
    /// can be put elsewhere should be, when not.
    #[must_use]
    pub fn takes_writes(&self, vdev: u32) -> bool {
        self.top(vdev).is_some_and(|top| {
            !top.is_removed() && !top.lost.get() && top.closed_slots().len() <= top.spare_slots()
        })
    }

    /// Whether a device of the vdev can be read and has all that was written to it.
    #[must_use]
    pub fn has_whole_copy(&self, vdev: u32) -> bool {
        self.top(vdev).is_some_and(|top| {
            let leaves = top.leaves();
            leaves
                .iter()
                .any(|leaf| leaf.is_readable() && !leaf.writes.is_stale())
        })
    }

    /// Whether a top-level vdev is for intent logs alone.
    #[must_use]
    pub fn is_log(&self, vdev: u32) -> bool {
        let config = self.0.config.borrow();
        config
            .tops
            .iter()
            .any(|top| top.id == u64::from(vdev) && top.is_log)
    }

    /// Clears a lost flush of a log vdev whose devices are back, so that it is written to again: no txg depends on a flush it lost, and what the
    /// intent log had there was made durable elsewhere.
    fn clear_lost_flush(&self, vdev: u32) {
        if self.is_log(vdev)
            && let Some(top) = self.top(vdev)
        {
            top.lost.set(false);
        }
    }

    /// Returns the deflate ratio of the vdev: what 512 allocated bytes count in space accounting. 512 for disks and
    /// mirrors (the ratio only differs for raidz).
    ///
    /// # Errors
    /// [`VdevError::OutOfRange`] when there is no such vdev.
    pub fn deflate_ratio(&self, vdev: u32) -> Result<u64, VdevError> {
        let top = self.top(vdev).ok_or(VdevError::OutOfRange {
            vdev,
            offset: 0,
            size: 0,
        })?;
        Ok(top.layout.deflate_ratio(top.ashift))
    }

    /// Returns the allocatable bytes of the vdev, `None` when there is no such vdev.
    #[must_use]
    pub fn asize(&self, vdev: u32) -> Option<u64> {
        self.top(vdev).map(|top| top.asize.get())
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
            bias: AllocationBias::None,
            health: Health::Online,
            reason: None,
            stats: VdevStats::default(),
            asize: 0,
            ashift: 0,
            nparity: 0,
            type_name: "root".into(),
            children: config.tops.iter().map(|top| self.status_of(top)).collect(),
        };
        for top in &root.children {
            root.stats.merge(&top.stats);
            root.asize += top.asize;
        }
        // A pool without one of its top-level vdevs does not work; any other trouble below only degrades it, and so does a
        // log vdev that is away.
        // OpenZFS: module/zfs/vdev.c, vdev_propagate_state
        let health = |top: &VdevStatus| match top.health {
            Health::Online => Health::Online,
            Health::Degraded => Health::Degraded,
            _ if top.is_log => Health::Degraded,
            _ => Health::Unavailable,
        };
        root.health = root
            .children
            .iter()
            .map(health)
            .max()
            .unwrap_or(Health::Online);
        root
    }

    /// Sets error counters to zero, of one leaf or all, and reopens leaves that were taken out. Returns whether the configuration
    /// said of one of them that it is faulted.
    pub async fn clear_errors(&self, guid: Option<Guid>) -> bool {
        let mut lifted = false;
        for leaf in self.all_leaves() {
            if guid.is_none_or(|guid| guid == leaf.guid) {
                leaf.clear_counters();
                leaf.lift_fault();
                self.update_config(leaf.guid, |vdev| {
                    lifted |= std::mem::take(&mut vdev.faulted);
                });
                self.reopen_leaf(&leaf).await;
                if leaf.is_usable() {
                    self.clear_lost_flush(leaf.top);
                }
            }
        }
        lifted
    }

    /// Tries to open every leaf that is not open and may be. Returns how many came back. What they missed meanwhile
    /// they still lack: they are read last until [`Tree::note_resilvered`].
    pub async fn reopen(&self) -> usize {
        let mut back = 0;
        for leaf in self.all_leaves() {
            let away = matches!(leaf.health(), Health::Unavailable | Health::Removed);
            if away && self.reopen_leaf(&leaf).await {
                self.clear_lost_flush(leaf.top);
                back += 1;
            }
        }
        back
    }

    /// Says that a leaf has everything of the txgs in `range`: it was resilvered.
    pub fn note_resilvered(&self, guid: Guid, range: &Range<u64>) {
        if let Some(leaf) = self.0.leaves.borrow().get(&guid) {
            leaf.writes.note_resilvered(range);
        }
    }

    /// Sets a leaf's DTL: the txgs of which it lacks writes. What it missed since [`Tree::take_missed_writes`] stays.
    pub fn set_dtl(&self, guid: Guid, ranges: &[Range<u64>]) {
        if let Some(leaf) = self.0.leaves.borrow().get(&guid) {
            leaf.writes.set_dtl(ranges);
        }
    }

    /// Returns how often a leaf stopped being online since the tree was opened; `None` for an unknown guid.
    #[must_use]
    pub fn absences(&self, guid: Guid) -> Option<u64> {
        self.0
            .leaves
            .borrow()
            .get(&guid)
            .map(|leaf| leaf.absences())
    }

    pub(crate) fn all_leaves(&self) -> Vec<Rc<Leaf>> {
        self.0.leaves.borrow().values().cloned().collect()
    }

    /// Returns true if the leaf was not usable and is now.
    pub(crate) async fn reopen_leaf(&self, leaf: &Leaf) -> bool {
        // One at a time: for the other the device would be in use, and it would say so of a leaf that is open.
        let _opening = leaf.opening.lock().await;
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
        if let Some((vdev, top)) = found {
            if leaf.writes.is_dirty() {
                // Whatever took the device away may have taken its cache, too.
                leaf.writes.note_lost();
                leaf.writes.forget_dirty();
            }
            leaf.close();
            let least_asize = least_asize_of(&top.layout, top.asize.get());
            let guid = self.0.config.borrow().guid;
            leaf.open(&vdev, self.0.mode, guid, top.ashift, least_asize, false)
                .await;
            if leaf.is_usable() {
                self.note_return(leaf.guid);
            }
        }
        leaf.is_usable()
    }

    /// Closes all devices. Later calls fail with `Unavailable`.
    pub fn close(&self) {
        for leaf in self.0.leaves.borrow().values() {
            leaf.close();
        }
    }

    pub(crate) fn top(&self, vdev: u32) -> Option<Rc<Top>> {
        self.0.tops.borrow().get(vdev as usize).cloned().flatten()
    }

    /// Returns the vdev of a range that lies inside it, in whole sectors.
    pub(crate) fn top_for(&self, at: Location) -> Result<Rc<Top>, VdevError> {
        let top = self.top(at.vdev).ok_or(out_of_range(at))?;
        let sector = (1_u64 << top.ashift) - 1;
        let asize = top.asize.get();
        let inside = at.size <= asize
            && at
                .offset
                .checked_add(top.layout.asize_of(top.ashift, at.size))
                .is_some_and(|end| end <= asize);
        if inside && at.size != 0 && at.offset & sector == 0 && at.size & sector == 0 {
            Ok(top)
        } else {
            Err(out_of_range(at))
        }
    }

    fn status_of(&self, vdev: &VdevConfig) -> VdevStatus {
        let leaf = self.0.leaves.borrow().get(&vdev.guid).cloned();
        let mut status = VdevStatus {
            kind: vdev.kind.clone(),
            id: vdev.id,
            guid: vdev.guid,
            path: vdev.path.clone(),
            is_log: vdev.is_log,
            bias: vdev.allocation_bias(),
            health: Health::Online,
            reason: None,
            stats: VdevStats::default(),
            asize: vdev.asize,
            ashift: vdev.ashift,
            nparity: vdev.nparity().unwrap_or(0),
            type_name: vdev.type_name(),
            children: vdev
                .children
                .iter()
                .map(|child| self.status_of(child))
                .collect(),
        };
        if matches!(vdev.kind, VdevKind::Hole | VdevKind::Indirect) {
            status.asize = 0;
            return status;
        }
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
        let count = |worst: Health| {
            let children = status.children.iter();
            children.filter(|child| child.health <= worst).count()
        };
        let (whole, usable) = (count(Health::Online), count(Health::Degraded));
        let needed = match &vdev.kind {
            VdevKind::Raidz | VdevKind::Draid => {
                let parity = usize::from(status.nparity.max(1));
                status.children.len().saturating_sub(parity)
            }
            _ => 1,
        };
        if usable < needed {
            status.health = Health::Unavailable;
            status.reason = Some("insufficient replicas".into());
        } else if whole < status.children.len() {
            status.health = Health::Degraded;
        }
        status
    }
}

impl ChildSlot {
    /// Returns the leaves, each of which should hold the slot's bytes.
    pub(crate) fn leaves(&self) -> Vec<Rc<Leaf>> {
        self.leaves.borrow().clone()
    }

    pub(crate) fn add(&self, leaf: Rc<Leaf>) {
        self.leaves.borrow_mut().push(leaf);
    }

    pub(crate) fn remove(&self, guid: Guid) {
        self.leaves.borrow_mut().retain(|leaf| leaf.guid != guid);
    }

    pub(crate) fn any(&self, test: impl Fn(&Leaf) -> bool) -> bool {
        self.leaves.borrow().iter().any(|leaf| test(leaf))
    }
}

impl Top {
    /// Returns all leaves in tree order.
    pub(crate) fn leaves(&self) -> Vec<Rc<Leaf>> {
        self.slots.iter().flat_map(ChildSlot::leaves).collect()
    }

    /// Returns the devices that should hold what a slot has at `offset` from the start of its data area.
    pub(crate) fn replicas(&self, slot: usize, offset: u64) -> Vec<ColumnReplica> {
        let mut replicas = Vec::new();
        self.add_replicas(slot, offset, &[], &mut replicas);
        replicas
    }

    fn add_replicas(
        &self,
        slot: usize,
        offset: u64,
        via: &[Rc<Leaf>],
        replicas: &mut Vec<ColumnReplica>,
    ) {
        for leaf in self.slots[slot].leaves() {
            let Some(number) = leaf.spare else {
                let via = via.to_vec();
                replicas.push(ColumnReplica { leaf, via });
                continue;
            };
            // Spares may stand in for each other's disks, but none for itself.
            let known = via.iter().any(|other| Rc::ptr_eq(other, &leaf));
            if let Layout::Draid(draid) = &self.layout
                && leaf.is_usable()
                && !known
                && let Some(other) = draid.spare_slot(number, offset)
            {
                let via: Vec<_> = via.iter().cloned().chain([leaf]).collect();
                self.add_replicas(other, offset, &via, replicas);
            }
        }
    }

    /// Returns the slot a leaf belongs to.
    pub(crate) fn slot_of(&self, guid: Guid) -> Option<&ChildSlot> {
        let mut slots = self.slots.iter();
        slots.find(|slot| slot.any(|leaf| leaf.guid == guid))
    }

    /// Returns the slots that cannot be reached.
    pub(crate) fn closed_slots(&self) -> Vec<usize> {
        let slots = self.slots.iter().enumerate();
        slots
            .filter(|(_, slot)| !slot.any(Leaf::is_usable))
            .map(|(index, _)| index)
            .collect()
    }

    /// Returns the slots that cannot be reached or may lack what was written in `txg`.
    pub(crate) fn doubtful_slots(&self, txg: Txg) -> Vec<usize> {
        let slots = self.slots.iter().enumerate();
        slots
            .filter(|(_, slot)| {
                !slot.any(|leaf| leaf.is_usable() && !leaf.writes.dtl_contains(txg))
            })
            .map(|(index, _)| index)
            .collect()
    }

    /// Returns true if the vdev was removed and its blocks are elsewhere.
    pub(crate) fn is_removed(&self) -> bool {
        self.removed
    }

    /// Returns true if blocks are spread over slots with parity.
    pub(crate) fn is_striped(&self) -> bool {
        self.layout != Layout::Copies
    }

    /// Returns true if another child is being added to it.
    pub(crate) fn is_expanding(&self) -> bool {
        self.expanding().is_some()
    }

    /// Returns what it becomes with the shape of `config`, and one more leaf behind the others if there is one. What is not
    /// flushed yet passes over: the caller has ended all I/O, and holds off flushes.
    pub(crate) fn reshaped(
        &self,
        config: &VdevConfig,
        leaf: Option<Rc<Leaf>>,
    ) -> Result<Self, VdevError> {
        let layout = layout_of(config)?;
        let leaves = self.slots.iter().map(ChildSlot::leaves);
        let leaves = leaves.chain(leaf.map(|leaf| Vec::from([leaf])));
        let slots = leaves.map(|leaves| ChildSlot {
            leaves: RefCell::new(leaves),
        });
        Ok(Self {
            id: self.id,
            removed: self.removed,
            ashift: self.ashift,
            asize: self.asize.clone(),
            layout,
            slots: slots.collect(),
            dirty: self.dirty.clone(),
            flushing: Rc::clone(&self.flushing),
            gate: Rc::clone(&self.gate),
            interval: RefCell::new(self.interval.take()),
            lost: self.lost.clone(),
            reflow: Cell::default(),
            ahead: Cell::default(),
            latencies: LatencyWatch::default(),
        })
    }

    /// Returns how many slots may be lost without losing data.
    pub(crate) fn spare_slots(&self) -> usize {
        self.layout.parity()
    }

    /// Returns where the bytes of a range with parity are.
    pub(crate) fn map(&self, at: Location) -> Map {
        self.map_with(at, false)
    }

    /// As [`Top::map`], with what fills up the last stripe.
    pub(crate) fn whole_map(&self, at: Location) -> Map {
        self.map_with(at, true)
    }

    fn map_with(&self, at: Location, whole: bool) -> Map {
        match &self.layout {
            Layout::Raidz(raidz) => Map::of_raidz(raidz, self.reflow.get(), self.ashift, at),
            Layout::Draid(draid) => draid.map(self.ashift, at.offset, at.size, whole),
            Layout::Copies => Map::plain(at.offset, at.size),
        }
    }

    /// Returns the end of the space a block takes.
    pub(crate) fn end_of(&self, at: Location) -> u64 {
        at.offset + self.layout.asize_of(self.ashift, at.size)
    }
}

/// Returns the leaf configurations of a top-level vdev, slot by slot.
pub(crate) fn leaf_configs(top: &VdevConfig) -> Vec<&VdevConfig> {
    slots_of(top).into_iter().flatten().collect()
}

/// Returns the leaf configurations of each slot.
fn slots_of(top: &VdevConfig) -> Vec<Vec<&VdevConfig>> {
    fn leaves<'a>(vdev: &'a VdevConfig, into: &mut Vec<&'a VdevConfig>) {
        if vdev.kind.is_leaf() {
            into.push(vdev);
        }
        for child in &vdev.children {
            leaves(child, into);
        }
    }
    let of = |vdev| {
        let mut found = Vec::new();
        leaves(vdev, &mut found);
        found
    };
    match top.kind {
        VdevKind::Raidz | VdevKind::Draid => top.children.iter().map(of).collect(),
        VdevKind::Indirect => Vec::new(),
        _ => vec![of(top)],
    }
}

pub(crate) fn layout_of(top: &VdevConfig) -> Result<Layout, VdevError> {
    let bad = |what| Err(VdevError::BadConfig { what });
    if top.kind == VdevKind::Draid {
        let number = |key| top.extra.u64(key).and_then(|n| u32::try_from(n).ok());
        let shape = number("draid_ndata").and_then(|data| {
            Draid::new(
                u32::try_from(top.children.len()).ok()?,
                top.nparity()?,
                data,
                number("draid_nspares")?,
                number("draid_ngroups")?,
            )
        });
        return match shape {
            Some(draid) => Ok(Layout::Draid(draid)),
            None => bad("a draid of an impossible shape"),
        };
    }
    if top.kind != VdevKind::Raidz {
        return Ok(Layout::Copies);
    }
    // OpenZFS: VDEV_RAIDZ_MAXPARITY, and at most 255 children.
    let parity = match top.nparity() {
        // Pools from before double parity do not say it.
        None => 1,
        Some(parity @ 1..=3) => parity,
        Some(_) => return bad("nparity out of range"),
    };
    let width = match u32::try_from(top.children.len()) {
        Ok(width) if width > u32::from(parity) && width <= 255 => width,
        _ => return bad("a raidz of an impossible width"),
    };
    let expanded: Vec<Txg> = top
        .extra
        .u64s("raidz_expand_txgs")
        .unwrap_or(&[])
        .iter()
        .map(|&txg| Txg(txg))
        .collect();
    let expanding = top.is_expanding();
    let first_width = (width as usize).checked_sub(expanded.len() + usize::from(expanding));
    if first_width.is_none_or(|first| first <= usize::from(parity)) || !expanded.is_sorted() {
        return bad("raidz_expand_txgs");
    }
    Ok(Layout::Raidz(Raidz {
        width,
        parity,
        expanded,
        expanding,
    }))
}

/// Returns what each leaf must offer at least.
pub(crate) fn least_asize_of(layout: &Layout, asize: u64) -> u64 {
    match layout {
        Layout::Copies => asize,
        Layout::Raidz(raidz) => asize.div_ceil(u64::from(raidz.width - u32::from(raidz.expanding))),
        Layout::Draid(draid) => draid.least_asize_of(asize),
    }
}

/// Refuses trees this version cannot serve.
pub(crate) fn check_shape(top: &VdevConfig) -> Result<(), VdevError> {
    let unsupported = |kind: &VdevKind| VdevError::Unsupported {
        kind: kind.as_str().to_owned(),
    };
    match &top.kind {
        VdevKind::Hole => return Ok(()),
        VdevKind::Indirect if top.asize == 0 => return Ok(()),
        VdevKind::Indirect => {}
        VdevKind::Disk | VdevKind::File => {}
        VdevKind::Mirror
        | VdevKind::Raidz
        | VdevKind::Draid
        | VdevKind::Replacing
        | VdevKind::Spare => {
            if top.children.is_empty() {
                return Err(VdevError::BadConfig {
                    what: "a mirror without children",
                });
            }
            layout_of(top)?;
            for child in &top.children {
                check_child(child)?;
            }
            let spares = leaf_configs(top)
                .into_iter()
                .filter_map(VdevConfig::spare_number);
            let count = match layout_of(top)? {
                Layout::Draid(draid) => draid.spares,
                _ => 0,
            };
            if spares.into_iter().any(|spare| spare >= count) {
                return Err(VdevError::BadConfig {
                    what: "a distributed spare of another vdev",
                });
            }
        }
        other => return Err(unsupported(other)),
    }
    if !(ASHIFT_MIN..=ASHIFT_MAX).contains(&top.ashift) {
        return Err(VdevError::BadConfig {
            what: "ashift out of range",
        });
    }
    // Offsets are stored in 55 bits of 512 bytes at most; far below, sums cannot overflow.
    if top.asize == 0 || top.asize > 1 << 62 || !top.asize.is_multiple_of(1 << top.ashift) {
        return Err(VdevError::BadConfig {
            what: "asize out of range",
        });
    }
    if top.kind == VdevKind::Indirect {
        return Ok(());
    }
    // The smallest metaslab of old pools is one block of 128 KiB; the count bounds what the allocator keeps in memory.
    if !(17..=60).contains(&top.metaslab_shift) || top.asize >> top.metaslab_shift > METASLABS_MAX {
        return Err(VdevError::BadConfig {
            what: "metaslab_shift out of range",
        });
    }
    Ok(())
}

/// Below a top-level vdev there are leaves, and what stands for a leaf while it is replaced.
fn check_child(child: &VdevConfig) -> Result<(), VdevError> {
    if child.kind.is_leaf() {
        return Ok(());
    }
    if !matches!(child.kind, VdevKind::Replacing | VdevKind::Spare) {
        return Err(VdevError::Unsupported {
            kind: child.kind.as_str().to_owned(),
        });
    }
    if child.children.is_empty() {
        return Err(VdevError::BadConfig {
            what: "a replacing or spare vdev without children",
        });
    }
    child.children.iter().try_for_each(check_child)
}

pub(crate) fn leaf_failure(leaf: &Leaf, offset: u64, size: u64, error: LeafError) -> VdevError {
    match error {
        LeafError::Closed | LeafError::Stuck => VdevError::Unavailable { vdev: leaf.top },
        LeafError::Device(source) => VdevError::Device {
            vdev: leaf.top,
            offset,
            size,
            source,
        },
    }
}

pub(crate) fn out_of_range(at: Location) -> VdevError {
    VdevError::OutOfRange {
        vdev: at.vdev,
        offset: at.offset,
        size: at.size,
    }
}
