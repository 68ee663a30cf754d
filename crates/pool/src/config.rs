//! The configuration of a pool: what its labels and its config object say, and whether they must be written again.
//!
//! Key order follows OpenZFS so that listings compare. Does not write anything itself.
// OpenZFS: module/zfs/spa_config.c, spa_config_generate

use std::cell::{Cell, Ref, RefCell};

use dsl::Features;
use ondisk::{NvList, NvValue, SPA_VERSION_FEATURES};
use vdev::{ConfigTarget, TreeConfig, VdevConfig, VdevKind};

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
    /// Version of the pool: 1 to 28, or 5000.
    pub(crate) version: u64,
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
            version: list.u64("version")?,
            name: text("name")?,
            guid: list.u64("pool_guid")?,
            errata: list.u64("errata").unwrap_or(0),
            comment: text("comment"),
            compatibility: text("compatibility"),
            host: HostIdentity {
                hostid: list.u64("hostid").unwrap_or(0),
                hostname: text("hostname").unwrap_or_default(),
                kernel: String::new(),
            },
        })
    }

    /// Whether labels and config object name features.
    fn has_features(&self) -> bool {
        self.version >= SPA_VERSION_FEATURES
    }

    fn base(&self, state: u64, txg: u64) -> NvList {
        let mut list = NvList::new()
            .with("version", self.version)
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

/// What must be written again because the configuration changed.
#[derive(Default)]
struct UnwrittenConfig {
    object: Cell<bool>,
    labels: Cell<bool>,
}

impl UnwrittenConfig {
    fn mark(&self) {
        self.object.set(true);
        self.labels.set(true);
    }

    fn is_any(&self) -> bool {
        self.object.get() || self.labels.get()
    }

    fn take_labels(&self) -> bool {
        self.labels.replace(false)
    }
}

/// The configuration of an imported pool.
pub(crate) struct PoolConfig {
    identity: RefCell<Identity>,
    /// The name in use; differs from the stored one after an import with a temporary name.
    name: String,
    /// State number the labels carry.
    label_state: Cell<u64>,
    unwritten: UnwrittenConfig,
    /// Version of the feature table that labels and config object were made from.
    features_version: Cell<u64>,
    /// Features the labels named last.
    features_in_labels: RefCell<Vec<String>>,
}

impl PoolConfig {
    /// Makes the configuration of a pool whose labels and config object are as they should be.
    pub(crate) fn new(
        identity: Identity,
        name: String,
        label_state: u64,
        features: &Features,
    ) -> Self {
        Self {
            identity: RefCell::new(identity),
            name,
            label_state: Cell::new(label_state),
            unwritten: UnwrittenConfig::default(),
            features_version: Cell::new(features.version()),
            features_in_labels: RefCell::new(features_in_labels(features)),
        }
    }

    /// Returns the name in use.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Whether the pool is of the version that has features.
    pub(crate) fn has_features(&self) -> bool {
        self.identity.borrow().has_features()
    }

    /// Returns the pool's guid.
    pub(crate) fn guid(&self) -> u64 {
        self.identity.borrow().guid
    }

    /// Returns what every label says of the pool.
    pub(crate) fn identity(&self) -> Ref<'_, Identity> {
        self.identity.borrow()
    }

    /// Changes what every label says of the pool; the next txg writes it where the configuration is marked dirty.
    pub(crate) fn change_identity(&self, change: impl FnOnce(&mut Identity)) {
        change(&mut self.identity.borrow_mut());
    }

    /// Returns the state number the labels carry.
    pub(crate) fn label_state(&self) -> u64 {
        self.label_state.get()
    }

    /// Sets the state number of the labels of the last txg.
    pub(crate) fn set_label_state(&self, state: u64) {
        assert!(
            matches!(state, STATE_EXPORTED | STATE_DESTROYED),
            "an open pool is exported or destroyed, not put into state {state}"
        );
        self.label_state.set(state);
    }

    /// Has the next txg write config object and labels.
    pub(crate) fn mark_dirty(&self) {
        self.unwritten.mark();
    }

    /// Whether config object or labels must be written.
    pub(crate) fn is_dirty(&self) -> bool {
        self.unwritten.is_any()
    }

    /// Whether the config object must be written.
    pub(crate) fn is_object_dirty(&self) -> bool {
        self.unwritten.object.get()
    }

    /// Whether the labels must be written; the caller writes them. A change from now on is for the next txg, as the labels of
    /// this one may be on their way: it marks them again.
    pub(crate) fn take_labels_dirty(&self) -> bool {
        self.unwritten.take_labels()
    }

    /// Takes note that the config object was written.
    pub(crate) fn object_written(&self) {
        assert!(
            self.unwritten.object.get(),
            "the config object is written when it is dirty"
        );
        self.unwritten.object.set(false);
    }

    /// Whether features were enabled or became active since labels and config object were made.
    pub(crate) fn is_older_than(&self, features: &Features) -> bool {
        self.features_version.get() != features.version()
    }

    /// Takes over the features; marks the configuration dirty when the labels must name others.
    pub(crate) fn set_features(&self, features: &Features) {
        self.features_version.set(features.version());
        let named = features_in_labels(features);
        if *self.features_in_labels.borrow() != named {
            *self.features_in_labels.borrow_mut() = named;
            self.mark_dirty();
        }
    }
}

/// Returns the guids of the features that labels must name.
pub(crate) fn features_in_labels(features: &Features) -> Vec<String> {
    let active = features.active_in_labels();
    active
        .iter()
        .map(|feature| feature.guid.to_owned())
        .collect()
}

/// Returns the list stored in the config object of the meta-objset.
pub(crate) fn for_mos(
    identity: &Identity,
    state: u64,
    txg: u64,
    tree: &TreeConfig,
    features: &[String],
    has_vdev_zaps: bool,
) -> NvList {
    let mut list = identity.base(state, txg);
    // OpenZFS believes it, and stops when the map of these ZAPs is missing. OpenZFS: module/zfs/spa.c, spa_ld_get_props
    if has_vdev_zaps {
        list.insert_flag("com.delphix:has_per_vdev_zaps");
    }
    insert_children(&mut list, tree);
    list.insert("vdev_tree", tree.to_nvlist());
    if identity.has_features() {
        list.insert("features_for_read", feature_list(features));
    }
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
    list.insert("vdev_tree", top.to_nvlist(ConfigTarget::Label, true));
    if identity.has_features() {
        list.insert("features_for_read", feature_list(features));
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_while_labels_are_written_is_for_the_next_txg() {
        let unwritten = UnwrittenConfig::default();
        unwritten.mark();
        unwritten.object.set(false);
        assert!(unwritten.take_labels(), "the txg writes the labels");
        unwritten.mark();
        unwritten.object.set(false);
        assert!(unwritten.is_any(), "the next txg has labels to write");
        assert!(unwritten.take_labels() && !unwritten.is_any());
    }
}
