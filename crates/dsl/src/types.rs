//! Plain types of the public surface: what is known of a dataset, what to create, how much to reserve.

use ondisk::feature::Feature;
use ondisk::{Guid, ObjectId, Txg};

use crate::key_format::NewKey;
use crate::property::{DatasetKind, Kinds, Property, Setting, Source, Value};

/// How a hierarchy is opened.
#[derive(Clone, Debug)]
pub struct HierarchyOptions {
    /// The pool's name: the first component of every dataset's name.
    pub pool_name: String,
    /// Nothing is written; datasets open read-only.
    pub read_only: bool,
    /// The version of the pool, as its uberblock says: 1 to 28, or 5000.
    pub version: u64,
}

/// What a new pool's hierarchy starts with.
#[derive(Clone, Debug)]
pub struct NewHierarchy {
    /// The version of the pool: 1 to 28, or 5000.
    pub version: u64,
    /// The features to enable; those they depend on come with them.
    pub features: Vec<&'static Feature>,
    /// Properties of the root dataset.
    pub settings: Vec<Setting>,
    /// Its key, if it is to be encrypted.
    pub key: Option<NewKey>,
}

/// A dataset to be created.
#[derive(Clone, Debug)]
pub struct NewDataset {
    /// Its full name; the parent must exist.
    pub name: String,
    /// File system or volume.
    pub kind: DatasetKind,
    /// Properties given by the user.
    pub settings: Vec<Setting>,
    /// The uid that gets the permissions delegated to creators.
    pub creator: u32,
    /// The key of its own that the properties ask for ([`crate::Hierarchy::plan_key`]).
    pub key: Option<NewKey>,
}

/// I/O of a dataset's contents since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Requests to read.
    pub reads: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Requests to write.
    pub writes: u64,
    /// Bytes written.
    pub written_bytes: u64,
}

/// What a transaction may cost, told before it begins.
#[derive(Clone, Copy, Debug, Default)]
pub struct Estimate {
    /// Bytes of metadata, or of data whose blocks are not known, that may become dirty.
    pub bytes: u64,
    /// Blocks of data that may be written. Small ones take more room than their bytes: each is rounded up to what its
    /// vdev allocates at least, and each has a block pointer. Of large ones a few bytes make all of the block dirty.
    pub blocks: u64,
    /// Size of each of them in bytes.
    pub block_size: u64,
    /// Bytes (deflated) of blocks that are cloned: they count for quotas as others do, and are not written.
    pub shared: u64,
    /// The transaction frees more than it writes: it may use part of the slop space and is not
    /// held back by quotas.
    pub net_free: bool,
}

impl Estimate {
    /// A transaction that dirties about `bytes`.
    #[must_use]
    pub fn bytes(bytes: u64) -> Self {
        Self {
            bytes,
            ..Self::default()
        }
    }

    /// A transaction that writes `blocks` blocks of `block_size` bytes, and about `bytes` besides.
    #[must_use]
    pub fn blocks(blocks: u64, block_size: u64, bytes: u64) -> Self {
        Self {
            bytes,
            blocks,
            block_size,
            ..Self::default()
        }
    }

    /// A transaction that clones blocks of together `shared` bytes (deflated), and dirties about `bytes`.
    #[must_use]
    pub fn clones(shared: u64, bytes: u64) -> Self {
        Self {
            bytes,
            shared,
            ..Self::default()
        }
    }

    /// What may become dirty, for the write throttle.
    #[must_use]
    pub fn dirty_bytes(&self) -> u64 {
        self.bytes
            .saturating_add(self.blocks.saturating_mul(self.block_size))
    }

    /// A transaction that in the end frees space, such as removing a file.
    #[must_use]
    pub fn freeing(bytes: u64) -> Self {
        Self {
            bytes,
            net_free: true,
            ..Self::default()
        }
    }
}

