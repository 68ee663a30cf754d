//! Making a new pool: checks of the request and the devices, the first objects, the first txg.
//!
//! Until the first uberblock is written the devices hold no pool: a crash before that leaves
//! labels of txg 0, which no import takes for a pool.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::rc::Rc;

use arc::Cache;
use dmu::{Objset, ObjsetOptions, Services, Tx, TxgClock, zap};
use dsl::property::Setting;
use dsl::{Hierarchy, HierarchyOptions, NewHierarchy};
use ondisk::feature::Feature;
use ondisk::{
    BlockPointer, Guid, NvList, ObjectId, ObjectType, ObjsetType, SPA_VERSION_FEATURES,
    TXG_INITIAL, Uberblock, pool_version,
};
use runtime::Handle;
use vdev::{AllocationBias, LeafSpec, OpenMode, TopSpec, Tree, TreeSpec, VdevKind};
use zio::{BlockStore, StoreOptions};

use crate::auxiliary::AuxiliaryKind;
use crate::brt::BlockReferenceTables;
use crate::config::{self, Identity};
use crate::ddt::DedupTables;
use crate::objects::{ALLOCATION_BIAS, DIRECTORY, PoolObjects};
use crate::pool::OpenedMos;
use crate::pool::{ImportSession, ImportedPool, Pool, PoolParts};
use crate::properties::stored::StoredValue;
use crate::space::{SpaceFeatures, SpaceMapSource, SpaceMaps};
use crate::spec::{PoolSpec, VdevSpec};
use crate::{PoolError, features, history, in_use, properties, sync};

pub(crate) const ALLOCATION_CLASSES: &str = "allocation_classes";
pub(crate) const DRAID: &str = "draid";
const VDEV_ZAPS_V2: &str = "vdev_zaps_v2";
/// The ZAP of the root vdev, in the configuration of the pool.
// OpenZFS: include/sys/fs/zfs.h, ZPOOL_CONFIG_VDEV_ROOT_ZAP
pub(crate) const ROOT_ZAP: &str = "com.klarasystems:vdev_zap_root";
/// Most children of a raidz vdev (OpenZFS: `cmd/zpool/zpool_vdev.c`).
const RAIDZ_CHILDREN_MAX: usize = 255;

const _: () = assert!(RAIDZ_CHILDREN_MAX <= u8::MAX as usize);

/// A request whose property values have been checked.
struct CheckedSpec {
    version: u64,
    ashift: Option<u8>,
    comment: Option<String>,
    compatibility: Option<String>,
    cachefile: Option<String>,
    features: Vec<(String, bool)>,
    stored: BTreeMap<String, StoredValue>,
}

impl CheckedSpec {
    /// The features of the new pool; none of a version that has no features.
    fn features_to_enable(&self, spec: &PoolSpec) -> Result<Vec<&'static Feature>, PoolError> {
        if self.version == SPA_VERSION_FEATURES {
            features::of_new_pool(spec.features, &self.features)
        } else {
            Ok(Vec::new())
        }
    }
}

