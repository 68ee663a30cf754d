//! A request of the transmission phase: its header, and what follows it.

use crate::wire::{REQUEST_MAGIC, Reader, command};

/// Bytes of one read or write, as the protocol lets clients expect.
pub const PAYLOAD_BYTES_MAX: u32 = 32 << 20;

/// Bytes of a request's header.
pub const REQUEST_BYTES: usize = 28;

/// A request's header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    pub(crate) flags: u16,
    pub(crate) command: u16,
    pub(crate) cookie: u64,
    pub(crate) offset: u64,
    pub(crate) length: u32,
}

impl Request {
    /// Reads a header; `None` when it is not one, after which nothing that follows can be understood.
    #[must_use]
    pub fn decode(bytes: &[u8; REQUEST_BYTES]) -> Option<Self> {
        let mut reader = Reader(bytes);
        if reader.u32()? != REQUEST_MAGIC {
            return None;
        }
        Some(Self {
            flags: reader.u16()?,
            command: reader.u16()?,
            cookie: reader.u64()?,
            offset: reader.u64()?,
            length: reader.u32()?,
        })
    }

    /// Whether the client ends the connection with it: it has no answer.
    #[must_use]
    pub fn is_disconnect(&self) -> bool {
        self.command == command::DISCONNECT
    }

    /// Returns how many bytes of data follow the header; `None` when there are more than a client may send, so that the next request
    /// cannot be found.
    #[must_use]
    pub fn data_bytes(&self) -> Option<usize> {
        if self.command != command::WRITE {
            return Some(0);
        }
        let fits = self.length <= PAYLOAD_BYTES_MAX;
        fits.then(|| usize::try_from(self.length).ok()).flatten()
    }

    /// Returns how many bytes its data or its answer's take in memory.
    #[must_use]
    pub fn memory_bytes(&self) -> u32 {
        let carries = matches!(self.command, command::READ | command::WRITE);
        if carries && self.length <= PAYLOAD_BYTES_MAX {
            self.length
        } else {
            0
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(kind: u16, length: u32) -> [u8; REQUEST_BYTES] {
        let mut bytes = [0; REQUEST_BYTES];
        bytes[..4].copy_from_slice(&REQUEST_MAGIC.to_be_bytes());
        bytes[5] = 1;
        bytes[6..8].copy_from_slice(&kind.to_be_bytes());
        bytes[15] = 9;
        bytes[23] = 8;
        bytes[24..].copy_from_slice(&length.to_be_bytes());
        bytes
    }

    #[test]
    fn requests_are_read() {
        let mut bytes = header(command::FLUSH, 7);
        let expected = Request {
            flags: 1,
            command: 3,
            cookie: 9,
            offset: 8,
            length: 7,
        };
        assert_eq!(Request::decode(&bytes), Some(expected));
        bytes[0] = 0;
        assert_eq!(Request::decode(&bytes), None);
    }

    #[test]
    fn only_reads_and_writes_carry_data() {
        let check = |kind, length, data: Option<usize>, memory| {
            let request = Request::decode(&header(kind, length)).expect("a request");
            assert_eq!(request.data_bytes(), data, "{request:?}");
            assert_eq!(request.memory_bytes(), memory, "{request:?}");
        };
        check(command::READ, 4096, Some(0), 4096);
        check(command::READ, PAYLOAD_BYTES_MAX + 1, Some(0), 0);
        check(command::WRITE, 4096, Some(4096), 4096);
        check(command::WRITE, PAYLOAD_BYTES_MAX + 1, None, 0);
        check(command::TRIM, u32::MAX, Some(0), 0);
        let end = Request::decode(&header(command::DISCONNECT, 0));
        assert!(end.is_some_and(|request| request.is_disconnect()));
    }
}
