//! What a stream is made of: the type that its makers and its sender share.

use dmu::Objset;

use super::NvList;
use super::list_reader::ListReader;
use super::ranges::RedactionLists;
use crate::dataset::Dataset;
use crate::dataset_state::Ownership;
use crate::types::SavedReceive;

/// Names in the list behind BEGIN. OpenZFS: include/sys/dmu_send.h.
pub(super) const REDACT_SNAPS: &str = "redact_snaps";
pub(super) const REDACT_FROM_SNAPS: &str = "redact_from_snaps";

/// What a stream is made of.
pub(super) struct SendSource {
    /// Held while the stream is made.
    pub(super) snapshot: Dataset,
    /// Of a head: nothing changes it meanwhile.
    pub(super) ownership: Option<Ownership>,
    /// Its object set; of a raw stream, without keys.
    pub(super) objset: Objset,
    /// Of a raw stream: what its BEGIN says of the keys.
    pub(super) keys: Option<NvList>,
    /// Of what an interrupted receive left: the snapshot that it is a part of.
    pub(super) saved: Option<SavedReceive>,
    pub(super) redaction: SendRedaction,
}

/// What is left out of a stream, and what the receiver lacks of the snapshot that it counts from.
#[derive(Default)]
pub(super) struct SendRedaction {
    /// The list of the bookmark that is redacted by.
    pub(super) list: Option<ListReader>,
    /// Of a snapshot that was received redacted: the guids of its redaction snapshots.
    pub(super) received_by: Option<Vec<u64>>,
    /// The list of the bookmark that the stream counts from.
    pub(super) from_list: Option<ListReader>,
    /// Of a snapshot that it counts from, and that was received redacted: the guids of its redaction snapshots.
    pub(super) from_received_by: Option<Vec<u64>>,
}

impl SendRedaction {
    /// Blocks are left out by a list.
    pub(super) fn is_redacted(&self) -> bool {
        self.list.is_some()
    }

    /// What BEGIN says of it.
    pub(super) fn begin_list(&self) -> NvList {
        let guids = |list: &Option<ListReader>| list.as_ref().map(|list| list.snapshots().to_vec());
        let mut begin = NvList::new();
        if let Some(by) = guids(&self.list).or_else(|| self.received_by.clone()) {
            begin.insert(REDACT_SNAPS, by);
        }
        if let Some(by) = guids(&self.from_list).or_else(|| self.from_received_by.clone()) {
            begin.insert(REDACT_FROM_SNAPS, by);
        }
        begin
    }

    /// The lists that are laid over what changed.
    pub(super) fn lists(self) -> Option<RedactionLists> {
        let has_list = self.list.is_some() || self.from_list.is_some();
        has_list.then_some(RedactionLists {
            redacted: self.list,
            restored: self.from_list,
        })
    }
}
