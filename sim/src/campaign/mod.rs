//! Campaigns: many seeds of mixed file work with power cuts on the real engine, each judged three ways.
//!
//! After every cut the pool must import, what its file systems show must be a prefix of what was done (everything
//! acknowledged as stable, nothing half, no later operation without an earlier one), and the independent
//! [`checker`](::checker) must find nothing wrong. See [`scenario`] for what a seed does, [`history`] for how
//! prefixes are judged.

pub mod command;
pub mod datasets;
pub mod devices;
mod encryption;
pub mod expansions;
pub mod faults;
mod healing;
pub mod history;
pub mod host;
pub mod judge;
pub mod model;
mod replicas;
pub mod scenario;
pub mod volume;
pub mod walk;
pub mod workload;

pub use scenario::{Failure, Outcome, Plan, run};
