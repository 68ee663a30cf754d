//! A pool made of one half of every mirror of another (`zpool split`).
//!
//! ```text
//! intent logs leave the log vdevs -> start of a txg: the halves go out of service, all at the same txg
//!   -> the halves are opened as a pool of their own, which drops the devices it does not have -> its first txg
//!   -> the first pool drops the halves
//! ```
//! A power cut before the new pool's first txg leaves the first pool as it was: the halves come back and are
//! resilvered. After it the new pool exists, and the first one may still list halves whose labels are no longer its own;
//! `zpool detach` ends that.
// OpenZFS: module/zfs/spa.c, spa_vdev_split_mirror; lib/libzfs/libzfs_pool.c, zpool_vdev_split (words)

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::rc::Rc;

use dmu::Tx;
use ondisk::{Guid, ObjectId, SPA_VERSION_FEATURES};
use vdev::{Health, OpenMode, Tree, TreeConfig, VdevConfig, VdevKind};

use crate::auxiliary::AuxiliaryKind;
use crate::discover::Candidate;
use crate::import::assemble::assemble;
use crate::import::open;
use crate::pool::{ImportedPool, Pool};
use crate::spec::{ImportPolicy, SplitSpec};
use crate::status::{PoolState, StatusReason, VdevStatus};
use crate::{PoolError, create, removal, sync};

/// Which halves make up the new pool.
struct SplitPlan {
    /// Tree of the new pool.
    tree: TreeConfig,
    /// Leaves of the new pool.
    halves: Vec<VdevConfig>,
    /// Leaves of the old pool, and log vdevs with their ids: the new pool must drop them.
    others_leaves: Vec<VdevConfig>,
    logs: Vec<(u32, VdevConfig)>,
}

impl Pool {
    /// Returns the devices that would make up the new pool, in the order of its vdevs, each with what its vdev is for.
    ///
    /// # Errors
    /// `Invalid` when the pool is not made of mirrors, or a device is not a half of one, or two are of the same.
    pub fn plan_split(
        &self,
        devices: &[u64],
    ) -> Result<Vec<(PathBuf, vdev::AllocationBias)>, PoolError> {
        let split_plan = self.0.split_plan(devices)?;
        let tops = split_plan.tree.tops.iter();
        let real = tops.filter(|top| top.kind.is_leaf());
        Ok(real
            .map(|top| (top.device_path().unwrap_or_default(), top.allocation_bias()))
            .collect())
    }

    /// Splits one half off every mirror and makes a pool of them, which is exported on return.
    ///
    /// # Errors
    /// As [`Pool::plan_split`]; `Invalid` for properties that the new pool cannot get; `NoReplicas` when a half is not whole or the only one
    /// that is; `InUse` for intent logs that have not been replayed; device errors, after which the pool is as it was.
    pub async fn split(&self, spec: SplitSpec) -> Result<(), PoolError> {
        let imported = &self.0;
        imported.writable()?;
        imported.refuse_with_checkpoint()?;
        imported.refuse_with_removal()?;
        create::check_name(&spec.name)?;
        self.check_split_properties(&spec.properties)?;
        let split_plan = imported.split_plan(&spec.devices)?;
        let mut logs = Vec::new();
        for (id, _) in &split_plan.logs {
            imported.store().set_allocating(*id, false);
            logs.push(*id);
        }
        let mut outcome = Ok(());
        for id in &logs {
            outcome = outcome.and(imported.empty_log_vdev(*id).await);
        }
        if outcome.is_ok() {
            outcome = imported.detach_halves(&spec, &split_plan).await;
        }
        for id in logs {
            imported.store().set_allocating(id, true);
        }
        outcome
    }
}

