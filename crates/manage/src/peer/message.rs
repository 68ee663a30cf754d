//! What the two appliances say to each other, as JSON.
//!
//! A connection begins with a [`Hello`] of each side. Then the one that connected gives [`Request`]s, one after the other, and the other answers
//! each with a `Result`: what was asked for, or a [`Fault`]. Behind the answer to `send`, and behind that to `receive` in the other direction,
//! comes a stream; of `receive` there is a second answer when it was received.

use engine::DatasetKind;
use serde::{Deserialize, Serialize};

use crate::replication::{
    Identity, Interrupted, Point, ReadonlySetting, ReceiveSpec, ReplicaDataset, ReplicationError,
    StreamFrom, StreamSpec,
};

/// The protocol's name in the first message and in TLS (ALPN).
pub const PROTOCOL: &str = "sanbox-replication";
/// The version that this program speaks, and the only one.
pub const VERSION: u32 = 2;

/// The first message of each side.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// [`PROTOCOL`].
    pub protocol: String,
    /// Version of it. What else a later version says is passed over.
    pub version: u32,
    /// Version of the program, for words.
    pub program: String,
}

impl Hello {
    /// Returns that of this program.
    #[must_use]
    pub fn own() -> Self {
        Self {
            protocol: PROTOCOL.to_owned(),
            version: VERSION,
            program: env!("CARGO_PKG_VERSION").to_owned(),
        }
    }

    /// Says what is wrong with the other side's, if anything.
    #[must_use]
    pub fn problem(&self) -> Option<String> {
        if self.protocol != PROTOCOL {
            return Some("what answers there is no sanbox that replicates".to_owned());
        }
        let older = match self.version.cmp(&VERSION) {
            std::cmp::Ordering::Equal => return None,
            std::cmp::Ordering::Less => "the peer",
            std::cmp::Ordering::Greater => "this one",
        };
        Some(format!(
            "the peer (sanbox {}) speaks version {} of the protocol, this one (sanbox {}) version {VERSION}: update {older}",
            self.program,
            self.version,
            env!("CARGO_PKG_VERSION")
        ))
    }
}

/// What a stream counts from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WireFrom {
    /// A snapshot.
    Snapshot(String),
    /// A bookmark.
    Bookmark(String),
}

/// As [`StreamSpec`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs, reason = "each field is that of StreamSpec")]
pub struct WireStream {
    pub dataset: String,
    pub snapshot: String,
    pub from: Option<WireFrom>,
    pub token: Option<String>,
    pub properties: bool,
    pub raw: bool,
    /// How its bytes are compressed, as a job says it; as by default where nothing is said, which is what a peer of a version before knows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compress: Option<String>,
}

impl From<StreamSpec> for WireStream {
    fn from(spec: StreamSpec) -> Self {
        Self {
            dataset: spec.dataset,
            snapshot: spec.snapshot,
            from: spec.from.map(|from| match from {
                StreamFrom::Snapshot(name) => WireFrom::Snapshot(name),
                StreamFrom::Bookmark(name) => WireFrom::Bookmark(name),
            }),
            token: spec.token,
            properties: spec.properties,
            raw: spec.raw,
            compress: None,
        }
    }
}

impl From<WireStream> for StreamSpec {
    fn from(spec: WireStream) -> Self {
        Self {
            dataset: spec.dataset,
            snapshot: spec.snapshot,
            from: spec.from.map(|from| match from {
                WireFrom::Snapshot(name) => StreamFrom::Snapshot(name),
                WireFrom::Bookmark(name) => StreamFrom::Bookmark(name),
            }),
            token: spec.token,
            properties: spec.properties,
            raw: spec.raw,
        }
    }
}

/// As [`ReceiveSpec`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs, reason = "each field is that of ReceiveSpec")]
pub struct WireReceive {
    pub dataset: String,
    pub set: Vec<(String, String)>,
    pub excluded: Vec<String>,
}

impl From<ReceiveSpec> for WireReceive {
    fn from(spec: ReceiveSpec) -> Self {
        Self {
            dataset: spec.dataset,
            set: spec.set,
            excluded: spec.excluded,
        }
    }
}

impl From<WireReceive> for ReceiveSpec {
    fn from(spec: WireReceive) -> Self {
        Self {
            dataset: spec.dataset,
            set: spec.set,
            excluded: spec.excluded,
            sent: None,
        }
    }
}