impl Pool {
    /// Creates a pool on the devices of `spec` and waits until it is on stable storage.
    ///
    /// `init` fills the root dataset in the pool's first transaction group; it gets its objset, the
    /// transaction and the settings of the root dataset.
    ///
    /// # Errors
    /// `Invalid`, `DeviceInUse`, `DeviceTooSmall` before anything is written; device errors later.
    pub async fn create(
        handle: &Handle,
        spec: PoolSpec,
        init: impl AsyncFnOnce(&Objset, &Tx, &[Setting]) -> dsl::Result<()> + 'static,
    ) -> Result<Self, PoolError> {
        let checked = check(&spec)?;
        let enable = checked.features_to_enable(&spec)?;
        check_enabled(&spec, &checked, &enable)?;
        let tree = open_new_tree(handle, &spec, checked.ashift).await?;

        let mut salt = [0; 32];
        handle.fill_random(&mut salt);
        let (opened, tx) = new_layers(handle, &tree, &spec, salt).await;
        let (mos, txg) = (opened.mos.clone(), tx.txg());
        if checked.version < pool_version::RAIDZ_DEFLATE {
            opened.store.count_raw_space();
        }
        let enabled = |name: &str| enable.iter().any(|feature| feature.name == name);
        let space = SpaceMaps::new(mos.clone(), &tree, SpaceFeatures::of(enabled));
        let space = Rc::new(space);
        space.set_tables(
            DedupTables::new(&mos, &tree, enabled("fast_dedup"), &spec.tuning.dedup),
            BlockReferenceTables::new(&mos, &tree),
        );
        opened.store.activate(SpaceMapSource::of(&space), &[]);
        let (options, new) = new_hierarchy(&spec, checked.version, enable);
        let hierarchy = Hierarchy::create(&mos, options, new, init, &tx).await?;

        let guid = tree.config().guid.0;
        let identity = new_identity(
            &spec,
            checked.version,
            guid,
            checked.comment,
            checked.compatibility,
        );
        let session = new_session(handle, &spec, checked.cachefile);
        let pool = Self(Rc::new(ImportedPool::new(PoolParts {
            handle,
            tree,
            opened,
            hierarchy,
            space,
            session,
            identity,
            name: spec.name_in_use().to_owned(),
            label_state: config::STATE_ACTIVE,
            objects: PoolObjects::default(),
            uberblock: Uberblock::new(TXG_INITIAL, 0, 0, BlockPointer::HOLE),
            tuning: &spec.tuning,
            events: spec.events.clone(),
        })));
        let imported = &pool.0;
        imported.dirty_config();
        imported.add_new_auxiliaries(&spec).await?;
        imported
            .create_pool_objects(&salt, &checked.stored, spec.command.as_deref(), &tx)
            .await?;
        drop(tx);
        imported.sync_txg(txg).await?;
        imported.store().txg_synced(txg);
        imported.hierarchy().synced(txg);
        imported.clock().synced(txg);
        sync::start(&pool);
        crate::events::begin(&pool);
        pool.0.notify("pool_create", None, NvList::new());
        pool.0.open_cache_devices(true).await;
        Ok(pool)
    }
}

fn new_identity(
    spec: &PoolSpec,
    version: u64,
    guid: u64,
    comment: Option<String>,
    compatibility: Option<String>,
) -> Identity {
    Identity {
        version,
        name: spec.name.clone(),
        guid,
        errata: 0,
        comment,
        compatibility,
        host: spec.host.clone(),
    }
}

fn new_session(handle: &Handle, spec: &PoolSpec, cachefile: Option<String>) -> ImportSession {
    ImportSession {
        host: spec.host.clone(),
        altroot: spec.altroot.clone(),
        cachefile: RefCell::new(cachefile),
        readonly: false,
        load_guid: handle.random_u64(),
        rewound: None,
        opened: handle.now(),
    }
}

