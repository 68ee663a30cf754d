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
    /// A block could not be allocated, written or freed.
    #[error("{0}")]
    Block(Arc<ZioError>),
    /// A block that holds acknowledged changes cannot be read.
    #[error("block {block} of the intent log of dataset object {objset} cannot be read")]
    Unreadable {
        /// Object of the dataset.
        objset: u64,
        /// Its number in the chain.
        block: u64,
    },
    /// A block was encrypted with other keys, or changed since.
    #[error("block {block} of the intent log of dataset object {objset} is not authentic")]
    Forged {
        /// Object of the dataset.
        objset: u64,
        /// Its number in the chain.
        block: u64,
    },
    /// It is unknown whether data that the log points to was written, for a device cannot be read.
    #[error(
        "data of record {seq} of the intent log of dataset object {objset} cannot be read: {source}"
    )]
    UnreadableData {
        /// Object of the dataset.
        objset: u64,
        /// Number of the record.
        seq: u64,
        /// Why it cannot be read.
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
    /// A record's lengths or fields contradict each other.
    #[error("record {seq} of the intent log of dataset object {objset} is damaged")]
    Damaged {
        /// Object of the dataset.
        objset: u64,
        /// Number of the record.
        seq: u64,
    },
    /// The log is being freed; changes become durable with their txg.
    #[error("the intent log cannot be written")]
    Broken,
}

impl ZilError {
    /// Whether the log was not written for want of room, or because it is being freed, and not because a device failed.
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
