//! The numbers of the NBD protocol (doc/proto.md of the NetworkBlockDevice project), and messages as bytes.

/// First word of the greeting: `NBDMAGIC`.
pub(super) const MAGIC: u64 = 0x4e42_444d_4147_4943;
/// Second word of the greeting, and first of each option: `IHAVEOPT`.
pub(super) const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
/// First word of an option reply.
pub(super) const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
pub(super) const REQUEST_MAGIC: u32 = 0x2560_9513;
pub(super) const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
pub(super) const CHUNK_MAGIC: u32 = 0x668e_33ef;

/// Handshake flags of both sides.
pub(super) mod handshake {
    pub(crate) const FIXED_NEWSTYLE: u16 = 1;
    pub(crate) const NO_ZEROES: u16 = 2;
}

/// Options.
pub(super) mod option {
    pub(crate) const EXPORT_NAME: u32 = 1;
    pub(crate) const ABORT: u32 = 2;
    pub(crate) const LIST: u32 = 3;
    pub(crate) const INFO: u32 = 6;
    pub(crate) const GO: u32 = 7;
    pub(crate) const STRUCTURED_REPLY: u32 = 8;
    pub(crate) const LIST_META_CONTEXT: u32 = 9;
    pub(crate) const SET_META_CONTEXT: u32 = 10;
}

/// Types of option replies.
pub(super) mod reply {
    pub(crate) const ACK: u32 = 1;
    pub(crate) const SERVER: u32 = 2;
    pub(crate) const INFO: u32 = 3;
    pub(crate) const META_CONTEXT: u32 = 4;
    pub(crate) const ERR_UNSUPPORTED: u32 = 0x8000_0001;
    pub(crate) const ERR_INVALID: u32 = 0x8000_0003;
    pub(crate) const ERR_UNKNOWN: u32 = 0x8000_0006;
    pub(crate) const ERR_TOO_BIG: u32 = 0x8000_0009;
}

/// Kinds of information on an export.
pub(super) mod info {
    pub(crate) const EXPORT: u16 = 0;
    pub(crate) const NAME: u16 = 1;
    pub(crate) const BLOCK_SIZE: u16 = 3;
}

/// Transmission flags: what an export can do.
pub(super) mod transmission {
    pub(crate) const HAS_FLAGS: u16 = 1;
    pub(crate) const READ_ONLY: u16 = 1 << 1;
    pub(crate) const FLUSH: u16 = 1 << 2;
    pub(crate) const FUA: u16 = 1 << 3;
    pub(crate) const TRIM: u16 = 1 << 5;
    pub(crate) const WRITE_ZEROES: u16 = 1 << 6;
    pub(crate) const DF: u16 = 1 << 7;
    pub(crate) const MULTI_CONN: u16 = 1 << 8;
    pub(crate) const CACHE: u16 = 1 << 10;
    pub(crate) const FAST_ZERO: u16 = 1 << 11;
}

/// Commands.
pub(super) mod command {
    pub(crate) const READ: u16 = 0;
    pub(crate) const WRITE: u16 = 1;
    pub(crate) const DISCONNECT: u16 = 2;
    pub(crate) const FLUSH: u16 = 3;
    pub(crate) const TRIM: u16 = 4;
    pub(crate) const CACHE: u16 = 5;
    pub(crate) const WRITE_ZEROES: u16 = 6;
    pub(crate) const BLOCK_STATUS: u16 = 7;
}

/// Flags of commands.
pub(super) mod flag {
    pub(crate) const FUA: u16 = 1;
    pub(crate) const REQ_ONE: u16 = 8;
}

/// Errors, which are those of Linux.
pub(super) mod errno {
    pub(crate) const EPERM: u32 = 1;
    pub(crate) const EIO: u32 = 5;
    pub(crate) const EINVAL: u32 = 22;
    pub(crate) const ENOSPC: u32 = 28;
    pub(crate) const EOVERFLOW: u32 = 75;
    pub(crate) const ENOTSUP: u32 = 95;
    pub(crate) const ESHUTDOWN: u32 = 108;
}

