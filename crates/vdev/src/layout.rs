//! How a top-level vdev lays blocks out on its places, as far as sizes go.
//!
//! Guarantees: sizes follow OpenZFS's rules to the sector, so that space accounting is the same for both.
//! Does not know devices.

use std::ops::Range;

use ondisk::Txg;

use crate::raidz::draid::Draid;

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

/// Shape of a raidz vdev.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Raidz {
    /// Children.
    pub width: u32,
    /// Columns of each stripe that hold parity, 1 to 3.
    pub parity: u8,
    /// Txgs in which an expansion by one child was completed, ascending. Blocks born before have narrower stripes.
    pub expanded: Vec<Txg>,
    /// The last child is being filled: no stripe is as wide as the vdev yet.
    pub expanding: bool,
}

impl Layout {
    /// Returns the bytes that a block of `psize` bytes takes, with sectors of `1 << ashift`.
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

impl Raidz {
    /// Returns the width of the stripes of blocks born in `txg`.
    #[must_use]
    pub fn width_at(&self, txg: Txg) -> u32 {
        let later = self.expanded.iter().filter(|&&done| done > txg).count();
        self.width - u32::from(self.expanding) - u32::try_from(later).unwrap_or(0)
    }

    /// Returns whether an expansion was begun here, ended or not: stripes of several widths may lie beside each other, so
    /// that a range of the vdev is not the same range of each child.
    #[must_use]
    pub fn is_reshaped(&self) -> bool {
        self.expanding || !self.expanded.is_empty()
    }

    // Format page on raidz, section 2: data, parity for every row begun, padded to a multiple of parity + 1 sectors so
    // that no hole is left that could never be used.
    fn asize_of(&self, width: u32, ashift: u8, psize: u64) -> u64 {
        let parity = u64::from(self.parity);
        assert!(
            u64::from(width) > parity,
            "a raidz of {width} has data beside its parity of {parity}"
        );
        let data_columns = u64::from(width) - parity;
        let sectors = psize.div_ceil(1 << ashift);
        let all = sectors + parity * sectors.div_ceil(data_columns);
        all.next_multiple_of(parity + 1) << ashift
    }
}
