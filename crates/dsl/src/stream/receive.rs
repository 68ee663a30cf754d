//! Receiving a stream: its records applied to a new dataset, or to a hidden clone that takes the place of the dataset's head.
//!
//! ```text
//!   begin:   a new dataset, or DATASET/%recv, a clone of the snapshot that the stream counts from
//!   records: applied in transactions of the open txg; nobody else sees the dataset
//!   finish:  (the clone's and the head's contents change places,) the snapshot is made, the clone is destroyed
//! ```
//!
//! What is filled has the flag INCONSISTENT from its first txg to its last. When anything fails it is destroyed, and the dataset is as
//! it was. OpenZFS: module/zfs/dmu_recv.c.

use codec::compress::{Algorithm, decompress};
use dmu::{AllocSpec, ObjectInfo, Objset, Tx};
use ondisk::stream::{
    Begin, Object, ObjectExtent, Spill, StreamKind, StreamRecord, TO_THE_END, Write, WriteEmbedded,
    begin_flags, record_flags, stream_feature,
};
use ondisk::{Compression, MAX_BLOCK_SIZE, ObjectId, ObjectType};

use super::reader::StreamError;
use crate::dataset::Dataset;
use crate::error::{DslError, Result};
use crate::hierarchy::Hierarchy;
use crate::types::Estimate;

/// Features of streams that are received.
const RECEIVED: u64 = stream_feature::SA_SPILL
    | stream_feature::EMBED_DATA
    | stream_feature::LZ4
    | stream_feature::LARGE_BLOCKS
    | stream_feature::COMPRESSED
    | stream_feature::LARGE_DNODE
    | stream_feature::ZSTD
    | stream_feature::HOLDS
    | stream_feature::SWITCH_TO_LARGE_BLOCKS
    | stream_feature::LONG_NAMES
    | stream_feature::LARGE_MICROZAP;

/// Block number of spill blocks. OpenZFS: include/sys/dmu.h, DMU_SPILL_BLKID.
const SPILL_BLOCK: u64 = u64::MAX - 1;
/// What a record may make dirty besides its data.
const METADATA_BYTES: u64 = 64 << 10;
/// Objects freed in one transaction.
const FREES_MAX: u32 = 64;

/// A receive under way. Dropped without [`Receiver::finish`] or [`Receiver::abandon`], what it filled stays until the next import.
pub struct Receiver {
    hierarchy: Hierarchy,
    /// What is filled: the new dataset, or the hidden clone.
    filled: String,
    dataset: Option<Dataset>,
    /// The dataset and the snapshot of it that are to be.
    target: String,
    snapshot: String,
    begin: Begin,
    is_new: bool,
    ended: bool,
}

impl std::fmt::Debug for Receiver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Receiver")
            .field("target", &self.target)
            .field("snapshot", &self.snapshot)
            .finish_non_exhaustive()
    }
}

/// A record makes no sense where it stands.
fn malformed(what: &'static str) -> DslError {
    DslError::Stream(StreamError::Malformed(ondisk::DecodeError::new(what, 0)))
}

/// What a stream is received into.
#[derive(Clone, Debug)]
pub struct ReceiveTarget {
    /// Full name of the dataset: an existing one for a stream that counts from a snapshot, else a new one.
    pub dataset: String,
    /// Name of the snapshot to be, without the dataset's.
    pub snapshot: String,
    /// What changed in the dataset since its newest snapshot is given up (`-F`).
    pub force: bool,
    /// The uid that gets the permissions delegated to creators.
    pub creator: u32,
}

impl Hierarchy {
    /// Begins to receive the stream that `begin` opens.
    ///
    /// # Errors
    /// `Exists` for a whole stream into a dataset that is there; `NotFound`; `NoSource` when the newest snapshot is not the one the
    /// stream counts from; `Modified` when the dataset changed since, without `force`; `Unsupported` for streams of kinds that are not
    /// received; those of creating a dataset.
    pub async fn receive(&self, target: ReceiveTarget, begin: Begin) -> Result<Receiver> {
        check_features(&begin)?;
        let is_new = begin.from_guid == 0;
        let filled = if is_new {
            self.receive_into_new(&target, &begin).await?;
            target.dataset.clone()
        } else {
            self.receive_into_clone(&target, &begin).await?
        };
        let dataset = self.dataset(&filled).await?;
        if begin.features & stream_feature::LONG_NAMES != 0 {
            dataset.needs_feature("longname");
        }
        Ok(Receiver {
            hierarchy: self.clone(),
            filled,
            dataset: Some(dataset),
            target: target.dataset,
            snapshot: target.snapshot,
            begin,
            is_new,
            ended: false,
        })
    }
}

