//! What the BEGIN of a stream that is received says, in the terms of what is made for it.

use ondisk::ObjsetType;
use ondisk::dsl::dataset_flags;
use ondisk::stream::{Begin, StreamKind, begin_flags, stream_feature};

use super::NvList;
use super::raw_head::RawHead;
use super::send_source::{REDACT_FROM_SNAPS, REDACT_SNAPS};
use crate::error::{DslError, Result};
use crate::property::DatasetKind;

/// Features of streams that are received.
const RECEIVED: u64 = stream_feature::SA_SPILL
    | stream_feature::EMBED_DATA
    | stream_feature::LZ4
    | stream_feature::LARGE_BLOCKS
    | stream_feature::RESUMING
    | stream_feature::REDACTED
    | stream_feature::COMPRESSED
    | stream_feature::LARGE_DNODE
    | stream_feature::RAW
    | stream_feature::ZSTD
    | stream_feature::HOLDS
    | stream_feature::SWITCH_TO_LARGE_BLOCKS
    | stream_feature::LONG_NAMES
    | stream_feature::LARGE_MICROZAP;

/// A stream as its first record and the list behind it describe it.
#[derive(Clone, Debug)]
pub(super) struct Incoming {
    pub(super) begin: Begin,
    /// Of a raw stream: its keys, and the shape of the object set.
    pub(super) raw: Option<RawHead>,
    /// Where the receive that is resumed stopped, as the sender was told: object and offset.
    pub(super) resumed_at: (Option<u64>, Option<u64>),
    /// Of a redacted stream: the guids of the snapshots that it was redacted by.
    pub(super) redacted_by: Option<Vec<u64>>,
    /// The guids of the snapshots that what the stream counts from was redacted by.
    pub(super) redacted_from: Option<Vec<u64>>,
}

impl Incoming {
    /// Reads the list behind a BEGIN, and refuses what is not received.
    ///
    /// # Errors
    /// `Unsupported`; `Stream`; `SpillFlagMissing`; those of [`RawHead::decode`].
    pub(super) fn new(mut begin: Begin, list: &NvList) -> Result<Self> {
        let what = if begin.kind != StreamKind::Substream {
            "receiving a package inside a package"
        } else if begin.features & !RECEIVED != 0 {
            "receiving streams with these features"
        } else {
            ""
        };
        if !what.is_empty() {
            return Err(DslError::Unsupported { what });
        }
        // The receiver's file format ends names with a NUL.
        begin.to_name.retain(|byte| *byte != 0);
        let raw = if begin.features & stream_feature::RAW == 0 {
            None
        } else if begin.features & stream_feature::EMBED_DATA != 0 {
            return Err(super::malformed("embedded data of a raw stream"));
        } else if begin.flags & begin_flags::SPILL_BLOCK == 0 {
            return Err(DslError::SpillFlagMissing);
        } else {
            Some(RawHead::decode(list)?)
        };
        let guids = |name: &str| list.u64s(name).map(<[u64]>::to_vec);
        let redacted_by = if begin.features & stream_feature::REDACTED == 0 {
            None
        } else {
            let by = guids(REDACT_SNAPS).filter(|by| !by.is_empty());
            Some(by.ok_or_else(|| super::malformed("redaction snapshots"))?)
        };
        Ok(Self {
            begin,
            raw,
            redacted_by,
            redacted_from: guids(REDACT_FROM_SNAPS),
            resumed_at: (list.u64("resume_object"), list.u64("resume_offset")),
        })
    }

    /// Whether the stream brings all that is missing of a snapshot which was received redacted by some snapshots, or leaves no more out.
    // OpenZFS: module/zfs/dmu_recv.c, redact_check
    pub(super) fn suits_redaction(&self, origin: &[u64]) -> bool {
        let within =
            |by: &[u64]| by.len() <= origin.len() && by.iter().all(|guid| origin.contains(guid));
        if self.is_whole() {
            true
        } else if let Some(from) = &self.redacted_from {
            within(from)
        } else if let Some(by) = &self.redacted_by {
            within(by)
        } else {
            origin.contains(&self.begin.to_guid)
        }
    }

    /// The flags of what is filled.
    pub(super) fn dataset_flags(&self) -> u64 {
        let mut flags = dataset_flags::INCONSISTENT;
        if self.begin.flags & begin_flags::CASE_INSENSITIVE != 0 {
            flags |= dataset_flags::CASE_INSENSITIVE;
        }
        flags
    }

    /// What the stream is of.
    ///
    /// # Errors
    /// `Unsupported` for what is neither a file system nor a volume.
    pub(super) fn kind(&self) -> Result<DatasetKind> {
        match ObjsetType(u64::from(self.begin.objset_type)) {
            ObjsetType::ZFS => Ok(DatasetKind::Filesystem),
            ObjsetType::ZVOL => Ok(DatasetKind::Volume),
            _ => Err(DslError::Unsupported {
                what: "receiving what is neither a file system nor a volume",
            }),
        }
    }

    pub(super) fn has(&self, feature: u64) -> bool {
        self.begin.features & feature != 0
    }

    /// It brings all of the snapshot, and counts from nothing.
    pub(super) fn is_whole(&self) -> bool {
        self.begin.from_guid == 0
    }
}