/// Refuses what needs features that the new pool will not have, and `multihost` without an identifier of the host.
fn check_enabled(
    spec: &PoolSpec,
    checked: &CheckedSpec,
    enable: &[&'static Feature],
) -> Result<(), PoolError> {
    let multihost = checked.stored.get("multihost") == Some(&StoredValue::Number(1));
    if multihost && spec.host.hostid == 0 {
        return Err(PoolError::Invalid(
            "property 'multihost' requires a non-zero system hostid".into(),
        ));
    }

    let classes = !(spec.special.is_empty() && spec.dedup.is_empty());
    if classes && !enable.iter().any(|f| f.name == ALLOCATION_CLASSES) {
        return Err(PoolError::Invalid(
            "special and dedup vdevs need the feature 'allocation_classes' to be enabled".into(),
        ));
    }
    let spread = spec.tops().any(|(vdev, _)| vdev.draid().is_some());
    if spread && !enable.iter().any(|f| f.name == DRAID) {
        return Err(PoolError::Invalid(
            "operation not supported on this type of pool".into(),
        ));
    }
    check_root_settings(&spec.settings, enable)
}

/// What the datasets of a new pool begin with.
fn new_hierarchy(
    spec: &PoolSpec,
    version: u64,
    features: Vec<&'static Feature>,
) -> (HierarchyOptions, NewHierarchy) {
    let options = HierarchyOptions {
        pool_name: spec.name_in_use().to_owned(),
        read_only: false,
        version,
    };
    let new = NewHierarchy {
        version,
        features,
        settings: spec.settings.clone(),
        key: spec.key.clone(),
    };
    (options, new)
}

/// Checks that a new pool has the features that properties of its root dataset need. Encryption has words of its own.
fn check_root_settings(settings: &[Setting], enable: &[&'static Feature]) -> Result<(), PoolError> {
    for setting in settings {
        let Setting::Native(property, value) = setting else {
            continue;
        };
        let needed = dsl::feature_needed(*property, value).filter(|name| *name != "encryption");
        if let Some(needed) = needed
            && !enable.iter().any(|feature| feature.name == needed)
        {
            return Err(PoolError::Invalid(format!(
                "property '{}' needs the feature '{needed}', which is not enabled",
                property.name()
            )));
        }
    }
    Ok(())
}

/// Plans the devices of a new pool, and opens them with labels of txg 0.
async fn open_new_tree(
    handle: &Handle,
    spec: &PoolSpec,
    ashift: Option<u8>,
) -> Result<Tree, PoolError> {
    let (tree_config, conflicts) = vdev::plan(handle, &tree_spec(spec.tops(), ashift)).await?;
    in_use::refuse(&conflicts, spec.force)?;
    let tree = Tree::open(
        handle,
        &tree_config,
        OpenMode::ReadWrite,
        spec.tuning.devices.clone(),
        true,
    )
    .await?;
    for top in &tree_config.tops {
        tree.update_config(top.guid, |vdev| vdev.create_txg = TXG_INITIAL.0);
        for leaf in sync::leaves_of(top) {
            tree.init_labels(leaf.guid).await?;
            tree.update_config(leaf.guid, |vdev| vdev.create_txg = TXG_INITIAL.0);
        }
    }
    Ok(tree)
}

/// Makes the layers above the devices, with an empty meta-objset, and the transaction of the first txg.
async fn new_layers(
    handle: &Handle,
    tree: &Tree,
    spec: &PoolSpec,
    salt: [u8; 32],
) -> (OpenedMos, Tx) {
    let store = BlockStore::new(
        handle,
        tree.clone(),
        StoreOptions {
            salt,
            tuning: spec.tuning.blocks.clone(),
        },
    );
    let cache = Cache::new(handle, store.clone(), spec.tuning.cache.clone());
    let clock = TxgClock::new(handle.clone(), TXG_INITIAL, spec.tuning.txg.clone());
    let services = Services::new(handle.clone(), cache.clone(), store.clone(), clock);
    let txg = services.clock.quiesce_next().await;
    let tx = services.clock.syncing_tx(txg);

    let mos = Objset::create(
        &services,
        ObjsetType::META,
        ObjsetOptions::meta_objset(),
        &tx,
    );
    let opened = OpenedMos {
        services,
        cache,
        store,
        mos,
    };
    (opened, tx)
}

impl ImportedPool {
    /// Adds the spares and cache devices of a new pool to its lists.
    async fn add_new_auxiliaries(&self, spec: &PoolSpec) -> Result<(), PoolError> {
        for (kind, paths) in [
            (AuxiliaryKind::Spare, &spec.spares),
            (AuxiliaryKind::Cache, &spec.caches),
        ] {
            for config in self.prepare_auxiliaries(kind, paths, spec.force).await? {
                self.auxiliary_devices(kind).push(config);
            }
        }
        for spare in self.distributed_spares(0) {
            self.auxiliary_devices(AuxiliaryKind::Spare).push(spare);
        }
        Ok(())
    }

    /// Creates the pool's own objects in the first txg.
    async fn create_pool_objects(
        self: &Rc<Self>,
        salt: &[u8; 32],
        stored: &BTreeMap<String, StoredValue>,
        command: Option<&str>,
        tx: &Tx,
    ) -> Result<(), PoolError> {
        assert!(
            tx.is_syncing(),
            "create pool objects happens in syncing context"
        );
        let mos = self.mos();
        let version = self.hierarchy().features().pool_version();
        let value = zap::ZapValue::U8(salt.to_vec());
        zap::add(mos, DIRECTORY, "org.illumos:checksum_salt", &value, tx).await?;
        if zap::lookup_u64(mos, DIRECTORY, "creation_version")
            .await?
            .is_none()
        {
            zap::add_u64(mos, DIRECTORY, "creation_version", version, tx).await?;
        }
        self.create_vdev_objects(tx).await?;
        properties::set::store_all(self, stored, tx).await?;
        let text = history::version_text(version, &self.session.host);
        self.log_internal("create", &text, tx).await?;
        if let Some(command) = command {
            let record = history::command_record(command, 0, self.unix_time(), &self.session.host);
            self.append_history(&record, tx).await?;
        }
        Ok(())
    }

    /// Creates the per-vdev ZAPs and metaslab arrays that are missing.
    pub(crate) async fn create_vdev_objects(&self, tx: &Tx) -> Result<(), PoolError> {
        assert!(
            tx.is_syncing(),
            "create vdev objects happens in syncing context"
        );
        // OpenZFS: module/zfs/vdev.c, vdev_construct_zaps
        let mos = self.mos();
        let plain = zap::ZapSpec::new(ObjectType::ZAP_METADATA);
        let mut map = self.objects.get().vdev_zap_map;
        if map.0 == 0 {
            map = zap::create(mos, &plain, tx).await?;
            zap::add_u64(mos, DIRECTORY, "com.delphix:vdev_zap_map", map.0, tx).await?;
            self.set_objects(|objects| objects.vdev_zap_map = map);
            self.dirty_config();
        }
        self.create_root_zap(map, tx).await?;
        let tree = self.tree().config();
        let leaves = tree.leaves();
        let real =
            |top: &&vdev::VdevConfig| !matches!(top.kind, VdevKind::Hole | VdevKind::Missing);
        for top in tree.tops.iter().filter(real) {
            let mut wanted: Vec<(Guid, bool)> = Vec::new();
            // Distributed spares at work have one, too.
            let leaves = leaves.iter().filter(|leaf| top.holds(leaf.guid));
            for leaf in leaves.filter(|leaf| leaf.zap_leaf.is_none()) {
                wanted.push((leaf.guid, true));
            }
            if top.zap_top.is_none() {
                wanted.push((top.guid, false));
            }
            for (guid, leaf) in wanted {
                let object = zap::create(mos, &plain, tx).await?;
                zap::add_int(mos, map, object.0, tx).await?;
                self.tree().update_config(guid, |vdev| {
                    if leaf {
                        vdev.zap_leaf = Some(object.0);
                    } else {
                        vdev.zap_top = Some(object.0);
                    }
                });
                if !leaf {
                    self.store_bias(top.allocation_bias(), object, tx).await?;
                }
                if !leaf && top.kind == VdevKind::Draid {
                    // One reference for each, as OpenZFS counts.
                    self.hierarchy().features().incr(DRAID, tx).await?;
                }
                self.dirty_config();
            }
        }
        for top in self.tree().tops() {
            if top.metaslab_array == 0 {
                let array = self.space().add_vdev(&top, tx).await?;
                self.tree()
                    .update_config(top.guid, |vdev| vdev.metaslab_array = array.0);
                self.dirty_config();
            }
        }
        Ok(())
    }
}

impl ImportedPool {
    /// Gives the root vdev its ZAP, where the feature `vdev_zaps_v2` is enabled: the feature is in use from then on.
    // OpenZFS: module/zfs/vdev.c, vdev_construct_zaps
    async fn create_root_zap(&self, map: ObjectId, tx: &Tx) -> Result<(), PoolError> {
        assert!(
            tx.is_syncing() && map.0 != 0,
            "the root's ZAP is made in syncing context, beside a map"
        );
        let features = self.hierarchy().features();
        if !self.lacks_root_zap() {
            return Ok(());
        }
        if !features.is_active(VDEV_ZAPS_V2) {
            features.incr(VDEV_ZAPS_V2, tx).await?;
        }
        let plain = zap::ZapSpec::new(ObjectType::ZAP_METADATA);
        let object = zap::create(self.mos(), &plain, tx).await?;
        zap::add_int(self.mos(), map, object.0, tx).await?;
        self.tree()
            .update_root(|root| root.extra.insert(ROOT_ZAP, object.0));
        self.dirty_config();
        Ok(())
    }

    /// Whether the root vdev should have a ZAP and has none.
    pub(crate) fn lacks_root_zap(&self) -> bool {
        let known = self.tree().config().extra.u64(ROOT_ZAP);
        known.unwrap_or(0) == 0 && self.hierarchy().features().is_enabled(VDEV_ZAPS_V2)
    }

    /// Writes into a new top-level vdev's ZAP which blocks the vdev is for.
    // OpenZFS: module/zfs/vdev.c, vdev_zap_allocation_data
    async fn store_bias(
        &self,
        bias: AllocationBias,
        vdev_zap: ObjectId,
        tx: &Tx,
    ) -> Result<(), PoolError> {
        assert!(tx.is_syncing(), "store bias happens in syncing context");
        let Some(word) = bias.as_str() else {
            return Ok(());
        };
        let mut bytes = word.as_bytes().to_vec();
        bytes.push(0);
        let value = zap::ZapValue::U8(bytes);
        zap::add(self.mos(), vdev_zap, ALLOCATION_BIAS, &value, tx).await?;
        if bias != AllocationBias::Log {
            self.hierarchy()
                .features()
                .incr(ALLOCATION_CLASSES, tx)
                .await?;
        }
        Ok(())
    }
}

/// Returns the tree of some vdevs as `vdev` plans it.
pub(crate) fn tree_spec<'a>(
    vdevs: impl Iterator<Item = (&'a VdevSpec, AllocationBias)>,
    ashift: Option<u8>,
) -> TreeSpec {
    let tops = vdevs
        .map(|(vdev, bias)| TopSpec {
            parity: vdev.parity(),
            draid: vdev.draid(),
            leaves: vdev
                .paths()
                .iter()
                .map(|path| LeafSpec { path: path.clone() })
                .collect(),
            bias,
            ashift,
        })
        .collect();
    TreeSpec { tops }
}

/// Checks what can be checked of a new pool without its devices: names, layout, properties, features.
///
/// # Errors
/// What [`Pool::create`](crate::Pool::create) would say.
pub fn check_spec(spec: &PoolSpec) -> Result<(), PoolError> {
    let checked = check(spec)?;
    let enable = checked.features_to_enable(spec)?;
    check_root_settings(&spec.settings, &enable)
}

/// Returns the key that the root dataset of a new pool needs; `None` when its properties (`spec.settings`) ask for no encryption.
/// `salt` is a random number other than 0, for a passphrase.
///
/// # Errors
/// `Invalid` for the pool's properties, `Dsl` when those of the root dataset do not go together.
pub fn plan_root_key(spec: &PoolSpec, salt: u64) -> Result<Option<dsl::PlannedKey>, PoolError> {
    let checked = check(spec)?;
    let enable = checked.features_to_enable(spec)?;
    check_root_settings(&spec.settings, &enable)?;
    let has_feature = enable.iter().any(|feature| feature.name == "encryption");
    Ok(dsl::plan_root_key(&spec.settings, has_feature, salt)?)
}

/// Checks everything that can be checked without looking at a device.
fn check(spec: &PoolSpec) -> Result<CheckedSpec, PoolError> {
    check_name(&spec.name)?;
    check_name(spec.name_in_use())?;
    if spec.vdevs.is_empty() {
        return Err(PoolError::Invalid(
            "invalid vdev specification: at least one toplevel vdev must be specified".into(),
        ));
    }
    check_vdevs(spec.tops().map(|(vdev, _)| vdev))?;
    check_distinct(
        &spec.spares,
        &spec.caches,
        spec.tops().map(|(vdev, _)| vdev),
    )?;
    let mut checked = CheckedSpec {
        version: SPA_VERSION_FEATURES,
        ashift: None,
        comment: None,
        compatibility: None,
        cachefile: None,
        features: Vec::new(),
        stored: BTreeMap::new(),
    };
    for (name, value) in &spec.properties {
        match properties::set::parse(name, value)? {
            properties::set::PropertyChange::Ashift(0) => checked.ashift = None,
            properties::set::PropertyChange::Ashift(ashift) => {
                checked.ashift = Some(ashift);
                checked
                    .stored
                    .insert(name.clone(), StoredValue::Number(u64::from(ashift)));
            }
            properties::set::PropertyChange::Version(version) => checked.version = version,
            properties::set::PropertyChange::Comment(text) => checked.comment = text,
            properties::set::PropertyChange::Compatibility(text) => checked.compatibility = text,
            properties::set::PropertyChange::Cachefile(text) => checked.cachefile = text,
            properties::set::PropertyChange::Feature { name, enabled } => {
                checked.features.push((name, enabled));
            }
            properties::set::PropertyChange::Store(key, value) => {
                checked.stored.insert(key, value);
            }
            properties::set::PropertyChange::Bootfs(_)
            | properties::set::PropertyChange::Remove(_) => {
                return Err(PoolError::BadProperty {
                    name: name.clone(),
                    reason: "cannot be set at creation time".into(),
                });
            }
        }
    }
    check_version(spec, &checked)?;
    Ok(checked)
}

/// Checks that a pool of the version asked for can have what is asked for.
// OpenZFS: module/zfs/vdev.c, vdev_alloc; module/zfs/vdev_raidz.c, vdev_raidz_init; module/zfs/spa.c, spa_validate_aux
fn check_version(spec: &PoolSpec, checked: &CheckedSpec) -> Result<(), PoolError> {
    let refuse = |what: &str| Err(PoolError::Invalid(what.into()));
    let version = checked.version;
    if version == SPA_VERSION_FEATURES {
        return Ok(());
    }
    if !checked.features.is_empty() {
        return refuse("'feature@' and 'version' properties cannot be specified together");
    }
    let needed = version_needed(
        spec.tops(),
        !spec.spares.is_empty(),
        !spec.caches.is_empty(),
    );
    if version < needed {
        return refuse("operation not supported on this type of pool");
    }
    check_settings_of_version(&spec.settings, version)
}

/// Returns the version that a pool must have for devices, as far as versions and not features decide.
pub(crate) fn version_needed<'a>(
    tops: impl Iterator<Item = (&'a VdevSpec, AllocationBias)>,
    spares: bool,
    caches: bool,
) -> u64 {
    let of_top = |(vdev, bias): (&VdevSpec, AllocationBias)| {
        let of_parity = match vdev.parity() {
            0 | 1 => pool_version::INITIAL,
            2 => pool_version::RAIDZ_DEFLATE,
            _ => pool_version::RAIDZ3,
        };
        if bias == AllocationBias::Log {
            of_parity.max(pool_version::SLOGS)
        } else {
            of_parity
        }
    };
    let of_others = [
        spares.then_some(pool_version::RAIDZ_DEFLATE),
        caches.then_some(pool_version::L2CACHE),
    ];
    let all = tops.map(of_top).chain(of_others.into_iter().flatten());
    all.max().unwrap_or(pool_version::INITIAL)
}

/// Checks that a pool of a version can hold the properties of its root dataset.
fn check_settings_of_version(settings: &[Setting], version: u64) -> Result<(), PoolError> {
    for setting in settings {
        if let Setting::Native(property, value) = setting
            && dsl::version_needed(*property, value) > version
        {
            return Err(dsl::DslError::PoolVersionTooOld {
                what: "set this property or value",
            }
            .into());
        }
    }
    Ok(())
}

/// Checks the shapes of new vdevs, and that no device is named twice.
pub(crate) fn check_vdevs<'a>(vdevs: impl Iterator<Item = &'a VdevSpec>) -> Result<(), PoolError> {
    let mut seen: Vec<&PathBuf> = Vec::new();
    for vdev in vdevs {
        if let VdevSpec::Mirror(paths) = vdev
            && paths.len() < 2
        {
            return Err(PoolError::Invalid(
                "invalid vdev specification: mirror requires at least 2 devices".into(),
            ));
        }
        if let VdevSpec::Raidz { parity, paths } = vdev {
            let parity_fits = (1..=3).contains(parity);
            if !parity_fits || paths.len() <= usize::from(*parity) {
                return Err(PoolError::Invalid(format!(
                    "invalid vdev specification: raidz{parity} requires at least {} devices",
                    usize::from(*parity) + 1
                )));
            }
            if paths.len() > RAIDZ_CHILDREN_MAX {
                return Err(PoolError::Invalid(format!(
                    "invalid vdev specification: raidz{parity} supports no more than \
                     {RAIDZ_CHILDREN_MAX} devices"
                )));
            }
        }
        if let VdevSpec::Draid {
            parity,
            data,
            spares,
            paths,
        } = vdev
        {
            let needed = u64::from(*parity) + u64::from(*data) + u64::from(*spares);
            let sound = (1..=3).contains(parity) && *data > 0 && *spares <= 100;
            if !sound || needed > paths.len() as u64 || paths.len() > RAIDZ_CHILDREN_MAX {
                return Err(PoolError::Invalid(format!(
                    "invalid vdev specification: no draid{parity} has {data} data disks, {spares} spares and {} \
                     devices",
                    paths.len()
                )));
            }
        }
        for path in vdev.paths() {
            refuse_repeated(&mut seen, path)?;
        }
    }
    Ok(())
}

/// Refuses a device that was named before.
fn refuse_repeated<'a>(seen: &mut Vec<&'a PathBuf>, path: &'a PathBuf) -> Result<(), PoolError> {
    if seen.contains(&path) {
        return Err(PoolError::Invalid(format!(
            "invalid vdev specification: the device '{}' is given twice",
            path.display()
        )));
    }
    seen.push(path);
    Ok(())
}