fn check_features(begin: &Begin) -> Result<()> {
    let what = if begin.kind != StreamKind::Substream {
        "receiving a package inside a package"
    } else if begin.features & stream_feature::RAW != 0 {
        "receiving raw streams"
    } else if begin.features & stream_feature::REDACTED != 0 {
        "receiving redacted streams"
    } else if begin.features & stream_feature::RESUMING != 0 {
        "receiving the rest of a stream"
    } else if begin.features & !RECEIVED != 0 {
        "receiving streams with these features"
    } else if begin.flags & begin_flags::CLONE != 0 {
        "receiving clones"
    } else {
        return Ok(());
    };
    Err(DslError::Unsupported { what })
}

impl Receiver {
    fn dataset(&self) -> &Dataset {
        self.dataset
            .as_ref()
            .expect("the dataset is open until the receive ends")
    }

    fn objset(&self) -> Objset {
        self.dataset().objset()
    }

    /// Applies a record with its payload.
    ///
    /// # Errors
    /// The record makes no sense here; errors of reading; `Quota` and `NoSpace`. The receive must be abandoned then.
    pub async fn record(&mut self, record: &StreamRecord, payload: &[u8]) -> Result<()> {
        if self.ended {
            return Err(malformed("record after the end"));
        }
        if record.to_guid() != self.begin.to_guid {
            return Err(malformed("guid of a record"));
        }
        match record {
            StreamRecord::Object(object) => self.object(object, payload).await,
            StreamRecord::FreeObjects {
                first_object,
                count,
                ..
            } => self.free_objects(*first_object, *count).await,
            StreamRecord::Write(write) => self.write(write, payload).await,
            StreamRecord::WriteEmbedded(write) => self.write_embedded(write, payload).await,
            StreamRecord::Free(extent) => self.free(extent).await,
            StreamRecord::Spill(spill) => self.spill(spill, payload).await,
            StreamRecord::End { .. } => {
                self.ended = true;
                Ok(())
            }
            StreamRecord::Begin(_)
            | StreamRecord::WriteByRef(_)
            | StreamRecord::ObjectRange(_)
            | StreamRecord::Redact(_) => Err(malformed("kind of a record")),
        }
    }

    /// An object as it is to be. One that exists keeps its data where the stream may count on it.
    async fn object(&mut self, record: &Object, payload: &[u8]) -> Result<()> {
        let object = ObjectId(record.object);
        let spec = shape(record)?;
        let objset = self.objset();
        let existing = match objset.object_info(object).await {
            Ok(info) => Some(info),
            Err(error) if error.is_not_found() => None,
            Err(error) => return Err(error.into()),
        };
        let slots = u64::from(spec.slots);
        if existing.is_none_or(|info| info.slots != spec.slots) {
            self.clear_slots(record.object, slots).await?;
        }
        let bonus = payload
            .get(..record.bonus_len as usize)
            .ok_or_else(|| malformed("length of a bonus"))?;
        let tx = self.begin_tx(METADATA_BYTES).await?;
        match existing.filter(|info| info.slots == spec.slots) {
            None => objset.allocate_at(object, spec.clone(), &tx).await?,
            Some(info) => reshape(&objset, &info, &spec, &tx).await?,
        }
        if slots > 1 {
            self.dataset().needs_feature("large_dnode");
        }
        let has_spill = record.flags & record_flags::SPILL != 0;
        if !has_spill && self.begin.flags & begin_flags::SPILL_BLOCK != 0 {
            objset.set_spill(object, None, &tx).await?;
        }
        let bonus_type = object_type(record.bonus_type)?;
        objset.set_bonus(object, bonus_type, bonus, &tx).await?;
        let compression = Compression(record.compression);
        objset
            .set_object_compression(object, compression, &tx)
            .await?;
        Ok(())
    }

