//! ONC RPC version 2 (RFC 5531): the envelope of calls and replies, and AUTH_SYS credentials.

use crate::exports::Flavour;
use crate::rpcsec_gss::KerberosUser;
use crate::rpcsec_gss::wire::{GssCredential, RPCSEC_GSS, Service};
use crate::xdr::{Malformed, Reader, Result, Writer};
use std::sync::Arc;

/// Bytes of a credential or verifier body (RFC 5531, section 8.2: "opaque body<400>").
const AUTH_BODY_MAX: usize = 400;
/// Bytes of the machine name in AUTH_SYS (RFC 5531, appendix A).
const MACHINE_NAME_MAX: usize = 255;
/// Supplementary groups in AUTH_SYS (RFC 5531, appendix A: "gids<16>").
const GROUPS_MAX: u32 = 16;

const CALL: u32 = 0;
const REPLY: u32 = 1;
const RPC_VERSION: u32 = 2;
const AUTH_NONE: u32 = 0;
const AUTH_SYS: u32 = 1;
/// RFC 9289, section 4.1.
const AUTH_TLS: u32 = 7;

/// The caller's identity, as the client states it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Credential {
    /// AUTH_NONE: no identity.
    None,
    /// AUTH_SYS: numeric ids the client vouches for.
    Sys {
        /// User id.
        uid: u32,
        /// Primary group id.
        gid: u32,
        /// Supplementary group ids, 16 at most.
        groups: Vec<u32>,
    },
    /// RPCSEC_GSS, as it came: nothing of it is checked yet.
    Gss(GssCredential),
    /// A user whom Kerberos has made sure of, and how the call was protected.
    Kerberos {
        /// Who calls.
        user: Arc<KerberosUser>,
        /// What protects the arguments and results.
        service: Service,
    },
    /// A flavour the server does not speak.
    Other(u32),
}

/// The envelope of one call. What follows it in the record are the procedure's arguments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Call {
    /// Transaction id, repeated in the reply.
    pub(crate) xid: u32,
    /// Program number (100003 is NFS).
    pub(crate) program: u32,
    /// Version of the program.
    pub(crate) version: u32,
    /// Procedure of that version.
    pub(crate) procedure: u32,
    /// The caller's identity.
    pub(crate) credential: Credential,
}

/// A call that cannot be taken; what to answer, if anything can be answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Rejected {
    /// Not even the transaction id could be read, or it is no call: nothing can be said.
    Unanswerable,
    /// An RPC version other than 2.
    RpcMismatch {
        /// Transaction id.
        xid: u32,
    },
    /// A credential that does not parse.
    BadCredential {
        /// Transaction id.
        xid: u32,
    },
}

/// Why an accepted call has no result (RFC 5531, section 9, `accept_stat`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The program is not served here.
    ProgramUnavailable,
    /// The program is, in other versions.
    ProgramMismatch {
        /// Lowest version served.
        low: u32,
        /// Highest version served.
        high: u32,
    },
    /// The procedure does not exist.
    ProcedureUnavailable,
    /// The arguments do not parse.
    GarbageArguments,
}

/// Why a call is denied for its credential (RFC 5531, section 9, `auth_stat`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AuthProblem {
    /// The credential does not parse.
    BadCredential = 1,
    /// The flavour is too weak for this export.
    TooWeak = 5,
    /// There is no such context, or it is not the caller's (RFC 2203, section 5.1: RPCSEC_GSS_CREDPROBLEM): the client makes another one.
    ContextUnknown = 13,
    /// The context can be used no more (RPCSEC_GSS_CTXPROBLEM): the same.
    ContextUnusable = 14,
}