/// Checks that spares and cache devices are named once, and not as part of a vdev.
pub(crate) fn check_distinct<'a>(
    spares: &[PathBuf],
    caches: &[PathBuf],
    vdevs: impl Iterator<Item = &'a VdevSpec>,
) -> Result<(), PoolError> {
    let mut seen: Vec<&PathBuf> = vdevs.flat_map(VdevSpec::paths).collect();
    for path in spares.iter().chain(caches) {
        refuse_repeated(&mut seen, path)?;
    }
    Ok(())
}

/// Checks the name of a new pool.
pub(crate) fn check_name(name: &str) -> Result<(), PoolError> {
    // OpenZFS: module/zcommon/zfs_namecheck.c, pool_namecheck; lib/libzfs/libzfs_pool.c, zpool_name_valid
    let bad = |why: &str| Err(PoolError::Invalid(format!("cannot create '{name}': {why}")));
    let reserved = ["mirror", "raidz", "draid", "spare"]
        .iter()
        .any(|word| name.starts_with(word));
    if reserved || name == "log" {
        return bad("name is reserved");
    }
    if name.len() >= 256 - 2 - "$ORIGIN".len() * 2 {
        return bad("name is too long");
    }
    if !name.starts_with(|c: char| c.is_ascii_alphabetic()) {
        return bad("name must begin with a letter");
    }
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | ':' | ' ');
    if let Some(c) = name.chars().find(|&c| !allowed(c)) {
        return bad(&format!("invalid character '{c}' in pool name"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_the_rules() {
        for good in ["tank", "Tank-1", "a.b:c_d", "data pool"] {
            assert!(check_name(good).is_ok(), "{good}");
        }
        for bad in [
            "", "1tank", "mirror", "mirror-0", "log", "ta/nk", "tank@x", "spare1", "t%",
        ] {
            assert!(check_name(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn layouts_are_checked_before_any_device() {
        let spec = |vdevs: Vec<VdevSpec>| PoolSpec {
            name: "tank".into(),
            vdevs,
            ..PoolSpec::default()
        };
        assert!(check(&spec(vec![])).is_err());
        assert!(check(&spec(vec![VdevSpec::Mirror(vec!["/a".into()])])).is_err());
        let twice = vec![VdevSpec::Single("/a".into()), VdevSpec::Single("/a".into())];
        assert!(check(&spec(twice)).is_err());
        assert!(
            check(&spec(vec![VdevSpec::Mirror(vec![
                "/a".into(),
                "/b".into()
            ])]))
            .is_ok()
        );
    }
}
