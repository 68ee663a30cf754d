//! What policies know of a snapshot.

use jiff::Timestamp;

/// A snapshot, as far as policies care.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotState {
    /// The part of its name behind `@`.
    pub name: String,
    /// When it was taken.
    pub creation: Timestamp,
    /// In which txg: the order of snapshots, whatever the clock did.
    pub create_txg: u64,
    /// The classes a policy took it for; `None` if none did.
    pub classes: Option<Vec<String>>,
    /// The time before which it is not destroyed, if it ever had one.
    pub immutable_until: Option<Timestamp>,
    /// Holds on it.
    pub holds: u64,
    /// Whether clones stand on it.
    pub has_clones: bool,
}
