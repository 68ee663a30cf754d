//! Directories (`dsl_dir`) in memory: the position of a dataset in the tree and the space of everything below it.
//!
//! A directory and all above it stay in memory once loaded, so that space moves up the tree without
//! I/O. Changed ones are written back by the sync pass.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use ondisk::dsl::{DslDirPhys, UsedBy};
use ondisk::{ObjectId, Txg};

use crate::deadlist::Deadlist;
use crate::property::{DatasetKind, Value};
use crate::space::{self, Delta, Transfer};

/// Objects to be written back at the end of a pass, shared by all of a pool.
pub(crate) type DirtySet = Rc<RefCell<BTreeSet<ObjectId>>>;

/// Stored properties of one directory or snapshot, as named on disk.
pub(crate) type PropMap = BTreeMap<String, Value>;

/// A loaded directory.
pub(crate) struct DslDir {
    pub(crate) object: ObjectId,
    pub(crate) parent: RefCell<Option<Rc<Self>>>,
    /// The last component of the name; empty for the root.
    pub(crate) name: RefCell<String>,
    phys: Cell<DslDirPhys>,
    /// Directories to be written back, shared by all of a pool.
    dirty: DirtySet,
    /// Bytes that transactions of each txg not yet synced may still add.
    inflight: RefCell<BTreeMap<Txg, u64>>,
    /// Stored properties, once read.
    pub(crate) props: RefCell<Option<Rc<PropMap>>>,
    /// Creation txg of the snapshot it was cloned from, 0 if it is no clone.
    pub(crate) origin_txg: Cell<u64>,
    /// The livelist of a clone, once looked up: `Some(None)` when it has none.
    pub(crate) livelist: RefCell<Option<Option<Rc<Deadlist>>>>,
    /// Kind of its head dataset, once looked up.
    pub(crate) kind: Cell<Option<DatasetKind>>,
}

impl DslDir {
    pub(crate) fn new(
        object: ObjectId,
        parent: Option<Rc<Self>>,
        name: String,
        phys: DslDirPhys,
        origin_txg: u64,
        dirty: DirtySet,
    ) -> Self {
        Self {
            object,
            parent: RefCell::new(parent),
            name: RefCell::new(name),
            phys: Cell::new(phys),
            dirty,
            inflight: RefCell::default(),
            props: RefCell::default(),
            origin_txg: Cell::new(origin_txg),
            livelist: RefCell::new(None),
            kind: Cell::new(None),
        }
    }

    pub(crate) fn phys(&self) -> DslDirPhys {
        self.phys.get()
    }

    /// Changes the stored fields; they are written back at the end of the pass.
    pub(crate) fn change(&self, f: impl FnOnce(&mut DslDirPhys)) {
        let mut phys = self.phys.get();
        f(&mut phys);
        if phys != self.phys.get() {
            self.phys.set(phys);
            self.dirty.borrow_mut().insert(self.object);
        }
    }

    pub(crate) fn parent(&self) -> Option<Rc<Self>> {
        self.parent.borrow().clone()
    }

    /// The full name, given the pool's.
    pub(crate) fn full_name(&self, pool: &str) -> String {
        let mut components = vec![self.name.borrow().clone()];
        let mut above = self.parent();
        while let Some(dir) = above {
            components.push(dir.name.borrow().clone());
            above = dir.parent();
        }
        components.pop();
        let mut name = String::from(pool);
        for component in components.iter().rev() {
            name.push('/');
            name.push_str(component);
        }
        name
    }

    /// This directory and all above it, the root last.
    pub(crate) fn chain(self: &Rc<Self>) -> Vec<Rc<Self>> {
        let mut chain = vec![self.clone()];
        let mut above = self.parent();
        while let Some(dir) = above {
            above = dir.parent();
            chain.push(dir);
        }
        chain
    }

    /// Changes one part of the used space here, and what follows above.
    pub(crate) fn did_use(&self, part: UsedBy, delta: Delta) {
        let mut up = None;
        self.change(|phys| up = Some(space::did_use(phys, part, delta)));
        self.propagate(up);
    }

