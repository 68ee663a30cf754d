//! An imported pool: its state in memory, and its handle.
//!
//! The loop that syncs it is in `sync`, the ways to get one in `create` and `import`.

use std::cell::{Cell, RefCell};
use std::path::PathBuf;
use std::rc::Rc;

use arc::Cache;
use dmu::{Objset, Services, Tx, TxgClock, zap};
use dsl::Hierarchy;
use ondisk::{ObjectId, Txg, Uberblock, pool_version};
use runtime::Handle;
use vdev::Tree;
use zio::BlockStore;

use crate::autotrim::AutotrimState;
use crate::auxiliary::Auxiliaries;
use crate::checkpoint::CheckpointState;
use crate::config::{self, Identity, PoolConfig};
use crate::dtl::Dtls;
use crate::error_log::ErrorLogs;
use crate::events::EventLog;
use crate::hot_spares::HotSpares;
use crate::hotplug::Hotplug;
use crate::initialize_trim::LeafActivities;
use crate::lifecycle::Lifecycle;
use crate::multihost::MultihostState;
use crate::objects::{DIRECTORY, PoolObjects};
use crate::properties::stored::{StoredProperties, StoredVdevProperties};
use crate::rebuild::Rebuilds;
use crate::reflow::Reflows;
use crate::removal::Removals;
use crate::rewind::Rewound;
use crate::scan::ScanState;
use crate::space::SpaceMaps;
use crate::spec::{HostIdentity, Tuning};
use crate::status::HistoryRecord;
use crate::sync::SyncLoop;
use crate::{PoolError, history};

/// An imported pool.  Clones are handles to the same one.
///
/// It lives on the engine thread of the runtime it was opened with.  Dropping all handles without
/// [`Pool::export`] leaves the pool as a crash would: consistent at its last synced txg.
#[derive(Clone)]
pub struct Pool(pub(crate) Rc<ImportedPool>);

/// How a pool was opened: facts that hold until it is closed.
pub(crate) struct ImportSession {
    /// This machine.
    pub(crate) host: HostIdentity,
    pub(crate) altroot: Option<PathBuf>,
    /// Where the pool is remembered; not stored in it.
    pub(crate) cachefile: RefCell<Option<String>>,
    pub(crate) readonly: bool,
    /// Fresh at every import (`load_guid`).
    pub(crate) load_guid: u64,
    /// The txgs the import discarded.
    pub(crate) rewound: Option<Rewound>,
    pub(crate) opened: runtime::Instant,
}

/// Handles of the layers below, of one pool.
struct Layers {
    handle: Handle,
    tree: Tree,
    services: Services,
    cache: Cache,
    store: BlockStore,
    mos: Objset,
    hierarchy: Hierarchy,
    space: Rc<SpaceMaps>,
}

/// What is known of devices beside the tree: what they missed, and those that stand by.
#[derive(Default)]
pub(crate) struct Devices {
    pub(crate) dtls: Dtls,
    pub(crate) auxiliaries: Auxiliaries,
    pub(crate) hot_spares: HotSpares,
}

/// What a pool does on its own, beside the sync loop: each part is the state of one activity.
pub(crate) struct Activities {
    pub(crate) hotplug: Hotplug,
    pub(crate) scan: ScanState,
    pub(crate) checkpoint: CheckpointState,
    pub(crate) leaf_activities: LeafActivities,
    pub(crate) removal: Removals,
    pub(crate) reflow: Reflows,
    pub(crate) rebuild: Rebuilds,
    pub(crate) autotrim: AutotrimState,
}

impl Activities {
    fn new(handle: &Handle, tuning: &Tuning) -> Self {
        Self {
            hotplug: Hotplug::new(handle.now()),
            scan: ScanState::default(),
            checkpoint: CheckpointState::default(),
            leaf_activities: LeafActivities::default(),
            removal: Removals::new(tuning.removal.clone()),
            reflow: Reflows::new(tuning.reflow.clone()),
            rebuild: Rebuilds::new(tuning.rebuild.clone()),
            autotrim: AutotrimState::default(),
        }
    }
}

