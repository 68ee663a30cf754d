//! Snapshot policies: which snapshots of a dataset are taken when, and which of them are kept.
//!
//! A policy is a line of text in a user property of the dataset ([`PROPERTY`]), so it is inherited, replicated and readable with `zfs get`.
//! Everything is computed from that line, the snapshots that exist, and the clock: no time of a last or next run is stored anywhere, so
//! none can be stale. After a pause of any length one snapshot is due for each dataset, not one for each period that was missed.
//!
//! Guarantees: only snapshots that carry the mark of a policy themselves ([`CLASSES_PROPERTY`]) are ever destroyed; a policy that cannot
//! be read destroys nothing; a policy that came with a received stream does nothing until it is set on this side.

mod forecast;
mod grammar;
mod hooks;
mod naming;
mod overview;
mod period;
mod plan;
mod retention;
mod runner;
mod schedule;
mod snapshot_state;
mod why;

pub use forecast::forecast;
pub use grammar::{Class, Policy, PolicyError, hours};
pub use hooks::{FAILED_HOOKS_PROPERTY, HookFailure, HookView, Hooks};
pub use naming::{Naming, settled_name_in_utc};
pub use overview::{NextSnapshot, PolicyOverview};
pub use period::Period;
pub use plan::{DatasetState, Plan, PolicySource, SnapshotGroup, plan};
pub use retention::{Decision, Reason, decide};
pub use runner::{PoolPolicies, Round, immutable_until, policies, state, states};
pub use schedule::{latest_boundary, next_boundary};
pub use snapshot_state::SnapshotState;
pub use why::{SnapshotWhy, WhyError, explain, why};

/// The user property of a dataset that holds its policy.
pub const PROPERTY: &str = "org.sanbox:policy";

/// The user property of a snapshot that names the classes it was taken for: the mark of snapshots that policies may destroy.
pub const CLASSES_PROPERTY: &str = "org.sanbox:classes";
