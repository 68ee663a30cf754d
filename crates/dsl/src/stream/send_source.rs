//! What a stream is made of: the type that its makers and its sender share.

use dmu::Objset;

use super::NvList;
use crate::dataset::Dataset;
use crate::types::SavedReceive;

/// What a stream is made of.
pub(super) struct SendSource {
    /// Held while the stream is made.
    pub(super) snapshot: Dataset,
    /// Its object set; of a raw stream, without keys.
    pub(super) objset: Objset,
    /// Of a raw stream: what its BEGIN says of the keys.
    pub(super) keys: Option<NvList>,
    /// Of what an interrupted receive left: the snapshot that it is a part of.
    pub(super) saved: Option<SavedReceive>,
}
