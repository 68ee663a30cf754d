//! An imported pool: its state in memory, and its handle.
//!
//! The loop that syncs it is in `sync`, the ways to get one in `create` and `import`.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::future::Future;
use std::ops::Range;
use std::path::PathBuf;
use std::pin::Pin;
use std::rc::Rc;

use arc::Cache;
use dmu::{Objset, Services, Tx, TxgClock, zap};
use dsl::Hierarchy;
use ondisk::{Guid, ObjectId, Txg, Uberblock};
use runtime::sync::{Event, OneshotSender, oneshot};
use runtime::{Handle, JoinHandle};
use vdev::Tree;
use zio::BlockStore;

use crate::auxiliary::AuxiliaryDevices;
use crate::config::{self, Identity};
use crate::error_log::ErrorLogs;
use crate::rewind::Rewound;
use crate::space::{Dtls, SpaceMaps};
use crate::spec::HostIdentity;
use crate::status::HistoryRecord;
use crate::{PoolError, history, scan};

/// Object number of the meta-objset's directory.
pub(crate) const DIRECTORY: ObjectId = ObjectId(1);

/// Key in a top-level vdev's ZAP: which blocks the vdev is for, as a word with its NUL.
// OpenZFS: include/sys/fs/zfs.h, VDEV_TOP_ZAP_ALLOCATION_BIAS
pub(crate) const ALLOCATION_BIAS: &str = "org.zfsonlinux:allocation_bias";

/// An imported pool.  Clones are handles to the same one.
///
/// It lives on the engine thread of the runtime it was opened with.  Dropping all handles without
/// [`Pool::export`] leaves the pool as a crash would: consistent at its last synced txg.
#[derive(Clone)]
pub struct Pool(pub(crate) Rc<ImportedPool>);

/// Work of the pool's own that runs at the start of a sync.
type SyncWork = Box<
    dyn FnOnce(Rc<ImportedPool>, Rc<Tx>) -> Pin<Box<dyn Future<Output = Result<(), PoolError>>>>,
>;

pub(crate) struct SyncTask {
    pub(crate) work: SyncWork,
    pub(crate) done: OneshotSender<Result<Txg, PoolError>>,
}

fn task(
    work: impl AsyncFnOnce(Rc<ImportedPool>, Rc<Tx>) -> Result<(), PoolError> + 'static,
    done: OneshotSender<Result<Txg, PoolError>>,
) -> SyncTask {
    let work: SyncWork = Box::new(move |imported, tx| Box::pin(work(imported, tx)));
    SyncTask { work, done }
}

/// A stored pool property.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum StoredValue {
    Number(u64),
    Text(String),
}

/// Objects of the meta-objset that belong to the pool as a whole; 0 where there is none.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PoolObjects {
    pub(crate) config: ObjectId,
    pub(crate) history: ObjectId,
    pub(crate) vdev_zap_map: ObjectId,
    pub(crate) properties: ObjectId,
}

