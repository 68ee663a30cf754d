//! NSM version 1, the status monitor (X/Open XNFS, chapter 11), as far as NLM needs it: clients say that they were restarted, and are
//! told when this server was. Nothing is monitored for others.

use crate::client_call::{ClientCall, Purpose, arguments};
use crate::connection::Peer;
use crate::outcome::Outcome;
use crate::rpc::{self, Call, Refusal};
use crate::server::Server;
use crate::xdr::Reader;

/// Program number of NSM.
pub(crate) const PROGRAM: u32 = 100_024;
/// Its only version.
pub(crate) const VERSION: u32 = 1;

const STAT: u32 = 1;
const NOTIFY: u32 = 6;
/// XNFS, chapter 11: `STAT_FAIL`.
const FAILED: u32 = 1;

/// Answers a call.
pub(crate) fn call(server: &Server, peer: Peer, call: &Call, mut reader: Reader<'_>) -> Outcome {
    let mut w = rpc::success(call.xid, 8);
    match call.procedure {
        0 => {}
        // Asks whether a host would be monitored.
        STAT => {
            let (state, _) = server.v4().hosts_to_notify();
            w.u32(FAILED).u32(state);
        }
        NOTIFY => match crate::nlm::decode_name(&mut reader) {
            Ok(name) => crate::nlm::free_host(server, peer, name),
            Err(malformed) => return malformed.into(),
        },
        _ => return Outcome::Refused(Refusal::ProcedureUnavailable),
    }
    w.into()
}

/// Tells the clients of before the restart that it happened: they reclaim their locks.
pub(crate) fn notify(server: &Server) {
    let (state, hosts) = server.v4().hosts_to_notify();
    for host in hosts {
        let arguments = arguments(|w| {
            w.opaque(server.host_name().as_bytes()).u32(state);
        });
        server.call_client(ClientCall {
            to: host.address,
            from: host.local,
            program: PROGRAM,
            version: VERSION,
            procedure: NOTIFY,
            arguments,
            purpose: Purpose::Notify,
        });
    }
}
