//! The devices of a pool that are not in its tree: hot spares that wait, and cache devices.
//!
//! The pool keeps a list of each kind in its meta-objset; their labels say only their role and their guid. A spare may be
//! listed by several pools; it is opened when it is needed, not before.
// OpenZFS: module/zfs/spa.c (spa_aux_vdev_t, spa_sync_aux_dev, spa_load_spares); module/zfs/vdev_label.c,
// vdev_aux_label_generate

mod state;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use dmu::{Tx, zap};
use ondisk::{Guid, NvList, ObjectId};
use runtime::{Disk, DiskMode, Handle};
use vdev::labels::{self, LabelSet};
use vdev::{AllocationBias, LeafSpec, OpenMode, TopSpec, TreeSpec, VdevConfig, VdevKind};

pub(crate) use self::state::{Auxiliaries, AuxiliaryDevice, AuxiliaryDevices, AuxiliaryKind};
use crate::PoolError;
use crate::config::STATE_SPARE;
use crate::objects::DIRECTORY;
use crate::pool::ImportedPool;
use crate::status::{Health, VdevStatus};

/// Whether the device at `path` has a label with this guid.
async fn is_there(handle: &Handle, path: &Path, guid: Guid) -> bool {
    match handle.open_disk(path, DiskMode::ReadOnly).await {
        Ok(disk) => is_label_of(&disk, guid).await,
        Err(_) => false,
    }
}

/// Whether a device has a label with this guid.
pub(crate) async fn is_label_of(disk: &Disk, guid: Guid) -> bool {
    let Ok(set) = LabelSet::read(disk).await else {
        return false;
    };
    set.best_config().and_then(|config| config.u64("guid")) == Some(guid.0)
}

impl ImportedPool {
    pub(crate) fn auxiliary_devices(&self, kind: AuxiliaryKind) -> &AuxiliaryDevices {
        match kind {
            AuxiliaryKind::Spare => &self.devices.auxiliaries.spares,
            AuxiliaryKind::Cache => &self.devices.auxiliaries.caches,
        }
    }

    /// Reads the lists of a pool and checks for their devices, at `known` paths first.
    pub(crate) async fn load_auxiliaries(
        &self,
        known: &BTreeMap<u64, PathBuf>,
    ) -> Result<(), PoolError> {
        for kind in [AuxiliaryKind::Spare, AuxiliaryKind::Cache] {
            let list = self.auxiliary_devices(kind);
            let object = zap::lookup_u64(self.mos(), DIRECTORY, kind.key()).await?;
            let Some(object) = object.filter(|&object| object != 0) else {
                continue;
            };
            list.object.set(ObjectId(object));
            let packed = crate::import::open::read_packed(self.mos(), ObjectId(object), kind.key());
            list.fill(&packed.await?)?;
            for device in &mut *list.devices.borrow_mut() {
                if let Some(path) = known.get(&device.config.guid.0) {
                    device.config.path = Some(path.display().to_string());
                }
            }
        }
        self.check_spares().await;
        Ok(())
    }

    /// Checks which spares are there.
    pub(crate) async fn check_spares(&self) {
        self.devices.hot_spares.clear_rejected();
        for device in self.devices.auxiliaries.spares.devices() {
            let guid = device.config.guid;
            let found = match device.path() {
                _ if device.is_distributed() => self.has_draid(&device),
                Some(path) => is_there(self.handle(), &path, guid).await,
                None => false,
            };
            self.devices.auxiliaries.spares.set_found(guid, found);
        }
    }

    /// Checks and labels devices that are to join a list. Nothing of the pool changes yet.
    pub(crate) async fn prepare_auxiliaries(
        &self,
        kind: AuxiliaryKind,
        paths: &[PathBuf],
        force: bool,
    ) -> Result<Vec<VdevConfig>, PoolError> {
        let mut configs = Vec::new();
        for path in paths {
            self.refuse_own(path)?;
            let spec = TopSpec {
                leaves: vec![LeafSpec { path: path.clone() }],
                bias: AllocationBias::None,
                parity: 0,
                draid: None,
                ashift: None,
            };
            let spec = TreeSpec { tops: vec![spec] };
            let (mut tops, conflicts) = vdev::plan_tops(self.handle(), &spec).await?;
            self.refuse_used(conflicts, force)?;
            let Some(mut config) = tops.pop() else {
                continue;
            };
            (config.asize, config.metaslab_shift, config.create_txg) = (0, 0, 0);
            if kind == AuxiliaryKind::Spare
                && let Some(known) = self.known_spare(path).await
            {
                // Another pool's, too: it is known by the same guid everywhere.
                config.guid = known;
            }
            configs.push(config);
        }
        for config in &configs {
            self.label_auxiliary(kind, config).await?;
        }
        Ok(configs)
    }

    /// Returns the guid on the label of a device that is a spare already.
    async fn known_spare(&self, path: &Path) -> Option<Guid> {
        let disk = self
            .handle()
            .open_disk(path, DiskMode::ReadOnly)
            .await
            .ok()?;
        let set = LabelSet::read(&disk).await.ok()?;
        let config = set.best_config()?;
        let guid = config.u64("guid").filter(|&guid| guid != 0)?;
        (config.u64("state") == Some(STATE_SPARE)).then_some(Guid(guid))
    }

