//! The objects of the meta-objset that belong to the pool as a whole, and keys under which they are found.

use ondisk::ObjectId;

/// Object number of the meta-objset's directory.
pub(crate) const DIRECTORY: ObjectId = ObjectId(1);

/// Key in a top-level vdev's ZAP: which blocks the vdev is for, as a word with its NUL.
// OpenZFS: include/sys/fs/zfs.h, VDEV_TOP_ZAP_ALLOCATION_BIAS
pub(crate) const ALLOCATION_BIAS: &str = "org.zfsonlinux:allocation_bias";

/// Objects of the meta-objset that belong to the pool as a whole; 0 where there is none.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PoolObjects {
    pub(crate) config: ObjectId,
    pub(crate) history: ObjectId,
    pub(crate) vdev_zap_map: ObjectId,
    pub(crate) properties: ObjectId,
}
