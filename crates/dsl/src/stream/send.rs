//! Sending a snapshot, or a head that does not change: its records in the order of object and offset, with what changed
//! since an earlier snapshot only.
//!
//! ```text
//!   blocks of the snapshot, by birth -> planned records, reads under way -> records -> chunks
//! ```
//!
//! The order of records, the merging of frees and what each feature changes are those of OpenZFS, so that both send the same
//! bytes. OpenZFS: module/zfs/dmu_send.c, module/zfs/dmu_traverse.c.

use std::collections::VecDeque;

use arc::{BlockKinds, CacheUse};
use dmu::{
    DNODES_OF_BLOCK, FIRST_ACCOUNTING, Objset, Services, Traversal, TraverseItem, TraverseOptions,
};
use ondisk::stream::{
    Begin, CryptParams, Object, ObjectExtent, ObjectRange, Spill, StreamKind, StreamRecord,
    TO_THE_END, Write, WriteEmbedded, begin_flags, record_flags, stream_feature,
};
use ondisk::{
    BlockPointer, ChecksumKind, Compression, DNODE_SHIFT, DnodePhys, OLD_MAX_BLOCK_SIZE, ObjectId,
    ObjectType, ObjsetType, Txg,
};
use runtime::{IoBuf, JoinHandle};
use zio::{Bookmark, IoClass, ReadProps, ZioError};

use super::chunk::StreamChunk;
use super::ranges::{CHANGED, Fronts, RangeContent, RedactionLists, SendRange, take_next};
use super::send_source::SendSource;
use super::writer::StreamWriter;
use crate::dataset::Dataset;
use crate::dataset_state::Ownership;
use crate::error::{DslError, Result};
use crate::types::SavedReceive;

/// What is sent once need not go to a cache device.
const KEEP: CacheUse = CacheUse {
    memory: BlockKinds::All,
    devices: BlockKinds::Nothing,
};
/// Bytes of blocks that are read ahead of what is written.
const READ_AHEAD_BYTES: u64 = 16 << 20;
/// Records that are planned ahead.
const READ_AHEAD_RECORDS: usize = 512;
/// A chunk is handed out when it has so many bytes; it may be longer by the largest block.
const CHUNK_BYTES: usize = 1 << 20;
/// What a stream of a head has for the name of its snapshot. OpenZFS: module/zfs/dmu_send.c, setup_begin_record
const HEAD_NAME: &str = "@--head--";
/// Block number of spill blocks. OpenZFS: include/sys/dmu.h, DMU_SPILL_BLKID.
const SPILL_BLOCK: u64 = u64::MAX - 1;

/// What a stream may contain, as `zfs send` is told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SendOptions {
    /// Blocks above 128 KiB stay whole (`-L`).
    pub large_blocks: bool,
    /// Data embedded in block pointers is sent as such (`-e`).
    pub embedded: bool,
    /// Blocks are sent compressed as they are stored (`-c`).
    pub compressed: bool,
    /// All that above, and blocks of encrypted datasets are sent encrypted, as they are stored; their key is not needed (`-w`).
    pub raw: bool,
    /// What an interrupted receive left is sent (`-S`). The stream has no END: its receive is interrupted too, and can be resumed from
    /// the first sender.
    pub saved: bool,
    /// Nothing is read and no payload is written: for the size alone (`-n`).
    pub dry_run: bool,
}

/// What a stream counts from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendFrom {
    /// Guid of the snapshot or bookmark.
    pub guid: u64,
    /// The txg it was made in.
    pub creation_txg: Txg,
    /// It belongs to another dataset, of which the one sent is a clone.
    pub is_clone: bool,
    /// Of an encrypted dataset: identity of the set of its IVs, else 0.
    pub ivset_guid: u64,
}

/// Where an interrupted stream goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendResume {
    /// Number of the object.
    pub object: u64,
    /// Bytes from its beginning.
    pub offset: u64,
}

/// A block that is read, or its error.
type Reading = JoinHandle<std::result::Result<Payload, ZioError>>;

/// Bytes of a block as they are sent.
struct Payload {
    bytes: IoBuf,
    /// They are as stored: compressed, or encrypted.
    compressed: bool,
}

/// A record in the making.
enum Planned {
    Dnode {
        object: u64,
        dnode: Box<DnodePhys>,
        /// Of a raw stream: the bonus area as it is stored.
        raw_bonus: Option<IoBuf>,
        /// An older spill block that goes along, so that a receiver never has to keep one.
        spill: Option<(BlockPointer, Option<Reading>)>,
    },
    Hole(ObjectExtent),
    Redacted(ObjectExtent),
    FreeObjects {
        first: u64,
        count: u64,
    },
    ObjectRange {
        first: u64,
        bp: BlockPointer,
    },
    Block {
        object: u64,
        object_type: ObjectType,
        offset: u64,
        bp: BlockPointer,
        reading: Option<Reading>,
    },
    Spill {
        object: u64,
        bp: BlockPointer,
        reading: Option<Reading>,
    },
}

