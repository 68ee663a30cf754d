//! Datasets: the tree of file systems, volumes and snapshots in a pool's meta-objset, their
//! properties, their space accounting, and the syncing of a transaction group.
//!
//! Guarantees: the space recorded for every dataset and directory is exactly the sum over its
//! blocks; quotas and reservations hold; what a sync task changes becomes visible as a whole with
//! its transaction group; an interrupted destroy goes on after the next import.
//!
//! It does not know files, volumes' contents, devices or how a pool is imported.

#![forbid(unsafe_code)]

mod bookmark;
mod bpobj;
mod bptree;
mod change;
mod clone;
mod create;
mod dataset;
mod deadlist;
mod deleg;
mod dir;
mod directory;
mod empty;
mod error;
mod features;
mod hierarchy;
mod hold;
mod inner;
mod list;
mod livelist;
pub mod names;
mod owner;
mod policy;
pub mod property;
mod remap;
mod resume;
mod sealed;
mod setprop;
mod snapshot;
mod snapshots;
mod space;
mod stored;
mod sync;
mod types;
mod usage;
mod view;

pub use dataset::Dataset;
pub use deleg::{GrantChange, Grants, Subject};
pub use error::{DslError, Result};
pub use features::{FeatureUses, Features};
pub use hierarchy::Hierarchy;
pub use owner::owner_of;
pub use snapshots::Refusals;
pub use types::{
    DatasetInfo, DatasetProperties, Estimate, HierarchyOptions, HistoryEvent, ListSpec, NewDataset,
    NewHierarchy, PropertyEntry, SpaceInfo, Traffic,
};
pub use usage::{Usage, UsageOf};
pub use view::SnapshotName;
