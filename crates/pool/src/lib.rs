//! The pool as a whole: discovery, creation, import, export, configuration, features, properties,
//! history, and the loop that carries each transaction group to the disks.
//!
//! Guarantees: a transaction group is on stable storage before its waiters wake, the
//! uberblock never points at unwritten blocks, and after a failed write nothing continues
//! half-applied (the pool suspends).  It knows no files and no protocols.

#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]

mod add;
mod autotrim;
mod auxiliary;
mod brt;
mod cachefile;
mod capacity;
mod checkpoint;
mod config;
mod create;
mod date;
mod ddt;
mod dedup_administration;
mod device_administration;
mod discover;
mod dtl;
mod error;
mod error_log;
mod estimate;
mod events;
mod expand;
mod export;
mod faults;
mod features;
mod history;
mod hot_spares;
mod hotplug;
mod import;
mod in_use;
mod initialize_trim;
mod l2arc;
mod lifecycle;
mod load_verify;
mod log_space_map;
mod multihost;
mod objects;
mod pool;
mod properties;
mod rebuild;
mod reflow;
mod removal;
mod remove;
mod rewind;
mod scan;
mod space;
mod space_map;
mod spec;
mod split;
mod status;
mod sync;
mod vdev_properties;

pub use cachefile::{cache_file_devices, cache_file_with};
pub use capacity::{Capacity, capacity};
pub use create::{check_spec, plan_root_key};
pub use ddt::prune::Prune;
pub use ddt::statistics::DedupStatistics;
pub use discover::{Candidate, Discovery, discover};
pub use error::{PoolError, ScanRefusal};
pub use error_log::DamagedObject;
pub use estimate::{
    CompressionEstimate, CompressionFigures, DedupEstimate, DedupFigures, EstimateProgress, Trial,
};
pub use events::EventLog;
pub use faults::{DeviceAction, Fault, InjectedFault};
pub use features::{Support, support, supported_features};
pub use in_use::{DeviceLabel, clear_labels, device_content, device_label};
pub use initialize_trim::{LeafActivity, LeafActivityRequest};
pub use multihost::is_in_use_elsewhere;
pub use pool::Pool;
pub use properties::{
    PROPERTIES, PoolProperty, PropertyEntry, PropertyInfo, PropertyKind, PropertySource,
    PropertyValue, parse_index,
};
pub use rewind::{Rewind, Rewound};
pub use spec::{
    AddSpec, DedupTuning, FeatureBase, HostIdentity, ImportPolicy, MultihostTuning, PoolSpec,
    RebuildTuning, ReflowTuning, RemovalTuning, SplitSpec, Tuning, VdevSpec,
};
pub use status::{
    CheckpointStatus, ExpansionStatus, Health, HistoryEvent, HistoryRecord, IoTotals,
    LeafActivityState, LeafActivityStatus, PoolState, PoolStatus, RebuildState, RebuildStatus,
    RemovalStage, RemovalStatus, ScanStatus, StatusReason, VdevStatus,
};
pub use vdev::{AllocationBias, DraidSpec, NewSpace, TopShape, ashift_for};
pub use vdev_properties::{VDEV_PROPERTIES, VdevPropertyInfo};