/// The object whose blocks are planned.
#[derive(Clone, Copy, Default)]
struct Current {
    object_type: ObjectType,
    block_size: u64,
}

/// Blocks of an object that are brought whether they changed or not, from `block` on.
#[derive(Clone, Copy)]
struct Restoring {
    object: u64,
    object_type: ObjectType,
    block_size: u64,
    block: u64,
    end: u64,
}

/// Shape of the object whose blocks the traversal visits.
#[derive(Clone, Copy, Default)]
struct VisitedShape {
    indirect_shift: u32,
    is_metadata: bool,
    max_block_id: u64,
}

/// A stream of one snapshot under way. The snapshot cannot be destroyed while it exists.
pub struct Sender {
    /// Held, not used again.
    _snapshot: Dataset,
    _ownership: Option<Ownership>,
    services: Services,
    objset: u64,
    traversal: Traversal,
    contents: Objset,
    /// Redaction lists that say what is left out and what is brought after all, with the ranges at hand.
    lists: Option<(RedactionLists, Fronts)>,
    restoring: Option<Restoring>,
    options: SendOptions,
    features: u64,
    to_guid: u64,
    /// It ends with an END.
    is_whole: bool,
    from_txg: Txg,
    /// Objects the table of dnodes has room for, and the shift of its pointers.
    objects_max: u64,
    table_shift: u32,
    /// Of a raw stream: the block of dnodes that the traversal visits, and its number.
    table: Option<(u64, IoBuf)>,
    visited: VisitedShape,
    current: Current,
    ahead: VecDeque<Planned>,
    ahead_bytes: u64,
    visited_all: bool,
    ended: bool,
    writer: StreamWriter,
    /// Bytes of payload that a dry run did not write.
    skipped_bytes: u64,
}

impl std::fmt::Debug for Sender {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sender")
            .field("to_guid", &self.to_guid)
            .finish_non_exhaustive()
    }
}

/// The record a stream begins with, but for features and payload.
fn begin_of(
    snapshot: &Dataset,
    objset: &Objset,
    from: Option<SendFrom>,
    saved: Option<SavedReceive>,
) -> Begin {
    let phys = snapshot.state().phys();
    let (to_guid, to_name) = match saved {
        Some(saved) => (saved.guid, saved.name),
        None if phys.is_snapshot() => (phys.guid, snapshot.name().into_bytes()),
        None => (phys.guid, (snapshot.name() + HEAD_NAME).into_bytes()),
    };
    let mut flags = begin_flags::FREE_RECORDS | begin_flags::SPILL_BLOCK;
    if from.is_some_and(|from| from.is_clone) {
        flags |= begin_flags::CLONE;
    }
    if phys.flags & ondisk::dsl::dataset_flags::CASE_INSENSITIVE != 0 {
        flags |= begin_flags::CASE_INSENSITIVE;
    }
    Begin {
        kind: StreamKind::Substream,
        features: 0,
        creation_time: phys.creation_time,
        objset_type: u32::try_from(objset.kind().0).unwrap_or(0),
        flags,
        to_guid,
        from_guid: from.map_or(0, |from| from.guid),
        to_name,
        payload_len: 0,
    }
}

impl Sender {
    /// Begins the stream of a snapshot, from an earlier one or as a whole, or goes on with it. The caller has checked that `from` is
    /// one.
    ///
    /// # Errors
    /// Of reading the snapshot's root and master node, and the object to go on with.
    pub(super) async fn new(
        source: SendSource,
        from: Option<SendFrom>,
        options: SendOptions,
        resume: Option<SendResume>,
    ) -> Result<Self> {
        let SendSource {
            snapshot,
            ownership,
            objset,
            keys,
            saved,
            redaction,
        } = source;
        let mut features = features(&snapshot, &objset, options).await?;
        let (mut list, mut first) = (redaction.begin_list(), None);
        if redaction.is_redacted() {
            features |= stream_feature::REDACTED;
        }
        let mut lists = redaction.lists();
        if let Some(SendResume { object, offset }) = resume {
            features |= stream_feature::RESUMING;
            list = list
                .with("resume_object", object)
                .with("resume_offset", offset);
            let info = objset.object_info(ObjectId(object)).await?;
            let block = offset / u64::from(info.block_size.max(1));
            first = Some((ObjectId(object), block));
            if let Some(lists) = &mut lists {
                lists.skip_to((object, block));
            }
        }
        if let Some(keys) = keys {
            features |= stream_feature::RAW;
            list = list.with("crypt_keydata", keys);
        }
        let list = (!list.is_empty()).then(|| list.encode_native());
        let list = list.unwrap_or_default();
        let services = objset.services().clone();
        let mut fronts = Fronts::default();
        let lists = match lists {
            Some(mut lists) => {
                for (source, front) in fronts.iter_mut().enumerate() {
                    if source != CHANGED {
                        *front = lists.next(source).await?;
                    }
                }
                Some((lists, fronts))
            }
            None => None,
        };
        let from_txg = from.map_or(Txg(0), |from| from.creation_txg);
        let visit = TraverseOptions {
            objset_id: objset.id(),
            min_birth: from_txg,
            holes: true,
            unborn_holes: true,
            dnodes: true,
            resume: first,
            ..TraverseOptions::default()
        };
        let is_whole = saved.is_none();
        let mut writer = StreamWriter::default();
        let begin = Begin {
            features,
            payload_len: u32::try_from(list.len()).expect("a list of numbers and keys"),
            ..begin_of(&snapshot, &objset, from, saved)
        };
        let to_guid = begin.to_guid;
        writer.put(&StreamRecord::Begin(begin), &list);
        Ok(Self {
            objset: objset.id(),
            traversal: Traversal::new(&services, objset.root(), visit),
            services,
            contents: objset,
            lists,
            restoring: None,
            options,
            features,
            to_guid,
            is_whole,
            from_txg,
            objects_max: 0,
            table_shift: 0,
            table: None,
            visited: VisitedShape::default(),
            current: Current::default(),
            ahead: VecDeque::new(),
            ahead_bytes: 0,
            visited_all: false,
            ended: false,
            writer,
            skipped_bytes: 0,
            _snapshot: snapshot,
            _ownership: ownership,
        })
    }

