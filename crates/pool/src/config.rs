//! The configuration lists of a pool: what its labels and its config object say.
//!
//! Pure construction and reading of lists; key order follows OpenZFS so that listings compare.
// OpenZFS: module/zfs/spa_config.c, spa_config_generate

use ondisk::{NvList, NvValue, SPA_VERSION_FEATURES};
use vdev::{ConfigPlace, TreeConfig, VdevConfig, VdevKind};

use crate::spec::HostIdentity;
use crate::status::PoolState;

pub(crate) const STATE_ACTIVE: u64 = 0;
pub(crate) const STATE_EXPORTED: u64 = 1;
pub(crate) const STATE_DESTROYED: u64 = 2;
pub(crate) const STATE_SPARE: u64 = 3;
pub(crate) const STATE_CACHE: u64 = 4;

/// What is said of the pool as a whole in every label.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Identity {
    /// Stored name.
    pub(crate) name: String,
    /// Guid of the pool and of the root vdev.
    pub(crate) guid: u64,
    /// Known historic defect, 0 for none.
    pub(crate) errata: u64,
    /// `comment` property.
    pub(crate) comment: Option<String>,
    /// `compatibility` property.
    pub(crate) compatibility: Option<String>,
    /// Last user of the pool.
    pub(crate) host: HostIdentity,
}

impl Identity {
    /// Reads the identity from a label or config object.
    pub(crate) fn from_list(list: &NvList) -> Option<Self> {
        let text = |key: &str| list.str(key).map(str::to_owned);
        Some(Self {
            name: text("name")?,
            guid: list.u64("pool_guid")?,
            errata: list.u64("errata").unwrap_or(0),
            comment: text("comment"),
            compatibility: text("compatibility"),
            host: HostIdentity {
                hostid: list.u64("hostid").unwrap_or(0),
                hostname: text("hostname").unwrap_or_default(),
            },
        })
    }

    fn base(&self, state: u64, txg: u64) -> NvList {
        let mut list = NvList::new()
            .with("version", SPA_VERSION_FEATURES)
            .with("name", self.name.as_str())
            .with("state", state)
            .with("txg", txg)
            .with("pool_guid", self.guid)
            .with("errata", self.errata);
        if let Some(comment) = &self.comment {
            list.insert("comment", comment.as_str());
        }
        if let Some(compatibility) = &self.compatibility {
            list.insert("compatibility", compatibility.as_str());
        }
        if self.host.hostid != 0 {
            list.insert("hostid", self.host.hostid);
        }
        list.insert("hostname", self.host.hostname.as_str());
        list
    }
}

/// Returns the list stored in the config object of the meta-objset.
pub(crate) fn for_mos(
    identity: &Identity,
    state: u64,
    txg: u64,
    tree: &TreeConfig,
    features: &[String],
) -> NvList {
    let mut list = identity.base(state, txg);
    list.insert_flag("com.delphix:has_per_vdev_zaps");
    insert_children(&mut list, tree);
    list.insert("vdev_tree", tree.to_nvlist());
    list.insert("features_for_read", feature_list(features));
    list
}

/// Returns the list for the labels of one leaf below `top`.
pub(crate) fn for_label(
    identity: &Identity,
    state: u64,
    txg: u64,
    tree: &TreeConfig,
    top: &VdevConfig,
    leaf_guid: u64,
    features: &[String],
) -> NvList {
    let mut list = identity.base(state, txg);
    list.insert("top_guid", top.guid.0);
    list.insert("guid", leaf_guid);
    if top.is_log {
        list.insert("is_log", 1u64);
    }
    insert_children(&mut list, tree);
    list.insert("vdev_tree", top.to_nvlist(ConfigPlace::Label, true));
    list.insert("features_for_read", feature_list(features));
    list
}

fn insert_children(list: &mut NvList, tree: &TreeConfig) {
    let holes: Vec<u64> = tree
        .tops
        .iter()
        .filter(|top| top.kind == VdevKind::Hole)
        .map(|top| top.id)
        .collect();
    if !holes.is_empty() {
        list.insert("hole_array", holes);
    }
    list.insert("vdev_children", ondisk::bytes::len64(tree.tops.len()));
}

fn feature_list(features: &[String]) -> NvList {
    let mut list = NvList::new();
    for guid in features {
        list.insert_flag(guid);
    }
    list
}

/// Returns the features a label requires for reading the meta-objset, or `None` when the list
/// that must be there is missing.
pub(crate) fn label_features(list: &NvList) -> Option<Vec<String>> {
    match list.get("features_for_read")? {
        NvValue::List(features) => Some(features.names().map(str::to_owned).collect()),
        _ => None,
    }
}

/// Returns the state a label number stands for; spares and cache devices have none.
pub(crate) fn pool_state(number: u64) -> Option<PoolState> {
    match number {
        STATE_ACTIVE => Some(PoolState::Active),
        STATE_EXPORTED => Some(PoolState::Exported),
        STATE_DESTROYED => Some(PoolState::Destroyed),
        _ => None,
    }
}