    /// Applies a transfer here, and what follows above.
    pub(crate) fn transfer(&self, step: Transfer) {
        let mut up = None;
        self.change(|phys| up = Some(space::transfer(phys, step)));
        self.propagate(up);
    }

    fn propagate(&self, step: Option<Transfer>) {
        let mut step = step;
        let mut above = self.parent();
        while let (Some(dir), Some(transfer)) = (above, step) {
            dir.change(|phys| step = Some(space::transfer(phys, transfer)));
            above = dir.parent();
        }
    }

    /// Moves bytes between two parts of the used space.
    pub(crate) fn move_part(&self, bytes: i64, from: UsedBy, to: UsedBy) {
        self.change(|phys| space::move_part(phys, bytes, from, to));
    }

    pub(crate) fn inflight(&self) -> u64 {
        self.inflight.borrow().values().sum()
    }

    pub(crate) fn add_inflight(&self, txg: Txg, bytes: u64) {
        *self.inflight.borrow_mut().entry(txg).or_insert(0) += bytes;
    }

    pub(crate) fn end_inflight(&self, txg: Txg) {
        self.inflight.borrow_mut().retain(|t, _| *t > txg);
    }

    /// Whether `other` is this directory or lies below it.
    pub(crate) fn contains(self: &Rc<Self>, other: &Rc<Self>) -> bool {
        other.chain().iter().any(|dir| dir.object == self.object)
    }
}

/// Space available to a directory as recorded on disk; `pool_size` is what the pool offers.
pub(crate) fn available(dir: &Rc<DslDir>, pool_size: u64, with_inflight: bool) -> u64 {
    available_below(dir, None, 0, pool_size, with_inflight)
}

/// As [`available`], as if `ancestor` used `delta` bytes less.
pub(crate) fn available_below(
    dir: &Rc<DslDir>,
    ancestor: Option<ObjectId>,
    delta: u64,
    pool_size: u64,
    with_inflight: bool,
) -> u64 {
    let used_of = |dir: &DslDir| {
        let inflight = if with_inflight { dir.inflight() } else { 0 };
        dir.phys().used_bytes.saturating_add(inflight)
    };
    room_of(dir, ancestor, delta, pool_size, used_of)
}

/// As [`available`], where `charged` is used besides what is on disk.
pub(crate) fn available_beside(dir: &Rc<DslDir>, pool_size: u64, charged: &SpaceCharged) -> u64 {
    let used_of = |dir: &DslDir| {
        let more = charged.0.get(&dir.object).copied().unwrap_or(0);
        dir.phys().used_bytes.saturating_add(more)
    };
    room_of(dir, None, 0, pool_size, used_of)
}

/// Space that changes take which are checked together, by directory.
#[derive(Default)]
pub(crate) struct SpaceCharged(BTreeMap<ObjectId, u64>);

impl SpaceCharged {
    /// Adds what a change takes in a directory, and in those above it as far as it does not fit into reservations.
    pub(crate) fn add(&mut self, dir: &Rc<DslDir>, bytes: u64) {
        let mut growth = bytes;
        for dir in dir.chain() {
            let d = dir.phys();
            let noted = self.0.entry(dir.object).or_insert(0);
            let before = d.used_bytes.saturating_add(*noted);
            *noted = noted.saturating_add(growth);
            let above = space::charged(before, d.reserved, space::signed(growth));
            growth = u64::try_from(above).unwrap_or(0);
        }
    }
}

fn room_of(
    dir: &Rc<DslDir>,
    ancestor: Option<ObjectId>,
    delta: u64,
    pool_size: u64,
    used_of: impl Fn(&DslDir) -> u64,
) -> u64 {
    let mut room = u64::MAX;
    for dir in dir.chain().iter().rev() {
        let phys = dir.phys();
        let mut used = used_of(dir);
        let mut limit = if phys.quota == 0 {
            u64::MAX
        } else {
            phys.quota
        };
        if dir.parent().is_none() {
            limit = limit.min(pool_size);
        }
        if ancestor == Some(dir.object) {
            used = used.saturating_sub(delta);
            if room != u64::MAX {
                room = room.saturating_add(delta);
            }
        }
        room = space::available(room, used, phys.reserved, limit);
    }
    room
}
