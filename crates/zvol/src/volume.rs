//! The open volume: reading, writing, giving space back, resizing.
//!
//! Every operation holds a lock on the range it touches, shared for reads and exclusive for changes, taken before the transaction
//! and let go with it: never across the wait for stable storage.

use std::cell::Cell;
use std::collections::VecDeque;
use std::ops::Range;
use std::rc::Rc;

use dmu::zap;
use dmu::{Cloneable, Objset, Tx};
use dsl::property::{DatasetKind, Property};
use dsl::{Dataset, Estimate};
use ondisk::zil_record::{CloneRange, RangeRecord, record_kind};
use ondisk::{ObjectType, Txg};
use runtime::IoBuf;
use runtime::sync::{RangeLock, WHOLE_RANGE};
use zil::{Intent, Zilog};

use crate::{DATA, PROPERTIES, SIZE_KEY, VolumeError, VolumeResult, check_size};

/// Most bytes changed under one transaction, and so the largest write that readers see as a whole. A multiple of every block size
/// up to itself; volumes of larger blocks change one block at a time.
pub const CHUNK_BYTES: u64 = 1 << 20;
/// Blocks freed in one transaction, at most.
const FREE_BLOCKS_MAX: u64 = 4096;
/// What a change makes dirty besides its data, roughly: dnode, indirect blocks.
pub(crate) const META_BYTES: u64 = 16 << 10;
/// What a transaction that frees makes dirty, roughly.
const FREEING_BYTES: u64 = 64 << 10;

const DAMAGED: VolumeError = VolumeError::Corrupt("record of the intent log");

/// What must be true of a change when it is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stability {
    /// It is visible to every reader; a power cut may lose it.
    Unstable,
    /// It survives a power cut.
    Stable,
}

/// How to open a volume.
#[derive(Debug, Clone, Copy, Default)]
pub struct VolumeOptions {
    /// Refuse every change, besides what the dataset itself says.
    pub read_only: bool,
}

/// A stretch of a volume that is all data or all hole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Allocation {
    /// Where it begins, in bytes.
    pub offset: u64,
    /// How long it is, in bytes.
    pub len: u64,
    /// Something was written there; otherwise it reads as zeros and takes no space.
    pub data: bool,
}

/// An open volume. Clones share it. One per dataset may be open at a time.
#[derive(Clone)]
pub struct Volume(pub(crate) Rc<VolumeState>);

pub(crate) struct VolumeState {
    pub(crate) os: Objset,
    pub(crate) dataset: Dataset,
    options: VolumeOptions,
    pub(crate) block_size: u64,
    size: Cell<u64>,
    pub(crate) ranges: RangeLock,
    /// The newest txg with changes.
    last_txg: Cell<Txg>,
    log: Option<Zilog>,
    /// Number of the log record being replayed.
    replaying: Cell<Option<u64>>,
    closed: Cell<bool>,
}

impl Volume {
    /// Opens the volume of a dataset, or of a snapshot (which can only be read).
    ///
    /// # Errors
    /// [`VolumeError::NotSupported`] when the dataset is no volume, [`VolumeError::Corrupt`], those of reading.
    pub async fn open(dataset: Dataset, options: VolumeOptions) -> VolumeResult<Self> {
        if dataset.head_kind() != DatasetKind::Volume {
            return Err(VolumeError::NotSupported);
        }
        let os = dataset.objset();
        let info = os.object_info(DATA).await?;
        if info.object_type != ObjectType::ZVOL {
            return Err(VolumeError::Corrupt("object 1 is not the volume's data"));
        }
        let size = zap::lookup_u64(&os, PROPERTIES, SIZE_KEY)
            .await?
            .ok_or(VolumeError::Corrupt("the volume has no size"))?;
        if size > i64::MAX.cast_unsigned() {
            return Err(VolumeError::Corrupt("the volume's size"));
        }
        let volume = Self(Rc::new(VolumeState {
            os,
            log: dataset.log(),
            replaying: Cell::new(None),
            dataset,
            options,
            block_size: u64::from(info.block_size.max(512)),
            size: Cell::new(size),
            ranges: RangeLock::default(),
            last_txg: Cell::new(Txg(0)),
            closed: Cell::new(false),
        }));
        // Before anything else changes the volume; also where the property makes it read-only.
        volume.replay_log().await?;
        Ok(volume)
    }

