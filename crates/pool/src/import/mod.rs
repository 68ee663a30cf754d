//! Opening a pool that was found: the checks, the trusted configuration, and its state in memory.
//!
//! ```text
//! labels' tree -> newest uberblock -> meta-objset -> its configuration -> tree opened again
//!              -> features -> datasets, space maps, dirty-time logs -> first txg (read-write)
//! ```
//! Nothing is written before every check has passed.

pub(crate) mod assemble;
pub(crate) mod open;

use std::rc::Rc;

use dmu::Tx;
use dsl::Dataset;
use ondisk::{Guid, NvList, Txg, Uberblock, pool_version};
use runtime::Handle;
use vdev::{OpenMode, Tree, TreeConfig, TreeTuning, VdevConfig, VdevKind};

use self::assemble::{assemble, describe};
use self::open::{known_tree, open_known, open_mos, read_config};
use crate::discover::{Candidate, set_open_paths};
use crate::pool::{ImportedPool, Pool};
use crate::rewind;
use crate::spec::ImportPolicy;
use crate::status::{Health, PoolState};
use crate::{PoolError, checkpoint, create, hot_spares, multihost, properties, removal, sync};

impl Pool {
    /// Imports a pool.
    ///
    /// A writable import is complete when its first transaction group (which records the new user
    /// of the pool in the labels) is on stable storage; a read-only import writes nothing at all.
    ///
    /// # Errors
    /// Refusals before anything is written: see [`PoolError`]; then errors of the first txg.
    pub async fn import(
        handle: &Handle,
        candidate: &Candidate,
        policy: ImportPolicy,
    ) -> Result<Self, PoolError> {
        check_candidate(candidate, &policy)?;
        if let Some(name) = &policy.new_name {
            create::check_name(name)?;
        }
        let settings = parse_settings(&policy)?;

        // First with what the labels say, to find the configuration that is to be trusted.
        let tree = open_known(handle, candidate).await?;
        let states = async {
            let states = rewind::states(&tree, policy.rewind).await?;
            multihost::check_activity(handle, &tree, candidate, &policy, &states[0]).await?;
            Ok::<_, PoolError>(states)
        };
        let states = states.await;
        tree.close();
        drop(tree);
        let states = states?;
        let newest = states[0];
        if policy.rewind_to_checkpoint {
            let checkpointed =
                Self::rewind_to_checkpoint(handle, candidate, &policy, &newest).await?;
            let opened =
                Self::open_at(handle, candidate, &policy, &checkpointed, &checkpointed).await;
            let (pool, claimed) = opened?;
            return pool.begin(claimed, &policy, settings).await;
        }
        let mut failure = None;
        for uberblock in rewind::choices(&states, policy.rewind) {
            match Self::open_at(handle, candidate, &policy, &newest, &uberblock).await {
                Ok((pool, claimed)) => return pool.begin(claimed, &policy, settings).await,
                Err(error) if policy.rewind.is_some() && error.is_damage() => {
                    failure.get_or_insert(error);
                }
                Err(error) => return Err(error),
            }
        }
        let none = || PoolError::Corrupt("no state of the pool is as old as that".to_owned());
        Err(failure.unwrap_or_else(none))
    }

    /// Makes the checkpoint the newest state, on disk unless the import is read-only, and returns its uberblock. The state
    /// is opened once before anything is written.
    // OpenZFS: module/zfs/spa.c, spa_ld_checkpoint_rewind
    async fn rewind_to_checkpoint(
        handle: &Handle,
        candidate: &Candidate,
        policy: &ImportPolicy,
        newest: &Uberblock,
    ) -> Result<Uberblock, PoolError> {
        let (trusted, _) = Self::trusted(handle, candidate, policy, newest, newest).await?;
        let devices = policy.tuning.devices.clone();
        let tree = Tree::open(handle, &trusted, OpenMode::ReadOnly, devices.clone(), false).await?;
        let found = async {
            let opened = open_mos(handle, &tree, newest, newest.txg, policy, true).await?;
            removal::load_mappings(&opened.mos, &tree).await?;
            checkpoint::stored(&opened.mos).await
        };
        let found = found.await;
        tree.close();
        drop(tree);
        let mut checkpointed = found?.ok_or(PoolError::NoCheckpoint)?;
        checkpointed.txg = newest.txg.next();
        checkpointed.timestamp = crate::pool::unix_time(handle);
        if policy.readonly {
            return Ok(checkpointed);
        }
        let preview = ImportPolicy {
            readonly: true,
            ..policy.clone()
        };
        let (pool, _) =
            Self::open_at(handle, candidate, &preview, &checkpointed, &checkpointed).await?;
        pool.abandon();
        drop(pool);
        let tree = Tree::open(handle, &trusted, OpenMode::ReadWrite, devices, false).await?;
        let written = sync::write_uberblock_everywhere(&tree, &checkpointed).await;
        tree.close();
        written.map(|()| checkpointed)
    }

