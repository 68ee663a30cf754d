//! Names in the object directory (meta-objset object 1) that belong to this crate.

use ondisk::ObjectId;

/// The object directory.
pub(crate) const OBJECT_DIRECTORY: ObjectId = ObjectId(1);
pub(crate) const ROOT_DATASET: &str = "root_dataset";
pub(crate) const SYNC_BPLIST: &str = "sync_bplist";
pub(crate) const FREE_BPOBJ: &str = "free_bpobj";
pub(crate) const EMPTY_BPOBJ: &str = "empty_bpobj";
pub(crate) const BPTREE_OBJ: &str = "bptree_obj";
/// ZAP of the livelists of destroyed clones.
pub(crate) const DELETED_CLONES: &str = "com.delphix:deleted_clones";
/// Bpobj of pointers to be marked obsolete at their removed vdevs.
pub(crate) const OBSOLETE_BPOBJ: &str = "com.delphix:obsolete_bpobj";
pub(crate) const FEATURES_FOR_READ: &str = "features_for_read";
pub(crate) const FEATURES_FOR_WRITE: &str = "features_for_write";
pub(crate) const FEATURE_DESCRIPTIONS: &str = "feature_descriptions";
pub(crate) const FEATURE_ENABLED_TXG: &str = "feature_enabled_txg";
pub(crate) const POOL_PROPS: &str = "pool_props";
pub(crate) const DEFLATE: &str = "deflate";
pub(crate) const CREATION_VERSION: &str = "creation_version";

/// Directory of the meta-objset's own space.
pub(crate) const MOS_DIR: &str = "$MOS";
/// Directory of space being freed in the background.
pub(crate) const FREE_DIR: &str = "$FREE";
/// Directory of the empty snapshot every dataset descends from, and that snapshot's name.
pub(crate) const ORIGIN_DIR: &str = "$ORIGIN";

/// Largest block without the feature `large_blocks`, the block size of lists of block pointers.
pub(crate) const LIST_BLOCK: u32 = 128 << 10;
/// Names are compared under this normalization (upper case), though looked up exactly first.
pub(crate) const NORMALIZE_TOUPPER: u64 = 2;
