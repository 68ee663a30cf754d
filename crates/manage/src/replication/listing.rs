//! What replication knows of the datasets of one side.

use std::fmt;
use std::str::FromStr;

use engine::DatasetKind;

use super::{Fence, Identity};

/// A snapshot or bookmark: a state of a dataset that a stream can count from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Point {
    /// The part of its name behind `@` or `#`.
    pub name: String,
    /// Identity of the state: the same at every place it was sent to, and of a bookmark that of its snapshot.
    pub guid: u64,
    /// The txg in which the snapshot was taken, in this pool: the order of points, whatever the clock did.
    pub create_txg: u64,
    /// Holds on a snapshot.
    pub holds: u64,
    /// When the snapshot was taken, in seconds since 1970.
    pub creation: i64,
}

/// The rest of a receive that was interrupted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interrupted {
    /// What `zfs send -t` takes.
    pub token: String,
    /// What the stream counts from; `None` for a full one.
    pub from_guid: Option<u64>,
    /// The snapshot that is sent.
    pub to_guid: u64,
}

/// Says of which source and by which job a target's dataset was made. It is a property of the dataset, so it survives the job's
/// configuration, and a second job to the same dataset finds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mark {
    /// The job's name.
    pub job: String,
    /// Guid of the source's dataset, which a rename does not change.
    pub source_guid: u64,
    /// Where the dataset was there before the job: the txg of its newest snapshot when it was adopted. Snapshots up to it are not the job's.
    pub adopted_txg: u64,
}

impl fmt::Display for Mark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{:016x}", self.job, self.source_guid)?;
        match self.adopted_txg {
            0 => Ok(()),
            txg => write!(f, ":{txg}"),
        }
    }
}

impl FromStr for Mark {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let mut parts = text.split(':');
        let (Some(job), Some(guid), txg, None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(());
        };
        Ok(Self {
            job: job.to_owned(),
            source_guid: u64::from_str_radix(guid, 16).map_err(|_| ())?,
            adopted_txg: txg.map_or(Ok(0), str::parse).map_err(|_| ())?,
        })
    }
}

/// Whether a dataset is read-only because a person wants it, or because replication keeps it from being written to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadonlySetting {
    /// `readonly` is on, set on the dataset itself.
    pub is_on: bool,
    /// It was so before replication set it (`KEPT_READONLY_PROPERTY`).
    pub is_kept: bool,
    /// The source was fenced when it was last sent, so that what came of its `readonly` is the fence's; and whether it was on before. Not known
    /// of a dataset of a peer.
    pub at_source: Option<bool>,
}

/// A file system or volume with the points that it has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaDataset {
    /// Full name.
    pub name: String,
    /// Its own guid.
    pub guid: u64,
    /// File system or volume.
    pub kind: DatasetKind,
    /// Snapshots, in the order in which they were taken.
    pub snapshots: Vec<Point>,
    /// Bookmarks, in the order of what they are of.
    pub bookmarks: Vec<Point>,
    /// Bytes written since the newest snapshot.
    pub written_bytes: u64,
    /// Set on this dataset itself, not inherited.
    pub mark: Option<Mark>,
    /// The dataset that it acts as: it is in use in place of that one, unless it is fenced.
    pub identity: Option<Identity>,
    /// The identity that its source had, as it came with a stream; not known of a dataset of a peer or another host.
    pub source_identity: Option<Identity>,
    /// Another is in use in place of it.
    pub fence: Option<Fence>,
    /// What is known of `readonly`.
    pub readonly: ReadonlySetting,
    /// What an interrupted receive left.
    pub interrupted: Option<Interrupted>,
}

impl ReplicaDataset {
    /// Returns a dataset of which only name, guid and kind are known yet.
    #[must_use]
    pub fn new(name: String, guid: u64, kind: DatasetKind) -> Self {
        Self {
            name,
            guid,
            kind,
            snapshots: Vec::new(),
            bookmarks: Vec::new(),
            written_bytes: 0,
            mark: None,
            identity: None,
            source_identity: None,
            fence: None,
            readonly: ReadonlySetting::default(),
            interrupted: None,
        }
    }

    /// Whether it is in use in place of another.
    #[must_use]
    pub fn is_in_use(&self) -> bool {
        self.identity.is_some() && self.fence.is_none()
    }

    /// Whether it is in use, and no copy: no job sends to it, nor brings back to it what was written to its copy.
    #[must_use]
    pub fn is_in_use_as_source(&self) -> bool {
        self.mark.is_none() && self.fence.is_none()
    }

    /// Puts its points into their order.
    pub fn sort(&mut self) {
        self.snapshots.sort_by_key(|point| point.create_txg);
        self.bookmarks.sort_by_key(|point| point.create_txg);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_read_as_they_are_written() {
        for text in ["vm:00000000000000ff", "vm:00000000000000ff:1234"] {
            assert_eq!(text.parse::<Mark>().expect("a mark").to_string(), text);
        }
        for text in ["", "vm", "vm:x", "vm:1:y", "vm:1:2:3"] {
            assert!(text.parse::<Mark>().is_err(), "{text}");
        }
    }
}
