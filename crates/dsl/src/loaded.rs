//! Directories and datasets in memory, and which of them are to be written back.
//!
//! Guarantees: at most one object in memory for each directory and dataset; a dataset stays loaded while it has handles,
//! an intent log, dirty objects or a head that refers to it.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use dmu::Objset;
use ondisk::{ObjectId, Txg};

use crate::dataset_state::DatasetState;
use crate::dsl_dir::{DirtySet, DslDir};

/// What is loaded of a pool.
#[derive(Default)]
pub(crate) struct Loaded {
    dirs: RefCell<BTreeMap<ObjectId, Rc<DslDir>>>,
    dirty_dirs: DirtySet,
    datasets: RefCell<BTreeMap<ObjectId, Rc<DatasetState>>>,
    dirty_datasets: DirtySet,
}

impl Loaded {
    /// The set a new directory joins when it becomes dirty.
    pub(crate) fn dirty_dirs(&self) -> DirtySet {
        self.dirty_dirs.clone()
    }

    /// The set a new dataset joins when it becomes dirty.
    pub(crate) fn dirty_datasets(&self) -> DirtySet {
        self.dirty_datasets.clone()
    }

    pub(crate) fn dir(&self, object: ObjectId) -> Option<Rc<DslDir>> {
        self.dirs.borrow().get(&object).cloned()
    }

    pub(crate) fn dataset(&self, object: ObjectId) -> Option<Rc<DatasetState>> {
        self.datasets.borrow().get(&object).cloned()
    }

    /// Adds a directory, unless another task loaded it meanwhile; returns the one in memory.
    pub(crate) fn add_dir(&self, dir: DslDir) -> Rc<DslDir> {
        let mut dirs = self.dirs.borrow_mut();
        let dir = dirs.entry(dir.object).or_insert_with(|| Rc::new(dir));
        dir.clone()
    }

    /// Adds a dataset, unless another task loaded it meanwhile; returns the one in memory.
    pub(crate) fn add_dataset(&self, state: DatasetState) -> Rc<DatasetState> {
        let mut datasets = self.datasets.borrow_mut();
        let state = datasets
            .entry(state.object)
            .or_insert_with(|| Rc::new(state));
        state.clone()
    }

    /// Removes a directory that was destroyed.
    pub(crate) fn remove_dir(&self, object: ObjectId) {
        let removed = self.dirs.borrow_mut().remove(&object);
        assert!(
            removed.is_some(),
            "directory {object} was loaded to be destroyed"
        );
        self.dirty_dirs.borrow_mut().remove(&object);
    }

    /// Removes a dataset that was destroyed.
    pub(crate) fn remove_dataset(&self, state: &DatasetState) {
        let removed = self.datasets.borrow_mut().remove(&state.object);
        assert!(
            removed.is_some(),
            "dataset {} was loaded to be destroyed",
            state.object
        );
        self.dirty_datasets.borrow_mut().remove(&state.object);
        state.set_objset(None);
    }

    /// Datasets in or below a directory.
    pub(crate) fn datasets_below(&self, dir: &Rc<DslDir>) -> Vec<Rc<DatasetState>> {
        let datasets = self.datasets.borrow();
        datasets
            .values()
            .filter(|state| dir.contains(&state.dir()))
            .cloned()
            .collect()
    }

    /// Datasets whose objects are open.
    pub(crate) fn open_objsets(&self) -> Vec<(Rc<DatasetState>, Objset)> {
        let datasets = self.datasets.borrow();
        datasets
            .values()
            .filter_map(|state| Some((state.clone(), state.objset()?)))
            .collect()
    }

    /// Whether a dataset has this identity.
    pub(crate) fn has_fsid(&self, fsid: u64) -> bool {
        let datasets = self.datasets.borrow();
        datasets
            .values()
            .any(|state| state.phys().fsid_guid == fsid)
    }

    /// Whether a directory or dataset is to be written back.
    pub(crate) fn is_dirty(&self) -> bool {
        !self.dirty_dirs.borrow().is_empty() || !self.dirty_datasets.borrow().is_empty()
    }

    /// Takes the directories to be written back.
    pub(crate) fn take_dirty_dirs(&self) -> BTreeSet<ObjectId> {
        std::mem::take(&mut *self.dirty_dirs.borrow_mut())
    }

    /// Takes the datasets to be written back.
    pub(crate) fn take_dirty_datasets(&self) -> BTreeSet<ObjectId> {
        std::mem::take(&mut *self.dirty_datasets.borrow_mut())
    }

    /// What the transactions of a txg changed was written, and counts as used: it is no longer in flight.
    pub(crate) fn end_inflight(&self, txg: Txg) {
        for dir in self.dirs.borrow().values() {
            dir.end_inflight(txg);
        }
    }

    /// A txg is on disk: idle datasets are evicted.
    pub(crate) fn synced(&self, txg: Txg) {
        for state in self.datasets.borrow().values() {
            let Some(log) = state.log() else { continue };
            log.synced(txg);
            if state.handles() == 0 {
                log.retire();
            }
        }
        let idle: Vec<ObjectId> = {
            let datasets = self.datasets.borrow();
            let is_idle = |state: &DatasetState| {
                state.handles() == 0
                    && state.log().is_none_or(|log| !log.has_chain())
                    && !state.is_dirty_later(txg)
            };
            datasets
                .values()
                .filter(|state| is_idle(state))
                .map(|state| state.object)
                .collect()
        };
        let dirty = self.dirty_datasets.borrow();
        for object in idle.into_iter().filter(|object| !dirty.contains(object)) {
            let mut datasets = self.datasets.borrow_mut();
            // Still reachable as the previous snapshot of an open head: there must be one of each.
            if datasets
                .get(&object)
                .is_some_and(|state| Rc::strong_count(state) == 1)
            {
                datasets.remove(&object);
            }
        }
    }
}