/// An imported pool: handles of the layers below, and the parts that own its state.
pub(crate) struct ImportedPool {
    layers: Layers,
    pub(crate) session: ImportSession,
    pub(crate) config: PoolConfig,
    pub(crate) objects: Cell<PoolObjects>,
    pub(crate) properties: StoredProperties,
    pub(crate) vdev_properties: StoredVdevProperties,
    pub(crate) lifecycle: Lifecycle,
    pub(crate) sync: SyncLoop<Self>,
    pub(crate) devices: Devices,
    pub(crate) activities: Activities,
    pub(crate) error_logs: ErrorLogs,
    pub(crate) multihost: MultihostState,
    pub(crate) events: EventLog,
}

/// A tree with its block store and meta-objset.
pub(crate) struct OpenedMos {
    pub(crate) services: Services,
    pub(crate) cache: Cache,
    pub(crate) store: BlockStore,
    pub(crate) mos: Objset,
}

/// What [`ImportedPool::new`] needs: the opened layers, and what was read from the pool or is to be written to it.
pub(crate) struct PoolParts<'a> {
    pub(crate) handle: &'a Handle,
    pub(crate) tree: Tree,
    pub(crate) opened: OpenedMos,
    pub(crate) hierarchy: Hierarchy,
    pub(crate) space: Rc<SpaceMaps>,
    pub(crate) session: ImportSession,
    pub(crate) identity: Identity,
    /// Name in use.
    pub(crate) name: String,
    /// State number of the labels.
    pub(crate) label_state: u64,
    pub(crate) objects: PoolObjects,
    pub(crate) uberblock: Uberblock,
    pub(crate) tuning: &'a Tuning,
    pub(crate) events: EventLog,
}

impl ImportedPool {
    /// Puts a pool together in memory. Nothing is read or started.
    pub(crate) fn new(parts: PoolParts<'_>) -> Self {
        let OpenedMos {
            services,
            cache,
            store,
            mos,
        } = parts.opened;
        let (handle, features) = (parts.handle, parts.hierarchy.features());
        let config = PoolConfig::new(parts.identity, parts.name, parts.label_state, features);
        let layers = Layers {
            handle: handle.clone(),
            tree: parts.tree,
            services,
            cache,
            store,
            mos,
            hierarchy: parts.hierarchy,
            space: parts.space,
        };
        Self {
            layers,
            session: parts.session,
            config,
            objects: Cell::new(parts.objects),
            properties: StoredProperties::default(),
            vdev_properties: StoredVdevProperties::default(),
            lifecycle: Lifecycle::default(),
            sync: SyncLoop::new(parts.uberblock),
            devices: Devices::default(),
            activities: Activities::new(handle, parts.tuning),
            error_logs: ErrorLogs::default(),
            multihost: MultihostState::new(parts.tuning.multihost.clone()),
            events: parts.events,
        }
    }
}

impl Pool {
    /// Returns the name in use.
    #[must_use]
    pub fn name(&self) -> String {
        self.0.config.name().to_owned()
    }

    /// Returns the pool's guid.
    #[must_use]
    pub fn guid(&self) -> u64 {
        self.0.config.guid()
    }

    /// Returns the alternate root it was imported with.
    #[must_use]
    pub fn altroot(&self) -> Option<PathBuf> {
        self.0.session.altroot.clone()
    }

