//! XDR (RFC 4506): a bounds-checked reader over borrowed bytes, and a writer.
//!
//! Opaque data is never copied on the way in. Lengths come from the peer, so each is checked against its limit and
//! against what is left before anything is done with it.

use thiserror::Error;

/// The bytes are not what the protocol says: too short, a length over its limit, or a value outside its enumeration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("malformed XDR: {what}")]
pub(crate) struct Malformed {
    /// The item that could not be read.
    pub(crate) what: &'static str,
}

/// Result of reading XDR.
pub(crate) type Result<T> = std::result::Result<T, Malformed>;

/// Reads XDR items from the front of a slice.
#[derive(Debug, Clone)]
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Returns a reader over `bytes`.
    #[must_use]
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// Returns the number of bytes that have not been read.
    pub(crate) fn left(&self) -> usize {
        self.rest.len()
    }

    /// Returns the bytes that have not been read.
    pub(crate) fn rest(&self) -> &'a [u8] {
        self.rest
    }

    fn take(&mut self, count: usize, what: &'static str) -> Result<&'a [u8]> {
        let (taken, rest) = self
            .rest
            .split_at_checked(count)
            .ok_or(Malformed { what })?;
        self.rest = rest;
        Ok(taken)
    }

    /// Reads an unsigned 32-bit integer.
    ///
    /// # Errors
    /// When fewer than four bytes are left.
    pub(crate) fn u32(&mut self) -> Result<u32> {
        let bytes = self.take(4, "integer")?;
        bytes
            .try_into()
            .map(u32::from_be_bytes)
            .map_err(|_| Malformed { what: "integer" })
    }

    /// Reads an unsigned 64-bit integer (hyper).
    ///
    /// # Errors
    /// When fewer than eight bytes are left.
    pub(crate) fn u64(&mut self) -> Result<u64> {
        let bytes = self.take(8, "hyper")?;
        bytes
            .try_into()
            .map(u64::from_be_bytes)
            .map_err(|_| Malformed { what: "hyper" })
    }

    /// Reads a boolean.
    ///
    /// # Errors
    /// When the value is neither 0 nor 1 (RFC 4506, section 4.4).
    pub(crate) fn bool(&mut self) -> Result<bool> {
        match self.u32()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Malformed { what: "boolean" }),
        }
    }

    /// Reads `count` opaque bytes and their padding.
    ///
    /// # Errors
    /// When the bytes or the padding are not all there.
    pub(crate) fn opaque_fixed(&mut self, count: usize) -> Result<&'a [u8]> {
        let data = self.take(count, "opaque data")?;
        self.take(count.wrapping_neg() % 4, "padding")?;
        Ok(data)
    }

    /// Reads variable-length opaque data of at most `limit` bytes.
    ///
    /// # Errors
    /// When the length is over `limit`, or the data is not all there.
    pub(crate) fn opaque(&mut self, limit: usize) -> Result<&'a [u8]> {
        let count = usize::try_from(self.u32()?).map_err(|_| Malformed { what: "length" })?;
        if count > limit {
            return Err(Malformed {
                what: "length over its limit",
            });
        }
        self.opaque_fixed(count)
    }

    /// Reads an optional item: a boolean, then the item if it is true.
    ///
    /// # Errors
    /// Those of the boolean and of `item`.
    pub(crate) fn option<T>(
        &mut self,
        item: impl FnOnce(&mut Self) -> Result<T>,
    ) -> Result<Option<T>> {
        if self.bool()? {
            item(self).map(Some)
        } else {
            Ok(None)
        }
    }
}

/// Appends XDR items to a buffer.
#[derive(Debug, Default, Clone)]
pub(crate) struct Writer {
    bytes: Vec<u8>,
}

impl Writer {
    /// Returns an empty writer with room for `capacity` bytes.
    #[must_use]
    pub(crate) fn with_capacity(capacity: usize) -> Self {
        Self {
            bytes: Vec::with_capacity(capacity),
        }
    }

    /// Returns what has been written.
    #[must_use]
    pub(crate) fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    /// Returns what has been written so far.
    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Writes so many zero bytes.
    pub(crate) fn zeroes(&mut self, count: usize) -> &mut Self {
        self.bytes.resize(self.bytes.len() + count, 0);
        self
    }

    /// Returns how many bytes have been written.
    #[must_use]
    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Drops everything after the first `len` bytes: an entry that did not fit is taken back.
    pub(crate) fn truncate(&mut self, len: usize) {
        self.bytes.truncate(len);
    }

    /// Writes an unsigned 32-bit integer.
    pub(crate) fn u32(&mut self, value: u32) -> &mut Self {
        self.bytes.extend_from_slice(&value.to_be_bytes());
        self
    }

    /// Writes an unsigned 64-bit integer (hyper).
    pub(crate) fn u64(&mut self, value: u64) -> &mut Self {
        self.bytes.extend_from_slice(&value.to_be_bytes());
        self
    }

    /// Writes what is XDR already.
    pub(crate) fn bytes(&mut self, encoded: &[u8]) -> &mut Self {
        self.bytes.extend_from_slice(encoded);
        self
    }

    /// Writes a boolean.
    pub(crate) fn bool(&mut self, value: bool) -> &mut Self {
        self.u32(u32::from(value))
    }

    /// Writes opaque data of a length both sides know, and its padding.
    pub(crate) fn opaque_fixed(&mut self, data: &[u8]) -> &mut Self {
        self.bytes.extend_from_slice(data);
        let padded = self.bytes.len() + data.len().wrapping_neg() % 4;
        self.bytes.resize(padded, 0);
        self
    }

    /// Writes variable-length opaque data: its length, the bytes, the padding.
    ///
    /// # Panics
    /// When `data` has 4 GiB or more: no reply of ours does.
    pub(crate) fn opaque(&mut self, data: &[u8]) -> &mut Self {
        self.u32(u32::try_from(data.len()).expect("opaque data in replies is far below 4 GiB"));
        self.opaque_fixed(data)
    }
}

impl From<Vec<u8>> for Writer {
    fn from(bytes: Vec<u8>) -> Self {
        Self { bytes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_reads_back() {
        let mut w = Writer::default();
        w.u32(7)
            .u64(1 << 40)
            .bool(true)
            .opaque(b"abcde")
            .opaque_fixed(b"xyz");
        let bytes = w.into_bytes();
        assert_eq!(bytes.len() % 4, 0);
        let mut r = Reader::new(&bytes);
        assert_eq!(r.u32(), Ok(7));
        assert_eq!(r.u64(), Ok(1 << 40));
        assert_eq!(r.bool(), Ok(true));
        assert_eq!(r.opaque(5), Ok(&b"abcde"[..]));
        assert_eq!(r.opaque_fixed(3), Ok(&b"xyz"[..]));
        assert!(r.u32().is_err());
    }

    #[test]
    fn lengths_over_the_limit_or_the_input_are_refused() {
        let check = |bytes: &[u8], limit| assert!(Reader::new(bytes).opaque(limit).is_err());
        check(&[0, 0, 0, 8, 1, 2, 3, 4], 100);
        check(&[0, 0, 0, 4, 1, 2, 3, 4], 3);
        check(&[0xff, 0xff, 0xff, 0xff], usize::MAX);
        check(&[0, 0], 4);
        check(&[0, 0, 0, 3, 1, 2, 3], 4);
    }
}
