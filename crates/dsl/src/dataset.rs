//! One open file system, volume or snapshot.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use dmu::{Objset, ObjsetOptions, Tx, TxWeight, zap};
use ondisk::dsl::DslDatasetPhys;
use ondisk::feature::{self, Feature};
use ondisk::{Guid, ObjectId, ObjectType, Txg};
use zil::Zilog;

use crate::deadlist::Deadlist;
use crate::dir::{DslDir, available};
use crate::dsl_pool::{DslPool, Found};
use crate::error::{DslError, Result};
use crate::file_owner::owner_of;
use crate::property::{DatasetKind, PROPERTIES, Property, Value};
use crate::property_zap::PropertyScope;
use crate::space::{self, charged, signed};
use crate::types::{Estimate, SpaceInfo, Traffic};
use crate::userspace::QuotaObjects;
use crate::write_policy::write_policy;

/// A dataset in memory: its stored fields, and its objects while it is open.
pub(crate) struct DatasetState {
    pub(crate) object: ObjectId,
    /// Where it lies; a promotion moves snapshots.
    dir: RefCell<Rc<DslDir>>,
    pub(crate) snapshot: RefCell<Option<String>>,
    phys: Cell<DslDatasetPhys>,
    dirty: Rc<RefCell<BTreeSet<ObjectId>>>,
    /// The previous snapshot (of the origin, for a clone), for heads.
    pub(crate) prev: RefCell<Option<Rc<Self>>>,
    pub(crate) deadlist: RefCell<Option<Rc<Deadlist>>>,
    objset: RefCell<Option<Objset>>,
    log: RefCell<Option<Zilog>>,
    handles: Cell<u32>,
    pub(crate) ref_quota: Cell<u64>,
    pub(crate) ref_reserved: Cell<u64>,
    /// Features counted for this dataset, by short name.
    pub(crate) features: RefCell<BTreeSet<&'static str>>,
    /// Features it needs since the last sync.
    pub(crate) wanted: RefCell<BTreeSet<&'static str>>,
    effective: RefCell<BTreeMap<Property, Value>>,
    version: Cell<u64>,
    /// Its quota ZAPs, once looked for.
    pub(crate) quotas: Cell<Option<QuotaObjects>>,
    traffic: Cell<Traffic>,
}

impl DatasetState {
    pub(crate) fn new(
        object: ObjectId,
        dir: Rc<DslDir>,
        snapshot: Option<String>,
        phys: DslDatasetPhys,
        dirty: Rc<RefCell<BTreeSet<ObjectId>>>,
    ) -> Self {
        Self {
            object,
            dir: RefCell::new(dir),
            snapshot: RefCell::new(snapshot),
            phys: Cell::new(phys),
            dirty,
            prev: RefCell::default(),
            deadlist: RefCell::default(),
            objset: RefCell::default(),
            log: RefCell::default(),
            handles: Cell::new(0),
            ref_quota: Cell::new(0),
            ref_reserved: Cell::new(0),
            features: RefCell::default(),
            wanted: RefCell::default(),
            effective: RefCell::default(),
            version: Cell::new(1),
            quotas: Cell::new(None),
            traffic: Cell::default(),
        }
    }

    /// The last snapshot of a head is loaded by its object, without its name; the name is set by the first lookup by name.
    fn set_name_if_unknown(&self, snapshot: Option<String>) {
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
        *self.log.borrow_mut() = head.map(Zilog::new);
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
    pub(crate) fn apply_scope(&self, scope: &PropertyScope, pool: &DslPool) {
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
            objset.set_policy(write_policy(scope, &pool.features));
        }
    }
}

