//! Protocol data units as bytes. RFC 7143 section 11.

use std::sync::Arc;

use runtime::IoBuf;

use crate::bytes::{Field as _, be24, put};
use crate::payload::Payload;

/// Bytes of a basic header segment.
pub const BHS_BYTES: usize = 48;
/// Bytes of data that one PDU may carry to us: our MaxRecvDataSegmentLength.
pub const DATA_BYTES_MAX: usize = 256 << 10;
/// The same before a login is complete. RFC 7143 section 13.12 has 8192 as the default that holds then; some send more.
const LOGIN_BYTES_MAX: usize = 16 << 10;
/// Task tag that names no task.
pub(crate) const NO_TAG: u32 = 0xffff_ffff;

/// Opcodes of PDUs.
pub(crate) mod opcode {
    pub(crate) const NOP_OUT: u8 = 0x00;
    pub(crate) const COMMAND: u8 = 0x01;
    pub(crate) const TASK_MANAGEMENT: u8 = 0x02;
    pub(crate) const LOGIN: u8 = 0x03;
    pub(crate) const TEXT: u8 = 0x04;
    pub(crate) const DATA_OUT: u8 = 0x05;
    pub(crate) const LOGOUT: u8 = 0x06;
    pub(crate) const SNACK: u8 = 0x10;
    pub(crate) const NOP_IN: u8 = 0x20;
    pub(crate) const RESPONSE: u8 = 0x21;
    pub(crate) const TASK_MANAGEMENT_RESPONSE: u8 = 0x22;
    pub(crate) const LOGIN_RESPONSE: u8 = 0x23;
    pub(crate) const TEXT_RESPONSE: u8 = 0x24;
    pub(crate) const DATA_IN: u8 = 0x25;
    pub(crate) const LOGOUT_RESPONSE: u8 = 0x26;
    pub(crate) const R2T: u8 = 0x31;
    pub(crate) const ASYNC: u8 = 0x32;
    pub(crate) const REJECT: u8 = 0x3f;
}

/// The final bit of byte 1.
pub(crate) const FINAL: u8 = 0x80;

/// Why the bytes of a connection make no sense: the connection ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// More data than was agreed on.
    #[error("a data segment longer than was agreed on")]
    TooLong,
    /// A digest does not match.
    #[error("a header digest does not match")]
    HeaderDigest,
    /// A PDU shorter than its header says.
    #[error("a PDU shorter than its header says")]
    Short,
}

/// How PDUs are framed on a connection now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Framing {
    /// Headers carry a CRC32C.
    pub(crate) header_digest: bool,
    /// Data segments carry a CRC32C.
    pub(crate) data_digest: bool,
    /// Bytes of data that one PDU may carry.
    pub(crate) data_bytes_max: usize,
}

/// What follows a header, by its length: asked for before each PDU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Bytes of additional header segments and the header's digest.
    pub head: usize,
    /// Bytes of data.
    pub data: usize,
    /// Bytes of padding and the data's digest.
    pub tail: usize,
    /// Bytes of the first piece that the data is best read into: up to a block of the volume.
    pub first: usize,
    /// Bytes of each further piece.
    pub each: usize,
}

impl Shape {
    /// Returns the lengths of the pieces that the data is best read into, in order.
    pub fn pieces(&self) -> impl Iterator<Item = usize> + use<> {
        let (each, mut next, mut left) = (self.each.max(1), self.first.max(1), self.data);
        std::iter::from_fn(move || {
            let len = next.min(left);
            left -= len;
            next = each;
            (len > 0).then_some(len)
        })
    }

    /// Cuts bytes into what follows the header; `None` when they are not as many.
    pub(crate) fn cut(&self, bytes: &[u8]) -> Option<Rest> {
        let whole = self.head + self.data + self.tail;
        if bytes.len() != whole {
            return None;
        }
        let mut at = self.head;
        let piece = |len| {
            let piece = IoBuf::copy_from(bytes.part(at, len));
            at += len;
            piece
        };
        Some(Rest {
            head: bytes.part(0, self.head).to_vec(),
            data: self.pieces().map(piece).collect(),
            tail: bytes.part(self.head + self.data, self.tail).to_vec(),
        })
    }
}