    /// Returns the next bytes of the stream, about 1 MiB of them; `None` at its end.
    ///
    /// # Errors
    /// Of reading: the stream is of no use then.
    pub async fn next(&mut self) -> Result<Option<StreamChunk>> {
        while !self.ended && self.writer.len() < CHUNK_BYTES {
            self.plan_ahead().await?;
            match self.ahead.pop_front() {
                Some(planned) => self.write(planned).await?,
                None => {
                    if self.is_whole {
                        self.writer.end(self.to_guid);
                    } else {
                        self.writer.flush();
                    }
                    self.ended = true;
                }
            }
        }
        let chunk = self.writer.take();
        Ok((!chunk.is_empty()).then_some(chunk))
    }

    /// Returns the bytes of the whole stream, of one that is a dry run.
    ///
    /// # Errors
    /// Of reading.
    pub async fn size(mut self) -> Result<u64> {
        let mut bytes = 0;
        while let Some(chunk) = self.next().await? {
            bytes += chunk.len() as u64;
        }
        Ok(bytes + self.skipped_bytes)
    }

    async fn plan_ahead(&mut self) -> Result<()> {
        while !self.visited_all
            && self.ahead_bytes < READ_AHEAD_BYTES
            && self.ahead.len() < READ_AHEAD_RECORDS
        {
            if self.restoring.is_some() {
                self.restore_next().await?;
                continue;
            }
            match self.next_range().await? {
                Some(range) => self.plan(range).await?,
                None => self.visited_all = true,
            }
        }
        Ok(())
    }

    /// The next range of the stream: of what changed, with the redaction lists laid over it.
    async fn next_range(&mut self) -> Result<Option<SendRange>> {
        let Some((mut lists, mut fronts)) = self.lists.take() else {
            return self.next_changed().await;
        };
        let mut next = None;
        while next.is_none() {
            for (source, front) in fronts.iter_mut().enumerate() {
                if front.is_none() {
                    *front = if source == CHANGED {
                        self.next_changed().await?
                    } else {
                        lists.next(source).await?
                    };
                }
            }
            if fronts.iter().all(Option::is_none) {
                break;
            }
            next = take_next(&mut fronts);
        }
        self.lists = Some((lists, fronts));
        Ok(next)
    }

    /// The next range of what changed.
    async fn next_changed(&mut self) -> Result<Option<SendRange>> {
        while let Some(item) = self.traversal.next().await? {
            let range = if self.has(stream_feature::RAW) && is_table_block(&item) {
                self.keep_table(&item).await?;
                Some(SendRange {
                    object: 0,
                    first: item.block,
                    end: item.block.saturating_add(1),
                    content: RangeContent::Table(item.bp),
                })
            } else {
                self.range_of(item)?
            };
            if range.is_some() {
                return Ok(range);
            }
        }
        Ok(None)
    }

    fn range_of(&mut self, item: TraverseItem) -> Result<Option<SendRange>> {
        let object = item.object.0;
        if object >= FIRST_ACCOUNTING.0 {
            return Ok(None);
        }
        if let Some(dnode) = item.dnode {
            return Ok(self.visit_dnode(object, dnode));
        }
        let one = |block: u64, content| SendRange {
            object,
            first: block,
            end: block.saturating_add(1),
            content,
        };
        if item.level == TraverseItem::SPILL {
            return Ok(Some(one(SPILL_BLOCK, RangeContent::Spill(item.bp))));
        }
        let Ok(level) = u32::try_from(item.level) else {
            return Ok(None);
        };
        if item.bp.is_hole() {
            return Ok(self.hole(object, level, item.block));
        }
        if level > 0 || object == 0 {
            return Ok(None);
        }
        if item.bp.is_redacted() {
            let block_bytes = item.bp.lsize();
            let content = RangeContent::Redacted { block_bytes };
            return Ok(Some(one(item.block, content)));
        }
        Ok(Some(one(item.block, RangeContent::Block(item.bp))))
    }

