//! Replication between two appliances by a protocol of their own: who is known to whom, what a peer may do here, and the two ends of a
//! connection.
//!
//! A connection is TLS 1.3 in which both sides show the certificates by which they know each other ([`Identity`], [`pairing`]); sockets and TLS
//! are not here. Over it go frames ([`frame`]): requests and answers ([`message`]), and streams with a digest at their end ([`transfer`]).
//! The one that connects has the job, and sees the other as an [`Endpoint`](crate::replication::Endpoint) ([`PeerEndpoint`]); the other checks
//! each request against what the peer was invited to ([`rights`]) and has its own pools do it ([`PeerServer`]).

mod book;
mod client;
mod definition;
pub mod frame;
mod identity;
pub mod message;
pub mod pairing;
pub mod rights;
#[cfg(test)]
mod rights_tests;
mod server;
#[cfg(test)]
mod tests;
pub mod transfer;

pub use book::PeerBook;
pub use client::{BoxedLink, Connector, Link, PeerEndpoint, PeerLinks, pair};
pub use definition::{Peer, PeerError, Peers, check_address, check_name, is_name, is_within};
pub use identity::{Fingerprint, Identity};
pub use server::{Host, PeerServer, Visitor};
