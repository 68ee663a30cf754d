//! One open file system, volume or snapshot.

use std::rc::Rc;

use dmu::{Objset, Tx, TxWeight};
use ondisk::dsl::dataset_flags;
use ondisk::feature::Feature;
use ondisk::{Guid, ObjectId, Txg};
use zil::Zilog;

use crate::dataset_state::{DatasetState, Ownership};
use crate::dsl_dir::{DslDir, available};
use crate::dsl_pool::{DslPool, Found};
use crate::error::{DslError, Result};
use crate::features::Features;
use crate::property::{DatasetKind, Property, Value};
use crate::space::{self, charged, signed};
use crate::types::{Estimate, SpaceInfo, Traffic};

impl DslPool {
    /// Returns a handle that keeps a dataset from being destroyed, without its object set: what is encrypted needs no key for that.
    pub(crate) async fn hold_dataset(self: &Rc<Self>, found: Found) -> Result<Dataset> {
        let state = self.load_dataset(found.dataset, found.snapshot).await?;
        Ok(Dataset::new(self.clone(), state))
    }

    /// Opens a dataset's objects and returns a handle.
    ///
    /// # Errors
    /// `Busy` while it is owned.
    pub(crate) async fn open_dataset(self: &Rc<Self>, found: Found) -> Result<Dataset> {
        let state = self.load_dataset(found.dataset, found.snapshot).await?;
        if state.is_owned() {
            let name = self.name_of(&state.dir());
            return Err(DslError::Busy { name });
        }
        let dataset = Dataset::new(self.clone(), state.clone());
        self.open_objset(&state).await?;
        self.kind_of(&state.dir()).await?;
        Ok(dataset)
    }

    /// As [`Self::open_dataset`], for users: what a receive fills, or left to be gone on with, is not opened, since a handle would keep the
    /// receive from its end.
    ///
    /// # Errors
    /// `Busy` also for what is not whole.
    pub(crate) async fn open_whole(self: &Rc<Self>, found: Found) -> Result<Dataset> {
        let state = self
            .load_dataset(found.dataset, found.snapshot.clone())
            .await?;
        if state.phys().flags & dataset_flags::INCONSISTENT != 0 {
            let name = self.name_of(&state.dir());
            return Err(DslError::Busy { name });
        }
        self.open_dataset(found).await
    }

    /// As [`Self::open_dataset`], without keys where they are not loaded.
    pub(crate) async fn open_dataset_raw(self: &Rc<Self>, found: Found) -> Result<Dataset> {
        if self.keys_if_loaded(&found.dir).await?.is_some()
            || self.key_object(&found.dir).await?.is_none()
        {
            return self.open_dataset(found).await;
        }
        let state = self.load_dataset(found.dataset, found.snapshot).await?;
        let dataset = Dataset::new(self.clone(), state.clone());
        self.open_objset_raw(&state).await?;
        Ok(dataset)
    }

    /// Holds a head so that it does not change: what was written to it is on stable storage on return, and nothing else opens its objects
    /// until the ownership is dropped.
    ///
    /// # Errors
    /// `Busy` when its objects are open; of the pool.
    // OpenZFS: module/zfs/dsl_dataset.c, dsl_dataset_own
    pub(crate) async fn own_head(self: &Rc<Self>, found: Found) -> Result<(Dataset, Ownership)> {
        let dataset = self.hold_dataset(found).await?;
        let state = Rc::clone(&dataset.state);
        let is_whole = state.phys().flags & dataset_flags::INCONSISTENT == 0;
        if state.handles() != 1 || state.is_owned() || !is_whole {
            let name = dataset.name();
            return Err(DslError::Busy { name });
        }
        let ownership = Ownership::take(state);
        self.services.clock.sync_all().await?;
        Ok((dataset, ownership))
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
        self.state.close_handle();
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
        state.open_handle();
        Self { pool, state }
    }

