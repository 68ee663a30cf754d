//! Opening a pool that was found: the checks, the trusted configuration, and its state in memory.
//!
//! ```text
//! labels' tree -> newest uberblock -> meta-objset -> its configuration -> tree opened again
//!              -> features -> datasets, space maps, dirty-time logs -> first txg (read-write)
//! ```
//! Nothing is written before every check has passed.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::rc::Rc;

use arc::Cache;
use dmu::{Objset, ObjsetOptions, Services, TxgClock, zap};
use dsl::{Dataset, Hierarchy, HierarchyOptions};
use ondisk::bytes::{index, u64_at};
use ondisk::feature::Feature;
use ondisk::{BlockPointer, Guid, NvList, ObjectId, SPA_VERSION_FEATURES, Txg, Uberblock};
use runtime::Handle;
use vdev::{AllocationBias, OpenMode, Tree, TreeConfig, TreeTuning, VdevConfig, VdevKind};
use zio::{BlockStore, StoreOptions};

use crate::brt::BlockReferenceTables;
use crate::config::{self, Identity};
use crate::ddt::DedupTables;
use crate::discover::{Candidate, set_open_paths};
use crate::features::{Support, UnsupportedFeatures, support};
use crate::pool::{
    ALLOCATION_BIAS, DIRECTORY, ImportSession, ImportedPool, Pool, PoolObjects, PoolParts,
};
use crate::rewind::{self, Rewound};
use crate::space::{SpaceMapSource, SpaceMaps};
use crate::spec::ImportPolicy;
use crate::status::{Health, PoolState};
use crate::{
    PoolError, checkpoint, create, hot_spares, log_space_map, multihost, properties, removal, sync,
};

