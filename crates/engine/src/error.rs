//! Why a request about a pool or a dataset failed.

use dsl::{DslError, ImmutableError, RedactionError};
use pool::PoolError;
use zpl::FsError;

use crate::property::PropertyError;

/// Why a request about a pool or a dataset failed.
///
/// The text is the clause OpenZFS's commands print after `cannot ... 'NAME': `.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// No pool of that name is imported.
    #[error("no such pool")]
    PoolNotFound(String),
    /// A pool of that name is imported already.
    #[error("a pool with that name already exists")]
    PoolExists(String),
    /// The pool was exported, destroyed or closed meanwhile.
    #[error("pool is no longer imported")]
    PoolClosed,
    /// No dataset of that name.
    #[error("dataset does not exist")]
    DatasetNotFound(String),
    /// The parent of the dataset to be made does not exist.
    #[error("parent does not exist")]
    ParentNotFound(String),
    /// A dataset of that name exists.
    #[error("dataset already exists")]
    DatasetExists(String),
    /// The dataset has children, which the request did not include.
    #[error("filesystem has children")]
    HasChildren {
        /// Names of the children, the snapshots among them.
        children: Vec<String>,
    },
    /// The dataset is in use.
    #[error("dataset is busy")]
    Busy(String),
    /// A destroy of a snapshot that has clones.
    #[error("snapshot has dependent clones")]
    HasClones(String),
    /// A hold with this tag exists.
    #[error("tag already exists on this dataset")]
    TagExists(String),
    /// There is no hold with this tag.
    #[error("no such tag on this dataset")]
    NoSuchTag(String),
    /// A promotion of a dataset that is no clone.
    #[error("not a cloned filesystem")]
    NotAClone(String),
    /// Snapshots of both datasets of a promotion have the same names.
    #[error("snapshot name '{}' from origin conflicts with '{}' from target", names.join(" "), names.join(" "))]
    Conflicts {
        /// The names, without the dataset's.
        names: Vec<String>,
        /// The origin's dataset.
        origin: String,
    },
    /// A rollback to a snapshot that is not the newest.
    #[error("more recent snapshots or bookmarks exist")]
    NotNewest(String),
    /// A bookmark of something that is no earlier point of its dataset.
    #[error("source is not an ancestor of the new bookmark's dataset")]
    NotAncestor(String),
    /// A stream cannot count from this: it does not come before what is sent.
    #[error("not an earlier snapshot from the same fs")]
    NotEarlier(String),
    /// The dataset is encrypted and its key is not loaded.
    #[error("encryption key not loaded")]
    KeyNotLoaded(String),
    /// A key is not the one of the dataset.
    #[error("Incorrect key provided for '{0}'.")]
    WrongKey(String),
    /// A snapshot is immutable.
    #[error("{0}")]
    Immutable(ImmutableError),
    /// A stream was refused: the whole message, as OpenZFS's command prints it.
    #[error("{0}")]
    Receive(String),
    /// All of a replication stream was received, but not every rename and destroy could be made.
    #[error("cannot receive: some datasets could not be renamed or destroyed")]
    ReceivedPartly,
    /// No receive was interrupted that could be given up.
    #[error("'{0}' does not have any resumable receive state to abort")]
    NothingToResume(String),
    /// The operation is not for datasets of this kind.
    #[error("operation not applicable to datasets of this type")]
    WrongKind(String),
    /// A property or its value was refused.
    #[error("{0}")]
    Property(#[from] PropertyError),
    /// A pool property or its value was refused, or something else about the whole pool.
    #[error(transparent)]
    Pool(PoolError),
    /// No space, a quota or a reservation is in the way.
    #[error("out of space")]
    OutOfSpace,
    /// The caller has no permission to do this, by delegation neither.
    #[error("permission denied")]
    Permission,
    /// The host could not give a thread or a driver.
    #[error("cannot start: {0}")]
    NoThread(String),
    /// A redaction was not made, or a stream with redaction not sent.
    #[error("{0}")]
    Redaction(#[from] RedactionError),
    /// Another failure among the datasets; the text is OpenZFS's, where it has one.
    #[error("{0}")]
    Dataset(String),
    /// A file operation failed.
    #[error(transparent)]
    Fs(#[from] FsError),
    /// A volume could not be opened or changed.
    #[error(transparent)]
    Volume(#[from] zvol::VolumeError),
}

impl From<PoolError> for EngineError {
    fn from(error: PoolError) -> Self {
        match error {
            PoolError::Closed => Self::PoolClosed,
            other => Self::Pool(other),
        }
    }
}

impl From<DslError> for EngineError {
    fn from(error: DslError) -> Self {
        let text = error.to_string();
        match error {
            DslError::NotFound { name } => Self::DatasetNotFound(name),
            DslError::Exists { name } => Self::DatasetExists(name),
            DslError::ParentNotFound { name } => Self::ParentNotFound(name),
            DslError::Busy { name } => Self::Busy(name),
            DslError::HasClones { name } => Self::HasClones(name),
            DslError::TagExists { name } => Self::TagExists(name),
            DslError::NoSuchTag { name } => Self::NoSuchTag(name),
            DslError::NotAClone { name } => Self::NotAClone(name),
            DslError::Conflicts { names, origin } => Self::Conflicts { names, origin },
            DslError::NotNewest { name } => Self::NotNewest(name),
            DslError::NotAncestor { name } => Self::NotAncestor(name),
            DslError::NotEarlier { name } => Self::NotEarlier(name),
            DslError::KeyNotLoaded { name } => Self::KeyNotLoaded(name),
            DslError::WrongKey { name } => Self::WrongKey(name),
            DslError::WrongKind { name } => Self::WrongKind(name),
            DslError::NoSpace | DslError::Quota { .. } => Self::OutOfSpace,
            DslError::Property(error) => Self::Property(error),
            DslError::Redaction(error) => Self::Redaction(error),
            DslError::Immutable(error) => Self::Immutable(error),
            _ => Self::Dataset(text),
        }
    }
}

/// Returns the error of a file operation that failed for its dataset or pool.
pub(crate) fn as_fs_error(error: &EngineError) -> FsError {
    match error {
        EngineError::Fs(error) => *error,
        EngineError::DatasetNotFound(_) | EngineError::WrongKind(_) => FsError::Stale,
        EngineError::PoolClosed | EngineError::Busy(_) => FsError::Busy,
        EngineError::KeyNotLoaded(_) => FsError::KeyNotLoaded,
        _ => FsError::Io,
    }
}
