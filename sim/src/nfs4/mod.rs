//! NFSv4.1 under simulated time: clients with sessions, opens, locks and delegations, whose messages are late, come twice or are lost,
//! and a server on the real engine that goes down and comes back; judged by a model of what each client may believe.
//!
//! Judged is, for each seed: that no two clients hold what excludes each other while their leases run; that a client whose lease had run
//! out, and whose locks another one was given, is refused; that a client whose lease ran when the server went down gets back what it
//! had; that nothing that was answered as stable is lost, and no read returns what no write can have left there; that a file is not
//! changed while a client reads it from its cache; that a request repeated is answered from its slot and not run again. See [`model`].

mod client;
pub mod command;
pub mod model;
mod network;
mod scenario;
mod steps;
pub mod wire;

pub use scenario::{Failure, Flaw, Outcome, Plan, run};
