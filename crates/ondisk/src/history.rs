//! Pool history: a ring of records behind a fixed beginning, in one object.
//!
//! A record is a little-endian `u64` length and a packed nvlist in native encoding. Offsets in the bonus are logical:
//! they only grow, and wrap around the part of the object after the pool's creation record.
//! OpenZFS: include/sys/spa_impl.h, spa_history_phys_t.

use crate::bytes::{index, u64_at};
use crate::words::word_struct;
use crate::{DecodeError, NvList, Result};

word_struct! {
    /// Bonus of the history object.
    pub struct HistoryPhys[40] as "history header" {
        /// Bytes at the beginning that are never overwritten.
        pool_create_len @ 0,
        /// Bytes of the object.
        phys_max_off @ 8,
        /// Logical offset of the oldest record.
        bof @ 16,
        /// Logical offset after the newest record.
        eof @ 24,
        /// Records overwritten.
        records_lost @ 32,
    }
}

impl HistoryPhys {
    /// Bytes a new pool of `pool_size` bytes keeps: 0.1 % of it, 128 KiB to 1 GiB.
    #[must_use]
    pub fn size_for(pool_size: u64) -> u64 {
        (pool_size / 1000).clamp(128 << 10, 1 << 30)
    }

    /// Byte in the object of a logical offset; `None` when the header makes no sense.
    #[must_use]
    pub const fn physical(&self, logical: u64) -> Option<u64> {
        if logical < self.pool_create_len {
            return Some(logical);
        }
        match self.phys_max_off.checked_sub(self.pool_create_len) {
            None | Some(0) => None,
            Some(ring) => Some((logical - self.pool_create_len) % ring + self.pool_create_len),
        }
    }
}

/// Keys of history records.
// OpenZFS: include/sys/fs/zfs.h, ZPOOL_HIST_TIME and those after it
pub mod keys {
    pub const TIME: &str = "history time";
    pub const HOST: &str = "history hostname";
    pub const ZONE: &str = "history zone";
    pub const WHO: &str = "history who";
    pub const COMMAND: &str = "history command";
    pub const TXG: &str = "history txg";
    pub const INTERNAL_EVENT: &str = "history internal event";
    pub const INTERNAL_NAME: &str = "internal_name";
    pub const INTERNAL_STR: &str = "history internal str";
    pub const DATASET_NAME: &str = "dsname";
    pub const DATASET_ID: &str = "dsid";
    pub const IOCTL: &str = "ioctl";
    pub const INPUT: &str = "in_nvl";
    pub const OUTPUT: &str = "out_nvl";
    pub const OUTPUT_SIZE: &str = "out_size";
    pub const ERRNO: &str = "errno";
    pub const ELAPSED_NS: &str = "elapsed_ns";
}

/// Bytes of a record before its list.
pub const RECORD_HEADER: u64 = 8;

/// How many bytes the packed list of a record has, from the record's header.
#[must_use]
pub fn packed_len(header: &[u8]) -> u64 {
    u64_at(header, 0)
}

/// Encodes one record.
#[must_use]
pub fn encode_record(record: &NvList) -> Vec<u8> {
    let packed = record.encode_native();
    let mut out = Vec::with_capacity(8 + packed.len());
    out.extend_from_slice(&(packed.len() as u64).to_le_bytes());
    out.extend_from_slice(&packed);
    out
}

/// Decodes the record at the start of `buf`, and returns how many bytes it took.
///
/// # Errors
/// [`DecodeError`] when it ends early or is not a list.
pub fn decode_record(buf: &[u8]) -> Result<(NvList, usize)> {
    crate::bytes::need(buf, 8, "history record")?;
    let len = index(u64_at(buf, 0));
    let body = len
        .checked_add(8)
        .and_then(|end| buf.get(8..end))
        .ok_or(DecodeError::new("history record", 0))?;
    let list = NvList::decode(body).map_err(|e| DecodeError::new(e.what, e.offset + 8))?;
    Ok((list, 8 + len))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_and_ring() {
        let r = NvList::new()
            .with(keys::TIME, 5u64)
            .with(keys::COMMAND, "zpool create tank x");
        let bytes = encode_record(&r);
        assert_eq!(decode_record(&bytes).unwrap(), (r, bytes.len()));
        assert!(decode_record(&bytes[..20]).is_err());
        assert_eq!(packed_len(&bytes) + RECORD_HEADER, bytes.len() as u64);
        let h = HistoryPhys {
            pool_create_len: 100,
            phys_max_off: 300,
            ..HistoryPhys::default()
        };
        assert_eq!(
            [h.physical(50), h.physical(299), h.physical(300)],
            [Some(50), Some(299), Some(100)]
        );
        assert_eq!(
            HistoryPhys {
                pool_create_len: 5,
                ..HistoryPhys::default()
            }
            .physical(9),
            None
        );
    }
}
