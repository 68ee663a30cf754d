//! The one error of this crate: bytes that do not follow the format.

/// Bytes did not follow the format: what was being read, and where in the given buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("malformed {what} at byte {offset}")]
pub struct DecodeError {
    /// The structure or field that was being read.
    pub what: &'static str,
    /// Byte offset in the buffer given to the decoder.
    pub offset: usize,
}

impl DecodeError {
    /// Returns an error about `what` at byte `offset` of the decoder's input.
    #[must_use]
    pub const fn new(what: &'static str, offset: usize) -> Self {
        Self { what, offset }
    }
}

/// Result of a decoder.
pub type Result<T> = std::result::Result<T, DecodeError>;