/// Types of chunks.
pub(super) mod chunk {
    pub(crate) const NONE: u16 = 0;
    pub(crate) const OFFSET_DATA: u16 = 1;
    pub(crate) const BLOCK_STATUS: u16 = 5;
    pub(crate) const ERROR: u16 = 0x8001;
}

/// Bits of `base:allocation`.
pub(super) mod status {
    pub(crate) const HOLE: u32 = 1;
    pub(crate) const ZERO: u32 = 2;
}

/// Bytes of a request's header.
pub(super) const REQUEST_BYTES: usize = 28;

/// A request's header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Request {
    pub(super) flags: u16,
    pub(super) command: u16,
    pub(super) cookie: u64,
    pub(super) offset: u64,
    pub(super) length: u32,
}

impl Request {
    /// Reads a header; `None` when it is not one.
    pub(super) fn decode(bytes: &[u8; REQUEST_BYTES]) -> Option<Self> {
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
}

/// Takes big-endian numbers off the front of bytes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Reader<'a>(pub(super) &'a [u8]);

impl<'a> Reader<'a> {
    pub(super) fn bytes(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(taken)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.bytes(N)?.try_into().ok()
    }

    pub(super) fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_be_bytes)
    }

    pub(super) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_be_bytes)
    }

    pub(super) fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_be_bytes)
    }

    /// A length and so many bytes of text.
    pub(super) fn text(&mut self) -> Option<&'a str> {
        let len = usize::try_from(self.u32()?).ok()?;
        std::str::from_utf8(self.bytes(len)?).ok()
    }
}

/// An option reply as bytes.
pub(super) fn option_reply(option: u32, kind: u32, data: &[u8]) -> Vec<u8> {
    let len = u32::try_from(data.len()).unwrap_or(u32::MAX);
    let mut out = Vec::with_capacity(20 + data.len());
    out.extend_from_slice(&OPTION_REPLY_MAGIC.to_be_bytes());
    out.extend_from_slice(&option.to_be_bytes());
    out.extend_from_slice(&kind.to_be_bytes());
    out.extend_from_slice(&len.to_be_bytes());
    out.extend_from_slice(data);
    out
}

/// The header of a simple reply.
pub(super) fn simple_reply(cookie: u64, error: u32) -> Vec<u8> {
    let mut out = Vec::with_capacity(16);
    out.extend_from_slice(&SIMPLE_REPLY_MAGIC.to_be_bytes());
    out.extend_from_slice(&error.to_be_bytes());
    out.extend_from_slice(&cookie.to_be_bytes());
    out
}

/// The header of a chunk that ends its reply; `length` bytes follow.
pub(super) fn last_chunk(cookie: u64, kind: u16, length: u32) -> Vec<u8> {
    let mut out = Vec::with_capacity(28);
    out.extend_from_slice(&CHUNK_MAGIC.to_be_bytes());
    out.extend_from_slice(&1_u16.to_be_bytes());
    out.extend_from_slice(&kind.to_be_bytes());
    out.extend_from_slice(&cookie.to_be_bytes());
    out.extend_from_slice(&length.to_be_bytes());
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_read() {
        let mut bytes = [0; REQUEST_BYTES];
        bytes[..4].copy_from_slice(&REQUEST_MAGIC.to_be_bytes());
        bytes[5] = 1;
        bytes[7] = 3;
        bytes[15] = 9;
        bytes[23] = 8;
        bytes[27] = 7;
        let request = Request::decode(&bytes).expect("a request");
        let expected = Request {
            flags: 1,
            command: 3,
            cookie: 9,
            offset: 8,
            length: 7,
        };
        assert_eq!(request, expected);
        bytes[0] = 0;
        assert_eq!(Request::decode(&bytes), None);
    }

    #[test]
    fn short_text_is_refused() {
        assert_eq!(Reader(&[0, 0, 0, 2, b'o', b'k']).text(), Some("ok"));
        assert_eq!(Reader(&[0, 0, 0, 3, b'o', b'k']).text(), None);
        assert_eq!(Reader(&[0xff, 0xff, 0xff, 0xff]).text(), None);
        assert_eq!(Reader(&[0, 0, 0, 1, 0xff]).text(), None);
    }
}
