//! The management plane: what an appliance remembers between runs, how it is configured, and how
//! commands reach a running one.
//!
//! It knows JSON, TOML and local sockets, and no on-disk structures; the engine is reached only
//! through its handles.

#![forbid(unsafe_code)]

pub mod config;
pub mod control;
pub mod state;
pub mod targets;
