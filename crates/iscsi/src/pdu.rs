//! Protocol data units as bytes. RFC 7143 section 11.

use std::sync::Arc;

use runtime::IoBuf;

use crate::bytes::{Field as _, be24, put};

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

/// How PDUs are framed on a connection now; asked for before each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Framing {
    /// Headers carry a CRC32C.
    pub header_digest: bool,
    /// Data segments carry a CRC32C.
    pub data_digest: bool,
    /// Bytes of data that one PDU may carry.
    pub data_bytes_max: usize,
}

impl Framing {
    /// Before anybody has logged in: no digests, and little data.
    #[must_use]
    pub fn login() -> Self {
        Self {
            header_digest: false,
            data_digest: false,
            data_bytes_max: LOGIN_BYTES_MAX,
        }
    }

    /// Returns how many bytes follow a header, digests and padding included.
    ///
    /// # Errors
    /// [`Violation::TooLong`].
    pub fn rest(self, bhs: &[u8; BHS_BYTES]) -> Result<usize, Violation> {
        let data = data_len(bhs);
        if data > self.data_bytes_max {
            return Err(Violation::TooLong);
        }
        let mut rest = ahs_len(bhs) + data.next_multiple_of(4);
        if self.header_digest {
            rest += 4;
        }
        if self.data_digest && data > 0 {
            rest += 4;
        }
        Ok(rest)
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
    pub(crate) data: Vec<u8>,
    /// The data segment's digest does not match.
    pub(crate) damaged: bool,
}

impl Pdu {
    /// Takes a PDU apart, checking digests.
    pub(crate) fn read(
        bhs: [u8; BHS_BYTES],
        mut rest: Vec<u8>,
        framing: Framing,
    ) -> Result<Self, Violation> {
        if rest.len() != framing.rest(&bhs)? {
            return Err(Violation::Short);
        }
        // Additional header segments are skipped: none of theirs is for commands known here.
        let mut head = ahs_len(&bhs);
        if framing.header_digest {
            let sum = crc32c::crc32c_append(crc32c::crc32c(&bhs), rest.part(0, head));
            if rest.part(head, 4) != sum.to_le_bytes() {
                return Err(Violation::HeaderDigest);
            }
            head += 4;
        }
        let len = data_len(&bhs);
        let padded = len.next_multiple_of(4);
        let damaged = framing.data_digest
            && len > 0
            && rest.part(head + padded, 4) != crc32c::crc32c(rest.part(head, padded)).to_le_bytes();
        // The usual PDU has nothing before its data: then its bytes stay where they are.
        if head > 0 {
            rest.drain(..head.min(rest.len()));
        }
        rest.truncate(len);
        Ok(Self {
            bhs,
            data: rest,
            damaged,
        })
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
    pub(crate) fn seal(mut self, framing: Framing) -> Out {
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
    fn what_is_sealed_can_be_read() {
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
                        .seal(framing);
                    let mut bytes = out.header.clone();
                    for piece in &out.pieces {
                        bytes.extend_from_slice(piece);
                    }
                    bytes.extend_from_slice(&out.tail);
                    let bhs: [u8; BHS_BYTES] = bytes.part(0, BHS_BYTES).try_into().expect("48");
                    let rest = bytes.part(BHS_BYTES, usize::MAX).to_vec();
                    assert_eq!(framing.rest(&bhs), Ok(rest.len()));
                    let pdu = Pdu::read(bhs, rest.clone(), framing).expect("reads");
                    assert_eq!(pdu.data, vec![9; len]);
                    assert!(!pdu.damaged);
                    if data_digest && len > 0 {
                        let mut worse = rest;
                        if let Some(last) = worse.last_mut() {
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
        assert_eq!(Framing::login().rest(&bhs), Err(Violation::TooLong));
        let bhs = [0; BHS_BYTES];
        let short = Pdu::read(bhs, vec![1], Framing::login());
        assert!(matches!(short, Err(Violation::Short)));
    }
}
