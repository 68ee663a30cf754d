//! Cache files (`zpool.cache`): packed lists of pool configurations, as OpenZFS remembers which devices to look at.
// OpenZFS: module/zfs/spa_config.c, spa_write_cachefile (a list of pool names, each with its configuration)

use std::collections::BTreeMap;
use std::path::PathBuf;

use ondisk::{NvList, NvValue};
use vdev::TreeConfig;

/// Returns the pools a cache file names, by guid, with the paths of their devices. Configurations that cannot be
/// understood are left out.
///
/// # Errors
/// A sentence, when the bytes are no cache file.
pub fn cache_file_devices(bytes: &[u8]) -> Result<BTreeMap<u64, Vec<PathBuf>>, String> {
    let list = NvList::decode(bytes).map_err(|error| error.to_string())?;
    let mut pools = BTreeMap::new();
    for (_, value) in list.iter() {
        let NvValue::List(config) = value else {
            continue;
        };
        let tree = config.list("vdev_tree");
        let tree = tree.and_then(|tree| TreeConfig::from_nvlist(tree).ok());
        let (Some(guid), Some(tree)) = (config.u64("pool_guid"), tree) else {
            continue;
        };
        let leaves = tree.leaves().into_iter();
        let paths = leaves.filter_map(|leaf| leaf.path.as_ref().map(PathBuf::from));
        pools.insert(guid, paths.collect());
    }
    Ok(pools)
}
