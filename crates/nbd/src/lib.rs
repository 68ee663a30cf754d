//! The Network Block Device protocol as a pure service: bytes in, bytes out. Newstyle fixed negotiation, structured replies,
//! `base:allocation` (doc/proto.md of the NetworkBlockDevice project).
//!
//! A connection begins as a [`Negotiation`], which says how many bytes it needs next and what is to be sent; it ends with an export,
//! for which a [`Session`] answers [`Request`]s, several at a time. Whatever a client sends, nothing here panics or takes more memory
//! than [`OPTION_BYTES_MAX`] or [`PAYLOAD_BYTES_MAX`] for a message.
//!
//! It knows no sockets, no clocks, and not which volumes are offered to whom: the caller implements [`Exports`].

#![forbid(unsafe_code)]

mod exports;
pub mod fuzz;
mod negotiation;
mod request;
mod session;
mod wire;

pub use exports::{Export, Exports};
pub use negotiation::{Need, Negotiation, OPTION_BYTES_MAX, ProtocolError, Step, Terms};
pub use request::{PAYLOAD_BYTES_MAX, REQUEST_BYTES, Request};
pub use session::{Reply, Session};
