//! Calls with RPCSEC_GSS: what protects them is taken off before they are answered, and put on what is answered.

use super::contexts::EstablishedContext;
use super::mechanism::{KerberosAcceptor, RefusedToken};
use super::window::WINDOW;
use super::wire::{self, ContextProcedure, GssCredential, Service};
use crate::connection::{CallOrigin, Peer};
use crate::outcome::{Piece, Reply};
use crate::record::Record;
use crate::rpc::{self, AuthProblem, Call, Credential, Refusal};
use crate::server::Server;
use crate::xdr::{Malformed, Reader, Writer};
use std::sync::Arc;

/// The highest number of a call (RFC 2203, section 5.3.3.1: MAXSEQ).
const SEQUENCE_MAX: u32 = 0x8000_0000;
/// Bytes of a token. Tickets that carry lists of groups have some 10,000.
const TOKEN_BYTES_MAX: usize = 64 << 10;
/// RFC 5531, section 9: GARBAGE_ARGS.
const GARBAGE_ARGUMENTS: u32 = 4;
/// RFC 2744, section 3.9.1: GSS_S_FAILURE.
const FAILURE: u32 = 13 << 16;

/// A context, and the call of it that is being answered.
struct ProtectedCall {
    context: Arc<EstablishedContext>,
    xid: u32,
    sequence: u32,
    service: Service,
}

impl Server {
    /// Answers a call with RPCSEC_GSS; `None` where there is nothing to say.
    pub(crate) async fn call_with_gss(
        &self,
        from: CallOrigin<'_>,
        record: Record,
        call: &Call,
        credential: &GssCredential,
    ) -> Option<Reply> {
        let denied = |problem| Some(rpc::deny(call.xid, problem).into());
        // The address of a datagram may be another's, who would get what is answered.
        let (Some(acceptor), Some(_)) = (self.kerberos(), from.connection) else {
            return denied(AuthProblem::TooWeak);
        };
        // RFC 2203, section 5.2: contexts are made and destroyed by calls of the procedure 0.
        if credential.procedure != ContextProcedure::Data && call.procedure != 0 {
            return denied(AuthProblem::BadCredential);
        }
        match credential.procedure {
            ContextProcedure::Begin => Some(self.begin_context(&*acceptor, &record, call).await),
            ContextProcedure::Continue => denied(AuthProblem::ContextUnknown),
            ContextProcedure::Data | ContextProcedure::Destroy => {
                let (number, context) = match self.context_of(credential, &record) {
                    Ok(found) => found,
                    Err(problem) => return denied(problem),
                };
                if !context.admit(credential.sequence) {
                    // RFC 2203, section 5.3.3.1: "the server ... silently discards the request".
                    return None;
                }
                let protected = ProtectedCall {
                    context,
                    xid: call.xid,
                    sequence: credential.sequence,
                    service: credential.service,
                };
                let answered = if credential.procedure == ContextProcedure::Destroy {
                    self.contexts().remove(number);
                    // Nothing is wrapped, as Linux's client and server have it.
                    protected.without_result(0)
                } else {
                    self.call_within(from, record, call, &protected).await?
                };
                answered.or_else(|| denied(AuthProblem::ContextUnusable))
            }
        }
    }

    /// INIT: a token becomes a context.
    async fn begin_context(
        &self,
        acceptor: &dyn KerberosAcceptor,
        record: &Record,
        call: &Call,
    ) -> Reply {
        let Ok(token) = record.arguments().opaque(TOKEN_BYTES_MAX) else {
            return rpc::refuse(call.xid, Refusal::GarbageArguments).into();
        };
        let failure = RefusedToken {
            major: FAILURE,
            minor: 0,
            token: Vec::new(),
        };
        let accepted = acceptor.accept(token.to_vec()).await;
        // RFC 2203, section 5.2.3.1: the verifier of what makes a context is the checksum of the window.
        let accepted = accepted.and_then(|accepted| {
            let mic = accepted.context.mic(&WINDOW.to_be_bytes());
            mic.map(|mic| (accepted, mic)).ok_or(failure)
        });
        match accepted {
            Ok((accepted, mic)) => {
                let context = EstablishedContext::new(accepted.context, accepted.user);
                let (now_ns, lifetime) = (self.now_ns(), accepted.lifetime_seconds);
                let number = self.contexts().add(context, now_ns, lifetime);
                let mut w = wire::accepted(call.xid, &mic, 0, 64 + accepted.token.len());
                let handle = self.context_handle(number);
                wire::begun(&mut w, &handle, [0, 0], WINDOW, &accepted.token);
                w.into_bytes().into()
            }
            Err(refused) => {
                let mut w = rpc::success(call.xid, 64 + refused.token.len());
                let status = [refused.major, refused.minor];
                wire::begun(&mut w, &[], status, 0, &refused.token);
                w.into_bytes().into()
            }
        }
    }

    /// What clients call a context: no other start of the server has the same.
    fn context_handle(&self, number: u64) -> [u8; 16] {
        let parts = u128::from(self.boot_verifier()) << 64 | u128::from(number);
        parts.to_be_bytes()
    }