/// What is asked for: what a job asks of a side (`Endpoint` and `Switchover`), and to be paired.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "kebab-case", deny_unknown_fields)]
#[allow(missing_docs, reason = "each is a call of Endpoint or Switchover")]
pub enum Request {
    /// Redeems an invitation: the letters of its code, the proof in hexadecimal digits, and what the redeemer calls itself.
    Pair {
        id: String,
        proof: String,
        name: String,
    },
    List {
        root: String,
    },
    /// Of the pool that the root lies in.
    WriteOut {
        root: String,
    },
    /// Of the pool that the root lies in.
    UnchangedSince {
        root: String,
    },
    Exists {
        dataset: String,
    },
    Find {
        dataset: String,
        guid: u64,
    },
    Snapshot {
        names: Vec<String>,
    },
    Size {
        stream: WireStream,
    },
    Send {
        stream: WireStream,
    },
    Receive {
        into: WireReceive,
    },
    DiscardInterrupted {
        dataset: String,
    },
    Bookmark {
        pairs: Vec<(String, String)>,
    },
    DestroyBookmarks {
        names: Vec<String>,
    },
    DestroySnapshots {
        names: Vec<String>,
    },
    RenameSnapshot {
        dataset: String,
        from: String,
        to: String,
    },
    Hold {
        names: Vec<String>,
        tag: String,
    },
    Release {
        names: Vec<String>,
        tag: String,
    },
    Set {
        dataset: String,
        name: String,
        value: String,
    },
    Rollback {
        dataset: String,
        snapshot: String,
        newer: Vec<String>,
    },
    Inherit {
        dataset: String,
        name: String,
        received: bool,
    },
    CloneSnapshot {
        snapshot: String,
        name: String,
        mark: String,
    },
    Destroy {
        dataset: String,
    },
    ReplayLogs {
        root: String,
    },
    TakeOver {
        root: String,
        job: String,
    },
    /// With the generation of the dataset that is in use in place of this one.
    Fence {
        dataset: String,
        generation: u64,
        job: String,
    },
}

/// What was redeemed: the inviter's proof, and what the redeemer may do there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Paired {
    /// The proof in hexadecimal digits.
    pub proof: String,
    /// What the inviter calls the redeemer.
    pub name: String,
    /// Datasets that it reaches there.
    pub datasets: Vec<String>,
    /// It may send there.
    pub push: bool,
    /// It may take what is there.
    pub pull: bool,
    /// It may put what it sent there in use.
    #[serde(default)]
    pub failover: bool,
}

/// Why something was not done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "cause", rename_all = "kebab-case")]
#[allow(missing_docs, reason = "each is that of ReplicationError")]
pub enum Fault {
    Unreachable { place: String, why: String },
    OutOfSpace { target: String },
    Damaged { what: String },
    Denied { what: String },
    Failed { why: String },
}

impl From<ReplicationError> for Fault {
    fn from(error: ReplicationError) -> Self {
        match error {
            ReplicationError::Unreachable { place, why } => Self::Unreachable { place, why },
            ReplicationError::OutOfSpace { target } => Self::OutOfSpace { target },
            ReplicationError::Damaged { what } => Self::Damaged { what },
            ReplicationError::Denied { what, .. } => Self::Denied { what },
            other => Self::Failed {
                why: other.to_string(),
            },
        }
    }
}

impl Fault {
    /// The error that a job meets; `peer` is the name of the one that said so.
    #[must_use]
    pub fn of_peer(self, peer: &str) -> ReplicationError {
        match self {
            Self::Unreachable { place, why } => ReplicationError::Unreachable {
                place: format!("{place} of peer '{peer}'"),
                why,
            },
            Self::OutOfSpace { target } => ReplicationError::OutOfSpace {
                target: format!("{target} of peer '{peer}'"),
            },
            Self::Damaged { what } => ReplicationError::Damaged { what },
            Self::Denied { what } => ReplicationError::Denied {
                peer: peer.to_owned(),
                what,
            },
            Self::Failed { why } => ReplicationError::Failed(format!("peer '{peer}': {why}")),
        }
    }
}

/// As [`Point`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "each field is that of Point")]
pub struct WirePoint {
    pub name: String,
    pub guid: u64,
    pub create_txg: u64,
    pub holds: u64,
    pub creation: i64,
}

impl From<Point> for WirePoint {
    fn from(point: Point) -> Self {
        Self {
            name: point.name,
            guid: point.guid,
            create_txg: point.create_txg,
            holds: point.holds,
            creation: point.creation,
        }
    }
}

impl From<WirePoint> for Point {
    fn from(point: WirePoint) -> Self {
        Self {
            name: point.name,
            guid: point.guid,
            create_txg: point.create_txg,
            holds: point.holds,
            creation: point.creation,
        }
    }
}

/// As [`Interrupted`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "each field is that of Interrupted")]
pub struct WireInterrupted {
    pub token: String,
    pub from_guid: Option<u64>,
    pub to_guid: u64,
}

/// As [`ReplicaDataset`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "each field is that of ReplicaDataset")]
pub struct WireDataset {
    pub name: String,
    pub guid: u64,
    pub volume: bool,
    pub snapshots: Vec<WirePoint>,
    pub bookmarks: Vec<WirePoint>,
    pub written_bytes: u64,
    pub mark: Option<String>,
    #[serde(default)]
    pub identity: Option<u64>,
    /// Of the identity; 1 from a program that knows no others.
    #[serde(default)]
    pub generation: Option<u64>,
    /// As its property has it.
    #[serde(default)]
    pub fence: Option<String>,
    /// `readonly` is on, set on the dataset itself.
    #[serde(default)]
    pub is_readonly: bool,
    /// It was so before replication set it.
    #[serde(default)]
    pub keeps_readonly: bool,
    pub interrupted: Option<WireInterrupted>,
}

