//! The intent log: its header in the objset, its blocks and its records.
//!
//! OpenZFS: include/sys/zil.h.

use crate::bytes::{need, put_bytes, put_u64, slice_at, u64_at};
use crate::{BlockPointer, Result};

/// Bits of [`ZilHeader::flags`].
pub mod zil_flags {
    pub const REPLAY_NEEDED: u64 = 1;
    pub const CLAIM_LR_SEQ_VALID: u64 = 2;
}

/// The intent log header inside an objset block; all zero when there is no log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ZilHeader {
    /// Txg in which the log was claimed; 0 when it was not.
    pub claim_txg: u64,
    /// Highest record sequence number already replayed.
    pub replay_seq: u64,
    /// First block of the chain; a hole when there is no log.
    pub log: BlockPointer,
    /// Last claimed block's sequence number.
    pub claim_blk_seq: u64,
    /// Bits of [`zil_flags`].
    pub flags: u64,
    /// Last claimed record's sequence number.
    pub claim_lr_seq: u64,
}

impl ZilHeader {
    /// Encoded bytes.
    pub const SIZE: usize = 192;

    /// Decodes the header.
    ///
    /// # Errors
    /// Only when `buf` is too short.
    pub fn decode(buf: &[u8]) -> Result<Self> {
        need(buf, Self::SIZE, "intent log header")?;
        Ok(Self {
            claim_txg: u64_at(buf, 0),
            replay_seq: u64_at(buf, 8),
            log: BlockPointer::decode(slice_at(buf, 16, BlockPointer::SIZE))?,
            claim_blk_seq: u64_at(buf, 144),
            flags: u64_at(buf, 152),
            claim_lr_seq: u64_at(buf, 160),
        })
    }

    /// Encodes the header.
    #[must_use]
    pub fn encode(&self) -> [u8; Self::SIZE] {
        let mut out = [0; Self::SIZE];
        put_u64(&mut out, 0, self.claim_txg);
        put_u64(&mut out, 8, self.replay_seq);
        put_bytes(&mut out, 16, &self.log.encode());
        put_u64(&mut out, 144, self.claim_blk_seq);
        put_u64(&mut out, 152, self.flags);
        put_u64(&mut out, 160, self.claim_lr_seq);
        out
    }

    /// True when no log exists.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.log.is_hole()
    }
}