    /// Makes room for a dnode: what stands in its slots is freed, and that is on disk when this returns.
    async fn clear_slots(&self, first: u64, slots: u64) -> Result<()> {
        let objset = self.objset();
        let mut freed = false;
        let mut at = first.saturating_sub(1);
        while let Some(found) = objset.next_object(ObjectId(at)).await? {
            if found.0 >= first + slots {
                break;
            }
            let tx = self.begin_freeing().await?;
            objset.free_object(found, &tx).await?;
            freed = true;
            at = found.0;
        }
        if freed {
            objset.services().clock.sync_all().await?;
        }
        Ok(())
    }

    async fn free_objects(&self, first: u64, count: u64) -> Result<()> {
        let objset = self.objset();
        let end = first.saturating_add(count);
        let mut at = ObjectId(first.saturating_sub(1));
        loop {
            let tx = self.begin_freeing().await?;
            for _ in 0..FREES_MAX {
                match objset.next_object(at).await? {
                    Some(found) if found.0 < end => {
                        objset.free_object(found, &tx).await?;
                        at = found;
                    }
                    _ => return Ok(()),
                }
            }
        }
    }

    async fn write(&self, record: &Write, payload: &[u8]) -> Result<()> {
        let bytes;
        let data = if record.compression == 0 {
            payload
        } else {
            bytes = expand(record.compression, payload, record.logical_size)?;
            &bytes
        };
        self.write_data(record.object, record.offset, data).await
    }

    async fn write_embedded(&self, record: &WriteEmbedded, payload: &[u8]) -> Result<()> {
        if record.embedded_kind != 0 {
            return Err(malformed("kind of embedded data"));
        }
        let stored = payload
            .get(..record.physical_size as usize)
            .ok_or_else(|| malformed("length of embedded data"))?;
        let mut data = expand(record.compression, stored, u64::from(record.logical_size))?;
        let length = usize::try_from(record.length.min(MAX_BLOCK_SIZE)).expect("16 MiB at most");
        if data.len() > length {
            return Err(malformed("length of embedded data"));
        }
        data.resize(length, 0);
        if record.offset == SPILL_BLOCK.wrapping_mul(record.length) {
            return self.set_spill(record.object, &data).await;
        }
        self.write_data(record.object, record.offset, &data).await
    }

    async fn write_data(&self, object: u64, offset: u64, data: &[u8]) -> Result<()> {
        let len = data.len() as u64;
        if offset.checked_add(len).is_none() {
            return Err(malformed("offset of a write"));
        }
        let objset = self.objset();
        let estimate = Estimate::blocks(1, len, METADATA_BYTES);
        let tx = self.dataset().begin(estimate).await?;
        objset.write(ObjectId(object), offset, data, &tx).await?;
        Ok(())
    }

    async fn free(&self, extent: &ObjectExtent) -> Result<()> {
        let ObjectExtent {
            object,
            offset,
            length,
            ..
        } = *extent;
        if length != TO_THE_END && offset.checked_add(length).is_none() {
            return Err(malformed("range of a free"));
        }
        let tx = self.begin_freeing().await?;
        self.objset()
            .free_range(ObjectId(object), offset, length, &tx)
            .await?;
        Ok(())
    }

    async fn spill(&self, record: &Spill, payload: &[u8]) -> Result<()> {
        // What did not change is there, unless the sender cannot say so of objects.
        let unmodified = record.flags & record_flags::SPILL != 0;
        if unmodified && self.begin.flags & begin_flags::SPILL_BLOCK != 0 && !self.is_new {
            return Ok(());
        }
        let bytes;
        let data = if record.compressed_size == 0 {
            payload
        } else {
            bytes = expand(record.compression, payload, record.length)?;
            &bytes
        };
        self.set_spill(record.object, data).await
    }

