//! The pool in memory, from its opened meta-objset: features, identity, datasets; then what it needs beyond them.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::rc::Rc;

use dmu::{Objset, zap};
use dsl::{Dataset, Hierarchy, HierarchyOptions};
use ondisk::feature::Feature;
use ondisk::{NvList, ObjectId, SPA_VERSION_FEATURES, Uberblock};
use runtime::Handle;
use vdev::{AllocationBias, Tree, VdevConfig};
use zio::BlockStore;

use crate::brt::BlockReferenceTables;
use crate::config::{self, Identity};
use crate::ddt::DedupTables;
use crate::discover::Candidate;
use crate::features::{Support, UnsupportedFeatures, support};
use crate::objects::{ALLOCATION_BIAS, DIRECTORY, PoolObjects};
use crate::pool::{ImportSession, ImportedPool, OpenedMos, Pool, PoolParts};
use crate::rewind::Rewound;
use crate::space::{SpaceFeatures, SpaceMapSource, SpaceMaps};
use crate::spec::ImportPolicy;
use crate::status::PoolState;
use crate::{PoolError, log_space_map};

const RAIDZ_EXPANSION: &str = "org.openzfs:raidz_expansion";

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
    let version = uberblock.version;
    check_features(&mos, &tree, version, policy.readonly).await?;
    prepare_store(&opened.store, &mos).await?;

    let (mut identity, name) = identity_and_name(config, policy)?;
    identity.version = version;
    let options = HierarchyOptions {
        pool_name: name.clone(),
        read_only: policy.readonly,
        version,
    };
    let hierarchy = Hierarchy::open(&mos, options).await?;
    let objects = read_objects(&mos).await?;
    let features = hierarchy.features();
    let space = SpaceMaps::new(
        mos.clone(),
        &tree,
        SpaceFeatures::of(|name| features.is_enabled(name)),
    );
    let space = Rc::new(space);
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

/// What the pool is called on disk from now on, with the rest of its identity, and the name in use.
fn identity_and_name(
    config: &NvList,
    policy: &ImportPolicy,
) -> Result<(Identity, String), PoolError> {
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
    Ok((identity, name))
}

/// Refuses a pool of a version, or with active features, that cannot be opened as asked.
async fn check_features(
    mos: &Objset,
    tree: &Tree,
    version: u64,
    readonly: bool,
) -> Result<(), PoolError> {
    if version < SPA_VERSION_FEATURES {
        return Ok(());
    }
    let mut unsupported = unsupported_features(mos).await?;
    // OpenZFS counts it from the first txg of the expansion on, but lists the child before: then there is nothing to go on with.
    let expanding = tree.config().tops.iter().any(VdevConfig::is_expanding);
    if expanding && count_of(mos, "features_for_read", RAIDZ_EXPANSION).await? == 0 {
        unsupported.unwritable.push(describe(RAIDZ_EXPANSION));
    }
    if !unsupported.unreadable.is_empty() {
        return Err(PoolError::UnsupportedForRead {
            features: unsupported.unreadable,
        });
    }
    if !unsupported.unwritable.is_empty() && !readonly {
        return Err(PoolError::UnsupportedForWrite {
            features: unsupported.unwritable,
        });
    }
    Ok(())
}

/// Returns the count of a feature in one of the tables; 0 where it is not enabled.
async fn count_of(mos: &Objset, table: &str, guid: &str) -> Result<u64, PoolError> {
    let Some(object) = zap::lookup_u64(mos, DIRECTORY, table).await? else {
        return Ok(0);
    };
    let count = zap::lookup_u64(mos, ObjectId(object), guid).await?;
    Ok(count.unwrap_or(0))
}

/// Tells the store what the meta-objset says of checksums and of how space is counted.
async fn prepare_store(store: &BlockStore, mos: &Objset) -> Result<(), PoolError> {
    store.set_salt(read_salt(mos).await?);
    if zap::lookup_u64(mos, DIRECTORY, "deflate")
        .await?
        .unwrap_or(0)
        == 0
    {
        store.count_raw_space();
    }
    Ok(())
}

/// Reads the salt of checksums; zeros where there is none.
async fn read_salt(mos: &Objset) -> Result<[u8; 32], PoolError> {
    let mut salt = [0; 32];
    match zap::lookup(mos, DIRECTORY, "org.illumos:checksum_salt").await? {
        Some(zap::ZapValue::U8(bytes)) if bytes.len() == salt.len() => {
            salt.copy_from_slice(&bytes);
        }
        Some(_) => return Err(PoolError::Corrupt("the checksum salt is damaged".into())),
        None => {}
    }
    Ok(salt)
}

