//! A pool made of one half of every mirror of another (`zpool split`).
//!
//! ```text
//! intent logs leave the log vdevs -> start of a group: the halves go out of service, all at the same group
//!   -> the halves are opened as a pool of their own, which forgets the devices it has not got -> its first group
//!   -> the first pool forgets the halves
//! ```
//! A power cut before the new pool's first group leaves the first pool as it was: the halves come back and are
//! resilvered. After it the new pool exists, and the first one may still list halves whose labels are no longer its own;
//! `zpool detach` ends that.
// OpenZFS: module/zfs/spa.c, spa_vdev_split_mirror; lib/libzfs/libzfs_pool.c, zpool_vdev_split (words)

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::rc::Rc;

use dmu::Tx;
use ondisk::{Guid, ObjectId, SPA_VERSION_FEATURES};
use vdev::{Health, OpenMode, Tree, TreeConfig, VdevConfig, VdevKind};

use crate::auxiliary::Kind;
use crate::discover::Candidate;
use crate::import;
use crate::pool::{Inner, Pool};
use crate::spec::{ImportPolicy, SplitSpec};
use crate::status::{PoolState, StatusReason, VdevStatus};
use crate::{PoolError, create, removal, sync};

/// The halves that go.
struct Parting {
    /// Tree of the new pool.
    tree: TreeConfig,
    /// Leaves that it takes along.
    halves: Vec<VdevConfig>,
    /// Leaves that stay, and log vdevs with their ids: what the new pool must forget.
    strangers: Vec<VdevConfig>,
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
        let parting = self.0.parting(devices)?;
        let tops = parting.tree.tops.iter();
        let real = tops.filter(|top| top.kind.is_leaf());
        Ok(real
            .map(|top| (top.device_path().unwrap_or_default(), top.allocation_bias()))
            .collect())
    }

    /// Splits one half off every mirror and makes a pool of them, which is exported on return.
    ///
    /// # Errors
    /// As [`Pool::plan_split`]; `NoReplicas` when a half is not whole or the only one that is; `InUse` for intent logs
    /// that nobody has replayed; device errors, after which the pool is as it was.
    pub async fn split(&self, spec: SplitSpec) -> Result<(), PoolError> {
        let inner = &self.0;
        inner.writable()?;
        inner.refuse_with_checkpoint()?;
        inner.refuse_with_removal()?;
        create::check_name(&spec.name)?;
        let parting = inner.parting(&spec.devices)?;
        let mut logs = Vec::new();
        for (id, _) in &parting.logs {
            inner.store().set_allocating(*id, false);
            logs.push(*id);
        }
        let mut outcome = Ok(());
        for id in &logs {
            outcome = outcome.and(inner.empty_log_vdev(*id).await);
        }
        if outcome.is_ok() {
            outcome = inner.part(&spec, &parting).await;
        }
        for id in logs {
            inner.store().set_allocating(id, true);
        }
        outcome
    }
}

impl Inner {
    /// Chooses the halves: those named, and the last of every mirror of which none is.
    fn parting(&self, devices: &[u64]) -> Result<Parting, PoolError> {
        let config = self.tree.config();
        let invalid = |text: &str| Err(PoolError::Invalid(text.into()));
        let mut parting = Parting {
            tree: TreeConfig {
                guid: Guid(0),
                create_txg: config.create_txg,
                extra: config.extra.clone(),
                tops: Vec::new(),
            },
            halves: Vec::new(),
            strangers: Vec::new(),
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
                parting.logs.push((id, top.clone()));
            }
            if top.is_log || top.kind == VdevKind::Hole {
                parting.tree.tops.push(hole());
                continue;
            }
            if top.kind == VdevKind::Indirect {
                parting.tree.tops.push(top.clone());
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
            parting.strangers.extend(others.cloned());
            parting.halves.push(half.clone());
            parting.tree.tops.push(as_top(half, top));
        }
        if named != devices.len() {
            return invalid("Device list must include at most one disk from each mirror");
        }
        // Holes at the end are no part of the new pool.
        while parting
            .tree
            .tops
            .last()
            .is_some_and(|top| top.kind == VdevKind::Hole)
        {
            parting.tree.tops.pop();
        }
        Ok(parting)
    }

