//! An iSCSI target on volumes, as a service: PDUs in, PDUs out.
//!
//! A [`Server`] knows targets and sessions. For each TCP connection the owner of the sockets makes a [`Connection`], asks it for
//! the [`Shape`] of what follows a header, hands the PDU in with [`Connection::receive`], and writes what comes out of its
//! [`Transport`], which also runs the work that waits for volumes. Data to be written stays in the buffers it was read into. So the
//! crate knows no sockets, no clocks and no executor, and runs under simulated time as on the host.
//!
//! Guarantees: no input makes it panic or allocate more than limits say; a command's status says stable only what the engine said
//! is stable; commands of a session start in the order of their numbers; an aborted command answers nothing, and has ended before
//! the abort is answered. Errors of a connection end the connection (error recovery level 0).
//!
//! RFC 7143 (iSCSI), RFC 7144 (CHAP with SHA), RFC 1994 (CHAP); SPC-4 r37, SBC-3 r36 and, for tokens, SPC-4 r36 with SBC-3 r35.

#![forbid(unsafe_code)]
#![deny(clippy::unwrap_used, clippy::indexing_slicing)]

mod bytes;
mod chap;
mod connection;
mod environment;
mod fifo_mutex;
mod full_feature;
pub mod fuzz;
mod keys;
mod login;
mod memory;
mod payload;
mod pdu;
mod registry;
mod scsi;
mod server;
mod session;
mod spec;
mod target;
mod task;
mod task_table;
mod wire;

pub use connection::Connection;
pub use environment::{Environment, Transport, Work};
pub use pdu::{BHS_BYTES, DATA_BYTES_MAX, Out, Rest, Shape, Violation};
pub use registry::ServerConfig;
pub use server::{Server, SessionInfo};
pub use spec::{Chap, LunSpec, PORTAL_GROUP, Portal, SectorFormat, TargetSpec, check_name};
pub use wire::Next;
