//! What can go wrong with an intent log.

use std::sync::Arc;

use dmu::DmuError;
use zio::ZioError;

/// Result of this crate.
pub type Result<T> = std::result::Result<T, ZilError>;

/// An error of an intent log.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ZilError {
    /// The transaction clock or the objset failed.
    #[error(transparent)]
    Dmu(#[from] DmuError),
    /// A block could not be set aside, written or freed.
    #[error("{0}")]
    Block(Arc<ZioError>),
    /// A block that holds acknowledged changes cannot be read.
    #[error("block {block} of the intent log of dataset object {objset} cannot be read")]
    Unreadable {
        /// Object of the dataset.
        objset: u64,
        /// Place in the chain.
        block: u64,
    },
    /// Whether data that the log points to was written cannot be known, for a device does not give it.
    #[error(
        "data of record {seq} of the intent log of dataset object {objset} cannot be read: {source}"
    )]
    UnreadableData {
        /// Object of the dataset.
        objset: u64,
        /// Number of the record.
        seq: u64,
        /// What was met.
        source: Arc<ZioError>,
    },
    /// The log holds something that cannot be replayed here.
    #[error("the intent log of dataset object {objset} holds {what}")]
    Unsupported {
        /// Object of the dataset.
        objset: u64,
        /// What it holds.
        what: &'static str,
    },
    /// A record's bytes make no sense.
    #[error("record {seq} of the intent log of dataset object {objset} is damaged")]
    Damaged {
        /// Object of the dataset.
        objset: u64,
        /// Number of the record.
        seq: u64,
    },
    /// The log was given up; changes are made durable by their transaction group.
    #[error("the intent log cannot be written")]
    Broken,
}

impl ZilError {
    /// Whether the log was not written for want of room, or because it is being given up, and not because a device failed.
    pub(crate) fn is_want_of_room(&self) -> bool {
        match self {
            Self::Broken => true,
            Self::Block(error) => matches!(**error, ZioError::NoSpace { .. }),
            _ => false,
        }
    }
}

impl From<ZioError> for ZilError {
    fn from(error: ZioError) -> Self {
        Self::Block(Arc::new(error))
    }
}
