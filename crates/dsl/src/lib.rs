//! Datasets: the tree of file systems, volumes and snapshots in a pool's meta-objset, their
//! properties, their space accounting, and the sync of a transaction group (txg).
//!
//! Guarantees: the space recorded for every dataset and directory is exactly the sum over its
//! blocks; quotas and reservations hold; what a sync task changes becomes visible as a whole with
//! its txg; an interrupted destroy is resumed after the next import.
//!
//! It does not know files, volumes' contents, devices or how a pool is imported.

#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]

mod async_destroy;
mod bookmark;
mod bpobj;
mod bptree;
mod change;
mod change_key;
mod change_log;
mod clone;
mod complete_counts;
mod create;
mod crypt;
mod dataset;
mod dataset_keys;
mod dataset_page;
mod dataset_state;
mod deadlist;
mod deleg;
mod dsl_dir;
mod dsl_pool;
mod empty_bpobj;
mod error;
mod features;
mod file_owner;
mod file_system_version;
mod flat_deadlist;
mod hierarchy;
mod hold;
mod immutable;
mod key_format;
mod key_objects;
mod key_ring;
mod list;
mod lists_in_use;
mod livelist;
mod loaded;
pub mod namecheck;
mod new_encryption;
mod object_directory;
mod program;
pub mod property;
mod property_zap;
mod received_properties;
mod redact;
mod redacted;
mod redaction_list;
mod remap_deadlist;
mod resume_token;
mod rotate_key;
mod setprop;
mod snapshot;
mod snapshot_list;
mod snapshots;
mod space;
pub mod stream;
mod sync;
mod sync_state;
mod sync_task;
mod types;
mod upgrade;
mod userspace;
mod write_policy;

pub use change_key::KeyChange;
pub use change_log::DatasetChanges;
pub use crypt::KeyInfo;
pub use dataset::Dataset;
pub use dataset_page::DatasetPage;
pub use deleg::{GrantChange, Grants, Subject};
pub use error::{
    DslError, ImmutableError, KeyChangeError, KeyRotationError, RedactionError, Refusals, Result,
};
pub use features::{FeatureUses, Features};
pub use file_owner::owner_of;
pub use hierarchy::Hierarchy;
pub use immutable::{IMMUTABLE_PROPERTY, IMMUTABLE_TAG, TIME_SEEN_PROPERTY, parse_time, time_text};
pub use key_format::{KeyFormat, NewKey, PlannedKey};
pub use new_encryption::plan_root_key;
pub use program::{ProgramChange, ProgramItem, ProgramList, ProgramStep};
pub use received_properties::{ReceivedChange, StoredProperties};
pub use rotate_key::KeyRotationPlan;
pub use setprop::{feature_needed, version_needed};
pub use snapshot_list::{
    SnapshotEntry, SnapshotName, SnapshotPage, SnapshotPosition, SnapshotTime,
};
pub use types::{
    DatasetInfo, DatasetProperties, Estimate, HierarchyOptions, HistoryEvent, ListSpec, NewDataset,
    NewHierarchy, PropertyEntry, SpaceInfo, Traffic,
};
pub use userspace::{Usage, UsageOf};