    /// Opens the pool in the state of an uberblock. Nothing is written. Returns also the datasets with claimed logs,
    /// which stay open until the first txg has stored that they are.
    async fn open_at(
        handle: &Handle,
        candidate: &Candidate,
        policy: &ImportPolicy,
        newest: &Uberblock,
        uberblock: &Uberblock,
    ) -> Result<(Self, Vec<Dataset>), PoolError> {
        let (trusted, config) = Self::trusted(handle, candidate, policy, newest, uberblock).await?;
        let mode = if policy.readonly {
            OpenMode::ReadOnly
        } else {
            OpenMode::ReadWrite
        };
        let devices = TreeTuning {
            missing_logs: policy.missing_logs,
            ..policy.tuning.devices.clone()
        };
        let tree = Tree::open(handle, &trusted, mode, devices, false).await?;
        let pool = Self::open_tree(
            handle,
            tree.clone(),
            candidate,
            policy,
            newest,
            uberblock,
            &config,
        );
        let pool = pool.await;
        if pool.is_err() {
            tree.close();
        }
        pool
    }

    /// Returns the tree that the pool's own configuration names in the state of an uberblock, and the configuration.
    async fn trusted(
        handle: &Handle,
        candidate: &Candidate,
        policy: &ImportPolicy,
        newest: &Uberblock,
        uberblock: &Uberblock,
    ) -> Result<(TreeConfig, NvList), PoolError> {
        // First with what the labels say, to find the configuration that is to be trusted.
        let known = known_tree(candidate);
        let mut config = config_in(handle, &known, policy, newest, uberblock).await;
        let mut early = None;
        if config.as_ref().is_err_and(PoolError::is_damage) {
            for top in known.perhaps_before_expansion() {
                let mut tree = known.clone();
                tree.set_before_expansion(top);
                let found = config_in(handle, &tree, policy, newest, uberblock).await;
                if found.is_ok() {
                    (config, early) = (found, Some(top));
                    break;
                }
            }
        }
        let config = match config {
            // What cannot be read may lie on the vdev that is not there.
            Err(error) if error.is_damage() && lacks_vdevs(candidate) => {
                return Err(missing_devices(candidate));
            }
            config => config?,
        };

        let mut trusted = trusted_tree(&config, candidate)?;
        // The labels may be those of a txg that did not become complete: then the child is not listed here.
        if let Some(top) = early
            && children_of(&trusted, top) == children_of(&known, top)
        {
            trusted.set_before_expansion(top);
        }
        check_missing(&trusted, candidate, policy)?;
        if trusted.guid_sum() != uberblock.guid_sum {
            return Err(PoolError::Corrupt(
                "the devices named in the pool's configuration do not add up to its uberblock"
                    .into(),
            ));
        }
        Ok((trusted, config))
    }

