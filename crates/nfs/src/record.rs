//! Record marking (RFC 5531, section 11): RPC messages in a byte stream, cut into fragments.
//!
//! ```text
//!  31 30                              0
//! +--+--------------------------------+
//! |L | length of the fragment         |   L: last fragment of the record
//! +--+--------------------------------+
//! ```

use crate::limits::{ENVELOPE_BYTES, REPLY_BYTES_MAX};
use crate::outcome::Reply;
use crate::rpc::{self, Call, Credential, Rejected};
use crate::xdr::Reader;
use crate::{v3, v4};
use engine::IoBuf;
use std::ops::Range;
use thiserror::Error;

/// Fragments one record may consist of. The Linux, macOS and ESXi clients send one; pynfs cuts a record into pieces of 2 KiB.
const FRAGMENTS_MAX: u32 = 1024;
/// What a context's token, or the checksums and the encryption of an answer add to it, in bytes; rounded up.
const PROTECTION_BYTES: usize = 1024;

/// One RPC message without its record mark, its envelope decoded.
#[derive(Debug, Clone)]
pub struct Record {
    /// The message up to the data of a WRITE that was read apart, else all of it.
    pub(crate) head: Vec<u8>,
    /// The data of a WRITE that was read apart.
    pub(crate) data: Option<IoBuf>,
    pub(crate) call: Result<Call, Rejected>,
    /// Where the arguments of the call begin in `head`.
    arguments_at: usize,
}

impl Record {
    pub(crate) fn arguments(&self) -> Reader<'_> {
        Reader::new(self.head.get(self.arguments_at..).unwrap_or_default())
    }

    /// Returns the record of a call whose arguments were protected: they are in `head`, from `arguments_at` on.
    pub(crate) fn of_arguments(head: Vec<u8>, arguments_at: usize, call: Call) -> Self {
        Self {
            head,
            data: None,
            call: Ok(call),
            arguments_at,
        }
    }

    /// Returns the record with another envelope and the same arguments.
    pub(crate) fn with_call(self, call: Call) -> Self {
        Self {
            call: Ok(call),
            ..self
        }
    }

    /// Returns the answer to a call that asks for TLS, after which its handshake begins; `None` of other calls (RFC 9289, section 4.1: a
    /// NULL of any program, with the flavour AUTH_TLS).
    #[must_use]
    pub fn start_tls(&self) -> Option<Reply> {
        let call = self.call.as_ref().ok()?;
        let asks = call.procedure == 0 && call.credential.asks_for_tls();
        asks.then(|| rpc::start_tls(call.xid).into())
    }

    /// Returns the most bytes that the answer to an NFS call has, before the call is made, so that memory can be reserved for
    /// it. Of other programs it returns what their usual answers have.
    #[must_use]
    pub fn reply_bytes_max(&self) -> usize {
        let Ok(call) = &self.call else {
            return ENVELOPE_BYTES;
        };
        let (arguments, protection) = match &call.credential {
            Credential::Gss(credential) => match credential.open_arguments(self.arguments()) {
                Some(arguments) => (arguments, PROTECTION_BYTES),
                // Of what is encrypted nothing is known but the procedure.
                None if call.program == v3::PROGRAM && call.procedure != 0 => {
                    return REPLY_BYTES_MAX as usize + PROTECTION_BYTES;
                }
                None => return ENVELOPE_BYTES + PROTECTION_BYTES,
            },
            _ => (self.arguments(), 0),
        };
        let answer = match (call.program, call.version) {
            (v3::PROGRAM, v4::VERSION) => v4::answer_bytes_max(call.procedure, arguments),
            (v3::PROGRAM, _) => v3::answer_bytes_max(call.procedure, arguments),
            _ => ENVELOPE_BYTES,
        };
        answer + protection
    }
}

impl From<Vec<u8>> for Record {
    fn from(head: Vec<u8>) -> Self {
        let mut reader = Reader::new(&head);
        let call = Call::decode(&mut reader);
        let arguments_at = head.len() - reader.left();
        Self {
            head,
            data: None,
            call,
            arguments_at,
        }
    }
}

/// A WRITE of which the data is still to come: the receiver reads it straight to where the engine wants it.
#[derive(Debug)]
pub struct IncomingWrite {
    call: Call,
    arguments_at: usize,
    data: Range<usize>,
}

impl IncomingWrite {
    /// Decodes the beginning of a record of `record_bytes` bytes. `None` when it is no WRITE, when too little of it is there
    /// to say so, or when it does not parse.
    #[must_use]
    pub fn decode(beginning: &[u8], record_bytes: usize) -> Option<Self> {
        let mut reader = Reader::new(beginning);
        let call = Call::decode(&mut reader).ok()?;
        // What a context protects is looked at as a whole first.
        if call.program != v3::PROGRAM || matches!(call.credential, Credential::Gss(_)) {
            return None;
        }
        let arguments_at = beginning.len() - reader.left();
        let length = v3::write_data_bytes(call.procedure, &mut reader)?;
        let start = beginning.len() - reader.left();
        // Padding and nothing else may follow.
        let end = start.checked_add(length)?;
        (end.checked_next_multiple_of(4)? == record_bytes).then_some(Self {
            call,
            arguments_at,
            data: start..end,
        })
    }

