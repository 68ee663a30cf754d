//! SMB by Samba, as far as it needs no process: what a dataset's `sharesmb` says, the configuration that `smbd` gets for it, the users
//! with their passwords, what machines nearby are told, and what `smbstatus` tells.
//!
//! Nothing here runs Samba or touches a dataset: text in, text out. The configuration is written whole each time and is not edited by hand.

pub mod configuration;
pub mod domain;
pub mod mdns;
pub mod share;
pub mod status;
pub mod users;