    async fn part(self: &Rc<Self>, spec: &SplitSpec, parting: &Parting) -> Result<(), PoolError> {
        let guids: Vec<Guid> = parting.halves.iter().map(|half| half.guid).collect();
        let going = guids.clone();
        self.run_in_sync(async move |inner: Rc<Self>, _tx: Rc<Tx>| inner.put_away(&going).await)
            .await?;
        let made = self.make_split(spec, parting).await;
        if let Err(error) = made {
            // The halves come back; what they missed meanwhile they get.
            for guid in &guids {
                drop(self.tree.bring_online(*guid).await);
            }
            drop(self.resilver_if_needed().await);
            return Err(error);
        }
        self.run_in_sync(async move |inner: Rc<Self>, tx: Rc<Tx>| {
            for guid in guids {
                let path = inner.leaf_path(guid);
                let removed = inner.tree.detach(guid)?;
                inner.forget_leaf(&removed, &tx).await?;
                let text = format!("vdev={path}");
                inner.log_internal("detach", &text, &tx).await?;
            }
            inner.dirty_config();
            Ok(())
        })
        .await
    }

    /// Takes all halves out of service between two groups, so that all hold the same one.
    async fn put_away(&self, halves: &[Guid]) -> Result<(), PoolError> {
        let leaves = self.tree.leaves();
        for guid in halves {
            let whole = leaves
                .iter()
                .any(|leaf| leaf.guid == *guid && leaf.health == Health::Online);
            if !whole || !self.dtls.missing(guid.0).is_empty() || self.tree.is_required(*guid) {
                return Err(PoolError::NoReplicas);
            }
        }
        for guid in halves {
            self.tree.take_offline(*guid).await?;
        }
        Ok(())
    }

    /// Opens the halves as a pool of their own and exports it.
    async fn make_split(&self, spec: &SplitSpec, parting: &Parting) -> Result<(), PoolError> {
        // Opened under the guid that is on the labels still; the first group of the new pool writes its own.
        let mut config = parting.tree.clone();
        config.guid = Guid(self.identity.borrow().guid);
        let guid = self.handle.random_u64().max(1);
        let policy = ImportPolicy {
            host: self.host.clone(),
            new_name: Some(spec.name.clone()),
            ..ImportPolicy::default()
        };
        let devices = policy.tuning.devices.clone();
        let tree = Tree::open(&self.handle, &config, OpenMode::ReadWrite, devices, false).await?;
        let uberblock = import::newest(&tree).await?;
        let opened = import::open_mos(
            &self.handle,
            &tree,
            &uberblock,
            uberblock.txg,
            &policy,
            false,
        )
        .await?;
        removal::load_mappings(&opened.mos, &tree).await?;
        let candidate = candidate(&spec.name, &config, uberblock.txg.0);
        let list = import::read_config(&opened.mos).await?;
        let pool = import::assemble(
            &self.handle,
            tree,
            opened,
            &uberblock,
            None,
            &list,
            &candidate,
            &policy,
        )
        .await?;
        pool.0.identity.borrow_mut().guid = guid;
        pool.0.tree.update_root(|root| root.guid = Guid(guid));
        let claimed = match pool.0.load(&policy, &BTreeMap::new()).await {
            Ok(claimed) => claimed,
            Err(error) => {
                pool.0.tree.close();
                return Err(error);
            }
        };
        pool.0.dirty_config();
        sync::start(&pool);
        let strangers = parting.strangers.clone();
        let logs: Vec<VdevConfig> = parting.logs.iter().map(|(_, log)| log.clone()).collect();
        let text = format!("from pool {}", self.name.borrow());
        let first = pool
            .0
            .run_in_sync(async move |inner: Rc<Self>, tx: Rc<Tx>| {
                inner.forget_strangers(&strangers, &logs, &tx).await?;
                inner.log_internal("split", &text, &tx).await
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
    async fn forget_strangers(
        &self,
        leaves: &[VdevConfig],
        logs: &[VdevConfig],
        tx: &Tx,
    ) -> Result<(), PoolError> {
        for leaf in leaves {
            self.forget_leaf(leaf, tx).await?;
        }
        for log in logs {
            let count = log.asize >> log.metaslab_shift;
            let array = ObjectId(log.metaslab_array);
            let long_headers = self.space.free_maps(array, count, tx).await?;
            self.forget_top(long_headers, log, tx).await?;
        }
        for kind in [Kind::Spare, Kind::Cache] {
            for device in self.list(kind).devices() {
                self.list(kind).remove(device.config.guid);
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
