//! Errors of the dataset layer.
//!
//! The texts are those OpenZFS's commands print after `cannot DO 'NAME': `, since tools match them.

use std::sync::Arc;

use dmu::DmuError;
use ondisk::{DecodeError, ObjectId};
use zio::ZioError;

use crate::property::PropertyError;

/// Result of the dataset layer.
pub type Result<T, E = DslError> = std::result::Result<T, E>;

/// Names that were refused, each with its reason. When there is one, nothing was done.
pub type Refusals = Vec<(String, DslError)>;

/// Why an operation on datasets failed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum DslError {
    /// No such file system, volume, snapshot or bookmark.
    #[error("dataset does not exist")]
    NotFound {
        /// The full name asked for.
        name: String,
    },
    /// The name is taken.
    #[error("dataset already exists")]
    Exists {
        /// The full name asked for.
        name: String,
    },
    /// The parent of a name does not exist.
    #[error("parent does not exist")]
    ParentNotFound {
        /// The parent's name.
        name: String,
    },
    /// The parent of a name is a volume.
    #[error("parent is not a filesystem")]
    ParentNotFilesystem {
        /// The parent's name.
        name: String,
    },
    /// In use: mounted, opened, or has something that depends on it.
    #[error("dataset is busy")]
    Busy {
        /// The dataset's name.
        name: String,
    },
    /// A destroy of a dataset that has child datasets.
    #[error("filesystem has children")]
    HasChildren {
        /// The dataset's name.
        name: String,
    },
    /// A destroy of a dataset that has snapshots.
    #[error("filesystem has children")]
    HasSnapshots {
        /// The dataset's name.
        name: String,
    },
    /// A destroy of a snapshot that has clones.
    #[error("snapshot has dependent clones")]
    HasClones {
        /// The snapshot's name.
        name: String,
    },
    /// A hold with this tag exists already.
    #[error("tag already exists on this dataset")]
    TagExists {
        /// The snapshot's name.
        name: String,
    },
    /// No hold with this tag.
    #[error("no such tag on this dataset")]
    NoSuchTag {
        /// The snapshot's name.
        name: String,
    },
    /// A promotion of a dataset that is no clone.
    #[error("not a cloned filesystem")]
    NotAClone {
        /// The dataset's name.
        name: String,
    },
    /// Snapshots or bookmarks of the same names stand in the way of a promotion.
    #[error("conflicting snapshot '{}' from parent '{origin}'", names.join("', '"))]
    Conflicts {
        /// Their names, without the dataset's.
        names: Vec<String>,
        /// The dataset they would come from.
        origin: String,
    },
    /// A rollback of a dataset without snapshots, or to one it does not have.
    #[error("no snapshot to roll back to")]
    NoSnapshot {
        /// The dataset's name.
        name: String,
    },
    /// A rollback to a snapshot that is not the newest one.
    #[error("more recent snapshots or bookmarks exist")]
    NotNewest {
        /// The dataset's name.
        name: String,
    },
    /// A bookmark of a snapshot that is no earlier point of the same dataset.
    #[error("source is not an ancestor of the new bookmark's dataset")]
    NotAncestor {
        /// The source's name.
        name: String,
    },
    /// A stream cannot count from this: it does not come before what is sent.
    #[error("not an earlier snapshot from the same fs")]
    NotEarlier {
        /// The snapshot or bookmark.
        name: String,
    },
    /// The newest snapshot is not the one that a stream counts from.
    #[error("most recent snapshot does not match incremental source")]
    NoSource {
        /// The dataset.
        name: String,
    },
    /// A stream cannot be received: the dataset changed since its newest snapshot.
    #[error("destination has been modified since most recent snapshot")]
    Modified {
        /// The dataset.
        name: String,
    },
    /// An incremental stream without large blocks for a dataset that has them.
    #[error("incremental send stream requires -L (--large-block), to match previous receive.")]
    LargeBlockMismatch,
    /// The rest of a whole stream for a dataset that is there, without leave to overwrite it.
    #[error("Resuming recv on existing dataset without force")]
    ResumeExists {
        /// The dataset.
        name: String,
    },
    /// The rest of a stream does not go on where the receive was interrupted.
    #[error("the stream does not continue the interrupted receive")]
    NotResumable {
        /// The dataset.
        name: String,
    },
    /// The snapshot that a raw stream counts from has no name for its set of IVs, or the stream does not say it.
    #[error(
        "IV set guid missing. See errata 4 at https://openzfs.github.io/openzfs-docs/msg/ZFS-8000-ER."
    )]
    IvsetMissing,
    /// The snapshot that a raw stream counts from was not received raw: its blocks have other IVs.
    #[error(
        "IV set guid mismatch. See the 'zfs receive' man page section\n discussing the limitations of raw encrypted send streams."
    )]
    IvsetMismatch,
    /// A raw stream of another dataset's keys.
    #[error("encryption key does not match existing key")]
    KeyMismatch,
    /// A raw stream of a cipher that is not known.
    #[error("stream uses crypto parameters not compatible with this pool")]
    ForeignCrypto,
    /// A raw stream of a sender that does not say which objects have spill blocks.
    #[error(
        "Spill block flag missing for raw send.\nThe zfs software on the sending system must be updated."
    )]
    SpillFlagMissing,
    /// A stream with blocks inside pointers for a dataset that is encrypted.
    #[error("incompatible embedded data stream feature with encrypted receive.")]
    EmbeddedForEncrypted,
    /// A corrective receive of a stream of another snapshot.
    #[error("local snapshot doesn't match the snapshot in the provided stream")]
    OtherSnapshot,
    /// A corrective receive whose blocks are cut otherwise than those of the snapshot.
    #[error("stream is not compatible with the data in the pool.")]
    OtherBlocks,
    /// Blocks are lost still after a corrective receive: the stream has other bytes, or the devices did not take them.
    #[error("corrective receive was not able to reconstruct the data needed for healing.")]
    NotHealed,
    /// A stream is damaged, or no stream.
    #[error("invalid stream ({0})")]
    Stream(#[from] crate::stream::StreamError),
    /// Of several names some were refused; nothing was done.
    #[error("{}", refused_text(.0))]
    Refused(Refusals),
    /// Another change in the same txg prevents this one; it is retried in the next txg.
    #[error("try again")]
    Again,
    /// The operation has no meaning for this kind of dataset.
    #[error("operation not applicable to datasets of this type")]
    WrongKind {
        /// The dataset's name.
        name: String,
    },
    /// A name that breaks the rules of names.
    #[error("{why}")]
    BadName {
        /// The name.
        name: String,
        /// The rule, as OpenZFS words it.
        why: String,
    },
    /// A name of 256 bytes or more, or nested deeper than 50 levels.
    #[error("name is too long")]
    NameTooLong {
        /// The name.
        name: String,
    },
    /// Rename to another pool.
    #[error("datasets must be within same pool")]
    CrossPool,
    /// Rename of a dataset below itself.
    #[error("New dataset name cannot be a descendant of current dataset name")]
    RenameBelowItself,
    /// The pool has no room.
    #[error("out of space")]
    NoSpace,
    /// A quota would be exceeded.
    #[error("out of space")]
    Quota {
        /// The dataset whose quota it is.
        name: String,
    },
    /// A limit on the number of file systems or snapshots would be exceeded.
    #[error("out of space")]
    CountLimit {
        /// The dataset whose limit it is.
        name: String,
    },
    /// A quota below what is used or reserved.
    #[error("size is less than current used or reserved space")]
    QuotaBelowUsed,
    /// A reservation above what is available.
    #[error("size is greater than available space")]
    ReservationAboveAvailable,
    /// A property or value was refused.
    #[error("{0}")]
    Property(#[from] PropertyError),
    /// The pool lacks a feature the value needs.
    #[error("pool must be upgraded to set this property or value")]
    FeatureDisabled {
        /// The feature's short name.
        feature: &'static str,
    },
    /// The pool or dataset was opened read-only.
    #[error("pool is read-only")]
    ReadOnly,
    /// The pool is of a version that cannot hold what was asked for.
    #[error("pool must be upgraded to {what}")]
    PoolVersionTooOld {
        /// What was asked for, as a verb with its object.
        what: &'static str,
    },
    /// Part of the format this version does not handle.
    #[error("{what} is not supported")]
    Unsupported {
        /// What it is.
        what: &'static str,
    },
    /// The dataset is encrypted and its key is not loaded.
    #[error("encryption key not loaded")]
    KeyNotLoaded {
        /// The dataset's name.
        name: String,
    },
    /// A dataset to be made needs a key that is neither loaded nor given.
    #[error("encryption root's key is not loaded or provided")]
    NoKey,
    /// The key is not the one that the dataset's keys are encrypted with.
    #[error("Incorrect key provided for '{name}'.")]
    WrongKey {
        /// The encryption root.
        name: String,
    },
    /// The key is loaded already.
    #[error("Key already loaded for '{name}'.")]
    KeyLoaded {
        /// The encryption root.
        name: String,
    },
    /// The key is not loaded.
    #[error("Key already unloaded for '{name}'.")]
    KeyUnloaded {
        /// The encryption root.
        name: String,
    },
    /// The dataset is not encrypted.
    #[error("'{name}' is not encrypted.")]
    NotEncrypted {
        /// The dataset.
        name: String,
    },
    /// The dataset's key is wrapped by another one's.
    #[error("Keys must be loaded for encryption root of '{name}' ({root}).")]
    NotEncryptionRoot {
        /// The dataset.
        name: String,
        /// The dataset whose key it is.
        root: String,
    },
    /// A rename would take a dataset away from the encryption root whose key wraps its own.
    #[error("cannot move encrypted child outside of its encryption root")]
    RenameOutsideRoot,
    /// After the promotion the dataset would lie below another encryption root than the one whose key wraps its own.
    #[error("cannot promote dataset outside its encryption root")]
    PromoteOutsideRoot,
    /// A key is not changed.
    #[error("{0}")]
    KeyChange(#[from] KeyChangeError),
    /// The master key of a dataset is not replaced.
    #[error("{0}")]
    KeyRotation(#[from] KeyRotationError),
    /// A redaction, or a stream with redaction, is not made or received.
    #[error("{0}")]
    Redaction(#[from] RedactionError),
    /// A snapshot is immutable.
    #[error("{0}")]
    Immutable(#[from] ImmutableError),
    /// A key could not be used.
    #[error("{0}")]
    Crypt(#[from] codec::crypt::CryptError),
    /// An object of the meta-objset breaks a rule of the format.
    #[error("corrupt {what} (meta-objset object {object})")]
    Corrupt {
        /// The structure.
        what: &'static str,
        /// The object.
        object: ObjectId,
    },
    /// A decoder refused an object of the meta-objset.
    #[error("cannot decode {what} (meta-objset object {object}): {source}")]
    Decode {
        /// The structure.
        what: &'static str,
        /// The object.
        object: ObjectId,
        /// The decoder's error.
        source: DecodeError,
    },
    /// The object layer failed.
    #[error(transparent)]
    Dmu(#[from] DmuError),
    /// The block layer failed.
    #[error("{0}")]
    Zio(Arc<ZioError>),
    /// The intent log failed.
    #[error(transparent)]
    Log(#[from] zil::ZilError),
    /// Filling a new file system failed.
    #[error("cannot fill the new dataset: {0}")]
    Init(String),
}

/// Why a key is not changed, in OpenZFS's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyChangeError {
    /// The dataset is not encrypted.
    #[error("Dataset not encrypted.")]
    NotEncrypted,
    /// It is a clone, which uses its origin's key.
    #[error("Keys cannot be changed on clones.")]
    Clone,
    /// Its key is not loaded.
    #[error("Key must be loaded.")]
    NotLoaded,
    /// It inherits its key already.
    #[error("Key inheritting can only be performed on encryption roots.")]
    NotRoot,
    /// It is the pool's root dataset.
    #[error("Root dataset cannot inherit key.")]
    NoParent,
    /// There is no key to inherit.
    #[error("Parent must be encrypted.")]
    ParentNotEncrypted,
    /// The key to inherit is not loaded.
    #[error("Parent key must be loaded.")]
    ParentNotLoaded,
}

/// Why the master key of a dataset is not replaced.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyRotationError {
    /// The dataset is not encrypted.
    #[error("it is not encrypted")]
    NotEncrypted,
    /// It is a clone, which shares blocks and their key with its origin.
    #[error(
        "it is a clone of '{origin}', which has the same key: promote it, or rotate the key of a copy"
    )]
    Clone {
        /// The snapshot that it was cloned from.
        origin: String,
    },
    /// Clones of its snapshots share blocks and their key with it.
    #[error("clones of its snapshots have the same key: {}", clones.join(", "))]
    Clones {
        /// Their names.
        clones: Vec<String>,
    },
    /// Parts of it were left out when it was received.
    #[error("it was received redacted")]
    Redacted,
}

/// Why a redaction is not made, or a stream with redaction not sent or received, in OpenZFS's words where it has some.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RedactionError {
    /// The pool has not the feature.
    #[error("redaction bookmarks feature not enabled")]
    NotEnabled,
    /// More redaction snapshots than a list can name.
    #[error("too many redaction snapshots specified")]
    TooManySnapshots,
    /// A redaction snapshot does not come from the snapshot that is redacted, or one of both is no snapshot.
    #[error("redaction snapshot must be descendent of snapshot being redacted")]
    NotDescendant,
    /// One of the snapshots was received redacted itself.
    #[error("attempted to redact redacted dataset or with respect to redacted dataset")]
    AlreadyRedacted,
    /// An interrupted redaction was of other redaction snapshots.
    #[error("attempted to resume redaction  with a mismatched redaction list")]
    OtherSnapshots,
    /// A bookmark without a redaction list.
    #[error("not a redaction bookmark")]
    NotRedactionBookmark,
    /// The list of a bookmark does not tell of all blocks: it was interrupted.
    #[error("incomplete redaction bookmark provided")]
    Incomplete,
    /// The bookmark is of another snapshot than the one that is sent.
    #[error("the redaction bookmark was not made of this snapshot")]
    OtherSnapshot,
    /// A stream that would leave blocks of a redacted dataset missing that it takes for present.
    #[error("stream is not compatible with the redaction of the dataset")]
    Incompatible,
}

/// Why something is refused for the sake of an immutable snapshot.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ImmutableError {
    /// It would be destroyed, or its hold released.
    #[error("snapshot is immutable until {0}: nobody destroys or releases it before")]
    Until(String),
    /// The time would be shortened or taken away.
    #[error("snapshot is immutable until {0}: that can be prolonged, not shortened")]
    Shortened(String),
    /// No time, or not in the form.
    #[error("org.sanbox:immutable-until is a time of the form 2027-01-31T00:00:00Z (UTC)")]
    BadTime,
    /// The property was to be set on something else.
    #[error("org.sanbox:immutable-until is a property of snapshots")]
    NotASnapshot,
    /// A property that only this layer writes.
    #[error("org.sanbox:time-seen is not set by hand")]
    TimeSeen,
    /// A pool would be destroyed that has such a snapshot.
    #[error("snapshot '{name}' is immutable until {until}")]
    InPool {
        /// The snapshot.
        name: String,
        /// Its time.
        until: String,
    },
}

fn refused_text(refused: &[(String, DslError)]) -> String {
    let each: Vec<String> = refused
        .iter()
        .map(|(name, error)| format!("{name}: {error}"))
        .collect();
    each.join("; ")
}

impl From<ZioError> for DslError {
    fn from(error: ZioError) -> Self {
        Self::Zio(Arc::new(error))
    }
}

impl DslError {
    /// Whether the dataset, snapshot or parent is missing.
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::NotFound { .. })
    }

    /// Whether space ran out, in the pool or under a quota.
    #[must_use]
    pub fn is_no_space(&self) -> bool {
        match self {
            Self::NoSpace | Self::Quota { .. } => true,
            Self::Dmu(error) => error.is_no_space(),
            _ => false,
        }
    }

    /// Fails when names were refused.
    pub(crate) fn if_refused(refused: Refusals) -> Result<()> {
        if refused.is_empty() {
            Ok(())
        } else {
            Err(Self::Refused(refused))
        }
    }

    pub(crate) fn corrupt(what: &'static str, object: ObjectId) -> Self {
        Self::Corrupt { what, object }
    }
}