impl Call {
    /// Reads the envelope; the reader is left at the arguments.
    ///
    /// # Errors
    /// What to answer instead of a result.
    pub(crate) fn decode(reader: &mut Reader<'_>) -> std::result::Result<Self, Rejected> {
        let unanswerable = |_: Malformed| Rejected::Unanswerable;
        let message_bytes = reader.left();
        let xid = reader.u32().map_err(unanswerable)?;
        if reader.u32().map_err(unanswerable)? != CALL {
            return Err(Rejected::Unanswerable);
        }
        if reader.u32().map_err(unanswerable)? != RPC_VERSION {
            return Err(Rejected::RpcMismatch { xid });
        }
        let mut word = || reader.u32().map_err(unanswerable);
        let (program, version, procedure) = (word()?, word()?, word()?);
        let mut credential = credential(reader).map_err(|_| Rejected::BadCredential { xid })?;
        let header_bytes = message_bytes - reader.left();
        let flavour = reader.u32().map_err(unanswerable)?;
        let verifier = reader.opaque(AUTH_BODY_MAX).map_err(unanswerable)?;
        // The verifier of AUTH_NONE and AUTH_SYS calls says nothing.
        if let Credential::Gss(credential) = &mut credential {
            credential.header_bytes = header_bytes;
            credential.verifier = (flavour == RPCSEC_GSS).then(|| verifier.to_vec());
        }
        Ok(Self {
            xid,
            program,
            version,
            procedure,
            credential,
        })
    }
}

impl Credential {
    /// Returns how sure it is who calls, and what protects the call.
    pub(crate) fn flavour(&self) -> Flavour {
        match self {
            Self::Kerberos { service, .. } => match service {
                Service::Authentication => Flavour::Krb5,
                Service::Integrity => Flavour::Krb5i,
                Service::Privacy => Flavour::Krb5p,
            },
            _ => Flavour::Sys,
        }
    }

    /// Whether the call asks whether TLS may begin (RFC 9289, section 4.1).
    pub(crate) fn asks_for_tls(&self) -> bool {
        *self == Self::Other(AUTH_TLS)
    }
}

fn credential(reader: &mut Reader<'_>) -> Result<Credential> {
    let flavour = reader.u32()?;
    let body = reader.opaque(AUTH_BODY_MAX)?;
    match flavour {
        AUTH_NONE => Ok(Credential::None),
        AUTH_SYS => {
            let mut body = Reader::new(body);
            body.u32()?;
            body.opaque(MACHINE_NAME_MAX)?;
            let (uid, gid, count) = (body.u32()?, body.u32()?, body.u32()?);
            if count > GROUPS_MAX {
                return Err(Malformed {
                    what: "more than 16 groups",
                });
            }
            let groups = (0..count).map(|_| body.u32()).collect::<Result<_>>()?;
            Ok(Credential::Sys { uid, gid, groups })
        }
        RPCSEC_GSS => GssCredential::decode(body).map(Credential::Gss),
        other => Ok(Credential::Other(other)),
    }
}

/// Starts a call of ours to a client; the arguments follow.
#[must_use]
pub(crate) fn call_as_root(xid: u32, program: u32, version: u32, procedure: u32) -> Writer {
    let mut credential = Writer::with_capacity(32);
    // Time, machine, user and group 0, no more groups: some clients take calls from root only.
    credential.u32(0).opaque(b"sanbox").u32(0).u32(0).u32(0);
    call_as(
        xid,
        [program, version, procedure],
        Some(credential.as_bytes()),
    )
}

/// Starts a call of ours, of a program, its version and a procedure, with a credential of AUTH_SYS or none; the arguments follow.
#[must_use]
pub(crate) fn call_as(xid: u32, called: [u32; 3], credential: Option<&[u8]>) -> Writer {
    let mut w = Writer::with_capacity(256);
    w.u32(xid).u32(CALL).u32(RPC_VERSION);
    for number in called {
        w.u32(number);
    }
    match credential {
        Some(body) => w.u32(AUTH_SYS).opaque(body),
        None => w.u32(AUTH_NONE).u32(0),
    };
    w.u32(AUTH_NONE).u32(0);
    w
}

/// Returns whether a message is an answer to a call of ours.
pub(crate) fn is_reply(message: &[u8]) -> bool {
    let mut reader = Reader::new(message);
    reader.u32().is_ok() && reader.u32() == Ok(REPLY)
}

/// Returns a reader at the result of a call of ours, or `None` when the reply says that there is none.
pub(crate) fn result_of(reply: &[u8]) -> Option<Reader<'_>> {
    let mut reader = Reader::new(reply);
    let _xid = reader.u32().ok()?;
    let (kind, accepted) = (reader.u32().ok()?, reader.u32().ok()?);
    let _verifier = (reader.u32().ok()?, reader.opaque(AUTH_BODY_MAX).ok()?);
    let status = reader.u32().ok()?;
    ((kind, accepted, status) == (REPLY, 0, 0)).then_some(reader)
}

