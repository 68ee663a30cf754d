//! File handles: what a client keeps for as long as it likes, across restarts of the server.
//!
//! ```text
//!  0        4            12         20             28
//! +--------+------------+----------+--------------+
//! | "sbx1" | dataset    | object   | generation   |   28 bytes, big-endian
//! +--------+------------+----------+--------------+
//! ```
//!
//! The dataset's guid survives renames and moves to another machine with its pool; object and generation name one file
//! for ever. A handle is no secret: every call is checked against the export and the client's address.

use engine::FileId;

/// Bytes of a handle.
pub(crate) const HANDLE_BYTES: usize = 28;

const MAGIC: [u8; 4] = *b"sbx1";

/// A file, named so that any later server finds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FileHandle {
    /// Guid of the dataset.
    pub(crate) dataset: u64,
    /// The file in it.
    pub(crate) file: FileId,
}

impl FileHandle {
    /// Returns the handle's bytes.
    #[must_use]
    pub(crate) fn encode(&self) -> [u8; HANDLE_BYTES] {
        let mut bytes = [0; HANDLE_BYTES];
        let fields = [self.dataset, self.file.object, self.file.generation];
        let (magic, rest) = bytes.split_at_mut(4);
        magic.copy_from_slice(&MAGIC);
        for (slot, field) in rest.chunks_exact_mut(8).zip(fields) {
            slot.copy_from_slice(&field.to_be_bytes());
        }
        bytes
    }

    /// Reads a handle, or `None` when it is none of ours.
    #[must_use]
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let fields = bytes.strip_prefix(&MAGIC)?;
        let (chunks, []) = fields.as_chunks::<8>() else {
            return None;
        };
        let [dataset, object, generation] = *chunks else {
            return None;
        };
        let field = u64::from_be_bytes;
        Some(Self {
            dataset: field(dataset),
            file: FileId {
                object: field(object),
                generation: field(generation),
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_reads_back_and_garbage_does_not() {
        let handle = FileHandle {
            dataset: 1,
            file: FileId {
                object: 34,
                generation: 5,
            },
        };
        let bytes = handle.encode();
        assert_eq!(FileHandle::decode(&bytes), Some(handle));
        assert_eq!(FileHandle::decode(bytes.get(1..).expect("27 bytes")), None);
        assert_eq!(FileHandle::decode(&[0; HANDLE_BYTES]), None);
        assert_eq!(FileHandle::decode(&[]), None);
    }
}
