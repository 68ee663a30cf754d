//! Nested exports: where a dataset is mounted in the root directory of another, a client that looks up its name there crosses
//! into the root of the nested export, under that one's own access list. The attributes say another file system id, and clients
//! mount it by themselves (exports(5) calls this `nohide`).
//!
//! Only names directly in an export's root cross. Others are directories of the export, as they lie on disk.

use crate::connection::Peer;
use crate::handle::FileHandle;
use crate::server::{ServedExport, Server};
use engine::{Attr, FileId};
use std::sync::Arc;

/// Cookies of nested exports without a directory in the export above begin here; those of stored names are far smaller.
pub(crate) const NESTED_COOKIE_FIRST: u64 = 0x7fff_ffff_0000_0000;

/// The root of a nested export, looked up in the export above.
pub(crate) struct NestedExport {
    pub(crate) name: Vec<u8>,
    pub(crate) handle: FileHandle,
    pub(crate) attr: Attr,
}

impl Server {
    /// Returns the nested export that `name` in `dir` leads to, if there is one and the client may use it.
    pub(crate) async fn nested_export(
        &self,
        dir: &FileHandle,
        name: &[u8],
        peer: Peer,
    ) -> Option<NestedExport> {
        if dir.snapshot.is_some() {
            return None;
        }
        let above = self.exports().get(&dir.dataset)?.clone();
        let found = above.nested.iter().find(|(known, _)| known == name)?;
        if !is_root(&above, dir.file).await {
            return None;
        }
        self.cross(found, peer).await
    }

    /// Returns all nested exports in `dir` that the client may use, in a fixed order.
    pub(crate) async fn nested_exports(&self, dir: &FileHandle, peer: Peer) -> Vec<NestedExport> {
        let Some(above) = self.exports().get(&dir.dataset).cloned() else {
            return Vec::new();
        };
        let mut found = Vec::new();
        if dir.snapshot.is_none() && !above.nested.is_empty() && is_root(&above, dir.file).await {
            for name in &above.nested {
                found.extend(self.cross(name, peer).await);
            }
        }
        found
    }

    async fn cross(&self, (name, guid): &(Vec<u8>, u64), peer: Peer) -> Option<NestedExport> {
        let served = self.exports().get(guid)?.clone();
        let access = self.access_of(*guid, &served, peer)?;
        if !access.flavours.allow(peer.flavour) {
            return None;
        }
        let attr = served.export.fs.root().await.ok()?;
        let handle = FileHandle {
            dataset: *guid,
            identity: served.identity,
            snapshot: None,
            file: attr.id,
        };
        Some(NestedExport {
            name: name.clone(),
            handle,
            attr,
        })
    }
}

async fn is_root(served: &Arc<ServedExport>, file: FileId) -> bool {
    served.export.fs.root().await.is_ok_and(|r| r.id == file)
}
