//! The answer to a COMPOUND while it is made: XDR in pieces, so that data read is not copied.

use super::status::Status;
use crate::outcome::{Piece, Reply};
use crate::xdr::Writer;
use engine::IoBuf;

/// An answer with its results so far.
pub(super) struct ReplyBuilder {
    /// What came before `tail`.
    pieces: Vec<Piece>,
    pieces_bytes: usize,
    tail: Writer,
    results: u32,
    /// Where the last result begins: pieces before it, and bytes of the tail.
    result_at: (usize, usize, usize),
    tag: Vec<u8>,
}

impl ReplyBuilder {
    pub(super) fn new(tag: &[u8]) -> Self {
        Self {
            pieces: Vec::new(),
            pieces_bytes: 0,
            tail: Writer::with_capacity(512),
            results: 0,
            result_at: (0, 0, 0),
            tag: tag.to_vec(),
        }
    }

    /// Returns how long the answer is so far, in bytes, without the envelope of the call.
    pub(super) fn len(&self) -> usize {
        self.pieces_bytes + self.tail.len() + 12 + self.tag.len().next_multiple_of(4)
    }

    /// Begins a result with the number of its operation. Its status is expected next.
    pub(super) fn begin(&mut self, number: u32) {
        self.result_at = (self.pieces.len(), self.pieces_bytes, self.tail.len());
        self.results += 1;
        self.tail.u32(number);
    }

    /// Takes back all of the result but the number of its operation, and answers with this status and nothing else.
    pub(super) fn fail(&mut self, number: u32, status: Status) -> &mut Writer {
        let (pieces, bytes, tail) = self.result_at;
        if self.pieces.len() > pieces {
            // The result is in pieces: the first of them holds what came before it.
            let first = self.pieces.drain(pieces..).next();
            self.tail = Writer::default();
            if let Some(Piece::Owned(before)) = first {
                self.tail = Writer::from(before);
            }
            self.pieces_bytes = bytes;
        }
        self.tail.truncate(tail);
        self.tail.u32(number).u32(status as u32)
    }

    /// Returns where the result is written.
    pub(super) fn writer(&mut self) -> &mut Writer {
        &mut self.tail
    }

    /// Returns the bytes of the last result behind its status, if it is in one piece.
    pub(super) fn body(&self) -> &[u8] {
        let (_, _, tail) = self.result_at;
        self.tail.as_bytes().get(tail + 8..).unwrap_or_default()
    }

    /// Adds data that is shared, and its padding.
    pub(super) fn shared(&mut self, data: Vec<IoBuf>) {
        let before = std::mem::take(&mut self.tail).into_bytes();
        self.pieces_bytes += before.len();
        self.pieces.push(Piece::Owned(before));
        let mut bytes: usize = 0;
        for piece in data {
            bytes += piece.len();
            self.pieces.push(Piece::Shared(piece));
        }
        self.pieces_bytes += bytes;
        self.tail.zeroes(bytes.wrapping_neg() % 4);
    }

    /// Ends the answer: returns what follows the envelope of the call.
    pub(super) fn finish(self, status: Status) -> Reply {
        let mut head = Writer::with_capacity(16 + self.tag.len());
        head.u32(status as u32).opaque(&self.tag).u32(self.results);
        let mut reply = Reply::from(head.into_bytes());
        reply.pieces.extend(self.pieces);
        reply.pieces.push(Piece::Owned(self.tail.into_bytes()));
        reply
    }
}