    /// Writes the labels of a spare or cache device. Durable on return.
    pub(crate) async fn label_auxiliary(
        &self,
        kind: AuxiliaryKind,
        config: &VdevConfig,
    ) -> Result<(), PoolError> {
        let Some(path) = config.device_path() else {
            return Err(PoolError::NoSuchDevice);
        };
        if config.kind == VdevKind::DistributedSpare {
            return Ok(());
        }
        let mut label = NvList::new()
            .with("version", self.hierarchy().features().pool_version())
            .with("state", kind.label_state())
            .with("guid", config.guid.0);
        if kind == AuxiliaryKind::Cache {
            label.insert("ashift", u64::from(config.ashift));
        }
        label.insert("path", path.display().to_string());
        let disk = vdev::open_disk(self.handle(), &path, OpenMode::ReadWrite).await?;
        Ok(labels::write_bare(&disk, &label.encode_xdr()).await?)
    }

    /// Takes the labels off a device that has left the pool. What cannot be reached keeps its old label.
    pub(crate) async fn unlabel_auxiliary(&self, device: &AuxiliaryDevice) {
        let Some(path) = device.path().filter(|_| !device.is_distributed()) else {
            return;
        };
        if let Ok(disk) = vdev::open_disk(self.handle(), &path, OpenMode::ReadWrite).await
            && is_label_of(&disk, device.config.guid).await
        {
            drop(labels::clear(&disk).await);
        }
    }

    /// Stores the lists that changed. Syncing context.
    pub(crate) async fn write_auxiliaries(&self, tx: &Tx) -> Result<(), PoolError> {
        assert!(
            tx.is_syncing(),
            "write auxiliaries happens in syncing context"
        );
        for kind in [AuxiliaryKind::Spare, AuxiliaryKind::Cache] {
            let list = self.auxiliary_devices(kind);
            if list.dirty.replace(false) {
                let object = self
                    .write_packed(list.object.get(), kind.key(), &list.to_nvlist(), tx)
                    .await?;
                list.object.set(object);
            }
        }
        Ok(())
    }

    /// Makes the distributed spares of the draids among the top-level vdevs from `first` on. They are found by their names:
    /// parity, number of the vdev, number of the spare.
    // OpenZFS: module/zfs/vdev_draid.c, vdev_draid_spare_create
    pub(crate) fn distributed_spares(&self, first: usize) -> Vec<VdevConfig> {
        let tops = self.tree().config().tops;
        let mut spares = Vec::new();
        for top in tops.iter().skip(first) {
            if top.kind != VdevKind::Draid {
                continue;
            }
            for number in 0..top.extra.u64("draid_nspares").unwrap_or(0) {
                let guid = Guid(self.handle().random_u64().max(1));
                let mut spare = VdevConfig::new(VdevKind::DistributedSpare, number, guid);
                let parity = top.nparity().unwrap_or(1);
                spare.path = Some(format!("draid{parity}-{}-{number}", top.id));
                spare.ashift = top.ashift;
                spare.create_txg = top.create_txg;
                spare.extra.insert("top_guid", top.guid.0);
                spare.extra.insert("spareid", number);
                spare.extra.insert("whole_disk", 1_u64);
                spares.push(spare);
            }
        }
        spares
    }

    /// Whether the pool has the draid that a distributed spare is part of.
    fn has_draid(&self, spare: &AuxiliaryDevice) -> bool {
        let home = spare.config.extra.u64("top_guid");
        let tops = self.tree().config().tops;
        tops.iter().any(|top| Some(top.guid.0) == home)
    }

    /// Whether the pool's tree has this leaf.
    pub(crate) fn is_in_tree(&self, guid: Guid) -> bool {
        self.tree().absences(guid).is_some()
    }

    /// Returns what `zpool status` shows of a list.
    pub(crate) fn auxiliary_status(&self, kind: AuxiliaryKind) -> Vec<VdevStatus> {
        let devices = self.auxiliary_devices(kind).devices().into_iter();
        devices
            .map(|device| {
                let in_tree = kind == AuxiliaryKind::Spare && self.is_in_tree(device.config.guid);
                let (health, note) = match (in_tree, device.found, kind) {
                    (true, ..) => (Health::InUse, Some("currently in use")),
                    (false, true, AuxiliaryKind::Spare) => (Health::Available, None),
                    (false, true, AuxiliaryKind::Cache) => (Health::Online, None),
                    (false, false, _) => (Health::Unavail, Some("cannot open")),
                };
                let path = device.path();
                let mut status = VdevStatus {
                    name: crate::status::collect::shown(path.as_deref(), &device.config),
                    kind: device.config.kind.as_str().to_owned(),
                    guid: device.config.guid.0,
                    path,
                    health,
                    note: note.map(str::to_owned),
                    ..VdevStatus::default()
                };
                if kind == AuxiliaryKind::Cache {
                    self.fill_cache_status(&mut status);
                }
                status
            })
            .collect()
    }
}
