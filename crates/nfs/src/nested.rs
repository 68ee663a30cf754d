//! From a share into the shares below it: where a dataset is mounted in the root directory of another, a client that
//! looks up its name there gets the root of the dataset below, under that one's own access list. The attributes say
//! another file system id, and clients mount it by themselves (exports(5) calls this `nohide`).
//!
//! Only names directly in a share's root lead down. Others are directories of the share, as they lie on disk.

use crate::handle::FileHandle;
use crate::server::{Served, Server};
use engine::{Attr, FileId};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

/// Listings of a share's root number the shares below it from here on, those that have no directory there. The cookies of
/// directories stay far below.
pub(crate) const COOKIE_BELOW: u64 = 0x7fff_ffff_0000_0000;

/// A share's root, met in the share above.
pub(crate) struct Below {
    pub(crate) name: Vec<u8>,
    pub(crate) handle: FileHandle,
    pub(crate) attr: Attr,
}

/// Returns for each share, by guid, the names in its root that are other shares, and their guids.
pub(crate) fn names_below<'a>(
    shares: impl Iterator<Item = (u64, &'a str)> + Clone,
) -> BTreeMap<u64, Vec<(Vec<u8>, u64)>> {
    let by_path: BTreeMap<&str, u64> = shares
        .clone()
        .map(|(guid, path)| (path.trim_end_matches('/'), guid))
        .collect();
    let mut below: BTreeMap<u64, Vec<(Vec<u8>, u64)>> = BTreeMap::new();
    for (guid, path) in shares {
        let Some((parent, name)) = path.trim_end_matches('/').rsplit_once('/') else {
            continue;
        };
        if let Some(above) = by_path.get(parent).filter(|above| **above != guid) {
            let names = below.entry(*above).or_default();
            names.push((name.as_bytes().to_vec(), guid));
        }
    }
    below
}

impl Server {
    /// Returns the share that `name` in `dir` leads to, if it leads to one that the client may use.
    pub(crate) async fn below(
        &self,
        dir: &FileHandle,
        name: &[u8],
        peer: SocketAddr,
    ) -> Option<Below> {
        if dir.snapshot.is_some() {
            return None;
        }
        let above = self.exports().get(&dir.dataset)?.clone();
        let found = above.below.iter().find(|(known, _)| known == name)?;
        if !is_root(&above, dir.file).await {
            return None;
        }
        self.enter(found, peer).await
    }

    /// Returns all shares that names in `dir` lead to and that the client may use, in a fixed order.
    pub(crate) async fn all_below(&self, dir: &FileHandle, peer: SocketAddr) -> Vec<Below> {
        let Some(above) = self.exports().get(&dir.dataset).cloned() else {
            return Vec::new();
        };
        let mut found = Vec::new();
        if dir.snapshot.is_none() && !above.below.is_empty() && is_root(&above, dir.file).await {
            for name in &above.below {
                found.extend(self.enter(name, peer).await);
            }
        }
        found
    }

    async fn enter(&self, (name, guid): &(Vec<u8>, u64), peer: SocketAddr) -> Option<Below> {
        let served = self.exports().get(guid)?.clone();
        self.decide(*guid, &served, peer)?;
        let attr = served.export.fs.root().await.ok()?;
        let handle = FileHandle {
            dataset: *guid,
            snapshot: None,
            file: attr.id,
        };
        Some(Below {
            name: name.clone(),
            handle,
            attr,
        })
    }
}

async fn is_root(served: &Arc<Served>, file: FileId) -> bool {
    served.export.fs.root().await.is_ok_and(|r| r.id == file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_direct_children_lie_below() {
        let shares = [
            (1, "/tank"),
            (2, "/tank/a"),
            (3, "/tank/a/b"),
            (4, "/tank/x/y"),
            (5, "/"),
        ];
        let below = names_below(shares.into_iter());
        assert_eq!(below.get(&1), Some(&vec![(b"a".to_vec(), 2)]));
        assert_eq!(below.get(&2), Some(&vec![(b"b".to_vec(), 3)]));
        assert_eq!(below.get(&5), Some(&vec![(b"tank".to_vec(), 1)]));
        assert_eq!(below.len(), 3);
    }
}
