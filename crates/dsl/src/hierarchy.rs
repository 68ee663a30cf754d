//! Stub.
#![allow(
    clippy::unused_async,
    unused_variables,
    reason = "first landing: signatures only"
)]
use crate::dataset::Dataset;
use crate::error::Result;
use crate::features::Features;
use crate::property::Setting;
use crate::types::*;
use dmu::{Objset, Tx};
use ondisk::{BlockPointer, Txg};
use std::rc::Rc;

/// The datasets of one pool. Clones are handles to the same one.
#[derive(Clone)]
pub struct Hierarchy(Rc<()>);

impl Hierarchy {
    /// Makes the hierarchy of a new pool in an empty meta-objset: the object directory (object 1): the special
    /// directories, the feature objects, the free lists and the root dataset, which `init` fills.
    /// `tx` is the syncing transaction of the pool's first group; call [`Hierarchy::sync`] for it next.
    pub async fn create(
        mos: &Objset,
        options: HierarchyOptions,
        new: NewHierarchy,
        init: impl AsyncFnOnce(&Objset, &Tx, &[Setting]) -> Result<()> + 'static,
        tx: &Tx,
    ) -> Result<Self> {
        unimplemented!()
    }
    /// Opens the hierarchy of an existing pool.
    pub async fn open(mos: &Objset, options: HierarchyOptions) -> Result<Self> {
        unimplemented!()
    }
    /// The meta-objset.
    pub fn mos(&self) -> &Objset {
        unimplemented!()
    }
    /// The pool's features.
    pub fn features(&self) -> &Features {
        unimplemented!()
    }
    /// Changes the pool's name (import under a new name).
    pub fn set_pool_name(&self, name: &str) {
        unimplemented!()
    }
    /// Opens a file system, volume or snapshot by name. The handle keeps it from being destroyed.
    pub async fn dataset(&self, name: &str) -> Result<Dataset> {
        unimplemented!()
    }
    /// What is known of one dataset, snapshot or bookmark.
    pub async fn info(&self, name: &str) -> Result<DatasetInfo> {
        unimplemented!()
    }
    /// The dataset named and those below it that the spec asks for, sorted as `zfs list` sorts.
    pub async fn list(&self, name: &str, spec: ListSpec) -> Result<Vec<DatasetInfo>> {
        unimplemented!()
    }
    /// All properties of one dataset, snapshot or bookmark.
    pub async fn properties(&self, name: &str) -> Result<DatasetProperties> {
        unimplemented!()
    }
    /// Creates a file system (`init` fills it) and waits until it is on disk.
    pub async fn create_dataset(
        &self,
        new: NewDataset,
        init: impl AsyncFnOnce(&Objset, &Tx, &[Setting]) -> Result<()> + 'static,
    ) -> Result<()> {
        unimplemented!()
    }
    /// Destroys a file system or volume without snapshots, children and clones. Its blocks are freed in the background.
    pub async fn destroy(&self, name: &str) -> Result<()> {
        unimplemented!()
    }
    /// Renames a dataset within the pool; with `create_parents`... is driven from above.
    pub async fn rename(&self, from: &str, to: &str) -> Result<()> {
        unimplemented!()
    }
    /// Sets properties of a dataset or (user properties) snapshot, all or none.
    pub async fn set_properties(&self, name: &str, settings: Vec<Setting>) -> Result<()> {
        unimplemented!()
    }
    /// Clears a property; with `received`, goes back to the received value (`zfs inherit -S`).
    pub async fn inherit_property(&self, name: &str, property: &str, received: bool) -> Result<()> {
        unimplemented!()
    }
    /// Runs `task` in syncing context and waits until its group is on disk. The task must check everything before it
    /// changes anything: an error after a change suspends the pool.
    pub async fn submit<T: 'static>(
        &self,
        name: &'static str,
        task: impl AsyncFnOnce(&Hierarchy, &Tx) -> Result<T> + 'static,
    ) -> Result<T> {
        unimplemented!()
    }

    /// One pass of the sync of `txg`: dirty datasets, deadlists, directories, the meta-objset, and in pass 1 the queued tasks,
    /// deferred frees of the group before and a bounded step of background destruction. The caller repeats passes until
    /// `is_dirty(txg)` is false (which includes the meta-objset). Returns the meta-objset's root, writing space maps between them.
    pub async fn sync(&self, txg: Txg, pass: u32) -> Result<BlockPointer> {
        unimplemented!()
    }
    /// What happened to datasets since the last call, for the pool's history.
    pub fn take_events(&self) -> Vec<HistoryEvent> {
        unimplemented!()
    }
    /// Tells that `txg` is on disk: reservations of its transactions end.
    pub fn synced(&self, txg: Txg) {
        unimplemented!()
    }
    /// Whether blocks of destroyed datasets wait to be freed: the pool should keep syncing.
    pub fn has_background_work(&self) -> bool {
        unimplemented!()
    }
    /// Whether anything of `txg` waits to be synced (dirty datasets or queued tasks).
    pub fn is_dirty(&self, txg: Txg) -> bool {
        unimplemented!()
    }
    /// Bytes still to be freed in the background (`freeing` of the pool).
    pub fn freeing_bytes(&self) -> u64 {
        unimplemented!()
    }
    /// Frees a block of the pool's own in `txg` at the right time for the current pass (syncing context).
    pub async fn free_block(&self, bp: &ondisk::BlockPointer, tx: &Tx) -> Result<()> {
        unimplemented!()
    }
}