impl ImportedPool {
    /// Chooses the halves: those named, and the last of every mirror of which none is.
    fn split_plan(&self, devices: &[u64]) -> Result<SplitPlan, PoolError> {
        let config = self.tree().config();
        let invalid = |text: &str| Err(PoolError::Invalid(text.into()));
        let mut split_plan = SplitPlan {
            tree: TreeConfig {
                guid: Guid(0),
                create_txg: config.create_txg,
                extra: config.extra.clone(),
                tops: Vec::new(),
            },
            halves: Vec::new(),
            others_leaves: Vec::new(),
            logs: Vec::new(),
        };
        let mut named = 0;
        for top in &config.tops {
            let hole = || {
                let mut hole = VdevConfig::new(VdevKind::Hole, top.id, Guid(0));
                hole.extra.insert("is_hole", 1_u64);
                hole
            };
            if top.is_log {
                let id = u32::try_from(top.id).map_err(|_| PoolError::NoSuchDevice)?;
                split_plan.logs.push((id, top.clone()));
            }
            if top.is_log || top.kind == VdevKind::Hole {
                split_plan.tree.tops.push(hole());
                continue;
            }
            if top.kind == VdevKind::Indirect {
                split_plan.tree.tops.push(top.clone());
                continue;
            }
            let leaves_only = top.children.iter().all(|child| child.kind.is_leaf());
            if top.kind != VdevKind::Mirror || !leaves_only {
                return invalid("Source pool must be composed only of mirrors\n");
            }
            let chosen = top.children.iter().find(|c| devices.contains(&c.guid.0));
            named += usize::from(chosen.is_some());
            let Some(half) = chosen.or(top.children.last()) else {
                return invalid("Source pool is missing vdev tree");
            };
            let others = top.children.iter().filter(|child| child.guid != half.guid);
            split_plan.others_leaves.extend(others.cloned());
            split_plan.halves.push(half.clone());
            split_plan.tree.tops.push(as_top(half, top));
        }
        if named != devices.len() {
            return invalid("Device list must include at most one disk from each mirror");
        }
        // Holes at the end are no part of the new pool.
        while split_plan
            .tree
            .tops
            .last()
            .is_some_and(|top| top.kind == VdevKind::Hole)
        {
            split_plan.tree.tops.pop();
        }
        Ok(split_plan)
    }

    async fn detach_halves(
        self: &Rc<Self>,
        spec: &SplitSpec,
        split_plan: &SplitPlan,
    ) -> Result<(), PoolError> {
        let guids: Vec<Guid> = split_plan.halves.iter().map(|half| half.guid).collect();
        let going = guids.clone();
        self.run_in_sync(async move |imported: Rc<Self>, _tx: Rc<Tx>| {
            imported.offline_halves(&going).await
        })
        .await?;
        let made = self.create_split_pool(spec, split_plan).await;
        if let Err(error) = made {
            // The halves are brought back online and resilvered.
            for guid in &guids {
                drop(self.tree().bring_online(*guid).await);
            }
            drop(self.resilver_if_needed().await);
            return Err(error);
        }
        self.run_in_sync(async move |imported: Rc<Self>, tx: Rc<Tx>| {
            for guid in guids {
                let path = imported.leaf_path(guid);
                let removed = imported.tree().detach(guid)?;
                imported.free_leaf_objects(&removed, &tx).await?;
                let text = format!("vdev={path}");
                imported.log_internal("detach", &text, &tx).await?;
            }
            imported.dirty_config();
            Ok(())
        })
        .await
    }

    /// Takes all halves out of service between two txgs, so that all hold the same one.
    async fn offline_halves(&self, halves: &[Guid]) -> Result<(), PoolError> {
        let leaves = self.tree().leaves();
        for guid in halves {
            let whole = leaves
                .iter()
                .any(|leaf| leaf.guid == *guid && leaf.health == Health::Online);
            if !whole
                || !self.devices.dtls.missing(guid.0).is_empty()
                || self.tree().is_required(*guid)
            {
                return Err(PoolError::NoReplicas);
            }
        }
        for guid in halves {
            self.tree().take_offline(*guid).await?;
        }
        Ok(())
    }

