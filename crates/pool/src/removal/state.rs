//! The removal of a vdev with data in memory: the one under way, or the newest.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;

use ondisk::removal::RemovalPhys;
use ondisk::{Guid, ObjectId, Txg};
use runtime::JoinHandle;
use vdev::{AllocationBias, MappingEntry};

use super::table::IndirectTable;
use crate::space_map::Header;
use crate::spec::RemovalTuning;

/// Removals of vdevs with data: the one under way, or the newest.
pub(crate) struct Removals {
    pub(super) tuning: RemovalTuning,
    pub(super) phys: Cell<Option<RemovalPhys>>,
    pub(super) evacuation: RefCell<Option<Rc<Evacuation>>>,
    pub(super) obsolete: ObsoleteMaps,
    /// A removal is being prepared.
    pub(super) preparing: Cell<bool>,
    /// The pool is being closed.
    pub(super) closing: Cell<bool>,
    /// Evacuations stand still, for tests.
    pub(super) paused: Cell<bool>,
    pub(super) task: RefCell<Option<JoinHandle<()>>>,
}

/// An evacuation under way.
pub(super) struct Evacuation {
    pub(super) vdev: u32,
    pub(super) guid: Guid,
    pub(super) class: AllocationBias,
    pub(super) metaslab_shift: u8,
    pub(super) metaslabs: u64,
    pub(super) ashift: u8,
    pub(super) table: Cell<IndirectTable>,
    /// Offset up to which everything allocated was chosen for copying.
    pub(super) next: Cell<u64>,
    /// What was copied by txgs that have not been written.
    pub(super) pending: RefCell<BTreeMap<Txg, CopiedInTxg>>,
    /// The worker is to stop.
    pub(super) stopped: Cell<bool>,
}

impl Removals {
    pub(crate) fn new(tuning: RemovalTuning) -> Self {
        let paused = Cell::new(tuning.paused);
        Self {
            tuning,
            phys: Cell::new(None),
            evacuation: RefCell::new(None),
            obsolete: ObsoleteMaps::default(),
            preparing: Cell::new(false),
            closing: Cell::new(false),
            paused,
            task: RefCell::new(None),
        }
    }

    /// Whether a txg has something to write.
    pub(crate) fn has_work(&self) -> bool {
        let evacuation = self.evacuation.borrow();
        let pending = evacuation.as_ref().map(|e| !e.pending.borrow().is_empty());
        pending.unwrap_or(false)
    }

    pub(super) fn evacuation(&self) -> Option<Rc<Evacuation>> {
        self.evacuation.borrow().clone()
    }

    /// The vdev that is being evacuated.
    pub(crate) fn vdev(&self) -> Option<u32> {
        self.evacuation.borrow().as_ref().map(|e| e.vdev)
    }
}

/// What one txg has copied.
#[derive(Default)]
pub(super) struct CopiedInTxg {
    /// In order.
    pub(super) copied: Vec<MappingEntry>,
    /// Places that were found and are not needed.
    pub(super) unused: Vec<(u32, Range<u64>)>,
}

#[derive(Clone, Debug)]
pub(super) struct ObsoleteMap {
    pub(super) object: ObjectId,
    pub(super) header: Header,
    pub(super) block_size: u32,
}

/// The maps that were opened.
#[derive(Default)]
pub(super) struct ObsoleteMaps(pub(super) RefCell<BTreeMap<u32, ObsoleteMap>>);
