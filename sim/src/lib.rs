//! The simulator: workloads on the real engine in a modelled world, judged by what the crate `checker` finds on the disks.
//!
//! [`world`] (a crate of its own, so that engine crates can use it in their tests) models time, schedule and disks;
//! here are the things that know ZFS.

#![forbid(unsafe_code)]

pub mod campaign;
pub mod hostile;
pub mod lab;
pub mod nfs4;
mod workers;

pub use world;