    /// Opens the halves as a pool of their own and exports it.
    async fn create_split_pool(
        &self,
        spec: &SplitSpec,
        split_plan: &SplitPlan,
    ) -> Result<(), PoolError> {
        // Opened under the guid that is on the labels still; the first txg of the new pool writes its own.
        let mut config = split_plan.tree.clone();
        config.guid = Guid(self.config.guid());
        let guid = self.handle().random_u64().max(1);
        let policy = ImportPolicy {
            host: self.session.host.clone(),
            new_name: Some(spec.name.clone()),
            ..ImportPolicy::default()
        };
        let devices = policy.tuning.devices.clone();
        let tree = Tree::open(self.handle(), &config, OpenMode::ReadWrite, devices, false).await?;
        let uberblock = open::newest(&tree).await?;
        let opened = open::open_mos(
            self.handle(),
            &tree,
            &uberblock,
            uberblock.txg,
            &policy,
            false,
        )
        .await?;
        removal::load_mappings(&opened.mos, &tree).await?;
        let candidate = candidate(&spec.name, &config, uberblock.txg.0);
        let list = open::read_config(&opened.mos).await?;
        let pool = assemble(
            self.handle(),
            tree,
            opened,
            &uberblock,
            None,
            &list,
            &candidate,
            &policy,
        )
        .await?;
        pool.0
            .config
            .change_identity(|identity| identity.guid = guid);
        pool.0.tree().update_root(|root| root.guid = Guid(guid));
        let claimed = match pool.0.load(&policy, &BTreeMap::new()).await {
            Ok(claimed) => claimed,
            Err(error) => {
                pool.0.tree().close();
                return Err(error);
            }
        };
        self.begin_split_pool(pool, claimed, spec, split_plan).await
    }

    /// Writes the first txg of the new pool, sets its properties and exports it.
    async fn begin_split_pool(
        &self,
        pool: Pool,
        claimed: Vec<dsl::Dataset>,
        spec: &SplitSpec,
        split_plan: &SplitPlan,
    ) -> Result<(), PoolError> {
        pool.0.dirty_config();
        sync::start(&pool);
        let others_leaves = split_plan.others_leaves.clone();
        let logs: Vec<VdevConfig> = split_plan.logs.iter().map(|(_, log)| log.clone()).collect();
        let text = format!("from pool {}", self.config.name());
        let first = pool
            .0
            .run_in_sync(async move |imported: Rc<Self>, tx: Rc<Tx>| {
                imported
                    .free_other_devices(&others_leaves, &logs, &tx)
                    .await?;
                imported.log_internal("split", &text, &tx).await
            })
            .await;
        drop(claimed);
        if let Err(error) = first {
            pool.abandon();
            return Err(error);
        }
        for (name, value) in &spec.properties {
            if let Err(error) = pool.set_property(name, value).await {
                pool.export().await?;
                return Err(error);
            }
        }
        pool.export().await
    }

    /// Frees what the new pool's meta-objset still has of devices that are not its own. Syncing context.
    async fn free_other_devices(
        &self,
        leaves: &[VdevConfig],
        logs: &[VdevConfig],
        tx: &Tx,
    ) -> Result<(), PoolError> {
        assert!(
            tx.is_syncing(),
            "free other devices happens in syncing context"
        );
        for leaf in leaves {
            self.free_leaf_objects(leaf, tx).await?;
        }
        for log in logs {
            let count = log.asize >> log.metaslab_shift;
            let array = ObjectId(log.metaslab_array);
            let long_headers = self.space().free_maps(array, count, tx).await?;
            self.free_top_objects(long_headers, log, tx).await?;
        }
        for kind in [AuxiliaryKind::Spare, AuxiliaryKind::Cache] {
            for device in self.auxiliary_devices(kind).devices() {
                self.auxiliary_devices(kind).remove(device.config.guid);
            }
        }
        self.write_auxiliaries(tx).await?;
        self.dirty_config();
        Ok(())
    }
}

/// A half as a top-level vdev of its own.
fn as_top(half: &VdevConfig, mirror: &VdevConfig) -> VdevConfig {
    let mut top = half.clone();
    top.id = mirror.id;
    top.ashift = mirror.ashift;
    top.asize = mirror.asize;
    top.metaslab_array = mirror.metaslab_array;
    top.metaslab_shift = mirror.metaslab_shift;
    top.non_allocating = mirror.non_allocating;
    top.zap_top = mirror.zap_top;
    top.bias = mirror.bias;
    top.offline = false;
    top
}

fn candidate(name: &str, tree: &TreeConfig, txg: u64) -> Candidate {
    Candidate {
        name: name.to_owned(),
        guid: tree.guid.0,
        state: PoolState::Active,
        txg,
        timestamp: 0,
        version: SPA_VERSION_FEATURES,
        hostid: 0,
        hostname: String::new(),
        comment: None,
        health: crate::Health::Online,
        reason: StatusReason::Ok,
        details: Vec::new(),
        root: VdevStatus::default(),
        devices: BTreeMap::new(),
        auxiliaries: BTreeMap::new(),
        tree: tree.clone(),
        multihost: false,
    }
}