    /// Whether it was imported read-only.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        self.0.session.readonly
    }

    /// Returns what the import gave up, if it went back.
    #[must_use]
    pub fn rewound(&self) -> Option<Rewound> {
        self.0.session.rewound
    }

    /// Returns the datasets.
    #[must_use]
    pub fn hierarchy(&self) -> &Hierarchy {
        self.0.hierarchy()
    }

    /// Returns the clock of transaction groups.
    #[must_use]
    pub fn clock(&self) -> &TxgClock {
        &self.0.services().clock
    }

    /// Returns the meta-objset.
    #[must_use]
    pub fn mos(&self) -> &Objset {
        self.0.mos()
    }

    /// Returns the block store.
    #[must_use]
    pub fn store(&self) -> &BlockStore {
        self.0.store()
    }

    /// Returns the block cache.
    #[must_use]
    pub fn cache(&self) -> &Cache {
        self.0.cache()
    }

    /// Returns the device tree.
    #[must_use]
    pub fn tree(&self) -> &Tree {
        self.0.tree()
    }

    /// Makes everything changed so far durable (`zpool sync`).
    ///
    /// # Errors
    /// `Suspended` or `Closed` when that cannot happen any more.
    pub async fn sync(&self) -> Result<Txg, PoolError> {
        if self.0.session.readonly {
            return Ok(self.0.services().clock.last_synced());
        }
        let txg = self.0.services().clock.open_txg();
        self.wait_synced(txg).await?;
        Ok(txg)
    }

    /// The newest txg on disk, when nothing that was accepted since then waits to be written: as long as it is the same, nothing
    /// in the pool has changed.
    #[must_use]
    pub fn unchanged_since(&self) -> Option<Txg> {
        let clock = self.0.clock();
        let open = clock.open_txg();
        let last = clock.last_synced();
        let waits = Txg(last.0 + 1) < open
            || clock.is_sync_wanted()
            || clock.dirty_bytes(open) > 0
            || self.0.has_own_work()
            || self.0.hierarchy().is_dirty(open);
        (!waits).then_some(last)
    }

    /// As [`Pool::sync`], with the configuration in all labels, though nothing has changed (`zpool sync -f`).
    ///
    /// # Errors
    /// As [`Pool::sync`].
    // OpenZFS: module/zfs/zfs_ioctl.c, zfs_ioc_pool_sync
    pub async fn sync_labels(&self) -> Result<Txg, PoolError> {
        if !self.0.session.readonly {
            self.0.dirty_config();
        }
        self.sync().await
    }

    /// Waits until `txg` is durable.
    ///
    /// # Errors
    /// `Suspended` or `Closed` when that cannot happen any more.
    pub async fn wait_synced(&self, txg: Txg) -> Result<(), PoolError> {
        Ok(self.0.services().clock.wait_synced(txg).await?)
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
        if !self.0.session.readonly && !self.0.lifecycle.is_suspended() {
            self.sync().await?;
        }
        history::list(self.0.mos(), object).await
    }

    /// Records a command line in the history.  It is written with the next transaction group.
    pub fn log_command(&self, command: &str, user: u64) {
        if self.0.session.readonly || self.0.lifecycle.is_closed() {
            return;
        }
        let record =
            history::command_record(command, user, self.0.unix_time(), &self.0.session.host);
        self.0.queue_history(record);
    }
}

impl ImportedPool {
    pub(crate) fn handle(&self) -> &Handle {
        &self.layers.handle
    }

    pub(crate) fn tree(&self) -> &Tree {
        &self.layers.tree
    }

    pub(crate) fn services(&self) -> &Services {
        &self.layers.services
    }

    pub(crate) fn clock(&self) -> &TxgClock {
        &self.layers.services.clock
    }

    pub(crate) fn cache(&self) -> &Cache {
        &self.layers.cache
    }

    pub(crate) fn store(&self) -> &BlockStore {
        &self.layers.store
    }

    pub(crate) fn mos(&self) -> &Objset {
        &self.layers.mos
    }

    pub(crate) fn hierarchy(&self) -> &Hierarchy {
        &self.layers.hierarchy
    }

    pub(crate) fn space(&self) -> &Rc<SpaceMaps> {
        &self.layers.space
    }

    /// Seconds since 1970.
    pub(crate) fn unix_time(&self) -> u64 {
        unix_time(self.handle())
    }

    pub(crate) fn set_objects(&self, change: impl FnOnce(&mut PoolObjects)) {
        let mut objects = self.objects.get();
        change(&mut objects);
        self.objects.set(objects);
    }

    /// Marks configuration and labels for rewriting with the next txg.
    pub(crate) fn dirty_config(&self) {
        self.config.mark_dirty();
    }

    /// Whether the next txg would have something to write although no transaction did.
    pub(crate) fn has_own_work(&self) -> bool {
        self.sync.has_tasks()
            || self.config.is_dirty()
            || self.devices.dtls.has_unrecorded()
            || self.activities.scan.is_dirty()
            || self.error_logs.is_dirty()
            || self.activities.removal.has_work()
            || self.devices.auxiliaries.is_dirty()
            || self.store().has_damaged()
    }

