//! What a procedure makes, and the reply that leaves.

use crate::rpc::{AuthProblem, Refusal};
use crate::xdr::{Malformed, Writer};
use engine::IoBuf;

/// One piece of a reply.
#[derive(Debug, Clone)]
pub enum Piece {
    /// Bytes made for this reply.
    Owned(Vec<u8>),
    /// Bytes shared with the engine's cache.
    Shared(IoBuf),
}

impl AsRef<[u8]> for Piece {
    fn as_ref(&self) -> &[u8] {
        match self {
            Self::Owned(bytes) => bytes,
            Self::Shared(bytes) => bytes,
        }
    }
}

/// An RPC reply without its record mark, in the pieces it lies in.
#[derive(Debug, Clone, Default)]
pub struct Reply {
    /// The pieces, in order.
    pub pieces: Vec<Piece>,
}

impl Reply {
    /// Returns the length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.pieces.iter().map(|piece| piece.as_ref().len()).sum()
    }

    /// Returns whether there is nothing to send.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(crate) fn to_vec(&self) -> Vec<u8> {
        self.pieces
            .iter()
            .flat_map(|piece| piece.as_ref())
            .copied()
            .collect()
    }
}

impl From<Vec<u8>> for Reply {
    fn from(bytes: Vec<u8>) -> Self {
        Self {
            pieces: vec![Piece::Owned(bytes)],
        }
    }
}

/// What a procedure makes: a reply, or an answer instead of one.
pub(crate) enum Outcome {
    Reply(Reply),
    Refused(Refusal),
    Denied(AuthProblem),
}

impl From<Malformed> for Outcome {
    fn from(_: Malformed) -> Self {
        Self::Refused(Refusal::GarbageArguments)
    }
}

impl From<Writer> for Outcome {
    fn from(writer: Writer) -> Self {
        Self::Reply(writer.into_bytes().into())
    }
}