/// What has followed a header.
#[derive(Debug, Clone, Default)]
pub struct Rest {
    /// Additional header segments and the header's digest.
    pub head: Vec<u8>,
    /// The data, in pieces of any lengths.
    pub data: Vec<IoBuf>,
    /// Padding and the data's digest.
    pub tail: Vec<u8>,
}

impl Framing {
    /// Before the login: no digests, and little data.
    pub(crate) fn login() -> Self {
        Self {
            header_digest: false,
            data_digest: false,
            data_bytes_max: LOGIN_BYTES_MAX,
        }
    }

    /// Returns what follows a header, its data in one piece.
    ///
    /// # Errors
    /// [`Violation::TooLong`].
    pub(crate) fn shape(self, bhs: &[u8; BHS_BYTES]) -> Result<Shape, Violation> {
        let data = data_len(bhs);
        if data > self.data_bytes_max {
            return Err(Violation::TooLong);
        }
        let header_digest = if self.header_digest { 4 } else { 0 };
        let data_digest = if self.data_digest && data > 0 { 4 } else { 0 };
        Ok(Shape {
            head: ahs_len(bhs) + header_digest,
            data,
            tail: data.next_multiple_of(4) - data + data_digest,
            first: data,
            each: data,
        })
    }
}

fn ahs_len(bhs: &[u8; BHS_BYTES]) -> usize {
    usize::from(bhs[4]) * 4
}

fn data_len(bhs: &[u8; BHS_BYTES]) -> usize {
    usize::try_from(bhs.u24_at(5)).unwrap_or(usize::MAX)
}

/// A PDU that came in.
#[derive(Debug, Clone)]
pub(crate) struct Pdu {
    pub(crate) bhs: [u8; BHS_BYTES],
    pub(crate) data: Payload,
    /// The data segment's digest does not match.
    pub(crate) damaged: bool,
}

impl Pdu {
    /// Puts a PDU together, checking digests.
    pub(crate) fn read(
        bhs: [u8; BHS_BYTES],
        rest: Rest,
        framing: Framing,
    ) -> Result<Self, Violation> {
        let shape = framing.shape(&bhs)?;
        let Rest { head, data, tail } = rest;
        let data = Payload::new(data);
        if (head.len(), data.len(), tail.len()) != (shape.head, shape.data, shape.tail) {
            return Err(Violation::Short);
        }
        // Additional header segments are skipped: none of theirs is for commands known here.
        if framing.header_digest {
            let segments = ahs_len(&bhs);
            let sum = crc32c::crc32c_append(crc32c::crc32c(&bhs), head.part(0, segments));
            if head.part(segments, 4) != sum.to_le_bytes() {
                return Err(Violation::HeaderDigest);
            }
        }
        let damaged = framing.data_digest && shape.data > 0 && {
            let padding = shape.tail - 4;
            let sum = crc32c::crc32c_append(data.crc32c(), tail.part(0, padding));
            tail.part(padding, 4) != sum.to_le_bytes()
        };
        Ok(Self { bhs, data, damaged })
    }

    pub(crate) fn opcode(&self) -> u8 {
        self.bhs[0] & 0x3f
    }

    pub(crate) fn immediate(&self) -> bool {
        self.bhs[0] & 0x40 != 0
    }

    pub(crate) fn flags(&self) -> u8 {
        self.bhs[1]
    }

    pub(crate) fn lun(&self) -> u64 {
        self.bhs.u64_at(8)
    }

    pub(crate) fn itt(&self) -> u32 {
        self.bhs.u32_at(16)
    }

    pub(crate) fn ttt(&self) -> u32 {
        self.bhs.u32_at(20)
    }

    pub(crate) fn cmd_sn(&self) -> u32 {
        self.bhs.u32_at(24)
    }
}

/// A PDU on its way out, ready for the wire: the pieces follow each other.
#[derive(Debug, Clone, Default)]
pub struct Out {
    /// Header, with its digest if there is one.
    pub header: Vec<u8>,
    /// The data segment.
    pub pieces: Vec<IoBuf>,
    /// Padding and the data's digest.
    pub tail: Vec<u8>,
    /// What is held until the PDU has been written, so that memory is accounted for.
    pub held: Option<Arc<dyn Held>>,
}

/// Something to be let go of when a PDU has left.
pub trait Held: Send + Sync + std::fmt::Debug {}

