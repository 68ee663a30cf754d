//! The management plane: what an appliance remembers between runs, how it is configured, how commands
//! reach a running one, and the REST API with its users.
//!
//! It knows JSON, TOML, SQLite, HTTP requests and local sockets, and no on-disk structures; the engine is reached only
//! through its handles. The API is a service without sockets: requests in, answers out.

#![forbid(unsafe_code)]

pub mod accounts;
pub mod acme;
pub mod alerts;
pub mod api;
pub mod attempts;
pub mod audit;
pub mod certificate;
pub mod commands;
pub mod config;
mod config_acme;
mod config_login;
mod config_otel;
pub mod control;
pub mod database;
pub mod descriptor;
pub mod exported;
pub mod file_acl;
pub mod history;
pub mod jobs;
pub mod key_file;
pub mod oidc;
pub mod peer;
pub mod policy;
pub mod program;
pub mod replication;
pub mod report;
pub mod samba;
pub mod secret;
pub mod silence;
pub mod ssh_command;
pub mod state;
pub mod targets;
pub mod terminal;
pub mod trash;
pub mod undo;
mod vectored;