impl DslPool {
    /// Loads a dataset's fields and what accounting needs; its objects stay closed.
    pub(crate) async fn load_dataset(
        self: &Rc<Self>,
        object: ObjectId,
        snapshot: Option<String>,
    ) -> Result<Rc<DatasetState>> {
        if let Some(state) = self.datasets.borrow().get(&object) {
            state.set_name_if_unknown(snapshot);
            return Ok(state.clone());
        }
        let phys = self.dataset_phys(object).await?;
        let dir = self.dir(ObjectId(phys.dir_obj)).await?;
        let state = DatasetState::new(
            object,
            dir.clone(),
            snapshot.clone(),
            phys,
            self.dirty_datasets.clone(),
        );
        if !phys.is_snapshot() {
            let scope = self.scope(&dir, None).await?;
            state.apply_scope(&scope, self);
            if phys.prev_snap_obj != 0 {
                let prev = ObjectId(phys.prev_snap_obj);
                let prev = Box::pin(self.load_dataset(prev, None)).await?;
                *state.prev.borrow_mut() = Some(prev);
            }
        }
        *state.features.borrow_mut() = self.dataset_features(object).await?;
        let state = Rc::new(state);
        // Another task may have loaded it meanwhile; there must be one of each.
        let mut datasets = self.datasets.borrow_mut();
        let state = datasets.entry(object).or_insert(state);
        state.set_name_if_unknown(snapshot);
        Ok(state.clone())
    }

    /// Features counted for a dataset: keys of its object when that is zapified.
    async fn dataset_features(&self, object: ObjectId) -> Result<BTreeSet<&'static str>> {
        let mut active = BTreeSet::new();
        if self.mos.object_info(object).await?.object_type != ObjectType::ZAP_METADATA {
            return Ok(active);
        }
        for feature in feature::ALL.iter().filter(|f| f.per_dataset) {
            if zap::lookup(&self.mos, object, feature.guid)
                .await?
                .is_some()
            {
                active.insert(feature.name);
            }
        }
        Ok(active)
    }

    /// The deadlist of a dataset, open.
    pub(crate) async fn deadlist_of(&self, state: &DatasetState) -> Result<Rc<Deadlist>> {
        if let Some(list) = state.deadlist.borrow().clone() {
            return Ok(list);
        }
        let object = ObjectId(state.phys().deadlist_obj);
        let list = Rc::new(Deadlist::open(&self.mos, object).await?);
        *state.deadlist.borrow_mut() = Some(list.clone());
        Ok(list)
    }

    /// Opens a dataset's objects and returns a handle.
    pub(crate) async fn open_dataset(self: &Rc<Self>, found: Found) -> Result<Dataset> {
        let state = self.load_dataset(found.dataset, found.snapshot).await?;
        let dataset = Dataset::new(self.clone(), state.clone());
        self.open_objset(&state).await?;
        self.kind_of(&state.dir()).await?;
        Ok(dataset)
    }

    /// Opens a dataset's objects, if they are not.
    pub(crate) async fn open_objset(self: &Rc<Self>, state: &Rc<DatasetState>) -> Result<()> {
        if state.objset().is_some() {
            return Ok(());
        }
        let phys = state.phys();
        if phys.bp.uses_crypt() {
            let name = self.name_of(&state.dir());
            return Err(DslError::KeyNotLoaded { name });
        }
        let snapshot = phys.is_snapshot();
        let props = snapshot.then_some(ObjectId(phys.props_obj));
        let scope = self.scope(&state.dir(), props).await?;
        let options = ObjsetOptions {
            policy: write_policy(&scope, &self.features),
            read_only: snapshot || self.read_only,
            owner_of: Some(owner_of),
            ..ObjsetOptions::dataset(state.object.0)
        };
        let objset = Objset::open(&self.services, phys.bp, options).await?;
        // There must be one objset of each, also if two tasks opened it at once.
        if state.objset().is_none() {
            state.set_objset(Some(objset));
        }
        state.apply_scope(&scope, self);
        Ok(())
    }

    /// Space numbers of a loaded head.
    pub(crate) fn head_space(&self, dir: &Rc<DslDir>, phys: &DslDatasetPhys) -> SpaceInfo {
        let d = dir.phys();
        let [
            head,
            snapshots,
            children,
            child_reservations,
            refreservation,
        ] = d.used_breakdown;
        SpaceInfo {
            used: d.used_bytes,
            available: 0,
            referenced: phys.referenced_bytes,
            used_by_snapshots: snapshots,
            used_by_dataset: head,
            used_by_children: children.saturating_add(child_reservations),
            used_by_refreservation: refreservation,
            logical_used: d.uncompressed_bytes,
            logical_referenced: phys.uncompressed_bytes,
            written: 0,
            compress_ratio: space::ratio(d.uncompressed_bytes, d.compressed_bytes),
            ref_compress_ratio: space::ratio(phys.uncompressed_bytes, phys.compressed_bytes),
            unique: phys.unique_bytes,
        }
    }
}

