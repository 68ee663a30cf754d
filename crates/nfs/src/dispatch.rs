//! The service: takes one RPC record, finds the program and the procedure, and answers.

use crate::connection::{CallOrigin, ClientConnection, Peer};
use crate::exports::Flavour;
use crate::limits::TRANSFER_BYTES_MAX;
use crate::outcome::{Outcome, Reply};
use crate::record::Record;
use crate::reply_cache::{Admission, Key, digest};
use crate::rpc::{self, AuthProblem, Call, Credential, Refusal};
use crate::server::Server;
use crate::{mount, nlm, nsm, portmap, v3, v4};
use engine::IoBuf;
use std::net::SocketAddr;
use std::sync::Arc;

/// The longest record the server takes, in bytes: the largest WRITE and its envelope.
pub const RECORD_BYTES_MAX: usize = TRANSFER_BYTES_MAX + 64 * 1024;

impl Server {
    /// Tells the time, in nanoseconds from any fixed start; about once a second is enough.
    pub fn tick(&self, now_ns: u64) {
        self.set_now(now_ns);
        self.contexts().tick(now_ns);
        nlm::forget_idle(self);
        self.store_record();
    }

    /// Says that the pools are open, and what is shared is complete: handles of other files are stale from now on, and the time
    /// begins (one lease) in which clients reclaim what they had open and locked before the restart. Clients of NLM are told of it.
    pub fn pools_are_open(&self) {
        self.end_start();
        nsm::notify(self);
    }

    /// Answers one RPC message that came from `peer`. `None` says nothing: the message is no call.
    ///
    /// What the reply says is stable is stable. The same call repeated (same client, transaction id and bytes) gets the
    /// first answer again, if running it twice would do harm.
    pub async fn call(&self, peer: SocketAddr, local: SocketAddr, record: Record) -> Option<Reply> {
        self.call_by(None, peer, local, record).await
    }

    /// As [`Self::call`], of a message that came by a connection by which the server calls its client back: a message may be the
    /// answer to such a call.
    pub async fn call_by(
        &self,
        connection: Option<&Arc<ClientConnection>>,
        peer: SocketAddr,
        local: SocketAddr,
        mut record: Record,
    ) -> Option<Reply> {
        let data = record.data.take();
        let call = match &record.call {
            Ok(call) => call,
            Err(rejected) => {
                if let (Some(connection), true) = (connection, rpc::is_reply(&record.head)) {
                    self.v4().called_back(connection, &record.head);
                }
                return rpc::reject(rejected).map(Reply::from);
            }
        };
        let counts = self.call_counts();
        let counters = match connection {
            Some(connection) => connection.counters(|| counts.of(peer.ip().to_canonical())),
            // The address of a datagram may be anything: it takes no room.
            None => counts.others(),
        };
        let peer = Peer {
            address: peer,
            security: connection.map_or_else(Default::default, |by| by.security()),
            flavour: Flavour::Sys,
        };
        let received = record.head.len() + data.as_ref().map_or(0, |data| data.len());
        let from = CallOrigin {
            connection,
            peer,
            local,
            counters: &counters,
        };
        let reply = match &call.credential {
            Credential::Gss(credential) => {
                let (call, credential) = (call.clone(), credential.clone());
                // Apart: else each other call would have the room that this one takes.
                Box::pin(self.call_with_gss(from, record, &call, &credential)).await
            }
            _ => self.answer(from, &record, call, data).await,
        };
        counters.note_bytes(received, reply.as_ref().map_or(0, Reply::len));
        reply
    }

