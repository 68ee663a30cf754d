//! Uberblocks: the root of one synced transaction group, written to a ring in every label.
//!
//! OpenZFS: include/sys/uberblock_impl.h. The embedded checksum at the end of a slot is `label`'s business.

use std::cmp::Ordering;
use std::time::Duration;

use crate::bytes::{need, put_bytes, put_u64, slice_at, u64_at};
use crate::{BlockPointer, DecodeError, Result, SPA_VERSION_FEATURES, Txg};

const MAGIC: u64 = 0x00ba_b10c;
const MMP_MAGIC: u64 = 0xa11c_ea11;

/// Progress of a raidz expansion, as packed in the uberblock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RaidzReflow(pub u64);

/// What the boot areas of an expanding raidz are used for.
// OpenZFS: include/sys/uberblock_impl.h, raidz_reflow_scratch_state_t
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReflowState {
    /// They hold the first rows, whose new places may be half written (`RRSS_SCRATCH_VALID`).
    ScratchValid,
    /// They are not used any more (`RRSS_SCRATCH_INVALID_SYNCED_REFLOW`).
    ReflowSynced,
}

impl RaidzReflow {
    /// Packs a state and the bytes already moved, a multiple of 512.
    #[must_use]
    pub const fn new(state: ReflowState, offset: u64) -> Self {
        let state = match state {
            ReflowState::ScratchValid => 1,
            ReflowState::ReflowSynced => 4,
        };
        Self(state << 55 | (offset >> 9 & ((1 << 55) - 1)))
    }

    /// Bytes already moved.
    #[must_use]
    pub const fn offset(self) -> u64 {
        (self.0 & ((1 << 55) - 1)) << 9
    }

    /// Whether the bytes already moved are to be read from the scratch area: their new places are being overwritten.
    // OpenZFS: include/sys/uberblock_impl.h, RRSS_SCRATCH_VALID; the other states say what to do next.
    #[must_use]
    pub const fn is_in_scratch(self) -> bool {
        self.0 >> 55 == 1
    }
}

/// Bits of [`Uberblock::mmp_config`]: which of its parts mean something.
const MMP_INTERVAL_VALID: u64 = 1;
/// See [`MMP_INTERVAL_VALID`].
const MMP_SEQUENCE_VALID: u64 = 2;
/// See [`MMP_INTERVAL_VALID`].
const MMP_FAILS_VALID: u64 = 4;

/// What a host that uses a pool with `multihost=on` tells the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Heartbeat {
    /// Average time between heartbeats; not 0.
    pub delay_nanoseconds: u64,
    /// Time in which every leaf gets one, below 2^24.
    pub interval_ms: u32,
    /// After so many intervals without one the host writes no more; 0: it never stops.
    pub fail_intervals: u16,
    /// Number within the second; 0 for the uberblock of a txg.
    pub sequence: u16,
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

    /// Encodes into a ring slot, zeroing the rest of it. The checksum is still to be set.
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
        if self.mmp_valid && self.mmp_config & MMP_SEQUENCE_VALID != 0 {
            (self.mmp_config >> 32) & 0xffff
        } else {
            0
        }
    }

    /// Whether the pool was in use with `multihost=on` when this was written.
    #[must_use]
    pub const fn is_multihost(&self) -> bool {
        self.mmp_valid && self.mmp_delay != 0
    }

    /// Time in which the writer gives every leaf a heartbeat, when it said.
    #[must_use]
    pub const fn mmp_interval(&self) -> Option<Duration> {
        if self.mmp_valid && self.mmp_config & MMP_INTERVAL_VALID != 0 {
            Some(Duration::from_millis((self.mmp_config >> 8) & 0xff_ffff))
        } else {
            None
        }
    }

    /// Intervals without a heartbeat after which the writer stops writing, 0 for never, when it said.
    #[must_use]
    pub const fn mmp_fail_intervals(&self) -> Option<u16> {
        if self.mmp_valid && self.mmp_config & MMP_FAILS_VALID != 0 {
            #[allow(clippy::cast_possible_truncation, reason = "the upper 16 bits")]
            Some((self.mmp_config >> 48) as u16)
        } else {
            None
        }
    }

    /// Says that the pool is in use with `multihost=on`.
    pub fn set_heartbeat(&mut self, heartbeat: &Heartbeat) {
        self.mmp_valid = true;
        self.mmp_delay = heartbeat.delay_nanoseconds;
        self.mmp_config = MMP_INTERVAL_VALID
            | MMP_SEQUENCE_VALID
            | MMP_FAILS_VALID
            | u64::from(heartbeat.interval_ms & 0xff_ffff) << 8
            | u64::from(heartbeat.sequence) << 32
            | u64::from(heartbeat.fail_intervals) << 48;
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
    fn heartbeats_are_packed_as_zdb_unpacks_them() {
        let mut ub = Uberblock::new(Txg(12), 99, 1, BlockPointer::from_words([3; 16]));
        assert!(!ub.is_multihost());
        assert_eq!((ub.mmp_interval(), ub.mmp_fail_intervals()), (None, None));
        ub.set_heartbeat(&Heartbeat {
            delay_nanoseconds: 5,
            interval_ms: 1000,
            fail_intervals: 10,
            sequence: 3,
        });
        assert_eq!(ub.mmp_config, 0x000a_0003_0003_e807);
        assert!(ub.is_multihost());
        assert_eq!(ub.mmp_sequence(), 3);
        assert_eq!(ub.mmp_interval(), Some(Duration::from_secs(1)));
        assert_eq!(ub.mmp_fail_intervals(), Some(10));
    }

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