    /// Ends the use of the volume: changes are refused from now on. What was written unstably is on disk with its txg; on
    /// return the intent log is empty.
    ///
    /// # Errors
    /// Those of writing; the volume is closed all the same.
    pub async fn close(&self) -> VolumeResult<()> {
        self.0.closed.set(true);
        match &self.0.log {
            Some(log) if !self.0.os.is_read_only() => Ok(log.close().await?),
            _ => Ok(()),
        }
    }

    /// Returns the size in bytes.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.0.size.get()
    }

    /// Returns `volblocksize`, in bytes: the unit of allocation.
    #[must_use]
    pub fn block_size(&self) -> u64 {
        self.0.block_size
    }

    /// Returns the dataset.
    #[must_use]
    pub fn dataset(&self) -> &Dataset {
        &self.0.dataset
    }

    /// Returns whether changes are refused now.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        self.0.options.read_only
            || self.0.dataset.is_read_only()
            || self.0.dataset.number(Property::ReadOnly) != 0
    }

    /// Reads bytes. The pieces, one for each block touched, are shared with the cache and together cover exactly the range.
    ///
    /// # Errors
    /// [`VolumeError::OutOfRange`]; [`VolumeError::Io`] when no good copy of a block is left.
    pub async fn read(&self, offset: u64, len: usize) -> VolumeResult<Vec<IoBuf>> {
        let range = self.range(offset, len as u64)?;
        if range.is_empty() {
            return Ok(Vec::new());
        }
        let _lock = self.0.ranges.shared(range.clone()).await;
        // It may have shrunk while we waited.
        self.check_end(range.end)?;
        let data = self.0.os.read_bufs(DATA, offset, len).await?;
        self.0.dataset.note_read(len as u64);
        Ok(data)
    }

    /// Writes bytes, and answers when `stability` is reached.
    ///
    /// # Errors
    /// [`VolumeError::OutOfRange`], [`VolumeError::ReadOnly`], [`VolumeError::NoSpace`]; those of reading blocks written in part.
    /// After an error part of the range may have been written.
    pub async fn write(&self, offset: u64, data: IoBuf, stability: Stability) -> VolumeResult<()> {
        self.write_pieces(offset, vec![data], stability).await
    }

    /// As [`Volume::write`], of data in pieces that follow each other. Those that are whole blocks are kept without a copy.
    ///
    /// # Errors
    /// Those of [`Volume::write`].
    pub async fn write_pieces(
        &self,
        offset: u64,
        pieces: Vec<IoBuf>,
        stability: Stability,
    ) -> VolumeResult<()> {
        let whole = self.range(offset, total(&pieces))?;
        let mut pieces = VecDeque::from(pieces);
        let mut at = whole.start;
        while at < whole.end {
            let end = self.chunk_end(at).min(whole.end);
            let part = take_front(&mut pieces, index(end - at));
            let _lock = self.0.ranges.exclusive(at..end).await;
            self.write_locked(at, part).await?;
            at = end;
        }
        self.stabilize(stability).await
    }

    /// Writes bytes so that readers and power cuts leave all of them or none. On stable storage when it returns. At most
    /// [`CHUNK_BYTES`].
    ///
    /// # Errors
    /// [`VolumeError::OutOfRange`] also for more; those of [`Volume::write`].
    pub async fn write_atomic(&self, offset: u64, data: IoBuf) -> VolumeResult<()> {
        let range = self.range(offset, data.len() as u64)?;
        if range.end - range.start > CHUNK_BYTES {
            return Err(VolumeError::OutOfRange);
        }
        if range.is_empty() {
            return Ok(());
        }
        let txg = {
            let _lock = self.0.ranges.exclusive(range.clone()).await;
            self.check_writable()?;
            self.check_end(range.end)?;
            self.warm(range.start, range.end).await?;
            let bytes = range.end - range.start;
            let tx = self.begin(Estimate::bytes(bytes + META_BYTES)).await?;
            self.dirtied(&tx);
            // Not in the intent log, which may cut a write in two: the txg itself is waited for.
            self.0.os.write_buf(DATA, offset, data, &tx).await?;
            self.0.dataset.note_written(bytes);
            tx.txg()
        };
        Ok(self.0.os.services().clock.wait_synced(txg).await?)
    }

    /// Writes `data` if the bytes there equal `expected`; atomically. At most [`CHUNK_BYTES`].
    ///
    /// # Errors
    /// [`VolumeError::Miscompare`] with the first differing byte; [`VolumeError::OutOfRange`] also for ranges too long or of
    /// different lengths; those of [`Volume::write`].
    pub async fn compare_and_write(
        &self,
        offset: u64,
        expected: &[u8],
        data: IoBuf,
        stability: Stability,
    ) -> VolumeResult<()> {
        let range = self.range(offset, data.len() as u64)?;
        if expected.len() != data.len() || data.len() as u64 > CHUNK_BYTES {
            return Err(VolumeError::OutOfRange);
        }
        if range.is_empty() {
            return Ok(());
        }
        {
            let _lock = self.0.ranges.exclusive(range.clone()).await;
            self.check_end(range.end)?;
            let mut at = 0;
            for piece in self.0.os.read_bufs(DATA, offset, expected.len()).await? {
                let wanted = &expected[at..at + piece.len()];
                if let Some(first) = piece.iter().zip(wanted).position(|(a, b)| a != b) {
                    return Err(VolumeError::Miscompare((at + first) as u64));
                }
                at += piece.len();
            }
            self.write_locked(offset, vec![data]).await?;
        }
        self.stabilize(stability).await
    }

    /// Makes a range read as zeros; whole blocks of it give their space back.
    ///
    /// # Errors
    /// Those of [`Volume::write`].
    pub async fn zero(&self, offset: u64, len: u64, stability: Stability) -> VolumeResult<()> {
        let range = self.range(offset, len)?;
        self.free(range).await?;
        self.stabilize(stability).await
    }

    /// Gives back the space of the whole blocks in a range, which then read as zeros; the rest of the range stays as it is.
    ///
    /// # Errors
    /// Those of [`Volume::write`].
    pub async fn discard(&self, offset: u64, len: u64, stability: Stability) -> VolumeResult<()> {
        let range = self.range(offset, len)?;
        let block = self.0.block_size;
        let inner = range.start.next_multiple_of(block)..range.end - range.end % block;
        if inner.start < inner.end {
            self.free(inner).await?;
        }
        self.stabilize(stability).await
    }

    /// Brings everything written so far onto stable storage.
    ///
    /// # Errors
    /// Those of writing.
    pub async fn flush(&self) -> VolumeResult<()> {
        if self.sync_setting() == SyncSetting::Disabled {
            return Ok(());
        }
        self.commit().await
    }

    /// Tells where data is and where holes are, from `offset` on: stretches in order, without gaps, together at most `len` bytes.
    /// Stops after `max` stretches; at least one is returned for a range that is not empty.
    ///
    /// # Errors
    /// [`VolumeError::OutOfRange`], those of reading.
    pub async fn allocation(
        &self,
        offset: u64,
        len: u64,
        max: usize,
    ) -> VolumeResult<Vec<Allocation>> {
        let range = self.range(offset, len)?;
        let _lock = self.0.ranges.shared(range.clone()).await;
        self.check_end(range.end)?;
        let mut found = Vec::new();
        let mut at = range.start;
        while at < range.end && found.len() < max.max(1) {
            let data = self.0.os.next_data(DATA, at).await?;
            let data = data.unwrap_or(u64::MAX).clamp(at, range.end);
            let (end, is_data) = if data > at {
                (data, false)
            } else {
                let hole = self.0.os.next_hole_before(DATA, at, range.end).await?;
                (hole.min(range.end), true)
            };
            if end <= at {
                return Err(VolumeError::Corrupt("a map of data that does not advance"));
            }
            found.push(Allocation {
                offset: at,
                len: end - at,
                data: is_data,
            });
            at = end;
        }
        Ok(found)
    }

    /// Changes the size; bytes past a smaller size are lost, new ones are zeros. On stable storage when it returns.
    ///
    /// # Errors
    /// [`VolumeError::BadSize`], [`VolumeError::ReadOnly`], those of writing.
    pub async fn resize(&self, size: u64) -> VolumeResult<()> {
        self.check_writable()?;
        check_size(size, self.0.block_size)?;
        let all = self.0.ranges.exclusive(WHOLE_RANGE).await;
        let old = self.size();
        // No read or write past the new end may run while blocks there are freed.
        self.0.size.set(size.min(old));
        let outcome = self.resize_locked(old, size).await;
        self.0.size.set(if outcome.is_ok() { size } else { old });
        drop(all);
        outcome?;
        self.commit().await
    }

    async fn resize_locked(&self, old: u64, size: u64) -> VolumeResult<()> {
        let os = &self.0.os;
        let tx = self.begin(Estimate::freeing(FREEING_BYTES)).await?;
        zap::update_u64(os, PROPERTIES, SIZE_KEY, size, &tx).await?;
        if size > old {
            // A shrinking that was interrupted may have left blocks there.
            os.free_range(DATA, old, u64::MAX, &tx).await?;
        }
        self.dirtied(&tx);
        // There is no record of a size: whatever is committed from now on waits for this txg.
        self.log(zil::ItxKind::Sync, || Intent::Unlogged, &tx);
        drop(tx);
        if size < old {
            self.free_locked(size..old).await?;
            let tx = self.begin(Estimate::freeing(FREEING_BYTES)).await?;
            os.free_range(DATA, size, u64::MAX, &tx).await?;
            self.dirtied(&tx);
        }
        Ok(())
    }

    /// Frees a range, in steps that each fit a transaction.
    pub(crate) async fn free(&self, range: Range<u64>) -> VolumeResult<()> {
        self.check_writable()?;
        let step = self.0.block_size.saturating_mul(FREE_BLOCKS_MAX);
        let mut at = range.start;
        while let Some(data) = self.0.os.next_data(DATA, at).await? {
            at = data.max(at);
            if at >= range.end {
                break;
            }
            let end = (at - at % step).saturating_add(step).min(range.end);
            let _lock = self.0.ranges.exclusive(at..end).await;
            self.check_end(end)?;
            self.free_locked(at..end).await?;
            at = end;
        }
        Ok(())
    }

    /// Frees what is not a hole yet. The caller holds the range.
    async fn free_locked(&self, range: Range<u64>) -> VolumeResult<()> {
        let step = self.0.block_size.saturating_mul(FREE_BLOCKS_MAX);
        let mut at = range.start;
        while let Some(data) = self.0.os.next_data(DATA, at).await? {
            let data = data.max(at);
            if data >= range.end {
                break;
            }
            let end = (data - data % step).saturating_add(step).min(range.end);
            self.check_open()?;
            self.warm(data, end).await?;
            let tx = self.begin(Estimate::freeing(FREEING_BYTES)).await?;
            self.0.os.free_range(DATA, data, end - data, &tx).await?;
            self.dirtied(&tx);
            self.log_content(|| truncate_record(data, end - data), &tx);
            at = end;
        }
        Ok(())
    }

    /// Writes at most a chunk. The caller holds the range.
    pub(crate) async fn write_locked(&self, at: u64, pieces: Vec<IoBuf>) -> VolumeResult<()> {
        let len = total(&pieces);
        self.check_writable()?;
        self.check_end(at + len)?;
        self.warm(at, at + len).await?;
        let tx = self.begin(Estimate::bytes(len + META_BYTES)).await?;
        self.dirtied(&tx);
        let mut at = at;
        for piece in pieces {
            let len = piece.len() as u64;
            self.0.os.write_buf(DATA, at, piece.clone(), &tx).await?;
            let block = self.indirect_block(piece.len());
            let write = || Intent::Write {
                object: DATA,
                offset: at,
                data: piece,
                block,
            };
            self.log_content(write, &tx);
            at += len;
        }
        self.0.dataset.note_written(len);
        Ok(())
    }

    /// Reads the blocks that a change covers in part, so that the change itself needs no disk.
    async fn warm(&self, from: u64, to: u64) -> VolumeResult<()> {
        let block = self.0.block_size;
        if !from.is_multiple_of(block) {
            self.0.os.read_bufs(DATA, from - from % block, 1).await?;
        }
        if !to.is_multiple_of(block) && (to - to % block >= from || from.is_multiple_of(block)) {
            self.0.os.read_bufs(DATA, to - to % block, 1).await?;
        }
        Ok(())
    }

    pub(crate) async fn begin(&self, mut estimate: Estimate) -> VolumeResult<Tx> {
        // What was acknowledged before a crash may use the room that is kept back.
        estimate.net_free |= self.0.replaying.get().is_some();
        Ok(self.0.dataset.begin(estimate).await?)
    }

    pub(crate) fn dirtied(&self, tx: &Tx) {
        self.0.last_txg.set(self.0.last_txg.get().max(tx.txg()));
    }

    pub(crate) async fn stabilize(&self, wanted: Stability) -> VolumeResult<()> {
        let wait = match self.sync_setting() {
            SyncSetting::Disabled => false,
            SyncSetting::Always => true,
            SyncSetting::Standard => wanted == Stability::Stable,
        };
        if wait { self.commit().await } else { Ok(()) }
    }

    async fn commit(&self) -> VolumeResult<()> {
        if self.0.replaying.get().is_some() {
            return Ok(());
        }
        if let Some(log) = &self.0.log {
            return Ok(log.commit(Some(DATA)).await?);
        }
        let clock = &self.0.os.services().clock;
        Ok(clock.wait_synced(self.0.last_txg.get()).await?)
    }

    pub(crate) fn log_content(&self, make: impl FnOnce() -> Intent, tx: &Tx) {
        self.log(zil::ItxKind::Async(DATA), make, tx);
    }

    /// Appends a record, or notes the one under replay as done.
    fn log(&self, scope: zil::ItxKind, make: impl FnOnce() -> Intent, tx: &Tx) {
        let Some(log) = &self.0.log else { return };
        match self.0.replaying.get() {
            Some(seq) => log.replayed(seq, tx),
            None => log.append(scope, make(), tx),
        }
    }

    /// Replays the log an earlier session left. OpenZFS: module/zfs/zvol.c, `zvol_replay_write`, `zvol_replay_truncate`.
    async fn replay_log(&self) -> VolumeResult<()> {
        let Some(log) = self.0.log.clone() else {
            return Ok(());
        };
        if !log.needs_replay() || self.0.os.is_read_only() {
            return Ok(());
        }
        let mut stream = log.replay();
        while let Some(record) = stream.next().await? {
            self.0.replaying.set(Some(record.seq));
            let outcome = if record.kind == record_kind::CLONE_RANGE {
                self.replay_clones(&record, &stream).await
            } else {
                self.replay_record(&record).await
            };
            self.0.replaying.set(None);
            outcome?;
        }
        Ok(stream.finish().await?)
    }

    /// Blocks cloned from somewhere: they are cloned again, or copied where the volume cannot have them as they are. What they were
    /// cloned from is held until the log is given up.
    async fn replay_clones(
        &self,
        record: &zil::Record,
        stream: &zil::ReplayStream,
    ) -> VolumeResult<()> {
        let range = CloneRange::decode(&record.body).ok_or(DAMAGED)?;
        if self.can_clone_again(&range) {
            let end = range.offset + range.length;
            let _lock = self.0.ranges.exclusive(range.offset..end).await;
            return self.put_clones(range).await;
        }
        let end = range.offset.saturating_add(range.length).min(self.size());
        let last = range.blocks.len().saturating_sub(1);
        let mut at = range.offset;
        for block in 0..range.blocks.len() {
            if at >= end {
                break;
            }
            let data = stream.cloned_block(&range, block).await?;
            let len = (end - at).min(data.len() as u64);
            // One transaction for each block: the record is done with the last one, and can be done again before.
            let done = record.seq - u64::from(block != last);
            self.0.replaying.set(Some(done));
            let _lock = self.0.ranges.exclusive(at..at + len).await;
            self.write_locked(at, vec![data.slice(0..index(len))])
                .await?;
            at += len;
        }
        Ok(())
    }

    /// Whether the blocks of a record can be cloned into the volume.
    fn can_clone_again(&self, range: &CloneRange) -> bool {
        let block = self.0.block_size;
        let blocks = range.blocks.len() as u64;
        let is_whole = range.offset.is_multiple_of(block)
            && blocks > 0
            && blocks.checked_mul(block) == Some(range.length)
            && range
                .offset
                .checked_add(range.length)
                .is_some_and(|end| end <= self.size());
        is_whole
            && range.block_size == block
            && self.0.dataset.allows_cloning()
            && range.blocks.iter().all(|bp| Cloneable::allows(bp, block))
    }

    async fn replay_record(&self, record: &zil::Record) -> VolumeResult<()> {
        match record.kind {
            record_kind::WRITE => {
                let write = record.write().ok_or(DAMAGED)?;
                // A block may reach past the end; what was written does not.
                let end = write.offset.saturating_add(write.data.len() as u64);
                let end = end.min(self.size());
                if write.offset >= end {
                    return Ok(());
                }
                let data = write.data.slice(0..index(end - write.offset));
                let _lock = self.0.ranges.exclusive(write.offset..end).await;
                self.write_locked(write.offset, vec![data]).await
            }
            record_kind::TRUNCATE => {
                let range = RangeRecord::decode(&record.body).ok_or(DAMAGED)?;
                let end = range.offset.saturating_add(range.length).min(self.size());
                if range.offset >= end {
                    return Ok(());
                }
                self.free(range.offset..end).await
            }
            // Only file systems have others.
            record_kind::WRITE2 => Ok(()),
            _ => Err(VolumeError::NotSupported),
        }
    }

    /// The volume's block size, when a write of so many bytes may be logged by pointers to its blocks; else 0.
    fn indirect_block(&self, len: usize) -> u32 {
        let number = self.0.dataset.number(Property::LogBias);
        let for_throughput = Property::LogBias.index_name(number) == Some("throughput");
        let from = self
            .0
            .log
            .as_ref()
            .map(|log| log.indirect_write_min(for_throughput));
        match (from, u32::try_from(self.0.block_size)) {
            (Some(0), Ok(block)) => block,
            // OpenZFS: zvol_log_write compares the volume's block size, where files compare the write's length.
            (Some(from), Ok(block)) if block as usize > from && len >= block as usize => block,
            _ => 0,
        }
    }

    fn sync_setting(&self) -> SyncSetting {
        let number = self.0.dataset.number(Property::Sync);
        match Property::Sync.index_name(number) {
            Some("always") => SyncSetting::Always,
            Some("disabled") => SyncSetting::Disabled,
            _ => SyncSetting::Standard,
        }
    }

    /// The end of the piece of a long change that `at` lies in.
    pub(crate) fn chunk_end(&self, at: u64) -> u64 {
        let chunk = CHUNK_BYTES.max(self.0.block_size);
        (at - at % chunk).saturating_add(chunk)
    }

    pub(crate) fn range(&self, offset: u64, len: u64) -> VolumeResult<Range<u64>> {
        let end = offset.checked_add(len).ok_or(VolumeError::OutOfRange)?;
        self.check_end(end)?;
        Ok(offset..end)
    }

    pub(crate) fn check_end(&self, end: u64) -> VolumeResult<()> {
        if end > self.size() {
            Err(VolumeError::OutOfRange)
        } else {
            Ok(())
        }
    }

    pub(crate) fn check_open(&self) -> VolumeResult<()> {
        if self.0.closed.get() {
            Err(VolumeError::Busy)
        } else {
            Ok(())
        }
    }

    pub(crate) fn check_writable(&self) -> VolumeResult<()> {
        self.check_open()?;
        if self.0.replaying.get().is_none() && self.is_read_only() {
            Err(VolumeError::ReadOnly)
        } else {
            Ok(())
        }
    }
}