    /// Returns the guids of the features the labels must name.
    pub(crate) fn label_features(&self) -> Vec<String> {
        config::features_in_labels(self.hierarchy().features())
    }

    /// Appends a record, creating the history object in pools that have none.
    pub(crate) async fn append_history(
        &self,
        record: &ondisk::NvList,
        tx: &Tx,
    ) -> Result<(), PoolError> {
        assert!(tx.is_syncing(), "append history happens in syncing context");
        if !self
            .hierarchy()
            .features()
            .has_version(pool_version::HISTORY)
        {
            self.notify_history(record);
            return Ok(());
        }
        let mut object = self.objects.get().history;
        if object.0 == 0 {
            let bytes = self.store().space().deflated_size;
            object = history::create(self.mos(), bytes, tx).await?;
            zap::add_u64(self.mos(), DIRECTORY, "history", object.0, tx).await?;
            self.set_objects(|objects| objects.history = object);
        }
        self.notify_history(record);
        history::append(self.mos(), object, record, tx).await
    }

    /// Records an internal event (`zpool history -i`) in syncing context.
    pub(crate) async fn log_internal(
        &self,
        name: &str,
        text: &str,
        tx: &Tx,
    ) -> Result<(), PoolError> {
        assert!(tx.is_syncing(), "log internal happens in syncing context");
        let record = history::internal_record(
            name,
            None,
            text,
            tx.txg().0,
            self.unix_time(),
            &self.session.host,
        );
        self.append_history(&record, tx).await
    }

    /// Records what happened to a dataset.
    pub(crate) async fn append_event(
        &self,
        event: &dsl::HistoryEvent,
        tx: &Tx,
    ) -> Result<(), PoolError> {
        assert!(tx.is_syncing(), "append event happens in syncing context");
        let record = history::internal_record(
            event.name,
            Some((&event.dataset, event.object.0)),
            &event.text,
            event.txg.0,
            self.unix_time(),
            &self.session.host,
        );
        self.append_history(&record, tx).await
    }

    /// Encodes and stores the config object, creating it the first time.
    pub(crate) async fn write_config_object(&self, tx: &Tx) -> Result<(), PoolError> {
        assert!(
            tx.is_syncing(),
            "write config object happens in syncing context"
        );
        // OpenZFS: module/zfs/spa.c, spa_sync_nvlist (packed nvlist in 16 KiB blocks, size in the bonus)
        let list = config::for_mos(
            &self.config.identity(),
            self.config.label_state(),
            tx.txg().0,
            &self.tree().config(),
            &self.label_features(),
            self.objects.get().vdev_zap_map.0 != 0,
        );
        let object = self.objects.get().config;
        let object = self.write_packed(object, "config", &list, tx).await?;
        self.set_objects(|objects| objects.config = object);
        self.config.object_written();
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
        assert!(tx.is_syncing(), "write packed happens in syncing context");
        const BLOCK_SIZE: usize = 16 << 10;
        let mut packed = list.encode_xdr();
        let len = ondisk::bytes::len64(packed.len());
        if object.0 == 0 {
            let spec = dmu::AllocSpec::new(ondisk::ObjectType::PACKED_NVLIST)
                .block_size(u32::try_from(BLOCK_SIZE).expect("16 KiB"))
                .bonus(ondisk::ObjectType::PACKED_NVLIST_SIZE, 8);
            object = self.mos().allocate(spec, tx).await?;
            zap::add_u64(self.mos(), DIRECTORY, key, object.0, tx).await?;
        }
        packed.resize(packed.len().next_multiple_of(BLOCK_SIZE), 0);
        self.mos().write(object, 0, &packed, tx).await?;
        let kind = ondisk::ObjectType::PACKED_NVLIST_SIZE;
        self.mos()
            .set_bonus(object, kind, &ondisk::bytes::of_u64s(&[len]), tx)
            .await?;
        Ok(object)
    }
}

/// Seconds since 1970; times before it count as 0.
pub(crate) fn unix_time(handle: &Handle) -> u64 {
    u64::try_from(handle.wall_clock().seconds).unwrap_or(0)
}
