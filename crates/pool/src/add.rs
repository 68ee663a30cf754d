//! Top-level vdevs that join a pool in use (`zpool add`).
//!
//! The txg that adds them writes their labels and the configuration, but places nothing on them: only when it is on
//! stable storage does the store learn of them, so that no crash leaves a block where no configuration reaches.
// OpenZFS: module/zfs/spa.c, spa_vdev_add

use std::path::PathBuf;
use std::rc::Rc;

use dmu::Tx;
use vdev::{AllocationBias, VdevConfig, VdevKind};

use crate::auxiliary::AuxiliaryKind;
use crate::create::{self, ALLOCATION_CLASSES, DRAID};
use crate::pool::{ImportedPool, Pool};
use crate::spec::AddSpec;
use crate::{PoolError, sync};

impl Pool {
    /// Adds devices to the pool (`zpool add`). They are part of it, also after a crash, when this returns.
    ///
    /// # Errors
    /// `Invalid`, `DeviceInUse`, `DeviceTooSmall`, `SectorSizes` before anything is written; `ReadOnly`, `Suspended`; device
    /// errors later, which leave the pool as it was.
    pub async fn add(&self, spec: AddSpec) -> Result<(), PoolError> {
        let imported = &self.0;
        imported.writable()?;
        create::check_vdevs(spec.tops().map(|(vdev, _)| vdev))?;
        create::check_distinct(
            &spec.spares,
            &spec.caches,
            spec.tops().map(|(vdev, _)| vdev),
        )?;
        let features = imported.hierarchy().features();
        let classes = !(spec.special.is_empty() && spec.dedup.is_empty());
        if classes && !features.is_enabled(ALLOCATION_CLASSES) {
            return Err(PoolError::Invalid(
                "pool must be upgraded to add these vdevs".into(),
            ));
        }
        let spread = spec.tops().any(|(vdev, _)| vdev.draid().is_some());
        if spread && !features.is_enabled(DRAID) {
            return Err(PoolError::Invalid(
                "pool must be upgraded to add these vdevs".into(),
            ));
        }
        let needed = create::version_needed(
            spec.tops(),
            !spec.spares.is_empty(),
            !spec.caches.is_empty(),
        );
        if !features.has_version(needed) {
            return Err(PoolError::Invalid(
                "pool must be upgraded to add these vdevs".into(),
            ));
        }
        for path in spec.tops().flat_map(|(vdev, _)| vdev.paths()) {
            imported.refuse_own(path)?;
        }
        if spec.tops().next().is_some() {
            imported.add_vdevs(&spec).await?;
        }
        for (kind, paths) in [
            (AuxiliaryKind::Spare, &spec.spares),
            (AuxiliaryKind::Cache, &spec.caches),
        ] {
            if !paths.is_empty() {
                imported.add_auxiliaries(kind, paths, spec.force).await?;
            }
        }
        imported.notify("vdev_add", None, ondisk::NvList::new());
        Ok(())
    }
}

impl ImportedPool {
    async fn add_auxiliaries(
        self: &Rc<Self>,
        kind: AuxiliaryKind,
        paths: &[PathBuf],
        force: bool,
    ) -> Result<(), PoolError> {
        let configs = self.prepare_auxiliaries(kind, paths, force).await?;
        self.run_in_sync(async move |imported: Rc<Self>, tx: Rc<Tx>| {
            for config in configs {
                imported.auxiliary_devices(kind).push(config);
            }
            imported.write_auxiliaries(&tx).await
        })
        .await?;
        if kind == AuxiliaryKind::Cache {
            self.open_cache_devices(true).await;
        }
        Ok(())
    }

    async fn add_vdevs(self: &Rc<Self>, spec: &AddSpec) -> Result<(), PoolError> {
        let ashift = spec.ashift.or_else(|| self.stored_ashift());
        let plan = create::tree_spec(spec.tops(), ashift);
        let (tops, conflicts) = vdev::plan_tops(self.handle(), &plan).await?;
        self.refuse_used(conflicts, spec.force)?;
        self.check_new_tops(&tops, spec.any_sector_size)?;
        self.add_tops(tops).await
    }

    fn stored_ashift(&self) -> Option<u8> {
        let shift = self.properties.number("ashift")?;
        u8::try_from(shift).ok().filter(|&shift| shift != 0)
    }

    fn check_new_tops(&self, tops: &[VdevConfig], any_sector_size: bool) -> Result<(), PoolError> {
        let own = self.tree().tops();
        let mut shifts = own
            .iter()
            .filter(|top| top.bias == AllocationBias::None)
            .map(|top| top.ashift);
        let Some(first) = shifts.next() else {
            return Ok(());
        };
        // OpenZFS: module/zfs/spa.c, spa_vdev_add (errors while a vdev is removed, and afterwards)
        let invalid = || Err(PoolError::Invalid("invalid vdev configuration".into()));
        if self.activities.removal.vdev().is_some() && tops.iter().any(|top| top.ashift != first) {
            return invalid();
        }
        let parity = |top: &VdevConfig| matches!(top.kind, VdevKind::Raidz | VdevKind::Draid);
        if self.has_removals() && tops.iter().any(parity) {
            return invalid();
        }
        let uniform = shifts.all(|shift| shift == first);
        if uniform && !any_sector_size && tops.iter().any(|top| top.ashift != first) {
            return Err(PoolError::SectorSizes);
        }
        Ok(())
    }

    async fn add_tops(self: &Rc<Self>, tops: Vec<VdevConfig>) -> Result<(), PoolError> {
        let added = Rc::new(std::cell::RefCell::new(Vec::new()));
        let from_task = added.clone();
        self.run_in_sync(async move |imported: Rc<Self>, tx: Rc<Tx>| {
            let before = imported.tree().config().tops.len();
            let ids = imported.tree().add_tops(tops).await?;
            if let Err(error) = imported.label_new_tops(before, &tx).await {
                imported.tree().drop_tops(before);
                return Err(error);
            }
            imported.create_vdev_objects(&tx).await?;
            let spares = imported.distributed_spares(before);
            if !spares.is_empty() {
                for spare in spares {
                    imported.auxiliary_devices(AuxiliaryKind::Spare).push(spare);
                }
                imported.write_auxiliaries(&tx).await?;
            }
            imported.dirty_config();
            for top in &imported.tree().config().tops[before..] {
                let text = format!(
                    "{} vdev ({}) {}",
                    imported.config.name(),
                    top.type_name(),
                    top.path.as_deref().unwrap_or("-")
                );
                imported.log_internal("vdev add", &text, &tx).await?;
            }
            from_task.replace(ids);
            Ok(())
        })
        .await?;
        for id in added.take() {
            self.store().add_vdev(id);
        }
        Ok(())
    }

    /// Gives all devices of new vdevs empty labels. Those of the pool follow with the commit.
    async fn label_new_tops(&self, before: usize, tx: &Tx) -> Result<(), PoolError> {
        let txg = tx.txg().0;
        for top in &self.tree().config().tops[before..] {
            self.tree()
                .update_config(top.guid, |vdev| vdev.create_txg = txg);
            for leaf in sync::leaves_of(top) {
                self.tree().init_labels(leaf.guid).await?;
                self.tree()
                    .update_config(leaf.guid, |vdev| vdev.create_txg = txg);
            }
        }
        Ok(())
    }
}
