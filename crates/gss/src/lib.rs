//! Kerberos as the server of a service: what clients send to prove who they are becomes a security context that signs and encrypts.
//!
//! The work is done by MIT's library, `libgssapi_krb5.so.2`, loaded when it is first wanted (docs/adr/0006): a machine without it runs
//! everything else. Constants and layouts are those of RFC 2744 and, for what MIT adds to it, of its public header `gssapi_ext.h`.
//!
//! Guarantees: what the library allocates is released; a context is used by one thread at a time, others wait. This crate knows
//! neither NFS nor sockets, and keeps no list of contexts.
//!
//! This is one of the three crates with unsafe code: all of it is in [`ffi`] and calls the library.

mod acceptor;
mod context;
mod error;
mod ffi;

pub use acceptor::{AcceptedContext, Acceptor};
pub use context::SecurityContext;
pub use error::{GssError, LoadError};