/// Starts an accepted reply; the procedure's result follows.
#[must_use]
pub(crate) fn success(xid: u32, capacity: usize) -> Writer {
    let mut w = accepted(xid, capacity + 24);
    w.u32(0);
    w
}

/// Returns the answer to a call that asks for TLS: it may begin (RFC 9289, section 4.1).
#[must_use]
pub(crate) fn start_tls(xid: u32) -> Vec<u8> {
    let mut w = Writer::with_capacity(32);
    w.u32(xid).u32(REPLY).u32(0).u32(AUTH_NONE);
    w.opaque(b"STARTTLS").u32(0);
    w.into_bytes()
}

/// Returns an accepted reply without a result.
#[must_use]
pub(crate) fn refuse(xid: u32, why: Refusal) -> Vec<u8> {
    let mut w = accepted(xid, 32);
    match why {
        Refusal::ProgramUnavailable => w.u32(1),
        Refusal::ProgramMismatch { low, high } => w.u32(2).u32(low).u32(high),
        Refusal::ProcedureUnavailable => w.u32(3),
        Refusal::GarbageArguments => w.u32(4),
    };
    w.into_bytes()
}

/// Returns a denial for the credential.
#[must_use]
pub(crate) fn deny(xid: u32, problem: AuthProblem) -> Vec<u8> {
    let mut w = Writer::with_capacity(20);
    w.u32(xid).u32(REPLY).u32(1).u32(1).u32(problem as u32);
    w.into_bytes()
}

/// Returns what to answer to a call that could not be taken, or `None` where there is nothing to say.
#[must_use]
pub(crate) fn reject(why: &Rejected) -> Option<Vec<u8>> {
    match why {
        Rejected::Unanswerable => None,
        Rejected::RpcMismatch { xid } => {
            let mut w = Writer::with_capacity(24);
            w.u32(*xid)
                .u32(REPLY)
                .u32(1)
                .u32(0)
                .u32(RPC_VERSION)
                .u32(RPC_VERSION);
            Some(w.into_bytes())
        }
        Rejected::BadCredential { xid } => Some(deny(*xid, AuthProblem::BadCredential)),
    }
}

fn accepted(xid: u32, capacity: usize) -> Writer {
    let mut w = Writer::with_capacity(capacity);
    w.u32(xid).u32(REPLY).u32(0).u32(AUTH_NONE).u32(0);
    w
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(rpc_version: u32, groups: u32) -> Vec<u8> {
        let mut auth = Writer::default();
        auth.u32(1).opaque(b"client").u32(1000).u32(100).u32(groups);
        for g in 0..groups {
            auth.u32(g);
        }
        let mut w = Writer::default();
        w.u32(9).u32(0).u32(rpc_version).u32(100_003).u32(3).u32(1);
        w.u32(1)
            .opaque(&auth.into_bytes())
            .u32(0)
            .opaque(b"")
            .u32(77);
        w.into_bytes()
    }

    #[test]
    fn a_call_with_auth_sys_decodes() {
        let bytes = call(2, 2);
        let mut reader = Reader::new(&bytes);
        let decoded = Call::decode(&mut reader).expect("a whole call");
        assert_eq!(
            (decoded.xid, decoded.program, decoded.procedure),
            (9, 100_003, 1)
        );
        assert_eq!(
            decoded.credential,
            Credential::Sys {
                uid: 1000,
                gid: 100,
                groups: vec![0, 1]
            }
        );
        assert_eq!(reader.u32(), Ok(77));
    }

    #[test]
    fn bad_calls_are_answered_as_the_standard_says() {
        let decode = |bytes: &[u8]| Call::decode(&mut Reader::new(bytes)).expect_err("a bad call");
        assert_eq!(decode(&call(3, 0)), Rejected::RpcMismatch { xid: 9 });
        assert_eq!(decode(&call(2, 17)), Rejected::BadCredential { xid: 9 });
        assert_eq!(decode(&[0, 0, 0, 1, 0, 0, 0, 1]), Rejected::Unanswerable);
        assert_eq!(decode(&[]), Rejected::Unanswerable);
    }
}
