//! NFS versions 3 and 4 with MOUNT, NLM, NSM and the port mapper, as a service: one RPC record in, one reply out.
//!
//! Guarantees: no input makes it panic or allocate more than the input justifies; a reply says `FILE_SYNC` only when the
//! engine said so. It does not know sockets, clocks or DNS: records come from [`record::Assembler`], time arrives by
//! [`Server::tick`], names by a [`exports::Resolver`], proofs of Kerberos by a [`KerberosAcceptor`].
//!
//! RFC 1813 (NFSv3, MOUNT v3), RFC 7530, 8881 and 7862 (NFSv4.0, 4.1, 4.2), RFC 8276 (extended attributes), RFC 5531 (RPC),
//! RFC 2203 (RPCSEC_GSS), RFC 4506 (XDR), RFC 1833 (port mapper), X/Open XNFS (NLM, NSM).

#![forbid(unsafe_code)]
#![deny(clippy::unwrap_used, clippy::indexing_slicing)]

mod call_counts;
mod client_call;
mod connection;
mod dispatch;
pub mod exports;
mod file_type;
mod handle;
mod hex;
mod limits;
mod monitored;
mod mount;
mod mounts;
mod nested;
mod nlm;
mod nsm;
mod outcome;
mod portmap;
pub mod record;
mod reply_cache;
mod rpc;
mod rpcsec_gss;
mod server;
mod v3;
mod v4;
mod written;
mod xdr;

pub use call_counts::{ClientCounts, PROCEDURES_V3, VERSIONS};
pub use client_call::{ClientCall, ClientCalls, Transport};
pub use connection::{ClientConnection, TransportSecurity};
pub use dispatch::RECORD_BYTES_MAX;
pub use exports::Resolver;
pub use outcome::{Piece, Reply};
pub use rpcsec_gss::{
    AcceptedContext, AcceptedToken, KerberosAcceptor, KerberosUser, RefusedToken, SecurityContext,
    UnixIds,
};
pub use server::{ClientRecord, Export, Server, ServerConfig, Versions};
pub use v4::{DelegationCounts, OPERATIONS};

/// Registration with a port mapper that runs already.
pub mod rpcbind {
    pub use crate::portmap::{
        registered, set_calls, set_lock_calls, unset_calls, unset_lock_calls,
    };
}