/// An open file system, volume or snapshot. While a handle exists it cannot be destroyed.
pub struct Dataset {
    pool: Rc<DslPool>,
    state: Rc<DatasetState>,
}

impl Clone for Dataset {
    fn clone(&self) -> Self {
        Self::new(self.pool.clone(), self.state.clone())
    }
}

impl Drop for Dataset {
    fn drop(&mut self) {
        self.state.handles.set(self.state.handles.get() - 1);
    }
}

impl std::fmt::Debug for Dataset {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Dataset")
            .field("name", &self.name())
            .finish_non_exhaustive()
    }
}

impl Dataset {
    fn new(pool: Rc<DslPool>, state: Rc<DatasetState>) -> Self {
        state.handles.set(state.handles.get() + 1);
        Self { pool, state }
    }

    pub(crate) fn state(&self) -> &DatasetState {
        &self.state
    }

    pub(crate) fn needs_enabled(&self, feature: &'static str) -> Result<()> {
        if self.pool.features.is_enabled(feature) {
            Ok(())
        } else {
            Err(DslError::FeatureDisabled { feature })
        }
    }

    /// Returns what was read and written since it was opened.
    #[must_use]
    pub fn traffic(&self) -> Traffic {
        self.state.traffic.get()
    }

    /// Counts a request that read `bytes` of its contents.
    pub fn note_read(&self, bytes: u64) {
        let mut traffic = self.state.traffic.get();
        traffic.reads += 1;
        traffic.read_bytes += bytes;
        self.state.traffic.set(traffic);
    }

    /// Counts a request that wrote `bytes` of its contents.
    pub fn note_written(&self, bytes: u64) {
        let mut traffic = self.state.traffic.get();
        traffic.writes += 1;
        traffic.written_bytes += bytes;
        self.state.traffic.set(traffic);
    }

    /// Returns its full name now (a rename changes it).
    #[must_use]
    pub fn name(&self) -> String {
        let name = self.pool.name_of(&self.state.dir());
        match &*self.state.snapshot.borrow() {
            Some(snapshot) => format!("{name}@{snapshot}"),
            None => name,
        }
    }

    /// Returns its identity.
    #[must_use]
    pub fn guid(&self) -> Guid {
        Guid(self.state.phys().guid)
    }

    /// Returns the identity file handles and `statfs` use: 56 bits, unique in the pool.
    #[must_use]
    pub fn fsid(&self) -> u64 {
        self.state.phys().fsid_guid
    }

    /// Returns its object in the meta-objset.
    #[must_use]
    pub fn object(&self) -> ObjectId {
        self.state.object
    }

    /// Returns the object of the head it is or is a snapshot of; a promotion changes it for the snapshots that move.
    #[must_use]
    pub fn head_object(&self) -> ObjectId {
        ObjectId(self.state.dir().phys().head_dataset_obj)
    }

    /// Returns what it is.
    #[must_use]
    pub fn kind(&self) -> DatasetKind {
        if self.state.phys().is_snapshot() {
            return DatasetKind::Snapshot;
        }
        self.head_kind()
    }

    /// Returns what it is, or what it is a snapshot of.
    #[must_use]
    pub fn head_kind(&self) -> DatasetKind {
        self.state
            .dir()
            .kind
            .get()
            .unwrap_or(DatasetKind::Filesystem)
    }