/// Space of a dataset, in bytes. Names follow the properties.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpaceInfo {
    /// Charged to the dataset and all below it (of a snapshot: what its destruction would free).
    pub used: u64,
    /// What it may still take; 0 for snapshots.
    pub available: u64,
    /// Reachable from it.
    pub referenced: u64,
    /// Of `used`: held by snapshots only.
    pub used_by_snapshots: u64,
    /// Of `used`: the dataset itself.
    pub used_by_dataset: u64,
    /// Of `used`: children, with their reservations.
    pub used_by_children: u64,
    /// Of `used`: refreservation not yet filled.
    pub used_by_refreservation: u64,
    /// As `used` before compression.
    pub logical_used: u64,
    /// As `referenced` before compression.
    pub logical_referenced: u64,
    /// Referenced and written since the previous snapshot.
    pub written: u64,
    /// 100 times the ratio of logical to compressed bytes of everything charged.
    pub compress_ratio: u64,
    /// The same of everything referenced.
    pub ref_compress_ratio: u64,
    /// Referred to by no other dataset.
    pub unique: u64,
}

/// What is known of a file system, volume, snapshot or bookmark without its property list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DatasetInfo {
    /// Full name: `pool/fs`, `pool/fs@snapshot`, `pool/fs#bookmark`.
    pub name: String,
    /// What it is.
    pub kind: DatasetKind,
    /// For a snapshot or bookmark: the kind of dataset it is of. Otherwise `kind`.
    pub head_kind: DatasetKind,
    /// Its identity, kept over send and receive.
    pub guid: Guid,
    /// Its object in the meta-objset, the `objsetid`; 0 for bookmarks.
    pub object: ObjectId,
    /// Txg it was created in.
    pub create_txg: Txg,
    /// Seconds since 1970.
    pub creation: u64,
    /// Space numbers.
    pub space: SpaceInfo,
    /// False for a bookmark that does not remember space.
    pub space_known: bool,
    /// The snapshot a clone came from.
    pub origin: Option<String>,
    /// Clones of a snapshot.
    pub clones: Vec<String>,
    /// Holds on a snapshot.
    pub user_refs: u64,
    /// A snapshot to be destroyed with its last hold or clone.
    pub defer_destroy: bool,
    /// A half-received dataset.
    pub inconsistent: bool,
}

/// One line of `zfs get`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PropertyEntry {
    /// Its name.
    pub name: String,
    /// Which native property, or `None` for a user property.
    pub property: Option<Property>,
    /// The effective value.
    pub value: Value,
    /// Where it comes from.
    pub source: Source,
    /// The value a stream brought, whether in force or not.
    pub received: Option<Value>,
}

impl PropertyEntry {
    /// Shows the value as `zfs get` does; `literal` is `-p`. Dates come out as seconds.
    #[must_use]
    pub fn display(&self, literal: bool) -> String {
        match (self.property, &self.value) {
            (Some(property), value) => crate::property::display(property, value, literal),
            (None, Value::Text(text)) => text.clone(),
            (None, Value::Number(number)) => number.to_string(),
        }
    }
}

/// What to list.
#[derive(Clone, Copy, Debug)]
pub struct ListSpec {
    /// How many levels below the starting dataset; `None` is all of them. A snapshot is one level
    /// below its dataset.
    pub depth: Option<u32>,
    /// Which kinds.
    pub kinds: Kinds,
}

/// A dataset with its whole property list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DatasetProperties {
    /// What is known of it.
    pub info: DatasetInfo,
    /// Every property that applies, in the order of `zfs get all`: native ones first, then user
    /// properties by name. `mounted` is always "no" here: the engine knows.
    pub properties: Vec<PropertyEntry>,
    /// User properties among those asked for by name that have no value in force, with the one that a stream brought.
    pub set_aside: Vec<(String, Value)>,
}

/// A change of a dataset, for the pool's history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HistoryEvent {
    /// What: `create`, `destroy`, `rename`, `set`, `inherit`, `snapshot`, ...
    pub name: &'static str,
    /// The dataset.
    pub dataset: String,
    /// Its object in the meta-objset.
    pub object: ObjectId,
    /// Details.
    pub text: String,
    /// The txg it happened in.
    pub txg: Txg,
}

/// The snapshot whose receive was interrupted, as the stream that is a part of it names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SavedReceive {
    pub(crate) guid: u64,
    /// At the first sender.
    pub(crate) name: Vec<u8>,
}

/// A record that was applied: where a receive would go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) struct ResumePoint {
    pub(crate) object: u64,
    pub(crate) offset: u64,
    /// Bytes of the stream so far, those before an interruption included.
    pub(crate) bytes: u64,
}
