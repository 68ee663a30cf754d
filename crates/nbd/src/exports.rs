//! What a client can choose from.

use std::future::Future;

/// An export that a client asked for by its name.
#[derive(Clone, Debug)]
pub struct Export<V> {
    /// The volume behind it.
    pub volume: V,
    /// Its size in bytes.
    pub size: u64,
    /// The size of its blocks in bytes: what clients are told to prefer.
    pub block_size: u64,
    /// The volume takes no changes now.
    pub volume_read_only: bool,
    /// Changes are refused, whatever the volume allows.
    pub read_only: bool,
}

/// The exports that a client may see.
pub trait Exports: Sync {
    /// What an export is served from.
    type Volume: Send;

    /// Returns the names of all exports.
    fn names(&self) -> impl Future<Output = Vec<String>> + Send;

    /// Finds an export by its name; `None` when there is none for this client.
    fn open(&self, name: &str) -> impl Future<Output = Option<Export<Self::Volume>>> + Send;
}