/// Looks the pool's own objects up.
async fn read_objects(mos: &Objset) -> Result<PoolObjects, PoolError> {
    let lookup = async |key: &str| -> Result<ObjectId, PoolError> {
        Ok(ObjectId(
            zap::lookup_u64(mos, DIRECTORY, key).await?.unwrap_or(0),
        ))
    };
    Ok(PoolObjects {
        config: lookup("config").await?,
        history: lookup("history").await?,
        vdev_zap_map: lookup("com.delphix:vdev_zap_map").await?,
        properties: lookup("pool_props").await?,
    })
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
        for leaf in self.tree().config().leaves() {
            if let Some(object) = leaf.dtl.filter(|&object| object != 0) {
                self.devices
                    .dtls
                    .open(self.mos(), leaf.guid.0, ObjectId(object))
                    .await?;
                let missing = self.devices.dtls.missing(leaf.guid.0);
                self.tree().set_dtl(leaf.guid, &missing);
            }
        }
        self.read_allocation_biases().await?;
        let fast_dedup = self.hierarchy().features().is_enabled("fast_dedup");
        let dedup =
            DedupTables::open(self.mos(), self.tree(), fast_dedup, &policy.tuning.dedup).await?;
        let clones = BlockReferenceTables::open(self.mos(), self.tree()).await?;
        self.space().set_tables(dedup, clones);
        if !policy.readonly {
            let (tops, config) = (self.tree().tops(), self.tree().config());
            let logs = log_space_map::read(self.mos(), &tops, &config).await?;
            self.space().set_logs(logs);
        }
        let mut summaries = Vec::new();
        for top in self.tree().tops() {
            summaries.extend(self.space().open_vdev(&top).await?);
        }
        self.store()
            .activate(SpaceMapSource::of(self.space()), &summaries);
        self.load_removal().await?;
        self.load_expansions().await?;
        self.load_checkpoint().await?;
        self.load_leaf_activities().await?;
        self.load_vdev_properties().await?;
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
        for top in self.tree().config().tops {
            let Some(zap_top) = top.zap_top.filter(|&object| object != 0) else {
                continue;
            };
            let stored = zap::lookup(self.mos(), ObjectId(zap_top), ALLOCATION_BIAS).await?;
            if let Some(zap::ZapValue::U8(bytes)) = stored {
                let text = bytes.split(|&b| b == 0).next().unwrap_or_default();
                let bias = AllocationBias::parse(&String::from_utf8_lossy(text));
                self.tree().update_config(top.guid, |vdev| vdev.bias = bias);
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
        for name in self.hierarchy().unreplayed_logs().await? {
            let unusable = |error: zil::ZilError| PoolError::DirtyIntentLog {
                dataset: name.clone(),
                reason: error.to_string(),
            };
            let dataset = self.hierarchy().dataset_to_claim(&name).await?;
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
                |vdev| (missing_logs && self.tree().is_log(vdev)) || self.session.rewound.is_some();
            let claimed_log = zil::claim(self.store(), &old, first.txg(), given_up).await;
            let zil::Claimed { header, referenced } = claimed_log.map_err(unusable)?;
            self.count_logged_references(&name, &referenced).await?;
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

    /// Counts the references that the log of a dataset has to blocks of files.
    async fn count_logged_references(
        &self,
        dataset: &str,
        referenced: &[zil::LoggedReference],
    ) -> Result<(), PoolError> {
        let refused = |reason: String| PoolError::DirtyIntentLog {
            dataset: dataset.to_owned(),
            reason,
        };
        if referenced.iter().any(|one| one.bp.is_dedup()) {
            return Err(refused("it holds clones of deduplicated blocks".into()));
        }
        if !referenced.is_empty() && !self.hierarchy().features().is_enabled("block_cloning") {
            let reason = "it holds clones of blocks, and feature@block_cloning is disabled";
            return Err(refused(reason.into()));
        }
        for zil::LoggedReference { bp, is_replayed } in referenced {
            if *is_replayed {
                let checked = self.store().check_reference(bp).await;
                checked.map_err(|error| refused(error.to_string()))?;
            }
            self.space().refer(bp, self.store().dsize(bp), 1).await?;
        }
        Ok(())
    }

    pub(crate) fn queue_internal(&self, name: &'static str, text: String) {
        let (txg, time) = (self.clock().open_txg().0, self.unix_time());
        let record =
            crate::history::internal_record(name, None, &text, txg, time, &self.session.host);
        self.queue_history(record);
    }
}

pub(super) fn describe(guid: &str) -> String {
    match Feature::by_guid(guid) {
        Some(feature) if support(feature) != Support::Full || guid == RAIDZ_EXPANSION => {
            format!("{guid} ({})", feature.description)
        }
        _ => guid.to_owned(),
    }
}