impl From<ReplicaDataset> for WireDataset {
    fn from(dataset: ReplicaDataset) -> Self {
        Self {
            name: dataset.name,
            guid: dataset.guid,
            volume: dataset.kind == DatasetKind::Volume,
            snapshots: dataset.snapshots.into_iter().map(WirePoint::from).collect(),
            bookmarks: dataset.bookmarks.into_iter().map(WirePoint::from).collect(),
            written_bytes: dataset.written_bytes,
            mark: dataset.mark.map(|mark| mark.to_string()),
            identity: dataset.identity.map(|identity| identity.guid),
            generation: dataset.identity.map(|identity| identity.generation),
            fence: dataset.fence.map(|fence| fence.to_string()),
            is_readonly: dataset.readonly.is_on,
            keeps_readonly: dataset.readonly.is_kept,
            interrupted: dataset.interrupted.map(|rest| WireInterrupted {
                token: rest.token,
                from_guid: rest.from_guid,
                to_guid: rest.to_guid,
            }),
        }
    }
}

impl From<WireDataset> for ReplicaDataset {
    fn from(dataset: WireDataset) -> Self {
        let kind = match dataset.volume {
            true => DatasetKind::Volume,
            false => DatasetKind::Filesystem,
        };
        let mut read = Self {
            snapshots: dataset.snapshots.into_iter().map(Point::from).collect(),
            bookmarks: dataset.bookmarks.into_iter().map(Point::from).collect(),
            written_bytes: dataset.written_bytes,
            mark: dataset.mark.and_then(|mark| mark.parse().ok()),
            identity: dataset.identity.map(|guid| Identity {
                guid,
                generation: dataset.generation.unwrap_or(1),
            }),
            fence: dataset.fence.and_then(|fence| fence.parse().ok()),
            readonly: ReadonlySetting {
                is_on: dataset.is_readonly,
                is_kept: dataset.keeps_readonly,
                at_source: None,
            },
            interrupted: dataset.interrupted.map(|rest| Interrupted {
                token: rest.token,
                from_guid: rest.from_guid,
                to_guid: rest.to_guid,
            }),
            ..Self::new(dataset.name, dataset.guid, kind)
        };
        read.sort();
        read
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_read_as_they_are_written_and_no_others() {
        let stream = WireStream {
            dataset: "tank/a".to_owned(),
            snapshot: "s".to_owned(),
            from: Some(WireFrom::Bookmark("b".to_owned())),
            token: None,
            properties: true,
            raw: false,
            compress: None,
        };
        let request = Request::Send { stream };
        let text = serde_json::to_string(&request).expect("JSON");
        assert_eq!(
            text,
            r#"{"op":"send","stream":{"dataset":"tank/a","snapshot":"s","from":{"bookmark":"b"},"token":null,"properties":true,"raw":false}}"#
        );
        assert_eq!(
            serde_json::from_str::<Request>(&text).expect("read"),
            request
        );
        for text in [
            r#"{"op":"format"}"#,
            r#"{"op":"list","root":"a","force":true}"#,
            r#"{"op":"list"}"#,
            r#"{"root":"a"}"#,
            "[]",
        ] {
            assert!(serde_json::from_str::<Request>(text).is_err(), "{text}");
        }
    }

    #[test]
    fn another_version_is_told_what_to_do() {
        assert_eq!(Hello::own().problem(), None);
        let hello = |version| Hello {
            version,
            program: "9.9".to_owned(),
            ..Hello::own()
        };
        let newer = hello(VERSION + 1).problem().expect("another");
        assert!(
            newer.contains("version 3") && newer.ends_with("update this one"),
            "{newer}"
        );
        let older = hello(0).problem().expect("another");
        assert!(older.ends_with("update the peer"), "{older}");
        let other = Hello {
            protocol: "http".to_owned(),
            ..Hello::own()
        };
        assert!(other.problem().is_some());
    }

    #[test]
    fn faults_keep_what_they_are() {
        for error in [
            ReplicationError::Unreachable {
                place: "pool 'a'".to_owned(),
                why: "it is not imported".to_owned(),
            },
            ReplicationError::OutOfSpace {
                target: "tank".to_owned(),
            },
            ReplicationError::Damaged {
                what: "tank/a@s".to_owned(),
            },
            ReplicationError::Denied {
                peer: "b".to_owned(),
                what: "'tank' is none of its datasets".to_owned(),
            },
            ReplicationError::Failed("no".to_owned()),
        ] {
            let text = serde_json::to_string(&Fault::from(error.clone())).expect("JSON");
            let read: Fault = serde_json::from_str(&text).expect("read");
            assert_eq!(read.of_peer("b").cause(), error.cause());
        }
    }
}