    async fn plan(&mut self, range: SendRange) -> Result<()> {
        let SendRange {
            object,
            first,
            end,
            content,
        } = range;
        match content {
            RangeContent::Table(bp) => self.ahead.push_back(Planned::ObjectRange {
                first: first.saturating_mul(DNODES_OF_BLOCK),
                bp,
            }),
            RangeContent::Dnode { dnode, raw_bonus } => self.plan_dnode(object, dnode, raw_bonus),
            RangeContent::Hole => self.plan_hole(object, first, end),
            RangeContent::Block(bp) => {
                let Current {
                    object_type,
                    block_size,
                } = self.current;
                self.plan_block((object, object_type, block_size), first, bp)?;
            }
            RangeContent::Spill(bp) => {
                let reading = self.read(object, &bp, SPILL_BLOCK);
                self.ahead.push_back(Planned::Spill {
                    object,
                    bp,
                    reading,
                });
            }
            RangeContent::Redacted { block_bytes } => {
                let extent = self.extent(object, first, end, block_bytes)?;
                self.ahead.push_back(Planned::Redacted(extent));
            }
            RangeContent::Restored => self.begin_restoring(object, first, end).await?,
        }
        Ok(())
    }

    fn extent(&self, object: u64, first: u64, end: u64, block_bytes: u64) -> Result<ObjectExtent> {
        let corrupt = || DslError::corrupt("block numbers", ObjectId(object));
        let offset = first.checked_mul(block_bytes).ok_or_else(corrupt)?;
        let length = (end - first).checked_mul(block_bytes).ok_or_else(corrupt)?;
        offset.checked_add(length).ok_or_else(corrupt)?;
        Ok(ObjectExtent {
            object,
            offset,
            length,
            to_guid: self.to_guid,
        })
    }

    fn plan_block(
        &mut self,
        (object, object_type, block_size): (u64, ObjectType, u64),
        block: u64,
        bp: BlockPointer,
    ) -> Result<()> {
        let Some(offset) = block.checked_mul(block_size) else {
            return Err(DslError::corrupt("block numbers", ObjectId(object)));
        };
        if bp.lsize() != block_size {
            return Err(DslError::corrupt("block sizes", ObjectId(object)));
        }
        let reading = self.read(object, &bp, block);
        self.ahead.push_back(Planned::Block {
            object,
            object_type,
            offset,
            bp,
            reading,
        });
        Ok(())
    }

