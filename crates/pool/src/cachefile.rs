//! Cache files (`zpool.cache`): packed lists of pool configurations, as OpenZFS remembers which devices to look at.
// OpenZFS: module/zfs/spa_config.c, spa_write_cachefile (a list of pool names, each with its configuration)

use std::collections::BTreeMap;
use std::path::PathBuf;

use ondisk::{NvList, NvValue};
use vdev::TreeConfig;

use crate::config;
use crate::pool::Pool;

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
        let leaves = tree
            .leaves()
            .into_iter()
            .filter(|leaf| leaf.kind.is_device());
        let paths = leaves.filter_map(|leaf| leaf.path.as_ref().map(PathBuf::from));
        pools.insert(guid, paths.collect());
    }
    Ok(pools)
}

/// Returns the cache file with the configuration of a pool (of [`Pool::cache_entry`]) added or put in place of what it
/// said of that name or pool; without one the pool is taken out of it. `None`: nothing is left, the file goes away.
/// Bytes that are no cache file are started afresh.
#[must_use]
pub fn cache_file_with(bytes: &[u8], guid: u64, entry: Option<(&str, &[u8])>) -> Option<Vec<u8>> {
    let old = NvList::decode(bytes).unwrap_or_default();
    let name = entry.map(|(name, _)| name.as_bytes());
    let mut list = NvList::new();
    for (other, value) in old.iter() {
        let is_it = match value {
            NvValue::List(config) => config.u64("pool_guid") == Some(guid),
            _ => false,
        };
        if !is_it && Some(other) != name {
            list.insert(other, value.clone());
        }
    }
    if let Some((name, packed)) = entry
        && let Ok(config) = NvList::decode(packed)
    {
        list.insert(name, config);
    }
    (list.iter().count() != 0).then(|| list.encode_xdr())
}

impl Pool {
    /// Returns the pool's configuration as it is now, packed, for [`cache_file_with`].
    #[must_use]
    pub fn cache_entry(&self) -> Vec<u8> {
        let imported = &self.0;
        let txg = imported.sync.last_uberblock().txg;
        let list = config::for_mos(
            &imported.config.identity(),
            config::STATE_ACTIVE,
            txg.0,
            &imported.tree().config(),
            &imported.label_features(),
            imported.objects.get().vdev_zap_map.0 != 0,
        );
        list.encode_xdr()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cache_file_grows_and_goes_away() {
        let entry = |guid: u64| NvList::new().with("pool_guid", guid).encode_xdr();
        let one = cache_file_with(b"nonsense", 1, Some(("a", &entry(1)))).expect("one pool");
        let two = cache_file_with(&one, 2, Some(("b", &entry(2)))).expect("two pools");
        assert_eq!(NvList::decode(&two).expect("a list").iter().count(), 2);
        // Under another name it is still the same pool.
        let renamed = cache_file_with(&two, 1, Some(("c", &entry(1)))).expect("two pools");
        let names: Vec<String> = NvList::decode(&renamed)
            .expect("a list")
            .names()
            .map(str::to_owned)
            .collect();
        assert_eq!(names, ["b", "c"]);
        let left = cache_file_with(&renamed, 2, None).expect("one pool");
        assert_eq!(cache_file_with(&left, 1, None), None);
    }
}
