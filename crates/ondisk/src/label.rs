//! Vdev labels: where they are on a device, what is where in them, and their embedded checksums.
//!
//! ```text
//! device   | L0 256K | L1 256K | boot area to 4M | allocatable ... | L2 256K | L3 256K |
//! label    0 pad 8K | 8K boot env | 16K nvlist 112K | 128K uberblock ring 128K
//! ```
//! Label-type blocks (nvlist, boot env, each ring slot, gang headers) carry a SHA-256 in their last 40 bytes; see
//! [`set_checksum`]. The hash function itself is the caller's: this crate does not depend on `codec`.

use crate::bytes::{put_bytes, put_u64, slice_at, u64_at};

/// Bytes of one label.
pub const LABEL_SIZE: u64 = 256 << 10;
/// Labels per device.
pub const LABEL_COUNT: usize = 4;
/// Device byte of vdev offset 0: the two front labels and the boot area.
pub const DATA_START: u64 = 4 << 20;
/// Bytes of the two labels at the end.
pub const END_RESERVED: u64 = 2 * LABEL_SIZE;
/// Smallest usable device.
pub const MIN_DEVICE_SIZE: u64 = 64 << 20;

/// Boot environment block: offset in the label and bytes.
pub const BOOT_ENV: (u64, usize) = (8 << 10, 8 << 10);
/// Packed nvlist block with its checksum: offset in the label and bytes.
pub const NVLIST: (u64, usize) = (16 << 10, 112 << 10);
/// Most bytes of packed nvlist in a label.
pub const NVLIST_MAX: usize = NVLIST.1 - ECK_SIZE;
/// Uberblock ring: offset in the label and bytes.
pub const RING: (u64, usize) = (128 << 10, 128 << 10);

/// Bytes of the embedded checksum at the end of a label-type block.
pub const ECK_SIZE: usize = 40;
/// First word of an embedded checksum.
pub const ECK_MAGIC: u64 = 0x0210_da7a_b10c_7a11;

/// Pool states in a label.
pub mod pool_state {
    pub const ACTIVE: u64 = 0;
    pub const EXPORTED: u64 = 1;
    pub const DESTROYED: u64 = 2;
    pub const SPARE: u64 = 3;
    pub const L2CACHE: u64 = 4;
}

/// Device bytes that count: the size rounded down to whole labels.
#[must_use]
pub const fn usable_size(device_size: u64) -> u64 {
    device_size & !(LABEL_SIZE - 1)
}

/// Allocatable bytes of a leaf on a device of this size; 0 when it is too small for labels.
#[must_use]
pub const fn leaf_asize(device_size: u64) -> u64 {
    usable_size(device_size).saturating_sub(DATA_START + END_RESERVED)
}

/// Device byte where label `which` (0..4) starts, or `None` when the device cannot hold it.
#[must_use]
pub const fn label_offset(device_size: u64, which: usize) -> Option<u64> {
    let size = usable_size(device_size);
    if size < 4 * LABEL_SIZE {
        return None;
    }
    match which {
        0 => Some(0),
        1 => Some(LABEL_SIZE),
        2 => Some(size - 2 * LABEL_SIZE),
        3 => Some(size - LABEL_SIZE),
        _ => None,
    }
}

/// Bytes of one uberblock slot on a top-level vdev with this ashift.
#[must_use]
pub fn uberblock_slot_size(ashift: u64) -> usize {
    1 << ashift.clamp(10, 13)
}

/// Slots in the uberblock ring.
#[must_use]
pub fn uberblock_slots(ashift: u64) -> usize {
    RING.1 / uberblock_slot_size(ashift)
}

/// Slot that txg is written to (`multihost` reserves the last one for heartbeats).
#[must_use]
pub fn uberblock_slot_for(txg: u64, ashift: u64, multihost: bool) -> usize {
    let slots = uberblock_slots(ashift) as u64 - u64::from(multihost);
    crate::bytes::index(txg % slots)
}

/// The verifier of a label block: only its absolute device offset.
#[must_use]
pub const fn label_verifier(device_offset: u64) -> [u64; 4] {
    [device_offset, 0, 0, 0]
}

/// The verifier of a gang header: place of the first copy and birth.
#[must_use]
pub const fn gang_verifier(vdev: u32, offset: u64, birth: u64) -> [u64; 4] {
    [vdev as u64, offset, birth, 0]
}

/// Writes the embedded checksum into the last 40 bytes of `block`.
///
/// `sha256` returns the digest as four big-endian words (the form block pointers carry). Does nothing when the block
/// is shorter than the checksum.
pub fn set_checksum(block: &mut [u8], verifier: [u64; 4], sha256: impl Fn(&[u8]) -> [u64; 4]) {
    let Some(at) = block.len().checked_sub(ECK_SIZE) else {
        return;
    };
    put_u64(block, at, ECK_MAGIC);
    put_words(block, at + 8, verifier);
    let sum = sha256(block);
    put_words(block, at + 8, sum);
}

/// True when `block` ends in a right embedded checksum for this verifier.
#[must_use]
pub fn verify(block: &[u8], verifier: [u64; 4], sha256: impl Fn(&[u8]) -> [u64; 4]) -> bool {
    let Some(at) = block.len().checked_sub(ECK_SIZE) else {
        return false;
    };
    let magic = u64_at(block, at);
    let swapped = magic == ECK_MAGIC.swap_bytes();
    if magic != ECK_MAGIC && !swapped {
        return false;
    }
    let order = |w: u64| if swapped { w.swap_bytes() } else { w };
    let mut copy = block.to_vec();
    put_words(&mut copy, at + 8, verifier.map(order));
    let stored: Vec<u64> = crate::bytes::u64s(slice_at(block, at + 8, 32))
        .map(order)
        .collect();
    stored == sha256(&copy)
}

fn put_words(block: &mut [u8], at: usize, words: [u64; 4]) {
    for (i, w) in words.iter().enumerate() {
        put_bytes(block, at + 8 * i, &w.to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn toy_hash(b: &[u8]) -> [u64; 4] {
        let mut h = [1u64, 2, 3, 4];
        for (i, x) in b.iter().enumerate() {
            h[i % 4] = h[i % 4].wrapping_mul(0x100_0000_01b3) ^ u64::from(*x);
        }
        h
    }

    #[test]
    fn checksums_hold_only_at_their_place() {
        let mut block = vec![7; 1024];
        set_checksum(&mut block, label_verifier(0x4000), toy_hash);
        assert!(verify(&block, label_verifier(0x4000), toy_hash));
        assert!(!verify(&block, label_verifier(0x44000), toy_hash));
        block[3] ^= 1;
        assert!(!verify(&block, label_verifier(0x4000), toy_hash));
        assert!(!verify(&[0; 12], label_verifier(0), toy_hash));
    }

    #[test]
    fn geometry_of_an_odd_sized_device() {
        let size = (128 << 20) + 12_345;
        assert_eq!(label_offset(size, 2), Some((128 << 20) - 2 * LABEL_SIZE));
        assert_eq!(leaf_asize(size), 129_499_136);
        assert_eq!(label_offset(LABEL_SIZE, 0), None);
        assert_eq!(
            (uberblock_slots(9), uberblock_slots(12), uberblock_slots(16)),
            (128, 32, 16)
        );
        assert_eq!(uberblock_slot_for(128, 10, false), 0);
        assert_eq!(uberblock_slot_for(127, 10, true), 0);
    }
}