    /// Blocks that an earlier stream left out: what the snapshot has of them is brought. Of an object that it has no longer, nothing is.
    async fn begin_restoring(&mut self, object: u64, first: u64, end: u64) -> Result<()> {
        match self.contents.object_info(ObjectId(object)).await {
            Ok(info) if !info.object_type.is_metadata() => {
                self.restoring = Some(Restoring {
                    object,
                    object_type: info.object_type,
                    block_size: u64::from(info.block_size),
                    block: first,
                    end: end.min(info.max_block_id.saturating_add(1)),
                });
                Ok(())
            }
            Ok(_) => Ok(()),
            Err(error) if error.is_not_found() => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Plans the next block of those that are restored, with the hole before it.
    async fn restore_next(&mut self) -> Result<()> {
        let Some(now) = self.restoring.take().filter(|now| now.block < now.end) else {
            return Ok(());
        };
        let object = ObjectId(now.object);
        let corrupt = || DslError::corrupt("block numbers", object);
        let offset = now.block.checked_mul(now.block_size).ok_or_else(corrupt)?;
        let data = self.contents.next_data(object, offset).await?;
        let data = data.map_or(now.end, |data| (data / now.block_size).min(now.end));
        if data > now.block {
            let extent = self.extent(now.object, now.block, data, now.block_size)?;
            self.ahead.push_back(Planned::Hole(extent));
        }
        if data < now.end {
            let at = data.checked_mul(now.block_size).ok_or_else(corrupt)?;
            let (bp, ..) = self.contents.stored_block(object, at).await?;
            let of = (now.object, now.object_type, now.block_size);
            if bp.is_redacted() {
                let extent = self.extent(now.object, data, data + 1, now.block_size)?;
                self.ahead.push_back(Planned::Redacted(extent));
            } else {
                self.plan_block(of, data, bp)?;
            }
        }
        self.restoring = Some(Restoring {
            block: data.saturating_add(1),
            ..now
        });
        Ok(())
    }

    /// Remembers the shape of the object that is visited.
    fn visit_dnode(&mut self, object: u64, dnode: Box<DnodePhys>) -> Option<SendRange> {
        // The table's own dnode comes as object 0, and so does the slot of that number, which is never used.
        if object == 0 && dnode.is_free() {
            return None;
        }
        if object == 0 {
            self.table_shift = dnode.pointers_shift();
            self.objects_max = dnode
                .max_block_id
                .saturating_add(1)
                .saturating_mul(DNODES_OF_BLOCK);
            return None;
        }
        self.visited = VisitedShape {
            indirect_shift: dnode.pointers_shift(),
            is_metadata: dnode.object_type.is_metadata(),
            max_block_id: dnode.max_block_id,
        };
        let raw_bonus = self.raw_bonus(object, &dnode);
        Some(SendRange {
            object,
            first: 0,
            end: 0,
            content: RangeContent::Dnode { dnode, raw_bonus },
        })
    }

    fn plan_dnode(&mut self, object: u64, dnode: Box<DnodePhys>, raw_bonus: Option<IoBuf>) {
        self.current = Current {
            object_type: dnode.object_type,
            block_size: u64::from(dnode.data_block_sectors) << DNODE_SHIFT,
        };
        let old = dnode.spill.filter(|bp| bp.birth() <= self.from_txg);
        let spill = old.map(|bp| (bp, self.read(object, &bp, SPILL_BLOCK)));
        self.ahead.push_back(Planned::Dnode {
            object,
            dnode,
            raw_bonus,
            spill,
        });
    }

    /// A hole of any level; those beyond what the object ever had are not sent.
    fn hole(&self, object: u64, level: u32, block: u64) -> Option<SendRange> {
        let fan_shift = if object == 0 {
            self.table_shift
        } else {
            self.visited.indirect_shift
        };
        let span = 1_u64.checked_shl(fan_shift.saturating_mul(level))?;
        let first = span.checked_mul(block)?;
        if object != 0 && !self.visited.is_metadata && first > self.visited.max_block_id {
            return None;
        }
        Some(SendRange {
            object,
            first,
            end: first.saturating_add(span),
            content: RangeContent::Hole,
        })
    }

    fn plan_hole(&mut self, object: u64, first: u64, end: u64) {
        if object == 0 {
            let slots = DNODES_OF_BLOCK;
            self.ahead.push_back(Planned::FreeObjects {
                first: first.saturating_mul(slots),
                count: (end - first).saturating_mul(slots),
            });
            return;
        }
        let Some(offset) = first.checked_mul(self.current.block_size) else {
            return;
        };
        let end = end.checked_mul(self.current.block_size);
        let length = end.map_or(u64::MAX, |end| end) - offset;
        self.ahead.push_back(Planned::Hole(ObjectExtent {
            object,
            offset,
            length,
            to_guid: self.to_guid,
        }));
    }

    /// Keeps a block of an encrypted table of dnodes: before its dnodes comes what opens them.
    async fn keep_table(&mut self, item: &TraverseItem) -> Result<()> {
        let props = ReadProps {
            class: IoClass::SyncRead,
            bookmark: Bookmark {
                objset: self.objset,
                object: 0,
                level: 0,
                block: item.block,
            },
        };
        // The traversal has read it just before: it is in memory.
        let read = self.services.cache().read_for(&item.bp, props, KEEP, None);
        let bytes = read.await.map_err(|source| dmu::DmuError::Read {
            objset: self.objset,
            object: ObjectId(0),
            level: 0,
            block: item.block,
            source: std::sync::Arc::new(source),
        })?;
        self.table = Some((item.block, bytes));
        Ok(())
    }

    /// The bonus area of a dnode as it is stored, to its end: all of it is encrypted together.
    fn raw_bonus(&self, object: u64, dnode: &DnodePhys) -> Option<IoBuf> {
        let (block, bytes) = self.table.as_ref()?;
        if dnode.is_free() || dnode.bonus.is_empty() {
            return None;
        }
        let first = block.checked_mul(DNODES_OF_BLOCK)?;
        let at = to_usize(object.checked_sub(first)?) << DNODE_SHIFT;
        let area = super::raw::bonus_area(dnode);
        (at + area.end <= bytes.len()).then(|| bytes.slice(at + area.start..at + area.end))
    }

    fn has(&self, feature: u64) -> bool {
        self.features & feature != 0
    }

    /// Whether a block above 128 KiB is cut.
    fn is_split(&self, bp: &BlockPointer) -> bool {
        bp.lsize() > OLD_MAX_BLOCK_SIZE && !self.has(stream_feature::LARGE_BLOCKS)
    }

    fn is_sent_embedded(&self, bp: &BlockPointer) -> bool {
        bp.embedded_kind() == Some(ondisk::EmbeddedKind::Data)
            && self.has(stream_feature::EMBED_DATA)
            && (bp.compression() < Compression::LZ4 || self.has(stream_feature::LZ4))
            && (bp.compression() != Compression::ZSTD || self.has(stream_feature::ZSTD))
    }

    fn is_sent_compressed(&self, bp: &BlockPointer) -> bool {
        self.has(stream_feature::COMPRESSED)
            && !self.is_split(bp)
            && !bp.is_embedded()
            && bp.compression() != Compression::OFF
            // What is stored compressed is encrypted then.
            && !bp.uses_crypt()
            && !bp.object_type().is_metadata()
    }

    fn is_sent_raw(&self, bp: &BlockPointer) -> bool {
        self.has(stream_feature::RAW) && bp.uses_crypt()
    }

    /// Begins to read a block, unless its pointer holds what is sent. What is not in memory is read past the cache, which others need
    /// more.
    fn read(&mut self, object: u64, bp: &BlockPointer, block: u64) -> Option<Reading> {
        if self.is_sent_embedded(bp) {
            return None;
        }
        self.ahead_bytes += bp.lsize();
        if self.options.dry_run {
            return None;
        }
        let compressed = self.is_sent_compressed(bp);
        let raw = self.is_sent_raw(bp);
        let (cache, store, bp) = (
            self.services.cache().clone(),
            self.services.store().clone(),
            *bp,
        );
        let keys = self.services.keys().cloned();
        let bookmark = Bookmark {
            objset: self.objset,
            object,
            level: 0,
            block,
        };
        let props = ReadProps {
            class: IoClass::SyncRead,
            bookmark,
        };
        Some(self.services.handle.spawn("read of a send", async move {
            if raw || compressed {
                let bytes = store.read_stored(&bp, props).await?;
                return Ok(Payload {
                    bytes,
                    compressed: true,
                });
            }
            let bytes = if cache.has(&bp, keys.is_some()) {
                let read = cache.read_for(&bp, props, KEEP, keys.as_ref());
                read.await?
            } else {
                store.read_forms(&bp, props, keys.as_ref()).await?.logical
            };
            Ok(Payload {
                bytes,
                compressed: false,
            })
        }))
    }

    async fn write(&mut self, planned: Planned) -> Result<()> {
        match planned {
            Planned::Dnode {
                object,
                dnode,
                raw_bonus,
                spill,
            } => {
                self.write_dnode(object, &dnode, raw_bonus.as_deref());
                if let Some((bp, reading)) = spill {
                    self.write_spill(object, &bp, reading).await?;
                }
            }
            Planned::Hole(extent) => self.writer.free(extent),
            Planned::Redacted(extent) => self.writer.redact(extent),
            Planned::FreeObjects { first, count } => self.free_objects(first, count),
            Planned::ObjectRange { first, bp } => {
                let record = ObjectRange {
                    first_object: first,
                    slots: DNODES_OF_BLOCK,
                    to_guid: self.to_guid,
                    crypt: super::raw::params_of(&bp),
                    flags: 0,
                };
                self.writer.put(&StreamRecord::ObjectRange(record), &[]);
            }
            Planned::Spill {
                object,
                bp,
                reading,
            } => self.write_spill(object, &bp, reading).await?,
            Planned::Block {
                object,
                object_type,
                offset,
                bp,
                reading,
            } => {
                if self.is_sent_embedded(&bp) {
                    self.write_embedded(object, offset, &bp);
                    return Ok(());
                }
                let payload = self.payload(object, &bp, offset, reading).await?;
                self.write_block(object, object_type, offset, &bp, payload.as_ref());
            }
        }
        Ok(())
    }

    /// Waits for a block; `None` in a dry run.
    async fn payload(
        &mut self,
        object: u64,
        bp: &BlockPointer,
        offset: u64,
        reading: Option<Reading>,
    ) -> Result<Option<Payload>> {
        assert!(
            self.ahead_bytes >= bp.lsize(),
            "what is read ahead is counted"
        );
        self.ahead_bytes -= bp.lsize();
        let Some(reading) = reading else {
            return Ok(None);
        };
        let payload = reading.await.map_err(|source| dmu::DmuError::Read {
            objset: self.objset,
            object: ObjectId(object),
            level: 0,
            block: offset / bp.lsize().max(1),
            source: std::sync::Arc::new(source),
        })?;
        Ok(Some(payload))
    }

    /// Writes a record with its payload; in a dry run the payload is counted.
    fn put(&mut self, record: &StreamRecord, payload: Option<&IoBuf>, sums: Option<[u64; 4]>) {
        if let Some(bytes) = payload {
            self.writer.put_block(record, bytes, sums);
        } else {
            self.skipped_bytes += ondisk::stream::RECORD_SIZE as u64 + record.payload_len();
            self.writer.flush();
        }
    }

    fn free_objects(&mut self, first: u64, count: u64) {
        if first < self.objects_max {
            let count = count.min(self.objects_max - first);
            self.writer.free_objects(first, count, self.to_guid);
        }
    }

    fn write_dnode(&mut self, object: u64, dnode: &DnodePhys, raw_bonus: Option<&[u8]>) {
        if dnode.is_free() {
            self.free_objects(object, 1);
            return;
        }
        let block_size = u64::from(dnode.data_block_sectors) << DNODE_SHIFT;
        // The MAC of a raw stream's dnodes covers their block size, which may be a large one in a dataset that has no large block: where
        // a file is a hole.
        let sent_size = if self.has(stream_feature::LARGE_BLOCKS | stream_feature::RAW) {
            block_size
        } else {
            block_size.min(OLD_MAX_BLOCK_SIZE)
        };
        let has_spill = dnode.spill.is_some();
        let mut record = Object {
            object,
            object_type: u32::from(dnode.object_type.0),
            bonus_type: u32::from(dnode.bonus_type.0),
            block_size: u32::try_from(sent_size).expect("blocks are at most 16 MiB"),
            bonus_len: u32::try_from(dnode.bonus.len()).expect("a bonus is at most 16 KiB"),
            checksum: dnode.checksum.0,
            compression: dnode.compression.0,
            dnode_slots: dnode.extra_slots + 1,
            flags: if has_spill { record_flags::SPILL } else { 0 },
            raw_bonus_len: 0,
            to_guid: self.to_guid,
            indirect_shift: 0,
            levels: 0,
            block_pointers: 0,
            max_block_id: 0,
        };
        if self.has(stream_feature::RAW) {
            // What a receiver needs to put the same dnode together.
            record.indirect_shift = dnode.indirect_shift;
            record.levels = dnode.levels;
            record.block_pointers =
                u8::try_from(dnode.block_pointers.len()).expect("at most three pointers");
            record.max_block_id = dnode.max_block_id;
        }
        let bonus = raw_bonus.unwrap_or(&dnode.bonus);
        if raw_bonus.is_some() {
            record.raw_bonus_len = u32::try_from(bonus.len()).expect("a bonus is at most 16 KiB");
        }
        self.writer.put(&StreamRecord::Object(record), bonus);
        self.writer.free(ObjectExtent {
            object,
            offset: dnode
                .max_block_id
                .saturating_add(1)
                .saturating_mul(block_size),
            length: TO_THE_END,
            to_guid: self.to_guid,
        });
    }

    async fn write_spill(
        &mut self,
        object: u64,
        bp: &BlockPointer,
        reading: Option<Reading>,
    ) -> Result<()> {
        if self.is_sent_embedded(bp) {
            // OpenZFS sends it so, as a block with the number of spill blocks, and its receivers know it.
            let offset = SPILL_BLOCK.wrapping_mul(bp.lsize());
            self.write_embedded(object, offset, bp);
            return Ok(());
        }
        let payload = self.payload(object, bp, SPILL_BLOCK, reading).await?;
        let unmodified = bp.birth() <= self.from_txg;
        let mut record = Spill {
            object,
            length: bp.lsize(),
            to_guid: self.to_guid,
            flags: if unmodified { record_flags::SPILL } else { 0 },
            compression: 0,
            compressed_size: 0,
            crypt: CryptParams::default(),
            object_type: 0,
        };
        if self.is_sent_raw(bp) {
            record.compression = bp.compression().0;
            record.compressed_size = bp.psize();
            record.crypt = super::raw::params_of(bp);
        }
        let bytes = payload.as_ref().map(|payload| &payload.bytes);
        self.put(&StreamRecord::Spill(record), bytes, None);
        Ok(())
    }

    fn write_embedded(&mut self, object: u64, offset: u64, bp: &BlockPointer) {
        let size = |bytes: u64| u32::try_from(bytes).expect("embedded data is at most 112 bytes");
        let record = WriteEmbedded {
            object,
            offset,
            length: bp.lsize(),
            to_guid: self.to_guid,
            compression: bp.compression().0,
            embedded_kind: 0,
            logical_size: size(bp.lsize()),
            physical_size: size(bp.psize()),
        };
        self.writer
            .put(&StreamRecord::WriteEmbedded(record), &bp.embedded_payload());
    }

    fn write_block(
        &mut self,
        object: u64,
        object_type: ObjectType,
        offset: u64,
        bp: &BlockPointer,
        payload: Option<&Payload>,
    ) {
        let mut record = Write {
            object,
            object_type: u32::from(object_type.0),
            offset,
            logical_size: bp.lsize(),
            to_guid: self.to_guid,
            checksum: ChecksumKind::OFF.0,
            flags: 0,
            compression: 0,
            key_checksum: [0; 4],
            key_prop: 0,
            compressed_size: 0,
            crypt: CryptParams::default(),
        };
        if self.is_split(bp) {
            let mut at = 0;
            while at < bp.lsize() {
                let len = (bp.lsize() - at).min(OLD_MAX_BLOCK_SIZE);
                record.offset = offset + at;
                record.logical_size = len;
                let range = to_usize(at)..to_usize(at + len);
                let piece = payload.map(|whole| whole.bytes.slice(range));
                self.put(&StreamRecord::Write(record.clone()), piece.as_ref(), None);
                at += len;
            }
            return;
        }
        let raw = self.is_sent_raw(bp);
        if raw {
            record.crypt = super::raw::params_of(bp);
        }
        if payload.map_or(raw || self.is_sent_compressed(bp), |payload| {
            payload.compressed
        }) {
            record.compression = bp.compression().0;
            record.compressed_size = bp.psize();
        }
        // The sum of an encrypted block says nothing of its plain bytes.
        if !bp.is_embedded() && (raw || !bp.uses_crypt()) {
            record.checksum = bp.checksum_kind().0;
            if is_trusted_by_dedup(bp.checksum_kind()) {
                record.flags |= record_flags::CHECKSUM_CAN_DEDUP;
            }
            record.key_checksum = bp.checksum();
            record.key_prop = (bp.lsize() / 512 - 1)
                | (bp.psize() / 512 - 1) << 16
                | u64::from(bp.compression().0) << 32
                | u64::from(raw) << 39;
        }
        let bytes = payload.map(|whole| &whole.bytes);
        let sums = payload.and_then(|payload| known_sums(bp, payload));
        self.put(&StreamRecord::Write(record), bytes, sums);
    }
}

/// The Fletcher4 of a payload that is what is stored: its pointer has it, and it was compared when the block was read. The receiver
/// compares it again, with what came of the block since.
fn known_sums(bp: &BlockPointer, payload: &Payload) -> Option<[u64; 4]> {
    let is_stored = payload.compressed || bp.compression() == Compression::OFF;
    let is_of_all = !bp.uses_crypt() && !bp.is_embedded() && !bp.is_gang();
    let is_known = bp.checksum_kind() == ChecksumKind::FLETCHER4 && bp.is_little_endian();
    let is_whole = payload.bytes.len() as u64 == bp.psize();
    (is_stored && is_of_all && is_known && is_whole).then(|| bp.checksum())
}

/// Whether the traversal visits a block of the table of dnodes.
fn is_table_block(item: &TraverseItem) -> bool {
    item.object.0 == 0 && item.level == 0 && !item.bp.is_hole() && item.dnode.is_none()
}

fn to_usize(bytes: u64) -> usize {
    usize::try_from(bytes).expect("blocks are at most 16 MiB")
}

/// Whether a checksum is one that deduplication takes for equality.
fn is_trusted_by_dedup(kind: ChecksumKind) -> bool {
    matches!(
        kind,
        ChecksumKind::SHA256 | ChecksumKind::SHA512 | ChecksumKind::SKEIN | ChecksumKind::BLAKE3
    )
}

/// The features a stream of the snapshot has.
async fn features(snapshot: &Dataset, objset: &Objset, options: SendOptions) -> Result<u64> {
    let pool = snapshot.pool_features();
    let state = snapshot.state();
    let of_dataset = |name: &str| state.features.borrow().contains(name);
    let encrypted = objset.root().uses_crypt();
    let mut all = 0;
    if objset.kind() == ObjsetType::ZFS && zpl_version(objset).await? >= 5 {
        all |= stream_feature::SA_SPILL;
    }
    if (options.large_blocks || options.raw) && of_dataset("large_blocks") {
        all |= stream_feature::LARGE_BLOCKS;
    }
    // Encrypted datasets have no embedded blocks.
    if (options.embedded || options.raw) && !encrypted && pool.is_active("embedded_data") {
        all |= stream_feature::EMBED_DATA;
    }
    if options.compressed || options.raw {
        all |= stream_feature::COMPRESSED;
    }
    if all & (stream_feature::EMBED_DATA | stream_feature::COMPRESSED) != 0
        && pool.is_active("lz4_compress")
    {
        all |= stream_feature::LZ4;
    }
    if (options.compressed || options.raw) && of_dataset("zstd_compress") {
        all |= stream_feature::ZSTD;
    }
    if of_dataset("large_dnode") {
        all |= stream_feature::LARGE_DNODE;
    }
    if of_dataset("longname") {
        all |= stream_feature::LONG_NAMES;
    }
    if of_dataset("large_microzap") {
        if all & stream_feature::LARGE_BLOCKS == 0 {
            return Err(DslError::Unsupported {
                what: "sending large directories without large blocks (-L)",
            });
        }
        all |= stream_feature::LARGE_MICROZAP;
    }
    Ok(all)
}

/// The version of a file system's own format, in its master node.
async fn zpl_version(objset: &Objset) -> Result<u64> {
    const MASTER_NODE: ObjectId = ObjectId(1);
    let version = dmu::zap::lookup_u64(objset, MASTER_NODE, "VERSION").await?;
    Ok(version.unwrap_or(0))
}
