//! The pool judged from outside: whole pools are created, changed, cut off and imported again in
//! the simulated world, and OpenZFS's own tools look at what is on the disks.
//!
//! Tests that need OpenZFS's tools say so and pass when they are not installed.

mod caches;
mod checkpoint;
mod clones;
mod crash;
mod datasets;
mod dedup;
mod devices;
mod encryption;
mod events;
mod expansion;
mod faults;
mod fragmentation;
mod free_space;
mod growth;
mod intent_log;
mod lifecycle;
mod log_space_maps;
mod multihost;
mod rebuild;
mod reflow;
mod removal;
mod replaced;
mod reshape;
mod rewind;
mod scans;
mod spares;
mod support;
mod workload;
