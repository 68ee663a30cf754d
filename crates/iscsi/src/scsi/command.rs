//! A command under way, and what came of it.

use std::sync::Arc;

use runtime::IoBuf;

use super::cdb::Cdb;
use super::nexus::Nexus;
use super::sense::{Sense, status};
use crate::payload::Payload;
use crate::target::Target;

/// A command with all it needs.
#[derive(Debug, Clone)]
pub(crate) struct Command {
    pub(crate) cdb: Cdb,
    pub(crate) data: Payload,
    pub(crate) nexus: Arc<Nexus>,
    pub(crate) target: Arc<Target>,
}

/// What came of a command.
#[derive(Debug, Default)]
pub(crate) struct Reply {
    pub(crate) status: u8,
    pub(crate) data: Vec<IoBuf>,
    pub(crate) sense: Option<Sense>,
}

impl Reply {
    pub(crate) fn good() -> Self {
        Self::default()
    }

    pub(crate) fn status(status: u8) -> Self {
        Self {
            status,
            ..Self::default()
        }
    }

    /// Data, cut to the length the initiator has allocated.
    pub(super) fn data(mut bytes: Vec<u8>, allocated: usize) -> Self {
        bytes.truncate(allocated);
        Self {
            data: vec![IoBuf::from(bytes)],
            ..Self::default()
        }
    }

    pub(super) fn pieces(data: Vec<IoBuf>) -> Self {
        Self {
            data,
            ..Self::default()
        }
    }
}

impl From<Sense> for Reply {
    fn from(sense: Sense) -> Self {
        Self {
            status: status::CHECK_CONDITION,
            sense: Some(sense),
            ..Self::default()
        }
    }
}

/// The result of a command's own part: data and good status, or sense.
pub(super) type Executed = Result<Reply, Sense>;
