//! What a pool of a given shape will offer: the sizes of `zpool list` and `zfs list` before anything is written.

use vdev::{AllocationBias, NewSpace, TopShape};

use crate::PoolError;

/// The sizes of a pool to be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Capacity {
    /// SIZE of `zpool list`: parity included, log devices not.
    pub size_bytes: u64,
    /// What its datasets can hold together: USED and AVAIL of the root in `zfs list`.
    pub usable_bytes: u64,
    /// Kept back, so that a full pool can still be worked on.
    pub slop_bytes: u64,
    /// Each top-level vdev, in order.
    pub vdevs: Vec<NewSpace>,
}

/// Returns the sizes of a pool with these top-level vdevs. Touches no device.
///
/// # Errors
/// A shape that no vdev can have, devices that are too small.
pub fn capacity(tops: &[(TopShape, AllocationBias)]) -> Result<Capacity, PoolError> {
    let mut capacity = Capacity::default();
    let mut deflated_bytes = 0;
    for (shape, bias) in tops {
        let space = shape.new_space()?;
        if *bias != AllocationBias::Log {
            capacity.size_bytes += space.size_bytes;
        }
        // Special and dedup vdevs only take load off the ordinary ones.
        if *bias == AllocationBias::None {
            deflated_bytes += space.deflated_bytes;
        }
        capacity.vdevs.push(space);
    }
    capacity.slop_bytes = zio::slop(deflated_bytes);
    capacity.usable_bytes = deflated_bytes - capacity.slop_bytes;
    Ok(capacity)
}
