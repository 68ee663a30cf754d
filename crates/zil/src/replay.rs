//! Replay: the records of a claimed log as a stream, pulled by the file system or volume that knows what they mean.

use ondisk::bytes::index;
use ondisk::zil::LogRecord;
use ondisk::zil_record::{CloneRange, WriteRecord, record_kind};
use ondisk::{BlockPointer, ObjectId};
use runtime::{Instant, IoBuf};
use zio::{Bookmark, IoClass, ReadProps};

use crate::claim::LogFrees;
use crate::error::{Result, ZilError};
use crate::log::Zilog;
use crate::walk::{Walk, records_of};

impl Zilog {
    /// Starts the replay of a claimed log. Nothing may be appended before its end.
    #[must_use]
    pub fn replay(&self) -> ReplayStream {
        ReplayStream::new(self)
    }
}

/// A record to be replayed.
#[derive(Debug, Clone)]
pub struct Record {
    /// One of [`record_kind`].
    pub kind: u64,
    /// Names in it were looked up without regard to case.
    pub case_insensitive: bool,
    /// Its number, for [`Zilog::replayed`].
    pub seq: u64,
    /// What follows the common header.
    pub body: Vec<u8>,
    /// The block of an indirect write.
    indirect: Option<IoBuf>,
}

/// A write record taken apart.
#[derive(Debug, Clone)]
pub struct WriteBody {
    /// The object written to.
    pub object: ObjectId,
    /// First byte.
    pub offset: u64,
    /// The bytes.
    pub data: IoBuf,
    /// The end of what was written, where `data` is a whole block that may hold more: the object's size becomes at least
    /// this, and not what the block's end would make it.
    pub end: Option<u64>,
}

impl Record {
    /// Takes a write record apart; `None` when its lengths do not fit.
    #[must_use]
    pub fn write(&self) -> Option<WriteBody> {
        let WriteRecord {
            object,
            offset,
            length,
            ..
        } = WriteRecord::decode(&self.body)?;
        let end = offset.checked_add(length)?;
        let object = ObjectId(object & ((1 << 48) - 1));
        let Some(block) = &self.indirect else {
            let data = self.body.get(WriteRecord::SIZE..)?.get(..index(length))?;
            return Some(WriteBody {
                object,
                offset,
                data: IoBuf::copy_from(data),
                end: None,
            });
        };
        let size = block.len() as u64;
        if length < size {
            // OpenZFS: module/zfs/zfs_replay.c, zfs_replay_write: the whole block, for a later record may only say that
            // the file has grown over more of it.
            return Some(WriteBody {
                object,
                offset: offset - offset % size.max(1),
                data: block.clone(),
                end: Some(end),
            });
        }
        (length == size).then(|| WriteBody {
            object,
            offset,
            data: block.clone(),
            end: Some(end),
        })
    }
}

/// The records of a log, in order. After the last one [`ReplayStream::finish`] frees the log.
pub struct ReplayStream {
    log: Zilog,
    walk: Walk,
    claim_txg: u64,
    replayed: u64,
    /// Records of the block being read, and how far.
    block: Vec<u8>,
    at: usize,
    frees: LogFrees,
    ended: bool,
    began: Instant,
    records: u64,
}

impl std::fmt::Debug for ReplayStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReplayStream").finish_non_exhaustive()
    }
}

impl ReplayStream {
    pub(crate) fn new(log: &Zilog) -> Self {
        let header = log.objset().zil_header();
        Self {
            walk: Walk::new(log.store(), log.objset().services().keys(), &header),
            claim_txg: header.claim_txg,
            replayed: header.replay_seq,
            block: Vec::new(),
            at: 0,
            frees: LogFrees::new(&header),
            log: log.clone(),
            ended: false,
            began: log.handle().now(),
            records: 0,
        }
    }

    /// Returns the next record that has not taken effect yet.
    ///
    /// # Errors
    /// [`ZilError::Unreadable`] when a part of the log that was there at the claim cannot be read now.
    pub async fn next(&mut self) -> Result<Option<Record>> {
        loop {
            while let Some(record) = records_of(&self.block[self.at..]).next() {
                self.at += LogRecord::HEADER + record.body.len();
                if !self.walk.is_claimed(record.seq) {
                    self.at = self.block.len();
                    break;
                }
                self.frees.record(&record);
                // Older ones are on disk with their txg.
                if record.seq > self.replayed && record.txg >= self.claim_txg {
                    self.records += 1;
                    return self.load(&record).await.map(Some);
                }
            }
            let Some(step) = self.walk.next().await? else {
                self.ended = true;
                return Ok(None);
            };
            self.frees.chain_block(&step.bp);
            self.block = step.records;
            self.at = 0;
        }
    }

    async fn load(&self, record: &LogRecord<'_>) -> Result<Record> {
        let kind = record.kind & !LogRecord::CASE_INSENSITIVE;
        let objset = self.log.objset().id();
        let write = (kind == record_kind::WRITE && record.body.len() == WriteRecord::SIZE)
            .then(|| WriteRecord::decode(record.body))
            .flatten()
            .filter(|write| write.length != 0);
        let mut indirect = None;
        if let Some(write) = write {
            let bp = write.block;
            indirect = Some(if bp.is_hole() {
                let length = bp.lsize().max(write.length);
                if length > ondisk::MAX_BLOCK_SIZE {
                    return Err(ZilError::Damaged {
                        objset,
                        seq: record.seq,
                    });
                }
                IoBuf::zeroed(index(length))
            } else {
                let props = ReadProps {
                    class: IoClass::SyncRead,
                    bookmark: Bookmark {
                        objset,
                        object: write.object,
                        level: 0,
                        block: write.offset,
                    },
                };
                self.read_block(&bp, props).await?
            });
        }
        Ok(Record {
            kind,
            case_insensitive: record.kind & LogRecord::CASE_INSENSITIVE != 0,
            seq: record.seq,
            body: record.body.to_vec(),
            indirect,
        })
    }

    /// Reads a block that a record of cloned blocks names; zeros for a hole of `block_size` bytes.
    ///
    /// # Errors
    /// Of reading.
    pub async fn cloned_block(&self, range: &CloneRange, block: usize) -> Result<IoBuf> {
        let bp = &range.blocks[block];
        if bp.is_hole() {
            return Ok(IoBuf::zeroed(index(range.block_size)));
        }
        let props = ReadProps {
            class: IoClass::SyncRead,
            bookmark: Bookmark {
                objset: self.log.objset().id(),
                object: range.object,
                level: 0,
                block: block as u64,
            },
        };
        self.read_block(bp, props).await
    }

    async fn read_block(&self, bp: &BlockPointer, props: ReadProps) -> Result<IoBuf> {
        let keys = self.log.objset().services().keys();
        let forms = self.log.store().read_forms(bp, props, keys).await?;
        Ok(forms.logical)
    }

    /// Frees the log after everything was replayed: on return its blocks are free and the header is empty, on disk.
    ///
    /// # Errors
    /// Of the transaction clock; the log stays as it is then.
    ///
    /// # Panics
    /// When records were left in the stream.
    pub async fn finish(self) -> Result<()> {
        assert!(
            self.ended,
            "a log is freed only when all of it was replayed"
        );
        let took = self.log.handle().now().since(self.began);
        let replay_ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.log.count_replay(self.records, replay_ns);
        self.log.discard(self.frees.blocks).await
    }
}