    /// Finds the context of a call, and checks that the call is its client's.
    fn context_of(
        &self,
        credential: &GssCredential,
        record: &Record,
    ) -> Result<(u64, Arc<EstablishedContext>), AuthProblem> {
        if credential.sequence > SEQUENCE_MAX {
            return Err(AuthProblem::ContextUnusable);
        }
        let mut handle = Reader::new(&credential.handle);
        let number = match (handle.u64(), handle.u64(), handle.left()) {
            (Ok(boot), Ok(number), 0) if boot == self.boot_verifier() => number,
            _ => return Err(AuthProblem::ContextUnknown),
        };
        let context = self.contexts().find(number, self.now_ns());
        let context = context.ok_or(AuthProblem::ContextUnknown)?;
        let header = record.head.get(..credential.header_bytes);
        match (header, &credential.verifier) {
            (Some(header), Some(mic)) if context.keys.verify_mic(header, mic) => {
                Ok((number, context))
            }
            _ => Err(AuthProblem::ContextUnknown),
        }
    }

    /// DATA: `None` when there is nothing to say, and within it when the context is good for nothing any more.
    async fn call_within(
        &self,
        from: CallOrigin<'_>,
        record: Record,
        call: &Call,
        protected: &ProtectedCall,
    ) -> Option<Option<Reply>> {
        let inner = Call {
            credential: Credential::Kerberos {
                user: Arc::clone(&protected.context.user),
                service: protected.service,
            },
            ..call.clone()
        };
        let inner = match protected.opened(record, inner) {
            Ok(inner) => inner,
            // RFC 2203, sections 5.3.3.4.2 and 5.3.3.4.3.
            Err(Malformed { .. }) => return Some(protected.without_result(GARBAGE_ARGUMENTS)),
        };
        let Ok(call) = inner.call.as_ref() else {
            return None;
        };
        let peer = Peer {
            flavour: call.credential.flavour(),
            ..from.peer
        };
        let from = CallOrigin { peer, ..from };
        let reply = self.answer(from, &inner, call, None).await?;
        Some(protected.closed(reply))
    }
}

impl ProtectedCall {
    /// Takes off what protects the arguments.
    fn opened(&self, record: Record, inner: Call) -> Result<Record, Malformed> {
        const BROKEN: Malformed = Malformed {
            what: "protected arguments",
        };
        let keys = &self.context.keys;
        let body = match self.service {
            Service::Authentication => return Ok(record.with_call(inner)),
            Service::Integrity => {
                let (body, mic) = wire::signed(record.arguments())?;
                keys.verify_mic(body, mic).then(|| body.to_vec())
            }
            Service::Privacy => keys.unwrap(wire::encrypted(record.arguments())?),
        };
        let body = body.ok_or(BROKEN)?;
        if Reader::new(&body).u32()? != self.sequence {
            return Err(BROKEN);
        }
        Ok(Record::of_arguments(body, 4, inner))
    }

    /// Returns a reply that has a status only, or `None` when the context is good for nothing any more.
    fn without_result(&self, status: u32) -> Option<Reply> {
        let mic = self.context.keys.mic(&self.sequence.to_be_bytes())?;
        let w = wire::accepted(self.xid, &mic, status, 0);
        Some(w.into_bytes().into())
    }

    /// Protects a reply, or returns `None` when the context is good for nothing any more.
    fn closed(&self, mut reply: Reply) -> Option<Reply> {
        let keys = &self.context.keys;
        let first = match reply.pieces.first() {
            Some(Piece::Owned(first)) => first.split_at_checked(wire::ENVELOPE_BYTES),
            _ => None,
        };
        let accepted = first.and_then(|(envelope, rest)| {
            let status = wire::accepted_status(envelope)?;
            Some((status, rest.to_vec()))
        });
        // RFC 5531, section 9: what is denied has no verifier.
        let Some((status, result)) = accepted else {
            return Some(reply);
        };
        let mic = keys.mic(&self.sequence.to_be_bytes())?;
        let rest = reply.pieces.split_off(1);
        if status != 0 || self.service == Service::Authentication {
            let mut w = wire::accepted(self.xid, &mic, status, result.len());
            w.bytes(&result);
            let mut pieces = vec![Piece::Owned(w.into_bytes())];
            pieces.extend(rest);
            return Some(Reply { pieces });
        }
        let length: usize = rest.iter().map(|piece| piece.as_ref().len()).sum();
        let mut body = Writer::with_capacity(4 + result.len() + length);
        body.u32(self.sequence).bytes(&result);
        for piece in &rest {
            body.bytes(piece.as_ref());
        }
        let mut w = wire::accepted(self.xid, &mic, 0, 512);
        let protected = match self.service {
            Service::Privacy => keys.wrap(body.as_bytes())?,
            _ => {
                let mic = keys.mic(body.as_bytes())?;
                w.u32(u32::try_from(body.len()).ok()?);
                let mut signed = body;
                signed.opaque(&mic);
                let pieces = [w.into_bytes(), signed.into_bytes()].map(Piece::Owned);
                return Some(Reply {
                    pieces: pieces.into(),
                });
            }
        };
        w.u32(u32::try_from(protected.len()).ok()?);
        let padding = vec![0; protected.len().wrapping_neg() % 4];
        let pieces = [w.into_bytes(), protected, padding].map(Piece::Owned);
        Some(Reply {
            pieces: pieces.into(),
        })
    }
}
