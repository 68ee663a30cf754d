//! How a top-level vdev lays blocks out on its places, as far as sizes go.
//!
//! Guarantees: sizes follow OpenZFS's rules to the sector, so that space accounting is the same for both.
//! Does not know devices.

use std::ops::Range;

use ondisk::Txg;

use crate::raidz::draid::Draid;
use crate::raidz::shape::Raidz;

/// Layout of a top-level vdev.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Layout {
    /// Every leaf holds the same bytes at the same offset (a single leaf, or a mirror).
    Copies,
    /// Blocks are spread over the children with parity.
    Raidz(Raidz),
    /// Blocks are spread over groups of columns that rotate over the children.
    Draid(Draid),
}

impl Layout {
    /// Returns the bytes that a block of `psize` bytes born in `txg` takes, with sectors of `1 << ashift`.
    #[must_use]
    pub fn asize_in(&self, txg: Txg, ashift: u8, psize: u64) -> u64 {
        match self {
            Self::Raidz(raidz) => raidz.asize_of(raidz.width_at(txg), ashift, psize),
            Self::Copies | Self::Draid(_) => self.asize_of(ashift, psize),
        }
    }

    /// Returns the bytes that a block of `psize` bytes takes at least, with sectors of `1 << ashift`: one that is born in
    /// stripes as wide as they are now.
    #[must_use]
    pub fn asize_of(&self, ashift: u8, psize: u64) -> u64 {
        match self {
            Self::Copies => psize.next_multiple_of(1 << ashift),
            Self::Raidz(raidz) => raidz.asize_of(raidz.width_at(Txg(u64::MAX)), ashift, psize),
            Self::Draid(draid) => draid.asize_of(ashift, psize),
        }
    }

    /// Returns what 512 allocated bytes count in space accounting, times 512.
    /// Source of the rule: OpenZFS `vdev_set_deflate_ratio`; a vdev keeps the ratio of its first width.
    #[must_use]
    pub fn deflate_ratio(&self, ashift: u8) -> u64 {
        let asize = match self {
            Self::Copies | Self::Draid(_) => self.asize_of(ashift, DEFLATE_BLOCK),
            Self::Raidz(raidz) => raidz.asize_of(raidz.width_at(Txg(0)), ashift, DEFLATE_BLOCK),
        };
        DEFLATE_BLOCK / (asize >> 9).max(1)
    }

    /// Returns the bytes that every allocation is a multiple of, from the start of its metaslab.
    #[must_use]
    pub fn unit(&self, ashift: u8) -> u64 {
        match self {
            Self::Copies | Self::Raidz(_) => 1 << ashift,
            Self::Draid(draid) => draid.unit(ashift),
        }
    }

    /// Returns the size of blocks, in bytes without parity, below which nothing is saved.
    // OpenZFS: module/zfs/vdev.c, vdev_get_min_alloc
    #[must_use]
    pub fn least_psize(&self, ashift: u8) -> u64 {
        match self {
            Self::Copies | Self::Raidz(_) => 1 << ashift,
            Self::Draid(draid) => draid.stripe_data(ashift),
        }
    }

    /// Returns the part of the vdev that a metaslab is: a draid's begins and ends with a stripe.
    // OpenZFS: module/zfs/vdev_draid.c, vdev_draid_metaslab_init
    #[must_use]
    pub fn metaslab_span(&self, ashift: u8, metaslab_shift: u8, index: u64) -> Range<u64> {
        let (start, end) = (index << metaslab_shift, (index + 1) << metaslab_shift);
        let unit = match self {
            Self::Copies | Self::Raidz(_) => return start..end,
            Self::Draid(draid) => draid.unit(ashift),
        };
        let first = start.next_multiple_of(unit);
        first..first + end.saturating_sub(first) / unit * unit
    }

    /// Returns the allocatable bytes of a new vdev whose smallest leaf offers `each` bytes.
    pub(crate) fn asize_from(&self, each: u64) -> u64 {
        match self {
            Self::Copies => each,
            Self::Raidz(raidz) => each.saturating_mul(u64::from(raidz.width)),
            Self::Draid(draid) => draid.asize_from(each),
        }
    }

    /// Returns the rows of parity.
    pub(crate) fn parity(&self) -> usize {
        match self {
            Self::Copies => 0,
            Self::Raidz(raidz) => usize::from(raidz.parity),
            Self::Draid(draid) => usize::from(draid.parity),
        }
    }
}

/// Block size by which the deflate ratio is defined.
const DEFLATE_BLOCK: u64 = 128 << 10;
const _: () = assert!(DEFLATE_BLOCK >= 1 << crate::ASHIFT_MAX);
