//! Send streams: how they are made of a snapshot, and how they are read, with every checksum on the way verified.
//!
//! Knows the order of bytes, records and payloads; what a receiver makes of them is not here.

mod chunk;
mod finish;
mod heal;
mod incoming;
mod list_reader;
mod ranges;
mod raw;
mod raw_head;
mod raw_records;
mod raw_roots;
mod reader;
mod receive;
mod send;
mod send_source;
mod source;
pub(crate) mod swap;
mod target;
mod unsynced;
mod writer;

pub use crate::resume_token::{TokenError, unpack_token};
pub use chunk::StreamChunk;
pub use heal::Healer;
pub use ondisk::stream::{
    Begin, ByteOrder, CryptParams, MAGIC, Object, ObjectExtent, ObjectRange, RECORD_SIZE, Spill,
    StreamKind, StreamRecord, Write, WriteByRef, WriteEmbedded, put_record_checksum,
    record_checksum, stream_feature,
};
pub use ondisk::{NvList, NvValue};
pub use raw_roots::ReceivedRoot;
pub use reader::{StreamError, StreamReader};
pub use receive::Receiver;
pub use send::{SendFrom, SendOptions, SendResume, Sender};
pub use target::ReceiveTarget;
pub use writer::{StreamSum, package_begin, package_end};

use crate::error::DslError;

/// What is read of a stream makes no sense where it stands.
fn malformed(what: &'static str) -> DslError {
    DslError::Stream(StreamError::Malformed(ondisk::DecodeError::new(what, 0)))
}
