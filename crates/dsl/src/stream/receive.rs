//! Receiving a stream: its records applied to a new dataset, or to a hidden clone that takes the place of the dataset's head.
//!
//! ```text
//!   begin:   a new dataset, or DATASET/%recv, a clone of the snapshot that the stream counts from
//!   records: applied in transactions of the open txg; no other task sees the dataset
//!   finish:  (the clone's and the head's contents change places,) the snapshot is made, the clone is destroyed
//! ```
//!
//! What is filled has the flag INCONSISTENT from its first txg to its last. When anything fails it is destroyed, and the dataset is as
//! it was; a receive that can be resumed leaves what it filled, with the place of the last record that was applied. OpenZFS: module/zfs/dmu_recv.c.

use codec::compress::{Algorithm, check_ratio, decompress_into};
use dmu::{AllocSpec, ObjectInfo, Objset, Tx};
use ondisk::stream::{
    Begin, ByteOrder, Object, ObjectExtent, Spill, StreamRecord, TO_THE_END, Write, WriteEmbedded,
    begin_flags, record_flags, stream_feature,
};
use ondisk::{Compression, MAX_BLOCK_SIZE, ObjectId, ObjectType, byteswap, file_owner};
use runtime::{IoBuf, IoBufMut};
use zio::{StoredCrypt, StoredForm};

use super::incoming::Incoming;
use super::target::{ReceiveDestination, ReceiveTarget};
use super::unsynced::Unsynced;
use super::{NvList, malformed};
use crate::dataset::Dataset;
use crate::error::{DslError, Result};
use crate::hierarchy::Hierarchy;
use crate::types::Estimate;
use crate::types::ResumePoint;

/// Block number of spill blocks. OpenZFS: include/sys/dmu.h, DMU_SPILL_BLKID.
const SPILL_BLOCK: u64 = u64::MAX - 1;
/// What a record may make dirty besides its data.
pub(super) const METADATA_BYTES: u64 = 64 << 10;
/// Objects freed in one transaction.
const FREES_MAX: u32 = 64;

/// A block of dnodes of a raw stream.
#[derive(Clone, Copy, Debug)]
pub(super) struct DnodeRange {
    pub(super) first: u64,
    /// What it is opened with; `None` once an object of it took it along.
    pub(super) crypt: Option<StoredCrypt>,
}

/// A receive under way. Dropped without [`Receiver::finish`] or [`Receiver::abandon`], what it filled stays until the next import.
pub struct Receiver {
    hierarchy: Hierarchy,
    target: ReceiveTarget,
    destination: ReceiveDestination,
    dataset: Option<Dataset>,
    pub(super) incoming: Incoming,
    /// Of a raw stream: the block of dnodes that its objects stand in.
    pub(super) range: Option<DnodeRange>,
    /// Object and offset of the last write: they come in order.
    last: (u64, u64),
    /// Bytes of the stream that were applied, those before an interruption included.
    bytes: u64,
    large_blocks: Unsynced,
    ended: bool,
}

impl std::fmt::Debug for Receiver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Receiver")
            .field("target", &self.target)
            .finish_non_exhaustive()
    }
}

impl Hierarchy {
    /// Begins to receive the stream that `begin` opens; `list` is the payload of that record.
    ///
    /// # Errors
    /// `Exists` for a whole stream into a dataset that is there, without `force`; `NotFound`; `NoSource` when the dataset has not the
    /// snapshot that the stream counts from; `Modified` when the dataset changed since, without `force`; `Busy` when a receive into it
    /// is under way or can be resumed; `NotResumable`, `ResumeExists`; `Unsupported` for streams of kinds that are not received; those of
    /// creating a dataset.
    pub async fn receive(
        &self,
        target: ReceiveTarget,
        begin: Begin,
        list: &NvList,
    ) -> Result<Receiver> {
        let incoming = Incoming::new(begin, list)?;
        let destination = self.destination_of(&target, &incoming).await?;
        let mut last = (0, 0);
        let mut bytes = incoming.begin.payload_len.into();
        if let Some(point) = destination.resumed {
            if incoming.resumed_at != (Some(point.object), Some(point.offset)) {
                return Err(DslError::NotResumable {
                    name: target.dataset,
                });
            }
            // Not at the offset: a large block that its sender cuts is sent from its beginning again.
            last = (point.object, 0);
            bytes += point.bytes;
        }
        let dataset = {
            let pool = self.pool();
            let _names = pool.config.read().await;
            let found = pool.find(&destination.filled).await?;
            pool.open_filled(found, &incoming).await?
        };
        for (bit, feature) in [
            (stream_feature::LONG_NAMES, "longname"),
            (stream_feature::LARGE_MICROZAP, "large_microzap"),
        ] {
            if incoming.has(bit) {
                dataset.needs_feature(feature);
            }
        }
        Ok(Receiver {
            hierarchy: self.clone(),
            target,
            destination,
            dataset: Some(dataset),
            incoming,
            range: None,
            last,
            bytes,
            large_blocks: Unsynced::default(),
            ended: false,
        })
    }
}

