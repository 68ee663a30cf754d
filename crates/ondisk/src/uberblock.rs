//! Uberblocks: the root of one synced transaction group, written to a ring in every label.
//!
//! OpenZFS: include/sys/uberblock_impl.h. The embedded checksum at the end of a slot is `label`'s business.

use std::cmp::Ordering;

use crate::bytes::{need, put_bytes, put_u64, slice_at, u64_at};
use crate::{BlockPointer, DecodeError, Result, SPA_VERSION_FEATURES, Txg};

const MAGIC: u64 = 0x00ba_b10c;
const MMP_MAGIC: u64 = 0xa11c_ea11;

/// Progress of a raidz expansion, as packed in the uberblock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RaidzReflow(pub u64);

impl RaidzReflow {
    /// Bytes already moved.
    #[must_use]
    pub const fn offset(self) -> u64 {
        (self.0 & ((1 << 55) - 1)) << 9
    }

    /// State of the scratch area.
    #[must_use]
    pub const fn scratch_state(self) -> u64 {
        self.0 >> 55
    }
}

/// An uberblock, decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Uberblock {
    /// Pool version: 5000, or 1..=28 for pools before feature flags.
    pub version: u64,
    pub txg: Txg,
    /// Sum, modulo 2^64, of the guids of every vdev in the tree including the root.
    pub guid_sum: u64,
    /// Seconds since 1970.
    pub timestamp: u64,
    /// The meta object set.
    pub rootbp: BlockPointer,
    pub software_version: u64,
    /// The multihost fields are meaningful.
    pub mmp_valid: bool,
    /// Nanoseconds between heartbeats; 0 when multihost is off.
    pub mmp_delay: u64,
    /// Packed intervals and sequence number; 0 when multihost is off.
    pub mmp_config: u64,
    /// Not 0 when this is a pool checkpoint.
    pub checkpoint_txg: Txg,
    pub raidz_reflow: RaidzReflow,
}

impl Uberblock {
    /// Bytes of the structure itself; the rest of a slot is zero but for the checksum.
    pub const SIZE: usize = 216;

    /// A new uberblock as OpenZFS writes it with multihost off.
    #[must_use]
    pub const fn new(txg: Txg, guid_sum: u64, timestamp: u64, rootbp: BlockPointer) -> Self {
        Self {
            version: SPA_VERSION_FEATURES,
            txg,
            guid_sum,
            timestamp,
            rootbp,
            software_version: SPA_VERSION_FEATURES,
            mmp_valid: true,
            mmp_delay: 0,
            mmp_config: 0,
            checkpoint_txg: Txg(0),
            raidz_reflow: RaidzReflow(0),
        }
    }

    /// Decodes the start of a ring slot, of either byte order. The slot's checksum is not looked at.
    ///
    /// # Errors
    /// [`DecodeError`] when the slot is too short or has no uberblock magic (an unused slot).
    pub fn decode(slot: &[u8]) -> Result<Self> {
        need(slot, Self::SIZE, "uberblock")?;
        let swapped;
        let buf = match u64_at(slot, 0) {
            MAGIC => slot,
            m if m == MAGIC.swap_bytes() => {
                swapped = swap_words(slice_at(slot, 0, Self::SIZE));
                swapped.as_slice()
            }
            _ => return Err(DecodeError::new("uberblock magic", 0)),
        };
        let mmp_valid = u64_at(buf, 176) == MMP_MAGIC;
        Ok(Self {
            version: u64_at(buf, 8),
            txg: Txg(u64_at(buf, 16)),
            guid_sum: u64_at(buf, 24),
            timestamp: u64_at(buf, 32),
            rootbp: BlockPointer::decode(slice_at(buf, 40, BlockPointer::SIZE))?,
            software_version: u64_at(buf, 168),
            mmp_valid,
            mmp_delay: u64_at(buf, 184),
            mmp_config: u64_at(buf, 192),
            checkpoint_txg: Txg(u64_at(buf, 200)),
            raidz_reflow: RaidzReflow(u64_at(buf, 208)),
        })
    }

    /// Encodes into a ring slot, zeroing the rest of it. The checksum is still to be sealed.
    pub fn encode(&self, slot: &mut [u8]) {
        slot.fill(0);
        put_u64(slot, 0, MAGIC);
        put_u64(slot, 8, self.version);
        put_u64(slot, 16, self.txg.0);
        put_u64(slot, 24, self.guid_sum);
        put_u64(slot, 32, self.timestamp);
        put_bytes(slot, 40, &self.rootbp.encode());
        put_u64(slot, 168, self.software_version);
        put_u64(slot, 176, if self.mmp_valid { MMP_MAGIC } else { 0 });
        put_u64(slot, 184, self.mmp_delay);
        put_u64(slot, 192, self.mmp_config);
        put_u64(slot, 200, self.checkpoint_txg.0);
        put_u64(slot, 208, self.raidz_reflow.0);
    }

    /// Heartbeat sequence number, when the multihost fields carry one.
    #[must_use]
    pub const fn mmp_sequence(&self) -> u64 {
        if self.mmp_valid && self.mmp_config & 2 != 0 {
            (self.mmp_config >> 32) & 0xffff
        } else {
            0
        }
    }

    /// Orders by how current an uberblock is: txg, then time, then heartbeat.
    #[must_use]
    pub fn cmp_currency(&self, other: &Self) -> Ordering {
        let key = |u: &Self| (u.txg, u.timestamp, u.mmp_sequence());
        key(self).cmp(&key(other))
    }
}

fn swap_words(buf: &[u8]) -> Vec<u8> {
    crate::bytes::u64s(buf).flat_map(u64::to_be_bytes).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encodes_and_decodes_in_both_byte_orders() {
        let ub = Uberblock::new(
            Txg(12),
            99,
            1_700_000_000,
            BlockPointer::from_words([3; 16]),
        );
        let mut slot = vec![0xee; 1024];
        ub.encode(&mut slot);
        assert_eq!(Uberblock::decode(&slot).unwrap(), ub);
        assert_eq!(Uberblock::decode(&swap_words(&slot)).unwrap(), ub);
        assert!(Uberblock::decode(&[0; 1024]).is_err());
        assert!(Uberblock::decode(&slot[..200]).is_err());
    }
}