    async fn open_tree(
        handle: &Handle,
        tree: Tree,
        candidate: &Candidate,
        policy: &ImportPolicy,
        newest: &Uberblock,
        uberblock: &Uberblock,
        config: &NvList,
    ) -> Result<(Self, Vec<Dataset>), PoolError> {
        let again = tree.best_uberblock(None).await?;
        // A checkpoint that is imported read-only is not the newest state on the devices.
        let is_preview = policy.readonly && policy.rewind_to_checkpoint;
        if !is_preview && again.is_none_or(|again| again.txg != newest.txg) {
            return Err(PoolError::Busy);
        }
        let opened = open_mos(
            handle,
            &tree,
            uberblock,
            newest.txg,
            policy,
            policy.readonly,
        )
        .await?;
        removal::load_mappings(&opened.mos, &tree).await?;
        let rewound = rewind::rewound(uberblock, newest);
        let pool = assemble(
            handle, tree, opened, uberblock, rewound, config, candidate, policy,
        )
        .await?;
        if let Some(rewind) = policy.rewind {
            let safe = rewound.is_none() || !rewind.extreme && rewind.txg.is_none();
            let min_birth = if safe {
                newest.txg.0.saturating_sub(rewind::VERIFIED_TXGS)
            } else {
                0
            };
            pool.0.verify_metadata(Txg(min_birth)).await?;
        }
        let claimed = pool.0.load(policy, &candidate.auxiliaries).await?;
        Ok((pool, claimed))
    }

    /// The first txg of a writable import, and what comes after it.
    async fn begin(
        self,
        claimed: Vec<Dataset>,
        policy: &ImportPolicy,
        settings: Vec<(String, String)>,
    ) -> Result<Self, PoolError> {
        let pool = self;
        if policy.readonly {
            let cachefile = settings.into_iter().map(|(_, value)| value).next();
            pool.0.session.cachefile.replace(cachefile);
            pool.0.open_cache_devices(false).await;
            pool.note_import(policy);
            return Ok(pool);
        }
        pool.0.dirty_config();
        let version = pool.0.hierarchy().features().pool_version();
        let text = crate::history::version_text(version, &policy.host);
        // A pool that is opened again was not exported. OpenZFS: module/zfs/spa.c, spa_load_impl and spa_import
        let reopened = policy.command.is_none();
        pool.0
            .queue_internal(if reopened { "open" } else { "import" }, text);
        if let Some(txg) = pool.0.rewound_to() {
            let text = format!("rewound state to txg={txg}");
            pool.0.queue_internal("checkpoint rewind", text);
        }
        sync::start(&pool);
        pool.note_import(policy);
        if let Some(command) = &policy.command {
            pool.log_command(command, 0);
        }
        pool.sync().await?;
        drop(claimed);
        pool.create_missing_vdev_zaps().await?;
        pool.0.hierarchy().destroy_left_receives().await?;
        pool.0.continue_scans().await?;
        pool.0.expand_measured_if_auto().await?;
        pool.0.discard_in_background();
        pool.0.evacuate_in_background();
        pool.0.reflow_in_background();
        pool.0.continue_leaf_activities();
        pool.0.open_cache_devices(false).await;
        hot_spares::activate_in_background(&pool);
        for (name, value) in settings {
            pool.set_property(&name, &value).await?;
        }
        Ok(pool)
    }
}

impl Pool {
    /// Gives the vdevs of a pool that was made by software without per-vdev ZAPs, or without one of the root, theirs.
    // OpenZFS: module/zfs/spa.c, spa_sync_config_object (AVZ_ACTION_INITIALIZE)
    async fn create_missing_vdev_zaps(&self) -> Result<(), PoolError> {
        if self.0.objects.get().vdev_zap_map.0 != 0 && !self.0.lacks_root_zap() {
            return Ok(());
        }
        let create =
            async |imported: Rc<ImportedPool>, tx: Rc<Tx>| imported.create_vdev_objects(&tx).await;
        self.0.run_in_sync(create).await
    }

    fn note_import(&self, policy: &ImportPolicy) {
        crate::events::begin(self);
        // A pool reopened at start was not exported: no event.
        if policy.command.is_some() {
            self.0.notify("pool_import", None, NvList::new());
        }
    }
}