impl Receiver {
    pub(super) fn dataset(&self) -> &Dataset {
        self.dataset
            .as_ref()
            .expect("the dataset is open until the receive ends")
    }

    pub(super) fn objset(&self) -> Objset {
        self.dataset().objset()
    }

    /// Applies a record with its payload.
    ///
    /// # Errors
    /// The record makes no sense here; errors of reading; `Quota` and `NoSpace`. The receive must be abandoned then.
    pub async fn record(&mut self, record: &StreamRecord, payload: &IoBuf) -> Result<()> {
        if self.ended {
            return Err(malformed("record after the end"));
        }
        if record.to_guid() != self.incoming.begin.to_guid {
            return Err(malformed("guid of a record"));
        }
        let clock = self.objset().services().clock.clone();
        let large = self.large_blocks.make_room(record, &clock).await?;
        self.bytes += ondisk::stream::RECORD_SIZE as u64 + payload.len() as u64;
        self.apply(record, payload).await?;
        if let Some(bytes) = large {
            self.large_blocks.add(clock.open_txg(), bytes);
        }
        Ok(())
    }

    async fn apply(&mut self, record: &StreamRecord, payload: &IoBuf) -> Result<()> {
        match record {
            StreamRecord::Object(object) if self.is_raw() => self.raw_object(object, payload).await,
            StreamRecord::Object(object) => self.object(object, payload).await,
            StreamRecord::FreeObjects {
                first_object,
                count,
                ..
            } => self.free_objects(*first_object, *count).await,
            StreamRecord::Write(write) if self.is_raw() => self.raw_write(write, payload).await,
            StreamRecord::Write(write) => self.write(write, payload).await,
            StreamRecord::WriteEmbedded(write) if !self.is_raw() => {
                self.write_embedded(write, payload).await
            }
            StreamRecord::Free(extent) => self.free(extent).await,
            // As OpenZFS has it: nothing is stored of what was left out, and the dataset is marked.
            StreamRecord::Redact(extent) if self.incoming.redacted_by.is_some() => {
                self.free(extent).await
            }
            StreamRecord::Spill(spill) => self.spill(spill, payload).await,
            StreamRecord::ObjectRange(range) if self.is_raw() => self.object_range(range),
            StreamRecord::End { .. } => {
                self.ended = true;
                Ok(())
            }
            StreamRecord::Begin(_)
            | StreamRecord::WriteByRef(_)
            | StreamRecord::WriteEmbedded(_)
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
        // Where the bonus needs the room of block pointers, it is another object of the same number.
        let pointers = block_pointers(record);
        let existing =
            existing.filter(|info| info.slots == spec.slots && pointers >= info.pointers);
        if existing.is_none() {
            self.clear_slots(record.object, slots).await?;
        }
        let bonus = payload
            .get(..record.bonus_len as usize)
            .ok_or_else(|| malformed("length of a bonus"))?;
        let reshaping = match &existing {
            Some(info) => Some(self.reshaping(info, record, bonus).await?),
            None => None,
        };
        let tx = self.begin_tx(METADATA_BYTES).await?;
        match (existing, reshaping) {
            (Some(info), Some(how)) => reshape(&objset, &info, &spec, how, &tx).await?,
            _ => objset.allocate_at(object, spec.clone(), &tx).await?,
        }
        if slots > 1 {
            self.dataset().needs_feature("large_dnode");
        }
        let has_spill = record.flags & record_flags::SPILL != 0;
        if !has_spill && self.incoming.begin.flags & begin_flags::SPILL_BLOCK != 0 {
            objset.set_spill(object, None, &tx).await?;
        }
        let bonus_type = object_type(record.bonus_type)?;
        objset.set_bonus(object, bonus_type, bonus, &tx).await?;
        let compression = Compression(record.compression);
        objset
            .set_object_compression(object, compression, &tx)
            .await?;
        self.note_resume_point(record.object, 0, &tx);
        Ok(())
    }

    /// What becomes of the blocks of an object that exists.
    // OpenZFS: module/zfs/dmu_recv.c, receive_handle_existing_object
    async fn reshaping(
        &self,
        info: &ObjectInfo,
        record: &Object,
        bonus: &[u8],
    ) -> Result<Reshaping> {
        let is_file = |kind: ObjectType| kind == ObjectType::PLAIN_FILE_CONTENTS;
        if info.block_size == record.block_size {
            return Ok(if info.object_type == object_type(record.object_type)? {
                Reshaping::Keep
            } else {
                Reshaping::Replace
            });
        }
        let may_grow = self.incoming.begin.from_guid != 0
            && is_file(info.object_type)
            && is_file(object_type(record.object_type)?)
            && info.max_block_id > 0;
        if !may_grow {
            return Ok(Reshaping::Replace);
        }
        let known = self.objset().bonus(info.object).await?;
        let before = file_owner::generation(known.bonus_type, &known.bytes);
        let after = file_owner::generation(object_type(record.bonus_type)?, bonus);
        match (before, after) {
            // The file of an earlier stream without -L, in one with it: what the stream does not bring again stays as it is.
            (Some(before), Some(after)) if before == after => {
                if record.block_size > info.block_size {
                    Ok(Reshaping::KeepBlockSize)
                } else {
                    Err(malformed("block size of a file"))
                }
            }
            _ => Ok(Reshaping::Replace),
        }
    }

    /// Remembers that all up to here is in the dataset with the txg of `tx`.
    pub(super) fn note_resume_point(&self, object: u64, offset: u64, tx: &Tx) {
        if self.target.resumable {
            let point = ResumePoint {
                object,
                offset,
                bytes: self.bytes,
            };
            self.dataset().state().note_resume_point(tx.txg(), point);
        }
    }

    /// Writes come in the order of objects and offsets: what is resumed goes on behind the last.
    pub(super) fn check_order(&mut self, object: u64, offset: u64) -> Result<()> {
        if (object, offset) < self.last {
            return Err(malformed("order of writes"));
        }
        self.last = (object, offset);
        Ok(())
    }

    /// Makes room for a dnode: what stands in its slots is freed, and that is on disk when this returns.
    pub(super) async fn clear_slots(&self, first: u64, slots: u64) -> Result<()> {
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

    async fn write(&mut self, record: &Write, payload: &IoBuf) -> Result<()> {
        self.check_order(record.object, record.offset)?;
        if record.compression == 0 {
            let data = payload.clone();
            return self.write_data(record.object, record.offset, data).await;
        }
        let data = expand(record.compression, payload, record.logical_size)?;
        if matches!(
            Compression(record.compression),
            Compression::OFF | Compression::EMPTY
        ) {
            return self.write_data(record.object, record.offset, data).await;
        }
        let form = StoredForm {
            bytes: payload.clone(),
            compression: Compression(record.compression),
            crypt: None,
        };
        self.write_compressed(record, data, form).await
    }

    /// Writes a block that came compressed: it is stored as it came, as far as the pool may have blocks like it.
    async fn write_compressed(&self, record: &Write, data: IoBuf, form: StoredForm) -> Result<()> {
        let (object, offset) = (record.object, record.offset);
        let len = data.len() as u64;
        if offset.checked_add(len).is_none() {
            return Err(malformed("offset of a write"));
        }
        let estimate = Estimate::blocks(1, len, METADATA_BYTES + form.bytes.len() as u64);
        let tx = self.dataset().begin(estimate).await?;
        if form.compression == Compression::ZSTD {
            self.dataset().needs_feature("zstd_compress");
        }
        self.objset()
            .write_stored(ObjectId(object), offset, data, form, &tx)
            .await?;
        self.note_resume_point(object, offset, &tx);
        Ok(())
    }

    async fn write_embedded(&self, record: &WriteEmbedded, payload: &[u8]) -> Result<()> {
        if record.embedded_kind != 0 {
            return Err(malformed("kind of embedded data"));
        }
        let stored = payload
            .get(..record.physical_size as usize)
            .ok_or_else(|| malformed("length of embedded data"))?;
        let known = expand(record.compression, stored, u64::from(record.logical_size))?;
        let length = usize::try_from(record.length.min(MAX_BLOCK_SIZE)).expect("16 MiB at most");
        if known.len() > length {
            return Err(malformed("length of embedded data"));
        }
        let mut data = IoBufMut::zeroed(length);
        data[..known.len()].copy_from_slice(&known);
        if self.target.order == ByteOrder::Big {
            let object = ObjectId(record.object);
            let info = self.objset().object_info(object).await?;
            byteswap::swap_as(info.object_type, &mut data);
        }
        if record.offset == SPILL_BLOCK.wrapping_mul(record.length) {
            return self.set_spill(record.object, &data).await;
        }
        self.write_data(record.object, record.offset, data.freeze())
            .await
    }

    async fn write_data(&self, object: u64, offset: u64, data: IoBuf) -> Result<()> {
        let len = data.len() as u64;
        if offset.checked_add(len).is_none() {
            return Err(malformed("offset of a write"));
        }
        let objset = self.objset();
        let estimate = Estimate::blocks(1, len, METADATA_BYTES);
        let tx = self.dataset().begin(estimate).await?;
        objset
            .write_buf(ObjectId(object), offset, data, &tx)
            .await?;
        self.note_resume_point(object, offset, &tx);
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
        if self.is_raw() {
            self.check_raw_free(extent).await?;
        }
        let tx = self.begin_freeing().await?;
        self.objset()
            .free_range(ObjectId(object), offset, length, &tx)
            .await?;
        Ok(())
    }

    async fn spill(&self, record: &Spill, payload: &IoBuf) -> Result<()> {
        // What did not change is there, unless the sender cannot say so of objects.
        let unmodified = record.flags & record_flags::SPILL != 0;
        if unmodified
            && self.incoming.begin.flags & begin_flags::SPILL_BLOCK != 0
            && self.incoming.begin.from_guid != 0
        {
            return Ok(());
        }
        if self.is_raw() {
            return self.raw_spill(record, payload).await;
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

    pub(super) async fn begin_tx(&self, bytes: u64) -> Result<Tx> {
        self.dataset().begin(Estimate::bytes(bytes)).await
    }

    pub(super) async fn begin_freeing(&self) -> Result<Tx> {
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
        let done = if self.destination.is_new {
            let (name, snapshot) = (&self.target.dataset, &self.target.snapshot);
            self.hierarchy
                .finish_new(name, snapshot, &self.incoming)
                .await
        } else {
            self.hierarchy
                .finish_clone(&self.target, &self.destination.filled, &self.incoming)
                .await
        };
        if done.is_err() {
            self.abandon().await;
        }
        done
    }

    /// Destroys what was received, or leaves it to be resumed; which of them is returned. What cannot be destroyed now goes at the next
    /// import.
    pub async fn abandon(mut self) -> bool {
        self.dataset = None;
        if self.target.resumable {
            // The token tells of what is on disk.
            let clock = &self.hierarchy.pool().services.clock;
            return clock.sync_all().await.is_ok();
        }
        let _ = self.hierarchy.destroy(&self.destination.filled).await;
        false
    }

    /// The dataset was not there before.
    #[must_use]
    pub fn is_new(&self) -> bool {
        self.destination.is_new
    }
}

/// What becomes of the blocks of an object that exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reshaping {
    /// They stay.
    Keep,
    /// They stay, and so does their size: larger blocks are cut.
    KeepBlockSize,
    /// All blocks come with the stream.
    Replace,
}

/// Block pointers of a dnode that has the bonus of a record, at least.
// OpenZFS: module/zfs/dmu_recv.c, deduce_nblkptr
pub(super) fn block_pointers(record: &Object) -> u8 {
    /// Bytes of a dnode of one slot that are shared by the bonus and all block pointers but the first.
    const SHARED: u32 = 320;
    if u32::from(ObjectType::SA.0) == record.bonus_type {
        return 1;
    }
    let left = SHARED - record.bonus_len.min(SHARED);
    u8::try_from(1 + left / 128).unwrap_or(u8::MAX)
}

/// What a record says of an object's dnode.
pub(super) fn shape(record: &Object) -> Result<AllocSpec> {
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

pub(super) fn object_type(number: u32) -> Result<ObjectType> {
    u8::try_from(number)
        .ok()
        .map(ObjectType)
        .filter(|kind| kind.is_valid())
        .ok_or_else(|| malformed("type of an object"))
}

/// Makes an existing object what the stream says.
async fn reshape(
    objset: &Objset,
    info: &ObjectInfo,
    spec: &AllocSpec,
    how: Reshaping,
    tx: &Tx,
) -> Result<()> {
    let object = info.object;
    if how == Reshaping::Replace {
        objset.free_range(object, 0, u64::MAX, tx).await?;
        objset.set_block_size(object, spec.block_size, tx).await?;
    }
    if info.object_type != spec.object_type {
        objset.set_object_type(object, spec.object_type, tx).await?;
    }
    Ok(())
}

/// Decompresses a payload.
pub(super) fn expand(compression: u8, payload: &[u8], logical_size: u64) -> Result<IoBuf> {
    let len = usize::try_from(logical_size.min(MAX_BLOCK_SIZE + 1)).expect("16 MiB at most");
    if len as u64 > MAX_BLOCK_SIZE {
        return Err(malformed("logical size"));
    }
    let algorithm = match Compression(compression) {
        Compression::OFF | Compression::INHERIT => {
            let plain = payload.get(..len).unwrap_or(payload);
            let mut padded = IoBufMut::zeroed(len);
            padded[..plain.len()].copy_from_slice(plain);
            return Ok(padded.freeze());
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
    let damaged = |_| malformed("compressed payload");
    check_ratio(algorithm, payload, len).map_err(damaged)?;
    let mut logical = IoBufMut::scratch(len);
    decompress_into(algorithm, payload, &mut logical).map_err(damaged)?;
    Ok(logical.freeze())
}