    /// Returns where the data lies in the record.
    #[must_use]
    pub fn data(&self) -> Range<usize> {
        self.data.clone()
    }

    /// Returns the record: `head` is what comes before the data, the bytes this was decoded from.
    ///
    /// # Panics
    /// When `head` or `data` are not of the lengths that [`Self::data`] says.
    #[must_use]
    pub fn complete(self, head: Vec<u8>, data: IoBuf) -> Record {
        assert!(
            head.len() == self.data.start && data.len() == self.data.len(),
            "a WRITE of other lengths than its header said"
        );
        Record {
            head,
            data: Some(data),
            call: Ok(self.call),
            arguments_at: self.arguments_at,
        }
    }
}

/// The stream cannot be followed any further; the connection has to be closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum RecordError {
    /// The record would be longer than the server takes.
    #[error("a record of more than {limit} bytes")]
    TooLong {
        /// The limit, in bytes.
        limit: usize,
    },
    /// The record comes in too many pieces.
    #[error("a record of more than {FRAGMENTS_MAX} fragments")]
    TooManyFragments,
}

/// What the reader of a stream has to do next.
#[derive(Debug, PartialEq, Eq)]
pub enum Next {
    /// Read exactly this many bytes (at least 1) and hand them to [`Assembler::header`].
    Header,
    /// Read exactly this many bytes and append them to the record.
    Body(usize),
    /// The record is complete.
    Complete,
}

/// Follows the fragments of one record after the other. It holds no data: the reader of the socket reads straight into
/// the record's buffer, so that a WRITE is copied once only.
#[derive(Debug)]
pub struct Assembler {
    limit: usize,
    length: usize,
    fragments: u32,
    last: bool,
}

impl Assembler {
    /// Returns an assembler that takes records of at most `limit` bytes.
    #[must_use]
    pub fn new(limit: usize) -> Self {
        Self {
            limit,
            length: 0,
            fragments: 0,
            last: false,
        }
    }

    /// Returns what comes first in a new record.
    #[must_use]
    pub fn begin(&mut self) -> Next {
        *self = Self::new(self.limit);
        Next::Header
    }

    /// Takes a fragment's four header bytes; returns how much of the body follows.
    ///
    /// # Errors
    /// When the record becomes too long or has too many fragments.
    pub fn header(&mut self, header: [u8; 4]) -> Result<Next, RecordError> {
        let word = u32::from_be_bytes(header);
        let too_long = RecordError::TooLong { limit: self.limit };
        let length = usize::try_from(word & 0x7fff_ffff).map_err(|_| too_long)?;
        self.last = word & 0x8000_0000 != 0;
        self.fragments += 1;
        if self.fragments > FRAGMENTS_MAX {
            return Err(RecordError::TooManyFragments);
        }
        self.length = self.length.checked_add(length).ok_or(too_long)?;
        if self.length > self.limit {
            return Err(too_long);
        }
        Ok(if length == 0 {
            self.body()
        } else {
            Next::Body(length)
        })
    }

    /// Says that the fragment's body has been read; returns what comes next.
    #[must_use]
    pub fn body(&self) -> Next {
        if self.last {
            Next::Complete
        } else {
            Next::Header
        }
    }
}

/// Returns the header of a reply of `length` bytes that goes out as one fragment.
///
/// # Panics
/// When `length` is 2 GiB or more: replies are bounded far below.
#[must_use]
pub fn reply_header(length: usize) -> [u8; 4] {
    let length = u32::try_from(length).ok().filter(|l| l >> 31 == 0);
    (length.expect("replies are far below 2 GiB") | 0x8000_0000).to_be_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_fragments_make_one_record() {
        let mut a = Assembler::new(100);
        assert_eq!(a.begin(), Next::Header);
        assert_eq!(a.header([0, 0, 0, 5]), Ok(Next::Body(5)));
        assert_eq!(a.body(), Next::Header);
        assert_eq!(a.header([0x80, 0, 0, 7]), Ok(Next::Body(7)));
        assert_eq!(a.body(), Next::Complete);
    }

    #[test]
    fn long_and_shredded_records_are_refused() {
        let mut a = Assembler::new(100);
        assert_eq!(
            a.header([0x80, 0, 0, 101]),
            Err(RecordError::TooLong { limit: 100 })
        );
        let mut a = Assembler::new(100);
        let outcome = (0..2000).map(|_| a.header([0; 4])).find(Result::is_err);
        assert_eq!(outcome, Some(Err(RecordError::TooManyFragments)));
    }

    #[test]
    fn a_reply_header_marks_the_last_fragment() {
        assert_eq!(reply_header(24), [0x80, 0, 0, 24]);
    }
}