    pub(crate) fn state(&self) -> &DatasetState {
        &self.state
    }

    pub(crate) fn pool_features(&self) -> &Features {
        &self.pool.features
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
        self.state.traffic()
    }

    /// Counts a request that read `bytes` of its contents.
    pub fn note_read(&self, bytes: u64) {
        self.state.count_traffic(|traffic| {
            traffic.reads += 1;
            traffic.read_bytes += bytes;
        });
    }

    /// Counts a request that wrote `bytes` of its contents.
    pub fn note_written(&self, bytes: u64) {
        self.state.count_traffic(|traffic| {
            traffic.writes += 1;
            traffic.written_bytes += bytes;
        });
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
        assert!(
            !self.state.phys().is_snapshot(),
            "nothing is added to a snapshot"
        );
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
            let deferred = pool.services.store().space().deferred;
            let (limit, error) = self.limit_of(dir, net_free, deferred);
            if used >= limit {
                let root = dir.parent().is_none();
                let soon = root && used - limit < deferred + pool.sync.sync_bplist.sizes().used;
                return Err(if soon {
                    Shortage::Soon(error)
                } else {
                    Shortage::Error(error)
                });
            }
            // A little more than the limit may be in flight: estimates are generous.
            let soft = limit.saturating_add(limit / INFLIGHT_BEYOND_LIMIT);
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

    /// The bytes that a directory may use, and what exceeding them is called. `deferred` bytes of the pool are not free yet.
    fn limit_of(&self, dir: &Rc<DslDir>, net_free: bool, deferred: u64) -> (u64, DslError) {
        let pool = &self.pool;
        let quota = dir.phys().quota;
        let (mut limit, mut error) = (u64::MAX, DslError::NoSpace);
        if !net_free && quota != 0 {
            limit = quota;
            error = DslError::Quota {
                name: pool.name_of(dir),
            };
        }
        if dir.parent().is_none() {
            let pool_bytes = pool.pool_size(u32::from(net_free)).saturating_sub(deferred);
            if pool_bytes < limit {
                return (pool_bytes, DslError::NoSpace);
            }
        }
        (limit, error)
    }

    /// Returns the effective number of a native property (recordsize, compression, atime, ...), from
    /// memory. Properties that are computed or kept in the objset are not known here: they give
    /// their defaults.
    #[must_use]
    pub fn number(&self, property: Property) -> u64 {
        self.state.effective(property, Value::number).unwrap_or(0)
    }

    /// Returns the effective text of a native property, from memory.
    #[must_use]
    pub fn text(&self, property: Property) -> String {
        self.state
            .effective(property, |value| value.text().map(str::to_owned))
            .unwrap_or_default()
    }

    /// Grows whenever a property in force here changed.
    #[must_use]
    pub fn properties_version(&self) -> u64 {
        self.state.properties_version()
    }

    /// Grows when an effective property or a feature of the pool may have changed.
    #[must_use]
    pub fn settings_version(&self) -> u64 {
        self.properties_version() + self.pool_features().version()
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

    /// Whether blocks of the dataset may be clones (feature `block_cloning`; it is counted with the first of a vdev).
    #[must_use]
    pub fn allows_cloning(&self) -> bool {
        self.pool.features.is_enabled("block_cloning")
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

/// The part of a limit that may be in flight beyond it.
// OpenZFS: module/zfs/dsl_dir.c, dsl_dir_tempreserve_impl has a thirty-second, and counts what is dirty 24 times (spa_asize_inflation)
const INFLIGHT_BEYOND_LIMIT: u64 = 32 * 24;

/// Freed blocks become allocatable after two further txgs.
const WAITS_FOR_DEFERRED_FREES: u32 = 4;

enum Shortage {
    /// Estimates of what is in flight stand in the way.
    Retry,
    /// There is no room, but deferred frees of earlier txgs will make some.
    Soon(DslError),
    Error(DslError),
}