pub(crate) struct ImportedPool {
    pub(crate) handle: Handle,
    pub(crate) tree: Tree,
    pub(crate) services: Services,
    pub(crate) cache: Cache,
    pub(crate) store: BlockStore,
    pub(crate) mos: Objset,
    pub(crate) hierarchy: Hierarchy,
    pub(crate) host: HostIdentity,
    pub(crate) identity: RefCell<Identity>,
    /// The name in use; differs from the stored one after an import with a temporary name.
    pub(crate) name: RefCell<String>,
    pub(crate) altroot: Option<PathBuf>,
    pub(crate) cachefile: RefCell<Option<String>>,
    pub(crate) readonly: bool,
    /// Fresh at every import (`load_guid`).
    pub(crate) load_guid: u64,
    pub(crate) objects: Cell<PoolObjects>,
    pub(crate) properties: RefCell<BTreeMap<String, StoredValue>>,
    pub(crate) space: Rc<SpaceMaps>,
    pub(crate) dtls: Dtls,
    /// The txgs the import discarded.
    pub(crate) rewound: Option<Rewound>,
    /// Hot spares and cache devices.
    pub(crate) spares: AuxiliaryDevices,
    pub(crate) caches: AuxiliaryDevices,
    /// When missing devices are polled next.
    pub(crate) next_poll: Cell<runtime::Instant>,
    /// Spares that did not fit: failed device, spare.
    pub(crate) rejected_spares: RefCell<BTreeSet<(Guid, Guid)>>,
    /// Spares are being activated.
    pub(crate) activating_spares: Cell<bool>,
    /// When it was opened.
    pub(crate) opened: runtime::Instant,
    pub(crate) scan: scan::ScanState,
    pub(crate) error_logs: ErrorLogs,
    /// State number the labels carry.
    pub(crate) label_state: Cell<u64>,
    /// The config object must be written again.
    pub(crate) config_dirty: Cell<bool>,
    /// The labels must be written again.
    pub(crate) labels_dirty: Cell<bool>,
    /// Feature version the labels and config were made from.
    pub(crate) features_version: Cell<u64>,
    /// Features the labels named last.
    pub(crate) features_in_labels: RefCell<Vec<String>>,
    /// Leaves whose missed writes could not be recorded in their own txg, with the txgs.
    pub(crate) missed_after_commit: RefCell<Vec<(Guid, Vec<Range<u64>>)>>,
    pub(crate) tasks: RefCell<VecDeque<SyncTask>>,
    /// Those that run before anything of their txg is freed.
    pub(crate) early_tasks: RefCell<VecDeque<SyncTask>>,
    /// Why the pool is suspended.
    pub(crate) suspended: RefCell<Option<String>>,
    /// It is suspended because there is no room, not because of devices.
    pub(crate) lack_of_space: Cell<bool>,
    /// A txg could not be completed: only another import brings the pool back.
    pub(crate) dead: Cell<bool>,
    /// Notified when the pool is resumed or closed.
    pub(crate) resumed: Event,
    pub(crate) closed: Cell<bool>,
    pub(crate) sync_loop: RefCell<Option<JoinHandle<()>>>,
    /// The newest uberblock.
    pub(crate) last_uberblock: Cell<Uberblock>,
    pub(crate) checkpoint: crate::checkpoint::CheckpointState,
    pub(crate) leaf_activities: crate::initialize_trim::LeafActivities,
    pub(crate) removal: crate::removal::Removals,
    pub(crate) rebuild: crate::rebuild::Rebuilds,
    pub(crate) autotrim: crate::autotrim::AutotrimState,
    pub(crate) multihost: crate::multihost::MultihostState,
    pub(crate) events: crate::events::EventLog,
}

impl Pool {
    /// Returns the name in use.
    #[must_use]
    pub fn name(&self) -> String {
        self.0.name.borrow().clone()
    }

    /// Returns the pool's guid.
    #[must_use]
    pub fn guid(&self) -> u64 {
        self.0.identity.borrow().guid
    }

    /// Returns the alternate root it was imported with.
    #[must_use]
    pub fn altroot(&self) -> Option<PathBuf> {
        self.0.altroot.clone()
    }

    /// Whether it was imported read-only.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        self.0.readonly
    }

    /// Returns the datasets.
    #[must_use]
    pub fn hierarchy(&self) -> &Hierarchy {
        &self.0.hierarchy
    }

    /// Returns the clock of transaction groups.
    #[must_use]
    pub fn clock(&self) -> &TxgClock {
        &self.0.services.clock
    }

    /// Returns the meta-objset.
    #[must_use]
    pub fn mos(&self) -> &Objset {
        &self.0.mos
    }

    /// Returns the block store.
    #[must_use]
    pub fn store(&self) -> &BlockStore {
        &self.0.store
    }

    /// Returns the block cache.
    #[must_use]
    pub fn cache(&self) -> &Cache {
        &self.0.cache
    }

    /// Returns the device tree.
    #[must_use]
    pub fn tree(&self) -> &Tree {
        &self.0.tree
    }

    /// Makes everything changed so far durable (`zpool sync`).
    ///
    /// # Errors
    /// `Suspended` or `Closed` when that cannot happen any more.
    pub async fn sync(&self) -> Result<Txg, PoolError> {
        if self.0.readonly {
            return Ok(self.0.services.clock.last_synced());
        }
        let txg = self.0.services.clock.open_txg();
        self.wait_synced(txg).await?;
        Ok(txg)
    }

    /// Waits until `txg` is durable.
    ///
    /// # Errors
    /// `Suspended` or `Closed` when that cannot happen any more.
    pub async fn wait_synced(&self, txg: Txg) -> Result<(), PoolError> {
        Ok(self.0.services.clock.wait_synced(txg).await?)
    }

    /// Returns the history, oldest record first.
    ///
    /// # Errors
    /// When the history object cannot be read.
    pub async fn history(&self) -> Result<Vec<HistoryRecord>, PoolError> {
        let object = self.0.objects.get().history;
        if object.0 == 0 {
            return Ok(Vec::new());
        }
        if !self.0.readonly && self.0.suspended.borrow().is_none() {
            self.sync().await?;
        }
        history::list(&self.0.mos, object).await
    }

    /// Records a command line in the history.  It is written with the next transaction group.
    pub fn log_command(&self, command: &str, user: u64) {
        if self.0.readonly || self.0.closed.get() {
            return;
        }
        let record = history::command_record(command, user, self.0.unix_time(), &self.0.host);
        self.0.queue_history(record);
    }
}

