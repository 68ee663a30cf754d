//! How much space a fully written volume may take, and which block size suits a pool.
//!
//! Facts: OpenZFS, lib/libzfs/libzfs_dataset.c, `zvol_volsize_to_reservation`, and cmd/zfs/zfs_main.c, `default_volblocksize`; checked
//! against the refreservation that the golden pool i-zvols has.

use crate::BLOCK_SIZE_DEFAULT;

/// Size of the indirect blocks that are counted on, as log2 of bytes.
const INDIRECT_SHIFT: u32 = 17;
/// Block pointers in one of them.
const POINTERS: u64 = 1 << (INDIRECT_SHIFT - 7);
/// Block size that the deflation of space assumes, in bytes.
const TYPICAL_BLOCK: u64 = 128 << 10;

/// The layout of a top-level vdev, as far as it decides how much space a block takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Redundancy {
    /// log2 of the sector size.
    pub ashift: u32,
    /// Parity sectors per stripe row: 0 for single devices and mirrors.
    pub parity: u64,
    /// Devices of a raidz.
    pub width: u64,
}

impl Redundancy {
    /// The allocated bytes of a block on a raidz. OpenZFS: module/zfs/vdev_raidz.c, `vdev_raidz_psize_to_asize`.
    fn asize(self, bytes: u64) -> u64 {
        let data = bytes.saturating_sub(1) / (1 << self.ashift) + 1;
        let columns = self.width.saturating_sub(self.parity).max(1);
        let sectors = data + self.parity * data.div_ceil(columns);
        sectors.next_multiple_of(self.parity + 1) << self.ashift
    }
}

/// Returns the bytes to reserve for a volume, so that it can be written completely: what `refreservation=auto` means.
#[must_use]
pub fn reservation_for(size: u64, block_size: u64, copies: u64, vdevs: &[Redundancy]) -> u64 {
    let copies = copies.clamp(1, 3);
    let mut blocks = size / block_size.max(512);
    // On raidz small blocks take more than the deflated sizes admit; the worst vdev decides.
    let mut data = 0_u64;
    for vdev in vdevs.iter().filter(|vdev| vdev.parity > 0) {
        let typical = vdev.asize(TYPICAL_BLOCK) >> 9;
        let scaled = u128::from(blocks) * u128::from(vdev.asize(block_size)) / u128::from(typical);
        let bytes = scaled * u128::from(TYPICAL_BLOCK >> 9);
        data = data.max(u64::try_from(bytes).unwrap_or(u64::MAX));
    }
    if data == 0 {
        data = blocks.saturating_mul(block_size);
    }
    // The table of dnodes has up to seven levels.
    let mut metadata = 7_u64;
    while blocks > 1 {
        blocks = blocks.div_ceil(POINTERS);
        metadata += blocks;
    }
    let metadata = metadata * (copies + 1).min(3);
    data.saturating_mul(copies)
        .saturating_add(metadata << INDIRECT_SHIFT)
}

/// Returns the block size for a new volume when none is asked for, in bytes: the default, or more where a pool's smallest
/// allocation is larger.
#[must_use]
pub fn block_size_for(vdevs: &[Redundancy]) -> u64 {
    let smallest = vdevs.iter().map(|vdev| {
        let sectors = match vdev.parity {
            0 => 1,
            1 => 2,
            _ => 4,
        };
        sectors << vdev.ashift
    });
    let smallest: u64 = smallest.max().unwrap_or(512);
    let mut size = BLOCK_SIZE_DEFAULT;
    while size * 2 <= smallest {
        size *= 2;
    }
    size
}

#[cfg(test)]
mod tests {
    use super::*;

    const SINGLE: Redundancy = Redundancy {
        ashift: 12,
        parity: 0,
        width: 1,
    };

    #[test]
    fn as_openzfs_reserves() {
        // The golden pool i-zvols: 16 MiB in blocks of 16 KiB.
        assert_eq!(
            reservation_for(16 << 20, 16 << 10, 1, &[SINGLE]),
            18_874_368
        );
        // One block only.
        assert_eq!(reservation_for(8192, 8192, 1, &[SINGLE]), 8192 + (14 << 17));
        // Three levels of indirect blocks, two copies.
        let blocks = (1_u64 << 40) / 8192;
        let metadata = 7 + blocks / 1024 + blocks / (1 << 20) + 1;
        assert_eq!(
            reservation_for(1 << 40, 8192, 2, &[SINGLE]),
            (2 << 40) + ((metadata * 3) << 17)
        );
    }

    #[test]
    fn raidz_takes_more_for_small_blocks() {
        let raidz1 = Redundancy {
            ashift: 12,
            parity: 1,
            width: 3,
        };
        // 128 KiB take 48 sectors of 4 KiB, 4 KiB take 2.
        let data = (1_u64 << 30) / 4096 * 8192 / (48 * 8) * 256;
        let blocks = (1_u64 << 30) / 4096;
        let metadata = (7 + blocks / 1024 + 1) * 2;
        assert_eq!(
            reservation_for(1 << 30, 4096, 1, &[raidz1]),
            data + (metadata << 17)
        );
    }

    #[test]
    fn block_sizes_follow_large_sectors() {
        assert_eq!(block_size_for(&[SINGLE]), 16 << 10);
        let raidz2 = Redundancy {
            ashift: 14,
            parity: 2,
            width: 6,
        };
        assert_eq!(block_size_for(&[SINGLE, raidz2]), 64 << 10);
    }
}
