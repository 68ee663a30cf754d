//! The bytes of RPCSEC_GSS (RFC 2203, section 5): credentials, and what calls and replies of a context are made of.

use crate::xdr::{Malformed, Reader, Result, Writer};

/// The flavour's number (RFC 2203, section 5.1).
pub(crate) const RPCSEC_GSS: u32 = 6;
/// The mechanism Kerberos 5: 1.2.840.113554.1.2.2 (RFC 1964, section 1), in DER.
pub(crate) const KERBEROS: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x12, 0x01, 0x02, 0x02];
/// Length of what precedes the result in an accepted reply whose verifier is empty, in bytes.
pub(crate) const ENVELOPE_BYTES: usize = 24;

/// RFC 2203, section 5.2.1.
const VERSION: u32 = 1;
/// Bytes of a handle. Ours have 16.
const HANDLE_BYTES_MAX: usize = 64;

/// What a call is to its context (RFC 2203, section 5.3: rpc_gss_proc_t).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ContextProcedure {
    Data,
    Begin,
    Continue,
    Destroy,
}

/// How the arguments and results of a call are protected (RFC 2203, section 5.3: rpc_gss_service_t).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Service {
    /// Not at all: only who calls is sure.
    Authentication = 1,
    /// By a checksum.
    Integrity = 2,
    /// By encryption.
    Privacy = 3,
}

/// A credential of RPCSEC_GSS, and the verifier that came with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct GssCredential {
    pub(crate) procedure: ContextProcedure,
    pub(crate) sequence: u32,
    pub(crate) service: Service,
    pub(crate) handle: Vec<u8>,
    /// How many bytes of the call, from its first one to the end of the credential, the verifier is the checksum of.
    pub(crate) header_bytes: usize,
    /// The checksum; none of a verifier of another flavour.
    pub(crate) verifier: Option<Vec<u8>>,
}

impl GssCredential {
    /// Reads the body of a credential; where it ends in the call, and the verifier, are still to be filled in.
    ///
    /// # Errors
    /// It is too short, or of another version, procedure or service than there are.
    pub(crate) fn decode(body: &[u8]) -> Result<Self> {
        let mut r = Reader::new(body);
        if r.u32()? != VERSION {
            return Err(Malformed {
                what: "version of RPCSEC_GSS",
            });
        }
        let procedure = match r.u32()? {
            0 => ContextProcedure::Data,
            1 => ContextProcedure::Begin,
            2 => ContextProcedure::Continue,
            3 => ContextProcedure::Destroy,
            _ => {
                return Err(Malformed {
                    what: "procedure of RPCSEC_GSS",
                });
            }
        };
        let sequence = r.u32()?;
        let service = match r.u32()? {
            1 => Service::Authentication,
            2 => Service::Integrity,
            3 => Service::Privacy,
            _ => {
                return Err(Malformed {
                    what: "service of RPCSEC_GSS",
                });
            }
        };
        Ok(Self {
            procedure,
            sequence,
            service,
            handle: r.opaque(HANDLE_BYTES_MAX)?.to_vec(),
            header_bytes: 0,
            verifier: None,
        })
    }
}

impl GssCredential {
    /// Returns a reader at the procedure's arguments, where they can be read as they came: not when they are encrypted.
    pub(crate) fn open_arguments<'a>(&self, mut r: Reader<'a>) -> Option<Reader<'a>> {
        match self.service {
            Service::Authentication => Some(r),
            // The length of what is signed, and the number in it.
            Service::Integrity => r.u64().is_ok().then_some(r),
            Service::Privacy => None,
        }
    }
}

/// Reads the signed arguments of a call, and their checksum (RFC 2203, section 5.3.2.2: rpc_gss_integ_data).
pub(crate) fn signed<'a>(mut r: Reader<'a>) -> Result<(&'a [u8], &'a [u8])> {
    let limit = r.left();
    Ok((r.opaque(limit)?, r.opaque(limit)?))
}

/// Reads the encrypted arguments of a call (RFC 2203, section 5.3.2.3: rpc_gss_priv_data).
pub(crate) fn encrypted<'a>(mut r: Reader<'a>) -> Result<&'a [u8]> {
    let limit = r.left();
    r.opaque(limit)
}

/// Starts an accepted reply with a checksum for its verifier, of a status; the result follows if that is 0.
pub(crate) fn accepted(xid: u32, mic: &[u8], status: u32, capacity: usize) -> Writer {
    let mut w = Writer::with_capacity(capacity + mic.len() + 32);
    w.u32(xid).u32(1).u32(0).u32(RPCSEC_GSS).opaque(mic);
    w.u32(status);
    w
}

/// Returns the status of an accepted reply with an empty verifier; `None` of any other reply.
pub(crate) fn accepted_status(envelope: &[u8]) -> Option<u32> {
    let mut r = Reader::new(envelope);
    let _xid = r.u32().ok()?;
    // REPLY, MSG_ACCEPTED, and AUTH_NONE of no bytes.
    for expected in [1, 0, 0, 0] {
        if r.u32().ok()? != expected {
            return None;
        }
    }
    r.u32().ok()
}

/// Writes what a client gets for its token (rpc_gss_init_res).
pub(crate) fn begun(w: &mut Writer, handle: &[u8], status: [u32; 2], window: u32, token: &[u8]) {
    w.opaque(handle).u32(status[0]).u32(status[1]);
    w.u32(window).opaque(token);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_are_of_the_known_version_procedures_and_services() {
        let credential = |words: [u32; 4]| {
            let mut w = Writer::default();
            for word in words {
                w.u32(word);
            }
            w.opaque(b"handle");
            GssCredential::decode(w.as_bytes())
        };
        let good = credential([1, 3, 7, 2]).expect("a credential");
        assert_eq!(good.procedure, ContextProcedure::Destroy);
        assert_eq!((good.sequence, good.service), (7, Service::Integrity));
        assert_eq!(good.handle, b"handle");
        for bad in [
            [0, 0, 7, 1],
            [2, 0, 7, 1],
            [1, 4, 7, 1],
            [1, 0, 7, 0],
            [1, 0, 7, 4],
        ] {
            assert!(credential(bad).is_err(), "{bad:?}");
        }
        assert!(GssCredential::decode(&[0, 0, 0, 1]).is_err());
    }

    #[test]
    fn only_accepted_replies_without_a_verifier_have_a_status() {
        let words = |words: &[u32]| -> Vec<u8> {
            words.iter().flat_map(|word| word.to_be_bytes()).collect()
        };
        assert_eq!(accepted_status(&words(&[9, 1, 0, 0, 0, 4])), Some(4));
        assert_eq!(accepted_status(&words(&[9, 1, 1, 1, 5])), None);
        assert_eq!(accepted_status(&words(&[9, 1, 0, 0, 0])), None);
    }
}
