//! A file system, volume or snapshot in memory: its stored fields, and its objects while it is open.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use dmu::Objset;
use ondisk::dsl::DslDatasetPhys;
use ondisk::{ObjectId, Txg};
use zil::{LogWriting, Zilog};

use crate::deadlist::Deadlist;
use crate::dsl_dir::{DirtySet, DslDir};
use crate::features::Features;
use crate::property::{PROPERTIES, Property, Value};
use crate::property_zap::PropertyScope;
use crate::space::charged;
use crate::types::ResumePoint;
use crate::types::Traffic;
use crate::write_policy::write_policy;

/// The quota ZAPs of a file system, in the order of `userspace::QUOTAS`; 0 for those it has not.
pub(crate) type QuotaObjects = [u64; 6];

/// A dataset in memory: its stored fields, and its objects while it is open.
pub(crate) struct DatasetState {
    pub(crate) object: ObjectId,
    /// Where it lies; a promotion moves snapshots.
    dir: RefCell<Rc<DslDir>>,
    pub(crate) snapshot: RefCell<Option<String>>,
    phys: Cell<DslDatasetPhys>,
    /// Datasets to be written back, shared by all of a pool.
    dirty: DirtySet,
    /// The previous snapshot (of the origin, for a clone), for heads.
    pub(crate) prev: RefCell<Option<Rc<Self>>>,
    pub(crate) deadlist: RefCell<Option<Rc<Deadlist>>>,
    objset: RefCell<Option<Objset>>,
    log: RefCell<Option<Zilog>>,
    handles: Cell<u32>,
    owned: Cell<bool>,
    pub(crate) ref_quota: Cell<u64>,
    pub(crate) ref_reserved: Cell<u64>,
    /// Features counted for this dataset, by short name.
    pub(crate) features: RefCell<BTreeSet<&'static str>>,
    /// Features it needs since the last sync.
    pub(crate) wanted: RefCell<BTreeSet<&'static str>>,
    effective: RefCell<BTreeMap<Property, Value>>,
    /// Whether its log is written.
    log_writing: LogWriting,
    version: Cell<u64>,
    /// Its quota ZAPs, once looked for.
    pub(crate) quotas: Cell<Option<QuotaObjects>>,
    traffic: Cell<Traffic>,
    /// How far a receive that can be resumed comes with each txg that is not on disk yet.
    resume_points: RefCell<BTreeMap<Txg, ResumePoint>>,
}

impl DatasetState {
    pub(crate) fn new(
        object: ObjectId,
        dir: Rc<DslDir>,
        snapshot: Option<String>,
        phys: DslDatasetPhys,
        log_writing: LogWriting,
        dirty: DirtySet,
    ) -> Self {
        Self {
            object,
            log_writing,
            dir: RefCell::new(dir),
            snapshot: RefCell::new(snapshot),
            phys: Cell::new(phys),
            dirty,
            prev: RefCell::default(),
            deadlist: RefCell::default(),
            objset: RefCell::default(),
            log: RefCell::default(),
            handles: Cell::new(0),
            owned: Cell::new(false),
            ref_quota: Cell::new(0),
            ref_reserved: Cell::new(0),
            features: RefCell::default(),
            wanted: RefCell::default(),
            effective: RefCell::default(),
            version: Cell::new(1),
            quotas: Cell::new(None),
            traffic: Cell::default(),
            resume_points: RefCell::default(),
        }
    }

    /// Notes that a record of a receive is applied in a txg.
    pub(crate) fn note_resume_point(&self, txg: Txg, point: ResumePoint) {
        self.resume_points.borrow_mut().insert(txg, point);
    }

    pub(crate) fn take_resume_point(&self, txg: Txg) -> Option<ResumePoint> {
        self.resume_points.borrow_mut().remove(&txg)
    }

    /// The last snapshot of a head is loaded by its object, without its name; the name is set by the first lookup by name.
    pub(crate) fn set_name_if_unknown(&self, snapshot: Option<String>) {
        let mut known = self.snapshot.borrow_mut();
        *known = known.take().or(snapshot);
    }

    pub(crate) fn phys(&self) -> DslDatasetPhys {
        self.phys.get()
    }

    pub(crate) fn dir(&self) -> Rc<DslDir> {
        self.dir.borrow().clone()
    }

    /// Moves it to another directory, as a promotion does with snapshots.
    pub(crate) fn set_dir(&self, dir: Rc<DslDir>) {
        let object = dir.object.0;
        *self.dir.borrow_mut() = dir;
        self.change(|phys| phys.dir_obj = object);
    }

