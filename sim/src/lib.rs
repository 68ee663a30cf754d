//! The simulator: workloads on the real engine in a modelled world, and the checkers that judge what is left.
//!
//! [`world`] (a crate of its own, so that engine crates can use it in their tests) models time, schedule and disks;
//! here are the things that know ZFS.

#![forbid(unsafe_code)]

pub mod campaign;
pub mod checker;
pub mod hostile;
pub mod lab;

pub use world;