/// A PDU being made: its header without numbers that are given when it is sent.
#[derive(Debug)]
pub(crate) struct Draft {
    pub(crate) bhs: [u8; BHS_BYTES],
    pub(crate) pieces: Vec<IoBuf>,
    pub(crate) held: Option<Arc<dyn Held>>,
    /// It takes a status number.
    pub(crate) counts: bool,
}

impl Draft {
    pub(crate) fn new(opcode: u8, flags: u8, itt: u32) -> Self {
        let mut bhs = [0; BHS_BYTES];
        bhs[0] = opcode;
        bhs[1] = flags;
        put(&mut bhs, 16, &itt.to_be_bytes());
        Self {
            bhs,
            pieces: Vec::new(),
            held: None,
            counts: true,
        }
    }

    pub(crate) fn word(mut self, at: usize, value: u32) -> Self {
        put(&mut self.bhs, at, &value.to_be_bytes());
        self
    }

    pub(crate) fn byte(mut self, at: usize, value: u8) -> Self {
        put(&mut self.bhs, at, &[value]);
        self
    }

    pub(crate) fn lun(mut self, lun: u64) -> Self {
        put(&mut self.bhs, 8, &lun.to_be_bytes());
        self
    }

    pub(crate) fn data(mut self, data: Vec<u8>) -> Self {
        if !data.is_empty() {
            self.pieces = vec![IoBuf::from(data)];
        }
        self
    }

    pub(crate) fn uncounted(mut self) -> Self {
        self.counts = false;
        self
    }

    /// Gives the header its length and digests. The numbers are in it already.
    pub(crate) fn finish(mut self, framing: Framing) -> Out {
        let len: usize = self.pieces.iter().map(|piece| piece.len()).sum();
        put(&mut self.bhs, 5, &be24(len));
        let mut header = self.bhs.to_vec();
        if framing.header_digest {
            header.extend_from_slice(&crc32c::crc32c(&self.bhs).to_le_bytes());
        }
        let mut tail = vec![0; len.next_multiple_of(4) - len];
        if framing.data_digest && len > 0 {
            let mut sum = 0;
            for piece in &self.pieces {
                sum = crc32c::crc32c_append(sum, piece);
            }
            sum = crc32c::crc32c_append(sum, &tail);
            tail.extend_from_slice(&sum.to_le_bytes());
        }
        Out {
            header,
            pieces: self.pieces,
            tail,
            held: self.held,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_finished_can_be_read() {
        for header_digest in [false, true] {
            for data_digest in [false, true] {
                let framing = Framing {
                    header_digest,
                    data_digest,
                    data_bytes_max: DATA_BYTES_MAX,
                };
                for len in [0, 1, 4, 7] {
                    let out = Draft::new(opcode::NOP_IN, FINAL, 7)
                        .data(vec![9; len])
                        .finish(framing);
                    let mut bytes = out.header.clone();
                    for piece in &out.pieces {
                        bytes.extend_from_slice(piece);
                    }
                    bytes.extend_from_slice(&out.tail);
                    let bhs: [u8; BHS_BYTES] = bytes.part(0, BHS_BYTES).try_into().expect("48");
                    let mut shape = framing.shape(&bhs).expect("short enough");
                    (shape.first, shape.each) = (3, 2);
                    let rest = shape.cut(bytes.part(BHS_BYTES, usize::MAX));
                    let rest = rest.expect("as long as that");
                    let pdu = Pdu::read(bhs, rest.clone(), framing).expect("reads");
                    assert_eq!(*pdu.data.bytes(), *vec![9; len]);
                    assert!(!pdu.damaged);
                    if data_digest && len > 0 {
                        let mut worse = rest;
                        if let Some(last) = worse.tail.last_mut() {
                            *last ^= 1;
                        }
                        assert!(Pdu::read(bhs, worse, framing).expect("reads").damaged);
                    }
                }
            }
        }
    }

    #[test]
    fn lengths_are_bounded() {
        let mut bhs = [0; BHS_BYTES];
        bhs[5] = 0xff;
        assert_eq!(Framing::login().shape(&bhs), Err(Violation::TooLong));
        let bhs = [0; BHS_BYTES];
        let more = Rest {
            head: vec![1],
            ..Rest::default()
        };
        let short = Pdu::read(bhs, more, Framing::login());
        assert!(matches!(short, Err(Violation::Short)));
    }
}
