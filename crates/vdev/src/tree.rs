//! The open tree: top-level vdevs and their leaves, shape checks, status, reopening.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use ondisk::Guid;
use runtime::Handle;
use runtime::sync::{Event, Mutex};

use crate::leaf::{Leaf, LeafError};
use crate::{
    ASHIFT_MAX, ASHIFT_MIN, AllocationBias, Health, LeafInfo, Location, OpenMode, TopInfo,
    TreeConfig, TreeTuning, VdevConfig, VdevError, VdevKind, VdevStats, VdevStatus,
};

/// Most metaslabs accepted of one vdev. OpenZFS makes at most 131,072 of a new vdev, more only by growing it.
const METASLABS_MAX: u64 = 1 << 20;
/// Block size by which the deflate ratio is defined.
const DEFLATE_BLOCK: u64 = 128 << 10;

/// The open device tree of one pool. Clones share it.
#[derive(Clone)]
pub struct Tree(pub(crate) Rc<Inner>);

pub(crate) struct Inner {
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
    /// Ranges some copy of which is known to be bad and may be rewritten.
    pub(crate) suspects: RefCell<Vec<Rc<SuspectState>>>,
}

/// One top-level vdev: a leaf, or leaves that hold the same bytes.
pub(crate) struct Top {
    pub(crate) id: u32,
    pub(crate) guid: Guid,
    pub(crate) kind: VdevKind,
    pub(crate) ashift: u8,
    pub(crate) asize: u64,
    pub(crate) leaves: Vec<Rc<Leaf>>,
    /// Written since the last flush.
    pub(crate) dirty: Cell<bool>,
    /// Held over a flush: whoever finds nothing dirty must know that it is durable, not on its way.
    pub(crate) flushing: Mutex<()>,
    /// A flush failed where no other leaf could stand in.
    pub(crate) lost: Cell<bool>,
}

pub(crate) struct SuspectState {
    pub(crate) at: Location,
    /// Somebody wrote here since: the bytes in hand are old.
    pub(crate) overwritten: Cell<bool>,
    pub(crate) repairing: Cell<bool>,
    pub(crate) repaired: Event,
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
                dirty: Cell::new(false),
                flushing: Mutex::new("another flush of this vdev", ()),
                lost: Cell::new(false),
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
                    bias: vdev.allocation_bias(),
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
            bias: AllocationBias::None,
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
    // Offsets are stored in 55 bits of 512 bytes at most; far below, sums cannot overflow.
    if top.asize == 0 || top.asize > 1 << 62 || !top.asize.is_multiple_of(1 << top.ashift) {
        return Err(VdevError::BadConfig {
            what: "asize out of range",
        });
    }
    // The smallest metaslab of old pools is one block of 128 KiB; the count bounds what the allocator keeps in memory.
    if !(17..=60).contains(&top.metaslab_shift) || top.asize >> top.metaslab_shift > METASLABS_MAX {
        return Err(VdevError::BadConfig {
            what: "metaslab_shift out of range",
        });
    }
    Ok(())
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
