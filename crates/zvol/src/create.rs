//! Filling a new dataset with an empty volume.

use dmu::zap::{self, ZapSpec};
use dmu::{AllocSpec, Objset, Tx};
use ondisk::ObjectType;

use crate::{DATA, PROPERTIES, SIZE_KEY, VolumeError, VolumeResult};

/// Fills a new objset with an empty volume of `size` bytes in blocks of `block_size` bytes, under `tx`. Nothing is allocated for
/// its contents.
///
/// # Errors
/// [`VolumeError::BadSize`]; those of writing.
pub async fn create(os: &Objset, tx: &Tx, size: u64, block_size: u32) -> VolumeResult<()> {
    check_size(size, u64::from(block_size))?;
    let spec = AllocSpec::new(ObjectType::ZVOL).block_size(block_size);
    os.allocate_at(DATA, spec, tx).await?;
    zap::create_at(os, PROPERTIES, &ZapSpec::new(ObjectType::ZVOL_PROP), tx).await?;
    zap::add_u64(os, PROPERTIES, SIZE_KEY, size, tx).await?;
    Ok(())
}

/// Checks a volume's size against its block size, both in bytes. OpenZFS: module/zfs/zvol.c, `zvol_check_volsize`; sizes end
/// where signed offsets do.
///
/// # Errors
/// [`VolumeError::BadSize`].
pub fn check_size(size: u64, block_size: u64) -> VolumeResult<()> {
    let greatest = i64::MAX.cast_unsigned();
    if size == 0 || size > greatest || !size.is_multiple_of(block_size.max(1)) {
        Err(VolumeError::BadSize)
    } else {
        Ok(())
    }
}
