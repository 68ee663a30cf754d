//! Cache files (`zpool.cache`): the list of imported pools that OpenZFS's tools read.

use std::path::Path;

use engine::{EngineError, PoolHandle};

use crate::logging::SANBOX;
use crate::paths;

/// Changes what a cache file (`zpool.cache`) says of a pool. A file that says nothing any more goes away.
pub(super) async fn change(path: &str, guid: u64, entry: Option<(String, Vec<u8>)>) {
    if path.is_empty() || path == "none" {
        return;
    }
    let named = Path::new(path);
    let path = named.to_owned();
    let change = move || -> std::io::Result<()> {
        let entry = entry
            .as_ref()
            .map(|(name, entry)| (name.as_str(), &entry[..]));
        let path = path.as_path();
        let old = match std::fs::read(path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(error),
        };
        match engine::cache_file_with(&old, guid, entry) {
            Some(bytes) => {
                let mut beside = path.as_os_str().to_owned();
                beside.push(".tmp");
                std::fs::write(&beside, bytes)?;
                std::fs::File::open(&beside)?.sync_all()?;
                std::fs::rename(&beside, path)
            }
            None if old.is_empty() => Ok(()),
            None => std::fs::remove_file(path),
        }
    };
    let changed = paths::call(named, change).await;
    if let Err(error) = changed.and_then(|changed| changed.map_err(|error| error.to_string())) {
        // The pool is as it should be; only the file is behind.
        tracing::warn!(target: SANBOX, "{}: {error}", named.display());
    }
}

/// Brings a pool's own cache file, if it has one, up to date, and returns where it is.
pub(super) async fn write(pool: &PoolHandle) -> Result<Option<String>, EngineError> {
    let (path, entry) = pool.cache_entry().await?;
    if let Some(path) = &path {
        let (name, guid) = (pool.name().to_owned(), pool.guid());
        change(path, guid, Some((name, entry))).await;
    }
    Ok(path)
}
