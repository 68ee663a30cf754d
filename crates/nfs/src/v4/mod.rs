//! NFS version 4 (RFC 7530), with minor versions 1 (RFC 8881) and 2 (RFC 7862): COMPOUND, its operations, and the state that
//! clients have with the server.
//!
//! Files, names and permissions are the engine's; what is open, locked and leased is kept in [`state`], and which clients may reclaim
//! it after a restart in a record. What is stable when a reply goes out is what the engine said is, and that record. Read
//! and write delegations are given from minor version 1 on, and no layouts.

mod acl;
mod attribute;
mod bitmap;
mod change;
mod compound;
mod copying;
mod data;
mod directory;
mod extended;
mod file;
mod locking;
mod open;
mod operation;
pub(crate) mod pseudo;
mod reply;
mod session;
pub(crate) mod state;
mod status;

use crate::connection::CallOrigin;
use crate::outcome::{Outcome, Reply};
use crate::rpc::{self, Call, Refusal};
use crate::server::Server;
use crate::xdr::Reader;
pub use operation::OPERATIONS;
pub use state::DelegationCounts;
pub(crate) use status::Status;

/// The version served.
pub(crate) const VERSION: u32 = 4;
/// Procedures.
const NULL: u32 = 0;
const COMPOUND: u32 = 1;

/// Answers a call of NFS version 4. `record_bytes` is the length of its record.
pub(crate) async fn call(
    server: &Server,
    from: CallOrigin<'_>,
    call: &Call,
    arguments: Reader<'_>,
    record_bytes: usize,
) -> Outcome {
    let reply = match call.procedure {
        NULL => return rpc::success(call.xid, 0).into(),
        COMPOUND => compound::call(server, from, &call.credential, arguments, record_bytes).await,
        _ => return Outcome::Refused(Refusal::ProcedureUnavailable),
    };
    server.release_closed().await;
    // What the answer says is to be true after a restart, too.
    server.store_record();
    match reply {
        Ok(body) => {
            let mut reply = Reply::from(rpc::success(call.xid, 0).into_bytes());
            reply.pieces.extend(body.pieces);
            Outcome::Reply(reply)
        }
        Err(malformed) => malformed.into(),
    }
}

/// Returns whether a call must not run twice although no slot keeps its answer (minor version 0): its answer is kept by its
/// transaction id, as in version 3.
#[must_use]
pub(crate) fn runs_once(procedure: u32, arguments: Reader<'_>) -> bool {
    procedure == COMPOUND && compound::changes_without_session(arguments)
}

/// Returns the most bytes that the answer to a call has, from what its arguments ask for.
#[must_use]
pub(crate) fn answer_bytes_max(procedure: u32, arguments: Reader<'_>) -> usize {
    match procedure {
        COMPOUND => compound::answer_bytes_max(arguments),
        _ => crate::limits::ENVELOPE_BYTES,
    }
}