fn check_candidate(candidate: &Candidate, policy: &ImportPolicy) -> Result<(), PoolError> {
    if candidate.state == PoolState::Destroyed && !policy.destroyed {
        return Err(PoolError::Destroyed);
    }
    if !pool_version::is_known(candidate.version) {
        return Err(PoolError::UnsupportedVersion(candidate.version));
    }
    for top in &candidate.tree.tops {
        if let VdevKind::Other(kind) = &top.kind {
            return Err(PoolError::UnsupportedVdev(kind.clone()));
        }
    }
    if candidate.reason == crate::StatusReason::UnsupportedFeatureRead {
        let features = candidate
            .details
            .iter()
            .map(|guid| describe(guid))
            .collect();
        return Err(PoolError::UnsupportedForRead { features });
    }
    let beyond = candidate.root.children.iter();
    if beyond
        .filter(|top| !top.is_log && top.kind != "missing")
        .any(|top| top.health == Health::Unavail)
    {
        return Err(missing_devices(candidate));
    }
    Ok(())
}

fn parse_settings(policy: &ImportPolicy) -> Result<Vec<(String, String)>, PoolError> {
    let mut settings = Vec::new();
    for (name, value) in &policy.properties {
        properties::set::parse(name, value)?;
        // Where the pool is remembered is not stored in it.
        if policy.readonly && name != "cachefile" {
            return Err(PoolError::BadProperty {
                name: name.clone(),
                reason: "cannot be set on a read-only import".into(),
            });
        }
        settings.push((name.clone(), value.clone()));
    }
    Ok(settings)
}

/// Reads the configuration that the pool keeps, from devices in this tree.
async fn config_in(
    handle: &Handle,
    tree: &TreeConfig,
    policy: &ImportPolicy,
    newest: &Uberblock,
    uberblock: &Uberblock,
) -> Result<NvList, PoolError> {
    let devices = policy.tuning.devices.clone();
    let tree = Tree::open(handle, tree, OpenMode::ReadOnly, devices, false).await?;
    let config = async {
        let opened = open_mos(handle, &tree, uberblock, newest.txg, policy, true).await?;
        read_config(&opened.mos).await
    };
    let config = config.await;
    tree.close();
    config
}

/// Returns how many children a top-level vdev has.
fn children_of(tree: &TreeConfig, top: Guid) -> Option<usize> {
    let mut tops = tree.tops.iter();
    let found = tops.find(|vdev| vdev.guid == top)?;
    Some(found.children.len())
}

fn trusted_tree(config: &NvList, candidate: &Candidate) -> Result<TreeConfig, PoolError> {
    let bad = |what: &str| PoolError::Corrupt(format!("the pool's configuration {what}"));
    if config.u64("pool_guid") != Some(candidate.guid) {
        return Err(bad("belongs to another pool"));
    }
    let list = config
        .list("vdev_tree")
        .ok_or_else(|| bad("has no device tree"))?;
    let mut tree = TreeConfig::from_nvlist(list)?;
    for top in &mut tree.tops {
        set_open_paths(top, &candidate.devices);
    }
    Ok(tree)
}

fn lacks_vdevs(candidate: &Candidate) -> bool {
    let mut tops = candidate.tree.tops.iter();
    tops.any(|top| top.kind == VdevKind::Missing)
}

fn missing_devices(candidate: &Candidate) -> PoolError {
    PoolError::MissingDevices {
        missing: candidate.details.clone(),
    }
}

/// A pool can do without log vdevs, when that is wished, and without no others.
fn check_missing(
    trusted: &TreeConfig,
    candidate: &Candidate,
    policy: &ImportPolicy,
) -> Result<(), PoolError> {
    let is_missing = |top: &&VdevConfig| {
        let known = candidate.tree.tops.iter().find(|known| known.id == top.id);
        known.is_some_and(|known| known.kind == VdevKind::Missing)
            && !matches!(top.kind, VdevKind::Hole | VdevKind::Indirect)
    };
    let missing: Vec<&VdevConfig> = trusted.tops.iter().filter(is_missing).collect();
    if missing.iter().any(|top| !top.is_log) {
        return Err(missing_devices(candidate));
    }
    if missing.is_empty() || policy.missing_logs {
        return Ok(());
    }
    let leaves = trusted.leaves().into_iter();
    let names = leaves
        .filter(|leaf| missing.iter().any(|top| top.holds(leaf.guid)))
        .map(|leaf| leaf.path.clone().unwrap_or_else(|| leaf.guid.0.to_string()));
    Err(PoolError::MissingLogs {
        missing: names.collect(),
    })
}