impl ImportedPool {
    pub(crate) fn store(&self) -> &BlockStore {
        &self.store
    }

    pub(crate) fn clock(&self) -> &TxgClock {
        &self.services.clock
    }

    /// Seconds since 1970.
    pub(crate) fn unix_time(&self) -> u64 {
        unix_time(&self.handle)
    }

    pub(crate) fn set_objects(&self, change: impl FnOnce(&mut PoolObjects)) {
        let mut objects = self.objects.get();
        change(&mut objects);
        self.objects.set(objects);
    }

    /// Marks configuration and labels for rewriting with the next txg.
    pub(crate) fn dirty_config(&self) {
        self.config_dirty.set(true);
        self.labels_dirty.set(true);
    }

    /// Whether the next txg would have something to write although no transaction did.
    pub(crate) fn has_own_work(&self) -> bool {
        !self.tasks.borrow().is_empty()
            || !self.early_tasks.borrow().is_empty()
            || self.config_dirty.get()
            || self.labels_dirty.get()
            || !self.missed_after_commit.borrow().is_empty()
            || self.scan.is_dirty()
            || self.error_logs.is_dirty()
            || self.removal.has_work()
            || self.spares.is_dirty()
            || self.caches.is_dirty()
            || self.store().has_damaged()
    }

    /// Returns the guids of the features the labels must name.
    pub(crate) fn label_features(&self) -> Vec<String> {
        let features = self.hierarchy.features().active_in_labels();
        features
            .iter()
            .map(|feature| feature.guid.to_owned())
            .collect()
    }

    /// Runs `work` at the start of the next sync and waits until that txg is durable.
    pub(crate) async fn run_in_sync(
        &self,
        work: impl AsyncFnOnce(Rc<Self>, Rc<Tx>) -> Result<(), PoolError> + 'static,
    ) -> Result<(), PoolError> {
        self.run_in(&self.tasks, work).await
    }

    /// As [`ImportedPool::run_in_sync`], before anything is freed in that txg.
    pub(crate) async fn run_early(
        &self,
        work: impl AsyncFnOnce(Rc<Self>, Rc<Tx>) -> Result<(), PoolError> + 'static,
    ) -> Result<(), PoolError> {
        self.run_in(&self.early_tasks, work).await
    }

    async fn run_in(
        &self,
        queue: &RefCell<VecDeque<SyncTask>>,
        work: impl AsyncFnOnce(Rc<Self>, Rc<Tx>) -> Result<(), PoolError> + 'static,
    ) -> Result<(), PoolError> {
        if self.readonly {
            return Err(PoolError::ReadOnly);
        }
        // The sync loop has ended: the task would never run.
        if self.closed.get() {
            return Err(PoolError::Closed);
        }
        if self.dead.get() {
            return Err(PoolError::Suspended);
        }
        let (done, result) = oneshot("pool task");
        queue.borrow_mut().push_back(task(work, done));
        self.clock().kick();
        let txg = match result.await {
            Ok(result) => result?,
            Err(_) if self.suspended.borrow().is_some() => return Err(PoolError::Suspended),
            Err(_) => return Err(PoolError::Closed),
        };
        Ok(self.clock().wait_synced(txg).await?)
    }

