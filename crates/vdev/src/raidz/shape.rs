//! The shape of a raidz vdev, and what a block takes on it.

use ondisk::Txg;

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

    /// Returns the bytes that a block of `psize` bytes takes in stripes of `width` columns.
    // Format page on raidz, section 2: data, parity for every row begun, padded to a multiple of parity + 1 sectors so
    // that no hole is left that could never be used.
    pub(crate) fn asize_of(&self, width: u32, ashift: u8, psize: u64) -> u64 {
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