/// When changes have to be on stable storage, the `sync` property.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SyncSetting {
    Standard,
    Always,
    Disabled,
}

/// The record of freed bytes.
fn truncate_record(offset: u64, length: u64) -> Intent {
    let range = RangeRecord {
        object: DATA.0,
        offset,
        length,
    };
    Intent::Record {
        kind: record_kind::TRUNCATE,
        body: range.encode(),
    }
}

fn total(pieces: &[IoBuf]) -> u64 {
    pieces.iter().map(|piece| piece.len() as u64).sum()
}

/// Takes `len` bytes off the front.
fn take_front(pieces: &mut VecDeque<IoBuf>, mut len: usize) -> Vec<IoBuf> {
    let mut taken = Vec::new();
    while len > 0
        && let Some(piece) = pieces.pop_front()
    {
        if piece.len() > len {
            pieces.push_front(piece.slice(len..piece.len()));
            taken.push(piece.slice(0..len));
            break;
        }
        len -= piece.len();
        taken.push(piece);
    }
    taken
}

/// An offset within a buffer in memory.
pub(crate) fn index(bytes: u64) -> usize {
    usize::try_from(bytes).expect("a length that came from a buffer's")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_cut_where_a_chunk_ends() {
        let piece = |bytes: &[u8]| IoBuf::copy_from(bytes);
        let mut pieces = VecDeque::from([piece(b"abc"), piece(b"de"), piece(b""), piece(b"fgh")]);
        let mut take = |len| {
            let taken = take_front(&mut pieces, len);
            taken.iter().map(|piece| piece.to_vec()).collect::<Vec<_>>()
        };
        assert_eq!(take(4), [b"abc".to_vec(), b"d".to_vec()]);
        assert_eq!(take(1), [b"e".to_vec()]);
        assert_eq!(take(9), [b"".to_vec(), b"fgh".to_vec()]);
        assert!(take(1).is_empty());
        assert_eq!(total(&[piece(b"abc"), piece(b"de")]), 5);
    }
}
