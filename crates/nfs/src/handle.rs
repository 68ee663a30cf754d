//! File handles: what a client keeps for as long as it likes, across restarts of the server.
//!
//! ```text
//!  0        4            12         20             28
//! +--------+------------+----------+--------------+
//! | "sbx1" | dataset    | object   | generation   |   28 bytes, big-endian: a file
//! +--------+------------+----------+--------------+---------------+---------------+
//! | "sbx2" | dataset    | object   | generation   | snapshot's    | snapshot's    |   44 bytes: a file of a snapshot
//! +--------+------------+----------+--------------+ object        | guid          |   of the dataset
//!                                                 +---------------+---------------+
//! ```
//!
//! The dataset's guid survives renames and moves to another machine with its pool; object and generation name one file
//! for ever. A copy that is in use in place of its source takes the source's guid into its handles ([`crate::Export::identity`]), so that clients
//! go on with those that they have: streams keep objects and generations.
//! Snapshots are named by object and guid, so that they are found without a search. A handle is no secret:
//! every call is checked against the export and the client's address, and a snapshot must be one of the export's.

use std::cmp::Ordering;

use engine::{FileId, FsHandle, LockedFile};

/// Most bytes of a handle.
pub(crate) const HANDLE_BYTES: usize = 44;

const MAGIC: [u8; 4] = *b"sbx1";
const MAGIC_SNAPSHOT: [u8; 4] = *b"sbx2";

/// A snapshot of the dataset that a handle names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct InSnapshot {
    /// Its object in the pool.
    pub(crate) object: u64,
    /// Its guid.
    pub(crate) guid: u64,
}

/// Returns how handles name the file system that a lookup led to, or `None` for the export itself.
pub(crate) fn in_snapshot(fs: &FsHandle) -> Option<InSnapshot> {
    fs.head()?;
    Some(InSnapshot {
        object: fs.dataset(),
        guid: fs.guid(),
    })
}

/// A file, named so that any later server finds it. Two are equal when they lead to one file, whatever the dataset is called in them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FileHandle {
    /// Guid of the dataset that is exported.
    pub(crate) dataset: u64,
    /// What the handle's bytes have in place of it: the guid of the dataset that this one stands in for, or its own.
    pub(crate) identity: u64,
    /// Which of its snapshots the file is in.
    pub(crate) snapshot: Option<InSnapshot>,
    /// The file in it.
    pub(crate) file: FileId,
}

impl FileHandle {
    /// Returns the handle's bytes.
    #[must_use]
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HANDLE_BYTES);
        bytes.extend_from_slice(match self.snapshot {
            None => &MAGIC,
            Some(_) => &MAGIC_SNAPSHOT,
        });
        let file = [self.identity, self.file.object, self.file.generation];
        let snapshot = self.snapshot.map(|s| [s.object, s.guid]);
        for field in file.into_iter().chain(snapshot.into_iter().flatten()) {
            bytes.extend_from_slice(&field.to_be_bytes());
        }
        bytes
    }

    /// Returns the `fsid` that clients are told of its file system. A copy that is in use in place of its source has that one's, as in the
    /// handle, so that they see the same file system.
    #[must_use]
    pub(crate) fn fsid(&self) -> u64 {
        self.snapshot
            .map_or(self.identity, |snapshot| snapshot.guid)
    }

    /// Returns how the table of locks names the file.
    pub(crate) fn locked(&self) -> LockedFile {
        LockedFile {
            fs: self.snapshot.map_or(self.dataset, |snapshot| snapshot.guid),
            file: self.file,
        }
    }

    /// Reads a handle, or `None` when it is none of ours. The dataset is what the bytes call it: [`crate::Server`] finds the one that acts as it.
    #[must_use]
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let (magic, fields) = bytes.split_first_chunk::<4>()?;
        let (chunks, []) = fields.as_chunks::<8>() else {
            return None;
        };
        let field = u64::from_be_bytes;
        let (dataset, object, generation, snapshot) = match (*magic, chunks) {
            (MAGIC, [dataset, object, generation]) => (dataset, object, generation, None),
            (MAGIC_SNAPSHOT, [dataset, object, generation, snapshot, guid]) => {
                let snapshot = InSnapshot {
                    object: field(*snapshot),
                    guid: field(*guid),
                };
                (dataset, object, generation, Some(snapshot))
            }
            _ => return None,
        };
        Some(Self {
            dataset: field(*dataset),
            identity: field(*dataset),
            snapshot,
            file: FileId {
                object: field(*object),
                generation: field(*generation),
            },
        })
    }
}

impl FileHandle {
    fn key(&self) -> (u64, Option<InSnapshot>, FileId) {
        (self.dataset, self.snapshot, self.file)
    }
}

impl PartialEq for FileHandle {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Eq for FileHandle {}

impl PartialOrd for FileHandle {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for FileHandle {
    fn cmp(&self, other: &Self) -> Ordering {
        self.key().cmp(&other.key())
    }
}

/// Why a file handle is of no use to a caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HandleRefusal {
    /// It is not one of ours.
    BadHandle,
    /// Its dataset is not shared (yet): the pools are being opened.
    NotYet,
    /// Its dataset is not shared (any more).
    Stale,
    /// The client is on no list.
    Forbidden,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_reads_back_and_garbage_does_not() {
        let handle = FileHandle {
            dataset: 1,
            identity: 1,
            snapshot: None,
            file: FileId {
                object: 34,
                generation: 5,
            },
        };
        let bytes = handle.encode();
        assert_eq!(FileHandle::decode(&bytes), Some(handle));
        assert_eq!(FileHandle::decode(bytes.get(1..).expect("27 bytes")), None);
        let inside = FileHandle {
            snapshot: Some(InSnapshot {
                object: 77,
                guid: 9,
            }),
            ..handle
        };
        let bytes = inside.encode();
        assert_eq!(bytes.len(), HANDLE_BYTES);
        assert_eq!(FileHandle::decode(&bytes), Some(inside));
        assert_eq!(FileHandle::decode(bytes.get(..36).expect("44")), None);
        assert_eq!(FileHandle::decode(&[0; HANDLE_BYTES]), None);
        assert_eq!(FileHandle::decode(&[0; 28]), None);
        assert_eq!(FileHandle::decode(&[]), None);
    }

    #[test]
    fn a_handle_of_a_dataset_that_stands_in_for_another_has_the_other_s_guid() {
        let file = FileId {
            object: 34,
            generation: 5,
        };
        let source = FileHandle {
            dataset: 1,
            identity: 1,
            snapshot: None,
            file,
        };
        let copy = FileHandle {
            dataset: 2,
            ..source
        };
        assert_eq!(copy.encode(), source.encode());
        assert_eq!(copy.fsid(), source.fsid());
        assert_eq!(copy.locked().fs, 2, "locks are the dataset's own");
        let own = FileHandle {
            identity: 2,
            ..copy
        };
        assert_ne!(own.encode(), copy.encode());
        assert_eq!(own, copy, "both lead to the same file");
    }
}