    /// Queues a history record for the next txg.
    pub(crate) fn queue_history(&self, record: ondisk::NvList) {
        let (done, _) = oneshot("history record");
        let task = task(
            async move |imported: Rc<Self>, tx: Rc<Tx>| imported.append_history(&record, &tx).await,
            done,
        );
        self.tasks.borrow_mut().push_back(task);
    }

    /// Appends a record, creating the history object in pools that have none.
    pub(crate) async fn append_history(
        &self,
        record: &ondisk::NvList,
        tx: &Tx,
    ) -> Result<(), PoolError> {
        let mut object = self.objects.get().history;
        if object.0 == 0 {
            let bytes = self.store().space().deflated_size;
            object = history::create(&self.mos, bytes, tx).await?;
            zap::add_u64(&self.mos, DIRECTORY, "history", object.0, tx).await?;
            self.set_objects(|objects| objects.history = object);
        }
        self.notify_history(record);
        history::append(&self.mos, object, record, tx).await
    }

    /// Records an internal event (`zpool history -i`) in syncing context.
    pub(crate) async fn log_internal(
        &self,
        name: &str,
        text: &str,
        tx: &Tx,
    ) -> Result<(), PoolError> {
        let record =
            history::internal_record(name, None, text, tx.txg().0, self.unix_time(), &self.host);
        self.append_history(&record, tx).await
    }

    /// Records what happened to a dataset.
    pub(crate) async fn append_event(
        &self,
        event: &dsl::HistoryEvent,
        tx: &Tx,
    ) -> Result<(), PoolError> {
        let record = history::internal_record(
            event.name,
            Some((&event.dataset, event.object.0)),
            &event.text,
            event.txg.0,
            self.unix_time(),
            &self.host,
        );
        self.append_history(&record, tx).await
    }

    /// Encodes and stores the config object, creating it the first time.
    pub(crate) async fn write_config_object(&self, tx: &Tx) -> Result<(), PoolError> {
        // OpenZFS: module/zfs/spa.c, spa_sync_nvlist (packed nvlist in 16 KiB blocks, size in the bonus)
        let list = config::for_mos(
            &self.identity.borrow(),
            self.label_state.get(),
            tx.txg().0,
            &self.tree.config(),
            &self.label_features(),
        );
        let object = self.objects.get().config;
        let object = self.write_packed(object, "config", &list, tx).await?;
        self.set_objects(|objects| objects.config = object);
        self.config_dirty.set(false);
        Ok(())
    }

    /// Stores a list in an object of its own, which is created and entered in the directory under `key` if it is 0. Returns
    /// the object.
    pub(crate) async fn write_packed(
        &self,
        mut object: ObjectId,
        key: &str,
        list: &ondisk::NvList,
        tx: &Tx,
    ) -> Result<ObjectId, PoolError> {
        const BLOCK_SIZE: usize = 16 << 10;
        let mut packed = list.encode_xdr();
        let len = ondisk::bytes::len64(packed.len());
        if object.0 == 0 {
            let spec = dmu::AllocSpec::new(ondisk::ObjectType::PACKED_NVLIST)
                .block_size(u32::try_from(BLOCK_SIZE).expect("16 KiB"))
                .bonus(ondisk::ObjectType::PACKED_NVLIST_SIZE, 8);
            object = self.mos.allocate(spec, tx).await?;
            zap::add_u64(&self.mos, DIRECTORY, key, object.0, tx).await?;
        }
        packed.resize(packed.len().next_multiple_of(BLOCK_SIZE), 0);
        self.mos.write(object, 0, &packed, tx).await?;
        let kind = ondisk::ObjectType::PACKED_NVLIST_SIZE;
        self.mos
            .set_bonus(object, kind, &len.to_le_bytes(), tx)
            .await?;
        Ok(object)
    }
}

/// Seconds since 1970; times before it count as 0.
pub(crate) fn unix_time(handle: &Handle) -> u64 {
    u64::try_from(handle.wall_clock().seconds).unwrap_or(0)
}