/// Longest configuration believed.
const CONFIG_MAX: u64 = 64 << 20;

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
        let text = format!(
            "pool version {SPA_VERSION_FEATURES}; software version sanbox-{}; uts {}",
            env!("CARGO_PKG_VERSION"),
            policy.host.hostname
        );
        pool.0.queue_internal("import", text);
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
        pool.0.hierarchy.destroy_left_receives().await?;
        pool.0.continue_scans().await?;
        pool.0.expand_measured_if_auto().await?;
        pool.0.discard_in_background();
        pool.0.evacuate_in_background();
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
    if candidate.version != SPA_VERSION_FEATURES {
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

pub(crate) async fn newest(tree: &Tree) -> Result<Uberblock, PoolError> {
    tree.best_uberblock(None)
        .await?
        .ok_or_else(|| PoolError::Corrupt("no valid uberblock on any device".into()))
}

/// A tree with its block store and meta-objset.
pub(crate) struct OpenedMos {
    pub(crate) services: Services,
    pub(crate) cache: Cache,
    pub(crate) store: BlockStore,
    pub(crate) mos: Objset,
}

pub(crate) async fn open_mos(
    handle: &Handle,
    tree: &Tree,
    uberblock: &Uberblock,
    newest: Txg,
    policy: &ImportPolicy,
    read_only: bool,
) -> Result<OpenedMos, PoolError> {
    if uberblock.version != SPA_VERSION_FEATURES {
        return Err(PoolError::UnsupportedVersion(uberblock.version));
    }
    let options = StoreOptions {
        tuning: policy.tuning.blocks.clone(),
        ..StoreOptions::default()
    };
    tree.set_reflow(uberblock.raidz_reflow);
    let store = BlockStore::new(handle, tree.clone(), options);
    let cache = Cache::new(handle, store.clone(), policy.tuning.cache.clone());
    // Above the states that are left behind: their uberblocks must not win the next time.
    let first = newest.max(uberblock.txg).next();
    let clock = TxgClock::new(handle.clone(), first, policy.tuning.txg.clone());
    let services = Services::new(handle.clone(), cache.clone(), store.clone(), clock);
    let mut options = ObjsetOptions::meta_objset();
    options.read_only = read_only;
    let mos = Objset::open(&services, uberblock.rootbp, options).await?;
    Ok(OpenedMos {
        services,
        cache,
        store,
        mos,
    })
}

/// Reads the configuration the pool keeps in its meta-objset.
pub(crate) async fn read_config(mos: &Objset) -> Result<NvList, PoolError> {
    let bad = |what: &str| PoolError::Corrupt(format!("the pool's configuration {what}"));
    let object = zap::lookup_u64(mos, DIRECTORY, "config")
        .await?
        .ok_or_else(|| bad("is missing"))?;
    read_packed(mos, ObjectId(object), "config").await
}

/// Reads a list that the pool keeps in an object of its own.
pub(crate) async fn read_packed(
    mos: &Objset,
    object: ObjectId,
    what: &str,
) -> Result<NvList, PoolError> {
    let bad = |why: &str| PoolError::Corrupt(format!("the pool's list '{what}' {why}"));
    let bonus = mos.bonus(object).await?;
    let len = u64_at(&bonus.bytes, 0);
    if len == 0 || len > CONFIG_MAX {
        return Err(bad("has an impossible length"));
    }
    let packed = mos.read(object, 0, index(len)).await?;
    NvList::decode(&packed).map_err(|error| bad(&format!("cannot be decoded: {error}")))
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

/// Opens the devices of a pool that was found, as its labels tell, for reading.
pub(crate) async fn open_known(handle: &Handle, candidate: &Candidate) -> Result<Tree, PoolError> {
    let (tree, tuning) = (known_tree(candidate), TreeTuning::default());
    Ok(Tree::open(handle, &tree, OpenMode::ReadOnly, tuning, false).await?)
}

/// The tree of the labels as far as it is known: a vdev of which no label was found is left out.
fn known_tree(candidate: &Candidate) -> TreeConfig {
    let mut tree = candidate.tree.clone();
    for top in &mut tree.tops {
        if top.kind == VdevKind::Missing {
            top.kind = VdevKind::Hole;
        }
    }
    tree
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

/// Reads the features, refuses what cannot be opened as asked, and builds the pool in memory.
#[allow(
    clippy::too_many_arguments,
    reason = "the pieces of one pool, each used once"
)]
pub(crate) async fn assemble(
    handle: &Handle,
    tree: Tree,
    opened: OpenedMos,
    uberblock: &Uberblock,
    rewound: Option<Rewound>,
    config: &NvList,
    candidate: &Candidate,
    policy: &ImportPolicy,
) -> Result<Pool, PoolError> {
    let mos = opened.mos.clone();
    let mut unsupported = unsupported_features(&mos).await?;
    // Counted only from the first txg of the expansion on, but a child may be listed before.
    if unsupported.unwritable.is_empty() && tree.config().tops.iter().any(VdevConfig::is_expanding)
    {
        unsupported.add("org.openzfs:raidz_expansion", false, None);
    }
    if !unsupported.unreadable.is_empty() {
        return Err(PoolError::UnsupportedForRead {
            features: unsupported.unreadable,
        });
    }
    if !unsupported.unwritable.is_empty() && !policy.readonly {
        return Err(PoolError::UnsupportedForWrite {
            features: unsupported.unwritable,
        });
    }
    let mut salt = [0; 32];
    match zap::lookup(&mos, DIRECTORY, "org.illumos:checksum_salt").await? {
        Some(zap::ZapValue::U8(bytes)) if bytes.len() == salt.len() => {
            salt.copy_from_slice(&bytes);
        }
        Some(_) => return Err(PoolError::Corrupt("the checksum salt is damaged".into())),
        None => {}
    }
    opened.store.set_salt(salt);

    let mut identity = Identity::from_list(config)
        .ok_or_else(|| PoolError::Corrupt("the pool's configuration is incomplete".into()))?;
    let name = policy
        .new_name
        .clone()
        .unwrap_or_else(|| identity.name.clone());
    if !policy.temporary_name && !policy.readonly {
        identity.name.clone_from(&name);
    }
    if !policy.readonly {
        identity.host = policy.host.clone();
    }
    let options = HierarchyOptions {
        pool_name: name.clone(),
        read_only: policy.readonly,
    };
    let hierarchy = Hierarchy::open(&mos, options).await?;
    let lookup = async |key: &str| -> Result<ObjectId, PoolError> {
        Ok(ObjectId(
            zap::lookup_u64(&mos, DIRECTORY, key).await?.unwrap_or(0),
        ))
    };
    let objects = PoolObjects {
        config: lookup("config").await?,
        history: lookup("history").await?,
        vdev_zap_map: lookup("com.delphix:vdev_zap_map").await?,
        properties: lookup("pool_props").await?,
    };
    let features = hierarchy.features();
    let space = Rc::new(SpaceMaps::new(
        mos.clone(),
        features.is_enabled("spacemap_histogram"),
        features.is_enabled("spacemap_v2"),
    ));
    let state = match candidate.state {
        PoolState::Active => config::STATE_ACTIVE,
        PoolState::Exported => config::STATE_EXPORTED,
        PoolState::Destroyed => config::STATE_DESTROYED,
    };
    let session = ImportSession {
        host: policy.host.clone(),
        altroot: policy.altroot.clone(),
        cachefile: RefCell::new(None),
        readonly: policy.readonly,
        load_guid: handle.random_u64(),
        rewound,
        opened: handle.now(),
    };
    Ok(Pool(Rc::new(ImportedPool::new(PoolParts {
        handle,
        tree,
        opened,
        hierarchy,
        space,
        session,
        identity,
        name,
        label_state: if policy.readonly {
            state
        } else {
            config::STATE_ACTIVE
        },
        objects,
        uberblock: *uberblock,
        tuning: &policy.tuning,
        events: policy.events.clone(),
    }))))
}

/// Returns the active features of a pool that this software cannot read or write.
async fn unsupported_features(mos: &Objset) -> Result<UnsupportedFeatures, PoolError> {
    let table = async |key: &str| -> Result<ObjectId, PoolError> {
        let object = zap::lookup_u64(mos, DIRECTORY, key).await?;
        object
            .map(ObjectId)
            .ok_or_else(|| PoolError::Corrupt(format!("the pool has no {key}")))
    };
    let descriptions = table("feature_descriptions").await?;
    let mut unsupported = UnsupportedFeatures::default();
    for (key, for_read) in [("features_for_read", true), ("features_for_write", false)] {
        for entry in zap::entries(mos, table(key).await?).await? {
            let zap::ZapValue::U64(count) = &entry.value else {
                continue;
            };
            if count.first().is_none_or(|&count| count == 0) {
                continue;
            }
            let guid = String::from_utf8_lossy(&entry.name).into_owned();
            let description = match zap::lookup(mos, descriptions, &guid).await? {
                Some(zap::ZapValue::U8(bytes)) => {
                    let text = bytes.split(|&b| b == 0).next().unwrap_or_default();
                    Some(String::from_utf8_lossy(text).into_owned())
                }
                _ => None,
            };
            unsupported.add(&guid, for_read, description.as_deref());
        }
    }
    Ok(unsupported)
}

impl ImportedPool {
    /// Loads what a pool needs beyond its datasets, and claims the intent logs of a crash. Returns the datasets that
    /// have one.
    pub(crate) async fn load(
        &self,
        policy: &ImportPolicy,
        auxiliaries: &BTreeMap<u64, PathBuf>,
    ) -> Result<Vec<Dataset>, PoolError> {
        self.load_properties().await?;
        for leaf in self.tree.config().leaves() {
            if let Some(object) = leaf.dtl.filter(|&object| object != 0) {
                self.dtls
                    .open(&self.mos, leaf.guid.0, ObjectId(object))
                    .await?;
                let missing = self.dtls.missing(leaf.guid.0);
                self.tree.set_dtl(leaf.guid, &missing);
            }
        }
        self.read_allocation_biases().await?;
        let dedup = DedupTables::open(&self.mos, &self.tree).await?;
        let mut places = self.tree.tops();
        places.extend(self.tree.removed_tops());
        let clones = BlockReferenceTables::open(&self.mos, &places).await?;
        self.space.set_tables(dedup, Some(clones));
        if !policy.readonly
            && let Some(logs) =
                log_space_map::read(&self.mos, &self.tree.tops(), &self.tree.config()).await?
        {
            self.space.set_logs(logs);
        }
        let mut summaries = Vec::new();
        for top in self.tree.tops() {
            summaries.extend(self.space.open_vdev(&top).await?);
        }
        self.store()
            .activate(SpaceMapSource::of(&self.space), &summaries);
        self.load_removal().await?;
        self.load_checkpoint().await?;
        self.load_leaf_activities().await?;
        self.load_auxiliaries(auxiliaries).await?;
        self.load_scan().await?;
        self.load_rebuilds().await?;
        self.load_error_logs().await?;
        if policy.readonly {
            return Ok(Vec::new());
        }
        self.claim_intent_logs(policy.missing_logs).await
    }

    /// Reads from the vdevs' ZAPs which blocks each is for.
    async fn read_allocation_biases(&self) -> Result<(), PoolError> {
        for top in self.tree.config().tops {
            let Some(zap_top) = top.zap_top.filter(|&object| object != 0) else {
                continue;
            };
            let stored = zap::lookup(&self.mos, ObjectId(zap_top), ALLOCATION_BIAS).await?;
            if let Some(zap::ZapValue::U8(bytes)) = stored {
                let text = bytes.split(|&b| b == 0).next().unwrap_or_default();
                let bias = AllocationBias::parse(&String::from_utf8_lossy(text));
                self.tree.update_config(top.guid, |vdev| vdev.bias = bias);
            }
        }
        Ok(())
    }

    /// Marks the blocks of all intent logs as allocated, before anything else is, and has the first txg store that.
    /// What they hold is replayed when their dataset is opened; empty ones are freed. With `missing_logs` a log ends where
    /// a log device does not give it.
    async fn claim_intent_logs(&self, missing_logs: bool) -> Result<Vec<Dataset>, PoolError> {
        let first = self.clock().begin_now()?;
        let mut claimed = Vec::new();
        for name in self.hierarchy.unreplayed_logs().await? {
            let unusable = |error: zil::ZilError| PoolError::DirtyIntentLog {
                dataset: name.clone(),
                reason: error.to_string(),
            };
            let dataset = self.hierarchy.dataset(&name).await?;
            let objset = dataset.objset();
            let old = objset.zil_header();
            // Empty if it was the log of the dataset this is a clone of.
            if !zil::has_log(&old) {
                continue;
            }
            if let Some(checkpointed) = self.rewound_to().filter(|_| old.claim_txg == 0) {
                // Records logged since the checkpoint belong to a state that is discarded.
                let blocks = zil::blocks_until(self.store(), &old, checkpointed).await;
                for bp in blocks.map_err(unusable)? {
                    self.store().free(first.txg(), &bp).await?;
                }
                objset.set_zil_header(ondisk::zil::ZilHeader::default(), &first);
                if let Some(log) = dataset.log() {
                    log.header_changed();
                }
                claimed.push(dataset);
                continue;
            }
            // A rewind discards what was done since, the log with it.
            let given_up =
                |vdev| (missing_logs && self.tree.is_log(vdev)) || self.session.rewound.is_some();
            let claimed_log = zil::claim(self.store(), &old, first.txg(), given_up).await;
            let zil::Claimed { header, referenced } = claimed_log.map_err(unusable)?;
            let refused = if referenced.iter().any(BlockPointer::is_dedup) {
                Some("it holds clones of deduplicated blocks")
            } else if !referenced.is_empty()
                && !self.hierarchy.features().is_enabled("block_cloning")
            {
                Some("it holds clones of blocks, and feature@block_cloning is disabled")
            } else {
                None
            };
            if let Some(reason) = refused {
                return Err(PoolError::DirtyIntentLog {
                    dataset: name,
                    reason: reason.to_owned(),
                });
            }
            for bp in &referenced {
                self.space.refer(bp, self.store().dsize(bp)).await?;
            }
            if !zil::has_log(&header) && old.log.birth() < first.txg() {
                self.store().free(first.txg(), &old.log).await?;
            }
            if header != old {
                objset.set_zil_header(header, &first);
            }
            if let Some(log) = dataset.log() {
                log.header_changed();
            }
            claimed.push(dataset);
        }
        Ok(claimed)
    }

    pub(crate) fn queue_internal(&self, name: &'static str, text: String) {
        let (txg, time) = (self.clock().open_txg().0, self.unix_time());
        let record =
            crate::history::internal_record(name, None, &text, txg, time, &self.session.host);
        self.queue_history(record);
    }
}

fn describe(guid: &str) -> String {
    match Feature::by_guid(guid) {
        Some(feature) if support(feature) != Support::Full => {
            format!("{guid} ({})", feature.description)
        }
        _ => guid.to_owned(),
    }
}

/// Writes a time as `date` does in UTC: `Sat Nov 21 13:49:14 2026`.
pub(crate) fn date(seconds: u64) -> String {
    const DAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
    const MONTHS: [&str; 12] = [
        "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
    ];
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    // Civil date from a day count (Gregorian, era of 400 years starting in March).
    let shifted = days + 719_468;
    let era = shifted / 146_097;
    let day_of_era = shifted % 146_097;
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let march_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * march_month + 2) / 5 + 1;
    let month = if march_month < 10 {
        march_month + 3
    } else {
        march_month - 9
    };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    format!(
        "{} {} {:2} {:02}:{:02}:{:02} {}",
        DAYS[index(days % 7)],
        MONTHS[index(month - 1)],
        day,
        rest / 3600,
        rest / 60 % 60,
        rest % 60,
        year
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_written_as_date_writes_them() {
        assert_eq!(date(0), "Thu Jan  1 00:00:00 1970");
        assert_eq!(date(1_795_268_954), "Sat Nov 21 13:49:14 2026");
        assert_eq!(date(951_782_400), "Tue Feb 29 00:00:00 2000");
    }
}
