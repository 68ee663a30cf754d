//! The whole-system tests, in one binary: one module a subject.

#![forbid(unsafe_code)]

mod allow;
mod bootfs;
mod caches;
mod ceiling;
mod cli;
mod console;
mod crossing;
mod daemon;
mod draid;
mod golden_archives;
mod golden_properties;
mod golden_read;
mod golden_write;
mod histories;
mod hostile;
mod hotplug;
mod importing;
mod intent_log;
mod iscsi;
mod keys;
mod lists;
mod livelists;
mod logs;
mod missing;
mod mount_stress;
mod multihost;
mod nbd;
mod nonsense;
mod policies;
mod properties;
mod quotas;
mod received;
mod receiving;
mod removal;
mod replication;
mod rpc;
mod smb;
mod snapdir;
mod streams;
mod tour;
mod volumes;
mod watching;
mod web;
mod written_pools;