    async fn set_spill(&self, object: u64, data: &[u8]) -> Result<()> {
        let tx = self.begin_tx(METADATA_BYTES + data.len() as u64).await?;
        self.objset()
            .set_spill(ObjectId(object), Some(data), &tx)
            .await?;
        Ok(())
    }

    async fn begin_tx(&self, bytes: u64) -> Result<Tx> {
        self.dataset().begin(Estimate::bytes(bytes)).await
    }

    async fn begin_freeing(&self) -> Result<Tx> {
        let estimate = Estimate::freeing(METADATA_BYTES);
        self.dataset().begin(estimate).await
    }

    /// Makes the snapshot, after the END of the stream. It is on disk when this returns.
    ///
    /// # Errors
    /// The stream has not ended; `Busy` when the dataset is open, `Exists` when it has such a snapshot meanwhile. What was received is
    /// destroyed then.
    pub async fn finish(mut self) -> Result<()> {
        if !self.ended {
            self.abandon().await;
            return Err(malformed("end of the stream"));
        }
        self.dataset = None;
        let done = if self.is_new {
            self.hierarchy
                .finish_new(&self.target, &self.snapshot, &self.begin)
                .await
        } else {
            self.hierarchy
                .finish_clone(&self.target, &self.filled, &self.snapshot, &self.begin)
                .await
        };
        if done.is_err() {
            self.abandon().await;
        }
        done
    }

    /// Destroys what was received. What cannot be destroyed now goes at the next import.
    pub async fn abandon(mut self) {
        self.dataset = None;
        let _ = self.hierarchy.destroy(&self.filled).await;
    }
}

/// What a record says of an object's dnode.
fn shape(record: &Object) -> Result<AllocSpec> {
    let block_size = u64::from(record.block_size);
    let slots = record.dnode_slots.max(1);
    if record.object == 0
        || block_size == 0
        || !block_size.is_multiple_of(512)
        || block_size > MAX_BLOCK_SIZE
        || slots > 32
    {
        return Err(malformed("shape of an object"));
    }
    let bonus_len = u16::try_from(record.bonus_len).map_err(|_| malformed("length of a bonus"))?;
    Ok(AllocSpec::new(object_type(record.object_type)?)
        .block_size(record.block_size)
        .bonus(object_type(record.bonus_type)?, bonus_len)
        .slots(slots))
}

fn object_type(number: u32) -> Result<ObjectType> {
    u8::try_from(number)
        .ok()
        .map(ObjectType)
        .filter(|kind| kind.is_valid())
        .ok_or_else(|| malformed("type of an object"))
}

/// Makes an existing object what the stream says. Where type or block size changed, all of its blocks come with the stream.
async fn reshape(objset: &Objset, info: &ObjectInfo, spec: &AllocSpec, tx: &Tx) -> Result<()> {
    let object = info.object;
    if info.block_size != spec.block_size || info.object_type != spec.object_type {
        objset.free_range(object, 0, u64::MAX, tx).await?;
        objset.set_block_size(object, spec.block_size, tx).await?;
    }
    if info.object_type != spec.object_type {
        objset.set_object_type(object, spec.object_type, tx).await?;
    }
    Ok(())
}

/// Decompresses a payload.
fn expand(compression: u8, payload: &[u8], logical_size: u64) -> Result<Vec<u8>> {
    let len = usize::try_from(logical_size.min(MAX_BLOCK_SIZE + 1)).expect("16 MiB at most");
    if len as u64 > MAX_BLOCK_SIZE {
        return Err(malformed("logical size"));
    }
    let algorithm = match Compression(compression) {
        Compression::OFF | Compression::INHERIT => {
            let mut plain = payload.to_vec();
            plain.resize(len, 0);
            return Ok(plain);
        }
        Compression::LZJB => Algorithm::Lzjb,
        Compression::ZLE => Algorithm::Zle,
        Compression::LZ4 => Algorithm::Lz4,
        Compression::ZSTD => Algorithm::Zstd(0),
        other => match other.gzip_level() {
            Some(level) => Algorithm::Gzip(level),
            None => return Err(malformed("compression of a payload")),
        },
    };
    decompress(algorithm, payload, len).map_err(|_| malformed("compressed payload"))
}