    /// Returns the txg it was created in.
    #[must_use]
    pub fn create_txg(&self) -> Txg {
        Txg(self.state.phys().creation_txg)
    }

    /// Returns its objects.
    #[must_use]
    pub fn objset(&self) -> Objset {
        self.state
            .objset()
            .expect("a dataset's objects are open while a handle exists")
    }

    /// Returns the intent log of a file system or volume; `None` of a snapshot.
    #[must_use]
    pub fn log(&self) -> Option<Zilog> {
        self.state.log()
    }

    /// Whether changes are refused: a snapshot, or a pool imported read-only. The property
    /// `readonly` is the caller's to obey.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        self.objset().is_read_only()
    }

    /// Begins a transaction: waits for the write throttle, joins the open txg, and makes sure
    /// that quotas, reservations and the pool have room. Never call it while holding another.
    ///
    /// # Errors
    /// `Quota` or `NoSpace` when there is no room and none is about to be freed; `ReadOnly`;
    /// `Dmu(Stopped)` when the pool no longer takes transactions.
    pub async fn begin(&self, estimate: Estimate) -> Result<Tx> {
        if self.is_read_only() {
            return Err(DslError::ReadOnly);
        }
        let clock = &self.pool.services.clock;
        let copies = self.number(Property::Copies).clamp(1, 3);
        let asize = self.pool.worst_asize(estimate, copies);
        for attempt in 0u32.. {
            let weight = TxWeight {
                bytes_dirtied_estimate: estimate.dirty_bytes(),
                unthrottled: estimate.net_free,
            };
            let tx = clock.begin(weight).await?;
            match self.reserve(asize, estimate.net_free, tx.txg()) {
                Ok(()) => return Ok(tx),
                Err(Shortage::Error(error)) => return Err(error),
                // Every txg defers some frees to later ones, so waiting for them must end.
                Err(Shortage::Soon(error)) if attempt >= WAITS_FOR_DEFERRED_FREES => {
                    return Err(error);
                }
                Err(Shortage::Retry | Shortage::Soon(_)) => {
                    // What is in flight may need less than estimated, or free space.
                    let txg = tx.txg();
                    drop(tx);
                    clock.wait_synced(txg).await?;
                }
            }
        }
        unreachable!("the loop ends by returning")
    }

    /// Checks the rules for adding `asize` bytes, from the dataset up to the pool, and notes the
    /// bytes as in flight. OpenZFS: module/zfs/dsl_dir.c, `dsl_dir_tempreserve_impl`.
    fn reserve(&self, asize: u64, net_free: bool, txg: Txg) -> std::result::Result<(), Shortage> {
        let pool = &self.pool;
        let phys = self.state.phys();
        let reserved = self.state.ref_reserved.get();
        let unfilled = reserved.saturating_sub(phys.unique_bytes);
        let chain = self.state.dir().chain();
        let mut growth = asize;
        let mut noted: Vec<(Rc<DslDir>, u64)> = Vec::with_capacity(chain.len());
        for (depth, dir) in chain.iter().enumerate() {
            let d = dir.phys();
            let inflight = dir.inflight();
            let mut used = d.used_bytes;
            let mut from_reservation = 0;
            if depth == 0 {
                used = used.saturating_sub(unfilled);
                if unfilled > 0 {
                    let more = signed(growth.saturating_add(inflight));
                    let above = u64::try_from(self.state.charged(more)).unwrap_or(0);
                    from_reservation = growth - growth.min(above);
                }
                let quota = self.state.ref_quota.get();
                if !net_free && quota != 0 && phys.referenced_bytes + inflight >= quota {
                    if inflight > 0 {
                        return Err(Shortage::Retry);
                    }
                    return Err(Shortage::Error(DslError::Quota { name: self.name() }));
                }
            }
            let mut limit = u64::MAX;
            let mut error = DslError::NoSpace;
            if !net_free && d.quota != 0 {
                limit = d.quota;
                error = DslError::Quota {
                    name: pool.name_of(dir),
                };
            }
            let root = dir.parent().is_none();
            let deferred = pool.services.store().space().deferred;
            if root {
                let pool_bytes = pool.pool_size(u32::from(net_free)).saturating_sub(deferred);
                if pool_bytes < limit {
                    limit = pool_bytes;
                    error = DslError::NoSpace;
                }
            }
            if used >= limit {
                let soon = root && used - limit < deferred + pool.sync_bplist.sizes().used;
                return Err(if soon {
                    Shortage::Soon(error)
                } else {
                    Shortage::Error(error)
                });
            }
            // A little more than the limit may be in flight: estimates are generous.
            let soft = if limit == u64::MAX {
                limit
            } else {
                limit + (limit >> 5)
            };
            if used.saturating_add(inflight) >= soft {
                return Err(Shortage::Retry);
            }
            noted.push((dir.clone(), growth));
            let before = used.saturating_add(inflight);
            let above = charged(before, d.reserved, signed(growth - from_reservation));
            growth = u64::try_from(above).unwrap_or(0);
            if growth == 0 {
                break;
            }
        }
        for (dir, bytes) in noted {
            dir.add_inflight(txg, bytes);
        }
        Ok(())
    }

    /// Returns the effective number of a native property (recordsize, compression, atime, ...), from
    /// memory. Properties that are computed or kept in the objset are not known here: they give
    /// their defaults.
    #[must_use]
    pub fn number(&self, property: Property) -> u64 {
        let effective = self.state.effective.borrow();
        effective
            .get(&property)
            .and_then(Value::number)
            .unwrap_or(0)
    }

    /// Returns the effective text of a native property, from memory.
    #[must_use]
    pub fn text(&self, property: Property) -> String {
        let effective = self.state.effective.borrow();
        effective
            .get(&property)
            .and_then(Value::text)
            .unwrap_or("")
            .to_owned()
    }

    /// Grows whenever a property in force here changed.
    #[must_use]
    pub fn properties_version(&self) -> u64 {
        self.state.version.get()
    }

    /// Returns its space as `statfs` wants it: referenced and available are exact as of the last
    /// sync; `written` is not computed.
    #[must_use]
    pub fn space(&self) -> SpaceInfo {
        let phys = self.state.phys();
        if phys.is_snapshot() {
            return SpaceInfo {
                used: phys.unique_bytes,
                referenced: phys.referenced_bytes,
                logical_referenced: phys.uncompressed_bytes,
                unique: phys.unique_bytes,
                ..SpaceInfo::default()
            };
        }
        let room = available(&self.state.dir(), self.pool.pool_size(0), false);
        SpaceInfo {
            available: space::available_to_dataset(
                room,
                phys.unique_bytes,
                phys.referenced_bytes,
                self.state.ref_reserved.get(),
                self.state.ref_quota.get(),
            ),
            ..self.pool.head_space(&self.state.dir(), &phys)
        }
    }

    /// Whether records of changed attributes may be written to the intent log (feature `zilsaxattr`; it is counted for the
    /// dataset with its first log block).
    #[must_use]
    pub fn logs_attributes(&self) -> bool {
        self.pool.features.is_enabled("zilsaxattr")
    }

    /// Declares that a per-dataset feature is needed by what is being written (`large_dnode`);
    /// it is counted at the next sync. Features of large blocks, compressions and checksums are activated
    /// without it.
    pub fn needs_feature(&self, name: &str) {
        let Some(feature) = Feature::by_name(name).filter(|f| f.per_dataset) else {
            return;
        };
        if !self.state.features.borrow().contains(feature.name) {
            self.state.wanted.borrow_mut().insert(feature.name);
        }
    }
}

/// Freed blocks become allocatable after two further txgs.
const WAITS_FOR_DEFERRED_FREES: u32 = 4;

enum Shortage {
    /// Estimates of what is in flight stand in the way.
    Retry,
    /// There is no room, but deferred frees of earlier txgs will make some.
    Soon(DslError),
    Error(DslError),
}