    /// Answers a call, once if it must not run twice.
    pub(crate) async fn answer(
        &self,
        from: CallOrigin<'_>,
        record: &Record,
        call: &Call,
        data: Option<IoBuf>,
    ) -> Option<Reply> {
        let arguments = record.arguments();
        let runs_once = match (call.program, call.version) {
            (v3::PROGRAM, v4::VERSION) => v4::runs_once(call.procedure, arguments.clone()),
            (v3::PROGRAM, _) => v3::runs_once(call.procedure),
            (nlm::PROGRAM, nlm::VERSION) => nlm::runs_once(call.procedure),
            _ => false,
        };
        if runs_once {
            let client = from.peer.ip().to_canonical();
            let key = Key {
                client,
                xid: call.xid,
                procedure: call.procedure,
                digest: match &call.credential {
                    // Each repeat of the call has a number and a checksum of its own; two users may have calls that are alike.
                    Credential::Kerberos { user, .. } => {
                        digest([user.principal.as_bytes(), arguments.rest()])
                    }
                    _ => digest([&[], &record.head]),
                },
            };
            let admission = self.replies().admit(key, self.now_ns());
            match admission {
                Admission::Repeat(answer) => return answer.await.map(Reply::from),
                Admission::Run(running) => {
                    let reply = self.dispatch(from, record, call, data).await;
                    running.finish(&reply.to_vec());
                    return Some(reply);
                }
            }
        }
        Some(self.dispatch(from, record, call, data).await)
    }

    async fn dispatch(
        &self,
        from: CallOrigin<'_>,
        record: &Record,
        call: &Call,
        data: Option<IoBuf>,
    ) -> Reply {
        let CallOrigin { peer, local, .. } = from;
        let arguments = record.arguments();
        let mismatch = |low, high| Outcome::Refused(Refusal::ProgramMismatch { low, high });
        let outcome = match (call.program, call.version) {
            // RFC 9289, section 4.1: asked where TLS is not offered, or by a connection that has it.
            _ if call.credential.asks_for_tls() => Outcome::Denied(AuthProblem::BadCredential),
            // RFC 5531, section 9: a flavour that is not taken is answered before the procedure is looked at.
            (v3::PROGRAM, v3::VERSION | v4::VERSION) | (nlm::PROGRAM, _)
                if matches!(call.credential, Credential::Other(_)) =>
            {
                Outcome::Denied(AuthProblem::TooWeak)
            }
            (v3::PROGRAM, v3::VERSION) if self.serves_v3() => {
                from.counters.note_v3(call.procedure);
                v3::call(self, peer, call, arguments, data).await
            }
            (v3::PROGRAM, v4::VERSION) if self.serves_v4() => {
                // Apart: else each call of version 3 would have the room that this one takes.
                Box::pin(v4::call(self, from, call, arguments, record.head.len())).await
            }
            (v3::PROGRAM, version) => {
                self.note_refused_version(peer.ip(), version);
                let served = [
                    (v3::VERSION, self.serves_v3()),
                    (v4::VERSION, self.serves_v4()),
                ];
                let served = || served.iter().filter(|(_, served)| *served).map(|(v, _)| *v);
                let low = served().min().unwrap_or(v3::VERSION);
                mismatch(low, served().max().unwrap_or(low))
            }
            (mount::PROGRAM, 1 | 3) => mount::call(self, peer, call, arguments).await,
            (mount::PROGRAM, _) => mismatch(1, 3),
            (nlm::PROGRAM, nlm::VERSION) if self.serves_v3() => {
                Box::pin(nlm::call(self, peer, local, call, arguments)).await
            }
            (nlm::PROGRAM, version) if self.serves_v3() && version < nlm::VERSION => {
                mismatch(nlm::VERSION, nlm::VERSION)
            }
            (nsm::PROGRAM, nsm::VERSION) => nsm::call(self, peer, call, arguments),
            (nsm::PROGRAM, _) => mismatch(nsm::VERSION, nsm::VERSION),
            (portmap::PROGRAM, 2..=4) => portmap::call(self.nfs_port(), local, call, arguments),
            (portmap::PROGRAM, _) => mismatch(2, 4),
            _ => Outcome::Refused(Refusal::ProgramUnavailable),
        };
        match outcome {
            Outcome::Reply(reply) => reply,
            Outcome::Refused(why) => rpc::refuse(call.xid, why).into(),
            Outcome::Denied(problem) => rpc::deny(call.xid, problem).into(),
        }
    }
}