    /// Changes the stored fields; they are written back at the end of the pass.
    pub(crate) fn change(&self, f: impl FnOnce(&mut DslDatasetPhys)) {
        let mut phys = self.phys.get();
        f(&mut phys);
        if phys != self.phys.get() {
            self.phys.set(phys);
            self.dirty.borrow_mut().insert(self.object);
        }
    }

    pub(crate) fn objset(&self) -> Option<Objset> {
        self.objset.borrow().clone()
    }

    /// Sets its objects; a head gets its intent log with them.
    pub(crate) fn set_objset(&self, objset: Option<Objset>) {
        let head = objset.as_ref().filter(|_| !self.phys().is_snapshot());
        *self.log.borrow_mut() = head.map(|objset| Zilog::new(objset, self.log_writing));
        // The ZAPs of the quotas are of the old objset.
        self.quotas.set(None);
        *self.objset.borrow_mut() = objset;
    }

    /// The intent log of an open head.
    pub(crate) fn log(&self) -> Option<Zilog> {
        self.log.borrow().clone()
    }

    pub(crate) fn handles(&self) -> u32 {
        self.handles.get()
    }

    /// Whether its objects are opened for one user alone.
    pub(crate) fn is_owned(&self) -> bool {
        self.owned.get()
    }

    /// Whether txgs after `txg` have dirty data of its objset.
    pub(crate) fn is_dirty_later(&self, txg: Txg) -> bool {
        let later = [Txg(txg.0 + 1), Txg(txg.0 + 2)];
        self.objset()
            .is_some_and(|os| later.iter().any(|t| os.is_dirty(*t)))
    }

    /// What more is charged to the directory when `unique` changes, under the refreservation.
    pub(crate) fn charged(&self, change: i64) -> i64 {
        charged(
            self.phys.get().unique_bytes,
            self.ref_reserved.get(),
            change,
        )
    }

    /// Takes over the properties in force and the write policy that follows from them.
    pub(crate) fn apply_scope(&self, scope: &PropertyScope, features: &Features) {
        let mut effective = BTreeMap::new();
        for descriptor in PROPERTIES {
            effective.insert(descriptor.property, scope.native(descriptor.property).value);
        }
        if !self.phys().is_snapshot() {
            self.ref_quota.set(scope.number(Property::RefQuota));
            self.ref_reserved
                .set(scope.number(Property::RefReservation));
        }
        if *self.effective.borrow() != effective {
            *self.effective.borrow_mut() = effective;
            self.version.set(self.version.get() + 1);
        }
        if let Some(objset) = self.objset() {
            objset.set_policy(write_policy(scope, features));
        }
    }

    /// Counts a handle that is opened.
    pub(crate) fn open_handle(&self) {
        self.handles.set(self.handles.get() + 1);
    }

    /// Counts a handle that is dropped.
    pub(crate) fn close_handle(&self) {
        let handles = self.handles.get();
        assert!(
            handles > 0,
            "a handle of dataset {} is dropped once",
            self.object
        );
        self.handles.set(handles - 1);
    }

    /// I/O since the dataset was loaded.
    pub(crate) fn traffic(&self) -> Traffic {
        self.traffic.get()
    }

    pub(crate) fn count_traffic(&self, count: impl FnOnce(&mut Traffic)) {
        let mut traffic = self.traffic.get();
        count(&mut traffic);
        self.traffic.set(traffic);
    }

    /// The effective value of a native property, converted by `get`.
    pub(crate) fn effective<T>(
        &self,
        property: Property,
        get: impl FnOnce(&Value) -> Option<T>,
    ) -> Option<T> {
        self.effective.borrow().get(&property).and_then(get)
    }

    /// Grows whenever an effective property changed.
    pub(crate) fn properties_version(&self) -> u64 {
        self.version.get()
    }
}

/// One user's right to be the only one that opens a head's objects; given up when it is dropped.
pub(crate) struct Ownership(Rc<DatasetState>);

impl Ownership {
    /// Takes the right to a head whose only handle is the caller's.
    pub(crate) fn take(state: Rc<DatasetState>) -> Self {
        assert!(
            state.handles() == 1 && !state.owned.replace(true),
            "dataset {} is owned by one user",
            state.object
        );
        Self(state)
    }
}

impl Drop for Ownership {
    fn drop(&mut self) {
        self.0.owned.set(false);
    }
}
